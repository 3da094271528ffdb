//! Lanes that are real queue pairs (`halite_rnic`) over simulated datagrams, which links lose, repeat, damage and let overtake each other.
//!
//! ```text
//!   post ──> Turn ──> queue pair ──> Datagram, once, twice or never ──> queue pair at the target ──> memory, Show ──> poll
//!              ▲           └── timers ──┐                                    └── answers: Datagrams back
//!              └────────────────────────┘
//! ```
//!
//! What RC promises is the queue pairs' to keep here, and nobody else's.  Connections come about and end in words of kernels, as the
//! others' do.  Each process drives its own queue pairs, so that one which stands still sends, takes in and answers nothing; what came meanwhile waits in its socket.

use std::collections::VecDeque;
use std::time::Duration;

use halite_fabric::{
    Completion, CompletionKind, Event as FabricEvent, PostCause, Status, WorkId, WorkRequest,
};
use halite_mem::Window;
use halite_rnic::wire::{Flow, Packet, Psn, Qpn};
use halite_rnic::{
    Access, Config, Local, Memory, Mtu, Operation, PostError, QueuePair, Refused, Remote, Request, Retry,
    Source, Status as RnicStatus,
};

use super::end::{EndId, EndState};
use super::qp::{Source as VerbSource, Verb};
use super::{Event, HostState, Net};
use crate::digest::checksum;
use crate::profile::{Profile, Transport};
use crate::world::HostId;

/// Packets that each end grants the other in a lane, and answers to reads that it takes: sockets have room for these.
const GRANT: u32 = 64;
/// Where all adapters of software listen.
const PORT: u16 = 4791;
/// Numbers of packets have 24 bits.
const PSNS: u64 = 1 << 24;

/// One end of a lane that is a queue pair.
#[derive(Debug)]
pub(super) struct Lane {
    qp: QueuePair,
    held: Held,
    outwards: Flow,
    inwards: Flow,
    /// Somebody found the queue full, and waits to be told of room.
    wants_room: bool,
    /// Until when the posting processor is busy with what was posted.
    posted_ns: u64,
    /// For when its next turn is scheduled; others are of before.
    due_ns: Option<u64>,
}

/// The memory that posted requests hold on their own side, oldest first: it stays though its key is taken back.
#[derive(Debug, Default)]
struct Held {
    /// The number of the oldest one, which counts all that were ever posted.
    first: u32,
    windows: VecDeque<Option<Window>>,
}

/// A datagram that is under way.
#[derive(Debug)]
struct Datagram {
    /// The queue pair that it was sent to.
    to: u32,
    bytes: Vec<u8>,
}

/// All that are under way.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    slots: Vec<Option<Datagram>>,
    free: Vec<u32>,
}

impl Datagrams {
    fn add(&mut self, datagram: Datagram) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = Some(datagram);
                index
            }
            None => {
                self.slots.push(Some(datagram));
                self.slots.len() as u32 - 1
            }
        }
    }

    fn target(&self, index: u32) -> u32 {
        self.slots[index as usize].as_ref().expect("each arrives once").to
    }

    fn take(&mut self, index: u32) -> Datagram {
        self.free.push(index);
        self.slots[index as usize].take().expect("each arrives once")
    }
}

impl Held {
    fn next_key(&self) -> u32 {
        self.first.wrapping_add(self.windows.len() as u32)
    }

    fn keep_last(&mut self, count: usize) {
        let ended = self.windows.len().saturating_sub(count);
        self.windows.drain(..ended);
        self.first = self.first.wrapping_add(ended as u32);
    }

    fn window(&self, key: u32) -> Result<&Window, Refused> {
        let index = key.wrapping_sub(self.first) as usize;
        self.windows.get(index).and_then(Option::as_ref).ok_or(Refused)
    }
}

/// What a queue pair sees of memory: what its process has registered, and what its requests hold.
struct View<'a> {
    segments: &'a [Option<Window>],
    held: &'a Held,
}

