//! Evidence that replaces a mapper's acknowledgement when its region's home cannot reach the mapper.
//!
//! ```text
//!  home                         owners of the region's chunks               mapper
//!   (not paired with the mapper)
//!   Relay(mapper) ─────────────►  if paired:       Retire(home) ─────────►  drops all regions of the home
//!                                                  ◄──────────────── Done ┘
//!   ◄─────────────────── Retired ┘
//!   ◄──────────────────── CutOff ┘ if not paired, or without Done for two leases: once the mapper is cut off
//! ```
//!
//! A node reports only on its own memory. So a change continues when the mapper has released its mappings, or when each
//! owner of a chunk has itself cut the mapper off; silence proves nothing. An owner's report stays true until the
//! mapper pairs with the home again. It also stays true if the mapper first pairs with that owner again, because a
//! mapper drops all its mappings of an owner's memory before the two pair.

use std::collections::{BTreeMap, BTreeSet};

use super::HomeSide;
use crate::engine::context::Purpose;
use crate::ids::{NodeId, NodeIncarnation, RegionId, Requester};
use crate::message::{ErrorReply, Reply, Request};
use crate::region::{Region, Stage};

/// Leases that a command waits for evidence before the home answers that it is unfinished.
const PATIENCE_LEASES: u64 = 3;

/// Leases that an owner waits for a mapper to release its mappings. The mapper itself may wait one lease for a lost
/// node.
const PATIENCE_WITH_MAPPERS_LEASES: u64 = 2;

/// Reports requested from owners, and requests of other homes.
#[derive(Debug, Default)]
pub(in crate::engine) struct Evidence {
    /// Reports of owners, by the mapper that they concern, which is not paired with this node.
    reports: BTreeMap<NodeIncarnation, Reports>,
    /// Regions whose command waits for evidence, with the start of the wait in ns.
    stalled: BTreeMap<RegionId, u64>,
    /// Requests of homes to answer once a mapper is cut off here, each with the number of the pairing that the home
    /// lost.
    awaiting_cut_off: Vec<(Requester, NodeIncarnation, u64)>,
    /// Mappers that were asked to release their mappings. One that does not release them in time is cut off.
    relayed: Vec<Relayed>,
}

/// A mapper that was asked to release its mappings.
#[derive(Debug)]
struct Relayed {
    requester: Requester,
    to: NodeIncarnation,
    pairing: u64,
    due_ns: u64,
}

/// Reports about one mapper: the owners asked, and those that have cut it off.
#[derive(Debug, Default)]
struct Reports {
    asked: BTreeSet<NodeIncarnation>,
    cut_off: BTreeSet<NodeIncarnation>,
}

impl Evidence {
    /// Drops the requests of a home that no longer accepts replies.
    pub(in crate::engine) fn forget_requests_of(&mut self, home: NodeIncarnation) {
        self.awaiting_cut_off.retain(|(requester, ..)| requester.incarnation != home);
        self.relayed.retain(|relayed| relayed.requester.incarnation != home);
    }
}

