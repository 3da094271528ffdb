//! Permissions: granting, denying and revoking them. Only masters command regions.

use halite::{AccessCause, NodeId, Permissions, Placement, RegionCause, Who};

use super::cluster::{Cluster, Harness, contents, everyone};
use super::{eventually_refused, refused};

/// Asserts that the command was refused because the session lacks the permission of a master.
macro_rules! needs_master {
    ($result:expr) => {
        refused!($result, RegionCause::PermissionDenied { missing: Permissions::MASTER })
    };
}

fn bob() -> Who {
    Who::Principal("bob".to_owned())
}

/// Expects that the creator of a region has all permissions.
pub fn the_creator_has_all_permissions(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "ada"]);
    let session = cluster.session(0);
    session.alloc(Some("mine"), 100, Placement::Local, Permissions::empty()).unwrap();
    // Permissions belong to the principal, not to the session or the node.
    let lh = cluster.session(1).map("mine", Permissions::all());
    assert!(lh.is_ok(), "{lh:?}");
}

/// Expects that other principals have the permissions that the region grants to everyone, and that errors contain the
/// missing permissions.
pub fn others_have_the_permissions_of_everyone(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    cluster.session(0).alloc(Some("public"), 100, Placement::Local, Permissions::READ).unwrap();
    let bob = cluster.session(1);
    let lh = bob.map("public", Permissions::READ).unwrap();
    assert_eq!(contents(&bob, lh), [0; 100]);
    let wanted = Permissions::READ | Permissions::WRITE;
    refused!(bob.map("public", wanted), RegionCause::PermissionDenied { missing: Permissions::WRITE });
    cluster.session(0).alloc(Some("private"), 100, Placement::Local, Permissions::empty()).unwrap();
    refused!(
        bob.map("private", Permissions::READ),
        RegionCause::PermissionDenied { missing: Permissions::READ }
    );
}

/// Expects that a handle has only the requested permissions, even if the principal has more.
pub fn a_handle_has_only_the_requested_permissions(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    cluster.session(0).alloc(Some("book"), 100, Placement::Local, everyone()).unwrap();
    let session = cluster.session(1);
    let reader = session.map("book", Permissions::READ).unwrap();
    refused!(session.write(reader, 0, b"x"), AccessCause::PermissionDenied { missing: Permissions::WRITE });
    let writer = session.map("book", Permissions::WRITE).unwrap();
    session.write(writer, 0, b"x").unwrap();
    let mut byte = [7];
    refused!(
        session.read(writer, 0, &mut byte),
        AccessCause::PermissionDenied { missing: Permissions::READ }
    );
    assert_eq!(byte, [7], "a refused read changed the buffer");
    assert_eq!(contents(&session, reader)[0], b'x');
}

/// Expects that a grant affects only the named principal, and is part of the description.
pub fn a_grant_affects_only_its_principal(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob", "eve"]);
    let ada = cluster.session(0);
    let lh = ada.alloc(Some("letter"), 100, Placement::Local, Permissions::empty()).unwrap();
    ada.grant(lh, bob(), Permissions::READ).unwrap();
    cluster.session(1).map("letter", Permissions::READ).unwrap();
    let eve = cluster.session(2).map("letter", Permissions::READ);
    refused!(eve, RegionCause::PermissionDenied { missing: Permissions::READ });
    let info = ada.stat("letter").unwrap();
    assert_eq!((info.owner.as_str(), info.everyone), ("ada", Permissions::empty()));
    assert!(info.grants.contains(&("bob".to_owned(), Permissions::READ)), "{:?}", info.grants);
}

/// Expects that a grant to everyone affects all principals that have no grant by name.
pub fn everyone_can_be_granted_and_revoked(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let ada = cluster.session(0);
    let lh = ada.alloc(Some("notice"), 100, Placement::Local, Permissions::empty()).unwrap();
    ada.grant(lh, Who::Everyone, Permissions::READ).unwrap();
    assert_eq!(ada.stat("notice").unwrap().everyone, Permissions::READ);
    cluster.session(1).map("notice", Permissions::READ).unwrap();
    ada.revoke(lh, Who::Everyone, Permissions::READ).unwrap();
    let after = cluster.session(1).map("notice", Permissions::READ);
    refused!(after, RegionCause::PermissionDenied { missing: Permissions::READ });
}

/// Expects that open handles lack the revoked permission once `revoke` has returned, and keep the others.
pub fn open_handles_lose_a_revoked_permission(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let ada = cluster.session(0);
    let near = ada.alloc(Some("loan"), 100, Placement::Local, Permissions::empty()).unwrap();
    ada.grant(near, bob(), Permissions::READ | Permissions::WRITE).unwrap();
    let session = cluster.session(1);
    let lh = session.map("loan", Permissions::READ | Permissions::WRITE).unwrap();
    session.write(lh, 0, b"before").unwrap();
    ada.revoke(near, bob(), Permissions::WRITE).unwrap();
    refused!(session.write(lh, 0, b"after!"), AccessCause::PermissionDenied { missing: Permissions::WRITE });
    assert_eq!(&contents(&session, lh)[..6], b"before");
    ada.revoke(near, bob(), Permissions::READ).unwrap();
    let refusal = session.read(lh, 0, &mut [0]);
    refused!(refusal, AccessCause::PermissionDenied { missing: Permissions::READ });
    // The creator's permissions are unaffected.
    ada.write(near, 0, b"mine").unwrap();
}

