//! What can go wrong, one enum per family of operations.
//!
//! An error names the attempted operation, its object, the cause, and what to do next.  The operation was not done,
//! unless the cause says "maybe done".

pub(crate) mod call;
pub(crate) mod cluster_dir;
mod etcd;
mod lost;
mod sync;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use halite_providers::private_dir::DirError;
pub use halite_tier::access::CopySide;
use halite_tier::effect::CommandError;
use halite_tier::hello::PROTOCOL_VERSION;
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, NAME_BYTES_MAX};
use halite_tier::permissions::Permissions;

pub use call::{CallCause, CallError, ReplyCause, ReplyError, SendCause, SendError, ServeCause, ServeError};
pub use cluster_dir::ClusterDirError;
pub use etcd::{EtcdError, EtcdFault};
pub use lost::{ListedRegions, Lost, LostRegion, UnreachableRegion};
pub use sync::{BarrierCause, BarrierError, LockCause, LockError};
pub use watch::{NotifyCause, NotifyError};

/// An operation on a region as a whole failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot {operation} {object}: {cause}")]
pub struct RegionError {
    /// What was attempted: `alloc`, `map`, `free`, ...
    pub operation: &'static str,
    /// On what: the region's name, or its handle.
    pub object: String,
    /// Why it failed.
    pub cause: RegionCause,
}

/// Why an operation on a region failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionCause {
    /// Another region has the name.
    #[error("the name is taken by another region; choose another")]
    NameTaken,
    /// The region has another name already.
    #[error("the region already has a name; names cannot change")]
    HasName,
    /// The name is too long.
    #[error("the name has {len} bytes; the maximum is {NAME_BYTES_MAX}")]
    NameTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// The name is not text.  Only names that come from bytes can be so, such as file names.
    #[error("the name is not UTF-8")]
    NameNotUtf8,
    /// Names that begin with NUL are kept for locks and barriers.
    #[error("the name begins with NUL; such names are reserved")]
    NameReserved,
    /// The name is empty.
    #[error("the name is empty; pass `None` for a region without a name")]
    NameEmpty,
    /// A region has at least one byte.
    #[error("a region must have at least one byte")]
    ZeroLength,
    /// Not enough free memory.
    #[error("no space: {wanted} bytes do not fit, {available} are free; free regions or use a larger arena")]
    NoSpace {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes free on that node, perhaps in pieces.
        available: u64,
    },
    /// The arena has room, but the system has no memory behind it now; nothing was kept.
    #[error(
        "out of memory: the system of node {node} provided {given} of {wanted} bytes; free memory there, or raise the limit of its process"
    )]
    OutOfMemory {
        /// The node that was to hold the bytes.
        node: NodeId,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that it could get.
        given: u64,
    },
    /// No region has the name, or it was freed.
    #[error("there is no such region")]
    NotFound,
    /// The region that had the name was lost with the node that was its home.
    #[error("the region was lost with {0}")]
    Lost(Lost),
    /// A node cannot map the memory that it was to read, for lack of addresses or descriptors.
    #[error(
        "node {node} lacks addresses or descriptors to map the memory of node {owner}; raise the limits of its process (`ulimit -v`, `ulimit -n`)"
    )]
    Unmapped {
        /// Who was to read.
        node: NodeId,
        /// Whose memory it is.
        owner: NodeId,
    },
    /// All numbers of nodes that stay have been given out, and no node has given its own up.
    #[error(
        "all node numbers are in use; reuse one with `--id`, or, without etcd, release the number of a dead node with `halite forget NODE`"
    )]
    NoNumbers,
    /// This node waits for as many answers of the region's home, or of an owner, as it may.
    #[error("{max} requests of this node wait for answers there, the maximum; try again later")]
    TooManyRequests {
        /// How many may wait.
        max: u64,
    },
    /// A node that lives is not forgotten.
    #[error("node {0} is alive; only a dead node can be forgotten")]
    NodeLives(NodeId),
    /// The principal lacks these permissions, or the handle was not mapped for them.
    #[error(
        "permission denied (missing: {missing}); a master can grant it, and the handle must be mapped with it"
    )]
    PermissionDenied {
        /// What is lacking.
        missing: Permissions,
    },
    /// No node of that number is in the cluster.
    #[error("node {0} is not in the cluster")]
    UnknownNode(NodeId),
    /// The node died before it answered: maybe done.
    #[error("node {0} is down; the operation may have been done")]
    PeerDown(NodeId),
    /// The handle was valid once: its region was freed, or the node that held it was restarted.
    #[error("the handle is stale: the region was freed, or its node was restarted; map it again")]
    Stale,
    /// The handle was made by another session.
    #[error("the handle belongs to another session; map the region in this one")]
    ForeignHandle,
    /// The handle is not one of this session's.
    #[error("the session has no such handle")]
    UnknownHandle,
    /// No node of the cluster contributes memory.
    #[error("no node of the cluster contributes memory; start one with an arena")]
    NoMemoryNode,
    /// The first node, which hosts the directory of names, is down.
    #[error("the directory of names is down; restart node 0")]
    DirectoryDown,
    /// The region would be larger than can be described.
    #[error("{len} bytes exceed the maximum length of a region")]
    TooLarge {
        /// Bytes asked for.
        len: u64,
    },
    /// The chunk size is not a power of two, or too small.
    #[error("the chunk size {chunk_bytes} is not a power of two of at least 4096")]
    BadChunkSize {
        /// Bytes per chunk that were configured.
        chunk_bytes: u64,
    },
    /// The name of a principal is empty or too long.
    #[error("a principal's name has 1 to 255 bytes, not {len}")]
    BadPrincipal {
        /// Its length in bytes.
        len: usize,
    },
    /// The region is immutable.
    #[error("the region is sealed")]
    Sealed,
    /// Too many pieces: a description of the region would be too long.
    #[error("the region would have {pieces} pieces; the maximum is {max}; use larger chunks")]
    TooManyPieces {
        /// How many it would have.
        pieces: u64,
        /// How many are allowed.
        max: u64,
    },
    /// Too many watch the region already.
    #[error("the region already has {max} watchers, the maximum; let some watchers forward notifications")]
    TooManyWatchers {
        /// How many may.
        max: u64,
    },
    /// Nobody would be left who may free the region, or grant anything.
    #[error("the region would have no master left; add another master first")]
    LastMaster,
    /// The session's own node leaves or has left.
    #[error("the node has left the cluster")]
    NodeClosed,
    /// A table of the node is full.
    #[error("{0}")]
    TableFull(&'static str),
    /// The directory of names is outside of the cluster, and does not answer, or had no room for more questions.
    #[error(
        "etcd, which holds the names, does not answer or refuses (see the node's log); mapped regions stay usable"
    )]
    DirectoryOut,
    /// Names are in etcd, and what leads to the region of that name was written over by somebody.
    #[error(
        "the key {key:?} of this name in etcd holds a foreign value; `halite rm` removes it and frees the name"
    )]
    NameDamaged {
        /// The key.
        key: String,
    },
    /// The names could not be brought elsewhere: they are where they were, and are given and found there as before.
    #[error("the names were not moved: {0}")]
    NamesNotMoved(String),
    /// The node takes nothing new, for it is about to leave.
    #[error("node {0} is draining; choose another node, or try again when it is back")]
    Draining(NodeId),
    /// Another node did not understand the request: it runs another version.
    #[error("another node does not know this request; run the same version on all nodes")]
    NotUnderstood,
}

