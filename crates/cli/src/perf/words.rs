//! `fetch_add_lat` and `cas_lat`: atomics on the peer's words, compared with the processor's atomics on a plain
//! mapping.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::baseline::{self, Words};
use super::report::ATOMIC;
use super::workload::{Bench, Measured, PerfArgs, Plan, Planned, SAME_BYTES, Timer, WORD_BYTES, Workload};

/// Length of a cache line, in bytes. Threads that swap use one line each; threads that add share a word, so that lost
/// additions are detected.
const LINE_BYTES: u64 = 64;

/// Value of the parameter `IS_ADD` for swaps.
pub const SWAPS: bool = false;
/// Value of the parameter `IS_ADD` for additions.
pub const ADDS: bool = true;

pub fn plan<const IS_ADD: bool>(_: &PerfArgs) -> Planned {
    Ok(Plan { baseline: ATOMIC, ..Plan::of_one_size::<Word<IS_ADD>>(SAME_BYTES, WORD_BYTES) })
}

/// State of a thread: its word.
pub struct Word<const IS_ADD: bool> {
    offset: u64,
    words: Option<Words>,
    /// Sum that all threads have added.
    added: Arc<AtomicU64>,
    errors: u64,
}

impl<const IS_ADD: bool> Workload for Word<IS_ADD> {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Self>> {
        let bytes = bench.job.threads as u64 * LINE_BYTES;
        bench.make_regions(1, bytes)?;
        let words = bench.baseline(|| Words::new(bytes))?;
        let added = Arc::new(AtomicU64::new(0));
        let worker = |thread| {
            let offset = if IS_ADD { 0 } else { thread as u64 * LINE_BYTES };
            Word { offset, words: words.clone(), added: added.clone(), errors: 0 }
        };
        Ok((0..bench.job.threads).map(worker).collect())
    }

    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        let (session, lh, offset) = (&bench.end.session, bench.regions[0], self.offset);
        let (mut changes, mut baseline_changes, mut errors) = (0, 0, 0);
        let change = || {
            let is_right = match IS_ADD {
                // Other threads add to the same word, so it may be higher; only this thread swaps its own word.
                true => session.fetch_add(lh, offset, 1)? >= changes,
                false => session.compare_swap(lh, offset, changes, changes + 1)? == changes,
            };
            errors += u64::from(!is_right);
            changes += 1;
            Ok(())
        };
        let baseline = self.words.as_ref().map(|words| {
            let word = words.at(offset);
            move || {
                match IS_ADD {
                    true => baseline::fetch_add(word, 1),
                    false => baseline::compare_swap(word, baseline_changes, baseline_changes + 1),
                };
                baseline_changes += 1;
                Ok(())
            }
        });
        let measured = timer.operations(change, baseline)?;
        self.errors = errors;
        // Relaxed: the sum is read after the threads have ended.
        self.added.fetch_add(changes, Relaxed);
        Ok(measured)
    }

    fn verify(self, bench: &mut Bench) -> anyhow::Result<u64> {
        let is_lost =
            IS_ADD && bench.end.session.fetch_add(bench.regions[0], 0, 0)? != self.added.load(Relaxed);
        Ok(self.errors + u64::from(is_lost))
    }
}
