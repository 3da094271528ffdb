//! Orders that a requester has received from the responder, and executes.

use std::collections::VecDeque;
use std::mem;

use super::super::clock::ServerClock;
use super::super::orders::{END_PATIENCE_NS, EndedOrders, LEASE_NS, Order, OrderKind};
use super::super::responder::seal;
use super::super::wire::{Kind, Packet, Status};
use super::super::work::Work;
use super::{CLOCK_REQUEST, ORDERS_MAX, Origin, Posted, Requester};
use crate::memory::{Access, Memory, Refused};

/// Orders that this requester has received from the responder.
#[derive(Debug, Default)]
pub(super) struct ReceivedOrders {
    /// Orders of unknown age: the responder's clock is not known yet.
    pub(super) undated: Vec<ReceivedOrder>,
    /// Time at which the requester last asked for the responder's clock.
    pub(super) asked_ns: Option<u64>,
    /// Orders that are posted or in progress, each with the time of the responder's clock in ns until which the responder
    /// keeps it.
    pub(super) running: Vec<(u64, u64)>,
    /// Answers to WQEPs that are still to be sent.
    pub(super) answers: VecDeque<(u64, Status)>,
    /// Ended orders whose CQEPs the responder has not acknowledged.
    pub(super) ends: Vec<OrderEnd>,
    pub(super) ended: EndedOrders,
}

/// A WQEP.
#[derive(Debug)]
pub(super) struct ReceivedOrder {
    pub(super) id: u64,
    pub(super) stamp_ns: u64,
    pub(super) order: Order,
    /// The bytes of a short write.
    pub(super) bytes: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct OrderEnd {
    pub(super) id: u64,
    pub(super) status: Status,
    /// The bytes of a short read, which the CQEP carries.
    pub(super) bytes: Vec<u8>,
    pub(super) began_ns: u64,
    pub(super) due_ns: u64,
    pub(super) attempts: u32,
}

impl Requester {
    /// Writes the next packet about orders: an answer to a WQEP, a CQEP, or a request for the clock.
    pub(super) fn transmit_for_orders(
        &mut self,
        now_ns: u64,
        clock: &ServerClock,
        buffer: &mut [u8],
    ) -> Option<usize> {
        let clock_life_ns = self.clock_life_ns();
        let is_over = |end: &OrderEnd| end.due_ns <= now_ns && now_ns >= end.began_ns + END_PATIENCE_NS;
        self.orders.forget_ends(now_ns, self.grant.effect_life_ns, is_over);
        let orders = &mut self.orders;
        let asks_clock = |asked_ns: Option<u64>| asked_ns.is_none_or(|asked| now_ns >= asked + clock_life_ns);
        let (kind, number, status, payload) = if let Some((id, status)) = orders.answers.pop_front() {
            (Kind::Ea, id, status, &[][..])
        } else if let Some(end) = orders.ends.iter_mut().find(|end| end.due_ns <= now_ns) {
            if end.attempts == 0 {
                end.began_ns = now_ns;
            }
            end.due_ns = now_ns + clock.timeout_ns(end.attempts);
            end.attempts += 1;
            (Kind::Cqep, end.id, end.status, &end.bytes[..])
        } else if !orders.undated.is_empty() && asks_clock(orders.asked_ns) {
            orders.asked_ns = Some(now_ns);
            self.clock_questions += 1;
            (Kind::Gd, CLOCK_REQUEST, Status::Done, &[][..])
        } else {
            return None;
        };
        let stamp_ns = clock.now_ns(now_ns, u64::MAX).unwrap_or(0);
        let len = payload.len() as u32;
        let packet = Packet { len, status, payload, ..Packet::new(kind, &self.grant, number, stamp_ns) };
        Some(seal(&packet, &self.grant.key, buffer))
    }

