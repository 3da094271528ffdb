//! Leaving: the steps by which a node leaves its cluster.
//!
//! ```text
//!   handles are stale ──> no operation on peers' memory is in progress ──> "I leave" ──> peers have read it ──> closed
//!                    (at most LEAVE_TIMEOUT)                  (at most LEAVE_TIMEOUT)
//! ```

use std::time::{Duration, Instant};

use halite_fabric::{Fabric, Sleeper};
use halite_mem::Elapsed;

use crate::driver::Driver;
use crate::driver::runner::Runner;
use crate::posted::OperationSnapshot;

/// Time limit for each phase of leaving, in case peers do not read their messages.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Leaving {
    part: Part,
    deadline_ns: u64,
    /// Stale handles. Their indices are not reused until the runner is closed, because the runner may still change
    /// their slots.
    stale: Vec<u32>,
}

#[derive(Debug)]
enum Part {
    /// Waits for the operations that were posted before the snapshot.
    Operations {
        snapshot: OperationSnapshot,
    },
    /// Waits until the peers have read the farewell message.
    Farewell,
    Closed,
}

impl Leaving {
    /// Starts to leave. From now on, no operation begins.
    pub(crate) fn begin(driver: &Driver) -> Leaving {
        driver.set_closed();
        let (stale, _) = retire_handles(driver);
        let snapshot = driver.shared.posted.snapshot_all();
        Leaving { part: Part::Operations { snapshot }, deadline_ns: deadline_ns(driver), stale }
    }

    /// Takes the next step of leaving; the caller drives the node first. Returns true once the runner is closed.
    pub(crate) fn advance(&mut self, driver: &Driver) -> bool {
        let is_late = driver.now_ns() >= self.deadline_ns;
        match &mut self.part {
            Part::Operations { snapshot } => {
                // Peers take "I leave" to mean that this node no longer accesses their memory. If operations are still
                // in progress, the peers learn of their end from the fabric.
                let is_over = driver.look(|runner| is_over(driver, runner, snapshot));
                if is_over {
                    driver.with(|runner, now| runner.leave(now));
                }
                if is_over || is_late {
                    (self.part, self.deadline_ns) = (Part::Farewell, deadline_ns(driver));
                    return self.advance(driver);
                }
            }
            Part::Farewell => {
                if is_late || driver.look(Runner::is_quiet) {
                    driver.with(|runner, _| runner.close());
                    self.part = Part::Closed;
                }
            }
            Part::Closed => {}
        }
        matches!(self.part, Part::Closed)
    }

    /// Returns the handles to pass to [`close`].
    pub(crate) fn into_stale(self) -> Vec<u32> {
        self.stale
    }
}

fn is_over(driver: &Driver, runner: &Runner, snapshot: &mut OperationSnapshot) -> bool {
    let has_commands = runner.engine().is_some_and(|engine| engine.has_commands_under_way());
    driver.shared.posted.is_over(snapshot) && !has_commands
}

fn deadline_ns(driver: &Driver) -> u64 {
    driver.now_ns() + LEAVE_TIMEOUT.as_nanos() as u64
}

/// Ends the node. Retires the handles that were created while the node was leaving, then closes the fabric, which waits
/// until no window behind a handle is in use.
pub(crate) fn close(driver: &Driver, stale: Vec<u32>) {
    let (late, elapsed) = retire_handles(driver);
    for index in stale.into_iter().chain(late) {
        // Fails only if the region was dropped and the engine has reclaimed the handle.
        let _ = driver.shared.path.slots().reclaim(index, elapsed);
    }
    driver.shared.fabric.close();
}

/// Polls a closed fabric, which no other thread polls, until its timers are done. The fabric may have to retransmit
/// messages until its peers acknowledge them.
pub(crate) fn finish_retransmissions(fabric: &dyn Fabric) {
    let deadline = Instant::now() + LEAVE_TIMEOUT;
    fabric.arm(Some(Sleeper::Progress));
    loop {
        let seen = fabric.doorbell();
        fabric.poll(&mut Vec::new());
        let Some(left) = fabric.poll_timeout() else { return };
        let timeout = deadline.saturating_duration_since(Instant::now());
        if timeout.is_zero() {
            return;
        }
        fabric.wait(Sleeper::Progress, seen, Some(left.min(timeout)));
        fabric.arm(Some(Sleeper::Progress));
    }
}

/// Makes all handles stale, and waits until no access is in progress. Returns the handles that this call made stale.
fn retire_handles(driver: &Driver) -> (Vec<u32>, Elapsed) {
    let path = &driver.shared.path;
    let mut handles = Vec::new();
    path.slots().iter_with(|index, _, _| handles.push(index));
    // The engine may have retired a handle meanwhile, and then reclaims it itself.
    handles.retain(|index| path.slots().retire(*index).is_ok());
    let grace = path.pins().start_grace_period();
    loop {
        match grace.elapsed(path.pins()) {
            Some(elapsed) => return (handles, elapsed),
            // A pin lasts for a copy of at most 256 KiB, so this ends.
            None => std::thread::yield_now(),
        }
    }
}
