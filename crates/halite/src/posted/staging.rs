//! Staging memory: a node's registered memory through which posted reads and writes pass.
//!
//! ```text
//!   | small slots: one for each of a shard's first operations | 4 MiB segments, from which longer slots are cut |
//! ```
//!
//! The index of a small operation in the table determines its slot, so the operation takes no lock to get a slot.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, OnceLock};

use halite_fabric::{Fabric, Key, Local, PeerId};
use halite_mem::allocator::Extent;
use halite_mem::{Allocator, PagePolicy, Segment, Window};

use super::table::OperationId;
use crate::runtime::locks::{lock, ranked};

/// Length of a small slot in bytes: enough for most accesses to metadata, words and keys.
const SMALL_BYTES: usize = 256;

/// Number of operations per shard that have a small slot.
const SMALL_PER_SHARD: u32 = 256;

/// Number of bytes by which the memory for longer slots grows.
const LONG_BYTES: u64 = 4 << 20;

/// Limit on one peer's slots, in bytes, beyond which a transfer that already holds a slot gets no more: 68 slices, as
/// much as an access has in progress over the longest paths. So a peer that does not answer leaves memory for others.
const PEER_SHARE_BYTES: u64 = 2 * LONG_BYTES;

/// Limit on the slots of all peers, in bytes, beyond which a transfer that already holds a slot gets no more.
const SHARED_BYTES_MAX: u64 = 16 * LONG_BYTES;

/// Maximum number of bytes in one peer's slots, including those of transfers that hold no other slot: 273 slices. So a
/// peer that does not answer leaves memory for others.
const PEER_BYTES_MAX: u64 = 8 * LONG_BYTES;

/// Maximum number of bytes in the longer slots of all peers.
const LONG_BYTES_MAX: u64 = 256 * LONG_BYTES;

/// A node's staging memory, registered by the first operation that needs it.
#[derive(Debug)]
pub(super) struct Staging {
    small_bytes: u64,
    memory: OnceLock<Memory>,
    registering: Mutex<()>,
}

#[derive(Debug)]
struct Memory {
    key: Key,
    window: Window,
    long: Mutex<LongSlots>,
}

ranked! {
    () => Innermost;
    LongSlots => Innermost;
}

/// The memory for longer slots.
#[derive(Debug)]
struct LongSlots {
    allocator: Allocator,
    /// Segments, by their numbers in the allocator.
    segments: Vec<(Key, Window)>,
    used: Usage,
}

/// Number of bytes in use, in total and by peer.
#[derive(Debug, Default)]
struct Usage {
    all: u64,
    /// Number of bytes by peer; contains no zeros.
    by_peer: BTreeMap<PeerId, u64>,
}

/// A piece of staging memory. Its owner must give it back, unless it is a small slot, which belongs to its operation.
#[derive(Debug)]
pub(super) enum Slot {
    Small { offset: u64 },
    Long { extent: Extent, key: Key, window: Window, peer: PeerId },
}

/// Staging memory could not be registered, or its use has reached a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoStaging;

impl Staging {
    pub(super) fn new(shards: usize) -> Staging {
        let small_bytes = shards as u64 * u64::from(SMALL_PER_SHARD) * SMALL_BYTES as u64;
        Staging { small_bytes, memory: OnceLock::new(), registering: Mutex::new(()) }
    }

    /// Returns a slot of `len` bytes for an operation on memory of `peer`. Returns `None` if the transfer should wait
    /// and leave the remaining memory to others. If `must_succeed` is true, never returns `None`: a transfer that holds
    /// no slot must not wait, because other transfers may hold their slots indefinitely.
    pub(super) fn slot(
        &self,
        fabric: &dyn Fabric,
        id: OperationId,
        peer: PeerId,
        len: usize,
        must_succeed: bool,
    ) -> Result<Option<Slot>, NoStaging> {
        let memory = self.memory(fabric)?;
        let place = id.place(SMALL_PER_SHARD).filter(|_| len <= SMALL_BYTES);
        if let Some(place) = place {
            return Ok(Some(Slot::Small { offset: u64::from(place) * SMALL_BYTES as u64 }));
        }
        let mut long = lock(&memory.long);
        if !must_succeed && !long.used.has_room(peer, len as u64) {
            return Ok(None);
        }
        if long.used.of(peer) + len as u64 > PEER_BYTES_MAX {
            return Err(NoStaging);
        }
        long.allocate(fabric, peer, len as u64).map(Some)
    }

