//! Calls and messages: the node's side, between sessions and the fabric.
//!
//! ```text
//!   caller ── request ──> ring at the server ── imm ──> polling thread ──> queue of the function ──> handler
//!     ^                                                                                                │
//!     └── slot <── imm ── polling thread <──────────────────────── reply into the caller's slot ───────┘
//! ```
//!
//! Immediates are handled by the polling thread, without the runner's lock; a handler never runs there.  What is rare (control messages,
//! answers that did not fit into a queue, deadlines) waits for the runner to settle.  Locks are held briefly, and taken in
//! the order of [`crate::runtime::locks`]: a service, a link's outbound, a link's inbound, the slots or what is held back; the fabric's own come last.
//!
//! It calls [`crate::posted`], [`crate::metrics`], [`crate::runtime`] and the fabric.  Nothing here waits: callers and servers wait through `driver::requests`, and
//! `session::calls` hands them what belongs to a session.

mod answer;
mod arrivals;
mod atomics;
mod batch;
mod input;
mod lent;
mod line_replies;
mod line_requests;
mod link;
mod memory;
pub(crate) mod peers;
mod replies;
mod reply_lines;
mod reply_rows;
mod request;
mod service;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::{Arc, Mutex};

use halite_fabric::{Fabric, Operation, PeerId, PostCause, WorkId, WorkRequest};
use halite_mem::Pins;
use halite_tier::ids::{NodeId, Principal};
use halite_tier::rpc::line::PRINCIPALS_MAX;
use halite_tier::rpc::wire::CONTROL_IMM;
use halite_tier::rpc::{CallControl, ReplySlots, RingReader, Target};

use self::answer::DeferredReply;
use self::line_requests::REQUEST_LINES_BYTES;
use self::link::{LINE_HEAD_OFFSET, LinkMemory};
use self::memory::{Block, Pool};
use self::peers::Peers;
use self::reply_lines::{REPLY_LINES_BYTES, ReplyLines};
use self::reply_rows::ReplyRows;
use crate::metrics::ServiceFigures;
use crate::posted::InFlight;
use crate::runtime::locks::{lock, ranked};
use crate::runtime::wait::Wakes;

pub(crate) use self::answer::{Answered, ReplyTo};

pub(crate) use self::batch::BATCH_MAX;
pub(crate) use self::input::{Bytes, Payload};
pub(crate) use self::lent::Lent;
pub(crate) use self::line_requests::ReceiveBatch;
pub(crate) use self::link::Link;
pub(crate) use self::request::{Into, NotPosted, Posted, Reply, Request};
pub use self::service::ServeOptions;
pub(crate) use self::service::{Closed, Ended, Hand, Incoming, Service, ServiceId, Services, Taken};

/// The number of work requests whose completions say nothing.
pub(crate) const CALL_WORK: WorkId = WorkId(0);
/// Requests and replies up to this length are put together and posted in one piece.
pub(crate) const PART_BYTES_MAX: usize = 512;
/// Default slots: as many calls may be under way before each needs memory of its own.
const DEFAULT_SLOTS: u16 = 1024;
/// Bytes of a default slot: a page and a cache line, so that slots do not all compete for the same lines of
/// a cache.
const DEFAULT_SLOT_BYTES: u64 = 4096 + 64;
/// Most calls under way.
const SLOTS_MAX: usize = 1 << 16;
/// How much of a request is looked at first: header, name and input of a small one.
const FIRST_LOOK_BYTES: usize = 64;

/// What a slot holds while it is in use.
#[derive(Debug, Default)]
pub(crate) struct SlotResources {
    /// Where the reply goes, if not to the default slot.
    reply: Option<Block>,
    /// The input, if it is read by the server.
    input: Option<Block>,
    /// The port, if the request is a message.
    port: Option<u32>,
    /// Whether the reply comes by line.
    by_line: bool,
}

