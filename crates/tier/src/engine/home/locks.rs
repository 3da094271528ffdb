//! The home's side of locks: who waits, in order, and who is next.
//!
//! ```text
//!   caller                         home                                    who waits
//!     compare-swap 0 -> me           (knows nothing of it)
//!                                    Lock: mark the word, queue  ◄──────────┘
//!     compare-swap me -> 0 fails
//!     Unlock ─────────────────────►  give the word to the first in the queue
//!                                    Locked ──────────────────────────────►
//! ```
//!
//! The word is marked exactly while the queue is not empty, so that nobody overtakes; see [`crate::lockword`].  What
//! one session says about one lock arrives in order, and a session tries for a lock once at a time: so a word that holds
//! its name was given to it for what it asked last, or taken by itself just before it asked.
//!
//! A holder that loses sight of the home knows by itself when its guard is over: a lease after it has said the last that the home
//! has heard for sure ([`lock_is_kept_until_ns`](crate::engine::Engine::lock_is_kept_until_ns)).  The home counts from the last that it has heard, which is later, and waits
//! for as much longer as two clocks may differ in a lease.  So neither needs the other's word, nor its time of day.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::HomeSide;
use crate::ids::{NodeId, NodeIncarnation, Principal, RegionId, RequestId, Requester, SessionId};
use crate::lockword::{Holder, LockWords};
use crate::message::{ErrorReply, Reply, Request};
use crate::names::Service;
use crate::permissions::Permissions;
use crate::region::Stage;

/// By no more than one part of so many do the clocks of two nodes run differently: 3 %, where a quartz has 0.01 %.
const DRIFT_PARTS: u64 = 32;

/// All locks of this home for which somebody waits.
#[derive(Debug, Default)]
pub(in crate::engine) struct Locks {
    /// None is empty.  A session waits once for a lock, so that sessions bound the length.
    queues: BTreeMap<RegionId, VecDeque<Waiter>>,
    /// Locks that were given away as recovered: if they come back without having been used, the next must be told.
    recovered: BTreeSet<RegionId>,
    /// Incarnations that are cut off and may live, and until when they may take themselves for holders.
    lapsing: BTreeMap<NodeIncarnation, u64>,
}

impl Locks {
    /// When the guards of somebody who is cut off are over.
    pub(in crate::engine) fn deadline_ns(&self) -> u64 {
        self.lapsing.values().copied().min().unwrap_or(u64::MAX)
    }

    pub(super) fn is_recovered(&self, region: RegionId) -> bool {
        self.recovered.contains(&region)
    }

    pub(super) fn note_recovered(&mut self, region: RegionId) {
        self.recovered.insert(region);
    }

    /// The lock has another home.
    pub(super) fn forget_region(&mut self, region: RegionId) {
        self.recovered.remove(&region);
    }

    pub(super) fn has_lapsing(&self, incarnation: NodeIncarnation) -> bool {
        self.lapsing.contains_key(&incarnation)
    }

    /// Whether a holder is of an incarnation that is cut off here and may take itself for a holder.
    pub(super) fn is_of_the_lapsing(&self, holder: Holder) -> bool {
        self.lapsing.keys().any(|incarnation| holder.is_of(*incarnation))
    }

    /// Those who wait ask anew, in their order.
    pub(super) fn take_queue(&mut self, region: RegionId) -> Vec<(Requester, Request)> {
        let waiting = self.queues.remove(&region).unwrap_or_default();
        waiting.into_iter().map(|waiter| waiter.into_request(region)).collect()
    }
}

