//! The outbound side of a link: the peer's memory to which this node writes requests.

use std::fmt;

use halite_fabric::RemoteAddress;
use halite_mem::Window;
use halite_tier::rpc::line::PRINCIPALS_MAX;
use halite_tier::rpc::{LineWriter, RingWriter};

use super::lines::Row;
use crate::runtime::locks::ranked;

ranked! {
    Option<Outbound> => Outbound;
}

#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) ring: RingWriter,
    pub(crate) at: RemoteAddress,
    /// The word in which the peer writes the position up to which it has read the ring.
    pub(crate) head: Window,
    /// Number of requests and cancels posted to the ring so far. Each line carries this number, so that the line
    /// overtakes none of them.
    pub(in crate::rpc) posted_before: u16,
    /// Principals whose names and numbers the peer knows.
    pub(in crate::rpc) introduced: Introduced,
    /// Lines for short requests; `None` if stores do not reach the peer's memory.
    pub(in crate::rpc) lines: Option<OutboundLines>,
}

/// The lines for short requests, and the slots lent to the link. Replies to short requests come by line.
#[derive(Debug)]
pub(crate) struct OutboundLines {
    pub(in crate::rpc) writer: LineWriter,
    pub(in crate::rpc) row: Row,
    /// Number of the link as a borrower of slots, unique at this node.
    pub(in crate::rpc) borrower: u32,
    pub(in crate::rpc) slots: Vec<u16>,
    /// Position behind the slot that was taken last.
    pub(in crate::rpc) next: usize,
}

impl OutboundLines {
    pub(in crate::rpc) fn new(row: Row, borrower: u32) -> OutboundLines {
        OutboundLines { writer: Default::default(), row, borrower, slots: Vec::new(), next: 0 }
    }
}

/// The set of principals that a peer knows by number.
#[derive(Default)]
pub(crate) struct Introduced([u64; PRINCIPALS_MAX as usize / 64]);

impl Introduced {
    #[inline]
    pub(in crate::rpc) fn has(&self, principal: u16) -> bool {
        self.0.get(usize::from(principal) / 64).is_some_and(|bits| bits >> (principal % 64) & 1 == 1)
    }

    pub(in crate::rpc) fn add(&mut self, principal: u16) {
        self.0[usize::from(principal) / 64] |= 1 << (principal % 64);
    }
}

impl fmt::Debug for Introduced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: u32 = self.0.iter().map(|bits| bits.count_ones()).sum();
        write!(f, "Introduced({count})")
    }
}
