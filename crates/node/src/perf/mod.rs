//! `halite perf`: what the operations cost, beside what bare memory costs in the same run.
//!
//! Both ends are processes of their own, pinned to cores of their own, in a private cluster, unless told
//! otherwise ([`cores`]).  [`measure`] and [`baseline`] know nothing of Halite and can time anything.

mod access;
mod args;
mod barriers;
pub mod baseline;
mod bulk;
mod calls;
pub mod cores;
mod crew;
mod echo;
mod ends;
pub mod gate;
mod job;
mod load;
mod locks;
pub mod measure;
mod messages;
mod occupancy;
mod parcel;
mod pingpong;
mod random;
mod regions;
mod report;
mod server;
mod values;
mod words;

use std::path::Path;

use anyhow::bail;

pub use args::{PerfArgs, ServerArgs};
pub use server::serve;

use ends::Ends;
use job::{Job, Kind};
use report::{Report, Row};

/// Runs one test in all its sizes.  Fails if an operation failed or the data was not what it should be.
///
/// `dir` is the cluster directory if the user named one; it is used only together with a peer.
pub fn run(dir: Option<&Path>, args: &PerfArgs) -> anyhow::Result<()> {
    let mut job = Job::new(args)?;
    let mut ends = Ends::open(dir, &job)?;
    // A node that runs already is reached by whatever both have.
    job.fabric = ends.provider()?;
    let report = Report::new(&job, args.json);
    report.begin()?;
    let mut errors = 0;
    measure_all(&job, &mut ends, &mut |row: Row| {
        errors += row.errors;
        report.row(&row)
    })?;
    ends.close()?;
    if errors > 0 {
        bail!("{errors} times the data was not what had been written");
    }
    Ok(())
}

fn measure_all(
    job: &Job,
    ends: &mut Ends,
    report: &mut dyn FnMut(Row) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    match job.kind {
        Kind::PingPong => pingpong::run(job, ends, report),
        Kind::Access(verb) => access::run(job, ends, verb, report),
        Kind::Random { verb, regions, region_bytes } => {
            random::run(job, ends, verb, regions, region_bytes, report)
        }
        Kind::Alloc { .. } => regions::alloc(job, ends, report),
        Kind::Map => regions::map(job, ends, report),
        Kind::Calls { window, .. } => calls::run(job, ends, window, report),
        Kind::Load { rate, is_sweep } => load::run(job, ends, rate, is_sweep, report),
        Kind::Memory => occupancy::run(job, ends, report),
        Kind::Messages => messages::run(job, ends, report),
        Kind::Words(verb) => words::run(job, ends, verb, report),
        Kind::Bulk(verb) => bulk::run(job, ends, verb, report),
        Kind::Lock => locks::run(job, ends, report),
        Kind::Barrier => barriers::run(job, ends, report),
    }
}
