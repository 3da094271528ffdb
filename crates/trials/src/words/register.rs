//! A word as a register that one after the other changes and looks at.

use super::chain::Done;
use crate::linearizability::register::{Operation, Register};
use crate::linearizability::{has_order as piece_has_order, pieces};

/// Whether some order explains all that was `done` to a word, of which the changes stand in their order.
pub(super) fn has_order(done: &[Done]) -> bool {
    let operations: Vec<_> = done.iter().map(|done| (done.span, operation(done))).collect();
    let mut value = 0;
    pieces(&operations).into_iter().all(|piece| {
        let first = Operation::Begin(value);
        value = piece.iter().filter_map(|(_, operation)| left_by(operation)).next_back().unwrap_or(value);
        piece_has_order::<Register>(first, &piece)
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
    use super::super::chain::Change;
    use super::*;
    use crate::linearizability::Span;

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
