//! What can go wrong with telling those who watch a region.  Watching itself fails with
//! [`RegionError`](super::RegionError).

use halite_tier::ids::NodeId;

use super::{AccessCause, RegionCause, SendCause, bytes, half_way};

/// Bytes were not written, or not all who watch them were told.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot write {} at offset {offset} of {region} and notify its watchers: {cause}", bytes(*len))]
pub struct NotifyError {
    /// Of which region.
    pub region: String,
    /// From where, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Why it failed.
    pub cause: NotifyCause,
}

impl NotifyError {
    /// Why it failed.
    pub fn cause(&self) -> &NotifyCause {
        &self.cause
    }

    /// Whether all bytes are written, and only the telling failed.
    pub fn is_written(&self) -> bool {
        !matches!(self.cause, NotifyCause::Write { .. })
    }
}

/// Why a write with a notification failed, and how far it got.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotifyCause {
    /// The write failed; nobody was told.
    #[error("{cause}{}", half_way(*partly))]
    Write {
        /// Why.
        cause: AccessCause,
        /// Whether some of its bytes may have been written before it failed.
        partly: bool,
    },
    /// All is written, but who watches could not be found out; nobody was told.
    #[error("the bytes are written, but the watchers are unknown: {0}")]
    Watchers(RegionCause),
    /// All is written, but this watcher was not told, or perhaps not; others were, unless the same befell them.
    #[error("the bytes are written, but a watcher at node {node} {} notified: {cause}", was_not(*may_have_arrived))]
    Telling {
        /// Where the watcher is; the first one, if there are several.
        node: NodeId,
        /// Why.
        cause: SendCause,
        /// Whether it may have been told all the same.
        may_have_arrived: bool,
    },
}

fn was_not(may_have_arrived: bool) -> &'static str {
    if may_have_arrived { "may not have been" } else { "was not" }
}
