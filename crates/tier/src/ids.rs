//! Identifiers of nodes, regions, sessions, requests and principals.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A node's number.  Numbers are reused after a node has left; incarnations are not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The node that hosts the directory of names.
    pub const FIRST: NodeId = NodeId(0);
    /// The first number of ephemeral nodes: applications and commands.
    pub const EPHEMERAL_MIN: NodeId = NodeId(1000);

    /// Whether the node is ephemeral.
    pub fn is_ephemeral(self) -> bool {
        self >= NodeId::EPHEMERAL_MIN
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The random id of one incarnation: a restarted node never has the old one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

/// One run of a node: its number, and a unique random id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeIncarnation {
    /// The number.
    pub node: NodeId,
    /// The random id.
    pub id: Incarnation,
}

/// A region, unique across nodes and incarnations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RegionId {
    /// The incarnation of the node that made it.
    pub origin: Incarnation,
    /// Serial number there.
    pub serial: u64,
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{}", self.origin.0, self.serial)
    }
}

/// Counts the changes of one region, in its home's order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// The name by which permissions are granted: by default the Unix user's.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Principal(pub Arc<str>);

impl Principal {
    /// Maximum name of a principal, in bytes.
    pub const BYTES_MAX: usize = 255;
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A request between nodes, or a command of a session, in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// A session of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SessionId(pub u16);

/// The origin of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Requester {
    /// The node.
    pub incarnation: NodeIncarnation,
    /// Its id for the request.
    pub id: RequestId,
}