impl RegionError {
    /// Why it failed.
    pub fn cause(&self) -> &RegionCause {
        &self.cause
    }
}

impl From<CommandError> for RegionCause {
    fn from(error: CommandError) -> RegionCause {
        match error {
            CommandError::Refused(refusal) => refusal.into(),
            CommandError::NoMemoryNode => RegionCause::NoMemoryNode,
            CommandError::UnknownHandle => RegionCause::UnknownHandle,
            CommandError::Stale => RegionCause::Stale,
            CommandError::Broken { refusal, .. } => refusal.into(),
            CommandError::Access { .. } => unreachable!("only memory operations are refused so"),
            CommandError::TableFull(table) => RegionCause::TableFull(table),
            CommandError::Withdrawn => unreachable!("nobody waits for what was withdrawn"),
        }
    }
}

impl From<ErrorReply> for RegionCause {
    fn from(refusal: ErrorReply) -> RegionCause {
        match refusal {
            ErrorReply::NameTaken => RegionCause::NameTaken,
            ErrorReply::NotFound => RegionCause::NotFound,
            ErrorReply::PermissionDenied { missing } => RegionCause::PermissionDenied { missing },
            ErrorReply::NoSpace { wanted, available } => RegionCause::NoSpace { wanted, available },
            ErrorReply::HasName => RegionCause::HasName,
            ErrorReply::OutOfMemory { node, wanted, given } => {
                RegionCause::OutOfMemory { node, wanted, given }
            }
            ErrorReply::UnknownNode(node) => RegionCause::UnknownNode(node),
            ErrorReply::PeerDown(node) => RegionCause::PeerDown(node),
            ErrorReply::Malformed => RegionCause::NotUnderstood,
            // Answers of locks and barriers, which their callers look at first.
            ErrorReply::Held
            | ErrorReply::HeldBySilent(_)
            | ErrorReply::NotHeld
            | ErrorReply::Timeout
            | ErrorReply::Participants { .. } => RegionCause::NotUnderstood,
            ErrorReply::Sealed => RegionCause::Sealed,
            ErrorReply::TooManyWatchers { max } => RegionCause::TooManyWatchers { max },
            ErrorReply::LastMaster => RegionCause::LastMaster,
            ErrorReply::TooManyPieces { pieces, max } => RegionCause::TooManyPieces { pieces, max },
            ErrorReply::BadChunkSize(chunk_bytes) => RegionCause::BadChunkSize { chunk_bytes },
            ErrorReply::NodeClosed => RegionCause::NodeClosed,
            ErrorReply::Lost { home, loss } => RegionCause::Lost(Lost::new(home, loss)),
            ErrorReply::NodeLives(node) => RegionCause::NodeLives(node),
            ErrorReply::NoNumbers => RegionCause::NoNumbers,
            ErrorReply::Draining(node) => RegionCause::Draining(node),
            ErrorReply::TooManyRequests { max } => RegionCause::TooManyRequests { max },
            ErrorReply::DirectoryOut | ErrorReply::NamesElsewhere => RegionCause::DirectoryOut,
            ErrorReply::NameDamaged { key } => RegionCause::NameDamaged { key },
            ErrorReply::NamesNotMoved { reason } => RegionCause::NamesNotMoved(reason),
            ErrorReply::Unmapped { node, owner } => RegionCause::Unmapped { node, owner },
        }
    }
}

