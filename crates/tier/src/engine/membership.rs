//! Who comes and goes, and what follows from it.

use std::collections::BTreeSet;

use halite_fabric::PeerId;

use super::{Asker, Connection, Engine, Purpose};
use crate::directory::NAMES_PER_ANSWER_MAX;
use crate::effect::Effect;
use crate::ids::{Epoch, NodeId, NodeLife, RegionId, RequestId};
use crate::members::Parting;
use crate::message::{self, LossCause, Member, NodeState, Notice, Refusal, Reply, Request};
use crate::names;
use crate::news::{self, News, Somebody};
use crate::rpc::Target;

/// Chunks of ours whose home died: all nodes drop their mappings, then the chunks are free.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    awaited: BTreeSet<NodeLife>,
    /// Nodes that died before they answered.
    tainted: BTreeSet<NodeLife>,
}

impl Engine {
    /// A peer is connected and has introduced itself.  If it was there before us and we are the directory, it will tell
    /// us the names of its regions.
    pub fn handle_connected(&mut self, now_ns: u64, connection: Connection, hello: &[u8]) {
        let Connection { peer, dialled, send_bytes_max } = connection;
        self.now_ns = now_ns;
        let decoded = message::decode_hello(hello).filter(|hello| hello.life.node != self.config.life.node);
        let Some(hello) = decoded else {
            let reason = "it shows another version of the protocol, or our own number";
            self.tell(News::Refused { reason });
            return self.effects.push_back(Effect::Disconnect(peer));
        };
        if let Some((before, _)) = self.members.peer_of(hello.life.node) {
            self.effects.push_back(Effect::CutOff(before));
            self.handle_disconnected(now_ns, before);
        }
        self.members.insert(peer, &hello, send_bytes_max, now_ns);
        self.tell_of(peer, News::Joined);
        self.tell_what_was_swept(hello.life);
        if self.is_directory() && dialled {
            self.directory.await_names_of(hello.life);
        }
        if hello.life.node == NodeId::FIRST {
            self.tell_names();
        }
        self.effects.push_back(Effect::Changed);
        self.settle();
    }

    /// Connections to all who are there before us are about to be begun: a home among them may be slower than who asks
    /// for its names.
    pub fn begin_to_meet(&mut self) {
        self.directory.set_meeting(true);
    }

    /// All connections that were begun have come about, or failed.
    pub fn handle_all_met(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.directory.set_meeting(false);
        self.unpark();
        self.settle();
    }

    /// A home that is dead for us may be alive for a newcomer, and let it map what we do not hold for it any more.
    fn tell_what_was_swept(&mut self, newcomer: NodeLife) {
        self.swept.retain(|home| home.node != newcomer.node);
        if !self.swept.is_empty() {
            let homes = self.swept.iter().copied().collect();
            self.notify(newcomer.node, Notice::Swept { homes });
        }
    }

    fn is_directory(&self) -> bool {
        self.config.life.node == NodeId::FIRST
    }

    /// Tells the directory, which may have restarted, the names of our regions.
    fn tell_names(&mut self) {
        let homed = self.homes.iter();
        let homed =
            homed.filter_map(|(id, region)| Some((region.name.as_deref()?.to_string(), *id, region.epoch)));
        // Those that are being made have their names from the directory's former life.
        let claimed =
            self.making.iter().filter_map(|(id, making)| Some((making.claimed_name()?, *id, Epoch(0))));
        let named: Vec<(String, RegionId, Epoch)> = homed.chain(claimed).collect();
        for names in named.chunks(NAMES_PER_ANSWER_MAX) {
            self.notify(NodeId::FIRST, Notice::Names { names: names.to_vec(), done: false });
        }
        self.notify(NodeId::FIRST, Notice::Names { names: Vec::new(), done: true });
    }

    pub(super) fn handle_names(&mut self, from: NodeLife, names: Vec<(String, RegionId, Epoch)>, done: bool) {
        for (name, region, epoch) in names.into_iter().filter(|(name, ..)| names::is_name(name)) {
            // A lock or barrier without its name would be neither that nor anything else: both stay, each for those who
            // know it.
            if !self.directory.claim(&name, region, from, epoch) && !names::is_reserved(&name) {
                self.notify(from.node, Notice::NameLost { name, region });
            }
        }
        if done {
            self.directory.stop_awaiting(from);
            self.unpark();
        }
    }

