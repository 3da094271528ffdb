//! Commands of sessions to the engine, and effects that its driver carries out.

use halite_fabric::{Key, PeerId, RemoteAddress};
use halite_mem::{SlotError, Window};

use crate::access::{Blocked, CopySide, RegionOffset, SlotRef, Step};
use crate::directory::Transaction;
use crate::ids::{NodeId, NodeIncarnation, RegionId, Requester};
use crate::message::{Drained, ErrorReply, LostName, NamesAt, NodeStatus, Reach, RegionCommand, RegionInfo};
use crate::names::Service;
use crate::news::{News, Over};
use crate::permissions::Permissions;

/// Identifies a command of a session until its [`Effect::Finish`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

/// Identifies an operation that the engine requested of its driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// Why a read of a peer's memory failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyFailure {
    /// The peer is gone, or no longer has the memory.
    PeerGone,
    /// This process lacks the resources to map that memory.
    Unmapped,
}

/// A grace period: ends when all earlier loads and stores, and some posted operations, have ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quiesce {
    /// Passed to `handle_quiescent` when the grace period ends.
    pub token: Token,
    /// The posted operations it includes.
    pub posted: PostedTo,
}

/// A set of posted operations in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PostedTo {
    /// All.
    Anybody,
    /// Those that reach the memory of these peers.
    Peers(Vec<PeerId>),
}

/// A command of a session.
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
        /// Nodes of the chunks.
        placement: Placement,
        /// Permissions of other principals.
        everyone: Permissions,
        /// Whether its owners allocate its pages before the command ends.
        populate: bool,
    },
    /// Map a region by name.
    Map {
        /// Its name.
        name: String,
        /// The permissions needed.
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
    /// Describe one node, without asking the directory.
    StatusOf(NodeId),
    /// Describe the nodes paired with this one: a node that answers has processed all earlier messages.
    Greet,
    /// Set bytes that loads and stores do not reach, perhaps only some ([`Outcome::Stepped`] says which).
    Fill {
        /// The first byte.
        at: RegionOffset,
        /// Length in bytes, not 0.
        len: u64,
        /// The value.
        byte: u8,
    },
    /// Copy bytes where loads and stores do not reach both sides, perhaps only some ([`Outcome::Stepped`] says which).
    Copy {
        /// The target.
        to: RegionOffset,
        /// The source.
        from: RegionOffset,
        /// Length in bytes, not 0.
        len: u64,
    },
    /// Make the region of a lock or barrier, on a permanent node, and map it.
    Anchor {
        /// Lock or barrier.
        service: Service,
        /// The name of the lock or barrier.
        name: String,
        /// Permissions of other principals.
        everyone: Permissions,
    },
    /// Take the lock in a region.
    Lock {
        /// A handle of that region.
        slot: SlotRef,
        /// Whether to wait until it is free.
        wait: bool,
        /// Start of its tokens if it is new, in ns since 1970.
        base_ns: u64,
    },
    /// Release a lock.
    Unlock {
        /// A handle of its region.
        slot: SlotRef,
        /// Why it is released.
        release: Release,
    },
    /// Wait at the barrier in a region.
    Arrive {
        /// A handle of that region.
        slot: SlotRef,
        /// The number of participants.
        participants: u32,
        /// Timeout in ns.
        timeout_ns: u64,
    },
    /// End a command that waits for a lock or at a barrier.  Other commands are not affected.
    Withdraw(OpId),
    /// Notify a port of this node of writes to a region with a notification.
    Watch {
        /// A handle of the region.
        slot: SlotRef,
        /// The port, which is open.
        port: u32,
    },
    /// Stop notifying a port.
    Unwatch {
        /// The region.
        region: RegionId,
        /// The port.
        port: u32,
    },
    /// List the watchers of a region.
    ListWatchers(SlotRef),
    /// List all names whose regions were lost with their homes.
    ListLost,
    /// Forget that a name was lost.
    ForgetName(String),
    /// Forget a node that is not alive, and what was lost with it.
    ForgetNode(NodeId),
    /// Request a number that no node has had.
    TakeNumber,
    /// Ask an owner of memory whether a node can still touch it.
    Reach {
        /// The node.
        node: NodeId,
        /// The owner.
        owner: NodeId,
    },
    /// Move all data of a node to others within a time, then have it leave.
    Drain {
        /// The node.
        node: NodeId,
        /// Time limit in ns.
        within_ns: u64,
        /// Whether the node stays if something could not be moved.
        stays: bool,
    },
    /// Move the names from node 0 to a store outside of the cluster.
    MoveNames(NamesAt),
}

impl Command {
    /// The command's name in metrics.
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

/// Why a lock is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// Its holder is done.
    Used,
    /// It was recovered from a dead holder for a session that no longer wanted it: the next must know.
    Unused,
    /// Its session ended without releasing it: the next must know, after that session's posted operations have ended.
    Abandoned,
}

/// Placement of a region's chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placement {
    /// On the session's own node.
    Local,
    /// On one node.
    On(NodeId),
    /// On these nodes in turn, chunk by chunk.
    Spread(Vec<NodeId>),
    /// On the own node, or else on the first node with room.
    Anywhere,
}

