//! `halite put`: copies a file into a region, followed by a trailer.
//!
//! The region gets its name when it is complete. Until then, no other process can find the region. If this process ends
//! early, even by a crash, the memory is freed, because a region without a name is freed with its last mapping.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow, bail};
use halite::{
    AccessError, AllocOptions, Lh, NAME_BYTES_MAX, NodeId, NodeStatus, Permissions, Placement, RegionCause,
    RegionError, blocking,
};
use indicatif::ProgressBar;
use xxhash_rust::xxh3::Xxh3;

use super::regions::command_error;
use crate::args::Put;
use crate::client::{self, Client, memory_nodes};
use crate::limits;
use crate::progress;
use crate::signals::Interrupt;
use crate::source::{self, PIECE_BYTES, Source};
use crate::trailer::{TRAILER_BYTES, Trailer};

/// Length in bytes of the first part, for input of unknown length. Each further part is twice as long, up to 1 GiB.
const PART_BYTES_FIRST: u64 = 16 << 20;
const PART_DOUBLINGS_MAX: usize = 6;

/// Minimum length of a part in bytes, if memory is short.
const PART_BYTES_MIN: u64 = 64 << 10;

/// Copies a file into a region. Checks cluster, name and space before it reads a byte.
pub fn run(dir: &Path, args: &Put) -> anyhow::Result<()> {
    let client = client::attach(dir)?;
    check_name(&client, args)?;
    let destination = Destination { session: &client.session, placement: placement(&client, args)? };
    let source = Source::open(&args.file)?;
    // Until here, a signal may end the process, which leaves nothing behind.
    let interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let mut input = Input { source, interrupt, hasher: Xxh3::new(), buffer: vec![0; PIECE_BYTES] };
    let stored = destination.fill(&mut input, &args.name).and_then(|(lh, len)| {
        let trailer = Trailer { len, checksum: input.hasher.digest() };
        client.session.write(lh, len, &trailer.to_bytes())?;
        Ok(client.session.set_name(lh, &args.name)?)
    });
    stored.map_err(|error| explain(error, &client, args, &input.source))
}

/// Fails early if the name is taken. A later conflict is still possible; `set_name` detects it.
fn check_name(client: &Client, args: &Put) -> anyhow::Result<()> {
    if args.name.is_empty() {
        bail!("cannot put \"\": the name is empty; give a name of 1 to {NAME_BYTES_MAX} bytes");
    }
    match client.session.stat(&args.name) {
        Ok(_) => Err(name_taken(&args.name)),
        Err(error) => match error.cause() {
            RegionCause::NameTooLong { .. }
            | RegionCause::NameReserved
            | RegionCause::DirectoryDown
            | RegionCause::DirectoryUnreachable { .. } => {
                Err(command_error("put", format!("{:?}", args.name))(error).into())
            }
            _ => Ok(()),
        },
    }
}

fn placement(client: &Client, args: &Put) -> anyhow::Result<Placement> {
    if args.spread {
        let nodes = memory_nodes(&client.session)?;
        if nodes.is_empty() {
            bail!("cannot spread {:?}: no node contributes memory; start a node with --arena", args.name);
        }
        return Ok(Placement::Spread(nodes));
    }
    Ok(args.node.map_or(Placement::Anywhere, |node| Placement::On(NodeId(node))))
}

/// The source and its checksum.
struct Input {
    source: Source,
    interrupt: Interrupt,
    hasher: Xxh3,
    buffer: Vec<u8>,
}

/// The destination.
struct Destination<'a> {
    session: &'a blocking::Session,
    placement: Placement,
}

