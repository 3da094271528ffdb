//! The one-sided path: reads, writes and atomics on regions, executed on the caller's own thread.
//!
//! ```text
//!  handle ── slot (64 B, one cache line) ── window ── bytes       one extent, reachable by loads and stores
//!                                       └─ pieces ── window, frozen, down, or a remote address
//! ```
//!
//! The functions of this module neither block, allocate, lock nor send messages. An access that cannot complete at once
//! returns a [`Blocked`]; the session waits and continues where the access stopped.

mod counts;
mod memory;

use std::sync::Arc;

use halite_fabric::{PeerId, RemoteAddress};
use halite_mem::{Lookup, Pin, Pins, Slots, Window};
use serde::{Deserialize, Serialize};

use crate::ids::{NodeIncarnation, RegionId, SessionId};
use crate::permissions::Permissions;

pub use counts::{Count, Counts};
pub use memory::{CopySide, RegionOffset, Step};

/// Maximum number of bytes copied under one pin: 256 KiB, which take 26 us at 10 GB/s. A change of the region waits for
/// pins, so it waits for this time and not for a whole long copy.
pub const COPY_BYTES_MAX: u64 = 256 << 10;

/// Size in bytes of the words that atomics change. Chunks begin at multiples of this size, both in regions and in
/// memory.
pub const WORD_BYTES: u64 = 8;

/// A handle, which is a session's capability to a region: identifies one use of a slot in the handle table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct SlotRef {
    /// Index of the slot in the handle table.
    pub index: u32,
    /// Number of this use of the slot, which distinguishes the handle from earlier ones in the slot.
    pub generation: u32,
}

/// The region behind a handle, and the permissions of the handle. At most 48 bytes long, so that a slot is one cache
/// line.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// How this node reaches the bytes.
    pub view: View,
    /// The region behind the handle.
    pub region: RegionId,
    /// The session that owns the handle.
    pub session: SessionId,
    /// The permissions of the handle.
    pub permissions: Permissions,
    /// True if the region is immutable.
    pub sealed: bool,
}

const _: () = assert!(size_of::<Mapping>() <= 48);

/// How this node reaches the bytes of a region.
#[derive(Clone, Debug)]
pub enum View {
    /// Loads and stores reach the whole region in this window.
    Whole(Window),
    /// The region has several pieces, which this node may reach in different ways.
    Pieces(Arc<Pieces>),
}

/// The pieces of a region, in order.
#[derive(Debug)]
pub struct Pieces {
    /// Length of the region in bytes.
    pub len: u64,
    /// The pieces, sorted by start. The first piece starts at 0, and each ends where the next starts.
    pub pieces: Vec<Piece>,
}

/// A contiguous part of a region.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Offset of the piece in the region, in bytes.
    pub start: u64,
    /// How this node reaches the piece.
    pub place: Place,
}

/// How this node reaches the bytes of a piece.
#[derive(Clone, Debug)]
pub enum Place {
    /// Loads and stores reach the bytes in this window.
    Direct(Window),
    /// Operations posted to a peer reach the bytes.
    Posted {
        /// The owner of the bytes.
        peer: PeerId,
        /// The address in the owner's memory.
        address: RemoteAddress,
    },
    /// No access reaches the bytes now, because the home is moving them to another node.
    Frozen,
    /// No access reaches the bytes, because this incarnation is unreachable or has ended. It is the owner of the bytes,
    /// or the region's home.
    Down(NodeIncarnation),
}

/// An atomic operation on an aligned word of [`WORD_BYTES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atomic {
    /// Adds to the word, and wraps around on overflow.
    FetchAdd {
        /// The number to add.
        add: u64,
    },
    /// Replaces the word if it holds the expected value.
    CompareSwap {
        /// The value that the word must hold for the swap.
        expected: u64,
        /// The value to write.
        new: u64,
    },
}

