//! News: what becomes of members and memory, in words for people.  Drivers log it.

use std::fmt;

use crate::hello::BadHello;
use crate::ids::{NodeId, NodeIncarnation};

/// A node and its process, as people know them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Somebody {
    /// Which node, in which incarnation.
    pub incarnation: NodeIncarnation,
    /// Its process.
    pub pid: u32,
}

impl fmt::Display for Somebody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} (process {})", self.incarnation.node, self.pid)
    }
}

/// The incarnation of a node is over, and it has missed that: it stood still, or was out of reach, for longer than its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the incarnation of node {node} that this process runs is over, as node {by} says: while it stood still or was out of reach for longer than its lease, another process became node {node}, or it was forgotten; what it held is lost, and it can be started anew"
)]
pub struct Over {
    /// Which node it was.
    pub node: NodeId,
    /// Who says so.
    pub by: NodeId,
}

/// Something that has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// A node is connected.
    Joined(Somebody),
    /// One that was unreachable is paired with this node anew.
    PairedAnew {
        /// Who.
        who: Somebody,
        /// For which time the two are.
        pairing: u64,
    },
    /// It said goodbye.
    Left(Somebody),
    /// Its connection has ended.
    Disconnected(Somebody),
    /// It was silent for longer than its lease.
    Silent {
        /// Who.
        who: Somebody,
        /// For how long, in ns.
        silent_ns: u64,
    },
    /// A region of this node has lost its name to another region.
    Renamed {
        /// The name.
        name: String,
        /// The name that it has instead.
        alias: String,
    },
    /// What it said was no message.
    Nonsense(Somebody),
    /// etcd, which has the names, does not answer.
    EtcdOut {
        /// Why.
        reason: String,
    },
    /// The names are in etcd from now on.
    NamesMoved {
        /// Where.
        address: String,
    },
    /// Another node has its names elsewhere.
    NamesApart {
        /// Which.
        node: NodeId,
        /// Where.
        address: String,
    },
    /// It answers again.
    EtcdBack,
    /// It has forgotten what was written: it was restored.
    EtcdRestored {
        /// The revision that was known of it.
        was: u64,
        /// The revision that it has.
        is: u64,
    },
    /// Another one answers in its place.
    EtcdOther {
        /// By which number the cluster of etcd's own nodes was known.
        was: u64,
        /// By which it is.
        is: u64,
    },
    /// Somebody has removed what this node has written there of itself, or written it over.
    EtcdEdited {
        /// Which key.
        key: String,
        /// What it holds instead, if anything.
        found: Option<String>,
    },
    /// Another node has written there that this one's incarnation is over, and this one does not hear it.
    EtcdEnded {
        /// Which key.
        key: String,
        /// Which node.
        by: NodeIncarnation,
    },
    /// What is written there of a name was written by no node.
    EtcdDamaged {
        /// Which key.
        key: String,
    },
    /// Its process is being killed by this node, since it could still touch memory here.
    Killing(Somebody),
    /// Its process is being killed by another node, which has not heard it for longer than its lease.
    KilledBy {
        /// Who.
        incarnation: NodeIncarnation,
        /// By whom.
        by: NodeId,
    },
    /// Its process has exited.
    Exited {
        /// Who.
        who: Somebody,
        /// Whether it was killed for its silence.
        killed: bool,
    },
    /// A peer that connected was turned away.
    Refused(BadHello),
    /// This node's own incarnation is over for another node: for good, so the node ends.
    Over(Over),
    /// Memory is kept back, since a dead node could reach it.
    Quarantined {
        /// How much in all, in bytes.
        bytes: u64,
    },
    /// No memory is kept back any more.
    QuarantineOver,
    /// Names are known to be lost with a node.
    NamesLost {
        /// How many.
        count: usize,
        /// With whom.
        incarnation: NodeIncarnation,
    },
}

impl News {
    /// Whether a node comes or goes that was never to stay, as it said: each command is two such events.  How one was lost is told as of any other.
    pub fn is_passing(&self) -> bool {
        match self {
            News::Joined(who) | News::Left(who) => who.incarnation.node.is_ephemeral(),
            _ => false,
        }
    }

