//! Functions and ports of this node: bounded queues, and who waits for what is in them.
//!
//! A function that is full refuses calls; a port that is full has its senders wait in order, without their messages,
//! and keeps room for each that is told to send again.  What is published waits in the same order, with its bytes: its sender knows
//! nothing of that, and is told when it is in the queue.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use halite_fabric::RemoteAddress;
use halite_tier::ids::Principal;
use halite_tier::rpc::{Kind, ServedId, Status, Target};

use super::answer::ReplyTo;
use super::input::{Bytes, Payload};
use super::link::{Caller, DropCount};
use crate::runtime::locks::{lock, ranked};

/// A function or a port, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ServiceId {
    Function(u32),
    Port(u32),
}

impl ServiceId {
    pub(crate) fn of(kind: Kind, number: u32) -> ServiceId {
        match kind {
            Kind::Call => ServiceId::Function(number),
            Kind::Send | Kind::TrySend | Kind::GrantedSend(_) | Kind::Publish => ServiceId::Port(number),
        }
    }
}

/// A request on its way to a handler.  It stays where it is put first, for it is larger than what is copied in passing.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Who asks, and where the answer goes.
    pub(crate) to: ReplyTo,
    /// Whether its sender has its answer, as that of a message has when it is queued.
    pub(crate) answered: bool,
    pub(crate) input: Payload,
}

/// What a request in a line says of its answer.
pub(super) struct LineTerms {
    pub(super) cancels: u32,
    pub(super) id: ServedId,
    pub(super) at: RemoteAddress,
    pub(super) room: u32,
    pub(super) bytes_max: u32,
}

/// How many requests that are over a thread keeps the memory of.
const SPARES_MAX: usize = 16;

thread_local! {
    /// What refers to a node that has ended holds none of its memory any more.
    #[expect(clippy::vec_box, reason = "requests stay where they are put first")]
    static SPARES: RefCell<Vec<Box<Incoming>>> = const { RefCell::new(Vec::new()) };
}

impl Incoming {
    /// One that is not answered yet.
    #[inline]
    pub(crate) fn new(to: ReplyTo, input: Payload) -> Box<Incoming> {
        Box::new(Incoming { to, answered: false, input })
    }

    /// One from `caller`, in memory that this thread has just been done with, if there is some.  Where that was of the same caller, as
    /// most often, no reference is counted anew.
    #[inline]
    pub(super) fn of(caller: &Arc<Caller>, terms: LineTerms, input: Payload) -> Box<Incoming> {
        let LineTerms { cancels, id, at, room, bytes_max } = terms;
        let spare = SPARES.try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
        let Some(mut spare) = spare else {
            let to = ReplyTo { caller: caller.clone(), cancels, id, at, room, bytes_max, by_line: true };
            return Incoming::new(to, input);
        };
        let to = &mut spare.to;
        if !Arc::ptr_eq(&to.caller, caller) {
            to.caller = caller.clone();
        }
        (to.cancels, to.id, to.at, to.room) = (cancels, id, at, room);
        (to.bytes_max, to.by_line) = (bytes_max, true);
        spare.answered = false;
        spare.input = input;
        spare
    }

    /// It is over; its memory, if it is short, waits for the thread's next.
    #[inline]
    pub(crate) fn recycle(self: Box<Incoming>) {
        if let Payload::Here(Bytes::Short(..)) = self.input {
            // A thread that is ending keeps nothing any more.
            let _ = SPARES.try_with(|spares| {
                let spares = &mut *spares.borrow_mut();
                if spares.len() < SPARES_MAX {
                    spares.push(self);
                }
            });
        }
    }

    fn is_here(&self) -> bool {
        matches!(self.input, Payload::Here(_))
    }

    fn is_wanted(&self) -> bool {
        self.answered || self.to.is_wanted()
    }

