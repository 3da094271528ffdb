//! Scenarios of handovers with lost messages: what the former and the next home know of regions and mappers.

use crate::common;

use common::{CHUNK_BYTES, Cluster, LEASE_NS};
use halite_tier::access::SlotRef;
use halite_tier::effect::{Command, OpId, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, RegionCommand};

fn move_to(lh: SlotRef, node: u32) -> Command {
    Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(node) })
}

/// Makes node 2 adopt a region of node 1. Messages on the wires `held` stay in flight.
fn adopted_unacknowledged(cluster: &mut Cluster, host: usize, lh: SlotRef, held: &[(usize, usize)]) -> OpId {
    cluster.slow_to_copy = true;
    let moving = cluster.submit(host, move_to(lh, 2));
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
fn regions_return_before_the_handover_is_acknowledged() {
    let mut cluster = Cluster::of(4);
    cluster.adapters = true;
    let lh = cluster.alloc(0, "salt", CHUNK_BYTES, Placement::On(NodeId(1)));
    cluster.write(0, lh, 0, b"crystals");
    let moving = adopted_unacknowledged(&mut cluster, 0, lh, &[(2, 1)]);
    cluster.part(&[1], &[2]);
    cluster.disconnect(1, 2);
    cluster.held.clear();
    cluster.run();
    assert_eq!(cluster.outcome(0, moving), Some(Err(ErrorReply::PeerDown(NodeId(2)).into())), "in doubt");
    assert_eq!(cluster.command(0, move_to(lh, 3)), Ok(Outcome::Done));
    assert_eq!(cluster.command(0, move_to(lh, 1)), Ok(Outcome::Done));
    assert_eq!(cluster.read(0, lh, 0, 8), b"crystals");
    // Late messages of the first move change nothing.
    cluster.cut.clear();
    cluster.sleep(2 * LEASE_NS);
    let theirs = cluster.map(3, "salt");
    cluster.write(3, theirs, 0, b"granules");
    assert_eq!(cluster.read(0, lh, 0, 8), b"granules");
    assert_eq!(cluster.extents(3, theirs)[0].owner.node, NodeId(1));
    assert_eq!((cluster.memory(2).0, cluster.memory(3).0), (0, 0));
}
