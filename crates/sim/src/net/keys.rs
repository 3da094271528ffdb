//! What adapters call registered memory, which a peer's provider must be told before it can use it.
//!
//! ```text
//!   register ── one small message to each peer ──> told          requests that mention the key leave
//!                       lost, or late: what mentions the key waits, with all behind it
//!                           └── asks ──> the peer's provider ── all of its keys ──> told
//! ```
//!
//! Those that are there when a connection comes about go with the words that make it.  Processes of one host need none:
//! descriptors wait in a socket before anything can mention them.

use halite_fabric::{Key, Status};

use super::qp::{QpState, Verb};
use super::{Event, Net};
use crate::link::Transit;

/// A key and what the adapter calls it, or the question for them, with what says which it is.
const MESSAGE_BYTES: u64 = 16;
/// What goes out for a key that the provider does not know: a wrong one.
const NO_KEY: Key = Key(u32::MAX);

impl Net {
    /// Tells all peers of a fabric how many keys it has now.
    pub(super) fn announce_to_all(&mut self, endpoint: u32) {
        for qp in self.endpoints[endpoint as usize].peers.clone() {
            self.announce(qp);
        }
    }

    /// Tells the peer of `qp` what has been registered since it was told last.
    pub(super) fn announce(&mut self, qp: u32) {
        let end = &self.qps[qp as usize];
        let keys = self.endpoints[end.endpoint as usize].segments.len() as u32;
        if end.state == QpState::Open && !self.copies_by_processor(qp) && end.keys_said < keys {
            self.qps[qp as usize].keys_said = keys;
            self.tell_keys(qp, keys, false);
        }
    }

    /// Sends the peer of `qp` how many keys there are; what is lost is asked for by who needs it.
    fn tell_keys(&mut self, qp: u32, keys: u32, is_answer: bool) {
        let end = &self.qps[qp as usize];
        let (from, to) = (end.from_host, end.to_host);
        if let Transit::Sent { arrives_ns, .. } = self.transmit(from, to, self.now_ns, MESSAGE_BYTES) {
            let at_ns = arrives_ns + self.profile(qp).interrupt_ns;
            self.schedule(at_ns, Event::KeysTold { qp: qp ^ 1, keys, is_answer });
        }
    }

    pub(super) fn handle_keys_told(&mut self, qp: u32, keys: u32, is_answer: bool) {
        let host = self.qps[qp as usize].from_host;
        if !self.has_processor(host, Event::KeysTold { qp, keys, is_answer }) {
            return;
        }
        let end = &mut self.qps[qp as usize];
        end.keys_known = end.keys_known.max(keys);
        if !std::mem::take(&mut end.is_asking) {
            return;
        }
        let departing = end.departing;
        if let Some(work) = end.work(departing) {
            // What the peer has never heard of goes out all the same, and it refuses it.
            work.is_key_asked |= is_answer;
        }
        self.schedule(self.now_ns, Event::Depart { qp });
    }

    /// Whether a request must wait until its key is known.
    pub(super) fn awaits_key(&mut self, qp: u32, number: u64) -> bool {
        if self.copies_by_processor(qp) {
            return false;
        }
        let end = &mut self.qps[qp as usize];
        let keys_known = end.keys_known;
        let is_unknown = |verb: &Verb| verb.remote().is_some_and(|remote| remote.key.0 >= keys_known);
        end.work(number).is_some_and(|work| !work.is_key_asked && is_unknown(&work.verb))
    }

    /// Asks for the keys of the peer, until there is an answer: what is to be sent stands still meanwhile.
    pub(super) fn ask_for_keys(&mut self, qp: u32) {
        self.qps[qp as usize].is_asking = true;
        let end = &self.qps[qp as usize];
        let (from, to, profile) = (end.from_host, end.to_host, self.profile(qp));
        let (patience, delay_ns) = (profile.patience(), profile.interrupt_ns);
        let sent = self.transmit(from, to, self.now_ns, MESSAGE_BYTES);
        let is_heard = match sent {
            Transit::Sent { arrives_ns, .. } if self.lets_in(qp ^ 1) => {
                self.schedule(arrives_ns + delay_ns, Event::KeysAsked { qp: qp ^ 1 });
                true
            }
            _ => false,
        };
        let end = &mut self.qps[qp as usize];
        end.attempts = if is_heard { 0 } else { end.attempts + 1 };
        let (retries_max, retransmit_ns) = patience;
        if end.attempts > retries_max {
            return self.break_off(qp, Status::RetryExceeded);
        }
        let at_ns = self.now_ns + retransmit_ns;
        self.schedule(at_ns, Event::AskAgain { qp });
    }

    pub(super) fn handle_ask_again(&mut self, qp: u32) {
        let end = &self.qps[qp as usize];
        if end.is_asking && end.sends() {
            self.ask_for_keys(qp);
        }
    }

    /// The peer of `qp` wants to know what there is.
    pub(super) fn handle_keys_asked(&mut self, qp: u32) {
        let end = &self.qps[qp as usize];
        let (host, endpoint) = (end.from_host, end.endpoint);
        if end.sends() && self.has_processor(host, Event::KeysAsked { qp }) {
            let keys = self.endpoints[endpoint as usize].segments.len() as u32;
            self.tell_keys(qp, keys, true);
        }
    }

    /// A request as it leaves: with what the peer's adapter calls the memory, as far as that is known.
    pub(super) fn with_adapters_key(&self, qp: u32, verb: Verb) -> Verb {
        let is_known = verb.remote().is_none_or(|remote| remote.key.0 < self.qps[qp as usize].keys_known);
        if is_known || self.copies_by_processor(qp) { verb } else { verb.with_key(NO_KEY) }
    }
}