    /// Accepts, answers or ignores received orders, once the clock is known and gives their age.
    // [ROCE-STATELESS-7]
    pub(super) fn process_orders(&mut self, now_ns: u64, clock: &ServerClock, memory: &impl Memory) {
        let (effect_life_ns, clock_life_ns) = (self.grant.effect_life_ns, self.clock_life_ns());
        for received in mem::take(&mut self.orders.undated) {
            let ReceivedOrder { id, stamp_ns, order, .. } = received;
            let orders = &mut self.orders;
            if let Some((_, until_ns)) = orders.running.iter_mut().find(|(running, _)| *running == id) {
                *until_ns = (*until_ns).max(stamp_ns.saturating_add(LEASE_NS));
                orders.answers.push_back((id, Status::Done));
                continue;
            }
            if let Some(end) = orders.ends.iter_mut().find(|end| end.id == id) {
                end.due_ns = now_ns;
                continue;
            }
            if let Some(status) = orders.ended.get(id) {
                orders.ends.push(OrderEnd::new(now_ns, id, status, Vec::new()));
                continue;
            }
            let busy = orders.running.len() + orders.ends.len() + orders.undated.len() >= ORDERS_MAX;
            let Some(server_ns) = clock.now_ns(now_ns, clock_life_ns) else {
                // Repeated orders replace earlier copies, whose age is higher.
                orders.undated.retain(|other| other.id != id);
                if !busy {
                    orders.undated.push(received);
                }
                continue;
            };
            if stamp_ns.saturating_add(effect_life_ns) < server_ns {
                continue;
            }
            if busy {
                orders.answers.push_back((id, Status::Busy));
                continue;
            }
            let executed = work_of(&order, memory).and_then(|work| match (order.is_short(), work) {
                (false, work) => {
                    orders.running.push((id, stamp_ns.saturating_add(LEASE_NS)));
                    let (origin, rkey) = (Origin::Order { id, order }, self.grant.rkey);
                    self.posted.push_back(Posted { origin, rkey, work, overlaps: false });
                    Ok(())
                }
                // [ROCE-STATELESS-13]
                (true, Work::Write { bytes, .. }) => {
                    orders.ends.push(OrderEnd::new(now_ns, id, Status::Done, bytes));
                    Ok(())
                }
                (true, _) => {
                    memory.write(order.remote_key, order.remote, &received.bytes)?;
                    orders.ends.push(OrderEnd::new(now_ns, id, Status::Done, Vec::new()));
                    Ok(())
                }
            });
            if executed.is_err() {
                orders.answers.push_back((id, Status::Refused));
            }
        }
    }
}

impl ReceivedOrders {
    /// Returns the time of the responder's clock in ns until which the responder keeps the order with this origin;
    /// `u64::MAX` for a request of the process.
    pub(super) fn kept_until_ns(&self, origin: Origin) -> u64 {
        let Origin::Order { id, .. } = origin else { return u64::MAX };
        self.running.iter().find(|(running, _)| *running == id).map_or(0, |(_, until_ns)| *until_ns)
    }

    /// Stops repeating the CQEPs of some ended orders. Remembers the orders, because late WQEPs may still arrive.
    pub(super) fn forget_ends(
        &mut self,
        now_ns: u64,
        effect_life_ns: u64,
        is_over: impl Fn(&OrderEnd) -> bool,
    ) {
        for OrderEnd { id, status, .. } in self.ends.extract_if(.., |end| is_over(end)) {
            self.ended.insert(now_ns, effect_life_ns, id, status);
        }
    }
}

impl OrderEnd {
    pub(super) fn new(now_ns: u64, id: u64, status: Status, bytes: Vec<u8>) -> OrderEnd {
        OrderEnd { id, status, bytes, began_ns: now_ns, due_ns: now_ns, attempts: 0 }
    }
}

/// Returns the request that executes an order. Fails if the memory does not permit it.
fn work_of(order: &Order, memory: &impl Memory) -> Result<Work, Refused> {
    let Order { kind, local: address, remote, remote_key, len } = *order;
    let access = if kind == OrderKind::Read { Access::Read } else { Access::Write };
    memory.check(remote_key, access, remote, u64::from(len))?;
    let len = len as usize;
    match kind {
        OrderKind::Write => Ok(Work::Read { address, len }),
        OrderKind::Read => {
            let mut bytes = vec![0; len];
            memory.read(remote_key, remote, &mut bytes)?;
            Ok(Work::Write { address, bytes })
        }
    }
}
