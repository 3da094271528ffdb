//! Nodes that live although no file in the directory tells of them: somebody removed the files.
//!
//! Their processes still have the removed files open, and the kernel shows what they are called.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use halite_tier::ids::NodeId;

use super::ClusterDir;
use super::names::Name;

/// A node that holds a lock file which somebody removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Unlisted {
    /// Which node.
    pub node: NodeId,
    /// Its process.
    pub pid: u32,
}

impl ClusterDir {
    /// The nodes whose lock files were removed while they live, in order, as far as this user may look at processes.  Who
    /// leaves, or looks for others that have left, may be among them for a moment.
    pub fn unlisted(&self) -> BTreeSet<Unlisted> {
        let mut found = BTreeSet::new();
        // As the kernel calls it.  Where it cannot be told, as without `/proc`, nobody is found.
        let Ok(dir) = self.path().canonicalize() else { return found };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            let open = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
            let nodes = open.filter_map(|link| node_of_removed(&link, &dir));
            found.extend(nodes.map(|node| Unlisted { node, pid }));
        }
        found
    }
}

/// Whose lock it was, if `link`, as the kernel shows an open file, is a removed lock file of `dir`.
fn node_of_removed(link: &Path, dir: &Path) -> Option<NodeId> {
    let name = link.strip_prefix(dir).ok()?.to_str()?.strip_suffix(" (deleted)")?;
    match Name::parse(OsStr::new(name))? {
        Name::NodeLock(node) | Name::ShmLock(node) => Some(node),
        Name::ShmSocket(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_removed_locks_of_the_directory_tell_of_a_node() {
        let node = |link: &str| node_of_removed(Path::new(link), Path::new("/run/a"));
        assert_eq!(node("/run/a/node-3.lock (deleted)"), Some(NodeId(3)));
        assert_eq!(node("/run/a/node-0.shm.lock (deleted)"), Some(NodeId(0)));
        for other in [
            "/run/a/node-3.lock",
            "/run/a/logs/node-3.lock (deleted)",
            "/run/ab/node-3.lock (deleted)",
            "/run/a/node-3.log (deleted)",
            "/run/a/join.lock (deleted)",
            "socket:[4711]",
        ] {
            assert_eq!(node(other), None, "{other}");
        }
    }
}
