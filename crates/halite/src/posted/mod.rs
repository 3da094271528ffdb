//! Posted operations: accesses that go through the fabric's queues, and the memory that they land in.
//!
//! A peer's answer must never land in memory that its owner has given up, so reads land in slots of a segment
//! that the node owns.  A caller who loses interest leaves its slot behind until the completion has arrived:
//!
//! ```text
//!  begin ──> Begun ── posted ──> Awaited ── complete ──> Done ── taken: slot is free
//!              └ dropped: gone      └ dropped ──> Abandoned ── complete: slot is free
//! ```
//!
//! An operation is begun *before* its address is looked up, so that a later change of the address knows
//! by [`InFlight::is_over`] that nobody uses the old one any more.
//!
//! What takes several operations keeps a window of them under way: accesses of sessions ([`Pipeline`]), and those that the engine
//! asks for ([`fetches`]).  An operation of up to 256 bytes
//! allocates nothing, and takes none of the node's locks that all threads share, and neither does its completion.  (Providers have
//! their own: `shm` looks a peer up under a lock that many may hold at once, and queues completions under one.)
//!
//! It calls [`crate::runtime`] and the fabric.  Its locks are those of a table's shards, and no other is taken under one.

mod fetches;
mod pipeline;
mod staging;
mod table;

use std::task::{Context, Poll};

use halite_fabric::{Fabric, Local, PeerId, Status, WorkId};
use halite_tier::effect::PostedTo;

pub(crate) use fetches::{Fetch, Fetches};
pub(crate) use pipeline::{Cursor, Part, Pipeline, low};
pub(crate) use staging::NoStaging;
pub(crate) use table::is_operation;

use self::staging::{Slot, Staging};
use self::table::{Left, OperationId, Table};
use crate::runtime::event::Event;
use crate::runtime::wait::Wakes;

/// Most bytes of one posted operation: bulk traffic must let small requests through in between.  Over UDP it is two trains of packets, whole
/// ones: a train takes up to 64 KiB with all headers.
pub(crate) const SLICE_BYTES_MAX: usize = 120 << 10;

/// All posted operations of a node.
#[derive(Debug)]
pub(crate) struct InFlight {
    table: Table,
    staging: Staging,
    /// The fabric may take more.
    progress: Event,
}

/// How a posted operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    pub(crate) status: Status,
    /// What the word held before an atomic; of other operations 0.
    pub(crate) old: u64,
}

/// Something that must outlive an operation: the memory of its source, say.
pub(crate) struct KeepAlive(#[expect(dead_code, reason = "it is kept to be dropped")] Box<dyn Send>);

impl std::fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeepAlive")
    }
}

/// Operations that were under way at some time.
#[derive(Debug)]
pub(crate) struct Mark(Vec<OperationId>);

impl InFlight {
    /// For so many threads that post at once.
    pub(crate) fn new(threads: usize) -> InFlight {
        let shards = threads.clamp(1, Table::SHARDS_MAX);
        InFlight { table: Table::new(shards), staging: Staging::new(shards), progress: Event::default() }
    }

    /// Begins an operation on memory of `peer`.  Its address must be looked up after this.
    #[inline]
    pub(crate) fn begin(&self, peer: PeerId) -> PendingOperation<'_> {
        let id = self.table.begin(peer);
        PendingOperation { posted: self, id, phase: Phase::Begun, slot: None }
    }

    /// As [`InFlight::begin`], of one that travels as a call: it ends by [`InFlight::answer`], or with the peer.  `None` if as many
    /// are under way as may be; then there is [`InFlight::progress_after`].
    pub(crate) fn begin_call(&self, peer: PeerId) -> Option<PendingOperation<'_>> {
        let id = self.table.begin_call(peer)?;
        Some(PendingOperation { posted: self, id, phase: Phase::Begun, slot: None })
    }

    /// What is under way to the memory of some peers.
    pub(crate) fn mark(&self, to: &PostedTo) -> Mark {
        let mut found = Vec::new();
        match to {
            PostedTo::Peers(peers) if peers.is_empty() => {}
            PostedTo::Peers(peers) => self.table.under_way(|peer| peers.contains(&peer), false, &mut found),
            PostedTo::Anybody => self.table.under_way(|_| true, false, &mut found),
        }
        Mark(found)
    }

    /// All that is under way, and all that is kept for it.
    pub(crate) fn mark_all(&self) -> Mark {
        let mut found = Vec::new();
        self.table.under_way(|_| true, true, &mut found);
        Mark(found)
    }

    /// Whether all that was under way has completed.
    pub(crate) fn is_over(&self, mark: &mut Mark) -> bool {
        mark.0.retain(|id| self.table.is_under_way(*id));
        mark.0.is_empty()
    }

    /// How many operations have not completed.
    pub(crate) fn under_way(&self) -> usize {
        self.mark(&PostedTo::Anybody).0.len()
    }

    /// A completion has arrived.
    #[inline]
    pub(crate) fn complete(&self, id: WorkId, ended: Ended, wakes: &mut Wakes) {
        let completed = self.table.complete(id, ended);
        wakes.add(completed.waker);
        if completed.room {
            self.progress.happen(wakes);
        }
        if let Some(slot) = completed.slot {
            self.staging.give_back(slot);
        }
    }

    /// `peer` has answered a call.  An answer that nobody expects of it changes nothing.
    pub(crate) fn answer(&self, peer: PeerId, id: WorkId, ended: Ended, wakes: &mut Wakes) {
        if self.table.is_call_to(peer, id) {
            self.complete(id, ended, wakes);
        }
    }

    /// `peer` is down: who waits for its answer need not, and no room is waited for.  It may still do what it was asked for
    /// until its connection has ended, and until then that is under way.
    pub(crate) fn handle_down(&self, peer: PeerId, wakes: &mut Wakes) {
        wakes.extend(self.table.leave_unheard(peer));
        self.progress.happen(wakes);
    }

    /// The connection to `peer` has ended: it answers no call any more, and what it was asked for it may have done.
    pub(crate) fn handle_closed(&self, peer: PeerId, wakes: &mut Wakes) {
        for id in self.table.calls_to(peer) {
            self.complete(id.work_id(), Ended::UNHEARD, wakes);
        }
        // There will be no room for who waits for it.
        self.progress.happen(wakes);
    }

    /// A number for an operation that nobody waits for, and that `kept_alive` must outlive.
    pub(crate) fn keep(&self, peer: PeerId, kept_alive: Box<dyn Send>) -> WorkId {
        self.table.keep(peer, KeepAlive(kept_alive)).work_id()
    }

    /// An operation that was to be kept for was not posted after all.
    pub(crate) fn release(&self, id: WorkId) {
        self.table.withdraw(OperationId::of(id));
    }

    /// Waits until the fabric may take more; `seen` is [`InFlight::progress_count`] before it was tried.
    pub(crate) async fn progress_after(&self, seen: u64) {
        self.progress.after(seen).await;
    }

    /// See [`InFlight::progress_after`].
    pub(crate) fn progress_count(&self) -> u64 {
        self.progress.count()
    }

    /// An operation that left has made room, and nobody else tells of that.
    #[cold]
    fn wake_for_room(&self) {
        let mut wakes = Wakes::default();
        self.progress.happen(&mut wakes);
        wakes.wake_all();
    }

    /// Lets those try again who found no room.
    pub(crate) fn retry(&self, wakes: &mut Wakes) {
        self.progress.happen(wakes);
    }

    /// Nothing completes any more: ends the waiting of all.  Slots stay reserved, since bytes may land in them
    /// until the fabric is closed.
    pub(crate) fn close(&self, wakes: &mut Wakes) {
        wakes.extend(self.table.close());
        self.progress.happen(wakes);
    }
}

