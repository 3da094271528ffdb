//! What nodes say to each other about regions, names and themselves.
//!
//! This is the control protocol (`docs/protocol.md`): small postcard-encoded messages that travel as sends of
//! the fabric, in order between any two nodes.  The bytes of regions never travel in them.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, NodeId, NodeIncarnation, Principal, RegionId, RequestId, SessionId};
use crate::layout::{Extent, Extents};
use crate::permissions::{AccessList, Grantee, Permissions};

/// Longest name of a region, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 255;

/// Longest encoded message, in bytes: an answer with the extents of a region of a million chunks fits.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Everything that can arrive from a peer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// A question; exactly one [`Message::Reply`] with its number comes back, unless a node dies.
    Request {
        /// Chosen by the requester.
        id: RequestId,
        /// What is asked.
        body: Request,
    },
    /// An answer.
    Reply {
        /// Which request is answered.
        id: RequestId,
        /// What came of it.
        body: Result<Reply, ErrorReply>,
    },
    /// Something said without an answer.
    Notice(Notice),
}

/// Questions.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// To the directory: is this name free, and if so it is this region's from now on.
    ClaimName { name: String, region: RegionId },
    /// To the directory: the name is free again.
    ReleaseName { name: String, region: RegionId },
    /// To the directory: which region has this name, and where is its home?
    FindName { name: String },
    /// To the directory: all names behind `after`, in order, as many as fit.
    ListNames { after: Option<String> },
    /// To the directory: every node it has seen.
    ListMembers,
    /// To the home of a region to be.
    Alloc {
        name: Option<String>,
        len: u64,
        chunk_bytes: u64,
        /// One node: all chunks there.  Several: chunks in turn.
        nodes: Vec<NodeId>,
        maker: Principal,
        everyone: Permissions,
        /// Whether the owners of its chunks take their memory from the system first.
        populate: bool,
    },
    /// To a region's home: let the asking node map it for `principal`.
    Map { region: RegionId, principal: Principal, wanted: Permissions },
    /// To a region's home: describe it.
    Stat { region: RegionId },
    /// To a region's home: change it, on behalf of a master.
    RegionCommand { region: RegionId, principal: Principal, command: RegionCommand },
    /// To a node with memory: keep chunks of these lengths for a region of mine; if `populate`, answer when their
    /// memory has been taken from the system.
    Reserve { region: RegionId, chunk_bytes: u64, len: u64, populate: bool },
    /// To the node that will hold a chunk: copy it from where it is now.
    CopyChunk { from: Extent, to: Extent },
    /// To a node that maps a region: this changes; answer when no access under the old state is under way.
    Change { region: RegionId, epoch: Epoch, change: Change },
    /// To the home of a lock: let that session of the asking node have it, now or (if it is to wait) when all who
    /// asked before have had it.
    Lock {
        region: RegionId,
        principal: Principal,
        session: SessionId,
        wait: bool,
        /// Where a new lock's tokens begin.
        base_ns: u64,
    },
    /// To the home of a lock: that session gives it up; `recover` if the next is to be told that a holder
    /// before ended without doing so.
    Unlock { region: RegionId, session: SessionId, recover: bool },
    /// To the home of a barrier: one participant is there; answer when all are.
    Arrive { region: RegionId, principal: Principal, participants: u32, timeout_ns: u64 },
    /// To all nodes: that home is dead, drop what you map of its regions in my memory; answer when no access is under way.
    DropHome { home: NodeIncarnation },
    /// To an owner of chunks of my regions: that mapper does not hear me. Have it let go of what it mapped of mine until
    /// that pairing with me ended, or cut it off; answer when either is so.
    Relay { to: NodeIncarnation, pairing: u64 },
    /// To a mapper, passed on for a home that has ended that pairing with it: let go of its regions; answer when no access is
    /// under way.
    Retire { home: NodeIncarnation, pairing: u64 },
    /// To the future home of a region: take over its record.
    Adopt { record: Box<Record> },
    /// How are you?
    Status,
    /// To an owner of memory: may that node still touch yours?
    Reach { node: NodeId },
    /// To the owner of memory: set these parts of a region.
    FillBytes { region: RegionId, parts: Extents, byte: u8 },
    /// To the owner of memory: copy into it, one copy segment after the other; `backward` if each must begin at its end.
    CopyBytes { to: RegionId, from: RegionId, copy_segments: Vec<CopySegment>, backward: bool },
    /// To a region's home: writers with a notification are to tell that port of the asking node.
    Watch { region: RegionId, principal: Principal, port: u32 },
    /// To a region's home: that port of the asking node is not to be told any more.
    Unwatch { region: RegionId, port: u32 },
    /// To a region's home: who is to be told of what `principal` has written?
    ListWatchers { region: RegionId, principal: Principal },
    /// To the directory: all lost names behind `after`, in order, as many as fit.
    ListLost { after: Option<String> },
    /// To the directory: nobody misses the region any more that was lost under this name.
    ForgetName { name: String },
    /// To the directory: nobody misses that node any more, nor what was lost with it.
    ForgetNode { node: NodeId },
    /// To the directory: which number may a node have that stays?
    TakeNumber,
    /// To a node: bring all that is there to others for at most so long, and then leave; if it `stays`, only if nothing is left.
    Drain { within_ns: u64, stays: bool },
    /// To node 0, which has the names: bring them there, and have all nodes ask for them there from then on.
    MoveNames { to: NamesAt },
    /// To any node: would you reach the names there?
    TryNames { at: NamesAt },
}

