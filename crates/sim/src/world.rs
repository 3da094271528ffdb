//! The simulated world: its hosts, its tasks, and the loop that runs them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::{HostClock, Sleep};
use crate::counters::Counters;
use crate::fabric::SimFabric;
use crate::hardware::Hardware;
use crate::link::Link;
use crate::net::{HostState, Net};
use crate::profile::Profile;
use crate::random::Random;
use crate::shared::Shared;
use crate::tasks::{TaskId, Tasks};
use crate::trace::Trace;

/// Identifies a host of a world, numbered from 0 in order of creation. If hosts have several processes, an id names one
/// process: each process runs, pauses and crashes separately.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub u32);

/// The reason why [`World::run`] returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RunEnd {
    /// All tasks without a host have ended; or, in a world without such tasks, no event is left.
    Finished,
    /// The deadline was reached.
    DeadlineReached,
    /// Tasks wait, but no event is left that could wake them.
    Stuck {
        /// Names of the waiting tasks.
        waiting: Vec<String>,
    },
    /// The run reached the limit on its number of steps, or on the steps at one instant of virtual time.
    StepsExhausted {
        /// The task that was polled last, which may be in a loop.
        task: String,
    },
}

/// Maximum number of polls at one instant of virtual time; more are treated as an endless loop.
const POLLS_PER_INSTANT_MAX: u64 = 1_000_000;

/// One simulated world; see the documentation of the crate.
///
/// ```
/// use std::time::Duration;
/// use halite_sim::{Profile, RunEnd, World};
///
/// let world = World::new(1, Profile::local());
/// let host = world.add_host();
/// let sleep = world.sleep(Some(host), Duration::from_secs(3600));
/// world.spawn(None, "a task", async move { sleep.await });
/// assert_eq!(world.run(), RunEnd::Finished);
/// assert_eq!(world.now_ns(), 3_600_000_000_000);
/// ```
#[derive(Clone)]
pub struct World {
    inner: Rc<Inner>,
}

struct Inner {
    seed: u64,
    shared: Arc<Shared>,
    true_clock: HostClock,
    clocks: RefCell<Vec<HostClock>>,
    tasks: RefCell<Tasks>,
    order: RefCell<Random>,
    steps_left: Cell<u64>,
    /// A copy of whether the network's log is on, which is read without the lock.
    is_tracing: Cell<bool>,
}

impl Drop for Inner {
    /// Drops the tasks while the network still exists.
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut().remove_all();
        drop(tasks);
    }
}

impl World {
    /// Creates an empty world at time 0. Panics if `profile` is invalid; see [`Profile::check`].
    pub fn new(seed: u64, profile: Profile) -> World {
        World::with_hardware(seed, Hardware::new(profile, None))
    }

    /// Creates an empty world whose hosts may have several processes. `between_hosts` is the hardware between hosts.
    /// `within_host` is the hardware between the processes of one host, which access each other's memory by loads and
    /// stores. Each process has its own adapter. Panics as [`World::new`] does, and unless `between_hosts` has adapters
    /// and `within_host` has none.
    pub fn with_processes(seed: u64, between_hosts: Profile, within_host: Profile) -> World {
        World::with_hardware(seed, Hardware::new(between_hosts, Some(within_host)))
    }

    fn with_hardware(seed: u64, hardware: Hardware) -> World {
        let shared = Shared::new(Net::new(seed, hardware));
        let inner = Inner {
            seed,
            true_clock: HostClock::exact(shared.clone()),
            shared,
            clocks: RefCell::default(),
            tasks: RefCell::default(),
            order: RefCell::new(Random::new(seed, "order of tasks")),
            steps_left: Cell::new(u64::MAX),
            is_tracing: Cell::new(false),
        };
        World { inner: Rc::new(inner) }
    }

    // Time and random numbers.

    /// Returns the virtual time, in ns since the start of the world. Clocks of hosts may differ from it.
    pub fn now_ns(&self) -> u64 {
        self.inner.shared.now_ns()
    }

    /// Returns the clock of a host.
    pub fn clock(&self, host: HostId) -> HostClock {
        self.inner.clocks.borrow()[host.0 as usize].clone()
    }

