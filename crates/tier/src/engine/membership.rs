//! Who comes and goes, and what follows from it.

use std::collections::BTreeSet;

use halite_fabric::PeerId;

use super::{Engine, Purpose, Requester};
use crate::directory::{NAMES_PER_ANSWER_MAX, Said, Word};
use crate::effect::{Effect, Quiesce};
use crate::ids::{Epoch, NodeId, NodeLife, RegionId, RequestId};
use crate::members::Parting;
use crate::message::{ErrorReply, LossCause, Member, NodeState, Notice, Reply, Request};
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

impl Sweep {
    /// Who has let go of everything here is not waited for.
    pub(super) fn clear(&mut self, life: NodeLife) {
        self.tainted.remove(&life);
    }
}

impl Engine {
    /// Connections to all who are there before us are about to be begun: a home among them may be slower than who asks
    /// for its names.
    pub fn begin_to_meet(&mut self) {
        self.meeting.is_joining = true;
        self.tell_directory(Word::Meeting);
    }

    /// All connections that were begun have come about, or failed.
    pub fn handle_all_met(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.meeting.is_joining = false;
        self.tell_directory(Word::AllMet);
        // Of some only others knew.
        self.dial_the_unreachable();
        self.settle();
    }

    /// A home that is dead for us may be alive for a newcomer, and let it map what we do not hold for it any more.
    pub(super) fn tell_what_was_swept(&mut self, newcomer: NodeLife) {
        self.swept.retain(|home| home.node != newcomer.node || *home == newcomer);
        if !self.swept.is_empty() {
            let homes = self.swept.iter().copied().collect();
            self.notify(newcomer.node, Notice::Swept { homes });
        }
    }

    /// If we are the directory, a peer that was there before us tells us the names of its regions, unless it has.
    pub(super) fn expect_names(&mut self, life: NodeLife, was_before_us: bool) {
        let has_told = self.members.peer_of(life.node).is_some_and(|(_, peer)| peer.has_told_names);
        if was_before_us && !has_told {
            self.tell_directory(Word::Expected(life));
        }
    }

    /// Tells our part of the directory what has happened, and says what that has to say.
    pub(super) fn tell_directory(&mut self, word: Word) {
        self.directory.tell(self.now_ns, word);
        self.say_for_directory();
    }

    /// Asks the directory.
    pub(super) fn ask_directory(&mut self, question: Request, purpose: Purpose) {
        self.ask(self.directory.seat(), question, purpose);
    }

    fn say_for_directory(&mut self) {
        while let Some(said) = self.directory.poll() {
            match said {
                Said::Answer { requester, body } => self.answer(requester, body),
                Said::NameLost { home, name, region } => {
                    self.notify(home.node, Notice::NameLost { name, region })
                }
                Said::News(news) => self.tell(news),
            }
        }
    }

    /// Tells the directory, which may have restarted, the names of our regions.
    pub(super) fn tell_names(&mut self) {
        let homed = self.homes.iter();
        let homed =
            homed.filter_map(|(id, region)| Some((region.name.as_deref()?.to_string(), *id, region.epoch)));
        // Those that are being made have their names from the directory's former life.
        let claimed =
            self.making.iter().filter_map(|(id, making)| Some((making.claimed_name()?, *id, Epoch(0))));
        let named: Vec<(String, RegionId, Epoch)> = homed.chain(claimed).collect();
        for names in named.chunks(NAMES_PER_ANSWER_MAX) {
            self.notify(self.directory.seat(), Notice::Names { names: names.to_vec(), done: false });
        }
        self.notify(self.directory.seat(), Notice::Names { names: Vec::new(), done: true });
    }

    pub(super) fn handle_names(&mut self, from: NodeLife, names: Vec<(String, RegionId, Epoch)>, done: bool) {
        if done {
            self.note_names_told(from);
        }
        self.tell_directory(Word::Names { from, names, done });
    }

    /// Two homes that lost sight of each other, or of the directory, have given one name to two regions.
    pub(super) fn lose_name(&mut self, from: NodeLife, name: &str, region: RegionId) {
        if from.node != self.directory.seat() {
            return;
        }
        if let Some(making) = self.making.get_mut(&region) {
            making.lose_name();
        }
        match self.homes.get(&region) {
            Some(found) if found.name.as_deref() != Some(name) => {}
            Some(_) if names::is_reserved(name) => self.end_for_its_name(region),
            Some(_) => self.rename(region, name),
            None => {}
        }
    }

    /// Another region has the name.  Nobody is to look for ours in vain, and it is not freed for that.
    fn rename(&mut self, region: RegionId, name: &str) {
        self.counter += 1;
        let alias = names::alias(name, self.config.life.node, self.counter);
        let found = self.homes.get_mut(&region).expect("looked up just before");
        found.name = Some(alias.as_str().into());
        found.epoch.0 += 1;
        let names = vec![(alias.clone(), region, found.epoch)];
        self.notify(self.directory.seat(), Notice::Names { names, done: false });
        self.tell(News::Renamed { name: name.to_owned(), alias });
    }

