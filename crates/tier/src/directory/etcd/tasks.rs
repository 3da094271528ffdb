//! What is under way to etcd, step by step: what each transaction is for, and what follows from what it says.

use std::collections::{BTreeMap, BTreeSet};

use super::records::{HomeRecord, NameRecord, parse_incarnation};
use super::store::{Compare, Pair, Step, Stored, Transaction};
use super::{EtcdDirectory, QUESTIONS_MAX, Why};
use crate::directory::{NAMES_PER_ANSWER_MAX, Said};
use crate::ids::{NodeId, NodeIncarnation, RegionId, Requester};
use crate::members::Parting;
use crate::message::{ErrorReply, Loss, LostName, Reply, Request};
use crate::names;

/// Most incarnations of homes that are looked at with a page of names.
const HOMES_PER_PAGE_MAX: usize = 10_000;
/// How many names are removed in one transaction: etcd takes 128 steps.
const SWEPT_AT_ONCE_MAX: usize = 100;
/// How often a question is asked anew because something has changed while it was asked.
pub(super) const TRIES_MAX: u8 = 8;

/// Behind all names of locks and barriers.
const LAST_RESERVED: &str = "\0\u{10ffff}";

/// Something under way.
#[derive(Clone, Debug)]
pub(super) enum Task {
    /// Somebody wants a name.
    Claim {
        requester: Requester,
        name: Box<str>,
        region: RegionId,
        tries: u8,
    },
    /// Another incarnation has that name: has it ended?
    Judge {
        requester: Requester,
        name: Box<str>,
        region: RegionId,
        taken: Pair,
        home: NodeIncarnation,
        tries: u8,
    },
    /// A name is given up; `exactly` as it was read, if it was not what it was thought to be.
    Release {
        requester: Option<Requester>,
        name: Box<str>,
        record: NameRecord,
        exactly: Option<u64>,
    },
    Find {
        requester: Requester,
        name: Box<str>,
    },
    /// A name is found, and it is asked what has become of its home.
    FindHome {
        requester: Requester,
        name: Box<str>,
        record: NameRecord,
    },
    /// Names, or those that were lost.
    List {
        requester: Requester,
        after: Option<String>,
        lost: bool,
    },
    /// Nobody misses a lost name any more.
    Forget {
        requester: Requester,
        name: Box<str>,
    },
    /// The name is there: was it lost?
    ForgetTaken {
        requester: Requester,
        taken: Pair,
        home: NodeIncarnation,
    },
    /// Nobody knows its home: does a node of that number keep its place?
    ForgetUnplaced {
        requester: Requester,
        taken: Pair,
        node: NodeId,
    },
    /// The same, when it is known that it was lost.
    Remove {
        requester: Requester,
    },
    Number {
        requester: Requester,
        tries: u8,
    },
    /// That number is given out: the next one is written.
    Take {
        requester: Requester,
        number: u32,
        tries: u8,
    },
    /// The key is written that fences our claims.
    Fence,
    /// Our own key says that we are over, by that one's word: does that one live?
    Believe {
        by: NodeIncarnation,
        found: Pair,
    },
    /// A name is cleared that may have been written for a region that there is not.
    Clear {
        name: Box<str>,
        record: NameRecord,
    },
    /// A region has a name, or a home, of which the store may not know.
    Update {
        name: Box<str>,
        record: NameRecord,
    },
    /// The same, when it is known what is there.
    Write {
        name: Box<str>,
        record: NameRecord,
    },
    /// Another region has the name: has its home ended?
    Contest {
        name: Box<str>,
        record: NameRecord,
        taken: Pair,
        home: NodeIncarnation,
    },
    /// An incarnation that has names is over.
    End {
        incarnation: NodeIncarnation,
    },
    /// Earlier incarnations of our number are over.
    Succeed,
    /// Is the store back?
    Look,
    /// We are over.
    SignOff,
    /// Names that were lost with any incarnation of a node are forgotten: those behind `after`.  Who has asked for that is told when all are.
    Sweep {
        node: NodeId,
        after: Option<String>,
        for_whom: Option<Requester>,
        /// Whether there was anything of it.
        was_known: bool,
    },
    /// Those of a page that are: of names behind `after`, up to `last` if there are more.
    SweepOut {
        node: NodeId,
        after: Option<String>,
        last: Option<String>,
        for_whom: Option<Requester>,
    },
    /// Of which incarnations do names tell?  Those found so far.
    Tidy {
        after: Option<String>,
        told_of: BTreeSet<NodeIncarnation>,
    },
    /// All of them are found: what is written of others that are over goes.
    TidyHomes {
        told_of: BTreeSet<NodeIncarnation>,
    },
    /// No number below is given out.
    Raise {
        least: u32,
    },
    /// The same, when it is known what is written.
    RaiseFrom {
        least: u32,
    },
    /// What is written without looking at what comes of it.
    Note(Transaction),
}

