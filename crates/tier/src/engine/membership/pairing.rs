//! Pairings: the state that two nodes share, and the consequences of a lost contact.
//!
//! ```text
//!               lease over, connection lost, or ended by the peer
//!   reachable ─────────────────────────────────────────────> ending ── cut off, grace period over ──> unreachable
//!       ▲                                                                                                 │
//!       └──────────────────────────── paired again, under the next number ────────────────────────────────┘
//!   any of them ── exit shown, left, forgotten, newer incarnation seen ──> dead
//! ```
//!
//! When a pairing ends, this node fails the operations in flight, cuts the peer off from this node's memory, and drops
//! the mappings of the peer's regions. Regions and names stay, and chunks stay reserved for the peer until its
//! incarnation ends.

use std::collections::{BTreeMap, BTreeSet};

use halite_fabric::PeerId;

use super::Membership;
use super::ended::Ended;
use crate::directory::DirectoryEvent;
use crate::effect::{Effect, Token};
use crate::engine::Engine;
use crate::engine::deferred::Unmapping;
use crate::ids::{NodeId, NodeIncarnation, RegionId};
use crate::layout::Extents;
use crate::members::NodeLoss;
use crate::message::{Loss, LossCause, Member, NodeState, Notice};

/// Maximum nodes accepted from one report, more than any cluster has.
const REPORTED_MAX: usize = 4096;
/// Maximum dials of an address that was unreachable at join, one per lease.
const RETRIES_MAX: u32 = 256;
/// Maximum runs of chunks in one [`Notice::Held`].
const HELD_PER_NOTICE_MAX: usize = 1024;

/// All incarnations that are not known to have ended.
#[derive(Debug, Default)]
pub(in crate::engine) struct Pairings {
    by_incarnation: BTreeMap<NodeIncarnation, Pairing>,
    ended: Ended,
    /// Addresses that were unreachable when this node joined, each with the number of dials left and the time of the
    /// next dial in ns.
    unanswered: BTreeMap<String, (u32, u64)>,
}

/// The state of this node's relation to one incarnation.
#[derive(Debug, Default)]
struct Pairing {
    /// Number of the current or last pairing; 0 before the first.
    number: u64,
    /// Address of the incarnation; empty if unknown.
    address: String,
    is_up: bool,
    /// Time and cause of the last loss of contact; `None` while the connection is up, and before the first pairing.
    lost: Option<NodeLoss>,
    /// Time in ns at which this node first found the incarnation disconnected; `None` while the connection is up.
    missed_ns: Option<u64>,
    /// Grace periods that must end before the last pairing is over.
    grace_periods: BTreeSet<Token>,
    is_dialled: bool,
    /// Number of dials since the connection was last up, or the address last changed.
    dials: u32,
    /// Earliest time of the next dial, in ns.
    dial_due_ns: u64,
    /// True if the incarnation is to be dialled on first use; reset when it is dialled.
    is_on_demand: bool,
    /// True if the directory has not heard the incarnation recently either, so that no operation waits for it.
    is_doubtful: bool,
    /// Time in ns until which the directory waits for the names of the incarnation's regions, if it knows the
    /// incarnation only from other nodes.
    names_due_ns: Option<u64>,
    /// True if the directory reports that the incarnation has ended. This node accepts that once it loses contact, or
    /// another incarnation claims the number.
    is_reported_ended: bool,
}

impl Pairing {
    fn record_address(&mut self, address: &str) {
        if self.address != address {
            (self.dials, self.dial_due_ns) = (0, 0);
            self.address = address.to_owned();
        }
    }

    /// Records a dial. After two attempts, the next one waits two or three quarters of a lease, at random. So two nodes
    /// that have lost each other do not collide forever. Two leases suffice to reconnect.
    fn record_dial(&mut self, now_ns: u64, lease_ns: u64, chance: u64, is_peer_turn: bool) {
        let quarters = match self.dials {
            // The peer dials more often, if it is alive.
            _ if is_peer_turn => 4 + chance % 4,
            0 | 1 => 1,
            _ => 2 + chance % 2,
        };
        // Heartbeat timers occasionally fire slightly early.
        self.dial_due_ns = now_ns + quarters * lease_ns / 4 - lease_ns / 16;
        self.dials = self.dials.saturating_add(1);
        self.is_dialled = true;
    }
}

impl Pairings {
    /// Returns the number of the current or last pairing with an incarnation, or 0 if there was no pairing.
    pub(in crate::engine) fn number(&self, incarnation: NodeIncarnation) -> u64 {
        self.by_incarnation.get(&incarnation).map_or(0, |pairing| pairing.number)
    }

    /// Returns the number of incarnations that are not known to have ended, without this node's incarnation.
    pub(in crate::engine) fn len(&self) -> usize {
        self.by_incarnation.len()
    }

    pub(in crate::engine) fn has_ended(&self, incarnation: NodeIncarnation) -> bool {
        self.ended.contains(incarnation)
    }

