//! The mapper's side: what homes and owners have us let go of.

use super::{Engine, Requester};
use crate::effect::{Effect, Quiesce};
use crate::ids::{NodeLife, RegionId};
use crate::mapper::BadChange;
use crate::message::{Change, ErrorReply, Reply};

impl Engine {
    pub(super) fn serve_change(&mut self, requester: Requester, region: RegionId, change: Change) {
        if !self.is_news(requester.life, region, &change) {
            return self.cx().answer(requester, Ok(Reply::Done));
        }
        let is_heeded = self.homes.heeds_change(region, requester.life == self.out.life());
        let moves_to = change.moves_to();
        match is_heeded.then(|| self.mapper.change(region, change)) {
            Some(Ok(quiesce)) => {
                self.cx().note_move(requester, moves_to);
                self.owe(quiesce, requester)
            }
            Some(Err(BadChange)) | None => self.cx().answer(requester, Err(ErrorReply::Malformed)),
        }
    }

    /// Whether what a node says of a region's home is new: a former home says where it has gone, and is heeded only by who has heard
    /// nothing of the next one.
    fn is_news(&self, from: NodeLife, region: RegionId, change: &Change) -> bool {
        match change {
            Change::Settle { home } if *home != from => self.mapper.home_of(region) == Some(from),
            _ => true,
        }
    }

    /// An owner holds nothing for these homes any more.  Of those whose lives are over nothing new is mapped.
    pub(super) fn disown(&mut self, owner: NodeLife, homes: &[NodeLife]) {
        let pairings = self.membership.pairings();
        let is_of_use = |home: &NodeLife| !pairings.has_ended(*home) || self.mapper.maps_any_of(*home);
        let homes: Vec<NodeLife> = homes.iter().copied().filter(is_of_use).collect();
        let disowned = self.mapper.disown(owner, &homes);
        self.out.extend(disowned.into_iter().map(Effect::Quiesce));
    }

    /// A node that holds chunks for `home` found it dead.  It speaks for its memory: that we drop, and cut nobody off.
    pub(super) fn serve_drop_home(&mut self, requester: Requester, home: NodeLife) {
        self.disown(requester.life, &[home]);
        let quiesce = self.mapper.quiesce();
        self.owe(quiesce, requester);
    }

    /// A home that we do not hear has ended that pairing with us, and another node says so for it.
    pub(super) fn serve_retire(&mut self, requester: Requester, home: NodeLife, pairing: u64) {
        if self.membership.pairings().number(home) <= pairing {
            self.part(home);
        }
        let quiesce = self.mapper.quiesce();
        self.owe(quiesce, requester);
    }

    fn owe(&mut self, quiesce: Quiesce, requester: Requester) {
        self.deferred.owe(&mut self.out, quiesce, requester);
    }
}