impl Task {
    /// What is asked; `None` if it is no question for a directory.
    pub(super) fn of(requester: Requester, question: Request) -> Option<Task> {
        let task = match question {
            Request::ClaimName { name, region } => {
                Task::Claim { requester, name: name.into(), region, tries: 0 }
            }
            Request::ReleaseName { name, region } => {
                let record = NameRecord { region, home: requester.incarnation, epoch: Default::default() };
                Task::Release { requester: Some(requester), name: name.into(), record, exactly: None }
            }
            Request::FindName { name } => Task::Find { requester, name: name.into() },
            Request::ListNames { after } => Task::List { requester, after, lost: false },
            Request::ListLost { after } => Task::List { requester, after, lost: true },
            Request::ForgetName { name } => Task::Forget { requester, name: name.into() },
            Request::TakeNumber => Task::Number { requester, tries: 0 },
            Request::ForgetNode { node } => {
                Task::Sweep { node, after: None, for_whom: Some(requester), was_known: false }
            }
            _ => return None,
        };
        Some(task)
    }

    /// Whether it is done until it is done, and nobody waits for it.
    pub(super) fn is_repair(&self) -> bool {
        match self {
            Task::Release { requester, .. } => requester.is_none(),
            Task::Sweep { for_whom, .. } | Task::SweepOut { for_whom, .. } => for_whom.is_none(),
            Task::Clear { .. }
            | Task::Update { .. }
            | Task::Write { .. }
            | Task::Contest { .. }
            | Task::End { .. }
            | Task::Succeed
            | Task::Believe { .. }
            | Task::Tidy { .. }
            | Task::TidyHomes { .. }
            | Task::Raise { .. }
            | Task::RaiseFrom { .. }
            | Task::Note(_) => true,
            _ => false,
        }
    }

    pub(super) fn updated_name(&self) -> Option<&str> {
        match self {
            Task::Update { name, .. } | Task::Write { name, .. } => Some(name),
            _ => None,
        }
    }

    pub(super) fn requester(&self) -> Option<Requester> {
        match self {
            Task::Claim { requester, .. }
            | Task::Judge { requester, .. }
            | Task::Find { requester, .. }
            | Task::FindHome { requester, .. }
            | Task::List { requester, .. }
            | Task::Forget { requester, .. }
            | Task::ForgetTaken { requester, .. }
            | Task::ForgetUnplaced { requester, .. }
            | Task::Remove { requester, .. }
            | Task::Number { requester, .. }
            | Task::Take { requester, .. } => Some(*requester),
            Task::Release { requester, .. } => *requester,
            Task::Sweep { for_whom, .. } | Task::SweepOut { for_whom, .. } => *for_whom,
            _ => None,
        }
    }
}

impl Transaction {
    pub(super) fn read(step: Step) -> Transaction {
        Transaction { then: vec![step], ..Transaction::default() }
    }

    pub(super) fn when(compares: Vec<Compare>, then: Vec<Step>) -> Transaction {
        Transaction { compares, then, otherwise: Vec::new() }
    }
}

pub(super) fn first(stored: &Stored, step: usize) -> Option<&Pair> {
    stored.read.get(step).and_then(|pairs| pairs.first())
}

