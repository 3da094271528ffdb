//! The driver: lets threads take turns at moving the node forward.
//!
//! ```text
//!   waiting callers ─┐                        ┌─ poll the fabric ──> runner ──> posts, wake-ups
//!                    ├── who holds the ───────┤
//!   progress thread ─┘   poll token           └─ jobs (copies, growth), outside of all locks
//! ```
//!
//! It calls the engine (`halite-tier`), the fabric, [`crate::metrics`], [`crate::posted`] and [`crate::rpc`].  Of the cluster, it knows how others are dialled
//! and where numbers are written down.  Its one lock that is held for long is the runner's, in which the engine is; the table of
//! peers' and those of calls are taken under it, never around it.
//!
//! Who holds the token when, and who sees to arrivals when nobody does, is [`crate::runtime::poll_token`]'s to say; how long a
//! caller spins before it sleeps, [`crate::runtime::wait`]'s.

pub(crate) mod carry;
pub(crate) mod drained;
pub(crate) mod fetch;
pub(crate) mod leaving;
pub(crate) mod progress;
pub(crate) mod requests;
pub(crate) mod runner;
#[cfg(test)]
mod tests;
pub(crate) mod ticket;
pub(crate) mod timers;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use halite_fabric::{Completion, CompletionKind, Event, PeerId, Sleeper, Status};
use halite_tier::effect::{Command, OpId};
use halite_tier::engine::Engine;
use halite_tier::ids::SessionId;
use halite_tier::rpc::atomic::{ATOMIC_ANSWER_IMM, ATOMIC_IMM};
use halite_tier::rpc::wire::CONTROL_IMM;

use crate::driver::runner::{Runner, Shared};
use crate::driver::ticket::{Ending, Undo};
use crate::posted::{Ended, InFlight, is_operation};
use crate::rpc::{CALL_WORK, Hand, Incoming, ReceiveBatch, Rpc, Service};
use crate::runtime::crowd::Crowd;
use crate::runtime::env::NodeEnv;
use crate::runtime::jobs::{Arena, Job};
use crate::runtime::locks::{Locked, lock, ranked};
use crate::runtime::poll_token::{Bell, NextPoll, PollGuard, PollToken};
use crate::runtime::wait::{
    AdaptiveSpin, BlockingWait, Parker, Parking, SPIN_SHORT_NS, Wakes, YIELD_LONG_NS,
};

/// For how many rounds a spinning caller keeps its processor: about 3 us, in which a peer that is awake answers.
///
/// After them it yields, which is more than to pause: on two processors, three that spin keep the one from running
/// that has the answer (median round trip between two nodes of one process: 131 us, with yielding 7 to 11).
const ROUNDS_BEFORE_YIELD: u32 = 128;
/// How often the clock is read before that: it takes as long as half a round.  Where a round is a call of the system, it is read in each.
const ROUNDS_PER_CLOCK: u32 = 16;
/// For how many rounds a caller that is to sleep waits for the progress thread to end a look: a few microseconds.
const ROUNDS_FOR_PROGRESS_THREAD: u32 = 128;
/// Of so many looks at lines, one is at everything.
const LINE_TURNS: u32 = 16;
/// How soon a thread looks again that has found the token taken; and one that leaves the node, whether it may go.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// How long the progress thread leaves the fabric's timers to a thread that polls, which may stop without a word.  When it woke for each,
/// calls over UDP were interrupted 10,000 times a second, and took 12 us in the mean, where they take 9.
const TIMER_NS_MIN: u64 = 500_000;

ranked! {
    Runner => Runner;
}

/// What all threads and sessions of a node share.
pub(crate) struct Driver {
    pub(crate) shared: Arc<Shared>,
    runner: Mutex<Runner>,
    poll_token: PollToken<Poller>,
    arena: Arena,
    env: NodeEnv,
    /// When the runner needs attention although nothing arrives.
    attention_ns: AtomicU64,
    /// Until when the progress thread sleeps; 0 while it is awake.  Changed under the runner's lock.
    progress_sleeps_until_ns: AtomicU64,
    /// Threads of the application that have waited for a microsecond at least and have not gone to sleep yet.
    callers_polling: AtomicUsize,
    /// How many of them may spin for long: so many that as many peers can run beside them.
    spinners_max: usize,
    crowd: Crowd,
    /// Whether a look at the clock takes little beside a poll, and an answer longer than to go to sleep.
    polls_by_system_calls: bool,
    /// A caller sleeps on the fabric; see [`crate::runtime::poll_token`].
    led: AtomicBool,
    /// The node leaves, has left, or has failed.
    closed: AtomicBool,
}

