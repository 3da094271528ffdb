//! Handles members that join, leave, fall silent or are cut off, and passes the consequences to the other parts of the
//! engine.

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
use crate::directory::DirectoryEvent;
use crate::effect::Effect;
use crate::ids::{Epoch, NodeId, NodeIncarnation, RegionId};
use crate::link::BadFrame;
use crate::members::{Members, NodeLoss};
use crate::message::{ErrorReply, LossCause, Member, NodeState, Notice, Request};
use crate::news::{self, News, NodeProcess};
use crate::rpc::Target;

pub use listed::Listing;

/// The members, the pairings with them, and this node's own state.
#[derive(Debug)]
pub(super) struct Membership {
    members: Members,
    pairings: Pairings,
    meeting: Meeting,
    /// Members listed in a store outside the cluster.
    listed: Listed,
    /// Time of the next heartbeat, in ns.
    heartbeat_ns: u64,
    is_leaving: bool,
    draining: Draining,
}

/// A received frame.
pub(super) struct ReceivedFrame {
    pub(super) from: NodeIncarnation,
    /// The message that the frame completes, or `None` if the frame is a fragment that completes none.
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

    /// Forgets the members that the store outside the cluster lists.
    pub(super) fn forget_listed(&mut self) {
        self.listed = Listed::default();
    }

    pub(super) fn listed(&self) -> &Listed {
        &self.listed
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Nodes that are draining, so are about to leave.
    pub(super) fn draining(&self) -> &Draining {
        &self.draining
    }

    pub(super) fn draining_mut(&mut self) -> &mut Draining {
        &mut self.draining
    }

    /// Records that the first meeting with a member failed.
    pub(super) fn record_unmet(&mut self, incarnation: NodeIncarnation) {
        if !self.members.is_alive(incarnation) {
            self.members.record_unmet(incarnation);
        }
    }

    /// Returns the number of nodes in the cluster, as far as this node knows.
    pub(super) fn count(&self) -> usize {
        self.pairings.len().max(self.listed.len()) + 1
    }

    /// Returns the node that lists members to node `me`: the directory's node, or if that node is unreachable, the
    /// permanent node with the lowest number among `me` and its peers.
    pub(super) fn source(&self, me: NodeId, seat: NodeId) -> NodeId {
        if seat == me || self.members.peer_of(seat).is_some() {
            return seat;
        }
        let peers = self.members.peers().map(|(_, peer)| peer.incarnation.node);
        peers.chain([me]).filter(|node| !node.is_ephemeral()).min().unwrap_or(seat)
    }

    /// Records that another node starts (`is_on`) or stops draining.
    pub(super) fn record_draining(&mut self, incarnation: NodeIncarnation, is_on: bool) {
        self.draining.record(incarnation, is_on);
    }

    /// Returns true if a node with this number is or was in the cluster. Always true for the first node.
    pub(super) fn knows(&self, node: NodeId) -> bool {
        node == NodeId::FIRST || self.members.knows(node) || self.listed.has(node)
    }

    /// Returns true if this node knows a node with number `node` that may live, and was never connected to it.
    pub(super) fn is_unmet(&self, node: NodeId) -> bool {
        use NodeState::{Alive, Draining, Silent, Unconnected};
        match self.members.state_of(node) {
            Some(Alive | Draining | Silent | Unconnected) => self.members.peer_of(node).is_none(),
            Some(_) => false,
            None => node == NodeId::FIRST || self.listed.has(node),
        }
    }

    /// Handles a frame of a peer. Returns `None` if the connection is not up.
    pub(super) fn handle_frame(&mut self, now_ns: u64, peer: PeerId, frame: &[u8]) -> Option<ReceivedFrame> {
        let from = self.members.peer_mut(peer)?;
        from.heard_ns = now_ns;
        Some(ReceivedFrame { from: from.incarnation, message: from.assembler.handle_frame(frame) })
    }

    /// Records a heartbeat that the peer sent at `sent_ns` by its own clock, while `bytes_taken` of its memory were not
    /// free.
    pub(super) fn record_beat(&mut self, from: NodeIncarnation, sent_ns: u64, bytes_taken: u64) {
        self.members.record_beat(from, sent_ns, bytes_taken);
    }

    /// Records that a peer has received a message that this node sent at `said_ns`.
    pub(super) fn record_acknowledged(&mut self, from: NodeIncarnation, said_ns: u64, now_ns: u64) {
        self.members.record_acknowledged(from, said_ns, now_ns);
    }

    /// Records the number of a pairing as the peer counts it.
    pub(super) fn record_number(&mut self, from: NodeIncarnation, pairing: u64) {
        self.pairings.record_number(from, pairing);
    }

    /// Records that a peer has reported all the chunks that it holds for this node.
    pub(super) fn record_held_reported(&mut self, from: NodeIncarnation) {
        self.members.record_held_reported(from);
    }

    /// Records the directory's list of present and former members.
    pub(super) fn learn(&mut self, members: Vec<Member>, me: NodeId, now_ns: u64) {
        self.members.learn(members, me, now_ns);
    }
}

impl Engine {
    /// Starts the meeting: this node is about to connect to all nodes that joined before it. Until
    /// [`Engine::handle_all_met`], an embedded directory at this node answers no requests, because a home may not have
    /// reported its names yet.
    pub fn begin_to_meet(&mut self) {
        self.membership.meeting.is_joining = true;
        self.tell_directory(DirectoryEvent::Connecting);
    }

