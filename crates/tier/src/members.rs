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
    /// Its incarnation.
    pub incarnation: NodeIncarnation,
    /// Its process id.
    pub pid: u32,
    /// Maximum length of a send to it, in bytes.
    pub send_bytes_max: usize,
    /// Reassembles its messages.
    pub assembler: Assembler,
    /// When it was last heard, in ns.
    pub heard_ns: u64,
    /// When its last heartbeat was sent, by its clock.
    pub beat_ns: u64,
    /// When the last message that it has surely heard was sent, in ns: it considers this node alive for at least a
    /// lease from then.
    pub acknowledged_ns: u64,
    /// Whether it has reported all its names to this node as the directory.
    pub has_reported_names: bool,
    /// Whether it has reported all that it holds for regions homed here.
    has_reported_held: bool,
    /// Whether another node is killing its process for silence.
    is_killed_elsewhere: bool,
}

/// How and when a node was lost, on this node's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parting {
    /// How.
    pub cause: LossCause,
    /// When, in ns; negative if before this node's clock started.
    pub at_ns: i64,
}

impl Parting {
    /// A loss as of now.
    pub fn now(cause: LossCause, now_ns: u64) -> Parting {
        Parting { cause, at_ns: signed(now_ns) }
    }

    /// A loss that another node reported.
    pub fn of(loss: Loss, now_ns: u64) -> Parting {
        Parting { cause: loss.cause, at_ns: signed(now_ns) - signed(loss.age_ns) }
    }

    /// Corrects an exit to a kill; returns true if that is new.
    pub fn note_killed(&mut self) -> bool {
        let is_news = self.cause == LossCause::Exited;
        if is_news {
            self.cause = LossCause::Killed;
        }
        is_news
    }

    /// The loss, as other nodes are told.
    pub fn loss(self, now_ns: u64) -> Loss {
        Loss { cause: self.cause, age_ns: u64::try_from(signed(now_ns) - self.at_ns).unwrap_or(0) }
    }
}

/// Half of the range is 292 years: a hostile peer's values cannot overflow the difference of two.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

/// A dead node that is not cut off.
#[derive(Debug)]
struct Zombie {
    incarnation: NodeIncarnation,
    /// Its process id, for display.
    pid: u32,
    /// When it died, in ns.
    since_ns: u64,
    /// When it was last heard, in ns.
    heard_ns: u64,
    /// Whether its process is killed for silence, by this node or another.
    silent: bool,
    /// Whether its process is being killed.
    killed: bool,
}

/// A zombie whose process this node is killing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Killed {
    /// Its incarnation.
    pub incarnation: NodeIncarnation,
    /// Its process id.
    pub pid: u32,
    /// Whether it is killed for silence.
    pub silent: bool,
}

/// A former zombie, now cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutOffPeer {
    /// Its incarnation.
    pub incarnation: NodeIncarnation,
    /// Its process id.
    pub pid: u32,
    /// Whether it was killed for silence.
    pub killed: bool,
    /// When it was last heard, in ns.
    pub heard_ns: u64,
}

/// A node that was seen.
#[derive(Clone, Debug)]
struct Known {
    member: Member,
    /// `None` while it is alive.
    parting: Option<Parting>,
}

/// All nodes that this one has seen.
#[derive(Debug, Default)]
pub struct Members {
    known: BTreeMap<NodeId, Known>,
    /// The highest ephemeral number seen.  They only rise, so all lower ones were issued before.
    ephemeral_max: Option<NodeId>,
    peers: BTreeMap<PeerId, Peer>,
    by_node: BTreeMap<NodeId, PeerId>,
    /// Dead nodes that may still touch memory here.
    zombies: BTreeMap<PeerId, Zombie>,
    /// Lost peers that the fabric has not reported as cut off.
    departed: BTreeMap<PeerId, Departed>,
}

