//! Nodes that join at the same time, and so dial each other at once, over shared memory.

use crate::common;

use std::os::unix::fs::DirBuilderExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use common::{Dir, Process};
use halite::{CallCause, Config, Driven, Function, JoinError, NodeId, NodeIdentity, NodeState};
use halite_fabric::Fabric;
use halite_fabric::trace::Tracer;
use halite_providers::{ShmConfig, ShmFabric};

const FUNCTION: Function = Function(7);
const PATIENCE: Duration = Duration::from_secs(30);

/// A node, and what passes through its fabric.
struct Member {
    node: Driven,
    config: Config,
    tracer: Arc<Tracer>,
}

impl Member {
    fn new(dir: &Dir, node: u32) -> Member {
        let mut tracer = None;
        let open = |identity: &NodeIdentity| -> Result<Arc<dyn Fabric>, JoinError> {
            let config =
                ShmConfig { hello: identity.hello.clone(), ..ShmConfig::new(dir.path(), &identity.name) };
            let fabric = ShmFabric::open(config).map_err(|error| JoinError::Fabric(Box::new(error)))?;
            Ok(tracer.insert(Arc::new(Tracer::new(fabric, 10_000))).clone())
        };
        let config = dir.config(node);
        let node = Driven::new(config.clone(), Process::begin(), open).unwrap();
        Member { node, config, tracer: tracer.expect("it was opened") }
    }

    /// Connections that have come about, and those that have ended.
    fn connections(&self) -> (usize, usize) {
        let said = self.tracer.dump();
        let count = |word| said.lines().filter(|line| line.contains(word)).count();
        (count(" connected"), count(" disconnected"))
    }
}

/// Moves all nodes forward until it is done.
fn step_until(members: &[Member], mut is_done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < PATIENCE, "somebody waits for ever");
        for member in members {
            member.node.step();
        }
        std::thread::yield_now();
    }
}

/// Moves all nodes forward until all futures have ended.
fn run(members: &[Member], mut futures: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    let mut context = Context::from_waker(Waker::noop());
    step_until(members, || {
        futures.retain_mut(|future| future.as_mut().poll(&mut context).is_pending());
        futures.is_empty()
    });
}

async fn join(member: &Member, nodes: u32) {
    let others = (0..nodes).filter(|node| NodeId(*node) != member.node.id());
    let addresses: Vec<String> = others.map(|node| format!("node-{node}.sock")).collect();
    member.node.join(&member.config, &addresses).await.expect("nothing goes wrong");
}

/// Commands and calls reach everybody, and answers come back.
async fn greet_all(member: &Member, nodes: u32) {
    let session = member.node.session();
    let status = session.status().await.expect("it lives");
    assert_eq!(status.len(), nodes as usize);
    assert!(status.iter().all(|node| node.state == NodeState::Alive), "{status:?}");
    for node in (0..nodes).map(NodeId) {
        let refused = session.call(node, FUNCTION, b"", PATIENCE).await.expect_err("nobody serves it");
        assert_eq!(refused.cause, CallCause::UnknownFunction);
    }
}

#[test]
fn nodes_that_join_at_the_same_time_are_one_cluster_with_one_connection_for_each_pair() {
    for (nodes, first) in [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)] {
        let dir = Dir::new();
        std::fs::DirBuilder::new().mode(0o700).create(dir.path()).unwrap();
        let mut members: Vec<Member> = (0..nodes).map(|node| Member::new(&dir, node)).collect();
        members.rotate_left(first);
        run(&members, members.iter().map(|member| Box::pin(join(member, nodes)) as _).collect());
        run(&members, members.iter().map(|member| Box::pin(greet_all(member, nodes)) as _).collect());
        let is_single = |member: &Member| {
            let (begun, ended) = member.connections();
            begun - ended == nodes as usize - 1
        };
        step_until(&members, || members.iter().all(is_single));
        let everybody = (0..nodes).map(NodeId);
        for (member, node) in
            members.iter().flat_map(|member| everybody.clone().map(move |node| (member, node)))
        {
            assert!(node == member.node.id() || member.node.is_connected_to(node));
        }
    }
}
