//! Lanes: independent ordered channels to a peer.
//!
//! ```text
//!                  ┌ lane 0: small requests ──────────────> in order among themselves
//!   post(peer, …) ─┤                                         no order between the two
//!                  └ lane 1: slices of long accesses ─────> in order among themselves
//! ```
//!
//! Requests of one flow in one lane take effect, arrive and complete in order. A request may overtake requests of other
//! flows that still wait at the sender. Between lanes there is one guarantee: an operation that completes with success
//! takes effect before any operation that a caller posts after polling this completion. So a caller that needs an order
//! between two lanes waits for the completion of the first operation. A connection ends as a whole: requests in all
//! lanes complete before [`Event::Disconnected`](crate::Event::Disconnected).
//!
//! A provider has one or more lanes per peer ([`Capabilities::lanes`](crate::Capabilities::lanes)). If callers use more
//! lane numbers than the provider has lanes, several numbers share a lane. Lane 0 shares only if there is one lane.

/// The lane of a request, and the traffic class of the request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lane {
    /// Number of the lane. All requests in one lane to a peer must have the same class.
    pub number: u8,
    /// Traffic class of the requests.
    pub class: Class,
    /// Requests of different flows need no order, so a provider may let flows take turns. Requests of flow 0 never wait
    /// for a turn.
    pub flow: u32,
}

/// Traffic class of requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Latency-sensitive traffic: short requests that a caller waits for.
    Latency,
    /// Throughput-oriented traffic: long transfers.
    Bulk,
}

impl Lane {
    /// The default lane, for callers that need only one lane.
    pub const FIRST: Lane = Lane { number: 0, class: Class::Latency, flow: 0 };

    /// Returns the index of this lane at a provider with `orders` lanes: 0 for lane 0; the other lanes take turns among
    /// the other indexes. The value 0 of `orders` counts as 1.
    #[inline]
    pub fn order_among(self, orders: usize) -> usize {
        match (usize::from(self.number), orders) {
            (0, _) | (_, 0 | 1) => 0,
            (number, orders) => 1 + (number - 1) % (orders - 1),
        }
    }
}
