//! `halite run ycsb`: the YCSB core workloads on a key-value store of which each process owns a shard.

mod values;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use halite::{Function, NodeId, Permissions, blocking};
use halite_apps::kv::{SetOptions, Store};
use hdrhistogram::Histogram;
use rand_distr::{Distribution, Zipf};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::ClusterArgs;
use super::outage::Outage;
use super::pool::WorkerPool;
use super::shards::{self, Shard};
use super::worker::{self, Request, Worker, parent_ended, reply};
use crate::bytes::ByteCount;
use crate::output;
use crate::progress;
use crate::threads;
use values::{Known, Latest, Update, VALUE_BYTES_MIN, write_value};

/// Maximum length of a value in bytes. A store takes longer ones, but all keys of the benchmark have one.
const VALUE_BYTES_MAX: usize = 1 << 20;

/// Arguments of `halite run ycsb`
#[derive(Args, Clone, Debug)]
pub struct YcsbArgs {
    /// YCSB workload: updates are 50 % (a), 5 % (b) or 0 % (c) of operations
    #[arg(long, value_enum, ignore_case = true, default_value = "b")]
    workload: Workload,
    /// Number of keys
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    keys: u64,
    /// Bytes per value, at least 16
    #[arg(long, default_value = "64", value_name = "BYTES")]
    value: ByteCount,
    /// Client threads, distributed over the processes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Duration of the run
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS", value_parser = super::parse_seconds)]
    seconds: f64,
    /// Name of the store, which is removed at the end [default: halite-run-ycsb- and a random number]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
}

/// YCSB's core workloads that only read and update.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// 50 % updates
    A,
    /// 5 % updates
    B,
    /// Reads only
    C,
}

impl Workload {
    fn updates_per_mille(self) -> u32 {
        match self {
            Workload::A => 500,
            Workload::B => 50,
            Workload::C => 0,
        }
    }
}

/// The task of one worker.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Task {
    pub(super) name: String,
    number: usize,
    workers: usize,
    workload: Workload,
    keys: u64,
    value: usize,
    /// Numbers of this worker's threads, among all threads of the run.
    threads: Vec<u64>,
    threads_in_all: u32,
    ns: u64,
}

/// Result of one worker.
#[derive(Serialize, Deserialize, Debug)]
struct Done {
    reads: u64,
    updates: u64,
    /// Number of missing or damaged values.
    errors: u64,
    /// Time of the slowest thread, in ns.
    ns: u64,
    read_ns: [u64; 2],
    update_ns: [u64; 2],
    /// Number of keys at the end, if this worker counted them.
    keys: Option<u64>,
    /// Number of waits for the directory of names.
    directory_waits: u64,
    /// Number of updates that each thread of this worker has begun.
    begun: Vec<u64>,
    /// For each thread of the run, the number of its latest update that this worker has read.
    latest: Vec<u64>,
}

/// The printed result.
#[derive(Serialize, Debug)]
struct Outcome {
    app: &'static str,
    workload: Workload,
    nodes: usize,
    fabric: Option<&'static str>,
    keys: u64,
    value: u64,
    threads: u32,
    seconds: f64,
    operations: u64,
    operations_per_s: f64,
    reads: u64,
    updates: u64,
    read_p50_us: f64,
    read_p99_us: f64,
    update_p50_us: Option<f64>,
    update_p99_us: Option<f64>,
    waits_for_directory: u64,
    verified: bool,
}

/// Skew of the keys, as in YCSB.
const EXPONENT: f64 = 0.99;
/// The functions of the shards.
const FUNCTION: Function = Function(0x6b76_0000);

pub fn run(dir: Option<&Path>, args: &YcsbArgs) -> anyhow::Result<()> {
    let value = args.value.0;
    if !(VALUE_BYTES_MIN..=VALUE_BYTES_MAX as u64).contains(&value) {
        let message = format!(
            "--value {value} is out of range: a value has {VALUE_BYTES_MIN} to {VALUE_BYTES_MAX} bytes"
        );
        return Err(output::UsageError(message).into());
    }
    shards::check(&args.cluster)?;
    let outcome = WorkerPool::start(dir, &args.cluster)?.run(|pool| coordinate(pool, dir.is_none(), args))?;
    print_outcome(&outcome, args.cluster.json)?;
    if !outcome.verified {
        bail!("store verification failed: a value is missing, or differs from the one that was set");
    }
    Ok(())
}

