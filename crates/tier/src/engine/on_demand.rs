//! First meetings (connections) of members, and the operations that wait for them. In a cluster of more than
//! [`EngineConfig::full_mesh_nodes_max`] nodes, a node dials a member on first use; in a smaller cluster, as soon as
//! the directory announces the member.
//!
//! ```text
//!   announced by directory ──> unconnected ── used ──> dialled ──> paired: queued messages go out in order
//!         │                              ▲                   ▲ │
//!         │ up to 64 nodes               │ of more           │ │ refused, or a lease is over
//!         └──────────────────────────────────────────────────┘ ▼
//!                                        └──── waiters fail, as at the end of a pairing ──> silent
//! ```
//!
//! So a joining node waits only for the directory. Any other member may have lost power since the directory last heard
//! from it, so only operations that need the member wait for it. They wait only for a first meeting: an operation that
//! needs a lost or unreachable peer fails at once. Since packets may get lost, a node repeats an unanswered dial until
//! the lease is over. A member that is connected by then gets one more lease to complete the meeting.
//!
//! A home may name a member whose announcement by the directory is still in flight. Operations wait for such a member
//! for as long as for a dial. If this node does not know a number, it asks the directory, which announces all members
//! before it answers.
//!
//! Two rules preserve the guarantees of a cluster in which all nodes are connected. First, a mapper connects to a
//! region's home and to all owners of its chunks. After connecting to an owner, the mapper asks the home again where
//! the chunks are. So every connection that an access uses is older than the home's last report. Second, before a node
//! acknowledges a freeze, it connects to the node that receives the bytes. No other rule is needed: a node that is not
//! connected cannot access this node's memory, so it needs no notice. (Decisions 020 and 023.)

use std::collections::{BTreeMap, VecDeque};

use super::context::{Context, Purpose};
use super::sessions::RegionAction;
use super::{Engine, EngineConfig};
use crate::effect::{Effect, OpId};
use crate::ids::{NodeId, NodeIncarnation, RegionId, Requester, SessionId};
use crate::layout::Extent;
use crate::message::{ErrorReply, MappedReply, Message, Reply, Request};
use crate::permissions::Permissions;

/// Members that are being met for the first time, because they are new or about to be used.
#[derive(Debug, Default)]
pub(super) struct OnDemand {
    dials: BTreeMap<NodeIncarnation, Dial>,
    /// Numbers that the directory was asked about, or that are being dialled at their listed addresses.
    inquiries: BTreeMap<NodeId, Inquiry>,
    /// Requesters to acknowledge once the target of a region's move is connected, or cannot be connected.
    moves: BTreeMap<Requester, NodeIncarnation>,
}

/// A dial in flight. Limits on sessions and peers bound its waiters.
#[derive(Debug)]
struct Dial {
    /// Time at which it fails, in ns.
    due_ns: u64,
    /// True if `due_ns` was postponed, because the member was connected by then.
    is_extended: bool,
    waiting: VecDeque<DialWaiter>,
}

/// An inquiry about an unknown number.
#[derive(Debug)]
struct Inquiry {
    /// Time at which it fails, in ns; `u64::MAX` if the directory was asked.
    due_ns: u64,
    waiting: VecDeque<DialWaiter>,
}

/// An action that waits until a member is connected.
#[derive(Debug)]
pub(super) enum DialWaiter {
    /// Send a message.
    Message(Message),
    /// Copy a chunk out of the member's memory.
    Copy { requester: Requester, from: Extent, to: Extent },
    /// Continue a command that copies out of the member's memory.
    Step(u64),
    /// Map a region with chunks at the member: repeats the request to the home.
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
    /// Returns the time in ns at which the next dial or inquiry fails, or `u64::MAX` without any.
    pub(super) fn deadline_ns(&self) -> u64 {
        let dials = self.dials.values().map(|dial| dial.due_ns);
        dials.chain(self.inquiries.values().map(|inquiry| inquiry.due_ns)).min().unwrap_or(u64::MAX)
    }

    pub(super) fn is_dialling(&self, incarnation: NodeIncarnation) -> bool {
        self.dials.contains_key(&incarnation)
    }

    /// Returns the incarnation with number `node` that this node is dialling, or `None`.
    pub(super) fn dialled(&self, node: NodeId) -> Option<NodeIncarnation> {
        self.dials.keys().rev().find(|incarnation| incarnation.node == node).copied()
    }

