//! Errors: one enum per family of operations.
//!
//! An error names the attempted operation, its object, the cause, and what to do next. The operation had no effect,
//! unless the error says that it may have been done.
//!
//! This folder calls nothing else of this crate and takes no lock.

pub(crate) mod call;
pub(crate) mod cluster_dir;
mod etcd;
mod gone;
mod lost;
mod sync;
pub(crate) mod text;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use halite_providers::private_dir::DirError;
pub use halite_tier::access::CopySide;
use halite_tier::effect::CommandError;
use halite_tier::hello::PROTOCOL_VERSION;
use halite_tier::ids::{NodeId, Principal};
use halite_tier::layout::CHUNK_BYTES_MIN;
use halite_tier::message::{ErrorReply, NAME_BYTES_MAX};
use halite_tier::permissions::Permissions;
use halite_tier::quota::QuotaExceeded;
use serde::{Deserialize, Serialize};

pub use call::{
    CallCause, CallError, NamedCallCause, NamedCallError, ReplyCause, ReplyError, SendCause, SendError,
    ServeCause, ServeError,
};
pub use cluster_dir::ClusterDirError;
pub use etcd::{EtcdError, EtcdFault};
pub use gone::AttachError;
pub(crate) use gone::Gone;
pub use lost::{ListedRegions, Lost, LostRegion, UnreachableRegion};
pub use sync::{BarrierCause, BarrierError, LockCause, LockError};
use text::Text;
pub use watch::{NotifyCause, NotifyError};

/// An operation on a region as a whole failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("cannot {operation} {object}: {cause}")]
pub struct RegionError {
    /// Name of the attempted operation, such as `alloc` or `map`.
    #[serde(with = "text")]
    pub operation: Text,
    /// The region's name, or its handle.
    pub object: String,
    /// Cause of the failure.
    pub cause: RegionCause,
}

