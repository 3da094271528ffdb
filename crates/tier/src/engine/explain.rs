//! Queries of the facts that `halite explain` shows about a region or a peer. They send no messages.

use halite_fabric::PeerId;

use super::Engine;
use crate::access::SlotRef;
use crate::ids::{NodeId, NodeIncarnation, RegionId, SessionId};
use crate::layout::Extent;
use crate::mapper::Known;
use crate::message::{Loss, Member, NodeState, Reach};

/// Another node's state, as far as this node knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownPeer {
    /// The latest incarnation of the node that this node has seen.
    pub incarnation: NodeIncarnation,
    /// Process id of the node.
    pub pid: u32,
    /// State of the node, such as alive or dead.
    pub state: NodeState,
    /// The connection to the node; `None` if the node is not connected, or is this node itself.
    pub peer: Option<PeerId>,
    /// Time in ns since this node last heard from that node; `None` if that node is not connected.
    pub silent_ns: Option<u64>,
    /// Cause and time of the node's loss; `None` if the node is alive or the cause is unknown.
    pub loss: Option<Loss>,
    /// True if the node is a zombie: lost but not cut off, so that it may still access this node's memory.
    pub is_zombie: bool,
    /// Bytes of this node's memory that are in quarantine because the known node may still access them.
    pub bytes_quarantined: u64,
}

impl Engine {
    /// Returns what this node knows of the region behind a handle, or `None` if the handle does not belong to
    /// `session`.
    pub fn known_region(&self, session: SessionId, slot: SlotRef) -> Option<Known> {
        self.mapper.known(
            session,
            slot,
            &self.owner.locator(self.out.incarnation(), self.membership.members()),
        )
    }

    /// Returns the memory that this node currently reaches through handles, as extents with their regions.
    pub fn reached(&self) -> Vec<(RegionId, Extent)> {
        self.mapper.reached(&self.owner.locator(self.out.incarnation(), self.membership.members()))
    }

    /// Returns true if `incarnation` can access memory of this node, as far as this node knows.
    pub fn is_reached_by(&self, incarnation: NodeIncarnation) -> bool {
        incarnation == self.out.incarnation()
            || !self.membership.members().not_cut_off([incarnation]).is_empty()
    }

    /// Returns the address of a node that is connected or may reconnect, or `None` if the address is unknown.
    pub fn address_of(&self, node: NodeId) -> Option<&str> {
        self.membership.pairings().address_of(node)
    }

    /// Returns the first fencing token for a new lock, in ns since 1970. The token is at least as high as the time on
    /// each known clock of the cluster. So a lock that is created again issues higher tokens than before, even if
    /// clocks differ by hours.
    pub fn time_of_day_ns(&self) -> u64 {
        self.out.time_of_day_ns()
    }

    /// Returns the time in ns until which the home grants the lock held through `slot` to no other session; `None` if
    /// the home may have granted the lock already. The time advances while the home acknowledges messages of this node.
    pub fn lock_is_kept_until_ns(&self, session: SessionId, slot: SlotRef) -> Option<u64> {
        let (_, home) = self.mapper.region_of(session, slot)?;
        if home == self.out.incarnation() {
            return Some(u64::MAX);
        }
        let (_, known) =
            self.membership.members().peer_of(home.node).filter(|(_, known)| known.incarnation == home)?;
        Some(known.acknowledged_ns + self.out.config().lease_ns)
    }

    /// Returns whether a node can still access this node's memory, or `None` if this node knows no node with this
    /// number.
    pub(super) fn reach_of(&self, node: NodeId) -> Option<Reach> {
        if !self.knows(node) {
            return None;
        }
        let seen = self
            .membership
            .members()
            .all()
            .find(|member| member.incarnation.node == node)
            .map(|member| member.incarnation);
        let is_reached = self
            .membership
            .members()
            .zombies()
            .chain(seen)
            .any(|incarnation| incarnation.node == node && self.is_reached_by(incarnation));
        Some(Reach {
            incarnation: seen.map_or(0, |incarnation| incarnation.id.0),
            pairing: seen.map_or(0, |incarnation| self.membership.pairings().number(incarnation)),
            is_cut_off: !is_reached,
        })
    }

    /// Returns the known state of a node, or `None` if this node never saw it.
    pub fn known_peer(&self, now_ns: u64, node: NodeId) -> Option<KnownPeer> {
        self.known_peers(now_ns, |member| member.incarnation.node == node).next()
    }

    /// Returns the known state of the selected members, in their order.
    pub(super) fn known_peers(
        &self,
        now_ns: u64,
        is_selected: impl Fn(&Member) -> bool,
    ) -> impl Iterator<Item = KnownPeer> {
        let members = self.membership.members().described(now_ns).filter(move |member| is_selected(member));
        members.map(move |member| self.known(now_ns, member))
    }

    fn known(&self, now_ns: u64, member: Member) -> KnownPeer {
        let connection = self.membership.members().peer_of(member.incarnation.node);
        KnownPeer {
            incarnation: member.incarnation,
            pid: member.pid,
            state: member.state,
            peer: connection.map(|(peer, _)| peer),
            silent_ns: connection.map(|(_, peer)| now_ns.saturating_sub(peer.heard_ns)),
            loss: member.loss,
            is_zombie: self.membership.members().is_zombie(member.incarnation),
            bytes_quarantined: self.owner.bytes_quarantined_for(member.incarnation),
        }
    }
}
