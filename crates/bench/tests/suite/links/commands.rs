//! Round trips of a command, between hosts with a long delay. They are counted by chains of dependent packets
//! ([`Network::chain`]), not by time.

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

/// Long compared with processing times. A round trip stays shorter than the 315 ms for which a new path is probed;
/// later answers to those probes grant nothing.
const DELAY: Duration = Duration::from_millis(100);
/// Long enough that no heartbeat is sent while packets are counted.
const LEASE: Duration = Duration::from_secs(60);
/// Address of the members whose hosts lose power.
const UNREACHABLE: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 3);
const UNREACHABLE_MEMBERS: u32 = 3;
const ATTEMPTS: usize = 10;

/// Runs one test at a time, because parallel tests compete for cores.
static ALONE: Mutex<()> = Mutex::new(());

/// Node 0 and some members on side 0; node 1, and the commands, on side 1.
struct World {
    zero: Option<Node>,
    one: Option<Node>,
    unreachable: Vec<Node>,
    network: Network,
    dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// Round trips since the start of a command until it has joined the cluster, has its answers, and has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Trips {
    joined: u64,
    answered: u64,
    ended: u64,
}

impl World {
    fn new() -> Option<World> {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let link = Link::new(1_000_000_000, DELAY, 10_000_000);
        let network = Network::for_test(1500, [link.clone(), link], 1)?;
        network.add_address(0, UNREACHABLE).unwrap();
        let dir = tempfile::tempdir().unwrap();
        Secret::new().unwrap().write_new(&dir.path().join("secret")).unwrap();
        let mut world = World { zero: None, one: None, unreachable: Vec::new(), network, dir, _alone };
        world.zero = Some(world.start(0, 0, Network::address(0)));
        world.one = Some(world.start(1, 1, Network::address(1)));
        Some(world)
    }

    /// Starts a node with its own cluster directory, as on a separate host.
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

    fn create_region(&self, name: &str, bytes: &[u8]) {
        let session = self.zero.as_ref().expect("node 0 runs").blocking_session();
        let region =
            session.alloc(Some(name), bytes.len() as u64, Placement::Local, Permissions::READ).unwrap();
        session.write(region, 0, bytes).unwrap();
    }

    /// Adds members, and then cuts their hosts off, while node 0 still lists them.
    fn lose_members(&mut self) {
        self.unreachable =
            (2..2 + UNREACHABLE_MEMBERS).map(|node| self.start(0, node, UNREACHABLE)).collect();
        self.network.cut_off(UNREACHABLE);
    }

    /// Runs the command on node 1's host until it takes the expected number of round trips. On a busy machine, a chain
    /// of unrelated packets may be longer than that of the command. A command that needs more round trips never takes
    /// fewer.
    #[track_caller]
    fn expect<R: Send + PartialEq + Debug>(
        &self,
        expected: (R, Trips),
        query: impl AsyncFn(&Session) -> R + Sync,
    ) {
        let mut counted = Vec::new();
        while !counted.contains(&expected) {
            assert!(counted.len() < ATTEMPTS, "expected {expected:?}, counted {counted:?}");
            counted.push(self.command(&query));
        }
    }

    fn command<R: Send>(&self, query: &(impl AsyncFn(&Session) -> R + Sync)) -> (R, Trips) {
        let config = Config { arena_bytes: 0, ..self.config(1) };
        self.network.inside(1, || {
            self.network.count_chains();
            // The awaited answer has arrived; an additional packet in the chain is unrelated.
            let trips = || self.network.chain(1) / 2;
            let command = Node::client(config).unwrap();
            let joined = trips();
            let session = command.blocking_session();
            let answer = session.block_on(query(session.as_async()));
            let answered = trips();
            drop(session);
            drop(command);
            (answer, Trips { joined, answered, ended: trips() })
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Each node leaves in the network in which its peers are reachable.
        let World { zero, one, unreachable, network, .. } = self;
        network.inside(0, || unreachable.clear());
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
fn dead_members_add_no_round_trip_to_a_command() {
    let Some(mut world) = World::new() else { return };
    world.create_region("salt", &[7; 1000]);
    // Joining: the SYN; greeting and offers within the hellos; "ready", the probe and the welcome. Then names, then
    // regions.
    let expected = Trips { joined: 3, answered: 5, ended: 5 };
    world.expect(((1, 0), expected), list);
    // Dead members add no round trip.
    world.lose_members();
    world.expect(((1, 0), expected), list);
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn a_command_reads_a_small_region_in_three_round_trips() {
    let Some(world) = World::new() else { return };
    world.create_region("salt", &[7; 500]);
    // The name; the mapping and the description; the bytes.
    let expected = Trips { joined: 3, answered: 6, ended: 6 };
    world.expect((vec![7; 500], expected), async |session: &Session| {
        let (region, info) = join(session.map("salt", Permissions::READ), session.stat("salt")).await;
        let mut bytes = vec![0; info.unwrap().len as usize];
        session.read(region.unwrap(), 0, &mut bytes).await.unwrap();
        bytes
    });
}
