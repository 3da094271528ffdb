//! The master: gives orders to workers, detects dead workers, and merges the sorted runs.

use std::path::PathBuf;
use std::time::Duration;

use halite::{NodeId, NodeState, NodeStatus, Session};
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::desk::{Desk, Order};
use super::error::Error;
use super::exchange::read_sections;
use super::input::{self, Source};
use super::job::Job;
use super::plan::{MASTERS_WORKER, Plan, Run};

/// Minimum time between two checks for dead workers, in ns.
const CHECK_INTERVAL_NS: u64 = 20_000_000;

/// The master of a run. It runs beside worker 0, in the same process.
#[derive(Clone, Copy)]
pub struct Master<'a> {
    /// Session of the master's node.
    pub session: &'a Session,
    /// Server for the requests of the workers.
    pub desk: &'a Desk,
    /// Nodes of the workers, indexed by worker number; the first is the master's node.
    pub nodes: &'a [NodeId],
    /// Clock that measures the phases.
    pub clock: &'a dyn Clock,
}

/// Progress of a run.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes of input that the map phase has processed.
    pub bytes: u64,
    /// Bytes of input.
    pub bytes_total: u64,
}

/// Times of the phases, in seconds.
#[derive(Serialize, Deserialize, Clone, Copy, Default, Debug)]
pub struct Phases {
    /// Time to list the files, and to read them at the worker that took longest.
    pub load: f64,
    /// Time from the end of loading until all results of the map phase were published.
    pub map: f64,
    /// Time from the end of the map phase until all parts were reduced.
    pub reduce: f64,
    /// Time from the end of the reduce phase until the sorted runs were merged.
    pub merge: f64,
}

impl Phases {
    /// Returns the time of the whole run, in seconds.
    pub fn sum(&self) -> f64 {
        self.load + self.map + self.reduce + self.merge
    }
}

/// The answer of a job.
#[derive(Debug)]
pub struct Outcome<R> {
    /// The records, sorted.
    pub records: Vec<R>,
    /// The files that the run has read.
    pub sources: Vec<Source>,
    /// Bytes of input.
    pub bytes: u64,
    /// Sum of the weights of all keys.
    pub weight: u64,
    /// Number of keys.
    pub keys: u64,
    /// Times of the phases.
    pub phases: Phases,
    /// Number of workers that were lost.
    pub lost: u32,
    /// True if each byte was mapped once, and each reduced part has the same weight as the sections from which it was
    /// reduced.
    pub verified: bool,
}

impl Master<'_> {
    /// Leads a run over files and folders. Returns when each worker has received the order to end, or is lost. Closes
    /// the desk before it returns.
    pub async fn lead<J: Job>(
        &self,
        job: &J,
        paths: &[PathBuf],
        on_progress: impl FnMut(Progress),
    ) -> Result<Outcome<J::Record>, Error> {
        let begin_ns = self.clock.now_ns();
        let sources = input::list(paths);
        let tasks = sources.as_ref().map(|sources| input::divide(sources)).unwrap_or_default();
        let bytes_total = sources.iter().flatten().map(|source| source.len).sum();
        let mut plan = Plan::new(tasks, self.nodes.len() as u32);
        let sources = sources.unwrap_or_else(|error| {
            plan.fail(error.to_string());
            Vec::new()
        });
        let listed = since(self.clock, begin_ns);
        let times = Times { begin_ns, listed, mapped: Duration::ZERO, reduced: Duration::ZERO };
        let state =
            RunState { master: self, job, plan, times, checked_ns: begin_ns, bytes_total, on_progress };
        let result = state.lead(sources).await;
        // After a failure, workers may still send requests, which then fail.
        self.desk.close();
        result
    }
}

/// Returns the time since `begin_ns`.
fn since(clock: &dyn Clock, begin_ns: u64) -> Duration {
    Duration::from_nanos(clock.now_ns().saturating_sub(begin_ns))
}

/// Times from the start of the run to the end of each phase.
struct Times {
    begin_ns: u64,
    listed: Duration,
    mapped: Duration,
    reduced: Duration,
}

struct RunState<'a, J, P> {
    master: &'a Master<'a>,
    job: &'a J,
    plan: Plan,
    times: Times,
    /// Time of the last check for dead workers.
    checked_ns: u64,
    bytes_total: u64,
    on_progress: P,
}

