//! Staging memory: registered memory of the node's own, through which bytes come and go.
//!
//! ```text
//!   | small slots: one for each of a shard's first operations | 4 MiB, from which longer slots are cut |
//! ```
//!
//! A small operation has its slot by its place in the table, without asking anybody.

use std::sync::{Mutex, OnceLock};

use halite_fabric::{Fabric, Key, Local};
use halite_mem::allocator::Extent;
use halite_mem::{Allocator, PagePolicy, Segment, Window};

use super::SLICE_BYTES_MAX;
use super::table::OperationId;
use crate::wait::lock;

/// Bytes of a small slot: most accesses to metadata, words and keys.
const SMALL_BYTES: usize = 256;

/// Operations of a shard that have a small slot.
const SMALL_PER_SHARD: u32 = 256;

/// Bytes that longer slots are cut from: 128 slices, more than the bandwidth times the delay of any fabric of today
/// (100 Gbit/s times 100 us is 1.25 MB).
const LONG_BYTES: u64 = 128 * SLICE_BYTES_MAX as u64;

/// Registered with the first operation that needs it.
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
    long: Mutex<Allocator>,
}

/// Some staging memory.  It must be given back, unless it is a small slot, which belongs to its operation.
#[derive(Debug)]
pub(super) struct Slot {
    offset: u64,
    /// `None` for a small slot.
    extent: Option<Extent>,
}

/// No staging memory could be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoStaging;

impl Staging {
    pub(super) fn new(shards: usize) -> Staging {
        let small_bytes = shards as u64 * u64::from(SMALL_PER_SHARD) * SMALL_BYTES as u64;
        Staging { small_bytes, memory: OnceLock::new(), registering: Mutex::new(()) }
    }

    /// A slot of `len` bytes for an operation, if there is room.
    pub(super) fn slot(
        &self,
        fabric: &dyn Fabric,
        id: OperationId,
        len: usize,
    ) -> Result<Option<Slot>, NoStaging> {
        let memory = self.memory(fabric)?;
        let place = id.place(SMALL_PER_SHARD).filter(|_| len <= SMALL_BYTES);
        if let Some(place) = place {
            return Ok(Some(Slot { offset: u64::from(place) * SMALL_BYTES as u64, extent: None }));
        }
        let extent = lock(&memory.long).allocate(len as u64);
        Ok(extent.map(|extent| Slot { offset: self.small_bytes + extent.offset, extent: Some(extent) }))
    }

    /// Returns whether others may now find room where there was none.
    pub(super) fn give_back(&self, slot: Slot) -> bool {
        let Some(extent) = slot.extent else { return false };
        lock(&self.registered().long).free(extent).expect("a slot is given back once");
        true
    }

    /// The first `len` bytes of a slot, as work requests name them.
    pub(super) fn local(&self, slot: &Slot, len: usize) -> Local<'static> {
        Local::Registered { key: self.registered().key, offset: slot.offset, len: len as u64 }
    }

    pub(super) fn read(&self, slot: &Slot, into: &mut [u8]) {
        self.registered().window.read(slot.offset, into).expect("as long as the slot");
    }

    pub(super) fn write(&self, slot: &Slot, from: &[u8]) {
        self.registered().window.write(slot.offset, from).expect("as long as the slot");
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
        let len = small_bytes + LONG_BYTES;
        let segment = Segment::create("halite-staging", len, PagePolicy::Normal).map_err(|_| NoStaging)?;
        let key = fabric.register(segment.clone()).map_err(|_| NoStaging)?;
        let mut long = Allocator::new(64);
        long.add_segment(LONG_BYTES);
        let window = segment.window(0, len).expect("the whole segment");
        Ok(Memory { key, window, long: Mutex::new(long) })
    }
}
