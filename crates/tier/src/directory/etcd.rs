//! The directory of names in etcd: each node asks it by itself, and keeps what must not be lost until it is written.
//!
//! ```text
//!   engine ── ask, tell ──► EtcdDirectory ── Said::Store(transaction) ──► driver ──► etcd
//!          ◄── answers ───                ◄── handle_stored ─────────────
//! ```
//!
//! Sans-IO: the driver carries transactions, in whatever order, and says of each once what has come of it.  A name is given by a transaction that
//! wants it absent, and the fence of this node as it was when this was asked.  Where it is not known what has come of one, the fence is written
//! anew, so that it fails if it comes later; then the name is cleared if it was written.  Nothing else can leave a name behind that no region has.

mod fence;
mod mover;
mod records;
mod store;
mod tasks;
mod tidying;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::records::Keys;
use self::tasks::Task;
use super::{Directory, DirectoryFigures, HomeSays, Said, Word};
use crate::ids::{Epoch, NodeId, NodeIncarnation, RegionId, Requester};
use crate::members::Parting;
use crate::message::{ErrorReply, LossCause, Reply, Request};
use crate::names;
use crate::news::News;

pub(super) use mover::{Mover, Next, Told};
pub(super) use records::NameRecord;

pub use mover::MoveJob;
pub use store::{Compare, Pair, Step, StoreFailure, Stored, Transaction};

/// Most transactions under way of which nobody waits: they fill what was lost in by and by.
const REPAIRS_UNDER_WAY_MAX: usize = 64;
/// Most questions under way; more are refused.
const QUESTIONS_MAX: usize = 4096;
/// Most incarnations that are remembered as over.
const ENDED_MAX: usize = 4096;
/// Of so many keys at most people are told that they are not as they should be.
const DAMAGED_MAX: usize = 64;
/// Most characters of what somebody has written that people are shown.
const SHOWN_MAX: usize = 80;
/// How often it is tried whether a store is back.
const LOOK_AGAIN_NS: u64 = 500_000_000;
/// How often the fence is written anew: a store that was restored to what it was before the last time does not have it so.
const FENCE_ANEW_NS: u64 = 10_000_000_000;

/// How often node 0 removes what is written of incarnations of which no name tells any more; sooner where one has just ended, or has written
/// nothing since the last time.
const TIDY_NS: u64 = 600_000_000_000;
const TIDY_SOON_NS: u64 = 70_000_000_000;
/// Names of locks and barriers that a node which leaves removes.
const SIGNED_OFF_MAX: usize = 1000;

/// One node's part of the directory.  See the header of this file.
#[derive(Debug)]
pub struct EtcdDirectory {
    me: NodeIncarnation,
    keys: Keys,
    /// The time of day, in ns since 1970, when the clock that tells us the time was at 0.
    epoch_ns: u64,
    now_ns: u64,
    last_id: u64,
    under_way: BTreeMap<u64, Sent>,
    repairs_under_way: usize,
    /// What is to be done until it is done.
    repairs: VecDeque<Task>,
    /// At which revision the key that fences our claims was written; `None` until it is.
    fence: Option<u64>,
    /// Whether it is being written.
    is_fencing: bool,
    /// Whether earlier incarnations of our number were ended, and which these are.
    has_succeeded: bool,
    before: Option<BTreeSet<NodeIncarnation>>,
    /// Claims that wait for it.
    unfenced: Vec<Task>,
    /// Names of regions of this node, and as of which change: what a store that has lost them is told.
    ours: BTreeMap<Box<str>, (RegionId, Epoch)>,
    /// Names that we may have written, or may yet write, for regions that there are not.
    doubtful: BTreeMap<Box<str>, NameRecord>,
    /// Incarnations that are over, and how they ended; the oldest are forgotten.
    ended: BTreeMap<NodeIncarnation, Parting>,
    ended_order: VecDeque<NodeIncarnation>,
    /// Who is heard now: whatever the store says of them, they live.
    paired: BTreeSet<NodeIncarnation>,
    /// Homes that were asked whether a region has its name.
    asked: BTreeMap<u64, Asked>,
    /// Keys of which people were told that nobody understands them.
    damaged: BTreeSet<String>,
    /// Who has ended us, as people were told.
    ended_by: Option<NodeIncarnation>,
    /// Whether the store does not answer; whether it has no room, and can be read.
    is_out: bool,
    is_full: bool,
    /// What people were told of that, until they are told that it is over.
    told: Option<Trouble>,
    /// When it is looked at next: at once in the beginning.
    look_again_ns: u64,
    /// When node 0 tidies up next.
    tidy_ns: u64,
    /// Keys of incarnations without names that nobody heard, and when they were written: who lives writes anew until the next time.
    unrenewed: BTreeMap<NodeIncarnation, u64>,
    is_leaving: bool,
    cluster: Option<u64>,
    revision: u64,
    said: VecDeque<Said>,
}

