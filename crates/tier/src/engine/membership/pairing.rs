//! Pairings: what two nodes have between them, and what becomes of it when they lose sight of each other.
//!
//! ```text
//!               lease over, connection lost, the other has ended it
//!   reachable ────────────────────────────────────────────────────> ending ── cut off, grace period over ──> unreachable
//!       ▲                                                                                                  │
//!       └──────────────────────────── paired anew, under the next number ──────────────────────────────────┘
//!   any of them ── exit shown, left, forgotten, seen in a newer life ──> dead
//! ```
//!
//! The end of a pairing fails what is under way, cuts the other off from our memory, and retires what we map of its regions.
//! It ends nothing else: our regions and names stay ours, and what we hold for the other stays held.  Only the end of a
//! life frees that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use halite_fabric::PeerId;

use super::Membership;
use crate::directory::Word;
use crate::effect::{Effect, Token};
use crate::engine::Engine;
use crate::engine::deferred::Unmapping;
use crate::ids::{NodeId, NodeLife, RegionId};
use crate::layout::Extents;
use crate::members::Parting;
use crate::message::{LossCause, Member, NodeState, Notice};

/// So many lives of each node that are over are remembered: a connection that was begun before may come about after that, and a
/// node that was forgotten while it lived may come back.
const ENDED_OF_NODE_MAX: usize = 8;
/// The same of all nodes that come and go, whose numbers are never given out again.
const ENDED_PASSING_MAX: usize = 256;
/// So many nodes that another one knows are heard of at once: more are not in a cluster.
const SEEN_MAX: usize = 4096;
/// So often, once in a lease, who joins looks for those whom it could not reach.
const LOOKS_MAX: u32 = 256;
/// Most runs of chunks that are told in one message.
const HELD_PER_NOTICE_MAX: usize = 1024;

/// All lives that are not known to be over.
#[derive(Debug, Default)]
pub(in crate::engine) struct Pairings {
    by_life: BTreeMap<NodeLife, Pairing>,
    ended: Ended,
    /// Where somebody was to be found when we joined and could not be reached; and how often we shall look again, and when.
    strangers: BTreeMap<String, (u32, u64)>,
}

/// What we have with one life.
#[derive(Debug, Default)]
struct Pairing {
    /// Of the present pairing or the last; 0 before the first.
    number: u64,
    /// Where it is dialled; empty if that is not known.
    address: String,
    is_up: bool,
    /// Accesses of ours under the last pairing that may be under way.
    grace_periods: BTreeSet<Token>,
    is_dialled: bool,
    /// It is dialled when one of the two uses the other; until it has been once.
    is_on_demand: bool,
    /// The directory does not hear it either: nobody waits for it.
    is_doubtful: bool,
    /// Until when the directory, which has heard of it from others, waits for the names of its regions.
    names_due_ns: Option<u64>,
    /// Whether the directory says that the life is over: it is so for us when we lose sight of it, or its number is claimed.
    is_succeeded: bool,
}

impl Pairings {
    /// Of the present pairing with a life, or the last; 0 if there was none.
    pub(in crate::engine) fn number(&self, life: NodeLife) -> u64 {
        self.by_life.get(&life).map_or(0, |pairing| pairing.number)
    }

    pub(in crate::engine) fn has_ended(&self, life: NodeLife) -> bool {
        self.ended.contains(life)
    }

    /// Whether a life is known, and not known to be over.
    pub(in crate::engine) fn may_live(&self, life: NodeLife) -> bool {
        self.by_life.contains_key(&life)
    }

    pub(in crate::engine) fn note_address(&mut self, life: NodeLife, address: &str) {
        if let Some(pairing) = self.by_life.get_mut(&life) {
            pairing.address = address.to_owned();
        }
    }

