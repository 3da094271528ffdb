//! The directory of names: which region has which name, and where its home is.
//!
//! Soft state at the first node.  When that node restarts, the homes tell it their names again; until those that
//! announced some have done so, questions are parked, since a name that seems free may not be.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::ids::{Epoch, NodeId, NodeLife, RegionId};
use crate::names;

/// Most names in one answer, so that it stays a small message.
pub const NAMES_PER_ANSWER_MAX: usize = 1024;

/// What a name stands for.
#[derive(Debug)]
struct Entry {
    region: RegionId,
    home: NodeLife,
    /// As of which change of the region this is its home.
    epoch: Epoch,
}

/// Names and their regions.
#[derive(Debug, Default)]
pub struct Directory {
    names: BTreeMap<Box<str>, Entry>,
    awaited: BTreeSet<NodeLife>,
}

impl Directory {
    /// Whether questions can be answered.
    pub fn is_ready(&self) -> bool {
        self.awaited.is_empty()
    }

    /// This node will tell us names.
    pub fn await_names_of(&mut self, node: NodeLife) {
        self.awaited.insert(node);
    }

    /// It has told us all, or will not.
    pub fn stop_awaiting(&mut self, node: NodeLife) {
        self.awaited.remove(&node);
    }

    /// Gives `name` to `region`, unless another region has it.  Where two nodes say that they are its home, the one
    /// that has seen more changes of it is right: the other has handed it over.
    pub fn claim(&mut self, name: &str, region: RegionId, home: NodeLife, epoch: Epoch) -> bool {
        match self.names.get(name) {
            Some(entry) if entry.region != region => return false,
            Some(entry) if entry.epoch > epoch => {}
            _ => {
                self.names.insert(name.into(), Entry { region, home, epoch });
            }
        }
        true
    }

    /// Takes `name` away from `region`, by the word of its home: a former one has nothing to say.
    pub fn release(&mut self, name: &str, region: RegionId, by: NodeLife) {
        if self.names.get(name).is_some_and(|entry| entry.region == region && entry.home == by) {
            self.names.remove(name);
        }
    }

    /// The region of that name, and its home.
    pub fn find(&self, name: &str) -> Option<(RegionId, NodeLife)> {
        self.names.get(name).map(|entry| (entry.region, entry.home))
    }

    /// Names behind `after`, and whether there are more.
    pub fn list(&self, after: Option<&str>) -> (Vec<(String, RegionId, NodeId)>, bool) {
        // Names of locks and barriers come first, and are nobody's business.
        let from = after.map_or(Bound::Included(names::FIRST_FREE), Bound::Excluded);
        let mut rest = self.names.range::<str, _>((from, Bound::Unbounded));
        let names = rest
            .by_ref()
            .take(NAMES_PER_ANSWER_MAX)
            .map(|(name, entry)| (name.to_string(), entry.region, entry.home.node))
            .collect();
        (names, rest.next().is_some())
    }

    /// Forgets the regions of a home that is gone.
    pub fn forget_home(&mut self, home: NodeLife) {
        self.names.retain(|_, entry| entry.home != home);
        self.awaited.remove(&home);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;

    fn region(serial: u64) -> RegionId {
        RegionId { origin: Incarnation(1), serial }
    }

    fn life(node: u32) -> NodeLife {
        NodeLife { node: NodeId(node), incarnation: Incarnation(9) }
    }

    #[test]
    fn a_name_has_one_region_until_that_region_releases_it() {
        let mut directory = Directory::default();
        assert!(directory.claim("a", region(1), life(1), Epoch(0)));
        assert!(!directory.claim("a", region(2), life(1), Epoch(9)));
        directory.release("a", region(2), life(1));
        directory.release("a", region(1), life(2));
        assert_eq!(directory.find("a"), Some((region(1), life(1))));
        directory.release("a", region(1), life(1));
        assert!(directory.claim("a", region(2), life(2), Epoch(0)));
    }

    #[test]
    fn a_region_that_moved_claims_its_name_for_the_new_home() {
        let mut directory = Directory::default();
        directory.claim("a", region(1), life(1), Epoch(0));
        assert!(directory.claim("a", region(1), life(2), Epoch(5)));
        // What the former home says later is old news.
        assert!(directory.claim("a", region(1), life(1), Epoch(4)));
        directory.forget_home(life(1));
        assert_eq!(directory.find("a"), Some((region(1), life(2))));
    }

    #[test]
    fn a_long_list_comes_in_parts_without_gaps() {
        let mut directory = Directory::default();
        let count = NAMES_PER_ANSWER_MAX + 5;
        for serial in 0..count {
            directory.claim(&format!("{serial:06}"), region(serial as u64), life(1), Epoch(0));
        }
        let (first, more) = directory.list(None);
        assert!(more);
        let (second, more) = directory.list(first.last().map(|entry| entry.0.as_str()));
        assert!(!more);
        assert_eq!(first.len() + second.len(), count);
        assert!(first.last().unwrap().0 < second[0].0);
    }
}
