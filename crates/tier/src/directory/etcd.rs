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

mod records;
mod store;
mod tasks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::records::{Keys, NameRecord};
use self::tasks::Task;
use super::{Directory, DirectoryFigures, Said, Word};
use crate::ids::{Epoch, NodeId, NodeLife, RegionId, Requester};
use crate::members::Parting;
use crate::message::{ErrorReply, Reply, Request};
use crate::names;
use crate::news::News;

pub use store::{Compare, Pair, Step, StoreFailure, Stored, Transaction};

/// Most transactions under way of which nobody waits: they fill what was lost in by and by.
const REPAIRS_UNDER_WAY_MAX: usize = 64;
/// Most questions under way; more are refused.
const QUESTIONS_MAX: usize = 4096;
/// Most lives that are remembered as over.
const ENDED_MAX: usize = 4096;
/// How often it is tried whether a store is back.
const LOOK_AGAIN_NS: u64 = 500_000_000;
/// How often the fence is written anew: a store that was restored to what it was before the last time does not have it so.
const FENCE_ANEW_NS: u64 = 10_000_000_000;

/// One node's part of the directory.  See the header of this file.
#[derive(Debug)]
pub struct EtcdDirectory {
    me: NodeLife,
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
    /// Whether earlier lives of our number were ended.
    has_succeeded: bool,
    /// Claims that wait for it.
    unfenced: Vec<Task>,
    /// Names of regions of this node, and as of which change: what a store that has lost them is told.
    ours: BTreeMap<Box<str>, (RegionId, Epoch)>,
    /// Names that we may have written, or may yet write, for regions that there are not.
    doubtful: BTreeMap<Box<str>, NameRecord>,
    /// Lives that are over, and how they ended; the oldest are forgotten.
    ended: BTreeMap<NodeLife, Parting>,
    ended_order: VecDeque<NodeLife>,
    /// Whether the store does not answer, and when it is looked at next: at once in the beginning.
    is_out: bool,
    look_again_ns: u64,
    cluster: Option<u64>,
    revision: u64,
    said: VecDeque<Said>,
}

#[derive(Debug)]
struct Sent {
    task: Task,
    /// The revision of the store that was known then: what is lower was restored.
    revision: u64,
}

impl EtcdDirectory {
    /// The part of node `me` in the directory below `prefix`; `epoch_ns` is the time of day when its clock was at 0.
    pub fn new(me: NodeLife, prefix: &str, epoch_ns: u64) -> EtcdDirectory {
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
            unfenced: Vec::new(),
            ours: BTreeMap::new(),
            doubtful: BTreeMap::new(),
            ended: BTreeMap::new(),
            ended_order: VecDeque::new(),
            is_out: false,
            look_again_ns: 0,
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
        self.under_way.insert(self.last_id, Sent { task, revision: self.revision });
        self.said.push_back(Said::Store { id: self.last_id, transaction });
    }

    fn answer(&mut self, requester: Requester, body: Result<Reply, ErrorReply>) {
        self.said.push_back(Said::Answer { requester, body });
    }

    /// Begins what is to be done until it is done, as much of it as may be under way.
    fn go_on(&mut self) {
        while !self.is_out
            && self.repairs_under_way < REPAIRS_UNDER_WAY_MAX
            && let Some(task) = self.repairs.pop_front()
        {
            self.begin(task);
        }
    }

    /// What was heard of the store itself.
    fn note_store(&mut self, sent_revision: u64, stored: &Stored) {
        if std::mem::replace(&mut self.is_out, false) {
            self.look_again_ns = self.now_ns.saturating_add(FENCE_ANEW_NS);
            // It may have been restored.
            self.tell_all_of_ours();
            self.said.push_back(Said::News(News::EtcdBack));
        }
        let is_other = self.cluster.is_some_and(|cluster| cluster != stored.cluster);
        if is_other || stored.revision < sent_revision {
            self.note_restored(stored.revision);
        }
        self.cluster = Some(stored.cluster);
        self.revision = self.revision.max(stored.revision);
    }

