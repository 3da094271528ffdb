//! Posted operations: accesses that go through the fabric's queues, and the memory in which they land.
//!
//! A peer's answer must never land in memory whose owner has released it, so reads land in slots of a segment that the
//! node owns. If a caller drops an operation, its slot stays reserved until the completion arrives:
//!
//! ```text
//!  begin ──> Begun ── posted ──> Awaited ── complete ──> Done ── taken: slot is free
//!              └ dropped: gone      └ dropped ──> Abandoned ── complete: slot is free
//! ```
//!
//! An operation begins *before* its address is looked up. So code that changes the address later learns from
//! [`InFlight::is_over`] when no operation uses the old address any more.
//!
//! A transfer of several operations keeps a window of them in flight: an access of a session ([`Pipeline`]), or a fetch
//! for the engine ([`fetches`]). An operation of up to 256 bytes, and its completion, allocates nothing and takes no
//! lock that all threads of the node share. (Providers have shared locks of their own: `shm` looks a peer up under a
//! reader lock and queues completions under a mutex.)
//!
//! This folder calls [`crate::runtime`] and the fabric. Its locks are those of the table's shards; a thread that holds
//! one of them takes no other lock.

mod fetches;
mod pipeline;
mod staging;
mod table;

use std::task::{Context, Poll};

use halite_fabric::{Fabric, Local, PeerId, Status, WorkId};
use halite_mem::Process;
use halite_tier::effect::PostedTo;

pub(crate) use fetches::{Fetch, Fetches};
pub(crate) use pipeline::{Cursor, Part, Pipeline, bytes_max, refill_threshold};
pub(crate) use staging::NoStaging;
pub(crate) use table::is_operation;

use self::staging::{Slot, Staging};
use self::table::{Abandoned, OperationId, Table};
use crate::runtime::event::Event;
use crate::runtime::wait::Wakes;

/// Maximum length of one posted operation, in bytes: small requests must get through between the slices of bulk
/// traffic. Over UDP, a slice fills two whole trains of packets; a train takes up to 64 KiB with all headers.
/// [`crate::Session::post_write`] documents this as the limit of ordered writes.
pub(crate) const SLICE_BYTES_MAX: usize = 120 << 10;

#[derive(Debug)]
pub(crate) struct InFlight {
    table: Table,
    staging: Staging,
    /// Occurs when the fabric may take more operations.
    progress: Event,
    process: Process,
}

/// Result of a posted operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OperationResult {
    pub(crate) status: Status,
    /// The value that the word had before an atomic; 0 for other operations.
    pub(crate) old: u64,
}

/// A resource that must outlive an operation, such as its source memory.
pub(crate) struct KeepAlive(#[expect(dead_code, reason = "it is kept to be dropped")] Box<dyn Send>);

impl std::fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeepAlive")
    }
}

/// The set of operations that were in progress at one moment.
#[derive(Debug)]
pub(crate) struct OperationSnapshot(Vec<OperationId>);

impl InFlight {
    /// Creates the state of posted operations. `threads` is the number of threads that post at the same time.
    pub(crate) fn new(threads: usize) -> InFlight {
        let shards = threads.clamp(1, Table::SHARDS_MAX);
        let (table, staging) = (Table::new(shards), Staging::new(shards));
        InFlight { table, staging, progress: Event::default(), process: Process::current() }
    }

