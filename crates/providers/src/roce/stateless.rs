//! Lanes without connection state at the responder: which connections have them, and how they carry requests.
//!
//! ```text
//!   posted ── parts ── requester ── RD, GD, SEND, RDM, atomics ──► responder of the peer's socket ── memory
//!                          ▲                                            └── messages ── joined ──► events
//!                          └──────────── RDA, GDA, SENDA, ATA ──────────────┘
//! ```
//!
//! In such a connection, the queue pairs only probe the path. The responder ([`halite_rnic::stateless`]) belongs to the
//! socket and keeps no state per peer. What remains per peer is the connection: its addresses, the salts of its keys,
//! the requesters, and one message of each lane of which not all parts have arrived.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use halite_mem::Window;
use halite_rnic::stateless::{
    Done, Grant, Message, NOTE_BYTES, Outcome, PAYLOAD_BYTES_MAX, Requester, Responder, Rights, ServerClock,
    Work,
};
use halite_rnic::wire::{Nak, Qpn};
use halite_rnic::{Cause, Event, Memory, Mtu, Operation, Request, Source, Status};
use rustix::rand::{GetRandomFlags, getrandom};

use super::SEND_BYTES_MAX;
use super::connection::Waiting;
use super::greeting::{Grants, LaneGrant, Offer};

/// The time T of the responders, in ns: an interruption of the network of up to twice this time ends no connection. The
/// record of effects covers three times this time.
pub(super) const EFFECT_LIFE_NS: u64 = 500_000_000;
/// Maximum length in bytes of the parts in which requests enter the requester, which copies them.
pub(super) const PART_BYTES: u32 = 256 << 10;
/// Maximum number of parts in the requester, so that the next one is ready when one ends.
const PARTS_MAX: usize = 2;
/// Maximum length in bytes of a write that travels in one packet with its immediate.
const NOTED_BYTES_MAX: u32 = (PAYLOAD_BYTES_MAX - NOTE_BYTES) as u32;
/// Flags of a note: the receiver's doorbell rings; the message reports a write, and has no bytes.
const SOLICITED: u8 = 1;
const NOTIFIES: u8 = 2;

/// The end of a connection that keeps the state for requests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ResponderMode {
    /// Both ends: each request and its answer move the state of a queue pair.
    #[default]
    Stateful,
    /// The requesting end alone, if the peer is set to `Stateless` or `Auto`.
    Stateless,
    /// As the peer asks.
    Auto,
}

impl ResponderMode {
    /// All modes.
    pub const ALL: [ResponderMode; 3] =
        [ResponderMode::Stateful, ResponderMode::Stateless, ResponderMode::Auto];

    /// Returns the name in settings.
    pub fn name(self) -> &'static str {
        match self {
            ResponderMode::Stateful => "stateful",
            ResponderMode::Stateless => "stateless",
            ResponderMode::Auto => "auto",
        }
    }

    /// Returns a description for users.
    pub fn summary(self) -> &'static str {
        match self {
            ResponderMode::Stateful => "queue pairs: each end keeps state for each peer",
            ResponderMode::Stateless => {
                "the end that requests keeps the state, with peers set to stateless or auto"
            }
            ResponderMode::Auto => "stateless with peers set to stateless, otherwise stateful",
        }
    }
}

/// Returns true if the lanes of two ends are stateless, and the reason. Both ends come to the same decision.
// [ROCE-STATELESS-10]
pub(super) fn agree(ours: &Offer, theirs: &Offer) -> (bool, &'static str) {
    use ResponderMode::{Auto, Stateful, Stateless};
    match (ours.responder, theirs.responder) {
        (Stateful, _) => (false, "this node is set to stateful"),
        (_, Stateful) => (false, "the peer is set to stateful, or its release has no other mode"),
        (Auto, Auto) => (false, "both nodes are set to auto, none to stateless"),
        _ if ours.mtu.min(theirs.mtu) < Mtu::Bytes1024 => {
            (false, "the path carries no packets with 1,024 bytes of payload")
        }
        (Stateless, _) => (true, "this node is set to stateless"),
        (Auto, Stateless) => (true, "the peer is set to stateless"),
    }
}

