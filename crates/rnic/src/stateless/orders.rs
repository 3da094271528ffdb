//! Orders: transfers that the responder starts. Its requester executes them, because the requester keeps the state of
//! both ends.
//!
//! ```text
//!   responder                                             requester
//!     WQEP: order, kind, both addresses ────────────────────► accepts it, unless it is old or known
//!     ◄───────────────────────── RD: the bytes of a read ──┘
//!     RDA ──────────────────────────────────────────────────►
//!     ◄───────────────────────── CQEP: order, outcome ─────┘
//!     EA ───────────────────────────────────────────────────►
//!
//!     WQEP: ..., the bytes of a short write ────────────────►
//!     ◄── CQEP: order, outcome, the bytes of a short read ─┘
//!     EA ───────────────────────────────────────────────────►
//! ```
//!
//! A transfer is short if its bytes fit into one packet. The responder copies the bytes of a short write when the order
//! begins, so all copies of the WQEP are equal. It writes the bytes of a short read to the memory of the order, and only
//! while the order is in progress. So a CQEP contains no address, and has no late effect.
//!
//! The responder keeps an order, and repeats its WQEP, until the CQEP arrives or the responder gives up. It never reuses
//! an order's number within an epoch, so a repeated CQEP ends no other order. The requester remembers an order for T after
//! the EA, and ignores WQEPs older than T, so it executes each order once.
//!
//! The responder keeps an order for at least [`LEASE_NS`] after each WQEP. The requester stamps no packet of the transfer
//! after this time, so no packet takes effect more than T after the responder has given up the order.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;

use super::clock::PathTime;
use super::tag::Rights;
use super::wire::{Kind, PAYLOAD_BYTES_FIRST, Packet, Status};
use crate::memory::{Access, Memory, Refused};
use crate::wire::Qpn;

/// Maximum number of orders in progress of one responder.
const ORDERS_MAX: usize = 1 << 16;
/// Time in ns after which an unanswered WQEP is sent again; it doubles up to [`BACKOFF_MAX`] times. The first timeout is
/// shorter if orders take less time.
const TIMEOUT_NS: u64 = 5_000_000;
const BACKOFF_MAX: u32 = 6;
/// Interval in ns at which the responder sends the WQEP of an accepted order again.
const REMINDER_NS: u64 = 200_000_000;
/// Number of unanswered WQEPs after which the responder stops waiting for the requester: more than 2 s.
const ATTEMPTS_MAX: u32 = 12;

/// Minimum time in ns between a WQEP and the end of its order, unless the requester ends the order: the timeout of the
/// last WQEP.
pub(super) const LEASE_NS: u64 = TIMEOUT_NS << BACKOFF_MAX;
/// Time in ns for which a requester repeats a CQEP without an EA. It exceeds the time for which the responder repeats the
/// WQEP: up to 2.5 s after the last answer.
pub(super) const END_PATIENCE_NS: u64 = 3_000_000_000;

/// The requester that executes an order, with the values of its [`Grant`](super::Grant).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Network address of the requester.
    pub to: SocketAddr,
    /// Number of the requester's queue pair.
    pub qpn: Qpn,
    /// Key of the responder's memory that the grant permits.
    pub rkey: u32,
    /// The accesses that the grant permits. An order that reads the requester's memory writes the responder's, so it
    /// needs [`Rights::Write`]; an order that writes the requester's memory needs [`Rights::Read`].
    pub rights: Rights,
}

/// The direction of an order's transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderKind {
    /// Copies from the requester's memory to the responder's.
    Read,
    /// Copies from the responder's memory to the requester's.
    Write,
}

/// An order: a transfer that the responder starts, between its memory and the requester's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    /// The direction of the transfer.
    pub kind: OrderKind,
    /// Address in the responder's memory, in the address space of [`Target::rkey`].
    pub local: u64,
    /// Address in the requester's memory, in the address space of `remote_key`.
    pub remote: u64,
    /// Key of the requester's memory.
    pub remote_key: u32,
    /// Length of the transfer in bytes.
    pub len: u32,
}

/// The completion of an order, returned by [`Responder::poll_order`](super::Responder::poll_order).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderDone {
    /// The id that [`Responder::order`](super::Responder::order) returned.
    pub id: u64,
    /// The outcome of the order.
    pub outcome: OrderOutcome,
}

/// The outcome of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderOutcome {
    /// The requester executed the order once.
    Success,
    /// One of the memories does not exist, or does not permit the access. Parts of an order of several packets may be
    /// done.
    Refused,
    /// The requester does not answer: the order is done, done in part, or not done. Unless the order is a short read,
    /// packets in flight may still write to the target memory during the next T.
    MaybeDone,
}

/// The error if the maximum number of orders is in progress already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this responder already has {ORDERS_MAX} orders in progress, the maximum; wait until one ends")]
pub struct OrdersFull;

