//! The rows of the table: what is compared with what, and which ratio is wanted.

use super::Options;
use super::probe::{Probe, ProbeError, Sample, Tools};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Which figure of a sample a row takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// Time of an operation, us.
    Latency,
    /// Operations per second times their size, MB/s with a megabyte of 10^6 bytes.
    Bandwidth,
    /// Bandwidth as printed, in whatever megabyte; for the ratio to `BaselineBandwidth` only.
    PrintedBandwidth,
    /// Millions of operations per second.
    Rate,
    /// The baseline that was measured within the run, us.
    BaselineLatency,
    /// Bare copies measured within the run.
    BaselineBandwidth,
    /// Time of an operation beyond its baseline, ns.
    Overhead,
}

/// Where a figure of a row comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// The run.
    pub probe: Probe,
    /// Which of its figures.
    pub figure: Figure,
}

/// What is wanted of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Target {
    /// Halite over peer, at most.
    RatioAtMost(f64),
    /// Halite over peer, at least.
    RatioAtLeast(f64),
    /// Halite's own figure, at most.
    AtMost(f64),
}

/// One line of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// What is done.
    pub name: String,
    /// The unit of both figures.
    pub unit: &'static str,
    /// Halite's figure; none where Halite has nothing to set against the peer yet.
    pub ours: Option<Source>,
    /// Who the peer is; empty for none.
    pub peer: &'static str,
    /// The peer's figure; none where the row stands for itself.
    pub theirs: Option<Source>,
    /// What is wanted; none where the row only informs.
    pub target: Option<Target>,
}

/// How much of everything.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Iterations of operations on a few bytes.
    pub small: u64,
    /// Iterations of bandwidth tests at 64 KiB; a sixteenth of it at 1 MiB.
    pub bulk: u64,
    /// Iterations of control operations.
    pub control: u64,
    /// Regions of the random-access row.
    pub regions: u64,
    /// Spans of the random-access rows, in bytes.
    pub spans: Vec<u64>,
}

impl Sizes {
    /// Large enough that a round's figures repeat within a few percent on a quiet machine.
    pub fn real(options: &Options) -> Sizes {
        Sizes {
            small: 1_000_000,
            bulk: 32_000,
            control: 10_000,
            regions: options.regions.unwrap_or(1_000_000),
            spans: spans(options.span.unwrap_or(8 * GIB)),
        }
    }

    /// A few seconds in all.
    pub fn smoke(options: &Options) -> Sizes {
        Sizes {
            small: 2_000,
            bulk: 64,
            control: 50,
            regions: options.regions.unwrap_or(1_000),
            spans: spans(options.span.unwrap_or(16 * MIB)),
        }
    }
}

/// From 1 MiB up to `span_max`, with few points in between.
fn spans(span_max: u64) -> Vec<u64> {
    let mut spans: Vec<u64> = [MIB, 64 * MIB, GIB].into_iter().filter(|span| *span < span_max).collect();
    spans.push(span_max);
    spans
}

/// The table's rows in their order.
pub fn rows(sizes: &Sizes) -> Vec<Row> {
    let mut rows = latency(sizes);
    for size in [64 * KIB, MIB] {
        rows.extend(bandwidth(sizes, size));
    }
    rows.extend(control(sizes));
    rows.extend(random_access(sizes));
    rows.push(threads(sizes));
    rows
}

/// The distinct probes of `rows`, in the order of their first use.
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
    /// Whether everything it compares is installed.
    pub fn can_run(&self, tools: &Tools) -> bool {
        [&self.ours, &self.theirs].into_iter().flatten().all(|source| source.probe.can_run(tools))
    }
}

