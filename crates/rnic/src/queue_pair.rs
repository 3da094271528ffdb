//! A queue pair: one end of a reliable connection.
//!
//! ```text
//!   Init ── ready_to_receive ──► ReadyToReceive ── ready_to_send ──► ReadyToSend
//!     └───────────── close, or what breaks the connection ─────────────┴──────────► Error
//! ```
//!
//! Inputs are packets that [`crate::wire::Flow`] has opened, requests, and the time; outputs are packets that are to be sealed,
//! events, and when it wants to be called again.  In the error state nothing of the peer touches memory any more.

use std::collections::VecDeque;

use crate::config::{Config, Mtu};
use crate::context::StepContext;
use crate::counters::Counters;
use crate::memory::Memory;
use crate::parts::{Assembly, Cutter, is_same};
use crate::path::Path;
use crate::requester::{Failure, Requester};
use crate::responder::{Responder, is_answered, is_sign_of_life};
use crate::room::{Share, is_used};
use crate::wire::path_eth::packet_bytes_max;
use crate::wire::{Headers, ICRC_BYTES, Packet, Psn, Qpn};
use crate::work::{Cause, Event, PostError, Request};

/// What a queue pair may do (verbs' states, without those that only adapters have).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Its peer is not known.
    Init,
    /// It answers its peer.
    ReadyToReceive,
    /// It carries out what is posted, too.
    ReadyToSend,
    /// The connection has ended; nothing begins it anew.
    Error,
}

/// See the head of this file.
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
    /// Whose packet went last, so that neither long answers nor long writes keep the other waiting.
    answered_last: bool,
    /// `None` towards others than our own ends.
    path: Option<Path>,
    cutter: Cutter,
    assembly: Assembly,
    /// When the packet came that is being handled.
    arrived_ns: u64,
    /// When the peer last sent something besides acknowledgements.
    used_ns: Option<u64>,
    /// It had not for long, and nobody has asked since.
    has_begun: bool,
}

/// The number of packet 0, so that there are numbers before it.
const FIRST: u64 = 1 << 24;

impl QueuePair {
    /// With number `qpn`, whose own packets count from `psn`.
    pub fn new(config: Config, qpn: Qpn, psn: Psn) -> QueuePair {
        QueuePair {
            path: config.finds_path.then(|| Path::new(config.mtu, psn)),
            cutter: Cutter::default(),
            assembly: Assembly::default(),
            requester: Requester::new(FIRST + u64::from(psn.value())).repeating_as(&config),
            config,
            qpn,
            peer_qp: Qpn::new(0),
            state: State::Init,
            responder: Responder::new(FIRST),
            events: VecDeque::new(),
            counters: Counters::default(),
            answered_last: false,
            arrived_ns: 0,
            used_ns: None,
            has_begun: false,
        }
    }

    /// Its peer is `peer_qp`, whose packets count from `psn`.
    ///
    /// # Panics
    /// Unless it is in [`State::Init`].
    pub fn ready_to_receive(&mut self, peer_qp: Qpn, psn: Psn) {
        assert_eq!(self.state, State::Init, "the peer of a queue pair never changes");
        self.peer_qp = peer_qp;
        self.responder = Responder::new(FIRST + u64::from(psn.value()));
        self.state = State::ReadyToReceive;
    }

    /// The peer is ready to receive.
    ///
    /// # Panics
    /// Unless it is ready to receive itself.
    pub fn ready_to_send(&mut self) {
        assert_eq!(self.state, State::ReadyToReceive, "a queue pair receives before it sends");
        self.state = State::ReadyToSend;
    }

    /// The state that it is in.
    pub fn state(&self) -> State {
        self.state
    }

