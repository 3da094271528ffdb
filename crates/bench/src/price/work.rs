//! The counted operations, between two nodes of this process that one thread drives.

use std::cell::Cell;
use std::fs::Permissions as Mode;
use std::future::poll_fn;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use halite::blocking::{Mailbox, Server, Session};
use halite::{
    Config, Driven, Env, Function, JoinError, Lh, NodeId, NodeIdentity, Permissions, Placement, Port,
    Provider, ServeOptions,
};
use halite_apps::kv::{KvError, Owner, SetOptions, Store};
use halite_apps::log::{Log, Options, Writer};
use halite_fabric::Fabric;
use halite_providers::{ShmConfig, ShmFabric};

/// Number of the system call `getppid`, which marks the start and the end of the counted part and occurs nowhere else.
pub(super) const MARK: u64 = 110;
pub(super) const WORD_BYTES: usize = size_of::<u64>();
/// Number of counted rounds of each operation.
pub(super) const ROUNDS: u64 = 8;
/// Number of rounds before the counted ones. They let tables grow and adaptive polling settle.
const ROUNDS_BEFORE: u64 = 200;
/// Calls per batch.
const BATCH: usize = 8;
const LONG_BYTES: usize = 1 << 20;
/// Records that one call appends.
const RECORDS_PER_CALL: usize = 64;

const ALL: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);
const TIMEOUT: Duration = Duration::from_secs(3600);
const FUNCTION: Function = Function(1);
const PORT: Port = Port(1);
const SHARD: Function = Function(2);
const RECORD: [u8; 16] = [7; 16];
const KEY: &[u8] = b"user0000000000";
const VALUE: [u8; 64] = [7; 64];

/// The kind of a counted operation.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Call,
    Calls,
    Message,
    DirectWrite,
    LongWrite,
    TaskRead,
    PostedWrite,
    PostedRead,
    PostedTaskRead,
    Append,
    AppendTogether,
    PostedAppend,
    Get,
    Set,
}

/// A counted operation with its maximum cost.
pub(super) struct Operation {
    kind: Kind,
    pub(super) name: &'static str,
    /// Number of operations in a round.
    pub(super) per_round: u64,
    /// Maximum numbers of instructions, locked instructions and allocations per operation: a little above the present
    /// cost in a release build, so that any notable increase exceeds them.
    pub(super) bounds: [u32; 3],
}

impl Operation {
    const fn new(kind: Kind, name: &'static str, per_round: usize, bounds: [u32; 3]) -> Operation {
        Operation { kind, name, per_round: per_round as u64, bounds }
    }
}

/// All operations, in the order of the output. The numbers are operations per round, and the bounds.
pub(super) const OPERATIONS: [Operation; 14] = [
    Operation::new(Kind::Call, "call of 8 B, both ends", 1, [2_250, 12, 0]),
    Operation::new(Kind::Calls, "calls of 8 B, eight together", BATCH, [2_350, 9, 2]),
    Operation::new(Kind::Message, "message of 8 B, both ends", 1, [6_200, 40, 3]),
    Operation::new(Kind::DirectWrite, "write of 8 B, direct", 1, [220, 0, 0]),
    Operation::new(Kind::LongWrite, "write of 1 MiB, direct", 1, [103_000, 0, 0]),
    Operation::new(Kind::TaskRead, "read of 64 B by a task, direct", 1, [370, 0, 0]),
    Operation::new(Kind::PostedWrite, "write of 8 B, posted", 1, [3_600, 30, 0]),
    Operation::new(Kind::PostedRead, "read of 8 B, posted", 1, [3_900, 36, 0]),
    Operation::new(Kind::PostedTaskRead, "read of 64 B by a task, posted", 1, [3_900, 36, 0]),
    Operation::new(Kind::Append, "log append of 16 B", 1, [1_400, 2, 0]),
    Operation::new(Kind::AppendTogether, "log appends of 16 B, 64 together", RECORDS_PER_CALL, [310, 2, 1]),
    Operation::new(Kind::PostedAppend, "log append of 16 B, posted", 1, [11_000, 90, 0]),
    Operation::new(Kind::Get, "kv get of 64 B", 1, [1_500, 0, 0]),
    Operation::new(Kind::Set, "kv set of 64 B, both ends", 1, [16_200, 85, 17]),
];

