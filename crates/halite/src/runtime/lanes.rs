//! The two lanes to each peer. Between the two lanes there is no order.
//!
//! Messages and calls rely on their order: a handshake precedes all requests, a request precedes its cancel, and the
//! bytes of an answer precede their notification. So they share one lane. Accesses to regions and transfers of long
//! payloads complete one by one, and code that needs an order with one of them waits for its completion; decision 014
//! lists these cases.

use halite_fabric::{Class, Lane};

/// Lane of messages, control messages, calls, and atomics that travel as calls.
pub(crate) const CALLS: Lane = Lane { number: 0, class: Class::Latency };

/// Lane of reads, writes and atomics of regions, and of other transfers in slices.
pub(crate) const ACCESSES: Lane = Lane { number: 1, class: Class::Bulk };
