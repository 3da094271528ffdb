//! The responder: executes the packets of the peer's requests, each once and in order, and sends responses.
//!
//! ```text
//!                       expected
//!   executed              │ not arrived
//!  ───────────────────────┼──────────────────►  packets, numbered in 64 bits
//!   duplicate: response    │ next one: executed        early: kept, with selective repeat; else dropped, and the gap
//!   sent again, or dropped                             reported once
//! ```
//!
//! The responder sends responses in the order of the packet numbers. An acknowledgement covers all earlier packets, so
//! the responder sends pending responses to reads and atomics before it. The responder executes an early packet only
//! after all packets before it, so losses never change the order of effects in memory.

use std::collections::VecDeque;

use crate::config::{Config, nanoseconds};
use crate::context::StepContext;
use crate::kept::{KeptPackets, span};
use crate::layout::packets;
use crate::memory::{Access, Refused};
use crate::wire::{
    AethRepr, AtomicEthRepr, Credit, Headers, Nak, Packet, Psn, Qpn, RethRepr, RnrTimer, Syndrome,
};
use crate::work::Event;

/// Maximum packets in the response to one read: a quarter of [`SEQUENCE_WINDOW`](crate::wire::SEQUENCE_WINDOW).
const RESPONSE_PACKETS_MAX: u32 = 1 << 20;

/// Number of packets that must arrive behind a gap before the responder reports the gap, so that late packets do not
/// count as lost. The responder reports the gap again after every further [`GAP_REPORT_INTERVAL`] packets. A path that
/// loses one packet in a hundred nearly always has a gap, and a report for each arrival would double the packets on the
/// path.
const GAP_REPORT_FIRST: u32 = 3;
const GAP_REPORT_INTERVAL: u32 = 8;

/// A message of several packets, not complete yet.
#[derive(Debug)]
enum Message {
    Send { bytes: Vec<u8> },
    Write { reth: RethRepr, written_bytes: u32 },
}

/// The pending response to a read or an atomic.
#[derive(Debug)]
struct Response {
    /// Sequence number of the response's next packet.
    next: u64,
    /// Sequence number after that of the response's last packet.
    end: u64,
    kind: ResponseKind,
    /// Arrival time of the request.
    arrived_ns: u64,
    /// True if a duplicate request caused the response.
    is_repeat: bool,
}

#[derive(Debug)]
enum ResponseKind {
    /// The bytes not sent yet.
    Read { reth: RethRepr, has_started: bool },
    /// The previous value of the word.
    Atomic { old: u64 },
}

/// The reason why the responder does not execute a packet.
enum Refusal {
    /// Fatal: the connection ends.
    Fatal(Nak),
    /// No receive is posted yet.
    NotReady,
}

impl From<Refused> for Refusal {
    fn from(_: Refused) -> Refusal {
        Refusal::Fatal(Nak::RemoteAccess)
    }
}

const INVALID: Refusal = Refusal::Fatal(Nak::InvalidRequest);

#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// Number of the next packet to execute.
    expected: u64,
    /// Number of the peer's first packet.
    first: u64,
    /// Completed messages, modulo 2^24.
    msn: u32,
    /// Posted receives, for messages and immediates.
    receives: u32,
    /// Packets granted in acknowledgements.
    grant: u32,
    message: Option<Message>,
    /// Pending responses, by number.
    responses: VecDeque<Response>,
    /// Numbers and results of the last atomics, to answer duplicates.
    atomics: VecDeque<(u64, u64)>,
    /// Number of executed packets that no sent or pending response acknowledges.
    unacknowledged: u32,
    /// True if a duplicate arrived that is not acknowledged yet.
    has_duplicate: bool,
    /// Latest send time of the acknowledgement.
    ack_at_ns: Option<u64>,
    /// True if a due acknowledgement may wait until the owner polls again.
    ack_is_deferrable: bool,
    /// Arrival time of the newest packet that requires an early acknowledgement: a packet that requests one, a
    /// heartbeat, a duplicate, or an early packet.
    ack_request_ns: u64,
    /// The NAK to send.
    nak: Option<Syndrome>,
    /// The out-of-order buffer.
    kept: KeptPackets,
    /// True if a packet before an early one is missing.
    has_gap: bool,
    /// Number of packets that arrived in order behind the newest gap.
    consecutive_early: u32,
    /// Number of early packets since the last acknowledgement.
    early_since_ack: u32,
    /// Send time of the last NAK for the expected packet.
    nak_ns: Option<u64>,
    /// The NAK that ended the connection. It is sent again if the peer repeats its request.
    final_nak: Option<Nak>,
}

