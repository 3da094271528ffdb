//! The driver: the threads of a process take turns at driving the node.
//!
//! ```text
//!   waiting callers ─┐                        ┌─ poll the fabric ──> runner ──> posts, wake-ups
//!                    ├── holder of the ───────┤
//!   progress thread ─┘   poll token           └─ jobs (copies, growth), outside of all locks
//! ```
//!
//! The driver calls the engine (`halite-tier`), the fabric, [`crate::metrics`], [`crate::posted`] and [`crate::rpc`].
//! Of the cluster it knows only how to dial peers and where node numbers are recorded. Only the runner's lock, which
//! covers the engine, is held for long; the locks of the peer table and of calls nest inside it, never around it.
//!
//! [`crate::runtime::poll_token`] defines which thread holds the token and how arrivals are handled while it is free;
//! [`crate::runtime::wait`] defines how long a caller spins before it sleeps.

pub(crate) mod drained;
pub(crate) mod fetch;
pub(crate) mod leaving;
pub(crate) mod progress;
pub(crate) mod reach;
pub(crate) mod requests;
pub(crate) mod runner;
pub(crate) mod shaping;
#[cfg(test)]
mod tests;
pub(crate) mod ticket;
pub(crate) mod timers;
pub(crate) mod transfer;
pub(crate) mod troubles;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use halite_fabric::{Completion, CompletionKind, Event, PeerId, Sleeper, Status};
use halite_mem::Process;
use halite_tier::effect::{Command, CommandError, OpId};
use halite_tier::engine::Engine;
use halite_tier::ids::SessionId;
use halite_tier::rpc::atomic::{ATOMIC_ANSWER_IMM, ATOMIC_IMM};
use halite_tier::rpc::wire::CONTROL_IMM;

use crate::driver::runner::{Runner, Shared};
use crate::driver::ticket::{CommandResult, Undo, node_closed};
use crate::posted::{InFlight, OperationResult, is_operation};
use crate::rpc::{CALL_WORK, DirectReceiver, Incoming, ReceiveBatch, Rpc, Service};
use crate::runtime::contention::Contention;
use crate::runtime::env::NodeEnv;
use crate::runtime::jobs::{Arena, Job};
use crate::runtime::locks::{Locked, lock, ranked};
use crate::runtime::poll_token::{Bell, NextPoll, PollGuard, PollToken};
use crate::runtime::wait::{
    AdaptiveSpin, BlockingWait, Parker, Parking, SPIN_SHORT_NS, Wakes, YIELD_LONG_NS,
};

/// Rounds during which a spinning caller does not yield its core: about 3 us, within which an awake peer answers.
///
/// After these rounds, the caller yields instead of pausing: on two cores, three spinning threads keep the thread that
/// has the answer from running (median round trip between two nodes of one process: 131 us; 7 to 11 us with yielding).
const ROUNDS_BEFORE_YIELD: u32 = 128;
/// Rounds between clock reads until the caller yields; a clock read takes half as long as a round. If polling takes a
/// system call, the caller reads the clock in each round.
const ROUNDS_PER_CLOCK: u32 = 16;
/// Rounds for which a caller about to sleep waits for the progress thread to finish polling: a few microseconds.
const ROUNDS_FOR_PROGRESS_THREAD: u32 = 128;
/// Number of polls of lines after which the caller polls the whole fabric once.
const LINE_POLLS_PER_DRIVE: u32 = 16;
/// Interval at which a thread retries to take the poll token, and at which a leaving node checks its progress.
const RETRY_INTERVAL: Duration = Duration::from_micros(200);

ranked! {
    Runner => Runner;
}

