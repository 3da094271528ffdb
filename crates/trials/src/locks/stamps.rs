//! The known facts about the words under a lock. A holder writes one stamp to all words, so the next holder must read
//! this stamp in each word.
//!
//! The rule is suspended while a write may still take effect although no session waits for it: a cancelled write, a
//! write of a dead holder that is not cut off everywhere, or a write of a holder that has lost the lock. It stays
//! suspended until all words have been written again.

use super::ledger::SessionId;
use crate::regions::words::Words;

/// Number of words under a lock.
pub(super) const WORDS: usize = 4;
pub(super) type Values = [u64; WORDS];

/// The words that a holder read or wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KnownValues {
    values: Values,
    at_ns: u64,
}

#[derive(Debug)]
struct PendingWrite {
    session: SessionId,
    stamp: u64,
    begin_ns: u64,
}

/// The words of one region.
#[derive(Debug)]
pub(super) struct Stamps {
    words: Words,
    /// Writes in progress.
    pending: Vec<PendingWrite>,
    /// Reads in progress, and their starts.
    reads: Vec<(SessionId, u64)>,
    /// True if all words hold one stamp, apart from writes in progress.
    are_equal: bool,
    /// Time until which an unawaited write may land.
    uncertain_until_ns: u64,
}

impl Stamps {
    pub(super) fn fresh() -> Stamps {
        Stamps {
            words: Words::fresh(WORDS),
            pending: Vec::new(),
            reads: Vec::new(),
            are_equal: true,
            uncertain_until_ns: 0,
        }
    }

    /// Records that a session begins to write `stamp`, which no other session writes.
    pub(super) fn begin(&mut self, session: SessionId, stamp: u64, now_ns: u64) {
        (0..WORDS).for_each(|index| self.words.get_mut(index).begin_write(now_ns, stamp));
        self.pending.push(PendingWrite { session, stamp, begin_ns: now_ns });
    }

    fn take_pending(&mut self, session: SessionId) -> Option<PendingWrite> {
        let index = self.pending.iter().position(|pending| pending.session == session)?;
        Some(self.pending.remove(index))
    }

    /// Records the end of the write. If its session still `holds` the lock, the next reads must return `stamp`.
    pub(super) fn end(&mut self, session: SessionId, now_ns: u64, holds: bool) -> Option<KnownValues> {
        let PendingWrite { stamp, begin_ns, .. } = self.take_pending(session).expect("the operation began");
        let oldest_ns = self.reads.iter().map(|(_, begin_ns)| *begin_ns).min().unwrap_or(now_ns);
        for index in 0..WORDS {
            self.words.get_mut(index).end_write(begin_ns, now_ns, stamp, oldest_ns);
        }
        self.are_equal = holds && !self.is_uncertain(session, begin_ns);
        if !holds {
            self.uncertain_until_ns = self.uncertain_until_ns.max(now_ns);
        }
        self.are_equal.then_some(KnownValues { values: [stamp; WORDS], at_ns: now_ns })
    }

    pub(super) fn begin_read(&mut self, session: SessionId, now_ns: u64) {
        self.reads.push((session, now_ns));
    }

    /// Records the end or the cancellation of a read.
    pub(super) fn end_read(&mut self, session: SessionId) {
        self.reads.retain(|(reader, _)| *reader != session);
    }

    /// Records that the write may be done, partly done or not, or may still land until `until_ns`.
    pub(super) fn abandon(&mut self, session: SessionId, until_ns: u64) {
        if self.take_pending(session).is_some() {
            self.are_equal = false;
            self.uncertain_until_ns = self.uncertain_until_ns.max(until_ns);
        }
    }

    /// Returns true if another write may have changed the words since `begin_ns`.
    fn is_uncertain(&self, session: SessionId, begin_ns: u64) -> bool {
        self.uncertain_until_ns >= begin_ns || self.pending.iter().any(|pending| pending.session != session)
    }

    /// Checks a read by a session that took the lock and still `holds` it, as far as known. `known` are the words that
    /// the session has read or written since. Returns the words if no other session can have changed them.
    pub(super) fn read(
        &self,
        session: SessionId,
        begin_ns: u64,
        now_ns: u64,
        values: Values,
        known: Option<KnownValues>,
        holds: bool,
    ) -> Result<Option<KnownValues>, String> {
        for (index, value) in values.iter().enumerate() {
            let word = self.words.get(index);
            if !word.may_hold(*value, begin_ns) {
                let may = word.history();
                return Err(format!("the holder read {values:?}, but word {index} may be {may}"));
            }
        }
        if !holds || self.is_uncertain(session, begin_ns) {
            return Ok(None);
        }
        if self.are_equal && values.iter().any(|value| *value != values[0]) {
            return Err(format!("the holder read {values:?}, which no session wrote together"));
        }
        match known.filter(|known| known.at_ns > self.uncertain_until_ns && known.values != values) {
            Some(KnownValues { values: before, .. }) => {
                Err(format!("the holder read {values:?}, and {before:?} before, while it held the lock"))
            }
            None => Ok(Some(KnownValues { values, at_ns: now_ns })),
        }
    }
}
