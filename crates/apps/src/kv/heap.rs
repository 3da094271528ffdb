//! Memory of a shard's entries: regions that are divided into blocks of several size classes.
//!
//! A free block holds an entry of its class, or is split for shorter entries. From time to time adjacent free blocks
//! are merged. A reader that reads a reused block detects this when it checks the slot again. A long entry has a region
//! of its own, which is freed with it.

use std::collections::BTreeMap;

use halite::{AllocOptions, Lh, Permissions, RegionCause, Session, WriteOp};

use super::error::KvError;
use super::layout::{
    CLASSES, FIRST_PART_UNITS, PART_UNITS, Slot, UNIT, long_entry_name, part_name, units_of,
};
use crate::directory::is_without_directory;

/// Number of larger classes that are searched for a free block before the heap grows. Blocks of the last class searched
/// are twice as long as requested.
const LARGER_CLASSES_MAX: u8 = 4;
/// Free blocks are merged once `1 / MERGE_DIVISOR` of all units was freed since the last merge. The second value
/// applies if the heap cannot grow.
const MERGE_DIVISOR: u64 = 8;
const MERGE_DIVISOR_WHEN_FULL: u64 = 64;
/// If there is no memory for a new part, its size is halved repeatedly, down to `1 / PART_DIVISOR_MAX` of it.
const PART_DIVISOR_MAX: u64 = 8;

/// The owner's state of the heap.
pub(super) struct Heap {
    session: Session,
    name: String,
    shard: usize,
    everyone: Permissions,
    parts: Vec<Part>,
    /// Units of all parts.
    units_total: u64,
    /// Units of the last part.
    last_part_units: u64,
    /// Units at the start of the last part that were allocated at least once.
    last_part_used: u64,
    free: FreeBlocks,
    /// Bytes of all blocks in use.
    bytes_used: u64,
    /// Set when a block is freed; cleared when the heap is searched for empty parts.
    may_shrink: bool,
    /// Long entries, by number.
    long: BTreeMap<u32, Long>,
    /// Number of the next long entry. Numbers are not reused soon, so that a reader with an old slot does not map the
    /// region of another entry.
    next_long: u32,
    /// Regions of long entries that no slot points to any more, to be freed.
    retired: Vec<Lh>,
    /// Regions to be freed once the directory of names answers again.
    deferred: Vec<Lh>,
}

/// A region of the heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    lh: Lh,
    units: u64,
}

/// A region with one entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Long {
    lh: Lh,
    bytes: u64,
}

/// The free blocks of the heap.
#[derive(Debug)]
struct FreeBlocks {
    /// Blocks by class.
    blocks: Vec<Vec<u32>>,
    /// Units freed since the last merge.
    units_freed: u64,
}

/// A block that a slot points to, with the index of the slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub(super) slot: Slot,
    pub(super) index: usize,
}

impl Live {
    fn begin(&self) -> u64 {
        self.slot.place.into()
    }

    fn end(&self) -> u64 {
        self.begin() + units_of(self.slot.class)
    }
}

/// Adjacent units of one part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    place: u64,
    units: u64,
}

/// A block that no slot points to yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) place: u32,
    pub(super) class: u8,
}

impl Block {
    pub(super) fn slot(self, tag: u32) -> Slot {
        Slot { place: self.place, class: self.class, tag }
    }
}

impl From<Slot> for Block {
    fn from(slot: Slot) -> Block {
        Block { place: slot.place, class: slot.class }
    }
}

impl Heap {
    pub(super) fn new(session: Session, name: &str, shard: usize, everyone: Permissions) -> Heap {
        let (name, parts, free) = (name.to_owned(), Vec::new(), FreeBlocks::new());
        let (units_total, last_part_units, last_part_used, bytes_used, may_shrink) = (0, 0, 0, 0, false);
        let (long, next_long, retired, deferred) = (BTreeMap::new(), 0, Vec::new(), Vec::new());
        Heap {
            session,
            name,
            shard,
            everyone,
            parts,
            units_total,
            last_part_units,
            last_part_used,
            free,
            bytes_used,
            may_shrink,
            long,
            next_long,
            retired,
            deferred,
        }
    }

    /// Takes a free block for an entry of `bytes` bytes: one of `class`, or of a larger class.
    pub(super) async fn allocate(&mut self, class: u8, bytes: usize) -> Result<Block, KvError> {
        if class >= CLASSES {
            return Box::pin(self.allocate_long(class, bytes)).await;
        }
        let block = self.allocate_short(class).await?;
        self.bytes_used += units_of(block.class) * UNIT;
        Ok(block)
    }