impl EtcdDirectory {
    /// Sends the first transaction of a task.
    pub(super) fn begin(&mut self, task: Task) {
        let keys = &self.keys;
        let transaction = match &task {
            Task::Claim { requester, name, .. } => {
                if self.doubtful.contains_key(name) {
                    let requester = *requester;
                    return self.answer(requester, Err(ErrorReply::DirectoryOut));
                }
                return self.claim(task);
            }
            Task::Judge { home, .. } | Task::Contest { home, .. } | Task::ForgetTaken { home, .. } => {
                Transaction::read(Step::Get(keys.home(*home)))
            }
            Task::Believe { by, .. } => Transaction::read(Step::Get(keys.home(*by))),
            Task::ForgetUnplaced { node, .. } => Transaction::read(Step::Get(keys.place(*node))),
            Task::Release { name, record, exactly, .. } => {
                let key = keys.name(name);
                let ours = self.ours.get(name).filter(|(region, _)| *region == record.region);
                let epoch = ours.map_or(record.epoch, |(_, epoch)| *epoch);
                let as_known = NameRecord { epoch, ..*record }.emit();
                let compare = match exactly {
                    Some(written_at) => Compare::WrittenAt(key.clone(), *written_at),
                    None => Compare::Holds(key.clone(), as_known),
                };
                let then = vec![Step::Delete(key.clone())];
                let transaction =
                    Transaction { compares: vec![compare], then, otherwise: vec![Step::Get(key)] };
                if ours.is_some() {
                    self.ours.remove(name);
                }
                transaction
            }
            Task::Find { name, .. } | Task::Forget { name, .. } | Task::Update { name, .. } => {
                Transaction::read(Step::Get(keys.name(name)))
            }
            Task::FindHome { record, .. } => Transaction::read(Step::Get(keys.home(record.home))),
            Task::List { after, .. } => {
                let after = after.as_deref().map(|after| after.max(LAST_RESERVED)).unwrap_or(LAST_RESERVED);
                let names = Step::List {
                    prefix: keys.names(),
                    after: Some(keys.name(after)),
                    limit: NAMES_PER_ANSWER_MAX,
                };
                let homes = Step::List { prefix: keys.homes(), after: None, limit: HOMES_PER_PAGE_MAX };
                Transaction { then: vec![names, homes], ..Transaction::default() }
            }
            Task::Number { .. } => {
                let all = |prefix| Step::List { prefix, after: None, limit: HOMES_PER_PAGE_MAX };
                let then = vec![Step::Get(keys.numbers()), all(keys.homes()), all(keys.places())];
                Transaction { then, ..Transaction::default() }
            }
            Task::Raise { .. } => Transaction::read(Step::Get(keys.numbers())),
            Task::Fence => return self.begin_fencing(),
            Task::Clear { name, record } => {
                let key = keys.name(name);
                Transaction::when(vec![Compare::Holds(key.clone(), record.emit())], vec![Step::Delete(key)])
            }
            Task::End { incarnation } => {
                let Some(ended) = self.ended.get(incarnation).map(|parting| self.record_of(*parting)) else {
                    return;
                };
                let key = keys.home(*incarnation);
                let compare = match self.me.node {
                    NodeId::FIRST => Compare::Present(key.clone()),
                    _ => Compare::Holds(key.clone(), HomeRecord::Lives.emit()),
                };
                Transaction::when(vec![compare], vec![Step::Put(key, ended.emit())])
            }
            Task::Look => Transaction::read(Step::Get(keys.home(self.me))),
            Task::Succeed => Transaction::read(Step::List {
                prefix: format!("{}{}.", keys.homes(), self.me.node),
                after: None,
                limit: SWEPT_AT_ONCE_MAX,
            }),
            Task::Sweep { node, after, .. } => {
                let after = after.as_deref().map(|after| keys.name(after));
                let names = Step::List { prefix: keys.names(), after, limit: SWEPT_AT_ONCE_MAX };
                let homes = Step::List { prefix: keys.homes(), after: None, limit: HOMES_PER_PAGE_MAX };
                let place = Step::Get(keys.place(*node));
                Transaction { then: vec![names, homes, place], ..Transaction::default() }
            }
            Task::Tidy { after, .. } => {
                let after = after.as_deref().map(|after| keys.name(after));
                Transaction::read(Step::List { prefix: keys.names(), after, limit: NAMES_PER_ANSWER_MAX })
            }
            Task::TidyHomes { .. } => {
                let (prefix, limit) = (keys.homes(), HOMES_PER_PAGE_MAX);
                Transaction::read(Step::List { prefix, after: None, limit })
            }
            Task::Note(transaction) => transaction.clone(),
            // They are only sent when it is known what they write.
            Task::Remove { .. }
            | Task::Take { .. }
            | Task::Write { .. }
            | Task::RaiseFrom { .. }
            | Task::SignOff
            | Task::SweepOut { .. } => return,
        };
        self.send(task, transaction);
    }

