//! `rpc_load`: what calls cost the processor when they come now and then, as in LITE, section 5.3 and figure 13.
//!
//! Calls come by a schedule that does not wait for the answers of earlier ones, with exponentially distributed intervals
//! from a fixed seed.  Beside it, the same schedule between two processes that write into each other's memory and never
//! stop polling their own.  Processor time is that of both processes together, whatever they do.

use std::time::{Duration, Instant};

use fastrand::Rng;

use super::bench::Bench;
use super::calls::{Caller, answered};
use super::echo::CallShape;
use super::measure::{Measured, Timer, process_cpu};
use super::pairs::{self, Partner};
use super::pingpong::{self, Player};
use super::report::Row;

/// Calls per second of all threads together, at one point of the figure.
pub fn measure(bench: &mut Bench<'_>, per_s: f64) -> anyhow::Result<Row> {
    // On average, of each thread.
    let interval = Duration::from_secs_f64(bench.job.threads as f64 / per_s);
    let mut row = by_calls(bench, interval)?;
    // What the test is for: the table for people has no column for it.
    row.extra.extend([("offered_per_s", per_s), ("own_cpu_us_per_op", row.ours.cpu_us())]);
    if bench.job.has_baseline {
        let polling = by_polling(bench, interval)?;
        row.errors += polling.errors;
        row.extra.push(("polling_cpu_us_per_op", polling.ours.cpu_us()));
    }
    Ok(row)
}

fn by_calls(bench: &mut Bench<'_>, interval: Duration) -> anyhow::Result<Row> {
    let (threads, size) = (bench.job.threads, bench.size);
    answered(bench, CallShape { threads, request_bytes: Some(size), reply_bytes: size, batch: 1 }, |bench| {
        let cpu_before = cpu_of_both(bench)?;
        let mut row = bench.measure(bench.threads(), |thread, (), timer| {
            let mut caller = Caller::new(bench, thread, size, size);
            let arrivals = Arrivals::new(interval, thread);
            let measured = timed(&timer, arrivals, std::thread::sleep, || Ok(caller.call()?))?;
            Ok(Measured { errors: caller.errors(), ..measured })
        })?;
        row.ours.cpu = cpu_of_both(bench)?.saturating_sub(cpu_before);
        Ok(row)
    })
}

fn by_polling(bench: &mut Bench<'_>, interval: Duration) -> anyhow::Result<Row> {
    let players = pingpong::players(bench)?;
    let cpu_before = cpu_of_both(bench)?;
    pairs::begin::<Player>(bench, bench.iterations)?;
    let mut row = bench.measure(players, |thread, mut player, timer| {
        let measured = timed(&timer, Arrivals::new(interval, thread), spin, || player.turn(true))?;
        Ok(Measured { errors: player.errors()?, ..measured })
    })?;
    row.errors += bench.ends.own_server()?.errors()?;
    row.ours.cpu = cpu_of_both(bench)?.saturating_sub(cpu_before);
    Ok(row)
}

fn cpu_of_both(bench: &mut Bench<'_>) -> anyhow::Result<Duration> {
    Ok(bench.ends.own_server()?.cpu()? + process_cpu())
}

/// Does `operation` at each time of the schedule, or as soon as the one before has ended.  Its rate is that of the whole:
/// with what lies in between.
fn timed(
    timer: &Timer,
    mut arrivals: Arrivals,
    wait: impl Fn(Duration),
    mut operation: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Measured> {
    let mut begun = None;
    let once = || {
        let begin = *begun.get_or_insert_with(Instant::now);
        wait(arrivals.next().saturating_sub(begin.elapsed()));
        let called = Instant::now();
        operation()?;
        Ok(called.elapsed())
    };
    let mut measured = timer.singly(once, None::<fn() -> _>)?;
    let begin = begun.expect("there was at least one");
    measured.ours.rate = timer.operations as f64 / begin.elapsed().as_secs_f64();
    measured.ours.rates = vec![measured.ours.rate];
    Ok(measured)
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
