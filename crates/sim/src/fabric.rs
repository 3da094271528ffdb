//! The fabric provider for simulated hosts.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use halite_fabric::{
    Capabilities, CutOff, Event, Fabric, Key, Lane, PeerId, PostError, RegisterError, WorkRequest,
};
use halite_mem::{Segment, Sleeper, Window};

use crate::hardware::Reach;
use crate::shared::Shared;
use crate::world::HostId;

/// A fabric of one simulated host; created by [`crate::World::fabric`].
///
/// The provider implements [`Fabric`] with these choices:
///
/// - If the requester's processor copies (see [`is_adapter`](crate::Profile::is_adapter)), a refused request fails, and
///   later requests are executed. An adapter that refuses a request ends the connection at both ends and flushes later
///   requests.
/// - Between adapters, a request that names a new key waits until the key has reached the posting side. Later requests
///   of the lane wait behind it.
/// - When a connection breaks, a request is flushed only if no part of it was executed. Otherwise, its status says that
///   it may have been executed.
/// - After a full queue has refused a post, an event reports room when a quarter of the queue is free.
/// - [`Fabric::wait`] returns at once, because time advances only while no task runs. Tasks await [`SimFabric::rung`]
///   instead.
/// - The doorbell starts unarmed.
pub struct SimFabric {
    shared: Arc<Shared>,
    endpoint: u32,
}

impl SimFabric {
    pub(crate) fn open(shared: Arc<Shared>, host: HostId, address: &str, hello: Vec<u8>) -> Arc<SimFabric> {
        let endpoint = shared.with(|net| net.open(host, address, hello));
        Arc::new(SimFabric { shared, endpoint })
    }

    /// Registers a segment whose pages have `page_bytes` bytes: the adapter needs one page-table entry per page. In
    /// contrast, [`Fabric::register`] treats a segment as physically contiguous, as if it were in huge pages. Panics if
    /// `page_bytes` is 0.
    pub fn register_in_pages(&self, segment: Arc<Segment>, page_bytes: u64) -> Result<Key, RegisterError> {
        assert!(page_bytes > 0, "page_bytes must be at least 1");
        let key = self.register(segment)?;
        self.shared.with(|net| net.set_page_bytes(self.endpoint, key, page_bytes));
        Ok(key)
    }

    /// Returns the addresses of all other open fabrics in the world, as a membership directory would.
    pub fn discover(&self) -> Vec<String> {
        self.shared.with(|net| net.discover(self.endpoint))
    }

    /// Returns a future that resolves once [`Fabric::doorbell`] returns another value than `seen`.
    pub fn rung(&self, seen: u32) -> Rung {
        Rung { shared: self.shared.clone(), endpoint: self.endpoint, seen }
    }
}

/// The future that [`SimFabric::rung`] returns.
pub struct Rung {
    shared: Arc<Shared>,
    endpoint: u32,
    seen: u32,
}

impl Future for Rung {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.shared.with(|net| net.listen(self.endpoint, self.seen, context.waker())) {
            None => Poll::Ready(()),
            Some(()) => Poll::Pending,
        }
    }
}

impl Fabric for SimFabric {
    fn providers(&self) -> Vec<&'static str> {
        vec!["sim"]
    }

    fn capabilities(&self, peer: PeerId) -> Capabilities {
        self.shared.with(|net| {
            let (profile, reach) = net.profile_to(self.endpoint, peer);
            Capabilities {
                provider: "sim",
                direct: reach == Reach::WithinHost,
                atomics: profile.atomics.into(),
                lanes: profile.lanes,
                send_bytes_max: profile.send_bytes_max,
                inline_bytes_max: profile.inline_bytes_max,
            }
        })
    }

    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError> {
        self.shared.with(|net| net.register(self.endpoint, segment))
    }

    fn deregister(&self, key: Key) {
        self.shared.with(|net| net.deregister(self.endpoint, key));
    }

    fn connect(&self, address: &str, hello: &[u8]) {
        self.shared.with(|net| net.connect(self.endpoint, address, hello));
    }

    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        self.shared.with(|net| net.post(self.endpoint, peer, lane, requests))
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        self.shared.with(|net| net.poll(self.endpoint, events))
    }

    fn direct(&self, peer: PeerId, key: Key) -> Option<Window> {
        self.shared.with(|net| net.direct(self.endpoint, peer, key))
    }

    fn cut_off(&self, peer: PeerId) -> CutOff {
        self.shared.with(|net| net.cut_off(self.endpoint, peer))
    }

    fn disconnect(&self, peer: PeerId) {
        self.shared.with(|net| net.disconnect(self.endpoint, peer));
    }

    fn arm(&self, sleeper: Option<Sleeper>) {
        self.shared.with(|net| net.arm(self.endpoint, sleeper.is_some()));
    }

    fn wait(&self, _: Sleeper, _: u32, _: Option<Duration>) {}

    /// Returns `None` for adapters, which acknowledge even while their process is stopped.
    fn heard(&self, peer: PeerId) -> Option<Duration> {
        self.shared.with(|net| net.heard_ns(self.endpoint, peer)).map(Duration::from_nanos)
    }

    fn round_trip(&self, peer: PeerId) -> Option<Duration> {
        self.shared.with(|net| net.round_trip_ns(self.endpoint, peer)).map(Duration::from_nanos)
    }

    fn doorbell(&self) -> u32 {
        self.shared.with(|net| net.doorbell(self.endpoint))
    }

    fn wake(&self) {
        self.shared.with(|net| net.wake(self.endpoint));
    }

    fn close(&self) {
        self.shared.with(|net| net.close(self.endpoint));
    }
}

impl Drop for SimFabric {
    fn drop(&mut self) {
        self.close();
    }
}
