//! `fetch_add_lat` and `cas_lat`: atomics on words of the peer, beside the processor's own on a plain shared mapping.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::baseline::{self, Words};
use super::bench::Bench;
use super::job::WordVerb;
use super::measure::Measured;
use super::report::Row;

/// Threads that swap have a cache line each; those that add share one word, so that nothing added may be lost.
const LINE_BYTES: u64 = 64;

/// The only row.
pub fn measure(bench: &mut Bench<'_>, verb: WordVerb) -> anyhow::Result<Row> {
    let bytes = bench.job.threads as u64 * LINE_BYTES;
    let lh = bench.regions(1, bytes, |_| None)?[0];
    let words = bench.baseline(|| Words::new(bytes))?;
    let session = &bench.ends.session;
    let added = AtomicU64::new(0);
    let mut row = bench.measure(bench.threads(), |thread, (), timer| {
        let offset = if verb == WordVerb::FetchAdd { 0 } else { thread as u64 * LINE_BYTES };
        let (mut changes, mut bare_changes, mut errors) = (0, 0, 0);
        let change = || {
            let is_right = match verb {
                // Others add to the same word; nobody else swaps ours.
                WordVerb::FetchAdd => session.fetch_add(lh, offset, 1)? >= changes,
                WordVerb::CompareSwap => session.compare_swap(lh, offset, changes, changes + 1)? == changes,
            };
            errors += u64::from(!is_right);
            changes += 1;
            Ok(())
        };
        let bare = words.as_ref().map(|words| {
            let word = words.at(offset);
            move || {
                match verb {
                    WordVerb::FetchAdd => baseline::fetch_add(word, 1),
                    WordVerb::CompareSwap => baseline::compare_swap(word, bare_changes, bare_changes + 1),
                };
                bare_changes += 1;
                Ok(())
            }
        });
        let measured = timer.operations(change, bare)?;
        // Relaxed: the sum is read when the threads have ended.
        added.fetch_add(changes, Relaxed);
        Ok(Measured { errors, ..measured })
    })?;
    if verb == WordVerb::FetchAdd {
        row.errors += u64::from(session.fetch_add(lh, 0, 0)? != added.into_inner());
    }
    Ok(row)
}
