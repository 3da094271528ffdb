//! Data under a lock: its holder reads some words, checks them and rewrites them, with plain reads and writes.
//! [`stamps`](super::stamps) defines the valid results.

use std::time::Duration;

use halite::{AccessCause, AccessError, Lh, NodeId, Permissions, Placement, RegionCause};

use super::stamps::{KnownValues, Stamps, Values, WORDS};
use super::{NAMES, is_explained_by, session_id, violated};
use crate::actor::Actor;
use crate::harness::Harness;

const WORD: usize = 8;
/// Number of writes per round; other operations may come between them.
const PARTS: usize = 2;
/// Maximum time between reading and writing.
const THINK_NS_MAX: u64 = 3_000;
/// Time after which a cancelled write has landed, without faults.
const DOUBT_NS: u64 = 30_000;
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
    /// True if the region was not used, so that it is freed.
    ends: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
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

pub(super) fn end_session(harness: &Harness, run: super::SessionId) {
    let now_ns = harness.world.now_ns();
    // The writes of a dead holder are over when its lock passes on. But other nodes may learn late of its death.
    let until_ns = if harness.cut_off_kills { now_ns } else { now_ns + harness.consequences_ns() };
    let lives = &mut harness.locks.borrow_mut().data.lives;
    for Life { stamps, .. } in lives {
        stamps.abandon(run, until_ns);
        stamps.end_read(run);
    }
}

/// Reads, checks and writes the data under a lock of the session.
pub(super) async fn work(actor: &mut Actor, index: usize) {
    let name = actor.locks.held[index].name;
    let Some(opened) = open(actor, name).await else { return };
    if read(actor, index, opened).await && pause(actor).await && actor.random.chance(3, 4) {
        let is_written = write(actor, index, opened).await;
        if is_written && actor.random.chance(1, 3) {
            read(actor, index, opened).await;
        }
    }
}

async fn pause(actor: &mut Actor) -> bool {
    let duration = Duration::from_nanos(actor.random.below(THINK_NS_MAX));
    actor.harness.world.sleep(Some(actor.host), duration).await;
    true
}

async fn open(actor: &mut Actor, name: usize) -> Option<Opened> {
    if let Some(opened) = actor.locks.opened[name] {
        return Some(opened);
    }
    let session = actor.session.clone();
    let opened = match actor.attempt("map under a lock", session.map(&name_of(name), EVERYONE)).await? {
        Ok(lh) => {
            let life = (session.len(lh).ok()? as usize / WORD).checked_sub(WORDS);
            let lives = actor.harness.locks.borrow().data.lives.len();
            let Some(life) = life.filter(|life| *life < lives) else {
                violated(
                    actor,
                    name,
                    actor.now_ns(),
                    "the region under the lock has a length that no such region ever had",
                );
                return None;
            };
            Some(Opened { lh, life })
        }
        Err(error) if matches!(error.cause, RegionCause::NotFound | RegionCause::Lost(_)) => {
            create(actor, name).await
        }
        Err(error) => {
            check_refusal(actor, name, &error.cause, &error.to_string());
            None
        }
    };
    actor.locks.opened[name] = opened;
    opened
}

async fn create(actor: &mut Actor, name: usize) -> Option<Opened> {
    let life = {
        let lives = &mut actor.harness.locks.borrow_mut().data.lives;
        lives.push(Life { stamps: Stamps::fresh(), ends: false });
        lives.len() - 1
    };
    let len = ((life + WORDS) * WORD) as u64;
    let home = NodeId(actor.random.below(actor.harness.nodes().into()) as u32);
    let (text, session) = (name_of(name), actor.session.clone());
    let made = session.alloc(Some(&text), len, Placement::On(home), EVERYONE);
    match actor.attempt("alloc under a lock", made).await {
        Some(Ok(lh)) => Some(Opened { lh, life }),
        ended => {
            actor.harness.locks.borrow_mut().data.lives[life].ends = true;
            if let Some(Err(error)) = ended {
                check_refusal(actor, name, &error.cause, &error.to_string());
            }
            None
        }
    }
}

/// Handles a refused access. An earlier holder may have left a region that is being freed.
fn check_refusal(actor: &Actor, name: usize, cause: &RegionCause, error: &str) {
    let is_being_freed = matches!(cause, RegionCause::NameTaken | RegionCause::Stale);
    if !(is_being_freed || is_explained_by(actor, cause)) {
        violated(actor, name, actor.now_ns(), error);
    }
}

