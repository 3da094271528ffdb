//! The requester: sends posted requests, handles responses, and retransmits lost packets.
//!
//! ```text
//!        una               next           sent_end         end
//!   done  │ in flight        │ to retransmit  │ not sent yet │
//!  ───────┼──────────────────┼────────────────┼──────────────┼──►  packets, numbered in 64 bits
//! ```
//!
//! A posted request gets one number for each of its packets, or for each packet of its response. `una` is the number of
//! the oldest unacknowledged packet or, within a read, of the next response packet. To go back N, the requester sets
//! `next = una`. A timeout alone does not prove a loss, because the peer's process may be descheduled. So after a
//! timeout, the requester sends only the newest packet again, as a probe, and the response shows which packets are
//! missing. If the peer keeps early packets, the requester uses selective repeat: see [`selective`].

mod bdp;
mod scoreboard;
mod selective;
mod surplus;

use std::collections::VecDeque;

use self::selective::Selective;
use crate::config::{Config, Retry, nanoseconds};
use crate::context::StepContext;
use crate::counters::Counters;
use crate::layout::{Layout, Piece};
use crate::memory::Memory;
use crate::round_trip::{RoundTrip, TIMEOUT_NS_MAX};
use crate::wire::{
    AethRepr, AtomicEthRepr, Credit, Headers, Nak, Packet, Psn, Qpn, RethRepr, SEQUENCE_WINDOW, Syndrome,
};
use crate::work::{Cause, Event, Operation, PostError, Remote, Request, Source, Status};

/// Maximum packets in the response to one read request.
const READ_PACKETS_MAX: u32 = 64;

/// Number of consecutive timeouts after which the congestion controller treats its window as outdated.
const SILENCE_TIMEOUTS: u32 = 3;

/// Maximum window in packets before the first acknowledgement: enough for the first messages of a new connection.
const FIRST_PACKETS_MAX: u32 = 16;
/// Grants up to this size, in packets, indicate a receive buffer shared by many senders.
const SMALL_GRANT_PACKETS: u32 = 4;

/// The longest message that the InfiniBand architecture allows.
const MESSAGE_BYTES_MAX: u32 = 1 << 31;

/// A failure that ends the connection: the number of the failed packet, the status of its request, and the cause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub sequence: u64,
    pub status: Status,
    pub cause: Cause,
}

impl Failure {
    /// Returns true if the peer cannot have executed later requests, because it refused this one in sequence.
    // [ROCE-NAK-3]
    fn prevents_later_requests(&self) -> bool {
        matches!(self.cause, Cause::Refused(Nak::RemoteAccess | Nak::InvalidRequest))
    }
}

/// A posted request, with its packets.
#[derive(Debug)]
struct WorkRequest {
    request: Request,
    layout: Layout,
    /// Number of its first packet.
    first: u64,
    /// Number after its last packet.
    end: u64,
    /// Previous value of the word, if the response to an atomic arrived before earlier requests completed.
    old: Option<u64>,
}

/// A packet in flight.
#[derive(Debug)]
struct InFlight {
    first: u64,
    /// Sequence number after the packet, or after the last packet of its response.
    end: u64,
    sent_ns: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Requester {
    send_queue: VecDeque<WorkRequest>,
    una: u64,
    next: u64,
    sent_end: u64,
    end: u64,
    /// Packets that the peer has granted; before the first grant, the configured first window.
    window: u32,
    /// True if the peer has sent a grant in a response.
    is_granted: bool,
    /// Number after the last packet that requested an acknowledgement.
    ack_end: u64,
    /// Number ranges of the reads and atomics between `una` and `next`.
    data_ranges: VecDeque<(u64, u64)>,
    /// Number of packets in `data_ranges`.
    data_packets: u64,
    /// All packets between `una` and `next`.
    in_flight: VecDeque<InFlight>,
    /// True if only probes are sent until the peer responds.
    is_probing: bool,
    /// True if a probe is due.
    probe_is_due: bool,
    /// Time of the first response after a silence; timeouts of packets in flight count from then.
    resumed_ns: u64,
    /// True if the requester has gone back since `una` last advanced. Further NAKs are ignored until `una` advances.
    has_gone_back: bool,
    /// Expiry of the retransmission timer.
    timer_ns: Option<u64>,
    /// Consecutive timeouts, each of which doubles the next one.
    attempts: u32,
    /// Start of the lease: the time of the last progress, or the send time of the first packet in flight.
    lease_begin_ns: u64,
    /// End of the wait that an RNR NAK requested.
    rnr_until_ns: Option<u64>,
    /// Consecutive RNR NAKs for the same packet.
    rnr_attempts: u32,
    round_trip: RoundTrip,
    /// Timeouts since `una` last advanced.
    timeouts_without_progress: u32,
    /// Number of parts of the longest packet.
    parts: u32,
    /// `None` in go-back-N mode.
    selective: Option<Selective>,
}

impl Requester {
    /// Creates a requester whose first packet gets the number `first`.
    pub fn new(first: u64) -> Requester {
        Requester {
            una: first,
            next: first,
            sent_end: first,
            end: first,
            ack_end: first,
            window: 1,
            parts: 1,
            ..Requester::default()
        }
    }

