//! Measures consecutive laps. A lap is a fixed number of operations between two readings of the clock.

use std::time::{Duration, Instant};

use super::probe::Sample;

/// The times at which laps ended, for medians and percentiles of their durations.
pub struct Laps {
    begin: Instant,
    ends: Vec<Instant>,
}

impl Laps {
    /// Starts the first of `laps` laps, and allocates memory for all of them.
    pub fn begin(laps: u64) -> Laps {
        let ends = Vec::with_capacity(laps as usize);
        Laps { begin: Instant::now(), ends }
    }

    /// Ends a lap and starts the next.
    pub fn lap(&mut self) {
        self.ends.push(Instant::now());
    }

    /// Returns the sample of all laps, each of `operations` operations. Panics if no lap has ended.
    pub fn sample(&self, operations: u64) -> Sample {
        let begins = std::iter::once(&self.begin).chain(&self.ends);
        let times: Vec<Duration> = begins.zip(&self.ends).map(|(begin, end)| *end - *begin).collect();
        sample_of(times, operations)
    }
}

fn sample_of(mut times: Vec<Duration>, operations: u64) -> Sample {
    let elapsed: Duration = times.iter().sum();
    times.sort_unstable();
    let each_us = |time: Duration| time.as_secs_f64() * 1e6 / operations as f64;
    let rank = |percent: usize| each_us(times[(times.len() * percent).div_ceil(100) - 1]);
    Sample {
        latency_us: Some(rank(50)),
        p99_us: Some(rank(99)),
        ..Sample::of_operations(operations * times.len() as u64, elapsed.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_close(value: Option<f64>, expected: f64) {
        let value = value.expect("the sample has the figure");
        assert!((value / expected - 1.0).abs() < 1e-9, "{value} is not {expected}");
    }

    #[test]
    fn one_slow_lap_changes_only_the_rate() {
        let mut times = vec![Duration::from_micros(20); 99];
        times.push(Duration::from_micros(20_020));
        let sample = sample_of(times, 10);
        assert_close(sample.latency_us, 2.0);
        assert_close(sample.p99_us, 2.0);
        assert_close(sample.rate_per_s, 1000.0 / 0.022);
    }

    #[test]
    fn one_percent_of_laps_exceeds_the_99th_percentile() {
        let times = (1..=200).map(Duration::from_micros).collect();
        let sample = sample_of(times, 1);
        assert_close(sample.latency_us, 100.0);
        assert_close(sample.p99_us, 198.0);
    }
}
