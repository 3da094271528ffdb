//! The driver: lets threads take turns at moving the node forward.
//!
//! ```text
//!   waiting callers ─┐                       ┌─ poll the fabric ──> machine ──> posts, wake-ups
//!                    ├── whoever holds the ──┤
//!   keeper ──────────┘      poll token       └─ jobs (copies, growth), outside of all locks
//! ```
//!
//! The token is a mutex that is only tried.  Its holder disarms the doorbell while it polls.  When it lets go it
//! arms the doorbell and polls once more; whoever found the token taken meanwhile is the keeper, who then leaves
//! a note that makes the holder ring for it.  So no arrival is left without somebody to handle it.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, atomic::fence};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use halite_fabric::{Completion, Event as FabricEvent};
use halite_tier::effect::{Command, OpId};
use halite_tier::engine::Engine;
use halite_tier::ids::SessionId;

use crate::jobs::{Arena, Job};
use crate::machine::{Ground, Machine};
use crate::ticket::{Ending, Undo};
use crate::wait::{Parker, lock};

/// How long a caller polls for its own end before it sleeps: a round trip between two threads that are awake
/// takes a few microseconds, and a wake-up by the kernel about as long as this.
const CALLER_SPIN_NS: u64 = 100_000;
/// How often a thread that leaves the node looks whether it may go.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// How many rounds the token is kept for arrivals that came while it was being given up.
const LAST_ROUNDS_MAX: usize = 4;
/// How many polls in a row may be needed to take in what a peer said before it went.
const LAST_WORDS_POLLS_MAX: usize = 4096;

/// What all threads and sessions of a node share.
pub(crate) struct Core {
    pub(crate) ground: Arc<Ground>,
    machine: Mutex<Machine>,
    poller: Mutex<Poller>,
    arena: Arena,
    begin: Instant,
    /// When the machine needs attention although nothing arrives.
    attention_ns: AtomicU64,
    /// Until when the keeper sleeps; 0 while it is awake.  Changed under the machine's lock.
    keeper_sleeps_until_ns: AtomicU64,
    /// The keeper found the token taken.
    keeper_missed: AtomicBool,
    /// Threads of the application that wait for an answer and have not gone to sleep yet.
    callers_polling: AtomicUsize,
    /// The node leaves, has left, or has failed.
    closed: AtomicBool,
}

/// What polling needs; whoever has it holds the poll token.
#[derive(Debug, Default)]
struct Poller {
    completions: Vec<Completion>,
    /// Connections that came about, and other events, which are handled before and after completions.
    connected: Vec<FabricEvent>,
    events: Vec<FabricEvent>,
    /// Events that are handled in the next round.
    next: Vec<FabricEvent>,
}

impl Core {
    pub(crate) fn new(ground: Arc<Ground>, begin: Instant, engine: Engine) -> Arc<Core> {
        Arc::new(Core {
            machine: Mutex::new(Machine::new(ground.clone(), engine)),
            ground,
            poller: Mutex::default(),
            arena: Arena::default(),
            begin,
            attention_ns: AtomicU64::new(0),
            keeper_sleeps_until_ns: AtomicU64::new(0),
            keeper_missed: AtomicBool::new(false),
            callers_polling: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        })
    }

