//! `halite get`: a region becomes a file, verified if it was made by `put`.

use std::path::Path;

use anyhow::{Context, bail};
use halite::{Lh, Permissions, blocking};
use xxhash_rust::xxh3::Xxh3;

use super::regions::attempting;
use crate::args::Get;
use crate::client::Client;
use crate::output;
use crate::progress;
use crate::signals::Interrupt;
use crate::sink::Sink;
use crate::source::PIECE_BYTES;
use crate::trailer::{TRAILER_BYTES, Trailer};

/// A file appears only if all its bytes are right; standard output gets them as they come.
pub fn run(dir: &Path, args: &Get) -> anyhow::Result<()> {
    if args.output.is_none() {
        output::standard_output().context("cannot write to standard output")?;
    }
    let client = Client::join(dir)?;
    let lh = client.session.map(&args.name, Permissions::READ);
    let lh = lh.map_err(attempting("get", format!("{:?}", args.name)))?;
    nothing_is_lost(&client.session, &args.name)?;
    let region_len = client.session.len(lh)?;
    let (len, expected) = match trailer(&client.session, lh, region_len, &args.name)? {
        Some(Trailer { len, checksum }) => (len, Some(checksum)),
        None => {
            output::note(&format!(
                "{:?} was not made by `halite put`: copied whole and not verified",
                args.name
            ));
            (region_len, None)
        }
    };
    // Only a file has to be removed again.  Else a signal may simply end us, also while we wait for the reader of a pipe.
    let interrupt = Sink::is_file(args.output.as_deref()).then(Interrupt::listen).transpose();
    let interrupt = interrupt.context("cannot listen for signals")?;
    let mut sink = Sink::create(args.output.as_deref())?;
    let actual = copy(&client.session, lh, len, &mut sink, interrupt.as_ref(), &args.name)?;
    if let Some(expected) = expected.filter(|expected| *expected != actual) {
        bail!(
            "{:?} is damaged: its bytes have checksum {actual:016x}, {expected:016x} were put; they were changed since",
            args.name
        );
    }
    sink.finish()
}

/// Of a region of which a part is gone, not even the checksum may be left.
fn nothing_is_lost(session: &blocking::Session, name: &str) -> anyhow::Result<()> {
    let region = session.stat(name).map_err(attempting("get", format!("{name:?}")))?;
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

fn trailer(
    session: &blocking::Session,
    lh: Lh,
    region_len: u64,
    name: &str,
) -> anyhow::Result<Option<Trailer>> {
    let Some(offset) = region_len.checked_sub(TRAILER_BYTES as u64) else { return Ok(None) };
    let mut bytes = [0; TRAILER_BYTES];
    session.read(lh, offset, &mut bytes)?;
    Trailer::parse(&bytes, region_len).with_context(|| format!("cannot verify {name:?}"))
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
        if interrupt.is_some_and(Interrupt::is_asked) {
            bail!("interrupted after {offset} of {len} bytes of {name:?}");
        }
        let piece = &mut buffer[..(len - offset).min(PIECE_BYTES as u64) as usize];
        session.read(lh, offset, piece)?;
        hasher.update(piece);
        sink.write(piece)?;
        offset += piece.len() as u64;
        bar.set_position(offset);
    }
    bar.finish_and_clear();
    Ok(hasher.digest())
}
