//! The home's side of regions: making, mapping, and the commands of masters, one at a time per region.

pub(super) mod barriers;
pub(super) mod evidence;
mod held;
pub(super) mod locks;
mod moving;
mod naming;
mod service_moves;
pub(super) mod watching;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use self::barriers::Barriers;
use self::evidence::Evidence;
use self::locks::Locks;
use self::watching::Watching;
use super::context::{Context, Purpose};
use super::on_demand::DialWaiter;
use super::owner::{HomeExtents, Owner, OwnerSide};
use crate::ids::{Epoch, NodeId, NodeIncarnation, Principal, RegionId, RequestId, Requester};
use crate::layout::{self, Extent, Extents};
use crate::message::{Change, ErrorReply, Notice, RegionCommand, Reply, Request};
use crate::names;
use crate::permissions::{AccessList, Permissions};
use crate::region::{Busy, Moving, Presence, Region, Stage};

/// The regions that are at home here, are about to be, or were.
#[derive(Debug, Default)]
pub(super) struct Homes {
    regions: BTreeMap<RegionId, Box<Region>>,
    making: BTreeMap<RegionId, Making>,
    moved: moving::Moved,
    /// Chunks that are given back to owners who have told a part of what they hold for us, when they have told the rest.
    freed_early: BTreeMap<NodeIncarnation, Extents>,
    /// Regions that were handed to us since their mapper was offered a pairing, which it may have taken up: see [`moving`].
    early: BTreeMap<NodeIncarnation, BTreeSet<RegionId>>,
    /// Mappers of regions that were handed to us, of whom we have not heard otherwise yet.
    unheard: BTreeSet<NodeIncarnation>,
    last_access: Option<Arc<AccessList>>,
}

impl HomeExtents for Homes {
    fn extents(&self, region: &RegionId) -> Option<&[Extent]> {
        self.get(region).map(|found| &*found.extents)
    }
}

impl Homes {
    pub(super) fn get(&self, region: &RegionId) -> Option<&Region> {
        self.regions.get(region).map(|found| &**found)
    }

    pub(super) fn len(&self) -> usize {
        self.regions.len()
    }

    /// All regions that are at home here and that others can map, with their lengths: without a name, and mapped by nobody but `me`, one
    /// ends with this node.
    pub(super) fn of_use_to_others(&self, me: NodeIncarnation) -> impl Iterator<Item = (RegionId, u64)> {
        let is_of_use = move |found: &Region| {
            found.name.is_some() || found.mappers.iter().any(|mapper| mapper.incarnation != me)
        };
        let found = self.regions.iter().filter(move |(_, found)| is_of_use(found));
        found.map(|(region, found)| (*region, found.len))
    }

    /// Whether a region of that name is, was, or is about to be at home here.  One that has no name may be about to get it.
    pub(super) fn may_have(&self, region: RegionId, name: &str) -> bool {
        let is_called_so = |found: &Region| found.name.as_deref().is_none_or(|its| its == name);
        self.get(&region).is_some_and(is_called_so)
            || self.making.contains_key(&region)
            || self.next_home_of(region).is_some()
    }

    /// Whether regions are being made.
    pub(super) fn makes_any(&self) -> bool {
        !self.making.is_empty()
    }

    /// Where a region has gone that was at home here.
    pub(super) fn next_home_of(&self, region: RegionId) -> Option<NodeId> {
        self.moved.home_of(region)
    }

    /// A region that is at home here changes on our own word alone.  One that is being handed over may be at home elsewhere by now,
    /// also further on than where we sent it.
    pub(super) fn heeds_change(&self, region: RegionId, is_ours: bool) -> bool {
        self.regions.get(&region).is_none_or(|found| is_ours || found.is_being_handed_over())
    }
}

/// What the home's side may touch.
pub(super) struct HomeSide<'a> {
    pub(super) cx: Context<'a>,
    pub(super) homes: &'a mut Homes,
    pub(super) evidence: &'a mut Evidence,
    pub(super) locks: &'a mut Locks,
    pub(super) barriers: &'a mut Barriers,
    pub(super) watching: &'a mut Watching,
    /// Regions of ours may have chunks of ours.
    pub(super) owner: &'a mut Owner,
}

