//! `barrier_lat`: a barrier that as many sessions of either process pass together.

use std::time::Duration;

use halite::blocking;

use super::pairs::{Game, Partner};

const BARRIER: &str = "perf";

/// After so long the others are taken for dead.
const TIMEOUT: Duration = Duration::from_secs(10);

/// One of those who meet.
pub struct Member {
    session: blocking::Session,
    participants: u32,
    round: Option<u64>,
    errors: u64,
}

/// Those of one process, which are half of all.
pub fn members(sessions: Vec<blocking::Session>) -> Vec<Member> {
    let participants = 2 * sessions.len() as u32;
    sessions.into_iter().map(|session| Member { session, participants, round: None, errors: 0 }).collect()
}

impl Partner for Member {
    const GAME: Game = Game::Barrier;

    /// Passes the barrier once, in which nobody leads: each time is one round behind the last.
    fn turn(&mut self, _: bool) -> anyhow::Result<()> {
        let round = self.session.barrier(BARRIER, self.participants, TIMEOUT)?;
        self.errors += u64::from(self.round.is_some_and(|last| round != last + 1));
        self.round = Some(round);
        Ok(())
    }

    fn errors(&mut self) -> anyhow::Result<u64> {
        Ok(self.errors)
    }
}
