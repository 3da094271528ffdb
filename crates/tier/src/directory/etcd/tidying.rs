//! Removes records of incarnations from etcd once no name refers to them, and names of locks, barriers and servers
//! whose home has ended.

use std::collections::BTreeSet;

use super::EtcdDirectory;
use super::records::{HomeRecord, NameRecord, parse_incarnation};
use super::store::Stored;
use super::tasks::Task;
use crate::directory::NAMES_PER_ANSWER_MAX;
use crate::ids::NodeIncarnation;
use crate::names;

/// Age of an end after which no request of the incarnation can reach etcd any more, since a request takes at most 3 s.
const SETTLED_NS: u64 = 60_000_000_000;

impl EtcdDirectory {
    /// Collects the incarnations to which one page of names refers. Reserved names whose home has ended are removed
    /// instead: they are never listed as lost, and would keep the home's record until they are used again.
    pub(super) fn tidy(&mut self, mut referenced: BTreeSet<NodeIncarnation>, stored: &Stored) {
        let endings = self.endings(stored);
        let prefix = self.keys.names();
        let pairs = stored.read.first().map(Vec::as_slice).unwrap_or_default();
        for pair in pairs {
            let Some(NameRecord { home, .. }) = NameRecord::parse(&pair.value) else { continue };
            let is_kept = !pair.key.strip_prefix(&prefix).is_some_and(names::is_reserved);
            match endings.contains_key(&home) && !is_kept {
                true => self.repair(Task::Unchecked(self.removal_of(pair))),
                false => drop(referenced.insert(home)),
            }
        }
        let last = pairs.last().and_then(|pair| pair.key.strip_prefix(&prefix));
        match last.filter(|_| pairs.len() >= NAMES_PER_ANSWER_MAX) {
            Some(last) => self.repair(Task::Tidy { after: Some(last.to_owned()), referenced }),
            None => self.repair(Task::TidyHomes { referenced }),
        }
    }

    /// Removes records of incarnations to which no name refers. Removes the record of an ended incarnation once none of
    /// its requests can arrive any more. Removes the record of an unconnected incarnation if that incarnation has not
    /// rewritten its key since the previous removal, as living nodes do.
    pub(super) fn tidy_homes(&mut self, referenced: &BTreeSet<NodeIncarnation>, stored: &Stored) {
        let prefix = self.keys.homes();
        let now_ns = self.epoch_ns.saturating_add(self.now_ns);
        let before = std::mem::take(&mut self.unrenewed);
        let mut gone = Vec::new();
        for pair in stored.read.first().map(Vec::as_slice).unwrap_or_default() {
            let incarnation = pair.key.strip_prefix(&prefix).and_then(parse_incarnation);
            let is_referenced = |incarnation: &NodeIncarnation| referenced.contains(incarnation);
            let Some(incarnation) = incarnation.filter(|incarnation| !is_referenced(incarnation)) else {
                continue;
            };
            let is_gone = match HomeRecord::parse(&pair.value) {
                Some(HomeRecord::Ended { at_ns, by: Some(_), .. }) => {
                    let is_settled = at_ns.saturating_add(SETTLED_NS) < now_ns;
                    if !is_settled {
                        self.tidy_soon();
                    }
                    is_settled
                }
                _ if incarnation == self.me || self.paired.contains(&incarnation) => false,
                _ => {
                    self.unrenewed.insert(incarnation, pair.written_at);
                    before.get(&incarnation) == Some(&pair.written_at)
                }
            };
            if is_gone {
                gone.push(Task::Unchecked(self.removal_of(pair)));
            }
        }
        if !self.unrenewed.is_empty() {
            self.tidy_soon();
        }
        gone.into_iter().for_each(|task| self.repair(task));
    }
}
