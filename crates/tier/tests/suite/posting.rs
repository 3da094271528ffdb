//! Scenarios of posted writes in flight while their region changes: its memory must not be reused before.

use crate::common;

use common::{CHUNK_BYTES, Cluster};
use halite_tier::effect::{Command, OpId, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::RegionCommand;

/// Checks that a region is freed only when `write` has completed.
#[track_caller]
fn check_freed_after(cluster: &mut Cluster, free: OpId, write: u64) {
    cluster.run();
    assert!(!cluster.has_ended(0, free), "the memory is freed with a write in flight");
    cluster.complete(write);
    cluster.run();
    cluster.outcome(0, free).expect("no write is left").unwrap();
    for host in 0..cluster.hosts.len() {
        assert_eq!(cluster.memory(host), (0, 0), "host {host}");
    }
}

#[test]
fn frees_wait_for_writes_through_transient_handles() {
    let mut cluster = Cluster::reaching(4, true);
    let (first, second) = (NodeId(1), NodeId(2));
    let master = cluster.alloc(0, "salt", 2 * CHUNK_BYTES, Placement::Spread(vec![first, second]));
    cluster.map(3, "salt");
    // The first chunk is frozen for a move that fails.
    cluster.slow_to_copy = true;
    let moved = cluster.submit(0, Command::RegionCommand(master, RegionCommand::Move { to: NodeId(0) }));
    cluster.run();
    assert_eq!(cluster.copies_under_way(), 1);
    // A thread of host 3 is in the middle of an access: its older handle does not learn yet that the chunk stayed in
    // place.
    let path = cluster.hosts[3].path.clone();
    let access = path.pins().pin();
    cluster.fail_copies();
    cluster.run();
    cluster.outcome(0, moved).expect("the move has ended").unwrap_err();

    // A younger handle has the current place. It is used and unmapped.
    let younger = cluster.map(3, "salt");
    let write = cluster.post(3, younger, 0, b"late");
    cluster.submit(3, Command::Unmap(younger));
    cluster.run();
    let free = cluster.submit(0, Command::RegionCommand(master, RegionCommand::Free));
    cluster.run();
    drop(access);
    check_freed_after(&mut cluster, free, write);
}
