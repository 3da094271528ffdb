//! The lines of an exchange, in a window or, in the tests of loom, in a model.

#[cfg(all(loom, test))]
pub(super) use model::Lines;
#[cfg(not(all(loom, test)))]
pub(super) use shared::Lines;

use crate::sync::{Ordering::SeqCst, fence as fence_of};

#[inline]
pub(super) fn fence() {
    fence_of(SeqCst);
}

#[cfg(not(all(loom, test)))]
mod shared {
    use std::sync::atomic::Ordering::Relaxed;

    use super::super::{HEADER_LINE, Line, SLOTS, WORDS};
    use crate::Window;

    const LINE_BYTES: u64 = (WORDS * size_of::<u64>()) as u64;

    /// A header line, and a line for each slot.
    #[derive(Debug)]
    pub(in super::super) struct Lines(Window);

    impl Lines {
        pub(in super::super) fn new(window: Window) -> Lines {
            let len = (SLOTS as u64 + 1) * LINE_BYTES;
            let lines = Lines(window.slice(0, len).expect("a page holds all lines"));
            lines.0.atomic_u64(0).expect("a page is aligned");
            lines
        }

        /// Stores the first words of a line. Stores the first word, which contains the tag, last.
        #[inline]
        pub(in super::super) fn publish(&self, at: usize, words: &[u64]) {
            // The Release of publish_words() pairs with the Acquire in take().
            self.0.publish_words(at as u64 * LINE_BYTES, words).expect(INSIDE);
        }

        /// Returns a copy of a line; `None` if the line does not have this tag.
        #[inline]
        pub(in super::super) fn take(&self, at: usize, tag: u16) -> Option<Line> {
            let offset = at as u64 * LINE_BYTES;
            // Pairs with the Release in publish().
            if self.0.load_u64(offset).expect(INSIDE) as u16 != tag {
                return None;
            }
            // A hostile client may have changed the tag meanwhile. It then only gets wrong replies.
            Some(self.0.load_words(offset).expect(INSIDE))
        }

        #[inline]
        pub(in super::super) fn flag(&self) -> u64 {
            // Ordered by the fences of the callers.
            self.0.atomic_u64(HEADER_LINE as u64).expect(INSIDE).load(Relaxed)
        }

        pub(in super::super) fn set_flag(&self, value: u64) {
            // Ordered by the fences of the callers.
            self.0.atomic_u64(HEADER_LINE as u64).expect(INSIDE).store(value, Relaxed);
        }
    }

    const INSIDE: &str = "the index of each line is below the number of lines";
}

#[cfg(all(loom, test))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};

    use super::super::{HEADER_LINE, Line, SLOTS};

    /// A model of the lines of one direction, which both sides share.
    #[derive(Clone, Debug)]
    pub(in super::super) struct Lines(Arc<Vec<[AtomicU64; 2]>>);

    impl Lines {
        pub(in super::super) fn private() -> Lines {
            Lines(Arc::new((0..=SLOTS).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect()))
        }

        pub(in super::super) fn publish(&self, at: usize, line: &[u64]) {
            self.0[at][1].store(line[1], Relaxed);
            self.0[at][0].store(line[0], Release);
        }

        pub(in super::super) fn take(&self, at: usize, tag: u16) -> Option<Line> {
            let first = self.0[at][0].load(Acquire);
            (first as u16 == tag).then(|| [first, self.0[at][1].load(Relaxed)])
        }

        pub(in super::super) fn flag(&self) -> u64 {
            self.0[HEADER_LINE][0].load(Relaxed)
        }

        pub(in super::super) fn set_flag(&self, value: u64) {
            self.0[HEADER_LINE][0].store(value, Relaxed);
        }
    }
}
