//! How long things take: histograms that any thread feeds, and whose reader stops nobody.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// What is at most so long falls into the first bucket, in ns; each next one reaches four times as far.
const FIRST_BOUND_NS: u64 = 250;
/// Bounds: the last is 16.8 s, and what is longer has a bucket of its own.
const BOUNDS: u32 = 14;

/// One of so many calls, and of accesses that are posted, is timed: reading the clock twice takes a tenth of the time of a short call.
const ONE_IN: u64 = 16;

/// What is timed by threads of the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timed {
    Call,
    Read,
    Write,
    Atomic,
}

impl Timed {
    pub(crate) const ALL: [Timed; 4] = [Timed::Call, Timed::Read, Timed::Write, Timed::Atomic];

    /// Its name in a label.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Timed::Call => "call",
            Timed::Read => "read",
            Timed::Write => "write",
            Timed::Atomic => "atomic",
        }
    }

    /// Whether one is timed that is behind so many of its thread.
    pub(crate) fn is_next(before: u64) -> bool {
        before.is_multiple_of(ONE_IN)
    }
}

/// All that is timed by threads of the application.
#[derive(Debug, Default)]
pub(crate) struct Timings([Histogram; Timed::ALL.len()]);

impl Timings {
    pub(crate) fn of(&self, timed: Timed) -> &Histogram {
        &self.0[timed as usize]
    }
}

/// How often something took how long.  On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS as usize + 1],
    sum_ns: AtomicU64,
}

/// What a histogram held at one moment.
#[derive(Debug)]
pub(crate) struct Taken {
    /// How often it took at most so many seconds; `None` for any.
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
    pub(crate) fn note(&self, ns: u64) {
        // The numbers order nothing, and need not be of one moment.
        self.buckets[bucket_of(ns)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
    }

    pub(crate) fn taken(&self) -> Taken {
        let mut count = 0;
        let bounds = (0..BOUNDS).map(|index| Some(bound_ns(index) as f64 / 1e9)).chain([None]);
        let at_most = bounds.zip(&self.buckets).map(|(bound, bucket)| {
            count += bucket.load(Relaxed);
            (bound, count)
        });
        Taken { at_most: at_most.collect(), sum_s: self.sum_ns.load(Relaxed) as f64 / 1e9, count }
    }
}

fn bound_ns(index: u32) -> u64 {
    FIRST_BOUND_NS << (2 * index)
}

fn bucket_of(ns: u64) -> usize {
    (0..BOUNDS).find(|index| ns <= bound_ns(*index)).unwrap_or(BOUNDS) as usize
}
