//! What the cluster directory does with what it finds.

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
fn a_node_is_present_while_its_lock_is_held() {
    let (_scratch, dir) = Scratch::founded();
    let lock = NodeLock::take(&dir, Some(NodeId(3)), Incarnation(0xabc)).unwrap();
    let pid = std::process::id();
    let expected = Presence { node: NodeId(3), pid, incarnation: 0xabc, alive: true };
    assert_eq!(dir.nodes().unwrap(), [expected]);
    drop(lock);
    assert_eq!(dir.nodes().unwrap(), []);
}

#[test]
fn a_number_that_was_given_out_is_not_given_out_again_while_the_cluster_lives() {
    let (scratch, dir) = Scratch::founded();
    let first = take(&dir, Some(0));
    let (one, two) = (take(&dir, None), take(&dir, None));
    assert_eq!((one.node().0, two.node().0), (1000, 1001));
    drop(one);
    assert_eq!(take(&dir, None).node().0, 1002, "1000 is free, and was somebody");
    // The first node may come and go, and cleaning leaves the count to the living.
    drop(first);
    dir.clean().unwrap();
    let first = take(&dir, Some(0));
    drop(two);
    assert_eq!(take(&dir, None).node().0, 1003);
    drop(first);
    dir.clean().unwrap();
    assert_eq!(scratch.names(), [MARKER], "nobody is left who could remember");
    assert_eq!(take(&dir, None).node().0, 1000);
}

#[test]
fn what_the_dead_left_is_removed_and_the_living_are_left_alone() {
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
fn a_directory_that_is_not_there_or_empty_has_no_nodes_and_stays_so() {
    let scratch = Scratch::new();
    let missing = scratch.0.path().join("missing");
    for dir in [&missing, scratch.0.path()] {
        assert_eq!(nodes(dir).unwrap(), []);
        assert!(matches!(ClusterDir::open(dir), Err(ClusterDirError::NoCluster { .. })));
    }
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn a_directory_with_other_things_in_it_is_refused_untouched() {
    let scratch = Scratch::new();
    for theirs in ["node-3.lock", "node-3.py", "join.lock"] {
        std::fs::write(scratch.0.path().join(theirs), "theirs").unwrap();
    }
    std::fs::create_dir(scratch.0.path().join("logs")).unwrap();
    let before = scratch.names();
    for refused in [ClusterDir::open(scratch.0.path()), ClusterDir::found(scratch.0.path())] {
        let error = refused.unwrap_err();
        assert!(matches!(&error, ClusterDirError::NotOurs { dir } if *dir == scratch.0.path()), "{error}");
    }
    assert_eq!(scratch.names(), before);
}

#[test]
fn a_directory_that_others_may_enter_or_a_link_to_one_is_refused() {
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

/// Puts something that nobody has made there under a name of ours, and says how errors call it.
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
    ("a file that has other names", |path| {
        let target = path.parent().unwrap().with_extension("target");
        std::fs::write(&target, "theirs").unwrap();
        std::fs::hard_link(target, path).unwrap();
    }),
    ("a socket", |path| drop(UnixListener::bind(path).unwrap())),
];

#[test]
fn whatever_bears_the_name_of_a_file_of_ours_is_neither_opened_nor_removed() {
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
fn a_lock_file_may_say_anything_and_be_as_long_as_it_likes() {
    let (scratch, dir) = Scratch::founded();
    let lock = take(&dir, Some(1));
    let path = scratch.0.path().join("node-1.lock");
    for text in ["", "-1 -1", "0 0", "99999999999999999999 zz", "\0\u{fffd}\n\n", "1 "] {
        std::fs::write(&path, text).unwrap();
        assert_eq!(ids(&dir), [(1, true)], "{text:?}");
    }
    std::fs::write(&path, [0xff; 64]).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(ids(&dir), [(1, true)]);
    drop(lock);
    assert_eq!(scratch.names(), [MARKER]);
}

#[test]
fn logs_of_an_earlier_cluster_are_replaced_and_other_files_beside_them_stay() {
    let (scratch, dir) = Scratch::founded();
    dir.create_log(NodeId(0)).unwrap().write_all(b"first").unwrap();
    dir.create_log(NodeId(1)).unwrap();
    std::fs::write(scratch.0.path().join("logs/notes"), "theirs").unwrap();
    dir.clean().unwrap();
    assert_eq!(
        std::fs::read(scratch.0.path().join("logs/node-0.log")).unwrap(),
        b"first",
        "cleaning keeps them"
    );
    dir.clean_logs().unwrap();
    dir.create_log(NodeId(0)).unwrap();
    assert_eq!(std::fs::read(scratch.0.path().join("logs/node-0.log")).unwrap(), b"");
    assert!(!scratch.0.path().join("logs/node-1.log").exists());
    assert_eq!(std::fs::read(scratch.0.path().join("logs/notes")).unwrap(), b"theirs");
}

#[test]
fn who_waits_too_long_for_another_to_join_learns_its_process() {
    let (_scratch, dir) = Scratch::founded();
    let _joining = JoinLock::take(&dir, Incarnation(1), Duration::ZERO).unwrap();
    let refused = JoinLock::take(&dir, Incarnation(2), Duration::ZERO).unwrap_err();
    assert!(matches!(refused, JoinError::JoinTimeout { pid, .. } if pid == std::process::id()));
}

#[test]
fn the_process_of_a_node_is_the_one_that_listens_and_not_what_a_file_says() {
    let (scratch, dir) = Scratch::founded();
    std::fs::write(scratch.0.path().join("node-1.lock"), "1 1\n").unwrap();
    assert!(dir.process_of(NodeId(1)).unwrap().is_none());
    let name = |provider| format!("node-1.{provider}");
    let shm = halite_providers::ShmConfig::new(scratch.0.path(), name(Provider::Shm));
    let roce = halite_providers::RoceConfig::new(scratch.0.path(), name(Provider::Roce));
    let open: [&dyn Fn() -> std::sync::Arc<dyn halite_fabric::Fabric>; 2] =
        [&|| halite_providers::ShmFabric::open(shm.clone()).unwrap(), &|| {
            halite_providers::RoceFabric::open(roce.clone()).unwrap()
        }];
    for open in open {
        listens_and_is_found(&scratch, &dir, open);
    }
}

fn listens_and_is_found(
    scratch: &Scratch,
    dir: &ClusterDir,
    open: &dyn Fn() -> std::sync::Arc<dyn halite_fabric::Fabric>,
) {
    std::fs::write(scratch.0.path().join("node-1.lock"), "1 1\n").unwrap();
    let fabric = open();
    let found = dir.process_of(NodeId(1)).unwrap().unwrap();
    assert_eq!(u32::try_from(found.pid).unwrap(), std::process::id());
    assert_eq!(ids(dir), [(1, true)], "the lock of its fabric is held, and tells that it lives");
    assert!(matches!(
        NodeLock::take(dir, Some(NodeId(1)), Incarnation(1)),
        Err(JoinError::AlreadyRunning { .. })
    ));
    drop(fabric);
    assert!(dir.process_of(NodeId(1)).unwrap().is_none());
}
