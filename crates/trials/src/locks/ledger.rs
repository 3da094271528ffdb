//! The known attempts and holders of one lock, and the results that may follow.

use super::history::History;
use crate::linearizability::Span;

/// End of a hold that has not ended.
const NEVER: u64 = u64::MAX;
/// Time after which a request is certainly in the queue, without faults: that of a dozen messages.
const QUEUED_NS: u64 = 150_000;
/// Time after which any session can take a released lock, without faults.
const UNCERTAIN_NS: u64 = 200_000;
/// Maximum wait for a lock that is free, without faults.
const IDLE_NS_MAX: u64 = 500_000;

/// A session, in one incarnation of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SessionId {
    pub(super) node: u32,
    pub(super) incarnation: u32,
    pub(super) number: u32,
}

/// Facts outside the lock that the judge knows.
#[derive(Clone, Copy)]
pub(super) struct Context<'s> {
    pub(super) now_ns: u64,
    /// Returns true if no fault and no consequence of a fault has occurred since the given time.
    pub(super) is_calm_since: &'s dyn Fn(u64) -> bool,
    /// Returns true if a session's node is up and not leaving.
    pub(super) is_up: &'s dyn Fn(SessionId) -> bool,
    /// True if a node that is cut off does nothing any more: a holder then loses the lock only if it or the home is
    /// gone.
    pub(super) cut_off_kills: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Attempt {
    session: SessionId,
    begin_ns: u64,
    has_no_limit: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Hold {
    session: SessionId,
    token: u64,
    /// Start of the acquisition.
    begin_ns: u64,
    /// Start of the release.
    release_begin_ns: u64,
    /// True if the session has ended without a release.
    is_orphaned: bool,
}

impl Hold {
    /// Returns true if the holder's session or node has ended.
    fn has_ended(&self, context: Context<'_>) -> bool {
        self.is_orphaned || !(context.is_up)(self.session)
    }
}

/// The known attempts to take one lock, and its known holders.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    attempts: Vec<Attempt>,
    holds: Vec<Hold>,
    /// Number of attempts so far; the tokens of one incarnation of the lock rise no faster.
    attempt_count: u64,
    token_max: u64,
    /// End of the last hold, as far as known.
    held_until_ns: u64,
    /// Time until which a cancelled attempt or release may still hold the lock.
    uncertain_until_ns: u64,
    /// Number of sessions that ended while they may have held the lock, less those that a later holder recovered.
    orphan_count: u64,
    history: History,
    /// The last hold if its end is unknown: its earliest end, and its token.
    open_hold: Option<(u64, u64)>,
}

impl Ledger {
    /// Records the start of an attempt, which waits without a time limit if `has_no_limit`.
    pub(super) fn begin(&mut self, session: SessionId, now_ns: u64, has_no_limit: bool) {
        self.attempt_count += 1;
        self.attempts.push(Attempt { session, begin_ns: now_ns, has_no_limit });
    }

    fn end_attempt(&mut self, session: SessionId) -> Attempt {
        let index =
            self.attempts.iter().position(|each| each.session == session).expect("the operation began");
        self.attempts.remove(index)
    }

    pub(super) fn record_acquired(
        &mut self,
        session: SessionId,
        token: u64,
        recovered: bool,
        context: Context<'_>,
    ) -> Result<(), String> {
        let attempt = self.end_attempt(session);
        let is_calm = (context.is_calm_since)(attempt.begin_ns);
        let verdict = self
            .check_displaced(token, recovered, context)
            .and_then(|()| self.check_token(token, is_calm))
            .and_then(|()| self.check_recovered(recovered, is_calm))
            .and_then(|()| self.check_order(&attempt, context))
            .and_then(|()| self.check_delay(&attempt, is_calm, context.now_ns));
        self.record_hold(&attempt, token, context);
        self.orphan_count -= u64::from(recovered && self.orphan_count > 0);
        self.holds.clear();
        self.token_max = self.token_max.max(token);
        let begin_ns = attempt.begin_ns;
        self.holds.push(Hold { session, token, begin_ns, release_begin_ns: NEVER, is_orphaned: false });
        verdict
    }

    /// Records the start of a hold, and the end of the previous hold if that may be over.
    fn record_hold(&mut self, attempt: &Attempt, token: u64, context: Context<'_>) {
        let span = Span { begin_ns: attempt.begin_ns, end_ns: context.now_ns };
        let is_kept = |hold: &Hold| !hold.has_ended(context) && (context.is_calm_since)(hold.begin_ns);
        let is_kept = self.current_hold().is_some_and(is_kept);
        if let Some((begin_ns, before)) = self.open_hold.take().filter(|_| !is_kept) {
            self.history.record_released(Span { begin_ns, end_ns: context.now_ns }, before);
        }
        self.history.record_taken(span, token);
        self.open_hold = Some((attempt.begin_ns, token));
    }

