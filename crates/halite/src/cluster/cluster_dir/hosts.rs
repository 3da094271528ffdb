//! The recorded settings for connections to other hosts. Nodes of this host use the recorded settings if they have none
//! of their own, so applications and commands need only the cluster directory to join.
//!
//! A configured node records `ADDRESS,ADDRESS SECRET-FILE`; the name of the secret file extends to the end of the line.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;

use super::names::HOSTS;
use super::{ClusterDir, ClusterDirError};

/// The settings for connections to other hosts that a node has recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RecordedHosts {
    /// Addresses of this host at which other hosts reach it, at least one.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) secret_file: PathBuf,
}

impl ClusterDir {
    /// Records the settings for other nodes of this host. The caller holds the join lock.
    pub(crate) fn write_hosts(&self, hosts: &RecordedHosts) -> Result<(), ClusterDirError> {
        let addresses: Vec<String> = hosts.addresses.iter().map(IpAddr::to_string).collect();
        self.write_line(HOSTS, &format!("{} {}\n", addresses.join(","), hosts.secret_file.display()))
    }

    /// Returns the settings that another node has recorded; `None` if there are none.
    pub(crate) fn hosts(&self) -> Result<Option<RecordedHosts>, ClusterDirError> {
        let parse = |line: String| {
            let (addresses, file) = line.split_once(' ')?;
            let addresses = addresses.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
            Some(RecordedHosts { addresses, secret_file: PathBuf::from(file) })
        };
        Ok(self.read_line(HOSTS)?.and_then(parse))
    }
}

/// Returns true if this host has the address.
pub(crate) fn is_here(address: &IpAddr) -> bool {
    let bound = UdpSocket::bind((*address, 0));
    !bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
}
