//! The engine: one node's brain.  Messages, events and commands in; effects out.
//!
//! ```text
//!   sessions ── submit ──┐                        ┌── poll_effect ──> driver (sends, copies, grace periods)
//!   fabric  ── handle_* ─┴──>  Engine { members,  ┘
//!                                directory, homes, store, mapper }
//! ```
//!
//! Requests to this node itself take the same path as those to others, through a queue inside.

mod barriers;
mod evidence;
mod explain;
mod figures;
mod home;
mod locks;
mod meeting;
mod membership;
mod memory;
mod moving;
mod numbers;
mod pairing;
mod populating;
mod user;
mod waits;
mod watching;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use halite_fabric::{Key, PeerId};
use halite_mem::{Elapsed, Window};

use crate::access::{DataPath, Place};
use crate::directory::{Directory, Embedded};
use crate::effect::{CopyFailure, Effect, OpId, Quiesce, Token};
use crate::hello::Hello;
use crate::ids::{Epoch, NodeId, NodeLife, RegionId, RequestId};
use crate::layout::{Extent, Extents};
use crate::link;
use crate::mapper::{Locate, Mapper, Reach, place_at};
use crate::members::Members;
use crate::message::{self, ErrorReply, Message, Notice, Reply, Request};
use crate::news::News;
use crate::permissions::AccessList;
use crate::region::Region;
use crate::store::{Shortage, Store};
use user::UserStep;

pub use explain::KnownPeer;
pub use figures::Figures;
pub use memory::COMMAND_BYTES_MAX;
pub use watching::WATCHERS_MAX;

/// What an engine needs to know from the start.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Who we are; the incarnation is random.
    pub life: NodeLife,
    /// Our process, for people to see.
    pub pid: u32,
    /// How long a silent peer is thought alive, in ns.
    pub lease_ns: u64,
    /// Bytes of memory that we contribute at most.
    pub bytes_total: u64,
    /// By how many bytes the arena grows.
    pub segment_bytes: u64,
    /// The time of day, in ns since 1970, when the clock that tells us the time was at 0.
    pub epoch_ns: u64,
    /// Where others dial us; empty if they cannot.
    pub address: String,
    /// Names of the fabric's providers, for people to see.
    pub provider: String,
}

impl EngineConfig {
    fn hello(&self) -> Hello {
        let address = self.address.clone();
        Hello { life: self.life, pid: self.pid, bytes_total: self.bytes_total, address }
    }
}

/// A connection that has come about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// To whom.
    pub peer: PeerId,
    /// Whether it was us who connected: then the peer was there before us.
    pub dialled: bool,
    /// Longest send to the peer, in bytes.
    pub send_bytes_max: usize,
}

/// Who asked something, and how the answer finds back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Requester {
    /// Which node.
    pub life: NodeLife,
    /// Its number for the request.
    pub id: RequestId,
}

/// What we asked of another node, or of ourselves.
#[derive(Debug)]
struct Asked {
    of: NodeId,
    purpose: Purpose,
    at_ns: u64,
}

/// Why we asked something.
#[derive(Debug)]
enum Purpose {
    /// For a command of a session.
    User(OpId, UserStep),
    /// To get a name for a region to be.
    Claim(RegionId),
    /// To get a name for a region that has none.
    Name(RegionId),
    /// To get chunks on another node for a region to be.
    ReserveForAlloc(RegionId),
    /// To get chunks on the node to which a region moves.
    ReserveForMove(RegionId),
    /// To have a mapper acknowledge the change of that epoch.
    Change(RegionId, Epoch),
    /// To let somebody know; the acknowledgement means nothing.
    OneWay,
    /// To have the name of a region that is being freed be free again.
    Release(RegionId),
    /// To have a chunk copied by its new owner.
    CopyChunk(RegionId),
    /// To hand a region to its next home.
    Adopt(RegionId),
    /// To have an owner of chunks keep a mapper from regions of ours.
    Relay { mapper: NodeLife, pairing: u64, owner: NodeLife },
    /// To have a mapper let go of a home's regions, for that home.
    Retire(Requester, NodeLife),
    /// To have everybody drop the regions of a dead home.
    Sweep(NodeLife),
    /// To have a part of a memory operation done by the node.
    Memory(OpId, NodeId),
    /// To get a lock, or past a barrier.
    Wait(OpId),
}

