//! Workloads in which each client thread takes turns with a server thread: the client leads, the server follows.

use super::end::End;
use super::server::{Follower, Part};
use super::workload::{Bench, Measured, Timer, Workload};

pub trait Partner: Send + Sized + 'static {
    /// Creates shared state before the first row.
    fn prepare(_bench: &mut Bench) -> anyhow::Result<()> {
        Ok(())
    }

    /// Creates the partners of one end, one per pair.
    fn all(end: &End, part: &Part) -> anyhow::Result<Vec<Self>>;

    /// Takes one turn. The leader starts the turn and waits for the answer; the follower answers.
    fn turn(&mut self, leads: bool) -> anyhow::Result<()>;

    /// Measures the turns as the leader. A round trip counts as two turns.
    fn lead(&mut self, timer: &Timer) -> anyhow::Result<Measured> {
        timer.halves(|| self.turn(true))
    }

    /// Ends the pair; returns the number of errors in the data.
    fn end(self) -> anyhow::Result<u64>;
}

impl<P: Partner> Workload for P {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<P>> {
        start_pairs(bench, bench.part())
    }

    fn operation(&mut self, _: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        self.lead(timer)
    }

    fn verify(self, _: &mut Bench) -> anyhow::Result<u64> {
        self.end()
    }
}

/// Creates the client's partners, and starts the server's threads.
pub fn start_pairs<P: Partner>(bench: &mut Bench, part: Part) -> anyhow::Result<Vec<P>> {
    P::prepare(bench)?;
    let partners = P::all(&bench.end, &part)?;
    bench.start_following(part)?;
    Ok(partners)
}

/// Creates the server's partners, and a follower thread for each.
pub fn server_threads<P: Partner>(end: &End, part: &Part) -> anyhow::Result<Vec<Follower>> {
    let turns = part.turns;
    let follower = |mut partner: P| Follower {
        run: Box::new(move || {
            (0..turns).try_for_each(|_| partner.turn(false))?;
            partner.end()
        }),
        function: None,
    };
    Ok(P::all(end, part)?.into_iter().map(follower).collect())
}
