//! The requester with selective repeat. It retransmits lost packets of requests, and requests lost packets of responses
//! again, individually by number.
//!
//! Three limits apply to the packets in flight: the peer's grant (the room in its socket) plus the bandwidth-delay
//! product; the span of packets that the peer keeps after a gap; and the window and pace of the congestion controller.

use std::collections::VecDeque;

use super::bdp::Bdp;
use super::scoreboard::Scoreboard;
use super::surplus::Surplus;
use super::{Failure, Requester, WorkRequest, write_packet};
use crate::config::Config;
use crate::congestion::pacer::{BURST_PACKETS, Pace, Pacer};
use crate::congestion::{Controller, Feedback};
use crate::context::StepContext;
use crate::counters::Counters;
use crate::kept::{SPAN_MAX, kept_sequences, span};
use crate::layout::Piece;
use crate::wire::{AethRepr, Headers, Nak, Packet, Qpn, Syndrome};
use crate::work::{Cause, Operation, Status};

/// The requester's additional state for selective repeat.
#[derive(Debug)]
pub(super) struct Selective {
    scoreboard: Scoreboard,
    bdp: Bdp,
    surplus: Surplus,
    controller: Option<Box<dyn Controller>>,
    pacer: Pacer,
    /// Time at which the pacer releases the next packet.
    paced_until_ns: Option<u64>,
    /// Time from which an overtaken packet counts as lost.
    loss_timer_ns: Option<u64>,
    /// Spare read requests to send, in order.
    spares: VecDeque<Spare>,
    /// Time until which reads get spare requests.
    is_lossy_until_ns: u64,
}

/// A spare: a second copy of a read request, sent in case the first one is lost.
#[derive(Clone, Copy, Debug)]
struct Spare {
    sequence: u64,
    numbers: u32,
    due_ns: u64,
}

impl Selective {
    pub fn new(config: &Config, una: u64) -> Selective {
        Selective {
            scoreboard: Scoreboard::new(una),
            bdp: Bdp::default(),
            surplus: Surplus::default(),
            controller: config.congestion.controller(),
            pacer: Pacer::default(),
            paced_until_ns: None,
            loss_timer_ns: None,
            spares: VecDeque::new(),
            is_lossy_until_ns: 0,
        }
    }

    pub fn poll_timeout(&self) -> Option<u64> {
        let spare_ns = self.spares.front().map(|spare| spare.due_ns);
        [self.paced_until_ns, self.loss_timer_ns, spare_ns].into_iter().flatten().min()
    }

    /// Returns the number of packets that may be in flight on the path, in addition to the peer's grant.
    pub fn path_packets(&self) -> u32 {
        self.bdp.packets()
    }

    /// Returns the maximum number of packets in flight under the grant `granted`, by the measured bandwidth-delay
    /// product.
    pub fn limit_over_path(&self, granted: u32) -> u32 {
        let surplus = if self.controller.is_some() { u32::MAX } else { self.surplus.packets() };
        match self.bdp.drain_limit() {
            Some(packets) => packets.min(granted),
            None => self.bdp.packets().saturating_add(granted.min(surplus)),
        }
    }

    fn on_limited(&mut self) {
        self.bdp.on_limited();
        self.surplus.on_limited();
    }

    /// Returns the congestion window in packets; `None` without a congestion controller.
    pub fn window_packets(&self) -> Option<f64> {
        self.controller.as_ref().map(|controller| controller.window_packets())
    }

    /// Returns the number of packets that the path delivers in `ns`; `None` before the first measurement.
    pub fn delivered_in(&self, ns: u64) -> Option<u64> {
        let (product, trip_ns) = self.bdp.product()?;
        Some(u64::from(product) * ns / trip_ns.max(1))
    }

