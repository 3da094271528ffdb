//! Lanes between hosts: at either end a queue pair of `halite_rnic`, or its stateless counterpart (`transport`), and
//! between them datagrams, which links lose, duplicate, damage and reorder.
//!
//! ```text
//!   post ──> unsubmitted ──> Run ──> queue pair ──> Datagram, delivered once, twice or never
//!                             ▲           │                        │
//!                             └── timers ─┘                        ▼
//!                                         ▲             queue pair of the target ──> memory, Visible ──> poll
//!                                         └── Datagrams back: acknowledgements and responses ──┘
//! ```
//!
//! The queue pairs alone provide the guarantees of RC (reliable connection) here. As in other lanes, messages between
//! kernels set connections up and close them. An adapter drives the queue pairs of its process even while the process
//! is stopped. A process without an adapter drives its own queue pairs: while it is stopped, it neither sends nor
//! answers, and packets wait in its socket.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use halite_fabric::kind::payload_bytes;
use halite_fabric::{
    Completion, CompletionKind, Event as FabricEvent, PostCause, Status, WorkId, WorkRequest,
};
use halite_mem::Window;
use halite_rnic::wire::{Flow, Psn, Qpn};
use halite_rnic::{
    Cause, Config, Held, Local, Mtu, Operation, QueuePair, Remote, Request, Retry, Source,
    Status as RnicStatus,
};

use super::datagrams::Datagram;
use super::end::{EndId, EndState};
use super::flow_queue::FlowQueue;
use super::qp::{Source as VerbSource, Verb};
use super::transport::Transport;
use super::{Event, Net};
use crate::profile::Profile;

/// Packets and read answers that each end grants in lanes of processes: as many as fit into sockets.
const GRANT: u32 = 64;
/// Packets that each end grants in lanes of adapters: 80 us at 100 Gb/s.
const WINDOW: u32 = 256;
/// Maximum number of outstanding reads and atomics of an adapter's lane, as in common adapters.
const READS_MAX: usize = 16;
/// Delay of an unrequested acknowledgement: the time of some packets.
const ACK_DELAY: Duration = Duration::from_micros(5);
/// UDP port of all software adapters.
const PORT: u16 = 4791;
/// Number of packet numbers, which have 24 bits.
const PSNS: u64 = 1 << 24;

/// One end of a lane.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) transport: Transport,
    pub(super) held: Held<Window>,
    pub(super) outwards: Flow,
    pub(super) inwards: Flow,
    /// Requests that were posted to the adapter and not submitted to the queue pair, because the doorbell has not rung
    /// or an earlier request waits for a key.
    pub(super) unsubmitted: VecDeque<PostedRequest>,
    pub(super) flow_queue: FlowQueue,
    /// Number of requests submitted to the queue pair so far.
    pub(super) submitted: u64,
    /// True while the lane waits for keys of the peer.
    pub(super) has_key_request: bool,
    /// Number of successive requests for keys that were lost.
    pub(super) key_requests_lost: u32,
    /// True if a poster found the queue full and waits for a free place.
    wants_room: bool,
    /// Time until which the posting processor is busy with posts.
    posted_ns: u64,
    /// Time of the next scheduled run of the queue pair that was near when it was requested; see `near_ns`.
    near_run_ns: Option<u64>,
    /// Time of a run that was not near when it was requested, for a timer of the queue pair.
    timer_ns: Option<u64>,
    /// A run is near if it is due within this time. Runs for acknowledgements and for retries of receives are near.
    near_ns: u64,
    /// Time at which the last datagram lands, unless links delay it.
    pub(super) landed_ns: u64,
    /// True while the adapter executes an atomic of this lane.
    pub(super) is_in_atomic: bool,
    /// Datagrams that wait until the atomic has ended.
    pub(super) deferred: VecDeque<Datagram>,
    /// Counters that the world has already included.
    counted: [u64; 2],
}

/// A request that was posted to the adapter, or waits in the backlog of its flow.
#[derive(Debug)]
pub(super) struct PostedRequest {
    id: WorkId,
    signalled: bool,
    solicited: bool,
    pub(super) verb: Verb,
    /// Length in bytes, in either direction.
    bytes: u64,
    inline: Vec<u8>,
    /// Local segment of the request, which may be deregistered by now.
    window: Option<Window>,
    /// Time from which the queue pair may take the request.
    ready_ns: u64,
    /// True if the peer has answered a request for the key. This request then waits no longer, even if the key is
    /// unknown.
    pub(super) is_key_answered: bool,
}

