//! Probes: the runs that a round consists of, each giving one sample.

use std::fmt;
use std::io;
use std::time::Duration;

use super::child::ChildError;
use super::tools::{Program, Tools};
use super::{applications, bare, grpc, halite, iperf3, libfabric, redis, redis_benchmark, sockets, ucx};

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
    /// Datagrams of 8 bytes thrown between two cores over loopback.
    UdpPingPong {
        /// How many round trips.
        iterations: u64,
    },
    /// One stream of TCP over loopback.
    TcpStream {
        /// Bytes written at a time.
        size: usize,
        /// How many times.
        iterations: u64,
    },
    /// One stream of TCP by iperf3 over loopback.
    Iperf3 {
        /// Bytes written at a time.
        size: u64,
        /// How many times.
        iterations: u64,
    },
    /// `fi_pingpong` of libfabric over TCP.
    Libfabric {
        /// In bytes.
        size: u64,
        /// How many round trips.
        iterations: u64,
    },
    /// `ucx_perftest`.
    Ucx {
        /// How it moves data.
        over: ucx::Transport,
        /// What it calls its test.
        test: &'static str,
        /// In bytes.
        size: u64,
        /// How many operations.
        iterations: u64,
    },
    /// Unary calls of a gRPC service that echoes 8 bytes.
    Grpc {
        /// How many calls are in flight.
        window: u64,
        /// How many calls.
        iterations: u64,
    },
    /// Commands for a Redis server, on values of 8 bytes.
    Redis {
        /// Which.
        command: redis::Command,
        /// How many are sent at a time.
        window: u64,
        /// How many commands.
        iterations: u64,
    },
    /// `redis-benchmark`, on values of 64 bytes.
    RedisBenchmark {
        /// Who is asked.
        server: redis_benchmark::Server,
        /// Which command.
        command: redis::Command,
        /// How many each client sends at a time.
        window: u64,
        /// How many commands.
        iterations: u64,
    },
    /// `halite run`.
    HaliteRun {
        /// All that follows `run`, other than `--json`.
        arguments: Vec<String>,
    },
    /// Reads from a `DashMap` in this process, with the Zipf-distributed keys of YCSB.
    DashMap {
        /// How many keys.
        keys: u64,
        /// How many reads.
        iterations: u64,
    },
    /// Records of 16 bytes that one thread appends to a file.
    File {
        /// How many go together.
        together: u64,
        /// How many records.
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
    /// The time that one operation in a hundred exceeds (where many share a reading of the clock: one reading).
    pub p99_us: Option<f64>,
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
    /// Processor time of an operation, in microseconds.
    pub cpu_us: Option<f64>,
    /// The same where processes poll for ever.
    pub polling_cpu_us: Option<f64>,
    /// Processor time of all its processes, from their begin to their end.
    pub processes_cpu: Option<Duration>,
    /// How much of the memory for requests holds requests.
    pub used_percent: Option<f64>,
    /// `used_percent` for the baseline of receive queues, with four buffer sizes.
    pub used_by_queues_percent: Option<f64>,
}

impl Sample {
    /// `operations` that took `elapsed_s` seconds together: that is a rate, and no typical time.
    pub fn of_operations(operations: u64, elapsed_s: f64) -> Sample {
        Sample { rate_per_s: Some(operations as f64 / elapsed_s), ..Sample::default() }
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
    /// Its server could not be talked to, or answered something else than expected.
    #[error("cannot measure {peer}, the conversation with its server failed: {source}")]
    Conversation {
        /// Whose server.
        peer: &'static str,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
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
            Probe::UdpPingPong { iterations } => sockets::udp_ping_pong(*iterations),
            Probe::TcpStream { size, iterations } => sockets::tcp_stream(*size, *iterations),
            Probe::Iperf3 { size, iterations } => iperf3::run(*size, *iterations),
            Probe::Libfabric { size, iterations } => libfabric::run(*size, *iterations),
            Probe::Ucx { over, test, size, iterations } => ucx::run(*over, test, *size, *iterations),
            Probe::Grpc { window, iterations } => grpc::run(*window, *iterations),
            Probe::Redis { command, window, iterations } => redis::run(*command, *window, *iterations),
            Probe::RedisBenchmark { server, command, window, iterations } => {
                redis_benchmark::run(*server, *command, *window, *iterations, tools)
            }
            Probe::Halite { arguments } => halite::run(&tools.halite, arguments),
            Probe::HaliteRun { arguments } => applications::run(&tools.halite, arguments),
            Probe::DashMap { keys, iterations } => applications::dashmap(*keys, *iterations),
            Probe::File { together, iterations } => applications::file(*together, *iterations),
        }
    }