impl Destination<'_> {
    /// Copies the input into a region without a name; returns the region and the length of the input.
    fn fill(&self, input: &mut Input, name: &str) -> anyhow::Result<(Lh, u64)> {
        let Some(len) = input.source.len() else {
            let bar = progress::counter(name);
            let filled = self.fill_in_parts(input, &bar);
            bar.finish_and_clear();
            return filled;
        };
        let lh = self.alloc_for(len)?;
        let bar = progress::bar(len, name);
        let mut offset = 0;
        while offset < len {
            let piece_len = (len - offset).min(input.buffer.len() as u64) as usize;
            let piece = &mut input.buffer[..piece_len];
            input.source.read_all(piece, &input.interrupt)?;
            input.hasher.update(piece);
            let begin = Instant::now();
            self.session.write(lh, offset, piece)?;
            source::grow_buffer(&mut input.buffer, piece_len, begin.elapsed());
            offset += piece_len as u64;
            bar.set_position(offset);
        }
        input.source.finish(&input.interrupt)?;
        bar.finish_and_clear();
        Ok((lh, len))
    }

    /// Copies input of unknown length. A region has a fixed length, so growing regions gather the input first.
    fn fill_in_parts(&self, input: &mut Input, bar: &ProgressBar) -> anyhow::Result<(Lh, u64)> {
        let mut parts = Parts { destination: self, filled: Vec::new(), room: 0 };
        loop {
            let piece_len = input.source.read(&mut input.buffer, &input.interrupt)?;
            let piece = &input.buffer[..piece_len];
            let is_last = piece_len < input.buffer.len();
            input.hasher.update(piece);
            bar.inc(piece_len as u64);
            if is_last && parts.filled.is_empty() {
                let whole = self.alloc_for(piece_len as u64)?;
                self.session.write(whole, 0, piece)?;
                return Ok((whole, piece_len as u64));
            }
            let begin = Instant::now();
            parts.push(piece)?;
            source::grow_buffer(&mut input.buffer, piece_len, begin.elapsed());
            if is_last {
                break;
            }
        }
        let len = parts.filled.iter().map(|(_, filled)| filled).sum();
        Ok((self.join(&parts.filled, len)?, len))
    }

    /// Allocates the next part, shorter if memory is short.
    fn alloc_part(&self, index: usize) -> anyhow::Result<(Lh, u64)> {
        let mut len = PART_BYTES_FIRST << index.min(PART_DOUBLINGS_MAX);
        loop {
            let refused = match self.alloc(len) {
                Ok(part) => return Ok((part, len)),
                Err(refused) => refused,
            };
            match *refused.cause() {
                RegionCause::NoSpace { available, .. } if len > PART_BYTES_MIN => {
                    len = shorter(len, available)
                }
                _ => return Err(refused.into()),
            }
        }
    }

    fn join(&self, parts: &[(Lh, u64)], len: u64) -> anyhow::Result<Lh> {
        let whole = self.alloc_for(len)?;
        let mut offset = 0;
        for (part, part_len) in parts {
            self.session.copy(whole, offset, *part, 0, *part_len)?;
            self.session.free(*part)?;
            offset += part_len;
        }
        Ok(whole)
    }

    /// Allocates a region for `len` bytes and the trailer.
    fn alloc_for(&self, len: u64) -> anyhow::Result<Lh> {
        let region_len =
            len.checked_add(TRAILER_BYTES as u64).context("the file is longer than any region")?;
        Ok(self.alloc(region_len)?)
    }

    /// Allocates a region that the nodes holding it populate, so that the memory is charged to their processes.
    fn alloc(&self, len: u64) -> Result<Lh, RegionError> {
        let placement = self.placement.clone();
        let options = AllocOptions { placement, everyone: Permissions::empty(), populate: true };
        self.session.alloc_with(None, len, options)
    }
}

/// Regions that hold the parts of input of unknown length, in order.
struct Parts<'a> {
    destination: &'a Destination<'a>,
    /// Each region with the number of its filled bytes.
    filled: Vec<(Lh, u64)>,
    /// Number of free bytes in the last region.
    room: u64,
}

impl Parts<'_> {
    fn push(&mut self, mut bytes: &[u8]) -> anyhow::Result<()> {
        while !bytes.is_empty() {
            if self.room == 0 {
                let (part, len) = self.destination.alloc_part(self.filled.len())?;
                self.filled.push((part, 0));
                self.room = len;
            }
            let fitting = self.room.min(bytes.len() as u64);
            let (now, rest) = bytes.split_at(fitting as usize);
            let (part, filled) = self.filled.last_mut().expect("there is room in the last");
            self.destination.session.write(*part, *filled, now)?;
            *filled += fitting;
            self.room -= fitting;
            bytes = rest;
        }
        Ok(())
    }
}

/// Returns the length to try after `len` did not fit: a power of two, at most a quarter of what is available.
fn shorter(len: u64, available: u64) -> u64 {
    let quarter = (available / 4).checked_ilog2().map_or(0, |exponent| 1 << exponent);
    quarter.min(len / 2).max(PART_BYTES_MIN)
}

fn name_taken(name: &str) -> anyhow::Error {
    anyhow!("cannot put {name:?}: it exists already; `halite rm` frees it")
}

/// Adds the next step for the user, if it is known.
fn explain(error: anyhow::Error, client: &Client, args: &Put, source: &Source) -> anyhow::Error {
    let name = format!("{:?}", args.name);
    // The region has no name yet, so the error knows only its handle.
    if let Some(AccessError { cause, .. }) = error.downcast_ref() {
        return anyhow::Error::new(*cause).context(format!("cannot put {name}"));
    }
    let Some(refused) = error.downcast_ref::<RegionError>() else {
        return error.context(format!("cannot put {name}"));
    };
    match *refused.cause() {
        RegionCause::NameTaken => name_taken(&args.name),
        RegionCause::NoSpace { .. } if source.len().is_none() => anyhow!(
            "cannot put {name}: {}; `put` holds two copies of {} for a moment, because its length is not known in advance",
            refused.cause(),
            source.label()
        ),
        RegionCause::NoSpace { wanted, .. } if !args.spread && has_room_when_spread(client, wanted) => {
            anyhow!("cannot put {name}: {}; or add --spread: all nodes together have room", refused.cause())
        }
        _ => command_error("put", name)(refused.clone()).into(),
    }
}

/// Returns true if all nodes together have `wanted` bytes of free memory, in pieces that hold a chunk.
fn has_room_when_spread(client: &Client, wanted: u64) -> bool {
    // If the nodes do not answer, there is no advice.
    let nodes = client.session.status().unwrap_or_default();
    let alive = nodes.iter().filter(|node| node.state.is_there());
    let usable = alive.filter(|node| node.bytes_largest >= limits::PIECE_BYTES.min(wanted));
    let free = |node: &NodeStatus| {
        node.bytes_total.saturating_sub(node.bytes_used + node.bytes_quarantined + node.bytes_refused)
    };
    usable.map(free).sum::<u64>() >= wanted
}