    /// Two homes that lost sight of each other, or of the directory, have given one name to two regions.
    pub(super) fn lose_name(&mut self, from: NodeLife, name: &str, region: RegionId) {
        if from.node != NodeId::FIRST {
            return;
        }
        if let Some(making) = self.making.get_mut(&region) {
            making.lose_name();
        }
        if let Some(found) = self.homes.get_mut(&region) {
            found.name.take_if(|ours| **ours == *name);
            self.free_if_unreachable(region);
        }
    }

    pub(super) fn ask_directory(&mut self, asker: Asker, request: Request) {
        if !self.is_directory() {
            return self.answer(asker, Err(Refusal::Malformed));
        }
        if !self.directory.is_ready() {
            return self.parked.push((asker, request));
        }
        let reply = match request {
            Request::ClaimName { name, .. } if !names::is_name(&name) => Err(Refusal::Malformed),
            Request::ClaimName { name, region } => {
                match self.directory.claim(&name, region, asker.life, Epoch(0)) {
                    true => Ok(Reply::Done),
                    false => Err(Refusal::NameTaken),
                }
            }
            Request::ReleaseName { name, region } => {
                self.directory.release(&name, region, asker.life);
                Ok(Reply::Done)
            }
            Request::FindName { name } => match self.directory.find(&name) {
                Some((region, home)) => Ok(Reply::Found { region, home: home.node }),
                None => Err(self.why_absent(&name)),
            },
            Request::ListNames { after } => {
                let (names, more) = self.directory.list(after.as_deref());
                Ok(Reply::Names { names, more })
            }
            Request::ListLost { after } => {
                let (names, more) = self.directory.list_lost(after.as_deref(), self.now_ns);
                Ok(Reply::Lost { names, more })
            }
            Request::ForgetName { name } => match self.directory.forget_lost(&name) {
                true => Ok(Reply::Done),
                false => Err(Refusal::NotFound),
            },
            Request::ForgetNode { node } => self.forget_node(node),
            _ => Err(Refusal::Malformed),
        };
        self.answer(asker, reply);
    }

    /// A name that is not found is free, or was lost with its region.
    fn why_absent(&self, name: &str) -> Refusal {
        match self.directory.find_lost(name) {
            Some((home, parting)) => Refusal::Lost { home, loss: parting.loss(self.now_ns) },
            None => Refusal::NotFound,
        }
    }

    fn forget_node(&mut self, node: NodeId) -> Result<Reply, Refusal> {
        if node == self.config.life.node || self.is_connected_to(node) {
            return Err(Refusal::NodeLives(node));
        }
        let had_names = self.directory.forget_lost_with(node);
        match self.members.forget(node) || had_names {
            true => Ok(Reply::Done),
            false => Err(Refusal::UnknownNode(node)),
        }
    }

    fn unpark(&mut self) {
        if self.directory.is_ready() {
            for (asker, request) in std::mem::take(&mut self.parked) {
                // A name given to the dead would never be free again.
                if self.is_present(asker.life) {
                    self.ask_directory(asker, request);
                }
            }
        }
    }

    /// A connection has ended.
    pub fn handle_disconnected(&mut self, now_ns: u64, peer: PeerId) {
        self.now_ns = now_ns;
        self.tell_of(peer, News::Disconnected);
        self.lose(peer, NodeState::Dead, Parting::now(LossCause::Unreachable, now_ns));
        self.settle();
    }

    /// A peer can touch nothing of ours any more; whether that is so because its process has exited.
    pub fn handle_cut_off(&mut self, now_ns: u64, peer: PeerId, exited: bool) {
        self.now_ns = now_ns;
        self.lose(peer, NodeState::Dead, Parting::now(LossCause::Unreachable, now_ns));
        self.bury(peer, exited);
        self.settle();
    }

    /// The process of a peer that was to be cut off is being killed for that.
    pub fn handle_kill(&mut self, now_ns: u64, peer: PeerId) {
        self.now_ns = now_ns;
        let Some(killed) = self.members.note_killed(peer) else { return };
        let life = killed.life;
        self.tell(News::Killing(Somebody { life, pid: killed.pid }));
        if killed.silent {
            self.notify(NodeId::FIRST, Notice::Killing { life });
        }
    }