    async fn allocate_short(&mut self, class: u8) -> Result<Block, KvError> {
        if let Some(block) = self.free.find(class, LARGER_CLASSES_MAX) {
            return Ok(block);
        }
        // A merge costs time in proportion to the heap, so it waits until enough was freed.
        if self.free.units_freed * MERGE_DIVISOR > self.units_total {
            self.free.merge();
        }
        if let Some(block) = self.find(class) {
            return Ok(block);
        }
        match Box::pin(self.grow(units_of(class))).await {
            Ok(()) => self.find(class).ok_or(KvError::Full),
            // A merge so early costs time, but a failure would be worse.
            Err(error @ (KvError::Full | KvError::NoDirectory))
                if self.free.units_freed * MERGE_DIVISOR_WHEN_FULL >= self.units_total =>
            {
                self.free.merge();
                self.find(class).ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Allocates a region for a long entry.
    async fn allocate_long(&mut self, class: u8, bytes: usize) -> Result<Block, KvError> {
        while self.long.contains_key(&self.next_long) {
            self.next_long = self.next_long.wrapping_add(1);
        }
        let number = self.next_long;
        // If these regions still cannot be freed, the heap grows nevertheless.
        let _ = self.free_deferred().await;
        let (name, bytes) =
            (long_entry_name(&self.name, self.shard, number), (bytes as u64).next_multiple_of(UNIT));
        let lh = match allocate_region(&self.session, &name, bytes, self.everyone).await {
            Err(KvError::Full) if self.shrink().await? => {
                allocate_region(&self.session, &name, bytes, self.everyone).await?
            }
            allocated => allocated?,
        };
        self.next_long = number.wrapping_add(1);
        self.long.insert(number, Long { lh, bytes });
        self.bytes_used += bytes;
        Ok(Block { place: number, class })
    }

    /// Returns the bytes of all blocks in use.
    pub(super) fn bytes_used(&self) -> u64 {
        debug_assert_eq!(self.bytes_used, self.count_bytes_used());
        self.bytes_used
    }

    /// Returns true if at least `1 / divisor` of the heap is free.
    pub(super) fn is_part_free(&self, divisor: u64) -> bool {
        self.free.units() * divisor >= self.units_total
    }

    fn count_bytes_used(&self) -> u64 {
        let long: u64 = self.long.values().map(|long| long.bytes).sum();
        let unused_units = self.last_part_units - self.last_part_used;
        (self.units_total - unused_units - self.free.units()) * UNIT + long
    }

    /// Returns the start of the range as long as a block of `class` that contains the fewest live units; `None` if the
    /// heap has fewer free units than that. `live` is ordered by place.
    pub(super) fn sparsest_range(&self, class: u8, live: &[Live]) -> Option<u64> {
        let units = units_of(class);
        if self.free.units() < units {
            return None;
        }
        let (mut best, mut first) = (None, 0);
        for (begin, end) in self.part_bounds() {
            let behind = first + live[first..].partition_point(|live| live.begin() < end);
            let in_part = &live[first..behind];
            first = behind;
            // A range starts with the part, or after a live block.
            let (mut left, mut right, mut cost) = (0, 0, 0);
            for at in [begin].into_iter().chain(in_part.iter().map(Live::end)) {
                if at + units > end {
                    break;
                }
                while right < in_part.len() && in_part[right].begin() < at + units {
                    cost += in_part[right].end() - in_part[right].begin();
                    right += 1;
                }
                while left < right && in_part[left].begin() < at {
                    cost -= in_part[left].end() - in_part[left].begin();
                    left += 1;
                }
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, at));
                }
            }
        }
        best.map(|(_, at)| at)
    }

    /// Returns the start and end of each part, without the units that were never allocated.
    fn part_bounds(&self) -> impl Iterator<Item = (u64, u64)> {
        let last = self.parts.len().saturating_sub(1);
        self.parts.iter().enumerate().map(move |(number, part)| {
            let begin = number as u64 * PART_UNITS;
            (begin, begin + if number == last { self.last_part_used } else { part.units })
        })
    }

