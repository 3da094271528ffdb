//! What the small operations of the shm fabric cost: `cargo run --release --example shm_costs [ITERATIONS]`.
//!
//! Both ends are threads of this process, polling.  The first two lines are the limits to compare with: a store
//! to memory, and a ping-pong over two plain words.  Ends with a checksum of the work done.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

use halite_fabric::{Event, Fabric, Key, Local, Operation, PeerId, RemoteAddress, WorkId, WorkRequest};
use halite_mem::{PagePolicy, Segment};
use halite_providers::{ShmConfig, ShmFabric};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let iterations = match std::env::args().nth(1) {
        Some(iterations) => iterations.parse()?,
        None => 200_000,
    };
    let dir = std::env::temp_dir().join(format!("halite-costs-{}", std::process::id()));
    let one = ShmFabric::open(ShmConfig::new(&dir, "one"))?;
    let two = ShmFabric::open(ShmConfig::new(&dir, "two"))?;
    let key = two.register(Segment::create("costs", 1 << 20, PagePolicy::Normal)?)?;
    one.connect("two.sock", b"")?;
    let (to_two, to_one) = (connected(&one), connected(&two));
    let window = one.direct(to_two, key).ok_or("the key was registered")?;

    let mut sum = 0;
    report("8-byte store into a direct window", iterations, |n| {
        window.write(0, &n.to_ne_bytes()).expect("inside the window");
    });
    words_ping_pong(iterations);
    report("direct(), as when a region is mapped", iterations, |_| {
        sum += one.direct(to_two, key).map_or(0, |window| window.len());
    });
    report("post of an unsignalled 8-byte write", iterations, |n| {
        let bytes = n.to_ne_bytes();
        post(&*one, to_two, write(key, &bytes), false);
    });
    let mut completions = Vec::new();
    report("post and poll of a fetch-add", iterations, |_| {
        let remote = RemoteAddress { key, offset: 8 };
        post(&*one, to_two, Operation::FetchAdd { remote, add: 1 }, true);
        sum += one.poll(&mut completions) as u64;
        completions.clear();
    });
    report("poll of nothing", iterations, |_| {
        sum += one.poll(&mut completions) as u64;
    });
    send_ping_pong(one.clone(), two.clone(), to_two, to_one, iterations);
    println!("checksum {}", sum + window.load_u64(0)? + window.load_u64(8)?);
    drop((window, one, two));
    std::fs::remove_dir(dir)?;
    Ok(())
}

fn report(what: &str, iterations: u64, mut step: impl FnMut(u64)) {
    let start = Instant::now();
    (0..iterations).for_each(&mut step);
    let ns = start.elapsed().as_nanos() as f64 / iterations as f64;
    println!("{ns:>9.1} ns  {what}");
}

fn connected(fabric: &ShmFabric) -> PeerId {
    loop {
        let seen = fabric.doorbell();
        match fabric.poll_event() {
            Some(Event::Connected { peer, .. }) => return peer,
            Some(event) => panic!("expected a connection, got {event:?}"),
            None => fabric.wait(seen, None),
        }
    }
}

fn post(fabric: &dyn Fabric, peer: PeerId, operation: Operation<'_>, signalled: bool) {
    let id = WorkId(0);
    let request = WorkRequest { id, operation, signalled };
    fabric.post(peer, &[request]).expect("room for one request");
}

fn write(key: Key, bytes: &[u8]) -> Operation<'_> {
    let remote = RemoteAddress { key, offset: 0 };
    let local = Local::Inline(bytes);
    Operation::Write { local, remote }
}

fn words_ping_pong(iterations: u64) {
    let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let echo = words.clone();
    let echoing = std::thread::spawn(move || {
        for n in 1..=iterations {
            while echo[0].load(Acquire) != n {
                std::hint::spin_loop();
            }
            echo[1].store(n, Release);
        }
    });
    report("round trip over two plain words", iterations, |n| {
        words[0].store(n + 1, Release);
        while words[1].load(Acquire) != n + 1 {
            std::hint::spin_loop();
        }
    });
    echoing.join().expect("the echo does not panic");
}

fn send_ping_pong(one: Arc<ShmFabric>, two: Arc<ShmFabric>, to_two: PeerId, to_one: PeerId, iterations: u64) {
    let echoing = std::thread::spawn(move || {
        for _ in 0..iterations {
            receive(&two);
            let (bytes, imm) = (&[0; 8][..], 0);
            post(&*two, to_one, Operation::Send { bytes, imm }, false);
        }
    });
    report("round trip of 8-byte sends, both polling", iterations, |_| {
        let (bytes, imm) = (&[0; 8][..], 0);
        post(&*one, to_two, Operation::Send { bytes, imm }, false);
        receive(&one);
    });
    echoing.join().expect("the echo does not panic");
}

fn receive(fabric: &ShmFabric) {
    let mut completions = Vec::new();
    while fabric.poll(&mut completions) == 0 {
        std::hint::spin_loop();
    }
}
