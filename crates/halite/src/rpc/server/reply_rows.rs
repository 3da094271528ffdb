//! Rows of reply lines in the memory of peers. An answering thread finds a row without a lock.
//!
//! A row is retired when its peer is down. When no thread stores into the row any more, the row is dropped, and the
//! peer's memory is unmapped.

use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex};

use halite_mem::{GracePeriod, Lookup, Pins, Slots};

use crate::rpc::shared::{Row, RowRef};
use crate::runtime::locks::{lock, ranked};

ranked! {
    Vec<(u32, GracePeriod)> => Innermost;
}

/// All rows of a node.
pub(in crate::rpc) struct ReplyRows {
    pins: Arc<Pins>,
    rows: Slots<Row>,
    /// Retired rows that threads may still use.
    retired: Mutex<Vec<(u32, GracePeriod)>>,
}

impl ReplyRows {
    /// Creates a set without rows. Threads pin `pins` while they use a row.
    pub(super) fn new(pins: Arc<Pins>) -> ReplyRows {
        ReplyRows { rows: Slots::new(pins.clone()), pins, retired: Mutex::default() }
    }

    /// Sets the row of the link that owns `at`.
    pub(in crate::rpc) fn open(&self, at: &RowRef, row: Row) {
        let (index, generation) = self.rows.insert(row);
        self.replace(at, u64::from(generation) << 32 | u64::from(index));
    }

    /// Removes the row of the link that owns `at`, and retires it.
    pub(in crate::rpc) fn close(&self, at: &RowRef) {
        self.replace(at, 0);
    }

    fn replace(&self, at: &RowRef, word: u64) {
        // Pairs with the Acquire in with().
        let before = at.0.swap(word, AcqRel);
        if before != 0 {
            self.rows
                .retire(before as u32)
                .expect("the swap above removed the row from its reference, so only this thread retires it");
            lock(&self.retired).push((before as u32, self.pins.start_grace_period()));
        }
        self.collect();
    }

    /// Drops the retired rows that no thread uses any more.
    pub(super) fn collect(&self) {
        let mut retired = lock(&self.retired);
        let is_over = |(index, grace): &mut (u32, GracePeriod)| {
            let Some(elapsed) = grace.elapsed(&self.pins) else { return false };
            drop(self.rows.reclaim(*index, elapsed).expect("the grace period began when it was retired"));
            true
        };
        retired.extract_if(.., is_over).for_each(drop);
    }

    /// Calls `enter`, which must not wait, with the row of the link that owns `at`. Returns `None` if the link has no
    /// row.
    #[inline]
    pub(super) fn with<T>(&self, at: &RowRef, enter: impl FnOnce(&Row) -> T) -> Option<T> {
        let pin = self.pins.pin();
        // Pairs with the AcqRel in replace().
        let word = at.0.load(Acquire);
        match self.rows.get(&pin, word as u32, (word >> 32) as u32) {
            Lookup::Found(row) => Some(enter(row)),
            Lookup::Busy | Lookup::Stale => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use halite_fabric::{Key, Lines, RemoteAddress};

    use super::*;

    /// Holds a reference that the test counts.
    #[derive(Debug)]
    struct CountedLines(#[expect(dead_code, reason = "the test counts the references")] Arc<()>);

    impl Lines for CountedLines {
        fn put(&self, _: u32, _: &[u64]) {}

        fn last_word(&self, _: u32) -> u64 {
            0
        }

        fn ring(&self) {}
    }

    #[test]
    fn closed_rows_are_dropped_after_their_last_user() {
        let (pins, kept) = (Arc::new(Pins::new()), Arc::new(()));
        let rows = ReplyRows::new(pins);
        let (one, other) = (RowRef::default(), RowRef::default());
        let row = || Row {
            at: RemoteAddress { key: Key(1), offset: 0 },
            direct: Some(Box::new(CountedLines(kept.clone()))),
        };
        assert!(rows.with(&one, |_| ()).is_none());
        rows.open(&one, row());
        rows.open(&other, row());
        rows.with(&one, |_| {
            rows.close(&one);
            assert_eq!(Arc::strong_count(&kept), 3, "the row is in use");
        });
        assert!(rows.with(&one, |_| ()).is_none() && rows.with(&other, |_| ()).is_some());
        rows.collect();
        assert_eq!(Arc::strong_count(&kept), 2);
        // A second handshake replaces the row.
        rows.open(&other, row());
        assert_eq!(Arc::strong_count(&kept), 2);
    }
}
