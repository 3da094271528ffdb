//! The runner: the engine and the state that must change in step with it, under one lock.
//!
//! [`Runner::settle`] follows each change before the lock is released: it applies effects, ends grace periods and posts
//! messages. The runner never blocks; long work becomes a job for a thread that holds no lock.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use halite_fabric::{
    Completion, CompletionKind, ConnectFailure, ConnectTrouble, CutOff, Event as FabricEvent, Fabric, PeerId,
};
use halite_mem::GracePeriod;
use halite_providers::refusals::Refusals;
use halite_tier::access::{DataPath, SlotRef};
use halite_tier::effect::{Command, Effect, OpId, Quiesce, Token};
use halite_tier::engine::{Connection, Engine, Listing};
use halite_tier::hello::BadHello;
use halite_tier::ids::{NodeId, NodeIncarnation, Principal, SessionId};
use halite_tier::message::NamesAt;
use halite_tier::news::{News, Over};
use halite_tier::rpc::Target;
use halite_tier::rpc::wire::CONTROL_IMM;

use crate::cluster::cluster_dir::{ClusterDir, TakenNumbers};
use crate::cluster::etcd::{EtcdClient, EtcdMessage};
use crate::cluster::ways::Ways;
use crate::driver::drained::DrainedNode;
use crate::driver::shaping::Shaping;
use crate::driver::ticket::{CommandStart, FollowUp, Tickets, Undo};
use crate::driver::timers::Timers;
use crate::driver::troubles::Troubles;
use crate::metrics::{AttachedSessions, Queues, Timings};
use crate::posted::{Fetch, Fetches, InFlight, OperationSnapshot};
use crate::rpc::Rpc;
use crate::rpc::peers::Peers;
use crate::runtime::event::Event;
use crate::runtime::jobs::{Done, Job};
use crate::runtime::outbox::{OutMessage, Outbox};
use crate::runtime::wait::Wakes;

/// Interval in nanoseconds between retries of deferred posts. They may wait for memory, which no event reports.
const RETRY_NS: u64 = 1_000_000;
/// Interval in nanoseconds between checks whether local accesses have ended. Each access takes at most 26 us, unless
/// its thread is descheduled.
const GRACE_CHECK_NS: u64 = 50_000;

/// State of a node that threads use without the runner's lock.
pub(crate) struct Shared {
    pub(crate) node: NodeId,
    pub(crate) fabric: Arc<dyn Fabric>,
    pub(crate) path: Arc<DataPath>,
    pub(crate) posted: Arc<InFlight>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) rpc: Rpc,
    /// Histograms of the durations of calls and posted accesses.
    pub(crate) timings: Timings,
    /// The policy for operations of different priority.
    pub(crate) shaping: Shaping,
    pub(crate) ways: Ways,
    /// Record of the assigned node numbers. Only the first node of a cluster of several hosts has it.
    pub(crate) numbers: Option<TakenNumbers>,
    pub(crate) member_changes: Event,
    /// Signals changes of handles, by the handle's index: a handle was frozen, updated or retired.
    pub(crate) handle_changes: Event<u32>,
    /// Signals that the node's drain has ended.
    pub(crate) drained: DrainedNode,
    /// The sessions of other processes that are attached to the node.
    pub(crate) attached: Arc<AttachedSessions>,
    /// Threads that carry transactions to etcd, if etcd keeps the names.
    pub(crate) etcd_client: EtcdClient,
    /// The cluster directory, in which nodes record where names are kept; `None` for a node without files.
    pub(crate) dir: Option<PathBuf>,
}

pub(crate) struct Runner {
    shared: Arc<Shared>,
    /// The engine; `None` when the node has left.
    engine: Option<Engine>,
    pub(crate) tickets: Tickets,
    pub(crate) wakes: Wakes,
    outbox: Outbox,
    jobs: VecDeque<Job>,
    grace_periods: Vec<PendingToken>,
    fetches: Fetches,
    pub(crate) timers: Timers,
    /// Time until which the progress thread sleeps; 0 while it is awake.
    pub(crate) progress_sleeps_until_ns: u64,
    pub(crate) dialling: Dialling,
    troubles: Troubles,
    /// Limits the number of log messages about refused peers.
    refusals: Refusals,
    /// Protocol version of the last peer that was refused because its version differs.
    pub(crate) other_version: Option<u16>,
    /// Set when another node has declared this incarnation dead.
    pub(crate) over: Option<Over>,
}