/// What polling needs; only the holder of the poll token has it.
#[derive(Debug, Default)]
struct Poller {
    events: Vec<Event>,
    received: ReceiveBatch,
    /// How often a thread has looked at lines for itself.
    line_turns: u32,
    /// There may be connections over which the first words have yet to come.
    awaits_first_words: bool,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, env: NodeEnv, engine: Engine) -> Arc<Driver> {
        Arc::new(Driver {
            runner: Mutex::new(Runner::new(shared.clone(), engine)),
            poll_token: PollToken::new(Poller::default()),
            arena: Arena::default(),
            attention_ns: AtomicU64::new(0),
            progress_sleeps_until_ns: AtomicU64::new(0),
            callers_polling: AtomicUsize::new(0),
            spinners_max: env.parallelism().div_ceil(2),
            crowd: Crowd::default(),
            polls_by_system_calls: shared.fabric.polls_by_system_calls(),
            shared,
            env,
            led: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    /// Nanoseconds on the engine's clock, the only one that is read.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.env.now_ns()
    }

    /// What else comes from outside.
    pub(crate) fn env(&self) -> &NodeEnv {
        &self.env
    }

    /// Changes the runner, lets it settle, and wakes those concerned.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut Runner, u64) -> R) -> R {
        let (result, wakes) = self.change(change);
        wakes.wake_all();
        result
    }

    /// Changes the runner and lets it settle; the wakers are to be called when no lock is held.
    fn change<R>(&self, change: impl FnOnce(&mut Runner, u64) -> R) -> (R, Wakes) {
        let mut runner = self.runner();
        let now = self.now_ns();
        let result = change(&mut runner, now);
        runner.settle(now);
        if runner.over.is_some() {
            self.set_closed();
        }
        let attention = runner.attention_ns(now);
        // The lock orders this for the progress thread; for pollers it is only a hint.
        self.attention_ns.store(attention, Relaxed);
        let progress_is_late = attention < self.progress_sleeps_until_ns.load(Relaxed);
        let wakes = std::mem::take(&mut runner.wakes);
        drop(runner);
        if progress_is_late {
            self.shared.fabric.wake();
        }
        (result, wakes)
    }

    fn runner(&self) -> Locked<'_, Runner> {
        #[cfg(test)]
        tests::note_lock();
        lock(&self.runner)
    }

    /// Looks at the runner without changing it.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Runner) -> R) -> R {
        look(&self.runner())
    }

    /// Lets the runner settle.
    pub(crate) fn settle(&self) {
        self.with_unless_failed(|_, _| ());
    }

    // Commands.

    /// Submits a command; `None` if the node leaves or has left.
    pub(crate) fn submit(&self, session: SessionId, command: Command, undo: Undo) -> Option<OpId> {
        if self.is_closed() {
            return None;
        }
        self.with(|runner, now| runner.submit(now, session, command, undo))
    }

    pub(crate) fn poll_ticket(&self, op: OpId, context: &mut Context<'_>) -> Poll<Ending> {
        self.runner().tickets.poll(op, context)
    }

    pub(crate) fn abandon(&self, op: OpId) {
        self.with_unless_failed(|runner, now| runner.abandon(now, op));
    }

    pub(crate) fn close_session(&self, session: SessionId) {
        self.with_unless_failed(|runner, _| runner.tickets.close(session));
    }

    /// For destructors, which must not panic because the node did.
    pub(crate) fn with_unless_failed(&self, change: impl FnOnce(&mut Runner, u64)) {
        if !self.runner.is_poisoned() {
            self.with(change);
        }
    }

    // Driving.

    /// The poll token, unless somebody has it.
    #[inline]
    pub(crate) fn try_token(&self) -> Option<Polling<'_>> {
        let guard = self.poll_token.try_take(self)?;
        let unwinding = std::thread::panicking();
        let (wakes, hand) = Default::default();
        Some(Polling { driver: self, guard: Some(guard), wakes, hand, unwinding })
    }

    /// A call to `service` that has just come, if this thread has the poll token.
    #[inline]
    pub(crate) fn take_given(&self, service: &Service) -> Option<Box<Incoming>> {
        let mut token = self.try_token()?;
        token.hand.wanted = Some(service);
        token.drive_lines();
        token.hand.given.take()
    }

    /// As [`Driver::spin_until`] something waits for `service`, or a call to it is given to this thread.
    pub(crate) fn spin_for(&self, service: &Service) -> (bool, Option<Box<Incoming>>) {
        let mut given = None;
        let is_done = self.spin_with(|| service.is_waiting(), Some(service), &mut given);
        (is_done || given.is_some(), given)
    }

    /// Takes in what has arrived, unless somebody else does, on a thread that is about to look again.
    pub(crate) fn poll_once(&self) {
        let Some(mut token) = self.try_token() else { return };
        token.drive();
        if !self.env.has_progress_thread() {
            // Nobody else looks by himself.
            token.rest();
        }
    }

    /// As [`Driver::poll_once`], on a thread that waits for what it is doing: the progress thread need not be woken meanwhile.  A task may leave
    /// the thread to others at any time, and what comes then is to wake that one.
    pub(crate) fn poll_in_passing(&self) {
        if BlockingWait::moves(self) {
            self.poll_once();
        }
    }

    /// Does the jobs that wait.
    #[inline]
    pub(crate) fn run_jobs(&self) {
        while let Some(job) = self.poll_job() {
            let done = self.arena.run(job, &*self.shared.fabric, &self.env);
            self.with(|runner, now| runner.handle_job_done(now, done));
            // Many jobs may follow each other: who is heard in between is not taken for dead.
            if let Some(mut token) = self.try_token() {
                token.drive();
                token.rest();
            }
        }
    }

    /// Whether there may be jobs: while there are, attention is needed at once.
    #[inline]
    pub(crate) fn has_jobs(&self) -> bool {
        self.attention_ns.load(Relaxed) == 0
    }

    #[inline]
    fn poll_job(&self) -> Option<Job> {
        if self.has_jobs() { self.runner().poll_job() } else { None }
    }

    /// Runs a future on the calling thread, which helps to move the node forward while it waits.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.block_on_after(false, future)
    }

    /// As [`Driver::block_on`]; if the thread `has_spun` in vain for what the future waits for, it sleeps at once.
    pub(crate) fn block_on_after<F: Future>(&self, mut has_spun: bool, future: F) -> F::Output {
        let (parking, _waiting) = (Parking::take(), BlockingWait::begin(self));
        let mut context = Context::from_waker(parking.waker());
        let mut future = std::pin::pin!(future);
        loop {
            let output = future.as_mut().poll(&mut context);
            // Who frees memory also cleans it, rather than who asks for memory next.
            self.run_jobs();
            if let Poll::Ready(output) = output {
                parking.give_back();
                return output;
            }
            if !std::mem::take(&mut has_spun) {
                self.spin_until(|| parking.parker().is_notified());
            }
            self.sleep(parking.parker());
        }
    }

    /// Moves the node forward until `done`, for as long as that is likely to pay.  Returns whether it is done; if
    /// not, the thread is to [`Driver::sleep`].
    pub(crate) fn spin_until(&self, done: impl Fn() -> bool) -> bool {
        self.spin_with(done, None, &mut None)
    }

    fn spin_with(
        &self,
        done: impl Fn() -> bool,
        wanted: Option<&Service>,
        given: &mut Option<Box<Incoming>>,
    ) -> bool {
        let mut spin = Spin::new(self);
        while given.is_none() && !done() {
            if spin.is_over() {
                return false;
            }
            match self.try_token() {
                Some(mut token) => {
                    token.hand.wanted = wanted;
                    *given = token.drive_until(&mut spin, &done);
                }
                None => spin.pause(),
            }
            self.run_jobs();
        }
        AdaptiveSpin::change(|patience| patience.note_wait(0));
        true
    }

    /// Offers the processor to other threads, unless it is seen that they want it for long; whether they do, or one of them kept it for long.
    pub(crate) fn yield_processor(&self) -> bool {
        let begin_ns = self.now_ns();
        if self.is_crowded(begin_ns) {
            return true;
        }
        std::thread::yield_now();
        self.now_ns() - begin_ns > YIELD_LONG_NS
    }

    /// Whether more threads want to run than can, as was seen just now.  Where a look at memory is a poll, a yield tells it, and takes as long.
    fn is_crowded(&self, now_ns: u64) -> bool {
        self.polls_by_system_calls && self.crowd.is_there(now_ns, || self.env.is_crowded())
    }

    /// The calling thread is about to wait for `peer`.
    pub(crate) fn expect_round_trip(&self, peer: PeerId) {
        if let Some(round_trip) = self.shared.fabric.round_trip(peer) {
            AdaptiveSpin::change(|patience| patience.expect_round_trip(round_trip));
        }
    }

    /// Sleeps until the calling thread's parker is notified.
    pub(crate) fn sleep(&self, parker: &Parker) {
        if parker.take_notice() {
            return;
        }
        let begin = self.now_ns();
        if !self.lead(parker) {
            parker.park();
        }
        let slept = self.now_ns() - begin;
        AdaptiveSpin::change(|patience| patience.note_wait(slept));
    }

    /// Sleeps on the fabric until `parker` is notified; whether it was.  If not, another caller leads or polls.
    fn lead(&self, parker: &Parker) -> bool {
        let fabric = &self.shared.fabric;
        while let Some(mut token) = self.token_to_lead() {
            // Read before anything is looked at, so that what rings from here on ends the sleep.
            let seen = fabric.doorbell();
            token.drive_at(self.now_ns());
            let is_needed = token.has_wakes() || self.has_jobs();
            let wakes =
                if is_needed { token.rest_for_now() } else { self.sleep_as_leader(token, parker, seen) };
            // They may run anything, also what waits for this node: nobody leads meanwhile.
            wakes.wake_all();
            self.run_jobs();
            if parker.take_notice() {
                return true;
            }
        }
        false
    }

    /// The poll token, unless another caller leads.
    fn token_to_lead(&self) -> Option<Polling<'_>> {
        self.token_of_progress_thread().filter(|_| !self.is_led())
    }

    /// Leads until something has rung that nobody else sees to.  Returns whom to wake.
    fn sleep_as_leader(&self, token: Polling<'_>, parker: &Parker, mut seen: u32) -> Wakes {
        // Set under the token: its next holder sees it, and arms the doorbell for us.
        self.led.store(true, Relaxed);
        let mut wakes = token.rest_for_now();
        let mut timeout = None;
        loop {
            if wakes.is_empty() {
                parker.sleep_on(&self.shared.fabric, seen, timeout);
            }
            seen = self.shared.fabric.doorbell();
            if let Some(mut token) = self.try_token() {
                self.led.store(false, Relaxed);
                // What has come is taken in before the doorbell is armed for the progress thread, which it would wake.
                token.drive();
                wakes.append(token.rest_for_now());
                return wakes;
            }
            if !wakes.is_empty() || parker.is_notified() {
                self.led.store(false, Relaxed);
                // Who polls may just have armed the doorbell for us.
                self.shared.fabric.wake();
                return wakes;
            }
            // The holder of the token may have polled for the last time before the doorbell rang.
            timeout = Some(LOOK_AGAIN);
        }
    }

    /// The poll token, if nobody has it or the progress thread gives it up for a caller that polls.
    fn token_of_progress_thread(&self) -> Option<Polling<'_>> {
        self.callers_polling.fetch_add(1, Relaxed);
        let token = (0..ROUNDS_FOR_PROGRESS_THREAD).find_map(|_| self.try_token());
        self.callers_polling.fetch_sub(1, Relaxed);
        token
    }

    /// Moves the node forward by what has arrived, for a thread that has nothing better to do.
    pub(crate) fn drive_for_a_moment(&self) {
        let seen = self.shared.fabric.doorbell();
        if let Some(mut token) = self.try_token() {
            token.drive_at(self.now_ns());
            token.rest();
        }
        self.run_jobs();
        // The progress thread may take what we wait for, hence not for long.
        self.shared.fabric.wait(Sleeper::Progress, seen, Some(LOOK_AGAIN));
    }

    /// Moves a node forward that has no progress thread, by all that can be done now.  Returns when to do so again, unless the
    /// doorbell rings before.
    pub(crate) fn step(&self) -> u64 {
        self.end_sleep();
        if let Some(mut token) = self.try_token() {
            while token.drive_at(self.now_ns()) {}
            token.rest();
        }
        self.run_jobs();
        self.begin_sleep_until(NextPoll::WhenRung, 0)
    }

    /// Whether a caller polls, or would if it had the token.
    pub(crate) fn has_polling_caller(&self) -> bool {
        // A hint: who misses it polls a little longer than it need.
        self.callers_polling.load(Relaxed) > 0
    }

    // For the progress thread.

    /// Sees to what is due, although somebody else polls.
    pub(crate) fn see_to_what_is_due(&self) {
        // A hint, as in Polling::drive_at().
        if self.attention_ns.load(Relaxed) <= self.now_ns() {
            self.with(|_, _| ());
        }
    }

    /// For how long something has been due that nobody has seen to.  Takes no lock, so that it can be told while somebody keeps one.
    pub(crate) fn overdue(&self) -> Duration {
        // A hint, as in Polling::drive_at(): it lags behind by what is being done just now.
        Duration::from_nanos(self.now_ns().saturating_sub(self.attention_ns.load(Relaxed)))
    }

    /// How long the progress thread may sleep.  Who makes that too long rings.  Where another thread polls, that one sees to the
    /// fabric's timers, and each posted request may set one.
    pub(crate) fn begin_sleep(&self, look: NextPoll, other_polls: bool) -> Duration {
        let timer_ns_min = if other_polls { TIMER_NS_MIN } else { 0 };
        let until = self.begin_sleep_until(look, timer_ns_min);
        Duration::from_nanos(until.saturating_sub(self.now_ns()))
    }

    fn begin_sleep_until(&self, look: NextPoll, timer_ns_min: u64) -> u64 {
        let runner = self.runner();
        let now = self.now_ns();
        let until = match look {
            NextPoll::WhenRung => runner.attention_ns(now),
            NextPoll::Within(watch_ns) => runner.attention_ns(now).min(now + watch_ns),
        };
        let timeout = self.shared.fabric.poll_timeout().unwrap_or(Duration::MAX);
        let timer_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).max(timer_ns_min);
        let until = until.min(now.saturating_add(timer_ns));
        self.progress_sleeps_until_ns.store(until, Relaxed);
        until
    }

    pub(crate) fn end_sleep(&self) {
        let _runner = self.runner();
        self.progress_sleeps_until_ns.store(0, Relaxed);
    }

    // The end.

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        // Only ever set; who acts on it looks at the runner under its lock.
        self.closed.load(Relaxed)
    }

    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Ends all waiting after a panic inside the node, so that no caller hangs.
    pub(crate) fn fail(&self) {
        self.set_closed();
        let mut runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner);
        runner.close();
        let wakes = std::mem::take(&mut runner.wakes);
        drop(runner);
        wakes.wake_all();
    }
}

