//! Short requests of peers, which the polling thread reads from their lines.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use halite_fabric::{LINE_BYTES, PeerId};
use halite_tier::rpc::line::{REQUEST_LINES, request_mark};
use halite_tier::rpc::{RequestLine, Violation};

use super::direct::DirectReceiver;
use super::incoming::{DecodedRequest, Incoming, LineReply, ServiceId};
use super::input::{Bytes, Payload};
use super::table_cache::{CachedRow, ReceiveBatch, offset_of};
use crate::rpc::Rpc;
use crate::rpc::shared::{Attempt, Block, Inbound, Link};
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

/// Length of a row of request lines, in bytes.
pub(in crate::rpc) const REQUEST_LINES_BYTES: u64 = REQUEST_LINES as u64 * LINE_BYTES as u64;

/// Maximum number of requests that the polling thread reads from one row before it turns to the next row.
const TURN_REQUESTS_MAX: u32 = 32;

impl Rpc {
    /// Handles the short requests that have arrived; `direct` gets the first request that it waits for. Returns true if
    /// any had arrived.
    #[inline]
    pub(crate) fn poll_lines(
        &self,
        received: &mut ReceiveBatch,
        direct: &mut DirectReceiver<'_>,
        wakes: &mut Wakes,
    ) -> bool {
        received.cache.refresh(&self.peers);
        let mut any = false;
        for place in 0..received.cache.rows.len() {
            let row = &mut received.cache.rows[place];
            if !row.has_more() {
                continue;
            }
            if self.deliver_next(row, direct, wakes) {
                any = true;
                if !row.has_more() {
                    continue;
                }
            }
            any |= self.read_row(place, received, direct, wakes);
        }
        any
    }

    /// Gives the next request of a row to `direct`, if `direct` waits for it and no other request is queued.
    #[inline]
    fn deliver_next(&self, row: &mut CachedRow, direct: &mut DirectReceiver<'_>, wakes: &mut Wakes) -> bool {
        let Some(service) = direct.service.filter(|_| direct.request.is_none()) else { return false };
        if service.is_waiting() || service.has_waiting_senders() || service.has_ended() {
            return false;
        }
        let is_call = matches!(service.id, ServiceId::Function(_));
        if is_call && self.server.draining.load(Relaxed) {
            return false;
        }
        let Some(mut request) = row.request_for(service) else { return false };
        if row.link.reader.poll_head() {
            self.post_line_head(row.peer, &row.link);
        }
        if !is_call {
            // Acknowledged at once; the sender of a message waits only until it is queued.
            request.answered = true;
            self.answer(&request.to, &[], wakes);
        }
        direct.request = Some(request);
        true
    }

    fn read_row(
        &self,
        place: usize,
        received: &mut ReceiveBatch,
        direct: &mut DirectReceiver<'_>,
        wakes: &mut Wakes,
    ) -> bool {
        let ReceiveBatch { requests, cache } = received;
        let row = &mut cache.rows[place];
        let (peer, link) = (row.peer, &row.link.clone());
        let read = {
            let inbound = &mut *lock(&link.inbound);
            let read = self.read_lines(peer, link, inbound, requests, TURN_REQUESTS_MAX);
            if !row.is_current(inbound) {
                row.refresh(inbound);
            }
            read
        };
        let any = !requests.is_empty();
        self.deliver(|id| cache.service(id), requests.drain(..), direct, wakes);
        self.poster.enforce(peer, read);
        any
    }

    /// Reads the requests of a row whose predecessors in the ring have been read.
    pub(super) fn read_lines(
        &self,
        peer: PeerId,
        link: &Link,
        inbound: &Inbound,
        requests: &mut Vec<DecodedRequest>,
        count_max: u32,
    ) -> Result<(), Violation> {
        let reader = &link.reader;
        for _ in 0..count_max {
            let Some(lines) = &inbound.lines else { break };
            let position = reader.position();
            let words = lines.window().load_words(offset_of(position)).expect("the row has that line");
            if words[0] as u16 != request_mark(position) {
                break;
            }
            let line = RequestLine::parse(&words).map_err(|_| Violation("a request is malformed"))?;
            if line.posted_before != reader.heard() {
                break;
            }
            reader.advance();
            requests.push(decode(link, inbound, &line)?);
        }
        if reader.poll_head()
            && let Some(head) = inbound.published_line_head(reader)
        {
            self.return_head(peer, head, Attempt::First);
        }
        Ok(())
    }

    /// Reads all requests in a peer's lines whose predecessors in the ring have been read. Called before and after a
    /// control message.
    pub(in crate::rpc) fn drain_lines(
        &self,
        peer: PeerId,
        link: &Arc<Link>,
        received: &mut ReceiveBatch,
        wakes: &mut Wakes,
    ) -> Result<(), Violation> {
        let ReceiveBatch { requests, cache } = received;
        cache.refresh(&self.peers);
        let read = self.read_lines(peer, link, &lock(&link.inbound), requests, REQUEST_LINES);
        self.deliver(|id| cache.service(id), requests.drain(..), &mut DirectReceiver::default(), wakes);
        read
    }
}

#[inline]
fn decode(link: &Link, inbound: &Inbound, line: &RequestLine) -> Result<DecodedRequest, Violation> {
    let caller =
        inbound.introduced(line.principal).ok_or(Violation("a request names an unknown principal"))?;
    let id = link.served.open(line.slot)?;
    let parameters =
        inbound.parameters.as_ref().ok_or(Violation("a request was sent before the handshake"))?;
    let (at, room) = parameters.slot(line.slot)?;
    let reply = LineReply { cancels: link.cancels(), id, at, room, bytes_max: line.reply_bytes_max };
    let input = Payload::Local(Bytes::Short(line.input_bytes, line.input));
    Ok(DecodedRequest { kind: line.kind, number: line.number, incoming: Incoming::of(caller, reply, input) })
}

/// Clears a row for the requests of a peer.
pub(in crate::rpc) fn clear_row(block: &Block) {
    block.window().fill(0, REQUEST_LINES_BYTES, 0).expect("the block is as long");
}

#[cfg(all(test, not(loom)))]
mod tests;