    /// Nanoseconds on the engine's clock.
    pub(crate) fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    /// Changes the machine, lets it settle, and wakes whoever should know.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut Machine, u64) -> R) -> R {
        let mut machine = lock(&self.machine);
        let now = self.now_ns();
        let result = change(&mut machine, now);
        machine.settle(now);
        let attention = machine.attention_ns(now);
        // The lock orders this for the keeper; for pollers it is only a hint.
        self.attention_ns.store(attention, Relaxed);
        let keeper_is_late = attention < self.keeper_sleeps_until_ns.load(Relaxed);
        let wakes = std::mem::take(&mut machine.wakes);
        drop(machine);
        wakes.wake_all();
        if keeper_is_late {
            self.ground.fabric.wake();
        }
        result
    }

    /// Looks at the machine without changing it.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Machine) -> R) -> R {
        look(&lock(&self.machine))
    }

    // Commands.

    /// Submits a command; `Err` if the node has left.
    pub(crate) fn submit(&self, session: SessionId, command: Command, undo: Undo) -> Option<OpId> {
        self.with(|machine, now| machine.submit(now, session, command, undo))
    }

    pub(crate) fn poll_ticket(&self, op: OpId, context: &mut Context<'_>) -> Poll<Ending> {
        lock(&self.machine).tickets.poll(op, context)
    }

    pub(crate) fn abandon(&self, op: OpId) {
        self.with_unless_failed(|machine, now| machine.abandon(now, op));
    }

    pub(crate) fn close_session(&self, session: SessionId) {
        self.with_unless_failed(|machine, _| machine.tickets.close(session));
    }

    /// For destructors, which must not panic because the node did.
    pub(crate) fn with_unless_failed(&self, change: impl FnOnce(&mut Machine, u64)) {
        if !self.machine.is_poisoned() {
            self.with(change);
        }
    }

    // Driving.

    /// The poll token, unless somebody has it.
    pub(crate) fn try_token(&self) -> Option<PollToken<'_>> {
        let poller = match self.poller.try_lock() {
            Ok(poller) => poller,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(_)) => panic!("a thread panicked while it polled for the node"),
        };
        self.ground.fabric.arm(false);
        let unwinding = std::thread::panicking();
        Some(PollToken { core: self, poller: Some(poller), unwinding })
    }

    /// Does the jobs that wait.
    pub(crate) fn run_jobs(&self) {
        while let Some(job) = self.poll_job() {
            let done = self.arena.run(job, &*self.ground.fabric);
            self.with(|machine, now| machine.handle_job_done(now, done));
            // Jobs may come in long rows: who is heard in between is not taken for dead.
            if let Some(mut token) = self.try_token() {
                token.drive();
            }
        }
    }

    /// Whether there may be jobs: while there are, attention is needed at once.
    pub(crate) fn has_jobs(&self) -> bool {
        self.attention_ns.load(Relaxed) == 0
    }

    fn poll_job(&self) -> Option<Job> {
        if self.has_jobs() { lock(&self.machine).poll_job() } else { None }
    }

    /// Runs a future on the calling thread, which helps to move the node forward while it waits.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        let parker = Parker::new();
        let waker = Waker::from(parker.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = std::pin::pin!(future);
        loop {
            let output = future.as_mut().poll(&mut context);
            // Who frees memory also cleans it, rather than who asks for memory next.
            self.run_jobs();
            if let Poll::Ready(output) = output {
                return output;
            }
            self.help_until(|| parker.is_notified());
            parker.park();
        }
    }

    /// Moves the node forward until `done`, for `patience` at most.
    pub(crate) fn drive_until(&self, patience: Duration, done: impl Fn(&Machine) -> bool) {
        let deadline = Instant::now() + patience;
        while !self.look(&done) && Instant::now() < deadline {
            let seen = self.ground.fabric.doorbell();
            if let Some(mut token) = self.try_token() {
                token.drive();
            }
            self.run_jobs();
            // The keeper may take what we wait for, hence not for long.
            self.ground.fabric.wait(seen, Some(LOOK_AGAIN));
        }
    }

    /// Polls until `done`, but not for long.
    fn help_until(&self, done: impl Fn() -> bool) {
        let deadline = self.now_ns() + CALLER_SPIN_NS;
        self.callers_polling.fetch_add(1, Relaxed);
        while !done() && self.now_ns() < deadline {
            match self.try_token() {
                Some(mut token) => token.drive_until(deadline, &done),
                // Whoever has the token may need this processor.
                None => std::thread::yield_now(),
            }
            self.run_jobs();
        }
        self.callers_polling.fetch_sub(1, Relaxed);
    }

    /// Whether a caller polls, or would if it had the token.
    pub(crate) fn has_polling_caller(&self) -> bool {
        // A hint: whoever misses it polls a little longer than it need.
        self.callers_polling.load(Relaxed) > 0
    }

    // For the keeper.

    /// Leaves the note that makes the token's holder ring.
    pub(crate) fn note_missed(&self) {
        self.keeper_missed.store(true, SeqCst);
        // Pairs with the fence in PollToken::drop(): either the holder sees the note, or the next try finds the
        // token free.
        fence(SeqCst);
    }

    /// How long the keeper may sleep.  Whoever makes that too long rings.
    pub(crate) fn begin_sleep(&self) -> Duration {
        let machine = lock(&self.machine);
        let now = self.now_ns();
        let until = machine.attention_ns(now);
        self.keeper_sleeps_until_ns.store(until, Relaxed);
        Duration::from_nanos(until.saturating_sub(now))
    }

    pub(crate) fn end_sleep(&self) {
        let _machine = lock(&self.machine);
        self.keeper_sleeps_until_ns.store(0, Relaxed);
    }

    // The end.

    pub(crate) fn is_closed(&self) -> bool {
        // Only ever set; whoever acts on it looks at the machine under its lock.
        self.closed.load(Relaxed)
    }

    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Ends all waiting after a panic inside the node, so that no caller hangs.
    pub(crate) fn fail(&self) {
        self.set_closed();
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        machine.close();
        let wakes = std::mem::take(&mut machine.wakes);
        drop(machine);
        wakes.wake_all();
    }
}