/// The accesses and posted operations that must end before the runner reports the end of a grace period to the engine.
#[derive(Debug)]
struct PendingToken {
    token: Token,
    grace: GracePeriod,
    snapshot: OperationSnapshot,
}

/// The connections that this node is dialling.
#[derive(Debug, Default)]
pub(crate) struct Dialling {
    /// Unanswered dials by address, the oldest first. The fabric answers each dial once.
    under_way: BTreeMap<String, VecDeque<Dial>>,
    pub(crate) failed: Vec<ConnectFailure>,
    /// The last failed dial that the engine wanted. A failure because the peer belongs to another cluster takes
    /// precedence.
    pub(crate) last_failure: Option<ConnectFailure>,
}

impl Dialling {
    fn record_failure(&mut self, failure: ConnectFailure) {
        let is_stranger = |failure: &ConnectFailure| failure.trouble == ConnectTrouble::Stranger;
        if is_stranger(&failure) || !self.last_failure.as_ref().is_some_and(is_stranger) {
            self.last_failure = Some(failure);
        }
    }
}

/// Reason why this node dials an address.
#[derive(Debug)]
enum Dial {
    /// The node joins, and connects to all members.
    Joining,
    Wanted(WantedDial),
}

/// A node that the engine wants dialled.
#[derive(Debug)]
struct WantedDial {
    /// The address that the node publishes.
    announced: String,
    /// Addresses of the node that remain to be tried.
    ways: VecDeque<String>,
    /// True if an earlier address of the node did not answer in time.
    is_silent: bool,
}

/// Returns an address in the form that the fabric reports. With several networks, the fabric reports addresses of the
/// first network without the network's name.
fn reported_address(fabric: &dyn Fabric, address: &str) -> String {
    let names = fabric.providers();
    let first = names.first().filter(|_| names.len() > 1);
    let rest = first.and_then(|first| address.strip_prefix(first)?.strip_prefix(':'));
    rest.unwrap_or(address).to_owned()
}

impl Dialling {
    /// Records a dial before the fabric can answer it.
    fn begin(&mut self, address: String, dial: Dial) {
        self.under_way.entry(address).or_default().push_back(dial);
    }

    fn take(&mut self, address: &str) -> Option<Dial> {
        let dials = self.under_way.get_mut(address)?;
        let oldest = dials.pop_front();
        if dials.is_empty() {
            self.under_way.remove(address);
        }
        oldest
    }

    fn is_joining(&self) -> bool {
        self.under_way.values().flatten().any(|dial| matches!(dial, Dial::Joining))
    }
}

impl Runner {
    pub(crate) fn new(shared: Arc<Shared>, engine: Engine) -> Runner {
        Runner {
            shared,
            engine: Some(engine),
            tickets: Tickets::default(),
            wakes: Wakes::default(),
            outbox: Outbox::default(),
            jobs: VecDeque::new(),
            grace_periods: Vec::new(),
            fetches: Fetches::default(),
            timers: Timers::default(),
            progress_sleeps_until_ns: 0,
            dialling: Dialling::default(),
            troubles: Troubles::default(),
            refusals: Refusals::default(),
            other_version: None,
            over: None,
        }
    }

    // Sessions and their commands.

    pub(crate) fn open_session(&mut self, principal: Principal) -> Option<SessionId> {
        self.engine.as_mut()?.open_session(principal)
    }

    /// Submits a command to the engine. Returns `None` if the node has left.
    pub(crate) fn submit(
        &mut self,
        now: u64,
        session: SessionId,
        command: Command,
        undo: Undo,
    ) -> Option<OpId> {
        let start = CommandStart { name: command.name(), at_ns: now };
        let op = self.engine.as_mut()?.submit(now, session, command);
        self.tickets.open(op, session, undo, start);
        Some(op)
    }

    pub(crate) fn abandon(&mut self, now: u64, op: OpId) {
        if let Some(follow_up) = self.tickets.abandon(op) {
            self.submit_follow_up(now, follow_up);
        }
    }

    fn submit_follow_up(&mut self, now: u64, follow_up: FollowUp) {
        let Some(engine) = &mut self.engine else { return };
        let start = CommandStart { name: follow_up.command.name(), at_ns: now };
        let op = engine.submit(now, follow_up.session, follow_up.command);
        self.tickets.open_abandoned(op, follow_up.session, follow_up.undo, start);
    }

