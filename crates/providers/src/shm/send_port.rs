//! Send ports: handles of the rings to peers, cached by each thread that posts.
//!
//! To look a peer up in the table, a thread takes a lock that all posting threads share. To use a cached send port, a
//! thread only accesses its own cache line. A cached entry never refers to another peer, because the numbers of fabrics
//! and peers are not reused. If the peer has left, the mutex of its send port is empty.

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
    static SEND_PORTS: RefCell<[Option<Known>; SEND_PORTS_MAX]> =
        const { RefCell::new([const { None }; SEND_PORTS_MAX]) };
}

struct Known {
    fabric: FabricNumber,
    peer: PeerId,
    send_port: Arc<SendPort>,
}

/// Calls `enter` with the send port to `peer`, which this thread has cached or `find` returns. `enter` must not call
/// this function again. Returns `None` if there is no send port to the peer.
#[inline]
pub(super) fn with_send_port<T>(
    fabric: FabricNumber,
    peer: PeerId,
    find: impl Fn() -> Option<Arc<SendPort>>,
    mut enter: impl FnMut(&SendPort) -> T,
) -> Option<T> {
    let entered = SEND_PORTS.try_with(|send_ports| {
        // Includes the fabric's number, because two fabrics of one process may use the same number for different peers.
        let place = (u64::from(peer.0) + fabric.0) % SEND_PORTS_MAX as u64;
        let known = &mut send_ports.borrow_mut()[place as usize];
        if !matches!(known, Some(known) if known.fabric == fabric && known.peer == peer) {
            *known = Some(Known { fabric, peer, send_port: find()? });
        }
        known.as_ref().map(|known| enter(&known.send_port))
    });
    // An ending thread has no cache any more.
    entered.unwrap_or_else(|_| find().map(|send_port| enter(&send_port)))
}
