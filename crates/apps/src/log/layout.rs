//! Layout of a log's regions.

use std::ops::Range;

use super::error::LogError;

/// Bytes per word.
pub(crate) const WORD: u64 = 8;
/// Bytes of the length before each record of a transaction.
pub(crate) const LEN_BYTES: usize = 4;
/// First word of the head.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"halilog1");
/// Offset of the counter of reserved slots, on a cache line of its own.
pub(crate) const RESERVED_AT: u64 = 256;
/// Offsets of two counters: the number of the first segment that is not trimmed, and of the first that is not freed.
/// They differ only during a trim.
pub(crate) const KEPT_AT: u64 = 320;
pub(crate) const FREED_AT: u64 = 328;
/// Bytes of the head.
pub(crate) const HEAD_BYTES: u64 = 384;
/// Maximum number of nodes that hold segments in turn.
pub(crate) const NODES_MAX: usize = 24;
/// Upper bound of positions. No log reaches it, so a counter with a higher value is damaged.
pub(crate) const POSITION_MAX: u64 = 1 << 62;

const SLOT_BYTES_MAX: u64 = 1 << 20;
const SEGMENT_BYTES_MAX: u64 = 1 << 40;

/// Sizes of a log's slots and segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    slot_bytes: u64,
    segment_slots: u64,
}

impl Layout {
    pub fn new(slot_bytes: u64, segment_slots: u64) -> Result<Layout, LogError> {
        if !(2 * WORD..=SLOT_BYTES_MAX).contains(&slot_bytes) || !slot_bytes.is_multiple_of(WORD) {
            let wanted = "a multiple of 8 from 16 to 1048576";
            return Err(LogError::NotALog {
                what: "the length of a slot in bytes",
                value: slot_bytes,
                wanted,
            });
        }
        if segment_slots == 0 || segment_slots > SEGMENT_BYTES_MAX / slot_bytes {
            let wanted = "at least one, and a segment at most 1 TiB long";
            return Err(LogError::NotALog {
                what: "the number of slots of a segment",
                value: segment_slots,
                wanted,
            });
        }
        Ok(Layout { slot_bytes, segment_slots })
    }

    #[inline]
    pub fn slot_bytes(self) -> u64 {
        self.slot_bytes
    }

    #[inline]
    pub fn segment_slots(self) -> u64 {
        self.segment_slots
    }

    pub fn segment_bytes(self) -> u64 {
        self.slot_bytes * self.segment_slots
    }

    #[inline]
    pub fn payload_bytes(self) -> usize {
        (self.slot_bytes - WORD) as usize
    }

    #[inline]
    pub fn segment_of(self, position: u64) -> u64 {
        position / self.segment_slots
    }

    /// Returns the offset of a slot in its segment.
    #[inline]
    pub fn offset_of(self, position: u64) -> u64 {
        position % self.segment_slots * self.slot_bytes
    }

    /// Returns the number of slots from `position` to the end of its segment.
    #[inline]
    pub fn room_at(self, position: u64) -> u64 {
        self.segment_slots - position % self.segment_slots
    }

    /// Returns the number of slots of a record of `len` bytes; an empty record takes one slot.
    #[inline]
    pub fn slots_of(self, len: usize) -> u64 {
        // The common case, without a division.
        if len <= self.payload_bytes() { 1 } else { len.div_ceil(self.payload_bytes()) as u64 }
    }

    /// Returns true if the range of written slots includes the middle of their segment.
    pub fn crosses_middle(self, written: Range<u64>) -> bool {
        let next = written.start + self.room_at(written.start);
        self.segment_slots > 1 && written.contains(&(next - self.segment_slots / 2))
    }

    /// Returns the maximum length of a record, in bytes.
    pub fn record_bytes_max(self) -> u64 {
        (self.segment_slots * self.payload_bytes() as u64).min(LEN_MAX)
    }

    /// Returns the pieces of a record, one per slot: for each, its range of bytes in the record, and its offset from
    /// the start of the first slot, in bytes.
    pub fn pieces(self, len: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        let payload = self.payload_bytes();
        (0..self.slots_of(len) as usize).map(move |slot| {
            let begin = slot * payload;
            (begin..len.min(begin + payload), slot * self.slot_bytes as usize + WORD as usize)
        })
    }
}

const IS_ENTRY: u64 = 1 << 63;
const IS_TRANSACTION: u64 = 1 << 62;
const LEN_MAX: u64 = (1 << 30) - 1;
const VOID: u64 = 1;

/// The word of a slot: 0 until the slot is settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// Not settled.
    Open,
    /// Skipped: the next slot follows.
    Void,
    /// A record starts here.
    Entry {
        len: u32,
        /// True if the entry holds several records, each after its length.
        is_transaction: bool,
        sum: u32,
    },
}

impl Word {
    #[inline]
    pub fn of(record: &[u8], is_transaction: bool) -> Word {
        Word::Entry { len: record.len() as u32, is_transaction, sum: checksum(record) }
    }

    #[inline]
    pub fn encode(self) -> u64 {
        match self {
            Word::Open => 0,
            Word::Void => VOID,
            Word::Entry { len, is_transaction, sum } => {
                let many = if is_transaction { IS_TRANSACTION } else { 0 };
                IS_ENTRY | many | (u64::from(len) << 32) | u64::from(sum)
            }
        }
    }

    /// Decodes a word. An invalid word counts as void, so that no follower waits for it.
    pub fn decode(word: u64) -> Word {
        match word {
            0 => Word::Open,
            entry if entry & IS_ENTRY != 0 => {
                let len = ((entry >> 32) & LEN_MAX) as u32;
                Word::Entry { len, is_transaction: entry & IS_TRANSACTION != 0, sum: entry as u32 }
            }
            _ => Word::Void,
        }
    }
}

/// Returns the checksum by which a follower detects missing bytes of a record.
#[inline]
pub(crate) fn checksum(record: &[u8]) -> u32 {
    xxhash_rust::xxh3::xxh3_64(record) as u32
}
