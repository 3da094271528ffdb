//! Limits the log lines about refused connections: logs the first refusals of each interval, and only counts the later
//! ones.

/// Maximum number of log lines per interval.
pub const LINES_MAX: u32 = 10;
/// Length of an interval, in ns.
const SPAN_NS: u64 = 10_000_000_000;

/// Rate limiter for the log lines about refused connections.
#[derive(Debug, Default)]
pub struct Refusals {
    begun_ns: u64,
    told: u32,
    left_out: u64,
}

impl Refusals {
    /// Calls `line` to log a refusal, or only counts the refusal if the interval already has [`LINES_MAX`] lines.
    pub fn tell(&mut self, now_ns: u64, line: impl FnOnce()) {
        self.tell_left_out(now_ns);
        if now_ns >= self.begun_ns.saturating_add(SPAN_NS) {
            (self.begun_ns, self.told) = (now_ns, 0);
        }
        if self.told < LINES_MAX {
            self.told += 1;
            line();
        } else {
            self.left_out += 1;
        }
    }

    /// Returns the time in ns at which the caller must call [`Refusals::tell_left_out`]; `u64::MAX` if every refusal
    /// has been logged.
    pub fn due_ns(&self) -> u64 {
        if self.left_out == 0 { u64::MAX } else { self.begun_ns.saturating_add(SPAN_NS) }
    }

    /// Logs the number of refusals that were only counted, if the interval has ended. Otherwise has no effect.
    pub fn tell_left_out(&mut self, now_ns: u64) {
        if now_ns >= self.due_ns() {
            let count = std::mem::take(&mut self.left_out);
            tracing::warn!("refused {count} further connections");
        }
    }
}
