//! How many events a second of one core the simulator handles.
//!
//! Pairs of hosts call each other: a write with immediate there, one back, as the tier's calls do.  Prints a digest, so
//! that the work cannot be left out, and that two machines can be compared.  `rate [CALLS]`; a small number is a
//! smoke test.

use std::sync::Arc;
use std::time::Instant;

use halite_fabric::{
    CompletionKind, Event, Fabric, Key, Lane, Local, Operation, PeerId, Sleeper, WorkId, WorkRequest,
};
use halite_mem::{PagePolicy, Segment};
use halite_sim::{HostId, Profile, RunEnd, SimFabric, World};

const PAIRS: usize = 10;
const WINDOW: usize = 8;

fn main() {
    let calls = std::env::args().nth(1).map_or(200_000, |count| count.parse().expect("a number of calls"));
    for name in Profile::NAMES {
        run(name, calls);
    }
}

fn run(name: &str, calls: usize) {
    let world = World::new(1, Profile::named(name).expect("it is in the tree"));
    for number in 0..PAIRS {
        start_pair(&world, number, calls / PAIRS);
    }
    let begin = Instant::now();
    assert_eq!(world.run(), RunEnd::Finished);
    let seconds = begin.elapsed().as_secs_f64();
    let counters = world.counters();
    let handled = (counters.events + counters.polls) as f64;
    println!(
        "{name:<10} {calls} calls, {:.0} ns of virtual time each; {} events, {} polls; {:.2} M events/s, \
         {:.0} ns per event or poll, {:.0} calls/s; digest {:016x}",
        world.now_ns() as f64 / (calls / PAIRS) as f64,
        counters.events,
        counters.polls,
        counters.events as f64 / seconds / 1e6,
        seconds * 1e9 / handled,
        calls as f64 / seconds,
        world.digest(),
    );
    world.end();
}

fn start_pair(world: &World, number: usize, calls: usize) {
    let (host, server) = open(world, &format!("server-{number}"));
    let (_, client) = open(world, &format!("client-{number}"));
    client.connect(&format!("server-{number}"), b"");
    world.spawn(Some(host), "server", serve(server));
    world.spawn(None, "client", call(client, calls));
}

fn open(world: &World, address: &str) -> (HostId, Arc<SimFabric>) {
    let host = world.add_host();
    let fabric = world.fabric(host, address, Vec::new());
    let segment = Segment::create("rate", 4096, PagePolicy::Normal).expect("there is memory");
    fabric.register(segment).expect("the first key");
    fabric.arm(Some(Sleeper::Progress));
    (host, fabric)
}

fn notify(fabric: &SimFabric, peer: PeerId) {
    let remote = halite_fabric::RemoteAddress { key: Key(0), offset: 64 };
    let operation = Operation::WriteImm { local: Local::Inline(&[1; 64]), remote, imm: 7 };
    let request = WorkRequest { id: WorkId(0), operation, signalled: false, solicited: true };
    fabric.post(peer, Lane::FIRST, &[request]).expect("the window is small");
}

async fn connected(fabric: &SimFabric) -> PeerId {
    loop {
        let seen = fabric.doorbell();
        let mut events = Vec::new();
        fabric.poll(&mut events);
        if let Some(Event::Connected { peer, .. }) = events.first() {
            return *peer;
        }
        fabric.rung(seen).await;
    }
}

/// Counts what has arrived; waits until something has.
async fn arrivals(fabric: &SimFabric, events: &mut Vec<Event>) -> usize {
    loop {
        let seen = fabric.doorbell();
        events.clear();
        fabric.poll(events);
        let is_arrival = |event: &&Event| match event {
            Event::Completed(completion) => matches!(completion.kind, CompletionKind::Notified { .. }),
            _ => false,
        };
        let count = events.iter().filter(is_arrival).count();
        if count > 0 {
            return count;
        }
        fabric.rung(seen).await;
    }
}

async fn serve(fabric: Arc<SimFabric>) {
    let peer = connected(&fabric).await;
    let mut events = Vec::new();
    loop {
        let count = arrivals(&fabric, &mut events).await;
        (0..count).for_each(|_| notify(&fabric, peer));
    }
}

async fn call(fabric: Arc<SimFabric>, calls: usize) {
    let peer = connected(&fabric).await;
    let mut events = Vec::new();
    let (mut sent, mut answered) = (0, 0);
    while answered < calls {
        while sent < calls.min(answered + WINDOW) {
            notify(&fabric, peer);
            sent += 1;
        }
        answered += arrivals(&fabric, &mut events).await;
    }
}
