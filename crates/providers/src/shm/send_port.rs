//! Send ports: handles of the rings to peers. Each posting thread caches them.
//!
//! To look a peer up in the table, a thread takes a lock that all posting threads share. To use a cached send port, a
//! thread only accesses its own cache line. A cached entry never refers to another peer, because the numbers of fabrics
//! and peers are not reused. After a peer's disconnection, the mutex of its send port contains `None`.

use std::cell::RefCell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use halite_fabric::PeerId;

use super::peer::Outgoing;

/// The sending side of the data path to a peer; `None` once the peer is disconnected.
pub(super) type SendPort = Mutex<Option<Outgoing>>;

/// Identifies a fabric within this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FabricNumber(u64);

impl FabricNumber {
    pub(super) fn new() -> FabricNumber {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the counter orders no other memory.
        FabricNumber(NEXT.fetch_add(1, Relaxed))
    }
}

/// Number of slots in a thread's cache. The slot of a send port is the sum of its fabric and peer numbers, modulo this.
const SEND_PORTS_MAX: usize = 16;

thread_local! {
    static SEND_PORTS: RefCell<[Option<CachedPort>; SEND_PORTS_MAX]> =
        const { RefCell::new([const { None }; SEND_PORTS_MAX]) };
}

struct CachedPort {
    fabric: FabricNumber,
    peer: PeerId,
    send_port: Arc<SendPort>,
}

/// Calls `action` with the send port to `peer`, from this thread's cache or from `find`. `action` must not call this
/// function again. Returns `None` if `find` returns `None`.
#[inline]
pub(super) fn with_send_port<T>(
    fabric: FabricNumber,
    peer: PeerId,
    find: impl Fn() -> Option<Arc<SendPort>>,
    mut action: impl FnMut(&SendPort) -> T,
) -> Option<T> {
    let result = SEND_PORTS.try_with(|send_ports| {
        // Includes the fabric's number, because two fabrics of one process may use the same number for different peers.
        let index = (u64::from(peer.0) + fabric.0) % SEND_PORTS_MAX as u64;
        let cached = &mut send_ports.borrow_mut()[index as usize];
        if !matches!(cached, Some(cached) if cached.fabric == fabric && cached.peer == peer) {
            *cached = Some(CachedPort { fabric, peer, send_port: find()? });
        }
        cached.as_ref().map(|cached| action(&cached.send_port))
    });
    // The cache of an ending thread is destroyed.
    result.unwrap_or_else(|_| find().map(|send_port| action(&send_port)))
}
