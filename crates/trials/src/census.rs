//! The census: when all has come to rest, nothing may be left of what sessions made and gave up.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use halite::{NodeId, NodeStatus, PeerExplained, Permissions, Placement, RegionCause, Session};

use crate::regions;
use crate::stage::{CHUNK_BYTES, PRINCIPALS, Stage};
use crate::{barriers, giving_up::before, locks, watches, words};

/// How many leases it may take until all is as it should be: deaths must be noticed first.
const PATIENCE_LEASES: u32 = 40;

/// Restarts whoever was taken for dead by some, frees what is left of regions and locks, and looks for more.
pub(crate) async fn take(stage: &Rc<Stage>) {
    while !all_up(stage) && stage.judge.is_content() {
        stage.revive_the_killed();
        stage.world.sleep(None, Duration::from_micros(50)).await;
    }
    let lost: Vec<u32> = (0..stage.nodes()).filter(|node| stage.was_isolated(*node)).collect();
    lost.iter().for_each(|node| stage.crash(*node));
    stage.world.sleep(None, stage.plan.lease() * 4).await;
    lost.iter().for_each(|node| stage.restart(*node));
    // Of two homes that lost sight of each other both may have made a region of one name; the one that the directory does
    // not believe keeps its region for as long as its node lives.
    let exact = lost.is_empty();
    let patience = stage.plan.lease() * PATIENCE_LEASES;
    let calls = RefCell::default();
    let counted = async {
        while !all_up(stage) {
            stage.revive_the_killed();
            stage.world.sleep(None, Duration::from_micros(50)).await;
        }
        let driven = stage.driven(0).expect("it is up");
        for principal in PRINCIPALS {
            free_all(&driven.session_of(principal).expect("the name is a good one")).await;
        }
        count(stage, &driven.session(), exact).await;
        for node in 0..stage.nodes() {
            count_calls(stage, node, &calls).await;
        }
        // A node that the directory does not see cannot tell it that a name is free.
        if stage.is_undisturbed() {
            take_names(stage, &driven.session()).await;
        }
    };
    if before(stage.world.sleep(None, patience), counted).await.is_none() {
        let left = match stage.driven(0) {
            Some(driven) => {
                let session = driven.session();
                let seen = before(stage.world.sleep(None, patience), left(&session, exact)).await;
                let or_else = |left: String| {
                    [left, calls.take(), "a name".to_owned()].into_iter().find(|it| !it.is_empty())
                };
                seen.flatten().and_then(or_else).unwrap_or_else(|| "node 0 does not find out".to_owned())
            }
            None => "node 0 is not there".to_owned(),
        };
        stage
            .judge
            .violated(format!("{patience:?} after all sessions have ended, something is left: {left}"));
    }
}

fn all_up(stage: &Stage) -> bool {
    (0..stage.nodes()).all(|node| stage.is_up(node))
}

fn region_names() -> impl Iterator<Item = String> {
    regions::names().chain(words::names()).chain(watches::names()).chain(locks::data_names())
}

async fn free_all(session: &Session) {
    for name in region_names() {
        while let Ok(lh) = session.map(&name, Permissions::MASTER).await {
            // Whoever was about to free it may be faster.
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

/// Waits until nothing is left.
async fn count(stage: &Stage, session: &Session, exact: bool) {
    while left(session, exact).await.is_none_or(|left| !left.is_empty()) {
        stage.world.sleep(None, Duration::from_micros(100)).await;
    }
}

/// Waits until a node awaits no answers any more, and keeps none.  Meanwhile `left` says what there is.
async fn count_calls(stage: &Stage, node: u32, left: &RefCell<String>) {
    let session = stage.driven(node).expect("it is up").session();
    for other in (0..stage.nodes()).map(NodeId) {
        while let Some(calls) = calls_left(&session, other).await {
            left.replace(format!("at node {node}: {calls}"));
            stage.world.sleep(None, Duration::from_micros(100)).await;
        }
    }
    left.take();
}

/// What is under way between a session's node and another, in words.
async fn calls_left(session: &Session, other: NodeId) -> Option<String> {
    match session.explain_peer(other).await {
        Ok(PeerExplained { calls_under_way: 0, answers_kept: 0, .. }) => None,
        Ok(PeerExplained { calls_under_way, answers_kept, .. }) => {
            Some(format!("{calls_under_way} calls to node {other}, and {answers_kept} answers kept for it"))
        }
        Err(error) => Some(error.to_string()),
    }
}

/// Waits until every name can be given to somebody else: one that leads nowhere stands in no list.
async fn take_names(stage: &Stage, session: &Session) {
    for name in region_names() {
        let lh = loop {
            match session.alloc(Some(&name), 8, Placement::Local, Permissions::empty()).await {
                Ok(lh) => break lh,
                Err(error) => stage.world.note(None, format_args!("the census: {error}")),
            }
            stage.world.sleep(None, Duration::from_micros(100)).await;
        };
        // Nobody else does anything any more.
        let _ = session.free(lh).await;
    }
}

/// What is left, in words; nothing if all is clean, and `None` while somebody cannot be asked.
async fn left(session: &Session, exact: bool) -> Option<String> {
    let all = session.status().await.ok()?;
    let dirty = all.iter().filter(|status| !is_clean(status, exact)).map(|status| {
        let NodeStatus { node, bytes_used, bytes_quarantined, regions, mappings, .. } = status;
        format!(
            "node {node}: {bytes_used} bytes ({} chunks), {bytes_quarantined} in quarantine, {regions} regions, {mappings} mappings",
            bytes_used / CHUNK_BYTES
        )
    });
    let mut left: Vec<String> = dirty.collect();
    match session.list().await {
        Ok(named) => left.extend(named.iter().filter_map(|info| info.name.clone())),
        Err(error) if error.cause == RegionCause::DirectoryDown => return None,
        Err(error) => left.push(error.to_string()),
    }
    Some(left.join("; "))
}

fn is_clean(status: &NodeStatus, exact: bool) -> bool {
    let has_regions = (status.bytes_used, status.regions) != (0, 0);
    (status.bytes_quarantined, status.mappings) == (0, 0) && !(exact && has_regions)
}