/// One node's brain.  See the module's documentation.
pub struct Engine {
    config: EngineConfig,
    now_ns: u64,
    reach: Arc<dyn Reach>,
    members: Members,
    meeting: meeting::Meeting,
    pairings: pairing::Pairings,
    numbers: numbers::Numbers,
    evidence: evidence::Evidence,
    directory: Box<dyn Directory>,
    homes: BTreeMap<RegionId, Box<Region>>,
    moved: moving::Moved,
    making: BTreeMap<RegionId, home::Making>,
    store: Store,
    /// Requests that wait for the arena to grow, or for freed memory to be clean.
    short: Vec<(Requester, Request)>,
    mapper: Mapper,
    /// Acknowledgements owed when a token is over.
    owed: BTreeMap<Token, Vec<Requester>>,
    /// Unmappings to announce, and to finish, when a token is over.
    unmapping: BTreeMap<Token, user::Unmapping>,
    /// Who asked for a copy, and from whose memory.
    copies: BTreeMap<Token, Copying>,
    /// Chunks that are given back to owners who have told a part of what they hold for us, when they have told the rest.
    freed_early: BTreeMap<NodeLife, Extents>,
    /// Chunks that are given back once the copies into them are over.
    copied_into: Vec<(Extents, BTreeSet<NodeLife>)>,
    memory: memory::Memory,
    populating: BTreeMap<Token, populating::Populating>,
    sweeps: BTreeMap<NodeLife, membership::Sweep>,
    /// Homes whose chunks here were taken, or are about to be: newcomers may still hear of them from others.
    swept: BTreeSet<NodeLife>,
    locks: locks::Locks,
    barriers: barriers::Barriers,
    waits: waits::Waits,
    watching: watching::Watching,
    commands: user::Commands,
    asked: BTreeMap<RequestId, Asked>,
    loopback: VecDeque<Message>,
    effects: VecDeque<Effect>,
    last_access: Option<Arc<AccessList>>,
    counter: u64,
    heartbeat_ns: u64,
    /// As in the configuration, but by the clock of the cluster that is ahead of all others, as far as we have heard of it.
    epoch_ns: u64,
    leaving: bool,
    /// Whether people have been told that memory is kept back.
    told_of_quarantine: bool,
}

impl Engine {
    /// A node that has met nobody yet, and takes part in the directory that nodes keep by themselves.
    pub fn new(config: EngineConfig, path: Arc<DataPath>, reach: Arc<dyn Reach>, now_ns: u64) -> Engine {
        let directory = Box::new(Embedded::new(config.life.node));
        Engine::with_directory(config, path, reach, directory, now_ns)
    }

    /// The same with another directory.
    pub fn with_directory(
        config: EngineConfig,
        path: Arc<DataPath>,
        reach: Arc<dyn Reach>,
        directory: Box<dyn Directory>,
        now_ns: u64,
    ) -> Engine {
        let mut engine = Engine {
            members: Members::default(),
            meeting: meeting::Meeting::default(),
            pairings: pairing::Pairings::default(),
            numbers: numbers::Numbers::default(),
            evidence: evidence::Evidence::default(),
            directory,
            homes: BTreeMap::new(),
            moved: moving::Moved::default(),
            making: BTreeMap::new(),
            store: Store::new(config.life, config.bytes_total, config.segment_bytes),
            short: Vec::new(),
            mapper: Mapper::new(path),
            owed: BTreeMap::new(),
            unmapping: BTreeMap::new(),
            copies: BTreeMap::new(),
            freed_early: BTreeMap::new(),
            copied_into: Vec::new(),
            memory: memory::Memory::default(),
            populating: BTreeMap::new(),
            sweeps: BTreeMap::new(),
            swept: BTreeSet::new(),
            locks: locks::Locks::default(),
            barriers: barriers::Barriers::default(),
            waits: waits::Waits::default(),
            watching: watching::Watching::default(),
            commands: user::Commands::default(),
            asked: BTreeMap::new(),
            loopback: VecDeque::new(),
            effects: VecDeque::new(),
            last_access: None,
            counter: 0,
            heartbeat_ns: now_ns,
            epoch_ns: config.epoch_ns,
            leaving: false,
            told_of_quarantine: false,
            now_ns,
            reach,
            config,
        };
        let hello = engine.config.hello();
        engine.members.insert_self(&hello);
        engine
    }

