//! Tests that change or count what belongs to a whole process; each holds [`alone`].

#[path = "../common/mod.rs"]
mod common;
mod posted;
mod versions;
mod wakeups;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps the other tests of this process waiting.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
