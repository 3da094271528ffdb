//! The time of a run, so that a run in virtual time is possible.

use std::pin::Pin;
use std::time::{Duration, Instant};

/// A pause of a worker.
pub type Pause<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Measures the phases of a run, and lets workers pause.
pub trait Clock: Sync {
    /// Returns the time since any fixed moment, in ns.
    fn now_ns(&self) -> u64;

    /// Pauses a worker that has nothing to do.
    fn pause(&self, duration: Duration) -> Pause<'_>;
}

/// The clock of this host, for workers that each have a thread: a pause blocks it.
#[derive(Clone, Copy, Debug)]
pub struct HostClock(Instant);

impl Default for HostClock {
    fn default() -> HostClock {
        HostClock(Instant::now())
    }
}

impl Clock for HostClock {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    fn pause(&self, duration: Duration) -> Pause<'_> {
        Box::pin(async move { std::thread::sleep(duration) })
    }
}
