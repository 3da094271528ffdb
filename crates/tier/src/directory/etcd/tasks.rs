//! Tasks that need etcd, such as claiming or finding a name: sends their transactions and handles the results.

use std::collections::{BTreeMap, BTreeSet};

use super::records::{HomeRecord, NameRecord};
use super::store::{Compare, Pair, Step, Stored, Transaction};
use super::{EtcdDirectory, HOMES_MAX, HomeQuery, REQUESTS_MAX};
use crate::directory::{DirectoryOutput, NAMES_PER_ANSWER_MAX};
use crate::ids::{NodeId, NodeIncarnation, RegionId, Requester};
use crate::members::NodeLoss;
use crate::message::{ErrorReply, Loss, LostName, Reply, Request};
use crate::names;

/// Maximum number of names removed in one transaction: etcd accepts 128 steps.
const SWEEP_NAMES_MAX: usize = 100;
/// Maximum retries of a request that conflicts with concurrent changes.
pub(super) const TRIES_MAX: u8 = 8;

/// A name that sorts after all names of locks and barriers.
const LAST_RESERVED: &str = "\0\u{10ffff}";

/// A request of a name for a region of this node.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) requester: Requester,
    pub(super) name: Box<str>,
    pub(super) region: RegionId,
    /// Number of earlier tries.
    pub(super) tries: u8,
}

/// A task in flight.
#[derive(Clone, Debug)]
pub(super) enum Task {
    /// Claims a name.
    Claim(Claim),
    /// Checks whether the incarnation that holds a claimed name has ended.
    CheckHolder {
        claim: Claim,
        taken: Pair,
        home: NodeIncarnation,
    },
    /// Releases a name; `exactly` is the revision of its record if that differed from the expected one.
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
    /// Reads the state of a found name's home.
    FindHome {
        requester: Requester,
        name: Box<str>,
        record: NameRecord,
    },
    /// Lists names or, with `lost`, lost names.
    List {
        requester: Requester,
        after: Option<String>,
        lost: bool,
    },
    /// Forgets a lost name.
    Forget {
        requester: Requester,
        name: Box<str>,
    },
    /// Checks whether an existing name was lost, in order to forget it.
    ForgetTaken {
        requester: Requester,
        taken: Pair,
        home: NodeIncarnation,
    },
    /// Checks whether the home of a name, which no node knows, has a key under a lease. Such a key shows that the home
    /// is alive.
    ForgetUnplaced {
        requester: Requester,
        taken: Pair,
        node: NodeId,
    },
    /// Removes a name that is known to be lost.
    Remove {
        requester: Requester,
    },
    ReadNumber {
        requester: Requester,
        tries: u8,
    },
    /// Takes `number` by writing the next one.
    TakeNumber {
        requester: Requester,
        number: u32,
        tries: u8,
    },
    /// Writes the fence.
    Fence,
    /// Checks whether incarnation `by`, which recorded that this one has ended, is alive.
    CheckEnding {
        by: NodeIncarnation,
        found: Pair,
    },
    /// Clears a name that may have been written for a region that does not exist.
    Clear {
        name: Box<str>,
        record: NameRecord,
    },
    /// Reads the record of a name, in order to update it.
    Update {
        name: Box<str>,
        record: NameRecord,
    },
    /// Writes the record of a name.
    Write {
        name: Box<str>,
        record: NameRecord,
    },
    /// Checks whether the home of another region with the same name has ended.
    CheckRival {
        name: Box<str>,
        record: NameRecord,
        taken: Pair,
        home: NodeIncarnation,
    },
    /// Records the end of an incarnation.
    End {
        incarnation: NodeIncarnation,
    },
    /// Records the ends of earlier incarnations with this number.
    EndPredecessors,
    /// Checks whether the store answers again.
    Probe,
    /// Records that this node leaves.
    Deregister,
    /// Forgets names after `after` that were lost with any incarnation of a node, then answers the requester, if any.
    Sweep {
        node: NodeId,
        after: Option<String>,
        reply_to: Option<Requester>,
        /// True if the node is known, so that finding no names is no error.
        was_known: bool,
    },
    /// Removes such names on one page: those after `after`, up to `last` if there are more pages.
    SweepPage {
        node: NodeId,
        after: Option<String>,
        last: Option<String>,
        reply_to: Option<Requester>,
    },
    /// Collects the incarnations to which names refer.
    CleanNames {
        after: Option<String>,
        referenced: BTreeSet<NodeIncarnation>,
    },
    /// Removes the records of incarnations to which no name refers and that have ended.
    CleanHomes {
        referenced: BTreeSet<NodeIncarnation>,
    },
    /// Closes the store to claims, so that the names can be read.
    Close,
    /// Reads a page of names for node 0.
    ReadBack,
    /// Closes the store permanently, after all names were read.
    ClosePermanently,
    /// Reads the first free number, in order to raise it to `number_min`.
    RaiseNumber {
        number_min: u32,
    },
    /// Raises the first free number to `number_min`.
    WriteRaised {
        number_min: u32,
    },
    /// Executes a transaction and ignores the result.
    Unchecked(Transaction),
}

