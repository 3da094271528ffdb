//! The owner's side: reserves, fills and releases local chunks, for regions whose home is this node or another.

mod populating;
mod running;
mod sweeps;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use halite_fabric::Key;
use halite_mem::Window;

use super::context::{Context, Outbox};
use super::on_demand::DialWaiter;
use super::{EngineConfig, Requester};
use crate::access::Place;
use crate::effect::{CopyFailure, Effect, Token};
use crate::ids::{NodeId, NodeIncarnation, RegionId};
use crate::layout::{self, Extent, Extents};
use crate::mapper::{Locate, Reach, place_at};
use crate::members::Members;
use crate::message::{ErrorReply, NodeStatus, Reply};
use crate::news::News;
use crate::store::{Shortage, Store};

/// The local memory, and the operations in progress on it, including operations that wait for memory.
pub(super) struct Owner {
    store: Store,
    reach: Arc<dyn Reach>,
    /// Requests that wait for the arena to grow, or for freed memory to be cleaned.
    short_of_memory: Vec<(Requester, Reservation)>,
    /// Copies of chunks in progress.
    copies: BTreeMap<Token, Copying>,
    /// Chunks to release once the copies into them have ended.
    release_after_copies: Vec<(Extents, BTreeSet<NodeIncarnation>)>,
    running: running::Commands,
    populating: populating::Populations,
    sweeps: sweeps::Sweeps,
    /// True if the start of the current quarantine was reported as news.
    is_quarantine_reported: bool,
}

/// A request for chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    pub(super) region: RegionId,
    pub(super) chunk_bytes: u64,
    pub(super) len: u64,
    pub(super) populate: bool,
}

/// A chunk that is being copied into local memory.
#[derive(Debug)]
struct Copying {
    requester: Requester,
    /// Node that holds the source.
    source: NodeId,
    to: Extent,
}

/// The engine state that the owner's side may use.
pub(super) struct OwnerSide<'a> {
    pub(super) cx: Context<'a>,
    pub(super) owner: &'a mut Owner,
    pub(super) homes: &'a dyn HomeExtents,
}

/// Extents of the regions homed on this node.
pub(super) trait HomeExtents {
    /// Returns `None` if the region's home is elsewhere.
    fn extents(&self, region: &RegionId) -> Option<&[Extent]>;
}

impl Owner {
    pub(super) fn new(config: &EngineConfig, reach: Arc<dyn Reach>) -> Owner {
        Owner {
            store: Store::new(config.incarnation, config.bytes_total, config.segment_bytes),
            reach,
            short_of_memory: Vec::new(),
            copies: BTreeMap::new(),
            release_after_copies: Vec::new(),
            running: running::Commands::default(),
            populating: populating::Populations::default(),
            sweeps: sweeps::Sweeps::default(),
            is_quarantine_reported: false,
        }
    }

    /// Returns the window of `extent`, or `None` if `extent` is not local.
    pub(super) fn window(&self, extent: &Extent) -> Option<Window> {
        self.store.window(extent)
    }

    /// Returns true if all of `extent` is local and held for `home`.
    pub(super) fn is_held_for(&self, home: NodeIncarnation, extent: &Extent) -> bool {
        self.store.is_held_for(home, extent)
    }

    /// Returns the number of local bytes that are held for other homes, by region, each with its home.
    pub(super) fn held(&self) -> BTreeMap<RegionId, (NodeIncarnation, u64)> {
        self.store.held()
    }

    /// Returns all local chunks that are held for `home`, by region.
    pub(super) fn held_for(&self, home: NodeIncarnation) -> Vec<(RegionId, Extents)> {
        self.store.held_for(home)
    }

    /// Records that this node has become the home of a region with these extents: see [`Store::adopt`].
    pub(super) fn adopt(&mut self, extents: &[Extent]) {
        self.store.adopt(extents);
    }

    /// Returns the maximum number of bytes that this node contributes.
    pub(super) fn bytes_total(&self) -> u64 {
        self.store.bytes_total()
    }

    /// Returns the number of bytes that belong to regions or are in quarantine.
    pub(super) fn bytes_taken(&self) -> u64 {
        self.store.bytes_used() + self.store.bytes_quarantined()
    }

    /// Returns the size of the arena in bytes, and the number of its free bytes.
    pub(super) fn bytes_grown_and_free(&self) -> (u64, u64) {
        (self.store.bytes_grown(), self.store.bytes_free())
    }

    pub(super) fn bytes_quarantined_for(&self, incarnation: NodeIncarnation) -> u64 {
        self.store.bytes_quarantined_for(incarnation)
    }

