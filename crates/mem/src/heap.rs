//! Use of this process's heap.

/// Returns the number of bytes that the C library has allocated for this process and not freed; `None` with a C library
/// that does not count them.
pub fn used_bytes() -> Option<u64> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: mallinfo2 has no preconditions; it takes the allocator's locks itself.
        let info = unsafe { libc::mallinfo2() };
        Some(info.uordblks as u64 + info.hblkhd as u64)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}
