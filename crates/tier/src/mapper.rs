//! The mapper: the regions that sessions of this node map, and changes of these regions.
//!
//! A change takes effect in two steps, so that no access uses the old state after the acknowledgement:
//!
//! ```text
//!  change arrives ── state changes, handles freeze ── Quiesce ── handles get the new view ── acknowledged
//! ```
//!
//! A change that arrives during another change alters the state at once. The handles stay frozen until the last change
//! has finished.

mod resolve;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use halite_fabric::{Key, PeerId, RemoteAddress};
use halite_mem::{Elapsed, Window};

use crate::access::{DataPath, Mapping, Piece, Pieces, Place, SlotRef, View};
use crate::effect::{PostedTo, Quiesce, Token};
use crate::ids::{NodeIncarnation, Principal, RegionId, SessionId};
use crate::layout::{self, Extent, Extents};
use crate::message::{Change, MappedReply};
use crate::permissions::{AccessList, Permissions};

pub use resolve::Known;

/// Finds memory of other nodes that loads and stores reach. The driver implements this trait over the fabric.
pub trait Reach: Send + Sync {
    /// Returns the memory behind `key` of `peer` if loads and stores reach it, else `None`.
    fn window(&self, peer: PeerId, key: Key) -> Option<Window>;
}

/// Determines how this node reaches extents: by loads and stores, by posted operations, or not at all.
pub trait Locate {
    /// Returns how this node reaches `extent`.
    fn place(&self, extent: &Extent) -> Place;
}

/// A region that this node maps.
#[derive(Debug)]
struct Mapped {
    /// The only handle, or the first one in `Mapper::more`.
    first: u32,
    /// Index of the home in `Mapper::incarnations`.
    home: u32,
    /// Index of the owner of all bytes if the view is one window, else [`SEVERAL`].
    owner: u32,
}

const SEVERAL: u32 = u32::MAX;

/// The layout of a region that is not one window.
#[derive(Debug)]
struct StoredLayout {
    extents: Extents,
    frozen: Option<(u64, u64)>,
}

/// Handles that are frozen while a region changes.
#[derive(Debug, Default)]
struct Changing {
    tokens: BTreeSet<Token>,
    slots: BTreeSet<u32>,
    access: Option<(AccessList, bool)>,
    /// True if a handle was added during the change, so that its view may be newer than the views of the other handles.
    has_newer: bool,
}

/// The state that waits for the end of a grace period.
#[derive(Debug)]
enum TokenWaiter {
    Region(RegionId),
    Retired(Vec<u32>),
    Quiesced,
}

/// The mapper's state of one session.
#[derive(Debug)]
struct SessionState {
    principal: Principal,
    /// Number of handles.
    handles: u64,
}

/// All regions that sessions of this node map.
#[derive(Debug)]
pub struct Mapper {
    path: Arc<DataPath>,
    regions: BTreeMap<RegionId, Mapped>,
    more: BTreeMap<RegionId, BTreeSet<u32>>,
    layouts: BTreeMap<RegionId, StoredLayout>,
    /// Pairs of an owner and a home that has ended according to the owner, which therefore holds no chunks for it.
    disowned: BTreeSet<(NodeIncarnation, NodeIncarnation)>,
    changing: BTreeMap<RegionId, Changing>,
    waiting: BTreeMap<Token, TokenWaiter>,
    /// Homes and owners of mapped regions, by index.
    incarnations: BTreeMap<u32, NodeIncarnation>,
    /// Keys of segments that contain a region reached as one window, by owner and segment. There are few segments and
    /// millions of regions, so regions do not store their keys.
    keys: BTreeMap<(u32, usize), Key>,
    /// Incarnations that are unreachable.
    dead: BTreeSet<NodeIncarnation>,
    /// Incarnations that have ended but have regions that are still mapped.
    ended: BTreeSet<NodeIncarnation>,
    sessions: BTreeMap<SessionId, SessionState>,
    last_session: SessionId,
    tokens: u64,
}

