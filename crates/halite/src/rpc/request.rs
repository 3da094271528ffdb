//! Requests: from a caller into the server's ring, and the wait for the answer.

use std::iter::once;
use std::sync::Arc;
use std::task::Waker;

use halite_fabric::{PostCause, RemoteAddress};
use halite_mem::Window;
use halite_tier::ids::{NodeId, Principal};
use halite_tier::rpc::ring::{Place, request_bytes_max};
use halite_tier::rpc::wire::{
    OUTPUT_ADDRESS_BYTES, REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES_MAX, parse_output_address,
};
use halite_tier::rpc::{
    Abandoned, Imm, Input, Kind, PAYLOAD_BYTES_MAX, RING_BYTES_MIN, ReplyHeader, ReplySlots, ReplyState,
    RequestHeader, SlotId, Status, Target,
};

use super::answer::ReplyTo;
use super::input::{Bytes, Payload};
use super::lent::Lent;
use super::link::{Link, Outbound};
use super::memory::Block;
use super::replies::default_offset;
use super::service::{DecodedRequest, Hand, Incoming, Services};
use super::{DEFAULT_SLOT_BYTES, DEFAULT_SLOTS, Rpc, SlotResources};
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

/// Inputs up to this length travel in the ring, if it takes them; longer ones are read by the server.
const RING_INPUT_BYTES_MAX: u64 = 64 << 10;

/// A request to be posted.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Behind which connection its server must be, if not whichever has the node's number: who waits for room waits for one
    /// incarnation of a node, and not for the next.
    pub(crate) to: Option<Target>,
    pub(crate) kind: Kind,
    pub(crate) number: u32,
    pub(crate) principal: &'a Principal,
    /// By which links may know it.
    pub(crate) principal_number: Option<u16>,
    pub(crate) input: &'a [u8],
    /// Longest reply that is taken.
    pub(crate) reply_bytes_max: u32,
    /// Whether so much memory is made ready for the reply; else a long one is fetched.
    pub(crate) reply_in_place: bool,
    pub(crate) deadline_ns: u64,
}

/// Why a request was not posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotPosted {
    /// There is no room now, in the ring or in the fabric's queue; or the server's node is not ready yet.
    Full,
    /// There is no link to the node.
    NoLink,
    /// The server's node is gone.
    Gone,
    NoMemory,
    TooManyCalls,
    /// This node has left.
    Closed,
}

impl Request<'_> {
    /// The port, of a message.
    #[inline]
    pub(super) fn port(&self) -> Option<u32> {
        (self.kind != Kind::Call).then_some(self.number)
    }
}

/// A request that has been posted, and the use of a slot that its answer goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) target: Target,
    pub(crate) slot: SlotId,
    /// What the table of slots would be told, where it has not been yet.
    pub(crate) by_line: Option<LineUse>,
}

/// The use of a slot that is lent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineUse {
    pub(super) port: Option<u32>,
    pub(crate) deadline_ns: u64,
}

/// What came back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// So many bytes have been put where they were wanted.
    Done(usize),
    /// So many bytes stay in the slot, which the caller frees.
    Lent(usize),
    /// They are still at the server: so many, there.
    DoneAt(usize, RemoteAddress),
    /// So many bytes are more than what the caller has room for.
    TooLong(usize, usize),
    /// No answer, for this reason.
    Refused(Status),
    /// Nonsense.
    NotUnderstood,
}

impl Rpc {
    /// Posts a request, or says why not; nothing has happened then.
    #[inline]
    pub(crate) fn try_request(
        &self,
        node: NodeId,
        request: &Request<'_>,
        wakes: &mut Wakes,
    ) -> Result<Posted, NotPosted> {
        let post = |link: &Arc<Link>| {
            let target = link.target;
            if request.to.is_some_and(|to| to != target) {
                return Err(NotPosted::Gone);
            }
            match target {
                Target::Own => {
                    let slot = self.deliver_own(link, &self.peers.read().services, request, wakes)?;
                    Ok(Posted { target, slot, by_line: None })
                }
                Target::Peer(_) => self.post_request(link, request),
            }
        };
        self.peers.with_link_to(node, post).unwrap_or(Err(NotPosted::NoLink))
    }

    fn deliver_own(
        &self,
        link: &Arc<Link>,
        services: &Services,
        request: &Request<'_>,
        wakes: &mut Wakes,
    ) -> Result<SlotId, NotPosted> {
        let (slot, reply_at) = self.open_slot(Target::Own, request, None)?;
        let (at, room) = reply_at.unwrap_or((self.default_slots.address(), DEFAULT_SLOT_BYTES as u32));
        let name = request.principal.0.as_bytes();
        let (id, caller) = {
            let mut inbound = lock(&link.inbound);
            let id = link.served.open(slot).expect("the slot was free");
            (id, inbound.caller(link, name).expect("names are text"))
        };
        let bytes_max = request.reply_bytes_max;
        let to = ReplyTo { caller, cancels: link.cancels(), id, at, room, bytes_max, by_line: false };
        let incoming = Incoming::new(to, Payload::Here(Bytes::from(request.input)));
        let asked = DecodedRequest { kind: request.kind, number: request.number, incoming };
        self.deliver(|id| services.get(id), once(asked), &mut Hand::default(), wakes);
        Ok(slot)
    }

