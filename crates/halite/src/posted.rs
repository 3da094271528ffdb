//! Posted operations: accesses that go through the fabric's queues, and the memory that they land in.
//!
//! A peer's answer must never land in memory that its owner has given up, so reads land in slots of a segment
//! that the node owns.  A caller who loses interest leaves its slot behind until the completion has arrived:
//!
//! ```text
//!  begin ──> Idle ── launched ──> Posted ── complete ──> Done ── taken: slot is free
//!              └ dropped: gone      └ dropped ──> Abandoned ── complete: slot is free
//! ```
//!
//! An operation is begun *before* its address is looked up, so that whoever changes the address afterwards knows
//! by [`Posted::is_over`] that nobody uses the old one any more.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use halite_fabric::{Fabric, Key, Local, Status, WorkId};
use halite_mem::allocator::Extent;
use halite_mem::{Allocator, PagePolicy, Segment, Window};

use crate::wait::{Event, Wakes, lock};

/// Most bytes of one posted operation: bulk traffic must let small requests through in between.
pub(crate) const SLICE_BYTES_MAX: usize = 64 << 10;

/// Bytes of staging memory: 64 slices, more than the bandwidth times the delay of any fabric of today
/// (100 Gbit/s times 100 us is 1.25 MB).
const STAGING_BYTES: u64 = 64 * SLICE_BYTES_MAX as u64;

/// All posted operations of a node.
#[derive(Debug, Default)]
pub(crate) struct Posted {
    table: Mutex<Table>,
    staging: Mutex<Staging>,
    /// Staging memory has become free.
    room: Event,
    /// The fabric may take more.
    progress: Event,
}

#[derive(Debug, Default)]
struct Table {
    /// The number last given out; 0 is that of messages.
    last: u64,
    ops: BTreeMap<u64, State>,
    closed: bool,
}

#[derive(Debug)]
enum State {
    Idle,
    Posted(Option<Waker>),
    Abandoned(Option<Slot>),
    /// Nobody waits, but this must outlive it.
    Kept(Keepsake),
    Done(Ended),
}

/// How a posted operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    pub(crate) status: Status,
    /// What the word held before an atomic; of other operations 0.
    pub(crate) old: u64,
}

impl Ended {
    /// Never began, or was given up.
    const FLUSHED: Ended = Ended { status: Status::Flushed, old: 0 };
}

/// Something that must outlive an operation: the memory of its source, say.
pub(crate) struct Keepsake(#[expect(dead_code, reason = "it is kept to be dropped")] Box<dyn Send>);

impl std::fmt::Debug for Keepsake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keepsake")
    }
}

/// No staging memory could be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoStaging;

#[derive(Debug, Default)]
struct Staging {
    memory: Option<StagingMemory>,
}

#[derive(Debug)]
struct StagingMemory {
    key: Key,
    segment: Arc<Segment>,
    allocator: Allocator,
}

/// A slot of staging memory.  It must be given back.
#[derive(Debug)]
struct Slot {
    extent: Extent,
    key: Key,
    window: Window,
}

impl Posted {
    /// A slot of `len` bytes, at most [`SLICE_BYTES_MAX`], as soon as there is one.
    pub(crate) async fn stage(&self, fabric: &dyn Fabric, len: usize) -> Result<Staged<'_>, NoStaging> {
        loop {
            let seen = self.room.count();
            if let Some(slot) = self.try_stage(fabric, len)? {
                return Ok(Staged { posted: self, slot: Some(slot) });
            }
            self.room.after(seen).await;
        }
    }

    fn try_stage(&self, fabric: &dyn Fabric, len: usize) -> Result<Option<Slot>, NoStaging> {
        let mut staging = lock(&self.staging);
        let memory = match &mut staging.memory {
            Some(memory) => memory,
            empty => empty.insert(StagingMemory::new(fabric)?),
        };
        Ok(memory.allocate(len as u64))
    }

    fn give_back(&self, slot: Slot, wakes: &mut Wakes) {
        let mut staging = lock(&self.staging);
        let memory = staging.memory.as_mut().expect("slots come from there");
        memory.allocator.free(slot.extent).expect("a slot is given back once");
        drop(staging);
        self.room.happen(wakes);
    }

    /// Begins an operation.  Its address must be looked up after this.
    pub(crate) fn begin(&self) -> Operation<'_> {
        let mut table = lock(&self.table);
        table.last += 1;
        let id = table.last;
        table.ops.insert(id, State::Idle);
        Operation { posted: self, id, slot: None }
    }

    /// A number above those of all operations begun so far.
    pub(crate) fn mark(&self) -> u64 {
        lock(&self.table).last + 1
    }

    /// Whether all operations that were begun before `mark` was asked for have completed.
    pub(crate) fn is_over(&self, mark: u64) -> bool {
        let table = lock(&self.table);
        !table.ops.range(..mark).any(|(_, state)| !matches!(state, State::Done(_)))
    }

    /// A completion has arrived.
    pub(crate) fn complete(&self, id: WorkId, ended: Ended, wakes: &mut Wakes) {
        let mut table = lock(&self.table);
        let Some(state) = table.ops.get_mut(&id.0) else { return };
        match std::mem::replace(state, State::Done(ended)) {
            State::Posted(waker) => wakes.add(waker),
            State::Abandoned(slot) => {
                table.ops.remove(&id.0);
                drop(table);
                if let Some(slot) = slot {
                    self.give_back(slot, wakes);
                }
            }
            State::Kept(keepsake) => {
                table.ops.remove(&id.0);
                drop(table);
                drop(keepsake);
            }
            // Completed before it was marked as posted, or (by a confused provider) twice.
            State::Idle | State::Done(_) => {}
        }
    }

    /// A number for an operation that nobody waits for, and that `keepsake` must outlive.
    pub(crate) fn keep(&self, keepsake: Box<dyn Send>) -> WorkId {
        let mut table = lock(&self.table);
        table.last += 1;
        let id = table.last;
        table.ops.insert(id, State::Kept(Keepsake(keepsake)));
        WorkId(id)
    }

    /// An operation that was to be kept for was not posted after all.
    pub(crate) fn release(&self, id: WorkId) {
        let kept = lock(&self.table).ops.remove(&id.0);
        drop(kept);
    }

    /// A number for an operation that is not one of a caller's.
    pub(crate) fn number(&self) -> WorkId {
        let mut table = lock(&self.table);
        table.last += 1;
        WorkId(table.last)
    }

    /// Waits until the fabric may take more; `seen` is [`Posted::progress_count`] before it was tried.
    pub(crate) async fn progress_after(&self, seen: u64) {
        self.progress.after(seen).await;
    }

    /// See [`Posted::progress_after`].
    pub(crate) fn progress_count(&self) -> u64 {
        self.progress.count()
    }

    /// Lets those try again for whom the fabric's queue was full.
    pub(crate) fn retry(&self, wakes: &mut Wakes) {
        self.progress.happen(wakes);
    }

    /// Nothing completes any more: ends the waiting of all.  Slots stay reserved, since bytes may land in them
    /// until the fabric is closed.
    pub(crate) fn close(&self, wakes: &mut Wakes) {
        let mut table = lock(&self.table);
        table.closed = true;
        for state in table.ops.values_mut() {
            if let State::Posted(waker) = state {
                wakes.add(waker.take());
                *state = State::Done(Ended::FLUSHED);
            }
        }
        drop(table);
        self.room.happen(wakes);
        self.progress.happen(wakes);
    }
}

