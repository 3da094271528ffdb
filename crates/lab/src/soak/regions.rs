//! Regions that a worker makes, fills, moves and frees, and that others map and read meanwhile.
//!
//! Each word of a region is zero or a function of the region and of its place, so a reader knows what it may find even
//! while the owner writes.  The owner remembers which blocks it has written.

use halite::blocking::Session;
use halite::{Lh, NodeId, Placement};

use super::board::{Cast, Note, SHELVES, everything};
use super::excuse::{Excusable, excuse};
use super::worker::Worker;
use super::{Failure, Result, ensure, mix};

/// How the names of all workers' regions begin.
pub const PREFIX: &str = "region ";
/// Bytes that are written at once, or not at all as far as the owner is concerned.
const BLOCK: usize = 512;
/// Most blocks of a region: half a MiB, several chunks.
const BLOCKS_MAX: u64 = 1024;
/// Most blocks of one access: 64 KiB.
const RUN_MAX: u64 = 128;

/// A region of a worker.
#[derive(Clone, Debug)]
pub struct Own {
    pub(super) lh: Lh,
    pub(super) seed: u64,
    /// Which blocks are written.
    pub(super) written: Vec<bool>,
    /// The nodes that it has been on.
    pub(super) cast: Cast,
}

/// What the word at a place of the region of that seed is, once it is written.
fn word(seed: u64, place: u64) -> u64 {
    // Odd times odd, so that it is never zero.
    (seed | 1).wrapping_mul(2 * place + 1)
}

/// What the blocks from `first` on are, once they are written.
pub fn blocks(seed: u64, first: usize, count: usize) -> Vec<u8> {
    let words = (first * BLOCK / 8)..((first + count) * BLOCK / 8);
    words.flat_map(|place| word(seed, place as u64).to_ne_bytes()).collect()
}

/// A place within `blocks` blocks: the first, and how many.
pub fn run(worker: &mut Worker, blocks: usize) -> (usize, usize) {
    // Mostly short ones, as most accesses are.
    let longest = if worker.random.u64(0..8) == 0 { RUN_MAX } else { 8 };
    let first = worker.random.u64(0..blocks as u64);
    let count = (1 + worker.random.u64(0..longest)).min(blocks as u64 - first);
    (first as usize, count as usize)
}

/// The bytes of blocks.
pub fn bytes_of(first: usize, count: usize) -> (u64, usize) {
    ((first * BLOCK) as u64, count * BLOCK)
}

fn seed_of(incarnation: u64, serial: u64) -> u64 {
    mix(incarnation << 32 | serial)
}

fn name_of(incarnation: u64, serial: u64) -> String {
    format!("{PREFIX}{serial}{}", owner(incarnation))
}

/// How the names of an incarnation's regions end.
pub fn owner(incarnation: u64) -> String {
    format!(" of incarnation {incarnation}")
}

impl Own {
    /// Compares bytes of the blocks from `first` on with what was written there.
    pub fn check(&self, first: usize, found: &[u8]) -> Result<()> {
        for (block, found) in (first..).zip(found.chunks_exact(BLOCK)) {
            let wanted = if self.written[block] { blocks(self.seed, block, 1) } else { vec![0; BLOCK] };
            let written = self.written[block];
            ensure!(
                found == wanted,
                "block {block} of {:?} (written: {written}) is not what was written",
                self.lh
            );
        }
        Ok(())
    }
}

/// What one sees who reads while others write.
fn check_from_afar(seed: u64, first: usize, found: &[u8]) -> Result<()> {
    let begin = (first * BLOCK / 8) as u64;
    for (place, found) in (begin..).zip(found.chunks_exact(8)) {
        let found = u64::from_ne_bytes(found.try_into().expect("eight bytes"));
        let wanted = word(seed, place);
        ensure!(found == 0 || found == wanted, "word {place} is {found:#x}, neither 0 nor {wanted:#x}");
    }
    Ok(())
}

