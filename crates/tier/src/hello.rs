//! The hello: what a node says of itself when it connects.
//!
//! It begins with the version of the protocol, and what follows may be laid out in another way in another version.

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, NodeIncarnation};

/// Version of the protocol; both ends of a connection must speak the same.
pub const PROTOCOL_VERSION: u16 = 13;

/// What a node says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Who it is.
    pub incarnation: NodeIncarnation,
    /// Its process.
    pub pid: u32,
    /// Bytes of memory that it contributes at most.
    pub bytes_total: u64,
    /// Where it is dialled, if the connection is lost; empty if it cannot be.
    pub address: String,
}

/// Why a peer that connected is none of this cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadHello {
    /// What it shows is no hello.
    #[error("it shows what is no hello")]
    Malformed,
    /// It speaks another version of the protocol.
    #[error("it speaks version {0} of the protocol, and this node version {PROTOCOL_VERSION}")]
    Version(u16),
    /// It has the number of who looks at its hello.
    #[error("it says that it is node {0}, as this one is")]
    OurNumber(NodeId),
    /// Its incarnation is over for this node.
    #[error("node {0} was lost in the incarnation that it shows")]
    Ended(NodeId),
}

impl Hello {
    /// As it is shown to others.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(&(PROTOCOL_VERSION, self)).expect("a hello has no unencodable parts")
    }

    /// Understands what was shown to node `own`.
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
    fn a_hello_arrives_as_it_was_said() {
        assert_eq!(Hello::decode(&hello(1).encode(), OWN), Ok(hello(1)));
    }

    #[test]
    fn what_is_wrong_with_a_hello_is_said() {
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
