//! Orders: work that the responder starts. Its requester executes them, because it keeps the state of both ends.
//!
//! ```text
//!   responder                                             requester
//!     WQEP: order, kind, both addresses ────────────────────► takes it, unless it is old or known
//!     ◄───────────────────────── RD: the bytes of a read ──┘
//!     RDA ──────────────────────────────────────────────────►
//!     ◄───────────────────────── CQEP: order, outcome ─────┘
//!     EA ───────────────────────────────────────────────────►
//! ```
//!
//! The responder keeps an order until its CQEP or until it gives up; it repeats the WQEP meanwhile. Numbers of orders are
//! never used again within an epoch, so a repeated CQEP ends nothing. The requester remembers an order for T after its
//! end, and takes no WQEP that is older, so each order is executed once.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;

use super::responder::EFFECT_LIFE_NS;
use super::tag::Rights;
use super::wire::Status;
use crate::wire::Qpn;

/// Maximum number of orders of a responder that have not ended.
const ORDERS_MAX: usize = 1 << 16;
/// Time in ns until a WQEP is sent again: doubles up to [`BACKOFF_MAX`] times.
const TIMEOUT_NS: u64 = 5_000_000;
const BACKOFF_MAX: u32 = 6;
/// Time in ns until the responder asks again about an order that its requester has taken.
const REMINDER_NS: u64 = 200_000_000;
/// Number of WQEPs without an answer after which the requester counts as gone: more than 2 s.
const ATTEMPTS_MAX: u32 = 12;

/// The requester of an order: the values of its [`Grant`](super::Grant).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Address of the requester.
    pub to: SocketAddr,
    /// Its queue pair.
    pub qpn: Qpn,
    /// Key of the responder's memory that it may access.
    pub rkey: u32,
    /// The permitted accesses: a read of the requester's memory needs writes, a write reads.
    pub rights: Rights,
}

/// The direction of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderKind {
    /// Reads memory of the requester.
    Read,
    /// Writes memory of the requester.
    Write,
}

/// A transfer between the memories of both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    /// The direction.
    pub kind: OrderKind,
    /// Address in the responder's memory, under the key of the [`Target`].
    pub local: u64,
    /// Address in the requester's memory.
    pub remote: u64,
    /// Key of the requester's memory.
    pub remote_key: u32,
    /// Number of bytes.
    pub len: u32,
}

/// The end of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderDone {
    /// The order.
    pub id: u64,
    /// Its outcome.
    pub outcome: OrderOutcome,
}

/// The outcome of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderOutcome {
    /// The order was executed once.
    Success,
    /// One of the memories does not exist, or does not permit the access: parts of a longer order may be done.
    Refused,
    /// The requester does not answer: the order is done, done in part, or not done. Memory that it names may be written
    /// for [`EFFECT_LIFE_NS`] from now on.
    MaybeDone,
}

/// The error for an order beyond the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{ORDERS_MAX} orders of this responder have not ended, the maximum")]
pub struct OrdersFull;

/// The orders of a responder that have not ended.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pending: HashMap<u64, Pending>,
    /// Orders by the time of their next WQEP.
    due: BTreeSet<(u64, u64)>,
    next_id: u64,
    done: VecDeque<OrderDone>,
}

#[derive(Debug)]
struct Pending {
    target: Target,
    order: Order,
    due_ns: u64,
    attempts: u32,
}

impl Orders {
    pub(super) fn add(&mut self, now_ns: u64, target: Target, order: Order) -> Result<u64, OrdersFull> {
        if self.pending.len() >= ORDERS_MAX {
            return Err(OrdersFull);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.pending.insert(id, Pending { target, order, due_ns: now_ns, attempts: 0 });
        self.due.insert((now_ns, id));
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

    /// Returns the next order whose WQEP must be sent now. Ends orders whose requester does not answer.
    pub(super) fn next_due(&mut self, now_ns: u64) -> Option<(u64, Target, Order)> {
        loop {
            let (_, id) = *self.due.first().filter(|(due_ns, _)| *due_ns <= now_ns)?;
            let pending = self.pending.get_mut(&id).expect("a due order is pending");
            if pending.attempts >= ATTEMPTS_MAX {
                self.end(id, OrderOutcome::MaybeDone);
                continue;
            }
            let wait_ns = TIMEOUT_NS << pending.attempts.min(BACKOFF_MAX);
            pending.attempts += 1;
            let (target, order) = (pending.target, pending.order);
            self.put_off(id, now_ns + wait_ns);
            return Some((id, target, order));
        }
    }

    /// Handles the requester's word about an order: an EA if `is_end` is false, else a CQEP.
    pub(super) fn handle_answer(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        qpn: Qpn,
        id: u64,
        status: Status,
        is_end: bool,
    ) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        if (pending.target.to, pending.target.qpn) != (from, qpn) {
            return;
        }
        match (is_end, status) {
            (true, Status::Done) => self.end(id, OrderOutcome::Success),
            (_, Status::Refused) => self.end(id, OrderOutcome::Refused),
            (true, _) => self.end(id, OrderOutcome::MaybeDone),
            (false, Status::Done) => {
                pending.attempts = 0;
                self.put_off(id, now_ns + REMINDER_NS);
            }
            // The requester is busy: the next WQEP is due already.
            (false, _) => pending.attempts = pending.attempts.min(1),
        }
    }

    /// Ends all orders: their requesters forget in a new epoch what they have executed in an old one.
    pub(super) fn end_all(&mut self) {
        let ids: Vec<u64> = self.pending.keys().copied().collect();
        ids.into_iter().for_each(|id| self.end(id, OrderOutcome::MaybeDone));
    }

    fn put_off(&mut self, id: u64, due_ns: u64) {
        let pending = self.pending.get_mut(&id).expect("a pending order is put off");
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

/// Orders that a requester remembers after their end, for T at least.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Those of the current and of the previous interval.
    orders: [HashMap<u64, Status>; 2],
    began_ns: u64,
}

impl Ended {
    pub(super) fn insert(&mut self, now_ns: u64, id: u64, status: Status) {
        let since_ns = now_ns.saturating_sub(self.began_ns);
        if since_ns >= EFFECT_LIFE_NS {
            self.orders.swap(0, 1);
            self.orders[0].clear();
            if since_ns >= 2 * EFFECT_LIFE_NS {
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

/// Length of an order in the payload of a WQEP.
const ORDER_BYTES: usize = 20;

impl Order {
    /// Writes what the header of a WQEP does not hold.
    // [ROCE-STATELESS-6]
    pub(super) fn emit(&self) -> [u8; ORDER_BYTES] {
        let mut bytes = [0; ORDER_BYTES];
        bytes[..8].copy_from_slice(&self.remote.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.remote_key.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16] = u8::from(self.kind == OrderKind::Write);
        bytes
    }

    /// Parses the payload of a WQEP whose header has the address `local`.
    pub(super) fn parse(local: u64, payload: &[u8]) -> Option<Order> {
        let payload: &[u8; ORDER_BYTES] = payload.try_into().ok()?;
        let u32_at = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("four bytes"));
        let kind = match payload[16] {
            0 => OrderKind::Read,
            1 => OrderKind::Write,
            _ => return None,
        };
        let remote = u64::from_be_bytes(payload[..8].try_into().expect("eight bytes"));
        Some(Order { kind, local, remote, remote_key: u32_at(8), len: u32_at(12) })
    }
}
