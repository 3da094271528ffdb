//! Checks histories of one object with an independent checker: [`todc_utils::linearizability`], the algorithm of Wing
//! and Gong with Lowe's memoization.
//!
//! The checker's time grows with the square of a history's length. So a history is cut at each time at which no
//! operation was in progress. Pieces that are too long are covered by the judge's other checks only.

pub mod chain;
pub mod lock;
pub mod register;

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::Action::{Call, Response};
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

/// Maximum length of a piece that is checked.
const PIECE_MAX: usize = 48;

/// Start and end of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Start of the operation, in ns.
    pub begin_ns: u64,
    /// End of the operation, in ns.
    pub end_ns: u64,
}

/// Cuts a history wherever no operation was in progress; keeps the order within each piece.
pub(crate) fn pieces<T: Copy>(done: &[(Span, T)]) -> Vec<Vec<(Span, T)>> {
    let mut by_time: Vec<usize> = (0..done.len()).collect();
    by_time.sort_by_key(|index| done[*index].0.begin_ns);
    let mut pieces: Vec<Vec<usize>> = Vec::new();
    let mut busy_until_ns = 0;
    for index in by_time {
        let (span, _) = done[index];
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

/// Returns true if a piece is linearizable after `first`, which sets the object's state.
pub(crate) fn has_order<S>(first: S::Operation, piece: &[(Span, S::Operation)]) -> bool
where
    S: Specification<Operation: Copy>,
{
    match piece {
        // Most pieces consist of one operation, which has one order.
        [(_, alone)] => S::apply(alone, &S::apply(&first, &S::init()).1).0,
        _ => piece.len() > PIECE_MAX || WGLChecker::<S>::is_linearizable(history(first, piece)),
    }
}

/// Converts a history for the checker, with each operation as a process of its own.
fn history<T: Copy>(first: T, piece: &[(Span, T)]) -> History<T> {
    let mut entries: Vec<(u64, usize, Action<T>)> = Vec::new();
    for (index, (span, operation)) in piece.iter().enumerate() {
        entries.push((span.begin_ns, index + 1, Call(*operation)));
        entries.push((span.end_ns, index + 1, Response(*operation)));
    }
    // An operation that ends when another begins overlaps it.
    entries.sort_by_key(|(time_ns, _, action)| (*time_ns, matches!(action, Response(_))));
    let entries = entries.into_iter().map(|(_, process, action)| (process, action));
    History::from_actions([(0, Call(first)), (0, Response(first))].into_iter().chain(entries).collect())
}
