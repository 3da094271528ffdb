//! `write_lat` as perftest means it: both sides write to each other in turn, each polling its own memory.
//!
//! ```text
//!  client                            server
//!  write: payload, stamp 1  ------>  polls the last word of its own region until it is 1
//!  polls its own region     <------  write: payload, stamp 1
//!  write: payload, stamp 2  ------>  ...                          a result is half of such a round trip
//! ```

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use halite::{Lh, Permissions, Placement, blocking};

use super::cores::{Cores, pin};
use super::ends::Ends;
use super::gate::{self, Seat};
use super::job::Job;
use super::measure::{Schedule, Series, estimate_ns};
use super::report::Row;
use super::server::{Reply, Request};

/// How the client's regions begin their names.
pub const CLIENT: &str = "perf-client";
/// How the server's regions begin their names.
pub const SERVER: &str = "perf-server";

/// The stamp is the last word of a write, so that a reader that sees it has it all, as in perftest.
const STAMP_BYTES: u64 = 8;

/// After so long without an answer the other side is taken for dead.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Polls between two looks at the clock, and between two offers to let somebody else have the core.
const POLLS_MAX: u32 = 1 << 12;

/// The regions of one side.
pub struct Table {
    own: Vec<Lh>,
    others: Vec<Lh>,
}

impl Table {
    /// Makes one region for each thread.
    pub fn open(
        session: &blocking::Session,
        side: &str,
        threads: usize,
        bytes: u64,
    ) -> anyhow::Result<Table> {
        let make = |thread| {
            session.alloc(Some(&format!("{side}-{thread}")), bytes, Placement::Local, Permissions::all())
        };
        let own: Result<Vec<Lh>, _> = (0..threads).map(make).collect();
        Ok(Table { own: own?, others: Vec::new() })
    }

    /// Maps the other side's regions.
    pub fn meet(&mut self, session: &blocking::Session, side: &str) -> anyhow::Result<()> {
        let map = |thread| session.map(&format!("{side}-{thread}"), Permissions::READ | Permissions::WRITE);
        let others: Result<Vec<Lh>, _> = (0..self.own.len()).map(map).collect();
        self.others = others?;
        Ok(())
    }

    /// One player for each thread, their stamps at zero.
    pub fn players(&self, session: &blocking::Session, size: u64) -> anyhow::Result<Vec<Player>> {
        let pairs = self.own.iter().zip(&self.others).enumerate();
        pairs.map(|(thread, (own, other))| Player::new(session, *own, *other, thread, size)).collect()
    }
}

/// One side of one pair.
pub struct Player {
    session: blocking::Session,
    own: Lh,
    other: Lh,
    thread: usize,
    payload: Vec<u8>,
    stamp: u64,
}

impl Player {
    fn new(
        session: &blocking::Session,
        own: Lh,
        other: Lh,
        thread: usize,
        size: u64,
    ) -> anyhow::Result<Player> {
        session.write(own, size - STAMP_BYTES, &[0; STAMP_BYTES as usize])?;
        // Both sides of a pair send the same, so that each knows what it should find; pairs differ.
        let payload = (0..size).map(|at| (at ^ thread as u64).wrapping_mul(0x9D) as u8).collect();
        Ok(Player { session: session.clone(), own, other, thread, payload, stamp: 0 })
    }

    /// Of which pair.
    pub fn thread(&self) -> usize {
        self.thread
    }

    /// Writes to the other side.
    #[inline]
    pub fn serve(&mut self, stamp: u64) -> anyhow::Result<()> {
        self.stamp = stamp;
        let at = self.payload.len() - STAMP_BYTES as usize;
        self.payload[at..].copy_from_slice(&stamp.to_ne_bytes());
        Ok(self.session.write(self.other, 0, &self.payload)?)
    }

