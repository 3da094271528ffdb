//! Moves of locks and barriers: waiters repeat their requests at the next home, and no lock is granted during the move.

use super::HomeSide;
use crate::ids::{RegionId, Requester};
use crate::message::{ErrorReply, Record, Reply, Request};
use crate::names::Service;
use crate::region::Moving;

impl HomeSide<'_> {
    /// Defers a request during a move, or redirects it to the next home. Returns false if it can be served now.
    pub(in crate::engine) fn defer_or_redirect(
        &mut self,
        requester: Requester,
        region: RegionId,
        request: &Request,
    ) -> bool {
        let Some(found) = self.homes.regions.get_mut(&region) else {
            let home = self.homes.moved.home_of(region);
            home.into_iter().for_each(|home| self.cx.answer(requester, Ok(Reply::MovedTo { home })));
            return home.is_some();
        };
        let Some(moving) = found.moving_mut().filter(|moving| moving.has_started()) else { return false };
        if moving.in_doubt {
            let next = moving.to.node;
            self.cx.answer(requester, Err(ErrorReply::PeerDown(next)));
        } else {
            moving.parked.push((requester, request.clone()));
        }
        true
    }

    pub(super) fn is_moving(&self, region: RegionId) -> bool {
        self.moving(region).is_some_and(Moving::has_started)
    }

    /// Returns true if the bytes of a lock may already have moved to their new place.
    pub(super) fn are_waiters_parked(&self, region: RegionId) -> bool {
        self.moving(region).is_some_and(|moving| moving.waiters_are_parked)
    }

    fn moving(&self, region: RegionId) -> Option<&Moving> {
        self.homes.regions.get(&region).and_then(|found| found.moving())
    }

    /// Parks the waiters once the bytes are frozen. The waiters repeat their requests at the next home in order of
    /// arrival, or at this home if the move fails.
    pub(super) fn park_waiters(&mut self, region: RegionId) {
        let name = self.homes.regions[&region].name.as_deref();
        let is_service = name.is_some_and(|name| Service::Lock.has(name) || Service::Barrier.has(name));
        if !is_service {
            return;
        }
        let mut parked = self.locks.take_queue(region);
        if !parked.is_empty()
            && let Ok(words) = self.served_region(region, Service::Lock, None)
        {
            words.clear_contended();
        }
        parked.extend(self.take_arrivals(region));
        if let Some(moving) = self.homes.regions.get_mut(&region).and_then(|found| found.moving_mut()) {
            moving.waiters_are_parked = true;
            parked.append(&mut moving.parked);
            moving.parked = parked;
        }
    }

    /// Drops a parked request. Returns true if it was parked.
    pub(super) fn unpark(&mut self, region: RegionId, requester: Requester) -> bool {
        let found = self.homes.regions.get_mut(&region);
        let Some(moving) = found.and_then(|found| found.moving_mut()) else { return false };
        let before = moving.parked.len();
        moving.parked.retain(|(other, _)| *other != requester);
        moving.parked.len() < before
    }

    /// Returns true if the holder of a lock is cut off from this node and may still consider itself the holder. Only
    /// this home knows when the holder's guard expires.
    pub(super) fn is_holder_lapsing(&self, region: RegionId) -> bool {
        let words = self.served_region(region, Service::Lock, None).ok();
        let holder = words.and_then(|words| words.holder());
        holder.is_some_and(|holder| self.locks.is_lapsing(holder))
    }

    /// Adopts a lock. If a mapper that is not connected holds the lock, either the former home redirects the mapper to
    /// this home, or the mapper's guard expires within a lease.
    pub(super) fn adopt_lock(&mut self, record: &Record) {
        if !record.name.as_deref().is_some_and(|name| Service::Lock.has(name)) {
            return;
        }
        if record.recovered {
            self.locks.record_recovered(record.region);
        }
        for incarnation in record.mappers.iter().map(|mapper| mapper.incarnation) {
            let has_ended = self.cx.membership().pairings().has_ended(incarnation);
            if !self.cx.is_present(incarnation) && !has_ended && !self.locks.has_lapsing(incarnation) {
                self.recover_locks_after_guards(incarnation, self.cx.now_ns());
            }
        }
    }
}
