//! Runs `halite perf`, which prints one line of JSON per result.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::child::{ChildError, Tethered, query};
use super::probe::{ProbeError, Sample};

/// Time limit of a run, enough to create and touch a million regions.
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// Returns `given` or, by default, the path of `halite` in this program's folder. Builds `halite` if it does not exist
/// there.
pub fn locate(given: Option<&Path>) -> Result<PathBuf, Box<dyn Error>> {
    let path = match given {
        Some(path) => path.to_path_buf(),
        None => std::env::current_exe()?.with_file_name("halite"),
    };
    if !path.is_file() && given.is_none() {
        eprintln!("building the halite program");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let status = cargo.args(["build", "--release", "-p", "halite-cli"]).status()?;
        if !status.success() {
            return Err(format!("`cargo build --release -p halite-cli` failed with {status}").into());
        }
    }
    if path.is_file() {
        return Ok(path);
    }
    Err(format!(
        "there is no halite program at {}; build it, or name another one with --halite",
        path.display()
    )
    .into())
}

/// Returns the first line of `halite --version`.
pub fn version(program: &Path) -> Option<String> {
    query(program, "--version")?.lines().next().map(str::to_owned)
}

/// Runs `halite perf` with `arguments`, which must name a single size, and parses the one line of JSON that it prints.
pub fn run(program: &Path, arguments: &[String]) -> Result<Sample, ProbeError> {
    let output = json_output(program, "perf", arguments)?;
    parse_line(&output).ok_or(ProbeError::Unreadable { program: "halite perf", output })
}

/// Returns the output of a subcommand of `halite`, which starts and pins its processes itself.
pub fn json_output(program: &Path, subcommand: &str, arguments: &[String]) -> Result<String, ChildError> {
    let all = [&[subcommand.to_owned()], arguments, &["--json".to_owned()]].concat();
    Tethered::start(program, &all, None, &[])?.output(RUN_LIMIT)
}

/// A line of output, with the fields that rows use. Other fields are ignored.
#[derive(Deserialize)]
struct Line {
    lat_us: Option<Latency>,
    #[serde(rename = "rate_Mops")]
    rate_mops: Option<f64>,
    #[serde(rename = "bw_MBps")]
    bw_mbps: Option<f64>,
    cpu_us_per_op: Option<f64>,
    polling_cpu_us_per_op: Option<f64>,
    ring_share: Option<f64>,
    #[serde(rename = "4_queues_share")]
    four_queues_share: Option<f64>,
    errors: u64,
    baseline: Option<Baseline>,
}

#[derive(Deserialize)]
struct Latency {
    p50: f64,
    p99: f64,
}

#[derive(Deserialize, Default)]
struct Baseline {
    memcpy_lat_us: Option<f64>,
    #[serde(rename = "memcpy_MBps")]
    memcpy_mbps: Option<f64>,
    #[serde(rename = "memset_MBps")]
    memset_mbps: Option<f64>,
    memset_lat_us: Option<f64>,
    read_write_lat_us: Option<f64>,
    pages_lat_us: Option<f64>,
    store_ns: Option<f64>,
    atomic_ns: Option<f64>,
    overhead_ns: Option<f64>,
}

/// Parses the only line of JSON in `output`. Returns `None` if there is not exactly one line, or if the result has
/// errors.
pub fn parse_line(output: &str) -> Option<Sample> {
    let mut lines = output.lines().filter(|line| !line.trim().is_empty());
    let line: Line = serde_json::from_str(lines.next()?).ok()?;
    if line.errors != 0 || lines.next().is_some() {
        return None;
    }
    let baseline = line.baseline.unwrap_or_default();
    Some(Sample {
        latency_us: line.lat_us.as_ref().map(|latency| latency.p50),
        p99_us: line.lat_us.map(|latency| latency.p99),
        rate_per_s: line.rate_mops.map(|rate| rate * 1e6),
        printed_mbps: line.bw_mbps,
        baseline_us: baseline.latency_us(),
        baseline_mbps: baseline.memcpy_mbps.or(baseline.memset_mbps),
        overhead_ns: baseline.overhead_ns,
        cpu_us: line.cpu_us_per_op,
        polling_cpu_us: line.polling_cpu_us_per_op,
        processes_cpu: None,
        used_percent: line.ring_share.map(|share| 100.0 * share),
        used_by_queues_percent: line.four_queues_share.map(|share| 100.0 * share),
    })
}

impl Baseline {
    /// Returns the latency of the baseline, in us. Each test prints it in one of several fields.
    fn latency_us(&self) -> Option<f64> {
        let word_ns = self.store_ns.or(self.atomic_ns);
        let bytes_us = self.memcpy_lat_us.or(self.memset_lat_us).or(self.read_write_lat_us);
        bytes_us.or(self.pages_lat_us).or(word_ns.map(|ns| ns / 1e3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"test":"write_lat","fabric":"shm","mode":"embedded","size":8,"iters":1000,"threads":1,
        "lat_us":{"min":0.01,"p50":0.02,"p90":0.03,"p99":0.04,"p999":0.05,"max":1.0},"bw_MBps":400.0,"rate_Mops":50.0,
        "cpu_us_per_op":0.02,"errors":0,"baseline":{"memcpy_lat_us":0.005,"overhead_ns":15.0}}"#;

    fn line() -> String {
        LINE.split_whitespace().collect()
    }

    #[test]
    fn a_line_is_parsed_with_its_baseline() {
        let sample = parse_line(&line()).expect("the line is valid");
        assert_eq!((sample.latency_us, sample.p99_us), (Some(0.02), Some(0.04)));
        assert_eq!(sample.rate_per_s, Some(50e6));
        assert_eq!(sample.cpu_us, Some(0.02));
        assert_eq!((sample.baseline_us, sample.overhead_ns), (Some(0.005), Some(15.0)));
    }

    #[test]
    fn every_kind_of_baseline_is_parsed() {
        for (field, value) in [
            ("atomic_ns", 5.0),
            ("memset_lat_us", 0.005),
            ("read_write_lat_us", 0.005),
            ("pages_lat_us", 0.005),
        ] {
            let line = line().replace("\"memcpy_lat_us\":0.005", &format!("\"{field}\":{value}"));
            assert_eq!(parse_line(&line).expect("the line is valid").baseline_us, Some(0.005), "{field}");
        }
    }

    #[test]
    fn null_figures_and_a_missing_baseline_are_none() {
        let bare = r#"{"test":"alloc_lat","lat_us":null,"rate_Mops":null,"errors":0}"#;
        assert_eq!(parse_line(bare), Some(Sample::default()));
    }

    #[test]
    fn output_with_errors_or_further_lines_is_refused() {
        assert!(parse_line(&line().replace("\"errors\":0", "\"errors\":1")).is_none());
        assert!(parse_line(&format!("{0}\n{0}\n", line())).is_none());
        assert!(parse_line("no JSON").is_none());
    }
}
