//! Pairings: what two nodes have between them, and what becomes of it when they lose sight of each other.
//!
//! ```text
//!               lease over, connection lost, the other has ended it
//!   reachable ────────────────────────────────────────────────────> ending ── cut off, grace period over ──> unreachable
//!       ▲                                                                                                  │
//!       └──────────────────────────── paired anew, under the next number ──────────────────────────────────┘
//!   any of them ── exit shown, left, forgotten, seen in a newer incarnation ──> dead
//! ```
//!
//! The end of a pairing fails what is under way, cuts the other off from our memory, and retires what we map of its regions.
//! It ends nothing else: our regions and names stay ours, and what we hold for the other stays held.  Only the end of a
//! incarnation frees that.

use std::collections::{BTreeMap, BTreeSet};

use halite_fabric::PeerId;

use super::Membership;
use super::ended::Ended;
use crate::directory::Word;
use crate::effect::{Effect, Token};
use crate::engine::Engine;
use crate::engine::deferred::Unmapping;
use crate::ids::{NodeId, NodeIncarnation, RegionId};
use crate::layout::Extents;
use crate::members::Parting;
use crate::message::{LossCause, Member, NodeState, Notice};

/// So many nodes that another one knows are heard of at once: more are not in a cluster.
const SEEN_MAX: usize = 4096;
/// So often, once in a lease, who joins looks for those whom it could not reach.
const LOOKS_MAX: u32 = 256;
/// Most runs of chunks that are told in one message.
const HELD_PER_NOTICE_MAX: usize = 1024;

/// All incarnations that are not known to be over.
#[derive(Debug, Default)]
pub(in crate::engine) struct Pairings {
    by_incarnation: BTreeMap<NodeIncarnation, Pairing>,
    ended: Ended,
    /// Where somebody was to be found when we joined and could not be reached; and how often we shall look again, and when.
    strangers: BTreeMap<String, (u32, u64)>,
}

/// What we have with one incarnation.
#[derive(Debug, Default)]
struct Pairing {
    /// Of the present pairing or the last; 0 before the first.
    number: u64,
    /// Where it is dialled; empty if that is not known.
    address: String,
    is_up: bool,
    /// When it was lost sight of, since it was last up.
    lost: Option<Parting>,
    /// Since when it is missed, as far as we dial at all.
    missed_ns: Option<u64>,
    /// Accesses of ours under the last pairing that may be under way.
    grace_periods: BTreeSet<Token>,
    is_dialled: bool,
    /// How often it was dialled since it was last up, or found at another address, and when it is dialled next at the earliest.
    dials: u32,
    dial_due_ns: u64,
    /// It is dialled when one of the two uses the other; until it has been once.
    is_on_demand: bool,
    /// The directory does not hear it either: nobody waits for it.
    is_doubtful: bool,
    /// Until when the directory, which has heard of it from others, waits for the names of its regions.
    names_due_ns: Option<u64>,
    /// Whether the directory says that the incarnation is over: it is so for us when we lose sight of it, or its number is claimed.
    is_succeeded: bool,
}

impl Pairing {
    fn note_address(&mut self, address: &str) {
        if self.address != address {
            (self.dials, self.dial_due_ns) = (0, 0);
            self.address = address.to_owned();
        }
    }

    /// It is dialled now, and not again for a while: after two attempts for two or three quarters of a lease, as chance has it, so that nodes
    /// that lost each other at once do not dial at once for ever.  So two leases are enough to find each other again.
    fn note_dial(&mut self, now_ns: u64, lease_ns: u64, chance: u64, is_theirs: bool) {
        let quarters = match self.dials {
            // The other end comes more often, if it comes at all.
            _ if is_theirs => 4 + chance % 4,
            0 | 1 => 1,
            _ => 2 + chance % 2,
        };
        // Who comes for a heartbeat comes a little early now and then.
        self.dial_due_ns = now_ns + quarters * lease_ns / 4 - lease_ns / 16;
        self.dials = self.dials.saturating_add(1);
        self.is_dialled = true;
    }
}

