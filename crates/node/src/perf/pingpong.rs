//! `write_lat` as perftest means it: both sides write to each other in turn, each polling its own memory.
//!
//! ```text
//!  client                            server
//!  write: payload, stamp 1  ------>  polls the last word of its own region until it is 1
//!  polls its own region     <------  write: payload, stamp 1
//!  write: payload, stamp 2  ------>  ...                          a result is half of such a round trip
//! ```

use std::time::{Duration, Instant};

use anyhow::bail;
use halite::{Lh, Permissions, Placement, blocking};

use super::bench::Bench;
use super::pairs::{Game, Partner};
use super::parcel::pattern;
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

/// Each thread's region, and the one of its partner.
pub struct Table(Vec<(Lh, Lh)>);

impl Table {
    /// Makes a region for each thread, and maps those of the other side when they are there.
    pub fn new(
        session: &blocking::Session,
        [own, other]: [&str; 2],
        threads: usize,
        bytes: u64,
        await_other: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Table> {
        let make = |thread| {
            session.alloc(Some(&format!("{own}-{thread}")), bytes, Placement::Local, Permissions::all())
        };
        let made: Vec<Lh> = (0..threads).map(make).collect::<Result<_, _>>()?;
        await_other()?;
        let map = |thread| session.map(&format!("{other}-{thread}"), Permissions::READ | Permissions::WRITE);
        let pairs = made.into_iter().enumerate().map(|(thread, own)| Ok((own, map(thread)?)));
        Ok(Table(pairs.collect::<anyhow::Result<_>>()?))
    }

    /// One player for each thread, their stamps at zero.
    pub fn players(&self, session: &blocking::Session, size: u64) -> anyhow::Result<Vec<Player>> {
        let player = |(thread, (own, other)): (usize, &(Lh, Lh))| {
            session.write(*own, size - STAMP_BYTES, &[0; STAMP_BYTES as usize])?;
            // Both sides of a pair send the same, so that each knows what it should find; pairs differ.
            let payload = pattern(size, thread);
            Ok(Player { session: session.clone(), own: *own, other: *other, payload, stamp: 0 })
        };
        self.0.iter().enumerate().map(player).collect()
    }
}

/// One side of one pair.
pub struct Player {
    session: blocking::Session,
    own: Lh,
    other: Lh,
    payload: Vec<u8>,
    stamp: u64,
}

impl Partner for Player {
    const GAME: Game = Game::Writes;

    #[inline]
    fn turn(&mut self, leads: bool) -> anyhow::Result<()> {
        self.stamp += 1;
        if leads {
            self.serve()?;
            self.await_stamp()
        } else {
            self.await_stamp()?;
            self.serve()
        }
    }

    /// Whether (one) the other side's last write is not what it should be.
    fn errors(&mut self) -> anyhow::Result<u64> {
        let mut found = vec![0; self.payload.len()];
        self.session.read(self.own, 0, &mut found)?;
        Ok(u64::from(found != self.payload))
    }
}

impl Player {
    /// Writes to the other side.
    #[inline]
    fn serve(&mut self) -> anyhow::Result<()> {
        let at = self.payload.len() - STAMP_BYTES as usize;
        self.payload[at..].copy_from_slice(&self.stamp.to_ne_bytes());
        Ok(self.session.write(self.other, 0, &self.payload)?)
    }

    /// Polls our own region until the other side's write is there.
    #[inline]
    fn await_stamp(&self) -> anyhow::Result<()> {
        let (at, stamp) = (self.payload.len() as u64 - STAMP_BYTES, self.stamp);
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
}

/// The client's players.  For the first row, both sides make their regions and map the other's.
pub fn players(bench: &mut Bench<'_>) -> anyhow::Result<Vec<Player>> {
    let session = bench.ends.session.clone();
    if bench.table.is_none() {
        let (threads, bytes) = (bench.job.threads, bench.job.size_max());
        let server = bench.ends.own_server()?;
        let await_other = || server.ask(&Request::Open { threads, bytes }, Reply::Ready);
        bench.table = Some(Table::new(&session, [CLIENT, SERVER], threads, bytes, await_other)?);
    }
    bench.table.as_ref().expect("it has just been made").players(&session, bench.size)
}
