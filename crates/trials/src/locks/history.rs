//! The holds of a lock, in the checker's format.

use crate::linearizability::lock::{Lock, Operation};
use crate::linearizability::{self, Span};

#[derive(Debug, Default)]
pub(super) struct History {
    done: Vec<(Span, Operation)>,
}

impl History {
    pub(super) fn record_taken(&mut self, span: Span, token: u64) {
        self.done.push((span, Operation::Take(token)));
    }

    /// Records a release or loss of the lock at some time in `span`.
    pub(super) fn record_released(&mut self, span: Span, token: u64) {
        self.done.push((span, Operation::GiveUp(token)));
    }

    /// Returns true if some order has no overlapping holds.
    pub(super) fn has_order(&self) -> bool {
        let mut holder = None;
        linearizability::pieces(&self.done).into_iter().all(|piece| {
            let first = Operation::Begin(holder);
            holder = holder_after(&piece, holder);
            linearizability::has_order::<Lock>(first, &piece)
        })
    }
}

/// Returns the holder after a piece: the last one whose hold did not end.
fn holder_after(piece: &[(Span, Operation)], before: Option<u64>) -> Option<u64> {
    let is_over = |token: u64| piece.iter().any(|(_, operation)| *operation == Operation::GiveUp(token));
    let begun = piece.iter().filter_map(|(_, operation)| match *operation {
        Operation::Take(token) => Some(token),
        _ => None,
    });
    before.into_iter().chain(begun).rfind(|token| !is_over(*token))
}
