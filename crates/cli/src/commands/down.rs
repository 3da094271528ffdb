//! `halite down`: stops the cluster's nodes on this host and removes their files.
//!
//! Without --all, applications keep running; they observe that the nodes leave.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, bail};
use halite::EPHEMERAL_NODE_MIN;
use halite::cluster_dir::{ClusterDir, ClusterDirError, Presence};

use crate::args::Down;
use crate::control::{self, Found, GRACE, Outcome, Unlisted};
use crate::output;

/// Maximum number of rounds; another round is necessary if nodes join meanwhile.
const ROUNDS_MAX: u32 = 5;

/// Stops the nodes that listen in `path`, and with `--all` also applications. Fails unless all of them have ended.
pub fn run(path: &Path, args: &Down) -> anyhow::Result<()> {
    let dir = match ClusterDir::open(path) {
        Err(error @ ClusterDirError::NoCluster { .. }) => return Err(error.into()),
        opened => opened.with_context(|| format!("cannot stop the processes in {}", path.display()))?,
    };
    let wanted = |node| args.all || node < EPHEMERAL_NODE_MIN;
    let unlisted = Unlisted::find(&dir, wanted).unwrap_or_else(|error| {
        let reason = output::error_chain(&error);
        output::note(&format!("cannot ask the cluster for its members ({reason}); using its files"));
        Unlisted::default()
    });
    let (mut stopped, elsewhere) = (0, unlisted.elsewhere());
    if !unlisted.has_none_here() {
        // Node 0 stays for now, since only it knows the unlisted nodes.
        stopped += stop_found(&dir, |node| node != 0 && wanted(node))?;
        check_all_listed(unlisted, path)?;
    }
    stopped += stop_found(&dir, wanted)?;
    check_all_ended(&find(&dir, wanted)?, path)?;
    if stopped == 0 {
        output::note(&format!("no node is running in {}", path.display()));
    }
    remove_stale_files(&dir)?;
    elsewhere.iter().for_each(|text| output::note(text));
    if let Some(applications) = applications(&dir)? {
        output::note(&format!("{applications}; `halite down --all --dir {}` stops them too", path.display()));
    }
    Ok(())
}

/// Stops all nodes that listen; returns their number.
fn stop_found(dir: &ClusterDir, wanted: impl Fn(u32) -> bool) -> anyhow::Result<u32> {
    let mut stopped = 0;
    for _ in 0..ROUNDS_MAX {
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

/// Fails if unlisted nodes still run. Sends them no signal, because their reported pids may be wrong; the error lists
/// them.
fn check_all_listed(unlisted: Unlisted, path: &Path) -> anyhow::Result<()> {
    let remaining = unlisted.remaining()?;
    if remaining.is_empty() {
        return Ok(());
    }
    let nodes: Vec<String> =
        remaining.iter().map(|target| format!("node {} is process {}", target.node, target.pid)).collect();
    bail!(
        "cannot stop all nodes in {}: the files of some nodes are missing; node 0, which keeps running, reports that {}; \
         stop these processes, and try again",
        path.display(),
        nodes.join(", ")
    )
}

fn check_all_ended(found: &Found, path: &Path) -> anyhow::Result<()> {
    if let Some(hidden) = found.hidden.first() {
        let Presence { node, pid, .. } = hidden.presence;
        if hidden.is_in_other_pid_namespace() {
            bail!(
                "cannot stop node {node} in {0}: its process is in another pid namespace, which signals from here do \
                 not reach; run `halite down --dir {0}` there",
                path.display()
            );
        }
        let reason = match &hidden.reason {
            None => "does not listen at its socket".to_owned(),
            Some(reason) => format!("cannot be reached at its socket ({reason})"),
        };
        let hint = match pid {
            0 => format!("`fuser {}` may find it", path.display()),
            pid => format!("it may be process {pid}"),
        };
        bail!(
            "cannot stop node {node} in {}: it {reason}, so its process is unknown; {hint}; stop it, and try again",
            path.display()
        );
    }
    if let Some(target) = found.targets.first() {
        bail!(
            "nodes keep joining in {}, for example node {} (process {}); stop the program that starts them, and try again",
            path.display(),
            target.node,
            target.pid
        );
    }
    Ok(())
}

/// Describes the processes that joined `dir` as ephemeral nodes; `None` if there are none.
pub fn applications(dir: &ClusterDir) -> anyhow::Result<Option<String>> {
    let failed = || format!("cannot list the processes in {}", dir.path().display());
    let found = control::find(dir, |node| node >= EPHEMERAL_NODE_MIN).with_context(failed)?;
    // A process may have joined more than once.
    let pids: BTreeSet<u32> = found.targets.iter().map(|target| target.pid).collect();
    let mut list: Vec<String> = pids.iter().map(|pid| format!("process {pid}")).collect();
    // A leaving process stops listening before it ends. `find` waits for its end unless others listen.
    list.extend(found.hidden.iter().map(|node| format!("node {}", node.presence.node)));
    Ok(match list.len() {
        0 => None,
        1 => Some(format!("1 application is still joined: {}", list[0])),
        count => Some(format!("{count} applications are still joined: {}", list.join(", "))),
    })
}

/// Removes the files of dead nodes, except their logs.
pub fn remove_stale_files(dir: &ClusterDir) -> anyhow::Result<()> {
    dir.clean().with_context(|| format!("cannot clean {}", dir.path().display()))
}
