//! A writer is stopped in the middle of a copy: it is dead for the others, but it may still write, and so the memory
//! that it could reach is not used again before it has ended.

use halite::blocking::Session;
use halite::{AccessCause, Fence, Lh, Node, NodeId, NodeState, Placement, RegionCause};

use super::cluster::{ANYBODY, Cluster, Process, await_state, await_status, status_of, was_killed};
use super::pattern::first_nonzero;

const REGION_BYTES: u64 = 64 << 20;
const ARENA_BYTES: u64 = 256 << 20;

/// A cluster of this process and of one that was stopped while it wrote to a region here.
fn stop_amid_a_copy(fence: Fence) -> (Cluster, Node, Session, Lh, Process) {
    let mut cluster = Cluster::new();
    cluster.config.arena_bytes = ARENA_BYTES;
    cluster.config.segment_bytes = ARENA_BYTES;
    cluster.config.chunk_bytes = 4 << 20;
    cluster.config.fence = fence;
    let node = cluster.join(0);
    let session = node.blocking_session();
    let lh = session.alloc(Some("region"), REGION_BYTES, Placement::Local, ANYBODY).expect("there is room");
    let mut writer = cluster.start(1);
    writer.order("map region");
    writer.order(&format!("flood region {REGION_BYTES}"));
    assert_eq!(writer.news(), "region begun");
    writer.stop();
    (cluster, node, session, lh, writer)
}

/// All memory that can be had, in pieces.
fn take_everything(session: &Session) -> Vec<Lh> {
    let piece = || session.alloc(None, 16 << 20, Placement::Local, ANYBODY).ok();
    std::iter::from_fn(piece).collect()
}

fn check_zero(session: &Session, regions: &[Lh]) {
    let mut found = vec![1; 16 << 20];
    for (index, lh) in regions.iter().enumerate() {
        session.read(*lh, 0, &mut found).expect("it is ours");
        assert_eq!(first_nonzero(&found), None, "somebody wrote to fresh region {index}");
    }
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn memory_that_a_stopped_process_could_write_to_is_kept_back_until_it_lets_go() {
    let (_cluster, _node, session, lh, mut writer) = stop_amid_a_copy(Fence::Never);
    let refused =
        session.free(lh).expect_err("its silence acknowledges nothing, and holds nobody up for ever");
    assert_eq!(refused.cause, RegionCause::PeerDown(NodeId(1)));
    await_state(&session, 1, NodeState::Unreachable);
    let refused = session.read(lh, 0, &mut [0]).expect_err("it is being freed");
    assert_eq!(refused.cause, AccessCause::Stale);

    let fresh = take_everything(&session);
    assert_eq!(fresh.len() as u64, (ARENA_BYTES - REGION_BYTES) / (16 << 20));
    check_zero(&session, &fresh);
    writer.resume();
    // It writes on where it was, perhaps for several rounds, until it learns that it is out.
    assert!(writer.news().starts_with("region ended "), "it is told");
    let rest = await_status(&session, |nodes| {
        (nodes[0].bytes_used < ARENA_BYTES).then(|| take_everything(&session)).filter(|rest| !rest.is_empty())
    });
    assert_eq!(rest.len() as u64, REGION_BYTES / (16 << 20));
    check_zero(&session, &rest);
    check_zero(&session, &fresh);
    // It was never dead, and is one of the cluster again.
    await_state(&session, 1, NodeState::Alive);
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_region_is_moved_away_from_a_stopped_writer_only_when_that_has_ended() {
    let (cluster, _node, session, lh, mut writer) = stop_amid_a_copy(Fence::Never);
    let mut other = cluster.start(2);
    let refused = session.move_to(lh, NodeId(2)).expect_err("it could still write to the old place");
    assert_eq!(refused.cause, RegionCause::PeerDown(NodeId(1)));
    session.write(lh, 0, b"it is where it was").expect("nobody else waits for the writer");
    writer.kill();
    await_state(&session, 1, NodeState::Dead);
    session.move_to(lh, NodeId(2)).expect("nobody can write to the old place");
    session.write(lh, 0, &vec![0; REGION_BYTES as usize]).expect("its new owner lives");
    let old_place = status_of(&session, 0);
    assert_eq!((old_place.bytes_used, old_place.bytes_quarantined), (0, 0));
    check_zero(&session, &take_everything(&session));
    other.order("map region");
    other.order("zero region");
    session.free(lh).expect("it is ours");
    other.order(&format!("alloc whole {ARENA_BYTES} here"));
    other.order("zero whole");
}

#[test]
fn a_stopped_process_is_killed_after_its_lease_and_its_memory_used_only_then() {
    let (_cluster, _node, session, lh, mut writer) = stop_amid_a_copy(Fence::Kill);
    session.free(lh).expect("a stopped node holds nobody up for longer than its lease");
    let fresh = await_status(&session, |_| session.alloc(None, ARENA_BYTES, Placement::Local, ANYBODY).ok());
    let status = writer.ending().expect("memory was used again while the process still ran");
    assert!(was_killed(status), "{status}");
    let mut found = vec![1; ARENA_BYTES as usize];
    session.read(fresh, 0, &mut found).expect("it is ours");
    assert_eq!(first_nonzero(&found), None);
    await_state(&session, 1, NodeState::Dead);
}
