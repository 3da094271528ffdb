//! Large clusters, whose nodes connect to the directory's node, and to others on first use.

use crate::common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS, allocation};
use halite_tier::access::{RegionOffset, SlotRef};
use halite_tier::effect::{Command, CommandError, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, NodeState, RegionCommand};
use halite_tier::permissions::Permissions;

const RIGHTS: Permissions = Permissions::READ.union(Permissions::WRITE);

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

fn move_to(slot: SlotRef, node: u32) -> Command {
    Command::RegionCommand(slot, RegionCommand::Move { to: NodeId(node) })
}

fn is_down(outcome: Option<Result<Outcome, CommandError>>, node: u32) -> bool {
    outcome == Some(Err(ErrorReply::PeerDown(NodeId(node)).into()))
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

#[test]
fn handles_survive_moves_to_unused_nodes() {
    let mut cluster = Cluster::on_demand(6);
    let lh = cluster.alloc(1, "salt", 3 * CHUNK_BYTES, Placement::Local);
    let theirs = cluster.map(2, "salt");
    for (to, word) in [(3, b"three"), (4, b"four!"), (5, b"five!")] {
        cluster.write(2, theirs, CHUNK_BYTES, word);
        assert_eq!(cluster.command(1, move_to(lh, to)), Ok(Outcome::Done));
        assert_eq!(cluster.read(1, lh, CHUNK_BYTES, 5), word);
        assert_eq!(cluster.read(2, theirs, CHUNK_BYTES, 5), word);
    }
}

#[test]
fn maps_during_a_move_reach_the_moved_chunk() {
    let mut cluster = Cluster::on_demand(5);
    let lh = cluster.alloc(1, "salt", 2 * CHUNK_BYTES, Placement::Local);
    cluster.write(1, lh, 0, b"crystals");
    cluster.slow_to_copy = true;
    let moved = cluster.submit(1, move_to(lh, 2));
    cluster.run();
    assert_eq!(cluster.copies_under_way(), 1, "a chunk is frozen");
    let theirs = cluster.map(3, "salt");
    assert!(connected(&cluster).contains(&(2, 3)));
    cluster.slow_to_copy = false;
    cluster.finish_copies();
    cluster.run();
    assert_eq!(cluster.outcome(1, moved), Some(Ok(Outcome::Done)));
    assert_eq!(cluster.read(3, theirs, 0, 8), b"crystals");
}

#[test]
fn copies_work_between_unmet_nodes() {
    let mut cluster = Cluster::on_demand(5);
    let from = cluster.alloc(1, "from", CHUNK_BYTES, Placement::On(NodeId(2)));
    let to = cluster.alloc(1, "to", CHUNK_BYTES, Placement::On(NodeId(3)));
    cluster.write(1, from, 0, b"crystals");
    assert!(!connected(&cluster).contains(&(2, 3)));
    let at = |slot| RegionOffset { slot, offset: 0 };
    let copied = cluster.command(1, Command::Copy { to: at(to), from: at(from), len: 8 });
    assert!(copied.is_ok(), "{copied:?}");
    assert_eq!(cluster.read(1, to, 0, 8), b"crystals");
}

#[test]
fn unreachable_members_fail_in_time_and_are_redialled() {
    let mut cluster = Cluster::on_demand(4);
    cluster.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    cluster.part(&[1], &[2]);
    let map = Command::Map { name: "salt".to_owned(), wanted: RIGHTS };
    let asked = cluster.submit(2, map.clone());
    cluster.run();
    assert!(is_down(cluster.outcome(2, asked), 1));
    cluster.cut.clear();
    let theirs = cluster.map(2, "salt");
    assert_eq!(cluster.read(2, theirs, 0, 1), [0]);
}

#[test]
fn unanswered_dials_time_out_after_a_lease() {
    let mut cluster = Cluster::on_demand(4);
    cluster.silent_dials = true;
    let asked = cluster.submit(2, allocation(None, CHUNK_BYTES, Placement::On(NodeId(1))));
    cluster.sleep(LEASE_NS / 2);
    assert!(!cluster.has_ended(2, asked));
    cluster.sleep(LEASE_NS);
    assert!(is_down(cluster.outcome(2, asked), 1));
}

#[test]
fn ends_are_announced_to_nodes_that_never_met() {
    let mut cluster = Cluster::on_demand(5);
    cluster.alloc(1, "salt", 2 * CHUNK_BYTES, spread(&[1, 2]));
    cluster.map(3, "salt");
    cluster.kill(1);
    cluster.sleep(3 * LEASE_NS);
    assert_eq!(states(&mut cluster, 4)[1], NodeState::Dead);
    assert_eq!(cluster.memory(2), (0, 0), "nothing is held for the dead");
}

#[test]
fn restarted_directories_learn_all_nodes_and_names() {
    let mut cluster = Cluster::on_demand(5);
    cluster.alloc(3, "salt", CHUNK_BYTES, Placement::Local);
    cluster.kill(0);
    cluster.sleep(2 * LEASE_NS);
    let directory = cluster.add_unmet(0, ARENA_BYTES);
    cluster.connect(directory, 1);
    cluster.sleep(3 * LEASE_NS);
    for host in 1..5 {
        assert!(cluster.hosts[host].engine.is_connected_to(NodeId(0)), "{host}");
    }
    let theirs = cluster.map(4, "salt");
    assert_eq!(cluster.read(4, theirs, 0, 1), [0]);
}
