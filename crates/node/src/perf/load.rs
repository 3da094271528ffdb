//! `rpc_load`: what calls cost the processor when they come now and then, as in LITE, section 5.3 and figure 13.
//!
//! Calls come by a schedule that does not wait for the answers of earlier ones, with exponentially distributed intervals
//! from a fixed seed.  Beside it, the same schedule between two processes that write into each other's memory and never
//! stop polling their own.  Processor time is that of both processes together, whatever they do.

use std::time::{Duration, Instant};

use super::calls::{Caller, answered};
use super::echo::Speech;
use super::measure::{Measured, Timer, process_cpu};
use super::pairs::{self, Partner};
use super::pingpong::{self, Player};
use super::random::SplitMix;
use super::report::Row;
use super::stage::Stage;

/// Calls per second of all threads together, at one point of the figure.
pub fn measure(stage: &mut Stage<'_>, per_s: f64) -> anyhow::Result<Row> {
    // On average, of each thread.
    let interval = Duration::from_secs_f64(stage.job.threads as f64 / per_s);
    let mut row = by_calls(stage, interval)?;
    // What the test is for: the table for people has no column for it.
    row.extra.extend([("offered_per_s", per_s), ("own_cpu_us_per_op", row.ours.cpu_us())]);
    if stage.job.has_baseline {
        let polling = by_polling(stage, interval)?;
        row.errors += polling.errors;
        row.extra.push(("polling_cpu_us_per_op", polling.ours.cpu_us()));
    }
    Ok(row)
}

fn by_calls(stage: &mut Stage<'_>, interval: Duration) -> anyhow::Result<Row> {
    let (threads, size) = (stage.job.threads, stage.size);
    answered(stage, Speech { threads, request_bytes: Some(size), reply_bytes: size, batch: 1 }, |stage| {
        let cpu_before = cpu_of_both(stage)?;
        let mut row = stage.measure(stage.threads(), |thread, (), timer| {
            let mut caller = Caller::new(stage, thread, size, size);
            let arrivals = Arrivals::new(interval, thread);
            let measured = timed(&timer, arrivals, std::thread::sleep, || Ok(caller.call()?))?;
            Ok(Measured { errors: caller.errors(), ..measured })
        })?;
        row.ours.cpu = cpu_of_both(stage)?.saturating_sub(cpu_before);
        Ok(row)
    })
}

fn by_polling(stage: &mut Stage<'_>, interval: Duration) -> anyhow::Result<Row> {
    let players = pingpong::players(stage)?;
    let cpu_before = cpu_of_both(stage)?;
    pairs::begin::<Player>(stage, stage.iterations)?;
    let mut row = stage.measure(players, |thread, mut player, timer| {
        let measured = timed(&timer, Arrivals::new(interval, thread), spin, || player.turn(true))?;
        Ok(Measured { errors: player.errors()?, ..measured })
    })?;
    row.errors += stage.ends.own_server()?.errors()?;
    row.ours.cpu = cpu_of_both(stage)?.saturating_sub(cpu_before);
    Ok(row)
}

fn cpu_of_both(stage: &mut Stage<'_>) -> anyhow::Result<Duration> {
    Ok(stage.ends.own_server()?.cpu()? + process_cpu())
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