impl Claim {
    /// Returns the next try.
    pub(super) fn again(self) -> Claim {
        Claim { tries: self.tries + 1, ..self }
    }

    /// Returns true if the claim is for this name and region.
    pub(super) fn is_of(&self, name: &str, region: RegionId) -> bool {
        *self.name == *name && self.region == region
    }
}

impl Task {
    /// Returns the task for a request, or `None` if the directory does not serve such requests.
    pub(super) fn of(requester: Requester, request: Request) -> Option<Task> {
        let task = match request {
            Request::ClaimName { name, region } => {
                Task::Claim(Claim { requester, name: name.into(), region, tries: 0 })
            }
            Request::ReleaseName { name, region } => {
                let record = NameRecord { region, home: requester.incarnation, epoch: Default::default() };
                Task::Release { requester: Some(requester), name: name.into(), record, exactly: None }
            }
            Request::FindName { name } => Task::Find { requester, name: name.into() },
            Request::ListNames { after } => Task::List { requester, after, lost: false },
            Request::ListLost { after } => Task::List { requester, after, lost: true },
            Request::ForgetName { name } => Task::Forget { requester, name: name.into() },
            Request::TakeNumber => Task::ReadNumber { requester, tries: 0 },
            Request::ForgetNode { node } => {
                Task::Sweep { node, after: None, reply_to: Some(requester), was_known: false }
            }
            _ => return None,
        };
        Some(task)
    }

    /// Returns true if the task is retried until it succeeds, without a requester.
    pub(super) fn is_repair(&self) -> bool {
        match self {
            Task::Release { requester, .. } => requester.is_none(),
            Task::Sweep { reply_to, .. } | Task::SweepPage { reply_to, .. } => reply_to.is_none(),
            Task::Clear { .. }
            | Task::Update { .. }
            | Task::Write { .. }
            | Task::CheckRival { .. }
            | Task::End { .. }
            | Task::EndPredecessors
            | Task::CheckEnding { .. }
            | Task::CleanNames { .. }
            | Task::CleanHomes { .. }
            | Task::RaiseNumber { .. }
            | Task::WriteRaised { .. }
            | Task::Unchecked(_) => true,
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
            Task::Claim(Claim { requester, .. })
            | Task::CheckHolder { claim: Claim { requester, .. }, .. }
            | Task::Find { requester, .. }
            | Task::FindHome { requester, .. }
            | Task::List { requester, .. }
            | Task::Forget { requester, .. }
            | Task::ForgetTaken { requester, .. }
            | Task::ForgetUnplaced { requester, .. }
            | Task::Remove { requester, .. }
            | Task::ReadNumber { requester, .. }
            | Task::TakeNumber { requester, .. } => Some(*requester),
            Task::Release { requester, .. } => *requester,
            Task::Sweep { reply_to, .. } | Task::SweepPage { reply_to, .. } => *reply_to,
            _ => None,
        }
    }
}

