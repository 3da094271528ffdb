//! The memory of an owner: reserves chunks in the local arena, and reuses them only when no node can access them any
//! more.
//!
//! ```text
//!  free ──reserve──> used ──release──> discarding ──> free          no node can access it any more
//!                             └──────> quarantine ──┘               until all nodes that could still write are cut off
//! ```
//!
//! Memory becomes free only after an acknowledgement or a cut-off, never because a lease has expired.

mod growth;

use std::collections::{BTreeMap, BTreeSet};

use halite_fabric::Key;
use halite_mem::Window;
use halite_mem::allocator::{self, Allocator};

use self::growth::Growth;
use crate::effect::{Effect, Token};
use crate::ids::{NodeIncarnation, RegionId};
use crate::layout::{Extent, Extents, append};

/// Alignment of regions in bytes: a cache line.
const ALIGNMENT: u64 = 64;

/// The reason why chunks could not be reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortage {
    /// The arena can grow by a segment of this many bytes: register such a segment, then try again.
    Grow(u64),
    /// A segment is being registered, or freed memory is being cleaned: try again when this has ended.
    Wait,
    /// The arena has no space for the chunks until memory is freed.
    NoSpace {
        /// Number of free bytes, perhaps fragmented.
        available: u64,
        /// Length of the longest piece of them.
        largest: u64,
    },
}

/// Local chunks held for a region that is homed at another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Foreign {
    len: u64,
    region: RegionId,
    home: NodeIncarnation,
}

