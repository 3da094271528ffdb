//! The messages between nodes about regions, names and nodes.
//!
//! This is the control protocol (`docs/protocol.md`): small postcard-encoded messages, sent over the fabric in order
//! between any two nodes. They never carry the bytes of regions.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, NodeId, NodeIncarnation, Principal, RegionId, RequestId, SessionId};
use crate::layout::{CHUNK_BYTES_MIN, Extent, Extents};
use crate::permissions::{AccessList, Grantee, Permissions};
use crate::quota::QuotaExceeded;

/// Maximum length of a region's name, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 255;

/// Maximum length of an encoded message, in bytes: enough for the extents of a region of a million chunks.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A message of the control protocol between two nodes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// A request; exactly one [`Message::Reply`] with its id follows, unless one of the nodes is lost.
    Request {
        /// Id of the request, chosen by the requester.
        id: RequestId,
        /// The content of the request.
        body: Request,
    },
    /// The reply to a request.
    Reply {
        /// Id of the answered request.
        id: RequestId,
        /// The result of the request.
        body: Result<Reply, ErrorReply>,
    },
    /// A message without a reply.
    Notice(Notice),
}

/// A request. Each variant begins with the node that serves it.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// To the directory: give this name to the region if the name is free.
    ClaimName { name: String, region: RegionId },
    /// To the directory: release this name if `region`, a region of the requester, has the name.
    ReleaseName { name: String, region: RegionId },
    /// To the directory: return the region with this name, and its home.
    FindName { name: String },
    /// To the directory: list the names after `after` in order, as many as fit into the reply.
    ListNames { after: Option<String> },
    /// To the directory: list all nodes that it knows.
    ListMembers,
    /// To the home of a new region: allocate the region.
    Alloc {
        name: Option<String>,
        len: u64,
        chunk_bytes: u64,
        /// The nodes that will hold the chunks: with several nodes, consecutive chunks go to the nodes in turn.
        nodes: Vec<NodeId>,
        maker: Principal,
        everyone: Permissions,
        /// True if owners must allocate the pages of the chunks before the reply.
        populate: bool,
    },
    /// To a region's home: let the requesting node map the region for `principal`. If `name` is given, refuse unless
    /// the region has this name.
    Map { region: RegionId, principal: Principal, wanted: Permissions, name: Option<String> },
    /// To a region's home: describe the region.
    Stat { region: RegionId },
    /// To a region's home: execute a master's command.
    RegionCommand { region: RegionId, principal: Principal, command: RegionCommand },
    /// To a node with memory: reserve chunks for a region of the requester. With `populate`, the reply follows once the
    /// pages of the chunks are allocated.
    Reserve { region: RegionId, chunk_bytes: u64, len: u64, populate: bool },
    /// To the node that will hold a chunk: copy the chunk from its current location.
    CopyChunk { from: Extent, to: Extent },
    /// To a mapper: apply this change, and reply once no access under the old state is in flight.
    Change { region: RegionId, epoch: Epoch, change: Change },
    /// To the home of a lock: grant the lock to this session of the requesting node. If another session holds the lock,
    /// the request fails, or with `wait` waits for its turn.
    Lock {
        region: RegionId,
        principal: Principal,
        session: SessionId,
        wait: bool,
        /// First fencing token if the lock is new, in ns since 1970.
        base_ns: u64,
    },
    /// To the home of a lock: release the lock. With `recover`, the next grant reports that a holder ended without
    /// releasing the lock.
    Unlock { region: RegionId, session: SessionId, recover: bool },
    /// To the home of a barrier: one participant has arrived. The reply follows when all participants have arrived.
    Arrive { region: RegionId, principal: Principal, participants: u32, timeout_ns: u64 },
    /// To all nodes: `home` has ended. Drop your mappings of all chunks that are in the requester's memory and belong
    /// to regions of `home`. Reply once no access through these mappings is in flight.
    DropHome { home: NodeIncarnation },
    /// To an owner of chunks of the requester's regions: the requester cannot reach the mapper `to`. Make the mapper
    /// drop all regions that it mapped before its pairing `pairing` with the requester ended, or cut the mapper off.
    /// Reply when either is done.
    Relay { to: NodeIncarnation, pairing: u64 },
    /// To a mapper, on behalf of `home`: `home` has ended its pairing `pairing` with the mapper. Drop the home's
    /// regions, and reply once no access to them is in flight.
    Retire { home: NodeIncarnation, pairing: u64 },
    /// To the next home of a region: become its home, with the state in `record`.
    Adopt { record: Box<Record> },
    /// To any node: report your status.
    Status,
    /// To an owner of memory: report whether `node` can still access your memory.
    Reach { node: NodeId },
    /// To an owner of memory: set each byte of these parts of a region to `byte`.
    FillBytes { region: RegionId, parts: Extents, byte: u8 },
    /// To an owner of memory: copy into your memory, segment by segment. If `backward`, copy each segment from its end.
    CopyBytes { to: RegionId, from: RegionId, copy_segments: Vec<CopySegment>, backward: bool },
    /// To a region's home: add this port of the requesting node to the region's watchers, which writers notify.
    Watch { region: RegionId, principal: Principal, port: u32 },
    /// To a region's home: remove this port of the requesting node from the region's watchers.
    Unwatch { region: RegionId, port: u32 },
    /// To a region's home: list the watchers, so that the requester can notify them of a write by `principal`.
    ListWatchers { region: RegionId, principal: Principal },
    /// To the directory: list the lost names after `after` in order, as many as fit into the reply.
    ListLost { after: Option<String> },
    /// To the directory: remove this name from the list of lost names.
    ForgetName { name: String },
    /// To the directory: forget this node, and the names that were lost with it.
    ForgetNode { node: NodeId },
    /// To the directory: issue a number for a permanent node.
    TakeNumber,
    /// To a node: move all your data to other nodes within this time, then leave. With `stays`, leave only if no data
    /// remains.
    Drain { within_ns: u64, stays: bool },
    /// To node 0, which keeps the names: move the names to this store, and make all nodes use the store.
    MoveNames { to: NamesAt },
    /// To node 0: move the names from the store outside the cluster back to yourself, and make all nodes ask you.
    MoveNamesBack,
    /// To any node: check whether you reach this store.
    TryNames { at: NamesAt },
    /// To a home: describe these regions, as many as fit into the reply.
    Describe { regions: Vec<RegionId> },
}

