//! A fabric from whose peers' memory loads and stores are kept, as if their processes had just died.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use halite::{Config, Node};
use halite_fabric::{
    Event, Fabric, Key, Lane, Middleware, PeerId, PostError, RegisterError, Sleeper, WorkRequest,
};
use halite_mem::{Segment, Window};

use super::Dir;

pub struct NoDirect {
    inner: Arc<dyn Fabric>,
    is_hidden: AtomicBool,
    registered_bytes: AtomicU64,
    posts: AtomicU64,
    posted: AtomicU64,
    polls: AtomicU64,
    timing: Mutex<Timing>,
    /// Somebody goes to sleep.
    sleeping: Condvar,
}

/// When it wants to be polled, and how that is heeded.
#[derive(Default)]
struct Timing {
    poll_timeout: Option<Duration>,
    /// How long each sleep may last that has begun since, and how often was polled before.
    sleeps: Vec<(Option<Duration>, u64)>,
}

/// A node of whose peers no memory is reached by loads and stores, and its fabric.
pub fn join(dir: &Dir, node: u32) -> (Node, Arc<NoDirect>) {
    let mut no_direct = None;
    let wrap = |fabric| -> Arc<dyn Fabric> {
        let wrapped = Arc::new(NoDirect::new(fabric));
        wrapped.hide_direct();
        no_direct.insert(wrapped).clone()
    };
    // No heartbeat falls into what is counted.
    let config = Config { lease: Duration::from_secs(24 * 60 * 60), ..dir.config(node) };
    let node = Node::wrap(config, wrap).expect("the node joins");
    (node, no_direct.expect("it was wrapped"))
}

impl NoDirect {
    /// Wraps `inner`, whose peers can be reached for now.
    pub fn new(inner: Arc<dyn Fabric>) -> NoDirect {
        NoDirect {
            inner,
            is_hidden: AtomicBool::new(false),
            registered_bytes: AtomicU64::new(0),
            posts: AtomicU64::new(0),
            posted: AtomicU64::new(0),
            polls: AtomicU64::new(0),
            timing: Mutex::default(),
            sleeping: Condvar::new(),
        }
    }

    /// From now on no peer's memory is reached.
    pub fn hide_direct(&self) {
        // It orders nothing: a test tells its threads by other means.
        self.is_hidden.store(true, Relaxed);
    }

    /// Length of all segments registered so far.
    pub fn registered_bytes(&self) -> u64 {
        self.registered_bytes.load(Relaxed)
    }

    /// How often something was posted, and how many requests that were.
    pub fn posted(&self) -> (u64, u64) {
        (self.posts.load(Relaxed), self.posted.load(Relaxed))
    }
}

/// Time.
impl NoDirect {
    /// From now on it wants to be polled so soon after each poll.
    pub fn poll_within(&self, timeout: Option<Duration>) {
        *self.timing.lock().unwrap() = Timing { poll_timeout: timeout, sleeps: Vec::new() };
        self.inner.wake();
    }

    /// Waits until so many sleeps have begun since then: how long each may last, and how often was polled before.
    pub fn sleeps(&self, count: usize) -> Vec<(Option<Duration>, u64)> {
        let timing = self.timing.lock().unwrap();
        let are_fewer = |timing: &mut Timing| timing.sleeps.len() < count;
        let waited = self.sleeping.wait_timeout_while(timing, Duration::from_secs(60), are_fewer);
        let (timing, timeout) = waited.unwrap();
        assert!(!timeout.timed_out(), "it does not sleep");
        timing.sleeps[..count].to_vec()
    }
}

impl Middleware for NoDirect {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError> {
        self.registered_bytes.fetch_add(segment.len(), Relaxed);
        self.inner.register(segment)
    }

    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        self.posts.fetch_add(1, Relaxed);
        self.posted.fetch_add(requests.len() as u64, Relaxed);
        self.inner.post(peer, lane, requests)
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        self.polls.fetch_add(1, Relaxed);
        self.inner.poll(events)
    }

    fn direct(&self, peer: PeerId, key: Key) -> Option<Window> {
        self.inner.direct(peer, key).filter(|_| !self.is_hidden.load(Relaxed))
    }

    fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>) {
        self.timing.lock().unwrap().sleeps.push((timeout, self.polls.load(Relaxed)));
        self.sleeping.notify_all();
        self.inner.wait(sleeper, seen, timeout);
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.timing.lock().unwrap().poll_timeout
    }
}
