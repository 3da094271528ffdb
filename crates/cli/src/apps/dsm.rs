//! `halite run dsm`: measures shared pages, and checks counters that all workers change.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use halite_apps::dsm::{Access, Dsm, DsmError, Options};
use serde::{Deserialize, Serialize};

use super::ClusterArgs;
use super::pool::WorkerPool;
use super::worker::{self, Request, Worker, reply};
use crate::{output, progress};

/// Arguments of `halite run dsm`
#[derive(Args, Clone, Debug)]
pub struct DsmArgs {
    /// Number of shared pages
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(PAGES_MIN..=1 << 24))]
    pages: u32,
    /// Number of sections that each process acquires to change counters
    #[arg(long, default_value_t = 1000)]
    rounds: u64,
    /// Name of the run's regions, which are removed at the end [default: halite-run-dsm- and a random number]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
}

/// Minimum number of pages: room for the counters of 64 workers, and for the pages of a measured section.
const PAGES_MIN: i64 = 128;

/// Pages with a counter that all workers add to.
const SHARED_PAGES: u64 = 8;

/// Pages that a measured section changes, as in LITE's measurement.
const DIRTY_PAGES: u64 = 10;

/// Number of passes, each of which changes all pages and then reads them. The first pass is not measured, because it
/// maps the memory.
const PASSES: u64 = 4;

/// Number of measured sections.
const SECTIONS: u64 = 300;

/// Published by LITE (SOSP 2017) for InfiniBand, in us.
const PUBLISHED: Latencies<f64> =
    Latencies { read_random: 12.6, read_sequential: 17.2, begin: 9.2, commit: 74.3 };

/// The task of one worker.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Task {
    pub(super) name: String,
    worker: usize,
    workers: usize,
    pages: usize,
    rounds: u64,
}

/// Latencies in us: of the read of a page from its home, of acquiring a section that writes, and of releasing it.
#[derive(Serialize, Deserialize, Clone, Copy, Default, Debug)]
struct Latencies<T> {
    read_random: T,
    read_sequential: T,
    begin: T,
    commit: T,
}

#[derive(Serialize, Deserialize, Clone, Copy, Default, Debug)]
struct Quantiles {
    samples: usize,
    p50: f64,
    p99: f64,
}

/// A worker's part of the result.
#[derive(Serialize, Deserialize, Clone, Debug)]
struct Part {
    /// The latencies; `None` unless this is the first worker, which measures them.
    latencies: Option<Latencies<Quantiles>>,
    verified: bool,
}

/// The printed result.
#[derive(Serialize, Debug)]
struct Outcome {
    app: &'static str,
    nodes: usize,
    fabric: Option<&'static str>,
    pages: u32,
    sections: u64,
    seconds: f64,
    latencies_us: Latencies<Quantiles>,
    published_us: Latencies<f64>,
    verified: bool,
}

pub fn run(dir: Option<&Path>, args: &DsmArgs) -> anyhow::Result<()> {
    let outcome = WorkerPool::start(dir, &args.cluster)?.run(|pool| coordinate(pool, dir, args))?;
    if args.cluster.json {
        output::print_json(&outcome)?;
    } else {
        output::print(&format_outcome(&outcome))?;
    }
    if !outcome.verified {
        bail!("the result is wrong: a page or a counter has lost an update");
    }
    Ok(())
}

fn coordinate(pool: &mut WorkerPool, dir: Option<&Path>, args: &DsmArgs) -> anyhow::Result<Outcome> {
    let name = super::run_name(args.name.as_deref(), "dsm");
    pool.claim(&name)?;
    pool.free_when_stopped(&name)?;
    let workers = pool.len();
    for worker in 0..workers {
        let (name, pages) = (name.clone(), args.pages as usize);
        let task = Task { name, worker, workers, pages, rounds: args.rounds };
        pool.request::<()>(worker, &Request::Task(worker::Task::Dsm(task)))?;
    }
    let begin = Instant::now();
    let spinner = progress::spinner("sharing pages");
    pool.send_all(&Request::Go)?;
    let parts: Vec<Part> = pool.receive_all()?;
    spinner.finish_and_clear();
    Ok(Outcome {
        app: "dsm",
        nodes: workers,
        fabric: dir.is_none().then(|| args.cluster.fabric().name()),
        pages: args.pages,
        sections: 2 * args.rounds * workers as u64,
        seconds: begin.elapsed().as_secs_f64(),
        latencies_us: parts.iter().find_map(|part| part.latencies).unwrap_or_default(),
        published_us: PUBLISHED,
        verified: parts.iter().all(|part| part.verified),
    })
}

