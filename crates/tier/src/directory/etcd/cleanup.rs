//! Removes records of incarnations from etcd once no name refers to them, and names of locks, barriers and servers
//! whose home has ended.

use std::collections::BTreeSet;

use super::EtcdDirectory;
use super::records::{HomeRecord, NameRecord};
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
    pub(super) fn clean_names(&mut self, mut referenced: BTreeSet<NodeIncarnation>, stored: &Stored) {
        let (endings, pairs) = (self.endings(stored), stored.pairs(0));
        for pair in pairs {
            let Some(NameRecord { home, .. }) = NameRecord::parse(&pair.value) else { continue };
            let is_reserved = self.keys.name_of(&pair.key).is_some_and(names::is_reserved);
            if is_reserved && endings.contains_key(&home) {
                self.repair(Task::Unchecked(EtcdDirectory::removal_of(pair)));
            } else {
                referenced.insert(home);
            }
        }
        match self.last_of_page(pairs, NAMES_PER_ANSWER_MAX) {
            after @ Some(_) => self.repair(Task::CleanNames { after, referenced }),
            None => self.repair(Task::CleanHomes { referenced }),
        }
    }

    /// Removes records of incarnations to which no name refers. Removes the record of an ended incarnation once none of
    /// its requests can arrive any more. Removes the record of an unconnected incarnation if that incarnation has not
    /// rewritten its key since the previous removal, as living nodes do.
    pub(super) fn clean_homes(&mut self, referenced: &BTreeSet<NodeIncarnation>, stored: &Stored) {
        let now_ns = self.time_of_day_ns();
        let before = std::mem::take(&mut self.unreferenced);
        let mut gone = Vec::new();
        for pair in stored.pairs(0) {
            let incarnation = self.keys.incarnation_of(&pair.key);
            let Some(incarnation) = incarnation.filter(|incarnation| !referenced.contains(incarnation))
            else {
                continue;
            };
            let is_gone = match HomeRecord::parse(&pair.value) {
                Some(HomeRecord::Ended { at_ns, by: Some(_), .. }) => {
                    let is_settled = at_ns.saturating_add(SETTLED_NS) < now_ns;
                    if !is_settled {
                        self.schedule_cleanup();
                    }
                    is_settled
                }
                _ if incarnation == self.me || self.paired.contains(&incarnation) => false,
                _ => {
                    self.unreferenced.insert(incarnation, pair.written_at);
                    before.get(&incarnation) == Some(&pair.written_at)
                }
            };
            if is_gone {
                gone.push(Task::Unchecked(EtcdDirectory::removal_of(pair)));
            }
        }
        if !self.unreferenced.is_empty() {
            self.schedule_cleanup();
        }
        gone.into_iter().for_each(|task| self.repair(task));
    }
}