    /// What we say of ourselves when we connect.
    pub fn hello(&self) -> Vec<u8> {
        self.config.hello().encode()
    }

    /// What the driver is to do next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// A message of a peer arrived, or a part of one.
    pub fn handle_message(&mut self, now_ns: u64, peer: PeerId, frame: &[u8]) {
        self.handle_heard(now_ns, peer);
        self.now_ns = now_ns;
        let Some(from) = self.members.peer_mut(peer) else {
            self.handle_early_frame(peer, frame);
            return self.settle();
        };
        from.heard_ns = now_ns;
        let life = from.life;
        let Ok(whole) = from.assembler.handle_frame(frame) else { return self.reject(peer) };
        let Some(bytes) = whole else { return };
        match message::decode(&bytes) {
            Ok(message) => self.dispatch(life, message),
            Err(_) => return self.reject(peer),
        }
        self.settle();
    }

    /// A node that talks nonsense is treated as dead.
    fn reject(&mut self, peer: PeerId) {
        self.tell_of(peer, News::Nonsense);
        self.effects.push_back(Effect::Disconnect(peer));
        self.give_up(peer, self.now_ns);
        self.settle();
    }

    /// Handles what we said to ourselves, until nothing is left.
    fn settle(&mut self) {
        while let Some(message) = self.loopback.pop_front() {
            self.dispatch(self.config.life, message);
        }
        self.tell_of_quarantine();
    }

    fn dispatch(&mut self, from: NodeLife, message: Message) {
        match message {
            Message::Request { id, body } => self.handle_request(Requester { life: from, id }, body),
            Message::Reply { id, body } => self.handle_reply(from, id, body),
            Message::Notice(notice) => self.handle_notice(from, notice),
        }
    }

    fn handle_request(&mut self, requester: Requester, request: Request) {
        match request {
            Request::ClaimName { .. }
            | Request::ReleaseName { .. }
            | Request::FindName { .. }
            | Request::ListNames { .. }
            | Request::ListLost { .. }
            | Request::ForgetName { .. }
            | Request::ForgetNode { .. } => self.serve_directory(requester, request),
            Request::TakeNumber => self.serve_number(requester),
            Request::ListMembers => {
                let members = self.members.described(self.now_ns).collect();
                self.answer(requester, Ok(Reply::Members { members }))
            }
            Request::Alloc { .. } => self.serve_alloc(requester, request),
            Request::Map { region, principal, wanted } => {
                self.serve_map(requester, region, principal, wanted)
            }
            Request::Stat { region } => self.serve_stat(requester, region),
            Request::RegionCommand { region, principal, order } => {
                self.serve_order(requester, region, principal, order)
            }
            Request::Reserve { region, chunk_bytes, len, populate } => {
                self.serve_reserve(requester, region, (chunk_bytes, len), populate)
            }
            Request::CopyChunk { from, to } => self.serve_copy(requester, from, to),
            Request::FillBytes { region, parts, byte } => self.serve_fill(requester, region, parts, byte),
            Request::CopyBytes { to, from, copy_segments, backward } => {
                self.serve_copy_bytes(requester, (to, from), copy_segments, backward)
            }
            Request::Change { region, change, .. } => self.serve_change(requester, region, change),
            Request::Lock { region, principal, session, wait, base_ns } => {
                self.note_time(base_ns);
                let waiter = locks::Waiter::new(requester, session, base_ns);
                self.serve_lock(waiter, region, &principal, wait)
            }
            Request::Unlock { region, session, recover } => {
                self.serve_unlock(requester, region, session, recover)
            }
            Request::Arrive { region, principal, participants, timeout_ns } => {
                self.serve_arrival(requester, region, &principal, participants, timeout_ns)
            }
            Request::Watch { .. } | Request::Unwatch { .. } | Request::ListWatchers { .. } => {
                self.serve_watching(requester, request)
            }
            Request::DropHome { home } => self.serve_drop_home(requester, home),
            Request::Relay { to, pairing } => self.serve_relay(requester, to, pairing),
            Request::Retire { home, pairing } => self.serve_retire(requester, home, pairing),
            Request::Adopt { record } => self.serve_adopt(requester, *record),
            Request::Reach { node } => {
                let body = self.reach_of(node).map(Reply::Reached).ok_or(ErrorReply::UnknownNode(node));
                self.answer(requester, body)
            }
            Request::Status => {
                let status = Box::new(self.own_status());
                self.answer(requester, Ok(Reply::Status(status)))
            }
        }
    }