impl Pairings {
    /// Of the present pairing with an incarnation, or the last; 0 if there was none.
    pub(in crate::engine) fn number(&self, incarnation: NodeIncarnation) -> u64 {
        self.by_incarnation.get(&incarnation).map_or(0, |pairing| pairing.number)
    }

    /// How many incarnations are not known to be over, but for this one.
    pub(in crate::engine) fn len(&self) -> usize {
        self.by_incarnation.len()
    }

    pub(in crate::engine) fn has_ended(&self, incarnation: NodeIncarnation) -> bool {
        self.ended.contains(incarnation)
    }

    /// Whether an incarnation is known, and not known to be over.
    pub(in crate::engine) fn may_live(&self, incarnation: NodeIncarnation) -> bool {
        self.by_incarnation.contains_key(&incarnation)
    }

    /// Whether an incarnation may have begun of which nobody has told yet: it is not over, and no other of its number is known.
    pub(in crate::engine) fn may_be_unheard_of(&self, incarnation: NodeIncarnation) -> bool {
        let is_known = self.may_live(incarnation) || self.has_ended(incarnation);
        !is_known && self.rivals(incarnation).is_empty()
    }

    pub(in crate::engine) fn note_address(&mut self, incarnation: NodeIncarnation, address: &str) {
        if let Some(pairing) = self.by_incarnation.get_mut(&incarnation) {
            pairing.note_address(address);
        }
    }

    /// Whether somebody is looked for there again and again.
    pub(in crate::engine) fn is_stranger(&self, address: &str) -> bool {
        self.strangers.contains_key(address)
    }

    /// A dial to that address has come about or failed.
    pub(in crate::engine) fn note_dialled(&mut self, address: &str) {
        let at = self.by_incarnation.values_mut().filter(|pairing| pairing.address == address);
        at.for_each(|pairing| pairing.is_dialled = false);
    }

    pub(in crate::engine) fn note_up(&mut self, incarnation: NodeIncarnation, number: u64, address: &str) {
        let pairing = self.by_incarnation.entry(incarnation).or_default();
        (pairing.number, pairing.is_up, pairing.is_dialled) = (number, true, false);
        (pairing.lost, pairing.missed_ns) = (None, None);
        (pairing.is_doubtful, pairing.is_on_demand) = (false, false);
        (pairing.dials, pairing.dial_due_ns) = (0, 0);
        pairing.address = address.to_owned();
    }

    /// Whether a member is not connected because neither has used the other.
    pub(in crate::engine) fn is_on_demand(&self, incarnation: NodeIncarnation) -> bool {
        self.is(incarnation, |pairing| pairing.is_on_demand)
    }

    /// The incarnation of a member that is connected when it is used.
    pub(in crate::engine) fn unconnected(&self, node: NodeId) -> Option<NodeIncarnation> {
        self.incarnations_of(node).into_iter().find(|incarnation| self.is_on_demand(*incarnation))
    }

    /// The other end says which number it is.
    pub(in crate::engine) fn note_number(&mut self, incarnation: NodeIncarnation, number: u64) {
        if let Some(pairing) = self.by_incarnation.get_mut(&incarnation) {
            pairing.number = pairing.number.max(number);
        }
    }

    fn note_down(
        &mut self,
        incarnation: NodeIncarnation,
        parting: Parting,
        grace_periods: impl Iterator<Item = Token>,
    ) {
        let pairing = self.by_incarnation.entry(incarnation).or_default();
        (pairing.is_up, pairing.lost) = (false, Some(parting));
        pairing.grace_periods.extend(grace_periods);
    }

    /// The directory says that it is over, and we see that it is not.
    fn note_succeeded(&mut self, incarnation: NodeIncarnation) {
        if let Some(pairing) = self.by_incarnation.get_mut(&incarnation) {
            pairing.is_succeeded = true;
        }
    }

    /// Whether a pairing ends with that grace.
    pub(in crate::engine) fn awaits(&self, token: Token) -> bool {
        self.by_incarnation.values().any(|pairing| pairing.grace_periods.contains(&token))
    }