/// An access to the bytes of a region failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot {operation} {} at offset {offset} of {region}: {cause}{}", bytes(*len), half_way(*partly))]
pub struct AccessError {
    /// What was attempted: `read`, `write`, ...
    pub operation: &'static str,
    /// Of which region.
    pub region: String,
    /// From where, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Why it failed.
    pub cause: AccessCause,
    /// Whether some of its bytes may have been accessed before it failed; of an atomic, whether it may have been done.
    pub partly: bool,
}

/// A number of bytes, as text.
fn bytes(len: u64) -> String {
    if len == 1 { "1 byte".to_owned() } else { format!("{len} bytes") }
}

/// The end of a message about an operation that may have been done in part.
fn half_way(partly: bool) -> &'static str {
    if partly { " (part of it may have been done)" } else { "" }
}

/// A copy failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot copy {} from {from} to {to}: {side}: {cause}{}", bytes(*len), half_way(*partly))]
pub struct CopyError {
    /// How many bytes.
    pub len: u64,
    /// Where from.
    pub from: CopyEnd,
    /// Where to.
    pub to: CopyEnd,
    /// Which of them failed.
    pub side: CopySide,
    /// Why.
    pub cause: AccessCause,
    /// Whether some bytes may have been copied before.
    pub partly: bool,
}

/// An end of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyEnd {
    /// The region.
    pub region: String,
    /// From where on, in bytes.
    pub offset: u64,
}

impl std::fmt::Display for CopyEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "offset {} of {}", self.offset, self.region)
    }
}

impl CopyError {
    /// Why it failed.
    pub fn cause(&self) -> &AccessCause {
        &self.cause
    }
}