    /// Handles the end of joining: each connection that this node started is up or has failed.
    pub fn handle_all_met(&mut self, now_ns: u64) {
        self.out.set_now(now_ns);
        self.membership.meeting.is_joining = false;
        self.tell_directory(DirectoryEvent::AllConnected);
        // Some members are known only from the reports of other nodes.
        self.dial_unreachable();
        self.run_loopback();
    }

    /// Makes the directory at this node, if it is here, wait for the names of a node that joined before this node. Has
    /// no effect if that node has already reported its names.
    pub(super) fn expect_names(&mut self, incarnation: NodeIncarnation, was_before_us: bool) {
        let has_reported = self
            .membership
            .members
            .peer_of(incarnation.node)
            .is_some_and(|(_, peer)| peer.has_reported_names);
        if was_before_us && !has_reported {
            self.tell_directory(DirectoryEvent::Expected(incarnation));
        }
    }

    /// Passes an event to this node's part of the directory.
    pub(super) fn tell_directory(&mut self, event: DirectoryEvent) {
        let (directory, mut cx) = self.directory_side();
        directory.tell(&mut cx, event);
    }

    pub(super) fn handle_names(
        &mut self,
        from: NodeIncarnation,
        names: Vec<(String, RegionId, Epoch)>,
        done: bool,
    ) {
        if done {
            self.record_names_reported(from);
        }
        self.tell_directory(DirectoryEvent::Names { from, names, done });
    }

    pub(super) fn serve_directory(&mut self, requester: Requester, question: Request) {
        match question {
            Request::ForgetNode { node } if self.is_own_or_connected(node) => {
                self.cx().answer(requester, Err(ErrorReply::NodeLives(node)))
            }
            Request::ForgetNode { node } if self.end_incarnations_of(node) => {
                self.announce_forgotten(node);
                self.tell_directory(DirectoryEvent::Forgotten { node, requester });
            }
            question => {
                let (directory, mut cx) = self.directory_side();
                directory.serve(&mut cx, requester, question);
            }
        }
    }

    /// Ends all incarnations of an unreachable node. Returns true if the node was known.
    fn end_incarnations_of(&mut self, node: NodeId) -> bool {
        let ended = self.membership.pairings.incarnations_of(node);
        for incarnation in &ended {
            self.end_incarnation(*incarnation, NodeLoss::now(LossCause::Unreachable, self.out.now_ns()));
        }
        self.membership.members.forget(node) || !ended.is_empty()
    }

