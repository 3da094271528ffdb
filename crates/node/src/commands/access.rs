//! `halite grant` and `halite revoke`: who may do what with a region.

use std::path::Path;

use anyhow::Context;
use halite::{Permissions, Who};

use crate::args::{Grant, Revoke};
use crate::client::Client;
use crate::letters;

/// Adds permissions; `none` takes all away.
pub fn grant(dir: &Path, args: &Grant) -> anyhow::Result<()> {
    if args.permissions.is_empty() {
        return change(dir, &args.name, &args.who, Change::Revoke(Permissions::all()));
    }
    change(dir, &args.name, &args.who, Change::Grant(args.permissions))
}

/// Takes permissions away.
pub fn revoke(dir: &Path, args: &Revoke) -> anyhow::Result<()> {
    change(dir, &args.name, &args.who, Change::Revoke(args.permissions))
}

enum Change {
    Grant(Permissions),
    Revoke(Permissions),
}

fn change(dir: &Path, name: &str, who: &str, change: Change) -> anyhow::Result<()> {
    let client = Client::join(dir)?;
    let lh = client.session.map(name, Permissions::MASTER)?;
    let target = match who {
        "everyone" => Who::Everyone,
        principal => Who::Principal(principal.into()),
    };
    match change {
        Change::Grant(permissions) => client
            .session
            .grant(lh, target, permissions)
            .with_context(|| format!("cannot grant {} on {name:?} to {who}", letters::format(permissions))),
        Change::Revoke(permissions) => client.session.revoke(lh, target, permissions).with_context(|| {
            format!("cannot revoke {} on {name:?} from {who}", letters::format(permissions))
        }),
    }
}
