//! Operations on whole regions: alloc, map, grant, move and free.

use halite::{NodeId, Permissions, Placement, RegionCause, RegionError, Who};

use super::lives::{Life, LifeId};
use super::words::NEVER;
use super::{Mapping, NAMES};
use crate::actor::Actor;
use crate::harness::PRINCIPALS;
use crate::judge::{may_follow_fault, reports_unreachable_node};

const READ_WRITE: Permissions = Permissions::READ.union(Permissions::WRITE);
const ALL: Permissions = READ_WRITE.union(Permissions::MASTER).union(Permissions::ATOMIC);
/// Maximum number of regions that a session maps.
const HELD_MAX: usize = 6;

/// Returns the names of a trial's regions.
pub(crate) fn names() -> impl Iterator<Item = String> {
    (0..NAMES as usize).map(name_of)
}

pub(super) fn name_of(name: usize) -> String {
    format!("r{name}")
}

fn random_permissions(actor: &mut Actor) -> Permissions {
    match actor.random.below(4) {
        0 => Permissions::READ,
        1 => Permissions::WRITE,
        2 => Permissions::empty(),
        _ => READ_WRITE,
    }
}

pub(super) async fn alloc(actor: &mut Actor) {
    if actor.regions.mappings.len() >= HELD_MAX {
        return;
    }
    let name = actor.random.below(NAMES) as usize;
    let everyone = random_permissions(actor);
    let is_long = actor.random.chance(actor.harness.plan.work.long_regions_per_mille.into(), 1000);
    let placement = random_placement(actor);
    let begin_ns = actor.now_ns();
    let begun =
        actor.harness.regions.borrow_mut().begin_life(begin_ns, name, actor.principal, everyone, is_long);
    let Some((id, len)) = begun else { return };
    record_places(actor, id, nodes_of(actor, &placement));
    let session = actor.session.clone();
    let text = name_of(name);
    actor.trace(format_args!("will create {text} with {len} bytes on {placement:?}: life {}", id.0));
    let result = actor.attempt("alloc", session.alloc(Some(&text), len, placement, everyone)).await;
    match result {
        Some(Ok(lh)) => {
            check_name_was_free(actor, id, begin_ns);
            with_life(actor, id, |life| life.allocated_ns = actor.now_ns());
            actor.trace_life(id.0);
            actor.regions.mappings.push(Mapping { lh, life: id, permissions: ALL, begin_ns });
        }
        Some(Err(error)) => {
            let is_taken = error.cause == RegionCause::NameTaken;
            if !may_have_run(&error) {
                with_life(actor, id, |life| life.freed_ns = actor.now_ns());
            }
            let was_taken = || {
                let regions = actor.harness.regions.borrow();
                let others = regions
                    .named(name)
                    .filter(|life| life.alloc_begin_ns < begin_ns || life.allocated_ns != NEVER);
                others.into_iter().any(|life| life.may_have_lived(begin_ns))
            };
            let is_explained = match &error.cause {
                RegionCause::NameTaken => {
                    actor.harness.judge.had_fault() || was_taken() || is_contested(actor, id)
                }
                RegionCause::NoSpace { .. } => true,
                _ => fault_explains(actor, &error, begin_ns),
            };
            actor.expect_reason(is_explained || (is_taken && was_taken()), begin_ns, &error);
        }
        // The node frees the region of a cancelled allocation.
        None => with_life(actor, id, |life| life.free_begin_ns = begin_ns),
    }
}

fn with_life<T>(actor: &Actor, id: LifeId, f: impl FnOnce(&mut Life) -> T) -> T {
    f(actor.harness.regions.borrow_mut().life_mut(id))
}

/// Returns true if another allocation of the same name was in progress.
fn is_contested(actor: &Actor, id: LifeId) -> bool {
    let regions = actor.harness.regions.borrow();
    let life = regions.life(id);
    regions.named(life.name).filter(|other| other.may_have_lived(life.alloc_begin_ns)).count() > 1
}

fn check_name_was_free(actor: &Actor, id: LifeId, begin_ns: u64) {
    let regions = actor.harness.regions.borrow();
    let name = regions.life(id).name;
    let must_exist = |life: &&Life| life.has_lived_since(begin_ns) && must_be_intact(actor, life);
    let other = regions.named(name).find(must_exist);
    if let Some(other) = other {
        actor.harness.judge.report_violation(format!(
            "r{name} was allocated from {begin_ns} to {} ns, but had existed since {} ns",
            actor.now_ns(),
            other.allocated_ns
        ));
    }
}

fn random_placement(actor: &mut Actor) -> Placement {
    let nodes = u64::from(actor.harness.nodes());
    let node = NodeId(actor.random.below(nodes) as u32);
    match actor.random.below(3) {
        0 => Placement::Local,
        1 => Placement::On(node),
        // Each node is the home of some regions.
        _ => Placement::Spread(
            (0..nodes.min(3)).map(|step| NodeId(((u64::from(node.0) + step) % nodes) as u32)).collect(),
        ),
    }
}

