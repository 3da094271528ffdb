//! Fills and copies, within and between nodes.

use fastrand::Rng;
use halite::{AccessCause, CopySide, Lh, NodeId, Permissions, Placement};

use super::cluster::{CHUNK, Cluster, Harness, contents, everyone, pattern, shared};
use super::session::Session;
use super::turns::scope;
use super::{eventually_refused, refused};

/// Allocates a region that is spread over `nodes`, and fills it with random bytes. Returns its handle and the bytes.
fn spread(session: &Session, nodes: &[u32], len: u64, seed: u64) -> (Lh, Vec<u8>) {
    let nodes = nodes.iter().map(|node| NodeId(*node)).collect();
    let lh = session.alloc(None, len, Placement::Spread(nodes), everyone()).unwrap();
    let bytes = pattern(len, seed);
    session.write(lh, 0, &bytes).unwrap();
    (lh, bytes)
}

/// Expects that a fill changes only the bytes in its range, across borders of chunks and nodes, at any alignment.
pub fn a_fill_changes_only_its_bytes(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let (lh, mut model) = spread(&session, &[1, 0, 2], 5 * CHUNK + 9, 1);
    let mut random = Rng::with_seed(2);
    for round in 0..60 {
        let offset = random.u64(0..model.len() as u64);
        let len = random.u64(0..model.len() as u64 - offset + 1);
        session.fill(lh, offset, len, round).unwrap();
        model[offset as usize..][..len as usize].fill(round);
    }
    assert!(contents(&session, lh) == model);
}

/// Expects that copies work between regions on all combinations of nodes: local and remote, both on one remote node, or
/// on two remote nodes.
pub fn a_copy_works_between_all_nodes(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    for (from_node, to_node) in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)] {
        let (from, bytes) = spread(&session, &[from_node], 3 * CHUNK + 5, 3);
        let (to, mut model) = spread(&session, &[to_node], 4 * CHUNK, 4);
        session.copy(to, 77, from, 1, 3 * CHUNK + 1).unwrap();
        model[77..][..3 * CHUNK as usize + 1].copy_from_slice(&bytes[1..][..3 * CHUNK as usize + 1]);
        assert!(contents(&session, to) == model, "from node {from_node} to node {to_node}");
        assert!(contents(&session, from) == bytes);
    }
}

/// Expects that a copy between overlapping ranges has the same result as a copy through a buffer, for any distance,
/// even through two handles of one region.
pub fn source_and_target_of_a_copy_may_overlap(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let nodes = vec![NodeId(1), NodeId(2), NodeId(0)];
    let len = 7 * CHUNK + 3;
    let lh = session.alloc(Some("twice"), len, Placement::Spread(nodes), everyone()).unwrap();
    let again = session.map("twice", everyone()).unwrap();
    for distance in [0, 1, 8, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7] {
        for (to, from) in [(distance, 0), (0, distance)] {
            let mut model = pattern(len, distance);
            session.write(lh, 0, &model).unwrap();
            session.copy(lh, to, again, from, len - distance).unwrap();
            model.copy_within(from as usize..(from + len - distance) as usize, to as usize);
            assert!(contents(&session, lh) == model, "from {from} to {to}");
        }
    }
}

/// Expects that random fills and copies on regions have the same results as on arrays.
pub fn copies_match_arrays(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let session = cluster.session(1);
    let mut regions =
        [spread(&session, &[0, 1, 2], 5 * CHUNK + 100, 5), spread(&session, &[2, 1], 4 * CHUNK + 1, 6)];
    let mut random = Rng::with_seed(7);
    for round in 0..80 {
        let (source, target) = (random.u64(0..2) as usize, random.u64(0..2) as usize);
        let (source_len, target_len) = (regions[source].1.len() as u64, regions[target].1.len() as u64);
        let (from, to) = (random.u64(0..source_len), random.u64(0..target_len));
        let len = random.u64(0..(source_len - from).min(target_len - to) + 1);
        session.copy(regions[target].0, to, regions[source].0, from, len).unwrap();
        let bytes = regions[source].1[from as usize..][..len as usize].to_vec();
        regions[target].1[to as usize..][..len as usize].copy_from_slice(&bytes);
        for (lh, model) in &regions {
            assert!(contents(&session, *lh) == *model, "round {round}");
        }
    }
}

/// Expects that overlapping copies that need several commands are correct in both directions.
pub fn long_copies_overlap_in_both_directions(h: &dyn Harness) {
    let cluster = Cluster::with(h, &[("ada", 32 << 20), ("ada", 32 << 20)]);
    let session = cluster.session(0);
    let len = 36 << 20;
    let (lh, mut model) = spread(&session, &[0, 1], len, 8);
    for (to, from) in [(CHUNK * 3 + 5, 0), (0, 5), (1 << 20, 0)] {
        let part = len - to.max(from);
        session.copy(lh, to, lh, from, part).unwrap();
        model.copy_within(from as usize..(from + part) as usize, to as usize);
        assert!(contents(&session, lh) == model, "from {from} to {to}");
    }
    session.fill(lh, 1, len - 2, 9).unwrap();
    model[1..len as usize - 1].fill(9);
    assert!(contents(&session, lh) == model);
}

