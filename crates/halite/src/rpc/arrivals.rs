//! Handles arrivals from peers on the polling thread, which passes each arrival to the client or to the server.
//!
//! This code never waits, and runs no application code. A peer that violates the protocol is disconnected.

use std::iter::{Peekable, from_fn};

use halite_fabric::PeerId;
use halite_tier::rpc::{CallControl, Imm, SlotId, Target, Violation};

use super::Rpc;
use super::server::ReceiveBatch;
use super::shared::Link;
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

impl Rpc {
    /// Handles writes with immediates, in order. Adjacent requests, and adjacent replies, are handled under one lock,
    /// because at full load the locks cost more than all other steps.
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
                    Imm::Look(index) => self.handle_line_notification(Target::Peer(peer), index, wakes),
                    // The polling thread polls all lines anyway.
                    _ => Ok(()),
                };
            }
            let offsets = offsets_in_batch(&mut imms);
            handled = handled.and_then(|()| self.handle_requests(peer, offsets, received, wakes));
        }
        self.poster.enforce(peer, handled);
    }

    /// Disconnects a peer after the fabric has refused an access to the peer's memory, or could not reach that memory.
    pub(crate) fn handle_refused(&self, peer: PeerId) {
        self.poster.enforce(peer, Err(Violation("a request names memory that cannot be reached")));
    }

    pub(crate) fn handle_control(
        &self,
        peer: PeerId,
        bytes: &[u8],
        received: &mut ReceiveBatch,
        wakes: &mut Wakes,
    ) {
        let Some(link) = self.peers.link_of(peer) else { return };
        let control = CallControl::parse(bytes).map_err(|_| Violation("a control message is malformed"));
        let handled = control.and_then(|control| {
            if !control.is_ordered() {
                return self.apply_control(&link, peer, control, wakes);
            }
            // Requests posted before a cancel are read before it, and later ones after it.
            self.drain_lines(peer, &link, received, wakes)?;
            self.apply_control(&link, peer, control, wakes)?;
            link.reader.hear();
            self.drain_lines(peer, &link, received, wakes)
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
                // A reply may be in its line without a notification.
                self.check_line(Target::Peer(peer), index, wakes);
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

/// Returns the slots of the next replies, up to the first request.
fn slots_in_batch(imms: &mut Peekable<impl Iterator<Item = Imm>>) -> impl Iterator<Item = SlotId> {
    from_fn(|| match imms.next_if(|imm| matches!(imm, Imm::Reply(_)))? {
        Imm::Reply(slot) => Some(slot),
        _ => unreachable!("checked just before"),
    })
}

/// Returns the ring offsets of the next requests, up to the first reply.
fn offsets_in_batch(imms: &mut Peekable<impl Iterator<Item = Imm>>) -> impl Iterator<Item = u64> {
    from_fn(|| match imms.next_if(|imm| matches!(imm, Imm::Request { .. }))? {
        Imm::Request { offset } => Some(offset),
        _ => unreachable!("checked just before"),
    })
}
