//! `halite run wordcount` and `halite run grep`: MapReduce jobs over files.
//!
//! Worker 0 also runs the master, on a separate thread. If another worker is killed, the run continues without that
//! worker.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use halite::NodeId;
use halite_apps::mapreduce::grep::{FileMatches, Grep};
use halite_apps::mapreduce::input::Source;
use halite_apps::mapreduce::words::{Counted, WordCount};
use halite_apps::mapreduce::{self as mr, Desk, Error, HostClock, Job, Master, Phases, Progress};
use indicatif::ProgressFinish;
use serde::{Deserialize, Serialize};

use super::ClusterArgs;
use super::pool::WorkerPool;
use super::worker::{self, Request, Worker, reply, reply_failure};
use crate::{output, progress, threads};

/// Arguments of `halite run wordcount`
#[derive(Args, Clone, Debug)]
pub struct WordcountArgs {
    /// Files and folders to read
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Number of words to print, most frequent first
    #[arg(long, default_value_t = 10, value_name = "K")]
    top: u32,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
}

/// Arguments of `halite run grep`
#[derive(Args, Clone, Debug)]
pub struct GrepArgs {
    /// A regular expression in the syntax of the Rust crate `regex`
    pattern: String,
    /// Files and folders to read
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Maximum number of matching lines to print; all matching lines are counted
    #[arg(long, default_value_t = 1000, value_name = "N")]
    lines: u32,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
}

/// The task of one worker.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Task {
    /// Unique name of the run. The master serves under this name, and the names of the run's regions begin with it.
    pub(super) run: String,
    number: u32,
    nodes: Vec<u32>,
    job: JobArgs,
    /// The input, as bytes, since paths need not be UTF-8; for the worker with the master only.
    paths: Vec<Vec<u8>>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
enum JobArgs {
    Wordcount { top: usize },
    Grep { pattern: String, lines: usize },
}

/// A message of the worker that runs the master.
#[derive(Serialize, Deserialize, Debug)]
enum Event {
    Progress(Progress),
    Done(Done),
}

/// The result of a run.
#[derive(Serialize, Deserialize, Debug)]
struct Done {
    found: Found,
    seconds: f64,
    phases: Phases,
    files: usize,
    bytes: u64,
    weight: u64,
    keys: u64,
    lost: u32,
    verified: bool,
}

/// The answer of a job, for the user.
#[derive(Serialize, Deserialize, Debug)]
enum Found {
    Words(Vec<(String, u64)>),
    Files(Vec<FileFound>),
}

/// A file with matching lines.
#[derive(Serialize, Deserialize, Debug)]
struct FileFound {
    path: String,
    matches: u64,
    /// Line numbers and texts of the first matching lines.
    lines: Vec<(u64, String)>,
}

/// The results that are printed for every job.
#[derive(Serialize, Debug)]
struct Common {
    app: &'static str,
    seconds: f64,
    phases: Phases,
    nodes: u32,
    fabric: Option<&'static str>,
    lost_workers: u32,
    files: usize,
    bytes: u64,
    verified: bool,
}

/// The printed result of `halite run wordcount`.
#[derive(Serialize, Debug)]
struct PrintedWords<'a> {
    #[serde(flatten)]
    common: Common,
    words: u64,
    distinct: u64,
    top: &'a [(String, u64)],
}

/// The printed result of `halite run grep`.
#[derive(Serialize, Debug)]
struct PrintedMatches<'a> {
    #[serde(flatten)]
    common: Common,
    matches: u64,
    /// Path of each file with matches, and its number of matches.
    matches_by_file: Vec<(&'a str, u64)>,
}

/// Interval between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

