//! The state that tasks, clocks and fabrics of one world share.
//!
//! Everything runs in one thread. There is a lock only because a fabric must be `Sync`. The lock is never held while a
//! waker or other foreign code runs.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use crate::net::Net;

/// A timer: its time and a unique number.
pub(crate) type TimerKey = (u64, u64);

pub(crate) struct Shared {
    /// The network's time, for clocks, which read it often and without the lock.
    now_ns: Arc<AtomicU64>,
    net: Mutex<Net>,
}

impl Shared {
    pub(crate) fn new(net: Net) -> Arc<Shared> {
        Arc::new(Shared { now_ns: net.clock(), net: Mutex::new(net) })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        // Relaxed: a world runs in one thread.
        self.now_ns.load(Relaxed)
    }

    /// Calls `change` with the network, and then wakes the tasks that it made ready.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut Net) -> R) -> R {
        let (result, wakers) = {
            let mut net = self.net.lock().expect("the network does not panic");
            let result = change(&mut net);
            (result, net.take_wakers())
        };
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    pub(crate) fn set_timer(&self, due_ns: u64, waker: Waker) -> TimerKey {
        self.with(|net| net.set_timer(due_ns, waker))
    }

    pub(crate) fn cancel_timer(&self, timer: TimerKey) {
        // The waker is dropped without the lock, because it may own the last reference to a task.
        let waker = self.with(|net| net.cancel_timer(timer));
        drop(waker);
    }
}
