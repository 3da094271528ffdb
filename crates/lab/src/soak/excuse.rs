//! Which failures a kill explains.
//!
//! An operation may fail only with an error that says that a node, or what was on it, is gone, and only if one of the nodes
//! that it needs was killed since the operation, or what it works on, began.  The killer notes its victim on the board
//! first, so nobody can see a death before its note.

use std::error::Error;
use std::fmt::Debug;

use halite::{
    AccessCause, AccessError, CallCause, CallError, CopyError, LockCause, LockError, RegionCause,
    RegionError, SendCause, SendError,
};

use super::board::{Board, Cast, unexpected};
use super::{Failure, Result};

/// An error that may come from a kill, or not.
pub trait Excusable: Error + Debug {
    /// Whether it says that a node, or what was on it, is gone.
    fn tells_of_a_kill(&self) -> bool;
}

/// What came of an operation, if no kill has kept it from its end.
pub fn excuse<T, E: Excusable>(
    board: &Board,
    cast: &Cast,
    what: &str,
    ended: std::result::Result<T, E>,
) -> Result<Option<T>> {
    match ended {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.tells_of_a_kill() && board.has_changed(cast)? => Ok(None),
        Err(error) => {
            let Failure(error) = unexpected(error);
            Err(Failure(format!("{what}: {error}; nobody of {:#b} was killed", cast.nodes)))
        }
    }
}

impl Excusable for AccessError {
    fn tells_of_a_kill(&self) -> bool {
        is_lost(&self.cause)
    }
}

impl Excusable for CopyError {
    fn tells_of_a_kill(&self) -> bool {
        is_lost(&self.cause)
    }
}

impl Excusable for RegionError {
    fn tells_of_a_kill(&self) -> bool {
        is_region_lost(&self.cause)
    }
}

impl Excusable for CallError {
    fn tells_of_a_kill(&self) -> bool {
        matches!(self.cause, CallCause::PeerDown | CallCause::UnknownNode)
    }
}

impl Excusable for SendError {
    fn tells_of_a_kill(&self) -> bool {
        matches!(self.cause, SendCause::PeerDown | SendCause::UnknownNode)
    }
}

impl Excusable for LockError {
    fn tells_of_a_kill(&self) -> bool {
        match &self.cause {
            LockCause::PeerDown(_) | LockCause::NotHeld => true,
            LockCause::Region(cause) => is_region_lost(cause),
            _ => false,
        }
    }
}

fn is_lost(cause: &AccessCause) -> bool {
    matches!(cause, AccessCause::PeerDown(_) | AccessCause::Stale)
}

fn is_region_lost(cause: &RegionCause) -> bool {
    matches!(
        cause,
        RegionCause::PeerDown(_)
            | RegionCause::Stale
            | RegionCause::NotFound
            | RegionCause::Lost(_)
            | RegionCause::UnknownNode(_)
    )
}
