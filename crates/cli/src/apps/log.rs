//! `halite run log`: writers append, readers follow and verify, and segments that all readers have passed are freed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use halite::{Config, Lh, NodeId, Permissions, Placement, RegionCause, RegionError, blocking};
use halite_apps::log::{Entry, Follower, Log, LogError, Options, Writer};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::ClusterArgs;
use super::outage::{self, Outage};
use super::pool::WorkerPool;
use super::worker::{self, Request, Worker, now_ns, reply, report_failure};
use crate::bytes::ByteCount;
use crate::output;
use crate::progress;
use crate::threads::{self, Member};

/// Arguments of `halite run log`
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// Writer threads, distributed over the processes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    writers: u32,
    /// Follower threads; with 0, the log is checked after the writers end
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=1024))]
    readers: u32,
    /// Bytes per record, at least 16
    #[arg(long, default_value = "16", value_name = "BYTES")]
    size: ByteCount,
    /// Duration of the run
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS", value_parser = super::parse_seconds)]
    seconds: f64,
    /// Slots that a writer reserves at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    batch: u64,
    /// Records per append call; each becomes visible separately
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    together: u32,
    /// Bytes per segment; a segment is freed when all readers have passed it
    #[arg(long, default_value = "4M", value_name = "BYTES")]
    segment: ByteCount,
    /// Name of the log, which is removed at the end [default: halite-run-log- and a random number]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
}

/// The task of one worker.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Task {
    pub(super) name: String,
    /// Geometry of the log, for the worker that creates it; `None` for others.
    segments: Option<Segments>,
    writers: Vec<u64>,
    readers: Vec<u64>,
    readers_in_all: u64,
    writers_in_all: u64,
    size: usize,
    ns: u64,
    batch: u64,
    together: usize,
}

/// Geometry of a log.
#[derive(Serialize, Deserialize, Clone, Debug)]
struct Segments {
    slot_bytes: u64,
    segment_slots: u64,
}

/// Result of one writer.
#[derive(Serialize, Deserialize, Clone, Copy, Default, Debug)]
struct Written {
    commits: u64,
    /// Checksum of the records and their positions.
    sum: u64,
    /// Position after the last record.
    end: u64,
    ns: u64,
    /// Number of waits for memory.
    waits: u64,
    /// Number of waits for the directory of names.
    directory_waits: u64,
}

/// Result of one reader.
#[derive(Serialize, Deserialize, Clone, Debug)]
struct Seen {
    /// Number of records of each writer.
    commits: Vec<u64>,
    /// Checksum of all records and their positions.
    sum: u64,
    /// Number of records that were altered or out of order.
    errors: u64,
    p50_ns: u64,
    p99_ns: u64,
    /// Number of waits for the directory of names.
    directory_waits: u64,
}

/// The printed result.
#[derive(Serialize, Debug)]
struct Outcome {
    app: &'static str,
    nodes: usize,
    fabric: Option<&'static str>,
    writers: u32,
    readers: u32,
    size: u64,
    batch: u64,
    together: u32,
    seconds: f64,
    commits: u64,
    commits_per_s: f64,
    bytes: u64,
    waits_for_memory: u64,
    waits_for_directory: u64,
    visible_p50_us: Option<f64>,
    visible_p99_us: Option<f64>,
    verified: bool,
}

const RECORD_BYTES_MIN: u64 = 16;
/// One in this many records carries the time of its write.
const RECORDS_PER_TIME: u64 = 64;
const SEGMENT_BYTES_MAX: u64 = 1 << 40;
/// Distance between the readers' positions in their region, in bytes: each has its own cache lines.
const PROGRESS_BYTES: u64 = 128;
/// Maximum length of a record in bytes: 1 MiB less the 8 bytes of the slot's word.
const RECORD_BYTES_MAX: u64 = (1 << 20) - 8;
const CALL_BYTES_MAX: u64 = 64 << 20;
/// Maximum time until freed memory is available again, beyond the lease for which a stopped process can delay this.
const FREE_DELAY_MAX: Duration = Duration::from_secs(3);
/// Maximum time until another writer has named the first segment. Until then, no memory can be freed.
const NAMING_DELAY_MAX: Duration = Duration::from_secs(1);

