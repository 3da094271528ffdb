//! First meetings, and what waits for them.  Beyond [`EngineConfig::full_mesh_nodes_max`] nodes, a member is dialled on
//! first use; in a smaller cluster, as soon as the directory announces it.
//!
//! ```text
//!   announced by directory ──> unconnected ── used ──> dialled ──> paired: queued messages go out in order
//!         │                              ▲                   ▲ │
//!         │ up to 64 nodes               │ of more           │ │ refused, or a lease is over
//!         └──────────────────────────────────────────────────┘ ▼
//!                                        └──── waiters fail, as at the end of a pairing ──> silent
//! ```
//!
//! So a joining node waits for the directory only: a member that the directory heard lately may have lost power since,
//! and only those that need it wait.  This holds for the first meeting alone: what needs a lost or unreachable peer
//! fails at once.
//!
//! The directory's announcement of a member may be in flight.  A member named by a home is awaited as long as a dial
//! would take.  For an unknown number this node asks the directory, which announces all members before it answers.
//!
//! Two rules preserve the guarantees of a full mesh.  A mapper connects to a region's home and to all owners of its
//! chunks before the home last reports their places, so no access uses a connection younger than that report.  And
//! before a node acknowledges a freeze, it connects to the node that receives the bytes.  The rest follows, since a
//! node that is not connected reaches nothing here and need not be told anything.  (Decisions 020 and 023.)

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
    /// Numbers that the directory is asked about, or that are dialled at their listed address.
    inquiries: BTreeMap<NodeId, Inquiry>,
    /// Requesters to acknowledge once the target of a region's move is connected, or cannot be.
    moves: BTreeMap<Requester, NodeIncarnation>,
}

/// A dial in flight.  Limits on sessions and peers bound its waiters.
#[derive(Debug)]
struct Dial {
    /// When it fails, in ns.
    due_ns: u64,
    waiting: VecDeque<DialWaiter>,
}

/// An inquiry about a number.
#[derive(Debug)]
struct Inquiry {
    /// When it fails, in ns; `u64::MAX` if the directory answers.
    due_ns: u64,
    waiting: VecDeque<DialWaiter>,
}

/// An action that waits until a member is connected.
#[derive(Debug)]
pub(super) enum DialWaiter {
    /// Send it.
    Message(Message),
    /// Copy a chunk out of the member's memory.
    Copy { requester: Requester, from: Extent, to: Extent },
    /// Continue a command that copies out of its memory.
    Step(u64),
    /// Map a region with chunks there: asks the home again.
    Mapping {
        op: OpId,
        session: SessionId,
        wanted: Permissions,
        unmet: Vec<NodeIncarnation>,
        region: RegionId,
        home: NodeIncarnation,
    },
    /// Acknowledge a freeze.
    Move(Requester),
    /// Serve a request.
    Request(Requester, Box<Request>),
}

impl OnDemand {
    /// When the next dial or inquiry fails, in ns.
    pub(super) fn deadline_ns(&self) -> u64 {
        let dials = self.dials.values().map(|dial| dial.due_ns);
        dials.chain(self.inquiries.values().map(|inquiry| inquiry.due_ns)).min().unwrap_or(u64::MAX)
    }

    pub(super) fn is_dialling(&self, incarnation: NodeIncarnation) -> bool {
        self.dials.contains_key(&incarnation)
    }

    /// The incarnation of that number that is being dialled.
    pub(super) fn dialled(&self, node: NodeId) -> Option<NodeIncarnation> {
        self.dials.keys().rev().find(|incarnation| incarnation.node == node).copied()
    }

    /// Whether a member of that number is being dialled or inquired about.
    pub(super) fn is_awaited(&self, node: NodeId) -> bool {
        self.dialled(node).is_some() || self.inquiries.contains_key(&node)
    }

    fn begin(&mut self, incarnation: NodeIncarnation, due_ns: u64) {
        self.dials.entry(incarnation).or_insert(Dial { due_ns, waiting: VecDeque::new() });
    }

    fn wait(&mut self, incarnation: NodeIncarnation, waiting: DialWaiter) {
        let dial = self.dials.get_mut(&incarnation).expect("being dialled");
        dial.waiting.push_back(waiting);
    }
}

impl EngineConfig {
    /// Whether a joining node connects to all of so many nodes.
    pub(in crate::engine) fn is_full_mesh(&self, nodes: usize) -> bool {
        nodes <= self.full_mesh_nodes_max
    }
}