/// The orders in progress of a responder.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pending: HashMap<u64, Pending>,
    /// Orders by the time of their next WQEP.
    due: BTreeSet<(u64, u64)>,
    next_id: u64,
    done: VecDeque<OrderDone>,
    /// The time from WQEP to CQEP, of all requesters.
    path: PathTime,
}

#[derive(Debug)]
struct Pending {
    target: Target,
    order: Order,
    /// The bytes of a short write.
    bytes: Box<[u8]>,
    /// Time of the first WQEP.
    sent_ns: u64,
    due_ns: u64,
    attempts: u32,
}

impl Orders {
    pub(super) fn add(
        &mut self,
        now_ns: u64,
        target: Target,
        order: Order,
        memory: &impl Memory,
    ) -> Result<u64, OrdersFull> {
        if self.pending.len() >= ORDERS_MAX {
            return Err(OrdersFull);
        }
        let id = self.next_id;
        self.next_id += 1;
        match order.bytes_to_send(&target, memory) {
            Ok(bytes) => {
                self.pending.insert(
                    id,
                    Pending { target, order, bytes, sent_ns: now_ns, due_ns: now_ns, attempts: 0 },
                );
                self.due.insert((now_ns, id));
            }
            Err(Refused) => self.done.push_back(OrderDone { id, outcome: OrderOutcome::Refused }),
        }
        Ok(id)
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| *due_ns)
    }

    pub(super) fn poll_done(&mut self) -> Option<OrderDone> {
        self.done.pop_front()
    }

    /// Returns the next order whose WQEP is due, with the bytes that the WQEP carries. Ends orders whose requester has not
    /// answered in time.
    pub(super) fn next_due(&mut self, now_ns: u64) -> Option<(u64, Target, Order, &[u8])> {
        loop {
            let (_, id) = *self.due.first().filter(|(due_ns, _)| *due_ns <= now_ns)?;
            let pending = self.pending.get_mut(&id).expect("a due order is pending");
            if pending.attempts >= ATTEMPTS_MAX {
                self.end(id, OrderOutcome::MaybeDone);
                continue;
            }
            let wait_ns = match pending.attempts {
                0 => self.path.timeout_ns(0).min(TIMEOUT_NS),
                attempts => TIMEOUT_NS << attempts.min(BACKOFF_MAX),
            };
            if pending.attempts == 0 {
                pending.sent_ns = now_ns;
            }
            pending.attempts += 1;
            let (target, order) = (pending.target, pending.order);
            self.reschedule(id, now_ns + wait_ns);
            return Some((id, target, order, &self.pending[&id].bytes));
        }
    }

    /// Handles a requester's CQEP or EA. A CQEP may have the bytes of a short read for `memory`.
    // [ROCE-STATELESS-13]
    pub(super) fn handle_answer(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        packet: &Packet<'_>,
        memory: &impl Memory,
    ) {
        let Packet { qpn, number: id, status, payload, .. } = *packet;
        let Some(pending) = self.pending.get_mut(&id) else { return };
        if (pending.target.to, pending.target.qpn) != (from, qpn) {
            return;
        }
        match (packet.kind == Kind::Cqep, status) {
            (true, Status::Done) => {
                self.path.add_round_trip(now_ns, pending.sent_ns, pending.attempts);
                let outcome = pending.order.store_bytes(&pending.target, payload, memory);
                self.end(id, outcome);
            }
            (_, Status::Refused) => self.end(id, OrderOutcome::Refused),
            (true, _) => self.end(id, OrderOutcome::MaybeDone),
            (false, Status::Done) => {
                pending.attempts = 0;
                self.reschedule(id, now_ns + REMINDER_NS);
            }
            // The requester is busy: the next WQEP is due already.
            (false, _) => pending.attempts = pending.attempts.min(1),
        }
    }

    /// Ends all orders for the selected requesters with an unknown outcome.
    pub(super) fn end_of(&mut self, is_selected: impl Fn(&Target) -> bool) {
        let selected = self.pending.iter().filter(|(_, pending)| is_selected(&pending.target));
        let mut ids: Vec<u64> = selected.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.end(id, OrderOutcome::MaybeDone));
    }

    fn reschedule(&mut self, id: u64, due_ns: u64) {
        let pending = self.pending.get_mut(&id).expect("only pending orders are rescheduled");
        self.due.remove(&(pending.due_ns, id));
        pending.due_ns = due_ns;
        self.due.insert((due_ns, id));
    }

    fn end(&mut self, id: u64, outcome: OrderOutcome) {
        if let Some(pending) = self.pending.remove(&id) {
            self.due.remove(&(pending.due_ns, id));
            self.done.push_back(OrderDone { id, outcome });
        }
    }
}

/// Orders that a requester remembers for at least 2 T after the responder has acknowledged their end. T does not suffice,
/// because the requester's estimate of the responder's clock may be late.
#[derive(Debug, Default)]
pub(super) struct EndedOrders {
    /// Ended orders of the current and of the previous interval of 2 T.
    orders: [HashMap<u64, Status>; 2],
    began_ns: u64,
}

