//! Watches: sessions write with notifications while other sessions watch. Meanwhile, the regions are moved and freed,
//! and their permissions change. [`watcher`] defines the valid notifications; [`ledger`] and [`lives`] record known
//! facts.

mod ledger;
mod lives;
mod watcher;

use halite::{
    AccessCause, Lh, NodeId, NotifyCause, NotifyError, Permissions, Placement, RegionCause, RegionError, Who,
};

use crate::actor::{Actor, pick};
use crate::harness::{Harness, PRINCIPALS};
use crate::judge::may_follow_fault;
use ledger::{Number, Writer};
use lives::{Life, SLOTS, Write};
pub(crate) use watcher::serve;

use crate::regions::permissions::KnownPermissions;

const NAMES: usize = 2;
const EVERYONE: Permissions = Permissions::READ.union(Permissions::WRITE);

#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// All regions so far. Each is longer than the previous one, so that its length identifies it.
    lives: Vec<Life>,
    /// Number of the last notification.
    last: Number,
}

/// The regions that a session has mapped, by name.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    mappings: [Option<Mapping>; NAMES],
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    lh: Lh,
    life: usize,
    /// Permissions of the mapping; the creator is a master.
    permissions: Permissions,
}

/// Returns the names of watched regions.
pub(crate) fn names() -> impl Iterator<Item = String> {
    (0..NAMES).map(name_of)
}

fn name_of(name: usize) -> String {
    format!("n{name}")
}

pub(crate) async fn run_operation(actor: &mut Actor) {
    let name = actor.random.index(NAMES);
    let Some(mapping) = actor.watches.mappings[name] else { return open(actor, name).await };
    let is_master = mapping.permissions.contains(Permissions::MASTER);
    match pick(&mut actor.random, if is_master { &[60, 1, 6, 4, 3, 3] } else { &[60, 2, 0, 0, 0, 0] }) {
        0 => notify(actor, name, mapping).await,
        1 if is_master => notify(actor, name, mapping).await,
        1 => unmap(actor, name, mapping).await,
        2 => move_away(actor, name, mapping).await,
        3 => grant(actor, name, mapping).await,
        4 => revoke(actor, name, mapping).await,
        _ => free(actor, name, mapping).await,
    }
}

fn with_life<T>(harness: &Harness, life: usize, f: impl FnOnce(&mut Life) -> T) -> T {
    f(&mut harness.watches.borrow_mut().lives[life])
}

// Allocation and end of regions.

async fn open(actor: &mut Actor, name: usize) {
    let permissions = if actor.random.chance(1, 10) { Permissions::READ } else { EVERYONE };
    match map(actor, name, permissions).await {
        Some(Ok(mapping)) => actor.watches.mappings[name] = Some(mapping),
        Some(Err(RegionCause::NotFound | RegionCause::Lost(_))) => create(actor, name).await,
        _ => {}
    }
}

/// Maps a name; `None` if the operation was cancelled, or is a violation.
async fn map(
    actor: &mut Actor,
    name: usize,
    permissions: Permissions,
) -> Option<Result<Mapping, RegionCause>> {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    match actor.attempt("map watched", session.map(&name_of(name), permissions)).await? {
        Ok(lh) => {
            let life = lives::by_len(session.len(lh).ok()?);
            let is_known = |life: &usize| *life < actor.harness.watches.borrow().lives.len();
            let Some(life) = life.filter(is_known) else {
                actor.expect(false, begin_ns, "the region has a length that no life had");
                return None;
            };
            actor.trace_life(life);
            Some(Ok(Mapping { lh, life, permissions }))
        }
        Err(error) => {
            let is_denied = matches!(error.cause, RegionCause::PermissionDenied { .. });
            let is_absent = matches!(error.cause, RegionCause::NotFound | RegionCause::Stale);
            // It is unknown which life the error concerns.
            let is_explained = is_denied || is_absent || fault_explains(&actor.harness, &error.cause);
            actor.expect_reason(is_explained, begin_ns, &error);
            Some(Err(error.cause))
        }
    }
}

async fn create(actor: &mut Actor, name: usize) {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let life = {
        let lives = &mut actor.harness.watches.borrow_mut().lives;
        lives.push(Life::new(KnownPermissions::new(actor.principal, EVERYONE)));
        lives.len() - 1
    };
    let nodes = u64::from(actor.harness.nodes());
    let [one, other] = [(); 2].map(|()| NodeId(actor.random.below(nodes) as u32));
    let placement = if one == other { Placement::On(one) } else { Placement::Spread(vec![one, other]) };
    let text = name_of(name);
    let allocation = session.alloc(Some(&text), lives::bytes_of(life), placement, EVERYONE);
    match actor.attempt("alloc watched", allocation).await {
        Some(Ok(lh)) => {
            let permissions = EVERYONE.union(Permissions::MASTER);
            actor.trace_life(life);
            actor.watches.mappings[name] = Some(Mapping { lh, life, permissions });
        }
        // An unused region is freed.
        failure => {
            with_life(&actor.harness, life, |life| life.is_being_freed = true);
            if let Some(Err(error)) = failure {
                let is_taken = matches!(error.cause, RegionCause::NameTaken | RegionCause::NoSpace { .. });
                let is_explained = is_taken || fault_explains(&actor.harness, &error.cause);
                actor.expect_reason(is_explained, begin_ns, &error);
            }
        }
    }
}

