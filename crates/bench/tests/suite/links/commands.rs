//! How many round trips a command waits for, between hosts that are far from each other.
//!
//! They are counted by the packets that wait for each other ([`Network::chain`]), and not by time.

use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use halite::{Config, Hosts, Node, NodeId, Permissions, Placement, Session};
use halite_bench::links::link::Link;
use halite_bench::links::network::Network;
use halite_providers::secure::Secret;
use tempfile::TempDir;

/// Long beside what a processor takes; a round trip is shorter than the 315 ms for which the first probes of a path are sent, behind which their answers grant nothing.
const DELAY: Duration = Duration::from_millis(100);
/// No heartbeat falls into what is counted.
const LEASE: Duration = Duration::from_secs(60);
/// Where the members are whose hosts lose power.
const DARK: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 3);
const DARK_MEMBERS: u32 = 3;
const ATTEMPTS: usize = 10;

/// One test at a time: else they keep the processors from each other.
static ALONE: Mutex<()> = Mutex::new(());

/// Node 0 and some members are on one side, and node 1 is on the other, where commands are given.
struct World {
    zero: Option<Node>,
    one: Option<Node>,
    dark: Vec<Node>,
    network: Network,
    dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// How many round trips have been waited for when a command is part of the cluster, has its answers, and is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Trips {
    joined: u64,
    answered: u64,
    over: u64,
}

impl World {
    fn new() -> Option<World> {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let link = Link::new(1_000_000_000, DELAY, 10_000_000);
        let network = Network::for_test(1500, [link.clone(), link], 1)?;
        network.add_address(0, DARK).unwrap();
        let dir = tempfile::tempdir().unwrap();
        Secret::new().unwrap().write_new(&dir.path().join("secret")).unwrap();
        let mut world = World { zero: None, one: None, dark: Vec::new(), network, dir, _alone };
        world.zero = Some(world.start(0, 0, Network::address(0)));
        world.one = Some(world.start(1, 1, Network::address(1)));
        Some(world)
    }

    /// Each node has a cluster directory of its own, as on a host of its own.
    fn start(&self, side: usize, node: u32, address: Ipv4Addr) -> Node {
        let join = self.zero.iter().filter_map(Node::address).collect();
        let listen = vec![SocketAddr::from((address, 0))];
        let hosts = Some(Hosts { listen, join, secret_file: self.dir.path().join("secret") });
        let config = Config { node: Some(NodeId(node)), arena_bytes: 1 << 20, hosts, ..self.config(node) };
        self.network.inside(side, || Node::embedded(config)).unwrap()
    }

    fn config(&self, node: u32) -> Config {
        let dir = self.dir.path().join(node.to_string());
        Config { dir, segment_bytes: 1 << 20, chunk_bytes: 1 << 16, lease: LEASE, ..Config::default() }
    }

    /// A region at node 0.
    fn make(&self, name: &str, bytes: &[u8]) {
        let session = self.zero.as_ref().expect("it is there").blocking_session();
        let region =
            session.alloc(Some(name), bytes.len() as u64, Placement::Local, Permissions::READ).unwrap();
        session.write(region, 0, bytes).unwrap();
    }

    /// Members join whose hosts lose power then, and of which node 0 goes on to hear.
    fn lose_members(&mut self) {
        self.dark = (2..2 + DARK_MEMBERS).map(|node| self.start(0, node, DARK)).collect();
        self.network.cut_off(DARK);
    }

    /// Gives commands that ask by the host of node 1 until one waits for no more than expected: on a busy machine, a chain of packets that nobody waits for may
    /// outrun those of a command.  Of one that waits for more, no attempt has fewer.
    #[track_caller]
    fn expect<R: Send + PartialEq + Debug>(
        &self,
        expected: (R, Trips),
        ask: impl AsyncFn(&Session) -> R + Sync,
    ) {
        let mut counted = Vec::new();
        while !counted.contains(&expected) {
            assert!(counted.len() < ATTEMPTS, "{expected:?} is expected, {counted:?} was counted");
            counted.push(self.command(&ask));
        }
    }

    fn command<R: Send>(&self, ask: &(impl AsyncFn(&Session) -> R + Sync)) -> (R, Trips) {
        let config = Config { arena_bytes: 0, ..self.config(1) };
        self.network.inside(1, || {
            self.network.count_chains();
            // What is waited for has come back: a packet more is one that nobody waits for.
            let trips = || self.network.chain(1) / 2;
            let command = Node::client(config).unwrap();
            let joined = trips();
            let session = command.blocking_session();
            let answer = session.block_on(ask(session.as_async()));
            let answered = trips();
            drop(session);
            drop(command);
            (answer, Trips { joined, answered, over: trips() })
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Each says its last words where others hear them.
        let World { zero, one, dark, network, .. } = self;
        network.inside(0, || dark.clear());
        network.inside(1, || drop(one.take()));
        network.inside(0, || drop(zero.take()));
    }
}

async fn list(session: &Session) -> (usize, usize) {
    let (regions, lost) = join(session.list_all(), session.list_lost()).await;
    (regions.unwrap().regions.len(), lost.unwrap().len())
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn a_command_waits_for_few_round_trips_however_many_members_are_dead() {
    let Some(mut world) = World::new() else { return };
    world.make("salt", &[7; 1000]);
    // SYN; greeting and offers, within the hellos; "ready" and the probe, and the welcome.  Names; regions.
    let expected = Trips { joined: 3, answered: 5, over: 5 };
    world.expect(((1, 0), expected), list);
    // Members that are dead add none.
    world.lose_members();
    world.expect(((1, 0), expected), list);
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn a_region_of_a_few_bytes_is_there_three_round_trips_after_the_command() {
    let Some(world) = World::new() else { return };
    world.make("salt", &[7; 500]);
    // The name; its mapping and what it is; its bytes.
    let expected = Trips { joined: 3, answered: 6, over: 6 };
    world.expect((vec![7; 500], expected), async |session: &Session| {
        let (region, info) = join(session.map("salt", Permissions::READ), session.stat("salt")).await;
        let mut bytes = vec![0; info.unwrap().len as usize];
        session.read(region.unwrap(), 0, &mut bytes).await.unwrap();
        bytes
    });
}
