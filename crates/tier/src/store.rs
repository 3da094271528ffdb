//! The owner's side of memory: reserving chunks in our arena, and giving them out again only when it is safe.
//!
//! ```text
//!  free ──reserve──> used ──release──> discarding ──> free          nobody can reach it any more
//!                             └──────> quarantine ──┘               until the last tainted node is cut off
//! ```
//!
//! A lease that runs out never leads to `free`: only an acknowledgement or a cut-off does.

mod growth;

use std::collections::{BTreeMap, BTreeSet};

use halite_fabric::Key;
use halite_mem::Window;
use halite_mem::allocator::{self, Allocator};

use self::growth::Growth;
use crate::effect::{Effect, Token};
use crate::ids::{NodeIncarnation, RegionId};
use crate::layout::{Extent, Extents, append};

/// Every region starts at a multiple of this many bytes: a cache line.
const ALIGNMENT: u64 = 64;

/// Why chunks could not be reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortage {
    /// The arena may grow by a segment of this length, which the system is to be asked for; try again then.
    Grow(u64),
    /// A segment is on its way, or memory that was just freed is about to be clean again; try again then.
    Wait,
    /// There is no room, and there will be none until something is freed.
    NoSpace {
        /// Bytes that are free, perhaps in pieces.
        available: u64,
    },
}

/// Chunks that we hold for a region whose home is another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Foreign {
    len: u64,
    region: RegionId,
    home: NodeIncarnation,
}

/// Our arena.
#[derive(Debug)]
pub struct Store {
    me: NodeIncarnation,
    bytes_total: u64,
    growth: Growth,
    allocator: Allocator,
    segments: Vec<(Key, Window)>,
    foreign: BTreeMap<(Key, u64), Foreign>,
    quarantine: Vec<(Extents, BTreeSet<NodeIncarnation>)>,
    discarding: BTreeMap<Token, Extent>,
    tokens: u64,
}

impl Store {
    /// An arena of at most `bytes_total`, which grows by segments of `segment_bytes`.
    pub fn new(me: NodeIncarnation, bytes_total: u64, segment_bytes: u64) -> Store {
        Store {
            me,
            bytes_total,
            growth: Growth::new(segment_bytes.max(ALIGNMENT)),
            allocator: Allocator::new(ALIGNMENT),
            segments: Vec::new(),
            foreign: BTreeMap::new(),
            quarantine: Vec::new(),
            discarding: BTreeMap::new(),
            tokens: 0,
        }
    }

    /// Bytes that belong to regions.
    pub fn bytes_used(&self) -> u64 {
        self.allocator.bytes_total()
            - self.allocator.bytes_free()
            - self.bytes_quarantined()
            - self.discarding.values().map(|extent| extent.len.next_multiple_of(ALIGNMENT)).sum::<u64>()
    }

    /// Bytes that the arena has grown to.
    pub fn bytes_grown(&self) -> u64 {
        self.allocator.bytes_total()
    }

    /// Bytes of those that can be given out at once.
    pub fn bytes_free(&self) -> u64 {
        self.allocator.bytes_free()
    }

    /// Bytes that are kept back.
    pub fn bytes_quarantined(&self) -> u64 {
        let extents = self.quarantine.iter().flat_map(|(extents, _)| extents);
        extents.map(|extent| extent.len.next_multiple_of(ALIGNMENT)).sum()
    }

    /// Whether any bytes are kept back.
    pub fn has_quarantine(&self) -> bool {
        !self.quarantine.is_empty()
    }

    /// Bytes that are kept back because `incarnation` could reach them.
    pub fn bytes_kept_from(&self, incarnation: NodeIncarnation) -> u64 {
        let kept = self.quarantine.iter().filter(|(_, tainted)| tainted.contains(&incarnation));
        let extents = kept.flat_map(|(extents, _)| extents);
        extents.map(|extent| extent.len.next_multiple_of(ALIGNMENT)).sum()
    }

    /// Bytes that we contribute at most.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    /// Bytes of those that the system refused when it was last asked.
    pub fn bytes_refused(&self) -> u64 {
        if self.growth.is_refused() { self.growth_max() } else { 0 }
    }

    /// Reserves chunks for `len` bytes of a region: few extents, each but the last of whole chunks.
    pub fn reserve(&mut self, now_ns: u64, len: u64, chunk_bytes: u64) -> Result<Extents, Shortage> {
        let mut extents = Extents::new();
        let mut missing = len;
        while missing > 0 {
            let least = missing.min(chunk_bytes);
            let Some(run) = self.allocator.allocate_run(least, missing, chunk_bytes) else {
                self.unreserve(&extents);
                return Err(self.shortage(now_ns, missing, chunk_bytes));
            };
            missing -= run.len;
            let key = self.segments[run.segment as usize].0;
            append(&mut extents, Extent { owner: self.me, key, offset: run.offset, len: run.len });
        }
        Ok(extents)
    }

