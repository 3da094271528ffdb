//! Pins: deferred reclamation, as in RCU. A thread publishes that it uses shared objects, and a reclaimer waits until
//! all such threads have finished.
//!
//! A reader holds a [`Pin`] while it uses an object that it looked up. A writer first makes the object unreachable,
//! then starts a [`GracePeriod`], and frees the object when the grace period is over. By then, every thread that was
//! pinned at its start has unpinned, and later readers cannot find the object.
//!
//! ```text
//! reader                      writer
//! slot := epoch               unlink the object
//! light fence                 epoch += 1, heavy fence
//! look up, use                 ...
//! slot := 0                   over when no slot holds an older epoch
//! ```
//!
//! A pin costs about 2 ns because its fence only constrains the compiler: the writer makes every running thread of the
//! process execute a real fence (membarrier). Pins do not cover other processes.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ptr::null;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, compiler_fence};
use std::sync::{Arc, OnceLock, Weak};

use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

use crate::sync::{AtomicU64, Mutex, fence, lock, thread_locals};

/// The pins of the threads that read one group of objects. Each node has its own `Pins`.
///
/// ```
/// # use halite_mem::Pins;
/// let pins = Pins::new();
/// let pin = pins.pin();
/// let grace = pins.start_grace_period();
/// assert!(!grace.is_over(&pins));
/// drop(pin);
/// assert!(grace.is_over(&pins));
/// ```
#[derive(Debug)]
pub struct Pins {
    /// Unique among the `Pins` of this process.
    id: u64,
    /// Number of grace periods that were started, plus one.
    epoch: AtomicU64,
    /// True if the heavy fence is a membarrier, so that the light fence need only constrain the compiler.
    is_asymmetric: bool,
    registry: Arc<Registry>,
}

/// Keeps the objects that its thread looks up valid until it is dropped: a grace period that starts while the pin
/// exists ends only after the pin is dropped. A pin cannot move to another thread.
#[derive(Debug)]
pub struct Pin<'a> {
    pins: &'a Pins,
    slot: &'a ThreadSlot,
    /// Neither Send nor Sync: the slot belongs to the thread.
    not_send: PhantomData<*const ()>,
}

/// A period that ends once all threads that were pinned at its start have unpinned at least once.
#[derive(Debug)]
pub struct GracePeriod {
    pins_id: u64,
    epoch: u64,
    /// True if the heavy fence has been executed since the start.
    is_fenced: AtomicBool,
}

/// Proof that a grace period is over. The proof never expires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elapsed {
    pins_id: u64,
    epoch: u64,
}

