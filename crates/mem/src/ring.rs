//! A ring of byte messages in shared memory, from one process to another.
//!
//! A ring has one producer and one consumer, each in a process that may die or corrupt the ring at any moment. A ring
//! is not a queue between threads, does not block (see [`crate::doorbell`]) and does not interpret the messages.
//!
//! ```text
//!   offset 0      64        128                                        128 + capacity
//!          | head | waiting | line | line | line | line | ............ |
//!            |      |
//!            |      nonzero while the producer waits for room; written by the producer only
//!            bytes that the producer may overwrite; written by the consumer only
//!
//!   record, at the beginning of a line of 64 bytes:
//!          | header u64: imm, len, kind, lap | payload of len bytes, which may wrap | padding to 64 |
//!
//!   imm: the immediate, 32 bits that the caller chooses, as in verbs
//! ```
//!
//! A message of up to 56 bytes is one cache line, and only that line moves between the processes: the consumer polls
//! the line where the next record begins, and the producer publishes the record by one store of its header. A producer
//! that is killed before that store has published nothing; a producer that is killed after it has published the whole
//! message.
//!
//! A lap is one pass over the ring. A header is valid only if it contains the number of the current lap at its
//! position. Otherwise the line contains a header of the previous lap, or zero, as new memory does. Before the consumer
//! moves the head, it clears the first word of every line of a record except the first line, since payload there may
//! look like a valid header. (Clearing costs both sides a cache miss; a record of one line needs none.)
//!
//! Positions count bytes since the start and never wrap in practice (2^64 bytes). The capacity is a power of two, so a
//! header never wraps. The head moves by an eighth of the ring at a time, because each move costs both sides a cache
//! miss. So at least 7/8 of the ring are free once the consumer has consumed all messages, and a message of half the
//! ring always fits eventually.
//!
//! A producer without room sets a request (`waiting`), checks for room once more and may then sleep. The consumer moves
//! the head, then checks for a request. A sequentially consistent fence between the two steps, on both sides, makes one
//! side see the other's write: either the producer finds the room, or the consumer wakes the producer.
//!
//! Each side keeps its own position in private memory and trusts only this position. It copies each word of the other
//! side once and then checks the copy. So a hostile side can only cause the refusal of its own messages.

mod header;
mod memory;

use std::ops::Range;

use header::{Header, KINDS, LEN_MAX, Lap};
use memory::Memory;

use crate::Window;
use crate::window::OutOfBounds;

/// Bytes before the data of a ring: two cache lines, since processors fetch lines in pairs.
const DATA_OFFSET: u64 = 128;
/// Length of a line in bytes; records begin at multiples of it.
const LINE_BYTES: u64 = 64;
/// Bytes of a record before its payload.
const HEADER_BYTES: u64 = 8;
/// Minimum capacity in bytes, in which several records of one line fit.
const CAPACITY_MIN: u64 = 4 * LINE_BYTES;

/// Returns the size in shared memory, in bytes, of a ring with `capacity` bytes of data.
pub const fn ring_bytes(capacity: u64) -> u64 {
    DATA_OFFSET + capacity
}

/// Returns the maximum payload length, in bytes, of a ring with `capacity` bytes of data. A record takes at most half
/// of the capacity.
pub const fn payload_bytes_max(capacity: u64) -> u64 {
    let half = capacity / 2 - HEADER_BYTES;
    if half < LEN_MAX { half } else { LEN_MAX }
}

/// The reason why a window cannot hold a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadRing {
    /// The length of the data is not a power of two of at least 256 bytes.
    #[error(
        "cannot use a window of {window_bytes} bytes as a ring: its length must be 128 (header) plus a power of two of at \
         least 256 (data)"
    )]
    Size {
        /// Length of the window, in bytes.
        window_bytes: u64,
    },
    /// The window does not begin at a multiple of 8 bytes.
    #[error("cannot use a window as a ring: it is not aligned to 8 bytes")]
    Misaligned,
}

