//! What every kind of benchmark is made of, and what it says about itself before it runs.
//!
//! A new kind is a file with a [`Workload`] and a function that makes its [`Plan`] from the flags, and a row in
//! [`TESTS`](super::table::TESTS).

use std::ops::RangeInclusive;

pub use super::args::PerfArgs;
pub use super::bench::Bench;
pub use super::measure::{Measured, Timer};
pub use super::report::Row;
use super::report::{Bare, MEMCPY};
use crate::output::UsageError;

/// A kind of benchmark: a value of it is what one thread of the client works with.
pub trait Workload: Send + Sized {
    /// Makes what one row needs, at both ends; a share for each thread that measures.
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Self>>;

    /// A thread's part: has the timer do the operation over and over.  Which one that is, is decided before, so that nothing but the
    /// operation is in the timer's loop.
    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured>;

    /// How often the data was not what it should be, once all threads have ended.
    fn verify(self, bench: &mut Bench) -> anyhow::Result<u64>;

    /// Further figures of a row, by name.
    fn figures(_bench: &Bench) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

/// Measures one row.
pub fn measure<W: Workload>(bench: &mut Bench) -> anyhow::Result<Row> {
    let shares = W::setup(bench)?;
    let (mut row, shares) = bench.time(shares, |_, share, bench, timer| share.operation(bench, timer))?;
    verify(shares, bench, &mut row)?;
    Ok(row)
}

/// Completes a row: what either end found wrong, and further figures.
pub fn verify<W: Workload>(shares: Vec<W>, bench: &mut Bench, row: &mut Row) -> anyhow::Result<()> {
    for share in shares {
        row.errors += share.verify(bench)?;
    }
    row.errors += bench.end_following()?;
    row.extra.extend(W::figures(bench));
    Ok(())
}

/// A plan, or why the flags make no sense together.
pub type Planned = Result<Plan, UsageError>;

/// What headings say of those that do nothing else.
pub const IN_TURN: &str = "one operation after the other";
/// The same, and where.
pub const SAME_BYTES: &str = "one operation after the other on the same bytes";

/// Largest size of the tests that move bytes.
pub const SIZE_MAX: u64 = 64 << 20;

/// What is said of others.
pub const SIZE_LIMIT: &str = "-s takes 1 byte to 64 MiB";

/// A word, as the stamp of a ping-pong is.
pub const WORD_BYTES: u64 = 8;

/// What a test is going to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Measures one row.
    pub measure: fn(&mut Bench) -> anyhow::Result<Row>,
    /// What headings say.
    pub what: &'static str,
    /// What bare memory does beside it, if that has an equal.
    pub bare: Bare,
    /// Bytes of an operation unless the user says.
    pub size: u64,
    /// Whether its operations are what they are however many bytes one would like: a word; nothing where no bytes are moved, or of all
    /// lengths.
    pub has_one_size: bool,
    /// Sizes that can be had, and what is said of others.
    pub limits: Vec<(RangeInclusive<u64>, &'static str)>,
    /// How many bytes take about a second.
    pub bytes: u64,
    /// Operations of each thread that take about a second, however few bytes they have.
    pub iterations_max: u64,
    /// Whether operations that are not timed come before those that are.
    pub warms_up: bool,
    /// Threads unless the user says.
    pub threads: u32,
    /// How many times longer than usual intervals between operations are, for one row after the other.
    pub slowdowns: &'static [u64],
    /// Whether it takes a process of ours at the other end.
    pub needs_server: bool,
    /// Whether the other end is to be the home of what is measured: then ours contributes no memory.
    pub is_at_server: bool,
    /// How many times the largest size each thread needs in an arena.  Four times what is needed where memory is freed and allocated
    /// again, for it can be used only when all who mapped it have let go; and it is taken from the system only as it is touched.
    pub arena_sizes: u64,
    /// Bytes that all threads need there together.
    pub arena_bytes: u64,
}

impl Plan {
    /// The usual one: a word, or up to 64 MiB if the user says, by one thread, beside bare copies.
    pub fn of<W: Workload>(what: &'static str) -> Plan {
        Plan {
            measure: measure::<W>,
            what,
            bare: MEMCPY,
            size: WORD_BYTES,
            has_one_size: false,
            limits: vec![(1..=SIZE_MAX, SIZE_LIMIT)],
            bytes: 1 << 30,
            iterations_max: 1_000_000,
            warms_up: true,
            threads: 1,
            slowdowns: &[1],
            needs_server: false,
            is_at_server: false,
            arena_sizes: 4,
            arena_bytes: 0,
        }
    }

    /// Of one size only, which the user cannot choose.
    pub fn of_one_size<W: Workload>(what: &'static str, size: u64) -> Plan {
        Plan { size, has_one_size: true, limits: Vec::new(), ..Plan::of::<W>(what) }
    }
}
