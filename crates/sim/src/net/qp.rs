//! One end of a lane of a connection, and, where processors copy, the requests that were posted there.

use std::collections::VecDeque;

use halite_fabric::{Key, RemoteAddress, Status, WorkId};

use halite_mem::Window;

use super::end::EndId;

/// Where a request's bytes are at the requester.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// Copied when it was posted.
    Inline,
    /// In a registered segment, from which they are taken when they leave.
    Registered { key: usize, offset: u64 },
}

/// The operation of a request; its lengths and places were checked at the requester.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verb {
    Read { key: usize, offset: u64, remote: RemoteAddress, len: u64 },
    Write { source: Source, remote: RemoteAddress, len: u64, imm: Option<u32> },
    Send { len: u64, imm: u32 },
    FetchAdd { remote: RemoteAddress, add: u64 },
    CompareSwap { remote: RemoteAddress, expected: u64, new: u64 },
}

impl Verb {
    /// Payload on the way to the target.
    pub(super) fn outbound_bytes(&self) -> u64 {
        match *self {
            Verb::Write { len, .. } | Verb::Send { len, .. } => len,
            Verb::Read { .. } | Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => 0,
        }
    }

    /// Whether the answer carries anything, so that a later answer does not stand for it.
    pub(super) fn has_answer(&self) -> bool {
        matches!(self, Verb::Read { .. } | Verb::FetchAdd { .. } | Verb::CompareSwap { .. })
    }

    /// Whether its arrival consumes a receive of the target.
    pub(super) fn needs_receive(&self) -> bool {
        matches!(self, Verb::Send { .. } | Verb::Write { imm: Some(_), .. })
    }

    /// The memory of the target that it names.
    pub(super) fn remote(&self) -> Option<RemoteAddress> {
        match *self {
            Verb::Send { .. } => None,
            Verb::Read { remote, .. }
            | Verb::Write { remote, .. }
            | Verb::FetchAdd { remote, .. }
            | Verb::CompareSwap { remote, .. } => Some(remote),
        }
    }

    /// The same, of other memory.
    pub(super) fn with_key(mut self, key: Key) -> Verb {
        match &mut self {
            Verb::Send { .. } => {}
            Verb::Read { remote, .. }
            | Verb::Write { remote, .. }
            | Verb::FetchAdd { remote, .. }
            | Verb::CompareSwap { remote, .. } => remote.key = key,
        }
        self
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Verb::Read { .. } => "read",
            Verb::Write { imm: None, .. } => "write",
            Verb::Write { imm: Some(_), .. } => "write_imm",
            Verb::Send { .. } => "send",
            Verb::FetchAdd { .. } => "fetch_add",
            Verb::CompareSwap { .. } => "compare_swap",
        }
    }
}

/// A request that has been posted and has not completed.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) id: WorkId,
    pub(super) signalled: bool,
    pub(super) solicited: bool,
    pub(super) verb: Verb,
    /// The segment that is its own end, which may have been taken back since.
    pub(super) local: Option<Window>,
    /// When it may be begun with.
    pub(super) ready_ns: u64,
    /// Whether any packet of it has left.
    pub(super) departed: bool,
    /// Whether the target has done it.
    pub(super) delivered: bool,
    /// Whether we know that.
    pub(super) acknowledged: bool,
    /// When its acknowledgement is known without an event, because no completion is due; the same holds for all earlier
    /// requests.
    pub(super) known_ns: Option<u64>,
    pub(super) status: Status,
    /// What an atomic found.
    pub(super) old: u64,
    /// How much of a read has been sent back.
    pub(super) answered: u64,
    pub(super) attempts: u32,
    pub(super) inline: Vec<u8>,
}

/// One end of a lane; the other end's index is this one's with the lowest bit flipped.
#[derive(Debug)]
pub(super) struct Qp {
    /// The end of the connection that it belongs to.
    pub(super) end: EndId,
    /// Posted and not completed, in order.
    pub(super) outstanding: VecDeque<Work>,
    /// The number of the first of them.
    pub(super) first: u64,
    /// A poster found the queue full and waits for the room event.
    pub(super) wants_room: bool,
    /// The number of the one being sent, how much of it has been, and how often its next packet was lost.
    pub(super) departing: u64,
    pub(super) offset: u64,
    pub(super) attempts: u32,
    /// Whether a departure is scheduled, or waits for its host.
    pub(super) busy: bool,
    /// Until when the posting processor is busy with what was posted.
    pub(super) posted_ns: u64,
    /// When the last packet lands at the peer; and the last answer here.
    pub(super) landed_ns: u64,
    pub(super) answered_ns: u64,
    /// Packets that have arrived here and wait for a receive.
    pub(super) stalled: VecDeque<u32>,
}

impl Qp {
    pub(super) fn new(end: EndId) -> Qp {
        Qp {
            end,
            outstanding: VecDeque::new(),
            first: 0,
            wants_room: false,
            departing: 0,
            offset: 0,
            attempts: 0,
            busy: false,
            posted_ns: 0,
            landed_ns: 0,
            answered_ns: 0,
            stalled: VecDeque::new(),
        }
    }

    pub(super) fn work(&mut self, number: u64) -> Option<&mut Work> {
        let index = number.checked_sub(self.first)?;
        self.outstanding.get_mut(index as usize)
    }
    /// The poster is gone, and gets no completion.
    pub(super) fn forget(&mut self) {
        self.first += self.outstanding.len() as u64;
        self.outstanding.clear();
        self.departing = self.first;
        self.offset = 0;
    }
}
