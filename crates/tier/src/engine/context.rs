//! What every part of the engine is handed: who we are, the time, who is connected, and a way to say things.
//!
//! All that leaves the engine goes through here, so that effects and numbers have one order.

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

/// No clock shows more, the year 2262: what a peer says cannot use tokens up.
const TIME_OF_DAY_NS_MAX: u64 = i64::MAX as u64;

/// So many requests of a node may wait for their answers here.
pub const REQUESTS_OF_NODE_MAX: usize = 1 << 16;

/// Whether a request is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    Served,
    /// One of that number waits for its answer: no node that keeps to the protocol asks so.
    Repeated,
    TooMany,
}

/// What leaves the engine, and what it has asked.
pub(super) struct Outbox {
    config: EngineConfig,
    now_ns: u64,
    /// The last number that was given out: of a command, a request, a region or a token.
    number: u64,
    asked: BTreeMap<RequestId, Asked>,
    /// Requests of other nodes that have no answer yet: so none of them makes what waits here grow without end.
    serving: BTreeMap<NodeIncarnation, BTreeSet<RequestId>>,
    /// What we say to ourselves.
    loopback: VecDeque<Message>,
    on_demand: OnDemand,
    effects: VecDeque<Effect>,
    /// As in the configuration, but by the clock of the cluster that is ahead of all others, as far as we have heard of it.
    epoch_ns: u64,
}

/// What we asked of another node, or of ourselves.
#[derive(Debug)]
struct Asked {
    of: NodeId,
    purpose: Purpose,
    at_ns: u64,
    /// The request, if it went to the directory: it is sent again where the directory has moved meanwhile.
    question: Option<Box<Request>>,
}

/// A request that has been answered.
pub(super) struct Answered {
    pub(super) purpose: Purpose,
    pub(super) asked_ns: u64,
    pub(super) question: Option<Box<Request>>,
}

/// Why we asked something.
#[derive(Debug)]
pub(super) enum Purpose {
    /// For a command of a session.
    User(OpId, UserStep),
    /// To get a name for a region to be.
    Claim(RegionId),
    /// To give back the name of a region that cannot be made for that reason, which its requester hears then.
    Unclaim(Requester, ErrorReply),
    /// To get a name for a region that has none.
    Name(RegionId),
    /// To get chunks on another node for a region to be.
    ReserveForAlloc(RegionId),
    /// To get chunks on the node to which a region moves.
    ReserveForMove(RegionId),
    /// To have a mapper acknowledge the change of that epoch.
    Change(RegionId, Epoch),
    /// To let somebody know; the acknowledgement means nothing.
    OneWay,
    /// To have the name of a region that is being freed be free again.
    Release(RegionId),
    /// To have a chunk copied by its new owner.
    CopyChunk(RegionId),
    /// To hand a region to its next home.
    Adopt(RegionId),
    /// To have an owner of chunks keep a mapper from regions of ours.
    Relay { mapper: NodeIncarnation, pairing: u64, owner: NodeIncarnation },
    /// To have a mapper let go of a home's regions, for that home.
    Retire(Requester, NodeIncarnation),
    /// To have everybody drop the regions of a dead home.
    Sweep(NodeIncarnation),
    /// To have a part of a memory operation done by the node.
    Memory(OpId, NodeId),
    /// To get a lock, or past a barrier.
    Wait(OpId),
    /// To see how much room a node has for what is here.
    Room(NodeId),
    /// To have a region leave this node.
    Vacate(RegionId),
    /// To hear whether a node would reach the names where they are to be brought.
    TryNames(NodeId),
    /// To hear of that incarnation, for the directory, whether a region has its name.
    AskHome(u64, NodeIncarnation),
    /// To hear whether there is a member of that number.
    Inquiry(NodeId),
}

