//! Copies by volatile accesses, for machines without an assembly version.
//!
//! The compiler may neither merge nor split volatile accesses. On the supported 64-bit machines, an aligned access of
//! up to 8 bytes is one instruction.

use std::ptr::{read_volatile, write_volatile};

macro_rules! copy_word {
    ($name:ident, $word:ty) => {
        /// Copies one word, by one load and one store if both addresses are aligned, and otherwise byte by byte.
        ///
        /// # Safety
        /// The conditions of [`super::copy`] hold.
        #[inline]
        pub(super) unsafe fn $name(target: *mut u8, source: *const u8) {
            let len = size_of::<$word>();
            if (target.addr() | source.addr()) % len != 0 {
                // The words may overlap, so this reads the whole source first.
                let mut bytes = [0u8; size_of::<$word>()];
                // SAFETY: per the caller; `bytes` is ours.
                unsafe { copy_upwards(bytes.as_mut_ptr(), source, len) };
                // SAFETY: per the caller; `bytes` is ours.
                return unsafe { copy_upwards(target, bytes.as_ptr(), len) };
            }
            // SAFETY: per the caller, and aligned.
            let word = unsafe { read_volatile(source.cast::<$word>()) };
            // SAFETY: per the caller, and aligned.
            unsafe { write_volatile(target.cast::<$word>(), word) };
        }
    };
}

copy_word!(copy_2, u16);
copy_word!(copy_4, u32);
copy_word!(copy_8, u64);

/// Copies one byte.
///
/// # Safety
/// The conditions of [`super::copy`] hold.
#[inline]
pub(super) unsafe fn copy_1(target: *mut u8, source: *const u8) {
    // SAFETY: per the caller.
    let byte = unsafe { read_volatile(source) };
    // SAFETY: per the caller.
    unsafe { write_volatile(target, byte) };
}

/// Copies `len` bytes; this version has no stores that bypass the caches.
///
/// # Safety
/// The conditions of [`super::stream`] hold.
pub(super) unsafe fn stream(target: *mut u8, source: *const u8, len: usize) {
    // SAFETY: per the caller.
    unsafe { copy_upwards(target, source, len) }
}

/// Copies `len` bytes, from the first byte to the last.
///
/// # Safety
/// The conditions of [`super::copy`] hold, and the target does not begin inside the source.
pub(super) unsafe fn copy_upwards(target: *mut u8, source: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        let (target, source) = (target.wrapping_add(at), source.wrapping_add(at));
        if len - at >= 8 && are_aligned(target, source) {
            // SAFETY: at + 8 <= len.
            unsafe { copy_8(target, source) };
            at += 8;
        } else {
            // SAFETY: at < len.
            unsafe { copy_1(target, source) };
            at += 1;
        }
    }
}

/// Copies `len` bytes, from the last byte to the first.
///
/// # Safety
/// The conditions of [`super::copy`] hold, and the target does not end inside the source.
pub(super) unsafe fn copy_downwards(target: *mut u8, source: *const u8, len: usize) {
    let mut remaining = len;
    while remaining > 0 {
        let (target, source) = (target.wrapping_add(remaining), source.wrapping_add(remaining));
        if remaining >= 8 && are_aligned(target, source) {
            // SAFETY: the last eight of the remaining bytes.
            unsafe { copy_8(target.wrapping_sub(8), source.wrapping_sub(8)) };
            remaining -= 8;
        } else {
            // SAFETY: the last of the remaining bytes.
            unsafe { copy_1(target.wrapping_sub(1), source.wrapping_sub(1)) };
            remaining -= 1;
        }
    }
}

/// Sets `len` bytes to `byte`.
///
/// # Safety
/// The conditions of [`super::fill`] hold.
pub(super) unsafe fn fill(target: *mut u8, byte: u8, len: usize) {
    let word = u64::from_ne_bytes([byte; 8]);
    let mut at = 0;
    while at < len {
        let target = target.wrapping_add(at);
        if len - at >= 8 && are_aligned(target, target) {
            // SAFETY: at + 8 <= len, and aligned.
            unsafe { write_volatile(target.cast(), word) };
            at += 8;
        } else {
            // SAFETY: at < len.
            unsafe { write_volatile(target, byte) };
            at += 1;
        }
    }
}

fn are_aligned(target: *const u8, source: *const u8) -> bool {
    (target.addr() | source.addr()).is_multiple_of(8)
}
