//! `fetch_add_lat` and `cas_lat`: atomics on words of the peer, beside the processor's own on a plain shared mapping.

use anyhow::Context;
use halite::{AccessError, Lh, Permissions, Placement, blocking};

use super::baseline::{self, Words};
use super::crew;
use super::ends::Ends;
use super::gate::Seat;
use super::job::{Job, WordVerb};
use super::measure::{Schedule, Series, alternate, estimate_ns};
use super::report::{BaselineKind, Row};

/// Threads that swap have a cache line each; those that add share one word, so that nothing added may be lost.
const LINE_BYTES: u64 = 64;

/// The only size.
pub fn run(
    job: &Job,
    ends: &mut Ends,
    verb: WordVerb,
    report: &mut dyn FnMut(Row) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let bytes = job.threads as u64 * LINE_BYTES;
    let lh = ends.session.alloc(None, bytes, Placement::On(ends.peer), Permissions::all())?;
    let words = Words::new(bytes).context("no memory for the baseline")?;
    let iterations = job.iterations(job.size_max());
    let task = |thread, seat: Seat| {
        let offset = offset(verb, thread);
        let bare = job.has_baseline.then_some(&words);
        Task { session: &ends.session, lh, offset, verb, bare, iterations }.run(&seat)
    };
    let cores = &ends.cores;
    let mut row = Row::new(job.size_max(), iterations);
    let mut added = 0;
    for measured in crew::run(job.threads, |thread| cores.of_client(thread), task)? {
        row.batch = measured.schedule.batch;
        row.ours.merge(&measured.ours);
        if let Some(bare) = measured.bare {
            row.merge_baseline(BaselineKind::Atomic, &bare);
        }
        row.errors += measured.errors;
        added += measured.changes;
    }
    if verb == WordVerb::FetchAdd {
        row.errors += u64::from(ends.session.fetch_add(lh, 0, 0)? != added);
    }
    ends.session.free(lh)?;
    report(row)
}

fn offset(verb: WordVerb, thread: usize) -> u64 {
    match verb {
        WordVerb::FetchAdd => 0,
        WordVerb::CompareSwap => thread as u64 * LINE_BYTES,
    }
}

/// What one thread does.
struct Task<'a> {
    session: &'a blocking::Session,
    lh: Lh,
    offset: u64,
    verb: WordVerb,
    bare: Option<&'a Words>,
    iterations: u64,
}

/// What it found.
struct Measured {
    schedule: Schedule,
    ours: Series,
    bare: Option<Series>,
    /// How often it changed the word.
    changes: u64,
    errors: u64,
}

impl Task<'_> {
    fn run(self, seat: &Seat) -> anyhow::Result<Measured> {
        let (mut changes, mut errors) = (0, 0);
        let mut change = || {
            let old = self.change(changes)?;
            errors += u64::from(!self.may_have_been(old, changes));
            changes += 1;
            Ok::<(), AccessError>(())
        };
        let schedule = Schedule::new(self.iterations, estimate_ns(self.iterations, &mut change)?);
        let mut bare_changes = 0;
        let bare = self.bare.map(|words| {
            let word = words.at(self.offset);
            move || {
                match self.verb {
                    WordVerb::FetchAdd => baseline::fetch_add(word, 1),
                    WordVerb::CompareSwap => baseline::compare_swap(word, bare_changes, bare_changes + 1),
                };
                bare_changes += 1;
            }
        });
        let (ours, bare) = alternate(schedule, seat, change, bare)?;
        Ok(Measured { schedule, ours, bare, changes, errors })
    }

    #[inline]
    fn change(&self, so_far: u64) -> Result<u64, AccessError> {
        match self.verb {
            WordVerb::FetchAdd => self.session.fetch_add(self.lh, self.offset, 1),
            WordVerb::CompareSwap => self.session.compare_swap(self.lh, self.offset, so_far, so_far + 1),
        }
    }

    /// Others add to the same word; nobody else swaps ours.
    fn may_have_been(&self, old: u64, so_far: u64) -> bool {
        match self.verb {
            WordVerb::FetchAdd => old >= so_far,
            WordVerb::CompareSwap => old == so_far,
        }
    }
}