impl Bell for Driver {
    #[inline]
    fn arm(&self, sleeper: Option<Sleeper>) {
        self.shared.fabric.arm(sleeper);
    }

    fn ring(&self) {
        self.shared.fabric.wake();
    }

    #[inline]
    fn is_led(&self) -> bool {
        // Ordered by the lock of the token; see sleep_as_leader().
        self.led.load(Relaxed)
    }
}

/// The right to poll; see the module's documentation.  Dropped by a thread that may be back soon.
pub(crate) struct Polling<'c> {
    driver: &'c Driver,
    /// `None` once given up.
    guard: Option<PollGuard<'c, Poller>>,
    /// Called when the token has been given up, since they may run anything.
    wakes: Wakes,
    /// What the thread that has the token waits for itself.
    hand: Hand<'c>,
    /// Whether the thread was unwinding already when it took the token.
    unwinding: bool,
}

impl Polling<'_> {
    /// Polls until `done`, for as long as `spin` lasts, and gives the token up.  Returns early if there is something
    /// to be done without the token.
    fn drive_until(mut self, spin: &mut Spin<'_>, done: impl Fn() -> bool) -> Option<Box<Incoming>> {
        while self.hand.given.is_none() && !done() && self.wakes.is_empty() && !self.driver.has_jobs() {
            if spin.is_over() {
                return self.rest_with_given();
            }
            let arrived = match spin.now_ns {
                Some(now) => self.drive_at(now),
                None => self.drive(),
            };
            if !arrived {
                spin.pause();
            }
        }
        self.hand.given.take()
    }

    /// Takes in what has arrived, once.  Returns whether anything had.
    pub(crate) fn drive(&mut self) -> bool {
        let guard = self.guard.as_mut().expect("the token is held until given up");
        drive(self.driver, guard.poller(), &mut self.hand, &mut self.wakes)
    }

    /// Takes in the short requests that have arrived, and now and then everything else.
    #[inline]
    fn drive_lines(&mut self) {
        let guard = self.guard.as_mut().expect("the token is held until given up");
        let poller = guard.poller();
        poller.line_turns = poller.line_turns.wrapping_add(1);
        if poller.line_turns.is_multiple_of(LINE_TURNS) {
            drive(self.driver, poller, &mut self.hand, &mut self.wakes);
        } else {
            self.driver.shared.rpc.poll_lines(&mut poller.received, &mut self.hand, &mut self.wakes);
        }
    }

    /// As [`Polling::drive`], and sees to what is due.
    pub(crate) fn drive_at(&mut self, now_ns: u64) -> bool {
        let arrived = self.drive();
        // Attention is only a hint here: the progress thread sleeps no longer than it.
        if self.driver.attention_ns.load(Relaxed) <= now_ns {
            self.wakes.append(self.driver.change(|_, _| ()).1);
        }
        arrived
    }

    /// Whether somebody is to be woken, which is done when the token is given up.
    pub(crate) fn has_wakes(&self) -> bool {
        !self.wakes.is_empty()
    }

    /// Gives the token up, for a thread that goes to sleep.
    pub(crate) fn rest(self) {
        self.rest_for_now().wake_all();
    }

    /// As [`Polling::rest`], for a thread that is not to wake anybody just now.  Returns whom to wake.
    fn rest_for_now(mut self) -> Wakes {
        let guard = self.guard.take().expect("the token is held until given up");
        guard.rest(self.driver, |poller| drive(self.driver, poller, &mut Hand::default(), &mut self.wakes));
        std::mem::take(&mut self.wakes)
    }

    /// As [`Polling::rest`].  Returns what was given in the end.
    fn rest_with_given(mut self) -> Option<Box<Incoming>> {
        let given = self.hand.given.take();
        self.rest();
        given
    }

    /// Gives the token up, for the progress thread.
    pub(crate) fn keep(mut self, now_ns: u64) -> NextPoll {
        let guard = self.guard.take().expect("the token is held until given up");
        guard.keep(self.driver, now_ns, |poller| {
            drive(self.driver, poller, &mut Hand::default(), &mut self.wakes)
        })
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        let driver = self.driver;
        if std::thread::panicking() && !self.unwinding {
            // The panic came from inside: the token's lock stays poisoned, and the progress thread raises the alarm.
            self.guard = None;
            driver.shared.fabric.wake();
            return;
        }
        if let Some(guard) = self.guard.take() {
            let poll = |poller: &mut _| drive(driver, poller, &mut Hand::default(), &mut self.wakes);
            guard.pass(driver, || driver.now_ns(), poll);
        }
        std::mem::take(&mut self.wakes).wake_all();
    }
}