pub fn run(dir: Option<&Path>, args: &LogArgs) -> anyhow::Result<()> {
    check(args)?;
    let mut outcome = None;
    let result = WorkerPool::start(dir, &args.cluster)?.run(|pool| {
        outcome = Some(coordinate(pool, dir.is_none(), args)?);
        pool.request::<()>(0, &Request::Clear)
    });
    // The result is printed even if the removal failed.
    if let Some(outcome) = &outcome {
        print_outcome(outcome, args.cluster.json)?;
    }
    result?;
    if outcome.is_some_and(|outcome| !outcome.verified) {
        bail!(
            "log verification failed: a record is missing, repeated, altered, at the wrong position or out of its writer's order"
        );
    }
    Ok(())
}

/// Checks the flags against the limits of a log.
fn check(args: &LogArgs) -> Result<(), output::UsageError> {
    let refuse = |message| Err(output::UsageError(message));
    let (size, together, batch) = (args.size.0, u64::from(args.together), args.batch);
    if size < RECORD_BYTES_MIN {
        return refuse(format!("--size {size} is too small: a record has at least {RECORD_BYTES_MIN} bytes"));
    }
    if size > RECORD_BYTES_MAX {
        return refuse(format!("--size {size} is too large: a record has at most {RECORD_BYTES_MAX} bytes"));
    }
    if size * together > CALL_BYTES_MAX {
        let most = CALL_BYTES_MAX / size;
        return refuse(format!(
            "--together {together} is too large: one call appends at most {most} records of {size} bytes"
        ));
    }
    let Segments { slot_bytes, segment_slots: most } = segments(args);
    if !(slot_bytes..=SEGMENT_BYTES_MAX).contains(&args.segment.0) {
        return refuse(format!(
            "--segment {} is out of range: a segment has {slot_bytes} bytes (one slot) to {SEGMENT_BYTES_MAX}",
            args.segment.0
        ));
    }
    if batch > most {
        return refuse(format!(
            "--batch {batch} is too large: a segment has {most} slots for records of {size} bytes"
        ));
    }
    Ok(())
}

fn coordinate(pool: &mut WorkerPool, is_own: bool, args: &LogArgs) -> anyhow::Result<Outcome> {
    let name = super::run_name(args.name.as_deref(), "log");
    pool.claim(&name)?;
    let workers = pool.len();
    let size = args.size.0 as usize;
    let share = |count: u32, first: usize, number: usize| {
        (0..u64::from(count)).filter(|one| (*one as usize + first) % workers == number).collect()
    };
    for number in 0..workers {
        // The first worker must create the log before the others open it.
        let task = Task {
            name: name.clone(),
            segments: (number == 0).then(|| segments(args)),
            writers: share(args.writers, 0, number),
            // Readers are not on the first writer's worker, if there is another worker.
            readers: share(args.readers, 1, number),
            readers_in_all: args.readers.into(),
            writers_in_all: args.writers.into(),
            size,
            ns: (args.seconds * 1e9) as u64,
            batch: args.batch,
            together: args.together as usize,
        };
        pool.request::<()>(number, &Request::Task(worker::Task::Log(task)))?;
        pool.set_regions_name(&name);
    }
    let bar = progress::time_bar(args.seconds, "appending");
    pool.send_all(&Request::Go)?;
    let parts: Vec<Vec<Written>> = pool.receive_all_noting(|text| bar.note(text))?;
    drop(bar);
    let end = parts.iter().flatten().map(|written| written.end).max().unwrap_or(0);
    pool.send_all(&Request::End(end))?;
    let seen: Vec<Vec<Seen>> = pool.receive_all()?;
    let by_writer: Vec<Written> =
        (0..args.writers as usize).map(|one| parts[one % workers][one / workers]).collect();
    let seen: Vec<Seen> = seen.into_iter().flatten().collect();
    let expected: Vec<u64> = by_writer.iter().map(|written| written.commits).collect();
    let commits: u64 = expected.iter().sum();
    let sum = by_writer.iter().fold(0, |sum: u64, written| sum.wrapping_add(written.sum));
    // Positions increase, so equal counts and checksums mean that the reader saw the appended records, at their
    // positions and in order.
    let is_whole = |seen: &Seen| seen.errors == 0 && seen.commits == expected && seen.sum == sum;
    let ns = by_writer.iter().map(|written| written.ns).max().unwrap_or(1).max(1);
    let worst = |of: fn(&Seen) -> u64| seen.iter().map(of).max().map(|ns| ns as f64 / 1e3);
    let has_times = args.readers > 0;
    Ok(Outcome {
        app: "log",
        nodes: workers,
        fabric: is_own.then(|| args.cluster.fabric().name()),
        writers: args.writers,
        readers: args.readers,
        size: args.size.0,
        batch: args.batch,
        together: args.together,
        seconds: ns as f64 / 1e9,
        commits,
        commits_per_s: commits as f64 * 1e9 / ns as f64,
        bytes: commits * args.size.0,
        waits_for_memory: by_writer.iter().map(|written| written.waits).sum(),
        waits_for_directory: by_writer.iter().map(|written| written.directory_waits).sum::<u64>()
            + seen.iter().map(|seen| seen.directory_waits).sum::<u64>(),
        visible_p50_us: worst(|seen| seen.p50_ns).filter(|_| has_times),
        visible_p99_us: worst(|seen| seen.p99_ns).filter(|_| has_times),
        verified: !seen.is_empty() && seen.iter().all(is_whole),
    })
}

