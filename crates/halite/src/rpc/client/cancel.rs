//! Cancels of requests, and replies that arrive after the caller has given up.

use halite_tier::rpc::{Abandoned, CallControl, ReplySlots, SlotId, Status, Target};

use super::slots::SlotResources;
use crate::rpc::Rpc;
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

impl Rpc {
    pub(crate) fn abandon(&self, slot: SlotId, wakes: &mut Wakes) {
        let abandoned = lock(&self.client.slots).abandon(slot);
        match abandoned {
            Abandoned::Cancel(Target::Own, waker) => {
                drop(waker);
                self.cancel(self.peers.own(), slot);
            }
            Abandoned::Cancel(Target::Peer(peer), waker) => {
                drop(waker);
                let (index, generation) = (slot.index, slot.generation);
                self.poster.send_control(peer, CallControl::Cancel { index, generation });
            }
            Abandoned::Replied => {
                let target = lock(&self.client.slots).target(slot);
                self.drop_reply(target, slot, wakes);
            }
            Abandoned::Freed(held) => drop(held),
            Abandoned::Kept => {}
        }
    }

    /// Drops a late reply, and declines what the reply offers.
    pub(super) fn drop_reply(&self, from: Target, slot: SlotId, wakes: &mut Wakes) {
        let held = |slots: &ReplySlots<SlotResources>| slots.held(slot).map(|held| (held.port, held.by_line));
        let (port, by_line) = held(&lock(&self.client.slots)).unwrap_or_default();
        let status = if by_line { self.client.line_status(slot) } else { self.client.slot_status(slot) };
        self.decline_offer(from, slot, status, port, wakes);
        self.client.free_slot(slot);
    }

    /// Declines what a reply offers: an output to read from the server's memory, or room in a port.
    pub(super) fn decline_offer(
        &self,
        from: Target,
        slot: SlotId,
        status: Option<Status>,
        port: Option<u32>,
        wakes: &mut Wakes,
    ) {
        match (status, port) {
            (Some(Status::DoneAt(_)), _) => self.release_output(from, slot),
            (Some(Status::Granted(grant)), Some(port)) => self.decline_room(from, port, grant, wakes),
            _ => {}
        }
    }

    /// Tells the server to release an output that the server keeps for this node.
    pub(super) fn release_output(&self, from: Target, slot: SlotId) {
        match from {
            // Outputs of calls to this node itself are in their slots.
            Target::Own => {}
            Target::Peer(peer) => {
                self.poster.send_control(
                    peer,
                    CallControl::Release { index: slot.index, generation: slot.generation },
                );
            }
        }
    }

    /// Tells a port's node that the room reserved for a message of this node is not needed.
    pub(crate) fn decline_room(&self, at: Target, port: u32, grant: u32, wakes: &mut Wakes) {
        match at {
            Target::Own => self.decline(port, Target::Own, grant, wakes),
            Target::Peer(peer) => self.poster.send_control(peer, CallControl::Decline { port, grant }),
        }
    }
}
