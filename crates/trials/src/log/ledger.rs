//! The rules for logs.
//!
//! - A record that is read was appended, is undamaged, and has one position for all readers.
//! - A record whose append has returned is at the returned position: a reader that passes the position has read the
//!   record, even if other readers skipped the position long ago. So no skipped record becomes visible later.
//! - Such a record is visible to each poll of its position that begins after the append has returned.
//! - A record whose append has failed is never visible.
//!
//! A reader may skip records that were reported as lost. None of these rules applies to a segment whose node has died
//! or was isolated.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use super::{SEGMENT_SLOTS, records};
use crate::harness::Harness;

/// Prefix of the logs' names.
pub(super) const PREFIX: &str = "log-";

pub(super) fn name_of(life: usize) -> String {
    format!("{PREFIX}{life}")
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The outcome is unknown, or the append has not ended.
    Unknown,
    Done {
        position: u64,
        end_ns: u64,
    },
    NotDone,
}

#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// All logs that were created so far.
    lives: Vec<Life>,
    current: BTreeMap<usize, usize>,
    last_token: u64,
}

#[derive(Debug, Default)]
struct Life {
    appends: BTreeMap<u64, Outcome>,
    /// Tokens that were read or returned, by position.
    tokens: BTreeMap<u64, u64>,
    /// Positions, by token.
    positions: BTreeMap<u64, u64>,
    /// Node of each segment and its incarnation, if certainly known.
    homes: BTreeMap<u64, Option<(u32, u32)>>,
    readers: Vec<ReaderProgress>,
    trimmed: u64,
    /// Contradictions between records, each with its segment; only the loss of the segment explains them.
    conflicts: Vec<(u64, String)>,
}

/// Progress of one reader.
#[derive(Debug, Default)]
struct ReaderProgress {
    /// Position of the reader; `None` after its end.
    position: Option<u64>,
    ranges: Vec<Range<u64>>,
    read: BTreeSet<u64>,
}

impl Logs {
    pub(super) fn current(&self, number: usize) -> Option<usize> {
        self.current.get(&number).copied()
    }

    /// Records that a log is about to be created.
    pub(super) fn begin(&mut self) -> usize {
        self.lives.push(Life::default());
        self.lives.len() - 1
    }

    /// Records that the log exists.
    pub(super) fn publish(&mut self, number: usize, life: usize) {
        self.current.entry(number).or_insert(life);
    }

    /// Records that the log is gone.
    pub(super) fn end(&mut self, number: usize, life: usize) {
        if self.current(number) == Some(life) {
            self.current.remove(&number);
        }
    }

    pub(super) fn begin_append(&mut self, life: usize) -> u64 {
        self.last_token += 1;
        self.lives[life].appends.insert(self.last_token, Outcome::Unknown);
        self.last_token
    }

    pub(super) fn end_append(&mut self, life: usize, token: u64, outcome: Outcome) -> Result<(), String> {
        let life = &mut self.lives[life];
        life.appends.insert(token, outcome);
        match outcome {
            Outcome::Done { position, .. } => {
                life.record_position(token, position);
                Ok(())
            }
            _ => life.check_unread(token),
        }
    }

    pub(super) fn has_home(&self, life: usize, segment: u64) -> bool {
        self.lives[life].homes.contains_key(&segment)
    }

    pub(super) fn record_home(&mut self, life: usize, segment: u64, home: Option<(u32, u32)>) {
        self.lives[life].homes.insert(segment, home);
    }

    /// Returns true if an append has returned that position.
    pub(super) fn is_appended(&self, harness: &Harness, life: usize, position: u64) -> bool {
        let life = &self.lives[life];
        let is_done = |token| matches!(life.appends.get(token), Some(Outcome::Done { .. }));
        life.tokens.get(&position).is_some_and(is_done) && life.is_intact(harness, position)
    }

    /// Starts a trim; returns the position that all readers have reached, to which the log is trimmed.
    pub(super) fn begin_trim(&mut self, life: usize) -> u64 {
        let life = &mut self.lives[life];
        let passed = life.readers.iter().filter_map(|reader| reader.position).min().unwrap_or(0);
        life.trimmed = life.trimmed.max(passed);
        passed
    }

    /// Returns the largest position to which the log was trimmed.
    pub(super) fn trimmed(&self, life: usize) -> u64 {
        self.lives[life].trimmed
    }

