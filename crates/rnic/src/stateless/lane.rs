//! A lane without connection state at the responder. It replaces a [`QueuePair`](crate::QueuePair).
//!
//! ```text
//!   posted ── parts ── requester ── RD, GD, SEND, RDM, atomics ──► responder of the peer ── memory
//!                          ▲                                       └── messages ── reassembled ──► events
//!                          └──────────── RDA, GDA, SENDA, ATA ──────────┘
//! ```
//!
//! A [`Lane`] is one end: its [`Requester`] executes the requests that this end posts. The peer's requests arrive at the
//! [`Responder`](super::Responder), which serves all peers; the caller passes their messages to the lane. The only state
//! for the peer's requests is one incomplete message, and answers that have not been sent: an answer without bytes can
//! travel in the lane's next request.

use std::collections::VecDeque;

use super::clock::ServerClock;
use super::inbox::Message;
use super::requester::Requester;
use super::responder::Answer;
use super::tag::Grant;
use super::window::WINDOW_PACKETS;
use super::wire::{Ack, NOTE_BYTES, NOTED_BYTES_MAX, OVERHEAD_BYTES, PAYLOAD_BYTES_FIRST, PAYLOAD_BYTES_MAX};
use super::work::{Done, Outcome, Work};
use crate::memory::{Memory, Refused};
use crate::wire::Nak;
use crate::work::{Cause, Event, Local, Operation, Request, Source, Status};

/// Maximum length in bytes of a packet of a lane.
pub const PACKET_BYTES_MAX: usize = OVERHEAD_BYTES + PAYLOAD_BYTES_MAX;
/// Maximum length in bytes of a message of a lane.
pub const LANE_SEND_BYTES_MAX: usize = 64 << 10;
/// Maximum length in bytes of the parts in which requests enter the requester, which copies them.
pub const PART_BYTES_MAX: u32 = 256 << 10;
/// Number of parts in the requester that are executed one after the other: when one ends, the next is ready. The requester
/// takes more parts only if they are executed at the same time.
const PARTS_IN_ORDER: usize = 2;
/// Maximum number of parts in the requester, and of their bytes.
const PARTS_MAX: usize = 64;
const PARTS_BYTES_MAX: u64 = 1 << 20;
/// Flags of a note: the message rings the receiver's doorbell; the message reports a write, and has no bytes.
const SOLICITED: u8 = 1;
const REPORTS_WRITE: u8 = 2;

/// The requests of one lane, and the messages that arrive on it.
#[derive(Debug, Default)]
pub struct Lane {
    /// `None` until the peer's grant arrives.
    requester: Option<Requester>,
    /// Requests of which not all parts have entered the requester, oldest first.
    posted: VecDeque<Request>,
    /// Number of bytes of the first posted request that have entered the requester.
    begun_bytes: u32,
    /// The parts in the requester, oldest first.
    parts: VecDeque<Part>,
    arriving: Option<Arriving>,
    /// Answers to the peer that have not been sent, none of which has a payload; oldest first.
    answers: VecDeque<Answer>,
    /// Number of packets received from the peer.
    arrived: u64,
    events: VecDeque<Event>,
    has_ended: bool,
}

/// A part of a request, or several short messages in one packet.
#[derive(Debug)]
struct Part {
    /// Ids of the requests, each with true if its completion is reported.
    ids: Vec<(u64, bool)>,
    kind: Kind,
    /// Length in bytes.
    len: u32,
    is_last: bool,
    /// Local memory for the bytes of a read.
    target: Option<Local>,
}

/// The kind of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    Write,
    Atomic,
    /// A message, or a write with one.
    Message,
}

/// An incomplete message, or an incomplete write with its report.
#[derive(Debug)]
struct Arriving {
    /// The message; or the report, which each packet of a write contains.
    bytes: Vec<u8>,
    /// Number of missing bytes of the message, or of the write.
    missing: usize,
}

/// The error of a message that no lane sends.
#[derive(Debug)]
struct BadMessage;

