//! The directory that nodes keep by themselves: soft state at the first node.
//!
//! When that node restarts, the homes tell it their names again; until all are met that were there before, and have done
//! so, questions are parked, since a name that seems free may not be.  What was lost before is forgotten with the
//! directory's incarnation.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use super::etcd::{MoveJob, Mover, NameRecord, Next, StoreFailure, Stored, Told, Transaction};
use super::lost::LostNames;
use super::{Directory, DirectoryFigures, NAMES_PER_ANSWER_MAX, Said, Word};
use crate::ids::{Epoch, NodeId, NodeIncarnation, RegionId, Requester};
use crate::members::Parting;
use crate::message::{ErrorReply, Reply, Request};
use crate::names;
use crate::news::News;

/// What a name stands for.
#[derive(Debug)]
struct Entry {
    region: RegionId,
    home: NodeIncarnation,
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
    awaited: BTreeSet<NodeIncarnation>,
    /// What homes have told so far of all their names.
    telling: BTreeMap<NodeIncarnation, BTreeSet<Box<str>>>,
    /// Questions that wait until all is known again, or all names are elsewhere.
    parked: Vec<(Requester, Request)>,
    mover: Option<Move>,
    last_id: u64,
    said: VecDeque<Said>,
}

/// The names are being brought elsewhere.
#[derive(Debug)]
struct Move {
    mover: Mover,
    /// The transaction that is under way.
    id: u64,
    /// What was told while questions wait.
    words: Vec<Word>,
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
            mover: None,
            last_id: 0,
            said: VecDeque::new(),
        }
    }

    /// Whether all names are known.
    fn is_complete(&self) -> bool {
        self.awaited.is_empty() && !self.meeting
    }

    /// Whether questions can be answered.
    fn is_ready(&self) -> bool {
        self.is_complete() && self.mover.as_ref().is_none_or(|going| !going.mover.is_frozen())
    }

    fn send(&mut self, transaction: Transaction) {
        self.last_id += 1;
        if let Some(going) = &mut self.mover {
            going.id = self.last_id;
        }
        self.said.push_back(Said::Store { id: self.last_id, transaction });
    }

    /// Names stay here, and who waits is answered.
    fn end_move(&mut self, now_ns: u64, reason: String) {
        self.mover = None;
        self.table.changed = None;
        self.said.push_back(Said::NotMoved { reason });
        self.unpark(now_ns);
    }

    /// Tells who moves the names what has changed.
    fn note_changes(&mut self) {
        if let (Some(going), Some(changed)) = (&mut self.mover, &mut self.table.changed) {
            changed.drain(..).for_each(|name| going.mover.note_changed(&name));
        }
    }

    fn unpark(&mut self, now_ns: u64) {
        if self.is_ready() {
            for (requester, question) in std::mem::take(&mut self.parked) {
                self.ask(now_ns, requester, question);
            }
        }
    }

    fn answer(&mut self, now_ns: u64, by: NodeIncarnation, question: Request) -> Result<Reply, ErrorReply> {
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
                Ok(Reply::Names { names, damaged: Vec::new(), more })
            }
            Request::ListLost { after } => {
                let (names, more) = table.lost.list(after.as_deref(), now_ns);
                Ok(Reply::Lost { names, more })
            }
            Request::ForgetName { name } => match table.forget_name(&name) {
                true => Ok(Reply::Done),
                false => Err(ErrorReply::NotFound),
            },
            Request::ForgetNode { node } => match table.forget_node(node) {
                true => Ok(Reply::Done),
                false => Err(ErrorReply::UnknownNode(node)),
            },
            _ => Err(ErrorReply::Malformed),
        }
    }

    fn note_names(&mut self, from: NodeIncarnation, names: Vec<(String, RegionId, Epoch)>) {
        for (name, region, epoch) in names.into_iter().filter(|(name, ..)| names::is_name(name)) {
            self.telling.entry(from).or_default().insert(name.as_str().into());
            if !self.table.claim(&name, region, from, epoch) {
                self.said.push_back(Said::NameLost { home: from, name, region });
            }
        }
    }

    fn part_from(&mut self, incarnation: NodeIncarnation, is_expected: bool, now_ns: u64) {
        // A name given to who does not hear of it would never be free again.
        self.parked.retain(|(requester, _)| requester.incarnation != incarnation);
        self.telling.remove(&incarnation);
        if !is_expected {
            self.awaited.remove(&incarnation);
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
            lost: Some(self.table.lost.len() as u64),
            waiting: self.parked.len() as u64,
            is_ready: self.is_ready(),
        })
    }

    fn ask(&mut self, now_ns: u64, requester: Requester, question: Request) {
        if self.is_seat && !self.is_ready() {
            return self.parked.push((requester, question));
        }
        let body = match self.is_seat {
            true => self.answer(now_ns, requester.incarnation, question),
            false => Err(ErrorReply::Malformed),
        };
        self.note_changes();
        self.said.push_back(Said::Answer { requester, body });
    }

    fn tell(&mut self, now_ns: u64, word: Word) {
        if !self.is_seat {
            return;
        }
        if let Some(going) = self.mover.as_mut().filter(|going| going.mover.is_frozen()) {
            going.words.push(word.clone());
        }
        match word {
            Word::Meeting => self.meeting = true,
            Word::AllMet => {
                self.meeting = false;
                self.unpark(now_ns);
            }
            Word::Expected(incarnation) => {
                self.awaited.insert(incarnation);
            }
            Word::Paired(_) => {}
            Word::Names { from, names, done } => {
                self.note_names(from, names);
                if done {
                    // What it gave up while it could not say so is free.
                    let told = self.telling.remove(&from).unwrap_or_default();
                    let given_up = self
                        .table
                        .names
                        .extract_if(.., |name, entry| entry.home == from && !told.contains(name));
                    let given_up: Vec<Box<str>> = given_up.map(|(name, _)| name).collect();
                    given_up.iter().for_each(|name| self.table.note_changed(name));
                    self.awaited.remove(&from);
                    self.unpark(now_ns);
                }
            }
            Word::Moved { name, region, epoch, to } => self.table.hand_over(&name, region, to, epoch),
            Word::Parted { incarnation, is_expected } => self.part_from(incarnation, is_expected, now_ns),
            Word::Ended { incarnation, parting } => {
                let count = self.table.lose_home(incarnation, parting);
                if count > 0 {
                    self.said.push_back(Said::News(News::NamesLost { count, incarnation }));
                }
                self.part_from(incarnation, false, now_ns);
            }
            Word::Corrected { incarnation, parting } => {
                self.table.lost.correct(incarnation, parting);
                self.table.note_changed_with(incarnation);
            }
            Word::Killed { incarnation, by, is_told } => {
                self.table.note_changed_with(incarnation);
                if self.table.lost.note_killed(incarnation) && !is_told {
                    self.said.push_back(Said::News(News::KilledBy { incarnation, by }));
                }
            }
            Word::Forgotten { node, requester } => {
                self.table.forget_node(node);
                self.said.push_back(Said::Answer { requester, body: Ok(Reply::Done) });
            }
        }
        self.note_changes();
    }

    fn begin_move(&mut self, now_ns: u64, job: MoveJob) {
        if !self.is_seat || !self.is_complete() {
            let reason = "not all nodes that were there have told their names yet; try it again".to_owned();
            return self.end_move(now_ns, reason);
        }
        let mover = Mover::new(job, self.table.all());
        let first = mover.begin();
        self.mover = Some(Move { mover, id: 0, words: Vec::new() });
        self.table.changed = Some(Vec::new());
        self.send(first);
    }

    fn handle_stored(&mut self, now_ns: u64, id: u64, result: Result<Stored, StoreFailure>) {
        let Some(going) = self.mover.as_mut().filter(|going| going.id == id) else { return };
        let next = match result {
            Ok(stored) => going.mover.handle_stored(&stored, |name| self.table.told(name)),
            Err(failure) => Next::Failed(failure.reason),
        };
        match next {
            Next::Send(transaction) => self.send(transaction),
            Next::Failed(reason) => self.end_move(now_ns, reason),
            Next::Moved => {
                let (names, lost) = (self.table.names.len() as u64, self.table.lost.len() as u64);
                self.said.push_back(Said::Moved { names, lost });
            }
        }
    }

    fn take_rest(&mut self) -> (Vec<Requester>, Vec<Word>) {
        let parked = std::mem::take(&mut self.parked).into_iter().map(|(requester, _)| requester).collect();
        (parked, self.mover.take().map(|going| going.words).unwrap_or_default())
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
    /// Names that are not what they were, while somebody wants to know.
    changed: Option<Vec<Box<str>>>,
}