/// The right to poll; see the module's documentation.
pub(crate) struct PollToken<'c> {
    core: &'c Core,
    poller: Option<MutexGuard<'c, Poller>>,
    /// Whether the thread was unwinding already when it took the token.
    unwinding: bool,
}

impl PollToken<'_> {
    /// Polls until `done`, or until `deadline_ns`.
    pub(crate) fn drive_until(&mut self, deadline_ns: u64, done: impl Fn() -> bool) {
        while !done() && self.core.now_ns() < deadline_ns && !self.core.has_jobs() {
            if !self.drive() {
                // And not a mere pause: on two processors, three that spin keep the one from running that has the
                // answer (median round trip between two nodes of one process: 131 us, with yielding 7 to 11).
                std::thread::yield_now();
            }
        }
    }

    /// Takes in what has arrived, once.  Returns whether anything had.
    pub(crate) fn drive(&mut self) -> bool {
        let poller = self.poller.as_mut().expect("the token is held until dropped");
        poller.gather(&self.core.ground);
        let arrived = !poller.is_empty();
        // Attention is only a hint here: the keeper sleeps no longer than it.
        if arrived || self.core.attention_ns.load(Relaxed) <= self.core.now_ns() {
            self.core.with(|machine, now| poller.hand_over(machine, now));
        }
        arrived
    }
}

impl Drop for PollToken<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            // The panic came from inside: the poller's lock stays poisoned, and the keeper raises the alarm.
            self.core.ground.fabric.wake();
            return;
        }
        let fabric = &self.core.ground.fabric;
        fabric.arm(true);
        let more = (0..LAST_ROUNDS_MAX).all(|_| self.drive());
        self.poller = None;
        // Pairs with the fence in note_missed().
        fence(SeqCst);
        if self.core.keeper_missed.swap(false, SeqCst) || more {
            fabric.wake();
        }
    }
}

impl Poller {
    /// Polls the fabric.  A message's connection is known by the time the message is polled, and all messages of
    /// a peer have been polled by the time its end is handled.
    fn gather(&mut self, ground: &Ground) {
        let mut events = std::mem::take(&mut self.next);
        while let Some(event) = ground.fabric.poll_event() {
            events.push(event);
        }
        let ends = events.iter().any(|event| matches!(event, FabricEvent::Disconnected { .. }));
        let rounds = if ends { LAST_WORDS_POLLS_MAX } else { 1 };
        for _ in 0..rounds {
            if ground.fabric.poll(&mut self.completions) == 0 {
                break;
            }
        }
        for event in events {
            match event {
                FabricEvent::Connected { .. } => self.connected.push(event),
                _ => self.events.push(event),
            }
        }
        while let Some(event) = ground.fabric.poll_event() {
            match event {
                FabricEvent::Connected { .. } => self.connected.push(event),
                _ => self.next.push(event),
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.completions.is_empty()
            && self.connected.is_empty()
            && self.events.is_empty()
            && self.next.is_empty()
    }

    fn hand_over(&mut self, machine: &mut Machine, now: u64) {
        for event in self.connected.drain(..) {
            machine.handle_event(now, event);
        }
        for completion in self.completions.drain(..) {
            machine.handle_completion(now, completion);
        }
        for event in self.events.drain(..) {
            machine.handle_event(now, event);
        }
    }
}
