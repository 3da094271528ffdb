//! Servers that are reached through a Unix socket in a directory that only we can enter.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::child::{ChildError, Tethered};
use super::cores::SERVER_CORE;

/// A server on its core.  Dropping it ends it and removes the directory.
pub struct SocketServer {
    // Fields are dropped in this order: the server must be gone before its directory is.
    _process: Tethered,
    folder: TempDir,
}

impl SocketServer {
    /// Starts `program` with the arguments that make it serve at a path, and waits until it accepts connections.
    pub fn start(
        program: &Path,
        arguments: impl FnOnce(&Path) -> Vec<String>,
    ) -> Result<SocketServer, ChildError> {
        let refused = |source| ChildError::Run { program: program.display().to_string(), source };
        let folder = tempfile::Builder::new().prefix("halite-peer-").tempdir().map_err(refused)?;
        let path = socket_in(&folder);
        let mut process = Tethered::start(program, &arguments(&path), Some(SERVER_CORE), &[])?;
        process.await_ready(|| UnixStream::connect(&path).is_ok())?;
        Ok(SocketServer { _process: process, folder })
    }

    /// Where it serves.
    pub fn path(&self) -> PathBuf {
        socket_in(&self.folder)
    }
}

fn socket_in(folder: &TempDir) -> PathBuf {
    folder.path().join("socket")
}
