//! `halite sim`: whole clusters in simulated time, with faults.
//!
//! A trial depends on its plan and seed only, so a failure can be repeated. [`run`] runs one trial, [`soak`] runs many.
//! Crate `halite_trials` defines trials and violations.

mod args;
mod excerpt;
mod list;
mod panics;
mod plans;
mod qos;
mod run;
mod seeds;
mod soak;
mod totals;
mod walk;

use std::path::{Path, PathBuf};

pub use args::SimArgs;

use crate::output;
use args::SimCommand;

pub fn run(args: &SimArgs) -> anyhow::Result<()> {
    panics::report_trials();
    match &args.command {
        SimCommand::Run(args) => run::run(args),
        SimCommand::Soak(args) => soak::run(args),
        SimCommand::List(args) => list::run(args),
        SimCommand::Qos(args) => qos::run(args),
        SimCommand::Golden => Ok(output::print(&halite_trials::golden())?),
    }
}

/// The error of a trial with a violation.
#[derive(Debug, thiserror::Error)]
#[error("plan {plan} fails with seed {seed}; repeat it with: {repeat}")]
struct Failed {
    plan: String,
    seed: u64,
    /// A command that repeats the trial and accepts `--trace FILE`.
    repeat: String,
}

/// The error of a trace that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the trace to {}: {cause}", path.display())]
struct TraceError {
    path: PathBuf,
    cause: std::io::Error,
}

fn write_trace(path: &Path, lines: &[String]) -> Result<(), TraceError> {
    let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
    std::fs::write(path, text).map_err(|cause| TraceError { path: path.to_owned(), cause })
}
