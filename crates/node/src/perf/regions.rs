//! `alloc_lat` and `map_lat`: what it costs to make a region, and to map one.

use std::time::{Duration, Instant};

use anyhow::Context;
use halite::{AllocOptions, Permissions, Placement};

use super::baseline::Pages;
use super::cores::pin;
use super::ends::Ends;
use super::gate::{self, Seat};
use super::job::{Job, Kind};
use super::measure::{Schedule, Series};
use super::report::{BaselineKind, Row};

type Report<'a> = &'a mut dyn FnMut(Row) -> anyhow::Result<()>;

/// Control operations take microseconds: each is timed by itself.
const SLOW_NS: f64 = f64::MAX;

/// Times making regions; freeing them is not timed.  Those whose memory is taken at once stand beside bare pages.
pub fn alloc(job: &Job, ends: &mut Ends, report: Report<'_>) -> anyhow::Result<()> {
    for size in &job.sizes {
        let session = &ends.session;
        let populate = job.kind == Kind::Alloc { populate: true };
        let options = AllocOptions { placement: Placement::On(ends.peer), populate, ..Default::default() };
        let mut row = measure(job, ends, *size, |_| {
            let begin = Instant::now();
            let lh = session.alloc_with(None, *size, options.clone())?;
            let took = begin.elapsed();
            session.free(lh)?;
            Ok(took)
        })?;
        if populate && job.has_baseline {
            let pages = Pages::new(*size)?;
            let bare = measure(job, ends, *size, |_| pages.take())?;
            row.merge_baseline(BaselineKind::Pages, &bare.ours);
        }
        // The last one is used once, to see that they are regions.
        let lh = session.alloc_with(None, *size, options)?;
        session.write(lh, size - 1, &[0xA5])?;
        let mut last = [0];
        session.read(lh, size - 1, &mut last)?;
        session.free(lh)?;
        report(Row { errors: u64::from(last != [0xA5]), ..row })?;
    }
    Ok(())
}

/// Times mapping; unmapping is not timed.
pub fn map(job: &Job, ends: &mut Ends, report: Report<'_>) -> anyhow::Result<()> {
    for size in &job.sizes {
        let session = &ends.session;
        let name = format!("perf-{}-map", std::process::id());
        let made = session.alloc(Some(&name), *size, Placement::On(ends.peer), Permissions::empty())?;
        session.write(made, size - 1, &[0xA5])?;
        let row = measure(job, ends, *size, |_| {
            let begin = Instant::now();
            let lh = session.map(&name, Permissions::READ | Permissions::WRITE)?;
            let took = begin.elapsed();
            session.unmap(lh)?;
            Ok(took)
        })?;
        let lh = session.map(&name, Permissions::READ)?;
        let mut last = [0];
        session.read(lh, size - 1, &mut last)?;
        session.unmap(lh)?;
        session.free(made)?;
        report(Row { errors: u64::from(last != [0xA5]), ..row })?;
    }
    Ok(())
}

fn measure(
    job: &Job,
    ends: &Ends,
    size: u64,
    operation: impl Fn(u64) -> anyhow::Result<Duration> + Sync,
) -> anyhow::Result<Row> {
    let iterations = job.iterations(size);
    let schedule = Schedule::new(iterations, SLOW_NS);
    let measured: anyhow::Result<Vec<Series>> = std::thread::scope(|scope| {
        let operation = &operation;
        let work = move |thread: usize, seat: Seat| {
            pin(ends.cores.of_client(thread)).context("cannot stay on the client's core")?;
            seat.wait();
            let mut series = Series::default();
            for operations in schedule.rounds() {
                series.round_of_batches(operations, schedule.batch, operation)?;
            }
            anyhow::Ok(series)
        };
        let threads: Vec<_> = (gate::seats(job.threads).into_iter().enumerate())
            .map(|(thread, seat)| scope.spawn(move || work(thread, seat)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a measuring thread does not panic")).collect()
    });
    let mut ours = Series::default();
    for series in measured? {
        ours.merge(&series);
    }
    Ok(Row { batch: schedule.batch, ours, ..Row::new(size, iterations) })
}
