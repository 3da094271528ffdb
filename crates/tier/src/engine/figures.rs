//! Collects the metrics of a node for monitoring, without sending messages or changing state.

use super::Engine;
use super::explain::KnownPeer;
use crate::directory::DirectoryFigures;
use crate::message::{NodeState, NodeStatus};

/// A snapshot of the metrics of an engine.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// The status that this node sends to other nodes on request.
    pub status: NodeStatus,
    /// Current size of the arena, in bytes.
    pub bytes_grown: u64,
    /// Bytes of the arena that are free.
    pub bytes_free: u64,
    /// Lease: time without a sign of life after which a peer counts as dead, in ns.
    pub lease_ns: u64,
    /// Number of requests of this node that wait for a reply, including its requests to itself.
    pub requests_under_way: u64,
    /// Number of requests of other nodes that this node has not answered yet.
    pub requests_served: u64,
    /// The directory's metrics; `None` if the directory is on another node.
    pub directory: Option<DirectoryFigures>,
    /// The other known nodes, each with the number of its current pairing with this node.
    pub peers: Vec<(KnownPeer, u64)>,
}

impl Engine {
    /// Returns a snapshot of the engine's metrics at `now_ns`.
    pub fn figures(&self, now_ns: u64) -> Figures {
        let others = self.known_peers(now_ns, |member| member.incarnation != self.out.incarnation());
        let with_pairing = |known: KnownPeer| {
            let pairing = self.membership.pairings().number(known.incarnation);
            (known, pairing)
        };
        let (bytes_grown, bytes_free) = self.owner.bytes_grown_and_free();
        Figures {
            status: self.own_status(),
            bytes_grown,
            bytes_free,
            lease_ns: self.out.config().lease_ns,
            requests_under_way: self.out.pending_count() as u64,
            requests_served: self.out.serving_count() as u64,
            directory: self.directory.figures(),
            peers: others.map(with_pairing).collect(),
        }
    }

    /// Returns the status that this node sends to other nodes on request.
    pub(super) fn own_status(&self) -> NodeStatus {
        let config = self.out.config();
        let mut status = NodeStatus {
            node: config.incarnation.node,
            pid: config.pid,
            state: if self.membership.draining().is_on() { NodeState::Draining } else { NodeState::Alive },
            incarnation: config.incarnation.id.0,
            provider: config.provider.clone(),
            bytes_used: 0,
            bytes_total: 0,
            bytes_refused: 0,
            bytes_quarantined: 0,
            bytes_largest: 0,
            regions: self.homes.len() as u64,
            mappings: self.mapper.handle_count() as u64,
            loss: None,
        };
        self.owner.describe(&mut status);
        status
    }
}
