//! The layout of regions: the arithmetic of chunks, and extents, which are runs of consecutive chunks.
//!
//! A region of `len` bytes consists of chunks of `chunk_bytes`, a power of two; the last chunk may be shorter.
//! Consecutive chunks that are adjacent in one segment of one node form one [`Extent`], so a large region on one node
//! is a single extent:
//!
//! ```text
//!  region  |  chunk 0  |  chunk 1  |  chunk 2  | chunk 3 |      len = 3.6 chunks
//!  extents |  node 1, key 0, offset a, 2 chunks |  node 2, ... |  node 1, ...    |
//! ```

use halite_fabric::Key;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::ids::{NodeId, NodeIncarnation};

/// Minimum chunk size, in bytes.
pub const CHUNK_BYTES_MIN: u64 = 4096;

/// Maximum number of extents of one region. An extent takes up to 40 bytes in a message, so all extents take 2.5 MB.
pub const EXTENTS_MAX: usize = 1 << 16;

/// An extent: consecutive chunks of one region that are adjacent in one segment of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Extent {
    /// The node whose arena holds the chunks.
    pub owner: NodeIncarnation,
    /// Key of the segment that holds the chunks.
    #[serde(with = "key_as_u32")]
    pub key: Key,
    /// Offset in the segment, in bytes.
    pub offset: u64,
    /// Length of the extent in bytes.
    pub len: u64,
}

impl Extent {
    /// Returns true if `offset + len` fits into 64 bits.
    pub fn is_sound(&self) -> bool {
        self.offset.checked_add(self.len).is_some()
    }

    /// Returns true if this extent and `other` are on the same node and overlap.
    pub fn touches(&self, other: &Extent) -> bool {
        let (end, other_end) = (self.offset + self.len, other.offset + other.len);
        self.key == other.key && self.offset < other_end && other.offset < end
    }

    /// Removes the first `len` bytes from this extent and returns them as an extent. `len` must be at most `self.len`.
    pub fn cut_front(&mut self, len: u64) -> Extent {
        let front = Extent { len, ..*self };
        (self.offset, self.len) = (self.offset + len, self.len - len);
        front
    }
}

mod key_as_u32 {
    use halite_fabric::Key;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(key: &Key, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(key.0)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        u32::deserialize(deserializer).map(Key)
    }
}

/// The extents of a region, in the order of its bytes.
pub type Extents = SmallVec<[Extent; 1]>;

/// Returns the number of chunks in a region of `len` bytes.
pub fn chunk_count(len: u64, chunk_bytes: u64) -> u64 {
    len.div_ceil(chunk_bytes)
}

/// Returns the length of chunk `index` in bytes, or zero past the end of the region.
pub fn chunk_len(len: u64, chunk_bytes: u64, index: u64) -> u64 {
    let start = index.saturating_mul(chunk_bytes);
    len.saturating_sub(start).min(chunk_bytes)
}

/// Returns true if regions can have chunks of this size.
pub(crate) fn is_chunk_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes >= CHUNK_BYTES_MIN
}

/// Returns true if `extents` have exactly `len` bytes in total, end at chunk boundaries, and do not overflow.
pub fn is_sound(extents: &[Extent], len: u64, chunk_bytes: u64) -> bool {
    let mut total: u64 = 0;
    for (index, extent) in extents.iter().enumerate() {
        let last = index + 1 == extents.len();
        let whole_chunks = extent.len.is_multiple_of(chunk_bytes);
        if extent.len == 0 || extent.offset.checked_add(extent.len).is_none() || !(last || whole_chunks) {
            return false;
        }
        match total.checked_add(extent.len) {
            Some(sum) => total = sum,
            None => return false,
        }
    }
    total == len
}

/// Appends `extent` to `extents`, merged with the last extent if the two are adjacent.
pub fn append(extents: &mut Extents, extent: Extent) {
    if let Some(last) = extents.last_mut() {
        let touches =
            last.owner == extent.owner && last.key == extent.key && last.offset + last.len == extent.offset;
        if touches {
            last.len += extent.len;
            return;
        }
    }
    extents.push(extent);
}

/// Returns the location of chunk `index`. Panics if the region has no such chunk.
pub fn chunk_extent(extents: &[Extent], chunk_bytes: u64, index: u64) -> Extent {
    let mut start = index * chunk_bytes;
    for extent in extents {
        if start < extent.len {
            let len = (extent.len - start).min(chunk_bytes);
            return Extent { offset: extent.offset + start, len, ..*extent };
        }
        start -= extent.len;
    }
    unreachable!("chunk {index} is behind the end of its region");
}

