//! Carrying accesses out by posting: as many parts under way as keep the fabric busy, and what is left behind them.
//!
//! ```text
//!   the next bytes ── loads and stores reach them ──> copied
//!        └─ they do not ──> ready ── one post for each peer ──> under way ──> landed
//! ```
//!
//! Parts are made ready in order, and posted when they have a slice's bytes: the next are copied while the first are on their way, and the fabric
//! finds what was copied in the processor's cache.  When the window is full, the oldest quarter lands.  The order holds for each
//! peer, and so for each byte: it has one owner while an operation on it is under way.

use std::mem::take;

use halite_fabric::{Lane, Local, Operation as Request, PeerId, PostCause, PostError, Status, WorkRequest};
use halite_tier::access::{Atomic, Blocked, Count, SlotRef};
use halite_tier::rpc::AtomicCall;
use halite_tier::rpc::atomic::ATOMIC_IMM;
use smallvec::SmallVec;

use crate::driver::Driver;
use crate::metrics::Timed;
use crate::posted::{Cursor, Ended, NoStaging, Part, PendingOperation, Pipeline, SLICE_BYTES_MAX, low};
use crate::runtime::lanes::{ACCESSES, CALLS};

/// Accesses of one kind that are made in order.
pub(crate) trait Transfer {
    /// How many.
    fn count(&self) -> usize;

    /// Bytes of one of them.
    fn len(&self, index: usize) -> usize;

    /// Does some bytes from `at` on, where loads and stores reach.
    fn step(&mut self, at: Cursor) -> Result<usize, Blocked>;

    /// Where the bytes from `at` on are; does nothing.
    fn locate(&self, at: Cursor) -> Result<usize, Blocked>;

    /// By which handle one of them is made, that is known to be about to change.
    fn handle(&self, _index: usize) -> SlotRef {
        unreachable!("no handle is used")
    }

    /// What is done to them.
    fn kind(&self) -> Kind;

    /// `len` bytes from `at` on, of a write.
    fn source(&self, _at: Cursor, _len: usize) -> &[u8] {
        unreachable!("nothing is written")
    }

    /// Where `len` bytes from `at` on go, of a read.
    fn target(&mut self, _at: Cursor, _len: usize) -> &mut [u8] {
        unreachable!("nothing is read")
    }

    /// What the word held before an atomic.
    fn set_old(&mut self, _old: u64) {
        unreachable!("no word is changed")
    }
}

/// What a transfer does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    /// To one aligned word.
    Atomic(Atomic),
}

/// Which access failed, and why.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) index: usize,
    pub(crate) stop: Stop,
    /// Whether some of that access has been done, or may have been.
    pub(crate) partly: bool,
    /// Whether some of later ones has been, or may have been.
    pub(crate) later: bool,
}

/// Why a transfer does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The handle does not permit it, or leads nowhere.
    Blocked(Blocked),
    /// What was posted failed.
    Status(PeerId, Status),
    /// The connection is down.
    Unreachable(PeerId),
    NoStaging,
    /// The node is leaving.
    Closed,
}

/// Why no more can be made ready now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    /// There is no more.
    End,
    /// As much is ready as is posted at a time.
    Batch,
    /// As much is under way as may be.
    Window,
    /// Staging memory is short, and some of it is in use here.
    Short,
    /// The place is about to change.
    Changing,
}

/// The first part that failed, in the order of the transfer.
#[derive(Debug)]
struct Failure {
    at: Cursor,
    end: Cursor,
    stop: Stop,
}

impl Driver {
    /// Makes all accesses from `at` on, waiting where it must.  When it fails, nothing of it is under way any more.
    pub(crate) async fn carry<T: Transfer>(&self, transfer: &mut T, at: Cursor) -> Result<(), Failed> {
        let mut carrying = Carrying {
            driver: self,
            transfer,
            at,
            ready: SmallVec::new(),
            pipeline: Pipeline::default(),
            failure: None,
            last_done: None,
            time: Time::NotPosted,
        };
        carrying.run().await
    }

