//! Requests of peers in this node's rings. The polling thread copies each request out, then parses the copy.

use std::sync::Arc;

use halite_fabric::PeerId;
use halite_tier::rpc::line::REQUEST_LINES;
use halite_tier::rpc::{Input, RequestHeader, Violation};

use super::answer::ReplyTo;
use super::direct::DirectReceiver;
use super::incoming::{DecodedRequest, Incoming};
use super::input::{Bytes, Payload};
use super::table_cache::ReceiveBatch;
use crate::rpc::Rpc;
use crate::rpc::shared::{Attempt, Inbound, Link};
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

/// Bytes that are read first of a request: the header, name and input of a small one.
const FIRST_READ_BYTES: usize = 64;

impl Rpc {
    pub(in crate::rpc) fn handle_requests(
        &self,
        peer: PeerId,
        batch: impl Iterator<Item = u64>,
        received: &mut ReceiveBatch,
        wakes: &mut Wakes,
    ) -> Result<(), Violation> {
        let mut batch = batch.peekable();
        if batch.peek().is_none() {
            return Ok(());
        }
        let table = self.peers.read();
        let Some(peer_entry) = table.up(peer) else {
            // A refused or disconnected peer may still send.
            batch.for_each(drop);
            return Ok(());
        };
        // Only peers with a link may write to rings.
        let link = peer_entry.link.as_ref().ok_or(Violation("a request was sent without a ring"))?;
        let read = {
            let inbound = &mut *lock(&link.inbound);
            let read = batch.try_for_each(|offset| {
                // Lines posted before the request have landed before it.
                self.read_lines(peer, link, inbound, &mut received.requests, REQUEST_LINES)?;
                received.requests.push(read_request(link, inbound, offset)?);
                Ok(())
            });
            if let Some(head) = inbound.poll_head() {
                self.return_head(peer, head, Attempt::First);
            }
            read
        };
        self.deliver(
            |id| table.services.get(id),
            received.requests.drain(..),
            &mut DirectReceiver::default(),
            wakes,
        );
        read
    }
}

/// Copies a request out of its ring and parses the copy, because the peer may still change the ring.
fn read_request(link: &Arc<Link>, inbound: &mut Inbound, offset: u64) -> Result<DecodedRequest, Violation> {
    let (reader, ring) =
        inbound.ring.as_mut().ok_or(Violation("a request was sent after the connection ended"))?;
    let bytes_max = reader.arrive(offset)?;
    let mut first = [0; FIRST_READ_BYTES];
    let first = &mut first[..FIRST_READ_BYTES.min(bytes_max as usize)];
    ring.window().read(offset, first).expect("the reader keeps inside the ring");
    let header = RequestHeader::parse(first).map_err(|_| Violation("a request is malformed"))?;
    let len = header.request_bytes();
    if len > bytes_max {
        return Err(Violation("a request is longer than its place in the ring"));
    }
    let (name_at, name_bytes) = (header.len_bytes(), usize::from(header.name_bytes));
    let input_at = name_at + name_bytes;
    let mut long_name = Vec::new();
    let is_in_ring = header.input == Input::InRing;
    let input_bytes = if is_in_ring { header.input_bytes as usize } else { 0 };
    let name = match first.get(name_at..input_at) {
        Some(name) => name,
        None => {
            long_name.resize(name_bytes, 0);
            ring.window().read(offset + name_at as u64, &mut long_name).expect("the request is in the ring");
            &long_name
        }
    };
    let input = match first.get(input_at..input_at + input_bytes) {
        Some(bytes) => Bytes::from(bytes),
        None => {
            let mut bytes = Bytes::zeroed(input_bytes);
            let from = offset + input_at as u64;
            ring.window().read(from, bytes.as_mut_slice()).expect("the request is in the ring");
            bytes
        }
    };
    reader.advance(len);
    let caller = inbound.caller(link, name)?;
    link.reader.hear();
    if let Some(principal) = header.principal {
        inbound.introduce(principal, &caller)?;
    }
    let id = link.served.open(header.slot)?;
    let parameters = inbound.parameters.ok_or(Violation("a request was sent before the handshake"))?;
    let (at, room) = header.reply_at.map_or_else(|| parameters.slot(header.slot), Ok)?;
    let bytes_max = header.reply_bytes_max;
    let to = ReplyTo { caller, cancels: link.cancels(), id, at, room, bytes_max, by_line: false };
    let input = match header.input {
        Input::InRing => Payload::Local(input),
        Input::At(address) => Payload::Remote { address, len: header.input_bytes },
    };
    Ok(DecodedRequest { kind: header.kind, number: header.number, incoming: Incoming::new(to, input) })
}
