//! What a large cluster costs that does nothing: joining, messages, processor time and memory, in simulated time.
//!
//! `cargo run --release -p halite-trials --example idle -- NODES FULL_MESH_NODES_MAX`.  The nodes are the library unchanged, each on a host of its own, and join
//! one after the other; time between them is simulated.  The processor time is that of this thread, and the memory that of this process, so what
//! the simulated network takes is part of both.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use halite::{Config, Driven, NodeId};
use halite_sim::{Profile, World};
use halite_trials::Birth;

const LEASE: Duration = Duration::from_secs(5);
/// So many leases are measured.
const LEASES: u32 = 4;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let numbers: Vec<u32> = std::env::args().skip(1).map(|arg| arg.parse()).collect::<Result<_, _>>()?;
    let [nodes, full_mesh_nodes_max] = numbers[..] else { return Err("two numbers are needed".into()) };
    let world = World::new(1, Profile::named("rnic-100g")?);
    let before_bytes = resident_bytes()?;
    let driven: Rc<Cell<Vec<Rc<Driven>>>> = Rc::default();
    let (joined, last_ns) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let story = {
        let (world, driven, joined, last_ns) =
            (world.clone(), driven.clone(), joined.clone(), last_ns.clone());
        async move {
            for node in 0..nodes {
                let begin_ns = world.now_ns();
                let config = config(node, full_mesh_nodes_max as usize);
                let birth = Birth { host: world.add_host(), incarnation: 1, stream: format!("node {node}") };
                let (born, fabric) = birth.of(&world, &config).expect("the configuration is good");
                let mut greeted = fabric.discover();
                if nodes > full_mesh_nodes_max {
                    greeted.retain(|address| address == "node-0.1");
                }
                born.join(&config, &greeted).await.expect("the first node lives");
                let mut all = driven.take();
                all.push(born);
                driven.set(all);
                joined.set(joined.get() + 1);
                last_ns.set(world.now_ns() - begin_ns);
            }
        }
    };
    world.spawn(None, "join".to_owned(), story);
    let begin_cpu_ns = processor_ns()?;
    while joined.get() < nodes {
        world.run_until(world.now_ns() + LEASE.as_nanos() as u64 / 64);
    }
    let all = nodes as f64;
    println!("{nodes} nodes, up to {full_mesh_nodes_max} connected each to each:");
    println!("  the last joined in {:.2} ms of simulated time", last_ns.get() as f64 / 1e6);
    println!(
        "  all have joined after {:.1} s of this processor",
        (processor_ns()? - begin_cpu_ns) as f64 / 1e9
    );
    println!("  memory: {:.0} KiB a node", (resident_bytes()? - before_bytes) as f64 / 1024.0 / all);

    // Nobody joins any more, and all that joining has begun is over.
    world.run_until(world.now_ns() + LEASE.as_nanos() as u64);
    let (begin, begin_cpu_ns) = (world.counters(), processor_ns()?);
    let seconds = (LEASE * LEASES).as_secs_f64();
    world.run_until(world.now_ns() + (LEASE * LEASES).as_nanos() as u64);
    let posts = (world.counters().posts - begin.posts) as f64 / seconds;
    let bytes = (world.counters().bytes - begin.bytes) as f64 / seconds;
    let cpu_us = (processor_ns()? - begin_cpu_ns) as f64 / 1e3 / seconds;
    println!(
        "  messages a second: {posts:.0}, of {:.0} B each; {:.1} a node",
        bytes / posts.max(1.0),
        posts / all
    );
    println!("  processor time a second: {:.1} us a node", cpu_us / all);
    drop(driven.take());
    world.end();
    Ok(())
}

fn config(node: u32, full_mesh_nodes_max: usize) -> Config {
    Config {
        dir: PathBuf::from("simulated"),
        node: Some(NodeId(node)),
        arena_bytes: 1 << 20,
        segment_bytes: 1 << 20,
        request_ring_bytes: 4096,
        lease: LEASE,
        principal: Some("ada".to_owned()),
        full_mesh_nodes_max,
        ..Config::default()
    }
}

/// For how long this thread has had a processor.
fn processor_ns() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split_whitespace().next().ok_or("it has three numbers")?.parse()?)
}

/// Memory that this process takes of the system.
fn resident_bytes() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split_whitespace().nth(1).ok_or("it has seven numbers")?.parse()?;
    Ok(pages * 4096)
}
