//! The record of a region at its home.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::ids::{Epoch, NodeIncarnation, Principal, RegionId, RequestId, Requester};
use crate::layout::{self, Extent, Extents};
use crate::message::{MappedReply, MapperEntry, Record, RegionCommand, RegionInfo, Request};
use crate::permissions::AccessList;

/// The record of a region whose home is this node. It is small, because a node may be the home of millions of regions.
#[derive(Debug)]
pub struct Region {
    /// Name of the region; `None` if it has no name.
    pub name: Option<Box<str>>,
    /// Length of the region in bytes.
    pub len: u64,
    /// Number of changes that the home has made to the region so far.
    pub epoch: Epoch,
    /// Permissions of all principals. Regions of one maker share one list until a grant or revocation gives a region
    /// its own.
    pub access: Arc<AccessList>,
    /// Locations of the region's bytes, in order.
    pub extents: Extents,
    /// Nodes that map the region.
    pub mappers: SmallVec<[MapperEntry; 1]>,
    /// The command in progress and the commands queued after it; `None` without a command.
    pub busy: Option<Box<Busy>>,
    /// Binary logarithm of the bytes per chunk.
    pub chunk_bytes_log2: u8,
    /// True if the region is immutable.
    pub sealed: bool,
}

/// A command in progress on a region.
#[derive(Debug)]
pub struct Busy {
    /// The requester; `None` if no requester waits for a reply.
    pub requester: Option<Requester>,
    /// The progress of the command.
    pub stage: Stage,
    /// Mappers that have not acknowledged the change numbered `epoch`. The region's own epoch may be higher, for
    /// example after a rename.
    pub awaited: BTreeSet<NodeIncarnation>,
    /// Epoch of the change that mappers acknowledge.
    pub epoch: Epoch,
    /// True if the command waits for the directory to release the name.
    pub has_name: bool,
    /// True if another region got the name of this lock or barrier. The home then frees this region after the command,
    /// since a lock or barrier without a name is useless.
    pub lost_name: bool,
    /// Commands that wait for the end of this command, in order.
    pub queue: VecDeque<(Requester, Principal, RegionCommand)>,
}

/// The event that a command in progress waits for.
#[derive(Debug)]
pub enum Stage {
    /// The command waits until all mappers have dropped the region.
    Freeing,
    /// The command waits until all mappers have applied the new permissions.
    ChangingAccess,
    /// The command waits for the directory to grant this name.
    Naming(Box<str>),
    /// The command moves chunks to another node.
    Moving(Moving),
}

/// The state of a move in progress.
#[derive(Clone, Debug)]
pub struct Moving {
    /// The node to which chunks move.
    pub to: NodeIncarnation,
    /// The owner whose chunks move; if `None`, all chunks and the home move.
    pub of: Option<NodeIncarnation>,
    /// Reserved target extents, in order, for chunks that have not moved yet.
    pub places: Extents,
    /// Number of bytes of `places`, from the start, that moved chunks already occupy.
    pub used: u64,
    /// Offset of the current chunk in the region, in bytes.
    pub at: u64,
    /// True if the chunk that is under way, and all further ones, stay where they are.
    pub withdrawn: bool,
    /// True if the home has sent the region's layout to the mappers, with the first freeze.
    pub announced: bool,
    /// True if the chunk at `at` is frozen.
    pub frozen: bool,
    /// True if all chunks have moved, so that the move only waits for the mappers to acknowledge all new places.
    pub closing: bool,
    /// True if `parked` includes the waiters of the lock or barrier in this region.
    pub waiters_are_parked: bool,
    /// True if the home has sent the record to the next home, which has not replied yet.
    pub adopting: bool,
    /// True if the next home became unreachable before it acknowledged the record.
    pub in_doubt: bool,
    /// Nodes that unmapped the region after the record was first sent, with their last requests. The next home may not
    /// know of these unmappings.
    pub unmapped: Vec<(NodeIncarnation, RequestId)>,
    /// Map, watch, lock and barrier requests to serve after the move.
    pub parked: Vec<(Requester, Request)>,
}

/// The state of a node that holds bytes of a region, as the region's home sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// The node is connected to the home, or is the home.
    There,
    /// The node is not connected, but may be alive.
    Unreachable,
    /// The node's incarnation has ended.
    Gone,
}

impl Region {
    /// Returns the number of bytes per chunk.
    pub fn chunk_bytes(&self) -> u64 {
        1 << self.chunk_bytes_log2
    }

    /// Adds the requesting node to the mappers, or updates the latest request of a node that is already a mapper.
    pub fn add_mapper(&mut self, requester: Requester) {
        match self.mappers.iter_mut().find(|mapper| mapper.incarnation == requester.incarnation) {
            Some(mapper) => mapper.request = mapper.request.max(requester.id),
            None => {
                self.mappers.push(MapperEntry { incarnation: requester.incarnation, request: requester.id })
            }
        }
    }

