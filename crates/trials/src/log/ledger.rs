//! What must hold of logs.
//!
//! - What is read was appended, is whole, and stands at one place for all who read.
//! - What an append has returned is at the place that it says: a reader that goes past that place has seen it, however long ago
//!   the place was skipped.  So nothing that was skipped is made visible later.
//! - What an append has returned is seen by a look at its place that begins after that.
//! - What an append says it has not done is never seen.
//!
//! A segment that is lost with its node is no exception for those who were told; a segment whose node has died, or was out of others'
//! sight, promises nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use super::{SEGMENT_SLOTS, records};
use crate::harness::Harness;

/// What names of logs begin with.
pub(super) const PREFIX: &str = "log-";

/// The name of the log in so many's life.
pub(super) fn name_of(life: usize) -> String {
    format!("{PREFIX}{life}")
}

/// How an append ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Nobody knows, or it has not ended.
    Unknown,
    Done {
        position: u64,
        end_ns: u64,
    },
    NotDone,
}

/// What is known of all logs.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// Of each that was ever made, or begun to be.
    lives: Vec<Life>,
    current: BTreeMap<usize, usize>,
    last_token: u64,
}

#[derive(Debug, Default)]
struct Life {
    appends: BTreeMap<u64, Outcome>,
    /// What was read or returned, by place.
    places: BTreeMap<u64, u64>,
    /// And the other way around.
    tokens: BTreeMap<u64, u64>,
    /// The node of each segment, and its life, where that is known for certain.
    homes: BTreeMap<u64, Option<(u32, u32)>>,
    readers: Vec<Passed>,
    trimmed: u64,
    /// What was seen where something else was seen before, which only a segment that was lost explains.
    conflicts: Vec<(u64, String)>,
}

/// What one reader has passed.
#[derive(Debug, Default)]
struct Passed {
    /// Where it is; `None` if it reads no more.
    position: Option<u64>,
    ranges: Vec<Range<u64>>,
    saw: BTreeSet<u64>,
}

impl Logs {
    pub(super) fn current(&self, number: usize) -> Option<usize> {
        self.current.get(&number).copied()
    }

    /// A new one is to be made.
    pub(super) fn begin(&mut self) -> usize {
        self.lives.push(Life::default());
        self.lives.len() - 1
    }

    /// It is there, for others too.
    pub(super) fn publish(&mut self, number: usize, life: usize) {
        self.current.entry(number).or_insert(life);
    }

    /// It is gone.
    pub(super) fn end(&mut self, number: usize, life: usize) {
        if self.current(number) == Some(life) {
            self.current.remove(&number);
        }
    }

    pub(super) fn append_begins(&mut self, life: usize) -> u64 {
        self.last_token += 1;
        self.lives[life].appends.insert(self.last_token, Outcome::Unknown);
        self.last_token
    }

    pub(super) fn append_ends(&mut self, life: usize, token: u64, outcome: Outcome) -> Result<(), String> {
        let life = &mut self.lives[life];
        life.appends.insert(token, outcome);
        match outcome {
            Outcome::Done { position, .. } => {
                life.stands(token, position);
                Ok(())
            }
            _ => life.expect_unseen(token),
        }
    }

    pub(super) fn knows_home(&self, life: usize, segment: u64) -> bool {
        self.lives[life].homes.contains_key(&segment)
    }

    pub(super) fn note_home(&mut self, life: usize, segment: u64, home: Option<(u32, u32)>) {
        self.lives[life].homes.insert(segment, home);
    }

    /// Whether an append has returned that place by now.
    pub(super) fn is_there(&self, harness: &Harness, life: usize, position: u64) -> bool {
        let life = &self.lives[life];
        let is_done = |token| matches!(life.appends.get(token), Some(Outcome::Done { .. }));
        life.places.get(&position).is_some_and(is_done) && life.is_sound(harness, position)
    }

    /// How far all who read are, which is trimmed from now on.
    pub(super) fn trim_begins(&mut self, life: usize) -> u64 {
        let life = &mut self.lives[life];
        let passed = life.readers.iter().filter_map(|reader| reader.position).min().unwrap_or(0);
        life.trimmed = life.trimmed.max(passed);
        passed
    }

    /// Up to where it was trimmed at most.
    pub(super) fn trimmed(&self, life: usize) -> u64 {
        self.lives[life].trimmed
    }

