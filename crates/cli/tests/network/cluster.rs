//! A cluster with a node on each host.

use serde_json::Value;

use crate::support::Running;
use crate::world::{Host, Processes, World};

/// Path of the secret file on each host.
pub const SECRET: &str = "/tmp/secret";

/// Hosts, each with one node. The host at index N runs node N.
pub struct Cluster {
    // Nodes end before their hosts.
    pub nodes: Vec<Running>,
    pub world: World,
}

impl Cluster {
    /// Creates a cluster: node 0 founds the cluster, and each other node joins through the node before it. Returns
    /// `None` if hosts cannot be created here.
    pub fn new(hosts: usize, processes: Processes) -> Option<Cluster> {
        Some(Cluster::on(World::new(hosts, processes)?))
    }

    /// Creates a cluster on existing hosts.
    pub fn on(world: World) -> Cluster {
        let hosts = world.hosts().len();
        share_secret(&world);
        let nodes = (0..hosts).map(|index| start(world.host(index), index, by(&world, index))).collect();
        Cluster { nodes, world }
    }

    pub fn host(&self, index: usize) -> &Host {
        self.world.host(index)
    }

    /// Restarts the node of a host, which joins through the node `by`.
    pub fn restart(&mut self, index: usize, by: Option<usize>) {
        let join = by.map(|by| self.host(by).address.as_str());
        self.nodes[index] = start(self.host(index), index, join);
    }

    /// Ends all processes of a host, as a power failure does. Unplugs the cable first, so that other hosts do not learn
    /// that the processes end.
    pub fn lose_power(&mut self, index: usize) {
        self.world.unplug(index);
        self.nodes[index].kill();
        self.host(index).ok("rm -rf /tmp/halite-*");
    }

    /// Returns the state of each node, as each host sees it.
    pub fn states(&self) -> Vec<Vec<String>> {
        let nodes = 0..self.nodes.len();
        let of = |host: &Host| nodes.clone().map(|node| host.state(node as u32)).collect();
        self.world.hosts().iter().map(of).collect()
    }

    pub fn is_whole(&self) -> bool {
        self.world.are_alive(self.nodes.len() as u32)
    }

    /// Returns the incarnations of the permanent nodes, as host 0 sees them.
    pub fn incarnations(&self) -> Vec<Value> {
        let nodes = self.host(0).nodes().into_iter();
        let stays = nodes.filter(|row| row["node"].as_u64() < Some(1000));
        stays.map(|row| row["incarnation"].clone()).collect()
    }

    /// Writes a file with `bytes` on a host, and puts it into a region of the same name on node `node`.
    #[track_caller]
    pub fn put(&self, host: usize, name: &str, bytes: &[u8], node: usize) {
        self.host(host).write(&format!("/tmp/{name}"), bytes);
        self.host(host).ok(&format!("halite put {name} /tmp/{name} --node {node}"));
    }

    /// Returns the contents of a region.
    #[track_caller]
    pub fn get(&self, host: usize, name: &str) -> Vec<u8> {
        self.host(host).ok(&format!("halite get {name} -o /tmp/{name}.got"));
        self.host(host).read(&format!("/tmp/{name}.got"))
    }
}

/// Creates a secret and copies it to each host.
pub fn share_secret(world: &World) {
    world.host(0).ok(&format!("halite secret new {SECRET}"));
    world.hosts()[1..].iter().for_each(|host| host.copy_secret(world.host(0), SECRET));
}

fn by(world: &World, index: usize) -> Option<&str> {
    index.checked_sub(1).map(|before| world.host(before).address.as_str())
}

/// Starts node `number` on a host; it joins through the node at the address `join`.
pub fn start(host: &Host, number: usize, join: Option<&str>) -> Running {
    host.start(&line(host, number, join), "ready")
}

/// Starts node `number` as [`start`] does, with the IPv4 and the IPv6 address of its host and these flags.
pub fn start_with_two_addresses(host: &Host, number: usize, flags: &str) -> Running {
    let listen = format!("--listen '{}:7000,[{}]:7000'", host.address, host.address_6);
    let line = format!("halite node --id {number} --arena 256M {listen} --secret-file {SECRET} {flags}");
    host.start(&line, "ready")
}

/// Returns the command that [`start`] runs.
pub fn line(host: &Host, number: usize, join: Option<&str>) -> String {
    let join = join.map(|address| format!(" --join {address}:7000")).unwrap_or_default();
    let listen = format!("--listen {}:7000 --secret-file {SECRET}", host.address);
    format!("halite node --id {number} --arena 2G {listen}{join}")
}