    /// Whether somebody is being dialled, or, of those above `dialled_by`, is to dial us.
    pub(in crate::engine) fn is_dialling(&self, dialled_by: Option<NodeId>) -> bool {
        let is_to_dial = |life: &NodeLife| dialled_by.is_some_and(|own| life.node > own);
        let mut awaited = self.by_life.iter().filter(|(_, pairing)| !pairing.is_up && !pairing.is_doubtful);
        awaited.any(|(life, pairing)| !pairing.is_on_demand && (pairing.is_dialled || is_to_dial(life)))
    }

    /// A dial to that address has come about or failed.
    pub(in crate::engine) fn note_dialled(&mut self, address: &str) {
        let at = self.by_life.values_mut().filter(|pairing| pairing.address == address);
        at.for_each(|pairing| pairing.is_dialled = false);
    }

    pub(in crate::engine) fn note_up(&mut self, life: NodeLife, number: u64, address: &str) {
        let pairing = self.by_life.entry(life).or_default();
        (pairing.number, pairing.is_up, pairing.is_dialled) = (number, true, false);
        (pairing.is_doubtful, pairing.is_on_demand) = (false, false);
        pairing.address = address.to_owned();
    }

    /// Whether a member is not connected because neither has used the other.
    pub(in crate::engine) fn is_on_demand(&self, life: NodeLife) -> bool {
        self.is(life, |pairing| pairing.is_on_demand)
    }

    /// The life of a member that is connected when it is used.
    pub(in crate::engine) fn unconnected(&self, node: NodeId) -> Option<NodeLife> {
        self.lives_of(node).into_iter().find(|life| self.is_on_demand(*life))
    }

    /// The other end says which number it is.
    pub(in crate::engine) fn note_number(&mut self, life: NodeLife, number: u64) {
        if let Some(pairing) = self.by_life.get_mut(&life) {
            pairing.number = pairing.number.max(number);
        }
    }

    fn note_down(&mut self, life: NodeLife, grace_periods: impl Iterator<Item = Token>) {
        let pairing = self.by_life.entry(life).or_default();
        pairing.is_up = false;
        pairing.grace_periods.extend(grace_periods);
    }

    /// The directory says that it is over, and we see that it is not.
    fn note_succeeded(&mut self, life: NodeLife) {
        if let Some(pairing) = self.by_life.get_mut(&life) {
            pairing.is_succeeded = true;
        }
    }

    /// Whether a pairing ends with that grace.
    pub(in crate::engine) fn awaits(&self, token: Token) -> bool {
        self.by_life.values().any(|pairing| pairing.grace_periods.contains(&token))
    }

    /// A grace period is over; whether somebody may be ready for that.
    pub(in crate::engine) fn note_quiescent(&mut self, token: Token) -> bool {
        let over = self.by_life.values_mut().map(|pairing| pairing.grace_periods.remove(&token));
        over.fold(false, |any, is_over| any | is_over)
    }

    /// Other lives of the same number that are not known to be over.
    fn rivals(&self, life: NodeLife) -> Vec<NodeLife> {
        let others = self.by_life.keys().copied().filter(|other| other.node == life.node);
        others.filter(|other| other.incarnation != life.incarnation).collect()
    }

    fn is(&self, life: NodeLife, so: impl Fn(&Pairing) -> bool) -> bool {
        self.by_life.get(&life).is_some_and(so)
    }

    /// Where a node is dialled, if that is known.
    pub(in crate::engine) fn address_of(&self, node: NodeId) -> Option<&str> {
        let of = self.by_life.iter().filter(|(life, _)| life.node == node);
        of.map(|(_, pairing)| pairing.address.as_str()).find(|address| !address.is_empty())
    }

    /// Where a life is dialled, if that is known.
    pub(in crate::engine) fn address(&self, life: NodeLife) -> Option<&str> {
        self.by_life.get(&life).map(|pairing| pairing.address.as_str()).filter(|address| !address.is_empty())
    }

    /// Those of a node that are not known to be over.
    pub(in crate::engine) fn lives_of(&self, node: NodeId) -> Vec<NodeLife> {
        self.by_life.keys().copied().filter(|life| life.node == node).collect()
    }

    fn end(&mut self, life: NodeLife) -> bool {
        self.ended.insert(life);
        self.by_life.remove(&life).is_some()
    }