impl EtcdDirectory {
    /// Sends the first transaction of a task.
    pub(super) fn begin(&mut self, task: Task) {
        let keys = &self.keys;
        let transaction = match &task {
            Task::Claim(claim) if self.doubtful.contains_key(&claim.name) => {
                return self.answer(claim.requester, Err(self.unavailable_error()));
            }
            Task::Claim(claim) => match self.fence {
                Some(fence) => self.claim_transaction(claim, None, fence),
                None => return self.wait_for_fence(task),
            },
            Task::CheckHolder { home, .. }
            | Task::CheckRival { home, .. }
            | Task::ForgetTaken { home, .. } => Transaction::read(vec![Step::Get(keys.home(*home))]),
            Task::CheckEnding { by, .. } => Transaction::read(vec![Step::Get(keys.home(*by))]),
            Task::ForgetUnplaced { node, .. } => Transaction::read(vec![Step::Get(keys.place(*node))]),
            Task::Release { name, record, exactly, .. } => {
                let key = keys.name(name);
                let own = self.own_names.get(name).filter(|(region, _)| *region == record.region);
                let epoch = own.map_or(record.epoch, |(_, epoch)| *epoch);
                let expected = NameRecord { epoch, ..*record }.emit();
                let compare = match exactly {
                    Some(written_at) => Compare::WrittenAt(key.clone(), *written_at),
                    None => Compare::Holds(key.clone(), expected),
                };
                let then = vec![Step::Delete(key.clone())];
                if own.is_some() {
                    self.own_names.remove(name);
                }
                Transaction { compares: vec![compare], then, otherwise: vec![Step::Get(key)] }
            }
            Task::Find { name, .. } => {
                Transaction::read(vec![Step::Get(keys.name(name)), Step::Get(keys.closed())])
            }
            Task::Forget { name, .. } | Task::Update { name, .. } => {
                Transaction::read(vec![Step::Get(keys.name(name))])
            }
            Task::FindHome { record, .. } => Transaction::read(vec![Step::Get(keys.home(record.home))]),
            Task::List { after, .. } => {
                let [names, homes] =
                    self.page(Some(after.as_deref().unwrap_or(LAST_RESERVED)), NAMES_PER_ANSWER_MAX);
                Transaction::read(vec![names, homes, Step::Get(keys.closed())])
            }
            Task::ReadNumber { .. } => Transaction::read(vec![
                Step::Get(keys.numbers()),
                Step::list(keys.homes(), HOMES_MAX),
                Step::list(keys.places(), HOMES_MAX),
            ]),
            Task::RaiseNumber { .. } => Transaction::read(vec![Step::Get(keys.numbers())]),
            Task::Fence => return self.begin_fencing(),
            Task::Clear { name, record } => {
                let key = keys.name(name);
                Transaction::when(vec![Compare::Holds(key.clone(), record.emit())], vec![Step::Delete(key)])
            }
            Task::End { incarnation } => {
                let Some(loss) = self.ended.get(incarnation) else { return };
                let key = keys.home(*incarnation);
                let compare = match self.me.node {
                    NodeId::FIRST => Compare::Present(key.clone()),
                    _ => Compare::Holds(key.clone(), HomeRecord::Alive.emit()),
                };
                Transaction::when(vec![compare], vec![Step::Put(key, self.record_of(*loss).emit())])
            }
            Task::Probe => Transaction::read(vec![Step::Get(keys.home(self.me))]),
            Task::EndPredecessors => {
                let prefix = format!("{}{}.", keys.homes(), self.me.node);
                Transaction::read(vec![Step::list(prefix, SWEEP_NAMES_MAX)])
            }
            Task::Sweep { node, after, .. } => {
                let [names, homes] = self.page(after.as_deref(), SWEEP_NAMES_MAX);
                Transaction::read(vec![names, homes, Step::Get(keys.place(*node))])
            }
            Task::CleanNames { after, .. } => {
                Transaction::read(self.page(after.as_deref(), NAMES_PER_ANSWER_MAX).into())
            }
            Task::CleanHomes { .. } => Transaction::read(vec![Step::list(keys.homes(), HOMES_MAX)]),
            Task::Unchecked(transaction) => transaction.clone(),
            // Sent only with the result of an earlier transaction.
            Task::Remove { .. }
            | Task::TakeNumber { .. }
            | Task::Write { .. }
            | Task::WriteRaised { .. }
            | Task::Deregister
            | Task::Close
            | Task::ReadBack
            | Task::ClosePermanently
            | Task::SweepPage { .. } => return,
        };
        self.send(task, transaction);
    }

    /// Returns the steps that read at most `limit` names after `after`, and all incarnations.
    pub(super) fn page(&self, after: Option<&str>, limit: usize) -> [Step; 2] {
        let after = after.map(|after| self.keys.name(after));
        let names = Step::List { prefix: self.keys.names(), after, limit };
        [names, Step::list(self.keys.homes(), HOMES_MAX)]
    }

