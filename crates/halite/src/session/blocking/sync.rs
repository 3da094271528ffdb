//! Locks and barriers for threads.

use std::time::Duration;

use halite_tier::permissions::Permissions;

use super::Session;
use crate::error::{BarrierError, LockError};
use crate::session::Who;
use crate::session::lock::{self, Attempt};

/// A held lock. Its methods block; [`crate::Guard`] has the same ones for tasks.
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub struct Guard {
    guard: lock::Guard,
    session: Session,
}

impl Guard {
    /// Returns the fencing token of the lock. See [`crate::Guard::token`].
    pub fn token(&self) -> u64 {
        self.guard.token()
    }

    /// Returns true if the previous holder died while it held the lock. See [`crate::Guard::recovered`].
    pub fn recovered(&self) -> bool {
        self.guard.recovered()
    }

    /// Checks that the lock is still held. See [`crate::Guard::check`].
    pub fn check(&self) -> Result<(), LockError> {
        self.guard.check()
    }

    /// Releases the lock; blocks until it is released. See [`crate::Guard::unlock`].
    pub fn unlock(self) -> Result<(), LockError> {
        self.session.block_on(self.guard.unlock())
    }

    /// Keeps the lock beyond the guard, and returns the fencing token. See [`crate::Guard::keep`].
    pub fn keep(self) -> u64 {
        self.guard.keep()
    }
}

/// Locks and barriers for threads.
impl Session {
    /// Takes a lock; blocks until it is this session's turn. See [`crate::Session::lock`].
    pub fn lock(&self, name: &str) -> Result<Guard, LockError> {
        let Some(session) = self.embedded() else {
            return self.block_on(self.as_async().lock(name)).map(|guard| self.guard(guard));
        };
        let mut attempt = Attempt::begin(session, name)?;
        let guard = match attempt.take_free() {
            Some(guard) => guard,
            None => self.block_on(attempt.take(true))?,
        };
        Ok(self.guard(guard))
    }

    /// Takes a lock if it is free. See [`crate::Session::try_lock`].
    pub fn try_lock(&self, name: &str) -> Result<Guard, LockError> {
        self.block_on(self.as_async().try_lock(name)).map(|guard| self.guard(guard))
    }

    /// Takes a lock; blocks for at most `timeout`. See [`crate::Session::lock_within`].
    pub fn lock_within(&self, name: &str, timeout: Duration) -> Result<Guard, LockError> {
        self.block_on(self.as_async().lock_within(name, timeout)).map(|guard| self.guard(guard))
    }

    /// Checks that this session still holds a lock. See [`crate::Session::check_lock`].
    pub fn check_lock(&self, name: &str) -> Result<(), LockError> {
        self.as_async().check_lock(name)
    }

    forward! {
        fn unlock(name: &str) -> Result<(), LockError>;
        fn create_lock(name: &str, everyone: Permissions) -> Result<(), LockError>;
        fn grant_lock(name: &str, who: Who, permissions: Permissions) -> Result<(), LockError>;
        fn revoke_lock(name: &str, who: Who, permissions: Permissions) -> Result<(), LockError>;
        fn free_lock(name: &str) -> Result<(), LockError>;
        fn barrier(name: &str, participants: u32, timeout: Duration) -> Result<u64, BarrierError>;
        fn create_barrier(name: &str, everyone: Permissions) -> Result<(), BarrierError>;
        fn grant_barrier(name: &str, who: Who, permissions: Permissions) -> Result<(), BarrierError>;
        fn revoke_barrier(name: &str, who: Who, permissions: Permissions) -> Result<(), BarrierError>;
        fn free_barrier(name: &str) -> Result<(), BarrierError>;
    }

    fn guard(&self, guard: lock::Guard) -> Guard {
        Guard { guard, session: self.clone() }
    }
}
