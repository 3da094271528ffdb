//! Operations without permission: commands and atomics through handles that lack the permission for them.

use halite::{NodeId, Permissions, RegionCause, Who};

use super::Mapping;
use super::commands::check_command;
use crate::actor::Actor;
use crate::harness::PRINCIPALS;

/// Tries one operation without permission, which must be refused.
pub(super) async fn run_operation(actor: &mut Actor, mapping: Mapping) {
    if !actor.random.chance(1, 4) {
        return;
    }
    actor.trace_life(mapping.life.0);
    match actor.random.below(5) {
        0 => add(actor, mapping).await,
        choice => command(actor, mapping, choice).await,
    }
}

async fn command(actor: &mut Actor, mapping: Mapping, choice: u64) {
    let (session, lh, begin_ns) = (actor.session.clone(), mapping.lh, actor.now_ns());
    let itself = Who::Principal(PRINCIPALS[actor.principal].to_owned());
    let to = NodeId(actor.random.below(actor.harness.nodes().into()) as u32);
    let result = match choice {
        1 => actor.attempt("free without permission", session.free(lh)).await,
        2 => actor.attempt("grant without permission", session.grant(lh, itself, Permissions::WRITE)).await,
        3 => actor.attempt("revoke without permission", session.revoke(lh, itself, Permissions::READ)).await,
        _ => actor.attempt("move without permission", session.move_to(lh, to)).await,
    };
    match result {
        Some(Err(error)) if matches!(error.cause, RegionCause::PermissionDenied { .. }) => {}
        Some(Err(error)) => check_command(actor, mapping, &error, begin_ns),
        Some(Ok(())) => report_success(actor, begin_ns, "executed a command"),
        None => {}
    }
}

async fn add(actor: &mut Actor, mapping: Mapping) {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let result = actor.attempt("add without permission", session.fetch_add(mapping.lh, 0, 1)).await;
    // The operation may be refused for any reason.
    if let Some(Ok(_)) = result {
        report_success(actor, begin_ns, "changed a word");
    }
}

fn report_success(actor: &Actor, begin_ns: u64, what: &str) {
    actor.expect(false, begin_ns, format_args!("{what} without permission"));
}
