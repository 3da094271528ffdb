//! `halite perf fan_in`: one server process, and many clients in another, by queue pairs or without connection state.
//!
//! Each client is a requester of `halite_rnic` with a queue pair number, rights and state of its own; all of them share
//! the sockets and one thread of the generating process. Clients are not nodes and have no sessions. The server's
//! thread waits in the kernel, so it uses processor time only while it works. Either side starts the operations: the
//! clients, or the server, which then reads or writes memory of random clients, as in StaR's figure 1.
//!
//! ```text
//!   generator                                   server process
//!     clients ── 8 UDP sockets ───────────────► one UDP socket ── queue pairs by number, or one stateless responder
//!     └─ control: JSON lines, such as clients' rights ──┘
//! ```

mod generator;
mod initiator;
mod server;
mod transport;
mod turns;

use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use halite_figures::plot::{self, Axis, Plot, Series};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::args::{PerfArgs, name_of};
use super::cores::{Cores, pin};
use super::job::wrong;
use crate::child::ChildProcess;
use crate::output;
use crate::scratch::Scratch;
use crate::target::Target;

pub use server::{FanInArgs, serve};

/// How the server identifies its clients.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By a queue pair of a reliable connection for each client
    Stateful,
    /// By the data in their packets
    Stateless,
    /// As stateful, and clients take turns in groups
    Grouped,
}

/// When operations begin.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Clients are chosen at random
    Open,
    /// Each client has one operation per round, and a round begins when the last one has ended
    Rounds,
}

/// The side that starts the operations.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Initiator {
    /// Each client, on the server's memory
    Client,
    /// The server, on memory of the clients
    Server,
}

/// The operation of the clients.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Read at random places
    Read,
    /// Write to a place of their own
    Write,
    /// Call the server, which answers with as many bytes, or with --reply-size bytes of its memory
    Call,
}

/// Length of the memory of each process in bytes.
const MEMORY_BYTES: u64 = 1 << 20;
/// Number of operations in progress, each of a different client. Their packets fit into the server's receive buffer.
const IN_FLIGHT: usize = 128;
/// Maximum latency that is recorded, in ns; longer ones count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Time without the end of an operation after which the run fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// Key of the memory of each process.
const RKEY: u32 = 1;
/// Maximum number of clients with a queue pair each.
const STATEFUL_MAX: u32 = 10_000;
/// Maximum number of clients without queue pairs.
const CLIENTS_MAX: u32 = 1_000_000;
/// Maximum length of a read or write: one packet.
const BYTES_MAX: u64 = 1_024;
/// Length of the address in a call.
const ADDRESS_BYTES: u64 = size_of::<u64>() as u64;
/// Maximum length of a call, and of its answer.
const CALL_BYTES_MAX: u64 = 64 << 10;
/// Number of requests before the measurement, in percent of the measured requests.
const WARM_UP_PERCENT: u64 = 10;

/// Returns the byte at an address of the server's memory; clients have the complements.
fn byte_at(address: u64) -> u8 {
    (address.wrapping_mul(0x9e37_79b9) >> 11) as u8
}

/// Returns the server's answer to a call that names no bytes of its memory.
fn reply(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| !byte).collect()
}

/// Returns the address at the start of a call that names bytes of the server's memory.
fn address_in(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|address| u64::from_le_bytes(*address))
}

fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are in order")
}

/// A request to the server process.
#[derive(Serialize, Deserialize, Debug)]
enum Request {
    /// Admit `count` clients that share a port and have consecutive numbers from `first` on. In stateless mode, the
    /// answer has their keys.
    Admit { port: u16, first: u32, count: u32 },
    /// Report the processor time and the memory used so far.
    Use,
    /// Start to read or write memory of random clients, `operations` times. The answer arrives at once.
    Start { operations: u64, size: u64, verb: Verb, workload: Workload },
    /// Report how the run that `Start` began has ended.
    Progress,
}

/// The answer to a request.
#[derive(Serialize, Deserialize, Debug)]
enum Answer {
    Listening {
        port: u16,
    },
    Admitted {
        keys: Vec<[u8; 32]>,
    },
    Use(Use),
    Started,
    /// The run has not ended.
    Running,
    Ended(Ended),
    Failed(String),
}

/// The result of a run.
#[derive(Clone, Serialize, Deserialize, Debug)]
struct Ended {
    took: Duration,
    latency: Latency,
    /// Packets that were retransmitted.
    repeated: u64,
    /// Operations whose outcome is unknown, and which were therefore started again.
    maybe_done: u64,
    /// Operations that moved wrong bytes.
    errors: u64,
    /// Number of places in the clients' memory that the server has written since its start, and of those that it may
    /// have written.
    written: [u64; 2],
}

/// Use of processor and memory.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
struct Use {
    /// Processor time of the serving thread.
    cpu_ns: u64,
    /// Memory that the process has allocated.
    heap_bytes: Option<u64>,
    rss_bytes: u64,
}