    /// Posts one access whose rest from `at` on is a single part, as most are; [`Driver::land_alone`] ends it.  `None` if it takes more than
    /// that, or some waiting first; then nothing has been done.  What is under way is short: a task that has it in its own future needs no
    /// memory beside that.
    pub(crate) fn post_alone<T: Transfer>(&self, transfer: &T, at: Cursor) -> Option<Alone<'_>> {
        if at.index + 1 != transfer.count() {
            return None;
        }
        let rest = transfer.len(at.index) - at.done;
        let Err(Blocked::Post { peer, len, .. }) = transfer.locate(at) else { return None };
        if len != rest as u64 || rest > SLICE_BYTES_MAX {
            return None;
        }
        let mut part = self.prepare(transfer, at, peer, true).ok().filter(|part| part.len == rest)?;
        let time = self.begin_time(transfer.kind());
        self.expect_round_trip(peer);
        self.shared.fabric.post(peer, lane_of(&part), &[request(transfer, &part)]).ok()?;
        part.operation.set_posted();
        Some(Alone { operation: part.operation, peer, at, time })
    }

    /// What was posted alone has ended.
    pub(crate) fn land_alone<T: Transfer>(
        &self,
        transfer: &mut T,
        alone: &Alone<'_>,
        ended: Ended,
    ) -> Result<(), Failed> {
        let (kind, at) = (transfer.kind(), alone.at);
        let len = transfer.len(at.index) - at.done;
        self.end_time(kind, alone.time);
        self.count_landed(kind, len, ended.status);
        match kind {
            _ if ended.status != Status::Success => {
                let stop = Stop::Status(alone.peer, ended.status);
                return Err(Failed { index: at.index, stop, partly: at.done > 0, later: false });
            }
            Kind::Read => alone.operation.unstage(transfer.target(at, len)),
            Kind::Write => {}
            Kind::Atomic(_) => transfer.set_old(ended.old),
        }
        Ok(())
    }

    /// Begins a part at a place whose next change will wait for it, if it is still one of `peer`.  It `is_only` if nothing else of its
    /// transfer is under way.
    fn prepare<T: Transfer>(
        &self,
        transfer: &T,
        at: Cursor,
        peer: PeerId,
        is_only: bool,
    ) -> Result<Part<'_>, Unready> {
        let shared = &self.shared;
        let capabilities = || shared.fabric.capabilities(peer);
        let kind = transfer.kind();
        let is_call = matches!(kind, Kind::Atomic(_)) && !capabilities().atomics.are_coherent();
        let begun = if is_call { shared.posted.begin_call(peer) } else { Some(shared.posted.begin(peer)) };
        let mut operation = begun.ok_or(Unready::Hold(Hold::Window))?;
        let (address, len) = match transfer.locate(at) {
            Err(Blocked::Post { peer: found, address, len }) if found == peer => (address, len),
            _ => return Err(Unready::Moved),
        };
        let len = len.min(SLICE_BYTES_MAX as u64) as usize;
        let is_staged = match kind {
            Kind::Read => true,
            Kind::Write => len > capabilities().inline_bytes_max,
            Kind::Atomic(_) => false,
        };
        if is_staged {
            match operation.stage(&*shared.fabric, peer, len, is_only) {
                Ok(true) => {}
                Ok(false) => return Err(Unready::Hold(Hold::Short)),
                Err(NoStaging) => return Err(Unready::NoStaging),
            }
        }
        let call = match kind {
            Kind::Atomic(atomic) if is_call => {
                Some(AtomicCall { id: operation.id(), word: address, atomic }.emit())
            }
            _ => None,
        };
        Ok(Part { operation, peer, address, at, len, call })
    }

    fn begin_time(&self, kind: Kind) -> Time {
        let before = self.shared.path.count(counted(kind).1, 0);
        if Timed::is_next(before) { Time::Since(self.now_ns()) } else { Time::NotTaken }
    }

    fn end_time(&self, kind: Kind, time: Time) {
        if let Time::Since(begin_ns) = time {
            let ns = self.now_ns().saturating_sub(begin_ns);
            self.shared.timings.of(counted(kind).0).note(ns);
        }
    }

    fn count_landed(&self, kind: Kind, len: usize, status: Status) {
        if status != Status::Success {
            return;
        }
        let path = &self.shared.path;
        match counted(kind) {
            (_, count, Some(of_bytes)) => path.count_one(count, of_bytes, len as u64),
            (_, count, None) => {
                path.count(count, 1);
            }
        }
    }
}

fn lane_of(part: &Part<'_>) -> Lane {
    if part.call.is_some() { CALLS } else { ACCESSES }
}

/// As what it is timed, how many there were before, and their bytes.
fn counted(kind: Kind) -> (Timed, Count, Option<Count>) {
    match kind {
        Kind::Read => (Timed::Read, Count::PostedReads, Some(Count::PostedReadBytes)),
        Kind::Write => (Timed::Write, Count::PostedWrites, Some(Count::PostedWriteBytes)),
        Kind::Atomic(_) => (Timed::Atomic, Count::PostedAtomics, None),
    }
}

