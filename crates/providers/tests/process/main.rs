//! Tests that change or count process-wide state, so they run one at a time ([`serialize`]).

#[path = "../common/mod.rs"]
mod common;
mod roce_many;
mod shm_residue;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Blocks the other tests of this process until the guard is dropped. One of the tests takes about 900 of the usual
/// 1024 descriptors.
fn serialize() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}
