//! The responder of a stateless pair: answers packets, and records effects for a limited time.

use std::net::SocketAddr;

use super::cut_off::{CutOff, CutOffFull};
use super::inbox::{AnswerError, Caller, Inbox, Message};
use super::orders::{Order, OrderDone, Orders, OrdersFull, Target};
use super::record::{AHEAD_NS_MAX, Effect, Record, request_id};
use super::tag::{self, Grant, Rights, TAG_BYTES};
use super::wire::{
    Ack, CALL_BYTES_MAX, Kind, NOTE_BYTES, PAYLOAD_AT, PAYLOAD_BYTES_FIRST, PAYLOAD_BYTES_MAX, Packet, Status,
};
use crate::memory::{Access, Memory, Refused};
use crate::wire::{ICRC_BYTES, Qpn};

/// The default of the time T, in ns: the maximum age, by the responder's clock, at which a write, an atomic or a message
/// can still take effect. The age counts from the first transmission.
pub const EFFECT_LIFE_NS: u64 = 50_000_000;

/// A responder that keeps no state per requester; see [`super`].
#[derive(Debug)]
pub struct Responder {
    epoch: u32,
    secret: [u8; 32],
    /// The latest time of a packet: the responder's clock.
    now_ns: u64,
    /// T, in ns.
    effect_life_ns: u64,
    record: Record,
    inbox: Inbox,
    orders: Orders,
    cut_off: CutOff,
    counters: Counters,
}

/// Counts of packets that a responder has received, by outcome, and of packets that it has sent for orders.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Requests that the responder executed.
    pub done: u64,
    /// Repeated requests that the responder answered from the record, without a second effect.
    pub repeated: u64,
    /// Packets without an answer: malformed, of an earlier epoch, or with a wrong tag.
    pub forged: u64,
    /// Requests refused because their stamp was too old, or too far ahead of the responder's clock.
    pub expired: u64,
    /// Requests refused because the record of effects or the pool of messages was full.
    pub busy: u64,
    /// Requests refused because the grant does not permit them, or the memory does not exist.
    pub refused: u64,
    /// Packets of requesters that are cut off ([`Responder::cut_off`]). They have no answer.
    pub cut_off: u64,
    /// Packets sent that announce an order (WQEPs), including repeated ones.
    pub orders_sent: u64,
}

impl Responder {
    /// Creates a responder whose T is [`EFFECT_LIFE_NS`]. Its keys are derived from `secret`, which must be random and
    /// secret. `epoch` is the number of this secret.
    pub fn new(epoch: u32, secret: [u8; 32]) -> Responder {
        Responder::with_effect_life(epoch, secret, EFFECT_LIFE_NS)
    }

    /// Creates a responder whose T is `effect_life_ns`, as [`Responder::new`] does. With a longer T, requesters bear a
    /// longer interruption of the network, and the record has more effects.
    pub fn with_effect_life(epoch: u32, secret: [u8; 32], effect_life_ns: u64) -> Responder {
        Responder {
            epoch,
            secret,
            now_ns: 0,
            effect_life_ns,
            record: Record::new(effect_life_ns),
            inbox: Inbox::default(),
            orders: Orders::default(),
            cut_off: CutOff::default(),
            counters: Counters::default(),
        }
    }

    /// Replaces the secret and increments the epoch. All grants end at once, so requesters need new ones. All orders
    /// end with [`OrderOutcome::MaybeDone`](super::OrderOutcome::MaybeDone).
    pub fn raise_epoch(&mut self, secret: [u8; 32]) {
        (self.epoch, self.secret) = (self.epoch.wrapping_add(1), secret);
        // Requesters forget which orders they have executed.
        self.orders.end_of(|_| true);
    }

