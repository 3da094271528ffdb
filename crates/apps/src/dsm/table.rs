//! The table of the sections that workers hold or wait for.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

/// Kind of access that a section permits to its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The worker may load. Other workers may hold read sections of the same pages.
    Read,
    /// The worker may load and store. No other section may hold the same pages.
    Write,
}

/// A section of a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) worker: usize,
    /// Id of the section, unique among the worker's sections.
    pub(super) id: u64,
    pub(super) pages: Range<usize>,
    pub(super) access: Access,
}

impl Span {
    fn conflicts(&self, other: &Span) -> bool {
        let is_disjoint = self.pages.end <= other.pages.start || other.pages.end <= self.pages.start;
        !is_disjoint && (self.access == Access::Write || other.access == Access::Write)
    }
}

/// All sections of a range of pages. A `T` is the call of a request, which the server answers when it grants the
/// section.
#[derive(Debug)]
pub(super) struct Table<T> {
    held: Vec<Span>,
    /// Waiting requests, in order of arrival.
    waiting: VecDeque<(Span, T)>,
    /// Workers that may have old copies, and so may not acquire again.
    lost: BTreeSet<usize>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Table<T> {
        Table { held: Vec::new(), waiting: VecDeque::new(), lost: BTreeSet::new() }
    }

    pub(super) fn request(&mut self, span: Span, answer: T) {
        self.waiting.push_back((span, answer));
    }

    pub(super) fn is_lost(&self, worker: usize) -> bool {
        self.lost.contains(&worker)
    }

    /// Grants and returns the waiting requests that conflict neither with a held section nor with an earlier request.
    pub(super) fn grant(&mut self) -> Vec<(Span, T)> {
        let mut granted = Vec::new();
        let mut still_waiting: VecDeque<(Span, T)> = VecDeque::new();
        for (span, answer) in self.waiting.drain(..) {
            let mut before = self.held.iter().chain(still_waiting.iter().map(|(span, _)| span));
            if before.any(|other| span.conflicts(other)) {
                still_waiting.push_back((span, answer));
            } else {
                self.held.push(span.clone());
                granted.push((span, answer));
            }
        }
        self.waiting = still_waiting;
        granted
    }

    /// Ends a section, or withdraws a request for a section.
    pub(super) fn release(&mut self, worker: usize, id: u64) {
        self.remove(|span| (span.worker, span.id) == (worker, id));
    }

    /// Ends all sections and requests of a worker, and marks the worker as lost.
    pub(super) fn mark_lost(&mut self, worker: usize) {
        self.lost.insert(worker);
        self.remove(|span| span.worker == worker);
    }

    fn remove(&mut self, is_over: impl Fn(&Span) -> bool) {
        self.held.retain(|span| !is_over(span));
        self.waiting.retain(|(span, _)| !is_over(span));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(worker: usize, id: u64, pages: Range<usize>, access: Access) -> Span {
        Span { worker, id, pages, access }
    }

    fn granted(table: &mut Table<u64>) -> Vec<u64> {
        table.grant().into_iter().map(|(_, answer)| answer).collect()
    }

    #[test]
    fn readers_share_and_writers_wait_in_order() {
        let mut table = Table::new();
        table.request(span(0, 1, 0..4, Access::Read), 1);
        table.request(span(1, 2, 2..6, Access::Read), 2);
        table.request(span(2, 3, 3..4, Access::Write), 3);
        // A reader waits behind an earlier writer of the same pages. A request for other pages does not wait.
        table.request(span(0, 4, 3..4, Access::Read), 4);
        table.request(span(0, 5, 9..10, Access::Write), 5);
        assert_eq!(granted(&mut table), [1, 2, 5]);
        table.release(0, 1);
        assert!(granted(&mut table).is_empty());
        table.release(1, 2);
        assert_eq!(granted(&mut table), [3]);
        table.release(2, 3);
        assert_eq!(granted(&mut table), [4]);
    }

    #[test]
    fn a_lost_worker_has_no_sections_or_requests() {
        let mut table = Table::new();
        table.request(span(0, 1, 0..4, Access::Write), 1);
        table.request(span(0, 2, 0..4, Access::Write), 2);
        table.request(span(1, 1, 0..4, Access::Write), 3);
        assert_eq!(granted(&mut table), [1]);
        table.mark_lost(0);
        assert_eq!(granted(&mut table), [3]);
        assert!(table.is_lost(0) && !table.is_lost(1));
    }
}