    /// Applies the configuration: sets the first window, and enables selective repeat if the ends have negotiated it.
    pub fn configured(mut self, config: &Config) -> Requester {
        self.window = config.first_packets_max;
        self.selective = config.selective.then(|| Selective::new(config, self.una));
        self
    }

    /// Appends a request to the send queue, and numbers its packets. Fails without an effect if the queue is full or a
    /// length is too large.
    pub fn post(&mut self, config: &Config, request: Request) -> Result<(), PostError> {
        if self.send_queue.len() >= config.send_queue_max {
            return Err(PostError::QueueFull);
        }
        let address = match &request.operation {
            Operation::Send { bytes, .. } if bytes.len() > config.send_bytes_max => {
                return Err(PostError::Malformed);
            }
            Operation::Write { source: Source::Inline(bytes), .. } if u32::try_from(bytes.len()).is_err() => {
                return Err(PostError::Malformed);
            }
            Operation::Send { .. } => 0,
            Operation::Write { remote, .. }
            | Operation::Read { remote, .. }
            | Operation::FetchAdd { remote, .. }
            | Operation::CompareSwap { remote, .. } => remote.address,
        };
        let message_packets_max = match request.operation {
            // [ROCE-SEL-6]
            Operation::Write { .. } if config.selective => 1,
            Operation::Read { .. } if config.selective => config.read_packets_max.clamp(1, READ_PACKETS_MAX),
            // Two requests in flight fill the receive buffer.
            Operation::Read { .. } => {
                (config.room_packets / 2).min(config.read_packets_max).clamp(1, READ_PACKETS_MAX)
            }
            Operation::Write { .. } => {
                config.write_packets_max.clamp(1, MESSAGE_BYTES_MAX / config.mtu.bytes())
            }
            _ => MESSAGE_BYTES_MAX / config.mtu.bytes(),
        };
        let len = request.operation.len_bytes();
        let layout = Layout::new(config.mtu.bytes(), address, len, message_packets_max);
        let (first, end) = (self.end, self.end + u64::from(layout.packets()));
        self.end = end;
        self.send_queue.push_back(WorkRequest { request, layout, first, end, old: None });
        Ok(())
    }

