//! The directory that nodes keep by themselves: soft state at the first node.
//!
//! When that node restarts, the homes tell it their names again; until all are met that were there before, and have done
//! so, questions are parked, since a name that seems free may not be.  What was lost before is forgotten with the
//! directory's life.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use super::lost::LostNames;
use super::{Directory, DirectoryFigures, NAMES_PER_ANSWER_MAX, Said, Word};
use crate::ids::{Epoch, NodeId, NodeLife, RegionId, Requester};
use crate::members::Parting;
use crate::message::{ErrorReply, Reply, Request};
use crate::names;
use crate::news::News;

/// What a name stands for.
#[derive(Debug)]
struct Entry {
    region: RegionId,
    home: NodeLife,
    /// As of which change of the region this is its home.
    epoch: Epoch,
}

/// See the header of this file.
#[derive(Debug)]
pub struct Embedded {
    /// Whether this node is the one that answers.
    is_seat: bool,
    table: Table,
    /// Homes may still be found that nobody has met yet.
    meeting: bool,
    /// Those that were there before us and have yet to tell their names.
    awaited: BTreeSet<NodeLife>,
    /// What homes have told so far of all their names.
    telling: BTreeMap<NodeLife, BTreeSet<Box<str>>>,
    /// Questions that wait until all is known again.
    parked: Vec<(Requester, Request)>,
    said: VecDeque<Said>,
}

impl Embedded {
    /// The directory as node `me` takes part in it.
    pub fn new(me: NodeId) -> Embedded {
        Embedded {
            is_seat: me == NodeId::FIRST,
            table: Table::default(),
            meeting: false,
            awaited: BTreeSet::new(),
            telling: BTreeMap::new(),
            parked: Vec::new(),
            said: VecDeque::new(),
        }
    }

    /// Whether questions can be answered.
    fn is_ready(&self) -> bool {
        self.awaited.is_empty() && !self.meeting
    }

    fn unpark(&mut self, now_ns: u64) {
        if self.is_ready() {
            for (requester, question) in std::mem::take(&mut self.parked) {
                self.ask(now_ns, requester, question);
            }
        }
    }

    fn answer(&mut self, now_ns: u64, by: NodeLife, question: Request) -> Result<Reply, ErrorReply> {
        let table = &mut self.table;
        match question {
            Request::ClaimName { name, .. } if !names::is_name(&name) => Err(ErrorReply::Malformed),
            Request::ClaimName { name, region } => match table.claim(&name, region, by, Epoch(0)) {
                true => Ok(Reply::Done),
                false => Err(ErrorReply::NameTaken),
            },
            Request::ReleaseName { name, region } => {
                table.release(&name, region, by);
                Ok(Reply::Done)
            }
            Request::FindName { name } => match table.find(&name) {
                Some((region, home)) => Ok(Reply::Found { region, home: home.node }),
                None => Err(table.why_absent(&name, now_ns)),
            },
            Request::ListNames { after } => {
                let (names, more) = table.list(after.as_deref());
                Ok(Reply::Names { names, more })
            }
            Request::ListLost { after } => {
                let (names, more) = table.lost.list(after.as_deref(), now_ns);
                Ok(Reply::Lost { names, more })
            }
            Request::ForgetName { name } => match table.lost.remove(&name) {
                true => Ok(Reply::Done),
                false => Err(ErrorReply::NotFound),
            },
            Request::ForgetNode { node } => match table.lost.remove_node(node) {
                true => Ok(Reply::Done),
                false => Err(ErrorReply::UnknownNode(node)),
            },
            _ => Err(ErrorReply::Malformed),
        }
    }

    fn note_names(&mut self, from: NodeLife, names: Vec<(String, RegionId, Epoch)>) {
        for (name, region, epoch) in names.into_iter().filter(|(name, ..)| names::is_name(name)) {
            self.telling.entry(from).or_default().insert(name.as_str().into());
            if !self.table.claim(&name, region, from, epoch) {
                self.said.push_back(Said::NameLost { home: from, name, region });
            }
        }
    }

    fn part_from(&mut self, life: NodeLife, is_expected: bool, now_ns: u64) {
        // A name given to who does not hear of it would never be free again.
        self.parked.retain(|(requester, _)| requester.life != life);
        self.telling.remove(&life);
        if !is_expected {
            self.awaited.remove(&life);
        }
        self.unpark(now_ns);
    }
}

impl Directory for Embedded {
    fn seat(&self) -> NodeId {
        NodeId::FIRST
    }

    fn figures(&self) -> Option<DirectoryFigures> {
        self.is_seat.then(|| DirectoryFigures {
            names: self.table.names.len() as u64,
            lost: self.table.lost.len() as u64,
            waiting: self.parked.len() as u64,
            is_ready: self.is_ready(),
        })
    }

    fn ask(&mut self, now_ns: u64, requester: Requester, question: Request) {
        if self.is_seat && !self.is_ready() {
            return self.parked.push((requester, question));
        }
        let body = match self.is_seat {
            true => self.answer(now_ns, requester.life, question),
            false => Err(ErrorReply::Malformed),
        };
        self.said.push_back(Said::Answer { requester, body });
    }