/// A region that is being made: its name and its chunks come from several nodes.
#[derive(Debug)]
struct Making {
    requester: Requester,
    /// Its pairing with us is over: the answer will mean nothing to it.
    is_requester_lost: bool,
    name: Option<String>,
    len: u64,
    chunk_bytes: u64,
    nodes: Vec<NodeId>,
    maker: Principal,
    everyone: Permissions,
    answers_missing: usize,
    claimed: bool,
    reserved: BTreeMap<NodeId, Extents>,
    failure: Option<ErrorReply>,
}

impl Making {
    /// The directory has given it to another region.
    fn lose_name(&mut self) {
        self.claimed = false;
        self.failure.get_or_insert(ErrorReply::NameTaken);
    }

    /// Nobody takes the answer who asked in a pairing with that incarnation.
    fn lose_requester(&mut self, incarnation: NodeIncarnation) {
        self.is_requester_lost |= self.requester.incarnation == incarnation;
    }

    /// The chunks that it has by now.
    fn chunks(&self) -> impl Iterator<Item = &Extent> {
        self.reserved.values().flatten()
    }

    /// The name of the region to be, if the directory has given it.
    fn claimed_name(&self) -> Option<String> {
        self.name.clone().filter(|_| self.claimed)
    }
}

impl HomeSide<'_> {
    /// Our own memory, for regions that are at home here.
    fn owner(&mut self) -> OwnerSide<'_> {
        OwnerSide { cx: self.cx.reborrow(), owner: self.owner, homes: self.homes }
    }

    pub(super) fn serve_alloc(&mut self, requester: Requester, request: Request) {
        let Request::Alloc { name, len, chunk_bytes, nodes, maker, everyone, populate } = request else {
            return;
        };
        if self.cx.membership().draining().is_on() {
            return self.cx.answer(requester, Err(ErrorReply::Draining(self.cx.incarnation().node)));
        }
        let name_fits = name.as_deref().is_none_or(names::is_name);
        let distinct = nodes.iter().collect::<BTreeSet<_>>().len() == nodes.len();
        if len == 0 || nodes.is_empty() || !name_fits || !distinct {
            return self.cx.answer(requester, Err(ErrorReply::Malformed));
        }
        if !layout::is_chunk_size(chunk_bytes) {
            return self.cx.answer(requester, Err(ErrorReply::BadChunkSize(chunk_bytes)));
        }
        let pieces = if nodes.len() > 1 { layout::chunk_count(len, chunk_bytes) } else { 1 };
        if pieces > layout::EXTENTS_MAX as u64 {
            return self.cx.answer(requester, Err(too_many(pieces)));
        }
        let region = RegionId { origin: self.cx.incarnation().id, serial: self.cx.next_number() };
        let shares = shares(len, chunk_bytes, &nodes);
        let making = Making {
            requester,
            is_requester_lost: false,
            len,
            chunk_bytes,
            nodes,
            maker,
            everyone,
            answers_missing: shares.len() + usize::from(name.is_some()),
            claimed: false,
            reserved: BTreeMap::new(),
            failure: None,
            name: name.clone(),
        };
        self.homes.making.insert(region, making);
        if let Some(name) = name {
            self.cx.ask_directory(Request::ClaimName { name, region }, Purpose::Claim(region));
        }
        for (node, len) in shares {
            let reserve = Request::Reserve { region, chunk_bytes, len, populate };
            self.cx.ask(node, reserve, Purpose::ReserveForAlloc(region));
        }
    }

    pub(super) fn continue_making(
        &mut self,
        region: RegionId,
        from: NodeIncarnation,
        body: Result<Reply, ErrorReply>,
    ) {
        let Some(making) = self.homes.making.get_mut(&region) else { return };
        making.answers_missing -= 1;
        match body {
            Ok(Reply::Done) => making.claimed = true,
            Ok(Reply::Reserved { extents })
                if extents.iter().all(|extent| extent.owner == from && extent.is_sound()) =>
            {
                making.reserved.insert(from.node, extents);
            }
            Ok(_) => making.failure = Some(ErrorReply::Malformed),
            Err(refusal) => {
                making.failure.get_or_insert(refusal);
            }
        }
        if making.answers_missing == 0 {
            let making = self.homes.making.remove(&region).expect("looked up just before");
            self.finish_making(region, making);
        }
    }

    fn finish_making(&mut self, region: RegionId, mut making: Making) {
        let extents = interleave(making.len, making.chunk_bytes, &making.nodes, &making.reserved);
        let pieces = extents.as_ref().map_or(0, |extents| extents.len());
        if pieces > layout::EXTENTS_MAX {
            making.failure = Some(too_many(pieces as u64));
        }
        let Some(extents) = extents.filter(|_| making.failure.is_none()) else {
            return self.undo_making(region, making);
        };
        let access = self.access_list(&making.maker, making.everyone);
        let requester = making.requester;
        let reachable = self.cx.is_present(requester.incarnation) && !making.is_requester_lost;
        let mut record = Region {
            name: making.name.map(String::into_boxed_str),
            len: making.len,
            epoch: Epoch::default(),
            access,
            extents,
            mappers: SmallVec::new(),
            busy: None,
            chunk_bytes_log2: making.chunk_bytes.trailing_zeros() as u8,
            sealed: false,
        };
        if reachable {
            record.add_mapper(requester);
        }
        let reply = Box::new(record.reply(region, self.cx.incarnation()));
        self.homes.regions.insert(region, Box::new(record));
        if reachable {
            self.cx.answer(requester, Ok(Reply::Mapped(reply)));
        }
        self.free_if_unreachable(region);
    }

    fn undo_making(&mut self, region: RegionId, making: Making) {
        for extents in making.reserved.into_values() {
            self.return_chunks(&extents);
        }
        let failure = making.failure.unwrap_or(ErrorReply::Malformed);
        match making.name.filter(|_| making.claimed) {
            // Who hears that there is no region may ask another home for one of that name.
            Some(name) => {
                let release = Request::ReleaseName { name, region };
                self.cx.ask_directory(release, Purpose::Unclaim(making.requester, failure));
            }
            None => self.cx.answer(making.requester, Err(failure)),
        }
    }

    /// Regions of one maker share one list until a grant sets them apart: a million lists would cost 100 MB.
    fn access_list(&mut self, maker: &Principal, everyone: Permissions) -> Arc<AccessList> {
        let wanted = AccessList::new(maker.clone(), everyone);
        match &self.homes.last_access {
            Some(last) if **last == wanted => last.clone(),
            _ => self.homes.last_access.insert(Arc::new(wanted)).clone(),
        }
    }

    pub(super) fn serve_map(
        &mut self,
        requester: Requester,
        region: RegionId,
        principal: Principal,
        wanted: Permissions,
    ) {
        if !self.cx.is_present(requester.incarnation) {
            // It died while its request was parked: nobody would ever acknowledge a change for it.
            return;
        }
        let Some(found) = self.homes.regions.get_mut(&region) else {
            return self.answer_absent(requester, region);
        };
        if matches!(found.busy.as_deref(), Some(Busy { stage: Stage::Freeing, .. })) {
            return self.cx.answer(requester, Err(ErrorReply::NotFound));
        }
        // A node that does not map the region yet finds it by name.  If the region has none, the directory has given one without our
        // knowledge, and takes it back.
        let is_mapper =
            |found: &Region| found.mappers.iter().any(|mapper| mapper.incarnation == requester.incarnation);
        if found.name.is_none() && !is_mapper(found) {
            return self.cx.answer(requester, Err(ErrorReply::NotFound));
        }
        let missing = wanted - found.access.of(&principal);
        let changes = Permissions::WRITE | Permissions::ATOMIC;
        if !missing.is_empty() {
            return self.cx.answer(requester, Err(ErrorReply::PermissionDenied { missing }));
        }
        if found.sealed && wanted.intersects(changes) {
            return self.cx.answer(requester, Err(ErrorReply::Sealed));
        }
        // All mappers are being told, or the record is on its way to the next home: of this one nobody would wait until it has heard of
        // changes there.  It asks there when that is done.
        if let Some(moving) = found.moving_mut().filter(|moving| moving.closing) {
            if moving.in_doubt {
                let next = moving.to.node;
                return self.cx.answer(requester, Err(ErrorReply::PeerDown(next)));
            }
            return moving.parked.push((requester, Request::Map { region, principal, wanted }));
        }
        found.add_mapper(requester);
        let reply = Box::new(found.reply(region, self.cx.incarnation()));
        self.cx.answer(requester, Ok(Reply::Mapped(reply)));
    }

    fn answer_absent(&mut self, requester: Requester, region: RegionId) {
        let reply = match self.homes.moved.home_of(region) {
            Some(home) => Ok(Reply::MovedTo { home }),
            None => Err(ErrorReply::NotFound),
        };
        self.cx.answer(requester, reply);
    }

    pub(super) fn serve_stat(&mut self, requester: Requester, region: RegionId) {
        match self.homes.regions.get(&region) {
            Some(found) => {
                let info = Box::new(
                    found.info(region, self.cx.incarnation(), |incarnation| self.cx.presence_of(incarnation)),
                );
                self.cx.answer(requester, Ok(Reply::Info(info)));
            }
            None => self.answer_absent(requester, region),
        }
    }

    pub(super) fn serve_region_command(
        &mut self,
        requester: Requester,
        region: RegionId,
        principal: Principal,
        command: RegionCommand,
    ) {
        let Some(found) = self.homes.regions.get_mut(&region) else {
            return self.answer_absent(requester, region);
        };
        let is_allowed = match command {
            RegionCommand::Vacate { .. } => {
                let is_its = |extent: &Extent| extent.owner == requester.incarnation;
                requester.incarnation == self.cx.incarnation() || found.extents.iter().any(is_its)
            }
            _ => found.access.of(&principal).contains(Permissions::MASTER),
        };
        if !is_allowed {
            return self
                .cx
                .answer(requester, Err(ErrorReply::PermissionDenied { missing: Permissions::MASTER }));
        }
        if let Some(moving) = found.moving().filter(|moving| moving.in_doubt) {
            let next = moving.to.node;
            return self.cx.answer(requester, Err(ErrorReply::PeerDown(next)));
        }
        if let RegionCommand::Move { to } | RegionCommand::Vacate { to } = command
            && self.cx.inquire(to)
        {
            let command = Box::new(Request::RegionCommand { region, principal, command });
            return self.cx.wait_until_told(to, DialWaiter::Request(requester, command));
        }
        match &mut found.busy {
            Some(busy) => busy.queue.push_back((requester, principal, command)),
            None => self.start_region_command(requester, region, command),
        }
    }

    fn start_region_command(&mut self, requester: Requester, region: RegionId, command: RegionCommand) {
        let found =
            self.homes.regions.get_mut(&region).expect("commands are started on regions that are here");
        match command {
            RegionCommand::Free => self.start_freeing(Some(requester), region),
            RegionCommand::Grant { who, permissions } => {
                found.epoch.0 += 1;
                Arc::make_mut(&mut found.access).grant(&who, permissions);
                self.cx.answer(requester, Ok(Reply::Done));
            }
            RegionCommand::Revoke { who, permissions } => {
                let mut access = (*found.access).clone();
                access.revoke(&who, permissions);
                if !access.has_master() {
                    return self.cx.answer(requester, Err(ErrorReply::LastMaster));
                }
                found.access = Arc::new(access);
                self.start_changing_access(requester, region);
            }
            RegionCommand::Seal => {
                found.sealed = true;
                self.start_changing_access(requester, region);
            }
            RegionCommand::Move { to } => self.start_moving(requester, region, to, None),
            RegionCommand::Vacate { to } => {
                // Others hold chunks for a home, and free them with its end: so where the home leaves, all go with it.
                let of =
                    Some(requester.incarnation).filter(|incarnation| *incarnation != self.cx.incarnation());
                self.start_moving(requester, region, to, of)
            }
            RegionCommand::SetName { name } => self.start_naming(requester, region, name),
        }
    }

    fn start_naming(&mut self, requester: Requester, region: RegionId, name: String) {
        let found = self.homes.regions.get_mut(&region).expect("the region is here");
        if !names::is_name(&name) || names::is_reserved(&name) {
            return self.cx.answer(requester, Err(ErrorReply::Malformed));
        }
        match found.name.as_deref() {
            Some(ours) if ours == name => self.cx.answer(requester, Ok(Reply::Done)),
            Some(_) => self.cx.answer(requester, Err(ErrorReply::HasName)),
            None => {
                let stage = Stage::Naming(name.as_str().into());
                found.busy = Some(Box::new(Busy::new(Some(requester), stage)));
                self.cx.ask_directory(Request::ClaimName { name, region }, Purpose::Name(region));
            }
        }
    }

    /// The directory has given the name or not, or is gone with all that it knew.
    pub(super) fn handle_named(&mut self, region: RegionId, body: Result<Reply, ErrorReply>) {
        let found = self.homes.regions.get_mut(&region).expect("nothing else is done to it until then");
        if let (Ok(_), Some(Stage::Naming(name))) = (&body, found.busy.as_ref().map(|busy| &busy.stage)) {
            found.name = Some(name.clone());
            found.epoch.0 += 1;
        }
        self.finish_region_command(region, body);
    }

    fn start_changing_access(&mut self, requester: Requester, region: RegionId) {
        let found = self.homes.regions.get_mut(&region).expect("the region is here");
        found.busy = Some(Box::new(Busy::new(Some(requester), Stage::ChangingAccess)));
        let change = Change::Access { access: (*found.access).clone(), sealed: found.sealed };
        self.tell_mappers(region, change);
    }

    fn start_freeing(&mut self, requester: Option<Requester>, region: RegionId) {
        self.refuse_waiters(region);
        self.watching.forget_region(region);
        let found = self.homes.regions.get_mut(&region).expect("the region is here");
        let mut busy = Busy::new(requester, Stage::Freeing);
        let name = found.name.take();
        busy.has_name = name.is_some();
        found.busy = Some(Box::new(busy));
        if let Some(name) = name {
            // Who hears that the region is free may use its name.
            let release = Request::ReleaseName { name: name.into(), region };
            self.cx.ask_directory(release, Purpose::Release(region));
        }
        self.tell_mappers(region, Change::Drop);
    }

    /// The directory knows, or is gone with all that it knew.
    pub(super) fn handle_name_released(&mut self, region: RegionId) {
        let busy = self.homes.regions.get_mut(&region).and_then(|found| found.busy.as_mut());
        busy.expect("it is being freed until then").has_name = false;
        self.go_on_if_acknowledged(region);
    }

    /// Tells all mappers of a change and goes on when all have acknowledged it, or cannot touch the region any more.
    fn tell_mappers(&mut self, region: RegionId, change: Change) {
        self.forget_stalled(region);
        let found = self.homes.regions.get_mut(&region).expect("the region is here");
        found.epoch.0 += 1;
        let (epoch, mappers) = (found.epoch, found.mappers.clone());
        if let Some(busy) = &mut found.busy {
            busy.awaited = mappers.iter().map(|mapper| mapper.incarnation).collect();
            busy.epoch = epoch;
        }
        let (present, apart): (Vec<_>, Vec<_>) = mappers
            .into_iter()
            .map(|mapper| mapper.incarnation)
            .partition(|incarnation| self.cx.is_present(*incarnation));
        for mapper in present {
            let request = Request::Change { region, epoch, change: change.clone() };
            self.cx.ask(mapper.node, request, Purpose::Change(region, epoch));
        }
        // What follows may begin with the last of these.
        let is_over = apart.is_empty();
        for mapper in apart {
            self.note_stalled(region);
            self.seek(region, mapper);
        }
        if is_over {
            self.go_on_if_acknowledged(region);
        }
    }

    pub(super) fn handle_acknowledged(&mut self, region: RegionId, epoch: Epoch, from: NodeIncarnation) {
        let busy = self.homes.regions.get_mut(&region).and_then(|found| found.busy.as_mut());
        if busy.is_some_and(|busy| busy.epoch == epoch && busy.awaited.remove(&from)) {
            self.go_on_if_acknowledged(region);
        }
    }

    fn go_on_if_acknowledged(&mut self, region: RegionId) {
        let Some(busy) = self.homes.regions.get(&region).and_then(|found| found.busy.as_ref()) else {
            return;
        };
        if !busy.awaited.is_empty() || busy.has_name {
            return;
        }
        match &busy.stage {
            Stage::Freeing => self.finish_freeing(region),
            Stage::Naming(_) => {}
            Stage::ChangingAccess => self.finish_region_command(region, Ok(Reply::Done)),
            Stage::Moving(_) => self.continue_moving(region),
        }
    }

    fn finish_freeing(&mut self, region: RegionId) {
        let found = self.homes.regions.remove(&region).expect("the region is here");
        let busy = found.busy.expect("it is being freed");
        self.return_chunks(&found.extents);
        if let Some(requester) = busy.requester {
            self.cx.answer(requester, Ok(Reply::Done));
        }
        for (requester, ..) in busy.queue {
            self.cx.answer(requester, Err(ErrorReply::NotFound));
        }
    }

    /// Answers the command under way and starts those that came meanwhile.
    fn finish_region_command(&mut self, region: RegionId, body: Result<Reply, ErrorReply>) {
        let found = self.homes.regions.get_mut(&region).expect("the region is here");
        let Some(busy) = found.busy.take() else { return };
        if let Some(requester) = busy.requester {
            self.cx.answer(requester, body);
        }
        self.run_queue(region, busy.queue);
        if busy.lost_name {
            self.end_for_its_name(region);
        }
        self.free_if_unreachable(region);
        if let Stage::Moving(Moving { parked, .. }) = busy.stage {
            parked.into_iter().for_each(|(requester, request)| self.serve_parked(requester, request));
        }
    }

    /// Requests of a node that wait for something are not answered any more: in the next pairing nobody would know of what they bring.
    pub(super) fn forget_what_is_asked_by(&mut self, incarnation: NodeIncarnation) {
        self.homes.freed_early.remove(&incarnation);
        self.evidence.forget_what_is_asked_by(incarnation);
        self.homes.making.values_mut().for_each(|making| making.lose_requester(incarnation));
        for busy in self.homes.regions.values_mut().filter_map(|found| found.busy.as_mut()) {
            busy.queue.retain(|(requester, ..)| requester.incarnation != incarnation);
            if let Stage::Moving(moving) = &mut busy.stage {
                moving.parked.retain(|(requester, _)| requester.incarnation != incarnation);
            }
        }
    }

    /// A node is gone: it is told of nothing any more.
    pub(super) fn forget_watcher(&mut self, incarnation: NodeIncarnation) {
        self.watching.forget_node(incarnation);
    }

    /// It has waited for the end of a move.
    fn serve_parked(&mut self, requester: Requester, request: Request) {
        match request {
            Request::Map { region, principal, wanted } => {
                self.serve_map(requester, region, principal, wanted)
            }
            Request::Lock { region, principal, session, wait, base_ns } => {
                self.serve_lock(locks::Waiter::new(requester, session, principal, base_ns), region, wait)
            }
            Request::Unlock { region, session, recover } => {
                self.serve_unlock(requester, region, session, recover)
            }
            Request::Arrive { region, principal, participants, timeout_ns } => {
                self.serve_arrival(requester, region, &principal, participants, timeout_ns)
            }
            request => self.serve_watching(requester, request),
        }
    }

    /// Another lock or barrier has the name of this one, which is of no use without it: it ends after the command under way.
    fn end_for_its_name(&mut self, region: RegionId) {
        match self.homes.regions.get_mut(&region).map(|found| found.busy.as_mut()) {
            Some(Some(busy)) => busy.lost_name = true,
            Some(None) => self.start_freeing(None, region),
            None => {}
        }
    }

    fn run_queue(&mut self, region: RegionId, queue: VecDeque<(Requester, Principal, RegionCommand)>) {
        // Each is judged anew: the command before may have taken its right away, or begun something longer.
        for (requester, principal, command) in queue {
            self.serve_region_command(requester, region, principal, command);
        }
    }

    pub(super) fn handle_unmapped(
        &mut self,
        region: RegionId,
        incarnation: NodeIncarnation,
        upto: RequestId,
    ) {
        self.watching.forget_unmapped(region, incarnation, upto);
        let next_home = match self.homes.regions.get_mut(&region) {
            Some(found) => {
                found.remove_mapper(incarnation, upto);
                // The next home may list it, also where we do not any more: the two of us may have been paired anew since.
                found.moving_mut().filter(|moving| moving.adopting).map(|moving| {
                    moving.note_unmapped(incarnation, upto);
                    moving.to.node
                })
            }
            None => self.homes.moved.home_of(region),
        };
        if let Some(home) = next_home {
            self.cx.notify(home, Notice::UnmappedBy { region, node: incarnation, upto });
        }
        self.free_if_unreachable(region);
    }

    /// Whether the incarnation of a mapper is over.  That of one of whom we have never heard need not be: the directory's word of it may be
    /// under way.
    fn is_over(&self, mapper: NodeIncarnation) -> bool {
        self.cx.presence_of(mapper) == Presence::Gone && !self.homes.unheard.contains(&mapper)
    }

    /// A region without a name can be mapped by nobody else: it ends with its last mapping.  The dead map nothing.
    fn free_if_unreachable(&mut self, region: RegionId) {
        let Some(found) = self.homes.regions.get(&region) else { return };
        let is_mapped = found.mappers.iter().any(|mapper| !self.is_over(mapper.incarnation));
        if found.name.is_none() && !is_mapped && found.busy.is_none() {
            self.start_freeing(None, region);
        }
    }
}

