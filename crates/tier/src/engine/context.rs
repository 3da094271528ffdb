//! The state shared by all parts of the engine: the configuration, the time, the membership, and the outbox.
//!
//! All output of the engine passes through the outbox, so effects and numbers have one order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::directory::DirectoryPart;
use super::membership::Membership;
use super::on_demand::{DialWaiter, OnDemand};
use super::sessions::UserStep;
use super::{EngineConfig, Requester};
use crate::effect::{CommandError, Effect, OpId, Outcome};
use crate::ids::{Epoch, NodeId, NodeIncarnation, RegionId, RequestId};
use crate::link;
use crate::members::Members;
use crate::message::{self, ErrorReply, Message, Notice, Reply, Request};
use crate::news::News;
use crate::region::Presence;

/// Maximum accepted time of day, in the year 2262, so that a peer's clock cannot exhaust lock tokens.
const TIME_OF_DAY_NS_MAX: u64 = i64::MAX as u64;

/// Maximum number of requests from one node that may wait at this node for their replies.
pub const REQUESTS_OF_NODE_MAX: usize = 1 << 16;

/// Whether this node serves a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    Served,
    /// A request with the same id is already waiting, which violates the protocol.
    Repeated,
    TooMany,
}

/// Effects on their way out, and pending requests in both directions.
pub(super) struct Outbox {
    config: EngineConfig,
    now_ns: u64,
    /// The last number issued, for a command, request, region or token.
    number: u64,
    pending: BTreeMap<RequestId, PendingRequest>,
    /// Requests of other nodes that are not answered yet, counted to limit the number that a peer can queue here.
    serving: BTreeMap<NodeIncarnation, BTreeSet<RequestId>>,
    /// Messages of this node to itself.
    loopback: VecDeque<Message>,
    on_demand: OnDemand,
    effects: VecDeque<Effect>,
    /// Time of day, in ns since 1970, at which `now_ns` was 0. Starts as configured, and advances to match the fastest
    /// known clock.
    epoch_ns: u64,
}

/// A request whose reply is pending, to another node or this one.
#[derive(Debug)]
struct PendingRequest {
    of: NodeId,
    purpose: Purpose,
    sent_at_ns: u64,
    /// A copy of the request if it went to the directory, to repeat it if the directory has moved.
    question: Option<Box<Request>>,
}

/// A request whose reply has arrived.
pub(super) struct Answered {
    pub(super) purpose: Purpose,
    pub(super) sent_ns: u64,
    pub(super) question: Option<Box<Request>>,
}

/// The purpose of a request, which determines how the reply is handled.
#[derive(Debug)]
pub(super) enum Purpose {
    /// A command of a session.
    User(OpId, UserStep),
    /// Claims a name for a region being allocated.
    Claim(RegionId),
    /// Releases the name of a region whose allocation failed, and then sends the failure to the requester.
    Unclaim(Requester, ErrorReply),
    /// Claims a name for a region that has none.
    Name(RegionId),
    /// Reserves chunks for a region being allocated.
    ReserveForAlloc(RegionId),
    /// Reserves chunks on the node to which a region moves.
    ReserveForMove(RegionId),
    /// Waits for a mapper to acknowledge the change of that epoch.
    Change(RegionId, Epoch),
    /// Informs a node; its reply is ignored.
    OneWay,
    /// Releases the name of a region that is being freed.
    Release(RegionId),
    /// Makes the new owner copy a chunk.
    CopyChunk(RegionId),
    /// Hands a region to its next home.
    Adopt(RegionId),
    /// Makes an owner of chunks ask a mapper to release its mappings of regions homed here.
    Relay { mapper: NodeIncarnation, pairing: u64, owner: NodeIncarnation },
    /// Makes a mapper release its mappings of a home's regions, on behalf of that home.
    Retire(Requester, NodeIncarnation),
    /// Makes all nodes drop the regions of a home that has ended.
    Sweep(NodeIncarnation),
    /// Makes a node execute part of a memory operation.
    Memory(OpId, NodeId),
    /// Waits for a lock or at a barrier.
    Wait(OpId),
    /// Asks a node for its free memory, as a target for draining.
    FreeBytes(NodeId),
    /// Makes a region leave this node.
    Vacate(RegionId),
    /// Asks whether a node reaches the store to which the names are to move.
    TryNames(NodeId),
    /// Asks the given incarnation, for the directory, whether a region has its name.
    AskHome(u64, NodeIncarnation),
    /// Asks the directory whether a member has that number.
    Inquiry(NodeId),
}

