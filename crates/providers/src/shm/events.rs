//! Events that wait to be polled: completions of our requests, last messages of peers that left, connection changes.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use halite_fabric::Event;

use super::lock;

/// A queue whose length is known without its lock, for both who posts and who polls look at it each time, and
/// mostly nothing is there.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Written under the lock.
    len: AtomicUsize,
    queue: Mutex<VecDeque<Event>>,
}

impl Events {
    #[inline]
    pub(super) fn len(&self) -> usize {
        // Pairs with the Release in extend() and take().
        self.len.load(Acquire)
    }

    /// How many of them are not ends of requests or arrivals.
    pub(super) fn of_connections(&self) -> usize {
        lock(&self.queue).iter().filter(|event| !matches!(event, Event::Completed(_))).count()
    }

    pub(super) fn extend(&self, events: impl IntoIterator<Item = Event>) {
        let mut queue = lock(&self.queue);
        queue.extend(events);
        // Pairs with the Acquire in len(), as does the one in take().
        self.len.store(queue.len(), Release);
    }

    /// Moves the oldest ones, at most `count_max`, to `events`.
    #[inline]
    pub(super) fn take(&self, events: &mut Vec<Event>, count_max: usize) {
        if self.len() == 0 {
            return;
        }
        let mut queue = lock(&self.queue);
        let count = queue.len().min(count_max);
        events.extend(queue.drain(..count));
        self.len.store(queue.len(), Release);
    }
}