    /// Ends the access of one requester: from now on, its packets have no effect, also those that are under way, and get
    /// no answer. Its orders end with [`OrderOutcome::MaybeDone`](super::OrderOutcome::MaybeDone), and its calls cannot
    /// be answered any more. Messages that have arrived remain. Fails at the maximum number of such requesters.
    ///
    /// ```
    /// use halite_rnic::stateless::{Responder, Rights};
    /// use halite_rnic::wire::Qpn;
    ///
    /// let mut responder = Responder::new(1, [7; 32]);
    /// let client = ("10.0.0.1:4791".parse().unwrap(), Qpn::new(3));
    /// let grant = responder.grant(client.0, client.1, 7, Rights::Read);
    /// responder.cut_off(client.0, client.1).unwrap();
    /// assert!(responder.readmit(client.0, client.1));
    /// ```
    // [ROCE-STATELESS-14]
    pub fn cut_off(&mut self, from: SocketAddr, qpn: Qpn) -> Result<(), CutOffFull> {
        self.cut_off.insert(from, qpn)?;
        self.orders.end_of(|target| (target.to, target.qpn) == (from, qpn));
        self.inbox.close_of(from, qpn);
        Ok(())
    }

    /// Makes a requester's grants valid again. A copy of a packet that it has sent less than T ago may then take effect.
    /// Returns true if the requester was cut off.
    pub fn readmit(&mut self, from: SocketAddr, qpn: Qpn) -> bool {
        self.cut_off.remove(from, qpn)
    }

    /// Returns a grant of `rights` to the memory of key `rkey`, or of all keys ([`Rights::AnyKey`]), for the requester
    /// with address `from` and queue pair `qpn`. The responder does not store grants.
    pub fn grant(&self, from: SocketAddr, qpn: Qpn, rkey: u32, rights: Rights) -> Grant {
        let key = tag::derive(&self.secret, from, qpn, rkey, rights, self.epoch);
        Grant { qpn, rkey, rights, effect_life_ns: self.effect_life_ns, epoch: self.epoch, key }
    }

    /// Returns the packet counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of effects that are currently recorded.
    pub fn recorded(&self) -> usize {
        self.record.len()
    }

    /// Removes and returns the next message of a requester; `None` if there is none.
    pub fn poll_message(&mut self) -> Option<Message> {
        self.inbox.poll()
    }

    /// Writes the packet with the answer to the call `id` to `buffer`. Returns the packet's destination, and its length
    /// in bytes, which includes the ICRC that the caller adds. If the packet is lost, the requester repeats the call,
    /// and [`Responder::handle_packet`] sends the answer again. Of an answer of more than [`PAYLOAD_BYTES_FIRST`], the
    /// packet has the first bytes; the requester fetches the others from the record. The record keeps an answer for at
    /// least twice T after the last request for it.
    ///
    /// # Panics
    /// Panics if `buffer` is shorter than [`super::OVERHEAD_BYTES`] plus [`super::PAYLOAD_BYTES_MAX`].
    // [ROCE-STATELESS-9]
    pub fn answer(
        &mut self,
        now_ns: u64,
        id: u64,
        bytes: &[u8],
        buffer: &mut [u8],
    ) -> Result<(SocketAddr, usize), AnswerError> {
        if bytes.len() > CALL_BYTES_MAX {
            return Err(AnswerError::TooLong);
        }
        self.sweep(now_ns);
        let first = first_of(bytes);
        if first.len() < bytes.len() && self.inbox.has_call(id) && self.record.is_full() {
            return Err(AnswerError::Busy);
        }
        let Caller { request_id, from: to, qpn, number, rkey, rights, .. } =
            self.inbox.close(id).ok_or(AnswerError::Unknown)?;
        self.record.insert(request_id, Effect { status: Status::Done, answer: bytes.into() });
        let packet = Packet {
            kind: Kind::Calla,
            qpn,
            number,
            stamp_ns: now_ns,
            address: bytes.len() as u64,
            rkey,
            len: first.len() as u32,
            epoch: self.epoch,
            rights,
            status: Status::Done,
            payload: first,
            ack: None,
        };
        let key = tag::derive(&self.secret, to, packet.qpn, rkey, rights, self.epoch);
        Ok((to, seal(&packet, &key, buffer)))
    }

    /// Frees the memory of effects and calls that are too old to be repeated. Each packet does so, too; the caller does it
    /// when no packets arrive.
    pub fn sweep(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.record.sweep(self.now_ns);
        self.inbox.sweep(self.now_ns, 2 * self.effect_life_ns);
    }

