//! Chooses the nodes that hold a new region.
//!
//! A region that may be anywhere goes to the session's own node, whose memory is the fastest for the session. If that
//! node has no memory, its number selects another node. If a third node, chosen at random, has clearly more of its
//! memory free, the region goes there instead. So nodes fill evenly; two choices suffice for that. Heartbeats report
//! how much of its memory a node uses.

use std::collections::BTreeMap;

use super::SessionSide;
use crate::effect::Placement;
use crate::ids::NodeId;
use crate::layout::Extent;

/// A node is clearly fuller than another if it uses more by this share of its memory. Smaller differences are not worth
/// the slower access to another node, and figures of peers are up to a heartbeat old.
const FULLER_PARTS: u128 = 16;

/// Bytes that commands of this node have placed on each peer since the peer's heartbeat of this time.
#[derive(Debug, Default)]
pub(super) struct Placed(BTreeMap<NodeId, (u64, u64)>);

impl SessionSide<'_> {
    /// Returns the nodes that are to hold a region, and the alternatives in case that they lack space.
    pub(super) fn nodes_for(&self, placement: Placement) -> (Vec<NodeId>, Vec<NodeId>) {
        let me = self.cx.incarnation().node;
        match placement {
            Placement::Local => (vec![me], Vec::new()),
            Placement::On(node) => (vec![node], Vec::new()),
            Placement::Spread(nodes) if nodes.is_empty() => (self.memory_nodes(), Vec::new()),
            Placement::Spread(nodes) => {
                let mut distinct = Vec::new();
                for node in nodes {
                    if !distinct.contains(&node) {
                        distinct.push(node);
                    }
                }
                (distinct, Vec::new())
            }
            Placement::Anywhere => {
                let (mut candidates, unconnected) = self.memory_nodes_by_contact();
                if self.owner.bytes_total() > 0 && !self.cx.membership().draining().is_on() {
                    candidates.retain(|node| *node != me);
                    candidates.insert(0, me);
                } else if !candidates.is_empty() {
                    // Nodes without memory begin at different nodes, so that their regions are spread.
                    let first = me.0 as usize % candidates.len();
                    candidates.rotate_left(first);
                }
                if let [_, others @ ..] = &mut candidates[..]
                    && !others.is_empty()
                {
                    let other = self.pseudo_random() % others.len() as u64;
                    others.swap(0, other as usize);
                }
                if let [first, second, ..] = candidates[..]
                    && self.is_fuller(first, second)
                {
                    candidates.swap(0, 1);
                }
                candidates.extend(unconnected);
                let others = candidates.split_off(candidates.len().min(1));
                (candidates, others)
            }
        }
    }

    /// Returns a number that differs for each request. Derived from the incarnation, so that it consumes no random
    /// numbers.
    fn pseudo_random(&self) -> u64 {
        let number = self.cx.incarnation().id.0 ^ self.cx.last_number();
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }

    /// Returns true if `node` is known to use a clearly larger share of its memory than `other`.
    fn is_fuller(&self, node: NodeId, other: NodeId) -> bool {
        let (Some((used, total)), Some((others_used, others_total))) = (self.used(node), self.used(other))
        else {
            return false;
        };
        // Peers report these figures, so the products must not overflow.
        let [used, total, others_used, others_total] =
            [used, total, others_used, others_total].map(|bytes| u128::from(bytes.min(1 << 60)));
        (FULLER_PARTS * used).saturating_sub(total) * others_total > FULLER_PARTS * others_used * total
    }

    /// Returns the bytes in use on a node, and the bytes that the node contributes; `None` if the node is not
    /// connected. Until its first heartbeat, a peer counts as empty: if it is full, it refuses, and the next node is
    /// asked.
    fn used(&self, node: NodeId) -> Option<(u64, u64)> {
        if node == self.cx.incarnation().node {
            return Some((self.owner.bytes_taken(), self.owner.bytes_total()));
        }
        let (_, peer) = self.cx.members().peer_of(node)?;
        let placed = self.commands.placed.0.get(&node).filter(|(beat_ns, _)| *beat_ns == peer.beat_ns);
        let used = peer.bytes_taken.unwrap_or(0).saturating_add(placed.map_or(0, |(_, bytes)| *bytes));
        let member = self.cx.members().all().find(|member| member.incarnation == peer.incarnation)?;
        Some((used, member.bytes_total))
    }

    /// Counts the bytes of a new region on each peer, until the peer's next heartbeat counts them.
    pub(super) fn count_placed(&mut self, extents: &[Extent]) {
        for (node, bytes) in extents.iter().map(|extent| (extent.owner.node, extent.len)) {
            let Some((_, peer)) = self.cx.members().peer_of(node) else { continue };
            let placed = self.commands.placed.0.entry(node).or_default();
            if placed.0 != peer.beat_ns {
                *placed = (peer.beat_ns, 0);
            }
            placed.1 = placed.1.saturating_add(bytes);
        }
    }

    /// Returns the nodes of [`SessionSide::memory_nodes`], split into connected nodes and nodes that this node is still
    /// meeting.
    pub(super) fn memory_nodes_by_contact(&self) -> (Vec<NodeId>, Vec<NodeId>) {
        let nodes = self.memory_nodes();
        nodes.into_iter().partition(|node| !self.cx.is_awaited(*node))
    }

    /// Returns the permanent nodes that contribute memory. Returns ephemeral nodes only if no permanent node does,
    /// since their memory leaves with the application.
    pub(in crate::engine) fn memory_nodes(&self) -> Vec<NodeId> {
        let with_memory =
            self.cx.members().all().filter(|member| member.bytes_total > 0 && member.state.is_there());
        let draining = self.cx.membership().draining();
        let accepting =
            with_memory.filter(|member| !draining.covers(self.cx.incarnation(), member.incarnation));
        let nodes: Vec<NodeId> = accepting.map(|member| member.incarnation.node).collect();
        let (ephemeral, permanent): (Vec<NodeId>, Vec<NodeId>) =
            nodes.iter().partition(|node| node.is_ephemeral());
        if permanent.is_empty() { ephemeral } else { permanent }
    }
}
