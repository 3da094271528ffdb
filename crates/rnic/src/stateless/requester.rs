//! The requester of a stateless pair: keeps the state of both ends.

mod received;

use core::ops::Range;
use std::collections::VecDeque;

use received::{OrderEnd, ReceivedOrder, ReceivedOrders};

use super::clock::ServerClock;
use super::orders::{Order, OrderKind};
use super::responder::add_tag;
use super::tag::{self, Grant};
use super::window::Window;
use super::wire::{
    ACK_BYTES, Ack, CALL_BYTES_MAX, CALL_NUMBER_BYTES, Kind, PAYLOAD_AT, PAYLOAD_BYTES_FIRST,
    PAYLOAD_BYTES_MAX, Packet, Status,
};
use super::work::{Done, Outcome, POSTED_MAX, PostError, Work};
use crate::memory::Memory;

/// Maximum number of the responder's orders in progress at this requester.
const ORDERS_MAX: usize = 64;
/// Number of the packet that requests the responder's clock before this requester accepts orders.
const CLOCK_REQUEST: u64 = u64::MAX;
/// Time in ns for which a packet is repeated without an answer, unless [`Requester::set_patience`] sets another one.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Interval in ns at which the requester repeats a call in progress, whose answer may be lost.
const REMINDER_NS: u64 = 50_000_000;

/// One requester of a stateless pair; see [`super`].
///
/// The calling process passes packets, the time, the [`ServerClock`] that all of its requesters share, and the memory
/// that orders of the responder may access.
#[derive(Debug)]
pub struct Requester {
    grant: Grant,
    next_number: u64,
    /// Maximum payload of a packet in bytes.
    payload_bytes: usize,
    /// Time in ns for which a packet is repeated. `None` stands for [`PATIENCE_NS`], or T if the responder has no room for the
    /// packet.
    patience_ns: Option<u64>,
    /// Packets sent, and how many of these were retransmissions.
    sent: (u64, u64),
    posted: VecDeque<Posted>,
    /// The requests in progress, oldest first.
    running: VecDeque<Running>,
    /// Time in ns before which no packet is repeated.
    next_due_ns: u64,
    window: Window,
    done: VecDeque<Done>,
    clock_questions: u64,
    orders: ReceivedOrders,
}

/// A request that has not begun.
#[derive(Debug)]
struct Posted {
    origin: Origin,
    rkey: u32,
    work: Work,
    /// True if the request may begin before the one posted before it has ended.
    overlaps: bool,
}

/// The origin of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// The calling process, with the id that it chose.
    Process(u64),
    /// An order of the responder.
    Order { id: u64, order: Order },
}

/// A request in progress.
#[derive(Debug)]
struct Running {
    origin: Origin,
    rkey: u32,
    work: Work,
    /// The number of the call whose answer the request, a read, fetches; `None` for other requests.
    answer_of: Option<u64>,
    /// Bytes of the answers; 0 where they have not arrived yet.
    bytes: Vec<u8>,
    /// Packets of the request.
    pieces: Vec<Piece>,
    /// All packets before this one are answered.
    first_open: usize,
    /// Number of packets sent so far: the first ones of `pieces`.
    sent: usize,
    answered: usize,
    /// Sum of the weights of the packets in flight.
    in_flight: usize,
    /// The outcome once a packet has failed. The requester then sends no further packet of this request and of later ones,
    /// and the request ends when no packet in flight can have an effect any more.
    failed: Option<Outcome>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    offset: usize,
    len: usize,
    number: u64,
    /// Stamp of the first transmission; `None` before it.
    stamp_ns: Option<u64>,
    /// Time of the first transmission with this number.
    first_sent_ns: u64,
    /// Time of the first transmission with any number.
    began_ns: Option<u64>,
    /// Time of the next transmission.
    due_ns: u64,
    attempts: u32,
    /// True once the responder has answered that it has no room or that the call is in progress. Later answers do not
    /// measure the round trip.
    is_known: bool,
    /// True once the responder had no room for the packet.
    is_busy: bool,
    is_answered: bool,
}

