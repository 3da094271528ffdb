//! The protocol by which two nodes establish one connection, even if both dial, and pair over it.
//!
//! ```text
//!   lower number                                             higher number
//!   first connection, once ready ── Welcome(pairing) ─────>  once ready: up; drops all other connections
//!   first message over it: up    <── Paired(pairing) ───────
//!   other connections: sends nothing                         receives nothing
//!   their end                    <── dropped ───────────────
//! ```
//!
//! A node is ready when nothing is left of its former pairing with the peer's incarnation ([`super::pairing`]), and it
//! knows no other incarnation with the peer's number. A connection that is not up carries only the messages in the
//! figure, so no other message is lost when the connection ends. (Decisions 015 and 016.)

use std::collections::{BTreeMap, BTreeSet};

use halite_fabric::PeerId;

use crate::effect::Effect;
use crate::engine::{Connection, Engine};
use crate::hello::{BadHello, Hello};
use crate::ids::{NodeId, NodeIncarnation};
use crate::link::{self, Assembler};
use crate::members::NodeLoss;
use crate::message::{self, LossCause, Message, Notice};
use crate::news::{News, Over};

/// Leases for which a connection may wait to be up: the peer may be waiting for the end of another node's lease.
const PATIENCE_LEASES: u64 = 3;

/// Connections that are not up, with the state of their handshakes.
#[derive(Debug, Default)]
pub(in crate::engine) struct Meeting {
    waiting: BTreeMap<PeerId, Candidate>,
    /// Connections that ended before they were up, but may still deliver messages.
    ended: BTreeMap<PeerId, NodeIncarnation>,
    /// Refused peers, and the time of refusal in ns. A dialling peer reads the reason and hangs up by itself.
    refused: BTreeMap<PeerId, u64>,
    /// True if this node is still connecting to the nodes that were in the cluster before it.
    pub(in crate::engine) is_joining: bool,
}

#[derive(Debug)]
struct Candidate {
    connection: Connection,
    hello: Hello,
    since_ns: u64,
    assembler: Assembler,
    /// Number of the pairing that this node has offered over this connection, if this node chooses the connection.
    offered: Option<u64>,
    /// Number of the pairing that the peer has offered over this connection, if the peer chooses the connection.
    welcomed: Option<u64>,
}

impl Meeting {
    fn of(&self, incarnation: NodeIncarnation) -> impl Iterator<Item = (PeerId, &Candidate)> {
        let of = self.waiting.iter().filter(move |(_, waiting)| waiting.hello.incarnation == incarnation);
        of.map(|(peer, waiting)| (*peer, waiting))
    }

    /// Returns true if this node has a connection to `incarnation` that is not up yet.
    pub(in crate::engine) fn has(&self, incarnation: NodeIncarnation) -> bool {
        self.of(incarnation).next().is_some()
    }

    /// Returns true if this node has a connection to any incarnation of `node` that is not up yet.
    pub(in crate::engine) fn has_node(&self, node: NodeId) -> bool {
        self.waiting.values().any(|waiting| waiting.hello.incarnation.node == node)
    }

    /// Returns true if `incarnation` has offered this node a pairing.
    fn is_welcomed_by(&self, incarnation: NodeIncarnation) -> bool {
        self.of(incarnation).any(|(_, waiting)| waiting.welcomed.is_some())
    }

    /// Returns true if the peer may consider a connection to be up, and use it.
    pub(in crate::engine) fn may_be_used_by(&self, incarnation: NodeIncarnation) -> bool {
        self.has_offered(incarnation) || self.ended.values().any(|of| *of == incarnation)
    }

    /// Returns true if this node has offered `incarnation` a pairing over a connection that still exists.
    pub(in crate::engine) fn has_offered(&self, incarnation: NodeIncarnation) -> bool {
        self.of(incarnation).any(|(_, waiting)| waiting.offered.is_some())
    }

    /// Returns the incarnations to which this node has offered a pairing, so that they may consider a connection to be
    /// up.
    pub(in crate::engine) fn offered(&self) -> impl Iterator<Item = NodeIncarnation> {
        let offered = self.waiting.values().filter(|waiting| waiting.offered.is_some());
        offered.map(|waiting| waiting.hello.incarnation)
    }

    /// Restarts the timeouts of all candidates: this node was suspended, so their silence proves nothing.
    pub(in crate::engine) fn excuse_silence(&mut self, now_ns: u64) {
        self.waiting.values_mut().for_each(|waiting| waiting.since_ns = now_ns);
    }
}

