//! The recorded settings for connections to other hosts. Nodes of this host use the recorded settings if they have none
//! of their own, so applications and commands need only the cluster directory to join.
//!
//! A configured node records `ADDRESS,ADDRESS SECRET-FILE`; the name of the secret file extends to the end of the line.

use std::io::{ErrorKind, Read, Seek, Write};
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;

use halite_providers::private_dir::{Create, DirError, Kind};

use super::names::HOSTS;
use super::{ClusterDir, ClusterDirError};

/// Maximum length of the file, in bytes.
const BYTES_MAX: u64 = 8192;

/// The settings for connections to other hosts that a node has recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KnownHosts {
    /// Addresses of this host at which other hosts reach it, at least one.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) secret_file: PathBuf,
}

impl ClusterDir {
    /// Records the settings for other nodes of this host. The caller holds the join lock.
    pub(crate) fn write_hosts(&self, hosts: &KnownHosts) -> Result<(), ClusterDirError> {
        let io = |source| DirError::Io { path: self.path().join(HOSTS), source };
        let addresses: Vec<String> = hosts.addresses.iter().map(IpAddr::to_string).collect();
        let text = format!("{} {}\n", addresses.join(","), hosts.secret_file.display());
        let mut file = self.dir.file(HOSTS, Create::Yes)?;
        let written = file.rewind().and_then(|()| file.write_all(text.as_bytes()));
        Ok(written.and_then(|()| file.set_len(text.len() as u64)).map_err(io)?)
    }

    /// Returns the settings that another node has recorded; `None` if there are none.
    pub(crate) fn hosts(&self) -> Result<Option<KnownHosts>, ClusterDirError> {
        if !self.dir.has(HOSTS, Kind::File)? {
            return Ok(None);
        }
        let mut text = String::new();
        let io = |source| DirError::Io { path: self.path().join(HOSTS), source };
        self.dir.file(HOSTS, Create::No)?.take(BYTES_MAX).read_to_string(&mut text).map_err(io)?;
        let known = text.strip_suffix('\n').and_then(|line| line.split_once(' '));
        let known = known.and_then(|(addresses, file)| {
            let addresses = addresses.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
            Some(KnownHosts { addresses, secret_file: PathBuf::from(file) })
        });
        // A node that died while it wrote may have left half a line.
        Ok(known)
    }
}

/// Returns true if this host has the address.
pub(crate) fn is_here(address: &IpAddr) -> bool {
    let bound = UdpSocket::bind((*address, 0));
    !bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
}