impl Requester {
    /// Creates a requester. Its packets are numbered from `first_number` on. That number must be higher than all
    /// numbers that an earlier requester with the same address and queue pair used within T; for example, use a clock
    /// in ns.
    pub fn new(grant: Grant, first_number: u64) -> Requester {
        Requester {
            grant,
            next_number: first_number,
            payload_bytes: PAYLOAD_BYTES_FIRST,
            patience_ns: None,
            sent: (0, 0),
            posted: VecDeque::new(),
            running: VecDeque::new(),
            next_due_ns: 0,
            window: Window::default(),
            done: VecDeque::new(),
            clock_questions: 0,
            orders: ReceivedOrders::default(),
        }
    }

    /// Sets the time in ns for which a packet is repeated if the responder does not answer, or has no room for it.
    pub fn set_patience(&mut self, patience_ns: u64) {
        self.patience_ns = Some(patience_ns);
    }

    /// Sets the maximum payload in bytes of the packets of later requests, which is [`PAYLOAD_BYTES_FIRST`] at first. The
    /// path must carry packets of this length in both directions.
    ///
    /// # Panics
    /// Panics if `bytes` is less than [`PAYLOAD_BYTES_FIRST`], or more than [`PAYLOAD_BYTES_MAX`].
    pub fn set_payload_max(&mut self, bytes: usize) {
        assert!((PAYLOAD_BYTES_FIRST..=PAYLOAD_BYTES_MAX).contains(&bytes), "{bytes} bytes of payload");
        self.payload_bytes = bytes;
    }

    /// Returns the maximum payload of a packet in bytes.
    pub(super) fn payload_max(&self) -> usize {
        self.payload_bytes
    }

    /// Returns the current maximum number of packets in flight. A packet with more than 1 KiB of payload counts once per
    /// KiB, rounded up.
    pub fn window_packets(&self) -> usize {
        self.window.packets
    }

    /// Returns the number of packets sent for requests, and the number of these that were retransmissions.
    pub fn packets_sent(&self) -> (u64, u64) {
        self.sent
    }

    /// Returns the number of requests that have not ended.
    pub fn outstanding(&self) -> usize {
        self.posted.len() + self.running.len()
    }

    /// Returns the time in ns for which the estimate of the responder's clock is valid after an answer. After this time, the
    /// requester asks for the clock before it sends a request with an effect.
    fn clock_life_ns(&self) -> u64 {
        self.grant.effect_life_ns / 2
    }

    /// Returns the number of times that the requester has asked for the responder's clock.
    pub fn clock_questions(&self) -> u64 {
        self.clock_questions
    }

    /// Replaces the grant, after the responder has changed its secret
    /// ([`Responder::raise_epoch`](super::Responder::raise_epoch)). Forgets all orders under the old grant.
    pub fn regrant(&mut self, grant: Grant) {
        self.grant = grant;
        self.orders = ReceivedOrders::default();
        self.posted.retain(|posted| matches!(posted.origin, Origin::Process(_)));
        self.running.retain(|running| matches!(running.origin, Origin::Process(_)));
    }

    /// Posts a request; `id` identifies it in [`Done`]. Requests are executed in the order in which they were posted.
    /// Fails if the request is too long, or too many requests are outstanding.
    pub fn post(&mut self, id: u64, work: Work) -> Result<(), PostError> {
        self.post_to(id, self.grant.rkey, work, false)
    }

    /// Posts a request to the memory of key `rkey`, as [`Requester::post`] does. The responder refuses the request
    /// unless the grant is one of this key, or of all keys. If `overlaps` is true, the responder may execute the request
    /// at the same time as the one posted before it.
    pub fn post_to(&mut self, id: u64, rkey: u32, work: Work, overlaps: bool) -> Result<(), PostError> {
        if work.is_too_long() {
            return Err(PostError::MessageTooLong);
        }
        if u32::try_from(work.len()).is_err() {
            return Err(PostError::TooLong);
        }
        if self.outstanding() >= POSTED_MAX {
            return Err(PostError::Full);
        }
        self.posted.push_back(Posted { origin: Origin::Process(id), rkey, work, overlaps });
        Ok(())
    }

    /// Removes and returns the next completion; `None` if no request has ended.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// Returns the time in ns at which [`Requester::poll_transmit`] may have a packet: 0 for a new packet, or the time
    /// of the next retransmission. `None` if nothing is outstanding.
    pub fn poll_timeout(&self) -> Option<u64> {
        let requests = self.requests_timeout();
        let ends = self.orders.ends.iter().map(|end| end.due_ns);
        let answers = (!self.orders.answers.is_empty()).then_some(0);
        let asks = (!self.orders.undated.is_empty())
            .then(|| self.orders.asked_ns.map_or(0, |asked_ns| asked_ns + self.clock_life_ns()));
        ends.chain(requests).chain(answers).chain(asks).min()
    }