fn request<'s, T: Transfer>(transfer: &'s T, part: &'s Part<'_>) -> WorkRequest<'s> {
    let remote = part.address;
    let operation = match (transfer.kind(), &part.call) {
        // The answer ends the operation, or the failure of the send, which alone completes.
        (_, Some(bytes)) => {
            let operation = Request::Send { bytes, imm: ATOMIC_IMM };
            return WorkRequest { id: part.operation.id(), operation, signalled: false, solicited: true };
        }
        (Kind::Write, _) => {
            let source = transfer.source(part.at, part.len);
            let local = part.operation.staged_source(source).unwrap_or(Local::Inline(source));
            Request::Write { local, remote }
        }
        (Kind::Read, _) => {
            let local = part.operation.staged_target(part.len);
            Request::Read { local: local.expect("reads land in staging memory"), remote }
        }
        (Kind::Atomic(Atomic::FetchAdd { add }), _) => Request::FetchAdd { remote, add },
        (Kind::Atomic(Atomic::CompareSwap { expected, new }), _) => {
            Request::CompareSwap { remote, expected, new }
        }
    };
    WorkRequest { id: part.operation.id(), operation, signalled: true, solicited: true }
}

/// The only part of an access, under way.
pub(crate) struct Alone<'a> {
    operation: PendingOperation<'a>,
    peer: PeerId,
    at: Cursor,
    time: Time,
}

impl Alone<'_> {
    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> impl Future<Output = Ended> {
        self.operation.ended()
    }
}

/// A transfer that is being carried out.
struct Carrying<'a, T> {
    driver: &'a Driver,
    transfer: &'a mut T,
    /// What comes before has been done, or is ready or under way.
    at: Cursor,
    /// Parts that are to be posted.
    ready: SmallVec<[Part<'a>; 1]>,
    pipeline: Pipeline<'a>,
    failure: Option<Failure>,
    /// Where the last part begins of those that have changed something, or may have.
    last_done: Option<Cursor>,
    time: Time,
}

/// Whether an access is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Time {
    /// Nothing has been posted yet.
    NotPosted,
    /// Others are.
    NotTaken,
    /// It is, from there.
    Since(u64),
}

impl<'a, T: Transfer> Carrying<'a, T> {
    async fn run(&mut self) -> Result<(), Failed> {
        let shared = &self.driver.shared;
        loop {
            // Read before the attempt, so that what happens during it is not missed.
            let changes = shared.handle_changes.count();
            let progress = shared.posted.progress_count();
            let hold = self.make_ready();
            self.post_ready();
            if hold == Hold::Batch && self.ready.is_empty() {
                self.driver.poll_in_passing();
                continue;
            }
            if !self.pipeline.is_empty() {
                let is_last = hold == Hold::End && self.ready.is_empty();
                // The end of what is under way makes room.
                let left = if is_last { 0 } else { low(self.pipeline.len()) };
                self.land_until(left).await;
            } else if let Some(first) = self.ready.first() {
                let (at, len) = (first.at, first.len);
                match self.driver.is_closed() {
                    true => self.fail(at, len, Stop::Closed),
                    false => shared.posted.progress_after(progress).await,
                }
            } else {
                match hold {
                    Hold::End => return self.result(),
                    _ if self.driver.is_closed() => self.fail(self.at, 0, Stop::Closed),
                    Hold::Changing => {
                        let handle = self.transfer.handle(self.at.index);
                        shared.handle_changes.after_of(changes, handle.index).await;
                    }
                    Hold::Batch | Hold::Window | Hold::Short => shared.posted.progress_after(progress).await,
                }
            }
        }
    }

    // Failures.

    /// The part of `len` bytes at `at` fails, and what comes behind it is not posted any more.
    fn fail(&mut self, at: Cursor, len: usize, stop: Stop) {
        if self.failure.as_ref().is_none_or(|first| at < first.at) {
            self.failure = Some(Failure { at, end: self.after(at, len), stop });
            self.ready.retain(|part| part.at < at);
        }
    }

    /// Something has been changed from `at` on, or may have been.
    fn note_done(&mut self, at: Cursor) {
        if !matches!(self.transfer.kind(), Kind::Read) {
            self.last_done = self.last_done.max(Some(at));
        }
    }

    fn result(&mut self) -> Result<(), Failed> {
        self.driver.end_time(self.transfer.kind(), self.time);
        let Some(Failure { at, end, stop }) = self.failure.take() else { return Ok(()) };
        let is_behind = |begin: Cursor| self.last_done.is_some_and(|last| last >= begin);
        // Parts behind the one that failed: those up to the last may have been done.
        let partly = at.done > 0 || end.index == at.index && is_behind(end) && at < end;
        let later = is_behind(Cursor { index: at.index + 1, done: 0 });
        Err(Failed { index: at.index, stop, partly, later })
    }

    // Posting.

