//! Reads and writes of the same bytes over and over, beside bare copies of as many.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use halite::{AccessError, BatchError, Lh, Permissions, Placement, ReadOp, WriteOp, blocking};

use super::baseline::{Copier, Direction};
use super::cores::pin;
use super::ends::Ends;
use super::gate::{self, Seat};
use super::job::{Job, Verb};
use super::measure::{Schedule, Series, alternate, estimate_ns};
use super::report::{BaselineKind, Row};
use super::server::{Reply, Request, checksum};

impl From<Verb> for Direction {
    fn from(verb: Verb) -> Direction {
        match verb {
            Verb::Read => Direction::Read,
            Verb::Write => Direction::Write,
        }
    }
}

/// All sizes.
pub fn run(
    job: &Job,
    ends: &mut Ends,
    verb: Verb,
    report: &mut dyn FnMut(Row) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let regions = Regions::make(job, ends)?;
    for size in &job.sizes {
        report(measure(job, ends, &regions, verb, *size)?)?;
    }
    regions.free(ends)
}

/// One region at the peer for each thread.
struct Regions(Vec<(String, Lh)>);

impl Regions {
    fn make(job: &Job, ends: &Ends) -> anyhow::Result<Regions> {
        let make = |thread| {
            // The pid tells apart those who measure in one cluster at the same time.
            let name = format!("perf-{}-{thread}", std::process::id());
            let placement = Placement::On(ends.peer);
            let lh = ends.session.alloc(Some(&name), job.size_max(), placement, Permissions::all())?;
            anyhow::Ok((name, lh))
        };
        let regions: anyhow::Result<Vec<_>> = (0..job.threads).map(make).collect();
        Ok(Regions(regions?))
    }

    fn free(self, ends: &Ends) -> anyhow::Result<()> {
        for (name, lh) in self.0 {
            ends.session.free(lh).with_context(|| format!("cannot free {name:?}"))?;
        }
        Ok(())
    }
}

