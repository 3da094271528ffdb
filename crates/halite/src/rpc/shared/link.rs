//! The link to a peer: what this node keeps for calls from and to it.

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

/// The link to one peer, or of this node to itself.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) node: NodeId,
    pub(crate) target: Target,
    /// Longest source that is posted inline, in bytes.
    pub(crate) inline_bytes_max: usize,
    /// Where requests to the peer go; `None` until its handshake has arrived.
    pub(crate) outbound: Mutex<Option<Outbound>>,
    pub(crate) inbound: Mutex<Inbound>,
    /// The peer's calls that are open at this node.
    pub(crate) served: Served,
    /// How far its short requests have been read.
    pub(in crate::rpc) reader: LineReader,
    /// The peer's row of reply lines, where answers to its short requests end.
    pub(in crate::rpc) replies: RowRef,
    gone: AtomicBool,
    handshake_sent: AtomicBool,
    /// Number of calls that the peer has cancelled.
    cancels: AtomicU32,
    drops: DropCount,
}

/// Counts the requests of all links of a node that became unwanted, one by one or with their whole peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct DropCount(Arc<AtomicU64>);

impl DropCount {
    fn add(&self) {
        // Pairs with the Acquire in count(): a thread that sees the count sees that they are unwanted.
        self.0.fetch_add(1, Release);
    }

    pub(crate) fn count(&self) -> u64 {
        // Pairs with the Release in add().
        self.0.load(Acquire)
    }
}

/// The memory of a link.
pub(crate) struct LinkMemory {
    pub(in crate::rpc) ring: (RingReader, Block),
    pub(in crate::rpc) head: Block,
    pub(in crate::rpc) lines: Block,
}

impl Link {
    /// The link of a node to itself.
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

    /// Returns true once the fabric has taken this node's handshake: requests are posted behind it.
    #[inline]
    pub(crate) fn has_sent_handshake(&self) -> bool {
        // Pairs with the Release in set_handshake_sent(): the post is over.
        self.handshake_sent.load(Acquire)
    }

    pub(crate) fn set_handshake_sent(&self) {
        // Pairs with the Acquire in has_sent_handshake().
        self.handshake_sent.store(true, Release);
    }

    /// Returns true if the peer is down: then nothing need be done for it.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        // A hint that saves work.  The locks prevent what must not happen after the end.
        self.gone.load(Relaxed)
    }

    /// Number of calls that the peer has cancelled: while it stays the same, each call that was open still is.
    #[inline]
    pub(crate) fn cancels(&self) -> u32 {
        // A hint: a call that is cancelled at this moment may be handed to its handler all the same.
        self.cancels.load(Relaxed)
    }

    pub(crate) fn note_cancel(&self) {
        self.cancels.fetch_add(1, Relaxed);
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Relaxed);
        self.drops.add();
    }

    /// A request of the peer has become unwanted, which its queue cannot see by itself.
    pub(crate) fn note_loss(&self) {
        self.drops.add();
    }

    #[inline]
    pub(crate) fn drops(&self) -> &DropCount {
        &self.drops
    }

    /// Drops the callers, which refer to the link: no more requests are read.
    pub(crate) fn forget_caller(&self) {
        // After a panic it may leak.
        if let Ok(mut inbound) = self.inbound.lock() {
            inbound.forget_callers();
        }
    }

    /// The node has ended: releases its memory, for references to the link may be left.
    pub(crate) fn forget_all(&self) {
        self.forget_caller();
        // After a panic they may leak.
        let outbound = self.outbound.lock().ok().and_then(|mut outbound| outbound.take());
        let of_inbound = self.inbound.lock().ok().map(|mut inbound| {
            let Inbound { ring, head, lines, kept, .. } = &mut *inbound;
            (ring.take(), head.take(), lines.take(), std::mem::take(kept))
        });
        drop((outbound, of_inbound));
    }

    /// The peer; `None` for the link of a node to itself.
    #[inline]
    pub(in crate::rpc) fn peer(&self) -> Option<PeerId> {
        match self.target {
            Target::Own => None,
            Target::Peer(peer) => Some(peer),
        }
    }
}