/// Who wants a lock.
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

    /// What it has asked, to be asked anew.
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
        let is_gone = holder.is_some_and(|holder| self.is_gone(holder));
        if holder.is_none() || is_gone || holder == Some(waiter.holder()) {
            let contended = self.locks.queues.contains_key(&region);
            self.give_lock(region, &words, &waiter, contended, is_gone);
        } else if wait {
            self.locks.queues.entry(region).or_default().push_back(waiter);
        } else {
            self.cx.answer(waiter.requester, Err(ErrorReply::Held));
        }
    }

    /// The memory of a lock or barrier that is here, if `principal` (or anybody) may use it.
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

    fn give_lock(
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

    /// Whether a holder can do nothing under its lock any more: its session has ended, or its node is cut off and knows that its
    /// guards are over.
    fn is_gone(&self, holder: Holder) -> bool {
        let alive =
            self.cx.members().peers().map(|(_, peer)| peer.incarnation).chain([self.cx.incarnation()]);
        let lapsing = self.locks.lapsing.keys().copied();
        !alive.chain(self.cx.members().zombies()).chain(lapsing).any(|incarnation| holder.is_of(incarnation))
    }

    /// The node of a holder if that was silent for a lease, and in another one could not be cut off: it may go on under its
    /// lock when it wakes, and nobody knows when that is.
    fn silent_node_of(&self, holder: Holder) -> Option<NodeId> {
        let then_ns = self.cx.now_ns().checked_sub(self.cx.lease_ns())?;
        self.cx
            .members()
            .zombies_since(then_ns)
            .find(|incarnation| holder.is_of(*incarnation))
            .map(|incarnation| incarnation.node)
    }

    /// Nobody waits for ever for who may be silent for ever.  The mark goes with those who waited: a holder that wakes
    /// gives the lock up by itself.
    pub(in crate::engine) fn refuse_those_behind_the_silent(&mut self) {
        for region in self.locks.queues.keys().copied().collect::<Vec<_>>() {
            if !self.is_on_the_move(region)
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
                self.pass_on(region, &words, recover);
                Ok(Reply::Done)
            }
            Ok(_) => Err(ErrorReply::NotHeld),
            Err(refusal) => Err(refusal),
        };
        self.cx.answer(requester, body);
    }

    /// Gives the lock to the session that has waited longest.
    fn pass_on(&mut self, region: RegionId, words: &LockWords, recovered: bool) {
        // Those who wait for a lock that is about to move ask again at its next home: nobody is told here any more that it
        // is his, for who does not want it could not say so there.
        let next = match self.is_on_the_move(region) {
            true => None,
            false => self.locks.queues.get_mut(&region).and_then(VecDeque::pop_front),
        };
        let contended = self.locks.queues.get(&region).is_some_and(|queue| !queue.is_empty());
        if !contended {
            self.locks.queues.remove(&region);
        }
        match next {
            Some(waiter) => self.give_lock(region, words, &waiter, contended, recovered),
            // The next to ask is to know that it is recovered.
            None if recovered => words.give(Holder::NOBODY, false),
            None => words.make_free(),
        }
    }

    /// A request to lock is not wanted any more.  If it has been granted, the session that made it has not heard of
    /// that, and will not.
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
        // Nobody is told that a lock is his once it is to be moved, so that who lets go of its bytes knows of each lock that is his.
        if !self.is_parked(region)
            && let Ok(words) = self.served_region(region, Service::Lock, None)
            && words.holder() == Some(Holder::new(from, session))
        {
            let recovered = self.locks.recovered.contains(&region);
            self.pass_on(region, &words, recovered);
        }
    }

    /// Whether there were any.
    fn remove_waiters(&mut self, region: RegionId, is_one: impl Fn(&Waiter) -> bool) -> bool {
        let Some(queue) = self.locks.queues.get_mut(&region) else { return false };
        let before = queue.len();
        queue.retain(|waiter| !is_one(waiter));
        let (after, removed) = (queue.len(), queue.len() < before);
        if after == 0 {
            self.locks.queues.remove(&region);
            if let Ok(words) = self.served_region(region, Service::Lock, None) {
                words.clear_contended();
            }
        }
        removed
    }

    /// A node has died: its sessions wait for nothing any more.
    pub(in crate::engine) fn forget_waiters_of(&mut self, incarnation: NodeIncarnation) {
        for region in self.locks.queues.keys().copied().collect::<Vec<_>>() {
            self.remove_waiters(region, |waiter| waiter.requester.incarnation == incarnation);
        }
        self.forget_arrivals_of(incarnation);
    }

    /// A node was cut off, and may live: it keeps its locks until it has seen by itself that its guards are over.
    pub(in crate::engine) fn recover_locks_when_guards_are_over(
        &mut self,
        incarnation: NodeIncarnation,
        heard_ns: u64,
    ) {
        let lease_ns = self.cx.lease_ns();
        let over_ns = heard_ns.saturating_add(lease_ns + lease_ns / DRIFT_PARTS);
        self.locks.lapsing.insert(incarnation, over_ns);
        self.recover_overdue_locks();
    }

    /// A node is paired with us anew: its guards are over, all of them.
    pub(in crate::engine) fn recover_locks_of_the_returned(&mut self, incarnation: NodeIncarnation) {
        if self.locks.lapsing.contains_key(&incarnation) {
            self.recover_locks(incarnation);
        }
    }

    /// Hands over what those held whose guards are over by now.
    pub(in crate::engine) fn recover_overdue_locks(&mut self) {
        let now_ns = self.cx.now_ns();
        let lapsing = self.locks.lapsing.iter().filter(|(_, over_ns)| **over_ns <= now_ns);
        let over: Vec<NodeIncarnation> = lapsing.map(|(incarnation, _)| *incarnation).collect();
        over.into_iter().for_each(|incarnation| self.recover_locks(incarnation));
    }

    /// A node holds nothing any more: what it held goes to those who wait for it, or ask next.
    pub(in crate::engine) fn recover_locks(&mut self, incarnation: NodeIncarnation) {
        self.locks.lapsing.remove(&incarnation);
        let is_lock = |name: &str| Service::Lock.has(name);
        let named = self.homes.regions.iter().filter(|(_, found)| found.name.as_deref().is_some_and(is_lock));
        for region in named.map(|(region, _)| *region).collect::<Vec<_>>() {
            // Whose bytes may be on their way: who asks for it next finds that its holder is gone.
            if !self.is_on_the_move(region)
                && let Ok(words) = self.served_region(region, Service::Lock, None)
                && words.holder().is_some_and(|holder| holder.is_of(incarnation))
            {
                self.pass_on(region, &words, true);
            }
        }
    }

    /// The region of a lock or barrier is being freed.
    pub(super) fn refuse_waiters(&mut self, region: RegionId) {
        self.locks.recovered.remove(&region);
        for waiter in self.locks.queues.remove(&region).unwrap_or_default() {
            self.cx.answer(waiter.requester, Err(ErrorReply::NotFound));
        }
        self.end_round(region, &Err(ErrorReply::NotFound));
    }
}