    /// Returns true if this node is dialling a member with number `node`, or asks the directory about the number.
    pub(super) fn is_awaited(&self, node: NodeId) -> bool {
        self.dialled(node).is_some() || self.inquiries.contains_key(&node)
    }

    fn begin(&mut self, incarnation: NodeIncarnation, due_ns: u64) {
        self.dials.entry(incarnation).or_insert(Dial {
            due_ns,
            is_extended: false,
            waiting: VecDeque::new(),
        });
    }

    fn wait(&mut self, incarnation: NodeIncarnation, waiting: DialWaiter) {
        let dial = self.dials.get_mut(&incarnation).expect("being dialled");
        dial.waiting.push_back(waiting);
    }
}

impl EngineConfig {
    /// Returns true if a cluster of that many nodes is a full mesh.
    pub(in crate::engine) fn is_full_mesh(&self, nodes: usize) -> bool {
        nodes <= self.full_mesh_nodes_max
    }
}

impl Context<'_> {
    /// Dials a member that this node is about to use. Returns true while the dial is in flight, or false if the member
    /// is connected or cannot be connected.
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

    /// Dials the member with number `node`, which this node is about to use. Returns true while the dial is in flight,
    /// or false if the member is connected or cannot be connected.
    pub(super) fn reach_out_to(&mut self, node: NodeId) -> bool {
        let incarnation = self.unmet_member(node);
        incarnation.is_some_and(|incarnation| self.reach_out(incarnation))
    }

    /// Returns the member with number `node` that this node is dialling, or to which it connects on first use; `None`
    /// for other members.
    pub(super) fn unmet_member(&self, node: NodeId) -> Option<NodeIncarnation> {
        let unconnected = self.membership().pairings().unconnected(node);
        unconnected.or_else(|| self.dialled(node))
    }

    /// Asks the directory about an unknown number. If the directory is unreachable, dials the address in the outside
    /// list. Returns true while the question or the dial is in flight.
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

    /// Queues a message to an unconnected peer if it is being dialled, and drops the message otherwise.
    pub(super) fn queue_for_dial(&mut self, to: NodeId, message: Message) {
        if let Some(incarnation) =
            self.unmet_member(to).filter(|incarnation| self.out().on_demand().is_dialling(*incarnation))
        {
            self.wait_until_connected(incarnation, DialWaiter::Message(message));
        }
    }

    /// Dials the owners of the region's chunks and the target of its move, except nodes in `unmet`. Returns a dialled
    /// node to wait for before the region is mapped, or `None`.
    pub(super) fn owner_to_connect(
        &mut self,
        reply: &MappedReply,
        unmet: &[NodeIncarnation],
    ) -> Option<NodeIncarnation> {
        let owners = reply.extents.iter().map(|extent| extent.owner).chain(reply.moving_to);
        owners.filter(|owner| !unmet.contains(owner) && self.reach_out(*owner)).last()
    }

    /// Records that a home froze a chunk in order to move it to `to`, and dials `to`.
    pub(super) fn record_move(&mut self, requester: Requester, to: Option<NodeIncarnation>) {
        if let Some(to) = to.filter(|to| self.reach_out(*to)) {
            self.out().on_demand().moves.insert(requester, to);
        }
    }

    /// Acknowledges a change after all accesses to the old state have ended, once the target of the move is connected
    /// or cannot be connected.
    pub(super) fn acknowledge(&mut self, requester: Requester) {
        let to = self.out().on_demand().moves.remove(&requester);
        match to.filter(|to| self.out().on_demand().is_dialling(*to)) {
            Some(to) => self.wait_until_connected(to, DialWaiter::Move(requester)),
            None => self.answer(requester, Ok(Reply::Done)),
        }
    }
}

impl Engine {
    /// Dials a member that this node is about to use, or asks the directory about its number. Returns true while the
    /// dial or question is in flight, and false if the member is connected or cannot be connected.
    pub fn use_node(&mut self, now_ns: u64, node: NodeId) -> bool {
        self.out.set_now(now_ns);
        !self.is_own_or_connected(node) && (self.cx().reach_out_to(node) || self.cx().inquire(node))
    }

    /// Returns true if this node is dialling the member for the first time, or is asking the directory about the
    /// member.
    pub fn is_connecting(&self, node: NodeId) -> bool {
        !self.is_own_or_connected(node) && self.out.is_awaited(node)
    }