impl Table {
    /// Gives `name` to `region`, unless another region has it.  Where two nodes say that they are its home, the one
    /// that has seen more changes of it is right: the other has handed it over.
    fn claim(&mut self, name: &str, region: RegionId, home: NodeIncarnation, epoch: Epoch) -> bool {
        match self.names.get(name) {
            Some(entry) if entry.region != region => return false,
            Some(entry) if entry.epoch > epoch => {}
            _ => {
                self.note_changed(name);
                self.lost.remove(name);
                self.names.insert(name.into(), Entry { region, home, epoch });
            }
        }
        true
    }

    /// Has `name` lead to the next home of `region`, by the word of the former one, unless the next one has released it.
    fn hand_over(&mut self, name: &str, region: RegionId, to: NodeIncarnation, epoch: Epoch) {
        if self.names.contains_key(name) {
            self.claim(name, region, to, epoch);
        }
    }

    /// Takes `name` away from `region`, by the word of its home: a former one has nothing to say.
    fn release(&mut self, name: &str, region: RegionId, by: NodeIncarnation) {
        if self.names.get(name).is_some_and(|entry| entry.region == region && entry.home == by) {
            self.names.remove(name);
            self.note_changed(name);
        }
    }

    fn note_changed(&mut self, name: &str) {
        if let Some(changed) = &mut self.changed {
            changed.push(name.into());
        }
    }