/// Cause of a failed operation on a region.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
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
        /// Length of the name in bytes.
        len: usize,
    },
    /// The name is not valid UTF-8. This can happen if the name was made from bytes, for example from a file name.
    #[error("the name is not valid UTF-8")]
    NameNotUtf8,
    /// The name begins with NUL; locks and barriers use such names.
    #[error("the name begins with NUL; such names are reserved")]
    NameReserved,
    /// The name is empty.
    #[error("the name is empty; pass `None` for a region without a name")]
    NameEmpty,
    /// The length is 0; a region has at least one byte.
    #[error("a region must have at least one byte")]
    ZeroLength,
    /// The region's nodes have too little free memory.
    #[error(
        "no space: {wanted} bytes do not fit, {available} are free, in pieces of at most {largest}; free regions or use a larger arena"
    )]
    NoSpace {
        /// Number of bytes requested.
        wanted: u64,
        /// Number of free bytes on the node that refused the region. The free memory may consist of several pieces.
        available: u64,
        /// Length of the longest of these pieces. A chunk of a region lies in one piece.
        largest: u64,
    },
    /// The arena has room, but the system cannot provide the memory now. Nothing was allocated.
    #[error(
        "out of memory: the system of node {node} provided {given} of {wanted} bytes; free memory there, or raise the limit of its process"
    )]
    OutOfMemory {
        /// The node that was to hold the bytes.
        node: NodeId,
        /// Number of bytes requested.
        wanted: u64,
        /// Bytes that the system provided.
        given: u64,
    },
    /// No region has the name, or the region was freed.
    #[error("there is no such region")]
    NotFound,
    /// The region was lost with its home.
    #[error("the region was lost with {0}")]
    Lost(Lost),
    /// A node cannot map memory that it must read, for lack of address space or file descriptors.
    #[error(
        "node {node} lacks address space or file descriptors to map the memory of node {owner}; raise the limits of its process (`ulimit -v`, `ulimit -n`)"
    )]
    Unmapped {
        /// The node that cannot map the memory.
        node: NodeId,
        /// The node that owns the memory.
        owner: NodeId,
    },
    /// All numbers of permanent nodes are in use.
    #[error(
        "all node numbers are in use; reuse one with `--id`, or, without etcd, release the number of a dead node with `halite forget NODE`"
    )]
    NoNumbers,
    /// This node has the maximum number of requests waiting at the region's home or an owner.
    #[error(
        "this node already has {max} requests, the maximum, waiting at the node that must answer; try again later"
    )]
    TooManyRequests {
        /// Maximum number of waiting requests.
        max: u64,
    },
    /// The node is alive and therefore cannot be forgotten.
    #[error("node {0} is alive; only a dead node can be forgotten")]
    NodeLives(NodeId),
    /// The session's principal lacks these permissions, or the handle was mapped without them.
    #[error(
        "permission denied (missing: {missing}); a session with the master permission can grant it (`halite grant`); then map the region again with it"
    )]
    PermissionDenied {
        /// The permissions that are missing.
        missing: Permissions,
    },
    /// No node of the cluster has this number.
    #[error("node {0} is not in the cluster")]
    UnknownNode(NodeId),
    /// The node died, or the network was cut, before it answered; the operation may have been done.
    #[error("node {0} is down or out of reach; the operation may have been done")]
    PeerDown(NodeId),
    /// The node was not connected when the operation began, and could not be reached: it was lost before, or the first
    /// connection to it failed. The operation was not done. [`crate::Session::seen`] has the reason.
    #[error(
        "node {0} is not connected: it is down or out of reach; nothing was done; try again when `halite status` shows it alive"
    )]
    NotMet(NodeId),
    /// The handle is no longer valid: its region was freed, or the node that held the region was restarted, or was lost
    /// and is connected again.
    #[error(
        "the handle is stale: the region was freed, or its node was restarted or out of reach for longer than a lease; map the region again"
    )]
    Stale,
    /// The handle was made by another session.
    #[error("the handle belongs to another session; map the region in this one")]
    ForeignHandle,
    /// The session has no such handle.
    #[error("the session has no such handle; map the region first")]
    UnknownHandle,
    /// No node of the cluster contributes memory.
    #[error("no node of the cluster contributes memory; start one with an arena")]
    NoMemoryNode,
    /// Node 0, which has the directory of names, is down.
    #[error("the directory of names is down; restart node 0")]
    DirectoryDown,
    /// Node 0, which has the directory of names, runs on another host and does not answer. It may live.
    #[error(
        "node 0, which has the directory of names, {}; {}; names work again when it answers: check the network, and restart node 0 only if it has ended",
        node_0_silence(*silent),
        if *maybe_done { "the operation may have been done" } else { "nothing was done" }
    )]
    DirectoryUnreachable {
        /// True if node 0 was lost before it answered; false if it was not asked.
        maybe_done: bool,
        /// Time since this node last heard node 0; `None` if the two are about to connect.
        silent: Option<Duration>,
    },
    /// The region would exceed [`REGION_BYTES_MAX`](crate::REGION_BYTES_MAX).
    #[error("{len} bytes exceed the maximum length of a region, 128 TiB")]
    TooLarge {
        /// Requested length of the region, in bytes.
        len: u64,
    },
    /// The chunk size is not a power of two, or too small.
    #[error("the chunk size {chunk_bytes} is not a power of two of at least {CHUNK_BYTES_MIN}")]
    BadChunkSize {
        /// Requested length of a chunk, in bytes.
        chunk_bytes: u64,
    },
    /// The name of a principal is empty or too long.
    #[error("a principal's name has 1 to {} bytes, not {len}", Principal::BYTES_MAX)]
    BadPrincipal {
        /// Length of the name in bytes.
        len: usize,
    },
    /// The region is sealed, and therefore immutable.
    #[error("the region is sealed, and therefore immutable")]
    Sealed,
    /// The region would consist of more contiguous pieces of memory than one message can describe.
    #[error("the region would have {pieces} pieces; the maximum is {max}; use larger chunks")]
    TooManyPieces {
        /// Number of pieces that the region would have.
        pieces: u64,
        /// Maximum number of pieces of a region.
        max: u64,
    },
    /// The region has the maximum number of watchers.
    #[error("the region already has {max} watchers, the maximum; let some watchers forward notifications")]
    TooManyWatchers {
        /// Maximum number of watchers of a region.
        max: u64,
    },
    /// The region would be left without a master.
    #[error("the region would have no master left; add another master first")]
    LastMaster,
    /// The region's permissions name the maximum number of principals.
    #[error(
        "the region's permissions already name {max} principals, the maximum; grant to everyone, or let several users have one principal"
    )]
    TooManyGrants {
        /// Maximum number of principals that a region's permissions name.
        max: u64,
    },
    /// The session's own node is leaving or has left.
    #[error("node {0}, which serves this session, has ended or has left the cluster")]
    NodeClosed(NodeId),
    /// This process is a fork of the process that joined the cluster.
    #[error("this process is a fork of the node's process; join the cluster anew after the fork")]
    Forked,
    /// A table of the node is full; the text names the table.
    #[error("{0}")]
    TableFull(#[serde(with = "text")] Text),
    /// The directory of names is in etcd, and etcd does not answer or refuses the request, or too many requests to it are
    /// waiting.
    #[error("the names are in etcd, and the request failed: {reason} (mapped regions stay usable)")]
    DirectoryOut {
        /// The reason, in etcd's own words if it answered.
        reason: String,
    },
    /// The directory of names is in etcd, and the value of this name's key was overwritten.
    #[error(
        "the key {key:?} of this name in etcd has a value that Halite did not write; `halite rm` removes the key and frees the name"
    )]
    NameDamaged {
        /// Full name of the key in etcd.
        key: String,
    },
    /// The names could not be moved; they stay where they are and keep working.
    #[error("the names were not moved: {0}")]
    NamesNotMoved(String),
    /// The node is draining and accepts no new work.
    #[error("node {0} is draining; choose another node, or try again when it is back")]
    Draining(NodeId),
    /// Another node did not understand the request, because it runs another version.
    #[error("another node does not know this request; run the same version on all nodes")]
    NotUnderstood,
    /// The operation exceeds a quota of the principal; nothing was done.
    #[error("{0}")]
    Quota(QuotaExceeded),
}