/// Why an access failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessCause {
    /// Beyond the end of the region; nothing was touched.
    #[error("the region has {}", bytes(*region_len))]
    OutOfRange {
        /// The region's length in bytes.
        region_len: u64,
    },
    /// Offset and length together exceed 64 bits; nothing was touched.
    #[error("offset plus length exceeds 64 bits")]
    Overflow,
    /// The handle was valid once: its region was freed, or the node that held it was restarted.
    #[error("the handle is stale: the region was freed, or its node was restarted; map it again")]
    Stale,
    /// The handle was made by another session; nothing was touched.
    #[error("the handle belongs to another session; map the region in this one")]
    ForeignHandle,
    /// The handle is not one of this session's; nothing was touched.
    #[error("the session has no such handle")]
    UnknownHandle,
    /// The principal lacks these permissions, or the handle was not mapped for them; nothing was touched, unless they were
    /// revoked half way.
    #[error(
        "permission denied (missing: {missing}); a master can grant it, and the handle must be mapped with it"
    )]
    PermissionDenied {
        /// What is lacking.
        missing: Permissions,
    },
    /// The node that holds the bytes is down, or out of reach: maybe done.
    #[error(
        "node {0}, which holds the bytes, is down or unreachable; if its process has ended, its regions are lost"
    )]
    PeerDown(NodeId),
    /// The region is immutable.
    #[error("the region is sealed")]
    Sealed,
    /// An atomic aims at an offset that is not a multiple of the size of its word; nothing was touched.
    #[error("the word is unaligned; its offset must be a multiple of {alignment}")]
    Unaligned {
        /// Bytes of which the offset must be a multiple.
        alignment: u64,
    },
    /// The session's own node leaves or has left.
    #[error("the node has left the cluster")]
    NodeClosed,
    /// This process cannot map the memory that the bytes are in, for lack of addresses or descriptors; nothing was touched.
    #[error(
        "this process lacks addresses or descriptors to map the memory of node {0}; raise its limits (`ulimit -v`, `ulimit -n`)"
    )]
    Unmapped(NodeId),
    /// The node that was to copy the bytes cannot map the memory that they are in.
    #[error(
        "node {node}, the target of the copy, lacks addresses or descriptors to map the memory of node {owner}; raise the limits of its process (`ulimit -v`, `ulimit -n`)"
    )]
    UnmappedBy {
        /// Who was to copy.
        node: NodeId,
        /// Whose memory it is.
        owner: NodeId,
    },
    /// This node cannot register the memory that such an access goes through, or as many accesses as may go to one node at once
    /// (32 MiB of first slices, 1024 of which have 32 KiB) are under way to it.
    #[error(
        "no staging memory: 1024 long accesses to that node are outstanding, or memory could not be registered; see `ulimit -v -n -f`"
    )]
    NoStaging,
}

impl AccessError {
    /// Why it failed.
    pub fn cause(&self) -> &AccessCause {
        &self.cause
    }
}

/// One access of a batch failed; those before it are done, and it is not (or, where its error says so, in part).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("operation {index} of the batch: {source}")]
pub struct BatchError {
    /// Which one, counted from 0.
    pub index: usize,
    /// What happened to it.
    pub source: AccessError,
    /// Whether some of those after it have been done, or may have been: what is posted is under way together.
    pub later: bool,
}

impl BatchError {
    /// Why it failed.
    pub fn cause(&self) -> &AccessCause {
        &self.source.cause
    }
}