    /// Tells all peers that a node was forgotten, in place of the directory's node while that is unreachable.
    fn announce_forgotten(&mut self, node: NodeId) {
        let seat = self.directory.seat();
        if seat != self.out.incarnation().node && !self.is_connected_to(seat) {
            let ended = self.membership.pairings.ended_of(node);
            self.cx().notify_all(&Notice::Known { living: Vec::new(), unreachable: Vec::new(), ended });
        }
    }

    /// Returns the node that lists members: the directory's node or, if that node is unreachable, the permanent node
    /// with the lowest number among this node and its peers.
    pub fn membership_source(&self) -> NodeId {
        self.membership.source(self.out.incarnation().node, self.directory.seat())
    }

    pub(super) fn is_own_or_connected(&self, node: NodeId) -> bool {
        node == self.out.incarnation().node || self.is_connected_to(node)
    }

    /// Handles a home's report that a region has moved. The new home reports it too, unless its incarnation has ended.
    pub(super) fn handle_moved(&mut self, name: String, region: RegionId, epoch: Epoch, to: NodeIncarnation) {
        if !self.membership.pairings.has_ended(to) {
            self.tell_directory(DirectoryEvent::Moved { name, region, epoch, to });
        }
    }

    /// Handles the end of a connection: ends the pairing with the peer. The peer may still access this node's memory.
    /// `reason` is for display.
    pub fn handle_disconnected(&mut self, now_ns: u64, peer: PeerId, reason: Option<String>) {
        self.out.set_now(now_ns);
        self.report_peer(peer, |process| News::Disconnected { process, reason });
        self.forget_met(peer);
        self.lose(peer, NodeState::Unreachable, NodeLoss::now(LossCause::Unreachable, now_ns));
        self.report_down(peer);
        self.run_loopback();
    }

    /// Handles a cut-off: the peer can no longer access this node's memory. `exited` is true if the peer's process has
    /// exited.
    pub fn handle_cut_off(&mut self, now_ns: u64, peer: PeerId, exited: bool) {
        self.out.set_now(now_ns);
        self.forget_met(peer);
        self.lose(peer, NodeState::Unreachable, NodeLoss::now(LossCause::Unreachable, now_ns));
        self.report_down(peer);
        if self.membership.members.record_cut_off(peer) {
            self.out.push(Effect::PeerCutOff(peer));
        }
        self.mark_cut_off(peer, exited);
        self.handle_candidate_cut_off(peer, exited);
        self.run_loopback();
    }

    /// Handles the start of a kill: the driver is killing the process of a peer in order to cut the peer off.
    pub fn handle_kill(&mut self, now_ns: u64, peer: PeerId) {
        self.out.set_now(now_ns);
        let Some(killed) = self.membership.members.record_killed(peer) else { return };
        let incarnation = killed.incarnation;
        self.out.report(News::Killing(NodeProcess { incarnation, pid: killed.pid }));
        if killed.silent {
            self.cx().notify_directory(Notice::Killing { incarnation });
        }
    }

    /// Records that node `by` is killing a process. This node may already know that the process has ended, but not that
    /// it was killed.
    pub(super) fn handle_killing(&mut self, by: NodeIncarnation, incarnation: NodeIncarnation) {
        let by = by.node;
        let is_reported = self.membership.members.record_killed_elsewhere(incarnation);
        if is_reported {
            self.out.report(News::KilledBy { incarnation, by });
        }
        self.tell_directory(DirectoryEvent::Killed { incarnation, by, is_reported });
    }

    pub(super) fn handle_leave(&mut self, from: NodeIncarnation) {
        let Some((peer, _)) =
            self.membership.members.peer_of(from.node).filter(|(_, known)| known.incarnation == from)
        else {
            return;
        };
        self.report_peer(peer, News::Left);
        let loss = NodeLoss::now(LossCause::Left, self.out.now_ns());
        self.lose(peer, NodeState::Left, loss);
        self.mark_cut_off(peer, false);
        self.home_side().recover_locks(from);
        self.end_incarnation(from, loss);
    }