    /// Makes all units free that are neither live nor in the block `kept`, which is a place and a class. `live` is
    /// ordered by place.
    pub(super) fn rebuild_free_blocks(&mut self, live: &[Live], kept: Option<(u64, u8)>) {
        let kept = kept.map(|(begin, class)| (begin, begin + units_of(class)));
        let mut used: Vec<(u64, u64)> =
            live.iter().map(|live| (live.begin(), live.end())).chain(kept).collect();
        used.sort_unstable();
        let (mut runs, mut used) = (Vec::new(), used.into_iter().peekable());
        for (begin, end) in self.part_bounds() {
            let mut at = begin;
            while let Some((first, behind)) = used.next_if(|(first, _)| *first < end) {
                runs.push(Run { place: at, units: first.saturating_sub(at) });
                at = at.max(behind);
            }
            runs.push(Run { place: at, units: end.saturating_sub(at) });
        }
        self.free = FreeBlocks::new();
        // The lowest run is added last, and taken first.
        runs.into_iter().rev().for_each(|run| self.free.add(run));
        self.bytes_used = self.count_bytes_used();
    }

    /// Takes a free block of `class`, or of a larger class, without growing. The caller then rebuilds the free blocks.
    pub(super) fn allocate_without_growing(&mut self, class: u8) -> Option<Block> {
        self.free.find(class, LARGER_CLASSES_MAX).or_else(|| self.free.split(class))
    }

    /// Makes a block free. The region of a long entry is freed by [`Heap::free_retired`].
    pub(super) fn release(&mut self, block: Block) {
        if block.class >= CLASSES {
            if let Some(long) = self.long.remove(&block.place) {
                self.retired.push(long.lh);
                self.bytes_used -= long.bytes;
            }
            return;
        }
        self.bytes_used -= units_of(block.class) * UNIT;
        self.free.release(block);
        self.may_shrink = true;
    }

    fn find(&mut self, class: u8) -> Option<Block> {
        // Low blocks first, so that the last parts become empty.
        if let Some(block) = self.free.find(class, LARGER_CLASSES_MAX).or_else(|| self.free.split(class)) {
            return Some(block);
        }
        if self.last_part_used + units_of(class) <= self.last_part_units {
            let place = (self.parts.len() as u64 - 1) * PART_UNITS + self.last_part_used;
            self.last_part_used += units_of(class);
            return Some(Block { place: place as u32, class });
        }
        None
    }

    /// Adds a part that has room for a block of `units_min` units.
    async fn grow(&mut self, units_min: u64) -> Result<(), KvError> {
        let (number, parts_max) = (self.parts.len(), u64::from(u32::MAX) / PART_UNITS);
        if number as u64 >= parts_max {
            return Err(KvError::Full);
        }
        let name = part_name(&self.name, self.shard, number);
        // If these regions still cannot be freed, the heap grows nevertheless.
        let _ = self.free_deferred().await;
        let mut units = default_part_units(number).max(units_min);
        let units_least = units_min.max(units / PART_DIVISOR_MAX);
        let lh = loop {
            match allocate_region(&self.session, &name, units * UNIT, self.everyone).await {
                Err(KvError::Full) if units > units_least => units = (units / 2).max(units_least),
                allocated => break allocated?,
            }
        };
        // The rest of the previous part becomes free blocks for shorter entries.
        if let Some(last) = (self.parts.len() as u64).checked_sub(1) {
            self.free.add(Run {
                place: last * PART_UNITS + self.last_part_used,
                units: self.last_part_units - self.last_part_used,
            });
        }
        self.parts.push(Part { lh, units });
        self.units_total += units;
        (self.last_part_units, self.last_part_used) = (units, 0);
        Ok(())
    }