fn nodes_of(actor: &Actor, placement: &Placement) -> Vec<u32> {
    match placement {
        Placement::On(node) => vec![node.0],
        Placement::Spread(nodes) => nodes.iter().map(|node| node.0).collect(),
        _ => vec![actor.node],
    }
}

fn record_places(actor: &Actor, id: LifeId, nodes: Vec<u32>) {
    let places = nodes.into_iter().map(|node| (node, actor.harness.incarnation(node)));
    with_life(actor, id, |life| life.add_places(places));
}

pub(super) async fn map(actor: &mut Actor) {
    if actor.regions.mappings.len() >= HELD_MAX {
        return;
    }
    let name = actor.random.below(NAMES) as usize;
    let wanted = match actor.random.below(3) {
        0 => Permissions::READ,
        1 => Permissions::WRITE,
        _ => READ_WRITE,
    };
    let begin_ns = actor.now_ns();
    let session = actor.session.clone();
    let text = name_of(name);
    actor.trace(format_args!("will map {text}"));
    let result = actor.attempt("map", session.map(&text, wanted)).await;
    match result {
        Some(Ok(lh)) => record_mapping(actor, name, wanted, lh, begin_ns),
        Some(Err(error)) => {
            let is_explained = match &error.cause {
                RegionCause::NotFound | RegionCause::Stale | RegionCause::Lost(_) => {
                    !must_be_found(actor, name, begin_ns)
                }
                RegionCause::PermissionDenied { .. } => {
                    let is_stale = actor.harness.was_any_node_isolated();
                    is_stale || !must_be_permitted(actor, name, wanted, begin_ns)
                }
                _ => fault_explains(actor, &error, begin_ns),
            };
            actor.expect_reason(is_explained, begin_ns, &error);
        }
        None => {}
    }
}

fn record_mapping(actor: &mut Actor, name: usize, wanted: Permissions, lh: halite::Lh, begin_ns: u64) {
    // The region may have been freed since.
    let Ok(len) = actor.session.len(lh) else { return };
    let harness = actor.harness.clone();
    let regions = harness.regions.borrow();
    let Some(id) = regions.by_len(len).filter(|id| regions.life(*id).name == name) else {
        return harness
            .judge
            .report_violation(format!("r{name} was mapped with {len} bytes, which no such region ever had"));
    };
    let life = regions.life(id);
    // A directory that was cut off from the home may not know that the region was freed.
    let is_heard = !harness.was_any_node_isolated();
    harness.judge.expect(life.may_have_lived(begin_ns) || !is_heard, || {
        format!("r{name} (life {}) was mapped at {begin_ns} ns, after its end at {} ns", id.0, life.freed_ns)
    });
    harness.judge.expect(life.permissions.may_have(actor.principal, wanted, begin_ns) || !is_heard, || {
        format!(
            "{} mapped r{name} (life {}) for {wanted} without permission",
            PRINCIPALS[actor.principal], id.0
        )
    });
    actor.trace_life(id.0);
    actor.regions.mappings.push(Mapping { lh, life: id, permissions: wanted, begin_ns });
}

fn must_be_found(actor: &Actor, name: usize, begin_ns: u64) -> bool {
    let regions = actor.harness.regions.borrow();
    regions.named(name).any(|life| life.has_lived_since(begin_ns) && must_be_intact(actor, life))
}

/// Returns true if all nodes that hold the region are up in the same incarnation.
pub(super) fn is_intact(actor: &Actor, life: &Life) -> bool {
    let harness = &actor.harness;
    life.is_intact(|node, incarnation| harness.is_up(node) && harness.incarnation(node) == incarnation)
}

/// Returns true if the region can be found by its name: no node has lost a connection to the region's nodes.
fn must_be_intact(actor: &Actor, life: &Life) -> bool {
    !actor.harness.judge.had_fault() || (!actor.harness.was_any_node_isolated() && is_intact(actor, life))
}

fn must_be_permitted(actor: &Actor, name: usize, wanted: Permissions, begin_ns: u64) -> bool {
    let regions = actor.harness.regions.borrow();
    let mut candidates = regions.named(name).filter(|life| life.may_have_lived(begin_ns));
    candidates.all(|life| life.permissions.has_had(actor.principal, wanted, begin_ns))
}

pub(super) async fn unmap(actor: &mut Actor, mapping: Mapping) {
    let session = actor.session.clone();
    let begin_ns = actor.now_ns();
    actor.trace_life(mapping.life.0);
    let result = actor.attempt("unmap", session.unmap(mapping.lh)).await;
    actor.regions.mappings.retain(|each| each.lh != mapping.lh);
    if let Some(Err(error)) = result {
        let is_explained =
            error.cause == RegionCause::Stale || fault_explains(actor, &error, mapping.begin_ns);
        actor.expect_reason(is_explained, begin_ns, &error);
    }
}

