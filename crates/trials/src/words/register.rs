//! What a checker that is not ours says to what was done to a word: [`todc_utils::linearizability`], by Wing and Gong,
//! with Lowe's memory.
//!
//! Its time grows with the square of a history's length, so that histories are cut wherever nothing was under way, and
//! pieces that are long even so are left to the chain alone.

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::Action::{Call, Response};
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

use super::chain::{Change, Done};

/// The checker is not asked about longer pieces.
const PIECE_MAX: usize = 48;

/// One of what is done to a register, in the words of the checker.
#[derive(Clone, Copy, Debug)]
enum Operation {
    /// The register is given its first value.
    Begin(u64),
    Look {
        found: u64,
    },
    Change {
        change: Change,
        found: u64,
    },
}

/// A word that one after the other changes and looks at.
struct Register;

impl Specification for Register {
    type State = u64;
    type Operation = Operation;

    fn init() -> u64 {
        0
    }

    fn apply(operation: &Operation, value: &u64) -> (bool, u64) {
        match *operation {
            Operation::Begin(first) => (true, first),
            Operation::Look { found } => (found == *value, *value),
            Operation::Change { change, found } => (found == *value, change.of(*value).unwrap_or(*value)),
        }
    }
}

/// Whether some order explains all that was `done` to a word, of which the changes stand in their order.
pub(super) fn has_order(done: &[Done]) -> bool {
    let mut first = 0;
    pieces(done).into_iter().all(|piece| {
        let begin = first;
        if let Some((change, found)) =
            piece.iter().filter_map(|done| Some((done.change?, done.found))).next_back()
        {
            first = change.of(found).unwrap_or(found);
        }
        piece.len() > PIECE_MAX || WGLChecker::<Register>::is_linearizable(history(begin, &piece))
    })
}

/// What was done, cut wherever nothing was under way; the order within each piece is kept.
fn pieces(done: &[Done]) -> Vec<Vec<Done>> {
    let mut by_time: Vec<usize> = (0..done.len()).collect();
    by_time.sort_by_key(|index| done[*index].span.begin_ns);
    let mut pieces: Vec<Vec<usize>> = Vec::new();
    let mut busy_until_ns = 0;
    for index in by_time {
        let span = done[index].span;
        match pieces.last_mut().filter(|_| span.begin_ns <= busy_until_ns) {
            Some(piece) => piece.push(index),
            None => pieces.push(vec![index]),
        }
        busy_until_ns = busy_until_ns.max(span.end_ns);
    }
    let in_order = |mut piece: Vec<usize>| {
        piece.sort_unstable();
        piece.into_iter().map(|index| done[index]).collect()
    };
    pieces.into_iter().map(in_order).collect()
}

/// A piece as the checker wants it, behind the beginning with `first`; everything is a process of its own.
fn history(first: u64, piece: &[Done]) -> History<Operation> {
    let mut entries: Vec<(u64, usize, Action<Operation>)> = Vec::new();
    for (index, done) in piece.iter().enumerate() {
        let operation = match done.change {
            None => Operation::Look { found: done.found },
            Some(change) => Operation::Change { change, found: done.found },
        };
        entries.push((done.span.begin_ns, index + 1, Call(operation)));
        entries.push((done.span.end_ns, index + 1, Response(operation)));
    }
    // What ends at an instant and what begins at it may have met.
    entries.sort_by_key(|(time_ns, _, action)| (*time_ns, matches!(action, Response(_))));
    let begin = Operation::Begin(first);
    let begun = [(0, Call(begin)), (0, Response(begin))];
    let entries = entries.into_iter().map(|(_, process, action)| (process, action));
    History::from_actions(begun.into_iter().chain(entries).collect())
}

#[cfg(test)]
mod tests {
    use super::super::chain::Span;
    use super::*;

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
        assert_eq!(pieces(&[add, swap, done(15, 20, None, 0)]).len(), 2);
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