impl View<'_> {
    fn segment(&self, key: u32) -> Result<&Window, Refused> {
        self.segments.get(key as usize).and_then(Option::as_ref).ok_or(Refused)
    }
}

fn refused<E>(_: E) -> Refused {
    Refused
}

impl Memory for View<'_> {
    fn check(&self, key: u32, _: Access, address: u64, len: u64) -> Result<(), Refused> {
        let end = address.checked_add(len).ok_or(Refused)?;
        if end <= self.segment(key)?.len() { Ok(()) } else { Err(Refused) }
    }

    fn read(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        self.segment(key)?.read(address, target).map_err(refused)
    }

    fn write(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.segment(key)?.write(address, source).map_err(refused)
    }

    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, Refused> {
        self.segment(key)?.fetch_add_u64(address, add).map_err(refused)
    }

    fn compare_swap(&self, key: u32, address: u64, expected: u64, new: u64) -> Result<u64, Refused> {
        self.segment(key)?.compare_exchange_u64(address, expected, new).map_err(refused)
    }

    fn read_own(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        self.held.window(key)?.read(address, target).map_err(refused)
    }

    fn write_own(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.held.window(key)?.write(address, source).map_err(refused)
    }
}

/// What two ends agree on.
fn config(profile: &Profile) -> Config {
    let mtu = Mtu::ALL.into_iter().find(|mtu| u64::from(mtu.bytes()) == profile.mtu_bytes);
    let lease_ns = u64::from(profile.retries_max) * profile.retransmit_ns;
    Config {
        mtu: mtu.expect("it was checked with the profile"),
        send_queue_max: profile.queue_depth,
        send_bytes_max: profile.send_bytes_max,
        write_packets_max: 1,
        read_packets_max: 1,
        reads_max: GRANT as usize,
        answers_max: GRANT as usize,
        room_packets: GRANT,
        selective: true,
        retry: Retry::Lease(Duration::from_nanos(lease_ns)),
        ..Config::default()
    }
}

fn flow(from: u32, to: u32) -> Flow {
    let address = |host: u32| {
        let [_, high, middle, low] = host.to_be_bytes();
        format!("10.{high}.{middle}.{low}:{PORT}").parse().expect("an address")
    };
    Flow::new(address(from), address(to))
}

fn qpn(qp: u32) -> Qpn {
    Qpn::new(qp + 1)
}

impl Net {
    /// Whether lanes of this end are queue pairs of their own.
    pub(super) fn has_queue_pairs(&self, end: EndId) -> bool {
        self.profile(end).transport == Transport::Rnic
    }

    /// Makes both queue pairs of a lane; `qp` is the one of the end that dialled.
    pub(super) fn connect_lane(&mut self, qp: u32) {
        let config = config(self.profile_of(qp));
        let psns = [(); 2].map(|()| Psn::new(self.random.below(PSNS) as u32));
        for side in 0..2 {
            let (own, peer) = (qp + side, qp + 1 - side);
            let (host, to) = self.hosts_of(own);
            let [own_psn, peer_psn] = [psns[side as usize], psns[1 - side as usize]];
            let mut queue_pair = QueuePair::new(config.clone(), qpn(own), own_psn);
            queue_pair.ready_to_receive(qpn(peer), peer_psn);
            queue_pair.ready_to_send();
            // What arrives is handed on at once, so there is always room.
            queue_pair.add_receives(u32::MAX);
            queue_pair.set_grant(self.now_ns, GRANT);
            let (outwards, inwards) = (flow(host, to), flow(to, host));
            let (held, wants_room, posted_ns, due_ns) = (Held::default(), false, 0, None);
            let lane = Lane { qp: queue_pair, held, outwards, inwards, wants_room, posted_ns, due_ns };
            self.lanes.insert(own, lane);
            self.schedule_turn(own, self.now_ns);
        }
    }