ranked! {
    ReplySlots<SlotResources> => Slots;
    Vec<(u16, u32)> => Orphans;
    Vec<Principal> => HeldBack;
    Vec<(PeerId, u16)> => HeldBack;
    Vec<DeferredReply> => HeldBack;
    BTreeSet<PeerId> => HeldBack;
    Vec<(PeerId, CallControl)> => HeldBack;
}

/// See the header of this file.
pub(crate) struct Rpc {
    fabric: Arc<dyn Fabric>,
    posted: Arc<InFlight>,
    pool: Arc<Pool>,
    ring_bytes: u64,
    peers: Arc<Peers>,
    /// The default slots.
    default_slots: Block,
    slots: Mutex<ReplySlots<SlotResources>>,
    reply_lines: ReplyLines,
    /// Where answers to short requests go.
    reply_rows: ReplyRows,
    /// Slots that are lent to links that are over.
    orphans: Mutex<Vec<(u16, u32)>>,
    /// How many links have been made that borrow slots.
    borrowers: AtomicU32,
    /// Principals of this node, by their numbers.
    principals: Mutex<Vec<Principal>>,
    /// Callers that are to be told, and could not be yet.
    notices: Mutex<Vec<(PeerId, u16)>>,
    /// How many replies have arrived.
    arrivals: AtomicU64,
    deferred: Mutex<Vec<DeferredReply>>,
    /// Peers whose atomics have answers that the fabric did not take yet.
    late_atomics: Mutex<BTreeSet<PeerId>>,
    /// Peers whose head the fabric did not take yet.
    heads: Mutex<BTreeSet<PeerId>>,
    /// Handshakes that the fabric did not take yet.
    handshakes: Mutex<Vec<(PeerId, CallControl)>>,
    controls: Mutex<Vec<(PeerId, CallControl)>>,
    /// The runner should settle.
    dirty: AtomicBool,
    /// A reply may be deferred, or a head or a handshake be held back.
    stuck: AtomicBool,
    /// Somebody waits for room in a ring.
    ring_waiters: AtomicBool,
    /// Somebody waits for memory.
    short: AtomicBool,
    /// The node is about to leave, and takes no call of others any more.  A hint: who is asked in this moment may still take it.
    draining: AtomicBool,
}

/// Whether something is posted for the first time, or is tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempt {
    First,
    Again,
}

impl Rpc {
    /// `None` if the system has no memory for the slots.
    pub(crate) fn new(
        fabric: Arc<dyn Fabric>,
        posted: Arc<InFlight>,
        peers: Arc<Peers>,
        pins: Arc<Pins>,
        ring_bytes: u64,
    ) -> Option<Rpc> {
        let pool = Arc::new(Pool::default());
        let default_slots = pool.allocate(&*fabric, u64::from(DEFAULT_SLOTS) * DEFAULT_SLOT_BYTES)?;
        let reply_lines = ReplyLines::new(pool.allocate(&*fabric, REPLY_LINES_BYTES)?);
        Some(Rpc {
            fabric,
            posted,
            pool,
            ring_bytes,
            peers,
            default_slots,
            slots: Mutex::new(ReplySlots::new(usize::from(DEFAULT_SLOTS), SLOTS_MAX)),
            reply_lines,
            reply_rows: ReplyRows::new(pins),
            orphans: Mutex::default(),
            borrowers: AtomicU32::new(0),
            principals: Mutex::default(),
            notices: Mutex::default(),
            arrivals: AtomicU64::new(0),
            deferred: Mutex::default(),
            late_atomics: Mutex::default(),
            heads: Mutex::default(),
            handshakes: Mutex::default(),
            controls: Mutex::default(),
            dirty: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            ring_waiters: AtomicBool::new(false),
            short: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        })
    }

    /// Whether calls of others are refused from now on.
    pub(crate) fn set_draining(&self, is_on: bool) {
        self.draining.store(is_on, Relaxed);
    }

