//! The master's state: which worker holds which results, and which work remains. It is independent of nodes and clocks.

use std::collections::BTreeSet;

use super::desk::{Order, Report};
use super::exchange::Section;
use super::input::Split;

/// The worker in the master's process. If it dies, the run ends.
pub(super) const MASTERS_WORKER: u32 = 0;

/// The state of a run.
pub(super) struct Plan {
    tasks: Vec<Vec<Split>>,
    /// Tasks that no worker has mapped or is mapping.
    pending: BTreeSet<usize>,
    parts: Vec<Part>,
    workers: Vec<Worker>,
    /// Published results of tasks. Each task is either pending, assigned, unpublished or in one of these batches.
    batches: Vec<Batch>,
    lost: u32,
    end: Option<End>,
}

/// A part of the keys.
enum Part {
    Pending,
    Assigned(u32, Totals),
    Done(Run),
}

/// Sums over the sections from which a part is reduced, for verification.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    /// Bytes of input.
    pub(super) bytes: u64,
    /// Weight of the part.
    pub(super) weight: u64,
}

/// The sorted records of a part.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) worker: u32,
    pub(super) section: Section,
    pub(super) keys: u64,
    pub(super) totals: Totals,
}

#[derive(Default)]
struct Worker {
    /// The task that it maps.
    assigned: Option<usize>,
    /// Tasks that it has mapped and not yet published.
    unpublished: Vec<usize>,
    unpublished_bytes: u64,
    load_ns: u64,
    /// True if the worker gets no further orders, because it is lost or was ordered to end.
    is_inactive: bool,
}

struct Batch {
    worker: u32,
    tasks: Vec<usize>,
    sections: Vec<Section>,
    bytes: u64,
}

enum End {
    Complete,
    Failed(String),
}

impl Plan {
    /// Creates a plan for `workers` workers and the same number of parts.
    pub(super) fn new(tasks: Vec<Vec<Split>>, workers: u32) -> Plan {
        Plan {
            pending: (0..tasks.len()).collect(),
            tasks,
            parts: (0..workers).map(|_| Part::Pending).collect(),
            workers: (0..workers).map(|_| Worker::default()).collect(),
            batches: Vec::new(),
            lost: 0,
            end: None,
        }
    }

    /// Records the report of a worker. Ignores the report of a lost worker.
    pub(super) fn handle_report(&mut self, number: u32, report: Report) {
        let Some(worker) = self.workers.get_mut(number as usize).filter(|worker| !worker.is_inactive) else {
            return;
        };
        match report {
            Report::Nothing => {}
            Report::Mapped { task, bytes, load_ns } => {
                worker.assigned = None;
                worker.unpublished.push(task);
                worker.unpublished_bytes += bytes;
                worker.load_ns += load_ns;
            }
            Report::Published { sections } => {
                let tasks = std::mem::take(&mut worker.unpublished);
                let bytes = std::mem::take(&mut worker.unpublished_bytes);
                self.batches.push(Batch { worker: number, tasks, sections, bytes });
            }
            Report::Reduced { part, run, keys } => self.finish_part(number, part, run, keys),
            Report::Unread { owner, reason } => {
                self.reset_parts(number);
                self.handle_loss(owner, reason);
            }
            Report::Failed(reason) => self.fail(reason),
        }
    }

    fn finish_part(&mut self, number: u32, part: usize, section: Section, keys: u64) {
        let Some(part) = self.parts.get_mut(part) else { return };
        if let Part::Assigned(worker, totals) = *part
            && worker == number
        {
            *part = Part::Done(Run { worker, section, keys, totals });
        }
    }

