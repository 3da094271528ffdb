//! News: what becomes of members and memory, in words for people.  Drivers log it.

use std::fmt;

use crate::hello::BadHello;
use crate::ids::{NodeId, NodeLife};

/// A node and its process, as people know them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Somebody {
    /// Which node, in which life.
    pub life: NodeLife,
    /// Its process.
    pub pid: u32,
}

impl fmt::Display for Somebody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} (process {})", self.life.node, self.pid)
    }
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
    /// It answers again.
    EtcdBack,
    /// It has forgotten what was written: it was restored, or is another one.
    EtcdRestored {
        /// The revision that was known of it.
        was: u64,
        /// The revision that it has.
        is: u64,
    },
    /// Its process is being killed by this node, since it could still touch memory here.
    Killing(Somebody),
    /// Its process is being killed by another node, which has not heard it for longer than its lease.
    KilledBy {
        /// Who.
        life: NodeLife,
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
        life: NodeLife,
    },
}

impl News {
    /// Whether something has gone wrong.
    pub fn is_trouble(&self) -> bool {
        let is_none = matches!(self, News::Joined(_) | News::PairedAnew { .. } | News::Left(_));
        !(is_none || matches!(self, News::Exited { .. } | News::QuarantineOver | News::EtcdBack))
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
            News::KilledBy { life, by } => {
                write!(
                    f,
                    "node {} is killed by node {by}, to which it was silent for longer than its lease",
                    life.node
                )
            }
            News::EtcdOut { reason } => write!(f, "etcd, which has the names, does not answer: {reason}"),
            News::EtcdBack => write!(f, "etcd answers again"),
            News::EtcdRestored { was, is } => write!(
                f,
                "etcd was restored, or is another one: its revision is {is}, and was {was}; what it lacks of this node's names is written again"
            ),
            News::Exited { who, killed: false } => write!(f, "{who} has exited"),
            News::Exited { who, killed: true } => write!(f, "{who} has exited, killed"),
            News::Refused(why) => write!(f, "a peer that connected was refused: {why}"),
            News::Quarantined { bytes } => {
                write!(f, "quarantine: {bytes} bytes are kept back, since a dead node could reach them")
            }
            News::QuarantineOver => f.write_str("quarantine is over: no bytes are kept back any more"),
            News::NamesLost { count, life } => {
                write!(f, "names lost with node {}: {count}", life.node)
            }
        }
    }
}

/// What a process that is about to be killed is told, as the person at its terminal will read it.
pub fn last_words(by: NodeLife, silent_ns: u64) -> String {
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
