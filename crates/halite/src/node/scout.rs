//! A temporary node with an ephemeral number. It joins a cluster of several hosts before a node that wants a permanent
//! number joins.
//!
//! The node with the permanent number must know that no live node has this number, and the address of node 0. Only a
//! member of the cluster can find out either. An ephemeral number is unique, so the temporary node can join first and
//! ask.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use halite_tier::ids::NodeId;

use crate::cluster::cluster_dir::ClusterDir;
use crate::cluster::config::{Config, Hosts};
use crate::cluster::ways;
use crate::error::JoinError;
use crate::node::Node;
use crate::node::inner::first_timeout;

/// Time limit of the search for another live node 0: a little more than a dial takes.
const HOLDER_TIMEOUT: Duration = Duration::from_secs(3);

/// Result of the search for the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Addresses of the first node; empty if other hosts cannot dial it.
    pub(crate) first: Vec<SocketAddr>,
}

/// Finds the cluster that `config` is to join as `node`. Fails if a live node has the number `node`.
pub(crate) fn find_cluster(config: &Config, hosts: &Hosts, node: NodeId) -> Result<Found, JoinError> {
    check_number(&send(config, hosts, first_timeout(config.lease))?, node)
}

/// Fails if the cluster that `config` is to join as the first node has a live first node.
pub(crate) fn check_first_is_free(config: &Config, hosts: &Hosts) -> Result<(), JoinError> {
    match send(config, hosts, HOLDER_TIMEOUT) {
        Ok(scout) => check_number(&scout, NodeId::FIRST).map(drop),
        // A node is there, but no first node.
        Err(error @ JoinError::NoFirst { .. }) => {
            tracing::debug!("found no live node 0: {error}");
            Ok(())
        }
        // No node is there, or none lets this one in: continuing would found a separate cluster.
        Err(error) => Err(error),
    }
}

/// Returns true if all of these addresses refuse the connection. Then their hosts are up and run no node. Silence of a
/// host proves nothing.
pub(crate) fn all_refuse(addresses: &[SocketAddr]) -> bool {
    let refuses = |address: &SocketAddr| {
        let dialled = TcpStream::connect_timeout(address, HOLDER_TIMEOUT);
        dialled.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    let all_refused = addresses.iter().all(refuses);
    if all_refused {
        tracing::info!("node 0 is founding the cluster: no node runs at {}", ways::list(addresses));
    }
    all_refused
}

fn check_number(scout: &Node, node: NodeId) -> Result<Found, JoinError> {
    let session = scout.inner.session(None);
    // If there is no answer, the join that follows reports a better reason.
    let holder = scout.inner.driver.block_on(session.status_of(node));
    match holder.filter(|status| status.state.is_there()) {
        Some(holder) => {
            let address = ways::list(&scout.addresses_of(node));
            Err(JoinError::NumberInUse { node, pid: holder.pid, address })
        }
        None => Ok(Found { first: scout.addresses_of(NodeId::FIRST) }),
    }
}

/// Takes a number for a permanent node from the directory of names; see [`Node::take_number`].
pub(crate) fn take_number(config: &Config) -> Result<NodeId, JoinError> {
    let hosts = config.hosts.as_ref().filter(|hosts| !hosts.join.is_empty());
    let hosts = hosts.ok_or_else(|| {
        let what = "the cluster assigns node numbers, but no cluster to join was given";
        JoinError::BadConfig(what.to_owned())
    })?;
    let scout = send(config, hosts, first_timeout(config.lease))?;
    let session = scout.inner.session(None);
    scout.inner.driver.block_on(session.take_number()).map_err(|source| JoinError::NoNumber { source })
}

fn send(config: &Config, hosts: &Hosts, first_timeout: Duration) -> Result<Node, JoinError> {
    ClusterDir::found(&config.dir)?;
    let listen = hosts.listen.iter().map(|listen| SocketAddr::new(listen.ip(), 0)).collect();
    let hosts = Some(Hosts { listen, ..hosts.clone() });
    let config = Config { node: None, arena_bytes: 0, pcap: None, metrics: None, hosts, ..config.clone() };
    Node::embedded_within(config, first_timeout)
}
