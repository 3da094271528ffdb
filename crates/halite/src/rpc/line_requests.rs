//! Short requests: put into lines at the server, and read from there by the thread that polls.
//!
//! What a request in the ring costs beyond its bytes (a look for its name, a slot, a post, an event) is done once for many: names
//! are introduced by an earlier request in the ring, and slots are lent to the link.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use halite_fabric::{
    Fabric, LINE_BYTES, LINE_WORDS, Local, Operation, PeerId, PostCause, RemoteAddress, WorkRequest,
};
use halite_tier::rpc::line::{INPUT_BYTES_MAX, REQUEST_LINES, index_of, request_mark};
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{Imm, Kind, RequestLine, SlotId, Violation};

use super::answer::beyond;
use super::input::{Bytes, Payload};
use super::link::{Caller, Inbound, LINE_HEAD_OFFSET, Link, Outbound, OutboundLines, PeerParameters, Row};
use super::memory::Block;
use super::reply_lines::Take;
use super::request::{LineUse, NotPosted, Posted, Request};
use super::service::{DecodedRequest, Hand, Incoming, LineTerms, Service, ServiceId};
use super::{Attempt, CALL_WORK, DEFAULT_SLOT_BYTES, Rpc};
use crate::rpc::peers::Peers;
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

/// Bytes of a row for requests.
pub(super) const REQUEST_LINES_BYTES: u64 = REQUEST_LINES as u64 * LINE_BYTES as u64;
/// How many slots a link borrows at a time, and at most.
const BORROWED: (usize, usize) = (8, 128);
/// Requests that are read from one row before the next one has its turn.
const TURN_REQUESTS_MAX: u32 = 32;