    /// Its own number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// What it has counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The smoothed time from a request to its answer, once there was one.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.requester.round_trip_ns()
    }

    /// Packets that may be under way: what the peer has granted, or less where the network takes less.
    pub fn window_packets(&self) -> u32 {
        self.requester.window()
    }

    /// The most payload of a packet that is known to come through; longer packets leave in parts.
    pub fn path_mtu(&self) -> Mtu {
        self.path.as_ref().map_or(self.config.mtu, Path::mtu)
    }

    /// Whether it has been found out how long packets come through.
    pub fn knows_path(&self) -> bool {
        self.path.as_ref().is_none_or(Path::is_known)
    }

    /// Whether a probe of ours was ever answered: so packets get there, and back.
    pub fn is_path_answered(&self) -> bool {
        self.path.as_ref().is_some_and(Path::is_answered)
    }

    /// Packets with so much payload came through to the peer's host before: longer ones leave in parts until more is found.
    pub fn expect_path(&mut self, now_ns: u64, mtu: Mtu) {
        if let Some(path) = &mut self.path {
            path.expect(mtu);
        }
        self.heed_path(now_ns);
    }

    /// Begins to find out how long packets come through, unless that is under way; the peer is ready.
    pub fn find_path(&mut self, now_ns: u64) {
        let trip_ns = self.requester.round_trip_ns();
        if let Some(path) = self.path.as_mut().filter(|_| self.state == State::ReadyToSend) {
            path.search(now_ns, trip_ns);
        }
    }

    /// Requests that have not ended.
    pub fn posted(&self) -> usize {
        self.requester.posted()
    }

    /// Bytes of the longest packet that it writes.
    pub fn packet_bytes_max(&self) -> usize {
        packet_bytes_max(self.config.mtu)
    }

    /// There is room for so many more messages and immediates of the peer.
    pub fn add_receives(&mut self, count: u32) {
        self.responder.add_receives(count);
    }

    /// The receive buffer takes so many packets of this peer from now on.
    pub fn set_grant(&mut self, now_ns: u64, packets: u32) {
        self.responder.set_grant(now_ns, packets);
    }

    /// Its share of the receive buffer, as a [`Room`](crate::room::Room) has it.
    pub fn share(&self) -> Share {
        let (grant, answers) = (self.responder.grant(), self.config.room_packets);
        Share { used_ns: self.used_ns, grant, answers, ..Share::new(self.config.mtu.bytes()) }
    }

    /// Another share from now on, of which the peer is told.
    pub fn set_share(&mut self, now_ns: u64, share: Share) {
        self.config.room_packets = share.answers;
        self.set_grant(now_ns, share.grant);
    }

    /// Whether the peer has begun to send, having been silent for long, since this was last asked: a share of the receive buffer is due.
    pub fn take_has_begun(&mut self) -> bool {
        std::mem::take(&mut self.has_begun)
    }

    /// Whether a request of the peer was ever carried out.
    pub fn has_heard_requests(&self) -> bool {
        self.responder.has_begun()
    }

    fn note_used(&mut self, now_ns: u64) {
        self.has_begun |= !is_used(self.used_ns, now_ns);
        self.used_ns = Some(now_ns);
    }

    /// Appends a request to the send queue.
    pub fn post(&mut self, request: Request) -> Result<(), PostError> {
        if self.state != State::ReadyToSend {
            return Err(PostError::NotReady);
        }
        self.requester.post(&self.config, request)
    }

    /// Ends the connection on this side: what is posted is flushed, and the peer touches memory no more.
    pub fn close(&mut self) {
        self.break_off(Cause::Closed, None);
    }

    /// Takes a packet, which is undamaged and from the peer's own address.
    pub fn handle_packet(&mut self, now_ns: u64, packet: &Packet<'_>, memory: &dyn Memory) {
        self.handle_stamped(now_ns, now_ns, packet, memory);
    }

    /// Likewise, of one that came at `arrived_ns` and has waited for our processor since.
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

    /// Takes what is about the path, or a part of a packet.
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
                // Who has come to be there is about to send. [ROCE-WINDOW-5]
                if self.used_ns.is_none() {
                    self.note_used(now_ns);
                }
            }
            Headers::ProbeAnswer(eth) => match path.handle_answer(now_ns, packet.psn, eth) {
                // Where long packets may vanish, one is enough to lose.
                true if path.lets_all_through() => self.requester.expect_grant(eth.grant.into()),
                true => {}
                false => self.counters.stale += 1,
            },
            Headers::Part(eth) => {
                let Some(whole) = self.assembly.add(eth, packet.payload, self.config.mtu) else { return };
                match Packet::parse(&whole) {
                    Ok(whole) if is_same(&whole, packet.dest_qp, packet.psn) => {
                        self.handle_whole(now_ns, &whole, memory);
                    }
                    _ => self.counters.malformed += 1,
                }
            }
            _ => unreachable!("only these come here"),
        }
        self.heed_path(now_ns);
    }

    /// What is known of the path may have changed.
    fn heed_path(&mut self, now_ns: u64) {
        if let Some(path) = &self.path {
            self.requester.set_parts(now_ns, path.parts());
        }
    }

    fn handle_whole(&mut self, now_ns: u64, packet: &Packet<'_>, memory: &dyn Memory) {
        let is_answer = packet.headers.opcode().is_response();
        let has_bytes = !packet.payload.is_empty() && !matches!(packet.headers, Headers::Missing(_));
        // Who reads sends requests without bytes, and as many at a time as it is granted.
        if has_bytes && !is_sign_of_life(packet) || is_answered(packet) {
            self.note_used(now_ns);
        }
        if self.state == State::Error {
            self.counters.misdirected += 1;
            if !is_answer {
                self.responder.handle_request_after_end(packet);
            }
        } else if is_answer {
            let (requester, _, mut at) = self.parts(now_ns, memory);
            let outcome = requester.handle_answer(&mut at, packet);
            self.end_if_failed(outcome);
        } else {
            let (_, responder, mut at) = self.parts(now_ns, memory);
            if let Err(nak) = responder.handle_request(&mut at, packet) {
                self.break_off(Cause::PeerErred(nak), None);
            }
        }
    }

    /// Both state machines, and what a step of theirs gets to see.
    fn parts<'a>(
        &'a mut self,
        now_ns: u64,
        memory: &'a dyn Memory,
    ) -> (&'a mut Requester, &'a mut Responder, StepContext<'a>) {
        let (config, counters, events) = (&self.config, &mut self.counters, &mut self.events);
        let at = StepContext { now_ns, arrived_ns: self.arrived_ns, config, memory, counters, events };
        (&mut self.requester, &mut self.responder, at)
    }

    /// Writes the next packet that is to leave to the start of `buffer`, and returns its length; the ICRC is the caller's to write.
    ///
    /// It is asked until there is none.  An acknowledgement comes last, so that it ends the train of what leaves with it.
    ///
    /// # Panics
    /// Where the buffer is shorter than [`QueuePair::packet_bytes_max`].
    pub fn poll_transmit(&mut self, now_ns: u64, memory: &dyn Memory, buffer: &mut [u8]) -> Option<usize> {
        assert!(buffer.len() >= self.packet_bytes_max(), "too little room for a packet");
        let len = match self.state {
            State::Init => None,
            State::Error => self.responder.poll_nak(self.peer_qp, buffer),
            State::ReadyToReceive | State::ReadyToSend => {
                self.poll_path(buffer).or_else(|| self.poll_to_path(now_ns, memory, buffer))
            }
        };
        self.counters.sent += u64::from(len.is_some());
        len
    }

    /// Packets by which the peer has all that was posted, without their ICRC, for who can have it take them by another way and goes then: what it has
    /// already is not done twice.  `None` where somebody waits for what becomes of a request, or they have more bytes in all.
    pub fn rest(&self, memory: &dyn Memory, bytes_max: usize) -> Option<Vec<Vec<u8>>> {
        if self.state != State::ReadyToSend {
            return None;
        }
        self.requester.rest(memory, self.peer_qp, bytes_max, &mut vec![0; self.packet_bytes_max()])
    }

    /// Writes the next packet that is about the path.
    fn poll_path(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let (headers, psn, zeros) = self.path.as_mut()?.poll(self.responder.grant())?;
        let dest_qp = self.peer_qp;
        let packet = Packet { dest_qp, psn, ack_request: false, solicited: false, headers, payload: &[] };
        let begin = packet.emit_headers(zeros, buffer);
        buffer[begin..begin + zeros].fill(0);
        Some(begin + zeros + ICRC_BYTES)
    }

    /// Writes the next packet, or the next part of one that is too long for the path.
    fn poll_to_path(&mut self, now_ns: u64, memory: &dyn Memory, buffer: &mut [u8]) -> Option<usize> {
        if let Some(len) = self.cutter.poll(buffer) {
            return Some(len);
        }
        let len = self.poll_connected(now_ns, memory, buffer)?;
        match &self.path {
            Some(path) if path.is_too_long(len) => {
                self.cutter.cut(&buffer[..len - ICRC_BYTES], path.mtu());
                self.cutter.poll(buffer)
            }
            _ => Some(len),
        }
    }

    fn poll_connected(&mut self, now_ns: u64, memory: &dyn Memory, buffer: &mut [u8]) -> Option<usize> {
        if !self.answered_last && self.responder.has_answer() {
            self.answered_last = true;
            return self.poll_answer(now_ns, memory, buffer);
        }
        self.answered_last = false;
        let peer_qp = self.peer_qp;
        let (requester, _, mut at) = self.parts(now_ns, memory);
        match requester.poll_transmit(&mut at, peer_qp, buffer) {
            Ok(Some(len)) => return Some(len),
            Ok(None) => {}
            Err(failure) => {
                self.break_off(failure.cause, Some(failure));
                return None;
            }
        }
        if self.responder.has_answer() {
            return self.poll_answer(now_ns, memory, buffer);
        }
        let (_, responder, at) = self.parts(now_ns, memory);
        responder.poll_ack(&at, peer_qp, buffer)
    }

    fn poll_answer(&mut self, now_ns: u64, memory: &dyn Memory, buffer: &mut [u8]) -> Option<usize> {
        let peer_qp = self.peer_qp;
        let (_, responder, at) = self.parts(now_ns, memory);
        match responder.poll_answer(&at, peer_qp, buffer) {
            Ok(len) => len,
            Err(nak) => {
                self.break_off(Cause::PeerErred(nak), None);
                self.responder.poll_nak(peer_qp, buffer)
            }
        }
    }

    /// The oldest thing that has happened and was not told.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`QueuePair::handle_timeout`] and then [`QueuePair::poll_transmit`] want to be called, if nothing else happens before.
    pub fn poll_timeout(&self) -> Option<u64> {
        match self.state {
            State::Init | State::Error => None,
            _ => {
                let path = self.path.as_ref().and_then(Path::poll_timeout);
                [self.requester.poll_timeout(), self.responder.poll_timeout(), path]
                    .into_iter()
                    .flatten()
                    .min()
            }
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.state == State::ReadyToSend {
            let timeouts = self.counters.timeouts;
            let outcome = self.requester.handle_timeout(now_ns, &self.config, &mut self.counters);
            self.end_if_failed(outcome);
            self.see_to_path(now_ns, timeouts);
        }
    }

    /// Looks at the path again where much has been waited for in vain.
    fn see_to_path(&mut self, now_ns: u64, timeouts: u64) {
        if self.counters.timeouts > timeouts && self.requester.is_stuck() {
            self.find_path(now_ns);
        }
        if let Some(path) = &mut self.path {
            path.handle_timeout(now_ns);
        }
        self.heed_path(now_ns);
    }

    fn end_if_failed(&mut self, outcome: Result<(), Failure>) {
        if let Err(failure) = outcome {
            self.break_off(failure.cause, Some(failure));
        }
    }

    fn break_off(&mut self, cause: Cause, failure: Option<Failure>) {
        if self.state == State::Error {
            return;
        }
        self.state = State::Error;
        self.requester.flush(&self.config, failure, &mut self.events);
        self.cutter.forget();
        self.responder.end();
        self.events.push_back(Event::Broken { cause });
    }
}
