//! Draining: a node that is about to leave accepts no new data, and moves all that it holds to other nodes.
//!
//! ```text
//! requester           this node                     homes (this node included)
//!  Drain ────────────► Draining ──► all nodes       (no new data arrives)
//!                      Status ────► nodes with memory
//!                      per region:  Vacate { to } ──────►  moves the chunks here; and the home, if here
//!                                   ◄───────────── Done
//!  Drained ◄────────── all moved, or deadline passed
//! ```
//!
//! Mappers learn the next home of a region and the new places of its chunks before they learn that this node leaves. So
//! they do not treat moved data as lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::context::Purpose;
use super::{Engine, Requester};
use crate::effect::Effect;
use crate::ids::{NodeId, NodeIncarnation, Principal, RegionId, RequestId};
use crate::message::{
    Drained, ErrorReply, LEFTOVERS_MAX, Leftover, LeftoverCause, NodeState, Notice, RegionCommand, Reply,
    Request,
};

/// Maximum regions moved at a time: enough to hide round trips, and few enough to share the network.
const MOVES_MAX: usize = 8;
/// Interval between attempts to move a refused region, as a fraction of a lease.
const RETRY_PARTS: u64 = 64;
/// Maximum retries, over a lease and a half, of the move of a region. A region is retried if its home does not know it
/// (it may be in allocation, or just freed), or if it is a lock whose holder is cut off.
const RETRIES_MAX: u32 = 96;
/// Cap on the requested time, so that it can be added to any time without overflow.
const WITHIN_NS_MAX: u64 = u64::MAX / 4;

/// The nodes that are draining.
#[derive(Debug, Default)]
pub(super) struct Draining {
    own: Option<Box<Drain>>,
    others: BTreeSet<NodeIncarnation>,
}

/// The state of this node's own drain.
#[derive(Debug)]
struct Drain {
    requesters: Vec<Requester>,
    deadline_ns: u64,
    /// True if the node stays if some data could not be moved.
    stays: bool,
    /// The nodes with memory that have been asked for their free memory since they were connected last.
    asked: BTreeSet<NodeId>,
    /// Free bytes of each node that has answered.
    free_bytes: BTreeMap<NodeId, u64>,
    unanswered: BTreeSet<NodeId>,
    /// Regions that were not tried yet.
    waiting: VecDeque<Holding>,
    moving: BTreeMap<RegionId, Attempt>,
    /// Regions that could not be moved, each with the cause and the number of retries left.
    refused: BTreeMap<RegionId, Refused>,
    retry_ns: u64,
    moved: u64,
    moved_bytes: u64,
    /// The result, once the drain has ended and the node is about to leave.
    outcome: Option<Drained>,
}

/// A region that is homed here or has bytes here.
#[derive(Clone, Copy, Debug)]
struct Holding {
    region: RegionId,
    home: NodeId,
    bytes: u64,
}

#[derive(Debug)]
struct Attempt {
    holding: Holding,
    to: NodeId,
    /// The request to the region's home; `None` until it is sent.
    request: Option<RequestId>,
    /// Nodes that refused the region.
    tried: BTreeSet<NodeId>,
}

#[derive(Debug)]
struct Refused {
    cause: LeftoverCause,
    retries_left: u32,
}

impl Refused {
    /// Returns true if the region may move when another node is connected again.
    fn lacks_node(&self) -> bool {
        use ErrorReply::{NotMet, PeerDown};
        matches!(self.cause, LeftoverCause::NoOtherNode | LeftoverCause::Refused(NotMet(_) | PeerDown(_)))
    }
}

impl Draining {
    /// Returns true if this node is draining.
    pub(super) fn is_on(&self) -> bool {
        self.own.is_some()
    }

    /// Returns true if a node is draining; `me` is this node.
    pub(super) fn covers(&self, me: NodeIncarnation, incarnation: NodeIncarnation) -> bool {
        if incarnation == me { self.is_on() } else { self.others.contains(&incarnation) }
    }

    /// Records that another node starts or stops draining, or disconnects.
    pub(super) fn record(&mut self, incarnation: NodeIncarnation, is_on: bool) {
        match is_on {
            true => self.others.insert(incarnation),
            false => self.others.remove(&incarnation),
        };
    }

