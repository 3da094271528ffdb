//! Who comes and goes, and what follows from it.

mod meeting;
mod pairing;

use halite_fabric::PeerId;

use self::meeting::Meeting;
use self::pairing::Pairings;
use super::draining::Draining;
use super::{Engine, EngineConfig, Requester};
use crate::directory::Word;
use crate::effect::Effect;
use crate::ids::{Epoch, NodeId, NodeLife, RegionId};
use crate::link::BadFrame;
use crate::members::{Members, Parting};
use crate::message::{ErrorReply, LossCause, Member, NodeState, Notice, Reply, Request};
use crate::news::{self, News, Somebody};
use crate::rpc::Target;

/// Who is there, what we have with them, and how we stand ourselves.
#[derive(Debug)]
pub(super) struct Membership {
    members: Members,
    pairings: Pairings,
    meeting: Meeting,
    /// When we say again that we live.
    heartbeat_ns: u64,
    is_leaving: bool,
    draining: Draining,
}

/// What a frame brings.
pub(super) struct Heard {
    pub(super) from: NodeLife,
    /// The message that ends with it, if one does.
    pub(super) message: Result<Option<Vec<u8>>, BadFrame>,
}

impl Membership {
    pub(super) fn new(config: &EngineConfig, now_ns: u64) -> Membership {
        let mut members = Members::default();
        members.insert_self(&config.hello());
        let (pairings, meeting) = (Pairings::default(), Meeting::default());
        let draining = Draining::default();
        Membership { members, pairings, meeting, heartbeat_ns: now_ns, is_leaving: false, draining }
    }

    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    pub(super) fn pairings(&self) -> &Pairings {
        &self.pairings
    }

    pub(super) fn meeting(&self) -> &Meeting {
        &self.meeting
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Who is about to leave.
    pub(super) fn draining(&self) -> &Draining {
        &self.draining
    }

    pub(super) fn draining_mut(&mut self) -> &mut Draining {
        &mut self.draining
    }

    /// Another node takes nothing new, or does again.
    pub(super) fn note_draining(&mut self, life: NodeLife, is_on: bool) {
        self.draining.note(life, is_on);
    }

    /// Whether a node of that number is or was in the cluster: there is always a first one.
    pub(super) fn knows(&self, node: NodeId) -> bool {
        node == NodeId::FIRST || self.members.knows(node)
    }

    /// A frame of a peer has arrived; `None` if the connection is not up.
    pub(super) fn handle_frame(&mut self, now_ns: u64, peer: PeerId, frame: &[u8]) -> Option<Heard> {
        let from = self.members.peer_mut(peer)?;
        from.heard_ns = now_ns;
        Some(Heard { from: from.life, message: from.assembler.handle_frame(frame) })
    }

    /// A heartbeat has arrived.
    pub(super) fn note_beat(&mut self, from: NodeLife, sent_ns: u64) {
        self.members.note_beat(from, sent_ns);
    }

    /// A peer has heard what was said to it then.
    pub(super) fn note_acknowledged(&mut self, from: NodeLife, said_ns: u64, now_ns: u64) {
        self.members.note_acknowledged(from, said_ns, now_ns);
    }

    /// The other end of a pairing says which number it has.
    pub(super) fn note_number(&mut self, from: NodeLife, pairing: u64) {
        self.pairings.note_number(from, pairing);
    }

    /// A peer has told all that it holds for us.
    pub(super) fn note_held_told(&mut self, from: NodeLife) {
        self.members.note_held_told(from);
    }

    /// The directory says who there is and was.
    pub(super) fn learn(&mut self, members: Vec<Member>, me: NodeId, now_ns: u64) {
        self.members.learn(members, me, now_ns);
    }
}

impl Engine {
    /// Connections to all who are there before us are about to be begun: a home among them may be slower than who asks
    /// for its names.
    pub fn begin_to_meet(&mut self) {
        self.membership.meeting.is_joining = true;
        self.tell_directory(Word::Meeting);
    }

