//! Errors of the cluster directory.

use std::io;
use std::path::{Path, PathBuf};

use halite_providers::private_dir::DirError;
use halite_tier::ids::NodeId;

/// Name of the file that marks a directory as a cluster directory.
pub(crate) const MARKER: &str = "halite-cluster";

/// A cluster directory, or something in it, cannot be used. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterDirError {
    /// There is no cluster: the directory does not exist, or is empty.
    #[error("there is no cluster in {}", dir.display())]
    NoCluster {
        /// Path of the directory.
        dir: PathBuf,
    },
    /// The directory holds files of other programs.
    #[error(
        "{} is not a cluster's directory: it holds other files and no `{}`; choose a directory that is empty or does not exist",
        dir.display(), MARKER
    )]
    NotOurs {
        /// Path of the directory.
        dir: PathBuf,
    },
    /// Another process is starting a cluster in the directory.
    #[error("another process is starting a cluster in {}; try again when it has finished", dir.display())]
    Starting {
        /// Path of the directory.
        dir: PathBuf,
    },
    /// The directory is not private, or something in it is damaged or unreadable.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The operating system does not report which process runs the node.
    #[error("cannot determine which process runs node {node}: {}: {source}", socket.display())]
    Unreachable {
        /// The node's number.
        node: NodeId,
        /// The socket at which the node should listen.
        socket: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The counter of used numbers is damaged.
    #[error("{} does not hold a number; stop the cluster (`halite down`) to start anew", path.display())]
    BadCounter {
        /// Path of the counter's file.
        path: PathBuf,
    },
    /// All ephemeral node numbers have been used.
    #[error("all ephemeral node numbers in {} are used; stop the cluster (`halite down`) to start anew", dir.display())]
    NumbersExhausted {
        /// Path of the cluster directory.
        dir: PathBuf,
    },
}

impl ClusterDirError {
    pub(crate) fn from_missing(error: DirError, path: &Path) -> ClusterDirError {
        match is_missing(&error) {
            true => ClusterDirError::NoCluster { dir: path.to_owned() },
            false => error.into(),
        }
    }
}

/// Returns true if the error says that the file or directory does not exist.
pub(crate) fn is_missing(error: &DirError) -> bool {
    matches!(error, DirError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
