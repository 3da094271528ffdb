//! A fabric for tests: it reports prepared events, and records requests.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use halite_fabric::{
    Atomics, Capabilities, CutOff, Event, Fabric, Key, Lane, PeerId, PostCause, PostError, RegisterError,
    Sleeper, WorkRequest,
};
use halite_mem::{Segment, Window};

pub struct Scripted {
    name: &'static str,
    events: Mutex<VecDeque<Event>>,
    requests: Mutex<Vec<String>>,
    segments: Mutex<Vec<Arc<Segment>>>,
    /// True if the fabric refuses registrations.
    pub refuses: AtomicBool,
    lacks_descriptors: bool,
    rings: AtomicU32,
    /// Descriptors by the place of the sleeper.
    eventfds: [OwnedFd; 2],
    /// Number of times that the edge of each kind of sleeper was consumed.
    edges_taken: [AtomicU32; 2],
}

/// Returns a descriptor that becomes readable with each ring.
fn new_eventfd() -> OwnedFd {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).unwrap()
}

fn ring(eventfd: &OwnedFd) {
    rustix::io::write(eventfd, &1u64.to_ne_bytes()).unwrap();
}

impl Scripted {
    pub fn new(name: &'static str) -> Scripted {
        Scripted {
            name,
            events: Mutex::default(),
            requests: Mutex::default(),
            segments: Mutex::default(),
            refuses: AtomicBool::new(false),
            lacks_descriptors: false,
            rings: AtomicU32::new(0),
            eventfds: [new_eventfd(), new_eventfd()],
            edges_taken: Default::default(),
        }
    }

    /// Rings the doorbell for one kind of sleeper.
    pub fn ring_for(&self, sleeper: Sleeper) {
        ring(&self.eventfds[sleeper.place()]);
    }

    pub fn edges_taken(&self, sleeper: Sleeper) -> u32 {
        self.edges_taken[sleeper.place()].load(SeqCst)
    }

    /// Removes the descriptors, so that no thread can sleep on this fabric.
    pub fn without_descriptors(self) -> Scripted {
        Scripted { lacks_descriptors: true, ..self }
    }

    pub fn add_event(&self, event: Event) {
        self.events.lock().unwrap().push_back(event);
        self.wake();
    }

    /// Returns the requests since the last call.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    /// Returns the registered segments, by key.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.lock().unwrap().clone()
    }

    fn record(&self, request: String) {
        self.requests.lock().unwrap().push(request);
    }
}

impl Fabric for Scripted {
    fn providers(&self) -> Vec<&'static str> {
        vec![self.name]
    }

    fn capabilities(&self, _: PeerId) -> Capabilities {
        Capabilities {
            provider: self.name,
            direct: false,
            atomics: Atomics::None,
            lanes: 1,
            send_bytes_max: 0,
            inline_bytes_max: 0,
        }
    }

    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError> {
        if self.refuses.load(SeqCst) {
            return Err(RegisterError::TooManyKeys { max: 7 });
        }
        let mut segments = self.segments.lock().unwrap();
        segments.push(segment);
        Ok(Key(segments.len() as u32 - 1))
    }

    fn deregister(&self, key: Key) {
        self.record(format!("deregister {}", key.0));
    }

    fn connect(&self, address: &str, hello: &[u8]) {
        self.record(format!("connect {address} {}", hello.escape_ascii()));
    }

    fn post(&self, peer: PeerId, _: Lane, _: &[WorkRequest<'_>]) -> Result<(), PostError> {
        Err(PostError { peer, posted: 0, cause: PostCause::QueueFull })
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        events.extend(self.events.lock().unwrap().drain(..));
        events.len() - before
    }

    fn direct(&self, _: PeerId, _: Key) -> Option<Window> {
        None
    }

    fn cut_off(&self, _: PeerId) -> CutOff {
        CutOff::Started
    }

    fn disconnect(&self, _: PeerId) {}

    fn arm(&self, _: Option<Sleeper>) {}

    fn wait(&self, sleeper: Sleeper, _: u32, timeout: Option<Duration>) {
        assert_eq!(timeout, Some(Duration::ZERO), "a composite sleeps in epoll, not in a part");
        self.edges_taken[sleeper.place()].fetch_add(1, SeqCst);
    }

    fn doorbell(&self) -> u32 {
        self.rings.load(SeqCst)
    }

    fn wake(&self) {
        self.rings.fetch_add(1, SeqCst);
        self.eventfds.iter().for_each(ring);
    }

    fn descriptor(&self, sleeper: Sleeper) -> Option<BorrowedFd<'_>> {
        (!self.lacks_descriptors).then(|| self.eventfds[sleeper.place()].as_fd())
    }

    fn close(&self) {}
}
