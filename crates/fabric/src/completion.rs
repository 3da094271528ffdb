//! Completion queue entries: completed requests, and arrived messages and immediates.

use crate::{PeerId, WorkId};

/// The outcome of a work request, as in verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The request succeeded.
    Success,
    /// The peer has no such key, or the range exceeds the key's segment. The request had no effect, or a partial effect
    /// if the key was deregistered during the request. Over a network, the connection then ends; in shared memory,
    /// later requests are executed.
    RemoteAccess,
    /// This process lacked the resources to map the segment of the key. The request had no effect.
    Unmapped,
    /// The peer has gone. The request may have been executed, in part or in full.
    PeerGone,
    /// The peer did not respond before the retry limit (networks only). The request may have been executed, in part or
    /// in full.
    RetryExceeded,
    /// The fabric dropped the request, because an earlier request in the same queue failed. The request had no effect.
    Flushed,
}

/// The kind of a completion, and its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CompletionKind {
    /// A request other than an atomic completed.
    Done {
        /// Id of the request.
        id: WorkId,
    },
    /// An atomic completed. The field `old` is valid only if the status is [`Status::Success`].
    Atomic {
        /// Id of the request.
        id: WorkId,
        /// Value of the word before the atomic.
        old: u64,
    },
    /// A message from the peer arrived.
    Received {
        /// The bytes of the message, as a private copy.
        bytes: Vec<u8>,
        /// The immediate of the message.
        imm: u32,
    },
    /// A write with immediate from the peer arrived; its bytes are in memory.
    Notified {
        /// The immediate of the write.
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
    /// The kind of the completion, and its data.
    pub kind: CompletionKind,
}
