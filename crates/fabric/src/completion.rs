//! Completions of requests, and arrivals.

use crate::{PeerId, WorkId};

/// The end of a work request, as in verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The request succeeded.
    Success,
    /// The peer has no such key, or the range exceeds its segment. Nothing was done, or a part if the key was
    /// deregistered meanwhile. Over a network the connection ends; otherwise later requests continue.
    RemoteAccess,
    /// This process lacked the resources to map the key's segment. Nothing was done.
    Unmapped,
    /// The peer is gone. The request may have been done in part or in whole.
    PeerGone,
    /// Retries ran out (networks only). The request may have been done in part or in whole.
    RetryExceeded,
    /// The request was dropped because an earlier one in the same queue failed. Nothing was done.
    Flushed,
}

/// The content of a completion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CompletionKind {
    /// A request without a result ended.
    Done {
        /// The request.
        id: WorkId,
    },
    /// An atomic ended; `old` is valid if it succeeded.
    Atomic {
        /// The request.
        id: WorkId,
        /// Value of the word before the atomic.
        old: u64,
    },
    /// A message from the peer arrived.
    Received {
        /// The message, as a private copy.
        bytes: Vec<u8>,
        /// The immediate.
        imm: u32,
    },
    /// The peer's write with immediate has landed.
    Notified {
        /// The immediate.
        imm: u32,
    },
}

/// An entry of a completion queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The target of the request, or the sender of the arrival.
    pub peer: PeerId,
    /// Status of the request; always [`Status::Success`] for arrivals.
    pub status: Status,
    /// The request or the arrival.
    pub kind: CompletionKind,
}