/// Returns the extents of a region in which the bytes from region offset `from` on have moved to `place`. The number of
/// moved bytes is the length of `place`.
pub fn with_range_at(extents: &[Extent], from: u64, place: Extent) -> Extents {
    let total = total_len(extents);
    let to = from.saturating_add(place.len).min(total);
    let mut result = Extents::new();
    for extent in slice(extents, 0, from) {
        append(&mut result, extent);
    }
    append(&mut result, place);
    for extent in slice(extents, to, total) {
        append(&mut result, extent);
    }
    result
}

/// Returns the total length of `extents` in bytes.
pub fn total_len(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.len).sum()
}

/// Returns the locations of the bytes `from..to` of the region that consists of `extents`.
pub fn slice(extents: &[Extent], from: u64, to: u64) -> Extents {
    let mut result = Extents::new();
    let mut start = 0;
    for extent in extents {
        let (low, high) = (from.max(start), to.min(start + extent.len));
        if low < high {
            let offset = extent.offset + (low - start);
            result.push(Extent { offset, len: high - low, ..*extent });
        }
        start += extent.len;
    }
    result
}

/// Adds `bytes` to the share of a node; `shares` are ordered by node.
pub fn add_share(shares: &mut Vec<(NodeId, u64)>, node: NodeId, bytes: u64) {
    match shares.binary_search_by_key(&node, |(node, _)| *node) {
        Ok(index) => shares[index].1 += bytes,
        Err(index) => shares.insert(index, (node, bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;
    use proptest::prelude::*;

    const CHUNK: u64 = 4096;

    fn extent(node: u32, offset: u64, len: u64) -> Extent {
        let owner = NodeIncarnation { node: NodeId(node), id: Incarnation(1) };
        Extent { owner, key: Key(0), offset, len }
    }

    /// The model: one entry per chunk.
    fn chunks_of(extents: &[Extent]) -> Vec<Extent> {
        let mut chunks = Vec::new();
        for extent in extents {
            let mut done = 0;
            while done < extent.len {
                let len = (extent.len - done).min(CHUNK);
                chunks.push(Extent { offset: extent.offset + done, len, ..*extent });
                done += len;
            }
        }
        chunks
    }

    #[test]
    fn extents_that_do_not_add_up_are_refused() {
        assert!(is_sound(&[extent(0, 0, CHUNK), extent(1, 0, 5)], CHUNK + 5, CHUNK));
        assert!(!is_sound(&[extent(0, 0, 5), extent(1, 0, CHUNK)], CHUNK + 5, CHUNK));
        assert!(!is_sound(&[extent(0, u64::MAX, CHUNK)], CHUNK, CHUNK));
        assert!(!is_sound(&[extent(0, 0, 0)], 0, CHUNK));
        assert!(!is_sound(&[extent(0, 0, u64::MAX - CHUNK + 1); 2], 1, CHUNK));
    }

    proptest! {
        #[test]
        fn moving_a_chunk_changes_no_other(
            runs in prop::collection::vec((0u32..3, 1u64..5), 1..6), tail in 1u64..CHUNK, pick in any::<prop::sample::Index>(),
        ) {
            let mut extents = Extents::new();
            for (index, (node, chunks)) in runs.iter().enumerate() {
                append(&mut extents, extent(*node, index as u64 * (1 << 20), chunks * CHUNK));
            }
            append(&mut extents, extent(7, 0, tail));
            let len: u64 = extents.iter().map(|extent| extent.len).sum();
            let mut model = chunks_of(&extents);
            prop_assert_eq!(model.len() as u64, chunk_count(len, CHUNK));
            let index = pick.index(model.len());
            prop_assert_eq!(chunk_extent(&extents, CHUNK, index as u64), model[index]);
            let place = extent(9, 1 << 30, chunk_len(len, CHUNK, index as u64));
            model[index] = place;
            let moved = with_range_at(&extents, index as u64 * CHUNK, place);
            prop_assert!(is_sound(&moved, len, CHUNK));
            prop_assert_eq!(chunks_of(&moved), model);
        }

        #[test]
        fn slice_returns_the_range(cuts in prop::collection::vec(1u64..9, 1..5), a in 0u64..40, b in 0u64..40) {
            let extents: Vec<Extent> = cuts.iter().enumerate().map(|(i, len)| extent(i as u32, i as u64 * 100, *len)).collect();
            let bytes = |extents: &[Extent]| -> Vec<(u32, u64)> {
                extents.iter().flat_map(|e| (0..e.len).map(move |i| (e.owner.node.0, e.offset + i))).collect()
            };
            let all = bytes(&extents);
            let (from, to) = (a.min(b) as usize, (a.max(b) as usize).min(all.len()));
            let expected = if from < to { all[from..to].to_vec() } else { Vec::new() };
            prop_assert_eq!(bytes(&slice(&extents, from as u64, to as u64)), expected);
        }
    }
}
