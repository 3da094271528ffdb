//! The peer table: the peers that are or were connected to this node, and the state of calls with each.
//!
//! ```text
//!   Effect::PeerUp ──> Up ── Effect::PeerDown ──> Down ── Effect::PeerCutOff ──> CutOff
//!                       └───────── Event::Disconnected: no more events of the peer ─┴──> removed
//! ```
//!
//! This node exchanges requests with a peer that is up. A peer that is down may still write to this node's memory, so
//! its ring at this node, and the slots for its replies, stay reserved until the peer is cut off. The engine decides
//! the transitions; the runner reports each transition to all parts, in one place ([`crate::driver::runner`]). No other
//! module infers a peer's state from posts that the fabric refuses.
//!
//! One lock covers the table, the services and the arena for peers' requests, because each request needs all three.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use halite_fabric::{Key, PeerId};
use halite_mem::Window;
use halite_tier::ids::{NodeId, NodeIncarnation};
use halite_tier::rpc::{AtomicAnswer, CutOffYet};

use super::server::Services;
use super::shared::Link;
use crate::runtime::locks::{self, RankedGuard, ranked};

/// Number of removed peers whose incarnations stay known. An access that was in progress may still report its failure
/// later.
const GONE_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct Peers {
    /// Number of this table, unique in the process.
    number: u64,
    own: Arc<Link>,
    table: RwLock<Table>,
    /// Version of the table; increases with each change.
    version: AtomicU64,
}

/// The link that a thread used last. After the link's node has ended, the link holds no memory.
struct LastLink {
    peers: u64,
    version: u64,
    link: Arc<Link>,
}

thread_local! {
    static LAST_LINK: RefCell<Option<LastLink>> = const { RefCell::new(None) };
}

ranked! {
    Table => Peers;
    VecDeque<AtomicAnswer> => Atomics;
}

#[derive(Debug)]
pub(crate) struct Table {
    peers: BTreeMap<PeerId, Peer>,
    /// Incarnations of peers whose connections were removed, the oldest first.
    gone: VecDeque<(PeerId, NodeIncarnation)>,
    /// The links to nodes that are up, and to this node itself.
    links: BTreeMap<NodeId, Arc<Link>>,
    /// The functions and ports of this node.
    pub(crate) services: Services,
    /// The memory of this node's regions, by key.
    pub(crate) arena: BTreeMap<Key, Window>,
}

/// A peer, until it is cut off and its connection has ended.
#[derive(Debug)]
pub(crate) struct Peer {
    incarnation: NodeIncarnation,
    state: PeerState,
    /// True if the fabric has reported the end of the connection.
    is_closed: bool,
    /// The link to the peer; `None` if there was no memory for it.
    pub(crate) link: Option<Arc<Link>>,
    /// Answers to the peer's atomics that the fabric has not taken yet, in order.
    pub(crate) atomics: Mutex<VecDeque<AtomicAnswer>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PeerState {
    Up,
    Down,
    CutOff,
}

/// Work that a peer's transition leaves to the caller.
#[derive(Debug)]
pub(crate) struct Transition {
    /// The peer's link, which the caller must close.
    pub(crate) link: Option<Arc<Link>>,
}

impl Peers {
    /// Creates the table of `node`, without peers.
    pub(crate) fn new(node: NodeId) -> Peers {
        let own = Arc::new(Link::own(node));
        let links = [(node, own.clone())].into();
        let (peers, services, arena) = (BTreeMap::new(), Services::default(), BTreeMap::new());
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // The counter orders nothing.
        let number = NEXT.fetch_add(1, Relaxed);
        Peers {
            number,
            own,
            table: RwLock::new(Table { peers, gone: VecDeque::new(), links, services, arena }),
            version: AtomicU64::new(1),
        }
    }

    pub(crate) fn own(&self) -> &Arc<Link> {
        &self.own
    }

    /// Locks the table for reading. A thread must not lock it twice: if a writer waits in between, both would wait
    /// forever.
    #[inline]
    pub(crate) fn read(&self) -> RankedGuard<RwLockReadGuard<'_, Table>> {
        locks::read(&self.table)
    }