impl Outbox {
    pub(super) fn new(config: EngineConfig, now_ns: u64) -> Outbox {
        Outbox {
            now_ns,
            number: 0,
            pending: BTreeMap::new(),
            serving: BTreeMap::new(),
            loopback: VecDeque::new(),
            on_demand: OnDemand::default(),
            effects: VecDeque::new(),
            epoch_ns: config.epoch_ns,
            config,
        }
    }

    pub(super) fn config(&self) -> &EngineConfig {
        &self.config
    }

    pub(super) fn incarnation(&self) -> NodeIncarnation {
        self.config.incarnation
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(super) fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Issues a number. Issues each number only once.
    pub(super) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Returns the last number issued.
    pub(super) fn last_number(&self) -> u64 {
        self.number
    }

    /// Returns the time of day on the fastest known clock of the cluster, in ns since 1970. The tokens of a new lock
    /// start at this time.
    pub(super) fn time_of_day_ns(&self) -> u64 {
        self.epoch_ns.saturating_add(self.now_ns)
    }

    /// Records the time of day of another node's clock.
    pub(super) fn record_time(&mut self, time_ns: u64) {
        self.epoch_ns = self.epoch_ns.max(time_ns.min(TIME_OF_DAY_NS_MAX).saturating_sub(self.now_ns));
    }

    /// Returns the members that are dialled on first use, and the operations that wait for them.
    pub(super) fn on_demand(&mut self) -> &mut OnDemand {
        &mut self.on_demand
    }

    /// Returns true if this node is dialling a member with number `node`, or asks the directory about the number.
    pub(super) fn is_awaited(&self, node: NodeId) -> bool {
        self.on_demand.is_awaited(node)
    }

    pub(super) fn dials_due_ns(&self) -> u64 {
        self.on_demand.deadline_ns()
    }

    pub(super) fn push(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    pub(super) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    pub(super) fn poll_loopback(&mut self) -> Option<Message> {
        self.loopback.pop_front()
    }

    pub(super) fn report(&mut self, news: News) {
        self.push(Effect::News(news));
    }

    /// Admits a request of another node, unless too many requests of that node already wait at this node.
    pub(super) fn begin_serving(&mut self, requester: Requester) -> Admission {
        if requester.incarnation == self.incarnation() {
            return Admission::Served;
        }
        let serving = self.serving.entry(requester.incarnation).or_default();
        if serving.contains(&requester.id) {
            return Admission::Repeated;
        }
        if serving.len() == REQUESTS_OF_NODE_MAX {
            return Admission::TooMany;
        }
        serving.insert(requester.id);
        Admission::Served
    }

    /// Records that a request was answered, or that its requester no longer waits.
    pub(super) fn end_serving(&mut self, requester: Requester) {
        if let Some(serving) = self.serving.get_mut(&requester.incarnation) {
            serving.remove(&requester.id);
        }
    }

    /// Returns true if the requester still waits for the reply.
    pub(super) fn is_serving(&self, requester: Requester) -> bool {
        let is_waiting = |serving: &BTreeSet<RequestId>| serving.contains(&requester.id);
        requester.incarnation == self.incarnation()
            || self.serving.get(&requester.incarnation).is_some_and(is_waiting)
    }

    pub(super) fn serving_count(&self) -> usize {
        self.serving.values().map(BTreeSet::len).sum()
    }

    /// Forgets all requests of an incarnation.
    pub(super) fn end_serving_all_of(&mut self, incarnation: NodeIncarnation) {
        self.serving.remove(&incarnation);
    }

    /// Removes and returns the pending request `id`; `None` if it does not exist, or was not sent to `of`.
    pub(super) fn take_pending(&mut self, id: RequestId, of: NodeId) -> Option<Answered> {
        self.pending.get(&id).filter(|pending| pending.of == of)?;
        let PendingRequest { purpose, sent_at_ns, question, .. } = self.pending.remove(&id)?;
        Some(Answered { purpose, sent_ns: sent_at_ns, question })
    }

    /// Refuses a pending request that has not been sent yet.
    pub(super) fn refuse_pending(&mut self, id: RequestId, refusal: ErrorReply) {
        let own = self.incarnation().node;
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.of = own;
            self.loopback.push_back(Message::Reply { id, body: Err(refusal) });
        }
    }

    /// Forgets a pending request whose reply is no longer wanted.
    pub(super) fn forget_pending(&mut self, id: RequestId) {
        self.pending.remove(&id);
    }

    /// Ignores the reply of a region's next home.
    pub(super) fn forget_adoption(&mut self, region: RegionId) {
        self.pending
            .retain(|_, pending| !matches!(pending.purpose, Purpose::Adopt(other) if other == region));
    }

    /// Returns the ids of pending requests to a node.
    pub(super) fn pending_to(&self, node: NodeId) -> Vec<RequestId> {
        self.pending.iter().filter(|(_, pending)| pending.of == node).map(|(id, _)| *id).collect()
    }

    /// Returns true if this node sent the request to itself in its role as a home.
    pub(super) fn asks_as_home(&self, id: RequestId) -> bool {
        self.pending.get(&id).is_some_and(|pending| matches!(pending.purpose, Purpose::AskHome(..)))
    }

    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    fn add_pending(&mut self, of: NodeId, purpose: Purpose) -> RequestId {
        let id = RequestId(self.next_number());
        self.pending.insert(id, PendingRequest { of, purpose, sent_at_ns: self.now_ns, question: None });
        id
    }
}

impl Extend<Effect> for Outbox {
    fn extend<T: IntoIterator<Item = Effect>>(&mut self, effects: T) {
        self.effects.extend(effects);
    }
}

/// The outbox, and the membership that determines where messages go.
pub(super) struct Context<'a> {
    out: &'a mut Outbox,
    membership: &'a Membership,
    /// The node that lists the members.
    seat: NodeId,
    /// The node that keeps names, as seen from this one.
    names_seat: NodeId,
    /// True if names are kept outside the cluster.
    names_are_outside: bool,
    /// True if this node found that it cannot write to the outside store.
    lacks_store: bool,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        out: &'a mut Outbox,
        membership: &'a Membership,
        directory: &DirectoryPart,
    ) -> Context<'a> {
        let (seat, names_seat) = (directory.seat(), directory.names_seat(out.incarnation().node));
        let (names_are_outside, lacks_store) = (directory.is_outside(), directory.lacks_store());
        Context { out, membership, seat, names_seat, names_are_outside, lacks_store }
    }

    /// Borrows the context for a shorter time.
    pub(super) fn reborrow(&mut self) -> Context<'_> {
        let Context { membership, seat, names_seat, names_are_outside, lacks_store, .. } = *self;
        Context { out: self.out, membership, seat, names_seat, names_are_outside, lacks_store }
    }

    pub(super) fn out(&mut self) -> &mut Outbox {
        self.out
    }

    pub(super) fn config(&self) -> &EngineConfig {
        self.out.config()
    }

    /// Returns the seat: the node that lists the members.
    pub(super) fn seat(&self) -> NodeId {
        self.seat
    }

    pub(super) fn incarnation(&self) -> NodeIncarnation {
        self.out.incarnation()
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.out.now_ns()
    }

    pub(super) fn lease_ns(&self) -> u64 {
        self.out.config.lease_ns
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.out.next_number()
    }

    pub(super) fn push(&mut self, effect: Effect) {
        self.out.push(effect);
    }

    pub(super) fn report(&mut self, news: News) {
        self.out.report(news);
    }

    /// Finishes a command of a session with its outcome.
    pub(super) fn finish(&mut self, op: OpId, outcome: Result<Outcome, CommandError>) {
        self.out.push(Effect::Finish { op, outcome });
    }

    // Members.

    pub(super) fn membership(&self) -> &'a Membership {
        self.membership
    }

    pub(super) fn members(&self) -> &'a Members {
        self.membership.members()
    }

    pub(super) fn last_number(&self) -> u64 {
        self.out.last_number()
    }

    /// Returns true if an incarnation is this node's or connected.
    pub(super) fn is_present(&self, incarnation: NodeIncarnation) -> bool {
        incarnation == self.incarnation() || self.members().is_alive(incarnation)
    }

    /// Returns true if a node is this one or connected.
    pub(super) fn is_node_present(&self, node: NodeId) -> bool {
        node == self.incarnation().node || self.members().peer_of(node).is_some()
    }

    /// Returns true if this node is dialling a member with number `node`, or asks the directory about the number.
    pub(super) fn is_awaited(&self, node: NodeId) -> bool {
        self.out.is_awaited(node)
    }

    /// Returns the incarnation with number `node` that this node is dialling, or `None`.
    pub(super) fn dialled(&self, node: NodeId) -> Option<NodeIncarnation> {
        self.out.on_demand.dialled(node)
    }

    /// Returns the state of a node that holds bytes of a region: connected, unreachable, or ended.
    pub(super) fn presence_of(&self, incarnation: NodeIncarnation) -> Presence {
        match (self.is_present(incarnation), self.membership.pairings().may_live(incarnation)) {
            (true, _) => Presence::There,
            (false, true) => Presence::Unreachable,
            (false, false) => Presence::Gone,
        }
    }

    /// Returns the error of a request to an absent node, which is refused before anything is sent.
    pub(super) fn absence_error(&self, node: NodeId) -> ErrorReply {
        match self.membership.knows(node) {
            true => ErrorReply::NotMet(node),
            false => ErrorReply::UnknownNode(node),
        }
    }

    // Sending.

    pub(super) fn ask(&mut self, to: NodeId, body: Request, purpose: Purpose) -> RequestId {
        if to != self.incarnation().node && self.members().peer_of(to).is_none() && !self.reach_out_to(to) {
            if self.inquire(to) {
                let id = self.out.add_pending(to, purpose);
                self.wait_for_inquiry(to, DialWaiter::Message(Message::Request { id, body }));
                return id;
            }
            let refusal = self.absence_error(to);
            return self.refuse_locally(refusal, purpose);
        }
        let id = self.out.add_pending(to, purpose);
        self.send(to, Message::Request { id, body });
        id
    }

    /// Sends a request to an incarnation, or refuses the request if the incarnation is neither connected nor being
    /// dialled.
    pub(super) fn ask_incarnation(&mut self, to: NodeIncarnation, body: Request, purpose: Purpose) {
        match self.is_present(to) || self.reach_out(to) {
            true => self.ask(to.node, body, purpose),
            false => self.refuse_locally(ErrorReply::PeerDown(to.node), purpose),
        };
    }

    pub(super) fn names_are_outside(&self) -> bool {
        self.names_are_outside
    }

    /// Returns true if other nodes may have to write this node's changes to the outside store, because this node cannot
    /// reach the store or is about to leave. Returns false if names are not in an outside store.
    pub(super) fn may_need_other_writers(&self) -> bool {
        self.names_are_outside && (self.lacks_store || self.membership.draining().is_on())
    }

    pub(super) fn ask_directory(&mut self, question: Request, purpose: Purpose) {
        let to = match question {
            // The members are known to nodes only, not to the store.
            Request::ListMembers => self.membership_source(),
            Request::ForgetNode { .. } if self.names_are_outside => self.membership_source(),
            Request::ForgetNode { .. } | Request::MoveNames { .. } | Request::MoveNamesBack => self.seat,
            _ => self.names_seat,
        };
        let again = Some(Box::new(question.clone()));
        let id = self.ask(to, question, purpose);
        if let Some(pending) = self.out.pending.get_mut(&id) {
            pending.question = again;
        }
    }

    /// Refuses through the loopback queue, so that callers handle it like any other refusal.
    fn refuse_locally(&mut self, refusal: ErrorReply, purpose: Purpose) -> RequestId {
        let of = self.incarnation().node;
        let id = self.out.add_pending(of, purpose);
        self.out.loopback.push_back(Message::Reply { id, body: Err(refusal) });
        id
    }

    pub(super) fn answer(&mut self, requester: Requester, body: Result<Reply, ErrorReply>) {
        self.out.end_serving(requester);
        if self.is_present(requester.incarnation) {
            self.send(requester.incarnation.node, Message::Reply { id: requester.id, body });
        }
    }

    pub(super) fn notify(&mut self, to: NodeId, notice: Notice) {
        self.send(to, Message::Notice(notice));
    }

    pub(super) fn notify_directory(&mut self, notice: Notice) {
        let to = match notice {
            Notice::Names { .. } | Notice::Moved { .. } => self.names_seat,
            _ => self.seat,
        };
        self.notify(to, notice);
    }

    pub(super) fn notify_all(&mut self, notice: &Notice) {
        for (_, peer) in self.members().peers() {
            self.notify(peer.incarnation.node, notice.clone());
        }
    }

    pub(super) fn send(&mut self, to: NodeId, message: Message) {
        if to == self.incarnation().node {
            return self.out.loopback.push_back(message);
        }
        let Some((peer, member)) = self.members().peer_of(to) else {
            return self.queue_for_dial(to, message);
        };
        // A sleeping peer handles arrived messages before it judges silence, so a heartbeat need not wake it.
        let solicited = !matches!(message, Message::Notice(Notice::Heartbeat { .. }));
        for bytes in link::frames(&message::encode(&message), member.send_bytes_max) {
            self.out.push(Effect::Send { peer, bytes, solicited });
        }
    }
}
