//! Calls and messages: the node's side, between sessions and the fabric.
//!
//! ```text
//!   caller ── request ──> ring at the server ── imm ──> whoever polls ──> queue of the function ──> handler
//!     ^                                                                                                │
//!     └── slot <── imm ── whoever polls <───────────────────────── reply into the caller's slot ───────┘
//! ```
//!
//! Immediates are handled by whoever polls, without the machine's lock; a handler never runs there.  What is rare (notes,
//! answers that did not fit into a queue, deadlines) waits for the machine to settle.  Locks are taken in this order,
//! each briefly: a service, a link's outbound, a link's inbound, the slots or what is held back; the fabric's own come last.

mod answer;
mod arrivals;
mod atomics;
mod call;
mod error;
mod fetch;
mod input;
mod lent;
mod link;
mod memory;
mod pending;
mod port;
mod replies;
mod request;
mod row;
mod server;
mod service;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use halite_fabric::{Fabric, Operation, PeerId, PostCause, WorkId, WorkRequest};
use halite_tier::ids::NodeId;
use halite_tier::rpc::wire::NOTE_IMM;
use halite_tier::rpc::{Note, ReplySlots, RingReader, Target};

use self::answer::Owed;
use self::atomics::Atomics;
use self::link::{Link, Losses};
use self::memory::{Block, Pool};
use self::service::Services;
use crate::posted::Posted;
use crate::wait::{Wakes, lock};

pub(crate) use self::arrivals::Intake;
pub(crate) use self::call::Calling;
pub use self::error::{
    CallCause, CallError, ReplyCause, ReplyError, SendCause, SendError, ServeCause, ServeError,
};
pub use self::lent::Answer;
pub use self::pending::PendingCall;
pub use self::port::{Mailbox, Message, Port};
pub(crate) use self::request::Into;
pub use self::server::{Call, Function, Server};
pub use self::service::ServeOptions;

/// The number of work requests whose completions say nothing.
pub(crate) const CALL_WORK: WorkId = WorkId(0);
/// Requests and replies up to this length are put together and posted in one piece.
pub(crate) const PART_BYTES_MAX: usize = 512;
/// Slots in the usual place: as many calls may be under way before each needs memory of its own.
const USUAL_SLOTS: u16 = 1024;
/// Bytes of a slot in the usual place: a page and a cache line, so that slots do not all compete for the same lines of
/// a cache.
const USUAL_SLOT_BYTES: u64 = 4096 + 64;
/// Most calls under way.
const SLOTS_MAX: usize = 1 << 16;
/// How much of a request is looked at first: header, name and input of a small one.
const FIRST_LOOK_BYTES: usize = 64;

/// What a slot holds while it is in use.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Where the reply goes, if not to the usual place.
    reply: Option<Block>,
    /// The input, if it is read by the server.
    input: Option<Block>,
    /// The port, if the request is a message.
    port: Option<u32>,
}

/// See the header of this file.
pub(crate) struct Rpc {
    fabric: Arc<dyn Fabric>,
    posted: Arc<Posted>,
    pool: Arc<Pool>,
    ring_bytes: u64,
    own: Arc<Link>,
    losses: Losses,
    /// The usual places of our slots.
    usual: Block,
    slots: Mutex<ReplySlots<Held>>,
    /// How many replies have arrived.
    arrivals: AtomicU64,
    routes: RwLock<Routes>,
    owed: Mutex<Vec<Owed>>,
    atomics: Atomics,
    /// Peers whose head the fabric did not take yet.
    heads: Mutex<BTreeSet<PeerId>>,
    /// Introductions that the fabric did not take yet.
    introductions: Mutex<Vec<(PeerId, Note)>>,
    notes: Mutex<Vec<(PeerId, Note)>>,
    /// The machine should settle.
    dirty: AtomicBool,
    /// Something may be owed, or a head or an introduction be held back.
    stuck: AtomicBool,
    /// Somebody waits for room in a ring.
    hungry: AtomicBool,
    /// Somebody waits for memory.
    short: AtomicBool,
}

