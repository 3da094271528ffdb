//! Watching for threads.

use super::Session;
use crate::error::{NotifyError, RegionError};
use crate::session::Lh;
use crate::session::watch::{self, Notification};

/// A watched region, for threads; see [`crate::Watch`].
#[derive(Debug)]
pub struct Watch {
    watch: watch::Watch,
}

impl Watch {
    /// Returns the same watch for tasks.
    pub fn as_async(&self) -> &watch::Watch {
        &self.watch
    }

    /// See [`crate::Watch::recv`].
    pub fn recv(&self) -> Result<Notification, RegionError> {
        self.watch.session().inner.driver.block_on(self.watch.recv())
    }

    /// See [`crate::Watch::try_recv`].
    pub fn try_recv(&self) -> Result<Option<Notification>, RegionError> {
        self.watch.try_recv()
    }
}

/// Watching.
impl Session {
    /// See [`crate::Session::watch`].
    pub fn watch(&self, lh: Lh) -> Result<Watch, RegionError> {
        Ok(Watch { watch: self.block_on(self.as_async().watch(lh))? })
    }

    /// See [`crate::Session::write_notify`].
    pub fn write_notify(&self, lh: Lh, offset: u64, from: &[u8], value: u64) -> Result<(), NotifyError> {
        self.block_on(self.as_async().write_notify(lh, offset, from, value))
    }
}
