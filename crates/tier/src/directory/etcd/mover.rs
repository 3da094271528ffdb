//! Moves all names from the embedded directory to etcd, while the embedded directory continues to serve requests.
//!
//! ```text
//!   read mark ── write mark ── clear leftovers of an earlier move ── copy a batch of names ──┐
//!                                                                      ▲     names remain    │
//!                                                                      └─────────────────────┤
//!                     at most one batch remains: requests wait ── copy it ── close ◄─────────┘
//! ```
//!
//! The move writes a key, the mark, and each transaction of the move requires that the mark is unchanged. So late
//! transactions of an earlier move have no effect, and if two clusters move their names to one prefix, the cluster that
//! wrote the mark last succeeds. A move never overwrites names of a cluster that uses the prefix: that cluster's
//! incarnations have recorded themselves as alive, while a move records incarnations as awaited. Only one transaction
//! is in flight, so the last record written for a name or home is final.

use std::collections::{BTreeMap, BTreeSet};

use super::HOMES_MAX;
use super::records::{HomeRecord, Keys, NameRecord, incarnation_text};
use super::store::{Compare, Pair, Step, Stored, Transaction};
use crate::ids::{Incarnation, NodeIncarnation, RegionId};
use crate::members::NodeLoss;

/// Names per transaction: each needs a step, and its home may need another; etcd accepts 128 steps.
const BATCH_NAMES: usize = 50;

/// The parameters of a move of all names to etcd.
#[derive(Clone, Debug)]
pub struct MoveJob {
    /// The node that moves the names: the seat of the embedded directory.
    pub me: NodeIncarnation,
    /// The prefix of the keys in etcd.
    pub prefix: String,
    /// Time of day, in ns since 1970, at which the clock behind `now_ns` was 0.
    pub epoch_ns: u64,
    /// The lowest node number that is not taken.
    pub next_number: u32,
}

/// The current state of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::directory) enum NameState {
    Assigned(NameRecord),
    Lost(NodeIncarnation, NodeLoss),
    Free,
}

/// The next step of a move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::directory) enum Next {
    Send(Transaction),
    Moved,
    Failed(String),
}

/// The state of a move; see the module's documentation.
#[derive(Debug)]
pub(in crate::directory) struct Mover {
    job: MoveJob,
    keys: Keys,
    phase: Phase,
    /// The revision at which the mark was written.
    marked_at: u64,
    /// Names whose current state is not in the store yet.
    unwritten: BTreeSet<Box<str>>,
    is_frozen: bool,
    /// Number of names and of lost names written so far.
    pub(in crate::directory) count: (u64, u64),
}

/// The purpose of the transaction in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    ReadingMark,
    WritingMark,
    ListingLeftovers,
    Clearing,
    Copying,
    Closing,
}

impl Mover {
    /// Creates a move of `names`, which include lost names.
    pub(in crate::directory) fn new(job: MoveJob, names: BTreeSet<Box<str>>) -> Mover {
        let keys = Keys::new(&job.prefix);
        Mover {
            job,
            keys,
            phase: Phase::ReadingMark,
            marked_at: 0,
            unwritten: names,
            is_frozen: false,
            count: (0, 0),
        }
    }

    /// Returns the first transaction.
    pub(in crate::directory) fn begin(&self) -> Transaction {
        Transaction::read(vec![
            Step::Get(self.keys.mark()),
            Step::list(self.keys.names(), 1),
            Step::list(self.keys.homes(), HOMES_MAX),
            Step::Get(self.keys.closed()),
        ])
    }

    /// Returns true if requests have to wait, so that the move can end.
    pub(in crate::directory) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Records that the state of a name has changed, so that it is written again.
    pub(in crate::directory) fn mark_changed(&mut self, name: &str) {
        self.unwritten.insert(name.into());
    }

    /// Handles the result of the transaction in flight, and returns the next step.
    pub(in crate::directory) fn handle_stored(
        &mut self,
        stored: &Stored,
        state_of: impl Fn(&str) -> NameState,
    ) -> Next {
        match self.phase {
            Phase::ReadingMark => self.write_mark(stored),
            _ if !stored.succeeded => Next::Failed(format!(
                "another cluster is moving its names to {} too, or the mark of this move was removed",
                self.job.prefix
            )),
            Phase::WritingMark => {
                self.marked_at = stored.revision;
                self.list_leftovers()
            }
            Phase::ListingLeftovers => self.clear(stored, state_of),
            Phase::Clearing => self.list_leftovers(),
            Phase::Copying => self.copy(state_of),
            // Another cluster started to use the prefix in the meantime.
            Phase::Closing if stored.read.iter().flatten().any(is_alive) => self.refuse_taken(),
            Phase::Closing if self.unwritten.is_empty() => Next::Moved,
            // Names have changed in the meantime.
            Phase::Closing => self.copy(state_of),
        }
    }