    /// Returns the time in ns at which [`Responder::sweep`] frees memory; `None` if there is none to free.
    pub fn sweep_ns(&self) -> Option<u64> {
        self.record.sweep_ns().into_iter().chain(self.inbox.sweep_ns()).min()
    }

    /// Starts an order, which the requester `target` executes, and returns the order's id. Copies the bytes of a write of
    /// at most [`PAYLOAD_BYTES_FIRST`] from `memory`. Fails at the maximum number of orders in progress.
    pub fn order(
        &mut self,
        now_ns: u64,
        target: Target,
        order: Order,
        memory: &impl Memory,
    ) -> Result<u64, OrdersFull> {
        self.orders.add(now_ns, target, order, memory)
    }

    /// Returns the number of orders in progress.
    pub fn orders(&self) -> usize {
        self.orders.len()
    }

    /// Removes and returns the next completion of an order; `None` if no order has ended.
    pub fn poll_order(&mut self) -> Option<OrderDone> {
        self.orders.poll_done()
    }

    /// Returns the time in ns at which [`Responder::poll_transmit`] may have a packet; `None` if no order is in
    /// progress.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.orders.poll_timeout()
    }

    /// Writes the next packet of an order to `buffer`. Returns the packet's destination, and its length in bytes, which
    /// includes the ICRC that the caller adds; `None` if no packet is due.
    ///
    /// # Panics
    /// Panics if `buffer` is shorter than [`super::OVERHEAD_BYTES`] plus [`super::PAYLOAD_BYTES_MAX`].
    pub fn poll_transmit(&mut self, now_ns: u64, buffer: &mut [u8]) -> Option<(SocketAddr, usize)> {
        let (id, Target { to, qpn, rkey, rights }, order, bytes) = self.orders.next_due(now_ns)?;
        self.counters.orders_sent += 1;
        let carried = order.emit(bytes, &mut buffer[PAYLOAD_AT..]);
        let packet = Packet {
            kind: Kind::Wqep,
            qpn,
            number: id,
            stamp_ns: now_ns,
            address: order.local,
            rkey,
            len: carried as u32,
            epoch: self.epoch,
            rights,
            status: Status::Done,
            payload: &[],
            ack: None,
        };
        let key = tag::derive(&self.secret, to, qpn, rkey, rights, self.epoch);
        Some((to, add_tag(packet.emit_around(carried, buffer), &key, buffer)))
    }

    /// Handles a packet from `from`, given without its ICRC, and writes the answer to `answer`. Returns the answer's
    /// length in bytes, which includes the ICRC that the caller adds; `None` if the packet gets no answer. `now_ns`
    /// is the packet's arrival time; the responder's clock is the latest one.
    ///
    /// # Panics
    /// Panics if `answer` is shorter than [`super::OVERHEAD_BYTES`] plus [`super::PAYLOAD_BYTES_MAX`].
    // [ROCE-STATELESS-4]
    pub fn handle_packet(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        body: &[u8],
        memory: &impl Memory,
        answer: &mut [u8],
    ) -> Option<usize> {
        self.execute(now_ns, from, body, memory, answer).map(|executed| executed.seal(answer))
    }

    /// Handles a packet as [`Responder::handle_packet`] does, but writes only the payload of the answer to `buffer`, for
    /// [`Answer::seal`].
    ///
    /// # Panics
    /// Panics if `buffer` is shorter than [`super::OVERHEAD_BYTES`] plus [`super::PAYLOAD_BYTES_MAX`].
    pub fn execute(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        body: &[u8],
        memory: &impl Memory,
        buffer: &mut [u8],
    ) -> Option<Answer> {
        // Packets of one batch may have no arrival time of their own, and the system's clock may be set.
        self.sweep(now_ns);
        let now_ns = self.now_ns;
        let Some((packet, key)) = self.authenticate(from, body) else {
            self.counters.forged += 1;
            return None;
        };
        if self.cut_off.contains(from, packet.qpn) {
            self.counters.cut_off += 1;
            return None;
        }
        let payload = &mut buffer[PAYLOAD_AT..][..PAYLOAD_BYTES_MAX];
        let (status, len) = match packet.kind {
            Kind::Gd => self.read(&packet, memory, payload),
            Kind::Gdc => self.read_answer(from, &packet, payload),
            Kind::Rdc => (self.take_part(now_ns, from, &packet), 0),
            Kind::Ea | Kind::Cqep => {
                self.orders.handle_answer(now_ns, from, &packet, memory);
                (Status::Done, 0)
            }
            _ => self.execute_once(now_ns, from, &packet, memory, payload)?,
        };
        let kind = packet.kind.answer()?;
        let acknowledged = packet.ack.filter(|_| status != Status::Expired);
        let Packet { qpn, number, rkey, epoch, rights, .. } = packet;
        let (stamp_ns, len) = (now_ns, len as u32);
        let address = match kind {
            // The length of the whole answer.
            Kind::Calla => {
                let effect = self.record.find(&request_id(from, &packet), packet.stamp_ns);
                effect.map_or(0, |effect| effect.answer.len() as u64)
            }
            _ => packet.address,
        };
        Some(Answer {
            kind,
            qpn,
            number,
            stamp_ns,
            address,
            rkey,
            len,
            epoch,
            rights,
            status,
            key,
            acknowledged,
        })
    }

    /// Returns a requester's packet, and the key of its tag; `None` if the packet is invalid or its tag is wrong.
    fn authenticate<'a>(&self, from: SocketAddr, body: &'a [u8]) -> Option<(Packet<'a>, [u8; 32])> {
        let (packet, covered, tag) = Packet::parse(body)?;
        let is_for_responder = packet.kind.answer().is_some() || packet.kind == Kind::Ea;
        if packet.epoch != self.epoch || !is_for_responder {
            return None;
        }
        let key = tag::derive(&self.secret, from, packet.qpn, packet.rkey, packet.rights, packet.epoch);
        tag::is_equal(&tag::tag(&key, covered), tag).then_some((packet, key))
    }

    /// Reads memory into `payload`. Returns the status and the number of bytes of the answer.
    fn read(&mut self, packet: &Packet<'_>, memory: &impl Memory, payload: &mut [u8]) -> (Status, usize) {
        let len = packet.len as usize;
        let fits = len <= PAYLOAD_BYTES_MAX && packet.rights.read();
        // A request for no bytes asks for the clock.
        let is_read = len == 0
            || fits
                && memory.check(packet.rkey, Access::Read, packet.address, len as u64).is_ok()
                && memory.read(packet.rkey, packet.address, &mut payload[..len]).is_ok();
        match is_read {
            true => {
                self.counters.done += 1;
                (Status::Done, len)
            }
            false => {
                self.counters.refused += 1;
                (Status::Refused, 0)
            }
        }
    }

    /// Reads a part of the recorded answer to a call into `payload`. Returns the status and the number of bytes.
    // [ROCE-STATELESS-15]
    fn read_answer(&mut self, from: SocketAddr, packet: &Packet<'_>, payload: &mut [u8]) -> (Status, usize) {
        let number = packet.payload.first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
        let Some(effect) = self.record.renew(&request_id(from, &Packet { number, ..*packet })) else {
            self.counters.expired += 1;
            return (Status::Expired, 0);
        };
        let (begin, len) = (packet.address as usize, packet.len as usize);
        let bytes = begin.checked_add(len).and_then(|end| effect.answer.get(begin..end));
        let Some(bytes) = bytes.filter(|_| len <= PAYLOAD_BYTES_MAX) else {
            self.counters.refused += 1;
            return (Status::Refused, 0);
        };
        self.counters.done += 1;
        payload[..len].copy_from_slice(bytes);
        (Status::Done, len)
    }

    /// Takes a part of the input of a call.
    // [ROCE-STATELESS-16]
    fn take_part(&mut self, now_ns: u64, from: SocketAddr, packet: &Packet<'_>) -> Status {
        let call = request_id(from, &Packet { number: packet.address, ..*packet });
        if self.has_expired(now_ns, packet) {
            self.counters.expired += 1;
            return Status::Expired;
        }
        let status = self.inbox.add_part(now_ns, &call, packet.len as usize, packet.payload);
        let is_repeated =
            status.is_none() && (self.inbox.is_open(&call) || self.record.find(&call, 0).is_some());
        match status {
            _ if is_repeated => self.counters.repeated += 1,
            Some(Status::Done) => self.counters.done += 1,
            _ => self.counters.refused += 1,
        }
        status.unwrap_or(if is_repeated { Status::Done } else { Status::Refused })
    }

    /// Returns true if the request's stamp is too old, or too far ahead of the clock.
    fn has_expired(&self, now_ns: u64, packet: &Packet<'_>) -> bool {
        packet.stamp_ns.saturating_add(self.effect_life_ns) < now_ns
            || packet.stamp_ns > now_ns.saturating_add(AHEAD_NS_MAX)
    }

    /// Executes a request, unless it is recorded, in progress or expired, or the record or the pool is full. Copies the
    /// payload of the answer to `payload`, and returns its length; `None` if the responder's process will answer.
    fn execute_once(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        packet: &Packet<'_>,
        memory: &impl Memory,
        payload: &mut [u8],
    ) -> Option<(Status, usize)> {
        let request_id = request_id(from, packet);
        if let Some(Effect { status, answer }) = self.record.find(&request_id, packet.stamp_ns) {
            self.counters.repeated += 1;
            let first = first_of(answer);
            payload[..first.len()].copy_from_slice(first);
            return Some((*status, first.len()));
        }
        let is_message = matches!(packet.kind, Kind::Send | Kind::Call | Kind::Rdm);
        if packet.kind == Kind::Call && (self.inbox.is_open(&request_id) || self.inbox.has_input(&request_id))
        {
            self.counters.repeated += 1;
            return Some((Status::InProgress, 0));
        }
        if self.has_expired(now_ns, packet) || packet.status == Status::InProgress {
            self.counters.expired += 1;
            return Some((Status::Expired, 0));
        }
        if self.record.is_full() || is_message && self.inbox.is_full() {
            self.counters.busy += 1;
            return Some((Status::Busy, 0));
        }
        let executed = match packet.kind {
            Kind::Rd => write(packet, packet.payload, memory).map(|()| 0),
            Kind::Send | Kind::Call | Kind::Rdm => {
                let Packet { kind, qpn, number, rkey, rights, payload, address, len, .. } = *packet;
                let caller = Caller { request_id, from, qpn, number, rkey, rights, began_ns: now_ns };
                if kind == Kind::Call && payload.len() < len as usize {
                    let status = self.inbox.begin_input(now_ns, caller, payload, len as usize);
                    match status {
                        Status::InProgress => self.counters.done += 1,
                        Status::Busy => self.counters.busy += 1,
                        _ => self.counters.expired += 1,
                    }
                    return Some((status, 0));
                }
                let (note, bytes) =
                    payload.split_at(if kind == Kind::Rdm { NOTE_BYTES } else { payload.len() });
                let written = if kind == Kind::Rdm { write(packet, bytes, memory) } else { Ok(()) };
                written.map(|()| {
                    let place = match kind {
                        Kind::Send => (address as u32, (address >> 32) as u32),
                        _ => (0, note.len() as u32),
                    };
                    self.inbox.add(caller, note.to_vec(), place, bytes.len() as u32, kind == Kind::Call);
                    0
                })
            }
            _ => atomic(packet, memory).map(|old| {
                payload[..8].copy_from_slice(&old.to_be_bytes());
                8
            }),
        };
        let (count, status, len) = match executed {
            Ok(len) => (&mut self.counters.done, Status::Done, len),
            Err(Refused) => (&mut self.counters.refused, Status::Refused, 0),
        };
        *count += 1;
        if packet.kind == Kind::Call {
            return None;
        }
        self.record.insert(request_id, Effect { status, answer: payload[..len].into() });
        Some((status, len))
    }
}

