//! Requests through memory that the client shares with its node.
//!
//! ```text
//!   thread ── claims a slot, writes a line ──> node's thread, which polls
//!      │ spins                                      │
//!      └── reply in the line of the slot <──────────┘
//! ```
//!
//! A request uses the socket instead if it is too long, if all slots are in use, or if an earlier message still waits
//! to be sent. Requests keep their order: each line contains the number of socket messages that precede it, and the
//! node handles all lines before it starts the request of a socket message.
//!
//! A thread that waits for one access checks the line of its slot without a lock. Other replies pass to the table of
//! requests, as if they had come over the socket ([`Line::collect`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use halite_mem::exchange::{self, Claim, Claims, SLOT_BYTES, SLOTS, WORDS};

use super::{Line, Pending, Slot, State, Undo};
use crate::error::{AccessError, Gone};
use crate::runtime::wait::{AdaptiveSpin, SPIN_SHORT_NS, YIELD_LONG_NS};
use crate::session::Lh;
use crate::session::attached::buffers::Place;
use crate::session::attached::entry::{self, Head, INLINE_BYTES_MAX, Kind, OPERAND_BYTES_MAX, Status};
use crate::session::attached::wire;

/// Rounds of a spin between two readings of the clock, if a round checks one line: together about as long as an access
/// takes, so that most accesses do not read the clock.
const LINE_ROUNDS_PER_CLOCK: u32 = 256;
/// The same, if a round passes replies to the table of requests.
const ROUNDS_PER_CLOCK: u32 = 64;
/// Length in bytes from which a request prefers a slot that was used before, because the pages of unused slots may not
/// be allocated yet.
const PAGE_BYTES: usize = 4096;
/// Maximum number of parts of one access in flight. With this number, both ends copy all the time, and the slots still
/// fit into the processor's caches.
const PARTS_MAX: usize = 8;
/// Maximum number of parts of one access in flight, if a part takes longer than a spin: then the path is long, and more
/// parts fill it. Some slots remain for other threads.
const FAR_PARTS_MAX: usize = SLOTS - SLOTS / 4;

/// The requests in shared memory. The lock of [`Line`] protects this state.
pub(super) struct Ring {
    pub(super) claims: Claims,
    /// Requests of the table that use slots.
    requests: [Option<SlotRequest>; SLOTS],
    /// Bit set of the slots that `requests` uses.
    used: u32,
    /// Replies over the socket to requests that are not in `requests` yet, by slot.
    early: BTreeMap<usize, Vec<u8>>,
    /// Number of messages that were sent over the socket, modulo 2^16.
    pub(super) sent: u16,
    /// Number of the last sleep of the node that this end has ended by a wake-up.
    woken: u64,
}

#[derive(Clone, Copy)]
struct SlotRequest {
    id: u64,
    claim: Claim,
    kind: Kind,
}

/// A short access.
pub(crate) enum Access<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
    FetchAdd { add: u64 },
    CompareSwap { expected: u64, new: u64 },
    ReadBuffer(Place),
    WriteBuffer(Place),
}

/// Result of an access that the fast path did not complete.
pub(crate) enum Unfinished {
    /// The access was not sent.
    NotSent,
    /// The access was sent, and its reply takes longer than the spin.
    Sent(Pending),
    /// The body of the reply, usually an error, or the reason why no reply will arrive.
    Ended(Result<Vec<u8>, Gone>),
}

/// Work that remains after replies were handed to the table of requests. It is done without the lock.
#[derive(Default)]
pub(super) struct Collected {
    wakers: Vec<Waker>,
    undos: Vec<(Undo, Vec<u8>)>,
}

impl Ring {
    pub(super) fn new() -> Ring {
        Ring {
            claims: Claims::default(),
            requests: [None; SLOTS],
            used: 0,
            early: BTreeMap::new(),
            sent: 0,
            woken: 0,
        }
    }

    fn insert(&mut self, request: SlotRequest) {
        self.requests[request.claim.slot] = Some(request);
        self.used |= 1 << request.claim.slot;
    }

    /// Frees the slot of a request.
    fn remove(&mut self, memory: &exchange::Client, slot: usize) {
        if let Some(SlotRequest { claim, .. }) = self.requests[slot].take() {
            self.used &= !(1 << slot);
            self.claims.end_wakes(memory, 1 << slot);
            memory.release(claim);
        }
    }

    /// Returns the id by which the socket names a request.
    pub(super) fn socket_id(&self, id: u64) -> u64 {
        let used = self.requests.iter().flatten().find(|request| request.id == id);
        used.map_or(id, |request| entry::id_of(request.claim.slot))
    }
}