/// Location of the store of names outside the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamesAt {
    /// Address of the store, as text that only the node's driver interprets. Contains no password, since hosts on the
    /// network path can read messages.
    pub address: String,
    /// Prefix of the keys of names.
    pub prefix: String,
}

impl NamesAt {
    /// Maximum length of the address, and of the prefix, in bytes.
    pub const BYTES_MAX: usize = 4096;

    /// Returns true if neither address nor prefix is empty or longer than [`NamesAt::BYTES_MAX`].
    pub fn is_well_formed(&self) -> bool {
        let is_fit = |text: &String| !text.is_empty() && text.len() <= NamesAt::BYTES_MAX;
        is_fit(&self.address) && is_fit(&self.prefix)
    }
}

/// A part of a copy. Source and target are contiguous and have equal length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopySegment {
    /// The source bytes.
    pub from: Extent,
    /// The target bytes.
    pub to: Extent,
}

/// A command on a region, by one of its masters.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum RegionCommand {
    /// Free the region and its memory.
    Free,
    /// Give a principal, or everyone, these permissions in addition.
    Grant { who: Grantee, permissions: Permissions },
    /// Take these permissions from a principal, or from everyone.
    Revoke { who: Grantee, permissions: Permissions },
    /// Make the region immutable forever.
    Seal,
    /// Move all chunks of the region, and its home, to another node.
    Move { to: NodeId },
    /// Give the region a name. Fails if the region already has a name.
    SetName { name: String },
    /// Move the chunks of the requesting owner to another node. If the requester is the home, move all chunks and the
    /// home.
    Vacate { to: NodeId },
}

