//! Providers: which networks a node uses, how their fabrics are opened, and by which of them it reaches another.
//!
//! A node with several prefers the first of them that the other node has, too.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use halite_fabric::{Composite, Fabric};
use halite_providers::secure::Secrets;
use halite_providers::{RoceConfig, RoceFabric, ShmConfig, ShmFabric, Sleep};
use halite_tier::ids::NodeId;

use crate::cluster::cluster_dir::{ClusterDir, KnownHosts, Listeners, socket_name};
use crate::cluster::config::{Config, Hosts};
use crate::cluster::ways;
use crate::error::JoinError;

/// What a fabric must know of the node that it is opened for.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// Which node.
    pub node: NodeId,
    /// A name that no other node has.
    pub name: String,
    /// What peers who connect are to be shown.
    pub hello: Vec<u8>,
    /// How other hosts are met, if they are.
    pub(crate) hosts: Option<MetHosts>,
}

impl NodeIdentity {
    /// The name under which its fabric of that provider listens in the cluster directory.
    pub fn name_of(&self, provider: Provider) -> String {
        format!("{}.{provider}", self.name)
    }
}

/// A network that nodes can use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Provider {
    /// Shared memory between the processes of one host.
    Shm,
    /// RoCEv2 over UDP.
    Roce,
}

impl Provider {
    /// All of them, those that are to be preferred first.
    pub const ALL: [Provider; 2] = [Provider::Shm, Provider::Roce];

