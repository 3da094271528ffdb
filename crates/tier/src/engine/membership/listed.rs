//! The list of members in a store outside of the cluster: each member registers its address there, and all nodes read it, without node 0.
//!
//! ```text
//!   store ── listed: node and address ──► nothing is known of that number ──► dialled, by the higher number at once ──► it says who it is
//!         ── not listed any more ───────► not dialled any more
//! ```
//!
//! It is hearsay, and may have been written by hand: it says where somebody may be, never who that is, nor that an incarnation lives or is over.
//! So all that comes of a wrong word is a dial in vain.  Of whom the cluster itself knows, by [`super::pairing`], nothing is taken from here.
//! (Decision 021.)

use std::collections::BTreeMap;

use super::Membership;
use crate::effect::Effect;
use crate::engine::Engine;
use crate::ids::NodeId;
use crate::message::NodeState;

/// So often, once in a lease, somebody is looked for who does not answer where the store says.  Who says so again is looked for again.
const LOOKS_MAX: u32 = 256;

/// What is heard of the list of members.  Ephemeral numbers are ignored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listing {
    /// This is all of it.
    All(BTreeMap<NodeId, String>),
    /// A member says where it is dialled.
    Is(NodeId, String),
    /// One does not say so any more.
    Gone(NodeId),
}

/// The list, as far as it was heard.
#[derive(Debug, Default)]
pub(in crate::engine) struct Listed {
    members: BTreeMap<NodeId, Word>,
    /// Whether all of it was.
    is_known: bool,
}

/// Where a member says that it is.
#[derive(Debug)]
struct Word {
    address: String,
    /// How often it will be dialled there, and when.
    looks: u32,
    due_ns: u64,
    /// Whether it was in vain.
    has_failed: bool,
}

impl Listed {
    pub(in crate::engine) fn has(&self, node: NodeId) -> bool {
        self.members.contains_key(&node)
    }

    pub(in crate::engine) fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether the list is known, and lacks that node.
    pub(in crate::engine) fn lacks(&self, node: NodeId) -> bool {
        self.is_known && !self.has(node)
    }

    /// All who are there by the list alone, and how they seem to be.
    pub(in crate::engine) fn states(&self) -> impl Iterator<Item = (NodeId, NodeState)> {
        self.members.iter().map(|(node, word)| {
            (*node, if word.has_failed { NodeState::Silent } else { NodeState::Unconnected })
        })
    }

    fn note(&mut self, node: NodeId, address: String, due_ns: u64) {
        self.members.insert(node, Word { address, looks: LOOKS_MAX, due_ns, has_failed: false });
    }
}

impl Membership {
    /// Where a member is to be found of whom nothing is known but that.
    pub(in crate::engine) fn where_listed(&self, node: NodeId) -> Option<&str> {
        let is_known = self.members.peer_of(node).is_some()
            || !self.pairings.incarnations_of(node).is_empty()
            || self.meeting.has_node(node);
        self.listed.members.get(&node).filter(|_| !is_known).map(|word| word.address.as_str())
    }

    /// The same, if it is to be looked for now.
    fn look_where_listed(&mut self, node: NodeId, now_ns: u64, lease_ns: u64) -> Option<String> {
        let address = self.where_listed(node)?.to_owned();
        // One that did not answer when this node joined is dialled again and again in any case.
        let is_sought = self.pairings.is_stranger(&address);
        let word = self.listed.members.get_mut(&node)?;
        let is_due = word.looks > 0 && word.due_ns <= now_ns && !is_sought;
        if is_due {
            (word.looks, word.due_ns) = (word.looks - 1, now_ns.saturating_add(lease_ns));
        }
        is_due.then_some(address)
    }
}

impl Engine {
    /// Something was heard of the list of members that a store outside of the cluster has.
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
                    if known.is_none_or(|word| word.address != address) {
                        self.note_listed(node, address);
                    }
                }
            }
            Listing::Is(node, address) if self.is_other_member(node) => self.note_listed(node, address),
            Listing::Is(..) => {}
            Listing::Gone(node) => {
                self.membership.listed.members.remove(&node);
            }
        }
        self.out.push(Effect::MembersChanged);
        self.dial_the_listed();
        self.settle();
    }

    fn is_other_member(&self, node: NodeId) -> bool {
        !node.is_ephemeral() && node != self.out.incarnation().node
    }

    /// The higher number dials, as ever; the lower one when that has not come about for a lease.
    fn note_listed(&mut self, node: NodeId, address: String) {
        let is_ours = node < self.out.incarnation().node;
        let wait_ns = if is_ours { 0 } else { self.out.config().lease_ns };
        self.membership.listed.note(node, address, self.out.now_ns().saturating_add(wait_ns));
    }

    /// Dials those of a small cluster of whom nothing else is known; of a large one they are dialled when they are used, but for the seat of the directory.
    pub(in crate::engine) fn dial_the_listed(&mut self) {
        if self.membership.is_leaving || self.membership.meeting.is_joining {
            return;
        }
        let (is_full_mesh, seat) = (self.is_full_mesh(), self.directory.seat());
        let nodes: Vec<NodeId> = self.membership.listed.members.keys().copied().collect();
        let (now_ns, lease_ns) = (self.out.now_ns(), self.out.config().lease_ns);
        for node in nodes.into_iter().filter(|node| is_full_mesh || *node == seat) {
            let address = self.membership.look_where_listed(node, now_ns, lease_ns);
            self.out.extend(address.map(|address| Effect::Dial { address }));
        }
    }

    /// Nobody answers there.
    pub(in crate::engine) fn note_listed_in_vain(&mut self, address: &str) {
        let due_ns = self.out.now_ns().saturating_add(self.out.config().lease_ns);
        let mut nodes = Vec::new();
        for (node, word) in &mut self.membership.listed.members {
            if word.address == address {
                (word.has_failed, word.due_ns) = (true, word.due_ns.max(due_ns));
                nodes.push(*node);
            }
        }
        nodes.into_iter().for_each(|node| self.end_search(node));
    }
}
