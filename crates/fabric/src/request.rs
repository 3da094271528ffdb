//! Work requests, and the memory that work requests access.

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
    /// Bytes that [`Fabric::post`](crate::Fabric::post) copies before it returns: the source of a write, at most
    /// [`Capabilities::inline_bytes_max`](crate::Capabilities::inline_bytes_max) bytes.
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
        /// Destination in local memory, which must be registered.
        local: Local<'a>,
        /// Source in the peer's memory.
        remote: RemoteAddress,
    },
    /// Copies from local memory to the peer's memory.
    Write {
        /// Source: local memory, or inline bytes.
        local: Local<'a>,
        /// Destination in the peer's memory.
        remote: RemoteAddress,
    },
    /// Copies from local memory to the peer's memory, then delivers a completion with `imm` to the peer.
    ///
    /// When the peer polls that completion, the bytes are in the peer's memory. Before that, the bytes may be missing,
    /// even if the request has already completed at this end, and the write is not ordered with other accesses to the
    /// same bytes.
    WriteImm {
        /// Source: local memory, or inline bytes.
        local: Local<'a>,
        /// Destination in the peer's memory.
        remote: RemoteAddress,
        /// Immediate data, which the peer's completion contains.
        imm: u32,
    },
    /// Sends a message; the peer receives a completion with the bytes and `imm`.
    Send {
        /// The bytes of the message, at most [`crate::Capabilities::send_bytes_max`].
        bytes: &'a [u8],
        /// Immediate data, which the peer's completion contains.
        imm: u32,
    },
    /// Adds to an aligned 8-byte word of the peer's memory. The completion contains the previous value.
    FetchAdd {
        /// Address of the word.
        remote: RemoteAddress,
        /// The addend. The sum wraps at overflow.
        add: u64,
    },
    /// Replaces an aligned 8-byte word of the peer's memory if the word equals `expected`. The completion contains the
    /// previous value.
    CompareSwap {
        /// Address of the word.
        remote: RemoteAddress,
        /// The value that the word must have for the replacement.
        expected: u64,
        /// The value that replaces the word.
        new: u64,
    },
}

/// One entry of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    /// Id that the completion of this request returns to the poster.
    pub id: WorkId,
    /// The operation to execute.
    pub operation: Operation<'a>,
    /// True if the request produces a completion when it succeeds. A failed request always produces a completion.
    pub signalled: bool,
    /// For a message or an immediate: true if the arrival rings the peer's doorbell (verbs' solicited event). Otherwise
    /// the arrival wakes no thread, and the peer's next poll returns it.
    ///
    /// For a write: true if a thread waits for the completion of the write. Otherwise the peer may delay the
    /// acknowledgement until its next poll, and first process the bytes that arrived.
    pub solicited: bool,
}
