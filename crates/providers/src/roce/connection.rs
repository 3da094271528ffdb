//! A connection: queue pairs to one peer, one for each lane. In a stateless connection ([`super::stateless`]), these
//! only probe the path.
//!
//! A thread queues an event of a peer while it holds the lock of the lane that caused the event. A thread queues the
//! disconnected event while it holds the locks of all lanes, so this event comes last.

mod stateless;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};

use halite_fabric::{
    Backlog, Completion, CompletionKind, Event, Key, Local, Operation, PeerId, PostCause, Status, WorkId,
    WorkRequest,
};
use halite_mem::Window;
use halite_rnic::room::Share;
use halite_rnic::stateless::{Lane as StatelessLane, ServerClock};
use halite_rnic::wire::{Flow, Packet, Psn, Qpn};
use halite_rnic::{
    Cause, Config, Held, Mtu, Operation as RnicOperation, PostError, QueuePair, Remote, Request, Source,
    State, Status as RnicStatus,
};

use super::events::Events;
use super::greeting::Offer;
use super::memory::{Registered, View};
use super::ports::PortUse;
use super::stateless::agree;
use super::translated::{AddressChanged, Translated};
use super::{INLINE_BYTES_MAX, LANES, SEND_BYTES_MAX, lock, read};

/// A connection to a peer; see the header of this file.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: PeerId,
    /// Token of the connection's control socket. When this socket hangs up, the peer has ended the connection.
    pub(super) token: u64,
    pub(super) address: SocketAddr,
    /// Source address and port of packets to the peer.
    pub(super) own_address: SocketAddr,
    /// Assignment of the peer to the UDP socket that has `own_address`.
    pub(super) port_use: Arc<PortUse>,
    /// Maximum payload of a packet, negotiated with the peer.
    pub(super) mtu: Mtu,
    /// True if both ends use selective repeat, negotiated with the peer.
    pub(super) selective: bool,
    /// Queue pair numbers of the lanes, and then those that the offer reserved for more lanes.
    qpns: Vec<Qpn>,
    /// Queue pair numbers of the peer's lanes.
    pub(super) their_qpns: Vec<Qpn>,
    /// The estimate of the responder's clock that stateless lanes share; `None` if the lanes are stateful.
    clock: Option<Mutex<ServerClock>>,
    /// The reason why the lanes are stateless or stateful.
    responder_reason: &'static str,
    outwards: Flow,
    inwards: Flow,
    /// Salt of local keys in the peer's packets.
    salt: u32,
    /// Salt of the peer's keys in local packets.
    peer_salt: u32,
    lanes: Box<[Mutex<Lane>]>,
    /// Data of the connected event, until both ends are ready: the peer's hello, and the dialled address.
    connected_data: Mutex<Option<(Vec<u8>, Option<String>)>>,
    /// True once both ends are ready and the connected event is queued.
    is_up: AtomicBool,
    /// True once the connection is closing: it refuses posts, and ends when all posted requests have completed.
    is_closing: AtomicBool,
    has_ended: AtomicBool,
    /// True if this end dialled another host, which has not yet answered a probe.
    awaits_answer: AtomicBool,
    /// True once the dialling end, on another host, has sent Ready.
    is_ready: AtomicBool,
    /// True once a path probe or an answer to one has arrived.
    is_probed: AtomicBool,
    /// Events before the connection is up; at most one per outstanding request of the peer.
    early_events: Mutex<Vec<Event>>,
    /// Unacknowledged packets that the peer sent in its last message.
    last_packets: Mutex<Vec<Vec<u8>>>,
    /// The first known reason for the end of the connection.
    end_reason: Mutex<Option<String>>,
    /// True once path MTU discovery has started.
    has_started_path_discovery: AtomicBool,
    /// True once the lanes know the duration of the handshake.
    has_taken_round_trip: AtomicBool,
    translated: Translated,
    /// Time of the last packet from the peer, in ns.
    pub(super) heard_ns: AtomicU64,
    /// Time in ns at which this end learned the second of the two offers.
    pub(super) offers_known_ns: u64,
}