    pub(super) fn free(&self, slot: Slot) {
        if let Slot::Long { extent, peer, .. } = slot {
            lock(&self.registered().long).free(extent, peer);
        }
    }

    /// Returns the first `len` bytes of a slot as the local memory of a work request.
    pub(super) fn local(&self, slot: &Slot, len: usize) -> Local<'static> {
        let (key, offset) = match slot {
            Slot::Small { offset } => (self.registered().key, *offset),
            Slot::Long { extent, key, .. } => (*key, extent.offset),
        };
        Local::Registered { key, offset, len: len as u64 }
    }

    pub(super) fn read(&self, slot: &Slot, into: &mut [u8]) {
        let (window, offset) = self.place(slot);
        window.read(offset, into).expect("as long as the slot");
    }

    pub(super) fn write(&self, slot: &Slot, from: &[u8]) {
        let (window, offset) = self.place(slot);
        window.write(offset, from).expect("as long as the slot");
    }

    fn place<'s>(&'s self, slot: &'s Slot) -> (&'s Window, u64) {
        match slot {
            Slot::Small { offset } => (&self.registered().window, *offset),
            Slot::Long { extent, window, .. } => (window, extent.offset),
        }
    }

    fn registered(&self) -> &Memory {
        self.memory.get().expect("slots come from there")
    }

    fn memory(&self, fabric: &dyn Fabric) -> Result<&Memory, NoStaging> {
        if let Some(memory) = self.memory.get() {
            return Ok(memory);
        }
        let _registering = lock(&self.registering);
        if let Some(memory) = self.memory.get() {
            return Ok(memory);
        }
        let memory = Memory::new(fabric, self.small_bytes)?;
        Ok(self.memory.get_or_init(|| memory))
    }
}

impl Memory {
    fn new(fabric: &dyn Fabric, small_bytes: u64) -> Result<Memory, NoStaging> {
        let (key, window) = register(fabric, small_bytes)?;
        let long = LongSlots { allocator: Allocator::new(64), segments: Vec::new(), used: Usage::default() };
        Ok(Memory { key, window, long: Mutex::new(long) })
    }
}

impl LongSlots {
    fn allocate(&mut self, fabric: &dyn Fabric, peer: PeerId, len: u64) -> Result<Slot, NoStaging> {
        let extent = match self.allocator.allocate(len) {
            Some(extent) => extent,
            None => {
                self.grow(fabric)?;
                self.allocator.allocate(len).ok_or(NoStaging)?
            }
        };
        self.used.add(peer, extent.len);
        let (key, window) = self.segments[extent.segment as usize].clone();
        Ok(Slot::Long { extent, key, window, peer })
    }

    fn grow(&mut self, fabric: &dyn Fabric) -> Result<(), NoStaging> {
        if self.segments.len() as u64 * LONG_BYTES >= LONG_BYTES_MAX {
            return Err(NoStaging);
        }
        self.segments.push(register(fabric, LONG_BYTES)?);
        self.allocator.add_segment(LONG_BYTES);
        Ok(())
    }

    fn free(&mut self, extent: Extent, peer: PeerId) {
        self.used.subtract(peer, extent.len);
        self.allocator.free(extent).expect("a slot is given back once");
    }
}

impl Usage {
    fn has_room(&self, peer: PeerId, len: u64) -> bool {
        self.of(peer) + len <= PEER_SHARE_BYTES && self.all + len <= SHARED_BYTES_MAX
    }

    fn of(&self, peer: PeerId) -> u64 {
        self.by_peer.get(&peer).copied().unwrap_or(0)
    }

    fn add(&mut self, peer: PeerId, len: u64) {
        self.all += len;
        *self.by_peer.entry(peer).or_default() += len;
    }

    fn subtract(&mut self, peer: PeerId, len: u64) {
        self.all -= len;
        if let Entry::Occupied(mut used) = self.by_peer.entry(peer) {
            *used.get_mut() -= len;
            if *used.get() == 0 {
                used.remove();
            }
        }
    }
}

fn register(fabric: &dyn Fabric, len: u64) -> Result<(Key, Window), NoStaging> {
    let segment = Segment::create("halite-staging", len, PagePolicy::Normal).map_err(|_| NoStaging)?;
    let key = fabric.register(segment.clone()).map_err(|_| NoStaging)?;
    Ok((key, segment.window(0, len).expect("the whole segment")))
}
