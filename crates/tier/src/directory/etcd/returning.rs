//! Moves all names from etcd back to node 0, while sessions continue to look names up.
//!
//! ```text
//!   close to claims ── read names, page by page ── close permanently ──► node 0 answers requests
//! ```
//!
//! The key `PREFIX/closed` has the value `closing` during the return, and `closed` afterwards. Each claim and each issue
//! of a number requires that the key is absent, so node 0 reads all names. A node that reads `closed` sends its requests
//! to node 0 from then on, even without a notice from another node. The names read from etcd are needed for lost and
//! unreachable homes only: all connected homes report their names to node 0 again, as after a restart of node 0.

use std::collections::BTreeMap;

use super::records::NameRecord;
use super::store::{Compare, Pair, Step, Stored, Transaction};
use super::tasks::{Claim, TRIES_MAX, Task};
use super::{EtcdDirectory, RETRY_NS};
use crate::directory::{DirectoryOutput, NAMES_PER_ANSWER_MAX};
use crate::ids::{NodeIncarnation, Requester};
use crate::members::NodeLoss;
use crate::message::ErrorReply;
use crate::names;

/// Values of the key that closes the store to claims.
const CLOSING: &str = "closing";
const CLOSED: &str = "closed";

/// The names that node 0 has read from etcd.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Returned {
    pub(in crate::directory) names: BTreeMap<Box<str>, NameRecord>,
    pub(in crate::directory) lost: BTreeMap<Box<str>, (NodeIncarnation, NodeLoss)>,
    /// The first free node number; 0 if it was not read.
    pub(crate) next_number: u32,
}

impl Returned {
    /// Returns the number of names, and of lost names.
    pub(crate) fn count(&self) -> (u64, u64) {
        (self.names.len() as u64, self.lost.len() as u64)
    }
}

/// A return of the names in progress.
#[derive(Debug, Default)]
pub(super) struct Returning {
    /// Revision at which the store was closed to claims.
    closed_at: u64,
    returned: Returned,
}

impl EtcdDirectory {
    /// Closes the store to claims. The fence invalidates the transaction if its result stays unknown.
    pub(super) fn start_return(&mut self) {
        let Some(fence) = self.fence else {
            return self
                .outputs
                .push_back(DirectoryOutput::NotMoved { reason: self.unavailable_error().to_string() });
        };
        self.returning = Some(Returning::default());
        let (key, home) = (self.keys.closed(), self.keys.home(self.me));
        self.close(vec![Compare::WrittenAt(home, fence), Compare::Absent(key)]);
    }

    fn close(&mut self, compares: Vec<Compare>) {
        let key = self.keys.closed();
        let (then, otherwise) = (vec![Step::Put(key.clone(), CLOSING.to_owned())], vec![Step::Get(key)]);
        self.send(Task::Close, Transaction { compares, then, otherwise });
    }

    pub(super) fn finish_closing(&mut self, stored: &Stored) {
        match (stored.succeeded, stored.first(0), self.fence) {
            (true, ..) => {}
            // An earlier return has ended, without a notice to this node.
            (_, Some(closed), _) if closed.value == CLOSED => {
                return self.outputs.push_back(DirectoryOutput::Closed);
            }
            // An earlier return was interrupted.
            (_, Some(closed), Some(fence)) if self.returning.is_some() => {
                let home = Compare::WrittenAt(self.keys.home(self.me), fence);
                return self.close(vec![home, Compare::unchanged(closed)]);
            }
            _ => return self.fail_return("node 0 renews its key in etcd; repeat".to_owned()),
        }
        if let Some(returning) = &mut self.returning {
            returning.closed_at = stored.revision;
            self.read_back(None);
        }
    }

    fn read_back(&mut self, after: Option<String>) {
        let page = self.page(after.as_deref(), NAMES_PER_ANSWER_MAX);
        self.send(Task::ReadBack, Transaction::read(page.into()));
    }

