//! First meetings, and what waits for them.  Beyond [`EngineConfig::full_mesh_nodes_max`] nodes, a member is dialled when it is first used;
//! in a smaller cluster as soon as the directory announces it.
//!
//! ```text
//!   told of it by the directory ──> unconnected ── used ──> dialled ──> paired: what waits is said, in order
//!         │                              ▲                   ▲ │
//!         │ up to 64 nodes               │ of more           │ │ refused, or a lease is over
//!         └──────────────────────────────────────────────────┘ ▼
//!                                        └──── what waits fails, as by the end of a pairing ──> silent
//! ```
//!
//! So who joins waits for nobody but the directory: a member that it has heard of late may have lost power since, and the wait is with those who
//! need that member.  It is for the first meeting alone: who was lost, or could not be reached, is out of reach, and what needs it fails at once.
//!
//! The directory's word of a member may itself be under way.  Whom a home names is awaited for as long as a dial would be; of a number that nobody
//! has named yet the directory is asked, which has told of all its members by the time that it answers.
//!
//! Two rules keep what holds in a full mesh.  Who maps a region is connected to its home and to all owners of its chunks before
//! the home says for the last time where they are: so no memory is touched over a connection that is younger than the home's word.  And
//! who acknowledges a freeze is connected to the node that the bytes are brought to.  All else follows from what is true of nodes
//! that have not met yet: who is not connected reaches nothing here, and needs to hear of nothing.  (Decisions 020 and 023.)

use std::collections::{BTreeMap, VecDeque};

use super::context::{Context, Purpose};
use super::sessions::Act;
use super::{Engine, EngineConfig};
use crate::effect::{Effect, OpId};
use crate::ids::{NodeId, NodeIncarnation, RegionId, Requester, SessionId};
use crate::layout::Extent;
use crate::message::{ErrorReply, MappedReply, Message, Reply, Request};
use crate::permissions::Permissions;

/// Members that are met for the first time, because they are used or new.
#[derive(Debug, Default)]
pub(super) struct OnDemand {
    dials: BTreeMap<NodeIncarnation, Dial>,
    /// Numbers that the directory is asked about, or that are looked for where a store outside of the cluster says that they are.
    inquiries: BTreeMap<NodeId, Inquiry>,
    /// Who is answered when the node is connected to which it moves a region, or cannot be.
    moves: BTreeMap<Requester, NodeIncarnation>,
}

/// A dial under way.  What waits for it is bounded by what sessions and peers may have under way.
#[derive(Debug)]
struct Dial {
    /// Then it has failed, in ns.
    due_ns: u64,
    waiting: VecDeque<DialWaiter>,
}

/// What waits for who is behind a number.
#[derive(Debug)]
struct Inquiry {
    /// Then nobody is found; never, where the directory is to answer.
    due_ns: u64,
    waiting: VecDeque<DialWaiter>,
}

/// What waits until a member is connected.
#[derive(Debug)]
pub(super) enum DialWaiter {
    /// To be said to it.
    Message(Message),
    /// A chunk of its to be copied.
    Copy { requester: Requester, from: Extent, to: Extent },
    /// A step of a command that copies out of its memory.
    Step(u64),
    /// A region to be mapped with chunks of its: the home is asked anew.
    Mapping {
        op: OpId,
        session: SessionId,
        wanted: Permissions,
        unmet: Vec<NodeIncarnation>,
        region: RegionId,
        home: NodeIncarnation,
    },
    /// A freeze to be acknowledged.
    Move(Requester),
    /// A request of another node, or of ours, to be served.
    Request(Requester, Box<Request>),
}

impl OnDemand {
    /// When a dial has failed.
    pub(super) fn deadline_ns(&self) -> u64 {
        let dials = self.dials.values().map(|dial| dial.due_ns);
        dials.chain(self.inquiries.values().map(|inquiry| inquiry.due_ns)).min().unwrap_or(u64::MAX)
    }

    pub(super) fn is_dialling(&self, incarnation: NodeIncarnation) -> bool {
        self.dials.contains_key(&incarnation)
    }

    /// The member of that number that is being met, if one is.
    pub(super) fn dialled(&self, node: NodeId) -> Option<NodeIncarnation> {
        self.dials.keys().rev().find(|incarnation| incarnation.node == node).copied()
    }

