//! `halite perf qos`: two sessions of different priority that compete for a link, in phases as in LITE's figure 16.
//!
//! Both sessions belong to the client's node, whose policy is measured. In the throughput phases, each session writes
//! 8 KiB (or `-s`) at a time with 512 KiB outstanding. In the other four phases, the session of high priority writes 64 B
//! at a time, first with one write outstanding, then with 256.

use std::future::poll_fn;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use halite::{Lh, Policy, Priority, Provider, Qos, QosError, WriteOp, blocking};
use halite_figures::plot::{self, Axis, Plot, Series};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::args::PerfArgs;
use super::bench::Bench;
use super::cores::pin;
use super::job::{Job, wrong};
use super::parcel::{differs, pattern};
use crate::bytes::ByteCount;
use crate::client;
use crate::output;
use crate::table::{Align, Table};
use crate::target::Target;
use crate::threads;

/// Default length of a long write, in bytes.
const OPERATION: usize = 8 << 10;
/// Length of the long writes that are outstanding together, unless one write is longer.
const OUTSTANDING_BYTES: usize = 512 << 10;
/// Maximum number of outstanding long writes.
const OUTSTANDING_MAX: usize = 64;
/// Maximum number of independent streams of long writes.
const STREAMS_MAX: usize = 8;
const SMALL: usize = 64;
/// Maximum length of a long write, in bytes.
const SIZE_MAX: u64 = 64 << 20;
/// Default duration of a phase, in seconds.
const SECONDS: u64 = 2;
/// Number of throughput samples of a phase.
const SAMPLES: u32 = 8;
const HIGH: usize = 0;
const LOW: usize = 1;

/// A phase: its name, and the load of each session; `None` for a session that does not write.
struct Phase {
    name: &'static str,
    high: Option<Load>,
    low: Option<Load>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Long,
    Small,
    ManySmall,
}

/// The writes of a session that are outstanding together.
#[derive(Clone, Copy)]
struct Writes {
    /// Length of a write, in bytes.
    bytes: usize,
    /// Number of independent streams, and the writes that each posts together.
    streams: usize,
    together: usize,
}

impl Writes {
    fn new(bytes: usize) -> Writes {
        let outstanding = (OUTSTANDING_BYTES / bytes).clamp(1, OUTSTANDING_MAX);
        let streams = outstanding.min(STREAMS_MAX);
        Writes { bytes, streams, together: outstanding / streams }
    }

    fn outstanding(self) -> usize {
        self.streams * self.together
    }
}

const MANY_SMALL: Writes = Writes { bytes: SMALL, streams: STREAMS_MAX, together: 32 };

const PHASES: [Phase; 8] = [
    Phase { name: "high alone", high: Some(Load::Long), low: None },
    Phase { name: "both", high: Some(Load::Long), low: Some(Load::Long) },
    Phase { name: "low alone", high: None, low: Some(Load::Long) },
    Phase { name: "both again", high: Some(Load::Long), low: Some(Load::Long) },
    Phase { name: "64 B alone", high: Some(Load::Small), low: None },
    Phase { name: "64 B and low", high: Some(Load::Small), low: Some(Load::Long) },
    Phase { name: "256 of 64 B alone", high: Some(Load::ManySmall), low: None },
    Phase { name: "256 of 64 B and low", high: Some(Load::ManySmall), low: Some(Load::Long) },
];

/// Measurements of a phase. Throughput is in bytes per second.
struct Measured {
    /// Throughput of high and low.
    rates: [f64; 2],
    /// Throughput of high and low in each part of the phase.
    samples: Vec<[f64; 2]>,
    /// Times of the short operations, in nanoseconds.
    small: Histogram<u64>,
}

#[derive(Serialize)]
struct Report {
    test: &'static str,
    fabric: &'static str,
    policy: Policy,
    link_rate: Option<u64>,
    seconds: u64,
    /// Length of a long write, in bytes.
    size: usize,
    high_alone: f64,
    high_beside: f64,
    low_alone: f64,
    low_beside: f64,
    small_p50_us_idle: f64,
    small_p99_us_idle: f64,
    small_p50_us_beside: f64,
    small_p99_us_beside: f64,
    /// Operations per second, with 256 outstanding.
    small_rate_idle: f64,
    small_rate_beside: f64,
    /// Seconds since the begin, and throughput of high and low until then.
    samples: Vec<[f64; 3]>,
    errors: u64,
}

