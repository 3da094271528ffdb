//! Halite, what its users would pick instead and the bare machine, measured in alternating rounds on the same two cores.
//!
//! Every figure is a ratio of two things measured within the same round; the table shows the median of those ratios
//! over all rounds with their spread.  This module only runs programs and small loops and compares: what Halite is
//! asked to do, and how that is timed, is `halite perf`'s affair.

pub mod applications;
pub mod bare;
pub mod child;
pub mod cores;
pub mod grpc;
pub mod halite;
pub mod iperf3;
pub mod laps;
pub mod libfabric;
pub mod machine;
pub mod probe;
pub mod redis;
pub mod redis_benchmark;
pub mod report;
pub mod rows;
pub mod socket;
pub mod sockets;
pub mod spread;
pub mod tools;
pub mod ucx;

use std::path::PathBuf;

use probe::{Probe, ProbeError, Sample};
use report::Report;
use rows::{Row, Sizes};
use tools::{Program, Tools};

use crate::markers::{self, MarkersError};

/// The markers of the table in a document.
const TABLE: &str = "peers";

/// What `halite-bench peers` is told.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// How many rounds; each runs everything once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Two tiny rounds: shows that everything runs, not how fast it is
    #[arg(long)]
    pub smoke: bool,
    /// Fails when a peer is not installed, instead of leaving out its rows
    #[arg(long)]
    pub require_peers: bool,
    /// Only the rows whose name or peer contains this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Regions of the random-access row [default: 1000000; smoke: 1000]
    #[arg(long)]
    pub regions: Option<u64>,
    /// Largest span in bytes of the random-access rows [default: 2147483648; smoke: 16777216]
    #[arg(long)]
    pub span: Option<u64>,
    /// Replaces what stands between the markers `<!-- peers:begin -->` and `<!-- peers:end -->` of this file
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// The `halite` program [default: beside this one; built if it is not there]
    #[arg(long, value_name = "FILE")]
    pub halite: Option<PathBuf>,
}

/// Why no table came about.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// A program or loop that was to be measured failed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// A program could not be replaced by another.
    #[error(transparent)]
    Child(#[from] child::ChildError),
    /// The `halite` program is not there and could not be built.
    #[error(transparent)]
    Halite(#[from] halite::HalitePathError),
    /// `--require-peers` was given and a program is not installed.
    #[error(
        "{} is not installed (Debian: apt-get install {}), and --require-peers asks for it",
        .0.name(),
        .0.package()
    )]
    Missing(Program),
    /// The table could not be written.
    #[error(transparent)]
    Markers(#[from] MarkersError),
}

/// Measures, prints the table, and writes it to `options.markdown` if asked.
pub fn run(options: &Options) -> Result<(), PeersError> {
    let sizes = if options.smoke { Sizes::smoke(options) } else { Sizes::real(options) };
    let rounds = if options.smoke { 2 } else { options.rounds };
    let tools = Tools::find(halite::locate(options.halite.as_deref())?);
    report_missing(&tools, options.require_peers)?;
    // Fails early, and not after minutes, if the file cannot take the table.
    options.markdown.as_deref().map(|path| markers::check(path, TABLE)).transpose()?;

    let mut rows = rows::rows(&sizes);
    rows.retain(|row| row.can_run(&tools) && options.only.as_deref().is_none_or(|text| row.mentions(text)));
    let samples = measure(&rows, &tools, rounds)?;
    let report = Report::new(&rows, &samples, rounds, options.smoke, machine::describe(&tools))?;
    print!("{}", report.text());
    if let Some(path) = &options.markdown {
        markers::splice(path, TABLE, &report.markdown())?;
    }
    Ok(())
}

fn report_missing(tools: &Tools, are_required: bool) -> Result<(), PeersError> {
    for program in &tools.missing {
        if are_required {
            return Err(PeersError::Missing(*program));
        }
        let (name, package) = (program.name(), program.package());
        eprintln!("{name} is not installed (Debian: apt-get install {package}): its rows are left out");
    }
    Ok(())
}

/// What each probe gave in each round: `samples[round][probe]`, probes as in [`rows::probes`].
fn measure(rows: &[Row], tools: &Tools, rounds: u32) -> Result<Vec<Vec<Sample>>, ProbeError> {
    let probes = rows::probes(rows);
    let mut samples = Vec::new();
    for round in 0..rounds {
        let mut of_round = vec![Sample::default(); probes.len()];
        for index in order(round, probes.len()) {
            eprintln!("round {} of {rounds}: {}", round + 1, probes[index]);
            let before = machine::children_cpu();
            let sample = Probe::run(&probes[index], tools)?;
            let cpu = machine::children_cpu().saturating_sub(before);
            of_round[index] = Sample { processes_cpu: Some(cpu), ..sample };
        }
        samples.push(of_round);
    }
    Ok(samples)
}

/// Odd rounds go backwards, so that neither of two neighbours always profits from what the other left in the caches.
fn order(round: u32, probes: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..probes).collect() } else { (0..probes).rev().collect() }
}
