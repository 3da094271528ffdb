//! A queue pair: one end of a reliable connection.
//!
//! ```text
//!   Init ── ready_to_receive ──► ReadyToReceive ── ready_to_send ──► ReadyToSend
//!     └───────────────────── close, or a fatal failure ────────────────┴──────────► Error
//! ```
//!
//! Inputs are packets that [`crate::wire::Flow`] has verified, requests, and the time. Outputs are packets for `Flow`
//! to seal, events, and the time of the next call. In the error state, the peer can no longer access memory.

use std::collections::VecDeque;

use crate::config::{Config, Mtu};
use crate::congestion::Congestion;
use crate::context::StepContext;
use crate::counters::Counters;
use crate::memory::Memory;
use crate::parts::{Reassembly, Splitter, matches_parts};
use crate::path::Path;
use crate::requester::{Failure, Requester};
use crate::responder::{Responder, is_heartbeat, returns_data};
use crate::room::{Share, is_recent};
use crate::wire::path_eth::packet_bytes_max;
use crate::wire::{Headers, ICRC_BYTES, Packet, Psn, Qpn};
use crate::work::{Cause, Event, PostError, Request};

/// The state of a queue pair. Verbs define further states, which a software adapter does not need.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// The initial state: the peer is not set yet.
    Init,
    /// The queue pair executes the peer's requests, but sends no requests.
    ReadyToReceive,
    /// The queue pair executes the peer's requests and sends posted requests.
    ReadyToSend,
    /// The connection has ended. A queue pair never leaves this state.
    Error,
}

/// One end of a reliable connection.
#[derive(Debug)]
pub struct QueuePair {
    config: Config,
    qpn: Qpn,
    peer_qp: Qpn,
    state: State,
    requester: Requester,
    responder: Responder,
    events: VecDeque<Event>,
    counters: Counters,
    /// True if the last sent packet was a response. Requests and responses alternate, so neither delays the other for
    /// long.
    last_was_response: bool,
    /// True to hold back acknowledgements that may wait.
    holds_acks: bool,
    /// `None` without path MTU discovery.
    path: Option<Path>,
    splitter: Splitter,
    reassembly: Reassembly,
    /// Arrival time of the packet being handled.
    arrived_ns: u64,
    /// Time of the last packet that makes the lane active; see [`QueuePair::handle_whole`].
    used_ns: Option<u64>,
    /// True if the peer has resumed sending; cleared by [`QueuePair::take_has_begun`].
    has_begun: bool,
}

/// The 64-bit sequence number of PSN 0. It is above zero, so that numbers before the first packet exist.
const SEQUENCE_OF_PSN_0: u64 = 1 << 24;

impl QueuePair {
    /// Creates a queue pair with the number `qpn`. Its first request packet gets the sequence number `psn`.
    pub fn new(config: Config, qpn: Qpn, psn: Psn) -> QueuePair {
        QueuePair {
            path: config.finds_path.then(|| Path::new(config.mtu, psn)),
            splitter: Splitter::default(),
            reassembly: Reassembly::default(),
            requester: Requester::new(SEQUENCE_OF_PSN_0 + u64::from(psn.value())).configured(&config),
            config,
            qpn,
            peer_qp: Qpn::new(0),
            state: State::Init,
            responder: Responder::new(SEQUENCE_OF_PSN_0),
            events: VecDeque::new(),
            counters: Counters::default(),
            last_was_response: false,
            holds_acks: false,
            arrived_ns: 0,
            used_ns: None,
            has_begun: false,
        }
    }

    /// Sets the peer's queue pair, whose first request packet has the sequence number `psn`. From now on, this queue
    /// pair executes the peer's requests.
    ///
    /// # Panics
    /// Panics if the state is not [`State::Init`].
    pub fn ready_to_receive(&mut self, peer_qp: Qpn, psn: Psn) {
        assert_eq!(self.state, State::Init, "the peer of a queue pair never changes");
        self.peer_qp = peer_qp;
        self.responder = Responder::new(SEQUENCE_OF_PSN_0 + u64::from(psn.value()));
        self.state = State::ReadyToReceive;
    }

