//! Locks: taken, tried, awaited, kept, released and lost. [`ledger`] defines the valid results, and [`data`] checks the
//! data that a lock protects.

mod data;
mod history;
mod ledger;
mod stamps;

use std::rc::Rc;
use std::time::Duration;

use halite::{Guard, LockCause, LockError, RegionCause};

use crate::actor::{Actor, pick};
use crate::harness::Harness;
use crate::judge::may_follow_fault;
pub(crate) use data::names as data_names;
use data::{Data, DataMapping};
use ledger::{Context, Ledger, SessionId};
use stamps::KnownValues;

const NAMES: usize = 4;
/// Maximum number of locks that a session holds.
const HELD_MAX: usize = 2;
/// Maximum timeout, in microseconds.
const TIMEOUT_US_MAX: u64 = 60;

#[derive(Debug, Default)]
pub(crate) struct Locks {
    ledgers: [Ledger; NAMES],
    data: Data,
}

/// Checks the histories of all locks, after all sessions have ended.
pub(crate) fn check(harness: &Harness) {
    for (name, ledger) in harness.locks.borrow().ledgers.iter().enumerate() {
        harness.judge.expect(ledger.has_order(), || {
            format!("no order explains the operations on lock {name}: {ledger:?}")
        });
    }
}

/// The locks that a session holds.
#[derive(Default)]
pub(crate) struct HeldLocks {
    held: Vec<HeldLock>,
    /// Mappings of the regions under the locks.
    mappings: [Option<DataMapping>; NAMES],
}

struct HeldLock {
    name: usize,
    token: u64,
    /// Guard of the lock; `None` if it was dropped and the lock kept.
    guard: Option<Guard>,
    /// True if a release was cancelled, before or after it began.
    is_uncertain: bool,
    /// The protected data as this session last read or wrote it, if known.
    known: Option<KnownValues>,
}

/// Reports the end of a session when dropped.
pub(crate) struct SessionGuard {
    harness: Rc<Harness>,
    session: SessionId,
}

impl SessionGuard {
    pub(crate) fn of(actor: &Actor) -> SessionGuard {
        SessionGuard { harness: actor.harness.clone(), session: session_id(actor) }
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        for ledger in &mut self.harness.locks.borrow_mut().ledgers {
            ledger.end_session(self.session);
        }
        data::end_session(&self.harness, self.session);
    }
}

fn session_id(actor: &Actor) -> SessionId {
    SessionId { node: actor.node, incarnation: actor.incarnation, number: actor.number }
}

/// Returns the names of a trial's locks.
pub(crate) fn names() -> impl Iterator<Item = String> {
    (0..NAMES).map(name_of)
}

fn name_of(name: usize) -> String {
    format!("l{name}")
}

/// Checks that no other session has taken a lock whose guard is valid here.
fn check_guards(actor: &Actor) {
    for held in &actor.locks.held {
        let kept = match &held.guard {
            Some(guard) => guard.check(),
            None => actor.session.check_lock(&name_of(held.name)),
        };
        let is_kept = match kept {
            Ok(()) => true,
            Err(error) => {
                let is_explained = matches!(error.cause, LockCause::Lapsed) && !actor.harness.is_fault_free();
                if !is_explained && !end_explains(actor, held, &error.cause) {
                    report_violation(
                        actor,
                        held.name,
                        actor.now_ns(),
                        &format!("{error}, without a known cause"),
                    );
                }
                false
            }
        };
        let ledgers = &actor.harness.locks.borrow().ledgers;
        if is_kept && let Some(token) = ledgers[held.name].later_token(held.token) {
            let what = format!(
                "the session still holds the lock with token {}, but {token} was granted",
                held.token
            );
            report_violation(actor, held.name, actor.now_ns(), &what);
        }
    }
}

/// Returns true if the end of the hold explains the error: a release was cancelled, or the node has left.
fn end_explains(actor: &Actor, held: &HeldLock, cause: &LockCause) -> bool {
    match cause {
        LockCause::NotHeld => held.is_uncertain,
        LockCause::Region(cause) => fault_explains_region_error(actor, cause),
        _ => false,
    }
}

pub(crate) async fn run_operation(actor: &mut Actor) {
    check_guards(actor);
    let held = actor.locks.held.len();
    match pick(&mut actor.random, if held == 0 { &[3, 3, 3, 0, 0, 0, 1] } else { &[0, 2, 2, 9, 1, 9, 1] }) {
        // A session that holds a lock must not wait for another one without limit, which could deadlock.
        0 => acquire(actor, Wait::Endless).await,
        1 if held < HELD_MAX => acquire(actor, Wait::None).await,
        2 if held < HELD_MAX => {
            let wait = Duration::from_micros(actor.random.between(1, TIMEOUT_US_MAX));
            acquire(actor, Wait::For(wait)).await;
        }
        4 => try_held_lock(actor).await,
        5 => use_data(actor).await,
        6 => release_unheld(actor).await,
        _ => release(actor).await,
    }
}