    fn mark_cut_off(&mut self, peer: PeerId, exited: bool) {
        let Some(dead) = self.membership.members.mark_cut_off(peer) else { return };
        let incarnation = dead.incarnation;
        if exited {
            let cause = if dead.killed { LossCause::Killed } else { LossCause::Exited };
            let loss = NodeLoss::now(cause, self.out.now_ns());
            self.end_incarnation(incarnation, loss);
            self.membership.members.correct_loss(incarnation, loss);
            self.tell_directory(DirectoryEvent::Corrected { incarnation, loss });
            self.out.report(News::Exited {
                process: NodeProcess { incarnation, pid: dead.pid },
                killed: dead.killed,
            });
        }
        self.owner.handle_cut_off(incarnation, &mut self.out);
        self.home_side().reconsider_commands_of(incarnation);
        self.home_side().answer_cut_off();
        match exited {
            true => self.home_side().recover_locks(incarnation),
            false => self.home_side().recover_locks_after_guards(incarnation, dead.heard_ns),
        }
        self.pair_all();
    }

    /// Declares a peer dead, and cuts it off from this node's memory.
    pub(super) fn declare_dead(&mut self, peer: PeerId) {
        self.lose(peer, NodeState::Unreachable, NodeLoss::now(LossCause::Unreachable, self.out.now_ns()));
        self.out.push(Effect::CutOff(peer));
    }

    pub(super) fn report_down(&mut self, peer: PeerId) {
        if self.membership.members.record_down(peer) {
            self.out.push(Effect::PeerDown(peer));
        }
    }

    /// Reports news about a connected peer.
    pub(super) fn report_peer(&mut self, peer: PeerId, news: impl FnOnce(NodeProcess) -> News) {
        if let Some(known) = self.membership.members.peer_mut(peer) {
            let process = NodeProcess { incarnation: known.incarnation, pid: known.pid };
            self.out.report(news(process));
        }
    }

    pub(super) fn fail_requests_to(&mut self, incarnation: NodeIncarnation) {
        for id in self.out.pending_to(incarnation.node) {
            self.handle_reply(incarnation, id, Err(ErrorReply::PeerDown(incarnation.node)));
        }
    }

    /// Returns the time in ns at which [`Engine::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        let waits_ns = self.barriers.deadline_ns().min(self.locks.deadline_ns()).min(self.out.dials_due_ns());
        let own_ns = self.membership.heartbeat_ns.min(self.membership.draining.deadline_ns());
        let asked_ns = self.directory.deadline_ns().min(self.commands.statuses_due_ns());
        Some(waits_ns.min(own_ns).min(asked_ns))
    }

    /// Records signs of life other than messages, such as acknowledgements of packets. `heard` returns the time in ns
    /// of a peer's last sign of life, or `None`. Call this method before [`Engine::handle_timeout`].
    pub fn handle_signs_of_life(&mut self, heard: impl Fn(PeerId) -> Option<u64>) {
        self.membership.members.update_heard(heard);
    }

    /// Extends the wait for the status of nodes that this node is dialling, if one of them has answered the dial.
    /// `are_answered` returns true in that case. Call this method before [`Engine::handle_timeout`].
    pub fn handle_dials(&mut self, now_ns: u64, are_answered: impl FnOnce() -> bool) {
        let overdue = self.commands.overdue_in_statuses(now_ns);
        // A connection that exists may not be up yet, or its first reply may be on its way.
        let is_reached =
            || overdue.iter().any(|node| self.is_connected_to(*node)) || self.awaits_first_words();
        if !overdue.is_empty() && (is_reached() || are_answered()) {
            self.commands.extend_status_waits(now_ns);
        }
    }

