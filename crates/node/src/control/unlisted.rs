//! Nodes whose files somebody removed from the cluster directory while they live.
//!
//! What the kernel shows of them is told to people, and ends no process: for that, only the other end of a node's socket
//! tells which process it is.

use std::time::Instant;

use halite::cluster_dir::{ClusterDir, Unlisted};

use super::stop::{GRACE, LOOK_AGAIN};

/// The nodes whose files are gone from `dir`, of those that are `wanted`, as people read it; `None` if there is none.
pub fn describe_unlisted(dir: &ClusterDir, wanted: impl Fn(u32) -> bool) -> Option<String> {
    let deadline = Instant::now() + GRACE;
    loop {
        let unlisted = dir.unlisted();
        let told = |Unlisted { node, pid }: &Unlisted| format!("node {node} is process {pid}");
        let list: Vec<String> = unlisted.iter().filter(|each| wanted(each.node.0)).map(told).collect();
        if list.is_empty() {
            return None;
        }
        // Whoever leaves removes its files before its process ends.
        if Instant::now() >= deadline {
            return Some(list.join(", "));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