/// Uses the data under a lock that the session certainly holds.
async fn use_data(actor: &mut Actor) {
    let index = actor.random.index(actor.locks.held.len());
    if !actor.locks.held[index].is_uncertain {
        data::read_and_write(actor, index).await;
    }
}

/// Releases the locks of the session.
pub(crate) async fn finish(actor: &mut Actor) {
    while !actor.locks.held.is_empty() {
        release(actor).await;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    None,
    For(Duration),
    Endless,
}

async fn acquire(actor: &mut Actor, wait: Wait) {
    let name = actor.random.index(NAMES);
    if actor.locks.held.iter().any(|held| held.name == name) {
        return;
    }
    let (text, session, begin) = (name_of(name), actor.session.clone(), actor.clock_ns());
    let begin_ns = actor.now_ns();
    let has_no_limit = wait == Wait::Endless;
    actor.trace(format_args!("concerns lock {text}"));
    actor.harness.locks.borrow_mut().ledgers[name].begin(session_id(actor), begin_ns, has_no_limit);
    let taken = match wait {
        Wait::None => actor.attempt("try to lock", session.try_lock(&text)).await,
        Wait::For(timeout) => {
            actor.attempt("lock with a deadline", session.lock_within(&text, timeout)).await
        }
        Wait::Endless => actor.attempt("lock", session.lock(&text)).await,
    };
    match taken {
        Some(Ok(guard)) => handle_acquired(actor, name, guard),
        Some(Err(error)) => {
            let verdict = handle_refusal(actor, name, wait, actor.clock_ns() - begin, &error);
            verdict.unwrap_or_else(|reason| {
                report_violation(actor, name, begin_ns, &format!("{error}: {reason}"))
            });
        }
        None => {
            actor.harness.locks.borrow_mut().ledgers[name].record_cancelled(session_id(actor), actor.now_ns())
        }
    }
}

fn handle_acquired(actor: &mut Actor, name: usize, guard: Guard) {
    let (token, recovered) = (guard.token(), guard.recovered());
    let verdict = with_ledger(actor, name, |ledger, context| {
        ledger.record_acquired(session_id(actor), token, recovered, context)
    });
    if let Err(reason) = verdict {
        let what = format!("the session took the lock with token {token}: {reason}");
        report_violation(actor, name, actor.now_ns(), &what);
    }
    let guard = if actor.random.chance(1, 6) {
        guard.keep();
        None
    } else {
        Some(guard)
    };
    actor.locks.held.push(HeldLock { name, token, guard, is_uncertain: false, known: None });
}

fn handle_refusal(
    actor: &Actor,
    name: usize,
    wait: Wait,
    waited_ns: u64,
    error: &LockError,
) -> Result<(), String> {
    match (&error.cause, wait) {
        (LockCause::Held, Wait::None) => {
            with_ledger(actor, name, |ledger, context| ledger.record_refused(session_id(actor), context))
        }
        (LockCause::Timeout, Wait::For(timeout)) => {
            actor.harness.locks.borrow_mut().ledgers[name]
                .record_cancelled(session_id(actor), actor.now_ns());
            let is_over = u128::from(waited_ns) >= timeout.as_nanos();
            if is_over {
                Ok(())
            } else {
                Err(format!("the attempt timed out after {waited_ns} ns instead of {timeout:?}"))
            }
        }
        (cause, _) => {
            actor.harness.locks.borrow_mut().ledgers[name]
                .record_cancelled(session_id(actor), actor.now_ns());
            if fault_explains(actor, cause) { Ok(()) } else { Err("without a known cause".to_owned()) }
        }
    }
}

/// Returns true if a fault of this trial explains the error.
fn fault_explains(actor: &Actor, cause: &LockCause) -> bool {
    match cause {
        LockCause::PeerDown(_) => !actor.harness.is_fault_free(),
        LockCause::HeldBySilent(_) => actor.harness.was_any_node_isolated(),
        LockCause::Region(cause) => fault_explains_region_error(actor, cause),
        _ => false,
    }
}

fn fault_explains_region_error(actor: &Actor, cause: &RegionCause) -> bool {
    match cause {
        RegionCause::NoSpace { .. } => true,
        cause => may_follow_fault(cause) && !actor.harness.is_fault_free(),
    }
}

/// Tries to take a lock that the session holds, which must fail even if the session has lost it since.
async fn try_held_lock(actor: &mut Actor) {
    let Some(held) = actor.locks.held.iter().find(|held| !held.is_uncertain) else { return };
    let (name, session) = (held.name, actor.session.clone());
    let result = actor.attempt("try to lock twice", session.try_lock(&name_of(name))).await;
    let is_right = match &result {
        None => true,
        Some(Ok(_)) => false,
        Some(Err(error)) => {
            matches!(error.cause, LockCause::AlreadyHeld | LockCause::Region(RegionCause::NodeClosed(_)))
        }
    };
    if !is_right {
        report_violation(
            actor,
            name,
            actor.now_ns(),
            &format!("the session took a lock that it holds: {result:?}"),
        );
    }
}

/// Releases a lock that this session does not hold; another session may hold it.
async fn release_unheld(actor: &mut Actor) {
    let name = actor.random.index(NAMES);
    if actor.locks.held.iter().any(|held| held.name == name) {
        return;
    }
    let (begin_ns, session) = (actor.now_ns(), actor.session.clone());
    let Some(driven) = actor.harness.driven(actor.node) else { return };
    let text = name_of(name);
    let result = actor.attempt("unlock another's", driven.unlock_unheld(&session, &text)).await;
    match result {
        Some(Ok(())) => {
            report_violation(actor, name, begin_ns, "the session released the lock without holding it")
        }
        Some(Err(error)) if error.cause != LockCause::NotHeld && !fault_explains(actor, &error.cause) => {
            report_violation(actor, name, begin_ns, &format!("{error}, without a known cause"));
        }
        _ => {}
    }
}

async fn release(actor: &mut Actor) {
    if actor.locks.held.is_empty() {
        return;
    }
    let index = actor.random.index(actor.locks.held.len());
    let HeldLock { name, token, guard, is_uncertain, .. } = actor.locks.held.swap_remove(index);
    let begin_ns = actor.now_ns();
    actor.harness.locks.borrow_mut().ledgers[name].begin_release(session_id(actor), begin_ns);
    let session = actor.session.clone();
    let result = match guard {
        Some(guard) if actor.random.chance(1, 3) => {
            drop(guard);
            None
        }
        Some(guard) => actor.attempt("unlock", guard.unlock()).await,
        None => {
            let result = actor.attempt("unlock by name", session.unlock(&name_of(name))).await;
            if result.is_none() {
                return actor.locks.held.push(HeldLock {
                    name,
                    token,
                    guard: None,
                    is_uncertain: true,
                    known: None,
                });
            }
            result
        }
    };
    handle_release(actor, name, begin_ns, is_uncertain, result);
}

fn handle_release(
    actor: &Actor,
    name: usize,
    begin_ns: u64,
    is_uncertain: bool,
    result: Option<Result<(), LockError>>,
) {
    let now_ns = actor.now_ns();
    match result {
        Some(Ok(())) => actor.harness.locks.borrow_mut().ledgers[name].end_release(session_id(actor), now_ns),
        Some(Err(error)) => {
            let lost =
                with_ledger(actor, name, |ledger, context| ledger.record_lost(session_id(actor), context));
            let is_lost = error.cause == LockCause::NotHeld;
            let verdict = match is_lost || fault_explains(actor, &error.cause) {
                true if is_lost && is_uncertain => Ok(()),
                true => lost,
                false => Err("without a known cause".to_owned()),
            };
            verdict.unwrap_or_else(|reason| {
                report_violation(actor, name, begin_ns, &format!("{error}: {reason}"))
            });
        }
        None => actor.harness.locks.borrow_mut().ledgers[name].record_dropped(session_id(actor), now_ns),
    }
}

fn with_ledger<T>(actor: &Actor, name: usize, f: impl FnOnce(&mut Ledger, Context<'_>) -> T) -> T {
    let harness = &actor.harness;
    let context = Context {
        now_ns: harness.world.now_ns(),
        is_calm_since: &|begin_ns| harness.is_calm_since(begin_ns),
        is_up: &|session: SessionId| {
            harness.is_up(session.node) && harness.incarnation(session.node) == session.incarnation
        },
        cut_off_kills: harness.cut_off_kills,
    };
    f(&mut harness.locks.borrow_mut().ledgers[name], context)
}

fn report_violation(actor: &Actor, name: usize, begin_ns: u64, what: &str) {
    let (number, node, now) = (actor.number, actor.node, actor.now_ns());
    let name = name_of(name);
    actor.harness.judge.report_violation(format!(
        "lock {name}, session {number} of node {node}, from {begin_ns} to {now} ns: {what}"
    ));
}
