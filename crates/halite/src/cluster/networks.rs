//! Networks: the providers that a node uses, their fabrics, and the choice of one provider for each peer.
//!
//! Two nodes use the first provider that both have.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use halite_fabric::{Composite, Fabric};
use halite_providers::roce::unscoped;
use halite_providers::secure::Secrets;
use halite_providers::{RoceConfig, RoceFabric, ShmConfig, ShmFabric, Sleep};
use halite_tier::ids::NodeId;

use crate::cluster::cluster_dir::{ClusterDir, Listeners, RecordedHosts, is_here, socket_name};
use crate::cluster::config::{Config, Hosts};
use crate::cluster::ways;
use crate::error::JoinError;

/// Properties of a node that its fabric needs to listen and connect.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// The node's number.
    pub node: NodeId,
    /// The node's name, unique in the cluster directory.
    pub name: String,
    /// The hello message that the fabric sends to each new peer.
    pub hello: Vec<u8>,
    /// Settings for connections to other hosts; `None` if there are none.
    pub(crate) hosts: Option<HostSettings>,
}

impl NodeIdentity {
    /// Returns the name under which the node's fabric of `provider` listens in the cluster directory.
    pub fn name_of(&self, provider: Provider) -> String {
        format!("{}.{provider}", self.name)
    }
}

/// A network between nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Provider {
    /// Shared memory between the processes of one host.
    Shm,
    /// RoCEv2 packets over UDP.
    Roce,
}

impl Provider {
    /// All providers, in order of preference.
    pub const ALL: [Provider; 2] = [Provider::Shm, Provider::Roce];

    /// Returns the provider's name in options, results and file names.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Shm => "shm",
            Provider::Roce => "roce",
        }
    }

    /// Returns a description of the provider in a few words.
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

/// Returns the providers of a node, in the order of [`Provider`]: those of `config`, or those of the cluster that the node
/// joins.
pub(crate) fn choose(config: &Config, others: &[Listeners]) -> Vec<Provider> {
    let mut chosen = match (config.providers.is_empty(), others.first()) {
        (false, _) => config.providers.clone(),
        (true, Some(lowest)) => lowest.providers.clone(),
        (true, None) => vec![Provider::Shm],
    };
    chosen.sort();
    chosen.dedup();
    chosen
}

/// Opens the fabric of a node over its providers.
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
        // With one network, threads use its preferred way to sleep.
        let sleep = if providers.len() > 1 { Sleep::Descriptor } else { Sleep::Futex };
        parts.push((provider.name(), open_one(config, *provider, identity, sleep)?));
    }
    if let [(_, only)] = &parts[..] {
        return Ok(only.clone());
    }
    Ok(Arc::new(Composite::new(parts).map_err(fabric_error)?))
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
            ShmFabric::open(shm).map_err(fabric_error)?
        }
        Provider::Roce => {
            let roce = RoceConfig { hello, ..roce_config(config, name, identity.hosts.as_ref()) };
            RoceFabric::open(roce).map_err(fabric_error)?
        }
    })
}

fn roce_config(config: &Config, name: String, hosts: Option<&HostSettings>) -> RoceConfig {
    RoceConfig {
        address: hosts.map_or(config.address, |hosts| hosts.known.addresses[0]),
        other_addresses: hosts.map(|hosts| hosts.known.addresses[1..].to_vec()).unwrap_or_default(),
        hosts: hosts.map(|hosts| hosts.hosts.clone()),
        lease: config.lease,
        pcap: config.pcap.clone(),
        congestion: config.congestion,
        receivers: config.receivers,
        responder: config.responder,
        lanes: config.lanes,
        ..RoceConfig::new(&config.dir, name)
    }
}

/// Settings of a node for connections to other hosts.
#[derive(Clone, Debug)]
pub(crate) struct HostSettings {
    hosts: halite_providers::Hosts,
    /// Settings that the node records for nodes of this host that have no settings of their own.
    pub(crate) known: RecordedHosts,
}

impl HostSettings {
    /// Returns the settings of `config`, or the settings that another node of this host has recorded; `None` if the
    /// cluster has no other hosts.
    pub(crate) fn of(config: &Config, dir: &ClusterDir) -> Result<Option<HostSettings>, JoinError> {
        let (listen, known) = match &config.hosts {
            Some(Hosts { listen, secret_file, .. }) => {
                let addresses = packet_addresses(config, listen)?;
                let secret_file = std::path::absolute(secret_file).map_err(JoinError::io(secret_file))?;
                (listen.clone(), RecordedHosts { addresses, secret_file })
            }
            // A node with a configured number gets its settings from its operator.
            None if config.node.is_some() => return Ok(None),
            None => match dir.hosts()? {
                // Applications of two hosts connect to each other too.
                Some(known) => {
                    let known = RecordedHosts { addresses: present_addresses(&known.addresses)?, ..known };
                    (known.addresses.iter().map(|address| SocketAddr::new(*address, 0)).collect(), known)
                }
                None => return Ok(None),
            },
        };
        let secrets = Secrets::read(&known.secret_file).map_err(fabric_error)?;
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
        Ok(Some(HostSettings { hosts, known }))
    }

    /// Returns the addresses at which other hosts dial the node; empty if they cannot dial it.
    pub(crate) fn address(&self) -> String {
        let mut addresses = self.hosts.addresses();
        if let [only] = &mut addresses[..] {
            // The node may listen at all addresses of its host.
            only.set_ip(self.known.addresses[0]);
        }
        addresses.iter_mut().for_each(|address| *address = unscoped(*address));
        ways::list(&addresses)
    }

    /// Returns the networks of a node that connects to other hosts.
    pub(crate) fn providers(config: &Config) -> Result<Vec<Provider>, JoinError> {
        match config.providers[..] {
            [] => Ok(Provider::ALL.to_vec()),
            _ if config.providers.contains(&Provider::Roce) => Ok(choose(config, &[])),
            _ => {
                Err(JoinError::BadConfig("nodes of several hosts need roce; shm is for one host".to_owned()))
            }
        }
    }
}

/// Returns the addresses of this host for packets, at least one: the addresses at which the node listens, or only
/// `config.address` if that is not a loopback address.
fn packet_addresses(config: &Config, listen: &[SocketAddr]) -> Result<Vec<IpAddr>, JoinError> {
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

/// Returns the addresses that this host still has. Fails if it has none of them.
fn present_addresses(addresses: &[IpAddr]) -> Result<Vec<IpAddr>, JoinError> {
    let here: Vec<IpAddr> = addresses.iter().copied().filter(is_here).collect();
    if here.is_empty() {
        let list: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        return Err(JoinError::AddressGone(list.join(", ")));
    }
    Ok(here)
}

fn fabric_error(error: impl std::error::Error + Send + Sync + 'static) -> JoinError {
    JoinError::Fabric(Box::new(error))
}

/// Returns the address of another node for the fabric that [`open`] returns; `None` if the two share no network.
pub(crate) fn address(providers: &[Provider], other: &Listeners) -> Option<String> {
    let index = providers.iter().position(|provider| other.providers.contains(provider))?;
    let socket = socket_name(other.node, providers[index]);
    // An address without a name means the first network.
    Some(if index == 0 { socket } else { format!("{}:{socket}", providers[index]) })
}
