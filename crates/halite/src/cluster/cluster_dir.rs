//! The cluster directory: the files of living nodes, and the files that dead nodes have left behind.
//!
//! ```text
//!  DIR (0700; 0711 if nodes accept sessions of all users)
//!    halite-cluster       marks the directory as Halite's: created first, never removed; locked while a process
//!                         starts a cluster
//!    join.lock            locked while a node joins: nodes join one at a time, so each sees the others
//!    next-number          the next ephemeral node number
//!    next-member          with several hosts: the next permanent number that the cluster assigns
//!    hosts                the settings for connections to other hosts, if there are any
//!    directory            the address of etcd, if the names are in etcd
//!    node-3.lock          locked while node 3 is alive; contains "PID INCARNATION"
//!    node-3.shm.sock      socket of node 3's shm fabric; node-3.roce.sock for its roce fabric
//!    node-3.shm.lock      locked while this fabric is alive
//!    attach/node-3.sock   socket at which node 3 accepts sessions; see `attach_dir`
//!    logs/node-3.log      output of node 3 when it ran detached, until the next cluster is started here
//! ```
//!
//! Halite neither opens nor removes other files, and does not touch a directory that holds files but no marker. The
//! locks are `flock`s: the kernel releases them however their holder ends. A node also holds its number in DIR itself
//! ([`DirHold`](halite_providers::private_dir::DirHold)), so its life shows even if a cleaner of old files has removed
//! the marker and the lock files. Only a held lock proves that a node is alive, and only the listener of a node's socket
//! proves which process it is; the contents of lock files are for display.
//!
//! This module knows no protocol. Of the fabrics' files, it knows only the names.

mod attach_dir;
mod directory;
mod hosts;
mod join;
mod names;
mod numbers;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halite_providers::private_dir::{Create, Kind, NameLock, PrivateDir};
use halite_providers::{listeners, listening};
use halite_tier::ids::NodeId;

use crate::cluster::config::EPHEMERAL_NODE_MIN;
use crate::cluster::networks::Provider;
pub use crate::error::cluster_dir::ClusterDirError;
use crate::error::cluster_dir::is_missing;
pub(crate) use attach_dir::AttachSocket;
pub use halite_providers::Listening;
pub(crate) use hosts::{KnownHosts, is_here};
pub(crate) use join::{JoinLock, NodeLock};
pub(crate) use names::{ATTACH_DIR, attach_socket_node, node_name, socket_name};
use names::{
    DIRECTORY, HOSTS, JOIN_LOCK, LOGS, MARKER, NEXT_MEMBER, NEXT_NUMBER, Name, lock_name, log_name,
    socket_lock_name,
};
pub(crate) use numbers::TakenNumbers;

/// Text in the marker file, for a user who opens it.
const MARKER_TEXT: &str = "This directory belongs to a Halite cluster: nodes make and remove files here.\n";

/// A node that is or was in the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Presence {
    /// Number of the node.
    pub node: NodeId,
    /// Process id of the node, from its lock file; 0 if the file has none.
    pub pid: u32,
    /// Random id of the node's incarnation, from its lock file; 0 if the file has none.
    pub incarnation: u64,
    /// True if the node's process is alive.
    pub alive: bool,
}

/// The fabrics of a live node in the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listeners {
    /// Number of the node.
    pub(crate) node: NodeId,
    /// Providers of the node's fabrics, in order of preference.
    pub(crate) providers: Vec<Provider>,
}

/// A cluster directory whose owner, mode and marker were checked.
#[derive(Clone, Debug)]
pub struct ClusterDir {
    dir: Arc<PrivateDir>,
}

/// The lock of a process that starts a cluster. While it is held, other processes cannot mistake the first files of the
/// new cluster for files of an earlier cluster.
#[derive(Debug)]
pub struct Starting(NameLock);

/// Returns the nodes in `dir`, ordered by number: live nodes, and dead nodes that were neither replaced nor cleaned up.
/// Returns no nodes if the directory does not exist or is empty.
pub fn nodes(dir: &Path) -> Result<Vec<Presence>, ClusterDirError> {
    match ClusterDir::open(dir) {
        Err(ClusterDirError::NoCluster { .. }) => Ok(Vec::new()),
        opened => opened?.nodes(),
    }
}

/// Returns the live permanent nodes in `dir` whose lock files are missing, because a cleaner of old files has removed
/// them.
pub fn nodes_without_files(dir: &Path) -> Vec<NodeId> {
    let Ok(dir) = ClusterDir::open(dir) else { return Vec::new() };
    let is_missing = |node: &NodeId| matches!(dir.dir.has(&lock_name(*node), Kind::File), Ok(false));
    let permanent = held(&dir.dir).into_iter().filter(|node| *node < EPHEMERAL_NODE_MIN).map(NodeId);
    permanent.filter(is_missing).collect()
}

