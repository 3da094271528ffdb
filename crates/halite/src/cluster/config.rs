//! Configuration of a node.
//!
//! Every field has a default. This crate reads environment variables only for the default of [`Config::dir`].

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::networks::HostSettings;
pub use crate::cluster::etcd::{BadEtcdAddress, EtcdAddress, EtcdHealth};
pub use crate::cluster::networks::Provider;
use crate::cluster::principals::user_name;
pub use crate::cluster::principals::{BadPrincipalRule, PrincipalRule, UnixName};
use crate::error::JoinError;
use crate::runtime::headroom;

pub use halite_providers::Fence;
pub use halite_providers::roce::{Congestion, ResponderMode};
pub use halite_tier::ids::NodeId;
use halite_tier::qos::Qos;
use halite_tier::quota::{Amounts, Quota};

/// First ephemeral node number: nodes without a configured number get numbers from here on.
pub const EPHEMERAL_NODE_MIN: u32 = NodeId::EPHEMERAL_MIN.0;

/// Bit that is set in random numbers of ephemeral nodes: of those that connect to other hosts, and of those that could
/// not count theirs on a full disk.
pub(crate) const RANDOM_NODE_BIT: u32 = 1 << 31;

/// Configuration of a node.
///
/// ```
/// use halite::{Config, NodeId};
/// let config = Config { node: Some(NodeId(0)), arena_bytes: 8 << 30, ..Config::default() };
/// assert_eq!(config.chunk_bytes, 4 << 20);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The cluster directory. Only its owner may enter it, and it contains only Halite's files. The default is
    /// `$HALITE_DIR`, else `$XDG_RUNTIME_DIR/halite` if this user owns that runtime directory, else `/tmp/halite-UID`.
    pub dir: PathBuf,
    /// The node's number, below [`EPHEMERAL_NODE_MIN`]. `NodeId(0)` is the first node: it has the directory of names,
    /// unless etcd has it. `None` joins an existing cluster under an ephemeral number, which is never reused.
    pub node: Option<NodeId>,
    /// Networks of the node. The node reaches each peer over the first network that both have, in the order of
    /// [`Provider`]. If empty, the node uses the networks of the lowest-numbered node in the cluster directory, or only
    /// shared memory if that directory has no other node.
    pub providers: Vec<Provider>,
    /// Address of this host at which the node sends and receives packets. Used only with [`Provider::Roce`].
    pub address: IpAddr,
    /// File that captures all packets in both directions, up to 1 GiB. Used only with [`Provider::Roce`].
    pub pcap: Option<PathBuf>,
    /// Congestion control of the packets that this node sends to other hosts. It limits these packets in addition to
    /// the receivers' grants. Used only with [`Provider::Roce`].
    pub congestion: Congestion,
    /// The ends that keep state for requests between this node and its peers. Used only with [`Provider::Roce`].
    pub responder: ResponderMode,
    /// Number of lanes to each peer, from 1 to 4: queue pairs that all sessions of two nodes share. Calls and messages
    /// have the first, and each session uses one of the others for its accesses to regions; with 1, calls wait behind
    /// accesses. Two nodes use the smaller of their numbers. Used only with [`Provider::Roce`].
    pub lanes: usize,
    /// Number of threads that receive and answer packets, at most 64; with 0, the polling thread receives and answers.
    /// Used only with [`Provider::Roce`].
    pub receivers: usize,
    /// Settings for connections to other hosts. With `None`, the node uses the settings that other nodes of this host
    /// have recorded in the cluster directory; without recorded settings, it connects to no other host.
    pub hosts: Option<Hosts>,
    /// Lets the first node found the cluster if each address of [`Hosts::join`] refuses the connection. A refusal shows
    /// that the host is up and runs no node.
    ///
    /// If an address does not respond at all, the first node does not found the cluster, because the network may be
    /// down. So the first node can use the same configuration for its first start and for restarts, if `join` lists all
    /// other hosts. Without `join` and without names in etcd, `found` is an error. Nodes other than the first ignore
    /// `found` and log a warning.
    pub found: bool,
    /// Address of etcd, if etcd has the directory of names. With `None`, the node uses the address that other nodes
    /// have recorded in the cluster directory; without a recorded address, node 0 has the names.
    pub directory: Option<EtcdAddress>,
    /// Maximum memory that this node contributes, in bytes; with 0, it contributes none. The node allocates memory from
    /// the system as regions need it.
    pub arena_bytes: u64,
    /// Size of the segments by which the arena grows, in bytes. A region larger than a segment has several pieces.
    pub segment_bytes: u64,
    /// Chunk size of regions that this node's sessions allocate, in bytes: a power of two of at least 4096. A chunk is
    /// the unit in which regions are distributed over nodes and moved.
    pub chunk_bytes: u64,
    /// Size of the ring through which this node sends to each peer over shared memory, in bytes: a power of two from
    /// 4096 to 64 MiB. Calls have rings of their own; see [`request_ring_bytes`](Config::request_ring_bytes).
    pub ring_bytes: usize,
    /// Size of the ring at this node into which each peer writes its calls, over any network, in bytes: a power of two
    /// from 4096 to 1 GiB.
    /// An input longer than a quarter of the ring stays in the caller's memory, and this node reads it from that
    /// memory. Calls cycle through the whole ring, so a larger ring occupies more of the processor's cache.
    pub request_ring_bytes: u64,
    /// Time for which a silent peer counts as alive.
    pub lease: Duration,
    /// Largest cluster, in nodes, in which each node connects to all others when it joins. In a larger cluster, a
    /// joining node connects only to the first node, and to each other node on first use. Must be the same on all
    /// nodes.
    pub full_mesh_nodes_max: usize,
    /// Action that this node takes against a silent peer that could still write to this node's memory.
    pub fence: Fence,
    /// Principal of this node's sessions; by default the name of the Unix user.
    pub principal: Option<String>,
    /// Difference between this node's time of day and the host's, in seconds; 0 except in tests of clusters with
    /// different clocks. Only the fencing tokens of locks depend on the time of day.
    pub clock_offset_s: i64,
    /// Unix users whose processes may attach sessions to the node ([`Session::attach`](crate::Session::attach)). With
    /// `None`, the node accepts no sessions.
    pub attach: Option<AttachMode>,
    /// Principals of Unix users and groups, for attached sessions. Without a rule, a user acts as the principal with its
    /// name. The node's own user always acts as the node's principal.
    pub principals: Vec<PrincipalRule>,
    /// Quotas on this node of each other Unix user or principal; the default is [`Config::QUOTAS`]. The node's own user
    /// has no quotas, and quotas of regions apply only with [`AttachMode::Everyone`].
    pub quotas: Amounts,
    /// Policy for operations of different priority ([`Session::with_priority`](crate::Session::with_priority)) that leave
    /// the node over a network; [`Node::set_qos`](crate::Node::set_qos) changes it later.
    pub qos: Qos,
    /// Principals whose sessions at this node have low priority, and are refused high priority
    /// ([`QosError::HighDenied`](crate::QosError::HighDenied)).
    pub low_priority: Vec<String>,
    /// Address at which the node serves its [`Metrics`](crate::Metrics) over HTTP, at `/metrics`; with port 0, the
    /// system chooses the port. The node serves every client that reaches the address. The answer contains numbers, and
    /// names of nodes but no other names.
    pub metrics: Option<SocketAddr>,
}

