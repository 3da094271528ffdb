//! The queue of events that wait for a poll: completions of local requests, the last messages of disconnected peers,
//! and connection changes.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use halite_fabric::Event;

use super::lock;

/// A queue with an atomic length. Posts and polls read the length, which is usually 0, without the lock.
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

    /// Returns the number of events that are not completions.
    pub(super) fn count_connection_events(&self) -> usize {
        lock(&self.queue).iter().filter(|event| !matches!(event, Event::Completed(_))).count()
    }

    pub(super) fn extend(&self, events: impl IntoIterator<Item = Event>) {
        let mut queue = lock(&self.queue);
        queue.extend(events);
        // Pairs with the Acquire in len(), as does the store in take().
        self.len.store(queue.len(), Release);
    }

    /// Moves the oldest events, at most `count_max`, to `events`.
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
