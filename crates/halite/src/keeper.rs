//! The keeper: the one housekeeping thread of a node, and the waiter of last resort.
//!
//! It sees to arrivals, timers and jobs while every thread of the application computes or sleeps, and costs
//! nothing while nothing happens.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;

use crate::driver::{Core, PollToken};

/// How long the keeper goes on polling after the last arrival: an answer that follows within this time does not
/// wait for a wake-up by the kernel, and an idle node stops using its processor at once.
const SPIN_NS: u64 = 50_000;

/// The thread; ends when dropped.
pub(crate) struct Keeper {
    core: Arc<Core>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn start(core: Arc<Core>) -> std::io::Result<Keeper> {
        let stopping = Arc::new(AtomicBool::new(false));
        let (shared, stop) = (core.clone(), stopping.clone());
        let builder = std::thread::Builder::new().name("halite-keeper".to_owned());
        let thread = builder.spawn(move || keep(&shared, &stop))?;
        Ok(Keeper { core, stopping, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Pairs with the Acquire in keep(); the ring makes the thread look.
        self.stopping.store(true, Release);
        self.core.ground.fabric.wake();
        let ended = self.thread.take().expect("it is dropped once").join();
        if let Err(panic) = ended
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

fn keep(core: &Core, stopping: &AtomicBool) {
    let _alarm = Alarm(core);
    let fabric = &core.ground.fabric;
    // Pairs with the Release in drop().
    while !stopping.load(Acquire) {
        // Read before polling, so that what rings from here on ends the sleep.
        let seen = fabric.doorbell();
        if let Some(token) = take_token(core) {
            look_after(core, token);
        }
        core.run_jobs();
        fabric.wait(seen, Some(core.begin_sleep()));
        core.end_sleep();
    }
}

/// The poll token; else its holder will ring when it lets go.
fn take_token(core: &Core) -> Option<PollToken<'_>> {
    core.try_token().or_else(|| {
        core.note_missed();
        core.try_token()
    })
}

fn look_after(core: &Core, mut token: PollToken<'_>) {
    let mut quiet_at = 0;
    loop {
        let now = core.now_ns();
        if token.drive() {
            quiet_at = now + SPIN_NS;
        } else if now >= quiet_at || core.has_jobs() {
            return;
        } else {
            // As in PollToken::drive_until().
            std::thread::yield_now();
        }
    }
}

/// Ends all waiting when the keeper panics; `Keeper::drop` then passes the panic on.
struct Alarm<'c>(&'c Core);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail();
        }
    }
}
