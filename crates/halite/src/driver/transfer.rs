//! Executes accesses in pipelined parts: copies a part if loads and stores reach it, and posts it otherwise.
//!
//! ```text
//!   the next bytes ── in reach of loads and stores ──> copied
//!        └─ out of reach ──> ready ── one post for each peer ──> posted ──> landed
//! ```
//!
//! Parts become ready in order, and are posted as soon as they add up to a slice. So the next parts are copied to
//! staging memory while the first are in flight, and the fabric finds the copied bytes in the processor's cache. When
//! the window is full, the thread waits for the oldest quarter to complete. Operations on one peer keep their order,
//! and so do operations on one byte, because a byte has a single owner while an operation on it is posted.

use std::mem::take;

use halite_fabric::{Lane, Local, Operation as Request, PeerId, PostCause, PostError, Status, WorkRequest};
use halite_tier::access::{Atomic, Blocked, Count, SlotRef};
use halite_tier::qos::Priority;
use halite_tier::rpc::AtomicCall;
use halite_tier::rpc::atomic::ATOMIC_IMM;
use smallvec::SmallVec;

use crate::driver::Driver;
use crate::driver::shaping::{self, Direction, Turn};
use crate::metrics::Timed;
use crate::posted::{
    Cursor, DetachedOperation, NoStaging, OperationResult, Part, PendingOperation, Pipeline, SLICE_BYTES_MAX,
    bytes_max, refill_threshold,
};
use crate::runtime::lanes::{CALLS, Queue, TRANSFERS};

/// The number of bytes that loads and stores reached. If they reached none, the peer to which the whole access may be
/// posted, if there is one. Small, since the cause would cost accesses by loads and stores some instructions.
pub(crate) type DirectResult = Result<usize, Option<PeerId>>;

/// Returns the peer to which an access of `len` bytes may be posted as a whole.
pub(crate) fn peer_of(blocked: &Blocked, len: usize) -> Option<PeerId> {
    match *blocked {
        Blocked::Post { peer, len: reached, .. } if reached == len as u64 => Some(peer),
        _ => None,
    }
}

/// A list of accesses of one kind, which are executed in order.
pub(crate) trait Transfer {
    fn count(&self) -> usize;

    /// Returns the length of access `index`, in bytes.
    fn len(&self, index: usize) -> usize;

    /// Executes the access at `at` for the next bytes that loads and stores reach. Returns the number of bytes.
    fn step(&mut self, at: Cursor) -> Result<usize, Blocked>;

    /// Returns how many bytes from `at` on loads and stores reach, or why they reach none. Has no side effects.
    fn locate(&self, at: Cursor) -> Result<usize, Blocked>;

    /// Returns the handle of access `index`, which a change of its region blocks.
    fn handle(&self, _index: usize) -> SlotRef {
        unreachable!("no handle is used")
    }

    fn kind(&self) -> Kind;

    /// Returns the priority of the accesses; `None` if no policy delays them and they count for no priority.
    fn priority(&self) -> Option<Priority> {
        None
    }

    /// Returns the lane of the accesses.
    fn lane(&self) -> Lane {
        TRANSFERS
    }

    /// Returns the `len` bytes from `at` on that a write stores.
    fn source(&self, _at: Cursor, _len: usize) -> &[u8] {
        unreachable!("nothing is written")
    }

    /// Returns the buffer into which a read puts the `len` bytes from `at` on.
    fn target(&mut self, _at: Cursor, _len: usize) -> &mut [u8] {
        unreachable!("nothing is read")
    }

    /// Stores the value that the word had before an atomic.
    fn set_old(&mut self, _old: u64) {
        unreachable!("no word is changed")
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    /// An atomic on one aligned 64-bit word.
    Atomic(Atomic),
}

/// The access that failed, and its cause.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) index: usize,
    pub(crate) stop: Stop,
    /// True if some bytes of this access may have been accessed.
    pub(crate) partly: bool,
    /// True if some later accesses may have been executed.
    pub(crate) later: bool,
}