    /// All connections that were begun have come about, or failed.
    pub fn handle_all_met(&mut self, now_ns: u64) {
        self.out.set_now(now_ns);
        self.membership.meeting.is_joining = false;
        self.tell_directory(Word::AllMet);
        // Of some only others knew.
        self.dial_the_unreachable();
        self.settle();
    }

    /// If we are the directory, a peer that was there before us tells us the names of its regions, unless it has.
    pub(super) fn expect_names(&mut self, life: NodeLife, was_before_us: bool) {
        let has_told =
            self.membership.members.peer_of(life.node).is_some_and(|(_, peer)| peer.has_told_names);
        if was_before_us && !has_told {
            self.tell_directory(Word::Expected(life));
        }
    }

    /// Tells our part of the directory what has happened.
    pub(super) fn tell_directory(&mut self, word: Word) {
        let (directory, mut cx) = self.directory_side();
        directory.tell(&mut cx, word);
    }

    pub(super) fn handle_names(&mut self, from: NodeLife, names: Vec<(String, RegionId, Epoch)>, done: bool) {
        if done {
            self.note_names_told(from);
        }
        self.tell_directory(Word::Names { from, names, done });
    }

    pub(super) fn serve_directory(&mut self, requester: Requester, question: Request) {
        match question {
            Request::ForgetNode { node } if self.lives(node) => {
                self.cx().answer(requester, Err(ErrorReply::NodeLives(node)))
            }
            Request::ForgetNode { node } if self.end_lives_of(node) => {
                self.cx().answer(requester, Ok(Reply::Done))
            }
            question => {
                let (directory, mut cx) = self.directory_side();
                directory.serve(&mut cx, requester, question);
            }
        }
    }

    /// Ends the life of a node that is not reached; whether it was known.
    fn end_lives_of(&mut self, node: NodeId) -> bool {
        let ended = self.membership.pairings.lives_of(node);
        for life in &ended {
            self.end_life(*life, Parting::now(LossCause::Unreachable, self.out.now_ns()));
        }
        let was_known = self.membership.members.forget(node) || !ended.is_empty();
        if was_known {
            self.tell_directory(Word::Forgotten(node));
        }
        was_known
    }

    fn lives(&self, node: NodeId) -> bool {
        node == self.out.life().node || self.is_connected_to(node)
    }

    /// The home of a region has handed it over.  The next one says so too, unless its life is over by now.
    pub(super) fn handle_moved(&mut self, name: String, region: RegionId, epoch: Epoch, to: NodeLife) {
        if !self.membership.pairings.has_ended(to) {
            self.tell_directory(Word::Moved { name, region, epoch, to });
        }
    }

    /// A connection has ended.
    pub fn handle_disconnected(&mut self, now_ns: u64, peer: PeerId) {
        self.out.set_now(now_ns);
        self.tell_of(peer, News::Disconnected);
        self.forget_met(peer);
        self.lose(peer, NodeState::Unreachable, Parting::now(LossCause::Unreachable, now_ns));
        self.say_down(peer);
        self.settle();
    }

    /// A peer can touch nothing of ours any more; whether that is so because its process has exited.
    pub fn handle_cut_off(&mut self, now_ns: u64, peer: PeerId, exited: bool) {
        self.out.set_now(now_ns);
        self.forget_met(peer);
        self.lose(peer, NodeState::Unreachable, Parting::now(LossCause::Unreachable, now_ns));
        self.say_down(peer);
        if self.membership.members.note_cut_off(peer) {
            self.out.push(Effect::PeerCutOff(peer));
        }
        self.mark_cut_off(peer, exited);
        self.note_met_cut_off(peer, exited);
        self.settle();
    }

