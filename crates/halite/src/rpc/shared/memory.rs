//! Registered memory for calls: rings, head words, reply slots, and longer payloads.

use std::sync::{Arc, Mutex};

use halite_fabric::{Fabric, Key, Local, RemoteAddress};
use halite_mem::allocator::Extent;
use halite_mem::{Allocator, PagePolicy, Process, Segment, Window};

use crate::runtime::locks::{lock, ranked};

/// Minimum growth of the pool, in bytes: 230 rings in addition to the slots. Untouched pages cost nothing, but each
/// growth costs a descriptor at this node and at every peer.
const GROWTH_BYTES_MIN: u64 = 64 << 20;
/// Length in bytes from which the pool returns a freed block to the system; this costs as much as a copy of the block.
const GIVE_BACK_BYTES_MIN: u64 = 64 << 20;
/// Alignment of blocks, in bytes: a cache line.
const ALIGNMENT_BYTES: u64 = 64;

#[derive(Debug)]
pub(crate) struct Pool {
    inner: Mutex<Option<Inner>>,
    process: Process,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { inner: Mutex::default(), process: Process::current() }
    }
}

ranked! {
    Option<Inner> => Innermost;
}

#[derive(Debug)]
struct Inner {
    segments: Vec<(Key, Arc<Segment>)>,
    allocator: Allocator,
}

/// A block of registered memory, which returns to its pool when dropped.
#[derive(Debug)]
pub(crate) struct Block {
    pool: Arc<Pool>,
    extent: Extent,
    key: Key,
    window: Window,
}

impl Pool {
    /// Allocates a block of `len` uninitialised bytes. Returns `None` if the system has no memory for it.
    pub(crate) fn allocate(self: &Arc<Pool>, fabric: &dyn Fabric, len: u64) -> Option<Block> {
        let mut inner = lock(&self.inner);
        let inner = inner.get_or_insert_with(Inner::new);
        let extent = match inner.allocator.allocate(len) {
            Some(extent) => extent,
            None => {
                inner.grow(fabric, len)?;
                inner.allocator.allocate(len)?
            }
        };
        let (key, segment) = &inner.segments[extent.segment as usize];
        let window = segment.window(extent.offset, extent.len).expect("extents are in their segment");
        Some(Block { pool: self.clone(), extent, key: *key, window })
    }
}

impl Inner {
    fn new() -> Inner {
        Inner { segments: Vec::new(), allocator: Allocator::new(ALIGNMENT_BYTES) }
    }

    fn grow(&mut self, fabric: &dyn Fabric, len: u64) -> Option<()> {
        // The allocator rounds up, so a shorter segment would not hold the block that it is made for.
        let len = len.max(GROWTH_BYTES_MIN).next_multiple_of(ALIGNMENT_BYTES);
        let segment = Segment::create("halite-calls", len, PagePolicy::Normal).ok()?;
        let key = fabric.register(segment.clone()).ok()?;
        self.segments.push((key, segment));
        self.allocator.add_segment(len);
        Some(())
    }
}

impl Block {
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// Returns the address at which peers access the block.
    pub(crate) fn address(&self) -> RemoteAddress {
        RemoteAddress { key: self.key, offset: self.extent.offset }
    }

    /// Returns the whole block as the local memory of a work request.
    pub(crate) fn local(&self) -> Local<'static> {
        Local::Registered { key: self.key, offset: self.extent.offset, len: self.extent.len }
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.extent.len
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.pool.process.is_current() {
            // The memory is the parent's.
            return;
        }
        if self.extent.len >= GIVE_BACK_BYTES_MIN {
            // If this fails, the pages are reused.
            let _ = self.window.segment().discard(self.extent.offset, self.extent.len);
        }
        let mut inner = lock(&self.pool.inner);
        let inner = inner.as_mut().expect("the block came from there");
        inner.allocator.free(self.extent).expect("a block is given back once");
    }
}
