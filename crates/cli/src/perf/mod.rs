//! `halite perf`: measures the cost of operations, and the cost of bare memory in the same run.
//!
//! Both ends are separate processes in a private cluster, pinned to separate cores by default ([`cores`]). [`table`]
//! lists the tests, [`workload`] defines the interface of a test, and [`bench`] runs a test; [`measure`] and
//! [`baseline`] are independent of Halite.

mod access;
mod args;
mod barriers;
mod baseline;
mod bench;
mod bulk;
mod calls;
mod cores;
mod echo;
mod end;
mod fan_in;
mod gate;
mod job;
mod load;
mod locks;
pub mod measure;
mod messages;
mod networks;
mod occupancy;
mod pairs;
mod parcel;
mod pingpong;
mod pinned;
mod qos;
mod random;
mod regions;
mod relay;
mod report;
mod server;
mod table;
mod values;
mod words;
mod workload;

use std::path::Path;

use anyhow::bail;

pub use args::{PerfArgs, ServerArgs};
pub use fan_in::{FanInArgs, serve as serve_fan_in};
pub use server::serve;

use bench::Bench;
use job::Job;

use crate::target::Target;

/// Runs one test in all its sizes. Fails if an operation or the verification fails.
///
/// `dir` is the cluster directory if the user named one; only `--peer` uses it.
pub fn run(dir: Option<&Path>, args: &PerfArgs) -> anyhow::Result<()> {
    match args.test.name {
        table::NETWORKS => return networks::run(args),
        table::FAN_IN => return fan_in::run(args),
        table::QOS => return qos::run(dir, args),
        _ => {}
    }
    let job = Job::new(args)?;
    let target = Target::new(args.svg.as_deref(), None, args.force)?;
    let mut bench = Bench::open(dir, job)?;
    report::begin(&bench.job)?;
    let (mut errors, mut rows) = (0, Vec::new());
    for (size, slowdown) in bench.job.points() {
        let row = bench.row(size, slowdown)?;
        errors += row.errors;
        report::row(&bench.job, &row)?;
        rows.push(row);
    }
    target.write_svg(|| report::svg(&bench.job, &rows))?;
    bench.close()?;
    if errors > 0 {
        bail!("verification failed: {errors} times the data differed from what was written");
    }
    Ok(())
}
