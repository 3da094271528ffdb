//! The baselines of attached sessions: a word that goes to other processes and back through shared memory.
//!
//! For an access, two threads take turns on two words. For a call, three processes pass a word on:
//!
//! ```text
//!   client ── 0 ──> node ── 1 ──> server        the node has a core of its own;
//!   client <── 3 ── node <── 2 ── server        the client and the server share the other one, and yield it
//! ```
//!
//! Each word is in its own cache line. So a round trip is the least that a request and its reply cost between these
//! cores.

use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::yield_now;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::baseline::Words;
use super::cores::{Cores, pin};
use super::server::{Request, Server};
use crate::threads;

/// Round trips between two readings of the clock, as of short operations.
const TRIPS: u64 = 64;
/// Number of batches, of which the median counts.
const BATCHES: u64 = 2000;
/// Number of batches of a relay with switches between processes.
const SLOW_BATCHES: u64 = 500;
/// Distance of the words, in bytes: further than processors fetch lines together.
const APART: u64 = 256;

/// The part of a process in a relay of three.
#[derive(Serialize, Deserialize, Debug)]
pub struct Part {
    /// Path of the words.
    words: PathBuf,
    is_node: bool,
}

impl Part {
    /// Passes the words on, until the last round trip.
    pub fn take(self, cores: &Cores) -> anyhow::Result<()> {
        pin(cores.of_server(0))?;
        let words = Words::open(&self.words, 4 * APART)?;
        let [to_node, to_server, from_server, from_node] = [0, 1, 2, 3].map(|word| words.at(word * APART));
        for trip in 1..=SLOW_BATCHES * TRIPS {
            if self.is_node {
                while to_node.load(Acquire) != trip {}
                to_server.store(trip, Release);
                while from_server.load(Acquire) != trip {}
                from_node.store(trip, Release);
            } else {
                while to_server.load(Acquire) != trip {
                    yield_now();
                }
                from_server.store(trip, Release);
            }
        }
        Ok(())
    }
}

/// Returns the time of a round trip from the client through the node to the server and back, in microseconds.
pub fn measure_three_us(cores: &Cores, node: &mut Server, server: &mut Server) -> anyhow::Result<f64> {
    let words = Words::new(4 * APART)?;
    let part = |is_node| Request::Relay(Part { words: words.path(), is_node });
    node.send(&part(true))?;
    server.send(&part(false))?;
    let (there, back) = (words.at(0), words.at(3 * APART));
    let measured = std::thread::scope(|scope| {
        let client = threads::spawn_in(scope, || {
            // This core was just listed as available.
            let _ = pin(cores.of_client(0));
            median_batch_us(SLOW_BATCHES, |trip| {
                there.store(trip, Release);
                while back.load(Acquire) != trip {
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

/// Returns the time of a round trip between the cores of the client and of the server, in microseconds.
pub fn measure_us(cores: &Cores) -> anyhow::Result<f64> {
    let words = Words::new(2 * APART)?;
    let (there, back) = (words.at(0), words.at(APART));
    std::thread::scope(|scope| {
        let mut relays = threads::Group::new(scope);
        let echo = relays.add(|| {
            // These cores were just listed as available.
            let _ = pin(cores.of_server(0));
            for trip in 1..=BATCHES * TRIPS {
                while there.load(Acquire) != trip {}
                back.store(trip, Release);
            }
        })?;
        let client = relays.add(|| {
            let _ = pin(cores.of_client(0));
            median_batch_us(BATCHES, |trip| {
                there.store(trip, Release);
                while back.load(Acquire) != trip {}
            })
        })?;
        relays.begin();
        echo.join();
        Ok(client.join())
    })
}

/// Makes round trips in batches, numbered from 1. Returns the time of a round trip in the median batch.
fn median_batch_us(batches: u64, round_trip: impl Fn(u64)) -> f64 {
    let each = |batch| {
        let begin = Instant::now();
        (batch * TRIPS + 1..=(batch + 1) * TRIPS).for_each(&round_trip);
        begin.elapsed().as_secs_f64() * 1e6 / TRIPS as f64
    };
    let mut times: Vec<_> = (0..batches).map(each).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