    /// Writes the next packet to `buffer` and returns its length; `None` if no packet is pending, or if a limit holds
    /// the next packet back.
    pub fn poll_transmit(
        &mut self,
        step: &mut StepContext<'_>,
        dest_qp: Qpn,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, Failure> {
        let (now_ns, config) = (step.now_ns, step.config);
        if self.rnr_until_ns.is_some_and(|until| now_ns < until) {
            return Ok(None);
        }
        self.rnr_until_ns = None;
        if std::mem::take(&mut self.probe_is_due)
            && let Some(newest) = self.probe_sequence()
        {
            return match self.sends_empty_probes() {
                true => Ok(Some(self.write_empty_probe(dest_qp, buffer))),
                false => self.write_probe(step, dest_qp, newest, buffer).map(Some),
            };
        }
        if self.selective.is_some() {
            return self.poll_selective(step, dest_qp, buffer);
        }
        if self.next == self.end {
            return Ok(None);
        }
        let sequence = self.next;
        let work = &self.send_queue[self.index_of(sequence)];
        let mut piece = work.layout.piece((sequence - work.first) as u32);
        if self.is_probing && matches!(work.request.operation, Operation::Read { .. }) {
            // A probe is one packet each way; its response leads to requests for the rest.
            piece = piece.as_message();
        }
        let numbers = match work.request.operation {
            Operation::Read { .. } => u64::from(piece.packets_rest),
            _ => 1,
        };
        if !self.may_send(config, work, numbers) {
            return Ok(None);
        }
        let is_repeated = sequence < self.sent_end;
        let returns_data = work.request.operation.returns_data();
        let ack_request = !returns_data
            && (work.request.signalled && piece.is_end
                || sequence + 1 - self.ack_end.min(sequence) >= u64::from(self.limit(config)).div_ceil(4)
                || is_repeated && sequence == self.una);
        let len = write_packet(step.memory, work, sequence, &piece, ack_request, dest_qp, buffer)?;
        let timeout_ns = self.timeout_ns(config);
        self.timer_ns.get_or_insert(now_ns.saturating_add(timeout_ns));
        self.on_sent(now_ns, sequence, numbers, returns_data, ack_request);
        step.counters.repeated += u64::from(is_repeated);
        Ok(Some(len))
    }

    /// Returns all unacknowledged packets, sent or unsent, without ICRC; see
    /// [`QueuePair::rest`](crate::QueuePair::rest).
    pub fn rest(
        &self,
        memory: &dyn Memory,
        dest_qp: Qpn,
        bytes_max: usize,
        buffer: &mut [u8],
    ) -> Option<Vec<Vec<u8>>> {
        let (mut packets, mut bytes_left) = (Vec::new(), bytes_max);
        for sequence in self.una..self.end {
            let work = &self.send_queue[self.index_of(sequence)];
            if work.request.operation.returns_data() || work.request.signalled {
                return None;
            }
            let piece = work.layout.piece((sequence - work.first) as u32);
            let len = write_packet(memory, work, sequence, &piece, false, dest_qp, buffer).ok()?
                - crate::wire::ICRC_BYTES;
            bytes_left = bytes_left.checked_sub(len)?;
            packets.push(buffer[..len].to_vec());
        }
        Some(packets)
    }

    /// Sends packet `newest` again, or requests that packet of a read response again. The peer's response shows whether
    /// all packets before it arrived: an acknowledgement or a read response confirms them; a NAK names the missing one.
    // [ROCE-TIME-2]
    fn write_probe(
        &mut self,
        step: &mut StepContext<'_>,
        dest_qp: Qpn,
        newest: u64,
        buffer: &mut [u8],
    ) -> Result<usize, Failure> {
        let work = &self.send_queue[self.index_of(newest)];
        let mut piece = work.layout.piece((newest - work.first) as u32);
        let returns_data = work.request.operation.returns_data();
        if returns_data {
            piece = piece.as_message();
        }
        if let Some(selective) = &mut self.selective {
            selective.on_repeated(step.now_ns, newest, returns_data);
        }
        step.counters.repeated += 1;
        write_packet(step.memory, work, newest, &piece, !returns_data, dest_qp, buffer)
    }

    /// Returns true if probes are empty writes, false if they are retransmitted packets. A packet in parts is lost more
    /// often than a short one. A congestion controller needs packets of full length to measure the network.
    fn sends_empty_probes(&self) -> bool {
        let Some(selective) = &self.selective else { return false };
        self.parts > 1 || self.window <= SMALL_GRANT_PACKETS && selective.window_packets().is_none()
    }

    /// Writes a probe: an empty write with the number before `una`, which the peer acknowledges as a duplicate. If many
    /// senders retransmitted full packets to a descheduled receiver, its small buffer would overflow.
    // [ROCE-TIME-3]
    fn write_empty_probe(&self, dest_qp: Qpn, buffer: &mut [u8]) -> usize {
        let reth = RethRepr { address: 0, rkey: 0, len: 0 };
        let packet = Packet {
            dest_qp,
            psn: Psn::of(self.una - 1),
            ack_request: true,
            solicited: false,
            headers: Headers::WriteOnly { reth, imm: None },
            payload: &[],
        };
        packet.emit(buffer)
    }

    /// Returns the number of the packet to probe with, the newest one in flight.
    fn probe_sequence(&self) -> Option<u64> {
        match &self.selective {
            Some(selective) => selective.newest_unfinished(),
            None => self.in_flight.back().map(|packet| packet.end - 1),
        }
    }

    /// Records a packet that was sent.
    fn on_sent(&mut self, now_ns: u64, sequence: u64, numbers: u64, returns_data: bool, requests_ack: bool) {
        if self.una == self.next && self.attempts == 0 {
            self.lease_begin_ns = now_ns;
        }
        if sequence >= self.sent_end && (returns_data || requests_ack) {
            self.round_trip.start_timing(now_ns, sequence);
        }
        self.next = sequence + numbers;
        self.in_flight.push_back(InFlight { first: sequence, end: self.next, sent_ns: now_ns });
        self.sent_end = self.sent_end.max(self.next);
        if returns_data {
            self.data_ranges.push_back((sequence, self.next));
            self.data_packets += numbers;
        }
        if returns_data || requests_ack {
            self.ack_end = self.next;
        }
    }

    /// Returns the current retransmission timeout.
    fn timeout_ns(&self, config: &Config) -> u64 {
        match config.retry {
            Retry::Lease(_) => self.round_trip.timeout_ns(self.attempts),
            Retry::Count { timeout, .. } => nanoseconds(timeout),
        }
    }

    /// Returns the maximum number of packets in flight.
    // [ROCE-WINDOW-1]
    fn limit(&self, config: &Config) -> u32 {
        let granted = if config.grants { self.window } else { u32::MAX };
        let packets = self.limit_over_path(config, granted.min(config.window_packets_max));
        if self.is_probing { 1 } else { (packets / self.parts).max(1) }
    }

    /// Returns the maximum number of packets in flight under a grant of `granted` packets: the packets that the path
    /// holds, and the part of the grant that does not delay other flows.
    // [ROCE-WINDOW-6]
    fn limit_over_path(&self, config: &Config, granted: u32) -> u32 {
        let selective = self.selective.as_ref().filter(|_| config.fills_path);
        selective.map_or(granted, |selective| selective.limit_over_path(granted))
    }

    /// Returns the number of packets that may be in flight beyond the grant, because the path itself holds them.
    fn path_packets(&self, config: &Config) -> u32 {
        let selective = self.selective.as_ref().filter(|_| config.fills_path);
        selective.map_or(0, Selective::path_packets)
    }

    /// Returns true if the limits permit a new request packet that takes `numbers` sequence numbers.
    // [ROCE-WINDOW-2]
    fn may_send(&self, config: &Config, work: &WorkRequest, numbers: u64) -> bool {
        // Only the oldest response may have arrived in part.
        let arrived = self.data_ranges.front().map_or(0, |(first, _)| self.una.saturating_sub(*first));
        let outstanding = self.data_packets - arrived;
        let sent = self.next - self.una - outstanding + self.data_ranges.len() as u64;
        if sent >= u64::from(self.limit(config)) {
            return false;
        }
        if !work.request.operation.returns_data() {
            return true;
        }
        self.data_ranges.len() < config.reads_max.max(1)
            && (outstanding == 0 || outstanding + numbers <= u64::from(config.room_packets / self.parts))
    }

    /// Returns the index in the queue of the request that a packet belongs to.
    fn index_of(&self, sequence: u64) -> usize {
        self.send_queue.partition_point(|work| work.end <= sequence)
    }

    /// Handles a response. Returns an error if the connection ends.
    pub fn handle_response(
        &mut self,
        step: &mut StepContext<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Failure> {
        let sequence = packet.psn.expand(self.una).filter(|sequence| *sequence < self.sent_end);
        let Some(sequence) = sequence else {
            step.counters.out_of_window += 1;
            return Ok(());
        };
        if sequence < self.una {
            let has_data = !matches!(packet.headers, Headers::Acknowledge(_) | Headers::Missing(_));
            match self.selective.is_some() && has_data {
                true => step.counters.duplicates += 1,
                false => step.counters.stale += 1,
            }
        }
        if self.selective.is_some() {
            if let Some(aeth) = packet.headers.aeth() {
                self.update_window(step.config, sequence, aeth);
            }
            return self.handle_selective(step, sequence, packet);
        }
        match packet.headers {
            // A peer may send this packet only with selective repeat.
            Headers::Missing(_) => {
                step.counters.malformed += 1;
                Ok(())
            }
            Headers::Acknowledge(aeth) => self.handle_acknowledge(step, sequence, aeth),
            Headers::ReadResponseFirst(aeth)
            | Headers::ReadResponseLast(aeth)
            | Headers::ReadResponseOnly(aeth) => {
                self.update_window(step.config, sequence, aeth);
                self.handle_read_response(step, sequence, packet.payload)
            }
            Headers::ReadResponseMiddle => self.handle_read_response(step, sequence, packet.payload),
            Headers::AtomicAcknowledge { aeth, old } => {
                self.update_window(step.config, sequence, aeth);
                self.handle_atomic_response(step, sequence, old);
                Ok(())
            }
            _ => unreachable!("the caller passes only responses"),
        }
    }

    /// Adopts the grant of a response, unless the response is outdated.
    fn update_window(&mut self, config: &Config, sequence: u64, aeth: AethRepr) {
        if sequence + 1 >= self.una
            && let Syndrome::Ack(credit) = aeth.syndrome
        {
            self.window = window_of(config, credit);
            self.is_granted = true;
        }
    }

    /// Adopts the grant in the answer to a path probe, at most [`FIRST_PACKETS_MAX`], until the first response with a
    /// grant arrives.
    // [ROCE-WINDOW-5]
    pub fn expect_grant(&mut self, packets: u32) {
        if !self.is_granted {
            self.window = self.window.max(packets.min(FIRST_PACKETS_MAX));
        }
    }

    /// Adopts an upper bound of the round trip, in ns, until the first sample.
    pub fn expect_round_trip(&mut self, ns: u64) {
        if self.round_trip.smoothed_ns().is_none() {
            self.round_trip.set_initial_bound(ns);
            self.timer_ns = self.timer_ns.map(|at_ns| at_ns.saturating_add(ns));
        }
    }

    /// Handles an acknowledgement or a NAK in go-back-N mode.
    fn handle_acknowledge(
        &mut self,
        step: &mut StepContext<'_>,
        sequence: u64,
        aeth: AethRepr,
    ) -> Result<(), Failure> {
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                self.update_window(step.config, sequence, aeth);
                if !self.advance(step, sequence + 1) {
                    self.go_back_once();
                }
            }
            // [ROCE-RNR-2]
            Syndrome::RnrNak(timer) => {
                if !self.advance(step, sequence) || sequence != self.una {
                    return Ok(());
                }
                step.counters.rnr_naks += 1;
                if self.rnr_retries_are_exhausted(step.config) {
                    let (status, cause) = (Status::RnrRetryExceeded, Cause::RnrRetryExceeded);
                    return Err(Failure { sequence, status, cause });
                }
                self.rnr_attempts += 1;
                self.attempts = 0;
                self.lease_begin_ns = step.now_ns;
                self.rnr_until_ns = Some(step.now_ns + timer.nanoseconds());
                self.timer_ns = None;
                self.go_back();
            }
            // [ROCE-NAK-2]
            Syndrome::Nak(Nak::Sequence) => {
                if sequence < self.una {
                    return Ok(());
                }
                step.counters.naks += 1;
                self.advance(step, sequence);
                self.go_back_once();
            }
            Syndrome::Nak(nak) => {
                if sequence < self.una {
                    return Ok(());
                }
                self.advance(step, sequence);
                return Err(Failure { sequence, status: nak.into(), cause: Cause::Refused(nak) });
            }
        }
        Ok(())
    }