/// A queue pair, and references to the memory that its requests use.
#[derive(Debug)]
pub(super) struct Lane {
    qp: QueuePair,
    held: Held<Window>,
    /// Carries the requests in place of the queue pair, if the connection is stateless.
    stateless: Option<StatelessLane>,
    /// Number of the peer's requests on a stateless lane that this end answered from its record of effects.
    duplicates: u64,
    /// Time in ns at which the responder's record of effects may be swept; `None` once a timer is set.
    record_due_ns: Option<u64>,
    /// Requests that wait for their flow's turn.
    backlog: Backlog<Waiting>,
    /// Ids of the writes that leave in parts and have not completed. True if the completion has been reported, because
    /// a part has failed; then the other parts complete, too.
    divided: HashMap<u64, bool>,
    /// True after a post failed because the queue was full.
    awaits_room: bool,
    timeouts: Timeouts,
    /// Number of the first packet, which is random.
    first_psn: Psn,
    /// Time until which packets are sent one by one instead of in trains, in ns.
    singly_until_ns: u64,
    /// Number of trains that the system refused, plus the number of times that the path seemed to drop trains.
    trains_refused: u64,
}

/// A request that waits for its flow's turn, and the window of the local memory that it uses.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) window: Option<Window>,
}

impl Waiting {
    /// Returns true if the request may leave in parts: it is a write whose completion is reported.
    fn is_divisible(&self) -> bool {
        let is_write = matches!(
            self.request.operation,
            RnicOperation::Write { source: Source::Registered { .. }, imm: None, .. }
        );
        is_write && self.request.signalled
    }

    /// Removes the first `bytes` bytes of a divisible request. Returns them as a request that completes only if it
    /// fails.
    fn divide(&mut self, bytes: u64) -> Waiting {
        let mut part = self.clone();
        part.request.signalled = false;
        if let (
            RnicOperation::Write { source: Source::Registered { len: part_len, .. }, .. },
            RnicOperation::Write { source: Source::Registered { local, len }, remote, .. },
        ) = (&mut part.request.operation, &mut self.request.operation)
        {
            *part_len = (bytes as u32).min(*len);
            local.address += u64::from(*part_len);
            remote.address += u64::from(*part_len);
            *len -= *part_len;
        }
        part
    }
}

/// Arguments that all steps of a lane take.
#[derive(Clone, Copy)]
pub(super) struct LaneContext<'a> {
    pub(super) now_ns: u64,
    pub(super) registered: &'a Registered,
}

/// The results of one or more steps of a lane.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// True if one of the new events rings the doorbell.
    pub(super) rings: bool,
    /// What ended the queue pair; `None` if it has not ended.
    pub(super) broken: Option<Cause>,
}

impl Connection {
    pub(super) fn new(
        peer: PeerId,
        token: u64,
        config: &Config,
        own_offer: &Offer,
        peer_offer: &Offer,
        port_use: Arc<PortUse>,
        now_ns: u64,
    ) -> Connection {
        let (is_stateless, responder_reason) = agree(own_offer, peer_offer);
        let lane_count = if is_stateless { LANES } else { own_offer.lanes_with(peer_offer) };
        let lane = |index: usize| {
            let (own, peer) = (own_offer.lane(index), peer_offer.lane(index));
            let mut qp = QueuePair::new(config.clone(), own.qpn, own.psn);
            qp.ready_to_receive(peer.qpn, peer.psn);
            qp.ready_to_send();
            // The fabric delivers arrivals at once, so there is always room.
            qp.add_receives(u32::MAX);
            Mutex::new(Lane {
                qp,
                held: Held::default(),
                stateless: is_stateless.then(StatelessLane::default),
                duplicates: 0,
                record_due_ns: None,
                backlog: Backlog::default(),
                divided: HashMap::new(),
                awaits_room: false,
                timeouts: Timeouts::default(),
                first_psn: own.psn,
                singly_until_ns: 0,
                trains_refused: 0,
            })
        };
        Connection {
            peer,
            token,
            address: peer_offer.address,
            own_address: own_offer.address,
            port_use,
            mtu: config.mtu,
            selective: config.selective,
            qpns: own_offer.qpns(),
            their_qpns: (0..lane_count).map(|index| peer_offer.lane(index).qpn).collect(),
            clock: is_stateless.then(Mutex::default),
            responder_reason,
            outwards: Flow::new(own_offer.address, peer_offer.address),
            inwards: Flow::new(peer_offer.address, own_offer.address),
            salt: own_offer.salt,
            peer_salt: peer_offer.salt,
            lanes: (0..lane_count).map(lane).collect(),
            connected_data: Mutex::new(None),
            is_up: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            awaits_answer: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            is_probed: AtomicBool::new(false),
            early_events: Mutex::default(),
            last_packets: Mutex::default(),
            end_reason: Mutex::default(),
            has_started_path_discovery: AtomicBool::new(false),
            has_taken_round_trip: AtomicBool::new(false),
            translated: Translated::default(),
            heard_ns: AtomicU64::new(now_ns),
            offers_known_ns: now_ns,
        }
    }

