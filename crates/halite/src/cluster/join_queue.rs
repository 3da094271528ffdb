//! Limits how long a joining node waits for the nodes that join before it.

use std::time::{Duration, Instant};

/// A wait for other joining nodes, one after the other. Each has its own time limit, so none can block the queue.
#[derive(Debug)]
pub(crate) struct JoinQueue<H> {
    begin: Instant,
    timeout: Duration,
    /// The node that holds the join lock, and the time at which this wait first saw it.
    current: Option<(H, Instant)>,
}

impl<H: PartialEq> JoinQueue<H> {
    /// Starts a wait of at most `timeout` per joining node.
    pub(crate) fn new(now: Instant, timeout: Duration) -> JoinQueue<H> {
        JoinQueue { begin: now, timeout, current: None }
    }

    /// Returns the time until the next check while `holder` is joining; `None` if it has been joining for longer than
    /// `timeout`.
    ///
    /// The longer the queue, the longer the interval: hundreds of nodes that check every millisecond would take the
    /// processor from the joining node.
    pub(crate) fn next_check(&mut self, now: Instant, holder: H) -> Option<Duration> {
        let since = match &self.current {
            Some((current, since)) if *current == holder => *since,
            _ => now,
        };
        if self.current.is_some() && now - since >= self.timeout {
            return None;
        }
        self.current = Some((holder, since));
        Some(((now - self.begin) / 16).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX))
    }
}

/// Minimum interval between checks: one join takes milliseconds.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(1);
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_blocked_join_queue_times_out() {
        let begin = Instant::now();
        let mut queue = JoinQueue::new(begin, TIMEOUT);
        assert!(queue.next_check(begin, 1).is_some());
        assert!(queue.next_check(begin + seconds(3), 2).is_some());
        assert!(queue.next_check(begin + seconds(12), 2).is_some());
        assert_eq!(queue.next_check(begin + seconds(13), 2), None);
    }
}