/// Returns true if nodes in `dir` connect to other hosts. Then the first node may be on another host.
pub fn has_hosts(dir: &Path) -> bool {
    ClusterDir::open(dir).is_ok_and(|dir| dir.hosts().is_ok_and(|hosts| hosts.is_some()))
}

/// Returns true if nodes in `dir` connect to other hosts, and this host has lost the addresses that they use.
pub fn has_lost_addresses(dir: &Path) -> bool {
    let hosts = ClusterDir::open(dir).ok().and_then(|dir| dir.hosts().ok()?);
    hosts.is_some_and(|hosts| !hosts.addresses.iter().any(is_here))
}

/// Returns the secret file of the nodes in `dir`; `None` if they connect to no other hosts.
pub fn secret_file(dir: &Path) -> Option<PathBuf> {
    Some(ClusterDir::open(dir).ok()?.hosts().ok()??.secret_file)
}

/// Opening, founding and starting a cluster.
impl ClusterDir {
    /// Opens the directory of an existing cluster. Changes nothing.
    pub fn open(path: &Path) -> Result<ClusterDir, ClusterDirError> {
        let dir = match PrivateDir::open(path) {
            Ok(dir) => dir,
            Err(error) => return Err(ClusterDirError::of_missing(error, path)),
        };
        let is_empty = is_empty(&dir)?;
        // If the marker was removed, running nodes mark the directory.
        if dir.has(MARKER, Kind::File)? || !held(&dir).is_empty() {
            return Ok(ClusterDir { dir: Arc::new(dir) });
        }
        let dir = path.to_owned();
        Err(match is_empty {
            true => ClusterDirError::NoCluster { dir },
            false => ClusterDirError::NotOurs { dir },
        })
    }

    /// Opens the directory of a cluster; creates it if necessary, and accepts an empty one.
    pub fn found(path: &Path) -> Result<ClusterDir, ClusterDirError> {
        match ClusterDir::open(path) {
            Err(ClusterDirError::NoCluster { .. }) => {}
            opened => {
                let opened = opened?;
                mark(&opened.dir)?;
                return Ok(opened);
            }
        }
        let dir = PrivateDir::open_or_create(path)?;
        // Another process may found it at the same time; the second one finds the marker.
        if !is_empty(&dir)? && !dir.has(MARKER, Kind::File)? {
            return Err(ClusterDirError::NotOurs { dir: path.to_owned() });
        }
        mark(&dir)?;
        Ok(ClusterDir { dir: Arc::new(dir) })
    }