/// Why a home is asked.
#[derive(Debug)]
struct Asked {
    home: NodeIncarnation,
    why: Why,
}

#[derive(Debug)]
enum Why {
    /// Somebody wants the name.
    Claim { requester: Requester, name: Box<str>, region: RegionId, tries: u8 },
    /// Somebody wants it to be free.
    Forget { requester: Requester, taken: Pair },
}

#[derive(Debug)]
struct Sent {
    task: Task,
    /// The revision of the store that was known then: what is lower was restored.
    revision: u64,
    /// Whether it takes room if all is as it should be, and if not.
    writes: [bool; 2],
}

/// What is wrong with the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    Out,
    Full,
}

impl EtcdDirectory {
    /// The part of node `me` in the directory below `prefix`; `epoch_ns` is the time of day when its clock was at 0.
    pub fn new(me: NodeIncarnation, prefix: &str, epoch_ns: u64) -> EtcdDirectory {
        let mut directory = EtcdDirectory {
            me,
            keys: Keys::new(prefix),
            epoch_ns,
            now_ns: 0,
            last_id: 0,
            under_way: BTreeMap::new(),
            repairs_under_way: 0,
            repairs: VecDeque::new(),
            fence: None,
            is_fencing: false,
            has_succeeded: false,
            before: None,
            unfenced: Vec::new(),
            ours: BTreeMap::new(),
            doubtful: BTreeMap::new(),
            ended: BTreeMap::new(),
            ended_order: VecDeque::new(),
            paired: BTreeSet::new(),
            asked: BTreeMap::new(),
            damaged: BTreeSet::new(),
            ended_by: None,
            is_out: false,
            is_full: false,
            told: None,
            look_again_ns: 0,
            tidy_ns: 0,
            unrenewed: BTreeMap::new(),
            is_leaving: false,
            cluster: None,
            revision: 0,
            said: VecDeque::new(),
        };
        if !me.node.is_ephemeral() {
            directory.repairs.push_back(Task::Raise { least: me.node.0 + 1 });
        }
        directory
    }

    /// Sends a transaction.
    fn send(&mut self, task: Task, transaction: Transaction) {
        self.last_id += 1;
        self.repairs_under_way += usize::from(task.is_repair());
        let writes = [true, false].map(|is_so| transaction.writes(is_so));
        self.under_way.insert(self.last_id, Sent { task, revision: self.revision, writes });
        self.said.push_back(Said::Store { id: self.last_id, transaction });
    }

    fn answer(&mut self, requester: Requester, body: Result<Reply, ErrorReply>) {
        self.said.push_back(Said::Answer { requester, body });
    }

    /// Begins what is to be done until it is done, as much of it as may be under way.
    fn go_on(&mut self) {
        while !self.lacks_store()
            && self.repairs_under_way < REPAIRS_UNDER_WAY_MAX
            && let Some(task) = self.repairs.pop_front()
        {
            self.begin(task);
        }
    }

    /// What was heard of the store itself.
    fn note_store(&mut self, sent_revision: u64, has_written: bool, stored: &Stored) {
        self.is_out = false;
        self.is_full &= !has_written;
        let is_over = match self.told {
            Some(Trouble::Out) => true,
            // That it can be read is no news.
            Some(Trouble::Full) => has_written,
            None => false,
        };
        if is_over {
            self.told = None;
            self.look_again_ns = self.now_ns.saturating_add(FENCE_ANEW_NS);
            // It may have been restored.
            self.tell_all_of_ours();
            self.said.push_back(Said::News(News::EtcdBack));
        }
        match self.cluster.replace(stored.cluster) {
            Some(was) if was != stored.cluster => {
                self.said.push_back(Said::News(News::EtcdOther { was, is: stored.cluster }));
                self.tell_anew(stored.revision);
            }
            _ if stored.revision < sent_revision => self.note_restored(stored.revision),
            _ => {}
        }
        self.revision = self.revision.max(stored.revision);
    }

