//! A fabric from whose peers' memory loads and stores are kept, as if their processes had just died.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use halite_fabric::{
    Capabilities, CutOff, Event, Fabric, Key, PeerId, PostError, RegisterError, WorkRequest,
};
use halite_mem::{Segment, Window};

pub struct Bereft {
    inner: Arc<dyn Fabric>,
    is_bereft: AtomicBool,
    registered_bytes: AtomicU64,
    posts: AtomicU64,
    posted: AtomicU64,
}

impl Bereft {
    /// Wraps `inner`, whose peers can be reached for now.
    pub fn new(inner: Arc<dyn Fabric>) -> Bereft {
        Bereft {
            inner,
            is_bereft: AtomicBool::new(false),
            registered_bytes: AtomicU64::new(0),
            posts: AtomicU64::new(0),
            posted: AtomicU64::new(0),
        }
    }

    /// From now on no peer's memory is reached.
    pub fn bereave(&self) {
        // It orders nothing: a test tells its threads by other means.
        self.is_bereft.store(true, Relaxed);
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

impl Fabric for Bereft {
    fn providers(&self) -> Vec<&'static str> {
        self.inner.providers()
    }

    fn capabilities(&self, peer: PeerId) -> Capabilities {
        self.inner.capabilities(peer)
    }

    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError> {
        self.registered_bytes.fetch_add(segment.len(), Relaxed);
        self.inner.register(segment)
    }

    fn connect(&self, address: &str, hello: &[u8]) {
        self.inner.connect(address, hello);
    }

    fn post(&self, peer: PeerId, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        self.posts.fetch_add(1, Relaxed);
        self.posted.fetch_add(requests.len() as u64, Relaxed);
        self.inner.post(peer, requests)
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        self.inner.poll(events)
    }

    fn direct(&self, peer: PeerId, key: Key) -> Option<Window> {
        self.inner.direct(peer, key).filter(|_| !self.is_bereft.load(Relaxed))
    }

    fn cut_off(&self, peer: PeerId) -> CutOff {
        self.inner.cut_off(peer)
    }

    fn disconnect(&self, peer: PeerId) {
        self.inner.disconnect(peer);
    }

    fn arm(&self, armed: bool) {
        self.inner.arm(armed);
    }

    fn wait(&self, seen: u32, timeout: Option<Duration>) {
        self.inner.wait(seen, timeout);
    }

    fn doorbell(&self) -> u32 {
        self.inner.doorbell()
    }

    fn wake(&self) {
        self.inner.wake();
    }

    fn close(&self) {
        self.inner.close();
    }
}