    /// Records that a worker or its results are lost, and returns its work to the pending work.
    pub(super) fn handle_loss(&mut self, number: u32, reason: String) {
        if number == MASTERS_WORKER {
            return self.fail(reason);
        }
        let Some(worker) = self.workers.get_mut(number as usize) else { return };
        self.lost += u32::from(!std::mem::replace(&mut worker.is_inactive, true));
        self.pending.extend(worker.assigned.take());
        self.pending.extend(worker.unpublished.drain(..));
        worker.unpublished_bytes = 0;
        self.reset_parts(number);
        if self.runs().is_none() {
            self.drop_lost_batches();
        }
    }

    /// Makes the tasks pending whose published results are lost. The caller has checked that some part still needs
    /// them.
    fn drop_lost_batches(&mut self) {
        let (pending, workers) = (&mut self.pending, &self.workers);
        self.batches.retain(|batch| {
            let is_lost = workers[batch.worker as usize].is_inactive;
            if is_lost {
                pending.extend(&batch.tasks);
            }
            !is_lost
        });
    }

    /// Makes the parts of a worker pending.
    fn reset_parts(&mut self, number: u32) {
        for part in &mut self.parts {
            let (Part::Assigned(worker, _) | Part::Done(Run { worker, .. })) = part else { continue };
            if *worker == number {
                *part = Part::Pending;
            }
        }
    }

    /// Ends the run with an error, unless it has ended.
    pub(super) fn fail(&mut self, reason: String) {
        if self.end.is_none() {
            self.end = Some(End::Failed(reason));
        }
    }

    /// Ends the run with success.
    pub(super) fn complete(&mut self) {
        if self.end.is_none() {
            self.end = Some(End::Complete);
        }
    }

    /// Returns the next order for a worker.
    pub(super) fn poll_order(&mut self, number: u32) -> Order {
        let is_last = self.others_are_inactive();
        let has_ended = self.end.is_some();
        let is_mapped = self.is_mapped();
        let Some(worker) = self.workers.get_mut(number as usize) else { return Order::End };
        if worker.is_inactive {
            return Order::End;
        }
        if has_ended {
            // The worker in the master's process ends last, because its requests make the master check for losses of
            // the others.
            worker.is_inactive = number != MASTERS_WORKER || is_last;
            return if worker.is_inactive { Order::End } else { Order::Wait };
        }
        if let Some(task) = self.pending.pop_first() {
            worker.assigned = Some(task);
            return Order::Map { task, splits: self.tasks[task].clone() };
        }
        if !worker.unpublished.is_empty() {
            return Order::Publish;
        }
        let part = self.parts.iter().position(|part| matches!(part, Part::Pending));
        match part.filter(|_| is_mapped) {
            Some(part) => {
                let sections: Vec<_> =
                    self.batches.iter().map(|batch| (batch.worker, batch.sections[part].clone())).collect();
                let weight = sections.iter().map(|(_, section)| section.weight).sum();
                self.parts[part] = Part::Assigned(number, Totals { bytes: self.bytes_mapped(), weight });
                Order::Reduce { part, sections }
            }
            None => Order::Wait,
        }
    }

    /// Returns true if the results of all tasks are published.
    pub(super) fn is_mapped(&self) -> bool {
        let is_idle = |worker: &Worker| worker.assigned.is_none() && worker.unpublished.is_empty();
        self.pending.is_empty() && self.workers.iter().all(is_idle)
    }

    /// Returns the sorted runs of all parts; `None` until all parts are reduced.
    pub(super) fn runs(&self) -> Option<Vec<Run>> {
        let run = |part: &Part| if let Part::Done(run) = part { Some(run.clone()) } else { None };
        self.parts.iter().map(run).collect()
    }

    /// Returns true if the run has ended, with success or failure.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Returns why the run failed.
    pub(super) fn failure(&self) -> Option<&str> {
        if let Some(End::Failed(reason)) = &self.end { Some(reason) } else { None }
    }

    /// Returns the workers that still take orders.
    pub(super) fn remaining(&self) -> impl Iterator<Item = u32> {
        let workers = (0..).zip(&self.workers);
        workers.filter(|(_, worker)| !worker.is_inactive).map(|(number, _)| number)
    }

