//! `halite put`: a file becomes a region, its bytes followed by a trailer.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use halite::{
    AllocOptions, Lh, NodeId, NodeState, NodeStatus, Permissions, Placement, RegionCause, RegionError,
    blocking,
};
use xxhash_rust::xxh3::Xxh3;

use super::regions::attempting;
use crate::args::Put;
use crate::client::Client;
use crate::files::{PIECE_BYTES, Source};
use crate::output;
use crate::progress;
use crate::signals::Interrupt;
use crate::trailer::{TRAILER_BYTES, Trailer};

/// A put that fails or is interrupted frees its region.
pub fn run(dir: &Path, args: &Put) -> anyhow::Result<()> {
    let mut source = Source::open(&args.file)?;
    let client = Client::join(dir)?;
    let placement = placement(&client, args)?;
    // From here on there is something to undo; until here a signal may simply end us.
    let interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let len = source.len();
    let region_len = len.checked_add(TRAILER_BYTES as u64).context("the file is longer than any region")?;
    // What the client writes is to count as the memory of the nodes that hold it.
    let options = AllocOptions { placement, everyone: Permissions::empty(), populate: true };
    let made = client.session.alloc_with(Some(&args.name), region_len, options);
    let lh = made.map_err(|error| explain(error, &client, args))?;
    let unfinished = Unfinished { session: &client.session, lh, name: &args.name };
    client.session.write(lh, len, &Trailer::Unfinished { len }.to_bytes())?;
    let checksum = copy(&client.session, lh, &mut source, &interrupt, &args.name)?;
    client.session.write(lh, len, &Trailer::Complete { len, checksum }.to_bytes())?;
    unfinished.keep();
    Ok(())
}

fn placement(client: &Client, args: &Put) -> anyhow::Result<Placement> {
    if args.spread {
        let nodes = client.memory_nodes()?;
        if nodes.is_empty() {
            bail!("cannot spread {:?}: no node contributes memory", args.name);
        }
        return Ok(Placement::Spread(nodes));
    }
    Ok(args.node.map_or(Placement::Anywhere, |node| Placement::On(NodeId(node))))
}

/// Copies all bytes and returns their checksum.
fn copy(
    session: &blocking::Session,
    lh: Lh,
    source: &mut Source,
    interrupt: &Interrupt,
    name: &str,
) -> anyhow::Result<u64> {
    let len = source.len();
    let bar = progress::bar(len, name);
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; PIECE_BYTES];
    let mut offset = 0;
    while offset < len {
        if interrupt.is_asked() {
            bail!("interrupted: {name:?} was not stored");
        }
        let piece = &mut buffer[..(len - offset).min(PIECE_BYTES as u64) as usize];
        source.read(piece)?;
        hasher.update(piece);
        session.write(lh, offset, piece)?;
        offset += piece.len() as u64;
        bar.set_position(offset);
    }
    source.finish()?;
    bar.finish_and_clear();
    Ok(hasher.digest())
}

/// Says what the reader may do about it, where that is known.
fn explain(error: RegionError, client: &Client, args: &Put) -> anyhow::Error {
    let error = attempting("put", format!("{:?}", args.name))(error);
    match *error.cause() {
        RegionCause::NameTaken => {
            anyhow!("cannot put {:?}: it exists already; `halite rm` frees it", args.name)
        }
        RegionCause::NoSpace { wanted, .. } if !args.spread && has_room_when_spread(client, wanted) => {
            anyhow!("{error}; or add --spread, for all nodes together have room")
        }
        _ => error.into(),
    }
}
/// Whether all nodes together have the memory that one lacks.
fn has_room_when_spread(client: &Client, wanted: u64) -> bool {
    // Who cannot be asked gets no advice.
    let nodes = client.session.status().unwrap_or_default();
    let alive = nodes.iter().filter(|node| node.state == NodeState::Alive);
    let free = |node: &NodeStatus| node.bytes_total.saturating_sub(node.bytes_used + node.bytes_quarantined);
    alive.map(free).sum::<u64>() >= wanted
}

/// A region that holds only a part of its file.  Freed when dropped.
struct Unfinished<'a> {
    session: &'a blocking::Session,
    lh: Lh,
    name: &'a str,
}

impl Unfinished<'_> {
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.session.free(self.lh) {
            output::note(&format!("an incomplete region {:?} is left behind: {error}", self.name));
        }
    }
}