    /// Checks all logs, after all sessions have ended.
    pub(super) fn check(&self, harness: &Harness) -> Result<(), String> {
        let mut lives = self.lives.iter().enumerate();
        lives.try_for_each(|(number, life)| {
            life.check(harness).map_err(|reason| format!("log {number}: {reason}"))
        })
    }
}

impl Life {
    /// Records that a record was returned or read at a position.
    fn record_position(&mut self, token: u64, position: u64) {
        let here = *self.tokens.entry(position).or_insert(token);
        if here != token {
            let reason = format!("records {here} and {token} are both at {position}");
            self.conflicts.push((position, reason));
        }
        let there = *self.positions.entry(token).or_insert(position);
        if there != position {
            let reason = format!("record {token} is at {there} and at {position}");
            self.conflicts.push((there, reason));
        }
    }

    fn check_unread(&self, token: u64) -> Result<(), String> {
        match self.positions.get(&token) {
            Some(position) => Err(format!("record {token} was not appended, but read at {position}")),
            None => Ok(()),
        }
    }

    fn record_read(&mut self, position: u64, records: &[Vec<u8>]) -> Result<(), String> {
        let token = records::token_of(records)
            .ok_or_else(|| format!("the bytes read at {position} are not a record"))?;
        match self.appends.get(&token) {
            None => return Err(format!("record {token} at {position} belongs to another log")),
            Some(Outcome::NotDone) => {
                return Err(format!("record {token} was not appended, but read at {position}"));
            }
            Some(_) => {}
        }
        self.record_position(token, position);
        Ok(())
    }

    /// Returns true if no fault has affected the memory of a position.
    fn is_intact(&self, harness: &Harness, position: u64) -> bool {
        match self.homes.get(&(position / SEGMENT_SLOTS)) {
            None | Some(None) => harness.is_fault_free(),
            Some(Some((node, incarnation))) => {
                let directory = 0;
                harness.incarnation(*node) == *incarnation
                    && harness.is_up(*node)
                    && !harness.was_isolated(*node)
                    && !harness.was_isolated(directory)
            }
        }
    }

    fn check(&self, harness: &Harness) -> Result<(), String> {
        if let Some((_, reason)) =
            self.conflicts.iter().find(|(position, _)| self.is_intact(harness, *position))
        {
            return Err(reason.clone());
        }
        for (token, outcome) in &self.appends {
            let Outcome::Done { position, end_ns } = outcome else { continue };
            let has_missed = |reader: &&ReaderProgress| {
                reader.ranges.iter().any(|range| range.contains(position)) && !reader.read.contains(position)
            };
            let missed = self.readers.iter().find(has_missed).filter(|_| self.is_intact(harness, *position));
            if missed.is_some() {
                return Err(format!(
                    "record {token}, at {position} since {end_ns} ns, was missed by a reader"
                ));
            }
        }
        Ok(())
    }
}

/// A registered reader of a log.
pub(super) struct Reader {
    harness: Rc<Harness>,
    life: usize,
    number: usize,
}

impl Reader {
    pub(super) fn new(harness: &Rc<Harness>, life: usize, position: u64) -> Reader {
        let readers = &mut harness.logs.borrow_mut().lives[life].readers;
        readers.push(ReaderProgress { position: Some(position), ..ReaderProgress::default() });
        Reader { harness: harness.clone(), life, number: readers.len() - 1 }
    }

    /// Records that the reader has passed `range` and read these records.
    pub(super) fn record_passed(
        &self,
        range: Range<u64>,
        read: &[(u64, Vec<Vec<u8>>)],
    ) -> Result<(), String> {
        let life = &mut self.harness.logs.borrow_mut().lives[self.life];
        for (position, records) in read {
            life.record_read(*position, records)?;
        }
        let reader = &mut life.readers[self.number];
        for (position, _) in read {
            if !range.contains(position) || !reader.read.insert(*position) {
                return Err(format!("the record at {position} was read outside of {range:?}, or twice"));
            }
        }
        reader.position = Some(range.end);
        reader.ranges.push(range);
        Ok(())
    }

    /// Records that the reader got the error that the records before `position` are gone.
    pub(super) fn record_skip(&self, position: u64) {
        let reader = &mut self.harness.logs.borrow_mut().lives[self.life].readers[self.number];
        reader.position = reader.position.max(Some(position));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.harness.logs.borrow_mut().lives[self.life].readers[self.number].position = None;
    }
}
