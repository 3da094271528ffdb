//! The messages between nodes about regions, names and nodes.
//!
//! This is the control protocol (`docs/protocol.md`): small postcard-encoded messages, sent over the fabric in order
//! between any two nodes.  They never carry the bytes of regions.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, NodeId, NodeIncarnation, Principal, RegionId, RequestId, SessionId};
use crate::layout::{Extent, Extents};
use crate::permissions::{AccessList, Grantee, Permissions};

/// Maximum name of a region, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 255;

/// Maximum encoded message, in bytes: fits the extents of a region of a million chunks.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A message from a peer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// A request; exactly one [`Message::Reply`] with its id returns, unless a node dies.
    Request {
        /// Chosen by the requester.
        id: RequestId,
        /// The request.
        body: Request,
    },
    /// A reply.
    Reply {
        /// The request it answers.
        id: RequestId,
        /// The result.
        body: Result<Reply, ErrorReply>,
    },
    /// A message without a reply.
    Notice(Notice),
}

/// Requests.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// To the directory: claim this name for the region if it is free.
    ClaimName { name: String, region: RegionId },
    /// To the directory: release the name.
    ReleaseName { name: String, region: RegionId },
    /// To the directory: find the region of this name, and its home.
    FindName { name: String },
    /// To the directory: list names after `after`, in order, as many as fit.
    ListNames { after: Option<String> },
    /// To the directory: list all nodes that it has seen.
    ListMembers,
    /// To the home of a new region.
    Alloc {
        name: Option<String>,
        len: u64,
        chunk_bytes: u64,
        /// One node: all chunks there.  Several: chunks in turn.
        nodes: Vec<NodeId>,
        maker: Principal,
        everyone: Permissions,
        /// Whether owners allocate the pages of its chunks first.
        populate: bool,
    },
    /// To a region's home: map it at the requesting node for `principal`.
    Map { region: RegionId, principal: Principal, wanted: Permissions },
    /// To a region's home: describe it.
    Stat { region: RegionId },
    /// To a region's home: change it, as a master.
    RegionCommand { region: RegionId, principal: Principal, command: RegionCommand },
    /// To a node with memory: reserve chunks for a region of the requester; if `populate`, reply once their pages are
    /// allocated.
    Reserve { region: RegionId, chunk_bytes: u64, len: u64, populate: bool },
    /// To the node that will hold a chunk: copy it from its current place.
    CopyChunk { from: Extent, to: Extent },
    /// To a mapper: apply this change; reply once no access under the old state is in flight.
    Change { region: RegionId, epoch: Epoch, change: Change },
    /// To the home of a lock: grant it to that session of the requesting node, either at once or, with `wait`, in turn.
    Lock {
        region: RegionId,
        principal: Principal,
        session: SessionId,
        wait: bool,
        /// Start of a new lock's tokens.
        base_ns: u64,
    },
    /// To the home of a lock: release it; `recover` tells the next holder that an earlier one ended without releasing.
    Unlock { region: RegionId, session: SessionId, recover: bool },
    /// To the home of a barrier: one participant has arrived; reply when all have.
    Arrive { region: RegionId, principal: Principal, participants: u32, timeout_ns: u64 },
    /// To all nodes: that home is dead; drop mappings of its regions in the requester's memory, and reply once no
    /// access is in flight.
    DropHome { home: NodeIncarnation },
    /// To an owner of chunks of the requester's regions: that mapper is unreachable.  Make it drop what it mapped until
    /// that pairing ended, or cut it off; reply when either is done.
    Relay { to: NodeIncarnation, pairing: u64 },
    /// To a mapper, forwarded for a home that has ended that pairing: drop its regions; reply once no access is in
    /// flight.
    Retire { home: NodeIncarnation, pairing: u64 },
    /// To the next home of a region: adopt its record.
    Adopt { record: Box<Record> },
    /// Report your status.
    Status,
    /// To an owner of memory: can that node still touch it?
    Reach { node: NodeId },
    /// To an owner of memory: set these parts of a region.
    FillBytes { region: RegionId, parts: Extents, byte: u8 },
    /// To an owner of memory: copy into it, one segment after the other, each from its end if `backward`.
    CopyBytes { to: RegionId, from: RegionId, copy_segments: Vec<CopySegment>, backward: bool },
    /// To a region's home: register that port of the requesting node for notifications.
    Watch { region: RegionId, principal: Principal, port: u32 },
    /// To a region's home: remove that port of the requesting node.
    Unwatch { region: RegionId, port: u32 },
    /// To a region's home: list the watchers of what `principal` has written.
    ListWatchers { region: RegionId, principal: Principal },
    /// To the directory: list lost names after `after`, in order, as many as fit.
    ListLost { after: Option<String> },
    /// To the directory: forget the region lost under this name.
    ForgetName { name: String },
    /// To the directory: forget that node, and what was lost with it.
    ForgetNode { node: NodeId },
    /// To the directory: issue a number for a permanent node.
    TakeNumber,
    /// To a node: move all data to other nodes within that time, then leave; with `stays`, leave only if nothing is
    /// left.
    Drain { within_ns: u64, stays: bool },
    /// To node 0, which has the names: move them there, and have all nodes use them there.
    MoveNames { to: NamesAt },
    /// To any node: can you reach the names there?
    TryNames { at: NamesAt },
}

