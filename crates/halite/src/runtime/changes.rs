//! Changes of handles, and the tasks that wait for those of one.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::task::{Context, Poll, Waker};

use halite_tier::access::SlotRef;

use crate::runtime::wait::{Wakes, lock};

/// Handles change again and again: they are frozen, then have another view or are gone.
///
/// A waiter reads [`HandleChanges::count`], looks whether it must wait, and then waits for a change of its handle beyond what it
/// read: a change between the look and the wait is not missed.  Changes of other handles do not wake it.
#[derive(Debug, Default)]
pub(crate) struct HandleChanges {
    /// How often any has changed.
    count: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// By the index of the handle, and a number of the waiter's own.
    wakers: BTreeMap<(u32, u64), Waker>,
}

impl HandleChanges {
    /// How often any handle has changed.
    pub(crate) fn count(&self) -> u64 {
        // Pairs with the Release in happen(): with the count comes the sight of what has changed.
        self.count.load(Acquire)
    }

    /// These have changed, by their indices.
    pub(crate) fn happen(&self, handles: &[u32], wakes: &mut Wakes) {
        let mut waiting = lock(&self.waiting);
        // Pairs with the Acquire in count().
        self.count.fetch_add(1, Release);
        for handle in handles {
            let of_handle = waiting.wakers.extract_if((*handle, 0)..=(*handle, u64::MAX), |_, _| true);
            of_handle.for_each(|(_, waker)| wakes.add(Some(waker)));
        }
    }

    /// No handle will change any more: all who wait look again.
    pub(crate) fn end(&self, wakes: &mut Wakes) {
        let mut waiting = lock(&self.waiting);
        self.count.fetch_add(1, Release);
        wakes.extend(std::mem::take(&mut waiting.wakers).into_values().collect());
    }

    /// Waits until the handle has changed, if none has changed since the count was `seen`.
    pub(crate) fn after(&self, seen: u64, handle: SlotRef) -> After<'_> {
        After { changes: self, seen, handle: handle.index, id: None }
    }
}

/// See [`HandleChanges::after`].
#[derive(Debug)]
pub(crate) struct After<'c> {
    changes: &'c HandleChanges,
    seen: u64,
    handle: u32,
    id: Option<u64>,
}

impl Future for After<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut waiting = lock(&self.changes.waiting);
        // The lock, which happen() holds, orders this.
        if self.changes.count.load(Relaxed) != self.seen {
            return Poll::Ready(());
        }
        if let Some(id) = self.id {
            waiting.wakers.remove(&(self.handle, id));
        }
        waiting.next += 1;
        let id = waiting.next;
        waiting.wakers.insert((self.handle, id), context.waker().clone());
        drop(waiting);
        self.id = Some(id);
        Poll::Pending
    }
}

impl Drop for After<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            lock(&self.changes.waiting).wakers.remove(&(self.handle, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Counter(AtomicU64);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn happen(changes: &HandleChanges, handles: &[u32]) {
        let mut wakes = Wakes::default();
        changes.happen(handles, &mut wakes);
        wakes.wake_all();
    }

    fn handle(index: u32) -> SlotRef {
        SlotRef { index, generation: 1 }
    }

    #[test]
    fn a_change_wakes_who_waits_for_that_handle_and_nobody_else() {
        let changes = HandleChanges::default();
        let counters = [(); 3].map(|()| Arc::new(Counter::default()));
        let mut waiters: Vec<_> =
            (0..3).map(|index| Box::pin(changes.after(changes.count(), handle(index)))).collect();
        for (waiter, counter) in waiters.iter_mut().zip(&counters) {
            let waker = Waker::from(counter.clone());
            assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        happen(&changes, &[1]);
        happen(&changes, &[7]);
        assert_eq!(counters.each_ref().map(|counter| counter.0.load(Relaxed)), [0, 1, 0]);
        let mut wakes = Wakes::default();
        changes.end(&mut wakes);
        wakes.wake_all();
        assert_eq!(counters.each_ref().map(|counter| counter.0.load(Relaxed)), [1, 1, 1]);
    }

    #[test]
    fn a_change_between_the_look_and_the_wait_is_not_missed_and_who_gives_up_leaves_nothing_behind() {
        let changes = HandleChanges::default();
        let waker = Waker::from(Arc::new(Counter::default()));
        let seen = changes.count();
        happen(&changes, &[4]);
        assert!(pin!(changes.after(seen, handle(4))).poll(&mut Context::from_waker(&waker)).is_ready());
        {
            let mut after = pin!(changes.after(changes.count(), handle(4)));
            assert!(after.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert!(after.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(lock(&changes.waiting).wakers.len(), 1);
        }
        assert!(lock(&changes.waiting).wakers.is_empty());
    }
}