/// Where names are that are kept outside of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamesAt {
    /// How drivers reach the store.  It has no password: whatever is on the path of a message can read it.
    pub address: String,
    /// Under which keys of it the names are.
    pub prefix: String,
}

impl NamesAt {
    /// Longest of each part, in bytes.
    pub const BYTES_MAX: usize = 4096;

    /// Untrusted: whether the parts have any sense.
    pub fn is_well_formed(&self) -> bool {
        let is_fit = |text: &String| !text.is_empty() && text.len() <= NamesAt::BYTES_MAX;
        is_fit(&self.address) && is_fit(&self.prefix)
    }
}

/// A part of a copy: both sides are of one length, and each in one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopySegment {
    /// What is read.
    pub from: Extent,
    /// What is written.
    pub to: Extent,
}

/// What a master may ask for.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum RegionCommand {
    /// Give up the region and its memory.
    Free,
    /// Add permissions.
    Grant { who: Grantee, permissions: Permissions },
    /// Take permissions away.
    Revoke { who: Grantee, permissions: Permissions },
    /// Make it immutable for ever.
    Seal,
    /// Bring all its chunks, and its home, to another node.
    Move { to: NodeId },
    /// Give it a name, if it has none.
    SetName { name: String },
    /// Bring the chunks that the asking node holds to another node; or all and its home, if it is that which asks.  An owner of
    /// memory may say so, and nobody else.
    Vacate { to: NodeId },
}

impl RegionCommand {
    /// What the operation is called in errors.
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

/// How a mapped region changes.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// These bytes may not be touched until told where they are.  The first freeze of a move says where all
    /// bytes are, since a node keeps no extents of regions that it reaches as one window.
    /// Answered when the node that they are brought to is connected, or cannot be.
    Freeze { from: u64, len: u64, layout: Option<Extents>, to: NodeIncarnation },
    /// The bytes from `from` on are at `place` from now on.
    Place { from: u64, place: Extent },
    /// These are the permissions now.
    Access { access: AccessList, sealed: bool },
    /// A move is over, and this is the home now.
    Settle { home: NodeIncarnation },
    /// The region is gone.
    Drop,
}

impl Change {
    /// The node that bytes are being brought to.
    pub fn moves_to(&self) -> Option<NodeIncarnation> {
        match self {
            Change::Freeze { to, .. } => Some(*to),
            _ => None,
        }
    }
}

