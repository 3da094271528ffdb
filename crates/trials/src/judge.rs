//! The judge: counts what was done, and keeps the first thing that should not have been.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use halite::RegionCause;
use halite_sim::World;
use serde::Serialize;

/// How operations of one kind ended, and how long they took in simulated time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Tally {
    /// With success.
    pub ok: u64,
    /// With an error that is explained by what went wrong.
    pub failed: u64,
    /// Given up in the middle by their session.
    pub given_up: u64,
    /// The sum over all that succeeded.
    pub ok_ns: u64,
    /// The longest of those.
    pub ok_ns_max: u64,
}

/// How one operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Ok,
    Failed,
    GivenUp,
}

/// Whether this is what sessions hear where something goes wrong.
pub(crate) fn is_of_trouble(cause: &RegionCause) -> bool {
    matches!(
        cause,
        RegionCause::PeerDown(_)
            | RegionCause::NodeClosed
            | RegionCause::DirectoryDown
            | RegionCause::UnknownNode(_)
            | RegionCause::NoMemoryNode
            | RegionCause::NotFound
            | RegionCause::Lost(_)
            | RegionCause::Stale
    )
}

/// See the module's documentation.
pub(crate) struct Judge {
    world: World,
    violation: RefCell<Option<String>>,
    tallies: RefCell<BTreeMap<&'static str, Tally>>,
    /// Whether anything has gone wrong that may explain an error.
    troubled: Cell<bool>,
    /// Until when what has gone wrong so far goes on.
    trouble_until_ns: Cell<u64>,
}

impl Judge {
    /// Of that world, in which nothing has happened yet.
    pub(crate) fn new(world: World) -> Judge {
        Judge {
            world,
            violation: RefCell::default(),
            tallies: RefCell::default(),
            troubled: Cell::default(),
            trouble_until_ns: Cell::default(),
        }
    }

    /// Something was observed that must not be.
    pub(crate) fn violated(&self, what: String) {
        if self.is_content() {
            *self.violation.borrow_mut() = Some(what.clone());
            self.world.note(None, format_args!("VIOLATION: {what}"));
        }
    }

    /// What must be so.
    pub(crate) fn expect(&self, is_so: bool, otherwise: impl FnOnce() -> String) {
        if !is_so {
            self.violated(otherwise());
        }
    }

    /// What was observed first that must not be.
    pub(crate) fn violation(&self) -> Option<String> {
        self.violation.borrow().clone()
    }

    pub(crate) fn is_content(&self) -> bool {
        self.violation.borrow().is_none()
    }

    /// From now on, errors about nodes that cannot be reached are explained.
    pub(crate) fn note_trouble(&self) {
        self.troubled.set(true);
    }

    /// Something goes wrong until then.
    pub(crate) fn expect_trouble(&self, until_ns: u64) {
        self.trouble_until_ns.set(self.trouble_until_ns.get().max(until_ns));
    }

    pub(crate) fn trouble_until_ns(&self) -> u64 {
        self.trouble_until_ns.get()
    }

    /// Whether nothing has gone wrong so far.
    pub(crate) fn is_calm(&self) -> bool {
        !self.troubled.get()
    }

    /// Counts an operation.
    pub(crate) fn count(&self, operation: &'static str, end: End, took_ns: u64) {
        let mut tallies = self.tallies.borrow_mut();
        let tally = tallies.entry(operation).or_default();
        match end {
            End::Ok => {
                tally.ok += 1;
                tally.ok_ns += took_ns;
                tally.ok_ns_max = tally.ok_ns_max.max(took_ns);
            }
            End::Failed => tally.failed += 1,
            End::GivenUp => tally.given_up += 1,
        }
    }

    pub(crate) fn tallies(&self) -> BTreeMap<&'static str, Tally> {
        self.tallies.borrow().clone()
    }
}
