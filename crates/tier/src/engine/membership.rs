//! Who comes and goes, and what follows from it.

mod ended;
mod listed;
mod meeting;
mod pairing;

use halite_fabric::PeerId;

use self::listed::Listed;
use self::meeting::Meeting;
use self::pairing::Pairings;
use super::draining::Draining;
use super::{Engine, EngineConfig, Requester};
use crate::directory::Word;
use crate::effect::Effect;
use crate::ids::{Epoch, NodeId, NodeIncarnation, RegionId};
use crate::link::BadFrame;
use crate::members::{Members, Parting};
use crate::message::{ErrorReply, LossCause, Member, NodeState, Notice, Request};
use crate::news::{self, News, Somebody};
use crate::rpc::Target;

pub use listed::Listing;

/// Who is there, what we have with them, and how we stand ourselves.
#[derive(Debug)]
pub(super) struct Membership {
    members: Members,
    pairings: Pairings,
    meeting: Meeting,
    /// Who is there by the word of a store outside of the cluster.
    listed: Listed,
    /// When we say again that we live.
    heartbeat_ns: u64,
    is_leaving: bool,
    draining: Draining,
}

/// What a frame brings.
pub(super) struct Heard {
    pub(super) from: NodeIncarnation,
    /// The message that ends with it, if one does.
    pub(super) message: Result<Option<Vec<u8>>, BadFrame>,
}

