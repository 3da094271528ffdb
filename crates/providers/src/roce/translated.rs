//! Packets that a peer has sent, and that come from another address than the one that it offered.
//!
//! Such is what NAT makes of packets, at once or when it forgets and binds anew, and so is what somebody repeats who has seen them.  Nobody can tell these
//! apart: a packet says nothing that its repetition does not say.  So a connection never follows an address, and never ends because of one;
//! what is refused is counted, and told where it is looked for.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::lock;

/// Packets of a peer are refused, for they come from another address than the one that was agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "its packets come from {seen} and not from {agreed}, which it offered: its address is translated on the way (NAT), or was changed, and they are refused"
)]
pub struct AddressChanged {
    /// What the peer offered.
    pub agreed: SocketAddr,
    /// From where the last of them came.
    pub seen: SocketAddr,
    /// How many did not come from where they should.
    pub packets: u64,
}

/// What is kept of such packets: a count and an address, however many come.
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

    /// What is to be told of it, if there was any.
    pub(super) fn told(&self, agreed: SocketAddr) -> Option<AddressChanged> {
        let packets = Some(self.packets.load(Relaxed)).filter(|packets| *packets > 0)?;
        let seen = (*lock(&self.seen))?;
        Some(AddressChanged { agreed, seen, packets })
    }
}
