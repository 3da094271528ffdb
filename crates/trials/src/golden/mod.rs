//! The golden table: cost of each operation in simulated time, without faults.
//!
//! The table shows the steps of the protocol, and nothing about the speed of this code or of a real machine. The table
//! is part of the tree, so that a change that alters a cost also changes the table.

mod cluster;
mod jobs;

use std::cell::Cell;
use std::fmt::Write;
use std::rc::Rc;

use halite_sim::{Profile, RunEnd, World};

pub(crate) use cluster::Cluster;
use jobs::{Job, Worker};

/// Maximum number of operations whose mean is the latency.
const ROUNDS_MAX: u64 = 32;
/// Number of bytes per session that suffices, because all long operations take equally long.
const BYTES_PER_SESSION: u64 = 128 << 10;
/// Number of operations before the measurement, which bring connections and rings into their steady state.
const WARM_UP: u64 = 2;
/// Number of parallel sessions for the throughput.
const SESSIONS: u32 = 16;

/// Profiles whose costs resemble real hardware.
const PROFILES: [&str; 2] = ["local", "rnic-100g"];
/// Profile with atomics by call; other costs are those of `rnic-100g`.
const BY_CALL: &str = "rnic-100g-hca";

/// Returns the text of `docs/simulated.md`.
pub fn golden() -> String {
    let mut text = HEADER.to_owned();
    for name in PROFILES {
        let profile = Profile::named(name).expect("the profile is built in");
        writeln!(text, "\n## {name}\n\n{HEADING}").expect("writing to a string cannot fail");
        for (job, bytes) in jobs::all() {
            text.push_str(&row(&profile, job, bytes));
        }
    }
    let profile = Profile::named(BY_CALL).expect("the profile is built in");
    writeln!(text, "\n## {BY_CALL}\n\n{BY_CALL_TEXT}\n\n{HEADING}").expect("writing to a string cannot fail");
    for (job, bytes) in jobs::all().filter(|(job, _)| job.is_atomic()) {
        text.push_str(&row(&profile, job, bytes));
    }
    text
}

/// Time at which all operations have ended.
const DEADLINE_NS: u64 = 1_000_000_000;

const HEADER: &str = "\
# Simulated costs

Costs of operations of a session on one node on a region of another node, in simulated time. Hardware costs are those of
the profiles in `crates/sim/profiles`. These are not measurements: no machine is as regular, and the time of Halite's
own instructions is not included. The tables show the number of steps of each operation, and changes of it.

All threads sleep until a message arrives, which is most of the shorter figures: a wake-up takes 5 us in `local` and 6
us in `rnic-100g`. Memory that a node fills or copies for another costs nothing there.

Latency is the mean of 2 to 32 operations of one session, one after the other; the rate is that of 16 sessions at once.
This command writes this file:

<!-- run: by hand -->
```sh
cargo run --release -p halite-cli -- sim golden > docs/simulated.md
```
";

const BY_CALL_TEXT: &str = "\
The same adapters, but their atomics are not atomic with respect to processors. So atomics travel as calls, and the node
that owns the word wakes up for each.";

const HEADING: &str = "\
| operation | bytes | latency [usec] | rate [1/msec] | throughput [MB/s] |
|---|---:|---:|---:|---:|";

fn row(profile: &Profile, job: Job, bytes: u64) -> String {
    let (alone_ns, all_ns) = (elapsed_ns(profile, job, bytes, 1), elapsed_ns(profile, job, bytes, SESSIONS));
    let latency_us = alone_ns as f64 / 1e3 / rounds(bytes) as f64;
    let operations = (rounds(bytes) * u64::from(SESSIONS)) as f64;
    let size = if bytes == 0 { "-".to_owned() } else { bytes.to_string() };
    let rate = format_rate(operations * 1e6, all_ns);
    let throughput = if job.carries_bytes() {
        format_rate(operations * bytes as f64 * 1e3, all_ns)
    } else {
        "-".to_owned()
    };
    format!("| {} | {size} | {latency_us:.3} | {rate} | {throughput} |\n", job.name())
}

/// Formats a rate. Loads and stores may take no simulated time at all.
fn format_rate(amount: f64, time_ns: u64) -> String {
    if time_ns == 0 { "-".to_owned() } else { format!("{:.1}", amount / time_ns as f64) }
}

/// Returns the number of operations of each session.
fn rounds(bytes: u64) -> u64 {
    (BYTES_PER_SESSION / bytes.max(1)).clamp(2, ROUNDS_MAX)
}

/// Returns the time until all sessions have done their operations.
fn elapsed_ns(profile: &Profile, job: Job, bytes: u64, sessions: u32) -> u64 {
    let world = World::new(0, profile.clone());
    let elapsed_ns_cell = Rc::new(Cell::new(0));
    let (here, elapsed) = (world.clone(), elapsed_ns_cell.clone());
    world.spawn(None, "golden", async move {
        let cluster = Cluster::start(&here).await;
        let workers = (0..sessions).map(|number| Worker::new(&cluster, job, bytes, number));
        elapsed.set(run_workers(&here, workers.collect(), rounds(bytes)).await);
    });
    let end = world.run_until(DEADLINE_NS);
    assert_eq!(end, RunEnd::Finished, "{} of {bytes} bytes", job.name());
    world.end();
    elapsed_ns_cell.get()
}

/// Prepares all workers, lets them work, and returns the time of the work.
async fn run_workers(world: &World, workers: Vec<Worker>, rounds: u64) -> u64 {
    let rendezvous = Rc::new(Rendezvous::new(world.clone(), workers.len()));
    for mut worker in workers {
        let rendezvous = rendezvous.clone();
        let run = async move {
            worker.prepare().await;
            worker.repeat(WARM_UP).await;
            rendezvous.start().await;
            worker.repeat(rounds).await;
            rendezvous.finish();
        };
        world.spawn(None, "worker", run);
    }
    rendezvous.finished().await
}

/// Synchronizes the start of all workers, and waits for their end.
struct Rendezvous {
    world: World,
    starting: Cell<usize>,
    running: Cell<usize>,
    begun_ns: Cell<u64>,
    ended_ns: Cell<u64>,
}

impl Rendezvous {
    fn new(world: World, workers: usize) -> Rendezvous {
        let (starting, running) = (Cell::new(workers), Cell::new(workers));
        Rendezvous { world, starting, running, begun_ns: Cell::default(), ended_ns: Cell::default() }
    }

    async fn start(&self) {
        self.starting.set(self.starting.get() - 1);
        while self.starting.get() > 0 {
            cluster::pause(&self.world).await;
        }
        self.begun_ns.set(self.world.now_ns());
    }

    fn finish(&self) {
        self.running.set(self.running.get() - 1);
        self.ended_ns.set(self.world.now_ns());
    }

    async fn finished(&self) -> u64 {
        while self.running.get() > 0 {
            cluster::pause(&self.world).await;
        }
        self.ended_ns.get() - self.begun_ns.get()
    }
}
