//! A cluster with a node on each host.

use serde_json::Value;

use crate::support::Running;
use crate::world::{Host, Processes, World};

/// Where a file with the secret lies on each host.
pub const SECRET: &str = "/tmp/secret";

/// Hosts, and a node on each, by its number.
pub struct Cluster {
    // Nodes end before their hosts.
    pub nodes: Vec<Running>,
    pub world: World,
}

impl Cluster {
    /// Node 0 founds it, and each of the others joins by the one before it.  `None` where there can be no hosts.
    pub fn new(hosts: usize, processes: Processes) -> Option<Cluster> {
        Some(Cluster::on(World::new(hosts, processes)?))
    }

    /// The same on hosts that are there.
    pub fn on(world: World) -> Cluster {
        let hosts = world.hosts().len();
        share_secret(&world);
        let nodes = (0..hosts).map(|index| start(world.host(index), index, by(&world, index))).collect();
        Cluster { nodes, world }
    }

    pub fn host(&self, index: usize) -> &Host {
        self.world.host(index)
    }

    /// Starts the node of a host again, by the node of another one.
    pub fn restart(&mut self, index: usize, by: Option<usize>) {
        let join = by.map(|by| self.host(by).address.as_str());
        self.nodes[index] = start(self.host(index), index, join);
    }

    /// First the cable, so that nothing is heard of the end of its processes, and of which nothing is left.
    pub fn lose_power(&mut self, index: usize) {
        self.world.unplug(index);
        self.nodes[index].kill();
        self.host(index).ok("rm -rf /tmp/halite-*");
    }

    /// What each host sees of each node.
    pub fn states(&self) -> Vec<Vec<String>> {
        let nodes = 0..self.nodes.len();
        let of = |host: &Host| nodes.clone().map(|node| host.state(node as u32)).collect();
        self.world.hosts().iter().map(of).collect()
    }

    pub fn is_whole(&self) -> bool {
        self.states().iter().flatten().all(|state| state == "alive")
    }

    /// The incarnations of the nodes that have a number of their own, as host 0 sees them.
    pub fn incarnations(&self) -> Vec<Value> {
        let nodes = self.host(0).nodes().into_iter();
        let stays = nodes.filter(|row| row["node"].as_u64() < Some(1000));
        stays.map(|row| row["incarnation"].clone()).collect()
    }

    /// Puts a file of such bytes under its name.
    #[track_caller]
    pub fn put(&self, host: usize, name: &str, bytes: &[u8], node: usize) {
        self.host(host).write(&format!("/tmp/{name}"), bytes);
        self.host(host).ok(&format!("halite put {name} /tmp/{name} --node {node}"));
    }

    /// What a region holds.
    #[track_caller]
    pub fn get(&self, host: usize, name: &str) -> Vec<u8> {
        self.host(host).ok(&format!("halite get {name} -o /tmp/{name}.got"));
        self.host(host).read(&format!("/tmp/{name}.got"))
    }
}

/// A secret, and each host knows it.
pub fn share_secret(world: &World) {
    world.host(0).ok(&format!("halite secret new {SECRET}"));
    world.hosts()[1..].iter().for_each(|host| host.copy_secret(world.host(0), SECRET));
}

fn by(world: &World, index: usize) -> Option<&str> {
    index.checked_sub(1).map(|before| world.host(before).address.as_str())
}

/// Starts node `number` on a host, by a node at the address `join`.
pub fn start(host: &Host, number: usize, join: Option<&str>) -> Running {
    host.start(&line(host, number, join), "ready")
}

/// The command that does so.
pub fn line(host: &Host, number: usize, join: Option<&str>) -> String {
    let join = join.map(|address| format!(" --join {address}:7000")).unwrap_or_default();
    let listen = format!("--listen {}:7000 --secret-file {SECRET}", host.address);
    format!("halite node --id {number} --arena 2G {listen}{join}")
}
