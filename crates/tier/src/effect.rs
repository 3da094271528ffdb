//! The commands that sessions give to the engine, and the effects that the engine requests from its driver. The driver
//! is the code around the engine that performs input and output.

use halite_fabric::{Key, PeerId, RemoteAddress};
use halite_mem::{SlotError, Window};
use serde::{Deserialize, Serialize};

use crate::access::{Blocked, CopySide, RegionOffset, SlotRef, Step};
use crate::directory::Transaction;
use crate::ids::{NodeId, NodeIncarnation, RegionId, Requester};
use crate::message::{Drained, ErrorReply, LostName, NamesAt, NodeStatus, Reach, RegionCommand, RegionInfo};
use crate::names::Service;
use crate::news::{News, Over};
use crate::permissions::Permissions;

/// Identifies a command of a session, until [`Effect::Finish`] reports the command's result.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

/// Identifies an operation that the engine requested, when the driver reports its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// The reason why a read from a peer's memory failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyFailure {
    /// The peer is lost, or no longer has this memory.
    PeerGone,
    /// This process lacks the resources to map the memory.
    Unmapped,
}

/// A grace period that the driver must wait for. It ends when all loads and stores, and all posted operations in
/// `posted`, that began before it have ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quiesce {
    /// Identifies the grace period when the driver calls `handle_quiescent` at its end.
    pub token: Token,
    /// The posted operations that the grace period waits for.
    pub posted: PostedTo,
}

/// A set of operations that this node has posted to peers and that are in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PostedTo {
    /// All posted operations.
    All,
    /// The operations that access the memory of these peers.
    Peers(Vec<PeerId>),
}

/// A command of a session.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Allocate a region and map it.
    Alloc {
        /// Name, at most [`crate::message::NAME_BYTES_MAX`] bytes; `None` for an unnamed region.
        name: Option<String>,
        /// Length of the region in bytes, not 0.
        len: u64,
        /// Bytes per chunk, a power of two.
        chunk_bytes: u64,
        /// The nodes that hold the chunks.
        placement: Placement,
        /// Permissions of all principals except the session's own.
        everyone: Permissions,
        /// True if the owners must allocate the region's pages before the command ends.
        populate: bool,
    },
    /// Map a region by name.
    Map {
        /// The name of the region.
        name: String,
        /// The permissions that the handle needs.
        wanted: Permissions,
    },
    /// Release a handle.
    Unmap(SlotRef),
    /// Change a region, as one of its masters (principals that may free, grant, revoke, seal, move and name it).
    RegionCommand(SlotRef, RegionCommand),
    /// Describe the region with this name.
    Stat(String),
    /// Describe the region of a handle.
    StatHandle(SlotRef),
    /// Describe the named regions after this name in order, as many as fit into a page.
    List {
        /// The last name of the previous page; `None` for the first page.
        after: Option<String>,
    },
    /// Ask all nodes for their status.
    Status,
    /// Ask one node for its status, without asking the directory for the node.
    StatusOf(NodeId),
    /// Ask all nodes that are paired with this node for their status. A node that answers has processed all earlier
    /// messages of this node.
    Greet,
    /// Set bytes that stores do not reach. The command may end after a part: see [`Outcome::Stepped`].
    Fill {
        /// Position of the first byte to fill.
        at: RegionOffset,
        /// Length in bytes, not 0.
        len: u64,
        /// The value that each byte gets.
        byte: u8,
    },
    /// Copy bytes where loads and stores do not reach both sides. The command may end after a part: see
    /// [`Outcome::Stepped`].
    Copy {
        /// Start of the target bytes.
        to: RegionOffset,
        /// Start of the source bytes.
        from: RegionOffset,
        /// Length in bytes, not 0.
        len: u64,
    },
    /// Allocate the region of a lock or barrier on a permanent node (number below 1000), and map the region.
    Anchor {
        /// The kind: lock or barrier.
        service: Service,
        /// The name of the lock or barrier.
        name: String,
        /// Permissions of all principals except the session's own.
        everyone: Permissions,
    },
    /// Take the lock in a region.
    Lock {
        /// A handle to the region of the lock.
        slot: SlotRef,
        /// True to wait until the lock is free, false to fail if another session holds the lock.
        wait: bool,
        /// First fencing token if the lock is new, in ns since 1970.
        base_ns: u64,
    },
    /// Release a lock.
    Unlock {
        /// A handle to the region of the lock.
        slot: SlotRef,
        /// The reason for the release.
        release: Release,
    },
    /// Wait at the barrier in a region.
    Arrive {
        /// A handle to the region of the barrier.
        slot: SlotRef,
        /// The number of participants that the barrier waits for.
        participants: u32,
        /// Maximum time to wait, in ns.
        timeout_ns: u64,
    },
    /// End a command that waits for a lock or at a barrier. Has no effect on other commands.
    Withdraw(OpId),
    /// Register a port of this node as a watcher of a region: each write with a notification sends a message to the
    /// port.
    Watch {
        /// A handle to the region to watch.
        slot: SlotRef,
        /// The port, which must be open.
        port: u32,
    },
    /// Remove a port from the watchers of a region.
    Unwatch {
        /// The watched region.
        region: RegionId,
        /// The port to remove.
        port: u32,
    },
    /// List the watchers of a region.
    ListWatchers(SlotRef),
    /// Register a server of this node under the name of a service.
    Register {
        /// The name of the service.
        service: String,
        /// True if other servers may register the same name.
        is_shared: bool,
    },
    /// Remove the name of a server. The id is that of [`Outcome::Registered`].
    Unregister(RegionId),
    /// List the servers of a service, or of all services.
    ListServers(Option<String>),
    /// List all names whose regions were lost with their homes.
    ListLost,
    /// Remove a name from the list of lost names.
    ForgetName(String),
    /// Forget a node that is not alive, and the names lost with it.
    ForgetNode(NodeId),
    /// Request a number for a new node. The number is unused as long as unused numbers are left.
    TakeNumber,
    /// Ask an owner of memory whether a node can still access that memory.
    Reach {
        /// The node that may still have access.
        node: NodeId,
        /// The owner of the memory.
        owner: NodeId,
    },
    /// Move all data of a node to other nodes within a time limit. Then the node leaves.
    Drain {
        /// The node to drain.
        node: NodeId,
        /// Time limit for the moves, in ns.
        within_ns: u64,
        /// True if the node must stay when some of its data cannot be moved.
        stays: bool,
    },
    /// Move the names from node 0 to a store outside the cluster.
    MoveNames(NamesAt),
    /// Move the names from the store outside the cluster back to node 0.
    MoveNamesBack,
}