/// The users of this host that may attach sessions to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachMode {
    /// The user who runs the node: the socket has the mode 0600.
    Owner,
    /// All users: the socket has the mode 0666, and the cluster directory 0711.
    Everyone,
}

impl AttachMode {
    /// Returns the mode of the socket.
    pub(crate) fn bits(self) -> u32 {
        match self {
            AttachMode::Owner => 0o600,
            AttachMode::Everyone => 0o666,
        }
    }
}

impl FromStr for AttachMode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<AttachMode, &'static str> {
        match text {
            "0600" => Ok(AttachMode::Owner),
            "0666" => Ok(AttachMode::Everyone),
            _ => Err("it is neither 0600 (sessions of this user) nor 0666 (sessions of all users)"),
        }
    }
}

impl fmt::Display for AttachMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.bits())
    }
}

/// Settings of a node for connections to other hosts, over [`Provider::Roce`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hosts {
    /// Addresses at which other hosts may dial the node, over TCP; with port 0, the system chooses the port. Other
    /// hosts try the addresses in this order, each for two seconds. RoCE packets use the same IP address, unless
    /// [`Config::address`] is not a loopback address. Empty for a node that only dials others.
    pub listen: Vec<SocketAddr>,
    /// Addresses of any nodes of the cluster, tried in this order. May be empty for the first node, and if another node
    /// already runs in the cluster directory.
    pub join: Vec<SocketAddr>,
    /// File with the secret that the hosts share, as `halite secret new` writes it.
    pub secret_file: PathBuf,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            dir: default_dir(),
            node: None,
            providers: Vec::new(),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            pcap: None,
            congestion: Congestion::Grant,
            responder: ResponderMode::Stateful,
            lanes: 2,
            receivers: 0,
            hosts: None,
            found: false,
            directory: None,
            arena_bytes: 1 << 30,
            segment_bytes: 16 << 30,
            chunk_bytes: 4 << 20,
            ring_bytes: 256 << 10,
            request_ring_bytes: 256 << 10,
            lease: Duration::from_secs(5),
            full_mesh_nodes_max: Config::FULL_MESH_NODES_MAX,
            fence: Fence::Kill,
            principal: None,
            clock_offset_s: 0,
            attach: None,
            principals: Vec::new(),
            quotas: Config::QUOTAS,
            qos: Qos::default(),
            low_priority: Vec::new(),
            metrics: None,
        }
    }
}