impl Membership {
    pub(super) fn new(config: &EngineConfig, now_ns: u64) -> Membership {
        let mut members = Members::default();
        members.insert_self(&config.hello());
        let (pairings, meeting) = (Pairings::default(), Meeting::default());
        let (listed, draining) = (Listed::default(), Draining::default());
        Membership { members, pairings, meeting, listed, heartbeat_ns: now_ns, is_leaving: false, draining }
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

    pub(super) fn listed(&self) -> &Listed {
        &self.listed
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

    /// A member could not be met.
    pub(super) fn note_unmet(&mut self, incarnation: NodeIncarnation) {
        if !self.members.is_alive(incarnation) {
            self.members.note_unmet(incarnation);
        }
    }

    /// How many nodes there are, as far as is known here.
    pub(super) fn count(&self) -> usize {
        self.pairings.len().max(self.listed.len()) + 1
    }

    /// Who says to node `me` who there is: the directory's node; where that is out of reach, the lowest that stays of this one and those who are connected.
    pub(super) fn source(&self, me: NodeId, seat: NodeId) -> NodeId {
        if seat == me || self.members.peer_of(seat).is_some() {
            return seat;
        }
        let peers = self.members.peers().map(|(_, peer)| peer.incarnation.node);
        peers.chain([me]).filter(|node| !node.is_ephemeral()).min().unwrap_or(seat)
    }

    /// Another node takes nothing new, or does again.
    pub(super) fn note_draining(&mut self, incarnation: NodeIncarnation, is_on: bool) {
        self.draining.note(incarnation, is_on);
    }

    /// Whether a node of that number is or was in the cluster: there is always a first one.
    pub(super) fn knows(&self, node: NodeId) -> bool {
        node == NodeId::FIRST || self.members.knows(node) || self.listed.has(node)
    }

    /// A frame of a peer has arrived; `None` if the connection is not up.
    pub(super) fn handle_frame(&mut self, now_ns: u64, peer: PeerId, frame: &[u8]) -> Option<Heard> {
        let from = self.members.peer_mut(peer)?;
        from.heard_ns = now_ns;
        Some(Heard { from: from.incarnation, message: from.assembler.handle_frame(frame) })
    }

    /// A heartbeat has arrived.
    pub(super) fn note_beat(&mut self, from: NodeIncarnation, sent_ns: u64) {
        self.members.note_beat(from, sent_ns);
    }

    /// A peer has heard what was said to it then.
    pub(super) fn note_acknowledged(&mut self, from: NodeIncarnation, said_ns: u64, now_ns: u64) {
        self.members.note_acknowledged(from, said_ns, now_ns);
    }

    /// The other end of a pairing says which number it has.
    pub(super) fn note_number(&mut self, from: NodeIncarnation, pairing: u64) {
        self.pairings.note_number(from, pairing);
    }

    /// A peer has told all that it holds for us.
    pub(super) fn note_held_told(&mut self, from: NodeIncarnation) {
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
    pub(super) fn expect_names(&mut self, incarnation: NodeIncarnation, was_before_us: bool) {
        let has_told =
            self.membership.members.peer_of(incarnation.node).is_some_and(|(_, peer)| peer.has_told_names);
        if was_before_us && !has_told {
            self.tell_directory(Word::Expected(incarnation));
        }
    }

    /// Tells our part of the directory what has happened.
    pub(super) fn tell_directory(&mut self, word: Word) {
        let (directory, mut cx) = self.directory_side();
        directory.tell(&mut cx, word);
    }

    pub(super) fn handle_names(
        &mut self,
        from: NodeIncarnation,
        names: Vec<(String, RegionId, Epoch)>,
        done: bool,
    ) {
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
            Request::ForgetNode { node } if self.end_incarnations_of(node) => {
                self.tell_of_forgotten(node);
                self.tell_directory(Word::Forgotten { node, requester });
            }
            question => {
                let (directory, mut cx) = self.directory_side();
                directory.serve(&mut cx, requester, question);
            }
        }
    }

    /// Ends the incarnation of a node that is not reached; whether it was known.
    fn end_incarnations_of(&mut self, node: NodeId) -> bool {
        let ended = self.membership.pairings.incarnations_of(node);
        for incarnation in &ended {
            self.end_incarnation(*incarnation, Parting::now(LossCause::Unreachable, self.out.now_ns()));
        }
        self.membership.members.forget(node) || !ended.is_empty()
    }

    /// Where the directory's node is away, we were asked in its place, and the others hear it from us: nobody else would tell them before that is back.
    fn tell_of_forgotten(&mut self, node: NodeId) {
        let seat = self.directory.seat();
        if seat != self.out.incarnation().node && !self.is_connected_to(seat) {
            let ended = self.membership.pairings.ended_of(node);
            self.cx().notify_all(&Notice::Known { living: Vec::new(), unreachable: Vec::new(), ended });
        }
    }

    /// Who says who there is: the directory's node; where that is out of reach, the lowest that stays of this one and those who are connected.
    pub fn membership_source(&self) -> NodeId {
        self.membership.source(self.out.incarnation().node, self.directory.seat())
    }

    pub(super) fn lives(&self, node: NodeId) -> bool {
        node == self.out.incarnation().node || self.is_connected_to(node)
    }

    /// The home of a region has handed it over.  The next one says so too, unless its incarnation is over by now.
    pub(super) fn handle_moved(&mut self, name: String, region: RegionId, epoch: Epoch, to: NodeIncarnation) {
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
        let incarnation = killed.incarnation;
        self.out.tell(News::Killing(Somebody { incarnation, pid: killed.pid }));
        if killed.silent {
            self.cx().notify_directory(Notice::Killing { incarnation });
        }
    }

    /// How a node ended is known here, perhaps, but not that another has ended it.
    pub(super) fn handle_killing(&mut self, by: NodeIncarnation, incarnation: NodeIncarnation) {
        let by = by.node;
        let is_told = self.membership.members.note_killed_elsewhere(incarnation);
        if is_told {
            self.out.tell(News::KilledBy { incarnation, by });
        }
        self.tell_directory(Word::Killed { incarnation, by, is_told });
    }

    pub(super) fn handle_leave(&mut self, from: NodeIncarnation) {
        let Some((peer, _)) =
            self.membership.members.peer_of(from.node).filter(|(_, known)| known.incarnation == from)
        else {
            return;
        };
        self.tell_of(peer, News::Left);
        let parting = Parting::now(LossCause::Left, self.out.now_ns());
        self.lose(peer, NodeState::Left, parting);
        self.mark_cut_off(peer, false);
        self.home_side().recover_locks(from);
        self.end_incarnation(from, parting);
    }

    fn mark_cut_off(&mut self, peer: PeerId, exited: bool) {
        let Some(dead) = self.membership.members.mark_cut_off(peer) else { return };
        let incarnation = dead.incarnation;
        if exited {
            let cause = if dead.killed { LossCause::Killed } else { LossCause::Exited };
            let parting = Parting::now(cause, self.out.now_ns());
            self.end_incarnation(incarnation, parting);
            self.membership.members.correct_loss(incarnation, parting);
            self.tell_directory(Word::Corrected { incarnation, parting });
            self.out.tell(News::Exited { who: Somebody { incarnation, pid: dead.pid }, killed: dead.killed });
        }
        self.owner.handle_cut_off(incarnation, &mut self.out);
        self.home_side().conclude_for(incarnation);
        self.home_side().answer_for_the_cut_off();
        match exited {
            true => self.home_side().recover_locks(incarnation),
            false => self.home_side().recover_locks_when_guards_are_over(incarnation, dead.heard_ns),
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
            let who = Somebody { incarnation: known.incarnation, pid: known.pid };
            self.out.tell(news(who));
        }
    }

    pub(super) fn fail_requests_to(&mut self, incarnation: NodeIncarnation) {
        for id in self.out.asked_of(incarnation.node) {
            self.handle_reply(incarnation, id, Err(ErrorReply::PeerDown(incarnation.node)));
        }
    }

    /// When `handle_timeout` wants to be called, in ns.
    pub fn poll_timeout(&self) -> Option<u64> {
        let waits_ns = self.barriers.deadline_ns().min(self.locks.deadline_ns()).min(self.out.dials_due_ns());
        let own_ns = self.membership.heartbeat_ns.min(self.membership.draining.deadline_ns());
        let asked_ns = self.directory.deadline_ns().min(self.commands.statuses_due_ns());
        Some(waits_ns.min(own_ns).min(asked_ns))
    }

    /// Signs of incarnation that said nothing to us, such as acknowledgements: `heard` says when the last of a peer was, in ns, if it
    /// knows of any.  To be called before [`Engine::handle_timeout`].
    pub fn handle_signs_of_life(&mut self, heard: impl Fn(PeerId) -> Option<u64>) {
        self.membership.members.note_heard(heard);
    }

    /// Whether somebody has been heard whose dial is under way, if it matters.  To be called before [`Engine::handle_timeout`].
    pub fn handle_dials(&mut self, now_ns: u64, are_answered: impl FnOnce() -> bool) {
        // A connection that is there may not be up yet.
        if self.commands.has_overdue_statuses(now_ns) && (self.awaits_first_words() || are_answered()) {
            self.commands.wait_on_for_statuses(now_ns);
        }
    }

    /// Time has passed: says that we live, and looks who was silent for too long.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.out.set_now(now_ns);
        self.home_side().break_overdue_rounds();
        self.home_side().recover_overdue_locks();
        self.go_on_draining_in_time();
        self.fail_overdue_dials();
        self.session_side().conclude_overdue_statuses();
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
            .map(|(id, peer)| (id, peer.incarnation.node, peer.heard_ns, peer.beat_ns))
            .collect();
        let time_ns = self.out.time_of_day_ns();
        for (peer, node, heard_ns, beat_ns) in peers {
            let silent_ns = now_ns.saturating_sub(heard_ns);
            if silent_ns > lease_ns {
                self.tell_of(peer, |who| News::Silent { who, silent_ns });
                let text = news::last_words(self.out.incarnation(), silent_ns);
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
            if let Some((peer, _)) = known.filter(|(_, known)| known.incarnation == mapper) {
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
        let (directory, mut cx) = self.directory_side();
        directory.sign_off(&mut cx);
    }

    /// Whether a node is connected.
    pub fn is_connected_to(&self, node: NodeId) -> bool {
        self.membership.members.peer_of(node).is_some()
    }

    /// The connection to a node, if there is one; or that it is this node.
    pub fn target_of(&self, node: NodeId) -> Option<Target> {
        if node == self.out.incarnation().node {
            return Some(Target::Own);
        }
        self.membership.members.peer_of(node).map(|(peer, _)| Target::Peer(peer))
    }

    /// The incarnation of a node, if it is connected (or is this one).
    pub fn incarnation_of(&self, node: NodeId) -> Option<NodeIncarnation> {
        if node == self.out.incarnation().node {
            return Some(self.out.incarnation());
        }
        self.membership.members.peer_of(node).map(|(_, peer)| peer.incarnation)
    }

    /// How long a silent node is thought alive, in ns.
    pub fn lease_ns(&self) -> u64 {
        self.out.config().lease_ns
    }

    /// Which node this is, in which incarnation.
    pub fn incarnation(&self) -> NodeIncarnation {
        self.out.incarnation()
    }

    /// All nodes that this one has seen.
    pub fn members(&self) -> Vec<Member> {
        self.membership.members.all().cloned().collect()
    }
}
