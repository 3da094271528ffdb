//! The responder: carries out the peer's requests, each packet once and in order, and answers them.
//!
//! ```text
//!                       expected
//!   carried out           │ not arrived
//!  ───────────────────────┼──────────────────►  packets, numbered in 64 bits
//!   repeated: answered     │ this one: carried out     behind it: kept until its turn, between ends that repeat selectively,
//!   again, or dropped                                  else dropped, and what is missing is asked for once
//! ```
//!
//! What leaves is in the order of these numbers: an acknowledgement speaks for all before it, so answers to reads and atomics go
//! first.  What came early is carried out in sequence as if it came then, so nothing of what memory shows depends on what was lost.

use std::collections::VecDeque;

use crate::config::{Config, nanoseconds};
use crate::context::StepContext;
use crate::kept::{Kept, span};
use crate::layout::packets;
use crate::memory::{Access, Refused};
use crate::wire::{
    AethRepr, AtomicEthRepr, Credit, Headers, Nak, Packet, Psn, Qpn, RethRepr, RnrTimer, Syndrome,
};
use crate::work::Event;

/// Most packets of an answer that a peer may ask for at once: a quarter of what can be told apart.
const ANSWER_PACKETS_MAX: u32 = 1 << 20;

/// A message that has begun and not ended.
#[derive(Debug)]
enum Message {
    Send { bytes: Vec<u8> },
    Write { reth: RethRepr, landed: u32 },
}

/// What is owed for a read or an atomic.
#[derive(Debug)]
struct Answer {
    /// The number of its next packet.
    next: u64,
    /// The number behind its last one.
    end: u64,
    kind: AnswerKind,
    /// When the request came.
    arrived_ns: u64,
    /// Asked for again, and not owed already.
    is_repeat: bool,
}

#[derive(Debug)]
enum AnswerKind {
    /// The rest of the bytes.
    Read { reth: RethRepr, is_begun: bool },
    /// What the word held.
    Atomic { old: u64 },
}

/// Why a packet is not carried out.
enum Refusal {
    /// It never will be: this ends the connection.
    ForGood(Nak),
    /// There is no receive yet.
    NotReady,
}

impl From<Refused> for Refusal {
    fn from(_: Refused) -> Refusal {
        Refusal::ForGood(Nak::RemoteAccess)
    }
}

const INVALID: Refusal = Refusal::ForGood(Nak::InvalidRequest);

#[derive(Debug)]
pub(crate) struct Responder {
    /// The packet whose turn it is.
    expected: u64,
    /// The first of all.
    begin: u64,
    /// Messages completed.
    msn: u32,
    /// Messages and immediates that the caller has room for.
    receives: u32,
    /// What acknowledgements grant, in packets.
    grant: u32,
    message: Option<Message>,
    /// In the order of their numbers.
    answers: VecDeque<Answer>,
    /// Results of the last atomics, in case they are asked for again.
    atomics: VecDeque<(u64, u64)>,
    /// Packets that have arrived and are acknowledged by nothing that has left or will leave by itself.
    unacknowledged: u32,
    /// The peer asks what has come, though nothing may have.
    is_asked: bool,
    /// When the acknowledgement leaves at the latest.
    ack_at_ns: Option<u64>,
    /// When the newest packet came that is answered at once by an acknowledgement.
    asked_ns: u64,
    /// A refusal that is to leave.
    nak: Option<Syndrome>,
    /// What came before its turn.
    kept: Kept,
    /// Something came before its turn, and all before that has not come yet.
    is_missing: bool,
    /// When the peer was last told what is missing, or that there is no receive, if it has not sent it since.
    told_ns: Option<u64>,
    /// The refusal that has ended the connection; said again to who did not hear it.
    last_word: Option<Nak>,
}

