//! Moves a region: freezes one chunk at a time, lets the new owner copy the chunk, announces the chunk's new place, and
//! finally moves the home.
//!
//! ```text
//!  home                         mappers                     new owner
//!   Reserve ------------------------------------------------->
//!   per chunk:  Freeze -------->  (no longer accesses the chunk)
//!               <-------- Done
//!               CopyChunk --------------------------------->  one-sided read of the old place
//!               Place ---------->  (uses the new place)               the old place is released
//!   Settle -------------------->  (has received all Place messages)
//!               <-------- Done
//!   Adopt --------------------------------------------------> is the home now, and informs the mappers
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::HomeSide;
use crate::engine::context::Purpose;
use crate::ids::{Epoch, NodeId, NodeIncarnation, RegionId, RequestId, Requester};
use crate::layout::{self, Extent, Extents};
use crate::message::{Change, ErrorReply, Notice, Record, RegionCommand, Reply, Request};
use crate::region::{Busy, Moving, Region, Stage};

/// Maximum number of moved regions to remember. The directory knows the homes of older ones.
const MOVED_MAX: usize = 16 << 10;

/// The new homes of regions whose home was this node.
#[derive(Debug, Default)]
pub(super) struct Moved {
    homes: BTreeMap<RegionId, NodeId>,
    /// The regions in the order in which they moved.
    order: VecDeque<RegionId>,
}

impl Moved {
    pub(super) fn home_of(&self, region: RegionId) -> Option<NodeId> {
        self.homes.get(&region).copied()
    }

    fn insert(&mut self, region: RegionId, home: NodeId) {
        self.forget(region);
        if self.order.len() == MOVED_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.homes.remove(&first);
        }
        self.order.push_back(region);
        self.homes.insert(region, home);
    }

    /// Forgets a region that has moved back.
    fn forget(&mut self, region: RegionId) {
        if self.homes.remove(&region).is_some() {
            self.order.retain(|other| *other != region);
        }
    }
}

