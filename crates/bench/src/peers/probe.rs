//! Probes: the measurements of the table. Each runs once per round and returns one sample.

use std::fmt;
use std::io;
use std::time::Duration;

use super::child::ChildError;
use super::tools::{Program, Tools};
use super::{applications, bare, grpc, halite, iperf3, libfabric, redis, redis_benchmark, sockets, ucx};

/// A measurement of one program or loop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Probe {
    /// Copies of `size` bytes by `memcpy`.
    Memcpy {
        /// Bytes per copy.
        size: usize,
        /// Number of copies.
        iterations: u64,
    },
    /// Round trips of a word between two cores.
    PingPong {
        /// Number of round trips.
        iterations: u64,
    },
    /// Round trips of datagrams of 8 bytes between two cores over loopback.
    UdpPingPong {
        /// Number of round trips.
        iterations: u64,
    },
    /// One stream of TCP over loopback.
    TcpStream {
        /// Bytes per write.
        size: usize,
        /// Number of writes.
        iterations: u64,
    },
    /// One stream of TCP by iperf3 over loopback.
    Iperf3 {
        /// Bytes per write.
        size: u64,
        /// Number of writes.
        iterations: u64,
    },
    /// `fi_pingpong` of libfabric over TCP.
    Libfabric {
        /// Bytes per message.
        size: u64,
        /// Number of round trips.
        iterations: u64,
    },
    /// `ucx_perftest`.
    Ucx {
        /// Transport of UCX.
        over: ucx::Transport,
        /// Name of the test.
        test: &'static str,
        /// Bytes per operation.
        size: u64,
        /// Number of operations.
        iterations: u64,
    },
    /// Unary calls of a gRPC service that echoes 8 bytes.
    Grpc {
        /// Calls in flight.
        window: u64,
        /// Number of calls.
        iterations: u64,
    },
    /// Commands to a Redis server, with values of 8 bytes.
    Redis {
        /// The command.
        command: redis::Command,
        /// Commands sent together.
        window: u64,
        /// Number of commands.
        iterations: u64,
    },
    /// `redis-benchmark`, with values of 64 bytes.
    RedisBenchmark {
        /// The measured server.
        server: redis_benchmark::Server,
        /// The command.
        command: redis::Command,
        /// Commands that each client sends together.
        window: u64,
        /// Number of commands.
        iterations: u64,
    },
    /// `halite run`.
    HaliteRun {
        /// Arguments after `run`, without `--json`.
        arguments: Vec<String>,
    },
    /// Reads from a `DashMap` in this process, with the Zipf-distributed keys of YCSB.
    DashMap {
        /// Number of keys.
        keys: u64,
        /// Number of reads.
        iterations: u64,
    },
    /// Records of 16 bytes that one thread appends to a file.
    File {
        /// Records per write.
        together: u64,
        /// Number of records.
        iterations: u64,
    },
    /// `halite perf`.
    Halite {
        /// Arguments after `perf`, without `--json`.
        arguments: Vec<String>,
    },
}

/// Result of a probe. Each kind of probe measures some of these figures.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Sample {
    /// Median time of an operation, in microseconds; an operation of a ping-pong is half a round trip.
    pub latency_us: Option<f64>,
    /// 99th percentile of the time of an operation, in microseconds. If the clock is read once per group of operations,
    /// this is the percentile over the mean times of the groups.
    pub p99_us: Option<f64>,
    /// Operations per second.
    pub rate_per_s: Option<f64>,
    /// Bandwidth as printed by the program, in its own megabytes per second; comparable only with `baseline_mbps`.
    pub printed_mbps: Option<f64>,
    /// Time of the same operation by bare loads and stores in the same run, in microseconds.
    pub baseline_us: Option<f64>,
    /// Bandwidth of bare copies in the same run, in the unit of `printed_mbps`.
    pub baseline_mbps: Option<f64>,
    /// Time of the operation beyond its baseline, in nanoseconds.
    pub overhead_ns: Option<f64>,
    /// Processor time of an operation, in microseconds.
    pub cpu_us: Option<f64>,
    /// Processor time of an operation if both ends poll without sleeping, in microseconds.
    pub polling_cpu_us: Option<f64>,
    /// Processor time of all processes of the run, including their start and end.
    pub processes_cpu: Option<Duration>,
    /// Used part of the memory that the server reserves for requests, in percent.
    pub used_percent: Option<f64>,
    /// Used part of the receive buffers, of four sizes, that RDMA send would need for the same requests, in percent.
    pub used_by_queues_percent: Option<f64>,
}