    /// The number by which links may know a principal of this node; `None` if there are too many.
    pub(crate) fn number_of(&self, principal: &Principal) -> Option<u16> {
        let mut principals = lock(&self.principals);
        let known = principals.iter().position(|known| known == principal);
        let number = known.unwrap_or(principals.len());
        if number >= usize::from(PRINCIPALS_MAX) {
            return None;
        }
        if known.is_none() {
            principals.push(principal.clone());
        }
        Some(number as u16)
    }

    // Peers come and go.

    /// A peer is about to be up: makes a ring for it, and a place for its head.  `None` without memory for them: then
    /// calls to and from this peer are overdue in the end.
    pub(crate) fn make_link(&self, peer: PeerId, node: NodeId) -> Option<Arc<Link>> {
        let ring = self.pool.allocate(&*self.fabric, self.ring_bytes)?;
        let head = self.pool.allocate(&*self.fabric, HEAD_BYTES)?;
        head.window().store_u64(0, 0).expect("blocks are aligned");
        head.window().store_u64(LINE_HEAD_OFFSET, 0).expect("blocks are aligned");
        let lines = self.pool.allocate(&*self.fabric, REQUEST_LINES_BYTES)?;
        line_requests::clear(&lines);
        let inline_bytes_max = self.fabric.capabilities(peer).inline_bytes_max;
        let memory = Some(LinkMemory { ring: (RingReader::new(self.ring_bytes), ring), head, lines });
        let drops = self.peers.own().drops().clone();
        Some(Arc::new(Link::new(node, Target::Peer(peer), inline_bytes_max, memory, drops)))
    }

    /// A peer is up: it is told what it needs, in front of all requests and of all that the outbox holds for it.
    pub(crate) fn handle_up(&self, peer: PeerId, link: &Link) {
        let handshake = {
            let inbound = lock(&link.inbound);
            let ring = inbound.ring.as_ref().zip(inbound.head.as_ref()).zip(inbound.lines.as_ref());
            ring.map(|(((_, ring), head), lines)| self.handshake(ring, head, lines))
        };
        if let Some(handshake) = handshake {
            self.send_handshake(peer, link, handshake, Attempt::First);
        }
    }

    fn send_handshake(&self, peer: PeerId, link: &Link, control: CallControl, attempt: Attempt) {
        let operation = Operation::Send { bytes: &control.emit(), imm: CONTROL_IMM };
        match self.post(peer, &[WorkRequest { id: CALL_WORK, operation, signalled: false, solicited: true }])
        {
            Err(PostCause::QueueFull) => {
                lock(&self.handshakes).push((peer, control));
                self.set_stuck(attempt);
            }
            // A peer that is gone needs none.
            _ => link.set_handshake_sent(),
        }
    }

    /// Tries again to post what the fabric did not take.  Under the runner's lock.
    pub(crate) fn retry(&self) {
        // Before what is held back is taken: whatever is held back from then on sets it again.
        self.stuck.store(false, Relaxed);
        // Taken before the loops, whose heads would hold the locks while they run.
        let handshakes = std::mem::take(&mut *lock(&self.handshakes));
        let heads = std::mem::take(&mut *lock(&self.heads));
        for (peer, control) in handshakes {
            if let Some(link) = self.peers.link_of(peer) {
                self.send_handshake(peer, &link, control, Attempt::Again);
            }
        }
        for peer in heads {
            if let Some(link) = self.peers.link_of(peer) {
                let inbound = lock(&link.inbound);
                for head in [inbound.told_head(), inbound.told_line_head(&link.reader)].into_iter().flatten()
                {
                    self.return_head(peer, head, Attempt::Again);
                }
            }
        }
        self.retry_deferred();
        self.retry_notices();
        self.retry_atomics();
    }