    /// Returns the queue pair numbers of the lanes, followed by others that the offer reserved.
    pub(super) fn qpns(&self) -> &[Qpn] {
        &self.qpns
    }

    pub(super) fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    pub(super) fn is_stateless(&self) -> bool {
        self.clock.is_some()
    }

    /// Returns true if the lanes are stateless, and the reason.
    pub(super) fn responder(&self) -> (bool, &'static str) {
        (self.is_stateless(), self.responder_reason)
    }

    pub(super) fn lane(&self, index: usize) -> MutexGuard<'_, Lane> {
        lock(&self.lanes[index])
    }

    /// Locks one lane after the other.
    pub(super) fn lanes(&self) -> impl Iterator<Item = MutexGuard<'_, Lane>> {
        self.lanes.iter().map(lock)
    }

    /// Verifies a packet. Returns the packet without its ICRC, if the ICRC is valid and the packet comes from the
    /// address that the peer offered; otherwise `None`.
    pub(super) fn open<'a>(&self, from: SocketAddr, packet: &'a [u8]) -> Option<&'a [u8]> {
        let body = self.inwards.open(packet).ok()?;
        if from == self.address {
            return Some(body);
        }
        self.translated.record(from);
        None
    }

    /// Returns the address change if packets of the peer came from another address than the peer offered; otherwise
    /// `None`.
    pub(super) fn address_change(&self) -> Option<AddressChanged> {
        self.translated.address_change(self.address)
    }

    /// Stores the data of the connected event until both ends are ready.
    pub(super) fn store_hello(&self, hello: Vec<u8>, dialled: Option<String>) {
        *lock(&self.connected_data) = Some((hello, dialled));
    }

    /// Marks both ends as ready, unless the connection has ended. The first call returns the data of the connected
    /// event, later calls `None`.
    pub(super) fn bring_up(&self) -> Option<(Vec<u8>, Option<String>)> {
        let mut connected_data = lock(&self.connected_data);
        if self.is_up() || self.has_ended.load(Relaxed) {
            return None;
        }
        // Pairs with the Acquire in is_up().
        self.is_up.store(true, Release);
        connected_data.take()
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Acquire)
    }

    /// Records that the dialling end has sent Ready. Returns true if a path probe of that end has arrived, too.
    pub(super) fn on_ready(&self) -> bool {
        // SeqCst: if two threads record one condition each, the later one sees both.
        self.is_ready.store(true, SeqCst);
        self.is_probed.load(SeqCst)
    }

    /// Records that a path probe or an answer to one has arrived. Returns true if the dialling end has sent Ready, too.
    pub(super) fn on_probe(&self) -> bool {
        self.is_probed.store(true, SeqCst);
        self.is_ready.load(SeqCst)
    }

    /// Returns the queue for the connection's events: `events`, or the early events, which wait until the connected
    /// event is in `events`.
    fn queue<'q>(&'q self, events: &'q Events) -> MutexGuard<'q, Vec<Event>> {
        // The connection comes up under this lock.
        let events = events.lock();
        if self.is_up() { events } else { lock(&self.early_events) }
    }

    pub(super) fn take_early_events(&self) -> Vec<Event> {
        std::mem::take(&mut *lock(&self.early_events))
    }

    /// Returns true once, when path MTU discovery must start: the connection is up, or it comes up only after the peer
    /// has answered a path probe.
    pub(super) fn starts_path_discovery(&self) -> bool {
        (self.is_up() || self.awaits_answer()) && !self.has_started_path_discovery.swap(true, Relaxed)
    }

    /// Returns an upper bound of the round trip in ns, once, when the connection is up: the time since this end learned
    /// both offers, because the peer has answered this end since.
    pub(super) fn take_round_trip_ns(&self, now_ns: u64) -> Option<u64> {
        let is_first = self.is_up() && !self.has_taken_round_trip.swap(true, Relaxed);
        is_first.then(|| now_ns.saturating_sub(self.offers_known_ns))
    }

    /// Keeps the connection down until the peer answers a path probe.
    pub(super) fn await_answer(&self) {
        self.awaits_answer.store(true, Relaxed);
    }

    pub(super) fn awaits_answer(&self) -> bool {
        // Relaxed: the flag publishes no other memory. The lock of the control decides which connection comes up.
        self.awaits_answer.load(Relaxed) && !self.is_up()
    }

    /// Returns the smallest path MTU of the lanes if all lanes have finished path MTU discovery; otherwise `None`.
    pub(super) fn found_path(&self) -> Option<Mtu> {
        let mtus = self.lanes().map(|lane| lane.qp.knows_path().then(|| lane.qp.path_mtu()));
        mtus.collect::<Option<Vec<Mtu>>>()?.into_iter().min()
    }

    pub(super) fn start_closing(&self) {
        self.is_closing.store(true, Release);
    }

    pub(super) fn is_closing(&self) -> bool {
        // Pairs with the Release in start_closing().
        self.is_closing.load(Acquire)
    }

    /// Returns true if no posted request is outstanding on any lane.
    pub(super) fn is_idle(&self) -> bool {
        self.lanes().all(|lane| lane.outstanding() == 0)
    }

    /// Returns the packets that the peer still needs to execute all posted requests. Returns `None` if the packets of a
    /// lane exceed `bytes_max` bytes, or if a request needs a completion; see [`QueuePair::rest`].
    pub(super) fn unacknowledged_packets(
        &self,
        registered: &Registered,
        bytes_max: usize,
    ) -> Option<Vec<Vec<u8>>> {
        let mut packets = Vec::new();
        for lane in self.lanes() {
            let has_stateless = lane.stateless.as_ref().is_some_and(|stateless| stateless.posted() > 0);
            if !lane.backlog.is_empty() || has_stateless {
                return None;
            }
            let view = View { registered, salt: self.salt, held: &lane.held };
            packets.extend(lane.qp.rest(&view, bytes_max)?);
        }
        Some(packets)
    }

    /// Records the reason why the connection ends, unless an earlier reason is known.
    pub(super) fn record_end_reason(&self, reason: String) {
        lock(&self.end_reason).get_or_insert(reason);
    }

    pub(super) fn take_end_reason(&self) -> Option<String> {
        lock(&self.end_reason).take()
    }

    /// Stores the packets of the peer's last message.
    pub(super) fn store_last_packets(&self, packets: Vec<Vec<u8>>) {
        *lock(&self.last_packets) = packets;
    }

    /// Handles the packets of the peer's last message, unless the connection has ended.
    pub(super) fn handle_last_packets(&self, context: LaneContext<'_>, events: &Events) {
        let mut lanes: Vec<_> = self.lanes().collect();
        if self.has_ended.load(Relaxed) {
            return;
        }
        let mut outcome = Outcome::default();
        for packet in std::mem::take(&mut *lock(&self.last_packets)) {
            let Ok(packet) = Packet::parse(&packet) else { continue };
            // Reserved numbers have no lane.
            let mut qpns = self.qpns.iter().take(lanes.len());
            let Some(index) = qpns.position(|qpn| *qpn == packet.dest_qp) else { continue };
            lanes[index].handle_packet(self, context, context.now_ns, &packet);
            lanes[index].drain(self, events, &mut outcome);
        }
    }

    /// Ends the connection, unless it has already ended: completes all posted requests, and stops the peer's access to
    /// memory. Queues the last events; the disconnected event is the last one of the peer. `exited` is true if the
    /// peer's process has exited.
    pub(super) fn end(&self, exited: bool, events: &Events) -> bool {
        let mut lanes: Vec<_> = self.lanes().collect();
        let was_up = {
            // The lock orders this with `bring_up`, which does nothing after the end.
            let _connected_data = lock(&self.connected_data);
            if self.has_ended.swap(true, Relaxed) {
                return false;
            }
            self.is_up()
        };
        let mut outcome = Outcome::default();
        for lane in &mut lanes {
            lane.qp.close();
            if let Some(stateless) = &mut lane.stateless {
                stateless.close();
            }
            lane.awaits_room = false;
            lane.drain(self, events, &mut outcome);
            lane.flush_backlog(self, events);
        }
        if was_up {
            let peer = self.peer;
            events.lock().extend([Event::Disconnected { peer }, Event::CutOff { peer, exited }]);
        }
        true
    }
}