    fn requests_timeout(&self) -> Option<u64> {
        if self.next_to_send().is_some() {
            return Some(0);
        }
        let open = self.running.iter().flat_map(Running::open);
        open.filter(|(_, piece)| !piece.is_answered).map(|(_, piece)| piece.due_ns).min()
    }

    /// Returns true if a packet that was sent before is due again.
    pub(super) fn has_due_repeat(&self, now_ns: u64) -> bool {
        let is_due = |piece: &Piece| !piece.is_answered && piece.attempts > 0 && piece.due_ns <= now_ns;
        let mut open = self.running.iter().flat_map(Running::open);
        now_ns >= self.next_due_ns && open.any(|(_, piece)| is_due(piece))
    }

    /// Returns the number of packets in flight, as [`Requester::window_packets`] counts them.
    fn in_flight(&self) -> usize {
        self.running.iter().map(|running| running.in_flight).sum()
    }

    /// Returns the index in `running` of the request whose next packet may be sent for the first time. The index is the
    /// length of `running` if the next posted request may begin.
    fn next_to_send(&self) -> Option<usize> {
        if self.in_flight() >= self.window.packets {
            return None;
        }
        for (index, running) in self.running.iter().enumerate() {
            if running.failed.is_some() {
                return None;
            }
            if running.sent < running.pieces.len() {
                return running.may_send().then_some(index);
            }
        }
        let begins = |posted: &Posted| posted.overlaps || self.running.is_empty();
        self.posted.front().filter(|posted| begins(posted)).map(|_| self.running.len())
    }

    /// Returns the packet to send now, as the indices of its request and of the packet.
    fn next_piece(&mut self, now_ns: u64) -> Option<(usize, usize)> {
        if now_ns >= self.next_due_ns {
            let mut next_due_ns = u64::MAX;
            for (index, running) in self.running.iter().enumerate() {
                for (piece_index, piece) in running.open().filter(|(_, piece)| !piece.is_answered) {
                    if piece.due_ns <= now_ns {
                        return Some((index, piece_index));
                    }
                    next_due_ns = next_due_ns.min(piece.due_ns);
                }
            }
            self.next_due_ns = next_due_ns;
        }
        let index = self.next_to_send()?;
        if index == self.running.len() {
            let posted = self.posted.pop_front()?;
            self.running.push_back(Running::new(posted, &mut self.next_number, self.payload_bytes));
        }
        let running = &mut self.running[index];
        running.in_flight += running.pieces[running.sent].weight();
        running.sent += 1;
        Some((index, running.sent - 1))
    }

    /// Writes the next packet to `buffer`, and returns its length in bytes, which includes the ICRC that the caller
    /// adds; `None` if no packet is due.
    ///
    /// # Panics
    /// Panics if `buffer` is shorter than [`super::OVERHEAD_BYTES`] plus [`super::PAYLOAD_BYTES_MAX`].
    pub fn poll_transmit(&mut self, now_ns: u64, clock: &ServerClock, buffer: &mut [u8]) -> Option<usize> {
        self.poll_transmit_with(now_ns, clock, &mut None, buffer)
    }