impl Lane {
    /// Installs the peer's grant, unless there is one. Packets are numbered from `first_number` on; see
    /// [`Requester::new`]. The connection ends if the responder executes no packet for `patience_ns`.
    pub fn set_grant(&mut self, grant: Grant, first_number: u64, patience_ns: u64) {
        let mut requester = Requester::new(grant, first_number);
        requester.set_patience(patience_ns);
        self.requester.get_or_insert(requester);
    }

    /// Returns the number of outstanding requests: posted and not completed.
    pub fn posted(&self) -> usize {
        let ending = self.parts.iter().filter(|part| part.is_last).map(|part| part.ids.len());
        self.posted.len() + ending.sum::<usize>()
    }

    /// Returns true if the connection has ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Sets the maximum length in bytes of packets, at most [`PACKET_BYTES_MAX`], that the path carries in both directions.
    pub fn set_packet_max(&mut self, bytes: usize) {
        if let Some(requester) = &mut self.requester {
            let payload = bytes.saturating_sub(OVERHEAD_BYTES) & !3;
            requester.set_payload_max(payload.clamp(PAYLOAD_BYTES_FIRST, PAYLOAD_BYTES_MAX));
        }
    }

    /// Returns the current maximum number of packets in flight; see [`Requester::window_packets`].
    pub fn window_packets(&self) -> usize {
        self.requester.as_ref().map_or(WINDOW_PACKETS, Requester::window_packets)
    }

    /// Returns the number of request packets sent, of retransmissions among these, and of packets that
    /// [`Lane::add_arrived`] has counted.
    pub fn packets(&self) -> [u64; 3] {
        let (sent, repeated) = self.requester.as_ref().map_or((0, 0), Requester::packets_sent);
        [sent, repeated, self.arrived]
    }

    /// Returns true if a packet that was sent before is due again: its answer has not arrived in time.
    pub fn has_due_repeat(&self, now_ns: u64) -> bool {
        self.requester.as_ref().is_some_and(|requester| requester.has_due_repeat(now_ns))
    }

    /// Counts packets received from the peer.
    pub fn add_arrived(&mut self, packets: u64) {
        self.arrived += packets;
    }

    /// Returns true if no posted request waits, and the requester has room for one.
    pub fn takes_request(&self) -> bool {
        self.posted.is_empty() && self.requester.is_some() && self.has_room(true)
    }

    /// Appends a request. Requests are executed, and complete, in the order in which they were posted.
    pub fn post(&mut self, request: Request) {
        self.posted.push_back(request);
    }

    /// Returns true if the requester has room for a part. `overlaps` is true if the part is executed at the same time as the
    /// last one.
    fn has_room(&self, overlaps: bool) -> bool {
        let bytes = || self.parts.iter().map(|part| u64::from(part.len)).sum::<u64>();
        match self.parts.len() {
            0..PARTS_IN_ORDER => true,
            count => overlaps && count < PARTS_MAX && bytes() < PARTS_BYTES_MAX,
        }
    }

    /// Returns true if the next part may be executed at the same time as the last one: both are reads, or both are parts
    /// of the same write. All other parts are executed in order.
    fn overlaps(&self) -> bool {
        let (Some(last), Some(next)) = (self.parts.back(), self.posted.front()) else { return false };
        match &next.operation {
            Operation::Read { .. } => last.kind == Kind::Read,
            Operation::Write { imm, .. } => {
                let has_note = carries_note(next, *imm, self.begun_bytes);
                last.kind == Kind::Write && !last.is_last && !has_note
            }
            _ => false,
        }
    }