    pub(super) fn serve_directory(&mut self, requester: Requester, question: Request) {
        match question {
            Request::ForgetNode { node } if self.lives(node) => {
                self.answer(requester, Err(ErrorReply::NodeLives(node)))
            }
            Request::ForgetNode { node } if self.end_lives_of(node) => {
                self.answer(requester, Ok(Reply::Done))
            }
            question => {
                self.directory.ask(self.now_ns, requester, question);
                self.say_for_directory();
            }
        }
    }

    /// Ends the life of a node that is not reached; whether it was known.
    fn end_lives_of(&mut self, node: NodeId) -> bool {
        let ended = self.pairings.lives_of(node);
        for life in &ended {
            self.end_life(*life, Parting::now(LossCause::Unreachable, self.now_ns));
        }
        let was_known = self.members.forget(node) || !ended.is_empty();
        if was_known {
            self.tell_directory(Word::Forgotten(node));
        }
        was_known
    }

    fn lives(&self, node: NodeId) -> bool {
        node == self.config.life.node || self.is_connected_to(node)
    }

    /// A connection has ended.
    pub fn handle_disconnected(&mut self, now_ns: u64, peer: PeerId) {
        self.now_ns = now_ns;
        self.tell_of(peer, News::Disconnected);
        self.forget_met(peer);
        self.lose(peer, NodeState::Unreachable, Parting::now(LossCause::Unreachable, now_ns));
        self.say_down(peer);
        self.settle();
    }

    /// A peer can touch nothing of ours any more; whether that is so because its process has exited.
    pub fn handle_cut_off(&mut self, now_ns: u64, peer: PeerId, exited: bool) {
        self.now_ns = now_ns;
        self.forget_met(peer);
        self.lose(peer, NodeState::Unreachable, Parting::now(LossCause::Unreachable, now_ns));
        self.say_down(peer);
        if self.members.note_cut_off(peer) {
            self.effects.push_back(Effect::PeerCutOff(peer));
        }
        self.mark_cut_off(peer, exited);
        self.note_met_cut_off(peer, exited);
        self.settle();
    }

    /// The process of a peer that was to be cut off is being killed for that.
    pub fn handle_kill(&mut self, now_ns: u64, peer: PeerId) {
        self.now_ns = now_ns;
        let Some(killed) = self.members.note_killed(peer) else { return };
        let life = killed.life;
        self.tell(News::Killing(Somebody { life, pid: killed.pid }));
        if killed.silent {
            self.notify(self.directory.seat(), Notice::Killing { life });
        }
    }

    /// How a node ended is known here, perhaps, but not that another has ended it.
    pub(super) fn handle_killing(&mut self, by: NodeLife, life: NodeLife) {
        let by = by.node;
        let is_told = self.members.note_killed_elsewhere(life);
        if is_told {
            self.tell(News::KilledBy { life, by });
        }
        self.tell_directory(Word::Killed { life, by, is_told });
    }

    pub(super) fn handle_leave(&mut self, from: NodeLife) {
        let Some((peer, _)) = self.members.peer_of(from.node).filter(|(_, known)| known.life == from) else {
            return;
        };
        self.tell_of(peer, News::Left);
        let parting = Parting::now(LossCause::Left, self.now_ns);
        self.lose(peer, NodeState::Left, parting);
        self.mark_cut_off(peer, false);
        self.recover_locks(from);
        self.end_life(from, parting);
    }

    fn mark_cut_off(&mut self, peer: PeerId, exited: bool) {
        let Some(buried) = self.members.mark_cut_off(peer) else { return };
        let life = buried.life;
        if exited {
            let cause = if buried.killed { LossCause::Killed } else { LossCause::Exited };
            let parting = Parting::now(cause, self.now_ns);
            self.end_life(life, parting);
            self.members.correct_loss(life, parting);
            self.tell_directory(Word::Corrected { life, parting });
            self.tell(News::Exited { who: Somebody { life, pid: buried.pid }, killed: buried.killed });
        }
        self.store.handle_cut_off(life, &mut self.effects);
        self.conclude_for(life);
        self.answer_for_the_cut_off();
        match exited {
            true => self.recover_locks(life),
            false => self.recover_locks_when_guards_are_over(life, buried.heard_ns),
        }
        self.pair_all();
    }

    /// A peer is dead because we say so, since then: it must be kept from our memory.
    pub(super) fn give_up(&mut self, peer: PeerId, since_ns: u64) {
        self.lose(peer, NodeState::Unreachable, Parting::now(LossCause::Unreachable, since_ns));
        self.effects.push_back(Effect::CutOff(peer));
    }

