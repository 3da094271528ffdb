//! `halite directory`: shows where the names of regions are stored, or moves them to etcd.

use std::path::Path;

use anyhow::Context;
use halite::EtcdAddress;
use halite::cluster_dir::ClusterDir;

use crate::args::DirectoryCommand;
use crate::client::Client;
use crate::output;

/// Shows or moves the directory of names. Never prints a password.
pub fn run(dir: &Path, command: &DirectoryCommand) -> anyhow::Result<()> {
    match command {
        DirectoryCommand::Show => show(dir),
        DirectoryCommand::Move { to } => move_names(dir, to),
    }
}

fn show(dir: &Path) -> anyhow::Result<()> {
    // Joining stores the current place of the directory, which the other nodes know.
    let _member = Client::join(dir)?;
    let known = ClusterDir::open(dir).and_then(|dir| dir.etcd());
    let known = known.with_context(|| format!("cannot read {}", dir.display()))?;
    match known {
        Some(etcd) => output::print(&format!("names are at {etcd:?}\n"))?,
        None => output::print("names are at node 0\n")?,
    }
    Ok(())
}

fn move_names(dir: &Path, to: &EtcdAddress) -> anyhow::Result<()> {
    let moved = Client::join(dir)?.session.move_names(to)?;
    let lost = match moved.lost {
        0 => String::new(),
        lost => format!(", and {lost} of lost regions"),
    };
    output::print(&format!("moved {} names{lost} to {to:?}\n", moved.names))?;
    Ok(())
}