impl Pins {
    /// Creates an empty set of pins.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Pins {
        Pins::with_asymmetry(has_membarrier())
    }

    fn with_asymmetry(is_asymmetric: bool) -> Pins {
        // The counter needs no ordering, so it need not be one of loom's atomics.
        static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Relaxed);
        Pins { id, epoch: AtomicU64::new(1), is_asymmetric, registry: Arc::default() }
    }

    /// Pins the calling thread until the result is dropped. A thread may hold several pins; it is unpinned once all of
    /// them are dropped.
    #[inline]
    pub fn pin(&self) -> Pin<'_> {
        let (id, slot) = RECENT.with(|last| last[recent_index(self.id)].get());
        if id != self.id {
            return self.pin_slow();
        }
        // SAFETY: the id shows that the slot belongs to our registry, which keeps its slots as long as `self` lives;
        // the thread owns the slot until its destructors clear RECENT.
        self.pin_with(unsafe { &*slot })
    }

    /// Starts a grace period, which ends once all threads that are pinned now have unpinned. Never blocks; takes a few
    /// microseconds.
    pub fn start_grace_period(&self) -> GracePeriod {
        // Release: threads that pin with the new epoch see what the caller unlinked before (pairs with the Acquire in
        // publish()). SeqCst only to be no weaker than epoch_now().
        let epoch = self.epoch.fetch_add(1, SeqCst) + 1;
        let is_fenced = AtomicBool::new(self.fence_heavy());
        GracePeriod { pins_id: self.id, epoch, is_fenced }
    }

    /// Returns the sums of the counters of [`Pin::count`] over all threads, including threads that have ended. The
    /// values are not one atomic snapshot.
    pub fn counts(&self) -> [u64; COUNTS] {
        let mut sums = [0u64; COUNTS];
        for slot in &lock(&self.registry.slots).all {
            for (sum, count) in sums.iter_mut().zip(&slot.counts) {
                *sum = sum.wrapping_add(count.load(Relaxed));
            }
        }
        sums
    }

    /// Returns the current epoch. Any grace period with a higher epoch starts after this call.
    pub(crate) fn epoch_now(&self) -> u64 {
        // A read-modify-write: a plain load may miss a grace period that another thread has just started.
        self.epoch.fetch_add(0, SeqCst)
    }

    #[inline]
    fn pin_with<'a>(&'a self, slot: &'a ThreadSlot) -> Pin<'a> {
        // Only the owning thread accesses the depth.
        let depth = slot.depth.load(Relaxed);
        slot.depth.store(depth + 1, Relaxed);
        if depth == 0 {
            self.publish(slot);
        }
        Pin { pins: self, slot, not_send: PhantomData }
    }

    #[inline]
    fn publish(&self, slot: &ThreadSlot) {
        // Acquire pairs with the Release in start_grace_period(): a thread that reads a new epoch also sees the
        // unlinking before it. Release pairs with the Acquire in elapsed(): a thread that sees this new pin also sees
        // the end of all uses under the previous one.
        slot.epoch.store(self.epoch.load(Acquire), Release);
        // Pairs with fence_heavy(): either the scan in elapsed() sees the store above, or the lookups that follow see
        // the unlinking before the grace period.
        if self.is_asymmetric {
            compiler_fence(SeqCst);
        } else {
            fence(SeqCst);
        }
    }

    /// Makes all running threads of this process execute a fence; pairs with the light fence in publish(). Returns
    /// false if the kernel refused.
    fn fence_heavy(&self) -> bool {
        fence(SeqCst);
        // The kernel may lack memory. The grace period then retries before it ends.
        !self.is_asymmetric || membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }

    /// Finds or creates this thread's slot.
    #[cold]
    fn pin_slow(&self) -> Pin<'_> {
        let found = THREAD.try_with(|thread| thread.borrow_mut().slot_for(self));
        let Ok(slot) = found else {
            return self.pin_in_exiting_thread();
        };
        RECENT.with(|last| last[recent_index(self.id)].set((self.id, slot)));
        // SAFETY: the slot is one of our registry, which keeps it as long as `self` lives.
        self.pin_with(unsafe { &*slot })
    }

    /// Pins with a temporary slot, because this thread's locals have been destroyed.
    fn pin_in_exiting_thread(&self) -> Pin<'_> {
        let slot = Arc::as_ptr(&self.registry.acquire());
        // SAFETY: the slot is one of our registry, which keeps it as long as `self` lives.
        let slot = unsafe { &*slot };
        slot.depth.store(TEMPORARY + 1, Relaxed);
        self.publish(slot);
        Pin { pins: self, slot, not_send: PhantomData }
    }
}