    /// The store has forgotten what was written.
    fn note_restored(&mut self, revision: u64) {
        self.said.push_back(Said::News(News::EtcdRestored { was: self.revision, is: revision }));
        self.tell_anew(revision);
    }

    /// Nothing is known of what the store has.
    fn tell_anew(&mut self, revision: u64) {
        self.revision = revision;
        self.fence = None;
        // It may say again of those who are over that they live.
        self.has_succeeded = false;
        let ended: Vec<Task> = self.ended.keys().map(|ended| Task::End { incarnation: *ended }).collect();
        self.repairs.extend(ended);
        if !self.me.node.is_ephemeral() {
            self.repairs.push_back(Task::Raise { least: self.me.node.0 + 1 });
        }
        self.tell_all_of_ours();
    }

    /// Tells people once of a key that holds what no node has written.
    fn note_damaged(&mut self, key: &str) {
        if self.damaged.len() < DAMAGED_MAX && self.damaged.insert(key.to_owned()) {
            self.said.push_back(Said::News(News::EtcdDamaged { key: key.to_owned() }));
        }
    }

    /// A store that has lost what was written is told anew.
    fn tell_all_of_ours(&mut self) {
        let ours = self.ours.iter();
        let updates = ours.map(|(name, (region, epoch))| Task::Update {
            name: name.clone(),
            record: NameRecord { region: *region, home: self.me, epoch: *epoch },
        });
        let updates: Vec<Task> = updates.collect();
        let known: BTreeSet<&str> = self.repairs.iter().filter_map(Task::updated_name).collect();
        let news: Vec<Task> = updates
            .into_iter()
            .filter(|task| task.updated_name().is_some_and(|name| !known.contains(name)))
            .collect();
        self.repairs.extend(news);
    }

    fn note_failure(&mut self, is_full: bool, reason: String) {
        let trouble = if is_full { Trouble::Full } else { Trouble::Out };
        self.is_out |= !is_full;
        self.is_full |= is_full;
        if self.told.replace(trouble) != Some(trouble) {
            self.said.push_back(Said::News(News::EtcdOut { reason }));
        }
        self.look_again_ns = self.now_ns.saturating_add(LOOK_AGAIN_NS);
    }

    fn note_ended(&mut self, incarnation: NodeIncarnation, parting: Parting) {
        if self.ended.insert(incarnation, parting).is_none() {
            self.ended_order.push_back(incarnation);
            if self.ended_order.len() > ENDED_MAX
                && let Some(oldest) = self.ended_order.pop_front()
            {
                self.ended.remove(&oldest);
            }
        }
        // Of nodes that stay, the first to hear it writes it down, and node 0 what it hears later; of applications, which come and go
        // with every command, node 0 alone, or who finds a name of such an incarnation.
        if self.me.node == NodeId::FIRST || !self.me.node.is_ephemeral() && !incarnation.node.is_ephemeral() {
            self.repair(Task::End { incarnation });
            self.tidy_soon();
        }
    }

    fn tidy_soon(&mut self) {
        self.tidy_ns = self.tidy_ns.min(self.now_ns.saturating_add(TIDY_SOON_NS));
    }

    /// Whether our claims are, or are about to be, fenced by a key: who comes and goes and names nothing writes none.
    fn needs_fence(&self) -> bool {
        let has_names = !self.ours.is_empty() || !self.doubtful.is_empty() || !self.unfenced.is_empty();
        !self.me.node.is_ephemeral() || self.fence.is_some() || has_names
    }

    /// Asks a home whether a region of it has its name.
    fn ask_home(&mut self, home: NodeIncarnation, name: &str, region: RegionId, why: Why) {
        self.last_id += 1;
        self.asked.insert(self.last_id, Asked { home, why });
        self.said.push_back(Said::AskHome { id: self.last_id, home, name: name.to_owned(), region });
    }

    /// Whether a region of this node has that name, or may have it yet.
    fn may_have(&self, name: &str, region: RegionId) -> bool {
        let is_of = |task: &Task| match task {
            Task::Claim { name: other, region: its, .. } | Task::Judge { name: other, region: its, .. } => {
                **other == *name && *its == region
            }
            // A region that was handed over: its next home has the name, and may not have written that yet.
            Task::Update { name: other, record }
            | Task::Write { name: other, record }
            | Task::Contest { name: other, record, .. }
            | Task::Clear { name: other, record } => **other == *name && record.region == region,
            _ => false,
        };
        let is_asked = |asked: &Asked| matches!(&asked.why, Why::Claim { name: other, region: its, .. } if **other == *name && *its == region);
        self.ours.get(name).is_some_and(|(ours, _)| *ours == region)
            || self.doubtful.get(name).is_some_and(|record| record.region == region)
            || self.unfenced.iter().chain(&self.repairs).any(is_of)
            || self.under_way.values().any(|sent| is_of(&sent.task))
            || self.asked.values().any(is_asked)
    }

