//! Lanes: orders in which requests to a peer are carried out, beside each other.
//!
//! ```text
//!                  ┌ lane 0: small requests ──────────────> in order among themselves
//!   post(peer, …) ─┤                                         no order between the two
//!                  └ lane 1: slices of long accesses ─────> in order among themselves
//! ```
//!
//! What is posted in one lane lands, arrives and completes in its order.  Nothing is promised between lanes, except that what has
//! completed with success stands before all that is posted after its completion was polled, whatever the lanes: so who needs an order
//! between two waits for the first.  A connection ends as a whole: what is under way in all lanes completes before
//! [`Event::Disconnected`](crate::Event::Disconnected).
//!
//! A provider has as many orders to a peer as it likes, one or more ([`Capabilities::lanes`](crate::Capabilities::lanes)); those who name
//! more lanes than there are share them.

/// In which order a request stands, and what its like are for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lane {
    /// Which one.  Those of one peer that have the same number are one lane, and of one class.
    pub number: u8,
    /// What the requests in it are, so that a provider can treat them accordingly.
    pub class: Class,
}

/// What requests are, as traffic classes of networks have it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Small ones, for which somebody waits.
    Latency,
    /// Those that fill a wire.
    Bulk,
}

impl Lane {
    /// The lane of those who need one only.
    pub const FIRST: Lane = Lane { number: 0, class: Class::Latency };

    /// Which of `orders` it takes, from 0; there is at least one.
    #[inline]
    pub fn order_among(self, orders: usize) -> usize {
        usize::from(self.number) % orders.max(1)
    }
}
