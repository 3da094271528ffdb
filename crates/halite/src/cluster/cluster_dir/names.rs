//! Names of the files in a cluster directory. All files with other names belong to other programs.

use std::ffi::OsStr;

use halite_tier::ids::NodeId;

use crate::cluster::networks::Provider;
pub(super) use crate::error::cluster_dir::MARKER;

/// File that is locked while a node joins.
pub(super) const JOIN_LOCK: &str = "join.lock";
/// File with the next ephemeral number.
pub(super) const NEXT_NUMBER: &str = "next-number";
/// File with the lowest number that no permanent node has had.
pub(super) const NEXT_MEMBER: &str = "next-member";
/// File with the settings for connections to other hosts.
pub(super) const HOSTS: &str = "hosts";
/// File with the address of etcd, if etcd has the names.
pub(super) const DIRECTORY: &str = "directory";
/// Folder with the logs of detached nodes.
pub(super) const LOGS: &str = "logs";

/// Folder with the sockets at which nodes accept sessions.
pub(crate) const ATTACH_DIR: &str = "attach";

const ATTACH_SUFFIX: &str = ".sock";
const NODE_LOCK_SUFFIX: &str = ".lock";
const LOG_SUFFIX: &str = ".log";

/// A file of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Name {
    NodeLock(NodeId),
    /// The socket at which the node's fabric of this provider listens.
    Socket(NodeId, Provider),
    /// The file that this fabric locks while it listens.
    SocketLock(NodeId, Provider),
}

impl Name {
    /// Parses a file name. Returns `None` if the file belongs to no single node, or to another program.
    pub(super) fn parse(name: &OsStr) -> Option<Name> {
        let of_provider = |provider: Provider| {
            let socket = parse_node(name, &socket_suffix(provider)).map(|node| Name::Socket(node, provider));
            let lock = || parse_node(name, &socket_lock_suffix(provider));
            socket.or_else(|| lock().map(|node| Name::SocketLock(node, provider)))
        };
        let lock = parse_node(name, NODE_LOCK_SUFFIX).map(Name::NodeLock);
        lock.or_else(|| Provider::ALL.into_iter().find_map(of_provider))
    }

    pub(super) fn node(self) -> NodeId {
        let (Name::NodeLock(node) | Name::Socket(node, _) | Name::SocketLock(node, _)) = self;
        node
    }
}

/// Returns the name of a node, which begins the names of its files.
pub(crate) fn node_name(node: NodeId) -> String {
    with_suffix(node, "")
}

pub(super) fn lock_name(node: NodeId) -> String {
    with_suffix(node, NODE_LOCK_SUFFIX)
}

/// Returns the name of the socket at which the fabric of `provider` listens for a node.
pub(crate) fn socket_name(node: NodeId, provider: Provider) -> String {
    with_suffix(node, &socket_suffix(provider))
}

pub(super) fn socket_lock_name(node: NodeId, provider: Provider) -> String {
    with_suffix(node, &socket_lock_suffix(provider))
}

fn socket_suffix(provider: Provider) -> String {
    format!(".{provider}.sock")
}

fn socket_lock_suffix(provider: Provider) -> String {
    format!(".{provider}.lock")
}

pub(super) fn log_name(node: NodeId) -> String {
    with_suffix(node, LOG_SUFFIX)
}

/// Returns the name of the socket, in [`ATTACH_DIR`], at which a node accepts sessions.
pub(crate) fn attach_socket_name(node: NodeId) -> String {
    with_suffix(node, ATTACH_SUFFIX)
}

/// Returns the node that accepts sessions at a socket, from the socket's name.
pub(crate) fn attach_socket_node(name: &str) -> Option<NodeId> {
    parse_node(OsStr::new(name), ATTACH_SUFFIX)
}

/// Returns the node to which a log file belongs, from the file's name.
pub(super) fn parse_log(name: &OsStr) -> Option<NodeId> {
    parse_node(name, LOG_SUFFIX)
}

fn with_suffix(node: NodeId, suffix: &str) -> String {
    format!("node-{node}{suffix}")
}

fn parse_node(name: &OsStr, suffix: &str) -> Option<NodeId> {
    let name = name.to_str()?;
    let number = name.strip_prefix("node-")?.strip_suffix(suffix)?.parse().ok().map(NodeId)?;
    // "node-03.lock" and "node-+3.lock" parse as numbers too, but Halite does not write them.
    (with_suffix(number, suffix) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_names_are_parsed() {
        let three = NodeId(3);
        for (name, expected) in [
            ("node-3.lock", Some(Name::NodeLock(three))),
            ("node-3.shm.sock", Some(Name::Socket(three, Provider::Shm))),
            ("node-3.shm.lock", Some(Name::SocketLock(three, Provider::Shm))),
            ("node-3.roce.sock", Some(Name::Socket(three, Provider::Roce))),
            ("node-3.roce.lock", Some(Name::SocketLock(three, Provider::Roce))),
            ("node-3.verbs.sock", None),
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
        for provider in Provider::ALL {
            let name = format!("{}.{provider}", node_name(three));
            let wanted = (name.clone() + ".sock", name + ".lock");
            assert_eq!(
                (socket_name(three, provider), socket_lock_name(three, provider)),
                wanted,
                "the names that fabrics use"
            );
        }
    }
}