impl RegionCommand {
    /// Returns the command's name, for errors and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            RegionCommand::Free => "free",
            RegionCommand::Grant { .. } => "grant",
            RegionCommand::Revoke { .. } => "revoke",
            RegionCommand::Seal => "seal",
            RegionCommand::Move { .. } => "move",
            RegionCommand::SetName { .. } => "name",
            RegionCommand::Vacate { .. } => "vacate",
        }
    }
}

/// A change of a mapped region.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// Freezes bytes: mappers must not access them until the matching `Place`. The first freeze of a move carries the
    /// whole layout, because a mapper does not keep the extents of a region that it reaches as one window. A mapper
    /// acknowledges the freeze once it has connected, or failed to connect, to the target of the move.
    Freeze { from: u64, len: u64, layout: Option<Extents>, to: NodeIncarnation },
    /// Announces that the bytes from `from` on are at `place`.
    Place { from: u64, place: Extent },
    /// Replaces the permissions of all principals, and the seal.
    Access { access: AccessList, sealed: bool },
    /// Announces the region's present home: at the end of a move, or to a newly paired mapper.
    Settle { home: NodeIncarnation },
    /// Announces that the home is freeing the region, so that mappers drop it.
    Drop,
}

impl Change {
    /// Returns the node to which a freeze announces that bytes will move, or `None` for other changes.
    pub fn moves_to(&self) -> Option<NodeIncarnation> {
        match self {
            Change::Freeze { to, .. } => Some(*to),
            _ => None,
        }
    }
}

/// The reply to a successful request.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The request is done, and has no result.
    Done,
    /// Reply to `FindName`: the region with this name, and its home.
    Found { region: RegionId, home: NodeId },
    /// Reply to `ListNames`: names with their regions and homes. `damaged` lists names with invalid records, and `more`
    /// is true if more names follow.
    Names { names: Vec<(String, RegionId, NodeId)>, damaged: Vec<String>, more: bool },
    /// Reply to `ListMembers`: all nodes that the replying node knows.
    Members { members: Vec<Member> },
    /// Reply to `Alloc` and `Map`: the data that a mapper of the region needs.
    Mapped(Box<MappedReply>),
    /// Reply to `Stat`: the description of the region.
    Info(Box<RegionInfo>),
    /// Reply to `Reserve`: the reserved chunks.
    Reserved { extents: Extents },
    /// Reply to `Status`: the status of the replying node.
    Status(Box<NodeStatus>),
    /// Reply to `TakeNumber`: the number for a new node.
    Number(NodeId),
    /// Reply to `Lock`: the session holds the lock. `recovered` is true if an earlier holder ended without releasing
    /// the lock.
    Locked { token: u64, recovered: bool },
    /// Reply to `Arrive`: all participants of round `round` have arrived.
    Passed { round: u64 },
    /// The region has moved to another home; repeat the request to that home.
    MovedTo { home: NodeId },
    /// Reply to `ListWatchers`: the watching nodes and their ports.
    Watchers { watchers: Vec<(NodeIncarnation, u32)> },
    /// Reply to `ListLost`: names whose regions were lost. `more` is true if more names follow.
    Lost { names: Vec<LostName>, more: bool },
    /// Reply to `Relay`: the mapper has dropped all regions that it mapped from the requester before the pairing ended.
    Retired,
    /// Reply to `Relay`: the mapper can no longer access the replying node's memory.
    CutOff,
    /// Reply to `Reach`: whether the node can still access the replying node's memory.
    Reached(Reach),
    /// Reply to `Drain`: the result of the drain.
    Drained(Box<Drained>),
    /// Reply to `MoveNames` and `MoveNamesBack`: this many names, and this many lost names, have moved.
    NamesMoved { names: u64, lost: u64 },
    /// Reply to `Describe`: one description for each of the first regions in the request, at least for one.
    Described { found: Vec<Description> },
}

/// A home's answer about one region of a [`Request::Describe`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Description {
    /// The region's home is the replying node.
    Region(Box<RegionInfo>),
    /// The region has moved to this home.
    MovedTo(NodeId),
    /// The replying node does not know the region.
    NotFound,
}

