//! How many bytes of a stream arrive in a while.

use std::time::{Duration, Instant};

/// Counts from when the stream has run for some time.
pub(super) struct Meter {
    begin: Instant,
    warm_up: Duration,
    time: Duration,
    from: Option<Instant>,
    /// What has arrived: its owner adds to it.
    pub(super) bytes: usize,
}

impl Meter {
    pub(super) fn new(warm_up: Duration, time: Duration) -> Meter {
        Meter { begin: Instant::now(), warm_up, time, from: None, bytes: 0 }
    }

    /// To be called before each read.  In the end, how much it was, in megabits a second.
    pub(super) fn look(&mut self) -> Option<f64> {
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
