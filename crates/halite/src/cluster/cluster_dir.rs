//! The cluster directory: who is there, and what the dead have left behind.
//!
//! ```text
//!  DIR (0700)
//!    halite-cluster       says that the directory is ours; made first, and never removed by us; held while a cluster is
//!                         started
//!    join.lock            held while a node joins, so that no two miss each other
//!    next-number          the number of the next node that has none of its own
//!    next-member          the number of the next node that stays and has none of its own, where there are several hosts
//!    hosts                how nodes of other hosts are met, if there are any
//!    directory            where etcd is, if that has the names
//!    node-3.lock          held while node 3 lives; "PID INCARNATION"
//!    node-3.shm.sock      where its shm fabric listens; node-3.roce.sock, where its roce fabric does
//!    node-3.shm.lock      held while it does
//!    logs/node-3.log      what node 3 said when it ran detached, until the next cluster is started here
//! ```
//!
//! Nothing else in it is ours: it is neither opened nor removed, and a directory without the marker is left alone
//! altogether.  Locks are flocks: the kernel lets go of them when their holder dies, however it dies.  What the files
//! say is for people; who lives is told by locks, and who a process is by the other end of its socket.
//!
//! This file knows no protocol, and of fabrics only what their files are called.

mod directory;
mod hosts;
mod join;
mod names;
mod numbers;

use std::collections::BTreeMap;
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
pub use halite_providers::Listening;
pub(crate) use hosts::KnownHosts;
pub(crate) use join::{JoinLock, NodeLock};
use names::{
    DIRECTORY, HOSTS, JOIN_LOCK, LOGS, MARKER, NEXT_MEMBER, NEXT_NUMBER, Name, lock_name, log_name,
    socket_lock_name,
};
pub(crate) use names::{node_name, socket_name};
pub(crate) use numbers::TakenNumbers;

/// What the marker says to people.
const MARKER_TEXT: &str = "This directory belongs to a Halite cluster: nodes make and remove files here.\n";

/// A node that is or was in the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Presence {
    /// Which node.
    pub node: NodeId,
    /// Its process, 0 if its lock file does not say.
    pub pid: u32,
    /// Its incarnation, 0 if its lock file does not say.
    pub incarnation: u64,
    /// Whether that process lives.
    pub alive: bool,
}

/// Where a living node can be connected to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listeners {
    /// Which node.
    pub(crate) node: NodeId,
    /// By which providers, those that are to be preferred first.
    pub(crate) providers: Vec<Provider>,
}

/// A cluster directory whose owner, mode and marker were checked.
#[derive(Clone, Debug)]
pub struct ClusterDir {
    dir: Arc<PrivateDir>,
}

