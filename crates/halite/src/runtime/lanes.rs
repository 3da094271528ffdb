//! The lanes to each peer. Between two lanes there is no order.
//!
//! Messages and calls rely on their order: a handshake precedes all requests, a request precedes its cancel, and the
//! bytes of an answer precede their notification. So they share one lane. Accesses to regions and transfers of long
//! payloads complete one by one, and code that needs an order with one of them waits for its completion; decision 014
//! lists these cases. If a network has more than two lanes, each session keeps to one of those of accesses.

use halite_fabric::{Class, Lane};
use halite_tier::ids::SessionId;
use halite_tier::qos::Priority;

/// Lane of messages, control messages, calls, and atomics that travel as calls.
pub(crate) const CALLS: Lane = Lane { number: 0, class: Class::Latency, flow: 0 };

/// Lane of transfers in slices that belong to no session.
pub(crate) const TRANSFERS: Lane = Lane { number: 1, class: Class::Bulk, flow: 1 };

/// Number of lane numbers that accesses use: a multiple of each number of lanes that a network has for accesses (1, 2
/// or 3), so that sessions are spread evenly.
const NUMBERS: u32 = 6;

/// The operations that take turns as one: those of a session with one priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Queue {
    pub(crate) priority: Priority,
    pub(crate) flow: u32,
}

impl Queue {
    pub(crate) fn of(session: SessionId, priority: Priority) -> Queue {
        let flow = 2 + 2 * u32::from(session.0) + u32::from(priority == Priority::Low);
        Queue { priority, flow }
    }
}

/// Returns the lane of a session's reads, writes and atomics of regions. Sessions take turns in it, and so do the two
/// priorities of a session.
pub(crate) fn accesses(session: SessionId, priority: Priority) -> Lane {
    let number = 1 + (u32::from(session.0) % NUMBERS) as u8;
    Lane { number, flow: Queue::of(session, priority).flow, ..TRANSFERS }
}
