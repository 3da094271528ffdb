//! The requester: keeps the state of both ends of a stateless pair.

use std::collections::VecDeque;

use super::clock::ServerClock;
use super::responder::{EFFECT_LIFE_NS, sealed};
use super::tag::{self, Grant};
use super::wire::{Kind, PAYLOAD_BYTES_MAX, Packet, Status};

/// Maximum number of a request's packets in flight.
const WINDOW: usize = 16;
/// Maximum number of posted requests.
const POSTED_MAX: usize = 128;
/// Number of transmissions of a packet without an answer after which the responder counts as gone: more than 2 s.
const ATTEMPTS_MAX: u32 = 12;
/// Time in ns after which a process that has heard nothing asks for the responder's clock before it writes.
const CLOCK_LIFE_NS: u64 = EFFECT_LIFE_NS / 2;

/// A request: its bytes lie in the requester's process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Reads `len` bytes.
    Read {
        /// Address of the first byte in the responder's memory.
        address: u64,
        /// Number of bytes.
        len: usize,
    },
    /// Writes bytes.
    Write {
        /// Address of the first byte in the responder's memory.
        address: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// The end of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    /// Id of the request.
    pub id: u64,
    /// Its outcome.
    pub outcome: Outcome,
}

/// The outcome of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The request was carried out once. Contains the bytes of a read.
    Success(Vec<u8>),
    /// The grant does not permit the access, or the memory does not exist. Parts of a longer request may be done.
    Refused,
    /// The responder does not answer, or the request became too old. The request is done, done in part, or not done.
    MaybeDone,
}

/// The reason why a request was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The requester has the maximum number of unfinished requests.
    #[error("this queue pair already has {POSTED_MAX} unfinished requests, the maximum")]
    Full,
    /// The request is longer than 32 bits can count.
    #[error("a request may have at most 4 GiB - 1 bytes")]
    TooLong,
}

/// One requester of a stateless pair; see [`super`]. Its process passes it packets, the time and the [`ServerClock`]
/// that all requesters of the process share.
#[derive(Debug)]
pub struct Requester {
    grant: Grant,
    next_number: u64,
    posted: VecDeque<(u64, Work)>,
    current: Option<Current>,
    done: VecDeque<Done>,
    clock_questions: u64,
}

/// The request in progress.
#[derive(Debug)]
struct Current {
    id: u64,
    work: Work,
    /// Bytes of a read, as far as they have arrived.
    bytes: Vec<u8>,
    /// Packets of the request.
    pieces: Vec<Piece>,
    /// Number of packets that have left: the first of `pieces`.
    sent: usize,
    answered: usize,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    offset: usize,
    len: usize,
    number: u64,
    /// Stamp of the first transmission; `None` before it.
    stamp_ns: Option<u64>,
    left_ns: u64,
    /// Time of the next transmission.
    due_ns: u64,
    attempts: u32,
    is_answered: bool,
}

impl Requester {
    /// Creates a requester. `first_number` must be higher than all numbers that an earlier requester with the same
    /// address and queue pair may have used within T: a clock in ns will do.
    pub fn new(grant: Grant, first_number: u64) -> Requester {
        Requester {
            grant,
            next_number: first_number,
            posted: VecDeque::new(),
            current: None,
            done: VecDeque::new(),
            clock_questions: 0,
        }
    }

    /// Returns how often the requester has asked for the responder's clock.
    pub fn clock_questions(&self) -> u64 {
        self.clock_questions
    }

    /// Replaces the grant, after the responder has raised its epoch.
    pub fn regrant(&mut self, grant: Grant) {
        self.grant = grant;
    }

    /// Posts a request. Requests are carried out in order.
    pub fn post(&mut self, id: u64, work: Work) -> Result<(), PostError> {
        let len = match &work {
            Work::Read { len, .. } => *len,
            Work::Write { bytes, .. } => bytes.len(),
        };
        if u32::try_from(len).is_err() {
            return Err(PostError::TooLong);
        }
        if self.posted.len() + usize::from(self.current.is_some()) >= POSTED_MAX {
            return Err(PostError::Full);
        }
        self.posted.push_back((id, work));
        Ok(())
    }

    /// Returns the next request that has ended.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// Returns the time at which [`Requester::poll_transmit`] may have a packet: at once, or for a retransmission.
    pub fn poll_timeout(&self) -> Option<u64> {
        let Some(current) = &self.current else { return (!self.posted.is_empty()).then_some(0) };
        if current.may_send() {
            return Some(0);
        }
        current.pieces[..current.sent]
            .iter()
            .filter(|piece| !piece.is_answered)
            .map(|piece| piece.due_ns)
            .min()
    }

