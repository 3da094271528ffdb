//! Scenarios of nodes that join a cluster in which some members are unreachable or slow, in simulated time.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use halite::{
    CallCause, CallError, Driven, Function, NodeId, Permissions, Placement, Port, RegionCause, SendCause,
};
use halite_sim::{HostId, Profile, RunEnd, World};

use crate::dials::config;
use crate::hosted::Birth;
use crate::regressions::poll_once;

const MEMBERS: u32 = 5;
const FUNCTION: Function = Function(7);
const PORT: Port = Port(7);
const LEASE: Duration = Duration::from_millis(20);
/// Time after which a dial to an unreachable node fails.
const DIAL_TIMEOUT: Duration = Duration::from_millis(8);
/// Time far longer than a join, and far shorter than a failed dial.
const SHORT: Duration = Duration::from_millis(1);
/// Latency of a distant member.
const FAR_LATENCY: Duration = Duration::from_millis(2);

/// Five members, each with a region, and a host for a sixth node.
struct Cluster {
    world: World,
    hosts: Vec<HostId>,
    nodes: Vec<Rc<Driven>>,
}

impl Cluster {
    fn new() -> Cluster {
        let profile = Profile::named("rnic-100g").expect("the profile is built in");
        let connect_timeout_ns = DIAL_TIMEOUT.as_nanos() as u64;
        // Longer than any acknowledgement of a distant member takes.
        let retransmit_ns = 3 * FAR_LATENCY.as_nanos() as u64;
        let world = World::new(1, Profile { connect_timeout_ns, retransmit_ns, ..profile });
        let hosts: Vec<HostId> = (0..=MEMBERS).map(|_| world.add_host()).collect();
        let mut cluster = Cluster { world, hosts, nodes: Vec::new() };
        (0..MEMBERS).for_each(|node| cluster.add_node(node));
        let (world, nodes) = (cluster.world.clone(), cluster.nodes.clone());
        cluster.run_case(0, async move {
            for node in 0..MEMBERS {
                let others: Vec<String> = (0..node).map(|other| format!("node-{other}.1")).collect();
                nodes[node as usize].join(&config(node, LEASE), &others).await.expect("the first node lives");
                let session = nodes[node as usize].session();
                let name = format!("of {node}");
                let lh = session.alloc(Some(&name), 8, Placement::Local, Permissions::READ).await;
                session
                    .write(lh.expect("there is memory"), 0, name.as_bytes())
                    .await
                    .expect("the bytes are local");
            }
            world.sleep(None, LEASE).await;
        });
        cluster
    }

    fn add_node(&mut self, node: u32) {
        let birth = Birth { host: self.hosts[node as usize], incarnation: 1, stream: format!("node {node}") };
        self.nodes.push(birth.of(&self.world, &config(node, LEASE)).expect("the configuration is valid").0);
    }

    /// Runs a scenario on a host until it ends.
    fn run_case(&self, host: u32, scenario: impl Future<Output = ()> + 'static) {
        let is_over: Rc<Cell<bool>> = Rc::default();
        let (done, host) = (is_over.clone(), Some(self.hosts[host as usize]));
        self.world.spawn(host, "a story", async move {
            scenario.await;
            done.set(true);
        });
        let end_ns = self.world.now_ns() + 100 * LEASE.as_nanos() as u64;
        while !is_over.get() {
            assert!(self.world.now_ns() < end_ns, "the case does not end");
            let soon_ns = self.world.now_ns() + 1_000;
            assert_eq!(
                self.world.run_until(soon_ns),
                RunEnd::DeadlineReached,
                "nodes do not end by themselves"
            );
        }
    }

    /// Cuts all links of the hosts in `lost`.
    fn cut_off(&self, lost: &[u32]) {
        let is_lost = |host: u32| lost.contains(&host);
        let all = 0..=MEMBERS;
        for (from, to) in all.clone().flat_map(|from| all.clone().map(move |to| (from, to))) {
            if from != to && (is_lost(from) || is_lost(to)) {
                let (from, to) = (self.hosts[from as usize], self.hosts[to as usize]);
                self.world.set_link(from, to, self.world.link(from, to).down());
            }
        }
    }

    /// Lets the sixth node join through the first one; returns the time that it took.
    fn join(&mut self) -> Duration {
        self.add_node(MEMBERS);
        let began_ns = self.world.now_ns();
        let joined = self.nodes[MEMBERS as usize].clone();
        self.run_case(MEMBERS, async move {
            let first = ["node-0.1".to_owned()];
            joined.join(&config(MEMBERS, LEASE), &first).await.expect("the first node lives");
        });
        Duration::from_nanos(self.world.now_ns() - began_ns)
    }
}

/// Calls a function that is not served; that error proves that the nodes are connected.
async fn call(node: &Driven, other: u32) -> CallError {
    node.session().call(NodeId(other), FUNCTION, b"", 10 * LEASE).await.expect_err("no node serves it")
}

async fn read(node: &Driven, other: u32) -> Result<Vec<u8>, RegionCause> {
    let (session, name) = (node.session(), format!("of {other}"));
    let lh = session.map(&name, Permissions::READ).await.map_err(|error| error.cause)?;
    let mut bytes = vec![0; name.len()];
    session.read(lh, 0, &mut bytes).await.expect("the bytes are reachable");
    Ok(bytes)
}