/// The requests of one lane, and the messages that arrive on it.
#[derive(Debug, Default)]
pub(super) struct StatelessLane {
    /// `None` until the peer's grant arrives.
    requester: Option<Requester>,
    /// Posted requests that wait for no turn.
    urgent: VecDeque<Waiting>,
    /// The request of which not all parts are in the requester, and the number of bytes that are.
    divided: Option<(Waiting, u32)>,
    /// The parts in the requester, oldest first.
    parts: VecDeque<Part>,
    arriving: Option<Arriving>,
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
    is_last: bool,
    is_atomic: bool,
    /// Memory for the bytes of a read.
    target: Option<(Window, u64)>,
}

/// A message of which not all parts have arrived.
#[derive(Debug)]
struct Arriving {
    bytes: Vec<u8>,
    missing: usize,
}

/// The error for a message that no fabric sends.
#[derive(Debug)]
struct BadMessage;

impl StatelessLane {
    /// Installs the peer's grant for the queue pair number `qpn`. Packets are numbered from `first_number` on.
    pub(super) fn grant(&mut self, qpn: Qpn, grant: &LaneGrant, first_number: u64, patience_ns: u64) {
        let LaneGrant { epoch, effect_life_ns, key } = *grant;
        let grant = Grant { qpn, rkey: 0, rights: Rights::AnyKey, effect_life_ns, epoch, key };
        let mut requester = Requester::new(grant, first_number);
        requester.set_patience(patience_ns);
        self.requester.get_or_insert(requester);
    }

    /// Returns the number of posted requests that have not completed.
    pub(super) fn outstanding(&self) -> usize {
        let ending = self.parts.iter().filter(|part| part.is_last).map(|part| part.ids.len());
        self.urgent.len() + usize::from(self.divided.is_some()) + ending.sum::<usize>()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns the number of request packets sent, of retransmissions among these, and of received packets.
    pub(super) fn packets(&self) -> [u64; 3] {
        let (sent, repeated) = self.requester.as_ref().map_or((0, 0), Requester::packets_sent);
        [sent, repeated, self.arrived]
    }

    /// Counts packets received from the peer.
    pub(super) fn add_arrived(&mut self, packets: u64) {
        self.arrived += packets;
    }

    /// Appends a request that waits for no turn.
    pub(super) fn push(&mut self, waiting: Waiting) {
        self.urgent.push_back(waiting);
    }

    /// Moves requests to the requester as far as it takes them. `next` is the source of those that wait for their turn.
    pub(super) fn fill(&mut self, mut next: impl FnMut() -> Option<Waiting>) {
        loop {
            self.post_parts();
            let takes_more = self.divided.is_none()
                && self.parts.len() < PARTS_MAX
                && self.requester.is_some()
                && !self.has_ended;
            if !takes_more {
                return;
            }
            let Some(waiting) = self.urgent.pop_front().or_else(&mut next) else { return };
            self.divided = Some((waiting, 0));
        }
    }

    /// Moves parts of the divided request to the requester, as far as it takes them.
    fn post_parts(&mut self) {
        let Some(requester) = self.requester.as_mut().filter(|_| !self.has_ended) else { return };
        while self.parts.len() < PARTS_MAX
            && let Some((waiting, done)) = &mut self.divided
        {
            let Ok((rkey, mut work, mut part, len)) = part_of(waiting, *done) else {
                self.fail(None, Status::LocalAccess, Cause::LocalAccess);
                return;
            };
            *done += len;
            if part.is_last {
                self.divided = None;
            }
            // The requester executes one request at a time: messages that wait share a packet.
            while let Work::Send { bytes } = &mut work
                && let Some(next) = self.urgent.pop_front_if(|next| joins(next, bytes.len()))
                && let Operation::Send { bytes: next_bytes, imm } = &next.request.operation
            {
                let Request { id, signalled, solicited, .. } = next.request;
                bytes.extend(note(imm.unwrap_or(0), solicited, false, next_bytes.len()));
                bytes.extend(next_bytes);
                part.ids.push((id, signalled));
            }
            let posted = requester.post_to(0, rkey, work);
            assert_eq!(posted, Ok(()), "parts are few and short");
            self.parts.push_back(part);
        }
    }

    /// Writes the next packet to `buffer`, and returns its length; `None` if no packet is due.
    pub(super) fn poll_transmit(
        &mut self,
        now_ns: u64,
        clock: &ServerClock,
        buffer: &mut [u8],
    ) -> Option<usize> {
        if self.has_ended {
            return None;
        }
        let len = self.requester.as_mut()?.poll_transmit(now_ns, clock, buffer);
        if len.is_none() {
            // The requester may have given a request up.
            self.complete();
        }
        len
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.requester.as_ref().filter(|_| !self.has_ended)?.poll_timeout()
    }

    /// Handles an answer. Returns true if the peer has sent it.
    pub(super) fn handle_answer(
        &mut self,
        arrived_ns: u64,
        clock: &mut ServerClock,
        body: &[u8],
        memory: &impl Memory,
    ) -> bool {
        let Some(requester) = self.requester.as_mut().filter(|_| !self.has_ended) else { return false };
        let is_ours = requester.handle_packet(arrived_ns, clock, body, memory);
        self.complete();
        is_ours
    }

    fn complete(&mut self) {
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
            let is_landed =
                part.target.as_ref().is_none_or(|(window, offset)| window.write(*offset, &bytes).is_ok());
            if !is_landed {
                return self.fail(Some(part), Status::LocalAccess, Cause::LocalAccess);
            }
            let old = bytes.first_chunk().filter(|_| part.is_atomic).map(|old| u64::from_be_bytes(*old));
            let signalled = part.ids.iter().filter(|(_, signalled)| part.is_last && *signalled);
            let completed = signalled.map(|(id, _)| (*id, Status::Success, old));
            self.events.extend(completed.map(|(id, status, old)| Event::Completed { id, status, old }));
        }
    }