/// Steps of a lane; the caller holds its lock.
impl Lane {
    /// Posts a request of a flow, or returns the reason why the lane refuses the request. A request of flow 0 does not
    /// wait for a turn.
    pub(super) fn post(
        &mut self,
        connection: &Connection,
        registered: &Registered,
        flow: u32,
        request: &WorkRequest<'_>,
    ) -> Result<(), PostCause> {
        if !connection.is_up() || connection.is_closing() || connection.has_ended.load(Relaxed) {
            return Err(PostCause::NotConnected);
        }
        let (operation, window) = self.convert(connection, registered, &request.operation)?;
        let WorkRequest { id, signalled, solicited, .. } = *request;
        let waiting = Waiting { request: Request { id: id.0, operation, signalled, solicited }, window };
        if self.outstanding() >= QUEUE_MAX {
            self.awaits_room = true;
            return Err(PostCause::QueueFull);
        }
        let bytes = u64::from(waiting.request.operation.len_bytes());
        if let Some(stateless) = &self.stateless {
            match flow {
                _ if stateless.has_ended() => return Err(PostCause::NotConnected),
                0 => self.post_stateless(waiting),
                _ => self.backlog.push(flow, bytes, waiting.is_divisible(), waiting),
            }
            return Ok(());
        }
        let has_room = self.backlog.is_empty() && self.has_room();
        if flow == 0 || has_room && bytes <= self.part_bytes() {
            return self.post_to_queue_pair(waiting);
        }
        self.backlog.push(flow, bytes, waiting.is_divisible(), waiting);
        Ok(())
    }