    #[inline]
    fn post_request(&self, link: &Arc<Link>, request: &Request<'_>) -> Result<Posted, NotPosted> {
        let input = self.place_input(link, request)?;
        let mut outbound = lock(&link.outbound);
        let Some(outbound) = outbound.as_mut() else {
            return Err(if link.is_gone() { NotPosted::Gone } else { NotPosted::Full });
        };
        if !link.has_sent_handshake() {
            return Err(NotPosted::Full);
        }
        if let Some(posted) = self.post_line(link, outbound, request) {
            return posted;
        }
        let at = input.as_ref().map(|block| block.address());
        let (slot, reply_at) = self.open_slot(link.target, request, input)?;
        let header = header_of(outbound, request, slot, reply_at, at);
        let posted = match header.request_bytes() <= outbound.ring.request_bytes_max() {
            true => self.post_into_ring(link, outbound, request, &header),
            // The peer's ring was not known yet when the input was placed: once more.
            false => Err(NotPosted::Full),
        };
        if posted.is_err() {
            self.free_slot(slot);
        }
        posted.map(|()| Posted { target: link.target, slot, by_line: None })
    }

    /// Where a long input is for the server to read.
    #[inline]
    fn place_input(&self, link: &Link, request: &Request<'_>) -> Result<Option<Block>, NotPosted> {
        let len = request.input.len() as u64;
        let overhead = (REQUEST_HEADER_BYTES_MAX + request.principal.0.len()) as u64;
        if len + overhead <= request_bytes_max(RING_BYTES_MIN) {
            // It travels in any ring.
            return Ok(None);
        }
        let in_ring_max = match &*lock(&link.outbound) {
            Some(outbound) => outbound.ring.request_bytes_max(),
            None => RING_INPUT_BYTES_MAX,
        };
        if len + overhead <= in_ring_max.min(RING_INPUT_BYTES_MAX + overhead) {
            return Ok(None);
        }
        let block = self.pool.allocate(&*self.fabric, len).ok_or(NotPosted::NoMemory)?;
        block.window().write(0, request.input).expect("the block is as long");
        Ok(Some(block))
    }

    /// A slot for the reply, and where that is if not in the default slot.
    pub(super) fn open_slot(
        &self,
        target: Target,
        request: &Request<'_>,
        input: Option<Block>,
    ) -> Result<(SlotId, Option<(RemoteAddress, u32)>), NotPosted> {
        let slot = {
            let mut slots = lock(&self.slots);
            // Nobody would ever look after it.
            let full = if slots.is_closed() { NotPosted::Closed } else { NotPosted::TooManyCalls };
            let slot = slots.open(target).ok_or(full)?;
            self.keep_deadline(&mut slots, slot, request.deadline_ns);
            slot
        };
        let wanted = u64::from(request.reply_bytes_max) + REPLY_HEADER_BYTES as u64;
        let room = if request.reply_in_place { wanted.max(DEFAULT_SLOT_BYTES) } else { DEFAULT_SLOT_BYTES };
        if room == DEFAULT_SLOT_BYTES
            && slot.index < DEFAULT_SLOTS
            && input.is_none()
            && request.kind == Kind::Call
        {
            // Most calls hold nothing, and to say so takes time.
            return Ok((slot, None));
        }
        let mut held = SlotResources { input, ..SlotResources::default() };
        if room > DEFAULT_SLOT_BYTES || slot.index >= DEFAULT_SLOTS {
            held.reply = self.pool.allocate(&*self.fabric, room);
            if held.reply.is_none() {
                self.free_slot(slot);
                return Err(NotPosted::NoMemory);
            }
        }
        if request.kind != Kind::Call {
            held.port = Some(request.number);
        }
        let reply_at = held.reply.as_ref().map(|block| (block.address(), room as u32));
        if held.reply.is_some() || held.input.is_some() || held.port.is_some() {
            lock(&self.slots).hold(slot, held);
        }
        Ok((slot, reply_at))
    }

