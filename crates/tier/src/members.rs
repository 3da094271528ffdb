//! Who is in the cluster, as this node sees it: incarnations, connections, and who is cut off.

use std::collections::{BTreeMap, BTreeSet};

use halite_fabric::PeerId;

use crate::hello::Hello;
use crate::ids::{NodeId, NodeIncarnation};
use crate::link::Assembler;
use crate::message::{Loss, LossCause, Member, NodeState};

/// A connected peer.
#[derive(Debug)]
pub struct Peer {
    /// Who it is.
    pub incarnation: NodeIncarnation,
    /// Its process.
    pub pid: u32,
    /// Longest send to it, in bytes.
    pub send_bytes_max: usize,
    /// Puts its messages together.
    pub assembler: Assembler,
    /// When it was last heard, in ns.
    pub heard_ns: u64,
    /// When its last heartbeat was sent, by its clock.
    pub beat_ns: u64,
    /// When that was said of ours which it has heard for sure, in ns: it takes us to live for a lease from then on, or longer.
    pub acknowledged_ns: u64,
    /// Whether it has told the directory, if that is this node, all its names.
    pub has_told_names: bool,
    /// Whether it has told all that it holds for regions of ours.
    has_told_held: bool,
    /// Whether another node ends its process for its silence.
    doomed: bool,
}

/// How and when a node was lost, on this node's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parting {
    /// How.
    pub cause: LossCause,
    /// When; before 0 if that was before this node's clock began.
    pub at_ns: i64,
}

impl Parting {
    /// As of now.
    pub fn now(cause: LossCause, now_ns: u64) -> Parting {
        Parting { cause, at_ns: signed(now_ns) }
    }

    /// As others told it.
    pub fn of(loss: Loss, now_ns: u64) -> Parting {
        Parting { cause: loss.cause, at_ns: signed(now_ns) - signed(loss.age_ns) }
    }

    /// Who exited was killed for its silence; whether that is news.
    pub fn note_killed(&mut self) -> bool {
        let is_news = self.cause == LossCause::Exited;
        if is_news {
            self.cause = LossCause::Killed;
        }
        is_news
    }

    /// As others are told.
    pub fn loss(self, now_ns: u64) -> Loss {
        Loss { cause: self.cause, age_ns: u64::try_from(signed(now_ns) - self.at_ns).unwrap_or(0) }
    }
}

/// Half of the range is 292 years: what a hostile peer says cannot overflow the difference of two.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

/// A dead node that is not cut off.
#[derive(Debug)]
struct Zombie {
    incarnation: NodeIncarnation,
    /// Its process, for people to see.
    pid: u32,
    /// Since when it is one, in ns.
    since_ns: u64,
    /// When it was last heard, in ns.
    heard_ns: u64,
    /// Whether somebody ends its process because it was silent: we, or another.
    silent: bool,
    /// Whether its process is being killed.
    killed: bool,
}

/// A zombie whose process is being killed by us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Killed {
    /// Who it is.
    pub incarnation: NodeIncarnation,
    /// Its process.
    pub pid: u32,
    /// Whether that is for its silence.
    pub silent: bool,
}

/// A zombie that is one no longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutOffPeer {
    /// Who it was.
    pub incarnation: NodeIncarnation,
    /// Its process.
    pub pid: u32,
    /// Whether it was killed for its silence.
    pub killed: bool,
    /// When it was last heard, in ns.
    pub heard_ns: u64,
}

/// A node that was seen.
#[derive(Clone, Debug)]
struct Known {
    member: Member,
    /// Unless it lives.
    parting: Option<Parting>,
}

/// All nodes that this one has seen.
#[derive(Debug, Default)]
pub struct Members {
    known: BTreeMap<NodeId, Known>,
    /// The highest number of those that come and go.  They rise, so that all below were given out before.
    ephemeral_max: Option<NodeId>,
    peers: BTreeMap<PeerId, Peer>,
    by_node: BTreeMap<NodeId, PeerId>,
    /// Dead, but perhaps still able to touch memory here.
    zombies: BTreeMap<PeerId, Zombie>,
    /// Gone, and the fabric has not said yet that they are cut off.
    departed: BTreeMap<PeerId, Departed>,
}

/// What the driver knows of a peer that is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Departed {
    /// It takes it to be up.
    Untold,
    Down,
}

