//! The machine: the engine and everything that must change in step with it, under one lock.
//!
//! Whoever changes it lets it settle before letting go of the lock: effects are carried out, graces ended and
//! messages posted.  It never blocks; what takes long becomes a job for whoever has no lock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use halite_fabric::{
    Completion, CompletionKind, ConnectFailure, CutOff, Event as FabricEvent, Fabric, PeerId,
};
use halite_mem::Grace;
use halite_tier::access::DataPath;
use halite_tier::effect::{Command, Effect, OpId, Quiesce, Token};
use halite_tier::engine::{Connection, Engine};
use halite_tier::ids::{NodeId, NodeLife, Principal, SessionId};
use halite_tier::message;
use halite_tier::rpc::Target;
use halite_tier::rpc::wire::NOTE_IMM;

use crate::alarm::Alarms;
use crate::fetches::{Fetch, Fetches};
use crate::jobs::{Done, Job};
use crate::outbox::{OutMessage, Outbox};
use crate::posted::{Mark, Posted};
use crate::rpc::Rpc;
use crate::ticket::{Chore, Tickets, Undo};
use crate::wait::{Event, Wakes};

/// How soon is looked again for what nobody tells: room in a peer's ring for requests, and memory.
const LOOK_AGAIN_NS: u64 = 1_000_000;
/// How often it is looked whether local accesses are over: each takes 26 us at most, unless its thread is
/// descheduled in the middle.
const GRACE_LOOK_NS: u64 = 50_000;

/// What the machine and everybody else use without its lock.
pub(crate) struct Ground {
    pub(crate) fabric: Arc<dyn Fabric>,
    pub(crate) path: Arc<DataPath>,
    pub(crate) posted: Arc<Posted>,
    pub(crate) rpc: Rpc,
    /// Some mapping, member or connection has changed.
    pub(crate) changes: Event,
}

/// See the module's documentation.
pub(crate) struct Machine {
    ground: Arc<Ground>,
    /// None when the node has left.
    engine: Option<Engine>,
    pub(crate) tickets: Tickets,
    pub(crate) wakes: Wakes,
    outbox: Outbox,
    jobs: VecDeque<Job>,
    graces: Vec<Waiting>,
    fetches: Fetches,
    peers: BTreeMap<PeerId, NodeLife>,
    pub(crate) alarms: Alarms,
    /// When those look again who are told by nobody.
    retry_ns: Option<u64>,
    pub(crate) dialling: Dialling,
}

/// Local accesses and posted operations that a token waits for.
#[derive(Debug)]
struct Waiting {
    token: Token,
    grace: Grace,
    mark: Mark,
}

/// Connections that we began and that have neither come about nor failed.
#[derive(Debug, Default)]
pub(crate) struct Dialling {
    pub(crate) under_way: usize,
    pub(crate) failed: Vec<ConnectFailure>,
}

impl Machine {
    pub(crate) fn new(ground: Arc<Ground>, engine: Engine) -> Machine {
        Machine {
            ground,
            engine: Some(engine),
            tickets: Tickets::default(),
            wakes: Wakes::default(),
            outbox: Outbox::default(),
            jobs: VecDeque::new(),
            graces: Vec::new(),
            fetches: Fetches::default(),
            peers: BTreeMap::new(),
            alarms: Alarms::default(),
            retry_ns: None,
            dialling: Dialling::default(),
        }
    }

    // Sessions and their commands.

    pub(crate) fn open_session(&mut self, principal: Principal) -> Option<SessionId> {
        self.engine.as_mut()?.open_session(principal)
    }

    /// `None` if the node has left.
    pub(crate) fn submit(
        &mut self,
        now: u64,
        session: SessionId,
        command: Command,
        undo: Undo,
    ) -> Option<OpId> {
        let op = self.engine.as_mut()?.submit(now, session, command);
        self.tickets.open(op, session, undo);
        Some(op)
    }

    pub(crate) fn abandon(&mut self, now: u64, op: OpId) {
        match (self.tickets.abandon(op), &mut self.engine) {
            (Some(chore), _) => self.do_chore(now, chore),
            (None, Some(engine)) => engine.abandon(now, op),
            (None, None) => {}
        }
    }

    fn do_chore(&mut self, now: u64, chore: Chore) {
        let Some(engine) = &mut self.engine else { return };
        let op = engine.submit(now, chore.session, chore.command);
        self.tickets.open_abandoned(op, chore.session, chore.undo);
    }

    // What the fabric tells.

