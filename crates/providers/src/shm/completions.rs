//! Completions that wait to be polled: of our own requests, and the last words of peers that left.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use halite_fabric::Completion;

use super::lock;

/// A queue whose length is known without its lock, for both who posts and who polls look at it each time, and
/// mostly nothing is there.
#[derive(Debug, Default)]
pub(super) struct Completions {
    /// Written under the lock.
    len: AtomicUsize,
    queue: Mutex<VecDeque<Completion>>,
}

impl Completions {
    #[inline]
    pub(super) fn len(&self) -> usize {
        // Pairs with the Release in extend() and take().
        self.len.load(Acquire)
    }

    pub(super) fn extend(&self, completions: impl IntoIterator<Item = Completion>) {
        let mut queue = lock(&self.queue);
        queue.extend(completions);
        // Pairs with the Acquire in len(), as does the one in take().
        self.len.store(queue.len(), Release);
    }

    /// Moves the oldest ones, at most `count_max`, to `completions`.
    #[inline]
    pub(super) fn take(&self, completions: &mut Vec<Completion>, count_max: usize) {
        if self.len() == 0 {
            return;
        }
        let mut queue = lock(&self.queue);
        let count = queue.len().min(count_max);
        completions.extend(queue.drain(..count));
        self.len.store(queue.len(), Release);
    }
}
