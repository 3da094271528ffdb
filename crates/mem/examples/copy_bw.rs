//! How fast windows copy and fill, beside libc's memcpy and memset of plain memory of the same size and alignment.
//!
//! `cargo run --release -p halite-mem --example copy_bw [-- smoke]` prints, per size, the best of several rounds
//! in GB/s and the time of one copy or fill, and a checksum of what was copied.

use std::hint::black_box;
use std::time::Instant;

use halite_mem::{PagePolicy, Segment};

const BYTES_MAX: usize = 64 << 20;

fn main() {
    let smoke = std::env::args().any(|arg| arg == "smoke");
    let bytes_per_round = if smoke { 1 << 20 } else { 64 << 20 };
    let rounds = if smoke { 1 } else { 7 };

    let segment = Segment::create("copy_bw", 2 * BYTES_MAX as u64, PagePolicy::Huge).expect("memory");
    let window = segment.window(0, 2 * BYTES_MAX as u64).expect("in bounds");
    let target = window.slice(BYTES_MAX as u64, BYTES_MAX as u64).expect("in bounds");
    window.fill(0, 2 * BYTES_MAX as u64, 0x5A).expect("in bounds");
    let mut private = vec![0xA5u8; BYTES_MAX];
    let mut plain = vec![0u8; BYTES_MAX];

    println!(
        "{:>9} {:>6} {:>16} {:>16} {:>16} {:>16} {:>16} {:>16}",
        "bytes", "shift", "libc", "write", "read", "copy_from", "memset", "fill"
    );
    for shift in [0usize, 5] {
        for size in
            [8, 16, 64, 100, 256, 1024, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, BYTES_MAX]
        {
            let size = size - if size > 4096 { 64 } else { 0 };
            let iterations = (bytes_per_round / size).clamp(1, 1_000_000);
            let mut best = [f64::MAX; 6];
            for _ in 0..rounds {
                let libc = || {
                    // SAFETY: both buffers have BYTES_MAX >= shift + size bytes and are distinct.
                    unsafe {
                        libc::memcpy(
                            black_box(plain.as_mut_ptr().wrapping_add(shift)).cast(),
                            private.as_ptr().cast(),
                            size,
                        );
                    }
                };
                best[0] = best[0].min(time(iterations, libc));
                let write = || window.write(black_box(shift as u64), &private[..size]).expect("in bounds");
                best[1] = best[1].min(time(iterations, write));
                let read = || window.read(black_box(shift as u64), &mut private[..size]).expect("in bounds");
                best[2] = best[2].min(time(iterations, read));
                let copy =
                    || target.copy_from(black_box(shift as u64), &window, 0, size as u64).expect("in bounds");
                best[3] = best[3].min(time(iterations, copy));
                let memset = || {
                    // SAFETY: the buffer has BYTES_MAX >= shift + size bytes.
                    unsafe {
                        libc::memset(black_box(plain.as_mut_ptr().wrapping_add(shift)).cast(), 7, size);
                    }
                };
                best[4] = best[4].min(time(iterations, memset));
                let fill = || target.fill(black_box(shift as u64), size as u64, 7).expect("in bounds");
                best[5] = best[5].min(time(iterations, fill));
            }
            print!("{size:>9} {shift:>6}");
            for seconds in best {
                print!(" {:>6.1} {:>6.1} ns", size as f64 / seconds / 1e9, seconds * 1e9);
            }
            println!();
        }
    }
    let checksum = private
        .iter()
        .chain(&plain)
        .fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    println!("checksum {checksum:016x}");
}

/// Seconds that one call of `copy` takes, after a warm-up.
fn time(iterations: usize, mut copy: impl FnMut()) -> f64 {
    copy();
    let start = Instant::now();
    for _ in 0..iterations {
        copy();
    }
    start.elapsed().as_secs_f64() / iterations as f64
}