impl Members {
    /// A peer is one of the cluster.
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
            has_told_names: false,
            has_told_held: false,
            doomed: false,
        };
        self.peers.insert(peer, known);
        self.insert_self(hello);
    }

    /// Notes this node itself.
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

    /// Notes what the directory remembers of nodes that are not connected here: of those that it has forgotten, nothing.
    pub fn learn(&mut self, members: Vec<Member>, me: NodeId, now_ns: u64) {
        let told: BTreeSet<NodeId> = members.iter().map(|member| member.incarnation.node).collect();
        let by_node = &self.by_node;
        let is_here = |node: &NodeId| *node == me || by_node.contains_key(node);
        self.known.retain(|node, _| is_here(node) || told.contains(node));
        let elsewhere: Vec<Member> =
            members.into_iter().filter(|member| !is_here(&member.incarnation.node)).collect();
        for member in elsewhere {
            // Who is dead here may not be so for others, yet is of no use here.
            let is_news = |known: &Known| {
                known.member.incarnation != member.incarnation || member.state != NodeState::Alive
            };
            if self.known.get(&member.incarnation.node).is_none_or(is_news) {
                let parting = member.loss.map(|loss| Parting::of(loss, now_ns));
                self.note(Known { member, parting });
            }
        }
    }

    /// Notes a node that another one knows and does not hear, unless one of its number is known.
    pub fn note_missing(&mut self, member: Member, now_ns: u64) {
        if !self.known.contains_key(&member.incarnation.node) {
            let loss = member.loss.unwrap_or(Loss { cause: LossCause::Unreachable, age_ns: 0 });
            let parting = Some(Parting::of(loss, now_ns));
            self.note(Known { member: Member { state: NodeState::Unreachable, ..member }, parting });
        }
    }

    /// Notes a node that the directory hears, and that is about to be met.
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

    /// Whether there is a row of that node.
    pub fn has(&self, node: NodeId) -> bool {
        self.known.contains_key(&node)
    }

    /// Notes a node that the directory hears, and that is connected when it is used.
    pub fn note_unconnected(&mut self, member: Member) {
        self.note(Known {
            member: Member { state: NodeState::Unconnected, loss: None, ..member },
            parting: None,
        });
    }

    /// A peer is gone: returns who it was, once.  It is a zombie until it is cut off.
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
        let Peer { incarnation, pid, doomed, heard_ns, .. } = gone;
        let zombie = Zombie { incarnation, pid, since_ns: now_ns, heard_ns, silent: doomed, killed: doomed };
        self.zombies.insert(peer, zombie);
        self.departed.insert(peer, Departed::Untold);
        Some(gone.incarnation)
    }

    /// An incarnation is over.
    pub fn end(&mut self, incarnation: NodeIncarnation, state: NodeState, parting: Parting) {
        let Some(known) = self.known_mut(incarnation) else { return };
        known.member.state = state;
        known.parting = Some(parting);
        // Nodes without memory come and go with every command; nobody misses them.  Nor does anybody wait for one whose
        // number is never given out again.
        if known.member.bytes_total == 0 || incarnation.node.is_ephemeral() {
            self.known.remove(&incarnation.node);
        }
    }

    /// A peer has told all that it holds for us.
    pub fn note_held_told(&mut self, incarnation: NodeIncarnation) {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.incarnation == incarnation) {
            peer.has_told_held = true;
        }
    }

    /// Whether a peer is there and has told all that it holds for us.
    pub fn has_told_held(&self, incarnation: NodeIncarnation) -> bool {
        self.peer_of(incarnation.node)
            .is_some_and(|(_, peer)| peer.incarnation == incarnation && peer.has_told_held)
    }

    fn known_mut(&mut self, incarnation: NodeIncarnation) -> Option<&mut Known> {
        self.known.get_mut(&incarnation.node).filter(|known| known.member.incarnation == incarnation)
    }

    /// What is known to have become of a node of that number.
    pub fn state_of(&self, node: NodeId) -> Option<NodeState> {
        self.known.get(&node).map(|known| known.member.state)
    }

    /// How and when an incarnation was lost, as far as that is known.
    pub fn parting_of(&self, incarnation: NodeIncarnation) -> Option<Parting> {
        self.known.get(&incarnation.node).filter(|it| it.member.incarnation == incarnation)?.parting
    }

    /// More is known by now of how a node ended.
    pub fn correct_loss(&mut self, incarnation: NodeIncarnation, parting: Parting) {
        if let Some(known) = self.known_mut(incarnation) {
            known.parting = Some(parting);
        }
    }

    /// A peer became a zombie because it was silent.
    pub fn note_silent(&mut self, peer: PeerId) {
        if let Some(zombie) = self.zombies.get_mut(&peer) {
            zombie.silent = true;
        }
    }

    /// The process of a zombie is being killed by us.  Returns which that is.
    pub fn note_killed(&mut self, peer: PeerId) -> Option<Killed> {
        let zombie = self.zombies.get_mut(&peer)?;
        zombie.killed = true;
        Some(Killed { incarnation: zombie.incarnation, pid: zombie.pid, silent: zombie.silent })
    }

    /// The process of a node is being killed for its silence, by another node.  Whether that is news.
    pub fn note_killed_elsewhere(&mut self, incarnation: NodeIncarnation) -> bool {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.incarnation == incarnation) {
            return !std::mem::replace(&mut peer.doomed, true);
        }
        if let Some(zombie) = self.zombies.values_mut().find(|zombie| zombie.incarnation == incarnation) {
            let is_news = !(zombie.silent && zombie.killed);
            (zombie.silent, zombie.killed) = (true, true);
            return is_news;
        }
        let parting = self.known_mut(incarnation).and_then(|known| known.parting.as_mut());
        parting.is_some_and(Parting::note_killed)
    }

    /// Whether a node of that number is or was in the cluster, as far as that is remembered.
    pub fn knows(&self, node: NodeId) -> bool {
        self.known.contains_key(&node) || node.is_ephemeral() && Some(node) <= self.ephemeral_max
    }

    /// Forgets a node that does not live; whether it was known.
    pub fn forget(&mut self, node: NodeId) -> bool {
        self.known.remove(&node).is_some()
    }

    /// A peer that is gone is down for the driver, too; whether that is news.
    pub fn note_down(&mut self, peer: PeerId) -> bool {
        let departed = self.departed.get_mut(&peer);
        departed.is_some_and(|departed| std::mem::replace(departed, Departed::Down) == Departed::Untold)
    }

    /// The fabric says that a peer which is down is cut off; whether that is news.
    pub fn note_cut_off(&mut self, peer: PeerId) -> bool {
        self.departed.remove(&peer).is_some()
    }

    /// A zombie can touch nothing here any more: returns who it was.
    pub fn mark_cut_off(&mut self, peer: PeerId) -> Option<CutOffPeer> {
        let Zombie { incarnation, pid, silent, killed, heard_ns, .. } = self.zombies.remove(&peer)?;
        Some(CutOffPeer { incarnation, pid, killed: silent && killed, heard_ns })
    }

    /// All who may still touch memory here although they are dead.
    pub fn zombies(&self) -> impl Iterator<Item = NodeIncarnation> {
        self.zombies.values().map(|zombie| zombie.incarnation)
    }

    /// Whether `incarnation` may still touch memory here although it is dead.
    pub fn is_zombie(&self, incarnation: NodeIncarnation) -> bool {
        self.zombies().any(|zombie| zombie == incarnation)
    }

    /// Those that have been dead since then or longer, and are not cut off.
    pub fn zombies_since(&self, then_ns: u64) -> impl Iterator<Item = NodeIncarnation> {
        self.zombies
            .values()
            .filter(move |zombie| zombie.since_ns <= then_ns)
            .map(|zombie| zombie.incarnation)
    }

    /// Those of `incarnations` that are not cut off: zombies, and the living.
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

    /// Who is behind a connection.
    pub fn peer_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(&peer)
    }

    /// A peer has told all its names.
    pub fn note_names_told(&mut self, incarnation: NodeIncarnation) {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.incarnation == incarnation) {
            peer.has_told_names = true;
        }
    }

    /// All connections, in order.
    pub fn peers(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.peers.iter().map(|(id, peer)| (*id, peer))
    }

    /// Takes in what else is known of when peers were heard last.
    pub fn note_heard(&mut self, heard: impl Fn(PeerId) -> Option<u64>) {
        for (id, peer) in &mut self.peers {
            peer.heard_ns = peer.heard_ns.max(heard(*id).unwrap_or(0));
        }
    }

    /// A peer has heard what was said to it then; nobody hears what has not been said yet.
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

    /// Forgets how long peers were silent: we were not listening.
    pub fn excuse_silence(&mut self, now_ns: u64) {
        for peer in self.peers.values_mut() {
            peer.heard_ns = now_ns;
        }
    }

    /// All nodes known, dead ones too, in order.  How they were lost tells [`Members::described`].
    pub fn all(&self) -> impl Iterator<Item = &Member> {
        self.known.values().map(|known| &known.member)
    }

    /// The same, for others.
    pub fn described(&self, now_ns: u64) -> impl Iterator<Item = Member> {
        self.known.values().map(move |known| Member {
            loss: known.parting.map(|parting| parting.loss(now_ns)),
            ..known.member.clone()
        })
    }
}