impl<J: Job, P: FnMut(Progress)> RunState<'_, J, P> {
    async fn lead(mut self, sources: Vec<Source>) -> Result<Outcome<J::Record>, Error> {
        let mut outcome = None;
        while self.plan.remaining().next().is_some() {
            self.serve().await?;
            if self.plan.has_ended() {
                continue;
            }
            (self.on_progress)(Progress { bytes: self.plan.bytes_mapped(), bytes_total: self.bytes_total });
            if let Some(runs) = self.plan.runs() {
                outcome = self.merge(&runs).await?;
            }
        }
        match (outcome, self.plan.failure()) {
            (Some(outcome), None) => Ok(Outcome { sources, ..outcome }),
            (_, reason) => Err(Error::Failed(reason.unwrap_or("all workers are lost").to_owned())),
        }
    }

    /// Answers one request.
    async fn serve(&mut self) -> Result<(), Error> {
        let (request, pending) = self.master.desk.recv().await?;
        let was_mapped = self.plan.is_mapped();
        self.plan.handle_report(request.worker, request.report);
        let mut order = self.plan.poll_order(request.worker);
        let clock = self.master.clock;
        if order == Order::Wait && clock.now_ns().saturating_sub(self.checked_ns) >= CHECK_INTERVAL_NS {
            self.check_for_losses().await;
            order = self.plan.poll_order(request.worker);
        }
        let now = since(clock, self.times.begin_ns);
        if self.plan.is_mapped() && !(was_mapped && self.times.mapped > Duration::ZERO) {
            self.times.mapped = now;
        }
        self.times.reduced = now;
        pending.answer(&order)
    }

    async fn check_for_losses(&mut self) {
        self.checked_ns = self.master.clock.now_ns();
        // The status is unavailable without the directory of names; the next check tries again.
        let Ok(status) = self.master.session.status().await else { return };
        let others: Vec<u32> = self.plan.remaining().filter(|number| *number != MASTERS_WORKER).collect();
        for number in others {
            let node = self.master.nodes[number as usize];
            if is_down(&status, node) {
                self.plan.handle_loss(number, format!("worker {number}, node {}, is gone", node.0));
            }
        }
    }

    /// Reads and merges the sorted runs. Returns `None` if one was lost.
    async fn merge(&mut self, runs: &[Run]) -> Result<Option<Outcome<J::Record>>, Error> {
        let mut sorted = Vec::new();
        let sections = runs.iter().map(|run| (run.worker, &run.section));
        let add = |bytes: Vec<u8>| {
            sorted.push(postcard::from_bytes::<Vec<J::Record>>(&bytes)?);
            Ok(())
        };
        if let Some((worker, reason)) = read_sections(self.master.session, sections, add).await? {
            self.plan.handle_loss(worker, reason);
            return Ok(None);
        }
        let records = merge_all(self.job, sorted);
        self.plan.complete();
        Ok(Some(self.outcome(records, runs)))
    }

    fn outcome(&self, records: Vec<J::Record>, runs: &[Run]) -> Outcome<J::Record> {
        let Times { begin_ns, listed, mapped, reduced } = self.times;
        let load = listed.as_secs_f64() + self.plan.load_ns() as f64 / 1e9;
        let phases = Phases {
            load,
            map: (mapped.as_secs_f64() - load).max(0.0),
            reduce: (reduced - mapped).as_secs_f64(),
            merge: since(self.master.clock, begin_ns).saturating_sub(reduced).as_secs_f64(),
        };
        let is_verified =
            |run: &Run| run.totals.bytes == self.bytes_total && run.totals.weight == run.section.weight;
        Outcome {
            records,
            sources: Vec::new(),
            bytes: self.bytes_total,
            weight: runs.iter().map(|run| run.section.weight).sum(),
            keys: runs.iter().map(|run| run.keys).sum(),
            phases,
            lost: self.plan.lost(),
            verified: runs.iter().all(is_verified),
        }
    }
}

/// Merges pairs of neighbouring runs until one run is left.
fn merge_all<J: Job>(job: &J, mut runs: Vec<Vec<J::Record>>) -> Vec<J::Record> {
    while runs.len() > 1 {
        let mut rest = runs.into_iter();
        let mut merged = Vec::new();
        while let Some(left) = rest.next() {
            merged.push(match rest.next() {
                Some(right) => job.merge(left, right),
                None => left,
            });
        }
        runs = merged;
    }
    runs.pop().unwrap_or_default()
}

/// Returns true if the node of a worker has ended or cannot be reached. The status omits nodes that ended some time
/// ago.
fn is_down(status: &[NodeStatus], node: NodeId) -> bool {
    let row = status.iter().find(|row| row.node == node);
    row.is_none_or(|row| matches!(row.state, NodeState::Dead | NodeState::Left | NodeState::Unreachable))
}
