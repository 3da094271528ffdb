//! Tests of the cluster directory with unexpected contents.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use halite_tier::ids::Incarnation;
use rustix::fs::{FileType, Mode};
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
    assert_eq!(scratch.names(), [MARKER], "no node is left that could refer to earlier numbers");
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
fn open_directories_and_links_are_refused() {
    let scratch = Scratch::new();
    let (dir, link) = (scratch.0.path().join("dir"), scratch.0.path().join("link"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o750)).unwrap();
    for refused in [ClusterDir::open(&dir), ClusterDir::found(&dir)] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("0750") && error.contains("chmod 700"), "{error}");
    }
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&dir, &link).unwrap();
    for path in [link.clone(), link.join(""), link.join(".")] {
        assert!(ClusterDir::found(&path).unwrap_err().to_string().contains("not a directory"), "{path:?}");
    }
    ClusterDir::found(&scratch.0.path().join("new/below")).unwrap();
    assert_eq!(
        std::fs::metadata(scratch.0.path().join("new/below")).unwrap().permissions().mode() & 0o777,
        0o700
    );
    ClusterDir::found(&dir).unwrap();
}

/// The kind of a foreign file, as errors name it, and a function that creates one.
type Bait = (&'static str, fn(&Path));

const BAITS: [Bait; 5] = [
    ("a FIFO", |path| rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap()),
    ("a directory", |path| {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join("inside"), "theirs").unwrap();
    }),
    ("a symbolic link", |path| {
        let target = path.parent().unwrap().with_extension("target");
        std::fs::write(&target, "theirs").unwrap();
        symlink(target, path).unwrap();
    }),
    ("a file with several hard links", |path| {
        let target = path.parent().unwrap().with_extension("target");
        std::fs::write(&target, "theirs").unwrap();
        std::fs::hard_link(target, path).unwrap();
    }),
    ("a socket", |path| drop(UnixListener::bind(path).unwrap())),
];

#[test]
fn foreign_files_are_neither_opened_nor_removed() {
    for name in [
        MARKER,
        JOIN_LOCK,
        NEXT_NUMBER,
        "node-9.lock",
        "node-9.shm.lock",
        "node-9.shm.sock",
        "logs/node-9.log",
    ] {
        for (what, place) in BAITS {
            if (name, what) == ("node-9.shm.sock", "a socket") {
                continue;
            }
            let (scratch, dir) = Scratch::founded();
            let target = scratch.0.path().with_extension("target");
            let bait = scratch.0.path().join(name);
            let _logs = dir.dir.subdirectory(LOGS, Create::Yes).unwrap();
            let _ = std::fs::remove_file(&bait);
            place(&bait);
            let kind = std::fs::symlink_metadata(&bait).unwrap().file_type();

            let attempts = [
                ("open", ClusterDir::open(scratch.0.path()).map(drop)),
                ("nodes", dir.nodes().map(drop)),
                ("clean", dir.clean()),
                ("clean logs", dir.clean_logs()),
                ("log", dir.create_log(NodeId(9)).map(drop)),
                ("process", dir.process_of(NodeId(9)).map(drop)),
                ("number", numbers::take_next(&dir.dir).map(drop)),
            ];
            let complaints: Vec<String> =
                attempts.into_iter().filter_map(|(_, done)| Some(done.err()?.to_string())).collect();
            let join = JoinLock::take(&dir, Incarnation(2), Duration::ZERO)
                .map(drop)
                .and_then(|()| NodeLock::take(&dir, Some(NodeId(9)), Incarnation(1)).map(drop));
            let join = join.err().map(|error: JoinError| error.to_string());
            let complaints: Vec<String> = complaints.into_iter().chain(join).collect();
            let names_it = |complaint: &String| {
                let what =
                    if name == "node-9.shm.sock" && what.contains("file") { "a regular file" } else { what };
                complaint.contains(&format!("{} is {what}", bait.display()))
            };
            assert!(
                !complaints.is_empty() && complaints.iter().all(names_it),
                "{name}, {what}: {complaints:?}"
            );
            assert_eq!(std::fs::symlink_metadata(&bait).unwrap().file_type(), kind, "{name}, {what}");
            for theirs in [&target, &bait.join("inside")] {
                if let Ok(text) = std::fs::read_to_string(theirs) {
                    assert_eq!(text, "theirs", "{name}, {what}");
                }
            }
            let _ = std::fs::remove_file(&target);
        }
    }
}

#[test]
fn a_join_that_times_out_names_the_joining_process() {
    let (_scratch, dir) = Scratch::founded();
    let _joining = JoinLock::take(&dir, Incarnation(1), Duration::ZERO).unwrap();
    let refused = JoinLock::take(&dir, Incarnation(2), Duration::ZERO).unwrap_err();
    assert!(matches!(refused, JoinError::JoinTimeout { pid, .. } if pid == std::process::id()));
}
