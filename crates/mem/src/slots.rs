//! Slots: a table of objects by index and generation, which readers access without locks.
//!
//! Readers look up under a [`Pin`]; an internal mutex serialises writers. A writer replaces or removes an object in two
//! steps, so no reader ever holds a reference to a removed object:
//!
//! ```text
//!          insert            freeze             retire
//! free ------------> live <----------> frozen ---------> retired
//!   ^                  |      thaw,                         ^ |
//!   |                  |      update*                       | |
//!   |                  +------------------------------------+ |
//!   +---------------------------------------------------------+
//!                             reclaim*
//!         * requires the proof that a grace period which began after freeze or retire is over
//! ```
//!
//! Slots do not interpret their objects. Their caller starts the grace periods, with [`Pins`].

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::pins::{Elapsed, Pin, Pins};
use crate::sync::{AtomicPtr, AtomicU64, Mutex, MutexGuard, lock};

/// A table of objects of type `T`, which never moves its objects.
///
/// ```
/// # use std::sync::Arc;
/// # use halite_mem::{Lookup, Pins, Slots};
/// let pins = Arc::new(Pins::new());
/// let slots = Slots::new(pins.clone());
/// let (index, generation) = slots.insert("salt");
/// let pin = pins.pin();
/// assert_eq!(slots.get(&pin, index, generation), Lookup::Found(&"salt"));
/// slots.retire(index)?;
/// assert_eq!(slots.get(&pin, index, generation), Lookup::Stale);
/// drop(pin);
/// let grace = pins.start_grace_period();
/// let elapsed = grace.elapsed(&pins).expect("no thread is pinned");
/// assert_eq!(slots.reclaim(index, elapsed)?, "salt");
/// # Ok::<(), halite_mem::SlotError>(())
/// ```
#[derive(Debug)]
pub struct Slots<T> {
    pins: Arc<Pins>,
    /// Block `b` has `block_slots(b)` slots; null until its first slot is needed.
    blocks: [AtomicPtr<Slot<T>>; BLOCKS],
    writer: Mutex<Writer>,
}

/// The result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup<'p, T> {
    /// The table holds the object.
    Found(&'p T),
    /// The slot is frozen: a writer is replacing the object. The caller must try again later, or take a slower path.
    Busy,
    /// No object has this index and generation, and no later object will have both.
    Stale,
}

/// The reason why an operation did not change a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SlotError {
    /// The slot does not exist, or its state does not permit the operation.
    #[error("cannot {attempted} slot {index}: the slot does not exist, or its state does not allow this")]
    WrongState {
        /// Name of the operation.
        attempted: &'static str,
        /// Index of the slot.
        index: u32,
    },
    /// The grace period began before the slot was frozen or retired, or was started by other [`Pins`] than the table's.
    #[error(
        "cannot {attempted} slot {index}: the grace period began before the slot was frozen or retired, or belongs to other pins"
    )]
    WrongGrace {
        /// Name of the operation.
        attempted: &'static str,
        /// Index of the slot.
        index: u32,
    },
}

impl<T> Slots<T> {
    /// Creates an empty table, whose readers use pins of `pins`.
    pub fn new(pins: Arc<Pins>) -> Slots<T> {
        let blocks = std::array::from_fn(|_| AtomicPtr::new(null_mut()));
        let writer = Writer { slots_used: 0, free_head: NO_SLOT, len: 0 };
        Slots { pins, blocks, writer: Mutex::new(writer) }
    }

