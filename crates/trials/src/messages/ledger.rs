//! What is known of the messages from one session to one port: which were sent, and which have come.

use std::collections::{BTreeMap, BTreeSet};

/// A session in one incarnation of its node, and the port of one incarnation of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Path {
    pub(super) from: (u32, u32, u32),
    pub(super) to: (u32, u32),
}

#[derive(Debug, Default)]
struct Stream {
    /// The number of the last that was sent, or begun to be.
    last_begun: u64,
    /// The number of the last that came.
    last_come: u64,
    /// Those that were sent for sure, and have not come.
    sent: BTreeSet<u64>,
    /// Those that will not come.
    denied: BTreeSet<u64>,
}

/// How much one port has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Load {
    /// Messages on their way to it, or in its queue, at most.
    under_way: u64,
    /// Messages that were ever begun to be sent to it.
    begun: u64,
}

/// Everything about the messages of a trial.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    streams: BTreeMap<Path, Stream>,
    /// Of the ports of each node, in all its incarnations: what is on its way to one may come to the next.
    loads: BTreeMap<u32, Load>,
}

impl Ledger {
    /// Somebody begins to send; the number of the message.
    pub(super) fn begin(&mut self, path: Path) -> u64 {
        let load = self.loads.entry(path.to.0).or_default();
        load.under_way += 1;
        load.begun += 1;
        let stream = self.streams.entry(path).or_default();
        stream.last_begun += 1;
        stream.last_begun
    }

    /// It is in the queue of the port, the incarnation of whose node is now `incarnation`.
    pub(super) fn sent(&mut self, path: Path, incarnation: u32, number: u64) {
        let stream = self.streams.get_mut(&path).expect("it began");
        // It may have been received before its sender has heard of that, and who can tell by which incarnation after the first.
        if number > stream.last_come && incarnation == path.to.1 {
            stream.sent.insert(number);
        }
    }

    /// Its sender was told that it was not sent.
    pub(super) fn denied(&mut self, path: Path, number: u64) -> Result<(), String> {
        let stream = self.streams.get_mut(&path).expect("it began");
        stream.denied.insert(number);
        if stream.last_come == number { Err("it was received".to_owned()) } else { Ok(()) }
    }

    /// It takes no room of the port any more, nor is any kept for it.
    pub(super) fn unload(&mut self, path: Path) {
        if let Some(load) = self.loads.get_mut(&path.to.0) {
            load.under_way = load.under_way.saturating_sub(1);
        }
    }

    pub(super) fn load(&self, path: Path) -> Load {
        self.loads.get(&path.to.0).copied().unwrap_or_default()
    }

    /// How many others, at most, were on their way or in the queue at any time since the load was `before`.
    pub(super) fn others_since(&self, path: Path, before: Load) -> u64 {
        before.under_way + (self.load(path).begun - before.begun) - 1
    }

    /// It has come, to its node in that incarnation.
    pub(super) fn came(&mut self, path: Path, incarnation: u32, number: u64) -> Result<(), String> {
        self.unload(path);
        let Some(stream) = self.streams.get_mut(&path).filter(|stream| number <= stream.last_begun) else {
            return Err("nobody sent it there".to_owned());
        };
        if stream.denied.contains(&number) {
            return Err("its sender had been told that it was not sent".to_owned());
        }
        // One that waits for a node that has died is sent to the one that comes back.
        if incarnation < path.to.1 || incarnation > path.to.1 && stream.sent.contains(&number) {
            return Err(format!("it came in life {incarnation}"));
        }
        if number <= stream.last_come {
            return Err(format!("it came after message {}", stream.last_come));
        }
        stream.last_come = number;
        let later = stream.sent.split_off(&number);
        let lost = std::mem::replace(&mut stream.sent, later);
        stream.sent.remove(&number);
        match lost.first() {
            // What died with the node is not lost.
            Some(lost) if incarnation == path.to.1 => {
                Err(format!("message {lost} was sent before it, and never came"))
            }
            _ => Ok(()),
        }
    }

    /// A message that was sent to a port that is still there, and never came.
    pub(super) fn missing(&self, is_there: impl Fn((u32, u32)) -> bool) -> Option<(Path, u64)> {
        let mut there = self.streams.iter().filter(|(path, _)| is_there(path.to));
        there.find_map(|(path, stream)| Some((*path, *stream.sent.first()?)))
    }
}
