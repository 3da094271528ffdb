//! Waiting: threads that wait for a task, what they wake, and how long it pays to spin before they sleep.
//!
//! Nothing here knows what is waited for.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use halite_fabric::{Fabric, Sleeper};

use crate::runtime::locks::{lock, ranked};

/// Wakers that are to be called when no lock is held, since they may run anything.  A single one, which is most often
/// the case, allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    first: Option<Waker>,
    /// Only behind a first one.
    more: Vec<Waker>,
}

impl Wakes {
    #[inline]
    pub(crate) fn add(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            match self.first {
                None => self.first = Some(waker),
                Some(_) => self.more.push(waker),
            }
        }
    }

    pub(crate) fn extend(&mut self, wakers: Vec<Waker>) {
        wakers.into_iter().for_each(|waker| self.add(Some(waker)));
    }

    /// Adds those of `other`.
    #[inline]
    pub(crate) fn append(&mut self, other: Wakes) {
        if !other.is_empty() {
            self.add(other.first);
            self.extend(other.more);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub(crate) fn wake_all(self) {
        if let Some(first) = self.first {
            first.wake();
            self.more.into_iter().for_each(Waker::wake);
        }
    }
}

ranked! {
    Option<Arc<dyn Fabric>> => Innermost;
}

/// A thread that waits for a task of its own.
pub(crate) struct Parker {
    thread: Thread,
    state: AtomicU8,
    /// On which it sleeps, while it does.
    fabric: Mutex<Option<Arc<dyn Fabric>>>,
}

/// States of a [`Parker`].
const AWAKE: u8 = 0;
const ON_FABRIC: u8 = 1;
const NOTIFIED: u8 = 2;

/// The calling thread's parker and its waker, lent to one wait.
#[derive(Debug)]
pub(crate) struct Parking {
    parker: Arc<Parker>,
    waker: Waker,
}

thread_local! {
    /// Made by the first wait of a thread, and then used again.
    static PARKING: RefCell<Option<Parking>> = const { RefCell::new(None) };
    static PATIENCE: Cell<AdaptiveSpin> = const { Cell::new(AdaptiveSpin::NEW) };
    /// For what its innermost blocking wait moves forward; 0 without one.
    static WAITS_FOR: Cell<usize> = const { Cell::new(0) };
}

/// A blocking wait of the calling thread, of which what it waits for can know.
pub(crate) struct BlockingWait {
    /// What the wait around it moves forward.
    outer: usize,
}

impl BlockingWait {
    /// Of a thread that moves `moved` forward until the wait is over.
    pub(crate) fn begin<T>(moved: &T) -> BlockingWait {
        BlockingWait { outer: WAITS_FOR.replace(std::ptr::from_ref(moved).addr()) }
    }

    /// Whether the calling thread waits for what it does now, and so goes on to move `moved` forward, or sleeps, when that is not over.
    pub(crate) fn moves<T>(moved: &T) -> bool {
        WAITS_FOR.get() == std::ptr::from_ref(moved).addr()
    }
}

impl Drop for BlockingWait {
    fn drop(&mut self) {
        WAITS_FOR.set(self.outer);
    }
}

impl Parker {
    /// One for the calling thread.
    pub(crate) fn new() -> Arc<Parker> {
        let (state, fabric) = (AtomicU8::new(AWAKE), Mutex::new(None));
        Arc::new(Parker { thread: std::thread::current(), state, fabric })
    }

    /// Whether the task wants to go on.
    pub(crate) fn is_notified(&self) -> bool {
        // Only a hint: take_notice() synchronises.
        self.state.load(Relaxed) == NOTIFIED
    }

    /// Whether the task wants to go on, which is forgotten.
    pub(crate) fn take_notice(&self) -> bool {
        // Acquire pairs with the Release in wake_by_ref().
        self.state.swap(AWAKE, AcqRel) == NOTIFIED
    }

    /// Sleeps until the task wants to go on.  Called on the thread that made it.
    pub(crate) fn park(&self) {
        while !self.take_notice() {
            std::thread::park();
        }
    }

    /// Sleeps on `fabric`, as [`Fabric::wait`] does, unless the task wants to go on, and until it does.  Called on the thread
    /// that made it.
    pub(crate) fn sleep_on(&self, fabric: &Arc<dyn Fabric>, seen: u32, timeout: Option<Duration>) {
        *lock(&self.fabric) = Some(fabric.clone());
        // Who notifies from here on rings the fabric, whose doorbell has moved then: the wait ends.  Release pairs with the
        // Acquire in wake_by_ref(), for the fabric.
        if self.state.compare_exchange(AWAKE, ON_FABRIC, Release, Relaxed).is_ok() {
            fabric.wait(Sleeper::Caller, seen, timeout);
            // It fails if the task wants to go on: that is kept for who asks.
            let _ = self.state.compare_exchange(ON_FABRIC, AWAKE, Relaxed, Relaxed);
        }
        *lock(&self.fabric) = None;
    }
}

impl fmt::Debug for Parker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parker").field("thread", &self.thread.id()).finish_non_exhaustive()
    }
}

