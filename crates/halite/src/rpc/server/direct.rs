//! Direct delivery: a polling thread that itself waits for a request gets the request without going through the queue.

use halite_tier::rpc::Kind;

use super::incoming::{DecodedRequest, Incoming};
use super::service::Service;

/// A receiver that waits for a request on the polling thread.
#[derive(Default)]
pub(crate) struct DirectReceiver<'s> {
    pub(crate) service: Option<&'s Service>,
    pub(crate) request: Option<Box<Incoming>>,
}

impl DirectReceiver<'_> {
    /// Returns true if the receiver waits for a request of `service` and has none yet.
    pub(super) fn accepts(&self, service: &Service) -> bool {
        self.request.is_none() && self.service.is_some_and(|wanted| std::ptr::eq(wanted, service))
    }
}

impl Service {
    /// Gives a call to `direct`, if `direct` waits for it and no other call is queued. Otherwise returns the call.
    #[inline]
    pub(super) fn deliver_directly(
        &self,
        decoded: DecodedRequest,
        direct: &mut DirectReceiver<'_>,
    ) -> Option<DecodedRequest> {
        if !direct.accepts(self) || self.is_waiting() || !self.may_bypass_queue(&decoded) {
            return Some(decoded);
        }
        direct.request = Some(decoded.incoming);
        None
    }

    /// Returns true if a request may bypass the queue. A message may not, because it must not overtake parked senders.
    #[inline]
    pub(super) fn may_bypass_queue(&self, decoded: &DecodedRequest) -> bool {
        decoded.kind == Kind::Call && !self.has_ended() && self.admits(&decoded.incoming.to.caller.principal)
    }
}
