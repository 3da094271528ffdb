//! Running nodes whose files in the cluster directory were removed.
//!
//! Only the other nodes know such a node. `halite down` shows their reports to the user, but kills no process because
//! of a report: only the peer credentials of a node's socket prove which process the node is. Members on other hosts
//! have no files here, and their pids mean nothing on this host.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};
use halite::cluster_dir::{self, ClusterDir};
use serde::Deserialize;

use super::stop::{GRACE, StopError, Target, wait_for_exits};
use crate::threads;
use crate::transport;

/// Maximum time for the members to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Running nodes without files.
#[derive(Default, Debug)]
pub struct Unlisted {
    /// Unlisted processes of this host.
    here: Vec<Target>,
    elsewhere: usize,
}

/// A line of `halite status --json`.
#[derive(Deserialize, Debug)]
struct Member {
    node: u32,
    pid: u32,
    state: String,
    /// Set if members reported the node; null if only its files show it.
    provider: Option<String>,
    /// True if the member belongs to this cluster directory; null if that is unknown.
    here: Option<bool>,
}

impl Unlisted {
    /// Asks the cluster in `dir` for nodes that have no files in `dir` and for whose numbers `wanted` returns true.
    /// Returns no nodes if node 0 does not run and there are no other hosts. Fails if the members do not answer.
    pub fn find(dir: &ClusterDir, wanted: impl Fn(u32) -> bool) -> anyhow::Result<Unlisted> {
        let (before, is_spread) = (listed(dir)?, cluster_dir::has_hosts(dir.path()));
        if !before.contains(&0) && (before.is_empty() || !is_spread) {
            return Ok(Unlisted::default());
        }
        let members = members(dir.path())?;
        // The files are read after the members, so that a node that joins in between has files.
        let listed = listed(dir)?;
        let mut unlisted = Unlisted::default();
        for Member { node, pid, state, here, .. } in members {
            // A node without files accepts no connections, so it seems silent.
            let is_running = matches!(state.as_str(), "alive" | "draining" | "silent" | "unconnected");
            if !is_running || !wanted(node) || listed.contains(&node) {
                continue;
            }
            match !is_spread || here == Some(true) {
                true => unlisted.here.extend(Target::of_pid(node, pid)?),
                false => unlisted.elsewhere += 1,
            }
        }
        Ok(unlisted)
    }

    pub fn has_none_here(&self) -> bool {
        self.here.is_empty()
    }

    /// Formats the nodes that stay on other hosts; `None` if there are none.
    pub fn elsewhere(&self) -> Option<String> {
        match self.elsewhere {
            0 => None,
            1 => Some("1 node on another host keeps running: `halite down` on that host stops it".to_owned()),
            count => Some(format!(
                "{count} nodes on other hosts keep running: `halite down` on those hosts stops them"
            )),
        }
    }

    /// Waits up to [`GRACE`] for the unlisted processes of this host to end, because a node that is leaving has no
    /// files either. Returns the processes that remain.
    pub fn remaining(self) -> Result<Vec<Target>, StopError> {
        let (_, remaining) = wait_for_exits(self.here, GRACE)?;
        Ok(remaining)
    }
}

/// Returns the running nodes that have files. A node whose files were removed only holds the directory.
fn listed(dir: &ClusterDir) -> anyhow::Result<BTreeSet<u32>> {
    let mut nodes = dir.nodes()?;
    nodes.retain(|node| node.alive && (node.pid != 0 || !matches!(dir.process_of(node.node), Ok(None))));
    Ok(nodes.into_iter().map(|presence| presence.node.0).collect())
}

/// Returns the output of `halite status`. Runs it as a separate process, which can be killed and leaves no node in this
/// process.
fn members(dir: &Path) -> anyhow::Result<Vec<Member>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--dir").arg(dir).args(["status", "--json"]).args(transport::flags());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut status = command.spawn()?;
    let stdout = BufReader::new(status.stdout.take().expect("standard output is piped"));
    let (sender, receiver) = mpsc::channel();
    threads::spawn("halite-members", move || {
        sender.send(stdout.lines().collect::<io::Result<Vec<String>>>())
    })?;
    let lines = receiver.recv_timeout(ANSWER_TIMEOUT);
    // The kill fails if the process has ended, which does not matter.
    let _ = status.kill();
    status.wait()?;
    let lines = lines.with_context(|| format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()))??;
    let members: Vec<Member> =
        lines.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
    if !members.iter().any(|member| member.provider.is_some()) {
        bail!("`halite status` shows the reason");
    }
    Ok(members)
}