    /// Returns true if an incarnation is known, but not known to have ended.
    pub(in crate::engine) fn may_live(&self, incarnation: NodeIncarnation) -> bool {
        self.by_incarnation.contains_key(&incarnation)
    }

    /// Returns true if an incarnation may exist that has not been announced yet: it has not ended, and no other
    /// incarnation with its number is known.
    pub(in crate::engine) fn may_be_unannounced(&self, incarnation: NodeIncarnation) -> bool {
        let is_known = self.may_live(incarnation) || self.has_ended(incarnation);
        !is_known && self.rivals(incarnation).is_empty()
    }

    pub(in crate::engine) fn record_address(&mut self, incarnation: NodeIncarnation, address: &str) {
        if let Some(pairing) = self.by_incarnation.get_mut(&incarnation) {
            pairing.record_address(address);
        }
    }

    /// Returns true if the address was unreachable when this node joined and is being retried.
    pub(in crate::engine) fn is_retried(&self, address: &str) -> bool {
        self.unanswered.contains_key(address)
    }

    /// Records that a dial of the address has succeeded or failed.
    pub(in crate::engine) fn record_dialled(&mut self, address: &str) {
        let at = self.by_incarnation.values_mut().filter(|pairing| pairing.address == address);
        at.for_each(|pairing| pairing.is_dialled = false);
    }

    pub(in crate::engine) fn record_up(&mut self, incarnation: NodeIncarnation, number: u64, address: &str) {
        let pairing = self.by_incarnation.entry(incarnation).or_default();
        (pairing.number, pairing.is_up, pairing.is_dialled) = (number, true, false);
        (pairing.lost, pairing.missed_ns) = (None, None);
        (pairing.is_doubtful, pairing.is_on_demand) = (false, false);
        (pairing.dials, pairing.dial_due_ns) = (0, 0);
        pairing.address = address.to_owned();
    }

    /// Returns true if a member is not connected because neither node has used the other yet.
    pub(in crate::engine) fn is_on_demand(&self, incarnation: NodeIncarnation) -> bool {
        self.check(incarnation, |pairing| pairing.is_on_demand)
    }

    /// Returns the incarnation of a member to which this node connects on first use, or `None` for all other nodes.
    pub(in crate::engine) fn unconnected(&self, node: NodeId) -> Option<NodeIncarnation> {
        self.incarnations_of(node).into_iter().find(|incarnation| self.is_on_demand(*incarnation))
    }

    /// Records the pairing's number as the peer counts it.
    pub(in crate::engine) fn record_number(&mut self, incarnation: NodeIncarnation, number: u64) {
        if let Some(pairing) = self.by_incarnation.get_mut(&incarnation) {
            pairing.number = pairing.number.max(number);
        }
    }

    fn record_down(
        &mut self,
        incarnation: NodeIncarnation,
        loss: NodeLoss,
        grace_periods: impl Iterator<Item = Token>,
    ) {
        let pairing = self.by_incarnation.entry(incarnation).or_default();
        (pairing.is_up, pairing.lost) = (false, Some(loss));
        pairing.grace_periods.extend(grace_periods);
    }

    /// Records that according to the directory, a connected incarnation has ended.
    fn record_reported_ended(&mut self, incarnation: NodeIncarnation) {
        if let Some(pairing) = self.by_incarnation.get_mut(&incarnation) {
            pairing.is_reported_ended = true;
        }
    }

    /// Returns true if the end of a pairing waits for the grace period `token`.
    pub(in crate::engine) fn awaits(&self, token: Token) -> bool {
        self.by_incarnation.values().any(|pairing| pairing.grace_periods.contains(&token))
    }

    /// Records the end of a grace period. Returns true if the end of a pairing waited for it.
    pub(in crate::engine) fn record_quiescent(&mut self, token: Token) -> bool {
        let over = self.by_incarnation.values_mut().map(|pairing| pairing.grace_periods.remove(&token));
        over.fold(false, |any, is_over| any | is_over)
    }

    /// Returns the other incarnations with the same number that are not known to have ended.
    fn rivals(&self, incarnation: NodeIncarnation) -> Vec<NodeIncarnation> {
        let others = self.by_incarnation.keys().copied().filter(|other| other.node == incarnation.node);
        others.filter(|other| other.id != incarnation.id).collect()
    }

    fn check(&self, incarnation: NodeIncarnation, predicate: impl Fn(&Pairing) -> bool) -> bool {
        self.by_incarnation.get(&incarnation).is_some_and(predicate)
    }

    /// Returns the address of a node, or `None` if the address is unknown.
    pub(in crate::engine) fn address_of(&self, node: NodeId) -> Option<&str> {
        let of = self.by_incarnation.iter().filter(|(incarnation, _)| incarnation.node == node);
        of.map(|(_, pairing)| pairing.address.as_str()).find(|address| !address.is_empty())
    }

    /// Returns the address of an incarnation, or `None` if the address is unknown.
    pub(in crate::engine) fn address(&self, incarnation: NodeIncarnation) -> Option<&str> {
        self.by_incarnation
            .get(&incarnation)
            .map(|pairing| pairing.address.as_str())
            .filter(|address| !address.is_empty())
    }

