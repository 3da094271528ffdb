//! Requests of a stateless pair's requester, and their outcomes.

use core::ops::Range;

use super::wire::{Kind, NOTE_BYTES, SEND_BYTES_MAX};

/// Maximum number of posted requests.
pub(super) const POSTED_MAX: usize = 128;

/// A request to access the responder's memory, or to send a message to its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Reads `len` bytes. [`Outcome::Success`] returns them.
    Read {
        /// Address of the first byte in the responder's memory.
        address: u64,
        /// Number of bytes.
        len: usize,
    },
    /// Writes `bytes`.
    Write {
        /// Address of the first byte in the responder's memory.
        address: u64,
        /// The bytes to write.
        bytes: Vec<u8>,
    },
    /// Adds to an aligned 8-byte word, wrapping at overflow. [`Outcome::Success`] returns the word's previous value as
    /// 8 bytes in big-endian order.
    FetchAdd {
        /// Address of the word in the responder's memory.
        address: u64,
        /// The addend.
        add: u64,
    },
    /// Replaces an aligned 8-byte word if it equals `expected`. [`Outcome::Success`] returns the previous value, as for
    /// [`Work::FetchAdd`].
    CompareSwap {
        /// Address of the word in the responder's memory.
        address: u64,
        /// The value that the word must have for the replacement.
        expected: u64,
        /// The replacement.
        new: u64,
    },
    /// Sends a message of at most [`SEND_BYTES_MAX`] bytes to the responder's process. A message longer than the payload
    /// of a packet ([`set_payload_max`](super::Requester::set_payload_max)) arrives in several parts, each once and in any
    /// order; see [`Message`](super::Message).
    Send {
        /// The bytes of the message.
        bytes: Vec<u8>,
    },
    /// Writes `bytes`, and sends a message to the responder's process after it, both by one packet, which limits the note
    /// and the bytes together.
    WriteNote {
        /// Address of the first byte in the responder's memory.
        address: u64,
        /// The note and then the bytes to write, as in the packet.
        note_and_bytes: Vec<u8>,
    },
    /// Sends a message of at most one packet to the responder's process, which answers it.
    /// [`Outcome::Success`] returns the answer. Later requests of the requester wait until then.
    Call {
        /// The bytes of the message.
        bytes: Vec<u8>,
    },
}

impl Work {
    /// Returns the address in the responder's memory.
    pub(super) fn address(&self) -> u64 {
        match self {
            Work::Read { address, .. }
            | Work::Write { address, .. }
            | Work::WriteNote { address, .. }
            | Work::FetchAdd { address, .. }
            | Work::CompareSwap { address, .. } => *address,
            Work::Send { .. } | Work::Call { .. } => 0,
        }
    }

    /// Returns the number of bytes to divide among packets.
    pub(super) fn len(&self) -> usize {
        match self {
            Work::Read { len, .. } => *len,
            Work::Write { bytes, .. } | Work::Send { bytes } | Work::Call { bytes } => bytes.len(),
            Work::WriteNote { note_and_bytes, .. } => note_and_bytes.len(),
            Work::FetchAdd { .. } => 8,
            Work::CompareSwap { .. } => 16,
        }
    }

    /// Returns the number of bytes that the answers carry; 0 for a call, whose answer has any length.
    pub(super) fn answer_len(&self) -> usize {
        match self {
            Work::Read { len, .. } => *len,
            Work::Write { .. } | Work::WriteNote { .. } | Work::Send { .. } | Work::Call { .. } => 0,
            Work::FetchAdd { .. } | Work::CompareSwap { .. } => 8,
        }
    }

    /// Returns the address and the length in the header of the packet with `len` bytes at `offset`.
    pub(super) fn place(&self, offset: usize, len: usize) -> (u64, usize) {
        match self {
            // The responder checks the rest of the request with each packet, so a refused write changes nothing.
            Work::Write { address, bytes } => (address.wrapping_add(offset as u64), bytes.len() - offset),
            Work::Send { bytes } => ((bytes.len() as u64) << 32 | offset as u64, len),
            _ => (self.address().wrapping_add(offset as u64), len),
        }
    }