    /// Prevents other processes from starting a cluster in this directory, until the caller drops the result.
    pub fn start(&self) -> Result<Starting, ClusterDirError> {
        // The marker exists as long as the directory, and only this function locks it.
        let lock = NameLock::take(&self.dir, MARKER, Create::No)?;
        lock.map(Starting).ok_or_else(|| ClusterDirError::Starting { dir: self.path().to_owned() })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Queries about the nodes in the directory.
impl ClusterDir {
    /// Returns the nodes in the directory, ordered by number: live nodes, and dead nodes that were neither replaced nor
    /// cleaned up.
    pub fn nodes(&self) -> Result<Vec<Presence>, ClusterDirError> {
        let mut found = Vec::new();
        let mut nodes = self.names_of_nodes()?;
        for node in held(&self.dir) {
            nodes.entry(NodeId(node)).or_default();
        }
        for (node, names) in nodes {
            let presence = self.presence(node)?;
            // Sockets of a dead node without a lock file are residue.
            if presence.alive || names.contains(&Name::NodeLock(node)) {
                found.push(presence);
            }
        }
        Ok(found)
    }

    /// Returns the fabrics of all nodes except `node`, ordered by node number.
    pub(crate) fn listeners_but(&self, node: NodeId) -> Result<Vec<Listeners>, ClusterDirError> {
        let mut found: BTreeMap<NodeId, Vec<Provider>> = BTreeMap::new();
        let listening = listeners(&self.dir)?;
        for name in self.names_of_nodes()?.into_values().flatten() {
            let Name::Socket(other, provider) = name else { continue };
            // The lock of the socket may have been removed.
            let is_listening = || listening.contains(&socket_name(other, provider));
            if other != node && (is_listening() || self.dir.is_held(other.0).unwrap_or(false)) {
                found.entry(other).or_default().push(provider);
            }
        }
        let sorted = |(node, mut providers): (NodeId, Vec<Provider>)| {
            providers.sort();
            Listeners { node, providers }
        };
        Ok(found.into_iter().map(sorted).collect())
    }

    fn presence(&self, node: NodeId) -> Result<Presence, ClusterDirError> {
        let alive = self.is_alive(node)?;
        let (pid, incarnation) = match self.dir.file(&lock_name(node), Create::No) {
            Ok(mut file) => read_owner(&mut file),
            // The node has just left, or its lock file was removed.
            Err(error) if is_missing(&error) => (0, 0),
            Err(error) => return Err(error.into()),
        };
        Ok(Presence { node, pid, incarnation, alive })
    }

    /// Returns true if a node is alive. Any of its locks suffices as proof, because files may have been removed.
    fn is_alive(&self, node: NodeId) -> Result<bool, ClusterDirError> {
        Ok(NameLock::is_held(&self.dir, &lock_name(node))? || self.is_alive_without_lock(node)?)
    }

    /// Returns true if a node holds the number, or a fabric of the node is alive.
    fn is_alive_without_lock(&self, node: NodeId) -> Result<bool, ClusterDirError> {
        if self.dir.is_held(node.0).unwrap_or(false) {
            return Ok(true);
        }
        for provider in Provider::ALL {
            if NameLock::is_held(&self.dir, &socket_lock_name(node, provider))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the process of `node`, as the kernel reports it; `None` if no process listens on a socket of the node.
    pub fn process_of(&self, node: NodeId) -> Result<Option<Listening>, ClusterDirError> {
        for provider in Provider::ALL {
            let name = socket_name(node, provider);
            self.dir.has(&name, Kind::Socket)?;
            let found = listening(&self.dir, &name).map_err(|source| ClusterDirError::Unreachable {
                node,
                socket: self.path().join(name),
                source,
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Returns the files of each node, by node number.
    fn names_of_nodes(&self) -> Result<BTreeMap<NodeId, Vec<Name>>, ClusterDirError> {
        let mut nodes: BTreeMap<NodeId, Vec<Name>> = BTreeMap::new();
        for name in self.dir.entries()?.iter().filter_map(|name| Name::parse(name)) {
            nodes.entry(name.node()).or_default().push(name);
        }
        Ok(nodes)
    }
}

/// Removal of files that dead nodes have left.
impl ClusterDir {
    /// Removes the files of dead nodes. Also removes the shared files if no node is alive or joining. Keeps the marker
    /// and the logs.
    pub fn clean(&self) -> Result<(), ClusterDirError> {
        // A node that joins meanwhile cleans too, and must not lose its new files.
        let Some(join) = NameLock::take_patiently(&self.dir, JOIN_LOCK)? else { return Ok(()) };
        self.clean_some(|_| true)?;
        if !self.nodes()?.iter().any(|node| node.alive) {
            // The next node founds another cluster and may count from the start.
            self.dir.remove(NEXT_NUMBER, Kind::File)?;
            self.dir.remove(NEXT_MEMBER, Kind::File)?;
            self.dir.remove(HOSTS, Kind::File)?;
            self.dir.remove(DIRECTORY, Kind::File)?;
            self.remove_attach_dir();
            join.remove();
        }
        Ok(())
    }

    /// Removes the files of dead nodes, but keeps the lock files of permanent nodes. Such a file shows that the node
    /// existed, until the node is restarted. The caller holds the join lock.
    pub(crate) fn clean_residue(&self) -> Result<(), ClusterDirError> {
        if !self.nodes()?.iter().any(|node| node.alive) {
            self.dir.remove(HOSTS, Kind::File)?;
            self.dir.remove(DIRECTORY, Kind::File)?;
        }
        self.clean_some(|node| node.0 >= EPHEMERAL_NODE_MIN)
    }

    /// Removes all files of a dead node, including its lock file. Returns false and removes nothing if the node is
    /// alive.
    pub fn forget(&self, node: NodeId) -> Result<bool, ClusterDirError> {
        match NameLock::take(&self.dir, &lock_name(node), Create::No) {
            Ok(Some(lock)) if !self.is_alive_without_lock(node)? => {
                self.remove_files_of(node)?;
                lock.remove();
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(error) if is_missing(&error) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn clean_some(&self, forget: impl Fn(NodeId) -> bool) -> Result<(), ClusterDirError> {
        for (node, names) in self.names_of_nodes()? {
            if self.is_alive(node)? {
                continue;
            }
            // If it is missing, it was removed by hand.
            let is_remembered = names.contains(&Name::NodeLock(node));
            let create = if is_remembered { Create::No } else { Create::Yes };
            match NameLock::take(&self.dir, &lock_name(node), create) {
                Ok(Some(lock)) => {
                    self.remove_files_of(node)?;
                    if forget(node) || !is_remembered {
                        lock.remove();
                    }
                }
                // Another process is checking the lock; the next node cleans up.
                Ok(None) => {}
                // The node has just left.
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Removes all files of a dead node except its lock, which the caller holds.
    fn remove_files_of(&self, node: NodeId) -> Result<(), ClusterDirError> {
        for provider in Provider::ALL {
            self.dir.remove(&socket_name(node, provider), Kind::Socket)?;
            self.dir.remove(&socket_lock_name(node, provider), Kind::File)?;
        }
        self.remove_attach_socket(node)
    }
}

/// A cluster directory that did not exist before this process.
#[derive(Debug)]
pub struct Made {
    path: PathBuf,
    /// The first of the missing parents, or `path` itself.
    first: PathBuf,
}

impl Made {
    /// Returns the directory that will be made at `path`; `None` if something exists there.
    pub fn expect(path: &Path) -> Option<Made> {
        let path = std::path::absolute(path).ok()?;
        let missing = path.ancestors().take_while(|parent| std::fs::symlink_metadata(parent).is_err());
        let first = missing.last()?.to_owned();
        Some(Made { path, first })
    }

    /// Removes the directory and the parents made for it, unless other processes use it or have put files there. Called
    /// after a failed start, so that nothing remains of it.
    pub fn remove(self) {
        // What cannot be removed stays; the next start uses it.
        let _ = self.try_remove();
    }

    fn try_remove(&self) -> Result<(), ClusterDirError> {
        let dir = ClusterDir::open(&self.path)?;
        let starting = dir.start()?;
        dir.clean()?;
        dir.clean_logs()?;
        dir.dir.remove_subdirectory(LOGS);
        if dir.dir.entries()?.iter().any(|name| name != MARKER) {
            return Ok(());
        }
        starting.0.remove();
        if std::fs::remove_dir(&self.path).is_err() {
            // Another process has just put a file there.
            return mark(&dir.dir);
        }
        let made = self.path.ancestors().skip(1).take_while(|parent| parent.starts_with(&self.first));
        made.take_while(|parent| std::fs::remove_dir(parent).is_ok()).for_each(drop);
        Ok(())
    }
}

/// Log files of detached nodes.
impl ClusterDir {
    /// Removes the logs of an earlier cluster.
    pub fn clean_logs(&self) -> Result<(), ClusterDirError> {
        let logs = match self.dir.subdirectory(LOGS, Create::No) {
            Ok(logs) => logs,
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for name in logs.entries()? {
            if let Some(node) = names::parse_log(&name) {
                logs.remove(&log_name(node), Kind::File)?;
            }
        }
        Ok(())
    }

    /// Creates the log file for the standard error of a detached node; replaces an earlier one.
    pub fn create_log(&self, node: NodeId) -> Result<File, ClusterDirError> {
        Ok(self.dir.subdirectory(LOGS, Create::Yes)?.replace(&log_name(node))?)
    }
}

/// Returns the numbers of the nodes that hold the directory; none if its file system has no such locks.
fn held(dir: &PrivateDir) -> Vec<u32> {
    dir.held().unwrap_or_default()
}

/// Returns true if the directory is empty, or holds only folders that an earlier cluster has left there without other
/// files.
fn is_empty(dir: &PrivateDir) -> Result<bool, ClusterDirError> {
    let is_ours = |folder: &OsString, is_file: fn(&OsStr) -> bool| {
        let folder = dir.subdirectory(folder.to_str().unwrap_or_default(), Create::No);
        folder.and_then(|folder| folder.entries()).is_ok_and(|files| files.iter().all(|file| is_file(file)))
    };
    let is_residue = |name: &OsString| match name.to_str() {
        Some(LOGS) => is_ours(name, |file| names::parse_log(file).is_some()),
        Some(ATTACH_DIR) => is_ours(name, |_| false),
        _ => false,
    };
    Ok(dir.entries()?.iter().all(is_residue))
}

/// Returns true if the error says that the disk or a quota is full.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Creates the marker, unless it exists.
fn mark(dir: &PrivateDir) -> Result<(), ClusterDirError> {
    if !dir.has(MARKER, Kind::File)? {
        let mut marker = dir.file(MARKER, Create::Yes)?;
        // The content does not matter.
        let _ = marker.write_all(MARKER_TEXT.as_bytes());
    }
    Ok(())
}

/// Reads "PID INCARNATION"; returns zeros if the file does not contain both numbers (yet).
fn read_owner(file: &mut File) -> (u32, u64) {
    let mut text = Vec::new();
    // At most what a node writes there, even if the file was replaced.
    let _: io::Result<usize> = file.take(64).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    let mut words = text.split_whitespace();
    let pid = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let incarnation = words.next().and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or(0);
    (pid, incarnation)
}

#[cfg(test)]
mod tests;