/// The home of a region with an unreachable mapper.
impl HomeSide<'_> {
    /// Asks the other owners of the region's chunks about a mapper that is not paired with this node.
    pub(super) fn request_evidence(&mut self, region: RegionId, mapper: NodeIncarnation) {
        let pairing = self.cx.membership().pairings().number(mapper);
        // Recorded even if no owner can be asked now, since `resume_relays` asks later.
        self.evidence.reports.entry(mapper).or_default();
        for owner in self.owners_of(region) {
            if owner == self.cx.incarnation() || !self.cx.is_present(owner) {
                continue;
            }
            if self.evidence.reports.entry(mapper).or_default().asked.insert(owner) {
                let relay = Request::Relay { to: mapper, pairing };
                self.cx.ask_incarnation(owner, relay, Purpose::Relay { mapper, pairing, owner });
            }
        }
        self.drop_if_cut_off(region, mapper);
    }

    fn owners_of(&self, region: RegionId) -> BTreeSet<NodeIncarnation> {
        let extents = self.homes.regions.get(&region).into_iter().flat_map(|found| found.extents.iter());
        extents.map(|extent| extent.owner).collect()
    }

    /// Records that the command on a region waits for evidence, if not recorded already.
    pub(super) fn record_stalled(&mut self, region: RegionId) {
        self.evidence.stalled.entry(region).or_insert(self.cx.now_ns());
    }

    /// Seeks evidence for the commands that wait for a mapper whose pairing has ended.
    pub(in crate::engine) fn request_evidence_for_stalled(&mut self, mapper: NodeIncarnation) {
        let is_awaited =
            |found: &Region| found.busy.as_ref().is_some_and(|busy| busy.awaited.contains(&mapper));
        for region in self.homes.busy_where(is_awaited) {
            self.record_stalled(region);
            self.request_evidence(region, mapper);
        }
    }

    /// Removes a mapper whose incarnation has ended from each region whose owners have cut it off.
    pub(in crate::engine) fn request_evidence_for_all(&mut self, mapper: NodeIncarnation) {
        let mapped = self.regions_mapped_by(mapper);
        mapped.iter().for_each(|region| self.request_evidence(*region, mapper));
        if self.is_over(mapper) && (mapped.is_empty() || self.regions_mapped_by(mapper).is_empty()) {
            self.forget_evidence(mapper);
        }
    }

    /// Forgets the reports about an ended incarnation once no region lists it.
    fn forget_if_over(&mut self, mapper: NodeIncarnation) {
        if self.is_over(mapper) && self.regions_mapped_by(mapper).is_empty() {
            self.forget_evidence(mapper);
        }
    }

    /// Returns the regions that list a mapper, or whose command waits for the mapper, since a mapper that has just
    /// unmapped a region may still owe an acknowledgement.
    fn regions_mapped_by(&self, mapper: NodeIncarnation) -> Vec<RegionId> {
        let is_its = |found: &Region| {
            let is_awaited = found.busy.as_ref().is_some_and(|busy| busy.awaited.contains(&mapper));
            is_awaited || found.mappers.iter().any(|entry| entry.incarnation == mapper)
        };
        let found = self.homes.regions.iter().filter(|(_, found)| is_its(found));
        found.map(|(region, _)| *region).collect()
    }

    /// Handles an owner's report about a mapper.
    pub(in crate::engine) fn handle_relayed(
        &mut self,
        (mapper, pairing): (NodeIncarnation, u64),
        owner: NodeIncarnation,
        body: Result<Reply, ErrorReply>,
    ) {
        // The mapper may have paired with this node again in the meantime, and may have been lost again.
        if self.cx.membership().pairings().may_live(mapper)
            && self.cx.membership().pairings().number(mapper) != pairing
        {
            return;
        }
        let Some(reports) = self.evidence.reports.get_mut(&mapper) else { return };
        match body {
            Ok(Reply::Retired) => self.drop_mapper(mapper),
            Ok(Reply::CutOff) => {
                reports.cut_off.insert(owner);
                self.reconsider_commands_of(mapper);
            }
            _ => {
                reports.asked.remove(&owner);
            }
        }
    }

    /// Reconsiders the commands that wait for a mapper. Called when this node or an owner has cut the mapper off, or an
    /// owner has ended.
    pub(in crate::engine) fn reconsider_commands_of(&mut self, mapper: NodeIncarnation) {
        for region in self.regions_mapped_by(mapper) {
            self.drop_if_cut_off(region, mapper);
        }
        self.forget_if_over(mapper);
    }

    /// Reconsiders all waiting commands, since an owner has ended, and its memory with it.
    pub(in crate::engine) fn reconsider_commands_after_end(&mut self, owner: NodeIncarnation) {
        let mappers: Vec<NodeIncarnation> =
            self.evidence.reports.keys().copied().filter(|mapper| *mapper != owner).collect();
        mappers.into_iter().for_each(|mapper| self.reconsider_commands_of(mapper));
    }

    /// Drops a mapper from a region if it is cut off from all chunks, and has ended or a command waits for it.
    fn drop_if_cut_off(&mut self, region: RegionId, mapper: NodeIncarnation) {
        if self.cx.is_present(mapper) || !self.is_cut_off_everywhere(region, mapper) {
            return;
        }
        let is_dead = self.is_over(mapper);
        let Some(found) = self.homes.regions.get(&region) else { return };
        if is_dead || found.busy.as_ref().is_some_and(|busy| busy.awaited.contains(&mapper)) {
            self.drop_mapper_from(region, mapper);
        }
    }

    fn is_cut_off_everywhere(&self, region: RegionId, mapper: NodeIncarnation) -> bool {
        let reports = self.evidence.reports.get(&mapper);
        self.owners_of(region).into_iter().all(|owner| match owner == self.cx.incarnation() {
            true => self.is_cut_off_here(mapper),
            false => {
                !self.cx.membership().pairings().may_live(owner)
                    || reports.is_some_and(|reports| reports.cut_off.contains(&owner))
            }
        })
    }

    /// Removes a mapper, which has released its mappings, from all regions, except regions that the mapper may have
    /// mapped since then.
    pub(in crate::engine) fn drop_mapper(&mut self, mapper: NodeIncarnation) {
        for region in self.regions_mapped_by(mapper) {
            if !self.is_early(region, mapper) {
                self.drop_mapper_from(region, mapper);
            }
        }
    }

    fn drop_mapper_from(&mut self, region: RegionId, mapper: NodeIncarnation) {
        let Some(found) = self.homes.regions.get_mut(&region) else { return };
        found.mappers.retain(|entry| entry.incarnation != mapper);
        if found.busy.as_mut().is_some_and(|busy| busy.awaited.remove(&mapper)) {
            self.continue_if_acknowledged(region);
        }
        self.free_if_unreachable(region);
    }

    /// Drops the reports about a mapper that has paired with this node: they are about an earlier pairing.
    pub(in crate::engine) fn forget_evidence(&mut self, mapper: NodeIncarnation) {
        self.evidence.reports.remove(&mapper);
    }

    /// Sends the requests that an owner missed while it was not connected.
    pub(in crate::engine) fn resume_relays(&mut self, owner: NodeIncarnation) {
        let mappers: Vec<NodeIncarnation> = self.evidence.reports.keys().copied().collect();
        for mapper in mappers {
            for region in self.regions_mapped_by(mapper) {
                if self.owners_of(region).contains(&owner) {
                    self.request_evidence(region, mapper);
                }
            }
        }
    }

    /// Answers overdue commands as unfinished; their changes continue. Aborts a move instead, since other accesses
    /// wait for its frozen chunk.
    pub(in crate::engine) fn answer_stalled(&mut self) {
        let patience_ns = PATIENCE_LEASES * self.cx.lease_ns();
        let late = self.evidence.stalled.iter();
        let late: Vec<RegionId> = late
            .filter(|(_, since_ns)| self.cx.now_ns().saturating_sub(**since_ns) > patience_ns)
            .map(|(region, _)| *region)
            .collect();
        for region in late {
            match self.absent_mapper(region) {
                Some(absent) => self.answer_unfinished(region, absent.node),
                None => self.forget_stalled(region),
            }
        }
    }

    /// Restarts the measurement of a command's wait, at the start or end of a step.
    pub(super) fn forget_stalled(&mut self, region: RegionId) {
        self.evidence.stalled.remove(&region);
    }

    /// Returns an unconnected mapper that the command on a region waits for, or `None`.
    fn absent_mapper(&self, region: RegionId) -> Option<NodeIncarnation> {
        let busy = self.homes.regions.get(&region)?.busy.as_ref()?;
        busy.awaited.iter().copied().find(|incarnation| !self.cx.is_present(*incarnation))
    }

    fn answer_unfinished(&mut self, region: RegionId, absent: NodeId) {
        let busy = self.homes.regions.get_mut(&region).and_then(|found| found.busy.as_mut());
        let busy = busy.expect("a command is in flight");
        if matches!(busy.stage, Stage::Moving(_)) {
            return self.abort_move(region, ErrorReply::PeerDown(absent));
        }
        let requesters: Vec<Requester> = busy
            .requester
            .take()
            .into_iter()
            .chain(busy.queue.drain(..).map(|(requester, ..)| requester))
            .collect();
        requesters
            .into_iter()
            .for_each(|requester| self.cx.answer(requester, Err(ErrorReply::PeerDown(absent))));
    }
}

