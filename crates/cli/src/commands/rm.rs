//! `halite rm`: frees a region, or forgets one that was lost.

use std::path::Path;

use halite::{Lost, Permissions, RegionCause, RegionError};

use super::regions::command_error;
use crate::args::Region;
use crate::client::{self, Client};
use crate::{loss, output};

/// Frees a region, or forgets a lost one. In processes that have mapped it, later accesses fail.
pub fn run(dir: &Path, args: &Region) -> anyhow::Result<()> {
    let client = client::attach(dir)?;
    let failed = command_error("remove", format!("{:?}", args.name));
    let lh = match client.session.map(&args.name, Permissions::MASTER) {
        Ok(lh) => match client.session.stat_handle(lh).map_err(&failed)?.name {
            Some(name) if name != args.name => return remove_alias(&client, &args.name, &name),
            _ => lh,
        },
        // The memory of a lost region is gone, but the directory still lists the name.
        Err(RegionError { cause: RegionCause::Lost(lost), .. }) => {
            client.session.forget_name(&args.name).map_err(&failed)?;
            output::note(&forgotten_note(&args.name, &lost));
            return Ok(());
        }
        // The name exists, but its record is damaged.
        Err(RegionError { cause: RegionCause::NameDamaged { key }, .. }) => {
            client.session.forget_name(&args.name).map_err(&failed)?;
            output::note(&format!(
                "removed the key {key:?} from etcd, which held no valid record; the name is free"
            ));
            return Ok(());
        }
        Err(error) => {
            let may_have_stale_name =
                matches!(error.cause, RegionCause::NotFound | RegionCause::UnknownNode(_));
            if may_have_stale_name && client.session.forget_name(&args.name).is_ok() {
                output::note(&format!("removed the name {:?}, whose region no longer exists", args.name));
                return Ok(());
            }
            return Err(failed(error).into());
        }
    };
    Ok(client.session.free(lh).map_err(&failed)?)
}

/// Removes a name that points to a region with another name: etcd was edited by hand, or the region was just renamed.
fn remove_alias(client: &Client, name: &str, target: &str) -> anyhow::Result<()> {
    client.session.forget_name(name).map_err(|error| {
        let object = format!("{name:?}, which points to the region {target:?},");
        command_error("remove", object)(error)
    })?;
    output::note(&format!(
        "removed the name {name:?}, which pointed to the region {target:?}; the region stays"
    ));
    Ok(())
}

fn forgotten_note(name: &str, lost: &Lost) -> String {
    format!("{name:?}: {}; its name is free", loss::describe(lost))
}
