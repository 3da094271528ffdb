//! Data under a lock: its holder reads some words, checks them and rewrites them, with plain reads and writes.
//! [`stamps`](super::stamps) defines the valid results.

use std::time::Duration;

use halite::{AccessCause, AccessError, Lh, NodeId, Permissions, Placement, RegionCause};

use super::stamps::{KnownValues, Stamps, Values, WORDS};
use super::{NAMES, fault_explains_region_error, report_violation, session_id};
use crate::actor::Actor;
use crate::harness::Harness;

const WORD_BYTES: usize = 8;
/// Number of writes per round. Operations of other sessions may come between them.
const WRITES_PER_ROUND: usize = 2;
/// Maximum time between reading and writing.
const THINK_NS_MAX: u64 = 3_000;
/// Time after which a cancelled write has landed, without faults.
const UNCERTAIN_NS: u64 = 30_000;
const EVERYONE: Permissions = Permissions::READ.union(Permissions::WRITE);

/// The data under all locks.
#[derive(Debug, Default)]
pub(super) struct Data {
    /// All regions so far. Each is longer than the previous one, so that its length identifies it.
    lives: Vec<Life>,
    last_stamp: u64,
}

#[derive(Debug)]
struct Life {
    stamps: Stamps,
    /// True if no session uses the region, so that it is freed.
    is_being_freed: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct DataMapping {
    lh: Lh,
    life: usize,
}

/// Returns the names of the regions under locks.
pub(crate) fn names() -> impl Iterator<Item = String> {
    (0..NAMES).map(name_of)
}

fn name_of(name: usize) -> String {
    format!("d{name}")
}

pub(super) fn end_session(harness: &Harness, id: super::SessionId) {
    let now_ns = harness.world.now_ns();
    // The writes of a dead holder are over when its lock passes on. But other nodes may learn late of its death.
    let until_ns = if harness.cut_off_kills { now_ns } else { now_ns + harness.consequences_ns() };
    let lives = &mut harness.locks.borrow_mut().data.lives;
    for Life { stamps, .. } in lives {
        stamps.abandon(id, until_ns);
        stamps.end_read(id);
    }
}

/// Reads, checks and writes the data under a lock of the session.
pub(super) async fn read_and_write(actor: &mut Actor, index: usize) {
    let name = actor.locks.held[index].name;
    let Some(mapping) = open(actor, name).await else { return };
    if read(actor, index, mapping).await && pause(actor).await && actor.random.chance(3, 4) {
        let is_written = write(actor, index, mapping).await;
        if is_written && actor.random.chance(1, 3) {
            read(actor, index, mapping).await;
        }
    }
}

async fn pause(actor: &mut Actor) -> bool {
    let duration = Duration::from_nanos(actor.random.below(THINK_NS_MAX));
    actor.harness.world.sleep(Some(actor.host), duration).await;
    true
}

async fn open(actor: &mut Actor, name: usize) -> Option<DataMapping> {
    if let Some(mapping) = actor.locks.mappings[name] {
        return Some(mapping);
    }
    let session = actor.session.clone();
    let mapping = match actor.attempt("map under a lock", session.map(&name_of(name), EVERYONE)).await? {
        Ok(lh) => {
            let life = (session.len(lh).ok()? as usize / WORD_BYTES).checked_sub(WORDS);
            let lives = actor.harness.locks.borrow().data.lives.len();
            let Some(life) = life.filter(|life| *life < lives) else {
                report_violation(
                    actor,
                    name,
                    actor.now_ns(),
                    "the region under the lock has a length that no such region ever had",
                );
                return None;
            };
            Some(DataMapping { lh, life })
        }
        Err(error) if matches!(error.cause, RegionCause::NotFound | RegionCause::Lost(_)) => {
            create(actor, name).await
        }
        Err(error) => {
            check_refusal(actor, name, &error.cause, &error.to_string());
            None
        }
    };
    actor.locks.mappings[name] = mapping;
    mapping
}

async fn create(actor: &mut Actor, name: usize) -> Option<DataMapping> {
    let life = {
        let lives = &mut actor.harness.locks.borrow_mut().data.lives;
        lives.push(Life { stamps: Stamps::fresh(), is_being_freed: false });
        lives.len() - 1
    };
    let len = ((life + WORDS) * WORD_BYTES) as u64;
    let home = NodeId(actor.random.below(actor.harness.nodes().into()) as u32);
    let (text, session) = (name_of(name), actor.session.clone());
    let allocation = session.alloc(Some(&text), len, Placement::On(home), EVERYONE);
    match actor.attempt("alloc under a lock", allocation).await {
        Some(Ok(lh)) => Some(DataMapping { lh, life }),
        failure => {
            actor.harness.locks.borrow_mut().data.lives[life].is_being_freed = true;
            if let Some(Err(error)) = failure {
                check_refusal(actor, name, &error.cause, &error.to_string());
            }
            None
        }
    }
}

/// Handles a refused access. An earlier holder may have left a region that is being freed.
fn check_refusal(actor: &Actor, name: usize, cause: &RegionCause, error: &str) {
    let is_being_freed = matches!(cause, RegionCause::NameTaken | RegionCause::Stale);
    if !(is_being_freed || fault_explains_region_error(actor, cause)) {
        report_violation(actor, name, actor.now_ns(), error);
    }
}

/// Reads all words. Returns true if that succeeded.
async fn read(actor: &mut Actor, index: usize, mapping: DataMapping) -> bool {
    let (session, begin_ns, id) = (actor.session.clone(), actor.now_ns(), session_id(actor));
    let mut bytes = [0; WORDS * WORD_BYTES];
    with_stamps(actor, mapping, |stamps| stamps.begin_read(id, begin_ns));
    let result = actor.attempt("read under a lock", session.read(mapping.lh, 0, &mut bytes)).await;
    with_stamps(actor, mapping, |stamps| stamps.end_read(id));
    if !matches!(result, Some(Ok(()))) {
        check_failure(actor, index, mapping, result);
        return false;
    }
    let values: Values = std::array::from_fn(|at| {
        u64::from_le_bytes(bytes[at * WORD_BYTES..][..WORD_BYTES].try_into().expect("a word"))
    });
    let known = actor.locks.held[index].known;
    let (now_ns, holds) = (actor.now_ns(), holds(actor, index));
    let verdict =
        with_stamps(actor, mapping, |stamps| stamps.read(id, begin_ns, now_ns, values, known, holds));
    match verdict {
        Ok(known) => actor.locks.held[index].known = known,
        Err(reason) => report_violation(actor, actor.locks.held[index].name, begin_ns, &reason),
    }
    true
}

/// Writes all words. Returns true if that succeeded.
async fn write(actor: &mut Actor, index: usize, mapping: DataMapping) -> bool {
    let (begin_ns, id) = (actor.now_ns(), session_id(actor));
    let stamp = {
        let data = &mut actor.harness.locks.borrow_mut().data;
        data.last_stamp += 1;
        data.lives[mapping.life].stamps.begin(id, data.last_stamp, begin_ns);
        data.last_stamp
    };
    let part = stamp.to_le_bytes().repeat(WORDS / WRITES_PER_ROUND);
    for number in 0..WRITES_PER_ROUND {
        let (session, offset) = (actor.session.clone(), (number * part.len()) as u64);
        let result = actor.attempt("write under a lock", session.write(mapping.lh, offset, &part)).await;
        if !matches!(result, Some(Ok(()))) {
            abandon(actor, mapping, begin_ns);
            check_failure(actor, index, mapping, result);
            return false;
        }
    }
    let (now_ns, holds) = (actor.now_ns(), holds(actor, index));
    let known: Option<KnownValues> = with_stamps(actor, mapping, |stamps| stamps.end(id, now_ns, holds));
    actor.locks.held[index].known = known;
    true
}

/// Records that the effect and end of a cancelled or failed write are unknown.
fn abandon(actor: &Actor, mapping: DataMapping, begin_ns: u64) {
    let harness = &actor.harness;
    let uncertain_ns = if harness.is_calm_since(begin_ns) { UNCERTAIN_NS } else { harness.consequences_ns() };
    let (id, until_ns) = (session_id(actor), actor.now_ns() + uncertain_ns);
    with_stamps(actor, mapping, |stamps| stamps.abandon(id, until_ns));
}

/// Handles an access that failed or was cancelled.
fn check_failure(
    actor: &mut Actor,
    index: usize,
    mapping: DataMapping,
    result: Option<Result<(), AccessError>>,
) {
    let name = actor.locks.held[index].name;
    actor.locks.held[index].known = None;
    let Some(Err(error)) = result else { return };
    let is_explained = match error.cause {
        AccessCause::Stale => {
            let is_being_freed = actor.harness.locks.borrow().data.lives[mapping.life].is_being_freed;
            is_being_freed || !actor.harness.is_fault_free()
        }
        AccessCause::PeerDown(_) | AccessCause::LinkLost(_) | AccessCause::NodeClosed(_) => {
            !actor.harness.is_fault_free()
        }
        _ => false,
    };
    if !is_explained {
        report_violation(actor, name, actor.now_ns(), &format!("{error}, without a known cause"));
    }
    actor.locks.mappings[name] = None;
}

/// Returns true if no other session has taken the lock since. Without faults, returns true even if the ledger differs:
/// then the check of the data must fail.
fn holds(actor: &Actor, index: usize) -> bool {
    let held = &actor.locks.held[index];
    let is_last = actor.harness.locks.borrow().ledgers[held.name].holds(session_id(actor), held.token);
    is_last || actor.harness.is_fault_free()
}

fn with_stamps<T>(actor: &Actor, mapping: DataMapping, f: impl FnOnce(&mut Stamps) -> T) -> T {
    f(&mut actor.harness.locks.borrow_mut().data.lives[mapping.life].stamps)
}
