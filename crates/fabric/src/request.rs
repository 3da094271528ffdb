//! Work requests: what is posted to a peer.

use crate::{Key, WorkId};

/// A place in a peer's registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteAddress {
    /// The segment.
    pub key: Key,
    /// Bytes from its start.
    pub offset: u64,
}

/// Where a request takes its bytes from, or puts them, on our side.
#[derive(Clone, Copy, Debug)]
pub enum Local<'a> {
    /// In a segment that we registered.
    Registered {
        /// The segment.
        key: Key,
        /// Bytes from its start.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Copied out of this slice before `post` returns.  Sources only, up to the inline limit.
    Inline(&'a [u8]),
}

impl Local<'_> {
    /// How many bytes it names.
    pub fn len_bytes(&self) -> u64 {
        match self {
            Local::Registered { len, .. } => *len,
            Local::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Copies from the peer's memory into ours.
    Read {
        /// Destination; must be registered.
        local: Local<'a>,
        /// Source.
        remote: RemoteAddress,
    },
    /// Copies from our memory into the peer's.
    Write {
        /// Source.
        local: Local<'a>,
        /// Destination.
        remote: RemoteAddress,
    },
    /// A write, after which the peer receives a completion with `imm`.
    ///
    /// The bytes are in place when the peer has polled that completion.  Until then they may be or not be, whatever
    /// our own completion says, and other accesses to the same bytes are in no order with them.
    WriteImm {
        /// Source.
        local: Local<'a>,
        /// Destination.
        remote: RemoteAddress,
        /// What the peer is told.
        imm: u32,
    },
    /// A message: the peer receives a completion with these bytes and `imm`.
    Send {
        /// The message, at most [`crate::Capabilities::send_bytes_max`].
        bytes: &'a [u8],
        /// Told along with it.
        imm: u32,
    },
    /// Adds to an aligned 8-byte word; the completion carries the old value.
    FetchAdd {
        /// The word.
        remote: RemoteAddress,
        /// What is added, wrapping.
        add: u64,
    },
    /// Replaces an aligned 8-byte word if it holds `expected`; the completion carries the old value.
    CompareSwap {
        /// The word.
        remote: RemoteAddress,
        /// What it must hold.
        expected: u64,
        /// What it then becomes.
        new: u64,
    },
}

/// One entry of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    /// Comes back in the completion.
    pub id: WorkId,
    /// What to do.
    pub operation: Operation<'a>,
    /// Whether a completion is wanted on success.  Failures always complete.
    pub signalled: bool,
    /// Whether a message or an immediate rings the peer's doorbell (verbs' solicited event).  One that does not is
    /// found by the peer's next poll, however late that is.
    pub solicited: bool,
}
