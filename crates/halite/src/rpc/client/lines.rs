//! Short requests, stored into a row of lines at the server.
//!
//! A request in the ring costs more than the transfer of its bytes: the server looks up the principal's name, and the
//! request needs a reply slot, a post and an event. A request in a line avoids these costs: an earlier request in the
//! ring has introduced the principal's name, and the link uses reply slots that it has borrowed.

use halite_fabric::LINE_WORDS;
use halite_tier::rpc::line::{INPUT_BYTES_MAX, index_of, request_mark};
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{Imm, RequestLine, SlotId};

use super::request::{LineUse, NotPosted, Posted, Request};
use super::slots::DEFAULT_SLOT_BYTES;
use crate::rpc::Rpc;
use crate::rpc::shared::{LINE_HEAD_OFFSET, Link, Outbound, OutboundLines, Row};

impl Rpc {
    /// Posts a request as a line. Returns `None` if the request must travel in the ring.
    #[inline]
    pub(super) fn post_line(
        &self,
        link: &Link,
        outbound: &mut Outbound,
        request: &Request<'_>,
    ) -> Option<Result<Posted, NotPosted>> {
        let principal = line_principal(outbound, request)?;
        let posted = self.put_request(link, outbound, request, principal)?;
        ring(outbound);
        Some(posted)
    }

    /// Posts `inputs` as lines, in order, until one is too long or finds no room. Returns the posted requests.
    pub(super) fn post_lines(
        &self,
        link: &Link,
        outbound: &mut Outbound,
        request: &Request<'_>,
        inputs: &[&[u8]],
    ) -> Vec<Posted> {
        let mut posted = Vec::new();
        for input in inputs {
            let request = Request { input, ..*request };
            let Some(principal) = line_principal(outbound, &request) else { break };
            match self.put_request(link, outbound, &request, principal) {
                Some(Ok(one)) => {
                    if posted.is_empty() {
                        posted.reserve_exact(inputs.len());
                    }
                    posted.push(one);
                }
                _ => break,
            }
        }
        if !posted.is_empty() {
            ring(outbound);
        }
        posted
    }

    #[inline]
    fn put_request(
        &self,
        link: &Link,
        outbound: &mut Outbound,
        request: &Request<'_>,
        principal: u16,
    ) -> Option<Result<Posted, NotPosted>> {
        let Outbound { lines, head, posted_before, .. } = outbound;
        let lines = lines.as_mut()?;
        let position = match place(lines, head) {
            Ok(position) => position,
            // The ring may have room.
            Err(NotPosted::Full) => return None,
            Err(not) => return Some(Err(not)),
        };
        let slot = self.client.take_lent(lines).or_else(|| self.client.borrow(link, lines))?;
        let posted = self.put_at(link, lines, position, request, principal, slot, *posted_before);
        if posted.is_err() {
            self.client.reply_lines.free(slot);
        }
        let by_line = LineUse { port: request.port(), deadline_ns: request.deadline_ns };
        Some(posted.map(|()| Posted { target: link.target, slot, by_line: Some(by_line) }))
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "all of them are in the line")]
    fn put_at(
        &self,
        link: &Link,
        lines: &mut OutboundLines,
        position: u64,
        request: &Request<'_>,
        principal: u16,
        slot: SlotId,
        posted_before: u16,
    ) -> Result<(), NotPosted> {
        let len = request.input.len();
        let mut input = [0; INPUT_BYTES_MAX];
        input[..len].copy_from_slice(request.input);
        let line = RequestLine {
            kind: request.kind,
            number: request.number,
            slot,
            principal,
            posted_before,
            reply_bytes_max: request.reply_bytes_max,
            input_bytes: len as u8,
            input,
        };
        let words = line.emit(request_mark(position));
        let used = LINE_WORDS - INPUT_BYTES_MAX / 8 + len.div_ceil(8);
        let (words, index) = (&words[..used], index_of(position));
        match &lines.row.direct {
            Some(direct) => direct.put(index, words),
            None => self.poster.post_to_row(link, lines.row.at, index, words, Imm::Lines)?,
        }
        lines.writer.take();
        Ok(())
    }
}

/// Returns the principal's number if the request can be a line; otherwise `None`.
#[inline]
fn line_principal(outbound: &Outbound, request: &Request<'_>) -> Option<u16> {
    let principal = request.principal_number?;
    let reply_bytes = u64::from(request.reply_bytes_max) + REPLY_HEADER_BYTES as u64;
    let has_place = !request.reply_in_place || reply_bytes <= DEFAULT_SLOT_BYTES;
    let fits = request.input.len() <= INPUT_BYTES_MAX && has_place;
    (fits && outbound.lines.is_some() && outbound.introduced.has(principal)).then_some(principal)
}

#[inline]
fn place(lines: &mut OutboundLines, head: &halite_mem::Window) -> Result<u64, NotPosted> {
    if let Some(position) = lines.writer.place() {
        return Ok(position);
    }
    let head = head.load_u64(LINE_HEAD_OFFSET).expect("the word is aligned");
    lines.writer.set_head(head).map_err(|_| NotPosted::Gone)?;
    lines.writer.place().ok_or(NotPosted::Full)
}

#[inline]
fn ring(outbound: &Outbound) {
    if let Some(OutboundLines { row: Row { direct: Some(lines), .. }, .. }) = &outbound.lines {
        lines.ring();
    }
}
