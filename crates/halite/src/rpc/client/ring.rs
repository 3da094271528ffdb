//! Requests in the server's ring: the header, the principal's name, and the input.

use halite_fabric::{PeerId, RemoteAddress};
use halite_tier::rpc::ring::{Place, request_bytes_max};
use halite_tier::rpc::wire::REQUEST_HEADER_BYTES_MAX;
use halite_tier::rpc::{Imm, Input, RING_BYTES_MIN, RequestHeader};

use super::request::{NotPosted, Request};
use crate::rpc::Rpc;
use crate::rpc::shared::{Block, Link, Outbound};
use crate::runtime::locks::lock;

/// Longest input in the ring, in bytes; the server reads a longer input from this node's memory.
const RING_INPUT_BYTES_MAX: u64 = 64 << 10;

impl Rpc {
    /// Copies a long input to memory from which the server reads it. Returns `None` if the input travels in the ring.
    #[inline]
    pub(super) fn place_input(&self, link: &Link, request: &Request<'_>) -> Result<Option<Block>, NotPosted> {
        let len = request.input.len() as u64;
        let overhead = (REQUEST_HEADER_BYTES_MAX + request.principal.0.len()) as u64;
        if len + overhead <= request_bytes_max(RING_BYTES_MIN) {
            // The request fits into any ring.
            return Ok(None);
        }
        let in_ring_max = match &*lock(&link.outbound) {
            Some(outbound) => outbound.ring.request_bytes_max(),
            None => RING_INPUT_BYTES_MAX,
        };
        if len + overhead <= in_ring_max.min(RING_INPUT_BYTES_MAX + overhead) {
            return Ok(None);
        }
        let block = self.poster.allocate(len).ok_or(NotPosted::NoMemory)?;
        block.window().write(0, request.input).expect("the block is as long");
        Ok(Some(block))
    }

    pub(super) fn post_into_ring(
        &self,
        link: &Link,
        outbound: &mut Outbound,
        request: &Request<'_>,
        header: &RequestHeader,
    ) -> Result<(), NotPosted> {
        let place = outbound.place(header.request_bytes())?;
        let mut head = [0; REQUEST_HEADER_BYTES_MAX];
        let len = header.emit(&mut head);
        let name = request.principal.0.as_bytes();
        let input = if header.input == Input::InRing { request.input } else { &[] };
        let at = outbound.address(place);
        let imm = Imm::Request { offset: place.offset }.emit();
        self.poster.post_parts(link, at, [&head[..len], name], input, imm)?;
        outbound.ring.take(place);
        outbound.record_request(request);
        Ok(())
    }

    /// Posts a control message and counts it as a request in the ring, so that no later line overtakes it.
    pub(crate) fn post_counted(&self, peer: PeerId, post: &mut dyn FnMut() -> bool) {
        let link = self.peers.link_of(peer);
        let mut outbound = link.as_ref().map(|link| lock(&link.outbound));
        let outbound = outbound.as_mut().and_then(|outbound| outbound.as_mut());
        if post()
            && let Some(outbound) = outbound
        {
            outbound.count_request();
        }
    }
}

impl Outbound {
    /// Counts a request in the ring. The request introduces its principal to the server.
    pub(super) fn record_request(&mut self, request: &Request<'_>) {
        self.count_request();
        if let Some(principal) = request.principal_number.filter(|_| self.lines.is_some()) {
            self.introduced.add(principal);
        }
    }

    /// Counts a request or control message that no later line may overtake.
    pub(super) fn count_request(&mut self) {
        self.posted_before = self.posted_before.wrapping_add(1);
    }

    /// Reserves the place for a request of `len` bytes in the ring.
    pub(super) fn place(&mut self, len: u64) -> Result<Place, NotPosted> {
        if let Ok(place) = self.ring.place(len) {
            return Ok(place);
        }
        self.refresh_head().map_err(|_| NotPosted::Gone)?;
        self.ring.place(len).map_err(|_| NotPosted::Full)
    }

    /// Returns the remote address of a place in the ring.
    pub(super) fn address(&self, place: Place) -> RemoteAddress {
        RemoteAddress { offset: self.at.offset + place.offset, ..self.at }
    }

    fn refresh_head(&mut self) -> Result<(), halite_tier::rpc::Violation> {
        let head = self.head.load_u64(0).expect("the word is aligned");
        self.ring.set_head(head)
    }
}