impl Access<'_> {
    fn kind(&self) -> Kind {
        match self {
            Access::Read(_) => Kind::Read,
            Access::Write(_) => Kind::Write,
            Access::FetchAdd { .. } => Kind::FetchAdd,
            Access::CompareSwap { .. } => Kind::CompareSwap,
            Access::ReadBuffer(_) => Kind::ReadBuffer,
            Access::WriteBuffer(_) => Kind::WriteBuffer,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Access::Read(into) => into.len(),
            Access::Write(from) => from.len(),
            Access::FetchAdd { .. } | Access::CompareSwap { .. } => size_of::<u64>(),
            Access::ReadBuffer(place) | Access::WriteBuffer(place) => place.len,
        }
    }

    /// Evaluates the body of the reply to a read or write.
    fn land(&mut self, body: Result<Vec<u8>, Gone>) -> Result<(), Unfinished> {
        match (self, body.as_deref()) {
            (Access::Read(into), Ok([0, bytes @ ..])) if bytes.len() == into.len() => {
                into.copy_from_slice(bytes)
            }
            (Access::Write(_), Ok([0])) => {}
            _ => return Err(Unfinished::Ended(body)),
        }
        Ok(())
    }

    /// Returns the part of a read or write from `begin` to `end`.
    pub(crate) fn part(&mut self, begin: usize, end: usize) -> Access<'_> {
        match self {
            Access::Read(into) => Access::Read(&mut into[begin..end]),
            Access::Write(from) => Access::Write(&from[begin..end]),
            _ => unreachable!("only reads and writes have parts"),
        }
    }
}

/// Accesses of threads.
impl Line {
    /// Executes an access of at most [`SLOT_BYTES`]. Returns the old value of an atomic. Spins for a limited time until
    /// the reply has arrived.
    #[inline]
    pub(crate) fn access(
        self: &Arc<Line>,
        lh: Lh,
        offset: u64,
        access: &mut Access<'_>,
    ) -> Result<u64, Unfinished> {
        match self.submit_access(lh, offset, access) {
            Some(claim) => self.await_access(claim, access),
            None => Err(Unfinished::NotSent),
        }
    }

    /// Executes a longer read or write in parts, with [`PARTS_MAX`] or [`FAR_PARTS_MAX`] in flight, so that both ends
    /// copy at the same time. If a part does not finish, returns its begin and end: the parts before it are done, and the
    /// parts after it may be.
    pub(crate) fn access_parts(
        self: &Arc<Line>,
        lh: Lh,
        offset: u64,
        access: &mut Access<'_>,
    ) -> Result<(), (usize, usize, Unfinished)> {
        let (len, mut next, mut under_way) = (access.len(), 0, VecDeque::with_capacity(PARTS_MAX));
        let mut parts_max = PARTS_MAX;
        loop {
            while next < len && under_way.len() < parts_max {
                let end = len.min(next + SLOT_BYTES);
                let part = access.part(next, end);
                let Some(claim) = self.submit_access(lh, offset + next as u64, &part) else { break };
                under_way.push_back((claim, next, end));
                next = end;
            }
            let Some((claim, begin, end)) = under_way.pop_front() else {
                return if next < len { Err((next, len, Unfinished::NotSent)) } else { Ok(()) };
            };
            let mut part = access.part(begin, end);
            let awaited = match self.await_access(claim, &mut part) {
                // The node may still execute the parts after it.
                Err(Unfinished::Sent(pending)) => {
                    parts_max = FAR_PARTS_MAX;
                    part.land(self.block_on_after(pending, true))
                }
                // A part that the node could not finish at once replies with a body.
                Err(Unfinished::Ended(body)) => part.land(body),
                awaited => awaited.map(|_| ()),
            };
            if let Err(unfinished) = awaited {
                let kind = access.kind();
                under_way.into_iter().for_each(|(claim, ..)| self.wait_longer(claim, kind).detach());
                return Err((begin, end, unfinished));
            }
        }
    }

