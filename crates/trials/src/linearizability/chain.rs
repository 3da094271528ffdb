//! The changes of one word, and their order.
//!
//! Each change leaves a value that the word never had before, so the value before the change identifies its
//! predecessor. All changes form one chain, and only their times remain to be checked. The general checker tries all
//! orders, which takes too long if operations have unknown outcomes. So this file first uses those operations to fill
//! gaps in the chain. Then all outcomes are known, and the general checker decides.

use std::collections::{BTreeMap, BTreeSet};

use super::register::{Change, Operation, Register};
use super::{Span, pieces};

/// End of an operation that is not known to have ended.
const NEVER: u64 = u64::MAX;
/// Maximum number of changes of unknown outcome that fill one gap.
const GAP_MAX: usize = 4;

/// A change or a read of the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Done {
    span: Span,
    /// The change; `None` for a read.
    change: Option<Change>,
    /// Value before the change, or the value read.
    found: u64,
}

/// The history of one word, which is 0 at first.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    /// Executed changes, by the value that they found.
    done: BTreeMap<u64, (Span, Change)>,
    /// Changes of unknown outcome, by number.
    unknown: BTreeMap<u64, (Span, Change)>,
    last_number: u64,
    /// Values that were read.
    reads: Vec<(Span, u64)>,
}

impl Chain {
    /// Records the start of a change, which may take effect from now on. Returns its number.
    pub fn begin(&mut self, now_ns: u64, change: Change) -> u64 {
        self.last_number += 1;
        self.unknown.insert(self.last_number, (Span { begin_ns: now_ns, end_ns: NEVER }, change));
        self.last_number
    }

    /// Records that the change was not executed, and never will be.
    pub fn forget(&mut self, number: u64) {
        self.unknown.remove(&number);
    }

    /// Records that the change was executed, and replaced `old`.
    pub fn changed(&mut self, number: u64, now_ns: u64, old: u64) -> Result<(), String> {
        let (span, change) = self.unknown.remove(&number).expect("the operation began");
        let span = Span { end_ns: now_ns, ..span };
        if change.of(old).is_none() {
            self.saw(span, old);
            return Ok(());
        }
        match self.done.insert(old, (span, change)) {
            Some(other) => Err(format!("{change:?} and {:?} have both found {old:#x}", other.1)),
            None => Ok(()),
        }
    }

    /// Records that a read has returned `value`.
    pub fn saw(&mut self, span: Span, value: u64) {
        self.reads.push((span, value));
    }

    /// Returns an error unless some order of the operations explains the history.
    pub fn check(&self) -> Result<(), String> {
        let done = self.explain()?;
        if has_order(&done) { Ok(()) } else { Err(format!("no order explains {done:?}")) }
    }

    /// Returns all operations, the changes in their order.
    fn explain(&self) -> Result<Vec<Done>, String> {
        let (values, changes) = self.order();
        let steps: Vec<Span> = changes.iter().map(|(span, _)| *span).collect();
        let place_of: BTreeMap<u64, usize> =
            values.iter().enumerate().map(|(at, value)| (*value, at)).collect();
        if let Some(old) = self.done.keys().find(|old| !place_of.contains_key(old)) {
            return Err(format!("a change found {old:#x}, which no change left"));
        }
        // Earliest and latest time at which the word may have held the value at each place.
        let mut since_ns = vec![0; values.len()];
        let mut until_ns = vec![NEVER; values.len()];
        for at in 0..steps.len() {
            since_ns[at + 1] = since_ns[at].max(steps[at].begin_ns);
        }
        for at in (0..steps.len()).rev() {
            until_ns[at] = until_ns[at + 1].min(steps[at].end_ns);
        }
        if let Some(at) = (0..steps.len()).find(|at| steps[*at].end_ns < since_ns[*at]) {
            let (value, begin_ns) = (values[at], since_ns[at]);
            return Err(format!("a change found {value:#x}, but had ended before {begin_ns} ns"));
        }
        for (Span { begin_ns, end_ns }, value) in &self.reads {
            let Some(at) = place_of.get(value) else {
                return Err(format!("a read found {value:#x}, which no change left"));
            };
            if *end_ns < since_ns[*at] || *begin_ns > until_ns[*at] {
                let (since, until) = (since_ns[*at], until_ns[*at]);
                return Err(format!(
                    "{value:#x} was read from {begin_ns} to {end_ns} ns, but was there from {since} to {until}"
                ));
            }
        }
        // A change without a known end had been executed by the time when its value was read.
        for (Span { end_ns, .. }, value) in &self.reads {
            let at = place_of[value];
            until_ns[at] = until_ns[at].min(*end_ns);
        }
        let changes = changes.into_iter().enumerate().map(|(at, (span, change))| {
            let end_ns = if span.end_ns == NEVER { until_ns[at + 1] } else { span.end_ns };
            Done { span: Span { end_ns, ..span }, change: Some(change), found: values[at] }
        });
        let reads = self.reads.iter().map(|(span, found)| Done { span: *span, change: None, found: *found });
        Ok(changes.chain(reads).collect())
    }

