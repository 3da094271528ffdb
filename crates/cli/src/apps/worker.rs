//! A process of an application: joins the cluster and executes tasks, which arrive as lines of JSON on standard input.

use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use halite::{Config, Node, NodeId, Provider, blocking};
use serde::{Deserialize, Serialize};

use super::{dsm, graph, kv, log, mapreduce, ycsb};
use crate::args::network;
use crate::congestion;
use crate::metrics_at::MetricsAt;
use crate::{output, signals};

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
pub enum Line {
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

/// A message of a worker.
#[derive(Serialize, Deserialize, Debug)]
pub enum Answer {
    Done(serde_json::Value),
    /// The worker is waiting, for the reason in this text; its answer to the request follows later.
    Waits(String),
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
    fn of(error: &anyhow::Error) -> Failure {
        Failure { why: output::reasons(error), at_ns: now_ns() }
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
    lines: Receiver<Line>,
    is_over: Arc<AtomicBool>,
}

impl Worker {
    /// Returns the flag that is set when standard input has ended. Its accesses use relaxed ordering.
    pub fn is_over(&self) -> &AtomicBool {
        &self.is_over
    }

    /// Waits for the next message; returns `None` after the last one.
    pub fn next(&self) -> Option<Line> {
        self.lines.recv().ok()
    }
}

/// Joins the cluster, executes one task, and leaves when standard input ends.
pub fn work(dir: &Path, args: &WorkerArgs) -> anyhow::Result<()> {
    if args.node.is_some() {
        signals::die_with(args.parent)?;
    }
    end_with_a_panic();
    let mut config = Config { dir: dir.to_owned(), arena_bytes: args.arena, ..congestion::config() };
    config.node = args.node.map(NodeId);
    config.metrics = args.metrics.0;
    config.providers = args.fabric.map_or(config.providers, |network| vec![network]);
    let node = match Node::embedded(config) {
        Ok(node) => node,
        // The parent process prints the error.
        Err(error) => return say_failed(&error.into()),
    };
    say(&Joined { node: node.id().0, metrics: node.metrics_address() })?;
    let is_over = Arc::new(AtomicBool::new(false));
    let worker =
        Worker { session: node.blocking_session(), node: node.id(), lines: listen(is_over.clone()), is_over };
    let done = match worker.next() {
        None => Ok(()),
        Some(Line::Task(Task::Dsm(task))) => dsm::work(&worker, &task),
        Some(Line::Task(Task::Graph(task))) => graph::work(&worker, &task),
        Some(Line::Task(Task::Kv(task))) => kv::work(&worker, &task),
        Some(Line::Task(Task::Log(task))) => log::work(&worker, &task),
        Some(Line::Task(Task::MapReduce(task))) => mapreduce::work(&worker, &task),
        Some(Line::Task(Task::Ycsb(task))) => ycsb::work(&worker, &task),
        Some(other) => bail!("expected a task, got {other:?}"),
    };
    if let Err(error) = done {
        say_failed(&error)?;
    }
    // This node leaves when the parent process says so, since other workers may still use its regions.
    while worker.next().is_some() {}
    drop(worker);
    node.leave();
    Ok(())
}

/// Makes a panic of any thread end the process, because other threads would wait for the panicked one.
fn end_with_a_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::exit(101);
    }));
}

/// Sends an answer to the parent process.
pub fn say(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(output::print_json(&Answer::Done(serde_json::to_value(value)?))?)
}

/// Sends a failure to the parent process.
pub fn say_failed(error: &anyhow::Error) -> anyhow::Result<()> {
    Ok(output::print_json(&Answer::Failed(Failure::of(error)))?)
}

/// Reports a failure at once, so that the parent process ends all workers. Returns `done`.
pub fn reported<T>(done: anyhow::Result<T>) -> anyhow::Result<T> {
    if let Err(error) = &done {
        say_failed(error)?;
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

/// Reads messages from standard input on a thread. Input also ends when the parent process is killed, and the worker
/// then removes its regions.
fn listen(is_over: Arc<AtomicBool>) -> Receiver<Line> {
    let (teller, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Some(line) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { break };
            if teller.send(line).is_err() {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        drop(teller);
        std::thread::sleep(GRACE);
        std::process::exit(1);
    });
    lines
}