impl EndedOrders {
    pub(super) fn insert(&mut self, now_ns: u64, effect_life_ns: u64, id: u64, status: Status) {
        let (since_ns, interval_ns) = (now_ns.saturating_sub(self.began_ns), 2 * effect_life_ns);
        if since_ns >= interval_ns {
            self.orders.swap(0, 1);
            self.orders[0].clear();
            if since_ns >= 2 * interval_ns {
                self.orders[1].clear();
            }
            self.began_ns = now_ns;
        }
        self.orders[0].insert(id, status);
    }

    pub(super) fn get(&self, id: u64) -> Option<Status> {
        self.orders.iter().find_map(|orders| orders.get(&id)).copied()
    }
}

/// Length in bytes of an encoded order, at the start of the payload of a WQEP.
const ORDER_BYTES: usize = 20;
/// Maximum length in bytes of a short transfer. With the order before them, the bytes fit into the packets of a path
/// whose MTU is unknown.
const SHORT_BYTES_MAX: usize = PAYLOAD_BYTES_FIRST;

impl Order {
    /// Returns true if the WQEP or the CQEP carries the bytes.
    pub(super) fn is_short(&self) -> bool {
        self.len as usize <= SHORT_BYTES_MAX
    }

    /// Returns the bytes that the WQEP carries. Refuses an order that the grant does not permit, and a short transfer
    /// that the memory does not permit.
    fn bytes_to_send(&self, target: &Target, memory: &impl Memory) -> Result<Box<[u8]>, Refused> {
        let Order { kind, local, len, .. } = *self;
        let (access, is_permitted) = match kind {
            OrderKind::Read => (Access::Write, target.rights.write()),
            OrderKind::Write => (Access::Read, target.rights.read()),
        };
        if !is_permitted {
            return Err(Refused);
        }
        if !self.is_short() {
            return Ok([].into());
        }
        memory.check(target.rkey, access, local, u64::from(len))?;
        if kind == OrderKind::Read {
            return Ok([].into());
        }
        let mut bytes = vec![0; len as usize];
        memory.read(target.rkey, local, &mut bytes)?;
        Ok(bytes.into())
    }

    /// Writes the payload of a successful CQEP to the memory of the order. Ignores a payload of another length, which only
    /// a requester that breaks the protocol sends.
    fn store_bytes(&self, target: &Target, payload: &[u8], memory: &impl Memory) -> OrderOutcome {
        let Order { local, len, .. } = *self;
        let has_bytes = self.is_short() && self.kind == OrderKind::Read;
        if payload.len() != if has_bytes { len as usize } else { 0 } {
            return OrderOutcome::MaybeDone;
        }
        if !has_bytes {
            return OrderOutcome::Success;
        }
        // The process may have withdrawn the key since the order began.
        let check = memory.check(target.rkey, Access::Write, local, u64::from(len));
        match check.and_then(|()| memory.write(target.rkey, local, payload)) {
            Ok(()) => OrderOutcome::Success,
            Err(Refused) => OrderOutcome::Refused,
        }
    }

    /// Writes the fields that the header of a WQEP does not contain, and the bytes that the WQEP carries, to `payload`.
    /// Returns their length.
    // [ROCE-STATELESS-6]
    pub(super) fn emit(&self, bytes: &[u8], payload: &mut [u8]) -> usize {
        payload[..8].copy_from_slice(&self.remote.to_be_bytes());
        payload[8..12].copy_from_slice(&self.remote_key.to_be_bytes());
        payload[12..16].copy_from_slice(&self.len.to_be_bytes());
        payload[16..ORDER_BYTES].copy_from_slice(&[u8::from(self.kind == OrderKind::Write), 0, 0, 0]);
        payload[ORDER_BYTES..][..bytes.len()].copy_from_slice(bytes);
        ORDER_BYTES + bytes.len()
    }

    /// Parses the payload of a WQEP whose header has the address `local`. Returns the order, and the bytes that the WQEP
    /// carries.
    pub(super) fn parse(local: u64, payload: &[u8]) -> Option<(Order, &[u8])> {
        let (fields, bytes) = payload.split_first_chunk::<ORDER_BYTES>()?;
        let u32_at = |at: usize| u32::from_be_bytes(fields[at..at + 4].try_into().expect("four bytes"));
        let kind = match fields[16] {
            0 => OrderKind::Read,
            1 => OrderKind::Write,
            _ => return None,
        };
        let remote = u64::from_be_bytes(fields[..8].try_into().expect("eight bytes"));
        let order = Order { kind, local, remote, remote_key: u32_at(8), len: u32_at(12) };
        let carried = if kind == OrderKind::Write && order.is_short() { order.len as usize } else { 0 };
        (bytes.len() == carried).then_some((order, bytes))
    }
}
