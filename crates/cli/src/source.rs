//! The source of `put`: a file of known length, or anything else that can be read.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use halite_providers::inherited::{Standard, was_closed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::signals::Interrupt;

/// Length in bytes of the first piece of a transfer.
pub const PIECE_BYTES: usize = 1 << 20;

/// Maximum length of a piece in bytes.
const PIECE_BYTES_MAX: usize = 16 << 20;

/// Durations of a piece after which the next one is longer: a shorter one gains nothing, and a longer one would delay an
/// interrupt.
const GROW_RANGE: Range<Duration> = Duration::from_millis(4)..Duration::from_secs(2);

/// Doubles the buffer of a transfer if a whole piece took long, because each piece waits for a round trip at its end.
pub fn grow_buffer(buffer: &mut Vec<u8>, piece_len: usize, took: Duration) {
    if piece_len == buffer.len() && GROW_RANGE.contains(&took) {
        buffer.resize((2 * piece_len).min(PIECE_BYTES_MAX), 0);
    }
}

/// Interval between checks for an interrupt while there is no input.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A source of bytes, read once from first to last.
#[derive(Debug)]
pub struct Source {
    file: File,
    len: Option<u64>,
    label: String,
}

impl Source {
    /// Opens `path`, or standard input for `-`. Reads no bytes yet.
    pub fn open(path: &Path) -> anyhow::Result<Source> {
        let is_stdin = path == Path::new("-");
        let label = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
        let opened = if is_stdin { duplicate_stdin() } else { File::open(path) };
        let mut file = opened.with_context(|| format!("cannot open {label}"))?;
        let metadata = file.metadata().with_context(|| format!("cannot read the file status of {label}"))?;
        if metadata.is_dir() {
            bail!("cannot put {label}: it is a directory");
        }
        // Generated files, as in /proc, report no length although they have bytes.
        let len = match metadata.is_file() && metadata.len() > 0 {
            true => {
                // Another process may have read a part of a redirected file already.
                let position = file
                    .stream_position()
                    .with_context(|| format!("cannot read the file status of {label}"))?;
                Some(metadata.len().saturating_sub(position))
            }
            false => None,
        };
        Ok(Source { file, len, label })
    }

    /// Returns the number of bytes to read; `None` if unknown.
    pub fn len(&self) -> Option<u64> {
        self.len
    }

    /// Returns the name of the source in errors.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Fills `piece` from the current position. Returns the number of bytes read, which is less than the length of
    /// `piece` only at the end of the source.
    pub fn read(&mut self, piece: &mut [u8], interrupt: &Interrupt) -> anyhow::Result<usize> {
        let mut filled = 0;
        while filled < piece.len() {
            self.wait_readable(interrupt)?;
            match self.file.read(&mut piece[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", self.label)),
            }
        }
        Ok(filled)
    }

    /// Fills `piece` from the current position. Fails if the source ends before `piece` is full.
    pub fn read_all(&mut self, piece: &mut [u8], interrupt: &Interrupt) -> anyhow::Result<()> {
        if self.read(piece, interrupt)? < piece.len() {
            bail!("{} became shorter while it was read; try again", self.label);
        }
        Ok(())
    }

    /// Fails if the file has grown during the transfer.
    pub fn finish(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        if self.read(&mut [0], interrupt)? > 0 {
            bail!("{} became longer while it was read; try again", self.label);
        }
        Ok(())
    }

    /// Waits for input in short intervals, since a pipe may stay empty for hours.
    fn wait_readable(&self, interrupt: &Interrupt) -> anyhow::Result<()> {
        loop {
            interrupt.check(|| "nothing is stored".to_owned())?;
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&POLL_INTERVAL)) {
                Ok(0) | Err(Errno::INTR) => {}
                // Files that cannot be polled can be read at once.
                _ => return Ok(()),
            }
        }
    }
}

fn duplicate_stdin() -> io::Result<File> {
    if was_closed(Standard::Input) {
        return Err(io::Error::other("standard input is closed (`</dev/null` gives an empty file)"));
    }
    Ok(File::from(rustix::io::dup(io::stdin())?))
}