    fn repair(&mut self, task: Task) {
        self.repairs.push_back(task);
        self.go_on();
    }
}

impl Directory for EtcdDirectory {
    /// Of membership, node 0 is the seat as ever.
    fn seat(&self) -> NodeId {
        NodeId::FIRST
    }

    fn is_outside(&self) -> bool {
        true
    }

    fn lacks_store(&self) -> bool {
        self.is_out || self.is_full
    }

    fn figures(&self) -> Option<DirectoryFigures> {
        Some(DirectoryFigures {
            names: self.ours.len() as u64,
            lost: None,
            waiting: self.under_way.len() as u64,
            is_ready: !self.lacks_store(),
        })
    }

    fn ask(&mut self, now_ns: u64, requester: Requester, question: Request) {
        self.now_ns = now_ns;
        if matches!(&question, Request::ClaimName { name, .. } if !names::is_name(name)) {
            return self.answer(requester, Err(ErrorReply::Malformed));
        }
        // What is given up must not be taken for given: it is tried until it is so.
        let is_release = matches!(question, Request::ReleaseName { .. });
        let is_read = matches!(
            question,
            Request::FindName { .. } | Request::ListNames { .. } | Request::ListLost { .. }
        );
        let is_out = self.is_out || self.is_full && !is_read;
        if !is_release && (is_out || self.under_way.len() >= QUESTIONS_MAX) {
            return self.answer(requester, Err(ErrorReply::DirectoryOut));
        }
        match Task::of(requester, question) {
            Some(task) => self.begin(task),
            None => self.answer(requester, Err(ErrorReply::Malformed)),
        }
    }

    fn tell(&mut self, now_ns: u64, word: Word) {
        self.now_ns = now_ns;
        match word {
            Word::Names { from, names, .. } => {
                for (name, region, epoch) in names.into_iter().filter(|(name, ..)| names::is_name(name)) {
                    if from == self.me {
                        self.ours.insert(name.as_str().into(), (region, epoch));
                    }
                    let record = NameRecord { region, home: from, epoch };
                    self.repairs.push_back(Task::Update { name: name.into(), record });
                }
                self.go_on();
            }
            Word::Moved { name, region, epoch, to } => {
                if to != self.me && self.ours.get(name.as_str()).is_some_and(|(ours, _)| *ours == region) {
                    // It is for the next home to say what it is called.
                    self.ours.remove(name.as_str());
                }
                let record = NameRecord { region, home: to, epoch };
                self.repairs.push_back(Task::Update { name: name.into(), record });
                self.go_on();
            }
            Word::Ended { incarnation, parting } | Word::Corrected { incarnation, parting } => {
                self.paired.remove(&incarnation);
                self.note_ended(incarnation, parting)
            }
            Word::Killed { incarnation, by, is_told } => {
                if let Some(parting) = self.ended.get_mut(&incarnation)
                    && parting.note_killed()
                {
                    let parting = *parting;
                    self.note_ended(incarnation, parting);
                    if !is_told {
                        self.said.push_back(Said::News(News::KilledBy { incarnation, by }));
                    }
                }
            }
            Word::Forgotten { node, requester } => {
                self.begin(Task::Sweep { node, after: None, for_whom: Some(requester), was_known: true })
            }
            Word::Paired(incarnation) => {
                self.paired.insert(incarnation);
            }
            Word::Parted { incarnation, .. } => {
                self.paired.remove(&incarnation);
            }
            // Nobody waits for homes here: what they hold is written down.
            Word::Meeting | Word::AllMet | Word::Expected(_) => {}
        }
    }

    fn handle_stored(&mut self, now_ns: u64, id: u64, result: Result<Stored, StoreFailure>) {
        self.now_ns = now_ns;
        let Some(Sent { task, revision, writes }) = self.under_way.remove(&id) else { return };
        self.repairs_under_way -= usize::from(task.is_repair());
        match result {
            Ok(stored) => {
                self.note_store(revision, writes[usize::from(!stored.is_so)], &stored);
                self.finish(task, stored);
            }
            Err(StoreFailure { may_be_done, is_full, reason }) => {
                self.note_failure(is_full, reason);
                self.fail(task, may_be_done);
            }
        }
        self.go_on();
    }

