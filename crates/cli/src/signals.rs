//! Signals that end this program, and processes that end with their parent.
//!
//! A command has three ways to react to a signal: it checks [`Interrupt`] between its steps so that it can undo them,
//! it starts a [`Listener`] that reacts while the command waits, or it sleeps in [`SignalWaiter::wait`]. A child ties
//! itself to its parent with [`die_with`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::SigId;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::{Handle, Signals};

use crate::threads;

/// The signals that request an orderly end.
const TERMINATION_SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Time within which several signals count as one request. For example, `timeout` signals the process and then its
/// process group.
const REQUEST_WINDOW: Duration = Duration::from_millis(200);

/// State that distinguishes a second request from the first.
#[derive(Default, Debug)]
struct Requests {
    first: Option<Instant>,
}

impl Requests {
    /// Returns the state after the first request, which has just arrived.
    fn after_first() -> Requests {
        Requests { first: Some(Instant::now()) }
    }

    /// Ends the process at the second request.
    fn exit_at_second(mut self, mut signals: Signals) {
        if let Some(signal) = signals.forever().find(|_| self.is_second(Instant::now())) {
            std::process::exit(128 + signal);
        }
    }

    /// Returns true if a signal at `now` is a second request.
    fn is_second(&mut self, now: Instant) -> bool {
        let first = *self.first.get_or_insert(now);
        now.saturating_duration_since(first) >= REQUEST_WINDOW
    }
}

/// Number of the signal that requested the end of this process; 0 if none has. A second request ends the process at once.
#[derive(Clone, Default, Debug)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    pub fn listen() -> io::Result<Interrupt> {
        let requested = Arc::new(AtomicUsize::new(0));
        for signal in TERMINATION_SIGNALS {
            signal_hook::flag::register_usize(signal, requested.clone(), signal as usize)?;
        }
        let signals = Signals::new(TERMINATION_SIGNALS)?;
        let listen = move || Requests::default().exit_at_second(signals);
        threads::spawn("halite-signals", listen)?;
        Ok(Interrupt(requested))
    }

    /// Fails if a signal has arrived. `outcome` describes the state that the command leaves.
    pub fn check(&self, outcome: impl FnOnce() -> String) -> Result<(), Interrupted> {
        // Relaxed: the number orders no other memory.
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Interrupted { signal: signal as i32, outcome: outcome() }),
        }
    }
}

/// Makes a second signal end the process at once, until this is dropped. Uses signal handlers, because a thread would
/// take 64 MiB of address space.
#[derive(Debug)]
pub struct ExitOnSecondSignal(Vec<SigId>);

impl ExitOnSecondSignal {
    pub fn listen() -> io::Result<ExitOnSecondSignal> {
        let requested = Arc::new(AtomicBool::new(false));
        let mut handlers = ExitOnSecondSignal(Vec::new());
        for signal in TERMINATION_SIGNALS {
            // The order matters: at the first signal, the shutdown finds the flag unset before it is set; at the
            // second, it finds it set.
            let id =
                signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, requested.clone())?;
            handlers.0.push(id);
            handlers.0.push(signal_hook::flag::register(signal, requested.clone())?);
        }
        Ok(handlers)
    }
}

