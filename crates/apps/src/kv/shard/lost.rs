//! A shard whose memory was lost with a node: it continues without keys, in memory of other nodes.

use halite::{AccessCause, RegionCause};

use super::super::error::KvError;
use super::super::heap;
use super::Shard;
use crate::directory::is_without_directory;

impl Shard {
    /// Handles the error of a request: if memory of the shard was lost, replaces the shard by an empty one. If that
    /// fails, for example because no node has memory, the next request tries again.
    pub(in super::super) async fn handle_error(&mut self, error: &KvError) {
        if self.outlives_memory && (self.is_lost || is_loss(error)) {
            let (name, number) = (&self.name, self.number);
            if !std::mem::replace(&mut self.is_lost, true) {
                tracing::warn!(
                    "shard {number} of {name:?} has lost its memory, and continues without its keys: {error}"
                );
            }
            if let Err(why) = self.replace_memory().await {
                tracing::warn!("shard {} of {:?} has no memory yet: {why}", self.number, self.name);
            }
        }
    }

    /// Returns true if the shard has lost its memory, and has no other yet.
    pub(in super::super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Replaces lost memory. The shard has no keys afterwards.
    pub(in super::super) async fn replace_memory(&mut self) -> Result<(), KvError> {
        // A region that cannot be freed keeps its name, so the creation of a new one with this name then fails.
        let _ = self.heap.clear().await;
        let _ = self.heap.free_deferred().await;
        for lh in [self.table.lh, self.root] {
            let _ = heap::free(&self.session, lh).await;
        }
        let fresh = Shard::create(self.session.clone(), &self.name, self.number, self.everyone).await?;
        // The keys that clients watch are gone.
        let change_counts = self.change_counts.iter().map(|count| count + 1).collect();
        let (limit_bytes, eviction, evicted) = (self.limit_bytes, self.eviction, self.evicted);
        *self = Shard { change_counts, limit_bytes, eviction, evicted, outlives_memory: true, ..fresh };
        Ok(())
    }
}

/// Returns true if a reader that cannot map a region of the shard may ask the owner instead.
pub(in super::super) fn needs_owner(cause: &RegionCause) -> bool {
    is_without_directory(cause) || matches!(cause, RegionCause::Lost(_))
}

/// Returns true if an access to the owner's memory failed because the memory was lost. Handles of a lost connection
/// stay invalid.
fn is_loss(error: &KvError) -> bool {
    match error {
        KvError::Access(error) => {
            matches!(error.cause(), AccessCause::PeerDown(_) | AccessCause::LinkLost(_) | AccessCause::Stale)
        }
        KvError::Region(error) => matches!(error.cause(), RegionCause::Lost(_) | RegionCause::Stale),
        _ => false,
    }
}
