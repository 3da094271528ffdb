//! Receivers that wait for a request of a service.

use std::collections::VecDeque;
use std::task::Waker;

/// The receivers of a service that wait for a request.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    last: u64,
    pub(super) asleep: VecDeque<(u64, Waker)>,
    /// Number of threads that poll, and look at the queue again before they sleep.
    pub(super) awake: usize,
}

impl Receivers {
    #[inline]
    pub(super) fn push(&mut self, waker: Waker) -> u64 {
        self.last += 1;
        self.asleep.push_back((self.last, waker));
        self.last
    }

    pub(super) fn pop(&mut self) -> Option<Waker> {
        self.asleep.pop_front().map(|(_, waker)| waker)
    }

    /// Removes a waiter. Returns true if no request had woken it.
    pub(super) fn forget(&mut self, id: u64) -> bool {
        // The numbers ascend, since receivers are added at the back.
        match self.asleep.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(index) => self.asleep.remove(index).is_some(),
            Err(_) => false,
        }
    }
}
