//! `halite run pagerank` and `halite run components`: each worker owns a part of the graph's vertices.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use halite::blocking;
use halite_apps::graph::input::{EdgeList, Input, Kronecker};
use halite_apps::graph::{self, Crowd, PageRank, Shard};
use serde::{Deserialize, Serialize};

use super::ClusterArgs;
use super::pool::WorkerPool;
use super::worker::{self, Request, Worker, reply};
use crate::output::{self, UsageError};
use crate::progress;

/// Arguments of `halite run pagerank`
#[derive(Args, Clone, Debug)]
pub struct PagerankArgs {
    #[command(flatten)]
    pub(super) graph: GraphArgs,
    /// Maximum number of iterations
    #[arg(long, default_value_t = 100)]
    iterations: u64,
    /// Stop when the ranks change by at most this much in total
    #[arg(long, default_value_t = 1e-10)]
    tolerance: f64,
    /// Fraction of a rank that is passed on along edges, at least 0 and less than 1
    #[arg(long, default_value_t = 0.85, value_parser = parse_damping)]
    damping: f64,
}

/// Arguments of `halite run components`
#[derive(Args, Clone, Debug)]
pub struct ComponentsArgs {
    #[command(flatten)]
    pub(super) graph: GraphArgs,
}

#[derive(Args, Clone, Debug)]
pub(super) struct GraphArgs {
    /// Edge list: two vertex ids per line; lines that begin with # are comments
    #[arg(conflicts_with = "kronecker")]
    file: Option<PathBuf>,
    /// Generate a Kronecker graph of 2^SCALE vertices as Graph500 does, instead of reading a file
    #[arg(long, value_name = "SCALE", value_parser = clap::value_parser!(u32).range(1..=30))]
    kronecker: Option<u32>,
    /// Seed of the generated graph
    #[arg(long, default_value_t = 1, requires = "kronecker")]
    seed: u64,
    /// Number of vertices or components to print
    #[arg(long, default_value_t = 10)]
    top: usize,
    /// Keep the values in distributed shared memory: all processes load and store them as memory
    #[arg(long)]
    dsm: bool,
    /// Name of the run's regions, which are removed at the end [default: halite-run-graph- and a random number]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
}

fn parse_damping(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..1.0).contains(&value) { Ok(value) } else { Err("must be at least 0 and less than 1".to_owned()) }
}

/// The task of one worker.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Task {
    pub(super) name: String,
    worker: usize,
    workers: usize,
    source: Source,
    job: Job,
    is_on_dsm: bool,
    top: usize,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
