//! Brings all names from the directory that nodes keep by themselves to etcd, while that goes on giving and finding names.
//!
//! ```text
//!   look ── take ── clear what an earlier move has left ── copy, some names at a time ──┐
//!                                                             ▲     what has changed ◄──┤
//!                                                             └───── meanwhile ─────────┤
//!                        few are left: questions wait ── copy the rest ── close ◄───────┘
//! ```
//!
//! A key marks the move.  Each transaction wants it as this move has written it: what an earlier one has sent and comes late does nothing, and of two clusters
//! that move to one place, the one that takes the mark later wins.  Names of others are never written over: where a cluster has
//! its names already, the key of one of its incarnations says that it lives, and those that a move writes say that they are awaited.
//! One transaction is under way at a time, so that the last word on a name or a home is the last that was written.

use std::collections::{BTreeMap, BTreeSet};

use super::records::{HomeRecord, Keys, NameRecord};
use super::store::{Compare, Pair, Step, Stored, Transaction};
use crate::ids::{Incarnation, NodeIncarnation, RegionId};
use crate::members::Parting;

/// Names in a transaction: each writes a name and perhaps a home, and etcd takes 128 steps.
const BATCH: usize = 50;
/// Most homes that are looked at.
const HOMES_MAX: usize = 10_000;

/// What a move needs to know.
#[derive(Clone, Debug)]
pub struct MoveJob {
    /// The node that moves its names.
    pub me: NodeIncarnation,
    /// Below which the keys are to be.
    pub prefix: String,
    /// The time of day, in ns since 1970, when the clock that tells us the time was at 0.
    pub epoch_ns: u64,
    /// All numbers of nodes below are taken.
    pub next_number: u32,
}

/// What a name is at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::directory) enum Told {
    Leads(NameRecord),
    Lost(NodeIncarnation, Parting),
    Free,
}

/// What comes next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::directory) enum Next {
    Send(Transaction),
    Moved,
    Failed(String),
}

/// See the header of this file.
#[derive(Debug)]
pub(in crate::directory) struct Mover {
    job: MoveJob,
    keys: Keys,
    step: Doing,
    /// At which revision the mark was written.
    marked_at: u64,
    /// Names of which the store does not know what they are.
    untold: BTreeSet<Box<str>>,
    is_frozen: bool,
    /// How many names were written, and how many of those that were lost.
    pub(in crate::directory) count: (u64, u64),
}

/// What the transaction that is under way is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    Looking,
    Taking,
    ListingLeft,
    Clearing,
    Copying,
    Closing,
}

impl Mover {
    /// `names` are all that there are, and all that were lost.
    pub(in crate::directory) fn new(job: MoveJob, names: BTreeSet<Box<str>>) -> Mover {
        let keys = Keys::new(&job.prefix);
        let step = Doing::Looking;
        Mover { job, keys, step, marked_at: 0, untold: names, is_frozen: false, count: (0, 0) }
    }

    /// The first transaction.
    pub(in crate::directory) fn begin(&self) -> Transaction {
        let list = |prefix, limit| Step::List { prefix, after: None, limit };
        let then =
            vec![Step::Get(self.keys.mark()), list(self.keys.names(), 1), list(self.keys.homes(), HOMES_MAX)];
        Transaction { then, ..Transaction::default() }
    }

    /// Whether questions have to wait, so that it comes to an end.
    pub(in crate::directory) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// A name is not any more what the store was told.
    pub(in crate::directory) fn note_changed(&mut self, name: &str) {
        self.untold.insert(name.into());
    }

    /// A transaction was carried out, by one branch or the other.
    pub(in crate::directory) fn handle_stored(
        &mut self,
        stored: &Stored,
        told: impl Fn(&str) -> Told,
    ) -> Next {
        match self.step {
            Doing::Looking => self.take(stored),
            _ if !stored.is_so => Next::Failed(format!(
                "another cluster is being moved to {} too, or its mark there was removed",
                self.job.prefix
            )),
            Doing::Taking => {
                self.marked_at = stored.revision;
                self.list_left()
            }
            Doing::ListingLeft => self.clear(stored, told),
            Doing::Clearing => self.list_left(),
            Doing::Copying => self.copy(told),
            // A cluster was founded there meanwhile.
            Doing::Closing if stored.read.iter().flatten().any(lives) => self.taken(),
            Doing::Closing if self.untold.is_empty() => Next::Moved,
            // Something has changed meanwhile.
            Doing::Closing => self.copy(told),
        }
    }