    fn post_to_queue_pair(&mut self, waiting: Waiting) -> Result<(), PostCause> {
        let request = self.hold(waiting);
        self.qp.post(request).map_err(|error| {
            self.held.pop();
            match error {
                PostError::QueueFull => {
                    self.awaits_room = true;
                    PostCause::QueueFull
                }
                PostError::NotReady => PostCause::NotConnected,
                PostError::Malformed => PostCause::Malformed,
            }
        })
    }

    /// Holds the local memory of a request. Returns the request with the key of this memory.
    fn hold(&mut self, waiting: Waiting) -> Request {
        let Waiting { mut request, window } = waiting;
        match &mut request.operation {
            RnicOperation::Write { source: Source::Registered { local, .. }, .. }
            | RnicOperation::Read { local, .. } => local.key = self.held.next_key(),
            _ => {}
        }
        self.held.push(window);
        request
    }

    /// Returns the number of requests that have not completed.
    fn outstanding(&self) -> usize {
        self.posted() + self.backlog.len()
    }

    /// Returns the number of outstanding requests of the queue pair, or of the stateless lane in its place.
    fn posted(&self) -> usize {
        self.qp.posted() + self.stateless.as_ref().map_or(0, StatelessLane::posted)
    }

    /// Returns true if requests need not wait for their turn: all posted packets have been sent, or the path's rate is
    /// not known.
    fn has_room(&self) -> bool {
        self.qp.unsent() == 0 || self.qp.delivered_in(PART_NS).is_none()
    }

    /// Returns the length in bytes of the parts in which long writes leave.
    fn part_bytes(&self) -> u64 {
        let packets = self.qp.delivered_in(PART_NS).map_or(u64::MAX, |packets| packets.max(PART_PACKETS_MIN));
        packets.saturating_mul(self.qp.path_mtu().bytes() as u64)
    }

    /// Posts the waiting requests whose turn it is, as long as the queue pair has no unsent packets.
    fn post_waiting(&mut self) {
        while !self.backlog.is_empty()
            && self.has_room()
            && self.qp.posted() < QUEUE_MAX
            && self.qp.state() == State::ReadyToSend
        {
            let part_bytes = self.part_bytes();
            let divided = &mut self.divided;
            let Some(waiting) = self.backlog.pop(part_bytes, |waiting| {
                divided.insert(waiting.request.id, false);
                waiting.divide(part_bytes)
            }) else {
                return;
            };
            let posted = self.post_to_queue_pair(waiting);
            debug_assert_eq!(posted, Ok(()), "the lane has checked the request");
        }
    }

    /// Returns true if the completion of a request with this id must be reported: of a divided write, only the first.
    fn is_first_completion(&mut self, id: u64, status: Status) -> bool {
        // The parts before the last one complete only if they fail. Then the queue pair has ended.
        match self.divided.get_mut(&id) {
            None => true,
            Some(_) if status == Status::Success => self.divided.remove(&id).is_some(),
            Some(is_reported) => !std::mem::replace(is_reported, true),
        }
    }

