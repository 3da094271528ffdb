//! Copies between memory ranges that other processes may write at the same time.
//!
//! Plain Rust copies of such memory would be data races. On x86_64 the copies of this module use assembly, which the
//! compiler treats as an external actor; on other machines they use volatile accesses. The copies neither check bounds
//! nor order accesses: callers check bounds, and publish bytes through atomics.
//!
//! Guarantees of every copy and fill:
//! - a copy of 1, 2, 4 or 8 bytes is one load and one store if both addresses are multiples of its length;
//! - each byte of the target is stored exactly once. (memcpy may end with a vector that overlaps the previous one and
//!   stores some bytes twice. If a peer stored its answer there between the two stores, the second store would
//!   overwrite the answer.)

#[cfg(any(test, miri, not(target_arch = "x86_64")))]
mod portable;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;

#[cfg(any(miri, not(target_arch = "x86_64")))]
use portable as machine;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86_64 as machine;

/// Copies `len` bytes. The ranges may overlap.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes, and both stay so during the call.
#[inline]
pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
    match len {
        0 => {}
        // SAFETY: per the caller.
        8 => unsafe { machine::copy_8(target, source) },
        // SAFETY: per the caller.
        4 => unsafe { machine::copy_4(target, source) },
        // SAFETY: per the caller.
        2 => unsafe { machine::copy_2(target, source) },
        // SAFETY: per the caller.
        1 => unsafe { machine::copy_1(target, source) },
        // SAFETY: per the caller. An upward copy overwrites a source byte before it reads the byte only if the target
        // begins inside the source.
        _ if target.addr().wrapping_sub(source.addr()) >= len => unsafe {
            machine::copy_upwards(target, source, len)
        },
        // SAFETY: per the caller. The target begins inside the source, so it does not end inside the source.
        _ => unsafe { machine::copy_downwards(target, source, len) },
    }
}

/// Minimum length in bytes for [`stream`]: another core reads shorter copies faster from the writer's cache.
pub(crate) const STREAM_BYTES_MIN: usize = 32 << 10;

/// Copies `len` bytes with stores that bypass the caches, to a target that another core reads next. That core reads
/// them from memory, which is faster than line by line from the cache of the core that wrote them.
///
/// # Safety
/// The conditions of [`copy`] hold. If the ranges overlap, the target's bytes afterwards are unspecified.
pub(crate) unsafe fn stream(target: *mut u8, source: *const u8, len: usize) {
    // SAFETY: per the caller.
    unsafe { machine::stream(target, source, len) }
}

