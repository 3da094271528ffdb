//! `fill_lat` and `copy_lat`: bytes of the peer that do not pass through the caller.
//!
//! A fill is compared with memset, and a copy with what it saves: reading the bytes, and writing them back.

use halite::{Lh, blocking};

use super::baseline::Direction;
use super::bench::Bench;
use super::job::BulkVerb;
use super::measure::{Measured, Timer, sure};
use super::parcel::pattern;
use super::report::Row;

/// What fills write; what was there before is another byte.
const BYTE: u8 = 0xA7;

/// Of one size, on two regions for each thread.
pub fn measure(bench: &mut Bench<'_>, verb: BulkVerb) -> anyhow::Result<Row> {
    let regions = bench.regions(2 * bench.job.threads as u64, bench.job.size_max(), |_| None)?;
    let pairs = regions.chunks(2).map(|pair| (pair[0], pair[1])).collect();
    bench.measure(pairs, |thread, (to, from), timer| match verb {
        BulkVerb::Fill => fill(bench, to, &timer),
        BulkVerb::Copy => copy(bench, to, from, &pattern(bench.size, thread), &timer),
    })
}

fn fill(bench: &Bench<'_>, to: Lh, timer: &Timer) -> anyhow::Result<Measured> {
    let (session, size) = (&bench.ends.session, bench.size);
    session.write(to, 0, &vec![!BYTE; size as usize])?;
    let mut filler = bench.copier(Direction::Fill)?;
    let bare = filler.as_mut().map(|filler| sure(|| filler.copy()));
    let measured = timer.operations(|| Ok(session.fill(to, 0, size, BYTE)?), bare)?;
    Ok(Measured { errors: errors(session, to, &vec![BYTE; size as usize])?, ..measured })
}

fn copy(bench: &Bench<'_>, to: Lh, from: Lh, bytes: &[u8], timer: &Timer) -> anyhow::Result<Measured> {
    let (session, size) = (&bench.ends.session, bench.size);
    session.write(from, 0, bytes)?;
    session.fill(to, 0, size, 0)?;
    let copy = || Ok(session.copy(to, 0, from, 0, size)?);
    // Before the baseline, which would hide a copy that was left out.
    copy()?;
    let errors_before = errors(session, to, bytes)?;
    let mut buffer = vec![0; bytes.len()];
    // What the caller would do without copies.
    let read_and_write = || {
        session.read(from, 0, &mut buffer)?;
        Ok(session.write(to, 0, &buffer)?)
    };
    let measured = timer.operations(copy, bench.job.has_baseline.then_some(read_and_write))?;
    Ok(Measured { errors: errors_before + errors(session, to, bytes)?, ..measured })
}

/// Whether (one) the region does not begin with `expected`.
fn errors(session: &blocking::Session, lh: Lh, expected: &[u8]) -> anyhow::Result<u64> {
    let mut found = vec![0; expected.len()];
    session.read(lh, 0, &mut found)?;
    Ok(u64::from(found != expected))
}
