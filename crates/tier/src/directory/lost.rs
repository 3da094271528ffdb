//! Names whose regions were lost with their homes. They are kept to explain the loss to later requesters.
//!
//! A lost name stays until a request forgets or claims the name, or until 10,000 later losses have evicted it.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::NAMES_PER_ANSWER_MAX;
use crate::ids::{NodeId, NodeIncarnation};
use crate::members::NodeLoss;
use crate::message::LostName;

/// Maximum number of lost names: at 255 bytes each, about 3 MB.
pub const LOST_NAMES_MAX: usize = 10_000;

#[derive(Debug)]
struct Entry {
    home: NodeIncarnation,
    loss: NodeLoss,
    /// Position in the order of losses.
    serial: u64,
}

/// A bounded map of lost names.
#[derive(Debug, Default)]
pub(super) struct LostNames {
    names: BTreeMap<Box<str>, Entry>,
    by_serial: BTreeMap<u64, Box<str>>,
    serials: u64,
}

impl LostNames {
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the names that were lost with the selected homes.
    pub(super) fn names_of(
        &self,
        is_selected: impl Fn(NodeIncarnation) -> bool,
    ) -> impl Iterator<Item = Box<str>> {
        self.names.iter().filter(move |(_, entry)| is_selected(entry.home)).map(|(name, _)| name.clone())
    }

    /// Adds a name. Evicts the oldest name if the map is full.
    pub(super) fn insert(&mut self, name: Box<str>, home: NodeIncarnation, loss: NodeLoss) {
        self.remove(&name);
        if self.names.len() == LOST_NAMES_MAX
            && let Some((_, oldest)) = self.by_serial.pop_first()
        {
            self.names.remove(&oldest);
        }
        self.serials += 1;
        self.by_serial.insert(self.serials, name.clone());
        self.names.insert(name, Entry { home, loss, serial: self.serials });
    }

    /// Removes a name. Returns true if it was present.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let Some(entry) = self.names.remove(name) else { return false };
        self.by_serial.remove(&entry.serial);
        true
    }

    /// Forgets the names that were lost with any incarnation of a node. Returns true if there were such names.
    pub(super) fn remove_node(&mut self, node: NodeId) -> bool {
        let before = self.names.len();
        self.names.retain(|_, entry| entry.home.node != node);
        let names = &self.names;
        self.by_serial.retain(|_, name| names.contains_key(name));
        self.names.len() < before
    }

    /// Corrects the cause and time of a home's end.
    pub(super) fn correct(&mut self, home: NodeIncarnation, loss: NodeLoss) {
        for entry in self.names.values_mut().filter(|entry| entry.home == home) {
            entry.loss = loss;
        }
    }

    /// Records that a process was killed rather than exited by itself. Returns true if that changes any entry.
    pub(super) fn mark_killed(&mut self, home: NodeIncarnation) -> bool {
        let of_home = self.names.values_mut().filter(|entry| entry.home == home);
        of_home.fold(false, |is_changed, entry| entry.loss.mark_killed() | is_changed)
    }

    pub(super) fn find(&self, name: &str) -> Option<(NodeIncarnation, NodeLoss)> {
        self.names.get(name).map(|entry| (entry.home, entry.loss))
    }

    /// Returns the lost names after `after` in order, and true if more names follow.
    pub(super) fn list(&self, after: Option<&str>, now_ns: u64) -> (Vec<LostName>, bool) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.names.range::<str, _>((from, Bound::Unbounded));
        let names = rest
            .by_ref()
            .take(NAMES_PER_ANSWER_MAX)
            .map(|(name, entry)| LostName {
                name: name.to_string(),
                home: entry.home,
                loss: entry.loss.with_age(now_ns),
            })
            .collect();
        (names, rest.next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;
    use crate::message::LossCause;

    fn incarnation(node: u32) -> NodeIncarnation {
        NodeIncarnation { node: NodeId(node), id: Incarnation(9) }
    }

    const LOSS: NodeLoss = NodeLoss { cause: LossCause::Exited, at_ns: 5 };

    #[test]
    fn the_full_map_evicts_the_oldest_loss() {
        let mut lost = LostNames::default();
        for index in 0..LOST_NAMES_MAX {
            lost.insert(format!("{index}").into(), incarnation(1), LOSS);
        }
        lost.insert("0".into(), incarnation(2), LOSS);
        lost.insert("new".into(), incarnation(1), LOSS);
        assert_eq!(lost.find("0"), Some((incarnation(2), LOSS)));
        assert_eq!(lost.find("1"), None);
        assert!(lost.find("2").is_some() && lost.find("new").is_some());
        assert_eq!((lost.names.len(), lost.by_serial.len()), (LOST_NAMES_MAX, LOST_NAMES_MAX));
    }
}
