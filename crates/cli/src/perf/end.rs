//! One end of a measurement, in either process: its node and its peer.

use anyhow::Context;
use halite::{Node, NodeId, blocking};

use super::cores::Cores;

/// One end of a measurement. Fields are dropped in the order of their declaration.
pub struct End {
    pub session: blocking::Session,
    pub peer: NodeId,
    /// The cores to measure on.
    pub cores: Cores,
    node: Node,
}

impl End {
    pub fn new(node: Node, peer: NodeId, cores: Cores) -> End {
        End { session: node.blocking_session(), peer, cores, node }
    }

    /// Returns the name of the network to the peer.
    pub fn provider(&self) -> anyhow::Result<&'static str> {
        let peer =
            self.session.explain_peer(self.peer).context("cannot get the connection to the other end")?;
        Ok(peer.capabilities.context("the other end is not connected")?.provider)
    }

    /// Creates `count` independent sessions, which behave like sessions of separate processes.
    pub fn sessions(&self, count: usize) -> Vec<blocking::Session> {
        (0..count).map(|_| self.node.blocking_session()).collect()
    }

    /// Leaves the cluster.
    pub fn leave(self) {
        drop(self.session);
        self.node.leave();
    }
}