    fn tell(&mut self, now_ns: u64, word: Word) {
        if !self.is_seat {
            return;
        }
        match word {
            Word::Meeting => self.meeting = true,
            Word::AllMet => {
                self.meeting = false;
                self.unpark(now_ns);
            }
            Word::Expected(life) => {
                self.awaited.insert(life);
            }
            Word::Names { from, names, done } => {
                self.note_names(from, names);
                if done {
                    // What it gave up while it could not say so is free.
                    let told = self.telling.remove(&from).unwrap_or_default();
                    self.table.names.retain(|name, entry| entry.home != from || told.contains(name));
                    self.awaited.remove(&from);
                    self.unpark(now_ns);
                }
            }
            Word::Moved { name, region, epoch, to } => self.table.hand_over(&name, region, to, epoch),
            Word::Parted { life, is_expected } => self.part_from(life, is_expected, now_ns),
            Word::Ended { life, parting } => {
                let count = self.table.lose_home(life, parting);
                if count > 0 {
                    self.said.push_back(Said::News(News::NamesLost { count, life }));
                }
                self.part_from(life, false, now_ns);
            }
            Word::Corrected { life, parting } => self.table.lost.correct(life, parting),
            Word::Killed { life, by, is_told } => {
                if self.table.lost.note_killed(life) && !is_told {
                    self.said.push_back(Said::News(News::KilledBy { life, by }));
                }
            }
            Word::Forgotten(node) => {
                self.table.lost.remove_node(node);
            }
        }
    }

    fn poll(&mut self) -> Option<Said> {
        self.said.pop_front()
    }
}

/// Names and their regions.
#[derive(Debug, Default)]
struct Table {
    names: BTreeMap<Box<str>, Entry>,
    lost: LostNames,
}

impl Table {
    /// Gives `name` to `region`, unless another region has it.  Where two nodes say that they are its home, the one
    /// that has seen more changes of it is right: the other has handed it over.
    fn claim(&mut self, name: &str, region: RegionId, home: NodeLife, epoch: Epoch) -> bool {
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

    /// Has `name` lead to the next home of `region`, by the word of the former one, unless the next one has released it.
    fn hand_over(&mut self, name: &str, region: RegionId, to: NodeLife, epoch: Epoch) {
        if self.names.contains_key(name) {
            self.claim(name, region, to, epoch);
        }
    }

    /// Takes `name` away from `region`, by the word of its home: a former one has nothing to say.
    fn release(&mut self, name: &str, region: RegionId, by: NodeLife) {
        if self.names.get(name).is_some_and(|entry| entry.region == region && entry.home == by) {
            self.names.remove(name);
        }
    }

    /// The region of that name, and its home.
    fn find(&self, name: &str) -> Option<(RegionId, NodeLife)> {
        self.names.get(name).map(|entry| (entry.region, entry.home))
    }

    /// Names behind `after`, and whether there are more.
    fn list(&self, after: Option<&str>) -> (Vec<(String, RegionId, NodeId)>, bool) {
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
    fn lose_home(&mut self, home: NodeLife, parting: Parting) -> usize {
        let mut count = 0;
        for (name, _) in self.names.extract_if(.., |_, entry| entry.home == home) {
            // Locks and barriers are made anew by the next session that needs them.
            if !names::is_reserved(&name) {
                self.lost.insert(name, home, parting);
                count += 1;
            }
        }
        count
    }

    /// A name that is not found is free, or was lost with its region.
    fn why_absent(&self, name: &str, now_ns: u64) -> ErrorReply {
        match self.lost.find(name) {
            Some((home, parting)) => ErrorReply::Lost { home, loss: parting.loss(now_ns) },
            None => ErrorReply::NotFound,
        }
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
        let mut table = Table::default();
        assert!(table.claim("a", region(1), life(1), Epoch(0)));
        assert!(!table.claim("a", region(2), life(1), Epoch(9)));
        table.release("a", region(2), life(1));
        table.release("a", region(1), life(2));
        assert_eq!(table.find("a"), Some((region(1), life(1))));
        table.release("a", region(1), life(1));
        assert!(table.claim("a", region(2), life(2), Epoch(0)));
    }

    #[test]
    fn a_region_that_moved_claims_its_name_for_the_new_home() {
        let mut table = Table::default();
        table.claim("a", region(1), life(1), Epoch(0));
        assert!(table.claim("a", region(1), life(2), Epoch(5)));
        // What the former home says later is old news.
        assert!(table.claim("a", region(1), life(1), Epoch(4)));
        table.lose_home(life(1), PARTING);
        assert_eq!(table.find("a"), Some((region(1), life(2))));
    }

    #[test]
    fn a_name_that_the_next_home_released_does_not_come_back_by_the_word_of_the_former_one() {
        let mut table = Table::default();
        table.claim("a", region(1), life(1), Epoch(0));
        table.hand_over("a", region(1), life(2), Epoch(5));
        assert_eq!(table.find("a"), Some((region(1), life(2))));
        table.release("a", region(1), life(2));
        table.hand_over("a", region(1), life(2), Epoch(5));
        assert_eq!(table.find("a"), None);
    }

    #[test]
    fn a_long_list_comes_in_parts_without_gaps() {
        let mut table = Table::default();
        let count = NAMES_PER_ANSWER_MAX + 5;
        for serial in 0..count {
            table.claim(&format!("{serial:06}"), region(serial as u64), life(1), Epoch(0));
        }
        let (first, more) = table.list(None);
        assert!(more);
        let (second, more) = table.list(first.last().map(|entry| entry.0.as_str()));
        assert!(!more);
        assert_eq!(first.len() + second.len(), count);
        assert!(first.last().unwrap().0 < second[0].0);
    }

    #[test]
    fn a_name_is_known_to_be_lost_until_it_is_taken_anew() {
        let mut table = Table::default();
        for name in ["a", "b", "\0lock"] {
            table.claim(name, region(1), life(1), Epoch(0));
        }
        table.lose_home(life(1), PARTING);
        assert_eq!((table.find("a"), table.lost.find("a")), (None, Some((life(1), PARTING))));
        assert_eq!(table.lost.find("\0lock"), None);
        assert!(table.claim("a", region(2), life(2), Epoch(0)));
        assert_eq!(table.lost.find("a"), None);
        assert!(table.lost.remove("b") && !table.lost.remove("b"));
    }
}
