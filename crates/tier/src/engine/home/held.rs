//! Chunks at other owners that belong to regions whose home is this node: returns freed chunks to the owners, and
//! compares the home's record with the owners' reports.

use std::collections::{BTreeMap, BTreeSet};

use super::HomeSide;
use crate::ids::{NodeIncarnation, RegionId};
use crate::layout::{Extent, Extents};
use crate::message::Notice;

impl HomeSide<'_> {
    /// Returns chunks to their owners. An owner that is not connected, or has not reported all chunks that it holds,
    /// gets its chunks back after its report.
    pub(super) fn return_chunks(&mut self, extents: &[Extent]) {
        let mut by_owner: BTreeMap<NodeIncarnation, Extents> = BTreeMap::new();
        for extent in extents {
            by_owner.entry(extent.owner).or_default().push(*extent);
        }
        for (owner, extents) in by_owner {
            if owner == self.cx.incarnation() {
                self.owner().release(extents, BTreeSet::new());
            } else if self.cx.members().has_reported_held(owner) {
                self.cx.notify(owner.node, Notice::Return { extents });
            } else if self.cx.members().is_alive(owner) {
                self.homes.freed_early.entry(owner).or_default().extend(extents);
            }
        }
    }

    pub(in crate::engine) fn handle_held(
        &mut self,
        from: NodeIncarnation,
        held: Vec<(RegionId, Extents)>,
        done: bool,
    ) {
        let mut unknown = Extents::new();
        for (region, extents) in held {
            let used = self.chunks_of(region);
            let reported = extents.into_iter().filter(|extent| extent.owner == from && extent.is_sound());
            reported.for_each(|extent| unknown.extend(subtract(extent, &used)));
        }
        if let Some(freed) = self.homes.freed_early.remove(&from) {
            let left: Extents = freed.into_iter().flat_map(|extent| subtract(extent, &unknown)).collect();
            match done {
                true => unknown.extend(left),
                false => {
                    self.homes.freed_early.insert(from, left);
                }
            }
        }
        if !unknown.is_empty() {
            self.cx.notify(from.node, Notice::Return { extents: unknown });
        }
    }

    /// Returns all chunks that this home attributes to a region.
    fn chunks_of(&self, region: RegionId) -> Vec<Extent> {
        let homed = self.homes.regions.get(&region).into_iter().flat_map(|found| {
            let places = found.moving().into_iter().flat_map(|moving| moving.places.iter());
            found.extents.iter().chain(places)
        });
        let made = self.homes.creations.get(&region).into_iter().flat_map(|creation| creation.chunks());
        homed.chain(made).copied().collect()
    }
}

/// Returns the parts of an extent that no other extent covers.
fn subtract(extent: Extent, others: &[Extent]) -> Extents {
    let mut rest: Extents = [extent].into_iter().collect();
    for other in others.iter().filter(|other| other.owner == extent.owner) {
        rest = rest.into_iter().flat_map(|part| subtract_one(part, other)).collect();
    }
    rest
}

fn subtract_one(part: Extent, other: &Extent) -> Vec<Extent> {
    if !part.touches(other) {
        return vec![part];
    }
    let (end, other_end) = (part.offset + part.len, other.offset + other.len);
    let pieces = [(part.offset, other.offset), (other_end, end)];
    let left = pieces.into_iter().filter(|(from, to)| from < to);
    left.map(|(from, to)| Extent { offset: from, len: to - from, ..part }).collect()
}

#[cfg(test)]
mod tests {
    use halite_fabric::Key;

    use super::*;
    use crate::ids::{Incarnation, NodeId};

    #[test]
    fn subtract_removes_all_overlaps() {
        let owner = NodeIncarnation { node: NodeId(1), id: Incarnation(1) };
        let extent = |offset, len| Extent { owner, key: Key(0), offset, len };
        let left = |others: &[Extent]| subtract(extent(10, 10), others).to_vec();
        assert_eq!(left(&[]), [extent(10, 10)]);
        assert_eq!(left(&[extent(0, 10), extent(20, 5)]), [extent(10, 10)]);
        assert_eq!(left(&[extent(12, 2), extent(16, 1)]), [extent(10, 2), extent(14, 2), extent(17, 3)]);
        assert_eq!(left(&[extent(5, 7), extent(18, 9)]), [extent(12, 6)]);
        assert_eq!(left(&[extent(10, 4), extent(14, 6)]), []);
    }
}
