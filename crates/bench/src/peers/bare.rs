//! The bare machine: copies and round trips between two cores without any library.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::cores::{CLIENT_CORE, SERVER_CORE, on_core};
use super::laps::Laps;
use super::probe::{ProbeError, Sample};

/// Round trips per reading of the clock. They take about 6 us, and the reading adds half a percent.
const TURNS_PER_LAP: u64 = 64;

/// A word on its own cache line; 128 bytes, because processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Copies `size` bytes between two warm buffers `iterations` times, on the client's core.
pub fn memcpy(size: usize, iterations: u64) -> Result<Sample, ProbeError> {
    let from: Vec<u8> = (0..size).map(|index| index as u8).collect();
    let mut into = vec![0; size];
    let elapsed = on_core(CLIENT_CORE, || {
        into.copy_from_slice(black_box(&from));
        let begin = Instant::now();
        for _ in 0..iterations {
            black_box(&mut into).copy_from_slice(black_box(&from));
        }
        begin.elapsed().as_secs_f64()
    })?;
    assert!(from == into, "a copy differs from its source");
    Ok(Sample::of_operations(iterations, elapsed))
}

/// Passes a word back and forth between two cores. An operation of the sample is half a round trip.
pub fn ping_pong(iterations: u64) -> Result<Sample, ProbeError> {
    let laps = iterations.div_ceil(TURNS_PER_LAP);
    let (ping, pong) = (Line::default(), Line::default());
    let timed = std::thread::scope(|scope| {
        let server = scope.spawn(|| on_core(SERVER_CORE, || send_back(&ping, &pong, laps)));
        let client = scope.spawn(|| on_core(CLIENT_CORE, || send(&ping, &pong, laps)));
        server.join().expect("the server's loop does not panic")?;
        client.join().expect("the client's loop does not panic")
    })?;
    Ok(timed.sample(2 * TURNS_PER_LAP))
}

fn send_back(ping: &Line, pong: &Line, laps: u64) {
    for turn in 1..=laps * TURNS_PER_LAP {
        wait_for_turn(ping, turn);
        // Here and below, Release pairs with the Acquire in `wait_for_turn`.
        pong.0.store(turn, Ordering::Release);
    }
}

fn send(ping: &Line, pong: &Line, laps: u64) -> Laps {
    let mut timed = Laps::begin(laps);
    for lap in 0..laps {
        for turn in 1..=TURNS_PER_LAP {
            let turn = lap * TURNS_PER_LAP + turn;
            ping.0.store(turn, Ordering::Release);
            wait_for_turn(pong, turn);
        }
        timed.lap();
    }
    timed
}

fn wait_for_turn(line: &Line, turn: u64) {
    while line.0.load(Ordering::Acquire) != turn {
        spin_loop();
    }
}