    /// Returns a future that resolves after `duration` on the host's own clock; with `None`, after `duration` of true
    /// time.
    pub fn sleep(&self, host: Option<HostId>, duration: Duration) -> Sleep {
        let clock = host.map_or_else(|| self.inner.true_clock.clone(), |host| self.clock(host));
        clock.sleep_until(clock.now_ns().saturating_add(duration.as_nanos() as u64))
    }

    /// Sets the drift of the host's clock, in millionths of its rate; a negative drift makes it slow.
    pub fn set_drift_ppm(&self, host: HostId, ppm: i64) {
        self.clock(host).set_drift_ppm(ppm);
        // Sleepers read their clocks again and set new timers.
        self.inner.shared.with(Net::wake_sleepers);
    }

    /// Returns a new random generator for the purpose `stream`. Every generator of one purpose returns the same
    /// sequence.
    pub fn random(&self, stream: &str) -> Random {
        // The prefix separates this stream from the world's own streams.
        Random::new(self.inner.seed, &format!("story: {stream}"))
    }

    // Hosts and links.

    /// Adds a running host with its own clock.
    pub fn add_host(&self) -> HostId {
        let host = self.inner.shared.with(|net| net.add_process(None));
        // Offsets up to an hour, so that a test detects mixed-up clocks.
        let offset_ns =
            Random::new(self.inner.seed, &format!("clock of host {}", host.0)).below(3_600_000_000_000);
        self.inner.clocks.borrow_mut().push(HostClock::new(self.inner.shared.clone(), offset_ns));
        host
    }

    /// Adds a process to the host of `other`. Both use the same clock. Panics if hosts of this world have one process
    /// each.
    pub fn add_process(&self, other: HostId) -> HostId {
        let added = self.inner.shared.with(|net| {
            assert!(net.hardware.has_processes(), "this world has no profile for processes of one host");
            net.add_process(Some(other))
        });
        let clock = self.clock(other);
        self.inner.clocks.borrow_mut().push(clock);
        added
    }

    /// Returns true if the two processes are on one host.
    pub fn share_a_host(&self, one: HostId, other: HostId) -> bool {
        self.inner.shared.with(|net| net.machine_of(one) == net.machine_of(other))
    }

    /// Returns true if the host is neither paused nor down.
    pub fn is_running(&self, host: HostId) -> bool {
        self.state(host) == HostState::Running
    }

    /// Returns true if the host has crashed and was not restarted.
    pub fn has_crashed(&self, host: HostId) -> bool {
        self.state(host) == HostState::Crashed
    }

    /// Opens a fabric on a running host. Peers that connect receive `hello`.
    ///
    /// A host may open several fabrics. Addresses are never reused: a restarted host needs a new one.
    pub fn fabric(&self, host: HostId, address: &str, hello: Vec<u8>) -> Arc<SimFabric> {
        SimFabric::open(self.inner.shared.clone(), host, address, hello)
    }

    /// Crashes a host or process: its tasks and fabrics end at once. Packets on the wire still arrive. After
    /// [`Profile::notice_ns`], the kernel notifies the peers.
    pub fn crash(&self, host: HostId) {
        self.inner.shared.with(|net| net.crash(host, true));
        self.end_tasks(host);
    }

    /// Crashes the machine that the process `host` runs on: its kernel and all its processes end, so other hosts get no
    /// notice.
    pub fn crash_whole_host(&self, host: HostId) {
        let all = self.inner.shared.with(|net| net.processes_on_machine_of(host));
        for process in all {
            self.inner.shared.with(|net| net.crash(process, false));
            self.end_tasks(process);
        }
    }

    /// Restarts a crashed host, without the tasks and fabrics that it had before the crash.
    pub fn restart(&self, host: HostId) {
        self.inner.shared.with(|net| net.restart(host));
    }

    /// Stops the host's processors. Its clock keeps running, and so does its adapter, with the queue pairs that the
    /// adapter drives.
    pub fn pause(&self, host: HostId) {
        self.inner.shared.with(|net| net.pause(host));
    }