fn format_outcome(outcome: &Outcome) -> String {
    let (own, lite) = (&outcome.latencies_us, &outcome.published_us);
    let mut text = format!("{:<24}{:>10}{:>10}{:>18}\n", "latency in us", "p50", "p99", "LITE, published");
    for (what, spread, published) in [
        ("read a page, random", own.read_random, lite.read_random),
        ("read a page, sequential", own.read_sequential, lite.read_sequential),
        ("begin, 10 pages", own.begin, lite.begin),
        ("commit, 10 dirty pages", own.commit, lite.commit),
    ] {
        text += &format!("{what:<24}{:>10.1}{:>10.1}{published:>18.1}\n", spread.p50, spread.p99);
    }
    let verified = if outcome.verified { "yes" } else { "NO" };
    text + &format!(
        "sections  {}\nseconds   {:.3}\nverified  {verified}\n",
        outcome.sections, outcome.seconds
    )
}

/// Maximum time that workers wait for each other. The end of a worker ends the run sooner.
const WAIT_TIMEOUT: Duration = Duration::from_secs(3600);

/// Executes the task of a worker, and reports the result to the parent process.
pub fn work(worker: &Worker, task: &Task) -> anyhow::Result<()> {
    reply(&())?;
    worker.wait_for_go()?;
    let Task { name, worker: me, workers, pages, .. } = task.clone();
    let dsm = Dsm::open(&worker.session, Options { name, me, workers, pages, patience: WAIT_TIMEOUT })?;
    let (latencies, are_pages_right) = measure(&dsm, task)?;
    let are_counters_right = check_counters(&dsm, task)?;
    dsm.close()?;
    reply(&Part { latencies, verified: are_pages_right && are_counters_right })
}

/// Measures latencies at the first worker. Returns false if a page did not hold the last stored value.
fn measure(dsm: &Dsm, task: &Task) -> Result<(Option<Latencies<Quantiles>>, bool), DsmError> {
    let mut samples = Latencies::<Vec<f64>>::default();
    let mut is_right = true;
    for pass in 1..=PASSES {
        // The last worker stores, so that the first one has no copies.
        if task.worker + 1 == task.workers {
            store_pass(dsm, task, pass)?;
        }
        dsm.meet()?;
        if task.worker == 0 {
            is_right &= read_pages(dsm, task, pass, &mut samples)?;
        }
        dsm.meet()?;
    }
    if task.worker == 0 {
        for section in 0..SECTIONS {
            change_pages(dsm, section, &mut samples)?;
        }
        clear_counters(dsm)?;
    }
    dsm.meet()?;
    let latencies = (task.worker == 0).then(|| Latencies {
        read_random: quantiles(samples.read_random),
        read_sequential: quantiles(samples.read_sequential),
        begin: quantiles(samples.begin),
        commit: quantiles(samples.commit),
    });
    Ok((latencies, is_right))
}

/// Stores the pass in each page.
fn store_pass(dsm: &Dsm, task: &Task, pass: u64) -> Result<(), DsmError> {
    let section = dsm.acquire(0..dsm.len(), Access::Write)?;
    for page in 0..task.pages as u64 {
        dsm.store_u64(page * dsm.page_bytes(), pass)?;
    }
    section.release()
}

