//! Gathers the state of the host, its networks and the cluster. Changes nothing; closes each connection at once. With a
//! secret, joins through other hosts as a temporary node, as commands do.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use halite::cluster_dir::{self, ClusterDir, ClusterDirError, Presence};
use halite::{Config, EPHEMERAL_NODE_MIN, Hosts, Node, NodeId, NodeState, NodeStatus, Provider, blocking};
use halite_providers::roce::{SocketProbe, probe, unscoped};
use halite_providers::secure::{SecretError, Secrets};
use rustix::fs::{MemfdFlags, memfd_create, statvfs};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use rustix::thread::{MembarrierCommand, membarrier_query};

use super::aging::Cleaner;
use super::etcd::EtcdFacts;
use crate::addresses;
use crate::args;
use crate::client;
use crate::limits;
use crate::output;
use crate::scratch::Scratch;
use crate::threads;

/// Maximum time for a host to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Facts {
    pub host: HostFacts,
    pub network: NetworkFacts,
    pub cluster: ClusterFacts,
    /// The etcd that holds the names, if any.
    pub etcd: Option<EtcdFacts>,
}

/// The machine, and the limits of this process.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// Release of the kernel, for example `5.10.0-21-amd64`.
    pub kernel: String,
    pub has_pidfd: bool,
    pub has_memfd: bool,
    pub has_membarrier: bool,
    /// Name of the kernel's clock source.
    pub clocksource: Option<String>,
    /// System time in seconds since 1970.
    pub time_s: u64,
    /// Hard limit on descriptors; `None` if unlimited.
    pub descriptors: Option<u64>,
    /// Tightest limit on threads; `None` if unlimited.
    pub threads: Option<threads::Limit>,
    /// Limit on locked memory in bytes; `None` if unlimited.
    pub locked_bytes: Option<u64>,
    /// Limit on the size of files in bytes; `None` if unlimited.
    pub file_bytes: Option<u64>,
    /// Size of /dev/shm in bytes; `None` if it does not exist.
    pub dev_shm_bytes: Option<u64>,
    /// The kernel's setting of transparent huge pages for shared memory.
    pub huge_pages: Option<String>,
    /// Memory that the node is to contribute, in bytes.
    pub arena_bytes: u64,
    /// The reason why the node cannot contribute the memory; `None` if it can.
    pub arena_refused: Option<String>,
}

/// Sockets, ports and the hosts to join.
#[derive(Clone, Debug)]
pub struct NetworkFacts {
    /// True if the cluster has nodes on other hosts or the node uses `roce`, so that it sends packets.
    pub uses_packets: bool,
    /// True if a node of the cluster directory runs on this host.
    pub runs_here: bool,
    /// Source addresses of packets, each with its socket's properties or the error.
    pub sockets: Vec<(IpAddr, Result<SocketProbe, String>)>,
    /// TCP addresses on which the node is to listen.
    pub ports: Vec<PortFacts>,
    /// The hosts to join.
    pub hosts: Vec<HostToJoin>,
    /// The contradiction between the settings for other hosts; `None` if they are consistent.
    pub contradiction: Option<String>,
}

