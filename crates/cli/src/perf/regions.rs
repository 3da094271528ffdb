//! `alloc_lat` and `map_lat`: latency of creating and of mapping a region.

use std::time::{Duration, Instant};

use halite::{AllocOptions, Lh, Permissions, Placement, RegionError};

use super::baseline::Pages;
use super::parcel::differs;
use super::report::PAGES;
use super::workload::{Bench, IN_TURN, Measured, PerfArgs, Plan, Planned, SIZE_LIMIT, Timer, Workload};

/// Plans allocations; with --populate, compared with bare page faults.
pub fn plan_alloc(args: &PerfArgs) -> Planned {
    let plan = Plan { baseline: PAGES, ..plan::<Alloc>() };
    Ok(if args.populate { Plan { size: 4 << 20, bytes: 1 << 30, ..plan } } else { plan })
}

pub fn plan_map(_: &PerfArgs) -> Planned {
    Ok(plan::<Map>())
}

/// Creates the plan of a test that copies no bytes, so that its size is unlimited.
fn plan<W: Workload>() -> Plan {
    let limits = vec![(1..=u64::MAX, SIZE_LIMIT)];
    Plan { size: 4 << 10, limits, bytes: u64::MAX, iterations_max: 10_000, ..Plan::of::<W>(IN_TURN) }
}

/// Contents of a region's last byte.
const LAST: &[u8] = &[0xA5];

/// Returns the time of `make`, without that of `end`.
fn timed(
    make: impl FnOnce() -> Result<Lh, RegionError>,
    end: impl FnOnce(Lh) -> Result<(), RegionError>,
) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    let lh = make()?;
    let took = begin.elapsed();
    end(lh)?;
    Ok(took)
}

/// The baseline, if there is one.
#[derive(Clone)]
struct Alloc(Option<Pages>);

impl Alloc {
    fn alloc(bench: &Bench) -> Result<Lh, RegionError> {
        let (placement, populate) = (Placement::On(bench.end.peer), bench.job.args.populate);
        let options = AllocOptions { placement, populate, ..Default::default() };
        bench.end.session.alloc_with(None, bench.size, options)
    }
}

impl Workload for Alloc {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Alloc>> {
        let has_baseline = bench.job.args.populate;
        let pages = if has_baseline { bench.baseline(|| Pages::new(bench.size))? } else { None };
        Ok(vec![Alloc(pages); bench.job.threads])
    }

    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        let ours = || timed(|| Alloc::alloc(bench), |lh| bench.end.session.free(lh));
        timer.singly(ours, self.0.as_ref().map(|pages| || pages.take()))
    }

    /// Writes and reads one more region, after the timing.
    fn verify(self, bench: &mut Bench) -> anyhow::Result<u64> {
        let (session, lh) = (&bench.end.session, Alloc::alloc(bench)?);
        session.write(lh, bench.size - 1, LAST)?;
        let errors = differs(session, lh, bench.size - 1, LAST)?;
        session.free(lh)?;
        Ok(errors)
    }
}

/// Name of the mapped region.
#[derive(Clone)]
struct Map(String);

impl Map {
    fn map(&self, bench: &Bench) -> Result<Lh, RegionError> {
        bench.end.session.map(&self.0, Permissions::READ | Permissions::WRITE)
    }
}

impl Workload for Map {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Map>> {
        let (session, there) = (&bench.end.session, Placement::On(bench.end.peer));
        let name = format!("perf-{}-map-{}", std::process::id(), bench.size);
        let made = session.alloc(Some(&name), bench.size, there, Permissions::empty())?;
        session.write(made, bench.size - 1, LAST)?;
        bench.regions.push(made);
        Ok(vec![Map(name); bench.job.threads])
    }

    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        let ours = || timed(|| self.map(bench), |lh| bench.end.session.unmap(lh));
        timer.singly(ours, None::<fn() -> _>)
    }

    fn verify(self, bench: &mut Bench) -> anyhow::Result<u64> {
        let (session, lh) = (&bench.end.session, self.map(bench)?);
        let errors = differs(session, lh, bench.size - 1, LAST)?;
        session.unmap(lh)?;
        Ok(errors)
    }
}