impl Responder {
    /// The peer's first packet will have number `first`.
    pub fn new(first: u64) -> Responder {
        Responder {
            expected: first,
            begin: first,
            msn: 0,
            receives: 0,
            grant: 1,
            message: None,
            answers: VecDeque::new(),
            atomics: VecDeque::new(),
            unacknowledged: 0,
            is_asked: false,
            ack_at_ns: None,
            asked_ns: 0,
            nak: None,
            kept: Kept::default(),
            is_missing: false,
            told_ns: None,
            last_word: None,
        }
    }

    pub fn add_receives(&mut self, count: u32) {
        self.receives = self.receives.saturating_add(count);
    }

    /// What acknowledgements grant, in packets.
    pub fn grant(&self) -> u32 {
        self.grant
    }

    /// Whether any request was carried out.
    pub fn has_begun(&self) -> bool {
        self.expected > self.begin
    }

    /// Whether more or less, it is told at once: who is silent would keep what others are to have.
    // [ROCE-WINDOW-3]
    pub fn set_grant(&mut self, now_ns: u64, packets: u32) {
        if Credit::at_most(packets) != Credit::at_most(self.grant) && self.expected > self.begin {
            self.owe(now_ns);
        }
        self.grant = packets;
    }

    /// Carries a request out, if it is its turn.  An error ends the connection.
    pub fn handle_request(&mut self, at: &mut StepContext<'_>, packet: &Packet<'_>) -> Result<(), Nak> {
        let is_known =
            |sequence: &u64| *sequence >= self.begin || *sequence + 1 == self.begin && is_ask(packet);
        let sequence = packet.psn.expand(self.expected).filter(is_known);
        let Some(sequence) = sequence else {
            at.counters.out_of_window += 1;
            return Ok(());
        };
        if sequence > self.expected {
            match at.config.selective {
                true => self.keep(at, sequence, packet),
                false => self.ahead(at, packet),
            }
            return Ok(());
        }
        if sequence < self.expected {
            self.repeated(at, sequence, packet);
            return Ok(());
        }
        self.take_turn(at, packet)?;
        if self.is_missing {
            self.take_turns(at)?;
        }
        Ok(())
    }

    /// Something that was missing has come: what was kept behind it follows, up to what is missing next.
    // [ROCE-SEL-2]
    fn take_turns(&mut self, at: &mut StepContext<'_>) -> Result<(), Nak> {
        while let Some(early) = self.kept.take(self.expected) {
            let before = self.expected;
            self.take_turn(at, &early.packet(before))?;
            if self.expected == before {
                break;
            }
        }
        self.is_missing = !self.kept.is_empty();
        self.owe(at.now_ns);
        Ok(())
    }

    /// Carries out the packet whose turn it is.
    fn take_turn(&mut self, at: &mut StepContext<'_>, packet: &Packet<'_>) -> Result<(), Nak> {
        match self.carry_out(at, packet) {
            Ok(numbers) => {
                self.expected += u64::from(numbers);
                self.told_ns = None;
                self.nak = None;
                self.arrived(at, packet);
                Ok(())
            }
            // [ROCE-RNR-1]
            Err(Refusal::NotReady) => {
                at.counters.rnr_naks += 1;
                let wait = RnrTimer::at_least(nanoseconds(at.config.rnr_wait));
                self.nak = Some(Syndrome::RnrNak(wait));
                self.told_ns = Some(at.now_ns);
                Ok(())
            }
            // [ROCE-NAK-3]
            Err(Refusal::ForGood(nak)) => Err(self.refuse(nak)),
        }
    }

    /// The packet that is expected is refused for good.
    fn refuse(&mut self, nak: Nak) -> Nak {
        self.message = None;
        self.answers.clear();
        self.last_word = Some(nak);
        self.nak = Some(Syndrome::Nak(nak));
        nak
    }

