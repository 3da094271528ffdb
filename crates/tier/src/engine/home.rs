//! The home's side of regions: allocation, mapping, and masters' commands. Each region executes one command at a time.

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
use crate::directory::NAMES_PER_ANSWER_MAX;
use crate::ids::{Epoch, NodeId, NodeIncarnation, Principal, RegionId, RequestId, Requester};
use crate::layout::{self, Extent, Extents};
use crate::message::{Change, Description, ErrorReply, Notice, RegionCommand, Reply, Request};
use crate::names::{self, Service};
use crate::permissions::{AccessList, NAMED_MAX, Permissions};
use crate::quota::RegionUse;
use crate::region::{Busy, Moving, Presence, Region, Stage};

/// Bytes of descriptions from which on a reply ends.
const DESCRIBED_BYTES_MAX: usize = 1 << 20;

/// The regions whose home is this node, that this node is allocating, or that have moved away.
#[derive(Debug, Default)]
pub(super) struct Homes {
    regions: BTreeMap<RegionId, Box<Region>>,
    /// The regions with a command in progress.
    busy: BTreeSet<RegionId>,
    /// The locks.
    locks: BTreeSet<RegionId>,
    creations: BTreeMap<RegionId, Creation>,
    moved: moving::Moved,
    /// Chunks to return to owners that have not yet reported everything that they hold for this node.
    freed_early: BTreeMap<NodeIncarnation, Extents>,
    /// Regions that were adopted after a pairing was offered to their mapper, which may have accepted it already; see
    /// [`moving`].
    early: BTreeMap<NodeIncarnation, BTreeSet<RegionId>>,
    /// Mappers of adopted regions that have not been announced to this node yet.
    unannounced: BTreeSet<NodeIncarnation>,
    last_access: Option<Arc<AccessList>>,
    /// The regions of other principals than the node's own.
    usage: RegionUse,
    /// Names of this node's servers, by the ids under which the directory knows them. They have no region.
    pub(super) servers: BTreeMap<RegionId, String>,
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

    fn insert(&mut self, id: RegionId, region: Region) {
        if region.name.as_deref().is_some_and(|name| Service::Lock.has(name)) {
            self.locks.insert(id);
        }
        self.regions.insert(id, Box::new(region));
    }

    /// Removes a region.
    fn remove(&mut self, region: RegionId) -> Region {
        self.busy.remove(&region);
        self.locks.remove(&region);
        *self.regions.remove(&region).expect("the region is here")
    }

    /// Begins a command of a region.
    fn begin(&mut self, region: RegionId, busy: Busy) {
        self.busy.insert(region);
        self.regions.get_mut(&region).expect("the region is here").busy = Some(Box::new(busy));
    }

    /// Returns the regions with a command in progress for which `is_selected` returns true.
    fn busy_where(&self, is_selected: impl Fn(&Region) -> bool) -> Vec<RegionId> {
        let is_selected = |region: &&RegionId| self.get(region).is_some_and(&is_selected);
        self.busy.iter().filter(is_selected).copied().collect()
    }

    /// Calls `with` with each command in progress. With very many regions, this is much faster than a walk of all.
    fn for_each_busy(&mut self, mut with: impl FnMut(&mut Busy)) {
        for region in &self.busy {
            if let Some(busy) = self.regions.get_mut(region).and_then(|found| found.busy.as_mut()) {
                with(busy);
            }
        }
    }

    pub(super) fn usage(&self) -> &RegionUse {
        &self.usage
    }

    pub(super) fn usage_mut(&mut self) -> &mut RegionUse {
        &mut self.usage
    }

    /// Returns the regions of this home that other nodes can map, with their lengths. Excludes unnamed regions that
    /// only `me` maps: these regions end with this node.
    pub(super) fn mappable_by_others(&self, me: NodeIncarnation) -> impl Iterator<Item = (RegionId, u64)> {
        let is_mappable = move |found: &Region| {
            found.name.is_some() || found.mappers.iter().any(|mapper| mapper.incarnation != me)
        };
        let found = self.regions.iter().filter(move |(_, found)| is_mappable(found));
        found.map(|(region, found)| (*region, found.len))
    }

    /// Returns true if this node is, was or may soon be the home of `region` with the name `name`. True also for an
    /// unnamed region, which may be about to get the name.
    pub(super) fn may_have(&self, region: RegionId, name: &str) -> bool {
        let has_name_or_none = |found: &Region| found.name.as_deref().is_none_or(|its| its == name);
        self.get(&region).is_some_and(has_name_or_none)
            || self.creations.contains_key(&region)
            || self.next_home_of(region).is_some()
            || self.servers.contains_key(&region)
    }

