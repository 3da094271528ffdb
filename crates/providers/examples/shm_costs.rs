//! What the small operations of the shm fabric cost: `cargo run --release --example shm_costs [ITERATIONS]`.
//!
//! Round trips are between two processes, on the first two processors, both polling.  Each figure is the best and the
//! median of many short runs, since anything else on the machine only adds.  The limits to compare with are in the
//! same list: a store to memory, and a ping-pong over two bare cache lines.  Ends with a checksum of the work
//! done.

use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

use halite_fabric::{
    CompletionKind, Event, Fabric, Key, Lane, Local, Operation, PeerId, RemoteAddress, Sleeper, WorkId,
    WorkRequest,
};
use halite_mem::{PagePolicy, Segment, Window};
use halite_providers::{ShmConfig, ShmFabric};

type Failure = Box<dyn std::error::Error>;

/// Runs per figure.
const RUNS: u64 = 50;
/// Writes that go around between the two processes, from one cache line to well beyond what travels in the ring.
const WRITE_BYTES: [usize; 4] = [48, 112, 240, 496];
/// Writes that are under way at a time, where several are.
const WINDOW: u64 = 16;
/// Posts between two polls of the other end; its ring holds them all.
const BURST_POSTS: u64 = 64;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [role, dir, iterations] if role == "echo" => echo(Path::new(dir), iterations.parse()?),
        [iterations] => measure(iterations.parse()?),
        _ => measure(500_000),
    }
}

fn measure(iterations: u64) -> Result<(), Failure> {
    let iterations = iterations.next_multiple_of(RUNS * BURST_POSTS);
    let dir = std::env::temp_dir().join(format!("halite-costs-{}", std::process::id()));
    let one = ShmFabric::open(ShmConfig::new(&dir, "one"))?;
    let sink = ShmFabric::open(ShmConfig::new(&dir, "sink"))?;
    pin_to(0)?;
    let mut sum = one_process(&one, &sink, iterations)?;
    let mut command = Command::new(std::env::current_exe()?);
    let echo = Echo(command.arg("echo").arg(&dir).arg(iterations.to_string()).spawn()?);
    sum += two_processes(&one, iterations)?;
    println!("checksum {sum}");
    drop((echo, one, sink));
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

/// What one thread does alone.
fn one_process(one: &ShmFabric, sink: &ShmFabric, iterations: u64) -> Result<u64, Failure> {
    let key = sink.register(Segment::create("costs", 1 << 20, PagePolicy::Normal)?)?;
    one.connect("sink.sock", b"");
    let (to_sink, _) = (connected(one), connected(sink));
    let window = one.direct(to_sink, key).ok_or("the key was registered")?;
    let mut sum = 0;
    report("8-byte store into a direct window", iterations, |n| {
        window.write(0, &n.to_ne_bytes()).expect("inside the window");
    });
    report("direct(), as when a region is mapped", iterations, |_| {
        sum += one.direct(to_sink, key).map_or(0, |window| window.len());
    });
    let remote = RemoteAddress { key, offset: 0 };
    report("post of an unsignalled 8-byte write", iterations, |n| {
        let local = Local::Inline(&n.to_ne_bytes());
        post(one, to_sink, Operation::Write { local, remote }, false);
    });
    let mut events = Vec::new();
    report("post and poll of a fetch-add", iterations, |_| {
        let remote = RemoteAddress { key, offset: 8 };
        post(one, to_sink, Operation::FetchAdd { remote, add: 1 }, true);
        sum += one.poll(&mut events) as u64;
        events.clear();
    });
    report_bursts(
        "post of a 48-byte write with immediate",
        iterations,
        || post_write(one, to_sink, remote, &[1; 48], 0),
        || while sink.poll(&mut Vec::new()) > 0 {},
    );
    report("poll of nothing", iterations, |_| {
        sum += one.poll(&mut events) as u64;
    });
    Ok(sum + window.load_u64(0)? + window.load_u64(8)?)
}

/// This end of what goes around between two processes; see [`echo`].
fn two_processes(one: &ShmFabric, iterations: u64) -> Result<u64, Failure> {
    let ours = Segment::create("costs", 1 << 20, PagePolicy::Normal)?;
    let key = one.register(ours.clone())?;
    let peer = connected(one);
    let remote = introduce(one, peer, key)?;
    let words = one.direct(peer, remote.key).ok_or("the key was told")?;
    report("round trip over two bare cache lines", iterations, |n| {
        words.store_u64(0, n + 1).expect("inside the window");
        await_word(&words, 128, n + 1);
    });
    for len in WRITE_BYTES {
        let (mut bytes, mut events) = (vec![0; len], Vec::new());
        report(&format!("round trip of {len}-byte writes with immediate"), iterations, |n| {
            bytes[0] = n as u8;
            post_write(one, peer, remote, &bytes, n as u32);
            receive(one, &mut events);
        });
        let local = Local::Registered { key, offset: 0, len: len as u64 };
        report(&format!("round trip of {len} bytes, copied when posted"), iterations, |n| {
            let imm = n as u32;
            post(one, peer, Operation::WriteImm { local, remote, imm }, false);
            receive(one, &mut events);
        });
    }
    let mut events = Vec::new();
    report(&format!("48-byte write with immediate and its echo, {WINDOW} under way"), iterations, |n| {
        if n >= WINDOW {
            receive(one, &mut events);
        }
        post_write(one, peer, remote, &[1; 48], n as u32);
    });
    (0..WINDOW).for_each(|_| drop(receive(one, &mut events)));
    report("round trip of 8-byte sends", iterations, |n| {
        post(one, peer, Operation::Send { bytes: &n.to_ne_bytes(), imm: 0 }, false);
        receive(one, &mut events);
    });
    Ok(ours.window(0, 8).ok_or("a word")?.load_u64(0)? + words.load_u64(128)?)
}

/// The other end of [`two_processes`].
fn echo(dir: &Path, iterations: u64) -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let two = ShmFabric::open(ShmConfig::new(dir, "two"))?;
    pin_to(1)?;
    let ours = Segment::create("costs", 1 << 20, PagePolicy::Normal)?;
    let key = two.register(ours.clone())?;
    two.connect("one.sock", b"");
    let peer = connected(&two);
    let remote = introduce(&two, peer, key)?;
    let words = ours.window(0, 1024).ok_or("the first lines")?;
    for n in 1..=iterations {
        await_word(&words, 0, n);
        words.store_u64(128, n)?;
    }
    let mut events = Vec::new();
    for len in WRITE_BYTES {
        let mut bytes = vec![0; len];
        for n in 0..iterations {
            receive(&two, &mut events);
            words.read(0, &mut bytes)?;
            post_write(&two, peer, remote, &bytes, n as u32);
        }
        let local = Local::Registered { key, offset: 0, len: len as u64 };
        for n in 0..iterations {
            receive(&two, &mut events);
            let imm = n as u32;
            post(&two, peer, Operation::WriteImm { local, remote, imm }, false);
        }
    }
    for n in 0..iterations {
        receive(&two, &mut events);
        post_write(&two, peer, remote, &[1; 48], n as u32);
    }
    for _ in 0..iterations {
        receive(&two, &mut events);
        post(&two, peer, Operation::Send { bytes: &[0; 8], imm: 0 }, false);
    }
    // They end us once they have read the last reply.
    loop {
        std::thread::park();
    }
}