impl Sample {
    /// Returns a sample with the rate of `operations` operations in `elapsed_s` seconds, and no latency.
    pub fn of_operations(operations: u64, elapsed_s: f64) -> Sample {
        Sample { rate_per_s: Some(operations as f64 / elapsed_s), ..Sample::default() }
    }

    /// Returns a sample with a rate that a program has printed; `None` if the rate is not a positive number.
    pub fn of_rate(rate_per_s: f64) -> Option<Sample> {
        let is_valid = rate_per_s.is_finite() && rate_per_s > 0.0;
        is_valid.then_some(Sample { rate_per_s: Some(rate_per_s), ..Sample::default() })
    }
}

/// The reason why a probe produced no usable sample.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The program failed.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The output of the program cannot be parsed.
    #[error("cannot parse the output of {program}:\n{output}")]
    Unreadable {
        /// Name of the program.
        program: &'static str,
        /// Output of the program.
        output: String,
    },
    /// The connection to the server failed, or its reply was not the expected one.
    #[error("cannot measure {peer}: the exchange with its server failed: {source}")]
    Conversation {
        /// Name of the server.
        peer: &'static str,
        /// Cause of the failure.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The sample lacks a figure that a row needs.
    #[error("{probe}: the sample lacks {figure}")]
    NoFigure {
        /// Description of the probe.
        probe: String,
        /// The missing figure.
        figure: String,
    },
    /// The process may not run on the core.
    #[error("cannot run on core {core} (measurements need two cores): {source}")]
    Core {
        /// Number of the core.
        core: usize,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The loopback interface has no free port.
    #[error("cannot find a free port for a server: {0}")]
    Port(io::Error),
}

impl Probe {
    /// Runs the probe once.
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

    /// Returns the program that must be installed for the probe; `None` if it needs none.
    pub fn needs(&self) -> Option<Program> {
        match self {
            Probe::Ucx { .. } => Some(Program::Ucx),
            Probe::Iperf3 { .. } => Some(Program::Iperf3),
            Probe::Libfabric { .. } => Some(Program::Libfabric),
            Probe::Redis { .. } | Probe::RedisBenchmark { .. } => Some(Program::Redis),
            _ => None,
        }
    }

    /// Returns the number of bytes that an operation moves; `None` if the probe does not measure bandwidth.
    pub fn size(&self) -> Option<u64> {
        match self {
            Probe::Memcpy { size, .. } | Probe::TcpStream { size, .. } => Some(*size as u64),
            Probe::Ucx { size, .. } | Probe::Iperf3 { size, .. } | Probe::Libfabric { size, .. } => {
                Some(*size)
            }
            Probe::Halite { arguments } => {
                value_of(arguments, "--reply-size").or_else(|| value_of(arguments, "-s"))
            }
            _ => None,
        }
    }

    /// Returns the number of operations of all processes together; `None` if the processor time per operation is not
    /// computed from it.
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

/// Formats the command line, or a description if the probe runs no program.
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
                    "bare ping-pong of 8 B over UDP and loopback, both ends polling, {iterations} times"
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
                write!(f, "{server}, measured by redis-benchmark {arguments}")
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
                    "file in the temporary directory, {iterations} records of 16 B, {together} per write"
                )
            }
            Probe::Halite { arguments } => write!(f, "halite perf {} --json", arguments.join(" ")),
        }
    }
}