    /// The connection has ended by our refusal: who asks again, with that packet or one behind it, did not hear it.
    pub fn handle_request_after_end(&mut self, packet: &Packet<'_>) {
        let sequence = packet.psn.expand(self.expected);
        if sequence.is_some_and(|sequence| {
            sequence == self.expected || sequence > self.expected && wants_answer(packet)
        }) {
            self.nak = self.last_word.map(Syndrome::Nak);
        }
    }

    /// Keeps a packet that came before its turn, if that is within the bound, and has the peer told what is missing.
    // [ROCE-SEL-1]
    fn keep(&mut self, at: &mut StepContext<'_>, sequence: u64, packet: &Packet<'_>) {
        // One that is too long never fits, whenever its turn comes.
        let fits = packet.payload.len() <= at.config.mtu.bytes() as usize;
        if !fits || sequence - self.expected > span(self.grant) {
            at.counters.ahead += 1;
        } else if self.kept.keep(sequence, packet) {
            at.counters.kept += 1;
        } else {
            at.counters.duplicates += 1;
        }
        self.is_missing = true;
        self.asked_ns = at.arrived_ns;
        self.owe(at.now_ns);
    }

    /// Something is missing.  Who asks again, after a while, may not have heard so.
    // [ROCE-NAK-1]
    fn ahead(&mut self, at: &mut StepContext<'_>, packet: &Packet<'_>) {
        at.counters.ahead += 1;
        let is_unheard = |told_ns: u64| {
            wants_answer(packet) && at.now_ns.saturating_sub(told_ns) >= 2 * nanoseconds(at.config.ack_delay)
        };
        if self.told_ns.is_none_or(is_unheard) {
            at.counters.naks += 1;
            self.told_ns = Some(at.now_ns);
            self.nak = Some(Syndrome::Nak(Nak::Sequence));
        }
    }

    /// Books for a packet that was carried out: when it is acknowledged, if its answer does not do so.
    // [ROCE-ACK-1]
    fn arrived(&mut self, at: &StepContext<'_>, packet: &Packet<'_>) {
        let StepContext { now_ns, config, .. } = *at;
        if is_answered(packet) {
            self.unacknowledged = 0;
            self.ack_at_ns = None;
            return;
        }
        self.unacknowledged += 1;
        let is_asked = packet.ack_request || is_sign_of_life(packet);
        if is_asked {
            self.asked_ns = at.arrived_ns;
        }
        if is_asked || self.unacknowledged >= self.grant.div_ceil(4) {
            self.owe(now_ns);
        } else {
            self.ack_at_ns.get_or_insert(now_ns.saturating_add(nanoseconds(config.ack_delay)));
        }
    }

    /// The next acknowledgement is to leave at once.
    fn owe(&mut self, now_ns: u64) {
        self.ack_at_ns = Some(self.ack_at_ns.map_or(now_ns, |at| at.min(now_ns)));
    }

