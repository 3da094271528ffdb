//! How long a peer's read waits for a node all of whose threads compute, beside a bare blocking echo over UDP under the same load.
//!
//! `cargo run --release -p halite --example computing [-- ROUNDS]`.  The node's memory is read over `roce`: its progress thread sleeps on the socket, is woken by
//! the packet, and answers; so does the thread of the echo.  One thread per processor computes all the time.  Who asks sleeps a
//! little before each round, and blocks.  Both are measured by turns; the ratio is taken in each turn.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use halite::{Config, Node, NodeId, Permissions, Placement, Provider};

type Failure = Box<dyn std::error::Error>;

const PAUSE: Duration = Duration::from_micros(300);
const TURNS: usize = 8;

fn main() -> Result<(), Failure> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(8000), |count| count.parse())?;
    let dir = std::env::temp_dir().join(format!("halite-computing-{}", std::process::id()));
    let measured = measure(&dir, rounds / TURNS);
    std::fs::remove_dir_all(dir)?;
    measured
}

fn measure(dir: &Path, each: usize) -> Result<(), Failure> {
    let stopping = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism()?.get() {
            scope.spawn(|| {
                let mut sum = 0u64;
                while !stopping.load(Relaxed) {
                    sum = std::hint::black_box(sum.wrapping_mul(7).wrapping_add(1));
                }
            });
        }
        let compared = compare(dir, each);
        stopping.store(true, Relaxed);
        compared
    })
}

fn compare(dir: &Path, each: usize) -> Result<(), Failure> {
    println!(
        "{:<6} {:>12} {:>12} {:>12} {:>12} {:>9}",
        "turn", "echo p50 us", "echo p99 us", "read p50 us", "read p99 us", "p99 ratio"
    );
    let mut ratios = Vec::new();
    for turn in 0..TURNS {
        let (echo, read) = (echoes(each)?, reads(dir, each)?);
        let ratio = percentile(&read, 99) / percentile(&echo, 99);
        println!(
            "{turn:<6} {:>12.1} {:>12.1} {:>12.1} {:>12.1} {ratio:>9.2}",
            percentile(&echo, 50),
            percentile(&echo, 99),
            percentile(&read, 50),
            percentile(&read, 99),
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2} [{:.2}..{:.2}]", ratios[TURNS / 2], ratios[0], ratios[TURNS - 1]);
    Ok(())
}

fn echoes(each: usize) -> Result<Vec<f64>, Failure> {
    let (client, server) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    client.connect(server.local_addr()?)?;
    server.connect(client.local_addr()?)?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| -> std::io::Result<()> {
            let mut bytes = [0; 8];
            while server.recv(&mut bytes)? == bytes.len() {
                server.send(&bytes)?;
            }
            Ok(())
        });
        let mut bytes = [0; 8];
        let took = rounds(each, || {
            client.send(&bytes)?;
            client.recv(&mut bytes)?;
            Ok(())
        });
        client.send(&[])?;
        serving.join().expect("it does not panic")?;
        took
    })
}

fn reads(dir: &Path, each: usize) -> Result<Vec<f64>, Failure> {
    let (owner, reader) = (join(dir, 0)?, join(dir, 1)?);
    let session = owner.blocking_session();
    session.alloc(Some("there"), 4096, Placement::Local, Permissions::READ)?;
    let session = reader.blocking_session();
    let there = session.map("there", Permissions::READ)?;
    let mut bytes = [0; 8];
    rounds(each, || Ok(session.read(there, 0, &mut bytes)?))
}

fn join(dir: &Path, node: u32) -> Result<Node, Failure> {
    let (dir, node) = (dir.to_owned(), Some(NodeId(node)));
    Ok(Node::embedded(Config { dir, node, providers: vec![Provider::Roce], ..Config::default() })?)
}

/// How long each took, in us, in order.
fn rounds(each: usize, mut one: impl FnMut() -> Result<(), Failure>) -> Result<Vec<f64>, Failure> {
    let mut all = Vec::with_capacity(each);
    for _ in 0..each {
        std::thread::sleep(PAUSE);
        let begin = Instant::now();
        one()?;
        all.push(begin.elapsed().as_nanos() as f64 / 1e3);
    }
    all.sort_by(f64::total_cmp);
    Ok(all)
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100]
}