    /// A grace period is over; whether somebody may be ready for that.
    pub(in crate::engine) fn note_quiescent(&mut self, token: Token) -> bool {
        let over = self.by_incarnation.values_mut().map(|pairing| pairing.grace_periods.remove(&token));
        over.fold(false, |any, is_over| any | is_over)
    }

    /// Other incarnations of the same number that are not known to be over.
    fn rivals(&self, incarnation: NodeIncarnation) -> Vec<NodeIncarnation> {
        let others = self.by_incarnation.keys().copied().filter(|other| other.node == incarnation.node);
        others.filter(|other| other.id != incarnation.id).collect()
    }

    fn is(&self, incarnation: NodeIncarnation, so: impl Fn(&Pairing) -> bool) -> bool {
        self.by_incarnation.get(&incarnation).is_some_and(so)
    }

    /// Where a node is dialled, if that is known.
    pub(in crate::engine) fn address_of(&self, node: NodeId) -> Option<&str> {
        let of = self.by_incarnation.iter().filter(|(incarnation, _)| incarnation.node == node);
        of.map(|(_, pairing)| pairing.address.as_str()).find(|address| !address.is_empty())
    }

    /// Where an incarnation is dialled, if that is known.
    pub(in crate::engine) fn address(&self, incarnation: NodeIncarnation) -> Option<&str> {
        self.by_incarnation
            .get(&incarnation)
            .map(|pairing| pairing.address.as_str())
            .filter(|address| !address.is_empty())
    }

    /// Those of a node that are not known to be over.
    pub(in crate::engine) fn incarnations_of(&self, node: NodeId) -> Vec<NodeIncarnation> {
        self.by_incarnation.keys().copied().filter(|incarnation| incarnation.node == node).collect()
    }

    /// Those of a node that are known to be over, the latest last.
    pub(in crate::engine) fn ended_of(&self, node: NodeId) -> Vec<NodeIncarnation> {
        let ended = self.ended.of(node).into_iter().flatten();
        ended.copied().filter(|incarnation| incarnation.node == node).collect()
    }

    fn end(&mut self, incarnation: NodeIncarnation) -> bool {
        self.ended.insert(incarnation);
        self.by_incarnation.remove(&incarnation).is_some()
    }