    /// A life that may be there, and where it is dialled.  Whether it can be known: its number may be another's by now.  The directory alone says
    /// whose it is next.
    fn note_known(&mut self, life: NodeLife, address: String, by_directory: bool) -> Option<&mut Pairing> {
        let is_there = |rival: &NodeLife| !(by_directory && self.is(*rival, |pairing| pairing.is_succeeded));
        if self.has_ended(life) || self.rivals(life).iter().any(is_there) {
            return None;
        }
        let pairing = self.by_life.entry(life).or_default();
        if pairing.address.is_empty() {
            pairing.address = address;
        }
        Some(pairing)
    }
}

/// Lives that are over, of each node the latest last.
#[derive(Debug, Default)]
struct Ended {
    staying: BTreeMap<NodeId, VecDeque<NodeLife>>,
    passing: VecDeque<NodeLife>,
}

impl Ended {
    fn of(&self, node: NodeId) -> Option<&VecDeque<NodeLife>> {
        if node.is_ephemeral() { Some(&self.passing) } else { self.staying.get(&node) }
    }

    fn contains(&self, life: NodeLife) -> bool {
        self.of(life.node).is_some_and(|ended| ended.contains(&life))
    }

    fn insert(&mut self, life: NodeLife) {
        if self.contains(life) {
            return;
        }
        let (ended, max) = match life.node.is_ephemeral() {
            true => (&mut self.passing, ENDED_PASSING_MAX),
            false => (self.staying.entry(life.node).or_default(), ENDED_OF_NODE_MAX),
        };
        if ended.len() == max {
            ended.pop_front();
        }
        ended.push_back(life);
    }

    fn all(&self) -> Vec<NodeLife> {
        self.staying.values().flatten().chain(&self.passing).copied().collect()
    }
}

impl Engine {
    // The begin.

