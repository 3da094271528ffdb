//! Sums over many trials.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use halite_trials::Report;
use serde::Serialize;

/// Sums, and the seeds that failed.
#[derive(Default, Serialize)]
pub struct Totals {
    pub seeds: u64,
    /// Number of operations, successful or not.
    pub operations: u64,
    /// Number of events of the simulator.
    pub events: u64,
    /// Simulated time, in nanoseconds.
    pub simulated_ns: u64,
    /// Real time, in seconds.
    pub seconds: f64,
    /// Processor time, in seconds.
    pub cpu_seconds: f64,
    /// Number of operations that succeeded.
    pub ok: u64,
    /// Number of concurrent trials.
    pub threads: usize,
    /// Sum of the digests of all trials; equal for equal plans and seeds, with any number of threads.
    #[serde(serialize_with = "hexadecimal")]
    pub digest: u64,
    /// Violations by the seed that failed.
    pub violations: BTreeMap<u64, String>,
}

impl Totals {
    pub fn new(threads: usize) -> Totals {
        Totals { threads, ..Totals::default() }
    }

    pub fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.operations += report.operations_count();
        self.ok += report.ok_count();
        self.events += report.events;
        self.simulated_ns += report.simulated_ns;
        // A trial that panicked has no digest, but its violation counts.
        self.digest = self.digest.wrapping_add(u64::from_str_radix(&report.digest, 16).unwrap_or(0));
        if let Some(violation) = report.violation {
            self.violations.insert(report.seed, violation);
        }
    }

    /// Formats the progress after `elapsed` in one line.
    pub fn progress(&self, elapsed: Duration) -> String {
        let (seeds, operations) = (self.seeds, self.operations);
        let rate = operations as f64 / elapsed.as_secs_f64();
        let violations = self.violations.len();
        format!("{seeds} seeds, {operations} operations, {rate:.0} per second, {violations} violations")
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { seeds, operations, ok, events, seconds, cpu_seconds, threads, .. } = self;
        let simulated_s = self.simulated_ns as f64 / 1e9;
        writeln!(
            f,
            "{seeds} seeds, {operations} operations ({ok} successful), {events} events in {simulated_s:.3} s of simulated time"
        )?;
        let (ms, rate) = (1e3 * cpu_seconds / (*seeds).max(1) as f64, *operations as f64 / cpu_seconds);
        writeln!(
            f,
            "{seconds:.1} s on {threads} threads; {ms:.1} ms of processor time per seed, {rate:.0} operations per second of processor time"
        )?;
        writeln!(f, "digest {:016x}", self.digest)?;
        writeln!(f, "{} violations", self.violations.len())
    }
}

fn hexadecimal<S: serde::Serializer>(digest: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{digest:016x}"))
}
