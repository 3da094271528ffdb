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
//! each briefly: a service, a link's outbound, a link's inbound, the slots; the fabric's own come last.

mod answer;
mod call;
mod error;
mod fetch;
mod link;
mod memory;
mod port;
mod request;
mod server;
mod service;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use halite_fabric::{Fabric, Key, Local, Operation, PeerId, PostCause, WorkId, WorkRequest};
use halite_mem::Window;
use halite_tier::ids::NodeId;
use halite_tier::rpc::ring::is_ring_size;
use halite_tier::rpc::wire::{NOTE_IMM, REPLY_HEADER_BYTES};
use halite_tier::rpc::{
    Address, Arrival, Cancelling, Imm, Input, Kind, Note, ReplyHeader, ReplySlots, RequestHeader, RingReader,
    RingWriter, SlotId, Status, Target, Violation,
};

use self::answer::{Answered, Owed, ReplyTo, remote};
use self::link::{Inbound, Link, Outbound, Theirs};
use self::memory::{Block, Pool};
use self::service::{Admission, Incoming, Payload, Service, ServiceId, Services};
use crate::posted::Posted;
use crate::wait::{Wakes, lock};

pub(crate) use self::call::Calling;
pub use self::call::PendingCall;
pub use self::error::{
    CallCause, CallError, ReplyCause, ReplyError, SendCause, SendError, ServeCause, ServeError,
};
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
    inline_bytes_max: usize,
    own: Arc<Link>,
    /// The usual places of our slots.
    usual: Block,
    slots: Mutex<ReplySlots<Held>>,
    /// How many replies have arrived.
    arrivals: AtomicU64,
    routes: RwLock<Routes>,
    owed: Mutex<Vec<Owed>>,
    /// Heads that the fabric did not take yet: where they go, and what they are.
    heads: Mutex<BTreeMap<PeerId, (Address, u64)>>,
    /// Introductions that the fabric did not take yet.
    introductions: Mutex<Vec<(PeerId, Note)>>,
    notes: Mutex<Vec<(PeerId, Note)>>,
    /// The machine should settle.
    dirty: AtomicBool,
    /// Somebody waits for room in a ring.
    hungry: AtomicBool,
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
        let inline_bytes_max = fabric.capabilities().inline_bytes_max;
        let own = Arc::new(Link::new(node, Target::Own, None, None));
        let routes = Routes { by_node: [(node, own.clone())].into(), ..Routes::default() };
        Some(Rpc {
            fabric,
            posted,
            pool,
            ring_bytes,
            inline_bytes_max,
            own,
            usual,
            slots: Mutex::new(ReplySlots::new(SLOTS_MAX)),
            arrivals: AtomicU64::new(0),
            routes: RwLock::new(routes),
            owed: Mutex::default(),
            heads: Mutex::default(),
            introductions: Mutex::default(),
            notes: Mutex::default(),
            dirty: AtomicBool::new(false),
            hungry: AtomicBool::new(false),
        })
    }

    // Peers come and go.

    /// A peer is connected: makes a ring for it, and a place for its head.  What it is to be told is noted.
    pub(crate) fn handle_connected(&self, peer: PeerId, node: NodeId) {
        let ring = self.pool.allocate(&*self.fabric, self.ring_bytes);
        let head = self.pool.allocate(&*self.fabric, HEAD_BYTES);
        // Without memory for them, calls to and from this peer are overdue in the end.
        let (Some(ring), Some(head)) = (ring, head) else { return };
        head.window().store_u64(0, 0).expect("blocks are aligned");
        let introduction = self.introduction(&ring, &head);
        let reader = RingReader::new(self.ring_bytes);
        let link = Arc::new(Link::new(node, Target::Peer(peer), Some((reader, ring)), Some(head)));
        let mut routes = self.routes_mut();
        routes.by_node.insert(node, link.clone());
        routes.by_peer.insert(peer, link.clone());
        drop(routes);
        self.introduce(peer, &link, introduction);
    }

    /// Tells a peer what it needs, in front of all requests and of all that the outbox holds for it.
    fn introduce(&self, peer: PeerId, link: &Link, note: Note) {
        let operation = Operation::Send { bytes: &note.emit(), imm: NOTE_IMM };
        match self.post(peer, &[WorkRequest { id: CALL_WORK, operation, signalled: false }]) {
            Err(PostCause::QueueFull) => {
                lock(&self.introductions).push((peer, note));
                self.set_dirty();
            }
            // A peer that is gone needs none.
            _ => link.set_introduced(),
        }
    }

    /// Tries again to post what the fabric did not take.
    pub(crate) fn retry(&self, wakes: &mut Wakes) {
        // Taken before the loops, whose heads would hold the locks while they run.
        let introductions = std::mem::take(&mut *lock(&self.introductions));
        let heads = std::mem::take(&mut *lock(&self.heads));
        for (peer, note) in introductions {
            let link = self.routes().by_peer.get(&peer).cloned();
            if let Some(link) = link {
                self.introduce(peer, &link, note);
            }
        }
        for (peer, (at, head)) in heads {
            self.return_head(peer, at, head);
        }
        self.retry_owed(wakes);
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
        let mut routes = self.routes_mut();
        let Some(link) = routes.by_peer.remove(&peer) else { return };
        if routes.by_node.get(&link.node).is_some_and(|known| Arc::ptr_eq(known, &link)) {
            routes.by_node.remove(&link.node);
        }
        routes.fading.insert(peer, link.clone());
        let services: Vec<_> = routes.services.all().cloned().collect();
        drop(routes);
        link.set_gone();
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
        let held = lock(&self.slots).handle_cut_off(peer);
        drop(held);
        let link = self.routes_mut().fading.remove(&peer);
        if let Some(link) = link {
            let inbound = &mut *lock(&link.inbound);
            inbound.ring = None;
            inbound.head = None;
            inbound.kept.clear();
        }
    }

    /// The link to a node, once both ends can write to each other.
    pub(crate) fn link_to(&self, node: NodeId) -> Option<Arc<Link>> {
        self.routes().by_node.get(&node).cloned()
    }

    /// Not to be asked for again by a thread that has it: a writer in between would wait for the first, and the second
    /// for the writer.
    fn routes(&self) -> RwLockReadGuard<'_, Routes> {
        self.routes.read().expect(POISONED)
    }

    fn routes_mut(&self) -> RwLockWriteGuard<'_, Routes> {
        self.routes.write().expect(POISONED)
    }

    // What arrives.

    /// A write with immediate has landed.
    pub(crate) fn handle_notified(&self, peer: PeerId, imm: u32, wakes: &mut Wakes) {
        let handled = match Imm::parse(imm) {
            Imm::Reply(slot) => self.handle_reply(Target::Peer(peer), slot, wakes),
            Imm::Request { offset } => self.handle_request(peer, offset, wakes),
        };
        self.enforce(peer, handled);
    }

    /// A peer that does not follow the protocol is given up.
    fn enforce(&self, peer: PeerId, handled: Result<(), Violation>) {
        if handled.is_err() {
            self.fabric.disconnect(peer);
        }
    }

    fn handle_reply(&self, from: Target, slot: SlotId, wakes: &mut Wakes) -> Result<(), Violation> {
        let arrival = self.arrive(from, slot)?;
        self.handle_arrival(from, slot, arrival, wakes);
        Ok(())
    }

    /// The first part of that, which may be done under a link's lock.
    fn arrive(&self, from: Target, slot: SlotId) -> Result<Arrival, Violation> {
        let mut slots = lock(&self.slots);
        let arrival = slots.handle_reply(from, slot)?;
        if let Arrival::Expected(_) = arrival {
            self.arrived(&slots);
        }
        Ok(arrival)
    }

    /// The rest, under no lock.
    fn handle_arrival(&self, from: Target, slot: SlotId, arrival: Arrival, wakes: &mut Wakes) {
        match arrival {
            Arrival::Expected(waker) => wakes.add(waker),
            Arrival::Late => self.drop_reply(from, slot, wakes),
        }
    }

    /// Those who spin look again.  Counted under the lock of the slots.
    fn arrived(&self, _: &ReplySlots<Held>) {
        // Pairs with the Acquire in arrivals(): whoever sees the count finds the reply.
        self.arrivals.store(self.arrivals.load(Relaxed) + 1, Release);
    }

    /// How many replies have arrived.
    pub(crate) fn arrivals(&self) -> u64 {
        // Pairs with the Release in arrived().
        self.arrivals.load(Acquire)
    }

    fn handle_request(&self, peer: PeerId, offset: u64, wakes: &mut Wakes) -> Result<(), Violation> {
        let routes = self.routes();
        // Nobody else may write to our rings.
        let link = routes.by_peer.get(&peer).ok_or(Violation("a request without a ring"))?;
        let (kind, number, incoming, head) = {
            let inbound = &mut *lock(&link.inbound);
            let (header, incoming) = read_request(link, inbound, offset)?;
            let (reader, _) = inbound.ring.as_mut().ok_or(Violation("a request after the end"))?;
            let head = reader.poll_head().zip(inbound.theirs);
            (header.kind, header.number, incoming, head)
        };
        if let Some((head, theirs)) = head {
            self.return_head(peer, theirs.head, head);
        }
        self.deliver(&routes.services, kind, number, incoming, wakes);
        Ok(())
    }

    /// A plain write: whoever waits for room looks.
    fn return_head(&self, peer: PeerId, at: Address, head: u64) {
        let bytes = head.to_le_bytes();
        let operation = Operation::Write { local: Local::Inline(&bytes), remote: remote(at, 0) };
        let posted = self.post(peer, &[WorkRequest { id: CALL_WORK, operation, signalled: false }]);
        if posted == Err(PostCause::QueueFull) {
            // There may be no next one: who finds the ring full sends nothing until it knows of this.  A newer head
            // that was posted meanwhile is not undone, for the client believes only heads that rise.
            let mut heads = lock(&self.heads);
            let owed = heads.entry(peer).or_insert((at, head));
            owed.1 = owed.1.max(head);
            drop(heads);
            self.set_dirty();
        }
    }

    /// A peer does not take what it asked for, or told us to put somewhere.
    pub(crate) fn handle_refused(&self, peer: PeerId) {
        self.enforce(peer, Err(Violation("it named memory that it does not have")));
    }

    fn deliver(&self, services: &Services, kind: Kind, number: u32, incoming: Incoming, wakes: &mut Wakes) {
        let id = ServiceId::of(kind, number);
        let Some(service) = services.get(id) else {
            return self.refuse_request(incoming, Status::Unknown, wakes);
        };
        if !service.admits(&incoming.principal) {
            return self.refuse_request(incoming, Status::Denied, wakes);
        }
        match service.push(kind, incoming) {
            Admission::Queued { waker, accepted } => {
                wakes.add(waker);
                if let Some(reply) = accepted {
                    self.answer(reply, &[], wakes);
                }
            }
            Admission::Parked => {}
            Admission::Refused(reply, status) => self.refuse(reply, status, wakes),
        }
    }

    fn refuse_request(&self, incoming: Incoming, status: Status, wakes: &mut Wakes) {
        if let Some(reply) = incoming.reply {
            self.refuse(reply, status, wakes);
        }
    }

    /// Tells senders that there is room for them now.
    pub(crate) fn grant(&self, service: &Service, granted: Vec<(ReplyTo, u32)>, wakes: &mut Wakes) {
        let mut granted = VecDeque::from(granted);
        while let Some((reply, grant)) = granted.pop_front() {
            let from = reply.target();
            if self.send_answer(reply, Status::Granted(grant), &[], wakes) == Answered::Unwanted {
                // It gave up in this moment, and will not decline what it was not told of.
                granted.extend(service.decline(from, grant));
            }
        }
    }

    /// A note has arrived.
    pub(crate) fn handle_note(&self, peer: PeerId, bytes: &[u8], wakes: &mut Wakes) {
        let link = self.routes().by_peer.get(&peer).cloned();
        let Some(link) = link else { return };
        let note = Note::parse(bytes).map_err(|_| Violation("not a note"));
        let handled = note.and_then(|note| self.apply_note(&link, peer, note, wakes));
        self.enforce(peer, handled);
    }

    fn apply_note(&self, link: &Link, peer: PeerId, note: Note, wakes: &mut Wakes) -> Result<(), Violation> {
        match note {
            Note::Open { .. } => return open(link, &note),
            Note::Cancel { index, generation } => self.cancel(link, SlotId { index, generation }, wakes),
            Note::Cancelled { index, generation } => {
                let slot = SlotId { index, generation };
                drop(lock(&self.slots).handle_cancelled(Target::Peer(peer), slot));
            }
            Note::Release { index, generation } => {
                drop(lock(&link.inbound).kept.remove(&SlotId { index, generation }));
            }
            Note::Decline { port, grant } => self.decline(port, Target::Peer(peer), grant, wakes),
        }
        Ok(())
    }

    /// The caller behind `link` has lost interest in an answer.
    fn cancel(&self, link: &Link, slot: SlotId, wakes: &mut Wakes) {
        let cancelling = {
            let inbound = &mut *lock(&link.inbound);
            inbound.kept.remove(&slot);
            link.note_cancel();
            inbound.served.cancel(slot)
        };
        if cancelling == Cancelling::Acknowledge {
            self.acknowledge(link, slot, wakes);
        }
    }

    fn decline(&self, port: u32, from: Target, grant: u32, wakes: &mut Wakes) {
        let service = self.routes().services.get(ServiceId::Port(port)).cloned();
        if let Some(service) = service {
            self.grant(&service, service.decline(from, grant), wakes);
        }
    }

    // Our slots.

    /// The memory of a slot that is in use.
    fn slot_window(&self, slot: SlotId) -> Window {
        let own =
            lock(&self.slots).held(slot).and_then(|held| held.reply.as_ref().map(|b| b.window().clone()));
        own.unwrap_or_else(|| {
            let window = self.usual.window().slice(usual_offset(slot), USUAL_SLOT_BYTES);
            window.expect("slots beyond the usual ones hold memory")
        })
    }

    /// Memory for the reply of a call of our own, once it is known how much that needs.  `false` if nobody waits.
    fn give_slot_memory(&self, slot: SlotId, block: Block) -> bool {
        let mut slots = lock(&self.slots);
        let Some(held) = slots.take_held(slot) else { return false };
        slots.hold(slot, Held { reply: Some(block), ..held.unwrap_or_default() });
        true
    }

    fn write_own_slot(&self, slot: SlotId, header: &[u8], output: &[u8]) {
        let window = self.slot_window(slot);
        window.write(0, header).expect("a slot holds a header");
        window.write(header.len() as u64, output).expect("the output fits");
    }

    /// A reply that nobody waits for any more: what it offers is declined.
    fn drop_reply(&self, from: Target, slot: SlotId, wakes: &mut Wakes) {
        let mut header = [0; REPLY_HEADER_BYTES];
        self.slot_window(slot).read(0, &mut header).expect("a slot holds a header");
        let port = lock(&self.slots).held(slot).and_then(|held| held.port);
        match (ReplyHeader::parse(header).map(|header| header.status), port) {
            (Ok(Status::DoneAt(_)), _) => self.release_output(from, slot),
            (Ok(Status::Granted(grant)), Some(port)) => self.decline_room(from, port, grant, wakes),
            _ => {}
        }
        self.free_slot(slot);
    }

    /// A slot is free again; what it held is given back outside of the lock.
    fn free_slot(&self, slot: SlotId) {
        let held = lock(&self.slots).free(slot);
        drop(held);
    }

    /// The server need not keep an output for us any longer.
    fn release_output(&self, from: Target, slot: SlotId) {
        match from {
            Target::Own => drop(lock(&self.own.inbound).kept.remove(&slot)),
            Target::Peer(peer) => {
                self.note(peer, Note::Release { index: slot.index, generation: slot.generation });
            }
        }
    }

    /// The room that is kept for a message of ours is not needed.
    fn decline_room(&self, at: Target, port: u32, grant: u32, wakes: &mut Wakes) {
        match at {
            Target::Own => self.decline(port, Target::Own, grant, wakes),
            Target::Peer(peer) => self.note(peer, Note::Decline { port, grant }),
        }
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

    /// Whether answers wait until the fabric takes them.
    pub(crate) fn is_stuck(&self) -> bool {
        !(lock(&self.owed).is_empty() && lock(&self.heads).is_empty() && lock(&self.introductions).is_empty())
    }

    /// Somebody waits for room in a ring.
    pub(crate) fn set_hungry(&self) {
        self.hungry.store(true, Relaxed);
    }

    /// Whether somebody waits for room in a ring; from now on only those who do later count.
    pub(crate) fn take_hungry(&self) -> bool {
        // A hint: whoever is missed looks again after a moment.
        self.hungry.load(Relaxed) && self.hungry.swap(false, Relaxed)
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

/// Where a slot is in the memory of the usual places.
fn usual_offset(slot: SlotId) -> u64 {
    u64::from(slot.index) * USUAL_SLOT_BYTES
}

/// A head word has a cache line of its own.
const HEAD_BYTES: u64 = 64;

const POISONED: &str = "a thread panicked inside the node";

/// Takes in what a peer tells us in the beginning.
fn open(link: &Link, note: &Note) -> Result<(), Violation> {
    let Note::Open { ring_key, ring_offset, ring_bytes, .. } = *note else {
        unreachable!("the caller looked")
    };
    if !is_ring_size(ring_bytes) {
        return Err(Violation("a ring of no size that rings have"));
    }
    let head = {
        let inbound = &mut *lock(&link.inbound);
        inbound.theirs = Theirs::parse(note);
        inbound.head.as_ref().map(|head| head.window().clone())
    };
    let head = head.ok_or(Violation("a ring after the end"))?;
    let at = Address { key: Key(ring_key), offset: ring_offset };
    *lock(&link.outbound) = Some(Outbound { ring: RingWriter::new(ring_bytes), at, head });
    Ok(())
}

/// Reads a request out of its ring, whose bytes the peer may still change: first copied, then understood.
fn read_request(
    link: &Arc<Link>,
    inbound: &mut Inbound,
    offset: u64,
) -> Result<(RequestHeader, Incoming), Violation> {
    let (reader, ring) = inbound.ring.as_mut().ok_or(Violation("a request after the end"))?;
    let bytes_max = reader.arrive(offset)?;
    let mut look = [0; FIRST_LOOK_BYTES];
    let look = &mut look[..FIRST_LOOK_BYTES.min(bytes_max as usize)];
    ring.window().read(offset, look).expect("the reader keeps inside the ring");
    let header = RequestHeader::parse(look).map_err(|_| Violation("not a request"))?;
    let len = header.request_bytes();
    if len > bytes_max {
        return Err(Violation("a request longer than its place"));
    }
    let (name_at, name_bytes) = (header.len_bytes(), usize::from(header.name_bytes));
    let input_at = name_at + name_bytes;
    let (mut long_name, mut input) = ([0; 255], Vec::new());
    let is_here = header.input == Input::InRing;
    let input_bytes = if is_here { header.input_bytes as usize } else { 0 };
    let name = match look.get(name_at..input_at) {
        Some(name) => name,
        None => {
            let name = &mut long_name[..name_bytes];
            ring.window().read(offset + name_at as u64, name).expect("the request is in the ring");
            name
        }
    };
    match look.get(input_at..input_at + input_bytes) {
        Some(bytes) => input.extend_from_slice(bytes),
        None => {
            input.resize(input_bytes, 0);
            ring.window().read(offset + input_at as u64, &mut input).expect("the request is in the ring");
        }
    }
    reader.advance(len);
    let principal = inbound.principal(name)?;
    let id = inbound.served.open(header.slot)?;
    let theirs = inbound.theirs.ok_or(Violation("a request before the introduction"))?;
    let (at, room) = header.reply_at.map_or_else(|| theirs.slot(header.slot), Ok)?;
    let reply = ReplyTo {
        link: link.clone(),
        cancels: link.cancels(),
        id,
        at,
        room,
        bytes_max: header.reply_bytes_max,
    };
    let input = match header.input {
        Input::InRing => Payload::Here(input),
        Input::At(address) => Payload::There { address, len: header.input_bytes },
    };
    Ok((header, Incoming { reply: Some(reply), node: link.node, principal, input }))
}