/// See [`Polling::drive`].
fn drive(driver: &Driver, poller: &mut Poller, hand: &mut Hand<'_>, wakes: &mut Wakes) -> bool {
    let has_lines = driver.shared.rpc.poll_lines(&mut poller.received, hand, wakes);
    let arrived = driver.shared.fabric.poll(&mut poller.events) > 0;
    if arrived {
        poller.handle_new_peers(driver, wakes);
        poller.handle_unlocked(&driver.shared.rpc, &driver.shared.posted, wakes);
    }
    if arrived && driver.shared.rpc.client.take_ring_waiters() {
        // What has arrived may have made room.
        driver.shared.posted.retry(wakes);
    }
    if !poller.events.is_empty() || driver.shared.rpc.poster.is_dirty() {
        wakes.append(driver.change(|runner, now| poller.hand_over(runner, now)).1);
    }
    arrived || has_lines
}

/// What a write with immediate says, and who made it.
fn notice_of(event: &Event) -> Option<(PeerId, u32)> {
    match event {
        Event::Completed(Completion { peer, kind: CompletionKind::Notified { imm }, .. }) => {
            Some((*peer, *imm))
        }
        _ => None,
    }
}

/// Who has said something.
fn heard_of(event: &Event) -> Option<PeerId> {
    match event {
        Event::Completed(Completion { peer, kind, .. }) => match kind {
            CompletionKind::Received { .. } | CompletionKind::Notified { .. } => Some(*peer),
            CompletionKind::Done { .. } | CompletionKind::Atomic { .. } => None,
        },
        _ => None,
    }
}

