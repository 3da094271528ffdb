//! What an arrival costs a thread that sleeps: a call of Halite beside a blocking echo over UDP.
//!
//! `cargo run --release -p halite --example wakeups [-- ROUNDS]`.  Both ends are threads of this process, which sleep before
//! each message, so that the other end sleeps as well when it comes.  A message holds the time at which it was sent; what is
//! shown is how much later the other end's thread has it, and how often threads of the process went to sleep per round trip
//! of two messages, the two pauses among them.  Under load one more thread per processor computes all the time.
//!
//! Last comes what a node does while no thread of its application is there to do it: round trips of `stat`, which the other
//! node's progress thread answers, beside those of an echo.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use halite::{Config, Function, JoinError, Node, NodeId, Permissions, Placement, ServeOptions};

type Failure = Box<dyn std::error::Error>;

const FUNCTION: Function = Function(1);
/// How long a thread sleeps before it sends: much longer than anybody spins, and shorter than that.
const PAUSES: [Duration; 2] = [Duration::from_micros(300), Duration::ZERO];
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Both ways are measured by turns, in so many parts.
const PARTS: usize = 10;

fn main() -> Result<(), Failure> {
    let rounds = std::env::args().nth(1).map_or(Ok(4000), |count| count.parse())?;
    let dir = std::env::temp_dir().join(format!("halite-wakeups-{}", std::process::id()));
    let measured = measure(&dir, rounds);
    std::fs::remove_dir_all(dir)?;
    measured
}

fn measure(dir: &Path, rounds: usize) -> Result<(), Failure> {
    println!("{:<22} {:>9} {:>9} {:>9} {:>12}", "", "p50 us", "p99 us", "p99.9 us", "sleeps/round");
    for pause in PAUSES {
        for load in [0, std::thread::available_parallelism()?.get()] {
            let stopping = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..load {
                    scope.spawn(|| {
                        let mut sum = 0u64;
                        while !stopping.load(Relaxed) {
                            sum = std::hint::black_box(sum.wrapping_mul(7).wrapping_add(1));
                        }
                    });
                }
                let measured = compare(dir, pause, load > 0, rounds / PARTS);
                stopping.store(true, Relaxed);
                measured
            })?;
        }
    }
    Ok(())
}

fn by_stat(dir: &Path, pause: Duration, each: usize) -> Result<(Late, u64), Failure> {
    let (client, server) = (join(dir, 0)?, join(dir, 1)?);
    server.blocking_session().alloc(Some("there"), 4096, Placement::Local, Permissions::READ)?;
    let session = client.blocking_session();
    let before = sleeps()?;
    let took = round_trips(pause, each, || session.stat("there").map(|_| ()))?;
    Ok((took, sleeps()? - before))
}

fn by_echo(pause: Duration, each: usize) -> Result<(Late, u64), Failure> {
    let (client, server) = udp()?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| -> std::io::Result<()> {
            let mut bytes = [0; 8];
            while server.recv(&mut bytes)? == bytes.len() {
                server.send(&bytes)?;
            }
            Ok(())
        });
        let (before, mut bytes) = (sleeps()?, [0; 8]);
        let took = round_trips(pause, each, || -> std::io::Result<()> {
            client.send(&bytes)?;
            client.recv(&mut bytes).map(|_| ())
        });
        let slept = sleeps()? - before;
        client.send(&[])?;
        serving.join().expect("it does not panic")?;
        Ok((took?, slept))
    })
}

fn round_trips<E>(pause: Duration, each: usize, mut one: impl FnMut() -> Result<(), E>) -> Result<Late, E> {
    let mut all = Late::new();
    for _ in 0..each {
        std::thread::sleep(pause);
        let begin = Instant::now();
        one()?;
        all.push(begin.elapsed().as_nanos() as u64);
    }
    Ok(all)
}

fn compare(dir: &Path, pause: Duration, loaded: bool, each: usize) -> Result<(), Failure> {
    let begin = Instant::now();
    let (mut udp, mut calls) = (Measured::default(), Measured::default());
    for _ in 0..PARTS {
        udp.add(|| over_udp(begin, pause, each))?;
        calls.add(|| by_calls(dir, begin, pause, each))?;
    }
    let what = format!("{} us{}", pause.as_micros(), if loaded { ", load" } else { "" });
    udp.print(&format!("UDP,  pause {what}"), 2);
    calls.print(&format!("call, pause {what}"), 2);
    if pause > Duration::ZERO {
        let (mut echo, mut stat) = (Measured::default(), Measured::default());
        for _ in 0..PARTS {
            echo.add(|| by_echo(pause, each))?;
            stat.add(|| by_stat(dir, pause, each))?;
        }
        echo.print(&format!("echo, pause {what}"), 1);
        stat.print(&format!("stat, pause {what}"), 1);
    }
    Ok(())
}