    /// Writes the next packet to `buffer`, and returns its length with room for the ICRC; `None` if there is none now.
    ///
    /// # Panics
    /// Panics if `buffer` is shorter than [`super::OVERHEAD_BYTES`] and [`super::PAYLOAD_BYTES_MAX`].
    // [ROCE-STATELESS-5]
    pub fn poll_transmit(&mut self, now_ns: u64, clock: &ServerClock, buffer: &mut [u8]) -> Option<usize> {
        if self.current.is_none() {
            let (id, work) = self.posted.pop_front()?;
            self.current = Some(Current::new(id, work, &mut self.next_number));
        }
        let current = self.current.as_mut().expect("it was just set");
        let piece = match current.due(now_ns) {
            Some(piece) => piece,
            None if current.may_send() => {
                current.sent += 1;
                current.sent - 1
            }
            None => return None,
        };
        if current.pieces[piece].attempts >= ATTEMPTS_MAX {
            self.end(Outcome::MaybeDone);
            return None;
        }
        let Piece { offset, len, number, stamp_ns, attempts, .. } = current.pieces[piece];
        let server_ns = clock.now_ns(now_ns, CLOCK_LIFE_NS);
        let is_write = matches!(current.work, Work::Write { .. });
        let sent = &mut current.pieces[piece];
        (sent.left_ns, sent.due_ns) = (now_ns, now_ns + clock.timeout_ns(attempts));
        sent.attempts += 1;
        let (stamp_ns, asks_clock) = match (stamp_ns, server_ns) {
            (Some(stamp_ns), _) => (stamp_ns, false),
            (None, Some(server_ns)) => (server_ns, false),
            (None, None) => (0, is_write),
        };
        let Grant { qpn, rkey, rights, epoch, .. } = self.grant;
        let (kind, address, len, payload): (_, _, _, &[u8]) = match &current.work {
            // Nothing is sent that may have an effect; the answer brings the clock.
            Work::Write { .. } if asks_clock => (Kind::Gd, 0, 0, &[]),
            Work::Write { address, bytes } => (Kind::Rd, *address, len, &bytes[offset..offset + len]),
            Work::Read { address, .. } => (Kind::Gd, *address, len, &[]),
        };
        if asks_clock {
            self.clock_questions += 1;
        } else {
            current.pieces[piece].stamp_ns = Some(stamp_ns);
        }
        let address = address.wrapping_add(if kind == Kind::Gd && asks_clock { 0 } else { offset as u64 });
        let len = len as u32;
        let packet = Packet {
            kind,
            qpn,
            number,
            stamp_ns,
            address,
            rkey,
            len,
            epoch,
            rights,
            status: Status::Done,
            payload,
        };
        Some(sealed(&packet, &self.grant.key, buffer))
    }

    /// Handles a packet without its ICRC. Packets that do not answer this requester have no effect.
    pub fn handle_packet(&mut self, now_ns: u64, clock: &mut ServerClock, body: &[u8]) {
        let Some((packet, covered, tag)) = Packet::parse(body) else { return };
        let is_answer = matches!(packet.kind, Kind::Rda | Kind::Gda);
        if !is_answer || !tag::is_equal(&tag::tag(&self.grant.key, covered), tag) {
            return;
        }
        let Some(current) = &mut self.current else { return };
        let Some(index) =
            current.pieces[..current.sent].iter().position(|piece| piece.number == packet.number)
        else {
            return;
        };
        let piece = &mut current.pieces[index];
        let took_ns = (piece.attempts == 1).then(|| now_ns.saturating_sub(piece.left_ns));
        clock.learn(now_ns, packet.stamp_ns, took_ns);
        if piece.is_answered {
            return;
        }
        let is_write = matches!(current.work, Work::Write { .. });
        match (packet.kind, packet.status) {
            // The answer to a question for the clock: the packet itself has not left yet.
            (Kind::Gda, _) if is_write && piece.stamp_ns.is_none() => {
                (piece.due_ns, piece.attempts) = (now_ns, 0);
            }
            (Kind::Gda, _) if is_write => {}
            (Kind::Gda, Status::Done) if packet.payload.len() == piece.len => {
                current.bytes[piece.offset..piece.offset + piece.len].copy_from_slice(packet.payload);
                self.answered(index);
            }
            (Kind::Rda, Status::Done) if is_write => self.answered(index),
            (_, Status::Busy) => piece.due_ns = now_ns + clock.timeout_ns(piece.attempts),
            // No copy of the packet had an effect if there was one only: a new number and stamp cannot repeat it.
            (Kind::Rda, Status::Expired) if piece.attempts == 1 => {
                piece.number = self.next_number;
                (piece.stamp_ns, piece.attempts, piece.due_ns) = (None, 0, now_ns);
                self.next_number += 1;
            }
            (Kind::Rda, Status::Expired) => self.end(Outcome::MaybeDone),
            (_, Status::Refused) => self.end(Outcome::Refused),
            _ => {}
        }
    }

    fn answered(&mut self, index: usize) {
        let Some(current) = &mut self.current else { return };
        current.pieces[index].is_answered = true;
        current.answered += 1;
        if current.answered == current.pieces.len() {
            let bytes = std::mem::take(&mut current.bytes);
            self.end(Outcome::Success(bytes));
        }
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(Current { id, .. }) = self.current.take() {
            self.done.push_back(Done { id, outcome });
        }
    }
}

impl Current {
    fn new(id: u64, work: Work, next_number: &mut u64) -> Current {
        let (len, reads) = match &work {
            Work::Read { len, .. } => (*len, *len),
            Work::Write { bytes, .. } => (bytes.len(), 0),
        };
        let count = len.div_ceil(PAYLOAD_BYTES_MAX).max(1);
        let piece = |index: usize| {
            let offset = index * PAYLOAD_BYTES_MAX;
            Piece {
                offset,
                len: (len - offset).min(PAYLOAD_BYTES_MAX),
                number: *next_number + index as u64,
                stamp_ns: None,
                left_ns: 0,
                due_ns: 0,
                attempts: 0,
                is_answered: false,
            }
        };
        let pieces = (0..count).map(piece).collect();
        *next_number += count as u64;
        Current { id, work, bytes: vec![0; reads], pieces, sent: 0, answered: 0 }
    }

    /// Returns true if another packet may leave for the first time.
    fn may_send(&self) -> bool {
        self.sent < self.pieces.len() && self.sent - self.answered < WINDOW
    }

    /// Returns the first packet that must be sent again.
    fn due(&self, now_ns: u64) -> Option<usize> {
        let is_due = |piece: &Piece| !piece.is_answered && piece.due_ns <= now_ns;
        self.pieces[..self.sent].iter().position(is_due)
    }
}