    /// An incarnation that may be there, and where it is dialled.  Whether it can be known: its number may be another's by now.  The directory alone says
    /// whose it is next.
    fn note_known(
        &mut self,
        incarnation: NodeIncarnation,
        address: String,
        by_directory: bool,
    ) -> Option<&mut Pairing> {
        let is_there =
            |rival: &NodeIncarnation| !(by_directory && self.is(*rival, |pairing| pairing.is_succeeded));
        if self.has_ended(incarnation) || self.rivals(incarnation).iter().any(is_there) {
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
    // The begin.

    /// Whether nothing is in the way of a pairing with that incarnation: nothing is left of the last, and no other incarnation has its number.
    pub(in crate::engine) fn is_ready_for(&mut self, incarnation: NodeIncarnation) -> bool {
        let is_ending = self.membership.pairings.is(incarnation, |pairing| !pairing.grace_periods.is_empty());
        let is_left =
            self.membership.members.is_zombie(incarnation) || self.owner.is_running_for(incarnation);
        if is_ending || is_left || self.membership.pairings.has_ended(incarnation) {
            return false;
        }
        // Who has a number in use waits until the lease of its holder is over, as the directory sees it.
        let is_judge =
            self.directory.seat() == self.out.incarnation().node || incarnation.node == self.directory.seat();
        let rivals = self.membership.pairings.rivals(incarnation);
        for former in &rivals {
            let is_succeeded = self.membership.pairings.is(*former, |pairing| pairing.is_succeeded);
            if self.membership.members.is_alive(*former) {
                if is_succeeded {
                    // It is cut off first.
                    self.part(*former);
                }
                return false;
            }
            if !is_judge && !is_succeeded {
                return false;
            }
        }
        for former in rivals {
            self.end_incarnation(former, Parting::now(LossCause::Unreachable, self.out.now_ns()));
        }
        true
    }

    /// A pairing has begun, and both sides are done with what was before.
    pub(in crate::engine) fn begin_pairing(&mut self, incarnation: NodeIncarnation) {
        self.tell_held(incarnation);
        self.owner_side().tell_what_was_swept(incarnation);
        if self.membership.draining.is_on() {
            self.cx().notify(incarnation.node, Notice::Draining { is_on: true });
        }
        self.tell_who_is_there(incarnation);
        // What we map of its regions, or in its memory, was cut off from changes.
        for (region, home, quiesce) in self.mapper.handle_up(incarnation) {
            self.deferred.announce(&mut self.out, quiesce, Unmapping::unasked(region, home));
        }
        self.home_side().recover_locks_of_the_returned(incarnation);
        // It has let go of what it mapped of ours, and in our memory.
        self.owner_side().clear_of_sweeps(incarnation);
        self.home_side().forget_evidence(incarnation);
        self.home_side().note_heard_of(incarnation);
        self.home_side().strike_off(incarnation);
        self.home_side().tell_of_early(incarnation);
        self.home_side().relay_anew(incarnation);
        self.owner_side().sweep_with(incarnation);
        self.home_side().resume_relays(incarnation);
        self.home_side().resume_adoption(incarnation);
    }

    /// The directory says who is of the cluster; the others learn of who comes.
    fn tell_who_is_there(&mut self, newcomer: NodeIncarnation) {
        if self.directory.seat() != self.out.incarnation().node {
            if self.directory.seat() == newcomer.node {
                self.tell_where_the_directory_is(newcomer);
                self.tell_whom_we_know();
            }
            return;
        }
        let known = self.introductions();
        let of_newcomer: Vec<(Member, String)> =
            known.iter().filter(|(member, _)| member.incarnation == newcomer).cloned().collect();
        let (living, unreachable) =
            known.into_iter().partition(|(member, _)| self.is_heard(member.incarnation));
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

    /// All that are not known to be dead, and where they are dialled.
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

    /// Whether it has just shown that it lives: heartbeats come every quarter of a lease.
    fn is_heard(&self, incarnation: NodeIncarnation) -> bool {
        let peer = self
            .membership
            .members
            .peer_of(incarnation.node)
            .filter(|(_, peer)| peer.incarnation == incarnation);
        peer.is_some_and(|(_, peer)| {
            self.out.now_ns().saturating_sub(peer.heard_ns) <= self.out.config().lease_ns / 2
        })
    }

    /// A node that lost sight of the directory before that was restarted would not find it.
    fn tell_where_the_directory_is(&mut self, newcomer: NodeIncarnation) {
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

    /// The directory may have restarted, and know less than we do.  A newcomer has nothing to say.
    fn tell_whom_we_know(&mut self) {
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

    /// Another node knows of these that they are there, or were, or that their incarnations are over.  Those that come will say which names their
    /// regions have: as long as we have not heard that, a name that seems free may not be.
    pub(in crate::engine) fn handle_seen(
        &mut self,
        members: Vec<(Member, String)>,
        ended: Vec<NodeIncarnation>,
    ) {
        if self.directory.seat() != self.out.incarnation().node {
            return;
        }
        self.note_ended(ended);
        for (member, address) in members.into_iter().take(SEEN_MAX) {
            let incarnation = member.incarnation;
            if incarnation.node == self.out.incarnation().node
                || self.membership.pairings.may_live(incarnation)
            {
                continue;
            }
            let Some(pairing) = self.membership.pairings.note_known(incarnation, address, false) else {
                continue;
            };
            pairing.is_doubtful = member.state != NodeState::Alive;
            // Who is out of sight for that node may come to us all the same.
            pairing.names_due_ns = Some(self.out.now_ns() + self.out.config().lease_ns);
            self.membership.members.note_missing(member, self.out.now_ns());
            self.tell_directory(Word::Expected(incarnation));
        }
        self.dial_the_unreachable();
        self.out.push(Effect::MembersChanged);
    }

    /// Who has not come for a lease is not waited for: what it calls as others do will be renamed.
    pub(in crate::engine) fn expect_names_no_longer(&mut self) {
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
        over.into_iter().for_each(|incarnation| self.tell_directory_of_parting(incarnation));
    }

    /// A connection has ended, or has come to nothing.
    pub(in crate::engine) fn tell_directory_of_parting(&mut self, incarnation: NodeIncarnation) {
        let is_expected = self.membership.pairings.is(incarnation, |pairing| pairing.names_due_ns.is_some());
        self.tell_directory(Word::Parted { incarnation, is_expected });
    }

    /// It has told all names of its regions.
    pub(in crate::engine) fn note_names_told(&mut self, incarnation: NodeIncarnation) {
        if let Some(pairing) = self.membership.pairings.by_incarnation.get_mut(&incarnation) {
            pairing.names_due_ns = None;
        }
        self.membership.members.note_names_told(incarnation);
    }

    /// Others say that these incarnations are over.  Who is paired with us is not dead on their word alone.
    fn note_ended(&mut self, ended: impl IntoIterator<Item = NodeIncarnation>) {
        for incarnation in ended {
            if self.membership.members.is_alive(incarnation) {
                self.membership.pairings.note_succeeded(incarnation);
            } else if incarnation != self.out.incarnation() {
                self.end_incarnation(incarnation, Parting::now(LossCause::Unreachable, self.out.now_ns()));
            }
        }
    }

    /// Somebody has had them forgotten.
    fn note_forgotten(&mut self, ended: Vec<NodeIncarnation>) {
        self.note_ended(ended.clone());
        for incarnation in
            ended.into_iter().filter(|incarnation| incarnation.node != self.out.incarnation().node)
        {
            let is_last = self.membership.pairings.incarnations_of(incarnation.node).is_empty();
            if is_last && !self.is_connected_to(incarnation.node) {
                self.membership.members.forget(incarnation.node);
            }
        }
    }

    /// The node that answers for the directory, and where it is dialled, if that is another node which we are paired with.
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

    /// The directory says who is there, and whose incarnation is over.  Nobody who is paired with us is dead on its word alone, unless
    /// its number is claimed here by another.
    pub(in crate::engine) fn handle_known(
        &mut self,
        from: NodeIncarnation,
        living: Vec<(Member, String)>,
        unreachable: Vec<(Member, String)>,
        ended: Vec<NodeIncarnation>,
    ) {
        if from.node != self.directory.seat() {
            // Without the directory's node a member may be asked to forget one, where names do not depend on that node.
            if self.directory.is_outside() && !self.is_connected_to(self.directory.seat()) {
                self.note_forgotten(ended);
            }
            let living = living.into_iter().map(|(member, address)| (member.incarnation, address));
            return self.note_directory(living.collect());
        }
        // Of one that it does not hear, a directory that was restarted may know by hearsay, from who has missed its end: that says nothing
        // against another of its number.
        let known = living.iter().map(|(member, _)| member.incarnation);
        let known = known.filter(|incarnation| !self.membership.pairings.has_ended(*incarnation));
        let succeeded = known.flat_map(|incarnation| self.membership.pairings.rivals(incarnation));
        // Of two that are both named as living here, neither has taken the other's number.
        let succeeded =
            succeeded.filter(|rival| !living.iter().any(|(member, _)| member.incarnation == *rival));
        let over: BTreeSet<NodeIncarnation> = succeeded.chain(ended).collect();
        self.note_ended(over);
        let doubtful = unreachable.into_iter().map(|known| (known, true));
        let mut new = Vec::new();
        for ((member, address), is_doubtful) in living.into_iter().map(|known| (known, false)).chain(doubtful)
        {
            let incarnation = member.incarnation;
            if incarnation.node == self.out.incarnation().node {
                continue;
            }
            let is_new = !self.membership.pairings.may_live(incarnation);
            if let Some(pairing) = self.membership.pairings.note_known(incarnation, address, true) {
                let is_back = pairing.is_doubtful && !is_doubtful;
                pairing.is_doubtful = is_doubtful;
                new.extend((is_new || is_back).then_some(member));
            }
            if is_doubtful && self.is_full_mesh() {
                // Nobody waits for it.
                self.fail_on_demand(incarnation);
            }
        }
        match self.is_full_mesh() {
            true => new.into_iter().for_each(|member| self.meet_first(member)),
            false => self.leave_unconnected(new),
        }
        self.dial_the_unreachable();
        self.pair_all();
        self.out.push(Effect::MembersChanged);
    }

    /// In a small cluster, one of whom we have just heard is met now, if the two can be: what needs it waits for that.
    fn meet_first(&mut self, member: Member) {
        let (own, incarnation) = (self.out.incarnation().node, member.incarnation);
        let Membership { members, pairings, .. } = &mut self.membership;
        let Some(pairing) = pairings.by_incarnation.get(&incarnation) else { return };
        let is_missed = pairings.strangers.contains_key(&pairing.address);
        let is_first = pairing.number == 0 && !members.is_alive(incarnation) && !is_missed;
        let address = if incarnation.node < own { &pairing.address } else { &self.out.config().address };
        if is_first && !pairing.is_doubtful && !address.is_empty() {
            members.note_awaited(member);
            self.await_first_meeting(incarnation);
        }
    }

    /// In a large cluster, those of whom we have just heard are connected when they are used.
    fn leave_unconnected(&mut self, new: Vec<Member>) {
        let (seat, Membership { members, pairings, .. }) = (self.directory.seat(), &mut self.membership);
        for member in new.into_iter().filter(|member| member.incarnation.node != seat) {
            let incarnation = member.incarnation;
            let Some(pairing) = pairings.by_incarnation.get_mut(&incarnation) else { continue };
            // Also one that is being met: that may come to nothing, and then neither would dial the other.
            if !members.is_alive(incarnation) && pairing.number == 0 {
                pairing.is_on_demand = true;
                members.note_unconnected(member);
                // Something may wait for it already.
                if self.out.is_awaited(incarnation.node) && !pairing.address.is_empty() {
                    self.out.push(Effect::Dial { address: pairing.address.clone() });
                }
            }
        }
    }

    /// Whether those who join are connected to all.
    pub(in crate::engine) fn is_full_mesh(&self) -> bool {
        self.out.config().is_full_mesh(self.membership.count())
    }

    /// Another node says where the directory is.
    pub(in crate::engine) fn note_directory(&mut self, living: Vec<(NodeIncarnation, String)>) {
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
                    .note_address(&address);
            }
        }
        self.dial_the_unreachable();
    }

    /// The higher number dials, so that the two do not both do so: after two leases the lower does so as well, now and then, for the other
    /// may take it for over, and would not come to say so.
    pub(in crate::engine) fn dial_the_unreachable(&mut self) {
        if self.membership.is_leaving || self.membership.meeting.is_joining {
            return;
        }
        self.look_for_strangers();
        self.dial_the_listed();
        let (own, now_ns, lease_ns) = (self.out.incarnation(), self.out.now_ns(), self.out.config().lease_ns);
        // Who has no connection but to the directory does not hear that it is elsewhere now.
        let is_sought = own.node == self.directory.seat() && !self.is_full_mesh();
        for (incarnation, pairing) in &mut self.membership.pairings.by_incarnation {
            if pairing.is_up {
                continue;
            }
            let missed_ns = now_ns - *pairing.missed_ns.get_or_insert(now_ns);
            let is_theirs = incarnation.node > own.node && !is_sought;
            // Who comes and goes has higher numbers than all who stay.
            let is_ours = !is_theirs || missed_ns >= 2 * lease_ns && !incarnation.node.is_ephemeral();
            let is_ours = is_ours && !pairing.is_on_demand;
            let is_ours =
                is_ours && !pairing.address.is_empty() && !self.membership.meeting.has(*incarnation);
            let is_due = pairing.dial_due_ns <= now_ns && !pairing.is_dialled;
            if is_ours && is_due && pairing.grace_periods.is_empty() {
                // Of both incarnations, so that it takes nothing from a stream of random numbers.
                let chance = (own.id.0 ^ incarnation.id.0).rotate_right(pairing.dials);
                pairing.note_dial(now_ns, lease_ns, chance, is_theirs);
                self.out.push(Effect::Dial { address: pairing.address.clone() });
            }
        }
    }

    /// A dial that the engine asked for has failed.
    pub fn handle_dial_failed(&mut self, address: &str) {
        self.membership.pairings.note_dialled(address);
        self.fail_dials_to(address);
        self.note_listed_in_vain(address);
        self.settle();
    }

    /// Nobody could be reached there when we joined: somebody may be there all the same, whom nobody else knows either.
    pub fn handle_stranger(&mut self, address: &str) {
        self.dial_again_and_again(address);
        self.fail_dials_to(address);
        self.settle();
    }

    /// We have met an incarnation, and were not paired with it: unless it is dialled in any case, it is where it has said.
    pub(in crate::engine) fn look_for(&mut self, incarnation: NodeIncarnation, address: &str) {
        let pairings = &self.membership.pairings;
        if !pairings.may_live(incarnation) && !pairings.has_ended(incarnation) {
            self.dial_again_and_again(address);
        }
    }

    fn dial_again_and_again(&mut self, address: &str) {
        let due_ns = self.out.now_ns() + self.out.config().lease_ns;
        self.membership.pairings.strangers.insert(address.to_owned(), (LOOKS_MAX, due_ns));
    }

    /// Somebody has answered at an address that was dialled.  What it shows of itself may be another one.
    pub fn handle_answered(&mut self, address: &str) {
        self.membership.pairings.strangers.remove(address);
    }

    fn look_for_strangers(&mut self) {
        let (now_ns, lease_ns) = (self.out.now_ns(), self.out.config().lease_ns);
        for (address, (looks, due_ns)) in &mut self.membership.pairings.strangers {
            if *due_ns <= now_ns {
                (*looks, *due_ns) = (*looks - 1, now_ns + lease_ns);
                self.out.push(Effect::Dial { address: address.clone() });
            }
        }
        self.membership.pairings.strangers.retain(|_, (looks, _)| *looks > 0);
    }

    // The end.

    /// We are not paired with a peer any more: what was under way to it fails.
    pub(in crate::engine) fn lose(&mut self, peer: PeerId, state: NodeState, parting: Parting) {
        let Some(incarnation) = self.membership.members.remove(peer, state, parting, self.out.now_ns())
        else {
            return;
        };
        // What a node that leaves still says to calls is heard; its connection ends by itself.
        if state != NodeState::Left {
            self.say_down(peer);
        }
        self.tell_directory_of_parting(incarnation);
        let grace_periods = self.mapper.handle_down(incarnation);
        self.out.extend(grace_periods.into_iter().map(Effect::Quiesce));
        if self.commands.has_copies() {
            // They may be of handles that are gone by now.
            let behind_them = self.mapper.quiesce();
            self.out.push(Effect::Quiesce(behind_them));
        }
        // Also those of regions that were dropped before, of which it has not heard.
        self.membership.pairings.note_down(incarnation, parting, self.mapper.grace_periods());
        self.out.end_serving_all_of(incarnation);
        self.owner.forget_what_is_asked_by(incarnation);
        self.membership.draining.note(incarnation, false);
        self.home_side().forget_what_is_asked_by(incarnation);
        self.owner.break_off_for(incarnation);
        self.home_side().forget_waiters_of(incarnation);
        self.home_side().forget_watcher(incarnation);
        self.owner_side().abandon_sweeps_by(incarnation);
        self.fail_requests_to(incarnation);
        self.home_side().seek_for_commands_behind(incarnation);
        if self.membership.pairings.is(incarnation, |pairing| pairing.is_succeeded) {
            self.end_incarnation(incarnation, parting);
        }
        if state != NodeState::Left {
            self.tell_of_loss(incarnation);
        }
        self.out.push(Effect::MembersChanged);
    }

    /// A grace period at the end of a pairing is over, and so are the commands that were given before.
    pub(in crate::engine) fn handle_parted(&mut self, token: Token) {
        if self.membership.pairings.note_quiescent(token) {
            self.pair_all();
        }
    }

    /// Ends the pairing with an incarnation on our side, without a word against its process.
    pub(in crate::engine) fn part(&mut self, incarnation: NodeIncarnation) {
        if let Some((peer, _)) = self
            .membership
            .members
            .peer_of(incarnation.node)
            .filter(|(_, known)| known.incarnation == incarnation)
        {
            self.lose(peer, NodeState::Unreachable, Parting::now(LossCause::Unreachable, self.out.now_ns()));
            self.out.push(Effect::Disconnect(peer));
        }
    }

    /// An incarnation is over: what we hold for it is nobody's any more.
    pub(in crate::engine) fn end_incarnation(&mut self, incarnation: NodeIncarnation, parting: Parting) {
        let is_news = !self.membership.pairings.has_ended(incarnation);
        let parting = self.since_it_was_lost(incarnation, parting);
        let was_known = self.membership.pairings.end(incarnation);
        self.home_side().note_heard_of(incarnation);
        self.drop_waiting_of(incarnation);
        self.fail_on_demand(incarnation);
        if !was_known {
            if is_news {
                // An owner may have spoken of its regions.
                self.mapper.handle_ended(incarnation);
                // Regions that were handed to us may list it.
                self.home_side().seek_all_behind(incarnation);
            }
            if is_news && self.directory.seat() == self.out.incarnation().node {
                self.tell_of_end(incarnation, parting);
            }
            return;
        }
        let state = if parting.cause == LossCause::Left { NodeState::Left } else { NodeState::Dead };
        self.membership.members.end(incarnation, state, parting);
        self.mapper.handle_ended(incarnation);
        self.commands.await_none_of(incarnation);
        self.say_what_was_held();
        self.tell_directory(Word::Ended { incarnation, parting });
        self.tell_of_end(incarnation, parting);
        self.owner_side().start_sweep(incarnation);
        self.home_side().seek_all_behind(incarnation);
        self.home_side().conclude_for_owner(incarnation);
        self.home_side().give_adoption_up(incarnation);
        self.pair_all();
        self.out.push(Effect::MembersChanged);
    }

    /// Where nobody saw how an incarnation ended, what is known of when is that it was lost sight of, here or where we have heard of it, and
    /// not that another has its number by now.
    fn since_it_was_lost(&self, incarnation: NodeIncarnation, parting: Parting) -> Parting {
        let pairing = self.membership.pairings.by_incarnation.get(&incarnation);
        let lost = pairing.and_then(|pairing| pairing.lost);
        let lost = lost.or_else(|| self.membership.members.parting_of(incarnation));
        let before = lost.filter(|lost| lost.at_ns < parting.at_ns);
        if parting.cause == LossCause::Unreachable { before.unwrap_or(parting) } else { parting }
    }

    /// A directory that was restarted may not know of that incarnation, and nobody could say that it is to be forgotten.
    fn tell_of_loss(&mut self, incarnation: NodeIncarnation) {
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

    /// All hear of an end from the directory, which hears of it from a witness.
    fn tell_of_end(&mut self, incarnation: NodeIncarnation, parting: Parting) {
        let seat = self.directory.seat();
        if seat == self.out.incarnation().node {
            self.cx().notify_all(&Notice::Known {
                living: Vec::new(),
                unreachable: Vec::new(),
                ended: vec![incarnation],
            });
        } else if parting.cause != LossCause::Unreachable {
            self.cx().notify(seat, Notice::Seen { members: Vec::new(), ended: vec![incarnation] });
        }
    }

    // What one holds for the other.

    /// Some of what we hold for a home it may never have heard of, or have given up while it could not tell us.
    fn tell_held(&mut self, home: NodeIncarnation) {
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
