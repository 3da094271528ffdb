//! The fence: a key in etcd that must be unchanged when a claim of this node takes effect. This node rewrites the key
//! periodically, and repairs it after an edit by others.

use super::records::HomeRecord;
use super::store::{Compare, Pair, Step, Stored, Transaction};
use super::tasks::Task;
use super::{EtcdDirectory, SHOWN_MAX};
use crate::ids::NodeIncarnation;
use crate::message::LossCause;
use crate::news::News;

impl EtcdDirectory {
    /// Starts to rewrite the fence, so that claims sent before fail if they arrive later.
    pub(super) fn begin_fencing(&mut self) {
        if self.is_leaving {
            return self.refuse_unfenced();
        }
        if !std::mem::replace(&mut self.is_fencing, true) {
            let (key, lives) = (self.keys.home(self.me), HomeRecord::Alive.emit());
            // If the key is not as last written, the store has lost that write, and all later ones.
            let compares = vec![match self.fence {
                Some(written_at) => Compare::WrittenAt(key.clone(), written_at),
                None => Compare::Holds(key.clone(), lives.clone()),
            }];
            let closed = Step::Get(self.keys.closed());
            let then = vec![Step::Put(key.clone(), lives), closed.clone()];
            let otherwise = vec![Step::Get(key), closed];
            self.send(Task::Fence, Transaction { compares, then, otherwise });
        }
    }

    pub(super) fn finish_fencing(&mut self, stored: &Stored) {
        if !stored.succeeded {
            return self.repair_fence(stored.first(0), stored.revision);
        }
        self.is_fencing = false;
        self.ended_by = None;
        // This transaction wrote the key, so the store's revision is that of the key.
        self.fence = Some(stored.revision);
        let doubtful = self.doubtful.iter();
        let clears = doubtful.map(|(name, record)| Task::Clear { name: name.clone(), record: *record });
        self.repairs.extend(clears);
        if !std::mem::replace(&mut self.has_ended_predecessors, true) && !self.me.node.is_ephemeral() {
            self.repairs.push_back(Task::EndPredecessors);
        }
        for waiting in std::mem::take(&mut self.unfenced) {
            self.begin(waiting);
        }
        self.reopen();
        self.start_repairs();
    }

    /// Repairs a fence that is not as this node wrote it.
    fn repair_fence(&mut self, found: Option<&Pair>, revision: u64) {
        if self.is_leaving {
            return;
        }
        let Some(found) = found else {
            let (key, lives) = (self.keys.home(self.me), HomeRecord::Alive.emit());
            if self.fence.is_some() {
                self.report(News::EtcdEdited { key: key.clone(), found: None });
                self.reset_store_state(revision);
            }
            let (compares, then) = (vec![Compare::Absent(key.clone())], vec![Step::Put(key.clone(), lives)]);
            return self.send(Task::Fence, Transaction { compares, then, otherwise: vec![Step::Get(key)] });
        };
        if self.fence.is_some_and(|written_at| found.written_at < written_at) {
            self.handle_restore(revision);
        }
        match HomeRecord::parse(&found.value) {
            // An earlier transaction of this node, which arrived late, wrote this.
            Some(HomeRecord::Alive) => {
                self.is_fencing = false;
                self.fence = None;
                self.begin_fencing();
            }
            // A move of the names wrote this on behalf of this node.
            Some(HomeRecord::Awaited) => self.write_fence(found),
            // Neither a paired node nor this node itself would write this.
            Some(HomeRecord::Ended { by: Some(by), .. }) if by != self.me && !self.paired.contains(&by) => {
                self.begin(Task::CheckEnding { by, found: found.clone() })
            }
            _ => self.overwrite_edited(found),
        }
    }

    /// Handles a record of this node's end, by incarnation `by`. If `by` is alive, the record may be right, and other
    /// nodes may have taken this node's names.
    pub(super) fn check_ending(&mut self, by: NodeIncarnation, found: &Pair, home: Option<&Pair>) {
        if home.and_then(|pair| HomeRecord::parse(&pair.value)) != Some(HomeRecord::Alive) {
            return self.overwrite_edited(found);
        }
        self.is_fencing = false;
        if self.ended_by.replace(by) != Some(by) {
            self.report(News::EtcdEnded { key: found.key.clone(), by });
        }
        self.refuse_unfenced();
    }

    /// Overwrites a record that was edited by hand, whatever its content.
    fn overwrite_edited(&mut self, found: &Pair) {
        let shown = found.value.chars().take(SHOWN_MAX).collect();
        self.report(News::EtcdEdited { key: found.key.clone(), found: Some(shown) });
        // Other nodes may have believed the edited record, and given names away.
        self.rewrite_own_names();
        self.write_fence(found);
    }

    fn write_fence(&mut self, found: &Pair) {
        self.fence = Some(found.written_at);
        self.is_fencing = false;
        self.begin_fencing();
    }

    pub(super) fn refuse_unfenced(&mut self) {
        for waiting in std::mem::take(&mut self.unfenced) {
            self.mark_doubtful(&waiting);
            if let Some(requester) = waiting.requester() {
                self.answer(requester, Err(self.unavailable_error()));
            }
        }
    }

    /// Records the end of all earlier incarnations with this node's number. Only incarnations that were listed when
    /// this node started count as earlier, since a later incarnation ends this one, not the reverse.
    pub(super) fn end_predecessors(&mut self, stored: &Stored) {
        let me = self.me;
        let at_ns = self.time_of_day_ns();
        let predecessors = self.predecessors.get_or_insert_with(|| {
            let all = stored.pairs(0).iter().filter_map(|pair| self.keys.incarnation_of(&pair.key));
            all.filter(|other| other.node == me.node && *other != me).collect()
        });
        let ended = HomeRecord::Ended { cause: LossCause::Unreachable, at_ns, by: Some(me) }.emit();
        for pair in stored.pairs(0) {
            let incarnation = self.keys.incarnation_of(&pair.key);
            let is_over =
                matches!(HomeRecord::parse(&pair.value), Some(HomeRecord::Ended { by: Some(_), .. }));
            if !is_over && incarnation.is_some_and(|incarnation| predecessors.contains(&incarnation)) {
                let put = Step::Put(pair.key.clone(), ended.clone());
                let transaction = Transaction::when(vec![Compare::unchanged(pair)], vec![put]);
                self.repairs.push_back(Task::Unchecked(transaction));
            }
        }
    }
}