impl Ended {
    /// Of one that was posted, and of whose end nothing will be heard: the peer's end, or the node's, is that of the connection.
    const UNHEARD: Ended = Ended { status: Status::PeerGone, old: 0 };
}

/// An operation that has begun.
#[derive(Debug)]
pub(crate) struct PendingOperation<'p> {
    posted: &'p InFlight,
    id: OperationId,
    phase: Phase,
    /// What the operation uses while it is under way.
    slot: Option<Slot>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Begun,
    Posted,
    /// It has ended, but what landed in its staging memory may still be wanted.
    Landed,
    /// Its place in the table is another's.
    Over,
}

impl PendingOperation<'_> {
    /// What to call it when it is posted.
    pub(crate) fn id(&self) -> WorkId {
        self.id.work_id()
    }

    /// Takes staging memory of `len` bytes, at most [`SLICE_BYTES_MAX`], for memory of `peer`: if there is much, or if the access
    /// `needs` it.
    pub(crate) fn stage(
        &mut self,
        fabric: &dyn Fabric,
        peer: PeerId,
        len: usize,
        needs: bool,
    ) -> Result<bool, NoStaging> {
        self.slot = self.posted.staging.slot(fabric, self.id, peer, len, needs)?;
        Ok(self.slot.is_some())
    }

    /// The staging memory, holding `from` now.
    pub(crate) fn staged_source(&self, from: &[u8]) -> Option<Local<'static>> {
        let slot = self.slot.as_ref()?;
        self.posted.staging.write(slot, from);
        Some(self.posted.staging.local(slot, from.len()))
    }

    /// The staging memory, for `len` bytes to land in.
    pub(crate) fn staged_target(&self, len: usize) -> Option<Local<'static>> {
        self.slot.as_ref().map(|slot| self.posted.staging.local(slot, len))
    }

    /// Copies what has landed in the staging memory.
    pub(crate) fn unstage(&self, into: &mut [u8]) {
        if let Some(slot) = &self.slot {
            self.posted.staging.read(slot, into);
        }
    }

    /// It has been posted: from here on, it must complete before its staging memory is used again.
    pub(crate) fn set_posted(&mut self) {
        self.phase = Phase::Posted;
    }

    pub(crate) fn is_posted(&self) -> bool {
        self.phase == Phase::Posted
    }

    /// Waits for the end of an operation that has been posted.
    pub(crate) fn ended(&mut self) -> impl Future<Output = Ended> {
        std::future::poll_fn(|context| self.poll_ended(context))
    }

    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
        let stays = self.slot.is_some();
        match self.posted.table.poll(self.id, stays, context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(ended)) => {
                self.phase = if stays { Phase::Landed } else { Phase::Over };
                Poll::Ready(ended)
            }
            Poll::Ready(None) => {
                self.phase = Phase::Over;
                // Nothing completes any more, but bytes may still land there.
                self.slot = None;
                Poll::Ready(Ended::UNHEARD)
            }
        }
    }
}

impl Drop for PendingOperation<'_> {
    fn drop(&mut self) {
        let slot = self.slot.take();
        let free = match self.phase {
            Phase::Over => slot,
            Phase::Begun | Phase::Landed => {
                if self.posted.table.withdraw(self.id) {
                    self.posted.wake_for_room();
                }
                slot
            }
            Phase::Posted => match self.posted.table.abandon(self.id, slot) {
                Left::Nothing(slot) => slot,
                Left::UnderWay => None,
            },
        };
        if let Some(slot) = free {
            self.posted.staging.give_back(slot);
        }
    }
}