    pub(super) fn say_down(&mut self, peer: PeerId) {
        if self.members.note_down(peer) {
            self.effects.push_back(Effect::PeerDown(peer));
        }
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

    pub(super) fn fail_requests_to(&mut self, life: NodeLife) {
        let lost: Vec<RequestId> =
            self.asked.iter().filter(|(_, asked)| asked.of == life.node).map(|(id, _)| *id).collect();
        for id in lost {
            self.handle_reply(life, id, Err(ErrorReply::PeerDown(life.node)));
        }
    }

    /// Chunks that we hold for a dead home are free once nobody maps regions of that home any more.
    pub(super) fn start_sweep(&mut self, home: NodeLife) {
        if !self.store.holds_any_for(home) {
            return;
        }
        // Who is told of ends hears of it from the directory, too.
        self.swept.retain(|home| self.pairings.has_ended(*home));
        self.swept.insert(home);
        let me = self.config.life;
        let asked: BTreeSet<NodeLife> = self.members.peers().map(|(_, peer)| peer.life).chain([me]).collect();
        // Who may take itself to be paired with us already is asked as soon as it is.
        let awaited = asked.iter().copied().chain(self.meeting.offered()).collect();
        // Who died before the home did is not asked, and may have mapped its regions all the same.
        let tainted = self.members.zombies().collect();
        self.sweeps.insert(home, Sweep { awaited, tainted });
        for life in asked {
            self.ask_to_drop(home, life);
        }
    }

    fn ask_to_drop(&mut self, home: NodeLife, life: NodeLife) {
        self.ask(life.node, Request::DropHome { home }, Purpose::Sweep(home));
    }

    /// A node is paired with us by now, which sweeps wait for.
    pub(super) fn sweep_with(&mut self, life: NodeLife) {
        let homes = self.sweeps.iter().filter(|(_, sweep)| sweep.awaited.contains(&life));
        let homes: Vec<NodeLife> = homes.map(|(home, _)| *home).collect();
        homes.into_iter().for_each(|home| self.ask_to_drop(home, life));
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

    pub(super) fn abandon_sweeps_by(&mut self, life: NodeLife) {
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

    /// An owner holds nothing for these homes any more.  Of those whose lives are over nothing new is mapped.
    pub(super) fn disown(&mut self, owner: NodeLife, homes: &[NodeLife]) -> Vec<Quiesce> {
        let is_of_use = |home: &NodeLife| !self.pairings.has_ended(*home) || self.mapper.maps_any_of(*home);
        let homes: Vec<NodeLife> = homes.iter().copied().filter(is_of_use).collect();
        self.mapper.disown(owner, &homes)
    }

    /// A node that holds chunks for `home` found it dead.  It speaks for its memory: that we drop, and cut nobody off.
    pub(super) fn serve_drop_home(&mut self, requester: Requester, home: NodeLife) {
        let disowned = self.disown(requester.life, &[home]);
        self.effects.extend(disowned.into_iter().map(Effect::Quiesce));
        let quiesce = self.mapper.quiesce();
        self.owe(quiesce, requester);
    }

    /// When `handle_timeout` wants to be called, in ns.
    pub fn poll_timeout(&self) -> Option<u64> {
        Some(self.heartbeat_ns.min(self.barriers.deadline_ns()).min(self.locks.deadline_ns()))
    }

    /// Signs of life that said nothing to us, such as acknowledgements: `heard` says when the last of a peer was, in ns, if it
    /// knows of any.  To be called before [`Engine::handle_timeout`].
    pub fn handle_signs_of_life(&mut self, heard: impl Fn(PeerId) -> Option<u64>) {
        self.members.note_heard(heard);
    }

    /// Time has passed: says that we live, and looks who was silent for too long.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.break_overdue_rounds();
        self.recover_overdue_locks();
        self.settle();
        if now_ns < self.heartbeat_ns {
            return;
        }
        let lease_ns = self.config.lease_ns;
        if now_ns - self.heartbeat_ns > lease_ns / 2 {
            // It was us who slept: nobody's silence counts.
            self.members.excuse_silence(now_ns);
            self.meeting.excuse_silence(now_ns);
        }
        self.heartbeat_ns = now_ns + lease_ns / 4;
        let peers: Vec<(PeerId, NodeId, u64, u64)> = self
            .members
            .peers()
            .map(|(id, peer)| (id, peer.life.node, peer.heard_ns, peer.beat_ns))
            .collect();
        let time_ns = self.time_of_day_ns();
        for (peer, node, heard_ns, beat_ns) in peers {
            let silent_ns = now_ns.saturating_sub(heard_ns);
            if silent_ns > lease_ns {
                self.tell_of(peer, |who| News::Silent { who, silent_ns });
                let text = news::last_words(self.config.life, silent_ns);
                self.effects.push_back(Effect::Warn { peer, text });
                self.give_up(peer, heard_ns);
                self.members.note_silent(peer);
            } else {
                self.notify(node, Notice::Heartbeat { sent_ns: now_ns, heard_ns: beat_ns, time_ns });
            }
        }
        self.drop_those_unheard_of();
        self.expect_names_no_longer();
        self.await_no_overdue_commands();
        self.cut_off_the_deaf();
        self.excuse_the_stalled();
        self.dial_the_unreachable();
        self.pair_all();
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