/// Sets `len` bytes to `byte`.
///
/// # Safety
/// `target` is writable for `len` bytes and stays so during the call.
pub(crate) unsafe fn fill(target: *mut u8, byte: u8, len: usize) {
    // SAFETY: per the caller.
    unsafe { machine::fill(target, byte, len) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use proptest::prelude::*;

    use super::*;

    type CopyFn = unsafe fn(*mut u8, *const u8, usize);

    /// Copies inside one buffer and compares the result with the standard library's.
    fn check(copy: CopyFn, buffer_bytes: usize, source: usize, target: usize, len: usize) {
        assert!(source + len <= buffer_bytes && target + len <= buffer_bytes);
        let mut actual: Vec<u8> = (0..buffer_bytes).map(|at| (at.wrapping_mul(31) >> 3) as u8).collect();
        let mut expected = actual.clone();
        expected.copy_within(source..source + len, target);
        let base = actual.as_mut_ptr();
        // SAFETY: both ranges are inside the buffer, see above.
        unsafe { copy(base.wrapping_add(target), base.wrapping_add(source), len) };
        assert!(actual == expected, "{len} bytes from {source} to {target}");
    }

    fn check_all_alignments(copy: CopyFn, lens: impl Iterator<Item = usize> + Clone) {
        for len in lens {
            for shift in 0..33 {
                check(copy, 2 * len + 100, shift, len + 40, len);
                check(copy, 2 * len + 100, len + 40, shift, len);
                // Overlaps by every distance near a vector's size.
                check(copy, 2 * len + 100, 3, 3 + shift, len);
                check(copy, 2 * len + 100, 3 + shift, 3, len);
            }
        }
    }

    /// As [`copy`], with the portable code.
    unsafe fn portable_copy(target: *mut u8, source: *const u8, len: usize) {
        match len {
            // SAFETY: per the caller.
            8 => unsafe { portable::copy_8(target, source) },
            // SAFETY: per the caller.
            4 => unsafe { portable::copy_4(target, source) },
            // SAFETY: per the caller.
            2 => unsafe { portable::copy_2(target, source) },
            _ if target.addr() <= source.addr() => {
                // SAFETY: per the caller; the direction suits the overlap.
                unsafe { portable::copy_upwards(target, source, len) }
            }
            // SAFETY: per the caller; the direction suits the overlap.
            _ => unsafe { portable::copy_downwards(target, source, len) },
        }
    }

    #[test]
    fn every_short_length_copies_at_every_alignment() {
        check_all_alignments(copy, 0..300);
        check_all_alignments(portable_copy, 0..300);
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn copies_without_avx_give_the_same_bytes() {
        for len in (9..300).chain([4097]) {
            for shift in 0..17 {
                check(x86_64::copy_upwards_sse, 9000, shift, 4500, len);
                check(x86_64::copy_upwards_sse, 9000, 3 + shift, 3, len);
            }
        }
    }

    #[test]
    fn copies_past_the_caches_give_the_same_bytes() {
        for stream in [stream, portable::stream] {
            for len in [0, 1, 31, 32, 127, 128, 129, 300, 4097] {
                for shift in 0..33 {
                    check(stream, 9000, shift, 4500 + 2 * shift, len);
                }
            }
        }
    }

    #[test]
    fn fills_write_no_byte_outside_their_range() {
        let mut fills: Vec<unsafe fn(*mut u8, u8, usize)> = vec![fill, portable::fill];
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        fills.push(x86_64::fill_sse);
        for (fill, len, at) in fills
            .into_iter()
            .flat_map(|fill| (0..300).flat_map(move |len| (0..33).map(move |at| (fill, len, at))))
        {
            let mut buffer = vec![7; 400];
            // SAFETY: at + len < 400.
            unsafe { fill(buffer.as_mut_ptr().wrapping_add(at), 9, len) };
            let mut expected = vec![7; 400];
            expected[at..at + len].fill(9);
            assert!(buffer == expected, "{len} bytes at {at}");
        }
    }

    #[test]
    fn aligned_words_never_tear() {
        let by_copy = |target: *mut u8, byte: u8, size| {
            // SAFETY: the callers' words outlive the call, and the source is as long.
            unsafe { copy(target, [byte; 8].as_ptr(), size) }
        };
        // SAFETY: as above.
        let by_fill = |target: *mut u8, byte: u8, size| unsafe { fill(target, byte, size) };
        check_no_tearing(by_copy);
        check_no_tearing(by_fill);
    }

    /// A writer alternates between two patterns; every copy must be one of them.
    fn check_no_tearing(write: impl Fn(*mut u8, u8, usize) + Sync) {
        for size in [2, 4, 8] {
            let mut word = 0u64;
            let word = (&raw mut word) as usize;
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 0..200_000u32 {
                        write(word as *mut u8, 255 * (round & 1) as u8, size);
                    }
                    is_over.store(true, Relaxed);
                });
                while !is_over.load(Relaxed) {
                    let mut seen = [0u8; 8];
                    // SAFETY: as above; the other side writes to it by copy() too.
                    unsafe { copy(seen.as_mut_ptr(), word as *const u8, size) };
                    assert!(seen[..size].iter().all(|byte| *byte == seen[0]), "torn: {seen:?}");
                }
            });
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn copies_agree_with_plain_slices(
            source in 0usize..5000, target in 0usize..5000, len in 0usize..5000, portable: bool
        ) {
            check(if portable { portable_copy } else { copy }, 10_000, source, target, len);
        }
    }
}
