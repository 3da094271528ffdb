//! Atomics that an adapter carries out: in one piece among themselves, and with nothing else.
//!
//! ```text
//!   lands ──> waits its turn ──> the word is read ── atomic_ns ──> the new value is written ──> acknowledged
//!                                       a processor changes it here: that is lost
//! ```
//!
//! What the same lane carries behind an atomic waits for it, as on a queue pair.

use std::collections::VecDeque;

use halite_fabric::{RemoteAddress, Status};

use super::qp::Verb;
use super::{Event, Net};

/// An atomic that has landed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Atomic {
    /// The end that posted it.
    pub(super) qp: u32,
    pub(super) number: u64,
    pub(super) verb: Verb,
    pub(super) remote: RemoteAddress,
}

/// What one adapter has to do.
#[derive(Debug, Default)]
pub(super) struct Atomics {
    /// The one that it carries out, and what its word held.
    current: Option<(Atomic, Option<u64>)>,
    waiting: VecDeque<Atomic>,
}

impl Net {
    /// An atomic has landed at the adapter of `target`'s end.
    pub(super) fn begin_atomic(&mut self, target: u32, atomic: Atomic) {
        self.qps[target as usize].in_atomic = true;
        let endpoint = self.ends[self.end_of(target)].endpoint;
        self.endpoints[endpoint as usize].atomics.waiting.push_back(atomic);
        self.read_next_word(endpoint);
    }

    /// Reads the word of the next atomic, if the adapter has none to carry out.
    fn read_next_word(&mut self, endpoint: u32) {
        let atomics = &mut self.endpoints[endpoint as usize].atomics;
        if atomics.current.is_some() {
            return;
        }
        let Some(next) = atomics.waiting.pop_front() else { return };
        let word = self.segment(next.qp ^ 1, next.remote);
        let old = word.and_then(|window| window.load_u64(next.remote.offset).ok());
        self.endpoints[endpoint as usize].atomics.current = Some((next, old));
        let at_ns = self.now_ns + self.profile_of(next.qp).atomic_ns;
        self.schedule(at_ns, Event::AtomicWritten { endpoint });
    }

    pub(super) fn handle_atomic_written(&mut self, endpoint: u32) {
        let current = self.endpoints[endpoint as usize].atomics.current.take();
        let (atomic, old) = current.expect("it was begun");
        let Atomic { qp, number, .. } = atomic;
        let target = qp ^ 1;
        self.qps[target as usize].in_atomic = false;
        if self.lets_in(self.end_of(target)) {
            self.write_word(&atomic, old);
        } else {
            self.counters.dropped += 1;
            self.await_ack(qp, number);
        }
        self.handle_receiver_retry(target);
        self.read_next_word(endpoint);
    }

    /// Writes what becomes of the value that was read, whatever the word holds by now; refuses an atomic that named no word.
    fn write_word(&mut self, atomic: &Atomic, old: Option<u64>) {
        let Atomic { qp, number, verb, remote } = *atomic;
        let Some(old) = old else {
            return self.refuse(qp, number, true);
        };
        let new = match verb {
            Verb::FetchAdd { add, .. } => Some(old.wrapping_add(add)),
            Verb::CompareSwap { expected, new, .. } => (old == expected).then_some(new),
            _ => unreachable!("only atomics come here"),
        };
        let Some(window) = self.segment(qp ^ 1, remote) else {
            // The key was taken back meanwhile.
            return self.refuse(qp, number, true);
        };
        if let Some(new) = new {
            window.store_u64(remote.offset, new).expect("the word was read");
        }
        if let Some(work) = self.qps[qp as usize].work(number) {
            work.old = old;
        }
        self.acknowledge(qp, number, Status::Success, 0);
    }
}
