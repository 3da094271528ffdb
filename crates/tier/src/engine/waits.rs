//! Commands of sessions that wait for a lock or at a barrier, and those that give a lock up.
//!
//! Unlike others, they may take as long as somebody else pleases: so they end at once when nobody wants them any more,
//! and the home is told.

use std::collections::BTreeMap;

use super::user::UserStep;
use super::{Engine, Purpose};
use crate::access::SlotRef;
use crate::effect::{CommandError, Effect, OpId, Outcome, Release, Token};
use crate::ids::{NodeId, Principal, RegionId, RequestId, SessionId};
use crate::message::{ErrorReply, Notice, Reply, Request};

/// All that sessions of this node wait for.
#[derive(Debug, Default)]
pub(super) struct Waits {
    waiting: BTreeMap<OpId, Wait>,
    /// Locks of sessions that have ended: given up when what those posted is over.
    abandoned: BTreeMap<Token, (OpId, NodeId, Request)>,
}

/// What is asked of the home of a lock or barrier, and how it is told that nobody waits for it any more.
#[derive(Debug)]
struct Wait {
    request: RequestId,
    home: NodeId,
    withdrawal: Notice,
}

impl Engine {
    pub(super) fn ask_for_lock(
        &mut self,
        op: OpId,
        session: SessionId,
        slot: SlotRef,
        wait: bool,
        base_ns: u64,
    ) {
        let Some((region, home, principal)) = self.served(op, session, slot) else { return };
        self.note_time(base_ns);
        let base_ns = self.time_of_day_ns();
        let request = Request::Lock { region, principal, session, wait, base_ns };
        self.wait_for(op, home, request, |request| Notice::CancelLock { region, session, request });
    }

    pub(super) fn arrive(
        &mut self,
        op: OpId,
        session: SessionId,
        slot: SlotRef,
        participants: u32,
        timeout_ns: u64,
    ) {
        let Some((region, home, principal)) = self.served(op, session, slot) else { return };
        let request = Request::Arrive { region, principal, participants, timeout_ns };
        self.wait_for(op, home, request, |request| Notice::Withdraw { region, request });
    }

    /// The region behind the handle of a lock or barrier, its home, and who asks; else ends the command.
    fn served(
        &mut self,
        op: OpId,
        session: SessionId,
        slot: SlotRef,
    ) -> Option<(RegionId, NodeId, Principal)> {
        let found = self.mapper.region_of(session, slot).zip(self.mapper.principal(session).cloned());
        if found.is_none() {
            self.finish(op, Err(CommandError::Stale));
        }
        found.map(|((region, home), principal)| (region, home.node, principal))
    }

    fn wait_for(
        &mut self,
        op: OpId,
        home: NodeId,
        request: Request,
        withdrawal: impl FnOnce(RequestId) -> Notice,
    ) {
        self.ask(home, request, Purpose::Wait(op));
        let request = RequestId(self.counter);
        self.waits.waiting.insert(op, Wait { request, home, withdrawal: withdrawal(request) });
    }

    pub(super) fn end_wait(&mut self, op: OpId, body: Result<Reply, ErrorReply>) {
        self.waits.waiting.remove(&op);
        let outcome = match body {
            Ok(Reply::Locked { token, recovered }) => Ok(Outcome::Locked { token, recovered }),
            Ok(Reply::Passed { round }) => Ok(Outcome::Passed { round }),
            Ok(_) => Err(ErrorReply::Malformed.into()),
            Err(refusal) => Err(refusal.into()),
        };
        self.finish(op, outcome);
    }

    pub(super) fn give_lock_up(&mut self, op: OpId, session: SessionId, slot: SlotRef, release: Release) {
        let Some((region, home, _)) = self.served(op, session, slot) else { return };
        let request = Request::Unlock { region, session, recover: release != Release::Used };
        if release != Release::Forsaken {
            return self.ask(home, request, Purpose::User(op, UserStep::Unlock));
        }
        let quiesce = self.mapper.quiesce();
        self.waits.abandoned.insert(quiesce.token, (op, home, request));
        self.effects.push_back(Effect::Quiesce(quiesce));
    }

    pub(super) fn finish_abandoning(&mut self, token: Token) {
        if let Some((op, home, request)) = self.waits.abandoned.remove(&token) {
            self.ask(home, request, Purpose::User(op, UserStep::Unlock));
        }
    }

    /// The giver of a command does not wait for its end.  Ends waiting for locks and at barriers; all others go on to
    /// their end.
    pub fn abandon(&mut self, now_ns: u64, op: OpId) {
        self.now_ns = now_ns;
        if let Some(wait) = self.waits.waiting.remove(&op) {
            self.asked.remove(&wait.request);
            self.notify(wait.home, wait.withdrawal);
            self.finish(op, Err(CommandError::Abandoned));
        }
        self.settle();
    }
}
