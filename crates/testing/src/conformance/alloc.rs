//! Allocation: contents and location of new regions, and refusals.

use halite::{AllocOptions, NodeId, Permissions, Placement, RegionCause};

use super::cluster::{ARENA, CHUNK, Cluster, Harness, contents, eventually, everyone, pattern, shared};
use super::refused;

/// Expects that a new region of several chunks reads as zero.
pub fn a_fresh_region_reads_as_zero(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "fresh", 3 * CHUNK + 5);
    assert!(contents(&session, lh).iter().all(|byte| *byte == 0));
}

/// Expects that populating a region has no other effect.
pub fn a_populated_region_behaves_like_any_other(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    for placement in [Placement::Local, Placement::On(NodeId(1)), Placement::Spread(Vec::new())] {
        let options = AllocOptions { placement, populate: true, ..AllocOptions::default() };
        let lh = session.alloc_with(None, 3 * CHUNK + 5, options).unwrap();
        assert!(contents(&session, lh).iter().all(|byte| *byte == 0));
        session.write(lh, 0, &pattern(3 * CHUNK + 5, 1)).unwrap();
        assert_eq!(contents(&session, lh), pattern(3 * CHUNK + 5, 1));
        session.free(lh).unwrap();
    }
    cluster.expect_empty();
}

/// Expects that a read returns the written bytes.
pub fn a_region_reads_back_what_was_written(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "box", 1000);
    session.write(lh, 7, b"hello").unwrap();
    let mut bytes = [0; 7];
    session.read(lh, 6, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0hello\0");
}

/// Expects that a region without a name can be used through its handle.
pub fn a_region_needs_no_name(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = session.alloc(None, 100, Placement::Local, Permissions::empty()).unwrap();
    session.write(lh, 0, &pattern(100, 1)).unwrap();
    assert_eq!(contents(&session, lh), pattern(100, 1));
    assert_eq!(session.stat_handle(lh).unwrap().name, None);
}

/// Expects that a region may have any length from one byte up, and that its handle returns this length.
pub fn a_region_has_the_requested_length(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    for len in [1, 7, 64, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK] {
        let lh = session.alloc(None, len, Placement::Local, everyone()).unwrap();
        assert_eq!(session.len(lh).unwrap(), len);
        session.write(lh, len - 1, &[9]).unwrap();
        session.free(lh).unwrap();
    }
    cluster.expect_empty();
}

/// Expects that an allocation of no bytes is refused, because an empty region has no address.
pub fn an_empty_region_is_refused(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    refused!(
        cluster.session(0).alloc(Some("none"), 0, Placement::Local, everyone()),
        RegionCause::ZeroLength
    );
    refused!(cluster.session(0).map("none", Permissions::READ), RegionCause::NotFound);
    cluster.expect_empty();
}

/// Expects that a refused allocation reserves no memory, and that its name and the memory are free for a smaller
/// region.
pub fn a_region_larger_than_the_memory_is_refused(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let refusal = session.alloc(Some("large"), ARENA + CHUNK, Placement::Local, everyone());
    refused!(refusal, RegionCause::NoSpace { .. });
    cluster.expect_empty();
    let lh = shared(&session, "large", ARENA / 2);
    session.free(lh).unwrap();
    cluster.expect_empty();
}

/// Expects that an extremely long region is refused, without an arithmetic overflow.
pub fn an_absurd_length_is_refused(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    for len in [u64::MAX, u64::MAX - CHUNK, 1 << 63] {
        let refusal = cluster.session(0).alloc(None, len, Placement::Local, everyone());
        refused!(refusal, RegionCause::NoSpace { .. } | RegionCause::TooLarge { .. });
    }
    cluster.expect_empty();
}

/// Expects that no byte belongs to two regions.
pub fn regions_do_not_overlap(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lengths: Vec<u64> = (0..200).map(|index| 1 + index * 97 % 5000).collect();
    let allocate = |len: &u64| session.alloc(None, *len, Placement::Local, everyone()).unwrap();
    let handles: Vec<_> = lengths.iter().map(allocate).collect();
    for (seed, (lh, len)) in handles.iter().zip(&lengths).enumerate() {
        session.write(*lh, 0, &pattern(*len, seed as u64)).unwrap();
    }
    for (seed, (lh, len)) in handles.iter().zip(&lengths).enumerate() {
        assert_eq!(contents(&session, *lh), pattern(*len, seed as u64), "region {seed}");
    }
}

/// Expects that a region has all its bytes on the named node, and that the status of this node counts them.
pub fn a_region_goes_to_the_named_node(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let lh = session.alloc(Some("there"), 2 * CHUNK, Placement::On(NodeId(2)), everyone()).unwrap();
    assert_eq!(session.stat("there").unwrap().nodes, [(NodeId(2), 2 * CHUNK)]);
    assert!(cluster.status(2).bytes_used >= 2 * CHUNK);
    assert_eq!((cluster.status(0).bytes_used, cluster.status(1).bytes_used), (0, 0));
    session.write(lh, CHUNK - 1, &[1, 2]).unwrap();
    assert_eq!(contents(&session, lh)[CHUNK as usize - 1..][..2], [1, 2]);
}

/// Expects that an allocation is refused if its placement contains a node that does not exist.
pub fn an_unknown_node_is_refused(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(1);
    let unknown = session.alloc(Some("lost"), 10, Placement::On(NodeId(77)), everyone());
    refused!(unknown, RegionCause::UnknownNode(NodeId(77)));
    let spread = Placement::Spread(vec![NodeId(0), NodeId(77)]);
    refused!(
        session.alloc(Some("lost"), 3 * CHUNK, spread, everyone()),
        RegionCause::UnknownNode(NodeId(77))
    );
    refused!(session.map("lost", Permissions::READ), RegionCause::NotFound);
    cluster.expect_empty();
}

/// Expects that placement anywhere prefers memory of the session's own node.
pub fn anywhere_prefers_local_memory(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(1);
    session.alloc(Some("near"), 100, Placement::Anywhere, everyone()).unwrap();
    assert_eq!(session.stat("near").unwrap().nodes, [(NodeId(1), 100)]);
}

/// Expects that placement anywhere finds a node with enough memory for a session whose node has no memory.
pub fn anywhere_finds_memory_for_a_node_without_memory(h: &dyn Harness) {
    let cluster = Cluster::with(h, &[("ada", 2 * CHUNK), ("ada", ARENA), ("ada", 0)]);
    let session = cluster.session(2);
    session.alloc(Some("far"), 4 * CHUNK, Placement::Anywhere, everyone()).unwrap();
    assert_eq!(session.stat("far").unwrap().nodes, [(NodeId(1), 4 * CHUNK)]);
}

/// Expects that local placement is refused if the session's node has no memory.
pub fn local_placement_needs_local_memory(h: &dyn Harness) {
    let cluster = Cluster::with(h, &[("ada", ARENA), ("ada", 0)]);
    let refusal = cluster.session(1).alloc(None, 100, Placement::Local, everyone());
    refused!(refusal, RegionCause::NoSpace { .. } | RegionCause::NoMemoryNode);
}

/// Expects that freed memory can be allocated again, many times.
pub fn freed_memory_can_always_be_reused(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    for _ in 0..50 {
        // Freed memory is cleared before it is allocated again, which may take a moment.
        let lh = eventually("there is room again", || {
            session.alloc(Some("again"), ARENA * 3 / 4, Placement::Local, everyone())
        });
        session.free(lh).unwrap();
    }
    cluster.expect_empty();
}