fn node_0_silence(silent: Option<Duration>) -> String {
    match silent {
        Some(silent) => format!(
            "has not been reached for {} s: its host is down, the network is cut, or a firewall drops its packets (TCP or UDP)",
            silent.as_secs()
        ),
        None => "is not connected yet".to_owned(),
    }
}

impl RegionError {
    /// Returns the cause of the failure.
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
            CommandError::Access { .. } => unreachable!("only memory operations return this error"),
            CommandError::TableFull(table) => RegionCause::TableFull(table),
            CommandError::Forked => RegionCause::Forked,
            CommandError::Withdrawn => unreachable!("a withdrawn command has no waiter"),
        }
    }
}

impl From<ErrorReply> for RegionCause {
    fn from(refusal: ErrorReply) -> RegionCause {
        match refusal {
            ErrorReply::NameTaken => RegionCause::NameTaken,
            ErrorReply::NotFound => RegionCause::NotFound,
            ErrorReply::PermissionDenied { missing } => RegionCause::PermissionDenied { missing },
            ErrorReply::NoSpace { wanted, available, largest } => {
                RegionCause::NoSpace { wanted, available, largest }
            }
            ErrorReply::HasName => RegionCause::HasName,
            ErrorReply::OutOfMemory { node, wanted, given } => {
                RegionCause::OutOfMemory { node, wanted, given }
            }
            ErrorReply::UnknownNode(node) => RegionCause::UnknownNode(node),
            ErrorReply::PeerDown(node) => RegionCause::PeerDown(node),
            ErrorReply::NotMet(node) => RegionCause::NotMet(node),
            ErrorReply::Malformed => RegionCause::NotUnderstood,
            // Callers that use locks and barriers handle these replies before this conversion.
            ErrorReply::Held
            | ErrorReply::HeldBySilent(_)
            | ErrorReply::NotHeld
            | ErrorReply::Timeout
            | ErrorReply::Participants { .. } => RegionCause::NotUnderstood,
            ErrorReply::Sealed => RegionCause::Sealed,
            ErrorReply::TooManyWatchers { max } => RegionCause::TooManyWatchers { max },
            ErrorReply::LastMaster => RegionCause::LastMaster,
            ErrorReply::TooManyGrants { max } => RegionCause::TooManyGrants { max },
            ErrorReply::TooManyPieces { pieces, max } => RegionCause::TooManyPieces { pieces, max },
            ErrorReply::BadChunkSize(chunk_bytes) => RegionCause::BadChunkSize { chunk_bytes },
            ErrorReply::NodeClosed(node) => RegionCause::NodeClosed(node),
            ErrorReply::Lost { home, loss } => RegionCause::Lost(Lost::new(home, loss)),
            ErrorReply::NodeLives(node) => RegionCause::NodeLives(node),
            ErrorReply::NoNumbers => RegionCause::NoNumbers,
            ErrorReply::Draining(node) => RegionCause::Draining(node),
            ErrorReply::TooManyRequests { max } => RegionCause::TooManyRequests { max },
            ErrorReply::DirectoryOut { reason } => RegionCause::DirectoryOut { reason },
            ErrorReply::NamesElsewhere => {
                RegionCause::DirectoryOut { reason: "the names are being moved there; try again".to_owned() }
            }
            ErrorReply::NameDamaged { key } => RegionCause::NameDamaged { key },
            ErrorReply::NamesNotMoved { reason } => RegionCause::NamesNotMoved(reason),
            ErrorReply::Unmapped { node, owner } => RegionCause::Unmapped { node, owner },
            ErrorReply::Quota(exceeded) => RegionCause::Quota(exceeded),
        }
    }
}

