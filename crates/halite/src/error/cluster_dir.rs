//! Errors of the cluster directory.

use std::io;
use std::path::{Path, PathBuf};

use halite_providers::private_dir::DirError;
use halite_tier::ids::NodeId;

/// File that marks a directory as a cluster's.
pub(crate) const MARKER: &str = "halite-cluster";

/// A cluster directory, or something in it, cannot be used. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterDirError {
    /// There is no cluster: the directory does not exist, or is empty.
    #[error("there is no cluster in {}", dir.display())]
    NoCluster {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory holds files of other programs.
    #[error(
        "{} is not a cluster's directory: it holds other files and no `{}`; choose a directory that is empty or does not exist",
        dir.display(), MARKER
    )]
    NotOurs {
        /// The directory.
        dir: PathBuf,
    },
    /// Another process is starting a cluster there.
    #[error("another process is starting a cluster in {}", dir.display())]
    Starting {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory is not private, or something in it is damaged or unreadable.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The process of a node cannot be determined.
    #[error("cannot tell which process is node {node}: {}: {source}", socket.display())]
    Unreachable {
        /// The node.
        node: NodeId,
        /// The socket at which it should listen.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The counter of used numbers is damaged.
    #[error("{} does not hold a number; stop the cluster (`halite down`) to start anew", path.display())]
    BadCounter {
        /// The counter's file.
        path: PathBuf,
    },
    /// All ephemeral node numbers have been used.
    #[error("all ephemeral node numbers in {} are used; stop the cluster (`halite down`) to start anew", dir.display())]
    NumbersExhausted {
        /// The cluster directory.
        dir: PathBuf,
    },
}

impl ClusterDirError {
    pub(crate) fn of_missing(error: DirError, path: &Path) -> ClusterDirError {
        match is_missing(&error) {
            true => ClusterDirError::NoCluster { dir: path.to_owned() },
            false => error.into(),
        }
    }
}

/// Returns true if the object does not exist.
pub(crate) fn is_missing(error: &DirError) -> bool {
    matches!(error, DirError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
