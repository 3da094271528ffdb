//! Timing: operations in batches, in rounds that alternate with those of a baseline.
//!
//! Reading the clock takes some 20 ns, longer than many of the operations.  Those are timed in batches, each
//! giving the mean of its operations; what is called a percentile then is one of batch means.  Nothing here
//! knows what is being timed.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use super::gate::Seat;

/// Operations that take less than this, in nanoseconds, are timed in batches.
const SINGLE_NS_MIN: f64 = 1000.0;

/// Rounds of a measurement: odd, so that there is a median, and enough to shrug off one disturbance or two.
const ROUNDS: u64 = 7;

/// How many operations, in which portions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// Operations in all.
    pub operations: u64,
    /// Operations between two looks at the clock.
    pub batch: u64,
}

impl Schedule {
    /// For operations that take about `operation_ns`.
    pub fn new(operations: u64, operation_ns: f64) -> Schedule {
        let batch = match operation_ns {
            ns if ns >= SINGLE_NS_MIN => 1,
            ns if ns >= SINGLE_NS_MIN / 10.0 => 64,
            _ => 256,
        };
        // At least one batch in each round.
        Schedule { operations, batch: (operations / ROUNDS).clamp(1, batch) }
    }

    /// Operations of each round; they add up to all.
    pub fn rounds(&self) -> impl Iterator<Item = u64> + use<> {
        let (operations, rounds) = (self.operations, ROUNDS.min(self.operations));
        (0..rounds).map(move |round| operations / rounds + u64::from(round < operations % rounds))
    }
}

/// What was measured of one kind of operation.
#[derive(Clone, Debug)]
pub struct Series {
    /// Times of an operation, in picoseconds.
    pub histogram: Histogram<u64>,
    /// Operations per second in each round.
    pub rates: Vec<f64>,
    /// Operations per second over all rounds.
    pub rate: f64,
    /// Operations in all.
    pub operations: u64,
    /// Processor time of the measuring threads.
    pub cpu: Duration,
    elapsed: Duration,
}

impl Default for Series {
    fn default() -> Series {
        // Three digits are finer than any two runs agree.
        let histogram = Histogram::new(3).expect("three digits are allowed");
        let none = Duration::ZERO;
        Series { histogram, rates: Vec::new(), rate: 0.0, operations: 0, cpu: none, elapsed: none }
    }
}

impl Series {
    /// Runs a round of `operations`.
    pub fn round<E>(
        &mut self,
        operations: u64,
        batch: u64,
        mut operation: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        self.round_of_batches(operations, batch, |size| {
            let begin = Instant::now();
            for _ in 0..size {
                operation()?;
            }
            Ok(begin.elapsed())
        })
    }

    /// Runs a round whose batches time themselves: they are told how many operations to do, and return how
    /// long those took without what is not to be timed.
    pub fn round_of_batches<E>(
        &mut self,
        operations: u64,
        batch: u64,
        mut run: impl FnMut(u64) -> Result<Duration, E>,
    ) -> Result<(), E> {
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

    /// Adds what another thread did in the same rounds.
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

    /// Operations per second in the median round.
    pub fn rate_median(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(0.0)
    }

    /// Operations per second in the best round.
    pub fn rate_max(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// The time that `quantile` (0 to 1) of the operations did not exceed, in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64 / 1e6
    }

    /// Processor time of an operation, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.operations.max(1) as f64
    }
}

/// Measures `ours` and `bare` in rounds that alternate, so that both see the same weather.
///
/// Threads whose seats are at the same gate begin each round together.
pub fn alternate<E>(
    schedule: Schedule,
    seat: &Seat,
    mut ours: impl FnMut() -> Result<(), E>,
    mut bare: Option<impl FnMut()>,
) -> Result<(Series, Option<Series>), E> {
    let (mut of_ours, mut of_bare) = (Series::default(), Series::default());
    for operations in schedule.rounds() {
        seat.wait();
        of_ours.round(operations, schedule.batch, &mut ours)?;
        seat.wait();
        if let Some(bare) = &mut bare {
            let Ok(()) = of_bare.round(operations, schedule.batch, || {
                bare();
                Ok::<(), Infallible>(())
            });
        }
    }
    Ok((of_ours, bare.is_some().then_some(of_bare)))
}