/// Location of the names outside of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamesAt {
    /// Address of the store, for drivers.  Without password: anything on the path of a message can read it.
    pub address: String,
    /// Prefix of the keys of names.
    pub prefix: String,
}

impl NamesAt {
    /// Maximum length of each part, in bytes.
    pub const BYTES_MAX: usize = 4096;

    /// Whether both parts are plausible; they are untrusted.
    pub fn is_well_formed(&self) -> bool {
        let is_fit = |text: &String| !text.is_empty() && text.len() <= NamesAt::BYTES_MAX;
        is_fit(&self.address) && is_fit(&self.prefix)
    }
}

/// A part of a copy: both sides have one length and are contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopySegment {
    /// The source.
    pub from: Extent,
    /// The target.
    pub to: Extent,
}

/// Commands of a master.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum RegionCommand {
    /// Free the region and its memory.
    Free,
    /// Add permissions.
    Grant { who: Grantee, permissions: Permissions },
    /// Remove permissions.
    Revoke { who: Grantee, permissions: Permissions },
    /// Make it immutable forever.
    Seal,
    /// Move all its chunks, and its home, to another node.
    Move { to: NodeId },
    /// Name it, if it has no name.
    SetName { name: String },
    /// Move the chunks of the requesting owner to another node; or all chunks and the home, if the home requests it.
    Vacate { to: NodeId },
}

impl RegionCommand {
    /// The command's name in errors.
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

/// Changes of a mapped region.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// These bytes may not be accessed until placed.  The first freeze of a move carries the whole layout, since a
    /// mapper keeps no extents of regions that it reaches as one window.  Acknowledged once the target is connected, or
    /// cannot be.
    Freeze { from: u64, len: u64, layout: Option<Extents>, to: NodeIncarnation },
    /// The bytes from `from` on are now at `place`.
    Place { from: u64, place: Extent },
    /// The new permissions.
    Access { access: AccessList, sealed: bool },
    /// A move has ended, and this is the home.
    Settle { home: NodeIncarnation },
    /// The region is freed.
    Drop,
}

impl Change {
    /// The node to which bytes move.
    pub fn moves_to(&self) -> Option<NodeIncarnation> {
        match self {
            Change::Freeze { to, .. } => Some(*to),
            _ => None,
        }
    }
}

