//! The cluster directory: who is there, and what the dead have left behind.
//!
//! ```text
//!  DIR (0700)
//!    join.lock        held while a node joins, so that no two miss each other
//!    node-3.lock      held while node 3 lives; "PID INCARNATION"
//!    node-3.*         sockets of node 3's fabrics, and whatever else is its own
//! ```
//!
//! Locks are flocks: the kernel lets go of them when their holder dies, however it dies.  This file knows no
//! fabric and no protocol.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use halite_tier::ids::{Incarnation, NodeId};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::config::EPHEMERAL_NODE_MIN;
use crate::error::JoinError;
use crate::join_queue::JoinQueue;

/// A node that is or was in the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Presence {
    /// Which node.
    pub node: NodeId,
    /// Its process, 0 if its lock file does not say.
    pub pid: u32,
    /// Its life, 0 if its lock file does not say.
    pub incarnation: u64,
    /// Whether that process lives.
    pub alive: bool,
}

/// The nodes that are in `dir`, and those that died there and were not replaced or cleaned up, in order.
/// A directory that does not exist has none.
pub fn nodes(dir: &Path) -> io::Result<Vec<Presence>> {
    let mut found = Vec::new();
    for node in node_ids(dir)? {
        // A lock file that vanishes meanwhile is one of a node that has just left.
        if let Ok(mut file) = File::open(lock_path(dir, node)) {
            let (pid, incarnation) = read_owner(&mut file);
            found.push(Presence { node, pid, incarnation, alive: is_held(&file)? });
        }
    }
    Ok(found)
}

/// Removes what dead nodes left in `dir`.  A directory that does not exist is clean.
pub fn clean(dir: &Path) -> io::Result<()> {
    clean_some(dir, |_| true)
}

/// As [`clean`], but keeps the lock files of nodes that have a number of their own: they tell that such a node
/// was there, until it is restarted.
pub(crate) fn clean_residue(dir: &Path) -> io::Result<()> {
    clean_some(dir, |node| node.0 >= EPHEMERAL_NODE_MIN)
}

fn clean_some(dir: &Path, forget: impl Fn(NodeId) -> bool) -> io::Result<()> {
    for node in node_ids(dir)? {
        let Ok(Some(lock)) = Lock::take(&lock_path(dir, node), Create::No) else { continue };
        remove_files_of(dir, node)?;
        if forget(node) {
            lock.remove();
        }
    }
    Ok(())
}

/// Makes the directory, or makes sure that nobody else can enter it.
pub(crate) fn prepare(dir: &Path) -> Result<(), JoinError> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(dir).map_err(JoinError::io(dir))?;
    // Of the directory itself: a link to it could be turned elsewhere by its owner.
    let metadata = std::fs::symlink_metadata(dir).map_err(JoinError::io(dir))?;
    let (mode, uid) = (metadata.mode() & 0o7777, metadata.uid());
    let uid_wanted = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() {
        return Err(JoinError::io(dir)(io::ErrorKind::NotADirectory.into()));
    }
    if mode & 0o077 != 0 || uid != uid_wanted {
        return Err(JoinError::NotPrivate { dir: dir.to_owned(), mode, uid, uid_wanted });
    }
    Ok(())
}

/// Held while its node joins.
#[derive(Debug)]
pub(crate) struct JoinLock {
    _lock: Lock,
}

impl JoinLock {
    /// Waits until nobody else joins, for `patience` at most with each who does.
    pub(crate) fn take(
        dir: &Path,
        incarnation: Incarnation,
        patience: Duration,
    ) -> Result<JoinLock, JoinError> {
        let path = dir.join("join.lock");
        let mut queue = JoinQueue::new(Instant::now(), patience);
        loop {
            if let Some(mut lock) = Lock::take(&path, Create::Yes).map_err(JoinError::io(&path))? {
                lock.write_owner(incarnation).map_err(JoinError::io(&path))?;
                return Ok(JoinLock { _lock: lock });
            }
            let holder = File::open(&path).map_or((0, 0), |mut file| read_owner(&mut file));
            let Some(pause) = queue.next_look(Instant::now(), holder) else {
                let waited_ms = patience.as_millis() as u64;
                return Err(JoinError::JoinTimeout { dir: dir.to_owned(), pid: holder.0, waited_ms });
            };
            // flock offers no deadline.
            std::thread::sleep(pause);
        }
    }
}