#[derive(Debug)]
pub(crate) enum Stop {
    /// The handle is invalid or does not permit the access.
    Blocked(Blocked),
    /// A posted operation on the peer's memory failed with this status.
    Status(PeerId, Status),
    Unreachable(PeerId),
    NoStaging,
    Closed,
}

/// Reason why no more parts can become ready now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaitReason {
    /// All parts have been prepared.
    End,
    /// The ready parts fill a slice, so they are posted first.
    Batch,
    /// The window of posted operations is full.
    Window,
    /// Staging memory is short, and this transfer uses some of it.
    StagingShort,
    /// The region is about to change.
    Changing,
    /// The node's policy delays the transfer, which asks again at this time on the node's clock, in nanoseconds.
    Delayed(u64),
}

/// The first part that failed, in the order of the transfer.
#[derive(Debug)]
struct Failure {
    at: Cursor,
    end: Cursor,
    stop: Stop,
}

impl Driver {
    /// Executes all accesses from `at` on. After a failure, no operation of the transfer is in progress any more.
    pub(crate) async fn run_transfer<T: Transfer>(&self, transfer: &mut T, at: Cursor) -> Result<(), Failed> {
        let mut run = TransferRun {
            driver: self,
            transfer,
            at,
            ready: SmallVec::new(),
            pipeline: Pipeline::default(),
            bytes_max: bytes_max(None),
            failure: None,
            last_done: None,
            time: Time::NotPosted,
        };
        run.run().await
    }