    /// Returns the pace at which packets leave; `None` if packets are not paced.
    // [ROCE-CC-2]
    fn pace(&self, config: &Config, granted: u32, trip_ns: Option<u64>, parts: u32) -> Option<Pace> {
        if let Some(window) = self.window_packets() {
            return Some(Pace::of_window(window, trip_ns?));
        }
        let (product, trip_ns) = self.bdp.product().filter(|_| config.fills_path)?;
        // While the queue drains, the window is smaller, but not the pace.
        Some(Pace::of_path(granted + (product - self.bdp.packets()) / parts, trip_ns))
    }

    pub fn newest_unfinished(&self) -> Option<u64> {
        self.scoreboard.newest_unfinished()
    }

    pub fn awaits_response(&self) -> bool {
        self.scoreboard.awaits_response()
    }

    pub fn on_repeated(&mut self, now_ns: u64, sequence: u64, returns_data: bool) {
        self.scoreboard.on_sent(now_ns, sequence, 1, returns_data, true);
    }

    pub fn handle_silence(&mut self) {
        if let Some(controller) = &mut self.controller {
            controller.handle_silence();
        }
    }

    /// Schedules a spare (a second copy) of a read request that was just sent, if packets were lost recently.
    ///
    /// The responder executes requests in order, so a lost read request delays all later responses by a round trip. The
    /// spare is only one packet of 60 bytes, for up to 64 packets of response.
    // [ROCE-SEL-8]
    fn add_spare(&mut self, now_ns: u64, sequence: u64, numbers: u32) {
        if now_ns < self.is_lossy_until_ns && numbers >= SPARE_PACKETS_MIN {
            // Later than the packets around it, which may be lost together.
            let after_ns = self.bdp.product().map_or(0, |(_, trip_ns)| trip_ns / SPARE_TRIP_DIVISOR);
            let due_ns = now_ns.saturating_add(after_ns.max(REORDER_NS_MIN));
            self.spares.push_back(Spare { sequence, numbers, due_ns });
        }
    }

    /// Removes and returns the next due spare whose request, as far as this end knows, has not reached the peer.
    fn take_spare(&mut self, now_ns: u64) -> Option<Spare> {
        loop {
            let spare = self.spares.pop_front_if(|spare| spare.due_ns <= now_ns)?;
            if self.scoreboard.is_in_flight(spare.sequence, spare.numbers) {
                return Some(spare);
            }
        }
    }

    fn on_lost(&mut self, now_ns: u64, lost: u32) {
        if lost > 0 {
            self.is_lossy_until_ns = now_ns.saturating_add(LOSSY_NS);
        }
    }

    /// Returns the maximum number of packets in flight under this grant.
    // [ROCE-CC-1]
    fn limit(&self, granted: u32) -> u32 {
        let window = self.window_packets().map_or(u32::MAX, |window| window as u32);
        granted.min(window).max(1)
    }
}

