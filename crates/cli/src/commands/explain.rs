//! `halite explain`: shows which path accesses to a region or node take, and why.
//!
//! The answer is that of a node of this host: its connections, and the paths that accesses of its attached sessions take.
//! Without such a node, or with `--embed`, it is that of an application that has just joined.

use std::path::Path;

use anyhow::anyhow;
use halite::{Lh, NodeId, Permissions, RegionCause, RegionError, blocking};
use serde::Serialize;

use crate::args::Explain;
use crate::client;
use crate::output;

/// Explains the path to a node if the argument is a number and no region is asked for, otherwise to the region of that name.
pub fn run(dir: &Path, args: &Explain) -> anyhow::Result<()> {
    match args.what.parse().map(NodeId) {
        Ok(node) if !args.region => {
            let client = client::attach_to_other(dir, node)?;
            let explained = client.session.explain_peer(node);
            print(
                &explained.map_err(|error| suggest_region(error, &client.session, &args.what))?,
                args.listing.json,
            )
        }
        _ => {
            let client = client::attach(dir)?;
            let lh = map(&client.session, &args.what)?;
            print(&client.session.explain(lh)?, args.listing.json)
        }
    }
}

/// Adds to an error about a number that belongs to no node that a region has this name, if one does.
fn suggest_region(error: RegionError, session: &blocking::Session, name: &str) -> anyhow::Error {
    match error.cause {
        RegionCause::UnknownNode(_) if session.stat(name).is_ok() => {
            anyhow!("{error}; a region has this name: add --region")
        }
        _ => error.into(),
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