    /// Does what the packet says; returns how many numbers it takes.
    fn carry_out(&mut self, at: &mut StepContext<'_>, packet: &Packet<'_>) -> Result<u32, Refusal> {
        let (config, memory) = (at.config, at.memory);
        let mtu = config.mtu.bytes() as usize;
        let (payload, solicited) = (packet.payload, packet.solicited);
        let is_between = self.message.is_none();
        match packet.headers {
            Headers::SendFirst if is_between && payload.len() == mtu => {
                self.check_receive()?;
                self.send(config, Vec::new(), payload)?;
            }
            Headers::SendOnly { imm } if is_between && payload.len() <= mtu => {
                self.check_receive()?;
                self.send(config, Vec::new(), payload)?;
                self.received(imm, solicited, at.events);
            }
            Headers::SendMiddle if payload.len() == mtu => {
                let Some(Message::Send { bytes }) = self.message.take() else { return Err(INVALID) };
                self.send(config, bytes, payload)?;
            }
            Headers::SendLast { imm } if (1..=mtu).contains(&payload.len()) => {
                let Some(Message::Send { bytes }) = self.message.take() else { return Err(INVALID) };
                self.send(config, bytes, payload)?;
                self.received(imm, solicited, at.events);
            }
            Headers::WriteFirst(reth) if is_between && payload.len() == mtu && reth.len as usize > mtu => {
                memory.check(reth.rkey, Access::Write, reth.address, u64::from(reth.len))?;
                memory.write(reth.rkey, reth.address, payload)?;
                self.message = Some(Message::Write { reth, landed: mtu as u32 });
            }
            Headers::WriteOnly { reth, imm }
                if is_between && payload.len() <= mtu && payload.len() == reth.len as usize =>
            {
                if is_asked(config, reth) {
                    memory.check(reth.rkey, Access::Write, reth.address, u64::from(reth.len))?;
                }
                self.notify(imm, solicited, at.events, || match reth.len {
                    0 => Ok(()),
                    _ => memory.write(reth.rkey, reth.address, payload),
                })?;
            }
            Headers::WriteMiddle if payload.len() == mtu => {
                let Some(Message::Write { reth, landed }) = self.message else { return Err(INVALID) };
                if reth.len - landed <= mtu as u32 {
                    return Err(INVALID);
                }
                memory.write(reth.rkey, reth.address.wrapping_add(u64::from(landed)), payload)?;
                self.message = Some(Message::Write { reth, landed: landed + mtu as u32 });
            }
            Headers::WriteLast { imm } if (1..=mtu).contains(&payload.len()) => {
                let Some(Message::Write { reth, landed }) = self.message else { return Err(INVALID) };
                if (reth.len - landed) as usize != payload.len() {
                    return Err(INVALID);
                }
                let address = reth.address.wrapping_add(u64::from(landed));
                self.notify(imm, solicited, at.events, || memory.write(reth.rkey, address, payload))?;
                self.message = None;
            }
            Headers::ReadRequest(reth) if is_between => return self.read(at, reth),
            Headers::FetchAdd(eth) if is_between => {
                self.atomic(at, eth, |eth| memory.fetch_add(eth.rkey, eth.address, eth.swap_or_add))?;
            }
            Headers::CompareSwap(eth) if is_between => {
                self.atomic(at, eth, |eth| {
                    memory.compare_swap(eth.rkey, eth.address, eth.compare, eth.swap_or_add)
                })?;
            }
            _ => return Err(INVALID),
        }
        Ok(1)
    }

    /// A message begins only where it can be received.
    fn check_receive(&self) -> Result<(), Refusal> {
        if self.receives == 0 { Err(Refusal::NotReady) } else { Ok(()) }
    }

    /// More bytes of a message.
    fn send(&mut self, config: &Config, mut bytes: Vec<u8>, payload: &[u8]) -> Result<(), Refusal> {
        if bytes.len() + payload.len() > config.send_bytes_max {
            return Err(INVALID);
        }
        bytes.extend_from_slice(payload);
        self.message = Some(Message::Send { bytes });
        Ok(())
    }

    /// A message is whole.
    fn received(&mut self, imm: Option<u32>, solicited: bool, events: &mut VecDeque<Event>) {
        if let Some(Message::Send { bytes }) = self.message.take() {
            self.receives -= 1;
            self.completed_message();
            events.push_back(Event::Received { bytes, imm, solicited });
        }
    }

    /// The end of a write, which `land`s only where its immediate can be received.
    fn notify(
        &mut self,
        imm: Option<u32>,
        solicited: bool,
        events: &mut VecDeque<Event>,
        land: impl FnOnce() -> Result<(), Refused>,
    ) -> Result<(), Refusal> {
        if imm.is_some() {
            self.check_receive()?;
        }
        land()?;
        self.completed_message();
        if let Some(imm) = imm {
            self.receives -= 1;
            events.push_back(Event::Notified { imm, solicited });
        }
        Ok(())
    }

    fn completed_message(&mut self) {
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
    }

