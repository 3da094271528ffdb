//! Who shares a socket's receive buffer: the lanes of the peers that have a place there, and when their shares are looked at.
//!
//! [`Room`] says who gets what.  That is asked when somebody begins to send or comes or goes, and now and then while something comes; never
//! for each packet, and not while nothing comes, so that who is idle is left alone.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Weak};

use halite_fabric::PeerId;
use halite_rnic::room::{Room, Share};

use super::connection::Connection;
use super::{LANES, lock};

/// How soon shares are looked at again: because somebody begins to send, because somebody waits for what others are to give up, and in any case.
const BEGIN_NS: u64 = 200_000;
const WAIT_NS: u64 = 500_000;
const AGAIN_NS: u64 = 5_000_000;
/// Up to so many peers, shares are looked at as soon as somebody begins: it costs little, and the first to come are not kept waiting.
const FEW: usize = 4;

/// See the header of this file.
#[derive(Debug)]
pub(super) struct Sharing {
    room: Room,
    /// Who holds them holds the socket, too.
    members: Mutex<BTreeMap<PeerId, Weak<Connection>>>,
    /// When shares were looked at last.
    shared_ns: AtomicU64,
    /// Somebody lacks what others may have yet.
    is_waited_for: AtomicBool,
}

impl Sharing {
    pub(super) fn new(room: Room) -> Sharing {
        let (shared_ns, is_waited_for) = (AtomicU64::new(0), AtomicBool::new(false));
        Sharing { room, members: Mutex::default(), shared_ns, is_waited_for }
    }

    pub(super) fn join(&self, connection: &Arc<Connection>) {
        lock(&self.members).insert(connection.peer, Arc::downgrade(connection));
    }

    /// Says whether it was there.
    pub(super) fn leave(&self, peer: PeerId) -> bool {
        lock(&self.members).remove(&peer).is_some()
    }

    /// Somebody has begun to send.  Says when shares are to be looked at.
    pub(super) fn note_begun(&self) -> u64 {
        // Not while others share, who would forget it.
        let members = lock(&self.members);
        self.is_waited_for.store(true, Relaxed);
        match members.len() {
            0..=FEW => 0,
            _ => self.shared_ns.load(Relaxed) + BEGIN_NS,
        }
    }

    /// Whether somebody waits, and has for long enough.
    pub(super) fn is_waited_for(&self, now_ns: u64) -> bool {
        self.is_waited_for.load(Relaxed) && now_ns >= self.shared_ns.load(Relaxed) + BEGIN_NS
    }

    /// Whether it is time to look at shares, now that something has come.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.is_waited_for(now_ns) || now_ns >= self.shared_ns.load(Relaxed) + AGAIN_NS
    }

    /// Shares anew.  Returns when something is to be sent for that, or it is to be looked at again, if it is.
    pub(super) fn share(&self, now_ns: u64) -> Option<u64> {
        let members = lock(&self.members);
        let connections: Vec<Arc<Connection>> = members.values().filter_map(Weak::upgrade).collect();
        self.shared_ns.store(now_ns, Relaxed);
        let lanes =
            || connections.iter().flat_map(|connection| (0..LANES).map(|index| connection.lane(index)));
        let before: Vec<Share> = lanes().map(|lane| lane.qp().share()).collect();
        let mut shares = before.clone();
        let is_settled = self.room.share(now_ns, connections.len(), &mut shares);
        self.is_waited_for.store(!is_settled, Relaxed);
        let mut due = (!is_settled).then_some(now_ns + WAIT_NS);
        let changed = lanes().zip(shares).zip(before).filter(|((_, share), before)| share != before);
        for ((mut lane, share), _) in changed {
            due = due.into_iter().chain(lane.set_share(now_ns, share)).min();
        }
        due
    }
}
