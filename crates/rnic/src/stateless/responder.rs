//! The responder of a stateless pair: answers packets, and records effects for a limited time.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::orders::{Order, OrderDone, Orders, OrdersFull, Target};
use super::tag::{self, Grant, Rights, TAG_BYTES};
use super::wire::{Kind, PAYLOAD_AT, PAYLOAD_BYTES_MAX, Packet, Status};
use crate::memory::{Access, Memory};
use crate::wire::{ICRC_BYTES, Qpn};

/// The time T, in ns: a write has an effect only until its first transmission is this old on the responder's clock.
pub const EFFECT_LIFE_NS: u64 = 50_000_000;
/// Maximum number of effects in each half of the record. Further writes are refused as busy.
const EFFECTS_MAX: usize = 1 << 18;
/// Maximum time in ns by which a stamp may be ahead of the responder's clock, because two clocks run at different
/// rates.
const AHEAD_NS_MAX: u64 = 5_000_000;

/// A responder that keeps no state per requester; see [`super`].
#[derive(Debug)]
pub struct Responder {
    epoch: u32,
    secret: [u8; 32],
    /// Effects of the current and of the previous interval, each slightly longer than T.
    record: [Effects; 2],
    /// Start of the current interval.
    began_ns: u64,
    orders: Orders,
    counters: Counters,
}

type Effects = HashMap<(SocketAddr, u32, u64), Status>;

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
    /// Requests refused because the record of effects was full.
    pub busy: u64,
    /// Requests refused because the grant does not permit them, or the memory does not exist.
    pub refused: u64,
    /// Packets sent that announce an order (WQEPs), including repeated ones.
    pub orders_sent: u64,
}

impl Responder {
    /// Creates a responder. Its keys are derived from `secret`, which must be random and secret. `epoch` is the number
    /// of this secret.
    pub fn new(epoch: u32, secret: [u8; 32]) -> Responder {
        Responder {
            epoch,
            secret,
            record: Default::default(),
            began_ns: 0,
            orders: Orders::default(),
            counters: Counters::default(),
        }
    }

    /// Replaces the secret and increments the epoch. All grants end at once, so requesters need new ones. All orders
    /// end with [`OrderOutcome::MaybeDone`](super::OrderOutcome::MaybeDone).
    pub fn raise_epoch(&mut self, secret: [u8; 32]) {
        (self.epoch, self.secret) = (self.epoch.wrapping_add(1), secret);
        self.orders.end_all();
    }

    /// Returns a grant of `rights` to the memory of key `rkey`, for the requester with address `from` and queue pair
    /// `qpn`. The responder does not store grants.
    pub fn grant(&self, from: SocketAddr, qpn: Qpn, rkey: u32, rights: Rights) -> Grant {
        let key = tag::derive(&self.secret, from, qpn, rkey, rights, self.epoch);
        Grant { qpn, rkey, rights, epoch: self.epoch, key }
    }

    /// Returns the packet counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of effects that are currently recorded.
    pub fn recorded(&self) -> usize {
        self.record.iter().map(HashMap::len).sum()
    }

    /// Starts an order, which the requester `target` executes, and returns the order's id. Fails at the maximum number
    /// of orders in progress.
    pub fn order(&mut self, now_ns: u64, target: Target, order: Order) -> Result<u64, OrdersFull> {
        self.orders.add(now_ns, target, order)
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
        let (id, Target { to, qpn, rkey, rights }, order) = self.orders.next_due(now_ns)?;
        self.counters.orders_sent += 1;
        let payload = order.emit();
        let packet = Packet {
            kind: Kind::Wqep,
            qpn,
            number: id,
            stamp_ns: now_ns,
            address: order.local,
            rkey,
            len: payload.len() as u32,
            epoch: self.epoch,
            rights,
            status: Status::Done,
            payload: &payload,
        };
        let key = tag::derive(&self.secret, to, qpn, rkey, rights, self.epoch);
        Some((to, sealed(&packet, &key, buffer)))
    }