    fn rnr_retries_are_exhausted(&self, config: &Config) -> bool {
        match config.retry {
            Retry::Lease(_) => false,
            Retry::Count { rnr_retries, .. } => {
                rnr_retries < 7 && self.rnr_attempts >= u32::from(rnr_retries)
            }
        }
    }

    /// Stores a packet of a read response in go-back-N mode. Packets of responses must arrive in order.
    // [ROCE-READ-2]
    fn handle_read_response(
        &mut self,
        step: &mut StepContext<'_>,
        sequence: u64,
        payload: &[u8],
    ) -> Result<(), Failure> {
        if sequence < self.una {
            return Ok(());
        }
        let index = self.index_of(sequence);
        let work = &self.send_queue[index];
        let Operation::Read { local, .. } = work.request.operation else {
            step.counters.malformed += 1;
            return Ok(());
        };
        let piece = work.layout.piece((sequence - work.first) as u32);
        if payload.len() != piece.len as usize {
            step.counters.malformed += 1;
            return Ok(());
        }
        // A response acknowledges all packets before it. If earlier reads or atomics still wait for responses, those
        // were lost.
        self.advance(step, sequence);
        if self.una != sequence {
            self.go_back_once();
            return Ok(());
        }
        let to = local.address.wrapping_add(u64::from(piece.offset));
        if !payload.is_empty() && step.memory.write_own(local.key, to, payload).is_err() {
            let (status, cause) = (Status::LocalAccess, Cause::LocalAccess);
            return Err(Failure { sequence, status, cause });
        }
        self.una = sequence + 1;
        self.on_progress(step.now_ns, step.config);
        self.complete_first(None, step.events);
        Ok(())
    }

