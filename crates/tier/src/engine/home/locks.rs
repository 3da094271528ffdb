//! The home's side of locks: the queues of waiters.
//!
//! ```text
//!   caller                         home                                    waiter
//!     compare-swap 0 -> me           (not involved)
//!                                    Lock: mark the word, queue  ◄──────────┘
//!     compare-swap me -> 0 fails
//!     Unlock ─────────────────────►  give the word to the head of the queue
//!                                    Locked ──────────────────────────────►
//! ```
//!
//! The word is marked as contended exactly while the queue is not empty, so no session overtakes a waiter; see
//! [`crate::lockword`]. Requests of one session for one lock arrive in order, and a session makes one attempt at a lock
//! at a time. So if a word names a session, there are two cases: the home granted the lock for the latest request of
//! that session, or the session took the lock by compare-swap just before that request.
//!
//! A holder that loses contact knows when its guard expires: one lease after the holder sent the last message that the
//! home has acknowledged ([`lock_is_kept_until_ns`](crate::engine::Engine::lock_is_kept_until_ns)). The home waits one
//! lease, plus the maximum drift of two clocks in a lease, from the arrival of the holder's last message, which is
//! later. So the guard has expired when the home grants the lock again; this takes no message and no common time of
//! day.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::HomeSide;
use crate::ids::{NodeId, NodeIncarnation, Principal, RegionId, RequestId, Requester, SessionId};
use crate::lockword::{Holder, LockWords};
use crate::message::{ErrorReply, Reply, Request};
use crate::names::Service;
use crate::permissions::Permissions;
use crate::region::Stage;

/// Maximum drift between two clocks, as 1/32 of a duration: 3 %, where a quartz has 0.01 %.
const DRIFT_PARTS: u64 = 32;

/// The locks of this home.
#[derive(Debug, Default)]
pub(in crate::engine) struct Locks {
    /// Queues of waiters; contains no empty queues. A session waits for a lock only once, so the number of sessions
    /// limits the length.
    queues: BTreeMap<RegionId, VecDeque<Waiter>>,
    /// Locks whose current grant reported a recovery. If the grantee does not use the lock, the next grant must report
    /// it again.
    recovered: BTreeSet<RegionId>,
    /// Incarnations that are cut off but may be alive, with the time in ns at which their guards expire.
    lapsing: BTreeMap<NodeIncarnation, u64>,
}

impl Locks {
    /// Returns the earliest time in ns at which the guards of a cut-off incarnation expire, or `u64::MAX` if no
    /// incarnation is cut off.
    pub(in crate::engine) fn deadline_ns(&self) -> u64 {
        self.lapsing.values().copied().min().unwrap_or(u64::MAX)
    }

    pub(super) fn is_recovered(&self, region: RegionId) -> bool {
        self.recovered.contains(&region)
    }

    pub(super) fn record_recovered(&mut self, region: RegionId) {
        self.recovered.insert(region);
    }

    /// Forgets a lock that has moved to another home.
    pub(super) fn forget_region(&mut self, region: RegionId) {
        self.recovered.remove(&region);
    }

    pub(super) fn has_lapsing(&self, incarnation: NodeIncarnation) -> bool {
        self.lapsing.contains_key(&incarnation)
    }

    /// Returns true if a holder belongs to a cut-off incarnation that may still consider itself the holder.
    pub(super) fn is_lapsing(&self, holder: Holder) -> bool {
        self.lapsing.keys().any(|incarnation| holder.is_of(*incarnation))
    }

    /// Removes the waiting requests and returns them in order, to be repeated at the next home.
    pub(super) fn take_queue(&mut self, region: RegionId) -> Vec<(Requester, Request)> {
        let waiting = self.queues.remove(&region).unwrap_or_default();
        waiting.into_iter().map(|waiter| waiter.into_request(region)).collect()
    }
}

/// A session that waits for a lock.
#[derive(Debug)]
pub(in crate::engine) struct Waiter {
    requester: Requester,
    session: SessionId,
    principal: Principal,
    base_ns: u64,
}

impl Waiter {
    pub(in crate::engine) fn new(
        requester: Requester,
        session: SessionId,
        principal: Principal,
        base_ns: u64,
    ) -> Waiter {
        Waiter { requester, session, principal, base_ns }
    }

    fn holder(&self) -> Holder {
        Holder::new(self.requester.incarnation, self.session)
    }

    /// Returns the lock request to repeat at the next home.
    fn into_request(self, region: RegionId) -> (Requester, Request) {
        let Waiter { requester, session, principal, base_ns } = self;
        (requester, Request::Lock { region, principal, session, wait: true, base_ns })
    }
}