    /// Handles a packet from `from`, given without its ICRC, and writes the answer to `answer`. Returns the answer's
    /// length in bytes, which includes the ICRC that the caller adds; `None` if the packet gets no answer. `now_ns`
    /// must never go backwards.
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
        let Some((packet, key)) = self.authentic(from, body) else {
            self.counters.forged += 1;
            return None;
        };
        let mut len = 0;
        let (kind, status) = match packet.kind {
            Kind::Gd => {
                let payload = &mut answer[PAYLOAD_AT..];
                let status = self.give(&packet, memory, payload);
                if status == Status::Done {
                    len = packet.len as usize;
                }
                (Kind::Gda, status)
            }
            Kind::Ea | Kind::Cqep => {
                let is_end = packet.kind == Kind::Cqep;
                let Packet { qpn, number, status, .. } = packet;
                self.orders.handle_answer(now_ns, from, qpn, number, status, is_end);
                if !is_end {
                    return None;
                }
                (Kind::Ea, Status::Done)
            }
            _ => (Kind::Rda, self.receive(now_ns, from, &packet, memory)),
        };
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        payload[..len].copy_from_slice(&answer[PAYLOAD_AT..PAYLOAD_AT + len]);
        let reply =
            Packet { kind, stamp_ns: now_ns, len: len as u32, status, payload: &payload[..len], ..packet };
        Some(sealed(&reply, &key, answer))
    }

    /// Returns a requester's packet and the key of its tag; `None` if the packet is invalid or its tag is wrong.
    fn authentic<'a>(&self, from: SocketAddr, body: &'a [u8]) -> Option<(Packet<'a>, [u8; 32])> {
        let (packet, covered, tag) = Packet::parse(body)?;
        if packet.epoch != self.epoch || !matches!(packet.kind, Kind::Rd | Kind::Gd | Kind::Ea | Kind::Cqep) {
            return None;
        }
        let key = tag::derive(&self.secret, from, packet.qpn, packet.rkey, packet.rights, packet.epoch);
        tag::is_equal(&tag::tag(&key, covered), tag).then_some((packet, key))
    }

    fn give(&mut self, packet: &Packet<'_>, memory: &impl Memory, payload: &mut [u8]) -> Status {
        let len = packet.len as usize;
        let fits = len <= PAYLOAD_BYTES_MAX && packet.rights.read();
        // A request for no bytes asks for the clock.
        let is_read = len == 0
            || fits
                && memory.check(packet.rkey, Access::Read, packet.address, len as u64).is_ok()
                && memory.read(packet.rkey, packet.address, &mut payload[..len]).is_ok();
        let (count, status) = match is_read {
            true => (&mut self.counters.done, Status::Done),
            false => (&mut self.counters.refused, Status::Refused),
        };
        *count += 1;
        status
    }

    fn receive(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        packet: &Packet<'_>,
        memory: &impl Memory,
    ) -> Status {
        self.sweep(now_ns);
        let effect = (from, packet.qpn.value(), packet.number);
        if let Some(status) = self.record.iter().find_map(|effects| effects.get(&effect)) {
            self.counters.repeated += 1;
            return *status;
        }
        let is_old = packet.stamp_ns.saturating_add(EFFECT_LIFE_NS) < now_ns;
        if is_old || packet.stamp_ns > now_ns.saturating_add(AHEAD_NS_MAX) {
            self.counters.expired += 1;
            return Status::Expired;
        }
        if self.record[0].len() >= EFFECTS_MAX {
            self.counters.busy += 1;
            return Status::Busy;
        }
        let is_written = packet.rights.write()
            && memory.check(packet.rkey, Access::Write, packet.address, u64::from(packet.len)).is_ok()
            && memory.write(packet.rkey, packet.address, packet.payload).is_ok();
        let (count, status) = match is_written {
            true => (&mut self.counters.done, Status::Done),
            false => (&mut self.counters.refused, Status::Refused),
        };
        *count += 1;
        self.record[0].insert(effect, status);
        status
    }

    /// Drops recorded effects that are older than one interval. The interval is T plus the maximum lead of a stamp, so
    /// an effect is recorded for at least as long as its stamp is valid.
    fn sweep(&mut self, now_ns: u64) {
        const INTERVAL_NS: u64 = EFFECT_LIFE_NS + AHEAD_NS_MAX;
        let since_ns = now_ns.saturating_sub(self.began_ns);
        if since_ns < INTERVAL_NS {
            return;
        }
        self.record.swap(0, 1);
        self.record[0] = Effects::default();
        if since_ns >= 2 * INTERVAL_NS {
            self.record[1] = Effects::default();
        }
        self.began_ns = now_ns;
    }
}

/// Writes a packet and its tag. Returns its length in bytes, which includes the ICRC that the caller adds.
pub(super) fn sealed(packet: &Packet<'_>, key: &[u8; 32], buffer: &mut [u8]) -> usize {
    let covered = packet.emit(buffer);
    let tag = tag::tag(key, &buffer[..covered]);
    buffer[covered..covered + TAG_BYTES].copy_from_slice(&tag);
    covered + TAG_BYTES + ICRC_BYTES
}