    /// Returns the values that the word had, and the changes between them.
    fn order(&self) -> (Vec<u64>, Vec<(Span, Change)>) {
        let mut values = vec![0];
        let mut steps = Vec::new();
        let mut unused: Vec<(Span, Change)> = self.unknown.values().copied().collect();
        // Sorted, so that the earliest of equal changes is used first.
        unused.sort_by_key(|(span, _)| span.begin_ns);
        let read: BTreeSet<u64> = self.reads.iter().map(|(_, value)| *value).collect();
        let is_wanted = |value: u64| self.done.contains_key(&value) || read.contains(&value);
        loop {
            let value = values[values.len() - 1];
            if let Some((span, change)) = self.done.get(&value) {
                values.push(change.of(value).expect("the change applies"));
                steps.push((*span, *change));
                continue;
            }
            let gap = (1..=GAP_MAX).find_map(|depth| fill_gap(&unused, value, depth, &is_wanted));
            let Some(gap) = gap else { return (values, steps) };
            for index in gap {
                let (span, change) = unused[index];
                let value = values[values.len() - 1];
                values.push(change.of(value).expect("the change applies"));
                steps.push((span, change));
                // Marks the change as used; its place stays, because the other indices refer to the old order.
                unused[index].1 = Change::Swap { expected: value, new: value };
            }
            unused.retain(|(_, change)| !matches!(change, Change::Swap { expected, new } if expected == new));
        }
    }
}

/// Returns indices of changes that lead from `value` to a wanted value.
fn fill_gap(
    unused: &[(Span, Change)],
    value: u64,
    depth: usize,
    is_wanted: &impl Fn(u64) -> bool,
) -> Option<Vec<usize>> {
    unused.iter().enumerate().find_map(|(index, (_, change))| {
        // An equal change has been tried already.
        if unused[..index].iter().any(|(_, other)| other == change) {
            return None;
        }
        let next = change.of(value).filter(|next| *next != value)?;
        if depth == 1 {
            return is_wanted(next).then(|| vec![index]);
        }
        let mut others = unused.to_vec();
        others[index].1 = Change::Swap { expected: value, new: value };
        let mut rest = fill_gap(&others, next, depth - 1, is_wanted)?;
        rest.insert(0, index);
        Some(rest)
    })
}

/// Returns true if some order explains the operations. The changes must be sorted by their order in the chain.
fn has_order(done: &[Done]) -> bool {
    let operations: Vec<_> = done.iter().map(|done| (done.span, operation(done))).collect();
    let mut value = 0;
    pieces(&operations).into_iter().all(|piece| {
        let first = Operation::Begin(value);
        value = piece.iter().filter_map(|(_, operation)| value_after(operation)).next_back().unwrap_or(value);
        super::has_order::<Register>(first, &piece)
    })
}

fn operation(done: &Done) -> Operation {
    match done.change {
        None => Operation::Look { found: done.found },
        Some(change) => Operation::Change { change, found: done.found },
    }
}

fn value_after(operation: &Operation) -> Option<u64> {
    match *operation {
        Operation::Change { change, found } => change.of(found),
        _ => None,
    }
}