fn segments(args: &LogArgs) -> Segments {
    let slot = args.size.0 + 8;
    // A slot of at most a cache line must not cross one.
    let slot_bytes = if slot <= 64 { slot.next_power_of_two() } else { slot.next_multiple_of(64) };
    Segments { slot_bytes, segment_slots: args.segment.0 / slot_bytes }
}

fn print_outcome(outcome: &Outcome, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return Ok(output::print_json(outcome)?);
    }
    let mut text = format!(
        "commits        {}\ncommits_per_s  {:.0}\nbytes          {}\n",
        outcome.commits, outcome.commits_per_s, outcome.bytes
    );
    if let Some((p50, p99)) = outcome.visible_p50_us.zip(outcome.visible_p99_us) {
        text += &format!("visible_us     {p50:.1} (p50) {p99:.1} (p99)\n");
    }
    text += &format!("verified       {}\n", if outcome.verified { "yes" } else { "NO" });
    Ok(output::print(&text)?)
}

// The workers' side.

/// Suffix of the name of the region in which readers store their positions.
pub const PROGRESS: &str = ".progress";

/// The region in which readers store their positions.
struct Progress {
    session: blocking::Session,
    lh: Lh,
    readers: u64,
}

impl Progress {
    fn name(log: &str) -> String {
        format!("{log}{PROGRESS}")
    }

    fn open(session: &blocking::Session, task: &Task) -> anyhow::Result<Progress> {
        let (name, readers) = (Progress::name(&task.name), task.readers_in_all.max(1));
        let lh = if task.segments.is_some() {
            session.alloc(Some(&name), PROGRESS_BYTES * readers, Placement::Anywhere, Permissions::empty())?
        } else {
            session.map(&name, Permissions::READ | Permissions::WRITE)?
        };
        Ok(Progress { session: session.clone(), lh, readers })
    }

    fn store(&self, reader: u64, position: u64) -> anyhow::Result<()> {
        Ok(self.session.write(self.lh, PROGRESS_BYTES * reader, &position.to_le_bytes())?)
    }

    /// Returns the position of the slowest reader.
    fn min_position(&self) -> anyhow::Result<u64> {
        let mut min = u64::MAX;
        for reader in 0..self.readers {
            let mut word = [0; 8];
            self.session.read(self.lh, PROGRESS_BYTES * reader, &mut word)?;
            min = min.min(u64::from_le_bytes(word));
        }
        Ok(min)
    }
}

