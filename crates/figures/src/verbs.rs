//! Requests of applications that use an adapter without a tier: with queue pairs and registered memory of their own.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use halite_fabric::{
    CompletionKind, Event, Fabric, Key, Lane, Local, Operation, PeerId, RemoteAddress, Sleeper, Status,
    WorkId, WorkRequest,
};
use halite_mem::{PagePolicy, Segment};
use halite_sim::{HostId, Profile, Random, RunEnd, SimFabric, World};

/// Length in bytes of the pages that applications register.
pub(crate) const PAGE_BYTES: u64 = 4096;
const SEED: u64 = 1;

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Write,
    Read,
    FetchAdd,
}

/// Requests from one host to others.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) verb: Verb,
    pub(crate) bytes: u64,
    /// Number of queue pairs, each with a thread of its own.
    pub(crate) connections: usize,
    /// Number of hosts with targets; connections alternate between them.
    pub(crate) targets: u32,
    /// Number of requests in flight of a connection.
    pub(crate) depth: u64,
    /// Number of connections with requests in flight. If it is less than `connections`, each request goes to a random idle
    /// connection.
    pub(crate) active: usize,
    /// Number of registered regions of a target. A request goes to a random place in a random region.
    pub(crate) regions: u64,
    /// Length of each region in bytes.
    pub(crate) region_bytes: u64,
    /// Number of requests that fill the caches, before those that are measured.
    pub(crate) warm_up: u64,
    /// Number of requests that are measured.
    pub(crate) requests: u64,
}

impl Run {
    /// Requests of one thread, one after the other, to one region.
    pub(crate) fn alone(verb: Verb, bytes: u64) -> Run {
        Run {
            verb,
            bytes,
            connections: 1,
            targets: 1,
            depth: 1,
            active: 1,
            regions: 1,
            region_bytes: bytes.max(PAGE_BYTES),
            warm_up: 50,
            requests: 200,
        }
    }

    /// Returns the mean time per request in ns: the time of the run divided by its number of requests.
    pub(crate) fn mean_ns(&self, profile: &Profile) -> f64 {
        let bench = Bench::new(self, profile);
        bench.execute(self.warm_up);
        let begin_ns = bench.world.now_ns();
        bench.execute(self.requests);
        (bench.world.now_ns() - begin_ns) as f64 / self.requests as f64
    }
}

/// Returns the time from the post of a write with an immediate value until a thread of its target sees it, in ns.
pub(crate) fn one_way_ns(profile: &Profile, bytes: u64) -> f64 {
    let run = Run::alone(Verb::Write, bytes);
    let bench = Bench::new(&run, profile);
    bench.execute(run.warm_up);
    let connection = bench.idle.borrow()[0].clone();
    let begin_ns = bench.world.now_ns();
    let inline = [7; INLINE_BYTES_MAX];
    let local = connection.local(bytes, &inline);
    let remote = RemoteAddress { key: connection.remote[0], offset: 0 };
    connection.post(Operation::WriteImm { local, remote, imm: 7 });
    let target = bench.targets[0].clone();
    bench.world.spawn(None, "target", async move {
        let is_notice = |kind: &CompletionKind| matches!(kind, CompletionKind::Notified { .. });
        while completions(&target, is_notice).await == 0 {}
    });
    bench.run();
    (bench.world.now_ns() - begin_ns) as f64
}

/// Two or more hosts with connections from the first to the others.
struct Bench {
    world: World,
    run: Run,
    targets: Vec<Arc<SimFabric>>,
    idle: Rc<RefCell<Vec<Rc<Connection>>>>,
    random: Rc<RefCell<Random>>,
}

/// A queue pair, as its thread sees it.
struct Connection {
    fabric: Arc<SimFabric>,
    peer: PeerId,
    /// Key of its source and of the target of its reads.
    key: Key,
    /// Keys of the target's regions.
    remote: Rc<[Key]>,
}