impl Busy {
    pub(super) fn new(requester: Option<Requester>, stage: Stage) -> Busy {
        let (awaited, epoch, queue) = (BTreeSet::new(), Epoch(0), VecDeque::new());
        Busy { requester, stage, awaited, epoch, has_name: false, lost_name: false, queue }
    }
}

fn too_many(pieces: u64) -> ErrorReply {
    ErrorReply::TooManyPieces { pieces, max: layout::EXTENTS_MAX as u64 }
}

/// How many bytes each node holds of a region that is dealt out chunk by chunk; nodes without any are left out.
fn shares(len: u64, chunk_bytes: u64, nodes: &[NodeId]) -> Vec<(NodeId, u64)> {
    let (chunks, count) = (layout::chunk_count(len, chunk_bytes), nodes.len() as u64);
    let last_len = layout::chunk_len(len, chunk_bytes, chunks - 1);
    let share = |index: u64| {
        let own = (chunks + count - 1 - index) / count;
        let has_last = (chunks - 1) % count == index;
        if has_last { (own - 1) * chunk_bytes + last_len } else { own * chunk_bytes }
    };
    nodes
        .iter()
        .enumerate()
        .map(|(index, node)| (*node, share(index as u64)))
        .filter(|(_, len)| *len > 0)
        .collect()
}

