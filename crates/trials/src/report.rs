//! Reports: the result of a trial.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::judge::Tally;

/// The result of one trial. Except for `trace`, it is equal for equal plans and seeds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// Name of the plan.
    pub plan: String,
    /// Seed of the trial.
    pub seed: u64,
    /// A digest of all events.
    pub digest: String,
    /// Simulated time, in nanoseconds.
    pub simulated_ns: u64,
    /// Number of events of the simulator.
    pub events: u64,
    /// Results of operations, by kind.
    pub operations: BTreeMap<&'static str, Tally>,
    /// The first violation, if any.
    pub violation: Option<String>,
    /// The lines of the trace that [`Keep`](crate::Keep) selected.
    pub trace: Vec<String>,
}

impl Report {
    /// Returns the report of a trial of which only the violation is known.
    pub(crate) fn bare(plan: &str, seed: u64, violation: Option<String>) -> Report {
        Report {
            plan: plan.to_owned(),
            seed,
            digest: "unknown".to_owned(),
            simulated_ns: 0,
            events: 0,
            operations: BTreeMap::new(),
            violation,
            trace: Vec::new(),
        }
    }

    /// Returns the number of operations of all kinds, successful or not.
    pub fn operations_count(&self) -> u64 {
        self.operations.values().map(|tally| tally.ok + tally.failed + tally.given_up).sum()
    }

    /// Returns the number of successful operations of all kinds.
    pub fn ok_count(&self) -> u64 {
        self.operations.values().map(|tally| tally.ok).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan {}, seed {}", self.plan, self.seed)?;
        writeln!(
            f,
            "{:<24} {:>9} {:>9} {:>9} {:>12} {:>12}",
            "operation", "ok", "failed", "cancelled", "mean[usec]", "max[usec]"
        )?;
        for (operation, tally) in &self.operations {
            let mean_us = tally.ok_ns as f64 / tally.ok.max(1) as f64 / 1000.0;
            let max_us = tally.ok_ns_max as f64 / 1000.0;
            writeln!(
                f,
                "{operation:<24} {:>9} {:>9} {:>9} {mean_us:>12.2} {max_us:>12.2}",
                tally.ok, tally.failed, tally.given_up
            )?;
        }
        let ms = self.simulated_ns as f64 / 1e6;
        writeln!(
            f,
            "{} operations, {} events in {ms:.3} ms of simulated time",
            self.operations_count(),
            self.events
        )?;
        writeln!(f, "digest {}", self.digest)?;
        match &self.violation {
            None => Ok(()),
            Some(violation) => writeln!(f, "VIOLATION: {violation}"),
        }
    }
}