    /// Returns the last name of a page of at most `limit` names; `None` if no page follows.
    pub(super) fn last_of_page(&self, pairs: &[Pair], limit: usize) -> Option<String> {
        let last = pairs.last().filter(|_| pairs.len() >= limit)?;
        self.keys.name_of(&last.key).map(str::to_owned)
    }

    fn wait_for_fence(&mut self, task: Task) {
        match task.requester() {
            Some(requester) if self.unfenced.len() >= REQUESTS_MAX => {
                self.answer(requester, Err(self.unavailable_error()))
            }
            _ => self.unfenced.push(task),
        }
        self.begin_fencing();
    }

    /// Returns the transaction that executes a claim if the name's record is still as `found`, the fence is unchanged, and
    /// the store is open.
    fn claim_transaction(&self, claim: &Claim, found: Option<&Pair>, fence: u64) -> Transaction {
        let (key, home, closed) = (self.keys.name(&claim.name), self.keys.home(self.me), self.keys.closed());
        Transaction {
            compares: vec![
                Compare::still(&key, found),
                Compare::WrittenAt(home.clone(), fence),
                Compare::Absent(closed.clone()),
            ],
            then: vec![Step::Put(key.clone(), self.claimed_record(claim.region).emit())],
            otherwise: vec![Step::Get(key), Step::Get(home), Step::Get(closed)],
        }
    }

    fn claimed_record(&self, region: RegionId) -> NameRecord {
        NameRecord { region, home: self.me, epoch: Default::default() }
    }