    fn handle_reply(&mut self, from: NodeLife, id: RequestId, body: Result<Reply, ErrorReply>) {
        if self.asked.get(&id).is_none_or(|asked| asked.of != from.node) {
            return;
        }
        let Asked { purpose, at_ns, .. } = self.asked.remove(&id).expect("looked up just before");
        self.members.note_acknowledged(from, at_ns, self.now_ns);
        match purpose {
            Purpose::User(op, step) => self.continue_command(op, step, body),
            Purpose::Claim(region) => self.continue_making(region, from, body),
            Purpose::Name(region) => self.handle_named(region, body),
            Purpose::ReserveForAlloc(region) => self.continue_making(region, from, body),
            Purpose::ReserveForMove(region) => self.handle_move_reserved(region, body),
            // The end of a pairing acknowledges nothing.
            Purpose::Change(..) if matches!(body, Err(ErrorReply::PeerDown(_))) => {}
            Purpose::Change(region, epoch) => self.handle_acknowledged(region, epoch, from),
            Purpose::Relay { mapper, pairing, owner } => self.handle_relayed((mapper, pairing), owner, body),
            Purpose::Retire(requester, mapper) => self.handle_retired(requester, mapper, body),
            Purpose::OneWay => {}
            Purpose::Release(region) => self.handle_name_released(region),
            Purpose::CopyChunk(region) => self.handle_chunk_copied(region, body),
            Purpose::Adopt(region) => self.handle_adopted(region, body),
            Purpose::Sweep(home) => self.handle_swept(home, from),
            Purpose::Memory(op, node) => self.handle_memory_done(op, node, from, body),
            Purpose::Wait(op) => self.end_wait(op, body),
        }
    }

    fn handle_notice(&mut self, from: NodeLife, notice: Notice) {
        match notice {
            Notice::Heartbeat { sent_ns, heard_ns, time_ns } => {
                self.note_time(time_ns);
                self.members.note_beat(from, sent_ns);
                self.members.note_acknowledged(from, heard_ns, self.now_ns);
            }
            // It says what was said before.
            Notice::Welcome { .. } => {}
            Notice::Paired { pairing } => self.pairings.note_number(from, pairing),
            Notice::Held { held, done, seat, time_ns } => {
                self.note_time(time_ns);
                if let Some(seat) = seat {
                    self.note_directory(vec![seat]);
                }
                self.handle_held(from, held, done)
            }
            Notice::Known { living, unreachable, ended } => {
                self.handle_known(from, living, unreachable, ended)
            }
            Notice::Leave => self.handle_leave(from),
            Notice::Unmapped { region, upto } => self.handle_unmapped(region, from, upto),
            Notice::UnmappedBy { region, node, upto } => self.handle_unmapped(region, node, upto),
            Notice::Swept { homes } => {
                let disowned = self.disown(from, &homes);
                self.effects.extend(disowned.into_iter().map(Effect::Quiesce));
            }
            Notice::Names { names, done } => self.handle_names(from, names, done),
            Notice::NameLost { name, region } => self.lose_name(from, &name, region),
            Notice::CancelLock { region, session, request } => {
                self.handle_cancelled(from, region, session, request)
            }
            Notice::Withdraw { region, request } => {
                self.withdraw(region, Requester { life: from, id: request })
            }
            Notice::Return { extents } => self.handle_return(from, extents),
            Notice::Seen { members, ended } => self.handle_seen(members, ended),
            Notice::Killing { life } => self.handle_killing(from, life),
        }
    }

