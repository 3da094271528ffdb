//! The link to a peer: the state of calls in both directions.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};

use halite_fabric::PeerId;
use halite_tier::ids::NodeId;
use halite_tier::rpc::{LineReader, RingReader, Served, Target};

use super::inbound::Inbound;
use super::lines::RowRef;
use super::memory::Block;
use super::outbound::Outbound;

/// The link to a peer, or from this node to itself.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) node: NodeId,
    pub(crate) target: Target,
    /// Maximum length of a source that the fabric copies into the work request, in bytes.
    pub(crate) inline_bytes_max: usize,
    /// The outbound side; `None` until the peer's handshake has arrived.
    pub(crate) outbound: Mutex<Option<Outbound>>,
    pub(crate) inbound: Mutex<Inbound>,
    /// The peer's calls in progress at this node.
    pub(crate) served: Served,
    /// Position up to which this node has read the peer's short requests.
    pub(in crate::rpc) reader: LineReader,
    /// Row of reply lines in the peer's memory.
    pub(in crate::rpc) replies: RowRef,
    gone: AtomicBool,
    handshake_sent: AtomicBool,
    /// Number of calls that the peer has cancelled.
    cancels: AtomicU32,
    drops: DropCount,
}

/// Counts, over all links of a node, the events that make requests unwanted: a cancel, or the loss of a peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct DropCount(Arc<AtomicU64>);

impl DropCount {
    fn add(&self) {
        // Pairs with the Acquire in count(): a thread that sees the count sees the requests as unwanted.
        self.0.fetch_add(1, Release);
    }

    pub(crate) fn count(&self) -> u64 {
        // Pairs with the Release in add().
        self.0.load(Acquire)
    }
}

pub(crate) struct LinkMemory {
    pub(in crate::rpc) ring: (RingReader, Block),
    pub(in crate::rpc) head: Block,
    pub(in crate::rpc) lines: Block,
}

impl Link {
    /// Creates the link from a node to itself.
    pub(crate) fn own(node: NodeId) -> Link {
        Link::new(node, Target::Own, 0, None, DropCount::default())
    }

    pub(crate) fn new(
        node: NodeId,
        target: Target,
        inline_bytes_max: usize,
        memory: Option<LinkMemory>,
        drops: DropCount,
    ) -> Link {
        Link {
            node,
            target,
            inline_bytes_max,
            outbound: Mutex::default(),
            inbound: Mutex::new(Inbound::new(memory)),
            served: Served::default(),
            reader: LineReader::default(),
            replies: RowRef::default(),
            gone: AtomicBool::new(false),
            handshake_sent: AtomicBool::new(false),
            cancels: AtomicU32::new(0),
            drops,
        }
    }

    /// Returns true once the fabric has taken this node's handshake, which must precede all requests.
    #[inline]
    pub(crate) fn has_sent_handshake(&self) -> bool {
        // Pairs with the Release in set_handshake_sent(): the handshake has been posted.
        self.handshake_sent.load(Acquire)
    }

    pub(crate) fn set_handshake_sent(&self) {
        // Pairs with the Acquire in has_sent_handshake().
        self.handshake_sent.store(true, Release);
    }

    /// Returns true if the peer is down, so that work for it can be skipped.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        // A hint that saves work; the locks ensure correctness.
        self.gone.load(Relaxed)
    }

    /// Returns the number of calls that the peer has cancelled. While it stays the same, no open call has been
    /// cancelled.
    #[inline]
    pub(crate) fn cancels(&self) -> u32 {
        // A hint: a call that is being cancelled may still reach its handler.
        self.cancels.load(Relaxed)
    }

    pub(crate) fn record_cancel(&self) {
        self.cancels.fetch_add(1, Relaxed);
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Relaxed);
        self.drops.add();
    }

    /// Counts a cancelled request. Queues compare this count, and look for unwanted requests when it has changed.
    pub(crate) fn record_drop(&self) {
        self.drops.add();
    }

    #[inline]
    pub(crate) fn drops(&self) -> &DropCount {
        &self.drops
    }

    /// Drops the callers, which refer to the link. Afterwards, this node reads no more requests from the link.
    pub(crate) fn drop_callers(&self) {
        // Leaked after a panic.
        if let Ok(mut inbound) = self.inbound.lock() {
            inbound.drop_callers();
        }
    }

    /// Releases the link's memory when the node ends, because references to the link may remain.
    pub(crate) fn release_memory(&self) {
        self.drop_callers();
        // Leaked after a panic.
        let outbound = self.outbound.lock().ok().and_then(|mut outbound| outbound.take());
        let of_inbound = self.inbound.lock().ok().map(|mut inbound| {
            let Inbound { ring, head, lines, kept, .. } = &mut *inbound;
            (ring.take(), head.take(), lines.take(), std::mem::take(kept))
        });
        drop((outbound, of_inbound));
    }

    /// Returns true if a post copies its bytes to the peer's memory before it returns: the fabric takes sources of any
    /// length inline.
    #[inline]
    pub(in crate::rpc) fn copies_at_post(&self) -> bool {
        self.inline_bytes_max == usize::MAX
    }

    /// Returns the peer; `None` for the link from a node to itself.
    #[inline]
    pub(in crate::rpc) fn peer(&self) -> Option<PeerId> {
        match self.target {
            Target::Own => None,
            Target::Peer(peer) => Some(peer),
        }
    }
}
