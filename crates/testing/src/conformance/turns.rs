//! Threads and waiting, in real or in virtual time.
//!
//! Cases use threads. Over real nodes these are ordinary threads. In a simulated world, the threads take turns: one
//! runs at a time, and the thread that started the case advances the world while all threads wait. So the same code
//! runs in virtual time, and the seed determines the run. Threads of a case must wait for each other only by the
//! functions of this file. Otherwise a waiting thread keeps its turn, and virtual time stops.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use halite_sim::{HostClock, World};

/// Minimum simulated time of an operation, so that repeated polling does not stop the clock.
const OPERATION_NS: u64 = 50;
/// Bytes that a caller copies per ns.
const BYTES_PER_NS: u64 = 10;
/// Maximum number of bytes charged for one copy: operations with huge lengths are refused without a copy.
const BYTES_MAX: u64 = 1 << 26;
/// First pause between repeated checks, in ns.
const PAUSE_NS: u64 = 1_000;
/// Number of checks in real time after which a thread yields instead of sleeping.
const YIELDS: u32 = 100;
/// Maximum pause in real time, in ns.
const PAUSE_NS_MAX: u64 = 1_000_000;
/// Time limit of a case, in virtual time.
const CASE_LIMIT: Duration = Duration::from_secs(3600);

thread_local! {
    /// Place of this thread among the threads that take turns; `None` in real time.
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
    /// The world, only on the thread that advances it.
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// A thread of a case in virtual time.
#[derive(Clone)]
struct Place {
    turns: Arc<Turns>,
    /// 0 for the thread that advances the world.
    id: usize,
}

/// The threads of a case, of which one runs at a time.
struct Turns {
    state: Mutex<TurnsState>,
    changed: Condvar,
    /// Number of threads so far, and id of the next one.
    places: AtomicUsize,
    clock: HostClock,
}

#[derive(Default)]
struct TurnsState {
    /// The thread that has the turn.
    running: usize,
    /// Threads that were woken and wait for their turn, in order.
    woken: VecDeque<usize>,
    /// Threads that have ended. Their wakers may still be called.
    ended: BTreeSet<usize>,
    /// True once the case has failed, so that all waits end.
    is_over: bool,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, TurnsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, id: usize) {
        self.lock().woken.push_back(id);
    }

    fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }
}

/// Makes the case of this thread run in a world, until this value is dropped.
pub struct InWorld(());

impl InWorld {
    /// Makes the case of this thread run in `world`. Panics if the thread already runs a case in a world.
    pub fn enter(world: &World) -> InWorld {
        let clock = world.clock(world.add_host());
        let turns =
            Turns { state: Mutex::default(), changed: Condvar::new(), places: AtomicUsize::new(1), clock };
        let place = Place { turns: Arc::new(turns), id: 0 };
        assert!(PLACE.replace(Some(place)).is_none(), "a thread runs one case at a time");
        WORLD.set(Some(world.clone()));
        InWorld(())
    }
}

impl Drop for InWorld {
    fn drop(&mut self) {
        PLACE.set(None);
        WORLD.set(None);
    }
}

/// Returns true if this thread runs in virtual time.
pub fn is_simulated() -> bool {
    PLACE.with_borrow(Option::is_some)
}

/// Returns the virtual time in ns; `None` in real time.
pub fn virtual_now_ns() -> Option<u64> {
    PLACE.with_borrow(|place| place.as_ref().map(|place| place.turns.clock.now_ns()))
}

/// Waits for a future.
pub fn wait<F: Future>(future: F) -> F::Output {
    wait_for_bytes(0, future)
}

/// Waits for a future and returns its output. In virtual time, the wait also takes as long as copying `bytes` bytes.
pub fn wait_for_bytes<F: Future>(bytes: u64, future: F) -> F::Output {
    match PLACE.with_borrow(Clone::clone) {
        Some(place) => place.wait(OPERATION_NS + bytes.min(BYTES_MAX) / BYTES_PER_NS, future),
        None => park_until(future),
    }
}

/// Resolves after `duration`. A future must use this instead of [`pause`], because a wait within another wait loses
/// wake-ups.
pub async fn sleep(duration: Duration) {
    match PLACE.with_borrow(Clone::clone) {
        Some(place) => {
            let clock = &place.turns.clock;
            clock.sleep_until(clock.now_ns() + duration.as_nanos() as u64).await;
        }
        None => thread::sleep(duration),
    }
}

