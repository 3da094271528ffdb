//! What was done to one word, and in which order.
//!
//! Each change leaves a value that the word never had before, so that the value that it found says which was before it:
//! all changes form one chain, and the only question left is whether the times allow it.  A general checker, which tries
//! orders, would be lost among operations of which nobody knows whether they were done; here they fill gaps.  Once it
//! is known which of them were done, the general checker has the last word.

use std::collections::BTreeMap;

use super::register::{Change, Operation, Register};
use super::{Span, pieces};

/// When something that was begun has not ended, for all that is known.
const NEVER: u64 = u64::MAX;
/// So many changes of which nobody knows are tried in a row.
const GAP_MAX: usize = 4;

/// Something that was done to the word, or seen of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Done {
    span: Span,
    /// `None` if it was only looked at.
    change: Option<Change>,
    /// What the word held before.
    found: u64,
}

/// All that is known of one word, which is 0 in the beginning.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    /// Changes that were done, by the value that they found.
    done: BTreeMap<u64, (Span, Change)>,
    /// Changes that were done or not, by number.
    maybe: BTreeMap<u64, (Span, Change)>,
    last_number: u64,
    /// Values that were seen.
    seen: Vec<(Span, u64)>,
}

impl Chain {
    /// A change begins, and may be done from now on, whatever becomes of who does it.  Returns its number.
    pub fn begin(&mut self, now_ns: u64, change: Change) -> u64 {
        self.last_number += 1;
        self.maybe.insert(self.last_number, (Span { begin_ns: now_ns, end_ns: NEVER }, change));
        self.last_number
    }

    /// The change of that number was not done, and will not be.
    pub fn forget(&mut self, number: u64) {
        self.maybe.remove(&number);
    }

