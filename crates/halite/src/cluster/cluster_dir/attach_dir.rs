//! The sockets at which nodes accept sessions.
//!
//! ```text
//!    DIR/attach              0700, or 0755 once a node accepts sessions of all users; DIR is then 0711
//!    DIR/attach/node-3.sock  0600, or 0666
//! ```
//!
//! With DIR at 0711, other users can reach a file in DIR if they know its name, but its own mode still applies: all
//! other files in DIR have the mode 0600, and the logs lie in a folder of mode 0700.

use std::os::unix::net::UnixListener;

use halite_providers::private_dir::{Create, DirError, Kind, PrivateDir};
use halite_tier::ids::NodeId;

use super::names::{ATTACH_DIR, attach_socket_name};
use super::{ClusterDir, ClusterDirError};
use crate::cluster::config::AttachMode;
use crate::error::cluster_dir::is_missing;

/// A socket that listens for sessions. Dropping it removes the socket's file.
#[derive(Debug)]
pub(crate) struct AttachSocket {
    pub(crate) listener: UnixListener,
    folder: PrivateDir,
    name: String,
}

impl ClusterDir {
    /// Listens for sessions of a node, whose lock the caller holds.
    pub(crate) fn listen_for_sessions(
        &self,
        node: NodeId,
        mode: AttachMode,
    ) -> Result<AttachSocket, ClusterDirError> {
        let folder = self.dir.shared_subdirectory(ATTACH_DIR, Create::Yes)?;
        let name = attach_socket_name(node);
        let path = folder.path().join(&name);
        let failed = |source| ClusterDirError::Dir(DirError::Io { path: path.clone(), source });
        // The socket is left from an earlier node with this number.
        folder.remove(&name, Kind::Socket)?;
        let listener = folder.listen(&name, mode.bits()).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        if mode == AttachMode::Everyone {
            folder.admit(0o755).map_err(failed)?;
            self.dir.admit(0o711).map_err(failed)?;
        }
        Ok(AttachSocket { listener, folder, name })
    }

    /// Removes the socket of a dead node.
    pub(super) fn remove_attach_socket(&self, node: NodeId) -> Result<(), ClusterDirError> {
        match self.dir.shared_subdirectory(ATTACH_DIR, Create::No) {
            Ok(folder) => Ok(folder.remove(&attach_socket_name(node), Kind::Socket)?),
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the folder of the sockets, which are all removed, and closes the directory to other users again.
    pub(super) fn remove_attach_dir(&self) {
        // The folder stays if it holds other files.
        self.dir.remove_subdirectory(ATTACH_DIR);
        let _ = self.dir.admit(0o700);
    }
}

impl Drop for AttachSocket {
    fn drop(&mut self) {
        // If this fails, the next node with this number removes it.
        let _ = self.folder.remove(&self.name, Kind::Socket);
    }
}