    /// Moves parts of posted requests to the requester, while it has room.
    fn post_parts(&mut self, memory: &impl Memory) {
        while let Some(request) = self.posted.front() {
            let overlaps = self.overlaps();
            if !self.has_room(overlaps) {
                return;
            }
            let Some(requester) = &mut self.requester else { return };
            let payload_max = requester.payload_max();
            let Ok((rkey, mut work, mut part)) = part_of(request, self.begun_bytes, memory) else {
                self.fail(None, Status::LocalAccess, Cause::LocalAccess);
                return;
            };
            self.begun_bytes += part.len;
            if part.is_last {
                self.posted.pop_front();
                self.begun_bytes = 0;
            }
            // The requester executes one message at a time, so waiting messages share a packet.
            while let Work::Send { bytes } = &mut work
                && let Some(next) =
                    self.posted.pop_front_if(|next| fits_behind(next, bytes.len(), payload_max))
                && let Operation::Send { bytes: next_bytes, imm } = &next.operation
            {
                bytes.extend(note(imm.unwrap_or(0), next.solicited, false, next_bytes.len()));
                bytes.extend(next_bytes);
                part.ids.push((next.id, next.signalled));
            }
            let posted = requester.post_to(0, rkey, work, overlaps);
            assert_eq!(posted, Ok(()), "parts are few and short");
            self.parts.push_back(part);
        }
    }

    /// Writes the next packet to `buffer`, and returns its length in bytes, which includes the ICRC that the caller
    /// adds; `None` if no packet is due. Copies the sources of writes from `memory`.
    ///
    /// # Panics
    /// Panics if `buffer` is shorter than [`PACKET_BYTES_MAX`].
    pub fn poll_transmit(
        &mut self,
        now_ns: u64,
        clock: &ServerClock,
        memory: &impl Memory,
        buffer: &mut [u8],
    ) -> Option<usize> {
        self.post_parts(memory);
        let first = self.answers.front().and_then(Answer::ack);
        let mut ack = first;
        let len = self.requester.as_mut()?.poll_transmit_with(now_ns, clock, &mut ack, buffer);
        if ack != first {
            self.answers.pop_front();
        }
        if len.is_none() {
            // The requester may have given up a request.
            self.complete(memory);
        }
        len
    }

    /// Keeps an answer without a payload until a request of this lane carries it, or [`Lane::poll_answer`] takes it.
    ///
    /// # Panics
    /// Panics if the answer has a payload.
    pub fn hold_answer(&mut self, answer: Answer) {
        assert!(!answer.has_payload(), "the lane keeps no bytes of answers");
        self.answers.push_back(answer);
    }

    /// Returns true if [`Lane::poll_answer`] has a packet.
    pub fn holds_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Writes the next answer that [`Lane::hold_answer`] has kept to `buffer`, and returns its length in bytes, which
    /// includes the ICRC that the caller adds; `None` if there is none.
    pub fn poll_answer(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.answers.pop_front().map(|answer| answer.seal(buffer))
    }

    /// Returns the time in ns at which [`Lane::poll_transmit`] may have a packet; `None` if nothing is outstanding.
    pub fn poll_timeout(&self) -> Option<u64> {
        let requester = self.requester.as_ref()?;
        let has_part = !self.posted.is_empty() && self.has_room(self.overlaps());
        if has_part { Some(0) } else { requester.poll_timeout() }
    }

    /// Handles an answer without its ICRC, and copies bytes of reads to `memory`. Returns true if the answer is from the peer.
    pub fn handle_answer(
        &mut self,
        now_ns: u64,
        clock: &mut ServerClock,
        body: &[u8],
        memory: &impl Memory,
    ) -> bool {
        let Some(requester) = &mut self.requester else { return false };
        let is_ours = requester.handle_packet(now_ns, clock, body, memory);
        self.complete(memory);
        is_ours
    }

    /// Handles an answer that a request of the peer has carried ([`Answer::acknowledged`]).
    pub fn handle_ack(&mut self, now_ns: u64, clock: &mut ServerClock, ack: Ack, memory: &impl Memory) {
        if let Some(requester) = &mut self.requester {
            requester.handle_ack(now_ns, clock, ack, memory);
            self.complete(memory);
        }
    }