/// Maximum number of remaining regions that a drained node lists.
pub const LEFTOVERS_MAX: usize = 1000;

/// The result of a drain, which moves all data of a node to other nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Drained {
    /// Number of regions moved, in whole or in part.
    pub moved: u64,
    /// Number of bytes that the moved regions had on the drained node.
    pub moved_bytes: u64,
    /// Regions that are still on the node, at most [`LEFTOVERS_MAX`].
    pub left: Vec<Leftover>,
    /// Number of all regions that are still on the node.
    pub left_count: u64,
}

/// A region that a drain could not move.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Leftover {
    /// Id of the region.
    pub region: RegionId,
    /// Name of the region; `None` if the region has no name, or if its home is not the drained node.
    pub name: Option<String>,
    /// Bytes of the region on the drained node.
    pub bytes: u64,
    /// The reason why the region could not be moved.
    pub cause: LeftoverCause,
}

/// The reason why a drain could not move a region.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum LeftoverCause {
    /// A node refused the region, for this reason.
    #[error(transparent)]
    Refused(ErrorReply),
    /// The deadline passed before the region's turn, or before a mapper acknowledged a freeze.
    #[error("the deadline of the drain passed before the region could move")]
    TimeOver,
    /// No permanent node except the drained node has memory and is connected.
    #[error("no other node that stays in the cluster has memory and is connected")]
    NoOtherNode,
}

/// The data of a region that a mapper (a node that maps the region) needs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MappedReply {
    /// Id of the region.
    pub region: RegionId,
    /// The home of the region, which announces changes.
    pub home: NodeIncarnation,
    /// Version of the region that this data describes.
    pub epoch: Epoch,
    /// Length of the region in bytes.
    pub len: u64,
    /// Bytes per chunk.
    pub chunk_bytes: u64,
    /// Permissions of all principals.
    pub access: AccessList,
    /// True if the region is immutable.
    pub sealed: bool,
    /// Locations of the chunks, in order.
    pub extents: Extents,
    /// Offset and length in bytes of the region's frozen part, or `None`.
    pub frozen: Option<(u64, u64)>,
    /// The node to which the region's bytes are moving, or `None` if the region is not being moved.
    pub moving_to: Option<NodeIncarnation>,
}

/// The complete state of a region, which its home sends to the next home.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    pub region: RegionId,
    pub name: Option<String>,
    pub len: u64,
    pub chunk_bytes: u64,
    pub epoch: Epoch,
    pub access: AccessList,
    pub sealed: bool,
    pub extents: Extents,
    pub mappers: Vec<MapperEntry>,
    pub watchers: Vec<Watcher>,
    /// For a lock: true if the current grant reported a recovery. If the present holder does not use the lock, the next
    /// grant must report the recovery again.
    pub recovered: bool,
}

/// A node that maps a region, with its latest map request. Notices of unmapping that belong to earlier requests are
/// stale.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MapperEntry {
    /// The node that maps the region.
    pub incarnation: NodeIncarnation,
    /// The latest map request of the node.
    pub request: RequestId,
}

/// A port of a node that watches a region: each write with a notification sends a message to the port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Watcher {
    /// The node that watches the region.
    pub incarnation: NodeIncarnation,
    /// The port that receives the messages.
    pub port: u32,
    /// The request that registered the port.
    pub request: RequestId,
    /// The principal that watches.
    pub principal: Principal,
}

/// An owner's view of another node. It shows whether operations of that node can still change the owner's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reach {
    /// The latest incarnation of the node that the owner has seen; 0 if the owner remembers none.
    pub incarnation: u64,
    /// Number of the current or last pairing of the two nodes; 0 if they never paired, or the incarnation has ended.
    pub pairing: u64,
    /// True if no incarnation of the node can access the owner's memory any more, not even by operations begun earlier.
    pub is_cut_off: bool,
}