fn are_notices_of_one(one: &Event, next: &Event) -> bool {
    notice_of(one).zip(notice_of(next)).is_some_and(|((peer, _), (other, _))| peer == other)
}

/// Whether it is handled without the runner.
fn is_handled_unlocked(event: &Event) -> bool {
    let Event::Completed(completion) = event else { return false };
    match completion.kind {
        CompletionKind::Notified { .. } => true,
        CompletionKind::Received { imm: CONTROL_IMM | ATOMIC_IMM | ATOMIC_ANSWER_IMM, .. } => true,
        CompletionKind::Done { id } => is_operation(id) || id == CALL_WORK && is_refusal(completion.status),
        CompletionKind::Atomic { .. } => true,
        CompletionKind::Received { .. } => false,
    }
}

/// Whether what was posted for a call is never to land.
fn is_refusal(status: Status) -> bool {
    matches!(status, Status::RemoteAccess | Status::Unmapped)
}

/// A caller's polling for its own end, in rounds.
struct Spin<'c> {
    driver: &'c Driver,
    rounds: u32,
    /// When it began and how long it may last, once the clock has been read.
    limit: Option<(u64, u64)>,
    /// The time, in a round in which the clock was read.
    now_ns: Option<u64>,
    /// Whether somebody else computed when the processor was offered.
    is_crowded: bool,
}

