//! Nodes that are drained by `halite drain` or SIGTERM: their regions move to other nodes, and users of the regions
//! continue.

use crate::support;

use std::sync::atomic::{AtomicBool, Ordering};

use halite::blocking::Session;
use halite::{Lh, NodeId, Placement};
use rustix::process::Signal;
use support::etcd::Etcd;
use support::{READ_WRITE, Running, Scratch, eventually, join};

const REGION_BYTES: u64 = 1 << 20;

fn start(scratch: &Scratch, id: u32, directory: Option<&str>) -> Running {
    let directory = directory.map(|address| format!(" --directory {address}")).unwrap_or_default();
    let line = format!("node --id {id} --arena 64M --parent {}{directory}", std::process::id());
    let mut node = Running::start(scratch, &line);
    assert!(node.line().starts_with(&format!("node {id} ready")));
    node
}

/// Writes and reads back in a loop. Returns the number of rounds.
fn access_in_a_loop(session: &Session, lh: Lh, is_over: &AtomicBool) -> u64 {
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
fn rolling_restart_fails_no_access() {
    restart_all(&Scratch::new("rolling"), None);
}

/// Names are assigned at the same time, because with etcd node 0 is not needed for that.
#[test]
fn rolling_restart_with_etcd_fails_no_name() {
    let scratch = Scratch::new("rolling-etcd");
    let Some(etcd) = Etcd::start() else { return };
    restart_all(&scratch, Some(&etcd.address("rolling")));
}

/// Creates and frees named regions on any node in a loop. Returns the number of rounds.
fn name_in_a_loop(session: &Session, is_over: &AtomicBool) -> u64 {
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let name = format!("named-{count}");
        let lh = session
            .alloc(Some(&name), 4096, Placement::Anywhere, READ_WRITE)
            .expect("a name can be assigned");
        session.stat(&name).expect("and looked up");
        session.free(lh).expect("and freed");
        count += 1;
    }
    count
}

fn restart_all(scratch: &Scratch, directory: Option<&str>) {
    let mut nodes: Vec<Running> = (0..3).map(|id| start(scratch, id, directory)).collect();
    let application = join(&scratch.cluster());
    let session = application.blocking_session();
    let names = ["on-0", "on-1", "on-2", "spread"];
    let regions = names.map(|name| {
        let placement = match name.strip_prefix("on-") {
            Some(node) => Placement::On(NodeId(node.parse().unwrap())),
            None => Placement::Spread(Vec::new()),
        };
        session.alloc(Some(name), REGION_BYTES, placement, READ_WRITE).unwrap()
    });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (session, is_over) = (&session, &is_over);
        let mut workers: Vec<_> =
            regions.iter().map(|lh| scope.spawn(move || access_in_a_loop(session, *lh, is_over))).collect();
        workers.extend(directory.map(|_| scope.spawn(move || name_in_a_loop(session, is_over))));
        // Ends the other threads even if an assertion fails.
        let restarted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for id in [1, 2, 0] {
                if id == 2 {
                    nodes[id].signal(Signal::TERM);
                } else {
                    let text = scratch.ok(&format!("drain {id} --within 60"));
                    assert!(text.contains(&format!("node {id} is drained")), "{text}");
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
fn node_signalled_twice_is_drained() {
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
        // The node text goodbye: otherwise other nodes would report it as dead.
        eventually(|| scratch.states() == ["alive", "left"]);
        scratch.fails_with("drain 1", 1, "it has left the cluster before");
    }
}

#[test]
fn drain_keeps_regions_that_cannot_move() {
    let scratch = Scratch::new("left");
    let mut node = start(&scratch, 0, None);
    scratch.write("file", b"bytes");
    scratch.ok("put model FILE".replace("FILE", scratch.file("file").to_str().unwrap()).as_str());
    let drain = |line: &str| {
        let output = scratch.run(line);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(3), "{text}");
        assert!(text.contains("\"model\", ") && text.contains("no other node that stays"), "{text}");
        text
    };
    let text = drain("drain 0");
    assert!(text.contains("node 0 keeps running with these regions") && text.contains("--destroy"), "{text}");
    assert_eq!(scratch.ok("get model"), "bytes", "the region is kept");
    let text = drain("drain 0 --destroy");
    assert!(text.contains("node 0 has left"), "{text}");
    assert_eq!(node.wait().code(), Some(3));
}

#[test]
fn drain_names_regions_of_chunks_that_cannot_move() {
    let scratch = Scratch::new("chunks");
    let _nodes = [0, 1].map(|id| start(&scratch, id, None));
    scratch.write("file", &vec![1; 40 << 20]);
    let file = scratch.file("file").display().to_string();
    scratch.ok(&format!("put model {file} --node 0"));
    scratch.ok("mv model --to 1");
    scratch.ok(&format!("put other {file} --node 0"));
    let output = scratch.run("drain 1 --within 1");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("\"model\", 40"), "{text}");
}