    pub(crate) fn attach(&self, operation: DetachedOperation) -> PendingOperation<'_> {
        let DetachedOperation { id, phase, slot } = operation;
        PendingOperation { posted: self, id, phase, slot }
    }

    /// Begins an operation on memory of `peer`. The caller must look up the operation's address after this.
    #[inline]
    pub(crate) fn begin(&self, peer: PeerId) -> PendingOperation<'_> {
        let id = self.table.begin(peer);
        PendingOperation { posted: self, id, phase: Phase::Begun, slot: None }
    }

    /// Begins an operation that travels as a call, and that ends with [`InFlight::answer`] or with the peer. Returns
    /// `None` if too many are in progress; the caller then waits with [`InFlight::progress_after`].
    pub(crate) fn begin_call(&self, peer: PeerId) -> Option<PendingOperation<'_>> {
        let id = self.table.begin_call(peer)?;
        Some(PendingOperation { posted: self, id, phase: Phase::Begun, slot: None })
    }

    /// Returns the operations in progress on the memory of the peers in `to`.
    pub(crate) fn snapshot(&self, to: &PostedTo) -> OperationSnapshot {
        let mut found = Vec::new();
        match to {
            PostedTo::Peers(peers) if peers.is_empty() => {}
            PostedTo::Peers(peers) => self.table.under_way(|peer| peers.contains(&peer), false, &mut found),
            PostedTo::All => self.table.under_way(|_| true, false, &mut found),
        }
        OperationSnapshot(found)
    }

    /// Returns all operations in progress, including those started by [`InFlight::keep`].
    pub(crate) fn snapshot_all(&self) -> OperationSnapshot {
        let mut found = Vec::new();
        self.table.under_way(|_| true, true, &mut found);
        OperationSnapshot(found)
    }

    /// Returns true if all operations of `snapshot` have completed.
    pub(crate) fn is_over(&self, snapshot: &mut OperationSnapshot) -> bool {
        snapshot.0.retain(|id| self.table.is_under_way(*id));
        snapshot.0.is_empty()
    }

    /// Returns the number of operations that have not completed.
    pub(crate) fn under_way(&self) -> usize {
        self.snapshot(&PostedTo::All).0.len()
    }

    #[inline]
    pub(crate) fn complete(&self, id: WorkId, ended: OperationResult, wakes: &mut Wakes) {
        let completed = self.table.complete(id, ended);
        wakes.add(completed.waker);
        if completed.room {
            self.progress.trigger(wakes);
        }
        if let Some(slot) = completed.slot {
            self.staging.free(slot);
        }
    }

    /// Handles the answer of `peer` to an atomic that travelled as a call. Ignores an unexpected answer.
    pub(crate) fn answer(&self, peer: PeerId, id: WorkId, ended: OperationResult, wakes: &mut Wakes) {
        if self.table.is_call_to(peer, id) {
            self.complete(id, ended, wakes);
        }
    }

    /// Ends the waits for calls to `peer`, which is down. The peer may still execute these calls until its connection
    /// has ended, so they stay in progress until then.
    pub(crate) fn handle_down(&self, peer: PeerId, wakes: &mut Wakes) {
        wakes.extend(self.table.fail_calls_to(peer));
        self.progress.trigger(wakes);
    }

    /// Ends the calls to `peer`, whose connection has ended. The peer may have executed them.
    pub(crate) fn handle_closed(&self, peer: PeerId, wakes: &mut Wakes) {
        for id in self.table.calls_to(peer) {
            self.complete(id.work_id(), OperationResult::PEER_GONE, wakes);
        }
        // Waiters for room retry and find that there will be none.
        self.progress.trigger(wakes);
    }

    /// Returns the number for an operation without a waiter. Drops `kept_alive` once this operation completes.
    pub(crate) fn keep(&self, peer: PeerId, kept_alive: Box<dyn Send>) -> WorkId {
        self.table.keep(peer, KeepAlive(kept_alive)).work_id()
    }

    /// Drops what [`InFlight::keep`] keeps for an operation that was not posted.
    pub(crate) fn release(&self, id: WorkId) {
        self.table.withdraw(OperationId::of(id));
    }

    /// Waits until the fabric may take more. `seen` is the value of [`InFlight::progress_count`] before the caller's
    /// attempt to post.
    pub(crate) async fn progress_after(&self, seen: u64) {
        self.progress.wait(seen).await;
    }

    pub(crate) fn progress_count(&self) -> u64 {
        self.progress.count()
    }

    /// Wakes the tasks that wait for room after an operation that was dropped without a completion has made room.
    #[cold]
    fn wake_for_room(&self) {
        let mut wakes = Wakes::default();
        self.progress.trigger(&mut wakes);
        wakes.wake_all();
    }

    /// Wakes the tasks that wait for room, so that they try again.
    pub(crate) fn retry(&self, wakes: &mut Wakes) {
        self.progress.trigger(wakes);
    }

    /// Ends all waits, because no completion arrives any more. Slots stay reserved, because bytes may land in them
    /// until the fabric is closed.
    pub(crate) fn close(&self, wakes: &mut Wakes) {
        wakes.extend(self.table.close());
        self.progress.trigger(wakes);
    }
}

impl OperationResult {
    /// Result of an operation whose completion will not arrive, because the peer or this node is down.
    const PEER_GONE: OperationResult = OperationResult { status: Status::PeerGone, old: 0 };
}

