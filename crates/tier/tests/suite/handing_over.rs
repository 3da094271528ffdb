//! Stories of regions that are handed over while words are lost: what their homes, former and next, know of them and of who maps them.

use crate::common;

use common::{CHUNK_BYTES, Cluster, LEASE_NS, allocation, slot};
use halite_tier::access::SlotRef;
use halite_tier::effect::{Command, OpId, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, RegionCommand};
use halite_tier::permissions::Permissions;

fn move_to(lh: SlotRef, node: u32) -> Command {
    Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(node) })
}

/// Node 2 has taken a region of node 1, and the words of that are still under way on these wires.
fn taken_unheard(cluster: &mut Cluster, giver: usize, lh: SlotRef, held: &[(usize, usize)]) -> OpId {
    cluster.slow_to_copy = true;
    let moving = cluster.submit(giver, move_to(lh, 2));
    cluster.run();
    assert_eq!(cluster.copies_under_way(), 1);
    cluster.slow_to_copy = false;
    cluster.held = vec![(1, 2)];
    cluster.finish_copies();
    cluster.run();
    cluster.held = held.to_vec();
    cluster.run();
    moving
}

#[test]
fn a_region_comes_back_to_a_former_home_that_has_yet_to_hear_that_it_was_taken() {
    let mut cluster = Cluster::of(4);
    cluster.adapters = true;
    let lh = cluster.alloc(0, "salt", CHUNK_BYTES, Placement::On(NodeId(1)));
    cluster.write(0, lh, 0, b"crystals");
    let moving = taken_unheard(&mut cluster, 0, lh, &[(2, 1)]);
    cluster.part(&[1], &[2]);
    cluster.disconnect(1, 2);
    cluster.held.clear();
    cluster.run();
    assert_eq!(cluster.outcome(0, moving), Some(Err(ErrorReply::PeerDown(NodeId(2)).into())), "in doubt");
    assert_eq!(cluster.command(0, move_to(lh, 3)), Ok(Outcome::Done));
    assert_eq!(cluster.command(0, move_to(lh, 1)), Ok(Outcome::Done));
    assert_eq!(cluster.read(0, lh, 0, 8), b"crystals");
    // What is said of the first move, late, changes nothing.
    cluster.cut.clear();
    cluster.sleep(2 * LEASE_NS);
    let theirs = cluster.map(3, "salt");
    cluster.write(3, theirs, 0, b"granules");
    assert_eq!(cluster.read(0, lh, 0, 8), b"granules");
    assert_eq!(cluster.extents(3, theirs)[0].owner.node, NodeId(1));
    assert_eq!((cluster.memory(2).0, cluster.memory(3).0), (0, 0));
}

#[test]
fn a_region_without_a_name_ends_where_its_mapper_let_go_while_its_home_was_in_doubt() {
    let mut cluster = Cluster::of(4);
    cluster.adapters = true;
    let lh = slot(cluster.command(3, allocation(None, CHUNK_BYTES, Placement::On(NodeId(1)))));
    taken_unheard(&mut cluster, 3, lh, &[(2, 1), (2, 3)]);
    cluster.part(&[1], &[2]);
    cluster.disconnect(1, 2);
    // The mapper and the former home lose sight of each other, and are paired anew: it lets go of what it mapped there.
    cluster.disconnect(1, 3);
    cluster.sleep(LEASE_NS / 2);
    cluster.held.clear();
    cluster.run();
    assert!(cluster.hosts[3].engine.known_region(cluster.hosts[3].session, lh).is_none());
    cluster.cut.clear();
    cluster.sleep(2 * LEASE_NS);
    assert_eq!((cluster.memory(1).0, cluster.memory(2).0), (0, 0), "nobody maps it");
}

#[test]
fn who_is_refused_another_handle_while_it_gives_up_its_last_is_no_mapper_any_more() {
    let mut cluster = Cluster::of(3);
    let lh = cluster.alloc(0, "salt", CHUNK_BYTES, Placement::On(NodeId(1)));
    let theirs = cluster.map_for(2, "salt", Permissions::READ);
    assert_eq!(cluster.command(0, Command::RegionCommand(lh, RegionCommand::Seal)), Ok(Outcome::Done));
    cluster.held = vec![(1, 2)];
    let map = Command::Map { name: "salt".into(), wanted: Permissions::WRITE };
    let refused = cluster.submit(2, map);
    cluster.run();
    assert_eq!(cluster.command(2, Command::Unmap(theirs)), Ok(Outcome::Done));
    cluster.held.clear();
    cluster.run();
    assert_eq!(cluster.outcome(2, refused), Some(Err(ErrorReply::Sealed.into())));
    let Ok(Outcome::Info(info)) = cluster.command(0, Command::StatHandle(lh)) else { panic!("no info") };
    assert_eq!(info.mappers, [NodeId(0)]);
}
