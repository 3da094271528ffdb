//! The table of operations in progress, in shards, so that threads do not contend for one lock.
//!
//! A thread puts its operations into its own shard. Other threads take the lock of that shard only to complete these
//! operations.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use halite_fabric::{PeerId, WorkId};
use halite_tier::rpc::atomic::ATOMICS_UNDER_WAY_MAX;

use super::staging::Slot;
use super::{KeepAlive, OperationResult};
use crate::runtime::locks::{lock, ranked};

#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Shard]>,
}

/// A part of the table with its own lock. It fills two cache lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    entries: Mutex<Entries>,
}

ranked! {
    Entries => InFlight;
}

#[derive(Debug, Default)]
struct Entries {
    all: Vec<Entry>,
    free: Vec<u32>,
    /// Number of calls in progress by peer; contains no zeros.
    calls: BTreeMap<PeerId, usize>,
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    /// The peer whose memory the operation accesses.
    peer: PeerId,
    /// True for a call in progress, which ends with the peer's answer or with the peer.
    is_call: bool,
    state: EntryState,
}

#[derive(Debug)]
enum EntryState {
    Free,
    Begun,
    Awaited(Waker),
    /// A call to a peer that is down. Its waiter learns this, but the peer may still execute the call.
    PeerDown,
    /// No task waits for the operation. Its slot is released when it completes.
    Abandoned(Option<Slot>),
    /// No task waits for the operation. This resource must live until it completes.
    Kept(KeepAlive),
    Done(OperationResult),
}

/// An operation's place in the table, with the generation of that place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OperationId {
    shard: u32,
    index: u32,
    generation: u32,
}

/// Work that remains for the caller after a completion, once it holds no lock of the table.
#[derive(Debug, Default)]
pub(super) struct Completed {
    pub(super) waker: Option<Waker>,
    pub(super) slot: Option<Slot>,
    /// True if the peer had the maximum number of calls in progress, and another call may begin now.
    pub(super) room: bool,
    _kept: Option<KeepAlive>,
}

/// State of an operation after its owner has dropped it.
pub(super) enum Abandoned {
    /// The operation has ended; its slot, if any, is free.
    Ended(Option<Slot>),
    /// The operation keeps its slot until it completes.
    InProgress,
}

/// Bit that is set in the numbers of operations only.
const OPERATION_BIT: u64 = 1 << 63;
/// Number of bits for the index in a work request's number. The shard has `SHARD_BITS`, and the generation has
/// `GENERATION_BITS`.
const INDEX_BITS: u32 = 24;
const SHARD_BITS: u32 = 8;
const GENERATION_BITS: u32 = 31;

/// Maximum number of calls to one peer per shard, so that a peer never has more calls to answer than it can keep
/// answers for.
const CALLS_PER_SHARD_MAX: usize = ATOMICS_UNDER_WAY_MAX / Table::SHARDS_MAX;

impl OperationId {
    pub(super) fn work_id(self) -> WorkId {
        let low = u64::from(self.shard) << INDEX_BITS | u64::from(self.index);
        WorkId(OPERATION_BIT | u64::from(self.generation) << (INDEX_BITS + SHARD_BITS) | low)
    }

    pub(super) fn of(id: WorkId) -> OperationId {
        let bits = |from: u32, count: u32| (id.0 >> from) as u32 & ((1 << count) - 1);
        OperationId {
            shard: bits(INDEX_BITS, SHARD_BITS),
            index: bits(0, INDEX_BITS),
            generation: bits(INDEX_BITS + SHARD_BITS, GENERATION_BITS),
        }
    }

    /// Returns the number of this place if the first `per_shard` places of all shards are counted; `None` for other
    /// places.
    pub(super) fn place(self, per_shard: u32) -> Option<u32> {
        (self.index < per_shard).then(|| self.shard * per_shard + self.index)
    }
}

/// Returns true if the number of a work request belongs to an operation of the table.
pub(crate) fn is_operation(id: WorkId) -> bool {
    id.0 & OPERATION_BIT != 0
}

impl Table {
    pub(super) const SHARDS_MAX: usize = 1 << SHARD_BITS;