    /// Takes a reservation back that nobody has seen yet.
    pub fn unreserve(&mut self, extents: &[Extent]) {
        for extent in extents {
            self.give_back(*extent);
        }
    }

    /// How far we may still grow, in bytes.
    fn growth_max(&self) -> u64 {
        self.bytes_total.saturating_sub(self.allocator.bytes_total())
    }

    fn shortage(&mut self, now_ns: u64, missing: u64, chunk_bytes: u64) -> Shortage {
        let growth = if self.growth.is_open(now_ns) { self.growth_max() } else { 0 };
        let available = self.allocator.bytes_free() + growth;
        // Waiting comes first: it takes microseconds for memory that was not touched, and who frees and
        // allocates in turn would otherwise grow the arena to its limit.
        if !self.discarding.is_empty() {
            return Shortage::Wait;
        }
        let least = missing.min(chunk_bytes);
        if growth < least || available < missing {
            return Shortage::NoSpace { available };
        }
        self.growth.ask(chunk_bytes, least, growth).map_or(Shortage::Wait, Shortage::Grow)
    }

    /// A segment has been registered, or the system refused it.
    pub fn handle_grown(&mut self, now_ns: u64, segment: Option<(Key, Window)>) {
        match segment {
            Some((key, window)) => {
                self.growth.handle_given();
                self.allocator.add_segment(window.len());
                self.segments.push((key, window));
            }
            None => self.growth.handle_refused(now_ns),
        }
    }

    /// The window of `extent`, if it is one of ours.
    pub fn window(&self, extent: &Extent) -> Option<Window> {
        if extent.owner != self.me {
            return None;
        }
        let (_, window) = self.segments.iter().find(|(key, _)| *key == extent.key)?;
        window.slice(extent.offset, extent.len)
    }

    /// Notes that `extents` of ours belong to a region of another home.
    pub fn hold_for(&mut self, home: NodeIncarnation, region: RegionId, extents: &[Extent]) {
        for extent in extents {
            self.hold_one(extent.key, extent.offset, Foreign { len: extent.len, region, home });
        }
    }

    /// Joins what touches, as the home joins extents of a region that touch, from whatever reservations.
    fn hold_one(&mut self, key: Key, mut offset: u64, mut held: Foreign) {
        let is_same = |other: &Foreign| other.region == held.region && other.home == held.home;
        let before = self.foreign.range(..(key, offset)).next_back();
        if let Some((&(at_key, at), other)) = before
            && at_key == key
            && at + other.len == offset
            && is_same(other)
        {
            (offset, held.len) = (at, other.len + held.len);
        }
        let end = (key, offset + held.len);
        if let Some(other) = self.foreign.get(&end).filter(|other| is_same(other)) {
            held.len += other.len;
            self.foreign.remove(&end);
        }
        self.foreign.insert((key, offset), held);
    }

    /// The home of a region has moved here, and these chunks of it are no longer another home's.  What a former home has moved
    /// away, and not given back yet, stays held for that.
    pub fn adopt(&mut self, extents: &[Extent]) {
        let me = self.me;
        for extent in extents.iter().filter(|extent| extent.owner == me) {
            self.forget_foreign(extent);
        }
    }

    /// Whether all of `extent` is ours and held for `home`.
    pub fn is_held_for(&self, home: NodeIncarnation, extent: &Extent) -> bool {
        self.holding(extent).is_some_and(|held| held.home == home)
    }

    /// Whether all of `extent` is ours and held for `region`, whose home is another node.
    pub fn is_held_of(&self, region: RegionId, extent: &Extent) -> bool {
        self.holding(extent).is_some_and(|held| held.region == region)
    }

    /// For whom all of `extent` is held.
    fn holding(&self, extent: &Extent) -> Option<&Foreign> {
        let (&(key, start), held) = self.foreign.range(..=(extent.key, extent.offset)).next_back()?;
        let end = extent.offset.checked_add(extent.len);
        let inside = end.is_some_and(|end| end <= start + held.len);
        let is_ours = key == extent.key && extent.owner == self.me && extent.len > 0 && inside;
        is_ours.then_some(held)
    }

    /// All that we hold for `home`, by region.
    pub fn held_for(&self, home: NodeIncarnation) -> Vec<(RegionId, Extents)> {
        let mut held: BTreeMap<RegionId, Extents> = BTreeMap::new();
        for (&(key, offset), foreign) in self.foreign.iter().filter(|(_, foreign)| foreign.home == home) {
            let extent = Extent { owner: self.me, key, offset, len: foreign.len };
            held.entry(foreign.region).or_default().push(extent);
        }
        held.into_iter().collect()
    }