impl Mapper {
    /// Creates a mapper without regions, which keeps its handles in the handle table of `path`.
    pub fn new(path: Arc<DataPath>) -> Mapper {
        Mapper {
            path,
            regions: BTreeMap::new(),
            more: BTreeMap::new(),
            layouts: BTreeMap::new(),
            disowned: BTreeSet::new(),
            changing: BTreeMap::new(),
            waiting: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            keys: BTreeMap::new(),
            dead: BTreeSet::new(),
            ended: BTreeSet::new(),
            sessions: BTreeMap::new(),
            last_session: SessionId(u16::MAX),
            tokens: 0,
        }
    }

    /// Opens a session that acts as `principal`. Returns `None` at the maximum number of sessions.
    pub fn open_session(&mut self, principal: Principal) -> Option<SessionId> {
        // The next number is free unless tens of thousands of sessions were opened since it was last used.
        let last = self.last_session.0;
        let session = (1..=u16::MAX)
            .chain([0])
            .map(|step| SessionId(last.wrapping_add(step)))
            .find(|id| !self.sessions.contains_key(id))?;
        self.last_session = session;
        self.sessions.insert(session, SessionState { principal, handles: 0 });
        Some(session)
    }

    /// Ends a session whose handles are already removed.
    pub fn close_session(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// Returns the principal of a session, or `None` if the session is not open.
    pub fn principal(&self, session: SessionId) -> Option<&Principal> {
        self.sessions.get(&session).map(|session_state| &session_state.principal)
    }

    /// Returns the number of handles of a session.
    pub fn handle_count_of(&self, session: SessionId) -> u64 {
        self.sessions.get(&session).map_or(0, |session_state| session_state.handles)
    }

    /// Returns the number of handles of all sessions.
    pub fn handle_count(&self) -> usize {
        self.path.slots().len()
    }

    /// Adds a handle of `session` to the region that its home describes in `reply`, and returns the handle's slot.
    pub fn insert(
        &mut self,
        reply: &MappedReply,
        session: SessionId,
        permissions: Permissions,
        locate: &dyn Locate,
    ) -> SlotRef {
        let home = self.incarnation_index(reply.home);
        // While the region changes, its other handles still have to receive the view of these extents, so the extents
        // are kept until then.
        let is_changing = match self.changing.get_mut(&reply.region) {
            Some(changing) => {
                changing.has_newer = true;
                true
            }
            None => false,
        };
        let whole = Mapper::whole(reply, locate).filter(|_| !is_changing);
        if whole.is_some() {
            self.layouts.remove(&reply.region);
        } else {
            let stored = StoredLayout { extents: reply.extents.clone(), frozen: reply.frozen };
            self.layouts.insert(reply.region, stored);
        }
        let owner = whole.map_or(SEVERAL, |extent| self.incarnation_index(extent.owner));
        let view = self.view(reply.home, &reply.extents, reply.frozen, locate);
        if let (Some(extent), View::Whole(window)) = (whole, &view) {
            self.remember_key(owner, window, extent.key);
        }
        let mapping = Mapping { view, region: reply.region, session, permissions, sealed: reply.sealed };
        let (index, generation) = self.path.slots().insert(mapping);
        if let Some(session_state) = self.sessions.get_mut(&session) {
            session_state.handles += 1;
        }
        match self.regions.get_mut(&reply.region) {
            None => {
                self.regions.insert(reply.region, Mapped { first: index, home, owner });
            }
            Some(mapped) => {
                (mapped.home, mapped.owner) = (home, owner);
                let first = mapped.first;
                self.more.entry(reply.region).or_insert_with(|| BTreeSet::from([first])).insert(index);
            }
        }
        SlotRef { index, generation }
    }

    /// Returns the extent of the whole region if this node reaches it as one window, else `None`.
    fn whole(reply: &MappedReply, locate: &dyn Locate) -> Option<Extent> {
        match (&reply.extents[..], reply.frozen) {
            ([extent], None) => matches!(locate.place(extent), Place::Direct(_)).then_some(*extent),
            _ => None,
        }
    }

    fn remember_key(&mut self, owner: u32, window: &Window, key: Key) {
        self.keys.insert((owner, segment_of(window)), key);
    }

    fn incarnation_index(&mut self, incarnation: NodeIncarnation) -> u32 {
        self.index_of(incarnation).unwrap_or_else(|| {
            let mut all = 0..SEVERAL;
            let index = all
                .find(|index| !self.incarnations.contains_key(index))
                .expect("fewer incarnations than indices");
            self.incarnations.insert(index, incarnation);
            index
        })
    }

    fn index_of(&self, incarnation: NodeIncarnation) -> Option<u32> {
        self.incarnations.iter().find(|(_, known)| **known == incarnation).map(|(index, _)| *index)
    }

    /// Returns the region behind a handle and the region's home, or `None` if the handle does not belong to `session`.
    pub fn region_of(&self, session: SessionId, slot: SlotRef) -> Option<(RegionId, NodeIncarnation)> {
        let region = self.inspect_handle(session, slot, |mapping| mapping.region)?;
        Some((region, self.home_of(region)?))
    }

    /// Returns the permissions of a handle, or `None` if the handle does not belong to `session`.
    pub fn permissions_of(&self, session: SessionId, slot: SlotRef) -> Option<Permissions> {
        self.inspect_handle(session, slot, |mapping| mapping.permissions)
    }

    /// Reads from a handle of `session`, even from a frozen handle.
    fn inspect_handle<T>(&self, session: SessionId, slot: SlotRef, get: impl Fn(&Mapping) -> T) -> Option<T> {
        let get = |mapping: &Mapping| (mapping.session == session).then(|| get(mapping));
        let pin = self.path.pins().pin();
        match self.path.slots().get(&pin, slot.index, slot.generation) {
            halite_mem::Lookup::Found(mapping) => get(mapping),
            halite_mem::Lookup::Stale => None,
            halite_mem::Lookup::Busy => {
                drop(pin);
                self.path.slots().inspect(slot.index, get)?
            }
        }
    }

    /// Returns the region behind the handle at `index` of the handle table, or `None` if there is no such handle.
    pub fn path_region(&self, index: u32) -> Option<RegionId> {
        self.path.slots().inspect(index, |mapping| mapping.region)
    }

    /// Returns the home of a region; `None` if this node does not map the region.
    pub fn home_of(&self, region: RegionId) -> Option<NodeIncarnation> {
        self.regions.get(&region).map(|mapped| self.incarnations[&mapped.home])
    }

    /// Removes the handle at `index`. Returns its region, whether this was the region's last handle, and the grace
    /// period after which no access uses the handle; `None` if there is no such handle.
    pub fn remove(&mut self, index: u32) -> Option<(RegionId, bool, Quiesce)> {
        let region = self.path.slots().inspect(index, |mapping| mapping.region)?;
        let posted = self.owners_of(region, &[index]);
        if !self.retire(index) {
            return None;
        }
        if let Some(changing) = self.changing.get_mut(&region) {
            changing.slots.remove(&index);
        }
        let last = self.forget_handle(region, index);
        Some((region, last, self.quiesce_for(posted, TokenWaiter::Retired(vec![index]))))
    }

    /// Retires a handle; returns false if it is retired already, or does not exist.
    fn retire(&mut self, index: u32) -> bool {
        let slots = self.path.slots();
        let session = slots.inspect(index, |mapping| mapping.session);
        let is_retired = slots.retire(index).is_ok();
        if let Some(session_state) = session.filter(|_| is_retired).and_then(|of| self.sessions.get_mut(&of))
        {
            session_state.handles -= 1;
        }
        is_retired
    }

    /// Returns the indexes of a session's handles.
    pub fn handles_of(&self, session: SessionId) -> Vec<u32> {
        let mut handles = Vec::new();
        self.path.slots().iter_with(|index, _, mapping| {
            if mapping.session == session {
                handles.push(index);
            }
        });
        handles
    }

    fn forget_handle(&mut self, region: RegionId, index: u32) -> bool {
        match self.more.get_mut(&region) {
            None => {
                self.forget_region(region);
                true
            }
            Some(handles) => {
                handles.remove(&index);
                let first = *handles.first().expect("a region in this map has several handles");
                if handles.len() == 1 {
                    self.more.remove(&region);
                }
                self.regions.get_mut(&region).expect("a handle's region is mapped").first = first;
                false
            }
        }
    }

    fn forget_region(&mut self, region: RegionId) {
        self.regions.remove(&region);
        self.more.remove(&region);
        self.layouts.remove(&region);
    }

    fn handles(&self, region: RegionId) -> Vec<u32> {
        match (self.more.get(&region), self.regions.get(&region)) {
            (Some(handles), _) => handles.iter().copied().collect(),
            (None, Some(mapped)) => vec![mapped.first],
            (None, None) => Vec::new(),
        }
    }

    fn quiesce_for(&mut self, posted: PostedTo, waiting: TokenWaiter) -> Quiesce {
        self.tokens += 1;
        let token = Token(self.tokens);
        self.waiting.insert(token, waiting);
        Quiesce { token, posted }
    }

    /// Returns the peers to which accesses through these handles, which are not retired, are posted.
    fn posted_owners(&self, handles: &[u32]) -> PostedTo {
        let mut peers = BTreeSet::new();
        for handle in handles {
            let view = self.path.slots().inspect(*handle, |mapping| mapping.view.clone());
            if let Some(View::Pieces(pieces)) = view {
                peers.extend(pieces.pieces.iter().filter_map(|piece| match piece.place {
                    Place::Posted { peer, .. } => Some(peer),
                    Place::Direct(_) | Place::Frozen | Place::Down(_) => None,
                }));
            }
        }
        PostedTo::Peers(peers.into_iter().collect())
    }

    /// Returns a new grace period. When the grace period ends, no access that began before it is in flight.
    pub fn quiesce(&mut self) -> Quiesce {
        self.quiesce_for(PostedTo::All, TokenWaiter::Quiesced)
    }

    /// Applies a change that the home has announced, and returns a grace period. Acknowledge the change after the grace
    /// period, even if this node no longer maps the region, since an access through a removed handle may be in flight.
    pub fn change(&mut self, region: RegionId, change: Change) -> Result<Quiesce, BadChange> {
        let Some(len) = self.len_of(region) else { return Ok(self.quiesce()) };
        if !is_valid_change(&change, len) {
            return Err(BadChange);
        }
        match change {
            Change::Drop => return Ok(self.drop_region(region)),
            Change::Freeze { from, len, layout, .. } => self.freeze_range(region, from, len, layout),
            Change::Place { from, place } => self.place_range(region, from, place),
            Change::Settle { home } => self.settle(region, home),
            Change::Access { access, sealed } => {
                self.changing.entry(region).or_default().access = Some((access, sealed));
            }
        }
        Ok(self.freeze_handles(region))
    }

    fn len_of(&self, region: RegionId) -> Option<u64> {
        let first = self.regions.get(&region)?.first;
        self.path.slots().inspect(first, |mapping| mapping.view.len())
    }

    fn drop_region(&mut self, region: RegionId) -> Quiesce {
        let handles = self.handles(region);
        let posted = self.owners_of(region, &handles);
        for handle in &handles {
            // A handle that is already retired is being reclaimed.
            self.retire(*handle);
        }
        self.forget_region(region);
        self.changing.remove(&region);
        self.quiesce_for(posted, TokenWaiter::Retired(handles))
    }

    /// Returns the peers to which accesses through handles of a region may be posted, including removed handles.
    fn owners_of(&self, region: RegionId, handles: &[u32]) -> PostedTo {
        match self.changing.get(&region) {
            Some(changing) if changing.has_newer => PostedTo::All,
            _ => self.posted_owners(handles),
        }
    }

    fn freeze_range(&mut self, region: RegionId, from: u64, len: u64, layout: Option<Extents>) {
        if let Some(extents) = layout {
            self.layouts.insert(region, StoredLayout { extents, frozen: None });
            self.set_owner(region, SEVERAL);
        }
        if let Some(stored) = self.layouts.get_mut(&region) {
            stored.frozen = Some((from, len));
        }
    }

    fn place_range(&mut self, region: RegionId, from: u64, place: Extent) {
        if let Some(stored) = self.layouts.get_mut(&region) {
            stored.extents = layout::with_range_at(&stored.extents, from, place);
            stored.frozen = None;
        }
    }

    fn settle(&mut self, region: RegionId, home: NodeIncarnation) {
        let home = self.incarnation_index(home);
        if let Some(mapped) = self.regions.get_mut(&region) {
            mapped.home = home;
        }
    }

    fn set_owner(&mut self, region: RegionId, owner: u32) {
        if let Some(mapped) = self.regions.get_mut(&region) {
            mapped.owner = owner;
        }
    }

    fn freeze_handles(&mut self, region: RegionId) -> Quiesce {
        let handles = self.handles(region);
        let posted = self.owners_of(region, &handles);
        let quiesce = self.quiesce_for(posted, TokenWaiter::Region(region));
        let changing = self.changing.entry(region).or_default();
        changing.tokens.insert(quiesce.token);
        for handle in handles {
            if self.path.slots().freeze(handle).is_ok() {
                changing.slots.insert(handle);
            }
        }
        quiesce
    }

    /// Drops the mappings of chunks at `owner` that belong to regions of `homes`, because `owner` no longer holds these
    /// chunks. Returns the grace periods after which no access uses the mappings.
    pub fn disown(&mut self, owner: NodeIncarnation, homes: &[NodeIncarnation]) -> Vec<Quiesce> {
        self.disowned.retain(|(other, _)| other.node != owner.node || *other == owner);
        self.disowned.extend(homes.iter().map(|home| (owner, *home)));
        let affected = self.regions_touching(owner).into_iter();
        let disowned =
            affected.filter(|region| self.home_of(*region).is_some_and(|home| homes.contains(&home)));
        disowned.collect::<Vec<_>>().into_iter().map(|region| self.freeze_handles(region)).collect()
    }

    /// Freezes the handles to all regions whose home or bytes are at the unreachable `incarnation`. Returns the grace
    /// periods; when they end, accesses to those bytes fail with [`Blocked::Down`](crate::access::Blocked::Down).
    pub fn handle_down(&mut self, incarnation: NodeIncarnation) -> Vec<Quiesce> {
        self.dead.insert(incarnation);
        self.regions_touching(incarnation).into_iter().map(|region| self.freeze_handles(region)).collect()
    }

    /// Records that an incarnation has ended. Forgets all ended incarnations that are neither the home nor an owner of
    /// a mapped region. Otherwise they would accumulate, because each run of a `halite` command joins as a node.
    pub fn handle_ended(&mut self, incarnation: NodeIncarnation) {
        self.ended.insert(incarnation);
        for incarnation in std::mem::take(&mut self.ended) {
            if self.regions_touching(incarnation).is_empty() {
                self.forget(incarnation);
            } else {
                self.ended.insert(incarnation);
            }
        }
    }

    fn forget(&mut self, incarnation: NodeIncarnation) {
        self.dead.remove(&incarnation);
        self.disowned.retain(|(owner, home)| *owner != incarnation && *home != incarnation);
        if let Some(index) = self.index_of(incarnation) {
            self.incarnations.remove(&index);
            self.keys.retain(|(owner, _), _| *owner != index);
        }
    }

    /// Returns the tokens of all grace periods in flight.
    pub fn grace_periods(&self) -> impl Iterator<Item = Token> {
        self.waiting.keys().copied()
    }

    /// Drops the handles to all regions whose home or bytes are at `incarnation`, which is reachable again. The regions
    /// may have changed meanwhile, so sessions must map them again. Returns the regions, their homes and the grace
    /// periods.
    pub fn handle_up(&mut self, incarnation: NodeIncarnation) -> Vec<(RegionId, NodeIncarnation, Quiesce)> {
        self.dead.remove(&incarnation);
        let regions = self.regions_touching(incarnation).into_iter();
        let homed = regions.filter_map(|region| Some((region, self.home_of(region)?)));
        let homed: Vec<(RegionId, NodeIncarnation)> = homed.collect();
        homed.into_iter().map(|(region, home)| (region, home, self.drop_region(region))).collect()
    }

    /// Drops the handles to a region if its home is unreachable, before a session maps the region again from another
    /// home. Returns the grace period, or `None` if the home is reachable.
    pub fn drop_if_lost(&mut self, region: RegionId) -> Option<Quiesce> {
        let is_lost = self.home_of(region).is_some_and(|home| self.dead.contains(&home));
        is_lost.then(|| self.drop_region(region))
    }

    /// Returns true if this node maps a region whose home or bytes are at `incarnation`.
    pub fn maps_any_of(&self, incarnation: NodeIncarnation) -> bool {
        !self.regions_touching(incarnation).is_empty()
    }

    /// Returns all mapped regions of which `incarnation` is the home or owns bytes.
    fn regions_touching(&self, incarnation: NodeIncarnation) -> Vec<RegionId> {
        let index = self.index_of(incarnation);
        if index.is_none() && self.layouts.is_empty() {
            return Vec::new();
        }
        let owned = |stored: &StoredLayout| stored.extents.iter().any(|extent| extent.owner == incarnation);
        let touching = self.regions.iter().filter(|(region, mapped)| {
            let known = index.is_some_and(|index| mapped.home == index || mapped.owner == index);
            known || self.layouts.get(region).is_some_and(owned)
        });
        touching.map(|(region, _)| *region).collect()
    }

    /// Handles the end of a grace period. Returns the handles that have a new view or were removed.
    pub fn handle_quiescent(&mut self, token: Token, elapsed: Elapsed, locate: &dyn Locate) -> Vec<u32> {
        match self.waiting.remove(&token) {
            None | Some(TokenWaiter::Quiesced) => Vec::new(),
            Some(TokenWaiter::Retired(handles)) => {
                for handle in &handles {
                    // Fails only if another token has already reclaimed the handle.
                    let _ = self.path.slots().reclaim(*handle, elapsed);
                }
                handles
            }
            Some(TokenWaiter::Region(region)) => self.finish_change(region, token, elapsed, locate),
        }
    }

    fn finish_change(
        &mut self,
        region: RegionId,
        token: Token,
        elapsed: Elapsed,
        locate: &dyn Locate,
    ) -> Vec<u32> {
        let Some(changing) = self.changing.get_mut(&region) else { return Vec::new() };
        // The token may belong to a change from before the region was dropped and mapped again.
        if !changing.tokens.remove(&token) || !changing.tokens.is_empty() {
            return Vec::new();
        }
        let changing = self.changing.remove(&region).expect("looked up just before");
        for handle in &changing.slots {
            let slots = self.path.slots();
            let Some(mut mapping) = slots.inspect(*handle, Mapping::clone) else { continue };
            self.update_view(region, &mut mapping, locate);
            if let Some((access, sealed)) = &changing.access {
                mapping.sealed = *sealed;
                mapping.permissions &= self.allowed(access, mapping.session);
            }
            // Fails only if the handle was unmapped in the meantime.
            let _ = slots.update(*handle, elapsed, mapping);
        }
        self.drop_redundant_layout(region, locate);
        changing.slots.into_iter().collect()
    }

    /// Updates the view of `mapping` to the current state of its region.
    fn update_view(&self, region: RegionId, mapping: &mut Mapping, locate: &dyn Locate) {
        let Some(mapped) = self.regions.get(&region) else { return };
        let home = self.incarnations[&mapped.home];
        if let Some(stored) = self.layouts.get(&region) {
            mapping.view = self.view(home, &stored.extents, stored.frozen, locate);
            return;
        }
        let owner = self.incarnations[&mapped.owner];
        let is_disowned = self.disowned.contains(&(owner, home));
        if let Some(dead) = [home, owner]
            .into_iter()
            .find(|incarnation| self.dead.contains(incarnation) || is_disowned && *incarnation == home)
        {
            let pieces = vec![Piece { start: 0, place: Place::Down(dead) }];
            mapping.view = View::Pieces(Arc::new(Pieces { len: mapping.view.len(), pieces }));
        }
    }

    /// Drops the stored extents of a region that this node reaches as one window again.
    fn drop_redundant_layout(&mut self, region: RegionId, locate: &dyn Locate) {
        let Some(StoredLayout { extents, frozen: None }) = self.layouts.get(&region) else { return };
        let [extent] = extents[..] else { return };
        if let Place::Direct(window) = locate.place(&extent)
            && !self.dead.contains(&extent.owner)
        {
            self.layouts.remove(&region);
            let owner = self.incarnation_index(extent.owner);
            self.remember_key(owner, &window, extent.key);
            self.set_owner(region, owner);
        }
    }

    fn view(
        &self,
        home: NodeIncarnation,
        extents: &[Extent],
        frozen: Option<(u64, u64)>,
        locate: &dyn Locate,
    ) -> View {
        let mut pieces = Vec::new();
        let mut start = 0;
        for (extent, place) in self.places(home, extents, frozen, locate) {
            pieces.push(Piece { start, place });
            start += extent.len;
        }
        let len = start;
        if let [Piece { place: Place::Direct(window), .. }] = &pieces[..] {
            return View::Whole(window.clone());
        }
        View::Pieces(Arc::new(Pieces { len, pieces }))
    }

    /// Returns each extent, split at frozen parts, with the way in which this node reaches it.
    fn places(
        &self,
        home: NodeIncarnation,
        extents: &[Extent],
        frozen: Option<(u64, u64)>,
        locate: &dyn Locate,
    ) -> Vec<(Extent, Place)> {
        let len = layout::total_len(extents);
        let (frozen_from, frozen_len) = frozen.unwrap_or((len, 0));
        let frozen_to = frozen_from.saturating_add(frozen_len);
        let parts = [
            (layout::slice(extents, 0, frozen_from), false),
            (layout::slice(extents, frozen_from, frozen_to), true),
            (layout::slice(extents, frozen_to, len), false),
        ];
        let placed = |(part, is_frozen): (Extents, bool)| {
            let place = move |extent: Extent| (extent, self.piece_place(home, &extent, is_frozen, locate));
            part.into_iter().map(place)
        };
        parts.into_iter().flat_map(placed).collect()
    }

    fn piece_place(
        &self,
        home: NodeIncarnation,
        extent: &Extent,
        frozen: bool,
        locate: &dyn Locate,
    ) -> Place {
        match [home, extent.owner].into_iter().find(|incarnation| self.dead.contains(incarnation)) {
            Some(dead) => Place::Down(dead),
            None if self.disowned.contains(&(extent.owner, home)) => Place::Down(home),
            None if frozen => Place::Frozen,
            None => locate.place(extent),
        }
    }

    fn allowed(&self, access: &AccessList, session: SessionId) -> Permissions {
        self.principal(session).map_or(Permissions::empty(), |principal| access.of(principal))
    }
}

/// Returns a number that is unique among the segments that are currently mapped.
fn segment_of(window: &Window) -> usize {
    Arc::as_ptr(window.segment()).addr()
}

/// The error for a change whose offsets or lengths do not fit the region. The sender violates the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadChange;

/// Returns true if the change is valid for a region of `len` bytes.
fn is_valid_change(change: &Change, len: u64) -> bool {
    let inside = |from: &u64, part: u64| part > 0 && from.checked_add(part).is_some_and(|end| end <= len);
    match change {
        Change::Freeze { from, len: part, layout, .. } => {
            inside(from, *part) && layout.as_ref().is_none_or(|extents| layout::is_sound(extents, len, 1))
        }
        Change::Place { from, place } => {
            inside(from, place.len) && place.offset.checked_add(place.len).is_some()
        }
        Change::Access { .. } | Change::Settle { .. } | Change::Drop => true,
    }
}

/// Returns how this node reaches an extent in a peer's memory.
pub fn place_at(reach: &dyn Reach, peer: PeerId, extent: &Extent) -> Place {
    match reach.window(peer, extent.key) {
        Some(window) => match window.slice(extent.offset, extent.len) {
            Some(window) => Place::Direct(window),
            None => Place::Down(extent.owner),
        },
        None => Place::Posted { peer, address: RemoteAddress { key: extent.key, offset: extent.offset } },
    }
}

#[cfg(test)]
mod tests {
    use halite_fabric::RemoteAddress;

