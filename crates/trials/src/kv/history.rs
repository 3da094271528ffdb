//! The operations on one key. They must be linearizable: some order explains all results, and places each operation
//! between its start and its end.
//!
//! An operation without a known end may take effect at any later time, or never. The expiry of a key is an operation of
//! its own, between the earliest and the latest moment that the clock of the key's owner permits.

use std::fmt::Write;

use halite_apps::kv::Only;
use todc_utils::specifications::Specification;

use super::values::Value;
use crate::linearizability::{self, Span};

/// End of an operation without a known end.
const NEVER: u64 = u64::MAX;
/// Maximum number of operations that the checker can handle; operations in progress may still exceed it.
const LEN_MAX: usize = 32;
/// Maximum number of operations without a known outcome, which make the checker slow.
const UNKNOWN_MAX: usize = 6;
/// Maximum error of an owner's clock, which counts in microseconds and drifts.
const CLOCK_NS: u64 = 2_000;

/// An operation on a key. A result of `None` is unknown, and consistent with every order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// The operation was not executed.
    Nothing,
    Get {
        found: Option<Value>,
    },
    Swap {
        new: Value,
        only: Only,
        expiry: Option<u64>,
        found: Option<Option<Value>>,
    },
    /// Appends; with the resulting length, in entries.
    Append {
        token: u64,
        len: Option<u64>,
    },
    Delete {
        was: Option<bool>,
    },
    Expire {
        expiry: u64,
        was: Option<bool>,
    },
    /// Removes the key if it still has this expiry.
    ExpiryElapsed {
        expiry: u64,
    },
}

/// The state of a key that exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Item {
    value: Value,
    expiry: Option<u64>,
}

struct Register;

impl Specification for Register {
    type State = Option<Item>;
    type Operation = Operation;

    fn init() -> Option<Item> {
        None
    }

    fn apply(operation: &Operation, item: &Option<Item>) -> (bool, Option<Item>) {
        let (old, item) = (item.map(|item| item.value), *item);
        match *operation {
            Operation::Nothing => (true, item),
            Operation::Get { found } => (found == old, item),
            Operation::Swap { new, only, expiry, found } => {
                let holds = match only {
                    Only::Always => true,
                    Only::IfAbsent => old.is_none(),
                    Only::IfPresent => old.is_some(),
                };
                let after = if holds { Some(Item { value: new, expiry }) } else { item };
                (found.is_none_or(|found| found == old), after)
            }
            Operation::Append { token, len } => {
                let value = old.map_or(Value::of(token), |old| old.push(token));
                let after = Item { value, expiry: item.and_then(|item| item.expiry) };
                (len.is_none_or(|len| len == value.entries), Some(after))
            }
            Operation::Delete { was } => (was.is_none_or(|was| was == old.is_some()), None),
            Operation::Expire { expiry, was } => {
                let after = item.map(|item| Item { expiry: Some(expiry), ..item });
                (was.is_none_or(|was| was == old.is_some()), after)
            }
            Operation::ExpiryElapsed { expiry } => (true, item.filter(|item| item.expiry != Some(expiry))),
        }
    }
}

/// The operations on one key, which must be linearizable.
#[derive(Debug, Default)]
pub(super) struct History {
    operations: Vec<(Span, Operation)>,
}

impl History {
    /// Returns true if the key must not be used any more.
    pub(super) fn is_full(&self) -> bool {
        let unknown = self.operations.iter().filter(|(span, _)| span.end_ns == NEVER).count();
        self.operations.len() >= LEN_MAX || unknown >= UNKNOWN_MAX
    }

    /// Records the start of an operation; returns its index.
    pub(super) fn begin(&mut self, begin_ns: u64, operation: Operation) -> usize {
        self.operations.push((Span { begin_ns, end_ns: NEVER }, operation));
        self.operations.len() - 1
    }

    /// Records the end of the operation and its result.
    pub(super) fn end(&mut self, index: usize, end_ns: u64, operation: Operation) {
        let (span, known) = &mut self.operations[index];
        (span.end_ns, *known) = (end_ns, operation);
    }

    /// Records that the operation was not executed, and will not be.
    pub(super) fn forget(&mut self, index: usize) {
        let (span, operation) = &mut self.operations[index];
        (span.end_ns, *operation) = (span.begin_ns, Operation::Nothing);
    }

    /// Records an expiry that starts now; returns its index.
    pub(super) fn begin_expiry(&mut self, begin_ns: u64, lifetime_us: u64, expiry: u64) -> usize {
        let earliest_ns = (begin_ns + 1000 * lifetime_us).saturating_sub(CLOCK_NS).max(begin_ns);
        self.begin(earliest_ns, Operation::ExpiryElapsed { expiry })
    }

    /// Sets the latest time of the expiry.
    pub(super) fn end_expiry(&mut self, index: usize, end_ns: u64, lifetime_us: u64) {
        self.operations[index].0.end_ns = end_ns + 1000 * lifetime_us + CLOCK_NS;
    }

    /// Returns true if some order explains all results.
    pub(super) fn has_order(&self) -> bool {
        linearizability::has_order::<Register>(Operation::Nothing, &self.effective())
    }

    /// Returns the operations that the order must contain: neither unexecuted operations nor reads with unknown
    /// results.
    fn effective(&self) -> Vec<(Span, Operation)> {
        self.operations.iter().copied().filter(|(_, operation)| *operation != Operation::Nothing).collect()
    }

    /// Describes the history for error messages.
    pub(super) fn describe(&self) -> String {
        let mut operations = self.effective();
        operations.sort_by_key(|(span, _)| span.begin_ns);
        operations.iter().fold(String::new(), |mut text, (Span { begin_ns, end_ns }, operation)| {
            let end = if *end_ns == NEVER { "?".to_owned() } else { end_ns.to_string() };
            write!(text, "\n  {begin_ns} to {end} ns: {operation:?}")
                .expect("writing to a string cannot fail");
            text
        })
    }
}
