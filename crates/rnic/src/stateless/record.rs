//! The record of effects: the requests that a responder has executed recently, and their answers.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::wire::{Packet, Status};
use crate::wire::Qpn;

/// Maximum number of effects of one interval. Further requests with an effect are refused as busy.
const EFFECTS_MAX: usize = 1 << 18;
/// Maximum length of the answers of one interval in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Maximum time in ns by which a stamp may be ahead of the responder's clock, because two clocks run at different
/// rates.
pub(super) const AHEAD_NS_MAX: u64 = 5_000_000;
/// Number of intervals that the record covers. An effect is recorded for at least one interval less: for twice T. So a
/// requester that gets "expired" within twice T of its first transmission knows that no copy had an effect.
const INTERVALS: usize = 3;

/// Id of a request: address, port and queue pair of its requester, and the requester's number of the request. A repeated
/// request may have another tag, because a new epoch changes all keys. As words, the id is hashed at once.
pub(super) type RequestId = [u64; 4];

/// Id of a requester: the first words of its requests' ids.
pub(super) type RequesterId = [u64; 3];

/// Returns the id of the request that a packet carries.
pub(super) fn request_id(from: SocketAddr, packet: &Packet<'_>) -> RequestId {
    let [high, low, ends] = requester_id(from, packet.qpn);
    [high, low, ends, packet.number]
}

/// Returns the id of the requester with this address and queue pair.
pub(super) fn requester_id(from: SocketAddr, qpn: Qpn) -> RequesterId {
    let ip = match from.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let ends = u64::from(from.port()) << 32 | u64::from(qpn.value());
    [(ip >> 64) as u64, ip as u64, ends]
}

/// An executed request, and its answer.
#[derive(Debug)]
pub(super) struct Effect {
    pub(super) status: Status,
    /// Payload of the answer.
    pub(super) answer: Box<[u8]>,
}

/// Effects of the current interval, and of those before it.
#[derive(Debug)]
pub(super) struct Record {
    /// Length of an interval in ns: the maximum time between the responder's receipt of two copies with a valid stamp.
    interval_ns: u64,
    intervals: [HashMap<RequestId, Effect>; INTERVALS],
    /// Length of the answers of the current interval in bytes.
    answer_bytes: usize,
    /// Start of the current interval.
    began_ns: u64,
}

