//! A writer is stopped in the middle of a copy: it is dead for the others, but it may still write, and so the memory
//! that it could reach is not used again before it has ended.

use std::time::Duration;

use halite::blocking::Session;
use halite::{AccessCause, Fence, Lh, Node, NodeId, NodeState, NodeStatus, Placement};

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
    cluster.config.lease = Duration::from_millis(300);
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
fn memory_that_a_stopped_process_could_write_to_is_kept_back_until_it_ends() {
    let (_cluster, _node, session, lh, mut writer) = stop_amid_a_copy(Fence::Never);
    session.free(lh).expect("a silent node holds nobody up for longer than its lease");
    await_state(&session, 1, NodeState::Dead);
    let refused = session.read(lh, 0, &mut [0]).expect_err("it is freed");
    assert_eq!(refused.cause, AccessCause::Stale);
    assert_eq!(status_of(&session, 0).bytes_quarantined, REGION_BYTES);

    let fresh = take_everything(&session);
    assert_eq!(fresh.len() as u64, (ARENA_BYTES - REGION_BYTES) / (16 << 20));
    check_zero(&session, &fresh);
    writer.resume();
    // It writes on where it was, perhaps for several rounds, until it learns that it is out.
    assert!(writer.news().starts_with("region ended "), "it is told");
    // The news of the region's end may still have reached it before that of its own.
    let refused = writer.ask("check region 4096 0");
    assert!(["PeerDown(NodeId(0))", "Stale"].contains(&refused.as_str()), "it stays told: {refused}");
    check_zero(&session, &fresh);
    assert_eq!(status_of(&session, 0).bytes_quarantined, REGION_BYTES, "it could still write");
    assert_eq!(take_everything(&session), []);

    writer.kill();
    await_status(&session, |nodes| (nodes[0].bytes_quarantined == 0).then_some(()));
    let rest = take_everything(&session);
    assert_eq!(rest.len() as u64, REGION_BYTES / (16 << 20));
    check_zero(&session, &rest);
    check_zero(&session, &fresh);
}

#[test]
fn a_region_is_moved_away_from_a_stopped_writer_whose_late_bytes_do_not_follow() {
    let (cluster, _node, session, lh, mut writer) = stop_amid_a_copy(Fence::Never);
    let mut other = cluster.start(2);
    session.move_to(lh, NodeId(2)).expect("a silent node holds nobody up for longer than its lease");
    session.write(lh, 0, &vec![0; REGION_BYTES as usize]).expect("its new owner lives");
    let old_place = status_of(&session, 0);
    assert_eq!((old_place.bytes_used, old_place.bytes_quarantined), (0, REGION_BYTES));
    let fresh = take_everything(&session);
    writer.resume();
    assert!(writer.news().starts_with("region ended "), "it is told");
    check_zero(&session, &fresh);
    other.order("map region");
    other.order("zero region");
    session.free(lh).expect("it is ours");
    // Whether the writer could have reached the new place or not, it cannot once it has ended.
    writer.kill();
    await_status(&session, |nodes| {
        let is_clean = |node: &NodeStatus| node.state != NodeState::Alive || node.bytes_quarantined == 0;
        (nodes.iter().all(is_clean) && status_of(&session, 2).bytes_used == 0).then_some(())
    });
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
