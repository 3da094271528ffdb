//! The commands that sessions give to the engine, and the effects that the engine requests from its driver.

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

/// Cause of a failed read from a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyFailure {
    /// The peer is lost, or no longer has the memory.
    PeerGone,
    /// This process lacks the resources to map the memory.
    Unmapped,
}

/// A grace period. It ends when all earlier loads and stores have ended, and all earlier posted operations in `posted`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quiesce {
    /// Passed to `handle_quiescent` at the end of the grace period.
    pub token: Token,
    /// The posted operations whose end the grace period waits for.
    pub posted: PostedTo,
}

/// A set of posted operations in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PostedTo {
    /// All posted operations.
    All,
    /// The operations that reach the memory of these peers.
    Peers(Vec<PeerId>),
}

/// A command of a session.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Allocate a region and map it.
    Alloc {
        /// Name, at most [`crate::message::NAME_BYTES_MAX`] bytes; `None` for an unnamed region.
        name: Option<String>,
        /// Length in bytes, not 0.
        len: u64,
        /// Bytes per chunk, a power of two.
        chunk_bytes: u64,
        /// Nodes that hold the chunks.
        placement: Placement,
        /// Permissions of other principals.
        everyone: Permissions,
        /// Whether the owners allocate the region's pages before the command ends.
        populate: bool,
    },
    /// Map a region by name.
    Map {
        /// The name.
        name: String,
        /// The permissions that the handle needs.
        wanted: Permissions,
    },
    /// Release a handle.
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
    /// Describe the nodes paired with this one. A node that answers has processed all earlier messages.
    Greet,
    /// Set bytes that loads and stores do not reach. May do only a part: see [`Outcome::Stepped`].
    Fill {
        /// Position of the first byte.
        at: RegionOffset,
        /// Length in bytes, not 0.
        len: u64,
        /// The value of each byte.
        byte: u8,
    },
    /// Copy bytes if loads and stores do not reach both sides. May do only a part: see [`Outcome::Stepped`].
    Copy {
        /// Start of the target.
        to: RegionOffset,
        /// Start of the source.
        from: RegionOffset,
        /// Length in bytes, not 0.
        len: u64,
    },
    /// Allocate the region of a lock or barrier on a permanent node, and map it.
    Anchor {
        /// The kind: lock or barrier.
        service: Service,
        /// The name of the lock or barrier.
        name: String,
        /// Permissions of other principals.
        everyone: Permissions,
    },
    /// Take the lock in a region.
    Lock {
        /// A handle to that region.
        slot: SlotRef,
        /// True to wait until the lock is free.
        wait: bool,
        /// First fencing token if the lock is new, in ns since 1970.
        base_ns: u64,
    },
    /// Release a lock.
    Unlock {
        /// A handle to the region of the lock.
        slot: SlotRef,
        /// The circumstances of the release.
        release: Release,
    },
    /// Wait at the barrier in a region.
    Arrive {
        /// A handle to that region.
        slot: SlotRef,
        /// The number of participants.
        participants: u32,
        /// Maximum time to wait, in ns.
        timeout_ns: u64,
    },
    /// End a command that waits for a lock or at a barrier. Other commands are not affected.
    Withdraw(OpId),
    /// Register a port of this node for writes to a region with a notification.
    Watch {
        /// A handle to the region.
        slot: SlotRef,
        /// The port, which must be open.
        port: u32,
    },
    /// Unregister a port.
    Unwatch {
        /// The region.
        region: RegionId,
        /// The port.
        port: u32,
    },
    /// List the watchers of a region.
    ListWatchers(SlotRef),
    /// Register a server of this node under the name of a service.
    Register {
        /// The service.
        service: String,
        /// True if other servers may register the same name.
        is_shared: bool,
    },
    /// Remove a server's name.
    Unregister(RegionId),
    /// List the servers of a service, or of all services.
    ListServers(Option<String>),
    /// List all names whose regions were lost with their homes.
    ListLost,
    /// Forget the region lost under a name.
    ForgetName(String),
    /// Forget a node that is not alive, and the names lost with it.
    ForgetNode(NodeId),
    /// Request a number that no node has had.
    TakeNumber,
    /// Ask an owner of memory whether a node can still access it.
    Reach {
        /// The node that may have access.
        node: NodeId,
        /// The owner of the memory.
        owner: NodeId,
    },
    /// Move all data of a node to other nodes within a time limit; then the node leaves.
    Drain {
        /// The node.
        node: NodeId,
        /// Time limit in ns.
        within_ns: u64,
        /// True if the node must stay in case some data cannot be moved.
        stays: bool,
    },
    /// Move the names from node 0 to a store outside the cluster.
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
            Command::Register { .. } => "register",
            Command::Unregister(_) => "unregister",
            Command::ListServers(_) => "list_servers",
            Command::ForgetName(_) => "forget_name",
            Command::ForgetNode(_) => "forget_node",
            Command::TakeNumber => "take_number",
            Command::Reach { .. } => "reach",
            Command::Drain { .. } => "drain",
            Command::MoveNames(_) => "move_names",
        }
    }
}

