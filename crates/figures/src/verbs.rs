//! Requests of an application that uses an adapter directly, with its own queue pairs and registered memory.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use halite_fabric::{
    CompletionKind, Event, Fabric, Key, Lane, Local, Operation, PeerId, RemoteAddress, Sleeper, Status,
    WorkId, WorkRequest,
};
use halite_mem::{PagePolicy, Segment};
use halite_sim::{HostId, Profile, Random, SimFabric, World};

use crate::experiments::Unsimulated;

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
    /// Number of queue pairs.
    pub(crate) connections: usize,
    /// Number of target hosts. Connections alternate between the hosts.
    pub(crate) targets: u32,
    /// Number of requests in flight per connection.
    pub(crate) depth: u64,
    /// Number of threads, which is the number of connections with requests in flight. If it is less than `connections`,
    /// each request goes to a random idle connection.
    pub(crate) active: usize,
    /// Number of registered regions per target. A request accesses a random place in a random region.
    pub(crate) regions: u64,
    /// Length of each region in bytes.
    pub(crate) region_bytes: u64,
    /// Number of requests before the measurement, which fill the caches.
    pub(crate) warm_up: u64,
    /// Number of measured requests.
    pub(crate) requests: u64,
}

impl Run {
    /// Returns a run of one thread that makes one request at a time to one region.
    pub(crate) fn single(verb: Verb, bytes: u64) -> Run {
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
    pub(crate) fn mean_ns(&self, profile: &Profile) -> Result<f64, Unsimulated> {
        let testbed = Testbed::new(self, profile)?;
        testbed.execute(self.warm_up)?;
        let begin_ns = testbed.world.now_ns();
        testbed.execute(self.requests)?;
        Ok((testbed.world.now_ns() - begin_ns) as f64 / self.requests as f64)
    }
}

/// Returns the time in ns from the post of a write with immediate until a thread of the target polls its notification.
pub(crate) fn one_way_ns(profile: &Profile, bytes: u64) -> Result<f64, Unsimulated> {
    let run = Run::single(Verb::Write, bytes);
    let testbed = Testbed::new(&run, profile)?;
    testbed.execute(run.warm_up)?;
    let connection = testbed.idle.borrow()[0].clone();
    let begin_ns = testbed.world.now_ns();
    let remote = RemoteAddress { key: connection.remote[0], offset: 0 };
    connection.post(Operation::WriteImm { local: connection.local(bytes), remote, imm: 7 })?;
    let target = testbed.targets[0].clone();
    testbed.spawn("target", async move {
        let is_notice = |kind: &CompletionKind| matches!(kind, CompletionKind::Notified { .. });
        while completions(&target, is_notice).await? == 0 {}
        Ok(())
    });
    testbed.run()?;
    Ok((testbed.world.now_ns() - begin_ns) as f64)
}

/// Maximum number of simulation steps to open the connections, and in addition per request and connection. A run needs
/// far fewer.
const STEPS_TO_START: u64 = 200_000;
const STEPS_MAX: u64 = 500;

/// Two or more simulated hosts, with connections from the first to the others.
struct Testbed {
    world: World,
    run: Run,
    targets: Vec<Arc<SimFabric>>,
    idle: Rc<RefCell<Vec<Rc<Connection>>>>,
    random: Rc<RefCell<Random>>,
    /// The first error of a thread.
    failed: Rc<RefCell<Option<Unsimulated>>>,
}

/// The initiator's end of a queue pair.
struct Connection {
    fabric: Arc<SimFabric>,
    peer: PeerId,
    /// Key of the local memory.
    key: Key,
    /// Keys of the remote regions.
    remote: Rc<[Key]>,
    /// Source of inline writes; empty if the writes are too long to be inline.
    inline: Vec<u8>,
}

impl Testbed {
    fn new(run: &Run, profile: &Profile) -> Result<Testbed, Unsimulated> {
        Unsimulated::check("keys_max", profile.keys_max, run.regions as usize)?;
        Unsimulated::check("queue_depth", profile.queue_depth, run.depth as usize)?;
        let world = World::new(SEED, profile.clone());
        let operations = run.connections as u64 + run.warm_up + run.requests;
        world.set_steps_max(STEPS_TO_START + operations * STEPS_MAX);
        let host = world.add_host();
        let create = |name, bytes| {
            Segment::create(name, bytes, PagePolicy::Normal)
                .map_err(|error| Unsimulated::Failed(error.to_string()))
        };
        let region = create("target", run.region_bytes)?;
        let source = create("source", run.bytes.max(PAGE_BYTES))?;
        let mut targets = Vec::new();
        let mut keys: Vec<Rc<[Key]>> = Vec::new();
        for target in 0..run.targets {
            let fabric = open(&world, world.add_host(), &format!("target-{target}"));
            let register =
                |_| fabric.register_in_pages(region.clone(), PAGE_BYTES).expect("keys_max is checked");
            keys.push((0..run.regions).map(register).collect());
            targets.push(fabric);
        }
        let connect = |number: usize| {
            let fabric = open(&world, host, &format!("thread-{number}"));
            let target = number % run.targets as usize;
            let key = fabric.register(source.clone()).expect("keys_max is at least 1");
            fabric.connect(&format!("target-{target}"), b"");
            (fabric, key, keys[target].clone())
        };
        let dialled: Vec<_> = (0..run.connections).map(connect).collect();
        world.run_until(world.now_ns() + profile.connect_timeout_ns);
        let inline =
            vec![7; if run.bytes <= profile.inline_bytes_max as u64 { run.bytes as usize } else { 0 }];
        let connected = |(fabric, key, remote): (Arc<SimFabric>, Key, Rc<[Key]>)| {
            let mut events = Vec::new();
            fabric.poll(&mut events);
            let peer = events.iter().find_map(|event| match event {
                Event::Connected { peer, .. } => Some(*peer),
                _ => None,
            });
            let peer = peer.ok_or(Unsimulated::NotConnected)?;
            Ok(Rc::new(Connection { fabric, peer, key, remote, inline: inline.clone() }))
        };
        let idle: Vec<_> = dialled.into_iter().map(connected).collect::<Result<_, _>>()?;
        let random = Rc::new(RefCell::new(world.random("places")));
        let (idle, failed) = (Rc::new(RefCell::new(idle)), Rc::default());
        Ok(Testbed { world, run: run.clone(), targets, idle, random, failed })
    }