    /// How a node ended is known here, perhaps, but not that another has ended it.
    pub(super) fn handle_killing(&mut self, by: NodeLife, life: NodeLife) {
        let is_news = self.members.note_killed_elsewhere(life);
        if self.directory.note_killed(life) || is_news {
            self.tell(News::KilledBy { life, by: by.node });
        }
    }

    pub(super) fn handle_leave(&mut self, from: NodeLife) {
        let Some((peer, _)) = self.members.peer_of(from.node).filter(|(_, known)| known.life == from) else {
            return;
        };
        self.tell_of(peer, News::Left);
        self.lose(peer, NodeState::Left, Parting::now(LossCause::Left, self.now_ns));
        self.bury(peer, false);
    }

    fn bury(&mut self, peer: PeerId, exited: bool) {
        let Some(buried) = self.members.bury(peer) else { return };
        let life = buried.life;
        if exited {
            let cause = if buried.killed { LossCause::Killed } else { LossCause::Exited };
            let parting = Parting::now(cause, self.now_ns);
            self.members.correct_loss(life, parting);
            self.directory.correct_loss(life, parting);
            self.tell(News::Exited { who: Somebody { life, pid: buried.pid }, killed: buried.killed });
        }
        self.untaint_regions_of(life);
        self.store.handle_cut_off(life, &mut self.effects);
        self.recover_locks();
    }

    pub(super) fn lose(&mut self, peer: PeerId, state: NodeState, parting: Parting) {
        let Some(life) = self.members.remove(peer, state, parting, self.now_ns) else { return };
        let lost = self.directory.lose_home(life, parting);
        if lost > 0 {
            self.tell(News::NamesLost { count: lost, life });
        }
        self.unpark();
        self.effects.extend(self.mapper.handle_down(life).into_iter().map(Effect::Quiesce));
        // First note that it may still write, then take its silence for an answer: the other way round, memory
        // that it can reach would be reused.
        self.taint_regions_of(life);
        self.forget_waiters_of(life);
        self.watching.forget_node(life);
        self.abandon_sweeps_by(life);
        self.fail_requests_to(life);
        self.start_sweep(life);
        self.effects.push_back(Effect::Changed);
    }

    // News.

    pub(super) fn tell(&mut self, news: News) {
        self.effects.push_back(Effect::News(news));
    }

    /// Tells something of a connected peer, if it is one.
    pub(super) fn tell_of(&mut self, peer: PeerId, news: impl FnOnce(Somebody) -> News) {
        if let Some(known) = self.members.peer_mut(peer) {
            let who = Somebody { life: known.life, pid: known.pid };
            self.tell(news(who));
        }
    }

    /// Tells when memory begins to be kept back, and when none is any more.
    pub(super) fn tell_of_quarantine(&mut self) {
        let is_on = self.store.has_quarantine();
        if is_on != self.told_of_quarantine {
            self.told_of_quarantine = is_on;
            self.tell(match is_on {
                true => News::Quarantined { bytes: self.store.bytes_quarantined() },
                false => News::QuarantineOver,
            });
        }
    }

    fn fail_requests_to(&mut self, life: NodeLife) {
        let lost: Vec<RequestId> =
            self.asked.iter().filter(|(_, (node, _))| *node == life.node).map(|(id, _)| *id).collect();
        for id in lost {
            self.handle_reply(life, id, Err(Refusal::PeerDown(life.node)));
        }
    }

    /// Chunks that we hold for a dead home are free once nobody maps regions of that home any more.
    fn start_sweep(&mut self, home: NodeLife) {
        if !self.store.holds_any_for(home) {
            return;
        }
        self.swept.insert(home);
        let me = self.config.life;
        let awaited: BTreeSet<NodeLife> =
            self.members.peers().map(|(_, peer)| peer.life).chain([me]).collect();
        // Who died before the home did is not asked, and may have mapped its regions all the same.
        let tainted = self.members.zombies().collect();
        self.sweeps.insert(home, Sweep { awaited: awaited.clone(), tainted });
        for life in awaited {
            self.ask(life.node, Request::DropHome { home }, Purpose::Sweep(home));
        }
    }

