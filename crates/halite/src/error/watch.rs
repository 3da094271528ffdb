//! Errors of writes that notify watchers. Watching itself fails with [`RegionError`](super::RegionError).

use halite_tier::ids::NodeId;
use serde::{Deserialize, Serialize};

use super::{AccessCause, RegionCause, SendCause, bytes, partly_done};

/// A write with notification failed: the write itself, or the notification of at least one watcher.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("cannot write {} at offset {offset} of {region} and notify its watchers: {cause}", bytes(*len))]
pub struct NotifyError {
    /// The region to which the bytes were written.
    pub region: String,
    /// Offset of the write in the region, in bytes.
    pub offset: u64,
    /// Length of the write, in bytes.
    pub len: u64,
    /// Cause of the failure.
    pub cause: NotifyCause,
}

impl NotifyError {
    /// Returns the cause of the failure.
    pub fn cause(&self) -> &NotifyCause {
        &self.cause
    }

    /// Returns true if all bytes are written, so that only notifications failed.
    pub fn is_written(&self) -> bool {
        !matches!(self.cause, NotifyCause::Write { .. })
    }
}

/// Cause and progress of a failed write with notification.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum NotifyCause {
    /// The write failed; no watcher was notified.
    #[error("{cause}{}", partly_done(*partly))]
    Write {
        /// Cause of the failed write.
        cause: AccessCause,
        /// True if some bytes may have been written before the write failed.
        partly: bool,
    },
    /// All bytes are written, but the region's home did not list the watchers; no watcher was notified.
    #[error("the bytes are written, but the watchers are unknown: {0}")]
    Watchers(RegionCause),
    /// All bytes are written, but this watcher was not notified, or may not have been. The other watchers were
    /// notified, unless their notifications failed too.
    #[error("the bytes are written, but a watcher at node {node} {} notified: {cause}", was_not(*may_have_arrived))]
    Telling {
        /// Node of the watcher. If several notifications failed, this is the node of the first such watcher.
        node: NodeId,
        /// Cause of the failed notification.
        cause: SendCause,
        /// True if the watcher may have been notified after all.
        may_have_arrived: bool,
    },
}

fn was_not(may_have_arrived: bool) -> &'static str {
    if may_have_arrived { "may not have been" } else { "was not" }
}