impl Command {
    /// Returns the command's name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Alloc { .. } => "alloc",
            Command::Map { .. } => "map",
            Command::Unmap(_) => "unmap",
            Command::RegionCommand(_, command) => command.name(),
            Command::Stat(_) | Command::StatHandle(_) => "stat",
            Command::List { .. } => "list",
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
            Command::MoveNamesBack => "move_names_back",
        }
    }
}

/// The reason why a lock is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// The holder no longer needs the lock.
    Used,
    /// The home granted a lock that it had recovered from a lost holder, but the session no longer wanted the lock. The
    /// next grant must report the recovery.
    Unused,
    /// The session ended without releasing the lock. The next grant must report this, and must wait for the session's
    /// posted operations.
    Abandoned,
}

/// The nodes on which a region's chunks are placed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Placement {
    /// All chunks are on the session's own node.
    Local,
    /// All chunks are on this node.
    On(NodeId),
    /// The chunks are on these nodes in turn. If the list is empty, the chunks are on all nodes that contribute memory.
    Spread(Vec<NodeId>),
    /// All chunks are on one node that has enough free memory. The session's own node is preferred, whose memory is the
    /// fastest for the session, until it uses more than another node, chosen at random, by a sixteenth of the memory:
    /// so all nodes fill evenly. If its own node has no memory, its number chooses the preferred node.
    Anywhere,
}

