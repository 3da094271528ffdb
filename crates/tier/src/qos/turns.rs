//! Order among the operations of one priority: sessions share its limit in turns.
//!
//! The limit earns bytes over time, and each operation takes a place behind the bytes that were taken before it:
//!
//! ```text
//!   earned ───────────┐
//!   [ 64 KiB of A ][ 8 KiB of B ][ 64 B of C ]
//!                               └ C starts when this many bytes are earned
//! ```
//!
//! A flow has one place at a time, so an operation waits for one place of each other flow at most. A place stays: a caller
//! that is late starts as soon as it returns, and holds up no other flow. With its place, a flow may start short
//! operations until it has started as many bytes as others do, as in deficit round robin.

use std::collections::HashMap;

use super::{BURST_NS, Priority, SECOND_NS, Shaper};

/// Cost of an operation in addition to its length, in bytes.
const OPERATION_BYTES: u64 = 256;
/// Length of a part of a long operation: what the limit permits in this time, in nanoseconds, and at least
/// `PART_BYTES_MIN` bytes. So neither other sessions of the priority nor the other priority wait long behind it.
const PART_NS: u64 = 500_000;
const PART_BYTES_MIN: u64 = 8 << 10;
/// Interval at which a waiting operation asks again, in nanoseconds, so that it follows a changed limit: a quarter of
/// the time that it still has to wait, from `RECHECK_NS` to `RECHECK_NS_MAX`.
const RECHECK_NS: u64 = 10_000_000;
const RECHECK_NS_MAX: u64 = 100_000_000;
/// Interval at which the state of flows that do not return is dropped, in nanoseconds.
const SWEEP_NS: u64 = 1_000_000_000;

/// Decides when operations may start, for one direction of a node's link: within the limits of the policy, and in
/// turns of the flows of each priority. A flow is the operations of one session.
///
/// All times are in nanoseconds on the node's clock. If a call passes an earlier time than a previous call, the time of
/// the previous call applies.
#[derive(Debug)]
pub struct Turns {
    shaper: Box<dyn Shaper>,
    /// The queues of both priorities.
    queues: [Queue; 2],
}

/// The operations of one priority that wait. Bytes are counted from the time at which the limit began to apply.
#[derive(Default, Debug)]
struct Queue {
    /// Time up to which the limit has earned bytes.
    at_ns: u64,
    /// Bytes that the limit has earned, and the rest of one, in parts of `SECOND_NS`.
    earned: u64,
    earned_rest: u64,
    /// Bytes that operations have taken. May exceed `earned`: the difference is a debt.
    taken: u64,
    flows: HashMap<u32, Flow>,
    /// Number of flows with a place.
    places: usize,
    sweep_ns: u64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Flow {
    /// The place of the next operation.
    place: Option<Place>,
    /// Bytes that the flow may start without another place.
    credit: u64,
    /// Bytes of these that the queue has counted as taken.
    prepaid: u64,
    asked_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// The operation may start when this many bytes are earned.
    begin: u64,
    /// Length of the operation in bytes, which the queue has counted as taken.
    bytes: u64,
}

impl Turns {
    pub(super) fn new(now_ns: u64, shaper: Box<dyn Shaper>) -> Turns {
        let queue = || Queue { at_ns: now_ns, ..Queue::default() };
        Turns { shaper, queues: [queue(), queue()] }
    }

    /// Returns the time at which an operation of `flow` on `bytes` bytes may start. If this is at most `now_ns`, the
    /// operation may start at once; otherwise the caller asks again at the returned time, within 100 ms.
    pub fn turn(&mut self, now_ns: u64, priority: Priority, flow: u32, bytes: u64) -> u64 {
        self.shaper.advance(now_ns);
        let queue = &mut self.queues[priority as usize];
        let Some(limit) = self.shaper.limit(priority) else {
            queue.reset(now_ns);
            return now_ns;
        };
        let bytes = bytes.min(part_bytes_max(limit));
        let turn_ns = queue.turn(now_ns, limit, flow, bytes);
        if turn_ns > now_ns {
            self.shaper.on_delay();
        }
        turn_ns
    }

    /// Records that an operation of `flow` on `bytes` bytes has started.
    pub fn on_start(&mut self, now_ns: u64, priority: Priority, flow: u32, bytes: u64) {
        self.shaper.advance(now_ns);
        let queue = &mut self.queues[priority as usize];
        match self.shaper.limit(priority) {
            Some(limit) => queue.start(now_ns, limit, flow, bytes),
            None => queue.reset(now_ns),
        }
    }

    /// Records that an operation on `bytes` bytes has completed.
    pub fn on_done(&mut self, now_ns: u64, priority: Priority, bytes: u64) {
        self.shaper.advance(now_ns);
        self.shaper.on_done(priority, bytes);
    }