enum Source {
    File(EdgeList),
    Kronecker { scale: u32, seed: u64 },
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
enum Job {
    Pagerank { iterations: u64, tolerance: f64, damping: f64 },
    Components,
}

/// A worker's part of the graph.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
struct Loaded {
    vertices: u64,
    edges: u64,
    seconds: f64,
}

/// A worker's part of the result.
#[derive(Serialize, Deserialize, Clone, Debug)]
struct Part<V> {
    steps: u64,
    /// Sum of all ranks, or the number of components.
    total: f64,
    /// The highest values with their vertices, descending.
    top: Vec<(u64, V)>,
    verified: bool,
    seconds: f64,
}

#[derive(Serialize, Debug)]
struct Phases {
    load: f64,
    compute: f64,
}

/// The printed result.
#[derive(Serialize, Debug)]
struct Outcome<V> {
    app: &'static str,
    nodes: usize,
    fabric: Option<&'static str>,
    /// True if the values were in distributed shared memory.
    dsm: bool,
    seconds: f64,
    phases: Phases,
    vertices: u64,
    edges: u64,
    iterations: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    components: Option<u64>,
    top: Vec<(u64, V)>,
    verified: bool,
}

/// Maximum difference of the sum of all ranks from 1.
const SUM_ERROR_MAX: f64 = 1e-9;

pub fn run_pagerank(dir: Option<&Path>, args: &PagerankArgs) -> anyhow::Result<()> {
    if !args.tolerance.is_finite() || args.tolerance < 0.0 {
        return Err(
            UsageError(format!("--tolerance {} must be at least 0, and finite", args.tolerance)).into()
        );
    }
    let PagerankArgs { graph, iterations, tolerance, damping } = args;
    let job = Job::Pagerank { iterations: *iterations, tolerance: *tolerance, damping: *damping };
    let mut outcome: Outcome<f64> =
        run_job(dir, "pagerank", graph, job, |sum| (sum - 1.0).abs() < SUM_ERROR_MAX)?;
    outcome.top.sort_by(|(id, rank), (other_id, other)| other.total_cmp(rank).then(id.cmp(other_id)));
    outcome.top.truncate(graph.top);
    print_outcome(&outcome, graph.cluster.json, |rank| format!("{rank:.6e}"))
}

pub fn run_components(dir: Option<&Path>, args: &ComponentsArgs) -> anyhow::Result<()> {
    let graph = &args.graph;
    let mut count = 0;
    let mut outcome: Outcome<u64> = run_job(dir, "components", graph, Job::Components, |total| {
        count = total as u64;
        true
    })?;
    // Each edge was loaded both ways.
    outcome.edges /= 2;
    outcome.components = Some(count);
    outcome.top.sort_by(|(id, size), (other_id, other)| other.cmp(size).then(id.cmp(other_id)));
    outcome.top.truncate(graph.top);
    print_outcome(&outcome, graph.cluster.json, u64::to_string)
}

fn print_outcome<V: Serialize>(
    outcome: &Outcome<V>,
    is_json: bool,
    show: impl Fn(&V) -> String,
) -> anyhow::Result<()> {
    if is_json {
        output::print_json(outcome)?;
    } else {
        output::print(&format_outcome(outcome, show))?;
    }
    if !outcome.verified {
        bail!("verification failed: the printed values do not fit the graph");
    }
    Ok(())
}

fn format_outcome<V>(outcome: &Outcome<V>, show: impl Fn(&V) -> String) -> String {
    let mut text = format!(
        "vertices    {}\nedges       {}\niterations  {}\nload_s      {:.3}\ncompute_s   {:.3}\n",
        outcome.vertices, outcome.edges, outcome.iterations, outcome.phases.load, outcome.phases.compute
    );
    if let Some(components) = outcome.components {
        text += &format!("components  {components}\n");
    }
    text += &format!("verified    {}\n", if outcome.verified { "yes" } else { "NO" });
    for (id, value) in &outcome.top {
        text += &format!("{id:>20}  {}\n", show(value));
    }
    text
}

fn run_job<V: for<'de> Deserialize<'de>>(
    dir: Option<&Path>,
    app: &'static str,
    args: &GraphArgs,
    job: Job,
    mut is_valid: impl FnMut(f64) -> bool,
) -> anyhow::Result<Outcome<V>> {
    let source = match (&args.file, args.kronecker) {
        // A worker need not have the working directory of this process.
        (Some(file), _) => Source::File(EdgeList::find(&std::path::absolute(file)?)?),
        (None, Some(scale)) => Source::Kronecker { scale, seed: args.seed },
        (None, None) => {
            let message =
                "no graph is given: name FILE, an edge list, or generate one with --kronecker SCALE";
            return Err(UsageError(message.to_owned()).into());
        }
    };
    let name = super::run_name(args.name.as_deref(), "graph");
    WorkerPool::start(dir, &args.cluster)?.run(|pool| {
        pool.claim(&name)?;
        pool.free_when_stopped(&name)?;
        let workers = pool.len();
        for worker in 0..workers {
            let (name, source) = (name.clone(), source.clone());
            let task = Task { name, worker, workers, source, job, is_on_dsm: args.dsm, top: args.top };
            pool.request::<()>(worker, &Request::Task(worker::Task::Graph(task)))?;
        }
        let begin = Instant::now();
        let spinner = progress::spinner("loading");
        pool.send_all(&Request::Go)?;
        let loaded: Vec<Loaded> = pool.receive_all()?;
        spinner.set_message("computing");
        let parts: Vec<Part<V>> = pool.receive_all()?;
        spinner.finish_and_clear();
        let edges: u64 = loaded.iter().map(|part| part.edges).sum();
        let vertices: u64 = loaded.iter().map(|part| part.vertices).sum();
        let total = parts.iter().map(|part| part.total).sum();
        let is_valid = is_valid(total) || vertices == 0;
        Ok(Outcome {
            app,
            nodes: workers,
            fabric: dir.is_none().then(|| args.cluster.fabric().name()),
            dsm: args.dsm,
            seconds: begin.elapsed().as_secs_f64(),
            phases: Phases {
                load: loaded.iter().map(|part| part.seconds).fold(0.0, f64::max),
                compute: parts.iter().map(|part| part.seconds).fold(0.0, f64::max),
            },
            vertices,
            edges,
            iterations: parts.iter().map(|part| part.steps).max().unwrap_or(0),
            components: None,
            verified: is_valid && parts.iter().all(|part| part.verified),
            top: parts.into_iter().flat_map(|part| part.top).collect(),
        })
    })
}

/// Maximum time that workers wait for each other. The end of a worker ends the run sooner.
const WAIT_TIMEOUT: Duration = Duration::from_secs(3600);

/// Executes the task of a worker, and reports the result to the parent process.
pub fn work(worker: &Worker, task: &Task) -> anyhow::Result<()> {
    reply(&())?;
    worker.wait_for_go()?;
    let crowd = Crowd {
        session: worker.session.as_async().clone(),
        me: task.worker,
        workers: task.workers,
        name: task.name.clone(),
        patience: WAIT_TIMEOUT,
    };
    load_and_compute(&worker.session, &crowd, task)
}

fn load_and_compute(session: &blocking::Session, crowd: &Crowd, task: &Task) -> anyhow::Result<()> {
    let input = match &task.source {
        Source::File(list) => Input::File(list.clone()),
        Source::Kronecker { scale, seed } => Input::Kronecker(Kronecker { scale: *scale, seed: *seed }),
    };
    let is_undirected = matches!(task.job, Job::Components);
    let begin = Instant::now();
    let shard = session.block_on(Shard::load(crowd, &input, is_undirected))?;
    let edges = shard.sources.edges() as u64;
    reply(&Loaded { vertices: shard.ids.len() as u64, edges, seconds: begin.elapsed().as_secs_f64() })?;
    let begin = Instant::now();
    match task.job {
        Job::Pagerank { iterations, tolerance, damping } => {
            let options = PageRank { damping, iterations, tolerance };
            let found = match task.is_on_dsm {
                true => graph::pagerank_on_dsm(session, crowd, &shard, options)?,
                false => session.block_on(graph::pagerank(crowd, &shard, options))?,
            };
            let seconds = begin.elapsed().as_secs_f64();
            let mut top: Vec<(u64, f64)> =
                shard.ids.iter().copied().zip(found.values.iter().copied()).collect();
            let total = found.values.iter().sum();
            keep_highest(&mut top, task.top, |one, other| one.total_cmp(other));
            // The run ends with the last answer.
            session.block_on(crowd.end())?;
            reply(&Part { steps: found.steps, total, top, verified: found.verified, seconds })
        }
        Job::Components => {
            let found = match task.is_on_dsm {
                true => graph::components_on_dsm(session, crowd, &shard)?,
                false => session.block_on(graph::components(crowd, &shard))?,
            };
            let seconds = begin.elapsed().as_secs_f64();
            let sizes = session.block_on(graph::sizes(crowd, &found.values))?;
            let total = sizes.len() as f64;
            let mut top: Vec<(u64, u64)> = sizes.into_iter().map(|(size, label)| (label, size)).collect();
            keep_highest(&mut top, task.top, u64::cmp);
            session.block_on(crowd.end())?;
            reply(&Part { steps: found.steps, total, top, verified: found.verified, seconds })
        }
    }
}

/// Keeps the `count` pairs with the highest values; among equal values, those with the lowest ids.
fn keep_highest<V>(pairs: &mut Vec<(u64, V)>, count: usize, by: impl Fn(&V, &V) -> std::cmp::Ordering) {
    let order = |one: &(u64, V), other: &(u64, V)| by(&other.1, &one.1).then(one.0.cmp(&other.0));
    if count < pairs.len() {
        pairs.select_nth_unstable_by(count, order);
        pairs.truncate(count);
    }
    pairs.sort_unstable_by(order);
}
