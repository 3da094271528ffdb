//! The words and bytes of a ring, in a window or, under loom, in a model.
//!
//! Only this file knows the offsets of the words and the data. It does not check the ring protocol.

#[cfg(loom)]
pub(crate) use model::Memory;
#[cfg(not(loom))]
pub(crate) use shared::Memory;

/// Offset of the consumer's position.
#[cfg_attr(loom, allow(dead_code))]
pub(super) const HEAD_OFFSET: u64 = 0;
/// Offset of the producer's request for room. The consumer reads it only when it publishes its position.
#[cfg_attr(loom, allow(dead_code))]
pub(super) const WAITING_OFFSET: u64 = 64;

fn check_capacity(window_bytes: u64) -> Option<u64> {
    let capacity = window_bytes.checked_sub(super::DATA_OFFSET)?;
    (capacity.is_power_of_two() && capacity >= super::CAPACITY_MIN).then_some(capacity)
}

#[cfg(not(loom))]
mod shared {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

    use super::super::{BadRing, DATA_OFFSET};
    use super::{HEAD_OFFSET, WAITING_OFFSET, check_capacity};
    use crate::Window;
    use crate::window::OutOfBounds;

    #[derive(Debug)]
    pub(crate) struct Memory {
        window: Window,
        capacity: u64,
    }

    impl Memory {
        pub(crate) fn new(window: Window) -> Result<Memory, BadRing> {
            let window_bytes = window.len();
            let capacity = check_capacity(window_bytes).ok_or(BadRing::Size { window_bytes })?;
            if window.atomic_u64(HEAD_OFFSET).is_err() {
                return Err(BadRing::Misaligned);
            }
            Ok(Memory { window, capacity })
        }

        #[inline]
        pub(crate) fn capacity(&self) -> u64 {
            self.capacity
        }

        #[inline]
        pub(crate) fn load_header(&self, position: u64) -> u64 {
            self.line_word(position).load(Acquire)
        }

        #[inline]
        pub(crate) fn store_header(&self, position: u64, header: u64) {
            self.line_word(position).store(header, Release);
        }

        /// Clears the header word of the line at `position`.
        pub(crate) fn clear_header(&self, position: u64) {
            // Relaxed: the Release in store_head() orders it before the producer's next use of the line.
            self.line_word(position).store(0, Relaxed);
        }

        pub(crate) fn load_head(&self) -> u64 {
            self.word(HEAD_OFFSET).load(Acquire)
        }

        pub(crate) fn store_head(&self, head: u64) {
            self.word(HEAD_OFFSET).store(head, Release);
        }

        pub(crate) fn is_waiting(&self) -> bool {
            // Ordered by the fences of has_or_asks_for_room() and publish_head().
            self.word(WAITING_OFFSET).load(Relaxed) != 0
        }

        pub(crate) fn set_waiting(&self, waiting: bool) {
            // Ordered by the fences of has_or_asks_for_room() and publish_head().
            self.word(WAITING_OFFSET).store(waiting.into(), Relaxed);
        }

        pub(crate) fn fence() {
            std::sync::atomic::fence(SeqCst);
        }

        /// Copies `bytes`, at most as many as the capacity, to `position`, wrapping at the end of the ring.
        #[inline]
        pub(crate) fn write(&self, position: u64, bytes: &[u8]) {
            let (at, first) = self.split(position, bytes.len());
            let (before, after) = bytes.split_at(first);
            self.window.write(DATA_OFFSET + at, before).expect(IN_RING);
            if !after.is_empty() {
                self.window.write(DATA_OFFSET, after).expect(IN_RING);
            }
        }

        /// Fills `bytes`, at most as many as the capacity, from `position`, wrapping at the end of the ring.
        #[inline]
        pub(crate) fn read(&self, position: u64, bytes: &mut [u8]) {
            let (at, first) = self.split(position, bytes.len());
            let (before, after) = bytes.split_at_mut(first);
            self.window.read(DATA_OFFSET + at, before).expect(IN_RING);
            if !after.is_empty() {
                self.window.read(DATA_OFFSET, after).expect(IN_RING);
            }
        }

        /// Copies `len` bytes from `position` to `offset` in a window, wrapping at the end of the ring. Copies nothing
        /// if the window is too short.
        #[inline]
        pub(crate) fn copy_to(
            &self,
            position: u64,
            len: usize,
            target: &Window,
            offset: u64,
        ) -> Result<(), OutOfBounds> {
            let (at, first) = self.split(position, len);
            let after = len - first;
            if after > 0 {
                // Copies the second part first: if it fits, the first part fits, too.
                let offset = offset.saturating_add(first as u64);
                target.copy_from(offset, &self.window, DATA_OFFSET, after as u64)?;
            }
            target.copy_from(offset, &self.window, DATA_OFFSET + at, first as u64)
        }

        /// Returns the offset of `position` in the data, and the number of the `len` bytes before the wrap.
        #[inline]
        fn split(&self, position: u64, len: usize) -> (u64, usize) {
            let at = position & (self.capacity - 1);
            (at, len.min((self.capacity - at) as usize))
        }

        #[inline]
        fn line_word(&self, position: u64) -> &AtomicU64 {
            self.word(DATA_OFFSET + (position & (self.capacity - 1)))
        }