/// A clock that advances only in [`World::step`], so that no timer expires while operations are counted.
#[derive(Default)]
struct Clock(AtomicU64);

/// Advance of the clock per step, in ns.
const STEP_NS: u64 = 100_000;

impl Env for Clock {
    fn now_ns(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn since_1970_ns(&self) -> u64 {
        1
    }

    fn random(&self) -> u64 {
        self.0.fetch_add(1, Relaxed)
    }

    fn pid(&self) -> u32 {
        std::process::id()
    }
}

type Failure = Box<dyn std::error::Error>;
/// A round of an operation.
type Work<'p> = Box<dyn FnMut() -> Result<(), Failure> + 'p>;

/// Runs all operations. This is the main function of the process that is single-stepped.
pub fn run() -> Result<(), Failure> {
    let private_dir = || tempfile::Builder::new().permissions(Mode::from_mode(0o700)).tempdir();
    let dirs = [private_dir()?, private_dir()?];
    let direct = Pair::new(dirs[0].path(), true)?;
    let posted = Pair::new(dirs[1].path(), false)?;
    let mut works: Vec<Work<'_>> = Vec::new();
    for Operation { kind, .. } in OPERATIONS {
        let mut work = match kind {
            Kind::PostedWrite | Kind::PostedRead | Kind::PostedTaskRead | Kind::PostedAppend => {
                posted.work(kind)?
            }
            _ => direct.work(kind)?,
        };
        (0..ROUNDS_BEFORE).try_for_each(|_| work())?;
        works.push(work);
    }
    // The parent attaches, and then writes a line.
    println!(
        "{:x} {:x} {:x}",
        libc::malloc as *const () as usize,
        libc::calloc as *const () as usize,
        libc::realloc as *const () as usize
    );
    io::stdout().flush()?;
    io::stdin().lock().read_line(&mut String::new())?;
    for mut work in works {
        work()?;
        mark();
        for _ in 0..ROUNDS {
            work()?;
        }
        mark();
    }
    Ok(())
}

/// Polls a future once, as an executor does. The future must be ready.
fn poll_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("an operation by loads and stores does not wait"),
    }
}

/// Makes the system call that delimits the counted part.
fn mark() {
    let _ = rustix::process::getppid();
}

/// Parses the addresses of allocation functions in the output of [`run`].
pub(super) fn parse_allocators(line: &str) -> Vec<u64> {
    line.split_whitespace().filter_map(|word| u64::from_str_radix(word, 16).ok()).collect()
}

/// Two nodes with sessions. The first node calls the second.
struct Pair {
    sessions: [Session; 2],
    server: Server,
    mailbox: Mailbox,
    lh: Lh,
    world: World,
}

/// The only shard of a store: its client and its owner.
struct Shard<'p> {
    store: Store,
    owner: Pin<Box<dyn Future<Output = Result<(), KvError>> + 'p>>,
    /// Number of times that the owner has read its clock.
    clock_reads: Rc<Cell<u32>>,
}

/// Two nodes and their clock.
struct World {
    nodes: [Driven; 2],
    clock: Arc<Clock>,
}