    // Events of the fabric.

    pub(crate) fn handle_event(&mut self, now: u64, event: FabricEvent) {
        if let FabricEvent::ConnectFailed(failure) = &event
            && let Some(Dial::Wanted(mut dialled)) = self.take_dial(&failure.address)
        {
            tracing::debug!(
                "a dial of {} has failed: {} ({:?})",
                failure.address,
                failure.reason,
                failure.trouble
            );
            dialled.is_silent |= failure.trouble == ConnectTrouble::Silent;
            self.troubles.record_dial(&dialled.announced, failure);
            self.dialling.record_failure(failure.clone());
            return self.dial_next(now, dialled);
        }
        let Some(engine) = &mut self.engine else { return };
        match event {
            FabricEvent::Completed(completion) => self.handle_completion(now, completion),
            FabricEvent::Connected { peer, hello, dialled } => {
                let send_bytes_max = self.shared.fabric.capabilities(peer).send_bytes_max;
                let connection = Connection { peer, dialled: dialled.is_some(), send_bytes_max };
                engine.handle_connected(now, connection, &hello);
                if let Some(address) = dialled {
                    engine.handle_answered(&address);
                    self.take_dial(&address);
                }
            }
            FabricEvent::ConnectFailed(failure) => {
                engine.handle_join_dial_failed(&failure.address);
                self.dialling.failed.push(failure);
            }
            // Posts that wait in the runner are retried when it settles.
            FabricEvent::Room { .. } => self.shared.posted.retry(&mut self.wakes),
            // A node's memory stays registered as long as the node lives.
            FabricEvent::Deregistered { .. } => {}
            FabricEvent::Disconnected { peer } => {
                let reason = self.shared.fabric.take_end_reason(peer);
                engine.handle_disconnected(now, peer, reason);
                self.end_connection(peer);
            }
            FabricEvent::CutOff { peer, exited } => engine.handle_cut_off(now, peer, exited),
        }
    }

    // Changes of peers. Each part is informed here; none detects them itself.

    fn set_peer_up(&mut self, peer: PeerId, incarnation: NodeIncarnation) {
        let Shared { peers, rpc, .. } = &*self.shared;
        let link = rpc.make_link(peer, incarnation.node);
        peers.set_up(peer, incarnation, link.clone());
        if let Some(link) = link {
            rpc.handle_up(peer, &link);
        }
    }

    fn set_peer_down(&mut self, peer: PeerId) {
        let Shared { peers, rpc, posted, .. } = &*self.shared;
        let Some(transition) = peers.set_down(peer) else { return };
        self.outbox.handle_down(peer);
        posted.handle_down(peer, &mut self.wakes);
        if let Some(link) = transition.link {
            rpc.handle_down(peer, &link, &mut self.wakes);
        }
    }

    fn set_peer_cut_off(&mut self, peer: PeerId) {
        let Shared { peers, rpc, .. } = &*self.shared;
        if let Some(link) = peers.set_cut_off(peer).and_then(|transition| transition.link) {
            rpc.handle_cut_off(peer, &link);
        }
    }

    /// Ends the operations on a peer whose connection has ended, even if the engine has already given up the peer.
    fn end_connection(&mut self, peer: PeerId) {
        let Shared { peers, posted, .. } = &*self.shared;
        if peers.set_closed(peer) {
            posted.handle_closed(peer, &mut self.wakes);
        }
    }

    /// Records that a message of the peer has arrived and is about to be handled.
    pub(crate) fn handle_heard(&mut self, now: u64, peer: PeerId) {
        if let Some(engine) = &mut self.engine {
            engine.handle_heard(now, peer);
        }
    }

    /// Returns true if the first message of a new peer may still be missing on some connections.
    pub(crate) fn awaits_first_words(&self) -> bool {
        self.engine.as_ref().is_some_and(Engine::awaits_first_words)
    }

    /// Returns true if all dials have been answered and all resulting connections have been accepted or refused.
    pub(crate) fn has_ended_join_dials(&self) -> bool {
        !self.dialling.is_joining() && !self.engine.as_ref().is_some_and(Engine::is_meeting)
    }

    /// Removes the oldest dial to `address`, which has been answered.
    fn take_dial(&mut self, address: &str) -> Option<Dial> {
        self.shared.member_changes.trigger(&mut self.wakes);
        self.dialling.take(address)
    }