    /// What is to be said when nobody reads or appends any more.
    pub(super) fn judge(&self, harness: &Harness) -> Result<(), String> {
        let lives = self.lives.iter().enumerate();
        lives
            .into_iter()
            .try_for_each(|(number, life)| life.judge(harness).map_err(|why| format!("log {number}: {why}")))
    }
}

impl Life {
    /// A record was returned or read at that place.
    fn stands(&mut self, token: u64, position: u64) {
        let here = *self.places.entry(position).or_insert(token);
        if here != token {
            let why = format!("records {here} and {token} are both at {position}");
            self.conflicts.push((position, why));
        }
        let there = *self.tokens.entry(token).or_insert(position);
        if there != position {
            let why = format!("record {token} is at {there} and at {position}");
            self.conflicts.extend([(there, why)]);
        }
    }

    fn expect_unseen(&self, token: u64) -> Result<(), String> {
        match self.tokens.get(&token) {
            Some(position) => Err(format!("record {token} was not appended, and seen at {position}")),
            None => Ok(()),
        }
    }

    fn saw(&mut self, position: u64, records: &[Vec<u8>]) -> Result<(), String> {
        let token =
            records::token_of(records).ok_or_else(|| format!("what is read at {position} is no record"))?;
        match self.appends.get(&token) {
            None => return Err(format!("record {token} at {position} is of another log")),
            Some(Outcome::NotDone) => {
                return Err(format!("record {token} was not appended, and is read at {position}"));
            }
            Some(_) => {}
        }
        self.stands(token, position);
        Ok(())
    }

    /// Whether nothing has happened to the memory that a place is in.
    fn is_sound(&self, harness: &Harness, position: u64) -> bool {
        match self.homes.get(&(position / SEGMENT_SLOTS)) {
            None | Some(None) => harness.is_undisturbed(),
            Some(Some((node, life))) => {
                let directory = 0;
                harness.incarnation(*node) == *life
                    && harness.is_up(*node)
                    && !harness.was_isolated(*node)
                    && !harness.was_isolated(directory)
            }
        }
    }

    fn judge(&self, harness: &Harness) -> Result<(), String> {
        if let Some((_, why)) = self.conflicts.iter().find(|(position, _)| self.is_sound(harness, *position))
        {
            return Err(why.clone());
        }
        for (token, outcome) in &self.appends {
            let Outcome::Done { position, end_ns } = outcome else { continue };
            let has_missed = |reader: &&Passed| {
                reader.ranges.iter().any(|range| range.contains(position)) && !reader.saw.contains(position)
            };
            let missed = self.readers.iter().find(has_missed).filter(|_| self.is_sound(harness, *position));
            if missed.is_some() {
                return Err(format!(
                    "record {token}, which was at {position} at {end_ns} ns, was not seen by one who read on"
                ));
            }
        }
        Ok(())
    }
}

/// A place among those who read a log.
pub(super) struct Reader {
    harness: Rc<Harness>,
    life: usize,
    number: usize,
}

impl Reader {
    pub(super) fn new(harness: &Rc<Harness>, life: usize, position: u64) -> Reader {
        let readers = &mut harness.logs.borrow_mut().lives[life].readers;
        readers.push(Passed { position: Some(position), ..Passed::default() });
        Reader { harness: harness.clone(), life, number: readers.len() - 1 }
    }

    /// It has passed those places and read that.
    pub(super) fn passed(&self, range: Range<u64>, read: &[(u64, Vec<Vec<u8>>)]) -> Result<(), String> {
        let life = &mut self.harness.logs.borrow_mut().lives[self.life];
        for (position, records) in read {
            life.saw(*position, records)?;
        }
        let reader = &mut life.readers[self.number];
        for (position, _) in read {
            if !range.contains(position) || !reader.saw.insert(*position) {
                return Err(format!("the record at {position} is handed over between {range:?}, or again"));
            }
        }
        reader.position = Some(range.end);
        reader.ranges.push(range);
        Ok(())
    }

    /// It was told that what stood before that place is gone.
    pub(super) fn skipped_to(&self, position: u64) {
        let reader = &mut self.harness.logs.borrow_mut().lives[self.life].readers[self.number];
        reader.position = reader.position.max(Some(position));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.harness.logs.borrow_mut().lives[self.life].readers[self.number].position = None;
    }
}