    /// Completes the waiting requests of a connection that has ended.
    fn flush_backlog(&mut self, connection: &Connection, events: &Events) {
        let peer = connection.peer;
        let waiting: Vec<_> = self.backlog.drain().collect();
        for Waiting { request, .. } in waiting {
            if !self.is_first_completion(request.id, Status::Flushed) {
                continue;
            }
            let kind = CompletionKind::Done { id: WorkId(request.id) };
            connection.queue(events).push(Event::Completed(Completion {
                peer,
                status: Status::Flushed,
                kind,
            }));
        }
    }

    /// Converts an operation to the type that the queue pair takes. Returns the converted operation, and the window of
    /// the local memory that the operation uses.
    fn convert(
        &self,
        connection: &Connection,
        registered: &Registered,
        operation: &Operation<'_>,
    ) -> Result<(RnicOperation, Option<Window>), PostCause> {
        let remote = |remote: halite_fabric::RemoteAddress| Remote {
            rkey: remote.key.0 ^ connection.peer_salt,
            address: remote.offset,
        };
        let write = |local: &Local<'_>, to, imm| -> Result<_, PostCause> {
            let (source, window) = match *local {
                Local::Inline(bytes) if bytes.len() <= INLINE_BYTES_MAX => {
                    (Source::Inline(bytes.to_vec()), None)
                }
                Local::Inline(_) => return Err(PostCause::Malformed),
                Local::Registered { key, offset, len } => {
                    let (len, window) = own_window(registered, key, offset, len)?;
                    let local = halite_rnic::Local { key: 0, address: offset };
                    (Source::Registered { local, len }, Some(window))
                }
            };
            Ok((RnicOperation::Write { source, remote: remote(to), imm }, window))
        };
        match *operation {
            Operation::Write { local, remote } => write(&local, remote, None),
            Operation::WriteImm { local, remote, imm } => write(&local, remote, Some(imm)),
            Operation::Read { local: Local::Registered { key, offset, len }, remote: from } => {
                let (len, window) = own_window(registered, key, offset, len)?;
                let local = halite_rnic::Local { key: 0, address: offset };
                Ok((RnicOperation::Read { local, remote: remote(from), len }, Some(window)))
            }
            Operation::Read { local: Local::Inline(_), .. } => Err(PostCause::Malformed),
            Operation::Send { bytes, .. } if bytes.len() > SEND_BYTES_MAX => Err(PostCause::Malformed),
            Operation::Send { bytes, imm } => {
                Ok((RnicOperation::Send { bytes: bytes.to_vec(), imm: Some(imm) }, None))
            }
            Operation::FetchAdd { remote: word, add } => {
                Ok((RnicOperation::FetchAdd { remote: remote(word), add }, None))
            }
            Operation::CompareSwap { remote: word, expected, new } => {
                Ok((RnicOperation::CompareSwap { remote: remote(word), expected, new }, None))
            }
        }
    }

    /// Handles a packet that [`Connection::open`] has accepted and that arrived at `arrived_ns`.
    pub(super) fn handle_packet(
        &mut self,
        connection: &Connection,
        context: LaneContext<'_>,
        arrived_ns: u64,
        packet: &Packet<'_>,
    ) {
        let view = View { registered: context.registered, salt: connection.salt, held: &self.held };
        self.qp.handle_stamped(context.now_ns, arrived_ns, packet, &view);
    }

    /// Sets the initial path MTU to `mtu`, which an earlier connection to the peer's host found.
    pub(super) fn expect_path(&mut self, now_ns: u64, mtu: Mtu) {
        self.qp.expect_path(now_ns, mtu);
    }

    /// Sets an upper bound of the round trip, in ns, for the first timeouts.
    pub(super) fn expect_round_trip(&mut self, connection: &Connection, ns: u64) {
        self.qp.expect_round_trip(ns);
        if let Some(clock) = &connection.clock {
            lock(clock).expect_round_trip(ns);
        }
    }

    /// Starts path MTU discovery.
    pub(super) fn start_path_discovery(&mut self, now_ns: u64) {
        self.qp.find_path(now_ns);
    }

    pub(super) fn handle_timeout(&mut self, now_ns: u64) {
        if self.qp.poll_timeout().is_some_and(|at| at <= now_ns) {
            let timeouts = self.qp.counters().timeouts;
            self.qp.handle_timeout(now_ns);
            let counters = self.qp.counters();
            if counters.timeouts > timeouts {
                self.count_timeout(now_ns, counters.sent.saturating_sub(counters.repeated), counters.arrived);
            }
        }
    }

    /// Counts a timeout, with the numbers of new packets and of arrived packets so far. If single packets pass and trains
    /// do not, a router may mistake a train for one long packet and drop it: packets are then sent one by one for a while.
    fn count_timeout(&mut self, now_ns: u64, new_sent: u64, arrived: u64) {
        if self.timeouts.add(new_sent, arrived) {
            self.trains_refused += u64::from(now_ns >= self.singly_until_ns);
            self.singly_until_ns = now_ns + WITHOUT_TRAINS_NS;
        }
    }

    /// Sends all packets that the limits permit. If `holds_acks` is true, does not send acknowledgements that may wait
    /// for the next poll. Returns the time of the next timer, in ns.
    pub(super) fn transmit(
        &mut self,
        connection: &Connection,
        context: LaneContext<'_>,
        holds_acks: bool,
    ) -> Option<u64> {
        let Connection { outwards, address, own_address, salt, port_use, .. } = connection;
        self.qp.hold_acks(holds_acks);
        let singly = context.now_ns < self.singly_until_ns;
        let (ends, bytes_max) = ((*own_address, *address), self.qp.packet_bytes_max());
        let refused = port_use.port().send_all(outwards, ends, bytes_max, singly, |bytes| {
            if self.stateless.is_none() {
                self.post_waiting();
            }
            let view = View { registered: context.registered, salt: *salt, held: &self.held };
            self.qp.poll_transmit(context.now_ns, &view, bytes)
        });
        self.trains_refused += refused;
        let stateless_ns = self.transmit_stateless(connection, context, holds_acks, singly);
        self.qp.poll_timeout().into_iter().chain(stateless_ns).min()
    }

    /// Sets the lane's share of the socket's receive buffer. Returns the time of the next timer, in ns.
    pub(super) fn set_share(&mut self, now_ns: u64, share: Share) -> Option<u64> {
        self.qp.set_share(now_ns, share);
        self.qp.poll_timeout()
    }

    /// Returns true if the peer has sent a request; probes of the path do not count.
    pub(super) fn has_heard_requests(&self) -> bool {
        self.qp.has_heard_requests()
    }

    /// Returns true if the peer has resumed sending after a long silence, since the last call.
    pub(super) fn take_has_begun(&mut self) -> bool {
        self.qp.take_has_begun()
    }

    /// Moves the queue pair's events and completions to the connection's queue, as events of the fabric.
    pub(super) fn drain(&mut self, connection: &Connection, events: &Events, outcome: &mut Outcome) {
        self.held.keep_last(self.posted());
        let peer = connection.peer;
        // Most steps cause no event, and take no lock.
        let mut queue = None;
        let mut report = |event| queue.get_or_insert_with(|| connection.queue(events)).push(event);
        while let Some(event) = self.poll_event() {
            let (status, kind) = match event {
                halite_rnic::Event::Completed { id, status, old } => {
                    let status = status_of(status);
                    if !self.is_first_completion(id, status) {
                        continue;
                    }
                    let id = WorkId(id);
                    let kind = match old {
                        Some(old) => CompletionKind::Atomic { id, old },
                        None => CompletionKind::Done { id },
                    };
                    (status, kind)
                }
                halite_rnic::Event::Received { bytes, imm, solicited } => {
                    outcome.rings |= solicited;
                    self.qp.add_receives(1);
                    (Status::Success, CompletionKind::Received { bytes, imm: imm.unwrap_or(0) })
                }
                halite_rnic::Event::Notified { imm, solicited } => {
                    outcome.rings |= solicited;
                    self.qp.add_receives(1);
                    (Status::Success, CompletionKind::Notified { imm })
                }
                halite_rnic::Event::Broken { cause } => {
                    let counters = self.qp.counters();
                    tracing::debug!("a queue pair to peer {} has ended: {cause:?}; {counters:?}", peer.0);
                    outcome.broken = Some(cause);
                    continue;
                }
            };
            let is_arrival =
                matches!(kind, CompletionKind::Received { .. } | CompletionKind::Notified { .. });
            outcome.rings |= !is_arrival;
            report(Event::Completed(Completion { peer, status, kind }));
        }
        if self.awaits_room && outcome.broken.is_none() && self.outstanding() <= ROOM_AT {
            self.awaits_room = false;
            outcome.rings = true;
            report(Event::Room { peer });
        }
    }

    fn poll_event(&mut self) -> Option<halite_rnic::Event> {
        self.qp.poll_event().or_else(|| self.stateless.as_mut()?.poll_event())
    }

    /// Returns true if the lane holds an acknowledgement back until the next poll.
    pub(super) fn holds_ack(&self, now_ns: u64) -> bool {
        self.qp.holds_ack(now_ns) || self.stateless.as_ref().is_some_and(StatelessLane::holds_answers)
    }

    pub(super) fn trains_refused(&self) -> u64 {
        self.trains_refused
    }

    pub(super) fn qp(&self) -> &QueuePair {
        &self.qp
    }
}

