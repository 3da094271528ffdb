//! The requester between ends that repeat single packets: each packet takes one number, and may be sent again by itself.
//!
//! Three things keep a packet back: the peer's grant, which is what its socket has room for; how far it may be ahead of the oldest that is missing, since
//! the peer keeps no more; and the window of the congestion controller, with its pace.

use super::scoreboard::Scoreboard;
use super::{Failure, Requester, Work, write_packet};
use crate::config::Config;
use crate::congestion::{Controller, Heard, pacer::Pacer};
use crate::context::StepContext;
use crate::kept::{SPAN_MAX, numbers, span};
use crate::wire::{AethRepr, Headers, Nak, Packet, Qpn, Syndrome};
use crate::work::{Cause, Operation, Status};

/// What a requester has besides, if it repeats single packets.
#[derive(Debug)]
pub(super) struct Selective {
    board: Scoreboard,
    controller: Option<Box<dyn Controller>>,
    pacer: Pacer,
    /// Something may leave then, and not before.
    paced_until_ns: Option<u64>,
    /// When something may turn out to be lost though nothing is heard.
    lost_at_ns: Option<u64>,
}

impl Selective {
    pub fn new(config: &Config, una: u64) -> Selective {
        Selective {
            board: Scoreboard::new(una),
            controller: config.congestion.controller(),
            pacer: Pacer::default(),
            paced_until_ns: None,
            lost_at_ns: None,
        }
    }

    pub fn poll_timeout(&self) -> Option<u64> {
        [self.paced_until_ns, self.lost_at_ns].into_iter().flatten().min()
    }

    /// What the congestion controller allows, if there is one.
    pub fn window_packets(&self) -> Option<f64> {
        self.controller.as_ref().map(|controller| controller.window_packets())
    }

    pub fn newest_open(&self) -> Option<u64> {
        self.board.newest_open()
    }

    pub fn is_waiting(&self) -> bool {
        self.board.is_waiting()
    }

    pub fn note_probe(&mut self, now_ns: u64, sequence: u64, is_answered: bool) {
        self.board.note_sent(now_ns, sequence, is_answered, true);
    }

    pub fn handle_silence(&mut self) {
        if let Some(controller) = &mut self.controller {
            controller.handle_silence();
        }
    }

    /// Packets that may be under way of those that are granted.
    // [ROCE-CC-1]
    fn limit(&self, granted: u32) -> u32 {
        let window = self.window_packets().map_or(u32::MAX, |window| window as u32);
        granted.min(window).max(1)
    }
}

