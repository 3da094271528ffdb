//! What this node keeps for calls from and to one peer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};

use halite_fabric::{Key, Lines, PeerId, RemoteAddress};
use halite_mem::Window;
use halite_tier::ids::{NodeId, Principal};
use halite_tier::rpc::line::PRINCIPALS_MAX;
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{
    CallControl, LineReader, LineWriter, RingReader, RingWriter, Served, SlotId, Target, Violation,
};

use super::memory::Block;
use super::reply_rows::RowRef;
use crate::runtime::locks::ranked;

ranked! {
    Option<Outbound> => Outbound;
    Inbound => Inbound;
}

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
    /// What is known of the peer's calls.
    pub(crate) served: Served,
    /// How far its short requests have been read.
    pub(super) reader: LineReader,
    /// Where short answers go, and all answers to short requests end.
    pub(super) replies: RowRef,
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
    pub(crate) at: RemoteAddress,
    /// Where the peer tells how far it has read.
    pub(crate) head: Window,
    /// How many requests and cancels have gone there, which lines tell.
    pub(super) posted_before: u16,
    /// Principals whose names the peer has been told with their numbers.
    pub(super) introduced: Introduced,
    /// Short requests; `None` where stores do not reach the peer.
    pub(super) lines: Option<OutboundLines>,
}

/// Where our short requests go, and the slots whose answers come by line.
#[derive(Debug)]
pub(crate) struct OutboundLines {
    pub(super) writer: LineWriter,
    pub(super) row: Row,
    /// In the name of whom slots are lent; of no other link, ever.
    pub(super) borrower: u32,
    pub(super) slots: Vec<u16>,
    /// The place behind the one that was taken last.
    pub(super) next: usize,
}

/// A row of lines at the peer.
#[derive(Debug)]
pub(crate) struct Row {
    pub(super) at: RemoteAddress,
    /// `None` where it is posted to.
    pub(super) direct: Option<Box<dyn Lines>>,
}

/// Which principals have been told.
#[derive(Default)]
pub(crate) struct Introduced([u64; PRINCIPALS_MAX as usize / 64]);

impl Introduced {
    #[inline]
    pub(super) fn has(&self, principal: u16) -> bool {
        self.0.get(usize::from(principal) / 64).is_some_and(|bits| bits >> (principal % 64) & 1 == 1)
    }

    pub(super) fn add(&mut self, principal: u16) {
        self.0[usize::from(principal) / 64] |= 1 << (principal % 64);
    }
}

impl fmt::Debug for Introduced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: u32 = self.0.iter().map(|bits| bits.count_ones()).sum();
        write!(f, "Introduced({count})")
    }
}

/// What comes from the peer, and what it needs for its answer.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// Where the peer tells how far it has read the ring that we write to.
    pub(crate) head: Option<Block>,
    /// Our ring, into which the peer writes.
    pub(crate) ring: Option<(RingReader, Block)>,
    /// What the peer has told of itself.
    pub(crate) theirs: Option<PeerParameters>,
    /// The same for short requests.
    pub(super) lines: Option<Arc<Block>>,
    /// Who calls, by the numbers that lines have.
    callers: Vec<Option<Arc<Caller>>>,
    /// Outputs that wait for the peer to read them.
    pub(crate) kept: BTreeMap<SlotId, Block>,
    /// Who called last: most requests come from one principal.  It refers to this link, and is forgotten with it.
    caller: Option<Arc<Caller>>,
}

/// What the peer's handshake says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerParameters {
    /// Where we tell the peer how far we have read its requests.
    pub(crate) head: RemoteAddress,
    slots: RemoteAddress,
    slot_bytes: u32,
    slot_count: u32,
    pub(super) lines: RemoteAddress,
    pub(super) replies: RemoteAddress,
}

