//! Future events, ordered by time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::end::EndId;
use super::keys::KeyRequest;

/// An event of the network. `qp` is the index of one end of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// The adapter of `qp` sends its next packet.
    Depart { qp: u32 },
    /// A packet reaches memory.
    Land { packet: u32 },
    /// Packets that found no posted receive are retried.
    ReceiverRetry { qp: u32 },
    /// The target of the read `number` of `qp` sends the next piece of the answer.
    Respond { qp: u32, number: u64 },
    /// The adapter of an endpoint writes the word of the atomic in execution.
    AtomicWritten { endpoint: u32 },
    /// The request `number` of `qp` is acknowledged.
    Acknowledge { qp: u32, number: u64 },
    /// The timeout of a lost acknowledgement.
    AckTimeout { qp: u32, number: u64 },
    /// The next event of a fabric becomes visible.
    Visible { endpoint: u32 },
    /// The other end has reported that it closed.
    PeerLeft { end: EndId },
    /// The other end's kernel has reported its crash.
    PeerCrashed { end: EndId },
    /// The other end can no longer access the memory of this end.
    PeerDetached { end: EndId },
    /// A dial reaches its target.
    DialArrives { dial: u32 },
    /// The answer to a dial arrives.
    DialAnswered { dial: u32, end: Option<EndId> },
    /// The timeout of a dial.
    DialTimeout { dial: u32 },
    /// Kills the host of a fabric, to cut it off.
    Fence { endpoint: u32 },
    /// Checks whether a closed end still has the peer's memory mapped.
    CheckWindows { end: EndId },
    /// The provider of an end learns the number of its peer's keys, perhaps as an answer.
    KeysArrive { end: EndId, keys: u32, answer: Option<KeyRequest> },
    /// A request for keys arrives at the provider that has them.
    KeysRequested { request: KeyRequest },
    /// The timeout of a request for keys.
    KeyRequestTimeout { qp: u32 },
    /// A queue pair runs although no packet has arrived.
    Run { qp: u32 },
    /// A datagram arrives.
    Datagram { index: u32 },
}

impl Event {
    /// Returns the event's kind and object, as words of the digest.
    pub(super) fn digest_words(self) -> [u64; 3] {
        match self {
            Event::Depart { qp } => [1, qp.into(), 0],
            Event::Land { packet } => [2, packet.into(), 0],
            Event::ReceiverRetry { qp } => [3, qp.into(), 0],
            Event::Respond { qp, number } => [4, qp.into(), number],
            Event::Acknowledge { qp, number } => [5, qp.into(), number],
            Event::AckTimeout { qp, number } => [6, qp.into(), number],
            Event::Visible { endpoint } => [7, endpoint.into(), 0],
            Event::PeerLeft { end } => [8, end.0.into(), 0],
            Event::PeerCrashed { end } => [9, end.0.into(), 0],
            Event::PeerDetached { end } => [10, end.0.into(), 0],
            Event::DialArrives { dial } => [11, dial.into(), 0],
            Event::DialAnswered { dial, end } => [12, dial.into(), end.map_or(0, |end| u64::from(end.0) + 1)],
            Event::DialTimeout { dial } => [13, dial.into(), 0],
            Event::Fence { endpoint } => [14, endpoint.into(), 0],
            Event::CheckWindows { end } => [15, end.0.into(), 0],
            Event::AtomicWritten { endpoint } => [16, endpoint.into(), 0],
            Event::KeysArrive { end, keys, .. } => [17, end.0.into(), keys.into()],
            Event::KeysRequested { request } => [18, request.qp.into(), request.number],
            Event::KeyRequestTimeout { qp } => [19, qp.into(), 0],
            Event::Run { qp } => [21, qp.into(), 0],
            Event::Datagram { index } => [22, index.into(), 0],
        }
    }
}

/// Future events, ordered by time. Events of the same time keep the order of insertion.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at_ns: u64,
    sequence: u64,
    event: Event,
}

impl Ord for Entry {
    /// The earliest entry is the greatest, because the heap yields the greatest first.
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at_ns, other.sequence).cmp(&(self.at_ns, self.sequence))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl EventQueue {
    pub(super) fn add(&mut self, at_ns: u64, sequence: u64, event: Event) {
        self.heap.push(Entry { at_ns, sequence, event });
    }

    /// Returns the time and number of the next event.
    pub(super) fn next(&self) -> Option<(u64, u64)> {
        self.heap.peek().map(|entry| (entry.at_ns, entry.sequence))
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|entry| entry.event)
    }
}
