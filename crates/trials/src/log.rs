//! The log of `halite-apps`: sessions append, follow and trim. [`ledger`] defines the valid results.

mod ledger;
mod records;

use std::cell::RefCell;
use std::time::Duration;

use halite::{NodeId, Permissions, RegionCause, Session};
use halite_apps::log::{Follower, Log, LogError, Options, Writer};

use crate::actor::{Actor, pick};
use crate::harness::{Harness, PRINCIPALS};
use crate::judge::{access_may_follow_fault, may_follow_fault};
pub(crate) use ledger::Logs;
use ledger::{Outcome, Reader};

/// Number of logs at a time.
const LOGS: usize = 2;
/// Slot length in bytes. Small, so that most records take several slots, and segments are often created and freed.
const SLOT_BYTES: u64 = 32;
const SEGMENT_SLOTS: u64 = 16;
/// Maximum number of slots that a writer reserves at a time.
const BATCH_MAX: u64 = 4;
/// Maximum patience of followers. Twice this time is about the duration of an append, so followers skip some slots.
const PATIENCE_NS_MAX: u64 = 20_000;
/// One in this many tokens starts a call that appends `BATCH_RECORDS` records.
const BATCH_TOKEN_PERIOD: u64 = 8;
const BATCH_RECORDS: usize = 3;
/// Maximum number of polls, with pauses, that bring a follower to the end after the last append.
const POLLS_MAX: u64 = 400;

#[derive(Default)]
pub(crate) struct OpenLogs {
    /// Session of the log's user.
    session: Option<Session>,
    logs: [Option<OpenLog>; LOGS],
}

/// An open log: a writer, a follower and a cleaner, each with its own [`Log`].
struct OpenLog {
    life: usize,
    session: Session,
    writer: Writer,
    follower: Follower,
    cleaner: Log,
    reader: Reader,
}

/// Checks all appends and reads, after all sessions have ended.
pub(crate) fn check(harness: &Harness) {
    let logs = harness.logs.borrow();
    logs.check(harness).unwrap_or_else(|reason| harness.judge.report_violation(reason));
}

pub(crate) async fn run_operation(actor: &mut Actor) {
    let number = actor.random.index(LOGS);
    let Some(mut open_log) = actor.log.logs[number].take() else { return open(actor, number).await };
    let result = match pick(&mut actor.random, &[10, 10, 1, 1]) {
        0 => append(actor, &mut open_log).await,
        1 => follow(actor, &mut open_log).await,
        2 => trim(actor, &mut open_log).await,
        _ => reopen_follower(actor, &mut open_log).await,
    };
    // After a failure, the session opens the log again.
    if result.is_ok() {
        actor.log.logs[number] = Some(open_log);
    }
}

/// Follows all open logs to the end, and reports a violation if a follower does not reach it.
pub(crate) async fn finish(actor: &mut Actor) {
    let OpenLogs { logs, session } = std::mem::take(&mut actor.log);
    for mut open_log in logs.into_iter().flatten() {
        let Ok(end) = open_log.cleaner.end().await else { continue };
        let mut polls = 0;
        while open_log.follower.position() < end && polls < POLLS_MAX + end {
            if follow(actor, &mut open_log).await.is_err() {
                break;
            }
            polls += 1;
            actor.harness.world.sleep(Some(actor.host), Duration::from_nanos(PATIENCE_NS_MAX / 4)).await;
        }
        let (position, begin_ns) = (open_log.follower.position(), actor.now_ns());
        let has_reached_end = position >= end || !actor.harness.is_fault_free();
        let stopped = format_args!("a follower stops at position {position}, but the log ends at {end}");
        actor.expect(has_reached_end, begin_ns, stopped);
    }
    drop(session);
}

async fn open(actor: &mut Actor, number: usize) {
    let current = actor.harness.logs.borrow().current(number);
    let (life, is_new) = match current {
        Some(life) => (life, false),
        None => (actor.harness.logs.borrow_mut().begin(), true),
    };
    if actor.log.session.is_none() {
        let Some(driven) = actor.harness.driven(actor.node) else { return };
        // All sessions act as one user, because a cleaner must be a master of segments that others created.
        actor.log.session = Some(driven.session_of(PRINCIPALS[0]).expect("the principal's name is valid"));
    }
    let session = actor.log.session.clone().expect("the session was created above");
    let name = ledger::name_of(life);
    let begin_ns = actor.now_ns();
    let patience_ns = actor.random.between(PATIENCE_NS_MAX / 8, PATIENCE_NS_MAX);
    let batch = actor.random.between(1, BATCH_MAX);
    let nodes = (0..actor.harness.nodes()).filter(|_| actor.random.chance(1, 2)).map(NodeId).collect();
    let options = Options {
        slot_bytes: SLOT_BYTES,
        segment_slots: SEGMENT_SLOTS,
        nodes,
        everyone: Permissions::READ | Permissions::WRITE | Permissions::ATOMIC,
    };
    let is_from_start = actor.random.chance(1, 2);
    let opening = async {
        let cleaner = match is_new {
            true => Log::create(&session, &name, &options).await?,
            false => Log::open(&session, &name).await?,
        };
        let writer = Writer::new(Log::open(&session, &name).await?, batch);
        let log = Log::open(&session, &name).await?;
        let follower = match is_from_start {
            true => Follower::from_start(log).await?,
            false => Follower::from_end(log).await?,
        };
        Ok((cleaner, writer, follower.with_patience(patience_ns)))
    };
    match actor.attempt("open a log", opening).await {
        Some(Ok((cleaner, writer, follower))) => {
            if is_new {
                actor.harness.logs.borrow_mut().publish(number, life);
            }
            let reader = Reader::new(&actor.harness, life, follower.position());
            let session = session.clone();
            actor.log.logs[number] = Some(OpenLog { life, session, writer, follower, cleaner, reader });
        }
        Some(Err(error)) => {
            let is_over = matches!(&error, LogError::Region(error) if
                matches!(error.cause(), RegionCause::NotFound | RegionCause::Lost(_)));
            if is_over && !is_new {
                actor.harness.logs.borrow_mut().end(number, life);
            }
            actor.expect_reason(fault_explains(actor, &error), begin_ns, &error);
        }
        None => {}
    }
}