async fn unmap(actor: &mut Actor, name: usize, mapping: Mapping) {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    actor.watches.mappings[name] = None;
    let result = actor.attempt("unmap watched", session.unmap(mapping.lh)).await;
    check_command(actor, name, mapping, begin_ns, result);
}

async fn free(actor: &mut Actor, name: usize, mapping: Mapping) {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    actor.trace_life(mapping.life);
    with_life(&actor.harness, mapping.life, |life| life.is_being_freed = true);
    let result = actor.attempt("free watched", session.free(mapping.lh)).await;
    if let Some(Ok(())) = result {
        let now_ns = actor.now_ns();
        with_life(&actor.harness, mapping.life, |life| life.freed_ns = now_ns);
    }
    actor.watches.mappings[name] = None;
    check_command(actor, name, mapping, begin_ns, result);
}

async fn move_away(actor: &mut Actor, name: usize, mapping: Mapping) {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let to = NodeId(actor.random.below(actor.harness.nodes().into()) as u32);
    actor.trace_life(mapping.life);
    let result = actor.attempt("move watched", session.move_to(mapping.lh, to)).await;
    check_command(actor, name, mapping, begin_ns, result);
}

async fn grant(actor: &mut Actor, name: usize, mapping: Mapping) {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let (principal, permissions) = random_change(actor);
    with_life(&actor.harness, mapping.life, |life| life.permissions.begin_grant(principal, permissions));
    let to = Who::Principal(PRINCIPALS[principal].to_owned());
    let result = actor.attempt("grant watched", session.grant(mapping.lh, to, permissions)).await;
    if let Some(Ok(())) = result {
        let now_ns = actor.now_ns();
        with_life(&actor.harness, mapping.life, |life| {
            life.permissions.end_grant(principal, permissions, now_ns)
        });
    }
    check_command(actor, name, mapping, begin_ns, result);
}

async fn revoke(actor: &mut Actor, name: usize, mapping: Mapping) {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let (principal, permissions) = random_change(actor);
    with_life(&actor.harness, mapping.life, |life| {
        life.permissions.begin_revoke(principal, permissions);
        life.revoked[principal] = true;
    });
    let from = Who::Principal(PRINCIPALS[principal].to_owned());
    let result = actor.attempt("revoke watched", session.revoke(mapping.lh, from, permissions)).await;
    if let Some(Ok(())) = result {
        let now_ns = actor.now_ns();
        with_life(&actor.harness, mapping.life, |life| {
            life.permissions.end_revoke(principal, permissions, now_ns)
        });
    }
    check_command(actor, name, mapping, begin_ns, result);
}

/// Chooses a principal and a permission to change. Only the creator changes them, one at a time.
fn random_change(actor: &mut Actor) -> (usize, Permissions) {
    let others = PRINCIPALS.len() - 1;
    let principal = (actor.principal + 1 + actor.random.index(others)) % PRINCIPALS.len();
    (principal, if actor.random.chance(1, 2) { Permissions::READ } else { Permissions::WRITE })
}

/// Checks the result of a command.
fn check_command(
    actor: &mut Actor,
    name: usize,
    mapping: Mapping,
    begin_ns: u64,
    result: Option<Result<(), RegionError>>,
) {
    let Some(Err(error)) = result else { return };
    let is_full = matches!(error.cause, RegionCause::NoSpace { .. });
    let is_explained =
        is_full || is_refusal(actor, mapping.life, Permissions::empty(), begin_ns, &error.cause);
    actor.expect_reason(is_explained, begin_ns, &error);
    if !is_full {
        actor.watches.mappings[name] = None;
    }
}

// Writes.

async fn notify(actor: &mut Actor, name: usize, mapping: Mapping) {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let slot = actor.random.index(SLOTS.len());
    let writer = Writer { node: actor.node, life: actor.incarnation, session: actor.number };
    let (write, bytes) = {
        let watches = &mut *actor.harness.watches.borrow_mut();
        watches.last += 1;
        watches.lives[mapping.life].begin_write(watches.last, writer, slot, begin_ns)
    };
    actor.trace(format_args!("concerns notification {} of life {}", write.number, mapping.life));
    let writing = session.write_notify(mapping.lh, SLOTS[slot], &bytes, write.number);
    let verdict = match actor.attempt("write and notify", writing).await {
        Some(Ok(())) => check_success(actor, mapping, write, begin_ns),
        Some(Err(error)) => {
            let verdict = check_failure(actor, mapping, write, begin_ns, &error);
            handle_error(actor, name, mapping, &error).await;
            verdict.map_err(|reason| format!("{error}: {reason}"))
        }
        None => Ok(()),
    };
    if let Err(reason) = verdict {
        let (number, life) = (write.number, mapping.life);
        actor.expect(false, begin_ns, format_args!("notification {number} of life {life}: {reason}"));
    }
}