/// Tells the peer our key, and learns where its memory is.
fn introduce(fabric: &ShmFabric, peer: PeerId, key: Key) -> Result<RemoteAddress, Failure> {
    post(fabric, peer, Operation::Send { bytes: &key.0.to_ne_bytes(), imm: 0 }, false);
    let mut events = Vec::new();
    let CompletionKind::Received { bytes, .. } = receive(fabric, &mut events) else {
        return Err("keys come in messages".into());
    };
    let key = Key(u32::from_ne_bytes(bytes.try_into().map_err(|_| "a key has four bytes")?));
    Ok(RemoteAddress { key, offset: 0 })
}

/// Ends the other process, whatever becomes of us.
struct Echo(Child);

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pin_to(processor: usize) -> rustix::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set)
}

fn report(what: &str, iterations: u64, mut step: impl FnMut(u64)) {
    let each = iterations / RUNS;
    let run = |run: u64| {
        let start = Instant::now();
        (run * each..(run + 1) * each).for_each(&mut step);
        start.elapsed().as_nanos() as f64 / each as f64
    };
    print(what, (0..RUNS).map(run).collect());
}

/// Times bursts of `step`, but not `rest`, which follows each.
fn report_bursts(what: &str, iterations: u64, mut step: impl FnMut(), mut rest: impl FnMut()) {
    let bursts = iterations / BURST_POSTS;
    let burst = |_| {
        let start = Instant::now();
        (0..BURST_POSTS).for_each(|_| step());
        let ns = start.elapsed().as_nanos() as f64 / BURST_POSTS as f64;
        rest();
        ns
    };
    print(what, (0..bursts).map(burst).collect());
}

fn print(what: &str, mut runs_ns: Vec<f64>) {
    runs_ns.sort_by(f64::total_cmp);
    println!("{:>9.1} ns best {:>9.1} ns median  {what}", runs_ns[0], runs_ns[runs_ns.len() / 2]);
}

fn connected(fabric: &ShmFabric) -> PeerId {
    loop {
        let seen = fabric.doorbell();
        let mut events = Vec::new();
        fabric.poll(&mut events);
        match events.pop() {
            Some(Event::Connected { peer, .. }) => return peer,
            Some(event) => panic!("expected a connection, got {event:?}"),
            None => fabric.wait(Sleeper::Progress, seen, None),
        }
    }
}

fn post(fabric: &ShmFabric, peer: PeerId, operation: Operation<'_>, signalled: bool) {
    let id = WorkId(0);
    let request = WorkRequest { id, operation, signalled, solicited: true };
    fabric.post(peer, Lane::FIRST, &[request]).expect("room for one request");
}

fn post_write(fabric: &ShmFabric, peer: PeerId, remote: RemoteAddress, bytes: &[u8], imm: u32) {
    post(fabric, peer, Operation::WriteImm { local: Local::Inline(bytes), remote, imm }, false);
}

fn await_word(words: &Window, offset: u64, value: u64) {
    while words.load_u64(offset) != Ok(value) {
        std::hint::spin_loop();
    }
}

fn receive(fabric: &ShmFabric, events: &mut Vec<Event>) -> CompletionKind {
    while events.is_empty() && fabric.poll(events) == 0 {
        std::hint::spin_loop();
    }
    match events.pop() {
        Some(Event::Completed(completion)) => completion.kind,
        other => panic!("expected a completion, got {other:?}"),
    }
}
