//! Reads and writes at random places, beside bare words or copies at the same places of a plain mapping.
//!
//! The places are drawn before anything is timed, by a generator with a fixed seed, and each is touched once:
//! what is timed is finding them, not making their pages.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;

use anyhow::Context;
use halite::{AccessError, Lh, Permissions, Placement, blocking};

use super::baseline::{self, Words};
use super::cores::pin;
use super::ends::Ends;
use super::gate::{self, Seat};
use super::job::{Job, Verb};
use super::measure::{Schedule, Series, alternate, estimate_ns};
use super::report::{BaselineKind, Row};

/// Most places of one thread's sequence; it is run through again when it ends.  16 MiB of places do not fit the
/// caches, so that each is found cold again.
const PLACES_MAX: u64 = 1 << 20;

/// Any number would do; a fixed one makes runs comparable.
const SEED: u64 = 0x0000_4841_4C49_5445;

/// The one size that random tests have.
pub fn run(
    job: &Job,
    ends: &mut Ends,
    verb: Verb,
    regions: u64,
    region_bytes: u64,
    report: &mut dyn FnMut(Row) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let alloc = |_| ends.session.alloc(None, region_bytes, Placement::On(ends.peer), Permissions::all());
    let made: Result<Vec<Lh>, _> = (0..regions).map(alloc).collect();
    let made = made.context("cannot make the regions")?;
    let words = Words::new(regions * region_bytes).context("no memory for the baseline")?;
    for size in &job.sizes {
        report(measure(job, ends, &Field { verb, regions: &made, region_bytes, words: &words }, *size)?)?;
    }
    for lh in made {
        ends.session.free(lh)?;
    }
    Ok(())
}

/// Where the operations go.
struct Field<'a> {
    verb: Verb,
    regions: &'a [Lh],
    region_bytes: u64,
    words: &'a Words,
}

