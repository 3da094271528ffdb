//! The other end of a measurement: a process that owns the memory, runs threads that respond to the client's threads,
//! and reports checksums.
//!
//! It reads requests as lines of JSON from standard input, and answers each with a number.

use std::io::{self, BufRead};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, anyhow};
use halite::{AttachMode, Config, Node, NodeId, Permissions, blocking};
use serde::{Deserialize, Serialize};

use super::args::{ServerArgs, name_of};
use super::cores::{Cores, pin};
use super::end::End;
use super::job::Job;
use super::measure::process_cpu;
use super::pinned;
use super::relay;
use super::table;
use crate::child::ChildProcess;
use crate::output;
use crate::signals;
use crate::threads;
use crate::transport;

/// Number of the client's node.
pub const CLIENT: NodeId = NodeId(1);

/// A request to the server.
#[derive(Serialize, Deserialize, Debug)]
pub enum Request {
    /// Start threads. The answer arrives when they accept requests.
    StartThreads(ServerTask),
    /// Wait until the threads have ended. The answer is the number of their errors.
    JoinThreads,
    /// Run one role of a relay between three processes. The answer arrives at its end.
    Relay(relay::Role),
    /// Report the processor time of the process, in nanoseconds.
    Cpu,
    /// Report the checksum of the first bytes of a region.
    Checksum {
        /// Name of the region.
        name: String,
        /// Number of bytes of the region to include in the checksum.
        len: u64,
    },
}

/// The work of the server's threads in a test.
#[derive(Serialize, Deserialize, Debug)]
pub struct ServerTask {
    /// Name of the test.
    pub test: String,
    /// Number of threads: one for each thread of the client.
    pub threads: usize,
    /// Bytes of each turn or request; 0 if their lengths differ.
    pub size: u64,
    /// Number of turns of each thread.
    pub turns: u64,
    /// Bytes of each reply.
    pub reply_bytes: u64,
    /// Maximum number of requests that are received and answered together.
    pub batch: usize,
}

/// A thread of the server, before it starts.
pub struct ServerThread {
    /// Work of the thread; returns the number of its errors.
    pub run: Box<dyn FnOnce() -> anyhow::Result<u64> + Send>,
    /// Function that the thread serves, if closing the function ends the thread.
    pub function: Option<blocking::Server>,
}

/// The answer to a request: a number, or the reason for its failure.
type Reply = Result<u64, String>;

/// Returns the checksum by which both ends compare memory.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// The server process, from the client's view. Dropping it kills the process.
pub struct Server(ChildProcess);

impl Server {
    /// Starts the server process; returns when its node has joined the cluster in `dir`.
    pub fn start(dir: &Path, job: &Job) -> anyhow::Result<Server> {
        let (arena, cores) = (job.arena_bytes().to_string(), name_of(&job.args.cores));
        let flags = ["--arena", &arena, "--cores", &cores, "--fabric", job.fabric];
        Server::run("the server process", dir, flags.map(str::to_owned).to_vec())
    }

    /// Starts a process that is attached to the server's node, and serves functions instead of it.
    pub fn start_attached(dir: &Path, job: &Job) -> anyhow::Result<Server> {
        let cores = name_of(&job.args.cores);
        let flags = ["--attached", "--arena", "0", "--cores", &cores, "--fabric", job.fabric];
        Server::run("the attached server process", dir, flags.map(str::to_owned).to_vec())
    }

    fn run(name: &str, dir: &Path, flags: Vec<String>) -> anyhow::Result<Server> {
        let mut server = Server(ChildProcess::start(name, dir, "perf-server", &flags)?);
        server.reply()?;
        Ok(server)
    }

    /// Sends a request. [`Server::reply`] must follow.
    pub fn send(&mut self, request: &Request) -> anyhow::Result<()> {
        self.0.send(request)
    }

    /// Sends a request and waits for the reply.
    pub fn ask(&mut self, request: &Request) -> anyhow::Result<u64> {
        self.0.send(request)?;
        self.reply()
    }

