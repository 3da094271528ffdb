//! One end of a measurement, in either process: its node and its peer.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use halite::{Node, NodeId, PeerExplained, Permissions, Placement, Qos, blocking};

use super::cores::Cores;
use crate::client;

/// One end of a measurement. Fields are dropped in the order of their declaration.
pub struct End {
    pub session: blocking::Session,
    /// The cluster directory, if the sessions are attached to the peer.
    attached_in: Option<PathBuf>,
    pub peer: NodeId,
    /// The cores to measure on.
    pub cores: Cores,
    /// The node of this process; `None` if the process only attaches.
    node: Option<Node>,
}

impl End {
    pub fn new(node: Node, peer: NodeId, cores: Cores) -> anyhow::Result<End> {
        let session = client::with_priority(node.blocking_session())?;
        Ok(End { session, attached_in: None, peer, cores, node: Some(node) })
    }

    /// Creates the end of a process that has no node, and attaches to the node `peer`.
    pub fn attached(dir: &Path, peer: NodeId, cores: Cores) -> anyhow::Result<End> {
        let session = client::with_priority(blocking::Session::attach_to(dir, peer)?)?;
        Ok(End { session, attached_in: Some(dir.to_owned()), peer, cores, node: None })
    }

    /// Returns the connection to the peer. Connects to the peer first, if that has not happened yet.
    pub fn connection(&self) -> anyhow::Result<PeerExplained> {
        // A new node connects in the background, or at first use. An operation waits for that; `explain_peer` does not.
        let there = Placement::On(self.peer);
        let region = self.session.alloc(None, 64, there, Permissions::all());
        self.session.free(region.context("cannot reach the other end")?)?;
        self.session.explain_peer(self.peer).context("cannot get the connection to the other end")
    }

    /// Replaces the node's session by one that is attached to the peer.
    pub fn attach(&mut self, dir: &Path) -> anyhow::Result<()> {
        self.session = client::with_priority(blocking::Session::attach_to(dir, self.peer)?)?;
        self.attached_in = Some(dir.to_owned());
        Ok(())
    }

    /// Creates `count` independent sessions, which behave like sessions of separate processes.
    pub fn sessions(&self, count: usize) -> anyhow::Result<Vec<blocking::Session>> {
        let session = |_| match (&self.attached_in, &self.node) {
            (Some(dir), _) => Ok(blocking::Session::attach_to(dir, self.peer)?),
            (None, Some(node)) => Ok(node.blocking_session()),
            (None, None) => bail!("this process has neither a node nor a cluster directory"),
        };
        let all = (0..count).map(session);
        all.map(|session: anyhow::Result<_>| Ok(client::with_priority(session?)?)).collect()
    }

    /// Sets the policy of the client's node for operations of different priority.
    pub fn set_qos(&self, qos: Qos) -> anyhow::Result<()> {
        Ok(self.node.as_ref().context("this process has no node")?.set_qos(qos)?)
    }

    /// Leaves the cluster.
    pub fn leave(self) {
        drop(self.session);
        if let Some(node) = self.node {
            node.leave();
        }
    }
}
