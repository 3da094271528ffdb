//! Incarnations that ended without their processes' knowledge: they are told, and end.

use crate::common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS};
use halite_tier::effect::{Command, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::news::{News, Over};

/// Nodes behind adapters: no node can kill another's process.
fn cluster(count: usize) -> Cluster {
    let mut cluster = Cluster::of(count);
    (cluster.kills, cluster.adapters) = (false, true);
    cluster
}

/// Whether a host has ended for that reason, and reported it.
fn has_ended(cluster: &Cluster, host: usize, by: u32) -> bool {
    let node = cluster.hosts[host].incarnation.node;
    let over = News::Over(Over { node, by: NodeId(by) });
    !cluster.hosts[host].running && cluster.hosts[host].news.contains(&over)
}

#[test]
fn stopped_nodes_with_a_successor_end_when_resumed() {
    for node in [0, 1, 2] {
        let mut cluster = cluster(3);
        cluster.stop(node as usize);
        cluster.sleep(2 * LEASE_NS);
        let successor = cluster.add(node, ARENA_BYTES);
        cluster.alloc(successor, "salt", CHUNK_BYTES, Placement::Local);
        // It takes them for silent after a lease, and after two more dials even those that would dial it.
        cluster.hosts[node as usize].running = true;
        cluster.sleep(4 * LEASE_NS);
        let others: Vec<u32> = (0..3).filter(|other| *other != node).collect();
        let by = others.iter().filter(|by| has_ended(&cluster, node as usize, **by)).count();
        assert_ne!(by, 0, "node {node}: {:?}", cluster.hosts[node as usize].news);
        // Other nodes are not affected.
        for other in others {
            let engine = &cluster.hosts[other as usize].engine;
            assert_eq!(
                engine.incarnation_of(NodeId(node)),
                Some(cluster.hosts[successor].incarnation),
                "{other}"
            );
            cluster.map(other as usize, "salt");
        }
    }
}

#[test]
fn succeeded_directories_end_after_a_partition() {
    let mut cluster = cluster(4);
    cluster.part(&[0, 1], &[2, 3]);
    cluster.sleep(2 * LEASE_NS);
    let successor = cluster.add_unmet(0, ARENA_BYTES);
    cluster.part(&[successor], &[0, 1]);
    cluster.connect(successor, 2);
    cluster.connect(successor, 3);
    cluster.sleep(2 * LEASE_NS);
    assert!(cluster.hosts[3].engine.is_connected_to(NodeId(0)));
    cluster.cut.clear();
    cluster.sleep(8 * LEASE_NS);
    assert!(has_ended(&cluster, 0, 2) || has_ended(&cluster, 0, 3), "{:?}", cluster.hosts[0].news);
    let directory = Some(cluster.hosts[successor].incarnation);
    for host in 1..4 {
        assert_eq!(cluster.hosts[host].engine.incarnation_of(NodeId(0)), directory, "host {host}");
    }
}

#[test]
fn forgotten_nodes_end_when_they_return() {
    let mut cluster = cluster(3);
    cluster.part(&[2], &[0, 1]);
    cluster.sleep(2 * LEASE_NS);
    assert_eq!(cluster.command(1, Command::ForgetNode(NodeId(2))), Ok(Outcome::Done));
    assert!(cluster.hosts[2].running);
    cluster.cut.clear();
    cluster.sleep(2 * LEASE_NS);
    assert!(has_ended(&cluster, 2, 0) || has_ended(&cluster, 2, 1), "{:?}", cluster.hosts[2].news);
}
