//! Figures of a node, for who watches it.  Nobody is asked, and nothing changes.

use super::Engine;
use super::explain::KnownPeer;
use crate::directory::DirectoryFigures;
use crate::message::{NodeState, NodeStatus};

/// What an engine knows of its own node, as numbers of one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// As others are told when they ask for it.
    pub status: NodeStatus,
    /// Bytes that the arena has grown to.
    pub bytes_grown: u64,
    /// Bytes of those that can be given out at once.
    pub bytes_free: u64,
    /// How long a silent peer is taken to be alive, in ns.
    pub lease_ns: u64,
    /// Requests to nodes, this one included, that have no answer yet.
    pub requests_under_way: u64,
    /// Requests of other nodes that have no answer of this one yet.
    pub requests_served: u64,
    /// What the directory holds, where it is here.
    pub directory: Option<DirectoryFigures>,
    /// The other nodes that are known, each with the number of its present pairing with this one.
    pub peers: Vec<(KnownPeer, u64)>,
}

impl Engine {
    /// See [`Figures`].
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
            requests_under_way: self.out.asked_count() as u64,
            requests_served: self.out.serving_count() as u64,
            directory: self.directory.figures(),
            peers: others.map(with_pairing).collect(),
        }
    }

    /// What others are told of this node.
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
            regions: self.homes.len() as u64,
            mappings: self.mapper.handle_count() as u64,
            loss: None,
        };
        self.owner.describe(&mut status);
        status
    }
}
