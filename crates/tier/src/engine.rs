//! The engine: the state machine of one node. Messages, events and commands go in; effects come out.
//!
//! ```text
//!   sessions ── submit ──┐                        ┌── poll_effect ──> driver (sends, copies, grace periods)
//!   fabric  ── handle_* ─┴──>  Engine { members,  ┘
//!                                directory, homes, store, mapper }
//! ```
//!
//! Requests of a node to itself take the same path as requests to peers, through an internal queue.

mod context;
mod deferred;
mod directory;
mod draining;
mod explain;
mod figures;
mod home;
mod mapping;
mod membership;
mod on_demand;
mod owner;
mod sessions;

use std::collections::BTreeSet;
use std::sync::Arc;

use halite_fabric::{Key, PeerId};
use halite_mem::{Elapsed, Window};

use self::context::{Admission, Answered, Context, Outbox, Purpose};
use self::deferred::Deferred;
use self::directory::DirectoryPart;
use self::home::barriers::Barriers;
use self::home::evidence::Evidence;
use self::home::locks::{Locks, Waiter};
use self::home::watching::Watching;
use self::home::{HomeSide, Homes};
use self::membership::Membership;
use self::owner::{Owner, OwnerSide, Reservation};
use self::sessions::{Commands, SessionSide, StatusScope, UserStep};
use crate::access::DataPath;
use crate::directory::{Directory, Embedded};
use crate::effect::{Command, CopyFailure, Effect, OpId, Token};
use crate::hello::Hello;
use crate::ids::{NodeId, NodeIncarnation, Principal, RequestId, Requester, SessionId};
use crate::mapper::{Mapper, Reach};
use crate::message::{self, ErrorReply, Message, Notice, Reply, Request};
use crate::news::News;
use crate::quota::{Amounts, RegionUse};

pub use context::REQUESTS_OF_NODE_MAX;
pub use explain::KnownPeer;
pub use figures::Figures;
pub use home::watching::WATCHERS_MAX;
pub use membership::Listing;
pub use sessions::memory::COMMAND_BYTES_MAX;

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Number of this node and its random incarnation.
    pub incarnation: NodeIncarnation,
    /// Process id of this node, for display.
    pub pid: u32,
    /// Lease: time without a sign of life after which a peer counts as dead, in ns.
    pub lease_ns: u64,
    /// Maximum bytes of memory that this node contributes to regions.
    pub bytes_total: u64,
    /// Length in bytes of the segments by which this node's arena grows.
    pub segment_bytes: u64,
    /// Time of day, in ns since 1970, at which the clock behind `now_ns` was 0.
    pub epoch_ns: u64,
    /// Address at which peers dial this node; empty if no peer can dial it.
    pub address: String,
    /// Names of the fabric's providers, for display.
    pub provider: String,
    /// Maximum number of nodes in a cluster whose nodes all connect to each other. In a larger cluster, a node connects
    /// only to the directory's node and to the nodes that it uses.
    pub full_mesh_nodes_max: usize,
}

impl EngineConfig {
    fn hello(&self) -> Hello {
        let address = self.address.clone();
        Hello { incarnation: self.incarnation, pid: self.pid, bytes_total: self.bytes_total, address }
    }
}

/// A new connection to a peer, as the driver reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// The connected peer.
    pub peer: PeerId,
    /// True if this node dialled the peer. The peer then counts as having joined the cluster before this node.
    pub dialled: bool,
    /// Maximum length of one send to the peer, in bytes.
    pub send_bytes_max: usize,
}

/// The state machine of one node. The documentation of the module shows its inputs and outputs.
///
/// Each part keeps its state private to its file. Types such as `HomeSide` borrow the states that one part may change.
pub struct Engine {
    out: Outbox,
    membership: Membership,
    directory: DirectoryPart,
    homes: Homes,
    evidence: Evidence,
    locks: Locks,
    barriers: Barriers,
    watching: Watching,
    owner: Owner,
    mapper: Mapper,
    deferred: Deferred,
    commands: Commands,
}