    /// Returns the operation that writes `bytes` to a block.
    pub(super) fn write_op<'a>(&self, block: Block, bytes: &'a [u8]) -> WriteOp<'a> {
        let (lh, offset, _) = self.location_of(block.slot(0));
        WriteOp { lh, offset, from: bytes }
    }

    pub(super) async fn read(&self, slot: Slot, into: &mut Vec<u8>) -> Result<(), KvError> {
        let (lh, offset, len) = self.location_of(slot);
        into.resize(len as usize, 0);
        Ok(self.session.read(lh, offset, into).await?)
    }

    /// Returns the region, offset and length of a block.
    fn location_of(&self, slot: Slot) -> (Lh, u64, u64) {
        if slot.is_long() {
            let Long { lh, bytes } = self.long[&slot.place];
            return (lh, 0, bytes);
        }
        (self.parts[slot.part()].lh, slot.offset(), slot.bytes())
    }

    /// Frees the regions of released long entries.
    pub(super) async fn free_retired(&mut self) -> Result<(), KvError> {
        while let Some(lh) = self.retired.pop() {
            self.free_region(lh).await?;
        }
        Ok(())
    }

    /// Returns true if [`Heap::free_retired`] has regions to free.
    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Frees empty parts at the end of the heap. Returns true if there were any.
    pub(super) async fn shrink(&mut self) -> Result<bool, KvError> {
        // Without this check, each write to a full store would search the heap again.
        if !std::mem::take(&mut self.may_shrink) {
            return Ok(false);
        }
        self.free.merge();
        let mut is_smaller = false;
        while let Some((last, part)) = self.parts.len().checked_sub(1).map(|last| (last, self.parts[last])) {
            let first = last as u64 * PART_UNITS;
            if self.free.units_in(first, part.units) + self.last_part_units - self.last_part_used < part.units
            {
                break;
            }
            self.free.remove_range(first, part.units);
            self.parts.pop();
            self.units_total -= part.units;
            // All units of the previous part have been allocated once.
            self.last_part_units = self.parts.last().map_or(0, |part| part.units);
            self.last_part_used = self.last_part_units;
            self.free_region(part.lh).await?;
            is_smaller = true;
        }
        Ok(is_smaller)
    }

    /// Frees the whole heap.
    pub(super) async fn clear(&mut self) -> Result<(), KvError> {
        self.free = FreeBlocks::new();
        (self.units_total, self.last_part_units, self.last_part_used, self.bytes_used) = (0, 0, 0, 0);
        self.retired.extend(std::mem::take(&mut self.long).into_values().map(|long| long.lh));
        let mut freed = self.free_retired().await;
        while let Some(part) = self.parts.pop() {
            freed = freed.and(self.free_region(part.lh).await);
        }
        freed
    }

    /// Frees a region of the shard; later, if the directory of names does not answer.
    pub(super) async fn free_region(&mut self, lh: Lh) -> Result<(), KvError> {
        match free(&self.session, lh).await {
            Err(KvError::Region(error)) if is_without_directory(error.cause()) => {
                self.deferred.push(lh);
                Ok(())
            }
            freed => freed,
        }
    }

    /// Frees regions that could not be freed before.
    pub(super) async fn free_deferred(&mut self) -> Result<(), KvError> {
        while let Some(lh) = self.deferred.pop() {
            if let Err(error) = free(&self.session, lh).await {
                self.deferred.push(lh);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Returns the units of a new part that need not hold a longer block.
fn default_part_units(part: usize) -> u64 {
    (FIRST_PART_UNITS << part.min(PART_UNITS.ilog2() as usize)).min(PART_UNITS)
}

impl FreeBlocks {
    fn new() -> FreeBlocks {
        FreeBlocks { blocks: vec![Vec::new(); CLASSES.into()], units_freed: 0 }
    }

    fn release(&mut self, block: Block) {
        self.units_freed += units_of(block.class);
        self.blocks[usize::from(block.class)].push(block.place);
    }

    fn units(&self) -> u64 {
        let of_class = |(class, places): (usize, &Vec<u32>)| units_of(class as u8) * places.len() as u64;
        self.blocks.iter().enumerate().map(of_class).sum()
    }

    /// Takes a free block of `class`, or of up to `larger` larger classes.
    fn find(&mut self, class: u8, larger: u8) -> Option<Block> {
        (class..CLASSES.min(class.saturating_add(larger + 1)))
            .find_map(|class| Some(Block { place: self.blocks[usize::from(class)].pop()?, class }))
    }

    /// Takes the lowest block that is larger than `class`, and splits it.
    fn split(&mut self, class: u8) -> Option<Block> {
        let lowest = |class: &u8| self.blocks[usize::from(*class)].last().copied();
        let whole = (class..CLASSES).filter(|class| lowest(class).is_some()).min_by_key(lowest)?;
        let place = self.blocks[usize::from(whole)].pop()?;
        let units = units_of(class);
        self.add(Run { place: u64::from(place) + units, units: units_of(whole) - units });
        Some(Block { place, class })
    }

    /// Adds free units, in blocks as large as possible.
    fn add(&mut self, mut run: Run) {
        while let Some(class) = (0..CLASSES).rev().find(|class| units_of(*class) <= run.units) {
            self.blocks[usize::from(class)].push(run.place as u32);
            run = Run { place: run.place + units_of(class), units: run.units - units_of(class) };
        }
    }

    /// Returns the number of free units in the range.
    fn units_in(&self, first: u64, units: u64) -> u64 {
        let in_range = |place: &&u32| (first..first + units).contains(&u64::from(**place));
        let of_class = |(class, places): (usize, &Vec<u32>)| {
            units_of(class as u8) * places.iter().filter(in_range).count() as u64
        };
        self.blocks.iter().enumerate().map(of_class).sum()
    }

    /// Removes all free units in the range.
    fn remove_range(&mut self, first: u64, units: u64) {
        let is_elsewhere = |place: &u32| !(first..first + units).contains(&u64::from(*place));
        self.blocks.iter_mut().for_each(|places| places.retain(is_elsewhere));
    }

    /// Merges adjacent free blocks, and splits the result into blocks as large as possible.
    fn merge(&mut self) {
        self.units_freed = 0;
        let mut runs: Vec<Run> = Vec::new();
        for (class, places) in self.blocks.iter_mut().enumerate() {
            let units = units_of(class as u8);
            runs.extend(places.drain(..).map(|place| Run { place: place.into(), units }));
        }
        runs.sort_unstable_by_key(|run| run.place);
        runs.dedup_by(|run, whole| {
            // No block spans two parts.
            let is_next = run.place == whole.place + whole.units && !run.place.is_multiple_of(PART_UNITS);
            whole.units += if is_next { run.units } else { 0 };
            is_next
        });
        // The lowest run is added last, and taken first.
        runs.into_iter().rev().for_each(|run| self.add(run));
    }
}

/// Frees a region of a shard. A region that was lost with its node counts as freed.
pub(super) async fn free(session: &Session, lh: Lh) -> Result<(), KvError> {
    match session.free(lh).await {
        Err(error) if !is_lost_or_freed(error.cause()) => Err(error.into()),
        _ => Ok(()),
    }
}

fn is_lost_or_freed(cause: &RegionCause) -> bool {
    matches!(
        cause,
        RegionCause::Lost(_)
            | RegionCause::PeerDown(_)
            | RegionCause::NotMet(_)
            | RegionCause::NotFound
            | RegionCause::Stale
    )
}

/// Allocates a region of a shard. The store is unchanged after the errors `Full` and `NoDirectory`.
pub(super) async fn allocate_region(
    session: &Session,
    name: &str,
    len: u64,
    everyone: Permissions,
) -> Result<Lh, KvError> {
    let options = AllocOptions { everyone, ..AllocOptions::default() };
    let allocation = async {
        match session.alloc_with(Some(name), len, options.clone()).await {
            Err(error) if *error.cause() == RegionCause::NameTaken => {}
            allocated => return allocated,
        }
        // An earlier attempt allocated the region although it reported an error. Only this process uses the name.
        let leftover = session.map(name, Permissions::MASTER).await?;
        session.free(leftover).await?;
        session.alloc_with(Some(name), len, options).await
    };
    allocation.await.map_err(|error| match error.cause() {
        RegionCause::NoSpace { .. } | RegionCause::OutOfMemory { .. } => KvError::Full,
        cause if is_without_directory(cause) => KvError::NoDirectory,
        _ => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_unit_is_allocated_twice_or_lost(
            steps in prop::collection::vec((0u8..10, 0u8..12, any::<prop::sample::Index>()), 1..200),
        ) {
            const UNITS: u64 = 300;
            let mut free = FreeBlocks::new();
            // These units cross the boundary of two parts.
            free.add(Run { place: PART_UNITS - 100, units: 100 });
            free.add(Run { place: PART_UNITS, units: UNITS - 100 });
            let mut taken: BTreeMap<u64, Block> = BTreeMap::new();
            for (what, class, which) in steps {
                match what {
                    0..5 => {
                        let found = free.find(class, LARGER_CLASSES_MAX).or_else(|| free.split(class));
                        if let Some(block) = found {
                            prop_assert!(block.class >= class);
                            taken.insert(block.place.into(), block);
                        }
                    }
                    5..9 if !taken.is_empty() => {
                        let place = *which.get(&taken.keys().copied().collect::<Vec<_>>());
                        free.release(taken.remove(&place).unwrap());
                    }
                    _ => free.merge(),
                }
                let mut end = 0;
                for (place, block) in &taken {
                    let len = units_of(block.class);
                    prop_assert!(*place >= end && place / PART_UNITS == (place + len - 1) / PART_UNITS);
                    end = place + len;
                }
                let used: u64 = taken.values().map(|block| units_of(block.class)).sum();
                prop_assert_eq!(free.units() + used, UNITS);
            }
        }
    }
}