    #[inline]
    fn submit_access(&self, lh: Lh, offset: u64, access: &Access<'_>) -> Option<Claim> {
        // Bytes of a buffer are not in the slot.
        let len = if let Access::ReadBuffer(_) | Access::WriteBuffer(_) = access { 1 } else { access.len() };
        let (Some(memory), 1..=SLOT_BYTES) = (&self.memory, len) else { return None };
        if self.is_forked() {
            return None;
        }
        let kind = access.kind();
        let mut state = self.state();
        let claim = state.ring()?.claims.claim(memory, len > PAGE_BYTES)?;
        let mut line = [0; WORDS];
        entry::put_handle(&mut line, lh, offset);
        match access {
            Access::Read(_) => {}
            Access::Write(from) if len <= OPERAND_BYTES_MAX => entry::put(&mut line[4..], from),
            Access::Write(from) => {
                // The copy may take microseconds.
                drop(state);
                memory.write(claim, from).expect("the length was checked");
                state = self.state();
            }
            Access::FetchAdd { add } => line[4] = *add,
            Access::CompareSwap { expected, new } => (line[4], line[5]) = (*expected, *new),
            Access::ReadBuffer(Place { id, at, len }) | Access::WriteBuffer(Place { id, at, len }) => {
                (line[4], line[5], line[6]) = (*id, *at as u64, *len as u64);
            }
        }
        let Some(ring) = state.ring() else {
            // Meanwhile another thread has sent a message that still waits.
            state.ring.as_mut().expect("it has the claim").claims.unclaim(claim);
            return None;
        };
        line[0] = Head { kind, slot: claim.slot, len, after: ring.sent }.pack();
        let operands = match access {
            Access::Read(_) => 0,
            Access::Write(from) => from.len().min(OPERAND_BYTES_MAX),
            Access::FetchAdd { .. } | Access::CompareSwap { .. } => 16,
            Access::ReadBuffer(_) | Access::WriteBuffer(_) => 24,
        };
        ring.claims.submit(memory, line, entry::words(4, operands));
        drop(state);
        if let Some(nap) = memory.nap() {
            self.wake_node(&mut self.state(), nap);
        }
        Some(claim)
    }

    #[inline]
    fn await_access(self: &Arc<Line>, claim: Claim, access: &mut Access<'_>) -> Result<u64, Unfinished> {
        let memory = self.memory.as_ref().expect("it has the claim");
        let line = self.await_line(claim, access.kind())?;
        let ended = match (entry::status(&line), access) {
            ((Status::Value, len), Access::Read(into)) if len == into.len() => {
                match len <= INLINE_BYTES_MAX {
                    true => entry::get(&line[1..], into),
                    false => memory.read(claim, into).expect("the length was checked"),
                }
                Ok(0)
            }
            ((Status::Value, _), _) => Ok(line[1]),
            // The results of accesses fit into a slot.
            ((Status::Body | Status::Socket, len), _) => {
                Err(Unfinished::Ended(Ok(self.bytes_of(claim, &line, len))))
            }
        };
        memory.release(claim);
        ended
    }

    /// Spins for the reply to a request. If none arrives during the spin, moves the request into the table of requests.
    #[inline]
    pub(super) fn await_line(
        self: &Arc<Line>,
        claim: Claim,
        kind: Kind,
    ) -> Result<exchange::Line, Unfinished> {
        let memory = self.memory.as_ref().expect("it has the claim");
        let mut spin = Spin::begin(LINE_ROUNDS_PER_CLOCK);
        loop {
            match memory.reply(claim) {
                Some(line) => {
                    spin.succeed();
                    return Ok(line);
                }
                None if spin.is_over() => return Err(Unfinished::Sent(self.wait_longer(claim, kind))),
                None => {}
            }
        }
    }

    /// Moves a request into the table of requests, so that the caller can await its reply without spinning.
    #[cold]
    pub(super) fn wait_longer(self: &Arc<Line>, claim: Claim, kind: Kind) -> Pending {
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        let (memory, ring) = (&self.memory, state.ring.as_mut().expect("it has the claim"));
        let slot = match (ring.early.remove(&claim.slot), memory) {
            (Some(body), Some(memory)) => {
                memory.release(claim);
                Slot::Replied(body)
            }
            _ => {
                ring.insert(SlotRequest { id, claim, kind });
                Slot::Waiting(None)
            }
        };
        state.requests.insert(id, slot);
        Pending { line: self.clone(), id: Some(id), is_task: false, undo: None }
    }
}