fn measure(job: &Job, ends: &mut Ends, regions: &Regions, verb: Verb, size: u64) -> anyhow::Result<Row> {
    let iterations = job.iterations(size);
    let measured: anyhow::Result<Vec<Measured>> = std::thread::scope(|scope| {
        let (session, cores) = (&ends.session, &ends.cores);
        let work = move |thread: usize, lh: Lh, seat: Seat| {
            pin(cores.of_client(thread)).context("cannot stay on the client's core")?;
            let task = Task { session, lh, verb, size, thread, iterations, has_baseline: job.has_baseline };
            if job.together > 1 { task.run_together(&seat, job.together) } else { task.run(&seat) }
        };
        let threads: Vec<_> = (regions.0.iter().zip(gate::seats(job.threads)).enumerate())
            .map(|(thread, ((_, lh), seat))| scope.spawn(move || work(thread, *lh, seat)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a measuring thread does not panic")).collect()
    });
    let mut row = Row::new(size, iterations);
    for (thread, measured) in measured?.into_iter().enumerate() {
        row.batch = measured.batch;
        row.ours.merge(&measured.ours);
        if let Some(bare) = measured.bare {
            row.merge_baseline(BaselineKind::Memcpy, &bare);
        }
        row.errors += measured.errors + u64::from(!is_at_peer(ends, &regions.0[thread], size, thread)?);
    }
    if job.together > 1 {
        row.extra.extend([("window", job.together as f64), ("batch", job.together as f64)]);
    }
    Ok(row)
}

/// Whether the peer sees in `region` what a thread should have left there.
fn is_at_peer(ends: &mut Ends, region: &(String, Lh), size: u64, thread: usize) -> anyhow::Result<bool> {
    let expected = payload(size, thread);
    let (name, lh) = region;
    let Some(server) = ends.server() else {
        let mut found = vec![0; expected.len()];
        ends.session.read(*lh, 0, &mut found)?;
        return Ok(found == expected);
    };
    server.send(&Request::Checksum { name: name.clone(), len: size })?;
    match server.reply()? {
        Reply::Checksum(found) => Ok(found == checksum(&expected)),
        other => bail!("the server process says {other:?} instead of a checksum"),
    }
}

/// What one thread found.
struct Measured {
    batch: u64,
    ours: Series,
    bare: Option<Series>,
    errors: u64,
}

/// What one thread does.
struct Task<'a> {
    session: &'a blocking::Session,
    lh: Lh,
    verb: Verb,
    size: u64,
    thread: usize,
    iterations: u64,
    has_baseline: bool,
}

impl Task<'_> {
    fn run(self, seat: &Seat) -> anyhow::Result<Measured> {
        let expected = payload(self.size, self.thread);
        let mut buffer = expected.clone();
        let mut copier = match self.has_baseline {
            true => Some(Copier::new(self.verb.into(), self.size).context("no memory for the baseline")?),
            false => None,
        };
        let bare = copier.as_mut().map(|copier| || copier.copy());
        self.prepare(&expected)?;
        let (schedule, (ours, bare)) = match self.verb {
            Verb::Read => {
                buffer.fill(0);
                self.alternate(seat, || self.session.read(self.lh, 0, &mut buffer), bare)?
            }
            Verb::Write => self.alternate(seat, || self.session.write(self.lh, 0, &buffer), bare)?,
        };
        Ok(Measured { batch: schedule.batch, ours, bare, errors: u64::from(buffer != expected) })
    }

    /// Puts there what is to be found by reads and overwritten by writes.
    fn prepare(&self, expected: &[u8]) -> Result<(), AccessError> {
        let before: Vec<u8> = match self.verb {
            Verb::Read => expected.to_vec(),
            Verb::Write => expected.iter().map(|byte| !byte).collect(),
        };
        self.session.write(self.lh, 0, &before)
    }

    /// With `count` operations begun together.  Each round is a batch: what runs empty in between is part of it.
    fn run_together(self, seat: &Seat, count: usize) -> anyhow::Result<Measured> {
        let expected = payload(self.size, self.thread);
        self.prepare(&expected)?;
        let (lh, offset) = (self.lh, 0);
        match self.verb {
            Verb::Read => {
                let mut buffers = vec![vec![0; expected.len()]; count];
                let mut reads: Vec<_> = buffers.iter_mut().map(|into| ReadOp { lh, offset, into }).collect();
                let mut most = 0;
                let measured = self.rounds(seat, count, |count| {
                    most = most.max(count);
                    self.session.read_batch(&mut reads[..count])
                })?;
                let errors = buffers[..most].iter().filter(|buffer| **buffer != expected).count() as u64;
                Ok(Measured { errors, ..measured })
            }
            Verb::Write => {
                let writes = vec![WriteOp { lh, offset, from: &expected }; count];
                self.rounds(seat, count, |count| self.session.write_batch(&writes[..count]))
            }
        }
    }

    /// Has `run` do operations, as many as it is told and at most `count`, until all have been done.
    fn rounds(
        &self,
        seat: &Seat,
        count: usize,
        mut run: impl FnMut(usize) -> Result<(), BatchError>,
    ) -> anyhow::Result<Measured> {
        let mut timed = |operations: u64| {
            let (begin, mut left) = (Instant::now(), operations as usize);
            while left > 0 {
                let part = left.min(count);
                run(part)?;
                left -= part;
            }
            Ok::<Duration, BatchError>(begin.elapsed())
        };
        timed((self.iterations / 10).clamp(1, 1000))?;
        let schedule = Schedule::new(self.iterations, f64::MAX);
        let (mut ours, mut batch) = (Series::default(), 1);
        seat.wait();
        for operations in schedule.rounds() {
            batch = operations;
            ours.round_of_batches(operations, operations, &mut timed)?;
        }
        Ok(Measured { batch, ours, bare: None, errors: 0 })
    }

    fn alternate(
        &self,
        seat: &Seat,
        mut ours: impl FnMut() -> Result<(), AccessError>,
        bare: Option<impl FnMut()>,
    ) -> anyhow::Result<(Schedule, (Series, Option<Series>))> {
        let schedule = Schedule::new(self.iterations, estimate_ns(self.iterations, &mut ours)?);
        Ok((schedule, alternate(schedule, seat, ours, bare)?))
    }
}

/// What thread `thread` writes, or should read.
fn payload(size: u64, thread: usize) -> Vec<u8> {
    (0..size)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16)).wrapping_mul(0x9D).wrapping_add(thread as u64 + 1) as u8)
        .collect()
}