    /// Writes the next packet, as [`Requester::poll_transmit`] does. If the packet has room for `ack`, moves it into the
    /// packet.
    // [ROCE-STATELESS-5]
    pub(super) fn poll_transmit_with(
        &mut self,
        now_ns: u64,
        clock: &ServerClock,
        ack: &mut Option<Ack>,
        buffer: &mut [u8],
    ) -> Option<usize> {
        if let Some(len) = self.transmit_for_orders(now_ns, clock, buffer) {
            return Some(len);
        }
        let (clock_life_ns, patience_ns) = (self.clock_life_ns(), self.patience_ns.unwrap_or(PATIENCE_NS));
        let (index, piece) = self.next_piece(now_ns)?;
        let kept_until_ns = self.orders.kept_until_ns(self.running[index].origin);
        let current = &mut self.running[index];
        if current.pieces[piece].has_expired(now_ns, patience_ns) {
            self.fail(now_ns, index, piece, Outcome::MaybeDone);
            return None;
        }
        let Piece { offset, len, number, stamp_ns, attempts, is_known, is_busy, .. } = current.pieces[piece];
        let is_reminder = is_known && !is_busy;
        if attempts == 1 && !is_reminder {
            self.window.on_timeout(now_ns, current.pieces[piece].first_sent_ns);
        }
        let server_ns = clock.now_ns(now_ns, clock_life_ns).filter(|ns| *ns <= kept_until_ns);
        let sent = &mut current.pieces[piece];
        if attempts == 0 {
            sent.first_sent_ns = now_ns;
        }
        self.sent.0 += 1;
        self.sent.1 += u64::from(sent.began_ns.is_some() && attempts > 0);
        sent.began_ns.get_or_insert(now_ns);
        sent.due_ns = now_ns + clock.timeout_ns(attempts);
        self.next_due_ns = self.next_due_ns.min(sent.due_ns);
        sent.attempts += 1;
        let (stamp_ns, asks_clock) = match (stamp_ns, server_ns) {
            (Some(stamp_ns), _) => (stamp_ns, false),
            (None, Some(server_ns)) => (server_ns, false),
            (None, None) => (0, current.work.has_effect()),
        };
        let (kind, address, len, carried) = match asks_clock {
            // A read of no bytes has no effect; its answer contains the clock.
            true => (Kind::Gd, 0, 0, 0),
            false if let Some(call) = current.answer_of => {
                buffer[PAYLOAD_AT..][..CALL_NUMBER_BYTES].copy_from_slice(&call.to_be_bytes());
                (Kind::Gdc, offset as u64, len, CALL_NUMBER_BYTES)
            }
            false => {
                let (address, header_len) = current.work.header_fields(offset, len);
                let carried = current.work.write_payload(offset..offset + len, &mut buffer[PAYLOAD_AT..]);
                let kind = current.kind_of(piece);
                let address = if kind == Kind::Rdc { current.pieces[0].number } else { address };
                (kind, address, header_len, carried)
            }
        };
        let has_room = carried + ACK_BYTES <= self.payload_bytes;
        if asks_clock {
            self.clock_questions += 1;
        } else {
            current.pieces[piece].stamp_ns = Some(stamp_ns);
        }
        let packet = Packet {
            address,
            rkey: current.rkey,
            len: len as u32,
            // The responder must not start a call again after it has forgotten it.
            status: if is_reminder { Status::InProgress } else { Status::Done },
            ack: if has_room { ack.take() } else { None },
            ..Packet::new(kind, &self.grant, number, stamp_ns)
        };
        Some(add_tag(packet.emit_around(carried, buffer), &self.grant.key, buffer))
    }

    /// Handles a packet without its ICRC: an answer, or an order, which accesses `memory`. Ignores all other packets.
    /// Returns true if the responder has sent the packet to this requester.
    pub fn handle_packet(
        &mut self,
        now_ns: u64,
        clock: &mut ServerClock,
        body: &[u8],
        memory: &impl Memory,
    ) -> bool {
        let Some((packet, covered, tag)) = Packet::parse(body) else { return false };
        let is_ours = packet.epoch == self.grant.epoch && packet.kind.answer().is_none();
        if !is_ours || !tag::is_equal(&tag::tag(&self.grant.key, covered), tag) {
            return false;
        }
        match packet.kind {
            Kind::Wqep => {
                let Some((order, bytes)) = Order::parse(packet.address, packet.payload) else { return false };
                let Packet { number: id, stamp_ns, .. } = packet;
                self.orders.undated.push(ReceivedOrder { id, stamp_ns, order, bytes: bytes.to_vec() });
            }
            Kind::Ea => {
                clock.learn(now_ns, packet.stamp_ns);
                let is_acknowledged = |end: &OrderEnd| end.id == packet.number;
                let end = self.orders.ends.iter().find(|end| is_acknowledged(end));
                if let Some(end) = end.filter(|end| end.attempts > 0) {
                    clock.add_round_trip(now_ns, end.began_ns, end.attempts);
                }
                self.orders.forget_ends(now_ns, self.grant.effect_life_ns, is_acknowledged);
            }
            Kind::Gda if packet.number == CLOCK_REQUEST => {
                clock.learn(now_ns, packet.stamp_ns);
                self.orders.asked_ns = None;
            }
            _ => self.handle_answer(now_ns, clock, &packet, memory),
        }
        self.process_orders(now_ns, clock, memory);
        true
    }

