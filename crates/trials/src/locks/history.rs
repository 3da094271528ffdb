//! Who had a lock after whom: what was done to it, in the words of the checker.

use crate::linearizability::lock::{Lock, Operation};
use crate::linearizability::{self, Span};

/// What was done to one lock.
#[derive(Debug, Default)]
pub(super) struct History {
    done: Vec<(Span, Operation)>,
}

impl History {
    pub(super) fn took(&mut self, span: Span, token: u64) {
        self.done.push((span, Operation::Take(token)));
    }

    /// It was given up, or was lost, at some time in between.
    pub(super) fn gave_up(&mut self, span: Span, token: u64) {
        self.done.push((span, Operation::GiveUp(token)));
    }

    /// Whether there is an order in which nobody takes what another has.
    pub(super) fn have_order(&self) -> bool {
        let mut holder = None;
        linearizability::pieces(&self.done).into_iter().all(|piece| {
            let first = Operation::Begin(holder);
            holder = left_by(&piece, holder);
            linearizability::has_order::<Lock<false>>(first, &piece)
        })
    }
}

/// Who has it behind a piece: whose turn began and did not end there, or nobody if the one before has given it up.
fn left_by(piece: &[(Span, Operation)], before: Option<u64>) -> Option<u64> {
    let is_over = |token: u64| piece.iter().any(|(_, operation)| *operation == Operation::GiveUp(token));
    let begun = piece.iter().filter_map(|(_, operation)| match *operation {
        Operation::Take(token) => Some(token),
        _ => None,
    });
    before.into_iter().chain(begun).rfind(|token| !is_over(*token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(begin_ns: u64, end_ns: u64) -> Span {
        Span { begin_ns, end_ns }
    }

    /// The second takes it while the first gives it up.
    fn handed_over(second: Span) -> History {
        let mut history = History::default();
        history.took(span(10, 20), 7);
        history.gave_up(span(50, 70), 7);
        history.took(second, 8);
        history
    }

    #[test]
    fn nobody_takes_what_another_has() {
        assert!(handed_over(span(30, 60)).have_order());
        assert!(handed_over(span(80, 90)).have_order());
        assert!(!handed_over(span(30, 45)).have_order());
        let mut history = handed_over(span(80, 90));
        history.took(span(100, 110), 9);
        assert!(!history.have_order(), "nobody gave it up");
        history.gave_up(span(95, 105), 8);
        assert!(history.have_order());
    }
}