    /// Polls our own region until the other side's write is there.
    #[inline]
    pub fn await_stamp(&self, stamp: u64) -> anyhow::Result<()> {
        let at = self.payload.len() as u64 - STAMP_BYTES;
        let mut waiting_since = None;
        loop {
            for _ in 0..POLLS_MAX {
                let mut word = [0; STAMP_BYTES as usize];
                self.session.read(self.own, at, &mut word)?;
                if u64::from_ne_bytes(word) == stamp {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            // Where threads share cores, the one that we wait for may need ours.
            std::thread::yield_now();
            if waiting_since.get_or_insert_with(Instant::now).elapsed() > ANSWER_TIMEOUT {
                bail!("no answer to write number {stamp} within {} s", ANSWER_TIMEOUT.as_secs());
            }
        }
    }

    /// How many of the other side's last writes (one) are not what they should be.
    pub fn verify(&self) -> anyhow::Result<u64> {
        let mut found = vec![0; self.payload.len()];
        self.session.read(self.own, 0, &mut found)?;
        Ok(u64::from(found != self.payload))
    }
}

/// The server's part: answers each write by one.  Returns how often the data was wrong in the end.
pub fn serve(players: Vec<Player>, turns: u64, cores: &Cores) -> anyhow::Result<u64> {
    let answer = move |mut player: Player| {
        pin(cores.of_server(player.thread)).context("cannot stay on the server's core")?;
        for stamp in 1..=turns {
            player.await_stamp(stamp)?;
            player.serve(stamp)?;
        }
        player.verify()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = players.into_iter().map(|player| scope.spawn(move || answer(player))).collect();
        let errors = threads.into_iter().map(|thread| thread.join().expect("a player does not panic"));
        errors.sum()
    })
}

/// The client's part, for all sizes.
pub fn run(
    job: &Job,
    ends: &mut Ends,
    report: &mut dyn FnMut(Row) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let table = meet(ends, job.threads, job.size_max())?;
    for size in &job.sizes {
        report(play(job, ends, &table, *size)?)?;
    }
    Ok(())
}

/// Has both sides make their regions and map the other's.
pub fn meet(ends: &mut Ends, threads: usize, bytes: u64) -> anyhow::Result<Table> {
    let mut table = Table::open(&ends.session, CLIENT, threads, bytes)?;
    let server = ends.server().context("a ping-pong needs a server of our own")?;
    server.ask(&Request::Open { threads, bytes }, Reply::Ready)?;
    table.meet(&ends.session, SERVER)?;
    Ok(table)
}

fn play(job: &Job, ends: &mut Ends, table: &Table, size: u64) -> anyhow::Result<Row> {
    let iterations = job.iterations(size);
    let warm_up = warm_up(iterations);
    let players = table.players(&ends.session, size)?;
    let cores = ends.cores.clone();
    let server = ends.server().context("a ping-pong needs a server of our own")?;
    server.ask(&Request::Play { size, turns: warm_up + iterations }, Reply::Ready)?;
    let seats = gate::seats(players.len());
    let played: anyhow::Result<Vec<(Schedule, Series, u64)>> = std::thread::scope(|scope| {
        let cores = &cores;
        let lead = move |player: Player, seat: Seat| {
            pin(cores.of_client(player.thread)).context("cannot stay on the client's core")?;
            lead(player, warm_up, iterations, &seat)
        };
        let threads: Vec<_> = (players.into_iter().zip(seats))
            .map(|(player, seat)| scope.spawn(move || lead(player, seat)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a player does not panic")).collect()
    });
    let (mut series, mut errors, mut batch) = (Series::default(), 0, 1);
    for (schedule, of_thread, errors_of_thread) in played? {
        series.merge(&of_thread);
        errors += errors_of_thread;
        batch = schedule.batch;
    }
    errors += server.errors()?;
    Ok(Row { batch, ours: series, errors, ..Row::new(size, iterations) })
}

/// Round trips before the timed ones.
pub fn warm_up(iterations: u64) -> u64 {
    // What estimate_ns() will do.
    (iterations / 10).clamp(1, 1000) + 1
}

fn lead(
    mut player: Player,
    warm_up: u64,
    iterations: u64,
    seat: &Seat,
) -> anyhow::Result<(Schedule, Series, u64)> {
    let mut round_trip = || {
        let stamp = player.stamp + 1;
        player.serve(stamp)?;
        player.await_stamp(stamp)
    };
    seat.wait();
    let schedule = Schedule::new(iterations, estimate_ns(iterations, &mut round_trip)? / 2.0);
    let series = time_half(schedule, &mut round_trip)?;
    assert_eq!(player.stamp, warm_up + iterations, "the server was told how many round trips there will be");
    let errors = player.verify()?;
    Ok((schedule, series, errors))
}

/// Times round trips; a result is half of one.
pub fn time_half(
    schedule: Schedule,
    mut round_trip: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Series> {
    let mut series = Series::default();
    for operations in schedule.rounds() {
        series.round_of_batches(operations, schedule.batch, |size| {
            let begin = Instant::now();
            for _ in 0..size {
                round_trip()?;
            }
            anyhow::Ok(begin.elapsed() / 2)
        })?;
    }
    Ok(series)
}
