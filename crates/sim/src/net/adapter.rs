//! Atomics that an adapter executes: atomic among themselves, but not with respect to the accesses of processors.
//!
//! ```text
//!   arrives ──> waits its turn ──> the word is read ── atomic_ns ──> the queue pair writes the new value, and answers
//!                                         a processor's change here is lost
//! ```
//!
//! As in a real adapter, later requests of the same lane wait for an atomic.

use std::collections::VecDeque;

use halite_rnic::wire::AtomicEthRepr;

use super::datagrams::Datagram;
use super::{Event, Net};

/// An atomic that has arrived.
#[derive(Debug)]
struct Atomic {
    datagram: Datagram,
    eth: AtomicEthRepr,
}

/// The atomics of one adapter.
#[derive(Debug, Default)]
pub(super) struct Atomics {
    /// The atomic in execution, and the value that it has read.
    current: Option<(Atomic, Option<u64>)>,
    waiting: VecDeque<Atomic>,
}

impl Net {
    /// Handles the arrival of an atomic at the adapter of a lane.
    pub(super) fn begin_atomic(&mut self, datagram: Datagram, eth: AtomicEthRepr) {
        let endpoint = self.ends[self.end_of(datagram.to)].endpoint;
        if let Some(lane) = self.lane(datagram.to) {
            lane.is_in_atomic = true;
        }
        self.endpoints[endpoint as usize].atomics.waiting.push_back(Atomic { datagram, eth });
        self.read_next_word(endpoint);
    }

    /// Reads the word of the next atomic, unless one is in execution.
    fn read_next_word(&mut self, endpoint: u32) {
        let atomics = &mut self.endpoints[endpoint as usize].atomics;
        if atomics.current.is_some() {
            return;
        }
        let Some(next) = atomics.waiting.pop_front() else { return };
        let to = next.datagram.to;
        // An invalid address gives `None` here, and the write then refuses it.
        let word = self.transport_and_view(to, None).and_then(|(_, view)| view.load(&next.eth));
        let at_ns = self.now_ns + self.profile_of(to).atomic_ns;
        self.endpoints[endpoint as usize].atomics.current = Some((next, word));
        self.schedule(at_ns, Event::AtomicWritten { endpoint });
    }

    pub(super) fn handle_atomic_written(&mut self, endpoint: u32) {
        let current = self.endpoints[endpoint as usize].atomics.current.take();
        let (Atomic { datagram, .. }, word) = current.expect("an atomic is in execution");
        let to = datagram.to;
        self.pass_to_queue_pair(datagram, word);
        if let Some(lane) = self.lane(to) {
            lane.is_in_atomic = false;
        }
        while let Some(next) =
            self.lane(to).filter(|lane| !lane.is_in_atomic).and_then(|lane| lane.deferred.pop_front())
        {
            self.receive_datagram(next);
        }
        self.read_next_word(endpoint);
    }
}