/// Returns true if a fault may cause this error.
fn fault_explains(actor: &Actor, error: &LogError) -> bool {
    match error {
        LogError::Full { .. } => true,
        LogError::Lost { .. } | LogError::Outpaced { .. } | LogError::NoDirectory(_) => {
            !actor.harness.is_fault_free()
        }
        LogError::Region(error) => may_follow_fault(error.cause()) && !actor.harness.is_fault_free(),
        LogError::Access(error) => access_may_follow_fault(&error.cause) && !actor.harness.is_fault_free(),
        _ => false,
    }
}

/// Checks an error. Returns `Err` if the session must open the log again.
fn check_error(actor: &Actor, error: &LogError, begin_ns: u64) -> Result<(), ()> {
    actor.expect_reason(fault_explains(actor, error), begin_ns, error);
    match error {
        LogError::Full { .. }
        | LogError::NoDirectory(_)
        | LogError::Outpaced { .. }
        | LogError::Lost { .. } => Ok(()),
        _ => Err(()),
    }
}

async fn append(actor: &mut Actor, open_log: &mut OpenLog) -> Result<(), ()> {
    let begin_ns = actor.now_ns();
    let token = begin_append(actor, open_log);
    let records = records::of(token);
    if let [single] = &records[..]
        && token % BATCH_TOKEN_PERIOD == 1
    {
        return append_each(actor, open_log, (token, single.clone())).await;
    }
    let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    let writer = &mut open_log.writer;
    let appending = async {
        match slices.as_slice() {
            [single] => writer.append(single).await,
            many => writer.append_all(many).await,
        }
    };
    match actor.attempt("append to a log", appending).await {
        Some(Ok(position)) => {
            record_appended(actor, open_log, begin_ns, token, position).await;
            Ok(())
        }
        Some(Err(error)) => {
            // As documented: after an access error the record may exist, after other errors it does not.
            if !matches!(error, LogError::Access(_)) {
                record_not_appended(actor, open_log, token);
            }
            check_error(actor, &error, begin_ns)
        }
        None => Ok(()),
    }
}

/// Appends several records in one call; each record becomes visible separately.
async fn append_each(actor: &mut Actor, open_log: &mut OpenLog, first: (u64, Vec<u8>)) -> Result<(), ()> {
    let begin_ns = actor.now_ns();
    let mut records = vec![first];
    while records.len() < BATCH_RECORDS {
        let token = begin_append(actor, open_log);
        match <[Vec<u8>; 1]>::try_from(records::of(token)) {
            Ok([single]) => records.push((token, single)),
            // This token is a transaction.
            Err(_) => record_not_appended(actor, open_log, token),
        }
    }
    let slices: Vec<&[u8]> = records.iter().map(|(_, record)| &record[..]).collect();
    let mut positions = Vec::new();
    let appending = open_log.writer.append_each(&slices, &mut positions);
    let appended = actor.attempt("append several to a log", appending).await;
    for ((token, _), position) in records.iter().zip(&positions) {
        record_appended(actor, open_log, begin_ns, *token, *position).await;
    }
    let Some(Err(error)) = appended else { return Ok(()) };
    // As documented: after an access error, one more record may exist.
    let maybe = usize::from(matches!(error, LogError::Access(_)));
    for (token, _) in &records[(positions.len() + maybe).min(BATCH_RECORDS)..] {
        record_not_appended(actor, open_log, *token);
    }
    check_error(actor, &error, begin_ns)
}

fn begin_append(actor: &Actor, open_log: &OpenLog) -> u64 {
    let token = actor.harness.logs.borrow_mut().begin_append(open_log.life);
    actor.trace(format_args!("concerns record {token} of log {}", open_log.life));
    token
}