fn check_success(actor: &Actor, mapping: Mapping, write: Write, begin_ns: u64) -> Result<(), String> {
    let (harness, now_ns) = (&actor.harness, actor.now_ns());
    let is_heard = !harness.was_any_node_isolated();
    with_life(harness, mapping.life, |life| {
        if !harness.was_isolated(actor.node) {
            life.end_write(write, now_ns);
        }
        // A watcher that was declared dead, is unreachable or leaves receives nothing.
        let Life { ledger, permissions, .. } = life;
        ledger.end(write.number, now_ns, |watcher| {
            let (node, node_incarnation) = watcher.at;
            let is_there = harness.is_up(node) && harness.incarnation(node) == node_incarnation;
            is_heard
                && is_there
                && permissions.has_had(watcher.principal, Permissions::READ, watcher.begin_ns)
        });
        let is_permitted = mapping.permissions.contains(Permissions::WRITE)
            && life.permissions.may_have(actor.principal, Permissions::WRITE, begin_ns);
        match () {
            () if is_heard && !is_permitted => Err("the write succeeded without permission".to_owned()),
            () if is_heard && life.freed_ns < begin_ns => {
                Err(format!("the write succeeded, but the region was freed at {} ns", life.freed_ns))
            }
            () => Ok(()),
        }
    })
}

fn check_failure(
    actor: &Actor,
    mapping: Mapping,
    write: Write,
    begin_ns: u64,
    error: &NotifyError,
) -> Result<(), String> {
    let (harness, now_ns) = (&actor.harness, actor.now_ns());
    with_life(harness, mapping.life, |life| match &error.cause {
        NotifyCause::Write { partly, .. } => {
            if !partly {
                life.undo_write(write);
            }
            life.ledger.record_undelivered(write.number)
        }
        NotifyCause::Watchers(_) => {
            if !harness.was_isolated(actor.node) {
                life.end_write(write, now_ns);
            }
            life.ledger.record_undelivered(write.number)
        }
        _ => Ok(()),
    })?;
    let is_explained = match &error.cause {
        NotifyCause::Write { cause, .. } => {
            let lacks_permission = !mapping.permissions.contains(Permissions::WRITE);
            (lacks_permission && matches!(cause, AccessCause::PermissionDenied { .. }))
                || is_access_refusal(actor, mapping.life, Permissions::WRITE, begin_ns, cause)
        }
        NotifyCause::Watchers(cause) => is_refusal(actor, mapping.life, Permissions::WRITE, begin_ns, cause),
        // This node or a connection has ended.
        _ => !harness.is_fault_free(),
    };
    if is_explained { Ok(()) } else { Err("without a known cause".to_owned()) }
}

/// Drops a stale handle; sometimes unmaps one without permission.
async fn handle_error(actor: &mut Actor, name: usize, mapping: Mapping, error: &NotifyError) {
    let is_denied = match &error.cause {
        NotifyCause::Write { cause, .. } => matches!(cause, AccessCause::PermissionDenied { .. }),
        NotifyCause::Watchers(cause) => matches!(cause, RegionCause::PermissionDenied { .. }),
        _ => return,
    };
    match is_denied {
        true if actor.random.chance(1, 3) => unmap(actor, name, mapping).await,
        true => {}
        false => actor.watches.mappings[name] = None,
    }
}

// Explanations of errors.

/// Returns true if an access may have been refused for this cause.
fn is_access_refusal(
    actor: &Actor,
    life: usize,
    needed: Permissions,
    begin_ns: u64,
    cause: &AccessCause,
) -> bool {
    let cause = match cause {
        AccessCause::Stale => RegionCause::Stale,
        AccessCause::PermissionDenied { missing } => RegionCause::PermissionDenied { missing: *missing },
        AccessCause::PeerDown(node) | AccessCause::LinkLost(node) => RegionCause::PeerDown(*node),
        AccessCause::NodeClosed(node) => RegionCause::NodeClosed(*node),
        _ => return false,
    };
    is_refusal(actor, life, needed, begin_ns, &cause)
}

/// Returns true if a command may have been refused for this cause.
fn is_refusal(actor: &Actor, life: usize, needed: Permissions, begin_ns: u64, cause: &RegionCause) -> bool {
    let harness = &actor.harness;
    with_life(harness, life, |life| match cause {
        RegionCause::Stale | RegionCause::NotFound => {
            let is_being_freed = life.is_being_freed || !harness.sessions_continue();
            is_being_freed || life.revoked[actor.principal] || !harness.is_fault_free()
        }
        RegionCause::PermissionDenied { .. } => {
            life.revoked[actor.principal] || !life.permissions.has_had(actor.principal, needed, begin_ns)
        }
        cause => fault_explains(harness, cause),
    })
}

/// Returns true if a fault of this trial explains the error.
fn fault_explains(harness: &Harness, cause: &RegionCause) -> bool {
    may_follow_fault(cause) && !harness.is_fault_free()
}