pub fn run_wordcount(dir: Option<&Path>, args: &WordcountArgs) -> anyhow::Result<()> {
    let done = coordinate(
        dir,
        &args.cluster,
        "wordcount",
        &args.paths,
        &JobArgs::Wordcount { top: args.top as usize },
    )?;
    let Found::Words(top) = &done.found else { bail!("a worker answered for another job") };
    if args.cluster.json {
        let common = common_results("wordcount", &done, dir.is_none(), &args.cluster);
        output::print_json(&PrintedWords { common, words: done.weight, distinct: done.keys, top })?;
    } else {
        let mut text = String::new();
        for (word, count) in top {
            text += &format!("{count:>12}  {word}\n");
        }
        text += &format!("words     {}\ndistinct  {}\n", done.weight, done.keys);
        output::print(&(text + &footer(&done)))?;
    }
    check_verified(&done)
}

pub fn run_grep(dir: Option<&Path>, args: &GrepArgs) -> anyhow::Result<()> {
    Grep::new(&args.pattern, 0).map_err(|error| output::UsageError(format!("PATTERN: {error}")))?;
    let job = JobArgs::Grep { pattern: args.pattern.clone(), lines: args.lines as usize };
    let done = coordinate(dir, &args.cluster, "grep", &args.paths, &job)?;
    let Found::Files(found) = &done.found else { bail!("a worker answered for another job") };
    if args.cluster.json {
        let common = common_results("grep", &done, dir.is_none(), &args.cluster);
        let matches_by_file = found.iter().map(|file| (&*file.path, file.matches)).collect();
        output::print_json(&PrintedMatches { common, matches: done.weight, matches_by_file })?;
    } else {
        let mut text = String::new();
        for FileFound { path, lines, .. } in found {
            text.extend(lines.iter().map(|(number, line)| format!("{path}:{number}:{line}\n")));
        }
        let shown: usize = found.iter().map(|file| file.lines.len()).sum();
        let more = done.weight - shown as u64;
        if more > 0 {
            text += &format!("... and {more} more lines; --lines N prints more\n");
        }
        text += &format!("matches   {} in {} of {} files\n", done.weight, found.len(), done.files);
        output::print(&(text + &footer(&done)))?;
    }
    check_verified(&done)
}

fn common_results(app: &'static str, done: &Done, is_own: bool, cluster: &ClusterArgs) -> Common {
    Common {
        app,
        seconds: done.seconds,
        phases: done.phases,
        nodes: cluster.nodes,
        fabric: is_own.then(|| cluster.fabric().name()),
        lost_workers: done.lost,
        files: done.files,
        bytes: done.bytes,
        verified: done.verified,
    }
}

fn footer(done: &Done) -> String {
    let verified = if done.verified { "yes" } else { "NO" };
    format!("bytes     {}\nseconds   {:.3}\nverified  {verified}\n", done.bytes, done.seconds)
}

fn check_verified(done: &Done) -> anyhow::Result<()> {
    if !done.verified {
        bail!(
            "verification failed: the reducers' sum differs from the mappers', or a file changed meanwhile"
        );
    }
    Ok(())
}

fn coordinate(
    dir: Option<&Path>,
    cluster: &ClusterArgs,
    app: &str,
    paths: &[PathBuf],
    job: &JobArgs,
) -> anyhow::Result<Done> {
    let run = super::run_name(None, app);
    WorkerPool::start_fault_tolerant(dir, cluster)?.run(|pool| {
        pool.claim(&run)?;
        for number in 0..pool.len() {
            let paths =
                paths.iter().filter(|_| number == 0).map(|path| path.as_os_str().as_bytes().to_owned());
            let task = Task {
                run: run.clone(),
                number: number as u32,
                nodes: pool.nodes.clone(),
                job: job.clone(),
                paths: paths.collect(),
            };
            // The master must serve before other workers ask. It finds out by itself which workers have ended.
            let _killed =
                pool.request_unless_killed::<()>(number, &Request::Task(worker::Task::MapReduce(task)))?;
            pool.set_regions_name(&run);
        }
        let done = show_progress(pool)?;
        pool.remove_ended();
        Ok(done)
    })
}