/// Replies to granted requests.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Granted, without a result.
    Done,
    /// To `FindName`.
    Found { region: RegionId, home: NodeId },
    /// To `ListNames`; names whose records are invalid are `damaged`; `more` if the list was cut.
    Names { names: Vec<(String, RegionId, NodeId)>, damaged: Vec<String>, more: bool },
    /// To `ListMembers`.
    Members { members: Vec<Member> },
    /// To `Alloc` and `Map`.
    Mapped(Box<MappedReply>),
    /// To `Stat`.
    Info(Box<RegionInfo>),
    /// To `Reserve`.
    Reserved { extents: Extents },
    /// To `Status`.
    Status(Box<NodeStatus>),
    /// To `TakeNumber`.
    Number(NodeId),
    /// To `Lock`; `recovered` if the previous holder ended without releasing.
    Locked { token: u64, recovered: bool },
    /// To `Arrive`: all have arrived, in round number `round`.
    Passed { round: u64 },
    /// The region has moved to another home; ask there.
    MovedTo { home: NodeId },
    /// To `ListWatchers`: nodes and their ports.
    Watchers { watchers: Vec<(NodeIncarnation, u32)> },
    /// To `ListLost`; `more` if the list was cut.
    Lost { names: Vec<LostName>, more: bool },
    /// To `Relay`: the mapper has dropped all those regions.
    Retired,
    /// To `Relay`: the mapper cannot touch the asked node's memory.
    CutOff,
    /// To `Reach`.
    Reached(Reach),
    /// To `Drain`.
    Drained(Box<Drained>),
    /// To `MoveNames`: the numbers of names, and of lost names.
    NamesMoved { names: u64, lost: u64 },
}

/// Maximum regions that a drained node lists as left.
pub const LEFTOVERS_MAX: usize = 1000;

/// The result of a drain.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Drained {
    /// Regions moved, in whole or in part.
    pub moved: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Regions still there, at most [`LEFTOVERS_MAX`].
    pub left: Vec<Leftover>,
    /// Their number.
    pub left_count: u64,
}

/// A region that could not move.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Leftover {
    /// The region.
    pub region: RegionId,
    /// Its name, if it has one and the drained node is its home.
    pub name: Option<String>,
    /// Its bytes on the node.
    pub bytes: u64,
    /// The reason.
    pub cause: LeftoverCause,
}

/// Why a region could not move.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum LeftoverCause {
    /// A node refused.
    #[error(transparent)]
    Refused(ErrorReply),
    /// The deadline passed before its turn, or before a mapper let go of it.
    #[error("the deadline passed")]
    TimeOver,
    /// No other permanent node has memory.
    #[error("no other node with memory stays")]
    NoOtherNode,
}

/// Data that a mapper needs about a region.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MappedReply {
    /// The region.
    pub region: RegionId,
    /// Its home, which announces changes.
    pub home: NodeIncarnation,
    /// The epoch of this state.
    pub epoch: Epoch,
    /// Its length in bytes.
    pub len: u64,
    /// Bytes per chunk.
    pub chunk_bytes: u64,
    /// Permissions.
    pub access: AccessList,
    /// Whether it is immutable.
    pub sealed: bool,
    /// Places of its chunks.
    pub extents: Extents,
    /// Frozen bytes, if any: first byte and length.
    pub frozen: Option<(u64, u64)>,
    /// The node to which its bytes move, if any.
    pub moving_to: Option<NodeIncarnation>,
}

/// The complete state of a region at its home, sent to the next home.
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
    /// For a lock: whether it was granted as recovered, so the next holder must know if that grant is lost.
    pub recovered: bool,
}

/// A node that maps a region, with its latest map request: unmap notices about earlier requests are stale.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MapperEntry {
    /// The node.
    pub incarnation: NodeIncarnation,
    /// Its latest request.
    pub request: RequestId,
}

/// A port of a node that is notified of writes with a notification.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Watcher {
    /// The node.
    pub incarnation: NodeIncarnation,
    /// Its port.
    pub port: u32,
    /// The request that registered it.
    pub request: RequestId,
    /// The principal that watches.
    pub principal: Principal,
}

/// Whether operations of a node can still land in the memory of another, the owner, according to the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reach {
    /// The incarnation that the owner saw last; 0 if it remembers none.
    pub incarnation: u64,
    /// Number of the current or last pairing of the two; 0 if they never paired, or that incarnation has ended.
    pub pairing: u64,
    /// Whether no incarnation of the node can touch the owner's memory: nothing it began in this pairing or an earlier
    /// one lands any more.
    pub is_cut_off: bool,
}

