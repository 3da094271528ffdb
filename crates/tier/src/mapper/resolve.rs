//! Resolves mapped bytes to extents, for commands sent to other nodes and for explanations.

use std::borrow::Cow;

use halite_fabric::Key;

use super::{Locate, Mapped, Mapper, StoredLayout, segment_of};
use crate::access::{Blocked, Mapping, Place, RegionOffset, SlotRef, View};
use crate::ids::{NodeIncarnation, RegionId, SessionId};
use crate::layout::{self, Extent, Extents};
use crate::permissions::Permissions;

/// The known state of the region behind a handle.
#[derive(Clone, Debug)]
pub struct Known {
    /// The region behind the handle.
    pub region: RegionId,
    /// The home of the region, which orders all changes.
    pub home: NodeIncarnation,
    /// The permissions of the handle.
    pub permissions: Permissions,
    /// True if the region is immutable.
    pub sealed: bool,
    /// The extents in order, each with the way in which this node reaches it.
    pub pieces: Vec<(Extent, Place)>,
}

/// The extents of a region, and the offset and length of its frozen part, if any.
type Layout<'m> = (Cow<'m, [Extent]>, Option<(u64, u64)>);

impl Mapper {
    /// Returns the region behind a handle, and the extents of the `len` bytes from `at` on, for an operation of
    /// `session` that needs the permissions `wanted`.
    pub fn resolve(
        &self,
        session: SessionId,
        at: RegionOffset,
        wanted: Permissions,
        len: u64,
    ) -> Result<(RegionId, Extents), Blocked> {
        self.path.check(session, at.slot, wanted, at.offset, len)?;
        let (region, _) = self.region_of(session, at.slot).ok_or(Blocked::Stale)?;
        let mapped = self.regions.get(&region).ok_or(Blocked::Stale)?;
        let (extents, frozen) = self.layout(region, mapped).ok_or(Blocked::Stale)?;
        let extents = layout::slice(&extents, at.offset, at.offset + len);
        let home = self.incarnations[&mapped.home];
        let mut holders = extents.iter().map(|extent| extent.owner).chain([home]);
        if let Some(dead) = holders.find(|incarnation| {
            self.dead.contains(incarnation) || self.disowned.contains(&(*incarnation, home))
        }) {
            return Err(Blocked::Down(dead));
        }
        match frozen {
            Some((from, frozen_len)) if from < at.offset + len && at.offset < from + frozen_len => {
                Err(Blocked::Changing)
            }
            _ => Ok((region, extents)),
        }
    }

    /// Returns the state of the region behind a handle, or `None` if the handle does not belong to `session`.
    pub fn known(&self, session: SessionId, slot: SlotRef, locate: &dyn Locate) -> Option<Known> {
        let (region, home) = self.region_of(session, slot)?;
        let mapped = self.regions.get(&region)?;
        let (extents, frozen) = self.layout(region, mapped)?;
        let (permissions, sealed) =
            self.path.slots().inspect(slot.index, |mapping| (mapping.permissions, mapping.sealed))?;
        let pieces = self.places(home, &extents, frozen, locate);
        Some(Known { region, home, permissions, sealed, pieces })
    }

    /// Returns the memory that this node currently reaches through handles, as extents with their regions.
    pub fn reached(&self, locate: &dyn Locate) -> Vec<(RegionId, Extent)> {
        let settled = self.regions.iter().filter(|(region, _)| !self.changing.contains_key(region));
        let mut reached = Vec::new();
        for (region, mapped) in settled {
            let Some((extents, frozen)) = self.layout(*region, mapped) else { continue };
            let pieces = self.places(self.incarnations[&mapped.home], &extents, frozen, locate);
            let touched = pieces
                .into_iter()
                .filter(|(_, place)| matches!(place, Place::Direct(_) | Place::Posted { .. }));
            reached.extend(touched.map(|(extent, _)| (*region, extent)));
        }
        reached
    }

    /// Returns the extents of a mapped region, and its frozen part.
    fn layout(&self, region: RegionId, mapped: &Mapped) -> Option<Layout<'_>> {
        if let Some(StoredLayout { extents, frozen }) = self.layouts.get(&region) {
            return Some((Cow::Borrowed(extents), *frozen));
        }
        let owner = *self.incarnations.get(&mapped.owner)?;
        let place = |mapping: &Mapping| match &mapping.view {
            View::Whole(window) => {
                let key = self.keys.get(&(mapped.owner, segment_of(window)));
                (key.copied(), window.offset(), window.len())
            }
            // The region is down, so its former place does not matter.
            View::Pieces(pieces) => (Some(Key(0)), 0, pieces.len),
        };
        let (key, offset, len) = self.path.slots().inspect(mapped.first, place)?;
        Some((Cow::Owned(vec![Extent { owner, key: key?, offset, len }]), None))
    }
}
