//! Completion queue entries: completed requests, and arrived messages and immediates.

use crate::{PeerId, WorkId};

/// The outcome of a work request, as in verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The request succeeded.
    Success,
    /// The peer has no such key, or the range exceeds its segment. The request had no effect, or a partial one if the
    /// key was deregistered during it. Over a network, the connection then ends; in shared memory, later requests are
    /// executed.
    RemoteAccess,
    /// This process lacked the resources to map the key's segment. The request had no effect.
    Unmapped,
    /// The peer is gone. The request may have been executed, in part or in full.
    PeerGone,
    /// The retry limit was reached (networks only). The request may have been executed, in part or in full.
    RetryExceeded,
    /// The request was dropped because an earlier one in the same queue failed. It had no effect.
    Flushed,
}

/// The kind of a completion, and its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CompletionKind {
    /// A request other than an atomic completed.
    Done {
        /// The request.
        id: WorkId,
    },
    /// An atomic completed; `old` is valid only if the status is [`Status::Success`].
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
    /// A write with immediate from the peer arrived; its bytes are in memory.
    Notified {
        /// The immediate.
        imm: u32,
    },
}

/// An entry of a completion queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The target of the completed request, or the sender of the message or immediate.
    pub peer: PeerId,
    /// Status of the request; always [`Status::Success`] for a message or an immediate.
    pub status: Status,
    /// What completed or arrived.
    pub kind: CompletionKind,
}