/// Which way requests go.
#[derive(Debug, Default)]
struct Routes {
    by_node: BTreeMap<NodeId, Arc<Link>>,
    by_peer: BTreeMap<PeerId, Arc<Link>>,
    /// Of peers that are gone but may still write to our memory.
    fading: BTreeMap<PeerId, Arc<Link>>,
    services: Services,
}

impl Rpc {
    /// `None` if the system has no memory for the slots.
    pub(crate) fn new(
        fabric: Arc<dyn Fabric>,
        posted: Arc<Posted>,
        node: NodeId,
        ring_bytes: u64,
    ) -> Option<Rpc> {
        let pool = Arc::new(Pool::default());
        let usual = pool.allocate(&*fabric, u64::from(USUAL_SLOTS) * USUAL_SLOT_BYTES)?;
        let losses = Losses::default();
        let own = Arc::new(Link::new(node, Target::Own, 0, None, losses.clone()));
        let routes = Routes { by_node: [(node, own.clone())].into(), ..Routes::default() };
        Some(Rpc {
            fabric,
            posted,
            pool,
            ring_bytes,
            own,
            losses,
            usual,
            slots: Mutex::new(ReplySlots::new(usize::from(USUAL_SLOTS), SLOTS_MAX)),
            arrivals: AtomicU64::new(0),
            routes: RwLock::new(routes),
            owed: Mutex::default(),
            atomics: Atomics::default(),
            heads: Mutex::default(),
            introductions: Mutex::default(),
            notes: Mutex::default(),
            dirty: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            hungry: AtomicBool::new(false),
            short: AtomicBool::new(false),
        })
    }

    // Peers come and go.

    /// A peer is connected: makes a ring for it, and a place for its head.  What it is to be told is noted.
    pub(crate) fn handle_connected(&self, peer: PeerId, node: NodeId) {
        self.atomics.handle_connected(peer);
        let ring = self.pool.allocate(&*self.fabric, self.ring_bytes);
        let head = self.pool.allocate(&*self.fabric, HEAD_BYTES);
        // Without memory for them, calls to and from this peer are overdue in the end.
        let (Some(ring), Some(head)) = (ring, head) else { return };
        head.window().store_u64(0, 0).expect("blocks are aligned");
        let introduction = self.introduction(&ring, &head);
        let reader = RingReader::new(self.ring_bytes);
        let losses = self.losses.clone();
        let inline_bytes_max = self.fabric.capabilities(peer).inline_bytes_max;
        let memory = Some(((reader, ring), head));
        let link = Arc::new(Link::new(node, Target::Peer(peer), inline_bytes_max, memory, losses));
        let mut routes = self.routes_mut();
        routes.by_node.insert(node, link.clone());
        routes.by_peer.insert(peer, link.clone());
        drop(routes);
        self.introduce(peer, &link, introduction);
    }

    /// Tells a peer what it needs, in front of all requests and of all that the outbox holds for it.
    fn introduce(&self, peer: PeerId, link: &Link, note: Note) {
        let operation = Operation::Send { bytes: &note.emit(), imm: NOTE_IMM };
        match self.post(peer, &[WorkRequest { id: CALL_WORK, operation, signalled: false, solicited: true }])
        {
            Err(PostCause::QueueFull) => {
                lock(&self.introductions).push((peer, note));
                self.set_stuck();
            }
            // A peer that is gone needs none.
            _ => link.set_introduced(),
        }
    }

    /// Tries again to post what the fabric did not take.
    pub(crate) fn retry(&self) {
        // Before what is held back is taken: whatever is held back from then on sets it again.
        self.stuck.store(false, Relaxed);
        // Taken before the loops, whose heads would hold the locks while they run.
        let introductions = std::mem::take(&mut *lock(&self.introductions));
        let heads = std::mem::take(&mut *lock(&self.heads));
        for (peer, note) in introductions {
            let link = self.routes().by_peer.get(&peer).cloned();
            if let Some(link) = link {
                self.introduce(peer, &link, note);
            }
        }
        for peer in heads {
            let link = self.routes().by_peer.get(&peer).cloned();
            if let Some(link) = link {
                let inbound = lock(&link.inbound);
                if let Some(head) = inbound.told_head() {
                    self.return_head(peer, head);
                }
            }
        }
        self.retry_owed();
        self.retry_atomics();
    }