/// A region, as users see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionInfo {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its id.
    pub region: RegionId,
    /// Length in bytes.
    pub len: u64,
    /// Bytes per chunk.
    pub chunk_bytes: u64,
    /// Its home, which decides on changes.
    pub home: NodeId,
    /// Bytes on each connected node.
    pub nodes: Vec<(NodeId, u64)>,
    /// Bytes on nodes that the home does not reach now.
    pub unreachable: Vec<(NodeId, u64)>,
    /// Bytes lost with nodes that are gone, even if restarted since.
    pub lost: Vec<(NodeId, u64)>,
    /// Its maker.
    pub owner: String,
    /// Permissions of principals not named.
    pub everyone: Permissions,
    /// Permissions of named principals.
    pub grants: Vec<(String, Permissions)>,
    /// Nodes that map it.
    pub mappers: Vec<NodeId>,
    /// Number of its changes.
    pub epoch: u64,
    /// Whether it is immutable.
    pub sealed: bool,
}

/// A node, as users see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node.
    pub node: NodeId,
    /// Its process id.
    pub pid: u32,
    /// Whether it is alive.
    pub state: NodeState,
    /// Its incarnation.
    pub incarnation: u64,
    /// The fabric by which it is reached.
    pub provider: String,
    /// Bytes of its memory that belong to regions.
    pub bytes_used: u64,
    /// Maximum bytes that it contributes.
    pub bytes_total: u64,
    /// Bytes of those that its system refused last time.
    pub bytes_refused: u64,
    /// Bytes in quarantine because a node that could reach them is not cut off yet.
    pub bytes_quarantined: u64,
    /// Regions homed there.
    pub regions: u64,
    /// Handles of its sessions.
    pub mappings: u64,
    /// How and when it was lost, if so and known.
    pub loss: Option<Loss>,
}

/// How a node was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LossCause {
    /// It left by itself.
    Left,
    /// Its process has exited.
    Exited,
    /// Another node killed its process, after silence for longer than its lease.
    Killed,
    /// It does not answer, and may be alive.
    Unreachable,
}

/// How a node was lost, and when: as an age, since nodes share no clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loss {
    /// How.
    pub cause: LossCause,
    /// Age in ns: since it was last heard if nothing else is known, else since its end.
    pub age_ns: u64,
}

/// A name whose region was lost with its home.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostName {
    /// The name.
    pub name: String,
    /// The home.
    pub home: NodeIncarnation,
    /// How the home was lost.
    pub loss: Loss,
}

/// Whether a node is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeState {
    /// It answers.
    Alive,
    /// The directory, or another member while that is unreachable, hears it; the two nodes are not connected because
    /// neither has used the other.
    Unconnected,
    /// The directory hears it, but it does not answer here: it may be stopped.
    Silent,
    /// It was silent for longer than its lease, or its connection has ended; chunks stay held for it.
    Unreachable,
    /// Its incarnation has ended: it crashed, was killed or forgotten, or was restarted.
    Dead,
    /// It left by itself.
    Left,
    /// It answers, accepts nothing new, and moves its data to others.
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

    /// Its name for users.
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

    /// Whether the node can be used.
    pub fn is_there(self) -> bool {
        matches!(self, NodeState::Alive | NodeState::Unconnected)
    }
}

/// A node, as the directory remembers it.
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
    /// A member of which only the incarnation is known.
    pub fn unseen(incarnation: NodeIncarnation) -> Member {
        Member { incarnation, pid: 0, bytes_total: 0, state: NodeState::Alive, loss: None }
    }
}

