//! Workloads in which each thread of the client takes turns with one of the server: the client's leads, the server's
//! follows.

use super::end::End;
use super::server::{Follower, Part};
use super::workload::{Bench, Measured, Timer, Workload};

/// One side of one pair.
pub trait Partner: Send + Sized + 'static {
    /// Makes what both sides look for, before the first row.
    fn prepare(_bench: &mut Bench) -> anyhow::Result<()> {
        Ok(())
    }

    /// Those of one end, for each pair.
    fn all(end: &End, part: &Part) -> anyhow::Result<Vec<Self>>;

    /// Takes the next turn: who leads begins it and awaits the answer, who follows answers.
    fn turn(&mut self, leads: bool) -> anyhow::Result<()>;

    /// Times turns, of which there and back are two.
    fn lead(&mut self, timer: &Timer) -> anyhow::Result<Measured> {
        timer.halves(|| self.turn(true))
    }

    /// Ends it; how often what came was not what it should be.
    fn end(self) -> anyhow::Result<u64>;
}

impl<P: Partner> Workload for P {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<P>> {
        meet(bench, bench.part())
    }

    fn operation(&mut self, _: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        self.lead(timer)
    }

    fn verify(self, _: &mut Bench) -> anyhow::Result<u64> {
        self.end()
    }
}

/// The client's, which the server's follow.
pub fn meet<P: Partner>(bench: &mut Bench, part: Part) -> anyhow::Result<Vec<P>> {
    P::prepare(bench)?;
    let partners = P::all(&bench.end, &part)?;
    bench.be_followed(part)?;
    Ok(partners)
}

/// The server's.
pub fn follow<P: Partner>(end: &End, part: &Part) -> anyhow::Result<Vec<Follower>> {
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