    /// Removes a mapper, unless it has sent a map request after `upto`.
    pub fn remove_mapper(&mut self, incarnation: NodeIncarnation, upto: RequestId) {
        self.mappers.retain(|mapper| mapper.incarnation != incarnation || mapper.request > upto);
    }

    /// Returns the move in progress, or `None`.
    pub fn moving(&self) -> Option<&Moving> {
        match &self.busy.as_ref()?.stage {
            Stage::Moving(moving) => Some(moving),
            _ => None,
        }
    }

    /// Returns a mutable reference to the move in progress, or `None`.
    pub fn moving_mut(&mut self) -> Option<&mut Moving> {
        match &mut self.busy.as_mut()?.stage {
            Stage::Moving(moving) => Some(moving),
            _ => None,
        }
    }

    /// Returns true if the home has sent the record to the next home, which may have adopted the region.
    pub fn is_being_handed_over(&self) -> bool {
        self.moving().is_some_and(|moving| moving.adopting || moving.in_doubt)
    }

    /// Returns the data of the region that the home sends to a node that maps it.
    pub fn reply(&self, region: RegionId, home: NodeIncarnation) -> MappedReply {
        let frozen = self.moving().filter(|moving| moving.frozen);
        MappedReply {
            region,
            home,
            epoch: self.epoch,
            len: self.len,
            chunk_bytes: self.chunk_bytes(),
            access: (*self.access).clone(),
            sealed: self.sealed,
            extents: self.extents.clone(),
            frozen: frozen.map(|moving| (moving.at, (self.len - moving.at).min(self.chunk_bytes()))),
            moving_to: self.moving().map(|moving| moving.to),
        }
    }

    /// Returns the description of the region for users; `presence` returns the state of each owner.
    pub fn info(
        &self,
        region: RegionId,
        home: NodeIncarnation,
        presence: impl Fn(NodeIncarnation) -> Presence,
    ) -> RegionInfo {
        let named = self.access.named();
        let (mut nodes, mut unreachable, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for Extent { owner, len, .. } in &self.extents {
            let shares = match presence(*owner) {
                Presence::There => &mut nodes,
                Presence::Unreachable => &mut unreachable,
                Presence::Gone => &mut lost,
            };
            layout::add_share(shares, owner.node, *len);
        }
        RegionInfo {
            name: self.name.as_deref().map(str::to_string),
            region,
            len: self.len,
            chunk_bytes: self.chunk_bytes(),
            home: home.node,
            nodes,
            unreachable,
            lost,
            owner: self.access.maker.to_string(),
            everyone: self.access.everyone,
            grants: named.iter().map(|(who, permissions)| (who.to_string(), *permissions)).collect(),
            mappers: self.mappers.iter().map(|mapper| mapper.incarnation.node).collect(),
            epoch: self.epoch.0,
            sealed: self.sealed,
        }
    }

    /// Returns the region's state, in the form that the home sends to the next home. The caller adds `watchers` and
    /// `recovered`.
    pub fn record(&self, region: RegionId) -> Record {
        Record {
            region,
            name: self.name.as_deref().map(str::to_string),
            len: self.len,
            chunk_bytes: self.chunk_bytes(),
            epoch: self.epoch,
            access: (*self.access).clone(),
            sealed: self.sealed,
            extents: self.extents.clone(),
            mappers: self.mappers.to_vec(),
            watchers: Vec::new(),
            recovered: false,
        }
    }
}

impl Moving {
    /// Returns true if `extent` still has to move.
    pub fn covers(&self, extent: &Extent) -> bool {
        extent.owner != self.to && self.of.is_none_or(|of| extent.owner == of)
    }

    /// Records that a node has unmapped the region during a move: all mappings from its map requests up to `upto` are
    /// gone.
    pub fn record_unmapped(&mut self, incarnation: NodeIncarnation, upto: RequestId) {
        match self.unmapped.iter_mut().find(|(mapper, _)| *mapper == incarnation) {
            Some((_, last)) => *last = upto.max(*last),
            None => self.unmapped.push((incarnation, upto)),
        }
    }

    /// Returns true if the home has informed the mappers of the move. From then on, the home must not change the
    /// region's bytes itself, since these changes may be lost.
    pub fn has_started(&self) -> bool {
        self.announced || self.closing
    }
}

impl From<Record> for Region {
    fn from(record: Record) -> Region {
        Region {
            name: record.name.map(String::into_boxed_str),
            len: record.len,
            epoch: record.epoch,
            access: Arc::new(record.access),
            extents: record.extents,
            mappers: SmallVec::from_vec(record.mappers),
            busy: None,
            chunk_bytes_log2: record.chunk_bytes.trailing_zeros() as u8,
            sealed: record.sealed,
        }
    }
}