/// The circumstances in which a lock is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// The holder is done.
    Used,
    /// A lock recovered from a lost holder was granted to a session that no longer wanted it. The next grant must
    /// report the recovery.
    Unused,
    /// The session ended without releasing the lock. The next grant must report this, and must wait for that session's
    /// posted operations.
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
    /// On the own node, or else on the first node with enough free memory.
    Anywhere,
}

/// A server that is registered under the name of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedServer {
    /// The service.
    pub service: String,
    /// The server's node.
    pub node: NodeId,
    /// True if other servers may register the same name.
    pub is_shared: bool,
}

/// The result of a command.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// The command is done and has no result.
    Done,
    /// A region was mapped.
    Mapped {
        /// The new handle.
        slot: SlotRef,
        /// The region.
        region: RegionId,
    },
    /// The description of one region.
    Info(Box<RegionInfo>),
    /// Named regions, ordered by name.
    List {
        /// Regions whose homes have answered.
        regions: Vec<RegionInfo>,
        /// Names of the other regions, with their homes.
        unreachable: Vec<(String, NodeId)>,
        /// Names whose records in the store are invalid.
        damaged: Vec<String>,
    },
    /// The statuses of nodes, in order.
    Status(Vec<NodeStatus>),
    /// A number for a new node.
    Number(NodeId),
    /// The server was registered under this id.
    Registered(RegionId),
    /// Servers, ordered by service.
    Servers(Vec<NamedServer>),
    /// Tells whether a node can still access the memory of another.
    Reach(Reach),
    /// Lost names, in order.
    Lost(Vec<LostName>),
    /// The result of a drain.
    Drained(Box<Drained>),
    /// The names have been moved.
    NamesMoved {
        /// Number of names.
        names: u64,
        /// Number of lost names.
        lost: u64,
    },
    /// A part of a memory operation was done.
    Stepped(Step),
    /// The session holds the lock.
    Locked {
        /// Fencing token, higher than that of any earlier holder.
        token: u64,
        /// True if an earlier holder ended without releasing the lock.
        recovered: bool,
    },
    /// All participants have arrived at the barrier.
    Passed {
        /// The number of the round.
        round: u64,
    },
    /// The port was registered.
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