impl Pin<'_> {
    /// Adds `amount` to one of the counters of the pin's thread, and returns the counter's new value. The counters are
    /// on cache lines that the pin has already touched; [`Pins::counts`] returns their sums over all threads.
    ///
    /// Panics if `counter` is not below [`COUNTS`].
    #[inline]
    pub fn count(&self, counter: usize, amount: u64) -> u64 {
        let count = &self.slot.counts[counter];
        // Only the slot's owner writes, so no addition is lost. Slots change owners under the registry's lock.
        let sum = count.load(Relaxed).wrapping_add(amount);
        count.store(sum, Relaxed);
        sum
    }

    /// Returns true if this pin was created by `pins`.
    #[inline]
    pub fn is_of(&self, pins: &Pins) -> bool {
        std::ptr::eq(self.pins, pins)
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        let depth = self.slot.depth.load(Relaxed) - 1;
        self.slot.depth.store(depth, Relaxed);
        if depth & !TEMPORARY != 0 {
            return;
        }
        // Pairs with the Acquire in elapsed(): the uses under this pin happened before the reclaim.
        self.slot.epoch.store(0, Release);
        if depth == TEMPORARY {
            self.slot.depth.store(0, Relaxed);
            self.pins.registry.release(self.slot);
        }
    }
}

impl GracePeriod {
    /// Returns true if all threads that were pinned at the start of this period have unpinned at least once. Never
    /// blocks.
    ///
    /// The grace period may also wait for a thread that was about to pin at the start. Panics if `pins` did not start
    /// this grace period.
    pub fn is_over(&self, pins: &Pins) -> bool {
        self.elapsed(pins).is_some()
    }

    /// Returns the proof that the grace period is over, which [`crate::Slots`] requires; `None` if the grace period is
    /// not over. Panics as [`GracePeriod::is_over`] does.
    pub fn elapsed(&self, pins: &Pins) -> Option<Elapsed> {
        assert_eq!(self.pins_id, pins.id, "a grace period must be checked against the Pins that started it");
        if !self.is_fenced.load(Acquire) {
            if !pins.fence_heavy() {
                return None;
            }
            // Pairs with the Acquire above, in another thread.
            self.is_fenced.store(true, Release);
        }
        let slots = lock(&pins.registry.slots);
        let is_pinned_before = |slot: &Arc<ThreadSlot>| {
            // Pairs with the Release of the unpinning thread, or of its next publish().
            let pinned_at = slot.epoch.load(Acquire);
            pinned_at != 0 && pinned_at < self.epoch
        };
        if slots.all.iter().any(is_pinned_before) {
            return None;
        }
        Some(Elapsed { pins_id: self.pins_id, epoch: self.epoch })
    }
}

impl Elapsed {
    /// Returns true if `pins` started the grace period after [`Pins::epoch_now`] had returned `epoch`.
    pub(crate) fn began_after(&self, pins: &Pins, epoch: u64) -> bool {
        self.pins_id == pins.id && self.epoch > epoch
    }
}

/// Number of counters per thread. With 30 counters, the state of a thread takes 256 bytes.
pub const COUNTS: usize = 30;

/// A thread's published pin, and its counters. Aligned to two cache lines, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ThreadSlot {
    /// The epoch that the outermost pin read; 0 without a pin.
    epoch: AtomicU64,
    /// Number of pins that the owning thread holds, or [`TEMPORARY`] plus that number.
    depth: AtomicU64,
    /// Only the owning thread writes them. They need no ordering, so they need not be loom's atomics.
    counts: [std::sync::atomic::AtomicU64; COUNTS],
}

/// Flag of a temporary slot, which returns to the registry when its pin is dropped, not when its thread ends.
const TEMPORARY: u64 = 1 << 63;

/// All slots of one `Pins`, including unused slots, which belong to no thread.
#[derive(Debug, Default)]
struct Registry {
    slots: Mutex<RegistrySlots>,
}

#[derive(Debug, Default)]
struct RegistrySlots {
    all: Vec<Arc<ThreadSlot>>,
    free: Vec<Arc<ThreadSlot>>,
}

impl Registry {
    fn acquire(&self) -> Arc<ThreadSlot> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.free.pop() {
            return slot;
        }
        let slot = Arc::new(ThreadSlot::default());
        slots.all.push(slot.clone());
        slot
    }

    fn release(&self, slot: &ThreadSlot) {
        let mut slots = lock(&self.slots);
        let slot = slots.all.iter().find(|known| std::ptr::eq(&***known, slot));
        let slot = slot.expect("slots are never removed").clone();
        slots.free.push(slot);
    }
}

