//! What stands for the acknowledgement of a mapper that its region's home does not reach.
//!
//! ```text
//!  home                         owners of the region's chunks               mapper
//!   (not paired with the mapper)
//!   Relay(mapper) ─────────────►  paired with it?  Retire(home) ─────────►  lets go of all regions of the home
//!                                                  ◄──────────────── Done ┘
//!   ◄─────────────────── Retired ┘
//!   ◄──────────────────── CutOff ┘ else, or if no answer comes within two leases: as soon as it is cut off there
//! ```
//!
//! A node speaks for its own memory only.  So a change goes on when the mapper has let go, or when each owner of a chunk
//! has itself cut the mapper off; silence says nothing.  What an owner said stays true until the mapper is paired anew with
//! the home: who is paired anew with an owner has let go of what it mapped there.

use std::collections::{BTreeMap, BTreeSet};

use super::HomeSide;
use crate::engine::context::Purpose;
use crate::ids::{NodeId, NodeIncarnation, RegionId, Requester};
use crate::message::{ErrorReply, Reply, Request};
use crate::region::Stage;

/// For so many leases a command waits for evidence before its giver is told that it is not done yet.
const PATIENCE_LEASES: u64 = 3;

/// For so many leases an owner waits until a mapper lets go: one in which the mapper may wait itself for who is gone.
const PATIENCE_WITH_MAPPERS_LEASES: u64 = 2;

/// All of it.
#[derive(Debug, Default)]
pub(in crate::engine) struct Evidence {
    /// What owners said of mappers that we are not paired with.
    of: BTreeMap<NodeIncarnation, Said>,
    /// Regions with a command under way that waits for it, and since when.
    stalled: BTreeMap<RegionId, u64>,
    /// Homes that are told when a mapper is cut off here, and the pairing of the two that has ended.
    owed: Vec<(Requester, NodeIncarnation, u64)>,
    /// Mappers that are to let go: else they are cut off.
    relayed: Vec<Relayed>,
}

/// A mapper that was told to let go.
#[derive(Debug)]
struct Relayed {
    requester: Requester,
    to: NodeIncarnation,
    pairing: u64,
    due_ns: u64,
}

/// What owners said of one mapper.
#[derive(Debug, Default)]
struct Said {
    asked: BTreeSet<NodeIncarnation>,
    cut_off: BTreeSet<NodeIncarnation>,
}

impl Evidence {
    /// Nobody takes the answers.
    pub(in crate::engine) fn forget_what_is_asked_by(&mut self, home: NodeIncarnation) {
        self.owed.retain(|(requester, ..)| requester.incarnation != home);
        self.relayed.retain(|relayed| relayed.requester.incarnation != home);
    }
}

