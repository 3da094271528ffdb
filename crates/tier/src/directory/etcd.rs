//! The directory of names in etcd. Each node accesses etcd directly. A node repeats writes that must not be lost until
//! they succeed.
//!
//! ```text
//!   engine ── requests, events ──► EtcdDirectory ── Store { transaction } ──► driver ──► etcd
//!          ◄── answers ───────────               ◄── handle_stored ────────
//! ```
//!
//! Sans-IO: the driver executes transactions in any order, and reports each result once. A claim's transaction requires
//! that the name is absent and that this node's fence, a key in etcd, is unchanged. If the result of a claim is
//! unknown, this node rewrites the fence, so that the claim fails if it arrives later. Then it removes the name, in
//! case the claim has already written the name. Only a claim with an unknown result can leave a name without a region.

mod cleanup;
mod fence;
mod mover;
mod records;
mod returning;
mod store;
mod tasks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::records::Keys;
use self::tasks::{Claim, Task};
use super::{Directory, DirectoryEvent, DirectoryFigures, DirectoryOutput, HomeReply};
use crate::ids::{Epoch, NodeId, NodeIncarnation, RegionId, Requester};
use crate::members::NodeLoss;
use crate::message::{ErrorReply, LossCause, Reply, Request};
use crate::names;
use crate::news::News;

pub(super) use mover::{Mover, NameState, Next};
pub(super) use records::NameRecord;

pub use mover::MoveJob;
pub use returning::Returned;
pub use store::{Compare, Pair, Step, StoreFailure, Stored, Transaction};

/// Maximum repair transactions in flight, so that lost records are restored gradually.
const REPAIRS_IN_FLIGHT_MAX: usize = 64;
/// Maximum requests in flight; further ones are refused.
const REQUESTS_MAX: usize = 4096;
/// Maximum ended incarnations to remember.
const ENDED_MAX: usize = 4096;
/// Maximum damaged keys to report.
const DAMAGED_MAX: usize = 64;
/// Maximum characters of an edited record to show.
const SHOWN_MAX: usize = 80;
/// Interval between retries while the store is unavailable.
const RETRY_NS: u64 = 500_000_000;
/// Interval between rewrites of the fence. A rewrite detects that the store was restored to an earlier state.
const FENCE_REFRESH_NS: u64 = 10_000_000_000;

/// Interval at which node 0 removes records of incarnations to which no name refers. The shorter delay applies after an
/// incarnation has ended, and while an incarnation has not rewritten its key since the previous cleanup.
const CLEANUP_INTERVAL_NS: u64 = 600_000_000_000;
const CLEANUP_DELAY_NS: u64 = 70_000_000_000;
/// Maximum number of incarnations read at once.
const HOMES_MAX: usize = 10_000;
/// Maximum names of locks and barriers that a leaving node removes.
const RESERVED_REMOVED_MAX: usize = 1000;