/// Answers to requests that were granted.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Nothing more to say.
    Done,
    /// To `FindName`.
    Found { region: RegionId, home: NodeId },
    /// To `ListNames`; names that lead nowhere are `damaged`; `more` if the list was cut.
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
    /// To `Lock`; `recovered` if the holder before ended without giving it up.
    Locked { token: u64, recovered: bool },
    /// To `Arrive`: all are there, for the `round`th time.
    Passed { round: u64 },
    /// The region has moved its home; ask there.
    MovedTo { home: NodeId },
    /// To `ListWatchers`: nodes and their ports.
    Watchers { watchers: Vec<(NodeIncarnation, u32)> },
    /// To `ListLost`; `more` if the list was cut.
    Lost { names: Vec<LostName>, more: bool },
    /// To `Relay`: the mapper has let go of all those regions.
    Retired,
    /// To `Relay`: the mapper reaches nothing in the memory of the asked node.
    CutOff,
    /// To `Reach`.
    Reached(Reach),
    /// To `Drain`.
    Drained(Box<Drained>),
    /// To `MoveNames`: how many there were, and how many that had been lost.
    NamesMoved { names: u64, lost: u64 },
}

/// Most regions that a drained node names as those that it still holds.
pub const LEFTOVERS_MAX: usize = 1000;

/// What has become of what was on a node that was to be drained.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Drained {
    /// Regions of which something was brought to others.
    pub moved: u64,
    /// How many bytes those were.
    pub moved_bytes: u64,
    /// Regions that are still there, at most [`LEFTOVERS_MAX`] of them.
    pub left: Vec<Leftover>,
    /// How many there are.
    pub left_count: u64,
}

/// A region that could not be brought to another node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Leftover {
    /// Which.
    pub region: RegionId,
    /// Its name, where the drained node is its home and it has one.
    pub name: Option<String>,
    /// How many bytes of it are there.
    pub bytes: u64,
    /// Why.
    pub cause: LeftoverCause,
}

/// Why a region could not be brought to another node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum LeftoverCause {
    /// A node refused.
    #[error(transparent)]
    Refused(ErrorReply),
    /// Its turn had not come, or somebody had yet to let go of it.
    #[error("the time was over")]
    TimeOver,
    /// Nobody else has memory, and stays.
    #[error("no other node with memory stays")]
    NoOtherNode,
}

/// What a node needs to know to reach a region.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MappedReply {
    /// Which region.
    pub region: RegionId,
    /// Its home, which tells about changes.
    pub home: NodeIncarnation,
    /// As of which change.
    pub epoch: Epoch,
    /// Its length in bytes.
    pub len: u64,
    /// Bytes per chunk.
    pub chunk_bytes: u64,
    /// Who may do what.
    pub access: AccessList,
    /// Whether it is immutable.
    pub sealed: bool,
    /// Where its chunks are.
    pub extents: Extents,
    /// The bytes that are under way to another node, if any: first and length.
    pub frozen: Option<(u64, u64)>,
    /// The node that its bytes are being brought to, if any.
    pub moving_to: Option<NodeIncarnation>,
}

/// All that a home knows of a region, as it travels to the next home.
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
    /// Of a lock: whether it was given away as recovered, and the next is to be told if that was not heard of.
    pub recovered: bool,
}

/// A node that maps a region, and the last of its requests to do so: what it says of earlier ones comes late.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MapperEntry {
    /// Which node.
    pub incarnation: NodeIncarnation,
    /// Its request.
    pub request: RequestId,
}

/// A port of a node that is told when somebody writes to a region with a notification.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Watcher {
    /// Which node.
    pub incarnation: NodeIncarnation,
    /// Its port.
    pub port: u32,
    /// The request by which it began to watch.
    pub request: RequestId,
    /// As whom it watches.
    pub principal: Principal,
}

/// Whether what a node has begun may still land in the memory of another, the owner, as that says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reach {
    /// The incarnation of the node that the owner has seen last; 0 if it remembers none.
    pub incarnation: u64,
    /// For which time the two are paired, or were last; 0 if they never were, or that incarnation is over.
    pub pairing: u64,
    /// Whether no incarnation of the node can touch anything of the owner's: nothing lands any more of what it began in this pairing, or
    /// in one before.
    pub is_cut_off: bool,
}