    /// Returns the incarnations of a node that are not known to have ended.
    pub(in crate::engine) fn incarnations_of(&self, node: NodeId) -> Vec<NodeIncarnation> {
        self.by_incarnation.keys().copied().filter(|incarnation| incarnation.node == node).collect()
    }

    /// Returns the ended incarnations of a node, the most recent last.
    pub(in crate::engine) fn ended_of(&self, node: NodeId) -> Vec<NodeIncarnation> {
        let ended = self.ended.of(node).into_iter().flatten();
        ended.copied().filter(|incarnation| incarnation.node == node).collect()
    }

    fn end(&mut self, incarnation: NodeIncarnation) -> bool {
        self.ended.insert(incarnation);
        self.by_incarnation.remove(&incarnation).is_some()
    }

    /// Records an incarnation that may exist, and its address. Returns `None` if it has ended, or if another holds its
    /// number, since only the directory decides on the next holder.
    fn record_known(
        &mut self,
        incarnation: NodeIncarnation,
        address: String,
        by_directory: bool,
    ) -> Option<&mut Pairing> {
        let is_current = |rival: &NodeIncarnation| {
            !(by_directory && self.check(*rival, |pairing| pairing.is_reported_ended))
        };
        if self.has_ended(incarnation) || self.rivals(incarnation).iter().any(is_current) {
            return None;
        }
        let pairing = self.by_incarnation.entry(incarnation).or_default();
        if pairing.address.is_empty() {
            pairing.address = address;
        }
        Some(pairing)
    }
}

impl Engine {
    // The start of a pairing.

    /// Returns true if a pairing with `incarnation` can begin: nothing is left of the last pairing, and no other
    /// incarnation holds its number. Ends former holders of the number if that is allowed.
    pub(in crate::engine) fn is_ready_for(&mut self, incarnation: NodeIncarnation) -> bool {
        let is_ending =
            self.membership.pairings.check(incarnation, |pairing| !pairing.grace_periods.is_empty());
        let has_leftovers =
            self.membership.members.is_zombie(incarnation) || self.owner.is_running_for(incarnation);
        if is_ending || has_leftovers || self.membership.pairings.has_ended(incarnation) {
            return false;
        }
        // Another node with a used number must wait until the directory considers the holder's lease expired.
        let may_decide =
            self.directory.seat() == self.out.incarnation().node || incarnation.node == self.directory.seat();
        let rivals = self.membership.pairings.rivals(incarnation);
        for former in &rivals {
            let is_reported_ended =
                self.membership.pairings.check(*former, |pairing| pairing.is_reported_ended);
            if self.membership.members.is_alive(*former) {
                if is_reported_ended {
                    // The former holder must be cut off first.
                    self.end_pairing_with(*former);
                }
                return false;
            }
            if !may_decide && !is_reported_ended {
                return false;
            }
        }
        for former in rivals {
            self.end_incarnation(former, NodeLoss::now(LossCause::Unreachable, self.out.now_ns()));
        }
        true
    }

    /// Starts a pairing, after both nodes have finished their last pairing.
    pub(in crate::engine) fn begin_pairing(&mut self, incarnation: NodeIncarnation) {
        self.report_held(incarnation);
        self.owner_side().report_swept(incarnation);
        if self.membership.draining.is_on() {
            self.cx().notify(incarnation.node, Notice::Draining { is_on: true });
        }
        self.introduce_members(incarnation);
        // Mappings of the peer's regions, and of its memory, missed changes.
        for (region, home, quiesce) in self.mapper.handle_up(incarnation) {
            self.deferred.finish_unmapping_later(
                &mut self.out,
                quiesce,
                Unmapping::without_command(region, home),
            );
        }
        self.home_side().recover_locks_of_repaired(incarnation);
        // The peer has dropped its mappings of regions homed here, and of memory here.
        self.owner_side().untaint_sweeps(incarnation);
        self.home_side().forget_evidence(incarnation);
        self.home_side().record_announced(incarnation);
        self.home_side().drop_mapper(incarnation);
        self.home_side().inform_early_mapper(incarnation);
        self.home_side().relay_again(incarnation);
        self.owner_side().resume_sweeps_with(incarnation);
        self.home_side().resume_relays(incarnation);
        self.home_side().resume_adoption(incarnation);
    }

    /// Introduces the newcomer and the members to each other, if the directory is at this node.
    fn introduce_members(&mut self, newcomer: NodeIncarnation) {
        if self.directory.seat() != self.out.incarnation().node {
            if self.directory.seat() == newcomer.node {
                self.announce_directory(newcomer);
                self.report_known_members();
            }
            return;
        }
        let known = self.introductions();
        let of_newcomer: Vec<(Member, String)> =
            known.iter().filter(|(member, _)| member.incarnation == newcomer).cloned().collect();
        let (living, unreachable) =
            known.into_iter().partition(|(member, _)| self.was_heard_recently(member.incarnation));
        let ended = self.membership.pairings.ended.all();
        let others: Vec<NodeId> = self
            .membership
            .members
            .peers()
            .map(|(_, peer)| peer.incarnation)
            .filter(|incarnation| *incarnation != newcomer)
            .map(|incarnation| incarnation.node)
            .collect();
        self.cx().notify(newcomer.node, Notice::Known { living, unreachable, ended });
        for node in others {
            let (living, unreachable, ended) = (of_newcomer.clone(), Vec::new(), Vec::new());
            self.cx().notify(node, Notice::Known { living, unreachable, ended });
        }
    }