    /// Waits for the reply to a request.
    pub fn reply(&mut self) -> anyhow::Result<u64> {
        self.0.receive::<Reply>()?.map_err(|cause| anyhow!("the server process failed: {cause}"))
    }

    /// Returns the processor time of both processes.
    pub fn cpu_of_both(&mut self) -> anyhow::Result<Duration> {
        Ok(Duration::from_nanos(self.ask(&Request::Cpu)?) + process_cpu())
    }

    /// Stops the process.
    pub fn stop(self) -> anyhow::Result<()> {
        self.0.stop()
    }
}

/// Runs the server until its standard input ends.
pub fn serve(dir: &Path, args: &ServerArgs) -> anyhow::Result<()> {
    signals::die_with(args.parent)?;
    let mut cores = Cores::available(args.cores).context("cannot list the cores")?;
    if args.attached {
        // The node has the other core: the client and this process wait for each other, so they can share one.
        cores = cores.of_other_end();
    }
    // The pinning precedes the start of the node's threads, which inherit the core.
    pin(cores.of_server(0)).context("cannot pin the server to its core")?;
    let (end, mut server_threads) = (open(dir, args, cores)?, None);
    output::print_json(&Reply::Ok(0))?;
    for line in io::stdin().lock().lines() {
        let request = serde_json::from_str(&line?).context("cannot read the job")?;
        let reply: Reply = handle(request, &end, &mut server_threads).map_err(|error| format!("{error:#}"));
        output::print_json(&reply)?;
    }
    end.leave();
    Ok(())
}

/// Starts the server's node, or attaches to it.
fn open(dir: &Path, args: &ServerArgs, cores: Cores) -> anyhow::Result<End> {
    if args.attached {
        return End::attached(dir, NodeId(0), cores);
    }
    let config = Config {
        dir: dir.to_owned(),
        node: Some(NodeId(0)),
        arena_bytes: args.arena,
        providers: vec![args.fabric],
        attach: Some(AttachMode::Owner),
        ..transport::config()
    };
    let node = Node::embedded(config).context("cannot run the server's node")?;
    End::new(node, CLIENT, cores)
}

fn handle(request: Request, end: &End, server_threads: &mut Option<ServerThreads>) -> anyhow::Result<u64> {
    match request {
        Request::StartThreads(task) => {
            let test = table::named(&task.test).context("there is no such test")?;
            let threads = (test.server_threads)(end, &task)?;
            *server_threads = Some(ServerThreads::start(threads, end.cores.clone())?);
            Ok(0)
        }
        Request::JoinThreads => server_threads.take().context("no server threads are running")?.join(),
        Request::Relay(role) => role.run(&end.cores).map(|()| 0),
        Request::Cpu => Ok(u64::try_from(process_cpu().as_nanos())?),
        Request::Checksum { name, len } => {
            let lh = end.session.map(&name, Permissions::READ)?;
            let mut bytes = vec![0; usize::try_from(len)?];
            end.session.read(lh, 0, &mut bytes)?;
            end.session.unmap(lh)?;
            Ok(checksum(&bytes))
        }
    }
}

/// The server's threads.
struct ServerThreads {
    functions: Vec<blocking::Server>,
    all: JoinHandle<anyhow::Result<u64>>,
}

impl ServerThreads {
    fn start(server_threads: Vec<ServerThread>, cores: Cores) -> anyhow::Result<ServerThreads> {
        let functions = server_threads.iter().filter_map(|thread| thread.function.clone()).collect();
        let run = |_, thread: ServerThread, _| (thread.run)();
        let all = threads::spawn("halite-server", move || {
            Ok(pinned::run_all(server_threads, |thread| cores.of_server(thread), run)?.into_iter().sum())
        })?;
        Ok(ServerThreads { functions, all })
    }

    fn join(self) -> anyhow::Result<u64> {
        self.functions.iter().for_each(blocking::Server::close);
        self.all.join().expect("the thread does not panic")
    }
}
