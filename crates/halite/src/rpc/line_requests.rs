//! Short requests: put into lines at the server, and read from there by the thread that polls.
//!
//! What a request in the ring costs beyond its bytes (a look for its name, a slot, a post, an event) is done once for many: names
//! are introduced by an earlier request in the ring, and slots are lent to the link.

use std::sync::Arc;

use halite_fabric::{Fabric, LINE_BYTES, LINE_WORDS, Local, Operation, PeerId, PostCause, WorkRequest};
use halite_tier::rpc::line::{INPUT_BYTES_MAX, REQUEST_LINES, index_of, request_mark};
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{Address, Imm, RequestLine, SlotId, Violation};

use super::answer::{ReplyTo, remote};
use super::arrivals::{DecodedRequest, ReceiveBatch};
use super::input::{Bytes, Payload};
use super::link::{Inbound, LINE_HEAD_OFFSET, Link, Outbound, OutboundLines, Row};
use super::memory::Block;
use super::reply_lines::Take;
use super::request::{LineUse, NotPosted, Posted, Request};
use super::service::{Incoming, Service, ServiceId};
use super::{Attempt, CALL_WORK, DEFAULT_SLOT_BYTES, Rpc};
use crate::driver::peers::Peers;
use crate::runtime::wait::{Wakes, lock};

/// Bytes of a row for requests.
pub(super) const REQUEST_LINES_BYTES: u64 = REQUEST_LINES as u64 * LINE_BYTES as u64;
/// How many slots a link borrows at a time, and at most.
const BORROWED: (usize, usize) = (8, 128);
/// Requests that are read from one row before the next one has its turn.
const TURN_REQUESTS_MAX: u32 = 32;

/// What the polling thread knows of the tables that all threads share, until those change.
#[derive(Debug, Default)]
pub(super) struct Known {
    version: u64,
    rows: Vec<KnownRow>,
    services: Vec<(ServiceId, Arc<Service>)>,
}

/// A row into which a peer writes.
#[derive(Debug)]
struct KnownRow {
    peer: PeerId,
    link: Arc<Link>,
    lines: Arc<Block>,
    /// Where the next request was to come when this was last looked at.
    next: u64,
}

/// A receiver that waits for a request, on the thread that polls.
#[derive(Default)]
pub(crate) struct Hand<'s> {
    pub(crate) wanted: Option<&'s Service>,
    pub(crate) given: Option<Box<Incoming>>,
}

impl Hand<'_> {
    /// Whether a request of the service can be given instead of queued.
    fn takes(&self, service: &Service) -> bool {
        self.given.is_none() && self.wanted.is_some_and(|wanted| std::ptr::eq(wanted, service))
    }
}

impl Known {
    #[inline]
    fn look(&mut self, peers: &Peers) {
        if self.version != peers.version() {
            self.look_again(peers);
        }
    }

    #[cold]
    fn look_again(&mut self, peers: &Peers) {
        // Read before the tables: who changes them meanwhile has this look once more.
        self.version = peers.version();
        let table = peers.read();
        self.services = table.services.all().map(|service| (service.id, service.clone())).collect();
        self.rows.clear();
        for (peer, link) in table.links_up() {
            let inbound = lock(&link.inbound);
            if let Some((reader, lines)) = &inbound.lines {
                let (lines, next) = (lines.clone(), reader.position());
                self.rows.push(KnownRow { peer, link: link.clone(), lines, next });
            }
        }
    }

    /// Services come in the order of their numbers.
    #[inline]
    fn service(&self, id: ServiceId) -> Option<&Arc<Service>> {
        match &self.services[..] {
            [(known, service)] => (*known == id).then_some(service),
            all => all.binary_search_by_key(&id, |(known, _)| *known).ok().map(|place| &all[place].1),
        }
    }
}

impl KnownRow {
    /// Whether a request may have come.
    #[inline]
    fn has_more(&self) -> bool {
        first_word(&self.lines, self.next) as u16 == request_mark(self.next)
    }
}

#[inline]
fn offset_of(position: u64) -> u64 {
    u64::from(index_of(position)) * LINE_BYTES as u64
}

#[inline]
fn first_word(lines: &Block, position: u64) -> u64 {
    lines.window().load_u64(offset_of(position)).expect("the row has that line")
}

/// From the caller.
impl Rpc {
    /// Posts a request as a line; `None` if it is to go by the ring.
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

