//! What is known of the words that a lock protects: its holder writes one stamp to all of them, so that who
//! holds it next reads them all alike, and as they were left.
//!
//! That does not hold while a write may still land that nobody waits for: one that was given up, or that of a holder
//! who died and is not cut off everywhere, or of one who lives on although others hold what it held.  Nor does it hold
//! after that, before somebody has written everything once more.

use super::ledger::SessionRun;
use crate::regions::words::Words;

/// Words that a lock protects.
pub(super) const WORDS: usize = 4;
pub(super) type Values = [u64; WORDS];

/// What a holder has seen, or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    values: Values,
    at_ns: u64,
}

#[derive(Debug)]
struct Open {
    who: SessionRun,
    stamp: u64,
    begin_ns: u64,
}

/// The words of one region from its allocation to its end.
#[derive(Debug)]
pub(super) struct Stamps {
    words: Words,
    /// Writes that have not ended.
    open: Vec<Open>,
    /// Reads that have not ended, and when they began.
    reads: Vec<(SessionRun, u64)>,
    /// Whether all words hold one stamp, unless somebody writes.
    are_alike: bool,
    /// Until when something may land that nobody waits for.
    doubt_until_ns: u64,
}

impl Stamps {
    pub(super) fn fresh() -> Stamps {
        Stamps {
            words: Words::fresh(WORDS),
            open: Vec::new(),
            reads: Vec::new(),
            are_alike: true,
            doubt_until_ns: 0,
        }
    }

    /// Somebody begins to write a stamp that nobody else writes.
    pub(super) fn begin(&mut self, who: SessionRun, stamp: u64, now_ns: u64) {
        (0..WORDS).for_each(|index| self.words.get_mut(index).begin(now_ns, stamp));
        self.open.push(Open { who, stamp, begin_ns: now_ns });
    }

    fn take(&mut self, who: SessionRun) -> Option<Open> {
        let index = self.open.iter().position(|open| open.who == who)?;
        Some(self.open.remove(index))
    }

    /// It has written everything.  If it still `holds` the lock, others see just that from now on.
    pub(super) fn end(&mut self, who: SessionRun, now_ns: u64, holds: bool) -> Option<Seen> {
        let Open { stamp, begin_ns, .. } = self.take(who).expect("it began");
        let oldest_ns = self.reads.iter().map(|(_, begin_ns)| *begin_ns).min().unwrap_or(now_ns);
        for index in 0..WORDS {
            self.words.get_mut(index).end(begin_ns, now_ns, stamp, oldest_ns);
        }
        self.are_alike = holds && !self.is_doubtful(who, begin_ns);
        if !holds {
            self.doubt_until_ns = self.doubt_until_ns.max(now_ns);
        }
        self.are_alike.then_some(Seen { values: [stamp; WORDS], at_ns: now_ns })
    }

    pub(super) fn begin_read(&mut self, who: SessionRun, now_ns: u64) {
        self.reads.push((who, now_ns));
    }

    /// It has read, or will not.
    pub(super) fn end_read(&mut self, who: SessionRun) {
        self.reads.retain(|(reader, _)| *reader != who);
    }

    /// Whatever it was writing is done, half done, or not; or will be until then.
    pub(super) fn leave(&mut self, who: SessionRun, until_ns: u64) {
        if self.take(who).is_some() {
            self.are_alike = false;
            self.doubt_until_ns = self.doubt_until_ns.max(until_ns);
        }
    }

    /// Whether something may have changed the words since `begin_ns` that `who` has not done.
    fn is_doubtful(&self, who: SessionRun, begin_ns: u64) -> bool {
        self.doubt_until_ns >= begin_ns || self.open.iter().any(|open| open.who != who)
    }

    /// Somebody who `holds` the lock, or believes so, reads, and had `seen` something since it took the lock; what it has
    /// seen now, if nobody else can have changed it.
    pub(super) fn read(
        &self,
        who: SessionRun,
        begin_ns: u64,
        now_ns: u64,
        values: Values,
        seen: Option<Seen>,
        holds: bool,
    ) -> Result<Option<Seen>, String> {
        for (index, value) in values.iter().enumerate() {
            let word = self.words.get(index);
            if !word.may_be(*value, begin_ns) {
                let may = word.history();
                return Err(format!("it read {values:?}; word {index} may be {may}"));
            }
        }
        if !holds || self.is_doubtful(who, begin_ns) {
            return Ok(None);
        }
        if self.are_alike && values.iter().any(|value| *value != values[0]) {
            return Err(format!("it read {values:?}, which nobody wrote at once"));
        }
        match seen.filter(|seen| seen.at_ns > self.doubt_until_ns && seen.values != values) {
            Some(Seen { values: before, .. }) => {
                Err(format!("it read {values:?}, and {before:?} before, while it held the lock"))
            }
            None => Ok(Some(Seen { values, at_ns: now_ns })),
        }
    }
}
