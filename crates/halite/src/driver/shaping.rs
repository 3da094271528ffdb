//! Priorities: delays operations of low priority according to the node's policy.
//!
//! All operations that leave the node over a network pass here. Loads and stores in memory of this host do not: no
//! adapter takes part in them, and no link is shared.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock};

use halite_tier::ids::{NodeId, Principal};

use halite_tier::qos::{BadQos, Priority, Qos, Turns};
use halite_tier::rpc::Target;

use crate::driver::Driver;
use crate::posted::SLICE_BYTES_MAX;
use crate::rpc::Request;
use crate::runtime::lanes::Queue;
use crate::runtime::locks::{lock, ranked};

/// Length in bytes up to which a single operation's round trip shows the delay of the path.
const SHORT_BYTES_MAX: usize = 4096;

ranked! {
    State => Innermost;
}

/// Direction of an operation's bytes, as seen from this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Out,
    In,
}

/// When an operation may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Now. An operation with more bytes starts with a part of this length.
    Now { bytes_max: usize },
    /// The caller asks again at this time on the node's clock, in nanoseconds.
    At(u64),
}

/// The policy of a node.
#[derive(Debug, Default)]
pub(crate) struct Shaping {
    /// True if the policy may delay operations. A hint, so that a node without a policy takes no lock.
    is_active: AtomicBool,
    state: Mutex<State>,
    /// Principals without a right to high priority. Set once, before the first session.
    low: OnceLock<Vec<String>>,
}

#[derive(Debug, Default)]
struct State {
    qos: Qos,
    /// The turns of both directions; `None` without a policy.
    turns: Option<[Turns; 2]>,
}

/// Record of an operation that was posted under a policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    at_ns: u64,
    /// True if a task or thread waits for the completion, so that the end is observed at once.
    is_awaited: bool,
}

impl Shaping {
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        // Orders nothing: the state has its lock.
        self.is_active.load(Relaxed)
    }

    /// Sets the principals whose sessions have low priority.
    pub(crate) fn limit_to_low(&self, principals: Vec<String>) {
        self.low.get_or_init(|| principals);
    }

    /// Returns the highest priority of a principal's sessions.
    pub(crate) fn highest(&self, principal: &Principal) -> Priority {
        let is_low = self.low.get().is_some_and(|low| low.iter().any(|low| **low == *principal.0));
        if is_low { Priority::Low } else { Priority::High }
    }

    /// Replaces the policy. Operations that wait follow the new one within 100 ms.
    pub(crate) fn set(&self, now_ns: u64, qos: Qos) -> Result<(), BadQos> {
        let (out, incoming) = (qos.turns(now_ns)?, qos.turns(now_ns)?);
        let mut state = lock(&self.state);
        *state = State { qos, turns: out.zip(incoming).map(|(out, incoming)| [out, incoming]) };
        self.is_active.store(state.turns.is_some(), Relaxed);
        Ok(())
    }

    pub(crate) fn qos(&self) -> Qos {
        lock(&self.state).qos
    }

    /// Returns the current limits of a priority, in bytes per second: out of this node, then into it. `None` means no
    /// limit.
    pub(crate) fn limits(&self, priority: Priority) -> [Option<u64>; 2] {
        match &lock(&self.state).turns {
            Some(turns) => turns.each_ref().map(|turns| turns.limit(priority)),
            None => [None; 2],
        }
    }

    /// Returns when an operation on `bytes` bytes may start.
    pub(crate) fn turn(&self, now_ns: u64, direction: Direction, queue: Queue, bytes: usize) -> Turn {
        let mut state = lock(&self.state);
        let Some(turns) = &mut state.turns else { return Turn::Now { bytes_max: SLICE_BYTES_MAX } };
        let turns = &mut turns[direction as usize];
        let turn_ns = turns.turn(now_ns, queue.priority, queue.flow, bytes as u64);
        match turn_ns > now_ns {
            true => Turn::At(turn_ns),
            false => {
                let bytes_max = turns.part_bytes_max(queue.priority).min(SLICE_BYTES_MAX as u64) as usize;
                Turn::Now { bytes_max }
            }
        }
    }

    /// Calls `with` with the turns of a direction, if there is a policy.
    fn with(&self, direction: Direction, with: impl FnOnce(&mut Turns)) {
        if let Some(turns) = &mut lock(&self.state).turns {
            with(&mut turns[direction as usize]);
        }
    }
}

impl Driver {
    /// Records that an operation was posted. Returns `None` without a policy.
    pub(crate) fn record_start(
        &self,
        direction: Direction,
        queue: Queue,
        bytes: usize,
        is_awaited: bool,
    ) -> Option<Posted> {
        if !self.shared.shaping.is_active() {
            return None;
        }
        let at_ns = self.now_ns();
        let Queue { priority, flow } = queue;
        self.shared.shaping.with(direction, |turns| turns.on_start(at_ns, priority, flow, bytes as u64));
        Some(Posted { at_ns, is_awaited })
    }

    /// Records that an operation has completed.
    pub(crate) fn record_end(
        &self,
        direction: Direction,
        priority: Priority,
        bytes: usize,
        posted: Option<Posted>,
    ) {
        if !self.shared.shaping.is_active() {
            return;
        }
        let now_ns = self.now_ns();
        self.shared.shaping.with(direction, |turns| turns.on_done(now_ns, priority, bytes as u64));
        let Some(Posted { at_ns, is_awaited: true }) = posted else { return };
        if priority == Priority::High && bytes <= SHORT_BYTES_MAX {
            let round_trip_ns = now_ns.saturating_sub(at_ns);
            // A queue in either direction delays it.
            for direction in [Direction::Out, Direction::In] {
                self.shared.shaping.with(direction, |turns| turns.on_round_trip(now_ns, round_trip_ns));
            }
        }
    }

    /// Returns the time at which a call or message to `node` must ask again, if the node's policy delays it now.
    #[inline]
    pub(crate) fn request_delay(&self, node: NodeId, request: &Request<'_>) -> Option<u64> {
        if !self.limits_request(node, request) {
            return None;
        }
        match self.shared.shaping.turn(self.now_ns(), Direction::Out, request.queue, request.input.len()) {
            Turn::Now { .. } => None,
            Turn::At(turn_ns) => Some(turn_ns),
        }
    }

    /// Records that a call or message was posted to `node`.
    #[inline]
    pub(crate) fn record_request(&self, node: NodeId, request: &Request<'_>) {
        if self.limits_request(node, request) {
            let bytes = request.input.len();
            self.record_start(Direction::Out, request.queue, bytes, false);
            self.record_end(Direction::Out, request.queue.priority, bytes, None);
        }
    }

    /// Returns true if the node's policy limits a call or message to `node`.
    #[inline]
    fn limits_request(&self, node: NodeId, request: &Request<'_>) -> bool {
        !request.input.is_empty() && self.shared.shaping.is_active() && self.is_beyond_host(node)
    }

    /// Returns true if a network connects this node to `node`.
    #[cold]
    fn is_beyond_host(&self, node: NodeId) -> bool {
        let is_far = |peer| !self.shared.fabric.capabilities(peer).direct;
        let target = self.shared.peers.with_link_to(node, |link| link.target);
        matches!(target, Some(Target::Peer(peer)) if is_far(peer))
    }
}
