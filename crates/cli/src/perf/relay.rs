//! The baseline of attached sessions: a word that goes to another core and back through shared memory.
//!
//! Two threads take turns on two words, each in its own cache line. So a round trip is the least that a request and its
//! reply cost between these cores.

use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

use super::baseline::Words;
use super::cores::{Cores, pin};
use crate::threads;

/// Round trips between two readings of the clock, as of short operations.
const TRIPS: u64 = 64;
/// Number of batches, of which the median counts.
const BATCHES: u64 = 2000;
/// Offset of the second word, in bytes: further away than processors fetch lines together.
const BACK: u64 = 256;

/// Returns the time of a round trip between the cores of the client and of the server, in microseconds; `None` if both
/// ends may share a core.
pub fn measure_us(cores: &Cores) -> anyhow::Result<Option<f64>> {
    if !cores.are_apart() {
        return Ok(None);
    }
    let words = Words::new(2 * BACK)?;
    let (there, back) = (words.at(0), words.at(BACK));
    let trips = 1..=BATCHES * TRIPS;
    std::thread::scope(|scope| {
        let mut relays = threads::Group::new(scope);
        let echo = relays.add(|| {
            // These cores were just listed as available.
            let _ = pin(cores.of_server(0));
            for trip in trips.clone() {
                while there.load(Acquire) != trip {}
                back.store(trip, Release);
            }
        })?;
        let client = relays.add(|| {
            let _ = pin(cores.of_client(0));
            let mut batches = Vec::new();
            for batch in 0..BATCHES {
                let begin = Instant::now();
                for trip in batch * TRIPS + 1..=(batch + 1) * TRIPS {
                    there.store(trip, Release);
                    while back.load(Acquire) != trip {}
                }
                batches.push(begin.elapsed().as_secs_f64() * 1e6 / TRIPS as f64);
            }
            batches.sort_by(f64::total_cmp);
            batches[batches.len() / 2]
        })?;
        relays.begin();
        echo.join();
        Ok(Some(client.join()))
    })
}
