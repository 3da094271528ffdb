//! The operations that are counted: two nodes of this process, which one thread drives.

use std::fs::Permissions as Mode;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::pin;
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
use halite_fabric::Fabric;
use halite_providers::{ShmConfig, ShmFabric};

/// The system call that is made before and after what is counted, and nowhere else: `getppid`.
pub(super) const MARK: u64 = 110;
pub(super) const WORD_BYTES: usize = size_of::<u64>();
/// How often each operation is done while it is counted.
pub(super) const ROUNDS: u64 = 20;
/// How often before that: then tables have grown, and polling is in full swing.
const ROUNDS_BEFORE: u64 = 200;
const BATCH: usize = 8;

const ALL: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);
const LONG: Duration = Duration::from_secs(3600);
const FUNCTION: Function = Function(1);
const PORT: Port = Port(1);

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Call,
    Calls,
    Message,
    DirectWrite,
    PostedWrite,
    PostedRead,
}

/// What an operation may cost at most.
pub(super) struct Bound {
    pub(super) instructions: u32,
    pub(super) locked: u32,
    pub(super) allocations: u32,
}

impl Kind {
    pub(super) const ALL: [Kind; 6] =
        [Kind::Call, Kind::Calls, Kind::Message, Kind::DirectWrite, Kind::PostedWrite, Kind::PostedRead];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Call => "call of 8 B, both ends",
            Kind::Calls => "calls of 8 B, eight together",
            Kind::Message => "message of 8 B, both ends",
            Kind::DirectWrite => "write of 8 B, direct",
            Kind::PostedWrite => "write of 8 B, posted",
            Kind::PostedRead => "read of 8 B, posted",
        }
    }

    /// How many operations a round has.
    pub(super) fn operations(self) -> u64 {
        if let Kind::Calls = self { BATCH as u64 } else { 1 }
    }

    /// A little more than what the operation costs in a release build of this tree, so that none comes to cost more unseen.
    pub(super) fn bound(self) -> Bound {
        let (instructions, locked, allocations) = match self {
            Kind::Call => (2_600, 17, 1),
            Kind::Calls => (2_350, 10, 3),
            Kind::Message => (7_300, 56, 4),
            Kind::DirectWrite => (220, 0, 0),
            Kind::PostedWrite => (4_200, 30, 0),
            Kind::PostedRead => (4_450, 36, 0),
        };
        Bound { instructions, locked, allocations }
    }
}

/// Time passes only while the nodes meet: nothing falls due while operations are counted.
#[derive(Default)]
struct Clock(AtomicU64);

/// How much passes with each step of the nodes, in ns.
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

/// Does all operations, as the process that is stepped through.
pub fn run() -> Result<(), Failure> {
    let private = || tempfile::Builder::new().permissions(Mode::from_mode(0o700)).tempdir();
    let dirs = [private()?, private()?];
    let direct = Pair::new(dirs[0].path(), true)?;
    let posted = Pair::new(dirs[1].path(), false)?;
    let mut works: Vec<Box<dyn FnMut() -> Result<(), Failure> + '_>> = Vec::new();
    for kind in Kind::ALL {
        let mut work = match kind {
            Kind::PostedWrite | Kind::PostedRead => posted.work(kind),
            _ => direct.work(kind),
        };
        (0..ROUNDS_BEFORE).try_for_each(|_| work())?;
        works.push(work);
    }
    // The other end attaches, and says so.
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

fn mark() {
    let _ = rustix::process::getppid();
}

/// What [`run`] prints.
pub(super) fn parse_allocators(line: &str) -> Vec<u64> {
    line.split_whitespace().filter_map(|word| u64::from_str_radix(word, 16).ok()).collect()
}

/// Two nodes, of which the first asks the other.
struct Pair {
    sessions: [Session; 2],
    server: Server,
    mailbox: Mailbox,
    lh: Lh,
    #[expect(dead_code, reason = "its nodes live as long")]
    world: World,
}

/// Two nodes, and their clock.
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
        let allocating = sessions[0].as_async().alloc(None, 4096, Placement::On(NodeId(1)), ALL);
        let lh = world.run(allocating)?;
        Ok(Pair { sessions, server, mailbox, lh, world })
    }

    /// One round of what is counted.
    fn work(&self, kind: Kind) -> Box<dyn FnMut() -> Result<(), Failure> + '_> {
        let Pair { sessions: [session, _], server, mailbox, lh, .. } = self;
        let (mut output, input) = ([0; 8], [7; 8]);
        match kind {
            Kind::Call => Box::new(move || {
                let pending = session.post_call(NodeId(1), FUNCTION, &input, 8, LONG)?;
                let call = server.recv()?;
                let echoed: [u8; 8] = call.input().try_into()?;
                call.reply(&echoed)?;
                pending.answer_into(&mut output)?;
                assert_eq!(output, input);
                Ok(())
            }),
            Kind::Calls => Box::new(move || {
                let pending = session.post_calls(NodeId(1), FUNCTION, &[input; BATCH], 8, LONG);
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
            Kind::PostedRead => Box::new(move || Ok(session.read(*lh, 0, &mut output)?)),
        }
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

    /// Runs a future, and the nodes beside it.
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
