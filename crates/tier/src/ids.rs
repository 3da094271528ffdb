//! Identifiers of nodes, regions, sessions, requests and principals.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The number of a node. A number may be reused after its node has left; an incarnation is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The first node, which holds the directory of names unless an outside store does.
    pub const FIRST: NodeId = NodeId(0);
    /// The lowest number of ephemeral nodes: applications and commands.
    pub const EPHEMERAL_MIN: NodeId = NodeId(1000);

    /// Returns true if the node has an ephemeral number, as applications and commands have.
    pub fn is_ephemeral(self) -> bool {
        self >= NodeId::EPHEMERAL_MIN
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The random id of one incarnation (one run of a node). A restarted node gets another id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

/// One run of a node: its number, and a unique random id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeIncarnation {
    /// The node's number.
    pub node: NodeId,
    /// The random id of this run.
    pub id: Incarnation,
}

/// The id of a region, unique across all nodes and incarnations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RegionId {
    /// The incarnation of the node that allocated the region.
    pub origin: Incarnation,
    /// Serial number, unique in that incarnation.
    pub serial: u64,
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{}", self.origin.0, self.serial)
    }
}

/// A version number of a region: the number of changes that the region's home has made so far.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// A principal: the name to which permissions are granted. By default, this is the name of the Unix user.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Principal(pub Arc<str>);

impl Principal {
    /// Maximum length of a principal's name, in bytes.
    pub const BYTES_MAX: usize = 255;
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a request that a node has sent, among all requests of that node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// The number of a session at its node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SessionId(pub u16);

/// The node that sent a request, and the request's id there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Requester {
    /// The requesting node.
    pub incarnation: NodeIncarnation,
    /// The request's id at that node.
    pub id: RequestId,
}
