//! The baseline of attached sessions: a word that goes to another core and back through shared memory.
//!
//! Two threads take turns on two words, each in its own cache line. So a round trip is the least that a request and its
//! reply cost between these cores.

use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

use super::baseline::Words;
use super::cores::{Cores, pin};

/// Round trips of a round; each lasts some milliseconds.
const TRIPS: u64 = 20_000;
/// Number of rounds, of which the median counts.
const ROUNDS: u64 = 7;
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
    let trips = 1..=ROUNDS * TRIPS;
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            // These cores were just listed as available.
            let _ = pin(cores.of_server(0));
            for trip in trips.clone() {
                while there.load(Acquire) != trip {}
                back.store(trip, Release);
            }
        });
        let client = scope.spawn(|| {
            let _ = pin(cores.of_client(0));
            let mut rounds = Vec::new();
            for round in 0..ROUNDS {
                let begin = Instant::now();
                for trip in round * TRIPS + 1..=(round + 1) * TRIPS {
                    there.store(trip, Release);
                    while back.load(Acquire) != trip {}
                }
                rounds.push(begin.elapsed().as_secs_f64() * 1e6 / TRIPS as f64);
            }
            rounds.sort_by(f64::total_cmp);
            rounds[rounds.len() / 2]
        });
        echo.join().expect("a relay does not panic");
        Ok(Some(client.join().expect("a relay does not panic")))
    })
}
