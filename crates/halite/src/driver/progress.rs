//! The progress thread: a node's own thread, which waits for arrivals when no other thread does.
//!
//! This thread handles arrivals, timers and jobs while all application threads compute or sleep. It uses no processor
//! time while the node is idle.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;

use halite_fabric::Sleeper;
use halite_providers::scheduling::ask_for_short_slices;
use halite_providers::threads;

use crate::driver::{Driver, Polling};
use crate::runtime::poll_token::NextPoll;
use crate::runtime::wait::{AdaptiveSpin, SPIN_SHORT_NS};

/// The progress thread of a node; stops when this value is dropped.
pub(crate) struct ProgressThread {
    driver: Arc<Driver>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressThread {
    pub(crate) fn start(driver: Arc<Driver>) -> Result<ProgressThread, threads::Refused> {
        let stopping = Arc::new(AtomicBool::new(false));
        let (shared, stop) = (driver.clone(), stopping.clone());
        let thread = threads::spawn("halite-progress", move || run(&shared, &stop))?;
        Ok(ProgressThread { driver, stopping, thread: Some(thread) })
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        // Pairs with the Acquire in run(); the ring wakes the thread.
        self.stopping.store(true, Release);
        self.driver.shared.fabric.wake();
        let ended = self.thread.take().expect("the thread is joined once").join();
        if let Err(panic) = ended
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

fn run(driver: &Driver, stopping: &AtomicBool) {
    let _guard = PanicGuard(driver);
    // If the system refuses, peers wait longer while application threads compute; nothing else changes.
    let _ = ask_for_short_slices();
    let fabric = &driver.shared.fabric;
    let mut arrivals = Arrivals { spin: AdaptiveSpin::NEW, last_ns: 0, quiet_at_ns: 0 };
    arrivals.spin.set_by_packets(fabric.polls_by_system_calls());
    let mut next = NextPoll::WhenRung;
    loop {
        // Read before polling, so that any later ring ends the sleep.
        let seen = fabric.doorbell();
        // Pairs with the Release in drop().
        if stopping.load(Acquire) {
            return;
        }
        let polled = handle_arrivals(driver, &mut arrivals, stopping);
        next = polled.unwrap_or(next.again());
        driver.run_jobs();
        fabric.wait(Sleeper::Progress, seen, Some(driver.begin_sleep(next)));
        driver.end_sleep();
    }
}

/// Handles arrivals until none is likely to follow soon, or the thread is to stop. Returns when to poll next, or `None` if
/// another thread polls.
fn handle_arrivals(driver: &Driver, arrivals: &mut Arrivals, stopping: &AtomicBool) -> Option<NextPoll> {
    while let Some(token) = driver.try_token() {
        let next = poll_until_quiet(driver, token, arrivals, stopping);
        if next.is_some() {
            return next;
        }
    }
    driver.run_due_timers();
    None
}

/// Polls until no arrival is likely to follow soon. Returns `None` early if this thread had to give up the token to
/// wake tasks.
fn poll_until_quiet(
    driver: &Driver,
    mut token: Polling<'_>,
    arrivals: &mut Arrivals,
    stopping: &AtomicBool,
) -> Option<NextPoll> {
    let fabric = &driver.shared.fabric;
    loop {
        let (now, traffic) = (driver.now_ns(), fabric.traffic());
        // Direct accesses by peers cause no event, and more of them follow as closely as arrivals do.
        if token.drive_at(now) || fabric.traffic() != traffic {
            arrivals.record(now);
        }
        let woke = token.has_wakes();
        // A caller that waits for its answer polls better, since it needs no wake-up.
        let leaves = now >= arrivals.quiet_at_ns || driver.has_jobs() || driver.has_polling_caller();
        // A peer that never falls silent does not keep this node from closing.
        let leaves = leaves || stopping.load(Acquire);
        if woke || leaves {
            let next = token.release_by_progress(now);
            return if woke { None } else { Some(next) };
        }
        // As in the driver's Spin::pause(): a short spin ends before it yields.
        if now - arrivals.last_ns >= SPIN_SHORT_NS && driver.yield_processor() {
            arrivals.record_contention(now);
        }
    }
}

/// Measures the time between arrivals, to decide how long to spin. Arrivals during a spin need no wake-up by the
/// kernel, but an idle node should release its core at once.
struct Arrivals {
    spin: AdaptiveSpin,
    last_ns: u64,
    /// Deadline of the current spin.
    quiet_at_ns: u64,
}

impl Arrivals {
    fn record(&mut self, now_ns: u64) {
        self.spin.record_wait(now_ns - self.last_ns);
        self.last_ns = now_ns;
        self.quiet_at_ns = now_ns + self.spin.spin_ns();
    }

    /// Ends the spin, because the core is contended.
    fn record_contention(&mut self, now_ns: u64) {
        self.spin.record_contention();
        self.quiet_at_ns = now_ns;
    }
}

/// Polling by a thread that serves attached sessions.
impl Driver {
    /// Handles arrivals as a waiting caller does: the progress thread gives up the token. The thread must soon call
    /// this again, or [`Driver::rest`].
    pub(crate) fn poll_as_caller(&self) {
        if let Some(mut token) = self.token_of_progress_thread() {
            token.drive();
        }
    }

    /// Lets later arrivals wake the progress thread. For a thread that stops polling.
    pub(crate) fn rest(&self) {
        if let Some(mut token) = self.token_of_progress_thread() {
            token.drive();
            token.release_armed();
        }
    }
}

/// Ends all waits if the progress thread panics; `ProgressThread::drop` then resumes the panic.
struct PanicGuard<'c>(&'c Driver);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail();
        }
    }
}
