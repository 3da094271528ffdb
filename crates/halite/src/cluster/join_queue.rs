//! How long a node that joins waits for others that join before it.

use std::time::{Duration, Instant};

/// A wait for one joiner after the other: each may take its time, but none may keep all others out.
#[derive(Debug)]
pub(crate) struct JoinQueue<H> {
    begin: Instant,
    patience: Duration,
    /// Who joins, and since when.
    current: Option<(H, Instant)>,
}

impl<H: PartialEq> JoinQueue<H> {
    /// Waits for `patience` at most for each joiner.
    pub(crate) fn new(now: Instant, patience: Duration) -> JoinQueue<H> {
        JoinQueue { begin: now, patience, current: None }
    }

    /// After how long to look again, while `holder` joins; `None` once it has been joining for too long.
    ///
    /// The longer the queue, the less often each looks: hundreds that look every millisecond would take the processor
    /// from the one that joins.
    pub(crate) fn next_look(&mut self, now: Instant, holder: H) -> Option<Duration> {
        let since = match &self.current {
            Some((current, since)) if *current == holder => *since,
            _ => now,
        };
        if self.current.is_some() && now - since >= self.patience {
            return None;
        }
        self.current = Some((holder, since));
        Some(((now - self.begin) / 16).clamp(LOOK_MIN, LOOK_MAX))
    }
}

/// A joiner alone takes milliseconds.
const LOOK_MIN: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_join_queue_that_stands_still_times_out() {
        let begin = Instant::now();
        let mut queue = JoinQueue::new(begin, PATIENCE);
        assert!(queue.next_look(begin, 1).is_some());
        assert!(queue.next_look(begin + seconds(3), 2).is_some());
        assert!(queue.next_look(begin + seconds(12), 2).is_some());
        assert_eq!(queue.next_look(begin + seconds(13), 2), None);
    }
}