    /// Returns all members that are not known to have ended, with their addresses.
    fn introductions(&self) -> Vec<(Member, String)> {
        let Membership { members, pairings, .. } = &self.membership;
        let described = members.described(self.out.now_ns()).map(|member| (member.incarnation, member));
        let mut described: BTreeMap<NodeIncarnation, Member> = described.collect();
        let introduced = |(incarnation, pairing): (&NodeIncarnation, &Pairing)| {
            let member = described.remove(incarnation).unwrap_or_else(|| Member::unseen(*incarnation));
            (member, pairing.address.clone())
        };
        pairings.by_incarnation.iter().map(introduced).collect()
    }

    /// Returns true if an incarnation was heard within half a lease; heartbeats come every quarter.
    fn was_heard_recently(&self, incarnation: NodeIncarnation) -> bool {
        let peer = self
            .membership
            .members
            .peer_of(incarnation.node)
            .filter(|(_, peer)| peer.incarnation == incarnation);
        peer.is_some_and(|(_, peer)| {
            self.out.now_ns().saturating_sub(peer.heard_ns) <= self.out.config().lease_ns / 2
        })
    }

    /// Tells peers the address of the restarted directory: a node that lost contact with it could not find it.
    fn announce_directory(&mut self, newcomer: NodeIncarnation) {
        let seat = self.seat().map(|(incarnation, address)| (Member::unseen(incarnation), address));
        let (living, unreachable, ended) = (seat.into_iter().collect(), Vec::new(), Vec::new());
        let known = Notice::Known { living, unreachable, ended };
        let others = self
            .membership
            .members
            .peers()
            .map(|(_, peer)| peer.incarnation.node)
            .filter(|node| *node != newcomer.node);
        others.collect::<Vec<_>>().into_iter().for_each(|node| self.cx().notify(node, known.clone()));
    }

    /// Reports the known members to the directory, which may have restarted without them. Joining nodes skip this.
    fn report_known_members(&mut self) {
        if self.membership.meeting.is_joining {
            return;
        }
        let seat = self.directory.seat();
        let described = self
            .membership
            .members
            .described(self.out.now_ns())
            .filter(|member| member.incarnation.node != seat);
        let members = described.filter_map(|member| {
            let pairing = self.membership.pairings.by_incarnation.get(&member.incarnation)?;
            Some((member, pairing.address.clone()))
        });
        let (members, ended) = (members.collect(), self.membership.pairings.ended.all());
        self.cx().notify(seat, Notice::Seen { members, ended });
    }

    /// Handles another node's report of present, former and ended incarnations, if the directory is at this node. The
    /// present incarnations will report the names of their regions; until then, the directory does not know which names
    /// are free.
    pub(in crate::engine) fn handle_seen(
        &mut self,
        members: Vec<(Member, String)>,
        ended: Vec<NodeIncarnation>,
    ) {
        if self.directory.seat() != self.out.incarnation().node {
            return;
        }
        for incarnation in ended {
            // A witness of the end describes the incarnation, with the cause.
            let loss = members
                .iter()
                .find_map(|(member, _)| member.loss.filter(|_| member.incarnation == incarnation));
            self.record_ended_as(incarnation, loss);
        }
        for (member, address) in members.into_iter().take(REPORTED_MAX) {
            let incarnation = member.incarnation;
            if incarnation.node == self.out.incarnation().node
                || self.membership.pairings.may_live(incarnation)
            {
                continue;
            }
            let Some(pairing) = self.membership.pairings.record_known(incarnation, address, false) else {
                continue;
            };
            pairing.is_doubtful = member.state != NodeState::Alive;
            // A node that lost contact with the reporter may still connect to this node.
            pairing.names_due_ns = Some(self.out.now_ns() + self.out.config().lease_ns);
            self.membership.members.record_missing(member, self.out.now_ns());
            self.tell_directory(DirectoryEvent::Expected(incarnation));
        }
        self.dial_unreachable();
        self.out.push(Effect::MembersChanged);
    }

    /// Stops waiting for names of nodes that did not connect within a lease. Colliding names will be changed later.
    pub(in crate::engine) fn expire_expected_names(&mut self) {
        let (now_ns, members) = (self.out.now_ns(), &self.membership.members);
        let is_over = |pairing: &Pairing| pairing.names_due_ns.is_some_and(|due_ns| due_ns < now_ns);
        let mut over = Vec::new();
        for (incarnation, pairing) in
            self.membership.pairings.by_incarnation.iter_mut().filter(|(_, pairing)| is_over(pairing))
        {
            pairing.names_due_ns = None;
            if !members.is_alive(*incarnation) {
                over.push(*incarnation);
            }
        }
        over.into_iter().for_each(|incarnation| self.report_disconnected(incarnation));
    }