impl Source {
    /// The figure out of what the probe gave.
    pub fn value(&self, sample: &Sample) -> Result<f64, ProbeError> {
        let size = self.probe.size().unwrap_or(0) as f64;
        let value = match self.figure {
            Figure::Latency => sample.latency_us,
            Figure::Bandwidth => sample.rate_per_s.map(|rate| rate * size / 1e6),
            Figure::PrintedBandwidth => sample.printed_mbps,
            Figure::Rate => sample.rate_per_s.map(|rate| rate / 1e6),
            Figure::BaselineLatency => sample.baseline_us,
            Figure::BaselineBandwidth => sample.baseline_mbps,
            Figure::Overhead => sample.overhead_ns,
        };
        let missing =
            || ProbeError::NoFigure { probe: self.probe.to_string(), figure: format!("{:?}", self.figure) };
        value.filter(|value| value.is_finite()).ok_or_else(missing)
    }
}

fn latency(sizes: &Sizes) -> Vec<Row> {
    let small = sizes.small;
    let ping_pong = Source { probe: Probe::PingPong { iterations: small }, figure: Figure::Latency };
    let write = halite(&["write_lat", "-s", "8"], small);
    let completion = halite(&["write_lat", "--completion", "-s", "8"], small);
    let read = halite(&["read_lat", "-s", "8"], small);
    vec![
        row("write 8 B, half a ping-pong", "us", latency_of(&write), "bare word", Some(ping_pong)),
        row("write 8 B, half a ping-pong", "us", latency_of(&write), "UCX put", ucx("ucp_put_lat", 8, small))
            .wants(Target::RatioAtMost(1.0)),
        row("write 8 B, the call", "us", latency_of(&completion), "memcpy", baseline_of(&completion)),
        row("write 8 B, the call beyond memcpy", "ns", figure_of(&completion, Figure::Overhead), "", None)
            .wants(Target::AtMost(50.0)),
        row("read 8 B, the call", "us", latency_of(&read), "UCX get", ucx("ucp_get", 8, small)),
        row("fetch-add 8 B", "us", None, "UCX fadd", ucx("ucp_fadd", 8, small)),
    ]
}

fn bandwidth(sizes: &Sizes, size: u64) -> Vec<Row> {
    let iterations = (sizes.bulk * 64 * KIB / size).max(1);
    let label = if size < MIB { format!("{} KiB", size / KIB) } else { format!("{} MiB", size / MIB) };
    let limit = Probe::Memcpy { size: size as usize, iterations };
    let limit = Source { probe: limit, figure: Figure::Bandwidth };
    let mut rows = vec![row(&format!("copy {label} within a process"), "MB/s", None, "memcpy", Some(limit))];
    for (verb, test, ucx_test) in [("write", "write_bw", "ucp_put_bw"), ("read", "read_bw", "ucp_get")] {
        let name = format!("{verb} {label}");
        let probe = halite(&[test, "-s", &size.to_string()], iterations);
        let theirs =
            ucx(ucx_test, size, iterations).map(|source| Source { figure: Figure::Bandwidth, ..source });
        let printed = figure_of(&probe, Figure::PrintedBandwidth);
        let baseline = figure_of(&probe, Figure::BaselineBandwidth);
        rows.push(row(&name, "MB/s", printed, "memcpy", baseline).wants(Target::RatioAtLeast(0.95)));
        let peer = if verb == "write" { "UCX put" } else { "UCX get" };
        let ours = figure_of(&probe, Figure::Bandwidth);
        rows.push(row(&name, "MB/s", ours, peer, theirs));
    }
    rows
}

fn control(sizes: &Sizes) -> Vec<Row> {
    let map = halite(&["map_lat"], sizes.control);
    let small = halite(&["alloc_lat", "-s", &(4 * KIB).to_string()], sizes.control);
    let large = halite(&["alloc_lat", "-s", &(4 * GIB).to_string()], sizes.control);
    vec![
        row("map", "us", latency_of(&map), "", None).wants(Target::AtMost(20.0)),
        // A region is a list of extents, and nothing is touched until it is used: size must not matter.
        row("alloc 4 GiB, against 4 KiB", "us", latency_of(&large), "Halite", latency_of(&small))
            .wants(Target::RatioAtMost(2.0)),
    ]
}

