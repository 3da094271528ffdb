//! Draining: a node that is about to leave takes nothing new, and brings all that it has to others.
//!
//! ```text
//!  who asks            this node                     homes (itself among them)
//!   Drain ────────────► Draining ──► everybody       (nothing new comes)
//!                       Status ────► nodes with memory
//!                       per region:  Vacate { to } ──────►  a move of what is here; or of all with the home, if that is here
//!                                    ◄───────────── Done
//!   Drained ◄────────── all is elsewhere, or the time is over
//! ```
//!
//! What others are told of a region's next home, and of places, they hear before they hear that this node leaves: so nobody takes
//! for lost what has been moved.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::context::Purpose;
use super::{Engine, Requester};
use crate::effect::Effect;
use crate::ids::{NodeId, NodeIncarnation, Principal, RegionId};
use crate::message::{
    Drained, ErrorReply, LEFTOVERS_MAX, Leftover, LeftoverCause, NodeState, Notice, RegionCommand, Reply,
    Request,
};

/// So many regions are on their way at a time: enough to hide round trips, and few enough that others get their turns.
const UNDER_WAY_MAX: usize = 8;
/// After so many parts of a lease is looked again for what could not be moved just then.
const LOOK_AGAIN_PARTS: u64 = 64;
/// So often is looked again, in a lease and a half, for a region that its home does not know, for it may be in the making or just have
/// gone, and for a lock whose holder is cut off.
const LOOKS_MAX: u32 = 96;
/// More time than anybody means; it can be added to any clock.
const WITHIN_NS_MAX: u64 = u64::MAX / 4;

/// Who takes nothing new.
#[derive(Debug, Default)]
pub(super) struct Draining {
    own: Option<Box<Drain>>,
    others: BTreeSet<NodeIncarnation>,
}

/// How far this node's own drain is.
#[derive(Debug)]
struct Drain {
    requesters: Vec<Requester>,
    deadline_ns: u64,
    /// Whether the node stays if something is left.
    stays: bool,
    /// How many bytes others can take.  Of those that have not said so yet, nothing is known.
    room: BTreeMap<NodeId, u64>,
    rooms_missing: BTreeSet<NodeId>,
    /// Regions that have not had their turn.
    waiting: VecDeque<Holding>,
    under_way: BTreeMap<RegionId, Attempt>,
    /// Why regions cannot leave; where that may change, how often is still looked.
    refused: BTreeMap<RegionId, Refused>,
    look_again_ns: u64,
    moved: u64,
    moved_bytes: u64,
    /// Set when it is over: the node is about to leave.
    outcome: Option<Drained>,
}

/// A region of which something is here.
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
    /// Nodes that have refused it.
    tried: BTreeSet<NodeId>,
}

#[derive(Debug)]
struct Refused {
    cause: LeftoverCause,
    looks_left: u32,
}

impl Draining {
    /// Whether this node takes nothing new.
    pub(super) fn is_on(&self) -> bool {
        self.own.is_some()
    }

    /// Whether that node, or this one, which is `me`, takes nothing new.
    pub(super) fn concerns(&self, me: NodeIncarnation, incarnation: NodeIncarnation) -> bool {
        if incarnation == me { self.is_on() } else { self.others.contains(&incarnation) }
    }

    /// Another node takes nothing new, or does again, or is not connected any more.
    pub(super) fn note(&mut self, incarnation: NodeIncarnation, is_on: bool) {
        match is_on {
            true => self.others.insert(incarnation),
            false => self.others.remove(&incarnation),
        };
    }