/// The recent timeouts, and the counters at the last of them.
#[derive(Default, Debug)]
struct Timeouts {
    all: u64,
    /// Number of consecutive timeouts between which only single packets passed.
    suspicious: u32,
    arrived: u64,
    new_sent: u64,
}

/// Number of such timeouts at which packets are sent one by one for [`WITHOUT_TRAINS_NS`].
const TIMEOUTS_MAX: u32 = 3;
/// Number of new packets between two timeouts that shows that the path carries trains.
const NEW_PACKETS_MIN: u64 = 32;
/// Time for which packets are sent one by one after the path seemed to drop trains, in ns.
const WITHOUT_TRAINS_NS: u64 = 5_000_000_000;

impl Timeouts {
    /// Adds a timeout. Returns true if trains seem to be dropped.
    ///
    /// A peer whose process does not run for some ms also causes timeouts, and so does a path that has become longer.
    /// But then the window advances, or no packet arrives at all. If the path drops only trains, a timeout advances the
    /// window by the single packet that it repeats, because the peer acknowledges that packet.
    fn add(&mut self, new_sent: u64, arrived: u64) -> bool {
        self.all += 1;
        if new_sent.saturating_sub(self.new_sent) >= NEW_PACKETS_MIN {
            self.suspicious = 0;
        } else if arrived > self.arrived {
            self.suspicious += 1;
        }
        (self.arrived, self.new_sent) = (arrived, new_sent);
        self.suspicious >= TIMEOUTS_MAX
    }
}

