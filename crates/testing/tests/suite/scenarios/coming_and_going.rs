//! Processes come and go all the time, in peace and otherwise, while others work: nothing is left of them.

use std::time::Instant;

use halite::NodeId;

use super::cluster::{Cluster, PATIENCE, Process};

const ROUNDS: usize = 100;
/// After so many rounds the allocator of the process has what it needs.
const WARM_UP: usize = 20;
/// Less than 4 KiB for each process that came and went.
const PRIVATE_GROWTH_MAX: u64 = 512 << 10;

/// Two processes join at the same time, use what is there, and go: one in peace, the other killed while it writes.
fn come_and_go(cluster: &Cluster, round: usize) {
    let mut pair = [Process::start("peaceful"), Process::start("killed")];
    for process in &mut pair {
        process.say(&cluster.join_line("any"));
    }
    for process in &mut pair {
        assert_eq!(process.hear(), "ok", "round {round}");
    }
    for (index, process) in pair.iter_mut().enumerate() {
        process.order(&format!("alloc brief-{index} 65536 here"));
        process.order(&format!("fill brief-{index} 65536 {round}"));
        process.order("map shared");
        process.order("check shared 65536 3");
    }
    for (index, process) in pair.iter_mut().enumerate() {
        let other = 1 - index;
        process.order(&format!("map brief-{other}"));
        process.order(&format!("check brief-{other} 65536 {round}"));
    }
    let [peaceful, mut killed] = pair;
    killed.order("flood brief-1 65536");
    killed.kill();
    peaceful.leave();
}

pub fn private(process: &mut Process) -> u64 {
    let answer = process.ask("private");
    answer.parse().unwrap_or_else(|_| panic!("{answer}"))
}

/// What the long-lived node holds, once it holds no more than `most`: it learns of the last death a moment later.
pub fn settled(process: &mut Process, most: Option<&str>) -> String {
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
            "it holds {held:?} and not {most:?}: descriptors, shared mappings, threads"
        );
    }
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn two_hundred_processes_that_came_and_went_leave_nothing_behind() {
    let cluster = Cluster::new();
    let mut first = cluster.start(0);
    let node = cluster.join(1);
    let session = node.blocking_session();
    let mut busy = cluster.start(2);
    first.order("alloc shared 65536 here");
    first.order("fill shared 65536 3");
    first.order("alloc work 65536 here");
    first.order("alloc counts 4096 here");
    for name in ["work", "counts"] {
        busy.order(&format!("map {name}"));
    }
    let before = settled(&mut first, None);
    let files_before = files(&cluster);
    let own_before = session.status().expect("the status can be had")[0].clone();
    busy.order("stripes work counts 0 0");
    let mut private_warm = 0;
    for round in 0..ROUNDS {
        if round == WARM_UP {
            private_warm = private(&mut first);
        }
        come_and_go(&cluster, round);
    }
    let answer = busy.ask("halt");
    let count = answer.strip_prefix("done ").and_then(|count| count.parse::<u64>().ok());
    assert!(count.is_some_and(|count| count > 0), "working nodes are not disturbed: {answer}");
    let after = settled(&mut first, Some(&before));
    eprintln!("descriptors, shared mappings and threads of the first node: {before} before, {after} after");
    let growth = private(&mut first).saturating_sub(private_warm);
    eprintln!(
        "its private memory grew by {growth} bytes while {} processes came and went",
        2 * (ROUNDS - WARM_UP)
    );
    assert!(growth < PRIVATE_GROWTH_MAX, "{growth} bytes of private memory were not given back");

    // The next node that joins removes what the last ones left.
    cluster.start(3).leave();
    assert_eq!(files(&cluster), files_before);
    let nodes = super::cluster::await_status(&session, |nodes| {
        let own = &nodes[0];
        let is_clean = own.node == NodeId(0)
            && (own.bytes_used, own.mappings, own.regions, own.bytes_quarantined)
                == (own_before.bytes_used, own_before.mappings, own_before.regions, 0);
        is_clean.then_some(nodes.len())
    });
    assert_eq!(nodes, 4, "nobody remembers those who had a number for once");
    first.order("check shared 65536 3");
}

/// The files of the cluster directory, but for the count of numbers that were given out.
fn files(cluster: &Cluster) -> Vec<String> {
    let entries = std::fs::read_dir(cluster.dir()).expect("it is there");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("it is there").file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name != "next-number");
    names.sort();
    names
}