    /// Returns the hold whose release has not begun.
    fn current_hold(&self) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.release_begin_ns == NEVER)
    }

    /// Returns true if some order has no overlapping holds.
    pub(super) fn has_order(&self) -> bool {
        self.history.has_order()
    }

    /// Checks that no other session holds the lock, unless a fault may have ended that hold.
    fn check_displaced(&self, token: u64, recovered: bool, context: Context<'_>) -> Result<(), String> {
        let Some(hold) = self.current_hold() else { return Ok(()) };
        let has_ended = hold.has_ended(context);
        // The tokens of a lock that was created again start far above.
        let is_same_lock = token.wrapping_sub(hold.token) <= self.attempt_count;
        let Hold { session, begin_ns, .. } = hold;
        if !has_ended && (context.is_calm_since)(*begin_ns) {
            return Err(format!("{session:?} has held it since {begin_ns} ns, with token {}", hold.token));
        }
        if !has_ended && is_same_lock && context.cut_off_kills {
            return Err(format!("{session:?} holds it, lives, and was not cut off; token {}", hold.token));
        }
        if has_ended && token == hold.token + 1 && !recovered {
            return Err(format!(
                "the lock is not marked as recovered from {session:?}, which died with token {}",
                hold.token
            ));
        }
        Ok(())
    }

    fn check_token(&self, token: u64, is_calm: bool) -> Result<(), String> {
        if token > self.token_max || (token != self.token_max && !is_calm) {
            return Ok(());
        }
        Err(format!("the token is {token}, but {} was granted before", self.token_max))
    }

    fn check_recovered(&self, recovered: bool, is_calm: bool) -> Result<(), String> {
        if !recovered || self.orphan_count > 0 || !is_calm {
            return Ok(());
        }
        Err("the lock was recovered, but no holder had died".to_owned())
    }

    /// Checks that this attempt did not overtake a session that was in the queue before the attempt began.
    fn check_order(&self, attempt: &Attempt, context: Context<'_>) -> Result<(), String> {
        let was_overtaken = |other: &&Attempt| {
            other.has_no_limit
                && other.begin_ns + QUEUED_NS < attempt.begin_ns
                && (context.is_calm_since)(other.begin_ns)
        };
        match self.attempts.iter().find(was_overtaken) {
            Some(Attempt { session, begin_ns, .. }) => {
                Err(format!("{session:?} has waited since {begin_ns} ns"))
            }
            None => Ok(()),
        }
    }

    fn check_delay(&self, attempt: &Attempt, is_calm: bool, now_ns: u64) -> Result<(), String> {
        let free_since_ns = attempt.begin_ns.max(self.held_until_ns).max(self.uncertain_until_ns);
        if !self.holds.is_empty() || !is_calm || now_ns < free_since_ns.saturating_add(IDLE_NS_MAX) {
            return Ok(());
        }
        Err(format!("the lock was granted late: it had been free since {free_since_ns} ns"))
    }

    /// Records that the attempt was cancelled, and may have succeeded.
    pub(super) fn record_cancelled(&mut self, session: SessionId, now_ns: u64) {
        self.end_attempt(session);
        self.uncertain_until_ns = self.uncertain_until_ns.max(now_ns + UNCERTAIN_NS);
    }

    /// Records that the attempt was refused because the lock is held.
    pub(super) fn record_refused(&mut self, session: SessionId, context: Context<'_>) -> Result<(), String> {
        let Attempt { begin_ns, .. } = self.end_attempt(session);
        let may_be_held = !self.attempts.is_empty()
            || !self.holds.is_empty()
            || self.held_until_ns >= begin_ns
            || self.uncertain_until_ns >= begin_ns;
        if may_be_held || !(context.is_calm_since)(begin_ns) {
            return Ok(());
        }
        Err(format!("the attempt was refused, but no session held the lock from {begin_ns} ns on"))
    }

    /// Returns true if the session is known to hold the lock with that token.
    pub(super) fn holds(&self, session: SessionId, token: u64) -> bool {
        self.holds.iter().any(|hold| (hold.session, hold.token) == (session, token))
    }

    /// Returns the highest token granted after `token` by the same incarnation of the lock; a lock that was created
    /// again starts far above.
    pub(super) fn later_token(&self, token: u64) -> Option<u64> {
        let rise = self.token_max.saturating_sub(token);
        (1..=self.attempt_count).contains(&rise).then_some(self.token_max)
    }

    fn hold(&mut self, session: SessionId) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.session == session)
    }

    /// Records that the holder begins to release the lock.
    pub(super) fn begin_release(&mut self, session: SessionId, now_ns: u64) {
        if let Some(hold) = self.hold(session) {
            hold.release_begin_ns = now_ns;
            let token = hold.token;
            self.open_hold = Some((now_ns, token));
        }
    }

    pub(super) fn end_release(&mut self, session: SessionId, now_ns: u64) {
        let ended = self.hold(session).map(|hold| hold.token);
        if let Some((begin_ns, token)) = self.open_hold.take_if(|(_, token)| Some(*token) == ended) {
            self.history.record_released(Span { begin_ns, end_ns: now_ns }, token);
        }
        self.forget_hold(session, now_ns);
    }

    fn forget_hold(&mut self, session: SessionId, now_ns: u64) {
        self.holds.retain(|hold| hold.session != session);
        self.held_until_ns = self.held_until_ns.max(now_ns);
    }

    /// Records that the holder has lost the lock, or does not know whether it has.
    pub(super) fn record_lost(&mut self, session: SessionId, context: Context<'_>) -> Result<(), String> {
        let held = self.hold(session).copied();
        self.forget_hold(session, context.now_ns);
        match held {
            Some(hold) if (context.is_calm_since)(hold.begin_ns) => {
                Err(format!("{session:?} has held it since {} ns, and no session after it", hold.begin_ns))
            }
            _ => Ok(()),
        }
    }

    /// Records that the release continues in the background.
    pub(super) fn record_dropped(&mut self, session: SessionId, now_ns: u64) {
        self.begin_release(session, now_ns);
        self.forget_hold(session, now_ns);
        self.uncertain_until_ns = self.uncertain_until_ns.max(now_ns + UNCERTAIN_NS);
    }

    pub(super) fn end_session(&mut self, session: SessionId) {
        let attempts = self.attempts.len();
        self.attempts.retain(|each| each.session != session);
        self.orphan_count += (attempts - self.attempts.len()) as u64;
        for hold in self.holds.iter_mut().filter(|hold| hold.session == session && !hold.is_orphaned) {
            hold.is_orphaned = true;
            self.orphan_count += 1;
        }
    }
}
