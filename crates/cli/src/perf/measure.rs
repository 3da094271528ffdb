//! Timing: measures batches of operations, in rounds that alternate with rounds of a baseline.
//!
//! Reading the clock takes some 20 ns, longer than many operations. Short operations are timed in batches, and each
//! batch yields the mean time of its operations. The percentiles are then percentiles of these means.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use super::gate::Participant;

/// Time below which operations are timed in batches.
const SINGLE_NS_MIN: f64 = 1000.0;

/// Number of rounds: odd, so that there is a median, and enough to tolerate one or two disturbances.
const ROUNDS: u64 = 7;

/// Measurements of one thread.
#[derive(Debug)]
pub struct Measured {
    /// Number of operations between two clock reads.
    pub batch: u64,
    pub ours: Series,
    /// Measurements of the baseline, if there is one.
    pub baseline: Option<Series>,
}

/// Measures the operations of one thread. Threads with participants of one gate start their rounds together.
#[derive(Debug)]
pub struct Timer {
    pub participant: Participant,
    pub operations: u64,
}

pub const NO_BASELINE: Option<fn() -> anyhow::Result<()>> = None;

/// A function that runs a number of operations and returns their time.
pub trait Batch: FnMut(u64) -> anyhow::Result<Duration> {}

impl<F: FnMut(u64) -> anyhow::Result<Duration>> Batch for F {}

impl Timer {
    /// Measures operations one after the other. Short operations are timed in batches.
    pub fn operations(
        &self,
        mut ours: impl FnMut() -> anyhow::Result<()>,
        baseline: Option<impl FnMut() -> anyhow::Result<()>>,
    ) -> anyhow::Result<Measured> {
        let baseline = baseline.map(|mut baseline| move |count| timed(count, &mut baseline));
        self.warm(|count| timed(count, &mut ours), baseline)
    }

    /// Measures round trips, and records half the time of each.
    pub fn halves(&self, mut round_trip: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Measured> {
        self.warm(|count| Ok(timed(count, &mut round_trip)? / 2), None::<fn(u64) -> _>)
    }

    /// Measures operations that return their own duration, because only a part of each operation counts.
    pub fn singly(
        &self,
        mut ours: impl FnMut() -> anyhow::Result<Duration>,
        baseline: Option<impl FnMut() -> anyhow::Result<Duration>>,
    ) -> anyhow::Result<Measured> {
        self.participant.wait();
        self.rounds(1, |_| ours(), baseline.map(|mut baseline| move |_| baseline()))
    }

    /// Measures overlapping operations. Each round is one batch, including its start and end.
    pub fn overlapping(&self, mut run: impl FnMut(u64) -> anyhow::Result<()>) -> anyhow::Result<Measured> {
        run(warm_up(self.operations))?;
        self.participant.wait();
        let run = |count| {
            let begin = Instant::now();
            run(count).map(|()| begin.elapsed())
        };
        self.rounds(u64::MAX, run, None::<fn(u64) -> _>)
    }

    fn warm(&self, mut ours: impl Batch, baseline: Option<impl Batch>) -> anyhow::Result<Measured> {
        self.participant.wait();
        let batch = batch(self.operations, estimate_ns(self.operations, &mut ours)?);
        self.rounds(batch, ours, baseline)
    }

    /// Alternates rounds of the operation and of the baseline, so that both see the same disturbances.
    fn rounds(
        &self,
        batch: u64,
        mut ours: impl Batch,
        mut baseline: Option<impl Batch>,
    ) -> anyhow::Result<Measured> {
        let of_baseline = baseline.is_some().then(Series::default);
        let mut measured = Measured { batch, ours: Series::default(), baseline: of_baseline };
        for operations in rounds(self.operations) {
            measured.batch = batch.min(operations);
            if baseline.is_some() {
                self.participant.wait();
            }
            measured.ours.round(operations, batch, &mut ours)?;
            if let (Some(baseline), Some(of_baseline)) = (&mut baseline, &mut measured.baseline) {
                self.participant.wait();
                of_baseline.round(operations, batch, baseline)?;
            }
        }
        Ok(measured)
    }
}

/// Measurements of one kind of operation.
#[derive(Clone, Debug)]
pub struct Series {
    /// Times of an operation, in picoseconds.
    pub histogram: Histogram<u64>,
    /// Operations per second in each round.
    pub rates: Vec<f64>,
    /// Operations per second over all rounds.
    pub rate: f64,
    /// Total number of operations.
    pub operations: u64,
    /// Processor time of the measuring threads in these rounds.
    pub cpu: Duration,
    elapsed: Duration,
}

impl Default for Series {
    fn default() -> Series {
        // Three digits: finer values are not reproducible.
        let histogram = Histogram::new(3).expect("three digits are allowed");
        let none = Duration::ZERO;
        Series { histogram, rates: Vec::new(), rate: 0.0, operations: 0, cpu: none, elapsed: none }
    }
}

impl Series {
    /// Runs a round of `operations` in batches, each of which returns its time.
    pub fn round(&mut self, operations: u64, batch: u64, run: &mut impl Batch) -> anyhow::Result<()> {
        let cpu_before = thread_cpu();
        let mut elapsed = Duration::ZERO;
        let mut left = operations;
        while left > 0 {
            let size = batch.min(left);
            let took = run(size)?;
            let each_ps = took.as_nanos() as u64 * 1000 / size;
            self.histogram.record_n(each_ps, size).expect("a histogram that grows takes any time");
            elapsed += took;
            left -= size;
        }
        self.cpu += thread_cpu().saturating_sub(cpu_before);
        self.operations += operations;
        self.elapsed += elapsed;
        self.rates.push(per_second(operations, elapsed));
        self.rate = per_second(self.operations, self.elapsed);
        Ok(())
    }

