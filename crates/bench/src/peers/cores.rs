//! The two cores: servers run on one, what measures on the other.

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

use super::probe::ProbeError;

/// The core that servers run on.
pub const SERVER_CORE: usize = 0;
/// The core of what measures.
pub const CLIENT_CORE: usize = 1;

/// Keeps the calling thread, and those that it will start, on `core`.
pub fn pin(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    let refused = |error: rustix::io::Errno| io::Error::other(format!("cannot move to core {core}: {error}"));
    sched_setaffinity(None, &cores).map_err(refused)
}

/// Runs `work` on a thread of its own that stays on `core`.
pub fn on_core<T: Send>(core: usize, work: impl FnOnce() -> T + Send) -> Result<T, ProbeError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || pin(core).map(|()| work()));
        thread
            .join()
            .expect("what is measured does not panic")
            .map_err(|source| ProbeError::Core { core, source })
    })
}
