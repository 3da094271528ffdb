//! Reads and writes at random places (offsets in regions), compared with bare accesses at the same places of a plain
//! mapping.
//!
//! A generator with a fixed seed draws the places before the timing, and each place is touched once. So the measured
//! time includes the lookup of regions, but no page faults.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;

use fastrand::Rng;
use halite::Lh;

use super::access;
use super::baseline::{self, Words};
use super::job::wrong;
use super::measure::infallible;
use super::parcel::{differs, inverse, pattern};
use super::report::{LOAD, MEMCPY, STORE};
use super::workload::{Bench, Measured, PerfArgs, Plan, Planned, Timer, WORD_BYTES, Workload};

/// Maximum length of a thread's sequence of places, which repeats. The sequence takes 16 MiB, more than the caches, so
/// that each place is cold.
const PLACES_MAX: u64 = 1 << 20;

/// Seed of the places; fixed, so that runs are comparable.
const SEED: u64 = 0x0000_4841_4C49_5445;

/// Default length of a region in bytes: a cache line, so that regions share none; also the minimum of an arena.
const REGION_BYTES_MIN: u64 = 64;

pub fn plan<const IS_WRITE: bool>(args: &PerfArgs) -> Planned {
    if args.all {
        return Err(wrong("-a cannot be combined with --regions or --span: choose one size with -s"));
    }
    if args.window.is_some() {
        return Err(wrong("random operations run one at a time: omit --window and --batch"));
    }
    let (regions, region_bytes) = regions(args);
    let mut plan =
        access::default_plan::<Random<IS_WRITE>>(args, "one operation after the other at random places");
    plan.limits.push((0..=region_bytes, "--span must have room for -s bytes in each region"));
    plan.baseline = match are_words(args.size.map_or(plan.size, |size| size.0)) {
        true if IS_WRITE => STORE,
        true => LOAD,
        false => MEMCPY,
    };
    // One arena for all rows: the regions are allocated once.
    let arena_bytes = regions.saturating_mul(region_bytes.max(REGION_BYTES_MIN));
    Ok(Plan { arena_sizes: 0, arena_bytes, ..plan })
}

/// Returns the number of regions, and the bytes of each.
pub fn regions(args: &PerfArgs) -> (u64, u64) {
    let regions = args.regions.unwrap_or(1);
    let size = args.size.map_or(WORD_BYTES, |size| size.0);
    let least = size.next_multiple_of(REGION_BYTES_MIN);
    (regions, args.span.map_or(least, |span| span.0 / regions / WORD_BYTES * WORD_BYTES))
}

/// Returns true if the baseline accesses bare words; otherwise it copies.
fn are_words(size: u64) -> bool {
    size <= WORD_BYTES
}

/// State of a thread: its places.
pub struct Random<const IS_WRITE: bool> {
    places: Vec<(Lh, u64)>,
    /// Offsets of the same places in the plain mapping.
    offsets: Vec<u64>,
    words: Option<Words>,
    /// Bytes to write or expect; the same in all threads, since two may draw the same place.
    payload: Vec<u8>,
    buffer: Vec<u8>,
}

impl<const IS_WRITE: bool> Workload for Random<IS_WRITE> {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Self>> {
        let (count, region_bytes) = regions(&bench.job.args);
        bench.make_regions(count, region_bytes)?;
        let words = bench.baseline(|| Words::new(count * region_bytes))?;
        let worker = |thread| {
            let (payload, places) = (pattern(bench.size, 0), bench.iterations.min(PLACES_MAX));
            let drawn = draw(bench.regions.len(), region_bytes, bench.size, places, SEED + thread as u64);
            let places = drawn.iter().map(|(region, offset)| (bench.regions[*region], *offset)).collect();
            let offsets =
                drawn.iter().map(|(region, offset)| *region as u64 * region_bytes + offset).collect();
            let (words, buffer) = (words.clone(), vec![0; payload.len()]);
            Random { places, offsets, words, payload, buffer }
        };
        let workers: Vec<Self> = (0..bench.job.threads).map(worker).collect();
        for Random { places, offsets, words, payload, .. } in &workers {
            // Before a write the region holds other bytes, before a read the buffer, to detect missing operations.
            let before = if IS_WRITE { inverse(payload) } else { payload.clone() };
            places.iter().try_for_each(|(lh, offset)| bench.end.session.write(*lh, *offset, &before))?;
            words.iter().for_each(|words| offsets.iter().for_each(|offset| words.write(*offset, payload)));
        }
        Ok(workers)
    }

    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        let Random { places, offsets, words, payload, buffer } = self;
        let (session, words) = (&bench.end.session, words.as_ref());
        let at: Vec<&AtomicU64> =
            words.iter().flat_map(|words| offsets.iter().map(|at| words.at(*at))).collect();
        let (mut place, mut word, mut offset) = (endless(places), endless(&at), endless(offsets));
        let (are_words, mut baseline_buffer) = (are_words(bench.size), payload.clone());
        if IS_WRITE {
            let ours = || {
                let (lh, offset) = place();
                Ok(session.write(lh, offset, payload)?)
            };
            let store = words.map(|_| infallible(|| baseline::store(word(), bench.size)));
            let copy = words.map(|words| infallible(|| words.write(offset(), black_box(payload))));
            return if are_words { timer.operations(ours, store) } else { timer.operations(ours, copy) };
        }
        let ours = || {
            let (lh, offset) = place();
            Ok(session.read(lh, offset, buffer)?)
        };
        let load = words.map(|_| infallible(|| baseline::load(word())));
        let copy = words.map(|words| infallible(|| words.read(offset(), black_box(&mut baseline_buffer))));
        if are_words { timer.operations(ours, load) } else { timer.operations(ours, copy) }
    }

    fn verify(self, bench: &mut Bench) -> anyhow::Result<u64> {
        let mut errors = u64::from(!IS_WRITE && self.buffer != self.payload);
        for (lh, offset) in self.places {
            errors += differs(&bench.end.session, lh, offset, &self.payload)?;
        }
        Ok(errors)
    }
}

/// Returns a function that repeats a sequence without end.
fn endless<T: Copy>(all: &[T]) -> impl FnMut() -> T {
    let mut all = all.iter().cycle();
    move || *all.next().expect("there is at least one place")
}

/// Draws places for `size` bytes, each as a region's index and an offset. Two places are equal or disjoint, so that
/// none overwrites a part of another.
fn draw(regions: usize, region_bytes: u64, size: u64, count: u64, seed: u64) -> Vec<(usize, u64)> {
    let mut random = Rng::with_seed(seed);
    // Offsets are multiples of a word, since small sizes are compared with words.
    let step = size.next_multiple_of(WORD_BYTES);
    let slots = (region_bytes - size) / step + 1;
    (0..count).map(|_| (random.usize(0..regions), random.u64(0..slots) * step)).collect()
}