/// The driver's state of a lost peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Departed {
    /// The driver still considers it up.
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
        self.note(Known { member, parting: None });
    }

    fn note(&mut self, known: Known) {
        let node = known.member.incarnation.node;
        if node.is_ephemeral() {
            self.ephemeral_max = self.ephemeral_max.max(Some(node));
        }
        self.known.insert(node, known);
    }

    /// Records what the directory remembers of nodes not connected here, and forgets the rest.
    pub fn learn(&mut self, members: Vec<Member>, me: NodeId, now_ns: u64) {
        let told: BTreeSet<NodeId> = members.iter().map(|member| member.incarnation.node).collect();
        let by_node = &self.by_node;
        let is_here = |node: &NodeId| *node == me || by_node.contains_key(node);
        self.known.retain(|node, _| is_here(node) || told.contains(node));
        let elsewhere: Vec<Member> =
            members.into_iter().filter(|member| !is_here(&member.incarnation.node)).collect();
        for member in elsewhere {
            // A node that is dead here may be alive for others, but is of no use here.
            let is_news = |known: &Known| {
                known.member.incarnation != member.incarnation || member.state != NodeState::Alive
            };
            if self.known.get(&member.incarnation.node).is_none_or(is_news) {
                let parting = member.loss.map(|loss| Parting::of(loss, now_ns));
                self.note(Known { member, parting });
            }
        }
    }

    /// Records a node that another one knows but does not hear, unless its number is known.
    pub fn note_missing(&mut self, member: Member, now_ns: u64) {
        if !self.known.contains_key(&member.incarnation.node) {
            let loss = member.loss.unwrap_or(Loss { cause: LossCause::Unreachable, age_ns: 0 });
            let parting = Some(Parting::of(loss, now_ns));
            self.note(Known { member: Member { state: NodeState::Unreachable, ..member }, parting });
        }
    }

    /// Records a node that the directory hears, and that is about to be met.
    pub fn note_awaited(&mut self, member: Member) {
        let member = Member { state: NodeState::Alive, loss: None, ..member };
        self.note(Known { member, parting: None });
    }

    /// A node that the directory hears could not be met.
    pub fn note_unmet(&mut self, incarnation: NodeIncarnation) {
        if let Some(known) = self.known_mut(incarnation).filter(|it| it.member.state == NodeState::Alive) {
            known.member.state = NodeState::Silent;
        }
    }

    /// Whether a node of that number is recorded.
    pub fn has(&self, node: NodeId) -> bool {
        self.known.contains_key(&node)
    }

    /// Records a node that the directory hears, and that is connected on first use.
    pub fn note_unconnected(&mut self, member: Member) {
        self.note(Known {
            member: Member { state: NodeState::Unconnected, loss: None, ..member },
            parting: None,
        });
    }

    /// Removes a lost peer, which becomes a zombie; returns its incarnation, once.
    pub fn remove(
        &mut self,
        peer: PeerId,
        state: NodeState,
        parting: Parting,
        now_ns: u64,
    ) -> Option<NodeIncarnation> {
        let gone = self.peers.remove(&peer)?;
        if self.by_node.get(&gone.incarnation.node) == Some(&peer) {
            self.by_node.remove(&gone.incarnation.node);
        }
        if let Some(known) = self.known_mut(gone.incarnation) {
            known.member.state = state;
            known.parting = Some(parting);
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

    /// An incarnation has ended.
    pub fn end(&mut self, incarnation: NodeIncarnation, state: NodeState, parting: Parting) {
        let Some(known) = self.known_mut(incarnation) else { return };
        known.member.state = state;
        known.parting = Some(parting);
        // Forgets nodes without memory, which come and go with every command, and ephemeral ones, whose numbers are
        // never reissued.
        if known.member.bytes_total == 0 || incarnation.node.is_ephemeral() {
            self.known.remove(&incarnation.node);
        }
    }

    /// A peer has reported all that it holds for this node.
    pub fn note_held_reported(&mut self, incarnation: NodeIncarnation) {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.incarnation == incarnation) {
            peer.has_reported_held = true;
        }
    }

    /// Whether a peer is connected and has reported all that it holds for this node.
    pub fn has_reported_held(&self, incarnation: NodeIncarnation) -> bool {
        self.peer_of(incarnation.node)
            .is_some_and(|(_, peer)| peer.incarnation == incarnation && peer.has_reported_held)
    }

    fn known_mut(&mut self, incarnation: NodeIncarnation) -> Option<&mut Known> {
        self.known.get_mut(&incarnation.node).filter(|known| known.member.incarnation == incarnation)
    }

    /// The last known state of a node.
    pub fn state_of(&self, node: NodeId) -> Option<NodeState> {
        self.known.get(&node).map(|known| known.member.state)
    }

    /// How and when an incarnation was lost, if known.
    pub fn parting_of(&self, incarnation: NodeIncarnation) -> Option<Parting> {
        self.known.get(&incarnation.node).filter(|it| it.member.incarnation == incarnation)?.parting
    }

    /// Records how a node ended, now that it is known.
    pub fn correct_loss(&mut self, incarnation: NodeIncarnation, parting: Parting) {
        if let Some(known) = self.known_mut(incarnation) {
            known.parting = Some(parting);
        }
    }

    /// A peer became a zombie because of its silence.
    pub fn note_silent(&mut self, peer: PeerId) {
        if let Some(zombie) = self.zombies.get_mut(&peer) {
            zombie.silent = true;
        }
    }

    /// This node is killing the process of a zombie; returns it.
    pub fn note_killed(&mut self, peer: PeerId) -> Option<Killed> {
        let zombie = self.zombies.get_mut(&peer)?;
        zombie.killed = true;
        Some(Killed { incarnation: zombie.incarnation, pid: zombie.pid, silent: zombie.silent })
    }

    /// Another node is killing that process for silence.  Returns true if that is new.
    pub fn note_killed_elsewhere(&mut self, incarnation: NodeIncarnation) -> bool {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.incarnation == incarnation) {
            return !std::mem::replace(&mut peer.is_killed_elsewhere, true);
        }
        if let Some(zombie) = self.zombies.values_mut().find(|zombie| zombie.incarnation == incarnation) {
            let is_news = !(zombie.silent && zombie.killed);
            (zombie.silent, zombie.killed) = (true, true);
            return is_news;
        }
        let parting = self.known_mut(incarnation).and_then(|known| known.parting.as_mut());
        parting.is_some_and(Parting::note_killed)
    }

    /// Whether a node of that number is or was in the cluster, as far as recorded.
    pub fn knows(&self, node: NodeId) -> bool {
        self.known.contains_key(&node) || node.is_ephemeral() && Some(node) <= self.ephemeral_max
    }

    /// Forgets a node that is not alive; returns true if it was known.
    pub fn forget(&mut self, node: NodeId) -> bool {
        self.known.remove(&node).is_some()
    }

    /// The driver is told that a lost peer is down; returns true once.
    pub fn note_down(&mut self, peer: PeerId) -> bool {
        let departed = self.departed.get_mut(&peer);
        departed.is_some_and(|departed| std::mem::replace(departed, Departed::Down) == Departed::Unreported)
    }

    /// The fabric has cut off a peer that is down; returns true once.
    pub fn note_cut_off(&mut self, peer: PeerId) -> bool {
        self.departed.remove(&peer).is_some()
    }

    /// A zombie can touch nothing here any more; returns it.
    pub fn mark_cut_off(&mut self, peer: PeerId) -> Option<CutOffPeer> {
        let Zombie { incarnation, pid, silent, killed, heard_ns, .. } = self.zombies.remove(&peer)?;
        Some(CutOffPeer { incarnation, pid, killed: silent && killed, heard_ns })
    }

    /// Dead nodes that may still touch memory here.
    pub fn zombies(&self) -> impl Iterator<Item = NodeIncarnation> {
        self.zombies.values().map(|zombie| zombie.incarnation)
    }

    /// Whether `incarnation` is dead but may still touch memory here.
    pub fn is_zombie(&self, incarnation: NodeIncarnation) -> bool {
        self.zombies().any(|zombie| zombie == incarnation)
    }

    /// Zombies that died at `then_ns` or before.
    pub fn zombies_since(&self, then_ns: u64) -> impl Iterator<Item = NodeIncarnation> {
        self.zombies
            .values()
            .filter(move |zombie| zombie.since_ns <= then_ns)
            .map(|zombie| zombie.incarnation)
    }

    /// Those of `incarnations` that are not cut off: zombies and connected ones.
    pub fn not_cut_off(
        &self,
        incarnations: impl IntoIterator<Item = NodeIncarnation>,
    ) -> BTreeSet<NodeIncarnation> {
        incarnations
            .into_iter()
            .filter(|incarnation| self.is_zombie(*incarnation) || self.is_alive(*incarnation))
            .collect()
    }

    /// Whether `incarnation` is connected.
    pub fn is_alive(&self, incarnation: NodeIncarnation) -> bool {
        self.peer_of(incarnation.node).is_some_and(|(_, peer)| peer.incarnation == incarnation)
    }

    /// The connection to a node.
    pub fn peer_of(&self, node: NodeId) -> Option<(PeerId, &Peer)> {
        let peer = *self.by_node.get(&node)?;
        Some((peer, &self.peers[&peer]))
    }

    /// The peer behind a connection.
    pub fn peer_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(&peer)
    }

    /// A peer has reported all its names.
    pub fn note_names_reported(&mut self, incarnation: NodeIncarnation) {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.incarnation == incarnation) {
            peer.has_reported_names = true;
        }
    }

    /// All connections, in order.
    pub fn peers(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.peers.iter().map(|(id, peer)| (*id, peer))
    }

    /// Merges other knowledge of when peers were last heard.
    pub fn note_heard(&mut self, heard: impl Fn(PeerId) -> Option<u64>) {
        for (id, peer) in &mut self.peers {
            peer.heard_ns = peer.heard_ns.max(heard(*id).unwrap_or(0));
        }
    }

    /// A peer has heard what was sent at `said_ns`; times in the future are ignored.
    pub fn note_acknowledged(&mut self, incarnation: NodeIncarnation, said_ns: u64, now_ns: u64) {
        if let Some(peer) =
            self.peers.values_mut().find(|peer| peer.incarnation == incarnation && said_ns <= now_ns)
        {
            peer.acknowledged_ns = peer.acknowledged_ns.max(said_ns);
        }
    }

    /// A heartbeat of a peer has arrived.
    pub fn note_beat(&mut self, incarnation: NodeIncarnation, sent_ns: u64) {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.incarnation == incarnation) {
            peer.beat_ns = peer.beat_ns.max(sent_ns);
        }
    }

    /// Resets the silence of all peers, because this node was not listening.
    pub fn excuse_silence(&mut self, now_ns: u64) {
        for peer in self.peers.values_mut() {
            peer.heard_ns = now_ns;
        }
    }

    /// All known nodes, dead ones too, in order.  [`Members::described`] adds how they were lost.
    pub fn all(&self) -> impl Iterator<Item = &Member> {
        self.known.values().map(|known| &known.member)
    }

    /// As [`Members::all`], with losses, for other nodes.
    pub fn described(&self, now_ns: u64) -> impl Iterator<Item = Member> {
        self.known.values().map(move |known| Member {
            loss: known.parting.map(|parting| parting.loss(now_ns)),
            ..known.member.clone()
        })
    }
}