    // [ROCE-READ-1]
    fn read(&mut self, at: &StepContext<'_>, reth: RethRepr) -> Result<u32, Refusal> {
        let StepContext { config, memory, arrived_ns, .. } = *at;
        let numbers = packets(reth.len, config.mtu.bytes());
        if numbers > ANSWER_PACKETS_MAX || !self.has_room(config) {
            return Err(INVALID);
        }
        if is_asked(config, reth) {
            memory.check(reth.rkey, Access::Read, reth.address, u64::from(reth.len))?;
        }
        self.completed_message();
        let kind = AnswerKind::Read { reth, is_begun: false };
        let end = self.expected + u64::from(numbers);
        self.answers.push_back(Answer { next: self.expected, end, kind, arrived_ns, is_repeat: false });
        Ok(numbers)
    }

    // [ROCE-ATOMIC-1]
    fn atomic(
        &mut self,
        at: &StepContext<'_>,
        eth: AtomicEthRepr,
        change: impl FnOnce(&AtomicEthRepr) -> Result<u64, Refused>,
    ) -> Result<(), Refusal> {
        let StepContext { config, memory, arrived_ns, .. } = *at;
        if !eth.address.is_multiple_of(8) || !self.has_room(config) {
            return Err(INVALID);
        }
        memory.check(eth.rkey, Access::Atomic, eth.address, 8)?;
        let old = change(&eth)?;
        self.completed_message();
        if self.atomics.len() >= config.answers_max {
            self.atomics.pop_front();
        }
        self.atomics.push_back((self.expected, old));
        let kind = AnswerKind::Atomic { old };
        let (next, end) = (self.expected, self.expected + 1);
        self.answers.push_back(Answer { next, end, kind, arrived_ns, is_repeat: false });
        Ok(())
    }

    /// A packet that has been carried out: it is not carried out again, but answered as the first time.
    // [ROCE-DUP-1]
    fn repeated(&mut self, at: &mut StepContext<'_>, sequence: u64, packet: &Packet<'_>) {
        let answer = match packet.headers {
            Headers::ReadRequest(reth) => self.read_again(at, sequence, reth),
            // [ROCE-ATOMIC-2]
            Headers::FetchAdd(_) | Headers::CompareSwap(_) => {
                self.atomics.iter().find(|(of, _)| *of == sequence).map(|(_, old)| Answer {
                    next: sequence,
                    end: sequence + 1,
                    kind: AnswerKind::Atomic { old: *old },
                    arrived_ns: at.arrived_ns,
                    is_repeat: true,
                })
            }
            _ => {
                at.counters.duplicates += 1;
                (self.is_asked, self.asked_ns) = (true, at.arrived_ns);
                self.owe(at.now_ns);
                return;
            }
        };
        if answer.is_some_and(|answer| self.owe_again(at.config, answer)) {
            at.counters.duplicates += 1;
        } else {
            at.counters.malformed += 1;
        }
    }

    /// The answer to a read that is asked for again, or to the rest of one.
    // [ROCE-DUP-2]
    fn read_again(&self, at: &StepContext<'_>, sequence: u64, reth: RethRepr) -> Option<Answer> {
        let StepContext { config, memory, arrived_ns, .. } = *at;
        let end = sequence + u64::from(packets(reth.len, config.mtu.bytes()));
        let is_allowed = !is_asked(config, reth)
            || memory.check(reth.rkey, Access::Read, reth.address, u64::from(reth.len)).is_ok();
        (end <= self.expected && is_allowed).then_some(Answer {
            next: sequence,
            end,
            kind: AnswerKind::Read { reth, is_begun: false },
            arrived_ns,
            is_repeat: true,
        })
    }