/// Expects that commands by other principals than masters are refused, and have no effect.
pub fn only_masters_give_commands(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let ada = cluster.session(0);
    let near = ada.alloc(Some("throne"), 100, Placement::Local, everyone()).unwrap();
    ada.write(near, 0, b"kept").unwrap();
    let before = ada.stat("throne").unwrap();
    let session = cluster.session(1);
    let lh = session.map("throne", everyone()).unwrap();
    needs_master!(session.free(lh));
    needs_master!(session.grant(lh, bob(), Permissions::MASTER));
    needs_master!(session.revoke(lh, Who::Principal("ada".to_owned()), Permissions::all()));
    needs_master!(session.add_master(lh, "bob"));
    needs_master!(session.seal(lh));
    needs_master!(session.move_to(lh, NodeId(1)));
    let after = ada.stat("throne").unwrap();
    assert_eq!((before.home, before.grants, before.sealed), (after.home, after.grants, after.sealed));
    assert_eq!(&contents(&ada, near)[..4], b"kept");
}

/// Expects that a handle permits only the commands for which it was mapped, even if its principal is a master.
pub fn a_handle_commands_only_with_its_permissions(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "ada"]);
    let maker = cluster.session(0);
    let near = maker.alloc(Some("lent"), 100, Placement::Local, Permissions::READ).unwrap();
    maker.write(near, 0, b"kept").unwrap();
    let session = cluster.session(1);
    let nameless = session.alloc(None, 100, Placement::On(NodeId(0)), Permissions::empty()).unwrap();
    let before = session.stat("lent").unwrap();
    for wanted in [Permissions::READ, Permissions::all() - Permissions::MASTER] {
        let lh = session.map("lent", wanted).unwrap();
        needs_master!(session.free(lh));
        needs_master!(session.grant(lh, bob(), Permissions::READ));
        needs_master!(session.revoke(lh, Who::Everyone, Permissions::READ));
        needs_master!(session.add_master(lh, "bob"));
        needs_master!(session.seal(lh));
        needs_master!(session.move_to(lh, NodeId(1)));
        needs_master!(session.set_name(lh, "stolen"));
        assert_eq!(&contents(&session, lh)[..4], b"kept");
    }
    let after = session.stat("lent").unwrap();
    assert_eq!((before.home, before.sealed, before.everyone), (after.home, after.sealed, after.everyone));
    assert_eq!(before.grants, after.grants);
    // The handle from `alloc` has all permissions, and a master can map such a handle at any time.
    session.set_name(nameless, "named").unwrap();
    let master = session.map("lent", Permissions::MASTER).unwrap();
    session.free(master).unwrap();
}

/// Expects that a revoked permission does not return to open handles when it is granted again.
pub fn a_handle_gains_no_permissions(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let ada = cluster.session(0);
    let near = ada.alloc(Some("office"), 100, Placement::Local, Permissions::READ).unwrap();
    ada.add_master(near, "bob").unwrap();
    let session = cluster.session(1);
    let master = session.map("office", Permissions::READ | Permissions::MASTER).unwrap();
    let reader = session.map("office", Permissions::READ).unwrap();
    ada.revoke(near, bob(), Permissions::MASTER).unwrap();
    ada.add_master(near, "bob").unwrap();
    for lh in [master, reader] {
        let refusal = session.seal(lh);
        refused!(refusal, RegionCause::PermissionDenied { missing: Permissions::MASTER });
        contents(&session, lh);
    }
    let new = session.map("office", Permissions::MASTER).unwrap();
    session.seal(new).unwrap();
}

/// Expects that each of several masters may give all commands.
pub fn every_master_gives_commands(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob", "eve"]);
    let ada = cluster.session(0);
    let near = ada.alloc(Some("shared throne"), 100, Placement::Local, Permissions::empty()).unwrap();
    ada.add_master(near, "bob").unwrap();
    let bob = cluster.session(1);
    let lh = bob.map("shared throne", Permissions::MASTER).unwrap();
    bob.grant(lh, Who::Principal("eve".to_owned()), Permissions::READ).unwrap();
    cluster.session(2).map("shared throne", Permissions::READ).unwrap();
    bob.free(lh).unwrap();
    eventually_refused!(ada.write(near, 0, b"x"), AccessCause::Stale);
    cluster.expect_empty();
}

/// Expects that granting a permission again, and revoking a permission that was not granted, succeed.
pub fn grants_are_idempotent(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let ada = cluster.session(0);
    let lh = ada.alloc(Some("calm"), 100, Placement::Local, Permissions::empty()).unwrap();
    for _ in 0..2 {
        ada.grant(lh, bob(), Permissions::READ).unwrap();
    }
    for _ in 0..2 {
        ada.revoke(lh, bob(), Permissions::READ | Permissions::WRITE).unwrap();
    }
    let refusal = cluster.session(1).map("calm", Permissions::READ);
    refused!(refusal, RegionCause::PermissionDenied { missing: Permissions::READ });
}

/// Expects that a master can change the permissions of a region without a name through its handle.
pub fn a_nameless_region_has_permissions_too(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let ada = cluster.session(0);
    let lh = ada.alloc(None, 100, Placement::On(NodeId(1)), Permissions::empty()).unwrap();
    ada.grant(lh, bob(), Permissions::READ).unwrap();
    let info = ada.stat_handle(lh).unwrap();
    assert!(info.grants.contains(&("bob".to_owned(), Permissions::READ)), "{:?}", info.grants);
}
