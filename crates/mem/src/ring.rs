//! A ring of byte messages in shared memory, from one process to another.
//!
//! One producer, one consumer, each in a process that may die, or scribble, at any moment.  This is not a
//! queue between threads, it does not sleep (see [`crate::doorbell`]) and it knows nothing about what the
//! messages mean.
//!
//! ```text
//!   offset 0      128      256                                      256 + capacity
//!          | tail  | head   | data ....................................... |
//!            |       |
//!            |       bytes ever consumed; written by the consumer only
//!            bytes ever published; written by the producer only
//!
//!   record, at tail modulo capacity:
//!          | len u32 | imm u32 | payload of len bytes, which may wrap | padding to 8 |
//! ```
//!
//! Positions count bytes since the beginning and never wrap in practice (2^64 bytes).  The capacity is a power
//! of two, at least 64, so a header never wraps.  Tail and head have two cache lines each: processors fetch
//! lines in pairs.
//!
//! Publishing is one store of `tail`: a producer killed before it has published nothing, one killed after it
//! has published everything.  Each side keeps its own position privately and trusts only that; what the other
//! side wrote is copied out once and then checked, so a hostile one can at most have its messages refused.

mod memory;

use memory::Memory;

use crate::Window;

/// Bytes of a ring segment in front of its data.
const DATA_OFFSET: u64 = 256;
/// Bytes of a record in front of its payload.
const HEADER_BYTES: u64 = 8;
/// A record of one word fits several times.
const CAPACITY_MIN: u64 = 64;

/// How many bytes of shared memory a ring with `capacity` bytes of data takes.
pub const fn ring_bytes(capacity: u64) -> u64 {
    DATA_OFFSET + capacity
}

/// The longest payload that a ring with `capacity` bytes of data can carry at all.
pub const fn payload_bytes_max(capacity: u64) -> u64 {
    capacity - HEADER_BYTES
}

/// Why memory cannot be used as a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadRing {
    /// The data behind the positions is not a power of two of at least 64 bytes.
    #[error("cannot use {window_bytes} bytes as a ring: 256 and a power of two of at least 64 are needed")]
    Size {
        /// Length of the window that was offered.
        window_bytes: u64,
    },
    /// The window does not begin at a multiple of 8.
    #[error("cannot use a window as a ring: it is not aligned to 8 bytes")]
    Misaligned,
}

/// Why a message was not published; the ring is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PushError {
    /// The consumer has not made room yet.
    #[error("cannot push {len} bytes: the ring is full")]
    Full {
        /// Payload bytes.
        len: u64,
    },
    /// The message can never fit.
    #[error("cannot push {len} bytes: the ring carries at most {max}")]
    TooLong {
        /// Payload bytes.
        len: u64,
        /// The longest payload of this ring.
        max: u64,
    },
    /// The consumer claims to have consumed what was never published.  Drop the connection.
    #[error("cannot push: the consumer scribbled over the ring")]
    Corrupt,
}

/// The producer published something that is not a record.  Drop the connection: the ring stays corrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot pop: the producer scribbled over the ring")]
pub struct Corrupt;

/// The end that publishes.
///
/// ```
/// # use halite_mem::{PagePolicy, Segment, ring};
/// let segment = Segment::create("ring", ring::ring_bytes(4096), PagePolicy::Normal)?;
/// let window = segment.window(0, segment.len()).expect("in bounds");
/// let mut producer = ring::Producer::new(window.clone()).expect("a power of two");
/// let mut consumer = ring::Consumer::new(window).expect("a power of two");
/// producer.try_push(7, &[b"sa", b"lt"]).expect("room");
/// let mut payload = Vec::new();
/// assert_eq!(consumer.try_pop(&mut payload), Some(Ok(7)));
/// assert_eq!(payload, b"salt");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Producer {
    memory: Memory,
    /// Bytes ever published; the shared word is only a copy for the consumer.
    tail: u64,
    /// The consumer's position when it was last looked at, so that most pushes do not look.
    head_seen: u64,
}

