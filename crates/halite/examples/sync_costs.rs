//! What atomics and locks cost a thread, beside the bare atomic on the same kind of page.
//!
//! Two nodes in one process; the word and the lock live on the other one.

use std::hint::black_box;
use std::time::Instant;

use halite::{Config, Fence, Node, NodeId, Permissions, Placement};
use halite_mem::{PagePolicy, Segment};

const ROUNDS: u32 = 1_000_000;
const SAMPLES: usize = 9;

/// Prints the median of several runs, in ns per round, and their spread.
fn cost<T>(name: &str, mut once: impl FnMut() -> T) {
    let mut samples: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let begin = Instant::now();
            (0..ROUNDS).for_each(|_| drop(black_box(once())));
            begin.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    println!(
        "{name:24} {:8.1} ns   ({:.1} to {:.1})",
        samples[SAMPLES / 2],
        samples[0],
        samples[SAMPLES - 1]
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("halite-sync-costs-{}", std::process::id()));
    let start = |node, arena_bytes| {
        let (dir, fence) = (dir.clone(), Fence::Never);
        Node::embedded(Config { dir, node: Some(NodeId(node)), arena_bytes, fence, ..Config::default() })
    };
    let (near, far) = (start(0, 0)?, start(1, 64 << 20)?);
    let session = near.blocking_session();
    let lh = session.alloc(None, 4096, Placement::On(far.id()), Permissions::empty())?;
    let segment = Segment::create("bare", 4096, PagePolicy::Normal)?;
    let bare = segment.window(0, 4096).expect("all of it");

    cost("bare fetch_add", || bare.fetch_add_u64(8, 1));
    cost("fetch_add", || session.fetch_add(lh, 8, 1));
    cost("bare compare_swap", || bare.compare_exchange_u64(8, 0, 0));
    cost("compare_swap", || session.compare_swap(lh, 8, 0, 0));
    cost("free lock and unlock", || session.lock("bench").expect("nobody else wants it"));
    drop((session, near, far));
    std::fs::remove_dir_all(dir)?;
    Ok(())
}