/// A region as users see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionInfo {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its identity.
    pub region: RegionId,
    /// Length in bytes.
    pub len: u64,
    /// Bytes per chunk.
    pub chunk_bytes: u64,
    /// The node that decides on its changes.
    pub home: NodeId,
    /// Bytes on each node that is there.
    pub nodes: Vec<(NodeId, u64)>,
    /// Bytes on nodes that the region's home does not reach now.
    pub unreachable: Vec<(NodeId, u64)>,
    /// Bytes that are lost, by the node that held them and is gone for the region's home, also if it was restarted.
    pub lost: Vec<(NodeId, u64)>,
    /// Who made it.
    pub owner: String,
    /// The permissions of principals that are not named.
    pub everyone: Permissions,
    /// The permissions of those that are.
    pub grants: Vec<(String, Permissions)>,
    /// Nodes that map it.
    pub mappers: Vec<NodeId>,
    /// How often it changed.
    pub epoch: u64,
    /// Whether it is immutable.
    pub sealed: bool,
}

/// A node as users see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Which node.
    pub node: NodeId,
    /// Its process.
    pub pid: u32,
    /// Whether it lives.
    pub state: NodeState,
    /// Its incarnation.
    pub incarnation: u64,
    /// The fabric by which it is reached.
    pub provider: String,
    /// Bytes of its memory that belong to regions.
    pub bytes_used: u64,
    /// Bytes that it contributes at most.
    pub bytes_total: u64,
    /// Bytes of those that its system refused when it was last asked.
    pub bytes_refused: u64,
    /// Bytes that are kept back because a node that could reach them is not cut off yet.
    pub bytes_quarantined: u64,
    /// Regions of which it is the home.
    pub regions: u64,
    /// Handles of its sessions.
    pub mappings: u64,
    /// How and when it was lost, if it was, and the asked node knows that.
    pub loss: Option<Loss>,
}

/// How a node was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LossCause {
    /// It said goodbye.
    Left,
    /// Its process has exited.
    Exited,
    /// Its process was killed by another node, after it had been silent for longer than its lease.
    Killed,
    /// It does not answer; whether it is dead is not known.
    Unreachable,
}

/// How a node was lost, and when: as an age, since nodes have no clock in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loss {
    /// How.
    pub cause: LossCause,
    /// How long ago, in ns: when it was heard for the last time if that is all that is known, else when it ended.
    pub age_ns: u64,
}

/// A name whose region was lost with its home.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostName {
    /// The name.
    pub name: String,
    /// The home.
    pub home: NodeIncarnation,
    /// What has become of that.
    pub loss: Loss,
}

/// Whether a node lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeState {
    /// It answers.
    Alive,
    /// The directory, or where that is out of reach another member, hears it, and the two have not used each other, so that they are not connected.
    Unconnected,
    /// The directory thinks that it lives, but it does not answer here: it may be stopped.
    Silent,
    /// It was silent for longer than its lease, or its connection has ended; what it holds is kept.
    Unreachable,
    /// Its incarnation is over: it crashed, was killed or forgotten, or is there in another incarnation.
    Dead,
    /// It said goodbye.
    Left,
    /// It answers, takes nothing new, and brings what it has to others.
    Draining,
}

impl NodeState {
    /// All of them.
    pub const ALL: [NodeState; 7] = [
        NodeState::Alive,
        NodeState::Unconnected,
        NodeState::Silent,
        NodeState::Unreachable,
        NodeState::Dead,
        NodeState::Left,
        NodeState::Draining,
    ];

    /// As users read it.
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

    /// Whether the node is there for who uses it.
    pub fn is_there(self) -> bool {
        matches!(self, NodeState::Alive | NodeState::Unconnected)
    }
}

/// A node as the directory remembers it.
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
    /// One of whom no more is known than that it is there.
    pub fn unseen(incarnation: NodeIncarnation) -> Member {
        Member { incarnation, pid: 0, bytes_total: 0, state: NodeState::Alive, loss: None }
    }
}

