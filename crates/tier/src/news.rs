//! Events about members, memory and names, with texts for users. The driver writes the events to the log.

use std::fmt;

use crate::hello::BadHello;
use crate::ids::{NodeId, NodeIncarnation};

/// A node and its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeProcess {
    /// Number and incarnation of the node.
    pub incarnation: NodeIncarnation,
    /// Process id of the node.
    pub pid: u32,
}

impl fmt::Display for NodeProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} (process {})", self.incarnation.node, self.pid)
    }
}

/// The error that this node's incarnation has ended. This node learns of the end late, because its process was stopped
/// or unreachable for longer than a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "node {by} reports that this incarnation of node {node} has ended: while this process was stopped or unreachable for longer than its lease, another process became node {node}, or a user removed it (`halite forget`); all data of this process is lost: restart it to rejoin"
)]
pub struct Over {
    /// The node whose incarnation has ended.
    pub node: NodeId,
    /// The node that reports the end.
    pub by: NodeId,
}

/// An event for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// A node has paired with this node for the first time.
    Joined(NodeProcess),
    /// A node that was unreachable has paired with this node again.
    PairedAgain {
        /// The node that has paired again.
        process: NodeProcess,
        /// The number of the new pairing.
        pairing: u64,
    },
    /// A node left as planned.
    Left(NodeProcess),
    /// The connection to a node has ended.
    Disconnected {
        /// The node.
        process: NodeProcess,
        /// Why the connection has ended; `None` if that is unknown.
        reason: Option<String>,
    },
    /// A node was silent for longer than its lease.
    Silent {
        /// The silent node.
        process: NodeProcess,
        /// Length of the silence in ns.
        silent_ns: u64,
    },
    /// A region of this node lost its name to another region.
    Renamed {
        /// The lost name.
        name: String,
        /// The new name.
        alias: String,
    },
    /// A node sent a malformed message.
    Malformed(NodeProcess),
    /// etcd, which holds the names, does not answer.
    EtcdOut {
        /// The cause, for display.
        reason: String,
    },
    /// The names have been moved to etcd.
    NamesMoved {
        /// The address of etcd.
        address: String,
    },
    /// The names have been moved back to node 0.
    NamesBack,
    /// Another node keeps its names in a different store than this node.
    NamesApart {
        /// The other node.
        node: NodeId,
        /// Address of the other node's store.
        address: String,
    },
    /// etcd answers again.
    EtcdBack,
    /// etcd was restored to an earlier state, and lacks recent writes.
    EtcdRestored {
        /// The last revision of etcd that this node had seen.
        was: u64,
        /// The current revision of etcd.
        is: u64,
    },
    /// A different etcd cluster answers at the address.
    EtcdOther {
        /// The id of the etcd cluster that answered before.
        was: u64,
        /// The id of the etcd cluster that answers now.
        is: u64,
    },
    /// This node's record in etcd was removed or overwritten by another program.
    EtcdEdited {
        /// The key of this node's record.
        key: String,
        /// The value found; `None` if the key is missing.
        found: Option<String>,
    },
    /// Another node, not connected to this node, has recorded in etcd that this node's incarnation has ended.
    EtcdEnded {
        /// The key of this node's record.
        key: String,
        /// The node that recorded the end.
        by: NodeIncarnation,
    },
    /// The record of a name in etcd is invalid.
    EtcdDamaged {
        /// The key of the invalid record.
        key: String,
    },
    /// This node is killing the process of a lost node that could still access this node's memory.
    Killing(NodeProcess),
    /// Another node is killing a process that was silent for longer than its lease.
    KilledBy {
        /// The killed node.
        incarnation: NodeIncarnation,
        /// The killing node.
        by: NodeId,
    },
    /// A node's process has exited.
    Exited {
        /// The node whose process has exited.
        process: NodeProcess,
        /// True if a node killed the process because the process was silent.
        killed: bool,
    },
    /// This node refused a new peer. The value is the reason.
    Refused(BadHello),
    /// Another node reports that this node's incarnation has ended, so this node closes.
    Over(Over),
    /// Freed memory is in quarantine because a lost node could still access it.
    Quarantined {
        /// Total bytes in quarantine.
        bytes: u64,
    },
    /// No memory is in quarantine any more.
    QuarantineOver,
    /// Names were lost with a node.
    NamesLost {
        /// Number of lost names.
        count: usize,
        /// The node with which the names were lost.
        incarnation: NodeIncarnation,
    },
}

impl News {
    /// Returns true if the event is that an ephemeral node joined or left as planned, which happens with each command.
    pub fn is_routine(&self) -> bool {
        match self {
            News::Joined(process) | News::PairedAgain { process, .. } | News::Left(process) => {
                process.incarnation.node.is_ephemeral()
            }
            _ => false,
        }
    }

