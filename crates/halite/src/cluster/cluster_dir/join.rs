//! The locks of a joining node.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use halite_providers::private_dir::{Create, DirHold, NameLock};
use halite_tier::ids::{Incarnation, NodeId};

use super::names::{JOIN_LOCK, lock_name};
use super::{ClusterDir, is_full, numbers, read_owner, replace_text};
use crate::cluster::join_queue::JoinQueue;
use crate::error::{ClusterDirError, JoinError};

/// Time in ms for the kernel to release the other locks of a node that was killed.
const ENDING_MS_MAX: u32 = 20;

/// The lock that a node holds while it joins.
#[derive(Debug)]
pub(crate) struct JoinLock {
    _lock: NameLock,
}

impl JoinLock {
    /// Waits until no other node is joining, at most `timeout` for each joining node, and takes the lock.
    pub(crate) fn take(
        dir: &ClusterDir,
        incarnation: Incarnation,
        timeout: Duration,
    ) -> Result<JoinLock, JoinError> {
        let mut queue = JoinQueue::new(Instant::now(), timeout);
        loop {
            if let Some(mut lock) = NameLock::take(&dir.dir, JOIN_LOCK, Create::Yes)? {
                show_owner(&mut lock, incarnation).map_err(JoinError::io(dir.path().join(JOIN_LOCK)))?;
                return Ok(JoinLock { _lock: lock });
            }
            let holder = dir.dir.file(JOIN_LOCK, Create::No).map_or((0, 0), |mut file| read_owner(&mut file));
            let Some(pause) = queue.next_check(Instant::now(), holder) else {
                let waited_ms = timeout.as_millis() as u64;
                return Err(JoinError::JoinTimeout { dir: dir.path().to_owned(), pid: holder.0, waited_ms });
            };
            // flock has no deadline.
            std::thread::sleep(pause);
        }
    }
}

/// The lock that a node holds while it is alive. Dropping it removes all files of the node.
#[derive(Debug)]
pub(crate) struct NodeLock {
    dir: ClusterDir,
    node: NodeId,
    lock: NameLock,
    /// `None` if the file system of the directory has no such locks.
    hold: Option<DirHold>,
}

impl NodeLock {
    /// Takes the lock of `node`, or of a new ephemeral number if `node` is `None`. The caller holds the join lock.
    pub(crate) fn take(
        dir: &ClusterDir,
        node: Option<NodeId>,
        incarnation: Incarnation,
    ) -> Result<NodeLock, JoinError> {
        let node = match node {
            Some(node) => node,
            None => numbers::take_next(&dir.dir, incarnation)?,
        };
        let name = lock_name(node);
        let Some(mut lock) = NameLock::take_patiently(&dir.dir, &name)? else {
            let pid = dir.dir.file(&name, Create::No).map_or(0, |mut file| read_owner(&mut file).0);
            return Err(JoinError::AlreadyRunning { node, pid, dir: dir.path().to_owned() });
        };
        if dir.is_alive_after_wait(node)? {
            lock.remove();
            let pid = dir.process_of(node).ok().flatten().map_or(0, |process| process.pid.unsigned_abs());
            return Err(JoinError::AlreadyRunning { node, pid, dir: dir.path().to_owned() });
        }
        let hold = dir.dir.hold(node.0).ok();
        dir.remove_files_of(node)?;
        show_owner(&mut lock, incarnation).map_err(JoinError::io(dir.path().join(name)))?;
        Ok(NodeLock { dir: dir.clone(), node, lock, hold })
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        // The next node removes what cannot be removed now.
        let _ = self.dir.remove_files_of(self.node);
        // First, so that the node that takes the lock next finds the number free.
        self.hold = None;
        self.lock.remove();
    }
}

impl ClusterDir {
    /// Returns true if the node is alive, as shown by other locks than its lock file. Waits briefly for the end of a
    /// killed node, whose locks the kernel releases one after the other.
    fn is_alive_after_wait(&self, node: NodeId) -> Result<bool, ClusterDirError> {
        for _ in 0..ENDING_MS_MAX {
            if !self.is_alive_without_lock(node)? {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }
}

/// Writes which process holds the lock, for display. A full disk does not prevent it.
fn show_owner(lock: &mut NameLock, incarnation: Incarnation) -> io::Result<()> {
    match write_owner(lock.file(), incarnation) {
        Err(error) if is_full(&error) => Ok(()),
        written => written,
    }
}

fn write_owner(file: &mut File, incarnation: Incarnation) -> io::Result<()> {
    replace_text(file, &format!("{} {:x}\n", std::process::id(), incarnation.0))
}