/// The reason why a message was not published. The ring is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PushError {
    /// The consumer has not freed enough room yet.
    #[error("cannot push {len} bytes: the ring is full; try again after the consumer has freed room")]
    Full {
        /// Payload length, in bytes.
        len: u64,
    },
    /// The message exceeds the maximum payload length of this ring.
    #[error("cannot push {len} bytes: a message of this ring may have at most {max}")]
    TooLong {
        /// Payload length, in bytes.
        len: u64,
        /// Maximum payload length of this ring, in bytes.
        max: u64,
    },
    /// The consumer reports a head beyond the published messages. The caller must drop the connection.
    #[error("cannot push: the consumer corrupted the ring; drop the connection")]
    Corrupt,
}

/// The producer published an invalid record. The ring remains corrupt, so the caller must drop the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot pop: the producer corrupted the ring; drop the connection")]
pub struct Corrupt;

/// The end of a ring that publishes messages.
///
/// ```
/// # use halite_mem::{PagePolicy, Segment, ring};
/// let segment = Segment::create("ring", ring::ring_bytes(4096), PagePolicy::Normal)?;
/// let window = segment.window(0, segment.len()).expect("in bounds");
/// let mut producer = ring::Producer::new(window.clone()).expect("a power of two");
/// let mut consumer = ring::Consumer::new(window).expect("a power of two");
/// producer.try_push(1, 7, &[b"sa", b"lt"]).expect("room");
/// let message = consumer.try_pop().expect("one was pushed").expect("a good one");
/// assert_eq!((message.kind(), message.imm()), (1, 7));
/// assert_eq!(message.to_vec(), b"salt");
/// drop(message);
/// assert!(consumer.try_pop().is_none());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Producer {
    memory: Memory,
    /// Number of bytes published so far.
    tail: u64,
    /// The last position read from the consumer; most pushes need not read it again.
    head_seen: u64,
    /// True while a request for room is set.
    waiting: bool,
}

/// The end of a ring that consumes messages; see [`Producer`].
#[derive(Debug)]
pub struct Consumer {
    memory: Memory,
    /// Number of bytes consumed so far.
    head: u64,
    /// The `head` last published to the producer.
    head_published: u64,
    /// Lines from `head_published` to `head` with payload where a later header may begin. The consumer clears them
    /// together, when it publishes the head, because each costs a cache miss, which would delay replies.
    lines_to_clear: Vec<Range<u64>>,
    /// True if the consumer has freed room that the producer requested.
    made_room: bool,
    corrupt: bool,
}

/// A message that is still in its ring. Dropping this value consumes the message.
#[derive(Debug)]
pub struct Message<'a> {
    consumer: &'a mut Consumer,
    header: Header,
}

impl Producer {
    /// Opens the producer's end of the ring in `window`, whose bytes must all be zero. Fails if the length or the
    /// alignment of the window is invalid.
    pub fn new(window: Window) -> Result<Producer, BadRing> {
        Ok(Producer::from_memory(Memory::new(window)?))
    }

    fn from_memory(memory: Memory) -> Producer {
        Producer { memory, tail: 0, head_seen: 0, waiting: false }
    }

    /// Returns true if a payload of `len` bytes fits now. Otherwise returns false and sets a request for room, which
    /// stays set until a call of this method finds room. Fails if `len` exceeds the maximum, or if the consumer has
    /// corrupted the ring.
    pub fn has_or_asks_for_room(&mut self, len: u64) -> Result<bool, PushError> {
        if self.has_room(len)? {
            if std::mem::take(&mut self.waiting) {
                self.memory.set_waiting(false);
            }
            return Ok(true);
        }
        if self.waiting {
            return Ok(false);
        }
        self.waiting = true;
        self.memory.set_waiting(true);
        // Pairs with the fence in publish_head(): either the consumer sees the request, or this check sees the head.
        Memory::fence();
        self.has_room(len)
    }

