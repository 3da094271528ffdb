//! The list of members in a store outside the cluster. Each member registers its address there, and all nodes can
//! read the list without node 0.
//!
//! ```text
//!   store ── listed: node and address ──► number unknown here ──► dialled (by the higher number at once)
//!         ── no longer listed ──────────► no longer dialled
//! ```
//!
//! The list is unconfirmed, and may be edited by hand. It contains addresses but no incarnations, and proves neither
//! life nor death. A wrong entry only costs failed dials. The engine ignores the list for nodes that it knows from
//! other nodes; see [`super::pairing`]. (Decision 021.)

use std::collections::BTreeMap;

use super::Membership;
use crate::effect::Effect;
use crate::engine::Engine;
use crate::ids::NodeId;
use crate::message::NodeState;

/// Maximum dials of a listed address, one per lease, until its entry is written again.
const LISTED_DIALS_MAX: u32 = 256;

/// An update of the list of members in the outside store. Ephemeral node numbers are ignored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listing {
    /// The complete list.
    All(BTreeMap<NodeId, String>),
    /// A member has registered this address.
    Is(NodeId, String),
    /// A member has been removed from the list.
    Gone(NodeId),
}

/// The list as read so far.
#[derive(Debug, Default)]
pub(in crate::engine) struct Listed {
    members: BTreeMap<NodeId, Entry>,
    /// True if the complete list was read.
    is_known: bool,
}

/// The entry of a member.
#[derive(Debug)]
struct Entry {
    address: String,
    /// Number of dials left.
    dials_left: u32,
    /// Time of the next dial, in ns.
    due_ns: u64,
    /// True if the last dial failed.
    has_failed: bool,
}

impl Listed {
    pub(in crate::engine) fn has(&self, node: NodeId) -> bool {
        self.members.contains_key(&node)
    }

    pub(in crate::engine) fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns true if the complete list was read and lacks `node`.
    pub(in crate::engine) fn lacks(&self, node: NodeId) -> bool {
        self.is_known && !self.has(node)
    }

    /// Returns the members on the list, each with a presumed state.
    pub(in crate::engine) fn states(&self) -> impl Iterator<Item = (NodeId, NodeState)> {
        self.members.iter().map(|(node, entry)| {
            (*node, if entry.has_failed { NodeState::Silent } else { NodeState::Unconnected })
        })
    }

    fn record(&mut self, node: NodeId, address: String, due_ns: u64) {
        self.members.insert(node, Entry { address, dials_left: LISTED_DIALS_MAX, due_ns, has_failed: false });
    }
}

impl Membership {
    /// Returns the address of a member that only the list names, or `None` for all other nodes.
    pub(in crate::engine) fn listed_address(&self, node: NodeId) -> Option<&str> {
        let is_known = self.members.peer_of(node).is_some()
            || !self.pairings.incarnations_of(node).is_empty()
            || self.meeting.has_node(node);
        self.listed.members.get(&node).filter(|_| !is_known).map(|entry| entry.address.as_str())
    }

    /// Returns the address of a member that only the list names if a dial is due now, else `None`. Counts the dial.
    fn due_listed_address(&mut self, node: NodeId, now_ns: u64, lease_ns: u64) -> Option<String> {
        let address = self.listed_address(node)?.to_owned();
        // An address that did not answer when this node joined is retried by `dial_unanswered`.
        let is_retried = self.pairings.is_retried(&address);
        let entry = self.listed.members.get_mut(&node)?;
        let is_due = entry.dials_left > 0 && entry.due_ns <= now_ns && !is_retried;
        if is_due {
            (entry.dials_left, entry.due_ns) = (entry.dials_left - 1, now_ns.saturating_add(lease_ns));
        }
        is_due.then_some(address)
    }
}

impl Engine {
    /// Handles an update of the list of members.
    pub fn handle_listed(&mut self, now_ns: u64, listing: Listing) {
        self.out.set_now(now_ns);
        match listing {
            Listing::All(mut all) => {
                all.retain(|node, _| self.is_other_member(*node));
                let listed = &mut self.membership.listed;
                listed.is_known = true;
                listed.members.retain(|node, _| all.contains_key(node));
                for (node, address) in all {
                    let known = self.membership.listed.members.get(&node);
                    if known.is_none_or(|entry| entry.address != address) {
                        self.record_listed(node, address);
                    }
                }
            }
            Listing::Is(node, address) if self.is_other_member(node) => self.record_listed(node, address),
            Listing::Is(..) => {}
            Listing::Gone(node) => {
                self.membership.listed.members.remove(&node);
            }
        }
        self.out.push(Effect::MembersChanged);
        self.dial_listed();
        self.run_loopback();
    }

    fn is_other_member(&self, node: NodeId) -> bool {
        !node.is_ephemeral() && node != self.out.incarnation().node
    }

    /// Records a listed address. If this node has the higher number, it dials at once, otherwise after a lease without
    /// a connection.
    fn record_listed(&mut self, node: NodeId, address: String) {
        let is_own_turn = node < self.out.incarnation().node;
        let wait_ns = if is_own_turn { 0 } else { self.out.config().lease_ns };
        self.membership.listed.record(node, address, self.out.now_ns().saturating_add(wait_ns));
    }

    /// Dials listed members that are not known otherwise. In a large cluster, dials the directory's node only; the
    /// others are dialled on first use.
    pub(in crate::engine) fn dial_listed(&mut self) {
        if self.membership.is_leaving || self.membership.meeting.is_joining {
            return;
        }
        let (is_full_mesh, seat) = (self.is_full_mesh(), self.directory.seat());
        let nodes: Vec<NodeId> = self.membership.listed.members.keys().copied().collect();
        let (now_ns, lease_ns) = (self.out.now_ns(), self.out.config().lease_ns);
        for node in nodes.into_iter().filter(|node| is_full_mesh || *node == seat) {
            let address = self.membership.due_listed_address(node, now_ns, lease_ns);
            self.out.extend(address.map(|address| Effect::Dial { address }));
        }
    }

    /// Records that no node answers at a listed address.
    pub(in crate::engine) fn record_listed_failure(&mut self, address: &str) {
        let due_ns = self.out.now_ns().saturating_add(self.out.config().lease_ns);
        let mut nodes = Vec::new();
        for (node, entry) in &mut self.membership.listed.members {
            if entry.address == address {
                (entry.has_failed, entry.due_ns) = (true, entry.due_ns.max(due_ns));
                nodes.push(*node);
            }
        }
        nodes.into_iter().for_each(|node| self.end_listed_inquiry(node));
    }
}