    fn complete(&mut self, memory: &impl Memory) {
        while let Some(Done { outcome, .. }) = self.requester.as_mut().and_then(Requester::poll_done) {
            let part = self.parts.pop_front().expect("each part completes once");
            let bytes = match outcome {
                Outcome::Success(bytes) => bytes,
                Outcome::Refused => {
                    let cause = Cause::Refused(Nak::RemoteAccess);
                    return self.fail(Some(part), Status::RemoteAccess, cause);
                }
                Outcome::Busy | Outcome::MaybeDone => {
                    return self.fail(Some(part), Status::RetryExceeded, Cause::RetryExceeded);
                }
            };
            let write = |Local { key, address }: Local| memory.write_own(key, address, &bytes).is_ok();
            if !part.target.is_none_or(write) {
                return self.fail(Some(part), Status::LocalAccess, Cause::LocalAccess);
            }
            let old =
                bytes.first_chunk().filter(|_| part.kind == Kind::Atomic).map(|old| u64::from_be_bytes(*old));
            let signalled = part.ids.into_iter().filter(|(_, signalled)| part.is_last && *signalled);
            self.events.extend(signalled.map(|(id, _)| Event::Completed {
                id,
                status: Status::Success,
                old,
            }));
        }
    }

    /// Ends the lane because this part, or else the first posted request, has failed.
    fn fail(&mut self, part: Option<Part>, status: Status, cause: Cause) {
        let failed: Vec<u64> = match part {
            Some(part) => part.ids.into_iter().map(|(id, _)| id).collect(),
            None => self.posted.front().map(|request| request.id).into_iter().collect(),
        };
        self.events.extend(failed.iter().map(|id| Event::Completed { id: *id, status, old: None }));
        self.flush(&failed, Status::Flushed);
        self.events.push_back(Event::Broken { cause });
    }

    /// Ends the connection at this end: completes all posted requests with an error.
    pub fn close(&mut self) {
        self.flush(&[], Status::Aborted);
    }

    /// Ends the lane, and completes all requests except `failed`. Requests that may have been sent get the status `begun`.
    fn flush(&mut self, failed: &[u64], begun: Status) {
        self.has_ended = true;
        self.requester = None;
        self.arriving = None;
        let is_begun = std::mem::take(&mut self.begun_bytes) > 0;
        let parts = self.parts.drain(..).filter(|part| part.is_last).flat_map(|part| part.ids);
        let divided = self.posted.pop_front_if(|_| is_begun).map(|request| request.id);
        let begun = parts.map(|(id, _)| id).chain(divided).map(|id| (id, begun));
        let waiting = self.posted.drain(..).map(|request| (request.id, Status::Flushed));
        let ended = begun.chain(waiting).filter(|(id, _)| !failed.contains(id));
        self.events.extend(ended.map(|(id, status)| Event::Completed { id, status, old: None }));
    }

    /// Handles a message, or a part of one, that the responder has received from the peer.
    pub fn handle_message(&mut self, message: Message) {
        if self.reassemble(message).is_err() {
            self.fail(None, Status::Flushed, Cause::PeerErred(Nak::InvalidRequest));
        }
    }

    fn reassemble(&mut self, message: Message) -> Result<(), BadMessage> {
        let Message { bytes, offset, len, written_bytes, .. } = message;
        let (offset, len) = (offset as usize, len as usize);
        if let Some((note, [])) = bytes.split_first_chunk::<NOTE_BYTES>()
            && note[4] & REPORTS_WRITE != 0
        {
            return self.count_written(*note, written_bytes as usize);
        }
        let end = offset.checked_add(bytes.len()).filter(|end| *end <= len);
        let is_valid = (NOTE_BYTES..=NOTE_BYTES + LANE_SEND_BYTES_MAX).contains(&len);
        let (Some(end), true) = (end, is_valid) else { return Err(BadMessage) };
        if bytes.len() == len {
            return self.deliver(&bytes);
        }
        let arriving = self.arriving.get_or_insert_with(|| Arriving { bytes: vec![0; len], missing: len });
        if arriving.bytes.len() != len || arriving.missing < bytes.len() || bytes.is_empty() {
            return Err(BadMessage);
        }
        arriving.bytes[offset..end].copy_from_slice(&bytes);
        arriving.missing -= bytes.len();
        if arriving.missing > 0 {
            return Ok(());
        }
        let whole = self.arriving.take().expect("the last part has just arrived").bytes;
        self.deliver(&whole)
    }

