//! Future events, ordered by time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::end::EndId;
use super::keys::Question;

/// An event of the network. `qp` is the index of one end of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// The adapter of `qp` sends its next packet.
    Depart { qp: u32 },
    /// A packet reaches memory.
    Land { packet: u32 },
    /// Messages that found no receive are looked at again.
    ReceiverRetry { qp: u32 },
    /// The target of the read `number` of `qp` sends the next piece of the answer.
    Respond { qp: u32, number: u64 },
    /// The adapter of an endpoint writes the word of the atomic that it carries out.
    AtomicWritten { endpoint: u32 },
    /// The request `number` of `qp` is acknowledged.
    Acknowledge { qp: u32, number: u64 },
    /// An acknowledgement did not come.
    AckTimeout { qp: u32, number: u64 },
    /// A fabric's next completion can be seen.
    Show { endpoint: u32 },
    /// The other end has left, by its own word.
    PeerLeft { end: EndId },
    /// It has crashed, by the word of its kernel.
    PeerCrashed { end: EndId },
    /// It can no longer touch the memory of this end.
    PeerDetached { end: EndId },
    /// An attempt to connect reaches its target.
    DialArrives { dial: u32 },
    /// The answer is back.
    DialAnswered { dial: u32, end: Option<EndId> },
    /// It takes too long.
    DialTimeout { dial: u32 },
    /// A fabric's host is brought down, to cut it off.
    Fence { endpoint: u32 },
    /// It is looked whether an end that is closed still holds memory of its peer.
    LookAtWindows { end: EndId },
    /// The provider of an end hears how many keys its peer has, perhaps because it asked.
    KeysTold { end: EndId, keys: u32, answer: Option<Question> },
    /// The provider of an end is asked that.
    KeysAsked { question: Question },
    /// There may have been no answer.
    AskAgain { qp: u32 },
    /// A queue pair has something to do though nothing arrives.
    Turn { qp: u32 },
    /// A datagram arrives.
    Datagram { index: u32 },
}

impl Event {
    /// What goes into the digest: which kind, and of what.
    pub(super) fn words(self) -> [u64; 3] {
        match self {
            Event::Depart { qp } => [1, qp.into(), 0],
            Event::Land { packet } => [2, packet.into(), 0],
            Event::ReceiverRetry { qp } => [3, qp.into(), 0],
            Event::Respond { qp, number } => [4, qp.into(), number],
            Event::Acknowledge { qp, number } => [5, qp.into(), number],
            Event::AckTimeout { qp, number } => [6, qp.into(), number],
            Event::Show { endpoint } => [7, endpoint.into(), 0],
            Event::PeerLeft { end } => [8, end.0.into(), 0],
            Event::PeerCrashed { end } => [9, end.0.into(), 0],
            Event::PeerDetached { end } => [10, end.0.into(), 0],
            Event::DialArrives { dial } => [11, dial.into(), 0],
            Event::DialAnswered { dial, end } => [12, dial.into(), end.map_or(0, |end| u64::from(end.0) + 1)],
            Event::DialTimeout { dial } => [13, dial.into(), 0],
            Event::Fence { endpoint } => [14, endpoint.into(), 0],
            Event::LookAtWindows { end } => [15, end.0.into(), 0],
            Event::AtomicWritten { endpoint } => [16, endpoint.into(), 0],
            Event::KeysTold { end, keys, .. } => [17, end.0.into(), keys.into()],
            Event::KeysAsked { question } => [18, question.qp.into(), question.number],
            Event::AskAgain { qp } => [19, qp.into(), 0],
            Event::Turn { qp } => [21, qp.into(), 0],
            Event::Datagram { index } => [22, index.into(), 0],
        }
    }
}

/// The events, those of one instant in the order in which they were added.
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
    /// The earliest is the greatest, which is what the heap yields first.
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

    /// When the next one is due, and its number among all.
    pub(super) fn next(&self) -> Option<(u64, u64)> {
        self.heap.peek().map(|entry| (entry.at_ns, entry.sequence))
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|entry| entry.event)
    }
}
