//! Handles: valid in their session and for their region, until they are unmapped.

use halite::{AccessCause, Permissions, Placement, RegionCause};

use super::cluster::{Cluster, Harness, await_value, contents, everyone, in_common, shared};
use super::refused;

/// Expects that a handle is invalid in another session, on the same node or another.
pub fn a_handle_is_invalid_in_other_sessions(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let owner = cluster.session(0);
    let lh = shared(&owner, "own", 100);
    for stranger in [cluster.session(0), cluster.session(1)] {
        // The handle stays invalid when the other session has handles of its own.
        shared(&stranger, &format!("other {}", cluster.session(0).list().unwrap().len()), 100);
        refused!(stranger.read(lh, 0, &mut [0]), AccessCause::ForeignHandle);
        refused!(stranger.write(lh, 0, &[1]), AccessCause::ForeignHandle);
        refused!(stranger.len(lh), AccessCause::ForeignHandle);
        refused!(stranger.unmap(lh), RegionCause::ForeignHandle);
        refused!(stranger.free(lh), RegionCause::ForeignHandle);
        refused!(stranger.stat_handle(lh), RegionCause::ForeignHandle);
    }
    assert_eq!(contents(&owner, lh), [0; 100]);
}

/// Expects that clones of a session share its handles.
pub fn a_clone_of_a_session_shares_its_handles(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "common", 100);
    let clone = session.clone();
    clone.write(lh, 0, b"both").unwrap();
    assert_eq!(&contents(&session, lh)[..4], b"both");
}

/// Expects that a handle is invalid once it is unmapped.
pub fn a_handle_ends_with_unmap(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [_, (session, lh)] = in_common(&cluster, "passing", 100);
    session.unmap(lh).unwrap();
    refused!(session.read(lh, 0, &mut [0]), AccessCause::Stale | AccessCause::UnknownHandle);
    refused!(session.write(lh, 0, &[1]), AccessCause::Stale | AccessCause::UnknownHandle);
    refused!(session.len(lh), AccessCause::Stale | AccessCause::UnknownHandle);
    refused!(session.unmap(lh), RegionCause::Stale | RegionCause::UnknownHandle);
    refused!(session.free(lh), RegionCause::Stale | RegionCause::UnknownHandle);
    // The region still exists.
    session.map("passing", everyone()).unwrap();
}

/// Expects that an unmapped handle never reaches a later region, even after many reuses of its slot.
pub fn an_old_handle_never_reaches_a_later_region(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let mut old = Vec::new();
    for round in 0..100u8 {
        let lh = session.alloc(None, 64, Placement::Local, everyone()).unwrap();
        session.write(lh, 0, &[round; 64]).unwrap();
        for earlier in &old {
            refused!(
                session.write(*earlier, 0, &[0xFF; 64]),
                AccessCause::Stale | AccessCause::UnknownHandle
            );
        }
        assert_eq!(contents(&session, lh), [round; 64]);
        session.free(lh).unwrap();
        old.push(lh);
    }
}

/// Expects that a region exists until it is freed, even if its creator unmaps its handle.
pub fn a_region_outlives_its_handles(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(1);
    let lh = shared(&session, "durable", 100);
    session.write(lh, 0, b"kept").unwrap();
    session.unmap(lh).unwrap();
    let other = cluster.session(0);
    let lh = other.map("durable", Permissions::READ).unwrap();
    assert_eq!(&contents(&other, lh)[..4], b"kept");
}

/// Expects that a dropped session unmaps its handles, while regions with names remain.
pub fn a_dropped_session_leaves_no_mappings(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    shared(&cluster.session(0), "stays", 100);
    let session = cluster.session(1);
    for _ in 0..10 {
        session.map("stays", Permissions::READ).unwrap();
    }
    assert_eq!(cluster.status(1).mappings, 10);
    drop(session);
    await_value("node 1 maps nothing", || cluster.status(1).mappings, |count| *count == 0);
    cluster.session(1).map("stays", Permissions::READ).unwrap();
}
