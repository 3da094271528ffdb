//! `halite sim run`: one trial.

use halite_trials::Keep;

use super::args::RunArgs;
use super::plans::Source;
use super::{Failed, panics, write_trace};
use crate::output;

/// Runs a trial, and fails on a violation.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let source = Source::find(&args.plan, args.profile.as_deref())?;
    let keep = if args.trace.is_some() { Keep::All } else { Keep::Nothing };
    let mut report =
        panics::in_trial(&source, args.seed, || halite_trials::run(&source.plan, args.seed, keep))?;
    // The trace goes to its file only; the printed report stays the same.
    let trace = std::mem::take(&mut report.trace);
    if let Some(path) = &args.trace {
        write_trace(path, &trace)?;
    }
    match args.json {
        true => output::print_json(&report)?,
        false => output::print(&report.to_string())?,
    }
    if report.violation.is_some() {
        let repeat = source.repeat_command(args.seed);
        return Err(Failed { plan: report.plan, seed: args.seed, repeat }.into());
    }
    Ok(())
}
