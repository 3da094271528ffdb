//! Scenarios of arenas whose systems refuse memory.

use crate::common;

use common::{Cluster, LEASE_NS, allocation, slot};
use halite_tier::access::SlotRef;
use halite_tier::effect::{Command, CommandError, Outcome, Placement};
use halite_tier::message::{ErrorReply, NodeStatus, RegionCommand};

const MIB: u64 = 1 << 20;
const ARENA: u64 = 64 * MIB;

/// A node that tries to take its arena in one piece.
fn node() -> Cluster {
    let mut cluster = Cluster::of(0);
    cluster.segment_bytes = ARENA;
    cluster.add(0, ARENA);
    cluster
}

fn alloc(cluster: &mut Cluster, len: u64) -> Result<SlotRef, CommandError> {
    cluster.command(0, allocation(None, len, Placement::Local)).map(|outcome| slot(Ok(outcome)))
}

fn status(cluster: &mut Cluster) -> NodeStatus {
    match cluster.command(0, Command::Status) {
        Ok(Outcome::Status(nodes)) => nodes[0].clone(),
        other => panic!("status answers {other:?}"),
    }
}

#[test]
fn arenas_grow_by_smaller_segments_after_refusals() {
    let mut cluster = node();
    cluster.segment_bytes_given = 10 * MIB;
    let lh = alloc(&mut cluster, 30 * MIB).unwrap();
    let pieces = cluster.extents(0, lh).into_iter().map(|extent| extent.len / MIB);
    assert_eq!(pieces.collect::<Vec<_>>(), [8, 8, 8, 6]);
    assert_eq!(status(&mut cluster).bytes_refused, 0);
    alloc(&mut cluster, 34 * MIB).expect("all of the arena is usable");
}

#[test]
fn refused_growth_is_reported_and_retried() {
    let mut cluster = node();
    cluster.segment_bytes_given = 0;
    let (wanted, available) = (MIB, 0);
    assert_eq!(alloc(&mut cluster, MIB), Err(ErrorReply::NoSpace { wanted, available }.into()));
    let reported = status(&mut cluster);
    assert_eq!((reported.bytes_total, reported.bytes_refused), (ARENA, ARENA));

    // The system is left alone for a while, then asked for all of it again.
    cluster.segment_bytes_given = ARENA;
    assert!(alloc(&mut cluster, MIB).is_err());
    cluster.now_ns += 100 * LEASE_NS;
    let lh = alloc(&mut cluster, MIB).unwrap();
    let reported = status(&mut cluster);
    assert_eq!((reported.bytes_total, reported.bytes_refused), (ARENA, 0));

    // Existing memory can be reused, whatever happens to growth.
    cluster.segment_bytes_given = 0;
    cluster.command(0, Command::RegionCommand(lh, RegionCommand::Free)).unwrap();
    alloc(&mut cluster, ARENA).unwrap();
}

#[test]
fn no_space_reports_the_available_memory() {
    let mut cluster = node();
    cluster.segments_given = 1;
    cluster.segment_bytes_given = 16 * MIB;
    let refused = alloc(&mut cluster, 20 * MIB);
    assert_eq!(refused, Err(ErrorReply::NoSpace { wanted: 20 * MIB, available: 16 * MIB }.into()));
    assert_eq!(status(&mut cluster).bytes_refused, ARENA - 16 * MIB);
    alloc(&mut cluster, 16 * MIB).unwrap();
}