/// Runs all phases. Fails if an operation fails or the data differ.
pub fn run(dir: Option<&Path>, args: &PerfArgs) -> anyhow::Result<()> {
    if args.all || args.threads.is_some() || args.iterations.is_some() || args.attached {
        return Err(wrong("qos has its own threads: omit -a, -t, -n and --attached").into());
    }
    if client::priority().is_some() {
        return Err(wrong("qos writes with both priorities: omit --priority (HALITE_PRIORITY)").into());
    }
    if args.policy == Some(Policy::None) && args.link_rate.is_some() {
        return Err(wrong("the policy none has no use for a rate: omit --link-rate").into());
    }
    let size = args.size.map_or(OPERATION as u64, |ByteCount(size)| size);
    if !(SMALL as u64 + 1..=SIZE_MAX).contains(&size) {
        return Err(wrong("qos writes 65 B to 64 MiB at a time: change -s").into());
    }
    let long = Writes::new(size as usize);
    let seconds = args.seconds.unwrap_or(SECONDS);
    let policy = args.policy.unwrap_or(Policy::SwPri);
    let mut qos = Qos { policy, rate: args.link_rate.map(|ByteCount(rate)| rate) };
    if policy != Policy::HwSep {
        qos.check()?;
    }
    let target = Target::new(args.svg.as_deref(), None, args.force)?;
    let mut bench = Bench::open(dir, Job::new(args)?)?;
    bench.make_regions(2, (long.bytes * long.outstanding()) as u64)?;
    let pair = Pair::new(&bench, long)?;
    if policy == Policy::HwSep && qos.rate.is_none() {
        let measured = pair.run(&PHASES[0], Duration::from_secs(1))?;
        qos.rate = Some(measured.rates[HIGH] as u64);
    }
    bench.end.set_qos(qos)?;
    let mut phases = Vec::new();
    for phase in &PHASES {
        phases.push(
            pair.run(phase, Duration::from_secs(seconds))
                .with_context(|| format!("phase `{}`", phase.name))?,
        );
    }
    bench.end.set_qos(Qos::default())?;
    let errors = pair.verify()?;
    let report = Report::new(&bench, qos, (seconds, long), &phases, errors);
    match args.json {
        true => output::print_json(&report)?,
        false => output::print(&text(&report, &phases))?,
    }
    target.write_svg(|| svg(&report))?;
    drop(pair);
    bench.close()?;
    if errors > 0 {
        bail!("verification failed: {errors} times the data differed from what was written");
    }
    Ok(())
}

/// The sessions, each with its region and the bytes that it writes.
struct Pair<'b> {
    bench: &'b Bench,
    sessions: [blocking::Session; 2],
    long: Writes,
    bytes: [Vec<u8>; 2],
}

