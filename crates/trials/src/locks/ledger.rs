//! The known facts about one lock: attempts and holders; and the results that may follow.

use super::history::History;
use crate::linearizability::Span;

/// End of a hold that has not ended.
const NEVER: u64 = u64::MAX;
/// Time after which a request is in the queue, without faults: a dozen messages at most.
const QUEUED_NS: u64 = 150_000;
/// Time after which any session can take a released lock, without faults.
const DOUBT_NS: u64 = 200_000;
/// Maximum wait for a lock that is free, without faults.
const IDLE_NS_MAX: u64 = 500_000;

/// A session, in one incarnation of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SessionRun {
    pub(super) node: u32,
    pub(super) incarnation: u32,
    pub(super) session: u32,
}

/// Facts that the judge knows apart from the lock.
#[derive(Clone, Copy)]
pub(super) struct Scene<'s> {
    pub(super) now_ns: u64,
    /// Returns true if no fault and no consequence of a fault has occurred since the given time.
    pub(super) is_calm_since: &'s dyn Fn(u64) -> bool,
    /// Returns true if a session's node is up and not leaving.
    pub(super) is_up: &'s dyn Fn(SessionRun) -> bool,
    /// True if a node that is cut off does nothing any more: a holder then loses the lock only if it or the home is
    /// gone.
    pub(super) cut_off_is_death: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Try {
    run: SessionRun,
    begin_ns: u64,
    waits: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Hold {
    run: SessionRun,
    token: u64,
    /// Start of the acquisition.
    begin_ns: u64,
    /// Start of the release.
    end_begun_ns: u64,
    /// True if the session has ended without a release.
    orphaned: bool,
}

impl Hold {
    /// Returns true if the holder can do nothing any more.
    fn is_gone(&self, scene: Scene<'_>) -> bool {
        self.orphaned || !(scene.is_up)(self.run)
    }
}

/// The known attempts to take one lock, and its known holders.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    tries: Vec<Try>,
    holds: Vec<Hold>,
    /// Number of attempts so far; the tokens of one incarnation of the lock rise no faster.
    tries_count: u64,
    token_max: u64,
    /// End of the last hold, as far as known.
    held_until_ns: u64,
    /// Time until which a cancelled attempt or release may still hold the lock.
    doubt_until_ns: u64,
    /// Number of sessions that ended while they may have held the lock, less those that a later holder recovered.
    orphans: u64,
    history: History,
    /// The last hold if its end is unknown: its earliest end, and its token.
    open: Option<(u64, u64)>,
}

impl Ledger {
    /// Records the start of an attempt. It `waits` if it has no time limit.
    pub(super) fn begin(&mut self, run: SessionRun, now_ns: u64, waits: bool) {
        self.tries_count += 1;
        self.tries.push(Try { run, begin_ns: now_ns, waits });
    }

    fn end_try(&mut self, run: SessionRun) -> Try {
        let index = self.tries.iter().position(|each| each.run == run).expect("the operation began");
        self.tries.remove(index)
    }

    pub(super) fn took(
        &mut self,
        run: SessionRun,
        token: u64,
        recovered: bool,
        scene: Scene<'_>,
    ) -> Result<(), String> {
        let tried = self.end_try(run);
        let is_calm = (scene.is_calm_since)(tried.begin_ns);
        let verdict = self
            .check_displaced(token, recovered, scene)
            .and_then(|()| self.check_token(token, is_calm))
            .and_then(|()| self.check_recovered(recovered, is_calm))
            .and_then(|()| self.check_order(&tried, scene))
            .and_then(|()| self.check_delay(&tried, is_calm, scene.now_ns));
        self.note_turn(&tried, token, scene);
        self.orphans -= u64::from(recovered && self.orphans > 0);
        self.holds.clear();
        self.token_max = self.token_max.max(token);
        let begin_ns = tried.begin_ns;
        self.holds.push(Hold { run, token, begin_ns, end_begun_ns: NEVER, orphaned: false });
        verdict
    }

    /// Records the start of a hold, and the end of the previous hold if that may be over.
    fn note_turn(&mut self, tried: &Try, token: u64, scene: Scene<'_>) {
        let span = Span { begin_ns: tried.begin_ns, end_ns: scene.now_ns };
        let is_kept =
            self.kept().is_some_and(|hold| !hold.is_gone(scene) && (scene.is_calm_since)(hold.begin_ns));
        if let Some((begin_ns, before)) = self.open.take().filter(|_| !is_kept) {
            self.history.gave_up(Span { begin_ns, end_ns: scene.now_ns }, before);
        }
        self.history.took(span, token);
        self.open = Some((tried.begin_ns, token));
    }

