//! `halite directory`: shows where the names of regions are stored, or moves them to etcd and back.

use std::path::Path;

use anyhow::Context;
use halite::cluster_dir::ClusterDir;
use halite::{EtcdAddress, NamesMoved};

use crate::args::DirectoryCommand;
use crate::client::Client;
use crate::output;

/// Shows or moves the directory of names. Never prints a password.
pub fn run(dir: &Path, command: &DirectoryCommand) -> anyhow::Result<()> {
    match command {
        DirectoryCommand::Show => show(dir),
        DirectoryCommand::Move { to } => move_names(dir, to),
        DirectoryCommand::Back => move_back(dir),
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
    output::print(&format!("moved {} to {to:?}\n", format_count(&moved)))?;
    Ok(())
}

fn move_back(dir: &Path) -> anyhow::Result<()> {
    let client = Client::join(dir)?;
    let known = ClusterDir::open(dir).and_then(|dir| dir.etcd());
    let known = known.with_context(|| format!("cannot read {}", dir.display()))?;
    let moved = client.session.move_names_back()?;
    let Some(etcd) = known else { return Ok(output::print("names are at node 0\n")?) };
    output::print(&format!(
        "moved {} to node 0, which must run for names from now on\nNodes leave {etcd:?}: start them without --directory, and those of other hosts with --join. Once all nodes are\nconnected, the keys below its prefix are no longer needed (etcdctl del --prefix PREFIX/).\n",
        format_count(&moved)
    ))?;
    Ok(())
}

fn format_count(moved: &NamesMoved) -> String {
    match moved.lost {
        0 => format!("{} names", moved.names),
        lost => format!("{} names, and {lost} of lost regions", moved.names),
    }
}