/// The description of a region for users.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionInfo {
    /// Name of the region; `None` if it has no name.
    pub name: Option<String>,
    /// Id of the region.
    pub region: RegionId,
    /// Length of the region in bytes.
    pub len: u64,
    /// Bytes per chunk.
    pub chunk_bytes: u64,
    /// The home of the region, which orders all changes.
    pub home: NodeId,
    /// Bytes of the region on each node that is connected to the home.
    pub nodes: Vec<(NodeId, u64)>,
    /// Bytes of the region on nodes that are not connected to the home but may be alive.
    pub unreachable: Vec<(NodeId, u64)>,
    /// Bytes of the region that were lost with ended incarnations, even if their nodes have restarted.
    pub lost: Vec<(NodeId, u64)>,
    /// The principal that created the region.
    pub owner: String,
    /// Permissions of principals that are not named in `grants`.
    pub everyone: Permissions,
    /// Permissions of named principals.
    pub grants: Vec<(String, Permissions)>,
    /// Nodes that map the region.
    pub mappers: Vec<NodeId>,
    /// Number of changes of the region so far.
    pub epoch: u64,
    /// True if the region is immutable.
    pub sealed: bool,
}

impl RegionInfo {
    /// Returns about the length of the encoded description, in bytes.
    pub(crate) fn encoded_bytes(&self) -> usize {
        let grants: usize = self.grants.iter().map(|(who, _)| who.len() + 3).sum();
        let shares = self.nodes.len() + self.unreachable.len() + self.lost.len();
        let name = self.name.as_ref().map_or(0, String::len);
        48 + name + self.owner.len() + grants + 12 * shares + 5 * self.mappers.len()
    }
}

/// The description of a node for users.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Number of the node.
    pub node: NodeId,
    /// Process id of the node.
    pub pid: u32,
    /// State of the node.
    pub state: NodeState,
    /// Random id of the node's incarnation.
    pub incarnation: u64,
    /// Names of the providers of the node's fabric.
    pub provider: String,
    /// Bytes of the node's memory that belong to regions.
    pub bytes_used: u64,
    /// Maximum bytes that the node contributes.
    pub bytes_total: u64,
    /// Bytes of `bytes_total` that the operating system currently refuses to provide.
    pub bytes_refused: u64,
    /// Bytes in quarantine because a node that could access them is not cut off yet.
    pub bytes_quarantined: u64,
    /// Bytes of the longest piece of memory that can be allocated at once.
    pub bytes_largest: u64,
    /// Number of regions homed at the node.
    pub regions: u64,
    /// Number of handles of the node's sessions.
    pub mappings: u64,
    /// Cause and time of the node's loss; `None` if it is not lost, or the cause is unknown.
    pub loss: Option<Loss>,
}

/// Cause of a node's loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LossCause {
    /// The node left as planned.
    Left,
    /// The node's process has exited.
    Exited,
    /// Another node killed the node's process, because the node was silent for longer than a lease.
    Killed,
    /// The node does not answer, and may be alive.
    Unreachable,
}

/// Cause and time of a node's loss. The time is given as an age, since nodes share no clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loss {
    /// Cause of the loss.
    pub cause: LossCause,
    /// Age in ns, counted from the node's end, or from the last message of the node if its end is unknown.
    pub age_ns: u64,
}

/// A name whose region was lost with its home.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostName {
    /// The lost name.
    pub name: String,
    /// The home with which the region was lost.
    pub home: NodeIncarnation,
    /// Cause and time of the home's loss.
    pub loss: Loss,
}

/// The state of a node, as another node sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeState {
    /// The node answers.
    Alive,
    /// The node is not connected to the observing node, because neither node has used the other. It is alive according
    /// to the directory (or to another member, while the directory is unreachable).
    Unconnected,
    /// The node does not answer the observing node: its process may be stopped. It is alive according to the directory.
    Silent,
    /// The node was silent for longer than its lease, or its connection has ended. Chunks stay reserved for the node.
    Unreachable,
    /// The node's incarnation has ended: the node's process crashed or was killed, or the node was forgotten or
    /// restarted.
    Dead,
    /// The node left as planned.
    Left,
    /// The node answers, but is draining: it accepts no new data, and moves its data to other nodes.
    Draining,
}

