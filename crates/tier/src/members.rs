//! The members of the cluster as this node sees them: incarnations, connections, and cut-offs.

use std::collections::{BTreeMap, BTreeSet};

use halite_fabric::PeerId;

use crate::hello::Hello;
use crate::ids::{NodeId, NodeIncarnation};
use crate::link::Assembler;
use crate::message::{Loss, LossCause, Member, NodeState};

/// A connected peer.
#[derive(Debug)]
pub struct Peer {
    /// Incarnation of the peer.
    pub incarnation: NodeIncarnation,
    /// Process id of the peer.
    pub pid: u32,
    /// Maximum length of one send to the peer, in bytes.
    pub send_bytes_max: usize,
    /// Reassembles the peer's messages.
    pub assembler: Assembler,
    /// Time in ns at which this node last heard from the peer.
    pub heard_ns: u64,
    /// Time, in ns of the peer's clock, at which the peer sent its last heartbeat.
    pub beat_ns: u64,
    /// Bytes of the peer's memory that were not free at its last heartbeat; `None` before the first one.
    pub bytes_taken: Option<u64>,
    /// Time at which this node sent the last message that the peer has certainly received, in ns. The peer considers
    /// this node alive for at least a lease from that time.
    pub acknowledged_ns: u64,
    /// True if this node holds the directory, and the peer has reported to it all names of its regions.
    pub has_reported_names: bool,
    /// True if the peer has reported all chunks that it holds for regions homed here.
    has_reported_held: bool,
    /// True if another node is killing the peer's process because of its silence.
    is_killed_elsewhere: bool,
}

/// Cause and time of a node's loss, on this node's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeLoss {
    /// Cause of the loss.
    pub cause: LossCause,
    /// Time of the loss in ns; negative if before this node's clock started.
    pub at_ns: i64,
}

impl NodeLoss {
    /// Returns a loss at time `now_ns`.
    pub fn now(cause: LossCause, now_ns: u64) -> NodeLoss {
        NodeLoss { cause, at_ns: signed(now_ns) }
    }

    /// Converts a loss that another node reported, with its age, to this node's clock, which now shows `now_ns`.
    pub fn from_age(loss: Loss, now_ns: u64) -> NodeLoss {
        NodeLoss { cause: loss.cause, at_ns: signed(now_ns) - signed(loss.age_ns) }
    }

    /// Changes the cause of the loss from an exit to a kill. Returns true if the cause was an exit.
    pub fn mark_killed(&mut self) -> bool {
        let is_news = self.cause == LossCause::Exited;
        if is_news {
            self.cause = LossCause::Killed;
        }
        is_news
    }

    /// Returns the loss in the form sent to other nodes, with its age at `now_ns`.
    pub fn with_age(self, now_ns: u64) -> Loss {
        Loss { cause: self.cause, age_ns: u64::try_from(signed(now_ns) - self.at_ns).unwrap_or(0) }
    }
}

/// Converts a time, limited to half of the range (292 years), so that the difference of two values from a hostile peer
/// cannot overflow.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

/// A lost node that is not cut off yet.
#[derive(Debug)]
struct Zombie {
    incarnation: NodeIncarnation,
    /// Process id, for display.
    pid: u32,
    /// Time of the loss, in ns.
    since_ns: u64,
    /// Time at which the node was last heard, in ns.
    heard_ns: u64,
    /// True if the process is killed because of its silence, by this node or another.
    silent: bool,
    /// True if the process is being killed.
    killed: bool,
}

/// A zombie (a lost node that is not cut off yet) whose process this node is killing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Killed {
    /// Incarnation of the zombie.
    pub incarnation: NodeIncarnation,
    /// Process id of the zombie.
    pub pid: u32,
    /// True if this node kills the process because the zombie was silent.
    pub silent: bool,
}

