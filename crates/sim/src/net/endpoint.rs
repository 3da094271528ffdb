//! Endpoints: the registered segments and the pending events of one fabric.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use halite_fabric::{Event, Key, PeerId};
use halite_mem::Window;
use halite_rnic::stateless::Responder;

use super::adapter::Atomics;
use super::end::EndId;

/// Maximum number of events that one poll returns.
const POLL_EVENTS_MAX: usize = 256;

/// One fabric; see the header of this file.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) host: u32,
    pub(super) address: String,
    pub(super) hello: Vec<u8>,
    /// True if the fabric has neither closed nor crashed.
    pub(super) is_open: bool,
    /// Windows of whole segments by key; `None` after deregistration.
    pub(super) segments: Vec<Option<Window>>,
    /// Length of pages in bytes, by the keys whose segments need page-table entries in the adapter.
    pub(super) page_bytes: BTreeMap<u32, u64>,
    /// This end of the connection to each peer; peer ids start at 1.
    pub(super) peers: Vec<EndId>,
    /// Pending events, with the times from which they are visible.
    events: VecDeque<(u64, Event)>,
    /// Time at which the last pending event becomes visible.
    visible_ns: u64,
    pub(super) doorbell: u32,
    pub(super) is_armed: bool,
    /// Time at which the waiting thread was last woken, or began to wait.
    pub(super) awake_ns: u64,
    wakers: Vec<Waker>,
    /// Atomics that the adapter executes.
    pub(super) atomics: Atomics,
    /// Executes the requests of stateless lanes; `None` if the profile has none.
    pub(super) responder: Option<Responder>,
    /// Offset of the responder's clock, so that a test detects mixed-up clocks.
    pub(super) clock_offset_ns: u64,
}

impl Endpoint {
    pub(super) fn new(host: u32, address: String, hello: Vec<u8>) -> Endpoint {
        Endpoint {
            host,
            address,
            hello,
            is_open: true,
            segments: Vec::new(),
            page_bytes: BTreeMap::new(),
            peers: Vec::new(),
            events: VecDeque::new(),
            visible_ns: 0,
            doorbell: 0,
            is_armed: false,
            awake_ns: 0,
            wakers: Vec::new(),
            atomics: Atomics::default(),
            responder: None,
            clock_offset_ns: 0,
        }
    }

    pub(super) fn segment(&self, key: Key) -> Option<&Window> {
        self.segments.get(key.0 as usize)?.as_ref()
    }

    pub(super) fn end(&self, peer: PeerId) -> Option<EndId> {
        let index = (peer.0 as usize).checked_sub(1)?;
        self.peers.get(index).copied()
    }

    /// Queues an event. It becomes visible at `at_ns`, but not before earlier events. Returns the time.
    pub(super) fn push(&mut self, at_ns: u64, event: Event) -> u64 {
        self.visible_ns = self.visible_ns.max(at_ns);
        self.events.push_back((self.visible_ns, event));
        self.visible_ns
    }

    /// Makes all pending events visible now, because they precede the event that ends the connection.
    pub(super) fn make_all_visible(&mut self, now_ns: u64) {
        self.events.iter_mut().for_each(|(at_ns, _)| *at_ns = now_ns.min(*at_ns));
        self.visible_ns = self.visible_ns.min(now_ns);
    }

    /// Moves visible events to `events`.
    pub(super) fn poll(&mut self, now_ns: u64, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        while events.len() - before < POLL_EVENTS_MAX {
            match self.events.front() {
                Some((at_ns, _)) if *at_ns <= now_ns => {
                    events.extend(self.events.pop_front().map(|(_, event)| event));
                }
                _ => break,
            }
        }
        events.len() - before
    }

    /// Rings the doorbell, even if it is not armed.
    pub(super) fn wake(&mut self, now_ns: u64, wakers: &mut Vec<Waker>) {
        self.awake_ns = now_ns;
        self.doorbell = self.doorbell.wrapping_add(1);
        wakers.append(&mut self.wakers);
    }

    /// Returns true if the waiting thread sleeps at `at_ns`, because it has spun for `spin_ns` without an event.
    pub(super) fn is_asleep(&self, at_ns: u64, spin_ns: u64) -> bool {
        self.is_armed && at_ns >= self.awake_ns + spin_ns
    }

    /// Registers a waker for the next ring.
    pub(super) fn listen(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|known| known.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }

    /// Drops pending events and wakers at a crash.
    pub(super) fn crash(&mut self) {
        self.is_open = false;
        self.events = VecDeque::new();
        self.wakers = Vec::new();
    }
}