/// One node's part of the directory in etcd; see the module's documentation.
#[derive(Debug)]
pub struct EtcdDirectory {
    me: NodeIncarnation,
    keys: Keys,
    /// Time of day, in ns since 1970, at which the clock behind `now_ns` was 0.
    epoch_ns: u64,
    now_ns: u64,
    last_id: u64,
    in_flight: BTreeMap<u64, Sent>,
    repairs_in_flight: usize,
    /// Tasks that are retried until they succeed.
    repairs: VecDeque<Task>,
    /// Revision at which the fence was written; `None` until it is written.
    fence: Option<u64>,
    /// True if a write of the fence is in progress.
    is_fencing: bool,
    /// True once the task that records the ends of `predecessors` has been queued.
    has_ended_predecessors: bool,
    /// Earlier incarnations with this node's number; `None` until the store has listed them.
    predecessors: Option<BTreeSet<NodeIncarnation>>,
    /// Claims that wait for the fence.
    unfenced: Vec<Task>,
    /// Names of this node's regions with their epochs, to be rewritten if the store loses them.
    own_names: BTreeMap<Box<str>, (RegionId, Epoch)>,
    /// Names that were or may still be written for regions that do not exist.
    doubtful: BTreeMap<Box<str>, NameRecord>,
    /// Ended incarnations with cause and time.
    ended: BTreeMap<NodeIncarnation, NodeLoss>,
    /// The keys of `ended`, the oldest first, to evict the oldest.
    ended_order: VecDeque<NodeIncarnation>,
    /// Nodes that are currently paired, and so are alive even if the store has recorded their end.
    paired: BTreeSet<NodeIncarnation>,
    /// Requests in flight that ask homes whether a region has its name.
    home_requests: BTreeMap<u64, HomeRequest>,
    /// Damaged keys that were already reported.
    damaged: BTreeSet<String>,
    /// The node that recorded in etcd that this node has ended; set when that is reported to users.
    ended_by: Option<NodeIncarnation>,
    /// True if the store does not answer.
    is_unavailable: bool,
    /// True if the store has no space left, so that it can only be read.
    is_full: bool,
    /// Cause of the last failure of a request.
    last_failure: String,
    /// The problem reported to users, until its end is reported.
    reported: Option<StoreProblem>,
    /// Time of the next check of the store, in ns; initially 0, for an immediate check.
    retry_ns: u64,
    /// Time in ns of the next removal of unneeded records, by node 0.
    cleanup_ns: u64,
    /// Unconnected incarnations without names, and the revisions of their keys at the last cleanup. A living node
    /// rewrites its key, so that its revision rises.
    unreferenced: BTreeMap<NodeIncarnation, u64>,
    /// The return of the names to node 0 that this node carries out.
    returning: Option<returning::Returning>,
    /// True if an interrupted return may have left the store closed to claims.
    must_reopen: bool,
    is_leaving: bool,
    cluster: Option<u64>,
    revision: u64,
    outputs: VecDeque<DirectoryOutput>,
}

/// A request to a home about a name.
#[derive(Debug)]
struct HomeRequest {
    home: NodeIncarnation,
    query: HomeQuery,
}

impl HomeRequest {
    fn requester(&self) -> Requester {
        match self.query {
            HomeQuery::Claim(Claim { requester, .. }) | HomeQuery::Forget { requester, .. } => requester,
        }
    }
}

#[derive(Debug)]
enum HomeQuery {
    /// A claim that found the name taken.
    Claim(Claim),
    /// A request to forget the name.
    Forget { requester: Requester, taken: Pair },
}

#[derive(Debug)]
struct Sent {
    task: Task,
    /// The store's last known revision when sent. A lower one in the result shows that the store was restored.
    revision: u64,
    /// True if the transaction writes when its conditions fail, and when they hold.
    writes: [bool; 2],
}

/// A problem with the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StoreProblem {
    Unavailable,
    Full,
}

impl EtcdDirectory {
    /// Creates node `me`'s part of the directory, with keys below `prefix`. `epoch_ns` is the time of day, in ns since
    /// 1970, at which `now_ns` was 0.
    pub fn new(me: NodeIncarnation, prefix: &str, epoch_ns: u64) -> EtcdDirectory {
        let mut directory = EtcdDirectory {
            me,
            keys: Keys::new(prefix),
            epoch_ns,
            now_ns: 0,
            last_id: 0,
            in_flight: BTreeMap::new(),
            repairs_in_flight: 0,
            repairs: VecDeque::new(),
            fence: None,
            is_fencing: false,
            has_ended_predecessors: false,
            predecessors: None,
            unfenced: Vec::new(),
            own_names: BTreeMap::new(),
            doubtful: BTreeMap::new(),
            ended: BTreeMap::new(),
            ended_order: VecDeque::new(),
            paired: BTreeSet::new(),
            home_requests: BTreeMap::new(),
            damaged: BTreeSet::new(),
            ended_by: None,
            is_unavailable: false,
            is_full: false,
            last_failure: String::new(),
            reported: None,
            retry_ns: 0,
            cleanup_ns: 0,
            unreferenced: BTreeMap::new(),
            returning: None,
            // An earlier incarnation of node 0 may have been interrupted.
            must_reopen: me.node == NodeId::FIRST,
            is_leaving: false,
            cluster: None,
            revision: 0,
            outputs: VecDeque::new(),
        };
        if !me.node.is_ephemeral() {
            directory.repairs.push_back(Task::RaiseNumber { number_min: me.node.0 + 1 });
        }
        directory
    }