    /// Tells the directory that a connection has ended, or never came up.
    pub(in crate::engine) fn report_disconnected(&mut self, incarnation: NodeIncarnation) {
        let is_expected =
            self.membership.pairings.check(incarnation, |pairing| pairing.names_due_ns.is_some());
        self.tell_directory(DirectoryEvent::Disconnected { incarnation, is_expected });
    }

    /// Records that a node has reported all names of its regions.
    pub(in crate::engine) fn record_names_reported(&mut self, incarnation: NodeIncarnation) {
        if let Some(pairing) = self.membership.pairings.by_incarnation.get_mut(&incarnation) {
            pairing.names_due_ns = None;
        }
        self.membership.members.record_names_reported(incarnation);
    }

    /// Records incarnations as ended. Only marks a connected incarnation, since a report alone does not end it.
    fn record_ended(&mut self, ended: impl IntoIterator<Item = NodeIncarnation>) {
        ended.into_iter().for_each(|incarnation| self.record_ended_as(incarnation, None));
    }

    fn record_ended_as(&mut self, incarnation: NodeIncarnation, loss: Option<Loss>) {
        let now_ns = self.out.now_ns();
        if self.membership.members.is_alive(incarnation) {
            self.membership.pairings.record_reported_ended(incarnation);
        } else if incarnation != self.out.incarnation() {
            let unseen = NodeLoss::now(LossCause::Unreachable, now_ns);
            self.end_incarnation(incarnation, loss.map_or(unseen, |loss| NodeLoss::from_age(loss, now_ns)));
        }
    }

    /// Records incarnations that were forgotten at the request of another member.
    fn record_forgotten(&mut self, ended: Vec<NodeIncarnation>) {
        self.record_ended(ended.clone());
        for incarnation in
            ended.into_iter().filter(|incarnation| incarnation.node != self.out.incarnation().node)
        {
            let is_last = self.membership.pairings.incarnations_of(incarnation.node).is_empty();
            if is_last && !self.is_connected_to(incarnation.node) {
                self.membership.members.forget(incarnation.node);
            }
        }
    }

    /// Returns the incarnation and the address of the directory's node, or `None` if that node is not a connected peer.
    fn seat(&self) -> Option<(NodeIncarnation, String)> {
        let (_, seat) = self.membership.members.peer_of(self.directory.seat())?;
        let address = self
            .membership
            .pairings
            .by_incarnation
            .get(&seat.incarnation)
            .map(|pairing| pairing.address.clone());
        Some((seat.incarnation, address.unwrap_or_default()))
    }

    /// Handles the directory's list of living and ended incarnations. A report alone does not end a connected
    /// incarnation, unless another incarnation claims its number at this node.
    pub(in crate::engine) fn handle_known(
        &mut self,
        from: NodeIncarnation,
        living: Vec<(Member, String)>,
        unreachable: Vec<(Member, String)>,
        ended: Vec<NodeIncarnation>,
    ) {
        if from.node != self.directory.seat() {
            // If the directory's node is unreachable and names are outside, a member may tell others to forget a node.
            if self.directory.is_outside() && !self.is_connected_to(self.directory.seat()) {
                self.record_forgotten(ended);
            }
            let living = living.into_iter().map(|(member, address)| (member.incarnation, address));
            return self.record_directory(living.collect());
        }
        // A restarted directory may know an unreachable incarnation from a node that missed its end. Such a report
        // does not prove that another incarnation with the same number has ended.
        let known = living.iter().map(|(member, _)| member.incarnation);
        let known = known.filter(|incarnation| !self.membership.pairings.has_ended(*incarnation));
        let replaced = known.flat_map(|incarnation| self.membership.pairings.rivals(incarnation));
        // If two incarnations with one number are both listed as living, neither has replaced the other.
        let replaced =
            replaced.filter(|rival| !living.iter().any(|(member, _)| member.incarnation == *rival));
        let over: BTreeSet<NodeIncarnation> = replaced.chain(ended).collect();
        // The new holders of numbers are recorded before the former ones end. Each end lets waiting connections pair,
        // and one of these may be from an incarnation that the directory never met and that held the number in between.
        over.iter().for_each(|incarnation| self.membership.pairings.record_reported_ended(*incarnation));
        let doubtful = unreachable.into_iter().map(|known| (known, true));
        let mut new = Vec::new();
        for ((member, address), is_doubtful) in living.into_iter().map(|known| (known, false)).chain(doubtful)
        {
            let incarnation = member.incarnation;
            if incarnation.node == self.out.incarnation().node || over.contains(&incarnation) {
                continue;
            }
            let is_new = !self.membership.pairings.may_live(incarnation);
            if let Some(pairing) = self.membership.pairings.record_known(incarnation, address, true) {
                let is_back = pairing.is_doubtful && !is_doubtful;
                pairing.is_doubtful = is_doubtful;
                new.extend((is_new || is_back).then_some(member));
            }
            if is_doubtful && self.is_full_mesh() {
                // No operation may wait for it.
                self.fail_first_meeting(incarnation);
            }
        }
        self.record_ended(over);
        match self.is_full_mesh() {
            true => new.into_iter().for_each(|member| self.meet_first(member)),
            false => self.leave_unconnected(new),
        }
        self.dial_unreachable();
        self.pair_all();
        self.out.push(Effect::MembersChanged);
    }

