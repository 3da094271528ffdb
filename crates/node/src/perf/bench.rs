//! What a workload finds before it measures one row: the two ends, a size, and how often to operate on it.

use std::io;

use anyhow::Context;
use halite::{Lh, Permissions, Placement};

use super::baseline::{Copier, Direction};
use super::crew;
use super::ends::Ends;
use super::job::Job;
use super::measure::{Measured, Timer};
use super::pingpong::Table;
use super::report::Row;

/// What all workloads have in common.
pub struct Bench<'a> {
    /// What is to be measured.
    pub job: &'a Job,
    /// Both ends.
    pub ends: &'a mut Ends,
    /// Regions at the peer, which are there until the last row has been measured.
    pub regions: Vec<Lh>,
    /// The regions of a ping-pong, likewise.
    pub table: Option<Table>,
    /// Bytes of one operation.
    pub size: u64,
    /// Operations of each thread.
    pub iterations: u64,
}

impl<'a> Bench<'a> {
    /// Of no size yet.
    pub fn new(job: &'a Job, ends: &'a mut Ends) -> Bench<'a> {
        Bench { job, ends, regions: Vec::new(), table: None, size: 0, iterations: 0 }
    }

    /// Frees the regions.
    pub fn end(self) -> anyhow::Result<()> {
        self.regions.into_iter().try_for_each(|lh| Ok(self.ends.session.free(lh)?))
    }

    /// The regions at the peer: so many of so many bytes, made for the first row.  Those that the server is to find have
    /// names.
    pub fn regions(
        &mut self,
        count: u64,
        bytes: u64,
        name: impl Fn(u64) -> Option<String>,
    ) -> anyhow::Result<Vec<Lh>> {
        if self.regions.is_empty() {
            let on = || Placement::On(self.ends.peer);
            let make =
                |number| self.ends.session.alloc(name(number).as_deref(), bytes, on(), Permissions::all());
            self.regions =
                (0..count).map(make).collect::<Result<_, _>>().context("cannot make the regions")?;
        }
        Ok(self.regions.clone())
    }

    /// A share of the work for each thread, where they share nothing.
    pub fn threads(&self) -> Vec<()> {
        vec![(); self.job.threads]
    }

    /// Has a thread measure for each of `shares`; the sum of what they found.
    pub fn measure<S: Send>(
        &self,
        shares: Vec<S>,
        work: impl Fn(usize, S, Timer) -> anyhow::Result<Measured> + Sync,
    ) -> anyhow::Result<Row> {
        let (cores, operations) = (&self.ends.cores, self.iterations);
        let mut row = Row::new(self.size, operations);
        let timed = |thread, share, participant| work(thread, share, Timer { participant, operations });
        for measured in crew::run(shares, |thread| cores.of_client(thread), timed)? {
            row.add(self.job.baseline(self.size), &measured);
        }
        Ok(row)
    }

    /// What `make` makes of bare memory, if that is to be measured.
    pub fn baseline<T>(&self, make: impl FnOnce() -> io::Result<T>) -> anyhow::Result<Option<T>> {
        self.job.has_baseline.then(make).transpose().context("no memory for the baseline")
    }

    /// Bare copies of as many bytes.
    pub fn copier(&self, direction: Direction) -> anyhow::Result<Option<Copier>> {
        self.baseline(|| Copier::new(direction, self.size))
    }
}
