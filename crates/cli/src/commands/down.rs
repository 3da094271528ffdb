//! `halite down`: ends the nodes of a cluster that are on this host, and removes what they left.
//!
//! Applications that have joined are not ours to end, unless that is asked for: they see the nodes leave.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, bail};
use halite::EPHEMERAL_NODE_MIN;
use halite::cluster_dir::{ClusterDir, ClusterDirError, Presence};

use crate::args::Down;
use crate::control::{self, Found, GRACE, Outcome, Unlisted};
use crate::output;

/// How often to look for nodes that joined while others were being stopped.
const ROUNDS: u32 = 5;

/// Ends the processes that listen as nodes in `path`, with `--all` those of ephemeral nodes included.  Fails unless all of
/// them have ended.
pub fn run(path: &Path, args: &Down) -> anyhow::Result<()> {
    let dir = match ClusterDir::open(path) {
        Err(error @ ClusterDirError::NoCluster { .. }) => return Err(error.into()),
        opened => opened.with_context(|| format!("cannot stop the processes in {}", path.display()))?,
    };
    let wanted = |node| args.all || node < EPHEMERAL_NODE_MIN;
    let unlisted = Unlisted::find(&dir, wanted).unwrap_or_else(|error| {
        let reason = output::reasons(&error);
        output::note(&format!("cannot ask the cluster for its members ({reason}); using its files"));
        Unlisted::default()
    });
    let (mut stopped, elsewhere) = (0, unlisted.elsewhere());
    if !unlisted.is_none_here() {
        // All but the first node, which alone knows of these.
        stopped += stop_found(&dir, |node| node != 0 && wanted(node))?;
        everybody_is_listed(unlisted, path)?;
    }
    stopped += stop_found(&dir, wanted)?;
    nobody_is_left(&find(&dir, wanted)?, path)?;
    if stopped == 0 {
        output::note(&format!("no node is running in {}", path.display()));
    }
    remove_residue(&dir)?;
    elsewhere.iter().for_each(|stay| output::note(stay));
    if let Some(applications) = applications(&dir)? {
        output::note(&format!("{applications}; `halite down --all --dir {}` stops them too", path.display()));
    }
    Ok(())
}

/// Stops all that listen; returns how many those were.
fn stop_found(dir: &ClusterDir, wanted: impl Fn(u32) -> bool) -> anyhow::Result<u32> {
    let mut stopped = 0;
    for _ in 0..ROUNDS {
        let found = find(dir, &wanted)?;
        if found.targets.is_empty() {
            break;
        }
        for (target, outcome) in control::stop(found.targets, GRACE)? {
            stopped += 1;
            let how = match outcome {
                Outcome::Left => "stopped".to_owned(),
                Outcome::Killed => format!("did not leave within {} s and was killed", GRACE.as_secs()),
            };
            output::print(&format!("node {} (process {}) {how}\n", target.node, target.pid))?;
        }
    }
    Ok(stopped)
}

fn find(dir: &ClusterDir, wanted: impl Fn(u32) -> bool) -> anyhow::Result<Found> {
    control::find(dir, wanted)
        .with_context(|| format!("cannot list the processes in {}", dir.path().display()))
}

/// No process is ended by hearsay: people are told which it is.
fn everybody_is_listed(unlisted: Unlisted, path: &Path) -> anyhow::Result<()> {
    let remaining = unlisted.remaining()?;
    if remaining.is_empty() {
        return Ok(());
    }
    let nodes: Vec<String> =
        remaining.iter().map(|target| format!("node {} is process {}", target.node, target.pid)).collect();
    bail!(
        "cannot stop all nodes in {}: the files of some are gone, and the first node, which stays, reports that {}; \
         stop these processes, and try again",
        path.display(),
        nodes.join(", ")
    )
}

fn nobody_is_left(found: &Found, path: &Path) -> anyhow::Result<()> {
    if let Some(hidden) = found.hidden.first() {
        let Presence { node, pid, .. } = hidden.presence;
        if hidden.is_elsewhere() {
            bail!(
                "cannot stop node {node} in {0}: its process is in another pid namespace, which signals from here do \
                 not reach; run `halite down --dir {0}` there",
                path.display()
            );
        }
        let reason = match &hidden.reason {
            None => "listens at no socket there".to_owned(),
            Some(reason) => format!("cannot be reached at its socket ({reason})"),
        };
        let hint = match pid {
            0 => format!("`fuser {}/node-{node}.lock` may find it", path.display()),
            pid => format!("it may be process {pid}"),
        };
        bail!(
            "cannot stop node {node} in {}: it {reason}, so its process is unknown; {hint}; stop it, and try again",
            path.display()
        );
    }
    if let Some(target) = found.targets.first() {
        bail!("nodes keep joining in {}: node {} is process {}", path.display(), target.node, target.pid);
    }
    Ok(())
}

/// Tells which processes take part in `dir` without being nodes of a number of their own; `None` if none does.
pub fn applications(dir: &ClusterDir) -> anyhow::Result<Option<String>> {
    let failed = || format!("cannot list the processes in {}", dir.path().display());
    let found = control::find(dir, |node| node >= EPHEMERAL_NODE_MIN).with_context(failed)?;
    // A process may have joined more than once.
    let pids: BTreeSet<u32> = found.targets.iter().map(|target| target.pid).collect();
    let mut list: Vec<String> = pids.iter().map(|pid| format!("process {pid}")).collect();
    // They hide for a moment when they leave: not for long, when nobody else is here.
    list.extend(found.hidden.iter().map(|node| format!("node {}", node.presence.node)));
    Ok(match list.len() {
        0 => None,
        1 => Some(format!("1 application is still joined: {}", list[0])),
        count => Some(format!("{count} applications are still joined: {}", list.join(", "))),
    })
}

/// Removes what nodes that are no more have left in `dir`, but for their logs.  Other files are not ours.
pub fn remove_residue(dir: &ClusterDir) -> anyhow::Result<()> {
    dir.clean().with_context(|| format!("cannot clean {}", dir.path().display()))
}