    // [ROCE-ATOMIC-3]
    fn handle_atomic_response(&mut self, step: &mut StepContext<'_>, sequence: u64, old: u64) {
        if sequence < self.una {
            return;
        }
        let work = &self.send_queue[self.index_of(sequence)];
        if !matches!(work.request.operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. }) {
            step.counters.malformed += 1;
            return;
        }
        self.advance(step, sequence);
        if self.una != sequence {
            self.go_back_once();
            return;
        }
        self.una = sequence + 1;
        self.on_progress(step.now_ns, step.config);
        self.complete_first(Some(old), step.events);
    }

    /// Acknowledges all packets before `to`, but stops at the first request whose response returns data. Returns true
    /// if there was no such request.
    // [ROCE-ACK-3]
    fn advance(&mut self, step: &mut StepContext<'_>, to: u64) -> bool {
        let before = self.una;
        while self.una < to {
            let Some(work) = self.send_queue.front() else { break };
            if work.request.operation.returns_data() {
                break;
            }
            self.una = to.min(work.end);
            self.complete_first(None, step.events);
        }
        if self.una > before {
            self.on_progress(step.now_ns, step.config);
        }
        self.una >= to
    }

    /// Completes the oldest request if it is fully acknowledged.
    fn complete_first(&mut self, old: Option<u64>, events: &mut VecDeque<Event>) {
        if self.send_queue.front().is_some_and(|work| work.end <= self.una)
            && let Some(WorkRequest { request: Request { id, signalled, .. }, .. }) =
                self.send_queue.pop_front()
            && signalled
        {
            events.push_back(Event::Completed { id, status: Status::Success, old });
        }
    }