/// An access to the bytes of a region failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("cannot {operation} {} at offset {offset} of {region}: {cause}{}", bytes(*len), partly_done(*partly && &**operation != "read"))]
pub struct AccessError {
    /// Name of the attempted operation, such as `read` or `write`.
    #[serde(with = "text")]
    pub operation: Text,
    /// The region that was accessed.
    pub region: String,
    /// Offset of the access in the region, in bytes.
    pub offset: u64,
    /// Length of the access, in bytes.
    pub len: u64,
    /// Cause of the failure.
    pub cause: AccessCause,
    /// True if some bytes may have been accessed before the access failed; for an atomic, true if it may have taken
    /// effect.
    pub partly: bool,
}

/// Formats a number of bytes.
fn bytes(len: u64) -> String {
    if len == 1 { "1 byte".to_owned() } else { format!("{len} bytes") }
}

/// Ends the message of an operation that may have been done in part.
fn partly_done(partly: bool) -> &'static str {
    if partly { " (part of it may have been done)" } else { "" }
}

/// A copy of bytes failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("cannot copy {} from {from} to {to}: {side}: {cause}{}", bytes(*len), partly_done(*partly))]
pub struct CopyError {
    /// Number of bytes to copy.
    pub len: u64,
    /// Source of the copy.
    pub from: CopyEnd,
    /// Target of the copy.
    pub to: CopyEnd,
    /// The side, source or target, that failed.
    pub side: CopySide,
    /// Cause of the failure.
    pub cause: AccessCause,
    /// True if some bytes may have been copied before the copy failed.
    pub partly: bool,
}

/// One end of a copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyEnd {
    /// The region at this end.
    pub region: String,
    /// Offset of the bytes in the region.
    pub offset: u64,
}

impl std::fmt::Display for CopyEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "offset {} of {}", self.offset, self.region)
    }
}

impl CopyError {
    /// Returns the cause of the failure.
    pub fn cause(&self) -> &AccessCause {
        &self.cause
    }
}