impl Bench {
    fn new(run: &Run, profile: &Profile) -> Bench {
        let world = World::new(SEED, profile.clone());
        let host = world.add_host();
        let region =
            Segment::create("target", run.region_bytes, PagePolicy::Normal).expect("memory for a region");
        let source = Segment::create("source", run.bytes.max(PAGE_BYTES), PagePolicy::Normal)
            .expect("memory for a source");
        let mut targets = Vec::new();
        let mut keys: Vec<Rc<[Key]>> = Vec::new();
        for target in 0..run.targets {
            let fabric = open(&world, world.add_host(), &format!("target-{target}"));
            let register = |_| fabric.register_in_pages(region.clone(), PAGE_BYTES).expect("keys are free");
            keys.push((0..run.regions).map(register).collect());
            targets.push(fabric);
        }
        let connect = |number: usize| {
            let fabric = open(&world, host, &format!("thread-{number}"));
            let target = number % run.targets as usize;
            let key = fabric.register(source.clone()).expect("keys are free");
            fabric.connect(&format!("target-{target}"), b"");
            (fabric, key, keys[target].clone())
        };
        let dialled: Vec<_> = (0..run.connections).map(connect).collect();
        world.run_until(world.now_ns() + CONNECTED_NS);
        let connected = |(fabric, key, remote): (Arc<SimFabric>, Key, Rc<[Key]>)| {
            let mut events = Vec::new();
            fabric.poll(&mut events);
            let peer = events.iter().find_map(|event| match event {
                Event::Connected { peer, .. } => Some(*peer),
                _ => None,
            });
            Rc::new(Connection { fabric, peer: peer.expect("no link has faults"), key, remote })
        };
        let idle = dialled.into_iter().map(connected).collect();
        let random = Rc::new(RefCell::new(world.random("places")));
        Bench { world, run: run.clone(), targets, idle: Rc::new(RefCell::new(idle)), random }
    }

    /// Executes this number of requests.
    fn execute(&self, requests: u64) {
        let active = self.run.active as u64;
        for thread in 0..active {
            let share = requests / active + u64::from(thread < requests % active);
            let (run, idle, random) = (self.run.clone(), self.idle.clone(), self.random.clone());
            // A connection that is not shared keeps its requests in flight.
            let burst = if run.active < run.connections { 1 } else { share.max(1) };
            self.world.spawn(None, "thread", async move {
                for _ in 0..share / burst {
                    let index = random.borrow_mut().index(idle.borrow().len());
                    let connection = idle.borrow_mut().swap_remove(index);
                    connection.execute(&run, burst, &random).await;
                    idle.borrow_mut().push(connection);
                }
            });
        }
        self.run();
    }

    fn run(&self) {
        let end = self.world.run();
        assert_eq!(end, RunEnd::Finished, "requests complete without faults");
    }
}

/// Time after which all connections are open.
const CONNECTED_NS: u64 = 10_000_000;

fn open(world: &World, host: HostId, address: &str) -> Arc<SimFabric> {
    world.fabric(host, address, Vec::new())
}

impl Connection {
    /// Returns a source of `len` bytes; short ones are inline, as in the papers' benchmarks.
    fn local<'a>(&self, len: u64, inline: &'a [u8; INLINE_BYTES_MAX]) -> Local<'a> {
        match inline.get(..len as usize) {
            Some(bytes) => Local::Inline(bytes),
            None => Local::Registered { key: self.key, offset: 0, len },
        }
    }

    fn post(&self, operation: Operation<'_>) {
        let request = WorkRequest { id: WorkId(0), operation, signalled: true, solicited: true };
        self.fabric.post(self.peer, Lane::FIRST, &[request]).expect("there is room");
    }

    async fn execute(&self, run: &Run, requests: u64, random: &RefCell<Random>) {
        let is_done = |kind: &CompletionKind| {
            matches!(kind, CompletionKind::Done { .. } | CompletionKind::Atomic { .. })
        };
        let (mut posted, mut done) = (0, 0);
        while done < requests {
            while posted < requests && posted - done < run.depth {
                self.post_random(run, &mut random.borrow_mut());
                posted += 1;
            }
            done += completions(&self.fabric, is_done).await;
        }
    }

    fn post_random(&self, run: &Run, random: &mut Random) {
        let key = self.remote[random.index(self.remote.len())];
        let offset = random.below(run.region_bytes / run.bytes) * run.bytes;
        let remote = RemoteAddress { key, offset };
        let inline = [7; INLINE_BYTES_MAX];
        self.post(match run.verb {
            Verb::Write => Operation::Write { local: self.local(run.bytes, &inline), remote },
            Verb::Read => {
                let local = Local::Registered { key: self.key, offset: 0, len: run.bytes };
                Operation::Read { local, remote }
            }
            Verb::FetchAdd => Operation::FetchAdd { remote, add: 1 },
        });
    }
}

/// Maximum length of an inline source.
const INLINE_BYTES_MAX: usize = 220;

/// Waits for events and returns the number of completions of a kind among them. Panics if a request has failed.
async fn completions(fabric: &SimFabric, is_counted: impl Fn(&CompletionKind) -> bool) -> u64 {
    // A thread that begins to wait spins; see `Adapter::spin_ns`.
    fabric.arm(None);
    fabric.arm(Some(Sleeper::Progress));
    loop {
        let (seen, mut events) = (fabric.doorbell(), Vec::new());
        fabric.poll(&mut events);
        let mut count = 0;
        for event in events {
            let Ok(completion) = event.into_completion() else { continue };
            assert_eq!(completion.status, Status::Success, "no request fails without faults");
            count += u64::from(is_counted(&completion.kind));
        }
        if count > 0 {
            return count;
        }
        fabric.rung(seen).await;
    }
}