    /// Posts an access that stopped with `reached`, if it is a single part, the most common case;
    /// [`Driver::land_single`] completes it. Returns `None`, without side effects, if the access needs more parts or must
    /// wait first. [`SinglePart`] is small, so a task can keep it in its own future without an allocation.
    pub(crate) fn post_single<T: Transfer>(
        &self,
        transfer: &T,
        reached: &DirectResult,
        is_awaited: bool,
    ) -> Option<SinglePart<'_>> {
        let Err(Some(peer)) = *reached else { return None };
        let whole = transfer.len(0);
        let Turn::Now { bytes_max } = self.turn(transfer, whole) else { return None };
        if whole > bytes_max {
            return None;
        }
        let part = self.prepare(transfer, Cursor::default(), peer, bytes_max, true);
        let mut part = part.ok().filter(|part| part.len == whole)?;
        let time = self.begin_time(transfer.kind());
        self.expect_round_trip(peer);
        self.shared
            .fabric
            .post(peer, lane_of(transfer, &part), &[request(transfer, &part, is_awaited)])
            .ok()?;
        part.operation.set_posted();
        let shaped = self.record_posted(transfer, whole, is_awaited);
        Some(SinglePart { operation: part.operation, peer, time, shaped })
    }

    /// Returns when the next part of the transfer, of `bytes` bytes, may start under the node's policy.
    #[inline]
    fn turn<T: Transfer>(&self, transfer: &T, bytes: usize) -> Turn {
        match queue_of(transfer) {
            Some(queue) if self.shared.shaping.is_active() => {
                self.shared.shaping.turn(self.now_ns(), direction_of(transfer.kind()), queue, bytes)
            }
            _ => Turn::Now { bytes_max: SLICE_BYTES_MAX },
        }
    }

    #[inline]
    fn record_posted<T: Transfer>(
        &self,
        transfer: &T,
        bytes: usize,
        is_awaited: bool,
    ) -> Option<shaping::Posted> {
        if !self.shared.shaping.is_active() {
            return None;
        }
        self.record_start(direction_of(transfer.kind()), queue_of(transfer)?, bytes, is_awaited)
    }

    #[inline]
    fn record_landed<T: Transfer>(&self, transfer: &T, bytes: usize, posted: Option<shaping::Posted>) {
        if self.shared.shaping.is_active()
            && let Some(priority) = transfer.priority()
        {
            self.record_end(direction_of(transfer.kind()), priority, bytes, posted);
        }
    }

    pub(crate) fn attach(&self, part: DetachedPart) -> SinglePart<'_> {
        let DetachedPart { operation, peer, time, shaped } = part;
        SinglePart { operation: self.shared.posted.attach(operation), peer, time, shaped }
    }

    /// Completes an operation posted by [`Driver::post_single`].
    pub(crate) fn land_single<T: Transfer>(
        &self,
        transfer: &mut T,
        single: &SinglePart<'_>,
        ended: OperationResult,
    ) -> Result<(), Failed> {
        let (kind, len) = (transfer.kind(), transfer.len(0));
        self.end_time(kind, single.time);
        self.count_landed(kind, len, ended.status);
        self.record_landed(transfer, len, single.shaped);
        match kind {
            _ if ended.status != Status::Success => {
                let stop = Stop::Status(single.peer, ended.status);
                return Err(Failed { index: 0, stop, partly: false, later: false });
            }
            Kind::Read => single.operation.unstage(transfer.target(Cursor::default(), len)),
            Kind::Write => {}
            Kind::Atomic(_) => transfer.set_old(ended.old),
        }
        Ok(())
    }

    /// Begins a part at `at` if its memory still belongs to `peer`; later changes of that memory wait for the part.
    /// The part has at most `bytes_max` bytes. `is_only` is true if no other part of the transfer holds staging memory.
    fn prepare<T: Transfer>(
        &self,
        transfer: &T,
        at: Cursor,
        peer: PeerId,
        bytes_max: usize,
        is_only: bool,
    ) -> Result<Part<'_>, NotReady> {
        let shared = &self.shared;
        let capabilities = || shared.fabric.capabilities(peer);
        let kind = transfer.kind();
        let is_call = matches!(kind, Kind::Atomic(_)) && !capabilities().atomics.are_coherent();
        let begun = if is_call { shared.posted.begin_call(peer) } else { Some(shared.posted.begin(peer)) };
        let mut operation = begun.ok_or(NotReady::Wait(WaitReason::Window))?;
        let (address, len) = match transfer.locate(at) {
            Err(Blocked::Post { peer: found, address, len }) if found == peer => (address, len),
            _ => return Err(NotReady::Moved),
        };
        let len = len.min(bytes_max as u64) as usize;
        let is_staged = match kind {
            Kind::Read => true,
            Kind::Write => len > capabilities().inline_bytes_max,
            Kind::Atomic(_) => false,
        };
        if is_staged {
            match operation.stage(&*shared.fabric, peer, len, is_only) {
                Ok(true) => {}
                Ok(false) => return Err(NotReady::Wait(WaitReason::StagingShort)),
                Err(NoStaging) => return Err(NotReady::NoStaging),
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
        let before = self.shared.path.count(metrics_of(kind).1, 0);
        if Timed::is_next(before) { Time::Since(self.now_ns()) } else { Time::NotSampled }
    }

    fn end_time(&self, kind: Kind, time: Time) {
        if let Time::Since(begin_ns) = time {
            let ns = self.now_ns().saturating_sub(begin_ns);
            self.shared.timings.of(metrics_of(kind).0).record(ns);
        }
    }

    fn count_landed(&self, kind: Kind, len: usize, status: Status) {
        if status != Status::Success {
            return;
        }
        let path = &self.shared.path;
        match metrics_of(kind) {
            (_, count, Some(of_bytes)) => path.count_one(count, of_bytes, len as u64),
            (_, count, None) => {
                path.count(count, 1);
            }
        }
    }
}

fn direction_of(kind: Kind) -> Direction {
    if matches!(kind, Kind::Read) { Direction::In } else { Direction::Out }
}

fn queue_of<T: Transfer>(transfer: &T) -> Option<Queue> {
    Some(Queue { priority: transfer.priority()?, flow: transfer.lane().flow })
}

