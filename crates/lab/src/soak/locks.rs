//! Locks: those that live as long as the soak, each with a record that it protects, and those that die with a worker.
//!
//! ```text
//!   record:   token of the last holder │ token of who is changing it, or 0 │ words whose sum is 0
//! ```

use std::time::Duration;

use halite::blocking::Guard;

use super::board::{Board, Cast, RECORD_WORDS, RECORDS, unexpected};
use super::excuse::excuse;
use super::worker::{EVERYBODY, Worker};
use super::{Result, ensure};

const TOKEN: u64 = 0;
const CHANGING: u64 = 1;
const FIRST: u64 = 2;
/// Far beyond what any holder needs.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Locks that the first worker to come makes on its own node.
pub const LOOSE: u64 = 2;

/// What a worker remembers of a lock that may die.
#[derive(Clone, Copy, Debug)]
pub struct Loose {
    token: u64,
    /// Everybody at the time of the last attempt: the lock lived on one of them.
    cast: Cast,
}

/// The name of the lock of a record.
pub fn name(record: u64) -> String {
    format!("record {record}")
}

/// The name of a lock that dies with its worker.
pub fn loose_name(lock: u64) -> String {
    format!("loose {lock}")
}

/// Holds the lock of a record, and checks the record; puts it right if its last holder was killed.
pub fn visit(board: &Board, record: u64) -> Result<Guard> {
    let guard = board.session().lock_within(&name(record), LOCK_TIMEOUT).map_err(unexpected)?;
    let (before, token) = (board.record(record, TOKEN)?, guard.token());
    ensure!(token > before, "record {record}: token {token} came after {before}");
    let changing = board.record(record, CHANGING)?;
    let mut sum = 0_u64;
    for word in FIRST..RECORD_WORDS {
        sum = sum.wrapping_add(board.record(record, word)?);
    }
    let is_whole = changing == 0 && sum == 0;
    let recovered = guard.recovered();
    ensure!(
        is_whole || recovered,
        "record {record} is half changed by {changing}, and {token} recovers nothing"
    );
    board.set_record(record, TOKEN, token)?;
    board.set_record(record, CHANGING, token)?;
    if !is_whole {
        let first = board.record(record, FIRST)?;
        board.set_record(record, FIRST, first.wrapping_sub(sum))?;
    }
    Ok(guard)
}

/// Gives the record up, if nobody else has touched it.
pub fn leave(board: &Board, record: u64, guard: Guard) -> Result<()> {
    let (changing, token) = (board.record(record, CHANGING)?, guard.token());
    ensure!(changing == token, "record {record}: {changing} came while {token} held its lock");
    board.set_record(record, CHANGING, 0)?;
    guard.unlock().map_err(unexpected)
}

impl Worker {
    /// Changes two words of a record, one after the other.
    pub(super) fn lock(&mut self) -> Result<()> {
        let record = self.random.u64(0..RECORDS);
        let guard = visit(&self.board, record)?;
        let amount = self.random.u64(..);
        for amount in [amount, amount.wrapping_neg()] {
            let word = FIRST + self.random.u64(0..RECORD_WORDS - FIRST);
            let value = self.board.record(record, word)?;
            self.board.set_record(record, word, value.wrapping_add(amount))?;
            if self.random.u64(0..4) == 0 {
                // Others queue up meanwhile, and a kill hits it half changed now and then.
                std::thread::yield_now();
            }
        }
        leave(&self.board, record, guard)
    }

    /// Takes a lock that may be gone, or go.
    pub(super) fn lock_loose(&mut self) -> Result<()> {
        let lock = self.random.u64(0..LOOSE);
        let last = self.loose[lock as usize];
        let now = self.board.cast(EVERYBODY)?;
        // The lock may have died with its node at any time since it was last used.
        let cast = last.map_or(now, |last| last.cast);
        let taken = self.session.lock_within(&loose_name(lock), LOCK_TIMEOUT);
        let guard = excuse(&self.board, &cast, "a loose lock", taken)?;
        let token = guard.as_ref().map_or(0, Guard::token).max(last.map_or(0, |last| last.token));
        self.loose[lock as usize] = Some(Loose { token, cast: now });
        let Some(guard) = guard else { return self.excused() };
        let before = last.map_or(0, |last| last.token);
        ensure!(guard.token() > before, "loose lock {lock}: token {} came after {before}", guard.token());
        match excuse(&self.board, &now, "giving up a loose lock", guard.unlock())? {
            Some(()) => Ok(()),
            None => self.excused(),
        }
    }
}