    /// Whether a member of that number is being met, or asked about.
    pub(super) fn is_awaited(&self, node: NodeId) -> bool {
        self.dialled(node).is_some() || self.inquiries.contains_key(&node)
    }

    fn begin(&mut self, incarnation: NodeIncarnation, due_ns: u64) {
        self.dials.entry(incarnation).or_insert(Dial { due_ns, waiting: VecDeque::new() });
    }

    fn wait(&mut self, incarnation: NodeIncarnation, waiting: DialWaiter) {
        let dial = self.dials.get_mut(&incarnation).expect("it is being dialled");
        dial.waiting.push_back(waiting);
    }
}

impl EngineConfig {
    /// Whether those who join a cluster of so many nodes are connected to all of them.
    pub(in crate::engine) fn is_full_mesh(&self, nodes: usize) -> bool {
        nodes <= self.full_mesh_nodes_max
    }
}

impl Context<'_> {
    /// Has a member connected that this node is about to use.  Whether that is under way; else it is connected, or cannot be.
    pub(super) fn reach_out(&mut self, incarnation: NodeIncarnation) -> bool {
        if self.membership().is_leaving() || self.is_present(incarnation) {
            return false;
        }
        if self.out().on_demand().is_dialling(incarnation) {
            return true;
        }
        let (membership, pairings) = (self.membership(), self.membership().pairings());
        if pairings.is_on_demand(incarnation) {
            if !membership.meeting().has(incarnation) {
                let Some(address) = pairings.address(incarnation).map(str::to_owned) else { return false };
                self.push(Effect::Dial { address });
            }
        } else if !pairings.may_be_unheard_of(incarnation) {
            return false;
        }
        let due_ns = self.now_ns() + self.lease_ns();
        self.out().on_demand().begin(incarnation, due_ns);
        true
    }

    /// The same by its number.
    pub(super) fn reach_out_to(&mut self, node: NodeId) -> bool {
        let incarnation = self.to_be_met(node);
        incarnation.is_some_and(|incarnation| self.reach_out(incarnation))
    }

    /// The member of that number that is being met, or will be when it is used.
    pub(super) fn to_be_met(&self, node: NodeId) -> Option<NodeIncarnation> {
        let unconnected = self.membership().pairings().unconnected(node);
        unconnected.or_else(|| self.dialled(node))
    }

    /// Asks the directory about a number that nobody has named yet; where that is away, who is listed outside of the cluster is looked for where it
    /// says that it is.  Whether that is under way.
    pub(super) fn inquire(&mut self, node: NodeId) -> bool {
        if self.out().on_demand().inquiries.contains_key(&node) {
            return true;
        }
        let seat = self.seat();
        let can_tell = seat != node && self.members().peer_of(seat).is_some();
        if self.membership().is_leaving() || self.members().has(node) {
            return false;
        }
        let mut inquiry = Inquiry { due_ns: u64::MAX, waiting: VecDeque::new() };
        if can_tell {
            self.out().on_demand().inquiries.insert(node, inquiry);
            self.ask_directory(Request::ListMembers, Purpose::Inquiry(node));
            return true;
        }
        let Some(address) = self.membership().where_listed(node).map(str::to_owned) else { return false };
        inquiry.due_ns = self.now_ns() + self.lease_ns();
        self.out().on_demand().inquiries.insert(node, inquiry);
        self.push(Effect::Dial { address });
        true
    }

    /// Has something done once the directory has told of a number that [`Context::inquire`] asks about.
    pub(super) fn wait_until_told(&mut self, node: NodeId, waiting: DialWaiter) {
        let inquiry = self.out().on_demand().inquiries.get_mut(&node);
        inquiry.expect("it is under way").waiting.push_back(waiting);
    }

    /// Has something done once a member is connected that [`Context::reach_out`] dials.
    pub(super) fn wait_until_connected(&mut self, incarnation: NodeIncarnation, waiting: DialWaiter) {
        self.out().on_demand().wait(incarnation, waiting);
    }

    /// Somebody is not connected: what is said is kept if it is being dialled, and dropped else.
    pub(super) fn say_on_demand(&mut self, to: NodeId, message: Message) {
        if let Some(incarnation) =
            self.to_be_met(to).filter(|incarnation| self.out().on_demand().is_dialling(*incarnation))
        {
            self.wait_until_connected(incarnation, DialWaiter::Message(message));
        }
    }

    /// An owner of chunks of a region, or the node that they are brought to, that is to be connected before the region is mapped.
    /// Nobody waits for those who could not be met.
    pub(super) fn owner_to_connect(
        &mut self,
        reply: &MappedReply,
        unmet: &[NodeIncarnation],
    ) -> Option<NodeIncarnation> {
        let owners = reply.extents.iter().map(|extent| extent.owner).chain(reply.moving_to);
        owners.filter(|owner| !unmet.contains(owner) && self.reach_out(*owner)).last()
    }

    /// A home has frozen a chunk in order to move it.
    pub(super) fn note_move(&mut self, requester: Requester, to: Option<NodeIncarnation>) {
        if let Some(to) = to.filter(|to| self.reach_out(*to)) {
            self.out().on_demand().moves.insert(requester, to);
        }
    }

    /// No access is under way any more that a change is to wait for.
    pub(super) fn acknowledge(&mut self, requester: Requester) {
        let to = self.out().on_demand().moves.remove(&requester);
        match to.filter(|to| self.out().on_demand().is_dialling(*to)) {
            Some(to) => self.wait_until_connected(to, DialWaiter::Move(requester)),
            None => self.answer(requester, Ok(Reply::Done)),
        }
    }
}