    /// Allows the caller to post requests. Call this method once the peer is ready to receive.
    ///
    /// # Panics
    /// Panics if the state is not [`State::ReadyToReceive`].
    pub fn ready_to_send(&mut self) {
        assert_eq!(self.state, State::ReadyToReceive, "a queue pair receives before it sends");
        self.state = State::ReadyToSend;
    }

    /// Returns the current state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the packet counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the current round-trip time, from a request to its response, in ns; `None` before the first sample.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.requester.round_trip_ns()
    }

    /// Returns the current maximum number of packets in flight. It follows from the peer's grant, the bandwidth-delay
    /// product and the congestion window.
    pub fn window_packets(&self) -> u32 {
        self.requester.window(&self.config)
    }

    /// Returns the congestion control algorithm of this end.
    pub fn congestion(&self) -> Congestion {
        self.config.congestion
    }

    /// Returns the path MTU. This end sends packets with a longer payload in parts.
    pub fn path_mtu(&self) -> Mtu {
        self.path.as_ref().map_or(self.config.mtu, Path::mtu)
    }

    /// Returns true if path MTU discovery has finished, or is disabled in the configuration.
    pub fn knows_path(&self) -> bool {
        self.path.as_ref().is_none_or(Path::is_known)
    }

    /// Returns true if the peer has answered a path probe, which shows that packets arrive in both directions.
    pub fn is_path_answered(&self) -> bool {
        self.path.as_ref().is_some_and(Path::is_answered)
    }

    /// Uses `mtu`, the path MTU that an earlier connection to the peer's host found, until path MTU discovery finishes.
    pub fn expect_path(&mut self, now_ns: u64, mtu: Mtu) {
        if let Some(path) = &mut self.path {
            path.set_initial_mtu(mtu);
        }
        self.update_path(now_ns);
    }

    /// Sets an upper bound of the round trip, in ns, for the timeout before the first sample.
    pub fn expect_round_trip(&mut self, ns: u64) {
        self.requester.expect_round_trip(ns);
    }

    /// Starts path MTU discovery, unless discovery is already running. Has no effect before
    /// [`QueuePair::ready_to_send`]. The peer must be ready to receive.
    pub fn find_path(&mut self, now_ns: u64) {
        let trip_ns = self.requester.expected_round_trip_ns();
        if let Some(path) = self.path.as_mut().filter(|_| self.state == State::ReadyToSend) {
            path.search(now_ns, trip_ns);
        }
    }

    /// Returns the number of outstanding requests: posted and not completed.
    pub fn posted(&self) -> usize {
        self.requester.posted()
    }

    /// Returns the number of packets of posted requests that have not been sent. For a read, returns the packets of its
    /// response that have not been requested.
    pub fn unsent(&self) -> u64 {
        self.requester.unsent()
    }

    /// Returns the number of packets that the path delivers in `ns`, by the last measurements; `None` before the first
    /// one, and without [`Config::fills_path`].
    pub fn delivered_in(&self, ns: u64) -> Option<u64> {
        self.requester.delivered_in(&self.config, ns)
    }

    /// Returns the length in bytes of the longest packet that [`QueuePair::poll_transmit`] writes.
    pub fn packet_bytes_max(&self) -> usize {
        packet_bytes_max(self.config.mtu)
    }

    /// Posts `count` receives. Each message or immediate from the peer consumes one receive.
    pub fn add_receives(&mut self, count: u32) {
        self.responder.add_receives(count);
    }

    /// Sets the grant: the maximum number of packets that the peer may have in flight to this end.
    pub fn set_grant(&mut self, now_ns: u64, packets: u32) {
        self.responder.set_grant(now_ns, packets);
    }

    /// Returns this lane's share of the receive buffer, for [`Room`](crate::room::Room).
    pub fn share(&self) -> Share {
        let (grant, answers) = (self.responder.grant(), self.config.room_packets);
        Share { used_ns: self.used_ns, grant, answers, ..Share::new(self.config.mtu.bytes()) }
    }

    /// Sets this lane's share of the receive buffer, and sends the new grant to the peer.
    pub fn set_share(&mut self, now_ns: u64, share: Share) {
        self.config.room_packets = share.answers;
        self.set_grant(now_ns, share.grant);
    }

    /// Returns true if the peer has resumed sending after an idle time, since the last call of this method. The lane
    /// then needs a share of the receive buffer.
    pub fn take_has_begun(&mut self) -> bool {
        std::mem::take(&mut self.has_begun)
    }

    /// Returns true if this end has executed any request of the peer.
    pub fn has_heard_requests(&self) -> bool {
        self.responder.has_executed_requests()
    }

    /// Records a packet that makes the lane active.
    fn mark_used(&mut self, now_ns: u64) {
        self.has_begun |= !is_recent(self.used_ns, now_ns);
        self.used_ns = Some(now_ns);
    }

    /// Appends a request to the send queue, from which [`QueuePair::poll_transmit`] writes packets. Fails if the queue
    /// is full, the request is too long, or the state is not [`State::ReadyToSend`].
    pub fn post(&mut self, request: Request) -> Result<(), PostError> {
        if self.state != State::ReadyToSend {
            return Err(PostError::NotReady);
        }
        self.requester.post(&self.config, request)
    }

    /// Ends the connection at this end: completes all posted requests with an error, and executes no more of the peer's
    /// requests.
    pub fn close(&mut self) {
        self.break_connection(Cause::Closed, None);
    }

    /// Handles a packet. The caller must have verified the ICRC and the source address of the packet.
    pub fn handle_packet(&mut self, now_ns: u64, packet: &Packet<'_>, memory: &dyn Memory) {
        self.handle_stamped(now_ns, now_ns, packet, memory);
    }

    /// Handles a packet as [`QueuePair::handle_packet`] does. The packet arrived at `arrived_ns` and has waited in a
    /// queue until `now_ns`.
    pub fn handle_stamped(&mut self, now_ns: u64, arrived_ns: u64, packet: &Packet<'_>, memory: &dyn Memory) {
        self.counters.arrived += 1;
        self.arrived_ns = arrived_ns;
        // [ROCE-QP-1]
        if packet.dest_qp != self.qpn || self.state == State::Init {
            self.counters.misdirected += 1;
            return;
        }
        match packet.headers {
            Headers::Probe(_) | Headers::ProbeAnswer(_) | Headers::Part(_) => {
                self.handle_path_packet(now_ns, packet, memory);
            }
            _ => self.handle_whole(now_ns, packet, memory),
        }
    }

    /// Handles a path probe, its answer, or a part of a packet.
    fn handle_path_packet(&mut self, now_ns: u64, packet: &Packet<'_>, memory: &dyn Memory) {
        let Some(path) = self.path.as_mut().filter(|_| self.state != State::Error) else {
            self.counters.misdirected += 1;
            return;
        };
        match packet.headers {
            Headers::Probe(eth) | Headers::ProbeAnswer(eth) if packet.payload.len() != eth.zeros() => {
                self.counters.malformed += 1;
            }
            Headers::Probe(eth) => {
                self.counters.stale += u64::from(!path.handle_probe(packet.psn, eth));
                // A peer that starts to probe is about to send. [ROCE-WINDOW-5]
                if self.used_ns.is_none() {
                    self.mark_used(now_ns);
                }
            }
            Headers::ProbeAnswer(eth) => match path.handle_answer(now_ns, packet.psn, eth) {
                // Where long packets may be lost, the first window stays at one packet.
                true if path.passes_agreed_mtu() => self.requester.expect_grant(eth.grant.into()),
                true => {}
                false => self.counters.stale += 1,
            },
            Headers::Part(eth) => {
                let whole = self.reassembly.add(eth, packet.psn, packet.payload, self.config.mtu);
                let Some(whole) = whole else { return };
                match Packet::parse(&whole) {
                    Ok(whole) if matches_parts(&whole, packet.dest_qp, packet.psn) => {
                        self.handle_whole(now_ns, &whole, memory);
                    }
                    _ => self.counters.malformed += 1,
                }
            }
            _ => unreachable!("the caller passes only path packets"),
        }
        self.update_path(now_ns);
    }

    /// Passes the path MTU to the requester.
    fn update_path(&mut self, now_ns: u64) {
        if let Some(path) = &self.path {
            self.requester.set_parts(now_ns, path.parts());
        }
    }

    /// Handles a packet that is not about the path, and not a part of another one.
    fn handle_whole(&mut self, now_ns: u64, packet: &Packet<'_>, memory: &dyn Memory) {
        let is_response = packet.headers.opcode().is_response();
        let has_bytes = !packet.payload.is_empty() && !matches!(packet.headers, Headers::Missing(_));
        // Requests without payload make the lane active, too, if their responses carry data: the reader needs a grant.
        if has_bytes && !is_heartbeat(packet) || returns_data(packet) {
            self.mark_used(now_ns);
        }
        if self.state == State::Error {
            self.counters.misdirected += 1;
            if !is_response {
                self.responder.handle_request_after_end(packet);
            }
        } else if is_response {
            let (requester, _, mut step) = self.step(now_ns, memory);
            let outcome = requester.handle_response(&mut step, packet);
            self.break_on_failure(outcome);
        } else {
            let (_, responder, mut step) = self.step(now_ns, memory);
            if let Err(nak) = responder.handle_request(&mut step, packet) {
                self.break_connection(Cause::PeerErred(nak), None);
            }
        }
    }

    /// Borrows both state machines and the context of a step.
    fn step<'a>(
        &'a mut self,
        now_ns: u64,
        memory: &'a dyn Memory,
    ) -> (&'a mut Requester, &'a mut Responder, StepContext<'a>) {
        let (config, counters, events) = (&self.config, &mut self.counters, &mut self.events);
        let step = StepContext { now_ns, arrived_ns: self.arrived_ns, config, memory, counters, events };
        (&mut self.requester, &mut self.responder, step)
    }

    /// Writes the next packet to send to the start of `buffer`. Returns its length in bytes, which includes the ICRC
    /// that the caller adds; `None` if no packet is pending.
    ///
    /// Call this method until it returns `None`. If an acknowledgement is due, it is the last packet, because an
    /// acknowledgement is shorter than other packets and so ends a train. An overdue acknowledgement is the first
    /// packet.
    ///
    /// # Panics
    /// Panics if the buffer is shorter than [`QueuePair::packet_bytes_max`].
    pub fn poll_transmit(&mut self, now_ns: u64, memory: &dyn Memory, buffer: &mut [u8]) -> Option<usize> {
        assert!(buffer.len() >= self.packet_bytes_max(), "the buffer is too short for a packet");
        let len = match self.state {
            State::Init => None,
            State::Error => self.responder.poll_nak(self.peer_qp, buffer),
            State::ReadyToReceive | State::ReadyToSend => {
                self.poll_path(buffer).or_else(|| self.poll_packet(now_ns, memory, buffer))
            }
        };
        self.counters.sent += u64::from(len.is_some());
        len
    }

    /// Returns all unacknowledged packets without ICRC, so that the caller can deliver them through another channel
    /// before it exits; the peer drops duplicates. Returns `None` if a posted request needs a completion or a response,
    /// or if the packets have more than `bytes_max` bytes in all.
    pub fn rest(&self, memory: &dyn Memory, bytes_max: usize) -> Option<Vec<Vec<u8>>> {
        if self.state != State::ReadyToSend {
            return None;
        }
        self.requester.rest(memory, self.peer_qp, bytes_max, &mut vec![0; self.packet_bytes_max()])
    }

    /// Writes the next path probe or answer.
    fn poll_path(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let (headers, psn, zeros) = self.path.as_mut()?.poll(self.responder.grant())?;
        let dest_qp = self.peer_qp;
        let packet = Packet { dest_qp, psn, ack_request: false, solicited: false, headers, payload: &[] };
        let begin = packet.emit_headers(zeros, buffer);
        buffer[begin..begin + zeros].fill(0);
        Some(begin + zeros + ICRC_BYTES)
    }

    /// Writes the next packet or, if a packet is longer than the path MTU, its next part.
    fn poll_packet(&mut self, now_ns: u64, memory: &dyn Memory, buffer: &mut [u8]) -> Option<usize> {
        if let Some(len) = self.splitter.poll(buffer) {
            return Some(len);
        }
        let len = self.poll_whole(now_ns, memory, buffer)?;
        match &self.path {
            Some(path) if path.is_too_long(len) => {
                self.splitter.start(&buffer[..len - ICRC_BYTES], path.mtu());
                self.splitter.poll(buffer)
            }
            _ => Some(len),
        }
    }

    /// Writes the next packet that is not about the path. Requests and responses alternate.
    fn poll_whole(&mut self, now_ns: u64, memory: &dyn Memory, buffer: &mut [u8]) -> Option<usize> {
        if !self.last_was_response && self.responder.has_response() {
            self.last_was_response = true;
            return self.poll_response(now_ns, memory, buffer);
        }
        self.last_was_response = false;
        let peer_qp = self.peer_qp;
        let (requester, responder, mut step) = self.step(now_ns, memory);
        // An adapter polls one packet at a time. Without this rule, its requests would hold the acknowledgement back
        // until the peer gives up.
        if responder.has_overdue_ack(&step)
            && let Some(len) = responder.poll_ack(&step, peer_qp, buffer)
        {
            return Some(len);
        }
        match requester.poll_transmit(&mut step, peer_qp, buffer) {
            Ok(Some(len)) => return Some(len),
            Ok(None) => {}
            Err(failure) => {
                self.break_connection(failure.cause, Some(failure));
                return None;
            }
        }
        if self.responder.has_response() {
            return self.poll_response(now_ns, memory, buffer);
        }
        if self.holds_acks && self.responder.has_deferrable_ack(now_ns) {
            return None;
        }
        let (_, responder, step) = self.step(now_ns, memory);
        responder.poll_ack(&step, peer_qp, buffer)
    }

    /// Sets whether this queue pair holds back acknowledgements that the peer does not wait for. If `holds` is true,
    /// the owner first handles the packets that have arrived, and sends the acknowledgements at its next poll.
    pub fn hold_acks(&mut self, holds: bool) {
        self.holds_acks = holds;
    }

    /// Returns true if [`QueuePair::hold_acks`] holds back an acknowledgement that is due.
    pub fn holds_ack(&self, now_ns: u64) -> bool {
        self.holds_acks && self.state != State::Error && self.responder.has_deferrable_ack(now_ns)
    }

    fn poll_response(&mut self, now_ns: u64, memory: &dyn Memory, buffer: &mut [u8]) -> Option<usize> {
        let peer_qp = self.peer_qp;
        let (_, responder, step) = self.step(now_ns, memory);
        match responder.poll_response(&step, peer_qp, buffer) {
            Ok(len) => len,
            Err(nak) => {
                self.break_connection(Cause::PeerErred(nak), None);
                self.responder.poll_nak(peer_qp, buffer)
            }
        }
    }

    /// Removes and returns the oldest pending event; `None` if no event is pending.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the time in ns at which to call [`QueuePair::handle_timeout`] and then [`QueuePair::poll_transmit`],
    /// unless an input comes earlier. `None` if no timer runs.
    pub fn poll_timeout(&self) -> Option<u64> {
        match self.state {
            State::Init | State::Error => None,
            _ => {
                let path = self.path.as_ref().and_then(Path::poll_timeout);
                let ack = self.responder.poll_timeout().filter(|at| !self.holds_ack(*at));
                [self.requester.poll_timeout(), ack, path].into_iter().flatten().min()
            }
        }
    }

    /// Runs the timers that are due at `now_ns`.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.state == State::ReadyToSend {
            let timeouts = self.counters.timeouts;
            let outcome = self.requester.handle_timeout(now_ns, &self.config, &mut self.counters);
            self.break_on_failure(outcome);
            self.run_path_timer(now_ns, timeouts);
        }
    }

    /// Runs the timer of path MTU discovery, and restarts discovery after repeated timeouts.
    fn run_path_timer(&mut self, now_ns: u64, timeouts: u64) {
        if self.counters.timeouts > timeouts && self.requester.is_stuck(&self.config) {
            self.find_path(now_ns);
        }
        if let Some(path) = &mut self.path {
            path.handle_timeout(now_ns, self.requester.expected_round_trip_ns());
        }
        self.update_path(now_ns);
    }

    fn break_on_failure(&mut self, outcome: Result<(), Failure>) {
        if let Err(failure) = outcome {
            self.break_connection(failure.cause, Some(failure));
        }
    }

    fn break_connection(&mut self, cause: Cause, failure: Option<Failure>) {
        if self.state == State::Error {
            return;
        }
        self.state = State::Error;
        self.requester.flush(&self.config, failure, &mut self.events);
        self.splitter.clear();
        self.reassembly.clear();
        self.responder.end();
        self.events.push_back(Event::Broken { cause });
    }
}