    /// The sender of a message need not wait for more than its place in the queue, unless its bytes are still there.
    #[inline]
    fn accept(&mut self, kind: Kind) -> Option<ReplyTo> {
        match (kind, &self.input) {
            (Kind::Call, _) | (_, Payload::There { .. }) => None,
            (_, Payload::Here(_)) => {
                self.answered = true;
                Some(self.to.clone())
            }
        }
    }
}

/// How a function or port is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServeOptions {
    /// Most requests that wait for a handler; more are refused, or for a port wait at their sender.
    pub requests_max: usize,
    /// Most bytes of inputs that wait; longer inputs than a quarter of a ring stay with their callers and do not count.
    pub bytes_max: usize,
    /// The principals that may call, beside the one that serves; `None` for everyone.
    pub callers: Option<Vec<String>>,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions { requests_max: 4096, bytes_max: 16 << 20, callers: None }
    }
}

/// One function or port.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) id: ServiceId,
    pub(crate) owner: Principal,
    options: ServeOptions,
    state: Mutex<QueueState>,
    /// Requests in the queue, for those who look often.
    waiting: AtomicUsize,
    /// Whether somebody waits for room, or has room that is kept, for the same.
    crowded: AtomicBool,
    /// Whether it has ended, for the same.
    ended: AtomicBool,
}

ranked! {
    QueueState => Service;
}

#[derive(Debug, Default)]
struct QueueState {
    queue: VecDeque<Box<Incoming>>,
    bytes: usize,
    receivers: Receivers,
    /// Senders that wait for room, in order.
    parked: VecDeque<Parked>,
    /// What is parked with its bytes, by whose it is.
    published: BTreeMap<Target, Published>,
    /// Room that is kept, by number.
    grants: BTreeMap<u32, Grant>,
    /// Bytes of all of it.
    granted_bytes: usize,
    last_grant: u32,
    servers: usize,
    /// [`DropCount::count`] when the queue was last searched for requests that are not wanted any more.
    drops_seen: u64,
    closed: bool,
}

/// A sender that waits for room for so many bytes, or its message if that was published.
#[derive(Debug)]
struct Parked {
    reply: ReplyTo,
    bytes: usize,
    message: Option<Box<Incoming>>,
}

impl Parked {
    /// What was published is received though its sender has no interest in it any more.
    fn is_wanted(&self) -> bool {
        self.message.is_some() || self.reply.is_wanted()
    }
}

/// How many messages wait with their bytes, and how many bytes they have.
#[derive(Clone, Copy, Default, Debug)]
struct Published {
    messages: usize,
    bytes: usize,
}

/// At most for one node and port.  A single message may be longer.
const PUBLISHED_MAX: Published = Published { messages: 4096, bytes: 4 << 20 };

/// Room that is kept for a sender.
#[derive(Debug)]
struct Grant {
    target: Target,
    bytes: usize,
}

/// Tasks that wait for a request.
#[derive(Debug, Default)]
struct Receivers {
    last: u64,
    asleep: VecDeque<(u64, Waker)>,
    /// Threads that look again by themselves before they sleep.
    awake: usize,
}

/// A request that has been read out of its ring.
#[derive(Debug)]
pub(crate) struct DecodedRequest {
    pub(super) kind: Kind,
    pub(super) number: u32,
    pub(super) incoming: Box<Incoming>,
}

impl DecodedRequest {
    pub(super) fn service(&self) -> ServiceId {
        ServiceId::of(self.kind, self.number)
    }
}

/// A receiver that waits for a request, on the thread that polls.
#[derive(Default)]
pub(crate) struct Hand<'s> {
    pub(crate) wanted: Option<&'s Service>,
    pub(crate) given: Option<Box<Incoming>>,
}

impl Hand<'_> {
    /// Whether a request of the service can be given instead of queued.
    pub(super) fn takes(&self, service: &Service) -> bool {
        self.given.is_none() && self.wanted.is_some_and(|wanted| std::ptr::eq(wanted, service))
    }
}

