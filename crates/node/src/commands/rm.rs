//! `halite rm`: frees a region.

use std::path::Path;

use anyhow::Context;
use halite::Permissions;

use crate::args::Region;
use crate::client::Client;

/// Whoever still has the region mapped gets errors from now on.
pub fn run(dir: &Path, args: &Region) -> anyhow::Result<()> {
    let client = Client::join(dir)?;
    let lh = client.session.map(&args.name, Permissions::MASTER)?;
    client.session.free(lh).with_context(|| format!("cannot free {:?}", args.name))
}
