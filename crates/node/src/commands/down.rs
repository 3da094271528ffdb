//! `halite down`: ends the nodes of a cluster and removes what they left.
//!
//! Applications that have joined are not ours to end, unless that is asked for: they see the nodes leave.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::{Context, bail};
use halite::EPHEMERAL_NODE_MIN;
use halite::cluster_dir::{self, Presence};
use rustix::fs::{FlockOperation, flock};

use crate::args::Down;
use crate::control::{self, GRACE, Outcome, logs_dir};
use crate::output;

/// How often to look for nodes that joined while others were being stopped.
const ROUNDS: u32 = 5;

/// Ends the processes that hold the lock of a node in `dir`, with `--all` those of passing nodes included.
pub fn run(dir: &Path, args: &Down) -> anyhow::Result<()> {
    if !dir.is_dir() {
        bail!("there is no cluster in {}: no such directory", dir.display());
    }
    let mut stopped = 0;
    for _ in 0..ROUNDS {
        let failed = || format!("cannot see what runs in {}", dir.display());
        let targets = control::targets_in(dir, |node| args.all || node < EPHEMERAL_NODE_MIN);
        let targets = targets.with_context(failed)?;
        if targets.is_empty() {
            break;
        }
        for (target, outcome) in control::stop(targets, GRACE)? {
            stopped += 1;
            let how = match outcome {
                Outcome::Left => "stopped".to_owned(),
                Outcome::Killed => format!("did not leave within {} s and was killed", GRACE.as_secs()),
            };
            output::print(&format!("node {} (process {}) {how}\n", target.node, target.pid))?;
        }
    }
    if stopped == 0 {
        output::note(&format!("no node is running in {}", dir.display()));
    }
    remove_residue(dir)?;
    if let Some(applications) = applications(dir)? {
        output::note(&format!("{applications}; `halite down --all --dir {}` ends them too", dir.display()));
    }
    Ok(())
}

/// Tells which processes take part in `dir` without being nodes of a number of their own; `None` if none does.
pub fn applications(dir: &Path) -> anyhow::Result<Option<String>> {
    let nodes =
        cluster_dir::nodes(dir).with_context(|| format!("cannot see what runs in {}", dir.display()))?;
    let is_application = |node: &&Presence| node.alive && node.pid != 0 && node.node.0 >= EPHEMERAL_NODE_MIN;
    // A process may have joined more than once.
    let pids: BTreeSet<u32> = nodes.iter().filter(is_application).map(|node| node.pid).collect();
    let list = pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Ok(match pids.len() {
        0 => None,
        1 => Some(format!("1 application is still joined: process {list}")),
        count => Some(format!("{count} applications are still joined: processes {list}")),
    })
}

/// Removes what nodes that are no more have left in `dir`: locks, sockets and logs.  Other files are not ours.
pub fn remove_residue(dir: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot clean {}", dir.display());
    cluster_dir::clean(dir).with_context(failed)?;
    if cluster_dir::nodes(dir).with_context(failed)?.iter().any(|node| node.alive) {
        return Ok(());
    }
    let logs = logs_dir(dir);
    ignore_absent(std::fs::remove_dir_all(&logs))
        .with_context(|| format!("cannot remove {}", logs.display()))?;
    remove_join_lock(dir).with_context(failed)
}

/// Removes the lock that joining nodes hold, unless one does.
fn remove_join_lock(dir: &Path) -> io::Result<()> {
    let path = dir.join("join.lock");
    let Ok(file) = File::open(&path) else { return Ok(()) };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => ignore_absent(std::fs::remove_file(&path)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Two may clean at the same time.
fn ignore_absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
