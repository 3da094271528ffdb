//! Nodes of several hosts that hear of each other by etcd, without node 0: where there is no etcd, these say so and do nothing, unless
//! `HALITE_NEEDS_ETCD` is set, as where changes are checked.

use crate::support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;

use halite::{Config, Hosts, Node, NodeId, NodeState, Permissions, Placement};
use support::etcd::Etcd;
use support::{Scratch, eventually};

const ANYBODY: Permissions = Permissions::READ.union(Permissions::WRITE);

/// Hosts that share an etcd and a secret, each with a cluster directory of its own.
struct Hosting {
    scratch: Scratch,
    etcd: Etcd,
    secret: PathBuf,
    full_mesh_nodes_max: usize,
}

impl Hosting {
    /// `None` where there is no etcd.
    fn new(name: &str) -> Option<Hosting> {
        let scratch = Scratch::new(name);
        let etcd = Etcd::start(&scratch)?;
        let secret = scratch.file("secret");
        scratch.ok(&format!("secret new {}", secret.display()));
        Some(Hosting { scratch, etcd, secret, full_mesh_nodes_max: 64 })
    }

    /// A node on a host of its own, which is told of no other.
    fn node(&self, id: u32) -> Node {
        self.node_at(id, "hosts")
    }

    /// The same, which is listed below that prefix.
    fn node_at(&self, id: u32, prefix: &str) -> Node {
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let hosts = Hosts { listen, join: Vec::new(), secret_file: self.secret.clone() };
        Node::embedded(Config {
            dir: self.scratch.file(&format!("host-{id}")),
            node: Some(NodeId(id)),
            arena_bytes: 64 << 20,
            hosts: Some(hosts),
            directory: Some(self.etcd.address(prefix).parse().unwrap()),
            full_mesh_nodes_max: self.full_mesh_nodes_max,
            ..Config::default()
        })
        .unwrap()
    }

    fn listed(&self) -> String {
        self.etcd.ctl(&["get", "--prefix", "/hosts/members/"])
    }

    /// Writes by hand where a member is.
    fn list(&self, id: u32, address: &str) {
        self.etcd.ctl(&["put", &format!("/hosts/members/{id}"), address]);
    }

    fn strike(&self, id: u32) {
        self.etcd.ctl(&["del", &format!("/hosts/members/{id}")]);
    }

    /// A member of a cluster that only those can find who hear of it by what is listed by hand.
    fn hidden(&self, id: u32) -> Node {
        self.node_at(id, "hidden")
    }

    /// How many requests of a kind etcd has been sent.
    fn requests(&self, method: &str) -> u64 {
        let mut etcd = TcpStream::connect(("127.0.0.1", self.etcd.port)).unwrap();
        etcd.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        etcd.read_to_string(&mut text).unwrap();
        let is_count = |line: &&str| {
            line.starts_with("grpc_server_started_total") && line.contains(&format!("\"{method}\""))
        };
        let count = text.lines().find(is_count).and_then(|line| line.rsplit(' ').next()?.parse().ok());
        count.unwrap_or(0)
    }
}

fn state(node: &Node, other: u32) -> Option<NodeState> {
    let nodes = node.blocking_session().status().unwrap();
    nodes.iter().find(|status| status.node == NodeId(other)).map(|status| status.state)
}

fn address(node: &Node) -> String {
    node.address().unwrap().to_string()
}

/// Whether a region comes about on the one by way of the other.
fn uses(node: &Node, other: u32) -> bool {
    let session = node.blocking_session();
    let made = session.alloc(None, 4096, Placement::On(NodeId(other)), ANYBODY);
    made.is_ok_and(|lh| session.write(lh, 0, b"words").is_ok())
}

