//! A process of an application: joins the cluster and executes tasks, which arrive as lines of JSON on standard input.

use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use halite::{Config, Node, NodeId, Provider, ServeCause, ServeOptions, blocking};
use serde::{Deserialize, Serialize};

use super::{dsm, graph, kv, log, mapreduce, pool, ycsb};
use crate::args::network;
use crate::client;
use crate::metrics_at::MetricsAt;
use crate::transport;
use crate::{output, signals, threads};

/// Arguments of `halite run-worker`
#[derive(Args, Debug)]
pub struct WorkerArgs {
    /// Pid of the parent; this process is killed when the parent ends
    #[arg(long)]
    parent: u32,
    /// Number of this worker's node, if the run starts a private cluster
    #[arg(long)]
    node: Option<u32>,
    /// Memory to contribute, in bytes
    #[arg(long, default_value_t = 0)]
    arena: u64,
    /// Metrics address
    #[arg(long, default_value_t = MetricsAt(None))]
    metrics: MetricsAt,
    /// Network of this worker's node
    #[arg(long, value_parser = network())]
    fabric: Option<Provider>,
}

/// A message to a worker.
#[derive(Serialize, Deserialize, Debug)]
pub enum Request {
    /// Take the name of the run, so that no other run of the cluster can use it.
    Claim(String),
    /// Prepare this task.
    Task(Task),
    /// The nodes that own the shards, by shard number.
    Nodes(Vec<u32>),
    /// Begin the prepared task.
    Go,
    /// Read up to this position, because the writers have ended.
    End(u64),
    /// Remove the remaining regions.
    Clear,
    /// Leave. The parent process removes the remaining regions. If input ends without this line, the parent was killed.
    Leave,
}

#[derive(Serialize, Deserialize, Debug)]
pub enum Task {
    /// A task of `halite run dsm`.
    Dsm(dsm::Task),
    /// A task of `halite run pagerank` or `halite run components`.
    Graph(graph::Task),
    /// A task of `halite run kv`.
    Kv(kv::Task),
    /// A task of `halite run log`.
    Log(log::Task),
    /// A task of `halite run wordcount` or `halite run grep`.
    MapReduce(mapreduce::Task),
    /// A task of `halite run ycsb`.
    Ycsb(ycsb::Task),
}

impl Task {
    /// Returns the name of the run.
    fn run_name(&self) -> &str {
        match self {
            Task::Dsm(task) => &task.name,
            Task::Graph(task) => &task.name,
            Task::Kv(task) => &task.name,
            Task::Log(task) => &task.name,
            Task::MapReduce(task) => &task.run,
            Task::Ycsb(task) => &task.name,
        }
    }

    /// Returns true if the task ends soon after the end of input, and removes its regions.
    fn is_stoppable(&self) -> bool {
        !matches!(self, Task::Dsm(_) | Task::Graph(_))
    }
}

/// A message of a worker.
#[derive(Serialize, Deserialize, Debug)]
pub enum Reply {
    Done(serde_json::Value),
    /// The worker is waiting, for the reason in this text; its answer to the request follows later.
    Waiting(String),
    Failed(Failure),
}

/// The failure of a task.
#[derive(Serialize, Deserialize, thiserror::Error, Debug)]
#[error("{why}")]
pub struct Failure {
    why: String,
    /// Time of the failure, in ns of the monotonic clock, which all processes of this host share. The run reports the
    /// earliest failure, because failures that it causes in other workers are later.
    pub at_ns: u64,
}

impl Failure {
    fn new(error: &anyhow::Error) -> Failure {
        Failure { why: output::error_chain(error), at_ns: now_ns() }
    }
}

/// First message of a worker.
#[derive(Serialize, Deserialize, Debug)]
pub struct Joined {
    pub node: u32,
    /// Address of the worker's metrics.
    pub metrics: Option<SocketAddr>,
}

/// Session of a worker, and the queue of messages from its parent process.
pub struct Worker {
    pub session: blocking::Session,
    pub node: NodeId,
    requests: Receiver<Request>,
    is_over: Arc<AtomicBool>,
}

