//! Waiting for the directory of names where it is away: etcd that is restarted, or node 0.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use halite::RegionError;
use halite_apps::is_without_directory;
use halite_apps::kv::KvError;
use halite_apps::log::LogError;

use super::worker::Answer;
use crate::output;

/// For how long somebody waits who cannot go on without it.
const PATIENCE: Duration = Duration::from_secs(60);
/// For how long it is waited for where all that is left is to remove regions.
const PATIENCE_AT_END: Duration = Duration::from_secs(15);
/// The same where nobody waits for us any more; a worker has 10 s to end then.
const PATIENCE_AT_ONCE: Duration = Duration::from_secs(4);
/// How long until it is asked again, which takes seconds where it hangs.
const PAUSE: Duration = Duration::from_millis(20);

/// What may have failed for want of it.
pub(super) trait ForDirectory {
    /// Why, if it was for that.
    fn for_directory(&self) -> Option<String>;
}

impl ForDirectory for RegionError {
    fn for_directory(&self) -> Option<String> {
        is_without_directory(self.cause()).then(|| self.to_string())
    }
}

impl ForDirectory for LogError {
    fn for_directory(&self) -> Option<String> {
        if let LogError::NoDirectory(why) = self { Some(why.to_string()) } else { None }
    }
}

impl ForDirectory for KvError {
    fn for_directory(&self) -> Option<String> {
        match self {
            KvError::NoDirectory => Some(self.to_string()),
            KvError::Region(error) => error.for_directory(),
            _ => None,
        }
    }
}

/// One who needs it now and then.
#[derive(Debug)]
pub(super) struct Away<'a> {
    since: Option<Instant>,
    /// How often it was waited for.
    pub(super) waits: u64,
    is_over: &'a AtomicBool,
}

impl<'a> Away<'a> {
    /// One who waits for nothing any more once it `is_over`.
    pub(super) fn new(is_over: &'a AtomicBool) -> Away<'a> {
        Away { since: None, waits: 0, is_over }
    }

    /// Something failed: waits a little if that is for want of the directory; else, or if it was away for too long, this is why.
    pub(super) fn wait<E: ForDirectory>(&mut self, error: E) -> Result<(), E> {
        let patience = if self.is_over.load(Ordering::Relaxed) { Duration::ZERO } else { PATIENCE };
        self.wait_for(patience, error)
    }

    fn wait_for<E: ForDirectory>(&mut self, patience: Duration, error: E) -> Result<(), E> {
        let Some(why) = error.for_directory() else { return Err(error) };
        if self.since.is_none() {
            // The parent process tells it, once for all of us.  One that is gone need not know.
            let _ = output::print_json(&Answer::Waits(format!("waiting for the directory of names: {why}")));
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() > patience {
            return Err(error);
        }
        self.waits += 1;
        std::thread::sleep(PAUSE);
        Ok(())
    }

    /// Something was done, so that it is there.
    pub(super) fn is_back(&mut self) {
        self.since = None;
    }

    /// Does something as soon as it is there.
    pub(super) fn until_done<T, E: ForDirectory>(
        &mut self,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            match attempt() {
                Ok(done) => {
                    self.is_back();
                    return Ok(done);
                }
                Err(error) => self.wait(error)?,
            }
        }
    }
}

/// Removes something as soon as it is there, or soon after, as long as somebody waits for that.
pub(super) fn remove<T, E: ForDirectory>(
    is_over: &AtomicBool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut away = Away::new(is_over);
    loop {
        let patience = if is_over.load(Ordering::Relaxed) { PATIENCE_AT_ONCE } else { PATIENCE_AT_END };
        match attempt() {
            Ok(done) => return Ok(done),
            Err(error) => away.wait_for(patience, error)?,
        }
    }
}