/// The end that consumes; see [`Producer`].
#[derive(Debug)]
pub struct Consumer {
    memory: Memory,
    /// Bytes ever consumed; the shared word is only a copy for the producer.
    head: u64,
    /// The producer's position when it was last looked at.
    tail_seen: u64,
    corrupt: bool,
}

impl Producer {
    /// Begins to publish into `window`, which is fresh: all zero.
    pub fn new(window: Window) -> Result<Producer, BadRing> {
        Ok(Producer::over(Memory::new(window)?))
    }

    fn over(memory: Memory) -> Producer {
        Producer { memory, tail: 0, head_seen: 0 }
    }

    /// The longest payload that fits into the empty ring.
    pub fn payload_bytes_max(&self) -> u64 {
        payload_bytes_max(self.memory.capacity()).min(u32::MAX as u64)
    }

    /// Publishes one message made of `parts` one behind the other, or nothing.
    pub fn try_push(&mut self, imm: u32, parts: &[&[u8]]) -> Result<(), PushError> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        self.check_room(len)?;
        self.memory.write(self.tail, &header(len as u32, imm));
        let mut at = self.tail + HEADER_BYTES;
        for part in parts {
            self.memory.write(at, part);
            at += part.len() as u64;
        }
        self.tail += record_bytes(len);
        // Pairs with the Acquire in the consumer's load_tail(): whoever sees the tail sees the record.
        self.memory.store_tail(self.tail);
        Ok(())
    }

    /// Whether a payload of `len` bytes could be pushed now.
    pub fn check_room(&mut self, len: u64) -> Result<(), PushError> {
        let max = self.payload_bytes_max();
        if len > max {
            return Err(PushError::TooLong { len, max });
        }
        let capacity = self.memory.capacity();
        let fits = |head: u64| self.tail + record_bytes(len) - head <= capacity;
        if fits(self.head_seen) {
            return Ok(());
        }
        // Pairs with the Release in the consumer's store_head(): it has copied the bytes that we overwrite.
        let head = self.memory.load_head();
        if head < self.head_seen || head > self.tail {
            return Err(PushError::Corrupt);
        }
        self.head_seen = head;
        if fits(head) { Ok(()) } else { Err(PushError::Full { len }) }
    }
}

impl Consumer {
    /// Begins to consume from `window`, which the producer got fresh: all zero.
    pub fn new(window: Window) -> Result<Consumer, BadRing> {
        Ok(Consumer::over(Memory::new(window)?))
    }

    fn over(memory: Memory) -> Consumer {
        Consumer { memory, head: 0, tail_seen: 0, corrupt: false }
    }

    /// The most records that can be waiting at one time.
    pub fn records_max(&self) -> u64 {
        self.memory.capacity() / HEADER_BYTES
    }

    /// Takes the next message, if any: replaces what `payload` holds and returns the immediate.
    pub fn try_pop(&mut self, payload: &mut Vec<u8>) -> Option<Result<u32, Corrupt>> {
        if self.corrupt {
            return Some(Err(Corrupt));
        }
        if self.head == self.tail_seen {
            // Pairs with the Release in the producer's store_tail().
            self.tail_seen = self.memory.load_tail();
        }
        if self.head == self.tail_seen {
            return None;
        }
        let popped = self.pop_record(payload);
        self.corrupt = popped.is_err();
        Some(popped)
    }

    fn pop_record(&mut self, payload: &mut Vec<u8>) -> Result<u32, Corrupt> {
        let waiting = self.tail_seen.wrapping_sub(self.head);
        if waiting > self.memory.capacity() || !waiting.is_multiple_of(8) {
            return Err(Corrupt);
        }
        // `waiting` is at least 8 here, so the header is there; its length is copied once, then checked.
        let mut header = [0; HEADER_BYTES as usize];
        self.memory.read(self.head, &mut header);
        let (len, imm) = parse_header(header);
        if record_bytes(len as u64) > waiting {
            return Err(Corrupt);
        }
        payload.clear();
        payload.resize(len as usize, 0);
        self.memory.read(self.head + HEADER_BYTES, payload);
        self.head += record_bytes(len as u64);
        // Pairs with the Acquire in the producer's load_head(): it may overwrite what we have copied.
        self.memory.store_head(self.head);
        Ok(imm)
    }
}

