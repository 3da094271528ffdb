//! A region of each worker that is filled, and copied into, beside what it should then hold.

use halite::Lh;

use super::board::{Cast, everything};
use super::excuse::excuse;
use super::regions::{Own, bytes_of};
use super::worker::Worker;
use super::{Result, ensure};

const SCRATCH_BYTES: usize = 192 << 10;

/// The region, and its bytes as they must be.
#[derive(Clone, Debug)]
pub struct Scratch {
    lh: Lh,
    cast: Cast,
    wanted: Vec<u8>,
}

impl Worker {
    /// Fills a part of the scratch region.
    pub(super) fn fill(&mut self) -> Result<()> {
        let Some(mut scratch) = self.take_scratch()? else { return self.excused() };
        let at = self.random.u64(0..SCRATCH_BYTES as u64) as usize;
        let len = (1 + self.random.u64(0..16 << 10) as usize).min(SCRATCH_BYTES - at);
        let byte = self.random.u64(..) as u8;
        let filled = self.session.fill(scratch.lh, at as u64, len as u64, byte);
        if excuse(&self.board, &scratch.cast, "fill", filled)?.is_none() {
            return self.give_back_scratch(scratch);
        }
        scratch.wanted[at..at + len].fill(byte);
        self.check_scratch(scratch, at, len)
    }

    /// Copies within the scratch region, overlapping or not, or from an own region.
    pub(super) fn copy(&mut self) -> Result<()> {
        let Some(mut scratch) = self.take_scratch()? else { return self.excused() };
        match self.own_run() {
            Some((shelf, first, count)) if self.random.u64(0..2) == 0 => {
                self.copy_own(scratch, shelf, first, count)
            }
            _ => {
                let len = 1 + self.random.u64(0..16 << 10) as usize;
                let mut place = || self.random.u64(0..(SCRATCH_BYTES - len) as u64) as usize;
                let (from, to) = (place(), place());
                let copied = self.session.copy(scratch.lh, to as u64, scratch.lh, from as u64, len as u64);
                if excuse(&self.board, &scratch.cast, "copy within", copied)?.is_none() {
                    return self.give_back_scratch(scratch);
                }
                scratch.wanted.copy_within(from..from + len, to);
                self.check_scratch(scratch, to, len)
            }
        }
    }

    fn copy_own(&mut self, mut scratch: Scratch, shelf: usize, first: usize, count: usize) -> Result<()> {
        let own = self.shelves[shelf].clone().expect("it was found there");
        let (from, len) = bytes_of(first, count);
        let to = self.random.u64(0..(SCRATCH_BYTES - len) as u64) as usize;
        let copied = self.session.copy(scratch.lh, to as u64, own.lh, from, len as u64);
        if self.board.has_changed(&own.cast)? {
            // Both are given up: an error of one does not tell of which, and there may be none.
            self.give_back_scratch(scratch)?;
            return self.lost(shelf);
        }
        if excuse(&self.board, &scratch.cast, "copy", copied)?.is_none() {
            return self.give_back_scratch(scratch);
        }
        let mut found = vec![0xEE; len];
        let read = self.session.read(scratch.lh, to as u64, &mut found);
        if excuse(&self.board, &scratch.cast, "read of a copy", read)?.is_none() {
            return self.give_back_scratch(scratch);
        }
        own.check(first, &found)?;
        scratch.wanted[to..to + len].copy_from_slice(&found);
        self.scratch = Some(scratch);
        Ok(())
    }

    /// The scratch region, a new one if there is none.
    fn take_scratch(&mut self) -> Result<Option<Scratch>> {
        if let Some(scratch) = self.scratch.take() {
            return Ok(Some(scratch));
        }
        let (placement, nodes) = self.somewhere()?;
        let cast = self.board.cast(nodes)?;
        let made = self.session.alloc(None, SCRATCH_BYTES as u64, placement, everything());
        let made = excuse(&self.board, &cast, "alloc of scratch", made)?;
        Ok(made.map(|lh| Scratch { lh, cast, wanted: vec![0; SCRATCH_BYTES] }))
    }

    /// Compares what was changed, and a little around it.
    fn check_scratch(&mut self, scratch: Scratch, at: usize, len: usize) -> Result<()> {
        let (begin, end) = (at.saturating_sub(64), (at + len + 64).min(SCRATCH_BYTES));
        let mut found = vec![0xEE; end - begin];
        let read = self.session.read(scratch.lh, begin as u64, &mut found);
        if excuse(&self.board, &scratch.cast, "read of scratch", read)?.is_none() {
            return self.give_back_scratch(scratch);
        }
        let differs =
            found.iter().zip(&scratch.wanted[begin..end]).position(|(found, wanted)| found != wanted);
        ensure!(
            differs.is_none(),
            "scratch differs at {begin} + {differs:?} after {len} bytes at {at} were changed"
        );
        self.scratch = Some(scratch);
        Ok(())
    }

    /// Frees the scratch region, or what is left of it.
    pub(super) fn give_back_scratch(&mut self, scratch: Scratch) -> Result<()> {
        let Scratch { lh, cast, .. } = scratch;
        self.give_back(Own { lh, seed: 0, written: Vec::new(), cast })
    }
}