#[test]
fn unreachable_members_delay_only_operations_that_need_them() {
    let undisturbed = Cluster::new().join();
    let mut cluster = Cluster::new();
    cluster.cut_off(&[2, 3, 4]);
    let partitioned = cluster.join();
    assert!(
        partitioned <= undisturbed && undisturbed < SHORT,
        "{partitioned:?} where three are lost, {undisturbed:?} where none is"
    );

    let (world, joined) = (cluster.world.clone(), cluster.nodes[MEMBERS as usize].clone());
    cluster.run_case(MEMBERS, async move {
        let began_ns = world.now_ns();
        for other in [0, 1] {
            assert_eq!(read(&joined, other).await, Ok(format!("of {other}").into_bytes()));
            assert_eq!(call(&joined, other).await.cause, CallCause::UnknownFunction);
        }
        assert!(world.now_ns() - began_ns < SHORT.as_nanos() as u64);
    });
}

#[test]
fn access_to_an_unreachable_member_fails_with_its_dial() {
    let mut cluster = Cluster::new();
    cluster.cut_off(&[2, 3, 4]);
    let began_ns = cluster.world.now_ns();
    cluster.join();
    let (world, joined) = (cluster.world.clone(), cluster.nodes[MEMBERS as usize].clone());
    cluster.run_case(MEMBERS, async move {
        let called = call(&joined, 2).await;
        assert_eq!((called.cause, called.may_have_run), (CallCause::NotMet, false), "it may well live");
        let waited = Duration::from_nanos(world.now_ns() - began_ns);
        assert!(waited >= DIAL_TIMEOUT && waited < LEASE, "{waited:?}");
        // All of them are known to be unreachable by now.
        let began_ns = world.now_ns();
        assert_eq!(read(&joined, 3).await, Err(RegionCause::NotMet(NodeId(3))));
        assert_eq!(call(&joined, 4).await.cause, CallCause::NotMet);
        let session = joined.session();
        let (sent, tried) =
            (session.send(NodeId(4), PORT, b"").await, session.try_send(NodeId(4), PORT, b"").await);
        for error in [sent, tried].map(|sent| sent.expect_err("node 4 is unreachable")) {
            assert_eq!((error.cause, error.may_have_arrived), (SendCause::NotMet, false));
        }
        assert!(world.now_ns() - began_ns < SHORT.as_nanos() as u64);
    });
}

/// A thread that polls often keeps the doorbell, but no other thread polls a driven node.
#[test]
fn posts_before_a_poll_complete_at_once() {
    let cluster = Cluster::new();
    let (world, node) = (cluster.world.clone(), cluster.nodes[1].clone());
    cluster.run_case(1, async move {
        let session = node.session();
        let lh = session.map("of 2", Permissions::READ).await.expect("the region exists");
        // After this number of polls, the thread would keep the doorbell.
        (0..100).for_each(|_| session.progress());
        world.sleep(None, Duration::from_micros(20)).await;
        let (began_ns, mut word) = (world.now_ns(), [0; 4]);
        let mut reading = pin!(session.read(lh, 0, &mut word));
        assert!(poll_once(reading.as_mut()).is_pending());
        session.progress();
        reading.await.expect("the region exists");
        assert!(world.now_ns() - began_ns < SHORT.as_nanos() as u64 / 10);
    });
}

/// Regression: the caller's call timed out long before its deadline.
#[test]
fn a_call_that_waits_for_a_dial_ends_with_its_node() {
    let mut cluster = Cluster::new();
    cluster.cut_off(&[2]);
    cluster.join();
    let joined = cluster.nodes[MEMBERS as usize].clone();
    cluster.run_case(MEMBERS, async move {
        let mut calling = pin!(call(&joined, 2));
        assert!(poll_once(calling.as_mut()).is_pending());
        joined.begin_to_leave();
        let called = calling.await;
        assert_eq!((called.cause, called.may_have_run), (CallCause::NodeClosed(NodeId(MEMBERS)), false));
    });
}

#[test]
fn a_distant_member_delays_only_operations_that_need_it() {
    for needs in [true, false] {
        let mut cluster = Cluster::new();
        let (here, there) = (cluster.hosts[MEMBERS as usize], cluster.hosts[4]);
        for (from, to) in [(here, there), (there, here)] {
            let latency_ns = FAR_LATENCY.as_nanos() as u64;
            let link = cluster.world.link(from, to);
            cluster.world.set_link(from, to, halite_sim::Link { latency_ns, ..link });
        }
        assert!(cluster.join() < SHORT);
        assert!(
            !cluster.nodes[MEMBERS as usize].is_connected_to(NodeId(4)),
            "the node is connected before the answer arrived"
        );
        let (world, joined) = (cluster.world.clone(), cluster.nodes[MEMBERS as usize].clone());
        cluster.run_case(MEMBERS, async move {
            let began_ns = world.now_ns();
            match needs {
                true => {
                    assert_eq!(call(&joined, 4).await.cause, CallCause::UnknownFunction);
                    assert_eq!(read(&joined, 4).await, Ok(b"of 4".to_vec()));
                    let nodes = joined.session().status().await.expect("the node lives");
                    assert_eq!(nodes.len(), 6);
                }
                false => {
                    assert_eq!(read(&joined, 3).await, Ok(b"of 3".to_vec()));
                    assert!(world.now_ns() - began_ns < SHORT.as_nanos() as u64);
                }
            }
        });
    }
}
