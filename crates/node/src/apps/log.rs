//! `halite run log`: writers append, readers follow and check, and what all readers have passed is freed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use halite::{Lh, NodeId, Permissions, Placement, RegionCause, RegionError, blocking};
use halite_apps::log::{Entry, Follower, Log, LogError, Options, Writer};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::Over;
use super::crew::Crew;
use super::worker::{self, Line, Worker, say};
use crate::bytes::ByteCount;
use crate::output;
use crate::progress;

/// `halite run log`
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// Threads that append, over all processes in turn
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    writers: u32,
    /// Threads that follow while they append; without any, the log is checked afterwards
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=1024))]
    readers: u32,
    /// Bytes of a record, at least 16
    #[arg(long, default_value = "16", value_name = "BYTES")]
    size: ByteCount,
    /// For how long they append
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS", value_parser = super::seconds)]
    seconds: f64,
    /// How many slots a writer reserves at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    batch: u64,
    /// How many records a writer appends by one call, each of which is visible by itself
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    together: u32,
    /// The name of the log, which is removed at the end
    #[arg(long, default_value = "halite-run-log")]
    name: String,
    #[command(flatten)]
    over: Over,
}

/// What one worker is to do.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Task {
    name: String,
    /// Of the log, for the worker that makes it.
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

/// How a log is made.
#[derive(Serialize, Deserialize, Clone, Debug)]
struct Segments {
    slot_bytes: u64,
    segment_slots: u64,
}

/// What one writer has done.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
struct Written {
    commits: u64,
    ns: u64,
    /// How often it found no memory, and waited for readers.
    waits: u64,
}

/// What the writers of a worker have done, and how long the log is since then.
#[derive(Serialize, Deserialize, Debug)]
struct Part {
    written: Vec<Written>,
    end: u64,
}

/// What one reader has seen.
#[derive(Serialize, Deserialize, Clone, Debug)]
struct Seen {
    /// Of each writer.
    commits: Vec<u64>,
    /// Records that were not what they should be, or not in their turn.
    errors: u64,
    p50_ns: u64,
    p99_ns: u64,
}

/// What is printed.
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
    visible_p50_us: Option<f64>,
    visible_p99_us: Option<f64>,
    verified: bool,
}

const RECORD_BYTES_MIN: u64 = 16;
/// Of so many records, one tells when it was written.
const RECORDS_PER_TIME: u64 = 64;
const SEGMENT_BYTES: u64 = 4 << 20;
/// How far apart readers say how far they have come: each on cache lines of its own.
const PROGRESS_BYTES: u64 = 128;

/// Runs it.
pub fn run(dir: Option<&Path>, args: &LogArgs) -> anyhow::Result<()> {
    let size = args.size.0;
    if size < RECORD_BYTES_MIN {
        return Err(output::UsageError(format!(
            "--size {size} is too little: a record has at least 16 bytes"
        ))
        .into());
    }
    if size > SEGMENT_BYTES / 4 {
        return Err(output::UsageError(format!(
            "--size {size} is too much: a record has at most 1048576 bytes"
        ))
        .into());
    }
    let outcome = Crew::start(dir, &args.over)?.play(|crew| play(crew, dir.is_none(), args))?;
    print(&outcome, args.over.json)?;
    if !outcome.verified {
        bail!("readers did not see every record once, in the order of its writer, as it was written");
    }
    Ok(())
}

