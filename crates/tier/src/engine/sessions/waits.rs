//! Commands that wait for a lock or at a barrier, and commands that release a lock.
//!
//! A wait may last arbitrarily long. When a session withdraws the command, the command ends at once, and this node
//! notifies the home.

use std::collections::BTreeMap;

use super::{SessionSide, UserStep};
use crate::access::SlotRef;
use crate::effect::{CommandError, Effect, OpId, Outcome, Release, Token};
use crate::engine::context::Purpose;
use crate::ids::{NodeId, Principal, RegionId, RequestId, SessionId};
use crate::message::{ErrorReply, Notice, Reply, Request};

/// All waits of this node's sessions, and locks that they abandoned.
#[derive(Debug, Default)]
pub(super) struct Waits {
    waiting: BTreeMap<OpId, Wait>,
    /// Unlock requests of ended sessions, to send after the grace period of their posted accesses.
    abandoned: BTreeMap<Token, (OpId, NodeId, Request)>,
}

/// A pending request to the home of a lock or barrier.
#[derive(Debug)]
struct Wait {
    id: RequestId,
    home: NodeId,
    request: Request,
    since_ns: u64,
}

impl Wait {
    /// Returns the notice that withdraws the request at the home.
    fn withdrawal(&self) -> Option<Notice> {
        match self.request {
            Request::Lock { region, session, .. } => {
                Some(Notice::CancelLock { region, session, request: self.id })
            }
            Request::Arrive { region, .. } => Some(Notice::Withdraw { region, request: self.id }),
            _ => None,
        }
    }

    /// Returns the request to repeat at another home, with the remaining timeout.
    fn into_request(self, now_ns: u64) -> Request {
        let waited_ns = now_ns.saturating_sub(self.since_ns);
        match self.request {
            Request::Arrive { region, principal, participants, timeout_ns } => {
                let timeout_ns = timeout_ns.saturating_sub(waited_ns);
                Request::Arrive { region, principal, participants, timeout_ns }
            }
            other => other,
        }
    }
}

impl SessionSide<'_> {
    pub(super) fn request_lock(
        &mut self,
        op: OpId,
        session: SessionId,
        slot: SlotRef,
        wait: bool,
        base_ns: u64,
    ) {
        let Some((region, home, principal)) = self.resolve_service(op, session, slot) else { return };
        self.cx.out().record_time(base_ns);
        let base_ns = self.cx.out().time_of_day_ns();
        let request = Request::Lock { region, principal, session, wait, base_ns };
        self.wait_for(op, home, request);
    }

    pub(super) fn arrive(
        &mut self,
        op: OpId,
        session: SessionId,
        slot: SlotRef,
        participants: u32,
        timeout_ns: u64,
    ) {
        let Some((region, home, principal)) = self.resolve_service(op, session, slot) else { return };
        let request = Request::Arrive { region, principal, participants, timeout_ns };
        self.wait_for(op, home, request);
    }

    /// Returns the region behind the handle of a lock or barrier, its home, and the requesting principal. If the handle
    /// is stale, finishes the command and returns `None`.
    fn resolve_service(
        &mut self,
        op: OpId,
        session: SessionId,
        slot: SlotRef,
    ) -> Option<(RegionId, NodeId, Principal)> {
        let found = self.mapper.region_of(session, slot).zip(self.mapper.principal(session).cloned());
        if found.is_none() {
            self.cx.finish(op, Err(CommandError::Stale));
        }
        found.map(|((region, home), principal)| (region, home.node, principal))
    }

    fn wait_for(&mut self, op: OpId, home: NodeId, request: Request) {
        let id = self.cx.ask(home, request.clone(), Purpose::Wait(op));
        let wait = Wait { id, home, request, since_ns: self.cx.now_ns() };
        self.commands.waits.waiting.insert(op, wait);
    }

    pub(in crate::engine) fn end_wait(&mut self, op: OpId, body: Result<Reply, ErrorReply>) {
        let wait = self.commands.waits.waiting.remove(&op);
        let outcome = match body {
            Ok(Reply::MovedTo { home }) if wait.as_ref().is_some_and(|wait| wait.home != home) => {
                let request = wait.expect("looked up just before").into_request(self.cx.now_ns());
                return self.wait_for(op, home, request);
            }
            Ok(Reply::Locked { token, recovered }) => Ok(Outcome::Locked { token, recovered }),
            Ok(Reply::Passed { round }) => Ok(Outcome::Passed { round }),
            Ok(_) => Err(ErrorReply::Malformed.into()),
            Err(refusal) => Err(refusal.into()),
        };
        self.cx.finish(op, outcome);
    }

    pub(super) fn release_lock(&mut self, op: OpId, session: SessionId, slot: SlotRef, release: Release) {
        let Some((region, home, _)) = self.resolve_service(op, session, slot) else { return };
        let request = Request::Unlock { region, session, recover: release != Release::Used };
        if release != Release::Abandoned {
            return self.request_unlock(op, home, request, 0);
        }
        let quiesce = self.mapper.quiesce();
        self.commands.waits.abandoned.insert(quiesce.token, (op, home, request));
        self.cx.push(Effect::Quiesce(quiesce));
    }

    pub(in crate::engine) fn unlock_abandoned(&mut self, token: Token) {
        if let Some((op, home, request)) = self.commands.waits.abandoned.remove(&token) {
            self.request_unlock(op, home, request, 0);
        }
    }

    pub(super) fn request_unlock(&mut self, op: OpId, home: NodeId, request: Request, hops: u8) {
        let step = UserStep::Unlock { request: request.clone(), hops };
        self.cx.ask(home, request, Purpose::User(op, step));
    }

    /// Ends a waiting command and notifies the home, unless the command has ended already.
    pub(super) fn withdraw(&mut self, op: OpId, waiting: OpId) {
        if let Some(wait) = self.commands.waits.waiting.remove(&waiting) {
            self.cx.out().forget_pending(wait.id);
            wait.withdrawal().into_iter().for_each(|withdrawal| self.cx.notify(wait.home, withdrawal));
            self.cx.finish(waiting, Err(CommandError::Withdrawn));
        }
        self.cx.finish(op, Ok(Outcome::Done));
    }
}