impl<'b> Pair<'b> {
    fn new(bench: &'b Bench, long: Writes) -> Result<Pair<'b>, QosError> {
        let of = |priority| bench.end.session.with_priority(priority);
        let sessions = [of(Priority::High)?, of(Priority::Low)?];
        let bytes = [HIGH, LOW].map(|index| pattern(long.bytes as u64, index));
        Ok(Pair { bench, sessions, long, bytes })
    }

    fn run(&self, phase: &Phase, time: Duration) -> anyhow::Result<Measured> {
        let (stop, counts) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
        let write = |index: usize, load: Load| {
            pin(self.bench.end.cores.of_client(index)).context("cannot pin the thread to its core")?;
            let writer = Writer {
                session: &self.sessions[index],
                lh: self.bench.regions[index],
                long: self.long,
                bytes: &self.bytes[index],
                count: &counts[index],
            };
            let written = writer.write_until(load, &stop);
            // The other writer must end, too, if this one fails.
            stop.store(true, Relaxed);
            written
        };
        thread::scope(|scope| {
            let write = &write;
            let loads = [(HIGH, phase.high), (LOW, phase.low)];
            let works = loads.into_iter().filter_map(|(index, load)| Some((index, load?)));
            let writers = threads::start_all(scope, works.map(|(index, load)| move || write(index, load)))?;
            let samples = sample(time, &counts, &stop);
            stop.store(true, Relaxed);
            let mut small = histogram();
            for writer in writers {
                small.add(writer.join()?)?;
            }
            let mean =
                |index: usize| samples.iter().map(|sample| sample[index]).sum::<f64>() / samples.len() as f64;
            Ok(Measured { rates: [mean(HIGH), mean(LOW)], samples, small })
        })
    }

    /// Returns the number of writes whose bytes are not in their region.
    fn verify(&self) -> anyhow::Result<u64> {
        let mut errors = 0;
        for index in [HIGH, LOW] {
            for slot in 0..self.long.outstanding() {
                let (lh, offset) = (self.bench.regions[index], (slot * self.long.bytes) as u64);
                errors += differs(&self.bench.end.session, lh, offset, &self.bytes[index])?;
            }
        }
        Ok(errors)
    }
}

/// Waits for `time`, or until a writer stops. Returns the throughput in each part of it.
fn sample(time: Duration, counts: &[AtomicU64; 2], stop: &AtomicBool) -> Vec<[f64; 2]> {
    let (begin, mut samples) = (Instant::now(), Vec::new());
    let (mut last, mut before) = (begin, [0, 0]);
    for part in 1..=SAMPLES {
        thread::sleep((time / SAMPLES * part).saturating_sub(begin.elapsed()));
        let now = Instant::now();
        let counted = counts.each_ref().map(|count| count.load(Relaxed));
        let rate = |index: usize| (counted[index] - before[index]) as f64 / (now - last).as_secs_f64();
        samples.push([rate(HIGH), rate(LOW)]);
        (last, before) = (now, counted);
        if stop.load(Relaxed) {
            break;
        }
    }
    samples
}

struct Writer<'w> {
    session: &'w blocking::Session,
    lh: Lh,
    long: Writes,
    /// Bytes of a long write; a small one writes the first of them.
    bytes: &'w [u8],
    /// Number of bytes written so far.
    count: &'w AtomicU64,
}

impl Writer<'_> {
    /// Writes until `stop` is set. Returns the times of short operations.
    fn write_until(&self, load: Load, stop: &AtomicBool) -> anyhow::Result<Histogram<u64>> {
        let mut times = histogram();
        if load == Load::Small {
            while !stop.load(Relaxed) {
                let begin = Instant::now();
                self.session.write(self.lh, 0, &self.bytes[..SMALL])?;
                times.saturating_record(begin.elapsed().as_nanos() as u64);
                self.count.fetch_add(SMALL as u64, Relaxed);
            }
            return Ok(times);
        }
        let writes = if load == Load::ManySmall { MANY_SMALL } else { self.long };
        let mut streams: Vec<_> =
            (0..writes.streams).map(|stream| Some(Box::pin(self.stream(writes, stream, stop)))).collect();
        self.session.block_on(poll_fn(|context| {
            for stream in &mut streams {
                let Some(Poll::Ready(ended)) = stream.as_mut().map(|stream| stream.as_mut().poll(context))
                else {
                    continue;
                };
                *stream = None;
                ended?;
            }
            if streams.iter().all(Option::is_none) { Poll::Ready(anyhow::Ok(())) } else { Poll::Pending }
        }))?;
        Ok(times)
    }

    /// Writes one part of the region after the other, so that several streams keep the link busy.
    async fn stream(&self, writes: Writes, stream: usize, stop: &AtomicBool) -> anyhow::Result<()> {
        let Writes { bytes, together, .. } = writes;
        let slots = stream * together..(stream + 1) * together;
        let op = |slot: usize| {
            // Both kinds of writes leave the same bytes in the region.
            let begin = if bytes == SMALL { slot * SMALL % (self.bytes.len() - SMALL + 1) } else { 0 };
            let offset = if bytes == SMALL { begin } else { slot * bytes };
            WriteOp { lh: self.lh, offset: offset as u64, from: &self.bytes[begin..begin + bytes] }
        };
        let ops: Vec<_> = slots.map(op).collect();
        while !stop.load(Relaxed) {
            self.session.as_async().write_batch(&ops).await?;
            self.count.fetch_add((together * bytes) as u64, Relaxed);
            yield_once().await;
        }
        Ok(())
    }
}

/// Lets the other streams run. Over `shm`, writes never wait.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Creates an empty histogram of times in nanoseconds, up to a minute.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid")
}

