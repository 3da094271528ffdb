//! Operations of Halite's own sessions on simulated adapters. Simulated programs take no virtual time, so each
//! operation also sleeps for the time of its instructions on the profile's processor.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use halite::{Config, Driven, Function, Lh, NodeId, Permissions, Placement, ServeOptions, Session};
use halite_sim::{HostId, Profile, Random, World};
use halite_trials::Birth;

use crate::experiments::Unsimulated;

/// Number of instructions of a write of 8 B, and of a call of 8 B at both ends. `halite-bench price` counts them.
const WRITE_INSTRUCTIONS: u64 = 181;
const CALL_INSTRUCTIONS: u64 = 2_100;

const SEED: u64 = 1;
const FUNCTION: Function = Function(1);
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of operations of each thread before the measurement.
const WARM_UP: u64 = 20;

/// The way in which the program calls Halite or LITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// A function call: Halite is part of the program, or LITE and the program are in the kernel.
    Function,
    /// One system call per operation.
    SystemCall,
}

/// Writes of several threads of one node to regions of another node.
#[derive(Clone, Debug)]
pub(crate) struct Writes {
    pub(crate) entry: Entry,
    pub(crate) bytes: u64,
    pub(crate) threads: u64,
    pub(crate) regions: u64,
    pub(crate) region_bytes: u64,
    /// Number of measured writes of each thread.
    pub(crate) requests: u64,
}

impl Writes {
    pub(crate) fn single(entry: Entry, bytes: u64) -> Writes {
        Writes { entry, bytes, threads: 1, regions: 1, region_bytes: bytes.max(4096), requests: 200 }
    }

    /// Returns the mean time per write in ns: the time of the run divided by the number of writes of all threads.
    pub(crate) fn mean_ns(&self, profile: &Profile) -> Result<f64, Unsimulated> {
        let cost = Cost::new(profile, WRITE_INSTRUCTIONS, self.entry)?;
        let writes = self.clone();
        let operations = self.regions + self.threads * (WARM_UP + self.requests);
        let bytes = self.regions * self.region_bytes;
        let took_ns = measure(profile, bytes, operations, move |world, nodes| async move {
            let session = nodes[0].session();
            let mut regions = Vec::new();
            for _ in 0..writes.regions {
                let all = Permissions::all();
                let placement = Placement::On(NodeId(1));
                regions.push(session.alloc(None, writes.region_bytes, placement, all).await.map_err(failed)?);
            }
            let progress = Rc::new(Progress {
                begin_ns: Cell::new(0),
                end_ns: Cell::new(0),
                running: Cell::new(writes.threads),
                result: RefCell::new(Ok(())),
            });
            let regions: Rc<[Lh]> = regions.into();
            for thread in 0..writes.threads {
                let worker = Writer {
                    session: session.clone(),
                    world: world.clone(),
                    writes: writes.clone(),
                    regions: regions.clone(),
                    random: world.random(&format!("thread {thread}")),
                    cost,
                };
                let progress = progress.clone();
                world.spawn(None, "thread", async move { worker.run(&progress).await });
            }
            let mut interval = Duration::from_micros(1);
            while progress.running.get() > 0 {
                world.sleep(None, interval).await;
                interval *= 2;
            }
            progress.result.replace(Ok(()))?;
            Ok(progress.end_ns.get() - progress.begin_ns.get())
        })?;
        Ok(took_ns as f64 / (self.requests * self.threads) as f64)
    }
}

/// State that the threads of a run share.
struct Progress {
    /// Time at which the last thread began its measured writes, in ns.
    begin_ns: Cell<u64>,
    /// Time at which the last thread ended, in ns.
    end_ns: Cell<u64>,
    /// Number of threads that have not ended.
    running: Cell<u64>,
    result: RefCell<Result<(), Unsimulated>>,
}

struct Writer {
    session: Session,
    world: World,
    writes: Writes,
    regions: Rc<[Lh]>,
    random: Random,
    cost: Cost,
}

impl Writer {
    async fn run(mut self, progress: &Progress) {
        let mut result = self.write(WARM_UP).await;
        progress.begin_ns.set(self.world.now_ns());
        if result.is_ok() {
            result = self.write(self.writes.requests).await;
        }
        if result.is_err() {
            *progress.result.borrow_mut() = result;
        }
        progress.end_ns.set(self.world.now_ns());
        progress.running.set(progress.running.get() - 1);
    }

