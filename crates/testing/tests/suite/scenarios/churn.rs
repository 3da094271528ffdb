//! Processes join, leave and are killed while other nodes work. They must not leak resources of the other nodes.

use std::time::Instant;

use halite::NodeId;

use super::cluster::{Cluster, PATIENCE, Process};

const ROUNDS: usize = 100;
/// Rounds after which the process's allocator has reached its steady size.
const WARM_UP: usize = 20;
/// Maximum growth of private memory, in bytes: about 3 KiB for each of 160 processes.
const PRIVATE_GROWTH_MAX: u64 = 512 << 10;

/// Starts two processes at the same time, which use existing regions. Then one leaves, and the other is killed while it
/// writes.
fn start_and_end_two(cluster: &Cluster, round: usize) {
    let mut pair = [Process::start("leaving"), Process::start("killed")];
    for process in &mut pair {
        process.send(&cluster.join_line("any"));
    }
    for process in &mut pair {
        assert_eq!(process.answer(), "ok", "round {round}");
    }
    for (index, process) in pair.iter_mut().enumerate() {
        process.run(&format!("alloc brief-{index} 65536 here"));
        process.run(&format!("fill brief-{index} 65536 {round}"));
        process.run("map shared");
        process.run("check shared 65536 3");
    }
    for (index, process) in pair.iter_mut().enumerate() {
        let other = 1 - index;
        process.run(&format!("map brief-{other}"));
        process.run(&format!("check brief-{other} 65536 {round}"));
    }
    let [leaving, mut killed] = pair;
    killed.run("rewrite brief-1 65536");
    killed.kill();
    leaving.leave();
}

/// Returns the private memory of a process, in bytes.
pub fn private_bytes(process: &mut Process) -> u64 {
    let answer = process.ask("private-bytes");
    answer.parse().unwrap_or_else(|_| panic!("{answer}"))
}

/// Returns the resources that a process holds: file descriptors, shared mappings and threads. If `most` is given, first
/// waits until the process holds no more than that, because it learns of the last death a moment later.
pub fn await_resources(process: &mut Process, most: Option<&str>) -> String {
    let numbers = |held: &str| -> Vec<u64> {
        held.split(' ').map(|word| word.parse().unwrap_or_else(|_| panic!("{held}"))).collect()
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let held = process.ask("resources");
        let is_settled =
            most.is_none_or(|most| numbers(&held).iter().zip(numbers(most)).all(|(now, then)| *now <= then));
        if is_settled {
            return held;
        }
        assert!(
            Instant::now() < deadline,
            "descriptors, shared mappings, threads: {held:?}, expected {most:?}"
        );
    }
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn two_hundred_ended_processes_leak_nothing() {
    let cluster = Cluster::new();
    let mut first = cluster.start(0);
    let node = cluster.join(1);
    let session = node.blocking_session();
    let mut busy = cluster.start(2);
    first.run("alloc shared 65536 here");
    first.run("fill shared 65536 3");
    first.run("alloc work 65536 here");
    first.run("alloc counts 4096 here");
    for name in ["work", "counts"] {
        busy.run(&format!("map {name}"));
    }
    let before = await_resources(&mut first, None);
    let files_before = files(&cluster);
    let own_before = session.status().expect("the directory answers")[0].clone();
    busy.run("stripes work counts 0 0");
    let mut warm_bytes = 0;
    for round in 0..ROUNDS {
        if round == WARM_UP {
            warm_bytes = private_bytes(&mut first);
        }
        start_and_end_two(&cluster, round);
    }
    assert!(busy.halt() > 0, "the busy node completed no write");
    let after = await_resources(&mut first, Some(&before));
    eprintln!("descriptors, shared mappings and threads of the first node: {before} before, {after} after");
    let growth = private_bytes(&mut first).saturating_sub(warm_bytes);
    eprintln!(
        "its private memory grew by {growth} bytes while {} processes joined and ended",
        2 * (ROUNDS - WARM_UP)
    );
    assert!(growth < PRIVATE_GROWTH_MAX, "{growth} bytes of private memory leaked");

    // The next node that joins removes the files of the ended processes.
    cluster.start(3).leave();
    assert_eq!(files(&cluster), files_before);
    let nodes = super::cluster::await_status(&session, |nodes| {
        let own = &nodes[0];
        let is_clean = own.node == NodeId(0)
            && (own.bytes_used, own.mappings, own.regions, own.bytes_quarantined)
                == (own_before.bytes_used, own_before.mappings, own_before.regions, 0);
        is_clean.then_some(nodes.len())
    });
    assert_eq!(nodes, 4, "ephemeral nodes are still listed");
    first.run("check shared 65536 3");
}

/// Returns the files of the cluster directory, except the counter of node numbers.
fn files(cluster: &Cluster) -> Vec<String> {
    let entries = std::fs::read_dir(cluster.dir()).expect("the object exists");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("the object exists").file_name().to_string_lossy().into_owned())
        .collect();
    names.retain(|name| name != "next-number");
    names.sort();
    names
}
