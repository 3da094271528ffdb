//! Allocates byte ranges of segments.
//!
//! The allocator works on offsets only and never touches the segments. Its state stays in private memory, so processes
//! that write to the segments cannot corrupt it. Objects of up to 4 KiB come from slabs, which are cut into objects of
//! one size; larger objects come from free extents, which are ordered by size and by address. The time of an allocation
//! does not depend on its size. The allocator is not thread-safe: callers must hold a lock.

mod extents;
mod slab;

use std::collections::BTreeMap;

use extents::FreeExtents;
use slab::{SLAB_BYTES, Slab, SlabId, Slabs};

/// A contiguous piece of a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    /// Segment number, as returned by [`Allocator::add_segment`].
    pub segment: u32,
    /// Offset of the first byte from the start of the segment.
    pub offset: u64,
    /// Length in bytes, exactly as requested.
    pub len: u64,
}

/// The error of [`Allocator::free`] and [`Allocator::free_range`]: the extent is not allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "cannot free {} bytes at offset {} of segment {}: no such extent is allocated",
    .extent.len, .extent.offset, .extent.segment
)]
pub struct BadFree {
    /// The extent that the caller tried to free.
    pub extent: Extent,
}

/// Allocates extents from a growing list of segments.
///
/// ```
/// # use halite_mem::Allocator;
/// let mut allocator = Allocator::new(64);
/// allocator.add_segment(1 << 30);
/// let extent = allocator.allocate(100).expect("there is room");
/// assert_eq!((extent.len, extent.offset % 64), (100, 0));
/// allocator.free(extent)?;
/// assert!(allocator.free(extent).is_err());
/// # Ok::<(), halite_mem::BadFree>(())
/// ```
#[derive(Debug)]
pub struct Allocator {
    /// Alignment in bytes: all offsets are multiples of it, and all lengths are rounded up to multiples of it.
    alignment: u64,
    segments: u32,
    free: FreeExtents,
    slabs: Slabs,
    /// All parts that are not in `free`, by segment and offset.
    used: BTreeMap<(u32, u64), Block>,
    bytes_free: u64,
    bytes_total: u64,
}

/// The use of a part of a segment.
#[derive(Clone, Copy, Debug)]
enum Block {
    /// An extent, with its requested length in bytes.
    Extent(u64),
    Slab(SlabId),
}

impl Allocator {
    /// Creates an allocator without memory. All offsets that it returns are multiples of `alignment` bytes, so no two
    /// objects share a cache line. Panics unless `alignment` is a power of two of at least 64 (a cache line).
    pub fn new(alignment: u64) -> Allocator {
        assert!(alignment.is_power_of_two() && alignment >= 64, "alignment of {alignment} bytes");
        Allocator {
            alignment,
            segments: 0,
            free: FreeExtents::default(),
            slabs: Slabs::new(alignment),
            used: BTreeMap::new(),
            bytes_free: 0,
            bytes_total: 0,
        }
    }

    /// Adds a segment of `len` bytes and returns its number, counted from 0. A remainder that is shorter than the
    /// alignment stays unused.
    pub fn add_segment(&mut self, len: u64) -> u32 {
        let segment = self.segments;
        self.segments += 1;
        let len = len - len % self.alignment;
        if len > 0 {
            self.free.insert(segment, 0, len);
        }
        self.bytes_free += len;
        self.bytes_total += len;
        segment
    }

    /// Allocates `len` contiguous bytes. Returns `None` if no free extent is large enough, or if `len` is zero.
    pub fn allocate(&mut self, len: u64) -> Option<Extent> {
        // An extent of this length may fit even if a new slab does not.
        self.allocate_small(len).or_else(|| self.allocate_extent(len))
    }

    /// Allocates one piece of a longer range, for callers that can use several pieces. Returns `len_max` bytes if a
    /// free extent is long enough. Otherwise returns the largest free extent, rounded down to a multiple of
    /// `multiple_of` bytes. Returns `None` if the result would be shorter than `len_min` bytes.
    pub fn allocate_run(&mut self, len_min: u64, len_max: u64, multiple_of: u64) -> Option<Extent> {
        assert!(multiple_of > 0, "a run cannot be a multiple of zero bytes");
        assert!(len_min <= len_max, "a run of at least {len_min} and at most {len_max} bytes");
        self.allocate(len_max).or_else(|| {
            let largest = self.largest_free().min(len_max);
            let len = largest - largest % multiple_of;
            if len < len_min { None } else { self.allocate_extent(len) }
        })
    }