impl Engine {
    /// Handles a new connection with the peer's encoded hello: refuses the peer, or begins to pair with it.
    pub fn handle_connected(&mut self, now_ns: u64, connection: Connection, hello: &[u8]) {
        self.out.set_now(now_ns);
        match self.check_hello(hello) {
            Ok(hello) => self.meet(connection, hello),
            Err(why) => {
                self.out.report(News::Refused(why));
                match why {
                    BadHello::Version(_) if !connection.dialled => {
                        self.membership.meeting.refused.insert(connection.peer, now_ns);
                    }
                    BadHello::Ended(_) => {
                        self.send_early(connection.peer, connection.send_bytes_max, Notice::Over);
                        // The peer hangs up after reading that notice.
                        self.membership.meeting.refused.insert(connection.peer, now_ns);
                    }
                    _ => self.out.push(Effect::Disconnect(connection.peer)),
                }
            }
        }
        self.run_loopback();
    }

    fn check_hello(&self, hello: &[u8]) -> Result<Hello, BadHello> {
        let hello = Hello::decode(hello, self.out.incarnation().node)?;
        match self.membership.pairings.has_ended(hello.incarnation) || self.owner.has_swept(hello.incarnation)
        {
            true => Err(BadHello::Ended(hello.incarnation.node)),
            false => Ok(hello),
        }
    }

    fn meet(&mut self, connection: Connection, hello: Hello) {
        let (peer, incarnation) = (connection.peer, hello.incarnation);
        self.membership.pairings.record_address(incarnation, &hello.address);
        self.membership.pairings.record_dialled(&hello.address);
        if self.membership.members.is_alive(incarnation) {
            // The choosing node lets the peer drop surplus connections. A peer that dials again does not know yet that
            // its pairing has ended.
            let is_surplus = self.membership.meeting.has(incarnation);
            if !self.chooses_for(incarnation.node) || is_surplus {
                return self.out.push(Effect::Disconnect(peer));
            }
        }
        self.expect_names(incarnation, connection.dialled);
        let (since_ns, assembler) = (self.out.now_ns(), Assembler::default());
        let waiting = Candidate { connection, hello, since_ns, assembler, offered: None, welcomed: None };
        self.membership.meeting.waiting.insert(peer, waiting);
        self.pair(incarnation);
    }

    /// Returns true if this node, rather than `node`, chooses which connection between them to use.
    fn chooses_for(&self, node: NodeId) -> bool {
        self.out.incarnation().node < node
    }

    /// Tries again to pair with all candidates, since one of them may have become ready.
    pub(in crate::engine) fn pair_all(&mut self) {
        let waiting: BTreeSet<NodeIncarnation> =
            self.membership.meeting.waiting.values().map(|waiting| waiting.hello.incarnation).collect();
        waiting.into_iter().for_each(|incarnation| self.pair(incarnation));
    }

    fn pair(&mut self, incarnation: NodeIncarnation) {
        // A dialling peer may have died since. Until its first message, the connection does not prove that another
        // incarnation with its number has ended.
        let is_asked =
            self.chooses_for(incarnation.node) || self.membership.meeting.is_welcomed_by(incarnation);
        if self.membership.is_leaving || self.membership.members.is_alive(incarnation) || !is_asked {
            return;
        }
        if !self.is_ready_for(incarnation) {
            return;
        }
        let last = self.membership.pairings.number(incarnation);
        if self.chooses_for(incarnation.node) {
            let offered = self.membership.meeting.has_offered(incarnation);
            let first = self.membership.meeting.of(incarnation).next().map(|(peer, _)| peer);
            if let Some(peer) = first.filter(|_| !offered) {
                self.offer(peer, last.saturating_add(1));
            }
            return;
        }
        let welcomed = self
            .membership
            .meeting
            .of(incarnation)
            .find_map(|(peer, waiting)| Some((peer, waiting.welcomed?)));
        if let Some((peer, pairing)) = welcomed {
            self.bring_up(peer, pairing.max(last.saturating_add(1)));
            let others: Vec<PeerId> = self.membership.meeting.of(incarnation).map(|(peer, _)| peer).collect();
            others.into_iter().for_each(|peer| self.drop_waiting(peer));
        }
    }