/// Maximum number of outstanding requests of a lane.
pub(super) const QUEUE_MAX: usize = 1024;
/// Time in which the path delivers one part of a long write, in ns. A short request waits for at most one part.
const PART_NS: u64 = 50_000;
/// Minimum number of packets of a part.
const PART_PACKETS_MIN: u64 = 4;
/// Number of outstanding requests at or below which a poster that found the queue full gets the room event.
const ROOM_AT: usize = QUEUE_MAX / 4 * 3;

/// Returns the window of a local key, if it contains these bytes.
fn own_window(registered: &Registered, key: Key, offset: u64, len: u64) -> Result<(u32, Window), PostCause> {
    let registered = read(registered);
    let window = registered.get(key.0 as usize).and_then(Option::as_ref).ok_or(PostCause::Malformed)?;
    let is_inside = offset <= window.len() && len <= window.len() - offset;
    match u32::try_from(len) {
        Ok(len) if is_inside => Ok((len, window.clone())),
        _ => Err(PostCause::Malformed),
    }
}

fn status_of(status: RnicStatus) -> Status {
    match status {
        RnicStatus::Success => Status::Success,
        RnicStatus::RemoteAccess | RnicStatus::RemoteInvalidRequest | RnicStatus::RemoteOperation => {
            Status::RemoteAccess
        }
        RnicStatus::RetryExceeded | RnicStatus::RnrRetryExceeded => Status::RetryExceeded,
        // A request holds its local memory, so a local access error cannot occur.
        RnicStatus::Aborted | RnicStatus::LocalAccess => Status::PeerGone,
        RnicStatus::Flushed => Status::Flushed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds timeouts, each after `sent` new packets and `arrived` arrivals. Returns true if one ends the use of trains.
    fn ends_trains(timeouts: u64, sent: u64, arrived: u64) -> bool {
        let mut recorded = Timeouts::default();
        (1..=timeouts).any(|n| recorded.add(n * sent, n * arrived))
    }

    #[test]
    fn trains_end_only_where_single_packets_pass() {
        assert!(ends_trains(3, 1, 1), "only repeated packets arrive");
        assert!(
            !ends_trains(1000, 256, 9),
            "a peer whose process seldom runs delays each MiB, and then receives all of it"
        );
        assert!(!ends_trains(1000, 0, 0), "a peer is silent for some time");
    }
}