impl<'c> Spin<'c> {
    fn new(driver: &'c Driver) -> Spin<'c> {
        Spin { driver, rounds: 0, limit: None, now_ns: None, is_crowded: false }
    }

    /// Begins a round, unless the spin has lasted long enough.
    fn is_over(&mut self) -> bool {
        self.rounds += 1;
        // A round with a yield in it takes longer than the clock.
        let reads = self.driver.polls_by_system_calls
            || self.rounds > ROUNDS_BEFORE_YIELD
            || self.rounds.is_multiple_of(ROUNDS_PER_CLOCK);
        self.now_ns = reads.then(|| self.driver.now_ns());
        self.now_ns.is_some_and(|now| self.is_over_at(now))
    }

    fn is_over_at(&mut self, now_ns: u64) -> bool {
        let Some((begin_ns, spin_ns)) = self.limit else {
            let spin_ns = self.join_pollers_ns();
            self.limit = Some((now_ns, spin_ns));
            return spin_ns == 0;
        };
        let spun_ns = now_ns - begin_ns;
        // A short spin ends before it yields: that could take much longer.
        let is_over = self.is_crowded
            || spun_ns >= spin_ns
            || spin_ns == SPIN_SHORT_NS && self.rounds >= ROUNDS_BEFORE_YIELD;
        if is_over {
            AdaptiveSpin::change(|patience| patience.note_spin(spun_ns));
        }
        is_over
    }

    /// Counts the caller among those that poll; returns for how long it may.
    fn join_pollers_ns(&self) -> u64 {
        // A hint: it orders nothing.
        let others = self.driver.callers_polling.fetch_add(1, Relaxed);
        if others >= self.driver.spinners_max {
            return SPIN_SHORT_NS;
        }
        AdaptiveSpin::change(|patience| patience.set_by_packets(self.driver.polls_by_system_calls));
        AdaptiveSpin::of_thread().spin_ns()
    }

    /// What a round without an arrival ends with.
    fn pause(&mut self) {
        // Before that it does not even pause: a round looks at other memory than the last one, and a pause takes as
        // long as two rounds.
        self.is_crowded = match self.rounds >= ROUNDS_BEFORE_YIELD {
            true => self.driver.yield_processor(),
            false => self.now_ns.is_some_and(|now_ns| self.is_long(now_ns) && self.driver.is_crowded(now_ns)),
        };
        if self.is_crowded {
            AdaptiveSpin::change(AdaptiveSpin::note_crowd);
        }
    }

    /// Whether it has lasted so long that it matters whether others want the processor.
    fn is_long(&self, now_ns: u64) -> bool {
        self.limit.is_some_and(|(begin_ns, _)| now_ns - begin_ns >= SPIN_SHORT_NS)
    }
}

impl Drop for Spin<'_> {
    fn drop(&mut self) {
        if self.limit.is_some() {
            self.driver.callers_polling.fetch_sub(1, Relaxed);
        }
    }
}