    /// Executes this number of requests.
    fn execute(&self, requests: u64) -> Result<(), Unsimulated> {
        let active = self.run.active as u64;
        for thread in 0..active {
            let share = requests / active + u64::from(thread < requests % active);
            let (run, idle, random) = (self.run.clone(), self.idle.clone(), self.random.clone());
            // A thread with its own connection keeps `depth` requests in flight until its end.
            let burst = if run.active < run.connections { 1 } else { share.max(1) };
            self.spawn("thread", async move {
                for _ in 0..share / burst {
                    let index = random.borrow_mut().index(idle.borrow().len());
                    let connection = idle.borrow_mut().swap_remove(index);
                    connection.execute(&run, burst, &random).await?;
                    idle.borrow_mut().push(connection);
                }
                Ok(())
            });
        }
        self.run()
    }

    fn spawn(&self, name: &'static str, thread: impl Future<Output = Result<(), Unsimulated>> + 'static) {
        let failed = self.failed.clone();
        self.world.spawn(None, name, async move {
            if let Err(cause) = thread.await {
                failed.borrow_mut().get_or_insert(cause);
            }
        });
    }

    fn run(&self) -> Result<(), Unsimulated> {
        let end = self.world.run();
        match self.failed.take() {
            Some(cause) => Err(cause),
            None => Unsimulated::unless_finished(&end),
        }
    }
}

fn open(world: &World, host: HostId, address: &str) -> Arc<SimFabric> {
    world.fabric(host, address, Vec::new())
}

impl Connection {
    /// Returns a source of `len` bytes. Short sources are inline, as in the papers' benchmarks.
    fn local(&self, len: u64) -> Local<'_> {
        match self.inline.get(..len as usize) {
            Some(bytes) => Local::Inline(bytes),
            None => Local::Registered { key: self.key, offset: 0, len },
        }
    }

    fn post(&self, operation: Operation<'_>) -> Result<(), Unsimulated> {
        let request = WorkRequest { id: WorkId(0), operation, signalled: true, solicited: true };
        let posted = self.fabric.post(self.peer, Lane::FIRST, &[request]);
        posted.map_err(|error| Unsimulated::Failed(error.to_string()))
    }

    async fn execute(&self, run: &Run, requests: u64, random: &RefCell<Random>) -> Result<(), Unsimulated> {
        let is_done = |kind: &CompletionKind| {
            matches!(kind, CompletionKind::Done { .. } | CompletionKind::Atomic { .. })
        };
        let (mut posted, mut done) = (0, 0);
        while done < requests {
            while posted < requests && posted - done < run.depth {
                self.post_random(run, &mut random.borrow_mut())?;
                posted += 1;
            }
            done += completions(&self.fabric, is_done).await?;
        }
        Ok(())
    }

    fn post_random(&self, run: &Run, random: &mut Random) -> Result<(), Unsimulated> {
        let key = self.remote[random.index(self.remote.len())];
        let offset = random.below(run.region_bytes / run.bytes) * run.bytes;
        let remote = RemoteAddress { key, offset };
        self.post(match run.verb {
            Verb::Write => Operation::Write { local: self.local(run.bytes), remote },
            Verb::Read => {
                let local = Local::Registered { key: self.key, offset: 0, len: run.bytes };
                Operation::Read { local, remote }
            }
            Verb::FetchAdd => Operation::FetchAdd { remote, add: 1 },
        })
    }
}

/// Waits for events and returns the number of completions of a kind among them. Fails if a request has failed.
async fn completions(
    fabric: &SimFabric,
    is_counted: impl Fn(&CompletionKind) -> bool,
) -> Result<u64, Unsimulated> {
    // Arming again makes the simulated thread spin before it sleeps; see `Adapter::spin_ns`.
    fabric.arm(None);
    fabric.arm(Some(Sleeper::Progress));
    loop {
        let (seen, mut events) = (fabric.doorbell(), Vec::new());
        fabric.poll(&mut events);
        let mut count = 0;
        for event in events {
            let Ok(completion) = event.into_completion() else { continue };
            if completion.status != Status::Success {
                return Err(Unsimulated::Request(completion.status));
            }
            count += u64::from(is_counted(&completion.kind));
        }
        if count > 0 {
            return Ok(count);
        }
        fabric.rung(seen).await;
    }
}