/// A node could not join the cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A living process is that node already.
    #[error("cannot join as node {node} in {}: process {pid} runs as that node; choose another number or stop it", dir.display())]
    AlreadyRunning {
        /// Which node.
        node: NodeId,
        /// The process that is it, as far as its lock file says; 0 if that is being written.
        pid: u32,
        /// The cluster directory.
        dir: PathBuf,
    },
    /// Others could enter the cluster directory, and with it all memory of the cluster.
    #[error("cannot join: {}", DirError::NotPrivate { dir: dir.clone(), mode: *mode, uid: *uid, uid_wanted: *uid_wanted })]
    NotPrivate {
        /// The cluster directory.
        dir: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// Its owner.
        uid: u32,
        /// Who its owner should be.
        uid_wanted: u32,
    },
    /// The operating system refused.
    #[error("cannot join: {}: {source}", path.display())]
    Io {
        /// What was touched.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The cluster directory, or something in it, cannot be used.
    #[error("cannot join: {0}")]
    Directory(ClusterDirError),
    /// Packets are to be written down, and its networks have none.
    #[error("cannot join: a packet capture needs the roce network")]
    NoPackets,
    /// This host has none of the addresses that its nodes listen at any more.
    #[error(
        "cannot join: this host lost the address that its nodes use: {0}; restore it, or restart the nodes with another one (--listen)"
    )]
    AddressGone(String),
    /// The first node does not run.
    #[error("cannot join in {}: node 0 is not running; start it first", dir.display())]
    NoCluster {
        /// The cluster directory.
        dir: PathBuf,
    },
    /// Another process is joining and does not get on with it.
    #[error("cannot join in {}: process {pid} has been joining for more than {waited_ms} ms; check whether it is stopped", dir.display())]
    JoinTimeout {
        /// The cluster directory.
        dir: PathBuf,
        /// Who holds up others, as far as its lock file says.
        pid: u32,
        /// How long was waited, in milliseconds.
        waited_ms: u64,
    },
    /// The arena would be larger than the memory that this node can have.
    #[error(
        "cannot join: an arena of {wanted} bytes exceeds {limit}; the maximum is {} MiB",
        most >> 20
    )]
    ArenaTooLarge {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that it could have.
        most: u64,
        /// What sets the limit.
        limit: String,
    },
    /// The system has no memory for what calls need.
    #[error("cannot join: memory could not be registered; see `ulimit -v -n -f`")]
    NoMemory,
    /// The configuration cannot be used.
    #[error("cannot join: {0}")]
    BadConfig(String),
    /// The fabric could not be opened.
    #[error("cannot join: {0}")]
    Fabric(Box<dyn std::error::Error + Send + Sync>),
    /// This process lacks what a connection to a node takes: addresses, descriptors, or memory that it may lock.
    #[error("cannot join in {}: this process cannot map the memory of {address}: {lack}", dir.display())]
    Shortage {
        /// The cluster directory.
        dir: PathBuf,
        /// Whose memory did not fit.
        address: String,
        /// What is missing, and which limit that is.
        lack: String,
    },
    /// The first node is to found the cluster where no other host runs a node of it, and is told of no other host.
    #[error(
        "cannot join: --found needs the other hosts, which must run no node; name all of them (--join), or omit --found to found the cluster without this check"
    )]
    FoundsBlindly,
    /// The directory gives out no number.
    #[error("the cluster assigns no node number: {source}")]
    NoNumber {
        /// What it said.
        source: RegionError,
    },
    /// Metrics cannot be asked for where the configuration says.
    #[error("cannot serve metrics at {address}: {source}")]
    Metrics {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// etcd, which is to have the names, does not answer, or not as it should.
    #[error("cannot join with the names in {address}: {source}")]
    Etcd {
        /// Where it is, without a password.
        address: String,
        /// What is wrong with it.
        source: EtcdError,
    },
    /// Another host is founding the cluster whose names are to be there.
    #[error(
        "cannot join: the host at {by} is founding the cluster with the names in {address} as node 0 (key PREFIX/founding, for 15 s); start this node again with another number or none"
    )]
    Founding {
        /// Where the names are to be, without a password.
        address: String,
        /// Where that host is dialled.
        by: String,
    },
    /// A node of another cluster lives that has its names there.
    #[error(
        "cannot join: another cluster has its names at {address}: its node {node} was alive within the last 15 s (key PREFIX/places/{node}); use another prefix for one of them (etcd://HOST:PORT/PREFIX)"
    )]
    EtcdTaken {
        /// Where, without a password.
        address: String,
        /// Which node it is there.
        node: NodeId,
    },
    /// A node of another host has that number, and lives.
    #[error("node {node} is already running: process {pid} at {address}; choose another number")]
    NumberInUse {
        /// Its number.
        node: NodeId,
        /// Its process, on its host.
        pid: u32,
        /// Where it is dialled.
        address: String,
    },
    /// Nodes of the cluster are of another version.
    #[error("cannot join in {}: a node there speaks protocol version {theirs}, this node version {PROTOCOL_VERSION}; run the same version on all nodes", dir.display())]
    OtherVersion {
        /// The cluster directory.
        dir: PathBuf,
        /// The version that the node there speaks.
        theirs: u16,
    },
    /// A node of the cluster is there, and the first node is not met by it.
    #[error("cannot join in {}: {address} is there, but node 0, which holds the names, is unreachable{}", dir.display(), or_a_rival(*node))]
    NoFirst {
        /// The cluster directory.
        dir: PathBuf,
        /// Where the other node is.
        address: String,
        /// Which node would have joined.
        node: NodeId,
    },
    /// Nodes of the cluster could not be reached.
    #[error("cannot join in {}: no connection to {address}: {reason}", dir.display())]
    Unreachable {
        /// The cluster directory.
        dir: PathBuf,
        /// Where.
        address: String,
        /// What went wrong.
        reason: String,
    },
}

/// A number that was chosen may have been taken by another node a moment ago; those of applications and commands are nobody else's.
fn or_a_rival(node: NodeId) -> String {
    match node.is_ephemeral() {
        true => String::new(),
        false => format!(", or another node has just become node {node}"),
    }
}

impl JoinError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> JoinError {
        let path = path.into();
        move |source| JoinError::Io { path, source }
    }
}

impl From<ClusterDirError> for JoinError {
    fn from(error: ClusterDirError) -> JoinError {
        match error {
            ClusterDirError::NoCluster { dir } => JoinError::NoCluster { dir },
            ClusterDirError::Dir(DirError::Io { path, source }) => JoinError::Io { path, source },
            ClusterDirError::Dir(DirError::NotPrivate { dir, mode, uid, uid_wanted }) => {
                JoinError::NotPrivate { dir, mode, uid, uid_wanted }
            }
            other => JoinError::Directory(other),
        }
    }
}

impl From<DirError> for JoinError {
    fn from(error: DirError) -> JoinError {
        ClusterDirError::from(error).into()
    }
}
