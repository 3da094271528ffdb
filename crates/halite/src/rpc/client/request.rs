//! Requests, and their routes: to this node itself, by line, or by ring.

use std::sync::Arc;

use halite_fabric::{PostCause, RemoteAddress};
use halite_tier::ids::{NodeId, Principal};
use halite_tier::rpc::{Input, Kind, RequestHeader, SlotId, Target};

use crate::rpc::Rpc;
use crate::rpc::shared::{Link, Outbound};
use crate::runtime::lanes::Queue;
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The connection that the request must use; `None` for any. A request that waits for room sets it, so that it goes
    /// to one incarnation of a node only.
    pub(crate) to: Option<Target>,
    pub(crate) kind: Kind,
    pub(crate) number: u32,
    pub(crate) principal: &'a Principal,
    /// The number that replaces the principal's name in lines.
    pub(crate) principal_number: Option<u16>,
    pub(crate) input: &'a [u8],
    /// Longest reply that the caller accepts, in bytes.
    pub(crate) reply_bytes_max: u32,
    /// True if the caller has reserved memory for the longest reply; otherwise the caller reads a long reply from the
    /// server's memory.
    pub(crate) reply_in_place: bool,
    pub(crate) deadline_ns: u64,
    /// The turns that the request takes under a policy.
    pub(crate) queue: Queue,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotPosted {
    /// There is no room in the ring or in the fabric's queue, or the server's node is not ready yet.
    Full,
    NoLink,
    Gone,
    NoMemory,
    TooManyCalls,
    /// The caller's own node has left.
    Closed,
}

impl From<PostCause> for NotPosted {
    #[inline]
    fn from(cause: PostCause) -> NotPosted {
        match cause {
            PostCause::QueueFull => NotPosted::Full,
            PostCause::NotConnected => NotPosted::Gone,
            PostCause::Malformed => unreachable!("requests keep to the fabric's limits"),
        }
    }
}

impl Request<'_> {
    /// Returns the port of a message; `None` for a call.
    #[inline]
    pub(super) fn port(&self) -> Option<u32> {
        (self.kind != Kind::Call).then_some(self.number)
    }
}

/// A posted request, with the slot for its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) target: Target,
    pub(crate) slot: SlotId,
    /// Set while the link manages the slot, because the reply comes by line; `None` if the table of slots manages the
    /// slot.
    pub(crate) by_line: Option<LineUse>,
}

/// Data that the table of slots needs to take over a lent slot from its link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineUse {
    pub(super) port: Option<u32>,
    pub(crate) deadline_ns: u64,
}

impl Rpc {
    /// Posts a request to a node. If it returns an error, nothing was posted.
    #[inline]
    pub(crate) fn try_request(
        &self,
        node: NodeId,
        request: &Request<'_>,
        wakes: &mut Wakes,
    ) -> Result<Posted, NotPosted> {
        let post = |link: &Arc<Link>| {
            let target = link.target;
            if request.to.is_some_and(|to| to != target) {
                return Err(NotPosted::Gone);
            }
            match target {
                Target::Own => {
                    let slot = self.deliver_own(link, &self.peers.read().services, request, wakes)?;
                    Ok(Posted { target, slot, by_line: None })
                }
                Target::Peer(_) => self.post_request(link, request),
            }
        };
        self.peers.with_link_to(node, post).unwrap_or(Err(NotPosted::NoLink))
    }

    #[inline]
    fn post_request(&self, link: &Arc<Link>, request: &Request<'_>) -> Result<Posted, NotPosted> {
        let input = self.place_input(link, request)?;
        let mut outbound = lock(&link.outbound);
        let Some(outbound) = outbound.as_mut() else {
            return Err(if link.is_gone() { NotPosted::Gone } else { NotPosted::Full });
        };
        if !link.has_sent_handshake() {
            return Err(NotPosted::Full);
        }
        if let Some(posted) = self.post_line(link, outbound, request) {
            return posted;
        }
        let at = input.as_ref().map(|block| block.address());
        let (slot, reply_at) = self.open_slot(link.target, request, input)?;
        let header = header_of(outbound, request, slot, reply_at, at);
        let posted = match header.request_bytes() <= outbound.ring.request_bytes_max() {
            true => self.post_into_ring(link, outbound, request, &header),
            // The input was placed before the ring's size was known, so the caller tries again.
            false => Err(NotPosted::Full),
        };
        if posted.is_err() {
            self.client.free_slot(slot);
        }
        posted.map(|()| Posted { target: link.target, slot, by_line: None })
    }
}

pub(super) fn header_of(
    outbound: &Outbound,
    request: &Request<'_>,
    slot: SlotId,
    reply_at: Option<(RemoteAddress, u32)>,
    input_at: Option<RemoteAddress>,
) -> RequestHeader {
    RequestHeader {
        kind: request.kind,
        number: request.number,
        slot,
        reply_at,
        reply_bytes_max: request.reply_bytes_max,
        input_bytes: request.input.len() as u32,
        input: input_at.map_or(Input::InRing, Input::At),
        name_bytes: request.principal.0.len() as u8,
        principal: request.principal_number.filter(|_| outbound.lines.is_some()),
    }
}