    // What was asked of the driver comes back.

    /// The arena has grown, or could not.
    pub fn handle_grown(&mut self, now_ns: u64, segment: Option<(Key, Window)>) {
        self.now_ns = now_ns;
        self.store.handle_grown(now_ns, segment);
        self.retry_short();
    }

    fn retry_short(&mut self) {
        for (requester, request) in std::mem::take(&mut self.short) {
            // What is reserved for a home that has died meanwhile would never be given back.
            if self.is_present(requester.life) {
                self.handle_request(requester, request);
            }
        }
        self.settle();
    }

    /// All accesses that began before the token was given out are over.
    pub fn handle_quiescent(&mut self, now_ns: u64, token: Token, elapsed: Elapsed) {
        self.now_ns = now_ns;
        let locator = Locator {
            life: self.config.life,
            store: &self.store,
            members: &self.members,
            reach: &*self.reach,
        };
        self.mapper.handle_quiescent(token, elapsed, &locator);
        if self.pairings.awaits(token) {
            self.say_when_over(memory::DeferredAck::Parted(token));
        }
        for requester in self.owed.remove(&token).unwrap_or_default() {
            self.say_when_over(memory::DeferredAck::Answer(requester));
        }
        self.finish_abandoning(token);
        if let Some(unmapping) = self.unmapping.remove(&token) {
            self.say_when_over(memory::DeferredAck::Unmapped(unmapping));
        }
        self.effects.push_back(Effect::Changed);
        self.settle();
    }

    /// A copy is done.
    pub fn handle_copied(&mut self, now_ns: u64, token: Token) {
        self.now_ns = now_ns;
        if let Some(copy) = self.copies.remove(&token) {
            self.answer(copy.requester, Ok(Reply::Done));
            self.release_copied();
        } else {
            self.handle_step(token, None);
        }
        self.settle();
    }

    /// A copy failed, because the node that held the source is gone.
    pub fn handle_copy_failed(&mut self, now_ns: u64, token: Token, why: CopyFailure) {
        self.now_ns = now_ns;
        if let Some(copy) = self.copies.remove(&token) {
            self.answer(copy.requester, Err(self.refusal_of(why, copy.source)));
            self.release_copied();
        } else {
            self.handle_step(token, Some(why));
        }
        self.settle();
    }

    fn refusal_of(&self, why: CopyFailure, owner: NodeId) -> ErrorReply {
        match why {
            CopyFailure::PeerGone => ErrorReply::PeerDown(owner),
            CopyFailure::Unmapped => ErrorReply::Unmapped { node: self.config.life.node, owner },
        }
    }

    /// Memory of ours reads as zero again.
    pub fn handle_discarded(&mut self, now_ns: u64, token: Token) {
        self.now_ns = now_ns;
        self.store.handle_discarded(token);
        self.retry_short();
    }

    // Saying things.

    fn ask(&mut self, to: NodeId, body: Request, purpose: Purpose) {
        if to != self.config.life.node && self.members.peer_of(to).is_none() {
            let refusal = self.absence_of(to);
            return self.refuse_ourselves(refusal, purpose);
        }
        self.counter += 1;
        let id = RequestId(self.counter);
        self.asked.insert(id, Asked { of: to, purpose, at_ns: self.now_ns });
        self.say(to, Message::Request { id, body });
    }

    /// As [`Engine::ask`], but nobody who came after that life of the node is meant.
    fn ask_life(&mut self, to: NodeLife, body: Request, purpose: Purpose) {
        match self.is_present(to) {
            true => self.ask(to.node, body, purpose),
            false => self.refuse_ourselves(ErrorReply::PeerDown(to.node), purpose),
        }
    }

