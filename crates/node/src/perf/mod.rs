//! `halite perf`: what the operations cost, beside what bare memory costs in the same run.
//!
//! Both ends are processes of their own, pinned to cores of their own, in a private cluster, unless told
//! otherwise ([`cores`]).  [`measure`] and [`baseline`] know nothing of Halite and can time anything.

mod access;
mod args;
mod barriers;
pub mod baseline;
mod bench;
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
mod pairs;
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

use bench::Bench;
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
    let mut bench = Bench::new(&job, &mut ends);
    for (size, slowdown) in job.points() {
        bench.size = size;
        // Fewer calls that come more slowly, so that each point takes as long.
        bench.iterations = (job.iterations(size) / slowdown).max(1);
        let row = measure(&mut bench, slowdown)?;
        errors += row.errors;
        report.row(&row)?;
    }
    bench.end()?;
    ends.close()?;
    if errors > 0 {
        bail!("{errors} times the data was not what had been written");
    }
    Ok(())
}

/// The workloads: each makes what it needs, has its threads time operations, and looks whether the data is right.
fn measure(bench: &mut Bench<'_>, slowdown: u64) -> anyhow::Result<Row> {
    match bench.job.kind {
        Kind::PingPong => pingpong::players(bench).and_then(|players| pairs::lead(bench, players)),
        Kind::Access(verb) => access::measure(bench, verb),
        Kind::Random { verb, regions, region_bytes } => random::measure(bench, verb, regions, region_bytes),
        Kind::Alloc { populate } => regions::alloc(bench, populate),
        Kind::Map => regions::map(bench),
        Kind::Calls(calls) => calls.measure(bench),
        Kind::Load { rate, .. } => load::measure(bench, rate as f64 / slowdown as f64),
        Kind::Memory => occupancy::measure(bench),
        Kind::Messages => {
            let (session, peer) = (&bench.ends.session, bench.ends.peer);
            let pairs = messages::correspondents(session, peer, bench.job.threads, bench.size)?;
            pairs::lead(bench, pairs)
        }
        Kind::Words(verb) => words::measure(bench, verb),
        Kind::Bulk(verb) => bulk::measure(bench, verb),
        Kind::Lock => locks::measure(bench),
        Kind::Barrier => {
            let members = barriers::members(bench.ends.sessions(bench.job.threads));
            pairs::lead(bench, members)
        }
    }
}