/// A lost node that can no longer access this node's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutOffPeer {
    /// Incarnation of the peer.
    pub incarnation: NodeIncarnation,
    /// Process id of the peer.
    pub pid: u32,
    /// True if a node killed the process because the peer was silent.
    pub killed: bool,
    /// Time in ns at which this node last heard from the peer.
    pub heard_ns: u64,
}

/// A known node.
#[derive(Clone, Debug)]
struct Known {
    member: Member,
    /// Cause and time of the node's loss; `None` while it is alive.
    loss: Option<NodeLoss>,
}

/// All nodes that this node knows, with their connections and states.
#[derive(Debug, Default)]
pub struct Members {
    known: BTreeMap<NodeId, Known>,
    /// The highest ephemeral number seen. Numbers only rise, so all lower ones were issued before.
    ephemeral_max: Option<NodeId>,
    peers: BTreeMap<PeerId, Peer>,
    by_node: BTreeMap<NodeId, PeerId>,
    /// Lost nodes that may still access memory here.
    zombies: BTreeMap<PeerId, Zombie>,
    /// Lost peers that the fabric has not reported as cut off yet.
    departed: BTreeMap<PeerId, Departed>,
}

/// The driver's view of a lost peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Departed {
    /// The driver was not informed and still considers the peer up.
    Unreported,
    Down,
}

impl Members {
    /// Adds a connected peer.
    pub fn insert(&mut self, peer: PeerId, hello: &Hello, send_bytes_max: usize, now_ns: u64) {
        let incarnation = hello.incarnation;
        self.by_node.insert(incarnation.node, peer);
        let assembler = Assembler::default();
        let known = Peer {
            incarnation,
            pid: hello.pid,
            send_bytes_max,
            assembler,
            heard_ns: now_ns,
            beat_ns: 0,
            bytes_taken: None,
            acknowledged_ns: 0,
            has_reported_names: false,
            has_reported_held: false,
            is_killed_elsewhere: false,
        };
        self.peers.insert(peer, known);
        self.insert_self(hello);
    }

    /// Records this node itself.
    pub fn insert_self(&mut self, hello: &Hello) {
        let member = Member {
            incarnation: hello.incarnation,
            pid: hello.pid,
            bytes_total: hello.bytes_total,
            state: NodeState::Alive,
            loss: None,
        };
        self.record(Known { member, loss: None });
    }

    fn record(&mut self, known: Known) {
        let node = known.member.incarnation.node;
        if node.is_ephemeral() {
            self.ephemeral_max = self.ephemeral_max.max(Some(node));
        }
        self.known.insert(node, known);
    }

    /// Records the nodes on the directory's list of members that are not connected to this node (`me`). Forgets nodes
    /// that are neither connected nor on the list.
    pub fn learn(&mut self, members: Vec<Member>, me: NodeId, now_ns: u64) {
        let listed: BTreeSet<NodeId> = members.iter().map(|member| member.incarnation.node).collect();
        let by_node = &self.by_node;
        let is_here = |node: &NodeId| *node == me || by_node.contains_key(node);
        self.known.retain(|node, _| is_here(node) || listed.contains(node));
        let elsewhere: Vec<Member> =
            members.into_iter().filter(|member| !is_here(&member.incarnation.node)).collect();
        for member in elsewhere {
            // A node that is lost here may be alive for others, but is of no use here.
            let is_news = |known: &Known| {
                known.member.incarnation != member.incarnation || member.state != NodeState::Alive
            };
            if self.known.get(&member.incarnation.node).is_none_or(is_news) {
                let loss = member.loss.map(|loss| NodeLoss::from_age(loss, now_ns));
                self.record(Known { member, loss });
            }
        }
    }

    /// Records a node that another node knows but cannot reach. Has no effect if this node already knows a node with
    /// that number.
    pub fn record_missing(&mut self, member: Member, now_ns: u64) {
        if !self.known.contains_key(&member.incarnation.node) {
            let loss = member.loss.unwrap_or(Loss { cause: LossCause::Unreachable, age_ns: 0 });
            let loss = Some(NodeLoss::from_age(loss, now_ns));
            self.record(Known { member: Member { state: NodeState::Unreachable, ..member }, loss });
        }
    }

