//! Work requests, and the memory that they name.

use crate::{Key, WorkId};

/// An address in a peer's registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteAddress {
    /// Key of the segment.
    pub key: Key,
    /// Offset in the segment, in bytes.
    pub offset: u64,
}

/// The local source or destination of a request.
#[derive(Clone, Copy, Debug)]
pub enum Local<'a> {
    /// A range of a locally registered segment.
    Registered {
        /// Key of the segment.
        key: Key,
        /// Offset in the segment, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Bytes that `post` copies before it returns. Only as a source, up to
    /// [`Capabilities::inline_bytes_max`](crate::Capabilities::inline_bytes_max).
    Inline(&'a [u8]),
}

impl Local<'_> {
    /// Returns the length in bytes.
    pub fn len_bytes(&self) -> u64 {
        match self {
            Local::Registered { len, .. } => *len,
            Local::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Copies from the peer's memory to local memory.
    Read {
        /// Destination; must be registered.
        local: Local<'a>,
        /// Source.
        remote: RemoteAddress,
    },
    /// Copies from local memory to the peer's.
    Write {
        /// Source.
        local: Local<'a>,
        /// Destination.
        remote: RemoteAddress,
    },
    /// Copies from local memory to the peer's, then delivers a completion with `imm` to the peer.
    ///
    /// When the peer polls that completion, the bytes are in its memory. Before, they may not be, even if the request
    /// has already completed at this end, and other accesses to the same bytes are not ordered with the write.
    WriteImm {
        /// Source.
        local: Local<'a>,
        /// Destination.
        remote: RemoteAddress,
        /// Immediate for the peer's completion.
        imm: u32,
    },
    /// Sends a message; the peer receives a completion with the bytes and `imm`.
    Send {
        /// The message, at most [`crate::Capabilities::send_bytes_max`].
        bytes: &'a [u8],
        /// Immediate for the peer's completion.
        imm: u32,
    },
    /// Adds to an aligned 8-byte word; the completion carries the old value.
    FetchAdd {
        /// The word.
        remote: RemoteAddress,
        /// Addend; the sum wraps.
        add: u64,
    },
    /// Replaces an aligned 8-byte word if it holds `expected`; the completion carries the old value.
    CompareSwap {
        /// The word.
        remote: RemoteAddress,
        /// Value that the word must hold.
        expected: u64,
        /// Value that replaces it.
        new: u64,
    },
}

/// One entry of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    /// Id of the request, returned in its completion.
    pub id: WorkId,
    /// The operation.
    pub operation: Operation<'a>,
    /// True if the request produces a completion when it succeeds. A failed request always does.
    pub signalled: bool,
    /// For a message or an immediate: true if it rings the peer's doorbell (verbs' solicited event). Otherwise it wakes
    /// no thread, and the peer finds it in its next poll.
    ///
    /// For a write: true if a thread waits for its completion. Otherwise the peer may delay the acknowledgement until
    /// its next poll, and first process the bytes that arrived.
    pub solicited: bool,
}
