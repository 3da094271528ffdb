//! The hello: the first message on a connection, by which a node introduces itself.
//!
//! The hello begins with the protocol version; the format of the rest depends on that version.

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, NodeIncarnation};

/// Version of the protocol between nodes. Nodes with different versions do not connect.
pub const PROTOCOL_VERSION: u16 = 21;

/// A node's hello: its number, incarnation, process and address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Number and incarnation of the node.
    pub incarnation: NodeIncarnation,
    /// Process id of the node.
    pub pid: u32,
    /// Maximum bytes of memory that the node contributes.
    pub bytes_total: u64,
    /// Address at which peers can dial the node after its connection was lost; empty if no peer can dial it.
    pub address: String,
}

/// The reason why this node refuses a new peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadHello {
    /// The peer's hello is malformed.
    #[error("the peer's hello is malformed")]
    Malformed,
    /// The peer speaks another version of the protocol.
    #[error(
        "the peer speaks version {0} of the protocol, and this node speaks version {PROTOCOL_VERSION}; run the same release on both"
    )]
    Version(u16),
    /// The peer has the same number as the receiving node.
    #[error("the peer has the same number as this node, {0}; give each node its own number")]
    OurNumber(NodeId),
    /// The receiving node knows that the peer's incarnation has ended.
    #[error(
        "the cluster has declared the peer's incarnation of node {0} dead, replaced it or forgotten it; restart the peer"
    )]
    Ended(NodeId),
}

impl Hello {
    /// Encodes the hello.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(&(PROTOCOL_VERSION, self)).expect("a hello has no unencodable parts")
    }

    /// Decodes a hello that a peer sent to node `own`, and checks the peer's version and number.
    pub fn decode(bytes: &[u8], own: NodeId) -> Result<Hello, BadHello> {
        let (version, rest): (u16, _) = postcard::take_from_bytes(bytes).map_err(|_| BadHello::Malformed)?;
        if version != PROTOCOL_VERSION {
            return Err(BadHello::Version(version));
        }
        match postcard::take_from_bytes::<Hello>(rest) {
            Ok((hello, [])) if hello.incarnation.node == own => Err(BadHello::OurNumber(own)),
            Ok((hello, [])) => Ok(hello),
            _ => Err(BadHello::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;

    const OWN: NodeId = NodeId(0);

    fn hello(node: u32) -> Hello {
        let incarnation = NodeIncarnation { node: NodeId(node), id: Incarnation(u64::MAX) };
        Hello { incarnation, pid: 77, bytes_total: 1 << 40, address: "elsewhere".to_owned() }
    }

    #[test]
    fn hello_round_trips() {
        assert_eq!(Hello::decode(&hello(1).encode(), OWN), Ok(hello(1)));
    }

    #[test]
    fn bad_hellos_are_refused_with_cause() {
        let good = hello(1).encode();
        assert_eq!(Hello::decode(&hello(0).encode(), OWN), Err(BadHello::OurNumber(OWN)));
        for len in 0..good.len() {
            assert_eq!(Hello::decode(&good[..len], OWN), Err(BadHello::Malformed), "{len} bytes of it");
        }
        assert_eq!(Hello::decode(&[&good[..], b"!"].concat(), OWN), Err(BadHello::Malformed));
        let other = postcard::to_stdvec(&(PROTOCOL_VERSION + 1, "laid out anew")).unwrap();
        assert_eq!(Hello::decode(&other, OWN), Err(BadHello::Version(PROTOCOL_VERSION + 1)));
    }
}
