//! Packets of a peer that arrive from another address than the one it offered.
//!
//! Such packets have two causes: NAT, which may translate the address from the start or change it when a mapping
//! expires, and an attacker that replays packets. The two are indistinguishable, because a replay contains the same
//! bytes. So a connection neither switches to the new address nor ends because of it. It refuses and counts such
//! packets; [`RoceFabric::address_change`](super::RoceFabric::address_change) reports them.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::lock;

/// A changed source address of a peer: its packets come from another address than it offered, and were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "its packets come from {seen} and not from {agreed}, which it offered: its address is translated on the way (NAT), or was changed, and they are refused"
)]
pub struct AddressChanged {
    /// Address that the peer offered.
    pub agreed: SocketAddr,
    /// Source address of the last refused packet.
    pub seen: SocketAddr,
    /// Number of refused packets.
    pub packets: u64,
}

/// Statistics of the packets from changed addresses, of constant size.
#[derive(Debug, Default)]
pub(super) struct Translated {
    packets: AtomicU64,
    seen: Mutex<Option<SocketAddr>>,
}

impl Translated {
    pub(super) fn note(&self, from: SocketAddr) {
        self.packets.fetch_add(1, Relaxed);
        *lock(&self.seen) = Some(from);
    }

    /// Returns the address change, if there was one.
    pub(super) fn address_change(&self, agreed: SocketAddr) -> Option<AddressChanged> {
        let packets = Some(self.packets.load(Relaxed)).filter(|packets| *packets > 0)?;
        let seen = (*lock(&self.seen))?;
        Some(AddressChanged { agreed, seen, packets })
    }
}
