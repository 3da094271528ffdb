//! Windows: bounds-checked access to memory that other processes may write at the same time.
//!
//! A window copies bytes in and out and offers atomics. A window does not order copies. Aligned copies of 1, 2, 4 and 8
//! bytes are single-copy atomic; longer copies may tear. To publish copied bytes, the caller uses an atomic. A window
//! checks no permissions.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::copy;
use crate::segment::Segment;

/// A view of a part of a [`Segment`]. The segment stays mapped as long as the window exists. All offsets are in bytes
/// from the start of the window.
///
/// ```
/// # use halite_mem::{PagePolicy, Segment};
/// let segment = Segment::create("example", 4096, PagePolicy::Normal)?;
/// let window = segment.window(0, 64).expect("in bounds");
/// assert_eq!(window.fetch_add_u64(8, 5), Ok(0));
/// assert_eq!(window.load_u64(8), Ok(5));
/// assert!(window.write(60, b"too long").is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Window {
    base: NonNull<u8>,
    len: u64,
    segment: Arc<Segment>,
}

// SAFETY: `base` points into the mapping that `segment` keeps alive, whichever thread uses or drops it.
unsafe impl Send for Window {}
// SAFETY: all access through &Window uses primitives for concurrently written memory (the copies of `crate::copy`, and
// atomics); no safe method lends a reference to plain bytes.
unsafe impl Sync for Window {}

/// An access that is not inside its window. No byte was accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} bytes at offset {offset} are not inside a window of {window_len} bytes")]
pub struct OutOfBounds {
    /// Offset of the access, in bytes.
    pub offset: u64,
    /// Length of the access, in bytes.
    pub len: u64,
    /// Length of the window, in bytes.
    pub window_len: u64,
}

/// The reason why a word could not be accessed. No byte was accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// The word is not inside the window.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The address of the word is not a multiple of the size of the word.
    #[error("the word at offset {offset} is not aligned to {alignment} bytes")]
    Misaligned {
        /// Offset of the word, in bytes.
        offset: u64,
        /// Required alignment of the address, in bytes.
        alignment: u64,
    },
}

impl Window {
    /// Creates a view of `len` bytes at `base`.
    ///
    /// # Safety
    /// The bytes lie within the mapping of `segment`.
    pub(crate) unsafe fn new(segment: Arc<Segment>, base: NonNull<u8>, len: u64) -> Window {
        Window { base, len, segment }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the window is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the segment of the window.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Returns the offset of the window in its segment, in bytes.
    pub fn offset(&self) -> u64 {
        (self.base.addr().get() - self.segment.base().addr().get()) as u64
    }

    /// Returns a window of `len` bytes from `offset` in this window; `None` if the range is not inside this window.
    pub fn slice(&self, offset: u64, len: u64) -> Option<Window> {
        let base = self.range(offset, len).ok()?;
        // SAFETY: range() found the bytes inside this window, hence inside the segment.
        Some(unsafe { Window::new(self.segment.clone(), base, len) })
    }

    /// Copies `target.len()` bytes from `offset` to `target`. Fails if the range is not inside the window.
    #[inline]
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.range(offset, target.len() as u64)?;
        // SAFETY: range() checked the source; the target is a slice of ours of the same length.
        unsafe { copy::copy(target.as_mut_ptr(), source.as_ptr(), target.len()) };
        Ok(())
    }

    /// Copies the bytes of `source` to `offset`. Fails if the range is not inside the window.
    #[inline]
    pub fn write(&self, offset: u64, source: &[u8]) -> Result<(), OutOfBounds> {
        let target = self.range(offset, source.len() as u64)?;
        if source.len() >= copy::STREAM_BYTES_MIN && self.segment.streams() {
            // SAFETY: range() checked the target; the source is a slice of the same length, and is not shared memory.
            unsafe { copy::stream(target.as_ptr(), source.as_ptr(), source.len()) };
            return Ok(());
        }
        // SAFETY: range() checked the target; the source is a slice of the same length.
        unsafe { copy::copy(target.as_ptr(), source.as_ptr(), source.len()) };
        Ok(())
    }