    /// Posts the first of `inputs` that are short enough, as far as there is room for them.
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
        let slot = self.take_slot(link, lines)?;
        let posted = self.put_at(link, lines, position, request, principal, slot, *posted_before);
        if posted.is_err() {
            self.reply_lines.free(slot);
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
        self.put(link, &lines.row, index_of(position), &words[..used], Imm::Lines).map_err(|cause| {
            match cause {
                PostCause::QueueFull => NotPosted::Full,
                PostCause::NotConnected => NotPosted::Gone,
                PostCause::Malformed => unreachable!("a line is short"),
            }
        })?;
        lines.writer.take();
        Ok(())
    }

    /// Puts a line into a row at the peer.
    #[inline]
    pub(super) fn put(
        &self,
        link: &Link,
        row: &Row,
        index: u32,
        words: &[u64],
        imm: Imm,
    ) -> Result<(), PostCause> {
        match &row.direct {
            Some(lines) => {
                lines.put(index, words);
                Ok(())
            }
            None => self.post_put(link, row.at, index, words, imm),
        }
    }

    fn post_put(
        &self,
        link: &Link,
        at: Address,
        index: u32,
        words: &[u64],
        imm: Imm,
    ) -> Result<(), PostCause> {
        let Some(peer) = link.peer() else { unreachable!("this node itself needs no lines") };
        let mut bytes = [0; LINE_BYTES];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        let local = Local::Inline(&bytes[..size_of_val(words)]);
        let remote = remote(at, u64::from(index) * LINE_BYTES as u64);
        let operation = Operation::WriteImm { local, remote, imm: imm.emit() };
        self.post(peer, &[WorkRequest { id: CALL_WORK, operation, signalled: false, solicited: true }])
    }

    /// A lent slot that is not in use; `None` if there is none, nor any to borrow.
    #[inline]
    fn take_slot(&self, link: &Link, lines: &mut OutboundLines) -> Option<SlotId> {
        self.take_lent(lines).or_else(|| self.borrow(link, lines))
    }

    #[inline]
    fn take_lent(&self, lines: &mut OutboundLines) -> Option<SlotId> {
        let mut place = 0;
        while let Some(index) = lines.slots.get(place) {
            match self.reply_lines.take(*index, lines.borrower) {
                Take::Taken(slot) => return Some(slot),
                Take::Busy => place += 1,
                Take::Gone => {
                    lines.slots.swap_remove(place);
                }
            }
        }
        None
    }

    #[cold]
    fn borrow(&self, link: &Link, lines: &mut OutboundLines) -> Option<SlotId> {
        self.collect_orphans();
        {
            let mut slots = lock(&self.slots);
            for _ in 0..BORROWED.0.min(BORROWED.1.saturating_sub(lines.slots.len())) {
                let Some(slot) = slots.lend(link.target) else { break };
                // It may have been lent to this link before.
                lines.slots.retain(|known| *known != slot.index);
                lines.slots.push(slot.index);
                self.reply_lines.lend(slot, lines.borrower);
            }
        }
        self.take_lent(lines)
    }

    /// A link is over: its slots come back, those in use later.
    pub(super) fn end_lines(&self, lines: OutboundLines) {
        lock(&self.orphans).extend(lines.slots.iter().map(|index| (*index, lines.borrower)));
        self.collect_orphans();
    }

    /// Takes back what links that are over have borrowed, as far as it is not in use.
    fn collect_orphans(&self) {
        let mut orphans = lock(&self.orphans);
        if orphans.is_empty() {
            return;
        }
        let mut slots = lock(&self.slots);
        orphans.retain(|(index, borrower)| match self.reply_lines.take(*index, *borrower) {
            Take::Taken(slot) => {
                self.reply_lines.leave(slot);
                slots.take_back(slot);
                false
            }
            Take::Busy => true,
            Take::Gone => false,
        });
    }
}

/// The number of who asks, if the request can be a line.
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

/// At the server.
impl Rpc {
    /// Takes in the short requests that have come, of which the first for `hand` goes there.  Whether there were any.
    #[inline]
    pub(crate) fn poll_lines(
        &self,
        intake: &mut ReceiveBatch,
        hand: &mut Hand<'_>,
        wakes: &mut Wakes,
    ) -> bool {
        intake.known.look(&self.peers);
        let mut any = false;
        for place in 0..intake.known.rows.len() {
            if intake.known.rows[place].has_more() {
                any |= self.take_in(place, intake, hand, wakes);
            }
        }
        any
    }

