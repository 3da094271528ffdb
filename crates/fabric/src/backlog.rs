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
