//! Layout of the regions of a key-value store.
//!
//! ```text
//!   NAME            | magic | shards | function | node of shard 0 | node of shard 1 | ...      words of 8 bytes
//!   NAME/S          | generation | buckets |                                             the root of shard S
//!   NAME/S/tG       | bucket of 16 slots | bucket | ...                                  its table, generation G
//!   NAME/S/hN       | entry | entry | ...                                                part N of its heap
//!   NAME/S/lN       | entry                                                              long entry N
//!
//!   slot            63 ......... 32 | 31 ....... 24 | 23 ......... 0       0: empty; all ones: the table has moved
//!                   place in units  | class + 1     | tag of the key
//!                   or number of a long entry
//!
//!   entry           checksum u64 | expiry u64 | key bytes u32 | value bytes u32 | key | value
//! ```
//!
//! An entry does not change while a slot points to it: the owner writes a new value elsewhere, then changes the slot.

use std::ops::Range;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a value, in bytes.
pub const VALUE_BYTES_MAX: usize = 512 << 20;
/// Maximum number of shards of a store.
pub const SHARDS_MAX: usize = 61;

pub(super) const WORD: u64 = 8;
/// First word of the head.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"halikv_1");
pub(super) const HEAD_WORDS: usize = 3 + SHARDS_MAX;
pub(super) const ROOT_BYTES: u64 = 2 * WORD;

pub(super) const BUCKET_SLOTS: usize = 16;
pub(super) const BUCKET_BYTES: u64 = BUCKET_SLOTS as u64 * WORD;
/// Maximum number of buckets of a table.
pub(super) const BUCKETS_MAX: u64 = 1 << 32;

/// Value of the slots of a table that was replaced.
pub(super) const MOVED: u64 = u64::MAX;
/// Bytes per unit of the heap.
pub(super) const UNIT: u64 = 64;
/// Maximum number of units per part. Part N holds the units of the heap from N * `PART_UNITS` on.
pub(super) const PART_UNITS: u64 = 1 << 16;
/// Units of the first part. Each further part has twice as many, so that a store of few keys is small.
pub(super) const FIRST_PART_UNITS: u64 = 1 << 10;
pub(super) const PART_BYTES: u64 = PART_UNITS * UNIT;
const HEADER_BYTES: usize = 24;

/// Number of classes of blocks in the heap's parts: 1, 2, 3 or 4 units, or 5 to 8 units times a power of two.
pub(super) const CLASSES: u8 = 53;
/// Number of all classes: those of blocks, and then those of long entries, which have a region each.
const ALL_CLASSES: u8 = 89;

/// Returns the units of a block of `class`.
pub(super) fn units_of(class: u8) -> u64 {
    match class {
        0..4 => u64::from(class) + 1,
        _ => (5 + u64::from(class) % 4) << ((class - 4) / 4),
    }
}

/// Returns the smallest class with blocks that hold `bytes` bytes; `None` if no class has such blocks.
pub(super) fn class_of(bytes: usize) -> Option<u8> {
    let units = (bytes as u64).div_ceil(UNIT);
    (0..ALL_CLASSES).find(|class| units_of(*class) >= units)
}

/// Hash of a key, which determines its shard, bucket and tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hash(u64);

impl Hash {
    pub(super) fn of(key: &[u8]) -> Hash {
        Hash(xxh3_64(key))
    }

    /// Returns the number of the shard, less than `shards`.
    pub(super) fn shard(self, shards: usize) -> usize {
        ((u128::from(self.0) * shards as u128) >> u64::BITS) as usize
    }

    /// Returns the bits that determine the bucket.
    pub(super) fn bucket_bits(self) -> u32 {
        self.0 as u32
    }

    /// Returns the tag, which distinguishes the keys of a bucket, except one pair in 16 million.
    pub(super) fn tag(self) -> u32 {
        (self.0 >> 32) as u32 & TAG_MAX
    }
}

/// Returns the number of the bucket, less than `buckets`, which is a power of two.
pub(super) fn bucket_of(bucket_bits: u32, buckets: u64) -> u64 {
    u64::from(bucket_bits) & (buckets - 1)
}

const TAG_MAX: u32 = (1 << 24) - 1;

/// Content of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    /// Place of the entry, in units from the start of the heap; the number of a long entry.
    pub(super) place: u32,
    pub(super) class: u8,
    pub(super) tag: u32,
}

impl Slot {
    pub(super) fn encode(self) -> u64 {
        u64::from(self.place) << 32 | (u64::from(self.class) + 1) << 24 | u64::from(self.tag)
    }

    /// Decodes a word; `None` if it points to no entry.
    pub(super) fn decode(word: u64) -> Option<Slot> {
        let class = ((word >> 24) as u8).checked_sub(1)?;
        let slot = Slot { place: (word >> 32) as u32, class, tag: word as u32 & TAG_MAX };
        let fits = slot.is_long() || slot.offset() + slot.bytes() <= PART_BYTES;
        (class < ALL_CLASSES && fits).then_some(slot)
    }