    /// Frees a whole extent. The length must be the allocated length; for small objects, any length that rounds up to
    /// the same size class is valid. Fails if no such extent is allocated.
    pub fn free(&mut self, extent: Extent) -> Result<(), BadFree> {
        let address = (extent.segment, extent.offset);
        let predecessor = self.used.range(..=address).next_back();
        let Some((&start, &block)) = predecessor.filter(|(start, _)| start.0 == extent.segment) else {
            return Err(BadFree { extent });
        };
        match block {
            Block::Extent(len) if start == address && len == extent.len => self.free_extent(extent),
            Block::Slab(slab) => return self.free_small(slab, extent),
            Block::Extent(_) => return Err(BadFree { extent }),
        }
        Ok(())
    }

    /// Frees a range: a part of an allocated extent, or several adjacent extents. If a boundary of the range is inside
    /// an extent, it must be a multiple of the alignment. The range must contain each small object as a whole. Only the
    /// last object of the range may be shorter than its size class. Fails if a part of the range is not allocated.
    pub fn free_range(&mut self, range: Extent) -> Result<(), BadFree> {
        let mut parts = Vec::new();
        let mut offset = range.offset;
        let end = range.offset.checked_add(range.len).ok_or(BadFree { extent: range })?;
        while offset < end {
            let part = self.used_part(range.segment, offset, end).ok_or(BadFree { extent: range })?;
            offset += part.len;
            parts.push(part);
        }
        for part in parts {
            self.split_around(part);
            self.free(part)?;
        }
        Ok(())
    }

    /// Returns the allocated part of `offset..end` that belongs to the extent or small object at `offset`.
    fn used_part(&self, segment: u32, offset: u64, end: u64) -> Option<Extent> {
        let (&(_, start), &block) =
            self.used.range(..=(segment, offset)).next_back().filter(|(start, _)| start.0 == segment)?;
        let len = match block {
            Block::Extent(len) if offset.is_multiple_of(self.alignment) => {
                (start + len).min(end).checked_sub(offset)?
            }
            Block::Extent(_) => return None,
            Block::Slab(slab) => (end - offset).min(self.slabs.object_bytes(slab)),
        };
        (len > 0).then_some(Extent { segment, offset, len })
    }

    /// Splits the extent around `part`, so that `part` is an extent of its own.
    fn split_around(&mut self, part: Extent) {
        let address = (part.segment, part.offset);
        let (&(_, start), &block) = self.used.range(..=address).next_back().expect("the part is allocated");
        let Block::Extent(len) = block else { return };
        let (end, part_end) = (start + len, part.offset + part.len);
        let cut = part_end.next_multiple_of(self.alignment);
        if cut < end {
            self.used.insert((part.segment, cut), Block::Extent(end - cut));
        }
        self.used.insert(address, Block::Extent(part.len));
        if start < part.offset {
            self.used.insert((part.segment, start), Block::Extent(part.offset - start));
        }
    }

    /// Returns the number of bytes that are not allocated. Bytes lost to rounding count as allocated. The free bytes
    /// may be fragmented, so an allocation of fewer bytes can still fail.
    pub fn bytes_free(&self) -> u64 {
        self.bytes_free
    }

    /// Returns the sum of the lengths of all segments in bytes, without their unused remainders.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    /// Returns the length in bytes of the largest free extent. Free objects inside slabs do not count.
    pub fn largest_free(&self) -> u64 {
        self.free.largest()
    }

    fn allocate_extent(&mut self, len: u64) -> Option<Extent> {
        if len == 0 {
            return None;
        }
        let len_rounded = len.checked_next_multiple_of(self.alignment)?;
        let (segment, offset) = self.free.take(len_rounded)?;
        self.used.insert((segment, offset), Block::Extent(len));
        self.bytes_free -= len_rounded;
        Some(Extent { segment, offset, len })
    }

    fn free_extent(&mut self, extent: Extent) {
        let len_rounded = extent.len.next_multiple_of(self.alignment);
        self.used.remove(&(extent.segment, extent.offset));
        self.free.insert(extent.segment, extent.offset, len_rounded);
        self.bytes_free += len_rounded;
    }

    fn allocate_small(&mut self, len: u64) -> Option<Extent> {
        let class = self.slabs.class_of(len)?;
        if !self.slabs.has_free(class) {
            let (segment, offset) = self.free.take(SLAB_BYTES)?;
            let slab = self.slabs.add(Slab::new(segment, offset, class));
            self.used.insert((segment, offset), Block::Slab(slab));
        }
        let (segment, offset) = self.slabs.allocate(class);
        self.bytes_free -= class.bytes();
        Some(Extent { segment, offset, len })
    }

    fn free_small(&mut self, slab: SlabId, extent: Extent) -> Result<(), BadFree> {
        let class = self.slabs.class_of(extent.len).ok_or(BadFree { extent })?;
        if !self.slabs.free(slab, class, extent.offset) {
            return Err(BadFree { extent });
        }
        self.bytes_free += class.bytes();
        if let Some((segment, offset)) = self.slabs.remove_if_empty(slab) {
            self.used.remove(&(segment, offset));
            self.free.insert(segment, offset, SLAB_BYTES);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