    /// Returns the hold whose release has not begun.
    fn kept(&self) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.end_begun_ns == NEVER)
    }

    /// Returns true if some order has no overlapping holds.
    pub(super) fn has_order(&self) -> bool {
        self.history.has_order()
    }

    /// Checks that no other session holds the lock, unless there is a reason why that hold is over.
    fn check_displaced(&self, token: u64, recovered: bool, scene: Scene<'_>) -> Result<(), String> {
        let Some(hold) = self.kept() else { return Ok(()) };
        let is_gone = hold.is_gone(scene);
        // If the lock was created again, its tokens start far above.
        let is_the_same = token.wrapping_sub(hold.token) <= self.tries_count;
        let Hold { run, begin_ns, .. } = hold;
        if !is_gone && (scene.is_calm_since)(*begin_ns) {
            return Err(format!("{run:?} has held it since {begin_ns} ns, with token {}", hold.token));
        }
        if !is_gone && is_the_same && scene.cut_off_is_death {
            return Err(format!("{run:?} holds it, lives, and was not cut off; token {}", hold.token));
        }
        if is_gone && token == hold.token + 1 && !recovered {
            return Err(format!(
                "the lock is not marked as recovered from {run:?}, which died with token {}",
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
        if !recovered || self.orphans > 0 || !is_calm {
            return Ok(());
        }
        Err("the lock was recovered, but no holder had died".to_owned())
    }

    /// Checks that this attempt did not overtake a session that was in the queue before the attempt began.
    fn check_order(&self, tried: &Try, scene: Scene<'_>) -> Result<(), String> {
        let was_overtaken = |other: &&Try| {
            other.waits
                && other.begin_ns + QUEUED_NS < tried.begin_ns
                && (scene.is_calm_since)(other.begin_ns)
        };
        match self.tries.iter().find(was_overtaken) {
            Some(Try { run, begin_ns, .. }) => Err(format!("{run:?} has waited since {begin_ns} ns")),
            None => Ok(()),
        }
    }

    fn check_delay(&self, tried: &Try, is_calm: bool, now_ns: u64) -> Result<(), String> {
        let free_since_ns = tried.begin_ns.max(self.held_until_ns).max(self.doubt_until_ns);
        if !self.holds.is_empty() || !is_calm || now_ns < free_since_ns.saturating_add(IDLE_NS_MAX) {
            return Ok(());
        }
        Err(format!("the lock was granted late: it had been free since {free_since_ns} ns"))
    }

    /// Records that the attempt was cancelled, and may have succeeded.
    pub(super) fn gave_up(&mut self, run: SessionRun, now_ns: u64) {
        self.end_try(run);
        self.doubt_until_ns = self.doubt_until_ns.max(now_ns + DOUBT_NS);
    }

    /// Records that the attempt was refused because the lock is held.
    pub(super) fn refused(&mut self, run: SessionRun, scene: Scene<'_>) -> Result<(), String> {
        let Try { begin_ns, .. } = self.end_try(run);
        let may_be_held = !self.tries.is_empty()
            || !self.holds.is_empty()
            || self.held_until_ns >= begin_ns
            || self.doubt_until_ns >= begin_ns;
        if may_be_held || !(scene.is_calm_since)(begin_ns) {
            return Ok(());
        }
        Err(format!("the attempt was refused, but no session held the lock from {begin_ns} ns on"))
    }

    /// Returns true if the session holds the lock with that token, as far as known.
    pub(super) fn holds(&self, run: SessionRun, token: u64) -> bool {
        self.holds.iter().any(|hold| (hold.run, hold.token) == (run, token))
    }

    /// Returns the highest token granted after `token` by the same incarnation of the lock; a lock that was created
    /// again starts far above.
    pub(super) fn taken_after(&self, token: u64) -> Option<u64> {
        let rise = self.token_max.saturating_sub(token);
        (1..=self.tries_count).contains(&rise).then_some(self.token_max)
    }

    fn hold(&mut self, run: SessionRun) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.run == run)
    }

    /// Records that the holder begins to release the lock.
    pub(super) fn begin_release(&mut self, run: SessionRun, now_ns: u64) {
        if let Some(hold) = self.hold(run) {
            hold.end_begun_ns = now_ns;
            let token = hold.token;
            self.open = Some((now_ns, token));
        }
    }

    pub(super) fn end_release(&mut self, run: SessionRun, now_ns: u64) {
        let ended = self.hold(run).map(|hold| hold.token);
        if let Some((begin_ns, token)) = self.open.take_if(|(_, token)| Some(*token) == ended) {
            self.history.gave_up(Span { begin_ns, end_ns: now_ns }, token);
        }
        self.forget_hold(run, now_ns);
    }

    fn forget_hold(&mut self, run: SessionRun, now_ns: u64) {
        self.holds.retain(|hold| hold.run != run);
        self.held_until_ns = self.held_until_ns.max(now_ns);
    }

    /// Records that the holder has lost the lock, or does not know whether it has.
    pub(super) fn lost(&mut self, run: SessionRun, scene: Scene<'_>) -> Result<(), String> {
        let held = self.hold(run).copied();
        self.forget_hold(run, scene.now_ns);
        match held {
            Some(hold) if (scene.is_calm_since)(hold.begin_ns) => {
                Err(format!("{run:?} has held it since {} ns, and no session after it", hold.begin_ns))
            }
            _ => Ok(()),
        }
    }

    /// Records that the release continues in the background.
    pub(super) fn dropped(&mut self, run: SessionRun, now_ns: u64) {
        self.begin_release(run, now_ns);
        self.forget_hold(run, now_ns);
        self.doubt_until_ns = self.doubt_until_ns.max(now_ns + DOUBT_NS);
    }

    pub(super) fn end_session(&mut self, run: SessionRun) {
        let tries = self.tries.len();
        self.tries.retain(|each| each.run != run);
        self.orphans += (tries - self.tries.len()) as u64;
        for hold in self.holds.iter_mut().filter(|hold| hold.run == run && !hold.orphaned) {
            hold.orphaned = true;
            self.orphans += 1;
        }
    }
}
