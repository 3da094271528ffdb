//! Records the peers whose rings were full at a post, so that the fabric can notify the posters when a ring has room
//! again.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use halite_fabric::PeerId;

use super::lock;

/// The peers whose rings were full at a post. A poll reads an atomic count, which is usually 0, before it takes the
/// lock.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Number of `peers`. Written under the lock of `peers`, and read without it.
    count: AtomicUsize,
    peers: Mutex<BTreeSet<PeerId>>,
}

impl Waiters {
    pub(super) fn add(&self, peer: PeerId) {
        let mut peers = lock(&self.peers);
        peers.insert(peer);
        // Pairs with the Acquire in is_empty(). If a poll misses this store, another poll follows, because the caller
        // rings the doorbell next.
        self.count.store(peers.len(), Release);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        // Pairs with the Release in add().
        self.count.load(Acquire) == 0
    }

    /// Removes and returns all peers. The caller adds each peer again whose ring is still full.
    pub(super) fn take_all(&self) -> BTreeSet<PeerId> {
        let mut peers = lock(&self.peers);
        self.count.store(0, Release);
        std::mem::take(&mut peers)
    }
}
