//! Short requests of peers: read from their lines by the thread that polls.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use halite_fabric::{LINE_BYTES, PeerId};
use halite_tier::rpc::line::{REQUEST_LINES, request_mark};
use halite_tier::rpc::{RequestLine, Violation};

use super::hand::Hand;
use super::incoming::{DecodedRequest, Incoming, LineTerms, ServiceId};
use super::input::{Bytes, Payload};
use super::known::{KnownRow, ReceiveBatch, offset_of};
use crate::rpc::Rpc;
use crate::rpc::shared::{Attempt, Block, Inbound, Link};
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

/// Bytes of a row for requests.
pub(in crate::rpc) const REQUEST_LINES_BYTES: u64 = REQUEST_LINES as u64 * LINE_BYTES as u64;

/// Most requests that are read from one row before the next row has its turn.
const TURN_REQUESTS_MAX: u32 = 32;

impl Rpc {
    /// Takes in the short requests that have come; the first for `hand` goes there.  Returns true if there were any.
    #[inline]
    pub(crate) fn poll_lines(
        &self,
        received: &mut ReceiveBatch,
        hand: &mut Hand<'_>,
        wakes: &mut Wakes,
    ) -> bool {
        received.known.look(&self.peers);
        let mut any = false;
        for place in 0..received.known.rows.len() {
            let row = &mut received.known.rows[place];
            if !row.has_more() {
                continue;
            }
            if self.hand_over(row, hand, wakes) {
                any = true;
                if !row.has_more() {
                    continue;
                }
            }
            any |= self.take_in(place, received, hand, wakes);
        }
        any
    }

    /// Hands the next request of a row to `hand`, if that waits for it and no other request is queued.
    #[inline]
    fn hand_over(&self, row: &mut KnownRow, hand: &mut Hand<'_>, wakes: &mut Wakes) -> bool {
        let Some(service) = hand.wanted.filter(|_| hand.given.is_none()) else { return false };
        if service.is_waiting() || service.is_crowded() || service.has_ended() {
            return false;
        }
        let is_call = matches!(service.id, ServiceId::Function(_));
        if is_call && self.server.draining.load(Relaxed) {
            return false;
        }
        let Some(mut given) = row.request_for(service) else { return false };
        if row.link.reader.poll_head() {
            self.tell_line_head(row.peer, &row.link);
        }
        if !is_call {
            // The sender of a message need not wait for more.
            given.answered = true;
            self.answer(&given.to, &[], wakes);
        }
        hand.given = Some(given);
        true
    }

    fn take_in(
        &self,
        place: usize,
        received: &mut ReceiveBatch,
        hand: &mut Hand<'_>,
        wakes: &mut Wakes,
    ) -> bool {
        let ReceiveBatch { requests, known } = received;
        let row = &mut known.rows[place];
        let (peer, link) = (row.peer, &row.link.clone());
        let read = {
            let inbound = &mut *lock(&link.inbound);
            let read = self.read_lines(peer, link, inbound, requests, TURN_REQUESTS_MAX);
            if !row.knows_all(inbound) {
                row.refresh(inbound);
            }
            read
        };
        let any = !requests.is_empty();
        self.deliver(|id| known.service(id), requests.drain(..), hand, wakes);
        self.poster.enforce(peer, read);
        any
    }

    /// Reads the requests whose turn it is: what was posted to the ring before them has been read.
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
            let line = RequestLine::parse(&words).map_err(|_| Violation("not a request"))?;
            if line.posted_before != reader.heard() {
                break;
            }
            reader.advance();
            requests.push(decode(link, inbound, &line)?);
        }
        if reader.poll_head()
            && let Some(head) = inbound.told_line_head(reader)
        {
            self.return_head(peer, head, Attempt::First);
        }
        Ok(())
    }

    /// Takes in all requests in the lines of a peer whose turn it is, before or after a control message of the peer.
    pub(in crate::rpc) fn take_in_lines(
        &self,
        peer: PeerId,
        link: &Arc<Link>,
        received: &mut ReceiveBatch,
        wakes: &mut Wakes,
    ) -> Result<(), Violation> {
        let ReceiveBatch { requests, known } = received;
        known.look(&self.peers);
        let read = self.read_lines(peer, link, &lock(&link.inbound), requests, REQUEST_LINES);
        self.deliver(|id| known.service(id), requests.drain(..), &mut Hand::default(), wakes);
        read
    }
}

#[inline]
fn decode(link: &Link, inbound: &Inbound, line: &RequestLine) -> Result<DecodedRequest, Violation> {
    let caller = inbound.introduced(line.principal).ok_or(Violation("a request of nobody"))?;
    let id = link.served.open(line.slot)?;
    let theirs = inbound.theirs.as_ref().ok_or(Violation("a request before the handshake"))?;
    let (at, room) = theirs.slot(line.slot)?;
    let terms = LineTerms { cancels: link.cancels(), id, at, room, bytes_max: line.reply_bytes_max };
    let input = Payload::Here(Bytes::Short(line.input_bytes, line.input));
    Ok(DecodedRequest { kind: line.kind, number: line.number, incoming: Incoming::of(caller, terms, input) })
}

/// Clears a row for the requests of a peer.
pub(in crate::rpc) fn clear_row(block: &Block) {
    block.window().fill(0, REQUEST_LINES_BYTES, 0).expect("the block is as long");
}

#[cfg(all(test, not(loom)))]
mod tests;
