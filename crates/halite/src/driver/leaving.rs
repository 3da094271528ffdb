//! Leaving: what a node sees to before it is gone.
//!
//! ```text
//!   handles are stale ──> nothing of peers' is touched any more ──> "I leave" ──> all that was said is read ──> closed
//!                    (at most LEAVE_PATIENCE)                (at most LEAVE_PATIENCE)
//! ```

use std::time::{Duration, Instant};

use halite_fabric::{Fabric, Sleeper};
use halite_mem::Elapsed;

use crate::driver::Driver;
use crate::driver::runner::Runner;
use crate::posted::Mark;

/// How long each part of leaving may take, when peers do not read what they are told.
const LEAVE_PATIENCE: Duration = Duration::from_secs(1);

/// How far leaving has come.
#[derive(Debug)]
pub(crate) struct Leaving {
    part: Part,
    deadline_ns: u64,
    /// Handles that are stale.  Until the runner is closed it may still change what is behind them, and nobody else is
    /// given their numbers.
    stale: Vec<u32>,
}

#[derive(Debug)]
enum Part {
    /// What was posted before the mark is under way.
    Ending {
        mark: Mark,
    },
    /// The others are told.
    Telling,
    Closed,
}

impl Leaving {
    /// No operation begins from here on.
    pub(crate) fn begin(driver: &Driver) -> Leaving {
        driver.set_closed();
        let (stale, _) = retire_handles(driver);
        let mark = driver.shared.posted.mark_all();
        Leaving { part: Part::Ending { mark }, deadline_ns: deadline_ns(driver), stale }
    }

    /// Goes on with it, after the node has been moved forward.  Returns whether the runner is closed.
    pub(crate) fn advance(&mut self, driver: &Driver) -> bool {
        let is_late = driver.now_ns() >= self.deadline_ns;
        match &mut self.part {
            Part::Ending { mark } => {
                // Peers take "I leave" to mean that nothing of theirs is touched any more.  Where that is not so, the
                // fabric tells them when it is.
                let is_over = driver.look(|runner| is_over(driver, runner, mark));
                if is_over {
                    driver.with(|runner, now| runner.leave(now));
                }
                if is_over || is_late {
                    (self.part, self.deadline_ns) = (Part::Telling, deadline_ns(driver));
                    return self.advance(driver);
                }
            }
            Part::Telling => {
                if is_late || driver.look(Runner::is_quiet) {
                    driver.with(|runner, _| runner.close());
                    self.part = Part::Closed;
                }
            }
            Part::Closed => {}
        }
        matches!(self.part, Part::Closed)
    }

    /// What [`close`] wants to know.
    pub(crate) fn into_stale(self) -> Vec<u32> {
        self.stale
    }
}

fn is_over(driver: &Driver, runner: &Runner, mark: &mut Mark) -> bool {
    let has_commands = runner.engine().is_some_and(|engine| engine.has_commands_under_way());
    driver.shared.posted.is_over(mark) && !has_commands
}

fn deadline_ns(driver: &Driver) -> u64 {
    driver.now_ns() + LEAVE_PATIENCE.as_nanos() as u64
}

/// The last of a node: handles that came about while it left are stale, too, and the fabric is closed, which waits
/// for the windows behind them all.
pub(crate) fn close(driver: &Driver, stale: Vec<u32>) {
    let (late, elapsed) = retire_handles(driver);
    for index in stale.into_iter().chain(late) {
        // Fails only where the engine, to which the region was dropped meanwhile, has reclaimed it.
        let _ = driver.shared.path.slots().reclaim(index, elapsed);
    }
    driver.shared.fabric.close();
}

/// Polls a fabric that was closed, and that nobody else polls any more, for as long as it has something to do by time: what
/// was said may have to be said again until its peers have heard it.
pub(crate) fn see_out(fabric: &dyn Fabric) {
    let deadline = Instant::now() + LEAVE_PATIENCE;
    fabric.arm(Some(Sleeper::Progress));
    loop {
        let seen = fabric.doorbell();
        fabric.poll(&mut Vec::new());
        let Some(left) = fabric.poll_timeout() else { return };
        let patience = deadline.saturating_duration_since(Instant::now());
        if patience.is_zero() {
            return;
        }
        fabric.wait(Sleeper::Progress, seen, Some(left.min(patience)));
        fabric.arm(Some(Sleeper::Progress));
    }
}

/// Makes all handles stale, and waits until no access is under way.  Returns those that were not stale before.
fn retire_handles(driver: &Driver) -> (Vec<u32>, Elapsed) {
    let path = &driver.shared.path;
    let mut handles = Vec::new();
    path.slots().iter_with(|index, _, _| handles.push(index));
    // The engine may have retired one meanwhile, and reclaims it then.
    handles.retain(|index| path.slots().retire(*index).is_ok());
    let grace = path.pins().start_grace_period();
    loop {
        match grace.elapsed(path.pins()) {
            Some(elapsed) => return (handles, elapsed),
            // A pin is held for the time of a copy of 256 KiB, so this ends.
            None => std::thread::yield_now(),
        }
    }
}