    /// Dials a new member of a small cluster now, if possible; operations that need the member wait.
    fn meet_first(&mut self, member: Member) {
        let (own, incarnation) = (self.out.incarnation().node, member.incarnation);
        let Membership { members, pairings, .. } = &mut self.membership;
        let Some(pairing) = pairings.by_incarnation.get(&incarnation) else { return };
        let is_missed = pairings.unanswered.contains_key(&pairing.address);
        let is_first = pairing.number == 0 && !members.is_alive(incarnation) && !is_missed;
        let address = if incarnation.node < own { &pairing.address } else { &self.out.config().address };
        if is_first && !pairing.is_doubtful && !address.is_empty() {
            members.record_awaited(member);
            self.await_first_meeting(incarnation);
        }
    }

    /// Marks the new members of a large cluster for connection on first use.
    fn leave_unconnected(&mut self, new: Vec<Member>) {
        let (seat, Membership { members, pairings, .. }) = (self.directory.seat(), &mut self.membership);
        for member in new.into_iter().filter(|member| member.incarnation.node != seat) {
            let incarnation = member.incarnation;
            let Some(pairing) = pairings.by_incarnation.get_mut(&incarnation) else { continue };
            // This includes members that are being met: a meeting may fail, and then neither node would dial the other.
            if !members.is_alive(incarnation) && pairing.number == 0 {
                pairing.is_on_demand = true;
                members.record_unconnected(member);
                // A request may already be waiting for it.
                if self.out.is_awaited(incarnation.node) && !pairing.address.is_empty() {
                    self.out.push(Effect::Dial { address: pairing.address.clone() });
                }
            }
        }
    }

    /// Returns true if the cluster is small enough for a full mesh.
    pub(in crate::engine) fn is_full_mesh(&self) -> bool {
        self.out.config().is_full_mesh(self.membership.count())
    }

    /// Records the directory's incarnation and address, as reported by another node, unless it is connected.
    pub(in crate::engine) fn record_directory(&mut self, living: Vec<(NodeIncarnation, String)>) {
        let seat = self.directory.seat();
        for (incarnation, address) in living {
            let is_new = incarnation.node == seat
                && !self.membership.pairings.has_ended(incarnation)
                && !self.is_connected_to(seat);
            if is_new && incarnation.node != self.out.incarnation().node {
                self.membership
                    .pairings
                    .by_incarnation
                    .entry(incarnation)
                    .or_default()
                    .record_address(&address);
            }
        }
        self.dial_unreachable();
    }

    /// Dials nodes that are not connected. The higher number dials, so that the two do not collide. After two leases
    /// the lower number dials too, rarely: the peer may believe that this node has ended, and would then not dial.
    pub(in crate::engine) fn dial_unreachable(&mut self) {
        if self.membership.is_leaving || self.membership.meeting.is_joining {
            return;
        }
        self.dial_unanswered();
        self.dial_listed();
        let (own, now_ns, lease_ns) = (self.out.incarnation(), self.out.now_ns(), self.out.config().lease_ns);
        // Nodes connected to the directory only are not informed when the directory moves, so the directory dials them.
        let dials_all = own.node == self.directory.seat() && !self.is_full_mesh();
        for (incarnation, pairing) in &mut self.membership.pairings.by_incarnation {
            if pairing.is_up {
                continue;
            }
            let missed_ns = now_ns - *pairing.missed_ns.get_or_insert(now_ns);
            let is_peer_turn = incarnation.node > own.node && !dials_all;
            // Ephemeral numbers are higher than all permanent ones.
            let is_own_turn = !is_peer_turn || missed_ns >= 2 * lease_ns && !incarnation.node.is_ephemeral();
            let is_own_turn = is_own_turn && !pairing.is_on_demand;
            let is_own_turn =
                is_own_turn && !pairing.address.is_empty() && !self.membership.meeting.has(*incarnation);
            let is_due = pairing.dial_due_ns <= now_ns && !pairing.is_dialled;
            if is_own_turn && is_due && pairing.grace_periods.is_empty() {
                // Derived from both incarnations, so that it consumes no random numbers.
                let chance = (own.id.0 ^ incarnation.id.0).rotate_right(pairing.dials);
                pairing.record_dial(now_ns, lease_ns, chance, is_peer_turn);
                self.out.push(Effect::Dial { address: pairing.address.clone() });
            }
        }
    }

