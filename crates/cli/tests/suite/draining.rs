//! Nodes that are drained, as `halite drain` and SIGTERM have it: what they have goes to others, and who uses it goes on.

use crate::support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use halite::blocking::Session;
use halite::cluster_dir::{self, Presence};
use halite::{
    CallCause, Config, Function, Lh, Node, NodeId, Permissions, Placement, RegionCause, ServeOptions,
};
use rustix::process::Signal;
use support::etcd::Etcd;
use support::{Running, Scratch, eventually};

const ANYBODY: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);
const REGION_BYTES: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn start(scratch: &Scratch, id: u32, directory: Option<&str>) -> Running {
    let directory = directory.map(|address| format!(" --directory {address}")).unwrap_or_default();
    let line = format!("node --id {id} --arena 64M --parent {}{directory}", std::process::id());
    let mut node = Running::start(scratch, &line);
    assert!(node.line().starts_with(&format!("node {id} ready")));
    node
}

fn application(dir: &Path) -> Node {
    Node::embedded(Config { dir: dir.to_owned(), node: None, arena_bytes: 0, ..Config::default() }).unwrap()
}

/// Writes and reads back, again and again.  Returns how often.
fn access(session: &Session, lh: Lh, is_over: &AtomicBool) -> u64 {
    let mut count = 0;
    let mut read = vec![0; 4096];
    while !is_over.load(Ordering::Relaxed) {
        let written = vec![(count % 251) as u8 + 1; read.len()];
        let offset = count % (REGION_BYTES / 4096) * 4096;
        session.write(lh, offset, &written).expect("a region that moves can be written");
        session.read(lh, offset, &mut read).expect("and read");
        assert!(read == written, "what was written is read");
        count += 1;
    }
    count
}

/// Counts under a lock, with others.  Returns how often.
fn count(session: &Session, lock: &str, lh: Lh, at: u64, is_over: &AtomicBool) -> u64 {
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let guard = session.lock(lock).expect("a lock that moves can be taken");
        assert!(!guard.recovered(), "nobody has died");
        let mut bytes = [0; 8];
        session.read(lh, at, &mut bytes).unwrap();
        session.write(lh, at, &(u64::from_le_bytes(bytes) + 1).to_le_bytes()).unwrap();
        guard.unlock().expect("and given up");
        count += 1;
    }
    count
}

#[test]
fn a_rolling_restart_of_three_nodes_under_load_loses_nothing_and_fails_nothing() {
    roll(&Scratch::new("rolling"), None);
}

/// Names are given all the while, too, for node 0 is a node like any other there.
#[test]
fn a_rolling_restart_with_names_in_etcd_fails_no_name_either() {
    let scratch = Scratch::new("rolling-etcd");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    roll(&scratch, Some(&etcd.address("rolling")));
}

/// Names and gives up regions on whatever node is there, again and again.  Returns how often.
fn name(session: &Session, is_over: &AtomicBool) -> u64 {
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let name = format!("named-{count}");
        let lh = session.alloc(Some(&name), 4096, Placement::Anywhere, ANYBODY).expect("a name is given");
        session.stat(&name).expect("and found");
        session.free(lh).expect("and given up");
        count += 1;
    }
    count
}