fn coordinate(pool: &mut WorkerPool, is_own: bool, args: &YcsbArgs) -> anyhow::Result<Outcome> {
    let name = super::run_name(args.name.as_deref(), "ycsb");
    pool.claim(&name)?;
    let workers = pool.len();
    let mut nodes = Vec::new();
    for number in 0..workers {
        let threads = (0..u64::from(args.threads)).filter(|thread| *thread as usize % workers == number);
        let task = Task {
            name: name.clone(),
            number,
            workers,
            workload: args.workload,
            keys: args.keys,
            value: args.value.0 as usize,
            threads: threads.collect(),
            threads_in_all: args.threads,
            ns: (args.seconds * 1e9) as u64,
        };
        // Each worker creates its shard and returns its node.
        nodes.push(pool.request::<u32>(number, &Request::Task(worker::Task::Ycsb(task)))?);
        pool.set_regions_name(&name);
    }
    // The first worker must create the store before the others open it.
    for number in 0..workers {
        pool.request::<()>(number, &Request::Nodes(nodes.clone()))?;
    }
    // No worker may measure before all have filled the store.
    pool.send_all(&Request::Go)?;
    pool.receive_all::<()>()?;
    let bar = progress::time_bar(args.seconds, "measuring");
    pool.send_all(&Request::Go)?;
    let done: Vec<Done> = pool.receive_all_noting(|text| bar.note(text))?;
    drop(bar);
    pool.request::<()>(0, &Request::Clear)?;
    let sum = |of: fn(&Done) -> u64| done.iter().map(of).sum::<u64>();
    let worst = |of: fn(&Done) -> u64| done.iter().map(of).max().unwrap_or(0) as f64 / 1e3;
    let (reads, updates) = (sum(|done| done.reads), sum(|done| done.updates));
    let ns = done.iter().map(|done| done.ns).max().unwrap_or(1).max(1);
    let has_updates = args.workload != Workload::C;
    let keys = done.iter().find_map(|done| done.keys);
    let mut latest = Latest::new(args.threads);
    done.iter().for_each(|done| latest.merge(&done.latest));
    let begun = |thread: usize| done[thread % workers].begun[thread / workers];
    let are_begun = latest.numbers().iter().enumerate().all(|(thread, number)| *number <= begun(thread));
    Ok(Outcome {
        app: "ycsb",
        workload: args.workload,
        nodes: workers,
        fabric: is_own.then(|| args.cluster.fabric().name()),
        keys: args.keys,
        value: args.value.0,
        threads: args.threads,
        seconds: ns as f64 / 1e9,
        operations: reads + updates,
        operations_per_s: (reads + updates) as f64 * 1e9 / ns as f64,
        reads,
        updates,
        read_p50_us: worst(|done| done.read_ns[0]),
        read_p99_us: worst(|done| done.read_ns[1]),
        update_p50_us: has_updates.then(|| worst(|done| done.update_ns[0])),
        update_p99_us: has_updates.then(|| worst(|done| done.update_ns[1])),
        waits_for_directory: sum(|done| done.directory_waits),
        verified: sum(|done| done.errors) == 0 && keys == Some(args.keys) && are_begun,
    })
}

fn print_outcome(outcome: &Outcome, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return Ok(output::print_json(outcome)?);
    }
    let mut text = format!(
        "operations        {}\noperations_per_s  {:.0}\nread_us           {:.1} (p50) {:.1} (p99)\n",
        outcome.operations, outcome.operations_per_s, outcome.read_p50_us, outcome.read_p99_us
    );
    if let Some((p50, p99)) = outcome.update_p50_us.zip(outcome.update_p99_us) {
        text += &format!("update_us         {p50:.1} (p50) {p99:.1} (p99)\n");
    }
    text += &format!("verified          {}\n", if outcome.verified { "yes" } else { "NO" });
    Ok(output::print(&text)?)
}

// The workers' side.

/// Executes the task of a worker, and reports the result to the parent process.
pub fn work(worker: &Worker, task: &Task) -> anyhow::Result<()> {
    let &Task { number, .. } = task;
    let shard = Shard {
        name: &task.name,
        number,
        functions: FUNCTION,
        is_replacement: false,
        outlives_memory: false,
    };
    shards::serve_during(worker, &shard, shards::clock(), |_| run_task(worker, task))
}

fn run_task(worker: &Worker, task: &Task) -> anyhow::Result<()> {
    let session = &worker.session;
    reply(&worker.node.0)?;
    let Some(Request::Nodes(nodes)) = worker.next() else { return parent_ended() };
    let nodes: Vec<NodeId> = nodes.into_iter().map(NodeId).collect();
    if task.number == 0 {
        let creating = Store::create(session.as_async(), &task.name, &nodes, FUNCTION, Permissions::empty());
        session.block_on(creating).with_context(|| format!("cannot create the store {:?}", task.name))?;
    }
    let mut store = open(session, task)?;
    reply(&())?;
    worker.wait_for_go()?;
    fill(worker, task, &mut store)?;
    reply(&())?;
    worker.wait_for_go()?;
    let is_over = worker.is_over();
    let known = match task.workload {
        Workload::C => Known::without_updates(),
        _ => Known::new(task.threads_in_all, &task.threads, task.keys),
    };
    let threads = std::thread::scope(|scope| {
        let run = |thread| run_operations(session, task, thread, &known, is_over);
        let works = task.threads.iter().map(|thread| move || run(*thread));
        threads::start_all(scope, works)?
            .into_iter()
            .map(threads::Member::join)
            .collect::<anyhow::Result<Vec<_>>>()
    })?;
    let keys = if task.number == 0 { Some(session.block_on(store.count())?) } else { None };
    reply(&Counts::merge(threads, keys, task, &known)?)?;
    // The shard must stay until all workers have finished reading.
    if let Some(Request::Clear) = worker.next() {
        reply(&())?;
    }
    while worker.next().is_some() {}
    Ok(())
}

