//! `rpc_load`: processor time of calls at a low rate, as in LITE, section 5.3 and figure 13.
//!
//! Calls follow a schedule that does not wait for earlier replies, with exponentially distributed intervals from a
//! fixed seed. The baseline follows the same schedule: two processes write into each other's memory, and each polls its
//! own memory without pause. Processor time is that of both processes.

use std::time::{Duration, Instant};

use fastrand::Rng;

use super::calls::Caller;
use super::pairs;
use super::pairs::Partner;
use super::pingpong::Player;
use super::server::ServerTask;
use super::workload::{Bench, Measured, PerfArgs, Plan, Planned, Row, Timer, WORD_BYTES, Workload, verify};

/// Load in LITE, section 5.3: calls per second, and number of threads on each side.
const RATE: u64 = 1000;
const THREADS: u32 = 8;

/// Factors by which the points of LITE's figure 13 lengthen the intervals.
const SLOWDOWNS: &[u64] = &[1, 2, 4, 8];

/// Default duration in seconds.
const SECONDS: u64 = 2;

/// Plans calls with an input of one word; with -a, the plan has all points of LITE's figure 13.
pub fn plan(args: &PerfArgs) -> Planned {
    let description = "calls on a schedule; times of calls, processor time of both processes";
    let threads = u64::from(args.threads.unwrap_or(THREADS));
    Ok(Plan {
        measure,
        iterations_max: (rate(args) * SECONDS / threads).max(1),
        warms_up: false,
        threads: THREADS,
        slowdowns: if args.all { SLOWDOWNS } else { &[1] },
        needs_server: true,
        ..Plan::of_one_size::<Caller>(description, WORD_BYTES)
    })
}

fn rate(args: &PerfArgs) -> u64 {
    args.rate.unwrap_or(RATE)
}

/// Measures one point of the figure.
fn measure(bench: &mut Bench) -> anyhow::Result<Row> {
    let per_s = rate(&bench.job.args) as f64 / bench.slowdown as f64;
    let callers = Caller::setup(bench)?;
    let mut row = on_schedule(bench, callers, per_s, std::thread::sleep, |caller| Ok(caller.call()?))?;
    // In JSON only: the table has no column for these.
    row.extra.extend([("offered_per_s", per_s), ("own_cpu_us_per_op", row.ours.cpu_us())]);
    if bench.job.args.check_memcpy {
        let task = ServerTask { test: "write_lat".to_owned(), ..bench.server_task() };
        let players = pairs::start_pairs::<Player>(bench, task)?;
        let polling = on_schedule(bench, players, per_s, spin, |player| player.take_turn(true))?;
        row.errors += polling.errors;
        row.extra.push(("polling_cpu_us_per_op", polling.ours.cpu_us()));
    }
    Ok(row)
}

fn on_schedule<W: Workload>(
    bench: &mut Bench,
    workers: Vec<W>,
    per_s: f64,
    wait: fn(Duration),
    operation: impl Fn(&mut W) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Row> {
    // Mean interval between the calls of one thread.
    let interval = Duration::from_secs_f64(bench.job.threads as f64 / per_s);
    let cpu_before = bench.server()?.cpu_of_both()?;
    let (mut row, workers) = bench.time(workers, |thread, worker, _, timer| {
        timed(timer, Arrivals::new(interval, thread), wait, || operation(worker))
    })?;
    row.ours.cpu = bench.server()?.cpu_of_both()?.saturating_sub(cpu_before);
    verify(workers, bench, &mut row)?;
    Ok(row)
}

/// Runs `operation` at each time of the schedule, or right after the previous operation if that ends after the
/// scheduled time. The rate includes the intervals.
fn timed(
    timer: &Timer,
    mut arrivals: Arrivals,
    wait: impl Fn(Duration),
    mut operation: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Measured> {
    let mut started = None;
    let once = || {
        let begin = *started.get_or_insert_with(Instant::now);
        wait(arrivals.next().saturating_sub(begin.elapsed()));
        let called = Instant::now();
        operation()?;
        Ok(called.elapsed())
    };
    let mut measured = timer.singly(once, None::<fn() -> _>)?;
    let begin = started.expect("there was at least one operation");
    measured.ours.rate = timer.operations as f64 / begin.elapsed().as_secs_f64();
    measured.ours.rates = vec![measured.ours.rate];
    Ok(measured)
}

/// Busy-waits for `time`, and yields the core to other polling threads.
fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        for _ in 0..1 << 10 {
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

/// Times of calls since the start, with exponentially distributed intervals.
struct Arrivals {
    random: Rng,
    mean: Duration,
    next: Duration,
}

impl Arrivals {
    fn new(mean: Duration, thread: usize) -> Arrivals {
        Arrivals { random: Rng::with_seed(thread as u64 + 1), mean, next: Duration::ZERO }
    }

    fn next(&mut self) -> Duration {
        self.next += self.mean.mul_f64(-(1.0 - self.random.f64()).ln());
        self.next
    }
}