/// Executes the task of a worker, and reports the result to the parent process. The worker that created the log removes
/// it, even after a failure.
pub fn work(worker: &Worker, task: &Task) -> anyhow::Result<()> {
    let session = &worker.session;
    let Some(segments) = &task.segments else { return run_task(worker, task) };
    let options = Options {
        slot_bytes: segments.slot_bytes,
        segment_slots: segments.segment_slots,
        nodes: memory_nodes(session)?,
        everyone: Permissions::empty(),
    };
    let log = session.block_on(Log::create(session.as_async(), &task.name, &options));
    let log = log.with_context(|| format!("cannot create the log {:?}", task.name))?;
    let outcome = run_task(worker, task);
    let is_over = worker.is_over();
    let freed = outage::retry_removal(is_over, || session.block_on(log.clone().free()));
    let progress_freed = outage::retry_removal(is_over, || free_progress(session, &task.name));
    let removed = freed.map_err(anyhow::Error::from).and(progress_freed.map_err(anyhow::Error::from));
    let removed = removed.with_context(|| format!("cannot remove the log {:?}", task.name));
    if let (Err(_), Err(left)) = (&outcome, &removed)
        && worker::reply_failure(left).is_err()
    {
        // The parent process has ended, so this process reports the remaining regions.
        output::note(&output::error_chain(left));
    }
    outcome?;
    removed?;
    reply(&())
}

/// Returns the nodes that contribute memory.
fn memory_nodes(session: &blocking::Session) -> anyhow::Result<Vec<NodeId>> {
    let mut nodes: Vec<NodeId> =
        session.status()?.iter().filter(|node| node.bytes_total > 0).map(|node| node.node).collect();
    nodes.truncate(NODES_MAX);
    Ok(nodes)
}

/// Maximum number of nodes that hold the segments of a log.
const NODES_MAX: usize = 24;

