//! Regions that several writers fill at once, each with records of its own, so that a lost or a stray write shows.
//!
//! ```text
//!   record 0        record 1        record 2        record 3 ...
//!   writer 0        writer 1        writer 2        writer 0 ...
//! ```
//!
//! Writer `w` writes its records in turn, again and again; its `n`th write is a function of `w` and `n` alone.  So
//! the number of the last write that returned tells what all its records must hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use fastrand::Rng;
use halite::blocking::Session;
use halite::{AccessCause, Lh};

use super::pattern::first_difference;

pub const RECORD_BYTES: usize = 256;
/// How many writers share a region.
pub const WRITERS: u64 = 3;

/// The `count`th write of `writer`, counted from 1.  Its first word is the count.
pub fn record(writer: u64, count: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&count.to_le_bytes());
    let seed = Rng::with_seed(writer << 56 | count).u64(..);
    for (index, word) in record[8..].chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&seed.wrapping_mul(2 * index as u64 + 1).to_le_bytes());
    }
    record
}

/// How many records each writer has in a region of `len` bytes.
pub fn turns(len: u64) -> u64 {
    len / RECORD_BYTES as u64 / WRITERS
}

/// Where the `count`th write of `writer` goes.
pub fn offset(writer: u64, count: u64, len: u64) -> u64 {
    ((count - 1) % turns(len) * WRITERS + writer) * RECORD_BYTES as u64
}

/// Compares a whole region with what the writers were told to be done with.
pub fn check(found: &[u8], done: &[u64; WRITERS as usize]) -> Result<(), String> {
    let turns = turns(found.len() as u64);
    for (writer, done) in (0..).zip(done) {
        for turn in 0..turns {
            // The last write to this record, if there was any.
            let laps = (done + turns - 1 - turn) / turns;
            let wanted = match laps {
                0 => [0; RECORD_BYTES],
                _ => record(writer, (laps - 1) * turns + turn + 1),
            };
            let at = ((turn * WRITERS + writer) as usize) * RECORD_BYTES;
            let found = &found[at..at + RECORD_BYTES];
            if let Some(difference) = first_difference(found, &wanted) {
                return Err(format!(
                    "record {turn} of writer {writer}, which has done {done}: {difference:?}; count {} for {}",
                    u64::from_le_bytes(found[..8].try_into().expect("eight bytes")),
                    u64::from_le_bytes(wanted[..8].try_into().expect("eight bytes")),
                ));
            }
        }
    }
    Ok(())
}

/// A thread that writes its records until it is told to stop or cannot go on.
pub struct Writer {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Option<AccessCause>)>,
}

impl Writer {
    /// Goes on after `done` writes.  After each write, its number is written to the word of the writer in `counts`.
    pub fn start(session: Session, lh: Lh, counts: Lh, writer: u64, done: u64) -> Writer {
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        let thread = std::thread::spawn(move || {
            let mut done = done;
            // Only says that enough is done; the join orders the rest.
            while !stop.load(Relaxed) {
                match write_one(&session, lh, counts, writer, done + 1) {
                    Ok(()) => done += 1,
                    Err(cause) => return (done, Some(cause)),
                }
            }
            (done, None)
        });
        Writer { stopping, thread }
    }

    /// How many writes returned, and what ended them if it was not this call.
    pub fn stop(self) -> (u64, Option<AccessCause>) {
        self.stopping.store(true, Relaxed);
        self.thread.join().expect("the writer does not panic")
    }
}

fn write_one(session: &Session, lh: Lh, counts: Lh, writer: u64, count: u64) -> Result<(), AccessCause> {
    let len = session.len(lh).map_err(|error| error.cause)?;
    session.write(lh, offset(writer, count, len), &record(writer, count)).map_err(|error| error.cause)?;
    session.write(counts, writer * 8, &count.to_le_bytes()).map_err(|error| error.cause)
}