impl Responder {
    /// Creates a responder that expects `first` as the number of the peer's first packet.
    pub fn new(first: u64) -> Responder {
        Responder { expected: first, first, grant: 1, ..Responder::default() }
    }

    pub fn add_receives(&mut self, count: u32) {
        self.receives = self.receives.saturating_add(count);
    }

    /// Returns the number of packets granted in acknowledgements.
    pub fn grant(&self) -> u32 {
        self.grant
    }

    /// Returns true if the responder has executed a request.
    pub fn has_executed_requests(&self) -> bool {
        self.expected > self.first
    }

    /// Sets the grant, and sends a changed grant at once. Otherwise, a peer that sends no requests would keep its old
    /// grant, whose room other lanes now use.
    // [ROCE-WINDOW-3]
    pub fn set_grant(&mut self, now_ns: u64, packets: u32) {
        if Credit::at_most(packets) != Credit::at_most(self.grant) && self.expected > self.first {
            self.ack_now(now_ns);
        }
        self.grant = packets;
    }

    /// Executes, keeps or drops a request packet. Returns an error if the connection ends: the NAK that reports the
    /// reason to the peer.
    pub fn handle_request(&mut self, step: &mut StepContext<'_>, packet: &Packet<'_>) -> Result<(), Nak> {
        let is_accepted =
            |sequence: &u64| *sequence >= self.first || *sequence + 1 == self.first && is_empty_probe(packet);
        let sequence = packet.psn.expand(self.expected).filter(is_accepted);
        let Some(sequence) = sequence else {
            step.counters.out_of_window += 1;
            return Ok(());
        };
        if sequence > self.expected {
            match step.config.selective {
                true => self.keep_early(step, sequence, packet),
                false => self.report_gap(step, packet),
            }
            return Ok(());
        }
        if sequence < self.expected {
            self.handle_duplicate(step, sequence, packet);
            return Ok(());
        }
        self.handle_expected(step, packet)?;
        if self.has_gap {
            self.handle_kept(step)?;
        }
        Ok(())
    }

    /// Executes the kept packets behind a closed gap, up to the next gap.
    // [ROCE-SEL-2]
    fn handle_kept(&mut self, step: &mut StepContext<'_>) -> Result<(), Nak> {
        while let Some(early) = self.kept.take(self.expected) {
            let before = self.expected;
            self.handle_expected(step, &early.packet(before))?;
            if self.expected == before {
                break;
            }
        }
        self.has_gap = !self.kept.is_empty();
        self.ack_now(step.now_ns);
        Ok(())
    }

    /// Executes the expected packet.
    fn handle_expected(&mut self, step: &mut StepContext<'_>, packet: &Packet<'_>) -> Result<(), Nak> {
        match self.execute(step, packet) {
            Ok(numbers) => {
                self.expected += u64::from(numbers);
                self.nak_ns = None;
                self.nak = None;
                self.schedule_ack(step, packet);
                Ok(())
            }
            // [ROCE-RNR-1]
            Err(Refusal::NotReady) => {
                step.counters.rnr_naks += 1;
                let wait = RnrTimer::at_least(nanoseconds(step.config.rnr_wait));
                self.nak = Some(Syndrome::RnrNak(wait));
                self.nak_ns = Some(step.now_ns);
                Ok(())
            }
            // [ROCE-NAK-3]
            Err(Refusal::Fatal(nak)) => Err(self.refuse(nak)),
        }
    }

    /// Queues the NAK that ends the connection.
    fn refuse(&mut self, nak: Nak) -> Nak {
        self.message = None;
        self.responses.clear();
        self.final_nak = Some(nak);
        self.nak = Some(Syndrome::Nak(nak));
        nak
    }

    /// Queues the final NAK again if the peer sends the refused packet again, or a later packet that requests a
    /// response.
    pub fn handle_request_after_end(&mut self, packet: &Packet<'_>) {
        let sequence = packet.psn.expand(self.expected);
        if sequence.is_some_and(|sequence| {
            sequence == self.expected || sequence > self.expected && wants_response(packet)
        }) {
            self.nak = self.final_nak.map(Syndrome::Nak);
        }
    }

