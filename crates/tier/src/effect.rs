//! What goes into the engine from sessions, and what comes out of it for its driver to do.

use halite_fabric::{Key, PeerId, RemoteAddress};
use halite_mem::{SlotError, Window};

use crate::access::{Blocked, CopySide, RegionOffset, SlotRef, Step};
use crate::directory::Transaction;
use crate::ids::{NodeId, NodeIncarnation, RegionId, Requester};
use crate::message::{Drained, ErrorReply, LostName, NamesAt, NodeStatus, Reach, RegionCommand, RegionInfo};
use crate::names::Service;
use crate::news::{News, Over};
use crate::permissions::Permissions;

/// Numbers a command of a session until its [`Effect::Finish`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

/// Numbers something that the engine asked its driver to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// Why what was to be read from a peer's memory was not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyFailure {
    /// The peer is gone, or does not know the memory any more.
    PeerGone,
    /// This process lacks what it takes to map that memory.
    Unmapped,
}

/// A grace period: the end of all accesses by loads and stores that have begun, and of what was posted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quiesce {
    /// What to call back with.
    pub token: Token,
    /// Which posted operations are waited for, too.
    pub posted: PostedTo,
}

/// Some of the posted operations that are under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PostedTo {
    /// All.
    Anybody,
    /// Those that reach the memory of these peers.
    Peers(Vec<PeerId>),
}

/// What a session asks for.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Make a region and map it.
    Alloc {
        /// Its name, at most [`crate::message::NAME_BYTES_MAX`] bytes.
        name: Option<String>,
        /// Its length in bytes, not 0.
        len: u64,
        /// Bytes per chunk: a power of two.
        chunk_bytes: u64,
        /// Where.
        placement: Placement,
        /// What others may do.
        everyone: Permissions,
        /// Whether the nodes that hold it take its memory from the system before it is there.
        populate: bool,
    },
    /// Map a region by name.
    Map {
        /// Its name.
        name: String,
        /// For what.
        wanted: Permissions,
    },
    /// Give up a handle.
    Unmap(SlotRef),
    /// Change a region as one of its masters.
    RegionCommand(SlotRef, RegionCommand),
    /// Describe a region.
    Stat(String),
    /// Describe the region of a handle.
    StatHandle(SlotRef),
    /// Describe all named regions.
    List,
    /// Describe all nodes.
    Status,
    /// Describe one node, without the word of the directory.
    StatusOf(NodeId),
    /// Describe the nodes that this one is paired with: who answers has taken it in.
    Greet,
    /// Set bytes that loads and stores do not reach, or some of them ([`Outcome::Stepped`] says which).
    Fill {
        /// From where on.
        at: RegionOffset,
        /// How many bytes, not 0.
        len: u64,
        /// To what.
        byte: u8,
    },
    /// Copy bytes where loads and stores do not reach both sides, or some of them ([`Outcome::Stepped`] says which).
    Copy {
        /// Where to.
        to: RegionOffset,
        /// Where from.
        from: RegionOffset,
        /// How many bytes, not 0.
        len: u64,
    },
    /// Make the region of a lock or barrier and map it, on one of the nodes that stay.
    Anchor {
        /// As what it shall serve.
        service: Service,
        /// The name of the lock or barrier.
        name: String,
        /// What others may do.
        everyone: Permissions,
    },
    /// Take the lock that lives in a region.
    Lock {
        /// A handle of that region.
        slot: SlotRef,
        /// Whether to wait until it is free.
        wait: bool,
        /// Where its tokens begin if it is new, as nanoseconds since 1970.
        base_ns: u64,
    },
    /// Give a lock up.
    Unlock {
        /// A handle of its region.
        slot: SlotRef,
        /// After what.
        release: Release,
    },
    /// Wait at the barrier that lives in a region.
    Arrive {
        /// A handle of that region.
        slot: SlotRef,
        /// How many must be there.
        participants: u32,
        /// For how long, in ns.
        timeout_ns: u64,
    },
    /// End a command that waits for a lock or at a barrier, which nobody wants any more.  Others go on to their end.
    Withdraw(OpId),
    /// Have a port of this node told when somebody writes to a region with a notification.
    Watch {
        /// A handle of the region.
        slot: SlotRef,
        /// The port, which is open.
        port: u32,
    },
    /// Have a port told no longer.
    Unwatch {
        /// What it watches.
        region: RegionId,
        /// The port.
        port: u32,
    },
    /// List who is to be told of what was written.
    ListWatchers(SlotRef),
    /// List all names whose regions were lost with their homes.
    ListLost,
    /// Forget that a name was lost.
    ForgetName(String),
    /// Forget a node that does not live, and what was lost with it.
    ForgetNode(NodeId),
    /// Ask the directory for a number that no node has had.
    TakeNumber,
    /// Ask the owner of memory whether a node may still touch that.
    Reach {
        /// Which node.
        node: NodeId,
        /// Whose memory.
        owner: NodeId,
    },
    /// Have all that is on a node brought to others, for at most so long, and have it leave.
    Drain {
        /// Which node.
        node: NodeId,
        /// For how long, in ns.
        within_ns: u64,
        /// Whether it stays unless all could be brought to others.
        stays: bool,
    },
    /// Have the names brought from node 0 to a store outside of the cluster.
    MoveNames(NamesAt),
}

