//! Waiting: threads that wait for a task, wakers, and how long a thread spins before it sleeps.
//!
//! This module does not know what a thread waits for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use halite_fabric::{Fabric, Sleeper};

use crate::runtime::locks::{lock, ranked};

/// Wakers to call when the thread holds no lock, because they may run any code. A single waker, the most common case,
/// needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    first: Option<Waker>,
    /// Further wakers; empty unless there is a first one.
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
    Due => Innermost;
}

/// Lets a thread sleep until the task that it runs is woken.
pub(crate) struct Parker {
    thread: Thread,
    state: AtomicU8,
    /// The fabric on which the thread sleeps; `None` if it sleeps on the parker itself.
    fabric: Mutex<Option<Arc<dyn Fabric>>>,
}

/// State of a [`Parker`] whose thread is awake or parked. In `ON_FABRIC` the thread sleeps on the fabric; in `NOTIFIED`
/// its task has been woken.
const AWAKE: u8 = 0;
const ON_FABRIC: u8 = 1;
const NOTIFIED: u8 = 2;

/// The calling thread's parker and its waker, which one wait borrows.
#[derive(Debug)]
pub(crate) struct Parking {
    parker: Arc<Parker>,
    waker: Waker,
}

thread_local! {
    /// The thread's parker; its first wait creates it, and later waits reuse it.
    static PARKING: RefCell<Option<Parking>> = const { RefCell::new(None) };
    static SPIN: Cell<AdaptiveSpin> = const { Cell::new(AdaptiveSpin::NEW) };
    /// Address of the object that the thread's innermost blocking wait drives; 0 if it is in no such wait.
    static DRIVEN: Cell<usize> = const { Cell::new(0) };
}

/// A blocking wait of the calling thread. Code that runs during the wait can detect it with [`BlockingWait::drives`].
pub(crate) struct BlockingWait {
    /// Address of the object that the enclosing wait drives.
    outer: usize,
}

impl BlockingWait {
    /// Begins a wait during which the calling thread drives `driven`.
    pub(crate) fn begin<T>(driven: &T) -> BlockingWait {
        BlockingWait { outer: DRIVEN.replace(std::ptr::from_ref(driven).addr()) }
    }

    /// Returns true if the calling thread is in a blocking wait that drives `driven`. After the current call, this wait
    /// drives `driven` again or sleeps.
    pub(crate) fn drives<T>(driven: &T) -> bool {
        DRIVEN.get() == std::ptr::from_ref(driven).addr()
    }
}

impl Drop for BlockingWait {
    fn drop(&mut self) {
        DRIVEN.set(self.outer);
    }
}

impl Parker {
    pub(crate) fn new() -> Arc<Parker> {
        let (state, fabric) = (AtomicU8::new(AWAKE), Mutex::new(None));
        Arc::new(Parker { thread: std::thread::current(), state, fabric })
    }

    /// Returns true if the task has been woken.
    pub(crate) fn is_notified(&self) -> bool {
        // Only a hint: take_notification() synchronises.
        self.state.load(Relaxed) == NOTIFIED
    }

    /// Returns true if the task has been woken, and clears this state.
    pub(crate) fn take_notification(&self) -> bool {
        // Acquire pairs with the Release in wake_by_ref().
        self.state.swap(AWAKE, AcqRel) == NOTIFIED
    }

    /// Sleeps until the task is woken. Called on the thread that created the parker.
    pub(crate) fn park(&self) {
        while !self.take_notification() {
            std::thread::park();
        }
    }

