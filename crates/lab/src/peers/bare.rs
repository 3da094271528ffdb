//! The limits: what two cores and their memory give without any library in between.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::child::pin;
use super::probe::{ProbeError, Sample};
use super::{CLIENT_CORE, SERVER_CORE};

/// A word on a cache line of its own; 128 bytes because lines are fetched in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Copies of `size` bytes between two warm buffers, `iterations` times, on the client's core.
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

/// A word thrown back and forth between two cores; a sample's operation is half a round trip.
pub fn ping_pong(iterations: u64) -> Result<Sample, ProbeError> {
    let (ping, pong) = (Line::default(), Line::default());
    let elapsed = std::thread::scope(|scope| {
        // Each store's Release pairs with the Acquire of the other side's loop.
        let server = scope.spawn(|| {
            on_core(SERVER_CORE, || {
                for turn in 1..=iterations {
                    await_turn(&ping, turn);
                    pong.0.store(turn, Ordering::Release);
                }
            })
        });
        let client = scope.spawn(|| {
            on_core(CLIENT_CORE, || {
                let begin = Instant::now();
                for turn in 1..=iterations {
                    ping.0.store(turn, Ordering::Release);
                    await_turn(&pong, turn);
                }
                begin.elapsed().as_secs_f64()
            })
        });
        server.join().expect("the server's loop does not panic")?;
        client.join().expect("the client's loop does not panic")
    })?;
    Ok(Sample::of_operations(2 * iterations, elapsed))
}

fn await_turn(line: &Line, turn: u64) {
    while line.0.load(Ordering::Acquire) != turn {
        spin_loop();
    }
}

/// Runs `work` on a thread of its own that stays on `core`.
fn on_core<T: Send>(core: usize, work: impl FnOnce() -> T + Send) -> Result<T, ProbeError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || pin(core).map(|()| work()));
        thread
            .join()
            .expect("what is measured does not panic")
            .map_err(|source| ProbeError::Core { core, source })
    })
}
