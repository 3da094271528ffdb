//! Combines several fabrics, the parts, into one, so that a node reaches each peer over the most suitable network.
//!
//! The part that reaches a peer is fixed when the peer connects. The upper two bits of the [`PeerId`] contain the index
//! of this part, so posting and polling need no table.
//!
//! ```text
//!   PeerId   31  30 | 29 ........................ 0
//!            part   | the part's own id of the peer
//!
//!   Address  shm:node-3.sock      reached by the part named `shm`
//!            node-3.sock          reached by the first part
//! ```
//!
//! The composite registers each segment with all parts. The segment has the same key in each part, namely the ordinal
//! of its registration. So the key is valid over any part that a peer uses.

mod keys;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use halite_mem::{Segment, Sleeper, Window};

use self::keys::Keys;
use crate::sleepers::Sleepers;
use crate::{
    Capabilities, Completion, ConnectFailure, ConnectTrouble, CutOff, Event, Fabric, Key, Lane, Lines, Path,
    PeerId, PostCause, PostError, RegisterError, RemoteAddress, WorkRequest,
};

/// Maximum number of fabrics in a composite.
pub const PARTS_MAX: usize = 4;

/// Maximum number of peers per part over its lifetime; enough for twelve days at a thousand connections per second.
const PEERS_MAX: u32 = 1 << PEER_BITS;
const PEER_BITS: u32 = u32::BITS - (PARTS_MAX as u32 - 1).count_ones();

/// Several fabrics, combined into one; see the header of this file.
pub struct Composite {
    parts: Vec<Part>,
    keys: Mutex<Keys>,
    /// Failures of connection attempts whose address names no part, until a poll returns them.
    failures: Mutex<Vec<ConnectFailure>>,
    has_failures: AtomicBool,
    /// Sleepers, by kind. `None` if there is only one part, because its own sleepers are then used.
    sleepers: Option<[Sleepers; 2]>,
}

/// One of the fabrics of a composite.
struct Part {
    name: &'static str,
    fabric: Arc<dyn Fabric>,
}