impl Context<'_> {
    /// Dials a member that this node is about to use.  Returns true while the dial is in flight; false if the member is
    /// connected, or cannot be.
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
        } else if !pairings.may_be_unannounced(incarnation) {
            return false;
        }
        let due_ns = self.now_ns() + self.lease_ns();
        self.out().on_demand().begin(incarnation, due_ns);
        true
    }

    /// As [`Context::reach_out`], by number.
    pub(super) fn reach_out_to(&mut self, node: NodeId) -> bool {
        let incarnation = self.unmet_member(node);
        incarnation.is_some_and(|incarnation| self.reach_out(incarnation))
    }

    /// The member of that number that is being dialled, or will be on first use.
    pub(super) fn unmet_member(&self, node: NodeId) -> Option<NodeIncarnation> {
        let unconnected = self.membership().pairings().unconnected(node);
        unconnected.or_else(|| self.dialled(node))
    }

    /// Asks the directory about an unknown number; if the directory is unreachable, dials the address listed outside of
    /// the cluster.  Returns true while that is in flight.
    pub(super) fn inquire(&mut self, node: NodeId) -> bool {
        if self.out().on_demand().inquiries.contains_key(&node) {
            return true;
        }
        let seat = self.seat();
        let can_ask = seat != node && self.members().peer_of(seat).is_some();
        if self.membership().is_leaving() || self.members().has(node) {
            return false;
        }
        let mut inquiry = Inquiry { due_ns: u64::MAX, waiting: VecDeque::new() };
        if can_ask {
            self.out().on_demand().inquiries.insert(node, inquiry);
            self.ask_directory(Request::ListMembers, Purpose::Inquiry(node));
            return true;
        }
        let Some(address) = self.membership().listed_address(node).map(str::to_owned) else { return false };
        inquiry.due_ns = self.now_ns() + self.lease_ns();
        self.out().on_demand().inquiries.insert(node, inquiry);
        self.push(Effect::Dial { address });
        true
    }

    /// Queues a waiter for the inquiry that [`Context::inquire`] started.
    pub(super) fn wait_for_inquiry(&mut self, node: NodeId, waiting: DialWaiter) {
        let inquiry = self.out().on_demand().inquiries.get_mut(&node);
        inquiry.expect("in flight").waiting.push_back(waiting);
    }

    /// Queues a waiter for the dial that [`Context::reach_out`] started.
    pub(super) fn wait_until_connected(&mut self, incarnation: NodeIncarnation, waiting: DialWaiter) {
        self.out().on_demand().wait(incarnation, waiting);
    }

    /// Queues a message to a peer that is not connected if it is being dialled, and drops it otherwise.
    pub(super) fn queue_for_dial(&mut self, to: NodeId, message: Message) {
        if let Some(incarnation) =
            self.unmet_member(to).filter(|incarnation| self.out().on_demand().is_dialling(*incarnation))
        {
            self.wait_until_connected(incarnation, DialWaiter::Message(message));
        }
    }

    /// An owner of the region's chunks, or the target of its move, to connect before the region is mapped.  Skips the
    /// `unmet`.
    pub(super) fn owner_to_connect(
        &mut self,
        reply: &MappedReply,
        unmet: &[NodeIncarnation],
    ) -> Option<NodeIncarnation> {
        let owners = reply.extents.iter().map(|extent| extent.owner).chain(reply.moving_to);
        owners.filter(|owner| !unmet.contains(owner) && self.reach_out(*owner)).last()
    }

    /// A home froze a chunk in order to move it.
    pub(super) fn note_move(&mut self, requester: Requester, to: Option<NodeIncarnation>) {
        if let Some(to) = to.filter(|to| self.reach_out(*to)) {
            self.out().on_demand().moves.insert(requester, to);
        }
    }

    /// All accesses that a change waits for have ended.
    pub(super) fn acknowledge(&mut self, requester: Requester) {
        let to = self.out().on_demand().moves.remove(&requester);
        match to.filter(|to| self.out().on_demand().is_dialling(*to)) {
            Some(to) => self.wait_until_connected(to, DialWaiter::Move(requester)),
            None => self.answer(requester, Ok(Reply::Done)),
        }
    }
}

impl Engine {
    /// Dials a member that this node is about to use.  Returns true while the dial is in flight; false if the member is
    /// connected, or cannot be.
    pub fn use_node(&mut self, now_ns: u64, node: NodeId) -> bool {
        self.out.set_now(now_ns);
        !self.lives(node) && (self.cx().reach_out_to(node) || self.cx().inquire(node))
    }

    /// Whether a member is being dialled for the first time, or the directory is asked about it.
    pub fn is_connecting(&self, node: NodeId) -> bool {
        !self.lives(node) && self.out.is_awaited(node)
    }

    /// The directory announced a new member: a small cluster meets it now, a large one if something waits for it.
    pub(super) fn await_first_meeting(&mut self, incarnation: NodeIncarnation) {
        let due_ns = self.out.now_ns() + self.out.config().lease_ns;
        self.out.on_demand().begin(incarnation, due_ns);
    }

    /// The directory has announced all its members, or is lost.
    pub(super) fn handle_inquired(&mut self, node: NodeId, body: Result<Reply, ErrorReply>) {
        if let Ok(Reply::Members { members }) = body {
            self.membership.learn(members, self.out.incarnation().node, self.out.now_ns());
            self.out.push(Effect::MembersChanged);
        }
        self.end_inquiry(node);
    }

