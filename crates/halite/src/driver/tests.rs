//! Who takes the engine's lock, and who need not.

use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use halite_fabric::trace::Tracer;
use halite_fabric::{
    Capabilities, Event, Fabric, Key, Lane, Middleware, Operation, PeerId, PostCause, PostError, Sleeper,
    WorkRequest,
};
use halite_mem::Window;
use halite_tier::ids::NodeId;
use halite_tier::permissions::Permissions;

use crate::{Config, Function, Node, Placement, ServeOptions};

thread_local! {
    static LOCKED: Cell<u64> = const { Cell::new(0) };
}

/// The calling thread takes the lock of a runner.
pub(super) fn note_lock() {
    LOCKED.set(LOCKED.get() + 1);
}

const ALL: Permissions = Permissions::all();
const ROUNDS: u64 = 2000;

/// Each posted operation took it twice: when it was posted, and when it completed.
#[test]
fn small_posted_operations_and_their_completions_leave_the_engine_alone() {
    let dir = crate::runtime::scratch();
    let join = |node| {
        let config = Config {
            dir: dir.path().to_owned(),
            node: Some(NodeId(node)),
            // No heartbeat falls into what is counted.
            lease: Duration::from_secs(24 * 60 * 60),
            ..Config::default()
        };
        // A tracer hides that loads and stores would reach the others' memory.
        let wrap = |fabric: Arc<dyn Fabric>| -> Arc<dyn Fabric> { Arc::new(Tracer::new(fabric, 16)) };
        Node::wrap(config, wrap).expect("the node joins")
    };
    let (here, _there) = (join(0), join(1));
    let session = here.blocking_session();
    let lh = session.alloc(Some("salt"), 4096, Placement::On(NodeId(1)), ALL).expect("there is room");
    let mut word = [0; 8];
    session.write(lh, 0, &word).expect("it may be written");

    let before = LOCKED.get();
    for round in 0..ROUNDS {
        session.write(lh, 8, &round.to_le_bytes()).expect("it may be written");
        session.read(lh, 8, &mut word).expect("it may be read");
        assert_eq!(u64::from_le_bytes(word), round);
        assert_eq!(session.fetch_add(lh, 0, 1), Ok(round));
    }
    let locked = LOCKED.get() - before;
    // Who waits also sees to what happens to be due.
    assert!(locked < ROUNDS / 10, "the lock was taken {locked} times in {} operations", 3 * ROUNDS);
}

/// Takes no answers while `is_full`, as a peer's full queue, and says of no room.
struct Full {
    inner: Arc<dyn Fabric>,
    is_full: AtomicBool,
    refused: AtomicU64,
}

impl Middleware for Full {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn capabilities(&self, peer: PeerId) -> Capabilities {
        Capabilities { direct: false, ..self.inner.capabilities(peer) }
    }

    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let is_answer = |request: &WorkRequest<'_>| matches!(request.operation, Operation::WriteImm { .. });
        if self.is_full.load(Relaxed) && requests.iter().any(is_answer) {
            self.refused.fetch_add(1, Relaxed);
            return Err(PostError { peer, posted: 0, cause: PostCause::QueueFull });
        }
        self.inner.post(peer, lane, requests)
    }

    fn direct(&self, _: PeerId, _: Key) -> Option<Window> {
        None
    }
}

