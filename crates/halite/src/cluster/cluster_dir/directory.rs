//! The recorded address of etcd. Nodes of this host use it if their configuration has no address of etcd.

use std::io::{Read, Seek, Write};

use halite_providers::private_dir::{Create, DirError, Kind};

use super::names::DIRECTORY;
use super::{ClusterDir, ClusterDirError};
use crate::cluster::etcd::EtcdAddress;

/// Maximum length of the file, in bytes.
const BYTES_MAX: u64 = 8192;

impl ClusterDir {
    /// Records the address for other nodes of this host. The caller holds the join lock.
    pub(crate) fn write_etcd(&self, address: &EtcdAddress) -> Result<(), ClusterDirError> {
        let io = |source| DirError::Io { path: self.path().join(DIRECTORY), source };
        let text = format!("{address}\n");
        let mut file = self.dir.file(DIRECTORY, Create::Yes)?;
        let written = file.rewind().and_then(|()| file.write_all(text.as_bytes()));
        Ok(written.and_then(|()| file.set_len(text.len() as u64)).map_err(io)?)
    }

    /// Removes the recorded address, because the names have moved back to node 0.
    pub(crate) fn forget_etcd(&self) -> Result<(), ClusterDirError> {
        Ok(self.dir.remove(DIRECTORY, Kind::File)?)
    }

    /// Returns the address of etcd that another node has recorded; `None` if node 0 has the directory of names.
    pub fn etcd(&self) -> Result<Option<EtcdAddress>, ClusterDirError> {
        if !self.dir.has(DIRECTORY, Kind::File)? {
            return Ok(None);
        }
        let mut text = String::new();
        let io = |source| DirError::Io { path: self.path().join(DIRECTORY), source };
        self.dir.file(DIRECTORY, Create::No)?.take(BYTES_MAX).read_to_string(&mut text).map_err(io)?;
        // A node that died while it wrote may have left half a line.
        Ok(text.strip_suffix('\n').and_then(|line| line.parse().ok()))
    }
}