    /// Whether one more answer may be owed.  One that was asked for again makes way: a requester that goes back asks for old answers in
    /// other pieces, has some of them by now, and asks once more for what it lacks.
    // [ROCE-DUP-3]
    fn has_room(&mut self, config: &Config) -> bool {
        if self.answers.len() >= config.answers_max
            && let Some(index) = self.answers.iter().rposition(|answer| answer.is_repeat)
        {
            self.answers.remove(index);
        }
        self.answers.len() < config.answers_max
    }

    /// Puts an answer where its numbers belong, in place of the one that is still owed for the same request.
    fn owe_again(&mut self, config: &Config, answer: Answer) -> bool {
        if let Some(same) = self.answers.iter_mut().find(|owed| owed.end == answer.end) {
            // Of that one, more may be owed than is asked for.
            if answer.next < same.next {
                *same = Answer { is_repeat: same.is_repeat, ..answer };
            }
            return true;
        }
        // What a peer repeats takes no more memory than what it may ask for.
        if self.answers.len() >= config.answers_max {
            return false;
        }
        let place = self.answers.partition_point(|owed| owed.end < answer.end);
        self.answers.insert(place, answer);
        true
    }

    /// Whether an answer or a refusal waits to leave.
    pub fn has_answer(&self) -> bool {
        !self.answers.is_empty() || self.nak.is_some()
    }

    /// Writes the next packet of an answer, or a refusal.  An error ends the connection.
    pub fn poll_answer(
        &mut self,
        at: &StepContext<'_>,
        dest_qp: Qpn,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, Nak> {
        let Some(asked_ns) = self.answers.front().map(|answer| answer.arrived_ns) else {
            return Ok(self.poll_nak(dest_qp, buffer));
        };
        let aeth = self.aeth(at, asked_ns);
        let answer = self.answers.front_mut().expect("there is one");
        let packet = |headers| Packet {
            dest_qp,
            psn: Psn::of(answer.next),
            ack_request: false,
            solicited: false,
            headers,
            payload: &[],
        };
        let len = match &mut answer.kind {
            AnswerKind::Atomic { old } => packet(Headers::AtomicAcknowledge { aeth, old: *old }).emit(buffer),
            AnswerKind::Read { reth, is_begun } => {
                let bytes = reth.len.min(at.config.mtu.bytes());
                let headers = match (*is_begun, bytes == reth.len) {
                    (false, true) => Headers::ReadResponseOnly(aeth),
                    (false, false) => Headers::ReadResponseFirst(aeth),
                    (true, false) => Headers::ReadResponseMiddle,
                    (true, true) => Headers::ReadResponseLast(aeth),
                };
                let begin = packet(headers).emit_headers(bytes as usize, buffer);
                let payload = &mut buffer[begin..begin + bytes as usize];
                if bytes > 0 && at.memory.read(reth.rkey, reth.address, payload).is_err() {
                    // It has gone since the request was checked: from here on nothing is done.
                    self.expected = answer.next;
                    // What is behind may be done already, unlike with a refusal of the request itself.
                    return Err(self.refuse(Nak::RemoteOperation));
                }
                reth.address = reth.address.wrapping_add(u64::from(bytes));
                reth.len -= bytes;
                *is_begun = true;
                crate::wire::packet::packet_bytes(&headers, bytes as usize)
            }
        };
        answer.next += 1;
        if answer.next == answer.end {
            self.answers.pop_front();
        }
        Ok(Some(len))
    }

    /// Writes the refusal that waits to leave.
    pub fn poll_nak(&mut self, dest_qp: Qpn, buffer: &mut [u8]) -> Option<usize> {
        let syndrome = self.nak.take()?;
        self.acknowledged();
        Some(emit_ack(dest_qp, self.expected, AethRepr { syndrome, msn: self.msn }, buffer))
    }

    /// Writes the acknowledgement that is due, where no answer waits.
    // [ROCE-ACK-2]
    pub fn poll_ack(&mut self, at: &StepContext<'_>, dest_qp: Qpn, buffer: &mut [u8]) -> Option<usize> {
        let now_ns = at.now_ns;
        let says_something = self.expected > self.begin || self.is_missing || self.is_asked;
        if self.ack_at_ns.is_none_or(|at| now_ns < at) || !says_something {
            return None;
        }
        self.acknowledged();
        if self.is_missing {
            return Some(self.emit_missing(at, dest_qp, buffer));
        }
        Some(emit_ack(dest_qp, self.expected - 1, self.aeth(at, self.asked_ns), buffer))
    }

    /// Writes what is missing, and what was kept behind that.
    // [ROCE-SEL-3]
    fn emit_missing(&self, at: &StepContext<'_>, dest_qp: Qpn, buffer: &mut [u8]) -> usize {
        let packet = Packet {
            dest_qp,
            psn: Psn::of(self.expected),
            ack_request: false,
            solicited: false,
            headers: Headers::Missing(self.aeth(at, self.asked_ns)),
            payload: &self.kept.bits(self.expected),
        };
        packet.emit(buffer)
    }

    fn acknowledged(&mut self) {
        self.is_asked = false;
        self.ack_at_ns = None;
        self.unacknowledged = 0;
    }

    /// Of what answers a packet that came at `asked_ns`.
    // [ROCE-CC-3]
    fn aeth(&self, at: &StepContext<'_>, asked_ns: u64) -> AethRepr {
        let credit = if at.config.grants { Credit::at_most(self.grant) } else { Credit::UNLIMITED };
        let msn = match at.config.tells_waits {
            true => AethRepr::msn_of_wait(at.now_ns.saturating_sub(asked_ns)),
            false => self.msn,
        };
        AethRepr { syndrome: Syndrome::Ack(credit), msn }
    }

    /// When an acknowledgement is to leave.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.ack_at_ns
    }

