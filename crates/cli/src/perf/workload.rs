//! The interface of a benchmark, and its plan.
//!
//! A new benchmark is a file with a [`Workload`] and a function that creates its [`Plan`] from the flags, and a row in
//! [`TESTS`](super::table::TESTS).

use std::ops::RangeInclusive;

pub use super::args::PerfArgs;
pub use super::bench::Bench;
pub use super::measure::{Measured, Timer};
pub use super::report::Row;
use super::report::{Baseline, MEMCPY};
use crate::output::UsageError;

/// A kind of benchmark. Each value belongs to one thread of the client.
pub trait Workload: Send + Sized {
    /// Prepares a row at both ends; returns the values of all threads.
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Self>>;

    /// Passes the thread's operation to the timer. Selects the operation beforehand, so that the timed loop has no
    /// branches.
    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured>;

    /// Returns the number of errors in the data, after all threads have ended.
    fn verify(self, bench: &mut Bench) -> anyhow::Result<u64>;

    /// Further figures of a row, by name.
    fn figures(_bench: &Bench) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

/// Measures one row of a workload.
pub fn measure<W: Workload>(bench: &mut Bench) -> anyhow::Result<Row> {
    let workers = W::setup(bench)?;
    let (mut row, workers) = bench.time(workers, |_, worker, bench, timer| worker.operation(bench, timer))?;
    verify(workers, bench, &mut row)?;
    Ok(row)
}

/// Adds the errors of both ends and the further figures to a row.
pub fn verify<W: Workload>(workers: Vec<W>, bench: &mut Bench, row: &mut Row) -> anyhow::Result<()> {
    for worker in workers {
        row.errors += worker.verify(bench)?;
    }
    row.errors += bench.join_server_threads()?;
    row.extra.extend(W::figures(bench));
    Ok(())
}

/// A plan, or the error of contradicting flags.
pub type Planned = Result<Plan, UsageError>;

/// Heading of tests whose operations do not overlap.
pub const IN_TURN: &str = "one operation after the other";
pub const SAME_BYTES: &str = "one operation after the other on the same bytes";

/// Maximum size in bytes of tests that move bytes.
pub const SIZE_MAX: u64 = 64 << 20;

/// Error about sizes out of range.
pub const SIZE_LIMIT: &str = "-s must be from 1 byte to 64 MiB";

/// Length of a word in bytes, which is the stamp of a ping-pong.
pub const WORD_BYTES: u64 = 8;

/// The plan of a test: the function that measures a row, and the defaults and limits of the flags.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Function that measures one row.
    pub measure: fn(&mut Bench) -> anyhow::Result<Row>,
    /// Description of the operations, for the heading.
    pub description: &'static str,
    /// Baseline of the test.
    pub baseline: Baseline,
    /// Default size of an operation in bytes.
    pub size: u64,
    /// True if the test fixes its own size or sizes (a word, no bytes, or a mix), so that -s and -a are errors.
    pub has_one_size: bool,
    /// Valid ranges of sizes, each with the error for sizes out of range.
    pub limits: Vec<(RangeInclusive<u64>, &'static str)>,
    /// Number of bytes that an average machine moves in about one second.
    pub bytes: u64,
    /// Maximum number of operations of each thread: as many as take about a second.
    pub iterations_max: u64,
    /// True if warm-up operations precede the timed ones.
    pub warms_up: bool,
    /// Default number of threads.
    pub threads: u32,
    /// Factors by which intervals between operations are longer than usual, one per row.
    pub slowdowns: &'static [u64],
    /// True if the test needs the server process.
    pub needs_server: bool,
    /// True if the server's threads serve functions. With `--attached`, they run in a third process, which is attached
    /// too.
    pub serves_functions: bool,
    /// True if the server is the home of the measured objects; the client then contributes no memory.
    pub is_at_server: bool,
    /// Arena that each thread needs, in multiples of the largest size. Tests that allocate again need four times as
    /// much: memory is reused when all its mappers have released it. Pages are allocated on first use.
    pub arena_sizes: u64,
    /// Arena in bytes that all threads need together.
    pub arena_bytes: u64,
}

impl Plan {
    /// Creates the default plan: a word, or up to 64 MiB with -s, by one thread, compared with bare copies.
    pub fn of<W: Workload>(description: &'static str) -> Plan {
        Plan {
            measure: measure::<W>,
            description,
            baseline: MEMCPY,
            size: WORD_BYTES,
            has_one_size: false,
            limits: vec![(1..=SIZE_MAX, SIZE_LIMIT)],
            bytes: 1 << 30,
            iterations_max: 1_000_000,
            warms_up: true,
            threads: 1,
            slowdowns: &[1],
            needs_server: false,
            serves_functions: false,
            is_at_server: false,
            arena_sizes: 4,
            arena_bytes: 0,
        }
    }

    /// Creates the plan of a test with one size, which the user cannot change.
    pub fn of_one_size<W: Workload>(description: &'static str, size: u64) -> Plan {
        Plan { size, has_one_size: true, limits: Vec::new(), ..Plan::of::<W>(description) }
    }
}