    /// Keeps an early packet if it is within the span, and schedules a report of the gap before it.
    // [ROCE-SEL-1] [ROCE-SEL-3]
    fn keep_early(&mut self, step: &mut StepContext<'_>, sequence: u64, packet: &Packet<'_>) {
        // A packet longer than the MTU would be refused later anyway.
        let fits = packet.payload.len() <= step.config.mtu.bytes() as usize;
        let is_next = self.kept.highest().is_some_and(|highest| sequence == highest + 1);
        self.consecutive_early = if is_next { self.consecutive_early.saturating_add(1) } else { 1 };
        self.early_since_ack += 1;
        if !fits || sequence - self.expected > span(step.config.mtu) {
            step.counters.ahead += 1;
        } else if self.kept.keep(sequence, packet) {
            step.counters.kept += 1;
        } else {
            step.counters.duplicates += 1;
        }
        self.has_gap = true;
        self.ack_request_ns = step.arrived_ns;
        if wants_response(packet)
            || self.consecutive_early == GAP_REPORT_FIRST
            || self.early_since_ack >= GAP_REPORT_INTERVAL
        {
            self.ack_now(step.now_ns);
        } else {
            self.ack_at_ns.get_or_insert(step.now_ns.saturating_add(nanoseconds(step.config.ack_delay)));
        }
    }

    /// Drops an early packet and queues a sequence NAK, once per gap. Queues it again if the peer later requests a
    /// response, because the first NAK may have been lost.
    // [ROCE-NAK-1]
    fn report_gap(&mut self, step: &mut StepContext<'_>, packet: &Packet<'_>) {
        step.counters.ahead += 1;
        let is_nak_lost = |nak_ns: u64| {
            wants_response(packet)
                && step.now_ns.saturating_sub(nak_ns) >= 2 * nanoseconds(step.config.ack_delay)
        };
        if self.nak_ns.is_none_or(is_nak_lost) {
            step.counters.naks += 1;
            self.nak_ns = Some(step.now_ns);
            self.nak = Some(Syndrome::Nak(Nak::Sequence));
        }
    }

    /// Schedules the acknowledgement of a packet that was executed, unless its response acknowledges it.
    // [ROCE-ACK-1] [ROCE-ACK-5]
    fn schedule_ack(&mut self, step: &StepContext<'_>, packet: &Packet<'_>) {
        let StepContext { now_ns, config, .. } = *step;
        if returns_data(packet) {
            self.unacknowledged = 0;
            (self.ack_at_ns, self.ack_is_deferrable) = (None, false);
            return;
        }
        self.unacknowledged += 1;
        let is_urgent = packet.ack_request || is_heartbeat(packet);
        if is_urgent {
            self.ack_request_ns = step.arrived_ns;
        }
        if is_urgent || self.unacknowledged >= self.grant.div_ceil(4) {
            let was_not_due = self.ack_at_ns.is_none_or(|at| now_ns < at);
            let is_awaited = packet.solicited || is_heartbeat(packet) || !config.grants;
            let is_deferrable = !is_awaited && (was_not_due || self.ack_is_deferrable);
            self.ack_now(now_ns);
            self.ack_is_deferrable = is_deferrable;
        } else {
            self.ack_at_ns.get_or_insert(now_ns.saturating_add(nanoseconds(config.ack_delay)));
        }
    }

    /// Makes the acknowledgement due now.
    fn ack_now(&mut self, now_ns: u64) {
        self.ack_is_deferrable = false;
        self.ack_at_ns = Some(self.ack_at_ns.map_or(now_ns, |at| at.min(now_ns)));
    }