/// Each poll took the lock and posted all answers again, for as long as one peer's queue was full.
#[test]
fn a_peer_whose_queue_is_full_costs_operations_on_others_nothing() {
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
        let made = Full { inner, is_full: AtomicBool::new(false), refused: AtomicU64::new(0) };
        full.insert(Arc::new(made)).clone()
    };
    let here = Node::wrap(config(0), wrap).expect("the node joins");
    let full = full.expect("it was wrapped");
    let [_healthy, slow] = [1, 2].map(|node| Node::embedded(config(node)).expect("the node joins"));
    let session = here.blocking_session();
    let server = session.serve(Function(7), ServeOptions::default()).expect("nobody else serves it");
    let lh = session.alloc(Some("salt"), 4096, Placement::On(NodeId(1)), ALL).expect("there is room");
    let caller = slow.blocking_session();
    let pending: Vec<_> = (0..ANSWERS)
        .map(|_| caller.post_call(NodeId(0), Function(7), b"salt", 64, LONG).expect("it is posted"))
        .collect();
    full.is_full.store(true, Relaxed);
    for _ in 0..ANSWERS {
        server.recv().expect("it was called").reply(b"pepper").expect("the caller lives");
    }

    let (before, refused) = (LOCKED.get(), full.refused.load(Relaxed));
    let mut word = [0; 8];
    for round in 0..ROUNDS {
        session.write(lh, 8, &round.to_le_bytes()).expect("it may be written");
        session.read(lh, 8, &mut word).expect("it may be read");
    }
    let (locked, refused) = (LOCKED.get() - before, full.refused.load(Relaxed) - refused);
    full.is_full.store(false, Relaxed);
    // Whatever has the runner settle tries them again.
    session.stat("salt").expect("it is there");
    for answer in pending {
        assert_eq!(answer.answer().as_deref(), Ok(&b"pepper"[..]));
    }
    assert!(locked < ROUNDS / 10, "the lock was taken {locked} times in {} operations", 2 * ROUNDS);
    assert!(refused < ROUNDS, "{refused} answers were posted in vain");
}

thread_local! {
    /// It was woken as a caller, and has not polled since.
    static JUST_WOKEN: Cell<bool> = const { Cell::new(false) };
}

/// Watches callers sleep.
struct Watched {
    inner: Arc<dyn Fabric>,
    /// How many callers have gone to sleep.
    asleep: Mutex<u64>,
    changed: Condvar,
    /// How often one that was woken armed the doorbell for the progress thread before it had polled.
    armed_at_once: AtomicU64,
}

impl Watched {
    fn wait_until_asleep(&self, count: u64) {
        let asleep = self.asleep.lock().expect("nobody panics");
        let are_fewer = |asleep: &mut u64| *asleep < count;
        let waited = self.changed.wait_timeout_while(asleep, Duration::from_secs(60), are_fewer);
        assert!(!waited.expect("nobody panics").1.timed_out(), "it does not sleep");
    }
}

impl Middleware for Watched {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        JUST_WOKEN.set(false);
        self.inner.poll(events)
    }

    fn arm(&self, sleeper: Option<Sleeper>) {
        if sleeper == Some(Sleeper::Progress) && JUST_WOKEN.get() {
            self.armed_at_once.fetch_add(1, Relaxed);
        }
        self.inner.arm(sleeper);
    }

    fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>) {
        if sleeper == Sleeper::Caller {
            *self.asleep.lock().expect("nobody panics") += 1;
            self.changed.notify_all();
        }
        self.inner.wait(sleeper, seen, timeout);
        JUST_WOKEN.set(sleeper == Sleeper::Caller);
    }
}

/// What woke a caller woke the progress thread, too: the doorbell was armed for that while the packet was still in the socket.
#[test]
fn who_is_woken_takes_in_what_has_come_before_others_are_to_be_woken_for_it() {
    let dir = crate::runtime::scratch();
    let config = |node| Config { dir: dir.path().to_owned(), node: Some(NodeId(node)), ..Config::default() };
    let mut watched = None;
    let wrap = |inner: Arc<dyn Fabric>| -> Arc<dyn Fabric> {
        let (asleep, changed, armed_at_once) = Default::default();
        watched.insert(Arc::new(Watched { inner, asleep, changed, armed_at_once })).clone()
    };
    let here = Node::wrap(config(0), wrap).expect("the node joins");
    let watched = watched.expect("it was wrapped");
    let there = Node::embedded(config(1)).expect("the node joins");
    let session = here.blocking_session();
    let server = session.serve(Function(7), ServeOptions::default()).expect("nobody else serves it");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50 {
                server.recv().expect("it was called").reply(b"pepper").expect("the caller lives");
            }
        });
        let caller = there.blocking_session();
        let mut asleep = 0;
        for _ in 0..50 {
            watched.wait_until_asleep(asleep + 1);
            asleep = *watched.asleep.lock().expect("nobody panics");
            caller.call(NodeId(0), Function(7), b"salt", Duration::from_secs(60)).expect("it is answered");
        }
    });
    assert_eq!(watched.armed_at_once.load(Relaxed), 0);
}

