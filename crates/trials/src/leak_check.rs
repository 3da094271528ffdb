//! The leak check: after all sessions have ended, no object that they created remains.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use halite::{NodeId, NodeStatus, Permissions, Placement, RegionCause, Session};

use crate::harness::{CHUNK_BYTES, Harness, PRINCIPALS};
use crate::peace::HEALING_LEASES;
use crate::regions;
use crate::{apart, barriers, futures::before, kv, locks, log, rights, watches, words};

/// Number of leases until everything must be freed: deaths must be detected first.
const PATIENCE_LEASES: u32 = 40;
/// Interval between checks.
const CHECK_INTERVAL: Duration = Duration::from_micros(50);

/// Ends all faults, waits until all nodes are connected, frees remaining regions and locks, and checks for leaks.
pub(crate) async fn run(harness: &Rc<Harness>) {
    harness.heal();
    let timeout = harness.plan.lease() * PATIENCE_LEASES;
    // The condition that the check waits for.
    let awaited = RefCell::new("a node that is not up".to_owned());
    let counted = async {
        wait_until_up(harness).await;
        awaited.replace("a node that another does not see".to_owned());
        wait_until_connected(harness).await;
        // Peers may give up a node shortly after the healing, if it was silent before.
        harness.world.sleep(None, harness.plan.lease() * HEALING_LEASES).await;
        wait_until_up(harness).await;
        wait_until_connected(harness).await;
        awaited.replace("regions that node 0 cannot be asked to free".to_owned());
        let driven = harness.driven(0).expect("the node is up");
        for principal in PRINCIPALS {
            free_all(harness, &driven.session_of(principal).expect("the principal's name is valid")).await;
        }
        wait_until_freed(harness, &driven.session(), &awaited).await;
        for node in 0..harness.nodes() {
            wait_for_calls(harness, node, &awaited).await;
        }
        // A node without a connection cannot report a free name to the directory.
        if harness.is_fault_free() {
            check_names_are_free(harness, &driven.session(), &awaited).await;
        }
    };
    if before(harness.world.sleep(None, timeout), counted).await.is_none() {
        let remaining = awaited.take();
        harness.judge.report_violation(format!(
            "{timeout:?} after the end of all sessions, resources remain: {remaining}"
        ));
    }
}

/// Waits until all nodes are up; restarts nodes that no fault will restart.
async fn wait_until_up(harness: &Rc<Harness>) {
    while !(0..harness.nodes()).all(|node| harness.is_up(node)) && harness.judge.is_ok() {
        harness.restart_killed_nodes();
        harness.world.sleep(None, CHECK_INTERVAL).await;
    }
}

/// Waits until all nodes are connected; nodes that lost a connection dial again.
async fn wait_until_connected(harness: &Rc<Harness>) {
    while (0..harness.nodes()).any(|node| lacks_connection(harness, node)) && harness.judge.is_ok() {
        harness.restart_killed_nodes();
        harness.world.sleep(None, CHECK_INTERVAL).await;
    }
}

fn lacks_connection(harness: &Harness, node: u32) -> bool {
    let mut others = (0..harness.nodes()).filter(|other| *other != node && harness.driven(*other).is_some());
    harness.driven(node).is_none()
        || others.any(|other| !harness.can_reach(node, other) || !harness.can_reach(other, node))
}

fn region_names(harness: &Harness) -> impl Iterator<Item = String> {
    let shared = regions::names().chain(words::names()).chain(watches::names()).chain(locks::data_names());
    shared.chain(rights::names(harness)).chain(apart::names(harness))
}

async fn free_all(harness: &Harness, session: &Session) {
    // During a partition, two regions may get the same name. One of them is then renamed to NAME@NODE.
    let named = session.list().await.unwrap_or_default();
    let is_leftover = |name: &String| name.contains('@') || log::is_name(name) || kv::is_name(name);
    let remaining = named.into_iter().filter_map(|info| info.name).filter(is_leftover);
    for name in region_names(harness).chain(remaining) {
        while let Ok(lh) = session.map(&name, Permissions::MASTER).await {
            // Fails if the process that was about to free the region is faster.
            let _ = session.free(lh).await;
        }
    }
    for name in locks::names() {
        let _ = session.free_lock(&name).await;
    }
    for name in barriers::names() {
        let _ = session.free_barrier(&name).await;
    }
}

/// Waits until no region or lock remains.
async fn wait_until_freed(harness: &Harness, session: &Session, awaited: &RefCell<String>) {
    loop {
        match remaining(session).await {
            Some(remaining) if remaining.is_empty() => return,
            Some(remaining) => awaited.replace(remaining),
            None => awaited.replace("the status of all nodes, which node 0 lacks".to_owned()),
        };
        harness.world.sleep(None, 2 * CHECK_INTERVAL).await;
    }
}

/// Waits until a node has no outstanding calls and keeps no answers.
async fn wait_for_calls(harness: &Harness, node: u32, awaited: &RefCell<String>) {
    for other in 0..harness.nodes() {
        loop {
            let driven = harness.driven(node).expect("the node is up");
            let (calls, answers) = driven.under_way(NodeId(other));
            if (calls, answers) == (0, 0) {
                break;
            }
            awaited.replace(format!(
                "at node {node}: {calls} calls to node {other}, and {answers} answers kept for it"
            ));
            drop(driven);
            harness.world.sleep(None, 2 * CHECK_INTERVAL).await;
        }
    }
}

/// Waits until every name can be used again: no list shows a leaked name.
async fn check_names_are_free(harness: &Harness, session: &Session, awaited: &RefCell<String>) {
    for name in region_names(harness) {
        let lh = loop {
            match session.alloc(Some(&name), 8, Placement::Local, Permissions::empty()).await {
                Ok(lh) => break lh,
                Err(error) => awaited.replace(format!("the name {name}: {error}")),
            };
            harness.world.sleep(None, 2 * CHECK_INTERVAL).await;
        };
        // No other session works any more.
        let _ = session.free(lh).await;
    }
}

/// Describes the remaining objects; empty if there are none, `None` if a node does not answer.
async fn remaining(session: &Session) -> Option<String> {
    let all = session.status().await.ok()?;
    let dirty = all.iter().filter(|status| !is_clean(status)).map(|status| {
        let NodeStatus { node, bytes_used, bytes_quarantined, regions, mappings, .. } = status;
        format!(
            "node {node}: {bytes_used} bytes ({} chunks), {bytes_quarantined} in quarantine, {regions} regions, {mappings} mappings",
            bytes_used / CHUNK_BYTES
        )
    });
    let mut remaining: Vec<String> = dirty.collect();
    match session.list().await {
        Ok(named) => remaining.extend(named.iter().filter_map(|info| info.name.clone())),
        Err(error) if is_without_names(&error.cause) => return None,
        Err(error) => remaining.push(error.to_string()),
    }
    Some(remaining.join("; "))
}

fn is_clean(status: &NodeStatus) -> bool {
    let has_regions = (status.bytes_used, status.regions) != (0, 0);
    (status.bytes_quarantined, status.mappings) == (0, 0) && !has_regions
}

fn is_without_names(cause: &RegionCause) -> bool {
    matches!(cause, RegionCause::DirectoryDown | RegionCause::DirectoryUnreachable { .. })
}