impl Outbox {
    pub(super) fn new(config: EngineConfig, now_ns: u64) -> Outbox {
        Outbox {
            now_ns,
            number: 0,
            asked: BTreeMap::new(),
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

    /// Who we are.
    pub(super) fn incarnation(&self) -> NodeIncarnation {
        self.config.incarnation
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(super) fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// A number that was never given out before.
    pub(super) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// The last that was given out.
    pub(super) fn last_number(&self) -> u64 {
        self.number
    }

    /// Where the tokens of a lock begin that is made now.
    pub(super) fn time_of_day_ns(&self) -> u64 {
        self.epoch_ns.saturating_add(self.now_ns)
    }

    /// Somebody's clock shows that time.
    pub(super) fn note_time(&mut self, time_ns: u64) {
        self.epoch_ns = self.epoch_ns.max(time_ns.min(TIME_OF_DAY_NS_MAX).saturating_sub(self.now_ns));
    }

    /// Who is dialled because it is used, and what waits for that.
    pub(super) fn on_demand(&mut self) -> &mut OnDemand {
        &mut self.on_demand
    }

    /// Whether a member of that number is being met, or asked about.
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

    pub(super) fn tell(&mut self, news: News) {
        self.push(Effect::News(news));
    }

    /// A node has asked something.  Where it waits for as many answers as it may already, it is to be refused.
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

    /// A request has its answer, or does not wait for one any more.
    pub(super) fn end_serving(&mut self, requester: Requester) {
        if let Some(serving) = self.serving.get_mut(&requester.incarnation) {
            serving.remove(&requester.id);
        }
    }

    /// Whether somebody still waits for the answer.
    pub(super) fn is_serving(&self, requester: Requester) -> bool {
        let is_there = |serving: &BTreeSet<RequestId>| serving.contains(&requester.id);
        requester.incarnation == self.incarnation()
            || self.serving.get(&requester.incarnation).is_some_and(is_there)
    }

    pub(super) fn serving_count(&self) -> usize {
        self.serving.values().map(BTreeSet::len).sum()
    }

    /// A node takes no answers any more.
    pub(super) fn end_serving_all_of(&mut self, incarnation: NodeIncarnation) {
        self.serving.remove(&incarnation);
    }

    /// A request is answered, if it was made of that node.
    pub(super) fn take_asked(&mut self, id: RequestId, of: NodeId) -> Option<Answered> {
        self.asked.get(&id).filter(|asked| asked.of == of)?;
        let Asked { purpose, at_ns, question, .. } = self.asked.remove(&id)?;
        Some(Answered { purpose, asked_ns: at_ns, question })
    }

    /// What we have asked, and not said yet, is refused.
    pub(super) fn refuse_asked(&mut self, id: RequestId, refusal: ErrorReply) {
        let own = self.incarnation().node;
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.of = own;
            self.loopback.push_back(Message::Reply { id, body: Err(refusal) });
        }
    }

    /// Nobody wants the answer any more.
    pub(super) fn forget_asked(&mut self, id: RequestId) {
        self.asked.remove(&id);
    }

    /// The answer of a region's next home means nothing any more.
    pub(super) fn forget_adoption(&mut self, region: RegionId) {
        self.asked.retain(|_, asked| !matches!(asked.purpose, Purpose::Adopt(other) if other == region));
    }

    /// What a node has yet to answer.
    pub(super) fn asked_of(&self, node: NodeId) -> Vec<RequestId> {
        self.asked.iter().filter(|(_, asked)| asked.of == node).map(|(id, _)| *id).collect()
    }

    /// Whether this node asks that, as any other, of itself as a home.
    pub(super) fn asks_as_home(&self, id: RequestId) -> bool {
        self.asked.get(&id).is_some_and(|asked| matches!(asked.purpose, Purpose::AskHome(..)))
    }

    pub(super) fn asked_count(&self) -> usize {
        self.asked.len()
    }

    fn note_asked(&mut self, of: NodeId, purpose: Purpose) -> RequestId {
        let id = RequestId(self.next_number());
        self.asked.insert(id, Asked { of, purpose, at_ns: self.now_ns, question: None });
        id
    }
}

impl Extend<Effect> for Outbox {
    fn extend<T: IntoIterator<Item = Effect>>(&mut self, effects: T) {
        self.effects.extend(effects);
    }
}

/// The outbox, and whom things can be said to.
pub(super) struct Context<'a> {
    out: &'a mut Outbox,
    membership: &'a Membership,
    /// The node that tells who the members are.
    seat: NodeId,
    /// The node that answers for names.
    names_seat: NodeId,
    /// Whether names are kept outside of the cluster.
    names_are_outside: bool,
    /// Whether this node cannot write them there, as far as it knows.
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

    /// The same for somebody who is called.
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

    /// The node that tells who the members are.
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

    pub(super) fn tell(&mut self, news: News) {
        self.out.tell(news);
    }

    /// A command of a session has ended.
    pub(super) fn finish(&mut self, op: OpId, outcome: Result<Outcome, CommandError>) {
        self.out.push(Effect::Finish { op, outcome });
    }

    // Who is there.

    pub(super) fn membership(&self) -> &'a Membership {
        self.membership
    }