    /// Does what loads and stores reach, and makes parts of the rest ready, as far as both can be done now.
    fn make_ready(&mut self) -> Hold {
        let mut bytes: usize = self.ready.iter().map(|part| part.len).sum();
        while self.at.index < self.transfer.count() && self.failure.is_none() {
            let at = self.at;
            match self.transfer.step(at) {
                Ok(len) => {
                    self.at = self.after(at, len);
                    self.note_done(at);
                }
                Err(Blocked::Post { peer, .. }) => {
                    if !self.pipeline.has_room_beside(self.ready.len(), bytes) {
                        return Hold::Window;
                    }
                    if bytes >= SLICE_BYTES_MAX {
                        return Hold::Batch;
                    }
                    // Who has nothing under way waits for nothing that others wait for.
                    let is_only = self.ready.is_empty() && self.pipeline.is_empty();
                    match self.driver.prepare(&*self.transfer, at, peer, is_only) {
                        Ok(part) => {
                            self.at = self.after(at, part.len);
                            bytes += part.len;
                            self.ready.push(part);
                        }
                        Err(Unready::Moved) => {}
                        Err(Unready::Hold(hold)) => return hold,
                        Err(Unready::NoStaging) => self.fail(at, 0, Stop::NoStaging),
                    }
                }
                Err(Blocked::Changing) => return Hold::Changing,
                Err(blocked) => self.fail(at, 0, Stop::Blocked(blocked)),
            }
        }
        Hold::End
    }

    /// Posts what is ready, in one go for each peer, as far as the fabric takes it.
    fn post_ready(&mut self) {
        if self.time == Time::NotPosted && !self.ready.is_empty() {
            self.time = self.driver.begin_time(self.transfer.kind());
        }
        // A peer's parts stay in their order.
        self.ready.sort_by_key(|part| part.peer);
        let mut ready = take(&mut self.ready);
        let mut refused: Option<(Cursor, usize, PeerId)> = None;
        for parts in ready.chunk_by_mut(|one, next| one.peer == next.peer) {
            let peer = parts[0].peer;
            self.driver.expect_round_trip(peer);
            let (count, cause) = self.post(peer, parts);
            let (posted, left) = parts.split_at_mut(count);
            posted.iter_mut().for_each(|part| part.operation.set_posted());
            if let (Some(PostCause::NotConnected), Some(part)) = (cause, left.first())
                && refused.is_none_or(|(at, ..)| part.at < at)
            {
                refused = Some((part.at, part.len, peer));
            }
        }
        for part in ready {
            match part.operation.is_posted() {
                true => self.pipeline.push(part),
                false => self.ready.push(part),
            }
        }
        if let Some((at, len, peer)) = refused {
            self.fail(at, len, Stop::Unreachable(peer));
        }
    }

    /// How many of `parts` have been posted, and why no more.
    fn post(&self, peer: PeerId, parts: &[Part<'_>]) -> (usize, Option<PostCause>) {
        let lane = lane_of(&parts[0]);
        let requests: SmallVec<[WorkRequest<'_>; 1]> =
            parts.iter().map(|part| request(&*self.transfer, part)).collect();
        match self.driver.shared.fabric.post(peer, lane, &requests) {
            Ok(()) => (requests.len(), None),
            Err(PostError { cause: PostCause::Malformed, .. }) => {
                unreachable!("requests keep to the fabric's limits")
            }
            Err(PostError { posted, cause, .. }) => (posted, Some(cause)),
        }
    }

    /// Where `len` bytes from `at` on end.
    fn after(&self, at: Cursor, len: usize) -> Cursor {
        let done = at.done + len;
        if done == self.transfer.len(at.index) {
            Cursor { index: at.index + 1, done: 0 }
        } else {
            Cursor { index: at.index, done }
        }
    }

    // Landing.

    /// Waits for the oldest parts, until only so many are under way.
    async fn land_until(&mut self, left: usize) {
        while self.pipeline.len() > left
            && let Some(ended) = self.pipeline.oldest_ended().await
        {
            self.land(ended);
        }
    }

    /// The oldest part has ended.
    fn land(&mut self, ended: Ended) {
        let Some(part) = self.pipeline.oldest() else { return };
        let (at, len, peer) = (part.at, part.len, part.peer);
        self.driver.count_landed(self.transfer.kind(), len, ended.status);
        match self.transfer.kind() {
            _ if ended.status != Status::Success => self.fail(at, len, Stop::Status(peer, ended.status)),
            Kind::Read => part.operation.unstage(self.transfer.target(at, len)),
            Kind::Write => {}
            Kind::Atomic(_) => self.transfer.set_old(ended.old),
        }
        if may_be_done(ended.status) {
            self.note_done(at);
        }
        self.pipeline.remove_oldest();
    }
}

/// Why a part is not ready.
enum Unready {
    /// Its place has changed; look again.
    Moved,
    Hold(Hold),
    NoStaging,
}

/// Whether a request that ended so has been done, or may have been.
fn may_be_done(status: Status) -> bool {
    match status {
        Status::Success | Status::PeerGone | Status::RetryExceeded => true,
        Status::RemoteAccess | Status::Unmapped | Status::Flushed => false,
    }
}