/// About how long `operation` takes, in nanoseconds, after it has run often enough to be warm.
pub fn estimate_ns<E>(operations: u64, mut operation: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let warm_up = (operations / 10).clamp(1, 1000);
    operation()?;
    let begin = Instant::now();
    for _ in 0..warm_up {
        operation()?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / warm_up as f64)
}

fn per_second(operations: u64, elapsed: Duration) -> f64 {
    // A clock that did not move stands for its resolution, a nanosecond.
    operations as f64 / elapsed.as_secs_f64().max(1e-9)
}

/// Processor time of all threads of this process.
pub fn process_cpu() -> Duration {
    cpu(ClockId::ProcessCPUTime)
}

fn thread_cpu() -> Duration {
    cpu(ClockId::ThreadCPUTime)
}

fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::super::gate;
    use super::*;

    #[test]
    fn quick_operations_are_timed_in_batches_and_slow_ones_singly() {
        assert_eq!(Schedule::new(100_000, 5.0).batch, 256);
        assert_eq!(Schedule::new(100_000, 300.0).batch, 64);
        assert_eq!(Schedule::new(100_000, 5000.0).batch, 1);
        assert_eq!(Schedule::new(70, 5.0).batch, 10);
        assert_eq!(Schedule::new(3, 5.0).batch, 1);
    }

    #[test]
    fn rounds_add_up_whatever_the_number_of_operations() {
        for operations in [1, 2, 6, 7, 8, 1000, 1_000_003] {
            let rounds: Vec<u64> = Schedule::new(operations, 1.0).rounds().collect();
            assert_eq!(rounds.iter().sum::<u64>(), operations);
            assert!(rounds.len() <= ROUNDS as usize && rounds.iter().all(|round| *round > 0));
        }
    }

    #[test]
    fn figures_follow_from_the_times_that_batches_report() {
        let mut series = Series::default();
        // Nine operations of 1 us, in three batches, then a round of one that takes 8 us.
        let told: Result<(), Infallible> =
            series.round_of_batches(9, 3, |size| Ok(Duration::from_micros(size)));
        told.unwrap();
        let told: Result<(), Infallible> = series.round_of_batches(1, 3, |_| Ok(Duration::from_micros(8)));
        told.unwrap();
        assert_eq!(series.operations, 10);
        assert!((series.quantile_us(0.5) - 1.0).abs() < 0.002, "{}", series.quantile_us(0.5));
        assert!((series.quantile_us(1.0) - 8.0).abs() < 0.02, "{}", series.quantile_us(1.0));
        assert_eq!(series.rates, [1e6, 125e3]);
        assert!((series.rate - 10.0 / 17e-6).abs() < 1.0, "{}", series.rate);
        assert_eq!(series.rate_max(), 1e6);
    }

    #[test]
    fn threads_add_their_rates_round_by_round() {
        let round = |micros| {
            let mut series = Series::default();
            let told: Result<(), Infallible> =
                series.round_of_batches(1, 1, |_| Ok(Duration::from_micros(micros)));
            told.map(|()| series).unwrap()
        };
        let mut both = round(1);
        both.merge(&round(2));
        assert_eq!((both.operations, both.rates.as_slice()), (2, [1.5e6].as_slice()));
        assert_eq!(both.histogram.len(), 2);
    }

    #[test]
    fn a_failure_ends_the_measurement_but_keeps_no_other_thread_waiting() {
        let mut seats = gate::seats(2);
        let (one, two) = (seats.pop().unwrap(), seats.pop().unwrap());
        let schedule = Schedule::new(70, 5.0);
        let measured = std::thread::scope(|scope| {
            let failing = scope.spawn(move || {
                let mut left = 15;
                let fails_later = || {
                    left -= 1;
                    if left == 0 { Err("gone") } else { Ok(()) }
                };
                alternate(schedule, &one, fails_later, Some(|| ())).map(|_| ())
            });
            let other = scope.spawn(move || alternate(schedule, &two, || Ok::<(), &str>(()), Some(|| ())));
            (failing.join().unwrap(), other.join().unwrap())
        });
        assert_eq!(measured.0, Err("gone"));
        let (ours, bare) = measured.1.unwrap();
        assert_eq!((ours.operations, bare.map(|bare| bare.operations)), (70, Some(70)));
    }
}