    /// Starts the wait for a new member to connect, for at most a lease.
    pub(super) fn await_first_meeting(&mut self, incarnation: NodeIncarnation) {
        let due_ns = self.out.now_ns() + self.out.config().lease_ns;
        self.out.on_demand().begin(incarnation, due_ns);
    }

    /// Handles the directory's reply to an inquiry, before which it announced all members, or its loss.
    pub(super) fn handle_inquired(&mut self, node: NodeId, body: Result<Reply, ErrorReply>) {
        if let Ok(Reply::Members { members }) = body {
            self.membership.learn(members, self.out.incarnation().node, self.out.now_ns());
            self.out.push(Effect::MembersChanged);
        }
        self.end_inquiry(node);
    }

    /// Ends an inquiry and resumes its waiters.
    pub(super) fn end_inquiry(&mut self, node: NodeId) {
        let Some(Inquiry { waiting, .. }) = self.out.on_demand().inquiries.remove(&node) else { return };
        waiting.into_iter().for_each(|waiting| self.resume_after_inquiry(node, waiting));
        self.out.push(Effect::MembersChanged);
    }

    /// Ends an inquiry that dialled a listed address, rather than asking the directory.
    pub(super) fn end_listed_inquiry(&mut self, node: NodeId) {
        let inquiry = self.out.on_demand().inquiries.get(&node);
        if inquiry.is_some_and(|inquiry| inquiry.due_ns < u64::MAX) {
            self.end_inquiry(node);
        }
    }

    fn resume_after_inquiry(&mut self, node: NodeId, waiting: DialWaiter) {
        // A queued message is sent once the member is connected.
        let is_reachable = self.is_own_or_connected(node) || self.cx().reach_out_to(node);
        match waiting {
            DialWaiter::Message(Message::Request { id, .. }) if !is_reachable => {
                let refusal = self.cx().absence_error(node);
                self.out.refuse_pending(id, refusal)
            }
            DialWaiter::Request(requester, _) if !is_reachable => {
                let refusal = self.cx().absence_error(node);
                self.cx().answer(requester, Err(refusal))
            }
            waiting => self.resume(node, waiting),
        }
    }

    /// Returns true if this node will dial the member on first use.
    pub fn is_unconnected(&self, node: NodeId) -> bool {
        self.membership.pairings().unconnected(node).is_some()
    }

    /// Resumes the waiters for a member that is now connected.
    pub(super) fn resume_on_demand(&mut self, incarnation: NodeIncarnation) {
        let waiting = self.out.on_demand().dials.remove(&incarnation).map(|dial| dial.waiting);
        waiting.into_iter().flatten().for_each(|waiting| self.resume(incarnation.node, waiting));
    }

    fn resume(&mut self, node: NodeId, waiting: DialWaiter) {
        match waiting {
            DialWaiter::Message(message) => self.cx().send(node, message),
            DialWaiter::Copy { requester, from, to } => self.owner_side().serve_copy(requester, from, to),
            DialWaiter::Step(id) => {
                let aborted = self.owner_side().next_step(id);
                self.resume_after_abort(aborted);
            }
            DialWaiter::Mapping { op, session, wanted, unmet, region, home } => {
                let action = RegionAction::Map { session, wanted, unmet, name: None };
                self.session_side().start_action(op, action, region, home.node, 0)
            }
            DialWaiter::Move(requester) => self.cx().answer(requester, Ok(Reply::Done)),
            DialWaiter::Request(requester, request) => self.serve_if_pending(requester, *request),
        }
    }

    /// Serves a request, unless its requester was lost in the meantime.
    fn serve_if_pending(&mut self, requester: Requester, request: Request) {
        if self.out.is_serving(requester) {
            self.handle_request(requester, request);
        }
    }

    /// Fails the waiters for a member whose incarnation has ended.
    pub(super) fn fail_on_demand(&mut self, incarnation: NodeIncarnation) {
        self.fail_dial(incarnation, ErrorReply::PeerDown(incarnation.node));
    }

    fn fail_dial(&mut self, incarnation: NodeIncarnation, refusal: ErrorReply) {
        let Some(Dial { waiting, .. }) = self.out.on_demand().dials.remove(&incarnation) else { return };
        self.membership.record_unmet(incarnation);
        waiting.into_iter().for_each(|waiting| self.fail_waiter(incarnation, waiting, refusal.clone()));
        self.out.push(Effect::MembersChanged);
    }