    /// Returns the time of the next timeout in ns, or `u64::MAX` without a timeout.
    pub(super) fn deadline_ns(&self) -> u64 {
        match &self.own {
            Some(drain) if drain.outcome.is_none() => drain.deadline_ns.min(drain.retry_ns),
            _ => u64::MAX,
        }
    }

    /// Returns true if this node waits for the free memory of other nodes.
    fn awaits_free_bytes(&self) -> bool {
        self.own.as_ref().is_some_and(|drain| !drain.unanswered.is_empty())
    }

    fn active(&mut self) -> Option<&mut Drain> {
        self.own.as_deref_mut().filter(|drain| drain.outcome.is_none())
    }
}

impl Engine {
    pub(super) fn serve_drain(&mut self, requester: Requester, within_ns: u64, stays: bool) {
        let deadline_ns = self.out.now_ns().saturating_add(within_ns.min(WITHIN_NS_MAX));
        match self.membership.draining_mut().own.as_deref_mut() {
            Some(Drain { outcome: Some(outcome), .. }) => {
                let outcome = Box::new(outcome.clone());
                self.cx().answer(requester, Ok(Reply::Drained(outcome)));
            }
            // The earlier deadline applies, and leaving takes precedence over staying.
            Some(drain) => {
                drain.requesters.push(requester);
                drain.deadline_ns = drain.deadline_ns.min(deadline_ns);
                drain.stays &= stays;
            }
            None => self.start_draining(requester, deadline_ns, stays),
        }
    }

    fn start_draining(&mut self, requester: Requester, deadline_ns: u64, stays: bool) {
        self.membership.draining_mut().own = Some(Box::new(Drain {
            requesters: vec![requester],
            deadline_ns,
            stays,
            asked: BTreeSet::new(),
            free_bytes: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            waiting: VecDeque::new(),
            moving: BTreeMap::new(),
            refused: BTreeMap::new(),
            retry_ns: u64::MAX,
            moved: 0,
            moved_bytes: 0,
            outcome: None,
        }));
        self.out.push(Effect::Draining { is_on: true });
        self.cx().notify_all(&Notice::Draining { is_on: true });
        self.continue_draining();
    }

    /// Asks nodes that were connected since the last time for their free memory. Regions that lacked a node then move
    /// again.
    fn ask_for_free_bytes(&mut self) {
        let me = self.out.incarnation().node;
        let others: BTreeSet<NodeId> =
            self.session_side().memory_nodes().into_iter().filter(|node| *node != me).collect();
        let Some(drain) = self.membership.draining_mut().active() else { return };
        let new: BTreeSet<NodeId> = others.difference(&drain.asked).copied().collect();
        drain.free_bytes.retain(|node, _| others.contains(node));
        drain.asked = others;
        drain.unanswered = new.clone();
        if !new.is_empty() {
            drain.refused.retain(|_, refused| !refused.lacks_node());
        }
        for node in new {
            self.cx().ask(node, Request::Status, Purpose::FreeBytes(node));
        }
    }

    /// Returns true if a permanent node with memory is out of reach, and may be connected again.
    fn may_node_return(&self) -> bool {
        let mut members = self.membership.members().all();
        members.any(|member| {
            let is_permanent = !member.incarnation.node.is_ephemeral();
            is_permanent && member.bytes_total > 0 && member.state == NodeState::Unreachable
        })
    }

    /// Handles a node's reply with its free memory, or its loss.
    pub(super) fn handle_free_bytes(&mut self, node: NodeId, body: Result<Reply, ErrorReply>) {
        let Some(drain) = self.membership.draining_mut().active() else { return };
        drain.unanswered.remove(&node);
        if let Ok(Reply::Status(status)) = body
            && status.state == NodeState::Alive
        {
            let taken = status.bytes_used.saturating_add(status.bytes_quarantined);
            drain.free_bytes.insert(node, status.bytes_total.saturating_sub(taken));
        }
        self.continue_draining();
    }

    pub(super) fn check_drain_timers(&mut self) {
        let now_ns = self.out.now_ns();
        let Some(drain) = self.membership.draining_mut().active() else { return };
        if drain.deadline_ns <= now_ns {
            return self.finish_draining();
        }
        if drain.retry_ns <= now_ns {
            drain.retry_ns = u64::MAX;
            self.continue_draining();
        }
    }