/// The state that all threads and sessions of a node share.
pub(crate) struct Driver {
    pub(crate) shared: Arc<Shared>,
    runner: Mutex<Runner>,
    poll_token: PollToken<Poller>,
    arena: Arena,
    env: NodeEnv,
    /// Time at which the runner next needs attention even if nothing arrives; 0 while jobs wait.
    attention_ns: AtomicU64,
    /// Number of application threads that have waited for at least a microsecond and do not sleep yet.
    callers_polling: AtomicUsize,
    /// Maximum number of these threads that may spin for long: half of the cores, because each peer needs a core too.
    spinners_max: usize,
    contention: Contention,
    /// True if polling takes system calls. Then a clock read is cheap in comparison, and waiting for an answer takes
    /// longer than going to sleep.
    polls_by_system_calls: bool,
    /// True while a caller sleeps on the fabric as the leader; see [`crate::runtime::poll_token`].
    has_leader: AtomicBool,
    /// True if the node is leaving, has left, or has failed.
    closed: AtomicBool,
    pub(crate) process: Process,
}

/// State that only the holder of the poll token uses.
#[derive(Debug, Default)]
struct Poller {
    events: Vec<Event>,
    received: ReceiveBatch,
    /// Number of polls of lines so far.
    line_polls: u32,
    /// True if the first message of a new peer may still be missing on some connections.
    awaits_first_words: bool,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, env: NodeEnv, engine: Engine) -> Arc<Driver> {
        Arc::new(Driver {
            runner: Mutex::new(Runner::new(shared.clone(), engine)),
            poll_token: PollToken::new(Poller::default()),
            arena: Arena::default(),
            attention_ns: AtomicU64::new(0),
            callers_polling: AtomicUsize::new(0),
            spinners_max: env.parallelism().div_ceil(2),
            contention: Contention::default(),
            polls_by_system_calls: shared.fabric.polls_by_system_calls(),
            shared,
            env,
            has_leader: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            process: Process::current(),
        })
    }

    /// Returns the time in nanoseconds on the node's clock.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.env.now_ns()
    }

    pub(crate) fn env(&self) -> &NodeEnv {
        &self.env
    }

    // Forks.

    /// Returns true if this process is a fork of the node's process. The fork has a copy of the node without its
    /// threads and memory, and shares the node's sockets and files. So the fork must not drive the node or take its
    /// locks: a thread that does not exist in the fork may have held them.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Returns the cause that ends an operation on a closed node: `forked` in a fork, otherwise `closed`.
    #[cold]
    pub(crate) fn closed_or_forked<C>(&self, closed: C, forked: C) -> C {
        if self.is_forked() { forked } else { closed }
    }

    /// Returns the error of all commands that begin after the node has left, or in a fork.
    pub(crate) fn closed_error(&self) -> CommandError {
        self.closed_or_forked(node_closed(self.shared.node), CommandError::Forked)
    }

    /// Changes the runner, lets it settle, and wakes the tasks that wait for the changes.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut Runner, u64) -> R) -> R {
        let (result, wakes) = self.change(change);
        wakes.wake_all();
        result
    }

    /// Changes the runner and lets it settle. Returns the tasks to wake, which the caller wakes when it holds no lock.
    fn change<R>(&self, change: impl FnOnce(&mut Runner, u64) -> R) -> (R, Wakes) {
        let mut runner = self.runner();
        let now = self.now_ns();
        let result = change(&mut runner, now);
        runner.settle(now);
        if runner.over.is_some() {
            self.set_closed();
        }
        let attention = runner.attention_ns(now);
        // The lock orders this for the progress thread; pollers use it as a hint.
        self.attention_ns.store(attention, Relaxed);
        let progress_is_late = attention < runner.progress_sleeps_until_ns;
        let wakes = std::mem::take(&mut runner.wakes);
        drop(runner);
        if progress_is_late {
            self.shared.fabric.wake();
        }
        (result, wakes)
    }

    fn runner(&self) -> Locked<'_, Runner> {
        #[cfg(test)]
        tests::record_lock();
        lock(&self.runner)
    }

    pub(crate) fn look<R>(&self, look: impl FnOnce(&Runner) -> R) -> R {
        look(&self.runner())
    }

    pub(crate) fn settle(&self) {
        self.with_unless_failed(|_, _| ());
    }

    // Commands.

    /// Submits a command. Returns `None` if the node is leaving or has left.
    pub(crate) fn submit(&self, session: SessionId, command: Command, undo: Undo) -> Option<OpId> {
        if self.is_closed() {
            return None;
        }
        self.with(|runner, now| runner.submit(now, session, command, undo))
    }

    pub(crate) fn poll_ticket(&self, op: OpId, context: &mut Context<'_>) -> Poll<CommandResult> {
        self.runner().tickets.poll(op, context)
    }

    pub(crate) fn abandon(&self, op: OpId) {
        self.with_unless_failed(|runner, now| runner.abandon(now, op));
    }

    pub(crate) fn close_session(&self, session: SessionId) {
        self.with_unless_failed(|runner, _| runner.tickets.close(session));
    }

    /// Changes the runner unless the node has panicked or this process is a fork. For destructors, which must not
    /// panic.
    pub(crate) fn with_unless_failed(&self, change: impl FnOnce(&mut Runner, u64)) {
        if !self.is_forked() && !self.runner.is_poisoned() {
            self.with(change);
        }
    }

    // Driving.

    /// Returns the poll token unless another thread holds it.
    #[inline]
    pub(crate) fn try_token(&self) -> Option<Polling<'_>> {
        if self.is_forked() {
            return None;
        }
        let guard = self.poll_token.try_take(self)?;
        let unwinding = std::thread::panicking();
        let (wakes, direct) = Default::default();
        Some(Polling { driver: self, guard: Some(guard), wakes, direct, unwinding })
    }

    /// Polls once if the poll token is free. Returns a call to `service` that arrived in this poll.
    #[inline]
    pub(crate) fn take_direct(&self, service: &Service) -> Option<Box<Incoming>> {
        let mut token = self.try_token()?;
        token.direct.service = Some(service);
        token.drive_lines();
        token.direct.request.take()
    }

    /// Spins until a request waits at `service`, or until this thread receives a call to `service` directly. Returns
    /// true with the direct call, if there is one; returns false if the thread should sleep instead.
    pub(crate) fn spin_for(&self, service: &Service) -> (bool, Option<Box<Incoming>>) {
        let mut request = None;
        let is_done = self.spin_with(|| service.is_waiting(), Some(service), &mut request);
        (is_done || request.is_some(), request)
    }

    /// Returns true if polling takes system calls, because the stores of some peers do not reach this node.
    pub(crate) fn polls_by_system_calls(&self) -> bool {
        self.polls_by_system_calls
    }

    /// Handles arrivals unless another thread polls. For a thread that will soon poll again.
    pub(crate) fn poll_once(&self) {
        let Some(mut token) = self.try_token() else { return };
        token.drive();
        if !self.env.has_progress_thread() {
            // Without a progress thread, a later arrival must ring.
            token.release_armed();
        }
    }

    /// Handles arrivals, but only inside a blocking wait, after which the thread polls again or sleeps. An async task
    /// may leave its thread at any time, so later arrivals must be able to wake the progress thread.
    pub(crate) fn poll_in_blocking_wait(&self) {
        if BlockingWait::drives(self) {
            self.poll_once();
        }
    }

    #[inline]
    pub(crate) fn run_jobs(&self) {
        while let Some(job) = self.poll_job() {
            let done = self.arena.run(job, &*self.shared.fabric, &self.env);
            self.with(|runner, now| runner.handle_job_done(now, done));
            // Many jobs may follow each other; handling arrivals in between keeps leases of live peers from expiring.
            if let Some(mut token) = self.try_token() {
                token.drive();
                token.release_armed();
            }
        }
    }

    /// Returns true if jobs may be waiting.
    #[inline]
    pub(crate) fn has_jobs(&self) -> bool {
        self.attention_ns.load(Relaxed) == 0
    }

    #[inline]
    fn poll_job(&self) -> Option<Job> {
        if self.has_jobs() && !self.is_forked() { self.runner().poll_job() } else { None }
    }

    /// Runs a future on the calling thread, which drives the node while it waits.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.block_on_after(false, future)
    }

    /// Runs a future on the calling thread. If the thread `has_spun` for it without success, the thread sleeps at once.
    pub(crate) fn block_on_after<F: Future>(&self, mut has_spun: bool, future: F) -> F::Output {
        let (parking, _waiting) = (Parking::take(), BlockingWait::begin(self));
        let mut context = Context::from_waker(parking.waker());
        let mut future = std::pin::pin!(future);
        loop {
            let output = future.as_mut().poll(&mut context);
            // The thread that frees memory clears it, so that a later allocation does not wait for that.
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

    /// Drives the node until `done` returns true, for as long as spinning is likely to be faster than sleeping. Returns
    /// false if the thread should [`Driver::sleep`] instead.
    pub(crate) fn spin_until(&self, done: impl Fn() -> bool) -> bool {
        self.spin_with(done, None, &mut None)
    }

    fn spin_with(
        &self,
        done: impl Fn() -> bool,
        wanted: Option<&Service>,
        request: &mut Option<Box<Incoming>>,
    ) -> bool {
        let mut spin = Spin::new(self);
        while request.is_none() && !done() {
            if spin.is_over() {
                return false;
            }
            match self.try_token() {
                Some(mut token) => {
                    token.direct.service = wanted;
                    *request = token.drive_until(&mut spin, &done);
                }
                None => spin.pause(),
            }
            self.run_jobs();
        }
        AdaptiveSpin::change(|spin| spin.record_wait(0));
        true
    }

    /// Yields, unless the cores are known to be contended. Returns true if they are known to be contended, or if the yield
    /// took so long that they must be.
    pub(crate) fn yield_processor(&self) -> bool {
        let begin_ns = self.now_ns();
        if self.is_contended(begin_ns) {
            return true;
        }
        std::thread::yield_now();
        self.now_ns() - begin_ns > YIELD_LONG_NS
    }

    /// Returns true if more threads than cores were runnable a moment ago. If polling takes no system call, returns
    /// false: then a yield is as fast as this check and shows contention too.
    fn is_contended(&self, now_ns: u64) -> bool {
        self.polls_by_system_calls && self.contention.is_contended(now_ns, || self.env.is_contended())
    }

    /// Tells the adaptive spin that the thread will wait for `peer`. Returns the round trip; `None` if it is unknown.
    pub(crate) fn expect_round_trip(&self, peer: PeerId) -> Option<Duration> {
        let round_trip = self.shared.fabric.round_trip(peer);
        if let Some(round_trip) = round_trip {
            AdaptiveSpin::change(|spin| spin.expect_round_trip(round_trip));
        }
        round_trip
    }

    /// Sleeps until the calling thread's parker is notified.
    pub(crate) fn sleep(&self, parker: &Parker) {
        if parker.take_notification() {
            return;
        }
        let begin = self.now_ns();
        if !self.lead(parker) {
            parker.park();
        }
        let slept = self.now_ns() - begin;
        AdaptiveSpin::change(|spin| spin.record_wait(slept));
    }

    /// Sleeps on the fabric until `parker` is notified. Returns false if another caller leads or polls.
    fn lead(&self, parker: &Parker) -> bool {
        let fabric = &self.shared.fabric;
        while let Some(mut token) = self.token_to_lead() {
            // Read before polling, so that any later ring ends the sleep.
            let seen = fabric.doorbell();
            token.drive_at(self.now_ns());
            let is_needed = token.has_wakes() || self.has_jobs();
            let wakes = if is_needed {
                token.release_deferring_wakes()
            } else {
                self.sleep_as_leader(token, parker, seen)
            };
            // Wakers may run any code, including code that waits for this node, so this thread must not lead meanwhile.
            wakes.wake_all();
            self.run_jobs();
            if parker.take_notification() {
                return true;
            }
        }
        false
    }

    /// Returns the poll token unless another caller sleeps as the leader.
    fn token_to_lead(&self) -> Option<Polling<'_>> {
        self.token_of_progress_thread().filter(|_| !self.has_leader())
    }

    /// Sleeps as the leader until `parker` is notified or an arrival needs this thread. Returns the tasks to wake.
    fn sleep_as_leader(&self, token: Polling<'_>, parker: &Parker, mut seen: u32) -> Wakes {
        // Set under the token: its next holder sees it and arms the doorbell for the leader.
        self.has_leader.store(true, Relaxed);
        let mut wakes = token.release_deferring_wakes();
        let mut timeout = None;
        loop {
            if wakes.is_empty() {
                parker.sleep_on(&self.shared.fabric, seen, timeout);
            }
            seen = self.shared.fabric.doorbell();
            if let Some(mut token) = self.try_token() {
                self.has_leader.store(false, Relaxed);
                // Arrivals are handled before the doorbell is armed for the progress thread; otherwise they would wake
                // it.
                token.drive();
                wakes.append(token.release_deferring_wakes());
                return wakes;
            }
            if !wakes.is_empty() || parker.is_notified() {
                self.has_leader.store(false, Relaxed);
                // A polling thread may just have armed the doorbell for this leader.
                self.shared.fabric.wake();
                return wakes;
            }
            // The holder of the token may have polled for the last time before the doorbell rang.
            timeout = Some(RETRY_INTERVAL);
        }
    }

    /// Returns the poll token if it is free or the progress thread gives it up for a polling caller.
    fn token_of_progress_thread(&self) -> Option<Polling<'_>> {
        self.callers_polling.fetch_add(1, Relaxed);
        let token = (0..ROUNDS_FOR_PROGRESS_THREAD).find_map(|_| self.try_token());
        self.callers_polling.fetch_sub(1, Relaxed);
        token
    }

    /// Handles arrivals and runs jobs, then sleeps for at most [`RETRY_INTERVAL`]. For a thread without other work.
    pub(crate) fn drive_briefly(&self) {
        let seen = self.shared.fabric.doorbell();
        if let Some(mut token) = self.try_token() {
            token.drive_at(self.now_ns());
            token.release_armed();
        }
        self.run_jobs();
        // Briefly, because the progress thread may handle what this thread waits for.
        self.shared.fabric.wait(Sleeper::Progress, seen, Some(RETRY_INTERVAL));
    }

    /// Drives a node without a progress thread until it has nothing to do. Returns the time at which to call again, in
    /// nanoseconds on the node's clock; if the doorbell rings, call earlier.
    pub(crate) fn step(&self) -> u64 {
        self.end_sleep();
        if let Some(mut token) = self.try_token() {
            while token.drive_at(self.now_ns()) {}
            token.release_armed();
        }
        self.run_jobs();
        self.begin_sleep_until(NextPoll::WhenRung)
    }

    /// Returns true if a caller polls, or waits for the token in order to poll.
    pub(crate) fn has_polling_caller(&self) -> bool {
        // A hint: a poller that misses it polls a little longer than necessary.
        self.callers_polling.load(Relaxed) > 0
    }

    // For the progress thread.

    /// Runs due timers, even while another thread polls.
    pub(crate) fn run_due_timers(&self) {
        // A hint, as in Polling::drive_at().
        if self.attention_ns.load(Relaxed) <= self.now_ns() {
            self.with(|_, _| ());
        }
    }

    /// Returns how long the runner's due work has been waiting. Takes no lock, so it works while a thread holds one.
    pub(crate) fn overdue(&self) -> Duration {
        // A hint, as in Polling::drive_at(); it lags behind the work in progress.
        Duration::from_nanos(self.now_ns().saturating_sub(self.attention_ns.load(Relaxed)))
    }

    /// Returns how long the progress thread may sleep. A thread that shortens this time later rings the doorbell. With
    /// [`NextPoll::Within`], other threads poll and serve the fabric's timers.
    pub(crate) fn begin_sleep(&self, next: NextPoll) -> Duration {
        let until = self.begin_sleep_until(next);
        Duration::from_nanos(until.saturating_sub(self.now_ns()))
    }

    fn begin_sleep_until(&self, next: NextPoll) -> u64 {
        let mut runner = self.runner();
        let now = self.now_ns();
        let attention_ns = runner.attention_ns(now);
        let until = match next {
            NextPoll::WhenRung => {
                let timeout = self.shared.fabric.poll_timeout().unwrap_or(Duration::MAX);
                attention_ns.min(now.saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)))
            }
            // Other threads poll, and handle the fabric's timers. Woken for each delayed acknowledgement, this thread
            // interrupted so many calls over UDP that the 99th percentile was 50 us instead of 27.
            NextPoll::Within(watch_ns) => attention_ns.min(now + watch_ns),
        };
        runner.progress_sleeps_until_ns = until;
        until
    }

    pub(crate) fn end_sleep(&self) {
        self.runner().progress_sleeps_until_ns = 0;
    }

    // The end.

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        // Only ever set; its readers then check the runner under its lock.
        self.closed.load(Relaxed) || self.is_forked()
    }

    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Ends all waits after a panic inside the node, so that no caller hangs.
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
    fn has_leader(&self) -> bool {
        // Ordered by the token's lock; see sleep_as_leader().
        self.has_leader.load(Relaxed)
    }
}