    /// What must have been installed for it.
    pub fn needs(&self) -> Option<Program> {
        match self {
            Probe::Ucx { .. } => Some(Program::Ucx),
            Probe::Iperf3 { .. } => Some(Program::Iperf3),
            Probe::Libfabric { .. } => Some(Program::Libfabric),
            Probe::Redis { .. } | Probe::RedisBenchmark { .. } => Some(Program::Redis),
            Probe::Memcpy { .. } | Probe::PingPong { .. } | Probe::Grpc { .. } | Probe::Halite { .. } => None,
            Probe::UdpPingPong { .. } | Probe::TcpStream { .. } => None,
            Probe::HaliteRun { .. } | Probe::DashMap { .. } | Probe::File { .. } => None,
        }
    }

    /// Bytes moved by an operation, where that is the point.
    pub fn size(&self) -> Option<u64> {
        match self {
            Probe::Memcpy { size, .. } | Probe::TcpStream { size, .. } => Some(*size as u64),
            Probe::Ucx { size, .. } | Probe::Iperf3 { size, .. } | Probe::Libfabric { size, .. } => {
                Some(*size)
            }
            Probe::PingPong { .. } | Probe::UdpPingPong { .. } => None,
            Probe::Grpc { .. } | Probe::Redis { .. } | Probe::RedisBenchmark { .. } => None,
            Probe::HaliteRun { .. } | Probe::DashMap { .. } | Probe::File { .. } => None,
            Probe::Halite { arguments } => {
                value_of(arguments, "--reply-size").or_else(|| value_of(arguments, "-s"))
            }
        }
    }

    /// How many operations all its processes do together, where their processor time is shared out among these.
    pub fn operations(&self) -> Option<u64> {
        match self {
            Probe::Iperf3 { iterations, .. } | Probe::Ucx { iterations, .. } => Some(*iterations),
            Probe::Halite { arguments } => value_of(arguments, "-n"),
            _ => None,
        }
    }
}

fn value_of(arguments: &[String], flag: &str) -> Option<u64> {
    let at = arguments.iter().position(|argument| argument == flag)?;
    arguments.get(at + 1)?.parse().ok()
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
            Probe::UdpPingPong { iterations } => {
                write!(
                    f,
                    "bare ping-pong of 8 B over UDP and loopback, both ends spinning, {iterations} times"
                )
            }
            Probe::TcpStream { size, iterations } => {
                write!(f, "bare stream of TCP over loopback, {size} B at a time, {iterations} times")
            }
            Probe::Iperf3 { size, iterations } => {
                write!(f, "iperf3 -c 127.0.0.1 {}", iperf3::arguments(*size, *iterations).join(" "))
            }
            Probe::Libfabric { size, iterations } => {
                let arguments = libfabric::arguments(*size, *iterations).join(" ");
                write!(f, "fi_pingpong {arguments} 127.0.0.1")
            }
            Probe::Ucx { over, test, size, iterations } => {
                let set = over.environment().iter().map(|(name, value)| format!("{name}={value} "));
                let (environment, arguments) =
                    (set.collect::<String>(), ucx::arguments(test, *size, *iterations));
                write!(f, "{environment}ucx_perftest 127.0.0.1 {}", arguments.join(" "))
            }
            Probe::Grpc { window, iterations } => {
                write!(f, "tonic over a Unix socket, echo of 8 B, {window} in flight, {iterations} calls")
            }
            Probe::Redis { command, window, iterations } => {
                let command = command.name();
                write!(
                    f,
                    "redis-server, Unix socket, {command} of 8 B, {window} in flight, {iterations} times"
                )
            }
            Probe::RedisBenchmark { server, command, window, iterations } => {
                let arguments = redis_benchmark::arguments(*command, *window, *iterations).join(" ");
                write!(f, "{server}, asked by redis-benchmark {arguments}")
            }
            Probe::HaliteRun { arguments } => write!(f, "halite run {} --json", arguments.join(" ")),
            Probe::DashMap { keys, iterations } => {
                write!(
                    f,
                    "dashmap in one process, {keys} keys of 64 B, {iterations} reads with the key distribution of YCSB C"
                )
            }
            Probe::File { together, iterations } => {
                write!(
                    f,
                    "file in the directory for temporary ones, {iterations} records of 16 B, {together} with each write"
                )
            }
            Probe::Halite { arguments } => write!(f, "halite perf {} --json", arguments.join(" ")),
        }
    }
}