    /// Whether nothing is in the way of a pairing with that life: nothing is left of the last, and no other life has its number.
    pub(in crate::engine) fn is_ready_for(&mut self, life: NodeLife) -> bool {
        let is_ending = self.membership.pairings.is(life, |pairing| !pairing.grace_periods.is_empty());
        let is_left = self.membership.members.is_zombie(life) || self.owner.is_running_for(life);
        if is_ending || is_left || self.membership.pairings.has_ended(life) {
            return false;
        }
        // Who has a number in use waits until the lease of its holder is over, as the directory sees it.
        let is_judge = self.directory.seat() == self.out.life().node || life.node == self.directory.seat();
        let rivals = self.membership.pairings.rivals(life);
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
            self.end_life(former, Parting::now(LossCause::Unreachable, self.out.now_ns()));
        }
        true
    }

    /// A pairing has begun, and both sides are done with what was before.
    pub(in crate::engine) fn begin_pairing(&mut self, life: NodeLife) {
        self.tell_held(life);
        self.owner_side().tell_what_was_swept(life);
        if self.membership.draining.is_on() {
            self.cx().notify(life.node, Notice::Draining { is_on: true });
        }
        self.tell_who_is_there(life);
        // What we map of its regions, or in its memory, was cut off from changes.
        for (region, home, quiesce) in self.mapper.handle_up(life) {
            self.deferred.announce(&mut self.out, quiesce, Unmapping::unasked(region, home));
        }
        self.home_side().recover_locks_of_the_returned(life);
        // It has let go of what it mapped of ours, and in our memory.
        self.owner_side().clear_of_sweeps(life);
        self.home_side().forget_evidence(life);
        self.home_side().strike_off(life);
        self.home_side().relay_anew(life);
        self.owner_side().sweep_with(life);
        self.home_side().resume_relays(life);
        self.home_side().resume_adoption(life);
    }

    /// The directory says who is of the cluster; the others learn of who comes.
    fn tell_who_is_there(&mut self, newcomer: NodeLife) {
        if self.directory.seat() != self.out.life().node {
            if self.directory.seat() == newcomer.node {
                self.tell_where_the_directory_is(newcomer);
                self.tell_whom_we_know();
            }
            return;
        }
        let known = self.introductions();
        let of_newcomer: Vec<(Member, String)> =
            known.iter().filter(|(member, _)| member.life == newcomer).cloned().collect();
        let (living, unreachable) = known.into_iter().partition(|(member, _)| self.is_heard(member.life));
        let ended = self.membership.pairings.ended.all();
        let others: Vec<NodeId> = self
            .membership
            .members
            .peers()
            .map(|(_, peer)| peer.life)
            .filter(|life| *life != newcomer)
            .map(|life| life.node)
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
        let described = members.described(self.out.now_ns()).map(|member| (member.life, member));
        let mut described: BTreeMap<NodeLife, Member> = described.collect();
        let introduced = |(life, pairing): (&NodeLife, &Pairing)| {
            let member = described.remove(life).unwrap_or_else(|| Member::unseen(*life));
            (member, pairing.address.clone())
        };
        pairings.by_life.iter().map(introduced).collect()
    }

    /// Whether it has just shown that it lives: heartbeats come every quarter of a lease.
    fn is_heard(&self, life: NodeLife) -> bool {
        let peer = self.membership.members.peer_of(life.node).filter(|(_, peer)| peer.life == life);
        peer.is_some_and(|(_, peer)| {
            self.out.now_ns().saturating_sub(peer.heard_ns) <= self.out.config().lease_ns / 2
        })
    }

    /// A node that lost sight of the directory before that was restarted would not find it.
    fn tell_where_the_directory_is(&mut self, newcomer: NodeLife) {
        let seat = self.seat().map(|(life, address)| (Member::unseen(life), address));
        let (living, unreachable, ended) = (seat.into_iter().collect(), Vec::new(), Vec::new());
        let known = Notice::Known { living, unreachable, ended };
        let others = self
            .membership
            .members
            .peers()
            .map(|(_, peer)| peer.life.node)
            .filter(|node| *node != newcomer.node);
        others.collect::<Vec<_>>().into_iter().for_each(|node| self.cx().notify(node, known.clone()));
    }

    /// The directory may have restarted, and know less than we do.  A newcomer has nothing to say.
    fn tell_whom_we_know(&mut self) {
        if self.membership.meeting.is_joining {
            return;
        }
        let seat = self.directory.seat();
        let described =
            self.membership.members.described(self.out.now_ns()).filter(|member| member.life.node != seat);
        let members = described.filter_map(|member| {
            let pairing = self.membership.pairings.by_life.get(&member.life)?;
            Some((member, pairing.address.clone()))
        });
        let (members, ended) = (members.collect(), self.membership.pairings.ended.all());
        self.cx().notify(seat, Notice::Seen { members, ended });
    }

    /// Another node knows of these that they are there, or were, or that their lives are over.  Those that come will say which names their
    /// regions have: as long as we have not heard that, a name that seems free may not be.
    pub(in crate::engine) fn handle_seen(&mut self, members: Vec<(Member, String)>, ended: Vec<NodeLife>) {
        if self.directory.seat() != self.out.life().node {
            return;
        }
        self.note_ended(ended);
        for (member, address) in members.into_iter().take(SEEN_MAX) {
            let life = member.life;
            if life.node == self.out.life().node || self.membership.pairings.may_live(life) {
                continue;
            }
            let Some(pairing) = self.membership.pairings.note_known(life, address, false) else { continue };
            pairing.is_doubtful = member.state != NodeState::Alive;
            // Who is out of sight for that node may come to us all the same.
            pairing.names_due_ns = Some(self.out.now_ns() + self.out.config().lease_ns);
            self.membership.members.note_missing(member, self.out.now_ns());
            self.tell_directory(Word::Expected(life));
        }
        self.dial_the_unreachable();
        self.out.push(Effect::MembersChanged);
    }

    /// Who has not come for a lease is not waited for: what it calls as others do will be renamed.
    pub(in crate::engine) fn expect_names_no_longer(&mut self) {
        let (now_ns, members) = (self.out.now_ns(), &self.membership.members);
        let is_over = |pairing: &Pairing| pairing.names_due_ns.is_some_and(|due_ns| due_ns < now_ns);
        let mut over = Vec::new();
        for (life, pairing) in
            self.membership.pairings.by_life.iter_mut().filter(|(_, pairing)| is_over(pairing))
        {
            pairing.names_due_ns = None;
            if !members.is_alive(*life) {
                over.push(*life);
            }
        }
        over.into_iter().for_each(|life| self.tell_directory_of_parting(life));
    }

    /// A connection has ended, or has come to nothing.
    pub(in crate::engine) fn tell_directory_of_parting(&mut self, life: NodeLife) {
        let is_expected = self.membership.pairings.is(life, |pairing| pairing.names_due_ns.is_some());
        self.tell_directory(Word::Parted { life, is_expected });
    }

    /// It has told all names of its regions.
    pub(in crate::engine) fn note_names_told(&mut self, life: NodeLife) {
        if let Some(pairing) = self.membership.pairings.by_life.get_mut(&life) {
            pairing.names_due_ns = None;
        }
        self.membership.members.note_names_told(life);
    }

    /// Others say that these lives are over.  Who is paired with us is not dead on their word alone.
    fn note_ended(&mut self, lives: impl IntoIterator<Item = NodeLife>) {
        for life in lives {
            if self.membership.members.is_alive(life) {
                self.membership.pairings.note_succeeded(life);
            } else if life != self.out.life() {
                self.end_life(life, Parting::now(LossCause::Unreachable, self.out.now_ns()));
            }
        }
    }

    /// The node that answers for the directory, and where it is dialled, if that is another node which we are paired with.
    fn seat(&self) -> Option<(NodeLife, String)> {
        let (_, seat) = self.membership.members.peer_of(self.directory.seat())?;
        let address = self.membership.pairings.by_life.get(&seat.life).map(|pairing| pairing.address.clone());
        Some((seat.life, address.unwrap_or_default()))
    }

    /// The directory says who is there, and whose life is over.  Nobody who is paired with us is dead on its word alone, unless
    /// its number is claimed here by another.
    pub(in crate::engine) fn handle_known(
        &mut self,
        from: NodeLife,
        living: Vec<(Member, String)>,
        unreachable: Vec<(Member, String)>,
        ended: Vec<NodeLife>,
    ) {
        if from.node != self.directory.seat() {
            let living = living.into_iter().map(|(member, address)| (member.life, address));
            return self.note_directory(living.collect());
        }
        let known = living.iter().chain(&unreachable).map(|(member, _)| member.life);
        let known = known.filter(|life| !self.membership.pairings.has_ended(*life));
        let succeeded = known.flat_map(|life| self.membership.pairings.rivals(life));
        // Of two that are both named as living here, neither has taken the other's number.
        let succeeded = succeeded.filter(|rival| !living.iter().any(|(member, _)| member.life == *rival));
        let over: BTreeSet<NodeLife> = succeeded.chain(ended).collect();
        self.note_ended(over);
        let doubtful = unreachable.into_iter().map(|known| (known, true));
        let mut new = Vec::new();
        for ((member, address), is_doubtful) in living.into_iter().map(|known| (known, false)).chain(doubtful)
        {
            let life = member.life;
            if life.node == self.out.life().node {
                continue;
            }
            let is_new = !self.membership.pairings.may_live(life);
            if let Some(pairing) = self.membership.pairings.note_known(life, address, true) {
                pairing.is_doubtful = is_doubtful;
                new.extend(is_new.then_some(member));
            }
        }
        self.leave_unconnected(new);
        self.dial_the_unreachable();
        self.pair_all();
        self.out.push(Effect::MembersChanged);
    }

    /// In a large cluster, those of whom we have just heard are connected when they are used.
    fn leave_unconnected(&mut self, new: Vec<Member>) {
        if self.is_full_mesh() {
            return;
        }
        let (seat, Membership { members, pairings, .. }) = (self.directory.seat(), &mut self.membership);
        for member in new.into_iter().filter(|member| member.life.node != seat) {
            let life = member.life;
            // Also one that is being met: that may come to nothing, and then neither would dial the other.
            if !members.is_alive(life) {
                pairings.by_life.entry(life).or_default().is_on_demand = true;
                members.note_unconnected(member);
            }
        }
    }

    /// Whether those who join are connected to all.
    fn is_full_mesh(&self) -> bool {
        let nodes = self.membership.pairings.by_life.len() + 1;
        self.out.config().is_full_mesh(nodes)
    }

    /// Another node says where the directory is.
    pub(in crate::engine) fn note_directory(&mut self, living: Vec<(NodeLife, String)>) {
        let seat = self.directory.seat();
        for (life, address) in living {
            let is_new =
                life.node == seat && !self.membership.pairings.has_ended(life) && !self.is_connected_to(seat);
            if is_new && life.node != self.out.life().node {
                self.membership.pairings.by_life.entry(life).or_default().address = address;
            }
        }
        self.dial_the_unreachable();
    }

    /// The higher number dials: so the two do not both do so.
    pub(in crate::engine) fn dial_the_unreachable(&mut self) {
        if self.membership.is_leaving || self.membership.meeting.is_joining {
            return;
        }
        self.look_for_strangers();
        let own = self.out.life().node;
        // Who has no connection but to the directory does not hear that it is elsewhere now.
        let is_sought = own == self.directory.seat() && !self.is_full_mesh();
        for (life, pairing) in &mut self.membership.pairings.by_life {
            let is_ours = (life.node < own || is_sought) && !pairing.is_on_demand;
            let is_ours = is_ours && !pairing.address.is_empty() && !self.membership.meeting.has(*life);
            if is_ours && !pairing.is_up && !pairing.is_dialled && pairing.grace_periods.is_empty() {
                pairing.is_dialled = true;
                self.out.push(Effect::Dial { address: pairing.address.clone() });
            }
        }
    }

    /// A dial that the engine asked for has failed.
    pub fn handle_dial_failed(&mut self, address: &str) {
        self.membership.pairings.note_dialled(address);
        self.fail_dials_to(address);
        self.settle();
    }

    /// Nobody could be reached there when we joined: somebody may be there all the same, whom nobody else knows either.
    pub fn handle_stranger(&mut self, address: &str) {
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
        let Some(life) = self.membership.members.remove(peer, state, parting, self.out.now_ns()) else {
            return;
        };
        // What a node that leaves still says to calls is heard; its connection ends by itself.
        if state != NodeState::Left {
            self.say_down(peer);
        }
        self.tell_directory_of_parting(life);
        let grace_periods = self.mapper.handle_down(life);
        self.out.extend(grace_periods.into_iter().map(Effect::Quiesce));
        if self.commands.has_copies() {
            // They may be of handles that are gone by now.
            let behind_them = self.mapper.quiesce();
            self.out.push(Effect::Quiesce(behind_them));
        }
        // Also those of regions that were dropped before, of which it has not heard.
        self.membership.pairings.note_down(life, self.mapper.grace_periods());
        self.out.end_serving_all_of(life);
        self.owner.forget_what_is_asked_by(life);
        self.membership.draining.note(life, false);
        self.home_side().forget_what_is_asked_by(life);
        self.owner.break_off_for(life);
        self.home_side().forget_waiters_of(life);
        self.home_side().forget_watcher(life);
        self.owner_side().abandon_sweeps_by(life);
        self.fail_requests_to(life);
        self.home_side().seek_for_orders_behind(life);
        if self.membership.pairings.is(life, |pairing| pairing.is_succeeded) {
            self.end_life(life, parting);
        }
        if state != NodeState::Left {
            self.tell_of_loss(life);
        }
        self.out.push(Effect::MembersChanged);
    }

    /// A grace period at the end of a pairing is over, and so are the commands that were given before.
    pub(in crate::engine) fn handle_parted(&mut self, token: Token) {
        if self.membership.pairings.note_quiescent(token) {
            self.pair_all();
        }
    }

    /// Ends the pairing with a life on our side, without a word against its process.
    pub(in crate::engine) fn part(&mut self, life: NodeLife) {
        if let Some((peer, _)) =
            self.membership.members.peer_of(life.node).filter(|(_, known)| known.life == life)
        {
            self.lose(peer, NodeState::Unreachable, Parting::now(LossCause::Unreachable, self.out.now_ns()));
            self.out.push(Effect::Disconnect(peer));
        }
    }

    /// A life is over: what we hold for it is nobody's any more.
    pub(in crate::engine) fn end_life(&mut self, life: NodeLife, parting: Parting) {
        let is_news = !self.membership.pairings.has_ended(life);
        let was_known = self.membership.pairings.end(life);
        self.drop_waiting_of(life);
        self.fail_on_demand(life);
        if !was_known {
            if is_news {
                // An owner may have spoken of its regions.
                self.mapper.handle_ended(life);
            }
            if is_news && self.directory.seat() == self.out.life().node {
                self.tell_of_end(life, parting);
            }
            return;
        }
        let state = if parting.cause == LossCause::Left { NodeState::Left } else { NodeState::Dead };
        self.membership.members.end(life, state, parting);
        self.mapper.handle_ended(life);
        self.commands.await_none_of(life);
        self.say_what_was_held();
        self.tell_directory(Word::Ended { life, parting });
        self.tell_of_end(life, parting);
        self.owner_side().start_sweep(life);
        self.home_side().seek_all_behind(life);
        self.home_side().conclude_for_owner(life);
        self.home_side().give_adoption_up(life);
        self.pair_all();
        self.out.push(Effect::MembersChanged);
    }

    /// A directory that was restarted may not know of that life, and nobody could say that it is to be forgotten.
    fn tell_of_loss(&mut self, life: NodeLife) {
        let lost = self.membership.members.described(self.out.now_ns()).find(|member| member.life == life);
        let address = self.membership.pairings.by_life.get(&life).map(|pairing| pairing.address.clone());
        if let (Some(member), Some(address), false) =
            (lost, address, self.directory.seat() == self.out.life().node)
        {
            let members = vec![(member, address)];
            self.cx().notify_directory(Notice::Seen { members, ended: Vec::new() });
        }
    }

    /// All hear of an end from the directory, which hears of it from a witness.
    fn tell_of_end(&mut self, life: NodeLife, parting: Parting) {
        let seat = self.directory.seat();
        if seat == self.out.life().node {
            self.cx().notify_all(&Notice::Known {
                living: Vec::new(),
                unreachable: Vec::new(),
                ended: vec![life],
            });
        } else if parting.cause != LossCause::Unreachable {
            self.cx().notify(seat, Notice::Seen { members: Vec::new(), ended: vec![life] });
        }
    }

    // What one holds for the other.

    /// Some of what we hold for a home it may never have heard of, or have given up while it could not tell us.
    fn tell_held(&mut self, home: NodeLife) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;

    #[test]
    fn ends_of_nodes_that_stay_are_not_forgotten_for_those_of_nodes_that_pass() {
        let life = |node, incarnation| NodeLife { node: NodeId(node), incarnation: Incarnation(incarnation) };
        let mut ended = Ended::default();
        ended.insert(life(3, 1));
        let passing = |number: u32| life(NodeId::EPHEMERAL_MIN.0 + number, 1);
        (0..10_000).for_each(|number| ended.insert(passing(number)));
        assert!(ended.contains(life(3, 1)) && ended.contains(passing(9_999)) && !ended.contains(passing(9)));
        (2..=100).for_each(|incarnation| ended.insert(life(3, incarnation)));
        assert!(!ended.contains(life(3, 1)) && ended.contains(life(3, 100)));
        assert_eq!(ended.all().len(), ENDED_OF_NODE_MAX + ENDED_PASSING_MAX);
    }
}