    fn handshake(&self, ring: &Block, head: &Block, lines: &Block) -> CallControl {
        let (lines_at, replies_at) = (lines.address(), self.reply_lines.address());
        let (ring_at, head_at, slots_at) = (ring.address(), head.address(), self.default_slots.address());
        CallControl::Handshake {
            ring_key: ring_at.key.0,
            ring_offset: ring_at.offset,
            ring_bytes: ring.len(),
            head_key: head_at.key.0,
            head_offset: head_at.offset,
            slots_key: slots_at.key.0,
            slots_offset: slots_at.offset,
            slot_bytes: DEFAULT_SLOT_BYTES as u32,
            slots: u32::from(DEFAULT_SLOTS),
            lines_key: lines_at.key.0,
            lines_offset: lines_at.offset,
            replies_key: replies_at.key.0,
            replies_offset: replies_at.offset,
        }
    }

    /// A peer is down, but may still write to our memory.
    pub(crate) fn handle_down(&self, peer: PeerId, link: &Link, wakes: &mut Wakes) {
        let services: Vec<_> = self.peers.read().services.all().cloned().collect();
        link.set_gone();
        link.forget_caller();
        let outbound = lock(&link.outbound).take();
        self.reply_rows.close(&link.replies);
        if let Some(lines) = outbound.and_then(|outbound| outbound.lines) {
            self.end_lines(lines);
        }
        {
            let mut slots = lock(&self.slots);
            wakes.extend(slots.handle_down(peer));
            self.arrived(&slots);
        }
        for service in services {
            self.follow_promoted(&service, service.handle_down(Target::Peer(peer)), wakes);
        }
    }

    /// A peer can touch nothing of ours any more.
    pub(crate) fn handle_cut_off(&self, peer: PeerId, link: &Link) {
        let held = lock(&self.slots).handle_cut_off(peer);
        drop(held);
        self.reply_rows.close(&link.replies);
        let mut inbound = lock(&link.inbound);
        let given_up = (inbound.ring.take(), inbound.head.take(), inbound.lines.take());
        let kept = std::mem::take(&mut inbound.kept);
        drop(inbound);
        drop((given_up, kept));
    }

    /// What is under way from and to a node: slots in use for its replies, and our own answers that it has not read yet.
    pub(crate) fn under_way(&self, node: NodeId) -> (usize, usize) {
        let Some(link) = self.peers.link_to(node) else { return (0, 0) };
        // One lock after the other: both at once would be taken in the wrong order.
        let borrower =
            lock(&link.outbound).as_ref().and_then(|o| o.lines.as_ref()).map(|lines| lines.borrower);
        let short = borrower.map_or(0, |borrower| self.reply_lines.busy(Some(borrower)));
        let calls = lock(&self.slots).in_use(link.target) + short;
        let answers = lock(&link.inbound).kept.len();
        (calls, answers)
    }

    /// How many slots for replies are in use.
    pub(crate) fn all_under_way(&self) -> usize {
        lock(&self.slots).all_in_use() + self.reply_lines.busy(None)
    }

    /// The functions of this node, and its ports.
    pub(crate) fn services(&self) -> (ServiceFigures, ServiceFigures) {
        let mut found = (ServiceFigures::default(), ServiceFigures::default());
        for service in self.peers.read().services.all() {
            let figures = match service.id {
                ServiceId::Function(_) => &mut found.0,
                ServiceId::Port(_) => &mut found.1,
            };
            figures.services += 1;
            figures.waiting += service.waiting();
        }
        found
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
        // A hint: who sets it makes the runner settle, which looks again.
        self.stuck.load(Relaxed)
    }

    /// What was refused is tried again when the fabric says that there is room.
    fn set_stuck(&self, attempt: Attempt) {
        self.stuck.store(true, Relaxed);
        match attempt {
            // That may have been said already: the runner looks once.
            Attempt::First => self.set_dirty(),
            // The thread that hears it waits for the runner's lock, which is held.
            Attempt::Again => {}
        }
    }

