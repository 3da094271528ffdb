//! `halite run`: applications that use the public interface, on a private cluster or on a running one.
//!
//! Workers are processes of this program, one for each node of a private cluster, and join as applications do. This
//! process sends tasks to the workers and combines their results.

mod dsm;
mod graph;
mod kv;
mod log;
mod mapreduce;
mod outage;
mod pool;
mod shards;
mod worker;
mod ycsb;

use std::path::Path;

use clap::{Args, Subcommand};
use halite::Provider;

pub use worker::{SweepArgs, WorkerArgs, sweep, work};

use crate::args::network;
use crate::bytes::ByteCount;
use crate::metrics_at::MetricsAt;
use crate::output::UsageError;

/// Arguments of `halite run`
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(subcommand)]
    app: App,
}

#[derive(Subcommand, Debug)]
enum App {
    /// Append to a shared log, follow it, and check that each follower sees every record once, in one order
    Log(log::LogArgs),
    /// Serve a sharded key-value store to Redis clients until stopped
    Kv(kv::KvArgs),
    /// Rank the vertices of a graph by PageRank
    Pagerank(graph::PagerankArgs),
    /// Find the connected components of a graph
    Components(graph::ComponentsArgs),
    /// Count the words of files, and print the most frequent ones
    Wordcount(mapreduce::WordcountArgs),
    /// Find the lines of files that match a regular expression
    Grep(mapreduce::GrepArgs),
    /// Measure distributed shared memory, and check counters that all processes change
    Dsm(dsm::DsmArgs),
    /// Run YCSB workloads on a sharded key-value store and check each value
    Ycsb(ycsb::YcsbArgs),
}

/// The cluster of an application.
#[derive(Args, Clone, Debug)]
struct ClusterArgs {
    /// Processes of the application, each with its own node
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: u32,
    /// Memory of each process, for example 512M or 8G [default: 2G in a private cluster; none in the cluster of --dir,
    /// whose nodes then hold the data]
    #[arg(long, value_name = "BYTES")]
    arena: Option<ByteCount>,
    /// Network of the private cluster [default: shm]
    #[arg(long, value_parser = network())]
    fabric: Option<Provider>,
    /// Address for the first process's metrics; each next process uses the next port; port 0: the system chooses
    #[arg(long, value_name = "IP:PORT|none", default_value_t = MetricsAt(None))]
    metrics: MetricsAt,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Default memory of each process.
const ARENA_BYTES: ByteCount = ByteCount(2 << 30);

impl ClusterArgs {
    fn arena(&self) -> ByteCount {
        self.arena.unwrap_or(ARENA_BYTES)
    }

    fn fabric(&self) -> Provider {
        self.fabric.unwrap_or(Provider::Shm)
    }

    /// Fails if `dir` names a running cluster, which has networks already, and `--fabric` is given.
    fn check(&self, dir: Option<&Path>) -> Result<(), UsageError> {
        let (Some(dir), Some(_)) = (dir, self.fabric) else { return Ok(()) };
        Err(UsageError(format!(
            "--fabric configures a private cluster, but --dir or HALITE_DIR names the cluster in {}; omit one of them",
            dir.display()
        )))
    }
}

impl App {
    fn cluster(&self) -> &ClusterArgs {
        match self {
            App::Log(args) => &args.cluster,
            App::Kv(args) => &args.cluster,
            App::Pagerank(args) => &args.graph.cluster,
            App::Components(args) => &args.graph.cluster,
            App::Wordcount(args) => &args.cluster,
            App::Grep(args) => &args.cluster,
            App::Dsm(args) => &args.cluster,
            App::Ycsb(args) => &args.cluster,
        }
    }
}

/// Runs an application and verifies its result. `dir` is the directory of a running cluster; with `None`, the
/// application starts its own.
pub fn run(dir: Option<&Path>, args: &RunArgs) -> anyhow::Result<()> {
    args.app.cluster().check(dir)?;
    match &args.app {
        App::Log(args) => log::run(dir, args),
        App::Kv(args) => kv::run(dir, args),
        App::Pagerank(args) => graph::run_pagerank(dir, args),
        App::Components(args) => graph::run_components(dir, args),
        App::Wordcount(args) => mapreduce::run_wordcount(dir, args),
        App::Grep(args) => mapreduce::run_grep(dir, args),
        App::Dsm(args) => dsm::run(dir, args),
        App::Ycsb(args) => ycsb::run(dir, args),
    }
}

/// Returns the name of a run: the given one, or else a random one, which lets several runs share a cluster.
fn run_name(given: Option<&str>, app: &str) -> String {
    given.map_or_else(|| format!("halite-run-{app}-{:016x}", fastrand::u64(..)), str::to_owned)
}

/// Returns the name of the run to which a region belongs, if [`run_name`] chose it.
fn run_with_random_name(region: &str) -> Option<&str> {
    let apps = ["dsm", "graph", "grep", "kv", "log", "wordcount", "ycsb"];
    let app =
        |rest: &str| apps.iter().find_map(|app| rest.strip_prefix(app)?.strip_prefix('-').map(str::len));
    let number_at = region.len() - app(region.strip_prefix("halite-run-")?)?;
    let run = region.get(..number_at + 16)?;
    let is_random = run[number_at..].bytes().all(|digit| digit.is_ascii_hexdigit());
    (is_random && pool::belongs_to_run(region, run)).then_some(run)
}

/// Parses the duration of a run.
fn parse_seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.01..=86_400.0).contains(&value) { Ok(value) } else { Err("must be from 0.01 to 86400".to_owned()) }
}
