//! Which lane a request takes: two to each peer, in no order with each other.
//!
//! What messages and calls say of each other they say by their order: a handshake comes before all requests, a request before its
//! cancel, the bytes of an answer before the word that they are there.  So all of these are in one lane.  Accesses to regions and
//! transfers of long payloads complete one by one, and who needs an order between one of them and anything else waits for that: decision
//! 014 goes through all that does.

use halite_fabric::{Class, Lane};

/// Of messages, of control messages, of everything that belongs to a call, and of atomics that travel as calls.
pub(crate) const CALLS: Lane = Lane { number: 0, class: Class::Latency };

/// Of reads, writes and atomics of regions, and of whatever else is carried out slice by slice.
pub(crate) const ACCESSES: Lane = Lane { number: 1, class: Class::Bulk };
