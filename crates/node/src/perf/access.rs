//! Reads and writes of the same bytes over and over, beside bare copies of as many.

use anyhow::bail;
use halite::{Lh, ReadOp, WriteOp, blocking};

use super::baseline::Direction;
use super::bench::Bench;
use super::job::Verb;
use super::measure::{Measured, Timer, sure};
use super::parcel::{inverse, pattern};
use super::report::Row;
use super::server::{Reply, Request, checksum};

/// Of one size.
pub fn measure(bench: &mut Bench<'_>, verb: Verb) -> anyhow::Result<Row> {
    let job = bench.job;
    let regions = bench.regions(job.threads as u64, job.size_max(), |thread| Some(name(thread as usize)))?;
    let (session, size, count) = (&bench.ends.session, bench.size, job.together);
    let mut row = bench.measure(regions.clone(), |thread, lh, timer| {
        let bytes = pattern(size, thread);
        match (verb, count) {
            (Verb::Read, 1) => reads(bench, lh, &bytes, &timer),
            (Verb::Write, 1) => writes(bench, lh, &bytes, &timer),
            (Verb::Read, _) => reads_together(session, lh, &bytes, count, &timer),
            (Verb::Write, _) => writes_together(session, lh, &bytes, count, &timer),
        }
    })?;
    for (thread, lh) in regions.into_iter().enumerate() {
        row.errors += u64::from(!is_at_peer(bench, thread, lh)?);
    }
    if count > 1 {
        row.extra.extend([("window", count as f64), ("batch", count as f64)]);
    }
    Ok(row)
}

/// The region of a thread.  The pid tells apart those who measure in one cluster at the same time.
fn name(thread: usize) -> String {
    format!("perf-{}-{thread}", std::process::id())
}

/// Whether the peer sees what a thread should have left there.
fn is_at_peer(bench: &mut Bench<'_>, thread: usize, lh: Lh) -> anyhow::Result<bool> {
    let expected = pattern(bench.size, thread);
    let Some(server) = bench.ends.server() else {
        let mut found = vec![0; expected.len()];
        bench.ends.session.read(lh, 0, &mut found)?;
        return Ok(found == expected);
    };
    server.send(&Request::Checksum { name: name(thread), len: bench.size })?;
    match server.reply()? {
        Reply::Checksum(found) => Ok(found == checksum(&expected)),
        other => bail!("the server process says {other:?} instead of a checksum"),
    }
}

fn reads(bench: &Bench<'_>, lh: Lh, bytes: &[u8], timer: &Timer) -> anyhow::Result<Measured> {
    let session = &bench.ends.session;
    let mut copier = bench.copier(Direction::Read)?;
    let bare = copier.as_mut().map(|copier| sure(|| copier.copy()));
    session.write(lh, 0, bytes)?;
    let mut buffer = vec![0; bytes.len()];
    let measured = timer.operations(|| Ok(session.read(lh, 0, &mut buffer)?), bare)?;
    Ok(Measured { errors: u64::from(buffer != bytes), ..measured })
}

fn writes(bench: &Bench<'_>, lh: Lh, bytes: &[u8], timer: &Timer) -> anyhow::Result<Measured> {
    let session = &bench.ends.session;
    let mut copier = bench.copier(Direction::Write)?;
    let bare = copier.as_mut().map(|copier| sure(|| copier.copy()));
    // Else writes that are left out would not be noticed.
    session.write(lh, 0, &inverse(bytes))?;
    timer.operations(|| Ok(session.write(lh, 0, bytes)?), bare)
}

/// With `count` of them begun together.
fn reads_together(
    session: &blocking::Session,
    lh: Lh,
    bytes: &[u8],
    count: usize,
    timer: &Timer,
) -> anyhow::Result<Measured> {
    session.write(lh, 0, bytes)?;
    let mut buffers = vec![vec![0; bytes.len()]; count];
    let mut reads: Vec<_> = buffers.iter_mut().map(|into| ReadOp { lh, offset: 0, into }).collect();
    let mut most = 0;
    let measured = timer.overlapping(in_parts(count, |count| {
        most = most.max(count);
        Ok(session.read_batch(&mut reads[..count])?)
    }))?;
    let errors = buffers[..most].iter().filter(|buffer| **buffer != bytes).count() as u64;
    Ok(Measured { errors, ..measured })
}

/// As [`reads_together`].
fn writes_together(
    session: &blocking::Session,
    lh: Lh,
    bytes: &[u8],
    count: usize,
    timer: &Timer,
) -> anyhow::Result<Measured> {
    session.write(lh, 0, &inverse(bytes))?;
    let writes = vec![WriteOp { lh, offset: 0, from: bytes }; count];
    timer.overlapping(in_parts(count, |count| Ok(session.write_batch(&writes[..count])?)))
}

/// Has `run` do operations, as many as it is told and at most `count`, until all have been done.
fn in_parts(
    count: usize,
    mut run: impl FnMut(usize) -> anyhow::Result<()>,
) -> impl FnMut(u64) -> anyhow::Result<()> {
    move |operations| {
        let mut left = operations as usize;
        while left > 0 {
            let part = left.min(count);
            run(part)?;
            left -= part;
        }
        Ok(())
    }
}
