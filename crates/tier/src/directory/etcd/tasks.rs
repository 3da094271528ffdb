//! What is under way to etcd, step by step: what each transaction is for, and what follows from what it says.

use std::collections::BTreeMap;

use super::records::{HomeRecord, NameRecord, parse_life};
use super::store::{Compare, Pair, Step, Stored, Transaction};
use super::{EtcdDirectory, QUESTIONS_MAX};
use crate::directory::{NAMES_PER_ANSWER_MAX, Said};
use crate::ids::{NodeId, NodeLife, RegionId, Requester};
use crate::members::Parting;
use crate::message::{ErrorReply, Loss, LossCause, LostName, Reply, Request};
use crate::names;

/// Most lives of homes that are looked at with a page of names.
const HOMES_PER_PAGE_MAX: usize = 10_000;
/// How many names are removed in one transaction: etcd takes 128 steps.
const SWEPT_AT_ONCE_MAX: usize = 100;
/// How often a question is asked anew because something has changed while it was asked.
const TRIES_MAX: u8 = 8;

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
    /// Another life has that name: has it ended?
    Judge {
        requester: Requester,
        name: Box<str>,
        region: RegionId,
        taken: Pair,
        home: NodeLife,
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
        home: NodeLife,
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
        home: NodeLife,
    },
    /// A life that has names is over.
    End {
        life: NodeLife,
    },
    /// Earlier lives of our number are over.
    Succeed,
    /// Names that were lost with any life of a node are forgotten.
    Sweep {
        node: NodeId,
        after: Option<String>,
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
                let record = NameRecord { region, home: requester.life, epoch: Default::default() };
                Task::Release { requester: Some(requester), name: name.into(), record, exactly: None }
            }
            Request::FindName { name } => Task::Find { requester, name: name.into() },
            Request::ListNames { after } => Task::List { requester, after, lost: false },
            Request::ListLost { after } => Task::List { requester, after, lost: true },
            Request::ForgetName { name } => Task::Forget { requester, name: name.into() },
            Request::TakeNumber => Task::Number { requester, tries: 0 },
            _ => return None,
        };
        Some(task)
    }

    /// Whether it is done until it is done, and nobody waits for it.
    pub(super) fn is_repair(&self) -> bool {
        match self {
            Task::Release { requester, .. } => requester.is_none(),
            Task::Clear { .. }
            | Task::Update { .. }
            | Task::Write { .. }
            | Task::Contest { .. }
            | Task::End { .. }
            | Task::Succeed
            | Task::Sweep { .. }
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

    fn requester(&self) -> Option<Requester> {
        match self {
            Task::Claim { requester, .. }
            | Task::Judge { requester, .. }
            | Task::Find { requester, .. }
            | Task::FindHome { requester, .. }
            | Task::List { requester, .. }
            | Task::Forget { requester, .. }
            | Task::ForgetTaken { requester, .. }
            | Task::Remove { requester, .. }
            | Task::Number { requester, .. }
            | Task::Take { requester, .. } => Some(*requester),
            Task::Release { requester, .. } => *requester,
            _ => None,
        }
    }
}

impl Transaction {
    fn read(step: Step) -> Transaction {
        Transaction { then: vec![step], ..Transaction::default() }
    }

    fn when(compares: Vec<Compare>, then: Vec<Step>) -> Transaction {
        Transaction { compares, then, otherwise: Vec::new() }
    }
}

/// A name that was read, and the home of the region that has it.
fn taken_by(found: Option<&Pair>) -> Option<(Pair, NodeLife)> {
    let pair = found?;
    Some((pair.clone(), NameRecord::parse(&pair.value)?.home))
}

fn first(stored: &Stored, step: usize) -> Option<&Pair> {
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
            Task::Number { .. } | Task::Raise { .. } => Transaction::read(Step::Get(keys.numbers())),
            Task::Fence => return self.begin_fencing(),
            Task::Clear { name, record } => {
                let key = keys.name(name);
                Transaction::when(vec![Compare::Holds(key.clone(), record.emit())], vec![Step::Delete(key)])
            }
            Task::End { life } => {
                let Some(ended) = self.ended.get(life).map(|parting| self.record_of(*parting)) else {
                    return;
                };
                let key = keys.home(*life);
                let compare = match self.me.node {
                    NodeId::FIRST => Compare::Present(key.clone()),
                    _ => Compare::Holds(key.clone(), HomeRecord::Lives.emit()),
                };
                Transaction::when(vec![compare], vec![Step::Put(key, ended.emit())])
            }
            Task::Succeed => Transaction::read(Step::List {
                prefix: format!("{}{}.", keys.homes(), self.me.node),
                after: None,
                limit: SWEPT_AT_ONCE_MAX,
            }),
            Task::Sweep { after, .. } => {
                let after = after.as_deref().map(|after| keys.name(after));
                let names = Step::List { prefix: keys.names(), after, limit: SWEPT_AT_ONCE_MAX };
                let homes = Step::List { prefix: keys.homes(), after: None, limit: HOMES_PER_PAGE_MAX };
                Transaction { then: vec![names, homes], ..Transaction::default() }
            }
            Task::Note(transaction) => transaction.clone(),
            // They are only sent when it is known what they write.
            Task::Remove { .. } | Task::Take { .. } | Task::Write { .. } | Task::RaiseFrom { .. } => return,
        };
        self.send(task, transaction);
    }

    /// Writes the key that fences our claims anew: those that were sent before fail if they come later.
    pub(super) fn begin_fencing(&mut self) {
        if !std::mem::replace(&mut self.is_fencing, true) {
            let (key, lives) = (self.keys.home(self.me), HomeRecord::Lives.emit());
            // Where it is not as we have written it, the store has forgotten that, and what came after it.
            let compares = vec![match self.fence {
                Some(written_at) => Compare::WrittenAt(key.clone(), written_at),
                None => Compare::Holds(key.clone(), lives.clone()),
            }];
            let (then, otherwise) = (vec![Step::Put(key.clone(), lives)], vec![Step::Get(key)]);
            self.send(Task::Fence, Transaction { compares, then, otherwise });
        }
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
                match self.ending_of(home, first(&stored, 0)).is_some() {
                    true => self.take_over((requester, name, region, tries), &taken),
                    false => self.answer(requester, Err(ErrorReply::NameTaken)),
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
            Task::Forget { requester, .. } => match taken_by(first(&stored, 0)) {
                Some((taken, home)) => self.begin(Task::ForgetTaken { requester, taken, home }),
                None => self.answer(requester, Err(ErrorReply::NotFound)),
            },
            Task::ForgetTaken { requester, taken, home } => match self.ending_of(home, first(&stored, 0)) {
                Some(_) => {
                    let transaction = self.removal_of(&taken);
                    self.send(Task::Remove { requester }, transaction);
                }
                None => self.answer(requester, Err(ErrorReply::NotFound)),
            },
            Task::Remove { requester } => {
                let body = if stored.is_so { Ok(Reply::Done) } else { Err(ErrorReply::NotFound) };
                self.answer(requester, body);
            }
            Task::Number { requester, tries } => {
                let number = self.next_number(first(&stored, 0));
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
            Task::Sweep { node, .. } => self.sweep(node, &stored),
            Task::Raise { least } => self.raise(least, first(&stored, 0)),
            Task::RaiseFrom { least } if !stored.is_so => self.repair(Task::Raise { least }),
            Task::Write { .. } | Task::End { .. } | Task::RaiseFrom { .. } | Task::Note(_) => {}
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
            Task::Fence => {
                self.is_fencing = false;
                self.fence = None;
                self.refuse_unfenced();
            }
            Task::RaiseFrom { least } => self.repairs.push_back(Task::Raise { least }),
            // It may have been written: what is there is looked at anew.
            Task::Write { name, record } | Task::Contest { name, record, .. } => {
                self.repairs.push_back(Task::Update { name, record });
            }
            task if task.is_repair() => self.repairs.push_back(task),
            _ => {}
        }
    }

    fn finish_fencing(&mut self, stored: &Stored) {
        let found = first(stored, 0).filter(|_| !stored.is_so);
        if !stored.is_so && self.fence.is_some() {
            self.note_restored(stored.revision);
        }
        if !stored.is_so && found.is_none() {
            let (key, lives) = (self.keys.home(self.me), HomeRecord::Lives.emit());
            let (compares, then) = (vec![Compare::Absent(key.clone())], vec![Step::Put(key.clone(), lives)]);
            return self.send(Task::Fence, Transaction { compares, then, otherwise: vec![Step::Get(key)] });
        }
        self.is_fencing = false;
        if found.is_some_and(|pair| HomeRecord::parse(&pair.value) != Some(HomeRecord::Lives)) {
            // Others have taken us for dead, and may have given our names away.
            return self.refuse_unfenced();
        }
        if !stored.is_so {
            // It was written by what was sent before.
            return self.begin_fencing();
        }
        // The key was written by this very transaction, so the revision of the store is its own.
        self.fence = Some(stored.revision);
        let doubtful = self.doubtful.iter();
        let clears: Vec<Task> =
            doubtful.map(|(name, record)| Task::Clear { name: name.clone(), record: *record }).collect();
        self.repairs.extend(clears);
        // Once: a life that comes after ours is to end us, and not the other way round.
        if !std::mem::replace(&mut self.has_succeeded, true) && !self.me.node.is_ephemeral() {
            self.repairs.push_back(Task::Succeed);
        }
        for waiting in std::mem::take(&mut self.unfenced) {
            self.begin(waiting);
        }
        self.go_on();
    }

    fn refuse_unfenced(&mut self) {
        for waiting in std::mem::take(&mut self.unfenced) {
            let requester = waiting.requester();
            requester.into_iter().for_each(|asker| self.answer(asker, Err(ErrorReply::DirectoryOut)));
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
            Some(taken) => match taken_by(Some(taken)) {
                Some((taken, home)) => {
                    self.begin(Task::Judge { requester, name, region, taken, home, tries })
                }
                None => self.answer(requester, Err(ErrorReply::NameTaken)),
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

    /// How a life has ended, if it has, as we have heard, or as is written in `home`.  What we alone know is written down.
    fn ending_of(&mut self, life: NodeLife, home: Option<&Pair>) -> Option<Loss> {
        match home.and_then(|pair| HomeRecord::parse(&pair.value)) {
            Some(HomeRecord::Ended { cause, at_ns }) => {
                let now_ns = self.epoch_ns.saturating_add(self.now_ns);
                return Some(Loss { cause, age_ns: now_ns.saturating_sub(at_ns) });
            }
            Some(HomeRecord::Lives) | None => {}
        }
        let parting = *self.ended.get(&life)?;
        if home.is_some() {
            self.repairs.push_back(Task::End { life });
        }
        Some(parting.loss(self.now_ns))
    }

    fn record_of(&self, parting: Parting) -> HomeRecord {
        let at_ns = self.epoch_ns.saturating_add_signed(parting.at_ns);
        HomeRecord::Ended { cause: parting.cause, at_ns }
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
            None => self.answer(requester, Err(ErrorReply::Malformed)),
        }
    }

    fn found(&mut self, name: &str, record: NameRecord, home: Option<&Pair>) -> Result<Reply, ErrorReply> {
        match self.ending_of(record.home, home) {
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
        let (mut names, mut gone) = (Vec::new(), Vec::new());
        for pair in &pairs {
            let name = pair.key.strip_prefix(&prefix).unwrap_or_default().to_owned();
            let Some(record) = NameRecord::parse(&pair.value) else { continue };
            match endings.get(&record.home) {
                Some(loss) => gone.push(LostName { name, home: record.home, loss: *loss }),
                None => names.push((name, record.region, record.home.node)),
            }
        }
        let is_empty = if lost { gone.is_empty() } else { names.is_empty() };
        if more && is_empty {
            return self.begin(Task::List { requester, after: last, lost });
        }
        let body = if lost { Reply::Lost { names: gone, more } } else { Reply::Names { names, more } };
        self.answer(requester, Ok(body));
    }

    /// The lives that are over, of those that were read with names.
    fn endings(&mut self, stored: &Stored) -> BTreeMap<NodeLife, Loss> {
        let prefix = self.keys.homes();
        let homes = stored.read.get(1).cloned().unwrap_or_default();
        let lives =
            homes.iter().filter_map(|pair| Some((parse_life(pair.key.strip_prefix(&prefix)?)?, pair)));
        let lives: Vec<(NodeLife, &Pair)> = lives.collect();
        lives.into_iter().filter_map(|(life, pair)| Some((life, self.ending_of(life, Some(pair))?))).collect()
    }

    fn next_number(&self, numbers: Option<&Pair>) -> u32 {
        let written = numbers.and_then(|pair| pair.value.parse().ok());
        written.unwrap_or(0).max(NodeId::FIRST.0 + 1)
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

    fn removal_of(&self, pair: &Pair) -> Transaction {
        let compare = Compare::WrittenAt(pair.key.clone(), pair.written_at);
        Transaction::when(vec![compare], vec![Step::Delete(pair.key.clone())])
    }

    /// Those who had our number before are gone.
    fn succeed(&mut self, stored: &Stored) {
        let prefix = self.keys.homes();
        let at_ns = self.epoch_ns.saturating_add(self.now_ns);
        let ended = HomeRecord::Ended { cause: LossCause::Unreachable, at_ns }.emit();
        for pair in stored.read.first().cloned().unwrap_or_default() {
            let life = pair.key.strip_prefix(&prefix).and_then(parse_life);
            let lives = HomeRecord::parse(&pair.value) == Some(HomeRecord::Lives);
            if lives && life.is_some_and(|life| life.node == self.me.node && life != self.me) {
                let compare = Compare::WrittenAt(pair.key.clone(), pair.written_at);
                let put = Step::Put(pair.key, ended.clone());
                self.repairs.push_back(Task::Note(Transaction::when(vec![compare], vec![put])));
            }
        }
    }

    fn sweep(&mut self, node: NodeId, stored: &Stored) {
        let endings = self.endings(stored);
        let pairs = stored.read.first().cloned().unwrap_or_default();
        let is_its = |pair: &&Pair| {
            let record = NameRecord::parse(&pair.value);
            record.is_some_and(|record| record.home.node == node && endings.contains_key(&record.home))
        };
        for pair in pairs.iter().filter(is_its) {
            self.repairs.push_back(Task::Note(self.removal_of(pair)));
        }
        if pairs.len() >= SWEPT_AT_ONCE_MAX {
            let last = pairs.last().and_then(|pair| pair.key.strip_prefix(&self.keys.names()));
            let after = last.map(str::to_owned);
            self.repairs.push_back(Task::Sweep { node, after });
        }
    }
}