    /// Counts the bytes that a packet has written. Reports the write after its last packet.
    fn count_written(&mut self, note: [u8; NOTE_BYTES], written: usize) -> Result<(), BadMessage> {
        let len = note_len(&note);
        if written < len {
            let arriving =
                self.arriving.get_or_insert_with(|| Arriving { bytes: note.to_vec(), missing: len });
            if arriving.bytes != note || arriving.missing < written || written == 0 {
                return Err(BadMessage);
            }
            arriving.missing -= written;
            if arriving.missing > 0 {
                return Ok(());
            }
            self.arriving = None;
        }
        self.events.push_back(Event::Notified { imm: note_imm(&note), solicited: note[4] & SOLICITED != 0 });
        Ok(())
    }

    /// Delivers the messages of a SEND.
    fn deliver(&mut self, mut rest: &[u8]) -> Result<(), BadMessage> {
        while !rest.is_empty() {
            let (note, behind) = rest.split_first_chunk::<NOTE_BYTES>().ok_or(BadMessage)?;
            let (bytes, behind) = behind.split_at_checked(note_len(note)).ok_or(BadMessage)?;
            rest = behind;
            let (imm, solicited) = (Some(note_imm(note)), note[4] & SOLICITED != 0);
            self.events.push_back(Event::Received { bytes: bytes.to_vec(), imm, solicited });
        }
        Ok(())
    }