    pub(crate) fn handle_event(&mut self, now: u64, event: FabricEvent) {
        let Some(engine) = &mut self.engine else { return };
        match event {
            FabricEvent::Completed(completion) => self.handle_completion(now, completion),
            FabricEvent::Connected { peer, hello, initiator } => {
                let life = message::decode_hello(&hello).map(|hello| hello.life);
                let send_bytes_max = self.ground.fabric.capabilities(peer).send_bytes_max;
                let connection = Connection { peer, dialled: initiator, send_bytes_max };
                engine.handle_connected(now, connection, &hello);
                if let Some(life) = life {
                    self.peers.insert(peer, life);
                    if engine.is_connected_to(life.node) {
                        self.ground.rpc.handle_connected(peer, life.node);
                    }
                }
                self.dialled(initiator);
            }
            FabricEvent::ConnectFailed(failure) => {
                self.dialling.failed.push(failure);
                self.dialled(true);
            }
            // Who waits in the machine tries again when it settles.
            FabricEvent::Room { .. } => self.ground.posted.retry(&mut self.wakes),
            FabricEvent::Disconnected { peer } => {
                self.outbox.forget(peer);
                engine.handle_disconnected(now, peer);
                self.ground.rpc.handle_disconnected(peer, &mut self.wakes);
                // There will be no room for who waits for it.
                self.ground.posted.retry(&mut self.wakes);
            }
            FabricEvent::CutOff { peer, exited } => {
                engine.handle_cut_off(now, peer, exited);
                self.ground.rpc.handle_cut_off(peer);
                self.peers.remove(&peer);
            }
        }
    }

    fn dialled(&mut self, by_us: bool) {
        if by_us {
            self.dialling.under_way = self.dialling.under_way.saturating_sub(1);
            self.ground.changes.happen(&mut self.wakes);
        }
    }