/// The reason why [`Composite::new`] failed.
#[derive(Debug, thiserror::Error)]
pub enum CompositeError {
    /// The number of parts is 0, or exceeds [`PARTS_MAX`].
    #[error("cannot combine {parts} fabrics; the number must be from 1 to {PARTS_MAX}")]
    Parts {
        /// The given number of parts.
        parts: usize,
    },
    /// The name of a part contains a colon, is empty, or is used twice.
    #[error("cannot combine fabrics: the name {name:?} is empty, has a colon, or is used twice")]
    Name {
        /// Name of the part.
        name: &'static str,
    },
    /// A part has no descriptor, so a thread cannot sleep on this part and the others at the same time.
    #[error("cannot combine fabrics: {name} has no descriptor to sleep on")]
    NoDescriptor {
        /// Name of the part.
        name: &'static str,
    },
    /// A system call failed.
    #[error("cannot combine fabrics: {0}")]
    Io(#[from] io::Error),
}

impl Composite {
    /// Combines `parts` into one fabric. The name of a part is the prefix of its addresses: `NAME:ADDRESS`. The parts
    /// must be new: without connections and registered segments. If there are several parts, each part must have a
    /// descriptor on which threads can sleep.
    pub fn new(parts: Vec<(&'static str, Arc<dyn Fabric>)>) -> Result<Composite, CompositeError> {
        let parts: Vec<Part> = parts.into_iter().map(|(name, fabric)| Part { name, fabric }).collect();
        if parts.is_empty() || parts.len() > PARTS_MAX {
            return Err(CompositeError::Parts { parts: parts.len() });
        }
        for (index, Part { name, .. }) in parts.iter().enumerate() {
            let is_taken = parts[..index].iter().any(|other| other.name == *name);
            if name.is_empty() || name.contains(':') || is_taken {
                return Err(CompositeError::Name { name });
            }
        }
        let [progress, caller] = Sleeper::KINDS;
        let sleepers = match parts.len() {
            1 => None,
            _ => Some([sleepers(&parts, progress)?, sleepers(&parts, caller)?]),
        };
        Ok(Composite {
            parts,
            keys: Mutex::default(),
            failures: Mutex::default(),
            has_failures: AtomicBool::new(false),
            sleepers,
        })
    }

    /// Returns the part that reaches `peer`, and the id of the peer within that part.
    #[inline]
    fn route(&self, peer: PeerId) -> Option<(&Part, PeerId)> {
        let part = self.parts.get((peer.0 >> PEER_BITS) as usize)?;
        Some((part, PeerId(peer.0 % PEERS_MAX)))
    }

    /// Returns the part for `address`, and the address without the part's name. If no part has that name, returns the
    /// name as the error.
    fn part_for<'a>(&self, address: &'a str) -> Result<(&Part, &'a str), &'a str> {
        let Some((name, rest)) = address.split_once(':') else {
            return Ok((&self.parts[0], address));
        };
        let part = self.parts.iter().find(|part| part.name == name);
        part.map(|part| (part, rest)).ok_or(name)
    }

    /// Translates an event of the part at `index`. Returns false if the event must be dropped.
    fn translate(&self, index: usize, event: &mut Event) -> bool {
        let peer = match event {
            Event::ConnectFailed(failure) => {
                failure.address = self.address(index, &failure.address);
                return true;
            }
            Event::Deregistered { key } => return lock_keys(&self.keys).handle_deregistered(*key),
            Event::Connected { peer, dialled, .. } if peer.0 < PEERS_MAX => {
                if let Some(address) = dialled {
                    *address = self.address(index, address);
                }
                peer
            }
            Event::Completed(Completion { peer, .. })
            | Event::Connected { peer, .. }
            | Event::Room { peer }
            | Event::Disconnected { peer }
            | Event::CutOff { peer, .. } => peer,
        };
        if peer.0 < PEERS_MAX {
            *peer = composite_id(index, *peer);
            return true;
        }
        self.refuse_peer(index, event)
    }

    /// Disconnects a peer for which no id is left. Returns false if the event must be dropped.
    fn refuse_peer(&self, index: usize, event: &mut Event) -> bool {
        let Event::Connected { peer, dialled, .. } = event else {
            return false;
        };
        let (peer, dialled) = (*peer, dialled.take());
        self.parts[index].fabric.disconnect(peer);
        // An incoming connection is dropped silently.
        let Some(address) = dialled else { return false };
        *event = Event::ConnectFailed(ConnectFailure {
            address: self.address(index, &address),
            reason: format!("all {PEERS_MAX} peer ids of this network have been used; restart the node"),
            trouble: ConnectTrouble::Ours,
        });
        true
    }

    fn report_failure(&self, failure: ConnectFailure) {
        let mut failures = self.failures.lock().expect(POISONED);
        failures.push(failure);
        // Pairs with the Acquire in take_failures().
        self.has_failures.store(true, Release);
        drop(failures);
        self.wake();
    }

    fn take_failures(&self, events: &mut Vec<Event>) {
        // Pairs with the Release in report_failure(), whose ring follows: a poller that misses the flag polls again.
        if self.has_failures.load(Acquire) {
            let mut failures = self.failures.lock().expect(POISONED);
            self.has_failures.store(false, Relaxed);
            events.extend(failures.drain(..).map(Event::ConnectFailed));
        }
    }

    /// Translates the events from index `begin` on, which the part at `index` appended.
    fn translate_all(&self, index: usize, begin: usize, events: &mut Vec<Event>) {
        let mut at = 0;
        events.retain_mut(|event| {
            at += 1;
            at <= begin || self.translate(index, event)
        });
    }

    /// Returns `address`, an address of the part at `index`, in the form that the composite accepts.
    fn address(&self, index: usize, address: &str) -> String {
        match index {
            0 => address.to_owned(),
            _ => format!("{}:{address}", self.parts[index].name),
        }
    }
}

/// No code that holds the lock panics.
const POISONED: &str = "a thread panicked while it held the failures of a composite fabric";

fn lock_keys(keys: &Mutex<Keys>) -> MutexGuard<'_, Keys> {
    keys.lock().expect("a part panicked while it registered a segment")
}

/// Returns the composite's id of a peer of the part at `index`.
fn composite_id(index: usize, peer: PeerId) -> PeerId {
    PeerId((index as u32) << PEER_BITS | peer.0)
}

/// Returns the sleepers of one kind for all of `parts`.
fn sleepers<'a>(parts: &'a [Part], kind: Sleeper) -> Result<Sleepers, CompositeError> {
    let descriptor =
        |part: &'a Part| part.fabric.descriptor(kind).ok_or(CompositeError::NoDescriptor { name: part.name });
    let descriptors: Vec<BorrowedFd<'a>> = parts.iter().map(descriptor).collect::<Result<_, _>>()?;
    Ok(Sleepers::new(descriptors)?)
}

