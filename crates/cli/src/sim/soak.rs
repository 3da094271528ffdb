//! `halite sim soak`: runs trials of many seeds, and shows the trace of the first trial that fails.

use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use halite_trials::{Keep, Plan, PlanError, Report};

use super::args::SoakArgs;
use super::plans::{Source, SourceError};
use super::totals::Totals;
use super::walk::Walk;
use super::{Failed, excerpt, write_trace};
use crate::output;
use crate::perf::measure::process_cpu;

/// Interval between progress lines.
const PROGRESS_GAP: Duration = Duration::from_secs(10);
/// Maximum number of trace lines that are shown before a violation.
const LINES_MAX: usize = 40;

/// Runs trials; fails with the first seed that fails.
pub fn run(args: &SoakArgs) -> anyhow::Result<()> {
    let (begin, begin_cpu) = (Instant::now(), process_cpu());
    // A time beyond the clock's range counts as no limit.
    let end = args.seconds.and_then(|seconds| begin.checked_add(Duration::from_secs(seconds)));
    let walk = Walk::new(sources(args)?, args.seeds.clone().unwrap_or_default().0, end);
    let threads = args.threads.unwrap_or_else(cores);
    let mut totals = Totals::new(threads.get());
    walk.run_all(threads, |reports| collect(reports, &walk, begin, args.keep_going, &mut totals))?;
    totals.seconds = begin.elapsed().as_secs_f64();
    totals.cpu_seconds = (process_cpu() - begin_cpu).as_secs_f64();
    let first = totals.violations.first_key_value();
    if let Some((seed, violation)) = first {
        show(&walk, *seed, violation, args)?;
    }
    match args.json {
        true => output::print_json(&totals)?,
        false => output::print(&totals.to_string())?,
    }
    first.map_or(Ok(()), |(seed, _)| Err(failed(walk.source(*seed), *seed).into()))
}

fn sources(args: &SoakArgs) -> Result<Vec<Source>, SourceError> {
    let find = |name: &str| Source::find(name, args.profile.as_deref());
    match args.plans.as_slice() {
        [] => Plan::SMALL.iter().map(|name| find(name)).collect(),
        name => name.iter().map(|name| find(name)).collect(),
    }
}

fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

fn failed(source: &Source, seed: u64) -> Failed {
    Failed { plan: source.name.clone(), seed, repeat: source.repeat_command(seed) }
}

/// Adds up the reports of all threads until they end, and prints progress.
fn collect(
    reports: Receiver<Result<Report, PlanError>>,
    walk: &Walk,
    begin: Instant,
    keep_going: bool,
    totals: &mut Totals,
) -> Result<(), PlanError> {
    let mut due = begin + PROGRESS_GAP;
    loop {
        match reports.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(report) => collect_one(report?, walk, keep_going, totals),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                output::note(&totals.progress(begin.elapsed()));
                due += PROGRESS_GAP;
            }
        }
    }
}

fn collect_one(report: Report, walk: &Walk, keep_going: bool, totals: &mut Totals) {
    match &report.violation {
        Some(_) if !keep_going => walk.stop(),
        Some(violation) => {
            output::note(&format!("{}: {violation}", walk.source(report.seed).repeat_command(report.seed)))
        }
        None => {}
    }
    totals.add(report);
}

/// Repeats the trial of a failed seed and prints the trace before the violation.
fn show(walk: &Walk, seed: u64, violation: &str, args: &SoakArgs) -> anyhow::Result<()> {
    let report = walk.run(seed, Keep::All)?;
    if let Some(path) = &args.trace {
        write_trace(path, &report.trace)?;
    }
    for line in excerpt::last_lines(&report.trace, violation, LINES_MAX) {
        output::note(line);
    }
    if report.violation.as_deref() != Some(violation) {
        let second = report.violation.as_deref().unwrap_or("nothing");
        output::note(&format!("the run is not repeatable: the second run of this seed shows {second}"));
    }
    Ok(())
}
