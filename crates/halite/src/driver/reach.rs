//! Nodes that this node does not reach although they may live.

use std::time::Duration;

use halite_tier::ids::NodeId;
use halite_tier::message::{LossCause, NodeState};

use super::Driver;

/// A node of another host that may live: its host is down, or the network is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OutOfReach {
    /// Time since the node was last heard; `None` while the nodes connect again.
    pub(crate) silent: Option<Duration>,
}

impl Driver {
    /// Describes a node that did not answer. Returns `None` if its incarnation is known to have ended, or if it is in the
    /// cluster directory of this node, where no network can be cut.
    pub(crate) fn out_of_reach(&self, node: NodeId) -> Option<OutOfReach> {
        let now = self.now_ns();
        let (known, is_here) = self.look(|runner| {
            let engine = runner.engine()?;
            let announced = engine.address_of(node).unwrap_or_default();
            Some((engine.known_peer(now, node)?, self.shared.ways.is_here(announced)))
        })?;
        let is_over = matches!(known.state, NodeState::Dead | NodeState::Left);
        let loss = known.loss.filter(|loss| loss.cause == LossCause::Unreachable);
        let silent = loss.map(|loss| Duration::from_nanos(loss.age_ns));
        (!is_over && !is_here).then_some(OutOfReach { silent })
    }
}