impl Requester {
    /// Writes the next packet that may leave now: the oldest that is lost, or the next.
    // [ROCE-SEL-5]
    pub(super) fn poll_selective(
        &mut self,
        at: &mut StepContext<'_>,
        dest_qp: Qpn,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, Failure> {
        let (now_ns, config, granted) = (at.now_ns, at.config, self.limit(at.config));
        let Some(selective) = &mut self.selective else { return Ok(None) };
        selective.paced_until_ns = None;
        let lost = selective.board.next_lost();
        let Some(sequence) = lost.or((self.next < self.end).then_some(self.next)) else { return Ok(None) };
        let work = &self.works[self.index_of(sequence)];
        if self.is_probing || !self.may_send_selective(config, work, sequence, lost.is_some()) {
            return Ok(None);
        }
        let Some(selective) = &mut self.selective else { return Ok(None) };
        let piece = work.layout.piece((sequence - work.first) as u32);
        let is_answered = work.request.operation.is_answered();
        let quarter = u64::from(selective.limit(granted)).div_ceil(4);
        let asks = !is_answered
            && (work.request.signalled && piece.is_end
                || sequence + 1 - self.asked_end.min(sequence) >= quarter
                || lost.is_some());
        let (signals, trip_ns) = (is_answered || asks, self.trip.smoothed_ns());
        // [ROCE-CC-2]
        if let (Some(window), Some(trip_ns)) = (selective.window_packets(), trip_ns) {
            selective.paced_until_ns = selective.pacer.wait_until(now_ns, window, trip_ns);
            if selective.paced_until_ns.is_some() {
                return Ok(None);
            }
            selective.pacer.note_sent(now_ns, window, trip_ns);
        }
        let len = write_packet(at.memory, work, sequence, &piece, asks, dest_qp, buffer)?;
        selective.board.note_sent(now_ns, sequence, is_answered, asks);
        if self.una == self.next && self.attempts == 0 {
            self.heard_ns = now_ns;
        }
        self.next = self.next.max(sequence + 1);
        self.sent_end = self.next;
        if signals {
            self.asked_end = self.asked_end.max(sequence + 1);
        }
        let wait_ns = self.wait_ns(config);
        self.timer_ns.get_or_insert(now_ns.saturating_add(wait_ns));
        at.counters.repeated += u64::from(lost.is_some());
        Ok(Some(len))
    }

    fn may_send_selective(&self, config: &Config, work: &Work, sequence: u64, is_lost: bool) -> bool {
        let Some(selective) = &self.selective else { return false };
        let ahead = sequence - self.una;
        // The rest may be counted as under way for long, where the peer keeps less than it did.
        if is_lost && ahead == 0 {
            return true;
        }
        if selective.board.under_way() >= selective.limit(self.limit(config)) {
            return false;
        }
        if is_lost {
            return true;
        }
        if ahead > span(self.window) {
            return false;
        }
        if !work.request.operation.is_answered() {
            return true;
        }
        let (open, answers_max) = (selective.board.open(), config.reads_max.max(1) as u64);
        // The peer remembers the results of so many atomics only, and one of which the answer was lost is asked for again.
        let is_remembered = matches!(work.request.operation, Operation::Read { .. }) || ahead < answers_max;
        is_remembered && u64::from(open) < answers_max.min(u64::from(config.room_packets / self.parts).max(1))
    }

    /// Takes what the peer says, whatever the order.
    pub(super) fn handle_selective(
        &mut self,
        at: &mut StepContext<'_>,
        sequence: u64,
        packet: &Packet<'_>,
    ) -> Result<(), Failure> {
        let (now_ns, trip_ns) = (at.now_ns, self.trip.least_ns());
        let tells_wait = |aeth: &AethRepr| at.config.tells_waits && matches!(aeth.syndrome, Syndrome::Ack(_));
        let waited_ns = packet.headers.aeth().filter(tells_wait).map_or(0, |aeth| aeth.waited_ns());
        let Some(selective) = &mut self.selective else { return Ok(()) };
        let under_way = selective.board.under_way();
        let board = &mut selective.board;
        let mut failure = None;
        let (mut is_missing, mut says_nothing_new) = (false, false);
        match packet.headers {
            Headers::Acknowledge(aeth) => match aeth.syndrome {
                Syndrome::Ack(_) => {
                    says_nothing_new = sequence + 1 >= self.una;
                    board.handle_carried_out(now_ns, trip_ns, sequence + 1);
                }
                Syndrome::RnrNak(timer) => {
                    board.handle_carried_out(now_ns, trip_ns, sequence);
                    if sequence >= self.una {
                        board.handle_refused(sequence);
                        at.counters.rnr_naks += 1;
                        (self.attempts, self.heard_ns) = (0, now_ns);
                        let until_ns = now_ns.saturating_add(timer.nanoseconds());
                        self.rnr_until_ns = Some(until_ns);
                        // What else is under way is asked for then: its answer may be lost, and keep what was refused from its turn.
                        self.timer_ns = Some(until_ns.saturating_add(self.wait_ns(at.config)));
                        self.is_probing = false;
                    }
                }
                Syndrome::Nak(Nak::Sequence) => board.handle_carried_out(now_ns, trip_ns, sequence),
                Syndrome::Nak(nak) if sequence >= self.una => {
                    board.handle_carried_out(now_ns, trip_ns, sequence);
                    failure = Some(Failure { sequence, status: nak.into(), cause: Cause::Refused(nak) });
                }
                Syndrome::Nak(_) => {}
            },
            // [ROCE-SEL-4]
            Headers::Missing(_) => {
                if packet.payload.len() as u64 > SPAN_MAX / 8 {
                    at.counters.malformed += 1;
                    return Ok(());
                }
                at.counters.naks += 1;
                is_missing = sequence >= self.una;
                board.handle_carried_out(now_ns, trip_ns, sequence);
                board.handle_missing(sequence);
                for kept in numbers(sequence, packet.payload) {
                    board.handle_kept(now_ns, trip_ns, kept);
                }
            }
            Headers::AtomicAcknowledge { old, .. } => self.handle_atomic_answer(at, sequence, old),
            _ => failure = self.handle_read_answer(at, sequence, packet.payload),
        }
        self.heed(at, Told { under_way, waited_ns, is_lacking: is_missing || says_nothing_new });
        failure.map_or(Ok(()), Err)
    }

    fn handle_read_answer(
        &mut self,
        at: &mut StepContext<'_>,
        sequence: u64,
        payload: &[u8],
    ) -> Option<Failure> {
        if sequence < self.una {
            return None;
        }
        let work = &self.works[self.index_of(sequence)];
        let piece = work.layout.piece((sequence - work.first) as u32);
        let Operation::Read { local, .. } = work.request.operation else {
            at.counters.malformed += 1;
            return None;
        };
        if payload.len() != piece.len as usize {
            at.counters.malformed += 1;
            return None;
        }
        let trip_ns = self.trip.least_ns();
        let board = &mut self.selective.as_mut()?.board;
        if !board.handle_answered(at.now_ns, trip_ns, sequence) {
            at.counters.stale += 1;
            return None;
        }
        let to = local.address.wrapping_add(u64::from(piece.offset));
        let is_refused = !payload.is_empty() && at.memory.write_own(local.key, to, payload).is_err();
        let (status, cause) = (Status::LocalAccess, Cause::LocalAccess);
        is_refused.then_some(Failure { sequence, status, cause })
    }

    fn handle_atomic_answer(&mut self, at: &mut StepContext<'_>, sequence: u64, old: u64) {
        if sequence < self.una {
            return;
        }
        let (index, trip_ns) = (self.index_of(sequence), self.trip.least_ns());
        let work = &mut self.works[index];
        if !matches!(work.request.operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. }) {
            at.counters.malformed += 1;
            return;
        }
        let Some(selective) = &mut self.selective else { return };
        match selective.board.handle_answered(at.now_ns, trip_ns, sequence) {
            true => work.old = Some(old),
            false => at.counters.stale += 1,
        }
    }