/// Shows the progress of a run, and returns its result.
fn show_progress(pool: &mut WorkerPool) -> anyhow::Result<Done> {
    let mut bar = None;
    loop {
        match pool.receive_from(0)? {
            Event::Progress(Progress { bytes, bytes_total }) => {
                let bar = bar.get_or_insert_with(|| {
                    progress::bar(bytes_total, "mapping").with_finish(ProgressFinish::AndClear)
                });
                bar.set_position(bytes);
            }
            Event::Done(mut done) => {
                drop(bar);
                done.lost += pool.never_joined;
                if done.lost > 0 {
                    output::note(&format!("{} worker(s) ended early; the others did their work", done.lost));
                }
                return Ok(done);
            }
        }
    }
}

// The workers' side.

/// Executes the task of a worker, and reports the result to the parent process.
pub fn work(worker: &Worker, task: &Task) -> anyhow::Result<()> {
    match &task.job {
        JobArgs::Wordcount { top } => run_job(worker, task, &WordCount { top: *top }, found_words),
        JobArgs::Grep { pattern, lines } => run_job(worker, task, &Grep::new(pattern, *lines)?, found_files),
    }
}

fn found_words(records: Vec<Counted>, _: &[Source]) -> Found {
    Found::Words(records.into_iter().map(|counted| (counted.word, counted.count.0)).collect())
}

fn found_files(records: Vec<FileMatches>, sources: &[Source]) -> Found {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let found = |file: FileMatches| FileFound {
        path: text(sources[file.file as usize].path.as_os_str().as_bytes()),
        matches: file.matches,
        lines: file.lines.iter().map(|line| (line.number, text(&line.bytes))).collect(),
    };
    Found::Files(records.into_iter().map(found).collect())
}

fn run_job<J: Job>(
    worker: &Worker,
    task: &Task,
    job: &J,
    find: fn(Vec<J::Record>, &[Source]) -> Found,
) -> anyhow::Result<()> {
    let nodes: Vec<NodeId> = task.nodes.iter().copied().map(NodeId).collect();
    let (blocking, clock) = (&worker.session, HostClock::default());
    let session = blocking.as_async();
    let mr_worker = mr::Worker {
        session,
        run: &task.run,
        number: task.number,
        workers: nodes.len() as u32,
        is_over: worker.is_over(),
        clock: &clock,
    };
    if task.number > 0 {
        reply(&())?;
        return exit_without_master(blocking.block_on(mr_worker.work(job)));
    }
    let desk = blocking.block_on(Desk::open(session, &task.run))?;
    reply(&())?;
    let master = Master { session, desk: &desk, nodes: &nodes, clock: &clock };
    let paths: Vec<PathBuf> = task.paths.iter().map(|path| OsStr::from_bytes(path).into()).collect();
    std::thread::scope(|scope| {
        let master_thread =
            threads::spawn_in(scope, || blocking.block_on(master.lead(job, &paths, report_progress())))?;
        let worked = blocking.block_on(mr_worker.work(job));
        // The master ends its worker last, unless the worker has failed.
        desk.close();
        let led = master_thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let outcome = led?;
        worked?;
        reply(&Event::Done(Done {
            seconds: outcome.phases.sum(),
            phases: outcome.phases,
            files: outcome.sources.len(),
            bytes: outcome.bytes,
            weight: outcome.weight,
            keys: outcome.keys,
            lost: outcome.lost,
            verified: outcome.verified,
            found: find(outcome.records, &outcome.sources),
        }))
    })
}

/// Ends the process of a worker that does not reach the master. While the worker's node runs, the master would wait for
/// its results.
fn exit_without_master(worked: Result<(), Error>) -> anyhow::Result<()> {
    match worked {
        Err(error @ Error::NoMaster(_)) => {
            // The parent process notices the exit status in any case; the message is optional.
            let _ = reply_failure(&error.into());
            std::process::exit(1);
        }
        Err(Error::Stopped) => Ok(()),
        worked => Ok(worked?),
    }
}

/// Returns a function that reports progress to the parent process, but not too often.
fn report_progress() -> impl FnMut(Progress) {
    let mut last = Instant::now();
    move |progress| {
        if last.elapsed() >= PROGRESS_INTERVAL {
            last = Instant::now();
            // If the parent process has ended, so will this one.
            let _ = reply(&Event::Progress(progress));
        }
    }
}