impl Engine {
    /// Creates the engine of a node that has no peers yet, with the embedded directory.
    pub fn new(config: EngineConfig, path: Arc<DataPath>, reach: Arc<dyn Reach>, now_ns: u64) -> Engine {
        let directory = Box::new(Embedded::new(config.incarnation.node));
        Engine::with_directory(config, path, reach, directory, now_ns)
    }

    /// Creates the engine of a node that has no peers yet, with the given directory.
    pub fn with_directory(
        config: EngineConfig,
        path: Arc<DataPath>,
        reach: Arc<dyn Reach>,
        directory: Box<dyn Directory>,
        now_ns: u64,
    ) -> Engine {
        Engine {
            membership: Membership::new(&config, now_ns),
            directory: DirectoryPart::new(directory),
            homes: Homes::default(),
            evidence: Evidence::default(),
            locks: Locks::default(),
            barriers: Barriers::default(),
            watching: Watching::default(),
            owner: Owner::new(&config, reach),
            mapper: Mapper::new(path),
            deferred: Deferred::default(),
            commands: Commands::default(),
            out: Outbox::new(config, now_ns),
        }
    }

    // Borrows of the parts.

    fn cx(&mut self) -> Context<'_> {
        Context::new(&mut self.out, &self.membership, &self.directory)
    }

    fn directory_side(&mut self) -> (&mut DirectoryPart, Context<'_>) {
        let cx = Context::new(&mut self.out, &self.membership, &self.directory);
        (&mut self.directory, cx)
    }

    fn home_side(&mut self) -> HomeSide<'_> {
        HomeSide {
            cx: Context::new(&mut self.out, &self.membership, &self.directory),
            homes: &mut self.homes,
            evidence: &mut self.evidence,
            locks: &mut self.locks,
            barriers: &mut self.barriers,
            watching: &mut self.watching,
            owner: &mut self.owner,
        }
    }

    fn owner_side(&mut self) -> OwnerSide<'_> {
        let cx = Context::new(&mut self.out, &self.membership, &self.directory);
        OwnerSide { cx, owner: &mut self.owner, homes: &self.homes }
    }

    fn session_side(&mut self) -> SessionSide<'_> {
        SessionSide {
            cx: Context::new(&mut self.out, &self.membership, &self.directory),
            commands: &mut self.commands,
            mapper: &mut self.mapper,
            deferred: &mut self.deferred,
            owner: &self.owner,
            servers: &mut self.homes.servers,
        }
    }

    // Sessions.

    /// Opens a session that acts as `principal`. Returns `None` if the maximum number of sessions is open.
    pub fn open_session(&mut self, principal: Principal) -> Option<SessionId> {
        self.mapper.open_session(principal)
    }

    /// Sets the quotas `max` on the regions whose home is this node, for each principal other than `own`.
    pub fn limit_regions(&mut self, own: Principal, max: Amounts) {
        self.homes.usage_mut().limit(own, max);
    }

    /// Returns the regions whose home is this node, counted per principal, without those of the node's own principal.
    pub fn region_use(&self) -> &RegionUse {
        self.homes.usage()
    }

    /// Returns the number of handles of a session.
    pub fn handle_count_of(&self, session: SessionId) -> u64 {
        self.mapper.handle_count_of(session)
    }

    /// Ends a session and unmaps all its handles.
    pub fn close_session(&mut self, now_ns: u64, session: SessionId) {
        self.out.set_now(now_ns);
        self.session_side().close(session);
        self.run_loopback();
    }

    /// Starts a command of a session. [`Effect::Finish`] reports its result, and may already be queued when this method
    /// returns.
    pub fn submit(&mut self, now_ns: u64, session: SessionId, command: Command) -> OpId {
        self.out.set_now(now_ns);
        let op = OpId(self.out.next_number());
        if self.membership.is_leaving() {
            let node = self.out.config().incarnation.node;
            self.cx().finish(op, Err(ErrorReply::NodeClosed(node).into()));
            return op;
        }
        self.session_side().start(op, session, command);
        self.run_loopback();
        op
    }

    // Messages and effects.

    /// Returns the encoded hello: the message that this node sends first over a new connection.
    pub fn hello(&self) -> Vec<u8> {
        self.out.config().hello().encode()
    }

    /// Removes and returns the next effect for the driver to carry out; `None` if there is none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.out.poll_effect()
    }

    /// Handles a frame from a peer: a message or a fragment of a message.
    pub fn handle_message(&mut self, now_ns: u64, peer: PeerId, frame: &[u8]) {
        self.handle_heard(now_ns, peer);
        self.out.set_now(now_ns);
        let Some(received) = self.membership.handle_frame(now_ns, peer, frame) else {
            self.handle_early_frame(peer, frame);
            return self.run_loopback();
        };
        let Ok(complete) = received.message else { return self.reject(peer) };
        let Some(bytes) = complete else { return };
        match message::decode(&bytes) {
            Ok(message) => self.dispatch(received.from, message),
            Err(_) => return self.reject(peer),
        }
        self.run_loopback();
    }

    /// Treats a peer that sends malformed messages as dead.
    fn reject(&mut self, peer: PeerId) {
        self.report_peer(peer, News::Malformed);
        self.out.push(Effect::Disconnect(peer));
        self.declare_dead(peer);
        self.run_loopback();
    }

    /// Handles queued messages of this node to itself until the queue is empty.
    fn run_loopback(&mut self) {
        while let Some(message) = self.out.poll_loopback() {
            self.dispatch(self.out.incarnation(), message);
        }
        self.owner.report_quarantine(&mut self.out);
    }

    fn dispatch(&mut self, from: NodeIncarnation, message: Message) {
        match message {
            Message::Request { id, body } => self.admit_request(Requester { incarnation: from, id }, body),
            Message::Reply { id, body } => self.handle_reply(from, id, body),
            Message::Notice(notice) => self.handle_notice(from, notice),
        }
    }

    fn admit_request(&mut self, requester: Requester, request: Request) {
        match self.out.begin_serving(requester) {
            Admission::Served => self.handle_request(requester, request),
            Admission::Repeated => {}
            Admission::TooMany => {
                let max = REQUESTS_OF_NODE_MAX as u64;
                self.cx().answer(requester, Err(ErrorReply::TooManyRequests { max }))
            }
        }
    }

    fn handle_request(&mut self, requester: Requester, request: Request) {
        match request {
            Request::ReleaseName { name, region } if self.is_asked_as_home(requester) => {
                self.serve_leftover_name(requester, &name, region)
            }
            Request::ClaimName { .. }
            | Request::ReleaseName { .. }
            | Request::FindName { .. }
            | Request::ListNames { .. }
            | Request::ListLost { .. }
            | Request::ForgetName { .. }
            | Request::ForgetNode { .. } => self.serve_directory(requester, request),
            Request::MoveNames { to } => {
                let (directory, mut cx) = self.directory_side();
                directory.serve_move(&mut cx, requester, to)
            }
            Request::MoveNamesBack => {
                let (directory, mut cx) = self.directory_side();
                directory.serve_return(&mut cx, requester)
            }
            Request::TryNames { at } if self.directory.has_left(&at) => {
                let reason =
                    "the names were moved back to node 0 from there; choose another prefix".to_owned();
                self.cx().answer(requester, Err(ErrorReply::NamesNotMoved { reason }))
            }
            Request::TryNames { at } => match at.is_well_formed() {
                true => self.out.push(Effect::TryStore { requester, at }),
                false => self.cx().answer(requester, Err(ErrorReply::Malformed)),
            },
            Request::TakeNumber => {
                let reusable =
                    self.directory.last_reissued_number().and_then(|last| self.reusable_number(last));
                let (directory, mut cx) = self.directory_side();
                directory.serve_number(&mut cx, requester, reusable)
            }
            Request::ListMembers => {
                let members = self.membership.members().described(self.out.now_ns()).collect();
                self.cx().answer(requester, Ok(Reply::Members { members }))
            }
            Request::Alloc { .. } => self.home_side().serve_alloc(requester, request),
            Request::Map { region, principal, wanted, name } => {
                self.home_side().serve_map(requester, region, principal, wanted, name)
            }
            Request::Stat { region } => self.home_side().serve_stat(requester, region),
            Request::Describe { regions } => self.home_side().serve_describe(requester, &regions),
            Request::RegionCommand { region, principal, command } => {
                self.home_side().serve_region_command(requester, region, principal, command)
            }
            Request::Reserve { region, chunk_bytes, len, populate } => {
                let wanted = Reservation { region, chunk_bytes, len, populate };
                self.owner_side().serve_reserve(requester, wanted)
            }
            Request::CopyChunk { from, to } => self.owner_side().serve_copy(requester, from, to),
            Request::FillBytes { region, parts, byte } => {
                self.owner_side().serve_fill(requester, region, parts, byte)
            }
            Request::CopyBytes { to, from, copy_segments, backward } => {
                self.owner_side().serve_copy_bytes(requester, (to, from), copy_segments, backward)
            }
            Request::Change { region, change, .. } => self.serve_change(requester, region, change),
            Request::Lock { region, .. }
            | Request::Unlock { region, .. }
            | Request::Arrive { region, .. }
                if self.home_side().defer_or_redirect(requester, region, &request) => {}
            Request::Lock { region, principal, session, wait, base_ns } => {
                self.out.record_time(base_ns);
                let waiter = Waiter::new(requester, session, principal, base_ns);
                self.home_side().serve_lock(waiter, region, wait)
            }
            Request::Unlock { region, session, recover } => {
                self.home_side().serve_unlock(requester, region, session, recover)
            }
            Request::Arrive { region, principal, participants, timeout_ns } => {
                self.home_side().serve_arrival(requester, region, &principal, participants, timeout_ns)
            }
            Request::Watch { .. } | Request::Unwatch { .. } | Request::ListWatchers { .. } => {
                self.home_side().serve_watching(requester, request)
            }
            Request::DropHome { home } => self.serve_drop_home(requester, home),
            Request::Relay { to, pairing } => self.home_side().serve_relay(requester, to, pairing),
            Request::Retire { home, pairing } => self.serve_retire(requester, home, pairing),
            Request::Adopt { record } => self.home_side().serve_adopt(requester, *record),
            Request::Reach { node } => {
                let body = self.reach_of(node).map(Reply::Reached).ok_or(ErrorReply::UnknownNode(node));
                self.cx().answer(requester, body)
            }
            Request::Drain { within_ns, stays } => self.serve_drain(requester, within_ns, stays),
            Request::Status => {
                let status = Box::new(self.own_status());
                self.cx().answer(requester, Ok(Reply::Status(status)))
            }
        }
    }

    fn handle_reply(&mut self, from: NodeIncarnation, id: RequestId, body: Result<Reply, ErrorReply>) {
        let Some(Answered { purpose, sent_ns, question }) = self.out.take_pending(id, from.node) else {
            return;
        };
        self.membership.record_acknowledged(from, sent_ns, self.out.now_ns());
        if let (Err(ErrorReply::NamesElsewhere), Some(question), true) =
            (&body, question, self.directory.is_outside() || from == self.out.incarnation())
        {
            // The names were being moved, and the directory did not process this request: repeat it at the new
            // location.
            return self.cx().ask_directory(*question, purpose);
        }
        let body = match body {
            // Node 0 does not know yet that the names have moved back to it.
            Err(ErrorReply::NamesElsewhere) => {
                let reason = "the names are moving back to node 0; try again".to_owned();
                Err(ErrorReply::DirectoryOut { reason })
            }
            body => body,
        };
        match purpose {
            Purpose::User(op, UserStep::Members(scope)) => self.continue_status(op, scope, from, body),
            Purpose::User(op, step) => self.session_side().continue_command(op, step, from, body),
            Purpose::Claim(region) => self.home_side().continue_creation(region, from, body),
            // The directory has released the name, or has lost it together with its state.
            Purpose::Unclaim(requester, failure) => self.cx().answer(requester, Err(failure)),
            Purpose::Name(region) => self.home_side().handle_named(region, body),
            Purpose::ReserveForAlloc(region) => self.home_side().continue_creation(region, from, body),
            Purpose::ReserveForMove(region) => self.home_side().handle_move_reserved(region, body),
            // A reply that only reports the end of a pairing acknowledges nothing.
            Purpose::Change(..) if matches!(body, Err(ErrorReply::PeerDown(_) | ErrorReply::NotMet(_))) => {}
            Purpose::Change(region, epoch) => self.home_side().handle_acknowledged(region, epoch, from),
            Purpose::Relay { mapper, pairing, owner } => {
                self.home_side().handle_relayed((mapper, pairing), owner, body)
            }
            Purpose::Retire(requester, mapper) => self.home_side().handle_retired(requester, mapper, body),
            Purpose::OneWay => {}
            Purpose::Release(region) => self.home_side().handle_name_released(region),
            Purpose::CopyChunk(region) => self.home_side().handle_chunk_copied(region, body),
            Purpose::Adopt(region) => self.home_side().handle_adopted(region, body),
            Purpose::Sweep(home) => self.owner_side().handle_swept(home, from),
            Purpose::Memory(op, node) => {
                if self.session_side().handle_memory_done(op, node, from, body) {
                    self.complete_deferred();
                }
            }
            Purpose::Wait(op) => self.session_side().end_wait(op, body),
            Purpose::FreeBytes(node) => self.handle_free_bytes(node, body),
            Purpose::Vacate(region) => self.handle_vacated(region, body),
            Purpose::TryNames(node) => {
                let (directory, mut cx) = self.directory_side();
                directory.handle_reach_report(&mut cx, node, body)
            }
            Purpose::AskHome(id, home) => self.handle_home_reply(id, home, from, &body),
            Purpose::Inquiry(node) => self.handle_inquired(node, body),
        }
    }

    /// Handles the list of members from the directory or another member, or a failed request for it.
    fn continue_status(
        &mut self,
        op: OpId,
        scope: StatusScope,
        from: NodeIncarnation,
        body: Result<Reply, ErrorReply>,
    ) {
        let mut indirect = Vec::new();
        match body {
            Ok(Reply::Members { members }) if from.node == self.directory.seat() => {
                self.membership.learn(members, self.out.incarnation().node, self.out.now_ns());
                self.out.push(Effect::MembersChanged);
            }
            Ok(Reply::Members { members }) => indirect = members,
            _ => {}
        }
        self.session_side().request_statuses(op, scope, indirect);
    }

    fn handle_notice(&mut self, from: NodeIncarnation, notice: Notice) {
        match notice {
            Notice::Heartbeat { sent_ns, heard_ns, time_ns, bytes_taken } => {
                self.out.record_time(time_ns);
                self.membership.record_beat(from, sent_ns, bytes_taken);
                self.membership.record_acknowledged(from, heard_ns, self.out.now_ns());
            }
            // Repeats an earlier welcome, so it changes nothing.
            Notice::Welcome { .. } => {}
            Notice::Paired { pairing } => self.membership.record_number(from, pairing),
            Notice::Held { held, done, seat, time_ns } => {
                self.out.record_time(time_ns);
                if let Some(seat) = seat {
                    self.record_directory(vec![seat]);
                }
                self.home_side().handle_held(from, held, done);
                if done {
                    self.membership.record_held_reported(from);
                }
            }
            Notice::Known { living, unreachable, ended } => {
                self.handle_known(from, living, unreachable, ended)
            }
            Notice::Leave => self.handle_leave(from),
            Notice::Unmapped { region, upto } => self.home_side().handle_unmapped(region, from, upto),
            Notice::UnmappedBy { region, node, upto } => self.home_side().handle_unmapped(region, node, upto),
            Notice::Swept { homes } => self.disown(from, &homes),
            Notice::Names { names, done } => self.handle_names(from, names, done),
            Notice::NameLost { name, region } => {
                if from.node == self.directory.names_seat(self.out.incarnation().node) {
                    self.home_side().lose_name(&name, region);
                }
            }
            Notice::CancelLock { region, session, request } => {
                self.home_side().handle_cancelled(from, region, session, request)
            }
            Notice::Withdraw { region, request } => {
                self.home_side().withdraw(region, Requester { incarnation: from, id: request })
            }
            Notice::Return { extents } => self.owner_side().handle_return(from, extents),
            Notice::Seen { members, ended } => self.handle_seen(members, ended),
            Notice::Killing { incarnation } => self.handle_killing(from, incarnation),
            Notice::Draining { is_on } => {
                self.membership.record_draining(from, is_on);
                if !is_on {
                    self.home_side().withdraw_moves(from, &BTreeSet::new());
                }
            }
            // Any message counts as acceptance of an offer, so this may arrive over a connection that is already up.
            Notice::Over => self.end_own_incarnation(from.node),
            Notice::Moved { name, region, epoch, to } => self.handle_moved(name, region, epoch, to),
            Notice::NamesAt(at) => self.handle_names_at(from, at),
            Notice::NamesBack { prefix } => self.handle_names_back(from, prefix),
        }
    }

    // Completions from the driver.

    /// Handles the result of [`Effect::Grow`]: the new segment, or `None` if the arena could not grow.
    pub fn handle_grown(&mut self, now_ns: u64, segment: Option<(Key, Window)>) {
        self.out.set_now(now_ns);
        self.owner_side().handle_grown(segment);
        self.run_loopback();
    }

    /// Handles the end of the grace period `token`: all accesses that began before it have ended.
    pub fn handle_quiescent(&mut self, now_ns: u64, token: Token, elapsed: Elapsed) {
        self.out.set_now(now_ns);
        let locator = self.owner.locator(self.out.incarnation(), self.membership.members());
        let changed = self.mapper.handle_quiescent(token, elapsed, &locator);
        self.handle_grace_period_over(token);
        if !changed.is_empty() {
            self.out.push(Effect::HandlesChanged(changed));
        }
        self.run_loopback();
    }

    /// Handles the completion of [`Effect::Copy`], [`Effect::Fill`] or [`Effect::Fetch`].
    pub fn handle_copied(&mut self, now_ns: u64, token: Token) {
        self.end_copy(now_ns, token, None);
    }

    /// Handles the failure of [`Effect::Fetch`]. `why` is the cause.
    pub fn handle_copy_failed(&mut self, now_ns: u64, token: Token, why: CopyFailure) {
        self.end_copy(now_ns, token, Some(why));
    }

    fn end_copy(&mut self, now_ns: u64, token: Token, failed: Option<CopyFailure>) {
        self.out.set_now(now_ns);
        let aborted = self.owner_side().handle_copied(token, failed);
        self.resume_after_abort(aborted);
        self.run_loopback();
    }

    /// Resumes the work that waited for the end of a command whose `requester` has lost its pairing.
    fn resume_after_abort(&mut self, requester: Option<NodeIncarnation>) {
        if let Some(incarnation) = requester {
            self.home_side().handle_reach_changed(incarnation);
            self.pair_all();
            self.owner_side().release_copied();
        }
    }

    /// Handles the end of [`Effect::Populate`] for `len` bytes. `is_done` is false if the operating system refused to
    /// allocate the pages.
    pub fn handle_populated(&mut self, now_ns: u64, token: Token, len: u64, is_done: bool) {
        self.out.set_now(now_ns);
        self.owner_side().handle_populated(token, len, is_done);
        self.run_loopback();
    }

    /// Handles the completion of [`Effect::Discard`]: the memory reads as zero again.
    pub fn handle_discarded(&mut self, now_ns: u64, token: Token) {
        self.out.set_now(now_ns);
        self.owner_side().handle_discarded(token);
        self.run_loopback();
    }

    // Queries by the driver.

    /// Returns true if other nodes are executing fills or copies for sessions of this node.
    pub fn has_commands_under_way(&self) -> bool {
        self.commands.has_copies()
    }

    /// Returns true if this node knows that a node with this number is or was in the cluster. Always true for the first
    /// node.
    pub fn knows(&self, node: NodeId) -> bool {
        self.membership.knows(node)
    }

    /// Returns true if this node knows a node with number `node` that may be alive, but has never been connected to it.
    pub fn is_unmet(&self, node: NodeId) -> bool {
        self.membership.is_unmet(node)
    }
}