/// Cause of a failed access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum AccessCause {
    /// The access exceeds the end of the region; nothing was touched.
    #[error("the region has {}", bytes(*region_len))]
    OutOfRange {
        /// The region's length in bytes.
        region_len: u64,
    },
    /// Offset and length together exceed 64 bits; nothing was touched.
    #[error("offset plus length exceeds 64 bits")]
    Overflow,
    /// The handle is no longer valid: its region was freed, or the node that held the region was restarted, or was lost
    /// and is connected again.
    #[error(
        "the handle is stale: the region was freed, or its node was restarted or out of reach for longer than a lease; map the region again"
    )]
    Stale,
    /// The handle was made by another session; nothing was touched.
    #[error("the handle belongs to another session; map the region in this one")]
    ForeignHandle,
    /// The session has no such handle; nothing was touched.
    #[error("the session has no such handle; map the region first")]
    UnknownHandle,
    /// The session's principal lacks these permissions, or the handle was mapped without them. Nothing was touched,
    /// unless the permissions were revoked during the access.
    #[error(
        "permission denied (missing: {missing}); a session with the master permission can grant it (`halite grant`); then map the region again with it"
    )]
    PermissionDenied {
        /// The permissions that are missing.
        missing: Permissions,
    },
    /// The node that holds the bytes has ended, or is a process of this host that does not answer. What was under way may
    /// have been done: see [`AccessError::partly`].
    #[error(
        "node {0}, which holds the bytes, is down or unreachable; if its process has ended, its regions are lost"
    )]
    PeerDown(NodeId),
    /// The connection to the node that holds the bytes was lost: its process or its host has ended, or the network was
    /// cut for longer than the lease. The node may live, and its regions with it. What was under way may have been done:
    /// see [`AccessError::partly`]. Handles from before the loss stay invalid.
    #[error(
        "the connection to node {0}, which holds the bytes, was lost: its process or its host has ended, or the network between (TCP or UDP) is cut; map the region again, or repeat the command, when `halite status` shows the node alive"
    )]
    LinkLost(NodeId),
    /// The region is sealed, and therefore immutable.
    #[error("the region is sealed, and therefore immutable")]
    Sealed,
    /// The offset of an atomic is not a multiple of its word's size; nothing was touched.
    #[error("the word is unaligned; its offset must be a multiple of {alignment}")]
    Unaligned {
        /// Required alignment of the offset, in bytes.
        alignment: u64,
    },
    /// The session's own node is leaving or has left.
    #[error("node {0}, which serves this session, has ended or has left the cluster")]
    NodeClosed(NodeId),
    /// This process is a fork of the process that joined the cluster.
    #[error("this process is a fork of the node's process; join the cluster anew after the fork")]
    Forked,
    /// This process cannot map the memory of the bytes, for lack of address space or file descriptors. Nothing was touched.
    #[error(
        "this process lacks address space or file descriptors to map the memory of node {0}; raise its limits (`ulimit -v`, `ulimit -n`)"
    )]
    Unmapped(NodeId),
    /// The node that executes the copy, which owns the target, cannot map the memory of the source.
    #[error(
        "node {node}, the target of the copy, lacks address space or file descriptors to map the memory of node {owner}; raise the limits of its process (`ulimit -v`, `ulimit -n`)"
    )]
    UnmappedBy {
        /// The node that executes the copy.
        node: NodeId,
        /// The node that owns the memory.
        owner: NodeId,
    },
    /// This node cannot register staging memory for the access, or its accesses in progress to the node that holds the
    /// bytes already use the maximum of 32 MiB of staging memory.
    #[error(
        "no staging memory: accesses in progress to the node that holds the bytes use all 32 MiB, or memory could not be registered; see `ulimit -v -n -f`"
    )]
    NoStaging,
    /// The access exceeds a quota of the principal; nothing was touched.
    #[error("{0}")]
    Quota(QuotaExceeded),
}

impl AccessError {
    /// Returns the cause of the failure.
    pub fn cause(&self) -> &AccessCause {
        &self.cause
    }
}