    fn free_left_over(&mut self, now_ns: u64, requester: Requester, name: &str, region: RegionId) {
        self.now_ns = now_ns;
        if self.lacks_store() || self.under_way.len() >= QUESTIONS_MAX {
            return self.answer(requester, Err(ErrorReply::DirectoryOut));
        }
        if self.may_have(name, region) {
            return self.answer(requester, Err(ErrorReply::NameTaken));
        }
        let record = NameRecord { region, home: self.me, epoch: Epoch::default() };
        self.begin(Task::Release { requester: Some(requester), name: name.into(), record, exactly: None });
    }

    fn handle_home_says(&mut self, now_ns: u64, id: u64, says: HomeSays) {
        self.now_ns = now_ns;
        let Some(Asked { home, why }) = self.asked.remove(&id) else { return };
        match (why, says) {
            (Why::Claim { requester, name, region, tries }, HomeSays::Freed) if tries < tasks::TRIES_MAX => {
                self.begin(Task::Claim { requester, name, region, tries: tries + 1 })
            }
            (Why::Claim { requester, .. }, _) => self.answer(requester, Err(ErrorReply::NameTaken)),
            (Why::Forget { requester, .. }, HomeSays::Freed) => self.answer(requester, Ok(Reply::Done)),
            (Why::Forget { requester, taken }, HomeSays::Unknown) => {
                self.begin(Task::ForgetUnplaced { requester, taken, node: home.node })
            }
            (Why::Forget { requester, .. }, HomeSays::Has | HomeSays::Silent) => {
                self.answer(requester, Err(ErrorReply::NotFound))
            }
        }
        self.go_on();
    }

    fn begin_move(&mut self, _now_ns: u64, _job: MoveJob) {
        self.said.push_back(Said::NotMoved { reason: "they are in etcd already".to_owned() });
    }

    /// Who leaves with regions is lost with them, and says so by itself.
    fn sign_off(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.is_leaving = true;
        if self.is_out || !self.needs_fence() {
            return;
        }
        let ours = std::mem::take(&mut self.ours);
        let (reserved, lost): (Vec<_>, Vec<_>) =
            ours.into_iter().partition(|(name, _)| names::is_reserved(name));
        for (name, (region, epoch)) in reserved.into_iter().take(SIGNED_OFF_MAX) {
            let record = NameRecord { region, home: self.me, epoch };
            self.begin(Task::Clear { name, record });
        }
        let key = self.keys.home(self.me);
        let parting = Parting { cause: LossCause::Left, at_ns: i64::try_from(now_ns).unwrap_or(i64::MAX) };
        let step = match lost.is_empty() && self.doubtful.is_empty() {
            true => Step::Delete(key.clone()),
            false => Step::Put(key.clone(), self.record_of(parting).emit()),
        };
        let transaction =
            Transaction { compares: vec![Compare::Present(key)], then: vec![step], otherwise: Vec::new() };
        self.send(Task::SignOff, transaction);
    }

    fn is_signed_off(&self) -> bool {
        let is_of_it = |task: &Task| matches!(task, Task::SignOff | Task::Clear { .. });
        self.is_out || !self.under_way.values().any(|sent| is_of_it(&sent.task))
    }

    fn poll_timeout(&self) -> u64 {
        if self.is_leaving { u64::MAX } else { self.look_again_ns }
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if self.look_again_ns > now_ns || self.is_leaving {
            return;
        }
        self.look_again_ns =
            now_ns.saturating_add(if self.lacks_store() { LOOK_AGAIN_NS } else { FENCE_ANEW_NS });
        // Where the store was away, this is tried first, and the rest follows when it comes about.
        match self.needs_fence() {
            true => self.begin_fencing(),
            false if self.is_out => self.begin(Task::Look),
            // The next to be written is the trial.
            false => self.is_full = false,
        }
        if self.me.node == NodeId::FIRST && !self.lacks_store() && self.tidy_ns <= now_ns {
            self.tidy_ns = now_ns.saturating_add(TIDY_NS);
            self.repair(Task::Tidy { after: None, told_of: BTreeSet::new() });
        }
    }

    fn poll(&mut self) -> Option<Said> {
        self.said.pop_front()
    }
}
