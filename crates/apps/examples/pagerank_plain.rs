//! PageRank by two threads of one process, over plain memory, as a baseline for `halite run pagerank`.
//!
//! ```text
//! cargo run --release -p halite-apps --example pagerank_plain -- SCALE ITERATIONS [FILE]
//! ```
//!
//! Writes the edges to FILE, for other programs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use halite_apps::graph::Csr;
use halite_apps::graph::input::{Input, Kronecker};

const DAMPING: f64 = 0.85;
const THREADS: usize = 2;

/// Values that one thread writes, and that all threads read after the next barrier, which orders these accesses.
type Values = Vec<AtomicU64>;

#[inline]
fn load(values: &Values, place: usize) -> f64 {
    f64::from_bits(values[place].load(Ordering::Relaxed))
}

fn store(values: &Values, place: usize, value: f64) {
    values[place].store(value.to_bits(), Ordering::Relaxed);
}

fn zeros(count: usize) -> Values {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

fn main() {
    let argument = |place: usize, default: u64| {
        std::env::args().nth(place).map_or(default, |text| text.parse().expect("a number"))
    };
    let (scale, iterations) = (argument(1, 16) as u32, argument(2, 20));
    let begin = Instant::now();
    let edges = Input::Kronecker(Kronecker { scale, seed: 1 }).part(0, 1).expect("it is generated");
    if let Some(path) = std::env::args().nth(3) {
        let mut file = BufWriter::new(File::create(path).expect("the file can be created"));
        edges.iter().for_each(|(from, to)| writeln!(file, "{from}\t{to}").expect("the file can be written"));
    }
    let mut ids: Vec<u64> = edges.iter().flat_map(|(from, to)| [*from, *to]).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut numbers = vec![0_u32; 1 << scale];
    ids.iter().zip(0..).for_each(|(id, number)| numbers[*id as usize] = number);
    let numbered: Vec<(u32, u32)> =
        edges.iter().map(|(from, to)| (numbers[*to as usize], numbers[*from as usize])).collect();
    let sources = Csr::new(ids.len(), numbered.iter().copied());
    let mut degrees = vec![0_u32; ids.len()];
    numbered.iter().for_each(|(_, from)| degrees[*from as usize] += 1);
    let load_s = begin.elapsed().as_secs_f64();

    let vertices = ids.len();
    let halves = [zeros(vertices), zeros(vertices)];
    let (ranks, dangling) = (zeros(vertices), zeros(2 * THREADS));
    let (barrier, begin) = (Barrier::new(THREADS), Instant::now());
    std::thread::scope(|scope| {
        for (thread, rows) in sources.split(THREADS).into_iter().enumerate() {
            let (sources, degrees, halves, ranks) = (&sources, &degrees, &halves, &ranks);
            let (dangling, barrier) = (&dangling, &barrier);
            scope.spawn(move || {
                let mut base = 0.0;
                for step in 0..=iterations as usize {
                    let (from, to) = (&halves[(step + 1) % 2], &halves[step % 2]);
                    let mut without_edges = 0.0;
                    for vertex in rows.clone() {
                        let rank = match step {
                            0 => 1.0 / vertices as f64,
                            _ => base + DAMPING * sum(from, sources.row(vertex)),
                        };
                        store(ranks, vertex, rank);
                        match degrees[vertex] {
                            0 => without_edges += rank,
                            degree => store(to, vertex, rank / f64::from(degree)),
                        }
                    }
                    store(dangling, step % 2 * THREADS + thread, without_edges);
                    barrier.wait();
                    let all: f64 = (0..THREADS).map(|one| load(dangling, step % 2 * THREADS + one)).sum();
                    base = (1.0 - DAMPING + DAMPING * all) / vertices as f64;
                }
            });
        }
    });
    let compute_s = begin.elapsed().as_secs_f64();
    let sum: f64 = (0..vertices).map(|vertex| load(&ranks, vertex)).sum();
    let walked = edges.len() as f64 * iterations as f64;
    let highest = (0..vertices).max_by(|one, other| load(&ranks, *one).total_cmp(&load(&ranks, *other)));
    println!("load_s          {load_s:.3}");
    println!("compute_s       {compute_s:.3}");
    println!("medges_per_s    {:.0}", walked / compute_s / 1e6);
    println!("sum_of_ranks    {sum:.12}");
    if let Some(highest) = highest {
        println!("highest         {} {:.12e}", ids[highest], load(&ranks, highest));
    }
}

/// Sums in four accumulators, because one would make each edge wait for the one before.
fn sum(values: &Values, sources: &[u32]) -> f64 {
    let value = |source: u32| load(values, source as usize);
    let [mut one, mut two, mut three, mut four] = [0.0; 4];
    let (fours, rest) = sources.as_chunks::<4>();
    for [first, second, third, fourth] in fours {
        one += value(*first);
        two += value(*second);
        three += value(*third);
        four += value(*fourth);
    }
    one += rest.iter().map(|source| value(*source)).sum::<f64>();
    (one + two) + (three + four)
}
