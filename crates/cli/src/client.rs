//! How the commands that are not nodes themselves take part in a cluster: as an ephemeral node without memory.

use std::path::Path;

use anyhow::{Context, anyhow};
use halite::{Config, JoinError, Node, NodeId, blocking, cluster_dir};

/// As errors name the first node where it is not met.
const FIRST: &str = "node 0";

/// A node for the length of one command.
pub struct Client {
    /// Its number.
    pub id: NodeId,
    /// Its session.
    pub session: blocking::Session,
    // Leaves when dropped, after the session.
    node: Node,
}

impl Client {
    /// Joins the cluster in `dir`.
    pub fn join(dir: &Path) -> anyhow::Result<Client> {
        Client::of(Node::client(config(dir)), dir)
    }

    /// The same for one that only looks: node 0 may be out of reach.
    pub fn look(dir: &Path) -> anyhow::Result<Client> {
        Client::of(Node::observer(config(dir)), dir)
    }

    fn of(node: Result<Node, JoinError>, dir: &Path) -> anyhow::Result<Client> {
        let node = node.map_err(|error| explain(error, dir))?;
        Ok(Client { id: node.id(), session: node.blocking_session(), node })
    }

    /// Who says who there is, if that is not node 0, which is out of reach.
    pub fn membership_source(&self) -> Option<NodeId> {
        Some(self.node.membership_source()).filter(|node| *node != NodeId(0))
    }

    /// The nodes that are alive and contribute memory, in their order.
    pub fn memory_nodes(&self) -> anyhow::Result<Vec<NodeId>> {
        let nodes = self.session.status().context("cannot list the nodes")?;
        let gives = nodes.into_iter().filter(|node| node.state.is_there() && node.bytes_total > 0);
        Ok(gives.map(|node| node.node).collect())
    }
}

fn config(dir: &Path) -> Config {
    Config { dir: dir.to_owned(), node: None, arena_bytes: 0, ..Config::default() }
}

/// How to get the first node back while others live.
pub fn restart_advice(dir: &Path) -> String {
    let hosts = match cluster_dir::has_hosts(dir) {
        true => " --listen IP:PORT --secret-file FILE --join HOST:PORT",
        false => "",
    };
    format!("`halite node --id 0{hosts} --dir {}` starts it again", dir.display())
}

/// That nobody is there, and how that is changed.
pub fn no_cluster(dir: &Path) -> String {
    format!(
        "there is no cluster in {0}: `halite up --nodes 2 --dir {0}` starts one on this host, and `halite node --listen IP:PORT --secret-file FILE --join HOST:PORT --dir {0}` joins one of other hosts",
        dir.display()
    )
}

fn is_anybody_in(dir: &Path) -> bool {
    cluster_dir::nodes(dir).is_ok_and(|nodes| nodes.iter().any(|node| node.alive))
}

/// Says what the reader may do about it, where that is known.
fn explain(error: JoinError, dir: &Path) -> anyhow::Error {
    match error {
        // What lives there would be in the way of a new cluster, and waits for its first node.
        JoinError::NoCluster { .. } if is_anybody_in(dir) => {
            anyhow!("node 0 of the cluster in {0} is not running: {1}", dir.display(), restart_advice(dir))
        }
        JoinError::NoCluster { .. } => {
            anyhow!(no_cluster(dir))
        }
        JoinError::Unreachable { ref address, .. } if address == FIRST && cluster_dir::has_hosts(dir) => {
            anyhow!("{error}; if it has ended, {}", restart_advice(dir))
        }
        other => other.into(),
    }
}