/// An operation that has begun and whose result the owner of this value waits for.
#[derive(Debug)]
pub(crate) struct PendingOperation<'p> {
    posted: &'p InFlight,
    id: OperationId,
    phase: Phase,
    /// The staging memory that the operation uses, if any.
    slot: Option<Slot>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Begun,
    Posted,
    /// The operation has ended, but the bytes in its staging memory may still be needed.
    Landed,
    /// The operation no longer has a place in the table.
    Removed,
}

/// A [`PendingOperation`] without its borrow of the table. The owner must attach it to the table again before dropping
/// it.
#[derive(Debug)]
pub(crate) struct DetachedOperation {
    id: OperationId,
    phase: Phase,
    slot: Option<Slot>,
}

impl PendingOperation<'_> {
    pub(crate) fn detach(mut self) -> DetachedOperation {
        let phase = std::mem::replace(&mut self.phase, Phase::Removed);
        DetachedOperation { id: self.id, phase, slot: self.slot.take() }
    }

    /// Returns the number with which to post the operation.
    pub(crate) fn id(&self) -> WorkId {
        self.id.work_id()
    }

    /// Takes `len` bytes of staging memory, at most [`SLICE_BYTES_MAX`], for an operation on memory of `peer`. Returns
    /// false if memory is short and the transfer should wait. A transfer that holds no staging memory must not wait: it
    /// sets `must_succeed`, and never gets false.
    pub(crate) fn stage(
        &mut self,
        fabric: &dyn Fabric,
        peer: PeerId,
        len: usize,
        must_succeed: bool,
    ) -> Result<bool, NoStaging> {
        self.slot = self.posted.staging.slot(fabric, self.id, peer, len, must_succeed)?;
        Ok(self.slot.is_some())
    }

    /// Copies `from` into the staging memory and returns this memory, from which the fabric sends.
    pub(crate) fn staged_source(&self, from: &[u8]) -> Option<Local<'static>> {
        let slot = self.slot.as_ref()?;
        self.posted.staging.write(slot, from);
        Some(self.posted.staging.local(slot, from.len()))
    }

    /// Returns the staging memory in which `len` bytes can land.
    pub(crate) fn staged_target(&self, len: usize) -> Option<Local<'static>> {
        self.slot.as_ref().map(|slot| self.posted.staging.local(slot, len))
    }

    /// Copies the landed bytes from the staging memory to `into`.
    pub(crate) fn unstage(&self, into: &mut [u8]) {
        if let Some(slot) = &self.slot {
            self.posted.staging.read(slot, into);
        }
    }

    /// Marks the operation as posted. Its staging memory is not reused before it completes.
    pub(crate) fn set_posted(&mut self) {
        self.phase = Phase::Posted;
    }

    pub(crate) fn is_posted(&self) -> bool {
        self.phase == Phase::Posted
    }

    pub(crate) fn ended(&mut self) -> impl Future<Output = OperationResult> {
        std::future::poll_fn(|context| self.poll_ended(context))
    }

    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<OperationResult> {
        if !self.posted.process.is_current() {
            // The parent process receives the completion.
            self.phase = Phase::Removed;
            std::mem::forget(self.slot.take());
            return Poll::Ready(OperationResult::PEER_GONE);
        }
        let keeps_entry = self.slot.is_some();
        match self.posted.table.poll(self.id, keeps_entry, context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(ended)) => {
                self.phase = if keeps_entry { Phase::Landed } else { Phase::Removed };
                Poll::Ready(ended)
            }
            Poll::Ready(None) => {
                self.phase = Phase::Removed;
                // Nothing completes any more, but bytes may still land in the slot.
                self.slot = None;
                Poll::Ready(OperationResult::PEER_GONE)
            }
        }
    }
}

impl Drop for PendingOperation<'_> {
    fn drop(&mut self) {
        let slot = self.slot.take();
        if !self.posted.process.is_current() {
            return std::mem::forget(slot);
        }
        let free = match self.phase {
            Phase::Removed => slot,
            Phase::Begun | Phase::Landed => {
                if self.posted.table.withdraw(self.id) {
                    self.posted.wake_for_room();
                }
                slot
            }
            Phase::Posted => match self.posted.table.abandon(self.id, slot) {
                Abandoned::Ended(slot) => slot,
                Abandoned::InProgress => None,
            },
        };
        if let Some(slot) = free {
            self.posted.staging.free(slot);
        }
    }
}
