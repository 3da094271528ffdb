//! Watches for threads.

use super::Session;
use crate::error::{NotifyError, RegionError};
use crate::session::Lh;
use crate::session::watch::{self, Notification};

/// A watched region. Its methods block; [`crate::Watch`] has the same ones for tasks.
#[derive(Debug)]
pub struct Watch {
    watch: watch::Watch,
}

impl Watch {
    /// Returns this watch as a watch for tasks.
    pub fn as_async(&self) -> &watch::Watch {
        &self.watch
    }

    /// Blocks until the next notification arrives, and returns it. See [`crate::Watch::recv`].
    pub fn recv(&self) -> Result<Notification, RegionError> {
        self.watch.block_on(self.watch.recv())
    }

    /// Returns the next notification, or `None` if none is queued. See [`crate::Watch::try_recv`].
    pub fn try_recv(&self) -> Result<Option<Notification>, RegionError> {
        self.watch.try_recv()
    }
}

/// Watches and notifying writes for threads.
impl Session {
    /// Watches a region; blocks until its home has registered the watch. See [`crate::Session::watch`].
    pub fn watch(&self, lh: Lh) -> Result<Watch, RegionError> {
        Ok(Watch { watch: self.block_on(self.as_async().watch(lh))? })
    }

    /// Writes `from` at `offset` and notifies the region's watchers. See [`crate::Session::write_notify`].
    pub fn write_notify(&self, lh: Lh, offset: u64, from: &[u8], value: u64) -> Result<(), NotifyError> {
        self.block_on(self.as_async().write_notify(lh, offset, from, value))
    }
}