    /// Ends the lane because of this part, or because of the divided request.
    fn fail(&mut self, part: Option<Part>, status: Status, cause: Cause) {
        let failed: Vec<u64> = match part {
            Some(part) => part.ids.into_iter().map(|(id, _)| id).collect(),
            None => self.divided.iter().map(|(rest, _)| rest.request.id).collect(),
        };
        self.events.extend(failed.iter().map(|id| Event::Completed { id: *id, status, old: None }));
        self.flush(&failed, Status::Flushed);
        self.events.push_back(Event::Broken { cause });
    }

    /// Completes all requests because the connection ends.
    pub(super) fn close(&mut self) {
        self.flush(&[], Status::Aborted);
    }

    /// Ends the lane, and completes all requests but the `failed`: those of which packets may be under way with `begun`.
    fn flush(&mut self, failed: &[u64], begun: Status) {
        self.has_ended = true;
        self.requester = None;
        self.arriving = None;
        let parts = self.parts.drain(..).filter(|part| part.is_last).flat_map(|part| part.ids);
        let divided = self.divided.take().map(|(rest, _)| rest.request.id);
        let begun = parts.map(|(id, _)| id).chain(divided).map(|id| (id, begun));
        let urgent = self.urgent.drain(..).map(|waiting| (waiting.request.id, Status::Flushed));
        let ended = begun.chain(urgent).filter(|(id, _)| !failed.contains(id));
        self.events.extend(ended.map(|(id, status)| Event::Completed { id, status, old: None }));
    }

    /// Takes a message, or a part of one, that the responder has received from the peer.
    pub(super) fn handle_message(&mut self, message: Message) {
        if self.join(message).is_err() {
            self.fail(None, Status::Flushed, Cause::PeerErred(Nak::InvalidRequest));
        }
    }

    fn join(&mut self, message: Message) -> Result<(), BadMessage> {
        let Message { bytes, offset, len, .. } = message;
        let (offset, len) = (offset as usize, len as usize);
        let end = offset.checked_add(bytes.len()).filter(|end| *end <= len);
        let is_valid = (NOTE_BYTES..=NOTE_BYTES + SEND_BYTES_MAX).contains(&len);
        let (Some(end), true) = (end, is_valid) else { return Err(BadMessage) };
        let whole = if bytes.len() == len {
            bytes
        } else {
            let arriving =
                self.arriving.get_or_insert_with(|| Arriving { bytes: vec![0; len], missing: len });
            if arriving.bytes.len() != len || arriving.missing < bytes.len() || bytes.is_empty() {
                return Err(BadMessage);
            }
            arriving.bytes[offset..end].copy_from_slice(&bytes);
            arriving.missing -= bytes.len();
            if arriving.missing > 0 {
                return Ok(());
            }
            self.arriving.take().expect("it has just arrived").bytes
        };
        let mut rest = &whole[..];
        while !rest.is_empty() {
            let (note, behind) = rest.split_first_chunk::<NOTE_BYTES>().ok_or(BadMessage)?;
            let [a, b, c, d, flags, len @ ..] = *note;
            let len = u32::from_be_bytes([0, len[0], len[1], len[2]]) as usize;
            let (bytes, behind) = behind.split_at_checked(len).ok_or(BadMessage)?;
            rest = behind;
            let (imm, solicited) = (u32::from_be_bytes([a, b, c, d]), flags & SOLICITED != 0);
            self.events.push_back(match flags & NOTIFIES {
                0 => Event::Received { bytes: bytes.to_vec(), imm: Some(imm), solicited },
                _ => Event::Notified { imm, solicited },
            });
        }
        Ok(())
    }

