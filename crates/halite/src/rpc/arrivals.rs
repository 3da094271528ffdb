//! What arrives: requests, replies and control messages, handled by the polling thread.
//!
//! Nothing here waits, and no handler runs here.  A peer that does not follow the protocol loses its connection.

use std::collections::VecDeque;
use std::iter::{Peekable, from_fn, once};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use halite_fabric::{Key, Local, Operation, PeerId, PostCause, RemoteAddress, WorkRequest};
use halite_tier::rpc::line::REQUEST_LINES;
use halite_tier::rpc::ring::is_ring_size;
use halite_tier::rpc::{
    Arrival, CallControl, Cancelling, Imm, Input, ReplySlots, RequestHeader, RingWriter, SlotId, Status,
    Target, Violation,
};

use super::answer::{Answered, ReplyTo};
use super::input::{Bytes, Payload};
use super::line_requests::ReceiveBatch;
use super::link::{Inbound, Introduced, Link, Outbound, OutboundLines, PeerParameters, Row};
use super::service::{Admission, DecodedRequest, Hand, Incoming, Promoted, Service, ServiceId};
use super::{Attempt, CALL_WORK, FIRST_LOOK_BYTES, Rpc, SlotResources};
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

impl Rpc {
    /// Writes with immediates have landed, one behind the other.  Those of a kind in a batch are handled under one lock
    /// each of what they need, for at a full load that is most of what they cost.
    pub(crate) fn handle_notified(
        &self,
        peer: PeerId,
        imms: impl Iterator<Item = u32>,
        received: &mut ReceiveBatch,
        wakes: &mut Wakes,
    ) {
        let mut imms = imms.map(Imm::parse).peekable();
        let mut handled = Ok(());
        while handled.is_ok() && imms.peek().is_some() {
            handled = self.handle_replies(Target::Peer(peer), slots_in_batch(&mut imms), wakes);
            while handled.is_ok()
                && let Some(imm) = imms.next_if(|imm| matches!(imm, Imm::Lines | Imm::Look(_)))
            {
                handled = match imm {
                    Imm::Look(index) => self.handle_look(Target::Peer(peer), index, wakes),
                    // The thread that polls looks at all lines.
                    _ => Ok(()),
                };
            }
            let offsets = offsets_in_batch(&mut imms);
            handled = handled.and_then(|()| self.handle_requests(peer, offsets, received, wakes));
        }
        self.enforce(peer, handled);
    }

    /// A peer that does not follow the protocol is given up.
    pub(super) fn enforce(&self, peer: PeerId, handled: Result<(), Violation>) {
        if handled.is_err() {
            self.fabric.disconnect(peer);
        }
    }

    fn handle_replies(
        &self,
        from: Target,
        batch: impl Iterator<Item = SlotId>,
        wakes: &mut Wakes,
    ) -> Result<(), Violation> {
        let mut batch = batch.peekable();
        if batch.peek().is_none() {
            return Ok(());
        }
        let mut late = Vec::new();
        let handled = {
            let mut slots = lock(&self.slots);
            let handled = batch.try_for_each(|slot| {
                match slots.handle_reply(from, slot)? {
                    Arrival::Expected(waker) => wakes.add(waker),
                    Arrival::Late => late.push(slot),
                    Arrival::Posthumous => {}
                }
                Ok(())
            });
            self.arrived(&slots);
            handled
        };
        for slot in late {
            self.drop_reply(from, slot, wakes);
        }
        handled
    }

    /// The first part of the handling of one reply, which may be done under a link's lock.
    pub(super) fn arrive(&self, from: Target, slot: SlotId) -> Result<Arrival, Violation> {
        let mut slots = lock(&self.slots);
        let arrival = slots.handle_reply(from, slot)?;
        if let Arrival::Expected(_) = arrival {
            self.arrived(&slots);
        }
        Ok(arrival)
    }

    /// The rest, under no lock.
    pub(super) fn handle_arrival(&self, from: Target, slot: SlotId, arrival: Arrival, wakes: &mut Wakes) {
        match arrival {
            Arrival::Expected(waker) => wakes.add(waker),
            Arrival::Late => self.drop_reply(from, slot, wakes),
            Arrival::Posthumous => {}
        }
    }

