//! The queue of events that wait for the poller.

use std::sync::{Condvar, Mutex, MutexGuard};

use halite_fabric::Event;

use super::{POISONED, lock};

/// Maximum number of pending events; receivers then wait for the poller. An event holds at most the bytes of one
/// message.
const WAITING_MAX: usize = 1024;

/// A queue of events; see the header of this file.
#[derive(Debug, Default)]
pub(super) struct Events {
    waiting: Mutex<Vec<Event>>,
    taken: Condvar,
}

impl Events {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        lock(&self.waiting)
    }

    pub(super) fn take(&self, events: &mut Vec<Event>) {
        let mut waiting = self.lock();
        let receivers_wait = waiting.len() >= WAITING_MAX;
        events.append(&mut waiting);
        if receivers_wait {
            self.taken.notify_all();
        }
    }

    /// Returns true if the maximum number of events is pending.
    pub(super) fn is_full(&self) -> bool {
        self.lock().len() >= WAITING_MAX
    }

    /// Blocks the calling thread while the maximum number of events is pending and `is_over` returns false.
    pub(super) fn await_room(&self, is_over: impl Fn() -> bool) {
        let is_full = |waiting: &mut Vec<Event>| waiting.len() >= WAITING_MAX && !is_over();
        drop(self.taken.wait_while(self.lock(), is_full).expect(POISONED));
    }

    /// Wakes the threads in [`Events::await_room`], so that they evaluate `is_over` again.
    pub(super) fn interrupt(&self) {
        // A thread holds this lock from its evaluation of `is_over` until it waits.
        drop(self.lock());
        self.taken.notify_all();
    }
}