    pub(super) fn has_creations(&self) -> bool {
        !self.creations.is_empty()
    }

    /// Returns the node to which the home of a region has moved from this node, or `None`.
    pub(super) fn next_home_of(&self, region: RegionId) -> Option<NodeId> {
        self.moved.home_of(region)
    }

    /// Returns true if this node, as a mapper, accepts a change of a region. A home accepts only its own changes,
    /// unless it is handing the region over, when the new home may already send changes.
    pub(super) fn accepts_change(&self, region: RegionId, is_local: bool) -> bool {
        self.regions.get(&region).is_none_or(|found| is_local || found.is_being_handed_over())
    }
}

/// The engine state that the home's side may use.
pub(super) struct HomeSide<'a> {
    pub(super) cx: Context<'a>,
    pub(super) homes: &'a mut Homes,
    pub(super) evidence: &'a mut Evidence,
    pub(super) locks: &'a mut Locks,
    pub(super) barriers: &'a mut Barriers,
    pub(super) watching: &'a mut Watching,
    /// Local memory, which may hold chunks of the home's regions.
    pub(super) owner: &'a mut Owner,
}

/// A region being allocated: its name and chunks come from several nodes.
#[derive(Debug)]
struct Creation {
    requester: Requester,
    /// True if the pairing with the requester has ended, so that it accepts no reply.
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

impl Creation {
    /// Records that the directory has given the name to another region.
    fn lose_name(&mut self) {
        self.claimed = false;
        self.failure.get_or_insert(ErrorReply::NameTaken);
    }

    /// Records that the pairing with an incarnation has ended. If that is the requester, it accepts no reply.
    fn lose_requester(&mut self, incarnation: NodeIncarnation) {
        self.is_requester_lost |= self.requester.incarnation == incarnation;
    }

    /// Returns the chunks reserved so far.
    fn chunks(&self) -> impl Iterator<Item = &Extent> {
        self.reserved.values().flatten()
    }

