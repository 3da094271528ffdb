//! The rows of the table: for each row, the two compared figures and the target.

mod applications;
mod calls;
mod memory;
mod network;
mod sync;

use super::Options;
use super::probe::{Probe, ProbeError, Sample};
use super::tools::Tools;
use super::ucx::Transport;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A figure of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// Median time of an operation, in us.
    Latency,
    /// 99th percentile of the time of an operation, in us.
    P99,
    /// Median round trip of a ping-pong, in us: twice the program's figure, which is half a round trip.
    RoundTrip,
    /// 99th percentile of the round trip of a ping-pong, in us: twice the program's figure, which is half a round trip.
    P99RoundTrip,
    /// Mean time of an operation, in us.
    Mean,
    /// Mean round trip in us, for peers that print medians in coarse steps.
    MeanRoundTrip,
    /// Operations per second times their size, in MB/s (10^6 bytes per second).
    Bandwidth,
    /// Bandwidth as printed by the program, in its own megabytes; only for the ratio to `BaselineBandwidth`.
    PrintedBandwidth,
    /// Millions of operations per second.
    Rate,
    /// Time of the same operation by bare loads and stores in the same run, in us.
    BaselineLatency,
    /// Bandwidth of bare copies in the same run, in the unit of `PrintedBandwidth`.
    BaselineBandwidth,
    /// Time of an operation beyond its baseline, in ns.
    Overhead,
    /// Processor time of an operation, in us.
    Cpu,
    /// Processor time of an operation if both ends poll without sleeping, in us.
    PollingCpu,
    /// Processor time per operation of all processes of a run, including their start and end, in us.
    ProcessesCpu,
    /// Used part of the memory that the server reserves for requests, in percent.
    Used,
    /// Used part of the receive buffers, of four sizes, that RDMA send would need for the same requests, in percent.
    UsedByQueues,
}

/// Source of a figure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// The probe that measures the figure.
    pub probe: Probe,
    /// The figure in the probe's sample.
    pub figure: Figure,
}

/// Target of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Target {
    /// Maximum ratio of Halite's figure to the peer's.
    RatioAtMost(f64),
    /// Minimum ratio of Halite's figure to the peer's.
    RatioAtLeast(f64),
    /// Maximum of Halite's figure.
    AtMost(f64),
    /// Minimum of Halite's figure.
    AtLeast(f64),
}

/// A row of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Heading of the section.
    pub topic: &'static str,
    /// Description of the operation.
    pub name: String,
    /// Unit of both figures.
    pub unit: &'static str,
    /// Halite's figure; `None` if Halite has no counterpart.
    pub ours: Option<Source>,
    /// Name of the peer; empty if there is none.
    pub peer: &'static str,
    /// The peer's figure; `None` for a row without a peer.
    pub theirs: Option<Source>,
    /// The target, if any.
    pub target: Option<Target>,
}

/// Sizes of the measurements.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Iterations of operations on a few bytes.
    pub small: u64,
    /// Iterations of bandwidth tests at 64 KiB. Tests at 1 MiB have a sixteenth of this number.
    pub bulk: u64,
    /// Iterations of control operations: allocation, mapping and barriers.
    pub control: u64,
    /// Iterations of calls and messages: fewer than `small`, because a call takes microseconds on a busy machine.
    pub calls: u64,
    /// Acquisitions of a contended lock by all threads together.
    pub contended: u64,
    /// Calls that each of eight threads makes at a low rate.
    pub load: u64,
    /// Round trips through a socket, one at a time; each takes tens of microseconds.
    pub socket: u64,
    /// Round trips through a socket with many in flight.
    pub pipelined: u64,
    /// Run time of an application, in seconds.
    pub application_s: f64,
    /// Regions in the random-access row.
    pub regions: u64,
    /// Sizes of the memory that is accessed at random, in bytes. The table has rows for each.
    pub spans: Vec<u64>,
}

impl Sizes {
    /// Returns the sizes for a real run: large enough that the figures of rounds differ by a few percent at most on a
    /// quiet machine.
    pub fn real(options: &Options) -> Sizes {
        Sizes {
            small: 1_000_000,
            bulk: 32_000,
            control: 10_000,
            calls: 200_000,
            contended: 50_000,
            load: 125,
            socket: 20_000,
            pipelined: 100_000,
            application_s: 1.0,
            regions: options.regions.unwrap_or(1_000_000),
            spans: spans(options.span.unwrap_or(2 * GIB)),
        }
    }

