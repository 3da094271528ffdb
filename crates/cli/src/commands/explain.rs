//! `halite explain`: shows which path accesses to a region or node take, and why.
//!
//! The answer is that of a node of this host: its connections, and the paths that accesses of its attached sessions take.
//! Without such a node, or with `--embed`, it is that of an application that has just joined.

use std::path::Path;

use halite::{Lh, NodeId, Permissions, RegionCause, RegionError, blocking};
use serde::Serialize;

use crate::args::Explain;
use crate::client;
use crate::output;

/// Explains the path to a node if the argument is a number and no region is asked for, otherwise to the region of that name.
pub fn run(dir: &Path, args: &Explain) -> anyhow::Result<()> {
    match args.what.parse().map(NodeId) {
        Ok(node) if !args.region => {
            let client = client::attach_beside(dir, node)?;
            print(&client.session.explain_peer(node)?, args.listing.json)
        }
        _ => {
            let client = client::attach(dir)?;
            let lh = map(&client.session, &args.what)?;
            print(&client.session.explain(lh)?, args.listing.json)
        }
    }
}

/// Maps a region with all permissions that this principal has.
fn map(session: &blocking::Session, name: &str) -> Result<Lh, RegionError> {
    let wanted = Permissions::READ | Permissions::WRITE | Permissions::ATOMIC;
    let less = match session.map(name, wanted) {
        Err(RegionError { cause: RegionCause::PermissionDenied { missing }, .. }) => wanted - missing,
        Err(RegionError { cause: RegionCause::Sealed, .. }) => Permissions::READ,
        other => return other,
    };
    session.map(name, less).or_else(|_| session.map(name, Permissions::empty()))
}

fn print(explained: &(impl Serialize + ToString), json: bool) -> anyhow::Result<()> {
    match json {
        true => output::print_json(explained)?,
        false => output::print(&explained.to_string())?,
    }
    Ok(())
}