/// An address on which the node is to listen.
#[derive(Clone, Debug)]
pub struct PortFacts {
    pub address: SocketAddr,
    /// The flag that sets the address.
    pub flag: &'static str,
    pub refused: Option<PortRefusal>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortRefusal {
    /// Another process listens there.
    InUse,
    /// The address is not one of this host.
    Foreign,
    /// Another error of the operating system.
    Other(String),
}

/// A host to join.
#[derive(Clone, Debug)]
pub struct HostToJoin {
    pub name: String,
    /// Addresses of the host, or the reason why they are unknown.
    pub addresses: Result<Vec<SocketAddr>, String>,
    /// The reason why the host does not answer; `None` if it does.
    pub refused: Option<String>,
    /// Address of this host from which the host answers.
    pub own: Option<SocketAddr>,
    /// Maximum payload of packets to the host, as far as this host knows; `None` without a route.
    pub payload_bytes: Option<u32>,
    /// Maximum payload of the packets that passed between a temporary node of this host and the host's node (`None` if
    /// that node announces another address), or the reason why the temporary node did not join; `None` without a secret,
    /// or if the host does not answer over TCP.
    pub joined: Option<Result<Option<u32>, String>>,
}

/// The cluster in the cluster directory.
#[derive(Debug)]
pub struct ClusterFacts {
    pub dir: PathBuf,
    /// The reason why the cluster directory cannot be used; `None` if it can be used or does not exist.
    pub dir_refused: Option<String>,
    /// The cleaner that removes old files there, if there is one.
    pub cleaner: Option<Cleaner>,
    /// Describes running nodes whose files were removed.
    pub missing_files: Option<String>,
    /// Describes the disk of the directory, or of the one in which it would be created, if that is full.
    pub full_disk: Option<String>,
    /// True if the cluster directory belongs or belonged to a cluster.
    pub is_founded: bool,
    pub presences: Vec<Presence>,
    /// True if the cluster has nodes on other hosts.
    pub is_spread: bool,
    /// File of the secret, and the reason why the secret cannot be used, if any.
    pub secret: Option<(PathBuf, Option<SecretRefusal>)>,
    /// Reports of the members, or the reason why there are none; `None` if no node lives.
    pub members: Option<Result<Vec<NodeStatus>, String>>,
}

/// The reason why a secret or its file cannot be used.
#[derive(Clone, Debug)]
pub struct SecretRefusal {
    pub text: String,
    /// True if other users may read or change the file.
    pub is_open: bool,
}

impl Facts {
    /// Gathers all facts.
    pub fn gather(dir: &Path, args: &args::Doctor) -> anyhow::Result<Facts> {
        let cluster = ClusterFacts::gather(dir, args);
        let runs_here = cluster.presences.iter().any(|node| node.alive && node.node.0 < EPHEMERAL_NODE_MIN);
        Ok(Facts {
            host: HostFacts::gather(args).context("cannot inspect this host")?,
            network: NetworkFacts::gather(args, runs_here),
            cluster,
            etcd: EtcdFacts::gather(dir, args),
        })
    }
}

impl EtcdFacts {
    /// Gathers facts about the etcd of the configuration, or else of the cluster directory.
    fn gather(dir: &Path, args: &args::Doctor) -> Option<EtcdFacts> {
        let known = || ClusterDir::open(dir).and_then(|dir| dir.etcd()).ok().flatten();
        let address = args.names.directory.clone().or_else(known)?;
        let endpoints = address.examine();
        let dates =
            endpoints.iter().filter_map(|(_, health)| health.as_ref().ok()).map(|health| &health.date);
        let skews = dates.filter_map(|date| {
            let date = chrono::DateTime::parse_from_rfc2822(date).ok()?;
            Some(chrono::Utc::now().timestamp().abs_diff(date.timestamp()))
        });
        let skew_s = skews.max();
        Some(EtcdFacts { refused: address.check().err(), address: format!("{address:?}"), endpoints, skew_s })
    }
}

impl HostFacts {
    fn gather(args: &args::Doctor) -> io::Result<HostFacts> {
        let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let memfd = memfd_create("halite-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let config = Config { arena_bytes: args.arena.0, ..Config::default() };
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(HostFacts {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            has_pidfd: pidfd_open(getpid(), PidfdFlags::empty()).is_ok(),
            has_memfd: memfd.is_ok(),
            has_membarrier: membarrier_query().contains_command(MembarrierCommand::PrivateExpedited),
            clocksource: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            time_s: since.as_secs(),
            descriptors: getrlimit(Resource::Nofile).maximum,
            threads: threads::limits().into_iter().next(),
            locked_bytes: getrlimit(Resource::Memlock).current,
            file_bytes: getrlimit(Resource::Fsize).current,
            dev_shm_bytes: statvfs("/dev/shm").ok().map(|stat| stat.f_blocks * stat.f_frsize),
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            arena_bytes: args.arena.0,
            arena_refused: config.check().err().map(|error| error.to_string()),
        })
    }
}

impl NetworkFacts {
    fn gather(args: &args::Doctor, runs_here: bool) -> NetworkFacts {
        let mut hosts: Vec<HostToJoin> =
            args.hosts.join.iter().map(|name| HostToJoin::gather(name)).collect();
        let listen = &args.hosts.listen;
        let mut own: Vec<IpAddr> = listen.iter().map(SocketAddr::ip).collect();
        if own.is_empty() {
            own.push(args.networks.address);
        }
        let is_spread = !listen.is_empty() || !args.hosts.join.is_empty();
        let mut ports: Vec<PortFacts> = listen.iter().map(|at| PortFacts::gather(*at, "--listen")).collect();
        ports.extend(args.metrics.0.map(|at| PortFacts::gather(at, "--metrics")));
        let sockets = own.into_iter().map(|ip| (ip, probe(ip, &[]).map_err(|error| error.to_string())));
        let config = Config {
            // The number has no effect on this check.
            node: Some(NodeId::FIRST),
            providers: args.networks.fabric.clone(),
            hosts: args.hosts.secret_file.clone().filter(|_| is_spread).map(|secret_file| Hosts {
                listen: listen.clone(),
                join: hosts.iter().flat_map(|host| host.addresses.clone().unwrap_or_default()).collect(),
                secret_file,
            }),
            found: args.hosts.found,
            directory: args.names.directory.clone(),
            address: args.networks.address,
            ..Config::default()
        };
        let contradiction = config.check_hosts().err().map(|error| error.to_string());
        if contradiction.is_none() {
            let in_use: Vec<SocketAddr> =
                ports.iter().filter(|port| port.refused.is_some()).map(|port| port.address).collect();
            hosts.iter_mut().for_each(|host| host.test_join(&config, &in_use));
        }
        NetworkFacts {
            contradiction,
            uses_packets: is_spread || args.networks.fabric.contains(&Provider::Roce),
            runs_here,
            sockets: sockets.collect(),
            ports,
            hosts,
        }
    }
}

impl PortFacts {
    fn gather(address: SocketAddr, flag: &'static str) -> PortFacts {
        let refused = TcpListener::bind(address).err().map(|error| match error.kind() {
            io::ErrorKind::AddrInUse => PortRefusal::InUse,
            io::ErrorKind::AddrNotAvailable => PortRefusal::Foreign,
            _ => PortRefusal::Other(error.to_string()),
        });
        PortFacts { address, flag, refused }
    }
}

impl HostToJoin {
    fn gather(name: &str) -> HostToJoin {
        let found = addresses::resolve(name).map_err(|error| error.to_string());
        let addresses = found.and_then(|found| match found.is_empty() {
            true => Err("the host has no addresses".to_owned()),
            false => Ok(found),
        });
        let (mut refused, mut own, mut payload_bytes) = (None, None, None);
        for address in addresses.iter().flatten() {
            match TcpStream::connect_timeout(address, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    refused = None;
                    own = stream.local_addr().ok();
                    payload_bytes = own.and_then(|own| payload_between(own.ip(), address.ip()));
                    break;
                }
                Err(error) => {
                    refused = Some(format!("{}: {error}", addresses::format_address(*address, None)))
                }
            }
        }
        HostToJoin { name: name.to_owned(), addresses, refused, own, payload_bytes, joined: None }
    }