impl Atomic {
    #[inline]
    fn apply(self, window: &Window, offset: u64) -> u64 {
        self.try_apply(window, offset).expect("chunks are aligned, and the view keeps inside its windows")
    }

    /// Changes a word of `window` and returns the old value; returns `None`, without effect, if `offset` is not the
    /// offset of an aligned word.
    #[inline]
    pub(crate) fn try_apply(self, window: &Window, offset: u64) -> Option<u64> {
        let old = match self {
            Atomic::FetchAdd { add } => window.fetch_add_u64(offset, add),
            Atomic::CompareSwap { expected, new } => window.compare_exchange_u64(offset, expected, new),
        };
        old.ok()
    }
}

impl Place {
    /// Returns the reason why an access to `len` bytes from `start` on stops at a place that loads and stores do not
    /// reach.
    fn blocked(&self, start: u64, len: u64) -> Blocked {
        match self {
            Place::Direct(_) => unreachable!("nothing stops an access by loads and stores"),
            Place::Frozen => Blocked::Changing,
            Place::Down(incarnation) => Blocked::Down(*incarnation),
            Place::Posted { peer, address } => {
                let address = RemoteAddress { offset: address.offset + start, ..*address };
                Blocked::Post { peer: *peer, address, len }
            }
        }
    }
}

/// The reason why an access stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Blocked {
    /// The handle or the location of the bytes is changing; retry after the change.
    Changing,
    /// The next bytes must be accessed by an operation posted to a peer.
    Post {
        /// The owner of the bytes.
        peer: PeerId,
        /// The address in the owner's memory.
        address: RemoteAddress,
        /// Number of bytes that the operation must access.
        len: u64,
    },
    /// The handle does not belong to the session that made the access.
    Unknown,
    /// The handle is no longer valid, because it was released or its region was freed.
    Stale,
    /// The handle lacks these permissions.
    Denied(Permissions),
    /// The region is immutable.
    Sealed,
    /// The access ends beyond the end of the region.
    OutOfRange {
        /// Length of the region in bytes.
        region_len: u64,
    },
    /// The offset of an atomic is not a multiple of [`WORD_BYTES`].
    Unaligned,
    /// This incarnation is unreachable or has ended. It is the owner of the bytes, or the region's home.
    Down(NodeIncarnation),
}

/// The handle table of one node, and the pins of its threads ([`Pins`]), which mark accesses in progress.
#[derive(Debug)]
pub struct DataPath {
    pins: Arc<Pins>,
    slots: Slots<Mapping>,
}

impl Default for DataPath {
    fn default() -> Self {
        let pins = Arc::new(Pins::new());
        DataPath { slots: Slots::new(pins.clone()), pins }
    }
}

impl DataPath {
    /// Returns the handle table.
    pub fn slots(&self) -> &Slots<Mapping> {
        &self.slots
    }

