//! Packets of a peer that arrive from another address than the peer offered.
//!
//! Such packets have two causes. A NAT may translate the address from the start, or change it when a mapping expires.
//! Or an attacker replays packets. The receiver cannot distinguish the two, because a replay contains the same bytes.
//! So a connection neither switches to the new address nor ends. The fabric refuses and counts such packets, and
//! [`RoceFabric::address_change`](super::RoceFabric::address_change) reports their number and address.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::lock;

/// A changed source address of a peer: packets of the peer came from another address than the peer offered, and the
/// fabric refused them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "packets of the peer come from {seen} and not from {agreed}, which the peer offered, and are refused: a NAT translates the peer's address, or the address has changed"
)]
pub struct AddressChanged {
    /// Address that the peer offered in the handshake.
    pub agreed: SocketAddr,
    /// Source address of the last refused packet.
    pub seen: SocketAddr,
    /// Number of packets refused for this reason.
    pub packets: u64,
}

/// Statistics of the packets from changed addresses, of constant size.
#[derive(Debug, Default)]
pub(super) struct Translated {
    packets: AtomicU64,
    seen: Mutex<Option<SocketAddr>>,
}

impl Translated {
    pub(super) fn record(&self, from: SocketAddr) {
        self.packets.fetch_add(1, Relaxed);
        *lock(&self.seen) = Some(from);
    }

    /// Returns the address change; `None` if no packet came from another address.
    pub(super) fn address_change(&self, agreed: SocketAddr) -> Option<AddressChanged> {
        let packets = Some(self.packets.load(Relaxed)).filter(|packets| *packets > 0)?;
        let seen = (*lock(&self.seen))?;
        Some(AddressChanged { agreed, seen, packets })
    }
}