/// A server that is registered under the name of a service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamedServer {
    /// The name of the service.
    pub service: String,
    /// The node of the server.
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
        /// The mapped region.
        region: RegionId,
    },
    /// The description of one region.
    Info(Box<RegionInfo>),
    /// A page of the named regions, ordered by name.
    List {
        /// Regions whose homes have answered.
        regions: Vec<RegionInfo>,
        /// Names of regions whose homes have not answered, each with the home.
        unreachable: Vec<(String, NodeId)>,
        /// Names whose records in etcd are invalid.
        damaged: Vec<String>,
        /// The name after which the next page begins; `None` for the last page.
        next: Option<String>,
    },
    /// The statuses of the nodes, ordered by node number.
    Status(Vec<NodeStatus>),
    /// A number for a new node.
    Number(NodeId),
    /// The server was registered under this id.
    Registered(RegionId),
    /// Servers, ordered by service.
    Servers(Vec<NamedServer>),
    /// The answer to [`Command::Reach`], as the owner of the memory sees it.
    Reach(Reach),
    /// Names whose regions were lost, ordered by name.
    Lost(Vec<LostName>),
    /// The result of a drain.
    Drained(Box<Drained>),
    /// The names have moved to the outside store, or back.
    NamesMoved {
        /// Number of names that have moved.
        names: u64,
        /// Number of lost names that have moved.
        lost: u64,
    },
    /// A part of a fill or copy was done; the session issues a command for the rest.
    Stepped(Step),
    /// The session holds the lock.
    Locked {
        /// Fencing token, higher than the token of any earlier holder.
        token: u64,
        /// True if an earlier holder ended without releasing the lock.
        recovered: bool,
    },
    /// All participants have arrived at the barrier.
    Passed {
        /// The number of the barrier's round, counted from 1.
        round: u64,
    },
    /// The port is now a watcher of the region.
    Watching {
        /// The watched region.
        region: RegionId,
    },
    /// The watchers of a region.
    Watchers {
        /// The watched region.
        region: RegionId,
        /// The watching nodes and their ports, without duplicates.
        watchers: Vec<(NodeIncarnation, u32)>,
    },
}