impl Worker {
    /// Frees a region, or makes one: here, elsewhere, or on several nodes.
    pub(super) fn renew(&mut self) -> Result<()> {
        let shelf = self.random.u64(0..SHELVES);
        if self.shelves[shelf as usize].is_some() {
            return self.free(shelf);
        }
        self.serial += 1;
        let (name, seed) = (name_of(self.incarnation, self.serial), seed_of(self.incarnation, self.serial));
        let blocks = 1 + self.random.u64(0..BLOCKS_MAX) as usize;
        let (placement, nodes) = self.somewhere()?;
        let cast = self.board.cast(nodes)?;
        let made = self.session.alloc(Some(&name), (blocks * BLOCK) as u64, placement, everything());
        let Some(lh) = excuse(&self.board, &cast, "alloc", made)? else { return self.excused() };
        self.shelves[shelf as usize] = Some(Own { lh, seed, written: vec![false; blocks], cast });
        self.publish(shelf, self.serial, &cast)
    }

    /// Where the next region goes, and which other nodes that takes.
    pub(super) fn somewhere(&mut self) -> Result<(Placement, u64)> {
        let one = self.peer()?.map_or(self.node, |(node, _)| node);
        let other = self.peer()?.map_or(self.node, |(node, _)| node);
        Ok(match self.random.u64(0..4) {
            0 => (Placement::On(NodeId(one)), self.others(1 << one)),
            1 => (Placement::Spread(vec![NodeId(one), NodeId(other)]), self.others(1 << one | 1 << other)),
            _ => (Placement::Local, 0),
        })
    }

    /// The nodes other than this one, whose end would be the worker's own.
    pub(super) fn others(&self, nodes: u64) -> u64 {
        nodes & !(1 << self.node)
    }

    fn publish(&self, shelf: u64, serial: u64, cast: &Cast) -> Result<()> {
        // Nobody looks at what is not whole: the serial number goes first and comes last.
        self.board.set_note(self.incarnation, Note::Shelf(shelf), 0)?;
        self.board.set_note(self.incarnation, Note::ShelfNodes(shelf), cast.nodes)?;
        self.board.set_note(self.incarnation, Note::ShelfPrint(shelf), cast.print)?;
        self.board.set_note(self.incarnation, Note::Shelf(shelf), serial)
    }

    /// Frees the region on a shelf, if there is one.
    pub(super) fn free(&mut self, shelf: u64) -> Result<()> {
        let Some(own) = self.shelves[shelf as usize].take() else { return Ok(()) };
        self.board.set_note(self.incarnation, Note::Shelf(shelf), 0)?;
        self.give_back(own)
    }

    /// Frees a region; what is left of one whose node was killed is a handle.
    pub(super) fn give_back(&mut self, own: Own) -> Result<()> {
        let freed = self.session.free(own.lh);
        if excuse(&self.board, &own.cast, "free", freed)?.is_some() {
            return Ok(());
        }
        excuse(&self.board, &own.cast, "unmap", self.session.unmap(own.lh))?;
        self.excused()
    }

    /// Writes some blocks of an own region.
    pub(super) fn write(&mut self) -> Result<()> {
        let Some((shelf, first, count)) = self.own_run() else { return self.renew() };
        let own = self.shelves[shelf].as_mut().expect("it was found there");
        let bytes = blocks(own.seed, first, count);
        let written = self.session.write(own.lh, bytes_of(first, count).0, &bytes);
        if excuse(&self.board, &own.cast, "write", written)?.is_none() {
            return self.lost(shelf);
        }
        own.written[first..first + count].fill(true);
        Ok(())
    }

    /// Reads some blocks of an own region.
    pub(super) fn read(&mut self) -> Result<()> {
        let Some((shelf, first, count)) = self.own_run() else { return self.renew() };
        let own = self.shelves[shelf].as_ref().expect("it was found there");
        let (at, len) = bytes_of(first, count);
        let mut found = vec![0xEE; len];
        match excuse(&self.board, &own.cast, "read", self.session.read(own.lh, at, &mut found))? {
            Some(()) => own.check(first, &found),
            None => self.lost(shelf),
        }
    }

