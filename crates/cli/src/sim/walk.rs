//! Walking seeds: which trial is next, and threads that run one after the other.
//!
//! Seeds are handed out in order, and all that were handed out are run to their end.  So the first seed that fails is
//! the same one with any number of threads.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use halite_trials::{Keep, PlanError, Report};

use super::panics;
use super::plans::Source;

/// Trials: seed `n` with plan `n` modulo their number.
pub struct Walk {
    sources: Vec<Source>,
    /// What is left.
    seeds: Mutex<Range<u64>>,
    /// When no more is begun.
    end: Option<Instant>,
}

impl Walk {
    /// A walk from the first seed on, with at least one plan.
    pub fn new(sources: Vec<Source>, seeds: Range<u64>, end: Option<Instant>) -> Walk {
        assert!(!sources.is_empty(), "a walk has a plan");
        Walk { sources, seeds: Mutex::new(seeds), end }
    }

    /// The plan that a seed is run with.
    pub fn source(&self, seed: u64) -> &Source {
        &self.sources[(seed % self.sources.len() as u64) as usize]
    }

    /// Runs one trial, on the calling thread.
    pub fn run(&self, seed: u64, keep: Keep) -> Result<Report, PlanError> {
        let source = self.source(seed);
        panics::in_trial(source, seed, || halite_trials::run(&source.plan, seed, keep))
    }

    /// Begins no more trials.
    pub fn stop(&self) {
        let mut seeds = self.seeds.lock().expect(POISONED);
        seeds.end = seeds.start;
    }

    /// Runs all trials on so many threads, and hands reports to `hear` in the order in which trials end.
    pub fn run_all<T>(
        &self,
        threads: NonZeroUsize,
        hear: impl FnOnce(Receiver<Result<Report, PlanError>>) -> T,
    ) -> T {
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            for _ in 0..threads.get() {
                let sender = sender.clone();
                scope.spawn(move || self.work(&sender));
            }
            drop(sender);
            hear(receiver)
        })
    }

    fn work(&self, reports: &Sender<Result<Report, PlanError>>) {
        while let Some(seed) = self.next() {
            // Nobody listens any more after an error.
            if reports.send(self.run(seed, Keep::Nothing)).is_err() {
                return;
            }
        }
    }

    fn next(&self) -> Option<u64> {
        if self.end.is_some_and(|end| Instant::now() >= end) {
            return None;
        }
        self.seeds.lock().expect(POISONED).next()
    }
}

const POISONED: &str = "nothing panics while it holds the seeds";