impl Engine {
    /// Has a member connected that this node is about to use.  Whether that is under way; else it is connected, or cannot be.
    pub fn use_node(&mut self, now_ns: u64, node: NodeId) -> bool {
        self.out.set_now(now_ns);
        !self.lives(node) && (self.cx().reach_out_to(node) || self.cx().inquire(node))
    }

    /// Whether a member is about to be met for the first time, or the directory is asked whether it is one: what needs it waits.
    pub fn is_connecting(&self, node: NodeId) -> bool {
        !self.lives(node) && self.out.is_awaited(node)
    }

    /// The directory announces a member that we have not met: a small cluster meets it now, a large one if something waits for it.
    pub(super) fn await_first_meeting(&mut self, incarnation: NodeIncarnation) {
        let due_ns = self.out.now_ns() + self.out.config().lease_ns;
        self.out.on_demand().begin(incarnation, due_ns);
    }

    /// The directory has told of all its members, or is lost.
    pub(super) fn handle_inquired(&mut self, node: NodeId, body: Result<Reply, ErrorReply>) {
        if let Ok(Reply::Members { members }) = body {
            self.membership.learn(members, self.out.incarnation().node, self.out.now_ns());
            self.out.push(Effect::MembersChanged);
        }
        self.end_inquiry(node);
    }

    /// It is known who is behind a number, or nobody will say so.
    pub(super) fn end_inquiry(&mut self, node: NodeId) {
        let Some(Inquiry { waiting, .. }) = self.out.on_demand().inquiries.remove(&node) else { return };
        waiting.into_iter().for_each(|waiting| self.resume_told(node, waiting));
        self.out.push(Effect::MembersChanged);
    }

    /// Who was looked for without the directory is not found.
    pub(super) fn end_search(&mut self, node: NodeId) {
        let inquiry = self.out.on_demand().inquiries.get(&node);
        if inquiry.is_some_and(|inquiry| inquiry.due_ns < u64::MAX) {
            self.end_inquiry(node);
        }
    }

    fn resume_told(&mut self, node: NodeId, waiting: DialWaiter) {
        // It is said once the member is connected.
        let is_there = self.lives(node) || self.cx().reach_out_to(node);
        match waiting {
            DialWaiter::Message(Message::Request { id, .. }) if !is_there => {
                let refusal = self.cx().absence_of(node);
                self.out.refuse_asked(id, refusal)
            }
            DialWaiter::Request(requester, _) if !is_there => {
                let refusal = self.cx().absence_of(node);
                self.cx().answer(requester, Err(refusal))
            }
            waiting => self.resume(node, waiting),
        }
    }

    /// Whether a member is connected when one of the two first uses the other.
    pub fn is_unconnected(&self, node: NodeId) -> bool {
        self.membership.pairings().unconnected(node).is_some()
    }

    /// A member is connected.
    pub(super) fn resume_on_demand(&mut self, incarnation: NodeIncarnation) {
        let waiting = self.out.on_demand().dials.remove(&incarnation).map(|dial| dial.waiting);
        waiting.into_iter().flatten().for_each(|waiting| self.resume(incarnation.node, waiting));
    }

