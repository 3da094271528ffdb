//! A cluster of two nodes without faults.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use halite::{Config, Driven, Function, NodeId, Port, ServeOptions, Session};
use halite_sim::{HostId, World};

use crate::hosted::Birth;

/// Answer to all calls.
const ANSWER: [u8; 8] = [7; 8];
/// Function and port of node 1.
pub(super) const FUNCTION: Function = Function(1);
pub(super) const PORT: Port = Port(1);

/// Node 0, which runs the sessions, and node 1, which serves their calls.
pub(crate) struct Cluster {
    pub(super) world: World,
    hosts: [HostId; 2],
    nodes: [Rc<Driven>; 2],
}

impl Cluster {
    pub(crate) async fn start(world: &World) -> Cluster {
        let hosts = [world.add_host(), world.add_host()];
        let nodes = [start(world, hosts[0], 0).await, start(world, hosts[1], 1).await];
        let cluster = Cluster { world: world.clone(), hosts, nodes };
        cluster.serve(hosts[1]);
        cluster
    }

    pub(crate) fn host(&self, node: usize) -> HostId {
        self.hosts[node]
    }

    pub(crate) fn session(&self, node: usize) -> Session {
        self.nodes[node].session()
    }

    fn serve(&self, host: HostId) {
        let session = self.session(1);
        let server = session.serve(FUNCTION, ServeOptions::default()).expect("no other session serves it");
        let mailbox = session.open_port(PORT, ServeOptions::default()).expect("no other session has it");
        self.world.spawn(Some(host), "server", async move {
            while let Ok(call) = server.recv().await {
                call.reply(&ANSWER).expect("its caller waits");
            }
        });
        self.world.spawn(Some(host), "mailbox", async move { while mailbox.recv().await.is_ok() {} });
    }
}

async fn start(world: &World, host: HostId, number: u32) -> Rc<Driven> {
    let birth = Birth { host, incarnation: 1, stream: format!("node {number}") };
    let config = config(number);
    let (driven, fabric) = birth.of(world, &config).expect("the configuration is valid");
    driven.join(&config, &fabric.discover()).await.expect("no fault is injected");
    driven
}

/// Returns the default configuration, with less memory.
fn config(number: u32) -> Config {
    Config {
        dir: PathBuf::from("simulated"),
        node: Some(NodeId(number)),
        arena_bytes: 128 << 20,
        principal: Some("ada".to_owned()),
        ..Config::default()
    }
}

/// Sleeps for the interval at which the end of an operation is polled.
pub(super) async fn pause(world: &World) {
    world.sleep(None, Duration::from_micros(1)).await;
}
