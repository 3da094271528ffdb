//! Signals that ask this program to end, and the processes that end with it.
//!
//! A command looks at [`Interrupt`] between two steps, so that it can undo what it began, has a [`Listener`] answer while
//! it cannot, or sleeps in [`Ending::wait`].  Children are tied to their parent by [`die_with`], which each child calls on itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::SigId;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::{Handle, Signals};

/// The signals by which people and supervisors ask for an orderly end.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Signals so close to each other are of one wish: `timeout`, for one, sends each to the process and then to its group.
const ONE_WISH: Duration = Duration::from_millis(200);

/// Tells the first wish for the end from a second one.
#[derive(Default, Debug)]
struct Wishes {
    first: Option<Instant>,
}

impl Wishes {
    /// The first has come.
    fn begun() -> Wishes {
        Wishes { first: Some(Instant::now()) }
    }

    /// Ends the process at the second.
    fn end_at_second(mut self, mut signals: Signals) {
        if let Some(signal) = signals.forever().find(|_| self.is_second(Instant::now())) {
            std::process::exit(128 + signal);
        }
    }

    /// Whether a signal that comes now is a second wish.
    fn is_second(&mut self, now: Instant) -> bool {
        let first = *self.first.get_or_insert(now);
        now.saturating_duration_since(first) >= ONE_WISH
    }
}

/// Whether somebody asked for the end; the second time, the process ends at once.
#[derive(Clone, Default, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts to listen.
    pub fn listen() -> io::Result<Interrupt> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in ENDING {
            signal_hook::flag::register(signal, asked.clone())?;
        }
        let signals = Signals::new(ENDING)?;
        let listen = move || Wishes::default().end_at_second(signals);
        std::thread::Builder::new().name("halite-signals".to_owned()).spawn(listen)?;
        Ok(Interrupt(asked))
    }

    /// Whether the end was asked for.
    pub fn is_asked(&self) -> bool {
        // Carries no data: only the flag itself matters.
        self.0.load(Ordering::Relaxed)
    }
}

/// Until it is dropped, the second signal ends the process at once.  Without a thread, for each costs a node 64 MiB of addresses.
#[derive(Debug)]
pub struct EndsAtOnce(Vec<SigId>);

impl EndsAtOnce {
    /// Starts to listen.
    pub fn listen() -> io::Result<EndsAtOnce> {
        let asked = Arc::new(AtomicBool::new(false));
        let mut listening = EndsAtOnce(Vec::new());
        for signal in ENDING {
            // In this order: the first signal finds the flag down and raises it, the second finds it up.
            let ends = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, asked.clone())?;
            listening.0.push(ends);
            listening.0.push(signal_hook::flag::register(signal, asked.clone())?);
        }
        Ok(listening)
    }
}

impl Drop for EndsAtOnce {
    fn drop(&mut self) {
        for id in self.0.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// Where the end was asked for a moment ago, ends the process when it is asked for again.
pub fn end_if_asked_again() -> io::Result<()> {
    let signals = Signals::new(ENDING)?;
    let listen = move || Wishes::begun().end_at_second(signals);
    std::thread::Builder::new().name("halite-signals".to_owned()).spawn(listen).map(drop)
}

/// A command did not do what it was asked to, or more than it had to, because somebody asked for the end.
#[derive(Debug, thiserror::Error)]
#[error("interrupted: {outcome}")]
pub struct Interrupted {
    /// The signal by which it was asked.
    pub signal: i32,
    /// What became of what was begun.
    pub outcome: String,
}

impl Interrupted {
    /// The exit status that shells expect of a process that ends by a signal.
    pub fn status(&self) -> u8 {
        128 + self.signal as u8
    }
}

/// Has a file that becomes larger than this process may make one (`ulimit -f`) be an error, where it would end the process
/// without a word.
pub fn refuse_large_files() {
    // Where this cannot be had, the process ends as others do.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Somebody who hears at once that the end is asked for, while the command waits for something else.
#[derive(Debug)]
pub struct Listener(Arc<AtomicI32>);

impl Listener {
    /// Calls `first` on the first signal, on a thread of its own.  On the second it calls `second`, and ends the process.
    pub fn spawn(
        first: impl FnOnce() + Send + 'static,
        second: impl FnOnce() + Send + 'static,
    ) -> io::Result<Listener> {
        let heard = Arc::new(AtomicI32::new(0));
        let hears = heard.clone();
        let mut signals = Signals::new(ENDING)?;
        let listen = move || {
            let (mut signals, mut wishes) = (signals.forever(), Wishes::default());
            if let Some(signal) = signals.next() {
                wishes.is_second(Instant::now());
                hears.store(signal, Ordering::Relaxed);
                first();
            }
            if let Some(signal) = signals.find(|_| wishes.is_second(Instant::now())) {
                second();
                std::process::exit(128 + signal);
            }
        };
        std::thread::Builder::new().name("halite-signals".to_owned()).spawn(listen)?;
        Ok(Listener(heard))
    }

    /// The signal by which the end was asked for.
    pub fn heard(&self) -> Option<i32> {
        // Carries no data: only the number itself matters.
        Some(self.0.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

/// What ended a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// Somebody asked for the end, by that signal.
    Asked(Signal),
    /// A child of this process changed.
    Child,
    /// Somebody else in this process has ended the wait.
    Closed,
}

/// Ends the wait of an [`Ending`], now and for ever.
#[derive(Clone, Debug)]
pub struct Waker(Handle);

impl Waker {
    /// See [`Waker`].
    pub fn wake(&self) {
        self.0.close();
    }
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

    /// To end the wait from another thread.
    pub fn waker(&self) -> Waker {
        Waker(self.0.handle())
    }

    /// Sleeps until one of them happens.
    pub fn wait(&mut self) -> Woken {
        loop {
            // All that are pending, for the next wait would not return for those left over.
            let signals: Vec<i32> = self.0.wait().collect();
            let asked = signals.iter().find(|signal| **signal != SIGCHLD);
            if let Some(signal) = asked.and_then(|signal| Signal::from_named_raw(*signal)) {
                return Woken::Asked(signal);
            }
            if self.0.is_closed() {
                return Woken::Closed;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_come_together_count_once() {
        let (mut wishes, begin) = (Wishes::default(), Instant::now());
        let mut is_second = |after_ms| wishes.is_second(begin + Duration::from_millis(after_ms));
        assert_eq!([0, 0, 3, 199, 200, 5000].map(&mut is_second), [false, false, false, false, true, true]);
    }
}
