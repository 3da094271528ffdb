//! The recorded address of etcd. Nodes of this host use it if their configuration has no address of etcd.

use halite_providers::private_dir::Kind;

use super::names::DIRECTORY;
use super::{ClusterDir, ClusterDirError};
use crate::cluster::etcd::EtcdAddress;

impl ClusterDir {
    /// Records the address for other nodes of this host. The caller holds the join lock.
    pub(crate) fn write_etcd(&self, address: &EtcdAddress) -> Result<(), ClusterDirError> {
        self.write_line(DIRECTORY, &format!("{address}\n"))
    }

    /// Removes the recorded address, because the names have moved back to node 0.
    pub(crate) fn forget_etcd(&self) -> Result<(), ClusterDirError> {
        Ok(self.dir.remove(DIRECTORY, Kind::File)?)
    }

    /// Returns the address of etcd that another node has recorded; `None` if node 0 has the directory of names.
    pub fn etcd(&self) -> Result<Option<EtcdAddress>, ClusterDirError> {
        Ok(self.read_line(DIRECTORY)?.and_then(|line| line.parse().ok()))
    }
}
