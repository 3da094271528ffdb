//! The progress thread: the one housekeeping thread of a node, and the waiter of last resort.
//!
//! It sees to arrivals, timers and jobs while every thread of the application computes or sleeps, and costs
//! nothing while nothing happens.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;

use halite_fabric::Sleeper;
use halite_providers::scheduling::ask_for_short_slices;

use crate::driver::{Driver, Polling};
use crate::runtime::poll_token::NextPoll;
use crate::runtime::wait::{AdaptiveSpin, SPIN_SHORT_NS};

/// The thread; ends when dropped.
pub(crate) struct ProgressThread {
    driver: Arc<Driver>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressThread {
    pub(crate) fn start(driver: Arc<Driver>) -> std::io::Result<ProgressThread> {
        let stopping = Arc::new(AtomicBool::new(false));
        let (shared, stop) = (driver.clone(), stopping.clone());
        let builder = std::thread::Builder::new().name("halite-progress".to_owned());
        let thread = builder.spawn(move || keep(&shared, &stop))?;
        Ok(ProgressThread { driver, stopping, thread: Some(thread) })
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        // Pairs with the Acquire in keep(); the ring makes the thread look.
        self.stopping.store(true, Release);
        self.driver.shared.fabric.wake();
        let ended = self.thread.take().expect("it is dropped once").join();
        if let Err(panic) = ended
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

fn keep(driver: &Driver, stopping: &AtomicBool) {
    let _guard = PanicGuard(driver);
    // Where that is refused, peers wait longer while our threads compute, and nothing else changes.
    let _ = ask_for_short_slices();
    let fabric = &driver.shared.fabric;
    let mut arrivals = Arrivals { patience: AdaptiveSpin::NEW, last_ns: 0, quiet_at_ns: 0 };
    arrivals.patience.set_by_packets(fabric.polls_by_system_calls());
    let mut look = NextPoll::WhenRung;
    loop {
        // Read before anything is looked at, so that what rings from here on ends the sleep.
        let seen = fabric.doorbell();
        // Pairs with the Release in drop().
        if stopping.load(Acquire) {
            return;
        }
        let looked = look_after(driver, &mut arrivals);
        look = looked.unwrap_or(look.again());
        driver.run_jobs();
        fabric.wait(Sleeper::Progress, seen, Some(driver.begin_sleep(look, looked.is_none())));
        driver.end_sleep();
    }
}

/// Takes in what has arrived, and what follows on its heels.  Returns when to look again; `None` if somebody else polls.
fn look_after(driver: &Driver, arrivals: &mut Arrivals) -> Option<NextPoll> {
    while let Some(token) = driver.try_token() {
        let look = poll_until_quiet(driver, token, arrivals);
        if look.is_some() {
            return look;
        }
    }
    driver.see_to_what_is_due();
    None
}

/// Polls until nothing is likely to follow.  Returns early, with nothing, if the token had to be given up for
/// somebody to be woken.
fn poll_until_quiet(driver: &Driver, mut token: Polling<'_>, arrivals: &mut Arrivals) -> Option<NextPoll> {
    let fabric = &driver.shared.fabric;
    loop {
        let (now, traffic) = (driver.now_ns(), fabric.traffic());
        // What peers write or read here brings no event, and more of it follows as closely.
        if token.drive_at(now) || fabric.traffic() != traffic {
            arrivals.note(now);
        }
        let woke = token.has_wakes();
        // A caller that waits for its answer polls better: it need not be woken.
        let leaves = now >= arrivals.quiet_at_ns || driver.has_jobs() || driver.has_polling_caller();
        if woke || leaves {
            let look = token.keep(now);
            return if woke { None } else { Some(look) };
        }
        // As in the driver's Spin::pause(): a short spin ends before it yields.
        if now - arrivals.last_ns >= SPIN_SHORT_NS && driver.yield_processor() {
            arrivals.note_crowd(now);
        }
    }
}

/// How closely arrivals follow each other: what comes during a spin does not wait for a wake-up by the kernel, but
/// an idle node is to stop using its processor at once.
struct Arrivals {
    patience: AdaptiveSpin,
    last_ns: u64,
    /// Until when the next one is polled for.
    quiet_at_ns: u64,
}

impl Arrivals {
    fn note(&mut self, now_ns: u64) {
        self.patience.note_wait(now_ns - self.last_ns);
        self.last_ns = now_ns;
        self.quiet_at_ns = now_ns + self.patience.spin_ns();
    }

    /// Others want the processor.
    fn note_crowd(&mut self, now_ns: u64) {
        self.patience.note_crowd();
        self.quiet_at_ns = now_ns;
    }
}

/// Ends all waiting when the progress thread panics; `ProgressThread::drop` then passes the panic on.
struct PanicGuard<'c>(&'c Driver);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail();
        }
    }
}
