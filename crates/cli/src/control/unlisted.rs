//! Nodes that live although no file in the cluster directory tells of them: somebody removed the files.
//!
//! Only the other nodes know of these.  What they say is told to people, and ends no process: for that, only the other
//! end of a node's socket tells which process it is.  Members of other hosts have no files here, and the numbers of their processes
//! mean others here, or none.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};
use halite::cluster_dir::{self, ClusterDir};
use serde::Deserialize;

use super::stop::{GRACE, StopError, Target, await_ends};

/// How long others may take to say who is there.
const PATIENCE: Duration = Duration::from_secs(5);

/// Living nodes of which no file tells.
#[derive(Default, Debug)]
pub struct Unlisted {
    /// Processes of this host.
    here: Vec<Target>,
    elsewhere: usize,
}

/// A line of `halite status --json`.
#[derive(Deserialize, Debug)]
struct Member {
    node: u32,
    pid: u32,
    state: String,
    /// Told by members, not by files.
    provider: Option<String>,
    /// Whether it says that it is of the cluster directory in which `halite status` asks.
    here: Option<bool>,
}

impl Unlisted {
    /// Asks the cluster in `dir` which of the nodes that are `wanted` have no files here.  Where the first node does not run, and there are no
    /// other hosts, nobody knows of any; fails if somebody should know and cannot be asked.
    pub fn find(dir: &ClusterDir, wanted: impl Fn(u32) -> bool) -> anyhow::Result<Unlisted> {
        let (before, is_spread) = (listed(dir)?, cluster_dir::has_hosts(dir.path()));
        if !before.contains(&0) && (before.is_empty() || !is_spread) {
            return Ok(Unlisted::default());
        }
        let members = members(dir.path())?;
        // Looked at afterwards, so that a node that joins meanwhile has files.
        let listed = listed(dir)?;
        let mut unlisted = Unlisted::default();
        for Member { node, pid, state, here, .. } in members {
            // Nobody can connect to those without files, so that they seem to be silent.
            let lives = matches!(state.as_str(), "alive" | "draining" | "silent" | "unconnected");
            if !lives || !wanted(node) || listed.contains(&node) {
                continue;
            }
            match !is_spread || here == Some(true) {
                true => unlisted.here.extend(Target::of_pid(node, pid)?),
                false => unlisted.elsewhere += 1,
            }
        }
        Ok(unlisted)
    }

    /// Whether there is none on this host.
    pub fn is_none_here(&self) -> bool {
        self.here.is_empty()
    }

    /// That nodes of other hosts stay; `None` if there are none.
    pub fn elsewhere(&self) -> Option<String> {
        match self.elsewhere {
            0 => None,
            1 => Some("1 node on another host stays: `halite down` there ends it".to_owned()),
            count => Some(format!("{count} nodes on other hosts stay: `halite down` there ends them")),
        }
    }

    /// Those of this host that do not end by themselves within [`GRACE`]: a node that leaves has no files either.
    pub fn remaining(self) -> Result<Vec<Target>, StopError> {
        let (_, remaining) = await_ends(self.here, GRACE)?;
        Ok(remaining)
    }
}

/// The nodes that live by what their files tell.
fn listed(dir: &ClusterDir) -> anyhow::Result<BTreeSet<u32>> {
    let nodes = dir.nodes()?;
    Ok(nodes.into_iter().filter(|presence| presence.alive).map(|presence| presence.node.0).collect())
}

/// What `halite status` shows, which is a process of its own: one that waits for a node can be given up at any time,
/// and is no application of ours that has joined.
fn members(dir: &Path) -> anyhow::Result<Vec<Member>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--dir").arg(dir).args(["status", "--json"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut status = command.spawn()?;
    let stdout = BufReader::new(status.stdout.take().expect("standard output is piped"));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(stdout.lines().collect::<io::Result<Vec<String>>>()));
    let lines = told.recv_timeout(PATIENCE);
    // If it has ended already, there is nothing to kill.
    let _ = status.kill();
    status.wait()?;
    let lines = lines.with_context(|| format!("it has not answered within {} s", PATIENCE.as_secs()))??;
    let members: Vec<Member> =
        lines.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
    if !members.iter().any(|member| member.provider.is_some()) {
        bail!("`halite status` tells why");
    }
    Ok(members)
}