impl Lane {
    /// Returns true if the connection has ended on this side.
    pub(super) fn has_ended(&self) -> bool {
        self.transport.has_ended()
    }

    /// Returns the number of requests that have not completed.
    fn outstanding(&self) -> usize {
        self.posted() + self.flow_queue.backlog.len()
    }

    /// Returns the number of requests that were posted to the adapter and have not completed.
    pub(super) fn posted(&self) -> usize {
        self.unsubmitted.len() + self.transport.posted()
    }

    /// Posts a request to the adapter, without the doorbell.
    pub(super) fn post_to_adapter(&mut self, now_ns: u64, profile: &Profile, request: PostedRequest) {
        self.posted_ns = self.posted_ns.max(now_ns) + profile.post_ns;
        self.flow_queue.on_posted(now_ns, request.bytes);
        self.unsubmitted.push_back(request);
    }

    /// Records that the queue pair must run at `at_ns`. Returns true if the caller must schedule the run, because no
    /// earlier run is scheduled.
    fn request_run(&mut self, now_ns: u64, at_ns: u64, near_ns: u64) -> bool {
        let slot = if at_ns - now_ns <= near_ns { &mut self.near_run_ns } else { &mut self.timer_ns };
        let is_earlier = slot.is_none_or(|scheduled_ns| at_ns < scheduled_ns);
        if is_earlier {
            *slot = Some(at_ns);
        }
        is_earlier
    }

    fn is_due(&self, now_ns: u64) -> bool {
        [self.near_run_ns, self.timer_ns].into_iter().flatten().any(|at_ns| at_ns <= now_ns)
    }

    fn begin_run(&mut self, now_ns: u64) {
        for slot in [&mut self.near_run_ns, &mut self.timer_ns] {
            *slot = slot.filter(|at_ns| *at_ns > now_ns);
        }
    }
}

/// Returns the configuration of both ends.
fn config(profile: &Profile) -> Config {
    let mtu = Mtu::ALL.into_iter().find(|mtu| u64::from(mtu.bytes()) == profile.mtu_bytes);
    let timeout = Duration::from_nanos(profile.retransmit_ns);
    let common = Config {
        mtu: mtu.expect("the profile has a valid MTU"),
        send_queue_max: profile.queue_depth,
        send_bytes_max: profile.send_bytes_max,
        rnr_wait: Duration::from_nanos(profile.rnr_ns),
        ..Config::default()
    };
    if profile.is_driven_by_process() {
        return Config {
            write_packets_max: 1,
            reads_max: GRANT as usize,
            answers_max: GRANT as usize,
            room_packets: GRANT,
            selective: true,
            retry: Retry::Lease(profile.retries_max * timeout),
            ..common
        };
    }
    Config {
        reads_max: READS_MAX,
        answers_max: READS_MAX,
        window_packets_max: WINDOW,
        first_packets_max: WINDOW,
        room_packets: WINDOW / 2,
        retry: Retry::Count { retries: profile.retries_max.min(255) as u8, timeout, rnr_retries: 7 },
        ack_delay: ACK_DELAY,
        ..common
    }
}

/// Returns the network address of a host's software adapter.
pub(super) fn address(host: u32) -> SocketAddr {
    let [_, high, middle, low] = host.to_be_bytes();
    SocketAddr::from(([10, high, middle, low], PORT))
}

fn flow(from: u32, to: u32) -> Flow {
    Flow::new(address(from), address(to))
}

pub(super) fn qpn(qp: u32) -> Qpn {
    Qpn::new(qp + 1)
}

impl Net {
    pub(super) fn lane(&mut self, qp: u32) -> Option<&mut Lane> {
        self.lanes[qp as usize].as_deref_mut()
    }

