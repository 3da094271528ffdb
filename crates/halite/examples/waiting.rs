//! What waiting costs: calls from one process to another at several loads, with their latency and the processor time
//! that both sides take for each.
//!
//! `cargo run --release -p halite --example waiting [-- smoke]`.  A call is a `stat` of a region whose home is
//! the other node: one message there and one back.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use halite::{Config, Node, NodeId, Permissions, Placement};

const THREADS: usize = 8;
/// Calls per second of all threads together; 0 is as many as there can be.
const RATES: [u64; 5] = [100, 1000, 5000, 20_000, 0];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, server, dir] = arguments.as_slice()
        && server == "server"
    {
        return serve(Path::new(dir));
    }
    let span = Duration::from_millis(if arguments.iter().any(|word| word == "smoke") { 100 } else { 3000 });
    let dir = std::env::temp_dir().join(format!("halite-waiting-{}", std::process::id()));
    let mut server = Command::new(std::env::current_exe()?).arg("server").arg(&dir).spawn()?;
    let measured = measure(&dir, &server, span);
    server.kill()?;
    server.wait()?;
    std::fs::remove_dir_all(dir)?;
    measured
}

/// Holds a region until killed.
fn serve(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::embedded(config(dir.to_owned(), 0))?;
    let session = node.blocking_session();
    session.alloc(Some("ready"), 4096, Placement::Local, Permissions::READ)?;
    loop {
        std::thread::park();
    }
}

fn measure(dir: &Path, server: &Child, span: Duration) -> Result<(), Box<dyn std::error::Error>> {
    let node = join(dir);
    while node.blocking_session().stat("ready").is_err() {
        std::thread::yield_now();
    }
    println!("{:>8} {:>9} {:>9} {:>9} {:>12}", "calls/s", "done/s", "p50 us", "p99 us", "cpu us/call");
    for rate in RATES {
        let (before, begin) = (cpu_ticks("self") + cpu_ticks(&server.id().to_string()), Instant::now());
        let mut took_ns = call_at(&node, rate, span);
        let elapsed = begin.elapsed().as_secs_f64();
        let ticks = cpu_ticks("self") + cpu_ticks(&server.id().to_string()) - before;
        took_ns.sort_unstable();
        let at = |part: f64| took_ns[((took_ns.len() - 1) as f64 * part) as usize] as f64 / 1000.0;
        let done = took_ns.len() as f64;
        // The kernel counts in hundredths of a second.
        let cpu_us = ticks as f64 * 10_000.0 / done;
        println!("{rate:>8} {:>9.0} {:>9.1} {:>9.1} {cpu_us:>12.1}", done / elapsed, at(0.5), at(0.99));
    }
    Ok(())
}

/// Joins as soon as the server is there.
fn join(dir: &Path) -> Node {
    loop {
        match Node::embedded(config(dir.to_owned(), 1)) {
            Ok(node) => return node,
            Err(_) => std::thread::yield_now(),
        }
    }
}

/// How long each call took.
fn call_at(node: &Node, rate: u64, span: Duration) -> Vec<u64> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || call(node, rate, span, thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

fn call(node: &Node, rate: u64, span: Duration, thread: usize) -> Vec<u64> {
    let session = node.blocking_session();
    let gap = Duration::from_secs(THREADS as u64).checked_div(rate as u32).unwrap_or_default();
    let begin = Instant::now();
    let mut next = gap * thread as u32 / THREADS as u32;
    let mut took_ns = Vec::new();
    while begin.elapsed() < span {
        std::thread::sleep(next.saturating_sub(begin.elapsed()));
        next += gap;
        let start = Instant::now();
        session.stat("ready").expect("the server lives");
        took_ns.push(start.elapsed().as_nanos() as u64);
    }
    took_ns
}

fn config(dir: PathBuf, node: u32) -> Config {
    Config { dir, node: Some(NodeId(node)), ..Config::default() }
}

/// User and system time of a process, in ticks of the kernel's clock.
fn cpu_ticks(pid: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    // The second field is the name in brackets, which may hold anything.
    let (_, fields) = stat.rsplit_once(')').expect("the name is in brackets");
    fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
}
