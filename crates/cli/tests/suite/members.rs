//! Nodes of several hosts that find each other through etcd, without node 0: where etcd is not installed, these tests
//! are skipped, or fail if `HALITE_NEEDS_ETCD` is set, as in the gate.

use crate::support;

use std::net::TcpListener;
use std::path::PathBuf;

use halite::{Config, Hosts, Node, NodeId, NodeState, Placement};
use support::etcd::Etcd;
use support::{READ_WRITE, Scratch, eventually};

/// Hosts that share an etcd and a secret, each with its own cluster directory.
struct HostsWithEtcd {
    scratch: Scratch,
    etcd: Etcd,
    secret: PathBuf,
}

impl HostsWithEtcd {
    /// Returns `None` where etcd is not installed.
    fn new(name: &str) -> Option<HostsWithEtcd> {
        let scratch = Scratch::new(name);
        let etcd = Etcd::start()?;
        let secret = scratch.file("secret");
        scratch.ok(&format!("secret new {}", secret.display()));
        Some(HostsWithEtcd { scratch, etcd, secret })
    }

    /// Starts a node on a new host, without the address of another node.
    fn node(&self, id: u32) -> Node {
        self.node_at(id, "hosts")
    }

    /// Starts a node that is listed below this prefix.
    fn node_at(&self, id: u32, prefix: &str) -> Node {
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let hosts = Hosts { listen, join: Vec::new(), secret_file: self.secret.clone() };
        Node::embedded(Config {
            dir: self.scratch.file(&format!("host-{id}")),
            node: Some(NodeId(id)),
            arena_bytes: 64 << 20,
            hosts: Some(hosts),
            directory: Some(self.etcd.address(prefix).parse().unwrap()),
            ..Config::default()
        })
        .unwrap()
    }

    fn entries(&self) -> String {
        self.etcd.ctl(&["get", "--prefix", "/hosts/members/"])
    }

    /// Overwrites the address of a member in etcd.
    fn set_entry(&self, id: u32, address: &str) {
        self.etcd.ctl(&["put", &format!("/hosts/members/{id}"), address]);
    }

    fn remove_entry(&self, id: u32) {
        self.etcd.ctl(&["del", &format!("/hosts/members/{id}")]);
    }

    /// Starts a member of the cluster that other members find only through entries written by this test.
    fn hidden(&self, id: u32) -> Node {
        self.node_at(id, "hidden")
    }
}

fn state(node: &Node, other: u32) -> Option<NodeState> {
    let nodes = node.blocking_session().status().unwrap();
    nodes.iter().find(|status| status.node == NodeId(other)).map(|status| status.state)
}

fn address(node: &Node) -> String {
    node.address().unwrap().to_string()
}

/// Returns true if `node` can create a region on the node `other`.
fn uses(node: &Node, other: u32) -> bool {
    let session = node.blocking_session();
    let made = session.alloc(None, 4096, Placement::On(NodeId(other)), READ_WRITE);
    made.is_ok_and(|lh| session.write(lh, 0, b"words").is_ok())
}

#[test]
fn concurrent_joins_need_no_node_0() {
    let Some(hosts) = HostsWithEtcd::new("members-at-once") else { return };
    let nodes: Vec<Node> = std::thread::scope(|scope| {
        let joining: Vec<_> = (1..=5)
            .map(|id| {
                scope.spawn({
                    let hosts = &hosts;
                    move || hosts.node(id)
                })
            })
            .collect();
        joining.into_iter().map(|node| node.join().unwrap()).collect()
    });
    for node in &nodes {
        for other in 1..=5 {
            eventually(|| state(node, other) == Some(NodeState::Alive));
        }
    }
    assert!(uses(&nodes[0], 5) && uses(&nodes[4], 1));
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn members_reconnect_after_an_etcd_loss() {
    let Some(mut hosts) = HostsWithEtcd::new("members-killed") else { return };
    let nodes = [1, 2].map(|id| hosts.node(id));
    let hidden = hosts.hidden(7);
    eventually(|| uses(&nodes[0], 2));
    for _ in 0..2 {
        hosts.etcd.kill();
        assert!(uses(&nodes[0], 2), "nodes stay connected without etcd");
        hosts.etcd.run();
    }
    eventually(|| hosts.etcd.try_ctl(&["put", "/hosts/members/7", &address(&hidden)]));
    eventually(|| nodes.iter().all(|node| state(node, 7) == Some(NodeState::Alive)));
    // An empty etcd at the same address, as after the restore of an old backup: each node writes its address again.
    hosts.etcd.forget_all();
    eventually(|| [1, 2].iter().all(|id| hosts.entries().contains(&format!("/hosts/members/{id}\n"))));
    assert!(uses(&nodes[0], 2) && uses(&nodes[1], 7));
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn invalid_member_entries_are_ignored() {
    let Some(hosts) = HostsWithEtcd::new("members-edited") else { return };
    let nodes = [1, 2].map(|id| hosts.node(id));
    eventually(|| [1, 2].iter().all(|id| hosts.entries().contains(&format!("/hosts/members/{id}\n"))));
    let word = hosts.entries();
    // It accepts connections and does not answer.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = mute.local_addr().unwrap().to_string();
    let long = "9".repeat(100_000);
    for (key, value) in [
        ("members/3", "hello"),
        ("members/4", "../node.sock"),
        ("members/5", ""),
        ("members/6", &mute),
        ("members/8", "127.0.0.1:1"),
        ("members/x", "127.0.0.1:1"),
        ("members/", "127.0.0.1:1"),
        ("members/1000", "127.0.0.1:1"),
        ("members/01", "127.0.0.1:1"),
        ("members/11", &long),
        ("places/x", "hello"),
        ("places/12", "another cluster"),
        // The address of node 1, which another entry claims too.
        ("members/7", &address(&nodes[0])),
    ] {
        hosts.etcd.ctl(&["put", &format!("/hosts/{key}"), value]);
    }
    for id in [6, 7, 8] {
        eventually(|| matches!(state(&nodes[1], id), Some(NodeState::Unconnected | NodeState::Silent)));
    }
    for id in [3, 4, 5, 11, 12] {
        assert_eq!(state(&nodes[1], id), None);
    }
    // Entries of the nodes themselves: each node writes its own entry again.
    hosts.set_entry(1, "127.0.0.1:1");
    hosts.remove_entry(2);
    eventually(|| word.lines().all(|line| hosts.entries().contains(line)));
    let place = || hosts.etcd.ctl(&["get", "/hosts/places/2"]);
    let before = place();
    hosts.etcd.ctl(&["del", "/hosts/places/2"]);
    eventually(|| place() == before);
    assert!(uses(&nodes[0], 2) && uses(&nodes[1], 1));
    assert!(!uses(&nodes[0], 7) && !uses(&nodes[0], 6) && !uses(&nodes[0], 3));
    assert_eq!(state(&nodes[1], 1), Some(NodeState::Alive));
    // A new node dials the listed members, unless an entry seems to belong to another cluster.
    hosts.etcd.ctl(&["del", "/hosts/places/12"]);
    let late = hosts.node(10);
    assert!(uses(&late, 1) && uses(&late, 2));
}