    pub(super) fn new(shards: usize) -> Table {
        let count = shards.clamp(1, Table::SHARDS_MAX);
        Table { shards: (0..count).map(|_| Shard::default()).collect() }
    }

    pub(super) fn begin(&self, peer: PeerId) -> OperationId {
        self.add(peer, EntryState::Begun)
    }

    pub(super) fn keep(&self, peer: PeerId, kept_alive: KeepAlive) -> OperationId {
        self.add(peer, EntryState::Kept(kept_alive))
    }

    /// Begins a call. Returns `None` if too many calls to the peer are in progress.
    pub(super) fn begin_call(&self, peer: PeerId) -> Option<OperationId> {
        let shard = own_shard() % self.shards.len();
        let mut entries = lock(&self.shards[shard].entries);
        let calls = entries.calls.entry(peer).or_default();
        if *calls == CALLS_PER_SHARD_MAX {
            return None;
        }
        *calls += 1;
        let (index, generation) = entries.add(peer, EntryState::Begun);
        entries.all[index as usize].is_call = true;
        Some(OperationId { shard: shard as u32, index, generation })
    }

    fn add(&self, peer: PeerId, state: EntryState) -> OperationId {
        let shard = own_shard() % self.shards.len();
        let mut entries = lock(&self.shards[shard].entries);
        let (index, generation) = entries.add(peer, state);
        OperationId { shard: shard as u32, index, generation }
    }

    /// Runs `change` on an operation's entry. Returns `None` if the operation has ended or never existed.
    fn with<T>(&self, id: OperationId, change: impl FnOnce(&mut Entries, usize) -> T) -> Option<T> {
        let mut entries = lock(&self.shards.get(id.shard as usize)?.entries);
        let index = id.index as usize;
        let entry = entries.all.get(index)?;
        let is_current = entry.generation == id.generation && !matches!(entry.state, EntryState::Free);
        is_current.then(|| change(&mut entries, index))
    }

    /// Handles a completion. Ignores a completion of an unknown operation.
    pub(super) fn complete(&self, id: WorkId, ended: OperationResult) -> Completed {
        let completed = self.with(OperationId::of(id), |entries, index| {
            let room = entries.end_call(index);
            let mut completed = Completed { room, ..Completed::default() };
            match std::mem::replace(&mut entries.all[index].state, EntryState::Done(ended)) {
                EntryState::Begun | EntryState::PeerDown => {}
                EntryState::Awaited(waker) => completed.waker = Some(waker),
                EntryState::Abandoned(slot) => {
                    entries.remove(index);
                    completed.slot = slot;
                }
                EntryState::Kept(kept_alive) => {
                    entries.remove(index);
                    completed._kept = Some(kept_alive);
                }
                // A provider completed it twice: the first completion counts.
                EntryState::Done(first) => entries.all[index].state = EntryState::Done(first),
                EntryState::Free => unreachable!("a free place has no current operation"),
            }
            completed
        });
        completed.unwrap_or_default()
    }