impl HomeSide<'_> {
    /// Moves all chunks and then the home of a region to a node; or, with `of`, only the chunks of the owner `of`,
    /// which is not the home.
    pub(super) fn start_moving(
        &mut self,
        requester: Requester,
        region: RegionId,
        to: NodeId,
        of: Option<NodeIncarnation>,
    ) {
        let incarnation = if to == self.cx.incarnation().node {
            Some(self.cx.incarnation())
        } else {
            let connected = self.cx.members().peer_of(to).map(|(_, peer)| peer.incarnation);
            connected.or_else(|| self.cx.unmet_member(to))
        };
        let Some(to) = incarnation else {
            let refusal = self.cx.absence_error(to);
            return self.cx.answer(requester, Err(refusal));
        };
        if of.is_none() && self.is_holder_lapsing(region) {
            return self.cx.answer(requester, Err(ErrorReply::Held));
        }
        let moving = Moving::new(to, of);
        let found = self.homes.regions.get(&region).expect("the region is here");
        let (missing, chunk_bytes) = (missing_bytes(&found.extents, &moving), found.chunk_bytes());
        self.homes.begin(region, Busy::new(Some(requester), Stage::Moving(moving)));
        if missing == 0 {
            return self.next_chunk(region);
        }
        let reserve = Request::Reserve { region, chunk_bytes, len: missing, populate: false };
        self.cx.ask_incarnation(to, reserve, Purpose::ReserveForMove(region));
    }

    pub(in crate::engine) fn handle_move_reserved(
        &mut self,
        region: RegionId,
        body: Result<Reply, ErrorReply>,
    ) {
        let Some(found) = self.homes.regions.get(&region) else { return };
        let Some(moving) = found.moving() else { return };
        let missing = missing_bytes(&found.extents, moving);
        match body {
            Ok(Reply::Reserved { extents })
                if layout::is_sound(&extents, missing, found.chunk_bytes())
                    && extents.iter().all(|extent| extent.owner == moving.to) =>
            {
                let moving = self.moving_mut(region);
                moving.places = extents;
                match moving.withdrawn {
                    true => self.stop_between_chunks(region, ErrorReply::Timeout),
                    false => self.next_chunk(region),
                }
            }
            Ok(_) => self.finish_region_command(region, Err(ErrorReply::Malformed)),
            Err(refusal) => self.finish_region_command(region, Err(refusal)),
        }
    }

    fn moving_mut(&mut self, region: RegionId) -> &mut Moving {
        let moving = self.homes.regions.get_mut(&region).and_then(|found| found.moving_mut());
        moving.expect("only called while the region is being moved")
    }

    /// Freezes the next chunk that is not at its new place. If all chunks are at their new places, hands the region
    /// over.
    fn next_chunk(&mut self, region: RegionId) {
        let found = &self.homes.regions[&region];
        let moving = found.moving().expect("the region is being moved");
        let Some(at) = next_chunk_to_move(&found.extents, moving, found.chunk_bytes()) else {
            return self.hand_over(region);
        };
        let len = (found.len - at).min(found.chunk_bytes());
        let layout = (!moving.announced).then(|| found.extents.clone());
        let moving = self.moving_mut(region);
        (moving.at, moving.announced, moving.frozen) = (at, true, true);
        let to = moving.to;
        self.notify_mappers(region, Change::Freeze { from: at, len, layout, to });
    }

    /// Continues a move after all mappers have acknowledged a freeze or the handover.
    pub(super) fn continue_moving(&mut self, region: RegionId) {
        self.park_waiters(region);
        let found = &self.homes.regions[&region];
        let moving = found.moving().expect("the region is being moved");
        if moving.closing && moving.of.is_some() {
            return self.finish_region_command(region, Ok(Reply::Done));
        }
        if moving.withdrawn {
            return self.abort_move(region, ErrorReply::Timeout);
        }
        if moving.closing {
            return self.send_record(region);
        }
        let (from, to) = chunk_places(found, moving);
        self.cx.ask_incarnation(moving.to, Request::CopyChunk { from, to }, Purpose::CopyChunk(region));
    }

    pub(in crate::engine) fn handle_chunk_copied(
        &mut self,
        region: RegionId,
        body: Result<Reply, ErrorReply>,
    ) {
        let Some(found) = self.homes.regions.get_mut(&region) else { return };
        let Some(moving) = found.moving() else { return };
        let (old, new) = chunk_places(found, moving);
        let at = moving.at;
        let body = if moving.withdrawn { body.and(Err(ErrorReply::Timeout)) } else { body };
        let place = if body.is_ok() { new } else { old };
        found.extents = layout::with_range_at(&found.extents, at, place);
        self.moving_mut(region).frozen = false;
        self.announce_place(region, at, place);
        match body {
            Ok(_) => {
                self.return_chunks(&[old]);
                self.moving_mut(region).used += new.len;
                self.next_chunk(region);
            }
            Err(refusal) => self.stop_between_chunks(region, refusal),
        }
    }

    /// Ends a move between two chunks, and returns the memory that was reserved for the rest.
    fn stop_between_chunks(&mut self, region: RegionId, why: ErrorReply) {
        let (unused, owner) = (self.unused_places(region), self.moving_mut(region).to);
        if self.cx.is_present(owner) {
            self.return_chunks(&unused);
        }
        self.announce_home(region, self.cx.incarnation());
        self.finish_region_command(region, Err(why));
    }

    /// Stops the moves that a drain of `node` requested and has given up. `own` are the requests of this node's own
    /// drain, whose regions move as a whole. A chunk that is being copied stays where it is; a home that was sent
    /// moves.
    pub(in crate::engine) fn withdraw_moves(&mut self, node: NodeIncarnation, own: &BTreeSet<RequestId>) {
        let is_own = |requester: &Requester| requester.incarnation == node && own.contains(&requester.id);
        let mut withdrawn = Vec::new();
        self.homes.for_each_busy(|busy| {
            let Busy { requester, stage, queue, .. } = busy;
            if let Stage::Moving(moving) = stage {
                moving.withdrawn |= moving.of == Some(node) || requester.as_ref().is_some_and(is_own);
            }
            queue.retain(|(requester, _, command)| {
                let is_its = matches!(command, RegionCommand::Vacate { .. }) && requester.incarnation == node;
                withdrawn.extend(is_its.then_some(*requester));
                !is_its
            });
        });
        for requester in withdrawn {
            self.cx.answer(requester, Err(ErrorReply::Timeout));
        }
    }

    /// Aborts a move because a mapper did not acknowledge; the current chunk stays in place.
    pub(super) fn abort_move(&mut self, region: RegionId, why: ErrorReply) {
        let moving = self.moving_mut(region);
        match moving.frozen {
            true => self.handle_chunk_copied(region, Err(why)),
            false => self.finish_region_command(region, Err(why)),
        }
    }

    fn unused_places(&mut self, region: RegionId) -> Extents {
        let moving = self.moving_mut(region);
        layout::slice(&moving.places, moving.used, layout::total_len(&moving.places))
    }

    /// Sends new places without waiting: all mappers acknowledged the freeze, so none uses the old place.
    fn announce_place(&mut self, region: RegionId, from: u64, place: Extent) {
        self.notify_mappers_without_waiting(region, Change::Place { from, place });
    }

    fn announce_home(&mut self, region: RegionId, home: NodeIncarnation) {
        self.notify_mappers_without_waiting(region, Change::Settle { home });
    }

    fn notify_mappers_without_waiting(&mut self, region: RegionId, change: Change) {
        let found = self.homes.regions.get_mut(&region).expect("the region is here");
        found.epoch.0 += 1;
        let (epoch, mappers) = (found.epoch, found.mappers.clone());
        for mapper in mappers {
            let request = Request::Change { region, epoch, change: change.clone() };
            self.cx.ask_incarnation(mapper.incarnation, request, Purpose::OneWay);
        }
    }

    /// Continues a move after its last chunk: hands the home over unless it stays.
    fn hand_over(&mut self, region: RegionId) {
        let Moving { to, of, .. } = *self.moving_mut(region);
        if to == self.cx.incarnation() && of.is_none() {
            self.announce_home(region, to);
            return self.finish_region_command(region, Ok(Reply::Done));
        }
        // Messages of the next home take other paths, and must not overtake messages of this home: a late `Place` would
        // thaw a chunk that was frozen again. Likewise, mappers must know the new places of a vacating owner's chunks
        // before they learn of its end.
        self.moving_mut(region).closing = true;
        self.notify_mappers(region, Change::Settle { home: self.cx.incarnation() });
    }

    /// Sends the record to the next home, after all mappers have received all changes from this home.
    fn send_record(&mut self, region: RegionId) {
        let to = self.moving_mut(region).to;
        self.moving_mut(region).adopting = self.cx.is_present(to);
        let mut record = Box::new(self.homes.regions[&region].record(region));
        record.watchers = self.watching.of(region).to_vec();
        record.recovered = self.locks.is_recovered(region);
        self.cx.ask_incarnation(to, Request::Adopt { record }, Purpose::Adopt(region));
        // An earlier record may have reached the next home, with these mappers still listed.
        for (mapper, upto) in self.moving_mut(region).unmapped.clone() {
            self.cx.notify(to.node, Notice::UnmappedBy { region, node: mapper, upto });
        }
    }

    pub(in crate::engine) fn handle_adopted(&mut self, region: RegionId, body: Result<Reply, ErrorReply>) {
        let Some(to) =
            self.homes.regions.get(&region).and_then(|found| found.moving()).map(|moving| moving.to)
        else {
            return;
        };
        let may_live = self.cx.membership().pairings().may_live(to);
        let moving = self.moving_mut(region);
        // An unanswered record may or may not have arrived: the region is at that node, or was lost with it. A second
        // home would not know all mappers.
        let is_unanswered = moving.adopting && matches!(body, Err(ErrorReply::PeerDown(_)));
        if is_unanswered && may_live {
            moving.in_doubt = true;
            let parked = std::mem::take(&mut moving.parked);
            return self.leave_in_doubt(region, to, parked);
        }
        let is_gone = is_unanswered;
        if body.is_err() && !is_gone {
            return self.finish_region_command(region, body);
        }
        let parked = std::mem::take(&mut moving.parked);
        let found = self.homes.remove(region);
        self.homes.usage.give_back(&found.access.maker, found.len);
        self.homes.moved.insert(region, to.node);
        self.watching.forget_region(region);
        self.locks.forget_region(region);
        if !is_gone {
            self.announce_next_home(region, &found, to);
        }
        if let Some(name) = found.name.filter(|_| is_gone) {
            // The directory ignores this if the next home has reported the name.
            self.cx.ask_directory(Request::ReleaseName { name: name.into(), region }, Purpose::OneWay);
        }
        let busy = found.busy.expect("it was being moved");
        if let Some(requester) = busy.requester {
            self.cx.answer(requester, body.map(|_| Reply::Done));
        }
        let waiting = busy
            .queue
            .iter()
            .map(|(requester, ..)| *requester)
            .chain(parked.iter().map(|(requester, ..)| *requester));
        for requester in waiting {
            self.cx.answer(requester, Ok(Reply::MovedTo { home: to.node }));
        }
    }

    /// Announces the next home, which also announces itself. Must precede other messages: a node that first learns of
    /// this node's end must not consider the region lost. If names are outside, informs all nodes, since perhaps only
    /// others reach the store.
    fn announce_next_home(&mut self, region: RegionId, found: &Region, to: NodeIncarnation) {
        let epoch = Epoch(found.epoch.0 + 1);
        if let Some(name) = found.name.as_deref().map(str::to_owned) {
            let notice = Notice::Moved { name, region, epoch, to };
            if self.cx.may_need_other_writers() {
                self.cx.notify_all(&notice);
            }
            self.cx.notify_directory(notice);
        }
        for mapper in &found.mappers {
            let request = Request::Change { region, epoch, change: Change::Settle { home: to } };
            self.cx.ask_incarnation(mapper.incarnation, request, Purpose::OneWay);
        }
    }

    /// Answers the waiting requesters: without a reply from the next home, the region's home is unknown. This node
    /// asks again once reconnected.
    fn leave_in_doubt(&mut self, region: RegionId, to: NodeIncarnation, parked: Vec<(Requester, Request)>) {
        let busy =
            self.homes.regions.get_mut(&region).and_then(|found| found.busy.as_mut()).expect("being moved");
        let waiting =
            busy.requester.take().into_iter().chain(busy.queue.drain(..).map(|(requester, ..)| requester));
        let requesters: Vec<Requester> =
            waiting.chain(parked.into_iter().map(|(requester, _)| requester)).collect();
        requesters
            .into_iter()
            .for_each(|requester| self.cx.answer(requester, Err(ErrorReply::PeerDown(to.node))));
    }

    /// Sends the records again to a reconnected next home, to learn whether it has adopted the regions.
    pub(in crate::engine) fn resume_adoption(&mut self, to: NodeIncarnation) {
        for region in self.in_doubt_of(to) {
            self.moving_mut(region).in_doubt = false;
            self.send_record(region);
        }
    }

    /// Ends handovers to a next home whose incarnation has ended; the regions are lost with it.
    pub(in crate::engine) fn end_adoption(&mut self, to: NodeIncarnation) {
        for region in self.in_doubt_of(to) {
            self.handle_adopted(region, Err(ErrorReply::PeerDown(to.node)));
        }
    }

    fn in_doubt_of(&self, to: NodeIncarnation) -> Vec<RegionId> {
        let is_selected =
            |found: &Region| found.moving().is_some_and(|moving| moving.in_doubt && moving.to == to);
        self.homes.busy_where(is_selected)
    }

    pub(in crate::engine) fn serve_adopt(&mut self, requester: Requester, mut record: Record) {
        let me = self.cx.incarnation();
        // The record was sent before the two nodes lost contact, and has been adopted.
        let all_local = record.extents.iter().all(|extent| extent.owner == me);
        if all_local
            && !record.extents.iter().any(|extent| self.owner.is_held_for(requester.incarnation, extent))
        {
            return self.cx.answer(requester, Ok(Reply::Done));
        }
        let mut local = record.extents.iter().filter(|extent| extent.owner == me);
        let sound = layout::is_chunk_size(record.chunk_bytes)
            && layout::is_sound(&record.extents, record.len, record.chunk_bytes)
            && self.homes.regions.get(&record.region).is_none_or(|found| found.is_being_handed_over())
            && record.name.as_deref().is_none_or(crate::names::is_name)
            && local.all(|extent| self.owner.is_held_for(requester.incarnation, extent));
        if !sound {
            return self.cx.answer(requester, Err(ErrorReply::Malformed));
        }
        let id = record.region;
        if self.homes.regions.contains_key(&id) {
            // The region returned before its adoption was acknowledged.
            self.cx.out().forget_adoption(id);
            self.handle_adopted(id, Ok(Reply::Done));
        }
        self.adopt_watchers(id, std::mem::take(&mut record.watchers));
        self.adopt_lock(&record);
        let mut region = Region::from(record);
        if let Some(name) = region.name.as_deref() {
            // Higher than any epoch that the former home has seen, so its later messages about the name are stale.
            region.epoch.0 += 1;
            let names = vec![(name.to_string(), id, region.epoch)];
            self.cx.notify_directory(Notice::Names { names, done: false });
        }
        self.owner.adopt(&region.extents);
        self.homes.moved.forget(id);
        self.homes.usage.add(&region.access.maker, region.len);
        self.homes.insert(id, region);
        self.announce_home(id, me);
        self.cx.answer(requester, Ok(Reply::Done));
        let mappers: Vec<NodeIncarnation> =
            self.homes.regions[&id].mappers.iter().map(|mapper| mapper.incarnation).collect();
        mappers.iter().for_each(|mapper| self.record_early(id, *mapper));
        // Mappers that ended since the record was written will never acknowledge a change.
        let dead: Vec<NodeIncarnation> =
            mappers.into_iter().filter(|incarnation| self.is_over(*incarnation)).collect();
        dead.into_iter().for_each(|incarnation| self.request_evidence(id, incarnation));
        self.free_if_unreachable(id);
    }

    // Mappers of an adopted region that are not paired with this node.
    //
    //   this node (chooses)         the mapper                 the former home
    //    Welcome(pairing) ────────>  paired: drops its mappings of regions homed at this node
    //                                acknowledges ───────────>  the last change before the handover
    //    <──────────────────────────────────────────── Adopt
    //    <──────── Paired(pairing)   maps the region under this pairing
    //
    // The mapper has dropped regions that were here when the pairing was offered. It still maps regions that came here
    // after that, unless it reports otherwise.

    /// Records that a mapper of an adopted region may already be paired, or was never announced.
    fn record_early(&mut self, region: RegionId, mapper: NodeIncarnation) {
        if self.cx.is_present(mapper) {
            return;
        }
        let membership = self.cx.membership();
        if membership.meeting().has_offered(mapper) {
            self.homes.early.entry(mapper).or_default().insert(region);
        }
        if !membership.pairings().may_live(mapper) && !membership.pairings().has_ended(mapper) {
            self.homes.unannounced.insert(mapper);
        }
    }

    pub(super) fn is_early(&self, region: RegionId, mapper: NodeIncarnation) -> bool {
        self.homes.early.get(&mapper).is_some_and(|regions| regions.contains(&region))
    }

    /// Forgets early regions, because a pairing was offered or an offer failed: when the mapper accepts the next offer,
    /// it drops these regions.
    pub(in crate::engine) fn forget_early(&mut self, mapper: NodeIncarnation) {
        self.homes.early.remove(&mapper);
    }

    /// Records that a mapper was announced: it is paired, or its incarnation has ended.
    pub(in crate::engine) fn record_announced(&mut self, mapper: NodeIncarnation) {
        self.homes.unannounced.remove(&mapper);
    }

    /// Sends a newly paired mapper the changes that it missed of regions mapped since it accepted the pairing.
    pub(in crate::engine) fn inform_early_mapper(&mut self, mapper: NodeIncarnation) {
        let me = self.cx.incarnation();
        for region in self.homes.early.remove(&mapper).unwrap_or_default() {
            let Some(found) = self.homes.regions.get(&region) else { continue };
            let epoch = found.epoch;
            let settle = Request::Change { region, epoch, change: Change::Settle { home: me } };
            let in_flight = found.busy.as_ref().filter(|busy| busy.awaited.contains(&mapper));
            let in_flight = in_flight.and_then(|busy| Some((busy.epoch, change_in_flight(found, busy, me)?)));
            self.cx.ask_incarnation(mapper, settle, Purpose::OneWay);
            if let Some((epoch, change)) = in_flight {
                let request = Request::Change { region, epoch, change };
                self.cx.ask_incarnation(mapper, request, Purpose::Change(region, epoch));
            }
        }
    }
}