    /// All that we hold for other homes: how many bytes of which regions, and for whom.
    pub fn held(&self) -> BTreeMap<RegionId, (NodeIncarnation, u64)> {
        let mut held: BTreeMap<RegionId, (NodeIncarnation, u64)> = BTreeMap::new();
        for foreign in self.foreign.values() {
            let of = held.entry(foreign.region).or_insert((foreign.home, 0));
            // Of several, one has handed the region over.
            of.1 += foreign.len;
        }
        held
    }

    /// Whether any of our chunks is held for `home`.
    pub fn holds_any_for(&self, home: NodeIncarnation) -> bool {
        self.foreign.values().any(|foreign| foreign.home == home)
    }

    /// Takes the chunks of a dead home; they are to be released once nobody maps them.
    pub fn take_orphans(&mut self, home: NodeIncarnation) -> Extents {
        let orphans: Vec<(Key, u64)> =
            self.foreign.iter().filter(|(_, foreign)| foreign.home == home).map(|(at, _)| *at).collect();
        let mut extents = Extents::new();
        for (key, offset) in orphans {
            let foreign = self.foreign.remove(&(key, offset)).expect("listed just before");
            append(&mut extents, Extent { owner: self.me, key, offset, len: foreign.len });
        }
        extents
    }

    /// Nobody uses these chunks of ours any more, except perhaps the `tainted` until they are cut off.
    pub fn release(
        &mut self,
        extents: &[Extent],
        tainted: &BTreeSet<NodeIncarnation>,
        effects: &mut impl Extend<Effect>,
    ) {
        for extent in extents {
            self.forget_foreign(extent);
        }
        if tainted.is_empty() {
            effects.extend(extents.iter().map(|extent| self.discard(*extent)));
        } else {
            self.quarantine.push((extents.iter().copied().collect(), tainted.clone()));
        }
    }

    /// Shortens or removes what is held for a foreign region by `extent`, which may be part of a longer run.
    pub fn forget_foreign(&mut self, extent: &Extent) {
        let before = self.foreign.range(..=(extent.key, extent.offset)).next_back();
        let Some((&(key, start), &foreign)) = before else { return };
        let (end, extent_end) = (start + foreign.len, extent.offset + extent.len);
        if key != extent.key || extent_end > end {
            return;
        }
        self.foreign.remove(&(key, start));
        if start < extent.offset {
            self.foreign.insert((key, start), Foreign { len: extent.offset - start, ..foreign });
        }
        if extent_end < end {
            self.foreign.insert((key, extent_end), Foreign { len: end - extent_end, ..foreign });
        }
    }

    /// `incarnation` can reach nothing of ours any more.
    pub fn handle_cut_off(&mut self, incarnation: NodeIncarnation, effects: &mut impl Extend<Effect>) {
        let mut safe = Vec::new();
        self.quarantine.retain_mut(|(extents, tainted)| {
            tainted.remove(&incarnation);
            if tainted.is_empty() {
                safe.append(&mut extents.to_vec());
            }
            !tainted.is_empty()
        });
        effects.extend(safe.into_iter().map(|extent| self.discard(extent)));
    }

    fn discard(&mut self, extent: Extent) -> Effect {
        self.tokens += 1;
        let token = Token(self.tokens);
        self.discarding.insert(token, extent);
        Effect::Discard { token, key: extent.key, offset: extent.offset, len: extent.len }
    }

    /// The memory reads as zero again: it may be reserved anew.
    pub fn handle_discarded(&mut self, token: Token) {
        if let Some(extent) = self.discarding.remove(&token) {
            self.give_back(extent);
        }
    }

    /// Frees `extent`, which may be a part or a join of runs as the allocator gave them.
    fn give_back(&mut self, extent: Extent) {
        let segment =
            self.segments.iter().position(|(key, _)| *key == extent.key).expect("extents of ours only");
        let run = allocator::Extent { segment: segment as u32, offset: extent.offset, len: extent.len };
        self.allocator.free_range(run).expect("used memory is freed once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Incarnation, NodeId};

    fn incarnation(node: u32) -> NodeIncarnation {
        NodeIncarnation { node: NodeId(node), id: Incarnation(1) }
    }

    #[test]
    fn what_a_former_home_has_not_given_back_stays_held_when_the_region_comes_home() {
        let (me, former) = (incarnation(1), incarnation(2));
        let region = RegionId { origin: me.id, serial: 7 };
        let piece = |offset| Extent { owner: me, key: Key(3), offset, len: 64 };
        let mut store = Store::new(me, 4096, 4096);
        store.hold_for(former, region, &[piece(0), piece(64), piece(256)]);
        // The region was moved away from the piece in the middle, and back; the word that gives it back was lost.
        store.adopt(&[piece(0), piece(256)]);
        assert_eq!(store.held_for(former), [(region, Extents::from(vec![piece(64)]))]);
    }
}
