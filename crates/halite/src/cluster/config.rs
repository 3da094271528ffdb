//! How a node is to be set up.
//!
//! Every field has a default, and nothing else in this crate looks at the environment.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::networks::MetHosts;
pub use crate::cluster::etcd::{BadEtcdAddress, EtcdAddress, EtcdHealth};
pub use crate::cluster::networks::Provider;
use crate::error::JoinError;
use crate::runtime::headroom;

pub use halite_providers::Fence;
pub use halite_providers::roce::Congestion;
pub use halite_tier::ids::NodeId;

/// First of the numbers that nodes without one of their own are given.
pub const EPHEMERAL_NODE_MIN: u32 = NodeId::EPHEMERAL_MIN.0;

/// At 64 nodes, each hears 51 heartbeats a second (63 peers, every quarter of 5 s), and holds 63 connections.
const FULL_MESH_NODES_MAX: usize = 64;

/// How a node is to be set up.
///
/// ```
/// use halite::{Config, NodeId};
/// let config = Config { node: Some(NodeId(0)), arena_bytes: 8 << 30, ..Config::default() };
/// assert_eq!(config.chunk_bytes, 4 << 20);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The cluster directory, which only its owner may enter and which holds nothing else.  By default `$HALITE_DIR`, else
    /// `$XDG_RUNTIME_DIR/halite`, else `/tmp/halite-UID`.
    pub dir: PathBuf,
    /// Which node to be, below [`EPHEMERAL_NODE_MIN`].  `NodeId(0)` is the first node: it hosts the directory of names.
    /// `None` joins a cluster that is there, under a number from [`EPHEMERAL_NODE_MIN`] on that nobody had before.
    pub node: Option<NodeId>,
    /// The networks that it uses.  It reaches each other node by the first that both have, in the order of [`Provider`].  None stands
    /// for those of the first node that is there, and for shared memory where it is the first itself.
    pub providers: Vec<Provider>,
    /// From which address of this host its packets leave, and to which they come, where it uses [`Provider::Roce`].
    pub address: IpAddr,
    /// The file to which it writes all packets that it sends and receives, at most 1 GiB, where it uses [`Provider::Roce`].
    pub pcap: Option<PathBuf>,
    /// What bounds how much it has under way to other hosts by [`Provider::Roce`], besides what they have room for: each node chooses for what it sends.
    pub congestion: Congestion,
    /// Threads of its own, at most 64, that receive and answer packets where it uses [`Provider::Roce`]; with 0, the thread that polls does.
    pub receivers: usize,
    /// How it meets nodes of other hosts; `None` where there are none, or where the nodes of this host say.
    pub hosts: Option<Hosts>,
    /// Whether the first node founds the cluster where each address of [`Hosts::join`] refuses to be dialled: their hosts are there, and run no
    /// node.  It founds nothing where one is silent, which may be a network that is out.  So a first node is founded and comes back by one configuration,
    /// as long as `join` names all other hosts; without `join`, and without names in etcd, that is an error.  Other nodes found nothing, and log that they are
    /// told to.
    pub found: bool,
    /// Where the directory of names is, if it is in etcd.  `None` is where the nodes of the cluster directory say, and else at node 0.
    pub directory: Option<EtcdAddress>,
    /// Most bytes of memory that this node contributes, taken from the system only as they are used; 0 to
    /// contribute none.
    pub arena_bytes: u64,
    /// Bytes of each segment that the arena grows by.  A region larger than this lies in several pieces.
    pub segment_bytes: u64,
    /// Bytes per chunk of the regions made by this node's sessions: a power of two of at least 4096.  A region is
    /// spread over nodes, and moved, chunk by chunk.
    pub chunk_bytes: u64,
    /// Bytes of each ring by which this node sends to a peer: a power of two of at least 4096.
    pub ring_bytes: usize,
    /// Bytes of the ring that each peer gets here for its calls: a power of two of at least 4096.  It is read from one
    /// end to the other, so a larger one takes more room in the processor's cache; a quarter of it bounds what travels
    /// in it, and longer inputs are read from their caller's memory.
    pub request_ring_bytes: u64,
    /// How long a silent node is taken to be alive.
    pub lease: Duration,
    /// Up to so many nodes of a cluster are connected each to each.  In a larger one, a node connects to the first node, and to each other when
    /// one of the two first uses the other.  One number for all nodes.
    pub full_mesh_nodes_max: usize,
    /// What may be done to a node that does not answer but could still write to our memory.
    pub fence: Fence,
    /// As whom this node's sessions act; by default the name of the Unix user.
    pub principal: Option<String>,
    /// By how many seconds this node takes its clock of day to be ahead of that of the host, behind if negative.  For trials of clusters
    /// whose clocks differ, and 0 else: only the fencing tokens of locks begin at the time of day.
    pub clock_offset_s: i64,
    /// Where Prometheus may ask for the node's [`Metrics`](crate::Metrics), at `/metrics` over HTTP; port 0 has the system choose.  Who
    /// reaches that address may ask: they are told numbers, and no names but those of nodes.
    pub metrics: Option<SocketAddr>,
}

