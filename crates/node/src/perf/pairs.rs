//! Workloads in which each thread of the client takes turns with one of the server: the client's leads, the server's
//! follows.

use serde::{Deserialize, Serialize};

use super::bench::Bench;
use super::cores::Cores;
use super::crew;
use super::measure::{Measured, NO_BASELINE, warm_up};
use super::report::Row;
use super::server::{Reply, Request};

/// What both do.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub enum Game {
    /// Write to each other.
    Writes,
    /// Send messages to each other.
    Messages,
    /// Pass a barrier together.
    Barrier,
}

/// One side of one pair.
pub trait Partner: Send {
    /// What is played.
    const GAME: Game;

    /// Takes the next turn: who leads begins it and awaits the answer, who follows answers.
    fn turn(&mut self, leads: bool) -> anyhow::Result<()>;

    /// How often what came was not what it should be.
    fn errors(&mut self) -> anyhow::Result<u64>;
}

/// The client's part: times turns, of which there and back are two.
pub fn lead<P: Partner>(bench: &mut Bench<'_>, partners: Vec<P>) -> anyhow::Result<Row> {
    begin::<P>(bench, warm_up(bench.iterations) + bench.iterations)?;
    let mut row = bench.measure(partners, |_, mut partner, timer| {
        let turn = || partner.turn(true);
        let measured = match P::GAME {
            Game::Barrier => timer.operations(turn, NO_BASELINE)?,
            Game::Writes | Game::Messages => timer.halves(turn)?,
        };
        Ok(Measured { errors: partner.errors()?, ..measured })
    })?;
    row.errors += bench.ends.own_server()?.errors()?;
    Ok(row)
}

/// Has the server follow for so many turns; it tells its errors in the end.
pub fn begin<P: Partner>(bench: &mut Bench<'_>, turns: u64) -> anyhow::Result<()> {
    let (threads, size) = (bench.job.threads, bench.size);
    bench.ends.own_server()?.ask(&Request::Play { game: P::GAME, threads, size, turns }, Reply::Ready)
}

/// The server's part; how often what came was not what it should be.
pub fn follow<P: Partner>(partners: Vec<P>, turns: u64, cores: &Cores) -> anyhow::Result<u64> {
    let work = |_, mut partner: P, _| {
        (0..turns).try_for_each(|_| partner.turn(false))?;
        partner.errors()
    };
    Ok(crew::run(partners, |thread| cores.of_server(thread), work)?.into_iter().sum())
}
