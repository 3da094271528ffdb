//! Tests that change or count process-wide state; each holds [`alone`].

#[path = "../common/mod.rs"]
mod common;
mod roce_many;
mod shm_residue;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Blocks the other tests of this process: a crowd of 64 senders takes about 900 of the usual 1024 descriptors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