fn play(crew: &mut Crew, is_own: bool, args: &LogArgs) -> anyhow::Result<Outcome> {
    let workers = crew.len();
    let size = args.size.0 as usize;
    let share = |count: u32, first: usize, number: usize| {
        (0..u64::from(count)).filter(|one| (*one as usize + first) % workers == number).collect()
    };
    for number in 0..workers {
        // The first makes the log, before the others open it.
        let task = Task {
            name: args.name.clone(),
            segments: (number == 0).then(|| segments(args.size.0)),
            writers: share(args.writers, 0, number),
            // Not beside the first writer, where there is another place.
            readers: share(args.readers, 1, number),
            readers_in_all: args.readers.into(),
            writers_in_all: args.writers.into(),
            size,
            ns: (args.seconds * 1e9) as u64,
            batch: args.batch,
            together: args.together as usize,
        };
        crew.ask::<()>(number, &Line::Task(worker::Task::Log(task)))?;
        crew.note_made(&args.name);
    }
    let passing = progress::passing(args.seconds, "appending");
    crew.tell(&Line::Go)?;
    let parts: Vec<Part> = crew.hear()?;
    drop(passing);
    let end = parts.iter().map(|part| part.end).max().unwrap_or(0);
    crew.tell(&Line::End(end))?;
    let seen: Vec<Vec<Seen>> = crew.hear()?;
    crew.ask::<()>(0, &Line::Clear)?;
    let by_writer: Vec<Written> =
        (0..args.writers as usize).map(|one| parts[one % workers].written[one / workers]).collect();
    let seen: Vec<Seen> = seen.into_iter().flatten().collect();
    let expected: Vec<u64> = by_writer.iter().map(|written| written.commits).collect();
    let commits: u64 = expected.iter().sum();
    let ns = by_writer.iter().map(|written| written.ns).max().unwrap_or(1).max(1);
    let worst = |of: fn(&Seen) -> u64| seen.iter().map(of).max().map(|ns| ns as f64 / 1e3);
    let has_times = args.readers > 0;
    Ok(Outcome {
        app: "log",
        nodes: workers,
        fabric: is_own.then(|| args.over.fabric.name()),
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
        visible_p50_us: worst(|seen| seen.p50_ns).filter(|_| has_times),
        visible_p99_us: worst(|seen| seen.p99_ns).filter(|_| has_times),
        verified: !seen.is_empty() && seen.iter().all(|seen| seen.errors == 0 && seen.commits == expected),
    })
}

fn segments(size: u64) -> Segments {
    let slot = size + 8;
    // No slot of up to a cache line crosses one.
    let slot_bytes = if slot <= 64 { slot.next_power_of_two() } else { slot.next_multiple_of(64) };
    Segments { slot_bytes, segment_slots: SEGMENT_BYTES / slot_bytes }
}