    /// Returns the pins of this node's threads, which mark accesses in progress, for grace periods.
    pub fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }

    /// Returns the length in bytes of the region behind a handle. Fails if the handle is not valid for `session`.
    pub fn len(&self, session: SessionId, slot: SlotRef) -> Result<u64, Blocked> {
        let pin = self.pins.pin();
        Ok(self.find(&pin, session, slot)?.view.len())
    }

    /// Reads bytes from `offset` on into the buffer, at most to the end of the piece that contains `offset`, and at
    /// most [`COPY_BYTES_MAX`]. Returns the number of bytes read. Fails if loads do not reach the first byte, or the
    /// session may not read it.
    #[inline]
    pub fn read(
        &self,
        session: SessionId,
        slot: SlotRef,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize, Blocked> {
        let pin = self.pins.pin();
        let mapping = self.authorize(&pin, session, slot, Permissions::READ)?;
        let read = mapping.view.step(offset, into.len() as u64, |window, start, len| {
            let target = &mut into[..len as usize];
            window.read(start, target).expect("the view keeps inside its windows");
        })?;
        counts::add(&pin, Count::DirectReads, 1);
        counts::add(&pin, Count::DirectReadBytes, read as u64);
        Ok(read)
    }

    /// Writes bytes from `offset` on, at most to the end of the piece that contains `offset`, and at most
    /// [`COPY_BYTES_MAX`]. Returns the number of bytes written. Fails if stores do not reach the first byte, or the
    /// session may not write it.
    #[inline]
    pub fn write(
        &self,
        session: SessionId,
        slot: SlotRef,
        offset: u64,
        from: &[u8],
    ) -> Result<usize, Blocked> {
        let pin = self.pins.pin();
        let mapping = self.authorize(&pin, session, slot, Permissions::WRITE)?;
        let written = mapping.view.step(offset, from.len() as u64, |window, start, len| {
            window.write(start, &from[..len as usize]).expect("the view keeps inside its windows");
        })?;
        counts::add(&pin, Count::DirectWrites, 1);
        counts::add(&pin, Count::DirectWriteBytes, written as u64);
        Ok(written)
    }

    /// Reads up to `len` bytes as [`DataPath::read`] does, and stores them at offset `at` of the window `target`.
    /// Returns the number of bytes read; 0 if they do not fit there.
    pub fn read_into(
        &self,
        session: SessionId,
        slot: SlotRef,
        (offset, len): (u64, u64),
        (target, at): (&Window, u64),
    ) -> Result<usize, Blocked> {
        let pin = self.pins.pin();
        let mapping = self.authorize(&pin, session, slot, Permissions::READ)?;
        let mut fits = true;
        let read = mapping.view.step(offset, len, |window, start, len| {
            fits = target.copy_from(at, window, start, len).is_ok();
        })?;
        let read = if fits { read } else { 0 };
        counts::add(&pin, Count::DirectReads, 1);
        counts::add(&pin, Count::DirectReadBytes, read as u64);
        Ok(read)
    }

    /// Writes up to `len` bytes as [`DataPath::write`] does, taken from offset `at` of the window `source`. Returns the
    /// number of bytes written; 0 if `source` ends before them.
    pub fn write_from(
        &self,
        session: SessionId,
        slot: SlotRef,
        (offset, len): (u64, u64),
        (source, at): (&Window, u64),
    ) -> Result<usize, Blocked> {
        let pin = self.pins.pin();
        let mapping = self.authorize(&pin, session, slot, Permissions::WRITE)?;
        let mut fits = true;
        let written = mapping.view.step(offset, len, |window, start, len| {
            fits = window.copy_from(start, source, at, len).is_ok();
        })?;
        let written = if fits { written } else { 0 };
        counts::add(&pin, Count::DirectWrites, 1);
        counts::add(&pin, Count::DirectWriteBytes, written as u64);
        Ok(written)
    }

    /// Performs reads in order, each given as handle, offset and buffer, and returns the number of reads done. Stops
    /// before a read that loads cannot do in full, or that would raise the total above [`COPY_BYTES_MAX`]. All reads
    /// share one pin, so a batch costs little more than its copies.
    #[inline]
    pub fn read_each<'r>(
        &self,
        session: SessionId,
        reads: impl Iterator<Item = (SlotRef, u64, &'r mut [u8])>,
    ) -> usize {
        let pin = self.pins.pin();
        let mut run = Run::new(self, &pin, session, Permissions::READ);
        for (slot, offset, into) in reads {
            let len = into.len() as u64;
            if !run.copy(slot, offset, len, |window, start| window.read(start, into).is_ok()) {
                break;
            }
        }
        run.end(Count::DirectReads, Some(Count::DirectReadBytes))
    }

    /// Performs writes in order, each given as handle, offset and bytes, and returns the number of writes done. Stops
    /// before a write that stores cannot do in full, or that would raise the total above [`COPY_BYTES_MAX`].
    #[inline]
    pub fn write_each<'w>(
        &self,
        session: SessionId,
        writes: impl Iterator<Item = (SlotRef, u64, &'w [u8])>,
    ) -> usize {
        let pin = self.pins.pin();
        let mut run = Run::new(self, &pin, session, Permissions::WRITE);
        for (slot, offset, from) in writes {
            let len = from.len() as u64;
            if !run.copy(slot, offset, len, |window, start| window.write(start, from).is_ok()) {
                break;
            }
        }
        run.end(Count::DirectWrites, Some(Count::DirectWriteBytes))
    }

    /// Performs compare-swaps in order, each given as offset, expected and new value, until one fails. Returns the
    /// number of swaps done, and true if the next one failed because its word held another value than expected.
    #[inline]
    pub fn swap_while(
        &self,
        session: SessionId,
        slot: SlotRef,
        swaps: impl Iterator<Item = (u64, u64, u64)>,
    ) -> (usize, bool) {
        let pin = self.pins.pin();
        let mut run = Run::new(self, &pin, session, Permissions::ATOMIC);
        let mut is_refused = false;
        for (offset, expected, new) in swaps {
            let swap = |window: &Window, start| match window.compare_exchange_u64(start, expected, new) {
                Ok(found) if found == expected => true,
                found => {
                    is_refused = found.is_ok();
                    false
                }
            };
            if !run.copy(slot, offset, WORD_BYTES, swap) {
                break;
            }
        }
        (run.end(Count::DirectAtomics, None), is_refused)
    }

    /// Applies `atomic` to the word at `offset` and returns the old value. Fails if the processor does not reach the
    /// word.
    #[inline]
    pub fn atomic(
        &self,
        session: SessionId,
        slot: SlotRef,
        offset: u64,
        atomic: Atomic,
    ) -> Result<u64, Blocked> {
        let pin = self.pins.pin();
        let mapping = self.authorize(&pin, session, slot, Permissions::ATOMIC)?;
        if !offset.is_multiple_of(WORD_BYTES) {
            return Err(Blocked::Unaligned);
        }
        let mut old = 0;
        mapping.view.step(offset, WORD_BYTES, |window, start, _| old = atomic.apply(window, start))?;
        counts::add(&pin, Count::DirectAtomics, 1);
        Ok(old)
    }

    /// Checks that the handle permits `wanted` on the `len` bytes from `offset` on, without accessing the bytes. Fails
    /// with the reason why an access would stop.
    pub fn check(
        &self,
        session: SessionId,
        slot: SlotRef,
        wanted: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<(), Blocked> {
        let pin = self.pins.pin();
        let mapping = self.authorize(&pin, session, slot, wanted)?;
        mapping.view.check(offset, len)
    }

    /// Returns the number of bytes that one access from `offset` on would copy, or the reason why the access would
    /// stop. Accesses no bytes.
    pub fn locate(
        &self,
        session: SessionId,
        slot: SlotRef,
        wanted: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<usize, Blocked> {
        let pin = self.pins.pin();
        let mapping = self.authorize(&pin, session, slot, wanted)?;
        mapping.view.step(offset, len, |_, _, _| ())
    }

    #[inline]
    fn authorize<'p>(
        &'p self,
        pin: &'p Pin<'_>,
        session: SessionId,
        slot: SlotRef,
        wanted: Permissions,
    ) -> Result<&'p Mapping, Blocked> {
        let mapping = self.find(pin, session, slot)?;
        if mapping.sealed && wanted != Permissions::READ {
            return Err(Blocked::Sealed);
        }
        let missing = wanted - mapping.permissions;
        if missing.is_empty() { Ok(mapping) } else { Err(Blocked::Denied(missing)) }
    }

    #[inline]
    fn find<'p>(
        &'p self,
        pin: &'p Pin<'_>,
        session: SessionId,
        slot: SlotRef,
    ) -> Result<&'p Mapping, Blocked> {
        match self.slots.get(pin, slot.index, slot.generation) {
            Lookup::Found(mapping) if mapping.session == session => Ok(mapping),
            Lookup::Found(_) => Err(Blocked::Unknown),
            Lookup::Busy => Err(Blocked::Changing),
            Lookup::Stale => Err(Blocked::Stale),
        }
    }
}

