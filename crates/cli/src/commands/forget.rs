//! `halite forget`: a dead node is missed no more.

use std::path::Path;

use anyhow::{Context, bail};
use halite::cluster_dir::ClusterDir;
use halite::{NodeId, RegionCause};

use crate::args::Forget;
use crate::client::Client;

/// The directory of names forgets it, so that all commands agree, and then its files go.
pub fn run(path: &Path, args: &Forget) -> anyhow::Result<()> {
    let node = NodeId(args.node);
    let failed = || format!("cannot forget node {node}");
    let client = Client::join(path).with_context(failed)?;
    let dir = ClusterDir::open(path).with_context(failed)?;
    let presences = dir.nodes().with_context(failed)?;
    let presence = presences.iter().find(|presence| presence.node == node);
    if let Some(living) = presence.filter(|presence| presence.alive) {
        bail!("{}: process {} is that node, and only dead nodes are forgotten", failed(), living.pid);
    }
    match client.session.forget_node(node) {
        // A directory that was restarted since knows nothing of it, but its files are there.
        Err(error) if matches!(error.cause, RegionCause::UnknownNode(_)) && presence.is_some() => {}
        other => other?,
    }
    match dir.forget(node).with_context(failed)? {
        true => Ok(()),
        false => bail!("{}: it has been started again", failed()),
    }
}
