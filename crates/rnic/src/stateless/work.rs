//! Requests of a stateless pair's requester, and their outcomes.

use core::ops::Range;

use super::wire::{CALL_BYTES_MAX, Kind, NOTE_BYTES, NOTED_BYTES_MAX, PART_BYTES, SEND_BYTES_MAX};

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
    /// Writes at most [`NOTED_BYTES_MAX`] bytes, and sends the note, a message of [`NOTE_BYTES`], to the responder's
    /// process. Each packet of a long write carries the note, so the message arrives once per packet, each time with the
    /// number of bytes that this packet has written; see [`Message::written_bytes`](super::Message::written_bytes).
    WriteNote {
        /// Address of the first byte in the responder's memory.
        address: u64,
        /// The note, and then the bytes to write.
        note_and_bytes: Vec<u8>,
    },
    /// Sends a message of at most [`CALL_BYTES_MAX`] bytes to the responder's process, which receives it in one piece, and
    /// answers it. [`Outcome::Success`] returns the answer. Later requests of the requester wait for the answer.
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

    /// Returns the number of bytes to divide among packets, without the note of each packet.
    pub(super) fn len(&self) -> usize {
        match self {
            Work::Read { len, .. } => *len,
            Work::Write { bytes, .. } | Work::Send { bytes } | Work::Call { bytes } => bytes.len(),
            Work::WriteNote { note_and_bytes, .. } => note_and_bytes.len() - NOTE_BYTES,
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
    pub(super) fn header_fields(&self, offset: usize, len: usize) -> (u64, usize) {
        match self {
            // The responder checks the rest of the request with each packet, so a refused write changes nothing.
            Work::Write { address, bytes } => (address.wrapping_add(offset as u64), bytes.len() - offset),
            Work::WriteNote { address, note_and_bytes } => {
                (address.wrapping_add(offset as u64), note_and_bytes.len() - offset)
            }
            Work::Send { bytes } => ((bytes.len() as u64) << 32 | offset as u64, len),
            Work::Call { bytes } => (0, bytes.len() - offset),
            _ => (self.address().wrapping_add(offset as u64), len),
        }
    }

    /// Returns true if the request exceeds the maximum length of its kind.
    pub(super) fn is_too_long(&self) -> bool {
        match self {
            Work::Send { bytes } => bytes.len() > SEND_BYTES_MAX,
            Work::Call { bytes } => bytes.len() > CALL_BYTES_MAX,
            Work::WriteNote { note_and_bytes, .. } => {
                !(NOTE_BYTES..=NOTE_BYTES + NOTED_BYTES_MAX).contains(&note_and_bytes.len())
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

    /// Returns the number of bytes of the request that a packet with up to `payload_bytes` of payload carries;
    /// `usize::MAX` if one packet carries the whole request.
    pub(super) fn packet_bytes(&self, payload_bytes: usize) -> usize {
        match self {
            Work::Read { .. } | Work::Write { .. } | Work::Send { .. } => payload_bytes,
            Work::WriteNote { .. } => payload_bytes - NOTE_BYTES,
            Work::Call { bytes } if bytes.len() > payload_bytes => payload_bytes / PART_BYTES * PART_BYTES,
            Work::FetchAdd { .. } | Work::CompareSwap { .. } | Work::Call { .. } => usize::MAX,
        }
    }

    /// Returns true if the request must not be executed twice.
    pub(super) fn has_effect(&self) -> bool {
        !matches!(self, Work::Read { .. })
    }

    /// Writes the payload of the packet with the bytes of `range` to `target`, and returns its length.
    pub(super) fn write_payload(&self, range: Range<usize>, target: &mut [u8]) -> usize {
        let mut write = |parts: [&[u8]; 2]| {
            let (begin, len) = (parts[0].len(), parts[0].len() + parts[1].len());
            target[..begin].copy_from_slice(parts[0]);
            target[begin..len].copy_from_slice(parts[1]);
            len
        };
        match self {
            Work::Read { .. } => 0,
            Work::Write { bytes, .. } | Work::Send { bytes } | Work::Call { bytes } => {
                write([&bytes[range], &[]])
            }
            Work::WriteNote { note_and_bytes, .. } => {
                let (note, bytes) = note_and_bytes.split_at(NOTE_BYTES);
                write([note, &bytes[range]])
            }
            Work::FetchAdd { add, .. } => write([&add.to_be_bytes(), &[]]),
            Work::CompareSwap { expected, new, .. } => write([&expected.to_be_bytes(), &new.to_be_bytes()]),
        }
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
    /// execute it. Parts of a request of several packets may be done.
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
        "the message is too long: a call may have {CALL_BYTES_MAX} bytes, a message {SEND_BYTES_MAX}, and a write with a \
         note {NOTED_BYTES_MAX}; write longer data to memory"
    )]
    MessageTooLong,
}