fn random_access(sizes: &Sizes) -> Vec<Row> {
    let regions = sizes.regions.to_string();
    let over_regions = halite(&["write_lat", "--completion", "-s", "8", "--regions", &regions], sizes.small);
    let mut rows = against_stores(&format!("write 8 B at random in {regions} regions"), over_regions);
    for span in &sizes.spans {
        let over_span =
            halite(&["write_lat", "--completion", "-s", "8", "--span", &span.to_string()], sizes.small);
        rows.extend(against_stores(&format!("write 8 B at random in {} MiB", span / MIB), over_span));
    }
    rows
}

/// Bare stores to the same random addresses meet the same misses; what is left is ours.
fn against_stores(name: &str, probe: Probe) -> Vec<Row> {
    let beyond = format!("{name}, beyond a bare store");
    vec![
        row(name, "us", latency_of(&probe), "bare store", baseline_of(&probe)),
        row(&beyond, "ns", figure_of(&probe, Figure::Overhead), "", None).wants(Target::AtMost(200.0)),
    ]
}

fn threads(sizes: &Sizes) -> Row {
    let one = halite(&["write_lat", "--completion", "-s", "8", "-t", "1"], sizes.small);
    let two = halite(&["write_lat", "--completion", "-s", "8", "-t", "2"], sizes.small);
    let (ours, theirs) = (figure_of(&two, Figure::Rate), figure_of(&one, Figure::Rate));
    row("write 8 B, two threads against one", "Mops", ours, "Halite", theirs).wants(Target::RatioAtLeast(1.9))
}

fn row(
    name: &str,
    unit: &'static str,
    ours: Option<Source>,
    peer: &'static str,
    theirs: Option<Source>,
) -> Row {
    Row { name: name.to_owned(), unit, ours, peer, theirs, target: None }
}

impl Row {
    fn wants(self, target: Target) -> Row {
        Row { target: Some(target), ..self }
    }
}

fn halite(arguments: &[&str], iterations: u64) -> Probe {
    let mut arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    arguments.extend(["-n".to_owned(), iterations.to_string()]);
    Probe::Halite { arguments }
}

fn ucx(test: &'static str, size: u64, iterations: u64) -> Option<Source> {
    Some(Source { probe: Probe::Ucx { test, size, iterations }, figure: Figure::Latency })
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
    use super::*;

    fn sizes() -> Sizes {
        Sizes { small: 1, bulk: 16, control: 1, regions: 10, spans: spans(8 * GIB) }
    }

    #[test]
    fn a_probe_that_several_rows_use_runs_once_a_round() {
        let probes = probes(&rows(&sizes()));
        let ping_pongs = probes.iter().filter(|probe| matches!(probe, Probe::PingPong { .. })).count();
        assert_eq!(ping_pongs, 1);
        for (index, probe) in probes.iter().enumerate() {
            assert!(!probes[..index].contains(probe), "{probe} runs twice");
        }
    }

    #[test]
    fn without_ucx_its_rows_go_and_the_others_stay() {
        let rows = rows(&sizes());
        let tools = Tools { halite: "halite".into(), has_ucx: false };
        let kept = rows.iter().filter(|row| row.can_run(&tools)).count();
        let of_ucx = rows.iter().filter(|row| row.peer.starts_with("UCX")).count();
        assert_eq!((of_ucx, kept), (7, rows.len() - 7));
    }

    #[test]
    fn bandwidth_is_the_rate_times_the_size() {
        let source = Source { probe: ucx("ucp_put_bw", 1000, 1).unwrap().probe, figure: Figure::Bandwidth };
        let sample = Sample { rate_per_s: Some(5e6), ..Sample::default() };
        assert_eq!(source.value(&sample).unwrap(), 5000.0);
        let error = source.value(&Sample::default()).unwrap_err().to_string();
        assert!(error.contains("ucp_put_bw") && error.contains("Bandwidth"), "{error}");
    }

    #[test]
    fn spans_end_at_the_largest_wanted() {
        assert_eq!(spans(16 * MIB), [MIB, 16 * MIB]);
        assert_eq!(spans(8 * GIB), [MIB, 64 * MIB, GIB, 8 * GIB]);
        assert_eq!(spans(MIB), [MIB]);
    }
}