impl NodeState {
    /// All states.
    pub const ALL: [NodeState; 7] = [
        NodeState::Alive,
        NodeState::Unconnected,
        NodeState::Silent,
        NodeState::Unreachable,
        NodeState::Dead,
        NodeState::Left,
        NodeState::Draining,
    ];

    /// Returns the state's name in outputs.
    pub fn name(self) -> &'static str {
        match self {
            NodeState::Alive => "alive",
            NodeState::Unconnected => "unconnected",
            NodeState::Silent => "silent",
            NodeState::Unreachable => "unreachable",
            NodeState::Dead => "dead",
            NodeState::Left => "left",
            NodeState::Draining => "draining",
        }
    }

    /// Returns true if operations may use the node, because it is alive or is dialled on first use.
    pub fn is_there(self) -> bool {
        matches!(self, NodeState::Alive | NodeState::Unconnected)
    }
}

/// The directory's record of a node.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    pub incarnation: NodeIncarnation,
    pub pid: u32,
    pub bytes_total: u64,
    pub state: NodeState,
    pub loss: Option<Loss>,
}

impl Member {
    /// Returns a record for an incarnation of which only number and id are known.
    pub fn unseen(incarnation: NodeIncarnation) -> Member {
        Member { incarnation, pid: 0, bytes_total: 0, state: NodeState::Alive, loss: None }
    }
}

/// A message without a reply.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Notice {
    /// The sender was alive at `sent_ns` on its own clock. `heard_ns` names the last heartbeat that the sender has
    /// received, by the time at which the receiver sent it, on the receiver's clock; 0 if there is none. `time_ns` is
    /// the time since 1970 on the fastest clock that the sender knows. `bytes_taken` of the sender's memory are not
    /// free.
    Heartbeat { sent_ns: u64, heard_ns: u64, time_ns: u64, bytes_taken: u64 },
    /// The sender leaves, and can no longer access the receiver's memory.
    Leave,
    /// To a home: the sender no longer has mappings of this region from map requests up to `upto`.
    Unmapped { region: RegionId, upto: RequestId },
    /// From a former home to the next home: the former home forwards `Unmapped`. `node` has dropped the mappings of the
    /// region from its map requests up to and including `upto`; a later map request stays valid.
    UnmappedBy { region: RegionId, node: NodeIncarnation, upto: RequestId },
    /// To a newly paired node: as far as the sender knows, these homes have ended. The sender may reuse the chunks that
    /// it held for them.
    Swept { homes: Vec<NodeIncarnation> },
    /// To a restarted directory: names of regions homed at the sender, with their epochs; `done` marks the last part.
    Names { names: Vec<(String, RegionId, Epoch)>, done: bool },
    /// From the directory to a home: another region has this name, so the home's region loses it.
    NameLost { name: String, region: RegionId },
    /// To the home of a lock: the sender cancels this lock request.
    CancelLock { region: RegionId, session: SessionId, request: RequestId },
    /// To the home of a barrier: the sender withdraws this arrival.
    Withdraw { region: RegionId, request: RequestId },
    /// To the owner of chunks: the sender has freed these chunks.
    Return { extents: Extents },
    /// To a home, as the first message of a pairing: the chunks that the sender holds for regions of the home; `done`
    /// marks the last part. The home returns chunks that it does not know. `seat` is the address of the directory's
    /// node, which the home may have lost; `time_ns` is as in heartbeats.
    Held { held: Vec<(RegionId, Extents)>, done: bool, seat: Option<(NodeIncarnation, String)>, time_ns: u64 },
    /// From the directory: the members with their addresses, and ended incarnations. Joining nodes do not wait for
    /// `unreachable` members, from which the directory has heard nothing recently.
    Known { living: Vec<(Member, String)>, unreachable: Vec<(Member, String)>, ended: Vec<NodeIncarnation> },
    /// To the directory, which may have restarted: the members that the sender knows, with their addresses, and ended
    /// incarnations. `members` also describes an incarnation whose end the sender has witnessed.
    Seen { members: Vec<(Member, String)>, ended: Vec<NodeIncarnation> },
    /// To the directory: the sender is killing the process of this node, which was silent for longer than its lease.
    Killing { incarnation: NodeIncarnation },
    /// To a node with a higher node number: offers to pair over this connection. The receiver chooses the pairing
    /// number: `pairing`, or a higher number if it has already used `pairing`.
    Welcome { pairing: u64 },
    /// To a node with a lower node number, as the first message: accepts the pairing, with this pairing number.
    Paired { pairing: u64 },
    /// To all nodes: the sender starts to drain, or stops draining.
    Draining { is_on: bool },
    /// From the former home of a region to the directory: since `epoch`, the region's home is `to`.
    Moved { name: String, region: RegionId, epoch: Epoch, to: NodeIncarnation },
    /// To all nodes: the names have moved to this store; ask the store from now on, instead of node 0.
    NamesAt(NamesAt),
    /// To all nodes: the names have moved back to node 0 from the store with this prefix.
    NamesBack { prefix: String },
    /// To a new peer: the receiver's incarnation has ended, as far as the sender knows, so the two will not pair again.
    Over,
}