    /// Forgets all but what it has said last.
    // [ROCE-END-1]
    pub fn end(&mut self) {
        self.message = None;
        self.kept = Kept::default();
        self.is_missing = false;
        self.answers.clear();
        self.atomics.clear();
        self.acknowledged();
        if self.last_word.is_none() {
            self.nak = None;
        }
    }
}

/// Whether a request is answered by more than an acknowledgement.
pub(crate) fn is_answered(packet: &Packet<'_>) -> bool {
    matches!(packet.headers, Headers::ReadRequest(_) | Headers::FetchAdd(_) | Headers::CompareSwap(_))
}

/// Whether it only asks what has come: where it names the packet before all others, that is all that it can mean.
// [ROCE-TIME-3]
fn is_ask(packet: &Packet<'_>) -> bool {
    matches!(packet.headers, Headers::WriteOnly { reth, imm: None } if reth.len == 0)
        && packet.payload.is_empty()
}

/// Whether it is a message that wakes nobody, and that nobody will answer: a peer that is idle says now and then that it lives.  It is acknowledged
/// at once, for who was woken by it would wake again to do so later; and the one packet that is kept for each peer is room enough for it.
// [ROCE-ACK-4]
pub(crate) fn is_sign_of_life(packet: &Packet<'_>) -> bool {
    matches!(packet.headers, Headers::SendOnly { .. }) && !packet.solicited
}

/// Whether its sender waits for something.
fn wants_answer(packet: &Packet<'_>) -> bool {
    packet.ack_request || is_answered(packet)
}

/// Whether the key is to be one, though without bytes it is not used.
// [ROCE-KEY-1]
fn is_asked(config: &Config, reth: RethRepr) -> bool {
    reth.len > 0 || config.grants
}

fn emit_ack(dest_qp: Qpn, sequence: u64, aeth: AethRepr, buffer: &mut [u8]) -> usize {
    let packet = Packet {
        dest_qp,
        psn: Psn::of(sequence),
        ack_request: false,
        solicited: false,
        headers: Headers::Acknowledge(aeth),
        payload: &[],
    };
    packet.emit(buffer)
}
