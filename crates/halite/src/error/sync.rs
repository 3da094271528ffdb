//! Errors of locks and barriers.

use halite_tier::effect::CommandError;
use halite_tier::ids::NodeId;
use halite_tier::message::ErrorReply;
use serde::{Deserialize, Serialize};

use super::RegionCause;
use super::text::{self, Text};

/// An operation on a lock failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("cannot {operation} lock {name:?}: {cause}")]
pub struct LockError {
    /// Name of the attempted operation, such as `take` or `release`.
    #[serde(with = "text")]
    pub operation: Text,
    /// The lock's name.
    pub name: String,
    /// Cause of the failure.
    pub cause: LockCause,
}

impl LockError {
    /// Returns the cause of the failure.
    pub fn cause(&self) -> &LockCause {
        &self.cause
    }
}

/// Cause of a failed operation on a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum LockCause {
    /// Another session holds the lock, and the caller does not wait.
    #[error("another session holds the lock")]
    Held,
    /// This session already holds the lock or waits for it; sessions exclude each other, threads of one session do not.
    #[error("this session already holds the lock or waits for it; use one session per thread")]
    AlreadyHeld,
    /// This session does not hold the lock, or has lost it.
    #[error("this session does not hold the lock")]
    NotHeld,
    /// This session held the lock, but the lock's home may have granted it to another session: as far as this node
    /// knows, the home has not heard from this node for a lease, or the home was restarted.
    #[error(
        "the lease has expired: the lock's home has not heard from this node in time, and may have granted the lock to another session"
    )]
    Lapsed,
    /// The lock was not released in time.
    #[error("the lock was not released in time")]
    Timeout,
    /// The holder's node has been silent for a lease and cannot be cut off. When the node resumes, the holder may still
    /// act under the lock, so no other session can get the lock until then.
    #[error(
        "the holder's node {0} is silent and cannot be cut off; end its process, or wait until it resumes"
    )]
    HeldBySilent(NodeId),
    /// The lock's home is down, and the lock is lost with it: its holder no longer excludes other sessions.
    #[error("node {0}, the lock's home, is down; the next lock call creates the lock anew")]
    PeerDown(NodeId),
    /// An operation on the lock's region failed.
    #[error(transparent)]
    Region(RegionCause),
}

/// A session did not pass a barrier.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("cannot pass barrier {name:?}: {cause}")]
pub struct BarrierError {
    /// The barrier's name.
    pub name: String,
    /// Cause of the failure.
    pub cause: BarrierCause,
}

impl BarrierError {
    /// Returns the cause of the failure.
    pub fn cause(&self) -> &BarrierCause {
        &self.cause
    }
}

/// Reason why a session did not pass a barrier.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum BarrierCause {
    /// The first waiter's timeout passed before all participants had arrived.
    #[error("not all participants arrived in time")]
    Timeout,
    /// The waiting participants gave a different number of participants.
    #[error("the waiting participants expect {expected} participants")]
    Size {
        /// Number of participants that each waiting participant expects.
        expected: u32,
    },
    /// The number of participants is 0; a barrier has at least one.
    #[error("a barrier must have at least one participant")]
    NoParticipants,
    /// The barrier's home is down; other participants may have passed.
    #[error("node {0}, the barrier's home, is down; the next participant creates the barrier anew")]
    PeerDown(NodeId),
    /// An operation on the barrier's region failed.
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