fn lane_of<T: Transfer>(transfer: &T, part: &Part<'_>) -> Lane {
    if part.call.is_some() { CALLS } else { transfer.lane() }
}

/// Returns the histogram of an operation's kind, and its counters of operations and bytes.
fn metrics_of(kind: Kind) -> (Timed, Count, Option<Count>) {
    match kind {
        Kind::Read => (Timed::Read, Count::PostedReads, Some(Count::PostedReadBytes)),
        Kind::Write => (Timed::Write, Count::PostedWrites, Some(Count::PostedWriteBytes)),
        Kind::Atomic(_) => (Timed::Atomic, Count::PostedAtomics, None),
    }
}

fn request<'s, T: Transfer>(transfer: &'s T, part: &'s Part<'_>, solicited: bool) -> WorkRequest<'s> {
    let remote = part.address;
    let operation = match (transfer.kind(), &part.call) {
        // The answer, or the failure of the send, ends the operation. A successful send does not complete.
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
    WorkRequest { id: part.operation.id(), operation, signalled: true, solicited }
}

/// A posted operation that is the only part of its access.
pub(crate) struct SinglePart<'a> {
    operation: PendingOperation<'a>,
    peer: PeerId,
    time: Time,
    /// Record of the operation under the node's policy; `None` without a policy.
    shaped: Option<shaping::Posted>,
}

/// A [`SinglePart`] without its borrow of the driver. The owner must attach it to the driver again before dropping it.
#[derive(Debug)]
pub(crate) struct DetachedPart {
    operation: DetachedOperation,
    peer: PeerId,
    time: Time,
    /// Record of the operation under the node's policy; `None` without a policy.
    shaped: Option<shaping::Posted>,
}

impl SinglePart<'_> {
    pub(crate) fn detach(self) -> DetachedPart {
        let SinglePart { operation, peer, time, shaped } = self;
        DetachedPart { operation: operation.detach(), peer, time, shaped }
    }

    pub(crate) fn ended(&mut self) -> impl Future<Output = OperationResult> {
        self.operation.ended()
    }
}

struct TransferRun<'a, T> {
    driver: &'a Driver,
    transfer: &'a mut T,
    /// The position up to which everything is done, ready or posted.
    at: Cursor,
    ready: SmallVec<[Part<'a>; 1]>,
    pipeline: Pipeline<'a>,
    /// Limit of the bytes in progress; below it, the transfer posts more.
    bytes_max: usize,
    failure: Option<Failure>,
    /// Begin of the last part that may have changed memory; `None` if there is no such part.
    last_done: Option<Cursor>,
    time: Time,
}

/// Measurement of the duration of a transfer, taken for a sample of transfers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Time {
    NotPosted,
    NotSampled,
    /// Begin, in nanoseconds on the node's clock.
    Since(u64),
}

impl<'a, T: Transfer> TransferRun<'a, T> {
    async fn run(&mut self) -> Result<(), Failed> {
        let shared = &self.driver.shared;
        loop {
            // Read before the attempt, so that changes during it are not missed.
            let changes = shared.handle_changes.count();
            let progress = shared.posted.progress_count();
            let reason = self.make_ready();
            self.post_ready();
            if reason == WaitReason::Batch && self.ready.is_empty() {
                self.driver.poll_in_blocking_wait();
                continue;
            }
            if let (WaitReason::Delayed(turn_ns), true) = (reason, self.ready.is_empty()) {
                self.await_turn(turn_ns).await;
                continue;
            }
            if !self.pipeline.is_empty() {
                let is_last = reason == WaitReason::End && self.ready.is_empty();
                // Completions of posted parts make room.
                let left = if is_last { 0 } else { refill_threshold(self.pipeline.len()) };
                self.land_until(left).await;
            } else if let Some(first) = self.ready.first() {
                let (at, len) = (first.at, first.len);
                match self.driver.is_closed() {
                    true => self.fail(at, len, Stop::Closed),
                    false => shared.posted.progress_after(progress).await,
                }
            } else {
                match reason {
                    WaitReason::End => return self.result(),
                    _ if self.driver.is_closed() => self.fail(self.at, 0, Stop::Closed),
                    WaitReason::Changing => {
                        let handle = self.transfer.handle(self.at.index);
                        shared.handle_changes.wait_for(changes, handle.index).await;
                    }
                    WaitReason::Batch
                    | WaitReason::Window
                    | WaitReason::StagingShort
                    | WaitReason::Delayed(_) => shared.posted.progress_after(progress).await,
                }
            }
        }
    }

