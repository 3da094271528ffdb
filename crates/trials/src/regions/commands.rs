//! Operations on whole regions: alloc, map, grant, move and free.

use halite::{NodeId, Permissions, Placement, RegionCause, RegionError, Who};

use super::lives::{Life, LifeId};
use super::words::NEVER;
use super::{Holding, NAMES};
use crate::actor::Actor;
use crate::harness::PRINCIPALS;
use crate::judge::may_follow_fault;
use crate::peace::reports_unreachable_node;

const RIGHTS: Permissions = Permissions::READ.union(Permissions::WRITE);
const ALL: Permissions = RIGHTS.union(Permissions::MASTER).union(Permissions::ATOMIC);
/// Maximum number of regions that a session maps.
const HELD_MAX: usize = 6;

/// Returns the names of a trial's regions.
pub(crate) fn names() -> impl Iterator<Item = String> {
    (0..NAMES as usize).map(name_of)
}

pub(super) fn name_of(name: usize) -> String {
    format!("r{name}")
}

fn random_rights(actor: &mut Actor) -> Permissions {
    match actor.random.below(4) {
        0 => Permissions::READ,
        1 => Permissions::WRITE,
        2 => Permissions::empty(),
        _ => RIGHTS,
    }
}

pub(super) async fn alloc(actor: &mut Actor) {
    if actor.regions.held.len() >= HELD_MAX {
        return;
    }
    let name = actor.random.below(NAMES) as usize;
    let everyone = random_rights(actor);
    let is_long = actor.random.chance(actor.harness.plan.work.long_regions_per_mille.into(), 1000);
    let placement = random_placement(actor);
    let begin_ns = actor.now_ns();
    let begun =
        actor.harness.regions.borrow_mut().begin_life(begin_ns, name, actor.principal, everyone, is_long);
    let Some((id, len)) = begun else { return };
    record_places(actor, id, nodes_of(actor, &placement));
    let session = actor.session.clone();
    let text = name_of(name);
    let number = actor.number;
    let line =
        format_args!("session {number} will create {text} with {len} bytes on {placement:?}: life {}", id.0);
    actor.harness.world.note(Some(actor.host), line);
    let result = actor.attempt("alloc", session.alloc(Some(&text), len, placement, everyone)).await;
    match result {
        Some(Ok(lh)) => {
            check_name_was_free(actor, id, begin_ns);
            actor.harness.regions.borrow_mut().life_mut(id).allocated_ns = actor.now_ns();
            actor.note_life(id.0);
            actor.regions.held.push(Holding { lh, life: id, wanted: ALL, begun_ns: begin_ns });
        }
        Some(Err(error)) => {
            let is_taken = error.cause == RegionCause::NameTaken;
            if !may_have_run(&error) {
                actor.harness.regions.borrow_mut().life_mut(id).ended_ns = actor.now_ns();
            }
            let was_taken = || {
                let regions = actor.harness.regions.borrow();
                let others =
                    regions.named(name).filter(|life| life.begun_ns < begin_ns || life.allocated_ns != NEVER);
                others.into_iter().any(|life| life.may_have_lived(begin_ns))
            };
            let is_explained = match &error.cause {
                RegionCause::NameTaken => {
                    !actor.harness.judge.is_calm() || was_taken() || is_contested(actor, id)
                }
                RegionCause::NoSpace { .. } => true,
                _ => fault_explains(actor, &error, begin_ns),
            };
            actor.expect_reason(is_explained || (is_taken && was_taken()), begin_ns, &error);
        }
        // The node frees the region of a cancelled allocation.
        None => actor.harness.regions.borrow_mut().life_mut(id).end_begun_ns = begin_ns,
    }
}

/// Returns true if another allocation of the same name was in progress.
fn is_contested(actor: &Actor, id: LifeId) -> bool {
    let regions = actor.harness.regions.borrow();
    let life = regions.life(id);
    regions.named(life.name).filter(|other| other.may_have_lived(life.begun_ns)).count() > 1
}