    pub(crate) fn write(&self) -> RankedGuard<RwLockWriteGuard<'_, Table>> {
        let table = locks::write(&self.table);
        // Before the change, so that a thread that sees this number waits for the lock and sees the change. Pairs with
        // the Acquire in version().
        self.version.fetch_add(1, Release);
        table
    }

    /// Returns a number that changes with the table. While it stays the same, a copy of the table is current, unless a
    /// change is in progress.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        // Pairs with the Release in write().
        self.version.load(Acquire)
    }

    /// Returns the link to a node that is up, or to this node itself.
    #[inline]
    pub(crate) fn link_to(&self, node: NodeId) -> Option<Arc<Link>> {
        self.read().link_to(node).cloned()
    }

    /// Calls `enter` with the link to a node that is up, or to this node itself. `enter` must not call this method. A
    /// thread caches its last link until the table changes, so that it takes no shared lock.
    #[inline]
    pub(crate) fn with_link_to<T>(&self, node: NodeId, enter: impl FnOnce(&Arc<Link>) -> T) -> Option<T> {
        let mut enter = Some(enter);
        let entered = LAST_LINK.try_with(|last| {
            let last = &mut *last.borrow_mut();
            // Read before the table.
            let version = self.version();
            let is_it = |last: &LastLink| {
                last.peers == self.number && last.version == version && last.link.node == node
            };
            if !last.as_ref().is_some_and(is_it) {
                *last = Some(LastLink { peers: self.number, version, link: self.link_to(node)? });
            }
            let enter = enter.take().expect("the closure runs once");
            last.as_ref().map(|last| enter(&last.link))
        });
        // A thread that is ending has no thread-local storage.
        entered.unwrap_or_else(|_| self.link_to(node).map(|link| enter.take().map(|enter| enter(&link)))?)
    }

    /// Returns the link to a peer that is up.
    pub(crate) fn link_of(&self, peer: PeerId) -> Option<Arc<Link>> {
        self.read().up(peer)?.link.clone()
    }

    pub(crate) fn is_up(&self, peer: PeerId) -> bool {
        self.read().up(peer).is_some()
    }

    /// Returns the incarnation of the peer behind a current or recent connection.
    pub(crate) fn incarnation_of(&self, peer: PeerId) -> Option<NodeIncarnation> {
        let table = self.read();
        let gone =
            || table.gone.iter().rev().find(|(gone, _)| *gone == peer).map(|(_, incarnation)| *incarnation);
        table.peers.get(&peer).map(|peer| peer.incarnation).or_else(gone)
    }

    // Transitions, made only by the runner.

    /// Adds a peer that is up, with its link; see [`Effect::PeerUp`](halite_tier::effect::Effect::PeerUp).
    pub(crate) fn set_up(&self, peer: PeerId, incarnation: NodeIncarnation, link: Option<Arc<Link>>) {
        let mut table = self.write();
        if let Some(link) = &link {
            table.links.insert(incarnation.node, link.clone());
        }
        let (state, is_closed, atomics) = (PeerState::Up, false, Mutex::default());
        let before = table.peers.insert(peer, Peer { incarnation, state, is_closed, link, atomics });
        assert!(before.is_none(), "the engine reports once that {peer:?} is up");
    }

    /// Marks a peer as down. Returns `None` unless the peer was up.
    pub(crate) fn set_down(&self, peer: PeerId) -> Option<Transition> {
        let mut table = self.write();
        let Table { peers, links, .. } = &mut *table;
        let row = peers.get_mut(&peer).filter(|row| row.state == PeerState::Up)?;
        row.state = PeerState::Down;
        row.atomics = Mutex::default();
        let is_its = |link: &Arc<Link>| row.link.as_ref().is_some_and(|its| Arc::ptr_eq(its, link));
        if links.get(&row.incarnation.node).is_some_and(is_its) {
            links.remove(&row.incarnation.node);
        }
        Some(Transition { link: row.link.clone() })
    }

    /// Marks a peer as cut off. Returns `None` unless the peer was down.
    pub(crate) fn set_cut_off(&self, peer: PeerId) -> Option<Transition> {
        let mut table = self.write();
        let row = table.peers.get_mut(&peer).filter(|row| row.state == PeerState::Down)?;
        row.state = PeerState::CutOff;
        let transition = Transition { link: row.link.take() };
        table.forget_if_over(peer);
        Some(transition)
    }

    /// Records the end of a connection. Returns true if its peer is in the table.
    pub(crate) fn set_closed(&self, peer: PeerId) -> bool {
        let mut table = self.write();
        let Some(row) = table.peers.get_mut(&peer) else { return false };
        row.is_closed = true;
        table.forget_if_over(peer);
        true
    }
}

impl Table {
    /// Returns a peer that is up.
    #[inline]
    pub(crate) fn up(&self, peer: PeerId) -> Option<&Peer> {
        self.peers.get(&peer).filter(|row| row.state == PeerState::Up)
    }

    /// Returns the link to a node that is up, or to this node itself.
    #[inline]
    pub(crate) fn link_to(&self, node: NodeId) -> Option<&Arc<Link>> {
        self.links.get(&node)
    }