    /// Handles an answer that a request of the peer has carried.
    pub(super) fn handle_ack(
        &mut self,
        now_ns: u64,
        clock: &mut ServerClock,
        ack: Ack,
        memory: &impl Memory,
    ) {
        let Some((index, piece_index)) = self.find_sent(ack.number) else { return };
        let kind = self.running[index].kind_of(piece_index).answer();
        let Some(kind) = kind.filter(|kind| matches!(kind, Kind::Rda | Kind::Senda)) else { return };
        let packet = Packet::new(kind, &self.grant, ack.number, ack.stamp_ns);
        self.handle_answer(now_ns, clock, &packet, memory);
    }

    fn handle_answer(
        &mut self,
        now_ns: u64,
        clock: &mut ServerClock,
        packet: &Packet<'_>,
        memory: &impl Memory,
    ) {
        let Some((index, piece_index)) = self.find_sent(packet.number) else { return };
        let kept_until_ns = self.orders.kept_until_ns(self.running[index].origin);
        let current = &mut self.running[index];
        let kind = current.kind_of(piece_index);
        let piece = &mut current.pieces[piece_index];
        clock.learn(now_ns, packet.stamp_ns);
        if piece.is_answered {
            return;
        }
        let answers_clock = packet.kind == Kind::Gda && current.work.has_effect();
        let is_late = piece.is_known || answers_clock && piece.stamp_ns.is_some();
        // The answer to a call takes as long as the responder's process: it is no sample, but an upper bound.
        if piece.attempts > u32::from(packet.kind == Kind::Calla) && !is_late {
            clock.add_round_trip(now_ns, piece.first_sent_ns, piece.attempts);
        }
        if answers_clock || packet.status != Status::Done {
            // The packet may become due below.
            self.next_due_ns = 0;
        }
        if answers_clock {
            // This answers a request for the clock; the packet itself has not been sent yet.
            if piece.stamp_ns.is_none() {
                // The responder may have given up the order; only another WQEP shows that it has not.
                let wait_ns = if packet.stamp_ns > kept_until_ns { REMINDER_NS } else { 0 };
                (piece.due_ns, piece.attempts) = (now_ns + wait_ns, 0);
            }
            return;
        }
        if Some(packet.kind) != kind.answer() {
            return;
        }
        match packet.status {
            Status::Done if packet.kind == Kind::Calla => {
                let len = usize::try_from(packet.address).unwrap_or(usize::MAX);
                if !(packet.payload.len()..=CALL_BYTES_MAX).contains(&len) {
                    return;
                }
                current.bytes = packet.payload.to_vec();
                // All parts of the input have arrived, even if this end has given one up.
                current.failed = None;
                current.keep_first_piece();
                if len == packet.payload.len() {
                    self.mark_answered(now_ns, packet.stamp_ns, (index, piece_index), memory);
                } else {
                    self.fetch_answer(index, len);
                }
            }
            Status::Done => {
                let (offset, len) = current.work.answer_range(piece.offset, piece.len);
                if packet.payload.len() == len {
                    current.bytes[offset..offset + len].copy_from_slice(packet.payload);
                    self.mark_answered(now_ns, packet.stamp_ns, (index, piece_index), memory);
                }
            }
            Status::Busy => {
                (piece.is_busy, piece.is_known) = (true, true);
                piece.due_ns = now_ns + clock.timeout_ns(piece.attempts);
            }
            Status::Expired => self.handle_expired(now_ns, packet.stamp_ns, (index, piece_index)),
            // The responder has forgotten the call, which it may have executed before.
            Status::Refused if kind == Kind::Rdc => self.fail(now_ns, index, piece_index, Outcome::MaybeDone),
            Status::Refused => self.fail(now_ns, index, piece_index, Outcome::Refused),
            Status::InProgress if current.failed.is_some() => {
                current.mark_answered(piece_index);
                self.end_first(now_ns);
            }
            // There is no limit for the time that the responder's process takes.
            Status::InProgress => {
                (piece.due_ns, piece.attempts, piece.began_ns) = (now_ns + REMINDER_NS, 1, Some(now_ns));
                (piece.is_known, piece.is_busy) = (true, false);
            }
        }
    }