    /// Removes and returns the next event; `None` if there is none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// Returns true if the request is a message that fits into a packet behind `bytes` bytes of other messages.
fn fits_behind(request: &Request, bytes: usize, payload_max: usize) -> bool {
    let len = request.operation.len_bytes() as usize;
    matches!(request.operation, Operation::Send { .. }) && bytes + NOTE_BYTES + len <= payload_max
}

/// Returns true if the packets of the rest of a write carry its immediate in a note.
fn carries_note(request: &Request, imm: Option<u32>, done: u32) -> bool {
    imm.is_some() && (request.operation.len_bytes() - done) as usize <= NOTED_BYTES_MAX
}

/// Returns the immediate in a note.
fn note_imm(note: &[u8; NOTE_BYTES]) -> u32 {
    u32::from_be_bytes([note[0], note[1], note[2], note[3]])
}

/// Returns the length in a note: that of the message, or of the write that it reports.
fn note_len(note: &[u8; NOTE_BYTES]) -> usize {
    u32::from_be_bytes([0, note[5], note[6], note[7]]) as usize
}

/// Returns the note, a header, of a message of `len` bytes, or of the report of a write of `len` bytes.
// [ROCE-STATELESS-11]
fn note(imm: u32, solicited: bool, reports_write: bool, len: usize) -> [u8; NOTE_BYTES] {
    let [a, b, c, d] = imm.to_be_bytes();
    let flags = if solicited { SOLICITED } else { 0 } | if reports_write { REPORTS_WRITE } else { 0 };
    let [_, e, f, g] = u32::try_from(len).expect("messages are short").to_be_bytes();
    [a, b, c, d, flags, e, f, g]
}

/// Returns the part of a request that begins after `done` bytes, with the key of the peer's memory and the work for the
/// requester. Fails if the request exceeds the local memory.
fn part_of(request: &Request, done: u32, memory: &impl Memory) -> Result<(u32, Work, Part), Refused> {
    let Request { id, operation, signalled, solicited } = request;
    let rest = operation.len_bytes() - done;
    let mut part = Part {
        ids: vec![(*id, *signalled)],
        kind: Kind::Message,
        len: rest.min(PART_BYTES_MAX),
        is_last: rest <= PART_BYTES_MAX,
        target: None,
    };
    let (rkey, work) = match operation {
        Operation::Send { bytes, imm } => {
            let note = note(imm.unwrap_or(0), *solicited, false, bytes.len());
            (0, Work::Send { bytes: [&note[..], bytes].concat() })
        }
        Operation::Write { source, remote, imm } => {
            let address = remote.address.wrapping_add(done.into());
            match imm.filter(|_| carries_note(request, *imm, done)) {
                Some(imm) => {
                    let note = note(imm, *solicited, true, rest as usize);
                    let note_and_bytes = with_source(&note, source, memory, done, part.len)?;
                    (remote.rkey, Work::WriteNote { address, note_and_bytes })
                }
                None => {
                    part.kind = Kind::Write;
                    part.is_last &= imm.is_none();
                    let bytes = with_source(&[], source, memory, done, part.len)?;
                    (remote.rkey, Work::Write { address, bytes })
                }
            }
        }
        Operation::Read { local, remote, .. } => {
            part.kind = Kind::Read;
            part.target = Some(Local { address: local.address + u64::from(done), ..*local });
            let address = remote.address.wrapping_add(done.into());
            (remote.rkey, Work::Read { address, len: part.len as usize })
        }
        Operation::FetchAdd { remote, add } => {
            part.kind = Kind::Atomic;
            (remote.rkey, Work::FetchAdd { address: remote.address, add: *add })
        }
        Operation::CompareSwap { remote, expected, new } => {
            part.kind = Kind::Atomic;
            let (address, expected, new) = (remote.address, *expected, *new);
            (remote.rkey, Work::CompareSwap { address, expected, new })
        }
    };
    Ok((rkey, work, part))
}

/// Returns the note, followed by `len` bytes of the source from `done`.
fn with_source(
    note: &[u8],
    source: &Source,
    memory: &impl Memory,
    done: u32,
    len: u32,
) -> Result<Vec<u8>, Refused> {
    let mut bytes = vec![0; note.len() + len as usize];
    let (begin, rest) = bytes.split_at_mut(note.len());
    begin.copy_from_slice(note);
    match source {
        Source::Inline(inline) => rest.copy_from_slice(&inline[done as usize..][..len as usize]),
        Source::Registered { local, .. } => {
            memory.read_own(local.key, local.address + u64::from(done), rest)?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Qpn;

    fn message(bytes: &[u8], offset: u32, len: u32) -> Message {
        let from = "127.0.0.1:4".parse().expect("an address");
        let bytes = bytes.to_vec();
        Message { id: 0, from, qpn: Qpn::new(2), bytes, offset, len, written_bytes: 0, is_call: false }
    }

    /// Returns the report of a write of `len` bytes, in a packet that has written `written_bytes` of them.
    fn written(imm: u32, len: usize, written_bytes: u32) -> Message {
        let note = note(imm, false, true, len);
        Message { written_bytes, ..message(&note, 0, NOTE_BYTES as u32) }
    }

    /// Only a faulty or hostile peer sends these messages. Each ends the lane, without another effect.
    #[test]
    fn bad_messages_end_the_lane() {
        let longest = (NOTE_BYTES + LANE_SEND_BYTES_MAX) as u32;
        let part = message(&[0; 8], 0, 100);
        let bad = [
            vec![message(&[0; 7], 0, 7)],
            vec![message(&[0; 8], 0, longest + 1)],
            vec![message(&[0; 8], u32::MAX, 8)],
            vec![message(&[0; 8], 93, 100)],
            vec![message(&[], 0, 100)],
            // The length in the note is longer than the message, or leaves less than a note.
            vec![message(&note(0, false, false, 1), 0, 8)],
            vec![message(&[&note(0, false, false, 1)[..], &[0; 3]].concat(), 0, 11)],
            // The parts belong to different messages, or overlap.
            vec![part.clone(), message(&[0; 8], 8, 101)],
            vec![part.clone(), message(&[0; 90], 10, 100), message(&[0; 8], 8, 100)],
            // The packets of a write contradict each other, or make no progress.
            vec![written(1, 100, 40), written(2, 100, 60)],
            vec![written(1, 100, 40), written(1, 100, 61)],
            vec![written(1, 100, 0)],
            vec![part.clone(), written(1, 100, 40)],
        ];
        for messages in bad {
            let mut lane = Lane::default();
            messages.iter().for_each(|message| lane.handle_message(message.clone()));
            assert!(lane.has_ended(), "{messages:?}");
            let events: Vec<_> = std::iter::from_fn(|| lane.poll_event()).collect();
            let cause = Cause::PeerErred(Nak::InvalidRequest);
            assert_eq!(events.last(), Some(&Event::Broken { cause }), "{messages:?}");
        }
    }
}