fn roll(scratch: &Scratch, directory: Option<&str>) {
    let mut nodes: Vec<Running> = (0..3).map(|id| start(scratch, id, directory)).collect();
    let (mine, other) = (application(&scratch.cluster()), application(&scratch.cluster()));
    let (session, second) = (mine.blocking_session(), other.blocking_session());
    let names = ["on-0", "on-1", "on-2", "spread"];
    let regions = names.map(|name| {
        let placement = match name.strip_prefix("on-") {
            Some(node) => Placement::On(NodeId(node.parse().unwrap())),
            None => Placement::Spread(Vec::new()),
        };
        session.alloc(Some(name), REGION_BYTES, placement, ANYBODY).unwrap()
    });
    let counters = session.alloc(Some("counters"), 4096, Placement::On(NodeId(1)), ANYBODY).unwrap();
    let theirs = second.map("counters", ANYBODY).unwrap();
    let locks = ["a", "b", "c", "d"];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also where an assertion fails, the others end.
        let workers: Vec<_> =
            regions.iter().map(|lh| scope.spawn(|| access(&session, *lh, &is_over))).collect();
        let counting: Vec<_> = (0_u64..)
            .zip(locks)
            .map(|(index, lock)| {
                let is_over = &is_over;
                let (session, second) = (&session, &second);
                let one = scope.spawn(move || count(session, lock, counters, 8 * index, is_over));
                (one, scope.spawn(move || count(second, lock, theirs, 8 * index, is_over)))
            })
            .collect();
        let naming = directory.map(|_| scope.spawn(|| name(&second, &is_over)));
        let restarted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for id in [1, 2, 0] {
                match id {
                    2 => nodes[id].signal(Signal::TERM),
                    _ => {
                        let said = scratch.ok(&format!("drain {id} --within 60"));
                        assert!(said.contains(&format!("node {id} is drained")), "{said}");
                        assert!(said.contains(&format!("node {id} has left")), "{said}");
                        let there = cluster_dir::nodes(&scratch.cluster()).unwrap();
                        let is_it = |known: &Presence| known.node == NodeId(id as u32) && known.alive;
                        assert!(!there.iter().any(is_it), "its number is free");
                    }
                }
                assert!(nodes[id].wait().success(), "nothing was left on node {id}");
                nodes[id] = start(scratch, id as u32, directory);
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        naming.into_iter().for_each(|naming| assert!(naming.join().unwrap() > 0));
        for worker in workers {
            assert!(worker.join().unwrap() > 0);
        }
        for (index, (one, other)) in counting.into_iter().enumerate() {
            let counted = one.join().unwrap() + other.join().unwrap();
            let mut bytes = [0; 8];
            session.read(counters, 8 * index as u64, &mut bytes).unwrap();
            assert_eq!(
                u64::from_le_bytes(bytes),
                counted,
                "lock {:?} is held by one at a time",
                locks[index]
            );
        }
        restarted.unwrap();
    });
    for name in names {
        let found = session.stat(name).unwrap();
        assert!(found.lost.is_empty() && found.unreachable.is_empty(), "{found:?}");
    }
    assert!(session.list_lost().unwrap().is_empty());
    eventually(|| scratch.states()[..3] == ["alive"; 3]);
}

#[test]
fn calls_and_allocations_at_a_drained_node_are_refused_and_say_why() {
    let scratch = Scratch::new("refused");
    let join = |node| {
        let config = Config { dir: scratch.cluster(), node: Some(NodeId(node)), ..Config::default() };
        Node::embedded(config).unwrap()
    };
    let (first, second) = (join(0), join(1));
    let (session, server) = (first.blocking_session(), second.blocking_session());
    let function = server.serve(Function(7), ServeOptions::default()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || function.recv().unwrap().reply(b"yes").unwrap());
        assert_eq!(session.call(NodeId(1), Function(7), b"?", PATIENCE).unwrap(), b"yes");
    });
    let _kept = server.serve(Function(8), ServeOptions::default()).unwrap();
    let drained = session.drain(NodeId(1), PATIENCE, false).unwrap();
    assert_eq!(drained.left_count, 0);
    assert_eq!(second.drained().wait(), 0);
    let refused = session.call(NodeId(1), Function(8), b"?", PATIENCE).unwrap_err();
    assert_eq!((refused.cause, refused.may_have_run), (CallCause::Draining, false));
    let refused = session.alloc(None, 4096, Placement::On(NodeId(1)), ANYBODY).unwrap_err();
    assert_eq!(refused.cause, RegionCause::Draining(NodeId(1)));
    assert!(refused.to_string().contains("being drained"), "{refused}");
}

/// `timeout`, for one, sends a signal to the process and then to its group.
#[test]
fn a_node_that_is_sent_the_same_signal_twice_at_once_is_drained_and_leaves_all_the_same() {
    let scratch = Scratch::new("twice");
    let _first = start(&scratch, 0, None);
    for round in 0..4 {
        let mut second = start(&scratch, 1, None);
        let name = format!("model-{round}");
        scratch.write("file", b"bytes");
        scratch.ok(&format!("put {name} {} --node 1", scratch.file("file").display()));
        second.signal(Signal::TERM);
        second.signal(Signal::TERM);
        assert!(second.wait().success(), "it was not ended in the middle");
        assert_eq!(scratch.ok(&format!("get {name}")), "bytes");
        // As others see it: without a goodbye it would be dead.
        eventually(|| scratch.states() == ["alive", "left"]);
    }
}

#[test]
fn what_could_not_be_moved_is_named_and_the_exit_status_says_so() {
    let scratch = Scratch::new("left");
    let mut node = start(&scratch, 0, None);
    scratch.write("file", b"bytes");
    scratch.ok("put model FILE".replace("FILE", scratch.file("file").to_str().unwrap()).as_str());
    let output = scratch.run("drain 0 --or-stay");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("\"model\", ") && said.contains("no other node with memory stays"), "{said}");
    assert!(said.contains("node 0 stays"), "{said}");
    assert_eq!(scratch.states(), ["alive"]);
    node.signal(Signal::TERM);
    assert_eq!(node.wait().code(), Some(3));
    let unknown = scratch.fails("drain 7", 1);
    assert!(!unknown.is_empty());
}