    /// Starts as many moves as allowed. Finishes when no movable region is left.
    fn continue_draining(&mut self) {
        let Some(drain) = self.membership.draining_mut().active() else { return };
        if !drain.unanswered.is_empty() {
            return;
        }
        if drain.waiting.is_empty() && drain.moving.is_empty() {
            self.ask_for_free_bytes();
            if self.membership.draining().awaits_free_bytes() {
                return;
            }
            let found = self.movable_holdings();
            let Some(drain) = self.membership.draining_mut().active() else { return };
            drain.waiting = found.into();
        }
        while let Some(drain) = self.membership.draining_mut().active()
            && drain.moving.len() < MOVES_MAX
            && let Some(holding) = drain.waiting.pop_front()
        {
            self.vacate(holding, BTreeSet::new(), None);
        }
        let (has_creations, may_return) = (self.homes.has_creations(), self.may_node_return());
        let retry_ns = self.out.now_ns() + self.out.config().lease_ns / RETRY_PARTS;
        let Some(drain) = self.membership.draining_mut().active() else { return };
        if !drain.moving.is_empty() || !drain.waiting.is_empty() {
            return;
        }
        let may_change = drain.refused.values().any(|refused| refused.retries_left > 0);
        let lacks_nodes = drain.refused.values().any(Refused::lacks_node);
        match has_creations || may_change || lacks_nodes && may_return {
            true => drain.retry_ns = retry_ns,
            false => self.finish_draining(),
        }
    }

    /// Returns the holdings that may move now. A holding that was refused before uses up one of its retries.
    fn movable_holdings(&mut self) -> Vec<Holding> {
        let holdings = self.holdings();
        let Some(drain) = self.membership.draining_mut().active() else { return Vec::new() };
        let may_move = |holding: &Holding| match drain.refused.get_mut(&holding.region) {
            Some(refused) if refused.retries_left == 0 => false,
            Some(refused) => {
                refused.retries_left -= 1;
                true
            }
            None => true,
        };
        let movable: Vec<Holding> = holdings.iter().copied().filter(may_move).collect();
        // Forgets refusals of regions that are not here any more.
        let here: BTreeSet<RegionId> = holdings.iter().map(|holding| holding.region).collect();
        drain.refused.retain(|region, _| here.contains(region));
        movable
    }

    /// Returns all regions whose home is this node, or that have bytes on this node. Omits regions that only this node
    /// can map, because they end with this node.
    fn holdings(&self) -> Vec<Holding> {
        let me = self.out.incarnation();
        let homed = self.homes.mappable_by_others(me);
        let homed = homed.map(|(region, bytes)| Holding { region, home: me.node, bytes });
        let held = self.owner.held();
        let held = held.into_iter().filter(|(region, _)| self.homes.get(region).is_none());
        let held = held.map(|(region, (home, bytes))| {
            let home = self.homes.next_home_of(region).unwrap_or(home.node);
            Holding { region, home, bytes }
        });
        homed.chain(held).collect()
    }

    /// Moves a region to the node with the most free memory among the nodes that have not refused the region.
    fn vacate(&mut self, holding: Holding, tried: BTreeSet<NodeId>, why: Option<LeftoverCause>) {
        let Some(drain) = self.membership.draining_mut().active() else { return };
        let candidates = drain.free_bytes.iter().filter(|(node, _)| !tried.contains(node));
        let Some((to, free_bytes)) = candidates
            .max_by_key(|(_, free_bytes)| **free_bytes)
            .map(|(node, free_bytes)| (*node, *free_bytes))
        else {
            let cause = why.unwrap_or(LeftoverCause::NoOtherNode);
            drain.refused.insert(holding.region, Refused { cause, retries_left: 0 });
            return;
        };
        // Only an estimate, to spread regions; the target decides by itself.
        drain.free_bytes.insert(to, free_bytes.saturating_sub(holding.bytes));
        drain.moving.insert(holding.region, Attempt { holding, to, request: None, tried });
        let command = RegionCommand::Vacate { to };
        let principal = Principal(String::new().into());
        let request = Request::RegionCommand { region: holding.region, principal, command };
        let request = self.cx().ask(holding.home, request, Purpose::Vacate(holding.region));
        if let Some(drain) = self.membership.draining_mut().active()
            && let Some(attempt) = drain.moving.get_mut(&holding.region)
        {
            attempt.request = Some(request);
        }
    }