    /// Handles the result of a task's transaction.
    pub(super) fn finish(&mut self, task: Task, stored: Stored) {
        if self.handle_closed(&task, &stored) {
            // Its requester asks node 0 next.
            return self.unfenced.push(task);
        }
        match task {
            Task::Claim(claim) => self.finish_claim(claim, &stored),
            Task::CheckHolder { claim, taken, home } => {
                let has_ended = self.ending_of(home, stored.first(0)).is_some();
                match NameRecord::parse(&taken.value).map(|record| record.region) {
                    // A region that this node has handed over is not lost.
                    holder
                        if has_ended && !holder.is_some_and(|region| self.may_have(&claim.name, region)) =>
                    {
                        self.claim_lost(claim, &taken)
                    }
                    // The home may have freed the name, and the store may have lost that write.
                    Some(holder) => self.ask_home(home, &claim.name.clone(), holder, HomeQuery::Claim(claim)),
                    None => self.answer(claim.requester, Err(ErrorReply::NameTaken)),
                }
            }
            Task::Release { requester, name, record, .. } => {
                let still = stored.first(0).filter(|_| !stored.succeeded);
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
            Task::Find { requester, name } => self.finish_find(requester, name, stored.first(0)),
            Task::FindHome { requester, name, record } => {
                let body = self.find_reply(&name, record, stored.first(0));
                self.answer(requester, body);
            }
            Task::List { requester, lost, .. } => self.finish_list(requester, lost, &stored),
            Task::Forget { requester, .. } => {
                let Some(taken) = stored.first(0).cloned() else {
                    return self.answer(requester, Err(ErrorReply::NotFound));
                };
                match NameRecord::parse(&taken.value) {
                    Some(record) => self.begin(Task::ForgetTaken { requester, taken, home: record.home }),
                    // A damaged record has no region.
                    None => self.remove(requester, &taken),
                }
            }
            Task::ForgetTaken { requester, taken, home } => {
                // A living node has a key. An incarnation without one, whose number another one holds, has ended.
                let has_no_record = stored.first(0).is_none() && self.has_rival(home);
                let lost = self.ending_of(home, stored.first(0));
                let name = self.keys.name_of(&taken.key).map(str::to_owned);
                match (lost, NameRecord::parse(&taken.value), name) {
                    (None, Some(record), Some(name)) if !has_no_record => {
                        self.ask_home(home, &name, record.region, HomeQuery::Forget { requester, taken })
                    }
                    _ => self.remove(requester, &taken),
                }
            }
            Task::ForgetUnplaced { requester, taken, .. } => match stored.first(0) {
                None => self.remove(requester, &taken),
                Some(_) => self.answer(requester, Err(ErrorReply::NotFound)),
            },
            Task::Remove { requester } => {
                let body = if stored.succeeded { Ok(Reply::Done) } else { Err(ErrorReply::NotFound) };
                self.answer(requester, body);
            }
            Task::ReadNumber { requester, tries } => {
                let number = self.next_number(stored.first(0)).max(self.first_unused_number(&stored));
                self.take_number(requester, number, stored.first(0), tries);
            }
            Task::TakeNumber { requester, number, .. } if stored.succeeded => {
                self.answer(requester, Ok(Reply::Number(NodeId(number))))
            }
            Task::TakeNumber { requester, tries, .. } if tries < TRIES_MAX => {
                self.begin(Task::ReadNumber { requester, tries: tries + 1 })
            }
            Task::TakeNumber { requester, .. } => self.answer(requester, Err(self.unavailable_error())),
            Task::Close => self.finish_closing(&stored),
            Task::ReadBack => self.add_page(&stored),
            Task::ClosePermanently => self.finish_return(&stored),
            Task::Fence => self.finish_fencing(&stored),
            Task::CheckEnding { by, found } => self.check_ending(by, &found, stored.first(0)),
            Task::Clear { name, .. } => {
                self.doubtful.remove(&name);
            }
            Task::Update { name, record } => self.update(name, record, stored.first(0)),
            Task::Write { name, record } if !stored.succeeded => self.repair(Task::Update { name, record }),
            Task::CheckRival { name, record, taken, home } => match self.ending_of(home, stored.first(0)) {
                Some(_) => self.write(name, record, Some(&taken)),
                None if record.home == self.me => {
                    self.own_names.remove(&name);
                    let (home, region) = (self.me, record.region);
                    self.outputs.push_back(DirectoryOutput::NameLost { home, name: name.into(), region });
                }
                None => {}
            },
            Task::EndPredecessors => self.end_predecessors(&stored),
            Task::Sweep { node, after, reply_to, was_known } => {
                self.sweep((node, after, reply_to, was_known), &stored)
            }
            Task::SweepPage { node, last: Some(last), reply_to, .. } if stored.succeeded => {
                self.begin(Task::Sweep { node, after: Some(last), reply_to, was_known: true })
            }
            Task::SweepPage { node, after, reply_to, .. } if !stored.succeeded => {
                // One of the names was claimed in the meantime.
                self.begin(Task::Sweep { node, after, reply_to, was_known: true })
            }
            Task::SweepPage { reply_to, .. } => self.end_sweep(reply_to, Ok(Reply::Done)),
            Task::CleanNames { referenced, .. } => self.clean_names(referenced, &stored),
            Task::CleanHomes { referenced } => self.clean_homes(&referenced, &stored),
            Task::RaiseNumber { number_min } => self.raise(number_min, stored.first(0)),
            Task::WriteRaised { number_min } if !stored.succeeded => {
                self.repair(Task::RaiseNumber { number_min })
            }
            Task::Write { .. }
            | Task::End { .. }
            | Task::WriteRaised { .. }
            | Task::Probe
            | Task::Deregister
            | Task::Unchecked(_) => {}
        }
    }

    /// Records that an earlier try of a claim may have written the name.
    pub(super) fn mark_doubtful(&mut self, task: &Task) {
        if let Task::Claim(Claim { name, region, tries: 1.., .. }) = task {
            self.doubtful.insert(name.clone(), self.claimed_record(*region));
        }
    }

    /// Handles a transaction that failed, or whose result is unknown.
    pub(super) fn fail(&mut self, task: Task, may_be_done: bool, has_others: bool) {
        let task = match task {
            // After a new fence, the claim is repeated at another endpoint, and the first one has no effect any more.
            Task::Claim(claim) if has_others && claim.tries < TRIES_MAX => {
                self.fence = None;
                self.unfenced.push(Task::Claim(claim.again()));
                return self.begin_fencing();
            }
            Task::Fence if has_others && !self.is_leaving => {
                (self.is_fencing, self.fence) = (false, None);
                return self.begin_fencing();
            }
            task => task,
        };
        self.mark_doubtful(&task);
        if let Some(requester) = task.requester() {
            let reason = self.last_failure.clone();
            self.answer(requester, Err(ErrorReply::DirectoryOut { reason }));
        }
        match task {
            Task::Claim(Claim { name, region, .. }) if may_be_done => {
                self.doubtful.insert(name, self.claimed_record(region));
                // Claims wait for the next fence, which invalidates those sent under this one.
                self.fence = None;
            }
            Task::Release { name, record, exactly, .. } => {
                self.repairs.push_back(Task::Release { requester: None, name, record, exactly });
            }
            Task::Fence | Task::CheckEnding { .. } => {
                self.is_fencing = false;
                self.fence = None;
                self.refuse_unfenced();
            }
            Task::Close | Task::ReadBack | Task::ClosePermanently => {
                self.fail_return(self.last_failure.clone())
            }
            Task::WriteRaised { number_min } => self.repairs.push_back(Task::RaiseNumber { number_min }),
            // The requester was informed of the failure; the rest is retried.
            Task::Sweep { node, after, .. } | Task::SweepPage { node, after, .. } => {
                self.repairs.push_back(Task::Sweep { node, after, reply_to: None, was_known: true })
            }
            // The record may have been written, so read it again.
            Task::Write { name, record } | Task::CheckRival { name, record, .. } => {
                self.repairs.push_back(Task::Update { name, record });
            }
            task if task.is_repair() => self.repairs.push_back(task),
            _ => {}
        }
    }

    fn finish_claim(&mut self, claim: Claim, stored: &Stored) {
        let (taken, home) = (stored.first(0).filter(|_| !stored.succeeded), stored.first(1));
        let holder = taken.and_then(|taken| NameRecord::parse(&taken.value));
        if stored.succeeded || holder.is_some_and(|holder| holder.region == claim.region) {
            self.own_names.insert(claim.name, (claim.region, Default::default()));
            return self.answer(claim.requester, Ok(Reply::Done));
        }
        if let Some(closed) = stored.first(2) {
            return self.wait_for_return(claim, closed);
        }
        match (taken, holder) {
            (Some(taken), Some(holder)) => {
                self.begin(Task::CheckHolder { claim, taken: taken.clone(), home: holder.home })
            }
            (Some(taken), None) => self.refuse_damaged(claim.requester, &taken.key),
            (None, _) if claim.tries == TRIES_MAX => {
                self.answer(claim.requester, Err(self.unavailable_error()))
            }
            // The fence was rewritten or removed in the meantime.
            (None, _) => {
                let is_as_written = home.map(|pair| pair.written_at) == self.fence;
                if !is_as_written && !self.is_fencing {
                    self.begin_fencing();
                    self.unfenced.push(Task::Claim(claim.again()));
                } else {
                    self.begin(Task::Claim(claim.again()));
                }
            }
        }
    }

    /// Claims a name whose region was lost.
    fn claim_lost(&mut self, claim: Claim, taken: &Pair) {
        match self.fence.filter(|_| claim.tries < TRIES_MAX) {
            Some(fence) => {
                let transaction = self.claim_transaction(&claim, Some(taken), fence);
                self.send(Task::Claim(claim.again()), transaction);
            }
            None => self.answer(claim.requester, Err(self.unavailable_error())),
        }
    }

    /// Refuses a request for a name whose record is invalid.
    fn refuse_damaged(&mut self, requester: Requester, key: &str) {
        self.report_damaged(key);
        self.answer(requester, Err(ErrorReply::NameDamaged { key: key.to_owned() }));
    }

    fn remove(&mut self, requester: Requester, taken: &Pair) {
        let transaction = EtcdDirectory::removal_of(taken);
        self.send(Task::Remove { requester }, transaction);
    }

    /// Returns the cause and time of an incarnation's end if it has ended, from its record `home` or this node's
    /// knowledge. Also records an end that only this node knows.
    fn ending_of(&mut self, incarnation: NodeIncarnation, home: Option<&Pair>) -> Option<Loss> {
        if incarnation == self.me || self.paired.contains(&incarnation) {
            // The incarnation is alive, whatever its record says.
            return None;
        }
        match home.and_then(|pair| HomeRecord::parse(&pair.value)) {
            Some(HomeRecord::Ended { cause, at_ns, by: Some(_) }) => {
                return Some(Loss { cause, age_ns: self.time_of_day_ns().saturating_sub(at_ns) });
            }
            // A record edited by hand proves nothing.
            Some(HomeRecord::Ended { by: None, .. } | HomeRecord::Alive | HomeRecord::Awaited) | None => {}
        }
        let loss = *self.ended.get(&incarnation)?;
        // Later nodes could not verify a record by an ephemeral node.
        if home.is_some() && !self.me.node.is_ephemeral() {
            self.repairs.push_back(Task::End { incarnation });
        }
        Some(loss.with_age(self.now_ns))
    }

    pub(super) fn record_of(&self, loss: NodeLoss) -> HomeRecord {
        let at_ns = self.epoch_ns.saturating_add_signed(loss.at_ns);
        HomeRecord::Ended { cause: loss.cause, at_ns, by: Some(self.me) }
    }

    fn finish_find(&mut self, requester: Requester, name: Box<str>, found: Option<&Pair>) {
        let Some(pair) = found else { return self.answer(requester, Err(ErrorReply::NotFound)) };
        match NameRecord::parse(&pair.value) {
            // This node itself is the home, so there is no need to read its state.
            Some(record) if record.home == self.me => {
                let body = Ok(Reply::Found { region: record.region, home: record.home.node });
                self.answer(requester, body);
            }
            Some(record) => self.begin(Task::FindHome { requester, name, record }),
            None => self.refuse_damaged(requester, &pair.key),
        }
    }

    fn find_reply(
        &mut self,
        name: &str,
        record: NameRecord,
        home: Option<&Pair>,
    ) -> Result<Reply, ErrorReply> {
        match self.ending_of(record.home, home) {
            // This node knows the next home, but the store does not have it yet.
            Some(_) if self.may_have(name, record.region) => Err(self.unavailable_error()),
            // Locks and barriers are recreated.
            Some(_) if names::is_reserved(name) => Err(ErrorReply::NotFound),
            Some(loss) => Err(ErrorReply::Lost { home: record.home, loss }),
            None => Ok(Reply::Found { region: record.region, home: record.home.node }),
        }
    }

    fn finish_list(&mut self, requester: Requester, lost: bool, stored: &Stored) {
        let pairs = stored.pairs(0);
        let endings = self.endings(stored);
        let more = pairs.len() >= NAMES_PER_ANSWER_MAX;
        let (mut names, mut gone, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
        for pair in pairs {
            let name = self.keys.name_of(&pair.key).unwrap_or_default().to_owned();
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
            let after = self.last_of_page(pairs, NAMES_PER_ANSWER_MAX);
            return self.begin(Task::List { requester, after, lost });
        }
        let body =
            if lost { Reply::Lost { names: gone, more } } else { Reply::Names { names, damaged, more } };
        self.answer(requester, Ok(body));
    }

    /// Returns the ended incarnations among the incarnations that were read together with names.
    pub(super) fn endings(&mut self, stored: &Stored) -> BTreeMap<NodeIncarnation, Loss> {
        let mut endings = BTreeMap::new();
        for pair in stored.pairs(1) {
            if let Some(incarnation) = self.keys.incarnation_of(&pair.key)
                && let Some(loss) = self.ending_of(incarnation, Some(pair))
            {
                endings.insert(incarnation, loss);
            }
        }
        endings
    }

    pub(super) fn next_number(&self, numbers: Option<&Pair>) -> u32 {
        let written = numbers.and_then(|pair| pair.value.parse().ok());
        written.unwrap_or(0).max(NodeId::FIRST.0 + 1)
    }

    /// Returns true if another incarnation with the same number is alive.
    fn has_rival(&self, incarnation: NodeIncarnation) -> bool {
        let mut connected = self.paired.iter().chain([&self.me]);
        connected.any(|other| other.node == incarnation.node && *other != incarnation)
    }

    /// Returns the first number above all known permanent nodes. Used because the written number may have been edited,
    /// removed or restored.
    fn first_unused_number(&self, stored: &Stored) -> u32 {
        let places = self.keys.places();
        let recorded = stored.read.iter().skip(1).flatten().filter_map(|pair| {
            let home = self.keys.incarnation_of(&pair.key).map(|home| home.node);
            home.or_else(|| pair.key.strip_prefix(&places)?.parse().ok().map(NodeId))
        });
        let connected = self.paired.iter().map(|incarnation| incarnation.node).chain([self.me.node]);
        let permanent = recorded.chain(connected).filter(|node| !node.is_ephemeral());
        permanent.map(|node| node.0 + 1).max().unwrap_or(0)
    }

    fn take_number(&mut self, requester: Requester, number: u32, numbers: Option<&Pair>, tries: u8) {
        if NodeId(number).is_ephemeral() {
            return self.answer(requester, Err(ErrorReply::NoNumbers));
        }
        let mut transaction = self.set_next_number(number + 1, numbers);
        transaction.compares.push(Compare::Absent(self.keys.closed()));
        self.send(Task::TakeNumber { requester, number, tries }, transaction);
    }

    fn raise(&mut self, number_min: u32, numbers: Option<&Pair>) {
        if self.next_number(numbers) < number_min {
            let transaction = self.set_next_number(number_min, numbers);
            self.send(Task::WriteRaised { number_min }, transaction);
        }
    }

    fn set_next_number(&self, next: u32, numbers: Option<&Pair>) -> Transaction {
        let key = self.keys.numbers();
        Transaction::when(vec![Compare::still(&key, numbers)], vec![Step::Put(key, next.to_string())])
    }

    /// Updates a record. If two nodes claim to be the home of a region, the claim with the higher epoch wins.
    fn update(&mut self, name: Box<str>, record: NameRecord, found: Option<&Pair>) {
        let is_own = record.home == self.me;
        if is_own && self.own_names.get(&name).is_none_or(|(region, _)| *region != record.region) {
            // The region was freed, or lost its name, in the meantime.
            return;
        }
        let Some(pair) = found else {
            // A former home cannot know whether the next one has freed the region.
            if is_own {
                self.write(name, record, None);
            }
            return;
        };
        match NameRecord::parse(&pair.value) {
            Some(there) if there.region == record.region && there.epoch > record.epoch => {}
            Some(there) if there == record => {}
            Some(there) if there.region != record.region => {
                let (taken, home) = (pair.clone(), there.home);
                self.begin(Task::CheckRival { name, record, taken, home });
            }
            // This includes invalid records.
            _ => self.write(name, record, Some(pair)),
        }
    }

    fn write(&mut self, name: Box<str>, record: NameRecord, found: Option<&Pair>) {
        let key = self.keys.name(&name);
        let transaction =
            Transaction::when(vec![Compare::still(&key, found)], vec![Step::Put(key, record.emit())]);
        self.send(Task::Write { name, record }, transaction);
    }

    pub(super) fn removal_of(pair: &Pair) -> Transaction {
        Transaction::when(vec![Compare::unchanged(pair)], vec![Step::Delete(pair.key.clone())])
    }

    /// Removes names of ended incarnations, and all names of a node that has no key under a lease. A node with such a
    /// key may be alive elsewhere.
    fn sweep(
        &mut self,
        (node, after, reply_to, was_known): (NodeId, Option<String>, Option<Requester>, bool),
        stored: &Stored,
    ) {
        let endings = self.endings(stored);
        let pairs = stored.pairs(0);
        let has_no_place = stored.first(2).is_none();
        let is_over = |home: &NodeIncarnation| {
            endings.contains_key(home) || has_no_place && *home != self.me && !self.paired.contains(home)
        };
        let is_of_node = |pair: &&Pair| {
            let record = NameRecord::parse(&pair.value);
            record.is_some_and(|record| record.home.node == node && is_over(&record.home))
        };
        let lost: Vec<&Pair> = pairs.iter().filter(is_of_node).collect();
        match self.last_of_page(pairs, SWEEP_NAMES_MAX) {
            last if !lost.is_empty() => {
                let compares = lost.iter().map(|pair| Compare::unchanged(pair)).collect();
                let then = lost.iter().map(|pair| Step::Delete(pair.key.clone())).collect();
                let task = Task::SweepPage { node, after, last, reply_to };
                self.send(task, Transaction::when(compares, then));
            }
            Some(last) => self.begin(Task::Sweep { node, after: Some(last), reply_to, was_known }),
            None if was_known => self.end_sweep(reply_to, Ok(Reply::Done)),
            None => self.end_sweep(reply_to, Err(ErrorReply::UnknownNode(node))),
        }
    }

    fn end_sweep(&mut self, reply_to: Option<Requester>, body: Result<Reply, ErrorReply>) {
        if let Some(requester) = reply_to {
            self.answer(requester, body);
        }
    }
}