/// What became of a request that was to be queued.
pub(crate) enum Admission {
    /// It is in the queue: `waker` should look, and `accepted` is to be told.
    Queued { waker: Option<Waker>, accepted: Option<ReplyTo> },
    /// Its sender waits for room.
    Parked,
    /// It is refused.
    Refused(ReplyTo, Status),
}

impl Admission {
    /// Whether nothing is left to be done.
    fn is_all(&self) -> bool {
        matches!(self, Admission::Queued { waker: None, accepted: None } | Admission::Parked)
    }
}

/// What somebody who wants a request gets.
pub(crate) struct Taken {
    /// `None` where what was there is not wanted any more, which has made room all the same.
    pub(crate) incoming: Option<Box<Incoming>>,
    /// Who had waited for the room that this has made.
    pub(crate) promoted: Vec<Promoted>,
}

/// What is to be done for who has waited for room.
pub(crate) enum Promoted {
    /// It may send now, under this number.
    Granted(ReplyTo, u32),
    /// Its message is in the queue.
    Admitted(Admission),
}

/// Answers that are owed when a service ends.
pub(crate) struct Ended {
    pub(crate) wakers: Vec<Waker>,
    pub(crate) unanswered: Vec<ReplyTo>,
}

impl Service {
    #[inline]
    pub(crate) fn new(id: ServiceId, owner: Principal, options: ServeOptions) -> Service {
        let state = Mutex::new(QueueState { servers: 1, ..QueueState::default() });
        let (crowded, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        Service { id, owner, options, state, waiting: AtomicUsize::new(0), crowded, ended }
    }

    /// Whether somebody may use it.
    #[inline]
    pub(super) fn admits(&self, principal: &Principal) -> bool {
        match &self.options.callers {
            None => true,
            Some(names) => *principal == self.owner || names.iter().any(|name| **name == *principal.0),
        }
    }

    /// Queues requests in a batch, or says why not; what is returned are those for which something is left to be done.
    pub(crate) fn push_all(&self, batch: impl Iterator<Item = DecodedRequest>) -> Vec<Admission> {
        let mut state = lock(&self.state);
        batch.map(|asked| self.push(&mut state, asked)).filter(|admission| !admission.is_all()).collect()
    }

    #[inline]
    fn push(
        &self,
        state: &mut QueueState,
        DecodedRequest { kind, mut incoming, .. }: DecodedRequest,
    ) -> Admission {
        if !self.admits(&incoming.to.caller.principal) {
            return Admission::Refused(incoming.to, Status::Denied);
        }
        let target = incoming.to.target();
        let granted = matches!(kind, Kind::GrantedSend(grant) if state.use_grant(grant, target));
        if !state.closed && (granted || self.has_room(state, kind, &incoming)) {
            let accepted = incoming.accept(kind);
            return Admission::Queued { waker: self.enqueue(state, incoming), accepted };
        }
        let bytes = incoming.input.bytes_here();
        match kind {
            _ if state.closed => Admission::Refused(incoming.to, Status::Unknown),
            Kind::Call => Admission::Refused(incoming.to, Status::Busy),
            Kind::Publish if !state.keeps_more(target, bytes) => {
                Admission::Refused(incoming.to, Status::WouldBlock)
            }
            Kind::TrySend => Admission::Refused(incoming.to, Status::WouldBlock),
            Kind::Send | Kind::GrantedSend(_) | Kind::Publish => {
                let reply = incoming.to.clone();
                let message = (kind == Kind::Publish).then_some(incoming);
                state.park(Parked { reply, bytes, message });
                self.crowded.store(true, Relaxed);
                Admission::Parked
            }
        }
    }

    #[inline]
    fn has_room(&self, state: &mut QueueState, kind: Kind, incoming: &Incoming) -> bool {
        let more = incoming.input.bytes_here();
        if !self.fits(state, more) && state.may_be_unwanted(incoming.to.link().drops()) {
            // Requests that nobody waits for any more take no room from others.
            state.forget_cancelled();
            self.waiting.store(state.queue.len(), Relaxed);
        }
        // Those that wait are not overtaken.
        let in_turn = kind == Kind::Call || state.parked.is_empty();
        in_turn && self.fits(state, more)
    }

    /// A single request always fits into an empty queue, however long it is.
    #[inline]
    fn fits(&self, state: &QueueState, more: usize) -> bool {
        let promised = state.queue.len() + state.grants.len();
        let bytes = state.bytes + state.granted_bytes + more;
        let has_bytes = promised == 0 || bytes <= self.options.bytes_max;
        promised < self.options.requests_max.max(1) && has_bytes
    }

    #[inline]
    fn enqueue(&self, state: &mut QueueState, incoming: Box<Incoming>) -> Option<Waker> {
        state.bytes += incoming.input.bytes_here();
        state.queue.push_back(incoming);
        self.waiting.store(state.queue.len(), Relaxed);
        // Threads that are awake take one each; for the rest, somebody must be woken.
        if state.queue.len() > state.receivers.awake { state.receivers.pop() } else { None }
    }

    /// How many requests nobody has received yet.
    pub(crate) fn waiting(&self) -> usize {
        // A figure: it orders nothing.
        self.waiting.load(Relaxed)
    }

    /// Whether there is something to take; a hint for those who look often.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Whether messages take their turn with those that wait for room; a hint, as above.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Relaxed)
    }

