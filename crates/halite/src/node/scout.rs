//! Looking at a cluster of several hosts before a node joins it under a number that stays.
//!
//! A node of that number may live, and only the directory tells where the first node is, however the cluster was found.  So a
//! node that is ephemeral, whose number nobody else has, asks first.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use halite_tier::ids::NodeId;

use crate::cluster::cluster_dir::ClusterDir;
use crate::cluster::config::{Config, Hosts};
use crate::cluster::ways;
use crate::error::JoinError;
use crate::node::Node;
use crate::node::inner::first_patience;

/// How long a first node is looked for whose number we are to have: as long as a dial takes, and a little more.
const HOLDER_PATIENCE: Duration = Duration::from_secs(3);

/// What was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Where the first node is dialled, if it can be.
    pub(crate) first: Vec<SocketAddr>,
}

/// Looks at the cluster that `config` is to join as `node`, of which no living one may have that number.
pub(crate) fn look(config: &Config, hosts: &Hosts, node: NodeId) -> Result<Found, JoinError> {
    look_by(&send(config, hosts, first_patience(config.lease))?, node)
}

/// Looks whether the first node lives, of the cluster that `config` is to join as that.
pub(crate) fn look_for_first(config: &Config, hosts: &Hosts) -> Result<(), JoinError> {
    match send(config, hosts, HOLDER_PATIENCE) {
        Ok(scout) => look_by(&scout, NodeId::FIRST).map(drop),
        // A node is there, and lacks a first node.
        Err(error @ JoinError::NoFirst { .. }) => {
            tracing::debug!("no living node 0 is found: {error}");
            Ok(())
        }
        // Nobody is there, or may let us in: to go on would be to found a cluster of our own.
        Err(error) => Err(error),
    }
}

/// Whether hosts are there at all of these addresses, and refuse to be dialled: so no node runs there.  Of one that is silent nothing is known.
pub(crate) fn is_nobody_at(addresses: &[SocketAddr]) -> bool {
    let refuses = |address: &SocketAddr| {
        let dialled = TcpStream::connect_timeout(address, HOLDER_PATIENCE);
        dialled.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    let is_nobody = addresses.iter().all(refuses);
    if is_nobody {
        tracing::info!("node 0 founds the cluster: no node runs at {}", ways::list(addresses));
    }
    is_nobody
}

fn look_by(scout: &Node, node: NodeId) -> Result<Found, JoinError> {
    let session = scout.blocking_session();
    // Who asks again when it joins hears better why nobody answers.
    let holder = session.block_on(session.as_async().status_of(node));
    match holder.filter(|status| status.state.is_there()) {
        Some(holder) => {
            let address = ways::list(&scout.addresses_of(node));
            Err(JoinError::NumberInUse { node, pid: holder.pid, address })
        }
        None => Ok(Found { first: scout.addresses_of(NodeId::FIRST) }),
    }
}

/// See [`Node::take_number`].
pub(crate) fn take_number(config: &Config) -> Result<NodeId, JoinError> {
    let hosts = config.hosts.as_ref().filter(|hosts| !hosts.join.is_empty());
    let hosts = hosts.ok_or_else(|| {
        let what = "the cluster assigns node numbers, and no cluster to join was named";
        JoinError::BadConfig(what.to_owned())
    })?;
    let scout = send(config, hosts, first_patience(config.lease))?;
    let session = scout.blocking_session();
    session.block_on(session.as_async().take_number()).map_err(|source| JoinError::NoNumber { source })
}

fn send(config: &Config, hosts: &Hosts, first_patience: Duration) -> Result<Node, JoinError> {
    ClusterDir::found(&config.dir)?;
    let listen = hosts.listen.iter().map(|listen| SocketAddr::new(listen.ip(), 0)).collect();
    let hosts = Some(Hosts { listen, ..hosts.clone() });
    let config = Config { node: None, arena_bytes: 0, pcap: None, hosts, ..config.clone() };
    Node::embedded_within(config, first_patience)
}