/// How a node meets those of other hosts, which it talks to by [`Provider::Roce`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hosts {
    /// Where they may dial it, over TCP; port 0 has the system choose.  They try these in that order, each for two seconds.  Packets go
    /// by the same address, unless [`Config::address`] is another than this host's own.  Empty for a node that only dials others.
    pub listen: Vec<SocketAddr>,
    /// Where any node of the cluster may be dialled, tried in that order; empty for the first node, and where there is one in the cluster
    /// directory.
    pub join: Vec<SocketAddr>,
    /// The file of the secret that they share, as `halite secret new` writes it.
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
            full_mesh_nodes_max: FULL_MESH_NODES_MAX,
            fence: Fence::Kill,
            principal: None,
            clock_offset_s: 0,
            metrics: None,
        }
    }
}

impl Config {
    /// Whether this process could be set up so, as far as that can be told beforehand: the arena must not be larger than
    /// the memory of the machine, nor than what a control group around the process may have.
    pub fn check(&self) -> Result<(), JoinError> {
        match headroom::most() {
            Some(most) if self.arena_bytes > most.bytes => {
                Err(JoinError::ArenaTooLarge { wanted: self.arena_bytes, most: most.bytes, limit: most.by })
            }
            _ => Ok(()),
        }
    }

    /// Whether the settings for other hosts are consistent.
    pub fn check_hosts(&self) -> Result<(), JoinError> {
        let Some(hosts) = &self.hosts else { return Ok(()) };
        MetHosts::providers(self)?;
        let is_first = self.node == Some(NodeId::FIRST);
        match is_first && self.found && hosts.join.is_empty() && self.directory.is_none() {
            true => Err(JoinError::FoundsBlindly),
            false => Ok(()),
        }
    }

    /// The principal as whom sessions act.
    pub fn principal(&self) -> String {
        self.principal.clone().unwrap_or_else(unix_user)
    }
}

fn default_dir() -> PathBuf {
    if let Some(dir) = non_empty("HALITE_DIR") {
        return dir;
    }
    match non_empty("XDG_RUNTIME_DIR") {
        Some(runtime) => runtime.join("halite"),
        None => PathBuf::from(format!("/tmp/halite-{}", rustix::process::getuid().as_raw())),
    }
}

fn non_empty(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The user's name by `/etc/passwd`, else `uid-1000`.  Names that come from a network are not looked up: that
/// could take seconds, and a node would change its principal when the network is down.
fn unix_user() -> String {
    let uid = rustix::process::getuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_in_passwd(&passwd, uid).unwrap_or_else(|| format!("uid-{uid}"))
}

fn name_in_passwd(passwd: &str, uid: u32) -> Option<String> {
    let uid = uid.to_string();
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_the_third_field_and_not_by_the_group() {
        let passwd = "root:x:0:0::/root:/bin/sh\nada:x:1000:7::/home/ada:/bin/sh\nbob:x:7:1000::/:/bin/sh\n";
        assert_eq!(name_in_passwd(passwd, 1000).as_deref(), Some("ada"));
        assert_eq!(name_in_passwd(passwd, 7).as_deref(), Some("bob"));
        assert_eq!(name_in_passwd(passwd, 8), None);
        assert_eq!(name_in_passwd("garbage\n::\n:x:8:\n", 8), None);
    }
}
