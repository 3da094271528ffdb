//! A fabric that tells what it is told to tell, and remembers what it was asked.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use halite_fabric::{
    Atomics, Capabilities, CutOff, Event, Fabric, Key, Lane, PeerId, PostCause, PostError, RegisterError,
    Sleeper, WorkRequest,
};
use halite_mem::{Segment, Window};

use super::{bell, ring};

/// Events of one poll.
pub const BATCH: usize = 4;

pub struct Scripted {
    name: &'static str,
    events: Mutex<VecDeque<Event>>,
    asked: Mutex<Vec<String>>,
    segments: Mutex<Vec<Arc<Segment>>>,
    /// Whether no segment can be registered now.
    pub refuses: AtomicBool,
    /// The first key that it gives.
    first_key: u32,
    is_silent: bool,
    /// After how long it wants to be polled.
    pub poll_timeout: Mutex<Option<Duration>>,
    /// What it has taken in.
    pub traffic: AtomicU64,
    rings: AtomicU32,
    /// By the places of sleepers.
    bells: [OwnedFd; 2],
    /// How often each was told that its edges have come.
    edges_taken: [AtomicU32; 2],
}

impl Scripted {
    pub fn new(name: &'static str) -> Scripted {
        Scripted {
            name,
            events: Mutex::default(),
            asked: Mutex::default(),
            segments: Mutex::default(),
            refuses: AtomicBool::new(false),
            first_key: 0,
            is_silent: false,
            poll_timeout: Mutex::default(),
            traffic: AtomicU64::new(0),
            rings: AtomicU32::new(0),
            bells: [bell(), bell()],
            edges_taken: Default::default(),
        }
    }

    pub fn with_first_key(self, first_key: u32) -> Scripted {
        Scripted { first_key, ..self }
    }

    /// Something comes for one kind of sleeper.
    pub fn ring_for(&self, sleeper: Sleeper) {
        ring(&self.bells[sleeper.place()]);
    }

    pub fn edges_taken(&self, sleeper: Sleeper) -> u32 {
        self.edges_taken[sleeper.place()].load(SeqCst)
    }

    /// Without a descriptor.
    pub fn silent(self) -> Scripted {
        Scripted { is_silent: true, ..self }
    }

    pub fn tell(&self, event: Event) {
        self.events.lock().unwrap().push_back(event);
        self.wake();
    }

    /// What was asked since this was last looked at.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    /// The segments that are registered, by key.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.lock().unwrap().clone()
    }

    fn note(&self, what: String) {
        self.asked.lock().unwrap().push(what);
    }
}

impl Fabric for Scripted {
    fn providers(&self) -> Vec<&'static str> {
        vec![self.name]
    }

    fn capabilities(&self, peer: PeerId) -> Capabilities {
        Capabilities {
            provider: self.name,
            direct: false,
            atomics: Atomics::None,
            lanes: 1,
            send_bytes_max: peer.0 as usize,
            inline_bytes_max: 0,
        }
    }

    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError> {
        if self.refuses.load(SeqCst) {
            return Err(RegisterError::TooManyKeys { max: 7 });
        }
        let mut segments = self.segments.lock().unwrap();
        segments.push(segment);
        Ok(Key(self.first_key + segments.len() as u32 - 1))
    }

    fn deregister(&self, key: Key) {
        self.note(format!("deregister {}", key.0));
    }

    fn connect(&self, address: &str, hello: &[u8]) {
        self.note(format!("connect {address} {}", hello.escape_ascii()));
    }

    fn post(&self, peer: PeerId, _: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        self.note(format!("post {} to {}", requests.len(), peer.0));
        Err(PostError { peer, posted: requests.len() - 1, cause: PostCause::QueueFull })
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        let mut waiting = self.events.lock().unwrap();
        let count = waiting.len().min(BATCH);
        events.extend(waiting.drain(..count));
        count
    }

    fn direct(&self, peer: PeerId, key: Key) -> Option<Window> {
        self.note(format!("direct {} {}", peer.0, key.0));
        None
    }

    fn cut_off(&self, peer: PeerId) -> CutOff {
        self.note(format!("cut off {}", peer.0));
        CutOff::Started
    }

    fn warn(&self, peer: PeerId, text: &str) {
        self.note(format!("warn {}: {text}", peer.0));
    }

    fn disconnect(&self, peer: PeerId) {
        self.note(format!("disconnect {}", peer.0));
    }

    fn arm(&self, sleeper: Option<Sleeper>) {
        self.note(format!("arm {sleeper:?}"));
    }

    fn wait(&self, sleeper: Sleeper, _: u32, timeout: Option<Duration>) {
        assert_eq!(timeout, Some(Duration::ZERO), "of several, none is waited for alone");
        self.edges_taken[sleeper.place()].fetch_add(1, SeqCst);
    }

    fn poll_timeout(&self) -> Option<Duration> {
        *self.poll_timeout.lock().unwrap()
    }

    fn traffic(&self) -> u64 {
        self.traffic.load(SeqCst)
    }

    fn heard(&self, peer: PeerId) -> Option<Duration> {
        self.note(format!("heard {}", peer.0));
        Some(Duration::from_micros(7))
    }

    fn round_trip(&self, peer: PeerId) -> Option<Duration> {
        self.note(format!("round trip {}", peer.0));
        Some(Duration::from_micros(9))
    }

    fn doorbell(&self) -> u32 {
        self.rings.load(SeqCst)
    }

    fn wake(&self) {
        self.rings.fetch_add(1, SeqCst);
        self.bells.iter().for_each(ring);
    }

    fn descriptor(&self, sleeper: Sleeper) -> Option<BorrowedFd<'_>> {
        (!self.is_silent).then(|| self.bells[sleeper.place()].as_fd())
    }

    fn close(&self) {
        self.note("close".to_owned());
    }
}