fn record_bytes(len: u64) -> u64 {
    HEADER_BYTES + len.next_multiple_of(8)
}

fn header(len: u32, imm: u32) -> [u8; 8] {
    (u64::from(len) | u64::from(imm) << 32).to_ne_bytes()
}

fn parse_header(header: [u8; 8]) -> (u32, u32) {
    let word = u64::from_ne_bytes(header);
    (word as u32, (word >> 32) as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::{PagePolicy, Segment};

    fn ring(capacity: u64) -> (Producer, Consumer, Window) {
        let segment = Segment::create("ring", ring_bytes(capacity), PagePolicy::Normal).unwrap();
        let window = segment.window(0, segment.len()).unwrap();
        let producer = Producer::new(window.clone()).unwrap();
        let consumer = Consumer::new(window.clone()).unwrap();
        (producer, consumer, window)
    }

    fn pop(consumer: &mut Consumer) -> Option<Result<(u32, Vec<u8>), Corrupt>> {
        let mut payload = vec![1, 2, 3];
        let popped = consumer.try_pop(&mut payload)?;
        Some(popped.map(|imm| (imm, payload)))
    }

    #[test]
    fn only_a_power_of_two_makes_a_ring() {
        let segment = Segment::create("ring", 8192, PagePolicy::Normal).unwrap();
        for window_bytes in [0, 8, 255, 256, 256 + 32, 256 + 96, 4096] {
            let window = segment.window(0, window_bytes).unwrap();
            let refused = Consumer::new(window).err();
            assert_eq!(refused, Some(BadRing::Size { window_bytes }));
        }
        let odd = segment.window(4, ring_bytes(64)).unwrap();
        assert_eq!(Producer::new(odd).err(), Some(BadRing::Misaligned));
    }

    #[test]
    fn a_full_ring_takes_more_once_something_was_consumed() {
        let (mut producer, mut consumer, _) = ring(64);
        assert_eq!(producer.try_push(0, &[&[0; 57]]), Err(PushError::TooLong { len: 57, max: 56 }));
        for imm in 0..4 {
            producer.try_push(imm, &[b"eight...".as_slice()]).unwrap();
        }
        assert_eq!(producer.try_push(4, &[]), Err(PushError::Full { len: 0 }));
        assert_eq!(pop(&mut consumer), Some(Ok((0, b"eight...".to_vec()))));
        producer.try_push(4, &[]).unwrap();
        for imm in 1..4 {
            assert_eq!(pop(&mut consumer), Some(Ok((imm, b"eight...".to_vec()))));
        }
        assert_eq!(pop(&mut consumer), Some(Ok((4, vec![]))));
        assert_eq!(pop(&mut consumer), None);
    }

    #[test]
    fn what_a_producer_wrote_before_it_was_killed_stays_invisible() {
        let (mut producer, mut consumer, window) = ring(64);
        // A record without the store of the tail is what a kill leaves behind.
        window.write(DATA_OFFSET, &header(4, 1)).unwrap();
        window.write(DATA_OFFSET + 8, b"half").unwrap();
        assert_eq!(pop(&mut consumer), None);
        producer.try_push(2, &[b"whole"]).unwrap();
        assert_eq!(pop(&mut consumer), Some(Ok((2, b"whole".to_vec()))));
    }

    #[test]
    fn a_scribbled_tail_is_corrupt_and_stays_so() {
        for tail in [1, 7, 12, 72, 1 << 40, u64::MAX, u64::MAX - 7] {
            let (_, mut consumer, window) = ring(64);
            window.store_u64(0, tail).unwrap();
            assert_eq!(pop(&mut consumer), Some(Err(Corrupt)), "tail {tail}");
            window.store_u64(0, 0).unwrap();
            assert_eq!(pop(&mut consumer), Some(Err(Corrupt)), "tail {tail}");
        }
    }

    #[test]
    fn a_tail_that_goes_back_is_corrupt() {
        let (mut producer, mut consumer, window) = ring(64);
        producer.try_push(1, &[b"a"]).unwrap();
        assert!(pop(&mut consumer).unwrap().is_ok());
        window.store_u64(0, 8).unwrap();
        assert_eq!(pop(&mut consumer), Some(Err(Corrupt)));
    }

    #[test]
    fn a_scribbled_length_is_corrupt() {
        for len in [9, 16, 64, u32::MAX - 7, u32::MAX] {
            let (mut producer, mut consumer, window) = ring(64);
            producer.try_push(1, &[b"eight..."]).unwrap();
            window.store_u32(DATA_OFFSET, len).unwrap();
            assert_eq!(pop(&mut consumer), Some(Err(Corrupt)), "length {len}");
        }
    }

    #[test]
    fn a_scribbled_head_is_corrupt_and_nothing_is_overwritten() {
        let (mut producer, mut consumer, window) = ring(64);
        producer.try_push(1, &[&[7; 56]]).unwrap();
        for head in [65, 1 << 50, u64::MAX] {
            window.store_u64(memory::HEAD_OFFSET, head).unwrap();
            assert_eq!(producer.try_push(2, &[]), Err(PushError::Corrupt));
        }
        assert_eq!(pop(&mut consumer), Some(Ok((1, vec![7; 56]))));
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in(
            steps in prop::collection::vec((any::<bool>(), 0..70usize, 0..70usize, any::<u32>()), 1..400)
        ) {
            let (mut producer, mut consumer, _) = ring(128);
            let mut model: VecDeque<(u32, Vec<u8>)> = VecDeque::new();
            let mut model_bytes = 0;
            for (push, first, second, imm) in steps {
                if push {
                    let bytes: Vec<u8> = (0..first + second).map(|at| at as u8 ^ imm as u8).collect();
                    let record = record_bytes(bytes.len() as u64);
                    let pushed = producer.try_push(imm, &[&bytes[..first], &bytes[first..]]);
                    if bytes.len() > 120 {
                        let too_long = PushError::TooLong { len: bytes.len() as u64, max: 120 };
                        prop_assert_eq!(pushed, Err(too_long));
                    } else if model_bytes + record > 128 {
                        prop_assert_eq!(pushed, Err(PushError::Full { len: bytes.len() as u64 }));
                    } else {
                        prop_assert_eq!(pushed, Ok(()));
                        model_bytes += record;
                        model.push_back((imm, bytes));
                    }
                } else {
                    let expected = model.pop_front();
                    model_bytes -= expected.as_ref().map_or(0, |(_, bytes)| record_bytes(bytes.len() as u64));
                    prop_assert_eq!(pop(&mut consumer), expected.map(Ok));
                }
            }
        }

        #[test]
        fn no_scribble_makes_either_side_panic(
            words in prop::collection::vec((0..48u64, any::<u64>()), 0..20), tail in 0..20u64
        ) {
            let (mut producer, mut consumer, window) = ring(128);
            window.store_u64(0, tail * 8).unwrap();
            for (word, value) in words {
                window.store_u64(word * 8, value).unwrap();
                let _ = producer.try_push(value as u32, &[&value.to_ne_bytes()]);
                if let Some(Ok((_, payload))) = pop(&mut consumer) {
                    prop_assert!(payload.len() <= 120);
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn loom_messages_arrive_whole_and_in_order_through_a_wrap() {
        loom::model(|| {
            // 64 bytes hold two of these records of 24 bytes, so the third wraps and waits for room.
            let memory = Memory::private(64);
            let mut producer = Producer::over(memory.clone());
            let mut consumer = Consumer::over(memory);
            let sender = loom::thread::spawn(move || {
                for imm in 0..3u32 {
                    while producer.try_push(imm, &[&[imm as u8; 12]]).is_err() {
                        loom::thread::yield_now();
                    }
                }
            });
            let mut payload = Vec::new();
            for expected in 0..3u32 {
                let imm = loop {
                    match consumer.try_pop(&mut payload) {
                        Some(popped) => break popped.expect("never corrupt"),
                        None => loom::thread::yield_now(),
                    }
                };
                assert_eq!(imm, expected);
                assert_eq!(payload, [expected as u8; 12]);
            }
            sender.join().unwrap();
        });
    }
}