    /// Connections to all who are there are about to be begun.
    pub(crate) fn begin_to_meet(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.begin_to_meet();
        }
    }

    /// All connections that we began when we joined have come about, or failed.
    pub(crate) fn handle_all_met(&mut self, now: u64) {
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
            // What sessions and calls wait for has been handled before.
            CompletionKind::Atomic { .. } | CompletionKind::Notified { .. } => {}
        }
    }

    pub(crate) fn handle_job_done(&mut self, now: u64, done: Done) {
        let Some(engine) = &mut self.engine else { return };
        match done {
            Done::Grown(segment) => {
                if let Some((key, window)) = &segment {
                    self.ground.rpc.handle_grown(*key, window.clone());
                }
                engine.handle_grown(now, segment);
            }
            Done::Copied(token) => engine.handle_copied(now, token),
            Done::Discarded(token) => engine.handle_discarded(now, token),
            Done::Populated { token, len, is_done } => engine.handle_populated(now, token, len, is_done),
            Done::Partly(rest) => self.jobs.push_back(rest),
        }
    }

    // Settling.

    /// Carries out all that follows from what was done before.
    pub(crate) fn settle(&mut self, now: u64) {
        if self.engine.as_ref().and_then(Engine::poll_timeout).is_some_and(|due| due <= now) {
            self.engine.as_mut().expect("it has a timeout").handle_timeout(now);
        }
        self.alarms.ring(now, &mut self.wakes);
        if self.retry_ns.is_some_and(|due| due <= now) {
            self.retry_ns = None;
            self.ground.rpc.end_shortage();
            self.ground.posted.retry(&mut self.wakes);
        }
        if self.ground.rpc.next_deadline_ns() <= now {
            self.ground.rpc.handle_time(now, &mut self.wakes);
        }
        loop {
            while let Some(effect) = self.engine.as_mut().and_then(Engine::poll_effect) {
                self.apply(now, effect);
            }
            self.close_sessions(now);
            let fetched = self.settle_fetches(now);
            if !self.end_graces(now) && !fetched {
                break;
            }
        }
        self.settle_calls();
        if self.ground.rpc.is_short() {
            self.look_again_soon(now);
        }
        self.outbox.flush(&*self.ground.fabric);
    }

    fn settle_calls(&mut self) {
        let rpc = &self.ground.rpc;
        if rpc.take_dirty() || rpc.is_stuck() {
            rpc.retry();
            for (peer, note) in rpc.take_notes() {
                self.outbox.push(peer, OutMessage { imm: NOTE_IMM, bytes: note.emit(), solicited: true });
            }
        }
    }

    fn apply(&mut self, now: u64, effect: Effect) {
        match effect {
            Effect::Send { peer, bytes, solicited } => {
                self.outbox.push(peer, OutMessage { imm: 0, bytes, solicited });
            }
            Effect::CutOff(peer) => self.cut_off(now, peer),
            Effect::Warn { peer, text } => self.ground.fabric.warn(peer, &text),
            Effect::News(news) if news.is_trouble() => tracing::warn!("{news}"),
            Effect::News(news) => tracing::info!("{news}"),
            Effect::Disconnect(peer) => self.ground.fabric.disconnect(peer),
            Effect::Grow { len } => self.jobs.push_back(Job::Grow(len)),
            Effect::Quiesce(Quiesce { token, posted }) => {
                let grace = self.ground.path.pins().start_grace();
                let mark = self.ground.posted.mark(&posted);
                self.graces.push(Waiting { token, grace, mark });
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
                if let Some(chore) = self.tickets.finish(op, outcome, &mut self.wakes) {
                    self.do_chore(now, chore);
                }
            }
            Effect::Changed => self.ground.changes.happen(&mut self.wakes),
        }
    }

    fn cut_off(&mut self, now: u64, peer: PeerId) {
        let begun = self.ground.fabric.cut_off(peer);
        let Some(engine) = &mut self.engine else { return };
        match begun {
            CutOff::Done => {
                engine.handle_cut_off(now, peer, false);
                self.ground.rpc.handle_cut_off(peer);
            }
            CutOff::Started => engine.handle_kill(now, peer),
            // The engine keeps what the peer could reach in quarantine.
            CutOff::NotPermitted => {}
        }
    }

    fn close_sessions(&mut self, now: u64) {
        while let Some(session) = self.tickets.poll_closable() {
            if let Some(engine) = &mut self.engine {
                engine.close_session(now, session);
            }
        }
    }

    /// Whether a grace was over.
    fn end_graces(&mut self, now: u64) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        let before = self.graces.len();
        let ground = &self.ground;
        self.graces.retain_mut(|waiting| {
            let elapsed = waiting.grace.elapsed(ground.path.pins());
            let Some(elapsed) = elapsed.filter(|_| ground.posted.is_over(&mut waiting.mark)) else {
                return true;
            };
            engine.handle_quiescent(now, waiting.token, elapsed);
            false
        });
        self.graces.len() < before
    }

    /// Goes on with what is read from peers; whether anything of that has ended.
    fn settle_fetches(&mut self, now: u64) -> bool {
        let ended = self.fetches.go_on(&*self.ground.fabric);
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

    // What others want to know.

    /// A job to be done by whoever holds no lock.
    pub(crate) fn poll_job(&mut self) -> Option<Job> {
        self.jobs.pop_front()
    }

    /// When somebody must look after the machine, if nothing happens before.
    pub(crate) fn attention_ns(&self, now: u64) -> u64 {
        if !self.jobs.is_empty() {
            return 0;
        }
        let timeout = self.engine.as_ref().and_then(Engine::poll_timeout).unwrap_or(u64::MAX);
        let grace = if self.graces.is_empty() { u64::MAX } else { now + GRACE_LOOK_NS };
        let overdue = self.ground.rpc.next_deadline_ns();
        let alarm = self.alarms.next_ns().unwrap_or(u64::MAX);
        let retry = self.retry_ns.unwrap_or(u64::MAX);
        timeout.min(grace).min(retry).min(overdue).min(alarm)
    }

    /// Somebody waits, by [`Posted::progress_after`], for what nobody tells.
    pub(crate) fn look_again_soon(&mut self, now: u64) {
        self.retry_ns.get_or_insert(now + LOOK_AGAIN_NS);
    }

    /// The engine, unless the node has left.
    pub(crate) fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }

    /// What a node says of itself.
    pub(crate) fn hello(&self) -> Vec<u8> {
        self.engine.as_ref().map(Engine::hello).unwrap_or_default()
    }

    pub(crate) fn is_connected_to(&self, node: NodeId) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.is_connected_to(node))
    }

    /// The connection to a node that is up, or that it is this one.
    pub(crate) fn target_of(&self, node: NodeId) -> Option<Target> {
        self.engine.as_ref()?.target_of(node)
    }

    /// Whether a node of that number is or was in the cluster.
    pub(crate) fn knows(&self, node: NodeId) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.knows(node))
    }

    /// The life of a node that is up.
    pub(crate) fn life_of(&self, node: NodeId) -> Option<NodeLife> {
        self.engine.as_ref()?.life_of(node)
    }

    /// The node behind a connection that is not cut off yet.
    pub(crate) fn life_of_peer(&self, peer: PeerId) -> Option<NodeLife> {
        self.peers.get(&peer).copied()
    }

    // Leaving.

    /// Says goodbye.
    pub(crate) fn leave(&mut self, now: u64) {
        if let Some(engine) = &mut self.engine {
            engine.leave(now);
        }
    }

    /// Whether nothing is left to be said, and nobody to be waited for.
    pub(crate) fn is_quiet(&self) -> bool {
        self.outbox.is_empty() && self.graces.is_empty()
    }

    /// Forgets everything, and tells all who wait that nothing will come.
    pub(crate) fn close(&mut self) {
        self.engine = None;
        self.alarms.ring(u64::MAX, &mut self.wakes);
        self.jobs.clear();
        self.graces.clear();
        self.tickets.end_all(&mut self.wakes);
        self.ground.posted.close(&mut self.wakes);
        self.ground.rpc.close(&mut self.wakes);
        self.ground.changes.happen(&mut self.wakes);
    }
}