/// Requests on their way from a ring to their queues; kept by the polling thread, for the sake of its memory.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBatch {
    pub(super) requests: Vec<DecodedRequest>,
    pub(super) known: Known,
}

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
    /// What the peer has told of itself, once it has.
    theirs: Option<PeerParameters>,
    /// For whom its numbers stand, as far as they were used before.
    callers: Vec<Option<Arc<Caller>>>,
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
            if let Some(lines) = inbound.lines.clone() {
                let (theirs, callers) = (inbound.theirs, inbound.all_introduced().to_vec());
                self.rows.push(KnownRow { peer, link: link.clone(), lines, theirs, callers });
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
        let next = self.link.reader.position();
        first_word(&self.lines, next) as u16 == request_mark(next)
    }

    /// Whether it knows what the peer has told of itself, and of whom.
    fn knows_all(&self, inbound: &Inbound) -> bool {
        let known = self.callers.iter().filter(|caller| caller.is_some()).count();
        let told = inbound.all_introduced().iter().filter(|caller| caller.is_some()).count();
        self.theirs.is_some() == inbound.theirs.is_some() && known == told
    }

    /// Takes note of what the peer has told meanwhile.
    #[cold]
    fn refresh(&mut self, inbound: &Inbound) {
        self.theirs = inbound.theirs;
        self.callers = inbound.all_introduced().to_vec();
    }

    /// Reads the next request without a lock, if it is one that `service` gives to who waits.
    #[inline]
    fn request_for(&mut self, service: &Service) -> Option<Box<Incoming>> {
        let (link, theirs) = (&self.link, self.theirs.as_ref()?);
        let position = link.reader.position();
        let words = self.lines.window().load_words(offset_of(position)).expect("the row has that line");
        let line = RequestLine::parse(&words).ok()?;
        let is_of = ServiceId::of(line.kind, line.number) == service.id;
        // Room that is kept for a message is found by its number, in the service.
        let is_granted = matches!(line.kind, Kind::GrantedSend(_));
        if !is_of || is_granted || line.posted_before != link.reader.heard() {
            return None;
        }
        let caller = self.callers.get(usize::from(line.principal))?.as_ref()?;
        let (at, room) = theirs.slot(line.slot).ok()?;
        if !service.admits(&caller.principal) {
            return None;
        }
        let id = link.served.open(line.slot).ok()?;
        link.reader.advance();
        let input = Payload::Here(Bytes::Short(line.input_bytes, line.input));
        let terms = LineTerms { cancels: link.cancels(), id, at, room, bytes_max: line.reply_bytes_max };
        Some(Incoming::of(caller, terms, input))
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

    pub(super) fn post_put(
        &self,
        link: &Link,
        at: RemoteAddress,
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
        let remote = beyond(at, u64::from(index) * LINE_BYTES as u64);
        let operation = Operation::WriteImm { local, remote, imm: imm.emit() };
        self.post(peer, &[WorkRequest { id: CALL_WORK, operation, signalled: false, solicited: true }])
    }

    /// A lent slot that is not in use; `None` if there is none, nor any to borrow.
    #[inline]
    fn take_slot(&self, link: &Link, lines: &mut OutboundLines) -> Option<SlotId> {
        self.take_lent(lines).or_else(|| self.borrow(link, lines))
    }

    /// The first one while requests come one by one, for its line is at hand.
    #[inline]
    fn take_lent(&self, lines: &mut OutboundLines) -> Option<SlotId> {
        let first = *lines.slots.first()?;
        match self.reply_lines.take(first, lines.borrower) {
            Take::Taken(slot) => {
                lines.next = 1;
                Some(slot)
            }
            Take::Busy | Take::Gone => self.take_next(lines),
        }
    }

    /// Those that are under way together end in their order, most often: so the one behind the last is free first.
    fn take_next(&self, lines: &mut OutboundLines) -> Option<SlotId> {
        for place in (lines.next..lines.slots.len()).chain(0..lines.next) {
            let Some(index) = lines.slots.get(place) else { continue };
            match self.reply_lines.take(*index, lines.borrower) {
                Take::Taken(slot) => {
                    lines.next = place + 1;
                    return Some(slot);
                }
                Take::Busy => {}
                Take::Gone => {
                    lines.slots.swap_remove(place);
                    return self.take_next(lines);
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

    /// Gives the next request of a row to `hand`, if that waits for it and no other request does.
    #[inline]
    fn hand_over(&self, row: &mut KnownRow, hand: &mut Hand<'_>, wakes: &mut Wakes) -> bool {
        let Some(service) = hand.wanted.filter(|_| hand.given.is_none()) else { return false };
        if service.is_waiting() || service.is_crowded() || service.has_ended() {
            return false;
        }
        let is_call = matches!(service.id, ServiceId::Function(_));
        if is_call && self.draining.load(Relaxed) {
            return false;
        }
        let Some(mut given) = row.request_for(service) else { return false };
        if row.link.reader.poll_head() {
            self.tell_line_head(row.peer, &row.link);
        }
        if !is_call {
            // Its sender need not wait for more.
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
        self.enforce(peer, read);
        any
    }

    /// Reads the requests whose turn it is: those in the ring that were posted before them have been read.
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

    /// Takes in all requests of a peer that stand in lines and are to be heard now, beside a control message of its.
    pub(super) fn take_in_lines(
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

    #[cold]
    fn tell_line_head(&self, peer: PeerId, link: &Link) {
        let inbound = lock(&link.inbound);
        if let Some(head) = inbound.told_line_head(&link.reader) {
            self.return_head(peer, head, Attempt::First);
        }
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
    pub(super) fn new(fabric: &dyn Fabric, peer: PeerId, at: RemoteAddress, count: u32) -> Row {
        let is_direct = fabric.capabilities(peer).direct;
        let direct = is_direct.then(|| fabric.lines(peer, at, count)).flatten();
        Row { at, direct }
    }
}

impl OutboundLines {
    pub(super) fn new(row: Row, borrower: u32) -> OutboundLines {
        OutboundLines { writer: Default::default(), row, borrower, slots: Vec::new(), next: 0 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use halite_providers::{ShmConfig, ShmFabric};
    use halite_tier::ids::{Incarnation, NodeId, NodeIncarnation, Principal};
    use halite_tier::rpc::CallControl;

    use super::super::service::ServeOptions;
    use super::*;
    use crate::posted::InFlight;

    const PEER: PeerId = PeerId(7);
    const NUMBER: u32 = 5;

    /// A node with one function or port, and a peer that has introduced itself and principal 0.
    struct Served {
        rpc: Rpc,
        link: Arc<Link>,
        service: Arc<Service>,
    }

    impl Served {
        fn function() -> Served {
            Served::new(ServiceId::Function(NUMBER), ServeOptions::default())
        }

        fn new(id: ServiceId, options: ServeOptions) -> Served {
            // Nobody connects through the fabric, so that its directory may go.
            let dir = crate::runtime::scratch();
            let fabric = ShmFabric::open(ShmConfig::new(dir.path(), "one")).unwrap();
            let (posted, peers) = (Arc::new(InFlight::new(1)), Arc::new(Peers::new(NodeId(0))));
            let pins = Arc::new(halite_mem::Pins::new());
            let rpc = Rpc::new(fabric, posted, peers.clone(), pins, 1 << 16).unwrap();
            let link = rpc.make_link(PEER, NodeId(1)).unwrap();
            let incarnation = NodeIncarnation { node: NodeId(1), id: Incarnation(1) };
            peers.set_up(PEER, incarnation, Some(link.clone()));
            let owner = Principal("ada".into());
            let service = Arc::new(Service::new(id, owner, options));
            peers.write().services.insert(service.clone());
            let inbound = &mut *lock(&link.inbound);
            inbound.theirs = PeerParameters::parse(&handshake());
            let caller = inbound.caller(&link, b"ada").unwrap();
            inbound.introduce(0, &caller).unwrap();
            Served { rpc, link: link.clone(), service }
        }

        /// The peer puts a call, or a message, into its row, as the one at `position`.
        fn put(&self, position: u64, input: &[u8]) {
            let mut line = RequestLine {
                kind: if let ServiceId::Port(_) = self.service.id { Kind::Send } else { Kind::Call },
                number: NUMBER,
                slot: SlotId { index: position as u16, generation: 0 },
                principal: 0,
                posted_before: 0,
                reply_bytes_max: 0,
                input_bytes: input.len() as u8,
                input: [0; INPUT_BYTES_MAX],
            };
            line.input[..input.len()].copy_from_slice(input);
            let lines = lock(&self.link.inbound).lines.clone().unwrap();
            let words = line.emit(request_mark(position));
            lines.window().publish_words(offset_of(position), &words).unwrap();
        }

        /// What a receiver of the function is given in one look.
        fn poll(&self, received: &mut ReceiveBatch) -> Option<Vec<u8>> {
            let mut hand = Hand { wanted: Some(&self.service), given: None };
            assert!(self.rpc.poll_lines(received, &mut hand, &mut Wakes::default()));
            hand.given.map(|given| given.input.as_slice().to_vec())
        }

        /// Queues the next request, as if it had come by the ring.
        fn queue_next(&self) {
            let mut requests = Vec::new();
            let inbound = lock(&self.link.inbound);
            self.rpc.read_lines(PEER, &self.link, &inbound, &mut requests, 1).unwrap();
            drop(inbound);
            self.service.push_all(requests.into_iter());
        }

        fn next_queued(&self) -> Option<Vec<u8>> {
            let taken = self.service.try_take().ok().flatten()?;
            taken.incoming.map(|incoming| incoming.input.as_slice().to_vec())
        }
    }

    fn handshake() -> CallControl {
        CallControl::Handshake {
            ring_key: 0,
            ring_offset: 0,
            ring_bytes: 1 << 16,
            head_key: 0,
            head_offset: 0,
            slots_key: 0,
            slots_offset: 0,
            slot_bytes: DEFAULT_SLOT_BYTES as u32,
            slots: 1024,
            lines_key: 0,
            lines_offset: 0,
            replies_key: 0,
            replies_offset: 0,
        }
    }

    #[test]
    fn of_the_calls_that_have_come_the_first_is_handed_over_and_the_others_are_queued() {
        let (served, mut received) = (Served::function(), ReceiveBatch::default());
        (0..3).for_each(|position| served.put(position, &[position as u8]));
        assert_eq!(served.poll(&mut received), Some(vec![0]));
        assert_eq!([served.next_queued(), served.next_queued()], [Some(vec![1]), Some(vec![2])]);
        assert_eq!(served.link.reader.position(), 3);
    }

    #[test]
    fn a_call_is_not_handed_over_past_those_that_wait() {
        let (served, mut received) = (Served::function(), ReceiveBatch::default());
        served.put(0, b"one");
        served.queue_next();
        served.put(1, b"two");
        assert_eq!(served.poll(&mut received), None, "another call waits");
        let queued = [served.next_queued(), served.next_queued()];
        assert_eq!(queued, [Some(b"one".to_vec()), Some(b"two".to_vec())]);
    }

    #[test]
    fn a_message_is_handed_over_and_acknowledged_at_once() {
        let port = ServiceId::Port(NUMBER);
        let (served, mut received) = (Served::new(port, ServeOptions::default()), ReceiveBatch::default());
        served.put(0, b"one");
        assert_eq!(served.poll(&mut received), Some(b"one".to_vec()));
        let slot = SlotId { index: 0, generation: 0 };
        // Its slot may be used for the next one, as by a sender that has seen the answer.
        assert!(served.link.served.open(SlotId { generation: 1, ..slot }).is_ok());
    }

    #[test]
    fn a_message_is_not_handed_over_past_one_that_waits_for_room() {
        let options = ServeOptions { requests_max: 1, ..ServeOptions::default() };
        let (served, mut received) = (Served::new(ServiceId::Port(NUMBER), options), ReceiveBatch::default());
        (0..2).for_each(|position| served.put(position, &[position as u8]));
        served.queue_next();
        served.queue_next();
        // The sender of the second one is told that there is room now, which is kept for it.
        assert_eq!(served.next_queued(), Some(vec![0]));
        served.put(2, &[2]);
        assert_eq!(served.poll(&mut received), None, "it waits for room, behind the other");
        assert_eq!(served.next_queued(), None);
    }

    #[test]
    fn the_memory_of_a_call_that_is_over_serves_the_next_one_and_counts_no_reference_anew() {
        let (served, mut received) = (Served::function(), ReceiveBatch::default());
        served.put(0, b"a call of some bytes");
        let mut hand = Hand { wanted: Some(&served.service), given: None };
        served.rpc.poll_lines(&mut received, &mut hand, &mut Wakes::default());
        let mut first = hand.given.take().unwrap();
        first.answered = true;
        let (at, callers) = (&raw const *first, Arc::strong_count(&first.to.caller));
        first.recycle();
        served.put(1, b"next");
        served.rpc.poll_lines(&mut received, &mut hand, &mut Wakes::default());
        let next = hand.given.take().unwrap();
        assert_eq!((&raw const *next, Arc::strong_count(&next.to.caller)), (at, callers));
        assert_eq!((next.input.as_slice(), next.answered), (&b"next"[..], false));
    }

    #[test]
    fn requests_one_by_one_use_the_first_line_and_those_under_way_together_the_one_behind_the_last() {
        let rpc = Served::function().rpc;
        let row = Row { at: RemoteAddress { key: halite_fabric::Key(0), offset: 0 }, direct: None };
        let mut lines = OutboundLines::new(row, 5);
        for index in 0..4 {
            lines.slots.push(index);
            rpc.reply_lines.lend(SlotId { index, generation: 0 }, 5);
        }
        let take = |lines: &mut OutboundLines| rpc.take_lent(lines).map(|slot| slot.index);
        let free = |index, generation| rpc.reply_lines.free(SlotId { index, generation });
        assert_eq!(take(&mut lines), Some(0));
        free(0, 0);
        assert_eq!([(); 3].map(|()| take(&mut lines)), [Some(0), Some(1), Some(2)]);
        free(1, 0);
        assert_eq!(take(&mut lines), Some(3), "not the one that it looked past");
        assert_eq!(take(&mut lines), Some(1), "and then from the front");
        assert_eq!(take(&mut lines), None);
        // One that is the table's now is forgotten, and the others are found.
        rpc.reply_lines.leave(SlotId { index: 2, generation: 0 });
        free(3, 0);
        assert_eq!((take(&mut lines), lines.slots.len()), (Some(3), 3));
    }

    #[test]
    fn a_number_stands_for_one_principal() {
        let served = Served::function();
        let inbound = &mut *lock(&served.link.inbound);
        let again = inbound.caller(&served.link, b"ada").unwrap();
        assert!(inbound.introduce(0, &again).is_ok());
        let other = inbound.caller(&served.link, b"bob").unwrap();
        assert!(inbound.introduce(0, &other).is_err());
    }
}
