//! The requester: sends what is posted, hears how it went, and sends again what was lost.
//!
//! ```text
//!        una               next           sent_end         end
//!   done  │ under way        │ to be repeated │ not sent yet │
//!  ───────┼──────────────────┼────────────────┼──────────────┼──►  packets, numbered in 64 bits
//! ```
//!
//! Each posted request has its numbers from the start: one for each packet that it takes, or that its answer takes.  `una` is the
//! oldest that is not acknowledged, in the middle of a read the next one to arrive.  Going back N is `next = una`.
//! Silence alone is no loss: the peer may wait for its processor.  So the timer has only the newest packet sent again, and the
//! peer's answer to that says what is missing.
//! A peer that keeps what arrives out of order lets single packets be repeated: see [`selective`].

mod scoreboard;
mod selective;

use std::collections::VecDeque;

use self::selective::Selective;
use crate::config::{Config, Retry, nanoseconds};
use crate::context::StepContext;
use crate::counters::Counters;
use crate::layout::{Layout, Piece};
use crate::memory::Memory;
use crate::round_trip::RoundTrip;
use crate::wire::{
    AethRepr, AtomicEthRepr, Credit, Headers, Nak, Packet, Psn, Qpn, RethRepr, SEQUENCE_WINDOW, Syndrome,
};
use crate::work::{Cause, Event, Operation, PostError, Remote, Request, Source, Status};

/// Most packets of an answer that one read request asks for.
const READ_PACKETS_MAX: u32 = 64;

/// After so many attempts in vain, what was known of the path may be over.
const SILENT_ATTEMPTS: u32 = 3;

/// Most packets that leave before one was acknowledged: what two ends say first when they have met, each in a packet of its own.
const FIRST_PACKETS_MAX: u32 = 16;
/// Who is granted so few packets has to do with somebody who has little room.
const SCARCE_PACKETS: u32 = 4;

/// The longest message that the architecture has.
const MESSAGE_BYTES_MAX: u32 = 1 << 31;

/// What ends the connection: the packet on whose request it is to be blamed, how that ended, and the cause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub sequence: u64,
    pub status: Status,
    pub cause: Cause,
}

impl Failure {
    /// Whether the peer has done nothing of what is behind: requests are refused in their order, and end the connection.
    // [ROCE-NAK-3]
    fn leaves_rest_undone(&self) -> bool {
        matches!(self.cause, Cause::Refused(Nak::RemoteAccess | Nak::InvalidRequest))
    }
}

/// A posted request.
#[derive(Debug)]
struct Work {
    request: Request,
    layout: Layout,
    /// Its first packet's number.
    first: u64,
    /// The number behind its last packet's.
    end: u64,
    /// What an atomic found, if that was told before its turn to complete.
    old: Option<u64>,
}

