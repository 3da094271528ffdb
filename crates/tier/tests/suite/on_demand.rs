//! Large clusters, whose nodes connect to the directory's node, and to others on first use.

use crate::common;

use common::{CHUNK_BYTES, Cluster, LEASE_NS};
use halite_tier::effect::{Command, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::NodeState;

fn connected(cluster: &Cluster) -> Vec<(usize, usize)> {
    let count = cluster.hosts.len();
    let pairs = (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other)));
    let is_connected =
        |one: usize, other: usize| cluster.hosts[one].engine.is_connected_to(NodeId(other as u32));
    pairs.filter(|(one, other)| is_connected(*one, *other) && is_connected(*other, *one)).collect()
}

fn spread(nodes: &[u32]) -> Placement {
    Placement::Spread(nodes.iter().copied().map(NodeId).collect())
}

fn states(cluster: &mut Cluster, host: usize) -> Vec<NodeState> {
    match cluster.command(host, Command::Status) {
        Ok(Outcome::Status(all)) => all.into_iter().map(|status| status.state).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn unused_nodes_connect_to_node_0_only() {
    let mut cluster = Cluster::on_demand(5);
    cluster.sleep(10 * LEASE_NS);
    assert_eq!(connected(&cluster), [(0, 1), (0, 2), (0, 3), (0, 4)]);
    use NodeState::{Alive, Unconnected};
    assert_eq!(states(&mut cluster, 3), [Alive, Unconnected, Unconnected, Alive, Unconnected]);
    assert_eq!(connected(&cluster).len(), 4, "status connects no nodes");
    assert_eq!(states(&mut cluster, 0), [Alive; 5]);
}

#[test]
fn mappers_connect_to_home_and_owners() {
    let mut cluster = Cluster::on_demand(6);
    let lh = cluster.alloc(1, "salt", 3 * CHUNK_BYTES, spread(&[2, 3, 4]));
    cluster.write(1, lh, 2 * CHUNK_BYTES, b"crystals");
    let theirs = cluster.map(5, "salt");
    assert_eq!(cluster.read(5, theirs, 2 * CHUNK_BYTES, 8), b"crystals");
    let used = [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (2, 5), (3, 5), (4, 5)];
    let others = connected(&cluster).into_iter().filter(|(one, _)| *one > 0);
    assert_eq!(others.collect::<Vec<_>>(), used, "only node 2 is home");
}