/// The right to poll; see [`crate::runtime::poll_token`]. A thread that may soon poll again drops it.
pub(crate) struct Polling<'c> {
    driver: &'c Driver,
    /// `None` once the thread has given up the token.
    guard: Option<PollGuard<'c, Poller>>,
    /// Tasks to wake after the thread has given up the token, because wakers may run any code.
    wakes: Wakes,
    /// The service whose next call goes directly to the holder of the token.
    direct: DirectReceiver<'c>,
    /// True if the thread was already unwinding when it took the token.
    unwinding: bool,
}

impl Polling<'_> {
    /// Polls until `done` returns true or `spin` is over, then gives up the token. Returns early if jobs or tasks to
    /// wake are waiting, because they need no token.
    fn drive_until(mut self, spin: &mut Spin<'_>, done: impl Fn() -> bool) -> Option<Box<Incoming>> {
        while self.direct.request.is_none() && !done() && self.wakes.is_empty() && !self.driver.has_jobs() {
            if spin.is_over() {
                let request = self.direct.request.take();
                self.release_armed();
                return request;
            }
            let arrived = match spin.now_ns {
                Some(now) => self.drive_at(now),
                None => self.drive(),
            };
            if !arrived {
                spin.pause();
            }
        }
        self.direct.request.take()
    }

    /// Polls once. Returns true if anything arrived.
    pub(crate) fn drive(&mut self) -> bool {
        let guard = self.guard.as_mut().expect("the token is held until given up");
        drive(self.driver, guard.poller(), &mut self.direct, &mut self.wakes)
    }

    /// Polls for short requests; every [`LINE_POLLS_PER_DRIVE`] calls, polls for everything.
    #[inline]
    fn drive_lines(&mut self) {
        let guard = self.guard.as_mut().expect("the token is held until given up");
        let poller = guard.poller();
        poller.line_polls = poller.line_polls.wrapping_add(1);
        if poller.line_polls.is_multiple_of(LINE_POLLS_PER_DRIVE) {
            drive(self.driver, poller, &mut self.direct, &mut self.wakes);
        } else {
            self.driver.shared.rpc.poll_lines(&mut poller.received, &mut self.direct, &mut self.wakes);
        }
    }

    /// Polls once and runs due timers. Returns true if anything arrived.
    pub(crate) fn drive_at(&mut self, now_ns: u64) -> bool {
        let arrived = self.drive();
        // Attention is only a hint here; the progress thread wakes at that time anyway.
        if self.driver.attention_ns.load(Relaxed) <= now_ns {
            self.wakes.append(self.driver.change(|_, _| ()).1);
        }
        arrived
    }

    /// Returns true if tasks will be woken when the thread gives up the token.
    pub(crate) fn has_wakes(&self) -> bool {
        !self.wakes.is_empty()
    }

    /// Gives up the token for a thread that goes to sleep, and wakes tasks.
    pub(crate) fn release_armed(self) {
        self.release_deferring_wakes().wake_all();
    }

    /// Gives up the token for a thread that goes to sleep. Returns the tasks to wake instead of waking them.
    fn release_deferring_wakes(mut self) -> Wakes {
        let guard = self.guard.take().expect("the token is held until given up");
        guard.release_armed(self.driver, |poller| {
            drive(self.driver, poller, &mut DirectReceiver::default(), &mut self.wakes)
        });
        std::mem::take(&mut self.wakes)
    }

    /// Gives up the token for the progress thread. Returns when this thread should poll next.
    pub(crate) fn release_by_progress(mut self, now_ns: u64) -> NextPoll {
        let guard = self.guard.take().expect("the token is held until given up");
        guard.release_by_progress(self.driver, now_ns, |poller| {
            drive(self.driver, poller, &mut DirectReceiver::default(), &mut self.wakes)
        })
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        let driver = self.driver;
        if std::thread::panicking() && !self.unwinding {
            // The node itself panicked: the token's lock stays poisoned, and the progress thread fails the node.
            self.guard = None;
            driver.shared.fabric.wake();
            return;
        }
        if let Some(guard) = self.guard.take() {
            let poll =
                |poller: &mut _| drive(driver, poller, &mut DirectReceiver::default(), &mut self.wakes);
            guard.release(driver, || driver.now_ns(), poll);
        }
        std::mem::take(&mut self.wakes).wake_all();
    }
}