/// The side of the home.
impl HomeSide<'_> {
    /// A command waits for a mapper that we are not paired with: asks all other owners of the region's chunks.
    pub(super) fn seek(&mut self, region: RegionId, mapper: NodeIncarnation) {
        let pairing = self.cx.membership().pairings().number(mapper);
        // Noted also where nobody can be asked now: see `resume_relays`.
        self.evidence.of.entry(mapper).or_default();
        for owner in self.owners_of(region) {
            if owner == self.cx.incarnation() || !self.cx.is_present(owner) {
                continue;
            }
            if self.evidence.of.entry(mapper).or_default().asked.insert(owner) {
                let relay = Request::Relay { to: mapper, pairing };
                self.cx.ask_incarnation(owner, relay, Purpose::Relay { mapper, pairing, owner });
            }
        }
        self.conclude(region, mapper);
    }

    fn owners_of(&self, region: RegionId) -> BTreeSet<NodeIncarnation> {
        let extents = self.homes.regions.get(&region).into_iter().flat_map(|found| found.extents.iter());
        extents.map(|extent| extent.owner).collect()
    }

    /// The command under way on a region waits for evidence.
    pub(super) fn note_stalled(&mut self, region: RegionId) {
        self.evidence.stalled.entry(region).or_insert(self.cx.now_ns());
    }

    /// Orders have waited for who is not paired with us any more.
    pub(in crate::engine) fn seek_for_commands_behind(&mut self, mapper: NodeIncarnation) {
        for region in
            self.regions_where(|found| found.busy.as_ref().is_some_and(|busy| busy.awaited.contains(&mapper)))
        {
            self.note_stalled(region);
            self.seek(region, mapper);
        }
    }

    /// A mapper is dead: it is struck off as soon as nobody can still be touched by it.
    pub(in crate::engine) fn seek_all_behind(&mut self, mapper: NodeIncarnation) {
        for region in self.regions_mapped_by(mapper) {
            self.seek(region, mapper);
        }
        self.forget_if_over(mapper);
    }

    /// Nobody asks any more what others said of the dead.
    fn forget_if_over(&mut self, mapper: NodeIncarnation) {
        if self.is_over(mapper) && self.regions_mapped_by(mapper).is_empty() {
            self.forget_evidence(mapper);
        }
    }

    /// Regions that list a mapper, or whose commands wait for it: who has just unmapped a region may still owe a word.
    fn regions_mapped_by(&self, mapper: NodeIncarnation) -> Vec<RegionId> {
        self.regions_where(|found| {
            let is_awaited = found.busy.as_ref().is_some_and(|busy| busy.awaited.contains(&mapper));
            is_awaited || found.mappers.iter().any(|entry| entry.incarnation == mapper)
        })
    }

    fn regions_where(&self, is_one: impl Fn(&crate::region::Region) -> bool) -> Vec<RegionId> {
        let found = self.homes.regions.iter().filter(|(_, found)| is_one(found));
        found.map(|(region, _)| *region).collect()
    }

    /// An owner has answered.
    pub(in crate::engine) fn handle_relayed(
        &mut self,
        (mapper, pairing): (NodeIncarnation, u64),
        owner: NodeIncarnation,
        body: Result<Reply, ErrorReply>,
    ) {
        // It may have been paired with us anew since, and may be lost again.
        if self.cx.membership().pairings().may_live(mapper)
            && self.cx.membership().pairings().number(mapper) != pairing
        {
            return;
        }
        let Some(said) = self.evidence.of.get_mut(&mapper) else { return };
        match body {
            Ok(Reply::Retired) => self.strike_off(mapper),
            Ok(Reply::CutOff) => {
                said.cut_off.insert(owner);
                self.conclude_for(mapper);
            }
            _ => {
                said.asked.remove(&owner);
            }
        }
    }

    /// A mapper is cut off here, or elsewhere, or an owner is dead.
    pub(in crate::engine) fn conclude_for(&mut self, mapper: NodeIncarnation) {
        for region in self.regions_mapped_by(mapper) {
            self.conclude(region, mapper);
        }
        self.forget_if_over(mapper);
    }

    /// An owner is dead, and its memory with it.
    pub(in crate::engine) fn conclude_for_owner(&mut self, owner: NodeIncarnation) {
        let mappers: Vec<NodeIncarnation> =
            self.evidence.of.keys().copied().filter(|mapper| *mapper != owner).collect();
        mappers.into_iter().for_each(|mapper| self.conclude_for(mapper));
    }

    /// Strikes a mapper off a region if it is dead, or a command waits for it, and it reaches none of the chunks.
    fn conclude(&mut self, region: RegionId, mapper: NodeIncarnation) {
        if self.cx.is_present(mapper) || !self.is_cut_off_everywhere(region, mapper) {
            return;
        }
        let is_dead = self.is_over(mapper);
        let Some(found) = self.homes.regions.get(&region) else { return };
        if is_dead || found.busy.as_ref().is_some_and(|busy| busy.awaited.contains(&mapper)) {
            self.strike_off_one(region, mapper);
        }
    }

    fn is_cut_off_everywhere(&self, region: RegionId, mapper: NodeIncarnation) -> bool {
        let said = self.evidence.of.get(&mapper);
        self.owners_of(region).into_iter().all(|owner| match owner == self.cx.incarnation() {
            true => self.is_cut_off_here(mapper),
            false => {
                !self.cx.membership().pairings().may_live(owner)
                    || said.is_some_and(|said| said.cut_off.contains(&owner))
            }
        })
    }

    /// A mapper has let go of all regions of ours, but for those that it may map since.
    pub(in crate::engine) fn strike_off(&mut self, mapper: NodeIncarnation) {
        for region in self.regions_mapped_by(mapper) {
            if !self.is_early(region, mapper) {
                self.strike_off_one(region, mapper);
            }
        }
    }

    fn strike_off_one(&mut self, region: RegionId, mapper: NodeIncarnation) {
        let Some(found) = self.homes.regions.get_mut(&region) else { return };
        found.mappers.retain(|entry| entry.incarnation != mapper);
        if found.busy.as_mut().is_some_and(|busy| busy.awaited.remove(&mapper)) {
            self.go_on_if_acknowledged(region);
        }
        self.free_if_unreachable(region);
    }

    /// The two are paired anew, or have never been: what others said of a mapper counts no more.
    pub(in crate::engine) fn forget_evidence(&mut self, mapper: NodeIncarnation) {
        self.evidence.of.remove(&mapper);
    }

    /// An owner is reached again: it is asked what it could not be asked before.
    pub(in crate::engine) fn resume_relays(&mut self, owner: NodeIncarnation) {
        let mappers: Vec<NodeIncarnation> = self.evidence.of.keys().copied().collect();
        for mapper in mappers {
            for region in self.regions_mapped_by(mapper) {
                if self.owners_of(region).contains(&owner) {
                    self.seek(region, mapper);
                }
            }
        }
    }

    /// The giver of a command is told in time that it may take longer; the change goes on all the same.  A move is taken back:
    /// others wait for the chunk that it has frozen.
    pub(in crate::engine) fn excuse_the_stalled(&mut self) {
        let patience_ns = PATIENCE_LEASES * self.cx.lease_ns();
        let late = self.evidence.stalled.iter();
        let late: Vec<RegionId> = late
            .filter(|(_, since_ns)| self.cx.now_ns().saturating_sub(**since_ns) > patience_ns)
            .map(|(region, _)| *region)
            .collect();
        for region in late {
            match self.absent_behind(region) {
                Some(behind) => self.excuse(region, behind.node),
                None => self.forget_stalled(region),
            }
        }
    }

    /// A step of a command begins, or ends: how long the one before it waited is not held against it.
    pub(super) fn forget_stalled(&mut self, region: RegionId) {
        self.evidence.stalled.remove(&region);
    }

    /// Somebody that the command on a region waits for, and that we are not paired with.
    fn absent_behind(&self, region: RegionId) -> Option<NodeIncarnation> {
        let busy = self.homes.regions.get(&region)?.busy.as_ref()?;
        busy.awaited.iter().copied().find(|incarnation| !self.cx.is_present(*incarnation))
    }

    fn excuse(&mut self, region: RegionId, behind: NodeId) {
        let busy = self.homes.regions.get_mut(&region).and_then(|found| found.busy.as_mut());
        let busy = busy.expect("a command is under way on it");
        if matches!(busy.stage, Stage::Moving(_)) {
            return self.take_back(region, ErrorReply::PeerDown(behind));
        }
        let requesters: Vec<Requester> = busy
            .requester
            .take()
            .into_iter()
            .chain(busy.queue.drain(..).map(|(requester, ..)| requester))
            .collect();
        requesters
            .into_iter()
            .for_each(|requester| self.cx.answer(requester, Err(ErrorReply::PeerDown(behind))));
    }
}