    /// Handles the failure of a dial to `address` that the engine had requested.
    pub fn handle_dial_failed(&mut self, address: &str) {
        self.membership.pairings.record_dialled(address);
        self.fail_dials_to(address);
        self.record_listed_failure(address);
        self.run_loopback();
    }

    /// Handles a dial to `address` that no node answered in time. The dial's packets may have been lost. So while
    /// operations wait for a first meeting at that address, this node dials again, for at most a lease.
    pub fn handle_dial_unanswered(&mut self, now_ns: u64, address: &str) {
        self.out.set_now(now_ns);
        match self.is_awaited_at(address) {
            true => self.out.push(Effect::Dial { address: address.to_owned() }),
            false => self.handle_dial_failed(address),
        }
    }

    /// Starts to retry an address that did not answer when this node joined, because a node that this node does not
    /// know may use the address.
    pub fn handle_join_dial_failed(&mut self, address: &str) {
        self.retry_address(address);
        self.fail_dials_to(address);
        self.run_loopback();
    }

    /// Retries the address of a node that was connected but not paired, unless the node is known: then it is dialled
    /// anyway.
    pub(in crate::engine) fn retry_if_unknown(&mut self, incarnation: NodeIncarnation, address: &str) {
        let pairings = &self.membership.pairings;
        if !pairings.may_live(incarnation) && !pairings.has_ended(incarnation) {
            self.retry_address(address);
        }
    }

    fn retry_address(&mut self, address: &str) {
        let due_ns = self.out.now_ns() + self.out.config().lease_ns;
        self.membership.pairings.unanswered.insert(address.to_owned(), (RETRIES_MAX, due_ns));
    }

    /// Records that a node has answered at a dialled address. It may be another node than expected.
    pub fn handle_answered(&mut self, address: &str) {
        self.membership.pairings.unanswered.remove(address);
    }

    fn dial_unanswered(&mut self) {
        let (now_ns, lease_ns) = (self.out.now_ns(), self.out.config().lease_ns);
        for (address, (retries, due_ns)) in &mut self.membership.pairings.unanswered {
            if *due_ns <= now_ns {
                (*retries, *due_ns) = (*retries - 1, now_ns + lease_ns);
                self.out.push(Effect::Dial { address: address.clone() });
            }
        }
        self.membership.pairings.unanswered.retain(|_, (retries, _)| *retries > 0);
    }

    // The end of a pairing, and of an incarnation.

    /// Ends the pairing with a peer, and fails the operations that need it.
    pub(in crate::engine) fn lose(&mut self, peer: PeerId, state: NodeState, mut loss: NodeLoss) {
        // A node is unreachable since it was last heard: users compare this time with that of a fault.
        if let Some(known) = self.membership.members.peer_mut(peer)
            && loss.cause == LossCause::Unreachable
        {
            loss = NodeLoss::now(loss.cause, known.heard_ns);
        }
        let Some(incarnation) = self.membership.members.remove(peer, state, loss, self.out.now_ns()) else {
            return;
        };
        // Replies of a leaving node to calls still count, and its connection ends by itself.
        if state != NodeState::Left {
            self.report_down(peer);
        }
        self.report_disconnected(incarnation);
        let grace_periods = self.mapper.handle_down(incarnation);
        self.out.extend(grace_periods.into_iter().map(Effect::Quiesce));
        if self.commands.has_copies() {
            // The remote copies may use handles that no longer exist.
            let quiesce = self.mapper.quiesce();
            self.out.push(Effect::Quiesce(quiesce));
        }
        // Includes grace periods of regions that were dropped earlier without the peer's knowledge.
        self.membership.pairings.record_down(incarnation, loss, self.mapper.grace_periods());
        self.out.end_serving_all_of(incarnation);
        self.owner.forget_requests_of(incarnation);
        self.membership.draining.record(incarnation, false);
        self.home_side().forget_requests_of(incarnation);
        self.owner.abort_commands_of(incarnation);
        self.home_side().forget_waiters_of(incarnation);
        self.home_side().forget_watcher(incarnation);
        self.owner_side().abandon_sweeps_by(incarnation);
        self.fail_requests_to(incarnation);
        self.home_side().request_evidence_for_stalled(incarnation);
        if self.membership.pairings.check(incarnation, |pairing| pairing.is_reported_ended) {
            self.end_incarnation(incarnation, loss);
        }
        if state != NodeState::Left {
            self.report_loss(incarnation);
        }
        self.out.push(Effect::MembersChanged);
    }

    /// Handles the end of a grace period. If the grace period was the last one that the end of a pairing waited for,
    /// candidates may be ready to pair.
    pub(in crate::engine) fn handle_pairing_quiescent(&mut self, token: Token) {
        if self.membership.pairings.record_quiescent(token) {
            self.pair_all();
        }
    }