    fn post_into_ring(
        &self,
        link: &Link,
        outbound: &mut Outbound,
        request: &Request<'_>,
        header: &RequestHeader,
    ) -> Result<(), NotPosted> {
        let place = outbound.place(header.request_bytes())?;
        let mut head = [0; REQUEST_HEADER_BYTES_MAX];
        let len = header.emit(&mut head);
        let name = request.principal.0.as_bytes();
        let input = if header.input == Input::InRing { request.input } else { &[] };
        let at = outbound.address(place);
        let imm = Imm::Request { offset: place.offset }.emit();
        let posted = self.post_parts(link, at, [&head[..len], name], input, imm);
        posted.map_err(|cause| match cause {
            PostCause::QueueFull => NotPosted::Full,
            PostCause::NotConnected => NotPosted::Gone,
            PostCause::Malformed => unreachable!("requests keep to the fabric's limits"),
        })?;
        outbound.ring.take(place);
        outbound.note_request(request);
        Ok(())
    }

    /// Looks after a slot, and if the reply is there, copies it out and frees the slot in the same step.
    pub(crate) fn try_take(&self, slot: SlotId, into: Into<'_>) -> Result<Reply, ReplyState> {
        let mut slots = lock(&self.slots);
        match slots.look(slot, 0) {
            ReplyState::Replied if slots.held(slot).is_none() => {}
            ReplyState::Replied => {
                drop(slots);
                return Ok(self.take_reply(slot, into));
            }
            look => return Err(look),
        }
        let reply = read_reply(self.default_slots.window(), default_offset(slot), DEFAULT_SLOT_BYTES, into);
        if !reply.needs_slot() {
            slots.free(slot);
        }
        Ok(reply)
    }

    /// Puts a reply where it is wanted, and frees the slot, unless that is needed longer.
    pub(crate) fn take_reply(&self, slot: SlotId, into: Into<'_>) -> Reply {
        let by_line = lock(&self.slots).held(slot).is_some_and(|held| held.by_line);
        let reply = if by_line { self.read_line(slot, into) } else { self.read_slot(slot, into) };
        if !reply.needs_slot() {
            self.free_slot(slot);
        }
        reply
    }

    /// What the table of slots says of a reply, which wakes `waker` unless it says more than to wait.  `now_ns` is asked under the
    /// lock: overdue calls were looked for before with an earlier time.
    pub(crate) fn wait_for(
        &self,
        slot: SlotId,
        now_ns: impl FnOnce() -> u64,
        waker: &mut Option<Waker>,
    ) -> ReplyState {
        let mut slots = lock(&self.slots);
        slots.wait(slot, now_ns(), waker)
    }

    fn read_slot(&self, slot: SlotId, into: Into<'_>) -> Reply {
        let window = self.slot_window(slot);
        read_reply(&window, 0, window.len(), into)
    }

    pub(crate) fn set_deadline(&self, slot: SlotId, deadline_ns: u64) {
        self.keep_deadline(&mut lock(&self.slots), slot, deadline_ns);
    }

    pub(super) fn keep_deadline(
        &self,
        slots: &mut ReplySlots<SlotResources>,
        slot: SlotId,
        deadline_ns: u64,
    ) {
        let before = slots.next_deadline_ns();
        slots.set_deadline(slot, deadline_ns);
        if deadline_ns < before {
            // The thread that sleeps until the next deadline is to sleep less.
            self.set_dirty();
        }
    }

    pub(crate) fn abandon(&self, slot: SlotId, wakes: &mut Wakes) {
        let abandoned = lock(&self.slots).abandon(slot);
        match abandoned {
            Abandoned::Cancel(Target::Own, waker) => {
                drop(waker);
                self.cancel(self.peers.own(), slot);
            }
            Abandoned::Cancel(Target::Peer(peer), waker) => {
                drop(waker);
                let (index, generation) = (slot.index, slot.generation);
                self.send_control(peer, super::CallControl::Cancel { index, generation });
            }
            Abandoned::Replied => {
                let target = lock(&self.slots).target(slot);
                self.drop_reply(target, slot, wakes);
            }
            Abandoned::Freed(held) => drop(held),
            Abandoned::Kept => {}
        }
    }
}

impl Outbound {
    /// A request has gone into the ring, with the name of its principal.
    pub(super) fn note_request(&mut self, request: &Request<'_>) {
        self.count_one();
        if let Some(principal) = request.principal_number.filter(|_| self.lines.is_some()) {
            self.introduced.add(principal);
        }
    }

    /// A request or a control message has been posted that lines are not to overtake.
    pub(super) fn count_one(&mut self) {
        self.posted_before = self.posted_before.wrapping_add(1);
    }

    /// Where a request of `len` bytes goes.
    pub(super) fn place(&mut self, len: u64) -> Result<Place, NotPosted> {
        if let Ok(place) = self.ring.place(len) {
            return Ok(place);
        }
        self.look_at_head().map_err(|_| NotPosted::Gone)?;
        self.ring.place(len).map_err(|_| NotPosted::Full)
    }

