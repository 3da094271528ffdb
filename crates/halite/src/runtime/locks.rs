//! The order in which a thread may take this crate's locks.
//!
//! Each type that [`lock`] and its like lock has a [`Rank`]; locks that nest with no other are taken without them.  Builds with debug assertions, tests among them,
//! remember what each thread holds, and panic where one takes a lock that stands before, or beside, one that it holds.  The fabric's own locks come after
//! all of these; the poll token is none of them, for it is only ever tried.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The order: a thread that holds one of these takes only later ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Rank {
    /// The locks that a session knows by name.
    SessionLocks,
    /// One of them.
    SessionLock,
    /// The barriers that a session knows.
    SessionBarriers,
    /// The runner, in which the engine is.
    Runner,
    /// The table of peers, with the ways to nodes and the services.
    Peers,
    /// The queue of one function or port.
    Service,
    /// What this node posts to a peer.
    Outbound,
    /// What a peer posts to this node.
    Inbound,
    /// Slots that are lent to links that are over.
    Orphans,
    /// The slots that replies go to.
    Slots,
    /// Answers to a peer's atomics.
    Atomics,
    /// What a fabric did not take yet, by what it is.
    HeldBack,
    /// Operations under way, of one shard.
    InFlight,
    /// Memory of the node's own, and those who wait for something: no other is taken under one.
    Innermost,
}

/// What a lock guards.
pub(crate) trait Ranked {
    /// Where its lock stands.
    const RANK: Rank;
}

/// Gives types their ranks.
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

/// A lock that is held.
pub(crate) struct Held<G> {
    guard: G,
    /// Given up after the lock.
    _place: Place,
}

/// A locked mutex.
pub(crate) type Locked<'m, T> = Held<MutexGuard<'m, T>>;

const POISONED: &str = "a thread panicked inside the node";

/// Locks one of this crate's mutexes.  A thread that panicked under one left a node behind that cannot be trusted
/// any more; the progress thread, who meets the panic too, then ends all waiting (see `Driver::fail`).
#[inline]
pub(crate) fn lock<T: Ranked>(mutex: &Mutex<T>) -> Locked<'_, T> {
    // Before the lock is waited for, so that a wrong order is found though nobody holds it.
    let place = Place::take(T::RANK);
    Held { guard: mutex.lock().expect(POISONED), _place: place }
}

/// As [`lock`], for readers.
#[inline]
pub(crate) fn read<T: Ranked>(lock: &RwLock<T>) -> Held<RwLockReadGuard<'_, T>> {
    let place = Place::take(T::RANK);
    Held { guard: lock.read().expect(POISONED), _place: place }
}

/// As [`lock`], for a writer.
#[inline]
pub(crate) fn write<T: Ranked>(lock: &RwLock<T>) -> Held<RwLockWriteGuard<'_, T>> {
    let place = Place::take(T::RANK);
    Held { guard: lock.write().expect(POISONED), _place: place }
}

impl<G: Deref> Deref for Held<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Held<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(not(debug_assertions))]
struct Place;

#[cfg(not(debug_assertions))]
impl Place {
    #[inline]
    fn take(_: Rank) -> Place {
        Place
    }
}

#[cfg(debug_assertions)]
use checked::Place;

#[cfg(debug_assertions)]
mod checked {
    use std::cell::RefCell;

    use super::Rank;

    thread_local! {
        /// What this thread holds, in its order.
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// The place of a lock in the order, held for as long as the lock.
    pub(super) struct Place(Rank);

    impl Place {
        pub(super) fn take(rank: Rank) -> Place {
            // A thread that is ending remembers nothing any more, and one that panics has said enough.
            let last = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                let last = held.iter().max().copied();
                held.push(rank);
                last
            });
            let place = Place(rank);
            if let Ok(Some(last)) = last
                && !std::thread::panicking()
            {
                assert!(last < rank, "a lock of rank {rank:?} is taken under one of rank {last:?}");
            }
            place
        }
    }

    impl Drop for Place {
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