    /// Records a node that the directory reaches and to which this node is about to connect.
    pub fn record_awaited(&mut self, member: Member) {
        let member = Member { state: NodeState::Alive, loss: None, ..member };
        self.record(Known { member, loss: None });
    }

    /// Records that this node could not connect to another node, although the directory reaches that node.
    pub fn record_unmet(&mut self, incarnation: NodeIncarnation) {
        if let Some(known) = self.known_mut(incarnation).filter(|it| it.member.state == NodeState::Alive) {
            known.member.state = NodeState::Silent;
        }
    }

    /// Returns true if this node has recorded a node with number `node`.
    pub fn has(&self, node: NodeId) -> bool {
        self.known.contains_key(&node)
    }

    /// Records a node that the directory reaches and to which this node connects on first use.
    pub fn record_unconnected(&mut self, member: Member) {
        self.record(Known {
            member: Member { state: NodeState::Unconnected, loss: None, ..member },
            loss: None,
        });
    }

    /// Removes a lost peer, which becomes a zombie: a lost node that is not cut off yet. Returns the peer's
    /// incarnation, or `None` if the peer was removed before.
    pub fn remove(
        &mut self,
        peer: PeerId,
        state: NodeState,
        loss: NodeLoss,
        now_ns: u64,
    ) -> Option<NodeIncarnation> {
        let gone = self.peers.remove(&peer)?;
        if self.by_node.get(&gone.incarnation.node) == Some(&peer) {
            self.by_node.remove(&gone.incarnation.node);
        }
        if let Some(known) = self.known_mut(gone.incarnation) {
            known.member.state = state;
            known.loss = Some(loss);
        }
        let Peer { incarnation, pid, is_killed_elsewhere, heard_ns, .. } = gone;
        let zombie = Zombie {
            incarnation,
            pid,
            since_ns: now_ns,
            heard_ns,
            silent: is_killed_elsewhere,
            killed: is_killed_elsewhere,
        };
        self.zombies.insert(peer, zombie);
        self.departed.insert(peer, Departed::Unreported);
        Some(gone.incarnation)
    }

    /// Records that an incarnation has ended.
    pub fn end(&mut self, incarnation: NodeIncarnation, state: NodeState, loss: NodeLoss) {
        let Some(known) = self.known_mut(incarnation) else { return };
        known.member.state = state;
        known.loss = Some(loss);
        // Forgets nodes without memory, which come and go with every command, and ephemeral nodes, whose numbers are
        // never reissued.
        if known.member.bytes_total == 0 || incarnation.node.is_ephemeral() {
            self.known.remove(&incarnation.node);
        }
    }

