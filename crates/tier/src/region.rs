//! A region as its home knows it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::ids::{Epoch, NodeIncarnation, Principal, RegionId, RequestId, Requester};
use crate::layout::{self, Extent, Extents};
use crate::message::{MappedReply, MapperEntry, Record, RegionCommand, RegionInfo, Request};
use crate::permissions::AccessList;

/// A region whose changes this node decides on.  Small, since there may be millions.
#[derive(Debug)]
pub struct Region {
    /// Its name, if it has one.
    pub name: Option<Box<str>>,
    /// Length in bytes.
    pub len: u64,
    /// Counts its changes.
    pub epoch: Epoch,
    /// Shared by regions of the same maker, until a grant sets them apart.
    pub access: Arc<AccessList>,
    /// Where its bytes are.
    pub extents: Extents,
    /// Nodes that map it.
    pub mappers: SmallVec<[MapperEntry; 1]>,
    /// What is being done to it, and who waits for that.
    pub busy: Option<Box<Busy>>,
    /// Bytes per chunk, as a power of two.
    pub chunk_bytes_log2: u8,
    /// Whether it is immutable.
    pub sealed: bool,
}

/// A command under way on a region.
#[derive(Debug)]
pub struct Busy {
    /// Who gave it.
    pub requester: Option<Requester>,
    /// How far it is.
    pub stage: Stage,
    /// Mappers of whom it is not known yet that they keep to the change of this epoch.  The region may be further: it is renamed, or
    /// somebody is told of it, meanwhile.
    pub awaited: BTreeSet<NodeIncarnation>,
    /// See `awaited`.
    pub epoch: Epoch,
    /// Whether the directory has yet to hear that the name is free.
    pub has_name: bool,
    /// Whether its name, without which it is of no use, is another's by now.
    pub lost_name: bool,
    /// Orders that came meanwhile.
    pub queue: VecDeque<(Requester, Principal, RegionCommand)>,
}

/// How far a command is.
#[derive(Debug)]
pub enum Stage {
    /// Mappers are told that the region is gone.
    Freeing,
    /// Mappers are told its new permissions.
    ChangingAccess,
    /// The directory is asked for this name.
    Naming(Box<str>),
    /// Its chunks are brought to another node.
    Moving(Moving),
}

/// A move under way.
#[derive(Clone, Debug)]
pub struct Moving {
    /// Where to.
    pub to: NodeIncarnation,
    /// Whose chunks are brought there: those of one owner that leaves; or of all, and the home follows.
    pub of: Option<NodeIncarnation>,
    /// Where the chunks that are not there yet will be, in the order of their bytes.
    pub places: Extents,
    /// The next byte of `places` to use.
    pub used: u64,
    /// The first byte of the chunk under way.
    pub at: u64,
    /// Whether mappers were told the layout.
    pub announced: bool,
    /// Whether the chunk at `at` is frozen.
    pub frozen: bool,
    /// Whether all chunks are there, and mappers are asked whether they have heard of all places.
    pub closing: bool,
    /// Whether those who wait for the lock that the region is, or at the barrier, are among the parked.
    pub waiters_are_parked: bool,
    /// Whether the record itself is on its way to the new home.
    pub adopting: bool,
    /// Whether the new home could not be asked since whether it has taken the record.
    pub in_doubt: bool,
    /// Who has given the region up since the record was first on its way, upto which request: the new home may not have heard.
    pub unmapped: Vec<(NodeIncarnation, RequestId)>,
    /// Who wants to map or watch the region meanwhile, or has to do with the lock or barrier that it is.
    pub parked: Vec<(Requester, Request)>,
}

/// What has become of a node, as another sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// It is connected, or the one that looks.
    There,
    /// It is not, and may live.
    Unreachable,
    /// Its incarnation is over.
    Gone,
}

impl Region {
    /// Bytes per chunk.
    pub fn chunk_bytes(&self) -> u64 {
        1 << self.chunk_bytes_log2
    }

    /// Lists a node as a mapper, by its latest request.
    pub fn add_mapper(&mut self, requester: Requester) {
        match self.mappers.iter_mut().find(|mapper| mapper.incarnation == requester.incarnation) {
            Some(mapper) => mapper.request = mapper.request.max(requester.id),
            None => {
                self.mappers.push(MapperEntry { incarnation: requester.incarnation, request: requester.id })
            }
        }
    }

    /// Strikes a node off, unless it has asked to map the region again since.
    pub fn remove_mapper(&mut self, incarnation: NodeIncarnation, upto: RequestId) {
        self.mappers.retain(|mapper| mapper.incarnation != incarnation || mapper.request > upto);
    }

    /// The move under way, if there is one.
    pub fn moving(&self) -> Option<&Moving> {
        match &self.busy.as_ref()?.stage {
            Stage::Moving(moving) => Some(moving),
            _ => None,
        }
    }

    /// The same, to go on with it.
    pub fn moving_mut(&mut self) -> Option<&mut Moving> {
        match &mut self.busy.as_mut()?.stage {
            Stage::Moving(moving) => Some(moving),
            _ => None,
        }
    }

    /// Whether its record is on its way to the next home, or has been.
    pub fn is_being_handed_over(&self) -> bool {
        self.moving().is_some_and(|moving| moving.adopting || moving.in_doubt)
    }

    /// What a node that maps it needs to know.
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

    /// What users see, when owners are as `presence` says.
    pub fn info(
        &self,
        region: RegionId,
        home: NodeIncarnation,
        presence: impl Fn(NodeIncarnation) -> Presence,
    ) -> RegionInfo {
        let named = self.access.named();
        let held_by = |wanted: Presence| {
            let held = self.extents.iter().filter(|extent| presence(extent.owner) == wanted);
            layout::bytes_by_node(held.collect::<Vec<_>>())
        };
        RegionInfo {
            name: self.name.as_deref().map(str::to_string),
            region,
            len: self.len,
            chunk_bytes: self.chunk_bytes(),
            home: home.node,
            nodes: held_by(Presence::There),
            unreachable: held_by(Presence::Unreachable),
            lost: held_by(Presence::Gone),
            owner: self.access.maker.to_string(),
            everyone: self.access.everyone,
            grants: named.iter().map(|(who, permissions)| (who.to_string(), *permissions)).collect(),
            mappers: self.mappers.iter().map(|mapper| mapper.incarnation.node).collect(),
            epoch: self.epoch.0,
            sealed: self.sealed,
        }
    }

    /// All of it but its watchers, and what its home knows of a lock, for the next home.
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
    /// Whether the chunks of an extent are to be brought to the new place.
    pub fn concerns(&self, extent: &Extent) -> bool {
        extent.owner != self.to && self.of.is_none_or(|of| extent.owner == of)
    }

    /// Somebody has given the region up, by all that it has asked upto then.
    pub fn note_unmapped(&mut self, incarnation: NodeIncarnation, upto: RequestId) {
        match self.unmapped.iter_mut().find(|(mapper, _)| *mapper == incarnation) {
            Some((_, last)) => *last = upto.max(*last),
            None => self.unmapped.push((incarnation, upto)),
        }
    }

    /// Whether the mappers have been told of it: what the home changed in the bytes from now on might not be seen at the new place.
    pub fn is_begun(&self) -> bool {
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