    /// Resets timers and retry state after `una` advanced.
    fn on_progress(&mut self, now_ns: u64, config: &Config) {
        self.next = self.next.max(self.una);
        while let Some((first, end)) = self.data_ranges.front().copied().filter(|(_, end)| *end <= self.una) {
            self.data_ranges.pop_front();
            self.data_packets -= end - first;
        }
        while self.in_flight.front().is_some_and(|packet| packet.end <= self.una) {
            self.in_flight.pop_front();
        }
        if std::mem::take(&mut self.is_probing) {
            self.resumed_ns = now_ns;
        }
        self.probe_is_due = false;
        self.has_gone_back = false;
        self.attempts = 0;
        self.timeouts_without_progress = 0;
        self.rnr_attempts = 0;
        self.lease_begin_ns = now_ns;
        self.round_trip.finish_timing(now_ns, self.una);
        self.timer_ns = self.in_flight.front().map(|oldest| {
            // A packet's timeout counts from its send time; that of a partly arrived response, from its last packet.
            let since_ns = if oldest.first < self.una { now_ns } else { oldest.sent_ns.max(self.resumed_ns) };
            since_ns.saturating_add(self.timeout_ns(config))
        });
    }

    /// Continues with the oldest unacknowledged packet.
    // [ROCE-GBN-1]
    fn go_back(&mut self) {
        self.next = self.una;
        self.data_ranges.clear();
        self.data_packets = 0;
        self.in_flight.clear();
        self.has_gone_back = true;
        self.probe_is_due = false;
        self.timer_ns = None;
        self.round_trip.cancel_timing();
    }

    /// Goes back N after a report of a missing packet. Shortens the next timeout, because the peer evidently responds.
    /// Does not restart the lease, which must end a request that the peer can never answer.
    fn go_back_once(&mut self) {
        if !self.has_gone_back {
            self.attempts = self.attempts.min(1);
            self.is_probing = false;
            self.go_back();
        }
    }

    /// Returns the time at which the next timer expires.
    pub fn poll_timeout(&self) -> Option<u64> {
        let selective = self.selective.as_ref().and_then(Selective::poll_timeout);
        // Lost and paced packets wait for the end of an RNR wait, too.
        let selective = selective.map(|at| at.max(self.rnr_until_ns.unwrap_or(0)));
        [self.timer_ns, self.rnr_until_ns, selective].into_iter().flatten().min()
    }