    /// Returns the result once the operation has ended. Frees the operation's entry, unless `keeps_entry` is true: then
    /// [`Table::withdraw`] must free the entry. Returns `None` if the table is closed and no completion arrives any more.
    pub(super) fn poll(
        &self,
        id: OperationId,
        keeps_entry: bool,
        context: &mut Context<'_>,
    ) -> Poll<Option<OperationResult>> {
        let polled = self.with(id, |entries, index| {
            let closed = entries.closed;
            match &mut entries.all[index].state {
                EntryState::Done(ended) => {
                    let ended = *ended;
                    if !keeps_entry {
                        entries.remove(index);
                    }
                    Poll::Ready(Some(ended))
                }
                state @ EntryState::PeerDown => {
                    *state = EntryState::Abandoned(None);
                    Poll::Ready(Some(OperationResult::PEER_GONE))
                }
                state if closed => {
                    // Bytes may still land, so the place is never reused.
                    *state = EntryState::Abandoned(None);
                    Poll::Ready(None)
                }
                EntryState::Awaited(waker) if waker.will_wake(context.waker()) => Poll::Pending,
                state => {
                    *state = EntryState::Awaited(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        polled.expect("an operation is polled by its owner until it has ended")
    }

    /// Removes an operation that was not posted or has ended. Returns true if its peer had the maximum number of calls
    /// in progress, and another call may begin now.
    pub(super) fn withdraw(&self, id: OperationId) -> bool {
        let withdrawn = self.with(id, |entries, index| {
            let state = std::mem::replace(&mut entries.all[index].state, EntryState::Free);
            (entries.remove(index), state)
        });
        // The state is dropped outside of the lock, since dropping a kept object may run any code.
        withdrawn.is_some_and(|(room, _)| room)
    }

    /// Records that no task waits for a posted operation any more. Its `slot` stays reserved until it completes.
    pub(super) fn abandon(&self, id: OperationId, slot: Option<Slot>) -> Abandoned {
        let mut slot = Some(slot);
        let left = self.with(id, |entries, index| match entries.all[index].state {
            EntryState::Done(_) => {
                entries.remove(index);
                Abandoned::Ended(slot.take().flatten())
            }
            _ => {
                entries.all[index].state = EntryState::Abandoned(slot.take().flatten());
                Abandoned::InProgress
            }
        });
        left.unwrap_or_else(|| Abandoned::Ended(slot.flatten()))
    }

    /// Adds to `found` the operations in progress on peers for which `wanted` returns true. If `kept` is true, also
    /// adds the operations without a waiter that keep an object alive.
    pub(super) fn under_way(
        &self,
        wanted: impl Fn(PeerId) -> bool,
        kept: bool,
        found: &mut Vec<OperationId>,
    ) {
        for (shard, entries) in (0..).zip(&self.shards) {
            let entries = lock(&entries.entries);
            if entries.all.len() == entries.free.len() {
                continue;
            }
            let is_wanted = |entry: &Entry| wanted(entry.peer) && entry.is_under_way(kept);
            let wanted = (0..).zip(&entries.all).filter(|(_, entry)| is_wanted(entry));
            found.extend(wanted.map(|(index, entry)| OperationId {
                shard,
                index,
                generation: entry.generation,
            }));
        }
    }

    /// Returns true if the operation is a call to `peer` that has no answer yet.
    pub(super) fn is_call_to(&self, peer: PeerId, id: WorkId) -> bool {
        let is_one = |entries: &mut Entries, index: usize| {
            let entry = &entries.all[index];
            entry.is_call && entry.peer == peer
        };
        self.with(OperationId::of(id), is_one).unwrap_or(false)
    }

    /// Ends the waits for answers of `peer`, which is down. Returns the wakers of the waiting tasks.
    pub(super) fn fail_calls_to(&self, peer: PeerId) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for id in self.calls_to(peer) {
            let left = self.with(id, |entries, index| {
                let state = &mut entries.all[index].state;
                match state {
                    EntryState::Begun | EntryState::Awaited(_) => {
                        std::mem::replace(state, EntryState::PeerDown)
                    }
                    _ => EntryState::Free,
                }
            });
            if let Some(EntryState::Awaited(waker)) = left {
                wakers.push(waker);
            }
        }
        wakers
    }

    /// Returns the calls to `peer` that have no answer yet.
    pub(super) fn calls_to(&self, peer: PeerId) -> Vec<OperationId> {
        let mut found = Vec::new();
        for (shard, entries) in (0..).zip(&self.shards) {
            let entries = lock(&entries.entries);
            if !entries.calls.contains_key(&peer) {
                continue;
            }
            let calls = (0..).zip(&entries.all).filter(|(_, entry)| entry.is_call && entry.peer == peer);
            found.extend(calls.map(|(index, entry)| OperationId {
                shard,
                index,
                generation: entry.generation,
            }));
        }
        found
    }

    pub(super) fn is_under_way(&self, id: OperationId) -> bool {
        self.with(id, |entries, index| entries.all[index].is_under_way(true)).unwrap_or(false)
    }

    /// Ends all waits, because no completion arrives any more. Returns the wakers of the waiting tasks.
    pub(super) fn close(&self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for shard in &self.shards {
            let mut entries = lock(&shard.entries);
            entries.closed = true;
            for entry in &mut entries.all {
                if let EntryState::Awaited(_) = entry.state
                    && let EntryState::Awaited(waker) = std::mem::replace(&mut entry.state, EntryState::Begun)
                {
                    wakers.push(waker);
                }
            }
        }
        wakers
    }
}

impl Entries {
    fn add(&mut self, peer: PeerId, state: EntryState) -> (u32, u32) {
        match self.free.pop() {
            Some(index) => {
                let entry = &mut self.all[index as usize];
                (entry.peer, entry.state) = (peer, state);
                (index, entry.generation)
            }
            None => {
                let index = self.all.len() as u32;
                assert!(index < 1 << INDEX_BITS, "a thread has fewer than 16 million operations in progress");
                self.all.push(Entry { generation: 0, peer, is_call: false, state });
                (index, 0)
            }
        }
    }

    /// Ends a call. Returns true if its peer had the maximum number of calls.
    fn end_call(&mut self, index: usize) -> bool {
        let entry = &mut self.all[index];
        if !std::mem::take(&mut entry.is_call) {
            return false;
        }
        let calls = self.calls.get_mut(&entry.peer).expect("this one is under way");
        *calls -= 1;
        let is_reopened = *calls == CALLS_PER_SHARD_MAX - 1;
        if *calls == 0 {
            self.calls.remove(&entry.peer);
        }
        is_reopened
    }

    /// Removes an operation. Returns true if it was a call whose peer had the maximum number of calls.
    fn remove(&mut self, index: usize) -> bool {
        let room = self.end_call(index);
        let entry = &mut self.all[index];
        entry.state = EntryState::Free;
        entry.generation = (entry.generation + 1) & ((1 << GENERATION_BITS) - 1);
        self.free.push(index as u32);
        room
    }
}

impl Entry {
    fn is_under_way(&self, kept: bool) -> bool {
        match self.state {
            EntryState::Begun | EntryState::Awaited(_) | EntryState::PeerDown | EntryState::Abandoned(_) => {
                true
            }
            EntryState::Kept(_) => kept,
            EntryState::Free | EntryState::Done(_) => false,
        }
    }
}

/// Returns the calling thread's number, which its first operation assigns and which selects its shard.
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<Option<usize>> = const { Cell::new(None) });
    let assign = || {
        // Only spreads the threads; it orders nothing.
        let own = NEXT.fetch_add(1, Relaxed);
        OWN.set(Some(own));
        own
    };
    OWN.get().unwrap_or_else(assign)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use halite_fabric::Status;

    use super::*;
    use crate::posted::InFlight;
    use crate::runtime::wait::Wakes;

    const PEER: PeerId = PeerId(1);
    const DONE: OperationResult = OperationResult { status: Status::Success, old: 7 };

    fn is_under_way(posted: &InFlight, id: WorkId) -> bool {
        posted.table.is_under_way(OperationId::of(id))
    }

    #[test]
    fn changes_wait_until_a_lost_connection_has_ended() {
        let (posted, wakes) = (InFlight::new(1), &mut Wakes::default());
        let mut context = Context::from_waker(Waker::noop());
        let [mut waiting, unpolled, answered] = [(); 3].map(|()| posted.begin_call(PEER).unwrap());
        let mut snapshot = posted.snapshot_all();
        assert!(waiting.poll_ended(&mut context).is_pending());
        posted.handle_down(PEER, wakes);
        assert_eq!(waiting.poll_ended(&mut context), Poll::Ready(OperationResult::PEER_GONE));
        posted.answer(PEER, answered.id(), DONE, wakes);
        let ids = [waiting.id(), unpolled.id()];
        drop(waiting);
        assert!(is_under_way(&posted, ids[0]), "the peer may still do it");
        assert!(!posted.is_over(&mut snapshot));
        posted.handle_closed(PEER, wakes);
        assert!(posted.is_over(&mut snapshot));
        drop(unpolled);
        assert!(ids.iter().all(|id| !is_under_way(&posted, *id)));
    }
}
