//! The queue of events that wait for the poller.

use std::sync::{Condvar, Mutex, MutexGuard};

use halite_fabric::Event;

use super::{POISONED, lock};

/// Maximum number of pending events; when it is reached, receivers wait for the poller. An event holds at most the
/// bytes of one message.
const PENDING_MAX: usize = 1024;

/// A queue of events; see the header of this file.
#[derive(Debug, Default)]
pub(super) struct Events {
    pending: Mutex<Vec<Event>>,
    /// Signalled when the poller takes events from a full queue.
    has_room: Condvar,
}

impl Events {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        lock(&self.pending)
    }

    pub(super) fn take(&self, events: &mut Vec<Event>) {
        let mut pending = self.lock();
        let was_full = pending.len() >= PENDING_MAX;
        events.append(&mut pending);
        if was_full {
            self.has_room.notify_all();
        }
    }

    /// Returns true if the maximum number of events is pending.
    pub(super) fn is_full(&self) -> bool {
        self.lock().len() >= PENDING_MAX
    }

    /// Blocks the calling thread while the maximum number of events is pending and `must_exit` returns false.
    pub(super) fn await_room(&self, must_exit: impl Fn() -> bool) {
        let must_wait = |pending: &mut Vec<Event>| pending.len() >= PENDING_MAX && !must_exit();
        drop(self.has_room.wait_while(self.lock(), must_wait).expect(POISONED));
    }

    /// Wakes the threads in [`Events::await_room`], so that they call `must_exit` again.
    pub(super) fn interrupt(&self) {
        // A thread holds this lock from its call of `must_exit` until it waits.
        drop(self.lock());
        self.has_room.notify_all();
    }
}
