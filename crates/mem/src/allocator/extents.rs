//! Free extents, in order of size to find the best fit and in order of address to coalesce neighbours.

use std::collections::{BTreeMap, BTreeSet};

/// The free extents of all segments; no two of them touch.
#[derive(Debug, Default)]
pub(super) struct FreeExtents {
    /// Lengths by segment and offset.
    by_place: BTreeMap<(u32, u64), u64>,
    /// Length, segment, offset.
    by_len: BTreeSet<(u64, u32, u64)>,
}

impl FreeExtents {
    /// Takes `len` bytes from the smallest extent that has as many; among equals from the first.
    pub(super) fn take(&mut self, len: u64) -> Option<(u32, u64)> {
        let found = *self.by_len.range((len, 0, 0)..).next()?;
        let (found_len, segment, offset) = found;
        self.by_len.remove(&found);
        self.by_place.remove(&(segment, offset));
        if found_len > len {
            self.add(segment, offset + len, found_len - len);
        }
        Some((segment, offset))
    }

    /// Adds an extent that is not free yet, joined with its free neighbours.
    pub(super) fn insert(&mut self, segment: u32, mut offset: u64, mut len: u64) {
        let place = (segment, offset);
        if let Some((&before, &before_len)) = self.by_place.range(..place).next_back()
            && before.0 == segment
            && before.1 + before_len == offset
        {
            self.remove(before, before_len);
            offset = before.1;
            len += before_len;
        }
        let after = (segment, offset + len);
        if let Some(&after_len) = self.by_place.get(&after) {
            self.remove(after, after_len);
            len += after_len;
        }
        self.add(segment, offset, len);
    }

    /// Length in bytes of the largest extent; 0 if there is none.
    pub(super) fn largest(&self) -> u64 {
        self.by_len.last().map_or(0, |(len, ..)| *len)
    }

    /// How many extents there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        assert_eq!(self.by_place.len(), self.by_len.len());
        self.by_place.len()
    }

    fn add(&mut self, segment: u32, offset: u64, len: u64) {
        self.by_place.insert((segment, offset), len);
        self.by_len.insert((len, segment, offset));
    }

    fn remove(&mut self, place: (u32, u64), len: u64) {
        self.by_place.remove(&place);
        self.by_len.remove(&(len, place.0, place.1));
    }
}
