//! Joining: accepted and refused configurations, and the reasons of refusals.

use crate::common;

use std::os::unix::fs::DirBuilderExt;

use common::Dir;
use halite::cluster_dir::ClusterDirError;
use halite::{Config, JoinError, NodeId, cluster_dir};

fn nodes(dir: &Dir) -> Vec<(u32, bool)> {
    cluster_dir::nodes(dir.path()).unwrap().iter().map(|found| (found.node.0, found.alive)).collect()
}

#[test]
fn a_number_in_use_is_refused_with_its_process() {
    let dir = Dir::new();
    let _first = dir.join(0);
    let _third = dir.join(3);
    for number in [0, 3] {
        match dir.try_join(dir.config(number)) {
            Err(JoinError::AlreadyRunning { node, pid, dir: at }) => {
                assert_eq!((node, pid, &*at), (NodeId(number), std::process::id(), dir.path()));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(nodes(&dir), [(0, true), (3, true)], "a refused node leaves no files");
}

#[test]
fn a_node_without_a_number_founds_no_cluster() {
    let dir = Dir::new();
    let alone = || dir.try_join(Config { node: None, ..dir.config(0) });
    assert!(matches!(alone(), Err(JoinError::NoCluster { .. })));
    assert!(!dir.path().exists());
    std::fs::DirBuilder::new().mode(0o700).create(dir.path()).unwrap();
    assert!(matches!(alone(), Err(JoinError::NoCluster { .. })));
    std::fs::write(dir.path().join("notes"), "theirs").unwrap();
    assert!(matches!(alone(), Err(JoinError::Directory(ClusterDirError::NotOurs { .. }))));
    let founding = dir.try_join(dir.config(0));
    assert!(matches!(founding, Err(JoinError::Directory(ClusterDirError::NotOurs { .. }))));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_configuration_that_cannot_work_is_refused() {
    let dir = Dir::new();
    let ring = Config { ring_bytes: 1000, ..dir.config(0) };
    assert!(matches!(dir.try_join(ring), Err(JoinError::Fabric(_))));
    let nameless = Config { principal: Some(String::new()), ..dir.config(0) };
    assert!(matches!(dir.try_join(nameless), Err(JoinError::BadConfig(_))));
    assert_eq!(nodes(&dir), []);
}