    fn write_mark(&mut self, found: &Stored) -> Next {
        let (mark, names, homes) = (found.first(0), found.pairs(1), found.pairs(2));
        if found.first(3).is_some() {
            return Next::Failed(format!(
                "the names of a cluster were moved back to node 0 from {0}; choose another prefix, or remove its keys once all nodes of that cluster have ended (etcdctl del --prefix {0}/)",
                self.job.prefix
            ));
        }
        if homes.iter().any(is_alive) || mark.is_none() && !(names.is_empty() && homes.is_empty()) {
            return self.refuse_taken();
        }
        let key = self.keys.mark();
        let compares = vec![Compare::still(&key, mark)];
        let mark = format!("moving {}", incarnation_text(self.job.me));
        self.send(Phase::WritingMark, Transaction::when(compares, vec![Step::Put(key, mark)]))
    }

    fn refuse_taken(&self) -> Next {
        Next::Failed(format!(
            "there are names of another cluster below {0}; choose another prefix, or remove them if they are not needed (etcdctl del --prefix {0}/)",
            self.job.prefix
        ))
    }

    fn send(&mut self, phase: Phase, transaction: Transaction) -> Next {
        self.phase = phase;
        Next::Send(transaction)
    }

    /// Sends a transaction that has an effect only while the mark is unchanged.
    fn send_marked(&mut self, phase: Phase, then: Vec<Step>) -> Next {
        let mark = Compare::WrittenAt(self.keys.mark(), self.marked_at);
        self.send(phase, Transaction::when(vec![mark], then))
    }

    fn list_leftovers(&mut self) -> Next {
        let [names, homes] = [self.keys.names(), self.keys.homes()];
        let then = [names, homes].map(|prefix| Step::list(prefix, BATCH_NAMES));
        self.send_marked(Phase::ListingLeftovers, then.into())
    }

    fn clear(&mut self, listed: &Stored, state_of: impl Fn(&str) -> NameState) -> Next {
        let then: Vec<Step> =
            listed.read.iter().flatten().map(|pair| Step::Delete(pair.key.clone())).collect();
        if then.is_empty() {
            return self.copy(state_of);
        }
        self.send_marked(Phase::Clearing, then)
    }

    /// Writes some of the remaining names. If no names remain, closes the move.
    fn copy(&mut self, state_of: impl Fn(&str) -> NameState) -> Next {
        self.is_frozen |= self.unwritten.len() <= BATCH_NAMES;
        let mut homes = BTreeMap::new();
        let mut then = Vec::new();
        for _ in 0..BATCH_NAMES {
            let Some(name) = self.unwritten.pop_first() else { break };
            let key = self.keys.name(&name);
            let (record, home) = match state_of(&name) {
                NameState::Free => {
                    then.push(Step::Delete(key));
                    continue;
                }
                NameState::Assigned(record) => {
                    self.count.0 += 1;
                    (record, HomeRecord::Awaited)
                }
                NameState::Lost(home, loss) => {
                    self.count.1 += 1;
                    // The id of a lost region is not needed.
                    let region = RegionId { origin: Incarnation(0), serial: 0 };
                    let at_ns = self.job.epoch_ns.saturating_add_signed(loss.at_ns);
                    let record = NameRecord { region, home, epoch: Default::default() };
                    (record, HomeRecord::Ended { cause: loss.cause, at_ns, by: Some(self.job.me) })
                }
            };
            homes.insert(record.home, home);
            then.push(Step::Put(key, record.emit()));
        }
        if then.is_empty() {
            then.push(Step::Put(self.keys.numbers(), self.job.next_number.to_string()));
            then.push(Step::list(self.keys.homes(), HOMES_MAX));
            return self.send_marked(Phase::Closing, then);
        }
        then.extend(homes.into_iter().map(|(home, record)| Step::Put(self.keys.home(home), record.emit())));
        self.send_marked(Phase::Copying, then)
    }
}

/// Returns true if the incarnation itself has recorded that it is alive.
fn is_alive(home: &Pair) -> bool {
    HomeRecord::parse(&home.value) == Some(HomeRecord::Alive)
}