    /// Creates both queue pairs of a lane; `qp` is the dialling end's.
    pub(super) fn connect_lane(&mut self, qp: u32) {
        let profile = self.profile_of(qp);
        let (config, is_stateless) = (config(profile), profile.effect_life_ns.is_some());
        let (grant, receives) = match profile.is_driven_by_process() {
            // Processes take arriving data at once, so a receive is always free.
            true => (GRANT, u32::MAX),
            false => (WINDOW, profile.receive_depth as u32),
        };
        let psns = [(); 2].map(|()| Psn::new(self.random.below(PSNS) as u32));
        for side in 0..2 {
            let (own, peer) = (qp + side, qp + 1 - side);
            let (host, to) = self.hosts_of(own);
            let [own_psn, peer_psn] = [psns[side as usize], psns[1 - side as usize]];
            let transport = match (is_stateless, &config.retry) {
                (true, Retry::Lease(lease)) => self.stateless_lane(own, lease.as_nanos() as u64),
                _ => {
                    let mut queue_pair = QueuePair::new(config.clone(), qpn(own), own_psn);
                    queue_pair.ready_to_receive(qpn(peer), peer_psn);
                    queue_pair.ready_to_send();
                    queue_pair.add_receives(receives);
                    queue_pair.set_grant(self.now_ns, grant);
                    Transport::QueuePair(Box::new(queue_pair))
                }
            };
            self.lanes[own as usize] = Some(Box::new(Lane {
                transport,
                held: Held::default(),
                outwards: flow(host, to),
                inwards: flow(to, host),
                unsubmitted: VecDeque::new(),
                flow_queue: FlowQueue::default(),
                submitted: 0,
                has_key_request: false,
                key_requests_lost: 0,
                wants_room: false,
                posted_ns: 0,
                near_run_ns: None,
                timer_ns: None,
                near_ns: 2 * config.ack_delay.as_nanos() as u64,
                landed_ns: 0,
                is_in_atomic: false,
                deferred: VecDeque::new(),
                counted: [0; 2],
            }));
        }
    }

    /// Posts a request to the adapter; [`Net::ring_lane`] makes it ready for the queue pair. Returns false if the
    /// request waits in the backlog of its flow instead.
    pub(super) fn post_to_lane(
        &mut self,
        qp: u32,
        flow: u32,
        request: &WorkRequest<'_>,
    ) -> Result<bool, PostCause> {
        let (verb, inline) = self.parse(qp, &request.operation)?;
        let posted = PostedRequest {
            id: request.id,
            signalled: request.signalled,
            solicited: request.solicited,
            verb,
            bytes: payload_bytes(&request.operation),
            inline: inline.to_vec(),
            window: self.local(qp, &verb),
            ready_ns: u64::MAX,
            is_key_answered: false,
        };
        let now_ns = self.now_ns;
        let profile = self.hardware.profile(self.ends[self.end_of(qp)].reach);
        let lane = self.lanes[qp as usize].as_deref_mut().ok_or(PostCause::NotConnected)?;
        if lane.outstanding() >= profile.queue_depth {
            lane.wants_room = true;
            return Err(PostCause::QueueFull);
        }
        let waits = lane.flow_queue.must_wait(flow, profile);
        match waits {
            true => lane.flow_queue.backlog.push(flow, posted.bytes, false, posted),
            false => lane.post_to_adapter(now_ns, profile, posted),
        }
        self.record_post(qp, request, inline);
        Ok(!waits)
    }

    /// Rings the doorbell for the last `count` posted requests.
    pub(super) fn ring_lane(&mut self, qp: u32, count: usize) {
        let Profile { doorbell_ns, pcie_ns, .. } = *self.profile_of(qp);
        // The sending unit of an adapter with stages fetches sources itself.
        let is_fetched = !self.profile_of(qp).is_driven_by_process() && self.profile_of(qp).adapter.is_none();
        let Some(lane) = self.lane(qp) else { return };
        lane.posted_ns += doorbell_ns;
        let ready_ns = lane.posted_ns + pcie_ns;
        let before = lane.unsubmitted.len() - count;
        for request in lane.unsubmitted.iter_mut().skip(before) {
            let fetches = matches!(request.verb, Verb::Write { source: VerbSource::Registered { .. }, .. });
            // An adapter fetches a source over the bus, there and back.
            request.ready_ns = ready_ns + if fetches && is_fetched { 2 * pcie_ns } else { 0 };
        }
        self.schedule_submission(qp);
    }

    /// Schedules a run for the time at which the queue pair may take the next request.
    fn schedule_submission(&mut self, qp: u32) {
        let next =
            self.lane(qp).filter(|lane| !lane.has_key_request).and_then(|lane| lane.unsubmitted.front());
        if let Some(ready_ns) = next.map(|request| request.ready_ns) {
            self.schedule_run(qp, ready_ns);
        }
    }

