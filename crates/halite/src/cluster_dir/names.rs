//! How the files of a cluster directory are called.  A name that is spelt in any other way is somebody else's.

use std::ffi::OsStr;

use halite_tier::ids::NodeId;

/// Says that a directory is a cluster's.
pub(super) const MARKER: &str = "halite-cluster";
/// Held while a node joins.
pub(super) const JOIN_LOCK: &str = "join.lock";
/// The number of the next node that has none of its own.
pub(super) const NEXT_NUMBER: &str = "next-number";
/// The directory of logs.
pub(super) const LOGS: &str = "logs";

const NODE_LOCK_SUFFIX: &str = ".lock";
const SHM_SUFFIX: &str = ".shm";
const SHM_SOCKET_SUFFIX: &str = ".shm.sock";
const SHM_LOCK_SUFFIX: &str = ".shm.lock";
const LOG_SUFFIX: &str = ".log";

/// A file that belongs to one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Name {
    NodeLock(NodeId),
    ShmSocket(NodeId),
    ShmLock(NodeId),
}

impl Name {
    /// `None` for what is not ours, or belongs to no single node.
    pub(super) fn parse(name: &OsStr) -> Option<Name> {
        let node = |suffix| parse_node(name, suffix);
        node(NODE_LOCK_SUFFIX)
            .map(Name::NodeLock)
            .or_else(|| node(SHM_SOCKET_SUFFIX).map(Name::ShmSocket))
            .or_else(|| node(SHM_LOCK_SUFFIX).map(Name::ShmLock))
    }

    pub(super) fn node(self) -> NodeId {
        let (Name::NodeLock(node) | Name::ShmSocket(node) | Name::ShmLock(node)) = self;
        node
    }
}

/// The name under which a node's shm fabric listens in the directory.
pub(crate) fn shm_name(node: NodeId) -> String {
    with_suffix(node, SHM_SUFFIX)
}

pub(super) fn lock_name(node: NodeId) -> String {
    with_suffix(node, NODE_LOCK_SUFFIX)
}

pub(super) fn shm_socket_name(node: NodeId) -> String {
    with_suffix(node, SHM_SOCKET_SUFFIX)
}

pub(super) fn shm_lock_name(node: NodeId) -> String {
    with_suffix(node, SHM_LOCK_SUFFIX)
}

pub(super) fn log_name(node: NodeId) -> String {
    with_suffix(node, LOG_SUFFIX)
}

/// Whose log has that name.
pub(super) fn parse_log(name: &OsStr) -> Option<NodeId> {
    parse_node(name, LOG_SUFFIX)
}

fn with_suffix(node: NodeId, suffix: &str) -> String {
    format!("node-{node}{suffix}")
}

fn parse_node(name: &OsStr, suffix: &str) -> Option<NodeId> {
    let name = name.to_str()?;
    let number = name.strip_prefix("node-")?.strip_suffix(suffix)?.parse().ok().map(NodeId)?;
    // "node-03.lock" and "node-+3.lock" are numbers, too, and not as we write them.
    (with_suffix(number, suffix) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_we_write_ourselves_are_ours() {
        let three = NodeId(3);
        for (name, expected) in [
            ("node-3.lock", Some(Name::NodeLock(three))),
            ("node-3.shm.sock", Some(Name::ShmSocket(three))),
            ("node-3.shm.lock", Some(Name::ShmLock(three))),
            ("node-0.lock", Some(Name::NodeLock(NodeId(0)))),
            ("node-4294967295.lock", Some(Name::NodeLock(NodeId(u32::MAX)))),
            ("node-4294967296.lock", None),
            ("node-03.lock", None),
            ("node-+3.lock", None),
            ("node--3.lock", None),
            ("node-.lock", None),
            ("node-3.lock.bak", None),
            ("node-3.py", None),
            ("node-3.sock", None),
            ("Node-3.lock", None),
            ("join.lock", None),
        ] {
            assert_eq!(Name::parse(OsStr::new(name)), expected, "{name}");
        }
        assert_eq!(parse_log(OsStr::new("node-3.log")), Some(three));
        assert_eq!(parse_log(OsStr::new("node-3.log.1")), None);
        for (ours, wanted) in [
            (shm_socket_name(three), shm_name(three) + ".sock"),
            (shm_lock_name(three), shm_name(three) + ".lock"),
        ] {
            assert_eq!(ours, wanted, "as the fabric calls them");
        }
    }
}