/// The result of a command.
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
        /// Names of the others, and their homes.
        unreachable: Vec<(String, NodeId)>,
        /// Names whose records were overwritten and are invalid.
        damaged: Vec<String>,
    },
    /// Nodes, in order.
    Status(Vec<NodeStatus>),
    /// A number for a node.
    Number(NodeId),
    /// Whether a node can still touch the memory of another.
    Reach(Reach),
    /// Lost names, in order.
    Lost(Vec<LostName>),
    /// The result of a drain.
    Drained(Box<Drained>),
    /// The names have moved.
    NamesMoved {
        /// Number of names.
        names: u64,
        /// Number of lost names.
        lost: u64,
    },
    /// A part of a memory operation is done.
    Stepped(Step),
    /// The session holds the lock.
    Locked {
        /// Higher than any earlier holder's.
        token: u64,
        /// Whether the previous holder ended without releasing.
        recovered: bool,
    },
    /// All have arrived at the barrier.
    Passed {
        /// The number of the round.
        round: u64,
    },
    /// The port is registered.
    Watching {
        /// The watched region.
        region: RegionId,
    },
    /// The watchers of a region.
    Watchers {
        /// The region.
        region: RegionId,
        /// Nodes and their ports, without duplicates.
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
    /// Bytes of a memory operation cannot be accessed; none was touched.
    #[error("the bytes cannot be accessed: {blocked:?}")]
    Access {
        /// The region concerned.
        side: CopySide,
        /// The cause.
        blocked: Blocked,
    },
    /// A memory operation stopped midway: some of it may be done.
    #[error("{refusal}; some of it may be done")]
    Broken {
        /// The region concerned.
        side: CopySide,
        /// The cause.
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

/// An action for the driver.
#[derive(Debug)]
pub enum Effect {
    /// Send these bytes, in order; at most the fabric's limit.
    Send {
        /// The peer.
        peer: PeerId,
        /// The bytes.
        bytes: Vec<u8>,
        /// Whether to ring the peer's doorbell; see [`halite_fabric::WorkRequest::solicited`].
        solicited: bool,
    },
    /// Warn the user of the peer's process, as far as possible without waiting.
    Warn {
        /// The peer.
        peer: PeerId,
        /// The warning.
        text: String,
    },
    /// A peer joins the cluster.  Precedes all other effects about it.
    PeerUp {
        /// The connection.
        peer: PeerId,
        /// Its incarnation.
        incarnation: NodeIncarnation,
    },
    /// A peer is down, after all its messages were handled or it was declared dead: nothing is sent to it or accepted
    /// from it any more.  It may still reach memory here.
    PeerDown(PeerId),
    /// Cut the peer off; then `handle_cut_off`, or `handle_kill` if its process is killed.
    CutOff(PeerId),
    /// A peer that was down can touch nothing here any more.
    PeerCutOff(PeerId),
    /// Persist, before the next effect, that all lower node numbers are taken; see
    /// [`restore_numbers`](crate::engine::Engine::restore_numbers).
    NumbersTaken {
        /// The first free number.
        next: u32,
    },
    /// Drop the connection.
    Disconnect(PeerId),
    /// This node's incarnation has ended: close the node, and fail all that its sessions request.
    End(Over),
    /// Connect to an address; then `handle_connected`, or `handle_dial_failed`.
    Dial {
        /// The address.
        address: String,
    },
    /// Register a new segment; then `handle_grown` with the result.
    Grow {
        /// Length in bytes.
        len: u64,
    },
    /// Start a grace period; then `handle_quiescent`.
    Quiesce(Quiesce),
    /// Copy all of `from` to `to`, of equal length; then `handle_copied`.
    Copy {
        /// Passed to `handle_copied`.
        token: Token,
        /// Source.
        from: Window,
        /// Destination.
        to: Window,
    },
    /// Set all of `window` to `byte`; then `handle_copied`.
    Fill {
        /// Passed to `handle_copied`.
        token: Token,
        /// Local memory.
        window: Window,
        /// The value.
        byte: u8,
    },
    /// Read from a peer's memory into local memory; then `handle_copied`, or `handle_copy_failed`.
    Fetch {
        /// Passed to `handle_copied` or `handle_copy_failed`.
        token: Token,
        /// The peer.
        peer: PeerId,
        /// The source.
        address: RemoteAddress,
        /// The local segment.
        key: Key,
        /// Offset in the segment, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Make local memory read as zero and return it to the system; then `handle_discarded`.
    Discard {
        /// Passed to `handle_discarded`.
        token: Token,
        /// The local segment.
        key: Key,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Allocate the pages of local memory from the system; then `handle_populated`.
    Populate {
        /// Passed to `handle_populated`.
        token: Token,
        /// The local segment.
        key: Key,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A command has ended.
    Finish {
        /// The command.
        op: OpId,
        /// Its result.
        outcome: Result<Outcome, CommandError>,
    },
    /// Refuse calls and messages to this node, since it is about to leave; or accept them again.
    Draining {
        /// Whether to refuse.
        is_on: bool,
    },
    /// Execute a transaction in the store outside of the cluster; then `handle_stored`, once.
    Store {
        /// Passed to `handle_stored`.
        id: u64,
        /// The transaction.
        transaction: Transaction,
    },
    /// Send transactions to that store from now on.
    OpenStore(NamesAt),
    /// Test whether that store is reachable from here; then `handle_tried`.
    TryStore {
        /// Passed to `handle_tried`.
        requester: Requester,
        /// The store.
        at: NamesAt,
    },
    /// The names are there from now on: persist this for nodes of this host that join later.
    NamesAt(NamesAt),
    /// The node was drained and is to leave; some regions may be left.
    Drained {
        /// Their number.
        left: u64,
    },
    /// These handles have a new view or are gone: accesses that stopped with [`Blocked::Changing`] may retry.
    HandlesChanged(Vec<u32>),
    /// A member, or what is known of one, has changed.
    MembersChanged,
    /// An event for the log.
    News(News),
}