    /// Resumes a paused host.
    pub fn resume(&self, host: HostId) {
        self.inner.shared.with(|net| net.resume(host));
        if self.is_running(host) {
            self.inner.tasks.borrow_mut().release(host);
        }
    }

    /// Returns the current properties of the link between two hosts, in this direction.
    pub fn link(&self, from: HostId, to: HostId) -> Link {
        self.inner.shared.with(|net| net.link(from, to))
    }

    /// Changes the link between two hosts, in this direction. Packets that are already on the link are not affected.
    pub fn set_link(&self, from: HostId, to: HostId, link: Link) {
        self.inner.shared.with(|net| net.set_link(from, to, link));
    }

    /// Returns the profile of the hardware between two hosts or processes.
    pub fn profile(&self, one: HostId, other: HostId) -> Profile {
        self.inner.shared.with(|net| net.hardware.profile(net.reach(one, other)).clone())
    }

    // Trace and digest.

    /// Returns a checksum of all events so far. Two runs with equal checksums were the same.
    pub fn digest(&self) -> u64 {
        self.inner.shared.with(|net| net.digest.value())
    }

    /// Sets which trace lines the world keeps from now on.
    pub fn set_trace(&self, trace: Trace) {
        self.inner.is_tracing.set(trace != Trace::Off);
        self.inner.shared.with(|net| net.log.set(trace));
    }

    /// Returns the kept trace lines, oldest first. Each line has a time, a host and a text.
    pub fn trace(&self) -> Vec<String> {
        self.inner.shared.with(|net| net.log.lines())
    }

    /// Adds a line to the trace. The line is formatted only if the world keeps it, and the digest does not include it.
    pub fn note(&self, host: Option<HostId>, what: fmt::Arguments<'_>) {
        if self.inner.is_tracing.get() {
            // The line is formatted before the lock is taken, because formatting may run any code.
            let line = what.to_string();
            self.inner.shared.with(|net| net.note(host, &line));
        }
    }

    /// Includes a number in the digest.
    pub fn fold(&self, number: u64) {
        self.inner.shared.with(|net| net.fold(number));
    }

    /// Returns the counts of events so far.
    pub fn counters(&self) -> Counters {
        self.inner.shared.with(|net| net.counters)
    }

    // Running.

    /// Starts a task on `host`. With `None`, the task has no host, so no crash or pause affects it.
    ///
    /// A task is polled only while its host runs, and dropped when the host crashes. On a host that is down it is
    /// dropped at once.
    pub fn spawn(
        &self,
        host: Option<HostId>,
        name: impl Into<String>,
        future: impl Future<Output = ()> + 'static,
    ) -> TaskId {
        let id = self.inner.tasks.borrow_mut().spawn(host, name.into(), Box::pin(future));
        if host.is_some_and(|host| self.state(host) == HostState::Crashed) {
            self.abort(id);
        }
        id
    }

    /// Returns true if the task has neither ended nor been dropped.
    pub fn is_alive(&self, task: TaskId) -> bool {
        self.inner.tasks.borrow().is_alive(task)
    }

    /// Drops a task at once, or, if the task itself calls this, at its next await.
    pub fn abort(&self, task: TaskId) {
        let removed = self.inner.tasks.borrow_mut().remove(task);
        drop(removed);
    }

    /// Drops all tasks. A world whose tasks own the world is freed only after this call, because each keeps the other
    /// alive.
    pub fn end(&self) {
        let tasks = self.inner.tasks.borrow_mut().remove_all();
        drop(tasks);
    }

    /// Sets the maximum number of further polls and events; unlimited by default. A run that reaches it returns
    /// [`RunEnd::StepsExhausted`].
    pub fn set_steps_max(&self, steps: u64) {
        self.inner.steps_left.set(steps);
    }

    /// Runs until all tasks without a host have ended, and returns the reason why the run ended.
    pub fn run(&self) -> RunEnd {
        self.run_until(u64::MAX)
    }