    /// Returns the sizes for a smoke run, which takes a few seconds.
    pub fn smoke(options: &Options) -> Sizes {
        Sizes {
            small: 2_000,
            bulk: 64,
            control: 50,
            calls: 500,
            contended: 256,
            load: 4,
            socket: 200,
            pipelined: 320,
            application_s: 0.1,
            regions: options.regions.unwrap_or(1_000),
            spans: spans(options.span.unwrap_or(16 * MIB)),
        }
    }
}

/// Returns a few spans from 1 MiB up to `span_max`.
fn spans(span_max: u64) -> Vec<u64> {
    let mut spans: Vec<u64> = [MIB, 64 * MIB, GIB].into_iter().filter(|span| *span < span_max).collect();
    spans.push(span_max);
    spans
}

/// Returns all rows, section by section.
pub fn rows(sizes: &Sizes) -> Vec<Row> {
    [
        ("Regions, through shared memory", memory::rows(sizes)),
        ("Calls and messages, through shared memory", calls::rows(sizes)),
        ("Atomics, locks and copies, through shared memory", sync::rows(sizes)),
        ("Over UDP", network::rows(sizes)),
        ("Applications", applications::rows(sizes)),
    ]
    .into_iter()
    .flat_map(|(topic, rows)| rows.into_iter().map(move |row| Row { topic, ..row }))
    .collect()
}

/// Returns the distinct probes of `rows`, in the order of their first use.
pub fn probes(rows: &[Row]) -> Vec<Probe> {
    let mut probes: Vec<Probe> = Vec::new();
    for source in rows.iter().flat_map(|row| [&row.ours, &row.theirs]).flatten() {
        if !probes.contains(&source.probe) {
            probes.push(source.probe.clone());
        }
    }
    probes
}

impl Row {
    /// Returns true if all programs that the row compares are installed.
    pub fn can_run(&self, tools: &Tools) -> bool {
        let sources = [&self.ours, &self.theirs].into_iter().flatten();
        sources.filter_map(|source| source.probe.needs()).all(|program| tools.has(program))
    }

    fn target(self, target: Target) -> Row {
        Row { target: Some(target), ..self }
    }

    /// Returns true if the row's topic, name or peer contains `text`.
    pub fn mentions(&self, text: &str) -> bool {
        [self.topic, &self.name, self.peer].iter().any(|field| field.contains(text))
    }
}

impl Source {
    /// Returns the figure of the sample.
    pub fn value(&self, sample: &Sample) -> Result<f64, ProbeError> {
        let size = self.probe.size().unwrap_or(0) as f64;
        let value = match self.figure {
            Figure::Latency => sample.latency_us,
            Figure::P99 => sample.p99_us,
            Figure::RoundTrip => sample.latency_us.map(|half| 2.0 * half),
            Figure::P99RoundTrip => sample.p99_us.map(|half| 2.0 * half),
            Figure::Mean => sample.rate_per_s.map(|rate| 1e6 / rate),
            Figure::MeanRoundTrip => sample.rate_per_s.map(|rate| 2e6 / rate),
            Figure::Bandwidth => sample.rate_per_s.map(|rate| rate * size / 1e6),
            Figure::PrintedBandwidth => sample.printed_mbps,
            Figure::Rate => sample.rate_per_s.map(|rate| rate / 1e6),
            Figure::BaselineLatency => sample.baseline_us,
            Figure::BaselineBandwidth => sample.baseline_mbps,
            Figure::Overhead => sample.overhead_ns,
            Figure::Cpu => sample.cpu_us,
            Figure::PollingCpu => sample.polling_cpu_us,
            Figure::ProcessesCpu => {
                let cpu_us = sample.processes_cpu.map(|cpu| cpu.as_secs_f64() * 1e6);
                cpu_us.zip(self.probe.operations()).map(|(us, operations)| us / operations as f64)
            }
            Figure::Used => sample.used_percent,
            Figure::UsedByQueues => sample.used_by_queues_percent,
        };
        let missing =
            || ProbeError::NoFigure { probe: self.probe.to_string(), figure: format!("{:?}", self.figure) };
        value.filter(|value| value.is_finite()).ok_or_else(missing)
    }
}

fn row(
    name: &str,
    unit: &'static str,
    ours: Option<Source>,
    peer: &'static str,
    theirs: Option<Source>,
) -> Row {
    Row { topic: "", name: name.to_owned(), unit, ours, peer, theirs, target: None }
}

fn halite(arguments: &[&str], iterations: u64) -> Probe {
    let mut arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    arguments.extend(["-n".to_owned(), iterations.to_string()]);
    Probe::Halite { arguments }
}