/// Requests of the table.
impl Line {
    /// Sends a request of the table: through shared memory if it fits there, otherwise over the socket.
    pub(super) fn send_request(&self, state: &mut State, id: u64, message: &[u8]) {
        let body = &message[wire::HEADER_BYTES..];
        let Some(memory) = self.memory.as_ref().filter(|_| (1..=SLOT_BYTES).contains(&body.len())) else {
            return self.send(state, message);
        };
        let claim = match state.ring() {
            Some(ring) => ring.claims.claim(memory, body.len() > PAGE_BYTES),
            None => return self.send(state, message),
        };
        let Some(claim) = claim else { return self.send(state, message) };
        let ring = state.ring.as_mut().expect("it has the claim");
        let mut line = [0; WORDS];
        line[0] = Head { kind: Kind::Message, slot: claim.slot, len: body.len(), after: ring.sent }.pack();
        match body.len() <= INLINE_BYTES_MAX {
            true => entry::put(&mut line[1..], body),
            false => memory.write(claim, body).expect("the length was checked"),
        }
        ring.insert(SlotRequest { id, claim, kind: Kind::Message });
        ring.claims.submit(memory, line, entry::words(1, body.len()));
        if let Some(nap) = memory.nap() {
            self.wake_node(state, nap);
        }
    }

    /// Wakes the node, once for each of its sleeps.
    #[cold]
    pub(super) fn wake_node(&self, state: &mut State, nap: u64) {
        if let Some(ring) = &mut state.ring
            && ring.woken != nap
        {
            ring.woken = nap;
            self.send_bytes(state, &wire::message(entry::WAKE_ID, &(), &[]));
        }
    }

    /// Passes the replies in shared memory to the table of requests.
    pub(super) fn collect(&self, state: &mut State, collected: &mut Collected) {
        let (Some(memory), Some(ring)) = (&self.memory, &mut state.ring) else { return };
        // A fork has no such memory.
        let mut left = if self.is_forked() { 0 } else { ring.used };
        while left != 0 {
            let slot = left.trailing_zeros() as usize;
            left &= left - 1;
            let SlotRequest { id, claim, kind } = state.ring_request(slot).expect("its bit is set");
            let Some(line) = memory.reply(claim) else { continue };
            let body = match entry::status(&line) {
                (Status::Socket, _) => continue,
                (Status::Body, len) => self.bytes_of(claim, &line, len),
                (Status::Value, _) if matches!(kind, Kind::FetchAdd | Kind::CompareSwap) => {
                    wire::body(&Ok::<u64, AccessError>(line[1]))
                }
                (Status::Value, len) => {
                    let mut body = wire::body(&Ok::<(), AccessError>(()));
                    body.extend_from_slice(&self.bytes_of(claim, &line, len));
                    body
                }
            };
            state.ring.as_mut().expect("it has the slot").remove(memory, slot);
            state.deliver(id, body, collected);
        }
    }

    /// Passes a reply that came over the socket to the request of a slot. If the request's thread still spins, keeps
    /// the reply for it. Fails if the node shares no memory.
    pub(super) fn deliver_to_slot(
        &self,
        state: &mut State,
        slot: usize,
        body: &[u8],
        collected: &mut Collected,
    ) -> Result<(), Gone> {
        let (Some(memory), Some(ring)) = (&self.memory, &mut state.ring) else {
            return Err(Gone::Lost(self.node));
        };
        let Some(request) = ring.requests[slot] else {
            ring.early.insert(slot, body.to_vec());
            return Ok(());
        };
        state.ring.as_mut().expect("it has the request").remove(memory, slot);
        state.deliver(request.id, body.to_vec(), collected);
        Ok(())
    }

    /// Asks the node to wake this end when it answers, and collects the replies that are already there.
    pub(super) fn collect_before_sleep(&self, state: &mut State, collected: &mut Collected) {
        if let (Some(memory), Some(ring)) = (&self.memory, &mut state.ring)
            && ring.used != 0
            && !self.is_forked()
        {
            let used = ring.used;
            ring.claims.ask_for_wakes(memory, used);
            self.collect(state, collected);
        }
    }

