//! Tests of the cluster directory with unexpected contents.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use halite_tier::ids::Incarnation;
use tempfile::TempDir;

use super::*;
use crate::error::JoinError;

struct Scratch(TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(crate::runtime::scratch())
    }

    fn founded() -> (Scratch, ClusterDir) {
        let scratch = Scratch::new();
        let dir = ClusterDir::found(scratch.0.path()).unwrap();
        (scratch, dir)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn ids(dir: &ClusterDir) -> Vec<(u32, bool)> {
    dir.nodes().unwrap().iter().map(|presence| (presence.node.0, presence.alive)).collect()
}

fn take(dir: &ClusterDir, node: Option<u32>) -> NodeLock {
    NodeLock::take(dir, node.map(NodeId), Incarnation(1)).unwrap()
}

#[test]
fn a_living_cluster_issues_each_number_once() {
    let (scratch, dir) = Scratch::founded();
    let first = take(&dir, Some(0));
    let (one, two) = (take(&dir, None), take(&dir, None));
    assert_eq!((one.node().0, two.node().0), (1000, 1001));
    drop(one);
    assert_eq!(take(&dir, None).node().0, 1002, "1000 is free, but was used before");
    // The first node may leave and return, and a cleanup keeps the counter while nodes live.
    drop(first);
    dir.clean().unwrap();
    let first = take(&dir, Some(0));
    drop(two);
    assert_eq!(take(&dir, None).node().0, 1003);
    drop(first);
    dir.clean().unwrap();
    assert_eq!(scratch.names(), [MARKER], "no node refers to earlier numbers any more");
    assert_eq!(take(&dir, None).node().0, 1000);
}

#[test]
fn only_files_of_dead_nodes_are_removed() {
    let (scratch, dir) = Scratch::founded();
    let _living = take(&dir, Some(1));
    let _sockets = ["node-1.shm.sock", "node-2.shm.sock", "node-5.shm.sock"]
        .map(|name| UnixListener::bind(scratch.0.path().join(name)).unwrap());
    for residue in ["node-2.lock", "node-2.shm.lock", "node-1000.lock"] {
        std::fs::write(scratch.0.path().join(residue), "4194305 77\n").unwrap();
    }
    dir.clean_residue().unwrap();
    assert_eq!(ids(&dir), [(1, true), (2, false)], "a dead node that may be restarted is remembered");
    assert_eq!(scratch.names(), [MARKER, "node-1.lock", "node-1.shm.sock", "node-2.lock"]);
    dir.clean().unwrap();
    assert_eq!(ids(&dir), [(1, true)]);
}

#[test]
fn a_join_that_times_out_names_the_joining_process() {
    let (_scratch, dir) = Scratch::founded();
    let _joining = JoinLock::take(&dir, Incarnation(1), Duration::ZERO).unwrap();
    let refused = JoinLock::take(&dir, Incarnation(2), Duration::ZERO).unwrap_err();
    assert!(matches!(refused, JoinError::JoinTimeout { pid, .. } if pid == std::process::id()));
}