    /// Sets `len` bytes from `offset` to `byte`. Fails if the range is not inside the window.
    pub fn fill(&self, offset: u64, len: u64, byte: u8) -> Result<(), OutOfBounds> {
        let target = self.range(offset, len)?;
        // SAFETY: range() checked the target.
        unsafe { copy::fill(target.as_ptr(), byte, len as usize) };
        Ok(())
    }

    /// Copies `len` bytes from `source_offset` in `source` to `offset` in this window. If both windows belong to the
    /// same [`Segment`] value and the ranges overlap, the result is that of a copy through a private buffer. If two
    /// mappings of one memfd overlap, the bytes of the overlap are unspecified. Fails if a range is not inside its
    /// window.
    #[inline]
    pub fn copy_from(
        &self,
        offset: u64,
        source: &Window,
        source_offset: u64,
        len: u64,
    ) -> Result<(), OutOfBounds> {
        let target = self.range(offset, len)?;
        let are_distinct = !Arc::ptr_eq(&self.segment, &source.segment);
        let source = source.range(source_offset, len)?;
        if len >= copy::STREAM_BYTES_MIN as u64 && self.segment.streams() && are_distinct {
            // SAFETY: range() checked both sides.
            unsafe { copy::stream(target.as_ptr(), source.as_ptr(), len as usize) };
            return Ok(());
        }
        // SAFETY: range() checked both sides.
        unsafe { copy::copy(target.as_ptr(), source.as_ptr(), len as usize) };
        Ok(())
    }

    /// Returns the aligned 8-byte word at `offset` as an atomic. Other processes may also change the word.
    #[inline]
    pub fn atomic_u64(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        let word = self.word(offset, 8)?;
        // SAFETY: word() checked bounds and alignment; the bytes stay mapped while &self, which holds the segment, is
        // borrowed; this process accesses them only by atomics and the copies of `crate::copy`.
        Ok(unsafe { AtomicU64::from_ptr(word.cast().as_ptr()) })
    }

    /// Returns the aligned 4-byte word at `offset` as an atomic. Other processes may also change the word.
    #[inline]
    pub fn atomic_u32(&self, offset: u64) -> Result<&AtomicU32, AccessError> {
        let word = self.word(offset, 4)?;
        // SAFETY: as in atomic_u64().
        Ok(unsafe { AtomicU32::from_ptr(word.cast().as_ptr()) })
    }

    /// Stores `words` as consecutive 8-byte words from `offset` on, the first word last: a reader whose
    /// [`Window::load_words`] returns the new first word also gets the other new words.
    #[inline]
    pub fn publish_words(&self, offset: u64, words: &[u64]) -> Result<(), AccessError> {
        let targets = self.words(offset, words.len())?;
        let ([first, rest @ ..], [first_target, rest_targets @ ..]) = (words, targets) else { return Ok(()) };
        for (word, target) in rest.iter().zip(rest_targets) {
            target.store(*word, Relaxed);
        }
        // Pairs with the Acquire in load_words(), or in load_u64().
        first_target.store(*first, Release);
        Ok(())
    }

    /// Loads `N` consecutive 8-byte words from `offset` on, the first word first, because [`Window::publish_words`]
    /// stores it last.
    #[inline]
    pub fn load_words<const N: usize>(&self, offset: u64) -> Result<[u64; N], AccessError> {
        let sources = self.words(offset, N)?;
        let sources: &[AtomicU64; N] = sources.try_into().expect("words() returns N words");
        let mut words = [0; N];
        for at in 0..N {
            // The Acquire of the first load pairs with the Release in publish_words().
            words[at] = sources[at].load(Acquire);
        }
        Ok(words)
    }

    /// Returns `count` words at `offset` as atomics. Other processes may also change the words.
    #[inline(always)]
    fn words(&self, offset: u64, count: usize) -> Result<&[AtomicU64], AccessError> {
        let first = self.range(offset, (count * size_of::<u64>()) as u64)?;
        if !(first.as_ptr() as u64).is_multiple_of(size_of::<u64>() as u64) {
            return Err(AccessError::Misaligned { offset, alignment: size_of::<u64>() as u64 });
        }
        // SAFETY: range() checked the bounds, and alignment was checked just before; as in atomic_u64() otherwise.
        Ok(unsafe { std::slice::from_raw_parts(first.cast().as_ptr(), count) })
    }

