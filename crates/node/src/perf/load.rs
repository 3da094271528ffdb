//! `rpc_load`: what calls cost the processor when they come now and then, as in LITE, section 5.3 and figure 13.
//!
//! Calls come by a schedule that does not wait for the answers of earlier ones, with exponentially distributed intervals
//! from a fixed seed.  Beside it, the same schedule between two processes that write into each other's memory and never
//! stop polling their own.  Processor time is that of both processes together, whatever they do.

use std::time::{Duration, Instant};

use anyhow::Context;

use super::calls::{Caller, end_serving, serve};
use super::crew;
use super::echo::Speech;
use super::ends::Ends;
use super::gate::Seat;
use super::job::Job;
use super::measure::{Series, process_cpu};
use super::pingpong::{self, Player, Table};
use super::random::SplitMix;
use super::report::Row;
use super::server::{Reply, Request};

/// How much longer intervals get from point to point of the figure.
const SLOWDOWNS: [u64; 4] = [1, 2, 4, 8];

/// Bytes there, and back.
const SIZE: u64 = 8;

/// All rates.
pub fn run(
    job: &Job,
    ends: &mut Ends,
    rate: u64,
    is_sweep: bool,
    report: &mut dyn FnMut(Row) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let table = if job.has_baseline { Some(pingpong::meet(ends, job.threads, SIZE)?) } else { None };
    for slowdown in &SLOWDOWNS[..if is_sweep { SLOWDOWNS.len() } else { 1 }] {
        // Fewer calls, so that each point takes as long.
        let calls = (job.iterations(SIZE) / slowdown).max(1);
        let interval = Duration::from_secs_f64((job.threads as u64 * slowdown) as f64 / rate as f64);
        report(measure(job, ends, table.as_ref(), Load { calls, interval })?)?;
    }
    Ok(())
}

/// What comes from each thread.
#[derive(Clone, Copy)]
struct Load {
    calls: u64,
    /// On average.
    interval: Duration,
}

fn measure(job: &Job, ends: &mut Ends, table: Option<&Table>, load: Load) -> anyhow::Result<Row> {
    let per_s = job.threads as f64 / load.interval.as_secs_f64();
    let mut row = Row::new(SIZE, load.calls);
    row.extra.push(("offered_per_s", per_s));
    (row.ours, row.errors) = by_calls(job, ends, load)?;
    // What the test is for: the table for people has no column for it.
    row.extra.push(("own_cpu_us_per_op", row.ours.cpu_us()));
    if let Some(table) = table {
        let (polling, errors) = by_polling(ends, table, load)?;
        row.errors += errors;
        row.extra.push(("polling_cpu_us_per_op", polling.cpu_us()));
    }
    Ok(row)
}

fn by_calls(job: &Job, ends: &mut Ends, load: Load) -> anyhow::Result<(Series, u64)> {
    serve(ends, job.threads, Speech { request_bytes: Some(SIZE), reply_bytes: SIZE, batch: 1 })?;
    let cpu_before = cpu_of_both(ends)?;
    let (session, peer, cores) = (&ends.session, ends.peer, &ends.cores);
    let work = |thread, seat: Seat| {
        let mut caller = Caller::new(session, peer, thread, SIZE, SIZE);
        seat.wait();
        let series = timed(load, thread, std::thread::sleep, || Ok(caller.call()?))?;
        Ok((series, caller.errors()))
    };
    let measured = crew::run(job.threads, |thread| cores.of_client(thread), work)?;
    let cpu = cpu_of_both(ends)?.saturating_sub(cpu_before);
    let (series, errors) = merge(measured, cpu);
    Ok((series, errors + end_serving(ends)?))
}

fn by_polling(ends: &mut Ends, table: &Table, load: Load) -> anyhow::Result<(Series, u64)> {
    let players = table.players(&ends.session, SIZE)?;
    let cpu_before = cpu_of_both(ends)?;
    let cores = ends.cores.clone();
    let server = ends.server().context("polling needs a server of our own")?;
    server.ask(&Request::Play { size: SIZE, turns: load.calls }, Reply::Ready)?;
    let work = |mut player: Player, seat: Seat| {
        let (thread, mut stamp) = (player.thread(), 0);
        seat.wait();
        let series = timed(load, thread, spin, || {
            stamp += 1;
            player.serve(stamp)?;
            player.await_stamp(stamp)
        })?;
        Ok((series, player.verify()?))
    };
    let measured = crew::share(players, |thread| cores.of_client(thread), work)?;
    let errors_of_server = server.errors()?;
    let cpu = cpu_of_both(ends)?.saturating_sub(cpu_before);
    let (series, errors) = merge(measured, cpu);
    Ok((series, errors + errors_of_server))
}

fn cpu_of_both(ends: &mut Ends) -> anyhow::Result<Duration> {
    let server = ends.server().context("a load needs a server of our own")?;
    Ok(server.cpu()? + process_cpu())
}

fn merge(measured: Vec<(Series, u64)>, cpu: Duration) -> (Series, u64) {
    let (mut all, mut errors) = (Series::default(), 0);
    for (series, of_thread) in measured {
        all.merge(&series);
        errors += of_thread;
    }
    all.cpu = cpu;
    (all, errors)
}

/// Does `operation` at each time of the schedule, or as soon as the one before has ended.  Its rate is that of the whole:
/// with what lies in between.
fn timed(
    load: Load,
    thread: usize,
    wait: impl Fn(Duration),
    mut operation: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Series> {
    let begin = Instant::now();
    let mut arrivals = Arrivals::new(load.interval, thread);
    let mut series = Series::default();
    series.round_of_batches(load.calls, 1, |_| {
        wait(arrivals.next().saturating_sub(begin.elapsed()));
        let called = Instant::now();
        operation()?;
        anyhow::Ok(called.elapsed())
    })?;
    series.rate = load.calls as f64 / begin.elapsed().as_secs_f64();
    series.rates = vec![series.rate];
    Ok(series)
}

/// Waits without letting go of the core, except to others that poll.
fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        for _ in 0..1 << 10 {
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

/// When calls come, since the beginning.
struct Arrivals {
    random: SplitMix,
    mean: Duration,
    next: Duration,
}

impl Arrivals {
    fn new(mean: Duration, thread: usize) -> Arrivals {
        Arrivals { random: SplitMix(thread as u64 + 1), mean, next: Duration::ZERO }
    }

    fn next(&mut self) -> Duration {
        self.next += self.mean.mul_f64(-self.random.unit().ln());
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_come_as_often_as_they_should_and_no_two_threads_at_the_same_times() {
        let mean = Duration::from_millis(8);
        let last = |thread| {
            (0..100_000).fold((Arrivals::new(mean, thread), Duration::ZERO), |(mut all, _), _| {
                let next = all.next();
                (all, next)
            })
        };
        let (one, other) = (last(0).1, last(1).1);
        for end in [one, other] {
            assert!((792.0..808.0).contains(&end.as_secs_f64()), "{end:?}");
        }
        assert_ne!(one, other);
    }
}