fn ucx(test: &'static str, size: u64, iterations: u64) -> Probe {
    Probe::Ucx { over: Transport::Memory, test, size, iterations }
}

fn figure_of(probe: &Probe, figure: Figure) -> Option<Source> {
    Some(Source { probe: probe.clone(), figure })
}

fn latency_of(probe: &Probe) -> Option<Source> {
    figure_of(probe, Figure::Latency)
}

fn baseline_of(probe: &Probe) -> Option<Source> {
    figure_of(probe, Figure::BaselineLatency)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::peers::tools::Program;

    fn sizes() -> Sizes {
        Sizes {
            small: 1,
            bulk: 16,
            control: 1,
            calls: 1,
            contended: 1,
            load: 1,
            socket: 1,
            pipelined: 16,
            application_s: 0.1,
            regions: 10,
            spans: spans(8 * GIB),
        }
    }

    #[test]
    fn a_probe_of_several_rows_runs_once_per_round() {
        let probes = probes(&rows(&sizes()));
        let ping_pongs = probes.iter().filter(|probe| matches!(probe, Probe::PingPong { .. })).count();
        assert_eq!(ping_pongs, 1);
        for (index, probe) in probes.iter().enumerate() {
            assert!(!probes[..index].contains(probe), "{probe} runs twice");
        }
    }

    #[test]
    fn calls_on_one_core_are_compared_with_polling_on_one_core() {
        let mut rows = rows(&sizes());
        rows.retain(|row| row.mentions("endless polling"));
        let probes_of =
            |row: &Row| [&row.ours, &row.theirs].map(|source| source.clone().unwrap().probe.to_string());
        let load = "halite perf rpc_load -t 8 --rate 1000";
        let (shared, apart) = (format!("{load} --cores shared -n 1 --json"), format!("{load} -n 1 --json"));
        let expected = [[shared.clone(), shared], [apart.clone(), apart]];
        assert_eq!(rows.iter().map(probes_of).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn only_the_rows_of_missing_peers_are_omitted() {
        let rows = rows(&sizes());
        let peers = [
            (Program::Ucx, "UCX"),
            (Program::Redis, "Redis"),
            (Program::Iperf3, "iperf3"),
            (Program::Libfabric, "libfabric"),
        ];
        for (program, peer) in peers {
            let tools = Tools { halite: "halite".into(), missing: vec![program] };
            let (kept, omitted): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.can_run(&tools));
            assert!(
                !omitted.is_empty() && omitted.iter().all(|row| row.peer.starts_with(peer)),
                "{omitted:?}"
            );
            assert!(!kept.iter().any(|row| row.peer.starts_with(peer)), "{kept:?}");
        }
    }

    #[test]
    fn a_round_trip_is_two_operations_of_a_ping_pong() {
        let source = |figure| Source { probe: Probe::PingPong { iterations: 1 }, figure };
        let sample = Sample { latency_us: Some(0.2), rate_per_s: Some(4e6), ..Sample::default() };
        assert_eq!(source(Figure::RoundTrip).value(&sample).unwrap(), 0.4);
        assert_eq!(source(Figure::MeanRoundTrip).value(&sample).unwrap(), 0.5);
    }

    #[test]
    fn bandwidth_is_the_rate_times_the_size() {
        let source = Source { probe: ucx("ucp_put_bw", 1000, 1), figure: Figure::Bandwidth };
        let sample = Sample { rate_per_s: Some(5e6), ..Sample::default() };
        assert_eq!(source.value(&sample).unwrap(), 5000.0);
        let error = source.value(&Sample::default()).unwrap_err().to_string();
        assert!(error.contains("ucp_put_bw") && error.contains("Bandwidth"), "{error}");
    }

    #[test]
    fn processor_time_is_divided_by_the_operations_of_the_run() {
        let probe = halite(&["write_bw", "-s", "8"], 200);
        let source = Source { probe, figure: Figure::ProcessesCpu };
        let sample = Sample { processes_cpu: Some(Duration::from_millis(3)), ..Sample::default() };
        assert_eq!(source.value(&sample).unwrap(), 15.0);
    }

    #[test]
    fn spans_end_at_the_maximum() {
        assert_eq!(spans(16 * MIB), [MIB, 16 * MIB]);
        assert_eq!(spans(8 * GIB), [MIB, 64 * MIB, GIB, 8 * GIB]);
        assert_eq!(spans(MIB), [MIB]);
    }
}
