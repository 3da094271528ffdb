//! Scenarios of nodes that start together and dial each other at once, for many seeds.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use halite::{CallCause, Config, Driven, Function, NodeId};
use halite_sim::{HostId, Profile, RunEnd, World};

use crate::hosted::Birth;

const NODES: u32 = 3;
const FUNCTION: Function = Function(7);
const LEASE: Duration = Duration::from_millis(2);
/// Maximum time between the starts of two nodes.
const START_GAP_NS_MAX: u64 = 20_000;

/// Nodes that join within [`START_GAP_NS_MAX`].
struct StartingCluster {
    world: World,
    hosts: Vec<HostId>,
    nodes: Vec<Rc<Driven>>,
    joined: Rc<Cell<u32>>,
}

impl StartingCluster {
    fn new(profile: &str, seed: u64) -> StartingCluster {
        let profile = Profile::named(profile).expect("the profile is built in");
        // As in trials: dials time out after about two leases.
        let connect_timeout_ns = 2 * LEASE.as_nanos() as u64;
        let world = World::new(seed, Profile { connect_timeout_ns, ..profile });
        let hosts: Vec<HostId> = (0..NODES).map(|_| world.add_host()).collect();
        let mut start = StartingCluster { world, hosts, nodes: Vec::new(), joined: Rc::default() };
        for node in 0..NODES {
            let birth =
                Birth { host: start.hosts[node as usize], incarnation: 1, stream: format!("node {node}") };
            start
                .nodes
                .push(birth.of(&start.world, &config(node, LEASE)).expect("the configuration is valid").0);
        }
        (0..NODES).for_each(|node| start.join(node));
        start
    }

    fn join(&self, node: u32) {
        let (world, host, driven) =
            (self.world.clone(), self.hosts[node as usize], self.nodes[node as usize].clone());
        let delay = Duration::from_nanos(world.random(&format!("start of {node}")).below(START_GAP_NS_MAX));
        let addresses: Vec<String> =
            (0..NODES).filter(|other| *other != node).map(|other| format!("node-{other}.1")).collect();
        let joined = self.joined.clone();
        self.world.spawn(Some(host), format!("join {node}"), async move {
            world.sleep(Some(host), delay).await;
            driven.join(&config(node, LEASE), &addresses).await.expect("the first node lives");
            joined.set(joined.get() + 1);
        });
    }

    /// Runs until all nodes of `alive` have joined and can call each other, and then for a few more leases.
    fn run(&self, alive: &[u32]) {
        let connected: Rc<Cell<usize>> = Rc::default();
        for node in alive.iter().copied() {
            let (world, host, connected) = (self.world.clone(), self.hosts[node as usize], connected.clone());
            let (driven, joined, alive) =
                (self.nodes[node as usize].clone(), self.joined.clone(), alive.to_vec());
            self.world.spawn(Some(host), format!("greet all from {node}"), async move {
                while joined.get() < alive.len() as u32 {
                    world.sleep(Some(host), LEASE / 10).await;
                }
                world.sleep(Some(host), 3 * LEASE).await;
                let session = driven.session();
                session.status().await.expect("the node lives");
                for other in alive {
                    let answer = session.call(NodeId(other), FUNCTION, b"", LEASE).await;
                    assert_eq!(answer.expect_err("no node serves it").cause, CallCause::UnknownFunction);
                }
                connected.set(connected.get() + 1);
            });
        }
        let end_ns = self.world.now_ns() + 20 * LEASE.as_nanos() as u64;
        assert_eq!(self.world.run_until(end_ns), RunEnd::DeadlineReached, "nodes do not end by themselves");
        assert_eq!(connected.get(), alive.len(), "all have joined and are heard by all");
        for node in 0..NODES {
            let is_alive = alive.contains(&node);
            assert_eq!(
                self.world.has_crashed(self.hosts[node as usize]),
                !is_alive,
                "node {node} lives unless it was ended"
            );
            for other in alive.iter().filter(|other| **other != node) {
                let known = self.nodes[*other as usize].is_connected_to(NodeId(node));
                assert_eq!(known, is_alive, "as node {other} sees node {node}");
            }
        }
        self.world.end();
    }
}

pub(crate) fn config(node: u32, lease: Duration) -> Config {
    Config {
        dir: PathBuf::from("simulated"),
        node: Some(NodeId(node)),
        arena_bytes: 1 << 20,
        segment_bytes: 1 << 20,
        request_ring_bytes: 16 << 10,
        lease,
        principal: Some("ada".to_owned()),
        ..Config::default()
    }
}

/// Three profiles, which differ in how a peer is cut off: its process is killed, it is not cut off at all, or adapters
/// reject its packets.
const PROFILES: [&str; 3] = ["local", "local-torn", "rnic-100g"];

#[test]
fn nodes_that_start_together_form_one_cluster() {
    for profile in PROFILES {
        (0..100).for_each(|seed| StartingCluster::new(profile, seed).run(&[0, 1, 2]));
    }
}

#[test]
fn a_crash_during_dialling_delays_no_other_node() {
    for profile in PROFILES {
        for seed in 0..100 {
            let start = StartingCluster::new(profile, seed);
            let (world, dying) = (start.world.clone(), 1 + seed as u32 % 2);
            let host = start.hosts[dying as usize];
            let at = Duration::from_nanos(world.random("death").below(2 * START_GAP_NS_MAX));
            let first = Some(start.hosts[0]);
            start.world.spawn(first, "a death", async move {
                world.sleep(first, at).await;
                world.crash(host);
            });
            start.run(if dying == 1 { &[0, 2] } else { &[0, 1] });
        }
    }
}