impl StagingMemory {
    fn new(fabric: &dyn Fabric) -> Result<StagingMemory, NoStaging> {
        let segment = Segment::create("halite-staging", STAGING_BYTES, PagePolicy::Normal);
        let segment = segment.map_err(|_| NoStaging)?;
        let key = fabric.register(segment.clone()).map_err(|_| NoStaging)?;
        let mut allocator = Allocator::new(64);
        allocator.add_segment(STAGING_BYTES);
        Ok(StagingMemory { key, segment, allocator })
    }

    fn allocate(&mut self, len: u64) -> Option<Slot> {
        let extent = self.allocator.allocate(len)?;
        let window = self.segment.window(extent.offset, extent.len).expect("extents are in their segment");
        Some(Slot { extent, key: self.key, window })
    }
}

/// A slot of staging memory, given back when dropped.
#[derive(Debug)]
pub(crate) struct Staged<'p> {
    posted: &'p Posted,
    slot: Option<Slot>,
}

impl Staged<'_> {
    /// The memory.
    pub(crate) fn window(&self) -> &Window {
        &self.slot().window
    }

    /// The first `len` bytes of it, as work requests name them.
    pub(crate) fn local(&self, len: u64) -> Local<'static> {
        let slot = self.slot();
        Local::Registered { key: slot.key, offset: slot.extent.offset, len }
    }

    fn slot(&self) -> &Slot {
        self.slot.as_ref().expect("a slot leaves only when dropped or handed on")
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            let mut wakes = Wakes::default();
            self.posted.give_back(slot, &mut wakes);
            wakes.wake_all();
        }
    }
}

/// An operation that has begun.
#[derive(Debug)]
pub(crate) struct Operation<'p> {
    posted: &'p Posted,
    id: u64,
    /// What the operation uses while it is under way.
    slot: Option<Slot>,
}

impl<'p> Operation<'p> {
    /// What to call it when it is posted.
    pub(crate) fn id(&self) -> WorkId {
        WorkId(self.id)
    }

    /// It has been posted, using `staged`.  Waits for its end and hands the slot back.
    pub(crate) async fn posted(mut self, staged: Option<Staged<'p>>) -> (Ended, Option<Staged<'p>>) {
        let posted = self.posted;
        self.slot = staged.and_then(|mut staged| staged.slot.take());
        self.launch();
        let ended = Completed(&self).await;
        let slot = self.slot.take();
        (ended, slot.map(|slot| Staged { posted, slot: Some(slot) }))
    }

    fn launch(&self) {
        let mut table = lock(&self.posted.table);
        let closed = table.closed;
        let state = table.ops.get_mut(&self.id).expect("an operation stays until it is dropped");
        if let State::Idle = state {
            *state = if closed { State::Done(Ended::FLUSHED) } else { State::Posted(None) };
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let mut table = lock(&self.posted.table);
        let slot = self.slot.take();
        match table.ops.get_mut(&self.id) {
            Some(state @ State::Posted(_)) => *state = State::Abandoned(slot),
            _ => {
                table.ops.remove(&self.id);
                let closed = table.closed;
                drop(table);
                // Where nothing completes any more, bytes may still land in the slot.
                if let Some(slot) = slot.filter(|_| !closed) {
                    drop(Staged { posted: self.posted, slot: Some(slot) });
                }
            }
        }
    }
}

/// Waits for the completion of an operation.
struct Completed<'o, 'p>(&'o Operation<'p>);

impl Future for Completed<'_, '_> {
    type Output = Ended;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let mut table = lock(&self.0.posted.table);
        match table.ops.get_mut(&self.0.id).expect("an operation stays until it is dropped") {
            State::Done(ended) => Poll::Ready(*ended),
            State::Posted(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            State::Idle | State::Abandoned(_) | State::Kept(_) => {
                unreachable!("polled while launched and owned")
            }
        }
    }
}
