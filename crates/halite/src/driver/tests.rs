//! Tests that frequent operations do not take the engine's lock, and that a flood of packets does not hold a node.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use halite_fabric::{
    Capabilities, Fabric, Key, Lane, Middleware, Operation, PeerId, PostCause, PostError, WorkRequest,
};
use halite_mem::Window;
use halite_tier::ids::NodeId;
use halite_tier::permissions::Permissions;

use crate::{Config, Function, Node, Placement, ServeOptions};

thread_local! {
    static LOCKED: Cell<u64> = const { Cell::new(0) };
}

/// Counts how often the calling thread takes a runner's lock.
pub(super) fn record_lock() {
    LOCKED.set(LOCKED.get() + 1);
}

const ALL: Permissions = Permissions::all();
const ROUNDS: u64 = 2000;

/// Refuses replies while `is_full`, as a peer's full queue does, and never announces room.
struct FullFabric {
    inner: Arc<dyn Fabric>,
    is_full: AtomicBool,
}

impl Middleware for FullFabric {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn capabilities(&self, peer: PeerId) -> Capabilities {
        Capabilities { direct: false, ..self.inner.capabilities(peer) }
    }

    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let is_answer = |request: &WorkRequest<'_>| matches!(request.operation, Operation::WriteImm { .. });
        if self.is_full.load(Relaxed) && requests.iter().any(is_answer) {
            return Err(PostError { peer, posted: 0, cause: PostCause::QueueFull });
        }
        self.inner.post(peer, lane, requests)
    }

    fn direct(&self, _: PeerId, _: Key) -> Option<Window> {
        None
    }
}

/// While one peer's queue was full, each poll used to take the lock and post all replies again.
#[test]
fn a_full_queue_does_not_slow_other_peers() {
    const ANSWERS: usize = 8;
    const LONG: Duration = Duration::from_secs(60);
    let dir = crate::runtime::scratch();
    let config = |node| Config {
        dir: dir.path().to_owned(),
        node: Some(NodeId(node)),
        lease: LONG,
        ..Config::default()
    };
    let mut full = None;
    let wrap = |inner: Arc<dyn Fabric>| -> Arc<dyn Fabric> {
        let made = FullFabric { inner, is_full: AtomicBool::new(false) };
        full.insert(Arc::new(made)).clone()
    };
    let here = Node::wrap(config(0), wrap).expect("the node joins");
    let full = full.expect("the fabric was wrapped");
    let [_healthy, slow] = [1, 2].map(|node| Node::embedded(config(node)).expect("the node joins"));
    let session = here.blocking_session();
    let server = session.serve(Function(7), ServeOptions::default()).expect("no other session serves it");
    let lh = session.alloc(Some("salt"), 4096, Placement::On(NodeId(1)), ALL).expect("there is room");
    let caller = slow.blocking_session();
    let pending: Vec<_> = (0..ANSWERS)
        .map(|_| caller.post_call(NodeId(0), Function(7), b"salt", 64, LONG).expect("the call is posted"))
        .collect();
    full.is_full.store(true, Relaxed);
    for _ in 0..ANSWERS {
        server.recv().expect("a call arrives").reply(b"pepper").expect("the caller lives");
    }

    let before = LOCKED.get();
    let mut word = [0; 8];
    for round in 0..ROUNDS {
        session.write(lh, 8, &round.to_le_bytes()).expect("the region is writable");
        session.read(lh, 8, &mut word).expect("the region is readable");
    }
    let locked = LOCKED.get() - before;
    full.is_full.store(false, Relaxed);
    // Any change lets the runner settle, which posts them again.
    session.stat("salt").expect("the region exists");
    for answer in pending {
        assert_eq!(answer.answer().as_deref(), Ok(&b"pepper"[..]));
    }
    assert!(locked < ROUNDS / 10, "the lock was taken {locked} times in {} operations", 2 * ROUNDS);
}

/// Has traffic at each poll, as if a peer sent packets without end.
struct FloodedFabric {
    inner: Arc<dyn Fabric>,
    polls: AtomicU64,
}

impl Middleware for FloodedFabric {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn traffic(&self) -> u64 {
        self.polls.fetch_add(1, Relaxed)
    }
}

#[test]
fn node_leaves_while_a_peer_sends_without_end() {
    let dir = crate::runtime::scratch();
    let config = Config { dir: dir.path().to_owned(), node: Some(NodeId(0)), ..Config::default() };
    let node = Node::wrap(config, |inner| Arc::new(FloodedFabric { inner, polls: AtomicU64::new(0) }));
    let node = node.expect("the node joins");
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(node);
        done.send(()).expect("the test waits");
    });
    ended.recv_timeout(Duration::from_secs(60)).expect("the node leaves");
}