    /// Sends a transaction on behalf of a task.
    fn send(&mut self, task: Task, transaction: Transaction) {
        self.last_id += 1;
        self.repairs_in_flight += usize::from(task.is_repair());
        let writes = [false, true].map(|succeeded| transaction.writes(succeeded));
        self.in_flight.insert(self.last_id, Sent { task, revision: self.revision, writes });
        self.outputs.push_back(DirectoryOutput::Store { id: self.last_id, transaction });
    }

    fn answer(&mut self, requester: Requester, body: Result<Reply, ErrorReply>) {
        self.outputs.push_back(DirectoryOutput::Answer { requester, body });
    }

    fn report(&mut self, news: News) {
        self.outputs.push_back(DirectoryOutput::News(news));
    }

    fn time_of_day_ns(&self) -> u64 {
        self.epoch_ns.saturating_add(self.now_ns)
    }

    /// Starts as many repairs as permitted.
    fn start_repairs(&mut self) {
        while !self.lacks_store()
            && self.repairs_in_flight < REPAIRS_IN_FLIGHT_MAX
            && let Some(task) = self.repairs.pop_front()
        {
            self.begin(task);
        }
    }

    /// Updates the known state of the store from a result.
    fn update_store_state(&mut self, sent_revision: u64, has_written: bool, stored: &Stored) {
        self.is_unavailable = false;
        self.is_full &= !has_written;
        let is_over = match self.reported {
            Some(StoreProblem::Unavailable) => true,
            // A successful read does not prove that the store has space.
            Some(StoreProblem::Full) => has_written,
            None => false,
        };
        if is_over {
            self.reported = None;
            self.retry_ns = self.now_ns.saturating_add(FENCE_REFRESH_NS);
            // The store may have been restored in between.
            self.rewrite_own_names();
            self.report(News::EtcdBack);
        }
        match self.cluster.replace(stored.cluster) {
            Some(was) if was != stored.cluster => {
                self.report(News::EtcdOther { was, is: stored.cluster });
                self.reset_store_state(stored.revision);
            }
            _ if stored.revision < sent_revision => self.handle_restore(stored.revision),
            _ => {}
        }
        self.revision = self.revision.max(stored.revision);
    }

    /// Handles a restored store, which has lost writes.
    fn handle_restore(&mut self, revision: u64) {
        self.report(News::EtcdRestored { was: self.revision, is: revision });
        self.reset_store_state(revision);
    }

    /// Starts to restore this node's records, since the content of the store is unknown.
    fn reset_store_state(&mut self, revision: u64) {
        self.revision = revision;
        self.fence = None;
        // The store may again record ended incarnations as living.
        self.has_ended_predecessors = false;
        self.repairs.extend(self.ended.keys().map(|ended| Task::End { incarnation: *ended }));
        if !self.me.node.is_ephemeral() {
            self.repairs.push_back(Task::RaiseNumber { number_min: self.me.node.0 + 1 });
        }
        self.rewrite_own_names();
    }

    /// Reports a damaged key, unless it was reported already.
    fn report_damaged(&mut self, key: &str) {
        if self.damaged.len() < DAMAGED_MAX && self.damaged.insert(key.to_owned()) {
            self.report(News::EtcdDamaged { key: key.to_owned() });
        }
    }

    /// Starts to rewrite all names of this node.
    fn rewrite_own_names(&mut self) {
        let queued: BTreeSet<&str> = self.repairs.iter().filter_map(Task::updated_name).collect();
        let missing = self.own_names.iter().filter(|(name, _)| !queued.contains(&***name));
        let updates = missing.map(|(name, (region, epoch))| Task::Update {
            name: name.clone(),
            record: NameRecord { region: *region, home: self.me, epoch: *epoch },
        });
        let updates: Vec<Task> = updates.collect();
        self.repairs.extend(updates);
    }

    /// Returns the reply to a request that the store did not answer, or whose outcome is unknown.
    fn unavailable_error(&self) -> ErrorReply {
        let reason = match self.is_unavailable || self.is_full {
            true => self.last_failure.clone(),
            false => "too many requests wait for etcd, or other clients of etcd change the keys; try again"
                .to_owned(),
        };
        ErrorReply::DirectoryOut { reason }
    }

