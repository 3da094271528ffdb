//! The directory of names: which region has which name, and where its home is.
//!
//! Soft state at the first node.  When that node restarts, the homes tell it their names again; until all are met that
//! were there before, and have done so, questions are parked, since a name that seems free may not be.  What was lost before
//! is forgotten with the directory's life.

mod lost;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::ids::{Epoch, NodeId, NodeLife, RegionId};
use crate::members::Parting;
use crate::message::LostName;
use crate::names;

pub use lost::LOST_NAMES_MAX;

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
    /// Homes may still be found that nobody has met yet.
    meeting: bool,
    awaited: BTreeSet<NodeLife>,
    lost: lost::LostNames,
}

impl Directory {
    /// Whether questions can be answered.
    pub fn is_ready(&self) -> bool {
        self.awaited.is_empty() && !self.meeting
    }

    /// Whether all who were there before us have yet to be met.
    pub fn set_meeting(&mut self, meeting: bool) {
        self.meeting = meeting;
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
                self.lost.remove(name);
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

    /// A home is gone, and with it its regions; that their names were lost is remembered.
    /// Returns how many.
    pub fn lose_home(&mut self, home: NodeLife, parting: Parting) -> usize {
        self.awaited.remove(&home);
        let mut count = 0;
        for (name, _) in self.names.extract_if(.., |_, entry| entry.home == home) {
            // Locks and barriers are made anew by whoever needs them next.
            if !names::is_reserved(&name) {
                self.lost.insert(name, home, parting);
                count += 1;
            }
        }
        count
    }

    /// More is known by now of how a home ended.
    pub fn correct_loss(&mut self, home: NodeLife, parting: Parting) {
        self.lost.correct(home, parting);
    }

    /// A home whose process has exited was killed for its silence; whether that is news of any name.
    pub fn note_killed(&mut self, home: NodeLife) -> bool {
        self.lost.note_killed(home)
    }

    /// With which home a name was lost, and how that ended.
    pub fn find_lost(&self, name: &str) -> Option<(NodeLife, Parting)> {
        self.lost.find(name)
    }

    /// Lost names behind `after`, and whether there are more.
    pub fn list_lost(&self, after: Option<&str>, now_ns: u64) -> (Vec<LostName>, bool) {
        self.lost.list(after, now_ns)
    }

    /// Forgets that a name was lost; whether it was.
    pub fn forget_lost(&mut self, name: &str) -> bool {
        self.lost.remove(name)
    }

    /// Forgets what was lost with a node; whether that was anything.
    pub fn forget_lost_with(&mut self, node: NodeId) -> bool {
        self.lost.remove_node(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;
    use crate::message::LossCause;

    const PARTING: Parting = Parting { cause: LossCause::Exited, at_ns: 5 };

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
        directory.lose_home(life(1), PARTING);
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

    #[test]
    fn a_name_is_known_to_be_lost_until_it_is_taken_anew() {
        let mut directory = Directory::default();
        for name in ["a", "b", "\0lock"] {
            directory.claim(name, region(1), life(1), Epoch(0));
        }
        directory.lose_home(life(1), PARTING);
        assert_eq!((directory.find("a"), directory.find_lost("a")), (None, Some((life(1), PARTING))));
        assert_eq!(directory.find_lost("\0lock"), None);
        assert!(directory.claim("a", region(2), life(2), Epoch(0)));
        assert_eq!(directory.find_lost("a"), None);
        assert!(directory.forget_lost("b") && !directory.forget_lost("b"));
    }
}