    /// Posts a request to a queue pair; [`Net::ring_lane`] has it leave.
    pub(super) fn post_to_lane(&mut self, qp: u32, request: &WorkRequest<'_>) -> Result<(), PostCause> {
        let (verb, inline) = self.parse(qp, &request.operation)?;
        let window = self.local(qp, &verb);
        let post_ns = self.profile_of(qp).post_ns;
        let now_ns = self.now_ns;
        let lane = self.lanes.get_mut(&qp).ok_or(PostCause::NotConnected)?;
        let operation = operation(&verb, inline, lane.held.next_key());
        let WorkRequest { id, signalled, solicited, .. } = *request;
        match lane.qp.post(Request { id: id.0, operation, signalled, solicited }) {
            Ok(()) => lane.held.windows.push_back(window),
            Err(PostError::QueueFull) => {
                lane.wants_room = true;
                return Err(PostCause::QueueFull);
            }
            Err(PostError::NotReady) => return Err(PostCause::NotConnected),
            Err(PostError::Malformed) => return Err(PostCause::Malformed),
        }
        lane.posted_ns = lane.posted_ns.max(now_ns) + post_ns;
        self.note_post(qp, request, inline);
        Ok(())
    }

    /// What was posted leaves, once the system has been told.
    pub(super) fn ring_lane(&mut self, qp: u32) {
        let profile = self.profile_of(qp);
        let delay_ns = profile.doorbell_ns + profile.pcie_ns;
        let Some(lane) = self.lanes.get_mut(&qp) else { return };
        let at_ns = lane.posted_ns + delay_ns;
        self.schedule_turn(qp, at_ns);
    }

    /// Has a queue pair look at what there is to do, no later than at this time.
    fn schedule_turn(&mut self, qp: u32, at_ns: u64) {
        let at_ns = at_ns.max(self.now_ns);
        let Some(lane) = self.lanes.get_mut(&qp) else { return };
        if lane.due_ns.is_none_or(|due_ns| at_ns < due_ns) {
            lane.due_ns = Some(at_ns);
            self.schedule(at_ns, Event::Turn { qp });
        }
    }

    pub(super) fn handle_turn(&mut self, qp: u32) {
        let now_ns = self.now_ns;
        let is_due = |lane: &Lane| lane.due_ns.is_some_and(|due_ns| due_ns <= now_ns);
        if !self.lanes.get(&qp).is_some_and(is_due) {
            return;
        }
        let (host, _) = self.hosts_of(qp);
        if !self.has_processor(host, Event::Turn { qp }) {
            return;
        }
        let Some(lane) = self.lanes.get_mut(&qp) else { return };
        lane.due_ns = None;
        lane.qp.handle_timeout(now_ns);
        self.drive(qp);
    }

    pub(super) fn handle_datagram(&mut self, index: u32) {
        let to = self.datagrams.target(index);
        let (host, from) = self.hosts_of(to);
        if !self.has_processor(host, Event::Datagram { index }) {
            if self.state(HostId(host)) == HostState::Crashed {
                self.datagrams.take(index);
                self.counters.dropped += 1;
            }
            return;
        }
        let Datagram { bytes, .. } = self.datagrams.take(index);
        self.digest.fold([u64::from(to), bytes.len() as u64, checksum(&bytes), 0]);
        let end = self.end_of(to);
        // Who is spoken to is connected, even if that word is late.
        self.establish_early(end);
        let now_ns = self.now_ns;
        let endpoint = self.ends[end].endpoint as usize;
        let Some(lane) = self.lanes.get_mut(&to) else {
            self.counters.dropped += 1;
            return;
        };
        let Ok(packet) = lane.inwards.open(&bytes).and_then(Packet::parse) else {
            self.counters.corrupted_caught += 1;
            return;
        };
        self.ends[end].heard_ns = now_ns;
        let view = View { segments: &self.endpoints[endpoint].segments, held: &lane.held };
        lane.qp.handle_packet(now_ns, &packet, &view);
        self.trace(host, |_| format!("a datagram of {} B of host-{from} arrives", bytes.len()));
        self.drive(to);
    }