    fn handle_store_failure(&mut self, is_full: bool, reason: String) {
        let problem = if is_full { StoreProblem::Full } else { StoreProblem::Unavailable };
        self.is_unavailable |= !is_full;
        self.is_full |= is_full;
        self.last_failure.clone_from(&reason);
        if self.reported.replace(problem) != Some(problem) {
            self.report(News::EtcdOut { reason });
        }
        self.retry_ns = self.now_ns.saturating_add(RETRY_NS);
    }

    fn record_end(&mut self, incarnation: NodeIncarnation, loss: NodeLoss) {
        if self.ended.insert(incarnation, loss).is_none() {
            self.ended_order.push_back(incarnation);
            if self.ended_order.len() > ENDED_MAX
                && let Some(oldest) = self.ended_order.pop_front()
            {
                self.ended.remove(&oldest);
            }
        }
        // Each permanent node records the ends of permanent nodes, and node 0 also corrects them. Ephemeral nodes come
        // and go with every command: node 0 records their ends, or all permanent nodes do so if it is absent, or a node
        // that finds a name of such a node.
        let is_first = self.me.node == NodeId::FIRST;
        let has_first = || self.paired.iter().any(|paired| paired.node == NodeId::FIRST);
        if is_first || !(self.me.node.is_ephemeral() || incarnation.node.is_ephemeral() && has_first()) {
            self.repair(Task::End { incarnation });
            self.schedule_cleanup();
        }
    }

    fn schedule_cleanup(&mut self) {
        self.cleanup_ns = self.cleanup_ns.min(self.now_ns.saturating_add(CLEANUP_DELAY_NS));
    }

    /// Returns true if this node needs a fence. Ephemeral nodes without names do not.
    fn needs_fence(&self) -> bool {
        let has_names = !self.own_names.is_empty() || !self.doubtful.is_empty() || !self.unfenced.is_empty();
        !self.me.node.is_ephemeral() || self.fence.is_some() || has_names
    }

    /// Asks a home whether its region has the given name.
    fn ask_home(&mut self, home: NodeIncarnation, name: &str, region: RegionId, query: HomeQuery) {
        self.last_id += 1;
        self.home_requests.insert(self.last_id, HomeRequest { home, query });
        self.outputs.push_back(DirectoryOutput::AskHome {
            id: self.last_id,
            home,
            name: name.to_owned(),
            region,
        });
    }

    /// Returns true if a region of this node has that name, or may get it.
    fn may_have(&self, name: &str, region: RegionId) -> bool {
        let is_of = |task: &Task| match task {
            Task::Claim(claim) | Task::CheckHolder { claim, .. } => claim.is_of(name, region),
            // The region was handed over, and its next home may not have written the name yet.
            Task::Update { name: other, record }
            | Task::Write { name: other, record }
            | Task::CheckRival { name: other, record, .. }
            | Task::Clear { name: other, record } => **other == *name && record.region == region,
            _ => false,
        };
        let is_claim = |request: &HomeRequest| matches!(&request.query, HomeQuery::Claim(claim) if claim.is_of(name, region));
        self.own_names.get(name).is_some_and(|(own, _)| *own == region)
            || self.doubtful.get(name).is_some_and(|record| record.region == region)
            || self.unfenced.iter().chain(&self.repairs).any(is_of)
            || self.in_flight.values().any(|sent| is_of(&sent.task))
            || self.home_requests.values().any(is_claim)
    }

    fn repair(&mut self, task: Task) {
        self.repairs.push_back(task);
        self.start_repairs();
    }
}

impl Directory for EtcdDirectory {
    /// Returns node 0, which keeps the list of members.
    fn seat(&self) -> NodeId {
        NodeId::FIRST
    }

    fn prefix(&self) -> Option<&str> {
        Some(self.keys.prefix())
    }

    fn lacks_store(&self) -> bool {
        self.is_unavailable || self.is_full
    }

    fn figures(&self) -> Option<DirectoryFigures> {
        Some(DirectoryFigures {
            names: self.own_names.len() as u64,
            lost: None,
            waiting: self.in_flight.len() as u64,
            is_ready: !self.lacks_store(),
        })
    }

