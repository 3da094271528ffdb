//! `halite mv`: brings all bytes of a region to one node.

use std::path::Path;

use halite::{NodeId, Permissions};

use super::regions::attempting;
use crate::args::Move;
use crate::client::Client;

/// Returns when the bytes are there; handles that others hold stay valid.
pub fn run(dir: &Path, args: &Move) -> anyhow::Result<()> {
    let client = Client::join(dir)?;
    let failed = attempting("move", format!("{:?} to node {}", args.name, args.to));
    let lh = client.session.map(&args.name, Permissions::MASTER).map_err(&failed)?;
    Ok(client.session.move_to(lh, NodeId(args.to)).map_err(&failed)?)
}