/// Held by the node that starts a cluster, so that no other takes its first files for an earlier cluster's.
#[derive(Debug)]
pub struct Starting(#[allow(dead_code, reason = "it is held")] NameLock);

/// The nodes that are in `dir`, and those that died there and were not replaced or cleaned up, in order.
/// A directory that does not exist, or is empty, has none.
pub fn nodes(dir: &Path) -> Result<Vec<Presence>, ClusterDirError> {
    match ClusterDir::open(dir) {
        Err(ClusterDirError::NoCluster { .. }) => Ok(Vec::new()),
        opened => opened?.nodes(),
    }
}

/// Whether nodes in `dir` meet those of other hosts: then the first node may be on another one.
pub fn has_hosts(dir: &Path) -> bool {
    ClusterDir::open(dir).is_ok_and(|dir| dir.hosts().is_ok_and(|hosts| hosts.is_some()))
}

/// Where nodes in `dir` have their secret from, if they meet those of other hosts.
pub fn secret_file(dir: &Path) -> Option<PathBuf> {
    Some(ClusterDir::open(dir).ok()?.hosts().ok()??.secret_file)
}

/// Finding and founding.
impl ClusterDir {
    /// Opens a directory that was made for a cluster; changes nothing.
    pub fn open(path: &Path) -> Result<ClusterDir, ClusterDirError> {
        let dir = match PrivateDir::open(path) {
            Ok(dir) => dir,
            Err(error) => return Err(ClusterDirError::of_missing(error, path)),
        };
        let is_empty = dir.entries()?.is_empty();
        if dir.has(MARKER, Kind::File)? {
            return Ok(ClusterDir { dir: Arc::new(dir) });
        }
        let dir = path.to_owned();
        Err(match is_empty {
            true => ClusterDirError::NoCluster { dir },
            false => ClusterDirError::NotOurs { dir },
        })
    }

    /// As [`ClusterDir::open`], but makes the directory if need be, and takes an empty one.
    pub fn found(path: &Path) -> Result<ClusterDir, ClusterDirError> {
        match ClusterDir::open(path) {
            Err(ClusterDirError::NoCluster { .. }) => {}
            opened => return opened,
        }
        let dir = PrivateDir::open_or_create(path)?;
        // Others may found it at the same time: the second finds the marker.
        if !dir.entries()?.is_empty() && !dir.has(MARKER, Kind::File)? {
            return Err(ClusterDirError::NotOurs { dir: path.to_owned() });
        }
        let mut marker = dir.file(MARKER, Create::Yes)?;
        // It is there, and that is what counts.
        let _ = marker.write_all(MARKER_TEXT.as_bytes());
        Ok(ClusterDir { dir: Arc::new(dir) })
    }

    /// Keeps others from starting a cluster here until the result is dropped.
    pub fn start(&self) -> Result<Starting, ClusterDirError> {
        // The marker is there as long as the directory, and nobody else locks it.
        let lock = NameLock::take(&self.dir, MARKER, Create::No)?;
        lock.map(Starting).ok_or_else(|| ClusterDirError::Starting { dir: self.path().to_owned() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Looking.
impl ClusterDir {
    /// The nodes that are here, and those that died here and were not replaced or cleaned up, in order.
    pub fn nodes(&self) -> Result<Vec<Presence>, ClusterDirError> {
        let mut found = Vec::new();
        for (node, names) in self.names_of_nodes()? {
            let presence = self.presence(node)?;
            // Sockets of the dead are residue of nodes that are remembered by their lock, or by nothing.
            if presence.alive || names.contains(&Name::NodeLock(node)) {
                found.push(presence);
            }
        }
        Ok(found)
    }

    /// Where all members but `node` can be connected to, in their order.
    pub(crate) fn listeners_but(&self, node: NodeId) -> Result<Vec<Listeners>, ClusterDirError> {
        let mut found: BTreeMap<NodeId, Vec<Provider>> = BTreeMap::new();
        for name in listeners(&self.dir)? {
            if let Some(Name::Socket(other, provider)) = Name::parse(name.as_ref())
                && other != node
            {
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
            // One that has just left, or whose lock somebody removed.
            Err(error) if is_missing(&error) => (0, 0),
            Err(error) => return Err(error.into()),
        };
        Ok(Presence { node, pid, incarnation, alive })
    }

    /// Either lock will do: somebody may have removed the other.
    fn is_alive(&self, node: NodeId) -> Result<bool, ClusterDirError> {
        Ok(NameLock::is_held(&self.dir, &lock_name(node))? || self.is_alive_without_lock(node)?)
    }

    /// Whether a fabric of it lives.
    fn is_alive_without_lock(&self, node: NodeId) -> Result<bool, ClusterDirError> {
        for provider in Provider::ALL {
            if NameLock::is_held(&self.dir, &socket_lock_name(node, provider))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The process that is `node`, as the kernel knows it; `None` if nobody listens at any of the node's sockets.
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

    /// All numbers of which there is a file, each with its files.
    fn names_of_nodes(&self) -> Result<BTreeMap<NodeId, Vec<Name>>, ClusterDirError> {
        let mut nodes: BTreeMap<NodeId, Vec<Name>> = BTreeMap::new();
        for name in self.dir.entries()?.iter().filter_map(|name| Name::parse(name)) {
            nodes.entry(name.node()).or_default().push(name);
        }
        Ok(nodes)
    }
}

/// Cleaning.
impl ClusterDir {
    /// Removes what dead nodes left, and, unless a node lives or joins, what they shared.  The marker and the logs
    /// stay.
    pub fn clean(&self) -> Result<(), ClusterDirError> {
        // Who joins meanwhile cleans, too, and must not lose what it has just made.
        let Some(join) = NameLock::take_patiently(&self.dir, JOIN_LOCK)? else { return Ok(()) };
        self.clean_some(|_| true)?;
        if !self.nodes()?.iter().any(|node| node.alive) {
            // The next to join belongs to another cluster, and may begin to count anew.
            self.dir.remove(NEXT_NUMBER, Kind::File)?;
            self.dir.remove(NEXT_MEMBER, Kind::File)?;
            self.dir.remove(HOSTS, Kind::File)?;
            self.dir.remove(DIRECTORY, Kind::File)?;
            join.remove();
        }
        Ok(())
    }

    /// Removes what dead nodes left, but the lock files of nodes that have a number of their own: they tell that such
    /// a node was there, until it is restarted.  The caller holds the join lock.
    pub(crate) fn clean_residue(&self) -> Result<(), ClusterDirError> {
        if !self.nodes()?.iter().any(|node| node.alive) {
            self.dir.remove(HOSTS, Kind::File)?;
            self.dir.remove(DIRECTORY, Kind::File)?;
        }
        self.clean_some(|node| node.0 >= EPHEMERAL_NODE_MIN)
    }

    /// Removes what a dead node left, its lock file too; returns whether it is dead.
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
            // If it is missing, somebody removed it.
            let is_remembered = names.contains(&Name::NodeLock(node));
            let create = if is_remembered { Create::No } else { Create::Yes };
            match NameLock::take(&self.dir, &lock_name(node), create) {
                Ok(Some(lock)) => {
                    self.remove_files_of(node)?;
                    if forget(node) || !is_remembered {
                        lock.remove();
                    }
                }
                // Somebody looks at it, and the next node cleans.
                Ok(None) => {}
                // It has just left.
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Removes all files of a dead node but its lock, which the caller holds.
    fn remove_files_of(&self, node: NodeId) -> Result<(), ClusterDirError> {
        for provider in Provider::ALL {
            self.dir.remove(&socket_name(node, provider), Kind::Socket)?;
            self.dir.remove(&socket_lock_name(node, provider), Kind::File)?;
        }
        Ok(())
    }
}

/// Logs.
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

    /// Makes the file to which a detached node's standard error goes.
    pub fn create_log(&self, node: NodeId) -> Result<File, ClusterDirError> {
        Ok(self.dir.subdirectory(LOGS, Create::Yes)?.replace(&log_name(node))?)
    }
}

/// "PID INCARNATION", or zeros where it is not (yet) there.
fn read_owner(file: &mut File) -> (u32, u64) {
    let mut text = Vec::new();
    // No more than was ever written there, even if the file was replaced.
    let _: io::Result<usize> = file.take(64).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    let mut words = text.split_whitespace();
    let pid = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let incarnation = words.next().and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or(0);
    (pid, incarnation)
}

#[cfg(test)]
mod tests;
