//! Limits the number of log lines about refused connections: logs the first refusals of each interval, and only counts
//! the later refusals.

/// Maximum number of log lines per interval.
pub const LINES_MAX: u32 = 10;
/// Length of an interval, in ns.
const SPAN_NS: u64 = 10_000_000_000;

/// Rate limiter for the log lines about refused connections.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Start of the interval.
    begin_ns: u64,
    /// Number of refusals logged in the interval.
    logged: u32,
    /// Number of refusals that were only counted.
    suppressed: u64,
}

impl Refusals {
    /// Calls `line`, which must log a refusal. If the interval already has [`LINES_MAX`] lines, only counts the
    /// refusal.
    pub fn tell(&mut self, now_ns: u64, line: impl FnOnce()) {
        self.tell_left_out(now_ns);
        if now_ns >= self.begin_ns.saturating_add(SPAN_NS) {
            (self.begin_ns, self.logged) = (now_ns, 0);
        }
        if self.logged < LINES_MAX {
            self.logged += 1;
            line();
        } else {
            self.suppressed += 1;
        }
    }

    /// Returns the time in ns at which the caller must call [`Refusals::tell_left_out`]; `u64::MAX` if every refusal
    /// has been logged.
    pub fn due_ns(&self) -> u64 {
        if self.suppressed == 0 { u64::MAX } else { self.begin_ns.saturating_add(SPAN_NS) }
    }

    /// Logs the number of refusals that were only counted. Has no effect before the end of the interval.
    pub fn tell_left_out(&mut self, now_ns: u64) {
        if now_ns >= self.due_ns() {
            let count = std::mem::take(&mut self.suppressed);
            tracing::warn!("refused {count} further connections");
        }
    }
}
