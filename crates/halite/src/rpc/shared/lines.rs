//! Rows of lines in the memory of peers.

use std::sync::atomic::AtomicU64;

use halite_fabric::{Fabric, Lines, PeerId, RemoteAddress};

/// Offset of the lines' head word from the ring's, in bytes.
pub(in crate::rpc) const LINE_HEAD_OFFSET: u64 = 8;

/// A row of lines at the peer.
#[derive(Debug)]
pub(crate) struct Row {
    pub(in crate::rpc) at: RemoteAddress,
    /// `None` if stores do not reach it; then lines are posted.
    pub(in crate::rpc) direct: Option<Box<dyn Lines>>,
}

impl Row {
    /// Creates a row in the memory of `peer`.
    pub(in crate::rpc) fn new(fabric: &dyn Fabric, peer: PeerId, at: RemoteAddress, count: u32) -> Row {
        let is_direct = fabric.capabilities(peer).direct;
        let direct = is_direct.then(|| fabric.lines(peer, at, count)).flatten();
        Row { at, direct }
    }
}

/// The row of a link: `| generation u32 | index u32 |`, or 0 for none.
#[derive(Debug, Default)]
pub(in crate::rpc) struct RowRef(pub(in crate::rpc) AtomicU64);
