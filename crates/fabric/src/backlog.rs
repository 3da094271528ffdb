//! Requests that wait for their turn in a lane's queue pair. Providers use it, not callers.
//!
//! A queue pair sends requests in the order in which they were posted. So a provider posts only as many as the path
//! soon takes. The others wait in one queue for each flow ([`Lane::flow`](crate::Lane)), and the flows take turns, so
//! that a short request overtakes the long ones of other flows:
//!
//! ```text
//!   flow 2: [120 KiB][120 KiB][120 KiB] ─┐
//!                                        ├─ turns ─> queue pair: few unsent packets ─> path
//!   flow 3: [64 B] ──────────────────────┘
//! ```
//!
//! The turns follow deficit round robin (Shreedhar and Varghese, SIGCOMM 1995): each turn entitles a flow to a number of
//! bytes, and unused bytes remain while the flow has requests. A flow that has had no requests for a round has the next
//! turn, as in FQ-CoDel (RFC 8290). A long write leaves in parts, so that a short request waits for one part at most,
//! not for the rest of the write.

use std::collections::VecDeque;

/// Bytes to which each turn entitles a flow.
const TURN_BYTES: u64 = 16 << 10;
/// Bytes that each request costs in addition to its length.
const REQUEST_BYTES: u64 = 256;

/// The requests `T` of one lane that wait, by flow.
///
/// ```
/// let mut backlog = halite_fabric::Backlog::default();
/// backlog.push(2, 120 << 10, false, "long");
/// backlog.push(2, 120 << 10, false, "long");
/// backlog.push(3, 64, false, "short");
/// let mut next = || backlog.pop(u64::MAX, |_| unreachable!("no request is divisible"));
/// assert_eq!([next(), next(), next()], [Some("short"), Some("long"), Some("long")]);
/// ```
#[derive(Debug)]
pub struct Backlog<T> {
    /// The flows in the order of their turns. A flow without requests stays until its turn.
    flows: VecDeque<Flow<T>>,
    len: usize,
}

#[derive(Debug)]
struct Flow<T> {
    number: u32,
    /// Bytes to which the flow is entitled.
    credit: u64,
    requests: VecDeque<Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    request: T,
    bytes: u64,
    /// True if the request may leave in parts.
    is_divisible: bool,
}

impl<T> Default for Backlog<T> {
    fn default() -> Backlog<T> {
        Backlog { flows: VecDeque::new(), len: 0 }
    }
}

impl<T> Backlog<T> {
    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no request waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a request of `bytes` bytes to the queue of its flow.
    pub fn push(&mut self, flow: u32, bytes: u64, is_divisible: bool, request: T) {
        self.len += 1;
        let entry = Entry { request, bytes, is_divisible };
        match self.flows.iter_mut().find(|waiting| waiting.number == flow) {
            Some(waiting) => waiting.requests.push_back(entry),
            None => {
                let requests = VecDeque::from([entry]);
                self.flows.push_front(Flow { number: flow, credit: TURN_BYTES, requests });
            }
        }
    }

    /// Removes the request whose turn it is. Of a divisible request that is longer than `part_bytes`, removes the first
    /// `part_bytes` bytes instead: `divide` returns them as a request, and leaves the rest.
    pub fn pop(&mut self, part_bytes: u64, divide: impl FnOnce(&mut T) -> T) -> Option<T> {
        loop {
            let flow = self.flows.front_mut()?;
            let is_alone = flow.requests.len() == self.len;
            let Some(entry) = flow.requests.front_mut() else {
                self.flows.pop_front();
                continue;
            };
            let leaves_rest = entry.is_divisible && entry.bytes > part_bytes;
            let bytes = if leaves_rest { part_bytes } else { entry.bytes };
            let cost = bytes.saturating_add(REQUEST_BYTES);
            if !is_alone && flow.credit < cost {
                flow.credit += TURN_BYTES;
                self.flows.rotate_left(1);
                continue;
            }
            flow.credit = flow.credit.saturating_sub(cost);
            if leaves_rest {
                entry.bytes -= part_bytes;
                return Some(divide(&mut entry.request));
            }
            let Entry { request, .. } = flow.requests.pop_front()?;
            if flow.requests.is_empty() {
                self.flows.rotate_left(1);
            }
            self.len -= 1;
            return Some(request);
        }
    }

    /// Removes all requests.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.len = 0;
        self.flows.drain(..).flat_map(|flow| flow.requests).map(|entry| entry.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_share_by_bytes_and_keep_their_order() {
        let mut backlog = Backlog::default();
        for number in 0..10 {
            backlog.push(2, 120 << 10, false, (2, number));
        }
        for number in 0..100 {
            backlog.push(3, 8 << 10, false, (3, number));
        }
        backlog.push(4, 64, false, (4, 0));
        let all: Vec<_> = std::iter::from_fn(|| backlog.pop(u64::MAX, |request| *request)).collect();
        assert!(backlog.len() == 0 && all.len() == 111, "{all:?}");
        let of_flow =
            |flow: u32| all.iter().filter(move |request| request.0 == flow).map(|request| request.1);
        assert!((2..5).all(|flow| of_flow(flow).is_sorted()), "{all:?}");
        let alone = all.iter().position(|request| request.0 == 4);
        assert!(alone.is_some_and(|index| index < 4), "a short request waits for no long one: {all:?}");
        // With 256 bytes for each request, 14.6 of these cost as much as one of flow 2.
        let beside = all.iter().take_while(|request| **request != (2, 5)).filter(|request| request.0 == 3);
        assert!((80..=95).contains(&beside.count()), "{all:?}");
    }

    #[test]
    fn a_short_request_waits_for_one_part_of_a_long_one() {
        let mut backlog = Backlog::default();
        backlog.push(2, 120 << 10, true, (2, 0));
        let take = |request: &mut (u32, u32)| {
            request.1 += 8;
            (request.0, request.1 - 8)
        };
        let pop = |backlog: &mut Backlog<_>| backlog.pop(8 << 10, take);
        assert_eq!(pop(&mut backlog), Some((2, 0)));
        backlog.push(3, 64, false, (3, 0));
        let order: Vec<_> = std::iter::from_fn(|| pop(&mut backlog)).collect();
        assert_eq!(order[0], (3, 0), "{order:?}");
        let parts: Vec<_> = order.iter().filter(|request| request.0 == 2).map(|request| request.1).collect();
        assert_eq!(parts, (1..15).map(|part| part * 8).collect::<Vec<_>>());
    }

    /// A flow that sends long requests one by one has no more than its share.
    #[test]
    fn a_flow_that_returns_within_a_round_waits_for_its_turn() {
        let mut backlog = Backlog::default();
        (0..64).for_each(|number| backlog.push(2, 8 << 10, false, (2, number)));
        backlog.push(3, 8 << 10, false, (3, 0));
        let mut counts = [0, 0];
        for _ in 0..64 {
            let (flow, number): (usize, u32) = backlog.pop(u64::MAX, |request| *request).unwrap();
            counts[flow - 2] += 1;
            if flow == 3 {
                backlog.push(3, 8 << 10, false, (3, number + 1));
            }
        }
        assert!(counts[0] >= 32, "{counts:?}");
    }
}
