//! Completions: what polling returns.

use crate::{PeerId, WorkId};

/// How a work request ended, in verbs' words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Done.
    Success,
    /// The key or range is not one that the peer registered.  Nothing was done, or a part, if the key was taken back meanwhile.
    /// Where the provider is a network, the connection ends with it; else what was posted behind it goes on.
    RemoteAccess,
    /// The key is one that the peer registered, and that this process lacked the means to map.  Nothing was done.
    Unmapped,
    /// The peer went away.  The request may have been done in part or in whole.
    PeerGone,
    /// Retries ran out (networks only).  The request may have been done in part or in whole.
    RetryExceeded,
    /// Given up because an earlier request of the same queue failed.  Nothing was done.
    Flushed,
}

/// What completed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CompletionKind {
    /// One of our requests without a result of its own.
    Done {
        /// The request.
        id: WorkId,
    },
    /// One of our atomics; `old` is what the word held before.
    Atomic {
        /// The request.
        id: WorkId,
        /// The word's value before.
        old: u64,
    },
    /// A message of the peer arrived.
    Received {
        /// Its bytes: a private copy.
        bytes: Vec<u8>,
        /// Its immediate.
        imm: u32,
    },
    /// A write with immediate of the peer has landed.
    Notified {
        /// Its immediate.
        imm: u32,
    },
}

/// One entry of a completion queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// At whom the request was aimed, or from whom the message came.
    pub peer: PeerId,
    /// How it ended; arrivals are always [`Status::Success`].
    pub status: Status,
    /// What ended.
    pub kind: CompletionKind,
}
