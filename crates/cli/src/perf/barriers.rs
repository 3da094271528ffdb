//! `barrier_lat`: a barrier with the same number of sessions in both processes.

use std::time::Duration;

use halite::blocking;

use super::end::End;
use super::measure::NO_BASELINE;
use super::pairs::Partner;
use super::server::ServerTask;
use super::workload::{IN_TURN, Measured, PerfArgs, Plan, Planned, Timer};

const BARRIER: &str = "perf";

/// Timeout of a barrier, after which the measurement assumes that the other sessions are dead.
const TIMEOUT: Duration = Duration::from_secs(10);

pub fn plan(args: &PerfArgs) -> Planned {
    let iterations_max = 50_000 / args.threads();
    let plan = Plan::of_one_size::<Member>(IN_TURN, 0);
    Ok(Plan { iterations_max, needs_server: true, is_at_server: true, ..plan })
}

/// One participant. Each process has half of the participants.
pub struct Member {
    session: blocking::Session,
    participants: u32,
    round: Option<u64>,
    errors: u64,
}

impl Partner for Member {
    fn create(end: &End, task: &ServerTask) -> anyhow::Result<Vec<Member>> {
        let participants = 2 * task.threads as u32;
        let member = |session| Member { session, participants, round: None, errors: 0 };
        Ok(end.sessions(task.threads)?.into_iter().map(member).collect())
    }

    /// Passes the barrier. Both sides do the same: each call returns the next round.
    fn take_turn(&mut self, _: bool) -> anyhow::Result<()> {
        let round = self.session.barrier(BARRIER, self.participants, TIMEOUT)?;
        self.errors += u64::from(self.round.is_some_and(|last| round != last + 1));
        self.round = Some(round);
        Ok(())
    }

    fn measure(&mut self, timer: &Timer) -> anyhow::Result<Measured> {
        timer.operations(|| self.take_turn(true), NO_BASELINE)
    }

    fn finish(self) -> anyhow::Result<u64> {
        Ok(self.errors)
    }
}
