//! Free extents, ordered by size for best fit and by address for coalescing.

use std::collections::{BTreeMap, BTreeSet};

/// The free extents of all segments. No two of these extents are adjacent.
#[derive(Debug, Default)]
pub(super) struct FreeExtents {
    /// Length of each extent, by segment and offset.
    by_address: BTreeMap<(u32, u64), u64>,
    /// Length, segment and offset of each extent.
    by_len: BTreeSet<(u64, u32, u64)>,
}

impl FreeExtents {
    /// Removes `len` bytes from the end of the smallest extent that is long enough, and returns their segment and
    /// offset. Among extents of equal length, uses the first one. The rest keeps its start, so the bytes coalesce with
    /// it when they are freed.
    pub(super) fn take(&mut self, len: u64) -> Option<(u32, u64)> {
        let &(found_len, segment, offset) = self.by_len.range((len, 0, 0)..).next()?;
        let rest = found_len - len;
        if rest > 0 {
            self.resize((segment, offset), found_len, rest);
        } else {
            self.remove((segment, offset), found_len);
        }
        Some((segment, offset + rest))
    }

    /// Adds an extent, and coalesces it with its free neighbours.
    pub(super) fn insert(&mut self, segment: u32, offset: u64, mut len: u64) {
        let after = (segment, offset + len);
        if let Some(&after_len) = self.by_address.get(&after) {
            self.remove(after, after_len);
            len += after_len;
        }
        let address = (segment, offset);
        match self.by_address.range(..address).next_back() {
            Some((&before, &before_len)) if before.0 == segment && before.1 + before_len == offset => {
                self.resize(before, before_len, before_len + len);
            }
            _ => {
                self.by_address.insert(address, len);
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
        assert_eq!(self.by_address.len(), self.by_len.len());
        self.by_address.len()
    }

    fn resize(&mut self, address: (u32, u64), len_old: u64, len_new: u64) {
        self.by_address.insert(address, len_new);
        self.by_len.remove(&(len_old, address.0, address.1));
        self.by_len.insert((len_new, address.0, address.1));
    }

    fn remove(&mut self, address: (u32, u64), len: u64) {
        self.by_address.remove(&address);
        self.by_len.remove(&(len, address.0, address.1));
    }
}
