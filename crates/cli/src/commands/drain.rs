//! `halite drain`: moves all regions of a node to other nodes, then stops the node if it has no region left.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use halite::cluster_dir::{self, Presence};
use halite::{Drained, Leftover, NodeId, NodeState, NodeStatus, RegionError, RegionInfo};

use crate::args::Drain;
use crate::bytes::ByteCount;
use crate::client::{self, Client};
use crate::output;

/// Maximum time for a drained node to leave.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Polling interval, because no event announces that a node has left.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Drains the node. Returns when the node has left the cluster, or when it stays because regions remain.
pub fn run(dir: &Path, args: &Drain) -> anyhow::Result<ExitCode> {
    let node = NodeId(args.node);
    let client = connect(dir, node).with_context(|| format!("node {node} is not drained"))?;
    // `None` for a node of another host.
    let process = cluster_dir::nodes(dir)?.into_iter().find(|known| known.node == node && known.alive);
    let drained = client.session.drain(node, Duration::from_secs(args.within.into()), args.destroy);
    let mut drained = drained.map_err(|error| explain(error, &client, node))?;
    name_chunks(&client, &mut drained);
    output::print(&(summary(args.node, &drained) + "\n"))?;
    for line in remaining_regions(&drained) {
        output::print(&(line + "\n"))?;
    }
    match drained.left_count > 0 && !args.destroy {
        true => output::print(&format!(
            "node {node} keeps running with these regions; `halite drain {node} --destroy` stops it and loses the regions that cannot move\n"
        ))?,
        false => wait_until_left(dir, &client, node, process.as_ref())?,
    }
    Ok(exit_code(drained.left_count))
}

/// Attaches to another node of this host, joins, or, if node 0 cannot be reached, attaches to the node itself: at once if
/// no other node of this host accepts sessions and the node itself has lost node 0.
fn connect(dir: &Path, node: NodeId) -> anyhow::Result<Client> {
    let has_lost_node_0 =
        |own: &Client| own.session.seen(NodeId(0)).is_some_and(|seen| seen.reason.is_some());
    if client::attach_where(dir, |other| other != node).is_none()
        && let Some(own) = client::attach_to(dir, node).filter(has_lost_node_0)
    {
        return Ok(own);
    }
    let joined = client::attach_to_other(dir, node);
    joined.or_else(|error| client::attach_to(dir, node).ok_or(error))
}

/// Replaces an error that advises to wait for the node, if its process is over.
fn explain(error: RegionError, client: &Client, node: NodeId) -> anyhow::Error {
    // If no node answers, the error stays.
    let nodes = client.session.status().unwrap_or_default();
    match nodes.iter().find(|known| known.node == node).map(|known| known.state) {
        Some(NodeState::Left) => anyhow!("node {node} is not drained: it has left the cluster before"),
        Some(NodeState::Dead) => {
            anyhow!("node {node} is not drained: its process has ended, and its regions are lost")
        }
        _ => error.into(),
    }
}

/// Adds the names of regions of which the node has only chunks: their homes, on other nodes, know the names.
fn name_chunks(client: &Client, drained: &mut Drained) {
    if drained.left.iter().all(|left| left.name.is_some()) {
        return;
    }
    // Without an answer, the regions stay unnamed.
    for RegionInfo { region, name, .. } in client.session.list().unwrap_or_default() {
        if let Some(left) = drained.left.iter_mut().find(|left| left.region == region) {
            left.name = name;
        }
    }
}

/// Waits until all members know that the node has left, and its process, if it is on this host, has ended. The node's
/// number can then be used again. A session of the node itself ends with it, and sees the end of the process only.
fn wait_until_left(
    dir: &Path,
    client: &Client,
    node: NodeId,
    process: Option<&Presence>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + LEAVE_TIMEOUT;
    let is_there =
        |state: NodeState| state.is_there() || matches!(state, NodeState::Draining | NodeState::Silent);
    let is_known =
        |nodes: Vec<NodeStatus>| nodes.iter().any(|known| known.node == node && is_there(known.state));
    let is_running = |nodes: Vec<Presence>| nodes.iter().any(|known| process == Some(known));
    let is_listed = || match client.session.status() {
        Err(_) if client.session.node() == node => Ok(false),
        listed => listed.map(is_known),
    };
    while is_listed()? || is_running(cluster_dir::nodes(dir)?) {
        if Instant::now() >= deadline {
            bail!(
                "node {node} is drained, but has not left within {} s; see `halite status`",
                LEAVE_TIMEOUT.as_secs()
            );
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    output::print(&format!("node {node} has left\n"))?;
    Ok(())
}

/// Returns exit status 3 if regions remain, otherwise success.
pub fn exit_code(left: u64) -> ExitCode {
    if left == 0 { ExitCode::SUCCESS } else { ExitCode::from(3) }
}

pub fn summary(node: u32, drained: &Drained) -> String {
    let Drained { moved, moved_bytes, left_count, .. } = drained;
    let bytes = ByteCount(*moved_bytes);
    match left_count {
        0 => format!("node {node} is drained: moved {moved} regions ({bytes}) to other nodes"),
        _ => format!(
            "node {node} is not drained: moved {moved} regions ({bytes}) to other nodes; {left_count} could not be moved"
        ),
    }
}

/// Formats one line for each named region that remains.
pub fn remaining_regions(drained: &Drained) -> Vec<String> {
    let mut lines: Vec<String> = drained.left.iter().map(remaining_region).collect();
    let unnamed = drained.left_count.saturating_sub(lines.len() as u64);
    if unnamed > 0 {
        lines.push(format!("and {unnamed} more"));
    }
    lines
}

fn remaining_region(left: &Leftover) -> String {
    let what = match left.name.as_deref() {
        Some(name) => match (name.strip_prefix("\0l"), name.strip_prefix("\0b")) {
            (Some(lock), _) => format!("lock {lock:?}"),
            (_, Some(barrier)) => format!("barrier {barrier:?}"),
            _ => format!("{name:?}"),
        },
        None => format!("unnamed region {:x}.{}", left.region.origin.0, left.region.serial),
    };
    format!("{what}, {}: {}", ByteCount(left.bytes), left.cause)
}