impl Config {
    /// Default of [`Config::full_mesh_nodes_max`]. In a cluster of 64, a node has 63 connections, and receives 51
    /// heartbeats a second: each peer sends one every 1.25 s, a quarter of the default lease.
    pub const FULL_MESH_NODES_MAX: usize = 64;

    /// Default quotas. They exceed the needs of most applications and leave resources for other principals.
    pub const QUOTAS: Amounts = Amounts::UNLIMITED
        .with(Quota::Sessions, 256)
        .with(Quota::Memory, 1 << 30)
        .with(Quota::Operations, 65_536)
        // Each wait costs the node up to 1,000 reads a second.
        .with(Quota::Waits, 256)
        .with(Quota::Objects, 65_536)
        .with(Quota::Services, 256)
        .with(Quota::Regions, 65_536)
        // Half of the default arena.
        .with(Quota::RegionBytes, 512 << 20);

    /// Checks that the arena fits into the memory that this process may use: the machine's memory, and the limits of
    /// the control groups that enclose the process. Other limits take effect only when the node joins.
    pub fn check(&self) -> Result<(), JoinError> {
        match headroom::memory_limit() {
            Some(limit) if self.arena_bytes > limit.bytes => Err(JoinError::ArenaTooLarge {
                wanted: self.arena_bytes,
                most: limit.bytes,
                limit: limit.source,
            }),
            _ => Ok(()),
        }
    }

    /// Checks that the settings for other hosts are consistent.
    pub fn check_hosts(&self) -> Result<(), JoinError> {
        let Some(hosts) = &self.hosts else { return Ok(()) };
        HostSettings::providers(self)?;
        let is_first = self.node == Some(NodeId::FIRST);
        match is_first && self.found && hosts.join.is_empty() && self.directory.is_none() {
            true => Err(JoinError::FoundsBlindly),
            false => Ok(()),
        }
    }

    /// Returns the principal of this node's sessions.
    pub fn principal(&self) -> String {
        self.principal.clone().unwrap_or_else(|| user_name(rustix::process::getuid().as_raw()))
    }
}

fn default_dir() -> PathBuf {
    if let Some(dir) = non_empty("HALITE_DIR") {
        return dir;
    }
    match non_empty("XDG_RUNTIME_DIR") {
        Some(runtime) if is_for_this_user(&runtime) => runtime.join("halite"),
        _ => fallback_dir(),
    }
}

/// Returns the directory of a user without a runtime directory.
pub(crate) fn fallback_dir() -> PathBuf {
    PathBuf::from(format!("/tmp/halite-{}", rustix::process::getuid().as_raw()))
}

/// Returns false for the runtime directory of another user, which `sudo` may have passed on, unless that user has a
/// cluster there.
fn is_for_this_user(runtime: &Path) -> bool {
    let owner = |path: &Path| std::fs::metadata(path).ok().map(|metadata| metadata.uid());
    let (runtime_owner, own) = (owner(runtime), rustix::process::geteuid().as_raw());
    runtime_owner.is_none_or(|owner| owner == own) || owner(&runtime.join("halite")) == runtime_owner
}

fn non_empty(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}