    /// Whether a receiver may be given a request instead of a place in the queue.  A message takes its turn with those that wait for
    /// room.
    #[inline]
    pub(super) fn gives(&self, asked: &DecodedRequest) -> bool {
        asked.kind == Kind::Call && !self.has_ended() && self.admits(&asked.incoming.to.caller.principal)
    }

    /// Whether it has ended; a hint, as for a request that is received just before.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// The same thread has found one elsewhere.  Returns who takes what it leaves behind.
    pub(crate) fn stop_looking(&self) -> Option<Waker> {
        let mut state = lock(&self.state);
        state.receivers.awake -= 1;
        if state.queue.len() > state.receivers.awake { state.receivers.pop() } else { None }
    }

    /// Takes the next request that somebody still waits for.  `Err` once the service has ended.
    pub(crate) fn try_take(&self) -> Result<Option<Taken>, Closed> {
        self.take(&mut lock(&self.state))
    }

    /// Takes what waits in front of the first request whose input must be read, at most `max`.  For functions, where nobody
    /// waits for the room that this makes.
    #[expect(clippy::vec_box, reason = "requests stay where they are put first")]
    pub(crate) fn take_batch(&self, max: usize) -> Vec<Box<Incoming>> {
        let mut state = lock(&self.state);
        let mut batch = Vec::with_capacity(max.min(state.queue.len()));
        while batch.len() < max
            && let Some(next) = state.queue.pop_front_if(|next| next.is_here())
        {
            state.bytes -= next.input.bytes_here();
            batch.extend(Some(next).filter(|next| next.is_wanted()));
        }
        self.waiting.store(state.queue.len(), Relaxed);
        batch
    }

    /// As [`Service::try_take`]; where there is nothing, this thread now looks by itself.
    pub(crate) fn take_or_look(&self) -> Result<Option<Taken>, Closed> {
        let mut state = lock(&self.state);
        let taken = self.take(&mut state)?;
        state.receivers.awake += usize::from(taken.is_none());
        Ok(taken)
    }

    /// The same thread has looked long enough.  Also returns who takes what it leaves behind.
    pub(crate) fn take_after_look(&self) -> (Result<Option<Taken>, Closed>, Option<Waker>) {
        let mut state = lock(&self.state);
        state.receivers.awake -= 1;
        let taken = self.take(&mut state);
        let heir = if state.queue.len() > state.receivers.awake { state.receivers.pop() } else { None };
        (taken, heir)
    }

