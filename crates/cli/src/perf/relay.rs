//! The baselines of attached sessions: a word that goes to other processes and back through shared memory.
//!
//! For an access, two threads take turns on two words. For a call, three processes pass a word on:
//!
//! ```text
//!   client ── 0 ──> node ── 1 ──> server        the node has a core of its own;
//!   client <── 3 ── node <── 2 ── server        the client and the server share the other one, and yield it
//! ```
//!
//! Each word is in its own cache line. So a round trip is the minimum cost of a request and its reply between these cores.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::yield_now;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::baseline::Words;
use super::cores::{Cores, pin};
use super::server::{Request, Server};
use crate::threads;

/// Number of round trips per batch; the clock is read once per batch.
const TRIPS: u64 = 64;
/// Number of batches. The result is the median.
const BATCHES: u64 = 2000;
/// Number of batches of a relay with switches between processes.
const SLOW_BATCHES: u64 = 500;
/// Time after which a relay ends without a result: the processes of a relay normally take less than a second, but each
/// round trip may take several time slices while another thread computes on one of the cores.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Number that ends a relay.
const LAST: u64 = u64::MAX;
/// Distance of the words, in bytes: processors fetch lines in pairs of 128 bytes.
const DISTANCE_BYTES: u64 = 256;

/// The role of a process in a relay of three.
#[derive(Serialize, Deserialize, Debug)]
pub struct Role {
    /// Path of the words.
    words: PathBuf,
    is_node: bool,
}

impl Role {
    /// Passes each word on, until the last round trip.
    pub fn run(self, cores: &Cores) -> anyhow::Result<()> {
        pin(cores.of_server(0))?;
        let words = Words::open(&self.words, 4 * DISTANCE_BYTES)?;
        let [to_node, to_server, from_server, from_node] =
            [0, 1, 2, 3].map(|word| words.at(word * DISTANCE_BYTES));
        let mut trip = 0;
        while trip != LAST {
            let before = trip;
            if self.is_node {
                trip = next(to_node, before, || {});
                to_server.store(trip, Release);
                next(from_server, before, || {});
                from_node.store(trip, Release);
            } else {
                trip = next(to_server, before, yield_now);
                from_server.store(trip, Release);
            }
        }
        Ok(())
    }
}

/// Waits until the word differs from `before`, and returns it.
fn next(word: &AtomicU64, before: u64, pause: impl Fn()) -> u64 {
    loop {
        // Pairs with the Release of the process that passes the number on.
        let number = word.load(Acquire);
        if number != before {
            return number;
        }
        pause();
    }
}

/// Returns the time of a round trip from the client through the node to the server and back, in microseconds; `None` if
/// the round trips take too long.
pub fn measure_three_us(
    cores: &Cores,
    node: &mut Server,
    server: &mut Server,
) -> anyhow::Result<Option<f64>> {
    let words = Words::new(4 * DISTANCE_BYTES)?;
    let role = |is_node| Request::Relay(Role { words: words.path(), is_node });
    node.send(&role(true))?;
    server.send(&role(false))?;
    let (ping, pong) = (words.at(0), words.at(3 * DISTANCE_BYTES));
    let measured = std::thread::scope(|scope| {
        let client = threads::spawn_in(scope, || {
            // This core was just listed as available.
            let _ = pin(cores.of_client(0));
            median_batch_us(SLOW_BATCHES, TIME_MAX, |trip| {
                ping.store(trip, Release);
                while pong.load(Acquire) != trip {
                    yield_now();
                }
            })
        })?;
        anyhow::Ok(client.join().expect("the thread does not panic"))
    })?;
    node.reply()?;
    server.reply()?;
    Ok(measured)
}

/// Returns the time of a round trip between the cores of the client and of the server, in microseconds; `None` if the
/// round trips take too long.
pub fn measure_us(cores: &Cores) -> anyhow::Result<Option<f64>> {
    let words = Words::new(2 * DISTANCE_BYTES)?;
    let (ping, pong) = (words.at(0), words.at(DISTANCE_BYTES));
    std::thread::scope(|scope| {
        let mut relays = threads::Group::new(scope);
        let echo = relays.add(|| {
            // These cores were just listed as available.
            let _ = pin(cores.of_server(0));
            let mut trip = 0;
            while trip != LAST {
                trip = next(ping, trip, || {});
                pong.store(trip, Release);
            }
        })?;
        let client = relays.add(|| {
            let _ = pin(cores.of_client(0));
            median_batch_us(BATCHES, TIME_MAX, |trip| {
                ping.store(trip, Release);
                while pong.load(Acquire) != trip {}
            })
        })?;
        relays.begin();
        echo.join();
        Ok(client.join())
    })
}

/// Makes round trips in batches, numbered from 1, and a last one that ends the relay. Returns the time of a round trip in
/// the median batch; `None` if the batches take longer than `time_max`.
fn median_batch_us(batches: u64, time_max: Duration, round_trip: impl Fn(u64)) -> Option<f64> {
    let (mut times, all) = (Vec::new(), Instant::now());
    for batch in 0..batches {
        let begin = Instant::now();
        (batch * TRIPS + 1..=(batch + 1) * TRIPS).for_each(&round_trip);
        times.push(begin.elapsed().as_secs_f64() * 1e6 / TRIPS as f64);
        if all.elapsed() > time_max {
            break;
        }
    }
    round_trip(LAST);
    times.sort_by(f64::total_cmp);
    (times.len() as u64 == batches).then(|| times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_relay_that_takes_too_long_ends_without_a_result() {
        let trips = RefCell::new(Vec::new());
        let measured = median_batch_us(1000, Duration::ZERO, |trip| trips.borrow_mut().push(trip));
        assert_eq!(measured, None);
        let expected: Vec<u64> = (1..=TRIPS).chain([LAST]).collect();
        assert_eq!(trips.into_inner(), expected);
    }
}
