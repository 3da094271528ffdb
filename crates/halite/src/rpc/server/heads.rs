//! Heads: the positions up to which this node has read a peer's requests. Reporting a head to the peer makes room for
//! more requests.

use halite_fabric::{Local, Operation, PeerId, PostCause, RemoteAddress};

use crate::rpc::Rpc;
use crate::rpc::shared::{Attempt, CALL_WORK, Link};
use crate::runtime::locks::lock;

impl Rpc {
    /// Writes a head to the peer's memory, which the peer reads when it needs room. Called under the lock of the link's
    /// inbound side, so that an older head never overwrites a newer one. The head must not be lost: a peer without room
    /// posts nothing that would cause another head.
    pub(super) fn return_head(&self, peer: PeerId, (at, head): (RemoteAddress, u64), attempt: Attempt) {
        let bytes = head.to_le_bytes();
        let operation = Operation::Write { local: Local::Inline(&bytes), remote: at };
        if self.poster.post(peer, CALL_WORK, operation) == Err(PostCause::QueueFull) {
            // The peer may have no room, so there may be no later head.
            lock(&self.server.heads).insert(peer);
            self.poster.set_deferred(attempt);
        }
    }

    #[cold]
    pub(super) fn post_line_head(&self, peer: PeerId, link: &Link) {
        let inbound = lock(&link.inbound);
        if let Some(head) = inbound.published_line_head(&link.reader) {
            self.return_head(peer, head, Attempt::First);
        }
    }

    /// Retries the heads that the fabric refused.
    pub(in crate::rpc) fn retry_heads(&self) {
        // Taken before the loop, which would otherwise hold the lock.
        let heads = std::mem::take(&mut *lock(&self.server.heads));
        for peer in heads {
            if let Some(link) = self.peers.link_of(peer) {
                let inbound = lock(&link.inbound);
                for head in [inbound.published_head(), inbound.published_line_head(&link.reader)]
                    .into_iter()
                    .flatten()
                {
                    self.return_head(peer, head, Attempt::Retry);
                }
            }
        }
    }
}