    /// Returns the links to all peers that are up.
    pub(crate) fn links_up(&self) -> impl Iterator<Item = (PeerId, &Arc<Link>)> {
        let up = self.peers.iter().filter(|(_, row)| row.state == PeerState::Up);
        up.filter_map(|(peer, row)| Some((*peer, row.link.as_ref()?)))
    }

    /// Returns `None` if a peer is up. Otherwise returns `CutOffYet(true)` if it is cut off, and `CutOffYet(false)` if
    /// not.
    pub(crate) fn is_down(&self, peer: PeerId) -> Option<CutOffYet> {
        match self.peers.get(&peer).map(|row| row.state) {
            Some(PeerState::Up) => None,
            Some(PeerState::Down) => Some(CutOffYet(false)),
            Some(PeerState::CutOff) | None => Some(CutOffYet(true)),
        }
    }

    /// Removes a peer that is cut off and disconnected. Keeps its incarnation, which errors name.
    fn forget_if_over(&mut self, peer: PeerId) {
        let is_over = |row: &&Peer| row.state == PeerState::CutOff && row.is_closed;
        let Some(row) = self.peers.get(&peer).filter(is_over) else { return };
        if self.gone.len() == GONE_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back((peer, row.incarnation));
        self.peers.remove(&peer);
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // Links of peers that are still up refer to themselves.
        let of_peers = self.peers.values().filter_map(|row| row.link.as_ref());
        of_peers.chain(self.links.values()).for_each(|link| link.release_memory());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use halite_tier::ids::Incarnation;
    use halite_tier::rpc::Target;

    use super::*;

    const PEER: PeerId = PeerId(7);

    fn incarnation(incarnation: u64) -> NodeIncarnation {
        NodeIncarnation { node: NodeId(1), id: Incarnation(incarnation) }
    }

    fn link(peers: &Peers, peer: PeerId) -> Arc<Link> {
        Arc::new(Link::new(NodeId(1), Target::Peer(peer), 0, None, peers.own().drops().clone()))
    }

    fn with_peer() -> Peers {
        let peers = Peers::new(NodeId(0));
        peers.set_up(PEER, incarnation(1), Some(link(&peers, PEER)));
        peers
    }

    #[test]
    fn transitions_happen_once_and_in_order() {
        let peers = with_peer();
        assert!(peers.set_cut_off(PEER).is_none(), "the peer is up");
        assert!(peers.is_up(PEER) && peers.link_to(NodeId(1)).is_some());
        assert!(peers.set_down(PEER).is_some_and(|transition| transition.link.is_some()));
        assert!(peers.set_down(PEER).is_none());
        assert!(!peers.is_up(PEER) && peers.link_to(NodeId(1)).is_none() && peers.link_of(PEER).is_none());
        assert!(peers.set_cut_off(PEER).is_some_and(|transition| transition.link.is_some()));
        assert!(peers.set_cut_off(PEER).is_none());
        for stranger in [peers.set_down(PeerId(8)), peers.set_cut_off(PeerId(8))] {
            assert!(stranger.is_none());
        }
    }

    #[test]
    fn incarnations_of_recent_peers_are_kept() {
        for is_closed_first in [true, false] {
            let peers = with_peer();
            peers.set_down(PEER);
            let end = |closes: bool| match closes {
                true => assert!(peers.set_closed(PEER)),
                false => assert!(peers.set_cut_off(PEER).is_some()),
            };
            end(is_closed_first);
            assert_eq!(peers.incarnation_of(PEER), Some(incarnation(1)));
            end(!is_closed_first);
            assert_eq!(
                peers.incarnation_of(PEER),
                Some(incarnation(1)),
                "an access in progress may still ask"
            );
            assert!(!peers.set_closed(PEER));
            for other in 0..GONE_MAX as u32 {
                let other = PeerId(1000 + other);
                peers.set_up(other, incarnation(2), None);
                peers.set_down(other);
                peers.set_cut_off(other);
                assert!(peers.set_closed(other));
            }
            assert_eq!(peers.incarnation_of(PEER), None);
        }
    }

    #[test]
    fn an_old_incarnation_does_not_change_the_new_link() {
        let (peers, again) = (with_peer(), PeerId(8));
        peers.set_up(again, incarnation(2), Some(link(&peers, again)));
        peers.set_down(PEER);
        let found = peers.link_to(NodeId(1)).expect("the link is up");
        assert_eq!(found.target, Target::Peer(again));
        assert_eq!(peers.incarnation_of(PEER), Some(incarnation(1)), "the old incarnation may still write");
    }
}
