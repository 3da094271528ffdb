//! Sealed regions, which are permanently immutable.

use halite::{AccessCause, NodeId, Permissions, Placement, RegionCause};

use super::cluster::{CHUNK, Cluster, Harness, contents, eventually, everyone, pattern, shared};
use super::refused;

/// Expects that a sealed region refuses writes by a principal with write permission, through old and new handles, that
/// it can be mapped only for reading, and that reads still work.
pub fn a_sealed_region_refuses_writes(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let owner = cluster.session(0);
    let near = shared(&owner, "stone", CHUNK + 10);
    let bytes = pattern(CHUNK + 10, 1);
    owner.write(near, 0, &bytes).unwrap();
    let session = cluster.session(1);
    let old = session.map("stone", everyone()).unwrap();
    owner.seal(near).unwrap();
    for wanted in [everyone(), Permissions::WRITE, Permissions::ATOMIC] {
        refused!(session.map("stone", wanted), RegionCause::Sealed);
    }
    let new = session.map("stone", Permissions::READ).unwrap();
    for lh in [old, new] {
        refused!(session.write(lh, 0, b"scratch"), AccessCause::Sealed);
    }
    refused!(owner.write(near, CHUNK - 1, b"scratch"), AccessCause::Sealed);
    assert_eq!(contents(&session, old), bytes);
    assert_eq!(contents(&session, new), bytes);
    assert!(session.stat("stone").unwrap().sealed);
}

/// Expects that a second seal succeeds without an effect.
pub fn sealing_again_changes_nothing(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "stone", 100);
    assert!(!session.stat("stone").unwrap().sealed);
    session.seal(lh).unwrap();
    session.seal(lh).unwrap();
    assert!(session.stat("stone").unwrap().sealed);
}

/// Expects that a sealed region can move, and keeps its bytes.
pub fn a_sealed_region_can_be_moved(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let lh = shared(&session, "stone", 2 * CHUNK);
    let bytes = pattern(2 * CHUNK, 2);
    session.write(lh, 0, &bytes).unwrap();
    session.seal(lh).unwrap();
    session.move_to(lh, NodeId(1)).unwrap();
    assert_eq!(contents(&session, lh), bytes);
    assert_eq!(session.stat("stone").unwrap().nodes, [(NodeId(1), 2 * CHUNK)]);
    refused!(session.write(lh, 0, b"scratch"), AccessCause::Sealed);
}

/// Expects that the memory of a freed sealed region is writable again.
pub fn a_sealed_region_can_be_freed(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = session.alloc(Some("stone"), CHUNK, Placement::Local, everyone()).unwrap();
    session.seal(lh).unwrap();
    session.free(lh).unwrap();
    cluster.expect_empty();
    let lh = eventually("the memory is free again", || {
        session.alloc(Some("clay"), CHUNK, Placement::Local, everyone())
    });
    session.write(lh, 0, b"soft").unwrap();
}