    /// Joins through this host as a temporary node without memory, if there is a secret. Only a member of the cluster
    /// gets answers to its packets, so nodes answer no strangers.
    fn test_join(&mut self, config: &Config, in_use: &[SocketAddr]) {
        if let (Some(hosts), Ok(addresses), None) = (&config.hosts, &self.addresses, &self.refused) {
            let free =
                |at: &SocketAddr| SocketAddr::new(at.ip(), if in_use.contains(at) { 0 } else { at.port() });
            let mut listen: Vec<SocketAddr> = hosts.listen.iter().map(free).collect();
            if let (true, true, Some(mut own)) = (listen.is_empty(), config.address.is_loopback(), self.own) {
                // The source address of the route to the host; the system chooses the port.
                own.set_port(0);
                listen.push(own);
            }
            let hosts = Hosts { listen, join: addresses.clone(), secret_file: hosts.secret_file.clone() };
            let config = Config { node: None, arena_bytes: 0, hosts: Some(hosts), ..config.clone() };
            self.joined =
                Some(payload_through_node(config, addresses).map_err(|error| output::error_chain(&error)));
        }
    }
}

/// Joins a cluster, and returns the maximum payload of the packets to the node at `addresses`; `None` if no node announces
/// one of them, for example behind a forwarded port.
fn payload_through_node(config: Config, addresses: &[SocketAddr]) -> anyhow::Result<Option<u32>> {
    let scratch = Scratch::create_without_signal_handler()?;
    ClusterDir::found(scratch.path())?;
    let node = Node::client(Config { dir: scratch.path().to_owned(), ..config })?;
    let session = node.blocking_session();
    let is_there = |other: &NodeId| {
        let address = session.seen(*other).and_then(|seen| seen.address);
        // Nodes announce addresses without scopes.
        address.is_some_and(|address| addresses.iter().any(|at| unscoped(*at) == unscoped(address)))
    };
    let Some(other) = session.status()?.into_iter().map(|status| status.node).find(is_there) else {
        return Ok(None);
    };
    Ok(session.explain_peer(other)?.path.map(|path| path.mtu_bytes))
}

/// Returns the maximum payload of packets from `own` to a host.
fn payload_between(own: IpAddr, host: IpAddr) -> Option<u32> {
    let mtus = probe(own, &[host]).ok()?.mtus;
    Some((*mtus.first()?)?.bytes())
}

impl ClusterFacts {
    fn gather(dir: &Path, args: &args::Doctor) -> ClusterFacts {
        let is_of_another = client::belongs_to_other_user(dir) && blocking::Session::attach(dir).is_ok();
        let opened = ClusterDir::open(dir);
        let is_founded = opened.is_ok() || is_of_another;
        let (presences, dir_refused) = match opened.and_then(|dir| dir.nodes()) {
            _ if is_of_another => (Vec::new(), None),
            Ok(presences) => (presences, None),
            Err(ClusterDirError::NoCluster { .. }) => (Vec::new(), unusable(dir)),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let file = args.hosts.secret_file.clone().or_else(|| cluster_dir::secret_file(dir));
        let secret = file.map(|file| {
            let refused = Secrets::read(&file).err().map(|error| SecretRefusal {
                is_open: matches!(error, SecretError::Open { .. } | SecretError::Foreign { .. }),
                text: error.to_string(),
            });
            (file, refused)
        });
        let is_spread = !args.hosts.listen.is_empty() || !args.hosts.join.is_empty();
        let members =
            (is_of_another || presences.iter().any(|node| node.alive)).then(|| member_statuses(dir));
        let cleaner = Cleaner::find_for(dir);
        ClusterFacts {
            dir: dir.to_owned(),
            dir_refused,
            missing_files: limits::missing_files(dir),
            cleaner,
            full_disk: dir.ancestors().find(|dir| dir.exists()).and_then(limits::full_disk),
            is_founded,
            presences,
            is_spread,
            secret,
            members,
        }
    }
}

/// Returns the reason why no cluster could be created in `dir`, as far as can be checked without creating files.
fn unusable(dir: &Path) -> Option<String> {
    if let Ok(metadata) = fs::metadata(dir) {
        let is_private = metadata.mode() & 0o077 == 0;
        return (!is_private).then(|| format!("{} is accessible to other users", dir.display()));
    }
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let refused = rustix::fs::access(parent, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
    refused.err().map(|error| format!("{} cannot be created: {}: {error}", dir.display(), parent.display()))
}

fn member_statuses(dir: &Path) -> Result<Vec<NodeStatus>, String> {
    let statuses = client::join_or_attach(dir).and_then(|client| {
        let mut statuses = client.session.status()?;
        let is_shown =
            |status: &NodeStatus| Some(status.node) != client.own_node() && status.state != NodeState::Left;
        statuses.retain(is_shown);
        Ok(statuses)
    });
    statuses.map_err(|error| output::error_chain(&error))
}