    /// Inlined, lest a request be moved once more on its way.
    #[inline(always)]
    fn take(&self, state: &mut QueueState) -> Result<Option<Taken>, Closed> {
        let found = state.pop_open();
        self.waiting.store(state.queue.len(), Relaxed);
        if found.is_none() && state.closed {
            return Err(Closed);
        }
        let taken = Taken { incoming: found, promoted: self.promote(state) };
        if self.is_crowded() {
            self.crowded.store(!(state.parked.is_empty() && state.grants.is_empty()), Relaxed);
        }
        Ok(Some(taken).filter(|taken| taken.incoming.is_some() || !taken.promoted.is_empty()))
    }

    /// The thread that took a request could not accept it: the next one gets it.  Handed back once the service has ended.
    pub(crate) fn requeue(&self, incoming: Box<Incoming>) -> Result<Option<Waker>, Box<Incoming>> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(incoming);
        }
        state.bytes += incoming.input.bytes_here();
        state.queue.push_front(incoming);
        self.waiting.store(state.queue.len(), Relaxed);
        Ok(state.receivers.pop())
    }

    /// As [`Service::try_take`]; where there is nothing, the task of `context` is woken when there is.  `id` is of the
    /// waiter, from one poll to the next.
    pub(crate) fn poll_take(
        &self,
        id: &mut Option<u64>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Taken, Closed>> {
        let mut state = lock(&self.state);
        if let Some(id) = id.take() {
            state.receivers.forget(id);
        }
        match self.take(&mut state) {
            Ok(Some(taken)) => Poll::Ready(Ok(taken)),
            Ok(None) => {
                *id = Some(state.receivers.push(context.waker().clone()));
                Poll::Pending
            }
            Err(closed) => Poll::Ready(Err(closed)),
        }
    }

    /// A waiter gives up.  If it was woken for a request, somebody else takes that.
    pub(crate) fn stop_waiting(&self, id: u64) -> Option<Waker> {
        let mut state = lock(&self.state);
        let woken = !state.receivers.forget(id);
        if woken && state.queue.len() > state.receivers.awake { state.receivers.pop() } else { None }
    }

    /// A sender does not need the room that is kept for it.
    pub(crate) fn decline(&self, from: Target, grant: u32) -> Vec<Promoted> {
        let mut state = lock(&self.state);
        state.use_grant(grant, from);
        self.promote(&mut state)
    }

    /// A peer is gone, and with it the senders for whom room is kept.
    pub(crate) fn handle_down(&self, peer: Target) -> Vec<Promoted> {
        let mut state = lock(&self.state);
        state.grants.retain(|_, grant| grant.target != peer);
        state.granted_bytes = state.grants.values().map(|grant| grant.bytes).sum();
        state.parked.retain(|parked| parked.reply.target() != peer);
        state.published.remove(&peer);
        self.promote(&mut state)
    }

    /// Gives room to those that wait for it, in their order.
    fn promote(&self, state: &mut QueueState) -> Vec<Promoted> {
        let mut promoted = Vec::new();
        while let Some(Parked { bytes, .. }) = state.parked.front()
            && self.fits(state, *bytes)
            && let Some(Parked { reply, bytes, message }) = state.unpark()
        {
            match message {
                Some(mut incoming) => {
                    let accepted = incoming.accept(Kind::Publish);
                    let waker = self.enqueue(state, incoming);
                    promoted.push(Promoted::Admitted(Admission::Queued { waker, accepted }));
                }
                None => promoted.extend(state.grant(reply, bytes)),
            }
        }
        promoted
    }

    // Servers come and go.

    /// One more server of the same service.  `false` if it has ended.
    pub(crate) fn join(&self) -> bool {
        let mut state = lock(&self.state);
        state.servers += usize::from(!state.closed);
        !state.closed
    }

    /// A server is dropped; the last one ends the service.
    pub(crate) fn leave(&self) -> Option<Ended> {
        let mut state = lock(&self.state);
        state.servers -= 1;
        (state.servers == 0 && !state.closed).then(|| self.end(&mut state))
    }

    /// Ends the service: receivers are told, and so are callers.
    pub(crate) fn close(&self) -> Option<Ended> {
        let mut state = lock(&self.state);
        (!state.closed).then(|| self.end(&mut state))
    }

    fn end(&self, state: &mut QueueState) -> Ended {
        state.closed = true;
        self.ended.store(true, Relaxed);
        self.waiting.store(0, Relaxed);
        state.bytes = 0;
        state.grants.clear();
        state.granted_bytes = 0;
        let waiting = state.queue.drain(..).filter(|incoming| !incoming.answered).map(|incoming| incoming.to);
        state.published.clear();
        let unanswered = waiting.chain(state.parked.drain(..).map(|parked| parked.reply)).collect();
        Ended { wakers: state.receivers.asleep.drain(..).map(|(_, waker)| waker).collect(), unanswered }
    }
}

