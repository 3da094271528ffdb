//! Waits while the directory of names, in etcd or on node 0, is unavailable.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use halite::RegionError;
use halite_apps::is_without_directory;
use halite_apps::kv::KvError;
use halite_apps::log::LogError;

use super::worker::Reply;
use crate::output;

/// Maximum wait of an operation that needs the directory.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum wait at the end of a run, when only regions remain to be removed.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum wait once the parent process has ended. A worker must then end within 10 s in all.
const ABANDONED_TIMEOUT: Duration = Duration::from_secs(4);
/// Pause between attempts. If the directory hangs, an attempt itself takes seconds.
const PAUSE: Duration = Duration::from_millis(20);

/// Errors that an unavailable directory may cause.
pub(super) trait DirectoryFault {
    /// Returns the reason if the directory was unavailable; `None` for other errors.
    fn directory_fault(&self) -> Option<String>;
}

impl DirectoryFault for RegionError {
    fn directory_fault(&self) -> Option<String> {
        is_without_directory(self.cause()).then(|| self.to_string())
    }
}

impl DirectoryFault for LogError {
    fn directory_fault(&self) -> Option<String> {
        if let LogError::NoDirectory(why) = self { Some(why.to_string()) } else { None }
    }
}

impl DirectoryFault for KvError {
    fn directory_fault(&self) -> Option<String> {
        match self {
            KvError::NoDirectory => Some(self.to_string()),
            KvError::Region(error) => error.directory_fault(),
            _ => None,
        }
    }
}

/// An outage of the directory, as seen by a loop that retries operations.
#[derive(Debug)]
pub(super) struct Outage<'a> {
    since: Option<Instant>,
    /// Number of waits for the directory so far.
    pub(super) waits: u64,
    is_over: &'a AtomicBool,
}

impl<'a> Outage<'a> {
    /// Creates the state of a retry loop. Once `is_over` is set, because the parent process has ended, [`Outage::wait`]
    /// fails at once.
    pub(super) fn new(is_over: &'a AtomicBool) -> Outage<'a> {
        Outage { since: None, waits: 0, is_over }
    }

    /// Waits before a retry if the unavailable directory caused `error`. Returns `error` if it has another cause, or if
    /// the outage has lasted too long.
    pub(super) fn wait<E: DirectoryFault>(&mut self, error: E) -> Result<(), E> {
        let patience = if self.is_over.load(Ordering::Relaxed) { Duration::ZERO } else { WAIT_TIMEOUT };
        self.wait_for(patience, error)
    }

    fn wait_for<E: DirectoryFault>(&mut self, patience: Duration, error: E) -> Result<(), E> {
        let Some(why) = error.directory_fault() else { return Err(error) };
        if self.since.is_none() {
            // The parent process reports the outage once for all workers. If it has ended, nothing reads this message.
            let _ = output::print_json(&Reply::Waiting(format!("waiting for the directory of names: {why}")));
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() > patience {
            return Err(error);
        }
        self.waits += 1;
        std::thread::sleep(PAUSE);
        Ok(())
    }

    /// Ends the outage, after a successful operation.
    pub(super) fn end(&mut self) {
        self.since = None;
    }

    /// Calls `attempt` until it succeeds, fails for another reason than an outage, or the outage has lasted too long.
    pub(super) fn retry<T, E: DirectoryFault>(
        &mut self,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            match attempt() {
                Ok(done) => {
                    self.end();
                    return Ok(done);
                }
                Err(error) => self.wait(error)?,
            }
        }
    }
}

/// Calls `attempt`, which removes a region, again during an outage. Waits for a shorter time once `is_over` is set.
pub(super) fn retry_removal<T, E: DirectoryFault>(
    is_over: &AtomicBool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut outage = Outage::new(is_over);
    loop {
        let patience = if is_over.load(Ordering::Relaxed) { ABANDONED_TIMEOUT } else { REMOVAL_TIMEOUT };
        match attempt() {
            Ok(done) => return Ok(done),
            Err(error) => outage.wait_for(patience, error)?,
        }
    }
}