impl Command {
    /// What it is called where commands are counted.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Alloc { .. } => "alloc",
            Command::Map { .. } => "map",
            Command::Unmap(_) => "unmap",
            Command::RegionCommand(_, command) => command.name(),
            Command::Stat(_) | Command::StatHandle(_) => "stat",
            Command::List => "list",
            Command::Status | Command::StatusOf(_) | Command::Greet => "status",
            Command::Fill { .. } => "fill",
            Command::Copy { .. } => "copy",
            Command::Anchor { .. } => "anchor",
            Command::Lock { .. } => "lock",
            Command::Unlock { .. } => "unlock",
            Command::Arrive { .. } => "barrier",
            Command::Withdraw(_) => "withdraw",
            Command::Watch { .. } => "watch",
            Command::Unwatch { .. } => "unwatch",
            Command::ListWatchers(_) => "list_watchers",
            Command::ListLost => "list_lost",
            Command::ForgetName(_) => "forget_name",
            Command::ForgetNode(_) => "forget_node",
            Command::TakeNumber => "take_number",
            Command::Reach { .. } => "reach",
            Command::Drain { .. } => "drain",
            Command::MoveNames(_) => "move_names",
        }
    }
}

/// What has become of a lock that is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// Its holder is done.
    Used,
    /// It was recovered from a dead holder for somebody who did not want it any more: the next is to be told.
    Unused,
    /// Its session has ended without giving it up: the next is to be told, once what that session posted is over.
    Abandoned,
}

/// Where a region's chunks shall be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placement {
    /// On the asking session's own node.
    Local,
    /// On one node.
    On(NodeId),
    /// On these nodes in turn, chunk by chunk.
    Spread(Vec<NodeId>),
    /// Here if there is room, else on the first node that has room.
    Anywhere,
}

/// What came of a command.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It is done.
    Done,
    /// A new handle.
    Mapped {
        /// Its slot.
        slot: SlotRef,
        /// Its region.
        region: RegionId,
    },
    /// One region.
    Info(Box<RegionInfo>),
    /// Named regions, ordered by name.
    List {
        /// Those whose homes have answered.
        regions: Vec<RegionInfo>,
        /// The names of the others, and their homes.
        unreachable: Vec<(String, NodeId)>,
        /// Names that lead nowhere, since somebody has written over what led to their regions.
        damaged: Vec<String>,
    },
    /// Nodes, in order.
    Status(Vec<NodeStatus>),
    /// A number for a node.
    Number(NodeId),
    /// Whether a node may still touch the memory of another.
    Reach(Reach),
    /// Lost names, in order.
    Lost(Vec<LostName>),
    /// What is left on a node that was drained.
    Drained(Box<Drained>),
    /// The names are elsewhere.
    NamesMoved {
        /// How many there were.
        names: u64,
        /// How many names of lost regions.
        lost: u64,
    },
    /// A part of a memory operation is done.
    Stepped(Step),
    /// The lock is the session's.
    Locked {
        /// Higher than that of any holder before.
        token: u64,
        /// Whether the holder before ended without giving it up.
        recovered: bool,
    },
    /// All are at the barrier.
    Passed {
        /// For which time.
        round: u64,
    },
    /// The port is told from now on.
    Watching {
        /// Of what happens to this region.
        region: RegionId,
    },
    /// Who is to be told.
    Watchers {
        /// Of what happened to this region.
        region: RegionId,
        /// Nodes and their ports, each once.
        watchers: Vec<(NodeIncarnation, u32)>,
    },
}

