//! `alloc_lat` and `map_lat`: what it costs to make a region, and to map one.

use std::time::Instant;

use halite::{AllocOptions, Lh, Permissions, Placement, blocking};

use super::baseline::Pages;
use super::bench::Bench;
use super::report::Row;

/// Times making regions; freeing them is not timed.  Those whose memory is taken at once stand beside bare pages.
pub fn alloc(bench: &mut Bench<'_>, populate: bool) -> anyhow::Result<Row> {
    let (session, size) = (&bench.ends.session, bench.size);
    let placement = Placement::On(bench.ends.peer);
    let options = AllocOptions { placement, populate, ..Default::default() };
    let alloc = || session.alloc_with(None, size, options.clone());
    let pages = if populate { bench.baseline(|| Pages::new(size))? } else { None };
    let row = bench.measure(bench.threads(), |_, (), timer| {
        let ours = || {
            let begin = Instant::now();
            let lh = alloc()?;
            let took = begin.elapsed();
            session.free(lh)?;
            Ok(took)
        };
        timer.singly(ours, pages.as_ref().map(|pages| || pages.take()))
    })?;
    // The last one is used once, to see that they are regions.
    let lh = alloc()?;
    session.write(lh, size - 1, &[LAST])?;
    let errors = errors(session, lh, size)?;
    session.free(lh)?;
    Ok(Row { errors, ..row })
}

/// Times mapping; unmapping is not timed.
pub fn map(bench: &mut Bench<'_>) -> anyhow::Result<Row> {
    let (session, size) = (&bench.ends.session, bench.size);
    let name = format!("perf-{}-map", std::process::id());
    let made = session.alloc(Some(&name), size, Placement::On(bench.ends.peer), Permissions::empty())?;
    session.write(made, size - 1, &[LAST])?;
    let row = bench.measure(bench.threads(), |_, (), timer| {
        let ours = || {
            let begin = Instant::now();
            let lh = session.map(&name, Permissions::READ | Permissions::WRITE)?;
            let took = begin.elapsed();
            session.unmap(lh)?;
            Ok(took)
        };
        timer.singly(ours, None::<fn() -> _>)
    })?;
    let lh = session.map(&name, Permissions::READ)?;
    let errors = errors(session, lh, size)?;
    session.unmap(lh)?;
    session.free(made)?;
    Ok(Row { errors, ..row })
}

/// What the last byte of a region is.
const LAST: u8 = 0xA5;

/// Whether (one) it is another.
fn errors(session: &blocking::Session, lh: Lh, size: u64) -> anyhow::Result<u64> {
    let mut last = [0];
    session.read(lh, size - 1, &mut last)?;
    Ok(u64::from(last != [LAST]))
}