    /// The refusal takes the same way as any other, so that no caller has a case of its own for it.
    fn refuse_ourselves(&mut self, refusal: ErrorReply, purpose: Purpose) {
        self.counter += 1;
        let id = RequestId(self.counter);
        let of = self.config.life.node;
        self.asked.insert(id, Asked { of, purpose, at_ns: self.now_ns });
        self.loopback.push_back(Message::Reply { id, body: Err(refusal) });
    }

    fn absence_of(&self, node: NodeId) -> ErrorReply {
        if self.knows(node) { ErrorReply::PeerDown(node) } else { ErrorReply::UnknownNode(node) }
    }

    /// Whether a node of that number is or was in the cluster: there is always a first one.
    pub fn knows(&self, node: NodeId) -> bool {
        node == NodeId::FIRST || self.members.knows(node)
    }

    fn answer(&mut self, requester: Requester, body: Result<Reply, ErrorReply>) {
        if self.is_present(requester.life) {
            self.say(requester.life.node, Message::Reply { id: requester.id, body });
        }
    }

    /// Whether that is this node, or one that is connected.
    fn is_present(&self, life: NodeLife) -> bool {
        life == self.config.life || self.members.is_alive(life)
    }

    fn notify(&mut self, to: NodeId, notice: Notice) {
        self.say(to, Message::Notice(notice));
    }

    fn say(&mut self, to: NodeId, message: Message) {
        if to == self.config.life.node {
            return self.loopback.push_back(message);
        }
        let Some((peer, member)) = self.members.peer_of(to) else { return };
        // Who sleeps looks at what has arrived before it judges silence, and has no other use for a heartbeat.
        let solicited = !matches!(message, Message::Notice(Notice::Heartbeat { .. }));
        for bytes in link::frames(&message::encode(&message), member.send_bytes_max) {
            self.effects.push_back(Effect::Send { peer, bytes, solicited });
        }
    }

    /// Asks for a grace period, at whose end `requester` gets its answer.
    fn owe(&mut self, quiesce: Quiesce, requester: Requester) {
        self.owed.entry(quiesce.token).or_default().push(requester);
        self.effects.push_back(Effect::Quiesce(quiesce));
    }

    // Owning chunks for others.

    fn serve_reserve(
        &mut self,
        requester: Requester,
        region: RegionId,
        (chunk_bytes, len): (u64, u64),
        populate: bool,
    ) {
        if len == 0 || !home::is_chunk_size(chunk_bytes) {
            return self.answer(requester, Err(ErrorReply::Malformed));
        }
        let again = Request::Reserve { region, chunk_bytes, len, populate };
        let Some(result) = self.reserve_or_grow(requester, again, len, chunk_bytes) else { return };
        let extents = match result {
            Ok(extents) => extents,
            Err(refusal) => return self.answer(requester, Err(refusal)),
        };
        if requester.life != self.config.life {
            self.store.hold_for(requester.life, region, &extents);
        }
        match populate {
            true => self.start_populating(requester, extents),
            false => self.answer(requester, Ok(Reply::Reserved { extents })),
        }
    }

    /// Reserves chunks; `None` if `again` is handled once more when there is memory.
    fn reserve_or_grow(
        &mut self,
        requester: Requester,
        again: Request,
        len: u64,
        chunk_bytes: u64,
    ) -> Option<Result<Extents, ErrorReply>> {
        match self.store.reserve(self.now_ns, len, chunk_bytes) {
            Ok(extents) => Some(Ok(extents)),
            Err(Shortage::NoSpace { available }) => Some(Err(ErrorReply::NoSpace { wanted: len, available })),
            Err(Shortage::Wait) => {
                self.short.push((requester, again));
                None
            }
            Err(Shortage::Grow(bytes)) => {
                self.effects.push_back(Effect::Grow { len: bytes });
                self.short.push((requester, again));
                None
            }
        }
    }

    fn handle_return(&mut self, from: NodeLife, extents: Extents) {
        for extent in extents {
            // Only the home for which it is held may give a chunk back, and only once.
            if self.store.is_held_for(from, &extent) {
                self.release(Extents::from_slice(&[extent]), BTreeSet::new());
            }
        }
    }

