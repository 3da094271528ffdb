//! Processes join, leave and are killed while other nodes work. No resources of these processes may remain.

use std::time::Instant;

use halite::NodeId;

use super::cluster::{Cluster, PATIENCE, Process};

const ROUNDS: usize = 100;
/// Rounds after which the process's allocator has reached its steady size.
const WARM_UP: usize = 20;
/// Less than 4 KiB per process.
const PRIVATE_GROWTH_MAX: u64 = 512 << 10;

/// Starts two processes at the same time, which use existing regions; then one leaves, and the other is killed while it
/// writes.
fn start_and_end_two(cluster: &Cluster, round: usize) {
    let mut pair = [Process::start("peaceful"), Process::start("killed")];
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
    let [peaceful, mut killed] = pair;
    killed.run("flood brief-1 65536");
    killed.kill();
    peaceful.leave();
}

pub fn private(process: &mut Process) -> u64 {
    let answer = process.ask("private");
    answer.parse().unwrap_or_else(|_| panic!("{answer}"))
}

/// Returns the resources that the long-lived process holds. If `most` is given, first waits until the process holds no
/// more than that, because it learns of the last death a moment later.
pub fn await_resources(process: &mut Process, most: Option<&str>) -> String {
    let numbers = |held: &str| -> Vec<u64> {
        held.split(' ').map(|word| word.parse().unwrap_or_else(|_| panic!("{held}"))).collect()
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let held = process.ask("held");
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
    let mut private_warm = 0;
    for round in 0..ROUNDS {
        if round == WARM_UP {
            private_warm = private(&mut first);
        }
        start_and_end_two(&cluster, round);
    }
    let answer = busy.ask("halt");
    let count = answer.strip_prefix("done ").and_then(|count| count.parse::<u64>().ok());
    assert!(count.is_some_and(|count| count > 0), "a working node was disturbed: {answer}");
    let after = await_resources(&mut first, Some(&before));
    eprintln!("descriptors, shared mappings and threads of the first node: {before} before, {after} after");
    let growth = private(&mut first).saturating_sub(private_warm);
    eprintln!(
        "its private memory grew by {growth} bytes while {} processes came and went",
        2 * (ROUNDS - WARM_UP)
    );
    assert!(growth < PRIVATE_GROWTH_MAX, "{growth} bytes of private memory leaked");

    // The next node that joins removes the files of the last ones.
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