    /// Runs the timers that are due. Returns an error if the retry limit is reached.
    // [ROCE-TIME-2]
    pub fn handle_timeout(
        &mut self,
        now_ns: u64,
        config: &Config,
        counters: &mut Counters,
    ) -> Result<(), Failure> {
        self.rnr_until_ns = self.rnr_until_ns.filter(|until| now_ns < *until);
        self.run_loss_timer(now_ns, counters);
        if self.timer_ns.is_none_or(|at| now_ns < at) {
            return Ok(());
        }
        if self.selective.as_ref().is_some_and(|selective| !selective.awaits_response()) {
            // No packet awaits a response, so no probe is needed: the pacer releases lost packets.
            self.is_probing = false;
            self.timer_ns = Some(now_ns.saturating_add(self.timeout_ns(config)));
            return Ok(());
        }
        counters.timeouts += 1;
        self.attempts += 1;
        self.timeouts_without_progress += 1;
        let is_exhausted = match config.retry {
            Retry::Lease(lease) => now_ns.saturating_sub(self.lease_begin_ns) >= nanoseconds(lease),
            Retry::Count { retries, .. } => self.attempts > u32::from(retries),
        };
        if is_exhausted {
            let (status, cause) = (Status::RetryExceeded, Cause::RetryExceeded);
            return Err(Failure { sequence: self.una, status, cause });
        }
        match config.retry {
            Retry::Lease(_) => {
                self.probe_is_due = true;
                // A retransmitted packet may have been lost again.
                self.has_gone_back = false;
                self.round_trip.cancel_timing();
            }
            // A hardware adapter sends only one NAK for a gap.
            Retry::Count { .. } => self.go_back(),
        }
        if let Some(selective) = self.selective.as_mut().filter(|_| self.attempts == SILENCE_TIMEOUTS) {
            selective.handle_silence();
        }
        self.is_probing = true;
        // The timer expires no later than the lease, to report the failure in time.
        let left_ns = match config.retry {
            Retry::Lease(lease) => {
                self.lease_begin_ns.saturating_add(nanoseconds(lease)).saturating_sub(now_ns)
            }
            Retry::Count { .. } => u64::MAX,
        };
        self.timer_ns = Some(now_ns.saturating_add(self.timeout_ns(config).min(left_ns)));
        Ok(())
    }

    /// Returns true after 3, 6, 12, 24, ... timeouts without progress, which suggest that the path has changed. Over a
    /// long path, also returns true after the first one, because three could take most of the lease.
    // [ROCE-PATH-4]
    pub fn is_stuck(&self, config: &Config) -> bool {
        let is_long =
            self.round_trip.timeout_ns(0) > TIMEOUT_NS_MAX && matches!(config.retry, Retry::Lease(_));
        let timeouts = self.timeouts_without_progress;
        timeouts.is_multiple_of(3) && (timeouts / 3).is_power_of_two() || is_long && timeouts == 1
    }

    /// Sets the number of parts of the longest packet. If the number has changed, probes the packets in flight at once.
    // [ROCE-WINDOW-4]
    pub fn set_parts(&mut self, now_ns: u64, parts: u32) {
        if parts != self.parts {
            self.parts = parts;
            self.attempts = 0;
            self.timer_ns = self.timer_ns.map(|at| at.min(now_ns));
        }
    }

    /// Completes all posted requests with an error. `failure` is the failure that ended the connection, if there was
    /// one.
    // [ROCE-END-2]
    pub fn flush(&mut self, config: &Config, failure: Option<Failure>, events: &mut VecDeque<Event>) {
        for work in std::mem::take(&mut self.send_queue) {
            let status = match failure {
                Some(failure) if (work.first..work.end).contains(&failure.sequence) => failure.status,
                Some(failure) if failure.prevents_later_requests() && failure.sequence < work.first => {
                    Status::Flushed
                }
                _ if work.first < self.sent_end => Status::Aborted,
                _ => Status::Flushed,
            };
            events.push_back(Event::Completed { id: work.request.id, status, old: None });
        }
        *self = Requester { parts: self.parts, ..Requester::new(self.end) }.configured(config);
    }

    /// Returns the current round trip or, before the first sample, its upper bound, in ns.
    pub fn expected_round_trip_ns(&self) -> Option<u64> {
        self.round_trip.current_ns().or(self.round_trip.bound_ns())
    }