    /// Handles the end of a region's move.
    pub(super) fn handle_vacated(&mut self, region: RegionId, body: Result<Reply, ErrorReply>) {
        let Some(drain) = self.membership.draining_mut().active() else { return };
        let Some(Attempt { mut holding, to, mut tried, .. }) = drain.moving.remove(&region) else { return };
        if body.is_err()
            && let Some(free_bytes) = drain.free_bytes.get_mut(&to)
        {
            *free_bytes += holding.bytes;
        }
        match body {
            Ok(Reply::Done) => {
                drain.moved += 1;
                drain.moved_bytes += holding.bytes;
                drain.refused.remove(&region);
            }
            Ok(Reply::MovedTo { home }) if home != holding.home => {
                holding.home = home;
                self.vacate(holding, tried, None);
            }
            Ok(_) => self.record_refusal(region, ErrorReply::Malformed, false),
            Err(refusal) if is_target_refusal(&refusal, to) => {
                tried.insert(to);
                self.vacate(holding, tried, Some(LeftoverCause::Refused(refusal)));
            }
            Err(refusal) => {
                let may_change = matches!(
                    refusal,
                    ErrorReply::NotFound | ErrorReply::PermissionDenied { .. } | ErrorReply::Held
                );
                self.record_refusal(region, refusal, may_change);
            }
        }
        self.continue_draining();
    }

    fn record_refusal(&mut self, region: RegionId, refusal: ErrorReply, may_change: bool) {
        let Some(drain) = self.membership.draining_mut().active() else { return };
        let retries_left = if may_change { RETRIES_MAX } else { 0 };
        let refused = drain
            .refused
            .entry(region)
            .or_insert(Refused { cause: LeftoverCause::Refused(refusal.clone()), retries_left });
        refused.cause = LeftoverCause::Refused(refusal);
        refused.retries_left = refused.retries_left.min(retries_left);
    }

    /// Answers the requesters, then leaves or stops draining.
    fn finish_draining(&mut self) {
        let holdings = self.holdings();
        let left_count = holdings.len() as u64;
        let named: Vec<Leftover> =
            holdings.into_iter().take(LEFTOVERS_MAX).map(|holding| self.leftover(holding)).collect();
        let Some(drain) = self.membership.draining_mut().active() else { return };
        let Drain { moved, moved_bytes, stays, .. } = *drain;
        let outcome = Drained { moved, moved_bytes, left: named, left_count };
        let requesters = std::mem::take(&mut drain.requesters);
        let requests = drain.moving.values().filter_map(|attempt| attempt.request).collect();
        drain.outcome = Some(outcome.clone());
        for requester in requesters {
            self.cx().answer(requester, Ok(Reply::Drained(Box::new(outcome.clone()))));
        }
        if stays && left_count > 0 {
            let me = self.out.incarnation();
            self.home_side().withdraw_moves(me, &requests);
            self.membership.draining_mut().own = None;
            self.out.push(Effect::Draining { is_on: false });
            self.cx().notify_all(&Notice::Draining { is_on: false });
        } else {
            self.out.push(Effect::Drained { left: left_count });
        }
    }

    fn leftover(&self, holding: Holding) -> Leftover {
        let Holding { region, bytes, .. } = holding;
        let name = self.homes.get(&region).and_then(|found| found.name.as_deref()).map(str::to_owned);
        let refused = self.membership.draining().own.as_ref().and_then(|drain| drain.refused.get(&region));
        let cause = refused.map_or(LeftoverCause::TimeOver, |refused| refused.cause.clone());
        Leftover { region, name, bytes, cause }
    }
}

/// Returns true if another node may accept the region, because the target refused it or is lost.
fn is_target_refusal(refusal: &ErrorReply, to: NodeId) -> bool {
    match refusal {
        ErrorReply::NoSpace { .. } | ErrorReply::OutOfMemory { .. } => true,
        ErrorReply::Draining(node)
        | ErrorReply::PeerDown(node)
        | ErrorReply::NotMet(node)
        | ErrorReply::UnknownNode(node)
        | ErrorReply::Unmapped { node, .. } => *node == to,
        _ => false,
    }
}
