//! What can go wrong with locks and barriers.

use halite_tier::effect::CommandError;
use halite_tier::ids::NodeId;
use halite_tier::message::ErrorReply;

use super::RegionCause;

/// An operation on a lock failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot {operation} lock {name:?}: {cause}")]
pub struct LockError {
    /// What was attempted: `take`, `give up`, ...
    pub operation: &'static str,
    /// On which lock.
    pub name: String,
    /// Why it failed.
    pub cause: LockCause,
}

impl LockError {
    /// Why it failed.
    pub fn cause(&self) -> &LockCause {
        &self.cause
    }
}

/// Why an operation on a lock failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockCause {
    /// Another session holds it, and it was not to be waited for.
    #[error("another session holds the lock")]
    Held,
    /// This session holds it already, or waits for it: a session is the unit that excludes others.
    #[error("this session already holds the lock or waits for it; use one session per thread")]
    AlreadyHeld,
    /// This session does not hold it, or has lost it.
    #[error("this session does not hold the lock")]
    NotHeld,
    /// It was held, and its home may have given it to another: that has heard nothing of this node for a lease, as far as is known
    /// here, or is not the same any more.
    #[error(
        "the lease lapsed: the lock's home has not confirmed this node within it, and may have passed the lock on"
    )]
    Lapsed,
    /// It did not become free in time.
    #[error("the lock was not released in time")]
    Timeout,
    /// Its holder's node has not been heard for a lease, and cannot be cut off: it may go on under the lock if it wakes, so that
    /// nobody else can have it, and nobody knows when that will be.
    #[error(
        "the holder's node {0} is silent and cannot be cut off; end its process, or wait until it resumes"
    )]
    HeldBySilent(NodeId),
    /// The node that the lock lives on is down, and the lock with it: its holder no longer excludes others.
    #[error("node {0}, the lock's home, is down; the next lock call creates the lock anew")]
    PeerDown(NodeId),
    /// The region behind the lock could not be had, or refuses.
    #[error(transparent)]
    Region(RegionCause),
}

/// A barrier was not passed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot pass barrier {name:?}: {cause}")]
pub struct BarrierError {
    /// Which barrier.
    pub name: String,
    /// Why it failed.
    pub cause: BarrierCause,
}

impl BarrierError {
    /// Why it failed.
    pub fn cause(&self) -> &BarrierCause {
        &self.cause
    }
}

/// Why a barrier was not passed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BarrierCause {
    /// Not all participants were there before the first of them had waited for too long.
    #[error("not all participants arrived in time")]
    Timeout,
    /// Those who wait expect another number of participants.
    #[error("the waiting participants expect {expected} participants")]
    Size {
        /// How many they expect.
        expected: u32,
    },
    /// A barrier has at least one participant.
    #[error("a barrier must have at least one participant")]
    NoParticipants,
    /// The node that the barrier lives on is down: maybe others have passed.
    #[error("node {0}, the barrier's home, is down; the next participant creates the barrier anew")]
    PeerDown(NodeId),
    /// The region behind the barrier could not be had, or refuses.
    #[error(transparent)]
    Region(RegionCause),
}

impl From<CommandError> for LockCause {
    fn from(error: CommandError) -> LockCause {
        match error {
            CommandError::Refused(ErrorReply::Held) => LockCause::Held,
            CommandError::Refused(ErrorReply::HeldBySilent(node)) => LockCause::HeldBySilent(node),
            CommandError::Refused(ErrorReply::NotHeld) => LockCause::NotHeld,
            other => LockCause::from(RegionCause::from(other)),
        }
    }
}

impl From<RegionCause> for LockCause {
    fn from(cause: RegionCause) -> LockCause {
        match cause {
            RegionCause::PeerDown(node) => LockCause::PeerDown(node),
            other => LockCause::Region(other),
        }
    }
}

impl From<CommandError> for BarrierCause {
    fn from(error: CommandError) -> BarrierCause {
        match error {
            CommandError::Refused(ErrorReply::Timeout) => BarrierCause::Timeout,
            CommandError::Refused(ErrorReply::Participants { expected }) => BarrierCause::Size { expected },
            other => BarrierCause::from(RegionCause::from(other)),
        }
    }
}

impl From<RegionCause> for BarrierCause {
    fn from(cause: RegionCause) -> BarrierCause {
        match cause {
            RegionCause::PeerDown(node) => BarrierCause::PeerDown(node),
            other => BarrierCause::Region(other),
        }
    }
}