/// Polls once. Returns true if anything arrived.
fn drive(driver: &Driver, poller: &mut Poller, direct: &mut DirectReceiver<'_>, wakes: &mut Wakes) -> bool {
    let has_lines = driver.shared.rpc.poll_lines(&mut poller.received, direct, wakes);
    let arrived = driver.shared.fabric.poll(&mut poller.events) > 0;
    if arrived {
        poller.handle_new_peers(driver, wakes);
        poller.handle_unlocked(&driver.shared.rpc, &driver.shared.posted, wakes);
    }
    if arrived && driver.shared.rpc.client.take_ring_waiters() {
        // Arrivals may have made room.
        driver.shared.posted.retry(wakes);
    }
    if !poller.events.is_empty() || driver.shared.rpc.poster.is_dirty() {
        wakes.append(driver.change(|runner, now| poller.handle_locked(runner, now)).1);
    }
    arrived || has_lines
}

/// Returns the peer and immediate of a write with immediate.
fn notification_of(event: &Event) -> Option<(PeerId, u32)> {
    match event {
        Event::Completed(Completion { peer, kind: CompletionKind::Notified { imm }, .. }) => {
            Some((*peer, *imm))
        }
        _ => None,
    }
}

/// Returns the peer whose message the event carries.
fn sender_of(event: &Event) -> Option<PeerId> {
    match event {
        Event::Completed(Completion { peer, kind, .. }) => match kind {
            CompletionKind::Received { .. } | CompletionKind::Notified { .. } => Some(*peer),
            CompletionKind::Done { .. } | CompletionKind::Atomic { .. } => None,
        },
        _ => None,
    }
}