    fn claim(&mut self, task: Task) {
        let Task::Claim { requester, name, region, .. } = &task else { return };
        let Some(fence) = self.fence else {
            match self.unfenced.len() < QUESTIONS_MAX {
                true => self.unfenced.push(task),
                false => self.answer(*requester, Err(ErrorReply::DirectoryOut)),
            }
            return self.begin_fencing();
        };
        let (key, home) = (self.keys.name(name), self.keys.home(self.me));
        let record = NameRecord { region: *region, home: self.me, epoch: Default::default() };
        let transaction = Transaction {
            compares: vec![Compare::Absent(key.clone()), Compare::WrittenAt(home.clone(), fence)],
            then: vec![Step::Put(key.clone(), record.emit())],
            otherwise: vec![Step::Get(key), Step::Get(home)],
        };
        self.send(task, transaction);
    }

    /// A transaction was carried out, by one branch or the other.
    pub(super) fn finish(&mut self, task: Task, stored: Stored) {
        match task {
            Task::Claim { requester, name, region, tries } => {
                self.finish_claim((requester, name, region, tries), &stored)
            }
            Task::Judge { requester, name, region, taken, home, tries } => {
                match self.ending_of(home, first(&stored, 0)).is_some() && !self.is_elsewhere(&name, &taken) {
                    true => self.take_over((requester, name, region, tries), &taken),
                    // It may have been freed, and the store forgotten that.
                    false => match NameRecord::parse(&taken.value).map(|record| record.region) {
                        Some(its) => {
                            let why = Why::Claim { requester, name: name.clone(), region, tries };
                            self.ask_home(home, &name, its, why)
                        }
                        None => self.answer(requester, Err(ErrorReply::NameTaken)),
                    },
                }
            }
            Task::Release { requester, name, record, .. } => {
                let still = first(&stored, 0).filter(|_| !stored.is_so);
                let held = still.and_then(|pair| Some((NameRecord::parse(&pair.value)?, pair.written_at)));
                match held.filter(|(held, _)| held.region == record.region && held.home == record.home) {
                    Some((held, at)) => {
                        self.begin(Task::Release { requester, name, record: held, exactly: Some(at) })
                    }
                    None => {
                        requester.into_iter().for_each(|requester| self.answer(requester, Ok(Reply::Done)))
                    }
                }
            }
            Task::Find { requester, name } => self.finish_find(requester, name, first(&stored, 0)),
            Task::FindHome { requester, name, record } => {
                let body = self.found(&name, record, first(&stored, 0));
                self.answer(requester, body);
            }
            Task::List { requester, lost, .. } => self.finish_list(requester, lost, &stored),
            Task::Forget { requester, .. } => {
                let Some(taken) = first(&stored, 0).cloned() else {
                    return self.answer(requester, Err(ErrorReply::NotFound));
                };
                match NameRecord::parse(&taken.value) {
                    Some(record) => self.begin(Task::ForgetTaken { requester, taken, home: record.home }),
                    // It leads nowhere.
                    None => self.remove(requester, &taken),
                }
            }
            Task::ForgetTaken { requester, taken, home } => {
                // Who lives has a key; whose number another has, and who has none, is not there.
                let is_none = first(&stored, 0).is_none() && self.has_other(home);
                let lost = self.ending_of(home, first(&stored, 0));
                let name = taken.key.strip_prefix(&self.keys.names()).map(str::to_owned);
                match (lost, NameRecord::parse(&taken.value), name) {
                    (None, Some(record), Some(name)) if !is_none => {
                        self.ask_home(home, &name, record.region, Why::Forget { requester, taken })
                    }
                    _ => self.remove(requester, &taken),
                }
            }
            Task::ForgetUnplaced { requester, taken, .. } => match first(&stored, 0) {
                None => self.remove(requester, &taken),
                Some(_) => self.answer(requester, Err(ErrorReply::NotFound)),
            },
            Task::Remove { requester } => {
                let body = if stored.is_so { Ok(Reply::Done) } else { Err(ErrorReply::NotFound) };
                self.answer(requester, body);
            }
            Task::Number { requester, tries } => {
                let number = self.next_number(first(&stored, 0)).max(self.behind_all(&stored));
                self.take_number(requester, number, first(&stored, 0), tries);
            }
            Task::Take { requester, number, .. } if stored.is_so => {
                self.answer(requester, Ok(Reply::Number(NodeId(number))))
            }
            Task::Take { requester, tries, .. } if tries < TRIES_MAX => {
                self.begin(Task::Number { requester, tries: tries + 1 })
            }
            Task::Take { requester, .. } => self.answer(requester, Err(ErrorReply::DirectoryOut)),
            Task::Fence => self.finish_fencing(&stored),
            Task::Believe { by, found } => self.believe(by, &found, first(&stored, 0)),
            Task::Clear { name, .. } => {
                self.doubtful.remove(&name);
            }
            Task::Update { name, record } => self.update(name, record, first(&stored, 0)),
            Task::Write { name, record } if !stored.is_so => self.repair(Task::Update { name, record }),
            Task::Contest { name, record, taken, home } => match self.ending_of(home, first(&stored, 0)) {
                Some(_) => self.write(name, record, Some(&taken)),
                None if record.home == self.me => {
                    self.ours.remove(&name);
                    let (home, region) = (self.me, record.region);
                    self.said.push_back(Said::NameLost { home, name: name.into(), region });
                }
                None => {}
            },
            Task::Succeed => self.succeed(&stored),
            Task::Sweep { node, after, for_whom, was_known } => {
                self.sweep((node, after, for_whom, was_known), &stored)
            }
            Task::SweepOut { node, last: Some(last), for_whom, .. } if stored.is_so => {
                self.begin(Task::Sweep { node, after: Some(last), for_whom, was_known: true })
            }
            Task::SweepOut { node, after, for_whom, .. } if !stored.is_so => {
                // One of them has been taken anew meanwhile.
                self.begin(Task::Sweep { node, after, for_whom, was_known: true })
            }
            Task::SweepOut { for_whom, .. } => self.end_sweep(for_whom, Ok(Reply::Done)),
            Task::Tidy { told_of, .. } => self.tidy(told_of, &stored),
            Task::TidyHomes { told_of } => self.tidy_homes(&told_of, &stored),
            Task::Raise { least } => self.raise(least, first(&stored, 0)),
            Task::RaiseFrom { least } if !stored.is_so => self.repair(Task::Raise { least }),
            Task::Write { .. }
            | Task::End { .. }
            | Task::RaiseFrom { .. }
            | Task::Look
            | Task::SignOff
            | Task::Note(_) => {}
        }
    }

