//! The key by which a node fences its claims: written anew again and again, and mended where somebody else has written it.

use super::records::{HomeRecord, parse_incarnation};
use super::store::{Compare, Pair, Step, Stored, Transaction};
use super::tasks::{Task, first};
use super::{EtcdDirectory, SHOWN_MAX};
use crate::directory::Said;
use crate::ids::NodeIncarnation;
use crate::message::{ErrorReply, LossCause};
use crate::news::News;

impl EtcdDirectory {
    /// Writes the key that fences our claims anew: those that were sent before fail if they come later.
    pub(super) fn begin_fencing(&mut self) {
        if self.is_leaving {
            return self.refuse_unfenced();
        }
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

    pub(super) fn finish_fencing(&mut self, stored: &Stored) {
        if !stored.is_so {
            return self.mend_fence(first(stored, 0), stored.revision);
        }
        self.is_fencing = false;
        self.ended_by = None;
        // The key was written by this very transaction, so the revision of the store is its own.
        self.fence = Some(stored.revision);
        let doubtful = self.doubtful.iter();
        let clears: Vec<Task> =
            doubtful.map(|(name, record)| Task::Clear { name: name.clone(), record: *record }).collect();
        self.repairs.extend(clears);
        if !std::mem::replace(&mut self.has_succeeded, true) && !self.me.node.is_ephemeral() {
            self.repairs.push_back(Task::Succeed);
        }
        for waiting in std::mem::take(&mut self.unfenced) {
            self.begin(waiting);
        }
        self.go_on();
    }

    /// The key that fences our claims is not as we have written it.
    fn mend_fence(&mut self, found: Option<&Pair>, revision: u64) {
        if self.is_leaving {
            return;
        }
        let known = self.fence;
        let Some(found) = found else {
            if known.is_some() {
                let key = self.keys.home(self.me);
                self.said.push_back(Said::News(News::EtcdEdited { key, found: None }));
                self.tell_anew(revision);
            }
            let (key, lives) = (self.keys.home(self.me), HomeRecord::Lives.emit());
            let (compares, then) = (vec![Compare::Absent(key.clone())], vec![Step::Put(key.clone(), lives)]);
            return self.send(Task::Fence, Transaction { compares, then, otherwise: vec![Step::Get(key)] });
        };
        if known.is_some_and(|known| found.written_at < known) {
            self.note_restored(revision);
        }
        match HomeRecord::parse(&found.value) {
            // By what was sent before, and came late.
            Some(HomeRecord::Lives) => {
                self.is_fencing = false;
                self.fence = None;
                self.begin_fencing();
            }
            // Who has brought our names here has written it for us.
            Some(HomeRecord::Awaited) => self.write_fence(found),
            // Those who hear us would not say so, nor would we.
            Some(HomeRecord::Ended { by: Some(by), .. }) if by != self.me && !self.paired.contains(&by) => {
                self.begin(Task::Believe { by, found: found.clone() })
            }
            _ => self.write_edited(found),
        }
    }

    /// Who has written that we are over may know, if it lives: others may have given our names away.
    pub(super) fn believe(&mut self, by: NodeIncarnation, found: &Pair, home: Option<&Pair>) {
        if home.and_then(|pair| HomeRecord::parse(&pair.value)) != Some(HomeRecord::Lives) {
            return self.write_edited(found);
        }
        self.is_fencing = false;
        if self.ended_by.replace(by) != Some(by) {
            self.said.push_back(Said::News(News::EtcdEnded { key: found.key.clone(), by }));
        }
        self.refuse_unfenced();
    }

    /// By hand, whatever it says.
    fn write_edited(&mut self, found: &Pair) {
        let shown = found.value.chars().take(SHOWN_MAX).collect();
        self.said.push_back(Said::News(News::EtcdEdited { key: found.key.clone(), found: Some(shown) }));
        // Others may have believed it for a moment, and given our names away.
        self.tell_all_of_ours();
        self.write_fence(found);
    }

    fn write_fence(&mut self, found: &Pair) {
        self.fence = Some(found.written_at);
        self.is_fencing = false;
        self.begin_fencing();
    }

    pub(super) fn refuse_unfenced(&mut self) {
        for waiting in std::mem::take(&mut self.unfenced) {
            let requester = waiting.requester();
            requester.into_iter().for_each(|requester| self.answer(requester, Err(ErrorReply::DirectoryOut)));
        }
    }

    /// Those who had our number before are gone.  Who is not there when we come is none of them: an incarnation that comes after ours is to end us,
    /// and not the other way round.
    pub(super) fn succeed(&mut self, stored: &Stored) {
        let prefix = self.keys.homes();
        let me = self.me;
        let pairs = stored.read.first().cloned().unwrap_or_default();
        let before = self.before.get_or_insert_with(|| {
            let all = pairs.iter().filter_map(|pair| parse_incarnation(pair.key.strip_prefix(&prefix)?));
            all.filter(|other| other.node == me.node && *other != me).collect()
        });
        let at_ns = self.epoch_ns.saturating_add(self.now_ns);
        let ended = HomeRecord::Ended { cause: LossCause::Unreachable, at_ns, by: Some(self.me) };
        let ended = ended.emit();
        for pair in pairs {
            let incarnation = pair.key.strip_prefix(&prefix).and_then(parse_incarnation);
            let is_over =
                matches!(HomeRecord::parse(&pair.value), Some(HomeRecord::Ended { by: Some(_), .. }));
            if !is_over && incarnation.is_some_and(|incarnation| before.contains(&incarnation)) {
                let compare = Compare::WrittenAt(pair.key.clone(), pair.written_at);
                let put = Step::Put(pair.key, ended.clone());
                self.repairs.push_back(Task::Note(Transaction::when(vec![compare], vec![put])));
            }
        }
    }
}
