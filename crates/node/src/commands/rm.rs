//! `halite rm`: frees a region.

use std::path::Path;

use halite::Permissions;

use super::regions::attempting;
use crate::args::Region;
use crate::client::Client;

/// Whoever still has the region mapped gets errors from now on.
pub fn run(dir: &Path, args: &Region) -> anyhow::Result<()> {
    let client = Client::join(dir)?;
    let failed = attempting("remove", format!("{:?}", args.name));
    let lh = client.session.map(&args.name, Permissions::MASTER).map_err(&failed)?;
    Ok(client.session.free(lh).map_err(&failed)?)
}
