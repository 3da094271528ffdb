//! Compares the cost of names in etcd and at node 0. Asserts no times.
//!
//! ```text
//! cargo test --release -p halite-cli --test suite -- --ignored --nocapture --test-threads 1 figures
//! ```

use crate::support;

use std::path::Path;
use std::time::Instant;

use halite::{Config, Node, NodeId, Permissions, Placement};
use support::Scratch;
use support::etcd::Etcd;

const NODES: u32 = 8;
const NAMES: usize = 4000;

fn node(dir: &Path, id: u32, directory: Option<&str>) -> Node {
    let directory = directory.map(|address| address.parse().unwrap());
    let config =
        Config { dir: dir.to_owned(), node: Some(NodeId(id)), arena_bytes: 64 << 20, ..Config::default() };
    Node::embedded(Config { directory, ..config }).unwrap()
}

/// Returns the processor time that a process has used, in microseconds.
fn processor_us(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) * 1e6 / rustix::param::clock_ticks_per_second() as f64
}

/// Returns the number of named regions that all nodes together create per second, each with this many threads.
fn rate(nodes: &[Node], threads: usize) -> f64 {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for (node, thread) in nodes.iter().flat_map(|node| (0..threads).map(move |thread| (node, thread))) {
            let session = node.blocking_session();
            scope.spawn(move || {
                for index in (thread..NAMES / nodes.len()).step_by(threads) {
                    let name = format!("{}-{index}", node.id());
                    session.alloc(Some(&name), 4096, Placement::Local, Permissions::empty()).unwrap();
                }
            });
        }
    });
    NAMES as f64 / begin.elapsed().as_secs_f64()
}

#[test]
#[ignore = "measures: .ci/deep figures"]
fn figures_of_names_in_etcd_beside_node_0() {
    let scratch = Scratch::new("figures");
    let Some(etcd) = Etcd::start() else { return };
    println!(
        "| directory | threads of each of 8 nodes | names per second | processor time per name: nodes, us | etcd, us |"
    );
    println!("|---|---|---|---|---|");
    for threads in [1, 4, 32] {
        for (what, is_etcd) in [("node-0", false), ("etcd", true)] {
            let prefix = format!("{what}-{threads}");
            let directory = is_etcd.then(|| etcd.address(&prefix));
            let dir = scratch.file(&prefix);
            let nodes: Vec<Node> = (0..NODES).map(|id| node(&dir, id, directory.as_deref())).collect();
            let used = || [std::process::id(), etcd.pid()].map(processor_us);
            let before = used();
            let rate = rate(&nodes, threads);
            let after = used();
            let [ours, its] = [0, 1].map(|of| (after[of] - before[of]) / NAMES as f64);
            println!("| {what} | {threads} | {rate:.0} | {ours:.0} | {its:.0} |");
        }
    }
}