#[derive(Serialize)]
struct Report {
    test: &'static str,
    mode: Mode,
    initiator: Initiator,
    workload: Workload,
    verb: Verb,
    clients: u32,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_size: Option<u64>,
    iters: u64,
    #[serde(rename = "rate_Mops")]
    rate_mops: f64,
    server_ns_per_op: f64,
    /// Share of the run for which the serving thread was busy.
    server_busy: f64,
    generator_ns_per_op: f64,
    /// Memory that the server process has allocated and not freed.
    server_heap_bytes: Option<u64>,
    server_rss_bytes: u64,
    lat_us: Latency,
    repeated: u64,
    maybe_done: u64,
    errors: u64,
}

/// Latencies in us.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
struct Latency {
    p50: f64,
    p99: f64,
    p999: f64,
}

impl Latency {
    fn of(latencies: &Histogram<u64>) -> Latency {
        let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        Latency { p50: us(0.5), p99: us(0.99), p999: us(0.999) }
    }
}

pub fn run(args: &PerfArgs) -> anyhow::Result<()> {
    let has_threads = args.threads.is_some() || args.window.is_some() || args.batch.is_some();
    if has_threads || args.all || args.attached || args.peer.is_some() {
        let what = "fan_in has its own processes, threads and sizes: omit --peer, --attached, -t, --window, --batch and -a";
        return Err(wrong(what).into());
    }
    let (mode, verb) = (args.mode.unwrap_or(Mode::Stateless), args.verb.unwrap_or(Verb::Read));
    let workload = args.workload.unwrap_or(Workload::Open);
    let clients = args.clients.unwrap_or(10);
    let size = args.size.map_or(32, |size| size.0);
    let most = if mode == Mode::Stateless { CLIENTS_MAX } else { STATEFUL_MAX };
    if !(1..=most).contains(&clients) {
        let remedy = match mode {
            Mode::Stateless => String::new(),
            _ => format!(": each has a queue pair; --mode stateless takes up to {CLIENTS_MAX}"),
        };
        return Err(wrong(&format!(
            "--clients must be from 1 to {most} in this mode, not {clients}{remedy}"
        ))
        .into());
    }
    let longest = if verb == Verb::Call { CALL_BYTES_MAX } else { BYTES_MAX };
    if !(1..=longest).contains(&size) {
        let limits = format!(
            "-s must be from 1 to {BYTES_MAX} bytes (one packet), or to {CALL_BYTES_MAX} with --verb call"
        );
        return Err(wrong(&limits).into());
    }
    let reply_size = args.reply_size.map(|size| size.0);
    if let Some(reply_size) = reply_size {
        if verb != Verb::Call {
            return Err(wrong("--reply-size needs --verb call").into());
        }
        if !(1..=CALL_BYTES_MAX).contains(&reply_size) || size < ADDRESS_BYTES {
            let limits = format!(
                "--reply-size must be from 1 to {CALL_BYTES_MAX} bytes, and -s at least {ADDRESS_BYTES}: a call names an address"
            );
            return Err(wrong(&limits).into());
        }
    }
    let initiator = args.initiator.unwrap_or(Initiator::Client);
    if initiator == Initiator::Server && verb == Verb::Call {
        return Err(
            wrong("--initiator server reads or writes memory of the clients: omit --verb call").into()
        );
    }
    if initiator == Initiator::Client && workload == Workload::Rounds {
        return Err(wrong("--workload rounds needs --initiator server, which waits for all clients").into());
    }
    let target = Target::new(args.svg.as_deref(), None, args.force)?;
    let cores = Cores::available(args.cores).context("cannot list the cores")?;
    let iterations = args.iterations.unwrap_or(200_000);
    let case = Case { mode, initiator, workload, verb, size, reply_size, iterations };
    let points = if args.svg.is_some() { decades(clients) } else { vec![clients] };
    let mut reports = Vec::new();
    for clients in points {
        let report = case.measure(clients, &cores)?;
        match args.json {
            true => output::print_json(&report)?,
            false => output::print(&text(&report))?,
        }
        reports.push(report);
    }
    target.write_svg(|| svg(&reports))?;
    let errors: u64 = reports.iter().map(|report| report.errors).sum();
    if errors > 0 {
        bail!("verification failed: {errors} operations moved wrong bytes");
    }
    Ok(())
}

/// Returns 10, 100 and so on up to `most`, and `most` itself.
fn decades(most: u32) -> Vec<u32> {
    let mut points: Vec<u32> = (1..).map_while(|power| 10_u32.checked_pow(power)).collect();
    points.retain(|point| *point < most);
    points.push(most);
    points
}

/// What a run measures, for any number of clients.
struct Case {
    mode: Mode,
    initiator: Initiator,
    workload: Workload,
    verb: Verb,
    size: u64,
    reply_size: Option<u64>,
    iterations: u64,
}