fn print(outcome: &Outcome, is_json: bool) -> anyhow::Result<()> {
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

/// Where readers tell how far they have come.
struct Progress {
    session: blocking::Session,
    lh: Lh,
    readers: u64,
}

impl Progress {
    fn name(log: &str) -> String {
        format!("{log}.progress")
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

    fn note(&self, reader: u64, position: u64) -> anyhow::Result<()> {
        Ok(self.session.write(self.lh, PROGRESS_BYTES * reader, &position.to_le_bytes())?)
    }

    /// Where the slowest is.
    fn least(&self) -> anyhow::Result<u64> {
        let mut least = u64::MAX;
        for reader in 0..self.readers {
            let mut word = [0; 8];
            self.session.read(self.lh, PROGRESS_BYTES * reader, &mut word)?;
            least = least.min(u64::from_le_bytes(word));
        }
        Ok(least)
    }
}

/// Does a worker's part.  Whatever happens, the worker that has made the log removes it.
pub fn work(worker: &Worker, task: &Task) -> anyhow::Result<()> {
    let session = &worker.session;
    let Some(segments) = &task.segments else { return play_part(worker, task) };
    let options = Options {
        slot_bytes: segments.slot_bytes,
        segment_slots: segments.segment_slots,
        nodes: members(session)?,
        everyone: Permissions::empty(),
    };
    let log = session.block_on(Log::create(session.as_async(), &task.name, &options));
    let log = log.with_context(|| format!("cannot make the log {:?}", task.name))?;
    let played = play_part(worker, task);
    let cleared = session.block_on(log.free()).and_then(|()| Ok(free_progress(session, &task.name)?));
    played?;
    cleared.context("cannot remove the log")?;
    say(&())
}

/// The nodes that have memory for segments.
fn members(session: &blocking::Session) -> anyhow::Result<Vec<NodeId>> {
    let mut nodes: Vec<NodeId> =
        session.status()?.iter().filter(|node| node.bytes_total > 0).map(|node| node.node).collect();
    nodes.truncate(NODES_MAX);
    Ok(nodes)
}

/// A log takes no more in turn.
const NODES_MAX: usize = 24;

fn free_progress(session: &blocking::Session, log: &str) -> Result<(), RegionError> {
    match session.map(&Progress::name(log), Permissions::MASTER) {
        Ok(lh) => session.free(lh),
        Err(error) if *error.cause() == RegionCause::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn play_part(worker: &Worker, task: &Task) -> anyhow::Result<()> {
    let (session, is_over) = (&worker.session, worker.is_over());
    let progress = Progress::open(session, task)?;
    say(&())?;
    match worker.next() {
        Some(Line::Go) => {}
        _ => bail!("nobody waits for this worker any more"),
    }
    let (end, done) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let is_maker = task.segments.is_some();
        let cleaner = is_maker.then(|| scope.spawn(|| clean(session, task, &progress, &done)));
        let readers = &task.readers;
        let readers: Vec<_> = readers
            .iter()
            .map(|reader| scope.spawn(|| read(session, task, *reader, &progress, &end)))
            .collect();
        let writers = &task.writers;
        let writers: Vec<_> =
            writers.iter().map(|writer| scope.spawn(|| write(session, task, *writer, is_over))).collect();
        let written = writers.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>();
        let told = written.and_then(|written| tell_written(worker, task, written));
        // Readers need nothing else of us, and end also after a failure.
        end.store(*told.as_ref().unwrap_or(&0), Ordering::Relaxed);
        let seen = readers.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>();
        let played = told.and(seen).and_then(|seen| tell_seen(worker, task, seen, &progress, &end));
        done.store(true, Ordering::Relaxed);
        played.and(cleaner.map_or(Ok(()), join))
    })
}

/// Tells what our writers have done; hears how long the log is since all have done theirs.
fn tell_written(worker: &Worker, task: &Task, written: Vec<Written>) -> anyhow::Result<u64> {
    let session = &worker.session;
    say(&Part { written, end: session.block_on(open(session, task)?.end())? })?;
    match worker.next() {
        Some(Line::End(position)) => Ok(position),
        _ => bail!("nobody waits for this worker any more"),
    }
}

/// Tells what our readers have seen.  The worker that has made the log reads it where nobody has, and keeps it until all have.
fn tell_seen(
    worker: &Worker,
    task: &Task,
    mut seen: Vec<Seen>,
    progress: &Progress,
    end: &AtomicU64,
) -> anyhow::Result<()> {
    let is_maker = task.segments.is_some();
    if is_maker && task.readers_in_all == 0 {
        seen.push(read(&worker.session, task, 0, progress, end)?);
    }
    say(&seen)?;
    if is_maker {
        worker.next();
    }
    Ok(())
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn open(session: &blocking::Session, task: &Task) -> anyhow::Result<Log> {
    Ok(session.block_on(Log::open(session.as_async(), &task.name))?)
}

/// Nanoseconds of a clock that all processes of this host share.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Appends until the time is over.
fn write(
    session: &blocking::Session,
    task: &Task,
    writer: u64,
    is_over: &AtomicBool,
) -> anyhow::Result<Written> {
    let mut log = Writer::new(open(session, task)?, task.batch);
    let begin = Instant::now();
    let limit = Duration::from_nanos(task.ns);
    let is_last = || begin.elapsed() >= limit || is_over.load(Ordering::Relaxed);
    let appending = async {
        let mut written = Written { commits: 0, ns: 0, waits: 0 };
        let mut records = vec![0; task.size * task.together];
        let mut positions = Vec::with_capacity(task.together);
        let mut timed = 0;
        // The clock is read now and then: it takes as long as a part of an append.
        while written.commits < timed || !is_last() {
            let slices = fill_all(&mut records, task.size, writer, written.commits, &mut timed);
            let appended = match slices[..] {
                [record] => log.append(record).await.map(|position| positions.push(position)),
                _ => log.append_each(&slices, &mut positions).await,
            };
            written.commits += positions.len() as u64;
            positions.clear();
            match appended {
                Ok(()) => {}
                Err(LogError::Full) if task.readers_in_all == 0 || is_last() => break,
                Err(LogError::Full) => {
                    written.waits += 1;
                    timed = written.commits;
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    };
    let appended = session.block_on(appending);
    let ns = begin.elapsed().as_nanos() as u64;
    let written = appended.with_context(|| format!("writer {writer} cannot append"))?;
    session.block_on(log.close())?;
    Ok(Written { ns, ..written })
}

/// Fills records that one call appends, of which the first is number `first`; those from number `timed` on tell the time now and then.
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

/// A record tells whose it is, which of them, and when it was written, or 0; the rest is filled with its number.
fn fill(record: &mut [u8], writer: u64, number: u64, time_ns: u64) {
    record[..8].copy_from_slice(&((writer << 48) | number).to_le_bytes());
    record[8..16].copy_from_slice(&time_ns.to_le_bytes());
    record[16..].fill(number as u8);
}

/// Follows until `end`, and checks what comes.
fn read(
    session: &blocking::Session,
    task: &Task,
    reader: u64,
    progress: &Progress,
    end: &AtomicU64,
) -> anyhow::Result<Seen> {
    let mut follower = session.block_on(Follower::from_start(open(session, task)?))?;
    let mut check = Check::new(task)?;
    let (mut noted, mut idle) = (0, 0);
    while follower.position() < end.load(Ordering::Relaxed) {
        let now = now_ns();
        let slots = session.block_on(follower.poll(now, |entry| check.note(entry)))?;
        idle = if slots == 0 { idle + 1 } else { 0 };
        if idle > POLLS_BEFORE_SLEEP {
            std::thread::sleep(Duration::from_micros(50));
        } else if idle > 0 {
            std::thread::yield_now();
        }
        // Writers may wait for what it has passed.
        if follower.position() - noted >= SLOTS_PER_NOTE || slots == 0 && follower.position() > noted {
            noted = follower.position();
            progress.note(reader, noted)?;
        }
    }
    progress.note(reader, follower.position())?;
    Ok(check.seen())
}

/// How often a reader looks in vain before it sleeps between looks.
const POLLS_BEFORE_SLEEP: u32 = 10_000;
/// How far a reader goes on before it tells how far it is.
const SLOTS_PER_NOTE: u64 = 4096;

/// Longer latencies count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// What one reader has seen so far.
struct Check {
    size: usize,
    next: Vec<u64>,
    errors: u64,
    times: Histogram<u64>,
}

impl Check {
    fn new(task: &Task) -> anyhow::Result<Check> {
        let next = vec![0; usize::try_from(task.writers_in_all)?];
        Ok(Check { size: task.size, next, errors: 0, times: Histogram::new_with_max(LATENCY_NS_MAX, 3)? })
    }

    fn note(&mut self, entry: Entry<'_>) {
        for record in entry.records() {
            self.errors += u64::from(self.note_record(record).is_none());
        }
    }

    /// `None` if it is not the next of its writer, whole.
    fn note_record(&mut self, record: &[u8]) -> Option<()> {
        let (head, rest) = record.split_first_chunk()?;
        let (time, rest) = rest.split_first_chunk()?;
        let head = u64::from_le_bytes(*head);
        let (writer, number) = (head >> 48, head & ((1 << 48) - 1));
        let next = self.next.get_mut(writer as usize)?;
        if number != *next || record.len() != self.size || rest.iter().any(|byte| *byte != number as u8) {
            return None;
        }
        *next += 1;
        let time_ns = u64::from_le_bytes(*time);
        if time_ns > 0 {
            self.times.saturating_record(now_ns().saturating_sub(time_ns));
        }
        Some(())
    }

    fn seen(self) -> Seen {
        let quantile = |quantile| self.times.value_at_quantile(quantile);
        let (p50_ns, p99_ns) = (quantile(0.5), quantile(0.99));
        Seen { commits: self.next, errors: self.errors, p50_ns, p99_ns }
    }
}

/// Frees what all readers have passed, until they are done.
fn clean(
    session: &blocking::Session,
    task: &Task,
    progress: &Progress,
    done: &AtomicBool,
) -> anyhow::Result<()> {
    let mut log = open(session, task)?;
    while !done.load(Ordering::Relaxed) {
        session.block_on(log.trim(progress.least()?))?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