/// Returns the change that the command in progress sends to mappers, or `None`.
fn change_in_flight(found: &Region, busy: &Busy, me: NodeIncarnation) -> Option<Change> {
    match &busy.stage {
        Stage::Freeing => Some(Change::Drop),
        Stage::ChangingAccess => {
            Some(Change::Access { access: (*found.access).clone(), sealed: found.sealed })
        }
        Stage::Naming(_) => None,
        Stage::Moving(moving) if moving.closing => Some(Change::Settle { home: me }),
        Stage::Moving(moving) => {
            let len = (found.len - moving.at).min(found.chunk_bytes());
            let layout = Some(found.extents.clone());
            Some(Change::Freeze { from: moving.at, len, layout, to: moving.to })
        }
    }
}

impl Moving {
    fn new(to: NodeIncarnation, of: Option<NodeIncarnation>) -> Moving {
        let places = Extents::new();
        let (announced, frozen, closing, adopting, in_doubt) = (false, false, false, false, false);
        Moving {
            to,
            of,
            places,
            used: 0,
            at: 0,
            withdrawn: false,
            announced,
            frozen,
            closing,
            waiters_are_parked: false,
            adopting,
            in_doubt,
            unmapped: Vec::new(),
            parked: Vec::new(),
        }
    }
}

/// Returns the number of bytes that are not at their new place.
fn missing_bytes(extents: &[Extent], moving: &Moving) -> u64 {
    extents.iter().filter(|extent| moving.covers(extent)).map(|extent| extent.len).sum()
}

/// Returns the offset of the next chunk that is not at its new owner, or `None`.
fn next_chunk_to_move(extents: &[Extent], moving: &Moving, chunk_bytes: u64) -> Option<u64> {
    let mut start = 0;
    for extent in extents {
        let end = start + extent.len;
        // A chunk that could not be copied is not tried again, since `at` only grows.
        let from = start.max(if moving.announced { moving.at + chunk_bytes } else { 0 });
        if moving.covers(extent) && from < end {
            return Some(from);
        }
        start = end;
    }
    None
}

/// Returns the old and the new place of the current chunk.
fn chunk_places(region: &Region, moving: &Moving) -> (Extent, Extent) {
    let chunk_bytes = region.chunk_bytes();
    let from = layout::chunk_extent(&region.extents, chunk_bytes, moving.at / chunk_bytes);
    let to = layout::slice(&moving.places, moving.used, moving.used + from.len);
    (from, to[0])
}