    /// Adds another thread's measurements of the same rounds.
    pub fn merge(&mut self, other: &Series) {
        self.histogram.add(&other.histogram).expect("a histogram that grows takes any other");
        self.rates.resize(self.rates.len().max(other.rates.len()), 0.0);
        for (rate, more) in self.rates.iter_mut().zip(&other.rates) {
            *rate += more;
        }
        self.rate += other.rate;
        self.operations += other.operations;
        self.cpu += other.cpu;
    }

    /// Returns the operations per second in the median round.
    pub fn rate_median(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(0.0)
    }

    /// Returns the operations per second in the best round.
    pub fn rate_max(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the time that `quantile` (0 to 1) of the operations did not exceed, in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64 / 1e6
    }

    /// Returns the processor time of an operation, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.operations.max(1) as f64
    }
}

/// Returns the number of operations per reading of the clock, for operations of about `operation_ns`.
fn batch(operations: u64, operation_ns: f64) -> u64 {
    let batch = match operation_ns {
        ns if ns >= SINGLE_NS_MIN => 1,
        ns if ns >= SINGLE_NS_MIN / 10.0 => 64,
        _ => 256,
    };
    // At least one batch per round.
    (operations / ROUNDS).clamp(1, batch)
}

/// Returns the number of operations of each round.
fn rounds(operations: u64) -> impl Iterator<Item = u64> {
    let rounds = ROUNDS.min(operations);
    (0..rounds).map(move |round| operations / rounds + u64::from(round < operations % rounds))
}

/// Wraps an operation that cannot fail.
pub fn infallible<T>(mut operation: impl FnMut() -> T) -> impl FnMut() -> anyhow::Result<()> {
    move || {
        operation();
        Ok(())
    }
}

/// Returns the number of warm-up operations.
pub fn warm_up(operations: u64) -> u64 {
    1 + (operations / 10).clamp(1, 1000)
}

/// Measures the approximate time of an operation in nanoseconds, after a warm-up.
pub fn estimate_ns(operations: u64, mut run: impl Batch) -> anyhow::Result<f64> {
    run(1)?;
    // The time of the fastest part: after a disturbance, short operations would look long, and each would be timed.
    let mut fastest_ns = f64::INFINITY;
    for count in rounds(warm_up(operations) - 1) {
        fastest_ns = fastest_ns.min(run(count)?.as_nanos() as f64 / count as f64);
    }
    Ok(fastest_ns)
}

#[inline]
pub fn timed(count: u64, mut operation: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    for _ in 0..count {
        operation()?;
    }
    Ok(begin.elapsed())
}

fn per_second(operations: u64, elapsed: Duration) -> f64 {
    // If the clock did not advance, the time counts as its resolution, one nanosecond.
    operations as f64 / elapsed.as_secs_f64().max(1e-9)
}

/// Returns the processor time of all threads of this process.
pub fn process_cpu() -> Duration {
    cpu(ClockId::ProcessCPUTime)
}

pub fn thread_cpu() -> Duration {
    cpu(ClockId::ThreadCPUTime)
}

fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_batch_times() {
        let mut series = Series::default();
        // Nine operations of 1 us in three batches, then a round of one operation of 8 us.
        series.round(9, 3, &mut |size| Ok(Duration::from_micros(size))).unwrap();
        series.round(1, 3, &mut |_| Ok(Duration::from_micros(8))).unwrap();
        assert_eq!(series.operations, 10);
        assert!((series.quantile_us(0.5) - 1.0).abs() < 0.002, "{}", series.quantile_us(0.5));
        assert!((series.quantile_us(1.0) - 8.0).abs() < 0.02, "{}", series.quantile_us(1.0));
        assert_eq!(series.rates, [1e6, 125e3]);
        assert!((series.rate - 10.0 / 17e-6).abs() < 1.0, "{}", series.rate);
        assert_eq!(series.rate_max(), 1e6);
    }
}