    /// Ends an inquiry, with or without a result.
    pub(super) fn end_inquiry(&mut self, node: NodeId) {
        let Some(Inquiry { waiting, .. }) = self.out.on_demand().inquiries.remove(&node) else { return };
        waiting.into_iter().for_each(|waiting| self.resume_after_inquiry(node, waiting));
        self.out.push(Effect::MembersChanged);
    }

    /// Ends an inquiry that did not ask the directory.
    pub(super) fn end_search(&mut self, node: NodeId) {
        let inquiry = self.out.on_demand().inquiries.get(&node);
        if inquiry.is_some_and(|inquiry| inquiry.due_ns < u64::MAX) {
            self.end_inquiry(node);
        }
    }

    fn resume_after_inquiry(&mut self, node: NodeId, waiting: DialWaiter) {
        // The message goes out once the member is connected.
        let is_there = self.lives(node) || self.cx().reach_out_to(node);
        match waiting {
            DialWaiter::Message(Message::Request { id, .. }) if !is_there => {
                let refusal = self.cx().absence_error(node);
                self.out.refuse_pending(id, refusal)
            }
            DialWaiter::Request(requester, _) if !is_there => {
                let refusal = self.cx().absence_error(node);
                self.cx().answer(requester, Err(refusal))
            }
            waiting => self.resume(node, waiting),
        }
    }

    /// Whether a member is connected on first use.
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
            DialWaiter::Message(message) => self.cx().send(node, message),
            DialWaiter::Copy { requester, from, to } => self.owner_side().serve_copy(requester, from, to),
            DialWaiter::Step(id) => {
                let broken_off = self.owner_side().next_step(id);
                self.resume_after_break_off(broken_off);
            }
            DialWaiter::Mapping { op, session, wanted, unmet, region, home } => {
                self.session_side().act(op, Act::Map { session, wanted, unmet }, region, home.node, 0)
            }
            DialWaiter::Move(requester) => self.cx().answer(requester, Ok(Reply::Done)),
            DialWaiter::Request(requester, request) => self.serve_if_pending(requester, *request),
        }
    }

    /// Serves a request, unless its requester was lost meanwhile.
    fn serve_if_pending(&mut self, requester: Requester, request: Request) {
        if self.out.is_serving(requester) {
            self.handle_request(requester, request);
        }
    }

    /// A member could not be connected, or its incarnation has ended.
    pub(super) fn fail_on_demand(&mut self, incarnation: NodeIncarnation) {
        let Some(Dial { waiting, .. }) = self.out.on_demand().dials.remove(&incarnation) else { return };
        self.membership.note_unmet(incarnation);
        waiting.into_iter().for_each(|waiting| self.fail_waiter(incarnation, waiting));
        self.out.push(Effect::MembersChanged);
    }

    fn fail_waiter(&mut self, incarnation: NodeIncarnation, waiting: DialWaiter) {
        let refusal = ErrorReply::PeerDown(incarnation.node);
        match waiting {
            DialWaiter::Message(Message::Request { id, .. }) => self.out.refuse_pending(id, refusal),
            DialWaiter::Message(_) => {}
            DialWaiter::Copy { requester, .. } => self.cx().answer(requester, Err(refusal)),
            DialWaiter::Step(id) => {
                let broken_off = self.owner_side().end_running(id, Err(refusal));
                self.resume_after_break_off(broken_off);
            }
            DialWaiter::Mapping { op, session, wanted, mut unmet, region, home } => {
                unmet.push(incarnation);
                self.session_side().act(op, Act::Map { session, wanted, unmet }, region, home.node, 0)
            }
            // This node cannot reach the chunk at its new place anyway.
            DialWaiter::Move(requester) => self.cx().answer(requester, Ok(Reply::Done)),
            DialWaiter::Request(requester, request) => self.serve_if_pending(requester, *request),
        }
    }

    /// A node is connected: waiters for another incarnation of its number fail.
    pub(super) fn fail_dials_to_rivals_of(&mut self, incarnation: NodeIncarnation) {
        let dials = self.out.on_demand().dials.keys().copied();
        let rivals: Vec<NodeIncarnation> =
            dials.filter(|other| other.node == incarnation.node && *other != incarnation).collect();
        rivals.into_iter().for_each(|rival| self.fail_on_demand(rival));
    }

    /// A dial failed.  Ignored if the member has dialled this node meanwhile.
    pub(super) fn fail_dials_to(&mut self, address: &str) {
        let membership = &self.membership;
        let is_at =
            |incarnation: &NodeIncarnation| membership.pairings().address(*incarnation) == Some(address);
        let at: Vec<NodeIncarnation> = (self.out.on_demand().dials.keys().copied())
            .filter(|incarnation| is_at(incarnation) && !membership.meeting().has(*incarnation))
            .collect();
        at.into_iter().for_each(|incarnation| self.fail_on_demand(incarnation));
    }

    /// Fails dials and inquiries past their time.
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