/// Reads the pages of the lower half in order, and those of the upper half in random order. Measures the reads of pages
/// whose home is another worker.
fn read_pages(
    dsm: &Dsm,
    task: &Task,
    pass: u64,
    samples: &mut Latencies<Vec<f64>>,
) -> Result<bool, DsmError> {
    let half = task.pages as u64 / 2;
    let mut random: Vec<u64> = (half..task.pages as u64).collect();
    fastrand::Rng::with_seed(pass).shuffle(&mut random);
    let mut is_right = true;
    let section = dsm.acquire(0..dsm.len(), Access::Read)?;
    for (pages, times) in
        [((0..half).collect(), &mut samples.read_sequential), (random, &mut samples.read_random)]
    {
        for page in pages {
            let begin = Instant::now();
            is_right &= dsm.load_u64(page * dsm.page_bytes())? == pass;
            let is_remote = page % task.workers as u64 != task.worker as u64 || task.workers == 1;
            if is_remote && pass > 1 {
                times.push(us_since(begin));
            }
        }
    }
    section.release()?;
    Ok(is_right)
}

/// Measures how long a section that changes some pages takes to acquire and to release.
fn change_pages(dsm: &Dsm, section: u64, samples: &mut Latencies<Vec<f64>>) -> Result<(), DsmError> {
    let begin = Instant::now();
    let held = dsm.acquire(0..DIRTY_PAGES * dsm.page_bytes(), Access::Write)?;
    samples.begin.push(us_since(begin));
    for page in 0..DIRTY_PAGES {
        dsm.store_u64(page * dsm.page_bytes(), section)?;
    }
    let begin = Instant::now();
    held.release()?;
    samples.commit.push(us_since(begin));
    Ok(())
}

/// Stores zero in the counters' pages.
fn clear_counters(dsm: &Dsm) -> Result<(), DsmError> {
    let section = dsm.acquire(0..PAGES_MIN as u64 * dsm.page_bytes(), Access::Write)?;
    for page in 0..PAGES_MIN as u64 {
        dsm.store_u64(page * dsm.page_bytes(), 0)?;
    }
    section.release()
}

/// Adds to random shared counters, and counts its additions in an own page. Returns true if each shared counter equals
/// the sum of the counts of all workers.
fn check_counters(dsm: &Dsm, task: &Task) -> Result<bool, DsmError> {
    let page_bytes = dsm.page_bytes();
    // Word 0 of an own page counts all rounds; those behind it count the rounds of each shared counter.
    let own_page = |worker: usize| (SHARED_PAGES + worker as u64) * page_bytes;
    let own = own_page(task.worker);
    let add = |at: u64| dsm.store_u64(at, dsm.load_u64(at)? + 1);
    let mut random = fastrand::Rng::with_seed(task.worker as u64);
    for _ in 0..task.rounds {
        let shared = random.u64(0..SHARED_PAGES);
        let section = dsm.acquire(shared * page_bytes..shared * page_bytes + 8, Access::Write)?;
        add(shared * page_bytes)?;
        section.release()?;
        let section = dsm.acquire(own..own + page_bytes, Access::Write)?;
        add(own)?;
        add(own + 8 * (1 + shared))?;
        section.release()?;
    }
    dsm.meet()?;
    let section = dsm.acquire(0..dsm.len(), Access::Read)?;
    let mut is_right = true;
    for shared in 0..SHARED_PAGES {
        let mut sum = 0;
        for worker in 0..task.workers {
            sum += dsm.load_u64(own_page(worker) + 8 * (1 + shared))?;
        }
        is_right &= dsm.load_u64(shared * page_bytes)? == sum;
    }
    for worker in 0..task.workers {
        is_right &= dsm.load_u64(own_page(worker))? == task.rounds;
    }
    section.release()?;
    Ok(is_right)
}

fn us_since(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e6
}

fn quantiles(mut samples: Vec<f64>) -> Quantiles {
    samples.sort_by(f64::total_cmp);
    let at = |part: f64| samples.get((samples.len() as f64 * part) as usize).copied().unwrap_or(0.0);
    Quantiles { samples: samples.len(), p50: at(0.5), p99: at(0.99) }
}