    /// Records that this node is about to dial all members, at `addresses`.
    pub(crate) fn begin_join_dials(&mut self, addresses: &[String]) {
        for address in addresses {
            self.dialling.begin(reported_address(&*self.shared.fabric, address), Dial::Joining);
        }
        if let Some(engine) = &mut self.engine {
            engine.begin_to_meet();
        }
    }

    /// Tells the engine that the fabric has answered all dials of the join.
    pub(crate) fn end_join_dials(&mut self, now: u64) {
        if let Some(engine) = &mut self.engine {
            engine.handle_all_met(now);
        }
    }

    fn handle_completion(&mut self, now: u64, completion: Completion) {
        match completion.kind {
            CompletionKind::Received { bytes, .. } => {
                if let Some(engine) = &mut self.engine {
                    engine.handle_message(now, completion.peer, &bytes);
                }
            }
            CompletionKind::Done { id } => {
                self.fetches.complete(id, completion.status);
            }
            // Handled earlier, without the runner's lock.
            CompletionKind::Atomic { .. } | CompletionKind::Notified { .. } => {}
        }
    }

    pub(crate) fn handle_job_done(&mut self, now: u64, done: Done) {
        let Some(engine) = &mut self.engine else { return };
        match done {
            Done::Grown(segment) => {
                if let Some((key, window)) = &segment {
                    self.shared.peers.write().arena.insert(*key, window.clone());
                }
                engine.handle_grown(now, segment);
            }
            Done::Copied(token) => engine.handle_copied(now, token),
            Done::Discarded(token) => engine.handle_discarded(now, token),
            Done::Populated { token, len, is_done } => engine.handle_populated(now, token, len, is_done),
            Done::Rest(rest) => self.jobs.push_back(rest),
        }
    }

    /// Handles the result of a transaction or probe that a carrier sent to etcd, or a listing of members.
    pub(crate) fn handle_etcd(&mut self, now: u64, message: EtcdMessage) {
        let Some(engine) = &mut self.engine else { return };
        match message {
            EtcdMessage::Stored(id, result) => engine.handle_stored(now, id, result),
            EtcdMessage::Tried(requester, result) => engine.handle_tried(now, requester, result),
            EtcdMessage::Listing(listing) => engine.handle_listed(now, listing),
        }
    }

    /// Handles the members that etcd listed when the node began to join, after this node has dialled them.
    pub(crate) fn handle_listed_members(&mut self, now: u64, members: Vec<(NodeId, String)>) {
        let Shared { fabric, ways, .. } = &*self.shared;
        let has_failed = |way: &String| {
            let way = reported_address(&**fabric, way);
            self.dialling.failed.iter().any(|failed| failed.address == way)
        };
        let unreached = members.iter().filter(|(_, announced)| ways.to(announced).iter().all(has_failed));
        let unreached: Vec<String> = unreached.map(|(_, announced)| announced.clone()).collect();
        let Some(engine) = &mut self.engine else { return };
        engine.handle_listed(now, Listing::All(members.into_iter().collect()));
        unreached.iter().for_each(|announced| engine.handle_dial_failed(announced));
    }

    /// Registers this node in etcd, and records etcd's address in the cluster directory for nodes of this host that
    /// join later.
    fn record_etcd(&self, at: &NamesAt) {
        let (Some(dir), Ok(address)) = (&self.shared.dir, at.address.parse()) else { return };
        if let Err(error) = self.shared.etcd_client.set_address(&address) {
            tracing::warn!("cannot start the thread that registers this node in etcd: {error}");
        }
        let written = ClusterDir::open(dir).and_then(|dir| dir.write_etcd(&address));
        if let Err(error) = written {
            tracing::warn!("cannot record in {} that names are in etcd: {error}", dir.display());
        }
    }

    /// Withdraws this node's entries from etcd, and removes etcd's address from the cluster directory.
    fn leave_etcd(&self) {
        self.shared.etcd_client.leave();
        let Some(dir) = &self.shared.dir else { return };
        if let Err(error) = ClusterDir::open(dir).and_then(|dir| dir.forget_etcd()) {
            tracing::warn!("cannot record in {} that names are at node 0: {error}", dir.display());
        }
    }

    // Settling.

