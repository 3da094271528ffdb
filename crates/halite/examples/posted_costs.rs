//! What the tier adds to a posted access: `cargo run --release --example posted_costs [ITERATIONS]`.
//!
//! Two nodes of this process, one of which reaches the other's memory only by what it posts over shared memory.  Beside each
//! access stands what the fabric itself takes to post the same request and to poll its completion, measured by turns.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use halite::{Config, JoinError, Node, NodeId, NodeIdentity, Permissions, Placement};
use halite_fabric::{Event, Fabric, Key, Lane, Local, Operation, PeerId, RemoteAddress, WorkId, WorkRequest};
use halite_mem::{PagePolicy, Segment};
use halite_providers::{ShmConfig, ShmFabric};

type Failure = Box<dyn std::error::Error>;

/// Runs per figure, of which the median counts.
const RUNS: usize = 51;
const ALL: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);

fn main() -> Result<(), Failure> {
    let iterations = std::env::args().nth(1).map_or(Ok(200_000), |count| count.parse())?;
    let each = (iterations / RUNS).max(1);
    let dir = std::env::temp_dir().join(format!("halite-posted-costs-{}", std::process::id()));
    let measured = measure(&dir, each);
    std::fs::remove_dir_all(dir)?;
    measured
}

fn measure(dir: &Path, each: usize) -> Result<(), Failure> {
    let cluster = dir.join("cluster");
    let nodes = [join(&cluster, 0)?, join(&cluster, 1)?];
    let session = nodes[0].blocking_session();
    let lh = session.alloc(None, 4096, Placement::On(NodeId(1)), ALL)?;
    let bare = Bare::new(&dir.join("bare"))?;
    let mut bytes = [0; 8];
    compare(
        "8 B write",
        each,
        |n| session.write(lh, 0, &n.to_ne_bytes()),
        |n| bare.run(Operation::Write { local: Local::Inline(&n.to_ne_bytes()), remote: bare.remote }),
    )?;
    let local = Local::Registered { key: bare.key, offset: 0, len: 8 };
    compare(
        "8 B read",
        each,
        |_| session.read(lh, 0, &mut bytes),
        |_| bare.run(Operation::Read { local, remote: bare.remote }),
    )?;
    compare(
        "fetch-add",
        each,
        |_| session.fetch_add(lh, 8, 1).map(|_| ()),
        |_| bare.run(Operation::FetchAdd { remote: bare.remote, add: 1 }),
    )?;
    let done = (RUNS * each) as u64;
    assert_eq!((u64::from_ne_bytes(bytes), session.fetch_add(lh, 8, 0)?), (done - 1, done), "all was done");
    Ok(())
}

/// A node that reaches others only by what it posts.
fn join(dir: &Path, node: u32) -> Result<Node, JoinError> {
    let open = |identity: &NodeIdentity| -> Result<Arc<dyn Fabric>, JoinError> {
        let hello = identity.hello.clone();
        let config = ShmConfig {
            hello,
            direct: false,
            ..ShmConfig::new(dir, identity.name_of(halite::Provider::Shm))
        };
        Ok(ShmFabric::open(config).map_err(|error| JoinError::Fabric(Box::new(error)))?)
    };
    let config = Config { dir: dir.to_owned(), node: Some(NodeId(node)), ..Config::default() };
    Node::with_fabric(config, open)
}

/// The fabric alone.
struct Bare {
    one: Arc<ShmFabric>,
    #[expect(dead_code, reason = "it is the peer")]
    other: Arc<ShmFabric>,
    peer: PeerId,
    key: Key,
    remote: RemoteAddress,
}

impl Bare {
    fn new(dir: &Path) -> Result<Bare, Failure> {
        let one = ShmFabric::open(ShmConfig::new(dir, "one"))?;
        let other = ShmFabric::open(ShmConfig::new(dir, "other"))?;
        let segment = || Segment::create("costs", 4096, PagePolicy::Normal);
        let (key, remote) = (one.register(segment()?)?, other.register(segment()?)?);
        one.connect("other.sock", b"");
        let mut events = Vec::new();
        while events.is_empty() {
            one.poll(&mut events);
        }
        let Some(Event::Connected { peer, .. }) = events.pop() else { return Err("no connection".into()) };
        Ok(Bare { one, other, peer, key, remote: RemoteAddress { key: remote, offset: 0 } })
    }

    /// Posts a request, and polls until it has completed.
    fn run(&self, operation: Operation<'_>) -> Result<(), Failure> {
        let request = WorkRequest { id: WorkId(7), operation, signalled: true, solicited: true };
        self.one.post(self.peer, Lane::FIRST, &[request])?;
        let mut events = Vec::with_capacity(1);
        while self.one.poll(&mut events) == 0 {}
        match events.pop() {
            Some(Event::Completed(_)) => Ok(()),
            other => Err(format!("expected the end of a request, got {other:?}").into()),
        }
    }
}

/// Runs both by turns, and prints the medians and what lies between them.
fn compare<E: Into<Failure>>(
    what: &str,
    each: usize,
    mut tier: impl FnMut(usize) -> Result<(), E>,
    mut bare: impl FnMut(usize) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut runs_ns: [Vec<f64>; 2] = Default::default();
    for run in 0..RUNS {
        let numbers = run * each..(run + 1) * each;
        let begin = Instant::now();
        for n in numbers.clone() {
            tier(n).map_err(Into::into)?;
        }
        let between = Instant::now();
        for n in numbers {
            bare(n)?;
        }
        let ends = [between - begin, between.elapsed()];
        for (runs, took) in runs_ns.iter_mut().zip(ends) {
            runs.push(took.as_nanos() as f64 / each as f64);
        }
    }
    let [tier, bare] = runs_ns.map(|mut runs| {
        runs.sort_by(f64::total_cmp);
        (runs[runs.len() / 2], runs[runs.len() / 10], runs[runs.len() * 9 / 10])
    });
    println!(
        "{what:<10} {:>7.1} ns [{:.1}..{:.1}], fabric alone {:>7.1} ns [{:.1}..{:.1}], added {:>7.1} ns",
        tier.0,
        tier.1,
        tier.2,
        bare.0,
        bare.1,
        bare.2,
        tier.0 - bare.0
    );
    Ok(())
}
