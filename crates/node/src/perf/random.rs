//! Reads and writes at random places, beside bare words or copies at the same places of a plain mapping.
//!
//! The places are drawn before anything is timed, by a generator with a fixed seed, and each is touched once:
//! what is timed is finding them, not making their pages.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;

use fastrand::Rng;
use halite::Lh;

use super::baseline::{self, Words};
use super::bench::Bench;
use super::job::Verb;
use super::measure::{Measured, Timer, sure};
use super::parcel::{inverse, pattern};
use super::report::{BaselineKind, Row};

/// Most places of one thread's sequence; it is run through again when it ends.  16 MiB of places do not fit the
/// caches, so that each is found cold again.
const PLACES_MAX: u64 = 1 << 20;

/// Any number would do; a fixed one makes runs comparable.
const SEED: u64 = 0x0000_4841_4C49_5445;

/// The one size that random tests have.
pub fn measure(bench: &mut Bench<'_>, verb: Verb, count: u64, region_bytes: u64) -> anyhow::Result<Row> {
    let regions = bench.regions(count, region_bytes, |_| None)?;
    let words = bench.baseline(|| Words::new(count * region_bytes))?;
    let field = Field { verb, regions: &regions, region_bytes, words: words.as_ref() };
    bench.measure(bench.threads(), |thread, (), timer| measure_thread(bench, &field, thread, &timer))
}

/// Where the operations go.
struct Field<'a> {
    verb: Verb,
    regions: &'a [Lh],
    region_bytes: u64,
    words: Option<&'a Words>,
}

fn measure_thread(
    bench: &Bench<'_>,
    field: &Field<'_>,
    thread: usize,
    timer: &Timer,
) -> anyhow::Result<Measured> {
    let (session, size, words) = (&bench.ends.session, bench.size, field.words);
    let places = draw(field, size, timer.operations.min(PLACES_MAX), SEED + thread as u64);
    let ours: Vec<(Lh, u64)> =
        places.iter().map(|place| (field.regions[place.region], place.offset)).collect();
    let bare: Vec<u64> =
        places.iter().map(|place| place.region as u64 * field.region_bytes + place.offset).collect();
    drop(places);

    // All threads write the same, for they may draw the same place.
    let payload = pattern(size, 0);
    // What is written is not there before, and what is read is not in the buffer: else work that is left out would
    // not be noticed.
    let before = if field.verb == Verb::Write { inverse(&payload) } else { payload.clone() };
    for (lh, offset) in &ours {
        session.write(*lh, *offset, &before)?;
    }
    if let Some(words) = words {
        bare.iter().for_each(|offset| words.write(*offset, &payload));
    }
    let mut buffer = vec![0; payload.len()];
    let mut bare_buffer = payload.clone();

    let at: Vec<&AtomicU64> = words.iter().flat_map(|words| bare.iter().map(|at| words.at(*at))).collect();
    let (mut places, mut at, mut offsets) = (ours.iter().cycle(), at.iter().cycle(), bare.iter().cycle());
    let mut place = || *places.next().expect("there is at least one place");
    let mut word = || *at.next().expect("there is at least one place");
    let mut offset = || *offsets.next().expect("there is at least one place");
    let are_words = BaselineKind::of_random(field.verb, size) != BaselineKind::Memcpy;
    let measured = match field.verb {
        Verb::Read => {
            let ours = || {
                let (lh, offset) = place();
                Ok(session.read(lh, offset, &mut buffer)?)
            };
            let load = words.map(|_| sure(|| baseline::load(word())));
            let copy = words.map(|words| sure(|| words.read(offset(), black_box(&mut bare_buffer))));
            if are_words { timer.operations(ours, load) } else { timer.operations(ours, copy) }
        }
        Verb::Write => {
            let ours = || {
                let (lh, offset) = place();
                Ok(session.write(lh, offset, &payload)?)
            };
            let store = words.map(|_| sure(|| baseline::store(word(), size)));
            let copy = words.map(|words| sure(|| words.write(offset(), black_box(&payload))));
            if are_words { timer.operations(ours, store) } else { timer.operations(ours, copy) }
        }
    }?;

    let mut errors = u64::from(field.verb == Verb::Read && buffer != payload);
    for (lh, offset) in &ours {
        session.read(*lh, *offset, &mut buffer)?;
        errors += u64::from(buffer != payload);
    }
    Ok(Measured { errors, ..measured })
}

/// Where one operation goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    region: usize,
    offset: u64,
}

/// Draws places at which `size` bytes fit.  Two of them are the same or do not overlap: else the bytes of one
/// would be found where those of another are expected.
fn draw(field: &Field<'_>, size: u64, count: u64, seed: u64) -> Vec<Place> {
    let mut random = Rng::with_seed(seed);
    // Multiples of a word too, for that is what small sizes are compared with.
    let step = size.next_multiple_of(8);
    let slots = (field.region_bytes - size) / step + 1;
    let mut place =
        |_| Place { region: random.usize(0..field.regions.len()), offset: random.u64(0..slots) * step };
    (0..count).map(&mut place).collect()
}
