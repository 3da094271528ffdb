//! Tests that change or count what belongs to a whole process; each holds [`alone`].

#[path = "../common/mod.rs"]
mod common;
mod roce_many;
mod shm_residue;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps the other tests of this process waiting: a crowd of 64 takes some 900 of the usual 1024 descriptors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