    /// Returns the name if the directory has granted it, else `None`.
    fn claimed_name(&self) -> Option<String> {
        self.name.clone().filter(|_| self.claimed)
    }
}

impl HomeSide<'_> {
    /// Borrows local memory, which may hold chunks of the home's regions.
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
            return self.cx.answer(requester, Err(too_many_pieces(pieces)));
        }
        if let Err(exceeded) = self.homes.usage.take(&maker, len) {
            return self.cx.answer(requester, Err(ErrorReply::Quota(exceeded)));
        }
        let region = RegionId { origin: self.cx.incarnation().id, serial: self.cx.next_number() };
        let shares = shares(len, chunk_bytes, &nodes);
        let creation = Creation {
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
        self.homes.creations.insert(region, creation);
        if let Some(name) = name {
            self.cx.ask_directory(Request::ClaimName { name, region }, Purpose::Claim(region));
        }
        for (node, len) in shares {
            let reserve = Request::Reserve { region, chunk_bytes, len, populate };
            self.cx.ask(node, reserve, Purpose::ReserveForAlloc(region));
        }
    }

    pub(super) fn continue_creation(
        &mut self,
        region: RegionId,
        from: NodeIncarnation,
        body: Result<Reply, ErrorReply>,
    ) {
        let Some(creation) = self.homes.creations.get_mut(&region) else { return };
        creation.answers_missing -= 1;
        match body {
            Ok(Reply::Done) => creation.claimed = true,
            Ok(Reply::Reserved { extents })
                if extents.iter().all(|extent| extent.owner == from && extent.is_sound()) =>
            {
                creation.reserved.insert(from.node, extents);
            }
            Ok(_) => creation.failure = Some(ErrorReply::Malformed),
            // `NotMet` means that a request was not sent. Any other error takes precedence: the name may be
            // claimed.
            Err(refusal) if matches!(creation.failure, None | Some(ErrorReply::NotMet(_))) => {
                creation.failure = Some(refusal);
            }
            Err(_) => {}
        }
        if creation.answers_missing == 0 {
            let creation = self.homes.creations.remove(&region).expect("looked up just before");
            self.finish_creation(region, creation);
        }
    }

    fn finish_creation(&mut self, region: RegionId, mut creation: Creation) {
        let extents = interleave(creation.len, creation.chunk_bytes, &creation.nodes, &creation.reserved);
        let pieces = extents.as_ref().map_or(0, |extents| extents.len());
        if pieces > layout::EXTENTS_MAX {
            creation.failure = Some(too_many_pieces(pieces as u64));
        }
        let Some(extents) = extents.filter(|_| creation.failure.is_none()) else {
            return self.undo_creation(region, creation);
        };
        let access = self.access_list(&creation.maker, creation.everyone);
        let requester = creation.requester;
        let reachable = self.cx.is_present(requester.incarnation) && !creation.is_requester_lost;
        let mut record = Region {
            name: creation.name.map(String::into_boxed_str),
            len: creation.len,
            epoch: Epoch::default(),
            access,
            extents,
            mappers: SmallVec::new(),
            busy: None,
            chunk_bytes_log2: creation.chunk_bytes.trailing_zeros() as u8,
            sealed: false,
        };
        if reachable {
            record.add_mapper(requester);
        }
        let reply = Box::new(record.reply(region, self.cx.incarnation()));
        self.homes.insert(region, record);
        if reachable {
            self.cx.answer(requester, Ok(Reply::Mapped(reply)));
        }
        self.free_if_unreachable(region);
    }

    fn undo_creation(&mut self, region: RegionId, creation: Creation) {
        self.homes.usage.give_back(&creation.maker, creation.len);
        for extents in creation.reserved.into_values() {
            self.return_chunks(&extents);
        }
        let failure = creation.failure.unwrap_or(ErrorReply::Malformed);
        match creation.name.filter(|_| creation.claimed) {
            // Releases the name first: on the failure, the requester may ask another home to use the name.
            Some(name) => {
                let release = Request::ReleaseName { name, region };
                self.cx.ask_directory(release, Purpose::Unclaim(creation.requester, failure));
            }
            None => self.cx.answer(creation.requester, Err(failure)),
        }
    }

    /// Returns the access list of a new region, shared with that of the previous region if equal: a million lists would
    /// cost 100 MB.
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
        name: Option<String>,
    ) {
        if !self.cx.is_present(requester.incarnation) {
            // The requester was lost while its request was parked, and could never acknowledge a change.
            return;
        }
        let Some(found) = self.homes.regions.get_mut(&region) else {
            return self.answer_unknown_region(requester, region);
        };
        if matches!(found.busy.as_deref(), Some(Busy { stage: Stage::Freeing, .. })) {
            return self.cx.answer(requester, Err(ErrorReply::NotFound));
        }
        // A node that does not map the region finds it by name. If the region has no name, the directory has granted
        // one without this home's knowledge, and will take it back.
        let is_mapper =
            |found: &Region| found.mappers.iter().any(|mapper| mapper.incarnation == requester.incarnation);
        let is_found = match &name {
            Some(name) => found.name.as_deref() == Some(name),
            None => found.name.is_some() || is_mapper(found),
        };
        if !is_found {
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
        // All mappers are being informed, or the record is on its way to the next home, which would not wait for a new
        // mapper. It asks the next home afterwards.
        if let Some(moving) = found.moving_mut().filter(|moving| moving.closing) {
            if moving.in_doubt {
                let next = moving.to.node;
                return self.cx.answer(requester, Err(ErrorReply::PeerDown(next)));
            }
            return moving.parked.push((requester, Request::Map { region, principal, wanted, name }));
        }
        found.add_mapper(requester);
        let reply = Box::new(found.reply(region, self.cx.incarnation()));
        self.cx.answer(requester, Ok(Reply::Mapped(reply)));
    }

    fn answer_unknown_region(&mut self, requester: Requester, region: RegionId) {
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
            None => self.answer_unknown_region(requester, region),
        }
    }

    pub(super) fn serve_describe(&mut self, requester: Requester, regions: &[RegionId]) {
        let (mut found, mut bytes) = (Vec::with_capacity(regions.len().min(NAMES_PER_ANSWER_MAX)), 0);
        for region in regions {
            found.push(match self.homes.regions.get(region) {
                Some(known) => {
                    let presence = |incarnation| self.cx.presence_of(incarnation);
                    let info = known.info(*region, self.cx.incarnation(), presence);
                    bytes += info.encoded_bytes();
                    Description::Region(Box::new(info))
                }
                None => match self.homes.moved.home_of(*region) {
                    Some(home) => Description::MovedTo(home),
                    None => Description::NotFound,
                },
            });
            if bytes > DESCRIBED_BYTES_MAX || found.len() == NAMES_PER_ANSWER_MAX {
                break;
            }
        }
        self.cx.answer(requester, Ok(Reply::Described { found }));
    }

    pub(super) fn serve_region_command(
        &mut self,
        requester: Requester,
        region: RegionId,
        principal: Principal,
        command: RegionCommand,
    ) {
        let Some(found) = self.homes.regions.get_mut(&region) else {
            return self.answer_unknown_region(requester, region);
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
            return self.cx.wait_for_inquiry(to, DialWaiter::Request(requester, command));
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
            RegionCommand::Grant { who, .. } | RegionCommand::Revoke { who, .. }
                if !found.access.has_room(&who) =>
            {
                let max = NAMED_MAX as u64;
                self.cx.answer(requester, Err(ErrorReply::TooManyGrants { max }));
            }
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
                // An owner's chunks are freed with the incarnation of their home, so if the home leaves, all chunks
                // move.
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
                self.homes.begin(region, Busy::new(Some(requester), stage));
                self.cx.ask_directory(Request::ClaimName { name, region }, Purpose::Name(region));
            }
        }
    }

    /// Handles the directory's reply to a claim of a name, or the loss of the directory.
    pub(super) fn handle_named(&mut self, region: RegionId, body: Result<Reply, ErrorReply>) {
        let found = self.homes.regions.get_mut(&region).expect("nothing else is done to it until then");
        if let (Ok(_), Some(Stage::Naming(name))) = (&body, found.busy.as_ref().map(|busy| &busy.stage)) {
            found.name = Some(name.clone());
            found.epoch.0 += 1;
        }
        self.finish_region_command(region, body);
    }

    fn start_changing_access(&mut self, requester: Requester, region: RegionId) {
        self.homes.begin(region, Busy::new(Some(requester), Stage::ChangingAccess));
        let found = self.homes.regions.get(&region).expect("the region is here");
        let change = Change::Access { access: (*found.access).clone(), sealed: found.sealed };
        self.notify_mappers(region, change);
    }

    fn start_freeing(&mut self, requester: Option<Requester>, region: RegionId) {
        self.refuse_waiters(region);
        self.watching.forget_region(region);
        let found = self.homes.regions.get_mut(&region).expect("the region is here");
        let mut busy = Busy::new(requester, Stage::Freeing);
        let name = found.name.take();
        busy.has_name = name.is_some();
        self.homes.begin(region, busy);
        if let Some(name) = name {
            // The requester may reuse the name once it learns that the region is free, so release the name first.
            let release = Request::ReleaseName { name: name.into(), region };
            self.cx.ask_directory(release, Purpose::Release(region));
        }
        self.notify_mappers(region, Change::Drop);
    }

    /// Handles the release of a name by the directory, or the loss of the directory.
    pub(super) fn handle_name_released(&mut self, region: RegionId) {
        let busy = self.homes.regions.get_mut(&region).and_then(|found| found.busy.as_mut());
        busy.expect("being freed until then").has_name = false;
        self.continue_if_acknowledged(region);
    }

    /// Sends a change to all mappers. The command continues once each has acknowledged it or is cut off.
    fn notify_mappers(&mut self, region: RegionId, change: Change) {
        self.forget_stalled(region);
        let found = self.homes.regions.get_mut(&region).expect("the region is here");
        found.epoch.0 += 1;
        let (epoch, mappers) = (found.epoch, found.mappers.clone());
        if let Some(busy) = &mut found.busy {
            busy.awaited = mappers.iter().map(|mapper| mapper.incarnation).collect();
            busy.epoch = epoch;
        }
        let (present, absent): (Vec<_>, Vec<_>) = mappers
            .into_iter()
            .map(|mapper| mapper.incarnation)
            .partition(|incarnation| self.cx.is_present(*incarnation));
        for mapper in present {
            let request = Request::Change { region, epoch, change: change.clone() };
            self.cx.ask(mapper.node, request, Purpose::Change(region, epoch));
        }
        // For an absent mapper, `request_evidence` continues the command.
        let is_over = absent.is_empty();
        for mapper in absent {
            self.record_stalled(region);
            self.request_evidence(region, mapper);
        }
        if is_over {
            self.continue_if_acknowledged(region);
        }
    }

    pub(super) fn handle_acknowledged(&mut self, region: RegionId, epoch: Epoch, from: NodeIncarnation) {
        let busy = self.homes.regions.get_mut(&region).and_then(|found| found.busy.as_mut());
        if busy.is_some_and(|busy| busy.epoch == epoch && busy.awaited.remove(&from)) {
            self.continue_if_acknowledged(region);
        }
    }

    fn continue_if_acknowledged(&mut self, region: RegionId) {
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
        let found = self.homes.remove(region);
        self.homes.usage.give_back(&found.access.maker, found.len);
        let busy = found.busy.expect("being freed");
        self.return_chunks(&found.extents);
        if let Some(requester) = busy.requester {
            self.cx.answer(requester, Ok(Reply::Done));
        }
        for (requester, ..) in busy.queue {
            self.cx.answer(requester, Err(ErrorReply::NotFound));
        }
    }

    /// Answers the command in progress and starts the queued commands.
    fn finish_region_command(&mut self, region: RegionId, body: Result<Reply, ErrorReply>) {
        let found = self.homes.regions.get_mut(&region).expect("the region is here");
        let Some(busy) = found.busy.take() else { return };
        self.homes.busy.remove(&region);
        if let Some(requester) = busy.requester {
            self.cx.answer(requester, body);
        }
        self.run_queue(region, busy.queue);
        if busy.lost_name {
            self.free_for_lost_name(region);
        }
        self.free_if_unreachable(region);
        if let Stage::Moving(Moving { parked, .. }) = busy.stage {
            parked.into_iter().for_each(|(requester, request)| self.serve_parked(requester, request));
        }
    }

    /// Drops the waiting requests of a node whose pairing has ended: it would ignore replies in its next pairing.
    pub(super) fn forget_requests_of(&mut self, incarnation: NodeIncarnation) {
        self.homes.freed_early.remove(&incarnation);
        self.evidence.forget_requests_of(incarnation);
        self.homes.creations.values_mut().for_each(|creation| creation.lose_requester(incarnation));
        self.homes.for_each_busy(|busy| {
            busy.queue.retain(|(requester, ..)| requester.incarnation != incarnation);
            if let Stage::Moving(moving) = &mut busy.stage {
                moving.parked.retain(|(requester, _)| requester.incarnation != incarnation);
            }
        });
    }

    /// Removes a lost node from all lists of watchers.
    pub(super) fn forget_watcher(&mut self, incarnation: NodeIncarnation) {
        self.watching.forget_node(incarnation);
    }

    /// Serves a request that waited for the end of a move.
    fn serve_parked(&mut self, requester: Requester, request: Request) {
        match request {
            Request::Map { region, principal, wanted, name } => {
                self.serve_map(requester, region, principal, wanted, name)
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

    /// Frees a lock or barrier that has lost its name, since a lock or barrier without a name is useless. Waits for the
    /// end of the command in progress.
    fn free_for_lost_name(&mut self, region: RegionId) {
        match self.homes.regions.get_mut(&region).map(|found| found.busy.as_mut()) {
            Some(Some(busy)) => busy.lost_name = true,
            Some(None) => self.start_freeing(None, region),
            None => {}
        }
    }

    fn run_queue(&mut self, region: RegionId, queue: VecDeque<(Requester, Principal, RegionCommand)>) {
        // Checks each command again: its predecessor may have removed its permission or started a longer change.
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
                // The next home may list the mapper even if this one does not, since the two nodes may have paired
                // again.
                found.moving_mut().filter(|moving| moving.adopting).map(|moving| {
                    moving.record_unmapped(incarnation, upto);
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

    /// Returns true if the incarnation of a mapper has ended. An incarnation that is not announced yet counts as alive,
    /// since its announcement may be in flight.
    fn is_over(&self, mapper: NodeIncarnation) -> bool {
        self.cx.presence_of(mapper) == Presence::Gone && !self.homes.unannounced.contains(&mapper)
    }

    /// Frees a region that has no name and no mappings, since no node can map it. Mappings of ended incarnations do not
    /// count.
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

fn too_many_pieces(pieces: u64) -> ErrorReply {
    ErrorReply::TooManyPieces { pieces, max: layout::EXTENTS_MAX as u64 }
}

/// Returns how many bytes of a region, striped by chunks, each node holds. Omits nodes that hold none.
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

/// Stripes the reserved chunks over the nodes. Returns `None` if a node did not reserve what was requested.
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
