//! Runs Redis' own benchmark, `redis-benchmark`, on `redis-server` and on `halite run kv`, over TCP and loopback.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;

use super::child::Tethered;
use super::cores::{CLIENT_CORE, SERVER_CORE};
use super::ports::{RUN_LIMIT, free_port, is_listening};
use super::probe::{ProbeError, Sample};
use super::redis::{self, Command};
use super::tools::Tools;

const PROGRAM: &str = "redis-benchmark";
/// Number of clients, each with a connection.
const CLIENTS: u64 = 50;
/// Number of keys, which clients choose at random.
const KEYS: u64 = 100_000;
const VALUE_BYTES: u64 = 64;

/// The measured server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    /// `redis-server` without persistence.
    Redis,
    /// `halite run kv`.
    Halite {
        /// Number of processes.
        nodes: u32,
    },
}

impl Server {
    fn start(self, port: u16, tools: &Tools) -> Result<Tethered, ProbeError> {
        let (program, line, core) = match self {
            Server::Redis => {
                let quiet = "--save '' --appendonly no --loglevel warning";
                let line = format!("--bind {} --port {port} {quiet}", Ipv4Addr::LOCALHOST);
                (Path::new(redis::PROGRAM), line, Some(SERVER_CORE))
            }
            Server::Halite { nodes } => {
                let line = format!("run kv --listen {}:{port} --nodes {nodes}", Ipv4Addr::LOCALHOST);
                // Several processes need several cores, so they are not pinned.
                (&*tools.halite, line, (nodes == 1).then_some(SERVER_CORE))
            }
        };
        let arguments: Vec<String> = line.split(' ').map(|word| word.replace("''", "")).collect();
        let mut server = Tethered::start(program, &arguments, core, &[])?;
        server.await_ready(|| is_listening(port))?;
        Ok(server)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Server::Redis => f.write_str("redis-server"),
            Server::Halite { nodes } => write!(f, "halite run kv --nodes {nodes}"),
        }
    }
}

/// Returns the arguments without the port.
pub fn arguments(command: Command, window: u64, iterations: u64) -> Vec<String> {
    let name = command.name().to_lowercase();
    let numbers = [("-n", iterations), ("-P", window), ("-c", CLIENTS), ("-r", KEYS), ("-d", VALUE_BYTES)];
    let numbers = numbers.iter().flat_map(|(option, number)| [(*option).to_owned(), number.to_string()]);
    ["-t", &name, "--csv"].into_iter().map(str::to_owned).chain(numbers).collect()
}

/// Starts the server, sets [`KEYS`] random keys, and then measures at least `iterations` commands. Each client sends
/// `window` of them together.
pub fn run(
    server: Server,
    command: Command,
    window: u64,
    iterations: u64,
    tools: &Tools,
) -> Result<Sample, ProbeError> {
    let port = free_port()?;
    let _server = server.start(port, tools)?;
    benchmark(port, Command::Set, 16, KEYS)?;
    benchmark(port, command, window, iterations)
}

fn benchmark(port: u16, command: Command, window: u64, iterations: u64) -> Result<Sample, ProbeError> {
    let on_port = ["-p".to_owned(), port.to_string()];
    let all = [&on_port[..], &arguments(command, window, iterations)].concat();
    let output = Tethered::start(Path::new(PROGRAM), &all, Some(CLIENT_CORE), &[])?.output(RUN_LIMIT)?;
    parse(&output, command).ok_or(ProbeError::Unreadable { program: PROGRAM, output })
}

/// Parses a line with the command's name and its rate in quotes.
fn parse(output: &str, command: Command) -> Option<Sample> {
    let begin = format!("\"{}\",\"", command.name());
    let rate = output.lines().find_map(|line| line.strip_prefix(&begin))?.split('"').next()?;
    Sample::of_rate(rate.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_the_command_is_parsed() {
        // Output of version 7.0, shortened.
        let output = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"223713.64\",\"1.9\"\n";
        assert_eq!(parse(output, Command::Set).unwrap().rate_per_s, Some(223_713.64));
        assert_eq!(parse(output, Command::Get), None);
        assert_eq!(parse("Could not connect to Redis", Command::Set), None);
    }
}