/// What a link has of its node's memory.
pub(crate) struct LinkMemory {
    pub(super) ring: (RingReader, Block),
    pub(super) head: Block,
    pub(super) lines: Block,
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
        memory: Option<LinkMemory>,
        drops: DropCount,
    ) -> Link {
        let (ring, head, lines) = match memory {
            Some(LinkMemory { ring, head, lines }) => (Some(ring), Some(head), Some(Arc::new(lines))),
            None => (None, None, None),
        };
        Link {
            node,
            target,
            inline_bytes_max,
            outbound: Mutex::default(),
            inbound: Mutex::new(Inbound {
                head,
                ring,
                theirs: None,
                lines,
                callers: Vec::new(),
                kept: BTreeMap::new(),
                caller: None,
            }),
            served: Served::default(),
            reader: LineReader::default(),
            replies: RowRef::default(),
            gone: AtomicBool::new(false),
            handshake_sent: AtomicBool::new(false),
            cancels: AtomicU32::new(0),
            drops,
        }
    }

    /// Whether the fabric has taken our handshake: requests come behind it.
    #[inline]
    pub(crate) fn has_sent_handshake(&self) -> bool {
        // Pairs with the Release in set_handshake_sent(): the post is over.
        self.handshake_sent.load(Acquire)
    }

    pub(crate) fn set_handshake_sent(&self) {
        // Pairs with the Acquire in has_sent_handshake().
        self.handshake_sent.store(true, Release);
    }

    /// Whether the peer is down: nothing need be done for it any more.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        // A hint that saves work; what must not happen after the end is kept from it by the locks.
        self.gone.load(Relaxed)
    }

    /// How many calls the peer has cancelled: while there are no more, each that was open is so still.
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

    /// A request of the peer's is not wanted any more, and does not look so.
    pub(crate) fn note_loss(&self) {
        self.drops.add();
    }

    #[inline]
    pub(crate) fn drops(&self) -> &DropCount {
        &self.drops
    }

    /// No more requests are read: nobody calls any more.
    pub(crate) fn forget_caller(&self) {
        // After a panic it may stay.
        if let Ok(mut inbound) = self.inbound.lock() {
            inbound.caller = None;
            inbound.callers = Vec::new();
        }
    }

    /// Its node has ended: a reference that is left keeps no memory of it.
    pub(crate) fn forget_all(&self) {
        self.forget_caller();
        // After a panic they may stay.
        let outbound = self.outbound.lock().ok().and_then(|mut outbound| outbound.take());
        let of_inbound = self.inbound.lock().ok().map(|mut inbound| {
            let Inbound { ring, head, lines, kept, .. } = &mut *inbound;
            (ring.take(), head.take(), lines.take(), std::mem::take(kept))
        });
        drop((outbound, of_inbound));
    }

    /// Behind which connection it is, unless it is this node's own.
    #[inline]
    pub(super) fn peer(&self) -> Option<PeerId> {
        match self.target {
            Target::Own => None,
            Target::Peer(peer) => Some(peer),
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

    /// From now on a number stands for `caller`.
    pub(super) fn introduce(&mut self, principal: u16, caller: &Arc<Caller>) -> Result<(), Violation> {
        let place = usize::from(principal);
        if self.callers.len() <= place {
            self.callers.resize(place + 1, None);
        }
        match &self.callers[place] {
            Some(known) if known.principal != caller.principal => {
                Err(Violation("a number for two principals"))
            }
            // Who polls may remember whom it stands for.
            Some(_) => Ok(()),
            None => {
                self.callers[place] = Some(caller.clone());
                Ok(())
            }
        }
    }

    /// For whom a number stands.
    #[inline]
    pub(super) fn introduced(&self, principal: u16) -> Option<&Arc<Caller>> {
        self.callers.get(usize::from(principal))?.as_ref()
    }

    /// All of them, by their numbers.
    pub(super) fn all_introduced(&self) -> &[Option<Arc<Caller>>] {
        &self.callers
    }

    /// What the peer should be told of how far its requests have been read, and where.
    pub(crate) fn poll_head(&mut self) -> Option<(RemoteAddress, u64)> {
        let (reader, _) = self.ring.as_mut()?;
        reader.poll_head()?;
        self.told_head()
    }

    /// What it should have been told last, and where.
    pub(crate) fn told_head(&self) -> Option<(RemoteAddress, u64)> {
        let (reader, _) = self.ring.as_ref()?;
        self.theirs.map(|theirs| (theirs.head, reader.told()))
    }

    /// The same of its lines, which `reader` reads.
    pub(super) fn told_line_head(&self, reader: &LineReader) -> Option<(RemoteAddress, u64)> {
        self.lines.as_ref()?;
        let at = self.theirs?.head;
        Some((RemoteAddress { offset: at.offset + LINE_HEAD_OFFSET, ..at }, reader.told()))
    }
}

/// Where the head of the lines is, behind that of the ring.
pub(super) const LINE_HEAD_OFFSET: u64 = 8;

impl PeerParameters {
    /// Understands a [`CallControl::Handshake`].
    pub(crate) fn parse(control: &CallControl) -> Option<PeerParameters> {
        match *control {
            CallControl::Handshake {
                head_key,
                head_offset,
                slots_key,
                slots_offset,
                slot_bytes,
                slots,
                lines_key,
                lines_offset,
                replies_key,
                replies_offset,
                ..
            } => Some(PeerParameters {
                head: RemoteAddress { key: Key(head_key), offset: head_offset },
                slots: RemoteAddress { key: Key(slots_key), offset: slots_offset },
                slot_bytes,
                slot_count: slots,
                lines: RemoteAddress { key: Key(lines_key), offset: lines_offset },
                replies: RemoteAddress { key: Key(replies_key), offset: replies_offset },
            }),
            _ => None,
        }
    }

    /// How many default slots there are.
    pub(super) fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// The default slot, and how many bytes fit there.
    pub(crate) fn slot(&self, id: SlotId) -> Result<(RemoteAddress, u32), Violation> {
        let index = u32::from(id.index);
        if index >= self.slot_count || (self.slot_bytes as usize) < REPLY_HEADER_BYTES {
            return Err(Violation("a slot without a place"));
        }
        let offset = u64::from(index) * u64::from(self.slot_bytes);
        let offset = self.slots.offset.checked_add(offset).ok_or(Violation("a slot nowhere"))?;
        Ok((RemoteAddress { key: self.slots.key, offset }, self.slot_bytes))
    }
}