impl Worker {
    /// Returns the flag that is set when standard input has ended. Its accesses use relaxed ordering.
    pub fn is_over(&self) -> &AtomicBool {
        &self.is_over
    }

    /// Waits for the next message; returns `None` after the last one.
    pub fn next(&self) -> Option<Request> {
        self.requests.recv().ok()
    }

    /// Waits for [`Request::Go`]. Fails if the parent process has ended.
    pub fn wait_for_go(&self) -> anyhow::Result<()> {
        if let Some(Request::Go) = self.next() { Ok(()) } else { parent_ended() }
    }
}

/// Joins the cluster, or attaches to a node of another user; executes one task, and leaves when standard input ends.
pub fn work(dir: &Path, args: &WorkerArgs) -> anyhow::Result<()> {
    if args.node.is_some() {
        signals::die_with(args.parent)?;
    }
    exit_on_panic();
    let mut config = Config { dir: dir.to_owned(), arena_bytes: args.arena, ..transport::config() };
    config.node = args.node.map(NodeId);
    config.metrics = args.metrics.0;
    config.providers = args.fabric.map_or(config.providers, |network| vec![network]);
    let joined = match args.node.is_none() && client::belongs_to_other_user(dir) {
        true => blocking::Session::attach(dir).map(|session| (session, None)).map_err(anyhow::Error::from),
        false => Node::embedded(config).map(|node| (node.blocking_session(), Some(node))).map_err(Into::into),
    };
    let joined = joined.and_then(|(session, node)| Ok((client::with_priority(session)?, node)));
    let (session, node) = match joined {
        Ok(joined) => joined,
        // The parent process prints the error.
        Err(error) => return reply_failure(&error),
    };
    let id = session.node();
    let is_over = Arc::new(AtomicBool::new(false));
    // The regions of a private cluster end with its processes.
    let orphan = Arc::new(Orphan { dir: args.node.is_none().then(|| dir.to_owned()), ..Orphan::default() });
    let requests = match read_requests(is_over.clone(), orphan.clone()) {
        Ok(requests) => requests,
        Err(refused) => return reply_failure(&refused.into()),
    };
    reply(&Joined { node: id.0, metrics: node.as_ref().and_then(Node::metrics_address) })?;
    let worker = Worker { session, node: id, requests, is_over };
    // The name is taken until this node leaves.
    let mut claims = Vec::new();
    let task = loop {
        match worker.next() {
            Some(Request::Claim(name)) => match claim(&worker.session, &name) {
                Ok(server) => claims.push(server),
                Err(error) => reply_failure(&error)?,
            },
            other => break other,
        }
    };
    if let Some(Request::Task(task)) = &task {
        orphan.set_run(task);
    }
    let done = match task {
        None => Ok(()),
        Some(Request::Task(Task::Dsm(task))) => dsm::work(&worker, &task),
        Some(Request::Task(Task::Graph(task))) => graph::work(&worker, &task),
        Some(Request::Task(Task::Kv(task))) => kv::work(&worker, &task),
        Some(Request::Task(Task::Log(task))) => log::work(&worker, &task),
        Some(Request::Task(Task::MapReduce(task))) => mapreduce::work(&worker, &task),
        Some(Request::Task(Task::Ycsb(task))) => ycsb::work(&worker, &task),
        Some(other) => bail!("expected a task, got {other:?}"),
    };
    // Fails if the parent process was killed; even then, the regions must be freed.
    let outcome = done.or_else(|error| reply_failure(&error));
    // This node leaves when the parent process says so, since other workers may still use its regions.
    while worker.next().is_some() {}
    drop((worker, claims));
    drop(node);
    orphan.free_if_abandoned();
    outcome
}

/// Takes the name of a run for a server that no process calls: the directory gives a name to one server only, and takes
/// it back when the server's process ends.
fn claim(session: &blocking::Session, run: &str) -> anyhow::Result<blocking::Server> {
    match session.serve_named(&pool::claim_name(run), ServeOptions::default()) {
        Ok(server) => {
            reply(&())?;
            Ok(server)
        }
        Err(error) if matches!(error.cause(), ServeCause::NameTaken) => {
            bail!("the name is taken: another run uses {run:?}; choose another name with --name")
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes a panic of any thread end the process, because other threads would wait for the panicked one.
fn exit_on_panic() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        previous(panic);
        std::process::exit(101);
    }));
}

