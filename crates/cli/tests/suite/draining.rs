//! Nodes that are drained by `halite drain` or SIGTERM: their regions move to other nodes, and users of the regions
//! continue.

use crate::support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use halite::blocking::Session;
use halite::{Config, Lh, Node, NodeId, Permissions, Placement};
use rustix::process::Signal;
use support::etcd::Etcd;
use support::{Running, Scratch, eventually};

const ANYBODY: Permissions = Permissions::READ.union(Permissions::WRITE);
const REGION_BYTES: u64 = 1 << 20;

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

/// Writes and reads back in a loop. Returns the number of rounds.
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

#[test]
fn a_rolling_restart_under_load_fails_nothing() {
    roll(&Scratch::new("rolling"), None);
}

/// Names are assigned at the same time, because with etcd node 0 is not needed for that.
#[test]
fn a_rolling_restart_with_etcd_fails_no_name() {
    let scratch = Scratch::new("rolling-etcd");
    let Some(etcd) = Etcd::start() else { return };
    roll(&scratch, Some(&etcd.address("rolling")));
}

/// Creates and frees named regions on any node in a loop. Returns the number of rounds.
fn name(session: &Session, is_over: &AtomicBool) -> u64 {
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let name = format!("named-{count}");
        let lh =
            session.alloc(Some(&name), 4096, Placement::Anywhere, ANYBODY).expect("a name can be assigned");
        session.stat(&name).expect("and looked up");
        session.free(lh).expect("and freed");
        count += 1;
    }
    count
}

fn roll(scratch: &Scratch, directory: Option<&str>) {
    let mut nodes: Vec<Running> = (0..3).map(|id| start(scratch, id, directory)).collect();
    let application = application(&scratch.cluster());
    let session = application.blocking_session();
    let names = ["on-0", "on-1", "on-2", "spread"];
    let regions = names.map(|name| {
        let placement = match name.strip_prefix("on-") {
            Some(node) => Placement::On(NodeId(node.parse().unwrap())),
            None => Placement::Spread(Vec::new()),
        };
        session.alloc(Some(name), REGION_BYTES, placement, ANYBODY).unwrap()
    });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (session, is_over) = (&session, &is_over);
        let mut workers: Vec<_> =
            regions.iter().map(|lh| scope.spawn(move || access(session, *lh, is_over))).collect();
        workers.extend(directory.map(|_| scope.spawn(move || name(session, is_over))));
        // Ends the other threads even if an assertion fails.
        let restarted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for id in [1, 2, 0] {
                if id == 2 {
                    nodes[id].signal(Signal::TERM);
                } else {
                    let said = scratch.ok(&format!("drain {id} --within 60"));
                    assert!(said.contains(&format!("node {id} is drained")), "{said}");
                }
                assert!(nodes[id].wait().success(), "no region was left on node {id}");
                nodes[id] = start(scratch, id as u32, directory);
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        assert!(workers.into_iter().all(|worker| worker.join().unwrap() > 0));
        restarted.unwrap();
    });
    for name in names {
        let found = session.stat(name).unwrap();
        assert!(found.lost.is_empty() && found.unreachable.is_empty(), "{found:?}");
    }
    eventually(|| scratch.states()[..3] == ["alive"; 3]);
}

/// For example, `timeout` sends a signal to the process and then to its process group.
#[test]
fn a_node_that_is_signalled_twice_is_drained() {
    let scratch = Scratch::new("twice");
    let _first = start(&scratch, 0, None);
    for round in 0..2 {
        let mut second = start(&scratch, 1, None);
        let name = format!("model-{round}");
        scratch.write("file", b"bytes");
        scratch.ok(&format!("put {name} {} --node 1", scratch.file("file").display()));
        second.signal(Signal::TERM);
        second.signal(Signal::TERM);
        assert!(second.wait().success(), "the second signal did not interrupt the drain");
        assert_eq!(scratch.ok(&format!("get {name}")), "bytes");
        // The node said goodbye: otherwise other nodes would report it as dead.
        eventually(|| scratch.states() == ["alive", "left"]);
        let complaint = scratch.fails("drain 1", 1);
        assert!(complaint.contains("it has left the cluster before"), "{complaint}");
    }
}

#[test]
fn regions_that_cannot_move_are_named_and_kept() {
    let scratch = Scratch::new("left");
    let mut node = start(&scratch, 0, None);
    scratch.write("file", b"bytes");
    scratch.ok("put model FILE".replace("FILE", scratch.file("file").to_str().unwrap()).as_str());
    let drain = |line: &str| {
        let output = scratch.run(line);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("\"model\", ") && said.contains("no other node that stays"), "{said}");
        said
    };
    let said = drain("drain 0");
    assert!(said.contains("node 0 keeps running with these regions") && said.contains("--destroy"), "{said}");
    assert_eq!(scratch.ok("get model"), "bytes", "the region is kept");
    let said = drain("drain 0 --destroy");
    assert!(said.contains("node 0 has left"), "{said}");
    assert_eq!(node.wait().code(), Some(3));
}

#[test]
fn chunks_that_cannot_move_are_named_after_their_regions() {
    let scratch = Scratch::new("chunks");
    let _nodes = [0, 1].map(|id| start(&scratch, id, None));
    scratch.write("file", &vec![1; 40 << 20]);
    let file = scratch.file("file").display().to_string();
    scratch.ok(&format!("put model {file} --node 0"));
    scratch.ok("mv model --to 1");
    scratch.ok(&format!("put other {file} --node 0"));
    let output = scratch.run("drain 1 --within 1");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("\"model\", 40"), "{said}");
}
