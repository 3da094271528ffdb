//! `halite mv`: brings all bytes of a region to one node.

use std::path::Path;

use anyhow::Context;
use halite::{NodeId, Permissions};

use crate::args::Move;
use crate::client::Client;

/// Returns when the bytes are there; handles that others hold stay valid.
pub fn run(dir: &Path, args: &Move) -> anyhow::Result<()> {
    let client = Client::join(dir)?;
    let lh = client.session.map(&args.name, Permissions::MASTER)?;
    let moved = client.session.move_to(lh, NodeId(args.to));
    moved.with_context(|| format!("cannot move {:?} to node {}", args.name, args.to))
}
