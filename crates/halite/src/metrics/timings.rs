//! Histograms of durations. Any thread may update them, and reading them blocks no thread.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Upper bound of the first bucket, in ns; each further bound is four times the previous one.
const FIRST_BOUND_NS: u64 = 250;
/// Number of bounds. The last bound is 16.8 s; longer durations have a bucket of their own.
const BOUNDS: u32 = 14;

/// Number of calls and posted accesses of which one is timed, because reading the clock twice takes a tenth of the time
/// of a short call.
const TIMED_ONE_IN: u64 = 16;

/// Kinds of durations that application threads measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timed {
    Call,
    Read,
    Write,
    Atomic,
}

impl Timed {
    pub(crate) const ALL: [Timed; 4] = [Timed::Call, Timed::Read, Timed::Write, Timed::Atomic];

    /// Returns the label of this kind in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Timed::Call => "call",
            Timed::Read => "read",
            Timed::Write => "write",
            Timed::Atomic => "atomic",
        }
    }

    /// Returns true if a thread must time its next operation, after `before` earlier ones.
    pub(crate) fn is_next(before: u64) -> bool {
        before.is_multiple_of(TIMED_ONE_IN)
    }
}

/// The histograms of all durations that application threads measure.
#[derive(Debug, Default)]
pub(crate) struct Timings([Histogram; Timed::ALL.len()]);

impl Timings {
    pub(crate) fn of(&self, timed: Timed) -> &Histogram {
        &self.0[timed as usize]
    }
}

/// A histogram, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS as usize + 1],
    sum_ns: AtomicU64,
}

/// A snapshot of a histogram.
#[derive(Debug)]
pub(crate) struct HistogramSnapshot {
    /// Number of durations up to each bound, with the bound in seconds; `None` is the bound of all durations.
    pub(crate) at_most: Vec<(Option<f64>, u64)>,
    pub(crate) sum_s: f64,
    pub(crate) count: u64,
}

impl Clone for Histogram {
    fn clone(&self) -> Histogram {
        let of = |from: &AtomicU64| AtomicU64::new(from.load(Relaxed));
        Histogram { buckets: std::array::from_fn(|index| of(&self.buckets[index])), sum_ns: of(&self.sum_ns) }
    }
}

impl Histogram {
    pub(crate) fn record(&self, ns: u64) {
        // The counters order nothing, and a snapshot may mix moments.
        self.buckets[bucket_of(ns)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> HistogramSnapshot {
        let mut count = 0;
        let bounds = (0..BOUNDS).map(|index| Some(bound_ns(index) as f64 / 1e9)).chain([None]);
        let at_most = bounds.zip(&self.buckets).map(|(bound, bucket)| {
            count += bucket.load(Relaxed);
            (bound, count)
        });
        HistogramSnapshot { at_most: at_most.collect(), sum_s: self.sum_ns.load(Relaxed) as f64 / 1e9, count }
    }
}

fn bound_ns(index: u32) -> u64 {
    FIRST_BOUND_NS << (2 * index)
}

fn bucket_of(ns: u64) -> usize {
    (0..BOUNDS).find(|index| ns <= bound_ns(*index)).unwrap_or(BOUNDS) as usize
}
