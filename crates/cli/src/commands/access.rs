//! `halite grant` and `halite revoke`: permissions of a region.

use std::path::Path;

use halite::{Permissions, Who};

use super::regions::command_error;
use crate::args::{Grant, Revoke};
use crate::client;
use crate::letters;

/// Grants permissions; `none` denies all access.
pub fn grant(dir: &Path, args: &Grant) -> anyhow::Result<()> {
    if args.permissions.is_empty() {
        return change(dir, &args.name, &args.who, Change::Revoke(Permissions::all()));
    }
    change(dir, &args.name, &args.who, Change::Grant(args.permissions))
}

pub fn revoke(dir: &Path, args: &Revoke) -> anyhow::Result<()> {
    change(dir, &args.name, &args.who, Change::Revoke(args.permissions))
}

enum Change {
    Grant(Permissions),
    Revoke(Permissions),
}

fn change(dir: &Path, name: &str, who: &str, change: Change) -> anyhow::Result<()> {
    let client = client::attach(dir)?;
    let target = match who {
        "everyone" => Who::Everyone,
        principal => Who::Principal(principal.into()),
    };
    let (operation, permissions, preposition) = match change {
        Change::Grant(permissions) => ("grant", permissions, "to"),
        Change::Revoke(permissions) => ("revoke", permissions, "from"),
    };
    let object = format!("{} on {name:?} {preposition} {who}", letters::format(permissions));
    let failed = command_error(operation, object);
    let lh = client.session.map(name, Permissions::MASTER).map_err(&failed)?;
    let changed = match change {
        Change::Grant(permissions) => client.session.grant(lh, target, permissions),
        Change::Revoke(permissions) => client.session.revoke(lh, target, permissions),
    };
    Ok(changed.map_err(&failed)?)
}