    pub(super) fn members(&self) -> &'a Members {
        self.membership.members()
    }

    /// Whether that is this node, or one that is connected.
    pub(super) fn is_present(&self, incarnation: NodeIncarnation) -> bool {
        incarnation == self.incarnation() || self.members().is_alive(incarnation)
    }

    /// Whether that node is this one, or connected.
    pub(super) fn hears(&self, node: NodeId) -> bool {
        node == self.incarnation().node || self.members().peer_of(node).is_some()
    }

    /// Whether a member of that number is being met, or asked about.
    pub(super) fn is_awaited(&self, node: NodeId) -> bool {
        self.out.is_awaited(node)
    }

    /// The member of that number that is being met, if one is.
    pub(super) fn dialled(&self, node: NodeId) -> Option<NodeIncarnation> {
        self.out.on_demand.dialled(node)
    }

    /// What a node is for regions that it holds bytes of.
    pub(super) fn presence_of(&self, incarnation: NodeIncarnation) -> Presence {
        match (self.is_present(incarnation), self.membership.pairings().may_live(incarnation)) {
            (true, _) => Presence::There,
            (false, true) => Presence::Unreachable,
            (false, false) => Presence::Gone,
        }
    }

    pub(super) fn absence_of(&self, node: NodeId) -> ErrorReply {
        match self.membership.knows(node) {
            true => ErrorReply::PeerDown(node),
            false => ErrorReply::UnknownNode(node),
        }
    }

    // Saying things.

    pub(super) fn ask(&mut self, to: NodeId, body: Request, purpose: Purpose) -> RequestId {
        if to != self.incarnation().node && self.members().peer_of(to).is_none() && !self.reach_out_to(to) {
            if self.inquire(to) {
                let id = self.out.note_asked(to, purpose);
                self.wait_until_told(to, DialWaiter::Message(Message::Request { id, body }));
                return id;
            }
            let refusal = self.absence_of(to);
            return self.refuse_ourselves(refusal, purpose);
        }
        let id = self.out.note_asked(to, purpose);
        self.say(to, Message::Request { id, body });
        id
    }

    /// As [`Context::ask`], but nobody who came after that incarnation of the node is meant.
    pub(super) fn ask_incarnation(&mut self, to: NodeIncarnation, body: Request, purpose: Purpose) {
        match self.is_present(to) || self.reach_out(to) {
            true => self.ask(to.node, body, purpose),
            false => self.refuse_ourselves(ErrorReply::PeerDown(to.node), purpose),
        };
    }

    pub(super) fn names_are_outside(&self) -> bool {
        self.names_are_outside
    }

    /// Whether names are outside, and others may have to write there what becomes of ours: this node does not reach the store, or is
    /// about to leave.
    pub(super) fn store_may_be_others(&self) -> bool {
        self.names_are_outside && (self.lacks_store || self.membership.draining().is_on())
    }

    pub(super) fn ask_directory(&mut self, question: Request, purpose: Purpose) {
        let to = match question {
            // Members are known to nodes alone.
            Request::ListMembers => self.membership_source(),
            Request::ForgetNode { .. } if self.names_are_outside => self.membership_source(),
            Request::ForgetNode { .. } | Request::MoveNames { .. } => self.seat,
            _ => self.names_seat,
        };
        let again = (self.seat == self.names_seat).then(|| Box::new(question.clone()));
        let id = self.ask(to, question, purpose);
        if let Some(asked) = self.out.asked.get_mut(&id) {
            asked.question = again;
        }
    }

    /// The refusal takes the same way as any other, so that no caller has a case of its own for it.
    fn refuse_ourselves(&mut self, refusal: ErrorReply, purpose: Purpose) -> RequestId {
        let of = self.incarnation().node;
        let id = self.out.note_asked(of, purpose);
        self.out.loopback.push_back(Message::Reply { id, body: Err(refusal) });
        id
    }

    pub(super) fn answer(&mut self, requester: Requester, body: Result<Reply, ErrorReply>) {
        self.out.end_serving(requester);
        if self.is_present(requester.incarnation) {
            self.say(requester.incarnation.node, Message::Reply { id: requester.id, body });
        }
    }

    pub(super) fn notify(&mut self, to: NodeId, notice: Notice) {
        self.say(to, Message::Notice(notice));
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

    pub(super) fn say(&mut self, to: NodeId, message: Message) {
        if to == self.incarnation().node {
            return self.out.loopback.push_back(message);
        }
        let Some((peer, member)) = self.members().peer_of(to) else { return self.say_on_demand(to, message) };
        // Who sleeps looks at what has arrived before it judges silence, and has no other use for a heartbeat.
        let solicited = !matches!(message, Message::Notice(Notice::Heartbeat { .. }));
        for bytes in link::frames(&message::encode(&message), member.send_bytes_max) {
            self.out.push(Effect::Send { peer, bytes, solicited });
        }
    }
}
