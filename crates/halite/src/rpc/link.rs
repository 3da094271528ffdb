//! What this node keeps for calls from and to one peer.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};

use halite_fabric::Key;
use halite_mem::Window;
use halite_tier::ids::{NodeId, Principal};
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{Address, Note, RingReader, RingWriter, Served, SlotId, Target, Violation};

use super::memory::Block;

/// A peer, or this node itself as its own.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) node: NodeId,
    pub(crate) target: Target,
    /// Longest source that is posted inline, in bytes.
    pub(crate) inline_bytes_max: usize,
    /// The peer's ring, into which we write; `None` until it has told us where that is.
    pub(crate) outbound: Mutex<Option<Outbound>>,
    pub(crate) inbound: Mutex<Inbound>,
    gone: AtomicBool,
    handshake_sent: AtomicBool,
    /// How many calls the peer has cancelled.
    cancels: AtomicU32,
    drops: DropCount,
}

/// How often requests came to be unwanted, one by one or with their whole peer; of all links of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct DropCount(Arc<AtomicU64>);

impl DropCount {
    fn add(&self) {
        // Pairs with the Acquire in count(): who sees the count sees that they are unwanted.
        self.0.fetch_add(1, Release);
    }

    pub(crate) fn count(&self) -> u64 {
        // Pairs with the Release in add().
        self.0.load(Acquire)
    }
}

/// Who calls, and through which link.  Shared by all requests of theirs, which thus count one reference each.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) link: Arc<Link>,
    pub(crate) principal: Principal,
}

/// Where our requests go.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) ring: RingWriter,
    pub(crate) at: Address,
    /// Where the peer tells how far it has read.
    pub(crate) head: Window,
}

/// What comes from the peer, and what it needs for its answer.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) served: Served,
    /// Where the peer tells how far it has read the ring that we write to.
    pub(crate) head: Option<Block>,
    /// Our ring, into which the peer writes.
    pub(crate) ring: Option<(RingReader, Block)>,
    /// What the peer has told of itself.
    pub(crate) theirs: Option<PeerParameters>,
    /// Outputs that wait for the peer to read them.
    pub(crate) kept: BTreeMap<SlotId, Block>,
    /// Who called last: most requests come from one principal.  It refers to this link, and is forgotten with it.
    caller: Option<Arc<Caller>>,
}

/// What the peer's first note says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerParameters {
    /// Where we tell the peer how far we have read its requests.
    pub(crate) head: Address,
    slots: Address,
    slot_bytes: u32,
    slot_count: u32,
}

impl Link {
    /// The one of a node to itself.
    pub(crate) fn own(node: NodeId) -> Link {
        Link::new(node, Target::Own, 0, None, DropCount::default())
    }

    pub(crate) fn new(
        node: NodeId,
        target: Target,
        inline_bytes_max: usize,
        memory: Option<((RingReader, Block), Block)>,
        drops: DropCount,
    ) -> Link {
        let (ring, head) = memory.unzip();
        Link {
            node,
            target,
            inline_bytes_max,
            outbound: Mutex::default(),
            inbound: Mutex::new(Inbound {
                served: Served::default(),
                head,
                ring,
                theirs: None,
                kept: BTreeMap::new(),
                caller: None,
            }),
            gone: AtomicBool::new(false),
            handshake_sent: AtomicBool::new(false),
            cancels: AtomicU32::new(0),
            drops,
        }
    }

    /// Whether the fabric has taken our handshake: requests come behind it.
    pub(crate) fn has_sent_handshake(&self) -> bool {
        // Pairs with the Release in set_handshake_sent(): the post is over.
        self.handshake_sent.load(Acquire)
    }

    pub(crate) fn set_handshake_sent(&self) {
        // Pairs with the Acquire in has_sent_handshake().
        self.handshake_sent.store(true, Release);
    }

    /// Whether the peer is down: nothing need be done for it any more.
    pub(crate) fn is_gone(&self) -> bool {
        // A hint that saves work; what must not happen after the end is kept from it by the locks.
        self.gone.load(Relaxed)
    }

    /// How many calls the peer has cancelled: while there are no more, each that was open is so still.
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

    /// A request of the peer's is not wanted any more, and does not look so.
    pub(crate) fn note_loss(&self) {
        self.drops.add();
    }

    pub(crate) fn drops(&self) -> &DropCount {
        &self.drops
    }

    /// No more requests are read: nobody calls any more.
    pub(crate) fn forget_caller(&self) {
        // After a panic it may stay.
        if let Ok(mut inbound) = self.inbound.lock() {
            inbound.caller = None;
        }
    }
}

impl Inbound {
    /// The principal of that name at the other end of `link`, whose inbound side this is.
    pub(crate) fn caller(&mut self, link: &Arc<Link>, name: &[u8]) -> Result<Arc<Caller>, Violation> {
        match &self.caller {
            Some(caller) if caller.principal.0.as_bytes() == name => Ok(caller.clone()),
            _ => {
                let name = std::str::from_utf8(name).map_err(|_| Violation("a name that is no text"))?;
                let caller = Arc::new(Caller { link: link.clone(), principal: Principal(name.into()) });
                Ok(self.caller.insert(caller).clone())
            }
        }
    }

    /// What the peer should be told of how far its requests have been read, and where.
    pub(crate) fn poll_head(&mut self) -> Option<(Address, u64)> {
        let (reader, _) = self.ring.as_mut()?;
        reader.poll_head()?;
        self.told_head()
    }

    /// What it should have been told last, and where.
    pub(crate) fn told_head(&self) -> Option<(Address, u64)> {
        let (reader, _) = self.ring.as_ref()?;
        self.theirs.map(|theirs| (theirs.head, reader.told()))
    }
}

impl PeerParameters {
    /// Understands a [`Note::Open`].
    pub(crate) fn parse(note: &Note) -> Option<PeerParameters> {
        match *note {
            Note::Open { head_key, head_offset, slots_key, slots_offset, slot_bytes, slots, .. } => {
                Some(PeerParameters {
                    head: Address { key: Key(head_key), offset: head_offset },
                    slots: Address { key: Key(slots_key), offset: slots_offset },
                    slot_bytes,
                    slot_count: slots,
                })
            }
            _ => None,
        }
    }

    /// The default slot, and how many bytes fit there.
    pub(crate) fn slot(&self, id: SlotId) -> Result<(Address, u32), Violation> {
        let index = u32::from(id.index);
        if index >= self.slot_count || (self.slot_bytes as usize) < REPLY_HEADER_BYTES {
            return Err(Violation("a slot without a place"));
        }
        let offset = u64::from(index) * u64::from(self.slot_bytes);
        let offset = self.slots.offset.checked_add(offset).ok_or(Violation("a slot nowhere"))?;
        Ok((Address { key: self.slots.key, offset }, self.slot_bytes))
    }
}
