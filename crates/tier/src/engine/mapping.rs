//! The mapper's side: applies changes that homes and owners request.

use super::{Engine, Requester};
use crate::effect::{Effect, Quiesce};
use crate::ids::{NodeIncarnation, RegionId};
use crate::mapper::BadChange;
use crate::message::{Change, ErrorReply, Reply};

impl Engine {
    pub(super) fn serve_change(&mut self, requester: Requester, region: RegionId, change: Change) {
        if !self.is_applicable(requester.incarnation, region, &change) {
            return self.cx().answer(requester, Ok(Reply::Done));
        }
        let is_accepted = self.homes.accepts_change(region, requester.incarnation == self.out.incarnation());
        let moves_to = change.moves_to();
        match is_accepted.then(|| self.mapper.change(region, change)) {
            Some(Ok(quiesce)) => {
                self.cx().record_move(requester, moves_to);
                self.acknowledge_later(quiesce, requester)
            }
            Some(Err(BadChange)) | None => self.cx().answer(requester, Err(ErrorReply::Malformed)),
        }
    }

    /// Returns true if a change applies. A former home's announcement of the next home is ignored once the next home
    /// has announced itself.
    fn is_applicable(&self, from: NodeIncarnation, region: RegionId, change: &Change) -> bool {
        match change {
            Change::Settle { home } if *home != from => self.mapper.home_of(region) == Some(from),
            _ => true,
        }
    }

    /// Drops the mappings of chunks that `owner` held for `homes`, which have ended according to `owner`. Ended
    /// incarnations without mappings are skipped, since their regions are never mapped again.
    pub(super) fn disown(&mut self, owner: NodeIncarnation, homes: &[NodeIncarnation]) {
        let pairings = self.membership.pairings();
        let is_relevant =
            |home: &NodeIncarnation| !pairings.has_ended(*home) || self.mapper.maps_any_of(*home);
        let homes: Vec<NodeIncarnation> = homes.iter().copied().filter(is_relevant).collect();
        let disowned = self.mapper.disown(owner, &homes);
        self.out.extend(disowned.into_iter().map(Effect::Quiesce));
    }

    /// Serves an owner that knows of the end of `home`: drops only the mappings of that home's chunks in the owner's
    /// memory, and cuts no peer off.
    pub(super) fn serve_drop_home(&mut self, requester: Requester, home: NodeIncarnation) {
        self.disown(requester.incarnation, &[home]);
        let quiesce = self.mapper.quiesce();
        self.acknowledge_later(quiesce, requester);
    }

    /// Ends a pairing with a home that cannot reach this node, at the request of another node.
    pub(super) fn serve_retire(&mut self, requester: Requester, home: NodeIncarnation, pairing: u64) {
        if self.membership.pairings().number(home) <= pairing {
            self.end_pairing_with(home);
        }
        let quiesce = self.mapper.quiesce();
        self.acknowledge_later(quiesce, requester);
    }

    fn acknowledge_later(&mut self, quiesce: Quiesce, requester: Requester) {
        self.deferred.acknowledge_later(&mut self.out, quiesce, requester);
    }
}