/// The side of an owner.
impl HomeSide<'_> {
    pub(in crate::engine) fn serve_relay(&mut self, requester: Requester, to: NodeIncarnation, pairing: u64) {
        if to == self.cx.incarnation() || !self.cx.is_present(to) {
            return self.answer_when_cut_off(requester, to, pairing);
        }
        let due_ns = self.cx.now_ns() + PATIENCE_WITH_MAPPERS_LEASES * self.cx.lease_ns();
        self.evidence.relayed.push(Relayed { requester, to, pairing, due_ns });
        self.cx.ask_incarnation(
            to,
            Request::Retire { home: requester.incarnation, pairing },
            Purpose::Retire(requester, to),
        );
    }

    pub(in crate::engine) fn handle_retired(
        &mut self,
        requester: Requester,
        to: NodeIncarnation,
        body: Result<Reply, ErrorReply>,
    ) {
        let is_one = |relayed: &mut Relayed| relayed.requester == requester;
        let pairing = self.evidence.relayed.extract_if(.., is_one).last().map(|relayed| relayed.pairing);
        match (body, pairing) {
            (Ok(_), _) => self.cx.answer(requester, Ok(Reply::Retired)),
            (Err(_), Some(pairing)) => self.answer_when_cut_off(requester, to, pairing),
            (Err(_), None) => {}
        }
    }

    fn answer_when_cut_off(&mut self, requester: Requester, mapper: NodeIncarnation, pairing: u64) {
        self.evidence.owed.push((requester, mapper, pairing));
        self.answer_for_the_cut_off();
    }

    /// Tells those who wait for it that a mapper is cut off here.
    pub(in crate::engine) fn answer_for_the_cut_off(&mut self) {
        let owed = std::mem::take(&mut self.evidence.owed);
        let (over, owed): (Vec<_>, Vec<_>) =
            owed.into_iter().partition(|(_, mapper, _)| self.is_cut_off_here(*mapper));
        self.evidence.owed = owed;
        over.into_iter().for_each(|(requester, ..)| self.cx.answer(requester, Ok(Reply::CutOff)));
    }

    /// A mapper is paired with this node again.  It may have mapped the region before its home lost sight of it, so it is asked.
    pub(in crate::engine) fn relay_anew(&mut self, mapper: NodeIncarnation) {
        let owed = self.evidence.owed.extract_if(.., |(_, other, _)| *other == mapper);
        let owed: Vec<_> = owed.collect();
        owed.into_iter().for_each(|(requester, to, pairing)| self.serve_relay(requester, to, pairing));
    }

    /// Whether nothing of a node can land in our memory, and nothing that it ordered is done there.
    pub(in crate::engine) fn is_cut_off_here(&self, incarnation: NodeIncarnation) -> bool {
        let is_there = self.cx.is_present(incarnation) || self.cx.members().is_zombie(incarnation);
        !is_there
            && !self.cx.membership().meeting().may_be_used_by(incarnation)
            && !self.owner.is_running_for(incarnation)
    }

    /// A node that is not there may be cut off here by now, and may be paired anew.
    pub(in crate::engine) fn handle_reach_changed(&mut self, incarnation: NodeIncarnation) {
        if !self.cx.is_present(incarnation) {
            self.conclude_for(incarnation);
            self.answer_for_the_cut_off();
        }
    }

    /// Those who have not let go in time, though we asked them ourselves.  Their answers find the homes that wait for them.
    pub(in crate::engine) fn deaf_mappers(&self) -> BTreeSet<NodeIncarnation> {
        let now_ns = self.cx.now_ns();
        let deaf = self.evidence.relayed.iter().filter(|relayed| relayed.due_ns < now_ns);
        deaf.map(|relayed| relayed.to).collect()
    }
}
