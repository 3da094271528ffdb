//! One end of a lane of a connection, and, where processors copy, the requests that were posted there.

use std::collections::VecDeque;

use halite_fabric::{Key, RemoteAddress, Status, WorkId};

use halite_mem::Window;

use super::end::EndId;

/// The source of a request's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// Copied when posted.
    Inline,
    /// In a registered segment, read when they leave.
    Registered { key: usize, offset: u64 },
}

/// The operation of a request; the requester has checked lengths and places.
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

    /// Whether the answer carries data, so that a later answer does not cover it.
    pub(super) fn has_answer(&self) -> bool {
        matches!(self, Verb::Read { .. } | Verb::FetchAdd { .. } | Verb::CompareSwap { .. })
    }

    /// Whether its arrival consumes a receive of the target.
    pub(super) fn needs_receive(&self) -> bool {
        matches!(self, Verb::Send { .. } | Verb::Write { imm: Some(_), .. })
    }

    /// The target memory.
    pub(super) fn remote(&self) -> Option<RemoteAddress> {
        match *self {
            Verb::Send { .. } => None,
            Verb::Read { remote, .. }
            | Verb::Write { remote, .. }
            | Verb::FetchAdd { remote, .. }
            | Verb::CompareSwap { remote, .. } => Some(remote),
        }
    }

    /// The same operation with another key.
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

/// An outstanding request.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) id: WorkId,
    pub(super) signalled: bool,
    pub(super) solicited: bool,
    pub(super) verb: Verb,
    /// Its local segment, which may be deregistered by now.
    pub(super) local: Option<Window>,
    /// Earliest start.
    pub(super) ready_ns: u64,
    /// Whether a packet of it has left.
    pub(super) departed: bool,
    /// Whether the target has executed it.
    pub(super) delivered: bool,
    /// Whether the requester knows that.
    pub(super) acknowledged: bool,
    /// When its acknowledgement is known without an event, since no completion is due; then the same holds for all
    /// earlier requests.
    pub(super) known_ns: Option<u64>,
    pub(super) status: Status,
    /// The word before an atomic.
    pub(super) old: u64,
    /// Bytes of a read that have been sent back.
    pub(super) answered: u64,
    pub(super) attempts: u32,
    pub(super) inline: Vec<u8>,
}

/// One end of a lane; the other end's index is this one's with the lowest bit flipped.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) end: EndId,
    /// Outstanding requests, in order.
    pub(super) outstanding: VecDeque<Work>,
    /// Number of the first one.
    pub(super) first: u64,
    /// Whether a poster that found the queue full waits for the room event.
    pub(super) wants_room: bool,
    /// Number of the request being sent, its bytes sent so far, and losses of its next packet.
    pub(super) departing: u64,
    pub(super) offset: u64,
    pub(super) attempts: u32,
    /// Whether a departure is scheduled, or waits for its host.
    pub(super) busy: bool,
    /// Until when the posting processor is busy with posts.
    pub(super) posted_ns: u64,
    /// When the last packet lands at the peer, and the last answer here.
    pub(super) landed_ns: u64,
    pub(super) answered_ns: u64,
    /// Packets here that wait for a receive.
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
    /// Drops the requests of a poster that is gone.
    pub(super) fn forget(&mut self) {
        self.first += self.outstanding.len() as u64;
        self.outstanding.clear();
        self.departing = self.first;
        self.offset = 0;
    }
}
