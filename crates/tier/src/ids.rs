//! Who and what: the numbers by which nodes, regions and principals are known.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A node of the cluster.  Numbers are given out again after a node has gone; its incarnation is not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The node that hosts the directory of names.
    pub const FIRST: NodeId = NodeId(0);
    /// From here on numbers are for nodes that come and go: applications and commands.
    pub const EPHEMERAL_MIN: NodeId = NodeId(1000);

    /// Whether the node is one of those that come and go.
    pub fn is_ephemeral(self) -> bool {
        self >= NodeId::EPHEMERAL_MIN
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One incarnation of a node: random, so that a restarted node is never taken for the one before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

/// One run of a node: its number, and a random value that no other run has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeIncarnation {
    /// Which node.
    pub node: NodeId,
    /// Random, so that no two are alike.
    pub id: Incarnation,
}

/// A region, unique across all nodes and incarnations: its first home's incarnation and a serial number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RegionId {
    /// The incarnation of the node that made it.
    pub origin: Incarnation,
    /// Counts up there.
    pub serial: u64,
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{}", self.origin.0, self.serial)
    }
}

/// Counts the changes of one region, in the order that its home gave them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// Who asks: by default the name of the Unix user.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Principal(pub Arc<str>);

impl Principal {
    /// Longest name of a principal, in bytes.
    pub const BYTES_MAX: usize = 255;
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One request between nodes, or one command of a session, awaiting its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// A session of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SessionId(pub u16);

/// Who asked something, and how the answer finds back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Requester {
    /// Which node.
    pub incarnation: NodeIncarnation,
    /// Its number for the request.
    pub id: RequestId,
}