    async fn write(&mut self, count: u64) -> Result<(), Unsimulated> {
        let (bytes, places) = (self.writes.bytes, self.writes.region_bytes / self.writes.bytes);
        let source = vec![7; bytes as usize];
        for _ in 0..count {
            self.cost.charge(&self.world).await;
            let lh = self.regions[self.random.index(self.regions.len())];
            let offset = self.random.below(places) * bytes;
            self.session.write(lh, offset, &source).await.map_err(failed)?;
        }
        Ok(())
    }
}

/// Returns the mean latency in ns of calls with 8 B of input and an answer of `bytes`.
pub(crate) fn call_ns(profile: &Profile, entry: Entry, bytes: u64) -> Result<f64, Unsimulated> {
    let requests = 200;
    // Each end executes half of the instructions. The client also pays for one system call, because LITE hides all
    // others.
    let client_cost = Cost::new(profile, CALL_INSTRUCTIONS / 2, entry)?;
    let server_cost = Cost::new(profile, CALL_INSTRUCTIONS / 2, Entry::Function)?;
    let took_ns = measure(profile, 0, WARM_UP + requests, move |world, nodes| async move {
        let server = nodes[1].session().serve(FUNCTION, ServeOptions::default()).map_err(failed)?;
        let inner = world.clone();
        world.spawn(Some(HostId(1)), "server", async move {
            let answer = vec![7; bytes as usize];
            while let Ok(call) = server.recv().await {
                server_cost.charge(&inner).await;
                // If the reply fails, the client's call fails, too, and reports the error.
                let _ = call.reply(&answer);
            }
        });
        let session = nodes[0].session();
        let mut begin_ns = 0;
        for number in 0..WARM_UP + requests {
            if number == WARM_UP {
                begin_ns = world.now_ns();
            }
            client_cost.charge(&world).await;
            session.call(NodeId(1), FUNCTION, &[7; 8], CALL_TIMEOUT).await.map_err(failed)?;
        }
        Ok(world.now_ns() - begin_ns)
    })?;
    Ok(took_ns as f64 / requests as f64)
}

/// Processor time of an operation.
#[derive(Clone, Copy)]
struct Cost {
    ns: u64,
}

impl Cost {
    fn new(profile: &Profile, instructions: u64, entry: Entry) -> Result<Cost, Unsimulated> {
        let processor = profile.processor.ok_or(Unsimulated::NoProcessor)?;
        let call_ns = if entry == Entry::SystemCall { processor.system_call_ns } else { 0 };
        Ok(Cost { ns: processor.runs_ns(instructions) + call_ns })
    }

    async fn charge(&self, world: &World) {
        world.sleep(None, Duration::from_nanos(self.ns)).await;
    }
}

/// Maximum number of simulation steps to start the nodes, and in addition per operation: about 100 times the needed
/// number. They end a run in which a profile prevents progress.
const STEPS_TO_START: u64 = 200_000;
const STEPS_MAX: u64 = 500;

/// Runs `work`, which makes `operations` operations, on two nodes without faults, and returns its result. Node 1 has
/// memory for regions of `bytes` in all.
fn measure<W: Future<Output = Result<u64, Unsimulated>> + 'static>(
    profile: &Profile,
    bytes: u64,
    operations: u64,
    work: impl FnOnce(World, [Rc<Driven>; 2]) -> W + 'static,
) -> Result<u64, Unsimulated> {
    let world = World::new(SEED, profile.clone());
    world.set_steps_max(STEPS_TO_START + operations * STEPS_MAX);
    let result = Rc::new(RefCell::new(Ok(0)));
    let (inner, out) = (world.clone(), result.clone());
    world.spawn(None, "work", async move {
        let hosts = [inner.add_host(), inner.add_host()];
        let nodes =
            async { Ok([start(&inner, hosts[0], 0, 0).await?, start(&inner, hosts[1], 1, bytes).await?]) };
        *out.borrow_mut() = match nodes.await {
            Ok(nodes) => work(inner, nodes).await,
            Err(cause) => Err(cause),
        };
    });
    let end = world.run();
    world.end();
    Unsimulated::unless_finished(&end)?;
    result.replace(Ok(0))
}

async fn start(world: &World, host: HostId, number: u32, bytes: u64) -> Result<Rc<Driven>, Unsimulated> {
    let config = Config {
        dir: PathBuf::from("simulated"),
        node: Some(NodeId(number)),
        arena_bytes: (128 << 20) + 2 * bytes,
        principal: Some("ada".to_owned()),
        ..Config::default()
    };
    let birth = Birth { host, incarnation: 1, stream: format!("node {number}") };
    let (driven, fabric) = birth.of(world, &config).map_err(failed)?;
    driven.join(&config, &fabric.discover()).await.map_err(failed)?;
    Ok(driven)
}

fn failed(error: impl std::error::Error) -> Unsimulated {
    Unsimulated::Failed(error.to_string())
}