/// Returns the bytes of an answer that one packet carries. The responder does not know the requester's path.
fn first_of(answer: &[u8]) -> &[u8] {
    &answer[..answer.len().min(PAYLOAD_BYTES_FIRST)]
}

/// Writes `bytes`, the payload of a packet without its note, if the grant permits the rest of the request. Also a write of
/// no bytes needs memory.
fn write(packet: &Packet<'_>, bytes: &[u8], memory: &impl Memory) -> Result<(), Refused> {
    let Packet { rkey, address, rights, payload, .. } = *packet;
    let len = packet.len - (payload.len() - bytes.len()) as u32;
    if !rights.write() {
        return Err(Refused);
    }
    memory.check(rkey, Access::Write, address, u64::from(len))?;
    memory.write(rkey, address, bytes)
}

/// Executes an atomic, which needs the right to read and to write. Returns the previous value of the word.
fn atomic(packet: &Packet<'_>, memory: &impl Memory) -> Result<u64, Refused> {
    let Packet { rkey, address, payload, rights, .. } = *packet;
    if !rights.read() || !rights.write() || !address.is_multiple_of(8) {
        return Err(Refused);
    }
    memory.check(rkey, Access::Atomic, address, 8)?;
    let (first, second) = payload.split_first_chunk().ok_or(Refused)?;
    let first = u64::from_be_bytes(*first);
    match (packet.kind, second.first_chunk()) {
        (Kind::FetchAdd, _) => memory.fetch_add(rkey, address, first),
        (_, Some(new)) => memory.compare_swap(rkey, address, first, u64::from_be_bytes(*new)),
        (_, None) => Err(Refused),
    }
}

