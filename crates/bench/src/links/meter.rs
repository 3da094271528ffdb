//! Measures the throughput of a stream.

use std::time::{Duration, Instant};

/// Counts bytes after a warm-up.
pub(super) struct Meter {
    begin: Instant,
    warm_up: Duration,
    time: Duration,
    from: Option<Instant>,
    /// Bytes received since the start of the measurement; the owner of the meter adds to it.
    pub(super) bytes: usize,
}

impl Meter {
    pub(super) fn new(warm_up: Duration, time: Duration) -> Meter {
        Meter { begin: Instant::now(), warm_up, time, from: None, bytes: 0 }
    }

    /// Starts the measurement after the warm-up. Returns the throughput in megabits per second once the measurement is
    /// over. The receiver calls this before each read.
    pub(super) fn poll(&mut self) -> Option<f64> {
        let now = Instant::now();
        match self.from {
            None if now - self.begin >= self.warm_up => (self.from, self.bytes) = (Some(now), 0),
            Some(from) if now - from >= self.time => {
                return Some(self.bytes as f64 * 8.0 / 1e6 / (now - from).as_secs_f64());
            }
            _ => {}
        }
        None
    }
}
