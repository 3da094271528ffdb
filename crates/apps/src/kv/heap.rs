//! Where a shard keeps its entries: regions that are divided into blocks, of one class each.

use halite::{AllocOptions, Lh, Permissions, RegionCause, Session};

use super::error::KvError;
use super::layout::{CLASSES, PART_BYTES, PART_UNITS, Slot, part_of, units_of};

/// How many larger classes are looked through for a block before the heap grows: one of them has twice the length.
const LARGER: u8 = 4;

/// The owner's side of it.
pub(super) struct Heap {
    session: Session,
    name: String,
    shard: usize,
    everyone: Permissions,
    parts: Vec<Lh>,
    /// Units of the last part that have been given out once.
    used: u64,
    /// Blocks that nothing leads to, by class.
    free: Vec<Vec<u32>>,
}

/// A block that nothing leads to yet.
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
        let free = vec![Vec::new(); CLASSES.into()];
        Heap { session, name: name.to_owned(), shard, everyone, parts: Vec::new(), used: PART_UNITS, free }
    }

    /// A block of a class, or of a larger one.
    pub(super) async fn take(&mut self, class: u8) -> Result<Block, KvError> {
        if let Some(block) = self.find(class, LARGER) {
            return Ok(block);
        }
        if self.used + units_of(class) > PART_UNITS
            && let Err(error) = self.grow().await
        {
            // A block that is much too long is better than none.
            return self.find(class, CLASSES).ok_or(error);
        }
        let place = (self.parts.len() as u64 - 1) * PART_UNITS + self.used;
        self.used += units_of(class);
        Ok(Block { place: place as u32, class })
    }

    pub(super) fn give_back(&mut self, block: Block) {
        self.free[usize::from(block.class)].push(block.place);
    }

    fn find(&mut self, class: u8, larger: u8) -> Option<Block> {
        (class..CLASSES.min(class.saturating_add(larger + 1)))
            .find_map(|class| Some(Block { place: self.free[usize::from(class)].pop()?, class }))
    }

    async fn grow(&mut self) -> Result<(), KvError> {
        let (number, most) = (self.parts.len(), u64::from(u32::MAX) / PART_UNITS);
        if number as u64 >= most {
            return Err(KvError::Full);
        }
        let options = AllocOptions { everyone: self.everyone, ..AllocOptions::default() };
        let name = part_of(&self.name, self.shard, number);
        let made = self.session.alloc_with(Some(&name), PART_BYTES, options).await;
        let lh = made.map_err(|error| match error.cause() {
            RegionCause::NoSpace { .. } | RegionCause::OutOfMemory { .. } => KvError::Full,
            _ => error.into(),
        })?;
        // What is left of the part before serves for shorter entries.
        while let Some(class) = (0..CLASSES).rev().find(|class| self.used + units_of(*class) <= PART_UNITS) {
            let place = (self.parts.len() as u64 - 1) * PART_UNITS + self.used;
            self.free[usize::from(class)].push(place as u32);
            self.used += units_of(class);
        }
        self.parts.push(lh);
        self.used = 0;
        Ok(())
    }

    pub(super) async fn write(&self, block: Block, bytes: &[u8]) -> Result<(), KvError> {
        let slot = block.slot(0);
        Ok(self.session.write(self.parts[slot.part()], slot.offset(), bytes).await?)
    }

    pub(super) async fn read(&self, slot: Slot, into: &mut Vec<u8>) -> Result<(), KvError> {
        into.resize(slot.bytes() as usize, 0);
        Ok(self.session.read(self.parts[slot.part()], slot.offset(), into).await?)
    }

    /// Frees all of it.
    pub(super) async fn clear(&mut self) -> Result<(), KvError> {
        self.free.iter_mut().for_each(Vec::clear);
        self.used = PART_UNITS;
        while let Some(lh) = self.parts.pop() {
            self.session.free(lh).await?;
        }
        Ok(())
    }
}