    fn take_in(
        &self,
        place: usize,
        intake: &mut ReceiveBatch,
        hand: &mut Hand<'_>,
        wakes: &mut Wakes,
    ) -> bool {
        let ReceiveBatch { asked, known } = intake;
        let row = &mut known.rows[place];
        let (peer, link) = (row.peer, &row.link);
        let read = {
            let inbound = &mut *lock(&link.inbound);
            let read = self.read_lines(peer, link, inbound, asked, TURN_REQUESTS_MAX);
            if let Some((reader, _)) = &inbound.lines {
                row.next = reader.position();
            }
            read
        };
        let any = !asked.is_empty();
        self.deliver(|id| known.service(id), asked.drain(..), hand, wakes);
        self.enforce(peer, read);
        any
    }

    /// Reads the requests whose turn it is: those in the ring that were posted before them have been read.
    pub(super) fn read_lines(
        &self,
        peer: PeerId,
        link: &Arc<Link>,
        inbound: &mut Inbound,
        asked: &mut Vec<DecodedRequest>,
        count_max: u32,
    ) -> Result<(), Violation> {
        for _ in 0..count_max {
            let Some((reader, lines)) = &mut inbound.lines else { break };
            let position = reader.position();
            let words = lines.window().load_words(offset_of(position)).expect("the row has that line");
            if words[0] as u16 != request_mark(position) {
                break;
            }
            let line = RequestLine::parse(&words).map_err(|_| Violation("not a request"))?;
            if line.posted_before != inbound.posted_before {
                break;
            }
            reader.advance();
            asked.push(decode(link, inbound, &line)?);
        }
        self.return_line_head(peer, inbound);
        Ok(())
    }

    /// Takes in all requests of a peer that stand in lines and are to be heard now, beside a note of its.
    pub(super) fn take_in_lines(
        &self,
        peer: PeerId,
        link: &Arc<Link>,
        intake: &mut ReceiveBatch,
        wakes: &mut Wakes,
    ) -> Result<(), Violation> {
        let ReceiveBatch { asked, known } = intake;
        known.look(&self.peers);
        let read = self.read_lines(peer, link, &mut lock(&link.inbound), asked, REQUEST_LINES);
        self.deliver(|id| known.service(id), asked.drain(..), &mut Hand::default(), wakes);
        read
    }

    #[inline]
    fn return_line_head(&self, peer: PeerId, inbound: &mut Inbound) {
        let is_due = inbound.lines.as_mut().is_some_and(|(reader, _)| reader.poll_head());
        if is_due && let Some(head) = inbound.told_line_head() {
            self.return_head(peer, head, Attempt::First);
        }
    }
}

#[inline]
fn decode(link: &Arc<Link>, inbound: &mut Inbound, line: &RequestLine) -> Result<DecodedRequest, Violation> {
    let caller = inbound.introduced(line.principal).ok_or(Violation("a request of nobody"))?.clone();
    let id = inbound.served.open(line.slot)?;
    let theirs = inbound.theirs.as_ref().ok_or(Violation("a request before the handshake"))?;
    let (at, room) = theirs.slot(line.slot)?;
    let bytes_max = line.reply_bytes_max;
    let to = ReplyTo { caller, cancels: link.cancels(), id, at, room, bytes_max, by_line: true };
    let input = Payload::Here(Bytes::Short(line.input_bytes, line.input));
    Ok(DecodedRequest { kind: line.kind, number: line.number, incoming: Incoming::new(to, input) })
}

impl Service {
    /// Gives a call to `hand`, if that waits for it and no other call does.
    #[inline]
    pub(super) fn give(&self, asked: DecodedRequest, hand: &mut Hand<'_>) -> Option<DecodedRequest> {
        if !hand.takes(self) || self.is_waiting() || !self.gives(&asked) {
            return Some(asked);
        }
        hand.given = Some(asked.incoming);
        None
    }
}

/// A row for the requests of a peer, in which nothing is.
pub(super) fn clear(block: &Block) {
    block.window().fill(0, REQUEST_LINES_BYTES, 0).expect("the block is as long");
}

impl Row {
    /// Lines in the memory of `peer`.
    pub(super) fn new(fabric: &dyn Fabric, peer: PeerId, at: Address, count: u32) -> Row {
        let is_direct = fabric.capabilities(peer).direct;
        let direct = is_direct.then(|| fabric.lines(peer, remote(at, 0), count)).flatten();
        Row { at, direct }
    }
}

impl OutboundLines {
    pub(super) fn new(row: Row, borrower: u32) -> OutboundLines {
        OutboundLines { writer: Default::default(), row, borrower, slots: Vec::new() }
    }
}