/// How late each message was had, in ns.
type Late = Vec<u64>;

#[derive(Default)]
struct Measured {
    late: Late,
    slept: u64,
}

impl Measured {
    fn add(&mut self, run: impl FnOnce() -> Result<(Late, u64), Failure>) -> Result<(), Failure> {
        let (late, slept) = run()?;
        self.late.extend(late);
        self.slept += slept;
        Ok(())
    }

    /// A round has so many of what was measured.
    fn print(mut self, what: &str, each: u64) {
        self.late.sort_unstable();
        let at = |part: f64| self.late[((self.late.len() - 1) as f64 * part) as usize] as f64 / 1000.0;
        let sleeps = (each * self.slept) as f64 / self.late.len() as f64;
        println!("{what:<22} {:>9.1} {:>9.1} {:>9.1} {sleeps:>12.2}", at(0.5), at(0.99), at(0.999));
    }
}

/// How often threads of this process that live have gone to sleep.
fn sleeps() -> Result<u64, Failure> {
    let mut sleeps = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sleeps += count.ok_or("no count of context switches")?.trim().parse::<u64>()?;
    }
    Ok(sleeps)
}

/// Says when it is sent, in ns since `begin`.
fn stamp(begin: Instant, pause: Duration) -> u64 {
    if pause > Duration::ZERO {
        std::thread::sleep(pause);
    }
    begin.elapsed().as_nanos() as u64
}

fn late(begin: Instant, message: &[u8]) -> u64 {
    let sent = u64::from_le_bytes(message[..8].try_into().expect("it holds a number"));
    begin.elapsed().as_nanos() as u64 - sent
}

/// An answer: when it was sent, and how late the question was.
fn answer(begin: Instant, pause: Duration, question: &[u8]) -> [u8; 16] {
    let late = late(begin, question);
    let mut answer = [0; 16];
    answer[8..].copy_from_slice(&late.to_le_bytes());
    answer[..8].copy_from_slice(&stamp(begin, pause).to_le_bytes());
    answer
}

fn ask(
    begin: Instant,
    pause: Duration,
    each: usize,
    mut ask: impl FnMut(&[u8], &mut [u8; 16]) -> Result<(), Failure>,
) -> Result<(Late, u64), Failure> {
    let (mut all, before, mut reply) = (Late::new(), sleeps()?, [0; 16]);
    for _ in 0..each {
        ask(&stamp(begin, pause).to_le_bytes(), &mut reply)?;
        all.extend([late(begin, &reply), u64::from_le_bytes(reply[8..].try_into()?)]);
    }
    Ok((all, sleeps()? - before))
}

/// Two sockets that are connected with each other.
fn udp() -> std::io::Result<(UdpSocket, UdpSocket)> {
    let (one, two) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    one.connect(two.local_addr()?)?;
    two.connect(one.local_addr()?)?;
    Ok((one, two))
}

fn join(dir: &Path, node: u32) -> Result<Node, JoinError> {
    Node::embedded(Config { dir: dir.to_owned(), node: Some(NodeId(node)), ..Config::default() })
}

fn over_udp(begin: Instant, pause: Duration, each: usize) -> Result<(Late, u64), Failure> {
    let (client, server) = udp()?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| -> std::io::Result<()> {
            let mut question = [0; 8];
            while server.recv(&mut question)? == question.len() {
                server.send(&answer(begin, pause, &question))?;
            }
            Ok(())
        });
        let asked = ask(begin, pause, each, |question, reply| {
            client.send(question)?;
            client.recv(reply)?;
            Ok(())
        });
        client.send(&[])?;
        serving.join().expect("it does not panic")?;
        asked
    })
}

fn by_calls(dir: &Path, begin: Instant, pause: Duration, each: usize) -> Result<(Late, u64), Failure> {
    let (client, server) = (join(dir, 0)?, join(dir, 1)?);
    let serving = server.blocking_session();
    let calls = serving.serve(FUNCTION, ServeOptions::default())?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| -> Result<(), halite::ServeError> {
            loop {
                let call = calls.recv()?;
                if call.input().is_empty() {
                    let _ = call.reply(&[]);
                    return Ok(());
                }
                let answer = answer(begin, pause, call.input());
                let _ = call.reply(&answer);
            }
        });
        let session = client.blocking_session();
        let asked = ask(begin, pause, each, |question, reply| {
            session.call_into(NodeId(1), FUNCTION, question, reply, PATIENCE)?;
            Ok(())
        });
        session.call(NodeId(1), FUNCTION, &[], PATIENCE)?;
        serving.join().expect("it does not panic")?;
        asked
    })
}