impl Requester {
    /// Writes the oldest lost packet or, if no packet is lost, a new packet. Writes nothing if a limit is reached.
    // [ROCE-SEL-5]
    pub(super) fn poll_selective(
        &mut self,
        step: &mut StepContext<'_>,
        dest_qp: Qpn,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, Failure> {
        let (now_ns, config, granted, parts) =
            (step.now_ns, step.config, self.limit(step.config), self.parts);
        let Some(selective) = &mut self.selective else { return Ok(None) };
        selective.paced_until_ns = None;
        if let Some(spare) = selective.take_spare(now_ns) {
            selective.scoreboard.on_spare_sent(spare.sequence, spare.numbers);
            let work = &self.send_queue[self.index_of(spare.sequence)];
            let piece = work.layout.piece((spare.sequence - work.first) as u32).as_message_of(spare.numbers);
            return write_packet(step.memory, work, spare.sequence, &piece, true, dest_qp, buffer).map(Some);
        }
        let lost = selective.scoreboard.next_lost();
        let Some(sequence) = lost.or((self.next < self.end).then_some(self.next)) else { return Ok(None) };
        let work = &self.send_queue[self.index_of(sequence)];
        let mut piece = work.layout.piece((sequence - work.first) as u32);
        if self.is_probing {
            return Ok(None);
        }
        let numbers = self.numbers_to_send(config, work, &piece, sequence, lost.is_some());
        if numbers == 0 {
            if let Some(selective) = &mut self.selective {
                selective.on_limited();
            }
            return Ok(None);
        }
        if matches!(work.request.operation, Operation::Read { .. }) {
            piece = piece.as_message_of(numbers);
        }
        let Some(selective) = &mut self.selective else { return Ok(None) };
        let returns_data = work.request.operation.returns_data();
        let quarter = u64::from(selective.limit(granted)).div_ceil(4);
        let ack_request = !returns_data
            && (work.request.signalled && piece.is_end
                || sequence + 1 - self.ack_end.min(sequence) >= quarter
                || lost.is_some()
                || self.round_trip.needs_sample(now_ns));
        let (wants_response, trip_ns) = (returns_data || ack_request, self.round_trip.smoothed_ns());
        // [ROCE-CC-2]
        if let Some(pace) = selective.pace(config, granted, trip_ns, parts) {
            selective.paced_until_ns = selective.pacer.wait_until(now_ns, pace);
            if selective.paced_until_ns.is_some() {
                selective.on_limited();
                return Ok(None);
            }
            selective.pacer.on_sent(now_ns, numbers, pace);
        }
        let len = write_packet(step.memory, work, sequence, &piece, ack_request, dest_qp, buffer)?;
        selective.scoreboard.on_sent(now_ns, sequence, numbers, returns_data, ack_request);
        if matches!(work.request.operation, Operation::Read { .. }) && config.fills_path {
            selective.add_spare(now_ns, sequence, numbers);
        }
        if self.una == self.next && self.attempts == 0 {
            self.lease_begin_ns = now_ns;
        }
        let end = sequence + u64::from(numbers);
        self.next = self.next.max(end);
        self.sent_end = self.next;
        if wants_response {
            self.ack_end = self.ack_end.max(end);
            self.round_trip.on_response_requested(now_ns);
        }
        let timeout_ns = self.timeout_ns(config);
        self.timer_ns.get_or_insert(now_ns.saturating_add(timeout_ns));
        step.counters.repeated += u64::from(lost.is_some());
        Ok(Some(len))
    }

    /// Returns the number of sequence numbers that the packet may take; 0 if a limit holds it back. Only a read takes
    /// more than one.
    // [ROCE-SEL-6]
    fn numbers_to_send(
        &self,
        config: &Config,
        work: &WorkRequest,
        piece: &Piece,
        sequence: u64,
        is_lost: bool,
    ) -> u32 {
        let Some(selective) = &self.selective else { return 0 };
        let ahead = sequence - self.una;
        let limit = selective.limit(self.limit(config));
        let free = limit.saturating_sub(selective.scoreboard.in_flight());
        if is_lost {
            // No limit holds back the oldest packet, since all others may wait for it.
            let free = if ahead == 0 { free.max(1) } else { free };
            return free.min(selective.scoreboard.lost_together(sequence));
        }
        let operation = &work.request.operation;
        // Four windows: a lost packet may be retransmitted and lost again while later packets still leave.
        let windows = AHEAD_MIN.max(4 * u64::from(limit));
        let span = span(config.mtu);
        let end = match operation.returns_data() {
            // A read whose response is lost takes no place in the span that the peer keeps: the peer has executed it.
            true => {
                (self.una.max(selective.scoreboard.executed_end()) + span).min(self.una + READ_SPANS * span)
            }
            false => self.una + span.min(windows),
        };
        let free = free.min((end + 1).saturating_sub(sequence) as u32);
        if !operation.returns_data() {
            return free.min(1);
        }
        let answers_max = config.reads_max.max(1) as u64;
        let room_packets = config.room_packets.saturating_add(self.path_packets(config));
        let room = answers_max.min(u64::from(room_packets / self.parts).max(1)) as u32;
        let free = free.min(room.saturating_sub(selective.scoreboard.unanswered()));
        if !matches!(operation, Operation::Read { .. }) {
            // The peer keeps the results of `answers_max` atomics, in case the requester asks again for a lost
            // response.
            return if ahead < answers_max { free.min(1) } else { 0 };
        }
        // A controller paces requests, not the packets of one response.
        let burst = if selective.controller.is_some() { BURST_PACKETS } else { u32::MAX };
        let wanted = piece.packets_rest.min(burst);
        let numbers = free.min(wanted);
        // Responses free the window packet by packet: the next read waits until a fair part of the window is free.
        let worthwhile = wanted.min(limit.min(room) / 4);
        if numbers < worthwhile && selective.scoreboard.in_flight() > 0 { 0 } else { numbers }
    }

    /// Handles a response. Responses may arrive in any order.
    pub(super) fn handle_selective(
        &mut self,
        step: &mut StepContext<'_>,
        sequence: u64,
        packet: &Packet<'_>,
    ) -> Result<(), Failure> {
        let (now_ns, trip_ns) = (step.now_ns, self.round_trip.min_ns());
        let tells_wait =
            |aeth: &AethRepr| step.config.tells_waits && matches!(aeth.syndrome, Syndrome::Ack(_));
        let waited_ns = packet.headers.aeth().filter(tells_wait).map_or(0, |aeth| aeth.waited_ns());
        let Some(selective) = &mut self.selective else { return Ok(()) };
        let in_flight = selective.scoreboard.in_flight();
        let scoreboard = &mut selective.scoreboard;
        let mut failure = None;
        let (mut is_gap_report, mut is_current_ack) = (false, false);
        match packet.headers {
            Headers::Acknowledge(aeth) => match aeth.syndrome {
                Syndrome::Ack(_) => {
                    is_current_ack = sequence + 1 >= self.una;
                    scoreboard.handle_executed(now_ns, trip_ns, sequence + 1);
                }
                Syndrome::RnrNak(timer) => {
                    scoreboard.handle_executed(now_ns, trip_ns, sequence);
                    if sequence >= self.una {
                        scoreboard.handle_dropped(sequence);
                        step.counters.rnr_naks += 1;
                        (self.attempts, self.lease_begin_ns) = (0, now_ns);
                        let until_ns = now_ns.saturating_add(timer.nanoseconds());
                        self.rnr_until_ns = Some(until_ns);
                        // Then probe the other packets in flight: a lost response among them may block the refused
                        // packet.
                        self.timer_ns = Some(until_ns.saturating_add(self.timeout_ns(step.config)));
                        self.is_probing = false;
                    }
                }
                Syndrome::Nak(Nak::Sequence) => scoreboard.handle_executed(now_ns, trip_ns, sequence),
                Syndrome::Nak(nak) if sequence >= self.una => {
                    scoreboard.handle_executed(now_ns, trip_ns, sequence);
                    failure = Some(Failure { sequence, status: nak.into(), cause: Cause::Refused(nak) });
                }
                Syndrome::Nak(_) => {}
            },
            // [ROCE-SEL-4]
            Headers::Missing(_) => {
                if packet.payload.len() as u64 > SPAN_MAX / 8 {
                    step.counters.malformed += 1;
                    return Ok(());
                }
                step.counters.naks += 1;
                is_gap_report = sequence >= self.una;
                scoreboard.handle_executed(now_ns, trip_ns, sequence);
                scoreboard.handle_missing(sequence);
                for kept in kept_sequences(sequence, packet.payload) {
                    scoreboard.handle_kept(now_ns, trip_ns, kept);
                }
            }
            Headers::AtomicAcknowledge { old, .. } => self.handle_selective_atomic(step, sequence, old),
            _ => failure = self.handle_selective_read(step, sequence, packet.payload),
        }
        self.apply_report(
            step,
            Report { in_flight, waited_ns, confirms_gap: is_gap_report || is_current_ack },
        );
        failure.map_or(Ok(()), Err)
    }

    fn handle_selective_read(
        &mut self,
        step: &mut StepContext<'_>,
        sequence: u64,
        payload: &[u8],
    ) -> Option<Failure> {
        if sequence < self.una {
            return None;
        }
        let work = &self.send_queue[self.index_of(sequence)];
        let piece = work.layout.piece((sequence - work.first) as u32);
        let Operation::Read { local, .. } = work.request.operation else {
            step.counters.malformed += 1;
            return None;
        };
        if payload.len() != piece.len as usize {
            step.counters.malformed += 1;
            return None;
        }
        let trip_ns = self.round_trip.min_ns();
        let scoreboard = &mut self.selective.as_mut()?.scoreboard;
        if !scoreboard.handle_response(step.now_ns, trip_ns, sequence) {
            step.counters.duplicates += 1;
            return None;
        }
        step.counters.kept += u64::from(scoreboard.awaits_response_before(sequence));
        let to = local.address.wrapping_add(u64::from(piece.offset));
        let is_refused = !payload.is_empty() && step.memory.write_own(local.key, to, payload).is_err();
        let (status, cause) = (Status::LocalAccess, Cause::LocalAccess);
        is_refused.then_some(Failure { sequence, status, cause })
    }

    fn handle_selective_atomic(&mut self, step: &mut StepContext<'_>, sequence: u64, old: u64) {
        if sequence < self.una {
            return;
        }
        let (index, trip_ns) = (self.index_of(sequence), self.round_trip.min_ns());
        let work = &mut self.send_queue[index];
        if !matches!(work.request.operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. }) {
            step.counters.malformed += 1;
            return;
        }
        let Some(selective) = &mut self.selective else { return };
        match selective.scoreboard.handle_response(step.now_ns, trip_ns, sequence) {
            true => work.old = Some(old),
            false => step.counters.duplicates += 1,
        }
    }