/// A packet that has left.
#[derive(Debug)]
struct UnderWay {
    first: u64,
    /// The number behind it, or behind the last packet of its answer.
    end: u64,
    left_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Requester {
    works: VecDeque<Work>,
    una: u64,
    next: u64,
    sent_end: u64,
    end: u64,
    /// Packets that the peer has granted: one, until it says more.
    window: u32,
    /// It has said so for what it has received.
    is_granted: bool,
    /// Since which packet no acknowledgement has been asked for.
    asked_end: u64,
    /// Numbers of the reads and atomics between `una` and `next`, from and to.
    answers: VecDeque<(u64, u64)>,
    /// How many numbers these are.
    answer_packets: u64,
    /// All packets between `una` and `next`.
    under_way: VecDeque<UnderWay>,
    /// Whether nothing new is sent until something is heard.
    is_probing: bool,
    /// Whether the newest packet under way is to be sent again, to find out what became of all of them.
    probe_is_due: bool,
    /// When something was heard after silence: what is still under way is waited for from then on.
    resumed_ns: u64,
    /// Whether `go_back` was called since `una` last moved: who says once more what is missing is not heard.
    has_gone_back: bool,
    /// When to give up waiting for an answer.
    timer_ns: Option<u64>,
    attempts: u32,
    /// When something was last heard that was news, or the first packet under way was sent.
    heard_ns: u64,
    /// Until when the peer wants to be left alone, for it has no receive.
    rnr_until_ns: Option<u64>,
    rnr_attempts: u32,
    trip: RoundTrip,
    /// Times that the timer ran out since `una` moved.
    in_vain: u32,
    /// Parts in which the longest packet leaves.
    parts: u32,
    /// `None` where all behind a lost packet is sent again.
    selective: Option<Selective>,
}

impl Requester {
    /// The first packet will have number `first`.
    pub fn new(first: u64) -> Requester {
        Requester {
            works: VecDeque::new(),
            una: first,
            next: first,
            sent_end: first,
            end: first,
            window: 1,
            is_granted: false,
            asked_end: first,
            answers: VecDeque::new(),
            answer_packets: 0,
            under_way: VecDeque::new(),
            is_probing: false,
            probe_is_due: false,
            resumed_ns: 0,
            has_gone_back: false,
            timer_ns: None,
            attempts: 0,
            heard_ns: 0,
            rnr_until_ns: None,
            rnr_attempts: 0,
            trip: RoundTrip::default(),
            in_vain: 0,
            parts: 1,
            selective: None,
        }
    }

    /// It repeats single packets, if that is agreed on.
    pub fn repeating_as(mut self, config: &Config) -> Requester {
        self.window = config.first_packets_max;
        self.selective = config.selective.then(|| Selective::new(config, self.una));
        self
    }

