//! Rows of lines in the memory of peers.

use std::sync::atomic::AtomicU64;

use halite_fabric::{Fabric, Lines, PeerId, RemoteAddress};

/// Offset from the ring's head word to the lines' head word, in bytes.
pub(in crate::rpc) const LINE_HEAD_OFFSET: u64 = 8;

/// A row of lines in the peer's memory.
#[derive(Debug)]
pub(crate) struct Row {
    pub(in crate::rpc) at: RemoteAddress,
    /// Access by stores; `None` if stores do not reach the row, and lines are posted instead.
    pub(in crate::rpc) direct: Option<Box<dyn Lines>>,
}

impl Row {
    /// Creates a row of `count` lines in the memory of `peer`, at the address `at`.
    pub(in crate::rpc) fn new(fabric: &dyn Fabric, peer: PeerId, at: RemoteAddress, count: u32) -> Row {
        let is_direct = fabric.capabilities(peer).direct;
        let direct = is_direct.then(|| fabric.lines(peer, at, count)).flatten();
        Row { at, direct }
    }
}

/// Reference from a link to its row: `| generation u32 | index u32 |`, or 0 if the link has no row.
#[derive(Debug, Default)]
pub(in crate::rpc) struct RowRef(pub(in crate::rpc) AtomicU64);
