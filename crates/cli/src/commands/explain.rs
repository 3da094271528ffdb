//! `halite explain`: shows which path accesses to a region or node take, and why.
//!
//! The answer holds for an application that has just joined on this host. For a user other than the node's, it holds
//! for an attached session, whose accesses take the paths of its node.

use std::path::Path;

use halite::{Lh, NodeId, Permissions, RegionCause, RegionError, blocking};
use serde::Serialize;

use crate::args::Explain;
use crate::client;
use crate::output;

/// Explains the path to a node if the argument is a number and no region is asked for, otherwise to the region of that name.
pub fn run(dir: &Path, args: &Explain) -> anyhow::Result<()> {
    let client = client::enter(dir)?;
    let session = &client.session;
    match args.what.parse() {
        Ok(node) if !args.region => print(&session.explain_peer(NodeId(node))?, args.listing.json),
        _ => {
            let lh = map(session, &args.what)?;
            print(&session.explain(lh)?, args.listing.json)
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
