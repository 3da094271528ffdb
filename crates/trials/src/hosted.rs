//! Nodes on hosts of a simulated world.

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use halite::{Config, Driven, Env, JoinError, NodeId, Step};
use halite_fabric::Fabric;
use halite_sim::{HostClock, HostId, Random, SimFabric, World};

use crate::futures::before;

/// Start time of all worlds, in ns since 1970, in the year 2023.
const BEGIN_SINCE_1970_NS: u64 = 1_700_000_000_000_000_000;

/// Parameters of a node's start.
pub struct Birth {
    /// Host of the node. The host must be running.
    pub host: HostId,
    /// Number of the incarnation; makes the node's address unique.
    pub incarnation: u32,
    /// Name of the node's stream of random numbers.
    pub stream: String,
}

impl Birth {
    /// Starts a node with a fabric that finds the other nodes, and drives the node while its host runs. When this
    /// returns, the node has not joined yet.
    pub fn of(&self, world: &World, config: &Config) -> Result<(Rc<Driven>, Arc<SimFabric>), JoinError> {
        let mut fabric = None;
        let clock = world.clock(self.host);
        let node = config.node.map_or(0, |node| node.0);
        let address = format!("node-{node}.{}", self.incarnation);
        let env = SimEnv {
            clock_since_1970_ns: BEGIN_SINCE_1970_NS + world.now_ns() - clock.now_ns(),
            clock,
            random: Mutex::new(world.random(&self.stream)),
            node,
            address: address.clone(),
        };
        let driven = Driven::new(config.clone(), Arc::new(env), |identity| {
            assert!(address.starts_with(&identity.name), "other nodes dial it by its name");
            let opened = world.fabric(self.host, &address, identity.hello.clone());
            fabric = Some(opened.clone());
            Ok(opened)
        })?;
        let (driven, fabric) = (Rc::new(driven), fabric.expect("the store is open"));
        let drive = drive(world.clone(), self.host, fabric.clone(), driven.clone());
        world.spawn(Some(self.host), format!("progress {node}"), drive);
        Ok((driven, fabric))
    }

    /// Returns the pid of a node's process.
    pub fn pid(node: NodeId) -> u32 {
        node.0 + 1
    }
}

/// Drives a node until it has left.
async fn drive(world: World, host: HostId, fabric: Arc<SimFabric>, driven: Rc<Driven>) {
    let clock = world.clock(host);
    loop {
        let seen = fabric.doorbell();
        match driven.step() {
            Step::Next(due_ns) => drop(before(clock.sleep_until(due_ns), fabric.rung(seen)).await),
            Step::Left => return,
        }
    }
}

/// The environment of a simulated node.
struct SimEnv {
    clock: HostClock,
    /// Time at which the node's clock was 0, in ns since 1970.
    clock_since_1970_ns: u64,
    random: Mutex<Random>,
    node: u32,
    address: String,
}

impl Env for SimEnv {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn since_1970_ns(&self) -> u64 {
        self.clock_since_1970_ns + self.now_ns()
    }

    fn random(&self) -> u64 {
        self.random.lock().expect("drawing does not panic").bits()
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn pid(&self) -> u32 {
        Birth::pid(NodeId(self.node))
    }
}
