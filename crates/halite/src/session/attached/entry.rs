//! Requests and replies of an attached session in shared memory: lines of [`halite_mem::exchange`].
//!
//! ```text
//!   request   word 0: | after u16 | length - 1, u16 | slot u8 | kind u8 | tag |
//!             a message:  words 1 to 7: the body of a socket's message, if it has at most 56 bytes
//!             an access:  word 1: handle | word 2: its session | word 3: offset | words 4 to 7: operands or bytes
//!             a call:     word 1: function, node | word 2: length, longest answer | word 3: timeout in ns | input
//!             a receive:  word 1: the server's id
//!             an answer:  word 1: the call's id | word 2: id of the server that receives next | word 3: length | output
//!             of a buffer's bytes: word 4: the buffer's id | word 5: offset in the buffer | word 6: length
//!   reply     word 0: | length, 40 bits | status u8 | tag |        words 1 to 7: up to 56 bytes
//! ```
//! Longer bodies and bytes are in the data of the slot. `after` is the number of socket messages that the client had
//! sent before this line; the node executes the request after it has started all of these messages.

use halite_mem::exchange::{Line, SLOTS, TAG_BITS, WORDS};
use halite_tier::access::SlotRef;

use crate::session::Lh;

/// Maximum number of bytes that a line carries, as a body or as a value.
pub(crate) const INLINE_BYTES_MAX: usize = (WORDS - 1) * 8;
/// Maximum number of operand bytes that the line of an access carries.
pub(crate) const OPERAND_BYTES_MAX: usize = (WORDS - 4) * 8;
/// Maximum number of bytes of a call's input or output in the requests [`Kind::Call`] and [`Kind::Answer`], whose bytes
/// pass through the node's own memory. Longer ones are messages.
pub(crate) const CALL_BYTES_MAX: usize = 4096;
/// The id of no server, in a [`Kind::Answer`] that receives no call.
pub(crate) const NO_SERVER: u64 = u64::MAX;
/// Bit that marks an id in a socket message as the id of a request in shared memory; the other bits are the slot's
/// number.
const SLOT_ID: u64 = 1 << 63;
/// Id of a message without a body, which wakes the other end to check the shared memory.
pub(crate) const WAKE_ID: u64 = u64::MAX;

/// First byte of the body by which the node refuses an access to a buffer; a second byte is 1 if the access was done in
/// part. The client then copies the bytes itself.
pub(crate) const COPY_INSTEAD: u8 = 1;

/// Kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A request in the format of the socket.
    Message = 1,
    Read,
    Write,
    FetchAdd,
    CompareSwap,
    /// A read into a buffer of the client.
    ReadBuffer,
    /// A write from a buffer of the client.
    WriteBuffer,
    /// A call of a function.
    Call,
    /// A receive of one call.
    Receive,
    /// An answer to a call, which may also receive the next call.
    Answer,
}

/// The first word of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) slot: usize,
    /// Length in bytes, from 1 to 64 Ki.
    pub(crate) len: usize,
    pub(crate) after: u16,
}

impl Head {
    #[inline]
    pub(crate) fn pack(self) -> u64 {
        let len = (self.len - 1) as u64 & 0xFFFF;
        u64::from(self.after) << 48 | len << 32 | (self.slot as u64) << 24 | (self.kind as u64) << TAG_BITS
    }

    /// Parses the first word of a request, which the client wrote. Returns `None` if the kind is unknown.
    #[inline]
    pub(crate) fn unpack(word: u64) -> Option<Head> {
        let kind = match (word >> TAG_BITS) as u8 {
            1 => Kind::Message,
            2 => Kind::Read,
            3 => Kind::Write,
            4 => Kind::FetchAdd,
            5 => Kind::CompareSwap,
            6 => Kind::ReadBuffer,
            7 => Kind::WriteBuffer,
            8 => Kind::Call,
            9 => Kind::Receive,
            10 => Kind::Answer,
            _ => return None,
        };
        let slot = usize::from((word >> 24) as u8);
        Some(Head { kind, slot, len: usize::from((word >> 32) as u16) + 1, after: (word >> 48) as u16 })
    }
}

/// Outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Status {
    /// The access succeeded. The bytes are the data of the read, or the old value of the word.
    Value = 1,
    /// The bytes are the body of a reply in the format of the socket.
    Body,
    /// The reply is too long for a slot, and follows over the socket.
    Socket,
}

#[inline]
pub(crate) fn reply(status: Status, len: usize, bytes: &[u8]) -> Line {
    let mut line = [0; WORDS];
    line[0] = (len as u64) << 24 | (status as u64) << TAG_BITS;
    put(&mut line[1..], bytes);
    line
}

/// Returns the status of a reply, and its length.
#[inline]
pub(crate) fn status(line: &Line) -> (Status, usize) {
    let status = match (line[0] >> TAG_BITS) as u8 {
        1 => Status::Value,
        2 => Status::Body,
        _ => Status::Socket,
    };
    (status, (line[0] >> 24) as usize)
}

/// Returns the number of words in a line that has `bytes` bytes from word `first` on.
#[inline]
pub(crate) fn words(first: usize, bytes: usize) -> usize {
    (first + bytes.div_ceil(8)).min(WORDS)
}

/// Copies bytes into words, which must be zero.
#[inline]
pub(crate) fn put(words: &mut [u64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (index, chunk) in whole.iter().enumerate() {
        words[index] = u64::from_ne_bytes(*chunk);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()] = u64::from_ne_bytes(last);
    }
}

/// Copies bytes out of words.
#[inline]
pub(crate) fn get(words: &[u64], bytes: &mut [u8]) {
    let (whole, rest) = bytes.as_chunks_mut::<8>();
    for (index, chunk) in whole.iter_mut().enumerate() {
        *chunk = words[index].to_ne_bytes();
    }
    if !rest.is_empty() {
        rest.copy_from_slice(&words[whole.len()].to_ne_bytes()[..rest.len()]);
    }
}

/// Returns the words of a call.
pub(crate) fn call_words(node: u32, function: u32, len: usize, output_max: u32, timeout_ns: u64) -> [u64; 3] {
    let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    [pair(node, function), pair(output_max, len as u32), timeout_ns]
}

/// The parsed words of a call, which the client wrote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallWords {
    pub(crate) node: u32,
    pub(crate) function: u32,
    pub(crate) len: usize,
    pub(crate) output_max: u32,
    pub(crate) timeout_ns: u64,
}

impl CallWords {
    pub(crate) fn parse(line: &Line) -> CallWords {
        CallWords {
            node: (line[1] >> 32) as u32,
            function: line[1] as u32,
            len: (line[2] as u32) as usize,
            output_max: (line[2] >> 32) as u32,
            timeout_ns: line[3],
        }
    }
}

#[inline]
pub(crate) fn put_handle(line: &mut Line, lh: Lh, offset: u64) {
    line[1] = u64::from(lh.slot.generation) << 32 | u64::from(lh.slot.index);
    (line[2], line[3]) = (lh.session, offset);
}

#[inline]
pub(crate) fn handle(line: &Line) -> (Lh, u64) {
    let slot = SlotRef { index: line[1] as u32, generation: (line[1] >> 32) as u32 };
    (Lh { slot, session: line[2] }, line[3])
}

/// Returns the id by which the socket names the request of a slot.
pub(crate) fn id_of(slot: usize) -> u64 {
    SLOT_ID | slot as u64
}

/// Returns the slot that an id names.
pub(crate) fn slot_of(id: u64) -> Option<usize> {
    let slot = (id ^ SLOT_ID) as usize;
    (slot < SLOTS).then_some(slot)
}