    pub(super) fn handle_swept(&mut self, home: NodeLife, from: NodeLife) {
        let Some(sweep) = self.sweeps.get_mut(&home) else { return };
        sweep.awaited.remove(&from);
        if !sweep.awaited.is_empty() {
            return;
        }
        let sweep = self.sweeps.remove(&home).expect("looked up just before");
        let tainted = self.members.not_cut_off(sweep.tainted.into_iter().chain([home]));
        let orphans = self.store.take_orphans(home);
        self.release(orphans, tainted);
    }

    fn abandon_sweeps_by(&mut self, life: NodeLife) {
        let homes: Vec<NodeLife> = self
            .sweeps
            .iter()
            .filter(|(_, sweep)| sweep.awaited.contains(&life))
            .map(|(home, _)| *home)
            .collect();
        for home in homes {
            self.sweeps.get_mut(&home).expect("listed just before").tainted.insert(life);
            self.handle_swept(home, life);
        }
    }

    /// A node that holds chunks for `home` found it dead; then it is dead for us as well.
    pub(super) fn serve_drop_home(&mut self, asker: Asker, home: NodeLife) {
        if let Some((peer, _)) = self.members.peer_of(home.node).filter(|(_, known)| known.life == home) {
            self.tell_of(peer, News::Denounced);
            self.effects.push_back(Effect::CutOff(peer));
            self.lose(peer, NodeState::Dead, Parting::now(LossCause::Unreachable, self.now_ns));
        }
        let quiesce = self.mapper.barrier();
        self.owe(quiesce, asker);
    }

    /// When `handle_timeout` wants to be called, in ns.
    pub fn poll_timeout(&self) -> Option<u64> {
        Some(self.heartbeat_ns.min(self.barriers.deadline_ns()))
    }

    /// Time has passed: says that we live, and looks who was silent for too long.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.break_overdue_rounds();
        self.settle();
        if now_ns < self.heartbeat_ns {
            return;
        }
        let lease_ns = self.config.lease_ns;
        if now_ns - self.heartbeat_ns > lease_ns / 2 {
            // It was us who slept: nobody's silence counts.
            self.members.excuse_silence(now_ns);
        }
        self.heartbeat_ns = now_ns + lease_ns / 4;
        let peers: Vec<(PeerId, NodeId, u64)> =
            self.members.peers().map(|(id, peer)| (id, peer.life.node, peer.heard_ns)).collect();
        for (peer, node, heard_ns) in peers {
            let silent_ns = now_ns.saturating_sub(heard_ns);
            if silent_ns > lease_ns {
                self.tell_of(peer, |who| News::Silent { who, silent_ns });
                let text = news::last_words(self.config.life, silent_ns);
                self.effects.push_back(Effect::Warn { peer, text });
                self.effects.push_back(Effect::CutOff(peer));
                self.lose(peer, NodeState::Dead, Parting::now(LossCause::Unreachable, heard_ns));
                self.members.note_silent(peer);
            } else {
                self.notify(node, Notice::Heartbeat);
            }
        }
        self.refuse_those_behind_the_silent();
        self.settle();
    }

    /// Says goodbye to everybody.
    pub fn leave(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.leaving = true;
        let nodes: Vec<NodeId> = self.members.peers().map(|(_, peer)| peer.life.node).collect();
        for node in nodes {
            self.notify(node, Notice::Leave);
        }
    }

    /// Whether a node is connected.
    pub fn is_connected_to(&self, node: NodeId) -> bool {
        self.members.peer_of(node).is_some()
    }

    /// The connection to a node, if there is one; or that it is this node.
    pub fn target_of(&self, node: NodeId) -> Option<Target> {
        if node == self.config.life.node {
            return Some(Target::Own);
        }
        self.members.peer_of(node).map(|(peer, _)| Target::Peer(peer))
    }

    /// The life of a node, if it is connected (or is this one).
    pub fn life_of(&self, node: NodeId) -> Option<NodeLife> {
        if node == self.config.life.node {
            return Some(self.config.life);
        }
        self.members.peer_of(node).map(|(_, peer)| peer.life)
    }

    /// How long a silent node is thought alive, in ns.
    pub fn lease_ns(&self) -> u64 {
        self.config.lease_ns
    }

    /// Which node this is, in which life.
    pub fn life(&self) -> NodeLife {
        self.config.life
    }

    /// All nodes that this one has seen.
    pub fn members(&self) -> Vec<Member> {
        self.members.all().cloned().collect()
    }
}