    /// More is known of what was lost with a home.
    fn note_changed_with(&mut self, home: NodeIncarnation) {
        if let Some(changed) = &mut self.changed {
            changed.extend(self.lost.names_of(|of| of == home));
        }
    }

    /// All names, and those that were lost.
    fn all(&self) -> BTreeSet<Box<str>> {
        self.names.keys().cloned().chain(self.lost.names_of(|_| true)).collect()
    }

    /// What a name is.
    fn told(&self, name: &str) -> Told {
        match (self.names.get(name), self.lost.find(name)) {
            (Some(Entry { region, home, epoch }), _) => {
                Told::Leads(NameRecord { region: *region, home: *home, epoch: *epoch })
            }
            (None, Some((home, parting))) => Told::Lost(home, parting),
            (None, None) => Told::Free,
        }
    }

    fn forget_name(&mut self, name: &str) -> bool {
        let was_lost = self.lost.remove(name);
        if was_lost {
            self.note_changed(name);
        }
        was_lost
    }

    fn forget_node(&mut self, node: NodeId) -> bool {
        if let Some(changed) = &mut self.changed {
            changed.extend(self.lost.names_of(|of| of.node == node));
        }
        self.lost.remove_node(node)
    }

    /// The region of that name, and its home.
    fn find(&self, name: &str) -> Option<(RegionId, NodeIncarnation)> {
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
    fn lose_home(&mut self, home: NodeIncarnation, parting: Parting) -> usize {
        let mut count = 0;
        for (name, _) in self.names.extract_if(.., |_, entry| entry.home == home) {
            // Locks and barriers are made anew by the next session that needs them.
            if let Some(changed) = &mut self.changed {
                changed.push(name.clone());
            }
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

    fn incarnation(node: u32) -> NodeIncarnation {
        NodeIncarnation { node: NodeId(node), id: Incarnation(9) }
    }

    #[test]
    fn a_name_has_one_region_until_that_region_releases_it() {
        let mut table = Table::default();
        assert!(table.claim("a", region(1), incarnation(1), Epoch(0)));
        assert!(!table.claim("a", region(2), incarnation(1), Epoch(9)));
        table.release("a", region(2), incarnation(1));
        table.release("a", region(1), incarnation(2));
        assert_eq!(table.find("a"), Some((region(1), incarnation(1))));
        table.release("a", region(1), incarnation(1));
        assert!(table.claim("a", region(2), incarnation(2), Epoch(0)));
    }

    #[test]
    fn a_region_that_moved_claims_its_name_for_the_new_home() {
        let mut table = Table::default();
        table.claim("a", region(1), incarnation(1), Epoch(0));
        assert!(table.claim("a", region(1), incarnation(2), Epoch(5)));
        // What the former home says later is old news.
        assert!(table.claim("a", region(1), incarnation(1), Epoch(4)));
        table.lose_home(incarnation(1), PARTING);
        assert_eq!(table.find("a"), Some((region(1), incarnation(2))));
    }

    #[test]
    fn a_name_that_the_next_home_released_does_not_come_back_by_the_word_of_the_former_one() {
        let mut table = Table::default();
        table.claim("a", region(1), incarnation(1), Epoch(0));
        table.hand_over("a", region(1), incarnation(2), Epoch(5));
        assert_eq!(table.find("a"), Some((region(1), incarnation(2))));
        table.release("a", region(1), incarnation(2));
        table.hand_over("a", region(1), incarnation(2), Epoch(5));
        assert_eq!(table.find("a"), None);
    }

    #[test]
    fn a_long_list_comes_in_parts_without_gaps() {
        let mut table = Table::default();
        let count = NAMES_PER_ANSWER_MAX + 5;
        for serial in 0..count {
            table.claim(&format!("{serial:06}"), region(serial as u64), incarnation(1), Epoch(0));
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
            table.claim(name, region(1), incarnation(1), Epoch(0));
        }
        table.lose_home(incarnation(1), PARTING);
        assert_eq!((table.find("a"), table.lost.find("a")), (None, Some((incarnation(1), PARTING))));
        assert_eq!(table.lost.find("\0lock"), None);
        assert!(table.claim("a", region(2), incarnation(2), Epoch(0)));
        assert_eq!(table.lost.find("a"), None);
        assert!(table.lost.remove("b") && !table.lost.remove("b"));
    }
}