    /// Fills in the memory figures of a status.
    pub(super) fn describe(&self, status: &mut NodeStatus) {
        status.bytes_used = self.store.bytes_used();
        status.bytes_total = self.store.bytes_total();
        status.bytes_refused = self.store.bytes_refused();
        status.bytes_quarantined = self.store.bytes_quarantined();
        status.bytes_largest = self.store.bytes_largest();
    }

    /// Returns a locator, which determines how this node reaches extents.
    pub(super) fn locator<'a>(&'a self, incarnation: NodeIncarnation, members: &'a Members) -> Locator<'a> {
        Locator { incarnation, store: &self.store, members, reach: &*self.reach }
    }

    /// Reports the start and the end of a quarantine as news.
    pub(super) fn report_quarantine(&mut self, out: &mut Outbox) {
        let is_on = self.store.has_quarantine();
        if is_on != self.is_quarantine_reported {
            self.is_quarantine_reported = is_on;
            out.report(match is_on {
                true => News::Quarantined { bytes: self.store.bytes_quarantined() },
                false => News::QuarantineOver,
            });
        }
    }

    /// Records that a peer is cut off from this node's memory.
    pub(super) fn handle_cut_off(&mut self, incarnation: NodeIncarnation, out: &mut Outbox) {
        self.store.handle_cut_off(incarnation, out);
    }

    /// Drops waiting reservations of an incarnation.
    pub(super) fn forget_requests_of(&mut self, incarnation: NodeIncarnation) {
        self.short_of_memory.retain(|(requester, _)| requester.incarnation != incarnation);
    }
}