    /// The process of a peer that was to be cut off is being killed for that.
    pub fn handle_kill(&mut self, now_ns: u64, peer: PeerId) {
        self.out.set_now(now_ns);
        let Some(killed) = self.membership.members.note_killed(peer) else { return };
        let life = killed.life;
        self.out.tell(News::Killing(Somebody { life, pid: killed.pid }));
        if killed.silent {
            self.cx().notify_directory(Notice::Killing { life });
        }
    }

    /// How a node ended is known here, perhaps, but not that another has ended it.
    pub(super) fn handle_killing(&mut self, by: NodeLife, life: NodeLife) {
        let by = by.node;
        let is_told = self.membership.members.note_killed_elsewhere(life);
        if is_told {
            self.out.tell(News::KilledBy { life, by });
        }
        self.tell_directory(Word::Killed { life, by, is_told });
    }

    pub(super) fn handle_leave(&mut self, from: NodeLife) {
        let Some((peer, _)) =
            self.membership.members.peer_of(from.node).filter(|(_, known)| known.life == from)
        else {
            return;
        };
        self.tell_of(peer, News::Left);
        let parting = Parting::now(LossCause::Left, self.out.now_ns());
        self.lose(peer, NodeState::Left, parting);
        self.mark_cut_off(peer, false);
        self.home_side().recover_locks(from);
        self.end_life(from, parting);
    }

    fn mark_cut_off(&mut self, peer: PeerId, exited: bool) {
        let Some(buried) = self.membership.members.mark_cut_off(peer) else { return };
        let life = buried.life;
        if exited {
            let cause = if buried.killed { LossCause::Killed } else { LossCause::Exited };
            let parting = Parting::now(cause, self.out.now_ns());
            self.end_life(life, parting);
            self.membership.members.correct_loss(life, parting);
            self.tell_directory(Word::Corrected { life, parting });
            self.out.tell(News::Exited { who: Somebody { life, pid: buried.pid }, killed: buried.killed });
        }
        self.owner.handle_cut_off(life, &mut self.out);
        self.home_side().conclude_for(life);
        self.home_side().answer_for_the_cut_off();
        match exited {
            true => self.home_side().recover_locks(life),
            false => self.home_side().recover_locks_when_guards_are_over(life, buried.heard_ns),
        }
        self.pair_all();
    }

    /// A peer is dead because we say so, since then: it must be kept from our memory.
    pub(super) fn give_up(&mut self, peer: PeerId, since_ns: u64) {
        self.lose(peer, NodeState::Unreachable, Parting::now(LossCause::Unreachable, since_ns));
        self.out.push(Effect::CutOff(peer));
    }

    pub(super) fn say_down(&mut self, peer: PeerId) {
        if self.membership.members.note_down(peer) {
            self.out.push(Effect::PeerDown(peer));
        }
    }

    /// Tells something of a connected peer, if it is one.
    pub(super) fn tell_of(&mut self, peer: PeerId, news: impl FnOnce(Somebody) -> News) {
        if let Some(known) = self.membership.members.peer_mut(peer) {
            let who = Somebody { life: known.life, pid: known.pid };
            self.out.tell(news(who));
        }
    }

    pub(super) fn fail_requests_to(&mut self, life: NodeLife) {
        for id in self.out.asked_of(life.node) {
            self.handle_reply(life, id, Err(ErrorReply::PeerDown(life.node)));
        }
    }

    /// When `handle_timeout` wants to be called, in ns.
    pub fn poll_timeout(&self) -> Option<u64> {
        let waits_ns = self.barriers.deadline_ns().min(self.locks.deadline_ns()).min(self.out.dials_due_ns());
        let own_ns = self.membership.heartbeat_ns.min(self.membership.draining.deadline_ns());
        Some(waits_ns.min(own_ns).min(self.directory.deadline_ns()))
    }

    /// Signs of life that said nothing to us, such as acknowledgements: `heard` says when the last of a peer was, in ns, if it
    /// knows of any.  To be called before [`Engine::handle_timeout`].
    pub fn handle_signs_of_life(&mut self, heard: impl Fn(PeerId) -> Option<u64>) {
        self.membership.members.note_heard(heard);
    }