/// A run of accesses that share one pin.
struct Run<'p> {
    path: &'p DataPath,
    pin: &'p Pin<'p>,
    session: SessionId,
    wanted: Permissions,
    /// The slot and mapping of the last access.
    last: Option<(SlotRef, &'p Mapping)>,
    accesses: usize,
    bytes: u64,
}

impl<'p> Run<'p> {
    fn new(path: &'p DataPath, pin: &'p Pin<'p>, session: SessionId, wanted: Permissions) -> Run<'p> {
        Run { path, pin, session, wanted, last: None, accesses: 0, bytes: 0 }
    }

    /// Performs an access if its bytes are in one piece that loads and stores reach. Returns true if it performed the
    /// access.
    #[inline]
    fn copy(
        &mut self,
        slot: SlotRef,
        offset: u64,
        len: u64,
        copy: impl FnOnce(&Window, u64) -> bool,
    ) -> bool {
        if self.bytes + len > COPY_BYTES_MAX {
            return false;
        }
        let mapping = match self.last {
            Some((last, mapping)) if last == slot => mapping,
            _ => match self.path.authorize(self.pin, self.session, slot, self.wanted) {
                Ok(mapping) => mapping,
                Err(_) => return false,
            },
        };
        self.last = Some((slot, mapping));
        let mut is_done = false;
        let stepped = mapping.view.step(offset, len, |window, start, reached| {
            is_done = reached == len && copy(window, start);
        });
        // An empty access always succeeds.
        if stepped.is_ok() && (is_done || len == 0) {
            (self.accesses, self.bytes) = (self.accesses + 1, self.bytes + len);
            return true;
        }
        false
    }

    /// Counts the accesses and returns their number.
    #[inline]
    fn end(self, count: Count, of_bytes: Option<Count>) -> usize {
        counts::add(self.pin, count, self.accesses as u64);
        if let Some(of_bytes) = of_bytes {
            counts::add(self.pin, of_bytes, self.bytes);
        }
        self.accesses
    }
}

impl View {
    /// Returns the length of the region in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        match self {
            View::Whole(window) => window.len(),
            View::Pieces(pieces) => pieces.len,
        }
    }

    /// Returns false, because every region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn check(&self, offset: u64, len: u64) -> Result<(), Blocked> {
        let region_len = self.len();
        match offset.checked_add(len) {
            Some(end) if end <= region_len => Ok(()),
            _ => Err(Blocked::OutOfRange { region_len }),
        }
    }

    #[inline]
    fn step(&self, offset: u64, len: u64, copy: impl FnOnce(&Window, u64, u64)) -> Result<usize, Blocked> {
        self.check(offset, len)?;
        let len = len.min(COPY_BYTES_MAX);
        match self {
            View::Whole(window) => {
                copy(window, offset, len);
                Ok(len as usize)
            }
            View::Pieces(pieces) => pieces.step(offset, len, copy),
        }
    }
}

impl Pieces {
    fn step(&self, offset: u64, len: u64, copy: impl FnOnce(&Window, u64, u64)) -> Result<usize, Blocked> {
        if len == 0 {
            return Ok(0);
        }
        let index = self.pieces.partition_point(|piece| piece.start <= offset) - 1;
        let piece = &self.pieces[index];
        let end = self.pieces.get(index + 1).map_or(self.len, |next| next.start);
        let (start, len) = (offset - piece.start, len.min(end - offset));
        match &piece.place {
            Place::Direct(window) => copy(window, start, len),
            other => return Err(other.blocked(start, len)),
        }
        Ok(len as usize)
    }
}
