//! The header word of a record. A producer publishes a record by the store of this word, so the word contains all
//! fields of the record except the payload.
//!
//! ```text
//!   bit 0      3      6            32             64
//!       | lap  | kind | len        | imm          |
//! ```
//!
//! The lap, which is one pass over the ring, distinguishes a record from an older record at the same offset. The number
//! of a lap is never 0, so new and cleared lines contain no header.

const LAP_BITS: u32 = 3;
const KIND_SHIFT: u32 = LAP_BITS;
const KIND_BITS: u32 = 3;
const LEN_SHIFT: u32 = KIND_SHIFT + KIND_BITS;
const LEN_BITS: u32 = 26;
const IMM_SHIFT: u32 = LEN_SHIFT + LEN_BITS;

/// Number of kinds of records.
pub(super) const KINDS: u8 = 1 << KIND_BITS;
/// Maximum payload length that a header can hold, in bytes.
pub(super) const LEN_MAX: u64 = (1 << LEN_BITS) - 1;

/// The fields of a record's header; the lap shows whether the record is current.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) kind: u8,
    pub(super) imm: u32,
    /// Length of the payload in bytes.
    pub(super) len: u32,
}

/// The number of the pass over the ring to which a position belongs: 1 to 4, and then 1 again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lap(u8);

impl Lap {
    /// Returns the lap of `position`. Two numbers would suffice to distinguish a lap from the next one. With four
    /// numbers, a consumer also detects a corrupt header, whose lap is neither the current nor the previous one.
    pub(super) fn of(position: u64, capacity: u64) -> Lap {
        Lap(1 + (position >> capacity.trailing_zeros()) as u8 % 4)
    }

    /// Returns true if `word` is the header of a record of this lap.
    pub(super) fn matches(self, word: u64) -> bool {
        word as u8 % (1 << LAP_BITS) == self.0
    }
}

impl Header {
    pub(super) fn pack(self, lap: Lap) -> u64 {
        debug_assert!(self.kind < KINDS && u64::from(self.len) <= LEN_MAX);
        u64::from(lap.0)
            | u64::from(self.kind) << KIND_SHIFT
            | u64::from(self.len) << LEN_SHIFT
            | u64::from(self.imm) << IMM_SHIFT
    }

    /// Decodes a header word. Every word is valid; only the length can be out of bounds.
    pub(super) fn unpack(word: u64) -> Header {
        Header {
            kind: (word >> KIND_SHIFT) as u8 % KINDS,
            imm: (word >> IMM_SHIFT) as u32,
            len: (word >> LEN_SHIFT & LEN_MAX) as u32,
        }
    }
}
