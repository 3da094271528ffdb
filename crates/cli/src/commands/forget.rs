//! `halite forget`: removes a dead node from the cluster.

use std::path::Path;

use anyhow::{Context, bail};
use halite::cluster_dir::ClusterDir;
use halite::{NodeId, RegionCause};

use crate::args::Forget;
use crate::client::Client;

/// Removes the node from the directory of names, which all commands read, and then the node's files.
pub fn run(path: &Path, args: &Forget) -> anyhow::Result<()> {
    let node = NodeId(args.node);
    let failed = || format!("cannot forget node {node}");
    let client = Client::join(path).with_context(failed)?;
    let dir = ClusterDir::open(path).with_context(failed)?;
    let presences = dir.nodes().with_context(failed)?;
    let presence = presences.iter().find(|presence| presence.node == node);
    if let Some(living) = presence.filter(|presence| presence.alive) {
        bail!("{}: it runs as process {}; stop it first", failed(), living.pid);
    }
    match client.session.forget_node(node) {
        // After a restart, the directory may not know the node although its files remain.
        Err(error) if matches!(error.cause, RegionCause::UnknownNode(_)) && presence.is_some() => {}
        other => other?,
    }
    match dir.forget(node).with_context(failed)? {
        true => Ok(()),
        false => bail!("{}: it has been started again", failed()),
    }
}