/// Takes something in with each of so many polls, which brings no event.
struct Written {
    inner: Arc<dyn Fabric>,
    left: AtomicU64,
    traffic: AtomicU64,
    /// How often the progress thread has gone to sleep while there was more.
    slept: AtomicU64,
}

impl Middleware for Written {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        let left = self.left.load(Relaxed);
        if left > 0 {
            self.left.store(left - 1, Relaxed);
            self.traffic.fetch_add(1, Relaxed);
        }
        self.inner.poll(events)
    }

    fn traffic(&self) -> u64 {
        self.traffic.load(Relaxed)
    }

    fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>) {
        if sleeper == Sleeper::Progress && self.left.load(Relaxed) > 0 {
            self.slept.fetch_add(1, Relaxed);
        }
        self.inner.wait(sleeper, seen, timeout);
    }
}

/// It took what peers write for silence, and slept before each train of it.
#[test]
fn the_progress_thread_does_not_sleep_while_peers_write() {
    let dir = crate::runtime::scratch();
    let config = Config { dir: dir.path().to_owned(), node: Some(NodeId(0)), ..Config::default() };
    let mut written = None;
    let wrap = |inner: Arc<dyn Fabric>| -> Arc<dyn Fabric> {
        let (left, traffic, slept) = Default::default();
        written.insert(Arc::new(Written { inner, left, traffic, slept })).clone()
    };
    let _node = Node::wrap(config, wrap).expect("the node joins");
    let written = written.expect("it was wrapped");
    // Who has met a crowd sleeps all the same, for up to 1,024 arrivals.
    let is_polled_through = |_| {
        let slept = written.slept.load(Relaxed);
        written.left.store(64, Relaxed);
        while written.left.load(Relaxed) > 0 {
            written.inner.wake();
            std::thread::yield_now();
        }
        written.slept.load(Relaxed) == slept
    };
    assert!((0..100).any(is_polled_through));
}

thread_local! {
    static POLLED: Cell<u64> = const { Cell::new(0) };
}

/// Counts the polls of each thread.
struct Counted(Tracer);

impl Middleware for Counted {
    fn inner(&self) -> &dyn Fabric {
        &self.0
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        POLLED.set(POLLED.get() + 1);
        Fabric::poll(&self.0, events)
    }
}

/// A thread that polls often leaves the doorbell alone, and what comes when it goes elsewhere would wait for the progress thread's next look.
#[test]
fn a_transfer_does_not_poll_on_a_thread_that_runs_tasks() {
    let dir = crate::runtime::scratch();
    let join = |node| {
        let config = Config { dir: dir.path().to_owned(), node: Some(NodeId(node)), ..Config::default() };
        let wrap =
            |fabric: Arc<dyn Fabric>| -> Arc<dyn Fabric> { Arc::new(Counted(Tracer::new(fabric, 16))) };
        Node::wrap(config, wrap).expect("the node joins")
    };
    let nodes = [0, 1].map(join);
    let session = nodes[0].blocking_session();
    let lh = session.alloc(None, 1 << 20, Placement::On(NodeId(1)), ALL).expect("there is room");
    let bytes = vec![7; 1 << 20];
    let before = POLLED.get();
    let task = session.as_async().clone();
    let mut writing = pin!(task.write(lh, 0, &bytes));
    let polled = writing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(POLLED.get(), before);
    if polled.is_pending() {
        session.block_on(writing).expect("it may be written");
    }
}
