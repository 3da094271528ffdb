//! Why a cluster directory cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use halite_providers::private_dir::DirError;
use halite_tier::ids::NodeId;

/// Says that a directory is a cluster's.
pub(crate) const MARKER: &str = "halite-cluster";

/// A cluster directory, or something in it, cannot be used.  Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterDirError {
    /// Nobody has made a cluster there: the directory does not exist, or is empty.
    #[error("there is no cluster in {}", dir.display())]
    NoCluster {
        /// Where.
        dir: PathBuf,
    },
    /// Somebody keeps other things there.
    #[error(
        "{} is not a cluster's directory: it holds other files and no `{}`; choose one that is empty or does not exist",
        dir.display(), MARKER
    )]
    NotOurs {
        /// The directory.
        dir: PathBuf,
    },
    /// Somebody else is starting a cluster there in this moment.
    #[error("another process is starting a cluster in {}", dir.display())]
    Starting {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory is not private, or something in it is not what it should be, or cannot be read.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The process of a node cannot be found.
    #[error("cannot tell which process is node {node}: {}: {source}", socket.display())]
    Unreachable {
        /// Which node.
        node: NodeId,
        /// Where it should listen.
        socket: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Nobody can tell which numbers are used.
    #[error("{} does not hold a number; stop the cluster (`halite down`) to start anew", path.display())]
    BadCounter {
        /// The file that counts.
        path: PathBuf,
    },
    /// Every number that a node without one of its own can have was given out.
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

/// Whether what was to be opened does not exist.
pub(crate) fn is_missing(error: &DirError) -> bool {
    matches!(error, DirError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