    /// Returns the address of `len` bytes at `offset`. Fails if the range is not inside the window.
    #[inline(always)]
    fn range(&self, offset: u64, len: u64) -> Result<NonNull<u8>, OutOfBounds> {
        // Untrusted numbers could overflow an addition, but not this subtraction.
        if offset > self.len || len > self.len - offset {
            return Err(OutOfBounds { offset, len, window_len: self.len });
        }
        // SAFETY: offset <= self.len, so the result is inside the mapping or one past its end.
        Ok(unsafe { self.base.add(offset as usize) })
    }

    #[inline(always)]
    fn word(&self, offset: u64, size: u64) -> Result<NonNull<u8>, AccessError> {
        let word = self.range(offset, size)?;
        if !(word.as_ptr() as u64).is_multiple_of(size) {
            return Err(AccessError::Misaligned { offset, alignment: size });
        }
        Ok(word)
    }
}

/// Access to aligned 8-byte words. Loads acquire and stores release, and pair with each other across processes.
/// Read-modify-write operations are sequentially consistent. Additions wrap at overflow.
impl Window {
    /// Returns the 8-byte word at `offset`.
    #[inline]
    pub fn load_u64(&self, offset: u64) -> Result<u64, AccessError> {
        // Pairs with the Release in store_u64().
        Ok(self.atomic_u64(offset)?.load(Acquire))
    }

    /// Stores `value` in the 8-byte word at `offset`.
    #[inline]
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), AccessError> {
        // Pairs with the Acquire in load_u64().
        self.atomic_u64(offset)?.store(value, Release);
        Ok(())
    }

    /// Adds `add` to the 8-byte word at `offset`, and returns the previous value of the word.
    #[inline]
    pub fn fetch_add_u64(&self, offset: u64, add: u64) -> Result<u64, AccessError> {
        Ok(self.atomic_u64(offset)?.fetch_add(add, SeqCst))
    }

    /// Stores `new` in the 8-byte word at `offset` if the word equals `expected`. Returns the previous value of the
    /// word, which equals `expected` if, and only if, `new` was stored.
    #[inline]
    pub fn compare_exchange_u64(&self, offset: u64, expected: u64, new: u64) -> Result<u64, AccessError> {
        let exchanged = self.atomic_u64(offset)?.compare_exchange(expected, new, SeqCst, SeqCst);
        Ok(exchanged.unwrap_or_else(|old| old))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::PagePolicy;

    fn window(len: u64) -> Window {
        let segment = Segment::create("test", len.max(1), PagePolicy::Normal).unwrap();
        segment.window(0, len).unwrap()
    }

    #[test]
    fn accesses_out_of_bounds_change_nothing() {
        let window = window(4096).slice(100, 50).unwrap();
        let all = window.segment().window(0, 4096).unwrap();
        let outside = |offset, len| OutOfBounds { offset, len, window_len: 50 };
        assert_eq!(window.write(48, b"abc"), Err(outside(48, 3)));
        assert_eq!(window.write(u64::MAX, b"a"), Err(outside(u64::MAX, 1)));
        assert_eq!(window.read(51, &mut []), Err(outside(51, 0)));
        assert_eq!(window.fill(1, u64::MAX, 1), Err(outside(1, u64::MAX)));
        assert_eq!(window.copy_from(0, &all, 4090, 7).unwrap_err().window_len, 4096);
        assert_eq!(window.copy_from(44, &all, 0, 7), Err(outside(44, 7)));
        assert!(window.slice(0, 51).is_none());
        assert_eq!(window.load_u64(48), Err(AccessError::OutOfBounds(outside(48, 8))));
        let mut bytes = vec![1; 4096];
        all.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn alignment_is_that_of_the_address() {
        let window = window(64).slice(4, 60).unwrap();
        assert_eq!(window.load_u64(0), Err(AccessError::Misaligned { offset: 0, alignment: 8 }));
        assert_eq!(window.load_u64(4), Ok(0));
        assert_eq!(window.atomic_u32(2).unwrap_err(), AccessError::Misaligned { offset: 2, alignment: 4 });
    }
}