    /// Takes over one page of names.
    pub(super) fn add_page(&mut self, stored: &Stored) {
        let Some(mut returning) = self.returning.take() else { return };
        let (endings, pairs) = (self.endings(stored), stored.pairs(0));
        for pair in pairs {
            let Some(name) = self.keys.name_of(&pair.key) else { continue };
            let Some(record) = NameRecord::parse(&pair.value) else {
                self.report_damaged(&pair.key);
                continue;
            };
            match endings.get(&record.home).map(|loss| NodeLoss::from_age(*loss, self.now_ns)) {
                Some(loss) => returning.returned.lose(name.into(), record.home, loss),
                None => drop(returning.returned.names.insert(name.into(), record)),
            }
        }
        let is_known = |home: NodeIncarnation| {
            home == self.me || self.paired.contains(&home) || self.ended.contains_key(&home)
        };
        let unknown = returning.returned.names.iter().find(|(_, record)| !is_known(record.home));
        let unknown = unknown.map(|(name, record)| (name.clone(), record.home.node));
        let closed_at = returning.closed_at;
        self.returning = Some(returning);
        match (self.last_of_page(pairs, NAMES_PER_ANSWER_MAX), unknown) {
            (Some(last), _) => self.read_back(Some(last)),
            (None, Some((name, node))) => self.fail_return(format!(
                "node {node}, which has {name:?}, is not connected to node 0; start it, or give its names up by `halite forget {node}`, then repeat"
            )),
            (None, None) => {
                let key = self.keys.closed();
                let then = vec![Step::Get(self.keys.numbers()), Step::Put(key.clone(), CLOSED.to_owned())];
                self.send(
                    Task::ClosePermanently,
                    Transaction::when(vec![Compare::WrittenAt(key, closed_at)], then),
                );
            }
        }
    }

    pub(super) fn finish_return(&mut self, stored: &Stored) {
        if !stored.succeeded {
            return self.fail_return(format!("another client changed {}; repeat", self.keys.closed()));
        }
        let Some(Returning { mut returned, .. }) = self.returning.take() else { return };
        returned.next_number = self.next_number(stored.first(0));
        // Some homes may have ended after their page was read.
        let ended = returned.names.extract_if(.., |_, record| self.ended.contains_key(&record.home));
        for (name, record) in ended.collect::<Vec<_>>() {
            returned.lose(name, record.home, self.ended[&record.home]);
        }
        self.outputs.push_back(DirectoryOutput::Returned(Box::new(returned)));
    }

    /// Ends a return without effect, and opens the store to claims.
    pub(super) fn fail_return(&mut self, reason: String) {
        self.returning = None;
        // Claims wait for the next fence, which invalidates transactions of this return.
        (self.fence, self.must_reopen) = (None, true);
        self.retry_ns = self.now_ns;
        self.outputs.push_back(DirectoryOutput::NotMoved { reason });
    }

    /// Opens the store to claims if a return was interrupted and has not ended.
    pub(super) fn reopen(&mut self) {
        if self.returning.is_some() || !std::mem::take(&mut self.must_reopen) {
            return;
        }
        let key = self.keys.closed();
        let compare = Compare::Holds(key.clone(), CLOSING.to_owned());
        self.repair(Task::Unchecked(Transaction::when(vec![compare], vec![Step::Delete(key)])));
    }

    /// Returns true, and notifies the engine, if a task has found the store permanently closed.
    pub(super) fn handle_closed(&mut self, task: &Task, stored: &Stored) -> bool {
        let step = match task {
            Task::Find { .. } | Task::Fence => 1,
            Task::List { .. } => 2,
            _ => return false,
        };
        let is_closed = stored.first(step).is_some_and(|closed| closed.value == CLOSED);
        if is_closed {
            self.outputs.push_back(DirectoryOutput::Closed);
        }
        is_closed
    }

    /// Makes a claim wait that found the store closed. Refuses it after some tries, because the return may have been
    /// interrupted.
    pub(super) fn wait_for_return(&mut self, claim: Claim, closed: &Pair) {
        if closed.value == CLOSED {
            self.outputs.push_back(DirectoryOutput::Closed);
        } else if claim.tries >= TRIES_MAX {
            let reason = "the names are being moved back to node 0; if that was interrupted, start node 0 again or repeat `halite directory back`";
            return self.answer(claim.requester, Err(ErrorReply::DirectoryOut { reason: reason.to_owned() }));
        }
        self.unfenced.push(Task::Claim(claim.again()));
        self.retry_ns = self.retry_ns.min(self.now_ns.saturating_add(RETRY_NS));
    }

    /// Returns the requesters that wait for an answer.
    pub(super) fn take_waiting(&mut self) -> Vec<Requester> {
        let in_flight = std::mem::take(&mut self.in_flight).into_values().map(|sent| sent.task);
        let tasks =
            in_flight.chain(std::mem::take(&mut self.unfenced)).chain(std::mem::take(&mut self.repairs));
        let queries = std::mem::take(&mut self.home_requests).into_values();
        tasks.filter_map(|task| task.requester()).chain(queries.map(|query| query.requester())).collect()
    }
}

impl Returned {
    /// Adds a lost name. Locks and barriers are not recorded as lost: the next session that needs them creates them.
    fn lose(&mut self, name: Box<str>, home: NodeIncarnation, loss: NodeLoss) {
        if !names::is_reserved(&name) {
            self.lost.insert(name, (home, loss));
        }
    }
}
