//! Connections on demand: beyond [`EngineConfig::full_mesh_nodes_max`] nodes, a member is dialled when it is first used.
//!
//! ```text
//!   told of it by the directory ──> unconnected ── used ──> dialled ──> paired: what waits is said, in order
//!                                        ▲                     │
//!                                        └──── what waits fails, as by the end of a pairing ── refused, or a lease is over
//! ```
//!
//! Two rules keep what holds in a full mesh.  Who maps a region is connected to its home and to all owners of its chunks before
//! the home says for the last time where they are: so no memory is touched over a connection that is younger than the home's word.  And
//! who acknowledges a freeze is connected to the node that the bytes are brought to.  All else follows from what is true of nodes
//! that have not met yet: who is not connected reaches nothing here, and needs to hear of nothing.  (Decision 020.)

use std::collections::{BTreeMap, VecDeque};

use super::context::Context;
use super::sessions::Act;
use super::{Engine, EngineConfig};
use crate::effect::{Effect, OpId};
use crate::ids::{NodeId, NodeLife, RegionId, Requester, SessionId};
use crate::layout::Extent;
use crate::message::{ErrorReply, MappedReply, Message, Reply};
use crate::permissions::Permissions;

/// Members that are dialled because they are used.
#[derive(Debug, Default)]
pub(super) struct OnDemand {
    dials: BTreeMap<NodeLife, Dial>,
    /// Who is answered when the node is connected to which it moves a region, or cannot be.
    moves: BTreeMap<Requester, NodeLife>,
}

/// A dial under way.  What waits for it is bounded by what sessions and peers may have under way.
#[derive(Debug)]
struct Dial {
    /// Then it has failed, in ns.
    due_ns: u64,
    waiting: VecDeque<Waiting>,
}

/// What waits until a member is connected.
#[derive(Debug)]
pub(super) enum Waiting {
    /// To be said to it.
    Message(Message),
    /// A chunk of its to be copied.
    Copy { requester: Requester, from: Extent, to: Extent },
    /// A step of a command that copies out of its memory.
    Step(u64),
    /// A region to be mapped with chunks of its: the home is asked anew.
    Mapping { op: OpId, session: SessionId, wanted: Permissions, region: RegionId, home: NodeLife },
    /// A freeze to be acknowledged.
    Move(Requester),
}

impl OnDemand {
    /// When a dial has failed.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.dials.values().map(|dial| dial.due_ns).min().unwrap_or(u64::MAX)
    }

    pub(super) fn is_dialling(&self, life: NodeLife) -> bool {
        self.dials.contains_key(&life)
    }

    fn wait(&mut self, life: NodeLife, waiting: Waiting) {
        let dial = self.dials.get_mut(&life).expect("it is being dialled");
        dial.waiting.push_back(waiting);
    }
}

impl EngineConfig {
    /// Whether those who join a cluster of so many nodes are connected to all of them.
    pub(super) fn is_full_mesh(&self, nodes: usize) -> bool {
        nodes <= self.full_mesh_nodes_max
    }
}

impl Context<'_> {
    /// Has a member connected that this node is about to use.  Whether that is under way; else it is connected, or cannot be.
    pub(super) fn reach_out(&mut self, life: NodeLife) -> bool {
        let (membership, pairings) = (self.membership(), self.membership().pairings());
        if membership.is_leaving() || !pairings.is_on_demand(life) {
            return false;
        }
        let due_ns = self.now_ns() + self.lease_ns();
        if self.out().on_demand().is_dialling(life) {
            return true;
        }
        if !membership.meeting().has(life) {
            let Some(address) = pairings.address(life).map(str::to_owned) else { return false };
            self.push(Effect::Dial { address });
        }
        self.out().on_demand().dials.insert(life, Dial { due_ns, waiting: VecDeque::new() });
        true
    }

    /// The same by its number.
    pub(super) fn reach_out_to(&mut self, node: NodeId) -> bool {
        let life = self.membership().pairings().unconnected(node);
        life.is_some_and(|life| self.reach_out(life))
    }

    /// Has something done once a member is connected that [`Context::reach_out`] dials.
    pub(super) fn wait_until_connected(&mut self, life: NodeLife, waiting: Waiting) {
        self.out().on_demand().wait(life, waiting);
    }

    /// Somebody is not connected: what is said is kept if it is being dialled, and dropped else.
    pub(super) fn say_on_demand(&mut self, to: NodeId, message: Message) {
        let life = self.membership().pairings().unconnected(to);
        if let Some(life) = life.filter(|life| self.out().on_demand().is_dialling(*life)) {
            self.wait_until_connected(life, Waiting::Message(message));
        }
    }

    /// An owner of chunks of a region, or the node that they are brought to, that is to be connected before the region is mapped.
    pub(super) fn owner_to_connect(&mut self, reply: &MappedReply) -> Option<NodeLife> {
        let owners = reply.extents.iter().map(|extent| extent.owner).chain(reply.moving_to);
        owners.filter(|life| self.reach_out(*life)).last()
    }

    /// A home has frozen a chunk in order to move it.
    pub(super) fn note_move(&mut self, requester: Requester, to: Option<NodeLife>) {
        if let Some(to) = to.filter(|to| self.reach_out(*to)) {
            self.out().on_demand().moves.insert(requester, to);
        }
    }

    /// No access is under way any more that a change is to wait for.
    pub(super) fn acknowledge(&mut self, requester: Requester) {
        let to = self.out().on_demand().moves.remove(&requester);
        match to.filter(|to| self.out().on_demand().is_dialling(*to)) {
            Some(to) => self.wait_until_connected(to, Waiting::Move(requester)),
            None => self.answer(requester, Ok(Reply::Done)),
        }
    }
}