    /// Those who spin look again.  Counted under the lock of the slots.
    pub(super) fn arrived(&self, _: &ReplySlots<SlotResources>) {
        // Pairs with the Acquire in arrivals(): who sees the count finds the reply.
        self.arrivals.store(self.arrivals.load(Relaxed) + 1, Release);
    }

    /// How many replies have arrived.
    pub(crate) fn arrivals(&self) -> u64 {
        // Pairs with the Release in arrived().
        self.arrivals.load(Acquire)
    }

    fn handle_requests(
        &self,
        peer: PeerId,
        batch: impl Iterator<Item = u64>,
        received: &mut ReceiveBatch,
        wakes: &mut Wakes,
    ) -> Result<(), Violation> {
        let mut batch = batch.peekable();
        if batch.peek().is_none() {
            return Ok(());
        }
        let table = self.peers.read();
        let Some(peer_entry) = table.up(peer) else {
            // Who was refused or given up may still talk.
            batch.for_each(drop);
            return Ok(());
        };
        // Nobody else may write to our rings.
        let link = peer_entry.link.as_ref().ok_or(Violation("a request without a ring"))?;
        let read = {
            let inbound = &mut *lock(&link.inbound);
            let read = batch.try_for_each(|offset| {
                // Short ones that were posted before it have landed before it.
                self.read_lines(peer, link, inbound, &mut received.requests, REQUEST_LINES)?;
                received.requests.push(read_request(link, inbound, offset)?);
                Ok(())
            });
            if let Some(head) = inbound.poll_head() {
                self.return_head(peer, head, Attempt::First);
            }
            read
        };
        self.deliver(|id| table.services.get(id), received.requests.drain(..), &mut Hand::default(), wakes);
        read
    }

    /// A plain write: the client that waits for room looks.  Under the lock of the link's inbound side, lest an older head land
    /// behind a newer one: who has no room sends nothing that would bring another.
    pub(super) fn return_head(&self, peer: PeerId, (at, head): (RemoteAddress, u64), attempt: Attempt) {
        let bytes = head.to_le_bytes();
        let operation = Operation::Write { local: Local::Inline(&bytes), remote: at };
        let posted =
            self.post(peer, &[WorkRequest { id: CALL_WORK, operation, signalled: false, solicited: true }]);
        if posted == Err(PostCause::QueueFull) {
            // There may be no next one, for the same reason.
            lock(&self.heads).insert(peer);
            self.set_stuck(attempt);
        }
    }

    /// A peer does not take what it asked for, or told us to put somewhere, or we cannot reach where that is.
    pub(crate) fn handle_refused(&self, peer: PeerId) {
        self.enforce(peer, Err(Violation("it named memory that cannot be reached")));
    }