/// Held while its node lives.  Dropping it removes all of the node's files.
#[derive(Debug)]
pub(crate) struct NodeLock {
    dir: PathBuf,
    node: NodeId,
    lock: Lock,
}

impl NodeLock {
    /// Becomes `node`, or the first free ephemeral one.  The caller holds the join lock.
    pub(crate) fn take(
        dir: &Path,
        node: Option<NodeId>,
        incarnation: Incarnation,
    ) -> Result<NodeLock, JoinError> {
        match node {
            Some(node) => NodeLock::take_one(dir, node, incarnation),
            None => NodeLock::take_free(dir, incarnation),
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    fn take_free(dir: &Path, incarnation: Incarnation) -> Result<NodeLock, JoinError> {
        let used = nodes(dir).map_err(JoinError::io(dir))?;
        let is_free = |id: &u32| !used.iter().any(|presence| presence.node.0 == *id);
        let free = (EPHEMERAL_NODE_MIN..).find(is_free).expect("there are more numbers than files");
        NodeLock::take_one(dir, NodeId(free), incarnation)
    }

    fn take_one(dir: &Path, node: NodeId, incarnation: Incarnation) -> Result<NodeLock, JoinError> {
        let path = lock_path(dir, node);
        let Some(mut lock) = Lock::take_patiently(&path).map_err(JoinError::io(&path))? else {
            let pid = File::open(&path).map_or(0, |mut file| read_owner(&mut file).0);
            return Err(JoinError::AlreadyRunning { node, pid, dir: dir.to_owned() });
        };
        remove_files_of(dir, node).map_err(JoinError::io(dir))?;
        lock.write_owner(incarnation).map_err(JoinError::io(&path))?;
        Ok(NodeLock { dir: dir.to_owned(), node, lock })
    }
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        // Whoever comes next removes what cannot be removed now.
        let _ = remove_files_of(&self.dir, self.node);
        self.lock.remove();
    }
}

/// The name under which a node's shm fabric listens in the directory.
pub(crate) fn shm_name(node: NodeId) -> String {
    format!("node-{node}.shm")
}

fn lock_path(dir: &Path, node: NodeId) -> PathBuf {
    dir.join(format!("node-{node}.lock"))
}

/// Numbers of the nodes that have a lock file, in order.
fn node_ids(dir: &Path) -> io::Result<Vec<NodeId>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix("node-")?.strip_suffix(".lock"));
        ids.extend(id.and_then(|id| id.parse().ok()).map(NodeId));
    }
    ids.sort_unstable();
    Ok(ids)
}

/// Removes all files of a node but its lock.  The caller holds that lock.
fn remove_files_of(dir: &Path, node: NodeId) -> io::Result<()> {
    let (prefix, lock) = (format!("node-{node}."), lock_path(dir, node));
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(&prefix) && path != lock {
            ignore_absent(std::fs::remove_file(&path))?;
        }
    }
    Ok(())
}

fn ignore_absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// "PID INCARNATION", or zeros where it is not (yet) there.
fn read_owner(file: &mut File) -> (u32, u64) {
    let mut text = String::new();
    // No more than was ever written there, whoever replaced the file.
    let _ = file.take(64).read_to_string(&mut text);
    let mut words = text.split_whitespace();
    let pid = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let incarnation = words.next().and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or(0);
    (pid, incarnation)
}

/// Whether a living process holds the lock.  Holds it itself for a moment: see `Lock::take_patiently`.
fn is_held(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(errno.into()),
        Ok(()) => {
            rustix::fs::flock(file, FlockOperation::Unlock)?;
            Ok(false)
        }
    }
}

/// Whether a lock file that does not exist is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Create {
    Yes,
    No,
}

/// Those who only look hold a lock for microseconds; one that stays held for this many milliseconds is in use.
const LOOKERS_MS_MAX: u32 = 20;

