//! The home's side of watching: the list of nodes that are notified of writes to a region.
//!
//! The home only keeps the list. The writer requests the list and sends the notifications. So a notification never
//! arrives before the written bytes, and a slow watcher delays writers but not the home.

use std::collections::BTreeMap;

use super::HomeSide;
use crate::ids::{NodeIncarnation, Principal, RegionId, RequestId, Requester};
use crate::message::{ErrorReply, Reply, Request, Watcher};
use crate::permissions::Permissions;
use crate::region::{Busy, Region, Stage};

/// Maximum number of watchers of a region, and so of messages that one write with a notification sends.
pub const WATCHERS_MAX: usize = 4096;

/// The watchers of all regions of this home.
#[derive(Debug, Default)]
pub(in crate::engine) struct Watching {
    /// Contains no empty lists.
    lists: BTreeMap<RegionId, Vec<Watcher>>,
}

impl Watching {
    /// Returns the watchers of a region, in order of registration.
    pub(super) fn of(&self, region: RegionId) -> &[Watcher] {
        self.lists.get(&region).map_or(&[], Vec::as_slice)
    }

    /// Adds a watcher, or replaces its entry. Fails if the region has the maximum number of watchers.
    fn add(&mut self, region: RegionId, watcher: Watcher) -> Result<(), ErrorReply> {
        let list = self.lists.entry(region).or_default();
        let is_same =
            |known: &Watcher| (known.incarnation, known.port) == (watcher.incarnation, watcher.port);
        match list.iter().position(is_same) {
            Some(index) => list[index] = watcher,
            None if list.len() < WATCHERS_MAX => list.push(watcher),
            None => return Err(ErrorReply::TooManyWatchers { max: WATCHERS_MAX as u64 }),
        }
        Ok(())
    }

    fn remove(&mut self, region: RegionId, incarnation: NodeIncarnation, port: u32) {
        self.retain_of(region, |watcher| (watcher.incarnation, watcher.port) != (incarnation, port));
    }

    /// Removes a node's watches requested up to `upto`, since it does not map the region any more.
    pub(super) fn forget_unmapped(
        &mut self,
        region: RegionId,
        incarnation: NodeIncarnation,
        upto: RequestId,
    ) {
        self.retain_of(region, |watcher| watcher.incarnation != incarnation || watcher.request > upto);
    }

    /// Forgets a region that is freed or homed elsewhere.
    pub(super) fn forget_region(&mut self, region: RegionId) {
        self.lists.remove(&region);
    }

    /// Forgets a node that is lost or has left.
    pub(in crate::engine) fn forget_node(&mut self, incarnation: NodeIncarnation) {
        self.lists.retain(|_, list| {
            list.retain(|watcher| watcher.incarnation != incarnation);
            !list.is_empty()
        });
    }

    fn retain_of(&mut self, region: RegionId, keep: impl Fn(&Watcher) -> bool) {
        let Some(list) = self.lists.get_mut(&region) else { return };
        list.retain(keep);
        if list.is_empty() {
            self.lists.remove(&region);
        }
    }
}

impl HomeSide<'_> {
    pub(in crate::engine) fn serve_watching(&mut self, requester: Requester, request: Request) {
        let (Request::Watch { region, .. }
        | Request::Unwatch { region, .. }
        | Request::ListWatchers { region, .. }) = request
        else {
            return self.cx.answer(requester, Err(ErrorReply::Malformed));
        };
        let Some(found) = self.homes.regions.get_mut(&region) else {
            return self.answer_unknown_region(requester, region);
        };
        // The record on its way to the next home lacks this request, and the next home may have served later ones.
        if let Some(moving) = found.moving_mut().filter(|moving| moving.adopting) {
            if moving.in_doubt {
                let next = moving.to.node;
                return self.cx.answer(requester, Err(ErrorReply::PeerDown(next)));
            }
            return moving.parked.push((requester, request));
        }
        let body = match request {
            Request::Watch { principal, port, .. } => self.watch(requester, region, principal, port),
            Request::ListWatchers { principal, .. } => self.list_watchers(region, &principal),
            Request::Unwatch { port, .. } => {
                self.watching.remove(region, requester.incarnation, port);
                Ok(Reply::Done)
            }
            _ => Err(ErrorReply::Malformed),
        };
        self.cx.answer(requester, body);
    }

    fn watch(
        &mut self,
        requester: Requester,
        region: RegionId,
        principal: Principal,
        port: u32,
    ) -> Result<Reply, ErrorReply> {
        let found = self.permitted(region, &principal, Permissions::READ)?;
        // A node that has unmapped the region or ended would stay listed forever.
        if !found.mappers.iter().any(|mapper| mapper.incarnation == requester.incarnation) {
            return Err(ErrorReply::NotFound);
        }
        self.watching.add(
            region,
            Watcher { incarnation: requester.incarnation, port, request: requester.id, principal },
        )?;
        Ok(Reply::Done)
    }

    /// Lists the watchers that may still read.
    fn list_watchers(&self, region: RegionId, principal: &Principal) -> Result<Reply, ErrorReply> {
        let found = self.permitted(region, principal, Permissions::WRITE)?;
        let may_read = |watcher: &&Watcher| found.access.of(&watcher.principal).contains(Permissions::READ);
        let watchers = self.watching.of(region).iter().filter(may_read);
        Ok(Reply::Watchers {
            watchers: watchers.map(|watcher| (watcher.incarnation, watcher.port)).collect(),
        })
    }

    /// Returns a region of this home if `principal` has the `wanted` permissions. Fails if the region is being freed.
    fn permitted(
        &self,
        region: RegionId,
        principal: &Principal,
        wanted: Permissions,
    ) -> Result<&Region, ErrorReply> {
        let found = self.homes.regions.get(&region).ok_or(ErrorReply::NotFound)?;
        if matches!(found.busy.as_deref(), Some(Busy { stage: Stage::Freeing, .. })) {
            return Err(ErrorReply::NotFound);
        }
        let missing = wanted - found.access.of(principal);
        if missing.is_empty() { Ok(found) } else { Err(ErrorReply::PermissionDenied { missing }) }
    }

    /// Adopts the watchers of a region, except watchers that are no longer connected.
    pub(super) fn adopt_watchers(&mut self, region: RegionId, watchers: Vec<Watcher>) {
        for watcher in watchers {
            if self.cx.is_present(watcher.incarnation) {
                // A conforming home sends at most the maximum.
                let _ = self.watching.add(region, watcher);
            }
        }
    }
}