impl Engine {
    /// Has a member connected that this node is about to use.  Whether that is under way; else it is connected, or cannot be.
    pub fn use_node(&mut self, now_ns: u64, node: NodeId) -> bool {
        self.out.set_now(now_ns);
        self.cx().reach_out_to(node)
    }

    /// Whether a member is being connected because it is used.
    pub fn is_connecting(&self, node: NodeId) -> bool {
        let life = self.membership.pairings().unconnected(node);
        life.is_some_and(|life| self.out.is_dialling_on_demand(life))
    }

    /// Whether a member is connected when one of the two first uses the other.
    pub fn is_unconnected(&self, node: NodeId) -> bool {
        self.membership.pairings().unconnected(node).is_some()
    }

    /// A member is connected.
    pub(super) fn resume_on_demand(&mut self, life: NodeLife) {
        let waiting = self.out.on_demand().dials.remove(&life).map(|dial| dial.waiting);
        waiting.into_iter().flatten().for_each(|waiting| self.resume(life, waiting));
    }

    fn resume(&mut self, life: NodeLife, waiting: Waiting) {
        match waiting {
            Waiting::Message(message) => self.cx().say(life.node, message),
            Waiting::Copy { requester, from, to } => self.owner_side().serve_copy(requester, from, to),
            Waiting::Step(id) => {
                let broken_off = self.owner_side().next_step(id);
                self.end_broken_off(broken_off);
            }
            Waiting::Mapping { op, session, wanted, region, home } => {
                self.session_side().act(op, Act::Map { session, wanted }, region, home.node, 0)
            }
            Waiting::Move(requester) => self.cx().answer(requester, Ok(Reply::Done)),
        }
    }

    /// A member could not be connected, or its life is over.
    pub(super) fn fail_on_demand(&mut self, life: NodeLife) {
        let Some(Dial { waiting, .. }) = self.out.on_demand().dials.remove(&life) else { return };
        waiting.into_iter().for_each(|waiting| self.give_up_waiting(life.node, waiting));
        self.fail_requests_to(life);
        self.out.push(Effect::MembersChanged);
    }

    fn give_up_waiting(&mut self, node: NodeId, waiting: Waiting) {
        let refusal = ErrorReply::PeerDown(node);
        match waiting {
            // Those that ask for something fail with all requests to the node.
            Waiting::Message(_) => {}
            Waiting::Copy { requester, .. } => self.cx().answer(requester, Err(refusal)),
            Waiting::Step(id) => {
                let broken_off = self.owner_side().end_running(id, Err(refusal));
                self.end_broken_off(broken_off);
            }
            Waiting::Mapping { op, region, home, .. } => {
                self.session_side().announce_unmapped(region, home);
                self.cx().finish(op, Err(refusal.into()));
            }
            // It will not reach the chunk at its new place.
            Waiting::Move(requester) => self.cx().answer(requester, Ok(Reply::Done)),
        }
    }

    /// A dial has failed; not if the member has dialled us meanwhile.
    pub(super) fn fail_dials_to(&mut self, address: &str) {
        let membership = &self.membership;
        let is_at = |life: &NodeLife| membership.pairings().address(*life) == Some(address);
        let at: Vec<NodeLife> = (self.out.on_demand().dials.keys().copied())
            .filter(|life| is_at(life) && !membership.meeting().has(*life))
            .collect();
        at.into_iter().for_each(|life| self.fail_on_demand(life));
    }

    /// Whose dials have taken a lease are given up.
    pub(super) fn fail_overdue_dials(&mut self) {
        let now_ns = self.out.now_ns();
        let overdue = self.out.on_demand().dials.iter().filter(|(_, dial)| dial.due_ns <= now_ns);
        let overdue: Vec<NodeLife> = overdue.map(|(life, _)| *life).collect();
        overdue.into_iter().for_each(|life| self.fail_on_demand(life));
    }
}