    /// Runs until all tasks without a host have ended, or until the virtual time is `deadline_ns`. In a world without
    /// such tasks, time always advances to the deadline.
    pub fn run_until(&self, deadline_ns: u64) -> RunEnd {
        let has_hostless = self.inner.tasks.borrow().hostless() > 0;
        loop {
            if let Some(task) = self.poll_ready() {
                return RunEnd::StepsExhausted { task };
            }
            if has_hostless && self.inner.tasks.borrow().hostless() == 0 {
                return RunEnd::Finished;
            }
            match self.inner.shared.with(|net| net.step(deadline_ns)) {
                Step::Advanced { events } => self.count_steps(events),
                Step::DeadlineReached => return RunEnd::DeadlineReached,
                Step::NoEvents if has_hostless || deadline_ns == u64::MAX => {
                    return self.end_without_events();
                }
                Step::NoEvents => {
                    self.inner.shared.with(|net| net.set_now(deadline_ns));
                    return RunEnd::DeadlineReached;
                }
            }
            self.end_killed();
        }
    }

    /// Polls ready tasks. Then, unless `is_done` returns true, executes events until one rings a doorbell or wakes a
    /// task. The caller must not be a task of this world. Fails if no event is left, or the limit of steps is reached.
    pub fn advance_unless(&self, is_done: impl Fn() -> bool) -> Result<(), RunEnd> {
        if let Some(task) = self.poll_ready() {
            return Err(RunEnd::StepsExhausted { task });
        }
        if is_done() {
            return Ok(());
        }
        match self.inner.shared.with(|net| net.step(u64::MAX)) {
            Step::Advanced { events } => self.count_steps(events),
            Step::DeadlineReached | Step::NoEvents => return Err(self.end_without_events()),
        }
        self.end_killed();
        Ok(())
    }

    /// Polls ready tasks until none is left. If the limit of steps is reached, returns the name of the last task.
    fn poll_ready(&self) -> Option<String> {
        let mut polls = 0;
        loop {
            let picked = self.inner.tasks.borrow_mut().pick(&mut self.inner.order.borrow_mut());
            let id = picked?;
            polls += 1;
            if polls > POLLS_PER_INSTANT_MAX || self.inner.steps_left.get() == 0 {
                let mut tasks = self.inner.tasks.borrow_mut();
                tasks.put_back(id);
                return Some(tasks.name(id).to_owned());
            }
            self.poll(id);
        }
    }

    fn poll(&self, id: TaskId) {
        let Some(host) = self.inner.tasks.borrow().host(id) else {
            return;
        };
        if self.inner.shared.with(|net| net.begin_poll(host, id.bits())) == HostState::Paused {
            return self.inner.tasks.borrow_mut().hold(id);
        }
        let Some((mut future, waker)) = self.inner.tasks.borrow_mut().take(id) else {
            return;
        };
        self.count_steps(1);
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        // Values are dropped without borrows, because destructors may call this world.
        match polled {
            Poll::Ready(()) => drop(self.inner.tasks.borrow_mut().remove(id)),
            Poll::Pending => {
                let removed = self.inner.tasks.borrow_mut().restore(id, future);
                drop(removed);
            }
        }
        self.end_killed();
    }

    /// Ends the tasks of killed hosts.
    fn end_killed(&self) {
        while let Some(host) = self.inner.shared.with(Net::poll_killed) {
            self.end_tasks(host);
        }
    }

    fn end_tasks(&self, host: HostId) {
        let tasks = self.inner.tasks.borrow_mut().remove_host(host);
        drop(tasks);
    }

    fn end_without_events(&self) -> RunEnd {
        let tasks = self.inner.tasks.borrow();
        if tasks.alive() == 0 { RunEnd::Finished } else { RunEnd::Stuck { waiting: tasks.names() } }
    }

    fn count_steps(&self, steps: u64) {
        self.inner.steps_left.set(self.inner.steps_left.get().saturating_sub(steps));
    }

    fn state(&self, host: HostId) -> HostState {
        self.inner.shared.with(|net| net.state(host))
    }
}

/// Result of [`Net::step`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Advanced {
        events: u64,
    },
    /// Time has advanced to the deadline, before which no event occurs.
    DeadlineReached,
    NoEvents,
}