/// The answer to a request, without a tag: the fields of its packet, and the key of the tag.
#[derive(Debug)]
pub struct Answer {
    kind: Kind,
    qpn: Qpn,
    number: u64,
    stamp_ns: u64,
    address: u64,
    rkey: u32,
    len: u32,
    epoch: u32,
    rights: Rights,
    status: Status,
    key: [u8; 32],
    /// The answer that the request carries: to a request of the end that now answers.
    pub acknowledged: Option<Ack>,
}

impl Answer {
    /// Returns true if the answer has a payload.
    pub fn has_payload(&self) -> bool {
        self.len > 0
    }

    /// Returns what a request of this end can carry in place of the answer; `None` if the answer must be a packet.
    pub fn ack(&self) -> Option<Ack> {
        let Answer { kind, number, stamp_ns, status, .. } = *self;
        let is_ack = matches!(kind, Kind::Rda | Kind::Senda) && status == Status::Done;
        is_ack.then_some(Ack { number, stamp_ns })
    }

    /// Writes the packet to the buffer that was passed to [`Responder::execute`], or, without a payload, to any other.
    /// Returns the packet's length in bytes, which includes the ICRC that the caller adds.
    pub fn seal(&self, buffer: &mut [u8]) -> usize {
        let Answer { kind, qpn, number, stamp_ns, address, rkey, len, epoch, rights, status, .. } = *self;
        let (payload, ack) = (&[][..], None);
        let packet =
            Packet { kind, qpn, number, stamp_ns, address, rkey, len, epoch, rights, status, payload, ack };
        add_tag(packet.emit_around(len as usize, buffer), &self.key, buffer)
    }
}

/// Writes a packet and its tag. Returns its length in bytes, which includes the ICRC that the caller adds.
pub(super) fn seal(packet: &Packet<'_>, key: &[u8; 32], buffer: &mut [u8]) -> usize {
    add_tag(packet.emit(buffer), key, buffer)
}

/// Writes the tag behind the `covered` bytes of a packet. Returns the packet's length in bytes with the ICRC.
pub(super) fn add_tag(covered: usize, key: &[u8; 32], buffer: &mut [u8]) -> usize {
    let tag = tag::tag(key, &buffer[..covered]);
    buffer[covered..covered + TAG_BYTES].copy_from_slice(&tag);
    covered + TAG_BYTES + ICRC_BYTES
}