    /// Handles the answer, sent at `server_ns` of the responder's clock, that a packet had an invalid stamp and no effect.
    fn handle_expired(&mut self, now_ns: u64, server_ns: u64, (index, piece_index): (usize, usize)) {
        let current = &mut self.running[index];
        let piece = &mut current.pieces[piece_index];
        if piece.stamp_ns.is_some_and(|stamp_ns| stamp_ns > server_ns) {
            // The stamp is ahead of the responder's clock: a later copy will be valid.
            return;
        }
        // The responder had the call or its answer, and has forgotten it.
        let was_forgotten = current.answer_of.is_some() || piece.is_known && !piece.is_busy;
        // If a copy had been executed, the record would still have it.
        let is_recorded = now_ns.saturating_sub(piece.first_sent_ns) < 2 * self.grant.effect_life_ns;
        if current.answer_of.is_none() && current.failed.is_some() {
            current.mark_answered(piece_index);
            return self.end_first(now_ns);
        }
        if was_forgotten || !is_recorded {
            return self.fail(now_ns, index, piece_index, Outcome::MaybeDone);
        }
        let patience_ns = self.patience_ns.unwrap_or(0);
        let is_patient = piece.began_ns.is_some_and(|began_ns| now_ns < began_ns + patience_ns);
        if piece.is_busy && !is_patient {
            return self.fail(now_ns, index, piece_index, Outcome::Busy);
        }
        piece.number = self.next_number;
        (piece.stamp_ns, piece.attempts, piece.due_ns) = (None, 0, now_ns);
        piece.is_known = false;
        self.next_number += 1;
    }

    /// Replaces a call by the read of its answer, of which the first bytes have arrived.
    // [ROCE-STATELESS-15]
    fn fetch_answer(&mut self, index: usize, len: usize) {
        let running = &mut self.running[index];
        let Piece { number, first_sent_ns, attempts, .. } = running.pieces[0];
        self.window.on_answer(first_sent_ns, attempts, running.pieces[0].weight());
        let arrived = running.bytes.len();
        running.answer_of = Some(number);
        running.work = Work::Read { address: 0, len };
        running.bytes.resize(len, 0);
        running.pieces = pieces(arrived..len, self.payload_bytes, &mut self.next_number);
        (running.first_open, running.sent, running.answered, running.in_flight) = (0, 0, 0, 0);
    }

    /// Returns the sent packet with this number, as the indices of its request and of the packet.
    fn find_sent(&self, number: u64) -> Option<(usize, usize)> {
        self.running.iter().enumerate().find_map(|(index, running)| {
            let mut open = running.open();
            open.find(|(_, piece)| piece.number == number).map(|(piece_index, _)| (index, piece_index))
        })
    }

    /// Handles the answer to a packet, which the responder has sent at `server_ns` of its clock.
    fn mark_answered(
        &mut self,
        now_ns: u64,
        server_ns: u64,
        (index, piece_index): (usize, usize),
        memory: &impl Memory,
    ) {
        let running = &mut self.running[index];
        let Piece { first_sent_ns, attempts, .. } = running.pieces[piece_index];
        self.window.on_answer(first_sent_ns, attempts, running.pieces[piece_index].weight());
        running.mark_answered(piece_index);
        if running.answered == running.pieces.len()
            && running.failed.is_none()
            && let Origin::Order { order, .. } = running.origin
            && order.kind == OrderKind::Write
        {
            // The write takes effect here, so it must not be late here.
            if server_ns > self.orders.kept_until_ns(running.origin) {
                running.failed = Some(Outcome::MaybeDone);
            } else if memory.write(order.remote_key, order.remote, &running.bytes).is_err() {
                running.failed = Some(Outcome::Refused);
            }
        }
        self.end_first(now_ns);
    }

    /// Records that a packet has failed.
    fn fail(&mut self, now_ns: u64, index: usize, piece_index: usize, outcome: Outcome) {
        let running = &mut self.running[index];
        if running.failed.is_none() || outcome == Outcome::MaybeDone {
            running.failed = Some(outcome);
        }
        running.mark_answered(piece_index);
        self.end_first(now_ns);
    }