/// Sends an answer to the parent process.
pub fn reply(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(output::print_json(&Reply::Done(serde_json::to_value(value)?))?)
}

/// Sends a failure to the parent process.
pub fn reply_failure(error: &anyhow::Error) -> anyhow::Result<()> {
    Ok(output::print_json(&Reply::Failed(Failure::new(error)))?)
}

/// Returns the error of a worker whose parent process has ended.
pub fn parent_ended<T>() -> anyhow::Result<T> {
    bail!("the parent of this worker has ended")
}

/// Reports a failure at once, so that the parent process ends all workers. Returns `done`.
pub fn report_failure<T>(done: anyhow::Result<T>) -> anyhow::Result<T> {
    if let Err(error) = &done {
        reply_failure(error)?;
    }
    done
}

/// Returns the time of the monotonic clock, which all processes of this host share, in ns.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Maximum time for a worker to end its task and remove its regions.
const GRACE: Duration = Duration::from_secs(10);

/// The data with which a worker removes the regions of a run whose parent process was killed.
#[derive(Default)]
struct Orphan {
    /// Directory of the cluster, unless the cluster ends with the parent process.
    dir: Option<PathBuf>,
    /// Name of the run, and true if its task can be stopped.
    run: OnceLock<(String, bool)>,
    /// Set if input ended without [`Request::Leave`].
    is_abandoned: AtomicBool,
}

impl Orphan {
    fn set_run(&self, task: &Task) {
        let _is_first = self.run.set((task.run_name().to_owned(), task.is_stoppable()));
    }

    /// Returns the cluster and the name of the run whose regions the workers must free.
    fn regions_to_free(&self) -> Option<(&Path, &str)> {
        let (dir, (run, _)) = self.dir.as_deref().zip(self.run.get())?;
        self.is_abandoned.load(Ordering::Relaxed).then_some((dir, &**run))
    }

    /// Frees the regions of a run whose parent process was killed. Also frees those of killed workers.
    fn free_if_abandoned(&self) {
        let Some((dir, run)) = self.regions_to_free() else { return };
        if let Err(error) = pool::sweep(dir, run) {
            output::note(&pool::leftover_note(dir, run, &error));
        }
    }

    /// Ends this process while its task runs.
    fn exit(&self) -> ! {
        if let Some((dir, run)) = self.regions_to_free()
            && let Ok(program) = std::env::current_exe()
        {
            // The task may still create regions, so another process frees them after the end of this one.
            let mut sweeping = Command::new(program);
            sweeping.arg("--dir").arg(dir).args(["run-sweep", "--", run]);
            // If the process cannot start, other workers start theirs.
            let _started = sweeping.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0).spawn();
            std::process::exit(1)
        }
        std::process::exit(1)
    }
}

/// Reads messages from standard input on a thread. Input also ends when the parent process is killed; the worker then
/// removes the regions of the run.
fn read_requests(
    is_over: Arc<AtomicBool>,
    orphan: Arc<Orphan>,
) -> Result<Receiver<Request>, threads::Refused> {
    let (sender, requests) = mpsc::channel();
    threads::spawn("halite-parent", move || {
        let mut is_orderly = false;
        for line in io::stdin().lock().lines() {
            let Some(line) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { break };
            is_orderly = matches!(line, Request::Leave);
            if is_orderly || sender.send(line).is_err() {
                break;
            }
        }
        orphan.is_abandoned.store(!is_orderly, Ordering::Relaxed);
        is_over.store(true, Ordering::Relaxed);
        drop(sender);
        if is_orderly || orphan.run.get().is_none_or(|(_, is_stoppable)| *is_stoppable) {
            std::thread::sleep(GRACE);
        }
        orphan.exit()
    })?;
    Ok(requests)
}

/// Arguments of `halite run-sweep`
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// Name of the run
    run: String,
}

/// Frees the regions of a run that was killed, once the worker that started this process has ended.
pub fn sweep(dir: &Path, args: &SweepArgs) -> anyhow::Result<()> {
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    pool::sweep(dir, &args.run)
}