impl Drop for ExitOnSecondSignal {
    fn drop(&mut self) {
        for id in self.0.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// Makes the next signal end the process at once. The caller has already handled a first signal.
pub fn exit_on_next_signal() -> io::Result<()> {
    let signals = Signals::new(TERMINATION_SIGNALS)?;
    let listen = move || Requests::after_first().exit_at_second(signals);
    threads::spawn("halite-signals", listen)?;
    Ok(())
}

/// Error of a command that was interrupted by a signal before it finished.
#[derive(Debug, thiserror::Error)]
#[error("interrupted: {outcome}")]
pub struct Interrupted {
    /// Number of the signal.
    pub signal: i32,
    /// Description of the state that the command leaves.
    pub outcome: String,
}

impl Interrupted {
    /// Returns the exit status of a process that a signal ends, as in shells.
    pub fn status(&self) -> u8 {
        128 + self.signal as u8
    }
}

/// Catches SIGXFSZ, so that writes beyond the limit of file sizes (`ulimit -f`) fail with an error.
pub fn catch_file_size_signal() {
    // Without a handler, SIGXFSZ ends the process without a message.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Reacts to signals at once, while the command waits for another event.
#[derive(Debug)]
pub struct Listener(Arc<AtomicI32>);

impl Listener {
    /// Starts a thread that calls `first` with the number of the first signal. On the second signal, the thread calls
    /// `second` and ends the process.
    pub fn spawn(
        first: impl FnOnce(i32) + Send + 'static,
        second: impl FnOnce() + Send + 'static,
    ) -> io::Result<Listener> {
        let first_signal = Arc::new(AtomicI32::new(0));
        let stored = first_signal.clone();
        let mut signals = Signals::new(TERMINATION_SIGNALS)?;
        let listen = move || {
            let (mut signals, mut requests) = (signals.forever(), Requests::default());
            if let Some(signal) = signals.next() {
                requests.is_second(Instant::now());
                stored.store(signal, Ordering::Relaxed);
                first(signal);
            }
            if let Some(signal) = signals.find(|_| requests.is_second(Instant::now())) {
                second();
                std::process::exit(128 + signal);
            }
        };
        threads::spawn("halite-signals", listen)?;
        Ok(Listener(first_signal))
    }

    /// Returns the first signal, if one has arrived.
    pub fn first_signal(&self) -> Option<i32> {
        // Relaxed: the number orders no other memory.
        Some(self.0.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

/// The reason why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// A signal asked this process to end.
    Signal(Signal),
    /// A child of this process changed its state.
    Child,
    /// A [`Waker`] ended the wait.
    Closed,
}

/// Ends the waits of a [`SignalWaiter`], the current one and later ones.
#[derive(Clone, Debug)]
pub struct Waker(Handle);

impl Waker {
    pub fn wake(&self) {
        self.0.close();
    }
}

/// Waits until a signal requests the end of this process, a child changes its state, or a [`Waker`] is used.
#[derive(Debug)]
pub struct SignalWaiter(Signals);

impl SignalWaiter {
    /// Starts to receive signals. From now on, no signal is lost, even if no thread waits yet.
    pub fn listen() -> io::Result<SignalWaiter> {
        let mut signals = TERMINATION_SIGNALS.to_vec();
        signals.push(SIGCHLD);
        Signals::new(signals).map(SignalWaiter)
    }

    /// Returns a handle that ends the waits from another thread.
    pub fn waker(&self) -> Waker {
        Waker(self.0.handle())
    }

    /// Sleeps until a signal, a child or a [`Waker`] ends the wait; returns which of them did.
    pub fn wait(&mut self) -> Wake {
        loop {
            // All pending signals are taken, because the next wait would not return for the remaining ones.
            let signals: Vec<i32> = self.0.wait().collect();
            let requested = signals.iter().find(|signal| **signal != SIGCHLD);
            if let Some(signal) = requested.and_then(|signal| Signal::from_named_raw(*signal)) {
                return Wake::Signal(signal);
            }
            if self.0.is_closed() {
                return Wake::Closed;
            }
            if !signals.is_empty() {
                return Wake::Child;
            }
        }
    }
}

/// The reason why this process could not be tied to its parent.
#[derive(Debug, thiserror::Error)]
pub enum ParentDeathError {
    /// The parent died before this process had set its parent-death signal, so the kernel would not send that signal.
    #[error("process {parent}, which started this process, has ended")]
    Orphaned {
        /// Pid of the parent.
        parent: u32,
    },
    /// The operating system refused the request.
    #[error("cannot set the parent-death signal for process {parent}: {source}")]
    Refused {
        /// Pid of the parent.
        parent: u32,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Makes the kernel kill this process when its parent dies.
pub fn die_with(parent: u32) -> Result<(), ParentDeathError> {
    let refused = |error: rustix::io::Errno| ParentDeathError::Refused { parent, source: error.into() };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(refused)?;
    // A parent that died before the request causes no signal.
    let is_ours = getppid().is_some_and(|pid| Pid::as_raw(Some(pid)) as u32 == parent);
    if is_ours { Ok(()) } else { Err(ParentDeathError::Orphaned { parent }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simultaneous_signals_count_once() {
        let (mut requests, begin) = (Requests::default(), Instant::now());
        let mut is_second = |after_ms| requests.is_second(begin + Duration::from_millis(after_ms));
        assert_eq!([0, 0, 3, 199, 200, 5000].map(&mut is_second), [false, false, false, false, true, true]);
    }
}