impl Case {
    fn measure(&self, clients: u32, cores: &Cores) -> anyhow::Result<Report> {
        let Case { mode, initiator, workload, verb, size, reply_size, .. } = *self;
        // Rounds are complete.
        let whole = |operations: u64| match workload {
            Workload::Open => operations,
            Workload::Rounds => operations.next_multiple_of(u64::from(clients)),
        };
        let iterations = whole(self.iterations);
        let scratch = Scratch::create()?;
        // The server process inherits the cores of this thread, and pins itself to another core than the clients.
        pin(cores.all()).context("cannot use all cores")?;
        let flags = [name_of(&mode), name_of(&initiator)];
        let mut flags = ["--mode", &flags[0], "--initiator", &flags[1]].map(str::to_owned).to_vec();
        flags.extend(reply_size.into_iter().flat_map(|size| ["--reply-size".to_owned(), size.to_string()]));
        let mut server =
            ChildProcess::start("the server process", scratch.path(), "perf-fan-in-server", &flags)?;
        let Answer::Listening { port } = server.receive()? else {
            bail!("the server process does not listen")
        };
        pin(cores.of_client(0)).context("cannot pin the clients to their core")?;
        let plan = generator::Plan { mode, workload, verb, clients, size, reply_size, port };
        let mut crowd = generator::Crowd::admit(&plan, |request| ask(&mut server, request))?;
        let mut execute = |operations, server: &mut ChildProcess| match initiator {
            Initiator::Client => crowd.run(operations, || alive(server)),
            Initiator::Server => crowd.serve(operations, |request| ask(server, request)),
        };
        execute(whole(self.iterations * WARM_UP_PERCENT / 100), &mut server)?;
        let before = usage(&mut server)?;
        let run = execute(iterations, &mut server)?;
        let after = usage(&mut server)?;
        let errors = run.ended.errors + crowd.verify(run.ended.written, || alive(&mut server))?;
        let Ended { took, latency: lat_us, repeated, maybe_done, .. } = run.ended;
        server.stop()?;
        let per_op = |ns: u64| ns as f64 / iterations as f64;
        let cpu_ns = after.cpu_ns - before.cpu_ns;
        Ok(Report {
            test: "fan_in",
            mode,
            initiator,
            workload,
            verb,
            clients,
            size,
            reply_size,
            iters: iterations,
            rate_mops: iterations as f64 / took.as_secs_f64() / 1e6,
            server_ns_per_op: per_op(cpu_ns),
            server_busy: Duration::from_nanos(cpu_ns).as_secs_f64() / took.as_secs_f64(),
            generator_ns_per_op: per_op(run.cpu_ns),
            server_heap_bytes: after.heap_bytes,
            server_rss_bytes: after.rss_bytes,
            lat_us,
            repeated,
            maybe_done,
            errors,
        })
    }
}

/// Draws the server's processor time per operation by the number of clients.
fn svg(reports: &[Report]) -> String {
    let points = reports.iter().map(|report| [f64::from(report.clients), report.server_ns_per_op]).collect();
    let last = reports.last().expect("there is at least one number of clients");
    let name = name_of(&last.mode);
    let title = format!("{} of {} B by the {}", name_of(&last.verb), last.size, name_of(&last.initiator));
    let axis = |label: &str, is_log| Axis { label: label.to_owned(), is_log };
    let series = vec![Series { name, colour: 0, is_dashed: false, points }];
    let (x, y) = (axis("clients", true), axis("server, processor time [ns/op]", false));
    plot::svg(&[Plot { title, x, y, series, marks: Vec::new() }])
}

fn ask(server: &mut ChildProcess, request: &Request) -> anyhow::Result<Answer> {
    server.send(request)?;
    match server.receive()? {
        Answer::Failed(why) => bail!("the server process failed: {why}"),
        answer => Ok(answer),
    }
}

/// Fails if the server process has ended.
fn alive(server: &mut ChildProcess) -> anyhow::Result<()> {
    if server.has_ended() { Err(server.exit_error()) } else { Ok(()) }
}

fn usage(server: &mut ChildProcess) -> anyhow::Result<Use> {
    match ask(server, &Request::Use)? {
        Answer::Use(usage) => Ok(usage),
        other => bail!("unexpected answer of the server process: {other:?}"),
    }
}

fn text(report: &Report) -> String {
    let Report { clients, size, rate_mops, server_ns_per_op, generator_ns_per_op, lat_us, .. } = report;
    format!(
        "fan_in: {clients} clients, {}, {}, {} of {size} B by {}\n\
         rate[Mops] {rate_mops:.4}  server[nsec/op] {server_ns_per_op:.0}  busy {:.2}  generator[nsec/op] {generator_ns_per_op:.0}\n\
         p50[usec] {:.2}  p99[usec] {:.2}  p99.9[usec] {:.2}  server heap {} KiB, RSS {} KiB  sent again {}\n",
        name_of(&report.mode),
        name_of(&report.workload),
        name_of(&report.verb),
        name_of(&report.initiator),
        report.server_busy,
        lat_us.p50,
        lat_us.p99,
        lat_us.p999,
        report.server_heap_bytes.map_or("?".to_owned(), |bytes| (bytes / 1024).to_string()),
        report.server_rss_bytes / 1024,
        report.repeated,
    )
}