    /// Ends requests in their order: each that is complete, or has failed and has nothing in flight.
    fn end_first(&mut self, now_ns: u64) {
        while let Some(first) = self.running.front() {
            let is_complete = first.failed.is_none() && first.answered == first.pieces.len();
            let has_failed = first.failed.is_some() && self.in_flight() == 0;
            if !is_complete && !has_failed {
                return;
            }
            let Some(Running { origin, bytes, failed, .. }) = self.running.pop_front() else { return };
            self.end(now_ns, origin, failed.unwrap_or(Outcome::Success(bytes)));
        }
    }

    fn end(&mut self, now_ns: u64, origin: Origin, outcome: Outcome) {
        match origin {
            Origin::Process(id) => self.done.push_back(Done { id, outcome }),
            Origin::Order { id, .. } => {
                let status = match outcome {
                    Outcome::Success(_) => Status::Done,
                    Outcome::Refused => Status::Refused,
                    Outcome::Busy | Outcome::MaybeDone => Status::Expired,
                };
                self.orders.running.retain(|(running, _)| *running != id);
                self.orders.ended.insert(now_ns, self.grant.effect_life_ns, id, status);
                self.orders.ends.push(OrderEnd::new(now_ns, id, status, Vec::new()));
            }
        }
    }
}

impl Piece {
    /// Returns the number of packets for which this one counts in the window.
    fn weight(&self) -> usize {
        self.len.div_ceil(PAYLOAD_BYTES_FIRST).max(1)
    }

    /// Returns true if the requester gives up the packet.
    fn has_expired(&self, now_ns: u64, patience_ns: u64) -> bool {
        self.began_ns.is_some_and(|began_ns| now_ns >= began_ns + patience_ns)
    }
}

/// Divides the bytes of a request among packets with up to `packet_bytes` each, but at least one packet.
fn pieces(bytes: Range<usize>, packet_bytes: usize, next_number: &mut u64) -> Vec<Piece> {
    let piece = |index: usize| {
        let offset = bytes.start + index * packet_bytes;
        Piece {
            offset,
            len: (bytes.end - offset).min(packet_bytes),
            number: *next_number + index as u64,
            stamp_ns: None,
            first_sent_ns: 0,
            began_ns: None,
            due_ns: 0,
            attempts: 0,
            is_known: false,
            is_busy: false,
            is_answered: false,
        }
    };
    let pieces: Vec<Piece> = (0..bytes.len().div_ceil(packet_bytes).max(1)).map(piece).collect();
    *next_number += pieces.len() as u64;
    pieces
}

impl Running {
    fn new(
        Posted { origin, rkey, work, .. }: Posted,
        next_number: &mut u64,
        payload_bytes: usize,
    ) -> Running {
        let pieces = pieces(0..work.len(), work.packet_bytes(payload_bytes), next_number);
        let bytes = vec![0; work.answer_len()];
        let (first_open, sent, answered, in_flight) = (0, 0, 0, 0);
        Running {
            origin,
            rkey,
            work,
            answer_of: None,
            bytes,
            pieces,
            first_open,
            sent,
            answered,
            in_flight,
            failed: None,
        }
    }

    /// Returns the kind of a packet.
    fn kind_of(&self, piece_index: usize) -> Kind {
        if self.is_part(piece_index) { Kind::Rdc } else { self.work.kind() }
    }

    /// Returns true if the packet is a part of the input of a call, which follows the call itself.
    fn is_part(&self, piece_index: usize) -> bool {
        piece_index > 0 && matches!(self.work, Work::Call { .. })
    }

    /// Returns true if the next packet may be sent: the responder must know a call before the parts of its input.
    fn may_send(&self) -> bool {
        !self.is_part(self.sent) || self.pieces[0].is_known && !self.pieces[0].is_busy
    }

    /// Removes all packets except the first, which is not answered yet.
    fn keep_first_piece(&mut self) {
        self.pieces.truncate(1);
        (self.first_open, self.sent, self.answered) = (0, 1, 0);
        self.in_flight = self.pieces[0].weight();
    }

    /// Returns the sent packets from the first unanswered one on, with their indices.
    fn open(&self) -> impl Iterator<Item = (usize, &Piece)> {
        self.pieces[..self.sent].iter().enumerate().skip(self.first_open)
    }

    fn mark_answered(&mut self, piece_index: usize) {
        self.pieces[piece_index].is_answered = true;
        self.answered += 1;
        self.in_flight -= self.pieces[piece_index].weight();
        while self.pieces[..self.sent].get(self.first_open).is_some_and(|piece| piece.is_answered) {
            self.first_open += 1;
        }
    }
}
