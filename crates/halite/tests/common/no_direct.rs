//! A fabric that can be switched so that loads and stores do not reach its peers' memory, as if the processes of the
//! peers had just died.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use halite::{Config, Node};
use halite_fabric::{Fabric, Key, Lane, Middleware, PeerId, PostError, RegisterError, WorkRequest};
use halite_mem::{Segment, Window};

use super::Dir;

pub struct NoDirect {
    inner: Arc<dyn Fabric>,
    is_hidden: AtomicBool,
    registered_bytes: AtomicU64,
    posts: AtomicU64,
    posted: AtomicU64,
}

/// Joins a node whose loads and stores do not reach its peers' memory. Returns the node and its fabric.
pub fn join(dir: &Dir, node: u32) -> (Node, Arc<NoDirect>) {
    let mut no_direct = None;
    let wrap = |fabric| -> Arc<dyn Fabric> {
        let wrapped = Arc::new(NoDirect::new(fabric));
        wrapped.hide_direct();
        no_direct.insert(wrapped).clone()
    };
    // No heartbeats disturb the counts.
    let config = Config { lease: Duration::from_secs(24 * 60 * 60), ..dir.config(node) };
    let node = Node::wrap(config, wrap).expect("the node joins");
    (node, no_direct.expect("the fabric was wrapped"))
}

impl NoDirect {
    /// Wraps `inner`. Loads and stores reach the peers' memory until [`NoDirect::hide_direct`] is called.
    pub fn new(inner: Arc<dyn Fabric>) -> NoDirect {
        NoDirect {
            inner,
            is_hidden: AtomicBool::new(false),
            registered_bytes: AtomicU64::new(0),
            posts: AtomicU64::new(0),
            posted: AtomicU64::new(0),
        }
    }

    /// Hides the peers' memory from loads and stores, from now on.
    pub fn hide_direct(&self) {
        // Relaxed: tests synchronize their threads by other means.
        self.is_hidden.store(true, Relaxed);
    }

    /// Returns the length of all segments registered so far, in bytes.
    pub fn registered_bytes(&self) -> u64 {
        self.registered_bytes.load(Relaxed)
    }

    /// Returns the number of posts, and the number of requests in them.
    pub fn posted(&self) -> (u64, u64) {
        (self.posts.load(Relaxed), self.posted.load(Relaxed))
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

    fn direct(&self, peer: PeerId, key: Key) -> Option<Window> {
        self.inner.direct(peer, key).filter(|_| !self.is_hidden.load(Relaxed))
    }
}