    /// Returns the node that is unreachable from now on, and the reason; `None` for other events.
    pub fn unreachable(&self) -> Option<(&NodeProcess, String)> {
        match self {
            News::Disconnected { process, reason: None } => {
                Some((process, "its connection has ended".to_owned()))
            }
            News::Disconnected { process, reason: Some(reason) } => {
                Some((process, format!("its connection has ended ({reason})")))
            }
            News::Silent { process, silent_ns } => {
                Some((process, format!("silent for {}, longer than its lease", Seconds(*silent_ns))))
            }
            News::Malformed(process) => Some((process, "it sent a malformed message".to_owned())),
            _ => None,
        }
    }

    /// Returns true if the event is a problem, which the log should show as a warning.
    pub fn is_trouble(&self) -> bool {
        let is_membership_change = matches!(self, News::Joined(_) | News::PairedAgain { .. } | News::Left(_));
        !(is_membership_change
            || matches!(
                self,
                News::Exited { .. }
                    | News::QuarantineOver
                    | News::NamesMoved { .. }
                    | News::NamesBack
                    | News::EtcdBack
            ))
    }
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((process, reason)) = self.unreachable() {
            return write!(f, "{process} is unreachable for this node: {reason}");
        }
        match self {
            News::Disconnected { .. } | News::Silent { .. } | News::Malformed(_) => unreachable!("see above"),
            News::Joined(process) => write!(f, "{process} has joined"),
            News::PairedAgain { process, pairing } => {
                write!(f, "paired again with {process}, pairing {pairing}")
            }
            News::Left(process) => write!(f, "{process} has left"),
            News::Renamed { name, alias } => {
                write!(
                    f,
                    "renamed the region {name:?} of this node to {alias:?}, because another region has its name"
                )
            }
            News::Killing(process) => {
                write!(
                    f,
                    "killing {process}, because it could resume in the middle of a write to this node's memory (see Config::fence)"
                )
            }
            News::KilledBy { incarnation, by } => {
                write!(
                    f,
                    "node {by} is killing node {}, which was silent for longer than its lease",
                    incarnation.node
                )
            }
            News::EtcdOut { reason } => write!(f, "etcd, which holds the names, does not answer: {reason}"),
            News::NamesMoved { address } => write!(f, "the names have moved to the store at {address}"),
            News::NamesBack => write!(f, "the names have moved back to node 0"),
            News::NamesApart { node, address } => {
                write!(
                    f,
                    "node {node} keeps its names at {address}, and this node keeps its names in another store: neither node finds the names of the other"
                )
            }
            News::EtcdBack => write!(f, "etcd answers again"),
            News::EtcdRestored { was, is } => write!(
                f,
                "etcd was restored to an earlier state: its revision was {was} and is now {is}; this node writes its missing names again"
            ),
            News::EtcdOther { was, is } => write!(
                f,
                "another etcd cluster answers: its id is {is:x}, and was {was:x} before; this node writes its missing names to it (if this is a mistake, check the address of etcd)"
            ),
            News::EtcdEdited { key, found: Some(found) } => write!(
                f,
                "the key {key:?} in etcd, the record of this node, was overwritten with {found:?}; this node writes the record again"
            ),
            News::EtcdEdited { key, found: None } => write!(
                f,
                "the key {key:?} in etcd, the record of this node, is gone: it was removed, or etcd was restored; this node writes the record and its missing names again"
            ),
            News::EtcdEnded { key, by } => write!(
                f,
                "node {} has recorded in etcd that this incarnation has ended ({key:?}), and is not connected to this node: this node registers no new names until the two are connected",
                by.node
            ),
            News::EtcdDamaged { key } => write!(
                f,
                "the key {key:?} in etcd holds no valid record: its region cannot be found by that name (halite rm NAME removes it)"
            ),
            News::Exited { process, killed: false } => write!(f, "{process} has exited"),
            News::Exited { process, killed: true } => write!(f, "{process} has exited: it was killed"),
            News::Over(over) => write!(f, "{over}"),
            News::Refused(why) => write!(f, "refused a peer that tried to connect: {why}"),
            News::Quarantined { bytes } => {
                write!(
                    f,
                    "quarantine: {bytes} bytes are not reused yet, because a lost node could still access them"
                )
            }
            News::QuarantineOver => f.write_str("quarantine is over: all freed bytes can be reused again"),
            News::NamesLost { count, incarnation } => {
                write!(f, "names lost with node {}: {count}", incarnation.node)
            }
        }
    }
}

/// Returns the warning for the terminal of a process that node `by` is about to kill after a silence of `silent_ns`.
pub fn kill_warning(by: NodeIncarnation, silent_ns: u64) -> String {
    format!(
        "halite: this process was stopped or silent for {}, longer than its lease; node {} kills it, because it \
         could resume in the middle of a write (see Config::fence)",
        Seconds(silent_ns),
        by.node
    )
}

/// Nanoseconds, displayed as seconds.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0 / 100_000_000;
        write!(f, "{}.{} s", tenths / 10, tenths % 10)
    }
}
