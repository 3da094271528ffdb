//! Counters that all add to, and the barrier at which two meet.

use std::time::Duration;

use halite::BarrierCause;

use super::board::{COUNTERS, Note, unexpected};
use super::worker::Worker;
use super::{Result, ensure};

/// Counters below are added to, the others swapped.
const ADDED: u64 = 4;
/// The barrier's name.
pub const MEETING: &str = "meeting";
/// How long one waits for somebody to meet: short, since all other work of this process waits meanwhile.
const MEETING_TIMEOUT: Duration = Duration::from_millis(3);

impl Worker {
    /// Adds to a counter.
    pub(super) fn add(&mut self) -> Result<()> {
        let (counter, add) = (self.random.u64(0..ADDED), self.random.u64(0..1000) + 1);
        self.intend(counter, add)?;
        self.board.add(counter, add)?;
        self.added(counter, add)
    }

    /// Adds to a counter by swapping, unless somebody else is faster.
    pub(super) fn swap(&mut self) -> Result<()> {
        let counter = ADDED + self.random.u64(0..COUNTERS - ADDED);
        let add = self.random.u64(0..1000) + 1;
        let expected = self.board.counter(counter)?;
        self.intend(counter, add)?;
        if self.board.swap(counter, expected, expected.wrapping_add(add))? {
            return self.added(counter, add);
        }
        // It was not done after all.
        self.board.set_note(self.incarnation, Note::Intended(counter), self.sums[counter as usize])
    }

    fn intend(&mut self, counter: u64, add: u64) -> Result<()> {
        let intended = self.sums[counter as usize] + add;
        self.board.set_note(self.incarnation, Note::Intended(counter), intended)
    }

    fn added(&mut self, counter: u64, add: u64) -> Result<()> {
        let sum = &mut self.sums[counter as usize];
        *sum += add;
        self.board.set_note(self.incarnation, Note::Added(counter), *sum)
    }

    /// Meets somebody, or nobody.
    pub(super) fn meet(&mut self) -> Result<()> {
        match self.board.session().barrier(MEETING, 2, MEETING_TIMEOUT) {
            Ok(round) => {
                ensure!(round > self.round, "the barrier's round {round} came after {}", self.round);
                self.round = round;
                self.passes += 1;
                self.board.set_note(self.incarnation, Note::Passes, self.passes)
            }
            Err(error) if error.cause == BarrierCause::Timeout => Ok(()),
            Err(error) => Err(unexpected(error)),
        }
    }
}
