//! A recurring event, and the tasks that wait for its next occurrence.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::task::{Context, Poll, Waker};

use crate::runtime::locks::{Rank, Ranked, lock};
use crate::runtime::wait::Wakes;

/// An event that occurs repeatedly, for one key `K` or for all keys: handles change, or a member joins.
///
/// A waiter reads [`Event::count`], checks whether it must wait, and then waits until the count exceeds the value that
/// it read. So it misses no event in between. Events of other keys do not wake it.
#[derive(Debug, Default)]
pub(crate) struct Event<K = ()> {
    /// Number of occurrences, for all keys together.
    count: AtomicU64,
    waiting: Mutex<EventWaiters<K>>,
}

impl<K> Ranked for EventWaiters<K> {
    const RANK: Rank = Rank::Innermost;
}

#[derive(Debug, Default)]
struct EventWaiters<K> {
    next: u64,
    /// Wakers of waiters, by key and a unique number of the waiter.
    wakers: BTreeMap<(K, u64), Waker>,
}

impl<K: Ord + Copy> Event<K> {
    /// Returns the number of occurrences so far.
    pub(crate) fn count(&self) -> u64 {
        // Pairs with the Release in trigger() and trigger_for(): a reader of the count also sees the change behind it.
        self.count.load(Acquire)
    }

    /// Triggers the event for all keys.
    pub(crate) fn trigger(&self, wakes: &mut Wakes) {
        let mut waiting = lock(&self.waiting);
        // Pairs with the Acquire in count().
        self.count.fetch_add(1, Release);
        std::mem::take(&mut waiting.wakers).into_values().for_each(|waker| wakes.add(Some(waker)));
    }

    /// Triggers the event for some keys.
    pub(crate) fn trigger_for(&self, keys: &[K], wakes: &mut Wakes) {
        let mut waiting = lock(&self.waiting);
        // As in trigger().
        self.count.fetch_add(1, Release);
        for key in keys {
            let of_key = waiting.wakers.extract_if((*key, 0)..=(*key, u64::MAX), |_, _| true);
            of_key.for_each(|(_, waker)| wakes.add(Some(waker)));
        }
    }

    /// Waits for the event of `key`. Returns at once if any event has occurred since the count was `seen`.
    pub(crate) fn wait_for(&self, seen: u64, key: K) -> EventWait<'_, K> {
        EventWait { event: self, seen, key, id: None }
    }

    #[cfg(test)]
    fn waiter_count(&self) -> usize {
        lock(&self.waiting).wakers.len()
    }
}

impl Event {
    /// Waits until the event has occurred more than `seen` times.
    pub(crate) fn wait(&self, seen: u64) -> EventWait<'_, ()> {
        self.wait_for(seen, ())
    }
}

/// A wait for an event; see [`Event::wait_for`].
#[derive(Debug)]
pub(crate) struct EventWait<'e, K: Ord + Copy> {
    event: &'e Event<K>,
    seen: u64,
    key: K,
    id: Option<u64>,
}

// No field is structurally pinned.
impl<K: Ord + Copy> Unpin for EventWait<'_, K> {}

impl<K: Ord + Copy> Future for EventWait<'_, K> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut waiting = lock(&self.event.waiting);
        // Ordered by the lock, under which the count changes.
        if self.event.count.load(Relaxed) != self.seen {
            return Poll::Ready(());
        }
        if let Some(id) = self.id {
            waiting.wakers.remove(&(self.key, id));
        }
        waiting.next += 1;
        let id = waiting.next;
        waiting.wakers.insert((self.key, id), context.waker().clone());
        drop(waiting);
        self.id = Some(id);
        Poll::Pending
    }
}

impl<K: Ord + Copy> Drop for EventWait<'_, K> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            lock(&self.event.waiting).wakers.remove(&(self.key, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    /// A waker that counts how often it is woken.
    #[derive(Default)]
    struct Counter(AtomicU64);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn counting() -> (Arc<Counter>, Waker) {
        let counter = Arc::new(Counter::default());
        (counter.clone(), Waker::from(counter))
    }

    fn trigger<K: Ord + Copy>(event: &Event<K>) {
        let mut wakes = Wakes::default();
        event.trigger(&mut wakes);
        wakes.wake_all();
    }

    #[test]
    fn a_change_wakes_waiters_of_its_handle_only() {
        let changes = Event::<u32>::default();
        let counters = [(); 3].map(|()| Arc::new(Counter::default()));
        let mut waiters: Vec<_> =
            (0..3).map(|index| Box::pin(changes.wait_for(changes.count(), index))).collect();
        for (waiter, counter) in waiters.iter_mut().zip(&counters) {
            let waker = Waker::from(counter.clone());
            assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        for handle in [1, 7] {
            let mut wakes = Wakes::default();
            changes.trigger_for(&[handle], &mut wakes);
            wakes.wake_all();
        }
        assert_eq!(counters.each_ref().map(|counter| counter.0.load(Relaxed)), [0, 1, 0]);
        trigger(&changes);
        assert_eq!(counters.each_ref().map(|counter| counter.0.load(Relaxed)), [1, 1, 1]);
    }

    #[test]
    fn a_change_before_the_wait_is_not_missed() {
        let changes = Event::<u32>::default();
        let waker = counting().1;
        let seen = changes.count();
        trigger(&changes);
        assert!(pin!(changes.wait_for(seen, 4)).poll(&mut Context::from_waker(&waker)).is_ready());
        {
            let mut after = pin!(changes.wait_for(changes.count(), 4));
            assert!(after.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert!(after.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(changes.waiter_count(), 1);
        }
        assert_eq!(changes.waiter_count(), 0);
    }
}