        #[inline]
        fn word(&self, offset: u64) -> &AtomicU64 {
            self.window.atomic_u64(offset).expect(IN_RING)
        }
    }

    const IN_RING: &str = "offsets are masked by the capacity, which new() derived from the window";
}

#[cfg(loom)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

    use super::super::{BadRing, LINE_BYTES};
    use super::check_capacity;
    use crate::Window;
    use crate::window::OutOfBounds;

    const LINE: usize = LINE_BYTES as usize;

    /// A model of a ring's memory: a row of lines, whose bytes after the first word loom checks for races.
    #[derive(Clone, Debug)]
    pub(crate) struct Memory {
        words: Arc<Words>,
    }

    #[derive(Debug)]
    struct Words {
        head: AtomicU64,
        waiting: AtomicU64,
        lines: Vec<Line>,
    }

    #[derive(Debug)]
    struct Line {
        /// A header, or payload of a record that began in an earlier line.
        first: AtomicU64,
        rest: UnsafeCell<[u8; LINE]>,
    }

    // SAFETY: loom reports any race on the cells.
    unsafe impl Send for Words {}
    // SAFETY: as above.
    unsafe impl Sync for Words {}

    impl Memory {
        /// Returns a private model, because loom has no shared memory.
        pub(crate) fn new(window: Window) -> Result<Memory, BadRing> {
            let window_bytes = window.len();
            let capacity = check_capacity(window_bytes).ok_or(BadRing::Size { window_bytes })?;
            Ok(Memory::private(capacity))
        }

        pub(crate) fn private(capacity: u64) -> Memory {
            let line = |_| Line { first: AtomicU64::new(0), rest: UnsafeCell::new([0; LINE]) };
            let lines = (0..capacity / LINE_BYTES).map(line).collect();
            Memory { words: Arc::new(Words { head: AtomicU64::new(0), waiting: AtomicU64::new(0), lines }) }
        }

        pub(crate) fn capacity(&self) -> u64 {
            self.words.lines.len() as u64 * LINE_BYTES
        }

        pub(crate) fn load_header(&self, position: u64) -> u64 {
            self.line(position).first.load(Acquire)
        }

        pub(crate) fn store_header(&self, position: u64, header: u64) {
            self.line(position).first.store(header, Release);
        }

        pub(crate) fn clear_header(&self, position: u64) {
            self.line(position).first.store(0, Relaxed);
        }

        pub(crate) fn load_head(&self) -> u64 {
            self.words.head.load(Acquire)
        }

        pub(crate) fn store_head(&self, head: u64) {
            self.words.head.store(head, Release);
        }

        pub(crate) fn is_waiting(&self) -> bool {
            self.words.waiting.load(Relaxed) != 0
        }

        pub(crate) fn set_waiting(&self, waiting: bool) {
            self.words.waiting.store(waiting.into(), Relaxed);
        }

        pub(crate) fn fence() {
            loom::sync::atomic::fence(SeqCst);
        }

        pub(crate) fn write(&self, mut position: u64, mut bytes: &[u8]) {
            while !bytes.is_empty() {
                let (line, at) = (self.line(position), (position % LINE_BYTES) as usize);
                let (now, later) = bytes.split_at(bytes.len().min(LINE - at));
                line.write(at, now);
                position += now.len() as u64;
                bytes = later;
            }
        }

        pub(crate) fn read(&self, mut position: u64, mut bytes: &mut [u8]) {
            while !bytes.is_empty() {
                let (line, at) = (self.line(position), (position % LINE_BYTES) as usize);
                let (now, later) = bytes.split_at_mut(bytes.len().min(LINE - at));
                line.read(at, now);
                position += now.len() as u64;
                bytes = later;
            }
        }

        pub(crate) fn copy_to(
            &self,
            position: u64,
            len: usize,
            target: &Window,
            offset: u64,
        ) -> Result<(), OutOfBounds> {
            let mut bytes = vec![0; len];
            self.read(position, &mut bytes);
            target.write(offset, &bytes)
        }

        fn line(&self, position: u64) -> &Line {
            let index = position / LINE_BYTES % self.words.lines.len() as u64;
            &self.words.lines[index as usize]
        }
    }

    impl Line {
        fn write(&self, at: usize, bytes: &[u8]) {
            let (word, rest) = bytes.split_at(bytes.len().min(8usize.saturating_sub(at)));
            if !word.is_empty() {
                let mut first = self.first.load(Relaxed).to_ne_bytes();
                first[at..at + word.len()].copy_from_slice(word);
                self.first.store(u64::from_ne_bytes(first), Relaxed);
            }
            let start = at + word.len();
            self.rest.with_mut(|line| {
                // SAFETY: loom lends the pointer for this call and reports any concurrent use.
                let line = unsafe { &mut *line };
                line[start..start + rest.len()].copy_from_slice(rest);
            });
        }

        fn read(&self, at: usize, bytes: &mut [u8]) {
            let (word, rest) = bytes.split_at_mut(bytes.len().min(8usize.saturating_sub(at)));
            if !word.is_empty() {
                let first = self.first.load(Relaxed).to_ne_bytes();
                word.copy_from_slice(&first[at..at + word.len()]);
            }
            let start = at + word.len();
            self.rest.with(|line| {
                // SAFETY: as in write().
                let line = unsafe { &*line };
                rest.copy_from_slice(&line[start..start + rest.len()]);
            });
        }
    }
}