    /// Records that a peer has reported all chunks that it holds for this node.
    pub fn record_held_reported(&mut self, incarnation: NodeIncarnation) {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.incarnation == incarnation) {
            peer.has_reported_held = true;
        }
    }

    /// Returns true if a peer is connected and has reported all chunks that it holds for this node.
    pub fn has_reported_held(&self, incarnation: NodeIncarnation) -> bool {
        self.peer_of(incarnation.node)
            .is_some_and(|(_, peer)| peer.incarnation == incarnation && peer.has_reported_held)
    }

    fn known_mut(&mut self, incarnation: NodeIncarnation) -> Option<&mut Known> {
        self.known.get_mut(&incarnation.node).filter(|known| known.member.incarnation == incarnation)
    }

    /// Returns the last known state of a node, or `None` if the node is unknown.
    pub fn state_of(&self, node: NodeId) -> Option<NodeState> {
        self.known.get(&node).map(|known| known.member.state)
    }

    /// Returns the cause and time of an incarnation's loss, or `None` if the incarnation is not lost or not known.
    pub fn loss_of(&self, incarnation: NodeIncarnation) -> Option<NodeLoss> {
        self.known.get(&incarnation.node).filter(|it| it.member.incarnation == incarnation)?.loss
    }

    /// Replaces the cause and time of an incarnation's loss after better evidence.
    pub fn correct_loss(&mut self, incarnation: NodeIncarnation, loss: NodeLoss) {
        if let Some(known) = self.known_mut(incarnation) {
            known.loss = Some(loss);
        }
    }

    /// Records that this node declared the lost peer `peer` dead because the peer was silent.
    pub fn record_silent(&mut self, peer: PeerId) {
        if let Some(zombie) = self.zombies.get_mut(&peer) {
            zombie.silent = true;
        }
    }

    /// Records that this node is killing the process of the zombie `peer`, and returns a description of the zombie, or
    /// `None` if `peer` is no zombie.
    pub fn record_killed(&mut self, peer: PeerId) -> Option<Killed> {
        let zombie = self.zombies.get_mut(&peer)?;
        zombie.killed = true;
        Some(Killed { incarnation: zombie.incarnation, pid: zombie.pid, silent: zombie.silent })
    }

    /// Records that another node is killing a silent node's process. Returns true if this node did not know of the
    /// kill.
    pub fn record_killed_elsewhere(&mut self, incarnation: NodeIncarnation) -> bool {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.incarnation == incarnation) {
            return !std::mem::replace(&mut peer.is_killed_elsewhere, true);
        }
        if let Some(zombie) = self.zombies.values_mut().find(|zombie| zombie.incarnation == incarnation) {
            let is_news = !(zombie.silent && zombie.killed);
            (zombie.silent, zombie.killed) = (true, true);
            return is_news;
        }
        let loss = self.known_mut(incarnation).and_then(|known| known.loss.as_mut());
        loss.is_some_and(NodeLoss::mark_killed)
    }

    /// Returns true if a node with number `node` is or was in the cluster, as far as this node has recorded.
    pub fn knows(&self, node: NodeId) -> bool {
        self.known.contains_key(&node) || node.is_ephemeral() && Some(node) <= self.ephemeral_max
    }

    /// Forgets a node that is not alive. Returns true if this node knew the node.
    pub fn forget(&mut self, node: NodeId) -> bool {
        self.known.remove(&node).is_some()
    }

    /// Records that the engine has informed the driver of a lost peer. Returns true in the first call for the peer, and
    /// false in later calls.
    pub fn record_down(&mut self, peer: PeerId) -> bool {
        let departed = self.departed.get_mut(&peer);
        departed.is_some_and(|departed| std::mem::replace(departed, Departed::Down) == Departed::Unreported)
    }

    /// Records that the fabric has cut off a lost peer. Returns true in the first call for the peer, and false in later
    /// calls.
    pub fn record_cut_off(&mut self, peer: PeerId) -> bool {
        self.departed.remove(&peer).is_some()
    }

    /// Records that the lost node `peer` is cut off: it can no longer access this node's memory, so it is no zombie any
    /// more. Returns its description; `None` if it was no zombie.
    pub fn mark_cut_off(&mut self, peer: PeerId) -> Option<CutOffPeer> {
        let Zombie { incarnation, pid, silent, killed, heard_ns, .. } = self.zombies.remove(&peer)?;
        Some(CutOffPeer { incarnation, pid, killed: silent && killed, heard_ns })
    }

    /// Returns the zombies: lost nodes that may still access this node's memory.
    pub fn zombies(&self) -> impl Iterator<Item = NodeIncarnation> {
        self.zombies.values().map(|zombie| zombie.incarnation)
    }

    /// Returns true if `incarnation` is lost but may still access this node's memory.
    pub fn is_zombie(&self, incarnation: NodeIncarnation) -> bool {
        self.zombies().any(|zombie| zombie == incarnation)
    }

    /// Returns the zombies (lost nodes that are not cut off yet) that were lost at `then_ns` or earlier.
    pub fn zombies_since(&self, then_ns: u64) -> impl Iterator<Item = NodeIncarnation> {
        self.zombies
            .values()
            .filter(move |zombie| zombie.since_ns <= then_ns)
            .map(|zombie| zombie.incarnation)
    }

    /// Returns the elements of `incarnations` that may still access this node's memory, because they are connected, or
    /// lost and not cut off yet.
    pub fn not_cut_off(
        &self,
        incarnations: impl IntoIterator<Item = NodeIncarnation>,
    ) -> BTreeSet<NodeIncarnation> {
        incarnations
            .into_iter()
            .filter(|incarnation| self.is_zombie(*incarnation) || self.is_alive(*incarnation))
            .collect()
    }

    /// Returns true if `incarnation` is connected.
    pub fn is_alive(&self, incarnation: NodeIncarnation) -> bool {
        self.peer_of(incarnation.node).is_some_and(|(_, peer)| peer.incarnation == incarnation)
    }

    /// Returns the connection to a node and the connected peer, or `None` if the node is not connected.
    pub fn peer_of(&self, node: NodeId) -> Option<(PeerId, &Peer)> {
        let peer = *self.by_node.get(&node)?;
        Some((peer, &self.peers[&peer]))
    }

    /// Returns the peer behind a connection, or `None` if there is no such connection.
    pub fn peer_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(&peer)
    }

    /// Records that a peer has reported all its names.
    pub fn record_names_reported(&mut self, incarnation: NodeIncarnation) {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.incarnation == incarnation) {
            peer.has_reported_names = true;
        }
    }

    /// Returns all connections with their peers, ordered by connection.
    pub fn peers(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.peers.iter().map(|(id, peer)| (*id, peer))
    }

    /// Updates the time in ns at which this node last heard from each peer for which `heard` returns a later time.
    pub fn update_heard(&mut self, heard: impl Fn(PeerId) -> Option<u64>) {
        for (id, peer) in &mut self.peers {
            peer.heard_ns = peer.heard_ns.max(heard(*id).unwrap_or(0));
        }
    }

    /// Records that a peer has received a message that this node sent at `said_ns`. Ignores times after `now_ns`.
    pub fn record_acknowledged(&mut self, incarnation: NodeIncarnation, said_ns: u64, now_ns: u64) {
        if let Some(peer) =
            self.peers.values_mut().find(|peer| peer.incarnation == incarnation && said_ns <= now_ns)
        {
            peer.acknowledged_ns = peer.acknowledged_ns.max(said_ns);
        }
    }

    /// Records a heartbeat that a peer sent at `sent_ns` of the peer's clock, while `bytes_taken` of its memory were
    /// not free.
    pub fn record_beat(&mut self, incarnation: NodeIncarnation, sent_ns: u64, bytes_taken: u64) {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.incarnation == incarnation) {
            peer.beat_ns = peer.beat_ns.max(sent_ns);
            peer.bytes_taken = Some(bytes_taken);
        }
    }

    /// Sets the time at which this node last heard from each peer to `now_ns`. Call after this node was suspended.
    pub fn excuse_silence(&mut self, now_ns: u64) {
        for peer in self.peers.values_mut() {
            peer.heard_ns = now_ns;
        }
    }

    /// Returns all known nodes, including lost nodes, ordered by number. [`Members::described`] adds the causes of
    /// losses.
    pub fn all(&self) -> impl Iterator<Item = &Member> {
        self.known.values().map(|known| &known.member)
    }

    /// Returns all known nodes, ordered by number, in the form sent to other nodes: with the causes of losses, and
    /// their ages at `now_ns`.
    pub fn described(&self, now_ns: u64) -> impl Iterator<Item = Member> {
        self.known.values().map(move |known| Member {
            loss: known.loss.map(|loss| loss.with_age(now_ns)),
            ..known.member.clone()
        })
    }
}