    /// Ends the pairing with an incarnation and disconnects it, without declaring its process dead.
    pub(in crate::engine) fn end_pairing_with(&mut self, incarnation: NodeIncarnation) {
        if let Some((peer, _)) = self
            .membership
            .members
            .peer_of(incarnation.node)
            .filter(|(_, known)| known.incarnation == incarnation)
        {
            self.lose(peer, NodeState::Unreachable, NodeLoss::now(LossCause::Unreachable, self.out.now_ns()));
            self.out.push(Effect::Disconnect(peer));
        }
    }

    /// Records that an incarnation has ended, and releases everything held for it.
    pub(in crate::engine) fn end_incarnation(&mut self, incarnation: NodeIncarnation, loss: NodeLoss) {
        let is_news = !self.membership.pairings.has_ended(incarnation);
        let loss = self.earliest_loss(incarnation, loss);
        let was_known = self.membership.pairings.end(incarnation);
        self.home_side().record_announced(incarnation);
        self.drop_waiting_of(incarnation);
        self.fail_on_demand(incarnation);
        if !was_known {
            if is_news {
                // An owner may have reported regions of this incarnation.
                self.mapper.handle_ended(incarnation);
                // Adopted regions may list it as a mapper.
                self.home_side().request_evidence_for_all(incarnation);
            }
            if is_news && self.directory.seat() == self.out.incarnation().node {
                self.announce_end(incarnation, loss);
            }
            return;
        }
        let state = if loss.cause == LossCause::Left { NodeState::Left } else { NodeState::Dead };
        self.membership.members.end(incarnation, state, loss);
        self.mapper.handle_ended(incarnation);
        self.commands.forget_lost_replies_of(incarnation);
        self.complete_deferred();
        self.tell_directory(DirectoryEvent::Ended { incarnation, loss });
        self.announce_end(incarnation, loss);
        self.owner_side().start_sweep(incarnation);
        self.home_side().request_evidence_for_all(incarnation);
        self.home_side().reconsider_commands_after_end(incarnation);
        self.home_side().end_adoption(incarnation);
        self.pair_all();
        self.out.push(Effect::MembersChanged);
    }

    /// Returns the earliest known cause and time of the end of an incarnation, if no node witnessed the end. The
    /// incarnation may have ended when this node or the reporting node lost contact with it, before another incarnation
    /// claimed its number.
    fn earliest_loss(&self, incarnation: NodeIncarnation, loss: NodeLoss) -> NodeLoss {
        let pairing = self.membership.pairings.by_incarnation.get(&incarnation);
        let lost = pairing.and_then(|pairing| pairing.lost);
        let lost = lost.or_else(|| self.membership.members.loss_of(incarnation));
        let before = lost.filter(|lost| lost.at_ns < loss.at_ns);
        if loss.cause == LossCause::Unreachable { before.unwrap_or(loss) } else { loss }
    }

    /// Reports a loss to the directory, which may have restarted and could not forget an unknown incarnation.
    fn report_loss(&mut self, incarnation: NodeIncarnation) {
        let lost = self
            .membership
            .members
            .described(self.out.now_ns())
            .find(|member| member.incarnation == incarnation);
        let address =
            self.membership.pairings.by_incarnation.get(&incarnation).map(|pairing| pairing.address.clone());
        if let (Some(member), Some(address), false) =
            (lost, address, self.directory.seat() == self.out.incarnation().node)
        {
            let members = vec![(member, address)];
            self.cx().notify_directory(Notice::Seen { members, ended: Vec::new() });
        }
    }

    /// Announces the end of an incarnation: the directory tells all nodes, and a witness of the end tells the
    /// directory.
    fn announce_end(&mut self, incarnation: NodeIncarnation, loss: NodeLoss) {
        let seat = self.directory.seat();
        if seat == self.out.incarnation().node {
            self.cx().notify_all(&Notice::Known {
                living: Vec::new(),
                unreachable: Vec::new(),
                ended: vec![incarnation],
            });
        } else if loss.cause != LossCause::Unreachable {
            let described = self.membership.members.described(self.out.now_ns());
            let witnessed = described.filter(|member| member.incarnation == incarnation);
            // The directory has the address.
            let members = witnessed.map(|member| (member, String::new())).collect();
            self.cx().notify(seat, Notice::Seen { members, ended: vec![incarnation] });
        }
    }

    // Chunks held for other homes.

    /// Reports to a home the chunks that this node holds for it. The home may not know of them, or may have freed them
    /// while disconnected.
    fn report_held(&mut self, home: NodeIncarnation) {
        let held: Vec<(RegionId, Extents)> = self.owner.held_for(home);
        let (mut left, time_ns) = (&held[..], self.out.time_of_day_ns());
        while left.len() > HELD_PER_NOTICE_MAX {
            let (first, rest) = left.split_at(HELD_PER_NOTICE_MAX);
            self.cx()
                .notify(home.node, Notice::Held { held: first.to_vec(), done: false, seat: None, time_ns });
            left = rest;
        }
        let seat = self.seat().filter(|(seat, _)| *seat != home);
        self.cx().notify(home.node, Notice::Held { held: left.to_vec(), done: true, seat, time_ns });
    }
}
