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
    fn create(end: &End, part: &Part) -> anyhow::Result<Vec<Self>>;

    /// Takes one turn. The leader starts the turn and waits for the answer; the follower answers.
    fn take_turn(&mut self, leads: bool) -> anyhow::Result<()>;

    /// Measures the turns as the leader. A round trip counts as two turns.
    fn measure(&mut self, timer: &Timer) -> anyhow::Result<Measured> {
        timer.halves(|| self.take_turn(true))
    }

    /// Ends the pair; returns the number of errors in the data.
    fn finish(self) -> anyhow::Result<u64>;
}

impl<P: Partner> Workload for P {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<P>> {
        start_pairs(bench, bench.part())
    }

    fn operation(&mut self, _: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        self.measure(timer)
    }

    fn verify(self, _: &mut Bench) -> anyhow::Result<u64> {
        self.finish()
    }
}

/// Creates the client's partners, and starts the server's threads.
pub fn start_pairs<P: Partner>(bench: &mut Bench, part: Part) -> anyhow::Result<Vec<P>> {
    P::prepare(bench)?;
    let partners = P::create(&bench.end, &part)?;
    bench.start_following(part)?;
    Ok(partners)
}

/// Creates the server's partners, and a follower thread for each.
pub fn server_threads<P: Partner>(end: &End, part: &Part) -> anyhow::Result<Vec<Follower>> {
    let turns = part.turns;
    let follower = |mut partner: P| Follower {
        run: Box::new(move || {
            (0..turns).try_for_each(|_| partner.take_turn(false))?;
            partner.finish()
        }),
        function: None,
    };
    Ok(P::create(end, part)?.into_iter().map(follower).collect())
}
