//! Heads: how far this node has read the requests of a peer, which makes room for more.

use halite_fabric::{Local, Operation, PeerId, PostCause, RemoteAddress, WorkRequest};

use crate::rpc::Rpc;
use crate::rpc::shared::{Attempt, CALL_WORK, Link};
use crate::runtime::locks::lock;

impl Rpc {
    /// Writes a head to the peer, which looks at it when it waits for room.  Under the lock of the link's inbound side, so that no older
    /// head lands behind a newer one: a peer without room sends nothing that would bring another head.
    pub(super) fn return_head(&self, peer: PeerId, (at, head): (RemoteAddress, u64), attempt: Attempt) {
        let bytes = head.to_le_bytes();
        let operation = Operation::Write { local: Local::Inline(&bytes), remote: at };
        let posted = self
            .poster
            .post(peer, &[WorkRequest { id: CALL_WORK, operation, signalled: false, solicited: true }]);
        if posted == Err(PostCause::QueueFull) {
            // There may be no later head, for the same reason.
            lock(&self.server.heads).insert(peer);
            self.poster.set_stuck(attempt);
        }
    }

    #[cold]
    pub(super) fn tell_line_head(&self, peer: PeerId, link: &Link) {
        let inbound = lock(&link.inbound);
        if let Some(head) = inbound.told_line_head(&link.reader) {
            self.return_head(peer, head, Attempt::First);
        }
    }

    /// Tries again to post the heads that the fabric did not take.
    pub(in crate::rpc) fn retry_heads(&self) {
        // Taken before the loop, whose head would hold the lock while the loop runs.
        let heads = std::mem::take(&mut *lock(&self.server.heads));
        for peer in heads {
            if let Some(link) = self.peers.link_of(peer) {
                let inbound = lock(&link.inbound);
                for head in [inbound.told_head(), inbound.told_line_head(&link.reader)].into_iter().flatten()
                {
                    self.return_head(peer, head, Attempt::Again);
                }
            }
        }
    }
}
