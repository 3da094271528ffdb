//! Pins threads to the two cores of the measurements: one for servers, one for clients.

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

use super::probe::ProbeError;

/// The core on which servers run.
pub const SERVER_CORE: usize = 0;
/// The core on which clients run. They measure.
pub const CLIENT_CORE: usize = 1;

/// Pins the calling thread, and threads that it starts later, to `core`.
pub fn pin(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    let failed = |error: rustix::io::Errno| io::Error::other(format!("cannot move to core {core}: {error}"));
    sched_setaffinity(None, &cores).map_err(failed)
}

/// Runs `work` in a thread that is pinned to `core`.
pub fn on_core<T: Send>(core: usize, work: impl FnOnce() -> T + Send) -> Result<T, ProbeError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || pin(core).map(|()| work()));
        thread
            .join()
            .expect("the measured code does not panic")
            .map_err(|source| ProbeError::Core { core, source })
    })
}