    pub fn post(&mut self, config: &Config, request: Request) -> Result<(), PostError> {
        if self.works.len() >= config.send_queue_max {
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
            Operation::Read { .. } | Operation::Write { .. } if config.selective => 1,
            // Two under way keep the room full.
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
        self.works.push_back(Work { request, layout, first, end, old: None });
        Ok(())
    }

    /// Writes the next packet that may leave now; `None` where none may.
    pub fn poll_transmit(
        &mut self,
        at: &mut StepContext<'_>,
        dest_qp: Qpn,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, Failure> {
        let (now_ns, config) = (at.now_ns, at.config);
        if self.rnr_until_ns.is_some_and(|until| now_ns < until) {
            return Ok(None);
        }
        self.rnr_until_ns = None;
        if std::mem::take(&mut self.probe_is_due)
            && let Some(newest) = self.newest_to_ask_by()
        {
            return match self.asks_briefly() {
                true => Ok(Some(self.write_ask(dest_qp, buffer))),
                false => self.write_probe(at, dest_qp, newest, buffer).map(Some),
            };
        }
        if self.selective.is_some() {
            return self.poll_selective(at, dest_qp, buffer);
        }
        if self.next == self.end {
            return Ok(None);
        }
        let sequence = self.next;
        let work = &self.works[self.index_of(sequence)];
        let mut piece = work.layout.piece((sequence - work.first) as u32);
        if self.is_probing && matches!(work.request.operation, Operation::Read { .. }) {
            // One packet each way: the rest is asked for when that has come.
            piece = piece.alone();
        }
        let numbers = match work.request.operation {
            Operation::Read { .. } => u64::from(piece.packets_rest),
            _ => 1,
        };
        if !self.may_send(config, work, numbers) {
            return Ok(None);
        }
        let is_repeated = sequence < self.sent_end;
        let is_answered = work.request.operation.is_answered();
        let ack_request = !is_answered
            && (work.request.signalled && piece.is_end
                || sequence + 1 - self.asked_end.min(sequence) >= u64::from(self.limit(config)).div_ceil(4)
                || is_repeated && sequence == self.una);
        let len = write_packet(at.memory, work, sequence, &piece, ack_request, dest_qp, buffer)?;
        let wait_ns = self.wait_ns(config);
        self.timer_ns.get_or_insert(now_ns.saturating_add(wait_ns));
        self.note_sent(now_ns, sequence, numbers, is_answered, ack_request);
        at.counters.repeated += u64::from(is_repeated);
        Ok(Some(len))
    }

    /// All packets that were not acknowledged, without their ICRC, be they under way or not; `None` where somebody waits for what becomes of one, or
    /// they have more bytes in all.
    pub fn rest(
        &self,
        memory: &dyn Memory,
        dest_qp: Qpn,
        bytes_max: usize,
        buffer: &mut [u8],
    ) -> Option<Vec<Vec<u8>>> {
        let (mut packets, mut left) = (Vec::new(), bytes_max);
        for sequence in self.una..self.end {
            let work = &self.works[self.index_of(sequence)];
            if work.request.operation.is_answered() || work.request.signalled {
                return None;
            }
            let piece = work.layout.piece((sequence - work.first) as u32);
            let len = write_packet(memory, work, sequence, &piece, false, dest_qp, buffer).ok()?
                - crate::wire::ICRC_BYTES;
            left = left.checked_sub(len)?;
            packets.push(buffer[..len].to_vec());
        }
        Some(packets)
    }

    /// Sends packet `newest` again, or asks for that packet of an answer again.  Whatever the peer makes of it tells what became of all
    /// before it: an acknowledgement or an answer, that they have arrived; a refusal, which one has not.
    // [ROCE-TIME-2]
    fn write_probe(
        &mut self,
        at: &mut StepContext<'_>,
        dest_qp: Qpn,
        newest: u64,
        buffer: &mut [u8],
    ) -> Result<usize, Failure> {
        let work = &self.works[self.index_of(newest)];
        let mut piece = work.layout.piece((newest - work.first) as u32);
        let is_answered = work.request.operation.is_answered();
        if is_answered {
            piece = piece.alone();
        }
        if let Some(selective) = &mut self.selective {
            selective.note_probe(at.now_ns, newest, is_answered);
        }
        at.counters.repeated += 1;
        write_packet(at.memory, work, newest, &piece, !is_answered, dest_qp, buffer)
    }

    /// Whether an empty write asks for the acknowledgement in place of a repeated packet.  With a congestion controller it does not:
    /// that measures the network by packets of full length.
    fn asks_briefly(&self) -> bool {
        let has_controller = |selective: &Selective| selective.window_packets().is_some();
        self.window <= SCARCE_PACKETS
            && self.selective.as_ref().is_some_and(|selective| !has_controller(selective))
    }

    /// Asks what became of all that is under way by a write of nothing in place of the packet before it, which the peer has: it says what it has and what
    /// is missing.  Where it has room for few packets, and does not get its processor, those of many who send the same again would not fit.
    // [ROCE-TIME-3]
    fn write_ask(&self, dest_qp: Qpn, buffer: &mut [u8]) -> usize {
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

    fn newest_to_ask_by(&self) -> Option<u64> {
        match &self.selective {
            Some(selective) => selective.newest_open(),
            None => self.under_way.back().map(|packet| packet.end - 1),
        }
    }

    /// Keeps the books of a packet that has left.
    fn note_sent(&mut self, now_ns: u64, sequence: u64, numbers: u64, is_answered: bool, asks: bool) {
        if self.una == self.next && self.attempts == 0 {
            self.heard_ns = now_ns;
        }
        if sequence >= self.sent_end && (is_answered || asks) {
            self.trip.begin(now_ns, sequence);
        }
        self.next = sequence + numbers;
        self.under_way.push_back(UnderWay { first: sequence, end: self.next, left_ns: now_ns });
        self.sent_end = self.sent_end.max(self.next);
        if is_answered {
            self.answers.push_back((sequence, self.next));
            self.answer_packets += numbers;
        }
        if is_answered || asks {
            self.asked_end = self.next;
        }
    }

    /// How long to wait for an answer this time.
    fn wait_ns(&self, config: &Config) -> u64 {
        match config.retry {
            Retry::Lease(_) => self.trip.wait_ns(self.attempts),
            Retry::Count { timeout, .. } => nanoseconds(timeout),
        }
    }

    /// How many packets may be under way.
    // [ROCE-WINDOW-1]
    fn limit(&self, config: &Config) -> u32 {
        let granted = if config.grants { self.window } else { u32::MAX };
        if self.is_probing { 1 } else { (granted.min(config.window_packets_max) / self.parts).max(1) }
    }

    // [ROCE-WINDOW-2]
    fn may_send(&self, config: &Config, work: &Work, numbers: u64) -> bool {
        // Only the first may have come in part.
        let come = self.answers.front().map_or(0, |(first, _)| self.una.saturating_sub(*first));
        let coming = self.answer_packets - come;
        let sent = self.next - self.una - coming + self.answers.len() as u64;
        if sent >= u64::from(self.limit(config)) {
            return false;
        }
        if !work.request.operation.is_answered() {
            return true;
        }
        self.answers.len() < config.reads_max.max(1)
            && (coming == 0 || coming + numbers <= u64::from(config.room_packets / self.parts))
    }

    /// Where in the queue the request of a packet is.
    fn index_of(&self, sequence: u64) -> usize {
        self.works.partition_point(|work| work.end <= sequence)
    }

    pub fn handle_answer(&mut self, at: &mut StepContext<'_>, packet: &Packet<'_>) -> Result<(), Failure> {
        let sequence = packet.psn.expand(self.una).filter(|sequence| *sequence < self.sent_end);
        let Some(sequence) = sequence else {
            at.counters.out_of_window += 1;
            return Ok(());
        };
        at.counters.stale += u64::from(sequence < self.una);
        if self.selective.is_some() {
            if let Some(aeth) = packet.headers.aeth() {
                self.granted(at.config, sequence, aeth);
            }
            return self.handle_selective(at, sequence, packet);
        }
        match packet.headers {
            // Nobody said that it is understood.
            Headers::Missing(_) => {
                at.counters.malformed += 1;
                Ok(())
            }
            Headers::Acknowledge(aeth) => self.acknowledged(at, sequence, aeth),
            Headers::ReadResponseFirst(aeth)
            | Headers::ReadResponseLast(aeth)
            | Headers::ReadResponseOnly(aeth) => {
                self.granted(at.config, sequence, aeth);
                self.read_answered(at, sequence, packet.payload)
            }
            Headers::ReadResponseMiddle => self.read_answered(at, sequence, packet.payload),
            Headers::AtomicAcknowledge { aeth, old } => {
                self.granted(at.config, sequence, aeth);
                self.atomic_answered(at, sequence, old);
                Ok(())
            }
            _ => unreachable!("only answers come here"),
        }
    }

    /// What the peer grants, if it does not say so of the past.
    fn granted(&mut self, config: &Config, sequence: u64, aeth: AethRepr) {
        if sequence + 1 >= self.una
            && let Syndrome::Ack(credit) = aeth.syndrome
        {
            self.window = window_of(config, credit);
            self.is_granted = true;
        }
    }

    /// The answer to a probe says how much the peer has room for, before anything was received.
    // [ROCE-WINDOW-5]
    pub fn expect_grant(&mut self, packets: u32) {
        if !self.is_granted {
            self.window = self.window.max(packets.min(FIRST_PACKETS_MAX));
        }
    }

    fn acknowledged(
        &mut self,
        at: &mut StepContext<'_>,
        sequence: u64,
        aeth: AethRepr,
    ) -> Result<(), Failure> {
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                self.granted(at.config, sequence, aeth);
                if !self.advance(at, sequence + 1) {
                    self.go_back_once();
                }
            }
            // [ROCE-RNR-2]
            Syndrome::RnrNak(timer) => {
                if !self.advance(at, sequence) || sequence != self.una {
                    return Ok(());
                }
                at.counters.rnr_naks += 1;
                if self.rnr_attempts_are_over(at.config) {
                    let (status, cause) = (Status::RnrRetryExceeded, Cause::RnrRetryExceeded);
                    return Err(Failure { sequence, status, cause });
                }
                self.rnr_attempts += 1;
                self.attempts = 0;
                self.heard_ns = at.now_ns;
                self.rnr_until_ns = Some(at.now_ns + timer.nanoseconds());
                self.timer_ns = None;
                self.go_back();
            }
            // [ROCE-NAK-2]
            Syndrome::Nak(Nak::Sequence) => {
                if sequence < self.una {
                    return Ok(());
                }
                at.counters.naks += 1;
                self.advance(at, sequence);
                self.go_back_once();
            }
            Syndrome::Nak(nak) => {
                if sequence < self.una {
                    return Ok(());
                }
                self.advance(at, sequence);
                return Err(Failure { sequence, status: nak.into(), cause: Cause::Refused(nak) });
            }
        }
        Ok(())
    }

    fn rnr_attempts_are_over(&self, config: &Config) -> bool {
        match config.retry {
            Retry::Lease(_) => false,
            Retry::Count { rnr_retries, .. } => {
                rnr_retries < 7 && self.rnr_attempts >= u32::from(rnr_retries)
            }
        }
    }

    // [ROCE-READ-2]
    fn read_answered(
        &mut self,
        at: &mut StepContext<'_>,
        sequence: u64,
        payload: &[u8],
    ) -> Result<(), Failure> {
        if sequence < self.una {
            return Ok(());
        }
        let index = self.index_of(sequence);
        let work = &self.works[index];
        let Operation::Read { local, .. } = work.request.operation else {
            at.counters.malformed += 1;
            return Ok(());
        };
        let piece = work.layout.piece((sequence - work.first) as u32);
        if payload.len() != piece.len as usize {
            at.counters.malformed += 1;
            return Ok(());
        }
        // An answer says that all before it has arrived.  Where some of that was to be answered too, those answers were lost.
        self.advance(at, sequence);
        if self.una != sequence {
            self.go_back_once();
            return Ok(());
        }
        let to = local.address.wrapping_add(u64::from(piece.offset));
        if !payload.is_empty() && at.memory.write_own(local.key, to, payload).is_err() {
            let (status, cause) = (Status::LocalAccess, Cause::LocalAccess);
            return Err(Failure { sequence, status, cause });
        }
        self.una = sequence + 1;
        self.progressed(at.now_ns, at.config);
        self.complete_first(None, at.events);
        Ok(())
    }

    // [ROCE-ATOMIC-3]
    fn atomic_answered(&mut self, at: &mut StepContext<'_>, sequence: u64, old: u64) {
        if sequence < self.una {
            return;
        }
        let work = &self.works[self.index_of(sequence)];
        if !matches!(work.request.operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. }) {
            at.counters.malformed += 1;
            return;
        }
        self.advance(at, sequence);
        if self.una != sequence {
            self.go_back_once();
            return;
        }
        self.una = sequence + 1;
        self.progressed(at.now_ns, at.config);
        self.complete_first(Some(old), at.events);
    }

