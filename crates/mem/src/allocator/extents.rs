//! Free extents, ordered by size for best fit and by address for coalescing.

use std::collections::{BTreeMap, BTreeSet};

/// The free extents of all segments. No two of these extents are adjacent.
#[derive(Debug, Default)]
pub(super) struct FreeExtents {
    /// Length of each extent, by segment and offset.
    by_place: BTreeMap<(u32, u64), u64>,
    /// Length, segment and offset of each extent.
    by_len: BTreeSet<(u64, u32, u64)>,
}

impl FreeExtents {
    /// Removes `len` bytes from the end of the smallest extent that is long enough, and returns their segment and
    /// offset. Among extents of equal length, uses the first one. The rest keeps its start, so the bytes join the
    /// extent again when they are freed.
    pub(super) fn take(&mut self, len: u64) -> Option<(u32, u64)> {
        let &(found_len, segment, offset) = self.by_len.range((len, 0, 0)..).next()?;
        let left = found_len - len;
        if left > 0 {
            self.resize((segment, offset), found_len, left);
        } else {
            self.remove((segment, offset), found_len);
        }
        Some((segment, offset + left))
    }

    /// Adds an extent that is not free yet, and joins it with its free neighbours.
    pub(super) fn insert(&mut self, segment: u32, offset: u64, mut len: u64) {
        let after = (segment, offset + len);
        if let Some(&after_len) = self.by_place.get(&after) {
            self.remove(after, after_len);
            len += after_len;
        }
        let place = (segment, offset);
        match self.by_place.range(..place).next_back() {
            Some((&before, &before_len)) if before.0 == segment && before.1 + before_len == offset => {
                self.resize(before, before_len, before_len + len);
            }
            _ => {
                self.by_place.insert(place, len);
                self.by_len.insert((len, segment, offset));
            }
        }
    }

    /// Returns the length in bytes of the largest extent; 0 if no extent is free.
    pub(super) fn largest(&self) -> u64 {
        self.by_len.last().map_or(0, |(len, ..)| *len)
    }

    /// Returns the number of extents.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        assert_eq!(self.by_place.len(), self.by_len.len());
        self.by_place.len()
    }

    fn resize(&mut self, place: (u32, u64), len_old: u64, len_new: u64) {
        self.by_place.insert(place, len_new);
        self.by_len.remove(&(len_old, place.0, place.1));
        self.by_len.insert((len_new, place.0, place.1));
    }

    fn remove(&mut self, place: (u32, u64), len: u64) {
        self.by_place.remove(&place);
        self.by_len.remove(&(len, place.0, place.1));
    }
}