    /// Sends what a queue pair has to send, tells what it has to tell, and sees to its next turn.
    fn drive(&mut self, qp: u32) {
        self.transmit_all(qp);
        if self.tell_of_lane(qp) {
            // Why it ends, the peer is told by the queue pair itself first.
            self.transmit_all(qp);
            let end = self.end_of(qp);
            if self.ends[end].sends() {
                self.break_off(end, Status::PeerGone);
            }
            return;
        }
        if let Some(at_ns) = self.lanes.get(&qp).and_then(|lane| lane.qp.poll_timeout()) {
            self.schedule_turn(qp, at_ns);
        }
        self.leave_when_sent(self.end_of(qp));
    }

    fn transmit_all(&mut self, qp: u32) {
        let endpoint = self.ends[self.end_of(qp)].endpoint as usize;
        let now_ns = self.now_ns;
        loop {
            let Some(lane) = self.lanes.get_mut(&qp) else { return };
            let view = View { segments: &self.endpoints[endpoint].segments, held: &lane.held };
            let mut bytes = vec![0; lane.qp.packet_bytes_max()];
            let Some(len) = lane.qp.poll_transmit(now_ns, &view, &mut bytes) else { return };
            bytes.truncate(len);
            lane.outwards.seal(0, &mut bytes);
            self.send_datagram(qp, bytes);
        }
    }

