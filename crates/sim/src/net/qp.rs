//! One end of a lane of a connection, and, if processors copy, the requests that were posted there.

use std::collections::VecDeque;

use halite_fabric::{Key, RemoteAddress, Status, WorkId};

use halite_mem::Window;

use super::end::EndId;

/// The source of a request's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// The bytes were copied when the request was posted.
    Inline,
    /// The bytes are in a registered segment, which is read when they leave.
    Registered { key: usize, offset: u64 },
}

/// The operation of a request. Its lengths and local memory were checked when it was posted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verb {
    Read { key: usize, offset: u64, remote: RemoteAddress, len: u64 },
    Write { source: Source, remote: RemoteAddress, len: u64, imm: Option<u32> },
    Send { len: u64, imm: u32 },
    FetchAdd { remote: RemoteAddress, add: u64 },
    CompareSwap { remote: RemoteAddress, expected: u64, new: u64 },
}

impl Verb {
    /// Returns the length of the payload that goes to the target.
    pub(super) fn outbound_bytes(&self) -> u64 {
        match *self {
            Verb::Write { len, .. } | Verb::Send { len, .. } => len,
            Verb::Read { .. } | Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => 0,
        }
    }

    /// Returns true if the response carries data, so that the acknowledgement of a later request does not cover it.
    pub(super) fn has_response(&self) -> bool {
        matches!(self, Verb::Read { .. } | Verb::FetchAdd { .. } | Verb::CompareSwap { .. })
    }

    /// Returns true if the arrival consumes a receive of the target.
    pub(super) fn needs_receive(&self) -> bool {
        matches!(self, Verb::Send { .. } | Verb::Write { imm: Some(_), .. })
    }

    /// Returns the target memory.
    pub(super) fn remote(&self) -> Option<RemoteAddress> {
        match *self {
            Verb::Send { .. } => None,
            Verb::Read { remote, .. }
            | Verb::Write { remote, .. }
            | Verb::FetchAdd { remote, .. }
            | Verb::CompareSwap { remote, .. } => Some(remote),
        }
    }

    /// Returns the same operation with another key.
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
    /// Local segment of the request, which may be deregistered by now.
    pub(super) local: Option<Window>,
    /// Time from which the request may be sent.
    pub(super) ready_ns: u64,
    /// True if a piece of the request has left.
    pub(super) has_departed: bool,
    /// True if the target has executed or refused the request.
    pub(super) is_executed: bool,
    /// True if the requester has received the acknowledgement.
    pub(super) is_acknowledged: bool,
    /// Arrival time of a lazy acknowledgement, which also covers all earlier requests.
    pub(super) lazy_ack_ns: Option<u64>,
    pub(super) status: Status,
    /// Value of the word before an atomic.
    pub(super) old: u64,
    /// Number of bytes of a read that have been sent back.
    pub(super) response_bytes: u64,
    pub(super) attempts: u32,
    pub(super) inline: Vec<u8>,
}

/// One end of a lane; the other end's index is this one's with the lowest bit flipped.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) end: EndId,
    /// Outstanding requests, in order.
    pub(super) outstanding: VecDeque<Work>,
    /// Number of the first outstanding request.
    pub(super) first: u64,
    /// True if a poster found the queue full and waits for the room event.
    pub(super) wants_room: bool,
    /// Number of the request being sent.
    pub(super) departing: u64,
    /// Bytes of that request sent so far.
    pub(super) offset: u64,
    /// Number of times that the next packet of that request was lost.
    pub(super) attempts: u32,
    /// True while the event that sends the next piece is scheduled, or deferred until the host runs.
    pub(super) is_sending: bool,
    /// Time until which the posting processor is busy with posts.
    pub(super) posted_ns: u64,
    /// Time at which the last packet lands at the peer.
    pub(super) landed_ns: u64,
    /// Time at which the last piece of a response lands here.
    pub(super) response_landed_ns: u64,
    /// Packets that arrived here and wait for a receive.
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
            is_sending: false,
            posted_ns: 0,
            landed_ns: 0,
            response_landed_ns: 0,
            stalled: VecDeque::new(),
        }
    }

    pub(super) fn work(&mut self, number: u64) -> Option<&mut Work> {
        let index = number.checked_sub(self.first)?;
        self.outstanding.get_mut(index as usize)
    }

    /// Removes all outstanding requests.
    pub(super) fn take_outstanding(&mut self) -> VecDeque<Work> {
        let outstanding = std::mem::take(&mut self.outstanding);
        self.first += outstanding.len() as u64;
        self.departing = self.first;
        self.offset = 0;
        outstanding
    }
}
