//! Freeing regions: all handles become stale, and memory is cleared before reuse.

use halite::{AccessCause, NodeId, Permissions, Placement, RegionCause};

use super::cluster::{ARENA, CHUNK, Cluster, Harness, contents, everyone, pattern, shared};
use super::refused;

/// Expects that no handle of any node is usable once `free` has returned.
pub fn every_handle_is_stale_after_free(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let sessions = [0, 1, 2].map(|index| cluster.session(index));
    let near = shared(&sessions[0], "gone", 2 * CHUNK);
    let handles = sessions.each_ref().map(|session| session.map("gone", everyone()).unwrap());
    sessions[0].free(near).unwrap();
    for (session, lh) in sessions.iter().zip(handles) {
        refused!(session.read(lh, 0, &mut [0]), AccessCause::Stale);
        refused!(session.write(lh, 0, &[1]), AccessCause::Stale);
        refused!(session.map("gone", Permissions::READ), RegionCause::NotFound);
    }
    refused!(sessions[0].write(near, 0, &[1]), AccessCause::Stale | AccessCause::UnknownHandle);
}

/// Expects that freeing a region frees its memory on every node.
pub fn freed_memory_is_returned(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    for to in [0, 1] {
        let lh = session.alloc(Some("brief"), 3 * CHUNK + 1, Placement::On(NodeId(to)), everyone()).unwrap();
        let other = cluster.session(1);
        let far = other.map("brief", everyone()).unwrap();
        other.write(far, 0, b"x").unwrap();
        session.free(lh).unwrap();
        cluster.expect_empty();
    }
}

/// Expects that a region in reused memory reads as zero.
pub fn reused_memory_reads_as_zero(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(1);
    // So large that the second region must reuse memory of the first.
    let len = ARENA * 3 / 4;
    let secret = pattern(len, 1);
    let lh = session.alloc(None, len, Placement::On(NodeId(0)), everyone()).unwrap();
    session.write(lh, 0, &secret).unwrap();
    session.free(lh).unwrap();
    cluster.expect_empty();
    let lh = session.alloc(None, len, Placement::On(NodeId(0)), everyone()).unwrap();
    assert!(contents(&session, lh).iter().all(|byte| *byte == 0), "bytes of a freed region are visible");
    session.free(lh).unwrap();
}

/// Expects that small regions, which share pages, never contain bytes of earlier regions.
pub fn reused_small_regions_read_as_zero(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    for round in 0..200 {
        let len = 1 + round * 37 % 3000;
        let lh = session.alloc(None, len, Placement::Local, everyone()).unwrap();
        assert!(contents(&session, lh).iter().all(|byte| *byte == 0), "round {round}");
        session.write(lh, 0, &pattern(len, round)).unwrap();
        session.free(lh).unwrap();
    }
}

/// Expects that a second free of a region fails.
pub fn a_region_is_freed_once(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let lh = shared(&session, "once", 100);
    let other = cluster.session(1);
    let far = other.map("once", Permissions::all()).unwrap();
    session.free(lh).unwrap();
    refused!(session.free(lh), RegionCause::Stale | RegionCause::UnknownHandle | RegionCause::NotFound);
    refused!(other.free(far), RegionCause::Stale | RegionCause::UnknownHandle | RegionCause::NotFound);
    // Another region may have the name by then, and must not be affected.
    let new = shared(&session, "once", 200);
    refused!(other.free(far), RegionCause::Stale | RegionCause::UnknownHandle | RegionCause::NotFound);
    session.write(new, 150, b"x").unwrap();
}

/// Expects that a master on another node may free the region.
pub fn a_master_may_free_from_any_node(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let near = shared(&cluster.session(0), "far", 2 * CHUNK);
    let other = cluster.session(2);
    let lh = other.map("far", Permissions::all()).unwrap();
    other.free(lh).unwrap();
    assert_ne!(near, lh);
    cluster.expect_empty();
}