impl Pair {
    fn new(dir: &Path, direct: bool) -> Result<Pair, Failure> {
        let clock = Arc::<Clock>::default();
        let node = |node| node_of(dir, node, direct, &clock);
        let world = World { nodes: [node(0)?, node(1)?], clock: clock.clone() };
        let [one, other] = &world.nodes;
        world.run(one.join(&config_of(dir, 0), &[]))?;
        world.run(other.join(&config_of(dir, 1), &[format!("{}.sock", name_of(0))]))?;
        while !(one.is_connected_to(NodeId(1)) && other.is_connected_to(NodeId(0))) {
            world.step();
        }
        let sessions = [one, other].map(|node| node.session().blocking());
        let server = sessions[1].serve(FUNCTION, ServeOptions::default())?;
        let mailbox = sessions[1].open_port(PORT, ServeOptions::default())?;
        let allocating = sessions[0].as_async().alloc(None, LONG_BYTES as u64, Placement::On(NodeId(1)), ALL);
        let lh = world.run(allocating)?;
        Ok(Pair { sessions, server, mailbox, lh, world })
    }

    fn work(&self, kind: Kind) -> Result<Work<'_>, Failure> {
        let Pair { sessions: [session, _], server, mailbox, lh, .. } = self;
        let (mut output, input) = ([0; 8], [7; 8]);
        Ok(match kind {
            Kind::Call => Box::new(move || {
                let pending = session.post_call(NodeId(1), FUNCTION, &input, 8, TIMEOUT)?;
                let call = server.recv()?;
                let echoed: [u8; 8] = call.input().try_into()?;
                call.reply(&echoed)?;
                pending.answer_into(&mut output)?;
                assert_eq!(output, input);
                Ok(())
            }),
            Kind::Calls => Box::new(move || {
                let pending = session.post_calls(NodeId(1), FUNCTION, &[input; BATCH], 8, TIMEOUT);
                let mut missing = BATCH;
                while missing > 0 {
                    let calls = server.recv_many(missing)?;
                    missing -= calls.len();
                    server.reply_all(calls.into_iter().map(|call| (call, input)));
                }
                for call in pending {
                    call?.answer_into(&mut output)?;
                }
                Ok(())
            }),
            Kind::Message => Box::new(move || {
                let mut sending = pin!(session.as_async().send(NodeId(1), PORT, &input));
                let mut context = Context::from_waker(Waker::noop());
                assert!(sending.as_mut().poll(&mut context).is_pending());
                mailbox.recv()?;
                session.block_on(sending)?;
                Ok(())
            }),
            Kind::DirectWrite | Kind::PostedWrite => Box::new(move || Ok(session.write(*lh, 0, &input)?)),
            Kind::LongWrite => {
                let bytes = vec![7; LONG_BYTES];
                Box::new(move || Ok(session.write(*lh, 0, &bytes)?))
            }
            Kind::PostedRead => Box::new(move || Ok(session.read(*lh, 0, &mut output)?)),
            Kind::TaskRead => {
                let mut output = [0; VALUE.len()];
                Box::new(move || Ok(poll_once(session.as_async().read(*lh, 0, &mut output))?))
            }
            Kind::PostedTaskRead => {
                let mut output = [0; VALUE.len()];
                Box::new(move || Ok(session.block_on(session.as_async().read(*lh, 0, &mut output))?))
            }
            Kind::Append => {
                let mut writer = self.writer()?;
                Box::new(move || Ok(poll_once(writer.append(&RECORD)).map(|_| ())?))
            }
            Kind::PostedAppend => {
                let mut writer = self.writer()?;
                Box::new(move || Ok(session.block_on(writer.append(&RECORD)).map(|_| ())?))
            }
            Kind::AppendTogether => {
                let (mut writer, records) = (self.writer()?, [&RECORD[..]; RECORDS_PER_CALL]);
                let mut positions = Vec::with_capacity(RECORDS_PER_CALL);
                Box::new(move || {
                    positions.clear();
                    Ok(poll_once(writer.append_each(&records, &mut positions))?)
                })
            }
            Kind::Get => {
                let (mut shard, mut value) = (self.shard("gets")?, Vec::new());
                // The first read maps the table and the heap with the help of the other node.
                self.world.run(shard.store.get_into(KEY, &mut value))?;
                Box::new(move || {
                    assert!(poll_once(shard.store.get_into(KEY, &mut value))?);
                    Ok(())
                })
            }
            Kind::Set => {
                let mut shard = self.shard("sets")?;
                Box::new(move || self.set(&mut shard))
            }
        })
    }

    /// Creates a log with a writer, whose segment is on the other node and already mapped.
    fn writer(&self) -> Result<Writer, Failure> {
        let session = self.sessions[0].as_async();
        let options = Options { nodes: vec![NodeId(1)], ..Options::default() };
        // The clock makes the name unique.
        let name = format!("log-{}", self.world.clock.now_ns());
        let mut writer = Writer::new(self.world.run(Log::create(session, &name, &options))?, 1);
        self.world.run(writer.append(&RECORD))?;
        Ok(writer)
    }

    /// Creates a store whose only shard is on the other node.
    fn shard(&self, name: &str) -> Result<Shard<'_>, Failure> {
        let [session, theirs] = self.sessions.each_ref().map(Session::as_async);
        let none = Permissions::empty();
        let owner = self.world.run(Owner::create(theirs, name, 0, SHARD, none))?;
        let mut store = self.world.run(Store::create(session, name, &[NodeId(1)], SHARD, none))?;
        let clock_reads = Rc::new(Cell::new(0));
        let reads = clock_reads.clone();
        // The owner reads its clock once per request, and once after each batch of answers.
        let mut owner = Box::pin(owner.run(move || {
            reads.set(reads.get() + 1);
            1
        }));
        // The first write creates the first part of the heap. The client must learn its name before operations are
        // counted.
        {
            let mut setting = pin!(store.set(KEY, &VALUE, SetOptions::default()));
            self.world.run(poll_fn(|context| {
                let _ = owner.as_mut().poll(context);
                setting.as_mut().poll(context)
            }))?;
        }
        Ok(Shard { store, owner, clock_reads })
    }

    /// Sets a key of the store, and polls the store's owner meanwhile.
    fn set(&self, Shard { store, owner, clock_reads }: &mut Shard<'_>) -> Result<(), Failure> {
        let [ours, theirs] = &self.sessions;
        let mut setting = pin!(store.set(KEY, &VALUE, SetOptions::default()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(setting.as_mut().poll(&mut context).is_pending());
        clock_reads.set(0);
        theirs.block_on(poll_fn(|context| match owner.as_mut().poll(context) {
            Poll::Pending if clock_reads.get() < 2 => Poll::Pending,
            Poll::Pending => Poll::Ready(Ok(())),
            Poll::Ready(ended) => Poll::Ready(ended),
        }))?;
        assert!(ours.block_on(setting)?);
        Ok(())
    }
}

fn config_of(dir: &Path, node: u32) -> Config {
    Config { dir: dir.to_owned(), node: Some(NodeId(node)), ..Config::default() }
}

fn name_of(node: u32) -> String {
    format!("node-{node}.{}", Provider::Shm)
}

fn node_of(dir: &Path, node: u32, direct: bool, clock: &Arc<Clock>) -> Result<Driven, JoinError> {
    let open = |identity: &NodeIdentity| -> Result<Arc<dyn Fabric>, JoinError> {
        let hello = identity.hello.clone();
        let config = ShmConfig { hello, direct, ..ShmConfig::new(dir, name_of(node)) };
        Ok(ShmFabric::open(config).map_err(|error| JoinError::Fabric(Box::new(error)))?)
    };
    Driven::new(config_of(dir, node), clock.clone(), open)
}

impl World {
    fn step(&self) {
        self.clock.0.fetch_add(STEP_NS, Relaxed);
        for node in &self.nodes {
            node.step();
        }
        std::thread::yield_now();
    }

    /// Runs a future to its end, and steps the nodes meanwhile.
    fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            self.step();
        }
    }
}
