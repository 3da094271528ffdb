//! Keys of registered memory as adapters use them: the peer's provider must learn a key before it can use it.
//!
//! ```text
//!   register ── one small message to each peer ──> key known     requests that name the key are sent
//!                       lost, or late: a request that names the key waits, and later requests of its lane too
//!                           └── asks ──> the peer's provider ── all of its keys ──> key known
//! ```
//!
//! The setup messages of a connection carry the keys that exist at that time. Keys are not announced between processes
//! of one host: there, a real segment's descriptor is in the peer's socket before any message can name its key.

use halite_fabric::{Key, Status};

use super::end::{EndId, EndState};
use super::qp::Verb;
use super::{Event, Net};
use crate::hardware::Reach;
use crate::profile::Profile;

/// A question about the keys for one request. Later requests may name segments registered since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Question {
    pub(super) qp: u32,
    pub(super) number: u64,
}

/// Length of a message in bytes: a header, and a key with the adapter's name for it, or a question.
const MESSAGE_BYTES: u64 = 16;
/// Invalid key, sent in place of a key that the provider does not know.
const NO_KEY: Key = Key(u32::MAX);

impl Net {
    /// Sends all peers of a fabric the current number of its keys.
    pub(super) fn announce_to_all(&mut self, endpoint: u32) {
        for end in self.endpoints[endpoint as usize].peers.clone() {
            self.announce(end);
        }
    }

    /// Sends the peer of an end the keys that were registered since the last time.
    pub(super) fn announce(&mut self, end: EndId) {
        let this = &self.ends[end];
        let keys = self.endpoints[this.endpoint as usize].segments.len() as u32;
        if this.state == EndState::Open && self.has_adapter(end) && this.keys_announced < keys {
            self.ends[end].keys_announced = keys;
            self.tell_keys(end, keys, None);
        }
    }

    /// Sends the peer of an end the number of keys. If the message is lost, a peer that needs it asks.
    fn tell_keys(&mut self, end: EndId, keys: u32, answer: Option<Question>) {
        let this = &self.ends[end];
        let (from, to) = (this.from_host, this.to_host);
        if let Some(arrives_ns) = self.carry_message(from, to) {
            let at_ns = arrives_ns + self.profile(end).interrupt_ns;
            self.schedule(at_ns, Event::KeysTold { end: end.other(), keys, answer });
        }
    }

    pub(super) fn handle_keys_told(&mut self, end: EndId, keys: u32, answer: Option<Question>) {
        let host = self.ends[end].from_host;
        if !self.has_processor(host, Event::KeysTold { end, keys, answer }) {
            return;
        }
        let this = &mut self.ends[end];
        this.keys_known = this.keys_known.max(keys);
        if let Some(Question { qp, number }) = answer
            && let Some(lane) = self.lane(qp).filter(|lane| lane.handed == number)
            && let Some(first) = lane.written.front_mut()
        {
            // A request with a key that the peer does not have is sent anyway, and refused.
            first.is_key_asked = true;
        }
        for qp in self.ends[end].qps() {
            if self.lane(qp).is_some_and(|lane| lane.is_asking)
                && !self.awaits_key(qp)
                && let Some(lane) = self.lane(qp)
            {
                lane.is_asking = false;
                self.schedule_turn(qp, self.now_ns);
            }
        }
    }

    /// Returns true if the next written request must wait until its key is known.
    pub(super) fn awaits_key(&self, qp: u32) -> bool {
        let end = self.end_of(qp);
        let keys_known = self.ends[end].keys_known;
        let is_unknown = |verb: &Verb| verb.remote().is_some_and(|remote| remote.key.0 >= keys_known);
        let first = self.lanes[qp as usize].as_deref().and_then(|lane| lane.written.front());
        self.has_adapter(end) && first.is_some_and(|first| !first.is_key_asked && is_unknown(&first.verb))
    }

    /// Returns the number of an end's keys that its peer may use; unlimited if the target's process looks keys up when
    /// packets arrive.
    pub(super) fn keys_told(&self, end: EndId) -> u32 {
        if self.has_adapter(end) { self.ends[end.other()].keys_known } else { u32::MAX }
    }

    /// Sends a message between providers; returns the time of its arrival, unless it is lost.
    fn carry_message(&mut self, from: u32, to: u32) -> Option<u64> {
        let bytes = MESSAGE_BYTES + self.hardware.of(Reach::Across).header_bytes;
        let wire = &mut self.wires[from as usize][to as usize];
        let carried = wire.carry(self.now_ns, bytes, &mut self.random, &mut self.counters);
        self.counters.corrupted_caught += u64::from(carried.is_damaged);
        let [late_ns, _] = carried.late_ns;
        late_ns.filter(|_| !carried.is_damaged).map(|late_ns| carried.on_time_ns + late_ns)
    }

    /// Requests the peer's keys, repeatedly until answered; the lane sends nothing meanwhile.
    pub(super) fn ask_for_keys(&mut self, qp: u32) {
        let end = self.end_of(qp);
        let this = &self.ends[end];
        let (from, to) = (this.from_host, this.to_host);
        let Profile { retries_max, retransmit_ns, interrupt_ns, .. } = *self.profile(end);
        let lets_in = self.ends[end.other()].sends();
        let arrives_ns = self.carry_message(from, to).filter(|_| lets_in);
        let Some(lane) = self.lane(qp) else { return };
        lane.is_asking = true;
        lane.asks_unanswered = if arrives_ns.is_some() { 0 } else { lane.asks_unanswered + 1 };
        let (question, in_vain) = (Question { qp, number: lane.handed }, lane.asks_unanswered);
        if let Some(arrives_ns) = arrives_ns {
            self.schedule(arrives_ns + interrupt_ns, Event::KeysAsked { question });
        }
        if in_vain > retries_max {
            return self.break_off(end, Status::RetryExceeded);
        }
        let at_ns = self.now_ns + retransmit_ns;
        self.schedule(at_ns, Event::AskAgain { qp });
    }

    pub(super) fn handle_ask_again(&mut self, qp: u32) {
        let is_asking = self.lane(qp).is_some_and(|lane| lane.is_asking);
        if is_asking && self.ends[self.end_of(qp)].sends() {
            self.ask_for_keys(qp);
        }
    }

    /// Answers the peer's question about the keys for one of its requests.
    pub(super) fn handle_keys_asked(&mut self, question: Question) {
        let end = self.end_of(question.qp).other();
        let this = &self.ends[end];
        let (host, endpoint) = (this.from_host, this.endpoint);
        if this.sends() && self.has_processor(host, Event::KeysAsked { question }) {
            let keys = self.endpoints[endpoint as usize].segments.len() as u32;
            self.tell_keys(end, keys, Some(question));
        }
    }

    /// Returns a request as it is sent, with the adapter's name of the memory, if known.
    pub(super) fn with_adapters_key(&self, qp: u32, verb: Verb) -> Verb {
        let end = self.end_of(qp);
        let is_known = verb.remote().is_none_or(|remote| remote.key.0 < self.ends[end].keys_known);
        if is_known || !self.has_adapter(end) { verb } else { verb.with_key(NO_KEY) }
    }
}