    /// The store has forgotten what was written.
    fn note_restored(&mut self, revision: u64) {
        self.said.push_back(Said::News(News::EtcdRestored { was: self.revision, is: revision }));
        self.revision = revision;
        self.fence = None;
        self.tell_all_of_ours();
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

    fn note_failure(&mut self, reason: String) {
        if !std::mem::replace(&mut self.is_out, true) {
            self.said.push_back(Said::News(News::EtcdOut { reason }));
        }
        self.look_again_ns = self.now_ns.saturating_add(LOOK_AGAIN_NS);
    }

    fn note_ended(&mut self, life: NodeLife, parting: Parting) {
        if self.ended.insert(life, parting).is_none() {
            self.ended_order.push_back(life);
            if self.ended_order.len() > ENDED_MAX
                && let Some(oldest) = self.ended_order.pop_front()
            {
                self.ended.remove(&oldest);
            }
        }
        // Of nodes that stay, whoever comes first writes it down, and node 0 what it hears later; of applications, which come and go
        // with every command, node 0 alone, or who finds a name of such a life.
        if self.me.node == NodeId::FIRST || !self.me.node.is_ephemeral() && !life.node.is_ephemeral() {
            self.repair(Task::End { life });
        }
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

    fn figures(&self) -> Option<DirectoryFigures> {
        Some(DirectoryFigures {
            names: self.ours.len() as u64,
            lost: 0,
            waiting: self.under_way.len() as u64,
            is_ready: !self.is_out,
        })
    }

    fn ask(&mut self, now_ns: u64, requester: Requester, question: Request) {
        self.now_ns = now_ns;
        if matches!(&question, Request::ClaimName { name, .. } if !names::is_name(name)) {
            return self.answer(requester, Err(ErrorReply::Malformed));
        }
        // What is given up must not be taken for given: it is tried until it is so.
        let is_release = matches!(question, Request::ReleaseName { .. });
        if !is_release && (self.is_out || self.under_way.len() >= QUESTIONS_MAX) {
            return self.answer(requester, Err(ErrorReply::DirectoryOut));
        }
        if let Request::ForgetNode { node } = question {
            self.answer(requester, Ok(Reply::Done));
            return self.repair(Task::Sweep { node, after: None });
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
                let record = NameRecord { region, home: to, epoch };
                self.repairs.push_back(Task::Update { name: name.into(), record });
                self.go_on();
            }
            Word::Ended { life, parting } | Word::Corrected { life, parting } => {
                self.note_ended(life, parting)
            }
            Word::Killed { life, by, is_told } => {
                if let Some(parting) = self.ended.get_mut(&life)
                    && parting.note_killed()
                {
                    let parting = *parting;
                    self.note_ended(life, parting);
                    if !is_told {
                        self.said.push_back(Said::News(News::KilledBy { life, by }));
                    }
                }
            }
            Word::Forgotten(node) => self.repair(Task::Sweep { node, after: None }),
            // Nobody waits for homes here: what they hold is written down.
            Word::Meeting | Word::AllMet | Word::Expected(_) | Word::Parted { .. } => {}
        }
    }

    fn handle_stored(&mut self, now_ns: u64, id: u64, result: Result<Stored, StoreFailure>) {
        self.now_ns = now_ns;
        let Some(Sent { task, revision }) = self.under_way.remove(&id) else { return };
        self.repairs_under_way -= usize::from(task.is_repair());
        match result {
            Ok(stored) => {
                self.note_store(revision, &stored);
                self.finish(task, stored);
            }
            Err(StoreFailure { may_be_done, reason }) => {
                self.note_failure(reason);
                self.fail(task, may_be_done);
            }
        }
        self.go_on();
    }

    fn poll_timeout(&self) -> u64 {
        self.look_again_ns
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if self.look_again_ns > now_ns {
            return;
        }
        self.look_again_ns = now_ns.saturating_add(if self.is_out { LOOK_AGAIN_NS } else { FENCE_ANEW_NS });
        // Where the store was away, this is tried first, and the rest follows when it comes about.
        self.begin_fencing();
    }

    fn poll(&mut self) -> Option<Said> {
        self.said.pop_front()
    }
}
