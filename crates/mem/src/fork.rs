//! Detects that a process is a fork of the process that created a value.
//!
//! A forked child has copies of its parent's values and descriptors, but not its parent's threads, and not its
//! segments, because children do not inherit segments. So a child must not use values that need threads or segments. A
//! child that executes another program has no values of its parent.

use std::sync::Once;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Number of forks from the first process that created a [`Process`] to this one. A forked child increments it before
/// any of its code runs, so the load needs no ordering.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Identifies the process that created a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process(u32);

impl Process {
    /// Returns the identity of the calling process.
    pub fn current() -> Process {
        static REGISTERED: Once = Once::new();
        // SAFETY: the handler only adds to a number, which is safe in a child of a process with threads.
        REGISTERED.call_once(|| match unsafe { pthread_atfork(None, None, Some(count_fork)) } {
            0 => {}
            error => panic!("no memory for the handler of forks: error {error}"),
        });
        Process(FORKS.load(Relaxed))
    }

    /// Returns true if the calling process created this value; false in a fork of that process. Costs one load of a
    /// word that rarely changes.
    #[inline]
    pub fn is_current(self) -> bool {
        FORKS.load(Relaxed) == self.0
    }
}

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Relaxed);
}

type Handler = extern "C" fn();

unsafe extern "C" {
    /// From the C library, which the standard library links.
    fn pthread_atfork(prepare: Option<Handler>, parent: Option<Handler>, child: Option<Handler>) -> i32;
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
}

/// For tests: runs `child` in a fork of this process, and returns the exit status of the fork; `None` if a signal
/// killed the fork.
///
/// The fork has only the calling thread, so `child` must take no lock that another thread may hold. In particular,
/// `child` must not print.
pub fn run_in_fork(child: impl FnOnce() -> u8) -> std::io::Result<Option<i32>> {
    // SAFETY: the child runs on a copy of this thread and all memory; the caller takes care of locks.
    match unsafe { fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(u8::MAX);
            // SAFETY: ends the process at once, without the exit handlers, which are the parent's.
            unsafe { _exit(status.into()) }
        }
        pid => {
            let pid = rustix::process::Pid::from_raw(pid);
            let waited = rustix::process::waitpid(pid, rustix::process::WaitOptions::empty())?;
            Ok(waited.and_then(|(_, status)| status.exit_status()))
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_another_process() {
        let process = Process::current();
        let ended = run_in_fork(|| {
            let own = Process::current();
            u8::from(process.is_current()) + 2 * u8::from(own.is_current())
        });
        assert_eq!(ended.unwrap(), Some(2), "only a value that the fork created is current in the fork");
        assert!(process.is_current());
    }
}