    /// Returns true if the request exceeds the maximum length of its kind. A packet has up to `payload_bytes` of payload.
    pub(super) fn is_too_long(&self, payload_bytes: usize) -> bool {
        match self {
            Work::Send { bytes } => bytes.len() > SEND_BYTES_MAX,
            Work::Call { bytes } => bytes.len() > payload_bytes,
            Work::WriteNote { note_and_bytes, .. } => {
                !(NOTE_BYTES..=payload_bytes).contains(&note_and_bytes.len())
            }
            _ => false,
        }
    }

    /// Returns the range of the answer to the packet with `len` bytes at `offset`: its offset within the bytes of all
    /// answers, and its length.
    pub(super) fn answer_range(&self, offset: usize, len: usize) -> (usize, usize) {
        if matches!(self, Work::Read { .. }) { (offset, len) } else { (0, self.answer_len()) }
    }

    /// Returns the kind of the request's packets.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Work::Read { .. } => Kind::Gd,
            Work::Write { .. } => Kind::Rd,
            Work::WriteNote { .. } => Kind::Rdm,
            Work::FetchAdd { .. } => Kind::FetchAdd,
            Work::CompareSwap { .. } => Kind::CompareSwap,
            Work::Send { .. } => Kind::Send,
            Work::Call { .. } => Kind::Call,
        }
    }

    /// Returns true if several packets may carry the request.
    pub(super) fn is_divisible(&self) -> bool {
        matches!(self, Work::Read { .. } | Work::Write { .. } | Work::Send { .. })
    }

    /// Returns true if the request must not be executed twice.
    pub(super) fn has_effect(&self) -> bool {
        !matches!(self, Work::Read { .. })
    }

    /// Returns the payload of the packet with the bytes of `range`. `operands` is a buffer for the operands of an
    /// atomic.
    pub(super) fn payload<'a>(&'a self, range: Range<usize>, operands: &'a mut [u8; 16]) -> &'a [u8] {
        let (first, second) = match self {
            Work::Read { .. } => return &[],
            Work::Write { bytes, .. } | Work::Send { bytes } | Work::Call { bytes } => return &bytes[range],
            Work::WriteNote { note_and_bytes, .. } => return &note_and_bytes[range],
            Work::FetchAdd { add, .. } => (*add, 0),
            Work::CompareSwap { expected, new, .. } => (*expected, *new),
        };
        operands[..8].copy_from_slice(&first.to_be_bytes());
        operands[8..].copy_from_slice(&second.to_be_bytes());
        &operands[range]
    }
}

/// The completion of a request, returned by [`Requester::poll_done`](super::Requester::poll_done).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    /// The id that the caller passed to [`Requester::post`](super::Requester::post).
    pub id: u64,
    /// The outcome of the request.
    pub outcome: Outcome,
}

/// The outcome of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The responder executed the request once. Contains the bytes that the request returns.
    Success(Vec<u8>),
    /// The grant does not permit the access, or the memory does not exist. Parts of a request of several packets may be
    /// done.
    Refused,
    /// The responder had no room for the request for T, or for the requester's patience if that is longer, and did not
    /// execute it.
    /// Parts of a request of several packets may be done.
    Busy,
    /// The responder does not answer, or the request became older than T. The request is done, done in part, or not
    /// done.
    MaybeDone,
}

/// The reason why [`Requester::post`](super::Requester::post) refused a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The requester already has the maximum number of outstanding requests.
    #[error(
        "this queue pair already has {POSTED_MAX} outstanding requests, the maximum; wait until one ends"
    )]
    Full,
    /// The request has 4 GiB or more.
    #[error("the request is too long: it may have at most 4 GiB - 1 bytes")]
    TooLong,
    /// The message, or the bytes of a write with a note, exceed their maximum.
    #[error(
        "the message is too long: a call or a write with a note may have {packet_bytes_max} bytes, a message \
         {SEND_BYTES_MAX}; write longer data to memory"
    )]
    MessageTooLong {
        /// Maximum payload of a packet of this requester.
        packet_bytes_max: usize,
    },
}