/// The service has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Closed;

impl QueueState {
    fn pop_open(&mut self) -> Option<Box<Incoming>> {
        while let Some(incoming) = self.queue.pop_front() {
            self.bytes -= incoming.input.bytes_here();
            if incoming.is_wanted() {
                return Some(incoming);
            }
        }
        None
    }

    /// Whether some may have come to be unwanted since this was asked last: to search a full queue for each request that it
    /// refuses would hold up those of other functions.
    #[inline]
    fn may_be_unwanted(&mut self, drops: &DropCount) -> bool {
        let count = drops.count();
        std::mem::replace(&mut self.drops_seen, count) != count
    }

    fn forget_cancelled(&mut self) {
        self.queue.retain(|incoming| incoming.is_wanted());
        self.bytes = self.queue.iter().map(|incoming| incoming.input.bytes_here()).sum();
        self.parked.retain(|parked| parked.is_wanted());
    }

    /// Whether one more message of that node may wait with its bytes.
    fn keeps_more(&self, of: Target, bytes: usize) -> bool {
        let kept = self.published.get(&of).copied().unwrap_or_default();
        let has_bytes = kept.messages == 0 || kept.bytes + bytes <= PUBLISHED_MAX.bytes;
        kept.messages < PUBLISHED_MAX.messages && has_bytes
    }

    fn park(&mut self, parked: Parked) {
        if parked.message.is_some() {
            let kept = self.published.entry(parked.reply.target()).or_default();
            (kept.messages, kept.bytes) = (kept.messages + 1, kept.bytes + parked.bytes);
        }
        self.parked.push_back(parked);
    }

    /// Who waits longest.
    fn unpark(&mut self) -> Option<Parked> {
        let parked = self.parked.pop_front()?;
        let of = parked.reply.target();
        if parked.message.is_some()
            && let Some(kept) = self.published.get_mut(&of)
        {
            (kept.messages, kept.bytes) = (kept.messages - 1, kept.bytes - parked.bytes);
            if kept.messages == 0 {
                self.published.remove(&of);
            }
        }
        Some(parked)
    }

    fn use_grant(&mut self, grant: u32, target: Target) -> bool {
        let is_theirs = self.grants.get(&grant).is_some_and(|kept| kept.target == target);
        if is_theirs && let Some(kept) = self.grants.remove(&grant) {
            self.granted_bytes -= kept.bytes;
        }
        is_theirs
    }

    /// Keeps room for a sender.
    fn grant(&mut self, reply: ReplyTo, bytes: usize) -> Option<Promoted> {
        if !reply.is_wanted() {
            return None;
        }
        self.last_grant = self.last_grant.wrapping_add(1);
        self.grants.insert(self.last_grant, Grant { target: reply.target(), bytes });
        self.granted_bytes += bytes;
        Some(Promoted::Granted(reply, self.last_grant))
    }
}