impl Fabric for Composite {
    fn providers(&self) -> Vec<&'static str> {
        self.parts.iter().flat_map(|part| part.fabric.providers()).collect()
    }

    fn capabilities(&self, peer: PeerId) -> Capabilities {
        // For an unknown peer number, returns the capabilities of the first part.
        let (part, peer) = self.route(peer).unwrap_or((&self.parts[0], peer));
        part.fabric.capabilities(peer)
    }

    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError> {
        lock_keys(&self.keys).register(&self.parts, segment)
    }

    fn deregister(&self, key: Key) {
        let is_registered = lock_keys(&self.keys).deregister(key, self.parts.len());
        // Calls the parts without the lock, which polls also take.
        if is_registered {
            self.parts.iter().for_each(|part| part.fabric.deregister(key));
        }
    }

    /// Connects to `name:address` over the part with this name, or to `address` over the first part. If this fails, the
    /// event reports the address as `name:address`, or without a name for the first part.
    fn connect(&self, address: &str, hello: &[u8]) {
        match self.part_for(address) {
            Ok((part, address)) => part.fabric.connect(address, hello),
            Err(name) => {
                let names: Vec<&str> = self.parts.iter().map(|part| part.name).collect();
                let failure = ConnectFailure {
                    address: address.to_owned(),
                    reason: format!("there is no network {name:?}; the networks are: {}", names.join(", ")),
                    trouble: ConnectTrouble::Theirs,
                };
                self.report_failure(failure);
            }
        }
    }

    #[inline]
    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let Some((part, theirs)) = self.route(peer) else {
            return Err(PostError { peer, posted: 0, cause: PostCause::NotConnected });
        };
        part.fabric.post(theirs, lane, requests).map_err(|error| PostError { peer, ..error })
    }

    /// Polls every part. Each part limits its own batch.
    fn poll(&self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        self.take_failures(events);
        for (index, part) in self.parts.iter().enumerate() {
            let begin = events.len();
            if part.fabric.poll(events) > 0 {
                self.translate_all(index, begin, events);
            }
        }
        events.len() - before
    }

    fn direct(&self, peer: PeerId, key: Key) -> Option<Window> {
        let (part, peer) = self.route(peer)?;
        part.fabric.direct(peer, key)
    }

    fn lines(&self, peer: PeerId, at: RemoteAddress, count: u32) -> Option<Box<dyn Lines>> {
        let (part, peer) = self.route(peer)?;
        part.fabric.lines(peer, at, count)
    }

    fn cut_off(&self, peer: PeerId) -> CutOff {
        // A peer that was never connected reaches nothing.
        self.route(peer).map_or(CutOff::Done, |(part, peer)| part.fabric.cut_off(peer))
    }

    fn warn(&self, peer: PeerId, text: &str) {
        if let Some((part, peer)) = self.route(peer) {
            part.fabric.warn(peer, text);
        }
    }

    fn take_end_reason(&self, peer: PeerId) -> Option<String> {
        let (part, peer) = self.route(peer)?;
        part.fabric.take_end_reason(peer)
    }

    fn disconnect(&self, peer: PeerId) {
        if let Some((part, peer)) = self.route(peer) {
            part.fabric.disconnect(peer);
        }
    }

    fn arm(&self, sleeper: Option<Sleeper>) {
        for part in &self.parts {
            part.fabric.arm(sleeper);
        }
    }

    fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>) {
        match &self.sleepers {
            None => self.parts[0].fabric.wait(sleeper, seen, timeout),
            Some(sleepers) => {
                sleepers[sleeper.place()].sleep(timeout, || self.doorbell() != seen);
                // A part that watches for one edge at a time learns from a wait with timeout zero that its edge was
                // consumed.
                for part in &self.parts {
                    part.fabric.wait(sleeper, part.fabric.doorbell(), Some(Duration::ZERO));
                }
            }
        }
    }

    /// Returns the shortest timeout of all parts; `None` if no part has a timer.
    fn poll_timeout(&self) -> Option<Duration> {
        self.parts.iter().filter_map(|part| part.fabric.poll_timeout()).min()
    }

    fn heard(&self, peer: PeerId) -> Option<Duration> {
        let (part, peer) = self.route(peer)?;
        part.fabric.heard(peer)
    }

    fn round_trip(&self, peer: PeerId) -> Option<Duration> {
        let (part, peer) = self.route(peer)?;
        part.fabric.round_trip(peer)
    }

    fn is_being_answered(&self) -> bool {
        self.parts.iter().any(|part| part.fabric.is_being_answered())
    }

    fn path(&self, peer: PeerId) -> Option<Path> {
        let (part, peer) = self.route(peer)?;
        part.fabric.path(peer)
    }

    fn dropped_packets(&self) -> Vec<(&'static str, u64)> {
        self.parts.iter().flat_map(|part| part.fabric.dropped_packets()).collect()
    }

    fn polls_by_system_calls(&self) -> bool {
        self.parts.iter().any(|part| part.fabric.polls_by_system_calls())
    }

    fn traffic(&self) -> u64 {
        self.parts.iter().map(|part| part.fabric.traffic()).fold(0, u64::wrapping_add)
    }

    /// Returns the sum of the doorbell numbers of all parts, which changes when the doorbell of one part rings.
    fn doorbell(&self) -> u32 {
        self.parts.iter().map(|part| part.fabric.doorbell()).fold(0, u32::wrapping_add)
    }

    fn wake(&self) {
        self.parts[0].fabric.wake();
    }

    /// Returns the descriptor of the part, if the composite has one part only; otherwise `None`.
    fn descriptor(&self, sleeper: Sleeper) -> Option<BorrowedFd<'_>> {
        match &self.sleepers {
            None => self.parts[0].fabric.descriptor(sleeper),
            Some(_) => None,
        }
    }

    fn close(&self) {
        for part in &self.parts {
            part.fabric.close();
        }
    }
}
