//! Hands out seeds in order to threads that run trials.
//!
//! Every trial that starts runs to its end. So the first failing seed is the same with any number of threads.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use halite_trials::{Keep, PlanError, Report};

use super::panics;
use super::plans::Source;
use crate::threads;

/// Plans and remaining seeds. Seed `n` runs plan `n` modulo the number of plans.
pub struct Walk {
    sources: Vec<Source>,
    /// The remaining seeds.
    seeds: Mutex<Range<u64>>,
    /// Time after which no trial starts; `None` without a limit.
    end: Option<Instant>,
}

impl Walk {
    /// Creates the walk; `sources` must have at least one plan.
    pub fn new(sources: Vec<Source>, seeds: Range<u64>, end: Option<Instant>) -> Walk {
        assert!(!sources.is_empty(), "a walk has a plan");
        Walk { sources, seeds: Mutex::new(seeds), end }
    }

    /// Returns the plan of a seed.
    pub fn source(&self, seed: u64) -> &Source {
        &self.sources[(seed % self.sources.len() as u64) as usize]
    }

    /// Runs one trial on the calling thread.
    pub fn run(&self, seed: u64, keep: Keep) -> Result<Report, PlanError> {
        let source = self.source(seed);
        panics::in_trial(source, seed, || halite_trials::run(&source.plan, seed, keep))
    }

    /// Prevents further trials from starting.
    pub fn stop(&self) {
        let mut seeds = self.seeds.lock().expect(POISONED);
        seeds.end = seeds.start;
    }

    /// Runs all trials on `threads` threads, and passes reports to `receive` in the order in which trials end.
    pub fn run_all<T>(
        &self,
        threads: NonZeroUsize,
        receive: impl FnOnce(Receiver<Result<Report, PlanError>>) -> T,
    ) -> T {
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let start = |_: &usize| {
                let sender = sender.clone();
                threads::spawn_in(scope, move || self.work(&sender)).is_ok()
            };
            // Fewer threads do if the system refuses more.
            if (0..threads.get()).take_while(start).count() == 0 {
                self.work(&sender);
            }
            drop(sender);
            receive(receiver)
        })
    }

    fn work(&self, reports: &Sender<Result<Report, PlanError>>) {
        while let Some(seed) = self.next() {
            // The receiver is gone after an error; then the report is lost.
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

const POISONED: &str = "no thread panics while it holds the seeds";