    /// Schedules a run of a queue pair, no later than at this time.
    pub(super) fn schedule_run(&mut self, qp: u32, at_ns: u64) {
        let now_ns = self.now_ns;
        let near_ns = self.lanes[qp as usize].as_deref().map_or(0, |lane| lane.near_ns);
        let at_ns = at_ns.max(now_ns);
        if self.lane(qp).is_some_and(|lane| lane.request_run(now_ns, at_ns, near_ns)) {
            self.schedule(at_ns, Event::Run { qp });
        }
    }

    pub(super) fn handle_run(&mut self, qp: u32) {
        let now_ns = self.now_ns;
        if !self.lane(qp).is_some_and(|lane| lane.is_due(now_ns)) {
            return;
        }
        let (host, _) = self.hosts_of(qp);
        if self.profile_of(qp).is_driven_by_process() && !self.runs_or_defers(host, Event::Run { qp }) {
            return;
        }
        self.submit_ready(qp);
        let Some(lane) = self.lane(qp) else { return };
        lane.begin_run(now_ns);
        lane.transport.handle_timeout(now_ns);
        self.drive(qp);
    }

    /// Submits requests to the queue pair, up to one that is not ready or whose key is unknown.
    fn submit_ready(&mut self, qp: u32) {
        let now_ns = self.now_ns;
        loop {
            let is_ready = |request: &PostedRequest| request.ready_ns <= now_ns;
            let Some(lane) = self.lane(qp).filter(|lane| !lane.has_ended() && !lane.has_key_request) else {
                return;
            };
            if !lane.unsubmitted.front().is_some_and(is_ready) {
                return;
            }
            if self.awaits_key(qp) {
                return self.request_keys(qp);
            }
            let Some(request) = self.lane(qp).and_then(|lane| lane.unsubmitted.pop_front()) else { return };
            let verb = self.with_known_key(qp, request.verb);
            let Some(lane) = self.lane(qp) else { return };
            let operation = operation(&verb, request.inline, lane.held.next_key());
            let PostedRequest { id: WorkId(id), signalled, solicited, window, .. } = request;
            lane.transport.post(Request { id, operation, signalled, solicited });
            lane.held.push(window);
            lane.submitted += 1;
        }
    }

    /// Sends a queue pair's packets, reports its events, and schedules its next run.
    pub(super) fn drive(&mut self, qp: u32) {
        let next_run_ns = self.transmit_all(qp);
        if self.report_lane_events(qp) {
            // The queue pair's last packet gives the peer the reason.
            self.transmit_all(qp);
            let end = self.end_of(qp);
            if self.ends[end].is_active() {
                self.break_connection(end, Status::PeerGone);
            }
            return;
        }
        // A due timer may have to wait for the wire, as packets do.
        let timeout_ns = self.lane(qp).and_then(|lane| lane.transport.poll_timeout());
        if let Some(at_ns) = next_run_ns.or(timeout_ns) {
            self.schedule_run(qp, at_ns);
        }
        self.schedule_submission(qp);
        self.close_when_sent(self.end_of(qp));
    }

    /// Reports the events of a queue pair. Returns true if it has ended.
    fn report_lane_events(&mut self, qp: u32) -> bool {
        let mut is_broken = false;
        while let Some(event) = self.lane(qp).and_then(|lane| lane.transport.poll_event()) {
            match event {
                halite_rnic::Event::Completed { id, status, old } => {
                    let kind = match old {
                        Some(old) => CompletionKind::Atomic { id: WorkId(id), old },
                        None => CompletionKind::Done { id: WorkId(id) },
                    };
                    self.complete_lane_request(qp, status_of(status), kind);
                }
                halite_rnic::Event::Received { bytes, imm, solicited } => {
                    let imm = imm.unwrap_or(0);
                    self.deliver_message(qp, CompletionKind::Received { bytes, imm }, solicited);
                }
                halite_rnic::Event::Notified { imm, solicited } => {
                    self.deliver_message(qp, CompletionKind::Notified { imm }, solicited);
                }
                halite_rnic::Event::Broken { cause } => {
                    is_broken = true;
                    // A stateless responder has no lane that could end.
                    let is_refusal = match self.profile_of(qp).effect_life_ns {
                        Some(_) => matches!(cause, Cause::PeerErred(_) | Cause::Refused(_)),
                        None => matches!(cause, Cause::PeerErred(_)),
                    };
                    self.counters.refused += u64::from(is_refusal);
                    let (host, to) = self.hosts_of(qp);
                    self.trace(host, |_| format!("a queue pair to host-{to} has ended: {cause:?}"));
                }
            }
        }
        self.add_counts(qp);
        self.post_from_backlog(qp);
        self.report_room_in_lane(qp, is_broken);
        is_broken
    }