/// Events of a peer come in order.  So it is enough that new peers come first, then what needs no lock, and the rest in
/// the order in which it came: all that a peer said is handled before its end.
impl Poller {
    /// New peers are known before anything of theirs is handled, and so is which connection they have chosen.
    fn handle_new_peers(&mut self, driver: &Driver, wakes: &mut Wakes) {
        let is_new = |event: &mut Event| matches!(event, Event::Connected { .. });
        if !self.awaits_first_words && !self.events.iter_mut().any(is_new) {
            return;
        }
        let handled = driver.change(|runner, now| {
            self.events.extract_if(.., is_new).for_each(|event| runner.handle_event(now, event));
            self.events.iter().filter_map(heard_of).for_each(|peer| runner.handle_heard(now, peer));
            self.awaits_first_words = runner.awaits_first_words();
        });
        wakes.append(handled.1);
    }

    /// What calls and posted operations need is handled in order, and without the runner's lock.
    fn handle_unlocked(&mut self, rpc: &Rpc, posted: &InFlight, wakes: &mut Wakes) {
        let Poller { events, received, .. } = self;
        for batch in events.chunk_by(are_notices_of_one) {
            let Event::Completed(Completion { peer, ref kind, status }) = batch[0] else { continue };
            match kind {
                CompletionKind::Notified { .. } => {
                    let imms = batch.iter().filter_map(notice_of).map(|(_, imm)| imm);
                    rpc.handle_notified(peer, imms, received, wakes);
                }
                CompletionKind::Received { bytes, imm: CONTROL_IMM } => {
                    rpc.handle_control(peer, bytes, received, wakes);
                }
                CompletionKind::Received { bytes, imm: ATOMIC_IMM } => rpc.handle_atomic(peer, bytes),
                CompletionKind::Received { bytes, imm: ATOMIC_ANSWER_IMM } => {
                    rpc.handle_atomic_answer(peer, bytes, wakes);
                }
                CompletionKind::Done { id: CALL_WORK } if is_refusal(status) => {
                    rpc.handle_refused(peer);
                }
                CompletionKind::Done { id } if is_operation(*id) => {
                    posted.complete(*id, Ended { status, old: 0 }, wakes);
                }
                CompletionKind::Atomic { id, old } => {
                    posted.complete(*id, Ended { status, old: *old }, wakes)
                }
                CompletionKind::Done { .. } | CompletionKind::Received { .. } => {}
            }
        }
        events.retain(|event| !is_handled_unlocked(event));
    }

    fn hand_over(&mut self, runner: &mut Runner, now: u64) {
        for event in self.events.drain(..) {
            runner.handle_event(now, event);
        }
    }
}