impl Parking {
    /// Takes the calling thread's for one wait; give it back by [`Parking::give_back`].  A wait within that wait finds
    /// it gone and has one of its own, since it would swallow the outer one's wake-ups.
    pub(crate) fn take() -> Parking {
        // A thread that is ending has no such memory any more.
        let kept = PARKING.try_with(|kept| kept.borrow_mut().take()).ok().flatten();
        kept.unwrap_or_else(|| {
            let parker = Parker::new();
            Parking { waker: Waker::from(parker.clone()), parker }
        })
    }

    /// Keeps it for the thread's next wait.  A waker that somebody still has may wake that for nothing: waits
    /// always look again.
    pub(crate) fn give_back(self) {
        let _ = PARKING.try_with(|kept| kept.borrow_mut().replace(self));
    }

    pub(crate) fn parker(&self) -> &Parker {
        &self.parker
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }
}

/// How long to spin before going to sleep, learnt from how long the last waits took.
///
/// To sleep costs two switches and a wake-up, about 10 us of processor time, and 20 to 50 us of delay.  So a wait that
/// is likely to end soon is spun through, and one that is not is hardly spun for at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AdaptiveSpin {
    /// Consecutive waits that took longer than the longest spin.
    long_waits: u32,
    /// For how long the present wait has been spun for.
    spun_ns: u64,
    /// For how long somebody works, in the present wait, on what is waited for.
    work_ns: u64,
    /// What the present wait takes at least, where that is known.
    round_trip_ns: u64,
    /// The longest spin: what a sleep costs.
    long_ns: u64,
    /// How many waits are not spun for since others want the processor: in all, and still.
    crowded_waits: (u32, u32),
}

/// The longest spin where peers share memory: what a sleep delays the waiter by.
const SPIN_LONG_NS: u64 = 50_000;
/// Where packets come through the system: a wake-up by a packet takes both ends longer, and what comes next had to be made ready, sent and
/// received first.
const SPIN_PACKETS_NS: u64 = 150_000;
/// The shortest spin: a round trip between two threads that are awake.
pub(crate) const SPIN_SHORT_NS: u64 = 3_000;
/// So many consecutive long waits mean that the next one is likely to be long.
const LONG_WAITS_MAX: u32 = 4;
/// A yield that takes longer has given the processor to somebody who computes, for a slice of some milliseconds each time.
pub(crate) const YIELD_LONG_NS: u64 = 100_000;
/// For how many waits nobody spins after that, at first and in the end: who sleeps has the processor at once when woken.
const CROWDED_WAITS: (u32, u32) = (16, 1024);
/// Every so many long waits one is spun for all the same.  When both ends of a conversation sleep, each takes the
/// other's wake-up for slowness, and one of them must stay awake for once to find out.
const PROBE_EVERY: u32 = 16;

impl AdaptiveSpin {
    /// Nothing is known: short waits are expected.
    pub(crate) const NEW: AdaptiveSpin = AdaptiveSpin {
        long_waits: 0,
        spun_ns: 0,
        work_ns: 0,
        round_trip_ns: 0,
        long_ns: SPIN_LONG_NS,
        crowded_waits: (0, 0),
    };

    /// From now on it is waited for what comes by packets, or for peers that share memory.
    pub(crate) fn set_by_packets(&mut self, by_packets: bool) {
        self.long_ns = if by_packets { SPIN_PACKETS_NS } else { SPIN_LONG_NS };
    }

    /// How long to spin in the next wait.
    pub(crate) fn spin_ns(&self) -> u64 {
        if self.crowded_waits.1 > 0 {
            // What is computed before a sleep counts: who has used more than its share is not let on at once when it is woken.
            return 0;
        }
        if self.round_trip_ns > self.long_ns {
            return SPIN_SHORT_NS;
        }
        let is_probe = self.long_waits % PROBE_EVERY == PROBE_EVERY - 1;
        if self.long_waits < LONG_WAITS_MAX || is_probe { self.long_ns + self.work_ns } else { SPIN_SHORT_NS }
    }