    /// When something is to be done although nothing arrives.
    pub(super) fn deadline_ns(&self) -> u64 {
        match &self.own {
            Some(drain) if drain.outcome.is_none() => drain.deadline_ns.min(drain.look_again_ns),
            _ => u64::MAX,
        }
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
            // The most impatient of those who ask decides, and one who insists.
            Some(drain) => {
                drain.requesters.push(requester);
                drain.deadline_ns = drain.deadline_ns.min(deadline_ns);
                drain.stays &= stays;
            }
            None => self.start_draining(requester, deadline_ns, stays),
        }
    }

    fn start_draining(&mut self, requester: Requester, deadline_ns: u64, stays: bool) {
        let me = self.out.incarnation().node;
        let others: BTreeSet<NodeId> =
            self.session_side().memory_nodes().into_iter().filter(|node| *node != me).collect();
        self.membership.draining_mut().own = Some(Box::new(Drain {
            requesters: vec![requester],
            deadline_ns,
            stays,
            room: BTreeMap::new(),
            rooms_missing: others.clone(),
            waiting: VecDeque::new(),
            under_way: BTreeMap::new(),
            refused: BTreeMap::new(),
            look_again_ns: u64::MAX,
            moved: 0,
            moved_bytes: 0,
            outcome: None,
        }));
        self.out.push(Effect::Draining { is_on: true });
        self.cx().notify_all(&Notice::Draining { is_on: true });
        for node in others {
            self.cx().ask(node, Request::Status, Purpose::Room(node));
        }
        self.go_on_draining();
    }

    /// A node has said how much room it has, or is gone.
    pub(super) fn handle_room(&mut self, node: NodeId, body: Result<Reply, ErrorReply>) {
        let Some(drain) = self.membership.draining_mut().active() else { return };
        drain.rooms_missing.remove(&node);
        if let Ok(Reply::Status(status)) = body
            && status.state == NodeState::Alive
        {
            let taken = status.bytes_used.saturating_add(status.bytes_quarantined);
            drain.room.insert(node, status.bytes_total.saturating_sub(taken));
        }
        self.go_on_draining();
    }

    pub(super) fn go_on_draining_in_time(&mut self) {
        let now_ns = self.out.now_ns();
        let Some(drain) = self.membership.draining_mut().active() else { return };
        if drain.deadline_ns <= now_ns {
            return self.finish_draining();
        }
        if drain.look_again_ns <= now_ns {
            drain.look_again_ns = u64::MAX;
            self.go_on_draining();
        }
    }

    /// Begins as many moves as may be under way, and ends when nothing is left that could be moved.
    fn go_on_draining(&mut self) {
        let Some(drain) = self.membership.draining_mut().active() else { return };
        if !drain.rooms_missing.is_empty() {
            return;
        }
        if drain.waiting.is_empty() && drain.under_way.is_empty() {
            let found = self.movable_holdings();
            let Some(drain) = self.membership.draining_mut().active() else { return };
            drain.waiting = found.into();
        }
        while let Some(drain) = self.membership.draining_mut().active()
            && drain.under_way.len() < UNDER_WAY_MAX
            && let Some(holding) = drain.waiting.pop_front()
        {
            self.vacate(holding, BTreeSet::new(), None);
        }
        let makes_any = self.homes.makes_any();
        let look_again_ns = self.out.now_ns() + self.out.config().lease_ns / LOOK_AGAIN_PARTS;
        let Some(drain) = self.membership.draining_mut().active() else { return };
        if !drain.under_way.is_empty() || !drain.waiting.is_empty() {
            return;
        }
        let may_change = drain.refused.values().any(|refused| refused.looks_left > 0);
        match makes_any || may_change {
            true => drain.look_again_ns = look_again_ns,
            false => self.finish_draining(),
        }
    }

    /// What is here and has not been refused for good.
    fn movable_holdings(&mut self) -> Vec<Holding> {
        let holdings = self.holdings();
        let Some(drain) = self.membership.draining_mut().active() else { return Vec::new() };
        let may_move = |holding: &Holding| match drain.refused.get_mut(&holding.region) {
            Some(refused) if refused.looks_left == 0 => false,
            Some(refused) => {
                refused.looks_left -= 1;
                true
            }
            None => true,
        };
        let movable: Vec<Holding> = holdings.iter().copied().filter(may_move).collect();
        // What has gone by itself is nothing that is left.
        let here: BTreeSet<RegionId> = holdings.iter().map(|holding| holding.region).collect();
        drain.refused.retain(|region, _| here.contains(region));
        movable
    }

    /// All regions whose home is here, or of which bytes are here, but for those that nobody else can map: they end with us.
    fn holdings(&self) -> Vec<Holding> {
        let me = self.out.incarnation();
        let homed = self.homes.of_use_to_others(me);
        let homed = homed.map(|(region, bytes)| Holding { region, home: me.node, bytes });
        let held = self.owner.held();
        let held = held.into_iter().filter(|(region, _)| self.homes.get(region).is_none());
        let held = held.map(|(region, (home, bytes))| {
            let home = self.homes.next_home_of(region).unwrap_or(home.node);
            Holding { region, home, bytes }
        });
        homed.chain(held).collect()
    }

    /// Has a region leave for the node with the most room among those that have not refused it.
    fn vacate(&mut self, holding: Holding, tried: BTreeSet<NodeId>, why: Option<LeftoverCause>) {
        let Some(drain) = self.membership.draining_mut().active() else { return };
        let open = drain.room.iter().filter(|(node, _)| !tried.contains(node));
        let Some((to, room)) = open.max_by_key(|(_, room)| **room).map(|(node, room)| (*node, *room)) else {
            let cause = why.unwrap_or(LeftoverCause::NoOtherNode);
            drain.refused.insert(holding.region, Refused { cause, looks_left: 0 });
            return;
        };
        // What the node says decides; this is only to spread regions well.
        drain.room.insert(to, room.saturating_sub(holding.bytes));
        drain.under_way.insert(holding.region, Attempt { holding, to, tried });
        let command = RegionCommand::Vacate { to };
        let principal = Principal(String::new().into());
        let request = Request::RegionCommand { region: holding.region, principal, command };
        self.cx().ask(holding.home, request, Purpose::Vacate(holding.region));
    }

    /// A region has left, or the one that was asked refuses.
    pub(super) fn handle_vacated(&mut self, region: RegionId, body: Result<Reply, ErrorReply>) {
        let Some(drain) = self.membership.draining_mut().active() else { return };
        let Some(Attempt { mut holding, to, mut tried }) = drain.under_way.remove(&region) else { return };
        if body.is_err()
            && let Some(room) = drain.room.get_mut(&to)
        {
            *room += holding.bytes;
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
            Ok(_) => self.note_refusal(region, ErrorReply::Malformed, false),
            Err(refusal) if is_of_target(&refusal, to) => {
                tried.insert(to);
                self.vacate(holding, tried, Some(LeftoverCause::Refused(refusal)));
            }
            Err(refusal) => {
                let may_change = matches!(
                    refusal,
                    ErrorReply::NotFound | ErrorReply::PermissionDenied { .. } | ErrorReply::Held
                );
                self.note_refusal(region, refusal, may_change);
            }
        }
        self.go_on_draining();
    }

    fn note_refusal(&mut self, region: RegionId, refusal: ErrorReply, may_change: bool) {
        let Some(drain) = self.membership.draining_mut().active() else { return };
        let looks_left = if may_change { LOOKS_MAX } else { 0 };
        let refused = drain
            .refused
            .entry(region)
            .or_insert(Refused { cause: LeftoverCause::Refused(refusal.clone()), looks_left });
        refused.cause = LeftoverCause::Refused(refusal);
        refused.looks_left = refused.looks_left.min(looks_left);
    }

    /// Tells those who asked, and leaves, or goes on as before.
    fn finish_draining(&mut self) {
        let holdings = self.holdings();
        let left_count = holdings.len() as u64;
        let named: Vec<Leftover> =
            holdings.into_iter().take(LEFTOVERS_MAX).map(|holding| self.leftover(holding)).collect();
        let Some(drain) = self.membership.draining_mut().active() else { return };
        let Drain { moved, moved_bytes, stays, .. } = *drain;
        let outcome = Drained { moved, moved_bytes, left: named, left_count };
        let requesters = std::mem::take(&mut drain.requesters);
        drain.outcome = Some(outcome.clone());
        for requester in requesters {
            self.cx().answer(requester, Ok(Reply::Drained(Box::new(outcome.clone()))));
        }
        if stays && left_count > 0 {
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

/// Whether the node to which a region was to move refuses it, or is gone: another may take it.
fn is_of_target(refusal: &ErrorReply, to: NodeId) -> bool {
    match refusal {
        ErrorReply::NoSpace { .. } | ErrorReply::OutOfMemory { .. } => true,
        ErrorReply::Draining(node)
        | ErrorReply::PeerDown(node)
        | ErrorReply::UnknownNode(node)
        | ErrorReply::Unmapped { node, .. } => *node == to,
        _ => false,
    }
}
