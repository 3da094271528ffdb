//! Probes: the runs that a round consists of, each giving one sample.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::child::ChildError;
use super::{bare, halite, ucx};

/// The programs at hand.
pub struct Tools {
    /// The `halite` program.
    pub halite: PathBuf,
    /// Whether `ucx_perftest` is installed.
    pub has_ucx: bool,
}

/// One run of one thing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Probe {
    /// Bare copies of `size` bytes.
    Memcpy {
        /// In bytes.
        size: usize,
        /// How many copies.
        iterations: u64,
    },
    /// A bare word thrown between two cores.
    PingPong {
        /// How many round trips.
        iterations: u64,
    },
    /// `ucx_perftest`.
    Ucx {
        /// What it calls its test.
        test: &'static str,
        /// In bytes.
        size: u64,
        /// How many operations.
        iterations: u64,
    },
    /// `halite perf`.
    Halite {
        /// All that follows `perf`, other than `--json`.
        arguments: Vec<String>,
    },
}

/// What one probe gave; which figures there are depends on the probe.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Sample {
    /// Typical time of an operation (of half a round trip, for a ping-pong), in microseconds.
    pub latency_us: Option<f64>,
    /// Operations per second.
    pub rate_per_s: Option<f64>,
    /// Bandwidth in MB/s as that run prints it; to be compared with nothing but `baseline_mbps`.
    pub printed_mbps: Option<f64>,
    /// The same operation done by bare loads and stores in the same run, in microseconds.
    pub baseline_us: Option<f64>,
    /// Bare copies in the same run, in the megabytes of `printed_mbps`.
    pub baseline_mbps: Option<f64>,
    /// What the operation costs more than its baseline, in nanoseconds.
    pub overhead_ns: Option<f64>,
}

impl Sample {
    /// `operations` that took `elapsed_s` seconds together.
    pub fn of_operations(operations: u64, elapsed_s: f64) -> Sample {
        let each_s = elapsed_s / operations as f64;
        Sample { latency_us: Some(each_s * 1e6), rate_per_s: Some(1.0 / each_s), ..Sample::default() }
    }
}

/// Why a probe gave no sample.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Its program failed.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// Its program printed something else than expected.
    #[error("cannot read what {program} printed:\n{output}")]
    Unreadable {
        /// Which.
        program: &'static str,
        /// All of it.
        output: String,
    },
    /// A figure that a row needs is not among what it gave.
    #[error("{probe} gave no {figure}")]
    NoFigure {
        /// Which probe.
        probe: String,
        /// Which figure.
        figure: String,
    },
    /// The machine does not let us use the core.
    #[error("cannot measure on core {core}, two cores are needed: {source}")]
    Core {
        /// Which.
        core: usize,
        /// What the operating system said.
        source: io::Error,
    },
    /// No free port on the loopback interface.
    #[error("cannot find a free port for a server: {0}")]
    Port(io::Error),
}

impl Probe {
    /// Runs it once.
    pub fn run(&self, tools: &Tools) -> Result<Sample, ProbeError> {
        match self {
            Probe::Memcpy { size, iterations } => bare::memcpy(*size, *iterations),
            Probe::PingPong { iterations } => bare::ping_pong(*iterations),
            Probe::Ucx { test, size, iterations } => ucx::run(test, *size, *iterations),
            Probe::Halite { arguments } => halite::run(&tools.halite, arguments),
        }
    }

    /// Whether what it needs is installed.
    pub fn can_run(&self, tools: &Tools) -> bool {
        tools.has_ucx || !matches!(self, Probe::Ucx { .. })
    }

    /// Bytes moved by an operation, where that is the point.
    pub fn size(&self) -> Option<u64> {
        match self {
            Probe::Memcpy { size, .. } => Some(*size as u64),
            Probe::Ucx { size, .. } => Some(*size),
            Probe::PingPong { .. } => None,
            Probe::Halite { arguments } => {
                let letter = arguments.iter().position(|argument| argument == "-s")?;
                arguments.get(letter + 1)?.parse().ok()
            }
        }
    }
}

/// The command line, or what stands in for it.
impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Probe::Memcpy { size, iterations } => {
                write!(f, "bare memcpy of {size} B, {iterations} times")
            }
            Probe::PingPong { iterations } => {
                write!(f, "bare ping-pong of a shared word, {iterations} times")
            }
            Probe::Ucx { test, size, iterations } => {
                let arguments = ucx::arguments(test, *size, *iterations).join(" ");
                write!(f, "UCX_TLS=posix,self ucx_perftest 127.0.0.1 {arguments}")
            }
            Probe::Halite { arguments } => write!(f, "halite perf {} --json", arguments.join(" ")),
        }
    }
}