    /// Takes all before packet `to` for acknowledged, up to the first that is to be answered by more than that.
    /// Says whether there was none.
    // [ROCE-ACK-3]
    fn advance(&mut self, at: &mut StepContext<'_>, to: u64) -> bool {
        let before = self.una;
        while self.una < to {
            let Some(work) = self.works.front() else { break };
            if work.request.operation.is_answered() {
                break;
            }
            self.una = to.min(work.end);
            self.complete_first(None, at.events);
        }
        if self.una > before {
            self.progressed(at.now_ns, at.config);
        }
        self.una >= to
    }

    /// Takes the first request off the queue if all of it has been acknowledged.
    fn complete_first(&mut self, old: Option<u64>, events: &mut VecDeque<Event>) {
        if self.works.front().is_some_and(|work| work.end <= self.una)
            && let Some(Work { request: Request { id, signalled, .. }, .. }) = self.works.pop_front()
            && signalled
        {
            events.push_back(Event::Completed { id, status: Status::Success, old });
        }
    }

    /// `una` has moved: the peer lives, and what is under way begins elsewhere.
    fn progressed(&mut self, now_ns: u64, config: &Config) {
        self.next = self.next.max(self.una);
        while let Some((first, end)) = self.answers.front().copied().filter(|(_, end)| *end <= self.una) {
            self.answers.pop_front();
            self.answer_packets -= end - first;
        }
        while self.under_way.front().is_some_and(|packet| packet.end <= self.una) {
            self.under_way.pop_front();
        }
        if std::mem::take(&mut self.is_probing) {
            self.resumed_ns = now_ns;
        }
        self.probe_is_due = false;
        self.has_gone_back = false;
        self.attempts = 0;
        self.in_vain = 0;
        self.rnr_attempts = 0;
        self.heard_ns = now_ns;
        self.trip.end(now_ns, self.una);
        self.timer_ns = self.under_way.front().map(|oldest| {
            // A packet is waited for since it left; the rest of an answer, since the last of it came.
            let since_ns = if oldest.first < self.una { now_ns } else { oldest.left_ns.max(self.resumed_ns) };
            since_ns.saturating_add(self.wait_ns(config))
        });
    }

