//! What the engine knows of a region or a peer, for people who ask why something is as it is.  Nobody is asked.

use halite_fabric::PeerId;

use super::Engine;
use crate::access::SlotRef;
use crate::ids::{NodeId, NodeIncarnation, RegionId, SessionId};
use crate::layout::Extent;
use crate::mapper::Known;
use crate::message::{Loss, Member, NodeState, Reach};

/// What this node knows of another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownPeer {
    /// In which incarnation it was seen last.
    pub incarnation: NodeIncarnation,
    /// Its process.
    pub pid: u32,
    /// Whether it lives.
    pub state: NodeState,
    /// The connection to it; `None` if there is none, or it is this node itself.
    pub peer: Option<PeerId>,
    /// For how long nothing was heard of it, in ns, if it is connected.
    pub silent_ns: Option<u64>,
    /// How it was lost, if it is not alive and that is known.
    pub loss: Option<Loss>,
    /// Whether it is dead and may still reach memory here.
    pub is_zombie: bool,
    /// Bytes of this node's memory that are kept back because it could reach them.
    pub bytes_quarantined: u64,
}

impl Engine {
    /// What is known of the region behind a handle; `None` if it is not one of `session`'s.
    pub fn known_region(&self, session: SessionId, slot: SlotRef) -> Option<Known> {
        self.mapper.known(
            session,
            slot,
            &self.owner.locator(self.out.incarnation(), self.membership.members()),
        )
    }

    /// The memory that accesses through this node's handles may touch now, by region.
    pub fn reached(&self) -> Vec<(RegionId, Extent)> {
        self.mapper.reached(&self.owner.locator(self.out.incarnation(), self.membership.members()))
    }

    /// Whether that node may touch memory of this one, as far as is known here.
    pub fn is_reached_by(&self, incarnation: NodeIncarnation) -> bool {
        incarnation == self.out.incarnation()
            || !self.membership.members().not_cut_off([incarnation]).is_empty()
    }

    /// Where a node that is connected, or may be again, is dialled; `None` if that is not known.
    pub fn address_of(&self, node: NodeId) -> Option<&str> {
        self.membership.pairings().address_of(node)
    }

    /// Where the tokens of a lock begin that is made now, in ns since 1970: not before any time that a clock of the cluster has shown, as
    /// far as we have heard.  So a lock that is made anew gives higher tokens than before, also where the clocks of nodes differ by hours.
    pub fn time_of_day_ns(&self) -> u64 {
        self.out.time_of_day_ns()
    }

    /// Until when a lock that is held by the handle of a session is given to nobody else, whatever its home sees; `None` if
    /// that may have happened already.  It is later the next time, for as long as the home hears us.
    pub fn lock_is_kept_until_ns(&self, session: SessionId, slot: SlotRef) -> Option<u64> {
        let (_, home) = self.mapper.region_of(session, slot)?;
        if home == self.out.incarnation() {
            return Some(u64::MAX);
        }
        let (_, known) =
            self.membership.members().peer_of(home.node).filter(|(_, known)| known.incarnation == home)?;
        Some(known.acknowledged_ns + self.out.config().lease_ns)
    }

    /// Whether a node may still touch memory of ours; `None` if none of that number is or was in the cluster.
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

    /// What is known of a node; `None` if it was never seen.
    pub fn known_peer(&self, now_ns: u64, node: NodeId) -> Option<KnownPeer> {
        self.known_peers(now_ns, |member| member.incarnation.node == node).next()
    }

    /// What is known of those nodes that are meant, in their order.
    pub(super) fn known_peers(
        &self,
        now_ns: u64,
        is_meant: impl Fn(&Member) -> bool,
    ) -> impl Iterator<Item = KnownPeer> {
        let members = self.membership.members().described(now_ns).filter(move |member| is_meant(member));
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
            bytes_quarantined: self.owner.bytes_kept_from(member.incarnation),
        }
    }
}