    /// Sleeps on `fabric` until the task is woken or [`Fabric::wait`] returns. Called on the thread that created the
    /// parker.
    pub(crate) fn sleep_on(&self, fabric: &Arc<dyn Fabric>, seen: u32, timeout: Option<Duration>) {
        *lock(&self.fabric) = Some(fabric.clone());
        // A later wake rings the fabric, whose doorbell then differs from `seen`: the wait ends. Release pairs with the
        // Acquire in wake_by_ref(), for the fabric.
        if self.state.compare_exchange(AWAKE, ON_FABRIC, Release, Relaxed).is_ok() {
            fabric.wait(Sleeper::Caller, seen, timeout);
            // Fails if the task has been woken; take_notification() reports that.
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
    /// Takes the calling thread's parking for one wait, which returns it with [`Parking::give_back`]. A nested wait
    /// finds it taken and gets a new one, because it would otherwise swallow the wake-ups of the outer wait.
    pub(crate) fn take() -> Parking {
        // A thread that is ending has no thread-local storage any more.
        let kept = PARKING.try_with(|kept| kept.borrow_mut().take()).ok().flatten();
        kept.unwrap_or_else(|| {
            let parker = Parker::new();
            Parking { waker: Waker::from(parker.clone()), parker }
        })
    }

    /// Gives the parking back to the calling thread, for its next wait. Old wakers may wake that wait without a reason,
    /// so waits always check their condition again.
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

/// Decides how long a thread spins before it sleeps, from the duration of its recent waits.
///
/// Sleeping costs two context switches and a wake-up: about 10 us of processor time, and 20 to 50 us of delay. So a
/// wait that is likely to end soon spins, and other waits hardly spin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AdaptiveSpin {
    /// Number of consecutive waits that took longer than the longest spin.
    long_waits: u32,
    /// Time that the current wait has spun, in nanoseconds.
    spun_ns: u64,
    /// Expected processing time of the current wait's request, in nanoseconds.
    work_ns: u64,
    /// Round trip to the peer of the current wait, in nanoseconds; 0 if it is unknown.
    round_trip_ns: u64,
    /// Longest spin in nanoseconds: about the cost of a sleep.
    long_ns: u64,
    /// True if the last yield let another thread run shortly.
    shares_core: bool,
    /// Number of waits on a shared core since the last one that read the clock.
    untimed_waits: u32,
    /// Number of waits without a spin because the core is contended: in total, and remaining.
    contended_waits: (u32, u32),
}

/// Longest spin, in nanoseconds, where peers share memory: the delay that a sleep causes.
const SPIN_LONG_NS: u64 = 50_000;
/// Longest spin, in nanoseconds, where packets pass through the system. A wake-up for a packet delays both ends longer,
/// because the next packet must then still be prepared, sent and received.
const SPIN_PACKETS_NS: u64 = 150_000;
/// Shortest spin, in nanoseconds: a round trip between two awake threads.
pub(crate) const SPIN_SHORT_NS: u64 = 3_000;
/// Number of consecutive long waits after which the next wait is likely to be long.
const LONG_WAITS_MAX: u32 = 4;
/// Duration in nanoseconds from which a yield shows contention: the core went to a computing thread for its time slice,
/// some milliseconds each time.
pub(crate) const YIELD_LONG_NS: u64 = 100_000;
/// Duration in nanoseconds from which a yield has let another thread run. A yield that returns at once takes 300 to 600.
const YIELD_SHARED_NS: u64 = 1_000;
/// Number of short waits on a shared core of which one reads the clock. The two readings of a wait take 0.06 us, and a call
/// through shared memory waits twice. A thread that starts to compute on this core is noticed some time slices later.
const TIMED_EVERY: u32 = 8;
/// Number of waits that do not spin after contention was detected: the first number, and the maximum to which it grows.
/// A thread that sleeps gets the core at once when it is woken.
const CONTENDED_WAITS: (u32, u32) = (16, 1024);
/// Number of long waits of which one spins all the same. When both ends of a conversation sleep, each mistakes the
/// other's wake-up time for a slow answer, and one of them must stay awake once to find out.
const PROBE_EVERY: u32 = 16;

impl AdaptiveSpin {
    /// The initial state, which expects short waits.
    pub(crate) const NEW: AdaptiveSpin = AdaptiveSpin {
        long_waits: 0,
        spun_ns: 0,
        work_ns: 0,
        round_trip_ns: 0,
        long_ns: SPIN_LONG_NS,
        shares_core: false,
        untimed_waits: 0,
        contended_waits: (0, 0),
    };

    /// Sets whether the next waits are for packets or for peers that share memory.
    pub(crate) fn set_by_packets(&mut self, by_packets: bool) {
        self.long_ns = if by_packets { SPIN_PACKETS_NS } else { SPIN_LONG_NS };
    }

    /// Returns how long the next wait should spin, in nanoseconds.
    pub(crate) fn spin_ns(&self) -> u64 {
        if self.contended_waits.1 > 0 {
            // Spinning uses up the thread's share of processor time, and the scheduler delays a thread that has
            // exceeded it when it is woken.
            return 0;
        }
        if self.round_trip_ns > self.long_ns {
            return SPIN_SHORT_NS;
        }
        let is_probe = self.long_waits % PROBE_EVERY == PROBE_EVERY - 1;
        if self.long_waits < LONG_WAITS_MAX || is_probe { self.long_ns + self.work_ns } else { SPIN_SHORT_NS }
    }

    /// Announces that the next wait's request takes about `work_ns` to process even if no thread sleeps. Without this,
    /// the wait would count as long, and both ends would sleep each time.
    pub(crate) fn expect_work(&mut self, work_ns: u64) {
        self.work_ns = work_ns;
    }

    /// Announces the round-trip time to the peer of the next wait. If it exceeds the longest spin, the wait spins only
    /// shortly.
    pub(crate) fn expect_round_trip(&mut self, round_trip: Duration) {
        self.round_trip_ns = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Records that a spin ended without success. [`AdaptiveSpin::record_wait`] must follow.
    pub(crate) fn record_spin(&mut self, spun_ns: u64) {
        self.spun_ns = spun_ns;
    }

    /// Records that the core was contended during the current spin; later waits sleep without spinning.
    pub(crate) fn record_contention(&mut self) {
        let (waits, _) = self.contended_waits;
        let waits = (2 * waits).clamp(CONTENDED_WAITS.0, CONTENDED_WAITS.1);
        // `record_wait` will count the current wait.
        self.contended_waits = (waits, waits + 1);
    }

    /// Returns true if a yield of `yielded_ns` has let another thread run.
    pub(crate) fn is_shared(yielded_ns: u64) -> bool {
        yielded_ns >= YIELD_SHARED_NS
    }

    /// Records a yield of `yielded_ns` during a spin.
    pub(crate) fn record_yield(&mut self, yielded_ns: u64) {
        self.shares_core = AdaptiveSpin::is_shared(yielded_ns);
    }

    /// Returns true if the core is shared with threads that run shortly, as spinning threads do. A thread should then
    /// yield in each round of its spin: the thread that it waits for may be one of them.
    pub(crate) fn shares_core(&self) -> bool {
        self.shares_core
    }

    /// Returns true if the next wait of the calling thread, which shares its core, need not time its first yield: all
    /// recent waits were short, so that another short one changes nothing.
    pub(crate) fn skip_clock() -> bool {
        let mut spin = SPIN.get();
        let is_calm = spin.long_waits == 0 && spin.contended_waits == (0, 0);
        spin.untimed_waits = if is_calm { (spin.untimed_waits + 1) % TIMED_EVERY } else { 0 };
        SPIN.set(spin);
        spin.untimed_waits > 0
    }

    /// Records a wait of `waited_ns`, in addition to the time passed to [`AdaptiveSpin::record_spin`].
    pub(crate) fn record_wait(&mut self, waited_ns: u64) {
        let (total, left) = self.contended_waits;
        self.contended_waits = if left > 0 { (total, left - 1) } else { (0, 0) };
        let waited_ns = waited_ns + std::mem::take(&mut self.spun_ns);
        if std::mem::take(&mut self.round_trip_ns) > self.long_ns {
            // A wait for a distant peer does not predict waits for near peers.
            return;
        }
        let is_long = waited_ns > self.long_ns + std::mem::take(&mut self.work_ns);
        self.long_waits = if is_long { self.long_waits.wrapping_add(1) } else { 0 };
    }

    pub(crate) fn of_thread() -> AdaptiveSpin {
        SPIN.get()
    }

    /// Changes the state of the calling thread.
    pub(crate) fn change(change: impl FnOnce(&mut AdaptiveSpin)) {
        let mut spin = SPIN.get();
        change(&mut spin);
        SPIN.set(spin);
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release pairs with the Acquire in take_notification(), Acquire with the Release in sleep_on().
        match self.state.swap(NOTIFIED, AcqRel) {
            ON_FABRIC => {
                // The thread may have woken by itself and left the fabric.
                let fabric = lock(&self.fabric).clone();
                fabric.inspect(|fabric| fabric.wake());
            }
            AWAKE => self.thread.unpark(),
            _ => {}
        }
    }
}

/// Lets other tasks of the calling thread continue first.
pub(crate) async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Maximum number of futures that [`join_all`] polls before other tasks of the thread continue: about 0.1 ms of
/// notifications.
const POLLED_MAX: usize = 32;

/// The futures of a [`join_all`] that can continue, by index, and the waker of its task.
type Due = (VecDeque<usize>, Waker);

/// Wakes one future of a [`join_all`].
struct Joined {
    due: Arc<Mutex<Due>>,
    index: usize,
    /// True if the future is in the queue.
    is_due: AtomicBool,
}

impl Wake for Joined {
    fn wake(self: Arc<Self>) {
        // Pairs with the AcqRel in join_all(): the poll that follows sees what happened before this wake-up.
        if !self.is_due.swap(true, AcqRel) {
            let mut due = lock(&self.due);
            due.0.push_back(self.index);
            let task = due.1.clone();
            drop(due);
            task.wake();
        }
    }
}

/// Runs all futures concurrently. Returns their outputs in the order of the futures. Polls only futures that were woken,
/// because there may be thousands.
pub(crate) async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let due = Arc::new(Mutex::new((VecDeque::new(), Waker::noop().clone())));
    let join = |(index, future): (usize, F)| {
        let joined = Arc::new(Joined { due: due.clone(), index, is_due: AtomicBool::new(true) });
        (Box::pin(future), joined.clone(), Waker::from(joined))
    };
    let mut under_way: Vec<_> = futures.enumerate().map(join).collect();
    let mut outputs: Vec<Option<F::Output>> = under_way.iter().map(|_| None).collect();
    let mut left = outputs.len();
    lock(&due).0.extend(0..left);
    poll_fn(|context| {
        lock(&due).1.clone_from(context.waker());
        for _ in 0..POLLED_MAX {
            let Some(index) = lock(&due).0.pop_front() else { break };
            let (future, joined, waker) = &mut under_way[index];
            // Pairs with the AcqRel in wake().
            joined.is_due.swap(false, AcqRel);
            if outputs[index].is_none()
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(waker))
            {
                outputs[index] = Some(output);
                left -= 1;
            }
        }
        if left > 0 && !lock(&due).0.is_empty() {
            context.waker().wake_by_ref();
        }
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
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

    /// Other tasks of the thread continue while many futures start, and a wake-up polls only the future that it wakes.
    #[test]
    fn many_futures_start_in_several_polls_and_continue_alone() {
        let (polls, first) = (Cell::new(0), RefCell::new(None::<Waker>));
        let future = |number: usize| {
            let (polls, first) = (&polls, &first);
            poll_fn(move |context| {
                polls.set(polls.get() + 1);
                match number == 0 && first.borrow().is_none() {
                    true => {
                        first.replace(Some(context.waker().clone()));
                        Poll::Pending
                    }
                    false => Poll::Ready(number),
                }
            })
        };
        let mut joined = std::pin::pin!(join_all((0..3 * POLLED_MAX).map(future)));
        let mut context = Context::from_waker(Waker::noop());
        for turn in 1..4 {
            assert!(joined.as_mut().poll(&mut context).is_pending());
            assert_eq!(polls.get(), turn * POLLED_MAX);
        }
        assert!(joined.as_mut().poll(&mut context).is_pending());
        assert_eq!(polls.get(), 3 * POLLED_MAX);
        first.borrow().as_ref().expect("it was polled").wake_by_ref();
        assert_eq!(joined.as_mut().poll(&mut context), Poll::Ready((0..3 * POLLED_MAX).collect()));
        assert_eq!(polls.get(), 3 * POLLED_MAX + 1);
    }

    #[test]
    fn long_waits_make_the_spin_short() {
        let mut spin = AdaptiveSpin::NEW;
        for _ in 0..LONG_WAITS_MAX {
            assert_eq!(spin.spin_ns(), SPIN_LONG_NS);
            spin.record_spin(SPIN_LONG_NS);
            spin.record_wait(1);
        }
        assert_eq!(spin.spin_ns(), SPIN_SHORT_NS);
        spin.record_spin(SPIN_SHORT_NS);
        spin.record_wait(SPIN_LONG_NS - SPIN_SHORT_NS);
        assert_eq!(spin.spin_ns(), SPIN_LONG_NS);
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