impl Report {
    fn new(
        bench: &Bench,
        qos: Qos,
        (seconds, long): (u64, Writes),
        phases: &[Measured],
        errors: u64,
    ) -> Report {
        let us = |phase: usize, quantile| phases[phase].small.value_at_quantile(quantile) as f64 / 1e3;
        let both = |index: usize| (phases[1].rates[index] + phases[3].rates[index]) / 2.0;
        let mut samples = Vec::new();
        for (phase, measured) in phases.iter().enumerate() {
            let part_s = seconds as f64 / measured.samples.len() as f64;
            let at = |part: usize| (phase as u64 * seconds) as f64 + (part + 1) as f64 * part_s;
            samples.extend(
                measured.samples.iter().enumerate().map(|(part, [high, low])| [at(part), *high, *low]),
            );
        }
        Report {
            test: "qos",
            fabric: bench.job.fabric,
            policy: qos.policy,
            link_rate: qos.rate,
            seconds,
            size: long.bytes,
            high_alone: phases[0].rates[HIGH],
            high_beside: both(HIGH),
            low_alone: phases[2].rates[LOW],
            low_beside: both(LOW),
            small_p50_us_idle: us(4, 0.5),
            small_p99_us_idle: us(4, 0.99),
            small_p50_us_beside: us(5, 0.5),
            small_p99_us_beside: us(5, 0.99),
            small_rate_idle: phases[6].rates[HIGH] / SMALL as f64,
            small_rate_beside: phases[7].rates[HIGH] / SMALL as f64,
            samples,
            errors,
        }
    }
}

fn text(report: &Report, phases: &[Measured]) -> String {
    let right = |heading| (heading, Align::Right);
    let heads = ["high[MB/s]", "low[MB/s]", "total[MB/s]", "64B p50[usec]", "p99[usec]"];
    let mut table = Table::new(
        &[("phase", Align::Left), right("until[s]")].into_iter().chain(heads.map(right)).collect::<Vec<_>>(),
    );
    let mb = |rate: f64| format!("{:.1}", rate / 1e6);
    let row = |name: &str, until: f64, [high, low]: [f64; 2], times: [String; 2]| {
        let rates = [mb(high), mb(low), mb(high + low)];
        [name.to_owned(), format!("{until:.2}")].into_iter().chain(rates).chain(times).collect()
    };
    let mut samples = report.samples.iter();
    for (phase, measured) in PHASES.iter().zip(phases) {
        let mut until = 0.0;
        for [at, high, low] in samples.by_ref().take(measured.samples.len()) {
            table.row(row("", *at, [*high, *low], Default::default()));
            until = *at;
        }
        let us = |quantile| format!("{:.2}", measured.small.value_at_quantile(quantile) as f64 / 1e3);
        let times = if measured.small.is_empty() { Default::default() } else { [us(0.5), us(0.99)] };
        table.row(row(phase.name, until, measured.rates, times));
    }
    format!(
        "qos over {}, policy {}: writes of {}, {} outstanding; a named line is the mean of the lines above it\n{table}\
         high beside low: {:.2} of high alone; low beside high: {:.2}; low alone: {:.2}\n\
         256 of 64 B: {:.3} Mops alone, {:.3} beside low\n{}",
        report.fabric,
        report.policy,
        ByteCount(report.size as u64),
        Writes::new(report.size).outstanding(),
        report.high_beside / report.high_alone,
        report.low_beside / report.high_alone,
        report.low_alone / report.high_alone,
        report.small_rate_idle / 1e6,
        report.small_rate_beside / 1e6,
        // Without this note, unlimited rates look like a failure of the policy.
        if report.fabric == Provider::Shm.name() && report.policy != Policy::None {
            "No policy limits loads and stores in shared memory: they use no link. Measure over a network, with --fabric roce.\n"
        } else {
            ""
        },
    )
}

/// Draws the throughput of both sessions over time.
fn svg(report: &Report) -> String {
    let line = |name: &str, colour, index: usize| {
        let points = report.samples.iter().map(|sample| [sample[0], sample[index] / 1e6]).collect();
        Series { name: name.to_owned(), colour, is_dashed: false, points }
    };
    let axis = |label: &str| Axis { label: label.to_owned(), is_log: false };
    let title = format!("Priorities over {}, policy {}", report.fabric, report.policy);
    let series = vec![line("high priority", 0, 1), line("low priority", 1, 2)];
    let begin_s = |phase: usize| (phase as u64 * report.seconds) as f64;
    let marks =
        PHASES.iter().enumerate().map(|(phase, Phase { name, .. })| (begin_s(phase), *name)).collect();
    plot::svg(&[Plot { title, x: axis("time [s]"), y: axis("throughput [MB/s]"), series, marks }])
}
