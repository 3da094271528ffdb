//! Who is in the cluster, as this node sees it: lives, connections, and who is cut off.

use std::collections::{BTreeMap, BTreeSet};

use halite_fabric::PeerId;

use crate::ids::{NodeId, NodeLife};
use crate::link::Assembler;
use crate::message::{Hello, Member, NodeState};

/// A connected peer.
#[derive(Debug)]
pub struct Peer {
    /// Who it is.
    pub life: NodeLife,
    /// Puts its messages together.
    pub assembler: Assembler,
    /// When it was last heard, in ns.
    pub heard_ns: u64,
}

/// All nodes that this one has seen.
#[derive(Debug, Default)]
pub struct Members {
    known: BTreeMap<NodeId, Member>,
    peers: BTreeMap<PeerId, Peer>,
    by_node: BTreeMap<NodeId, PeerId>,
    /// Dead, but perhaps still able to touch memory here; since when, in ns.
    zombies: BTreeMap<PeerId, (NodeLife, u64)>,
}

impl Members {
    /// A peer said hello.  Returns the life that this one replaces, if that was still thought alive.
    pub fn insert(&mut self, peer: PeerId, hello: &Hello, now_ns: u64) -> Option<PeerId> {
        let life = hello.life;
        let before = self.by_node.insert(life.node, peer);
        self.peers.insert(peer, Peer { life, assembler: Assembler::default(), heard_ns: now_ns });
        let member = Member { life, pid: hello.pid, bytes_total: hello.bytes_total, state: NodeState::Alive };
        self.known.insert(life.node, member);
        before
    }

    /// Notes this node itself.
    pub fn insert_self(&mut self, hello: &Hello) {
        let member = Member {
            life: hello.life,
            pid: hello.pid,
            bytes_total: hello.bytes_total,
            state: NodeState::Alive,
        };
        self.known.insert(hello.life.node, member);
    }

    /// Notes what another node remembers of one that we have not met.
    pub fn remember(&mut self, member: Member) {
        self.known.entry(member.life.node).or_insert(member);
    }

    /// A peer is gone: returns who it was, once.  It is a zombie until it is cut off.
    pub fn remove(&mut self, peer: PeerId, state: NodeState, now_ns: u64) -> Option<NodeLife> {
        let gone = self.peers.remove(&peer)?;
        if self.by_node.get(&gone.life.node) == Some(&peer) {
            self.by_node.remove(&gone.life.node);
        }
        if let Some(member) = self.known.get_mut(&gone.life.node).filter(|member| member.life == gone.life) {
            member.state = state;
            // Nodes without memory come and go with every command; nobody misses them.
            if member.bytes_total == 0 {
                self.known.remove(&gone.life.node);
            }
        }
        self.zombies.insert(peer, (gone.life, now_ns));
        Some(gone.life)
    }

    /// A zombie can touch nothing here any more: returns who it was.
    pub fn bury(&mut self, peer: PeerId) -> Option<NodeLife> {
        self.zombies.remove(&peer).map(|(life, _)| life)
    }

    /// All who may still touch memory here although they are dead.
    pub fn zombies(&self) -> impl Iterator<Item = NodeLife> {
        self.zombies.values().map(|(life, _)| *life)
    }

    /// Whether `life` may still touch memory here although it is dead.
    pub fn is_zombie(&self, life: NodeLife) -> bool {
        self.zombies().any(|zombie| zombie == life)
    }

    /// Those that have been dead since then or longer, and are not cut off.
    pub fn zombies_since(&self, then_ns: u64) -> impl Iterator<Item = NodeLife> {
        self.zombies.values().filter(move |(_, since_ns)| *since_ns <= then_ns).map(|(life, _)| *life)
    }

    /// Those of `lives` that are not cut off: zombies, and the living.
    pub fn not_cut_off(&self, lives: impl IntoIterator<Item = NodeLife>) -> BTreeSet<NodeLife> {
        lives.into_iter().filter(|life| self.is_zombie(*life) || self.is_alive(*life)).collect()
    }

    /// Whether `life` is connected.
    pub fn is_alive(&self, life: NodeLife) -> bool {
        self.peer_of(life.node).is_some_and(|(_, peer)| peer.life == life)
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

    /// All connections, in order.
    pub fn peers(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.peers.iter().map(|(id, peer)| (*id, peer))
    }

    /// Forgets how long peers were silent: we were not listening.
    pub fn excuse_silence(&mut self, now_ns: u64) {
        for peer in self.peers.values_mut() {
            peer.heard_ns = now_ns;
        }
    }

    /// All nodes known, dead ones too, in order.
    pub fn all(&self) -> impl Iterator<Item = &Member> {
        self.known.values()
    }
}
