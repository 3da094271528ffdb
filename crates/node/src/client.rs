//! How the commands that are not nodes themselves take part in a cluster: as a passing node without memory.

use std::path::Path;

use anyhow::{Context, anyhow};
use halite::{Config, JoinError, Node, NodeId, blocking, cluster_dir};

/// A node for the length of one command.
pub struct Client {
    /// Its number.
    pub id: NodeId,
    /// Its session.
    pub session: blocking::Session,
    // Leaves when dropped, after the session.
    _node: Node,
}

impl Client {
    /// Joins the cluster in `dir`.
    pub fn join(dir: &Path) -> anyhow::Result<Client> {
        let config = Config { dir: dir.to_owned(), node: None, arena_bytes: 0, ..Config::default() };
        let node = Node::embedded(config).map_err(|error| explain(error, dir))?;
        Ok(Client { id: node.id(), session: node.blocking_session(), _node: node })
    }

    /// The nodes that are alive and contribute memory, in their order.
    pub fn memory_nodes(&self) -> anyhow::Result<Vec<NodeId>> {
        let nodes = self.session.status().context("cannot ask which nodes there are")?;
        let gives = nodes.into_iter().filter(|node| node.state.is_there() && node.bytes_total > 0);
        Ok(gives.map(|node| node.node).collect())
    }
}

/// How to get the first node back while others live.
pub fn restart_advice(dir: &Path) -> String {
    format!("`halite node --id 0 --dir {}` starts it again", dir.display())
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
            anyhow!("there is no cluster in {0}: `halite up --nodes 2 --dir {0}` starts one", dir.display())
        }
        other => other.into(),
    }
}