fn measure(job: &Job, ends: &Ends, field: &Field<'_>, size: u64) -> anyhow::Result<Row> {
    let iterations = job.iterations(size);
    let measured: anyhow::Result<Vec<(u64, Series, Series, u64)>> = std::thread::scope(|scope| {
        let work = move |thread: usize, seat: Seat| {
            pin(ends.cores.of_client(thread)).context("cannot stay on the client's core")?;
            measure_thread(ends, field, size, iterations, thread as u64, &seat)
        };
        let threads: Vec<_> = (gate::seats(job.threads).into_iter().enumerate())
            .map(|(thread, seat)| scope.spawn(move || work(thread, seat)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a measuring thread does not panic")).collect()
    });
    let mut row = Row::new(size, iterations);
    for (batch, ours, bare, errors) in measured? {
        row.batch = batch;
        row.ours.merge(&ours);
        row.errors += errors;
        row.merge_baseline(BaselineKind::of_random(field.verb, size), &bare);
    }
    Ok(row)
}

fn measure_thread(
    ends: &Ends,
    field: &Field<'_>,
    size: u64,
    iterations: u64,
    thread: u64,
    seat: &Seat,
) -> anyhow::Result<(u64, Series, Series, u64)> {
    let session = &ends.session;
    let places = draw(field, size, iterations.min(PLACES_MAX), SEED + thread);
    let ours: Vec<(Lh, u64)> =
        places.iter().map(|place| (field.regions[place.region], place.offset)).collect();
    let bare: Vec<u64> =
        places.iter().map(|place| place.region as u64 * field.region_bytes + place.offset).collect();
    drop(places);

    // All threads write the same, for they may draw the same place.
    let payload: Vec<u8> = (0..size).map(|at| at as u8 ^ 0xC3).collect();
    // What is written is not there before, and what is read is not in the buffer: else work that is left out would
    // not be noticed.
    let before: Vec<u8> = match field.verb {
        Verb::Write => payload.iter().map(|byte| !byte).collect(),
        Verb::Read => payload.clone(),
    };
    for (lh, offset) in &ours {
        session.write(*lh, *offset, &before)?;
    }
    bare.iter().for_each(|offset| field.words.write(*offset, &payload));
    let mut buffer = vec![0; payload.len()];
    let mut bare_buffer = payload.clone();

    let mut access = Access { session, places: &ours, payload: &payload, buffer: &mut buffer };
    let words: Vec<&AtomicU64> = bare.iter().map(|offset| field.words.at(*offset)).collect();
    let (mut next_word, mut next_bare) = (words.iter().cycle(), bare.iter().cycle());
    let mut word = || *next_word.next().expect("there is at least one place");
    let mut offset = || *next_bare.next().expect("there is at least one place");
    let (schedule, (of_ours, of_bare)) = match (BaselineKind::of_random(field.verb, size), field.verb) {
        (BaselineKind::Store, _) => access.writes(iterations, seat, || baseline::store(word(), size)),
        (BaselineKind::Load, _) => access.reads(iterations, seat, || {
            baseline::load(word());
        }),
        (_, Verb::Write) => {
            access.writes(iterations, seat, || field.words.write(offset(), black_box(&payload)))
        }
        (_, Verb::Read) => {
            access.reads(iterations, seat, || field.words.read(offset(), black_box(&mut bare_buffer)))
        }
    }?;

    let mut errors = u64::from(field.verb == Verb::Read && buffer != payload);
    for (lh, offset) in &ours {
        session.read(*lh, *offset, &mut buffer)?;
        errors += u64::from(buffer != payload);
    }
    Ok((schedule.batch, of_ours, of_bare, errors))
}

/// What one thread does.
struct Access<'a> {
    session: &'a blocking::Session,
    places: &'a [(Lh, u64)],
    payload: &'a [u8],
    buffer: &'a mut [u8],
}

type Timed = Result<(Schedule, (Series, Series)), AccessError>;

impl Access<'_> {
    fn reads(&mut self, iterations: u64, seat: &Seat, bare: impl FnMut()) -> Timed {
        let mut places = self.places.iter().cycle();
        timed(iterations, seat, bare, || {
            let (lh, offset) = places.next().expect("there is at least one place");
            self.session.read(*lh, *offset, self.buffer)
        })
    }

    fn writes(&mut self, iterations: u64, seat: &Seat, bare: impl FnMut()) -> Timed {
        let mut places = self.places.iter().cycle();
        timed(iterations, seat, bare, || {
            let (lh, offset) = places.next().expect("there is at least one place");
            self.session.write(*lh, *offset, self.payload)
        })
    }
}

fn timed<E>(
    iterations: u64,
    seat: &Seat,
    bare: impl FnMut(),
    mut ours: impl FnMut() -> Result<(), E>,
) -> Result<(Schedule, (Series, Series)), E> {
    let schedule = Schedule::new(iterations, estimate_ns(iterations, &mut ours)?);
    let (of_ours, of_bare) = alternate(schedule, seat, ours, Some(bare))?;
    Ok((schedule, (of_ours, of_bare.expect("a baseline was given"))))
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
    let mut random = SplitMix(seed);
    // Multiples of a word too, for that is what small sizes are compared with.
    let step = size.next_multiple_of(8);
    let slots = (field.region_bytes - size) / step + 1;
    let mut place = |_| Place {
        region: random.below(field.regions.len() as u64) as usize,
        offset: random.below(slots) * step,
    };
    (0..count).map(&mut place).collect()
}

/// The generator of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number between 0 and 1, neither of which it is.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// A number below `bound`; the bias is below one in 2^32 for every bound that occurs here.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_numbers() {
        // The first outputs for seed 1234567 of the reference implementation.
        let mut random = SplitMix(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn numbers_between_0_and_1_have_the_mean_and_variance_of_such() {
        let mut random = SplitMix(SEED);
        let drawn: Vec<f64> = (0..10_000).map(|_| random.unit()).collect();
        let mean = drawn.iter().sum::<f64>() / 1e4;
        let variance = drawn.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.01 && (variance - 1.0 / 12.0).abs() < 0.005, "{mean} {variance}");
    }

    #[test]
    fn numbers_below_a_bound_reach_all_of_it() {
        let mut random = SplitMix(SEED);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }
}
