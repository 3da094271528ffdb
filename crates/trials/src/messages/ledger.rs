//! The known facts about the messages from one session to one port.

use std::collections::{BTreeMap, BTreeSet};

/// A path of messages: a session in one incarnation of its node, and the port of one incarnation of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Path {
    pub(super) from: (u32, u32, u32),
    pub(super) to: (u32, u32),
}

#[derive(Debug, Default)]
struct Stream {
    /// Number of the last message that a session began to send.
    last_begun: u64,
    /// Number of the last message that arrived.
    last_arrived: u64,
    /// Messages that were certainly sent and have not arrived.
    sent: BTreeSet<u64>,
    /// Messages of which the sender knows that they were not sent.
    unsent: BTreeSet<u64>,
}

/// Load of one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Load {
    /// Maximum number of messages in flight to the port or in its queue.
    in_flight: u64,
    /// Number of messages begun so far.
    begun: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    streams: BTreeMap<Path, Stream>,
    /// Loads by node, for all its incarnations: a message to one may arrive at the next.
    loads: BTreeMap<u32, Load>,
}

impl Ledger {
    /// Records the start of a message; returns its number.
    pub(super) fn begin(&mut self, path: Path) -> u64 {
        let load = self.loads.entry(path.to.0).or_default();
        load.in_flight += 1;
        load.begun += 1;
        let stream = self.streams.entry(path).or_default();
        stream.last_begun += 1;
        stream.last_begun
    }

    /// Records that the message is in the port's queue; the node's incarnation is now `incarnation`.
    pub(super) fn record_sent(&mut self, path: Path, incarnation: u32, number: u64) {
        let stream = self.streams.get_mut(&path).expect("the operation began");
        // The message may have arrived before its sender learnt of it. If the node was restarted, it is unknown which
        // incarnation received the message.
        if number > stream.last_arrived && incarnation == path.to.1 {
            stream.sent.insert(number);
        }
    }

    /// Records that the sender got the error that the message was not sent.
    pub(super) fn record_unsent(&mut self, path: Path, number: u64) -> Result<(), String> {
        let stream = self.streams.get_mut(&path).expect("the operation began");
        stream.unsent.insert(number);
        if stream.last_arrived == number { Err("the message has arrived".to_owned()) } else { Ok(()) }
    }

    /// Records that the message has left the port's queue, or will not arrive.
    pub(super) fn record_departure(&mut self, path: Path) {
        if let Some(load) = self.loads.get_mut(&path.to.0) {
            load.in_flight = load.in_flight.saturating_sub(1);
        }
    }

    pub(super) fn load(&self, path: Path) -> Load {
        self.loads.get(&path.to.0).copied().unwrap_or_default()
    }

    /// Returns an upper bound of the other messages in flight or queued at any time since the load was `before`.
    pub(super) fn others_since(&self, path: Path, before: Load) -> u64 {
        before.in_flight + (self.load(path).begun - before.begun) - 1
    }

    /// Records that the message has arrived at its node in that incarnation.
    pub(super) fn record_arrival(&mut self, path: Path, incarnation: u32, number: u64) -> Result<(), String> {
        self.record_departure(path);
        let Some(stream) = self.streams.get_mut(&path).filter(|stream| number <= stream.last_begun) else {
            return Err("no session sent it there".to_owned());
        };
        if stream.unsent.contains(&number) {
            return Err("the sender got an error that says that the message was not sent".to_owned());
        }
        // A message to a node that restarts may arrive at the next incarnation.
        if incarnation < path.to.1 || incarnation > path.to.1 && stream.sent.contains(&number) {
            return Err(format!(
                "the message arrived in the wrong incarnation of its receiver, {incarnation}"
            ));
        }
        if number <= stream.last_arrived {
            return Err(format!("the message arrived after message {}", stream.last_arrived));
        }
        stream.last_arrived = number;
        let later = stream.sent.split_off(&number);
        let lost = std::mem::replace(&mut stream.sent, later);
        stream.sent.remove(&number);
        match lost.first() {
            // Messages may be lost with their node.
            Some(lost) if incarnation == path.to.1 => {
                Err(format!("message {lost} was sent before this message, but never arrived"))
            }
            _ => Ok(()),
        }
    }

    /// Returns a message that was sent to a port that still exists, and never arrived.
    pub(super) fn missing(&self, is_alive: impl Fn((u32, u32)) -> bool) -> Option<(Path, u64)> {
        let mut alive = self.streams.iter().filter(|(path, _)| is_alive(path.to));
        alive.find_map(|(path, stream)| Some((*path, *stream.sent.first()?)))
    }
}