/// Messages without a reply.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Notice {
    /// The sender was alive at `sent_ns` of its clock; it last received the receiver's heartbeat of `heard_ns` on the
    /// receiver's clock, 0 if none.  `time_ns` is the time since 1970 by the fastest clock that it knows of.
    Heartbeat { sent_ns: u64, heard_ns: u64, time_ns: u64 },
    /// The sender leaves, and can no longer touch the receiver's memory.
    Leave,
    /// To a home: no session of the sender maps this region any more, by any request up to `upto`.
    Unmapped { region: RegionId, upto: RequestId },
    /// The same about another node, from the former home of the region.
    UnmappedBy { region: RegionId, node: NodeIncarnation, upto: RequestId },
    /// To a new node: these homes are dead for the sender, and what it held for them may belong to others.
    Swept { homes: Vec<NodeIncarnation> },
    /// To a restarted directory: names of regions homed at the sender, with their epochs; `done` with the last.
    Names { names: Vec<(String, RegionId, Epoch)>, done: bool },
    /// From the directory to a home: another region has this name, so the receiver's region loses it.
    NameLost { name: String, region: RegionId },
    /// To the home of a lock: that request of the sender is cancelled.
    CancelLock { region: RegionId, session: SessionId, request: RequestId },
    /// To the home of a barrier: that request of the sender is withdrawn.
    Withdraw { region: RegionId, request: RequestId },
    /// To the owner of chunks: they are free.
    Return { extents: Extents },
    /// To a home, first of all: chunks that the sender holds for its regions, `done` with the last; it returns unknown
    /// ones.  Also where the directory is, which it may have lost, and the time, as in heartbeats.
    Held { held: Vec<(RegionId, Extents)>, done: bool, seat: Option<(NodeIncarnation, String)>, time_ns: u64 },
    /// From the directory: the members with their addresses, and ended incarnations.  Joining nodes do not wait for
    /// `unreachable` ones, which the directory does not hear.
    Known { living: Vec<(Member, String)>, unreachable: Vec<(Member, String)>, ended: Vec<NodeIncarnation> },
    /// To the directory, which may have restarted: members known to the sender with their addresses, and ended
    /// incarnations.
    Seen { members: Vec<(Member, String)>, ended: Vec<NodeIncarnation> },
    /// To the directory: the sender kills the process of that node, which was silent for longer than its lease.
    Killing { incarnation: NodeIncarnation },
    /// To a node of a higher number: offers this connection as pairing of this number or a higher one.
    Welcome { pairing: u64 },
    /// To a node of a lower number, first of all: accepts, with the pairing's number.
    Paired { pairing: u64 },
    /// The sender is about to leave and accepts nothing new, or accepts again.
    Draining { is_on: bool },
    /// To the directory, from the former home of a region: as of that epoch, its home is `to`.
    Moved { name: String, region: RegionId, epoch: Epoch, to: NodeIncarnation },
    /// The names are there: ask there from now on, not node 0.
    NamesAt(NamesAt),
    /// To a new peer: its incarnation has ended for the sender, which will not pair with it again.
    Over,
}

