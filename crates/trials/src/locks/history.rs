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