/// Reads all words. Returns true if that succeeded.
async fn read(actor: &mut Actor, index: usize, opened: Opened) -> bool {
    let (session, begin_ns, run) = (actor.session.clone(), actor.now_ns(), session_id(actor));
    let mut bytes = [0; WORDS * WORD];
    with_stamps(actor, opened, |stamps| stamps.begin_read(run, begin_ns));
    let result = actor.attempt("read under a lock", session.read(opened.lh, 0, &mut bytes)).await;
    with_stamps(actor, opened, |stamps| stamps.end_read(run));
    if !matches!(result, Some(Ok(()))) {
        check_failure(actor, index, opened, result);
        return false;
    }
    let values: Values =
        std::array::from_fn(|at| u64::from_le_bytes(bytes[at * WORD..][..WORD].try_into().expect("a word")));
    let known = actor.locks.held[index].known;
    let (now_ns, holds) = (actor.now_ns(), holds(actor, index));
    let verdict =
        with_stamps(actor, opened, |stamps| stamps.read(run, begin_ns, now_ns, values, known, holds));
    match verdict {
        Ok(known) => actor.locks.held[index].known = known,
        Err(reason) => violated(actor, actor.locks.held[index].name, begin_ns, &reason),
    }
    true
}

/// Writes all words. Returns true if that succeeded.
async fn write(actor: &mut Actor, index: usize, opened: Opened) -> bool {
    let (begin_ns, run) = (actor.now_ns(), session_id(actor));
    let stamp = {
        let data = &mut actor.harness.locks.borrow_mut().data;
        data.last_stamp += 1;
        data.lives[opened.life].stamps.begin(run, data.last_stamp, begin_ns);
        data.last_stamp
    };
    let part = stamp.to_le_bytes().repeat(WORDS / PARTS);
    for number in 0..PARTS {
        let (session, offset) = (actor.session.clone(), (number * part.len()) as u64);
        let result = actor.attempt("write under a lock", session.write(opened.lh, offset, &part)).await;
        if !matches!(result, Some(Ok(()))) {
            abandon(actor, opened, begin_ns);
            check_failure(actor, index, opened, result);
            return false;
        }
    }
    let (now_ns, holds) = (actor.now_ns(), holds(actor, index));
    let known: Option<KnownValues> = with_stamps(actor, opened, |stamps| stamps.end(run, now_ns, holds));
    actor.locks.held[index].known = known;
    true
}

/// Records that the effect and end of a cancelled or failed write are unknown.
fn abandon(actor: &Actor, opened: Opened, begin_ns: u64) {
    let harness = &actor.harness;
    let doubt_ns = if harness.is_calm_since(begin_ns) { DOUBT_NS } else { harness.consequences_ns() };
    let (run, until_ns) = (session_id(actor), actor.now_ns() + doubt_ns);
    with_stamps(actor, opened, |stamps| stamps.abandon(run, until_ns));
}

/// Handles an access that failed or was cancelled.
fn check_failure(actor: &mut Actor, index: usize, opened: Opened, result: Option<Result<(), AccessError>>) {
    let name = actor.locks.held[index].name;
    actor.locks.held[index].known = None;
    let Some(Err(error)) = result else { return };
    let is_explained = match error.cause {
        AccessCause::Stale => {
            let ends = actor.harness.locks.borrow().data.lives[opened.life].ends;
            ends || !actor.harness.is_fault_free()
        }
        AccessCause::PeerDown(_) | AccessCause::LinkLost(_) | AccessCause::NodeClosed(_) => {
            !actor.harness.is_fault_free()
        }
        _ => false,
    };
    if !is_explained {
        violated(actor, name, actor.now_ns(), &format!("{error}, without a known cause"));
    }
    actor.locks.opened[name] = None;
}

/// Returns true if no other session has taken the lock since. Without faults, returns true even if the ledger differs:
/// then the check of the data must fail.
fn holds(actor: &Actor, index: usize) -> bool {
    let held = &actor.locks.held[index];
    let is_last = actor.harness.locks.borrow().ledgers[held.name].holds(session_id(actor), held.token);
    is_last || actor.harness.is_fault_free()
}

fn with_stamps<T>(actor: &Actor, opened: Opened, f: impl FnOnce(&mut Stamps) -> T) -> T {
    f(&mut actor.harness.locks.borrow_mut().data.lives[opened.life].stamps)
}