    /// Time has passed: says that we live, and looks who was silent for too long.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.out.set_now(now_ns);
        self.home_side().break_overdue_rounds();
        self.home_side().recover_overdue_locks();
        self.go_on_draining_in_time();
        self.fail_overdue_dials();
        let (directory, mut cx) = self.directory_side();
        directory.handle_timeout(&mut cx);
        self.settle();
        if now_ns < self.membership.heartbeat_ns {
            return;
        }
        let lease_ns = self.out.config().lease_ns;
        if now_ns - self.membership.heartbeat_ns > lease_ns / 2 {
            // It was us who slept: nobody's silence counts.
            self.membership.members.excuse_silence(now_ns);
            self.membership.meeting.excuse_silence(now_ns);
        }
        self.membership.heartbeat_ns = now_ns + lease_ns / 4;
        let peers: Vec<(PeerId, NodeId, u64, u64)> = self
            .membership
            .members
            .peers()
            .map(|(id, peer)| (id, peer.life.node, peer.heard_ns, peer.beat_ns))
            .collect();
        let time_ns = self.out.time_of_day_ns();
        for (peer, node, heard_ns, beat_ns) in peers {
            let silent_ns = now_ns.saturating_sub(heard_ns);
            if silent_ns > lease_ns {
                self.tell_of(peer, |who| News::Silent { who, silent_ns });
                let text = news::last_words(self.out.life(), silent_ns);
                self.out.push(Effect::Warn { peer, text });
                self.give_up(peer, heard_ns);
                self.membership.members.note_silent(peer);
            } else {
                self.cx().notify(node, Notice::Heartbeat { sent_ns: now_ns, heard_ns: beat_ns, time_ns });
            }
        }
        self.drop_those_unheard_of();
        self.expect_names_no_longer();
        self.commands.await_no_overdue(now_ns);
        self.say_what_was_held();
        self.cut_off_the_deaf();
        self.home_side().excuse_the_stalled();
        self.dial_the_unreachable();
        self.pair_all();
        self.home_side().refuse_those_behind_the_silent();
        self.settle();
    }

    /// Mappers that were told to let go, and have not.
    fn cut_off_the_deaf(&mut self) {
        let now_ns = self.out.now_ns();
        for mapper in self.home_side().deaf_mappers() {
            let known = self.membership.members.peer_of(mapper.node);
            if let Some((peer, _)) = known.filter(|(_, known)| known.life == mapper) {
                self.give_up(peer, now_ns);
                self.membership.members.note_silent(peer);
            }
        }
    }

    /// Says goodbye to everybody.
    pub fn leave(&mut self, now_ns: u64) {
        self.out.set_now(now_ns);
        self.membership.is_leaving = true;
        self.cx().notify_all(&Notice::Leave);
    }

    /// Whether a node is connected.
    pub fn is_connected_to(&self, node: NodeId) -> bool {
        self.membership.members.peer_of(node).is_some()
    }

    /// The connection to a node, if there is one; or that it is this node.
    pub fn target_of(&self, node: NodeId) -> Option<Target> {
        if node == self.out.life().node {
            return Some(Target::Own);
        }
        self.membership.members.peer_of(node).map(|(peer, _)| Target::Peer(peer))
    }

    /// The life of a node, if it is connected (or is this one).
    pub fn life_of(&self, node: NodeId) -> Option<NodeLife> {
        if node == self.out.life().node {
            return Some(self.out.life());
        }
        self.membership.members.peer_of(node).map(|(_, peer)| peer.life)
    }

    /// How long a silent node is thought alive, in ns.
    pub fn lease_ns(&self) -> u64 {
        self.out.config().lease_ns
    }

    /// Which node this is, in which life.
    pub fn life(&self) -> NodeLife {
        self.out.life()
    }

    /// All nodes that this one has seen.
    pub fn members(&self) -> Vec<Member> {
        self.membership.members.all().cloned().collect()
    }
}
