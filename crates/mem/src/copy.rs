//! Copies between memory that others may be writing at the same time.
//!
//! Plain Rust copies of such memory would be data races; these go through assembly, which the compiler takes
//! for a foreign actor.  Nothing is ordered and nothing is checked here: callers check bounds.

use std::arch::asm;

/// Copies `len` bytes; the ranges may overlap.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes, and both stay so during the call.
#[inline]
pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
    if (target as usize).wrapping_sub(source as usize) >= len {
        // SAFETY: per the caller; no source byte is overwritten before it is read.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rsi") source => _, inout("rdi") target => _,
                options(nostack, preserves_flags))
        }
    } else {
        let last = len - 1;
        let source = source.wrapping_add(last);
        let target = target.wrapping_add(last);
        // SAFETY: as above, from the end downwards; the direction flag is restored.
        unsafe {
            asm!("std", "rep movsb", "cld", inout("rcx") len => _, inout("rsi") source => _,
                inout("rdi") target => _, options(nostack))
        }
    }
}

/// Sets `len` bytes to `byte`.
///
/// # Safety
/// `target` is writable for `len` bytes and stays so during the call.
pub(crate) unsafe fn fill(target: *mut u8, byte: u8, len: usize) {
    // SAFETY: per the caller.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") target => _, in("al") byte,
            options(nostack, preserves_flags))
    }
}
