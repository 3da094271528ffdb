//! Divides a socket's receive buffer among the lanes of its peers.
//!
//! [`Room`] computes the shares. This module recomputes the shares when a lane begins to send, when a peer joins or
//! leaves, and at intervals while packets arrive. It does not recompute the shares for each packet or while the socket
//! is idle.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Weak};

use halite_fabric::PeerId;
use halite_rnic::room::{Room, Share};

use super::connection::Connection;
use super::{LANES, lock};

/// Intervals between rebalances, in ns: after a lane began to send, while a lane waits for credit that other lanes
/// hold, and otherwise.
const START_INTERVAL_NS: u64 = 200_000;
const WAITER_INTERVAL_NS: u64 = 500_000;
const INTERVAL_NS: u64 = 5_000_000;
/// Maximum number of peers with which the shares are rebalanced as soon as a lane begins to send. A rebalance is then
/// cheap, and the lane need not wait.
const PROMPT_PEERS_MAX: usize = 4;

/// The members of one socket and the state of its rebalancing.
#[derive(Debug)]
pub(super) struct Sharing {
    room: Room,
    /// The connections of the socket.
    members: Mutex<BTreeMap<PeerId, Weak<Connection>>>,
    /// Time of the last rebalance.
    rebalanced_ns: AtomicU64,
    /// True while a lane waits for credit that other lanes hold.
    has_waiters: AtomicBool,
}

impl Sharing {
    pub(super) fn new(room: Room) -> Sharing {
        Sharing {
            room,
            members: Mutex::default(),
            rebalanced_ns: AtomicU64::new(0),
            has_waiters: AtomicBool::new(false),
        }
    }

    pub(super) fn join(&self, connection: &Arc<Connection>) {
        lock(&self.members).insert(connection.peer, Arc::downgrade(connection));
    }

    /// Removes a peer. Returns true if the peer was a member.
    pub(super) fn leave(&self, peer: PeerId) -> bool {
        lock(&self.members).remove(&peer).is_some()
    }

    /// Records that a lane began to send. Returns the time of the next rebalance in ns; 0 means now.
    pub(super) fn on_send_start(&self) -> u64 {
        // The lock excludes a rebalance, which would reset the flag.
        let members = lock(&self.members);
        self.has_waiters.store(true, Relaxed);
        match members.len() {
            0..=PROMPT_PEERS_MAX => 0,
            _ => self.rebalanced_ns.load(Relaxed) + START_INTERVAL_NS,
        }
    }

    /// Returns true if a lane waits for credit and the last rebalance was at least [`START_INTERVAL_NS`] ago.
    pub(super) fn has_waiters(&self, now_ns: u64) -> bool {
        self.has_waiters.load(Relaxed) && now_ns >= self.rebalanced_ns.load(Relaxed) + START_INTERVAL_NS
    }

    /// Returns true if a rebalance is due. The caller checks this after packets have arrived.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.has_waiters(now_ns) || now_ns >= self.rebalanced_ns.load(Relaxed) + INTERVAL_NS
    }

    /// Rebalances the shares of all lanes. Returns the time in ns of the next transmission or rebalance; `None` if
    /// neither is needed.
    pub(super) fn rebalance(&self, now_ns: u64) -> Option<u64> {
        let members = lock(&self.members);
        let connections: Vec<Arc<Connection>> = members.values().filter_map(Weak::upgrade).collect();
        self.rebalanced_ns.store(now_ns, Relaxed);
        let lanes = || connections.iter().flat_map(|connection| connection.lanes());
        let before: Vec<Share> = lanes().map(|lane| lane.qp().share()).collect();
        let mut shares = before.clone();
        // Room is reserved for one packet of each peer, and for two of a peer with more than [`LANES`] lanes.
        let reserved = connections.iter().map(|connection| connection.lane_count().div_ceil(LANES)).sum();
        let is_settled = self.room.share(now_ns, reserved, &mut shares);
        self.has_waiters.store(!is_settled, Relaxed);
        let mut due = (!is_settled).then_some(now_ns + WAITER_INTERVAL_NS);
        let changed = lanes().zip(shares).zip(before).filter(|((_, share), before)| share != before);
        for ((mut lane, share), _) in changed {
            due = due.into_iter().chain(lane.set_share(now_ns, share)).min();
        }
        due
    }
}
