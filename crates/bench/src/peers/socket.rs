//! Servers behind a Unix socket in a private directory.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::child::{ChildError, Tethered};
use super::cores::SERVER_CORE;

/// A server, pinned to its core. Dropping it kills the server and removes the directory.
pub struct SocketServer {
    // Fields are dropped in this order: first the server, then its directory.
    _process: Tethered,
    folder: TempDir,
}

impl SocketServer {
    /// Starts `program` with the arguments that `arguments` returns for the path of its socket, and waits until the
    /// program accepts connections.
    pub fn start(
        program: &Path,
        arguments: impl FnOnce(&Path) -> Vec<String>,
    ) -> Result<SocketServer, ChildError> {
        let failed = |source| ChildError::Run { program: program.display().to_string(), source };
        let folder = tempfile::Builder::new().prefix("halite-peer-").tempdir().map_err(failed)?;
        let path = socket_in(&folder);
        let mut process = Tethered::start(program, &arguments(&path), Some(SERVER_CORE), &[])?;
        process.await_ready(|| UnixStream::connect(&path).is_ok())?;
        Ok(SocketServer { _process: process, folder })
    }

    /// Returns the path of the server's socket.
    pub fn path(&self) -> PathBuf {
        socket_in(&self.folder)
    }
}

fn socket_in(folder: &TempDir) -> PathBuf {
    folder.path().join("socket")
}