    /// Completes requests and marks lost packets after a response.
    fn apply_report(&mut self, step: &mut StepContext<'_>, report: Report) {
        let (now_ns, arrived_ns) = (step.now_ns, step.arrived_ns);
        let Report { in_flight, waited_ns, confirms_gap } = report;
        let Some(selective) = &mut self.selective else { return };
        let una = self.una;
        self.una = selective.scoreboard.advance();
        let progress = selective.scoreboard.take_progress();
        let has_progress = self.una > una || progress.arrived > 0;
        if has_progress {
            (self.timeouts_without_progress, self.rnr_attempts, self.lease_begin_ns) = (0, 0, now_ns);
        }
        let was_silent = (has_progress || confirms_gap) && std::mem::take(&mut self.is_probing);
        let attempts = self.attempts;
        if has_progress || was_silent {
            self.attempts = if has_progress { 0 } else { self.attempts.min(1) };
            self.probe_is_due = false;
        }
        // After a silence, the round trip includes the peer's scheduling delay and is not a sample of the path.
        let sent_ns = progress.sent_ns.filter(|_| !was_silent);
        let trip_ns = sent_ns.map(|sent_ns| now_ns.saturating_sub(sent_ns));
        // The difference excludes scheduling delays at both ends.
        let network_ns = sent_ns.map(|sent_ns| arrived_ns.saturating_sub(sent_ns + waited_ns));
        if let Some(trip_ns) = trip_ns {
            self.round_trip.add_sample(trip_ns);
        } else if let Some(sent_ns) = progress.first_sent_ns.filter(|_| was_silent) {
            self.round_trip.add_bound(now_ns.saturating_sub(sent_ns), attempts);
        }
        let mut lost = self.find_lost(now_ns);
        let (parts, granted) = (self.parts, self.window.min(step.config.window_packets_max));
        let Some(selective) = &mut self.selective else { return };
        if was_silent {
            lost += selective.scoreboard.find_lost_after_silence(confirms_gap && !has_progress);
        }
        step.counters.lost += u64::from(lost);
        selective.on_lost(now_ns, lost);
        let arrived_parts = progress.arrived.saturating_mul(parts);
        selective.bdp.on_arrived(now_ns, arrived_parts, trip_ns);
        let queued_ns = network_ns.filter(|_| !selective.scoreboard.reorders());
        selective.surplus.on_arrived(now_ns, arrived_parts, queued_ns, granted);
        if let Some(controller) = &mut selective.controller {
            let arrived = progress.arrived;
            let overtaken_ns = selective.scoreboard.overtaken_ns();
            let feedback = Feedback { trip_ns, network_ns, overtaken_ns, arrived, lost, in_flight };
            controller.handle_feedback(now_ns, feedback);
        }
        let is_empty = selective.scoreboard.is_empty();
        if has_progress || was_silent {
            self.timer_ns = (!is_empty).then_some(now_ns.saturating_add(self.timeout_ns(step.config)));
        }
        self.complete(step);
    }