    pub(super) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// Returns true if this is a message that fits into a packet behind `bytes` bytes of other messages.
fn joins(waiting: &Waiting, bytes: usize) -> bool {
    let len = waiting.request.operation.len_bytes() as usize;
    matches!(waiting.request.operation, Operation::Send { .. })
        && bytes + NOTE_BYTES + len <= PAYLOAD_BYTES_MAX
}

/// Returns the header of a message of `len` bytes, or of the report of a write.
fn note(imm: u32, solicited: bool, notifies: bool, len: usize) -> [u8; NOTE_BYTES] {
    let [a, b, c, d] = imm.to_be_bytes();
    let flags = if solicited { SOLICITED } else { 0 } | if notifies { NOTIFIES } else { 0 };
    let [_, e, f, g] = u32::try_from(len).expect("messages are short").to_be_bytes();
    [a, b, c, d, flags, e, f, g]
}

/// Returns the part of a request that begins after `done` bytes: the key of the peer's memory, the part's request, and
/// its length. Fails if the local memory does not contain the request.
fn part_of(waiting: &Waiting, done: u32) -> Result<(u32, Work, Part, u32), halite_mem::OutOfBounds> {
    let Request { id, operation, signalled, solicited } = &waiting.request;
    let ids = vec![(*id, *signalled)];
    let mut part = Part { ids, is_last: true, is_atomic: false, target: None };
    let (rkey, work, len) = match operation {
        Operation::Send { bytes, imm } => {
            let note = note(imm.unwrap_or(0), *solicited, false, bytes.len());
            (0, Work::Send { bytes: [&note[..], bytes].concat() }, bytes.len() as u32)
        }
        Operation::Write { source, remote, imm } => {
            let rest = operation.len_bytes() - done;
            let address = remote.address.wrapping_add(done.into());
            let noted = imm.filter(|_| rest <= NOTED_BYTES_MAX);
            let len = if noted.is_some() { rest } else { rest.min(PART_BYTES) };
            part.is_last = noted.is_some() || imm.is_none() && len == rest;
            let note = noted.map(|imm| note(imm, *solicited, true, 0));
            let note = note.as_ref().map_or(&[][..], |note| &note[..]);
            let bytes = with_source(note, source, waiting.window.as_ref(), done, len)?;
            let work = match noted {
                Some(_) => Work::WriteNote { address, note_and_bytes: bytes },
                None => Work::Write { address, bytes },
            };
            (remote.rkey, work, len)
        }
        Operation::Read { local, remote, len } => {
            let rest = len - done;
            let len = rest.min(PART_BYTES);
            part.is_last = len == rest;
            let window = waiting.window.clone();
            part.target = window.map(|window| (window, local.address + u64::from(done)));
            let address = remote.address.wrapping_add(done.into());
            (remote.rkey, Work::Read { address, len: len as usize }, len)
        }
        Operation::FetchAdd { remote, add } => {
            part.is_atomic = true;
            (remote.rkey, Work::FetchAdd { address: remote.address, add: *add }, 8)
        }
        Operation::CompareSwap { remote, expected, new } => {
            part.is_atomic = true;
            let (address, expected, new) = (remote.address, *expected, *new);
            (remote.rkey, Work::CompareSwap { address, expected, new }, 8)
        }
    };
    Ok((rkey, work, part, len))
}

/// Returns the note, and after it `len` bytes of the source from `done` on.
fn with_source(
    note: &[u8],
    source: &Source,
    window: Option<&Window>,
    done: u32,
    len: u32,
) -> Result<Vec<u8>, halite_mem::OutOfBounds> {
    let mut bytes = vec![0; note.len() + len as usize];
    let (begin, rest) = bytes.split_at_mut(note.len());
    begin.copy_from_slice(note);
    match (source, window) {
        (Source::Inline(inline), _) => rest.copy_from_slice(&inline[done as usize..][..len as usize]),
        (Source::Registered { local, .. }, Some(window)) => {
            window.read(local.address + u64::from(done), rest)?;
        }
        (Source::Registered { .. }, None) => unreachable!("a request holds the memory that it names"),
    }
    Ok(bytes)
}

/// The responder of a socket; see [`halite_rnic::stateless`].
#[derive(Debug)]
pub(super) struct SocketResponder {
    responder: Responder,
    /// Latest arrival time of a request in ns: the responder's clock.
    now_ns: u64,
}

impl SocketResponder {
    /// Creates a responder with a random secret.
    pub(super) fn new() -> io::Result<SocketResponder> {
        let mut secret = [0; 32];
        getrandom(&mut secret, GetRandomFlags::empty())?;
        Ok(SocketResponder { responder: Responder::with_effect_life(1, secret, EFFECT_LIFE_NS), now_ns: 0 })
    }