/// Deals the reserved chunks out in turn; `None` if some node reserved something else than was asked of it.
fn interleave(
    len: u64,
    chunk_bytes: u64,
    nodes: &[NodeId],
    reserved: &BTreeMap<NodeId, Extents>,
) -> Option<Extents> {
    for (node, share) in shares(len, chunk_bytes, nodes) {
        let extents = reserved.get(&node)?;
        let owned = extents.iter().all(|extent| extent.owner.node == node);
        if !owned || !layout::is_sound(extents, share, chunk_bytes) {
            return None;
        }
    }
    if let [node] = nodes {
        return reserved.get(node).cloned();
    }
    let mut result = Extents::new();
    for index in 0..layout::chunk_count(len, chunk_bytes) {
        let extents = &reserved[&nodes[(index % nodes.len() as u64) as usize]];
        layout::append(&mut result, layout::chunk_extent(extents, chunk_bytes, index / nodes.len() as u64));
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_differ_by_one_chunk_at_most() {
        let nodes: Vec<NodeId> = (0..3).map(NodeId).collect();
        for len in [1, 4096, 4097, 8192, 12_288, 12_289, 40_960, 50_001] {
            let shares = shares(len, 4096, &nodes);
            assert_eq!(shares.iter().map(|(_, len)| len).sum::<u64>(), len);
            let most = shares.iter().map(|(_, len)| len.div_ceil(4096)).max().unwrap();
            let least = if shares.len() < 3 {
                0
            } else {
                shares.iter().map(|(_, l)| l.div_ceil(4096)).min().unwrap()
            };
            assert!(most - least <= 1, "{shares:?}");
        }
    }
}