    /// A transaction was not carried out, or nobody knows.
    pub(super) fn fail(&mut self, task: Task, may_be_done: bool) {
        if let Some(requester) = task.requester() {
            self.answer(requester, Err(ErrorReply::DirectoryOut));
        }
        match task {
            Task::Claim { requester: _, name, region, .. } if may_be_done => {
                let record = NameRecord { region, home: self.me, epoch: Default::default() };
                self.doubtful.insert(name, record);
                // Claims wait for the next one, and what was sent under this one is of no use any more.
                self.fence = None;
            }
            Task::Release { name, record, exactly, .. } => {
                self.repairs.push_back(Task::Release { requester: None, name, record, exactly });
            }
            Task::Fence | Task::Believe { .. } => {
                self.is_fencing = false;
                self.fence = None;
                self.refuse_unfenced();
            }
            Task::RaiseFrom { least } => self.repairs.push_back(Task::Raise { least }),
            // Who has asked for it was told so: the rest comes when it can.
            Task::Sweep { node, after, .. } | Task::SweepOut { node, after, .. } => {
                self.repairs.push_back(Task::Sweep { node, after, for_whom: None, was_known: true })
            }
            // It may have been written: what is there is looked at anew.
            Task::Write { name, record } | Task::Contest { name, record, .. } => {
                self.repairs.push_back(Task::Update { name, record });
            }
            task if task.is_repair() => self.repairs.push_back(task),
            _ => {}
        }
    }

