//! Regions that several writers fill concurrently, each with its own records, so that tests detect lost and misplaced
//! writes.
//!
//! ```text
//!   record 0        record 1        record 2        record 3 ...
//!   writer 0        writer 1        writer 2        writer 0 ...
//! ```
//!
//! Writer `w` writes its records in order, and then starts again with the first. The bytes of its `n`th write depend
//! only on `w` and `n`. So the number of completed writes determines the contents of all its records.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use fastrand::Rng;
use halite::blocking::Session;
use halite::{AccessCause, Lh};

use super::pattern::first_difference;

pub const RECORD_BYTES: usize = 256;
/// Number of writers of a region.
pub const WRITERS: u64 = 3;

/// Returns the `count`th write of `writer`, counted from 1. Its first word is the count.
pub fn record(writer: u64, count: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&count.to_le_bytes());
    let seed = Rng::with_seed(writer << 56 | count).u64(..);
    for (index, word) in record[8..].chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&seed.wrapping_mul(2 * index as u64 + 1).to_le_bytes());
    }
    record
}

/// Returns the number of records of each writer in a region of `len` bytes.
pub fn turns(len: u64) -> u64 {
    len / RECORD_BYTES as u64 / WRITERS
}

/// Returns the offset of the `count`th write of `writer`.
pub fn offset(writer: u64, count: u64, len: u64) -> u64 {
    ((count - 1) % turns(len) * WRITERS + writer) * RECORD_BYTES as u64
}

/// Compares a whole region with the completed writes.
pub fn check(found: &[u8], done: &[u64; WRITERS as usize]) -> Result<(), String> {
    let turns = turns(found.len() as u64);
    for (writer, done) in (0..).zip(done) {
        for turn in 0..turns {
            // Number of completed writes to this record.
            let rounds = (done + turns - 1 - turn) / turns;
            let wanted = match rounds {
                0 => [0; RECORD_BYTES],
                _ => record(writer, (rounds - 1) * turns + turn + 1),
            };
            let at = ((turn * WRITERS + writer) as usize) * RECORD_BYTES;
            let found = &found[at..at + RECORD_BYTES];
            if let Some(difference) = first_difference(found, &wanted) {
                return Err(format!(
                    "record {turn} of writer {writer} after {done} writes: {difference:?}; write {}, expected {}",
                    u64::from_le_bytes(found[..8].try_into().expect("eight bytes")),
                    u64::from_le_bytes(wanted[..8].try_into().expect("eight bytes")),
                ));
            }
        }
    }
    Ok(())
}

/// A thread that writes its records until it is stopped or a write fails.
pub struct Writer {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Option<AccessCause>)>,
}

impl Writer {
    /// Starts a writer that continues after `done` writes. Each completed write is recorded in the writer's word of
    /// `counts`.
    pub fn start(session: Session, lh: Lh, counts: Lh, writer: u64, done: u64) -> Writer {
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        let thread = std::thread::spawn(move || {
            let mut done = done;
            // Relaxed suffices, because the join orders everything else.
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

    /// Stops the writer. Returns the number of completed writes, and the cause if a write failed.
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
