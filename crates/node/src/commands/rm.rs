//! `halite rm`: frees a region, or forgets one that was lost.

use std::path::Path;

use halite::{Permissions, RegionCause, RegionError};

use super::regions::attempting;
use crate::args::Region;
use crate::client::Client;
use crate::{loss, output};

/// Processes that still have the region mapped get errors from now on.
pub fn run(dir: &Path, args: &Region) -> anyhow::Result<()> {
    let client = Client::join(dir)?;
    let failed = attempting("remove", format!("{:?}", args.name));
    let lh = match client.session.map(&args.name, Permissions::MASTER) {
        Ok(lh) => lh,
        // Nothing is there to be freed, but its name is still told of.
        Err(RegionError { cause: RegionCause::Lost(lost), .. }) => {
            client.session.forget_name(&args.name).map_err(&failed)?;
            output::note(&format!("{:?} was {}; its name is forgotten", args.name, loss::in_words(&lost)));
            return Ok(());
        }
        Err(error) => return Err(failed(error).into()),
    };
    Ok(client.session.free(lh).map_err(&failed)?)
}
