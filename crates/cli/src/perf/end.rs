//! One end of a measurement, which either process has: its node, and which one stands at the other end.

use anyhow::Context;
use halite::{Node, NodeId, blocking};

use super::cores::Cores;

/// This process's end.  Fields are dropped in this order.
pub struct End {
    /// Our session.
    pub session: blocking::Session,
    /// The node at the other end.
    pub peer: NodeId,
    /// The cores to measure on.
    pub cores: Cores,
    node: Node,
}

impl End {
    /// Of a node that has joined.
    pub fn new(node: Node, peer: NodeId, cores: Cores) -> End {
        End { session: node.blocking_session(), peer, cores, node }
    }

    /// By what the other end is reached.
    pub fn provider(&self) -> anyhow::Result<&'static str> {
        let peer =
            self.session.explain_peer(self.peer).context("cannot get the connection to the other end")?;
        Ok(peer.capabilities.context("the other end is not connected")?.provider)
    }

    /// Sessions of their own, as other processes would have.
    pub fn sessions(&self, count: usize) -> Vec<blocking::Session> {
        (0..count).map(|_| self.node.blocking_session()).collect()
    }

    /// Leaves the cluster.
    pub fn leave(self) {
        drop(self.session);
        self.node.leave();
    }
}