    fn handle_request(&mut self, now_ns: u64, requester: Requester, request: Request) {
        self.now_ns = now_ns;
        if matches!(&request, Request::ClaimName { name, .. } if !names::is_name(name)) {
            return self.answer(requester, Err(ErrorReply::Malformed));
        }
        // Releases are retried until they succeed, so that no name stays taken.
        let is_release = matches!(request, Request::ReleaseName { .. });
        let is_read = matches!(
            request,
            Request::FindName { .. } | Request::ListNames { .. } | Request::ListLost { .. }
        );
        let is_refused = self.is_unavailable || self.is_full && !is_read;
        if !is_release && (is_refused || self.in_flight.len() >= REQUESTS_MAX) {
            return self.answer(requester, Err(self.unavailable_error()));
        }
        match Task::of(requester, request) {
            Some(task) => self.begin(task),
            None => self.answer(requester, Err(ErrorReply::Malformed)),
        }
    }

    fn handle_event(&mut self, now_ns: u64, event: DirectoryEvent) {
        self.now_ns = now_ns;
        match event {
            DirectoryEvent::Names { from, names, .. } => {
                for (name, region, epoch) in names.into_iter().filter(|(name, ..)| names::is_name(name)) {
                    if from == self.me {
                        self.own_names.insert(name.as_str().into(), (region, epoch));
                    }
                    let record = NameRecord { region, home: from, epoch };
                    self.repairs.push_back(Task::Update { name: name.into(), record });
                }
                self.start_repairs();
            }
            DirectoryEvent::Moved { name, region, epoch, to } => {
                if to != self.me && self.own_names.get(name.as_str()).is_some_and(|(own, _)| *own == region) {
                    // The next home decides on the name.
                    self.own_names.remove(name.as_str());
                }
                let record = NameRecord { region, home: to, epoch };
                self.repair(Task::Update { name: name.into(), record });
            }
            DirectoryEvent::Ended { incarnation, loss } | DirectoryEvent::Corrected { incarnation, loss } => {
                self.paired.remove(&incarnation);
                self.record_end(incarnation, loss)
            }
            DirectoryEvent::Killed { incarnation, by, is_reported } => {
                if let Some(loss) = self.ended.get_mut(&incarnation)
                    && loss.mark_killed()
                {
                    let loss = *loss;
                    self.record_end(incarnation, loss);
                    if !is_reported {
                        self.report(News::KilledBy { incarnation, by });
                    }
                }
            }
            DirectoryEvent::Forgotten { node, requester } => {
                self.begin(Task::Sweep { node, after: None, reply_to: Some(requester), was_known: true })
            }
            DirectoryEvent::Paired(incarnation) => {
                self.paired.insert(incarnation);
            }
            DirectoryEvent::Disconnected { incarnation, .. } => {
                self.paired.remove(&incarnation);
            }
            // Names are in the store, so there is no need to wait for homes.
            DirectoryEvent::Connecting | DirectoryEvent::AllConnected | DirectoryEvent::Expected(_) => {}
        }
    }

    fn handle_stored(&mut self, now_ns: u64, id: u64, result: Result<Stored, StoreFailure>) {
        self.now_ns = now_ns;
        let Some(Sent { task, revision, writes }) = self.in_flight.remove(&id) else { return };
        self.repairs_in_flight -= usize::from(task.is_repair());
        match result {
            Ok(stored) => {
                self.update_store_state(revision, writes[usize::from(stored.succeeded)], &stored);
                self.finish(task, stored);
            }
            Err(StoreFailure { may_be_done, is_full, has_others, reason }) => {
                // The next requests go to another endpoint, so they are not refused.
                match has_others {
                    true => self.last_failure = reason,
                    false => self.handle_store_failure(is_full, reason),
                }
                self.fail(task, may_be_done, has_others);
            }
        }
        self.start_repairs();
    }

    fn free_leftover(&mut self, now_ns: u64, requester: Requester, name: &str, region: RegionId) {
        self.now_ns = now_ns;
        if self.lacks_store() || self.in_flight.len() >= REQUESTS_MAX {
            return self.answer(requester, Err(self.unavailable_error()));
        }
        if self.may_have(name, region) {
            return self.answer(requester, Err(ErrorReply::NameTaken));
        }
        let record = NameRecord { region, home: self.me, epoch: Epoch::default() };
        self.begin(Task::Release { requester: Some(requester), name: name.into(), record, exactly: None });
    }