    /// Decodes a word; `None` if it points to no entry, or to an entry that cannot have the key of `hash`.
    #[inline]
    pub(super) fn decode_of(word: u64, hash: Hash) -> Option<Slot> {
        // The tag is compared first, because nearly all slots point to other keys.
        if word as u32 & TAG_MAX == hash.tag() { Slot::decode(word) } else { None }
    }

    /// Returns true if the entry has a region of its own, and is in no part of the heap.
    pub(super) fn is_long(self) -> bool {
        self.class >= CLASSES
    }

    /// Returns the number of the heap's part that holds the entry.
    pub(super) fn part(self) -> usize {
        (u64::from(self.place) / PART_UNITS) as usize
    }

    /// Returns the offset of the entry in its part, in bytes.
    pub(super) fn offset(self) -> u64 {
        u64::from(self.place) % PART_UNITS * UNIT
    }

    /// Returns the length of the block; of a long entry, the maximum length, which is at most a quarter more.
    pub(super) fn bytes(self) -> u64 {
        units_of(self.class) * UNIT
    }
}

/// An entry as read from memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry<'a> {
    /// Expiry in ms of the owner's clock; 0 for never.
    pub(super) expires_ms: u64,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Returns the length of an entry, in bytes.
    pub(super) fn bytes(key: usize, value: usize) -> usize {
        HEADER_BYTES + key + value
    }

    pub(super) fn encode(&self, place: u32, into: &mut Vec<u8>) {
        into.clear();
        into.extend([0; 8]);
        into.extend(self.expires_ms.to_le_bytes());
        into.extend((self.key.len() as u32).to_le_bytes());
        into.extend((self.value.len() as u32).to_le_bytes());
        into.extend(self.key);
        into.extend(self.value);
        let sum = xxh3_64_with_seed(&into[8..], place.into());
        into[..8].copy_from_slice(&sum.to_le_bytes());
    }

    /// Decodes a block. Returns `None` if the block does not hold an entry that was written to `place`, because the
    /// block is being changed or is damaged.
    pub(super) fn decode(block: &'a [u8], place: u32) -> Option<Entry<'a>> {
        let (header, rest) = block.split_first_chunk::<HEADER_BYTES>()?;
        let word = |range: Range<usize>| u64::from_le_bytes(header[range].try_into().expect("8 bytes"));
        let len =
            |range: Range<usize>| u32::from_le_bytes(header[range].try_into().expect("4 bytes")) as usize;
        let (key_len, value_len) = (len(16..20), len(20..24));
        let (key, rest) = rest.split_at_checked(key_len)?;
        let value = rest.get(..value_len)?;
        let sum = xxh3_64_with_seed(&block[8..HEADER_BYTES + key_len + value_len], place.into());
        (sum == word(0..8)).then_some(Entry { expires_ms: word(8..16), key, value })
    }
}

/// Encodes words in little-endian order, such as those of the store's head.
pub(super) fn encode_words(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

pub(super) fn decode_words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
}

/// Returns the id of a store, by which an owner recognises requests to it.
pub(super) fn store_id(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

pub(super) fn root_name(name: &str, shard: usize) -> String {
    format!("{name}/{shard}")
}

pub(super) fn table_name(name: &str, shard: usize, generation: u64) -> String {
    format!("{name}/{shard}/t{generation}")
}

pub(super) fn part_name(name: &str, shard: usize, part: usize) -> String {
    format!("{name}/{shard}/h{part}")
}

pub(super) fn long_entry_name(name: &str, shard: usize, number: u32) -> String {
    format!("{name}/{shard}/l{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_entry_has_a_class() {
        let class = class_of(Entry::bytes(KEY_BYTES_MAX, VALUE_BYTES_MAX));
        assert_eq!(class, Some(ALL_CLASSES - 1));
        let slot = Slot { place: 7, class: ALL_CLASSES - 1, tag: 3 };
        assert_eq!(Slot::decode(slot.encode()), Some(slot));
        assert_eq!(Slot::decode(Slot { class: ALL_CLASSES, ..slot }.encode()), None);
    }

    #[test]
    fn an_entry_with_a_changed_bit_is_refused() {
        let entry = Entry { expires_ms: 7, key: b"key", value: b"value" };
        let mut bytes = Vec::new();
        entry.encode(9, &mut bytes);
        bytes.resize(64, 0);
        assert_eq!(Entry::decode(&bytes, 9), Some(entry));
        assert_eq!(Entry::decode(&bytes, 10), None);
        for bit in 0..Entry::bytes(3, 5) * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Entry::decode(&bytes, 9), None, "{bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(Entry::decode(&[0; 10], 9), None);
    }
}