    fn send_datagram(&mut self, qp: u32, mut bytes: Vec<u8>) {
        let (host, to) = self.hosts_of(qp);
        let profile = self.profile_of(qp);
        let len = bytes.len() as u64;
        let takes_ns = 2 * profile.dma_ns(len) + profile.pcie_ns;
        let headers = profile.header_bytes;
        let wire = &mut self.wires[host as usize][to as usize];
        let carried = wire.carry(self.now_ns, len + headers, &mut self.random, &mut self.counters);
        if carried.is_damaged {
            let bit = self.random.below(8 * len) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let [first, second] = carried.arrives_ns;
        for at_ns in [second, first].into_iter().flatten() {
            let at_ns = at_ns + takes_ns;
            // What its kernel says later is heard later.
            let queue = &mut self.qps[qp as usize];
            queue.landed_ns = queue.landed_ns.max(at_ns);
            let index = self.datagrams.add(Datagram { to: qp ^ 1, bytes: bytes.clone() });
            self.schedule(at_ns, Event::Datagram { index });
        }
    }

    /// Tells what a queue pair has to tell; whether it has ended.
    fn tell_of_lane(&mut self, qp: u32) -> bool {
        let mut is_broken = false;
        while let Some(event) = self.lanes.get_mut(&qp).and_then(|lane| lane.qp.poll_event()) {
            match event {
                halite_rnic::Event::Completed { id, status, old } => {
                    let kind = match old {
                        Some(old) => CompletionKind::Atomic { id: WorkId(id), old },
                        None => CompletionKind::Done { id: WorkId(id) },
                    };
                    let end = &self.ends[self.end_of(qp)];
                    let (endpoint, peer) = (end.endpoint, end.peer);
                    self.complete(endpoint, Completion { peer, status: status_of(status), kind });
                }
                halite_rnic::Event::Received { bytes, imm, solicited } => {
                    let imm = imm.unwrap_or(0);
                    self.arrive_at_lane(qp, CompletionKind::Received { bytes, imm }, solicited);
                }
                halite_rnic::Event::Notified { imm, solicited } => {
                    self.arrive_at_lane(qp, CompletionKind::Notified { imm }, solicited);
                }
                halite_rnic::Event::Broken { cause } => {
                    is_broken = true;
                    self.counters.refused += u64::from(matches!(cause, halite_rnic::Cause::PeerErred(_)));
                    let (host, to) = self.hosts_of(qp);
                    self.trace(host, |_| format!("a queue pair to host-{to} has ended: {cause:?}"));
                }
            }
        }
        let room_at = self.profile_of(qp).queue_depth / 4 * 3;
        let Some(lane) = self.lanes.get_mut(&qp) else { return is_broken };
        lane.held.keep_last(lane.qp.posted());
        let end = &self.ends[self.qps[qp as usize].end];
        if lane.wants_room && end.state == EndState::Open && !is_broken && lane.qp.posted() <= room_at {
            lane.wants_room = false;
            let (endpoint, peer) = (end.endpoint, end.peer);
            self.deliver(endpoint, peer, FabricEvent::Room { peer });
        }
        is_broken
    }

    fn arrive_at_lane(&mut self, qp: u32, kind: CompletionKind, solicited: bool) {
        if let Some(lane) = self.lanes.get_mut(&qp) {
            lane.qp.add_receives(1);
        }
        self.arrive(qp, kind, solicited);
    }

    /// Ends a queue pair on this side: what is posted completes, and the peer touches memory no more.
    pub(super) fn close_lane(&mut self, qp: u32) {
        if let Some(lane) = self.lanes.get_mut(&qp) {
            lane.qp.close();
            self.tell_of_lane(qp);
        }
    }

    /// Whether nothing that was posted is under way.
    pub(super) fn is_lane_idle(&self, qp: u32) -> bool {
        self.lanes.get(&qp).is_none_or(|lane| lane.qp.posted() == 0)
    }

    /// What requests take until they are acknowledged, as the queue pairs of an end have it: that of the first that knows.
    pub(super) fn measured_by_lanes(&self, end: EndId) -> Option<u64> {
        self.ends[end].qps().find_map(|qp| self.lanes.get(&qp)?.qp.round_trip_ns())
    }
}

/// A request as a queue pair has it; `key` is how it names the memory that it holds.
fn operation(verb: &Verb, inline: &[u8], key: u32) -> Operation {
    let remote = |to: halite_fabric::RemoteAddress| Remote { rkey: to.key.0, address: to.offset };
    match *verb {
        Verb::Read { offset, remote: from, len, .. } => {
            Operation::Read { local: Local { key, address: offset }, remote: remote(from), len: len as u32 }
        }
        Verb::Write { source: VerbSource::Inline, remote: to, imm, .. } => {
            Operation::Write { source: Source::Inline(inline.to_vec()), remote: remote(to), imm }
        }
        Verb::Write { source: VerbSource::Registered { offset, .. }, remote: to, len, imm } => {
            let source = Source::Registered { local: Local { key, address: offset }, len: len as u32 };
            Operation::Write { source, remote: remote(to), imm }
        }
        Verb::Send { imm, .. } => Operation::Send { bytes: inline.to_vec(), imm: Some(imm) },
        Verb::FetchAdd { remote: word, add } => Operation::FetchAdd { remote: remote(word), add },
        Verb::CompareSwap { remote: word, expected, new } => {
            Operation::CompareSwap { remote: remote(word), expected, new }
        }
    }
}

fn status_of(status: RnicStatus) -> Status {
    match status {
        RnicStatus::Success => Status::Success,
        RnicStatus::RemoteAccess | RnicStatus::RemoteInvalidRequest | RnicStatus::RemoteOperation => {
            Status::RemoteAccess
        }
        RnicStatus::RetryExceeded | RnicStatus::RnrRetryExceeded => Status::RetryExceeded,
        // Our own memory is held while a request needs it, so that it is always there.
        RnicStatus::Aborted | RnicStatus::LocalAccess => Status::PeerGone,
        RnicStatus::Flushed => Status::Flushed,
    }
}