    fn offer(&mut self, peer: PeerId, pairing: u64) {
        let waiting = self.membership.meeting.waiting.get_mut(&peer).expect("looked up just before");
        waiting.offered = Some(pairing);
        waiting.since_ns = self.out.now_ns();
        let incarnation = waiting.hello.incarnation;
        let send_bytes_max = waiting.connection.send_bytes_max;
        self.send_early(peer, send_bytes_max, Notice::Welcome { pairing });
        self.home_side().forget_early(incarnation);
    }

    /// Sends a notice over a connection that is not up yet.
    fn send_early(&mut self, peer: PeerId, send_bytes_max: usize, notice: Notice) {
        for bytes in link::frames(&message::encode(&Message::Notice(notice)), send_bytes_max) {
            self.out.push(Effect::Send { peer, bytes, solicited: true });
        }
    }

    /// Handles the arrival of data over a connection. If this node has offered a pairing over the connection, the data
    /// shows that the peer has accepted the offer, and the pairing begins.
    pub fn handle_heard(&mut self, now_ns: u64, peer: PeerId) {
        let Some(pairing) = self.membership.meeting.waiting.get(&peer).and_then(|waiting| waiting.offered)
        else {
            return;
        };
        self.out.set_now(now_ns);
        // Since the offer, another incarnation with that number may have paired or become known.
        let incarnation = self.membership.meeting.waiting[&peer].hello.incarnation;
        match !self.membership.members.is_alive(incarnation) && self.is_ready_for(incarnation) {
            true => self.bring_up(peer, pairing),
            false => self.drop_waiting(peer),
        }
        self.run_loopback();
    }

    /// Handles a frame that arrived over a connection that is not up yet.
    pub(in crate::engine) fn handle_early_frame(&mut self, peer: PeerId, frame: &[u8]) {
        let Some(waiting) = self.membership.meeting.waiting.get_mut(&peer) else { return };
        let Ok(complete) = waiting.assembler.handle_frame(frame) else { return self.drop_waiting(peer) };
        match complete.map(|bytes| message::decode(&bytes)) {
            None => {}
            Some(Ok(Message::Notice(Notice::Welcome { pairing }))) => {
                let incarnation = waiting.hello.incarnation;
                waiting.welcomed = Some(pairing);
                self.pair(incarnation);
            }
            Some(Ok(Message::Notice(Notice::Over))) => {
                let by = waiting.hello.incarnation.node;
                self.end_own_incarnation(by);
            }
            Some(_) => self.drop_waiting(peer),
        }
    }

    /// Ends this node's incarnation, because node `by` has recorded its end and refuses to pair. Node `by` frees the
    /// chunks that it held for this node, and this node may lose the memory of other nodes that it maps.
    pub(in crate::engine) fn end_own_incarnation(&mut self, by: NodeId) {
        if self.membership.is_leaving {
            return;
        }
        let over = Over { node: self.out.incarnation().node, by };
        self.out.report(News::Over(over));
        self.out.push(Effect::End(over));
    }

    /// Returns true if this node has connections whose handshake has neither completed nor failed.
    pub fn awaits_first_words(&self) -> bool {
        !self.membership.meeting.waiting.is_empty()
    }

    /// Returns true if this node knows an incarnation of the directory's node, possibly only from another node's
    /// report, and does not know that the incarnation has ended.
    pub fn knows_directory_node(&self) -> bool {
        let seat = self.directory.seat();
        !self.membership.pairings.incarnations_of(seat).is_empty()
    }

    /// Returns true if this node has no paired peer, and is not about to pair with any.
    pub fn is_alone(&self) -> bool {
        self.membership.members.peers().next().is_none() && self.membership.meeting.waiting.is_empty()
    }

    /// Returns true if this node has dialled a peer that is connected but not paired yet.
    pub fn is_meeting(&self) -> bool {
        let mut dialled =
            self.membership.meeting.waiting.values().filter(|waiting| waiting.connection.dialled);
        dialled.any(|waiting| !self.membership.members.is_alive(waiting.hello.incarnation))
    }

