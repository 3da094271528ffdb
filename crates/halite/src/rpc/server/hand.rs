//! The shortcut past a queue: the thread that polls may itself wait for a request, and is handed it.

use halite_tier::rpc::Kind;

use super::incoming::{DecodedRequest, Incoming};
use super::service::Service;

/// A receiver that waits for a request, on the thread that polls.
#[derive(Default)]
pub(crate) struct Hand<'s> {
    pub(crate) wanted: Option<&'s Service>,
    pub(crate) given: Option<Box<Incoming>>,
}

impl Hand<'_> {
    /// Returns true if the receiver waits for a request of `service`, and has none yet.
    pub(super) fn takes(&self, service: &Service) -> bool {
        self.given.is_none() && self.wanted.is_some_and(|wanted| std::ptr::eq(wanted, service))
    }
}

impl Service {
    /// Hands a call to `hand` if that waits for it and no other call is queued; otherwise returns it.
    #[inline]
    pub(super) fn give(&self, asked: DecodedRequest, hand: &mut Hand<'_>) -> Option<DecodedRequest> {
        if !hand.takes(self) || self.is_waiting() || !self.gives(&asked) {
            return Some(asked);
        }
        hand.given = Some(asked.incoming);
        None
    }

    /// Returns true if a request may bypass the queue.  A message may not: it takes its turn with those that wait for room.
    #[inline]
    pub(super) fn gives(&self, asked: &DecodedRequest) -> bool {
        asked.kind == Kind::Call && !self.has_ended() && self.admits(&asked.incoming.to.caller.principal)
    }
}