    /// Executes a packet; returns the number of sequence numbers that it takes.
    fn execute(&mut self, step: &mut StepContext<'_>, packet: &Packet<'_>) -> Result<u32, Refusal> {
        let (config, memory) = (step.config, step.memory);
        let mtu = config.mtu.bytes() as usize;
        let (payload, solicited) = (packet.payload, packet.solicited);
        let is_start = self.message.is_none();
        match packet.headers {
            Headers::SendFirst if is_start && payload.len() == mtu => {
                self.check_receive()?;
                self.append_payload(config, Vec::new(), payload)?;
            }
            Headers::SendOnly { imm } if is_start && payload.len() <= mtu => {
                self.check_receive()?;
                self.append_payload(config, Vec::new(), payload)?;
                self.deliver_message(imm, solicited, step.events);
            }
            Headers::SendMiddle if payload.len() == mtu => {
                let Some(Message::Send { bytes }) = self.message.take() else { return Err(INVALID) };
                self.append_payload(config, bytes, payload)?;
            }
            Headers::SendLast { imm } if (1..=mtu).contains(&payload.len()) => {
                let Some(Message::Send { bytes }) = self.message.take() else { return Err(INVALID) };
                self.append_payload(config, bytes, payload)?;
                self.deliver_message(imm, solicited, step.events);
            }
            Headers::WriteFirst(reth) if is_start && payload.len() == mtu && reth.len as usize > mtu => {
                memory.check(reth.rkey, Access::Write, reth.address, u64::from(reth.len))?;
                memory.write(reth.rkey, reth.address, payload)?;
                self.message = Some(Message::Write { reth, written_bytes: mtu as u32 });
            }
            Headers::WriteOnly { reth, imm }
                if is_start && payload.len() <= mtu && payload.len() == reth.len as usize =>
            {
                if needs_key(config, reth) {
                    memory.check(reth.rkey, Access::Write, reth.address, u64::from(reth.len))?;
                }
                self.complete_write(imm, solicited, step.events, || match reth.len {
                    0 => Ok(()),
                    _ => memory.write(reth.rkey, reth.address, payload),
                })?;
            }
            Headers::WriteMiddle if payload.len() == mtu => {
                let Some(Message::Write { reth, written_bytes }) = self.message else { return Err(INVALID) };
                if reth.len - written_bytes <= mtu as u32 {
                    return Err(INVALID);
                }
                memory.write(reth.rkey, reth.address.wrapping_add(u64::from(written_bytes)), payload)?;
                self.message = Some(Message::Write { reth, written_bytes: written_bytes + mtu as u32 });
            }
            Headers::WriteLast { imm } if (1..=mtu).contains(&payload.len()) => {
                let Some(Message::Write { reth, written_bytes }) = self.message else { return Err(INVALID) };
                if (reth.len - written_bytes) as usize != payload.len() {
                    return Err(INVALID);
                }
                let address = reth.address.wrapping_add(u64::from(written_bytes));
                self.complete_write(imm, solicited, step.events, || {
                    memory.write(reth.rkey, address, payload)
                })?;
                self.message = None;
            }
            Headers::ReadRequest(reth) if is_start => return self.queue_read_response(step, reth),
            Headers::FetchAdd(eth) if is_start => {
                self.execute_atomic(step, eth, |eth| {
                    memory.fetch_add(eth.rkey, eth.address, eth.swap_or_add)
                })?;
            }
            Headers::CompareSwap(eth) if is_start => {
                self.execute_atomic(step, eth, |eth| {
                    memory.compare_swap(eth.rkey, eth.address, eth.compare, eth.swap_or_add)
                })?;
            }
            _ => return Err(INVALID),
        }
        Ok(1)
    }

    /// Fails if no receive is posted.
    fn check_receive(&self) -> Result<(), Refusal> {
        if self.receives == 0 { Err(Refusal::NotReady) } else { Ok(()) }
    }

    /// Appends a payload to a message.
    fn append_payload(&mut self, config: &Config, mut bytes: Vec<u8>, payload: &[u8]) -> Result<(), Refusal> {
        if bytes.len() + payload.len() > config.send_bytes_max {
            return Err(INVALID);
        }
        bytes.extend_from_slice(payload);
        self.message = Some(Message::Send { bytes });
        Ok(())
    }

    /// Delivers a complete message.
    fn deliver_message(&mut self, imm: Option<u32>, solicited: bool, events: &mut VecDeque<Event>) {
        if let Some(Message::Send { bytes }) = self.message.take() {
            self.receives -= 1;
            self.count_message();
            events.push_back(Event::Received { bytes, imm, solicited });
        }
    }

    /// Completes a write: calls `write` to store the last bytes, unless the write has an immediate and no receive is
    /// posted.
    fn complete_write(
        &mut self,
        imm: Option<u32>,
        solicited: bool,
        events: &mut VecDeque<Event>,
        write: impl FnOnce() -> Result<(), Refused>,
    ) -> Result<(), Refusal> {
        if imm.is_some() {
            self.check_receive()?;
        }
        write()?;
        self.count_message();
        if let Some(imm) = imm {
            self.receives -= 1;
            events.push_back(Event::Notified { imm, solicited });
        }
        Ok(())
    }