    pub(super) fn find_lost(&mut self, now_ns: u64) -> u32 {
        let trip_ns = self.round_trip.smoothed_ns().unwrap_or(0);
        let Some(selective) = &mut self.selective else { return 0 };
        // As in RACK (RFC 8985): an overtaken packet counts as lost a quarter of a round trip after it was due, or
        // later on a path that has delayed packets.
        let late_ns = selective.scoreboard.late_ns().min(LATE_TRIPS_MAX * trip_ns);
        let wait_ns = (trip_ns / 4 * 5).max(late_ns) + REORDER_NS_MIN;
        let (lost, at_ns) = selective.scoreboard.find_lost(now_ns, wait_ns);
        selective.loss_timer_ns = at_ns;
        lost
    }

    /// Marks overtaken packets as lost if the loss timer has expired.
    pub(super) fn run_loss_timer(&mut self, now_ns: u64, counters: &mut Counters) {
        let is_due = |selective: &Selective| selective.loss_timer_ns.is_some_and(|at_ns| now_ns >= at_ns);
        if !self.selective.as_ref().is_some_and(is_due) {
            return;
        }
        let lost = self.find_lost(now_ns);
        counters.lost += u64::from(lost);
        let Some(selective) = &mut self.selective else { return };
        selective.on_lost(now_ns, lost);
        let feedback = Feedback { lost, in_flight: selective.scoreboard.in_flight(), ..Feedback::default() };
        if let Some(controller) = &mut selective.controller {
            controller.handle_feedback(now_ns, feedback);
        }
    }