    use super::*;
    use crate::ids::{Epoch, Incarnation, NodeId};

    struct AllPosted;

    impl Locate for AllPosted {
        fn place(&self, extent: &Extent) -> Place {
            let address = RemoteAddress { key: extent.key, offset: extent.offset };
            Place::Posted { peer: PeerId(extent.owner.node.0), address }
        }
    }

    /// Maps a region whose home holds all its bytes.
    fn map(mapper: &mut Mapper, session: SessionId, home: NodeIncarnation, serial: u64) -> SlotRef {
        let region = RegionId { origin: home.id, serial };
        let extent = Extent { owner: home, key: Key(0), offset: 0, len: 4096 };
        let reply = MappedReply {
            region,
            home,
            epoch: Epoch(0),
            len: 4096,
            chunk_bytes: 4096,
            access: AccessList::new(Principal("ada".into()), Permissions::all()),
            sealed: false,
            extents: [extent].into_iter().collect(),
            frozen: None,
            moving_to: None,
        };
        mapper.insert(&reply, session, Permissions::all(), &AllPosted)
    }

    #[test]
    fn ended_nodes_are_forgotten_once_unmapped() {
        let mut mapper = Mapper::new(Arc::new(DataPath::default()));
        let session = mapper.open_session(Principal("ada".into())).expect("the first session");
        for node in 0..1000 {
            let home = NodeIncarnation { node: NodeId(node), id: Incarnation(u64::from(node) + 1) };
            let slot = map(&mut mapper, session, home, 1);
            let other = map(&mut mapper, session, home, 2);
            mapper.remove(slot.index).expect("mapped");
            mapper.handle_down(home);
            mapper.disown(home, &[NodeIncarnation { id: Incarnation(9), ..home }]);
            mapper.handle_ended(home);
            assert!(mapper.dead.contains(&home), "a handle is left, and has to fail");
            mapper.remove(other.index).expect("mapped");
        }
        let unmapped = NodeIncarnation { node: NodeId(1000), id: Incarnation(1) };
        mapper.handle_ended(unmapped);
        assert_eq!((mapper.incarnations.len(), mapper.dead.len(), mapper.ended.len()), (0, 0, 0));
        assert_eq!((mapper.disowned.len(), mapper.keys.len()), (0, 0));
    }
}
