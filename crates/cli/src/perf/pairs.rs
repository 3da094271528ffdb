//! Workloads in which each client thread takes turns with a server thread: the client sends, the server answers.

use super::end::End;
use super::server::{ServerTask, ServerThread};
use super::workload::{Bench, Measured, Timer, Workload};

pub trait Partner: Send + Sized + 'static {
    /// Creates shared state before the first row.
    fn prepare(_bench: &mut Bench) -> anyhow::Result<()> {
        Ok(())
    }

    /// Creates the partners of one end, one per pair.
    fn create(end: &End, task: &ServerTask) -> anyhow::Result<Vec<Self>>;

    /// Takes one turn. The client starts the turn and waits for the answer; the server answers.
    fn take_turn(&mut self, is_client: bool) -> anyhow::Result<()>;

    /// Measures the turns of the client. A round trip counts as two turns.
    fn measure(&mut self, timer: &Timer) -> anyhow::Result<Measured> {
        timer.halves(|| self.take_turn(true))
    }

    /// Ends the pair; returns the number of errors in the data.
    fn finish(self) -> anyhow::Result<u64>;
}

impl<P: Partner> Workload for P {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<P>> {
        start_pairs(bench, bench.server_task())
    }

    fn operation(&mut self, _: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        self.measure(timer)
    }

    fn verify(self, _: &mut Bench) -> anyhow::Result<u64> {
        self.finish()
    }
}

/// Creates the client's partners, and starts the server's threads.
pub fn start_pairs<P: Partner>(bench: &mut Bench, task: ServerTask) -> anyhow::Result<Vec<P>> {
    P::prepare(bench)?;
    let partners = P::create(&bench.end, &task)?;
    bench.start_server_threads(task)?;
    Ok(partners)
}

/// Creates the server's partners, each with a thread.
pub fn server_threads<P: Partner>(end: &End, task: &ServerTask) -> anyhow::Result<Vec<ServerThread>> {
    let turns = task.turns;
    let thread = |mut partner: P| ServerThread {
        run: Box::new(move || {
            (0..turns).try_for_each(|_| partner.take_turn(false))?;
            partner.finish()
        }),
        function: None,
    };
    Ok(P::create(end, task)?.into_iter().map(thread).collect())
}
