//! Where a shard keeps its entries: regions that are divided into blocks, of one class each.

use halite::{AllocOptions, Lh, Permissions, RegionCause, Session, WriteOp};

use super::error::KvError;
use super::layout::{CLASSES, FIRST_PART_UNITS, PART_UNITS, Slot, UNIT, part_of, units_of};

/// How many larger classes are looked through for a block before the heap grows: one of them has twice the length.
const LARGER: u8 = 4;

/// The owner's side of it.
pub(super) struct Heap {
    session: Session,
    name: String,
    shard: usize,
    everyone: Permissions,
    parts: Vec<Lh>,
    /// Units of the last part, and those of them that have been given out once.
    units: u64,
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
        Heap { session, name: name.to_owned(), shard, everyone, parts: Vec::new(), units: 0, used: 0, free }
    }

    /// A block of a class, or of a larger one.
    pub(super) async fn take(&mut self, class: u8) -> Result<Block, KvError> {
        if let Some(block) = self.find(class, LARGER) {
            return Ok(block);
        }
        if self.used + units_of(class) > self.units
            && let Err(error) = Box::pin(self.grow(units_of(class))).await
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

    /// By a part in which a block of so many units has room.
    async fn grow(&mut self, units_min: u64) -> Result<(), KvError> {
        let (number, most) = (self.parts.len(), u64::from(u32::MAX) / PART_UNITS);
        if number as u64 >= most {
            return Err(KvError::Full);
        }
        let name = part_of(&self.name, self.shard, number);
        let usual = FIRST_PART_UNITS << number.min(PART_UNITS.ilog2() as usize);
        let units = usual.clamp(units_min, PART_UNITS);
        let lh = make(&self.session, &name, units * UNIT, self.everyone).await?;
        // What is left of the part before serves for shorter entries.
        while let Some(class) = (0..CLASSES).rev().find(|class| self.used + units_of(*class) <= self.units) {
            let place = (self.parts.len() as u64 - 1) * PART_UNITS + self.used;
            self.free[usize::from(class)].push(place as u32);
            self.used += units_of(class);
        }
        self.parts.push(lh);
        (self.units, self.used) = (units, 0);
        Ok(())
    }

    /// What writes a block.
    pub(super) fn write_of<'a>(&self, block: Block, bytes: &'a [u8]) -> WriteOp<'a> {
        let slot = block.slot(0);
        WriteOp { lh: self.parts[slot.part()], offset: slot.offset(), from: bytes }
    }

    pub(super) async fn read(&self, slot: Slot, into: &mut Vec<u8>) -> Result<(), KvError> {
        into.resize(slot.bytes() as usize, 0);
        Ok(self.session.read(self.parts[slot.part()], slot.offset(), into).await?)
    }

    /// Frees all of it.
    pub(super) async fn clear(&mut self) -> Result<(), KvError> {
        self.free.iter_mut().for_each(Vec::clear);
        (self.units, self.used) = (0, 0);
        while let Some(lh) = self.parts.pop() {
            self.session.free(lh).await?;
        }
        Ok(())
    }
}

/// Makes a region of a shard.  Where that fails for want of memory or of the directory of names, the store goes on without.
pub(super) async fn make(
    session: &Session,
    name: &str,
    len: u64,
    everyone: Permissions,
) -> Result<Lh, KvError> {
    let options = AllocOptions { everyone, ..AllocOptions::default() };
    let mut made = session.alloc_with(Some(name), len, options.clone()).await;
    if made.as_ref().is_err_and(|error| *error.cause() == RegionCause::NameTaken) {
        // An earlier attempt was reported as failed and had succeeded; only this process uses this name.
        let left = session.map(name, Permissions::MASTER).await?;
        session.free(left).await?;
        made = session.alloc_with(Some(name), len, options).await;
    }
    made.map_err(|error| match error.cause() {
        RegionCause::NoSpace { .. }
        | RegionCause::OutOfMemory { .. }
        | RegionCause::DirectoryDown
        | RegionCause::PeerDown(_) => KvError::Full,
        _ => error.into(),
    })
}