    /// As users, results and files name it.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Shm => "shm",
            Provider::Roce => "roce",
        }
    }

    /// What it is, in half a line.
    pub fn summary(self) -> &'static str {
        match self {
            Provider::Shm => "Shared memory between the processes of one host",
            Provider::Roce => "RoCEv2 over UDP, between hosts or the processes of one",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The providers that a node of `config` uses: those that it names, in the order in which all nodes prefer them, else those of the cluster
/// that it finds.
pub(crate) fn chosen(config: &Config, others: &[Listeners]) -> Vec<Provider> {
    let mut chosen = match (config.providers.is_empty(), others.first()) {
        (false, _) => config.providers.clone(),
        (true, Some(lowest)) => lowest.providers.clone(),
        (true, None) => vec![Provider::Shm],
    };
    chosen.sort();
    chosen.dedup();
    chosen
}

/// Opens the fabric of a node.
pub(crate) fn open(
    config: &Config,
    providers: &[Provider],
    identity: &NodeIdentity,
) -> Result<Arc<dyn Fabric>, JoinError> {
    if config.pcap.is_some() && !providers.contains(&Provider::Roce) {
        return Err(JoinError::NoPackets);
    }
    let mut parts = Vec::new();
    for provider in providers {
        // Who uses one network sleeps as that likes best.
        let sleep = if providers.len() > 1 { Sleep::Descriptor } else { Sleep::Futex };
        parts.push((provider.name(), open_one(config, *provider, identity, sleep)?));
    }
    if let [(_, only)] = &parts[..] {
        return Ok(only.clone());
    }
    Ok(Arc::new(Composite::new(parts).map_err(failed)?))
}

fn open_one(
    config: &Config,
    provider: Provider,
    identity: &NodeIdentity,
    sleep: Sleep,
) -> Result<Arc<dyn Fabric>, JoinError> {
    let (name, hello) = (identity.name_of(provider), identity.hello.clone());
    Ok(match provider {
        Provider::Shm => {
            let shm = ShmConfig {
                hello,
                ring_bytes: config.ring_bytes as u64,
                fence: config.fence,
                sleep,
                ..ShmConfig::new(&config.dir, name)
            };
            ShmFabric::open(shm).map_err(failed)?
        }
        Provider::Roce => {
            let roce = RoceConfig { hello, ..roce_config(config, name, identity.hosts.as_ref()) };
            RoceFabric::open(roce).map_err(failed)?
        }
    })
}

fn roce_config(config: &Config, name: String, hosts: Option<&MetHosts>) -> RoceConfig {
    RoceConfig {
        address: hosts.map_or(config.address, |hosts| hosts.known.addresses[0]),
        other_addresses: hosts.map(|hosts| hosts.known.addresses[1..].to_vec()).unwrap_or_default(),
        hosts: hosts.map(|hosts| hosts.hosts.clone()),
        lease: config.lease,
        pcap: config.pcap.clone(),
        congestion: config.congestion,
        receivers: config.receivers,
        ..RoceConfig::new(&config.dir, name)
    }
}

/// How a node meets other hosts.
#[derive(Clone, Debug)]
pub(crate) struct MetHosts {
    hosts: halite_providers::Hosts,
    /// What nodes of this host that are not told may know.
    pub(crate) known: KnownHosts,
}

impl MetHosts {
    /// As `config` says, else as another node of this host was told; `None` if there are no other hosts.
    pub(crate) fn of(config: &Config, dir: &ClusterDir) -> Result<Option<MetHosts>, JoinError> {
        let (listen, known) = match &config.hosts {
            Some(Hosts { listen, secret_file, .. }) => {
                let addresses = addresses_of_packets(config, listen)?;
                let secret_file = std::path::absolute(secret_file).map_err(JoinError::io(secret_file))?;
                (listen.clone(), KnownHosts { addresses, secret_file })
            }
            // Who has a number of its own is told by its operator.
            None if config.node.is_some() => return Ok(None),
            None => match dir.hosts()? {
                // Applications of two hosts meet, too.
                Some(known) => {
                    let known = KnownHosts { addresses: those_here(&known.addresses)?, ..known };
                    (known.addresses.iter().map(|address| SocketAddr::new(*address, 0)).collect(), known)
                }
                None => return Ok(None),
            },
        };
        let secrets = Secrets::read(&known.secret_file).map_err(failed)?;
        let mut hosts = halite_providers::Hosts::known_by(secrets);
        for listen in listen {
            hosts.listen_also(listen).map_err(|source| {
                let host = listen.ip();
                let port =
                    if listen.port() == 0 { String::new() } else { format!(", port {}", listen.port()) };
                JoinError::BadConfig(format!("no other host can dial {host}{port}: {source}"))
            })?;
        }
        hosts.secret_file = Some(known.secret_file.clone());
        Ok(Some(MetHosts { hosts, known }))
    }

    /// Where others dial the node; empty if they cannot.
    pub(crate) fn address(&self) -> String {
        let mut addresses = self.hosts.addresses();
        if let [only] = &mut addresses[..] {
            // It may listen at all addresses of its host.
            only.set_ip(self.known.addresses[0]);
        }
        ways::list(&addresses)
    }

    /// The networks of a node that meets other hosts.
    pub(crate) fn providers(config: &Config) -> Result<Vec<Provider>, JoinError> {
        match config.providers[..] {
            [] => Ok(Provider::ALL.to_vec()),
            _ if config.providers.contains(&Provider::Roce) => Ok(chosen(config, &[])),
            _ => {
                Err(JoinError::BadConfig("nodes of several hosts need roce: shm ends at the host".to_owned()))
            }
        }
    }
}

/// By which addresses of this host packets go, at least one: those where it is dialled, unless another one is said.
fn addresses_of_packets(config: &Config, listen: &[SocketAddr]) -> Result<Vec<IpAddr>, JoinError> {
    let mut addresses = Vec::new();
    if config.address.is_loopback() {
        for address in listen.iter().map(SocketAddr::ip) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    if addresses.is_empty() {
        addresses.push(config.address);
    }
    match addresses.iter().find(|address| address.is_unspecified()) {
        Some(address) => Err(JoinError::BadConfig(format!(
            "other hosts cannot send packets to {address}; give an address of this host"
        ))),
        None => Ok(addresses),
    }
}

/// The addresses of a node that its host has at this moment, at least one: an ephemeral node uses those that are left.
fn those_here(addresses: &[IpAddr]) -> Result<Vec<IpAddr>, JoinError> {
    let is_gone = |address: &IpAddr| {
        UdpSocket::bind((*address, 0)).is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
    };
    let here: Vec<IpAddr> = addresses.iter().copied().filter(|address| !is_gone(address)).collect();
    if here.is_empty() {
        let list: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        return Err(JoinError::AddressGone(list.join(", ")));
    }
    Ok(here)
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> JoinError {
    JoinError::Fabric(Box::new(error))
}

/// Where a node with `providers` dials another one, as the fabric that [`open`] returns calls it; `None` if they have none in common.
pub(crate) fn address(providers: &[Provider], other: &Listeners) -> Option<String> {
    let index = providers.iter().position(|provider| other.providers.contains(provider))?;
    let socket = socket_name(other.node, providers[index]);
    // The first of several is who is meant where no name is said, as where there is one.
    Some(if index == 0 { socket } else { format!("{}:{socket}", providers[index]) })
}
