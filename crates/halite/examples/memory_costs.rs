//! What fills and copies cost beside what callers would do without them, medians in one run:
//! `cargo run --release -p halite --example memory_costs`.

use std::time::{Duration, Instant};

use halite::{Config, Node, NodeId, Permissions, Placement};

const ROUNDS: usize = 201;

fn median(mut operation: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            operation();
            begin.elapsed()
        })
        .collect();
    times.sort();
    times[ROUNDS / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("halite-memory-costs-{}", std::process::id()));
    let join =
        |node| Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(node)), ..Config::default() });
    let (first, second) = (join(0)?, join(1)?);
    let session = first.blocking_session();
    let anybody = Permissions::READ | Permissions::WRITE;
    let from = session.alloc(None, 1 << 20, Placement::On(NodeId(1)), anybody)?;
    let to = session.alloc(None, 1 << 20, Placement::On(NodeId(1)), anybody)?;
    for len in [4 << 10, 64 << 10, 1 << 20] {
        let mut buffer = vec![1u8; len];
        session.write(from, 0, &buffer)?;
        session.write(to, 0, &buffer)?;
        let memset = median(|| std::hint::black_box(&mut buffer).fill(7));
        let fill = median(|| session.fill(to, 0, len as u64, 7).expect("fill"));
        let through = median(|| {
            session.read(from, 0, &mut buffer).expect("read");
            session.write(to, 0, &buffer).expect("write");
        });
        let copy = median(|| session.copy(to, 0, from, 0, len as u64).expect("copy"));
        println!(
            "{len:>8} bytes: memset {memset:?}, fill {fill:?}; read and write {through:?}, copy {copy:?}"
        );
        let mut copied = vec![0; len];
        session.read(to, 0, &mut copied)?;
        assert!(copied.iter().all(|byte| *byte == 1), "the copy is verified");
    }
    drop((session, second, first));
    std::fs::remove_dir_all(dir)?;
    Ok(())
}
