//! `halite get`: copies a region to a file, and verifies it if `put` made it.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use futures_util::future::try_join;
use halite::{AccessError, Lh, Permissions, RegionInfo, blocking};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::regions::command_error;
use crate::args::Get;
use crate::client;
use crate::output;
use crate::progress;
use crate::signals::Interrupt;
use crate::sink::Sink;
use crate::source::{self, PIECE_BYTES};
use crate::trailer::{TRAILER_BYTES, Trailer};

/// Copies a region. A file appears when all its bytes are verified; standard output receives bytes as they are read.
pub fn run(dir: &Path, args: &Get) -> anyhow::Result<()> {
    if args.target().is_none() {
        output::standard_output().context("cannot write to standard output")?;
    }
    let client = client::attach(dir)?;
    let session = client.session.as_async();
    let mapped = try_join(session.map(&args.name, Permissions::READ), session.stat(&args.name));
    let mapped = client.session.block_on(mapped);
    let (lh, region) = mapped.map_err(command_error("get", format!("{:?}", args.name)))?;
    check_complete(&region, &args.name)?;
    let region_len = client.session.len(lh).map_err(with_region_name(&args.name))?;
    let tail = Tail::read(&client.session, lh, region_len).map_err(with_region_name(&args.name))?;
    let (len, expected) = match tail.trailer(region_len, &args.name)? {
        Some(Trailer { len, checksum }) => (len, Some(checksum)),
        None => {
            output::note(&format!(
                "{:?} was not made by `halite put`: copied whole and not verified",
                args.name
            ));
            (region_len, None)
        }
    };
    // Only a file must be removed after an interrupt. Otherwise the signal may end the process, even at a pipe.
    let interrupt = Sink::is_file(args.target()).then(Interrupt::listen).transpose();
    let interrupt = interrupt.context("cannot listen for signals")?;
    let mut sink = Sink::create(args.target())?;
    let actual = match tail.whole_content(region_len, len) {
        Some(bytes) => {
            sink.write(bytes)?;
            xxh3_64(bytes)
        }
        None => copy(&client.session, lh, len, &mut sink, interrupt.as_ref(), &args.name)?,
    };
    if let Some(expected) = expected.filter(|expected| *expected != actual) {
        bail!(
            "{:?} is damaged: its checksum is {actual:016x}, but was {expected:016x} when it was put; its bytes were changed since",
            args.name
        );
    }
    sink.finish()
}

/// Returns a function that makes an error about an access show the region's name.
fn with_region_name(name: &str) -> impl Fn(AccessError) -> AccessError {
    move |error| AccessError { region: format!("{name:?}"), ..error }
}

/// Fails early if chunks are lost: the checksum may be in one of them.
fn check_complete(region: &RegionInfo, name: &str) -> anyhow::Result<()> {
    match region.lost.first() {
        Some((node, _)) => {
            let bytes: u64 = region.lost.iter().map(|(_, bytes)| bytes).sum();
            bail!(
                "cannot get {name:?}: {bytes} of its bytes are lost with nodes that are gone, such as node {node}"
            )
        }
        None => Ok(()),
    }
}

/// The last piece of a region, which contains the trailer; the whole region if it is no longer than a piece.
struct Tail(Vec<u8>);

impl Tail {
    fn read(session: &blocking::Session, lh: Lh, region_len: u64) -> Result<Tail, AccessError> {
        let is_short = region_len <= PIECE_BYTES as u64;
        let len = if is_short { region_len } else { TRAILER_BYTES as u64 };
        let mut bytes = vec![0; len as usize];
        session.read(lh, region_len - len, &mut bytes)?;
        Ok(Tail(bytes))
    }

    fn trailer(&self, region_len: u64, name: &str) -> anyhow::Result<Option<Trailer>> {
        let Some(bytes) = self.0.last_chunk() else { return Ok(None) };
        Trailer::parse(bytes, region_len).with_context(|| format!("cannot verify {name:?}"))
    }

    /// Returns the first `len` bytes of the region, if the piece is the whole region.
    fn whole_content(&self, region_len: u64, len: u64) -> Option<&[u8]> {
        (self.0.len() as u64 == region_len).then(|| &self.0[..len as usize])
    }
}

/// Copies the first `len` bytes and returns their checksum.
fn copy(
    session: &blocking::Session,
    lh: Lh,
    len: u64,
    sink: &mut Sink,
    interrupt: Option<&Interrupt>,
    name: &str,
) -> anyhow::Result<u64> {
    let bar = progress::bar(len, name);
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; PIECE_BYTES];
    let mut offset = 0;
    while offset < len {
        if let Some(interrupt) = interrupt {
            interrupt.check(|| {
                format!("the file is not written; {offset} of {len} bytes of {name:?} were read")
            })?;
        }
        let piece_len = (len - offset).min(buffer.len() as u64) as usize;
        let piece = &mut buffer[..piece_len];
        let begin = Instant::now();
        session.read(lh, offset, piece).map_err(with_region_name(name))?;
        let took = begin.elapsed();
        hasher.update(piece);
        sink.write(piece)?;
        source::grow_buffer(&mut buffer, piece_len, took);
        offset += piece_len as u64;
        bar.set_position(offset);
    }
    bar.finish_and_clear();
    Ok(hasher.digest())
}
