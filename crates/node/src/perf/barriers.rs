//! `barrier_lat`: a barrier that as many sessions of either process pass together.

use std::time::Duration;

use anyhow::Context;
use halite::blocking;

use super::cores::Cores;
use super::crew;
use super::ends::Ends;
use super::gate::Seat;
use super::job::Job;
use super::measure::{Schedule, Series};
use super::report::Row;
use super::server::{Reply, Request};

const BARRIER: &str = "perf";

/// After so long the others are taken for dead.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The only row.
pub fn run(
    job: &Job,
    ends: &mut Ends,
    report: &mut dyn FnMut(Row) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let iterations = job.iterations(0);
    let sessions = (0..job.threads).map(|_| ends.another_session()).collect();
    let cores = ends.cores.clone();
    let server = ends.server().context("a barrier needs a server of our own")?;
    server.ask(&Request::Meet { threads: job.threads, rounds: iterations }, Reply::Ready)?;
    let mut row = Row::new(0, iterations);
    let work = |session, seat| measure(session, job.threads, iterations, &seat);
    for (series, errors) in crew::share(sessions, |thread| cores.of_client(thread), work)? {
        row.ours.merge(&series);
        row.errors += errors;
    }
    row.errors += server.errors()?;
    report(row)
}

fn measure(
    session: blocking::Session,
    threads: usize,
    iterations: u64,
    seat: &Seat,
) -> anyhow::Result<(Series, u64)> {
    let mut member = Member { session, participants: 2 * threads as u32, round: None, errors: 0 };
    let mut series = Series::default();
    seat.wait();
    for operations in Schedule::new(iterations, f64::MAX).rounds() {
        series.round(operations, 1, || member.pass())?;
    }
    Ok((series, member.errors))
}

/// The server's part.  Returns how often rounds did not count up.
pub fn meet(sessions: Vec<blocking::Session>, rounds: u64, cores: &Cores) -> anyhow::Result<u64> {
    let participants = 2 * sessions.len() as u32;
    let work = |session, _| {
        let mut member = Member { session, participants, round: None, errors: 0 };
        (0..rounds).try_for_each(|_| member.pass())?;
        Ok(member.errors)
    };
    Ok(crew::share(sessions, |thread| cores.of_server(thread), work)?.into_iter().sum())
}

/// One of those who meet.
struct Member {
    session: blocking::Session,
    participants: u32,
    round: Option<u64>,
    errors: u64,
}

impl Member {
    /// Passes the barrier once: each time is one round behind the last.
    fn pass(&mut self) -> anyhow::Result<()> {
        let round = self.session.barrier(BARRIER, self.participants, TIMEOUT)?;
        self.errors += u64::from(self.round.is_some_and(|last| round != last + 1));
        self.round = Some(round);
        Ok(())
    }
}