    /// Executes everything that follows from earlier changes: effects, grace periods, messages and wake-ups.
    pub(crate) fn settle(&mut self, now: u64) {
        if self.engine.as_ref().and_then(Engine::poll_timeout).is_some_and(|due| due <= now) {
            let engine = self.engine.as_mut().expect("the timeout came from an engine");
            let fabric = &self.shared.fabric;
            engine
                .handle_signs_of_life(|peer| Some(now.saturating_sub(fabric.heard(peer)?.as_nanos() as u64)));
            engine.handle_dials(now, || fabric.is_being_answered());
            engine.handle_timeout(now);
        }
        self.timers.ring(now, &mut self.wakes);
        self.refusals.tell_left_out(now);
        if self.shared.rpc.client.next_deadline_ns() <= now {
            self.shared.rpc.client.handle_time(now, &mut self.wakes);
        }
        loop {
            while let Some(effect) = self.engine.as_mut().and_then(Engine::poll_effect) {
                self.apply(now, effect);
            }
            self.close_sessions(now);
            let fetched = self.settle_fetches(now);
            if !self.end_grace_periods(now) && !fetched {
                break;
            }
        }
        self.settle_calls();
        let Shared { fabric, rpc, .. } = &*self.shared;
        self.outbox.flush(&**fabric, |peer, post| rpc.post_counted(peer, post));
    }

    fn settle_calls(&mut self) {
        let rpc = &self.shared.rpc;
        if rpc.poster.take_dirty() || rpc.poster.has_deferred() {
            rpc.retry();
            for (peer, control) in rpc.poster.take_controls() {
                // A peer that is down gets no control messages.
                if self.shared.peers.is_up(peer) {
                    let (bytes, counts) = (control.emit(), control.is_ordered());
                    self.outbox.push(peer, OutMessage { imm: CONTROL_IMM, bytes, solicited: true, counts });
                }
            }
        }
    }

    fn apply(&mut self, now: u64, effect: Effect) {
        match effect {
            Effect::Send { peer, bytes, solicited } => {
                self.outbox.push(peer, OutMessage { imm: 0, bytes, solicited, counts: false });
            }
            Effect::PeerUp { peer, incarnation } => self.set_peer_up(peer, incarnation),
            Effect::PeerDown(peer) => self.set_peer_down(peer),
            Effect::CutOff(peer) => self.cut_off(now, peer),
            Effect::PeerCutOff(peer) => self.set_peer_cut_off(peer),
            Effect::Warn { peer, text } => self.shared.fabric.warn(peer, &text),
            Effect::News(News::Refused(why)) => {
                if let BadHello::Version(theirs) = why {
                    self.other_version = Some(theirs);
                }
                self.refusals.tell(now, || tracing::warn!("{}", News::Refused(why)));
            }
            Effect::News(news) => self.handle_news(&news),
            Effect::NumbersTaken { next } => {
                self.shared.numbers.iter().for_each(|numbers| numbers.record(next))
            }
            Effect::Disconnect(peer) => self.shared.fabric.disconnect(peer),
            Effect::End(over) => {
                self.over = Some(over);
                self.close();
                // Ends the program's wait, so that it lets the node leave.
                self.shared.drained.set(0);
            }
            Effect::Dial { address } => self.dial(now, address),
            Effect::Grow { len } => self.jobs.push_back(Job::Grow(len)),
            Effect::Quiesce(Quiesce { token, posted }) => {
                let grace = self.shared.path.pins().start_grace_period();
                let snapshot = self.shared.posted.snapshot(&posted);
                self.grace_periods.push(PendingToken { token, grace, snapshot });
            }
            Effect::Copy { token, from, to } => self.jobs.push_back(Job::Copy { token, from, to }),
            Effect::Fill { token, window, byte } => self.jobs.push_back(Job::Fill { token, window, byte }),
            Effect::Fetch { token, peer, address, key, offset, len } => {
                self.fetches.begin(token, Fetch { peer, from: address, key, offset, len });
            }
            Effect::Populate { token, key, offset, len } => {
                self.jobs.push_back(Job::Populate { token, key, offset, len })
            }
            Effect::Discard { token, key, offset, len } => {
                self.jobs.push_back(Job::Discard { token, key, offset, len })
            }
            Effect::Finish { op, outcome } => {
                if let Some(follow_up) = self.tickets.finish(now, op, outcome, &mut self.wakes) {
                    self.submit_follow_up(now, follow_up);
                }
            }
            Effect::Store { id, transaction } => self.shared.etcd_client.send(id, transaction),
            Effect::OpenStore(at) => self.shared.etcd_client.open_from_peer(&at.address),
            Effect::TryStore { requester, at } => self.shared.etcd_client.probe(requester, at.address),
            Effect::NamesAt(at) => self.record_etcd(&at),
            Effect::NamesBack => self.leave_etcd(),
            Effect::Draining { is_on } => {
                tracing::info!(
                    "{}",
                    if is_on {
                        "this node is being drained"
                    } else {
                        "the drain has ended; this node continues"
                    }
                );
                self.shared.rpc.server.set_draining(is_on);
            }
            Effect::Drained { left } => self.shared.drained.set(left),
            Effect::MembersChanged => self.shared.member_changes.trigger(&mut self.wakes),
            Effect::HandlesChanged(handles) => {
                self.shared.handle_changes.trigger_for(&handles, &mut self.wakes)
            }
        }
    }

