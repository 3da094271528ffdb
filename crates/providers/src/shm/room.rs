//! Records the peers whose rings were full, to notify posters when there is room again.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use halite_fabric::PeerId;

use super::lock;

/// The waiting peers. An atomic count spares each poll the lock, for there are usually none.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Written under the lock.
    count: AtomicUsize,
    peers: Mutex<BTreeSet<PeerId>>,
}

impl Waiters {
    pub(super) fn add(&self, peer: PeerId) {
        let mut peers = lock(&self.peers);
        peers.insert(peer);
        // Pairs with the Acquire in is_empty(). A poll that misses this store is followed by another: the caller rings
        // next.
        self.count.store(peers.len(), Release);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        // Pairs with the Release in add().
        self.count.load(Acquire) == 0
    }

    /// Removes and returns all waiters; the caller adds those again that still wait.
    pub(super) fn take_all(&self) -> BTreeSet<PeerId> {
        let mut peers = lock(&self.peers);
        self.count.store(0, Release);
        std::mem::take(&mut peers)
    }
}