    /// Gives up chunks of ours, when nobody touches them any more: neither the tainted, nor our own driver.
    fn release(&mut self, extents: Extents, tainted: BTreeSet<NodeLife>) {
        let is_busy = |extent: &Extent| {
            self.copies.values().any(|copy| copy.to.touches(extent))
                || self.is_being_changed(extent)
                || self.is_being_populated(extent)
        };
        let (busy, free): (Extents, Extents) = extents.into_iter().partition(is_busy);
        if !busy.is_empty() {
            // Nobody may give them back a second time meanwhile.
            busy.iter().for_each(|extent| self.store.forget_foreign(extent));
            self.copied_into.push((busy, tainted.clone()));
        }
        self.store.release(&free, &tainted, &mut self.effects);
    }

    /// A copy is over: what waited for it may be given up, unless it waits for another.
    fn release_copied(&mut self) {
        for (extents, tainted) in std::mem::take(&mut self.copied_into) {
            let tainted = self.members.not_cut_off(tainted);
            self.release(extents, tainted);
        }
    }

    /// Gives chunks back to their owners.  Those whom we do not reach now, or who have not told yet all that they hold for us, are
    /// answered when they have.
    fn return_chunks(&mut self, extents: &[Extent]) {
        let mut by_owner: BTreeMap<NodeLife, Extents> = BTreeMap::new();
        for extent in extents {
            by_owner.entry(extent.owner).or_default().push(*extent);
        }
        for (owner, extents) in by_owner {
            if owner == self.config.life {
                self.release(extents, BTreeSet::new());
            } else if self.members.has_told_held(owner) {
                self.notify(owner.node, Notice::Return { extents });
            } else if self.members.is_alive(owner) {
                self.freed_early.entry(owner).or_default().extend(extents);
            }
        }
    }

    fn serve_copy(&mut self, requester: Requester, from: Extent, to: Extent) {
        let allowed = requester.life == self.config.life || self.store.is_held_for(requester.life, &to);
        let Some(target) = self.store.window(&to).filter(|_| allowed && from.len == to.len) else {
            return self.answer(requester, Err(ErrorReply::Malformed));
        };
        self.counter += 1;
        let token = Token(self.counter);
        match self.copy_effect(token, &from, &to, target) {
            Ok(effect) => {
                self.effects.push_back(effect);
                self.copies.insert(token, Copying { requester, source: from.owner.node, to });
            }
            Err(refusal) => self.answer(requester, Err(refusal)),
        }
    }

    /// What the driver does to copy `from`, wherever it is, to `to`, which is `target` here.
    fn copy_effect(
        &self,
        token: Token,
        from: &Extent,
        to: &Extent,
        target: Window,
    ) -> Result<Effect, ErrorReply> {
        match self.locator().place(from) {
            Place::Direct(from) => Ok(Effect::Copy { token, from, to: target }),
            Place::Posted { peer, address } => {
                let (key, offset, len) = (to.key, to.offset, to.len);
                Ok(Effect::Fetch { token, peer, address, key, offset, len })
            }
            Place::Frozen | Place::Down(_) => Err(ErrorReply::PeerDown(from.owner.node)),
        }
    }

    fn locator(&self) -> Locator<'_> {
        Locator { life: self.config.life, store: &self.store, members: &self.members, reach: &*self.reach }
    }
}

/// A chunk that is being copied into our memory.
#[derive(Debug)]
struct Copying {
    requester: Requester,
    /// The node that holds the source.
    source: NodeId,
    to: Extent,
}

/// Finds places with what the engine knows.
struct Locator<'a> {
    life: NodeLife,
    store: &'a Store,
    members: &'a Members,
    reach: &'a dyn Reach,
}

impl Locate for Locator<'_> {
    fn place(&self, extent: &Extent) -> Place {
        if extent.owner == self.life {
            return self.store.window(extent).map_or(Place::Down(extent.owner), Place::Direct);
        }
        match self.members.peer_of(extent.owner.node) {
            Some((peer, known)) if known.life == extent.owner => place_at(self.reach, peer, extent),
            _ => Place::Down(extent.owner),
        }
    }
}
