//! The home's side of watching: who is to be told of what is written to a region with a notification.
//!
//! The home keeps the list only: the writer asks for it and tells all by messages.  So a notification never
//! comes before its bytes, and a slow watcher holds up those who write, not the home.

use std::collections::BTreeMap;

use super::HomeSide;
use crate::ids::{NodeIncarnation, Principal, RegionId, RequestId, Requester};
use crate::message::{ErrorReply, Reply, Request, Watcher};
use crate::permissions::Permissions;
use crate::region::{Busy, Region, Stage};

/// Most watchers of a region: a write with a notification has so many to tell.
pub const WATCHERS_MAX: usize = 4096;

/// The watchers of all regions that are at home here.
#[derive(Debug, Default)]
pub(in crate::engine) struct Watching {
    /// None is empty.
    lists: BTreeMap<RegionId, Vec<Watcher>>,
}

impl Watching {
    /// The watchers of a region, in the order in which they came.
    pub(super) fn of(&self, region: RegionId) -> &[Watcher] {
        self.lists.get(&region).map_or(&[], Vec::as_slice)
    }

    /// Lists a watcher, unless there are too many.  Who watches already is listed once.
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

    /// A node does not map the region any more: what it has asked for until then is over.
    pub(super) fn forget_unmapped(
        &mut self,
        region: RegionId,
        incarnation: NodeIncarnation,
        upto: RequestId,
    ) {
        self.retain_of(region, |watcher| watcher.incarnation != incarnation || watcher.request > upto);
    }

    /// The region is gone, or at home elsewhere.
    pub(super) fn forget_region(&mut self, region: RegionId) {
        self.lists.remove(&region);
    }

    /// A node has died or left.
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
            return self.answer_absent(requester, region);
        };
        // The record on its way to the next home does not hear of this, and the next home may have heard of others.
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
        // Who has unmapped the region meanwhile, or died, would stay on the list for ever.
        if !found.mappers.iter().any(|mapper| mapper.incarnation == requester.incarnation) {
            return Err(ErrorReply::NotFound);
        }
        self.watching.add(
            region,
            Watcher { incarnation: requester.incarnation, port, request: requester.id, principal },
        )?;
        Ok(Reply::Done)
    }

    /// Those who may not read any more are left out.
    fn list_watchers(&self, region: RegionId, principal: &Principal) -> Result<Reply, ErrorReply> {
        let found = self.permitted(region, principal, Permissions::WRITE)?;
        let may_read = |watcher: &&Watcher| found.access.of(&watcher.principal).contains(Permissions::READ);
        let watchers = self.watching.of(region).iter().filter(may_read);
        Ok(Reply::Watchers {
            watchers: watchers.map(|watcher| (watcher.incarnation, watcher.port)).collect(),
        })
    }

    /// A region that is at home here and not being freed, if `principal` has `wanted`.
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

    /// Takes over the watchers of a region whose home we become.  Who has died since is left out.
    pub(super) fn adopt_watchers(&mut self, region: RegionId, watchers: Vec<Watcher>) {
        for watcher in watchers {
            if self.cx.is_present(watcher.incarnation) {
                // More than there may be cannot come from a home that keeps to the protocol.
                let _ = self.watching.add(region, watcher);
            }
        }
    }
}