/// Things said without an answer.
#[allow(missing_docs, reason = "the fields are named as in docs/protocol.md")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Notice {
    /// I live: I say so at `sent_ns` of my clock, and the last that I have heard of you was that of `heard_ns` of yours; 0 if none.
    /// At `time_ns` since 1970, by the fastest clock that I know of, I say so.
    Heartbeat { sent_ns: u64, heard_ns: u64, time_ns: u64 },
    /// I leave, and can reach nothing of yours any more.
    Leave,
    /// To a home: no session of mine maps this region any more, by any request up to `upto`.
    Unmapped { region: RegionId, upto: RequestId },
    /// The same, said by the former home of the region about another node.
    UnmappedBy { region: RegionId, node: NodeIncarnation, upto: RequestId },
    /// To a newcomer: these homes are dead for me, and what I held for them may belong to others by now.
    Swept { homes: Vec<NodeIncarnation> },
    /// To a restarted directory: names of regions whose home I am, and as of which change; `done` with the last.
    Names { names: Vec<(String, RegionId, Epoch)>, done: bool },
    /// By the directory, to a home: another region has this name already, so yours has none any more.
    NameLost { name: String, region: RegionId },
    /// To the home of a lock: the maker of that request of mine does not want it any more.
    CancelLock { region: RegionId, session: SessionId, request: RequestId },
    /// To the home of a barrier: the maker of that request of mine does not wait any more.
    Withdraw { region: RegionId, request: RequestId },
    /// To the owner of chunks: nobody uses them any more.
    Return { extents: Extents },
    /// To a home, first of all: these chunks I hold for its regions; `done` with the last. What it does not know of, it returns.
    /// And where I find the directory, which it may have lost sight of; and the time, as in heartbeats.
    Held { held: Vec<(RegionId, Extents)>, done: bool, seat: Option<(NodeIncarnation, String)>, time_ns: u64 },
    /// By the directory: these nodes are of the cluster, and are dialled at these addresses; and these incarnations are over.
    /// Those that it does not hear itself are not waited for by who joins.
    Known { living: Vec<(Member, String)>, unreachable: Vec<(Member, String)>, ended: Vec<NodeIncarnation> },
    /// To the directory, which may have restarted: these nodes I know, and they are dialled at these addresses; and these incarnations are over.
    Seen { members: Vec<(Member, String)>, ended: Vec<NodeIncarnation> },
    /// To the directory, which tells what becomes of nodes: I end that one's process, for I have not heard it for longer
    /// than its lease.
    Killing { incarnation: NodeIncarnation },
    /// To a node of a higher number: let this connection be our pairing of this number, or of a higher one.
    Welcome { pairing: u64 },
    /// To a node of a lower number, first of all: it is, and this is its number.
    Paired { pairing: u64 },
    /// I take nothing new, for I am about to leave; or I do again.
    Draining { is_on: bool },
    /// To the directory, by the former home of a region: as of that change, its home is `to`.
    Moved { name: String, region: RegionId, epoch: Epoch, to: NodeIncarnation },
    /// The names are there: from now on they are asked for there, and not of node 0.
    NamesAt(NamesAt),
    /// To who has just connected: your incarnation is over for me, and I shall not be paired with it again.
    Over,
}