    /// Does the work that is due at `now_ns`: sends heartbeats, declares silent peers dead, and ends overdue waits.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.out.set_now(now_ns);
        self.home_side().break_overdue_rounds();
        self.home_side().recover_overdue_locks();
        self.check_drain_timers();
        self.fail_overdue_dials();
        self.session_side().finish_overdue_statuses();
        let (directory, mut cx) = self.directory_side();
        directory.handle_timeout(&mut cx);
        self.run_loopback();
        if now_ns < self.membership.heartbeat_ns {
            return;
        }
        let lease_ns = self.out.config().lease_ns;
        if now_ns - self.membership.heartbeat_ns > lease_ns / 2 {
            // This node itself was suspended, so a peer's silence proves nothing.
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
        let (time_ns, bytes_taken) = (self.out.time_of_day_ns(), self.owner.bytes_taken());
        for (peer, node, heard_ns, beat_ns) in peers {
            let silent_ns = now_ns.saturating_sub(heard_ns);
            if silent_ns > lease_ns {
                self.report_peer(peer, |process| News::Silent { process, silent_ns });
                let text = news::kill_warning(self.out.incarnation(), silent_ns);
                self.out.push(Effect::Warn { peer, text });
                self.declare_dead(peer);
                self.membership.members.record_silent(peer);
            } else {
                let beat = Notice::Heartbeat { sent_ns: now_ns, heard_ns: beat_ns, time_ns, bytes_taken };
                self.cx().notify(node, beat);
            }
        }
        self.drop_late_candidates();
        self.expire_expected_names();
        self.commands.expire_lost_replies(now_ns);
        self.complete_deferred();
        self.cut_off_unresponsive_mappers();
        self.home_side().answer_stalled();
        self.dial_unreachable();
        self.pair_all();
        self.home_side().refuse_waiters_of_silent_holders();
        self.run_loopback();
    }

    /// Cuts off mappers that did not release their mappings in time.
    fn cut_off_unresponsive_mappers(&mut self) {
        for mapper in self.home_side().unresponsive_mappers() {
            let known = self.membership.members.peer_of(mapper.node);
            if let Some((peer, _)) = known.filter(|(_, known)| known.incarnation == mapper) {
                self.declare_dead(peer);
                self.membership.members.record_silent(peer);
            }
        }
    }

    /// Notifies all peers and the directory that this node leaves the cluster.
    pub fn leave(&mut self, now_ns: u64) {
        self.out.set_now(now_ns);
        self.membership.is_leaving = true;
        self.cx().notify_all(&Notice::Leave);
        let (directory, mut cx) = self.directory_side();
        directory.deregister(&mut cx);
    }

    /// Returns true if `node` is a connected peer, and false for this node itself.
    pub fn is_connected_to(&self, node: NodeId) -> bool {
        self.membership.members.peer_of(node).is_some()
    }

    /// Returns [`Target::Own`] if `node` is this node, the connection if `node` is a connected peer, and `None`
    /// otherwise.
    pub fn target_of(&self, node: NodeId) -> Option<Target> {
        if node == self.out.incarnation().node {
            return Some(Target::Own);
        }
        self.membership.members.peer_of(node).map(|(peer, _)| Target::Peer(peer))
    }

    /// Returns the incarnation of `node` if `node` is connected or is this node, else `None`.
    pub fn incarnation_of(&self, node: NodeId) -> Option<NodeIncarnation> {
        if node == self.out.incarnation().node {
            return Some(self.out.incarnation());
        }
        self.membership.members.peer_of(node).map(|(_, peer)| peer.incarnation)
    }

    /// Returns the lease: the time in ns without a sign of life after which a peer counts as dead.
    pub fn lease_ns(&self) -> u64 {
        self.out.config().lease_ns
    }

    /// Returns this node's number and incarnation.
    pub fn incarnation(&self) -> NodeIncarnation {
        self.out.incarnation()
    }

    /// Returns all present and former members that this node knows.
    pub fn members(&self) -> Vec<Member> {
        self.membership.members.all().cloned().collect()
    }
}