impl HomeSide<'_> {
    pub(in crate::engine) fn serve_lock(&mut self, waiter: Waiter, region: RegionId, wait: bool) {
        let words = match self.served_region(region, Service::Lock, Some(&waiter.principal)) {
            Ok(words) => words,
            Err(refusal) => return self.cx.answer(waiter.requester, Err(refusal)),
        };
        if wait && let Some(node) = words.holder().and_then(|holder| self.silent_node_of(holder)) {
            return self.cx.answer(waiter.requester, Err(ErrorReply::HeldBySilent(node)));
        }
        let holder = if wait { words.mark_contended() } else { words.try_take(waiter.holder()) };
        let has_lost_lock = holder.is_some_and(|holder| self.has_lost_lock(holder));
        if holder.is_none() || has_lost_lock || holder == Some(waiter.holder()) {
            let contended = self.locks.queues.contains_key(&region);
            self.grant_lock(region, &words, &waiter, contended, has_lost_lock);
        } else if wait {
            self.locks.queues.entry(region).or_default().push_back(waiter);
        } else {
            self.cx.answer(waiter.requester, Err(ErrorReply::Held));
        }
    }

    /// Returns the words of a lock or barrier of this home if `principal` may use it. `None` skips the check of
    /// permissions.
    pub(super) fn served_region(
        &self,
        region: RegionId,
        service: Service,
        principal: Option<&Principal>,
    ) -> Result<LockWords, ErrorReply> {
        let found = self.homes.regions.get(&region).ok_or(ErrorReply::NotFound)?;
        if found.busy.as_ref().is_some_and(|busy| matches!(busy.stage, Stage::Freeing)) {
            return Err(ErrorReply::NotFound);
        }
        let missing = Permissions::ATOMIC - principal.map_or(Permissions::all(), |who| found.access.of(who));
        if !missing.is_empty() {
            return Err(ErrorReply::PermissionDenied { missing });
        }
        let named = found.name.as_deref().is_some_and(|name| service.has(name));
        let window = found.extents.first().filter(|_| named).and_then(|extent| self.owner.window(extent));
        window.and_then(LockWords::new).ok_or(ErrorReply::Malformed)
    }

    fn grant_lock(
        &mut self,
        region: RegionId,
        words: &LockWords,
        waiter: &Waiter,
        contended: bool,
        recovered: bool,
    ) {
        words.give(waiter.holder(), contended);
        match recovered {
            true => self.locks.recovered.insert(region),
            false => self.locks.recovered.remove(&region),
        };
        let token = words.next_token(waiter.base_ns);
        self.cx.answer(waiter.requester, Ok(Reply::Locked { token, recovered }));
    }

    /// Returns true if a holder has certainly lost its lock: its session has ended, or its guards have expired.
    fn has_lost_lock(&self, holder: Holder) -> bool {
        let alive =
            self.cx.members().peers().map(|(_, peer)| peer.incarnation).chain([self.cx.incarnation()]);
        let lapsing = self.locks.lapsing.keys().copied();
        !alive.chain(self.cx.members().zombies()).chain(lapsing).any(|incarnation| holder.is_of(incarnation))
    }

    /// Returns the node of a holder that was silent for a lease and could not be cut off within another lease, or
    /// `None`. The node may resume at any time and still hold the lock.
    fn silent_node_of(&self, holder: Holder) -> Option<NodeId> {
        let then_ns = self.cx.now_ns().checked_sub(self.cx.lease_ns())?;
        self.cx
            .members()
            .zombies_since(then_ns)
            .find(|incarnation| holder.is_of(*incarnation))
            .map(|incarnation| incarnation.node)
    }

    /// Refuses all waiters of a lock whose holder is silent and may never return. Clears the contended bit, so that a
    /// holder that resumes can release the lock without the home.
    pub(in crate::engine) fn refuse_waiters_of_silent_holders(&mut self) {
        for region in self.locks.queues.keys().copied().collect::<Vec<_>>() {
            if !self.is_moving(region)
                && let Ok(words) = self.served_region(region, Service::Lock, None)
                && let Some(node) = words.holder().and_then(|holder| self.silent_node_of(holder))
            {
                for waiter in self.locks.queues.remove(&region).unwrap_or_default() {
                    self.cx.answer(waiter.requester, Err(ErrorReply::HeldBySilent(node)));
                }
                words.clear_contended();
            }
        }
    }

    pub(in crate::engine) fn serve_unlock(
        &mut self,
        requester: Requester,
        region: RegionId,
        session: SessionId,
        recover: bool,
    ) {
        let body = match self.served_region(region, Service::Lock, None) {
            Ok(words) if words.holder() == Some(Holder::new(requester.incarnation, session)) => {
                self.grant_next(region, &words, recover);
                Ok(Reply::Done)
            }
            Ok(_) => Err(ErrorReply::NotHeld),
            Err(refusal) => Err(refusal),
        };
        self.cx.answer(requester, body);
    }

    /// Passes the lock to the session that has waited longest, or frees it; `recovered` as in [`Reply::Locked`].
    fn grant_next(&mut self, region: RegionId, words: &LockWords, recovered: bool) {
        // While a lock is being moved, its waiters repeat their requests at the next home, which could not undo a grant
        // by this home.
        let next = match self.is_moving(region) {
            true => None,
            false => self.locks.queues.get_mut(&region).and_then(VecDeque::pop_front),
        };
        let contended = self.locks.queues.get(&region).is_some_and(|queue| !queue.is_empty());
        if !contended {
            self.locks.queues.remove(&region);
        }
        match next {
            Some(waiter) => self.grant_lock(region, words, &waiter, contended, recovered),
            // Makes the next grant report the recovery.
            None if recovered => words.give(Holder::ABANDONED, false),
            None => words.make_free(),
        }
    }

    /// Cancels a lock request. If the lock was granted, passes it on, since the requester ignores the grant.
    pub(in crate::engine) fn handle_cancelled(
        &mut self,
        from: NodeIncarnation,
        region: RegionId,
        session: SessionId,
        request: RequestId,
    ) {
        let requester = Requester { incarnation: from, id: request };
        if self.unpark(region, requester)
            || self.remove_waiters(region, |waiter| waiter.requester == requester)
        {
            return self.cx.out().end_serving(requester);
        }
        // A lock that is being moved is not granted, so a mapper that releases its bytes knows all locks that it holds.
        if !self.are_waiters_parked(region)
            && let Ok(words) = self.served_region(region, Service::Lock, None)
            && words.holder() == Some(Holder::new(from, session))
        {
            let recovered = self.locks.recovered.contains(&region);
            self.grant_next(region, &words, recovered);
        }
    }

    /// Removes the selected waiters. Returns true if it removed any.
    fn remove_waiters(&mut self, region: RegionId, is_selected: impl Fn(&Waiter) -> bool) -> bool {
        let Some(queue) = self.locks.queues.get_mut(&region) else { return false };
        let before = queue.len();
        queue.retain(|waiter| !is_selected(waiter));
        let (after, removed) = (queue.len(), queue.len() < before);
        if after == 0 {
            self.locks.queues.remove(&region);
            if let Ok(words) = self.served_region(region, Service::Lock, None) {
                words.clear_contended();
            }
        }
        removed
    }

    /// Removes the waiters and arrivals of a lost node.
    pub(in crate::engine) fn forget_waiters_of(&mut self, incarnation: NodeIncarnation) {
        for region in self.locks.queues.keys().copied().collect::<Vec<_>>() {
            self.remove_waiters(region, |waiter| waiter.requester.incarnation == incarnation);
        }
        self.forget_arrivals_of(incarnation);
    }

    /// Recovers the locks of a node that was cut off but may be alive, after its guards have expired.
    pub(in crate::engine) fn recover_locks_after_guards(
        &mut self,
        incarnation: NodeIncarnation,
        heard_ns: u64,
    ) {
        let lease_ns = self.cx.lease_ns();
        let expires_ns = heard_ns.saturating_add(lease_ns + lease_ns / DRIFT_PARTS);
        self.locks.lapsing.insert(incarnation, expires_ns);
        self.recover_overdue_locks();
    }

    /// Recovers the locks of a node that has paired again, since all its guards have expired.
    pub(in crate::engine) fn recover_locks_of_repaired(&mut self, incarnation: NodeIncarnation) {
        if self.locks.lapsing.contains_key(&incarnation) {
            self.recover_locks(incarnation);
        }
    }

    /// Recovers the locks of cut-off incarnations whose guards have expired.
    pub(in crate::engine) fn recover_overdue_locks(&mut self) {
        let now_ns = self.cx.now_ns();
        let lapsing = self.locks.lapsing.iter().filter(|(_, expires_ns)| **expires_ns <= now_ns);
        let expired: Vec<NodeIncarnation> = lapsing.map(|(incarnation, _)| *incarnation).collect();
        expired.into_iter().for_each(|incarnation| self.recover_locks(incarnation));
    }

    /// Recovers all locks of a node that no longer holds any: passes them to waiters, or else to the next requester.
    pub(in crate::engine) fn recover_locks(&mut self, incarnation: NodeIncarnation) {
        self.locks.lapsing.remove(&incarnation);
        for region in self.homes.locks.iter().copied().collect::<Vec<_>>() {
            // The bytes may be moving. The next requester will find that the holder is gone.
            if !self.is_moving(region)
                && let Ok(words) = self.served_region(region, Service::Lock, None)
                && words.holder().is_some_and(|holder| holder.is_of(incarnation))
            {
                self.grant_next(region, &words, true);
            }
        }
    }

    /// Refuses all waiters of a lock or barrier that is being freed.
    pub(super) fn refuse_waiters(&mut self, region: RegionId) {
        self.locks.recovered.remove(&region);
        for waiter in self.locks.queues.remove(&region).unwrap_or_default() {
            self.cx.answer(waiter.requester, Err(ErrorReply::NotFound));
        }
        self.end_round(region, &Err(ErrorReply::NotFound));
    }
}