    fn take(&mut self, looked: &Stored) -> Next {
        let read = |step: usize| looked.read.get(step).map(Vec::as_slice).unwrap_or_default();
        let (mark, names, homes) = (read(0).first(), read(1), read(2));
        if homes.iter().any(lives) || mark.is_none() && !(names.is_empty() && homes.is_empty()) {
            return self.taken();
        }
        let key = self.keys.mark();
        let compares = vec![match mark {
            Some(mark) => Compare::WrittenAt(key.clone(), mark.written_at),
            None => Compare::Absent(key.clone()),
        }];
        let mark = format!("moving {}", super::records::incarnation_text(self.job.me));
        self.send(
            Doing::Taking,
            Transaction { compares, then: vec![Step::Put(key, mark)], otherwise: Vec::new() },
        )
    }

    fn taken(&self) -> Next {
        Next::Failed(format!(
            "there are names of another cluster below {0}; choose another prefix, or remove them if nobody needs them (etcdctl del --prefix {0}/)",
            self.job.prefix
        ))
    }

    fn send(&mut self, step: Doing, transaction: Transaction) -> Next {
        self.step = step;
        Next::Send(transaction)
    }

    fn as_marked(&self) -> Vec<Compare> {
        vec![Compare::WrittenAt(self.keys.mark(), self.marked_at)]
    }

    fn list_left(&mut self) -> Next {
        let list = |prefix| Step::List { prefix, after: None, limit: BATCH };
        let then = vec![list(self.keys.names()), list(self.keys.homes())];
        let transaction = Transaction { compares: self.as_marked(), then, otherwise: Vec::new() };
        self.send(Doing::ListingLeft, transaction)
    }

    fn clear(&mut self, listed: &Stored, told: impl Fn(&str) -> Told) -> Next {
        let then: Vec<Step> =
            listed.read.iter().flatten().map(|pair| Step::Delete(pair.key.clone())).collect();
        if then.is_empty() {
            return self.copy(told);
        }
        let transaction = Transaction { compares: self.as_marked(), then, otherwise: Vec::new() };
        self.send(Doing::Clearing, transaction)
    }

    /// Writes some names that are not written, or closes the move.
    fn copy(&mut self, told: impl Fn(&str) -> Told) -> Next {
        self.is_frozen |= self.untold.len() <= BATCH;
        let mut homes = BTreeMap::new();
        let mut then = Vec::new();
        for _ in 0..BATCH {
            let Some(name) = self.untold.pop_first() else { break };
            let key = self.keys.name(&name);
            let (record, home) = match told(&name) {
                Told::Free => {
                    then.push(Step::Delete(key));
                    continue;
                }
                Told::Leads(record) => {
                    self.count.0 += 1;
                    (record, HomeRecord::Awaited)
                }
                Told::Lost(home, parting) => {
                    self.count.1 += 1;
                    // Of a region that there is not any more, nobody asks which it was.
                    let region = RegionId { origin: Incarnation(0), serial: 0 };
                    let at_ns = self.job.epoch_ns.saturating_add_signed(parting.at_ns);
                    let record = NameRecord { region, home, epoch: Default::default() };
                    (record, HomeRecord::Ended { cause: parting.cause, at_ns, by: Some(self.job.me) })
                }
            };
            homes.insert(record.home, home);
            then.push(Step::Put(key, record.emit()));
        }
        if then.is_empty() {
            let next = self.job.next_number.to_string();
            then.push(Step::Put(self.keys.numbers(), next));
            then.push(Step::List { prefix: self.keys.homes(), after: None, limit: HOMES_MAX });
            let transaction = Transaction { compares: self.as_marked(), then, otherwise: Vec::new() };
            return self.send(Doing::Closing, transaction);
        }
        then.extend(homes.into_iter().map(|(home, record)| Step::Put(self.keys.home(home), record.emit())));
        let transaction = Transaction { compares: self.as_marked(), then, otherwise: Vec::new() };
        self.send(Doing::Copying, transaction)
    }
}

/// Whether the incarnation has written itself that it lives, below a prefix that nobody had.
fn lives(home: &Pair) -> bool {
    HomeRecord::parse(&home.value) == Some(HomeRecord::Lives)
}