/// Expects that a refused fill or copy changes no byte, and that the error of a copy names the side, source or target,
/// that caused it.
pub fn a_refused_memory_operation_changes_nothing(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let (lh, bytes) = spread(&session, &[0, 1], 2 * CHUNK, 9);
    let other = shared(&session, "other", CHUNK);
    let check = |result: Result<(), halite::CopyError>, side, matches: fn(&AccessCause) -> bool| {
        let error = result.expect_err("the operation is refused");
        assert!(error.side == side && matches(&error.cause) && !error.partly, "{error}");
    };
    let out_of_range = |cause: &AccessCause| matches!(cause, AccessCause::OutOfRange { .. });
    check(session.copy(lh, 0, other, 1, CHUNK), CopySide::Source, out_of_range);
    check(session.copy(lh, CHUNK + 1, other, 0, CHUNK), CopySide::Target, out_of_range);
    let overflows = |cause: &AccessCause| *cause == AccessCause::Overflow;
    check(session.copy(lh, u64::MAX, other, 0, 2), CopySide::Target, overflows);
    check(session.copy(lh, 0, other, 2, u64::MAX), CopySide::Source, overflows);
    refused!(session.fill(lh, 1, 2 * CHUNK, 1), AccessCause::OutOfRange { .. });
    refused!(session.fill(lh, 1, u64::MAX, 1), AccessCause::Overflow);

    let denied = |cause: &AccessCause| matches!(cause, AccessCause::PermissionDenied { .. });
    let readable = session.map("other", Permissions::READ).unwrap();
    let writable = session.map("other", Permissions::WRITE).unwrap();
    check(session.copy(readable, 0, lh, 0, 1), CopySide::Target, denied);
    check(session.copy(lh, 0, writable, 0, 1), CopySide::Source, denied);
    refused!(session.fill(readable, 0, 1, 1), AccessCause::PermissionDenied { .. });

    let foreign = cluster.session(0).map("other", everyone()).unwrap();
    let is_foreign = |cause: &AccessCause| *cause == AccessCause::ForeignHandle;
    check(session.copy(foreign, 0, lh, 0, 1), CopySide::Target, is_foreign);
    check(session.copy(lh, 0, foreign, 0, 1), CopySide::Source, is_foreign);
    refused!(session.fill(foreign, 0, 1, 1), AccessCause::ForeignHandle);

    session.seal(other).unwrap();
    check(session.copy(other, 0, lh, 0, 1), CopySide::Target, |cause| *cause == AccessCause::Sealed);
    refused!(session.fill(other, 0, 1, 1), AccessCause::Sealed);
    assert!(contents(&session, lh) == bytes);
    session.copy(lh, 0, other, 0, CHUNK).unwrap();
    assert!(contents(&session, lh)[..CHUNK as usize].iter().all(|byte| *byte == 0));

    session.free(other).unwrap();
    check(session.copy(lh, 0, other, 0, 1), CopySide::Source, |cause| *cause == AccessCause::Stale);
    let text = session.fill(other, 3, 5, 1).unwrap_err().to_string();
    assert!(text.starts_with("cannot fill 5 bytes at offset 3 of"), "{text}");
}

/// Expects that operations on zero bytes succeed up to the end of a region, and fail beyond it.
pub fn empty_memory_operations_succeed_up_to_the_end(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(1);
    let lh = session.alloc(None, CHUNK, Placement::On(NodeId(0)), everyone()).unwrap();
    session.fill(lh, CHUNK, 0, 1).unwrap();
    session.copy(lh, CHUNK, lh, 0, 0).unwrap();
    refused!(session.fill(lh, CHUNK + 1, 0, 1), AccessCause::OutOfRange { .. });
    refused!(session.copy(lh, 0, lh, CHUNK + 1, 0), AccessCause::OutOfRange { .. });
}

/// Expects that fills and copies during a move are not lost.
pub fn memory_operations_during_a_move_are_kept(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let owner = cluster.session(0);
    let near = shared(&owner, "moving", 20 * CHUNK);
    let session = cluster.session(2);
    let lh = session.map("moving", everyone()).unwrap();
    scope(|scope| {
        let mover = scope.spawn(|| {
            for node in [1, 0, 2, 0, 1] {
                owner.move_to(near, NodeId(node)).unwrap();
            }
        });
        let mut round = 0u8;
        while !mover.is_finished() || round < 3 {
            round = round.wrapping_add(1).max(1);
            session.fill(lh, 0, 10 * CHUNK, round).unwrap();
            session.copy(lh, 5 * CHUNK + 1, lh, 0, 10 * CHUNK).unwrap();
            let all = contents(&session, lh);
            assert!(all[..15 * CHUNK as usize + 1].iter().all(|byte| *byte == round));
            assert!(all[15 * CHUNK as usize + 1..].iter().all(|byte| *byte == 0));
        }
        mover.join();
    });
    assert_eq!(contents(&session, lh), contents(&owner, near));
}

/// Expects that fills and copies fail if the node of the bytes has left, and that the error says which side of a copy
/// is lost.
pub fn memory_operations_on_lost_bytes_fail(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let (gone, _) = spread(&session, &[0, 2], 2 * CHUNK, 10);
    let here = shared(&session, "here", 2 * CHUNK);
    cluster.leave(2);
    eventually_refused!(session.fill(gone, CHUNK, 1, 1), _);
    let error = session.copy(here, 0, gone, 0, 2 * CHUNK).unwrap_err();
    assert_eq!((error.side, error.cause), (CopySide::Source, AccessCause::PeerDown(NodeId(2))), "{error}");
    let error = session.copy(gone, CHUNK, here, 0, 1).unwrap_err();
    assert_eq!((error.side, error.cause), (CopySide::Target, AccessCause::PeerDown(NodeId(2))), "{error}");
    refused!(session.fill(gone, 0, 2 * CHUNK, 1), AccessCause::PeerDown(NodeId(2)));
    session.fill(gone, 0, CHUNK, 1).unwrap();
}
