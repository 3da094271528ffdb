//! Permissions that are revoked while they are used. Each session sometimes creates a region, grants another principal
//! access to it, and then revokes the access or seals the region.
//!
//! No third session knows the region, so no third session affects the outcome. The other principal's session is on the
//! same node, so that its commands reach the region's home just before or after the owner's commands.

use std::time::Duration;

use halite::{AccessCause, Lh, NodeId, Permissions, Placement, RegionCause, RegionError, Session, Who};

use crate::actor::Actor;
use crate::futures::both;
use crate::harness::{Harness, PRINCIPALS};
use crate::judge::{access_may_follow_fault, may_follow_fault};

const BYTES: u64 = 64;
const EVERYONE: Permissions = Permissions::READ.union(Permissions::WRITE);
/// Maximum delay between two commands.
const DELAY_NS_MAX: u64 = 4_000;

/// Returns the names of the regions whose permissions are revoked while in use: one per session.
pub(crate) fn names(harness: &Harness) -> impl Iterator<Item = String> + use<> {
    harness.scene_names(harness.plan.work.rights, name)
}

fn name(node: u32, session: u32) -> String {
    format!("d{node}.{session}")
}

/// A region of the actor, and a session of another principal.
struct Scene {
    name: String,
    lh: Lh,
    other: Session,
    grantee: Who,
}

pub(crate) async fn run_operation(actor: &mut Actor) {
    let Some(scene) = prepare(actor).await else { return };
    match actor.random.below(2) {
        0 => revoke_master(actor, &scene).await,
        _ => seal(actor, &scene).await,
    }
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    if let Some(Err(error)) = actor.attempt("free contested", session.free(scene.lh)).await {
        let is_gone = matches!(error.cause, RegionCause::Stale | RegionCause::NotFound);
        actor.expect_reason(is_gone || fault_explains(actor, &error.cause), begin_ns, &error);
    }
}

async fn prepare(actor: &mut Actor) -> Option<Scene> {
    let (session, name, begin_ns) = (actor.session.clone(), name(actor.node, actor.number), actor.now_ns());
    let home = NodeId(actor.random.below(actor.harness.nodes().into()) as u32);
    let allocation = session.alloc(Some(&name), BYTES, Placement::On(home), EVERYONE);
    let lh = match actor.attempt("alloc contested", allocation).await? {
        Ok(lh) => lh,
        Err(error) => {
            // The operation was cancelled, or the home could not be reached to free the region.
            let is_explained = matches!(
                error.cause,
                RegionCause::NameTaken | RegionCause::NoSpace { .. } | RegionCause::Lost(_)
            );
            actor.expect_reason(is_explained || fault_explains(actor, &error.cause), begin_ns, &error);
            free_by_name(actor, &name).await;
            return None;
        }
    };
    let principal = PRINCIPALS[(actor.principal + 1) % PRINCIPALS.len()];
    let other =
        actor.harness.driven(actor.node)?.session_of(principal).expect("the principal's name is valid");
    Some(Scene { name, lh, other, grantee: Who::Principal(principal.to_owned()) })
}

/// Frees the region that has the name.
pub(crate) async fn free_by_name(actor: &mut Actor, name: &str) {
    let session = actor.session.clone();
    let cleared = async {
        let lh = session.map(name, Permissions::MASTER).await?;
        session.free(lh).await
    };
    actor.attempt("clear a name", cleared).await;
}

/// Makes another principal a master. That principal frees the region while its permission is revoked.
async fn revoke_master(actor: &mut Actor, scene: &Scene) {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let Scene { name, lh, other, grantee } = scene;
    let granted = async {
        session.grant(*lh, grantee.clone(), Permissions::MASTER).await?;
        other.map(name, Permissions::MASTER).await
    };
    let Some(Ok(theirs)) = actor.attempt("grant master", granted).await else { return };
    let [revoke_delay_ns, free_delay_ns] = [(); 2].map(|()| actor.random.below(DELAY_NS_MAX));
    let (world, host) = (actor.harness.world.clone(), actor.host);
    let sleep_ns = |ns| world.sleep(Some(host), Duration::from_nanos(ns));
    let revoking = async {
        sleep_ns(revoke_delay_ns).await;
        // Commands are queued, so the free may come after both of these, between them, or before them.
        let first = session.revoke(*lh, Who::Everyone, Permissions::ATOMIC);
        both(first, session.revoke(*lh, grantee.clone(), Permissions::MASTER)).await.1
    };
    let freeing = async {
        sleep_ns(free_delay_ns).await;
        other.free(theirs).await
    };
    let ended = async { Ok::<_, RegionError>(both(revoking, freeing).await) };
    let Some(Ok((revoked, freed))) = actor.attempt("revoke master", ended).await else { return };
    actor.trace(format_args!("revoke: {revoked:?}, free: {freed:?}"));
    // A freed region has no permissions to revoke, and a deposed master cannot free it.
    let is_valid = revoked.is_err() || freed.is_err();
    actor.expect(
        is_valid,
        begin_ns,
        format_args!("{name} was freed by a master whose permission had been revoked"),
    );
    for error in [revoked.err(), freed.err()].into_iter().flatten() {
        let is_expected = matches!(
            error.cause,
            RegionCause::Stale | RegionCause::NotFound | RegionCause::PermissionDenied { .. }
        );
        actor.expect_reason(is_expected || fault_explains(actor, &error.cause), begin_ns, &error);
    }
}

/// Seals the region. Afterwards no session can write to it or map it for writing.
async fn seal(actor: &mut Actor, scene: &Scene) {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let Scene { name, lh, other, .. } = scene;
    let Some(Ok(theirs)) = actor.attempt("map before sealing", other.map(name, EVERYONE)).await else {
        return;
    };
    if !matches!(actor.attempt("seal", session.seal(*lh)).await, Some(Ok(()))) {
        return;
    }
    for (session, lh) in [(&session, *lh), (other, theirs)] {
        let written = actor.attempt("write sealed", session.write(lh, 0, b"scratch")).await;
        let is_right = match &written {
            None => true,
            Some(Ok(())) => false,
            Some(Err(error)) => {
                error.cause == AccessCause::Sealed
                    || access_may_follow_fault(&error.cause) && actor.harness.judge.had_fault()
            }
        };
        actor.expect(
            is_right,
            begin_ns,
            format_args!("{name} is sealed, but a write to it ended with {written:?}"),
        );
    }
    let wanted = if actor.random.chance(1, 2) { Permissions::WRITE } else { EVERYONE };
    match actor.attempt("map sealed for writing", other.map(name, wanted)).await {
        Some(Ok(_)) => {
            actor.expect(false, begin_ns, format_args!("{name} is sealed, but was mapped for {wanted}"));
        }
        Some(Err(error)) => {
            let is_explained = error.cause == RegionCause::Sealed || fault_explains(actor, &error.cause);
            actor.expect_reason(is_explained, begin_ns, &error);
        }
        None => {}
    }
}

fn fault_explains(actor: &Actor, cause: &RegionCause) -> bool {
    may_follow_fault(cause) && actor.harness.judge.had_fault()
}