fn free_progress(session: &blocking::Session, log: &str) -> Result<(), RegionError> {
    match session.map(&Progress::name(log), Permissions::MASTER) {
        Ok(lh) => session.free(lh),
        Err(error) if *error.cause() == RegionCause::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn run_task(worker: &Worker, task: &Task) -> anyhow::Result<()> {
    let (session, is_over) = (&worker.session, worker.is_over());
    let progress = Progress::open(session, task)?;
    reply(&())?;
    worker.wait_for_go()?;
    let (end, done) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
    let reader = |number| Reader { session, task, number, progress: &progress, end: &end, is_over };
    std::thread::scope(|scope| {
        let is_creator = task.segments.is_some();
        let mut group = threads::Group::new(scope);
        let trim = || report_failure(trim_until_done(session, task, &progress, &done, is_over));
        let trimmer = is_creator.then(|| group.add(trim)).transpose()?;
        let readers = task.readers.iter().map(|number| group.add(|| report_failure(read(&reader(*number)))));
        let readers = readers.collect::<Result<Vec<_>, _>>()?;
        let writers = task.writers.iter().map(|writer| {
            let writing = || report_failure(write(session, task, *writer, is_over));
            group.add(writing)
        });
        let writers = writers.collect::<Result<Vec<_>, _>>()?;
        group.begin();
        let written = writers.into_iter().map(Member::join).collect::<anyhow::Result<Vec<_>>>();
        let end_position = written.and_then(|written| report_written(worker, &written));
        // Readers only need the end; they must also stop after a failure.
        end.store(*end_position.as_ref().unwrap_or(&0), Ordering::Relaxed);
        let seen = readers.into_iter().map(Member::join).collect::<anyhow::Result<Vec<_>>>();
        let outcome = end_position.and(seen).and_then(|seen| report_seen(worker, seen, &reader(0)));
        done.store(true, Ordering::Relaxed);
        outcome.and(trimmer.map_or(Ok(()), Member::join))
    })
}

/// Reports this worker's writes; returns the position at which readers end.
fn report_written(worker: &Worker, written: &[Written]) -> anyhow::Result<u64> {
    reply(&written)?;
    match worker.next() {
        Some(Request::End(position)) => Ok(position),
        _ => worker::parent_ended(),
    }
}

/// Reports the readers' results. Without readers, the creator of the log reads it. It keeps the log until all have
/// ended.
fn report_seen(worker: &Worker, mut seen: Vec<Seen>, reader: &Reader<'_>) -> anyhow::Result<()> {
    let is_creator = reader.task.segments.is_some();
    if is_creator && reader.task.readers_in_all == 0 {
        seen.push(read(reader)?);
    }
    reply(&seen)?;
    if is_creator {
        worker.next();
    }
    Ok(())
}

/// A period in which there is no memory for the next segment.
#[derive(Debug, Default)]
struct Shortage {
    since: Option<Instant>,
}

impl Shortage {
    /// Fails if the segment at `first` has lacked memory for too long and no earlier segment remains to be freed.
    async fn check(&mut self, log: &Log, first: u64) -> Result<(), LogError> {
        if log.start().await? < first {
            self.since = None;
            return Ok(());
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let timeout = if first == 0 { NAMING_DELAY_MAX } else { Config::default().lease + FREE_DELAY_MAX };
        if since.elapsed() > timeout { Err(LogError::Full { first }) } else { Ok(()) }
    }
}

fn open(session: &blocking::Session, task: &Task) -> Result<Log, LogError> {
    session.block_on(Log::open(session.as_async(), &task.name))
}

/// Appends records until the time is over.
fn write(
    session: &blocking::Session,
    task: &Task,
    writer: u64,
    is_over: &AtomicBool,
) -> anyhow::Result<Written> {
    let mut outage = Outage::new(is_over);
    let mut log = Writer::new(outage.retry(|| open(session, task))?, task.batch);
    let begin = Instant::now();
    let limit = Duration::from_nanos(task.ns);
    let is_last = || begin.elapsed() >= limit || is_over.load(Ordering::Relaxed);
    let appending = async {
        let (mut written, mut shortage) = (Written::default(), Shortage::default());
        let mut records = vec![0; task.size * task.together];
        let mut positions = Vec::with_capacity(task.together);
        let mut timed = 0;
        // A clock reading takes a part of the time of an append, so most appends skip it.
        while written.commits < timed || !is_last() {
            let slices = fill_all(&mut records, task.size, writer, written.commits, &mut timed);
            let appended = match slices[..] {
                [record] => log.append(record).await.map(|position| positions.push(position)),
                _ => log.append_each(&slices, &mut positions).await,
            };
            written.commits += positions.len() as u64;
            for (position, record) in positions.iter().zip(&slices) {
                written.sum = written.sum.wrapping_add(sum_of(*position, record));
            }
            written.end = positions.last().map_or(written.end, |position| position + 1);
            positions.clear();
            match appended {
                Ok(()) => {
                    shortage.since = None;
                    outage.end();
                }
                // Without readers, nothing frees segments of the full log.
                Err(LogError::Full { first }) if first > 0 && (task.readers_in_all == 0 || is_last()) => {
                    break;
                }
                Err(LogError::Full { first }) => {
                    shortage.check(log.log(), first).await?;
                    written.waits += 1;
                    timed = written.commits;
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(LogError::NoDirectory(_)) if is_last() => break,
                Err(error) => {
                    outage.wait(error)?;
                    timed = written.commits;
                }
            }
        }
        Ok(Written { directory_waits: outage.waits, ..written })
    };
    let appended: Result<Written, LogError> = session.block_on(appending);
    let ns = begin.elapsed().as_nanos() as u64;
    let written = appended.with_context(|| format!("writer {writer} cannot append"))?;
    session.block_on(log.close())?;
    Ok(Written { ns, ..written })
}

/// Fills the records of one call, numbered from `first`. From `timed` on, one in `RECORDS_PER_TIME` carries the time.
fn fill_all<'a>(
    records: &'a mut [u8],
    size: usize,
    writer: u64,
    first: u64,
    timed: &mut u64,
) -> Vec<&'a [u8]> {
    let number = |at: usize| first + at as u64;
    for (at, record) in records.chunks_mut(size).enumerate() {
        let is_timed = number(at) >= *timed;
        fill(record, writer, number(at), if is_timed { now_ns() } else { 0 });
        if is_timed {
            *timed = number(at) + RECORDS_PER_TIME;
        }
    }
    records.chunks(size).collect()
}

/// Fills a record with its writer, its number, and the time of its write or 0; the number is repeated in the rest.
fn fill(record: &mut [u8], writer: u64, number: u64, time_ns: u64) {
    record[..8].copy_from_slice(&((writer << 48) | number).to_le_bytes());
    record[8..16].copy_from_slice(&time_ns.to_le_bytes());
    record[16..].fill(number as u8);
}

/// Returns the checksum of one record at its position.
fn sum_of(position: u64, record: &[u8]) -> u64 {
    let head = record.first_chunk().map_or(0, |head| u64::from_le_bytes(*head));
    let mixed = (position ^ head.rotate_left(24)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ head;
    mixed ^ mixed >> 29
}

/// A reader thread's arguments.
struct Reader<'a> {
    session: &'a blocking::Session,
    task: &'a Task,
    number: u64,
    progress: &'a Progress,
    /// Position at which the reader ends; `u64::MAX` until all writers are done. Accesses use relaxed ordering.
    end: &'a AtomicU64,
    is_over: &'a AtomicBool,
}

/// Follows the log to its end and verifies each record.
fn read(reader: &Reader<'_>) -> anyhow::Result<Seen> {
    let &Reader { session, task, number, progress, end, is_over } = reader;
    let mut outage = Outage::new(is_over);
    let log = outage.retry(|| open(session, task))?;
    let mut follower = session.block_on(Follower::from_start(log.clone()))?;
    let (mut verifier, mut shortage) = (Verifier::new(task)?, Shortage::default());
    let (mut stored, mut idle) = (0, 0);
    while follower.position() < end.load(Ordering::Relaxed) && !is_over.load(Ordering::Relaxed) {
        let now = now_ns();
        let slots = match session.block_on(follower.poll(now, |entry| verifier.check_entry(entry))) {
            // Freeing memory requires progress of other processes: try again.
            Err(LogError::Full { first }) => {
                let checked = session.block_on(shortage.check(&log, first));
                checked.with_context(|| format!("reader {number} cannot skip an unwritten record"))?;
                0
            }
            Err(error) => {
                outage.wait(error).with_context(|| format!("reader {number} cannot follow the log"))?;
                0
            }
            Ok(slots) => {
                outage.end();
                slots
            }
        };
        if slots > 0 {
            (idle, shortage.since) = (0, None);
        } else {
            idle += 1;
        }
        if idle > POLLS_BEFORE_SLEEP {
            std::thread::sleep(Duration::from_micros(50));
        } else if idle > 0 {
            std::thread::yield_now();
        }
        // Writers may wait for the segments before this position, so it is stored even without new slots.
        if follower.position() - stored >= SLOTS_PER_STORE || slots == 0 && follower.position() > stored {
            stored = follower.position();
            progress.store(number, stored)?;
        }
    }
    progress.store(number, follower.position())?;
    Ok(Seen { directory_waits: outage.waits, ..verifier.into_result() })
}

/// Number of empty polls before a reader sleeps between polls.
const POLLS_BEFORE_SLEEP: u32 = 10_000;
/// Number of slots between two stores of the position.
const SLOTS_PER_STORE: u64 = 4096;

/// Maximum latency that is recorded, in ns.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The records that one reader has verified.
struct Verifier {
    size: usize,
    next: Vec<u64>,
    /// Minimum position of the next record.
    position: u64,
    sum: u64,
    errors: u64,
    times: Histogram<u64>,
}

impl Verifier {
    fn new(task: &Task) -> anyhow::Result<Verifier> {
        let next = vec![0; usize::try_from(task.writers_in_all)?];
        let times = Histogram::new_with_max(LATENCY_NS_MAX, 3)?;
        Ok(Verifier { size: task.size, next, position: 0, sum: 0, errors: 0, times })
    }

    fn check_entry(&mut self, entry: Entry<'_>) {
        for record in entry.records() {
            self.errors += u64::from(self.check_record(entry.position, record).is_none());
        }
    }

    /// Checks a record. Returns `None` unless it is its writer's next record, unaltered, and after all earlier records.
    fn check_record(&mut self, position: u64, record: &[u8]) -> Option<()> {
        self.sum = self.sum.wrapping_add(sum_of(position, record));
        let is_behind = position >= self.position;
        self.position = position + 1;
        let (head, rest) = record.split_first_chunk()?;
        let (time, rest) = rest.split_first_chunk()?;
        let head = u64::from_le_bytes(*head);
        let (writer, number) = (head >> 48, head & ((1 << 48) - 1));
        let next = self.next.get_mut(writer as usize)?;
        if !is_behind
            || number != *next
            || record.len() != self.size
            || rest.iter().any(|byte| *byte != number as u8)
        {
            return None;
        }
        *next += 1;
        let time_ns = u64::from_le_bytes(*time);
        if time_ns > 0 {
            self.times.saturating_record(now_ns().saturating_sub(time_ns));
        }
        Some(())
    }

    fn into_result(self) -> Seen {
        let quantile = |quantile| self.times.value_at_quantile(quantile);
        let (p50_ns, p99_ns) = (quantile(0.5), quantile(0.99));
        Seen { commits: self.next, sum: self.sum, errors: self.errors, p50_ns, p99_ns, directory_waits: 0 }
    }
}

/// Frees the segments that all readers have passed, until the readers end.
fn trim_until_done(
    session: &blocking::Session,
    task: &Task,
    progress: &Progress,
    done: &AtomicBool,
    is_over: &AtomicBool,
) -> anyhow::Result<()> {
    let mut log = Outage::new(is_over).retry(|| open(session, task))?;
    while !done.load(Ordering::Relaxed) {
        match session.block_on(log.trim(progress.min_position()?)) {
            // A later round tries again; writers that need the memory wait until then.
            Err(LogError::NoDirectory(_)) => {}
            trimmed => drop(trimmed?),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Task {
        Task {
            name: "log".to_owned(),
            segments: None,
            writers: Vec::new(),
            readers: Vec::new(),
            readers_in_all: 2,
            writers_in_all: 2,
            size: 20,
            ns: 0,
            batch: 1,
            together: 1,
        }
    }

    /// Returns errors and checksum of a reader that has seen the records (position, writer, number).
    fn seen(records: &[(u64, u64, u64)]) -> (u64, u64) {
        let mut verifier = Verifier::new(&task()).unwrap();
        let mut record = [0; 20];
        for (position, writer, number) in records {
            fill(&mut record, *writer, *number, 0);
            verifier.errors += u64::from(verifier.check_record(*position, &record).is_none());
        }
        (verifier.errors, verifier.sum)
    }

    #[test]
    fn wrong_records_and_orders_are_detected() {
        let (errors, sum) = seen(&[(0, 0, 0), (2, 1, 0), (3, 0, 1)]);
        assert_eq!(errors, 0);
        // As from a segment that belongs elsewhere: the writers are exchanged.
        let (errors, other) = seen(&[(0, 1, 0), (2, 0, 0), (3, 0, 1)]);
        assert!(errors == 0 && other != sum);
        // A moved, a lost, a repeated and a misplaced record.
        assert_ne!(seen(&[(0, 0, 0), (1, 1, 0), (3, 0, 1)]).1, sum);
        assert_ne!(seen(&[(0, 0, 0), (3, 0, 1)]).1, sum);
        assert_eq!(seen(&[(0, 0, 0), (2, 1, 0), (2, 1, 0), (3, 0, 1)]).0, 1);
        assert_eq!(seen(&[(0, 0, 0), (3, 0, 1), (2, 1, 0)]).0, 1);
    }
}