    fn resume(&mut self, node: NodeId, waiting: DialWaiter) {
        match waiting {
            DialWaiter::Message(message) => self.cx().say(node, message),
            DialWaiter::Copy { requester, from, to } => self.owner_side().serve_copy(requester, from, to),
            DialWaiter::Step(id) => {
                let broken_off = self.owner_side().next_step(id);
                self.end_broken_off(broken_off);
            }
            DialWaiter::Mapping { op, session, wanted, unmet, region, home } => {
                self.session_side().act(op, Act::Map { session, wanted, unmet }, region, home.node, 0)
            }
            DialWaiter::Move(requester) => self.cx().answer(requester, Ok(Reply::Done)),
            DialWaiter::Request(requester, request) => self.serve_later(requester, *request),
        }
    }

    /// Nothing is done for who was lost meanwhile.
    fn serve_later(&mut self, requester: Requester, request: Request) {
        if self.out.is_serving(requester) {
            self.handle_request(requester, request);
        }
    }

    /// A member could not be connected, or its incarnation is over.
    pub(super) fn fail_on_demand(&mut self, incarnation: NodeIncarnation) {
        let Some(Dial { waiting, .. }) = self.out.on_demand().dials.remove(&incarnation) else { return };
        self.membership.note_unmet(incarnation);
        waiting.into_iter().for_each(|waiting| self.give_up_waiting(incarnation, waiting));
        self.out.push(Effect::MembersChanged);
    }

    fn give_up_waiting(&mut self, incarnation: NodeIncarnation, waiting: DialWaiter) {
        let refusal = ErrorReply::PeerDown(incarnation.node);
        match waiting {
            DialWaiter::Message(Message::Request { id, .. }) => self.out.refuse_asked(id, refusal),
            DialWaiter::Message(_) => {}
            DialWaiter::Copy { requester, .. } => self.cx().answer(requester, Err(refusal)),
            DialWaiter::Step(id) => {
                let broken_off = self.owner_side().end_running(id, Err(refusal));
                self.end_broken_off(broken_off);
            }
            DialWaiter::Mapping { op, session, wanted, mut unmet, region, home } => {
                unmet.push(incarnation);
                self.session_side().act(op, Act::Map { session, wanted, unmet }, region, home.node, 0)
            }
            // It will not reach the chunk at its new place.
            DialWaiter::Move(requester) => self.cx().answer(requester, Ok(Reply::Done)),
            DialWaiter::Request(requester, request) => self.serve_later(requester, *request),
        }
    }

    /// A node is connected: what waits for another incarnation of its number waits in vain.
    pub(super) fn fail_dials_to_rivals_of(&mut self, incarnation: NodeIncarnation) {
        let dials = self.out.on_demand().dials.keys().copied();
        let rivals: Vec<NodeIncarnation> =
            dials.filter(|other| other.node == incarnation.node && *other != incarnation).collect();
        rivals.into_iter().for_each(|rival| self.fail_on_demand(rival));
    }

    /// A dial has failed; not if the member has dialled us meanwhile.
    pub(super) fn fail_dials_to(&mut self, address: &str) {
        let membership = &self.membership;
        let is_at =
            |incarnation: &NodeIncarnation| membership.pairings().address(*incarnation) == Some(address);
        let at: Vec<NodeIncarnation> = (self.out.on_demand().dials.keys().copied())
            .filter(|incarnation| is_at(incarnation) && !membership.meeting().has(*incarnation))
            .collect();
        at.into_iter().for_each(|incarnation| self.fail_on_demand(incarnation));
    }

    /// Whose dials have taken a lease are given up.
    pub(super) fn fail_overdue_dials(&mut self) {
        let now_ns = self.out.now_ns();
        let overdue = self.out.on_demand().dials.iter().filter(|(_, dial)| dial.due_ns <= now_ns);
        let overdue: Vec<NodeIncarnation> = overdue.map(|(incarnation, _)| *incarnation).collect();
        overdue.into_iter().for_each(|incarnation| self.fail_on_demand(incarnation));
        let overdue = self.out.on_demand().inquiries.iter().filter(|(_, inquiry)| inquiry.due_ns <= now_ns);
        let overdue: Vec<NodeId> = overdue.map(|(node, _)| *node).collect();
        overdue.into_iter().for_each(|node| self.end_inquiry(node));
    }
}