    fn handle_news(&mut self, news: &News) {
        self.troubles.record_news(news, |node| self.engine.as_ref()?.address_of(node));
        match news {
            news if news.is_trouble() => tracing::warn!("{news}"),
            news if news.is_routine() => tracing::debug!("{news}"),
            news => tracing::info!("{news}"),
        }
    }

    /// Returns why a node is out of reach; `None` if that is unknown.
    pub(crate) fn trouble_of(&self, node: NodeId) -> Option<String> {
        self.troubles.of(node, self.engine.as_ref()?.address_of(node))
    }

    fn cut_off(&mut self, now: u64, peer: PeerId) {
        let begun = self.shared.fabric.cut_off(peer);
        let Some(engine) = &mut self.engine else { return };
        match begun {
            CutOff::Done => engine.handle_cut_off(now, peer, false),
            CutOff::Started => engine.handle_kill(now, peer),
            // The engine keeps the memory that the peer could reach in quarantine until the peer learns of this and
            // lets go by itself.
            CutOff::NotPermitted => self.shared.fabric.disconnect(peer),
        }
    }

    /// Dials a node to which the engine wants a connection.
    fn dial(&mut self, now: u64, announced: String) {
        let ways = self.shared.ways.to(&announced).into();
        self.dial_next(now, WantedDial { announced, ways, is_silent: false });
    }

    fn dial_next(&mut self, now: u64, mut dialled: WantedDial) {
        match (dialled.ways.pop_front(), &mut self.engine) {
            (Some(way), Some(engine)) => {
                let hello = engine.hello();
                self.dialling.begin(reported_address(&*self.shared.fabric, &way), Dial::Wanted(dialled));
                self.shared.fabric.connect(&way, &hello);
            }
            (None, Some(engine)) => {
                match dialled.is_silent {
                    true => engine.handle_dial_unanswered(now, &dialled.announced),
                    false => engine.handle_dial_failed(&dialled.announced),
                }
                self.shared.member_changes.trigger(&mut self.wakes);
            }
            (_, None) => {}
        }
    }

    fn close_sessions(&mut self, now: u64) {
        while let Some(session) = self.tickets.poll_closable() {
            if let Some(engine) = &mut self.engine {
                engine.close_session(now, session);
            }
        }
    }