impl OwnerSide<'_> {
    /// Handles the result of growing the arena: the new segment, or `None` after a failure.
    pub(super) fn handle_grown(&mut self, segment: Option<(Key, Window)>) {
        self.owner.store.handle_grown(self.cx.now_ns(), segment);
        self.retry_short_of_memory();
    }

    /// Handles the completion of a discard: the memory reads as zero again.
    pub(super) fn handle_discarded(&mut self, token: Token) {
        self.owner.store.handle_discarded(token);
        self.retry_short_of_memory();
    }

    fn retry_short_of_memory(&mut self) {
        for (requester, wanted) in std::mem::take(&mut self.owner.short_of_memory) {
            // Chunks reserved for a lost home would never be returned.
            if self.cx.is_present(requester.incarnation) {
                self.serve_reserve(requester, wanted);
            }
        }
    }

    pub(super) fn serve_reserve(&mut self, requester: Requester, wanted: Reservation) {
        let Reservation { region, chunk_bytes, len, populate } = wanted;
        if len == 0 || !layout::is_chunk_size(chunk_bytes) {
            return self.cx.answer(requester, Err(ErrorReply::Malformed));
        }
        if self.cx.membership().draining().is_on() {
            return self.cx.answer(requester, Err(ErrorReply::Draining(self.cx.incarnation().node)));
        }
        let Some(result) = self.reserve_or_grow(requester, wanted) else { return };
        let extents = match result {
            Ok(extents) => extents,
            Err(refusal) => return self.cx.answer(requester, Err(refusal)),
        };
        if requester.incarnation != self.cx.incarnation() {
            self.owner.store.hold_for(requester.incarnation, region, &extents);
        }
        match populate {
            true => self.start_populating(requester, extents),
            false => self.cx.answer(requester, Ok(Reply::Reserved { extents })),
        }
    }

    /// Reserves chunks. Returns `None` if the request waits for memory.
    fn reserve_or_grow(
        &mut self,
        requester: Requester,
        wanted: Reservation,
    ) -> Option<Result<Extents, ErrorReply>> {
        let Reservation { len, chunk_bytes, .. } = wanted;
        match self.owner.store.reserve(self.cx.now_ns(), len, chunk_bytes) {
            Ok(extents) => Some(Ok(extents)),
            Err(Shortage::NoSpace { available, largest }) => {
                Some(Err(ErrorReply::NoSpace { wanted: len, available, largest }))
            }
            Err(Shortage::Wait) => {
                self.owner.short_of_memory.push((requester, wanted));
                None
            }
            Err(Shortage::Grow(bytes)) => {
                self.cx.push(Effect::Grow { len: bytes });
                self.owner.short_of_memory.push((requester, wanted));
                None
            }
        }
    }

    pub(super) fn handle_return(&mut self, from: NodeIncarnation, extents: Extents) {
        for extent in extents {
            // Only the home for which a chunk is held may return it, and only once.
            if self.owner.store.is_held_for(from, &extent) {
                self.release(Extents::from_slice(&[extent]), BTreeSet::new());
            }
        }
    }

    /// Releases local chunks once neither the tainted nodes nor the local driver access them.
    pub(super) fn release(&mut self, extents: Extents, tainted: BTreeSet<NodeIncarnation>) {
        let owner = &mut *self.owner;
        let is_busy = |extent: &Extent| {
            owner.copies.values().any(|copy| copy.to.touches(extent))
                || owner.running.touches(extent)
                || owner.populating.touches(extent)
        };
        let (busy, free): (Extents, Extents) = extents.into_iter().partition(is_busy);
        if !busy.is_empty() {
            // Until then, the home must not return them a second time.
            busy.iter().for_each(|extent| owner.store.forget_foreign(extent));
            owner.release_after_copies.push((busy, tainted.clone()));
        }
        owner.store.release(&free, &tainted, self.cx.out());
    }

    /// Releases chunks that waited for a copy, unless they wait for another operation.
    pub(super) fn release_copied(&mut self) {
        for (extents, tainted) in std::mem::take(&mut self.owner.release_after_copies) {
            let tainted = self.cx.members().not_cut_off(tainted);
            self.release(extents, tainted);
        }
    }

    pub(super) fn serve_copy(&mut self, requester: Requester, from: Extent, to: Extent) {
        if self.cx.reach_out(from.owner) {
            return self.cx.wait_until_connected(from.owner, DialWaiter::Copy { requester, from, to });
        }
        let allowed = requester.incarnation == self.cx.incarnation()
            || self.owner.store.is_held_for(requester.incarnation, &to);
        let Some(target) = self.owner.store.window(&to).filter(|_| allowed && from.len == to.len) else {
            return self.cx.answer(requester, Err(ErrorReply::Malformed));
        };
        let token = Token(self.cx.next_number());
        match self.copy_effect(token, &from, &to, target) {
            Ok(effect) => {
                self.cx.push(effect);
                self.owner.copies.insert(token, Copying { requester, source: from.owner.node, to });
            }
            Err(refusal) => self.cx.answer(requester, Err(refusal)),
        }
    }

    /// Returns the effect that copies `from`, local or remote, to `to`, whose local window is `target`.
    fn copy_effect(
        &self,
        token: Token,
        from: &Extent,
        to: &Extent,
        target: Window,
    ) -> Result<Effect, ErrorReply> {
        match self.owner.locator(self.cx.incarnation(), self.cx.members()).place(from) {
            Place::Direct(from) => Ok(Effect::Copy { token, from, to: target }),
            Place::Posted { peer, address } => {
                let (key, offset, len) = (to.key, to.offset, to.len);
                Ok(Effect::Fetch { token, peer, address, key, offset, len })
            }
            Place::Frozen | Place::Down(_) => Err(ErrorReply::PeerDown(from.owner.node)),
        }
    }

    /// Handles the end of a copy. If the copy ended a command whose requester is no longer paired, returns that
    /// requester.
    pub(super) fn handle_copied(
        &mut self,
        token: Token,
        failed: Option<CopyFailure>,
    ) -> Option<NodeIncarnation> {
        let Some(copy) = self.owner.copies.remove(&token) else { return self.handle_step(token, failed) };
        let body = match failed {
            None => Ok(Reply::Done),
            Some(why) => Err(self.refusal_of(why, copy.source)),
        };
        self.cx.answer(copy.requester, body);
        self.release_copied();
        None
    }

    fn refusal_of(&self, why: CopyFailure, owner: NodeId) -> ErrorReply {
        match why {
            CopyFailure::PeerGone => ErrorReply::PeerDown(owner),
            CopyFailure::Unmapped => ErrorReply::Unmapped { node: self.cx.incarnation().node, owner },
        }
    }
}

/// Determines from the engine's state how this node reaches extents.
pub(super) struct Locator<'a> {
    incarnation: NodeIncarnation,
    store: &'a Store,
    members: &'a Members,
    reach: &'a dyn Reach,
}

impl Locate for Locator<'_> {
    fn place(&self, extent: &Extent) -> Place {
        if extent.owner == self.incarnation {
            return self.store.window(extent).map_or(Place::Down(extent.owner), Place::Direct);
        }
        match self.members.peer_of(extent.owner.node) {
            Some((peer, known)) if known.incarnation == extent.owner => place_at(self.reach, peer, extent),
            _ => Place::Down(extent.owner),
        }
    }
}
