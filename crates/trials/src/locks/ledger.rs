//! What is known of one lock from outside: who tries to take it, who holds it, and what may follow.

use super::history::History;
use crate::linearizability::Span;

/// When something that has begun has not ended.
const NEVER: u64 = u64::MAX;
/// A session that has waited for so long, with nothing going wrong, stands in the queue.  It takes a dozen messages at most.
const QUEUED_NS: u64 = 150_000;
/// What was given up, with nothing going wrong, is over for everybody after that.
const DOUBT_NS: u64 = 200_000;
/// Nobody waits for longer than that for a lock that nobody has, with nothing going wrong.
const IDLE_NS_MAX: u64 = 500_000;

/// A session in one incarnation of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SessionRun {
    pub(super) node: u32,
    pub(super) incarnation: u32,
    pub(super) session: u32,
}

/// What the judge knows beside what sessions do with locks.
#[derive(Clone, Copy)]
pub(super) struct Scene<'s> {
    pub(super) now_ns: u64,
    /// Whether nothing went wrong, nor its consequences lasted, from that time on until now.
    pub(super) is_calm_since: &'s dyn Fn(u64) -> bool,
    /// Whether a session's node neither leaves nor is down.
    pub(super) is_up: &'s dyn Fn(SessionRun) -> bool,
    /// Whether who is cut off does nothing any more: then nobody loses a lock without being gone, or the lock's home.
    pub(super) cut_off_is_death: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Try {
    who: SessionRun,
    begin_ns: u64,
    waits: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Hold {
    who: SessionRun,
    token: u64,
    /// When it began to be taken.
    begin_ns: u64,
    /// When it began to be given up.
    end_begun_ns: u64,
    /// Its session has ended without giving it up.
    orphaned: bool,
}

impl Hold {
    /// Whether the holder can do nothing with it any more.
    fn is_gone(&self, scene: Scene<'_>) -> bool {
        self.orphaned || !(scene.is_up)(self.who)
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    tries: Vec<Try>,
    holds: Vec<Hold>,
    /// How often it was tried: no faster rise the tokens of one incarnation of the lock.
    tries_count: u64,
    token_max: u64,
    /// Until when somebody had it, as far as that is known.
    held_until_ns: u64,
    /// Until when somebody may have it who does not want it any more.
    doubt_until_ns: u64,
    /// Sessions that have ended while they may have held it, less those for which somebody was told.
    orphans: u64,
    history: History,
    /// Of the last turn, if nobody has seen its end: since when it may be over, and its token.
    open: Option<(u64, u64)>,
}

impl Ledger {
    /// Somebody begins to take it; if it `waits`, for as long as it takes.
    pub(super) fn begin(&mut self, who: SessionRun, now_ns: u64, waits: bool) {
        self.tries_count += 1;
        self.tries.push(Try { who, begin_ns: now_ns, waits });
    }

    fn end_try(&mut self, who: SessionRun) -> Try {
        let index = self.tries.iter().position(|each| each.who == who).expect("it began");
        self.tries.remove(index)
    }

    /// It was taken.
    pub(super) fn took(
        &mut self,
        who: SessionRun,
        token: u64,
        recovered: bool,
        scene: Scene<'_>,
    ) -> Result<(), String> {
        let tried = self.end_try(who);
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
        self.holds.push(Hold { who, token, begin_ns, end_begun_ns: NEVER, orphaned: false });
        verdict
    }

    /// Notes that a turn begins, and that the one before is over, if it may be.
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

    /// What somebody holds who has not begun to give it up.
    fn kept(&self) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.end_begun_ns == NEVER)
    }

    /// Whether there is an order in which nobody took what another had.
    pub(super) fn has_order(&self) -> bool {
        self.history.have_order()
    }

    /// Nobody else holds it, unless there is a reason why that one counts no more.
    fn check_displaced(&self, token: u64, recovered: bool, scene: Scene<'_>) -> Result<(), String> {
        let Some(hold) = self.kept() else { return Ok(()) };
        let is_gone = hold.is_gone(scene);
        // A lock that was made anew begins far above.
        let is_the_same = token.wrapping_sub(hold.token) <= self.tries_count;
        let Hold { who, begin_ns, .. } = hold;
        if !is_gone && (scene.is_calm_since)(*begin_ns) {
            return Err(format!("{who:?} holds it since {begin_ns} ns, with token {}", hold.token));
        }
        if !is_gone && is_the_same && scene.cut_off_is_death {
            return Err(format!("{who:?} holds it, lives, and was cut off by nobody; token {}", hold.token));
        }
        if is_gone && token == hold.token + 1 && !recovered {
            return Err(format!("it does not say that {who:?} died with it, with token {}", hold.token));
        }
        Ok(())
    }

    fn check_token(&self, token: u64, is_calm: bool) -> Result<(), String> {
        if token > self.token_max || (token != self.token_max && !is_calm) {
            return Ok(());
        }
        Err(format!("its token is {token}, and {} was given out before", self.token_max))
    }

    fn check_recovered(&self, recovered: bool, is_calm: bool) -> Result<(), String> {
        if !recovered || self.orphans > 0 || !is_calm {
            return Ok(());
        }
        Err("it was recovered, but nobody died with it".to_owned())
    }

    /// Nobody is overtaken who stood in the queue when this one began.
    fn check_order(&self, tried: &Try, scene: Scene<'_>) -> Result<(), String> {
        let was_overtaken = |other: &&Try| {
            other.waits
                && other.begin_ns + QUEUED_NS < tried.begin_ns
                && (scene.is_calm_since)(other.begin_ns)
        };
        match self.tries.iter().find(was_overtaken) {
            Some(Try { who, begin_ns, .. }) => Err(format!("{who:?} has waited since {begin_ns} ns")),
            None => Ok(()),
        }
    }

    fn check_delay(&self, tried: &Try, is_calm: bool, now_ns: u64) -> Result<(), String> {
        let free_since_ns = tried.begin_ns.max(self.held_until_ns).max(self.doubt_until_ns);
        if !self.holds.is_empty() || !is_calm || now_ns < free_since_ns.saturating_add(IDLE_NS_MAX) {
            return Ok(());
        }
        Err(format!("it was free since {free_since_ns} ns"))
    }

    /// The attempt was given up, or may have succeeded without its session's knowing.
    pub(super) fn gave_up(&mut self, who: SessionRun, now_ns: u64) {
        self.end_try(who);
        self.doubt_until_ns = self.doubt_until_ns.max(now_ns + DOUBT_NS);
    }

    /// It was refused because somebody holds it.
    pub(super) fn refused(&mut self, who: SessionRun, scene: Scene<'_>) -> Result<(), String> {
        let Try { begin_ns, .. } = self.end_try(who);
        let may_be_held = !self.tries.is_empty()
            || !self.holds.is_empty()
            || self.held_until_ns >= begin_ns
            || self.doubt_until_ns >= begin_ns;
        if may_be_held || !(scene.is_calm_since)(begin_ns) {
            return Ok(());
        }
        Err(format!("it was refused, but nobody held it from {begin_ns} ns on"))
    }

    /// Whether somebody holds it with that token, as far as is known.
    pub(super) fn holds(&self, who: SessionRun, token: u64) -> bool {
        self.holds.iter().any(|hold| (hold.who, hold.token) == (who, token))
    }

    /// The highest token that was given out after that one, by the same incarnation of the lock: one that was made anew begins far above.
    pub(super) fn taken_after(&self, token: u64) -> Option<u64> {
        let rise = self.token_max.saturating_sub(token);
        (1..=self.tries_count).contains(&rise).then_some(self.token_max)
    }

    fn hold(&mut self, who: SessionRun) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.who == who)
    }

    /// Its holder begins to give it up.
    pub(super) fn begin_release(&mut self, who: SessionRun, now_ns: u64) {
        if let Some(hold) = self.hold(who) {
            hold.end_begun_ns = now_ns;
            let token = hold.token;
            self.open = Some((now_ns, token));
        }
    }

    /// It has been given up.
    pub(super) fn end_release(&mut self, who: SessionRun, now_ns: u64) {
        let ended = self.hold(who).map(|hold| hold.token);
        if let Some((begin_ns, token)) = self.open.take_if(|(_, token)| Some(*token) == ended) {
            self.history.gave_up(Span { begin_ns, end_ns: now_ns }, token);
        }
        self.forget_hold(who, now_ns);
    }

    fn forget_hold(&mut self, who: SessionRun, now_ns: u64) {
        self.holds.retain(|hold| hold.who != who);
        self.held_until_ns = self.held_until_ns.max(now_ns);
    }

    /// Its holder was told that it holds it no more, or cannot know.
    pub(super) fn lost(&mut self, who: SessionRun, scene: Scene<'_>) -> Result<(), String> {
        let held = self.hold(who).copied();
        self.forget_hold(who, scene.now_ns);
        match held {
            Some(hold) if (scene.is_calm_since)(hold.begin_ns) => {
                Err(format!("{who:?} has held it since {} ns, and nobody after it", hold.begin_ns))
            }
            _ => Ok(()),
        }
    }

    /// It is being given up, and nobody waits until it is.
    pub(super) fn dropped(&mut self, who: SessionRun, now_ns: u64) {
        self.begin_release(who, now_ns);
        self.forget_hold(who, now_ns);
        self.doubt_until_ns = self.doubt_until_ns.max(now_ns + DOUBT_NS);
    }

    /// A session has ended, whatever it did.
    pub(super) fn end_session(&mut self, who: SessionRun) {
        let tries = self.tries.len();
        self.tries.retain(|each| each.who != who);
        self.orphans += (tries - self.tries.len()) as u64;
        for hold in self.holds.iter_mut().filter(|hold| hold.who == who && !hold.orphaned) {
            hold.orphaned = true;
            self.orphans += 1;
        }
    }
}