    /// Records the round-trip time of a short operation of high priority, in either direction of the link.
    pub fn on_round_trip(&mut self, now_ns: u64, round_trip_ns: u64) {
        self.shaper.advance(now_ns);
        self.shaper.on_round_trip(round_trip_ns);
    }

    /// Returns the length in bytes to which a part of a long operation is limited now.
    pub fn part_bytes_max(&self, priority: Priority) -> u64 {
        self.limit(priority).map_or(u64::MAX, part_bytes_max)
    }

    /// Returns the current rate limit of a priority, in bytes per second; `None` if the priority has no limit.
    pub fn limit(&self, priority: Priority) -> Option<u64> {
        self.shaper.limit(priority)
    }
}

fn part_bytes_max(limit: u64) -> u64 {
    (limit / (SECOND_NS / PART_NS)).max(PART_BYTES_MIN)
}

impl Queue {
    /// Forgets all places and debts, because no limit applies.
    fn reset(&mut self, now_ns: u64) {
        if !self.flows.is_empty() {
            self.flows.clear();
            self.places = 0;
        }
        (self.at_ns, self.earned, self.taken) = (self.at_ns.max(now_ns), 0, 0);
    }

    fn turn(&mut self, now_ns: u64, limit: u64, number: u32, bytes: u64) -> u64 {
        self.earn(now_ns, limit);
        let (earned, taken) = (self.earned, self.taken);
        let is_free = earned >= taken;
        let flow = match self.flows.get_mut(&number) {
            Some(flow) => flow,
            None if is_free => return now_ns,
            None => self.flows.entry(number).or_default(),
        };
        flow.asked_ns = self.at_ns;
        // Without other flows, the operations need no turns, and no bursts.
        let has_credit = self.places > 0 && flow.credit >= cost(bytes);
        if flow.place.is_none() && (is_free || has_credit) {
            return now_ns;
        }
        let place = flow.place.get_or_insert_with(|| {
            self.places += 1;
            self.taken = taken.saturating_add(bytes);
            Place { begin: taken, bytes }
        });
        match place.begin.saturating_sub(earned) {
            0 => now_ns,
            left => {
                let wait_ns = u128::from(left) * u128::from(SECOND_NS) / u128::from(limit.max(1)) + 1;
                let wait_ns = u64::try_from(wait_ns).unwrap_or(u64::MAX);
                now_ns.saturating_add(wait_ns.min((wait_ns / 4).clamp(RECHECK_NS, RECHECK_NS_MAX)))
            }
        }
    }

    fn start(&mut self, now_ns: u64, limit: u64, number: u32, bytes: u64) {
        self.earn(now_ns, limit);
        let mut flow = self.flows.get_mut(&number);
        let prepaid = flow.as_mut().map_or(0, |flow| {
            if let Some(place) = flow.place.take() {
                self.places -= 1;
                let part = part_bytes_max(limit);
                (flow.credit, flow.prepaid) = (flow.credit.min(part) + part, place.bytes);
            }
            flow.credit = flow.credit.saturating_sub(cost(bytes));
            let prepaid = flow.prepaid.min(bytes);
            flow.prepaid -= prepaid;
            prepaid
        });
        self.taken = self.taken.saturating_add(bytes - prepaid);
    }

    fn earn(&mut self, now_ns: u64, limit: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        let earned = u128::from(limit) * u128::from(elapsed_ns) + u128::from(self.earned_rest);
        self.earned_rest = (earned % u128::from(SECOND_NS)) as u64;
        let earned = u64::try_from(earned / u128::from(SECOND_NS)).unwrap_or(u64::MAX);
        // What is not used within a burst is lost.
        let burst = (u128::from(limit) * u128::from(BURST_NS) / u128::from(SECOND_NS)) as u64;
        self.earned = self.earned.saturating_add(earned).min(self.taken.saturating_add(burst));
        if self.at_ns >= self.sweep_ns {
            self.sweep_ns = self.at_ns.saturating_add(SWEEP_NS);
            self.sweep();
        }
    }

    /// Drops the flows that have not asked for a while, and counts bytes from the first place on.
    fn sweep(&mut self) {
        self.flows.retain(|_, flow| self.at_ns - flow.asked_ns < SWEEP_NS);
        self.places = self.flows.values().filter(|flow| flow.place.is_some()).count();
        let first = self.flows.values().filter_map(|flow| Some(flow.place?.begin)).min();
        let base = self.earned.min(self.taken).min(first.unwrap_or(u64::MAX));
        self.earned -= base;
        self.taken -= base;
        for place in self.flows.values_mut().filter_map(|flow| flow.place.as_mut()) {
            place.begin -= base;
        }
    }
}

fn cost(bytes: u64) -> u64 {
    bytes.saturating_add(OPERATION_BYTES)
}
