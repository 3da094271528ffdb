//! Signals that ask this program to end, and the processes that end with it.
//!
//! A command either looks at [`Interrupt`] between two steps, so that it can undo what it began, or sleeps in
//! [`Ending::wait`].  Children are tied to their parent by [`die_with`], which each child calls on itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The signals by which people and supervisors ask for an orderly end.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Whether somebody asked for the end; the second time, the process ends at once.
#[derive(Clone, Default, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts to listen.
    pub fn listen() -> io::Result<Interrupt> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in ENDING {
            // In this order: the first signal finds the flag down and raises it, the second finds it up.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, asked.clone())?;
            signal_hook::flag::register(signal, asked.clone())?;
        }
        Ok(Interrupt(asked))
    }

    /// Whether the end was asked for.
    pub fn is_asked(&self) -> bool {
        // Carries no data: only the flag itself matters.
        self.0.load(Ordering::Relaxed)
    }
}

/// What ended a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// Somebody asked for the end.
    Asked,
    /// A child of this process changed.
    Child,
}

/// Sleeps until the end is asked for, or a child ends.
#[derive(Debug)]
pub struct Ending(Signals);

impl Ending {
    /// Starts to listen; signals from now on are not lost even if nobody waits yet.
    pub fn listen() -> io::Result<Ending> {
        let mut signals = ENDING.to_vec();
        signals.push(SIGCHLD);
        Signals::new(signals).map(Ending)
    }

    /// Sleeps until one of the two happens.
    pub fn wait(&mut self) -> Woken {
        loop {
            // All that are pending, for the next wait would not return for those left over.
            let signals: Vec<i32> = self.0.wait().collect();
            if signals.iter().any(|signal| *signal != SIGCHLD) {
                return Woken::Asked;
            }
            if !signals.is_empty() {
                return Woken::Child;
            }
        }
    }
}

/// Why this process could not be tied to its parent.
#[derive(Debug, thiserror::Error)]
pub enum TetherError {
    /// The parent died before this process could ask to die with it.
    #[error("process {parent}, which asked for this one, is gone")]
    Orphaned {
        /// Its pid.
        parent: u32,
    },
    /// The operating system refused.
    #[error("cannot ask to end together with process {parent}: {source}")]
    Refused {
        /// Its pid.
        parent: u32,
        /// What it said.
        source: io::Error,
    },
}

/// Asks the kernel to kill this process when its parent, `parent`, dies in whatever way.
pub fn die_with(parent: u32) -> Result<(), TetherError> {
    let refused = |error: rustix::io::Errno| TetherError::Refused { parent, source: error.into() };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(refused)?;
    // The kernel only tells of deaths after the request, so look whether it came too late.
    let is_ours = getppid().is_some_and(|pid| Pid::as_raw(Some(pid)) as u32 == parent);
    if is_ours { Ok(()) } else { Err(TetherError::Orphaned { parent }) }
}
