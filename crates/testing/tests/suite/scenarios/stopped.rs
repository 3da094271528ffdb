//! A writer is stopped during a copy. The other nodes declare it dead, but it may still write when it is resumed. So
//! they do not reuse the memory that the writer can reach before the writer's process has ended.

use halite::blocking::Session;
use halite::{AccessCause, Fence, Lh, Node, NodeId, NodeState, Placement, RegionCause};

use super::cluster::{Cluster, Process, READ_WRITE, await_state, await_status, status_of, was_killed};
use super::pattern::first_nonzero;

const REGION_BYTES: u64 = 64 << 20;
const ARENA_BYTES: u64 = 256 << 20;

/// Starts a cluster of this process and a writer, which is stopped while it writes to a region of this process.
fn stop_during_a_copy(fence: Fence) -> (Cluster, Node, Session, Lh, Process) {
    let mut cluster = Cluster::new();
    cluster.config.arena_bytes = ARENA_BYTES;
    cluster.config.segment_bytes = ARENA_BYTES;
    cluster.config.chunk_bytes = 4 << 20;
    cluster.config.fence = fence;
    let node = cluster.join(0);
    let session = node.blocking_session();
    let lh =
        session.alloc(Some("region"), REGION_BYTES, Placement::Local, READ_WRITE).expect("there is room");
    let mut writer = cluster.start(1);
    writer.run("map region");
    writer.run(&format!("rewrite region {REGION_BYTES}"));
    assert_eq!(writer.event(), "region begun");
    writer.stop();
    (cluster, node, session, lh, writer)
}

/// Allocates all free memory, in pieces of 16 MiB.
fn alloc_everything(session: &Session) -> Vec<Lh> {
    let piece = || session.alloc(None, 16 << 20, Placement::Local, READ_WRITE).ok();
    std::iter::from_fn(piece).collect()
}

fn check_zero(session: &Session, regions: &[Lh]) {
    let mut found = vec![1; 16 << 20];
    for (index, lh) in regions.iter().enumerate() {
        session.read(*lh, 0, &mut found).expect("the session is a master");
        assert_eq!(first_nonzero(&found), None, "a process wrote to fresh region {index}");
    }
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn memory_that_a_stopped_process_writes_is_not_reused() {
    let (_cluster, _node, session, lh, mut writer) = stop_during_a_copy(Fence::Never);
    let refused = session.free(lh).expect_err("the stopped writer does not acknowledge");
    assert_eq!(refused.cause, RegionCause::PeerDown(NodeId(1)));
    await_state(&session, 1, NodeState::Unreachable);
    let refused = session.read(lh, 0, &mut [0]).expect_err("the region is being freed");
    assert_eq!(refused.cause, AccessCause::Stale);

    let fresh = alloc_everything(&session);
    assert_eq!(fresh.len() as u64, (ARENA_BYTES - REGION_BYTES) / (16 << 20));
    check_zero(&session, &fresh);
    writer.resume();
    // The writer continues where it was stopped, perhaps for several rounds, until it learns that it was declared dead.
    assert!(writer.event().starts_with("region ended "), "the writer learns that it was declared dead");
    let rest = await_status(&session, |nodes| {
        (nodes[0].bytes_used < ARENA_BYTES)
            .then(|| alloc_everything(&session))
            .filter(|rest| !rest.is_empty())
    });
    assert_eq!(rest.len() as u64, REGION_BYTES / (16 << 20));
    check_zero(&session, &rest);
    check_zero(&session, &fresh);
    // The writer is still alive, and joins the other nodes again.
    await_state(&session, 1, NodeState::Alive);
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_region_moves_only_after_the_end_of_a_stopped_writer() {
    let (cluster, _node, session, lh, mut writer) = stop_during_a_copy(Fence::Never);
    let mut other = cluster.start(2);
    let refused = session.move_to(lh, NodeId(2)).expect_err("the writer could still write to the old place");
    assert_eq!(refused.cause, RegionCause::PeerDown(NodeId(1)));
    session.write(lh, 0, b"it is where it was").expect("other nodes do not wait for the writer");
    writer.kill();
    await_state(&session, 1, NodeState::Dead);
    session.move_to(lh, NodeId(2)).expect("no process can write to the old place");
    session.write(lh, 0, &vec![0; REGION_BYTES as usize]).expect("the new owner lives");
    let old_place = status_of(&session, 0);
    assert_eq!((old_place.bytes_used, old_place.bytes_quarantined), (0, 0));
    check_zero(&session, &alloc_everything(&session));
    other.run("map region");
    other.run("zero region");
    session.free(lh).expect("the session is a master");
    other.run(&format!("alloc whole {ARENA_BYTES} here"));
    other.run("zero whole");
}

#[test]
fn a_stopped_process_is_killed_before_its_memory_is_reused() {
    let (_cluster, _node, session, lh, mut writer) = stop_during_a_copy(Fence::Kill);
    session.free(lh).expect("a stopped node is killed after its lease");
    let fresh =
        await_status(&session, |_| session.alloc(None, ARENA_BYTES, Placement::Local, READ_WRITE).ok());
    let status = writer.exit_status().expect("memory was reused while the process still ran");
    assert!(was_killed(status), "{status}");
    let mut found = vec![1; ARENA_BYTES as usize];
    session.read(fresh, 0, &mut found).expect("the session is a master");
    assert_eq!(first_nonzero(&found), None);
    await_state(&session, 1, NodeState::Dead);
}
