//! `halite down`: ends every node of a cluster and removes what they left.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::{Context, bail};
use halite::cluster_dir;
use rustix::fs::{FlockOperation, flock};

use crate::control::{self, GRACE, Outcome, logs_dir};
use crate::output;

/// How often to look for nodes that joined while others were being stopped.
const ROUNDS: u32 = 5;

/// Ends all processes that hold a node's lock in `dir`, embedded nodes of applications included.
pub fn run(dir: &Path) -> anyhow::Result<()> {
    if !dir.is_dir() {
        bail!("there is no cluster in {}: no such directory", dir.display());
    }
    let mut stopped = 0;
    for _ in 0..ROUNDS {
        let failed = || format!("cannot see what runs in {}", dir.display());
        let targets = control::targets_in(dir).with_context(failed)?;
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
    remove_residue(dir)
}

/// Removes what nodes that are no more have left in `dir`: locks, sockets and logs.  Other files are not ours.
pub fn remove_residue(dir: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot clean {}", dir.display());
    cluster_dir::clean(dir).with_context(failed)?;
    if cluster_dir::nodes(dir).with_context(failed)?.iter().any(|node| node.alive) {
        return Ok(());
    }
    ignore_absent(std::fs::remove_dir_all(logs_dir(dir))).with_context(failed)?;
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