    /// Ends grace periods that are over. Returns true if there was one.
    fn end_grace_periods(&mut self, now: u64) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        let before = self.grace_periods.len();
        let shared = &self.shared;
        self.grace_periods.retain_mut(|waiting| {
            let elapsed = waiting.grace.elapsed(shared.path.pins());
            let Some(elapsed) = elapsed.filter(|_| shared.posted.is_over(&mut waiting.snapshot)) else {
                return true;
            };
            engine.handle_quiescent(now, waiting.token, elapsed);
            false
        });
        self.grace_periods.len() < before
    }

    /// Advances the fetches of moved chunks from peers. Returns true if one has ended.
    fn settle_fetches(&mut self, now: u64) -> bool {
        let ended = self.fetches.advance(&*self.shared.fabric);
        let any = !ended.is_empty();
        for (token, result) in ended {
            match (&mut self.engine, result) {
                (Some(engine), Ok(())) => engine.handle_copied(now, token),
                (Some(engine), Err(why)) => engine.handle_copy_failed(now, token, why),
                (None, _) => {}
            }
        }
        any
    }

    // Queries.

    /// Returns the next job, for a thread that holds no lock.
    pub(crate) fn poll_job(&mut self) -> Option<Job> {
        self.jobs.pop_front()
    }

    /// Returns the time at which the runner needs attention, even if nothing arrives before.
    pub(crate) fn attention_ns(&self, now: u64) -> u64 {
        if !self.jobs.is_empty() {
            return 0;
        }
        let timeout = self.engine.as_ref().and_then(Engine::poll_timeout).unwrap_or(u64::MAX);
        let grace = if self.grace_periods.is_empty() { u64::MAX } else { now + GRACE_CHECK_NS };
        let overdue = self.shared.rpc.client.next_deadline_ns();
        let timer = self.timers.next_ns().unwrap_or(u64::MAX);
        let retry = if self.shared.rpc.poster.has_deferred() { now + RETRY_NS } else { u64::MAX };
        timeout.min(grace).min(retry).min(overdue).min(timer).min(self.refusals.due_ns())
    }

    pub(crate) fn queues(&self) -> Queues {
        let (messages, message_bytes) = self.outbox.waiting();
        Queues { commands: self.tickets.len(), jobs: self.jobs.len(), messages, message_bytes }
    }

    /// Returns the engine; `None` if the node has left.
    pub(crate) fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }

    /// Returns the hello that this node sends to peers.
    pub(crate) fn hello(&self) -> Vec<u8> {
        self.engine.as_ref().map(Engine::hello).unwrap_or_default()
    }

    pub(crate) fn is_connected_to(&self, node: NodeId) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.is_connected_to(node))
    }

    /// Returns true if peers have told this node the address of the first node.
    pub(crate) fn knows_first_node(&self) -> bool {
        self.engine.as_ref().is_some_and(Engine::knows_directory_node)
    }

    /// Returns true if this node knows no other node to connect to.
    pub(crate) fn is_alone(&self) -> bool {
        self.engine.as_ref().is_none_or(Engine::is_alone)
    }

    /// Returns the way to reach a node: its connection, or this node itself; `None` if the node is not up.
    pub(crate) fn target_of(&self, node: NodeId) -> Option<Target> {
        self.engine.as_ref()?.target_of(node)
    }

    /// Connects to a member on its first use, or asks the directory about it. Returns true while that is in progress.
    pub(crate) fn use_node(&mut self, now: u64, node: NodeId) -> bool {
        self.engine.as_mut().is_some_and(|engine| engine.use_node(now, node))
    }

    /// Returns true while this node connects to the member for the first time, or asks the directory about it.
    pub(crate) fn is_connecting(&self, node: NodeId) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.is_connecting(node))
    }

    /// Returns true if a node with that number is or was in the cluster.
    pub(crate) fn knows(&self, node: NodeId) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.knows(node))
    }

    /// Returns true if a node with that number may live and was never connected to this node.
    pub(crate) fn is_unmet(&self, node: NodeId) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.is_unmet(node))
    }

    /// Returns the time until which no other session can get the lock behind a handle, in nanoseconds; `None` if
    /// another session may have the lock.
    pub(crate) fn lock_is_kept_until_ns(&self, session: SessionId, slot: SlotRef) -> Option<u64> {
        self.engine.as_ref()?.lock_is_kept_until_ns(session, slot)
    }

    /// Returns the incarnation of a node that is up; `None` for other nodes.
    pub(crate) fn incarnation_of(&self, node: NodeId) -> Option<NodeIncarnation> {
        self.engine.as_ref()?.incarnation_of(node)
    }

    // Leaving.

    pub(crate) fn leave(&mut self, now: u64) {
        if let Some(engine) = &mut self.engine {
            engine.leave(now);
        }
    }

    /// Returns true if no message, grace period or farewell message is pending.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_deregistered = self.engine.as_ref().is_none_or(Engine::is_deregistered);
        self.outbox.is_empty() && self.grace_periods.is_empty() && is_deregistered
    }

    /// Drops the engine and ends all waits.
    pub(crate) fn close(&mut self) {
        self.engine = None;
        self.timers.ring(u64::MAX, &mut self.wakes);
        self.jobs.clear();
        self.grace_periods.clear();
        self.tickets.end_all(self.shared.node, &mut self.wakes);
        self.shared.posted.close(&mut self.wakes);
        self.shared.rpc.close(&mut self.wakes);
        self.shared.member_changes.trigger(&mut self.wakes);
        self.shared.handle_changes.trigger(&mut self.wakes);
    }
}