    fn fail_waiter(&mut self, incarnation: NodeIncarnation, waiting: DialWaiter, refusal: ErrorReply) {
        match waiting {
            DialWaiter::Message(Message::Request { id, .. }) => self.out.refuse_pending(id, refusal),
            DialWaiter::Message(_) => {}
            DialWaiter::Copy { requester, .. } => self.cx().answer(requester, Err(refusal)),
            DialWaiter::Step(id) => {
                let aborted = self.owner_side().end_running(id, Err(refusal));
                self.resume_after_abort(aborted);
            }
            DialWaiter::Mapping { op, session, wanted, mut unmet, region, home } => {
                unmet.push(incarnation);
                let action = RegionAction::Map { session, wanted, unmet, name: None };
                self.session_side().start_action(op, action, region, home.node, 0)
            }
            // This node cannot reach the chunk at its new place anyway.
            DialWaiter::Move(requester) => self.cx().answer(requester, Ok(Reply::Done)),
            DialWaiter::Request(requester, request) => self.serve_if_pending(requester, *request),
        }
    }

    /// Fails the waiters for other incarnations with the number of a newly connected node.
    pub(super) fn fail_dials_to_rivals_of(&mut self, incarnation: NodeIncarnation) {
        let dials = self.out.on_demand().dials.keys().copied();
        let rivals: Vec<NodeIncarnation> =
            dials.filter(|other| other.node == incarnation.node && *other != incarnation).collect();
        rivals.into_iter().for_each(|rival| self.fail_on_demand(rival));
    }

    /// Returns true if a first meeting at `address` may still succeed in time, with a known member or with an unknown
    /// member that is listed with this address.
    pub(super) fn is_awaited_at(&mut self, address: &str) -> bool {
        let now_ns = self.out.now_ns();
        let (membership, on_demand) = (&self.membership, self.out.on_demand());
        let mut dials = on_demand.dials.iter().filter(|(_, dial)| now_ns < dial.due_ns);
        let mut inquiries = on_demand
            .inquiries
            .iter()
            .filter(|(_, inquiry)| now_ns < inquiry.due_ns && inquiry.due_ns < u64::MAX);
        dials.any(|(incarnation, _)| membership.pairings().address(*incarnation) == Some(address))
            || inquiries.any(|(node, _)| membership.listed_address(*node) == Some(address))
    }

    /// Handles a failed dial. Ignored if the member has dialled this node in the meantime.
    pub(super) fn fail_dials_to(&mut self, address: &str) {
        let membership = &self.membership;
        let is_at =
            |incarnation: &NodeIncarnation| membership.pairings().address(*incarnation) == Some(address);
        let at: Vec<NodeIncarnation> = (self.out.on_demand().dials.keys().copied())
            .filter(|incarnation| is_at(incarnation) && !membership.meeting().has(*incarnation))
            .collect();
        at.into_iter().for_each(|incarnation| self.fail_first_meeting(incarnation));
    }

    /// Fails the waiters for a member that could not be connected.
    pub(super) fn fail_first_meeting(&mut self, incarnation: NodeIncarnation) {
        self.fail_dial(incarnation, ErrorReply::NotMet(incarnation.node));
    }

    /// Fails overdue dials and inquiries. A member that is connected but not paired yet gets one more lease: it lives,
    /// and the messages of the meeting are late.
    pub(super) fn fail_overdue_dials(&mut self) {
        let (now_ns, lease_ns) = (self.out.now_ns(), self.out.config().lease_ns);
        let meeting = self.membership.meeting();
        for (incarnation, dial) in &mut self.out.on_demand().dials {
            if dial.due_ns <= now_ns && !dial.is_extended && meeting.has(*incarnation) {
                (dial.due_ns, dial.is_extended) = (now_ns + lease_ns, true);
            }
        }
        let overdue = self.out.on_demand().dials.iter().filter(|(_, dial)| dial.due_ns <= now_ns);
        let overdue: Vec<NodeIncarnation> = overdue.map(|(incarnation, _)| *incarnation).collect();
        overdue.into_iter().for_each(|unmet| self.fail_first_meeting(unmet));
        let overdue = self.out.on_demand().inquiries.iter().filter(|(_, inquiry)| inquiry.due_ns <= now_ns);
        let overdue: Vec<NodeId> = overdue.map(|(node, _)| *node).collect();
        overdue.into_iter().for_each(|node| self.end_inquiry(node));
    }
}
