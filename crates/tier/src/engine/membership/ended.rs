//! The incarnations that have ended. A node never pairs with an ended incarnation again.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::{NodeId, NodeIncarnation};

/// Ended incarnations kept per permanent node. They are needed because an older connection may come up late, and
/// because a node that was forgotten while alive may return.
const ENDED_OF_NODE_MAX: usize = 8;
/// Ended incarnations kept for all ephemeral nodes together. Numbers of ephemeral nodes are never reissued.
const ENDED_EPHEMERAL_MAX: usize = 256;

/// Ended incarnations, per node, the most recent last.
#[derive(Debug, Default)]
pub(super) struct Ended {
    permanent: BTreeMap<NodeId, VecDeque<NodeIncarnation>>,
    ephemeral: VecDeque<NodeIncarnation>,
}

impl Ended {
    pub(super) fn of(&self, node: NodeId) -> Option<&VecDeque<NodeIncarnation>> {
        if node.is_ephemeral() { Some(&self.ephemeral) } else { self.permanent.get(&node) }
    }

    pub(super) fn contains(&self, incarnation: NodeIncarnation) -> bool {
        self.of(incarnation.node).is_some_and(|ended| ended.contains(&incarnation))
    }

    pub(super) fn insert(&mut self, incarnation: NodeIncarnation) {
        if self.contains(incarnation) {
            return;
        }
        let (ended, max) = match incarnation.node.is_ephemeral() {
            true => (&mut self.ephemeral, ENDED_EPHEMERAL_MAX),
            false => (self.permanent.entry(incarnation.node).or_default(), ENDED_OF_NODE_MAX),
        };
        if ended.len() == max {
            ended.pop_front();
        }
        ended.push_back(incarnation);
    }

    pub(super) fn all(&self) -> Vec<NodeIncarnation> {
        self.permanent.values().flatten().chain(&self.ephemeral).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;

    #[test]
    fn ephemeral_ends_do_not_evict_permanent_ones() {
        let incarnation = |node, id| NodeIncarnation { node: NodeId(node), id: Incarnation(id) };
        let mut ended = Ended::default();
        ended.insert(incarnation(3, 1));
        let ephemeral = |number: u32| incarnation(NodeId::EPHEMERAL_MIN.0 + number, 1);
        (0..10_000).for_each(|number| ended.insert(ephemeral(number)));
        assert!(
            ended.contains(incarnation(3, 1))
                && ended.contains(ephemeral(9_999))
                && !ended.contains(ephemeral(9))
        );
        (2..=100).for_each(|id| ended.insert(incarnation(3, id)));
        assert!(!ended.contains(incarnation(3, 1)) && ended.contains(incarnation(3, 100)));
        assert_eq!(ended.all().len(), ENDED_OF_NODE_MAX + ENDED_EPHEMERAL_MAX);
    }
}