    /// Somebody waits for room in a ring.
    pub(crate) fn set_ring_waiters(&self) {
        self.ring_waiters.store(true, Relaxed);
    }

    /// Whether somebody waits for room in a ring; from now on only those who do later count.
    pub(crate) fn take_ring_waiters(&self) -> bool {
        // The lock of what room was made in orders this: who waits sets it before looking there.
        self.ring_waiters.load(Relaxed) && self.ring_waiters.swap(false, Relaxed)
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
        let (services, links): (Vec<_>, Vec<_>) = {
            let table = self.peers.read();
            let links = table.links_up().map(|(_, link)| link.clone());
            (table.services.all().cloned().collect(), links.collect())
        };
        // Those who keep calls of ours keep the links, but nothing of the peers' memory.
        for link in links {
            let lines = lock(&link.outbound).as_mut().and_then(|outbound| outbound.lines.take());
            self.reply_rows.close(&link.replies);
            if let Some(lines) = lines {
                self.end_lines(lines);
            }
        }
        for service in services {
            if let Some(ended) = service.close() {
                wakes.extend(ended.wakers);
            }
        }
    }

    // Control messages.

    fn send_control(&self, peer: PeerId, control: CallControl) {
        lock(&self.controls).push((peer, control));
        self.set_dirty();
    }

    /// Has a control message posted behind which short requests that are posted later are to stand, as they do behind requests in the ring.
    pub(crate) fn post_counted(&self, peer: PeerId, post: &mut dyn FnMut() -> bool) {
        let link = self.peers.link_of(peer);
        let mut outbound = link.as_ref().map(|link| lock(&link.outbound));
        let outbound = outbound.as_mut().and_then(|outbound| outbound.as_mut());
        if post()
            && let Some(outbound) = outbound
        {
            outbound.count_one();
        }
    }

    /// What is to be said to whom.
    pub(crate) fn take_controls(&self) -> Vec<(PeerId, CallControl)> {
        std::mem::take(&mut *lock(&self.controls))
    }

    fn set_dirty(&self) {
        // Pairs with the AcqRel in take_dirty().
        self.dirty.store(true, Release);
    }

    /// Whether the runner should settle.
    #[inline]
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Relaxed)
    }

    /// As [`Rpc::is_dirty`]; from now on only what happens after this counts.
    pub(crate) fn take_dirty(&self) -> bool {
        // Pairs with the Release in set_dirty(): what made it dirty is seen.
        self.is_dirty() && self.dirty.swap(false, AcqRel)
    }
}

/// A head word has a cache line of its own.
const HEAD_BYTES: u64 = 64;

#[cfg(all(test, not(loom)))]
mod tests {
    use halite_providers::{ShmConfig, ShmFabric};
    use halite_tier::ids::{Incarnation, NodeIncarnation};

    use super::*;

    #[test]
    fn a_link_that_was_called_through_does_not_outlive_its_node() {
        let dir = crate::runtime::scratch();
        let fabric = ShmFabric::open(ShmConfig::new(dir.path(), "one")).unwrap();
        let (posted, peers) = (Arc::new(InFlight::new(1)), Arc::new(Peers::new(NodeId(0))));
        let rpc = Rpc::new(fabric.clone(), posted, peers.clone(), Arc::new(Pins::new()), 1 << 16).unwrap();
        // Of a peer that is still there when the node ends, and of the node itself.
        let incarnation = NodeIncarnation { node: NodeId(1), id: Incarnation(1) };
        peers.set_up(PeerId(7), incarnation, rpc.make_link(PeerId(7), NodeId(1)));
        let links = [0, 1].map(|node| {
            let link = peers.link_to(NodeId(node)).unwrap();
            lock(&link.inbound).caller(&link, b"ada").unwrap();
            Arc::downgrade(&link)
        });
        drop((rpc, peers));
        assert!(links.iter().all(|link| link.upgrade().is_none()));
        drop(fabric);
    }
}
