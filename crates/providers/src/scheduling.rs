//! Scheduler settings of threads.

use std::io;

/// The shortest time slice that Linux grants, in ns.
const SLICE_NS: u64 = 100_000;

/// Requests short time slices for the calling thread, so that after a wake-up the thread runs before threads with
/// longer slices.
///
/// Linux runs a woken thread at once only if the thread has received less than its share of the processor, and its
/// deadline is earlier than that of the running thread. A shorter slice gives an earlier deadline. Otherwise the woken
/// thread waits until the slice of the running thread ends: 1.4 to 3 ms, rounded up to a timer tick. With short slices,
/// only about one wake-up in twenty waits that long. The thread's share of the processor does not change.
///
/// Has no effect on threads with a scheduling policy other than the default policy, and no effect before Linux 6.12,
/// where all slices have the same length. Fails if the system refuses the request.
pub fn ask_for_short_slices() -> io::Result<()> {
    let mut attributes = scheduling()?;
    if attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SLICE_NS;
        // SAFETY: the kernel reads as many bytes as the value's size field gives, and the value outlives the call.
        let failed = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Returns the scheduling attributes of the calling thread.
fn scheduling() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most `size` bytes to the value, which outlives the call.
    let failed = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if failed == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}