impl Receivers {
    #[inline]
    fn push(&mut self, waker: Waker) -> u64 {
        self.last += 1;
        self.asleep.push_back((self.last, waker));
        self.last
    }

    fn pop(&mut self) -> Option<Waker> {
        self.asleep.pop_front().map(|(_, waker)| waker)
    }

    /// Whether it was still asleep.
    fn forget(&mut self, id: u64) -> bool {
        let before = self.asleep.len();
        self.asleep.retain(|(other, _)| *other != id);
        self.asleep.len() < before
    }
}

/// All functions and ports of a node.
#[derive(Debug, Default)]
pub(crate) struct Services {
    by_id: BTreeMap<ServiceId, Arc<Service>>,
}

impl Services {
    pub(crate) fn get(&self, id: ServiceId) -> Option<&Arc<Service>> {
        self.by_id.get(&id)
    }

    pub(crate) fn insert(&mut self, service: Arc<Service>) {
        self.by_id.insert(service.id, service);
    }

    pub(crate) fn remove(&mut self, service: &Arc<Service>) {
        if self.by_id.get(&service.id).is_some_and(|known| Arc::ptr_eq(known, service)) {
            self.by_id.remove(&service.id);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.by_id.values()
    }
}

#[cfg(test)]
mod tests {
    use halite_fabric::{Key, PeerId};
    use halite_tier::ids::NodeId;
    use halite_tier::rpc::SlotId;

    use super::super::link::Link;
    use super::*;

    fn link() -> Arc<Link> {
        Arc::new(Link::new(NodeId(1), Target::Own, 0, None, DropCount::default()))
    }

    /// A message of so many bytes, from a sender that waits for its answer.
    fn message(link: &Arc<Link>, slot: u16, bytes: usize) -> Box<Incoming> {
        let mut inbound = lock(&link.inbound);
        let id = link.served.open(SlotId { index: slot, generation: 0 }).unwrap();
        let caller = inbound.caller(link, b"bob").unwrap();
        let at = RemoteAddress { key: Key(0), offset: 0 };
        let to = ReplyTo { caller, cancels: 0, id, at, room: 64, bytes_max: 0, by_line: false };
        Incoming::new(to, Payload::Here(Bytes::zeroed(bytes)))
    }

    #[test]
    fn room_is_promised_for_as_many_bytes_as_there_is_room_for() {
        let options = ServeOptions { bytes_max: 100, ..ServeOptions::default() };
        let service = Service::new(ServiceId::Port(1), Principal("ada".into()), options);
        let link = link();
        let asked = |slot| DecodedRequest { kind: Kind::Send, number: 1, incoming: message(&link, slot, 60) };
        let done = service.push_all((0..4).map(asked));
        assert!(matches!(done[..], [Admission::Queued { accepted: Some(_), .. }]), "the others are parked");
        let taken = service.try_take().unwrap().expect("one waits");
        let [Promoted::Granted(_, grant)] = taken.promoted[..] else { panic!("two would be too many bytes") };
        assert_eq!(service.decline(Target::Own, grant).len(), 1, "the next gets it");
        link.forget_caller();
    }

    #[test]
    fn what_is_published_to_a_full_port_is_kept_up_to_a_bound_of_bytes_of_each_node() {
        let options = ServeOptions { requests_max: 1, ..ServeOptions::default() };
        let service = Service::new(ServiceId::Port(1), Principal("ada".into()), options);
        let peers = [1, 2].map(|peer| Target::Peer(PeerId(peer)));
        let links = peers.map(|peer| Arc::new(Link::new(NodeId(1), peer, 0, None, DropCount::default())));
        let publish = |link: &Arc<Link>, slot| {
            let incoming = message(link, slot, PUBLISHED_MAX.bytes / 2);
            let asked = DecodedRequest { kind: Kind::Publish, number: 1, incoming };
            let done = service.push_all([asked].into_iter());
            !matches!(done[..], [Admission::Refused(_, Status::WouldBlock)])
        };
        assert!(publish(&links[0], 0), "it is in the queue");
        assert_eq!([1, 2, 3].map(|slot| publish(&links[0], slot)), [true, true, false]);
        // What has moved up counts no more, nor what belonged to a peer that is gone.
        let taken = service.try_take().unwrap().expect("one waits");
        assert!(matches!(taken.promoted[..], [Promoted::Admitted(_)]));
        assert_eq!([4, 5].map(|slot| publish(&links[0], slot)), [true, false]);
        assert_eq!([0, 1, 2].map(|slot| publish(&links[1], slot)), [true, true, false]);
        service.handle_down(peers[0]);
        assert_eq!([6, 7, 8].map(|slot| publish(&links[0], slot)), [true, true, false]);
        links.iter().for_each(|link| link.forget_caller());
    }

