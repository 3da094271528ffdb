//! The order in which a thread may take this crate's locks.
//!
//! Each type that [`lock`], [`read`] or [`write()`] locks has a [`Rank`]; locks that never nest have none. Builds with
//! debug assertions, including tests, record which locks each thread holds, and panic when a thread takes a lock of a
//! lower or the same rank. The fabric's own locks come after all of these. The poll token has no rank, because threads
//! only try to lock it and never wait for it.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The order of locks: a thread that holds one of them takes only locks that stand later in this list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Rank {
    /// The table of locks that a session has used, by name.
    SessionLocks,
    /// One lock that a session has used.
    SessionLock,
    /// The table of barriers that a session has used.
    SessionBarriers,
    /// The table of services that a session has called by name.
    SessionServices,
    /// The runner, which contains the engine.
    Runner,
    /// The table of peers, with the routes to nodes and the services.
    Peers,
    /// The queue of one function or port.
    Service,
    /// The state of the requests that this node posts to a peer.
    Outbound,
    /// The state of the requests that a peer posts to this node.
    Inbound,
    /// The slots that were lent to links that have ended.
    Orphans,
    /// The table of reply slots.
    Slots,
    /// The unsent answers to a peer's atomics.
    Atomics,
    /// Posts that a fabric has not taken yet, by kind.
    Deferred,
    /// The operations in progress, in one shard of their table.
    InFlight,
    /// The node's own memory, and the waiters of events. A thread that holds one of these takes no other lock.
    Innermost,
}

/// A type whose lock has a rank.
pub(crate) trait Ranked {
    const RANK: Rank;
}

macro_rules! ranked {
    ($($guarded:ty => $rank:ident;)*) => {
        $(
            impl $crate::runtime::locks::Ranked for $guarded {
                const RANK: $crate::runtime::locks::Rank = $crate::runtime::locks::Rank::$rank;
            }
        )*
    };
}
pub(crate) use ranked;

pub(crate) struct RankedGuard<G> {
    guard: G,
    /// Record of the held lock; dropped after the lock is released.
    _record: RankRecord,
}

pub(crate) type Locked<'m, T> = RankedGuard<MutexGuard<'m, T>>;

const POISONED: &str = "a thread panicked inside the node";

/// Locks one of this crate's mutexes. Panics if a thread panicked while it held the mutex, because the node's state is
/// then unreliable; the progress thread then panics too, and ends all waits (see `Driver::fail`).
#[inline]
pub(crate) fn lock<T: Ranked>(mutex: &Mutex<T>) -> Locked<'_, T> {
    // Before waiting for the lock, so that a wrong order is found even without contention.
    let record = RankRecord::take(T::RANK);
    RankedGuard { guard: mutex.lock().expect(POISONED), _record: record }
}

/// Locks for reading. Panics as [`lock`] does.
#[inline]
pub(crate) fn read<T: Ranked>(lock: &RwLock<T>) -> RankedGuard<RwLockReadGuard<'_, T>> {
    let record = RankRecord::take(T::RANK);
    RankedGuard { guard: lock.read().expect(POISONED), _record: record }
}

/// Locks for writing. Panics as [`lock`] does.
#[inline]
pub(crate) fn write<T: Ranked>(lock: &RwLock<T>) -> RankedGuard<RwLockWriteGuard<'_, T>> {
    let record = RankRecord::take(T::RANK);
    RankedGuard { guard: lock.write().expect(POISONED), _record: record }
}

impl<G: Deref> Deref for RankedGuard<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for RankedGuard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(not(debug_assertions))]
struct RankRecord;

#[cfg(not(debug_assertions))]
impl RankRecord {
    #[inline]
    fn take(_: Rank) -> RankRecord {
        RankRecord
    }
}

#[cfg(debug_assertions)]
use checked::RankRecord;

#[cfg(debug_assertions)]
mod checked {
    use std::cell::RefCell;

    use super::Rank;

    thread_local! {
        /// Ranks of the locks that this thread holds, in the order in which it took them.
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// The rank of a held lock, recorded for as long as the lock is held.
    pub(super) struct RankRecord(Rank);

    impl RankRecord {
        pub(super) fn take(rank: Rank) -> RankRecord {
            // A thread that is ending has no thread-local storage, and one that is panicking should not panic again.
            let last = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                let last = held.iter().max().copied();
                held.push(rank);
                last
            });
            let record = RankRecord(rank);
            if let Ok(Some(last)) = last
                && !std::thread::panicking()
            {
                assert!(last < rank, "a lock of rank {rank:?} is taken under one of rank {last:?}");
            }
            record
        }
    }

    impl Drop for RankRecord {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|rank| *rank == self.0) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct First;
    struct Second;
    ranked! {
        First => Runner;
        Second => Slots;
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a lock of rank Runner is taken under one of rank Slots")]
    fn a_lock_out_of_order_is_found() {
        let (first, second) = (Mutex::new(First), RwLock::new(Second));
        let _inner = write(&second);
        let _outer = lock(&first);
    }
}