    /// What was heard may complete requests, or show that packets are lost: after silence, all of which nothing is known, if the peer says that the oldest
    /// `is_lacking`.
    fn heed(&mut self, at: &mut StepContext<'_>, told: Told) {
        let (now_ns, arrived_ns) = (at.now_ns, at.arrived_ns);
        let Told { under_way, waited_ns, is_lacking } = told;
        let Some(selective) = &mut self.selective else { return };
        let una = self.una;
        self.una = selective.board.advance();
        let news = selective.board.take_news();
        let is_news = self.una > una || news.arrived > 0;
        if is_news {
            (self.in_vain, self.rnr_attempts, self.heard_ns) = (0, 0, now_ns);
        }
        let was_silent = (is_news || is_lacking) && std::mem::take(&mut self.is_probing);
        if is_news || was_silent {
            self.attempts = if is_news { 0 } else { self.attempts.min(1) };
            self.probe_is_due = false;
        }
        // A round trip that includes a wait for a silent peer is no sample of the path.
        let left_ns = news.left_ns.filter(|_| !was_silent);
        let trip_ns = left_ns.map(|left_ns| now_ns.saturating_sub(left_ns));
        // What both ends waited for their processors is not the network's.
        let network_ns = left_ns.map(|left_ns| arrived_ns.saturating_sub(left_ns + waited_ns));
        // Who waits too briefly for the path never hears of a packet that left once.  Only the first time: with each that is lost more such times would
        // have it wait for longer.
        let at_first = news
            .first_left_ns
            .filter(|_| self.trip.smoothed_ns().is_none())
            .map(|left_ns| now_ns.saturating_sub(left_ns));
        if let Some(trip_ns) = trip_ns.or(at_first) {
            self.trip.note(trip_ns);
        }
        let mut lost = self.find_lost(now_ns);
        let Some(selective) = &mut self.selective else { return };
        if was_silent {
            lost += selective.board.find_lost_after_silence(is_lacking && !is_news);
        }
        if let Some(controller) = &mut selective.controller {
            let arrived = news.arrived;
            controller.handle_heard(now_ns, Heard { trip_ns, network_ns, arrived, lost, under_way });
        }
        let is_empty = selective.board.is_empty();
        if is_news || was_silent {
            self.timer_ns = (!is_empty).then_some(now_ns.saturating_add(self.wait_ns(at.config)));
        }
        self.complete(at);
    }

    pub(super) fn find_lost(&mut self, now_ns: u64) -> u32 {
        // As RACK has it: a packet that was overtaken is lost a quarter of a round trip later than it could have come.
        let wait_ns = self.trip.smoothed_ns().unwrap_or(0) / 4 * 5 + LATE_NS_MIN;
        let Some(selective) = &mut self.selective else { return 0 };
        let (lost, at_ns) = selective.board.find_lost(now_ns, wait_ns);
        selective.lost_at_ns = at_ns;
        lost
    }

    /// Time has passed.
    pub(super) fn handle_lost_by_time(&mut self, now_ns: u64) {
        let is_due = |selective: &Selective| selective.lost_at_ns.is_some_and(|at_ns| now_ns >= at_ns);
        if !self.selective.as_ref().is_some_and(is_due) {
            return;
        }
        let lost = self.find_lost(now_ns);
        let Some(selective) = &mut self.selective else { return };
        let heard = Heard { lost, under_way: selective.board.under_way(), ..Heard::default() };
        if let Some(controller) = &mut selective.controller {
            controller.handle_heard(now_ns, heard);
        }
    }

    fn complete(&mut self, at: &mut StepContext<'_>) {
        while self.works.front().is_some_and(|work| work.end <= self.una) {
            let old = self.works[0].old;
            self.complete_first(old, at.events);
        }
    }
}

/// What the peer has said besides.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// Packets that were under way before.
    under_way: u32,
    /// How long what it answers has waited there.
    waited_ns: u64,
    is_lacking: bool,
}