/// The reason why a command failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum CommandError {
    /// A node refused the request.
    #[error(transparent)]
    Refused(#[from] ErrorReply),
    /// No node of the cluster contributes memory.
    #[error("no node of the cluster contributes memory; start a node that does")]
    NoMemoryNode,
    /// The handle does not belong to this session.
    #[error("the handle does not belong to this session")]
    UnknownHandle,
    /// The handle is no longer valid.
    #[error("the handle is stale: the region was freed, or its node was restarted; map it again")]
    Stale,
    /// Some bytes of a memory operation cannot be accessed; no byte was changed.
    #[error("some bytes of the operation cannot be accessed ({blocked:?}); nothing was changed")]
    Access {
        /// The side whose bytes cannot be accessed; the target for a fill.
        side: CopySide,
        /// The reason why the bytes cannot be accessed.
        blocked: Blocked,
    },
    /// A memory operation stopped midway, so part of it may be done.
    #[error("{refusal}; part of the operation may be done")]
    Broken {
        /// The side on which the operation failed; the target for a fill.
        side: CopySide,
        /// The reason why the operation stopped.
        refusal: ErrorReply,
    },
    /// A table of this node is full; the text says which table.
    #[error("{0}")]
    TableFull(&'static str),
    /// The command was withdrawn while it waited.
    #[error("the command was withdrawn while it waited")]
    Withdrawn,
    /// This process is a fork of the node's process. The driver returns this error, never the engine.
    #[error("this process is a fork of the node's process; join the cluster anew after the fork")]
    Forked,
}

impl From<SlotError> for CommandError {
    fn from(_: SlotError) -> Self {
        CommandError::Stale
    }
}

/// An action that the driver must carry out, or an event that the engine reports to it.
#[derive(Debug)]
pub enum Effect {
    /// Send bytes to a peer. They are at most as long as the fabric permits. The driver sends them in the order of the
    /// effects.
    Send {
        /// The peer that receives the bytes.
        peer: PeerId,
        /// The bytes to send: one frame.
        bytes: Vec<u8>,
        /// True to ring the peer's doorbell; see [`halite_fabric::WorkRequest::solicited`].
        solicited: bool,
    },
    /// Write a warning to the terminal of the peer's process, without blocking.
    Warn {
        /// The peer whose process is to be warned.
        peer: PeerId,
        /// The text of the warning.
        text: String,
    },
    /// Announces a peer that is now connected. Precedes all other effects that name the peer.
    PeerUp {
        /// The connection to the peer.
        peer: PeerId,
        /// Incarnation of the peer.
        incarnation: NodeIncarnation,
    },
    /// Announces that a peer is down: the engine has handled all messages of the peer, or has declared the peer dead.
    /// The engine sends no further messages to the peer, and accepts none from it. The peer may still access this
    /// node's memory.
    PeerDown(PeerId),
    /// Revoke a peer's access to this node's memory; then call `handle_cut_off`. If the driver must first kill the
    /// peer's process, call `handle_kill` when the kill starts.
    CutOff(PeerId),
    /// Announces that a lost peer can no longer access this node's memory.
    PeerCutOff(PeerId),
    /// Persist, before the next effect, that all node numbers below `next` are taken. A later incarnation of this node
    /// calls [`restore_numbers`](crate::engine::Engine::restore_numbers) with `next`.
    NumbersTaken {
        /// The first number that is not taken.
        next: u32,
    },
    /// Drop the connection to a peer.
    Disconnect(PeerId),
    /// Close this node, because its incarnation has ended, and fail all requests of its sessions.
    End(Over),
    /// Connect to an address; then call `handle_connected` or `handle_dial_failed`.
    Dial {
        /// The address to connect to.
        address: String,
    },
    /// Add a segment to the arena and register it; then call `handle_grown` with the result.
    Grow {
        /// Length of the segment in bytes.
        len: u64,
    },
    /// Start a grace period; then call `handle_quiescent`.
    Quiesce(Quiesce),
    /// Copy `from` to `to`, of equal length; then call `handle_copied`.
    Copy {
        /// Identifies the copy in `handle_copied`.
        token: Token,
        /// The local memory to read.
        from: Window,
        /// The local memory to write.
        to: Window,
    },
    /// Set all bytes of `window` to `byte`; then call `handle_copied`.
    Fill {
        /// Identifies the fill in `handle_copied`.
        token: Token,
        /// The local memory to fill.
        window: Window,
        /// The value that each byte gets.
        byte: u8,
    },
    /// Read from a peer's memory into local memory; then call `handle_copied` or `handle_copy_failed`.
    Fetch {
        /// Identifies the read in `handle_copied` or `handle_copy_failed`.
        token: Token,
        /// The peer whose memory to read.
        peer: PeerId,
        /// The source, in the peer's memory.
        address: RemoteAddress,
        /// Key of the local segment that receives the bytes.
        key: Key,
        /// Offset in the segment, in bytes.
        offset: u64,
        /// Number of bytes to read.
        len: u64,
    },
    /// Make local memory read as zero and return it to the operating system; then call `handle_discarded`.
    Discard {
        /// Identifies the discard in `handle_discarded`.
        token: Token,
        /// Key of the local segment.
        key: Key,
        /// Offset in the segment, in bytes.
        offset: u64,
        /// Number of bytes to discard.
        len: u64,
    },
    /// Make the operating system allocate the pages of local memory; then call `handle_populated`.
    Populate {
        /// Identifies the request in `handle_populated`.
        token: Token,
        /// Key of the local segment.
        key: Key,
        /// Offset in the segment, in bytes.
        offset: u64,
        /// Number of bytes to populate.
        len: u64,
    },
    /// Reports the result of a command.
    Finish {
        /// The finished command.
        op: OpId,
        /// The result of the command.
        outcome: Result<Outcome, CommandError>,
    },
    /// Refuse calls and messages to this node, because it is about to leave, or accept them again.
    Draining {
        /// True to refuse, false to accept again.
        is_on: bool,
    },
    /// Execute a transaction in the store outside the cluster; then call `handle_stored` once.
    Store {
        /// Identifies the transaction in `handle_stored`.
        id: u64,
        /// The transaction to execute.
        transaction: Transaction,
    },
    /// Use this store for all further transactions.
    OpenStore(NamesAt),
    /// Test whether this node reaches a store; then call `handle_tried`.
    TryStore {
        /// The requester of the test, which the driver passes to `handle_tried`.
        requester: Requester,
        /// The store to test.
        at: NamesAt,
    },
    /// Persist the location of the names, for nodes of this host that will join later.
    NamesAt(NamesAt),
    /// Stop using the store, and remove its persisted location: the names have moved back to node 0.
    NamesBack,
    /// Reports the end of a drain (the move of this node's data to other nodes). This node must leave next.
    Drained {
        /// Number of regions that could not be moved.
        left: u64,
    },
    /// Reports the indexes of handles that were removed or have a new view of their region. Accesses that stopped with
    /// [`Blocked::Changing`] may retry.
    HandlesChanged(Vec<u32>),
    /// Reports a change in the list of members or their states.
    MembersChanged,
    /// Reports an event that the driver writes to the log.
    News(News),
}