    pub fn round_trip_ns(&self) -> Option<u64> {
        self.round_trip.current_ns()
    }

    /// Returns the maximum number of packets in flight.
    pub fn window(&self, config: &Config) -> u32 {
        let packets = self.limit_over_path(config, self.window.min(config.window_packets_max));
        let congestion = self.selective.as_ref().and_then(Selective::window_packets);
        congestion.map_or(packets, |window| packets.min(window.ceil() as u32))
    }

    pub fn posted(&self) -> usize {
        self.send_queue.len()
    }

    /// Returns the number of packets of posted requests that have not been sent.
    pub fn unsent(&self) -> u64 {
        self.end - self.next
    }

    /// Returns the number of packets that the path delivers in `ns`, if this has been measured.
    pub fn delivered_in(&self, config: &Config, ns: u64) -> Option<u64> {
        self.selective.as_ref().filter(|_| config.fills_path)?.delivered_in(ns)
    }
}

/// Returns the window that a credit grants, in packets.
fn window_of(config: &Config, credit: Credit) -> u32 {
    credit.packets().unwrap_or(config.window_packets_max)
}

/// Writes packet `sequence`, whose payload is `piece` of its request; returns its length.
fn write_packet(
    memory: &dyn Memory,
    work: &WorkRequest,
    sequence: u64,
    piece: &Piece,
    ack_request: bool,
    dest_qp: Qpn,
    buffer: &mut [u8],
) -> Result<usize, Failure> {
    let headers = headers_of(&work.request.operation, piece);
    let packet = Packet {
        dest_qp,
        psn: Psn::of(sequence),
        ack_request,
        solicited: work.request.solicited && piece.is_end,
        headers,
        payload: &[],
    };
    let payload_bytes = if work.request.operation.returns_data() { 0 } else { piece.len as usize };
    let begin = packet.emit_headers(payload_bytes, buffer);
    let payload = &mut buffer[begin..begin + payload_bytes];
    let offset = piece.offset as usize;
    match &work.request.operation {
        Operation::Send { bytes, .. } | Operation::Write { source: Source::Inline(bytes), .. } => {
            payload.copy_from_slice(&bytes[offset..offset + payload_bytes]);
        }
        Operation::Write { source: Source::Registered { local, .. }, .. } => {
            // The only copy of the payload on the sending side.
            let from = local.address.wrapping_add(u64::from(piece.offset));
            if !payload.is_empty() && memory.read_own(local.key, from, payload).is_err() {
                let (status, cause) = (Status::LocalAccess, Cause::LocalAccess);
                return Err(Failure { sequence, status, cause });
            }
        }
        _ => {}
    }
    Ok(crate::wire::packet::packet_bytes(&headers, payload_bytes))
}

/// Returns the headers of a packet.
fn headers_of(operation: &Operation, piece: &Piece) -> Headers {
    let reth = |remote: Remote| RethRepr {
        address: remote.address.wrapping_add(u64::from(piece.offset)),
        rkey: remote.rkey,
        len: piece.message_rest,
    };
    match *operation {
        Operation::Send { imm, .. } => match (piece.is_first, piece.is_last()) {
            (true, true) => Headers::SendOnly { imm },
            (true, false) => Headers::SendFirst,
            (false, false) => Headers::SendMiddle,
            (false, true) => Headers::SendLast { imm },
        },
        Operation::Write { remote, imm, .. } => {
            // The immediate is in the last message, so it arrives after all bytes have landed.
            let imm = imm.filter(|_| piece.is_end);
            match (piece.is_first, piece.is_last()) {
                (true, true) => Headers::WriteOnly { reth: reth(remote), imm },
                (true, false) => Headers::WriteFirst(reth(remote)),
                (false, false) => Headers::WriteMiddle,
                (false, true) => Headers::WriteLast { imm },
            }
        }
        Operation::Read { remote, .. } => Headers::ReadRequest(reth(remote)),
        Operation::FetchAdd { remote: Remote { rkey, address }, add } => {
            Headers::FetchAdd(AtomicEthRepr { address, rkey, swap_or_add: add, compare: 0 })
        }
        Operation::CompareSwap { remote: Remote { rkey, address }, expected, new } => {
            Headers::CompareSwap(AtomicEthRepr { address, rkey, swap_or_add: new, compare: expected })
        }
    }
}

const _: () = assert!((READ_PACKETS_MAX as u64) < SEQUENCE_WINDOW);