    /// Whether something has gone wrong.
    pub fn is_trouble(&self) -> bool {
        let is_none = matches!(self, News::Joined(_) | News::PairedAnew { .. } | News::Left(_));
        !(is_none
            || matches!(
                self,
                News::Exited { .. } | News::QuarantineOver | News::NamesMoved { .. } | News::EtcdBack
            ))
    }
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            News::Joined(who) => write!(f, "{who} has joined"),
            News::PairedAnew { who, pairing } => write!(f, "paired again with {who}, pairing {pairing}"),
            News::Left(who) => write!(f, "{who} has left"),
            News::Disconnected(who) => {
                write!(f, "{who} is unreachable for this node: its connection has ended")
            }
            News::Silent { who, silent_ns } => {
                write!(
                    f,
                    "{who} is unreachable for this node: silent for {}, longer than its lease",
                    Seconds(*silent_ns)
                )
            }
            News::Renamed { name, alias } => {
                write!(f, "the region {name:?} of this node is called {alias:?} now: another has its name")
            }
            News::Nonsense(who) => {
                write!(f, "{who} is unreachable for this node: what it said was no message")
            }
            News::Killing(who) => {
                write!(f, "{who} is killed, since it could wake in the middle of a write (Config::fence)")
            }
            News::KilledBy { incarnation, by } => {
                write!(
                    f,
                    "node {} is killed by node {by}, to which it was silent for longer than its lease",
                    incarnation.node
                )
            }
            News::EtcdOut { reason } => write!(f, "etcd, which has the names, cannot be asked: {reason}"),
            News::NamesMoved { address } => write!(f, "names are kept at {address} from now on"),
            News::NamesApart { node, address } => {
                write!(
                    f,
                    "node {node} has its names at {address}, and this node elsewhere: two of one cluster that do not see each other's names"
                )
            }
            News::EtcdBack => write!(f, "etcd answers again"),
            News::EtcdRestored { was, is } => write!(
                f,
                "etcd was restored to what it was before: its revision is {is}, and was {was}; what it lacks of this node's names is written again"
            ),
            News::EtcdOther { was, is } => write!(
                f,
                "another etcd answers: its cluster is {is:x}, and was {was:x}; what it lacks of this node's names is written again (if it is another one by mistake, see to its address)"
            ),
            News::EtcdEdited { key, found: Some(found) } => write!(
                f,
                "the key {key:?} in etcd, which says that this node lives, was written over with {found:?}; it is written again"
            ),
            News::EtcdEdited { key, found: None } => write!(
                f,
                "the key {key:?} in etcd, which says that this node lives, is gone: somebody has removed it, or etcd was restored; it is written again, with what etcd lacks of this node's names"
            ),
            News::EtcdEnded { key, by } => write!(
                f,
                "node {} has written in etcd that this incarnation is over ({key:?}), and this node does not hear it: no new names are given here until they hear each other",
                by.node
            ),
            News::EtcdDamaged { key } => write!(
                f,
                "the key {key:?} in etcd holds what no node has written: nobody finds its region by that name (halite rm NAME removes it)"
            ),
            News::Exited { who, killed: false } => write!(f, "{who} has exited"),
            News::Exited { who, killed: true } => write!(f, "{who} has exited, killed"),
            News::Over(over) => write!(f, "{over}"),
            News::Refused(why) => write!(f, "a peer that connected was refused: {why}"),
            News::Quarantined { bytes } => {
                write!(f, "quarantine: {bytes} bytes are kept back, since a dead node could reach them")
            }
            News::QuarantineOver => f.write_str("quarantine is over: no bytes are kept back any more"),
            News::NamesLost { count, incarnation } => {
                write!(f, "names lost with node {}: {count}", incarnation.node)
            }
        }
    }
}

/// What a process that is about to be killed is told, as the person at its terminal will read it.
pub fn last_words(by: NodeIncarnation, silent_ns: u64) -> String {
    format!(
        "halite: this process was stopped or silent for {}, longer than its lease; node {} kills it since it could \
         wake in the middle of a write (Config::fence)",
        Seconds(silent_ns),
        by.node
    )
}

/// Nanoseconds, shown as seconds.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0 / 100_000_000;
        write!(f, "{}.{} s", tenths / 10, tenths % 10)
    }
}