    // [ROCE-GBN-1]
    fn go_back(&mut self) {
        self.next = self.una;
        self.answers.clear();
        self.answer_packets = 0;
        self.under_way.clear();
        self.has_gone_back = true;
        self.probe_is_due = false;
        self.timer_ns = None;
        self.trip.give_up();
    }

    /// The peer, which lives, has said what is missing: it is asked soon again.  The lease goes on, for it ends what can never be answered.
    fn go_back_once(&mut self) {
        if !self.has_gone_back {
            self.attempts = self.attempts.min(1);
            self.is_probing = false;
            self.go_back();
        }
    }

    /// When something is to be done even if nothing arrives.
    pub fn poll_timeout(&self) -> Option<u64> {
        let selective = self.selective.as_ref().and_then(Selective::poll_timeout);
        // What is lost or kept back by its pace waits for that, too.
        let selective = selective.map(|at| at.max(self.rnr_until_ns.unwrap_or(0)));
        [self.timer_ns, self.rnr_until_ns, selective].into_iter().flatten().min()
    }

    // [ROCE-TIME-2]
    pub fn handle_timeout(
        &mut self,
        now_ns: u64,
        config: &Config,
        counters: &mut Counters,
    ) -> Result<(), Failure> {
        self.rnr_until_ns = self.rnr_until_ns.filter(|until| now_ns < *until);
        self.handle_lost_by_time(now_ns);
        if self.timer_ns.is_none_or(|at| now_ns < at) {
            return Ok(());
        }
        if self.selective.as_ref().is_some_and(|selective| !selective.is_waiting()) {
            // No packet awaits an answer: the lost ones leave when the pacer lets them, and no probe holds them back.
            self.is_probing = false;
            self.timer_ns = Some(now_ns.saturating_add(self.wait_ns(config)));
            return Ok(());
        }
        counters.timeouts += 1;
        self.attempts += 1;
        self.in_vain += 1;
        let is_over = match config.retry {
            Retry::Lease(lease) => now_ns.saturating_sub(self.heard_ns) >= nanoseconds(lease),
            Retry::Count { retries, .. } => self.attempts > u32::from(retries),
        };
        if is_over {
            let (status, cause) = (Status::RetryExceeded, Cause::RetryExceeded);
            return Err(Failure { sequence: self.una, status, cause });
        }
        match config.retry {
            Retry::Lease(_) => {
                self.probe_is_due = true;
                // What the peer says is missing may have been sent again, and lost again.
                self.has_gone_back = false;
                self.trip.give_up();
            }
            // An adapter says only once what is missing.
            Retry::Count { .. } => self.go_back(),
        }
        if let Some(selective) = self.selective.as_mut().filter(|_| self.attempts == SILENT_ATTEMPTS) {
            selective.handle_silence();
        }
        self.is_probing = true;
        // Not beyond the end of the lease: the issuer is told in time.
        let left_ns = match config.retry {
            Retry::Lease(lease) => self.heard_ns.saturating_add(nanoseconds(lease)).saturating_sub(now_ns),
            Retry::Count { .. } => u64::MAX,
        };
        self.timer_ns = Some(now_ns.saturating_add(self.wait_ns(config).min(left_ns)));
        Ok(())
    }

