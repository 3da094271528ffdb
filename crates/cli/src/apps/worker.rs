//! A process of an application: joins the cluster, and does as it is told by lines of JSON on its standard input.

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

use super::{kv, log, ycsb};
use crate::args::network;
use crate::metrics_at::MetricsAt;
use crate::{output, signals};

/// `halite run-worker`
#[derive(Args, Debug)]
pub struct WorkerArgs {
    /// The process to end with
    #[arg(long)]
    parent: u32,
    /// The number of its node, in a cluster of the workers' own
    #[arg(long)]
    node: Option<u32>,
    /// Memory to contribute
    #[arg(long, default_value_t = 0)]
    arena: u64,
    /// Where it serves metrics
    #[arg(long, default_value_t = MetricsAt(None))]
    metrics: MetricsAt,
    /// The network of its node
    #[arg(long, value_parser = network())]
    fabric: Option<Provider>,
}

/// What a worker is told.
#[derive(Serialize, Deserialize, Debug)]
pub enum Line {
    /// Prepare this.
    Task(Task),
    /// These nodes have a part each.
    Nodes(Vec<u32>),
    /// Begin.
    Go,
    /// Nothing is added from here on: go on to this position.
    End(u64),
    /// Remove what is left.
    Clear,
}

/// What it is to do.
#[derive(Serialize, Deserialize, Debug)]
pub enum Task {
    /// `halite run kv`
    Kv(kv::Task),
    /// `halite run log`
    Log(log::Task),
    /// `halite run ycsb`
    Ycsb(ycsb::Task),
}

/// What a worker says.
#[derive(Serialize, Deserialize, Debug)]
pub enum Answer {
    /// It is done.
    Done(serde_json::Value),
    /// It will be, and this is what it waits for.
    Waits(String),
    /// It could not be done.
    Failed(Failure),
}

/// Why something could not be done.
#[derive(Serialize, Deserialize, thiserror::Error, Debug)]
#[error("{why}")]
pub struct Failure {
    why: String,
    /// When it was seen, by the clock that all processes of this host share: what others fail of because of it comes later.
    pub at_ns: u64,
}

impl Failure {
    fn of(error: &anyhow::Error) -> Failure {
        Failure { why: output::reasons(error), at_ns: now_ns() }
    }
}

/// What a worker says first.
#[derive(Serialize, Deserialize, Debug)]
pub struct Joined {
    /// Its node.
    pub node: u32,
    /// Where that serves metrics, if it does.
    pub metrics: Option<SocketAddr>,
}

/// What a worker has: a session, and the parent process that tells it what to do.
pub struct Worker {
    /// Its session; more of them are to be had by cloning.
    pub session: blocking::Session,
    /// Its node.
    pub node: NodeId,
    lines: Receiver<Line>,
    is_over: Arc<AtomicBool>,
}

impl Worker {
    /// Set when the parent process waits for nothing any more; carries no data.
    pub fn is_over(&self) -> &AtomicBool {
        &self.is_over
    }

    /// Waits for the next line; none at the end.
    pub fn next(&self) -> Option<Line> {
        self.lines.recv().ok()
    }
}

/// Works until standard input ends.
pub fn work(dir: &Path, args: &WorkerArgs) -> anyhow::Result<()> {
    if args.node.is_some() {
        signals::die_with(args.parent)?;
    }
    end_with_a_panic();
    let mut config = Config { dir: dir.to_owned(), arena_bytes: args.arena, ..Config::default() };
    config.node = args.node.map(NodeId);
    config.metrics = args.metrics.0;
    config.providers = args.fabric.map_or(config.providers, |network| vec![network]);
    let node = match Node::embedded(config) {
        Ok(node) => node,
        // The parent process tells it.
        Err(error) => return say_failed(&error.into()),
    };
    say(&Joined { node: node.id().0, metrics: node.metrics_address() })?;
    let is_over = Arc::new(AtomicBool::new(false));
    let worker =
        Worker { session: node.blocking_session(), node: node.id(), lines: listen(is_over.clone()), is_over };
    let done = match worker.next() {
        None => Ok(()),
        Some(Line::Task(Task::Kv(task))) => kv::work(&worker, &task),
        Some(Line::Task(Task::Log(task))) => log::work(&worker, &task),
        Some(Line::Task(Task::Ycsb(task))) => ycsb::work(&worker, &task),
        Some(other) => bail!("expected a task, got {other:?}"),
    };
    if let Err(error) = done {
        say_failed(&error)?;
    }
    // The parent process decides when we leave: others may be at what is ours.
    while worker.next().is_some() {}
    drop(worker);
    node.leave();
    Ok(())
}

/// Has a panic of any thread end the process, which the parent process tells: other threads would wait for the one that is gone.
fn end_with_a_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::exit(101);
    }));
}

/// Answers.
pub fn say(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(output::print_json(&Answer::Done(serde_json::to_value(value)?))?)
}

/// Answers that it cannot go on.
pub fn say_failed(error: &anyhow::Error) -> anyhow::Result<()> {
    Ok(output::print_json(&Answer::Failed(Failure::of(error)))?)
}

/// The parent process is told at once why something cannot go on, and ends all others; what else goes wrong then is no news.
pub fn told<T>(done: anyhow::Result<T>) -> anyhow::Result<T> {
    if let Err(error) = &done {
        say_failed(error)?;
    }
    done
}

/// Nanoseconds of a clock that all processes of this host share.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// How long a worker may take to end what it does and remove what it has made.
const GRACE: Duration = Duration::from_secs(10);

/// Hears what the worker is told.  Standard input also ends with the parent process, however that ends; in a cluster of
/// others, what we have made there is to be removed then.
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
