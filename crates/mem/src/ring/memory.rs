//! The words and bytes of a ring: in a window, or, under loom, in a model of one.
//!
//! Only this file knows where the positions lie.  It checks nothing that the ring protocol decides.

#[cfg(loom)]
pub(crate) use model::Memory;
#[cfg(not(loom))]
pub(crate) use shared::Memory;

/// Where the producer's position is.
#[cfg_attr(loom, allow(dead_code))]
pub(super) const TAIL_OFFSET: u64 = 0;
/// Where the consumer's position is.
#[cfg_attr(loom, allow(dead_code))]
pub(super) const HEAD_OFFSET: u64 = 128;

fn check_capacity(window_bytes: u64) -> Option<u64> {
    let capacity = window_bytes.checked_sub(super::DATA_OFFSET)?;
    (capacity.is_power_of_two() && capacity >= super::CAPACITY_MIN).then_some(capacity)
}

/// How many of `len` bytes at `position` lie before the wrap, and where in the data they begin.
fn split(capacity: u64, position: u64, len: usize) -> (u64, usize) {
    let at = position & (capacity - 1);
    (at, len.min((capacity - at) as usize))
}

#[cfg(not(loom))]
mod shared {
    use std::sync::atomic::Ordering::{Acquire, Release};

    use super::super::{BadRing, DATA_OFFSET};
    use super::{HEAD_OFFSET, TAIL_OFFSET, check_capacity, split};
    use crate::Window;

    #[derive(Debug)]
    pub(crate) struct Memory {
        window: Window,
        capacity: u64,
    }

    impl Memory {
        pub(crate) fn new(window: Window) -> Result<Memory, BadRing> {
            let window_bytes = window.len();
            let capacity = check_capacity(window_bytes).ok_or(BadRing::Size { window_bytes })?;
            if window.atomic_u64(TAIL_OFFSET).is_err() {
                return Err(BadRing::Misaligned);
            }
            Ok(Memory { window, capacity })
        }

        pub(crate) fn capacity(&self) -> u64 {
            self.capacity
        }

        pub(crate) fn load_tail(&self) -> u64 {
            self.word(TAIL_OFFSET).load(Acquire)
        }

        pub(crate) fn store_tail(&self, tail: u64) {
            self.word(TAIL_OFFSET).store(tail, Release);
        }

        pub(crate) fn load_head(&self) -> u64 {
            self.word(HEAD_OFFSET).load(Acquire)
        }

        pub(crate) fn store_head(&self, head: u64) {
            self.word(HEAD_OFFSET).store(head, Release);
        }

        /// Copies `bytes` in at `position`, around the end if need be; at most the capacity.
        pub(crate) fn write(&self, position: u64, bytes: &[u8]) {
            let (at, first) = split(self.capacity, position, bytes.len());
            let (before, after) = bytes.split_at(first);
            self.window.write(DATA_OFFSET + at, before).expect(IN_RING);
            self.window.write(DATA_OFFSET, after).expect(IN_RING);
        }

        /// Copies bytes out from `position`, around the end if need be; at most the capacity.
        pub(crate) fn read(&self, position: u64, bytes: &mut [u8]) {
            let (at, first) = split(self.capacity, position, bytes.len());
            let (before, after) = bytes.split_at_mut(first);
            self.window.read(DATA_OFFSET + at, before).expect(IN_RING);
            self.window.read(DATA_OFFSET, after).expect(IN_RING);
        }

        fn word(&self, offset: u64) -> &std::sync::atomic::AtomicU64 {
            self.window.atomic_u64(offset).expect(IN_RING)
        }
    }

    /// Offsets are masked by a capacity that new() measured, and the window never changes.
    const IN_RING: &str = "offsets in a ring are masked to lie inside its window";
}

#[cfg(loom)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::sync::atomic::Ordering::{Acquire, Release};

    use super::super::BadRing;
    use super::{check_capacity, split};
    use crate::Window;

    /// Data is a row of words, each of which loom watches for races.
    #[derive(Clone, Debug)]
    pub(crate) struct Memory {
        words: Arc<Words>,
    }

    #[derive(Debug)]
    struct Words {
        tail: AtomicU64,
        head: AtomicU64,
        data: Vec<UnsafeCell<[u8; 8]>>,
    }

    // SAFETY: loom reports any race on the cells; finding none is what the model is for.
    unsafe impl Send for Words {}
    // SAFETY: as above.
    unsafe impl Sync for Words {}

    impl Memory {
        /// There is no shared memory under loom; the windows of other tests must still compile.
        pub(crate) fn new(window: Window) -> Result<Memory, BadRing> {
            let window_bytes = window.len();
            let capacity = check_capacity(window_bytes).ok_or(BadRing::Size { window_bytes })?;
            Ok(Memory::private(capacity))
        }

        pub(crate) fn private(capacity: u64) -> Memory {
            let data = (0..capacity / 8).map(|_| UnsafeCell::new([0; 8])).collect();
            let (tail, head) = (AtomicU64::new(0), AtomicU64::new(0));
            Memory { words: Arc::new(Words { tail, head, data }) }
        }

        pub(crate) fn capacity(&self) -> u64 {
            self.words.data.len() as u64 * 8
        }

        pub(crate) fn load_tail(&self) -> u64 {
            self.words.tail.load(Acquire)
        }

        pub(crate) fn store_tail(&self, tail: u64) {
            self.words.tail.store(tail, Release);
        }

        pub(crate) fn load_head(&self) -> u64 {
            self.words.head.load(Acquire)
        }

        pub(crate) fn store_head(&self, head: u64) {
            self.words.head.store(head, Release);
        }

        pub(crate) fn write(&self, position: u64, bytes: &[u8]) {
            for (index, byte) in bytes.iter().enumerate() {
                let (at, _) = split(self.capacity(), position + index as u64, 1);
                self.words.data[at as usize / 8].with_mut(|word| {
                    // SAFETY: loom lends the pointer for this call and reports whoever else has it.
                    unsafe { (*word)[at as usize % 8] = *byte }
                });
            }
        }

        pub(crate) fn read(&self, position: u64, bytes: &mut [u8]) {
            for (index, byte) in bytes.iter_mut().enumerate() {
                let (at, _) = split(self.capacity(), position + index as u64, 1);
                *byte = self.words.data[at as usize / 8].with(|word| {
                    // SAFETY: as in write().
                    unsafe { (*word)[at as usize % 8] }
                });
            }
        }
    }
}