    fn count_message(&mut self) {
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
    }

    /// Queues the response to a read, and returns the number of its packets.
    // [ROCE-READ-1]
    fn queue_read_response(&mut self, step: &StepContext<'_>, reth: RethRepr) -> Result<u32, Refusal> {
        let StepContext { config, memory, arrived_ns, .. } = *step;
        let numbers = packets(reth.len, config.mtu.bytes());
        if numbers > RESPONSE_PACKETS_MAX || !self.make_room_for_response(config) {
            return Err(INVALID);
        }
        if needs_key(config, reth) {
            memory.check(reth.rkey, Access::Read, reth.address, u64::from(reth.len))?;
        }
        self.count_message();
        let kind = ResponseKind::Read { reth, has_started: false };
        let end = self.expected + u64::from(numbers);
        self.responses.push_back(Response { next: self.expected, end, kind, arrived_ns, is_repeat: false });
        Ok(numbers)
    }

    /// Executes an atomic by `change`, keeps its result for duplicates, and queues the response.
    // [ROCE-ATOMIC-1]
    fn execute_atomic(
        &mut self,
        step: &StepContext<'_>,
        eth: AtomicEthRepr,
        change: impl FnOnce(&AtomicEthRepr) -> Result<u64, Refused>,
    ) -> Result<(), Refusal> {
        let StepContext { config, memory, arrived_ns, .. } = *step;
        if !eth.address.is_multiple_of(8) || !self.make_room_for_response(config) {
            return Err(INVALID);
        }
        memory.check(eth.rkey, Access::Atomic, eth.address, 8)?;
        let old = change(&eth)?;
        self.count_message();
        if self.atomics.len() >= config.answers_max {
            self.atomics.pop_front();
        }
        self.atomics.push_back((self.expected, old));
        let kind = ResponseKind::Atomic { old };
        let (next, end) = (self.expected, self.expected + 1);
        self.responses.push_back(Response { next, end, kind, arrived_ns, is_repeat: false });
        Ok(())
    }

    /// Sends the response to an executed packet again, without executing the packet again.
    // [ROCE-DUP-1]
    fn handle_duplicate(&mut self, step: &mut StepContext<'_>, sequence: u64, packet: &Packet<'_>) {
        let response = match packet.headers {
            // This is a spare whose first copy has arrived. [ROCE-SEL-8]
            Headers::ReadRequest(_) if packet.ack_request && step.config.selective => {
                step.counters.duplicates += 1;
                return;
            }
            Headers::ReadRequest(reth) => self.repeat_read(step, sequence, reth),
            // [ROCE-ATOMIC-2]
            Headers::FetchAdd(_) | Headers::CompareSwap(_) => {
                self.atomics.iter().find(|(number, _)| *number == sequence).map(|(_, old)| Response {
                    next: sequence,
                    end: sequence + 1,
                    kind: ResponseKind::Atomic { old: *old },
                    arrived_ns: step.arrived_ns,
                    is_repeat: true,
                })
            }
            _ => {
                step.counters.duplicates += 1;
                (self.has_duplicate, self.ack_request_ns) = (true, step.arrived_ns);
                self.ack_now(step.now_ns);
                return;
            }
        };
        if response.is_some_and(|response| self.queue_repeat(step.config, response)) {
            step.counters.duplicates += 1;
        } else {
            step.counters.malformed += 1;
            // The requester may not know which packets of a read have been executed.
            if step.config.selective {
                self.ack_now(step.now_ns);
            }
        }
    }

    /// Returns the response to a duplicate read, or to a part of one.
    // [ROCE-DUP-2]
    fn repeat_read(&self, step: &StepContext<'_>, sequence: u64, reth: RethRepr) -> Option<Response> {
        let StepContext { config, memory, arrived_ns, .. } = *step;
        let end = sequence + u64::from(packets(reth.len, config.mtu.bytes()));
        let is_allowed = !needs_key(config, reth)
            || memory.check(reth.rkey, Access::Read, reth.address, u64::from(reth.len)).is_ok();
        (end <= self.expected && is_allowed).then_some(Response {
            next: sequence,
            end,
            kind: ResponseKind::Read { reth, has_started: false },
            arrived_ns,
            is_repeat: true,
        })
    }