    /// Looks up an object without locks, in two dependent loads. Panics if `pin` belongs to other [`Pins`] than the
    /// table.
    #[inline]
    pub fn get<'p>(&'p self, pin: &'p Pin<'_>, index: u32, generation: u32) -> Lookup<'p, T> {
        assert!(pin.is_of(&self.pins), "a lookup needs a pin of the table's own Pins");
        let Some(slot) = self.slot(index) else {
            return Lookup::Stale;
        };
        // Pairs with the Release in Slot::set_state(): a reader that sees the state sees the value.
        let state = slot.state.load(Acquire);
        if state == pack(generation, LIVE) {
            // SAFETY: a live slot holds a value, written before its state. It stays until a grace period has passed
            // since the slot left this state, and that grace period waits for `pin`, which outlives the reference.
            return Lookup::Found(unsafe { slot.value() });
        }
        if state == pack(generation, FROZEN) { Lookup::Busy } else { Lookup::Stale }
    }

    /// Stores `value` in a free slot and returns its index and its generation, which is never zero.
    ///
    /// Panics when all of about 2^32 slots are in use.
    pub fn insert(&self, value: T) -> (u32, u32) {
        let mut writer = lock(&self.writer);
        let (index, slot) = self.take_free(&mut writer);
        // SAFETY: no reader accesses a free slot, and we hold the writers' lock.
        unsafe { slot.value.get().cast::<T>().write(value) };
        let generation = slot.generation() + 1;
        slot.set_state(generation, LIVE);
        writer.len += 1;
        (index, generation)
    }

    /// Makes lookups return [`Lookup::Busy`] from now on. Readers that have already found the value may still use it.
    /// Fails unless the slot is live.
    pub fn freeze(&self, index: u32) -> Result<(), SlotError> {
        let _writer = lock(&self.writer);
        let slot = self.slot_in_state(index, &[LIVE], "freeze")?;
        slot.set_state(slot.generation(), FROZEN);
        slot.next_or_epoch.store(self.pins.epoch_now(), Relaxed);
        Ok(())
    }

    /// Ends a freeze: lookups return the value again. Fails unless the slot is frozen.
    pub fn thaw(&self, index: u32) -> Result<(), SlotError> {
        let _writer = lock(&self.writer);
        let slot = self.slot_in_state(index, &[FROZEN], "thaw")?;
        slot.set_state(slot.generation(), LIVE);
        Ok(())
    }

    /// Replaces the value of a frozen slot, thaws the slot and returns the old value.
    ///
    /// `elapsed` must prove that a grace period which began after [`Slots::freeze`] is over.
    pub fn update(&self, index: u32, elapsed: Elapsed, value: T) -> Result<T, SlotError> {
        let _writer = lock(&self.writer);
        let slot = self.slot_in_state(index, &[FROZEN], "update")?;
        self.check_grace(slot, index, elapsed, "update")?;
        // SAFETY: after the grace period no reader holds a reference, no reader gets one while the slot is frozen, and
        // we hold the writers' lock; a frozen slot holds a value.
        let old = unsafe { std::ptr::replace(slot.value.get().cast::<T>(), value) };
        slot.set_state(slot.generation(), LIVE);
        Ok(old)
    }

    /// Makes lookups return [`Lookup::Stale`] from now on. Readers that have already found the value may still use it.
    /// Fails unless the slot is live or frozen.
    pub fn retire(&self, index: u32) -> Result<(), SlotError> {
        let mut writer = lock(&self.writer);
        let slot = self.slot_in_state(index, &[LIVE, FROZEN], "retire")?;
        slot.set_state(slot.generation(), RETIRED);
        slot.next_or_epoch.store(self.pins.epoch_now(), Relaxed);
        writer.len -= 1;
        Ok(())
    }

    /// Removes the value from a retired slot and returns the value. A later insert can then use the slot under its next
    /// generation.
    ///
    /// `elapsed` must prove that a grace period which began after [`Slots::retire`] is over.
    pub fn reclaim(&self, index: u32, elapsed: Elapsed) -> Result<T, SlotError> {
        let mut writer = lock(&self.writer);
        let slot = self.slot_in_state(index, &[RETIRED], "reclaim")?;
        self.check_grace(slot, index, elapsed, "reclaim")?;
        let generation = slot.generation();
        slot.set_state(generation, FREE);
        // SAFETY: as in update(); a retired slot holds a value, and a free one is never read.
        let old = unsafe { slot.value.get().cast::<T>().read() };
        // A slot without further generations is never reused, so stale handles stay stale.
        if generation < u32::MAX {
            slot.next_or_epoch.store(writer.free_head, Relaxed);
            writer.free_head = u64::from(index);
        }
        Ok(old)
    }

    /// Returns the number of live and frozen slots.
    pub fn len(&self) -> usize {
        lock(&self.writer).len
    }

    /// Returns true if no slot is live or frozen.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `visit` with the value of a live or frozen slot, and returns the result of `visit`; `None` if the slot is
    /// neither live nor frozen. `visit` runs under the writers' lock, so it must not change the table.
    pub fn inspect<R>(&self, index: u32, visit: impl FnOnce(&T) -> R) -> Option<R> {
        let _writer = lock(&self.writer);
        let slot = self.slot(index).filter(|slot| matches!(slot.status(), LIVE | FROZEN))?;
        // SAFETY: such slots hold a value, which only a writer could remove; we hold the writers' lock.
        Some(visit(unsafe { slot.value() }))
    }

    /// Calls `visit` with index, generation and value of each live or frozen slot, in order of the indices. `visit`
    /// runs under the writers' lock, so it must not change the table.
    pub fn iter_with(&self, mut visit: impl FnMut(u32, u32, &T)) {
        let writer = lock(&self.writer);
        for index in 0..writer.slots_used {
            let slot = self.slot(index).expect("the blocks of used slots exist");
            if matches!(slot.status(), LIVE | FROZEN) {
                // SAFETY: such slots hold a value, which only a writer could remove; we hold the writers' lock.
                visit(index, slot.generation(), unsafe { slot.value() });
            }
        }
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let (block, offset) = locate(index);
        // Pairs with the Release in take_free(). The block of a large index may not exist.
        let slots = self.blocks.get(block)?.load(Acquire);
        if slots.is_null() {
            return None;
        }
        // SAFETY: locate() keeps the offset below the number of the block's slots.
        let slot = unsafe { slots.add(offset) };
        // SAFETY: slots are initialised with their block, which lives as long as self.
        Some(unsafe { &*slot })
    }

    fn slot_in_state(
        &self,
        index: u32,
        allowed: &[u32],
        attempted: &'static str,
    ) -> Result<&Slot<T>, SlotError> {
        let slot = self.slot(index).filter(|slot| allowed.contains(&slot.status()));
        slot.ok_or(SlotError::WrongState { attempted, index })
    }

    fn check_grace(
        &self,
        slot: &Slot<T>,
        index: u32,
        elapsed: Elapsed,
        attempted: &'static str,
    ) -> Result<(), SlotError> {
        if elapsed.began_after(&self.pins, slot.next_or_epoch.load(Relaxed)) {
            return Ok(());
        }
        Err(SlotError::WrongGrace { attempted, index })
    }

    fn take_free(&self, writer: &mut MutexGuard<'_, Writer>) -> (u32, &Slot<T>) {
        let index = if writer.free_head != NO_SLOT { writer.free_head as u32 } else { writer.slots_used };
        let (block, offset) = locate(index);
        assert!(block < BLOCKS, "all slots of the table are taken");
        if self.blocks[block].load(Relaxed).is_null() {
            debug_assert_eq!(offset, 0, "slots are first used in order");
            let slots = Box::into_raw(new_block::<T>(block));
            // Pairs with the Acquire in slot().
            self.blocks[block].store(slots.cast(), Release);
        }
        let slot = self.slot(index).expect("the block exists");
        if writer.free_head != NO_SLOT {
            writer.free_head = slot.next_or_epoch.load(Relaxed);
        } else {
            writer.slots_used += 1;
        }
        (index, slot)
    }
}