fn notify_from_same_peer(one: &Event, next: &Event) -> bool {
    notification_of(one).zip(notification_of(next)).is_some_and(|((peer, _), (other, _))| peer == other)
}

/// Returns true if the event is handled without the runner's lock.
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

/// Returns true if the status means that the peer refused a post.
fn is_refusal(status: Status) -> bool {
    matches!(status, Status::RemoteAccess | Status::Unmapped)
}

/// The rounds in which a caller polls for its own result before it sleeps.
struct Spin<'c> {
    driver: &'c Driver,
    rounds: u32,
    /// Begin and maximum duration of the spin, in nanoseconds; `None` until the first clock read.
    limit: Option<(u64, u64)>,
    /// Time on the node's clock; `None` in a round without a clock read.
    now_ns: Option<u64>,
    /// True if the core was contended at the last pause.
    is_contended: bool,
}

impl<'c> Spin<'c> {
    fn new(driver: &'c Driver) -> Spin<'c> {
        Spin { driver, rounds: 0, limit: None, now_ns: None, is_contended: false }
    }

    /// Begins a round. Returns true if the spin should end.
    fn is_over(&mut self) -> bool {
        self.rounds += 1;
        // A round with a yield takes longer than a clock read.
        let reads = self.driver.polls_by_system_calls
            || self.rounds > ROUNDS_BEFORE_YIELD
            || self.rounds.is_multiple_of(ROUNDS_PER_CLOCK);
        self.now_ns = reads.then(|| self.driver.now_ns());
        self.now_ns.is_some_and(|now| self.is_over_at(now))
    }

    fn is_over_at(&mut self, now_ns: u64) -> bool {
        let Some((begin_ns, spin_ns)) = self.limit else {
            let spin_ns = self.begin_polling_ns();
            self.limit = Some((now_ns, spin_ns));
            return spin_ns == 0;
        };
        let spun_ns = now_ns - begin_ns;
        // A short spin ends before it yields: a yield could take much longer.
        let is_over = self.is_contended
            || spun_ns >= spin_ns
            || spin_ns == SPIN_SHORT_NS && self.rounds >= ROUNDS_BEFORE_YIELD;
        if is_over {
            AdaptiveSpin::change(|spin| spin.record_spin(spun_ns));
        }
        is_over
    }

    /// Counts the caller as a poller. Returns the maximum duration of its spin, in nanoseconds.
    fn begin_polling_ns(&self) -> u64 {
        // A hint: it orders nothing.
        let others = self.driver.callers_polling.fetch_add(1, Relaxed);
        if others >= self.driver.spinners_max {
            return SPIN_SHORT_NS;
        }
        AdaptiveSpin::change(|spin| spin.set_by_packets(self.driver.polls_by_system_calls));
        AdaptiveSpin::of_thread().spin_ns()
    }

    /// Pauses or yields after a round in which nothing arrived.
    fn pause(&mut self) {
        // Earlier rounds do not even pause: each polls other memory than the last, and a pause takes as long as two
        // rounds.
        self.is_contended = match self.rounds >= ROUNDS_BEFORE_YIELD {
            true => self.driver.yield_processor(),
            false => self.now_ns.is_some_and(|now| self.is_long(now) && self.driver.is_contended(now)),
        };
        if self.is_contended {
            AdaptiveSpin::change(AdaptiveSpin::record_contention);
        }
    }

    /// Returns true if the spin has lasted long enough for contention to matter.
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

/// A peer's events arrive in order. So the poller first handles new peers, then the events that need no lock, and then
/// the rest in order. This way it handles everything that a peer sent before the peer's disconnection.
impl Poller {
    /// Handles new peers, and the first message on each new connection, before the other messages.
    fn handle_new_peers(&mut self, driver: &Driver, wakes: &mut Wakes) {
        let is_new = |event: &mut Event| matches!(event, Event::Connected { .. });
        if !self.awaits_first_words && !self.events.iter_mut().any(is_new) {
            return;
        }
        let handled = driver.change(|runner, now| {
            self.events.extract_if(.., is_new).for_each(|event| runner.handle_event(now, event));
            self.events.iter().filter_map(sender_of).for_each(|peer| runner.handle_heard(now, peer));
            self.awaits_first_words = runner.awaits_first_words();
        });
        wakes.append(handled.1);
    }

    /// Handles completions of calls and posted operations in order, without the runner's lock.
    fn handle_unlocked(&mut self, rpc: &Rpc, posted: &InFlight, wakes: &mut Wakes) {
        let Poller { events, received, .. } = self;
        for batch in events.chunk_by(notify_from_same_peer) {
            let Event::Completed(Completion { peer, ref kind, status }) = batch[0] else { continue };
            match kind {
                CompletionKind::Notified { .. } => {
                    let imms = batch.iter().filter_map(notification_of).map(|(_, imm)| imm);
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
                    posted.complete(*id, OperationResult { status, old: 0 }, wakes);
                }
                CompletionKind::Atomic { id, old } => {
                    posted.complete(*id, OperationResult { status, old: *old }, wakes)
                }
                CompletionKind::Done { .. } | CompletionKind::Received { .. } => {}
            }
        }
        events.retain(|event| !is_handled_unlocked(event));
    }

    fn handle_locked(&mut self, runner: &mut Runner, now: u64) {
        for event in self.events.drain(..) {
            runner.handle_event(now, event);
        }
    }
}
