//! `halite mv`: moves all bytes of a region to one node.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, anyhow};
use halite::{NodeId, Permissions, RegionCause, RegionError, RegionInfo, blocking};

use super::regions::{command_error, holders};
use crate::args::Move;
use crate::client;
use crate::output;
use crate::shell;
use crate::signals::{Interrupted, Listener};
use crate::threads;

/// Time without progress after which an interrupted command stops waiting: the default lease, after which a silent node
/// counts as unreachable.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between looks at the progress of the move.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Moves the region; returns when all bytes are on the target node. Existing handles stay valid.
///
/// The region's home performs the move and completes it even if this process ends. So after a signal, the command still
/// waits for the move and reports where the region is. A second signal ends the wait, or
/// [`STALL_TIMEOUT`] without progress.
pub fn run(dir: &Path, args: &Move) -> anyhow::Result<()> {
    let client = client::attach(dir)?;
    let failed = command_error("move", format!("{:?} to node {}", args.name, args.to));
    let lh = client.session.map(&args.name, Permissions::MASTER).map_err(&failed)?;
    let (name, to) = (args.name.clone(), args.to);
    let stat = format!("halite stat {}", shell::argument(&name));
    let still_moving = format!("{name:?} keeps moving to node {to}; `{stat}` shows its place");
    let stalled = format!("no byte has moved for {} s; {still_moving}", STALL_TIMEOUT.as_secs());
    let waiting =
        format!("{name:?} is moving to node {to}; waiting until it is there (ctrl-C again stops waiting)");
    let session = client.session.clone();
    let wait = move |signal| {
        output::note(&waiting);
        // Without this thread, only a second signal ends the wait.
        let _ = threads::spawn("halite-stalled", move || {
            wait_while_moving(session, name);
            output::note(&stalled);
            std::process::exit(128 + signal);
        });
    };
    let listener = Listener::spawn(wait, move || output::note(&still_moving));
    let listener = listener.context("cannot listen for signals")?;
    let moved = client.session.move_to(lh, NodeId(args.to));
    let signal = listener.first_signal();
    let is_interrupted = matches!(&moved, Err(RegionError { cause: RegionCause::PeerDown(_), .. }));
    if signal.is_none() && !is_interrupted {
        return Ok(moved.map_err(&failed)?);
    }
    let place = client.session.stat(&args.name);
    let place = place.map_or_else(
        |_| format!("a part may have moved; `{stat}` shows where the bytes are, once the nodes are in reach"),
        |region| describe_place(&region),
    );
    let outcome = match moved {
        Ok(()) => format!("{:?} has moved; {place}", args.name),
        Err(RegionError { cause: RegionCause::PeerDown(node), .. }) => {
            let reason = client.session.seen(node).and_then(|seen| seen.reason);
            let reason = reason.unwrap_or_else(|| {
                "its process or its host has ended, or the network to it (TCP or UDP) is cut".to_owned()
            });
            format!(
                "cannot move {:?} to node {to}: node {node} is out of reach: {reason}; {place}",
                args.name
            )
        }
        Err(error) => format!("{}; {place}", failed(error)),
    };
    match signal {
        Some(signal) => Err(Interrupted { signal, outcome }.into()),
        None => Err(anyhow!(outcome)),
    }
}

/// Returns when the places of the region's bytes have not changed, or have been unknown, for [`STALL_TIMEOUT`].
fn wait_while_moving(session: blocking::Session, name: String) {
    let (sender, receiver) = channel();
    // A thread of its own, because a request to a home that does not answer may take longer than `STALL_TIMEOUT`.
    let polling = threads::spawn("halite-progress", move || {
        let mut before = Vec::new();
        loop {
            if let Ok(RegionInfo { nodes, .. }) = session.stat(&name)
                && nodes != before
            {
                before = nodes;
                let _ = sender.send(());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    });
    if polling.is_err() {
        return std::thread::sleep(STALL_TIMEOUT);
    }
    while receiver.recv_timeout(STALL_TIMEOUT).is_ok() {}
}

/// Formats where the bytes of the region are, and how many are missing. A chunk is in one place at a time, so chunks
/// that had moved to a node are lost if the node ends.
fn describe_place(region: &RegionInfo) -> String {
    match region.nodes.len() {
        1 => format!("it is on node {}", holders(region)),
        _ => format!("it is on nodes {}", holders(region)),
    }
}