/// A file whose flock is held until dropped, also by dying.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// `None` if it is held.
    fn take(path: &Path, create: Create) -> io::Result<Option<Lock>> {
        loop {
            let mut options = File::options();
            options.read(true).write(true).create(create == Create::Yes).mode(0o600);
            let file = options.open(path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => return Ok(None),
                locked => locked?,
            }
            // The former holder may have removed the file between our open and our lock.
            let locked = file.metadata()?.ino();
            if std::fs::metadata(path).is_ok_and(|current| current.ino() == locked) {
                return Ok(Some(Lock { path: path.to_owned(), file }));
            }
        }
    }

    /// As `take`, but outwaits those who only look whether it is held.
    fn take_patiently(path: &Path) -> io::Result<Option<Lock>> {
        for _ in 0..LOOKERS_MS_MAX {
            if let Some(lock) = Lock::take(path, Create::Yes)? {
                return Ok(Some(lock));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(None)
    }

    fn write_owner(&mut self, incarnation: Incarnation) -> io::Result<()> {
        let text = format!("{} {:x}\n", std::process::id(), incarnation.0);
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())?;
        self.file.set_len(text.len() as u64)
    }

    fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TempDir(PathBuf);

    impl TempDir {
        fn new(name: &str) -> TempDir {
            let dir = std::env::temp_dir().join(format!("halite-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&dir);
            prepare(&dir).unwrap();
            TempDir(dir)
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn ids(dir: &Path) -> Vec<(u32, bool)> {
        nodes(dir).unwrap().iter().map(|presence| (presence.node.0, presence.alive)).collect()
    }

    #[test]
    fn a_node_is_present_while_its_lock_is_held() {
        let dir = TempDir::new("present");
        let lock = NodeLock::take(&dir.0, Some(NodeId(3)), Incarnation(0xabc)).unwrap();
        let pid = std::process::id();
        let expected = Presence { node: NodeId(3), pid, incarnation: 0xabc, alive: true };
        assert_eq!(nodes(&dir.0).unwrap(), [expected]);
        drop(lock);
        assert_eq!(nodes(&dir.0).unwrap(), []);
    }

    #[test]
    fn nodes_without_a_number_get_the_first_free_one() {
        let dir = TempDir::new("ephemeral");
        let take = || NodeLock::take(&dir.0, None, Incarnation(1)).unwrap();
        let (first, second) = (take(), take());
        assert_eq!((first.node().0, second.node().0), (1000, 1001));
        drop(first);
        assert_eq!(take().node().0, 1000);
    }

    #[test]
    fn what_the_dead_left_is_removed_and_the_living_are_left_alone() {
        let dir = TempDir::new("residue");
        let _living = NodeLock::take(&dir.0, Some(NodeId(1)), Incarnation(1)).unwrap();
        for residue in
            ["node-2.lock", "node-2.shm.sock", "node-2.shm.lock", "node-1000.lock", "node-1.shm.sock"]
        {
            std::fs::write(dir.0.join(residue), "4194305 77\n").unwrap();
        }
        clean_residue(&dir.0).unwrap();
        assert_eq!(ids(&dir.0), [(1, true), (2, false)], "a dead node that may be restarted is remembered");
        assert!(!dir.0.join("node-2.shm.sock").exists());
        assert!(dir.0.join("node-1.shm.sock").exists());
        clean(&dir.0).unwrap();
        assert_eq!(ids(&dir.0), [(1, true)]);
    }

    #[test]
    fn a_directory_that_is_not_there_has_no_nodes_and_is_clean() {
        let dir = std::env::temp_dir().join("halite-never-made");
        assert_eq!(nodes(&dir).unwrap(), []);
        clean(&dir).unwrap();
    }

    #[test]
    fn who_waits_too_long_for_another_to_join_learns_its_process() {
        let dir = TempDir::new("join");
        let _joining = JoinLock::take(&dir.0, Incarnation(1), Duration::ZERO).unwrap();
        let refused = JoinLock::take(&dir.0, Incarnation(2), Duration::ZERO).unwrap_err();
        assert!(matches!(refused, JoinError::JoinTimeout { pid, .. } if pid == std::process::id()));
    }
}