    /// Wakes the waiters and sends the undos that [`Line::collect`] found. The caller must not hold the lock.
    pub(super) fn finish(&self, collected: Collected) {
        let Collected { wakers, undos } = collected;
        if !undos.is_empty() {
            let count = undos.len();
            for (undo, body) in undos {
                undo(&body).into_iter().for_each(|message| self.tell_encoded(message));
            }
            let mut state = self.state();
            state.undos -= count;
            self.send_held(&mut state);
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Collects replies until `is_done` returns true, for a limited time.
    pub(super) fn spin(&self, is_done: impl Fn() -> bool) {
        let is_used = |state: &State| state.ring.as_ref().is_some_and(|ring| ring.used != 0);
        let mut spin = Spin::begin(ROUNDS_PER_CLOCK);
        while !is_done() {
            let mut state = self.state();
            if !is_used(&state) {
                return;
            }
            let mut collected = Collected::default();
            self.collect(&mut state, &mut collected);
            drop(state);
            self.finish(collected);
            if spin.is_over() {
                return;
            }
        }
        spin.succeed();
    }

    pub(super) fn bytes_of(&self, claim: Claim, line: &exchange::Line, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.min(SLOT_BYTES)];
        match (&self.memory, len <= INLINE_BYTES_MAX) {
            (Some(memory), false) => memory.read(claim, &mut bytes).expect("the length was limited"),
            _ => entry::get(&line[1..], &mut bytes),
        }
        bytes
    }
}

impl State {
    /// Returns the ring if a request may use it now.
    #[inline]
    pub(super) fn ring(&mut self) -> Option<&mut Ring> {
        let may_use = !self.is_over && self.undos == 0 && self.held.is_empty() && self.output.is_empty();
        self.ring.as_mut().filter(|_| may_use)
    }

    fn ring_request(&self, slot: usize) -> Option<SlotRequest> {
        self.ring.as_ref().and_then(|ring| ring.requests[slot])
    }

    /// Passes a reply to its waiter. Returns false if no request has this id.
    pub(super) fn deliver(&mut self, id: u64, body: Vec<u8>, collected: &mut Collected) -> bool {
        match self.requests.remove(&id) {
            Some(Slot::Waiting(waker)) => {
                self.requests.insert(id, Slot::Replied(body));
                collected.wakers.extend(waker);
            }
            Some(Slot::Abandoned(Some(undo))) => collected.undos.push((undo, body)),
            Some(Slot::Abandoned(None)) => {}
            Some(Slot::Replied(_)) | None => return false,
        }
        true
    }
}

/// Counts the rounds in which a thread checks for a reply before it sleeps.
struct Spin {
    /// Number of rounds until the next reading of the clock.
    left: u32,
    rounds_per_clock: u32,
    /// True if the thread yields in each round ([`AdaptiveSpin::shares_core`]).
    shares_core: bool,
    /// True if the thread does not time its next yield ([`AdaptiveSpin::skip_clock`]).
    skips_clock: bool,
    /// Time of the first clock read of the spin, and the spin's maximum duration in nanoseconds.
    limit: Option<(Instant, u64)>,
}

impl Spin {
    #[inline]
    fn begin(rounds_per_clock: u32) -> Spin {
        let shares_core = AdaptiveSpin::of_thread().shares_core();
        Spin {
            left: if shares_core { 1 } else { rounds_per_clock },
            rounds_per_clock,
            shares_core,
            skips_clock: shares_core && AdaptiveSpin::skip_clock(),
            limit: None,
        }
    }

    /// Counts a round. Returns true if the spin should end.
    #[inline]
    fn is_over(&mut self) -> bool {
        self.left -= 1;
        self.left == 0 && self.is_over_now()
    }

    #[cold]
    fn is_over_now(&mut self) -> bool {
        if std::mem::take(&mut self.skips_clock) {
            self.left = 1;
            std::thread::yield_now();
            return false;
        }
        let now = Instant::now();
        let (begin, spin_ns) = *self.limit.get_or_insert_with(|| {
            // Like a packet, a call passes through threads that all take longer if one of them sleeps.
            AdaptiveSpin::change(|spin| spin.set_by_packets(true));
            (now, AdaptiveSpin::of_thread().spin_ns())
        });
        let spun_ns = (now - begin).as_nanos() as u64;
        if spun_ns >= spin_ns {
            // The wait continues, and its end records its duration.
            AdaptiveSpin::change(|spin| spin.record_spin(spun_ns));
            return true;
        }
        if self.shares_core || spun_ns >= SPIN_SHORT_NS {
            std::thread::yield_now();
            let yielded_ns = now.elapsed().as_nanos() as u64;
            if yielded_ns > YIELD_LONG_NS {
                AdaptiveSpin::change(AdaptiveSpin::record_contention);
                return true;
            }
            if self.shares_core != AdaptiveSpin::is_shared(yielded_ns) {
                AdaptiveSpin::change(|spin| spin.record_yield(yielded_ns));
                self.shares_core = !self.shares_core;
            }
        }
        self.left = if self.shares_core { 1 } else { self.rounds_per_clock };
        false
    }

    /// Records that the reply arrived during the spin.
    #[inline]
    fn succeed(&self) {
        if self.limit.is_some() {
            AdaptiveSpin::change(|spin| spin.record_wait(0));
        }
    }
}