// SAFETY: the table owns its values and moves them between threads, hence T: Send.
unsafe impl<T: Send> Send for Slots<T> {}
// SAFETY: threads that share the table share references to its values (T: Sync) and take them out (T: Send); each
// access to a slot argues for itself.
unsafe impl<T: Send + Sync> Sync for Slots<T> {}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        for (block, slots) in self.blocks.iter().enumerate() {
            let slots = slots.load(Relaxed);
            if slots.is_null() {
                return;
            }
            let slots = std::ptr::slice_from_raw_parts_mut(slots, block_slots(block));
            // SAFETY: take_free() created it from a box of this length, and the table has no other users any more.
            let mut slots = unsafe { Box::from_raw(slots) };
            for slot in slots.iter_mut().filter(|slot| slot.status() != FREE) {
                // SAFETY: slots that are not free hold a value, and it is dropped only here.
                unsafe { slot.value.get_mut().assume_init_drop() };
            }
        }
    }
}

/// The writers' state. Their lock also protects the `next_or_epoch` of each slot.
#[derive(Debug)]
struct Writer {
    /// Number of slots that were ever used; these have the lowest indices.
    slots_used: u32,
    /// Index of the first slot in the list of free slots, or `NO_SLOT`; `next_or_epoch` links the list.
    free_head: u64,
    /// Number of live and frozen slots.
    len: usize,
}