    fn finish_claim(
        &mut self,
        (requester, name, region, tries): (Requester, Box<str>, RegionId, u8),
        stored: &Stored,
    ) {
        if stored.is_so {
            self.ours.insert(name, (region, Default::default()));
            return self.answer(requester, Ok(Reply::Done));
        }
        let (taken, home) = (first(stored, 0), first(stored, 1));
        let again = Task::Claim { requester, name: name.clone(), region, tries: tries + 1 };
        match taken {
            Some(taken) if NameRecord::parse(&taken.value).is_some_and(|record| record.region == region) => {
                self.ours.insert(name, (region, Default::default()));
                self.answer(requester, Ok(Reply::Done));
            }
            Some(taken) => match NameRecord::parse(&taken.value) {
                Some(record) => {
                    let (taken, home) = (taken.clone(), record.home);
                    self.begin(Task::Judge { requester, name, region, taken, home, tries })
                }
                None => self.refuse_damaged(requester, &taken.key),
            },
            None if tries == TRIES_MAX => self.answer(requester, Err(ErrorReply::DirectoryOut)),
            // The fence was written anew meanwhile, or somebody has removed it.
            None => {
                let is_as_written = home.map(|pair| pair.written_at) == self.fence;
                if !is_as_written && !self.is_fencing {
                    self.begin_fencing();
                    self.unfenced.push(again);
                } else {
                    self.begin(again);
                }
            }
        }
    }

    /// Whether the region of a name was handed over by the home that is written there.
    fn is_elsewhere(&self, name: &str, taken: &Pair) -> bool {
        NameRecord::parse(&taken.value).is_some_and(|record| self.may_have(name, record.region))
    }

    /// The name is one that was lost, and free for whom comes first.
    fn take_over(
        &mut self,
        (requester, name, region, tries): (Requester, Box<str>, RegionId, u8),
        taken: &Pair,
    ) {
        let Some(fence) = self.fence.filter(|_| tries < TRIES_MAX) else {
            return self.answer(requester, Err(ErrorReply::DirectoryOut));
        };
        let (key, home) = (self.keys.name(&name), self.keys.home(self.me));
        let record = NameRecord { region, home: self.me, epoch: Default::default() };
        let transaction = Transaction {
            compares: vec![
                Compare::WrittenAt(key.clone(), taken.written_at),
                Compare::WrittenAt(home.clone(), fence),
            ],
            then: vec![Step::Put(key.clone(), record.emit())],
            otherwise: vec![Step::Get(key), Step::Get(home)],
        };
        self.send(Task::Claim { requester, name, region, tries: tries + 1 }, transaction);
    }

    /// Nobody has written it who would know where it leads.
    fn refuse_damaged(&mut self, requester: Requester, key: &str) {
        self.note_damaged(key);
        self.answer(requester, Err(ErrorReply::NameDamaged { key: key.to_owned() }));
    }

    fn remove(&mut self, requester: Requester, taken: &Pair) {
        let transaction = self.removal_of(taken);
        self.send(Task::Remove { requester }, transaction);
    }

    /// How an incarnation has ended, if it has, as we have heard, or as is written in `home`.  What we alone know is written down.
    fn ending_of(&mut self, incarnation: NodeIncarnation, home: Option<&Pair>) -> Option<Loss> {
        if incarnation == self.me || self.paired.contains(&incarnation) {
            // Whatever is written of it.
            return None;
        }
        match home.and_then(|pair| HomeRecord::parse(&pair.value)) {
            Some(HomeRecord::Ended { cause, at_ns, by: Some(_) }) => {
                let now_ns = self.epoch_ns.saturating_add(self.now_ns);
                return Some(Loss { cause, age_ns: now_ns.saturating_sub(at_ns) });
            }
            // What a hand has written proves nothing.
            Some(HomeRecord::Ended { by: None, .. } | HomeRecord::Lives | HomeRecord::Awaited) | None => {}
        }
        let parting = *self.ended.get(&incarnation)?;
        // Of who comes and goes nobody could tell later whether it is to be believed.
        if home.is_some() && !self.me.node.is_ephemeral() {
            self.repairs.push_back(Task::End { incarnation });
        }
        Some(parting.loss(self.now_ns))
    }

    pub(super) fn record_of(&self, parting: Parting) -> HomeRecord {
        let at_ns = self.epoch_ns.saturating_add_signed(parting.at_ns);
        HomeRecord::Ended { cause: parting.cause, at_ns, by: Some(self.me) }
    }

    fn finish_find(&mut self, requester: Requester, name: Box<str>, found: Option<&Pair>) {
        let Some(pair) = found else { return self.answer(requester, Err(ErrorReply::NotFound)) };
        match NameRecord::parse(&pair.value) {
            // Nobody else knows better.
            Some(record) if record.home == self.me => {
                let body = Ok(Reply::Found { region: record.region, home: record.home.node });
                self.answer(requester, body);
            }
            Some(record) => self.begin(Task::FindHome { requester, name, record }),
            None => self.refuse_damaged(requester, &pair.key),
        }
    }