    /// Whether it has been waited in vain so often that the path may have changed: three times, and each time twice as often.
    // [ROCE-PATH-4]
    pub fn is_stuck(&self) -> bool {
        self.in_vain.is_multiple_of(3) && (self.in_vain / 3).is_power_of_two()
    }

    /// The longest packet leaves in so many parts from now on: what is under way is asked for soon again.
    // [ROCE-WINDOW-4]
    pub fn set_parts(&mut self, now_ns: u64, parts: u32) {
        if parts != self.parts {
            self.parts = parts;
            self.attempts = 0;
            self.timer_ns = self.timer_ns.map(|at| at.min(now_ns));
        }
    }

    /// Completes all posted requests with an error; `failure` names the request that caused it.
    // [ROCE-END-2]
    pub fn flush(&mut self, config: &Config, failure: Option<Failure>, events: &mut VecDeque<Event>) {
        for work in std::mem::take(&mut self.works) {
            let status = match failure {
                Some(failure) if (work.first..work.end).contains(&failure.sequence) => failure.status,
                Some(failure) if failure.leaves_rest_undone() && failure.sequence < work.first => {
                    Status::Flushed
                }
                _ if work.first < self.sent_end => Status::Aborted,
                _ => Status::Flushed,
            };
            events.push_back(Event::Completed { id: work.request.id, status, old: None });
        }
        *self = Requester { parts: self.parts, ..Requester::new(self.end) }.repeating_as(config);
    }

