//! Tests that change or count state of the whole process; each holds [`alone`].

#[path = "../common/mod.rs"]
mod common;
mod footprint;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Blocks the other tests of this process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