/// How late a packet may be at least before it is lost, though others that left later have come.
const LATE_NS_MIN: u64 = 50_000;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::counters::Counters;
    use crate::memory::{Access, Memory, Refused};
    use crate::wire::{Credit, Psn};
    use crate::work::{Remote, Request, Source};

    /// All that is written is inline.
    struct NoMemory;

    impl Memory for NoMemory {
        fn check(&self, _: u32, _: Access, _: u64, _: u64) -> Result<(), Refused> {
            Err(Refused)
        }

        fn read(&self, _: u32, _: u64, _: &mut [u8]) -> Result<(), Refused> {
            Err(Refused)
        }

        fn write(&self, _: u32, _: u64, _: &[u8]) -> Result<(), Refused> {
            Err(Refused)
        }

        fn fetch_add(&self, _: u32, _: u64, _: u64) -> Result<u64, Refused> {
            Err(Refused)
        }

        fn compare_swap(&self, _: u32, _: u64, _: u64, _: u64) -> Result<u64, Refused> {
            Err(Refused)
        }
    }

    struct Sender {
        config: Config,
        requester: Requester,
        counters: Counters,
        events: VecDeque<crate::work::Event>,
    }

    impl Sender {
        fn posted(writes: u64) -> Sender {
            let config = Config { selective: true, ..Config::default() };
            let mut requester = Requester::new(0).repeating_as(&config);
            for id in 0..writes {
                let source = Source::Inline(vec![1; 8]);
                let operation =
                    Operation::Write { source, remote: Remote { rkey: 0, address: 8 * id }, imm: None };
                requester
                    .post(&config, Request { id, operation, signalled: true, solicited: false })
                    .unwrap();
            }
            Sender { config, requester, counters: Counters::default(), events: VecDeque::new() }
        }

        fn step<R>(
            &mut self,
            now_ns: u64,
            step: impl FnOnce(&mut Requester, &mut StepContext<'_>) -> R,
        ) -> R {
            let Sender { config, requester, counters, events } = self;
            let mut at =
                StepContext { now_ns, arrived_ns: now_ns, config, memory: &NoMemory, counters, events };
            step(requester, &mut at)
        }

        /// How many packets leave.
        fn send(&mut self, now_ns: u64) -> usize {
            let mut buffer = [0; 8192];
            let dest_qp = Qpn::new(1);
            let send = || {
                self.step(now_ns, |requester, at| requester.poll_transmit(at, dest_qp, &mut buffer)).unwrap()
            };
            std::iter::from_fn(send).count()
        }

        fn hear(&mut self, now_ns: u64, psn: u64, headers: Headers, payload: &[u8]) {
            let (dest_qp, psn) = (Qpn::new(2), Psn::of(psn));
            let packet = Packet { dest_qp, psn, ack_request: false, solicited: false, headers, payload };
            self.step(now_ns, |requester, at| requester.handle_answer(at, &packet)).unwrap();
        }
    }

    /// The timer was set anew each time, before the end of the lease was looked at, and what was lost waited for an answer to a
    /// packet that the peer had.
    #[test]
    fn what_turns_out_to_be_lost_while_the_peer_is_asked_by_what_it_has_is_sent_again() {
        let aeth = AethRepr { syndrome: Syndrome::Ack(Credit::at_most(64)), msn: 0 };
        let mut sender = Sender::posted(4);
        assert_eq!(sender.send(0), 1, "no more is granted at first");
        // A round trip of 10 ms, so that a packet is lost by time after 12.55 ms.
        sender.hear(10_000_000, 0, Headers::Acknowledge(aeth), &[]);
        assert_eq!(sender.send(10_000_000), 3);
        // Two were kept, too few for the first to be lost.
        sender.hear(20_000_000, 1, Headers::Missing(aeth), &[0b11, 0, 0, 0]);
        assert_eq!(sender.send(20_000_000), 0);
        // The path takes shorter packets now: the peer is asked at once, and does not hear it.
        sender.requester.set_parts(20_000_000, 2);
        sender
            .step(20_000_000, |requester, at| requester.handle_timeout(at.now_ns, at.config, at.counters))
            .unwrap();
        assert_eq!(sender.send(20_000_000), 1);
        let mut left = 0;
        let mut now_ns = 20_000_000;
        while left == 0 {
            now_ns = sender.requester.poll_timeout().expect("something is due");
            assert!(now_ns < 1_000_000_000, "it is never sent again");
            sender
                .step(now_ns, |requester, at| requester.handle_timeout(at.now_ns, at.config, at.counters))
                .unwrap();
            left = sender.send(now_ns);
        }
        sender.hear(now_ns + 10_000_000, 3, Headers::Acknowledge(aeth), &[]);
        assert_eq!(sender.events.len(), 4);
    }
}