    fn handle_home_reply(&mut self, now_ns: u64, id: u64, reply: HomeReply) {
        self.now_ns = now_ns;
        let Some(HomeRequest { home, query }) = self.home_requests.remove(&id) else { return };
        match (query, reply) {
            (HomeQuery::Claim(claim), HomeReply::Freed) if claim.tries < tasks::TRIES_MAX => {
                self.begin(Task::Claim(claim.again()))
            }
            (HomeQuery::Claim(claim), _) => self.answer(claim.requester, Err(ErrorReply::NameTaken)),
            (HomeQuery::Forget { requester, .. }, HomeReply::Freed) => {
                self.answer(requester, Ok(Reply::Done))
            }
            (HomeQuery::Forget { requester, taken }, HomeReply::Unknown) => {
                self.begin(Task::ForgetUnplaced { requester, taken, node: home.node })
            }
            (HomeQuery::Forget { requester, .. }, HomeReply::Has | HomeReply::Silent) => {
                self.answer(requester, Err(ErrorReply::NotFound))
            }
        }
        self.start_repairs();
    }

    fn begin_move(&mut self, _now_ns: u64, _job: MoveJob) {
        self.outputs.push_back(DirectoryOutput::NotMoved { reason: "they are in etcd already".to_owned() });
    }

    fn begin_return(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.start_return();
    }

    fn take_pending(&mut self) -> (Vec<Requester>, Vec<DirectoryEvent>) {
        (self.take_waiting(), Vec::new())
    }

    fn last_id(&self) -> u64 {
        self.last_id
    }

    /// Removes names of locks and barriers, and records that this node left. Its engine reports its lost regions.
    fn deregister(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.is_leaving = true;
        if self.is_unavailable || !self.needs_fence() {
            return;
        }
        let own = std::mem::take(&mut self.own_names);
        let (reserved, lost): (Vec<_>, Vec<_>) =
            own.into_iter().partition(|(name, _)| names::is_reserved(name));
        for (name, (region, epoch)) in reserved.into_iter().take(RESERVED_REMOVED_MAX) {
            let record = NameRecord { region, home: self.me, epoch };
            self.begin(Task::Clear { name, record });
        }
        let key = self.keys.home(self.me);
        let loss = NodeLoss { cause: LossCause::Left, at_ns: i64::try_from(now_ns).unwrap_or(i64::MAX) };
        let step = match lost.is_empty() && self.doubtful.is_empty() {
            true => Step::Delete(key.clone()),
            false => Step::Put(key.clone(), self.record_of(loss).emit()),
        };
        self.send(Task::Deregister, Transaction::when(vec![Compare::Present(key)], vec![step]));
    }

    fn is_deregistered(&self) -> bool {
        let is_for_deregistration = |task: &Task| matches!(task, Task::Deregister | Task::Clear { .. });
        self.is_unavailable || !self.in_flight.values().any(|sent| is_for_deregistration(&sent.task))
    }

    fn poll_timeout(&self) -> u64 {
        if self.is_leaving { u64::MAX } else { self.retry_ns }
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if self.retry_ns > now_ns || self.is_leaving {
            return;
        }
        self.retry_ns = now_ns.saturating_add(if self.lacks_store() { RETRY_NS } else { FENCE_REFRESH_NS });
        // Other tasks follow after the fence is written.
        match self.needs_fence() {
            true => self.begin_fencing(),
            false if self.is_unavailable => self.begin(Task::Probe),
            // The next write shows whether the store has space.
            false => self.is_full = false,
        }
        if self.me.node == NodeId::FIRST && !self.lacks_store() && self.cleanup_ns <= now_ns {
            self.cleanup_ns = now_ns.saturating_add(CLEANUP_INTERVAL_NS);
            self.repair(Task::CleanNames { after: None, referenced: BTreeSet::new() });
        }
    }

    fn poll(&mut self) -> Option<DirectoryOutput> {
        self.outputs.pop_front()
    }
}