    /// The change of that number was done, and has found `old`.
    pub fn changed(&mut self, number: u64, now_ns: u64, old: u64) -> Result<(), String> {
        let (span, change) = self.maybe.remove(&number).expect("it began");
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

    /// The word held that.
    pub fn saw(&mut self, span: Span, value: u64) {
        self.seen.push((span, value));
    }

    /// An error unless there is an order.
    pub fn check(&self) -> Result<(), String> {
        let done = self.explain()?;
        if has_order(&done) { Ok(()) } else { Err(format!("there is no order for {done:?}")) }
    }

    /// All that was done and seen, the changes in their order.
    fn explain(&self) -> Result<Vec<Done>, String> {
        let (values, changes) = self.order();
        let steps: Vec<Span> = changes.iter().map(|(span, _)| *span).collect();
        let place: BTreeMap<u64, usize> = values.iter().enumerate().map(|(at, value)| (*value, at)).collect();
        if let Some(old) = self.done.keys().find(|old| !place.contains_key(old)) {
            return Err(format!("a change found {old:#x}, which nobody left"));
        }
        // Since when, and until when, the word may have held the value at each place.
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
        for (Span { begin_ns, end_ns }, value) in &self.seen {
            let Some(at) = place.get(value) else {
                return Err(format!("{value:#x} was seen, which nobody left"));
            };
            if *end_ns < since_ns[*at] || *begin_ns > until_ns[*at] {
                let (since, until) = (since_ns[*at], until_ns[*at]);
                return Err(format!(
                    "{value:#x} was seen from {begin_ns} to {end_ns} ns, not {since} to {until}"
                ));
            }
        }
        // Whatever nobody saw the end of had been done by the time at which it was found.
        for (Span { end_ns, .. }, value) in &self.seen {
            let at = place[value];
            until_ns[at] = until_ns[at].min(*end_ns);
        }
        let changes = changes.into_iter().enumerate().map(|(at, (span, change))| {
            let end_ns = if span.end_ns == NEVER { until_ns[at + 1] } else { span.end_ns };
            Done { span: Span { end_ns, ..span }, change: Some(change), found: values[at] }
        });
        let seen = self.seen.iter().map(|(span, found)| Done { span: *span, change: None, found: *found });
        Ok(changes.chain(seen).collect())
    }

    /// The values that the word had, and the changes between them.
    fn order(&self) -> (Vec<u64>, Vec<(Span, Change)>) {
        let mut values = vec![0];
        let mut steps = Vec::new();
        let mut left: Vec<(Span, Change)> = self.maybe.values().copied().collect();
        // Of those that are alike, the one that may have been first.
        left.sort_by_key(|(span, _)| span.begin_ns);
        let wanted: BTreeMap<u64, ()> = self.seen.iter().map(|(_, value)| (*value, ())).collect();
        let is_wanted = |value: u64| self.done.contains_key(&value) || wanted.contains_key(&value);
        loop {
            let value = values[values.len() - 1];
            if let Some((span, change)) = self.done.get(&value) {
                values.push(change.of(value).expect("it was done"));
                steps.push((*span, *change));
                continue;
            }
            let gap = (1..=GAP_MAX).find_map(|depth| fill(&left, value, depth, &is_wanted));
            let Some(gap) = gap else { return (values, steps) };
            for index in gap {
                let (span, change) = left[index];
                let value = values[values.len() - 1];
                values.push(change.of(value).expect("it was chosen for that"));
                steps.push((span, change));
                // What was used is used up; its place is kept, for the other indexes are of the old order.
                left[index].1 = Change::Swap { expected: value, new: value };
            }
            left.retain(|(_, change)| !matches!(change, Change::Swap { expected, new } if expected == new));
        }
    }
}

/// Changes, by index, that lead from `value` to one that is wanted.
fn fill(
    left: &[(Span, Change)],
    value: u64,
    depth: usize,
    is_wanted: &impl Fn(u64) -> bool,
) -> Option<Vec<usize>> {
    left.iter().enumerate().find_map(|(index, (_, change))| {
        // What an earlier one like it did not lead to, it does not either.
        if left[..index].iter().any(|(_, other)| other == change) {
            return None;
        }
        let next = change.of(value).filter(|next| *next != value)?;
        if depth == 1 {
            return is_wanted(next).then(|| vec![index]);
        }
        let mut others = left.to_vec();
        others[index].1 = Change::Swap { expected: value, new: value };
        let mut rest = fill(&others, next, depth - 1, is_wanted)?;
        rest.insert(0, index);
        Some(rest)
    })
}

/// Whether some order explains all that was `done` to a word, of which the changes stand in their order.
fn has_order(done: &[Done]) -> bool {
    let operations: Vec<_> = done.iter().map(|done| (done.span, operation(done))).collect();
    let mut value = 0;
    pieces(&operations).into_iter().all(|piece| {
        let first = Operation::Begin(value);
        value = piece.iter().filter_map(|(_, operation)| left_by(operation)).next_back().unwrap_or(value);
        super::has_order::<Register>(first, &piece)
    })
}

fn operation(done: &Done) -> Operation {
    match done.change {
        None => Operation::Look { found: done.found },
        Some(change) => Operation::Change { change, found: done.found },
    }
}

fn left_by(operation: &Operation) -> Option<u64> {
    match *operation {
        Operation::Change { change, found } => change.of(found),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(begin_ns: u64, end_ns: u64) -> Span {
        Span { begin_ns, end_ns }
    }

    fn change(chain: &mut Chain, span: Span, change: Change, old: u64) -> Result<(), String> {
        let number = chain.begin(span.begin_ns, change);
        chain.changed(number, span.end_ns, old)
    }

    #[test]
    fn changes_that_follow_each_other_have_an_order() {
        let mut chain = Chain::default();
        change(&mut chain, span(30, 40), Change::Swap { expected: 5, new: 9 }, 5).unwrap();
        change(&mut chain, span(10, 20), Change::Add(5), 0).unwrap();
        change(&mut chain, span(35, 36), Change::Swap { expected: 7, new: 8 }, 5).unwrap();
        chain.saw(span(50, 60), 9);
        assert!(chain.check().is_ok());
    }

    #[test]
    fn an_update_that_was_lost_is_noticed() {
        let mut chain = Chain::default();
        change(&mut chain, span(10, 20), Change::Add(5), 0).unwrap();
        assert!(change(&mut chain, span(10, 20), Change::Add(6), 0).unwrap_err().contains("both"));
        let mut chain = Chain::default();
        change(&mut chain, span(10, 20), Change::Add(5), 0).unwrap();
        change(&mut chain, span(30, 40), Change::Add(5), 6).unwrap();
        assert!(chain.check().unwrap_err().contains("nobody left"));
    }

    #[test]
    fn what_was_seen_was_there_at_that_time() {
        let mut chain = Chain::default();
        change(&mut chain, span(10, 20), Change::Add(5), 0).unwrap();
        let seen = |begin_ns, end_ns, value| {
            let mut chain = chain.clone();
            chain.saw(span(begin_ns, end_ns), value);
            chain.check()
        };
        assert!(seen(20, 30, 0).is_ok());
        assert!(seen(21, 30, 0).unwrap_err().contains("was seen"));
        assert!(seen(5, 10, 5).is_ok());
        assert!(seen(5, 9, 5).is_err());
        assert!(seen(5, 90, 6).unwrap_err().contains("nobody left"));
    }

    #[test]
    fn a_change_that_ended_before_the_one_that_it_found_began_has_no_order() {
        let mut chain = Chain::default();
        change(&mut chain, span(30, 40), Change::Add(5), 0).unwrap();
        change(&mut chain, span(10, 20), Change::Add(5), 5).unwrap();
        assert!(chain.check().unwrap_err().contains("had ended"));
    }

    #[test]
    fn what_may_have_been_done_fills_gaps_but_only_after_it_began() {
        let mut chain = Chain::default();
        chain.begin(10, Change::Add(5));
        chain.begin(10, Change::Add(100));
        chain.begin(12, Change::Swap { expected: 5, new: 50 });
        assert!(chain.check().is_ok());
        change(&mut chain, span(30, 40), Change::Add(7), 50).unwrap();
        assert!(chain.check().is_ok());
        chain.saw(span(5, 11), 50);
        assert!(chain.check().is_err());
    }

    fn done(begin_ns: u64, end_ns: u64, change: Option<Change>, found: u64) -> Done {
        Done { span: Span { begin_ns, end_ns }, change, found }
    }

    #[test]
    fn what_follows_a_quiet_moment_begins_with_what_was_left() {
        let add = done(10, 20, Some(Change::Add(5)), 0);
        let swap = done(30, 40, Some(Change::Swap { expected: 5, new: 9 }), 5);
        assert!(has_order(&[add, swap, done(50, 60, None, 9), done(12, 15, None, 0)]));
        assert!(!has_order(&[add, swap, done(50, 60, None, 5)]));
        assert!(!has_order(&[add, swap, done(21, 25, None, 0)]));
    }

    #[test]
    fn what_meets_may_be_in_either_order_and_what_does_not_may_not() {
        let add = done(10, 20, Some(Change::Add(5)), 0);
        let next = |begin_ns| done(begin_ns, 40, Some(Change::Add(7)), 5);
        let look = |begin_ns, end_ns, found| done(begin_ns, end_ns, None, found);
        assert!(has_order(&[add, next(15), look(20, 35, 0), look(20, 35, 12)]));
        assert!(!has_order(&[add, next(15), look(16, 18, 12), look(19, 35, 5)]));
    }
}