/// Why a request was refused.  Nothing was changed, except where stated.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum ErrorReply {
    /// Another region has the name.
    #[error("the name is taken")]
    NameTaken,
    /// No region has the name, or it was freed.
    #[error("there is no such region")]
    NotFound,
    /// The principal lacks these permissions.
    #[error("permission denied (missing: {missing})")]
    PermissionDenied {
        /// The missing permissions.
        missing: Permissions,
    },
    /// Not enough free memory.
    #[error("no space for {wanted} bytes ({available} available)")]
    NoSpace {
        /// Bytes requested.
        wanted: u64,
        /// Bytes free on that node, perhaps fragmented.
        available: u64,
    },
    /// No node of that number is in the cluster.
    #[error("node {0} is unknown")]
    UnknownNode(NodeId),
    /// The node died before it answered: the request may or may not be done.
    #[error("node {0} is down")]
    PeerDown(NodeId),
    /// A malformed request.
    #[error("the request is malformed")]
    Malformed,
    /// The region is immutable.
    #[error("the region is sealed")]
    Sealed,
    /// No principal would be left to free the region or to grant permissions.
    #[error("the region would lose its last master")]
    LastMaster,
    /// The region would have too many extents to describe.
    #[error("{pieces} pieces exceed the maximum of {max}: use larger chunks")]
    TooManyPieces {
        /// Extents needed.
        pieces: u64,
        /// The maximum.
        max: u64,
    },
    /// The chunk size is not a power of two, or too small.
    #[error("chunk size {0} is invalid: use a power of two of at least 4096")]
    BadChunkSize(u64),
    /// This node leaves or has left.
    #[error("the node is closed")]
    NodeClosed,
    /// Another session holds the lock.
    #[error("the lock is held")]
    Held,
    /// The session does not hold the lock.
    #[error("the lock is not held by this session")]
    NotHeld,
    /// Not all participants arrived in time.
    #[error("not all participants arrived in time")]
    Timeout,
    /// The waiting participants expect another number.
    #[error("the waiting participants expect {expected} participants")]
    Participants {
        /// The number they expect.
        expected: u32,
    },
    /// The region has too many watchers.
    #[error("the region has {max} watchers, which is the maximum")]
    TooManyWatchers {
        /// The maximum.
        max: u64,
    },
    /// The lock's holder is on a node that is silent and cannot be cut off.
    #[error("the lock is held on node {0}, which is silent and cannot be cut off")]
    HeldBySilent(NodeId),
    /// The region has another name already.
    #[error("the region has a name")]
    HasName,
    /// The system of the node has no memory for the bytes now.
    #[error("the system of node {node} gave {given} of {wanted} bytes")]
    OutOfMemory {
        /// The node.
        node: NodeId,
        /// Bytes requested.
        wanted: u64,
        /// Bytes given before it refused.
        given: u64,
    },
    /// The region of that name was lost with its home.
    #[error("the region was lost with node {}", home.node)]
    Lost {
        /// Its home.
        home: NodeIncarnation,
        /// How the home was lost.
        loss: Loss,
    },
    /// A living node cannot be forgotten.
    #[error("node {0} lives")]
    NodeLives(NodeId),
    /// All numbers of permanent nodes are taken, and none was given up.
    #[error("all numbers below {} are taken", NodeId::EPHEMERAL_MIN)]
    NoNumbers,
    /// The reading node cannot map the source's memory.
    #[error("node {node} has not enough addresses or descriptors to map that memory of node {owner}")]
    Unmapped {
        /// The reading node.
        node: NodeId,
        /// The owner of the bytes.
        owner: NodeId,
    },
    /// The node is about to leave and accepts nothing new.
    #[error("node {0} is being drained")]
    Draining(NodeId),
    /// The requesting node has too many requests waiting there.
    #[error("{max} requests of this node wait there, which is the maximum")]
    TooManyRequests {
        /// The maximum.
        max: u64,
    },
    /// The directory outside of the cluster does not answer; the claim may have succeeded.
    #[error("the directory outside of the cluster does not answer")]
    DirectoryOut,
    /// The names have moved, and this node was told where: it asks there.
    #[error("the names have moved elsewhere")]
    NamesElsewhere,
    /// The names did not move.
    #[error("the names stay where they are: {reason}")]
    NamesNotMoved {
        /// The reason.
        reason: String,
    },
    /// The record of that name was overwritten and is invalid.
    #[error("the key {key:?} in the store of names holds no valid record")]
    NameDamaged {
        /// The key.
        key: String,
    },
}

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Longer than [`MESSAGE_BYTES_MAX`].
    #[error("a message of {0} bytes is too long")]
    TooLong(usize),
    /// Not the encoding of any message.
    #[error("not a message: {0}")]
    Malformed(postcard::Error),
    /// Extra bytes follow the message.
    #[error("{0} bytes behind the end of a message")]
    Trailing(usize),
}

/// Encodes a message.
pub fn encode(message: &Message) -> Vec<u8> {
    postcard::to_stdvec(message).expect("control messages have no unencodable parts")
}

/// Decodes a peer's message.
pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let (message, rest) = postcard::take_from_bytes(bytes).map_err(DecodeError::Malformed)?;
    if rest.is_empty() { Ok(message) } else { Err(DecodeError::Trailing(rest.len())) }
}