    /// Puts requests into the queues that they are for.
    pub(super) fn deliver<'s>(
        &self,
        find: impl Fn(ServiceId) -> Option<&'s Arc<Service>>,
        requests: impl Iterator<Item = DecodedRequest>,
        hand: &mut Hand<'_>,
        wakes: &mut Wakes,
    ) {
        let mut requests = requests.peekable();
        while let Some(first) = requests.next() {
            let id = first.service();
            let Some(service) = find(id) else {
                self.refuse(&first.incoming.to, Status::Unknown, wakes);
                continue;
            };
            if self.draining.load(Relaxed) && matches!(id, ServiceId::Function(_)) {
                self.refuse(&first.incoming.to, Status::Draining, wakes);
                continue;
            }
            let Some(first) = service.give(first, hand) else { continue };
            let others = from_fn(|| requests.next_if(|next| next.service() == id));
            for admission in service.push_all(once(first).chain(others)) {
                self.follow(admission, wakes);
            }
        }
    }

    /// Does what is left to be done for a request that has met its queue.
    fn follow(&self, admission: Admission, wakes: &mut Wakes) {
        match admission {
            Admission::Queued { waker, accepted } => {
                wakes.add(waker);
                if let Some(reply) = accepted {
                    self.answer(&reply, &[], wakes);
                }
            }
            Admission::Parked => {}
            Admission::Refused(reply, status) => self.refuse(&reply, status, wakes),
        }
    }

    /// Tells senders that there is room for them now, or that their messages have it.
    pub(crate) fn follow_promoted(&self, service: &Service, promoted: Vec<Promoted>, wakes: &mut Wakes) {
        let mut promoted = VecDeque::from(promoted);
        while let Some(next) = promoted.pop_front() {
            match next {
                Promoted::Admitted(admission) => self.follow(admission, wakes),
                Promoted::Granted(reply, grant) => {
                    let from = reply.target();
                    if self.send_answer(&reply, Status::Granted(grant), &[], wakes) == Answered::Unwanted {
                        // It gave up in this moment, and will not decline what it was not told of.
                        promoted.extend(service.decline(from, grant));
                    }
                }
            }
        }
    }

    /// A control message has arrived.
    pub(crate) fn handle_control(
        &self,
        peer: PeerId,
        bytes: &[u8],
        received: &mut ReceiveBatch,
        wakes: &mut Wakes,
    ) {
        let Some(link) = self.peers.link_of(peer) else { return };
        let control = CallControl::parse(bytes).map_err(|_| Violation("not a control message"));
        let handled = control.and_then(|control| {
            if !control.is_ordered() {
                return self.apply_control(&link, peer, control, wakes);
            }
            // The request came before its cancel, and is not to be heard after it; what came later, not before it.
            self.take_in_lines(peer, &link, received, wakes)?;
            self.apply_control(&link, peer, control, wakes)?;
            link.reader.hear();
            self.take_in_lines(peer, &link, received, wakes)
        });
        self.enforce(peer, handled);
    }

    pub(super) fn apply_control(
        &self,
        link: &Link,
        peer: PeerId,
        control: CallControl,
        wakes: &mut Wakes,
    ) -> Result<(), Violation> {
        match control {
            CallControl::Handshake { .. } => return self.open(link, peer, &control),
            CallControl::Cancel { index, generation } => self.cancel(link, SlotId { index, generation }),
            CallControl::Cancelled { index, generation } => {
                let slot = SlotId { index, generation };
                // A reply may be in its line, of which nobody was told.
                self.look_at_line(Target::Peer(peer), index, wakes);
                let held = lock(&self.slots).handle_cancelled(Target::Peer(peer), slot);
                drop(held);
            }
            CallControl::Release { index, generation } => {
                let kept = lock(&link.inbound).kept.remove(&SlotId { index, generation });
                drop(kept);
            }
            CallControl::Decline { port, grant } => self.decline(port, Target::Peer(peer), grant, wakes),
        }
        Ok(())
    }

    /// Takes in what a peer tells us in the beginning.
    fn open(&self, link: &Link, peer: PeerId, control: &CallControl) -> Result<(), Violation> {
        let CallControl::Handshake { ring_key, ring_offset, ring_bytes, .. } = *control else {
            unreachable!("the caller looked")
        };
        if !is_ring_size(ring_bytes) {
            return Err(Violation("a ring of no size that rings have"));
        }
        let theirs = PeerParameters::parse(control).ok_or(Violation("not an opening"))?;
        let replies = Row::new(&*self.fabric, peer, theirs.replies, theirs.slot_count());
        let head = {
            let inbound = &mut *lock(&link.inbound);
            inbound.theirs = Some(theirs);
            inbound.head.as_ref().map(|head| head.window().clone())
        };
        let head = head.ok_or(Violation("a ring after the end"))?;
        self.reply_rows.open(&link.replies, replies);
        let at = RemoteAddress { key: Key(ring_key), offset: ring_offset };
        let lines = self.fabric.capabilities(peer).direct.then(|| {
            let row = Row::new(&*self.fabric, peer, theirs.lines, REQUEST_LINES);
            OutboundLines::new(row, 1 + self.borrowers.fetch_add(1, Relaxed))
        });
        let ring = RingWriter::new(ring_bytes);
        let (posted_before, introduced) = (0, Introduced::default());
        *lock(&link.outbound) = Some(Outbound { ring, at, head, posted_before, introduced, lines });
        Ok(())
    }

    /// The caller behind `link` has lost interest in an answer.
    pub(super) fn cancel(&self, link: &Link, slot: SlotId) {
        // To give much memory back takes long, and is not done under the lock.
        let (cancelling, kept) = {
            let inbound = &mut *lock(&link.inbound);
            link.note_cancel();
            (link.served.cancel(slot), inbound.kept.remove(&slot))
        };
        link.note_loss();
        drop(kept);
        if cancelling == Cancelling::Acknowledge {
            self.acknowledge(link, slot);
        }
    }

    pub(super) fn decline(&self, port: u32, from: Target, grant: u32, wakes: &mut Wakes) {
        let service = self.peers.read().services.get(ServiceId::Port(port)).cloned();
        if let Some(service) = service {
            self.follow_promoted(&service, service.decline(from, grant), wakes);
        }
    }
}