/// Lets other threads run before a repeated check.
pub fn pause() {
    pause_again(0);
}

/// Pauses as [`pause`] does, after `checks` checks. Pauses grow with `checks`, so that a limited number of checks also
/// covers events that take a whole lease.
pub fn pause_again(checks: u32) {
    let pause_ns = PAUSE_NS * (1 + u64::from(checks));
    match PLACE.with_borrow(Clone::clone) {
        Some(place) => place.sleep_ns(pause_ns),
        // Most events happen at once; the others need a thread that waits for a core.
        None if checks < YIELDS => thread::yield_now(),
        None => thread::sleep(Duration::from_nanos(pause_ns.min(PAUSE_NS_MAX))),
    }
}

/// Waits for a future in real time, while other threads drive the future.
fn park_until<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Place {
    /// Waits for a future. If it is ready without a wait, sleeps for `least_ns` in virtual time.
    fn wait<F: Future>(&self, least_ns: u64, future: F) -> F::Output {
        let begin_ns = self.turns.clock.now_ns();
        let output = self.wait_only(future);
        if self.turns.clock.now_ns() == begin_ns {
            self.sleep_ns(least_ns);
        }
        output
    }

    fn sleep_ns(&self, duration_ns: u64) {
        let clock = &self.turns.clock;
        self.wait_only(clock.sleep_until(clock.now_ns() + duration_ns));
    }

    fn wait_only<F: Future>(&self, future: F) -> F::Output {
        let bell = Arc::new(Bell { place: self.clone(), is_rung: AtomicBool::new(false) });
        let waker = Waker::from(bell.clone());
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            match self.id {
                0 => self.advance_world_until(&bell),
                _ => {
                    self.return_turn();
                    self.await_turn(|| bell.take());
                }
            }
        }
    }

    /// Gives turns to other threads, and advances the world while all of them wait.
    fn advance_world_until(&self, bell: &Bell) {
        let world = WORLD.with_borrow(Clone::clone).expect("this thread advances the world");
        let limit_ns = CASE_LIMIT.as_nanos() as u64;
        loop {
            let next = self.turns.lock().woken.pop_front();
            assert!(!self.turns.lock().is_over, "another thread of the case has failed");
            let end = match next {
                Some(0) if bell.take() => return,
                Some(0) => continue,
                Some(id) => {
                    self.give_turn(id);
                    continue;
                }
                None => world.advance_unless(|| !self.turns.lock().woken.is_empty()),
            };
            let hangs = world.now_ns() > limit_ns;
            if end.is_err() || hangs {
                self.turns.end();
                panic!("the case hangs at {} ns: {end:?}", world.now_ns());
            }
        }
    }

    fn give_turn(&self, id: usize) {
        let mut state = self.turns.lock();
        if state.ended.contains(&id) {
            return;
        }
        state.running = id;
        self.turns.changed.notify_all();
        while state.running != 0 {
            state = self.turns.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until this thread has the turn and `is_woken` returns true.
    fn await_turn(&self, is_woken: impl Fn() -> bool) {
        let mut state = self.turns.lock();
        loop {
            if state.is_over {
                drop(state);
                panic!("the case has ended");
            }
            if state.running == self.id {
                if is_woken() {
                    return;
                }
                state.running = 0;
                self.turns.changed.notify_all();
            }
            state = self.turns.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn return_turn(&self) {
        let mut state = self.turns.lock();
        if state.running == self.id {
            state.running = 0;
            self.turns.changed.notify_all();
        }
    }
}

/// Wakes a thread that waits for its turn.
struct Bell {
    place: Place,
    is_rung: AtomicBool,
}

impl Bell {
    fn take(&self) -> bool {
        self.is_rung.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            self.place.turns.wake(self.place.id);
        }
    }
}

/// Runs `body` with a scope in which it can start threads, as [`thread::scope`] does, in real or virtual time.
pub fn scope<'env, F, T>(body: F) -> T
where
    F: for<'scope> FnOnce(&Scope<'scope, 'env>) -> T,
{
    thread::scope(|threads| {
        let scope = Scope { threads, jobs: Mutex::default() };
        let _end_on_panic = EndOnPanic;
        let result = body(&scope);
        let jobs = scope.jobs.into_inner().unwrap_or_else(PoisonError::into_inner);
        jobs.iter().for_each(|job| wait(job.ended()));
        result
    })
}

/// Ends all waits if the thread panics, so that the test fails instead of hanging.
struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if thread::panicking()
            && let Some(place) = PLACE.with_borrow(Clone::clone)
        {
            place.turns.end();
        }
    }
}

