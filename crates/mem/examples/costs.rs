//! What the small operations cost: pins, lookups, grace periods and the allocator.
//!
//! `cargo run --release -p halite-mem --example costs [-- smoke]` prints nanoseconds per operation, best of
//! several rounds, and a checksum of what was done.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use halite_mem::{Allocator, Extent, Lookup, Pins, Slots};

fn main() {
    let smoke = std::env::args().any(|arg| arg == "smoke");
    let iterations = if smoke { 1000 } else { 1_000_000 };
    let mut checksum = 0u64;

    let pins = Arc::new(Pins::new());
    report("pin and unpin", iterations, |_| drop(black_box(pins.pin())));
    report("start a grace period, ask whether it is over", iterations / 100, |_| {
        checksum += u64::from(pins.start_grace_period().is_over(&pins));
    });

    let slots = Slots::new(pins.clone());
    let handles: Vec<(u32, u32)> = (0..4096).map(|value| slots.insert([value; 6])).collect();
    report("pin, look up, unpin", iterations, |round| {
        let (index, generation) = handles[round % handles.len()];
        let pin = pins.pin();
        if let Lookup::Found(value) = slots.get(&pin, index, generation) {
            checksum = checksum.wrapping_add(value[0]);
        }
    });

    for len in [64u64, 1000, 4096, 64 << 10, 1 << 20, 1 << 30, 4 << 30] {
        let mut allocator = Allocator::new(64);
        allocator.add_segment(64 << 30);
        // A neighbourhood of other objects, as in use.
        let others: Vec<Extent> =
            (0..1000).filter_map(|at| allocator.allocate(64 * (1 + at * 37 % 3000))).collect();
        others.iter().step_by(3).for_each(|extent| allocator.free(*extent).expect("allocated above"));
        report(&format!("allocate and free {len} bytes"), iterations / 10, |_| {
            let extent = allocator.allocate(black_box(len)).expect("there is room");
            checksum = checksum.wrapping_add(extent.offset);
            allocator.free(extent).expect("allocated just now");
        });
    }
    println!("checksum {checksum:016x}");
}

/// Prints the nanoseconds that one call of `operation` takes.
fn report(name: &str, iterations: usize, mut operation: impl FnMut(usize)) {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        (0..iterations).for_each(&mut operation);
        best = best.min(start.elapsed().as_nanos() as f64 / iterations as f64);
    }
    println!("{name:<40} {best:>8.1} ns");
}