/// The owner of a chunk, asked by a home.
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
        let is_selected = |relayed: &mut Relayed| relayed.requester == requester;
        let pairing = self.evidence.relayed.extract_if(.., is_selected).last().map(|relayed| relayed.pairing);
        match (body, pairing) {
            (Ok(_), _) => self.cx.answer(requester, Ok(Reply::Retired)),
            (Err(_), Some(pairing)) => self.answer_when_cut_off(requester, to, pairing),
            (Err(_), None) => {}
        }
    }

    fn answer_when_cut_off(&mut self, requester: Requester, mapper: NodeIncarnation, pairing: u64) {
        self.evidence.awaiting_cut_off.push((requester, mapper, pairing));
        self.answer_cut_off();
    }

    /// Answers the waiting homes whose mappers are now cut off from this node's memory.
    pub(in crate::engine) fn answer_cut_off(&mut self) {
        let awaiting_cut_off = std::mem::take(&mut self.evidence.awaiting_cut_off);
        let (cut_off, awaiting_cut_off): (Vec<_>, Vec<_>) =
            awaiting_cut_off.into_iter().partition(|(_, mapper, _)| self.is_cut_off_here(*mapper));
        self.evidence.awaiting_cut_off = awaiting_cut_off;
        cut_off.into_iter().for_each(|(requester, ..)| self.cx.answer(requester, Ok(Reply::CutOff)));
    }

    /// Asks `mapper`, which has paired with this node anew, to release its mappings: once for each home that waits for
    /// its cut-off. The mapper may have mapped regions before those homes lost contact with it.
    pub(in crate::engine) fn relay_again(&mut self, mapper: NodeIncarnation) {
        let awaiting_cut_off =
            self.evidence.awaiting_cut_off.extract_if(.., |(_, other, _)| *other == mapper);
        let awaiting_cut_off: Vec<_> = awaiting_cut_off.collect();
        awaiting_cut_off
            .into_iter()
            .for_each(|(requester, to, pairing)| self.serve_relay(requester, to, pairing));
    }

    /// Returns true if a node can no longer write to this node's memory, and this node executes no command of that
    /// node.
    pub(in crate::engine) fn is_cut_off_here(&self, incarnation: NodeIncarnation) -> bool {
        let may_access = self.cx.is_present(incarnation) || self.cx.members().is_zombie(incarnation);
        !may_access
            && !self.cx.membership().meeting().may_be_used_by(incarnation)
            && !self.owner.is_running_for(incarnation)
    }

    /// Reconsiders an unconnected node: it may be cut off by now, or pair again.
    pub(in crate::engine) fn handle_reach_changed(&mut self, incarnation: NodeIncarnation) {
        if !self.cx.is_present(incarnation) {
            self.reconsider_commands_of(incarnation);
            self.answer_cut_off();
        }
    }

    /// Returns the mappers that did not release their mappings in time. The caller cuts them off, which answers the
    /// homes that wait for them.
    pub(in crate::engine) fn unresponsive_mappers(&self) -> BTreeSet<NodeIncarnation> {
        let now_ns = self.cx.now_ns();
        let overdue = self.evidence.relayed.iter().filter(|relayed| relayed.due_ns < now_ns);
        overdue.map(|relayed| relayed.to).collect()
    }
}
