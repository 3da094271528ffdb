//! Waiting: tasks that wait for something to happen next, and threads that wait for a task.
//!
//! Nothing here knows what is waited for.

use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Wakers that are to be called when no lock is held, since they may run anything.
#[derive(Debug, Default)]
pub(crate) struct Wakes(Vec<Waker>);

impl Wakes {
    pub(crate) fn add(&mut self, waker: Option<Waker>) {
        self.0.extend(waker);
    }

    pub(crate) fn extend(&mut self, wakers: Vec<Waker>) {
        self.0.extend(wakers);
    }

    pub(crate) fn wake_all(self) {
        for waker in self.0 {
            waker.wake();
        }
    }
}

/// Something that happens again and again, and the tasks that wait for its next time.
///
/// A waiter reads [`Event::count`], looks whether it must wait, and then waits for the count to go beyond what
/// it read: an event between the look and the wait is not missed.
#[derive(Debug, Default)]
pub(crate) struct Event {
    /// How often it has happened.
    count: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    wakers: Vec<(u64, Waker)>,
}

impl Event {
    /// How often it has happened.
    pub(crate) fn count(&self) -> u64 {
        // Pairs with the Release in happen(): with the count comes the sight of what happened.
        self.count.load(Acquire)
    }

    /// Lets it happen.
    pub(crate) fn happen(&self, wakes: &mut Wakes) {
        let mut waiting = lock(&self.waiting);
        // Pairs with the Acquire in count().
        self.count.fetch_add(1, Release);
        wakes.0.extend(waiting.wakers.drain(..).map(|(_, waker)| waker));
    }

    /// Whether anybody waits.
    #[cfg(test)]
    fn is_awaited(&self) -> bool {
        !lock(&self.waiting).wakers.is_empty()
    }

    /// Waits until it has happened more often than `seen` times.
    pub(crate) fn after(&self, seen: u64) -> After<'_> {
        After { event: self, seen, id: None }
    }
}

/// See [`Event::after`].
#[derive(Debug)]
pub(crate) struct After<'e> {
    event: &'e Event,
    seen: u64,
    id: Option<u64>,
}

impl Future for After<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut waiting = lock(&self.event.waiting);
        // The lock, which happen() holds, orders this.
        if self.event.count.load(Relaxed) != self.seen {
            return Poll::Ready(());
        }
        if let Some(id) = self.id {
            waiting.wakers.retain(|(other, _)| *other != id);
        }
        waiting.next += 1;
        let id = waiting.next;
        waiting.wakers.push((id, context.waker().clone()));
        drop(waiting);
        self.id = Some(id);
        Poll::Pending
    }
}

impl Drop for After<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            lock(&self.event.waiting).wakers.retain(|(other, _)| *other != id);
        }
    }
}

/// A thread that waits for a task of its own.
#[derive(Debug)]
pub(crate) struct Parker {
    thread: Thread,
    notified: AtomicBool,
}

impl Parker {
    /// One for the calling thread.
    pub(crate) fn new() -> Arc<Parker> {
        Arc::new(Parker { thread: std::thread::current(), notified: AtomicBool::new(false) })
    }

    /// Whether the task wants to go on.
    pub(crate) fn is_notified(&self) -> bool {
        // Only a hint: park() synchronises.
        self.notified.load(Relaxed)
    }

    /// Sleeps until the task wants to go on.  Called on the thread that made it.
    pub(crate) fn park(&self) {
        // Acquire pairs with the Release in wake_by_ref().
        while !self.notified.swap(false, AcqRel) {
            std::thread::park();
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Pairs with the Acquire in park().
        if !self.notified.swap(true, Release) {
            self.thread.unpark();
        }
    }
}

/// Locks one of this crate's mutexes.  A thread that panicked under one left a node behind that cannot be trusted
/// any more; the keeper, who meets the panic too, then ends all waiting (see `Core::fail`).
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a thread panicked inside the node")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    /// Counts how often it is woken.
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

    fn happen(event: &Event) {
        let mut wakes = Wakes::default();
        event.happen(&mut wakes);
        wakes.wake_all();
    }

    #[test]
    fn what_happens_between_the_look_and_the_wait_is_not_missed() {
        let event = Event::default();
        let seen = event.count();
        happen(&event);
        let (_, waker) = counting();
        assert!(pin!(event.after(seen)).poll(&mut Context::from_waker(&waker)).is_ready());
    }

    #[test]
    fn a_waiter_is_woken_once_however_often_it_was_polled() {
        let event = Event::default();
        let (counter, waker) = counting();
        let mut after = pin!(event.after(event.count()));
        for _ in 0..3 {
            assert!(after.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        happen(&event);
        assert_eq!(counter.0.load(Relaxed), 1);
        assert!(after.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }

    #[test]
    fn a_waiter_that_gives_up_leaves_nothing_behind() {
        let event = Event::default();
        let (_, waker) = counting();
        {
            let mut after = pin!(event.after(event.count()));
            assert!(after.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert!(event.is_awaited());
        }
        assert!(!event.is_awaited());
    }

    #[test]
    fn a_wake_before_the_park_is_remembered() {
        let parker = Parker::new();
        Waker::from(parker.clone()).wake();
        assert!(parker.is_notified());
        parker.park();
        assert!(!parker.is_notified());
    }
}