    /// Where a place of the ring is in the peer's memory.
    pub(super) fn address(&self, place: Place) -> RemoteAddress {
        RemoteAddress { offset: self.at.offset + place.offset, ..self.at }
    }

    fn look_at_head(&mut self) -> Result<(), halite_tier::rpc::Violation> {
        let head = self.head.load_u64(0).expect("the word is aligned");
        self.ring.set_head(head)
    }
}

/// Reads the reply that lies at `offset`.
fn read_reply(window: &Window, offset: u64, room: u64, into: Into<'_>) -> Reply {
    let mut header = [0; REPLY_HEADER_BYTES];
    window.read(offset, &mut header).expect("a slot holds a header");
    let behind = offset + REPLY_HEADER_BYTES as u64;
    match ReplyHeader::parse(header).map(|header| header.status) {
        // Not what lies behind the slot, whatever the server says.
        Ok(Status::Done(len)) if REPLY_HEADER_BYTES as u64 + u64::from(len) > room => Reply::NotUnderstood,
        Ok(Status::Done(len)) => into.read(window, behind, len as usize),
        Ok(Status::DoneAt(len)) => {
            let mut address = [0; OUTPUT_ADDRESS_BYTES];
            window.read(behind, &mut address).expect("a slot holds an address");
            match parse_output_address(address) {
                Ok(address) => Reply::DoneAt(len as usize, address),
                Err(_) => Reply::NotUnderstood,
            }
        }
        Ok(status) => Reply::Refused(status),
        Err(_) => Reply::NotUnderstood,
    }
}

pub(super) fn header_of(
    outbound: &Outbound,
    request: &Request<'_>,
    slot: SlotId,
    reply_at: Option<(RemoteAddress, u32)>,
    input_at: Option<RemoteAddress>,
) -> RequestHeader {
    RequestHeader {
        kind: request.kind,
        number: request.number,
        slot,
        reply_at,
        reply_bytes_max: request.reply_bytes_max,
        input_bytes: request.input.len() as u32,
        input: input_at.map_or(Input::InRing, Input::At),
        name_bytes: request.principal.0.len() as u8,
        principal: request.principal_number.filter(|_| outbound.lines.is_some()),
    }
}

/// Where the bytes of a reply go.
pub(crate) enum Into<'a> {
    /// A buffer of its own.
    Vec(&'a mut Vec<u8>),
    /// The caller's.
    Slice(&'a mut [u8]),
    /// They stay where they are, as far as possible.
    Lent(&'a mut Lent),
}

impl Reply {
    /// Whether the slot is still in use.
    #[inline]
    pub(crate) fn needs_slot(&self) -> bool {
        matches!(self, Reply::DoneAt(..) | Reply::Lent(_))
    }
}

impl Into<'_> {
    #[inline]
    pub(crate) fn reborrow(&mut self) -> Into<'_> {
        match self {
            Into::Vec(bytes) => Into::Vec(bytes),
            Into::Slice(bytes) => Into::Slice(bytes),
            Into::Lent(lent) => Into::Lent(lent),
        }
    }

    /// Room for exactly `len` bytes, unless they do not fit.
    #[inline]
    pub(crate) fn prepare(&mut self, len: usize) -> Result<&mut [u8], Reply> {
        match self {
            Into::Slice(bytes) => {
                let room = bytes.len();
                bytes.get_mut(..len).ok_or(Reply::TooLong(len, room))
            }
            Into::Vec(_) | Into::Lent(_) if len as u64 > PAYLOAD_BYTES_MAX => Err(Reply::NotUnderstood),
            Into::Vec(bytes) => {
                bytes.resize(len, 0);
                Ok(bytes.as_mut_slice())
            }
            Into::Lent(lent) => Ok(lent.fetched(len)),
        }
    }

    /// Lends what has `len` bytes in the slot.
    pub(super) fn lend(self, answer: Option<Window>, len: usize) -> Reply {
        match (self, answer) {
            (Into::Lent(lent), Some(answer)) => {
                *lent = Lent::InSlot(answer);
                Reply::Lent(len)
            }
            _ => Reply::NotUnderstood,
        }
    }

    /// Puts the `len` bytes at `offset` there.
    pub(super) fn read(mut self, window: &Window, offset: u64, len: usize) -> Reply {
        if let Into::Lent(_) = self {
            return self.lend(window.slice(offset, len as u64), len);
        }
        // What lies outside was never written by an honest server, and is not worth the memory.
        if len as u64 > window.len() {
            return Reply::NotUnderstood;
        }
        match self.prepare(len).map(|target| window.read(offset, target)) {
            Ok(Ok(())) => Reply::Done(len),
            Ok(Err(_)) => Reply::NotUnderstood,
            Err(refused) => refused,
        }
    }
}