    #[test]
    fn requests_that_nobody_waits_for_make_room_for_others() {
        let options = ServeOptions { requests_max: 2, ..ServeOptions::default() };
        let service = Service::new(ServiceId::Function(1), Principal("ada".into()), options);
        let link = link();
        let push = |slot| {
            let asked = DecodedRequest { kind: Kind::Call, number: 1, incoming: message(&link, slot, 1) };
            service.push_all([asked].into_iter()).is_empty()
        };
        assert_eq!([push(0), push(1), push(2)], [true, true, false]);
        for slot in [0, 1] {
            link.note_cancel();
            link.served.cancel(SlotId { index: slot, generation: 0 });
            link.note_loss();
        }
        assert_eq!([push(3), push(4), push(5)], [true, true, false]);
        link.forget_caller();
    }

    #[test]
    fn requests_of_a_peer_that_is_gone_make_room_for_others() {
        let options = ServeOptions { requests_max: 2, ..ServeOptions::default() };
        let service = Service::new(ServiceId::Function(1), Principal("ada".into()), options);
        let drops = DropCount::default();
        let [gone, other] =
            [1, 2].map(|node| Arc::new(Link::new(NodeId(node), Target::Own, 0, None, drops.clone())));
        let push = |link, slot| {
            let asked = DecodedRequest { kind: Kind::Call, number: 1, incoming: message(link, slot, 1) };
            service.push_all([asked].into_iter()).is_empty()
        };
        assert_eq!([push(&gone, 0), push(&other, 0), push(&other, 1)], [true, true, false]);
        gone.set_gone();
        assert_eq!([push(&other, 2), push(&other, 3)], [true, false]);
        [gone, other].iter().for_each(|link| link.forget_caller());
    }

    #[test]
    fn a_batch_that_is_taken_makes_room_for_as_many_bytes_and_leaves_out_who_does_not_wait() {
        let options = ServeOptions { bytes_max: 100, ..ServeOptions::default() };
        let service = Service::new(ServiceId::Function(1), Principal("ada".into()), options);
        let link = link();
        for round in 0..3 {
            let asked =
                |slot| DecodedRequest { kind: Kind::Call, number: 1, incoming: message(&link, slot, 30) };
            let first = 10 * round;
            assert!(service.push_all((first..first + 3).map(asked)).is_empty(), "there is room");
            link.note_cancel();
            link.served.cancel(SlotId { index: first, generation: 0 });
            let slots: Vec<_> = service.take_batch(9).iter().map(|taken| taken.to.id.slot.index).collect();
            assert_eq!(slots, [first + 1, first + 2]);
            assert!(!service.is_waiting());
        }
        link.forget_caller();
    }

    #[test]
    fn nothing_is_put_back_into_a_service_that_has_ended() {
        let service = Service::new(ServiceId::Port(1), Principal("ada".into()), ServeOptions::default());
        let link = link();
        assert!(service.requeue(message(&link, 0, 1)).is_ok());
        assert!(service.close().is_some());
        assert!(service.requeue(message(&link, 1, 1)).is_err(), "nobody would ever answer it");
        link.forget_caller();
    }
}