/// The slots of one thread.
struct ThreadSlots {
    slots: Vec<(u64, Weak<Registry>, Arc<ThreadSlot>)>,
}

impl ThreadSlots {
    fn slot_for(&mut self, pins: &Pins) -> *const ThreadSlot {
        if let Some((.., slot)) = self.slots.iter().find(|(id, ..)| *id == pins.id) {
            return Arc::as_ptr(slot);
        }
        self.slots.retain(|(_, registry, _)| registry.strong_count() > 0);
        let slot = pins.registry.acquire();
        self.slots.push((pins.id, Arc::downgrade(&pins.registry), slot.clone()));
        Arc::as_ptr(&slot)
    }
}

impl Drop for ThreadSlots {
    fn drop(&mut self) {
        // Later destructors of this thread must not use the slot, which another thread may own by then. (RECENT has no
        // destructor and always exists; only loom may have destroyed it already.)
        let _ = RECENT.try_with(|last| last.iter().for_each(|last| last.set((0, null()))));
        for (_, registry, slot) in self.slots.drain(..) {
            // A leaked pin still protects its objects, so its slot is never reused.
            if slot.depth.load(Relaxed) == 0
                && let Some(registry) = registry.upgrade()
            {
                registry.release(&slot);
            }
        }
    }
}

const RECENT_MAX: usize = 2;

#[inline]
fn recent_index(id: u64) -> usize {
    id as usize % RECENT_MAX
}

thread_locals! {
    /// The ids of the `Pins` that this thread used last, with its slots. Even and odd ids have separate entries, so a
    /// thread that uses two nodes finds both slots.
    static RECENT: [Cell<(u64, *const ThreadSlot)>; RECENT_MAX] =
        const { [const { Cell::new((0, null())) }; RECENT_MAX] };
    static THREAD: RefCell<ThreadSlots> = const { RefCell::new(ThreadSlots { slots: Vec::new() }) };
}

/// Registers this process for private expedited membarriers, once.
fn has_membarrier() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    // membarrier does not exist under loom and Miri.
    if cfg!(any(loom, miri)) {
        return false;
    }
    *REGISTERED.get_or_init(|| {
        membarrier_query().contains_command(MembarrierCommand::PrivateExpedited)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    })
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::thread;

    use super::*;

    /// An object to unlink and then destroy. loom reports a use that races with the destruction.
    struct Shared {
        pins: Pins,
        is_linked: AtomicU64,
        object: UnsafeCell<u64>,
    }

    // SAFETY: the model checks this claim.
    unsafe impl Sync for Shared {}

    fn read(shared: &Shared) {
        let _pin = shared.pins.pin();
        if shared.is_linked.load(Relaxed) == 1 {
            // SAFETY: as claimed.
            shared.object.with(|object| assert_eq!(unsafe { *object }, 7));
        }
    }

    fn unlink_and_destroy(shared: &Shared) {
        shared.is_linked.store(0, Relaxed);
        let grace = shared.pins.start_grace_period();
        if grace.is_over(&shared.pins) {
            // SAFETY: as claimed.
            shared.object.with_mut(|object| unsafe { *object = 0 });
        }
    }

    fn check(reads: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let shared = Arc::new(Shared {
                pins: Pins::new(),
                is_linked: AtomicU64::new(1),
                object: UnsafeCell::new(7),
            });
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || (0..reads).for_each(|_| read(&shared)))
            };
            unlink_and_destroy(&shared);
            reader.join().unwrap();
        });
    }

    #[test]
    fn no_reader_sees_a_destroyed_object() {
        check(1);
    }

    #[test]
    fn no_second_pin_sees_a_destroyed_object() {
        check(2);
    }
}