    fn introduction(&self, ring: &Block, head: &Block) -> Note {
        let (ring_at, head_at, slots_at) = (ring.address(), head.address(), self.usual.address());
        Note::Open {
            ring_key: ring_at.key.0,
            ring_offset: ring_at.offset,
            ring_bytes: ring.len(),
            head_key: head_at.key.0,
            head_offset: head_at.offset,
            slots_key: slots_at.key.0,
            slots_offset: slots_at.offset,
            slot_bytes: USUAL_SLOT_BYTES as u32,
            slots: u32::from(USUAL_SLOTS),
        }
    }

    /// A peer is gone, but may still write to our memory.
    pub(crate) fn handle_disconnected(&self, peer: PeerId, wakes: &mut Wakes) {
        self.atomics.handle_disconnected(peer);
        self.posted.handle_disconnected(peer, wakes);
        let mut routes = self.routes_mut();
        let Some(link) = routes.by_peer.remove(&peer) else { return };
        if routes.by_node.get(&link.node).is_some_and(|known| Arc::ptr_eq(known, &link)) {
            routes.by_node.remove(&link.node);
        }
        routes.fading.insert(peer, link.clone());
        let services: Vec<_> = routes.services.all().cloned().collect();
        drop(routes);
        link.set_gone();
        lock(&link.inbound).forget_caller();
        *lock(&link.outbound) = None;
        {
            let mut slots = lock(&self.slots);
            wakes.extend(slots.handle_down(peer));
            self.arrived(&slots);
        }
        for service in services {
            self.grant(&service, service.handle_down(Target::Peer(peer)), wakes);
        }
    }

    /// A peer can touch nothing of ours any more.
    pub(crate) fn handle_cut_off(&self, peer: PeerId) {
        self.atomics.handle_disconnected(peer);
        let held = lock(&self.slots).handle_cut_off(peer);
        drop(held);
        let link = self.routes_mut().fading.remove(&peer);
        if let Some(link) = link {
            let mut inbound = lock(&link.inbound);
            let given_up = (inbound.ring.take(), inbound.head.take(), std::mem::take(&mut inbound.kept));
            drop(inbound);
            drop(given_up);
        }
    }

    /// The link to a node, once both ends can write to each other.
    pub(crate) fn link_to(&self, node: NodeId) -> Option<Arc<Link>> {
        self.routes().by_node.get(&node).cloned()
    }

    /// What is under way from and to a node: slots in use for its replies, and our own answers that it has not read yet.
    pub(crate) fn under_way(&self, node: NodeId) -> (usize, usize) {
        let Some(link) = self.link_to(node) else { return (0, 0) };
        // One lock after the other: both at once would be taken in the wrong order.
        let calls = lock(&self.slots).in_use(link.target);
        let answers = lock(&link.inbound).kept.len();
        (calls, answers)
    }

