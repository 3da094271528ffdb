//! The judge: counts operations, and keeps the first violation.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use halite::{AccessCause, RegionCause};
use halite_sim::World;
use serde::Serialize;

/// Results of operations of one kind, and their simulated time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Tally {
    /// Number of successful operations.
    pub ok: u64,
    /// Number of operations that failed with an error that a fault explains.
    pub failed: u64,
    /// Number of operations that their session cancelled.
    pub given_up: u64,
    /// Total time of the successful operations, in ns.
    pub ok_ns: u64,
    /// Maximum time of a successful operation, in ns.
    pub ok_ns_max: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Ok,
    Failed,
    Cancelled,
}

/// Returns true if a fault may cause this error.
pub(crate) fn may_follow_fault(cause: &RegionCause) -> bool {
    reports_unreachable_node(cause)
        || matches!(cause, RegionCause::NotFound | RegionCause::Lost(_) | RegionCause::Stale)
}

/// Returns true if the error reports an unreachable node.
pub(crate) fn reports_unreachable_node(cause: &RegionCause) -> bool {
    matches!(
        cause,
        RegionCause::PeerDown(_)
            | RegionCause::NotMet(_)
            | RegionCause::NodeClosed(_)
            | RegionCause::DirectoryDown
            | RegionCause::DirectoryUnreachable { .. }
            | RegionCause::UnknownNode(_)
            | RegionCause::NoMemoryNode
    )
}

/// Returns true if a fault may cause this error of an access.
pub(crate) fn access_may_follow_fault(cause: &AccessCause) -> bool {
    matches!(
        cause,
        AccessCause::Stale | AccessCause::PeerDown(_) | AccessCause::LinkLost(_) | AccessCause::NodeClosed(_)
    )
}

/// Tallies of operations, and the first violation of a trial.
pub(crate) struct Judge {
    world: World,
    violation: RefCell<Option<String>>,
    tallies: RefCell<BTreeMap<&'static str, Tally>>,
    /// True if a fault that may explain an error has happened.
    had_fault: Cell<bool>,
    /// End of all faults so far.
    faults_until_ns: Cell<u64>,
}

impl Judge {
    pub(crate) fn new(world: World) -> Judge {
        Judge {
            world,
            violation: RefCell::default(),
            tallies: RefCell::default(),
            had_fault: Cell::default(),
            faults_until_ns: Cell::default(),
        }
    }

    pub(crate) fn report_violation(&self, what: String) {
        if self.is_ok() {
            *self.violation.borrow_mut() = Some(what.clone());
            self.world.note(None, format_args!("VIOLATION: {what}"));
        }
    }

    /// Records a violation if `condition` is false.
    pub(crate) fn expect(&self, condition: bool, otherwise: impl FnOnce() -> String) {
        if !condition {
            self.report_violation(otherwise());
        }
    }

    pub(crate) fn violation(&self) -> Option<String> {
        self.violation.borrow().clone()
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.violation.borrow().is_none()
    }

    /// Records a fault that explains errors about unreachable nodes from now on.
    pub(crate) fn record_fault(&self) {
        self.had_fault.set(true);
    }

    /// Records that a fault lasts until `until_ns`.
    pub(crate) fn record_fault_until(&self, until_ns: u64) {
        self.faults_until_ns.set(self.faults_until_ns.get().max(until_ns));
    }

    pub(crate) fn faults_until_ns(&self) -> u64 {
        self.faults_until_ns.get()
    }

    /// Returns true if a fault that may explain an error has happened.
    pub(crate) fn had_fault(&self) -> bool {
        self.had_fault.get()
    }

    pub(crate) fn record_result(&self, operation: &'static str, end: End, took_ns: u64) {
        let mut tallies = self.tallies.borrow_mut();
        let tally = tallies.entry(operation).or_default();
        match end {
            End::Ok => {
                tally.ok += 1;
                tally.ok_ns += took_ns;
                tally.ok_ns_max = tally.ok_ns_max.max(took_ns);
            }
            End::Failed => tally.failed += 1,
            End::Cancelled => tally.given_up += 1,
        }
    }

    pub(crate) fn tallies(&self) -> BTreeMap<&'static str, Tally> {
        self.tallies.borrow().clone()
    }
}