#[test]
fn nodes_that_join_at_once_find_each_other_without_node_0() {
    let Some(hosting) = Hosting::new("members-at-once") else { return };
    let nodes: Vec<Node> = std::thread::scope(|scope| {
        let joining: Vec<_> = (1..=5)
            .map(|id| {
                scope.spawn({
                    let hosting = &hosting;
                    move || hosting.node(id)
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
fn a_member_that_is_listed_is_dialled_by_all_who_hear_of_it_and_nobody_asks_again() {
    let Some(hosting) = Hosting::new("members-pushed") else { return };
    let nodes = [1, 2].map(|id| hosting.node(id));
    let hidden = hosting.hidden(7);
    eventually(|| hosting.requests("Watch") == 3);
    let asked = ["Watch", "Range"].map(|method| hosting.requests(method));
    hosting.list(7, &address(&hidden));
    for node in &nodes {
        eventually(|| state(node, 7) == Some(NodeState::Alive));
        assert!(uses(node, 7));
    }
    for round in 0..20 {
        hosting.list(9, &format!("127.0.0.1:{}", 1 + round));
        hosting.strike(9);
    }
    assert!(nodes.iter().all(|node| uses(node, 7)));
    assert_eq!(["Watch", "Range"].map(|method| hosting.requests(method)), asked, "all was told unasked");
}

#[test]
fn members_of_a_large_cluster_that_come_while_node_0_is_away_are_known_and_used() {
    let Some(mut hosting) = Hosting::new("members-large") else { return };
    hosting.full_mesh_nodes_max = 3;
    let mut nodes: Vec<Node> = (0..=5).map(|id| hosting.node(id)).collect();
    let first = nodes.remove(0);
    first.leave();
    eventually(|| !hosting.listed().contains("/hosts/members/0\n"));
    // It dials the first three.
    let late = hosting.node(9);
    let fifth = &nodes[4];
    eventually(|| state(fifth, 9) == Some(NodeState::Unconnected));
    assert!(uses(fifth, 9), "it is connected when it is used");
    assert_eq!(state(fifth, 9), Some(NodeState::Alive));
    // Whose word has gone is missed, also by who was never connected to it.
    assert_eq!(state(&nodes[3], 9), Some(NodeState::Unconnected));
    late.leave();
    eventually(|| state(&nodes[3], 9).is_none());
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn members_are_heard_of_again_when_an_etcd_that_was_killed_is_back() {
    let Some(mut hosting) = Hosting::new("members-killed") else { return };
    let nodes = [1, 2].map(|id| hosting.node(id));
    let hidden = hosting.hidden(7);
    eventually(|| uses(&nodes[0], 2));
    for _ in 0..2 {
        hosting.etcd.kill();
        assert!(uses(&nodes[0], 2), "who is there is not for etcd to say");
        hosting.etcd.run();
    }
    eventually(|| hosting.etcd.try_ctl(&["put", "/hosts/members/7", &address(&hidden)]));
    eventually(|| nodes.iter().all(|node| state(node, 7) == Some(NodeState::Alive)));
    // Another etcd with nothing in it, as after a backup that was too old: each says again where it is.
    hosting.etcd.forget_all();
    eventually(|| [1, 2].iter().all(|id| hosting.listed().contains(&format!("/hosts/members/{id}\n"))));
    assert!(uses(&nodes[0], 2) && uses(&nodes[1], 7));
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn an_etcd_that_forgets_old_revisions_again_and_again_tells_all_members() {
    let Some(mut hosting) = Hosting::new("members-compacted") else { return };
    let nodes = [1, 2].map(|id| hosting.node(id));
    let hidden = hosting.hidden(7);
    let compact = |hosting: &Hosting| {
        hosting.list(9, "127.0.0.1:1");
        let said = hosting.etcd.ctl(&["put", "/hosts/other", "x", "-w", "json"]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        hosting.etcd.ctl(&["compact", &said["header"]["revision"].to_string(), "--physical"]);
    };
    for _ in 0..5 {
        compact(&hosting);
    }
    hosting.etcd.kill();
    hosting.etcd.run();
    eventually(|| hosting.etcd.try_ctl(&["get", "/hosts/other"]));
    for _ in 0..20 {
        compact(&hosting);
    }
    hosting.list(7, &address(&hidden));
    eventually(|| nodes.iter().all(|node| state(node, 7) == Some(NodeState::Alive)));
    hosting.strike(9);
    eventually(|| nodes.iter().all(|node| state(node, 9).is_none()));
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_member_that_somebody_has_written_by_hand_harms_nobody_and_one_that_was_removed_is_back() {
    let Some(hosting) = Hosting::new("members-edited") else { return };
    let nodes = [1, 2].map(|id| hosting.node(id));
    eventually(|| [1, 2].iter().all(|id| hosting.listed().contains(&format!("/hosts/members/{id}\n"))));
    let word = hosting.listed();
    // It takes connections, and says nothing.
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
        // Where node 1 is, and somebody else says to be.
        ("members/7", &address(&nodes[0])),
    ] {
        hosting.etcd.ctl(&["put", &format!("/hosts/{key}"), value]);
    }
    for id in [6, 7, 8] {
        eventually(|| matches!(state(&nodes[1], id), Some(NodeState::Unconnected | NodeState::Silent)));
    }
    for id in [3, 4, 5, 11, 12] {
        assert_eq!(state(&nodes[1], id), None);
    }
    // Of themselves: what they say is written again.
    hosting.list(1, "127.0.0.1:1");
    hosting.strike(2);
    eventually(|| word.lines().all(|line| hosting.listed().contains(line)));
    let place = || hosting.etcd.ctl(&["get", "/hosts/places/2"]);
    let before = place();
    hosting.etcd.ctl(&["del", "/hosts/places/2"]);
    eventually(|| place() == before);
    assert!(uses(&nodes[0], 2) && uses(&nodes[1], 1));
    assert!(!uses(&nodes[0], 7) && !uses(&nodes[0], 6) && !uses(&nodes[0], 3));
    assert_eq!(state(&nodes[1], 1), Some(NodeState::Alive));
    // Who comes dials those who are there, unless another cluster seems to be.
    hosting.etcd.ctl(&["del", "/hosts/places/12"]);
    let late = hosting.node(10);
    assert!(uses(&late, 1) && uses(&late, 2));
}