    fn others_are_inactive(&self) -> bool {
        self.remaining().all(|number| number == MASTERS_WORKER)
    }

    /// Returns the number of workers that were lost.
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    /// Returns the number of mapped input bytes whose results still exist.
    pub(super) fn bytes_mapped(&self) -> u64 {
        let unpublished = self.workers.iter().map(|worker| worker.unpublished_bytes);
        unpublished.chain(self.batches.iter().map(|batch| batch.bytes)).sum()
    }

    /// Returns the longest time for which a worker has read files, in ns.
    pub(super) fn load_ns(&self) -> u64 {
        self.workers.iter().map(|worker| worker.load_ns).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const TASKS: usize = 5;
    const WORKERS: u32 = 3;

    /// Returns a section that stands for `weight` tasks.
    fn section(weight: u64) -> Section {
        Section { region: String::new(), offset: 0, len: 0, weight }
    }

    /// Workers that execute the orders of a plan.
    struct Workers {
        plan: Plan,
        orders: BTreeMap<u32, Order>,
        /// Number of mapped and not yet published tasks, by worker.
        mapped: BTreeMap<u32, u64>,
    }

    impl Workers {
        fn new() -> Workers {
            let plan = Plan::new(vec![Vec::new(); TASKS], WORKERS);
            let orders = (0..WORKERS).map(|number| (number, Order::Wait)).collect();
            Workers { plan, orders, mapped: BTreeMap::new() }
        }

        /// Makes a worker execute its order and request the next.
        fn step(&mut self, number: u32) {
            let Some(order) = self.orders.remove(&number) else { return };
            let report = match order {
                Order::Map { task, .. } => {
                    *self.mapped.entry(number).or_default() += 1;
                    Report::Mapped { task, bytes: 1, load_ns: 0 }
                }
                Order::Publish => {
                    let weight = self.mapped.remove(&number).unwrap_or(0);
                    Report::Published { sections: vec![section(weight); WORKERS as usize] }
                }
                Order::Reduce { part, sections } => {
                    let weight = sections.iter().map(|(_, section)| section.weight).sum();
                    assert_eq!(weight, TASKS as u64, "a part needs each task once");
                    Report::Reduced { part, run: section(weight), keys: 1 }
                }
                Order::Wait | Order::End => Report::Nothing,
            };
            self.plan.handle_report(number, report);
            self.orders.insert(number, self.plan.poll_order(number));
        }

        fn lose(&mut self, number: u32) {
            self.orders.remove(&number);
            self.plan.handle_loss(number, "killed".to_owned());
        }
    }

    proptest! {
        #[test]
        fn a_run_survives_the_loss_of_all_workers_but_one(
            steps in prop::collection::vec(0..WORKERS, 0..60),
            losses in prop::collection::vec(0usize..60, 2),
        ) {
            let mut workers = Workers::new();
            for (at, number) in steps.into_iter().enumerate() {
                if let Some(lost) = losses.iter().position(|at_step| *at_step == at) {
                    workers.lose(lost as u32 + 1);
                }
                workers.step(number);
            }
            let mut steps = 0;
            while workers.plan.runs().is_none() {
                workers.step(steps % WORKERS);
                steps += 1;
                prop_assert!(steps < 1000, "the run does not end");
            }
            prop_assert!(workers.plan.failure().is_none());
            for run in workers.plan.runs().unwrap() {
                prop_assert_eq!(run.totals.bytes, TASKS as u64);
                prop_assert_eq!(run.totals.weight, run.section.weight);
            }
        }
    }

    #[test]
    fn the_run_fails_with_its_masters_worker() {
        let mut workers = Workers::new();
        workers.step(1);
        workers.lose(MASTERS_WORKER);
        assert_eq!(workers.plan.failure(), Some("killed"));
        assert_eq!(workers.plan.poll_order(1), Order::End);
    }
}