/// Cause of a failed command.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum CommandError {
    /// A node refused the request.
    #[error(transparent)]
    Refused(#[from] ErrorReply),
    /// No node of the cluster contributes memory.
    #[error("no node contributes memory")]
    NoMemoryNode,
    /// The handle does not belong to this session.
    #[error("the handle is unknown")]
    UnknownHandle,
    /// The handle was valid earlier.
    #[error("the handle is stale")]
    Stale,
    /// Bytes of a memory operation cannot be accessed; none was changed.
    #[error("the bytes cannot be accessed: {blocked:?}")]
    Access {
        /// The side of the copy.
        side: CopySide,
        /// The cause.
        blocked: Blocked,
    },
    /// A memory operation stopped midway: part of it may be done.
    #[error("{refusal}; part of the operation may be done")]
    Broken {
        /// The side of the copy.
        side: CopySide,
        /// The cause.
        refusal: ErrorReply,
    },
    /// A table is full; the text names it.
    #[error("{0}")]
    TableFull(&'static str),
    /// The command was withdrawn while it waited.
    #[error("the command was withdrawn")]
    Withdrawn,
    /// This process is a fork of the node's process. The driver returns this error, never the engine.
    #[error("this process is a fork of the node's process")]
    Forked,
}

impl From<SlotError> for CommandError {
    fn from(_: SlotError) -> Self {
        CommandError::Stale
    }
}

/// An action for the driver.
#[derive(Debug)]
pub enum Effect {
    /// Send bytes to a peer, in order; at most the fabric's limit.
    Send {
        /// The peer.
        peer: PeerId,
        /// The bytes.
        bytes: Vec<u8>,
        /// True to ring the peer's doorbell; see [`halite_fabric::WorkRequest::solicited`].
        solicited: bool,
    },
    /// Warn the user of the peer's process, without blocking.
    Warn {
        /// The peer.
        peer: PeerId,
        /// The warning.
        text: String,
    },
    /// Announces a connected peer. Precedes all other effects that name the peer.
    PeerUp {
        /// The connection.
        peer: PeerId,
        /// Incarnation of the peer.
        incarnation: NodeIncarnation,
    },
    /// Announces that a peer is down: all its messages were handled, or it was declared dead. The engine sends it no
    /// more messages and accepts none, but the peer may still access memory here.
    PeerDown(PeerId),
    /// Cut a peer off from memory here; then call `handle_cut_off`, or `handle_kill` when killing its process.
    CutOff(PeerId),
    /// Announces that a lost peer can no longer access memory here.
    PeerCutOff(PeerId),
    /// Persist, before the next effect, that all node numbers below `next` are taken; see
    /// [`restore_numbers`](crate::engine::Engine::restore_numbers).
    NumbersTaken {
        /// The first number that is not taken.
        next: u32,
    },
    /// Drop the connection to a peer.
    Disconnect(PeerId),
    /// Close the node because its incarnation has ended, and fail all requests of its sessions.
    End(Over),
    /// Connect to an address; then call `handle_connected` or `handle_dial_failed`.
    Dial {
        /// The address.
        address: String,
    },
    /// Register a new segment; then call `handle_grown` with the result.
    Grow {
        /// Length in bytes.
        len: u64,
    },
    /// Start a grace period; then call `handle_quiescent`.
    Quiesce(Quiesce),
    /// Copy `from` to `to`, of equal length; then call `handle_copied`.
    Copy {
        /// Passed to `handle_copied`.
        token: Token,
        /// The source.
        from: Window,
        /// The target.
        to: Window,
    },
    /// Set all bytes of `window` to `byte`; then call `handle_copied`.
    Fill {
        /// Passed to `handle_copied`.
        token: Token,
        /// The local memory.
        window: Window,
        /// The value of each byte.
        byte: u8,
    },
    /// Read from a peer's memory into local memory; then call `handle_copied` or `handle_copy_failed`.
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
    /// Make local memory read as zero and return it to the operating system; then call `handle_discarded`.
    Discard {
        /// Passed to `handle_discarded`.
        token: Token,
        /// The local segment.
        key: Key,
        /// Offset in the segment, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Make the operating system allocate the pages of local memory; then call `handle_populated`.
    Populate {
        /// Passed to `handle_populated`.
        token: Token,
        /// The local segment.
        key: Key,
        /// Offset in the segment, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Reports the result of a command.
    Finish {
        /// The command.
        op: OpId,
        /// Its result.
        outcome: Result<Outcome, CommandError>,
    },
    /// Refuse calls and messages to this node because it is about to leave, or accept them again.
    Draining {
        /// True to refuse, false to accept again.
        is_on: bool,
    },
    /// Execute a transaction in the store outside the cluster; then call `handle_stored`, once.
    Store {
        /// Passed to `handle_stored`.
        id: u64,
        /// The transaction.
        transaction: Transaction,
    },
    /// Use this store for all further transactions.
    OpenStore(NamesAt),
    /// Test whether a store is reachable from here; then call `handle_tried`.
    TryStore {
        /// Passed to `handle_tried`.
        requester: Requester,
        /// The store.
        at: NamesAt,
    },
    /// Persist the location of the names, for nodes of this host that join later.
    NamesAt(NamesAt),
    /// Reports the end of a drain, after which the node is to leave.
    Drained {
        /// Number of regions that could not be moved.
        left: u64,
    },
    /// Reports handles that have a new view or were removed. Accesses that stopped with [`Blocked::Changing`] may
    /// retry.
    HandlesChanged(Vec<u32>),
    /// Reports a change in the list of members or their states.
    MembersChanged,
    /// Reports an event for the log.
    News(News),
}