    fn bring_up(&mut self, peer: PeerId, pairing: u64) {
        let waiting =
            self.membership.meeting.waiting.remove(&peer).expect("the caller names a waiting connection");
        let Candidate { connection: Connection { dialled, send_bytes_max, .. }, hello, .. } = waiting;
        let incarnation = hello.incarnation;
        self.membership.members.insert(peer, &hello, send_bytes_max, self.out.now_ns());
        self.membership.pairings.record_up(incarnation, pairing, &hello.address);
        self.out.push(Effect::PeerUp { peer, incarnation });
        let (directory, mut cx) = self.directory_side();
        directory.mark_number_taken(&mut cx, incarnation.node);
        if !self.chooses_for(incarnation.node) {
            self.cx().notify(incarnation.node, Notice::Paired { pairing });
        }
        self.report_peer(peer, |process| {
            if pairing > 1 { News::PairedAgain { process, pairing } } else { News::Joined(process) }
        });
        self.begin_pairing(incarnation);
        self.commands.forget_lost_replies_of(incarnation);
        self.complete_deferred();
        self.expect_names(incarnation, dialled || self.membership.meeting.is_joining);
        if incarnation.node == self.directory.seat() && !self.directory.is_outside() {
            self.home_side().report_names();
        }
        self.announce_names_store(incarnation);
        self.fail_dials_to_rivals_of(incarnation);
        self.resume_on_demand(incarnation);
        self.end_inquiry(incarnation.node);
        self.out.push(Effect::MembersChanged);
    }

    /// Handles the end of a connection that may not have been up yet.
    pub(in crate::engine) fn forget_met(&mut self, peer: PeerId) {
        self.membership.meeting.refused.remove(&peer);
        if let Some(waiting) = self.membership.meeting.waiting.remove(&peer) {
            self.membership.meeting.ended.insert(peer, waiting.hello.incarnation);
            self.end_meeting(&waiting.hello);
        }
    }

    /// Handles the end of deliveries over a connection that was never up. `exited` is true if the peer's process has
    /// exited.
    pub(in crate::engine) fn handle_candidate_cut_off(&mut self, peer: PeerId, exited: bool) {
        let Some(incarnation) = self.membership.meeting.ended.remove(&peer) else { return };
        if exited {
            self.end_incarnation(incarnation, NodeLoss::now(LossCause::Exited, self.out.now_ns()));
        }
        self.home_side().handle_reach_changed(incarnation);
    }

    /// Cleans up after a connection that was never up, unless another connection to the same peer exists.
    fn end_meeting(&mut self, hello: &Hello) {
        let incarnation = hello.incarnation;
        if !self.membership.members.is_alive(incarnation) && !self.membership.meeting.has(incarnation) {
            self.home_side().forget_early(incarnation);
            self.report_disconnected(incarnation);
            self.owner_side().abandon_sweeps_by(incarnation);
            self.home_side().handle_reach_changed(incarnation);
            // This node alone may know its address; the known address of its number may be an earlier incarnation's.
            let is_worth_retrying = !incarnation.node.is_ephemeral() && !hello.address.is_empty();
            if is_worth_retrying && !self.chooses_for(incarnation.node) {
                self.retry_if_unknown(incarnation, &hello.address);
            }
        }
        self.out.push(Effect::MembersChanged);
    }

    /// Drops all connections to an ended incarnation that are not up.
    pub(in crate::engine) fn drop_waiting_of(&mut self, incarnation: NodeIncarnation) {
        let of: Vec<PeerId> = self.membership.meeting.of(incarnation).map(|(peer, _)| peer).collect();
        of.into_iter().for_each(|peer| self.drop_waiting(peer));
    }

    /// Drops candidates that were not paired in time; the peers may connect again.
    pub(in crate::engine) fn drop_late_candidates(&mut self) {
        let (now_ns, patience_ns) = (self.out.now_ns(), PATIENCE_LEASES * self.out.config().lease_ns);
        let is_late = |waiting: &Candidate| now_ns.saturating_sub(waiting.since_ns) > patience_ns;
        let late = self.membership.meeting.waiting.iter().filter(|(_, waiting)| is_late(waiting));
        let late: Vec<PeerId> = late.map(|(peer, _)| *peer).collect();
        late.into_iter().for_each(|peer| self.drop_waiting(peer));
        let lease_ns = self.out.config().lease_ns;
        let late = self
            .membership
            .meeting
            .refused
            .extract_if(.., |_, since_ns| now_ns.saturating_sub(*since_ns) > lease_ns);
        for (peer, _) in late {
            self.out.push(Effect::Disconnect(peer));
        }
    }

    fn drop_waiting(&mut self, peer: PeerId) {
        if let Some(waiting) = self.membership.meeting.waiting.remove(&peer) {
            self.out.push(Effect::Disconnect(peer));
            self.end_meeting(&waiting.hello);
        }
    }
}