    /// Makes room for one more response by dropping a repeated response, if necessary. Returns false if there is no
    /// room. Dropping is safe: the requester requests missing responses again, and may request other pieces after it
    /// goes back N.
    // [ROCE-DUP-3]
    fn make_room_for_response(&mut self, config: &Config) -> bool {
        if self.responses.len() >= config.answers_max
            && let Some(index) = self.responses.iter().rposition(|response| response.is_repeat)
        {
            self.responses.remove(index);
        }
        self.responses.len() < config.answers_max
    }

    /// Queues the response to a duplicate request, ordered by number, or merges it into the pending response to the
    /// same request. Returns false if the queue is full.
    fn queue_repeat(&mut self, config: &Config, response: Response) -> bool {
        if let Some(pending) = self.responses.iter_mut().find(|pending| pending.end == response.end) {
            // The pending response may already include more packets.
            if response.next < pending.next {
                *pending = Response { is_repeat: pending.is_repeat, ..response };
            }
            return true;
        }
        // Duplicates must not take more memory than new requests may.
        if self.responses.len() >= config.answers_max {
            return false;
        }
        let index = self.responses.partition_point(|pending| pending.end < response.end);
        self.responses.insert(index, response);
        true
    }

    /// Returns true if a response or a NAK is pending.
    pub fn has_response(&self) -> bool {
        !self.responses.is_empty() || self.nak.is_some()
    }

    /// Writes the next packet of a response, or a NAK, and returns its length. Returns an error if the connection ends:
    /// the NAK that reports the reason to the peer.
    pub fn poll_response(
        &mut self,
        step: &StepContext<'_>,
        dest_qp: Qpn,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, Nak> {
        let Some(arrived_ns) = self.responses.front().map(|response| response.arrived_ns) else {
            return Ok(self.poll_nak(dest_qp, buffer));
        };
        let aeth = self.aeth(step, arrived_ns);
        let response = self.responses.front_mut().expect("a response is pending");
        let packet = |headers| Packet {
            dest_qp,
            psn: Psn::of(response.next),
            ack_request: false,
            solicited: false,
            headers,
            payload: &[],
        };
        let len = match &mut response.kind {
            ResponseKind::Atomic { old } => {
                packet(Headers::AtomicAcknowledge { aeth, old: *old }).emit(buffer)
            }
            ResponseKind::Read { reth, has_started } => {
                let bytes = reth.len.min(step.config.mtu.bytes());
                let headers = match (*has_started, bytes == reth.len) {
                    // [ROCE-SEL-6]
                    _ if step.config.selective => Headers::ReadResponseOnly(aeth),
                    (false, true) => Headers::ReadResponseOnly(aeth),
                    (false, false) => Headers::ReadResponseFirst(aeth),
                    (true, false) => Headers::ReadResponseMiddle,
                    (true, true) => Headers::ReadResponseLast(aeth),
                };
                let begin = packet(headers).emit_headers(bytes as usize, buffer);
                let payload = &mut buffer[begin..begin + bytes as usize];
                if bytes > 0 && step.memory.read(reth.rkey, reth.address, payload).is_err() {
                    // The memory was deregistered since the request was checked: nothing more is executed.
                    self.expected = response.next;
                    // Unlike with `RemoteAccess`, later requests may have been executed already.
                    return Err(self.refuse(Nak::RemoteOperation));
                }
                reth.address = reth.address.wrapping_add(u64::from(bytes));
                reth.len -= bytes;
                *has_started = true;
                crate::wire::packet::packet_bytes(&headers, bytes as usize)
            }
        };
        response.next += 1;
        if response.next == response.end {
            self.responses.pop_front();
        }
        Ok(Some(len))
    }

    /// Writes the pending NAK and returns its length; `None` if no NAK is pending.
    pub fn poll_nak(&mut self, dest_qp: Qpn, buffer: &mut [u8]) -> Option<usize> {
        let syndrome = self.nak.take()?;
        self.clear_ack();
        Some(emit_ack(dest_qp, self.expected, AethRepr { syndrome, msn: self.msn }, buffer))
    }

    /// Writes the acknowledgement and returns its length; `None` if no acknowledgement is due. The caller sends pending
    /// responses first.
    // [ROCE-ACK-2]
    pub fn poll_ack(&mut self, step: &StepContext<'_>, dest_qp: Qpn, buffer: &mut [u8]) -> Option<usize> {
        let now_ns = step.now_ns;
        let has_content = self.expected > self.first || self.has_gap || self.has_duplicate;
        if self.ack_at_ns.is_none_or(|at| now_ns < at) || !has_content {
            return None;
        }
        self.clear_ack();
        if self.has_gap {
            return Some(self.emit_missing(step, dest_qp, buffer));
        }
        Some(emit_ack(dest_qp, self.expected - 1, self.aeth(step, self.ack_request_ns), buffer))
    }

    /// Writes the number of the missing packet, and the bitmap of the kept ones.
    // [ROCE-SEL-3]
    fn emit_missing(&self, step: &StepContext<'_>, dest_qp: Qpn, buffer: &mut [u8]) -> usize {
        let packet = Packet {
            dest_qp,
            psn: Psn::of(self.expected),
            ack_request: false,
            solicited: false,
            headers: Headers::Missing(self.aeth(step, self.ack_request_ns)),
            payload: &self.kept.bits(self.expected),
        };
        packet.emit(buffer)
    }

    fn clear_ack(&mut self) {
        self.has_duplicate = false;
        (self.ack_at_ns, self.ack_is_deferrable) = (None, false);
        (self.unacknowledged, self.early_since_ack) = (0, 0);
    }

    /// Returns the AETH of a response to a packet that arrived at `arrived_ns`.
    // [ROCE-CC-3]
    fn aeth(&self, step: &StepContext<'_>, arrived_ns: u64) -> AethRepr {
        let credit = if step.config.grants { Credit::at_most(self.grant) } else { Credit::UNLIMITED };
        let msn = match step.config.tells_waits {
            true => AethRepr::msn_of_wait(step.now_ns.saturating_sub(arrived_ns)),
            false => self.msn,
        };
        AethRepr { syndrome: Syndrome::Ack(credit), msn }
    }

    /// Returns true if an acknowledgement is due that may wait until the owner polls again.
    pub fn has_deferrable_ack(&self, now_ns: u64) -> bool {
        self.ack_is_deferrable && self.ack_at_ns.is_some_and(|at| at <= now_ns)
    }

    /// Returns true if an acknowledgement has been due for [`Config::ack_delay`](crate::Config::ack_delay), and no
    /// response must precede it.
    pub fn has_overdue_ack(&self, step: &StepContext<'_>) -> bool {
        let delay_ns = nanoseconds(step.config.ack_delay);
        !self.has_response() && self.ack_at_ns.is_some_and(|at| at.saturating_add(delay_ns) <= step.now_ns)
    }

    /// Returns the time at which the acknowledgement is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.ack_at_ns
    }