    // Failures.

    /// Fails the part of `len` bytes at `at`, and drops unposted parts after it.
    fn fail(&mut self, at: Cursor, len: usize, stop: Stop) {
        if self.failure.as_ref().is_none_or(|first| at < first.at) {
            self.failure = Some(Failure { at, end: self.after(at, len), stop });
            self.ready.retain(|part| part.at < at);
        }
    }

    /// Records that the part at `at` may have changed memory.
    fn record_change(&mut self, at: Cursor) {
        if !matches!(self.transfer.kind(), Kind::Read) {
            self.last_done = self.last_done.max(Some(at));
        }
    }

    fn result(&mut self) -> Result<(), Failed> {
        self.driver.end_time(self.transfer.kind(), self.time);
        let Some(Failure { at, end, stop }) = self.failure.take() else { return Ok(()) };
        let is_behind = |begin: Cursor| self.last_done.is_some_and(|last| last >= begin);
        // Parts after the one that failed, up to the last one recorded, may have been carried out.
        let partly = at.done > 0 || end.index == at.index && is_behind(end) && at < end;
        let later = is_behind(Cursor { index: at.index + 1, done: 0 });
        Err(Failed { index: at.index, stop, partly, later })
    }

    // Posting.

    /// Copies the bytes that loads and stores reach, and prepares parts of the others. Stops at the end or at a
    /// [`WaitReason`].
    fn make_ready(&mut self) -> WaitReason {
        let mut bytes: usize = self.ready.iter().map(|part| part.len).sum();
        while self.at.index < self.transfer.count() && self.failure.is_none() {
            let at = self.at;
            match self.transfer.step(at) {
                Ok(len) => {
                    self.at = self.after(at, len);
                    self.record_change(at);
                }
                Err(Blocked::Post { peer, .. }) => {
                    if !self.pipeline.has_room_with(self.ready.len(), bytes, self.bytes_max) {
                        return WaitReason::Window;
                    }
                    let left = self.transfer.len(at.index) - at.done;
                    let bytes_max = match self.driver.turn(&*self.transfer, left) {
                        Turn::Now { bytes_max } => bytes_max,
                        Turn::At(turn_ns) => return WaitReason::Delayed(turn_ns),
                    };
                    if bytes >= bytes_max {
                        return WaitReason::Batch;
                    }
                    // A transfer with nothing posted must not wait for staging memory, because other transfers wait for
                    // it in turn.
                    let is_only = self.ready.is_empty() && self.pipeline.is_empty();
                    match self.driver.prepare(&*self.transfer, at, peer, bytes_max, is_only) {
                        Ok(part) => {
                            self.at = self.after(at, part.len);
                            bytes += part.len;
                            self.ready.push(part);
                        }
                        Err(NotReady::Moved) => {}
                        Err(NotReady::Wait(reason)) => return reason,
                        Err(NotReady::NoStaging) => self.fail(at, 0, Stop::NoStaging),
                    }
                }
                Err(Blocked::Changing) => return WaitReason::Changing,
                Err(blocked) => self.fail(at, 0, Stop::Blocked(blocked)),
            }
        }
        WaitReason::End
    }

