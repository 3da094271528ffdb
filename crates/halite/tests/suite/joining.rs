//! Joining: who may, who may not, and what the reason is.

use crate::common;

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

use common::Dir;
use halite::cluster_dir::ClusterDirError;
use halite::{Config, JoinError, NodeId, cluster_dir};

fn present(dir: &Dir) -> Vec<(u32, bool)> {
    cluster_dir::nodes(dir.path()).unwrap().iter().map(|found| (found.node.0, found.alive)).collect()
}

#[test]
fn a_number_that_is_in_use_is_refused_with_the_process_that_has_it() {
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
    assert_eq!(present(&dir), [(0, true), (3, true)], "the refused left no trace");
}

#[test]
fn nodes_without_a_number_get_one_that_nobody_has_had() {
    let dir = Dir::new();
    let first = dir.join(0);
    let join = || dir.try_join(Config { node: None, ..dir.config(0) }).unwrap();
    let (a, b) = (join(), join());
    assert_eq!((a.id(), b.id()), (NodeId(1000), NodeId(1001)));
    // A caller that uses an old number for 1000 reaches nobody, and no stranger.
    a.leave();
    assert_eq!(join().id(), NodeId(1002));
    first.leave();
    let _first = dir.join(0);
    assert_eq!(join().id(), NodeId(1003));
}

#[test]
fn numbers_that_are_given_out_cannot_be_chosen() {
    let dir = Dir::new();
    let _first = dir.join(0);
    let refused = dir.try_join(dir.config(1000)).unwrap_err().to_string();
    assert!(refused.contains("node 1000") && refused.contains("given out"), "{refused}");
}

#[test]
fn who_has_no_number_founds_no_cluster_and_makes_no_directory() {
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
fn without_the_first_node_there_is_no_cluster() {
    let dir = Dir::new();
    assert!(matches!(dir.try_join(dir.config(1)), Err(JoinError::NoCluster { .. })));
    assert_eq!(present(&dir), []);
}

#[test]
fn a_node_that_left_may_come_back_and_leaves_no_files() {
    let dir = Dir::new();
    let first = dir.join(0);
    for _ in 0..3 {
        dir.join(1).leave();
        assert_eq!(present(&dir), [(0, true)]);
    }
    first.leave();
    let mut left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["halite-cluster", "join.lock"]);
}

#[test]
fn a_directory_that_others_may_enter_is_refused_and_not_changed() {
    let dir = Dir::new();
    std::fs::DirBuilder::new().mode(0o700).create(dir.path()).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    match dir.try_join(dir.config(0)) {
        Err(JoinError::NotPrivate { mode, .. }) => assert_eq!(mode, 0o755),
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_file_or_a_link_in_place_of_the_directory_is_refused() {
    let (dir, target) = (Dir::new(), Dir::new());
    std::fs::write(dir.path(), "").unwrap();
    assert!(matches!(dir.try_join(dir.config(0)), Err(JoinError::Io { .. })));
    std::fs::remove_file(dir.path()).unwrap();
    std::fs::DirBuilder::new().mode(0o700).create(target.path()).unwrap();
    std::os::unix::fs::symlink(target.path(), dir.path()).unwrap();
    assert!(matches!(dir.try_join(dir.config(0)), Err(JoinError::Io { .. })));
    std::fs::remove_file(dir.path()).unwrap();
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error_that_names_it() {
    let dir = Dir::new();
    // Nobody can make anything there, not even root, whom a read-only mode would not stop.
    let impossible = std::path::PathBuf::from("/proc/halite");
    match dir.try_join(Config { dir: impossible.clone(), ..dir.config(0) }) {
        Err(JoinError::Io { path, .. }) => assert_eq!(path, impossible),
        other => panic!("{other:?}"),
    }
    std::fs::DirBuilder::new().mode(0o500).create(dir.path()).unwrap();
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped in part: root may write to read-only directories");
        return;
    }
    assert!(matches!(dir.try_join(dir.config(0)), Err(JoinError::Io { .. })));
}

#[test]
fn a_configuration_that_cannot_work_is_refused() {
    let dir = Dir::new();
    let ring = Config { ring_bytes: 1000, ..dir.config(0) };
    assert!(matches!(dir.try_join(ring), Err(JoinError::Fabric(_))));
    let nameless = Config { principal: Some(String::new()), ..dir.config(0) };
    assert!(matches!(dir.try_join(nameless), Err(JoinError::BadConfig(_))));
    assert_eq!(present(&dir), []);
}