/// Why a request was not granted.  Nothing was changed, unless it says so.
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
        /// What it lacks.
        missing: Permissions,
    },
    /// Not enough free memory.
    #[error("no space for {wanted} bytes ({available} available)")]
    NoSpace {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes free on that node, perhaps in pieces.
        available: u64,
    },
    /// No node of that number is in the cluster.
    #[error("node {0} is unknown")]
    UnknownNode(NodeId),
    /// The node died before it answered: the request is done or not.
    #[error("node {0} is down")]
    PeerDown(NodeId),
    /// A malformed request.
    #[error("the request is malformed")]
    Malformed,
    /// The region is immutable.
    #[error("the region is sealed")]
    Sealed,
    /// Nobody would be left who may free the region, or grant anything.
    #[error("the region would have no master left")]
    LastMaster,
    /// Too many pieces: a description of the region would be too long.
    #[error("{pieces} pieces are too many (at most {max}): larger chunks would be fewer")]
    TooManyPieces {
        /// How many it would have.
        pieces: u64,
        /// How many are allowed.
        max: u64,
    },
    /// The chunk size is not a power of two, or too small.
    #[error("chunks of {0} bytes cannot be had: a power of two of at least 4096 is needed")]
    BadChunkSize(u64),
    /// This node leaves or has left.
    #[error("the node is closed")]
    NodeClosed,
    /// Somebody else holds the lock.
    #[error("the lock is held")]
    Held,
    /// The session does not hold the lock.
    #[error("the lock is not held by this session")]
    NotHeld,
    /// Some participant of the barrier was not there in time.
    #[error("not all participants were there in time")]
    Timeout,
    /// Those who wait at the barrier are so many when they are all.
    #[error("those who wait expect {expected} participants")]
    Participants {
        /// How many they expect.
        expected: u32,
    },
    /// Too many watch the region already.
    #[error("{max} watch the region already, and more cannot")]
    TooManyWatchers {
        /// How many may.
        max: u64,
    },
    /// The lock's holder is on a node that is silent and cannot be cut off.
    #[error("the lock is held on node {0}, which is silent and cannot be cut off")]
    HeldBySilent(NodeId),
    /// The region has another name already.
    #[error("the region has a name")]
    HasName,
    /// The system of the node that was to hold the bytes has no memory for them now.
    #[error("the system of node {node} gave {given} of {wanted} bytes")]
    OutOfMemory {
        /// Which node.
        node: NodeId,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that it gave before it refused.
        given: u64,
    },
    /// The region of that name was lost with its home.
    #[error("the region was lost with node {}", home.node)]
    Lost {
        /// Its home.
        home: NodeIncarnation,
        /// What has become of that.
        loss: Loss,
    },
    /// A node that lives is not forgotten.
    #[error("node {0} lives")]
    NodeLives(NodeId),
    /// All numbers of nodes that stay have been given out, and none was given up.
    #[error("all numbers below {} have been given out", NodeId::EPHEMERAL_MIN)]
    NoNumbers,
    /// The node that was to read bytes cannot map the memory that they are in.
    #[error("node {node} has not enough addresses or descriptors to map that memory of node {owner}")]
    Unmapped {
        /// Who was to read.
        node: NodeId,
        /// Whose bytes they are.
        owner: NodeId,
    },
    /// The node takes nothing new, for it is about to leave.
    #[error("node {0} is being drained")]
    Draining(NodeId),
    /// The node that asks waits for as many answers of that one as it may.
    #[error("{max} requests of this node wait for their answers there, and more cannot")]
    TooManyRequests {
        /// How many may wait.
        max: u64,
    },
    /// The directory outside of the cluster does not answer: the name is given to nobody who does not hear so.
    #[error("the directory outside of the cluster does not answer")]
    DirectoryOut,
    /// The names have been brought elsewhere, as this node has been told before: it asks there.
    #[error("the names are kept elsewhere by now")]
    NamesElsewhere,
    /// The names are where they were.
    #[error("the names stay where they are: {reason}")]
    NamesNotMoved {
        /// Why.
        reason: String,
    },
    /// What leads to the region of that name was written over by somebody, and leads nowhere.
    #[error("the key {key:?} of the store that has the names holds what no node has written")]
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
    /// Bytes are left over behind the message.
    #[error("{0} bytes behind the end of a message")]
    Trailing(usize),
}

/// Encodes a message.
pub fn encode(message: &Message) -> Vec<u8> {
    postcard::to_stdvec(message).expect("control messages have no unencodable parts")
}

/// Decodes what a peer sent.
pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let (message, rest) = postcard::take_from_bytes(bytes).map_err(DecodeError::Malformed)?;
    if rest.is_empty() { Ok(message) } else { Err(DecodeError::Trailing(rest.len())) }
}