/// This node's arena: its segments, and the use of their bytes.
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
    /// Creates an empty arena of node `me`. It grows by segments of `segment_bytes`, to at most `bytes_total`.
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

    /// Returns the number of bytes that belong to regions.
    pub fn bytes_used(&self) -> u64 {
        self.allocator.bytes_total()
            - self.allocator.bytes_free()
            - self.bytes_quarantined()
            - self.discarding.values().map(|extent| extent.len.next_multiple_of(ALIGNMENT)).sum::<u64>()
    }

    /// Returns the current size of the arena, in bytes.
    pub fn bytes_grown(&self) -> u64 {
        self.allocator.bytes_total()
    }

    /// Returns the number of free bytes of the arena.
    pub fn bytes_free(&self) -> u64 {
        self.allocator.bytes_free()
    }

    /// Returns the number of bytes in quarantine.
    pub fn bytes_quarantined(&self) -> u64 {
        let extents = self.quarantine.iter().flat_map(|(extents, _)| extents);
        extents.map(|extent| extent.len.next_multiple_of(ALIGNMENT)).sum()
    }

    /// Returns true if any bytes are in quarantine.
    pub fn has_quarantine(&self) -> bool {
        !self.quarantine.is_empty()
    }

    /// Returns the number of bytes that are in quarantine because `incarnation` could still access them.
    pub fn bytes_quarantined_for(&self, incarnation: NodeIncarnation) -> u64 {
        let quarantined = self.quarantine.iter().filter(|(_, tainted)| tainted.contains(&incarnation));
        let extents = quarantined.flat_map(|(extents, _)| extents);
        extents.map(|extent| extent.len.next_multiple_of(ALIGNMENT)).sum()
    }

    /// Returns the maximum number of bytes that this node contributes.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    /// Returns the number of bytes of `bytes_total` that the operating system currently refuses to provide.
    pub fn bytes_refused(&self) -> u64 {
        if self.growth.is_refused() { self.growth_max() } else { 0 }
    }

    /// Returns the length of the longest piece of memory that can be allocated at once.
    pub fn bytes_largest(&self) -> u64 {
        let growth = self.growth_max() - self.bytes_refused();
        growth.max(self.allocator.largest_free())
    }

    /// Reserves chunks for `len` bytes of a region, in few extents if possible. All extents except the last consist of
    /// whole chunks. If there is not enough space, reserves nothing and returns the [`Shortage`].
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

    /// Frees reserved extents that the store has not yet handed to another part of the node.
    pub fn unreserve(&mut self, extents: &[Extent]) {
        for extent in extents {
            self.free_range_of(*extent);
        }
    }

    /// Returns the number of bytes by which the arena may still grow.
    fn growth_max(&self) -> u64 {
        self.bytes_total.saturating_sub(self.allocator.bytes_total())
    }

    fn shortage(&mut self, now_ns: u64, missing: u64, chunk_bytes: u64) -> Shortage {
        let growth = if self.growth.is_open(now_ns) { self.growth_max() } else { 0 };
        let available = self.allocator.bytes_free() + growth;
        // Wait before growing: cleaning untouched memory takes microseconds, and a caller that frees and allocates in
        // turn would otherwise grow the arena to its limit.
        if !self.discarding.is_empty() {
            return Shortage::Wait;
        }
        let least = missing.min(chunk_bytes);
        if growth < least || available < missing {
            return Shortage::NoSpace { available, largest: growth.max(self.allocator.largest_free()) };
        }
        self.growth.request(chunk_bytes, least, growth).map_or(Shortage::Wait, Shortage::Grow)
    }

    /// Handles the result of [`Effect::Grow`]: the new segment, or `None` if the operating system refused the segment.
    pub fn handle_grown(&mut self, now_ns: u64, segment: Option<(Key, Window)>) {
        match segment {
            Some((key, window)) => {
                self.growth.handle_granted();
                self.allocator.add_segment(window.len());
                self.segments.push((key, window));
            }
            None => self.growth.handle_refused(now_ns),
        }
    }

    /// Returns the window of `extent`, or `None` if `extent` is not in this arena.
    pub fn window(&self, extent: &Extent) -> Option<Window> {
        if extent.owner != self.me {
            return None;
        }
        let (_, window) = self.segments.iter().find(|(key, _)| *key == extent.key)?;
        window.slice(extent.offset, extent.len)
    }

    /// Records that the chunks `extents` of this arena belong to a region whose home is another node.
    pub fn hold_for(&mut self, home: NodeIncarnation, region: RegionId, extents: &[Extent]) {
        for extent in extents {
            self.hold_one(extent.key, extent.offset, Foreign { len: extent.len, region, home });
        }
    }

    /// Merges adjacent runs of a region from any reservations, since the home merges adjacent extents too.
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

    /// Records that this node has become the home of a region: chunks of `extents` that are in this arena no longer
    /// count as held for another home. Other chunks of the region stay held for a former home, which has moved the
    /// region's bytes out of them and has not returned them yet.
    pub fn adopt(&mut self, extents: &[Extent]) {
        let me = self.me;
        for extent in extents.iter().filter(|extent| extent.owner == me) {
            self.forget_foreign(extent);
        }
    }

    /// Returns true if all of `extent` is in this arena and held for regions of `home`.
    pub fn is_held_for(&self, home: NodeIncarnation, extent: &Extent) -> bool {
        self.holding(extent).is_some_and(|held| held.home == home)
    }

    /// Returns true if all of `extent` is in this arena and held for `region`, whose home is another node.
    pub fn is_held_for_region(&self, region: RegionId, extent: &Extent) -> bool {
        self.holding(extent).is_some_and(|held| held.region == region)
    }

    /// Returns the run that contains all of `extent`, or `None`.
    fn holding(&self, extent: &Extent) -> Option<&Foreign> {
        let (&(key, start), held) = self.foreign.range(..=(extent.key, extent.offset)).next_back()?;
        let end = extent.offset.checked_add(extent.len);
        let inside = end.is_some_and(|end| end <= start + held.len);
        let is_local = key == extent.key && extent.owner == self.me && extent.len > 0 && inside;
        is_local.then_some(held)
    }

    /// Returns all chunks of this arena that are held for `home`, by region.
    pub fn held_for(&self, home: NodeIncarnation) -> Vec<(RegionId, Extents)> {
        let mut held: BTreeMap<RegionId, Extents> = BTreeMap::new();
        for (&(key, offset), foreign) in self.foreign.iter().filter(|(_, foreign)| foreign.home == home) {
            let extent = Extent { owner: self.me, key, offset, len: foreign.len };
            held.entry(foreign.region).or_default().push(extent);
        }
        held.into_iter().collect()
    }

    /// Returns the number of bytes of this arena that are held for other homes, by region, each with its home.
    pub fn held(&self) -> BTreeMap<RegionId, (NodeIncarnation, u64)> {
        let mut held: BTreeMap<RegionId, (NodeIncarnation, u64)> = BTreeMap::new();
        for foreign in self.foreign.values() {
            let of = held.entry(foreign.region).or_insert((foreign.home, 0));
            // If there are several homes, one has handed the region over to another.
            of.1 += foreign.len;
        }
        held
    }

    /// Returns true if this arena holds any chunk for `home`.
    pub fn holds_any_for(&self, home: NodeIncarnation) -> bool {
        self.foreign.values().any(|foreign| foreign.home == home)
    }

    /// Stops holding chunks for an ended home. Returns these chunks, which the caller releases once no node maps them.
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

    /// Frees chunks of this arena. If any node in `tainted` can still write to the chunks, they stay in quarantine
    /// until all nodes in `tainted` are cut off.
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

    /// Stops holding `extent`, which may be part of a longer held extent, for another home.
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

    /// Releases the quarantined chunks that only `incarnation`, which is now cut off, could still access.
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

    /// Handles the completion of [`Effect::Discard`]: the memory reads as zero again and is free.
    pub fn handle_discarded(&mut self, token: Token) {
        if let Some(extent) = self.discarding.remove(&token) {
            self.free_range_of(extent);
        }
    }

    /// Frees `extent`, which may be a part of a run of the allocator or consist of several.
    fn free_range_of(&mut self, extent: Extent) {
        let segment =
            self.segments.iter().position(|(key, _)| *key == extent.key).expect("local extents only");
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
    fn unreturned_chunks_stay_held_after_adopt() {
        let (me, former) = (incarnation(1), incarnation(2));
        let region = RegionId { origin: me.id, serial: 7 };
        let piece = |offset| Extent { owner: me, key: Key(3), offset, len: 64 };
        let mut store = Store::new(me, 4096, 4096);
        store.hold_for(former, region, &[piece(0), piece(64), piece(256)]);
        // The region was moved away from the piece in the middle, then back; the return of that piece was lost.
        store.adopt(&[piece(0), piece(256)]);
        assert_eq!(store.held_for(former), [(region, Extents::from(vec![piece(64)]))]);
    }
}