impl Record {
    /// Creates a record for a responder whose T is `effect_life_ns`.
    pub(super) fn new(effect_life_ns: u64) -> Record {
        let interval_ns = effect_life_ns + AHEAD_NS_MAX;
        Record { interval_ns, intervals: Default::default(), answer_bytes: 0, began_ns: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.intervals.iter().map(HashMap::len).sum()
    }

    /// Returns the effect of the request with this stamp.
    pub(super) fn find(&self, request_id: &RequestId, stamp_ns: u64) -> Option<&Effect> {
        // A request is executed at most `AHEAD_NS_MAX` before its stamp.
        let is_current = stamp_ns >= self.began_ns.saturating_add(AHEAD_NS_MAX);
        let intervals = if is_current { 1 } else { INTERVALS };
        self.intervals[..intervals].iter().find_map(|effects| effects.get(request_id))
    }

    /// Returns the effect of the request, and keeps it for as long as a new one. If the record is full, the effect keeps
    /// its age: renewed effects take the room of new ones, so that the record stays bounded.
    pub(super) fn renew(&mut self, request_id: &RequestId) -> Option<&Effect> {
        if !self.is_full()
            && let Some(effect) =
                self.intervals[1..].iter_mut().find_map(|effects| effects.remove(request_id))
        {
            self.insert(*request_id, effect);
        }
        self.intervals.iter().find_map(|effects| effects.get(request_id))
    }

    pub(super) fn is_full(&self) -> bool {
        self.intervals[0].len() >= EFFECTS_MAX || self.answer_bytes >= ANSWER_BYTES_MAX
    }

    pub(super) fn insert(&mut self, request_id: RequestId, effect: Effect) {
        self.answer_bytes += effect.answer.len();
        self.intervals[0].insert(request_id, effect);
    }

    /// Returns the time in ns at which [`Record::sweep`] frees memory; `None` if the record has none.
    pub(super) fn sweep_ns(&self) -> Option<u64> {
        let has_memory = self.intervals.iter().any(|effects| effects.capacity() > 0);
        has_memory.then_some(self.began_ns + self.interval_ns)
    }

    /// Begins a new interval if the current one has ended, and drops effects of the oldest.
    pub(super) fn sweep(&mut self, now_ns: u64) {
        let since_ns = now_ns.saturating_sub(self.began_ns);
        if since_ns < self.interval_ns {
            return;
        }
        if since_ns >= INTERVALS as u64 * self.interval_ns {
            self.intervals = Default::default();
        }
        for _ in 0..(since_ns / self.interval_ns).min(INTERVALS as u64) {
            // The next interval probably has as many effects; a table that grows is copied each time.
            let expected = self.intervals[0].len();
            if expected == 0 {
                self.intervals[0] = HashMap::new();
            }
            self.intervals.rotate_right(1);
            let next = &mut self.intervals[0];
            next.clear();
            // Memory that was used before has no page faults.
            if !(expected..=4 * expected).contains(&next.capacity()) {
                *next = HashMap::with_capacity(expected);
            }
        }
        (self.began_ns, self.answer_bytes) = (now_ns, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::EFFECT_LIFE_NS;
    use super::*;

    #[test]
    fn renewed_answers_do_not_exceed_the_room_of_new_ones() {
        const ANSWER_BYTES: usize = 1 << 17;
        let mut record = Record::new(EFFECT_LIFE_NS);
        let mut ids = Vec::new();
        for interval in 1..10 {
            record.sweep(interval * record.interval_ns);
            while !record.is_full() {
                let id = [0, 0, 0, ids.len() as u64];
                record.insert(id, Effect { status: Status::Done, answer: vec![0; ANSWER_BYTES].into() });
                ids.push(id);
            }
            for id in &ids {
                record.renew(id);
            }
            assert!(record.len() * ANSWER_BYTES <= INTERVALS * (ANSWER_BYTES_MAX + ANSWER_BYTES));
        }
    }

    /// A copy finds the effect as long as its stamp is valid, at whatever time the first one came.
    #[test]
    fn an_effect_is_found_as_long_as_its_stamp_is_valid() {
        const LIFE_NS: u64 = 50_000_000;
        let id = [0, 1, 5, 1];
        for first_ns in (LIFE_NS..5 * LIFE_NS).step_by(700_000) {
            for stamp_ns in (first_ns - LIFE_NS..=first_ns + AHEAD_NS_MAX).step_by(5_000_000) {
                let mut record = Record::new(LIFE_NS);
                for now_ns in (0..=first_ns).step_by(10_000_000).chain([first_ns]) {
                    record.sweep(now_ns);
                }
                record.insert(id, Effect { status: Status::Done, answer: [].into() });
                for now_ns in (first_ns..=stamp_ns + LIFE_NS).step_by(10_000_000) {
                    record.sweep(now_ns);
                    assert!(record.find(&id, stamp_ns).is_some(), "{first_ns} {stamp_ns} {now_ns}");
                }
            }
        }
    }

    /// A silence leaves no memory, whether the record is swept during it or afterwards.
    #[test]
    fn an_idle_record_has_no_memory() {
        for step in [1, 2, 3, 10] {
            let mut record = Record::new(EFFECT_LIFE_NS);
            for number in 0..10_000 {
                record.sweep(number * 10_000);
                record.insert([0, 1, 5, number], Effect { status: Status::Done, answer: [].into() });
            }
            for round in 0..INTERVALS as u64 {
                let due_ns = record.sweep_ns().unwrap_or(record.began_ns);
                record.sweep(due_ns + (step - 1) * record.interval_ns + round % 2);
            }
            let capacities = record.intervals.each_ref().map(HashMap::capacity);
            assert_eq!((capacities, record.sweep_ns()), ([0; INTERVALS], None), "{step} intervals");
        }
    }
}