    /// The next wait takes longer than others even if nobody sleeps, by about so much.  Both ends would sleep each time if
    /// it were judged as they are.
    pub(crate) fn expect_work(&mut self, work_ns: u64) {
        self.work_ns = work_ns;
    }

    /// The next wait is for a peer to which a round trip takes so long: if that is longer than a sleep, no spin pays.
    pub(crate) fn expect_round_trip(&mut self, round_trip: Duration) {
        self.round_trip_ns = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
    }

    /// The wait was not over after so long a spin; [`AdaptiveSpin::note_wait`] follows.
    pub(crate) fn note_spin(&mut self, spun_ns: u64) {
        self.spun_ns = spun_ns;
    }

    /// Another thread computed while the present wait was spun for: waits are rather slept through from now on.
    pub(crate) fn note_crowd(&mut self) {
        let (waits, _) = self.crowded_waits;
        let waits = (2 * waits).clamp(CROWDED_WAITS.0, CROWDED_WAITS.1);
        // The present one counts.
        self.crowded_waits = (waits, waits + 1);
    }

    /// A wait has ended, after so long (without what [`AdaptiveSpin::note_spin`] told).
    pub(crate) fn note_wait(&mut self, waited_ns: u64) {
        let (in_all, still) = self.crowded_waits;
        self.crowded_waits = if still > 0 { (in_all, still - 1) } else { (0, 0) };
        let waited_ns = waited_ns + std::mem::take(&mut self.spun_ns);
        if std::mem::take(&mut self.round_trip_ns) > self.long_ns {
            // It says nothing about waits for peers that are near.
            return;
        }
        let is_long = waited_ns > self.long_ns + std::mem::take(&mut self.work_ns);
        self.long_waits = if is_long { self.long_waits.wrapping_add(1) } else { 0 };
    }

    /// The calling thread's.
    pub(crate) fn of_thread() -> AdaptiveSpin {
        PATIENCE.get()
    }

    /// Changes the calling thread's.
    pub(crate) fn change(change: impl FnOnce(&mut AdaptiveSpin)) {
        let mut patience = PATIENCE.get();
        change(&mut patience);
        PATIENCE.set(patience);
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release pairs with the Acquire in take_notice(), Acquire with the Release in sleep_on().
        match self.state.swap(NOTIFIED, AcqRel) {
            ON_FABRIC => {
                // It may have woken by itself, and be on its way elsewhere.
                let fabric = lock(&self.fabric).clone();
                fabric.inspect(|fabric| fabric.wake());
            }
            AWAKE => self.thread.unpark(),
            _ => {}
        }
    }
}

/// Runs all to their ends, side by side; what came of each, in their order.
pub(crate) async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut under_way: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = under_way.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, output) in under_way.iter_mut().zip(&mut outputs).filter(|(_, output)| output.is_none())
        {
            if let Poll::Ready(ready) = future.as_mut().poll(context) {
                *output = Some(ready);
            }
        }
        if outputs.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_wait_keeps_the_outer_wake_up() {
        let outer = Parking::take();
        outer.waker().wake_by_ref();
        let inner = Parking::take();
        assert!(!inner.parker().is_notified());
        inner.waker().wake_by_ref();
        inner.parker().park();
        inner.give_back();
        assert!(outer.parker().is_notified());
        outer.give_back();
    }

    #[test]
    fn long_waits_make_the_spin_short() {
        let mut patience = AdaptiveSpin::NEW;
        for _ in 0..LONG_WAITS_MAX {
            assert_eq!(patience.spin_ns(), SPIN_LONG_NS);
            patience.note_spin(SPIN_LONG_NS);
            patience.note_wait(1);
        }
        assert_eq!(patience.spin_ns(), SPIN_SHORT_NS);
        patience.note_spin(SPIN_SHORT_NS);
        patience.note_wait(SPIN_LONG_NS - SPIN_SHORT_NS);
        assert_eq!(patience.spin_ns(), SPIN_LONG_NS);
    }

    #[test]
    fn a_wake_before_the_park_is_remembered() {
        let parker = Parker::new();
        Waker::from(parker.clone()).wake();
        assert!(parker.is_notified());
        parker.park();
        assert!(!parker.is_notified());
    }
}