    fn complete_lane_request(&mut self, qp: u32, status: Status, kind: CompletionKind) {
        let completion_ns = self.profile_of(qp).completion_ns;
        let end = &self.ends[self.end_of(qp)];
        let (endpoint, peer) = (end.endpoint, end.peer);
        let completion = Completion { peer, status, kind };
        self.deliver_after(completion_ns, endpoint, peer, FabricEvent::Completed(completion));
    }

    /// Adds the queue pair's new counts to the world's.
    fn add_counts(&mut self, qp: u32) {
        let Some(lane) = self.lanes[qp as usize].as_deref_mut() else { return };
        let ([repeated_before, rnr_before], now) = (lane.counted, lane.transport.counts());
        self.counters.retransmitted += now[0].saturating_sub(repeated_before);
        self.counters.receiver_not_ready += now[1] - rnr_before;
        lane.counted = now;
    }

    fn report_room_in_lane(&mut self, qp: u32, is_broken: bool) {
        let room_at = self.profile_of(qp).queue_depth / 4 * 3;
        let end = self.end_of(qp);
        let (endpoint, peer, state) = (self.ends[end].endpoint, self.ends[end].peer, self.ends[end].state);
        let Some(lane) = self.lane(qp) else { return };
        lane.held.keep_last(lane.transport.posted());
        if lane.wants_room && state == EndState::Open && !is_broken && lane.outstanding() <= room_at {
            lane.wants_room = false;
            self.deliver(endpoint, peer, FabricEvent::Room { peer });
        }
    }

    /// Posts a receive for one more message or immediate of the peer.
    pub(super) fn add_receive(&mut self, qp: u32) {
        if let Some(lane) = self.lane(qp) {
            lane.transport.add_receive();
        }
    }

    /// Closes a queue pair: completes posted requests, and ends the peer's access to memory.
    pub(super) fn close_lane(&mut self, qp: u32) {
        let Some(lane) = self.lane(qp) else { return };
        lane.transport.close();
        lane.has_key_request = false;
        let mut unsubmitted = std::mem::take(&mut lane.unsubmitted);
        unsubmitted.extend(lane.flow_queue.backlog.drain());
        self.report_lane_events(qp);
        for PostedRequest { id, .. } in unsubmitted {
            self.complete_lane_request(qp, Status::Flushed, CompletionKind::Done { id });
        }
    }

    /// Returns true if no posted request is outstanding.
    pub(super) fn is_lane_idle(&self, qp: u32) -> bool {
        self.lanes[qp as usize].as_deref().is_none_or(|lane| lane.outstanding() == 0)
    }

    /// Returns the round-trip time in ns of the first queue pair of `end` that has measured one; `None` if none has.
    pub(super) fn lane_round_trip_ns(&self, end: EndId) -> Option<u64> {
        self.ends[end].qps().find_map(|qp| self.lanes[qp as usize].as_deref()?.transport.round_trip_ns())
    }
}

/// Creates a request for a queue pair; `key` is the queue pair's key of the request's local memory.
fn operation(verb: &Verb, inline: Vec<u8>, key: u32) -> Operation {
    let remote = |to: halite_fabric::RemoteAddress| Remote { rkey: to.key.0, address: to.offset };
    match *verb {
        Verb::Read { offset, remote: from, len, .. } => {
            Operation::Read { local: Local { key, address: offset }, remote: remote(from), len: len as u32 }
        }
        Verb::Write { source: VerbSource::Inline, remote: to, imm, .. } => {
            Operation::Write { source: Source::Inline(inline), remote: remote(to), imm }
        }
        Verb::Write { source: VerbSource::Registered { offset, .. }, remote: to, len, imm } => {
            let source = Source::Registered { local: Local { key, address: offset }, len: len as u32 };
            Operation::Write { source, remote: remote(to), imm }
        }
        Verb::Send { imm, .. } => Operation::Send { bytes: inline, imm: Some(imm) },
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
        // A request holds its own memory, so that access to it never fails.
        RnicStatus::Aborted | RnicStatus::LocalAccess => Status::PeerGone,
        RnicStatus::Flushed => Status::Flushed,
    }
}