    fn found(&mut self, name: &str, record: NameRecord, home: Option<&Pair>) -> Result<Reply, ErrorReply> {
        match self.ending_of(record.home, home) {
            // Its next home is known here, and not yet there.
            Some(_) if self.may_have(name, record.region) => Err(ErrorReply::DirectoryOut),
            // Locks and barriers are made anew.
            Some(_) if names::is_reserved(name) => Err(ErrorReply::NotFound),
            Some(loss) => Err(ErrorReply::Lost { home: record.home, loss }),
            None => Ok(Reply::Found { region: record.region, home: record.home.node }),
        }
    }

    fn finish_list(&mut self, requester: Requester, lost: bool, stored: &Stored) {
        let prefix = self.keys.names();
        let pairs = stored.read.first().cloned().unwrap_or_default();
        let endings = self.endings(stored);
        let more = pairs.len() >= NAMES_PER_ANSWER_MAX;
        let last = pairs.last().and_then(|pair| pair.key.strip_prefix(&prefix)).map(str::to_owned);
        let (mut names, mut gone, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
        for pair in &pairs {
            let name = pair.key.strip_prefix(&prefix).unwrap_or_default().to_owned();
            let Some(record) = NameRecord::parse(&pair.value) else {
                damaged.push(name);
                continue;
            };
            match endings.get(&record.home).filter(|_| !self.may_have(&name, record.region)) {
                Some(loss) => gone.push(LostName { name, home: record.home, loss: *loss }),
                None => names.push((name, record.region, record.home.node)),
            }
        }
        let is_empty = if lost { gone.is_empty() } else { names.is_empty() && damaged.is_empty() };
        if more && is_empty {
            return self.begin(Task::List { requester, after: last, lost });
        }
        let body =
            if lost { Reply::Lost { names: gone, more } } else { Reply::Names { names, damaged, more } };
        self.answer(requester, Ok(body));
    }

    /// The incarnations that are over, of those that were read with names.
    fn endings(&mut self, stored: &Stored) -> BTreeMap<NodeIncarnation, Loss> {
        let prefix = self.keys.homes();
        let homes = stored.read.get(1).map(Vec::as_slice).unwrap_or_default();
        let mut endings = BTreeMap::new();
        for pair in homes {
            let incarnation = pair.key.strip_prefix(&prefix).and_then(parse_incarnation);
            if let Some(incarnation) = incarnation
                && let Some(loss) = self.ending_of(incarnation, Some(pair))
            {
                endings.insert(incarnation, loss);
            }
        }
        endings
    }

    fn next_number(&self, numbers: Option<&Pair>) -> u32 {
        let written = numbers.and_then(|pair| pair.value.parse().ok());
        written.unwrap_or(0).max(NodeId::FIRST.0 + 1)
    }

    /// Whether another incarnation of its node is heard.
    fn has_other(&self, incarnation: NodeIncarnation) -> bool {
        let mut heard = self.paired.iter().chain([&self.me]);
        heard.any(|other| other.node == incarnation.node && *other != incarnation)
    }

    /// The first number behind those of all nodes that stay and are told of: what is written may have been edited, removed or restored.
    fn behind_all(&self, stored: &Stored) -> u32 {
        let (homes, places) = (self.keys.homes(), self.keys.places());
        let told = stored.read.iter().skip(1).flatten().filter_map(|pair| {
            let home = pair.key.strip_prefix(&homes).and_then(parse_incarnation).map(|home| home.node);
            home.or_else(|| pair.key.strip_prefix(&places)?.parse().ok().map(NodeId))
        });
        let heard = self.paired.iter().map(|incarnation| incarnation.node).chain([self.me.node]);
        let stays = told.chain(heard).filter(|node| !node.is_ephemeral());
        stays.map(|node| node.0 + 1).max().unwrap_or(0)
    }

    fn take_number(&mut self, requester: Requester, number: u32, numbers: Option<&Pair>, tries: u8) {
        if NodeId(number).is_ephemeral() {
            return self.answer(requester, Err(ErrorReply::NoNumbers));
        }
        let transaction = self.numbers_up_to(number + 1, numbers);
        self.send(Task::Take { requester, number, tries }, transaction);
    }

    fn raise(&mut self, least: u32, numbers: Option<&Pair>) {
        if self.next_number(numbers) < least {
            let transaction = self.numbers_up_to(least, numbers);
            self.send(Task::RaiseFrom { least }, transaction);
        }
    }

    fn numbers_up_to(&self, next: u32, numbers: Option<&Pair>) -> Transaction {
        let key = self.keys.numbers();
        let compare = match numbers {
            Some(pair) => Compare::WrittenAt(key.clone(), pair.written_at),
            None => Compare::Absent(key.clone()),
        };
        Transaction::when(vec![compare], vec![Step::Put(key, next.to_string())])
    }

    /// Makes the store say what is so: of two homes of a region, the one that has seen more changes is right.
    fn update(&mut self, name: Box<str>, record: NameRecord, found: Option<&Pair>) {
        let is_ours = record.home == self.me;
        if is_ours && self.ours.get(&name).is_none_or(|(region, _)| *region != record.region) {
            // It was given up, or lost its name, meanwhile.
            return;
        }
        let Some(pair) = found else {
            // Who has handed a region over does not know whether its next home has freed it.
            if is_ours {
                self.write(name, record, None);
            }
            return;
        };
        match NameRecord::parse(&pair.value) {
            Some(there) if there.region == record.region && there.epoch > record.epoch => {}
            Some(there) if there == record => {}
            Some(there) if there.region != record.region => {
                let (taken, home) = (pair.clone(), there.home);
                self.begin(Task::Contest { name, record, taken, home });
            }
            // Or somebody has written what is no record.
            _ => self.write(name, record, Some(pair)),
        }
    }

    fn write(&mut self, name: Box<str>, record: NameRecord, found: Option<&Pair>) {
        let key = self.keys.name(&name);
        let compare = match found {
            Some(pair) => Compare::WrittenAt(key.clone(), pair.written_at),
            None => Compare::Absent(key.clone()),
        };
        let transaction = Transaction::when(vec![compare], vec![Step::Put(key, record.emit())]);
        self.send(Task::Write { name, record }, transaction);
    }

    pub(super) fn removal_of(&self, pair: &Pair) -> Transaction {
        let compare = Compare::WrittenAt(pair.key.clone(), pair.written_at);
        Transaction::when(vec![compare], vec![Step::Delete(pair.key.clone())])
    }

    /// What is over goes, and all of a node that keeps no place there: one that does may live where nobody hears it.
    fn sweep(
        &mut self,
        (node, after, for_whom, was_known): (NodeId, Option<String>, Option<Requester>, bool),
        stored: &Stored,
    ) {
        let endings = self.endings(stored);
        let pairs = stored.read.first().map(Vec::as_slice).unwrap_or_default();
        let is_nowhere = first(stored, 2).is_none();
        let is_over = |home: &NodeIncarnation| {
            endings.contains_key(home) || is_nowhere && *home != self.me && !self.paired.contains(home)
        };
        let is_its = |pair: &&Pair| {
            let record = NameRecord::parse(&pair.value);
            record.is_some_and(|record| record.home.node == node && is_over(&record.home))
        };
        let lost: Vec<&Pair> = pairs.iter().filter(is_its).collect();
        let last = pairs.last().filter(|_| pairs.len() >= SWEPT_AT_ONCE_MAX);
        let last = last.and_then(|pair| pair.key.strip_prefix(&self.keys.names())).map(str::to_owned);
        match last {
            _ if !lost.is_empty() => {
                let compare = |pair: &&Pair| Compare::WrittenAt(pair.key.clone(), pair.written_at);
                let compares = lost.iter().map(compare).collect();
                let then = lost.iter().map(|pair| Step::Delete(pair.key.clone())).collect();
                let task = Task::SweepOut { node, after, last, for_whom };
                self.send(task, Transaction::when(compares, then));
            }
            Some(last) => self.begin(Task::Sweep { node, after: Some(last), for_whom, was_known }),
            None if was_known => self.end_sweep(for_whom, Ok(Reply::Done)),
            None => self.end_sweep(for_whom, Err(ErrorReply::UnknownNode(node))),
        }
    }

    fn end_sweep(&mut self, for_whom: Option<Requester>, body: Result<Reply, ErrorReply>) {
        if let Some(requester) = for_whom {
            self.answer(requester, body);
        }
    }
}