pub(super) async fn free(actor: &mut Actor, mapping: Mapping) {
    if !mapping.permissions.contains(Permissions::MASTER) {
        return;
    }
    let begin_ns = actor.now_ns();
    with_life(actor, mapping.life, |life| life.free_begin_ns = life.free_begin_ns.min(begin_ns));
    let session = actor.session.clone();
    actor.trace_life(mapping.life.0);
    let Some(result) = actor.attempt("free", session.free(mapping.lh)).await else { return };
    actor.regions.mappings.retain(|each| each.lh != mapping.lh);
    match result {
        Ok(()) => {
            let now_ns = actor.now_ns();
            with_life(actor, mapping.life, |life| life.freed_ns = life.freed_ns.min(now_ns));
        }
        Err(error) => check_command(actor, mapping, &error, begin_ns),
    }
}

pub(super) async fn grant(actor: &mut Actor, mapping: Mapping) {
    let Some((principal, permissions)) = random_change(actor, mapping) else { return };
    let begin_ns = actor.now_ns();
    with_life(actor, mapping.life, |life| life.permissions.begin_grant(principal, permissions));
    let session = actor.session.clone();
    let to = Who::Principal(PRINCIPALS[principal].to_owned());
    actor.trace_life(mapping.life.0);
    let result = actor.attempt("grant", session.grant(mapping.lh, to, permissions)).await;
    match result {
        Some(Ok(())) => {
            let now_ns = actor.now_ns();
            with_life(actor, mapping.life, |life| life.permissions.end_grant(principal, permissions, now_ns));
        }
        Some(Err(error)) => check_command(actor, mapping, &error, begin_ns),
        None => {}
    }
}

pub(super) async fn revoke(actor: &mut Actor, mapping: Mapping) {
    let Some((principal, permissions)) = random_change(actor, mapping) else { return };
    let begin_ns = actor.now_ns();
    with_life(actor, mapping.life, |life| {
        life.permissions.begin_revoke(principal, permissions);
        life.revoked[principal] = true;
    });
    let session = actor.session.clone();
    let from = Who::Principal(PRINCIPALS[principal].to_owned());
    actor.trace_life(mapping.life.0);
    let result = actor.attempt("revoke", session.revoke(mapping.lh, from, permissions)).await;
    match result {
        Some(Ok(())) => {
            let now_ns = actor.now_ns();
            with_life(actor, mapping.life, |life| {
                life.permissions.end_revoke(principal, permissions, now_ns)
            });
        }
        Some(Err(error)) => check_command(actor, mapping, &error, begin_ns),
        None => {}
    }
}

/// Chooses a principal and a permission to change. Only the owner changes them, one at a time.
fn random_change(actor: &mut Actor, mapping: Mapping) -> Option<(usize, Permissions)> {
    if !mapping.permissions.contains(Permissions::MASTER) {
        return None;
    }
    let others = PRINCIPALS.len() - 1;
    let principal = (actor.principal + 1 + actor.random.index(others)) % PRINCIPALS.len();
    let permissions = if actor.random.chance(1, 2) { Permissions::READ } else { Permissions::WRITE };
    Some((principal, permissions))
}

pub(super) async fn move_away(actor: &mut Actor, mapping: Mapping) {
    if !mapping.permissions.contains(Permissions::MASTER) {
        return;
    }
    let to = NodeId(actor.random.below(actor.harness.nodes().into()) as u32);
    let begin_ns = actor.now_ns();
    record_places(actor, mapping.life, vec![to.0]);
    let session = actor.session.clone();
    actor.trace_life(mapping.life.0);
    let result = actor.attempt("move", session.move_to(mapping.lh, to)).await;
    if let Some(Err(error)) = result {
        let is_explained = matches!(error.cause, RegionCause::NoSpace { .. });
        if !is_explained {
            check_command(actor, mapping, &error, begin_ns);
        }
    }
}

/// Checks the refusal of a command by the region's owner.
pub(super) fn check_command(actor: &Actor, mapping: Mapping, error: &RegionError, begin_ns: u64) {
    let is_ending = actor.harness.regions.borrow().life(mapping.life).free_begin_ns != NEVER;
    let is_gone = matches!(error.cause, RegionCause::Stale | RegionCause::NotFound);
    actor.expect_reason(
        (is_gone && is_ending) || fault_explains(actor, error, mapping.begin_ns),
        begin_ns,
        error,
    );
}

/// Returns true if the failed command may have been executed.
fn may_have_run(error: &RegionError) -> bool {
    matches!(
        error.cause,
        RegionCause::PeerDown(_)
            | RegionCause::NotMet(_)
            | RegionCause::NodeClosed(_)
            | RegionCause::DirectoryDown
            | RegionCause::DirectoryUnreachable { .. }
    )
}

/// Returns true if a fault of this trial explains an error of an operation on an object that exists since `since_ns`.
fn fault_explains(actor: &Actor, error: &RegionError, since_ns: u64) -> bool {
    let is_due = reports_unreachable_node(&error.cause) && actor.harness.was_peace_since(since_ns);
    may_follow_fault(&error.cause) && actor.harness.judge.had_fault() && !is_due
}