/// The scope of threads that [`scope`] passes to its body.
pub struct Scope<'scope, 'env> {
    threads: &'scope thread::Scope<'scope, 'env>,
    /// States of the threads that run in virtual time.
    jobs: Mutex<Vec<Arc<Job>>>,
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread.
    pub fn spawn<T: Send + 'scope>(&self, body: impl FnOnce() -> T + Send + 'scope) -> Handle<'scope, T> {
        let Some(parent) = PLACE.with_borrow(Clone::clone) else {
            return Handle { thread: self.threads.spawn(body), job: None };
        };
        let turns = parent.turns;
        let place = Place { id: turns.places.fetch_add(1, Ordering::Relaxed), turns };
        let job = Arc::new(Job::default());
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(job.clone());
        place.turns.wake(place.id);
        let end = End { place, job: job.clone() };
        let thread = self.threads.spawn(move || {
            PLACE.set(Some(end.place.clone()));
            end.place.await_turn(|| true);
            body()
        });
        Handle { thread, job: Some(job) }
    }
}

/// A thread that can be joined.
pub struct Handle<'scope, T> {
    thread: thread::ScopedJoinHandle<'scope, T>,
    job: Option<Arc<Job>>,
}

impl<T> Handle<'_, T> {
    /// Waits for the end of the thread, and returns its result. Panics if the thread has panicked.
    pub fn join(self) -> T {
        if let Some(job) = &self.job {
            wait(job.ended());
        }
        self.thread.join().expect("the thread does not panic")
    }

    /// Returns true if the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.job.as_ref().map_or_else(|| self.thread.is_finished(), |job| job.lock().0)
    }
}

/// State of a thread: whether it has ended, and the wakers of the threads that wait for its end.
#[derive(Default)]
struct Job(Mutex<(bool, Vec<Waker>)>);

impl Job {
    fn lock(&self) -> MutexGuard<'_, (bool, Vec<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ended(&self) {
        std::future::poll_fn(|context| {
            let mut job = self.lock();
            if job.0 {
                return Poll::Ready(());
            }
            job.1.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Ends a thread when dropped, even by a panic: wakes the waiting threads, and returns the turn.
struct End {
    place: Place,
    job: Arc<Job>,
}

impl Drop for End {
    fn drop(&mut self) {
        let wakers = {
            let mut job = self.job.lock();
            job.0 = true;
            std::mem::take(&mut job.1)
        };
        wakers.into_iter().for_each(Waker::wake);
        if thread::panicking() {
            self.place.turns.end();
        }
        self.place.turns.lock().ended.insert(self.place.id);
        self.place.return_turn();
    }
}

/// A starting line, at which threads wait for each other.
pub struct StartingLine {
    missing: AtomicUsize,
}

impl StartingLine {
    /// Creates a starting line for `count` threads.
    pub fn new(count: usize) -> StartingLine {
        StartingLine { missing: AtomicUsize::new(count) }
    }

    /// Waits until all threads have arrived.
    pub fn wait(&self) {
        self.missing.fetch_sub(1, Ordering::AcqRel);
        while self.missing.load(Ordering::Acquire) > 0 {
            pause();
        }
    }
}

/// Polls a future once, with a waker that does nothing.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a future once, and expects that it is pending.
#[track_caller]
pub fn expect_pending<F: Future + Unpin>(future: &mut F) {
    assert!(poll_once(future).is_pending(), "the operation does not wait");
}

/// Polls `future` at most `polls_max` times, and then drops it.
pub fn poll_at_most<T>(polls_max: usize, future: impl Future<Output = T>) -> Poll<T> {
    let (mut left, mut future) = (polls_max, pin!(future));
    wait(std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(Poll::Pending);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Pending if left > 0 => Poll::Pending,
            polled => Poll::Ready(polled),
        }
    }))
}
