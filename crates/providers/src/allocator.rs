//! Settings of the C library's memory allocator.

/// Makes the allocator of this process return each freed block of 1 MiB or more to the operating system at once.
///
/// Otherwise glibc keeps such blocks after the first one is freed: a node that receives long messages from many clients
/// would keep hundreds of MiB after these have ended. The price is that each new block has pages that must be cleared.
pub fn return_long_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call passes two integers. The allocator takes its locks, so other threads may allocate meanwhile.
    unsafe {
        // Fails only without memory for the allocator's own tables; the process then keeps the default.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}
