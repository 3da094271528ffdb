//! Synchronisation primitives of the lock-free parts: from the standard library or, while loom checks a model, from
//! loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p halite-mem --release --lib loom` checks the models.

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence},
    sync::{Mutex, MutexGuard},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence},
};

/// Locks `mutex`, even if a thread panicked while it held the lock: critical sections that can panic leave the state
/// consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// `std::thread_local!`, or loom's, which does not support `const` initialisers.
macro_rules! thread_locals {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = const $initial:block;)*) => {
        #[cfg(not(loom))]
        std::thread_local! { $($(#[$attribute])* static $name: $type = const $initial;)* }
        #[cfg(loom)]
        loom::thread_local! { $($(#[$attribute])* static $name: $type = $initial;)* }
    };
}
pub(crate) use thread_locals;