    /// Returns the grants of the peer at `to` with these queue pairs: all registered memory, and messages.
    pub(super) fn grants(&self, to: SocketAddr, qpns: &[Qpn]) -> Grants {
        std::array::from_fn(|lane| {
            let Grant { epoch, effect_life_ns, key, .. } =
                self.responder.grant(to, qpns[lane], 0, Rights::AnyKey);
            LaneGrant { epoch, effect_life_ns, key }
        })
    }

    /// Handles a request that arrived at `arrived_ns`, and writes the answer to `answer`. Returns the answer's length,
    /// and the message that the request has brought; `None` if the peer did not send the packet.
    pub(super) fn handle(
        &mut self,
        arrived_ns: u64,
        from: SocketAddr,
        body: &[u8],
        memory: &impl Memory,
        answer: &mut [u8],
    ) -> Option<(usize, Option<Message>)> {
        // Packets of one batch may have no arrival time, and the system's clock may be set.
        self.now_ns = self.now_ns.max(arrived_ns);
        let len = self.responder.handle_packet(self.now_ns, from, body, memory, answer)?;
        Some((len, self.responder.poll_message()))
    }
}

#[cfg(test)]
mod tests {
    use halite_rnic::wire::Psn;

    use super::super::greeting::LaneOffer;
    use super::*;

    fn offer(responder: ResponderMode, mtu: Mtu) -> Offer {
        let lanes = [LaneOffer { qpn: Qpn::new(2), psn: Psn::new(0) }; 2];
        let address = "127.0.0.1:4".parse().expect("an address");
        Offer { address, mtu, salt: 0, lanes, lanes_max: 2, selective: true, tells_waits: true, responder }
    }

    #[test]
    fn lanes_are_stateless_if_one_end_asks_and_the_other_permits_it() {
        use ResponderMode::{Auto, Stateful, Stateless};
        let agree = |one, other| {
            let both = [one, other].map(|mode| offer(mode, Mtu::Bytes1024));
            let agreed = agree(&both[0], &both[1]).0;
            assert_eq!(agree(&both[1], &both[0]).0, agreed, "both ends decide alike");
            agreed
        };
        let modes = [Stateful, Stateless, Auto];
        let agreed: Vec<_> = modes
            .iter()
            .flat_map(|one| modes.iter().map(move |other| (*one, *other)))
            .filter(|(one, other)| agree(*one, *other))
            .collect();
        assert_eq!(agreed, [(Stateless, Stateless), (Stateless, Auto), (Auto, Stateless)]);
        let narrow = offer(Stateless, Mtu::Bytes512);
        assert!(!super::agree(&offer(Stateless, Mtu::Bytes4096), &narrow).0);
    }

    fn message(bytes: &[u8], offset: u32, len: u32) -> Message {
        let from = "127.0.0.1:4".parse().expect("an address");
        Message { id: 0, from, qpn: Qpn::new(2), bytes: bytes.to_vec(), offset, len, is_call: false }
    }

    /// Only a peer that is no fabric sends these; each ends the lane, and none does more.
    #[test]
    fn bad_messages_end_the_lane() {
        let longest = (NOTE_BYTES + SEND_BYTES_MAX) as u32;
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
        ];
        for messages in bad {
            let mut lane = StatelessLane::default();
            messages.iter().for_each(|message| lane.handle_message(message.clone()));
            assert!(lane.has_ended(), "{messages:?}");
            let events: Vec<_> = std::iter::from_fn(|| lane.poll_event()).collect();
            let cause = Cause::PeerErred(Nak::InvalidRequest);
            assert_eq!(events.last(), Some(&Event::Broken { cause }), "{messages:?}");
        }
    }
}