    /// Drops all state but the final NAK.
    // [ROCE-END-1]
    pub fn end(&mut self) {
        self.message = None;
        self.kept = KeptPackets::default();
        self.has_gap = false;
        self.responses.clear();
        self.atomics.clear();
        self.clear_ack();
        if self.final_nak.is_none() {
            self.nak = None;
        }
    }
}

/// Returns true for reads and atomics, whose responses carry data.
pub(crate) fn returns_data(packet: &Packet<'_>) -> bool {
    matches!(packet.headers, Headers::ReadRequest(_) | Headers::FetchAdd(_) | Headers::CompareSwap(_))
}

/// Returns true if a packet is an empty write. Only an empty write may have the number before that of the first packet.
// [ROCE-TIME-3]
fn is_empty_probe(packet: &Packet<'_>) -> bool {
    matches!(packet.headers, Headers::WriteOnly { reth, imm: None } if reth.len == 0)
        && packet.payload.is_empty()
}

/// Returns true if a packet is a heartbeat: a one-packet message that rings no doorbell, which idle peers send. The
/// responder acknowledges a heartbeat at once, because a delayed acknowledgement would wake this process a second time.
/// A heartbeat does not make its lane active in [`Room`](crate::room::Room): the packet reserved for each peer
/// suffices.
// [ROCE-ACK-4]
pub(crate) fn is_heartbeat(packet: &Packet<'_>) -> bool {
    matches!(packet.headers, Headers::SendOnly { .. }) && !packet.solicited
}

/// Returns true if the peer waits for a response to a packet.
fn wants_response(packet: &Packet<'_>) -> bool {
    packet.ack_request || returns_data(packet)
}

/// Returns true if the key must be valid. An empty request from another implementation may name any key.
// [ROCE-KEY-1]
fn needs_key(config: &Config, reth: RethRepr) -> bool {
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