    pub fn round_trip_ns(&self) -> Option<u64> {
        self.trip.smoothed_ns()
    }

    /// Packets that may be under way.
    pub fn window(&self) -> u32 {
        let congestion = self.selective.as_ref().and_then(Selective::window_packets);
        congestion.map_or(self.window, |window| self.window.min(window.ceil() as u32))
    }

    pub fn posted(&self) -> usize {
        self.works.len()
    }
}

fn window_of(config: &Config, credit: Credit) -> u32 {
    credit.packets().unwrap_or(config.window_packets_max)
}

/// Writes the packet of this number, whose part of its request is `piece`; returns its length.
fn write_packet(
    memory: &dyn Memory,
    work: &Work,
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
    let payload_bytes = if work.request.operation.is_answered() { 0 } else { piece.len as usize };
    let begin = packet.emit_headers(payload_bytes, buffer);
    let payload = &mut buffer[begin..begin + payload_bytes];
    let offset = piece.offset as usize;
    match &work.request.operation {
        Operation::Send { bytes, .. } | Operation::Write { source: Source::Inline(bytes), .. } => {
            payload.copy_from_slice(&bytes[offset..offset + payload_bytes]);
        }
        Operation::Write { source: Source::Registered { local, .. }, .. } => {
            // The one copy of a byte on this side.
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

/// The headers of a packet.
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
            // Of several messages, the last one tells that all have landed.
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
