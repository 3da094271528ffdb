//! `halite-bench peers`: measures Halite, its usual alternatives and the bare machine in alternating rounds on the same
//! two cores.
//!
//! Each ratio compares two figures of the same round. The table shows the median ratio over all rounds, and its range.
//! This module runs programs and small loops, and compares their results; `halite perf` measures Halite.

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
pub mod ports;
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

use std::error::Error;
use std::path::PathBuf;

use probe::{Probe, ProbeError, Sample};
use report::Report;
use rows::{Row, Sizes};
use tools::Tools;

use crate::markers;

/// Name of the markers in a document.
const TABLE: &str = "peers";

/// Options of `halite-bench peers`.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Number of rounds; each runs every probe once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Run two short rounds, to check that all programs work; the figures are not measurements
    #[arg(long)]
    pub smoke: bool,
    /// Run only the rows whose topic, name or peer contains this text
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Number of regions of the random-access row [default: 1000000; smoke: 1000]
    #[arg(long)]
    pub regions: Option<u64>,
    /// Largest span in bytes of the random-access rows [default: 2147483648; smoke: 16777216]
    #[arg(long)]
    pub span: Option<u64>,
    /// Replace the text between the markers `<!-- peers:begin -->` and `<!-- peers:end -->` of this file
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write a plot of all ratios to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// The `halite` program [default: next to this program; built if it does not exist]
    #[arg(long, value_name = "FILE")]
    pub halite: Option<PathBuf>,
}

/// Measures and prints the table, and writes it to `options.markdown` if given.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let sizes = if options.smoke { Sizes::smoke(options) } else { Sizes::real(options) };
    let rounds = if options.smoke { 2 } else { options.rounds };
    let tools = Tools::find(halite::locate(options.halite.as_deref())?);
    for program in &tools.missing {
        let (name, package) = (program.name(), program.package());
        eprintln!("{name} is not installed (Debian: apt-get install {package}): its rows are omitted");
    }
    // A missing marker must be reported at once, not after minutes of measurements.
    options.markdown.as_deref().map(|path| markers::check(path, TABLE)).transpose()?;

    let mut rows = rows::rows(&sizes);
    rows.retain(|row| row.can_run(&tools) && options.only.as_deref().is_none_or(|text| row.mentions(text)));
    let samples = measure(&rows, &tools, rounds)?;
    let report = Report::new(&rows, &samples, rounds, options.smoke, machine::describe(&tools))?;
    print!("{}", report.text());
    if let Some(path) = &options.markdown {
        markers::splice(path, TABLE, &report.markdown())?;
    }
    if let Some(path) = &options.svg {
        let written = std::fs::write(path, report.svg());
        written.map_err(|error| format!("cannot write the plot to {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Returns the samples as `samples[round][probe]`, with probes in the order of [`rows::probes`].
fn measure(rows: &[Row], tools: &Tools, rounds: u32) -> Result<Vec<Vec<Sample>>, ProbeError> {
    let probes = rows::probes(rows);
    let mut samples = Vec::new();
    for round in 0..rounds {
        let mut round_samples = vec![Sample::default(); probes.len()];
        for index in order(round, probes.len()) {
            eprintln!("round {} of {rounds}: {}", round + 1, probes[index]);
            let before = machine::children_cpu();
            let sample = Probe::run(&probes[index], tools)?;
            let cpu = machine::children_cpu().saturating_sub(before);
            round_samples[index] = Sample { processes_cpu: Some(cpu), ..sample };
        }
        samples.push(round_samples);
    }
    Ok(samples)
}

/// Returns the order of the probes. Odd rounds use the reverse order, so that no probe always profits from the cache
/// contents that its predecessor leaves.
fn order(round: u32, probes: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..probes).collect() } else { (0..probes).rev().collect() }
}