async fn record_appended(actor: &Actor, open_log: &OpenLog, begin_ns: u64, token: u64, position: u64) {
    actor.trace(format_args!("has record {token} at {position}"));
    let outcome = Outcome::Done { position, end_ns: actor.now_ns() };
    let checked = actor.harness.logs.borrow_mut().end_append(open_log.life, token, outcome);
    checked.unwrap_or_else(|reason| actor.expect(false, begin_ns, reason));
    record_home(actor, open_log, position / SEGMENT_SLOTS).await;
}

fn record_not_appended(actor: &Actor, open_log: &OpenLog, token: u64) {
    let checked = actor.harness.logs.borrow_mut().end_append(open_log.life, token, Outcome::NotDone);
    checked.unwrap_or_else(|reason| actor.harness.judge.report_violation(reason));
}

/// Records the node that holds a segment.
async fn record_home(actor: &Actor, open_log: &OpenLog, segment: u64) {
    if actor.harness.logs.borrow().has_home(open_log.life, segment) {
        return;
    }
    let name = format!("{}/{segment}", ledger::name_of(open_log.life));
    let before = incarnations(&actor.harness);
    let found = open_log.session.stat(&name).await;
    // If a node has ended, this may be a replacement of the record's segment.
    let is_the_same = before.is_some() && before == incarnations(&actor.harness);
    let home =
        found.ok().filter(|_| is_the_same).map(|info| (info.home.0, actor.harness.incarnation(info.home.0)));
    actor.harness.logs.borrow_mut().record_home(open_log.life, segment, home);
}

/// Returns the incarnations of all nodes; `None` unless all are up and no node may have been declared dead.
fn incarnations(harness: &Harness) -> Option<Vec<u32>> {
    let is_undisturbed = |node: &u32| harness.is_up(*node) && !harness.was_isolated(*node);
    (0..harness.nodes()).map(|node| is_undisturbed(&node).then(|| harness.incarnation(node))).collect()
}

async fn follow(actor: &mut Actor, open_log: &mut OpenLog) -> Result<(), ()> {
    let begin_ns = actor.now_ns();
    let (from, now_ns) = (open_log.follower.position(), actor.clock_ns());
    let is_appended = actor.harness.logs.borrow().is_appended(&actor.harness, open_log.life, from);
    let taken = RefCell::new(Vec::new());
    let polling = open_log.follower.poll(now_ns, |entry| {
        taken.borrow_mut().push((entry.position, entry.records().map(<[u8]>::to_vec).collect::<Vec<_>>()));
    });
    let polled = actor.attempt("follow a log", polling).await;
    // Records that the callback received count as read, despite an error.
    let to = open_log.follower.position();
    let checked = open_log.reader.record_passed(from..to, &taken.into_inner());
    checked.unwrap_or_else(|reason| actor.expect(false, begin_ns, reason));
    match polled {
        Some(Ok(0)) => {
            let is_appended = is_appended && actor.harness.is_calm_since(begin_ns);
            let missing = format_args!("the record appended at {from} is not visible");
            actor.expect(!is_appended, begin_ns, missing);
            Ok(())
        }
        Some(Err(LogError::Trimmed { first })) => {
            let trimmed = actor.harness.logs.borrow().trimmed(open_log.life);
            actor.expect(
                first <= trimmed,
                begin_ns,
                format_args!("the log begins at {first}, but was trimmed to {trimmed}"),
            );
            open_log.follower.skip_to(first);
            open_log.reader.record_skip(first);
            Ok(())
        }
        Some(Err(error)) => {
            if let LogError::Lost { next, .. } = error {
                open_log.follower.skip_to(next);
                open_log.reader.record_skip(next);
            }
            check_error(actor, &error, begin_ns)
        }
        Some(Ok(_)) | None => Ok(()),
    }
}

/// Frees the segments that all readers have passed.
async fn trim(actor: &mut Actor, open_log: &mut OpenLog) -> Result<(), ()> {
    let begin_ns = actor.now_ns();
    let position = actor.harness.logs.borrow_mut().begin_trim(open_log.life);
    let trimming = open_log.cleaner.trim(position);
    match actor.attempt("trim a log", trimming).await {
        Some(Err(error)) => check_error(actor, &error, begin_ns),
        Some(Ok(_)) | None => Ok(()),
    }
}

/// Replaces the follower.
async fn reopen_follower(actor: &mut Actor, open_log: &mut OpenLog) -> Result<(), ()> {
    let begin_ns = actor.now_ns();
    let (session, name) = (open_log.session.clone(), ledger::name_of(open_log.life));
    let patience_ns = actor.random.between(PATIENCE_NS_MAX / 8, PATIENCE_NS_MAX);
    let opening = async { Follower::from_start(Log::open(&session, &name).await?).await };
    match actor.attempt("follow a log again", opening).await {
        Some(Ok(follower)) => {
            open_log.follower = follower.with_patience(patience_ns);
            open_log.reader = Reader::new(&actor.harness, open_log.life, open_log.follower.position());
            Ok(())
        }
        Some(Err(error)) => check_error(actor, &error, begin_ns),
        None => Ok(()),
    }
}

/// Returns true if a region belongs to a log.
pub(crate) fn is_name(name: &str) -> bool {
    name.starts_with(ledger::PREFIX)
}