/// Why a command failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum CommandError {
    /// A node refused.
    #[error(transparent)]
    Refused(#[from] ErrorReply),
    /// No node of the cluster contributes memory.
    #[error("no node contributes memory")]
    NoMemoryNode,
    /// The handle is not one of this session's.
    #[error("the handle is unknown")]
    UnknownHandle,
    /// The handle was valid once.
    #[error("the handle is stale")]
    Stale,
    /// Bytes of a memory operation cannot be accessed; none has been touched.
    #[error("the bytes cannot be accessed: {blocked:?}")]
    Access {
        /// In which of the regions.
        side: CopySide,
        /// Why.
        blocked: Blocked,
    },
    /// A memory operation stopped half way: maybe some of it is done.
    #[error("{refusal}; some of it may be done")]
    Broken {
        /// At which of the regions.
        side: CopySide,
        /// Why.
        refusal: ErrorReply,
    },
    /// A table is full.
    #[error("{0}")]
    TableFull(&'static str),
    /// The command was withdrawn while it waited.
    #[error("the command was withdrawn")]
    Withdrawn,
}

impl From<SlotError> for CommandError {
    fn from(_: SlotError) -> Self {
        CommandError::Stale
    }
}

/// What the driver is to do.
#[derive(Debug)]
pub enum Effect {
    /// Send these bytes, at most the fabric's limit, in order.
    Send {
        /// To whom.
        peer: PeerId,
        /// What.
        bytes: Vec<u8>,
        /// Whether it rings the peer's doorbell; see [`halite_fabric::WorkRequest::solicited`].
        solicited: bool,
    },
    /// Tell the person at the peer's process what is about to become of it, as far as that goes without waiting.
    Warn {
        /// Whose process.
        peer: PeerId,
        /// What.
        text: String,
    },
    /// A peer is one of the cluster from now on.  Before all else that concerns it.
    PeerUp {
        /// Which connection.
        peer: PeerId,
        /// Who it is.
        incarnation: NodeIncarnation,
    },
    /// A peer that was up is down, once all that it said has been heard or it was given up: nothing is said to it, or heeded of
    /// it, from now on.  It may still reach our memory.
    PeerDown(PeerId),
    /// Cut the peer off; `handle_cut_off` when it is so, `handle_kill` if its process is killed for it.
    CutOff(PeerId),
    /// A peer that was down reaches nothing of ours any more.
    PeerCutOff(PeerId),
    /// Write down, before anything else is done, that all numbers of nodes below this one are taken: see
    /// [`restore_numbers`](crate::engine::Engine::restore_numbers).
    NumbersTaken {
        /// The first that may be given out.
        next: u32,
    },
    /// Drop the connection.
    Disconnect(PeerId),
    /// The incarnation of this node is over: it ends, and all that its sessions ask for fails.
    End(Over),
    /// Connect to who is there; `handle_connected`, or `handle_dial_failed`.
    Dial {
        /// Where.
        address: String,
    },
    /// Register a new segment of this length; `handle_grown` with the result.
    Grow {
        /// In bytes.
        len: u64,
    },
    /// Start a grace period and tell `handle_quiescent` when it is over.
    Quiesce(Quiesce),
    /// Copy all of `from` to `to` (of the same length); `handle_copied` when done.
    Copy {
        /// What to call back with.
        token: Token,
        /// Source.
        from: Window,
        /// Destination.
        to: Window,
    },
    /// Set all of `window` to `byte`; `handle_copied` when done.
    Fill {
        /// What to call back with.
        token: Token,
        /// Memory of ours.
        window: Window,
        /// What it becomes.
        byte: u8,
    },
    /// Read from a peer's memory into our own; `handle_copied` when done, `handle_copy_failed` if that cannot be.
    Fetch {
        /// What to call back with.
        token: Token,
        /// Whose memory.
        peer: PeerId,
        /// Where in it.
        address: RemoteAddress,
        /// Our segment.
        key: Key,
        /// Where in it, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
    },
    /// Make this part of our own memory read as zero and give it back to the system; `handle_discarded`.
    Discard {
        /// What to call back with.
        token: Token,
        /// Our segment.
        key: Key,
        /// From where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
    },
    /// Take the memory of this part of our own segment from the system; `handle_populated`.
    Populate {
        /// What to call back with.
        token: Token,
        /// Our segment.
        key: Key,
        /// From where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
    },
    /// A command has ended.
    Finish {
        /// Which.
        op: OpId,
        /// How.
        outcome: Result<Outcome, CommandError>,
    },
    /// Calls and messages to this node are refused from now on, for it is about to leave; or they are taken again.
    Draining {
        /// Whether they are refused.
        is_on: bool,
    },
    /// Have the store outside of the cluster carry out a transaction; `handle_stored` with what has come of it, once.
    Store {
        /// To be told again then.
        id: u64,
        /// What is to be done.
        transaction: Transaction,
    },
    /// Transactions go to the store there from now on.
    OpenStore(NamesAt),
    /// Say whether the store there would be reached from here, by a question; `handle_tried`.
    TryStore {
        /// Who asks, to be told again then.
        requester: Requester,
        /// Where it is.
        at: NamesAt,
    },
    /// The names are there from now on: to be written down for those of this host who join later.
    NamesAt(NamesAt),
    /// The node was drained, and is to leave; some regions may be left.
    Drained {
        /// How many.
        left: u64,
    },
    /// These handles, by their indices, have another view or are gone: who waits because of
    /// [`Blocked::Changing`] for one of them tries again.
    HandlesChanged(Vec<u32>),
    /// Some member, or what is known of one, has changed.
    MembersChanged,
    /// Something has happened that people may want to know.
    News(News),
}