    /// Not to be asked for again by a thread that has it: a writer in between would wait for the first, and the second
    /// for the writer.
    fn routes(&self) -> RwLockReadGuard<'_, Routes> {
        self.routes.read().expect(POISONED)
    }

    fn routes_mut(&self) -> RwLockWriteGuard<'_, Routes> {
        self.routes.write().expect(POISONED)
    }

    // Time, and the end.

    /// When some call may be overdue.
    pub(crate) fn next_deadline_ns(&self) -> u64 {
        lock(&self.slots).next_deadline_ns()
    }

    /// Time has passed.
    pub(crate) fn handle_time(&self, now_ns: u64, wakes: &mut Wakes) {
        wakes.extend(lock(&self.slots).handle_time(now_ns));
    }

    /// Whether something may wait until the fabric takes it.
    pub(crate) fn is_stuck(&self) -> bool {
        // A hint: whoever sets it makes the machine settle, which looks again.
        self.stuck.load(Relaxed)
    }

    fn set_stuck(&self) {
        self.stuck.store(true, Relaxed);
        self.set_dirty();
    }

    /// Somebody waits for room in a ring.
    pub(crate) fn set_hungry(&self) {
        self.hungry.store(true, Relaxed);
    }

    /// Whether somebody waits for room in a ring; from now on only those who do later count.
    pub(crate) fn take_hungry(&self) -> bool {
        // The lock of what room was made in orders this: who waits sets it before looking there.
        self.hungry.load(Relaxed) && self.hungry.swap(false, Relaxed)
    }

    /// There is no memory for what is to be posted.  Nothing tells when there is: it is tried again in a while.
    pub(crate) fn set_short(&self) {
        self.short.store(true, Relaxed);
        self.set_dirty();
    }

    /// Whether somebody waits for memory.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Relaxed)
    }

    /// Those who wait for memory try again.
    pub(crate) fn end_shortage(&self) {
        self.short.store(false, Relaxed);
    }

    /// The node ends: so does all waiting.
    pub(crate) fn close(&self, wakes: &mut Wakes) {
        {
            let mut slots = lock(&self.slots);
            wakes.extend(slots.close());
            self.arrived(&slots);
        }
        let services: Vec<_> = self.routes().services.all().cloned().collect();
        for service in services {
            if let Some(ended) = service.close() {
                wakes.extend(ended.wakers);
            }
        }
    }

    // Notes.

    fn note(&self, peer: PeerId, note: Note) {
        lock(&self.notes).push((peer, note));
        self.set_dirty();
    }

    /// What is to be said to whom.
    pub(crate) fn take_notes(&self) -> Vec<(PeerId, Note)> {
        std::mem::take(&mut *lock(&self.notes))
    }

    fn set_dirty(&self) {
        // Pairs with the AcqRel in take_dirty().
        self.dirty.store(true, Release);
    }

    /// Whether the machine should settle.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Relaxed)
    }

    /// As [`Rpc::is_dirty`]; from now on only what happens after this counts.
    pub(crate) fn take_dirty(&self) -> bool {
        // Pairs with the Release in set_dirty(): what made it dirty is seen.
        self.is_dirty() && self.dirty.swap(false, AcqRel)
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        // The links of peers that are still there refer to themselves.  After a panic they may stay.
        let routes = self.routes.get_mut().unwrap_or_else(PoisonError::into_inner);
        for link in routes.by_node.values().chain(routes.by_peer.values()) {
            if let Ok(mut inbound) = link.inbound.lock() {
                inbound.forget_caller();
            }
        }
    }
}

/// A head word has a cache line of its own.
const HEAD_BYTES: u64 = 64;

const POISONED: &str = "a thread panicked inside the node";

#[cfg(all(test, not(loom)))]
mod tests {
    use halite_providers::{ShmConfig, ShmFabric};

    use super::*;

    #[test]
    fn a_link_that_was_called_through_does_not_outlive_its_node() {
        let dir = std::env::temp_dir().join(format!("halite-rpc-links-{}", std::process::id()));
        let fabric = ShmFabric::open(ShmConfig::new(&dir, "one")).unwrap();
        let posted = Arc::new(Posted::new(1));
        let rpc = Rpc::new(fabric.clone(), posted, NodeId(0), 1 << 16).unwrap();
        // Of a peer that is still there when the node ends, and of the node itself.
        rpc.handle_connected(PeerId(7), NodeId(1));
        let links = [rpc.link_to(NodeId(0)).unwrap(), rpc.link_to(NodeId(1)).unwrap()];
        let links = links.map(|link| {
            lock(&link.inbound).caller(&link, b"ada").unwrap();
            Arc::downgrade(&link)
        });
        drop(rpc);
        assert!(links.iter().all(|link| link.upgrade().is_none()));
        drop(fabric);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
