//! Memory operations on the one-sided path: fills and copies where loads and stores reach all bytes.
//!
//! Each call executes one step, and the caller continues with the rest. Source and target of a copy may overlap: the
//! copy starts at the end from which it never overwrites source bytes before it reads them.
//!
//! ```text
//!  from  |######........|        the target lies higher, and overlaps: last bytes first
//!  to    |....######....|        else: first bytes first
//! ```

use std::fmt;

use halite_mem::Window;
use serde::{Deserialize, Serialize};

use super::{Blocked, COPY_BYTES_MAX, Count, DataPath, Mapping, Place, SlotRef, View, counts};
use crate::ids::SessionId;
use crate::permissions::Permissions;

/// A position in the region behind a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionOffset {
    /// The handle to the region.
    pub slot: SlotRef,
    /// Offset in the region, in bytes.
    pub offset: u64,
}

/// One of the two sides of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CopySide {
    /// The region that the copy reads.
    Source,
    /// The region that the copy writes.
    Target,
}

impl fmt::Display for CopySide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CopySide::Source => "its source",
            CopySide::Target => "its target",
        })
    }
}

/// The completed part of a memory operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Length of the part in bytes.
    pub len: u64,
    /// True if the part is at the end of the requested bytes, false if the part is at their start.
    pub backward: bool,
}

impl Step {
    /// Returns the first step, of at most `len_max` bytes, of a copy of `len` bytes from offset `from` to offset `to`.
    /// `same_region` is true if both offsets are in one region.
    pub fn of_copy(same_region: bool, to: u64, from: u64, len: u64, len_max: u64) -> Step {
        let backward = same_region && from < to && to - from < len;
        Step { len: len.min(len_max), backward }
    }

    /// Returns the offset of this step in the `len` bytes that remain to be copied.
    pub fn skip(self, len: u64) -> u64 {
        if self.backward { len - self.len } else { 0 }
    }
}

/// Contiguous bytes that loads and stores reach.
struct Run<'v> {
    window: &'v Window,
    start: u64,
    len: u64,
}

impl DataPath {
    /// Sets up to `len` bytes from `at` on to `byte`, at most to the end of the piece that contains `at`, and at most
    /// [`COPY_BYTES_MAX`]. Returns the part done. Fails if stores do not reach the first byte, or the session may not
    /// write it.
    pub fn fill(&self, session: SessionId, at: RegionOffset, len: u64, byte: u8) -> Result<Step, Blocked> {
        let pin = self.pins.pin();
        let mapping = self.authorize(&pin, session, at.slot, Permissions::WRITE)?;
        let done = mapping.view.step(at.offset, len, |window, start, len| {
            window.fill(start, len, byte).expect("the view keeps inside its windows");
        })?;
        counts::add(&pin, Count::DirectFills, 1);
        counts::add(&pin, Count::DirectFillBytes, done as u64);
        Ok(Step { len: done as u64, backward: false })
    }

    /// Copies up to `len` bytes, at most to the end of the piece on either side, and at most [`COPY_BYTES_MAX`]. Fails
    /// without effect unless the handles permit access to all `len` bytes and both regions contain them.
    pub fn copy(
        &self,
        session: SessionId,
        to: RegionOffset,
        from: RegionOffset,
        len: u64,
    ) -> Result<Step, (CopySide, Blocked)> {
        let pin = self.pins.pin();
        let source = self.authorize(&pin, session, from.slot, Permissions::READ);
        let source = source.and_then(|source| source.view.check(from.offset, len).map(|()| source));
        let source = source.map_err(|blocked| (CopySide::Source, blocked))?;
        let target = self.authorize(&pin, session, to.slot, Permissions::WRITE);
        let target = target.and_then(|target| target.view.check(to.offset, len).map(|()| target));
        let target = target.map_err(|blocked| (CopySide::Target, blocked))?;
        if len == 0 {
            return Ok(Step { len, backward: false });
        }
        let step = copy_step((target, to.offset), (source, from.offset), len)?;
        counts::add(&pin, Count::DirectCopies, 1);
        counts::add(&pin, Count::DirectCopyBytes, step.len);
        Ok(step)
    }
}

/// Copies the bytes that the next runs of both sides have in common.
fn copy_step(
    (target, to): (&Mapping, u64),
    (source, from): (&Mapping, u64),
    len: u64,
) -> Result<Step, (CopySide, Blocked)> {
    let step = Step::of_copy(target.region == source.region, to, from, len, COPY_BYTES_MAX);
    let backward = step.backward;
    let source = source.view.run(from, len, backward).map_err(|blocked| (CopySide::Source, blocked))?;
    let target = target.view.run(to, len, backward).map_err(|blocked| (CopySide::Target, blocked))?;
    let step = Step { len: step.len.min(source.len).min(target.len), backward };
    let (start, from) = (target.start + step.skip(target.len), source.start + step.skip(source.len));
    let copied = target.window.copy_from(start, source.window, from, step.len);
    copied.expect("the views keep inside their windows");
    Ok(step)
}

impl View {
    /// Returns the first contiguous run of the `len > 0` bytes from `offset` on, or with `backward` the last run.
    fn run(&self, offset: u64, len: u64, backward: bool) -> Result<Run<'_>, Blocked> {
        let pieces = match self {
            View::Whole(window) => return Ok(Run { window, start: offset, len }),
            View::Pieces(pieces) => pieces,
        };
        let touched = if backward { offset + len - 1 } else { offset };
        let index = pieces.pieces.partition_point(|piece| piece.start <= touched) - 1;
        let piece = &pieces.pieces[index];
        let end = pieces.pieces.get(index + 1).map_or(pieces.len, |next| next.start);
        let (low, high) = (offset.max(piece.start), end.min(offset + len));
        let (start, len) = (low - piece.start, high - low);
        match &piece.place {
            Place::Direct(window) => Ok(Run { window, start, len }),
            other => Err(other.blocked(start, len)),
        }
    }
}