/// A slot: one cache line for a value of 48 bytes.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot<T> {
    /// Generation in the upper half, status in the lower. All zero: free and never used.
    state: AtomicU64,
    /// For writers only. In a free slot: index of the next free slot. In a frozen or retired slot: epoch of the pins
    /// when the slot was frozen or retired.
    next_or_epoch: AtomicU64,
    /// Holds a value unless free.
    value: UnsafeCell<MaybeUninit<T>>,
}

impl<T> Slot<T> {
    fn generation(&self) -> u32 {
        (self.state.load(Relaxed) >> 32) as u32
    }

    fn status(&self) -> u32 {
        self.state.load(Relaxed) as u32
    }

    /// # Safety
    /// The slot holds a value, and no thread replaces or removes it while the reference lives.
    #[inline]
    unsafe fn value(&self) -> &T {
        // SAFETY: per the caller; MaybeUninit<T> is laid out as T.
        unsafe { &*self.value.get().cast::<T>() }
    }

    fn set_state(&self, generation: u32, status: u32) {
        // Pairs with the Acquire in get().
        self.state.store(pack(generation, status), Release);
    }
}

const FREE: u32 = 0;
const LIVE: u32 = 1;
const FROZEN: u32 = 2;
const RETIRED: u32 = 3;

const fn pack(generation: u32, status: u32) -> u64 {
    (generation as u64) << 32 | status as u64
}

const NO_SLOT: u64 = u64::MAX;

/// The first block takes 4 KiB if a slot is one cache line; models have two slots.
const FIRST_BLOCK_SLOTS_LOG2: u32 = if cfg!(loom) { 1 } else { 6 };

/// Number of blocks, so that all indices are below 2^32.
const BLOCKS: usize = if cfg!(loom) { 3 } else { (32 - FIRST_BLOCK_SLOTS_LOG2) as usize };

const fn block_slots(block: usize) -> usize {
    1 << (block + FIRST_BLOCK_SLOTS_LOG2 as usize)
}

/// Returns the block of a slot, and the offset in the block. With the first block's size added to the index, the
/// highest bit gives the block and the other bits the offset.
#[inline]
fn locate(index: u32) -> (usize, usize) {
    let shifted = u64::from(index) + (1 << FIRST_BLOCK_SLOTS_LOG2);
    let highest = shifted.ilog2();
    ((highest - FIRST_BLOCK_SLOTS_LOG2) as usize, (shifted - (1 << highest)) as usize)
}

#[cfg(not(loom))]
fn new_block<T>(block: usize) -> Box<[Slot<T>]> {
    // Zeroed memory of this size costs nothing until it is touched.
    let slots = Box::<[Slot<T>]>::new_zeroed_slice(block_slots(block));
    // SAFETY: all zero is a free slot without a value.
    unsafe { slots.assume_init() }
}

#[cfg(loom)]
fn new_block<T>(block: usize) -> Box<[Slot<T>]> {
    let slot = || Slot {
        state: AtomicU64::new(0),
        next_or_epoch: AtomicU64::new(0),
        value: UnsafeCell::new(MaybeUninit::uninit()),
    };
    std::iter::repeat_with(slot).take(block_slots(block)).collect()
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