fn check_name_was_free(actor: &Actor, id: LifeId, begin_ns: u64) {
    let regions = actor.harness.regions.borrow();
    let name = regions.life(id).name;
    let must_exist = |life: &&Life| life.has_lived_since(begin_ns) && must_be_intact(actor, life);
    let other = regions.named(name).find(must_exist);
    if let Some(other) = other {
        actor.harness.judge.violated(format!(
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
    let harness = &actor.harness;
    let places = nodes.into_iter().map(|node| (node, harness.incarnation(node)));
    harness.regions.borrow_mut().life_mut(id).add_places(places);
}

pub(super) async fn map(actor: &mut Actor) {
    if actor.regions.held.len() >= HELD_MAX {
        return;
    }
    let name = actor.random.below(NAMES) as usize;
    let wanted = match actor.random.below(3) {
        0 => Permissions::READ,
        1 => Permissions::WRITE,
        _ => RIGHTS,
    };
    let begin_ns = actor.now_ns();
    let session = actor.session.clone();
    let text = name_of(name);
    let number = actor.number;
    actor.harness.world.note(Some(actor.host), format_args!("session {number} will map {text}"));
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
            .violated(format!("r{name} was mapped with {len} bytes, which no such region ever had"));
    };
    let life = regions.life(id);
    // A directory that was cut off from the home may not know that the region was freed.
    let is_heard = !harness.was_any_node_isolated();
    harness.judge.expect(life.may_have_lived(begin_ns) || !is_heard, || {
        format!("r{name} (life {}) was mapped at {begin_ns} ns, after its end at {} ns", id.0, life.ended_ns)
    });
    harness.judge.expect(life.rights.may_have(actor.principal, wanted, begin_ns) || !is_heard, || {
        format!(
            "{} mapped r{name} (life {}) for {wanted} without permission",
            PRINCIPALS[actor.principal], id.0
        )
    });
    actor.note_life(id.0);
    actor.regions.held.push(Holding { lh, life: id, wanted, begun_ns: begin_ns });
}

fn must_be_found(actor: &Actor, name: usize, begin_ns: u64) -> bool {
    let regions = actor.harness.regions.borrow();
    regions.named(name).any(|life| life.has_lived_since(begin_ns) && must_be_intact(actor, life))
}

/// Returns true if all nodes that hold the region are up in the same incarnation.
pub(super) fn is_intact(actor: &Actor, life: &Life) -> bool {
    let harness = &actor.harness;
    life.is_intact(|node, life| harness.is_up(node) && harness.incarnation(node) == life)
}

/// Returns true if the region can be found by its name: no node has lost a connection to the region's nodes.
fn must_be_intact(actor: &Actor, life: &Life) -> bool {
    actor.harness.judge.is_calm() || (!actor.harness.was_any_node_isolated() && is_intact(actor, life))
}

fn must_be_permitted(actor: &Actor, name: usize, wanted: Permissions, begin_ns: u64) -> bool {
    let regions = actor.harness.regions.borrow();
    let mut candidates = regions.named(name).filter(|life| life.may_have_lived(begin_ns));
    candidates.all(|life| life.rights.has_had(actor.principal, wanted, begin_ns))
}

pub(super) async fn unmap(actor: &mut Actor, holding: Holding) {
    let session = actor.session.clone();
    let begin_ns = actor.now_ns();
    actor.note_life(holding.life.0);
    let result = actor.attempt("unmap", session.unmap(holding.lh)).await;
    actor.regions.held.retain(|each| each.lh != holding.lh);
    if let Some(Err(error)) = result {
        let is_explained =
            error.cause == RegionCause::Stale || fault_explains(actor, &error, holding.begun_ns);
        actor.expect_reason(is_explained, begin_ns, &error);
    }
}

pub(super) async fn free(actor: &mut Actor, holding: Holding) {
    if !holding.wanted.contains(Permissions::MASTER) {
        return;
    }
    let begin_ns = actor.now_ns();
    {
        let mut regions = actor.harness.regions.borrow_mut();
        let life = regions.life_mut(holding.life);
        life.end_begun_ns = life.end_begun_ns.min(begin_ns);
    }
    let session = actor.session.clone();
    actor.note_life(holding.life.0);
    let result = actor.attempt("free", session.free(holding.lh)).await;
    match result {
        Some(Ok(())) => {
            let now_ns = actor.now_ns();
            let mut regions = actor.harness.regions.borrow_mut();
            let life = regions.life_mut(holding.life);
            life.ended_ns = life.ended_ns.min(now_ns);
            drop(regions);
            actor.regions.held.retain(|each| each.lh != holding.lh);
        }
        Some(Err(error)) => {
            actor.regions.held.retain(|each| each.lh != holding.lh);
            check_command(actor, holding, &error, begin_ns);
        }
        None => {}
    }
}

pub(super) async fn grant(actor: &mut Actor, holding: Holding) {
    let Some((principal, rights)) = random_change(actor, holding) else { return };
    let begin_ns = actor.now_ns();
    actor.harness.regions.borrow_mut().life_mut(holding.life).rights.begin_grant(principal, rights);
    let session = actor.session.clone();
    let to = Who::Principal(PRINCIPALS[principal].to_owned());
    actor.note_life(holding.life.0);
    let result = actor.attempt("grant", session.grant(holding.lh, to, rights)).await;
    match result {
        Some(Ok(())) => {
            let mut regions = actor.harness.regions.borrow_mut();
            regions.life_mut(holding.life).rights.end_grant(principal, rights, actor.now_ns());
        }
        Some(Err(error)) => check_command(actor, holding, &error, begin_ns),
        None => {}
    }
}

pub(super) async fn revoke(actor: &mut Actor, holding: Holding) {
    let Some((principal, rights)) = random_change(actor, holding) else { return };
    let begin_ns = actor.now_ns();
    {
        let mut regions = actor.harness.regions.borrow_mut();
        let life = regions.life_mut(holding.life);
        life.rights.begin_revoke(principal, rights);
        life.revoked[principal] = true;
    }
    let session = actor.session.clone();
    let from = Who::Principal(PRINCIPALS[principal].to_owned());
    actor.note_life(holding.life.0);
    let result = actor.attempt("revoke", session.revoke(holding.lh, from, rights)).await;
    match result {
        Some(Ok(())) => {
            let mut regions = actor.harness.regions.borrow_mut();
            regions.life_mut(holding.life).rights.end_revoke(principal, rights, actor.now_ns());
        }
        Some(Err(error)) => check_command(actor, holding, &error, begin_ns),
        None => {}
    }
}

/// Chooses a principal and a permission to change. Only the owner changes them, one at a time.
fn random_change(actor: &mut Actor, holding: Holding) -> Option<(usize, Permissions)> {
    if !holding.wanted.contains(Permissions::MASTER) {
        return None;
    }
    let others = PRINCIPALS.len() - 1;
    let principal = (actor.principal + 1 + actor.random.index(others)) % PRINCIPALS.len();
    let rights = if actor.random.chance(1, 2) { Permissions::READ } else { Permissions::WRITE };
    Some((principal, rights))
}

pub(super) async fn move_away(actor: &mut Actor, holding: Holding) {
    if !holding.wanted.contains(Permissions::MASTER) {
        return;
    }
    let to = NodeId(actor.random.below(actor.harness.nodes().into()) as u32);
    let begin_ns = actor.now_ns();
    record_places(actor, holding.life, vec![to.0]);
    let session = actor.session.clone();
    actor.note_life(holding.life.0);
    let result = actor.attempt("move", session.move_to(holding.lh, to)).await;
    if let Some(Err(error)) = result {
        let is_explained = matches!(error.cause, RegionCause::NoSpace { .. });
        if !is_explained {
            check_command(actor, holding, &error, begin_ns);
        }
    }
}

/// Checks the refusal of a command by the region's owner.
pub(super) fn check_command(actor: &Actor, holding: Holding, error: &RegionError, begin_ns: u64) {
    let is_ending = actor.harness.regions.borrow().life(holding.life).end_begun_ns != NEVER;
    let is_gone = matches!(error.cause, RegionCause::Stale | RegionCause::NotFound);
    actor.expect_reason(
        (is_gone && is_ending) || fault_explains(actor, error, holding.begun_ns),
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
    may_follow_fault(&error.cause) && !actor.harness.judge.is_calm() && !is_due
}
