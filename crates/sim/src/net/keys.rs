//! Keys of registered memory as adapters use them: the peer's provider must learn a key before it can use it.
//!
//! ```text
//!   register ── one small message to each peer ──> key known     requests that name the key are sent
//!                       lost, or late: a request that names the key waits, and later requests of its lane too
//!                           └── requests keys ──> the peer's provider ── all of its keys ──> key known
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

/// A request for the peer's keys, which the next work request of a lane needs. Later work requests may need newer keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeyRequest {
    pub(super) qp: u32,
    /// Number of the work request that needs the keys.
    pub(super) number: u64,
}

/// Length of a message in bytes: a header, and a key with its rkey, or a request for keys.
const MESSAGE_BYTES: u64 = 16;
/// An invalid key, sent instead of an unknown one.
const INVALID_KEY: Key = Key(u32::MAX);

impl Net {
    /// Sends all peers of a fabric the current number of its keys.
    pub(super) fn announce_to_all(&mut self, endpoint: u32) {
        for end in self.endpoints[endpoint as usize].peers.clone() {
            self.announce(end);
        }
    }

    /// Announces to the peer of an end the keys that were registered since the last announcement.
    pub(super) fn announce(&mut self, end: EndId) {
        let this = &self.ends[end];
        let keys = self.endpoints[this.endpoint as usize].segments.len() as u32;
        if this.state == EndState::Open && self.has_adapter(end) && this.keys_announced < keys {
            self.ends[end].keys_announced = keys;
            self.send_keys(end, keys, None);
        }
    }

    /// Sends the peer of an end the number of keys. If the message is lost, the peer requests the keys when it needs
    /// them.
    fn send_keys(&mut self, end: EndId, keys: u32, answer: Option<KeyRequest>) {
        let this = &self.ends[end];
        let (from, to) = (this.from_host, this.to_host);
        if let Some(arrives_ns) = self.send_message(from, to) {
            let at_ns = arrives_ns + self.profile(end).interrupt_ns;
            self.schedule(at_ns, Event::KeysArrive { end: end.other(), keys, answer });
        }
    }

    pub(super) fn handle_keys_arrive(&mut self, end: EndId, keys: u32, answer: Option<KeyRequest>) {
        let host = self.ends[end].from_host;
        if !self.runs_or_defers(host, Event::KeysArrive { end, keys, answer }) {
            return;
        }
        let this = &mut self.ends[end];
        this.keys_known = this.keys_known.max(keys);
        if let Some(KeyRequest { qp, number }) = answer
            && let Some(lane) = self.lane(qp).filter(|lane| lane.submitted == number)
            && let Some(first) = lane.unsubmitted.front_mut()
        {
            // If the key does not exist, the request is sent anyway, and refused.
            first.is_key_answered = true;
        }
        for qp in self.ends[end].qps() {
            if self.lane(qp).is_some_and(|lane| lane.has_key_request)
                && !self.awaits_key(qp)
                && let Some(lane) = self.lane(qp)
            {
                lane.has_key_request = false;
                self.schedule_run(qp, self.now_ns);
            }
        }
    }

    /// Returns true if the next request to submit must wait until its key is known.
    pub(super) fn awaits_key(&self, qp: u32) -> bool {
        let end = self.end_of(qp);
        let keys_known = self.ends[end].keys_known;
        let is_unknown = |verb: &Verb| verb.remote().is_some_and(|remote| remote.key.0 >= keys_known);
        let first = self.lanes[qp as usize].as_deref().and_then(|lane| lane.unsubmitted.front());
        self.has_adapter(end) && first.is_some_and(|first| !first.is_key_answered && is_unknown(&first.verb))
    }

    /// Returns the number of an end's keys that its peer may use; unlimited if the target's process looks keys up when
    /// packets arrive.
    pub(super) fn keys_usable(&self, end: EndId) -> u32 {
        if self.has_adapter(end) { self.ends[end.other()].keys_known } else { u32::MAX }
    }

    /// Sends a message between providers. Returns the time of its arrival; `None` if it is lost.
    fn send_message(&mut self, from: u32, to: u32) -> Option<u64> {
        let bytes = MESSAGE_BYTES + self.hardware.profile(Reach::BetweenHosts).header_bytes;
        let wire = &mut self.wires[from as usize][to as usize];
        let delivery = wire.send_datagram(self.now_ns, bytes, &mut self.random, &mut self.counters);
        self.counters.corrupted_caught += u64::from(delivery.is_damaged);
        let [delay_ns, _] = delivery.delays_ns;
        delay_ns.filter(|_| !delivery.is_damaged).map(|delay_ns| delivery.on_time_ns + delay_ns)
    }

    /// Requests the peer's keys, and repeats the request until they arrive. Meanwhile, the lane sends nothing.
    pub(super) fn request_keys(&mut self, qp: u32) {
        let end = self.end_of(qp);
        let this = &self.ends[end];
        let (from, to) = (this.from_host, this.to_host);
        let Profile { retries_max, retransmit_ns, interrupt_ns, .. } = *self.profile(end);
        let is_open = self.ends[end.other()].is_active();
        let arrives_ns = self.send_message(from, to).filter(|_| is_open);
        let Some(lane) = self.lane(qp) else { return };
        lane.has_key_request = true;
        lane.key_requests_lost = if arrives_ns.is_some() { 0 } else { lane.key_requests_lost + 1 };
        let (request, lost) = (KeyRequest { qp, number: lane.submitted }, lane.key_requests_lost);
        if let Some(arrives_ns) = arrives_ns {
            self.schedule(arrives_ns + interrupt_ns, Event::KeysRequested { request });
        }
        if lost > retries_max {
            return self.break_connection(end, Status::RetryExceeded);
        }
        let at_ns = self.now_ns + retransmit_ns;
        self.schedule(at_ns, Event::KeyRequestTimeout { qp });
    }

    pub(super) fn handle_key_request_timeout(&mut self, qp: u32) {
        let has_key_request = self.lane(qp).is_some_and(|lane| lane.has_key_request);
        if has_key_request && self.ends[self.end_of(qp)].is_active() {
            self.request_keys(qp);
        }
    }

    /// Answers the peer's request for keys.
    pub(super) fn handle_keys_requested(&mut self, request: KeyRequest) {
        let end = self.end_of(request.qp).other();
        let this = &self.ends[end];
        let (host, endpoint) = (this.from_host, this.endpoint);
        if this.is_active() && self.runs_or_defers(host, Event::KeysRequested { request }) {
            let keys = self.endpoints[endpoint as usize].segments.len() as u32;
            self.send_keys(end, keys, Some(request));
        }
    }

    /// Returns the operation with the key that the adapter sends: [`INVALID_KEY`] if it does not know the key.
    pub(super) fn with_known_key(&self, qp: u32, verb: Verb) -> Verb {
        let end = self.end_of(qp);
        let is_known = verb.remote().is_none_or(|remote| remote.key.0 < self.ends[end].keys_known);
        if is_known || !self.has_adapter(end) { verb } else { verb.with_key(INVALID_KEY) }
    }
}