    /// Moves an own region to another node.
    pub(super) fn relocate(&mut self) -> Result<()> {
        let (Some((shelf, ..)), Some((node, _))) = (self.own_run(), self.peer()?) else { return Ok(()) };
        let nodes = self.others(1 << node);
        let own = self.shelves[shelf].as_mut().expect("it was found there");
        if self.board.has_changed(&own.cast)? {
            return self.lost(shelf);
        }
        // From now on it depends on both.
        own.cast = self.board.cast(own.cast.nodes | nodes)?;
        let (cast, lh) = (own.cast, own.lh);
        let serial = self.board.note(self.incarnation, Note::Shelf(shelf as u64))?;
        self.publish(shelf as u64, serial, &cast)?;
        match excuse(&self.board, &cast, "move", self.session.move_to(lh, NodeId(node)))? {
            Some(()) => Ok(()),
            None => self.lost(shelf),
        }
    }

    /// Some blocks of one of the own regions, if there is any there.
    pub(super) fn own_run(&mut self) -> Option<(usize, usize, usize)> {
        let shelf = self.random.u64(0..SHELVES) as usize;
        let blocks = self.shelves[shelf].as_ref()?.written.len();
        let (first, count) = run(self, blocks);
        Some((shelf, first, count))
    }

    /// The region on a shelf has lost a node.
    pub(super) fn lost(&mut self, shelf: usize) -> Result<()> {
        self.free(shelf as u64)
    }

    /// Maps what another worker lets others read, reads some of it, and unmaps it.
    pub(super) fn read_from_afar(&mut self) -> Result<()> {
        let Some((node, incarnation)) = self.peer()? else { return Ok(()) };
        let shelf = self.random.u64(0..SHELVES);
        let serial = self.board.note(incarnation, Note::Shelf(shelf))?;
        let nodes = self.board.note(incarnation, Note::ShelfNodes(shelf))?;
        let print = self.board.note(incarnation, Note::ShelfPrint(shelf))?;
        let region = Cast { nodes, print, complete: true };
        let owner = Cast { nodes: 1 << node, print: mix(incarnation), complete: true };
        let is_there = serial != 0 && self.board.note(incarnation, Note::Shelf(shelf))? == serial;
        if !is_there || self.board.has_changed(&region)? || self.board.has_changed(&owner)? {
            return Ok(());
        }
        let read = read_some(self, incarnation, serial);
        let is_freed = self.board.note(incarnation, Note::Shelf(shelf))? != serial;
        let is_lost = self.board.has_changed(&region)? || self.board.has_changed(&owner)?;
        match read {
            Err(Refused::Gone(_)) if is_freed || is_lost => self.excused(),
            Err(Refused::Gone(what)) => {
                let region = name_of(incarnation, serial);
                Err(Failure(format!("{region} is there, on {nodes:#b}: {what}")))
            }
            Err(Refused::Wrong(failure)) => Err(failure),
            Ok(()) => Ok(()),
        }
    }
}

/// Why a region could not be read from afar.
enum Refused {
    Gone(String),
    Wrong(Failure),
}

fn read_some(worker: &mut Worker, incarnation: u64, serial: u64) -> std::result::Result<(), Refused> {
    let session: Session = worker.session.clone();
    let lh = session.map(&name_of(incarnation, serial), everything()).map_err(gone)?;
    let read = read_mapped(worker, &session, lh, seed_of(incarnation, serial));
    // Also what is gone must be unmapped.
    let unmapped = session.unmap(lh).map_err(gone);
    read.and(unmapped)
}

fn read_mapped(
    worker: &mut Worker,
    session: &Session,
    lh: Lh,
    seed: u64,
) -> std::result::Result<(), Refused> {
    let blocks = session.len(lh).map_err(gone)? as usize / BLOCK;
    let (first, count) = run(worker, blocks);
    let (at, len) = bytes_of(first, count);
    let mut found = vec![0xEE; len];
    session.read(lh, at, &mut found).map_err(gone)?;
    check_from_afar(seed, first, &found).map_err(Refused::Wrong)
}

fn gone<E: Excusable>(error: E) -> Refused {
    let text = format!("{error} ({error:?})");
    if error.tells_of_a_kill() { Refused::Gone(text) } else { Refused::Wrong(Failure(text)) }
}