    /// Returns true while a request for room is set; see [`Producer::has_or_asks_for_room`].
    pub fn asks_for_room(&self) -> bool {
        self.waiting
    }

    fn has_room(&mut self, len: u64) -> Result<bool, PushError> {
        match self.check_room(len) {
            Ok(()) => Ok(true),
            Err(PushError::Full { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the maximum payload length of this ring, in bytes.
    #[inline]
    pub fn payload_bytes_max(&self) -> u64 {
        payload_bytes_max(self.memory.capacity())
    }

    /// Publishes the concatenation of `parts` as one message, or fails and publishes nothing.
    ///
    /// The caller chooses the meaning of `kind` and of `imm` (the immediate). Panics if `kind` is not below 8.
    #[inline]
    pub fn try_push(&mut self, kind: u8, imm: u32, parts: &[&[u8]]) -> Result<(), PushError> {
        assert!(kind < KINDS, "message kind {kind} is too large: it must be below {KINDS}");
        let len = parts.iter().map(|part| part.len() as u64).sum();
        self.check_room(len)?;
        let mut at = self.tail + HEADER_BYTES;
        for part in parts {
            self.memory.write(at, part);
            at += part.len() as u64;
        }
        let header = Header { kind, imm, len: len as u32 };
        let lap = Lap::of(self.tail, self.memory.capacity());
        // Pairs with the Acquire in the consumer's load_header(): a consumer that sees the header sees the payload.
        self.memory.store_header(self.tail, header.pack(lap));
        self.tail += record_bytes(len);
        Ok(())
    }

    /// Returns `Ok` if a payload of `len` bytes fits now, and otherwise the error that a push would return.
    #[inline]
    pub fn check_room(&mut self, len: u64) -> Result<(), PushError> {
        let max = self.payload_bytes_max();
        if len > max {
            return Err(PushError::TooLong { len, max });
        }
        if self.fits(len) { Ok(()) } else { self.reload_head(len) }
    }

    #[cold]
    fn reload_head(&mut self, len: u64) -> Result<(), PushError> {
        // Pairs with the Release in the consumer's store_head(): the consumer has copied the bytes that the next push
        // overwrites.
        let head = self.memory.load_head();
        if head < self.head_seen || head > self.tail {
            return Err(PushError::Corrupt);
        }
        self.head_seen = head;
        if self.fits(len) { Ok(()) } else { Err(PushError::Full { len }) }
    }

    fn fits(&self, len: u64) -> bool {
        self.tail + record_bytes(len) - self.head_seen <= self.memory.capacity()
    }
}

impl Consumer {
    /// Opens the consumer's end of the ring in `window`, whose bytes must all have been zero when the producer opened
    /// its end. Fails if the length or the alignment of the window is invalid.
    pub fn new(window: Window) -> Result<Consumer, BadRing> {
        Ok(Consumer::from_memory(Memory::new(window)?))
    }

    fn from_memory(memory: Memory) -> Consumer {
        Consumer {
            memory,
            head: 0,
            head_published: 0,
            lines_to_clear: Vec::new(),
            made_room: false,
            corrupt: false,
        }
    }

    /// Returns the maximum number of messages that can wait in the ring.
    pub fn messages_max(&self) -> u64 {
        self.memory.capacity() / LINE_BYTES
    }

    /// Returns the next message; `None` if no message waits. Fails if the producer has corrupted the ring.
    #[inline]
    pub fn try_pop(&mut self) -> Option<Result<Message<'_>, Corrupt>> {
        // Pairs with the Release in the producer's store_header().
        let word = self.memory.load_header(self.head);
        let capacity = self.memory.capacity();
        if !Lap::of(self.head, capacity).matches(word) || self.corrupt {
            return self.detect_corruption(word).then_some(Err(Corrupt));
        }
        let header = Header::unpack(word);
        if u64::from(header.len) > payload_bytes_max(capacity) {
            self.corrupt = true;
            return Some(Err(Corrupt));
        }
        Some(Ok(Message { consumer: self, header }))
    }

    /// Records that the ring is corrupt if `word` is neither zero nor a header of the previous lap. Returns true if the
    /// ring is corrupt.
    fn detect_corruption(&mut self, word: u64) -> bool {
        let capacity = self.memory.capacity();
        let is_previous_header = |head: u64| Lap::of(head, capacity).matches(word);
        let is_valid = word == 0 || self.head.checked_sub(capacity).is_some_and(is_previous_header);
        self.corrupt |= !is_valid;
        self.corrupt
    }

    #[inline]
    fn consume(&mut self, len: u64) {
        let second_line = self.head + LINE_BYTES;
        self.head += record_bytes(len);
        if second_line < self.head {
            self.lines_to_clear.push(second_line..self.head);
        }
        if self.head - self.head_published >= self.memory.capacity() / 8 {
            self.publish_head();
        }
    }

    #[cold]
    fn publish_head(&mut self) {
        for lines in self.lines_to_clear.drain(..) {
            for line in lines.step_by(LINE_BYTES as usize) {
                self.memory.clear_header(line);
            }
        }
        // Pairs with the Acquire in the producer's load_head(): the producer may overwrite the copied and cleared
        // lines.
        self.memory.store_head(self.head);
        self.head_published = self.head;
        // Pairs with the fence in has_or_asks_for_room().
        Memory::fence();
        self.made_room |= self.memory.is_waiting();
    }

    /// Returns true if, since the last call, the consumer has freed room while the producer was requesting room. The
    /// caller must then wake the producer, which may sleep.
    #[inline]
    pub fn take_made_room(&mut self) -> bool {
        std::mem::take(&mut self.made_room)
    }
}

/// Access to the message's fields and payload. Two reads of the same bytes may differ, because a hostile producer may
/// still write to the message.
impl Message<'_> {
    /// Returns the kind that the producer gave to the message: a number below 8.
    #[inline]
    pub fn kind(&self) -> u8 {
        self.header.kind
    }

    /// Returns the immediate of the message: 32 bits that the producer chose.
    #[inline]
    pub fn imm(&self) -> u32 {
        self.header.imm
    }

    /// Returns the payload length in bytes, at most [`payload_bytes_max`].
    #[inline]
    pub fn len(&self) -> u64 {
        self.header.len.into()
    }

    /// Returns true if the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.header.len == 0
    }

    /// Copies `target.len()` bytes of the payload, from byte `from` on, to `target`. Panics if the payload is shorter.
    #[inline]
    pub fn read(&self, from: u64, target: &mut [u8]) {
        let left = self.len().checked_sub(from).expect("reads must begin inside the payload");
        assert!(target.len() as u64 <= left, "reads must end inside the payload");
        self.consumer.memory.read(self.payload_at() + from, target);
    }

    /// Returns a copy of the whole payload.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.header.len as usize];
        self.read(0, &mut bytes);
        bytes
    }

    /// Copies the payload, from byte `from` on, to `offset` in `target`. Fails and copies nothing if the bytes do not
    /// fit into `target`. Panics if `from` is beyond the end of the payload.
    #[inline]
    pub fn copy_to(&self, from: u64, target: &Window, offset: u64) -> Result<(), OutOfBounds> {
        let left = self.len().checked_sub(from).expect("copies must begin inside the payload");
        self.consumer.memory.copy_to(self.payload_at() + from, left as usize, target, offset)
    }

    fn payload_at(&self) -> u64 {
        self.consumer.head + HEADER_BYTES
    }
}

impl Drop for Message<'_> {
    #[inline]
    fn drop(&mut self) {
        self.consumer.consume(self.header.len.into());
    }
}

fn record_bytes(len: u64) -> u64 {
    (HEADER_BYTES + len).next_multiple_of(LINE_BYTES)
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