/// The replies before the next request.
fn slots_in_batch(imms: &mut Peekable<impl Iterator<Item = Imm>>) -> impl Iterator<Item = SlotId> {
    from_fn(|| match imms.next_if(|imm| matches!(imm, Imm::Reply(_)))? {
        Imm::Reply(slot) => Some(slot),
        _ => unreachable!("just looked at"),
    })
}

/// The requests before the next reply, by where they are in their ring.
fn offsets_in_batch(imms: &mut Peekable<impl Iterator<Item = Imm>>) -> impl Iterator<Item = u64> {
    from_fn(|| match imms.next_if(|imm| matches!(imm, Imm::Request { .. }))? {
        Imm::Request { offset } => Some(offset),
        _ => unreachable!("just looked at"),
    })
}

/// Reads a request out of its ring, whose bytes the peer may still change: first copied, then understood.
fn read_request(link: &Arc<Link>, inbound: &mut Inbound, offset: u64) -> Result<DecodedRequest, Violation> {
    let (reader, ring) = inbound.ring.as_mut().ok_or(Violation("a request after the end"))?;
    let bytes_max = reader.arrive(offset)?;
    let mut look = [0; FIRST_LOOK_BYTES];
    let look = &mut look[..FIRST_LOOK_BYTES.min(bytes_max as usize)];
    ring.window().read(offset, look).expect("the reader keeps inside the ring");
    let header = RequestHeader::parse(look).map_err(|_| Violation("not a request"))?;
    let len = header.request_bytes();
    if len > bytes_max {
        return Err(Violation("a request longer than its place"));
    }
    let (name_at, name_bytes) = (header.len_bytes(), usize::from(header.name_bytes));
    let input_at = name_at + name_bytes;
    let mut long_name = Vec::new();
    let is_here = header.input == Input::InRing;
    let input_bytes = if is_here { header.input_bytes as usize } else { 0 };
    let name = match look.get(name_at..input_at) {
        Some(name) => name,
        None => {
            long_name.resize(name_bytes, 0);
            ring.window().read(offset + name_at as u64, &mut long_name).expect("the request is in the ring");
            &long_name
        }
    };
    let input = match look.get(input_at..input_at + input_bytes) {
        Some(bytes) => Bytes::from(bytes),
        None => {
            let mut bytes = Bytes::zeroed(input_bytes);
            let from = offset + input_at as u64;
            ring.window().read(from, bytes.as_mut_slice()).expect("the request is in the ring");
            bytes
        }
    };
    reader.advance(len);
    let caller = inbound.caller(link, name)?;
    link.reader.hear();
    if let Some(principal) = header.principal {
        inbound.introduce(principal, &caller)?;
    }
    let id = link.served.open(header.slot)?;
    let theirs = inbound.theirs.ok_or(Violation("a request before the handshake"))?;
    let (at, room) = header.reply_at.map_or_else(|| theirs.slot(header.slot), Ok)?;
    let bytes_max = header.reply_bytes_max;
    let to = ReplyTo { caller, cancels: link.cancels(), id, at, room, bytes_max, by_line: false };
    let input = match header.input {
        Input::InRing => Payload::Here(input),
        Input::At(address) => Payload::There { address, len: header.input_bytes },
    };
    Ok(DecodedRequest { kind: header.kind, number: header.number, incoming: Incoming::new(to, input) })
}
