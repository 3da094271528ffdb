//! What arrives from peers, handled by the polling thread: each piece goes to the client or to the server.
//!
//! Nothing here waits, and no handler runs here.  A peer that violates the protocol loses its connection.

use std::iter::{Peekable, from_fn};

use halite_fabric::PeerId;
use halite_tier::rpc::{CallControl, Imm, SlotId, Target, Violation};

use super::Rpc;
use super::server::ReceiveBatch;
use super::shared::Link;
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

impl Rpc {
    /// Writes with immediates have landed, one behind the other.  Neighbours of one kind are handled under one lock: at full load
    /// locks are most of their cost.
    pub(crate) fn handle_notified(
        &self,
        peer: PeerId,
        imms: impl Iterator<Item = u32>,
        received: &mut ReceiveBatch,
        wakes: &mut Wakes,
    ) {
        let mut imms = imms.map(Imm::parse).peekable();
        let mut handled = Ok(());
        while handled.is_ok() && imms.peek().is_some() {
            handled = self.handle_replies(Target::Peer(peer), slots_in_batch(&mut imms), wakes);
            while handled.is_ok()
                && let Some(imm) = imms.next_if(|imm| matches!(imm, Imm::Lines | Imm::Look(_)))
            {
                handled = match imm {
                    Imm::Look(index) => self.handle_look(Target::Peer(peer), index, wakes),
                    // The thread that polls looks at all lines.
                    _ => Ok(()),
                };
            }
            let offsets = offsets_in_batch(&mut imms);
            handled = handled.and_then(|()| self.handle_requests(peer, offsets, received, wakes));
        }
        self.poster.enforce(peer, handled);
    }

    /// The fabric has refused an access to memory that a peer has named, or cannot reach that memory.
    pub(crate) fn handle_refused(&self, peer: PeerId) {
        self.poster.enforce(peer, Err(Violation("it named memory that cannot be reached")));
    }

    /// A control message has arrived.
    pub(crate) fn handle_control(
        &self,
        peer: PeerId,
        bytes: &[u8],
        received: &mut ReceiveBatch,
        wakes: &mut Wakes,
    ) {
        let Some(link) = self.peers.link_of(peer) else { return };
        let control = CallControl::parse(bytes).map_err(|_| Violation("not a control message"));
        let handled = control.and_then(|control| {
            if !control.is_ordered() {
                return self.apply_control(&link, peer, control, wakes);
            }
            // Requests that were posted before a cancel are read before it, and later ones after it.
            self.take_in_lines(peer, &link, received, wakes)?;
            self.apply_control(&link, peer, control, wakes)?;
            link.reader.hear();
            self.take_in_lines(peer, &link, received, wakes)
        });
        self.poster.enforce(peer, handled);
    }

    pub(super) fn apply_control(
        &self,
        link: &Link,
        peer: PeerId,
        control: CallControl,
        wakes: &mut Wakes,
    ) -> Result<(), Violation> {
        match control {
            CallControl::Handshake { .. } => return self.open(link, peer, &control),
            CallControl::Cancel { index, generation } => self.cancel(link, SlotId { index, generation }),
            CallControl::Cancelled { index, generation } => {
                let slot = SlotId { index, generation };
                // A reply may be in its line without a notice.
                self.look_at_line(Target::Peer(peer), index, wakes);
                self.client.handle_cancelled(Target::Peer(peer), slot);
            }
            CallControl::Release { index, generation } => {
                let kept = lock(&link.inbound).kept.remove(&SlotId { index, generation });
                drop(kept);
            }
            CallControl::Decline { port, grant } => self.decline(port, Target::Peer(peer), grant, wakes),
        }
        Ok(())
    }
}

/// The replies before the next request.
fn slots_in_batch(imms: &mut Peekable<impl Iterator<Item = Imm>>) -> impl Iterator<Item = SlotId> {
    from_fn(|| match imms.next_if(|imm| matches!(imm, Imm::Reply(_)))? {
        Imm::Reply(slot) => Some(slot),
        _ => unreachable!("just looked at"),
    })
}

/// The requests before the next reply, by where they are in their ring.
fn offsets_in_batch(imms: &mut Peekable<impl Iterator<Item = Imm>>) -> impl Iterator<Item = u64> {
    from_fn(|| match imms.next_if(|imm| matches!(imm, Imm::Request { .. }))? {
        Imm::Request { offset } => Some(offset),
        _ => unreachable!("just looked at"),
    })
}