fn open(session: &blocking::Session, task: &Task) -> anyhow::Result<Store> {
    Ok(session.block_on(Store::open(session.as_async(), &task.name))?)
}

/// Sets this worker's part of the keys.
fn fill(worker: &Worker, task: &Task, store: &mut Store) -> anyhow::Result<()> {
    let mut value = vec![0; task.value];
    let mut outage = Outage::new(worker.is_over());
    for key in (task.number as u64..task.keys).step_by(task.workers) {
        if worker.is_over().load(Ordering::Relaxed) {
            return parent_ended();
        }
        write_value(&mut value, key, Update::default());
        let set = outage
            .retry(|| worker.session.block_on(store.set(&format_key(key), &value, SetOptions::default())));
        set.with_context(|| format!("cannot set key {key}"))?;
    }
    Ok(())
}

/// Returns a key with YCSB's format.
fn format_key(key: u64) -> Vec<u8> {
    format!("user{key:012}").into_bytes()
}

/// Result of one thread.
struct Counts {
    reads: Histogram<u64>,
    updates: Histogram<u64>,
    errors: u64,
    ns: u64,
    directory_waits: u64,
    latest: Latest,
}

/// Maximum latency that is recorded, in ns.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

impl Counts {
    fn new(task: &Task) -> anyhow::Result<Counts> {
        let histogram = || Histogram::new_with_max(LATENCY_NS_MAX, 3);
        let latest = Latest::new(task.threads_in_all);
        Ok(Counts {
            reads: histogram()?,
            updates: histogram()?,
            errors: 0,
            ns: 0,
            directory_waits: 0,
            latest,
        })
    }

    fn merge(threads: Vec<Counts>, keys: Option<u64>, task: &Task, known: &Known) -> anyhow::Result<Done> {
        let mut all = Counts::new(task)?;
        for thread in threads {
            all.reads.add(&thread.reads)?;
            all.updates.add(&thread.updates)?;
            all.errors += thread.errors;
            all.ns = all.ns.max(thread.ns);
            all.directory_waits += thread.directory_waits;
            all.latest.merge(thread.latest.numbers());
        }
        let quantiles =
            |times: &Histogram<u64>| [0.5, 0.99].map(|quantile| times.value_at_quantile(quantile));
        Ok(Done {
            reads: all.reads.len(),
            updates: all.updates.len(),
            errors: all.errors,
            ns: all.ns,
            read_ns: quantiles(&all.reads),
            update_ns: quantiles(&all.updates),
            keys,
            directory_waits: all.directory_waits,
            begun: task.threads.iter().map(|thread| known.updates_begun(*thread)).collect(),
            latest: all.latest.numbers().to_vec(),
        })
    }
}

/// Reads and updates values until the time is over.
fn run_operations(
    session: &blocking::Session,
    task: &Task,
    thread: u64,
    known: &Known,
    is_over: &AtomicBool,
) -> anyhow::Result<Counts> {
    let mut outage = Outage::new(is_over);
    let mut store = open(session, task)?;
    let mut counts = Counts::new(task)?;
    let mut random = Pcg64Mcg::seed_from_u64(thread);
    let popular = Zipf::new(task.keys as f64, EXPONENT).context("cannot create the distribution of keys")?;
    let (mut value, mut found) = (vec![0; task.value], Vec::new());
    let limit = Duration::from_nanos(task.ns);
    let begin = Instant::now();
    let mut last = begin;
    loop {
        // The hash of the rank spreads popular keys over the key space.
        let rank = popular.sample(&mut random) as u64 - 1;
        let key = fastrand::Rng::with_seed(rank).u64(..task.keys);
        let is_update = random.next_u32() % 1000 < task.workload.updates_per_mille();
        if is_update {
            let update = known.begin_update(thread);
            write_value(&mut value, key, update);
            let set =
                outage.retry(|| session.block_on(store.set(&format_key(key), &value, SetOptions::default())));
            counts.errors += u64::from(!set.with_context(|| format!("cannot set key {key}"))?);
            known.record(key, update);
        } else {
            let before = known.before(key);
            let got = outage.retry(|| session.block_on(store.get_into(&format_key(key), &mut found)));
            let is_there = got.with_context(|| format!("cannot get key {key}"))?;
            match known.check(&found, key, task.value, before).filter(|_| is_there) {
                Some(update) => counts.latest.record(update),
                None => counts.errors += 1,
            }
        }
        let now = Instant::now();
        let times = if is_update { &mut counts.updates } else { &mut counts.reads };
        times.saturating_record((now - last).as_nanos() as u64);
        last = now;
        if now - begin >= limit || is_over.load(Ordering::Relaxed) {
            counts.ns = (now - begin).as_nanos() as u64;
            counts.directory_waits = outage.waits;
            return Ok(counts);
        }
    }
}