/// One access of a batch failed. All accesses before it are done. The failed access had no effect, unless
/// [`AccessError::partly`] is true.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("operation {index} of the batch: {source}")]
pub struct BatchError {
    /// Index of the failed access, from 0.
    pub index: usize,
    /// The error of the failed access.
    pub source: AccessError,
    /// True if later accesses of the batch may have taken effect too, because posted accesses are in flight together.
    pub later: bool,
}

impl BatchError {
    /// Returns the cause of the failed access.
    pub fn cause(&self) -> &AccessCause {
        &self.source.cause
    }
}

/// A node could not join the cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A live process already runs as this node.
    #[error("cannot join the cluster in {}: {} already runs as node {node}; choose another number or stop it", dir.display(), running_process(*pid))]
    AlreadyRunning {
        /// The node's number.
        node: NodeId,
        /// Process id of the node; 0 if it is unknown, because the node's files are not there yet or were removed.
        pid: u32,
        /// The cluster directory.
        dir: PathBuf,
    },
    /// Other users could enter the cluster directory, and so could access all memory of the cluster.
    #[error("cannot join: {}", DirError::NotPrivate { dir: dir.clone(), mode: *mode, uid: *uid, uid_wanted: *uid_wanted })]
    NotPrivate {
        /// The cluster directory.
        dir: PathBuf,
        /// Permission bits of the directory.
        mode: u32,
        /// User id of the directory's owner.
        uid: u32,
        /// User id that must own the directory.
        uid_wanted: u32,
    },
    /// The operating system refused an operation on a path.
    #[error("cannot join: {}: {source}", path.display())]
    Io {
        /// Path of the file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The operating system refused a thread, a descriptor or another resource of this process.
    #[error("cannot join: {0}")]
    Resource(io::Error),
    /// The cluster directory, or something in it, cannot be used.
    #[error("cannot join: {0}")]
    Directory(ClusterDirError),
    /// A packet capture is configured, but no network of the node sends packets.
    #[error("cannot join: a packet capture needs the roce network")]
    NoPackets,
    /// This host has lost the addresses that its nodes use.
    #[error(
        "cannot join: this host lost the address that its nodes use: {0}; restore it, or restart the nodes with another one (--listen)"
    )]
    AddressGone(String),
    /// Node 0 does not run.
    #[error("cannot join the cluster in {}: node 0 is not running; start it first", dir.display())]
    NoCluster {
        /// The cluster directory.
        dir: PathBuf,
    },
    /// Another process is joining and does not finish.
    #[error("cannot join the cluster in {}: process {pid} has been joining for more than {waited_ms} ms; check whether it is stopped", dir.display())]
    JoinTimeout {
        /// The cluster directory.
        dir: PathBuf,
        /// The process that blocks the join, from its lock file.
        pid: u32,
        /// Time waited for that process, in milliseconds.
        waited_ms: u64,
    },
    /// The arena exceeds the memory that this node can have.
    #[error(
        "cannot join: an arena of {wanted} bytes exceeds {limit}; the maximum is {} MiB",
        most >> 20
    )]
    ArenaTooLarge {
        /// Configured length of the arena, in bytes.
        wanted: u64,
        /// Maximum length of the arena, in bytes.
        most: u64,
        /// The limit that the arena exceeds.
        limit: String,
    },
    /// The system has no memory for the buffers of calls.
    #[error("cannot join: memory could not be registered; see `ulimit -v -n -f`")]
    NoMemory,
    /// The configuration cannot be used.
    #[error("cannot join: {0}")]
    BadConfig(String),
    /// The fabric could not be opened.
    #[error("cannot join: {0}")]
    Fabric(Box<dyn std::error::Error + Send + Sync>),
    /// This process lacks a resource that a connection needs: address space, file descriptors, or lockable memory.
    #[error("cannot join the cluster in {}: this process cannot map the memory of {address}: {lack}", dir.display())]
    Shortage {
        /// The cluster directory.
        dir: PathBuf,
        /// The node whose memory could not be mapped.
        address: String,
        /// The missing resource and its limit.
        lack: String,
    },
    /// [`Config::found`](crate::Config::found) is set, but the node knows no other hosts that it could check:
    /// [`Hosts::join`](crate::Hosts::join) is empty, and the names are not in etcd.
    #[error(
        "cannot join: --found checks that no other host runs a node, but no other hosts are configured; list all of them (--join), or omit --found to found the cluster without this check"
    )]
    FoundsBlindly,
    /// The directory of names did not assign a node number.
    #[error("the cluster did not assign a node number: {source}")]
    NoNumber {
        /// The error from the directory of names.
        source: RegionError,
    },
    /// The node cannot listen at the configured address for metrics.
    #[error("cannot serve metrics at {address}: {source}")]
    Metrics {
        /// The configured address for metrics.
        address: SocketAddr,
        /// The operating system's error.
        source: io::Error,
    },
    /// etcd, which holds the directory of names, does not answer, or its answer is invalid.
    #[error("cannot join: the directory of names in etcd at {address} cannot be used: {source}")]
    Etcd {
        /// The address of etcd, without a password.
        address: String,
        /// Kind of the fault, its details and a remedy.
        source: EtcdError,
    },
    /// Another host is founding the cluster with names in the same etcd.
    #[error(
        "cannot join as node 0: the host at {by} is founding this cluster as node 0, with its names in {address} (key PREFIX/founding, kept for {kept_s} s); start this node with another number, or without one"
    )]
    Founding {
        /// The address of etcd, without a password.
        address: String,
        /// The address of the host that is founding the cluster.
        by: String,
        /// Time in seconds for which that host may found the cluster.
        kept_s: u64,
    },
    /// Another cluster keeps its names under the same prefix in etcd, and has a live node.
    #[error(
        "cannot join: another cluster has its names at {address}: its node {node} was alive within the last {kept_s} s (key PREFIX/places/{node}); use another prefix for one of them (etcd://HOST:PORT/PREFIX)"
    )]
    EtcdTaken {
        /// The address of etcd, without a password.
        address: String,
        /// A node of the other cluster.
        node: NodeId,
        /// Time in seconds for which etcd keeps the entries of a node that has ended.
        kept_s: u64,
    },
    /// A live node of another host has this number.
    #[error("node {node} is already running: process {pid} at {address}; choose another number")]
    NumberInUse {
        /// The node's number.
        node: NodeId,
        /// Id of the live node's process, on its host.
        pid: u32,
        /// The address at which other nodes dial the live node.
        address: String,
    },
    /// Nodes of the cluster speak another version of the protocol.
    #[error("cannot join the cluster in {}: a node there speaks protocol version {theirs}, this node version {PROTOCOL_VERSION}; run the same version on all nodes", dir.display())]
    OtherVersion {
        /// The cluster directory.
        dir: PathBuf,
        /// The protocol version of the node in the cluster directory.
        theirs: u16,
    },
    /// A node of the cluster answers, but node 0 is unreachable.
    #[error("cannot join the cluster in {}: {address} answers, but node 0, which holds the names, is unreachable{}", dir.display(), number_taken_note(*node))]
    NoFirst {
        /// The cluster directory.
        dir: PathBuf,
        /// The address of the node that answers.
        address: String,
        /// The node that was to join.
        node: NodeId,
    },
    /// Nodes of the cluster could not be reached.
    #[error("cannot join the cluster in {}: no connection to {address}: {reason}", dir.display())]
    Unreachable {
        /// The cluster directory.
        dir: PathBuf,
        /// The address that was dialled.
        address: String,
        /// Why no connection was established.
        reason: String,
    },
}

/// Describes the process of a running node; `pid` is 0 if it is unknown.
fn running_process(pid: u32) -> String {
    match pid {
        0 => "another process, whose files are not there yet or were removed (`fuser` on the directory finds it),".to_owned(),
        pid => format!("process {pid}"),
    }
}

/// Returns the end of an error: another node may just have taken a permanent number. Ephemeral numbers are unique.
fn number_taken_note(node: NodeId) -> String {
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