    fn complete(&mut self, step: &mut StepContext<'_>) {
        while self.send_queue.front().is_some_and(|work| work.end <= self.una) {
            let old = self.send_queue[0].old;
            self.complete_first(old, step.events);
        }
    }
}

/// The parts of a response that the scoreboard does not store.
#[derive(Clone, Copy, Debug)]
struct Report {
    /// Packets in flight before the response.
    in_flight: u32,
    /// Wait of the request at the responder.
    waited_ns: u64,
    /// True if the response is current. If it brings no progress, the peer still lacks the oldest packet.
    confirms_gap: bool,
}

/// Minimum number of response packets of a read that gets a spare.
const SPARE_PACKETS_MIN: u32 = 8;
/// A spare follows its request after the round-trip time divided by this number.
const SPARE_TRIP_DIVISOR: u64 = 16;
/// Time in ns after a loss for which reads get spares.
const LOSSY_NS: u64 = 1_000_000_000;
/// Minimum number of packets that may follow the oldest unfinished one, within the span that the peer keeps.
const AHEAD_MIN: u64 = 1024;
/// Maximum of the spans by which reads may follow the oldest unfinished packet: it bounds the memory of the requester.
const READ_SPANS: u64 = 4;
/// Maximum delay of an overtaken packet, in round trips, before it counts as lost on a path that delays packets.
const LATE_TRIPS_MAX: u64 = 4;
/// Minimum delay of an overtaken packet, in ns, before it counts as lost.
const REORDER_NS_MIN: u64 = 50_000;