/// The reason why a node refused a request. Unless stated otherwise, the request changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum ErrorReply {
    /// Another region has the name.
    #[error("another region has this name; choose another name")]
    NameTaken,
    /// No region has the name, or the region was freed.
    #[error("there is no such region")]
    NotFound,
    /// The principal lacks these permissions.
    #[error("permission denied (missing: {missing})")]
    PermissionDenied {
        /// The permissions that the principal lacks.
        missing: Permissions,
    },
    /// The node does not have enough free memory.
    #[error("the node has no space for {wanted} bytes ({available} bytes are free, perhaps fragmented)")]
    NoSpace {
        /// Number of bytes requested.
        wanted: u64,
        /// Free bytes on the node, perhaps fragmented.
        available: u64,
        /// Length of the longest piece of them.
        largest: u64,
    },
    /// The cluster has no node with this number.
    #[error("the cluster has no node {0}")]
    UnknownNode(NodeId),
    /// The node was lost before it answered: the request may or may not have been executed.
    #[error("node {0} was lost before it answered; the request may or may not have been executed")]
    PeerDown(NodeId),
    /// The request is malformed.
    #[error("the request is malformed")]
    Malformed,
    /// The region is immutable.
    #[error("the region is sealed, and therefore immutable")]
    Sealed,
    /// No principal would be left to free the region or to grant permissions.
    #[error("the region would lose its last master; give another principal that permission first")]
    LastMaster,
    /// The region's access list names the maximum number of principals.
    #[error(
        "the region's permissions already name {max} principals, the maximum; grant to everyone, or use one principal for several users"
    )]
    TooManyGrants {
        /// Maximum number of principals that a region's permissions name.
        max: u64,
    },
    /// The region would consist of more pieces (extents) than the maximum.
    #[error("the region would have {pieces} pieces, and the maximum is {max}: use larger chunks")]
    TooManyPieces {
        /// Number of pieces that the region would have.
        pieces: u64,
        /// Maximum number of pieces.
        max: u64,
    },
    /// The chunk size is not a power of two, or too small.
    #[error("chunk size {0} is invalid: use a power of two of at least {CHUNK_BYTES_MIN}")]
    BadChunkSize(u64),
    /// This node is leaving or has left the cluster.
    #[error("node {0} is leaving the cluster, or has left it")]
    NodeClosed(NodeId),
    /// Another session holds the lock.
    #[error("another session holds the lock")]
    Held,
    /// The session does not hold the lock.
    #[error("this session does not hold the lock")]
    NotHeld,
    /// Not all participants arrived in time.
    #[error("not all participants arrived at the barrier in time")]
    Timeout,
    /// The waiting participants expect another number of participants.
    #[error("the waiting participants expect {expected} participants; pass the same number")]
    Participants {
        /// The number that the waiting participants expect.
        expected: u32,
    },
    /// The region has too many watchers.
    #[error("the region already has {max} watchers, the maximum")]
    TooManyWatchers {
        /// Maximum number of watchers of a region.
        max: u64,
    },
    /// The lock's holder is on a node that is silent and cannot be cut off.
    #[error(
        "node {0} holds the lock, is silent, and cannot be cut off; end its process, or wait until it answers"
    )]
    HeldBySilent(NodeId),
    /// The region already has a name.
    #[error("the region already has a name; names cannot change")]
    HasName,
    /// The operating system of the node currently refuses to provide that much memory.
    #[error("the operating system of node {node} provided only {given} of {wanted} bytes")]
    OutOfMemory {
        /// The node whose operating system refused memory.
        node: NodeId,
        /// Number of bytes requested.
        wanted: u64,
        /// Number of bytes that the operating system provided before the refusal.
        given: u64,
    },
    /// The region with this name was lost with its home.
    #[error("the region was lost with node {}", home.node)]
    Lost {
        /// The home with which the region was lost.
        home: NodeIncarnation,
        /// Cause and time of the home's loss.
        loss: Loss,
    },
    /// The node cannot be forgotten, because it is alive.
    #[error("node {0} is alive; only a node that is not alive can be forgotten")]
    NodeLives(NodeId),
    /// All numbers of permanent nodes are taken, and none can be reused.
    #[error("all node numbers below {} are taken; forget nodes that will not return", NodeId::EPHEMERAL_MIN)]
    NoNumbers,
    /// The node that executes a copy cannot map the memory of the source's owner.
    #[error("node {node} lacks address space or file descriptors to map the memory of node {owner}")]
    Unmapped {
        /// The node that executes the copy.
        node: NodeId,
        /// The owner of the source bytes.
        owner: NodeId,
    },
    /// The node is draining, so it accepts no new data.
    #[error("node {0} is being drained, and accepts no new data")]
    Draining(NodeId),
    /// The node has the maximum number of waiting requests from the requesting node.
    #[error(
        "the requesting node already has {max} requests, the maximum, waiting at the node that must answer"
    )]
    TooManyRequests {
        /// Maximum number of waiting requests.
        max: u64,
    },
    /// The store of names outside the cluster (etcd) does not answer; a claim of a name may have succeeded.
    #[error("the request to etcd, which holds the names, failed: {reason}")]
    DirectoryOut {
        /// The reason, for display.
        reason: String,
    },
    /// The names have moved to another store, or back to node 0. The requesting node has been notified of that, and
    /// repeats the request there.
    #[error("the names have moved to another store")]
    NamesElsewhere,
    /// The names did not move.
    #[error("the names were not moved: {reason}")]
    NamesNotMoved {
        /// The reason, for display.
        reason: String,
    },
    /// The record of the requested name in etcd is invalid.
    #[error("the key {key:?} in the store of names holds no valid record")]
    NameDamaged {
        /// The key of the invalid record.
        key: String,
    },
    /// The node is not connected, and could not be; the request was not executed.
    #[error("node {0} is not connected; the request was not executed")]
    NotMet(NodeId),
    /// The request exceeds a quota of its principal at the home.
    #[error("{0}")]
    Quota(QuotaExceeded),
}

/// The reason why bytes are not a valid message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are longer than [`MESSAGE_BYTES_MAX`].
    #[error("a message of {0} bytes is too long; the maximum is {MESSAGE_BYTES_MAX} bytes")]
    TooLong(usize),
    /// The bytes encode no message.
    #[error("the bytes are not a message: {0}")]
    Malformed(postcard::Error),
    /// Extra bytes follow the message.
    #[error("{0} bytes follow the end of a message")]
    Trailing(usize),
}

/// Encodes a message.
pub fn encode(message: &Message) -> Vec<u8> {
    postcard::to_stdvec(message).expect("control messages have no unencodable parts")
}

/// Decodes a message from a peer.
pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let (message, rest) = postcard::take_from_bytes(bytes).map_err(DecodeError::Malformed)?;
    if rest.is_empty() { Ok(message) } else { Err(DecodeError::Trailing(rest.len())) }
}