    /// Posts the ready parts, in one call for each peer, until the fabric refuses one.
    fn post_ready(&mut self) {
        if self.time == Time::NotPosted && !self.ready.is_empty() {
            self.time = self.driver.begin_time(self.transfer.kind());
        }
        // Stable, so that the parts of a peer stay in order.
        self.ready.sort_by_key(|part| part.peer);
        let mut ready = take(&mut self.ready);
        let mut refused: Option<(Cursor, usize, PeerId)> = None;
        for parts in ready.chunk_by_mut(|one, next| one.peer == next.peer) {
            let peer = parts[0].peer;
            self.bytes_max = self.bytes_max.max(bytes_max(self.driver.expect_round_trip(peer)));
            let (count, cause) = self.post(peer, parts);
            let (posted, left) = parts.split_at_mut(count);
            posted.iter_mut().for_each(|part| part.operation.set_posted());
            let bytes = posted.iter().map(|part| part.len).sum();
            self.driver.record_posted(&*self.transfer, bytes, false);
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

    /// Posts `parts`. Returns how many were posted, and why the others were refused.
    fn post(&self, peer: PeerId, parts: &[Part<'_>]) -> (usize, Option<PostCause>) {
        let lane = lane_of(&*self.transfer, &parts[0]);
        let requests: SmallVec<[WorkRequest<'_>; 1]> =
            parts.iter().map(|part| request(&*self.transfer, part, true)).collect();
        match self.driver.shared.fabric.post(peer, lane, &requests) {
            Ok(()) => (requests.len(), None),
            Err(PostError { cause: PostCause::Malformed, .. }) => {
                unreachable!("requests keep to the fabric's limits")
            }
            Err(PostError { posted, cause, .. }) => (posted, Some(cause)),
        }
    }

    /// Returns the position `len` bytes after `at`.
    fn after(&self, at: Cursor, len: usize) -> Cursor {
        let done = at.done + len;
        if done == self.transfer.len(at.index) {
            Cursor { index: at.index + 1, done: 0 }
        } else {
            Cursor { index: at.index, done }
        }
    }

    /// Waits until the policy's `turn_ns`, or until a posted part completes.
    async fn await_turn(&mut self, turn_ns: u64) {
        let is_closed = self.driver.is_closed();
        let ended = match self.pipeline.is_empty() {
            true if is_closed => return self.fail(self.at, 0, Stop::Closed),
            true => self.driver.until(turn_ns, std::future::pending()).await,
            // A closing node ends the posted parts.
            false if is_closed => self.pipeline.oldest_ended().await,
            false => self.driver.until(turn_ns, self.pipeline.oldest_ended()).await.flatten(),
        };
        if let Some(ended) = ended {
            self.land(ended);
        }
    }

    // Landing.

    /// Waits for the oldest parts until only `left` are in progress.
    async fn land_until(&mut self, left: usize) {
        while self.pipeline.len() > left
            && let Some(ended) = self.pipeline.oldest_ended().await
        {
            self.land(ended);
        }
    }

    fn land(&mut self, ended: OperationResult) {
        let Some(part) = self.pipeline.oldest() else { return };
        let (at, len, peer) = (part.at, part.len, part.peer);
        self.driver.count_landed(self.transfer.kind(), len, ended.status);
        self.driver.record_landed(&*self.transfer, len, None);
        match self.transfer.kind() {
            _ if ended.status != Status::Success => self.fail(at, len, Stop::Status(peer, ended.status)),
            Kind::Read => part.operation.unstage(self.transfer.target(at, len)),
            Kind::Write => {}
            Kind::Atomic(_) => self.transfer.set_old(ended.old),
        }
        if may_be_done(ended.status) {
            self.record_change(at);
        }
        self.pipeline.remove_oldest();
    }
}

enum NotReady {
    /// The memory of the part has moved; locate it again.
    Moved,
    Wait(WaitReason),
    NoStaging,
}

/// Returns true if an operation with this status may have been executed.
fn may_be_done(status: Status) -> bool {
    match status {
        Status::Success | Status::PeerGone | Status::RetryExceeded => true,
        Status::RemoteAccess | Status::Unmapped | Status::Flushed => false,
    }
}
