//! Detects standard descriptors that were closed when this process started.
//!
//! Rust opens `/dev/null` in place of such descriptors before `main`, so output to them would vanish without an error.
//! A user who redirects output to `/dev/null` expects no error. A user who closes standard output (`>&-`) expects an
//! error. This module distinguishes the two cases.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// A standard file descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Standard {
    /// Standard input, descriptor 0.
    Input,
    /// Standard output, descriptor 1.
    Output,
    /// Standard error, descriptor 2.
    Error,
}

/// One bit per descriptor, set if it was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Returns true if this descriptor was closed when the process started.
pub fn was_closed(standard: Standard) -> bool {
    // Written once, before a second thread exists.
    CLOSED.load(Relaxed) & 1 << standard as u8 != 0
}

// SAFETY: the loader calls the function that this section points to once, before `main` and in the only thread; the C
// convention lets a function ignore its arguments. `record_closed` needs no state that `main` sets up.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD_CLOSED: extern "C" fn() = record_closed;

extern "C" fn record_closed() {
    for fd in [Standard::Input, Standard::Output, Standard::Error] {
        // SAFETY: the call only queries the flags of a descriptor; it fails if the descriptor is closed.
        if unsafe { libc::fcntl(fd as i32, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << fd as u8, Relaxed);
        }
    }
}
