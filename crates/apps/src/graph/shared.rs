//! Runs the steps of a computation on distributed shared memory: values are words in shared pages, which all workers
//! load from and store to.
//!
//! ```text
//!  half 0   worker 0: sums, values ... | worker 1: sums, values ... | ...      steps 0, 2, 4, ...
//!  half 1   worker 0: sums, values ... | worker 1: sums, values ... | ...      steps 1, 3, 5, ...
//! ```
//!
//! The words of a worker fill whole pages, so that only this worker stores to them. A step acquires its pages to store
//! new values, and then acquires all words of the half to load the values of neighbours. As in the ordinary engine, one
//! barrier per step is enough, because a worker stores to a half again only after all have loaded from it. A value that
//! has not changed is not stored, so its page stays valid in the caches of the others.

use std::ops::Range;

use halite::blocking;

use super::engine::{Crowd, Program, SUMS};
use super::error::GraphError;
use super::load::Shard;
use crate::dsm::{Access, Dsm, Options};

/// Bytes of a word.
const WORD: u64 = 8;

/// Places of words in one half of the shared pages.
struct Layout {
    /// Bytes of each worker.
    areas: Vec<Range<u64>>,
    /// Offset of the value of each vertex.
    values: Vec<u64>,
    half_bytes: u64,
}

impl Layout {
    fn new(owners: &[Range<usize>], page_bytes: u64) -> Layout {
        let (mut areas, mut values, mut at) = (Vec::new(), Vec::new(), 0);
        for owned in owners {
            let first = at + SUMS as u64 * WORD;
            values.extend((0..owned.len() as u64).map(|place| first + place * WORD));
            let end = first + owned.len() as u64 * WORD;
            areas.push(at..end);
            at = end.next_multiple_of(page_bytes);
        }
        Layout { areas, values, half_bytes: at }
    }
}

/// Runs steps until the program is done. Returns the number of steps, and the last values of all vertices.
pub(super) fn run<P: Program>(
    session: &blocking::Session,
    crowd: &Crowd,
    shard: &Shard,
    program: &mut P,
) -> Result<(u64, Vec<u64>), GraphError> {
    let page_bytes = rustix::param::page_size() as u64;
    let layout = Layout::new(&shard.owners, page_bytes);
    let options = Options {
        name: Crowd::shared(&crowd.name),
        me: crowd.me,
        workers: crowd.workers,
        pages: (2 * layout.half_bytes / page_bytes) as usize,
        patience: crowd.patience,
    };
    let dsm = Dsm::open(session, options)?;
    let own = shard.owners[crowd.me].clone();
    let mut values: Vec<u64> = (0..own.len()).map(|place| program.start(place)).collect();
    let mut step = 0;
    loop {
        let half = step % 2 * layout.half_bytes;
        let area = layout.areas[crowd.me].clone();
        let section = dsm.acquire(half + area.start..half + area.end, Access::Write)?;
        let sums = program.take_sums().map(f64::to_bits);
        for (at, word) in (area.start..area.end).step_by(WORD as usize).zip(sums.iter().chain(&values)) {
            if dsm.load_u64(half + at)? != *word {
                dsm.store_u64(half + at, *word)?;
            }
        }
        section.release()?;
        dsm.meet()?;
        let all = half..half + layout.half_bytes;
        let section = dsm.acquire(all.clone(), Access::Read)?;
        // Reads all changed pages at the same time, instead of one page per fault.
        dsm.touch(all)?;
        let mut totals = [0.0; SUMS];
        for area in &layout.areas {
            for (total, at) in totals.iter_mut().zip((area.start..).step_by(WORD as usize)) {
                *total += f64::from_bits(dsm.load_u64(half + at)?);
            }
        }
        if program.is_done(step, totals) {
            let last: Result<Vec<u64>, _> =
                layout.values.iter().map(|offset| dsm.load_u64(half + offset)).collect();
            section.release()?;
            dsm.close()?;
            return Ok((step, last?));
        }
        for (place, value) in values.iter_mut().enumerate() {
            let mut accumulator = P::NEUTRAL;
            for source in shard.sources.row(place) {
                let new = dsm.load_u64(half + layout.values[*source as usize])?;
                accumulator = P::fold(accumulator, P::NEUTRAL, new);
            }
            *value = program.apply(place, accumulator, *value);
        }
        section.release()?;
        step += 1;
    }
}
