//! `halite sim`: whole clusters in simulated time, with faults.
//!
//! A trial follows from its plan and its seed, so that what fails once fails again: [`run`] runs one, [`soak`] walks
//! many.  What a trial consists of, and what must not be seen in one, is crate `halite_trials`' business.

mod args;
mod blame;
mod list;
mod panics;
mod plans;
mod run;
mod seeds;
mod soak;
mod totals;
mod walk;

use std::path::{Path, PathBuf};

pub use args::SimArgs;

use crate::output;
use args::SimCommand;

/// Does what the command line says.
pub fn run(args: &SimArgs) -> anyhow::Result<()> {
    panics::name_their_trials();
    match &args.command {
        SimCommand::Run(args) => run::run(args),
        SimCommand::Soak(args) => soak::run(args),
        SimCommand::List(args) => list::run(args),
        SimCommand::Golden => Ok(output::print(&halite_trials::golden())?),
    }
}

/// A trial in which something was observed that must not be.
#[derive(Debug, thiserror::Error)]
#[error("plan {plan} fails with seed {seed}; again with: {again}")]
struct Failed {
    plan: String,
    seed: u64,
    /// A command, to which `--trace FILE` can be added.
    again: String,
}

/// A trace that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the trace to {}: {cause}", path.display())]
struct TraceError {
    path: PathBuf,
    cause: std::io::Error,
}

/// Writes a trace, one line after the other.
fn write_trace(path: &Path, lines: &[String]) -> Result<(), TraceError> {
    let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
    std::fs::write(path, text).map_err(|cause| TraceError { path: path.to_owned(), cause })
}
